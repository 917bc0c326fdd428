"""A private Kafka broker (KRaft, one node), and what tests do with its topics."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.services.processes import SHORT_LIVED, Process, ServiceUnavailable, free_ports
from tidegate.errors import SetupError
from tidegate.spark.environment.jars import cache_folder, fetch

BROKER = "org.apache.kafka:kafka_2.13:4.3.1"
# Without one of these the broker does not say why it stops; they are among the jars of PySpark.
LOGGING = ("slf4j-api-*.jar", "log4j-slf4j2-impl-*.jar", "log4j-api-*.jar", "log4j-core-2*.jar")
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "num.partitions": "2",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # A transaction of a writer that was killed ends soon, also where nobody takes its id again.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}


@dataclass(frozen=True)
class Message:
    """A message as it was read."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes | None] = field(default_factory=dict)

    @property
    def json(self) -> Any:
        return None if self.value is None else json.loads(self.value)


@dataclass
class KafkaBroker:
    """A running broker."""

    bootstrap_servers: str
    process: Process

    def topics(self) -> set[str]:
        return set(self._admin().list_topics(timeout=10).topics)

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> str:
        """Make a topic, and return its name when the broker knows it."""
        from confluent_kafka.cimpl import NewTopic

        admin = self._admin()
        admin.create_topics([NewTopic(name, partitions, 1, config=dict(config or {}))])[
            name
        ].result(30)
        deadline = time.monotonic() + 30
        while name not in admin.list_topics(timeout=10).topics:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the topic {name} was made, but the broker does not know it")
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and return when the broker has forgotten it."""
        admin = self._admin()
        admin.delete_topics([name])[name].result(30)
        deadline = time.monotonic() + 30
        while name in admin.list_topics(timeout=10).topics:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the topic {name} was deleted, and the broker still knows it")

    def add_partitions(self, topic: str, total: int) -> None:
        """Give a topic as many partitions."""
        from confluent_kafka.cimpl import NewPartitions

        admin = self._admin()
        admin.create_partitions([NewPartitions(topic, total)])[topic].result(30)
        deadline = time.monotonic() + 30
        while len(admin.list_topics(topic, timeout=10).topics[topic].partitions) < total:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the broker does not know all partitions of {topic}")

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete the records of a partition before an offset."""
        from confluent_kafka import TopicPartition

        admin = self._admin()
        for deleted in admin.delete_records([TopicPartition(topic, partition, before)]).values():
            deleted.result(30)

    def produce(self, topic: str, records: Iterable[Mapping[str, Any]]) -> None:
        """Send records (`value`, and `key`, `partition`, `timestamp` in milliseconds, `headers`
        where wanted), and wait until they are there.

        A value or key that is neither bytes, text nor None is sent as JSON.
        """
        from confluent_kafka import Producer

        failures: list[str] = []
        producer = Producer({"bootstrap.servers": self.bootstrap_servers, "linger.ms": 5})
        for record in records:
            options = {
                name: record[name]
                for name in ("partition", "timestamp", "headers")
                if name in record
            }
            producer.produce(
                topic,
                value=_bytes(record.get("value")),
                key=_bytes(record.get("key")),
                on_delivery=lambda error, _: failures.append(str(error)) if error else None,
                **options,
            )
            producer.poll(0)
        left = producer.flush(60)
        if failures or left:
            raise RuntimeError(f"{left} messages were not sent: {failures[:3]}")

    def consume(self, topic: str, *, committed: bool = True, seconds: float = 30) -> list[Message]:
        """All messages that are in the topic now, in the order of partition and offset; with
        `committed`, as a reader of transactions sees it.
        """
        from confluent_kafka import Consumer, KafkaError, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": "tests",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "fetch.wait.max.ms": 20,
            }
        )
        try:
            partitions = set(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
            consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
            found: list[Message] = []
            deadline = time.monotonic() + seconds
            while partitions:
                message = consumer.poll(0.5)
                if time.monotonic() > deadline:
                    raise RuntimeError(
                        f"the topic {topic} was not read to its end in {seconds} seconds"
                    )
                if message is None:
                    continue
                if message.error() is None:
                    headers = dict(message.headers() or [])
                    found.append(
                        Message(
                            topic,
                            message.partition(),
                            message.offset(),
                            message.key(),
                            message.value(),
                            headers,
                        )
                    )
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    partitions.discard(message.partition())
                else:
                    raise RuntimeError(str(message.error()))
            return sorted(found, key=lambda one: (one.partition, one.offset))
        finally:
            consumer.close()

    def _admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.bootstrap_servers})


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def _class_path() -> str:
    import pyspark

    try:
        jars = fetch([BROKER], cache_folder())
    except SetupError as error:
        raise ServiceUnavailable(f"Kafka's broker is not to be had: {error}") from error
    spark = Path(pyspark.__file__).parent / "jars"
    logging = [jar for pattern in LOGGING for jar in sorted(spark.glob(pattern))]
    return ":".join(str(jar) for jar in [*logging, *jars])


@contextmanager
def kafka_broker() -> Iterator[KafkaBroker]:
    """Format a log folder and run a broker on it until the end of the block."""
    if shutil.which("java") is None:
        raise ServiceUnavailable("Kafka needs Java, and there is no `java`")
    classes = _class_path()
    folder = Path(tempfile.mkdtemp(prefix="tidegate-kafka-"))
    process = None
    try:
        client, controller = free_ports(2)
        settings = SETTINGS | {
            "log.dirs": str(folder / "logs"),
            "listeners": f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": (
                f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}"
            ),
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        }
        properties = folder / "server.properties"
        properties.write_text(
            "".join(f"{name}={value}\n" for name, value in settings.items()), "utf-8"
        )
        java = ["java", "-Xms128m", "-Xmx512m", *SHORT_LIVED, "-cp", classes]
        formatted = subprocess.run(
            [
                *java,
                "kafka.tools.StorageTool",
                "format",
                "-t",
                "tidegateTidegateTideAA",
                "-c",
                properties,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if formatted.returncode != 0:
            raise RuntimeError(
                "the folder of the broker cannot be"
                f" formatted:\n{formatted.stdout}\n{formatted.stderr}"
            )
        process = Process("Kafka", [*java, "kafka.Kafka", properties], folder / "broker.log")
        broker = KafkaBroker(f"127.0.0.1:{client}", process)
        process.wait_until(lambda: _answers(broker.bootstrap_servers), 90)
        yield broker
    finally:
        if process is not None:
            # Nothing of it is kept, so nobody waits for its orderly end.
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _answers(servers: str) -> bool:
    """Whether the broker serves: it tells who it is."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        return bool(
            AdminClient({"bootstrap.servers": servers, "log_level": 0})
            .list_topics(timeout=2)
            .brokers
        )
    except KafkaException:
        return False
