"""The Kafka sink: a message a row, a transaction a batch, and the id of the batch committed in the
same transaction.

The value of a message is the row as a JSON object, all columns in their order
(`tidegate.spark.sinks.json_rendering` tells the form of values). What else a message has:

    panes     key: JSON of the key columns, `window_start` and `window_end`     headers: `pane_id`, `op`, `timing`
    late      key: JSON of the key columns that the input has, or none          headers: `class`, `reason`
    metrics   no key                                                            no headers

A retraction is a message of its own: the value that is taken back, with `op` `-` in the value and
in the header. It is no tombstone, which could not say what was taken back, and would delete the
replacement's history in a compacted topic.

Messages of one key are in one partition (the one that Java's producers choose), in the order of the
panes. `pane_id` is the same when a pane is computed again, so that readers who do not read
committed messages only can still drop repetitions.

The newest batch of each query's output stands in the compacted topic `<topic>.tidegate`, keyed by
query and output. It is read before the first batch of a process, behind the fence of the
transactional id: an attempt that died in the middle is undone first, and a batch that is not newer
is skipped.
"""

from __future__ import annotations

import atexit
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from tidegate.errors import MissingExtraError, SinkError, SpecError
from tidegate.spark.sinks.base import PANE_ID, DriverSink, SinkTarget, without_pane_id
from tidegate.spark.sinks.json_rendering import json_objects, one_array

if TYPE_CHECKING:
    from confluent_kafka import Producer

SECONDS = 30.0
"""How long a step of a transaction may take."""
ANSWER_SECONDS = 10.0
"""How long a broker may take to say that it is there."""
LONGEST_TOPIC = 249
MARKS = ".tidegate"
# Compaction leaves the newest segment alone: small ones keep what has to be read at the start
# small.
MARKS_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "60000",
}
OURS = ("bootstrap.servers", "enable.idempotence", "transactional.id")
# Opening a producer costs more than a small batch. One that another process has fenced off since
# fails at its next message.
_KEPT: dict[tuple[KafkaSink, str, str], tuple[Producer, int]] = {}
MOST_KEPT = 16
atexit.register(_KEPT.clear)
T = TypeVar("T")
Headers = list[tuple[str, str | bytes | None]]
# What brokers answer for a moment after a topic was made or has moved.
_NOT_YET = {
    "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION",
    "UNKNOWN_TOPIC_OR_PART",
    "_UNKNOWN_PARTITION",
    "_UNKNOWN_TOPIC",
}
_HEADERS = {"panes": (PANE_ID, "pair_id", "op", "timing"), "late": ("class", "reason")}


@dataclass(frozen=True)
class KafkaSink(DriverSink):
    """A topic of Kafka."""

    bootstrap_servers: str
    topic: str
    # They may hold a password.
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def check(self, target: SinkTarget) -> None:  # noqa: ARG002 - any rows can be sent
        marks = self.topic + MARKS
        if (
            len(marks) > LONGEST_TOPIC
            or not all(one.isascii() and (one.isalnum() or one in "._-") for one in self.topic)
            or not self.topic
        ):
            raise SpecError(
                f"the name of a topic has 1 to {LONGEST_TOPIC - len(MARKS)} of the characters a-z,"
                f" A-Z, 0-9, `.`, `_`, `-`, got `{self.topic}`. Hint: another name"
            )
        ours = sorted({name for name, _ in self.options} & set(OURS))
        if ours:
            raise SpecError(
                f"the Kafka sink sets {', '.join(ours)} itself. Hint: leave it out of `options`"
            )
        with self._told("be reached"):
            self._make_topics()

    def write(self, target: SinkTarget, batch: int, tables: Iterator[pa.Table]) -> None:
        rows = (table for table in tables if len(table))
        first = next(rows, None)
        if first is None:
            return
        with self._told("take the batch"):
            place = (self, target.query, target.output)
            # Taken out while it is used, so that two never use one; it comes back only when all
            # went well.
            producer, newest = _KEPT.pop(place) if place in _KEPT else self._opened(target)
            if newest < batch:
                self._send(producer, target, batch, chain([first], rows))
            _keep(place, producer, max(newest, batch))
        # Replayed: the rows are there. What remains is read, because Spark counts on it.
        for _ in rows:
            pass

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Failures of Kafka in the words of the project."""
        try:
            from confluent_kafka import KafkaException
        except ImportError:
            raise MissingExtraError("confluent-kafka", "kafka", "the Kafka sink") from None
        try:
            yield
        except KafkaException as error:
            reason = error.args[0]
            hint = "start the query again when the broker is back; it goes on with this batch"
            if reason.name() in {"MSG_SIZE_TOO_LARGE", "_MSG_SIZE_TOO_LARGE"}:
                hint = (
                    'raise `max.message.bytes` of the topic and give options={"message.max.bytes":'
                    " ...}"
                )
            elif "AUTHORIZATION" in reason.name():
                hint = (
                    "the user needs the rights to write to the topic and to its `.tidegate` topic,"
                    " to read the latter, and for transactional ids"
                )
            elif reason.name() in {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"}:
                hint = "another process runs the same query; stop one of them"
            where = (
                f"the brokers {self.bootstrap_servers} could not {what} for the topic"
                f" `{self.topic}`"
            )
            raise SinkError(f"{where} ({reason.str()}). Hint: {hint}") from error

    def _settings(self, more: Mapping[str, Any]) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap_servers, "log_level": 0, **more}

    def _make_topics(self) -> None:
        """Make the topic, with the broker's usual partitions, and that of the batches, where they
        are not there.
        """
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        admin = AdminClient(self._settings(dict(self._connecting())))
        there = admin.list_topics(timeout=ANSWER_SECONDS).topics
        wanted = [NewTopic(self.topic), NewTopic(self.topic + MARKS, 1, config=MARKS_CONFIG)]
        missing = [topic for topic in wanted if topic.topic not in there]
        if not missing:
            return
        for made in admin.create_topics(missing, operation_timeout=SECONDS).values():
            try:
                made.result(SECONDS)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        # A broker may know a topic a moment after it was made.
        deadline = time.monotonic() + SECONDS
        while (
            not {topic.topic for topic in wanted}
            <= set(admin.list_topics(timeout=ANSWER_SECONDS).topics)
            and time.monotonic() < deadline
        ):
            time.sleep(0.02)

    def _connecting(self) -> Iterator[tuple[str, str]]:
        """The options that other clients than the producer take too: how to reach the brokers."""
        kinds = ("security.", "sasl.", "ssl.", "client.", "socket.", "broker.", "log")
        return ((name, value) for name, value in self.options if name.startswith(kinds))

    def _opened(self, target: SinkTarget) -> tuple[Producer, int]:
        """A producer that has ended every earlier attempt of this output, and the newest batch that
        was committed before.
        """
        from confluent_kafka import Producer

        usual = {"linger.ms": "20", "compression.type": "lz4", "partitioner": "murmur2_random"}
        own = {"transactional.id": f"tidegate.{target.query}.{target.output}"}
        producer = Producer(self._settings({**usual, **dict(self.options), **own}))
        self._make_topics()
        _retried(producer.init_transactions)
        return producer, self._newest(target)

    def _newest(self, target: SinkTarget) -> int:
        """The newest batch that was committed; -1 where there is none.

        Other queries may write to the topic at the same time: what stands behind an open
        transaction cannot be read, so its end is awaited.
        """
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        consumer = Consumer(
            self._settings(
                {
                    **dict(self._connecting()),
                    "group.id": "tidegate",
                    "enable.auto.commit": "false",
                    "auto.offset.reset": "earliest",
                    "isolation.level": "read_committed",
                    "enable.partition.eof": "true",
                    "fetch.wait.max.ms": "20",
                }
            )
        )
        try:
            whole = TopicPartition(self.topic + MARKS, 0, 0)
            end = self._end_of_marks()
            consumer.assign([whole])
            newest, reached = -1, 0
            wanted = _mark_key(target)
            deadline = time.monotonic() + SECONDS + self._transaction_seconds()
            while reached < end:
                if time.monotonic() > deadline:
                    raise SinkError(
                        f"the batches in the topic `{self.topic}{MARKS}` cannot be read to their"
                        " end: a transaction on it stays open. Hint: look for a hanging"
                        " transaction (kafka-transactions.sh find-hanging), and start the query"
                        " again"
                    )
                message = consumer.poll(0.1)
                if message is None:
                    continue
                failure = message.error()
                if failure is not None and failure.name() in _NOT_YET:
                    continue
                if failure is not None and failure.name() != "_PARTITION_EOF":
                    raise KafkaException(failure)
                # The end may lie behind what is not given out: ends of transactions, and messages
                # of those that were undone.
                reached = (message.offset() or 0) + (failure is None)
                if failure is None and message.key() == wanted:
                    newest = max(newest, int(json.loads(message.value() or b"{}").get("batch", -1)))
            return newest
        finally:
            consumer.close()

    def _end_of_marks(self) -> int:
        """The end of the topic of batches, open transactions included."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            self._settings(
                {
                    **dict(self._connecting()),
                    "group.id": "tidegate",
                    "isolation.level": "read_uncommitted",
                }
            )
        )
        try:
            bounds = _retried(
                lambda seconds: consumer.get_watermark_offsets(
                    TopicPartition(self.topic + MARKS, 0), timeout=seconds
                )
            )
            return int(bounds[1])
        finally:
            consumer.close()

    def _transaction_seconds(self) -> float:
        """How long the broker lets a transaction be open."""
        return int(dict(self.options).get("transaction.timeout.ms", "60000")) / 1000

    def _send(
        self, producer: Producer, target: SinkTarget, batch: int, tables: Iterator[pa.Table]
    ) -> None:
        """One transaction: the rows, and the id of the batch."""
        from confluent_kafka import KafkaException

        failures: list[Any] = []

        def delivered(failure: Any, _message: Any) -> None:
            if failure is not None:
                failures.append(failure)

        producer.begin_transaction()
        try:
            for table in tables:
                for key, value, headers in _messages(target, table):
                    _produce(producer, self.topic, key, value, headers, delivered)
                producer.poll(0)
                if failures:
                    break
            if not failures:
                mark = json.dumps({"batch": batch}).encode()
                _produce(producer, self.topic + MARKS, _mark_key(target), mark, [], delivered)
            # Also after a failure: what follows from it may be told before it.
            producer.flush()
            _refuse(failures)
            _retried(producer.commit_transaction)
        except BaseException:
            # Where it cannot be undone now, the next attempt does it before anything else.
            with suppress(KafkaException):
                producer.abort_transaction(5)
            raise


def kafka(
    bootstrap_servers: str, topic: str, *, options: Mapping[str, Any] | None = None
) -> KafkaSink:
    """Write to a topic of Kafka: a message a row, each batch in one transaction.

    `options` are settings of librdkafka, such as `security.protocol` or `compression.type`. The
    topic, and the topic `<topic>.tidegate` for the ids of batches, are made when they are not
    there. Consumers see each row once when they read committed messages only
    (`isolation.level=read_committed`). The brokers must be reachable from where Spark's driver (the
    Spark Connect server) runs.
    """
    told = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in (options or {}).items()
    }
    return KafkaSink(bootstrap_servers, topic, tuple(sorted(told.items())))


def _keep(place: tuple[KafkaSink, str, str], producer: Producer, newest: int) -> None:
    _KEPT[place] = (producer, newest)
    while len(_KEPT) > MOST_KEPT:
        with suppress(KeyError, StopIteration):
            _KEPT.pop(next(iter(_KEPT)))


def _messages(
    target: SinkTarget, table: pa.Table
) -> Iterator[tuple[bytes | None, bytes | None, Headers]]:
    """Key, value and headers of each row."""
    rows = without_pane_id(target, table)
    values = json_objects(rows, rows.column_names).cast(pa.large_binary()).to_pylist()
    identity = _key_columns(target)
    keys = (
        json_objects(table, identity).cast(pa.large_binary()).to_pylist()
        if identity
        else [None] * len(table)
    )
    names = [name for name in _HEADERS.get(target.output, ()) if name in table.column_names]
    heads = [one_array(table.column(name)).cast(pa.large_binary()).to_pylist() for name in names]
    for number, (key, value) in enumerate(zip(keys, values, strict=True)):
        yield (
            key,
            value,
            [(name, column[number]) for name, column in zip(names, heads, strict=True)],
        )


def _key_columns(target: SinkTarget) -> list[str]:
    if target.output == "panes":
        return list(target.identity)
    return (
        [name for name in target.key if name in target.schema.names]
        if target.output == "late"
        else []
    )


def _mark_key(target: SinkTarget) -> bytes:
    return json.dumps({"query": target.query, "output": target.output}).encode()


def _refuse(failures: list[Any]) -> None:
    from confluent_kafka import KafkaException

    if failures:
        raise KafkaException(
            next(
                (failure for failure in failures if not failure.name().startswith("_PURGE")),
                failures[0],
            )
        )


def _produce(
    producer: Producer,
    topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    delivered: Any,
) -> None:
    while True:
        try:
            producer.produce(topic, value, key, headers=headers, on_delivery=delivered)
        except BufferError:
            # Its queue is full: wait until something of it was sent.
            producer.poll(0.1)
        else:
            return


def _retried(step: Callable[[float], T]) -> T:
    """What the step gives; it is repeated while the broker says that it may be, or is not yet
    ready.
    """
    from confluent_kafka import KafkaException

    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return step(SECONDS)
        except KafkaException as error:
            if (
                not (error.args[0].retriable() or error.args[0].name() in _NOT_YET)
                or time.monotonic() > deadline
            ):
                raise
            time.sleep(0.05)
