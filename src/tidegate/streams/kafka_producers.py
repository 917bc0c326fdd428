"""The producers of a Kafka store: one for rows that stand for themselves, and one for each
transactional id, kept open while nobody takes it over.

Who changes cells holds the transactional id of their key. Taking an id undoes what its former
holder has begun and not committed, and that holder's next change fails: so what was read after
taking it stays true until the own commit, or the commit fails.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tidegate.streams.kafka_clients import ANSWER_SECONDS, PAUSE, SECONDS, Clients, retried
from tidegate.streams.store import Rows

if TYPE_CHECKING:
    from confluent_kafka import Producer

MOST_PENS = 32
OVERHEAD = 1024
"""More than what a record has beside its key and value."""
Record = tuple[bytes | None, bytes | None, list[tuple[str, str | bytes | None]]]
"""Key, value and headers."""
Sent = dict[int, list[int]]
"""The offsets of rows by partition, in the order of rows."""


class Undelivered(Exception):  # noqa: N818 - it never leaves the store
    """Some rows were not taken."""

    def __init__(self, reason: Any, count: int, total: int) -> None:
        super().__init__(reason)
        self.reason, self.count, self.total = reason, count, total


class Letters:
    """Records that were handed to a producer, and what the brokers have answered. Several threads
    may use one producer.
    """

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._count = 0
        self._sent: Sent = {}
        self._failures: list[Any] = []

    def send(self, topic: str, number: int, rows: Rows) -> None:
        """Hand rows over, which are at the end of a partition some time later."""
        report, produce = self._report(number), self._producer.produce
        self._count += len(rows)
        for key, value in zip(rows.keys, rows.values, strict=True):
            try:
                produce(topic, value, key, number, report)
            except BufferError:
                self._when_free(topic, value, key, number, report)
        self._producer.poll(0)

    def send_record(self, topic: str, number: int, record: Record) -> None:
        """Hand a record over that has headers."""
        key, value, headers = record
        self._count += 1
        self._producer.produce(topic, value, key, number, self._report(number), headers=headers)

    def delivered(self) -> Sent:
        """Wait until all of them are where they stay."""
        from confluent_kafka import KafkaError

        deadline = time.monotonic() + 2 * SECONDS
        while (there := sum(map(len, self._sent.values()))) + len(
            self._failures
        ) < self._count and time.monotonic() < deadline:
            self._producer.flush(0.05)
        if there < self._count:
            # What follows from a failure may be told before it.
            told = [
                failure for failure in self._failures if not failure.name().startswith("_PURGE")
            ]
            reason = (told or self._failures or [KafkaError(KafkaError._TIMED_OUT)])[0]  # noqa: SLF001 - its name
            raise Undelivered(reason, self._count - there, self._count)
        return self._sent

    def _report(self, number: int) -> Any:
        """What takes the answers for a partition, which come in the order of records."""
        put, failures = self._sent.setdefault(number, []).append, self._failures

        def report(failure: Any, message: Any) -> None:
            if failure is None:
                put(message.offset())
            else:
                failures.append(failure)

        return report

    def _when_free(self, *record: Any) -> None:
        """Send a record when there is room for it."""
        while True:
            self._producer.poll(0.05)
            try:
                self._producer.produce(*record)
            except BufferError:
                continue
            return


class Pen:
    """A producer, for one user at a time where it has a transactional id."""

    def __init__(self, clients: Clients, transactional_id: str | None = None) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self._clients = clients
        self._id = transactional_id
        self._producer: Producer | None = None
        self._known: dict[str, int] = {}
        self.last = -1
        """Where the last record stands that it has committed beside rows."""

    @property
    def is_open(self) -> bool:
        return self._producer is not None

    def open(self) -> bool:
        """Be ready to write; whether that took a new producer, which has its id from now on."""
        if self._producer is not None:
            return False
        producer = self._clients.producer(self._id)
        # Without a connection its first question waits for half a second.
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
        """All that is written inside, or nothing, where what this gives is called; it is sure when
        this ends, but is seen a moment later.
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
            # What failed may fail the next transaction too.
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
            # Who takes the id next undoes it before anything else.
            self.discard()

    def letters(self, topic: str, partitions: int) -> Letters:
        """What is sent to a topic that has so many partitions at least."""
        self._learn(topic, partitions)
        return Letters(self._ready())

    def write_record(self, topic: str, record: Record, number: int = 0) -> int:
        """Put a record at the end of a partition, and return its offset."""
        letters = self.letters(topic, number + 1)
        letters.send_record(topic, number, record)
        return letters.delivered()[number][0]

    def _ready(self) -> Producer:
        if self._producer is None:
            raise RuntimeError("a pen is opened before it writes")
        return self._producer

    def _learn(self, topic: str, partitions: int) -> None:
        """Wait until this producer knows so many partitions of a topic: it does not look again by
        itself for a while.
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


class Pens:
    """Pens by their transactional ids; those that were not used for long are let go."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._lock = threading.Lock()
        self._pens: OrderedDict[str, Pen] = OrderedDict()

    @contextmanager
    def held(self, transactional_id: str) -> Iterator[Pen]:
        with self._lock:
            pen = self._pens.setdefault(transactional_id, Pen(self._clients, transactional_id))
            self._pens.move_to_end(transactional_id)
            pen.users += 1
            idle = [name for name, one in self._pens.items() if not one.users]
            gone = [self._pens.pop(name) for name in idle[: max(0, len(self._pens) - MOST_PENS)]]
        del gone
        try:
            with pen.lock:
                yield pen
        finally:
            with self._lock:
                pen.users -= 1

    def forget(self, beginning: str = "") -> None:
        """Let go of the pens whose ids begin so."""
        with self._lock:
            gone = [self._pens.pop(name) for name in list(self._pens) if name.startswith(beginning)]
        del gone
