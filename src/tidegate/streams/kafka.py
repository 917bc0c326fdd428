"""A store of streams in Kafka: streams are topics, segments partitions, and events records.

Any Kafka consumer can read the events. The cells of a stream are in a topic beside it
(`tidegate.streams.kafka_cells`). Changes are Kafka transactions whose transactional id is derived
from what they change (`tidegate.streams.kafka_producers`). They return when they are visible, so
that a reader that fetches the committed end sees all of them.

An end marker in its partition seals a segment. Writers with an old view may still append rows after
it, but no reader reads them. The seal is recorded among the cells before the marker is written. So
if a writer finds no seal after its rows were delivered, they precede any marker; otherwise it looks
up the end, and knows which of its rows were refused.
"""

from __future__ import annotations

import random
import re
import threading
import time
import uuid
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from tidegate.errors import InputError, SinkError, SpecError, StateError, TidegateError
from tidegate.streams import kafka_cells, kafka_logs, validation
from tidegate.streams.kafka_cells import SEALED, VERSION, CellTable, Change, change_of
from tidegate.streams.kafka_clients import FENCED, PAUSE, SECONDS, UNSURE, Clients, Place
from tidegate.streams.kafka_logs import END_MARKER, ConsumerPool
from tidegate.streams.kafka_producers import (
    OVERHEAD,
    DeliveredOffsets,
    Delivery,
    DeliveryError,
    ProducerPool,
    StoreProducer,
)
from tidegate.streams.store import Appended, Block, Cell, EventBatch, PendingAppend, Store, Swap

T = TypeVar("T")
CELLS = ".tidegate-cells"
"""Suffix of the topic with the cells of a stream. The Kafka sink uses `.tidegate`."""
MOST_TABLES = 32
_PREFIX = re.compile(r"[A-Za-z0-9._-]{0,34}")


class KafkaStore(Store):
    """Streams in Kafka topics whose names start with `prefix`.

    `options` are settings of librdkafka, such as `security.protocol`. `transaction.timeout.ms`
    limits how long a process that crashed within a change can block readers.
    """

    def __init__(
        self, bootstrap_servers: str, *, prefix: str = "", options: Sequence[tuple[str, str]] = ()
    ) -> None:
        if _PREFIX.fullmatch(prefix) is None:
            raise SpecError(
                "the prefix of topics has at most 34 characters of a-z, A-Z, 0-9, `.`, `_`, `-`,"
                f" got {prefix!r}"
            )
        self.servers, self.prefix = bootstrap_servers, prefix
        options = tuple(sorted((str(name), str(value)) for name, value in options))
        self.url = f"kafka://{bootstrap_servers}/{quote(prefix)}" + (
            f"?{urlencode(options)}" if options else ""
        )
        self._clients = Clients(bootstrap_servers, options)
        self.largest = self._clients.largest - OVERHEAD
        self._producers = ProducerPool(self._clients)
        self._consumers = ConsumerPool(self._clients)
        self._plain_producer = StoreProducer(self._clients)
        self._own = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._tables: dict[str, CellTable] = {}
        self._partitions: dict[str, int] = {}

    def __repr__(self) -> str:
        # The address may contain a password.
        return f"{type(self).__name__}({self.servers!r}, prefix={self.prefix!r})"

    # Cells

    def cells(self, stream: str, prefix: str = "") -> dict[str, Cell]:
        start = validation.key_prefix(prefix)
        table = self._table(validation.owner_name(stream))
        return {} if table is None else table.found(start)

    def cell(self, stream: str, key: str) -> Cell | None:
        validation.cell_key(key)
        table = self._table(validation.owner_name(stream))
        return None if table is None else table.one(key)

    def swap(self, stream: str, swap: Swap) -> int:
        validation.check_swap(swap)
        validation.owner_name(stream)
        change = change_of(swap)
        table = self._ensured_table(stream)
        attempt = _Attempt(table, change)

        def work(producer: StoreProducer) -> int:
            if attempt.was_made():
                return attempt.version
            table.check(change)
            with producer.transaction():
                place = attempt.write(producer)
            attempt.seen(self._clients.until_seen(place))
            return attempt.version

        return self._transacted(table, swap.key, work, change)

    # Logs

    def streams(self) -> list[str]:
        topics = self._look()
        # The cells of "" are in a topic whose name has no dot before the suffix.
        names = [
            topic[len(self.prefix) : -len(CELLS)]
            for topic in topics
            if topic.startswith(self.prefix) and topic.endswith(CELLS)
        ]
        return sorted(
            name for name in names if name and (self.prefix + name in topics or self.cells(name))
        )

    def drop(self, stream: str) -> None:
        topic, beside = self._topic(validation.stream_name(stream)), self._cells_topic(stream)
        there = [one for one in (topic, beside) if one in self._look()]
        with self._clients.translated_errors(f"drop the stream `{stream}`"):
            (
                self._settled(
                    self._clients.admin().delete_topics(there, operation_timeout=SECONDS),
                    "UNKNOWN_TOPIC_OR_PART",
                )
                if there
                else None
            )
        self._until(
            lambda: not {topic, beside} & set(self._look()),
            f"the topics of stream `{stream}` still exist",
        )
        self._forget(stream)

    def open_segments(self, stream: str, names: list[str]) -> None:
        topic = self._topic(validation.stream_name(stream))
        there = self._look().get(topic, 0)
        if not validation.new_segments(names, [str(number) for number in range(there)]):
            return
        count = max(map(int, names)) + 1
        self._make(self._cells_topic(stream), 1, kafka_cells.CONFIG)
        if not there:
            self._make(topic, count, kafka_logs.CONFIG)
        self._grow(topic, count)

    def append(
        self,
        stream: str,
        rows: Mapping[str, EventBatch],
        *,
        swap: Swap | None = None,
        whole: bool = False,
    ) -> Appended:
        validation.stream_name(stream)
        if swap is None and not whole:
            pending = self.begin_append(stream)
            pending.add(rows)
            return pending.wait()
        made = None if swap is None or not callable(swap.document) else swap.document
        change = None
        if swap is not None:
            validation.check_swap(swap)
            change = change_of(swap if made is None else replace(swap, document={}))
        parts = self._parts(stream, rows)
        if swap is None and not parts:
            return Appended()
        table = self._ensured_table(stream)
        attempt = _Attempt(table, change)
        topic = self._topic(stream)

        def work(producer: StoreProducer) -> Appended:
            if attempt.was_made():
                return attempt.result
            if change is not None:
                table.check(change)
            if refused := self._sealed(table, parts):
                return Appended({}, refused)
            with producer.transaction() as undo:
                sent = self._sent_whole(producer, stream, parts)
                table.read()
                if refused := self._sealed(table, parts):
                    undo()
                    return Appended({}, refused)
                position = {str(number): offsets[-1] + 1 for number, offsets in sent.items()}
                if swap is not None and made is not None:
                    attempt.change = change_of(replace(swap, document=made(position)))
                attempt.result = Appended(position)
                places: dict[Place, int] = {
                    (topic, number): offsets[-1] for number, offsets in sent.items()
                }
                places |= attempt.write(producer)
            attempt.seen(self._clients.until_seen(places))
            return attempt.result

        return self._transacted(table, self._own if swap is None else swap.key, work, change)

    def begin_append(self, stream: str) -> PendingAppend:
        return _PendingAppend(self, validation.stream_name(stream))

    def seal(self, stream: str, segment: str) -> int:
        place = self._place(validation.stream_name(stream), segment)
        table = self._ensured_table(stream)
        key = SEALED + segment

        def put(producer: StoreProducer, end: int | None) -> dict[Place, int]:
            return _Attempt(table, change_of(Swap(key, {"end": end}, 0))).write(producer)

        def work(producer: StoreProducer) -> int:
            ends = table.ends()
            if segment not in ends:
                with producer.transaction():
                    seen = put(producer, None)
                self._clients.until_seen(seen)
            elif (known := ends[segment]) is not None:
                return known
            with producer.transaction():
                end = producer.write_record(place[0], (None, None, END_MARKER), place[1])
                seen = {place: end, **put(producer, end)}
            self._clients.until_seen(seen)
            return end

        table.read()
        known = table.ends().get(segment)
        return self._transacted(table, key, work, None) if known is None else known

    def read(
        self, stream: str, segment: str, offset: int, most: int, *, before: int | None = None
    ) -> Block:
        validation.check_read(offset, most)
        place = self._place(validation.stream_name(stream), segment)
        first, end = self._clients.bounds([place])[place]
        if offset < first:
            raise kafka_logs.truncated(place, offset, first)
        if offset >= end or (before is not None and before < offset):
            return kafka_logs.empty(offset)
        return self._consumers.read(place, offset, most, before, end)

    def bounds(self, stream: str) -> dict[str, tuple[int, int]]:
        topic = self._topic(validation.stream_name(stream))
        count = self._look().get(topic, 0)
        if not count and not self.cells(stream):
            raise self._unknown(stream)
        found = self._clients.bounds([(topic, number) for number in range(count)])
        table = self._table(stream)
        ends = {} if table is None else table.ends()
        return {
            str(number): (first, _least(last, ends.get(str(number))))
            for (_, number), (first, last) in found.items()
        }

    def truncate(self, stream: str, starts: Mapping[str, int]) -> None:
        from confluent_kafka import TopicPartition

        places = {name: self._place(validation.stream_name(stream), name) for name in starts}
        bounds = self.bounds(stream)
        for name, start in starts.items():
            if start > bounds[name][1]:
                raise InputError(
                    f"segment {name} of stream `{stream}` ends at {bounds[name][1]}, so it cannot"
                    f" be truncated at {start}"
                )
        asked = [
            TopicPartition(*places[name], start)
            for name, start in starts.items()
            if start > bounds[name][0]
        ]
        with self._clients.translated_errors(f"truncate the stream `{stream}`"):
            (
                self._settled(
                    self._clients.admin().delete_records(asked, operation_timeout=SECONDS)
                )
                if asked
                else None
            )

    def close(self) -> None:
        self._producers.forget()
        self._consumers.forget()
        self._plain_producer.discard()
        with self._lock:
            tables, self._tables = list(self._tables.values()), {}
        for table in tables:
            table.close()

    # Sending rows

    def _parts(self, stream: str, rows: Mapping[str, EventBatch]) -> dict[int, EventBatch]:
        """The non-empty batches by partition."""
        places = {name: self._place(stream, name)[1] for name in rows}
        return {places[name]: part for name, part in rows.items() if len(part)}

    def send(
        self, stream: str, rows: Mapping[str, EventBatch], delivery: Delivery | None
    ) -> Delivery | None:
        """Send rows that need no transaction; skips segments known to be sealed."""
        known = (
            {} if (former := self._tables.get(self._cells_topic(stream))) is None else former.ends()
        )
        parts = {
            number: part
            for number, part in self._parts(stream, rows).items()
            if known.get(str(number)) is None
        }
        if not parts:
            return delivery
        topic = self._topic(stream)
        with self._clients.translated_errors(f"accept rows of stream `{stream}`"):
            if delivery is None:
                producer = self._plain_producer
                with producer.lock:
                    producer.open()
                    delivery = producer.delivery(topic, self._partitions[topic])
            for number, part in parts.items():
                delivery.send(topic, number, part)
        return delivery

    def sent(
        self, stream: str, rows: Mapping[str, EventBatch], delivery: Delivery | None
    ) -> Appended:
        """Wait for the delivery of rows; those after the end of a sealed segment are refused."""
        sent = {}
        if delivery is not None:
            try:
                sent = delivery.delivered()
            except DeliveryError as error:
                if error.reason.fatal():
                    self._plain_producer = StoreProducer(self._clients)
                raise self._untaken(stream, error) from error
        table = self._table(stream)
        ends = {} if table is None else table.ends()
        position, refused = {}, {}
        for name, part in rows.items():
            offsets = sent.get(int(name), [])
            count = len(offsets)
            if name in ends:
                end = ends[name]
                count = bisect_left(offsets, self.seal(stream, name) if end is None else end)
                refused[name] = len(part) - count
            if count:
                position[name] = offsets[count - 1] + 1
        return Appended(position, {name: count for name, count in refused.items() if count})

    def _sent_whole(
        self, producer: StoreProducer, stream: str, parts: Mapping[int, EventBatch]
    ) -> DeliveredOffsets:
        """The offsets of rows delivered within the open transaction."""
        from confluent_kafka import KafkaException

        delivery = producer.delivery(self._topic(stream), max(parts, default=-1) + 1)
        for number, part in parts.items():
            delivery.send(self._topic(stream), number, part)
        try:
            return delivery.delivered()
        except DeliveryError as error:
            if error.reason.name() in FENCED:
                raise KafkaException(error.reason) from None
            raise self._untaken(stream, error) from error

    def _untaken(self, stream: str, error: DeliveryError) -> TidegateError:
        return self._clients.failure(
            error.reason,
            f"accept {error.count} of {error.total} rows for the topic `{self._topic(stream)}`",
            SinkError,
        )

    @staticmethod
    def _sealed(table: CellTable, parts: Mapping[int, EventBatch]) -> dict[str, int]:
        ends = table.ends()
        return {str(number): len(rows) for number, rows in parts.items() if str(number) in ends}

    # Transactions

    def _transacted(
        self, table: CellTable, key: str, work: Callable[[StoreProducer], T], change: Change | None
    ) -> T:
        """Run `work` under the transactional id of a key, with current cells.

        Starts over if another process takes the id.
        """
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + 2 * SECONDS
        # For rows without a cell, an unsure commit cannot be verified afterwards.
        passing = FENCED if key == self._own else FENCED | UNSURE
        name = f"tidegate.{table.topic}.{key.partition('#')[0]}"
        with (
            self._producers.held(name) as producer,
            self._clients.translated_errors(f"change `{key}` in `{table.topic}`"),
        ):
            if not producer.is_open:
                # A change that is already outdated must not fence the holder of the id.
                table.read()
                if change is not None:
                    table.check(change)
            pause = PAUSE
            while True:
                try:
                    if producer.open():
                        # A new holder must see the last commit of the former one, which may be
                        # after open transactions of others.
                        table.read(committed=False)
                    elif not table.suffices(producer.last, change):
                        table.read()
                    # The holder of an id that knows its own last record knows all cells of the id.
                    # A former holder learns by writing that it lost the id.
                    return work(producer)
                except (KafkaException, DeliveryError) as error:
                    producer.discard()
                    reason = error.args[0]
                    if reason.name() not in passing or time.monotonic() > deadline:
                        raise (
                            error if isinstance(error, KafkaException) else KafkaException(reason)
                        ) from error
                    time.sleep(pause * random.random())  # noqa: S311 - jitter
                    pause = min(2 * pause, 0.5)

    # Topics

    def _topic(self, stream: str) -> str:
        if stream.endswith(CELLS.lstrip(".")):
            raise SpecError(
                f"a stream name must not end in `{CELLS.lstrip('.')}`, the suffix of cell topics,"
                f" got `{stream}`"
            )
        return self.prefix + stream

    def _cells_topic(self, stream: str) -> str:
        return self._topic(stream) + (CELLS if stream else CELLS.lstrip("."))

    def _look(self) -> dict[str, int]:
        """All topics with their numbers of partitions, as of now."""
        found = self._clients.partitions()
        with self._lock:
            self._partitions = found
        return found

    def _place(self, stream: str, segment: str) -> Place:
        """The partition of a segment."""
        topic = self._topic(stream)
        number = (
            int(segment)
            if segment.isascii() and segment.isdecimal() and str(int(segment)) == segment
            else None
        )
        if number is None or number >= self._partitions.get(topic, 0):
            count = self._look().get(topic, 0)
            if not count:
                raise self._unknown(stream)
            if number is None or number >= count:
                raise InputError(
                    f"stream `{stream}` has no segment `{segment}`, it has"
                    f" {', '.join(map(str, range(count)))}"
                )
        return topic, number

    def _unknown(self, stream: str) -> InputError:
        known = ", ".join(self.streams())
        there = f"are {known}" if known else "is none"
        return InputError(
            f"there is no stream `{stream}` with segments; there {there}. Hint: open its segments"
            " first"
        )

    def _table(self, stream: str) -> CellTable | None:
        """The cells of a stream, read to their end; None if it has no topic for them."""
        topic = self._cells_topic(stream)
        if topic not in self._partitions and topic not in self._look():
            return None
        table = self._cached_table(topic)
        try:
            table.read()
        except StateError:
            if topic in self._look():
                raise
            # Another process has dropped the stream.
            self._forget(stream)
            return None
        return table

    def _ensured_table(self, stream: str) -> CellTable:
        """The cells of a stream; creates their topic if needed."""
        topic = self._cells_topic(stream)
        if topic not in self._partitions:
            self._make(topic, 1, kafka_cells.CONFIG)
        return self._cached_table(topic)

    def _cached_table(self, topic: str) -> CellTable:
        """The cached table of a topic; evicts the least recently used ones."""
        with self._lock:
            table = self._tables.pop(topic, None) or CellTable(self._clients, topic)
            self._tables[topic] = table
            gone = [self._tables.pop(name) for name in list(self._tables)[:-MOST_TABLES]]
        for one in gone:
            one.close()
        return table

    def _make(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        from confluent_kafka.cimpl import NewTopic

        if topic not in self._look():
            with self._clients.translated_errors(f"create the topic `{topic}`"):
                new = NewTopic(topic, partitions, config=dict(config))
                self._settled(
                    self._clients.admin().create_topics([new], operation_timeout=SECONDS),
                    "TOPIC_ALREADY_EXISTS",
                )
        self._until(
            lambda: self._look().get(topic, 0) > 0,
            f"the topic `{topic}` was created, but is not visible",
        )

    def _grow(self, topic: str, partitions: int) -> None:
        from confluent_kafka.cimpl import NewPartitions

        if self._look().get(topic, 0) < partitions:
            with self._clients.translated_errors(f"add partitions to the topic `{topic}`"):
                # Another process may have added as many or more.
                answers = self._clients.admin().create_partitions(
                    [NewPartitions(topic, partitions)], operation_timeout=SECONDS
                )
                self._settled(answers, "INVALID_PARTITIONS")
        self._until(
            lambda: self._look().get(topic, 0) >= partitions,
            f"partitions were added to the topic `{topic}`, but are not visible",
        )

    def _forget(self, stream: str) -> None:
        topic, beside = self._topic(stream), self._cells_topic(stream)
        self._consumers.forget(topic)
        self._producers.forget(f"tidegate.{beside}.")
        # The producer tracks sequence numbers of partitions that no longer exist.
        self._plain_producer = StoreProducer(self._clients)
        with self._lock:
            table = self._tables.pop(beside, None)
        if table is not None:
            table.close()

    @staticmethod
    def _until(true: Callable[[], bool], otherwise: str) -> None:
        """Poll until a change is visible in the metadata of the brokers."""
        deadline = time.monotonic() + SECONDS
        while not true():
            if time.monotonic() > deadline:
                raise StateError(
                    f"{otherwise} after {SECONDS:.0f} seconds. Hint: check the brokers"
                )
            time.sleep(10 * PAUSE)

    @staticmethod
    def _settled(answers: Mapping[Any, Any], *fine: str) -> None:
        """Wait for admin operations; errors named in `fine` are ignored."""
        from confluent_kafka import KafkaException

        for answer in answers.values():
            try:
                answer.result(2 * SECONDS)
            except KafkaException as error:
                if error.args[0].name() not in fine:
                    raise


class _PendingAppend(PendingAppend):
    """An append whose rows are already with the producer, which sends them in the background."""

    def __init__(self, store: KafkaStore, stream: str) -> None:
        super().__init__(store, stream)
        self._kafka = store
        self._delivery: Delivery | None = None

    def add(self, rows: Mapping[str, EventBatch]) -> None:
        super().add(rows)
        self._delivery = self._kafka.send(self.stream, rows, self._delivery)

    def wait(self) -> Appended:
        return self._kafka.sent(self.stream, self.rows, self._delivery)


class _Attempt:
    """One change of a cell, across retries.

    After an unsure commit the cells show whether it was made.
    """

    def __init__(self, table: CellTable, change: Change | None) -> None:
        self.change = change
        self.version = 0
        self.result = Appended()
        self._table = table
        self._offset = -1

    def was_made(self) -> bool:
        return (
            self.version > 0
            and self.change is not None
            and self._table.has(self.change, self.version)
        )

    def write(self, producer: StoreProducer) -> dict[Place, int]:
        """Write the record within the open transaction, and return its place."""
        if self.change is None:
            return {}
        self.version = self._table.next_version()
        key, _, data = self.change
        topic = self._table.topic
        self._offset = producer.last = producer.write_record(
            topic, (key.encode(), data, [(VERSION, str(self.version).encode())])
        )
        return {(topic, 0): self._offset}

    def seen(self, ends: Mapping[Place, int]) -> None:
        """Apply the change to the table, now that it is visible up to these ends."""
        if self.change is not None:
            self._table.made(self.change, self.version, self._offset, ends[self._table.topic, 0])


def _least(end: int, sealed: int | None) -> int:
    return end if sealed is None else min(end, sealed)
