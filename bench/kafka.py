"""Kafka benchmark: the direct source against Spark's own Kafka source with its own windows.

Messages are JSON objects with a text key. Without `--brokers`, a broker runs for the time of the
benchmark, the one of the tests.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

from bench import spark_data
from bench.spark import Case
from bench.spark_data import TEXT_SCHEMA, Events
from bench.spark_sides import Shape, topic_name
from tidegate.errors import SetupError

PARTITIONS = 4
_DATA = Events(12, 500_000, 10_000, text=True, late=0.03, format="json")
_PLAIN = Shape("tumbling", True, TEXT_SCHEMA, "kafka")
_EARLY = Shape("tumbling", True, TEXT_SCHEMA, "kafka", early=True)
CASES = {
    case.name: case
    for case in (
        Case("kafka_json", _PLAIN, _DATA, 4),
        Case("kafka_early", _EARLY, _DATA, 0.5, against=_PLAIN),
    )
}


@contextmanager
def broker(servers: str | None) -> Iterator[str]:
    """The address of the broker."""
    if servers is not None:
        yield servers
        return
    try:
        # In the folder of the tests, which is no package.
        services = import_module("support.services.kafka")
    except ImportError as error:
        raise SetupError(
            f"the broker of the tests cannot be started ({error}). Hint: `make bench-kafka`, or"
            " --brokers HOST:PORT"
        ) from error
    with services.kafka_broker() as running:
        yield running.bootstrap_servers


def _delete(admin: Any, topic: str) -> None:
    """Delete the topic of an earlier run, if there is one, and wait until it is gone."""
    if topic not in admin.list_topics(timeout=10).topics:
        return
    admin.delete_topics([topic])[topic].result(30)
    deadline = time.monotonic() + 30
    while topic in admin.list_topics(timeout=10).topics:
        if time.monotonic() > deadline:
            raise SetupError(
                f"the brokers have not deleted the topic `{topic}` of an earlier run. Hint: delete"
                " it, or use other brokers"
            )
        time.sleep(0.1)


class Topics:
    """Produces events to topics of a broker, once."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._made: dict[Events, str] = {}

    def __call__(self, events: Events) -> str:
        """The place of the topic: the brokers, and its name."""
        if events not in self._made:
            self._made[events] = self._produce(events)
        return self._made[events]

    def _produce(self, events: Events) -> str:
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        topic = topic_name(events)
        admin = AdminClient({"bootstrap.servers": self._servers})
        _delete(admin, topic)
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
        options: dict[str, Any] = {
            "bootstrap.servers": self._servers,
            "linger.ms": 50,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
        }
        producer = Producer(options)
        random, names = np.random.default_rng(7), spark_data.text_keys(events.keys)
        for number in range(events.files):
            found = spark_data.table(events, number, random, names=names)
            lines = spark_data.json_lines(found).to_pylist()
            for n, line in enumerate(lines):
                # The same times in all partitions: a batch has a share of each.
                producer.produce(topic, line, partition=n % PARTITIONS)
                if n % 10_000 == 0:
                    producer.poll(0)
            producer.flush()
        return f"{self._servers}/{topic}"
