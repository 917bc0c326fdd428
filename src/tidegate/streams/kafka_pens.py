"""The producers of a Kafka store: one for rows that stand for themselves, and one for each transactional id, kept open while nobody takes it over.

Who changes cells holds the transactional id of their key. Taking an id undoes what its former holder has begun and not committed, and that
holder's next change fails: so what was read after taking it stays true until the own commit, or the commit fails.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import InputError
from tidegate.streams.kafka_clients import ANSWER_SECONDS, PAUSE, SECONDS, Clients, retried

if TYPE_CHECKING:
    from confluent_kafka import Producer

MOST_PENS = 32
PIECE = 4096
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


class Pen:
    """A producer, for one user at a time where it has a transactional id."""

    def __init__(self, clients: Clients, transactional_id: str | None = None) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self._clients = clients
        self._id = transactional_id
        self._producer: Producer | None = None
        self._known: dict[str, int] = {}

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
        """All that is written inside, or nothing, where what this gives is called; it is sure when this ends, but is seen a moment later."""
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

    def write(self, topic: str, parts: Mapping[int, pa.Table]) -> Sent:
        """Put rows at the ends of partitions, and wait until they are there."""
        producer = self._ready()
        sent: Sent = {number: [] for number in parts}
        failures: list[Any] = []
        for table in parts.values():
            self._check_sizes(table)
        self._learn(topic, max(parts, default=-1) + 1)
        total = sum(table.num_rows for table in parts.values())
        produce = producer.produce
        for number, table in parts.items():
            delivered = _delivered(sent[number], failures)
            # In pieces, so that the first are under way while others are still unpacked.
            for piece in table.to_batches(max_chunksize=PIECE):
                keys, values = piece.columns
                for key, value in zip(repeat(None) if keys.null_count == len(keys) else keys.to_pylist(), values.to_pylist(), strict=False):
                    try:
                        produce(topic, value, key, number, delivered)
                    except BufferError:
                        _when_free(producer, topic, value, key, number, delivered)
                producer.poll(0)
        self._await(total, sent, failures)
        return sent

    def write_records(self, topic: str, records: Sequence[Record], number: int = 0) -> list[int]:
        """Put records at the end of a partition, together, and return their offsets."""
        offsets: list[int] = []
        failures: list[Any] = []
        self._learn(topic, number + 1)
        delivered = _delivered(offsets, failures)
        for key, value, headers in records:
            self._ready().produce(topic, value, key, number, delivered, headers=headers)
        self._await(len(records), {number: offsets}, failures)
        return offsets

    def _ready(self) -> Producer:
        if self._producer is None:
            raise RuntimeError("a pen is opened before it writes")
        return self._producer

    def _check_sizes(self, rows: pa.Table) -> None:
        if rows.nbytes + OVERHEAD <= self._clients.largest:
            return
        size = sum(pc.max(pc.binary_length(column)).as_py() or 0 for column in rows.columns) + OVERHEAD
        if size > self._clients.largest:
            raise InputError(
                f"an event has at most {self._clients.largest - OVERHEAD} bytes with its key, got one of about {size - OVERHEAD}. Hint: raise "
                '`max.message.bytes` of the topic and give the store the option "message.max.bytes"'
            )

    def _learn(self, topic: str, partitions: int) -> None:
        """Wait until this producer knows so many partitions of a topic: it does not look again by itself for a while."""
        if self._known.get(topic, 0) >= partitions:
            return
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            self._known[topic] = len(self._ready().list_topics(topic, timeout=ANSWER_SECONDS).topics[topic].partitions)
            if self._known[topic] >= partitions or time.monotonic() > deadline:
                return
            time.sleep(20 * PAUSE)

    def _await(self, total: int, sent: Sent, failures: list[Any]) -> None:
        """Wait for the own rows; several threads may use one producer."""
        from confluent_kafka import KafkaError

        producer = self._ready()
        deadline = time.monotonic() + 2 * SECONDS
        while sum(map(len, sent.values())) + len(failures) < total:
            producer.flush(0.05)
            if time.monotonic() > deadline:
                break
        there = sum(map(len, sent.values()))
        if there < total:
            # What follows from a failure may be told before it.
            told = [failure for failure in failures if not failure.name().startswith("_PURGE")]
            raise Undelivered((told or failures or [KafkaError(KafkaError._TIMED_OUT)])[0], total - there, total)  # noqa: SLF001 - its name


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


def _delivered(offsets: list[int], failures: list[Any]) -> Any:
    put = offsets.append

    def report(failure: Any, message: Any) -> None:
        if failure is None:
            put(message.offset())
        else:
            failures.append(failure)

    return report


def _when_free(producer: Producer, *record: Any) -> None:
    """Send a record when there is room for it."""
    while True:
        producer.poll(0.05)
        try:
            producer.produce(*record)
        except BufferError:
            continue
        return
