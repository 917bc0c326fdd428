"""The producers of a Kafka store: one for plain rows, and one per transactional id.

A change of cells uses the transactional id of their key. Taking an id aborts the open transaction
of its former holder and fences it. So what was read after taking the id stays valid until the
commit, or the commit fails.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tidegate.streams.kafka_clients import ANSWER_SECONDS, PAUSE, SECONDS, Clients, retried
from tidegate.streams.store import EventBatch

if TYPE_CHECKING:
    from confluent_kafka import Producer

MOST_PRODUCERS = 32
OVERHEAD = 1024
"""Upper bound for the size of a record beyond its key and value, in bytes."""
Record = tuple[bytes | None, bytes | None, list[tuple[str, str | bytes | None]]]
"""Key, value and headers."""
DeliveredOffsets = dict[int, list[int]]
"""The offsets of rows by partition, in the order of rows."""


class DeliveryError(Exception):
    """Some rows were not delivered."""

    def __init__(self, reason: Any, count: int, total: int) -> None:
        super().__init__(reason)
        self.reason, self.count, self.total = reason, count, total


class Delivery:
    """Records handed to a producer, with their delivery reports.

    Several threads may share one producer.
    """

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._count = 0
        self._sent: DeliveredOffsets = {}
        self._failures: list[Any] = []

    def send(self, topic: str, number: int, rows: EventBatch) -> None:
        """Send rows to a partition; they are appended later."""
        report, produce = self._report(number), self._producer.produce
        self._count += len(rows)
        for key, value in zip(rows.keys, rows.values, strict=True):
            try:
                produce(topic, value, key, number, report)
            except BufferError:
                self._when_free(topic, value, key, number, report)
        self._producer.poll(0)

    def send_record(self, topic: str, number: int, record: Record) -> None:
        """Send a record with headers."""
        key, value, headers = record
        self._count += 1
        self._producer.produce(topic, value, key, number, self._report(number), headers=headers)

    def delivered(self) -> DeliveredOffsets:
        """Wait for the delivery of all records, and return their offsets."""
        from confluent_kafka import KafkaError

        deadline = time.monotonic() + 2 * SECONDS
        while (there := sum(map(len, self._sent.values()))) + len(
            self._failures
        ) < self._count and time.monotonic() < deadline:
            self._producer.flush(0.05)
        if there < self._count:
            # Consequential errors may be reported before their cause.
            causes = [
                failure for failure in self._failures if not failure.name().startswith("_PURGE")
            ]
            reason = (causes or self._failures or [KafkaError(KafkaError._TIMED_OUT)])[0]  # noqa: SLF001 - the constant is public in practice
            raise DeliveryError(reason, self._count - there, self._count)
        return self._sent

    def _report(self, number: int) -> Any:
        """The delivery callback of a partition; reports come in the order of records."""
        put, failures = self._sent.setdefault(number, []).append, self._failures

        def report(failure: Any, message: Any) -> None:
            if failure is None:
                put(message.offset())
            else:
                failures.append(failure)

        return report

    def _when_free(self, *record: Any) -> None:
        """Send a record once the queue has room."""
        while True:
            self._producer.poll(0.05)
            try:
                self._producer.produce(*record)
            except BufferError:
                continue
            return


class StoreProducer:
    """A producer; one with a transactional id serves one user at a time."""

    def __init__(self, clients: Clients, transactional_id: str | None = None) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self._clients = clients
        self._id = transactional_id
        self._producer: Producer | None = None
        self._known: dict[str, int] = {}
        self.last = -1
        """The offset of the last cell record that it has committed."""

    @property
    def is_open(self) -> bool:
        return self._producer is not None

    def open(self) -> bool:
        """Connect if needed; returns whether it took the transactional id anew."""
        if self._producer is not None:
            return False
        producer = self._clients.producer(self._id)
        # Without a connection the first request waits for half a second.
        producer.list_topics(timeout=ANSWER_SECONDS)
        if self._id is not None:
            retried(lambda: producer.init_transactions(SECONDS))
        self._known = {}
        self._producer = producer
        return True

    def discard(self) -> None:
        self._producer = None

    @contextmanager
    def transaction(self) -> Iterator[Callable[[], None]]:
        """A transaction around the block; calling the yielded function aborts it.

        It is durable when the block ends, and visible a moment later.
        """
        producer = self._ready()
        producer.begin_transaction()
        wanted = True

        def undo() -> None:
            nonlocal wanted
            wanted = False

        try:
            yield undo
            if wanted:
                retried(lambda: producer.commit_transaction(SECONDS))
        except BaseException:
            # The error may affect the next transaction too.
            self._undo(producer)
            self.discard()
            raise
        if not wanted:
            self._undo(producer)

    def _undo(self, producer: Producer) -> None:
        from confluent_kafka import KafkaException

        try:
            producer.abort_transaction(SECONDS)
        except KafkaException:
            # The next holder of the id aborts it.
            self.discard()

    def delivery(self, topic: str, partitions: int) -> Delivery:
        """A delivery to a topic that has at least this number of partitions."""
        self._learn(topic, partitions)
        return Delivery(self._ready())

    def write_record(self, topic: str, record: Record, number: int = 0) -> int:
        """Append a record to a partition, and return its offset."""
        delivery = self.delivery(topic, number + 1)
        delivery.send_record(topic, number, record)
        return delivery.delivered()[number][0]

    def _ready(self) -> Producer:
        if self._producer is None:
            raise RuntimeError("open the producer before writing")
        return self._producer

    def _learn(self, topic: str, partitions: int) -> None:
        """Wait until this producer knows this number of partitions of a topic.

        Its metadata is cached for a while.
        """
        if self._known.get(topic, 0) >= partitions:
            return
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            self._known[topic] = len(
                self._ready().list_topics(topic, timeout=ANSWER_SECONDS).topics[topic].partitions
            )
            if self._known[topic] >= partitions or time.monotonic() > deadline:
                return
            time.sleep(20 * PAUSE)


class ProducerPool:
    """Producers by transactional id; evicts the least recently used ones."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._lock = threading.Lock()
        self._producers: OrderedDict[str, StoreProducer] = OrderedDict()

    @contextmanager
    def held(self, transactional_id: str) -> Iterator[StoreProducer]:
        with self._lock:
            producer = self._producers.setdefault(
                transactional_id, StoreProducer(self._clients, transactional_id)
            )
            self._producers.move_to_end(transactional_id)
            producer.users += 1
            idle = [name for name, one in self._producers.items() if not one.users]
            gone = [
                self._producers.pop(name)
                for name in idle[: max(0, len(self._producers) - MOST_PRODUCERS)]
            ]
        del gone
        try:
            with producer.lock:
                yield producer
        finally:
            with self._lock:
                producer.users -= 1

    def forget(self, beginning: str = "") -> None:
        """Evict the producers whose ids start with `beginning`."""
        with self._lock:
            gone = [
                self._producers.pop(name)
                for name in list(self._producers)
                if name.startswith(beginning)
            ]
        del gone
