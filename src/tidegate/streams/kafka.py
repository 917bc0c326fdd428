"""A store of streams in Kafka: a stream is a topic, a segment one of its partitions, an event a
record that any consumer can read.

The cells of a stream are in a topic beside it (`tidegate.streams.kafka_cells`). Changes are Kafka
transactions under the id of what they change (`tidegate.streams.kafka_producers`); they return when
readers see them, so that a reader who asks for the end of what is committed has seen all.

A sealed segment is an end marker in its partition. Rows may still come behind it, from writers who
do not know yet, but no reader goes there. Sealing is told among the cells before the marker is
written. So a writer who finds nothing told there after its rows have been delivered knows that they
stand before any marker; and otherwise it asks for the end, and knows which of its rows were not
taken.
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
from tidegate.streams import checks, kafka_cells, kafka_logs
from tidegate.streams.kafka_cells import SEALED, VERSION, Change, Follower, change_of
from tidegate.streams.kafka_clients import FENCED, PAUSE, SECONDS, UNSURE, Clients, Place
from tidegate.streams.kafka_logs import END_MARKER, Readers
from tidegate.streams.kafka_producers import OVERHEAD, Letters, Pen, Pens, Sent, Undelivered
from tidegate.streams.store import Appended, Block, Cell, Rows, Sending, Store, Swap

T = TypeVar("T")
CELLS = ".tidegate-cells"
"""What the topic of a stream's cells has at its end. The Kafka sink keeps its own in `.tidegate`.
"""
MOST_FOLLOWERS = 32
_PREFIX = re.compile(r"[A-Za-z0-9._-]{0,34}")


class KafkaStore(Store):
    """Streams in topics of Kafka whose names begin with `prefix`.

    `options` are settings of librdkafka, such as `security.protocol`; `transaction.timeout.ms` is
    how long a process that died in the middle of a change may keep others from reading what came
    after it.
    """

    def __init__(
        self, bootstrap_servers: str, *, prefix: str = "", options: Sequence[tuple[str, str]] = ()
    ) -> None:
        if _PREFIX.fullmatch(prefix) is None:
            raise SpecError(
                "the prefix of topics has at most 34 of the characters a-z, A-Z, 0-9, `.`, `_`,"
                f" `-`, got {prefix!r}"
            )
        self.servers, self.prefix = bootstrap_servers, prefix
        options = tuple(sorted((str(name), str(value)) for name, value in options))
        self.url = f"kafka://{bootstrap_servers}/{quote(prefix)}" + (
            f"?{urlencode(options)}" if options else ""
        )
        self._clients = Clients(bootstrap_servers, options)
        self.largest = self._clients.largest - OVERHEAD
        self._pens = Pens(self._clients)
        self._readers = Readers(self._clients)
        self._plain = Pen(self._clients)
        self._own = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._followers: dict[str, Follower] = {}
        self._partitions: dict[str, int] = {}

    def __repr__(self) -> str:
        # The address may hold a password.
        return f"{type(self).__name__}({self.servers!r}, prefix={self.prefix!r})"

    # Cells

    def cells(self, stream: str, prefix: str = "") -> dict[str, Cell]:
        start = checks.key_prefix(prefix)
        follower = self._follower(checks.owner_name(stream))
        return {} if follower is None else follower.found(start)

    def cell(self, stream: str, key: str) -> Cell | None:
        checks.cell_key(key)
        follower = self._follower(checks.owner_name(stream))
        return None if follower is None else follower.one(key)

    def swap(self, stream: str, swap: Swap) -> int:
        checks.swap(swap)
        checks.owner_name(stream)
        change = change_of(swap)
        follower = self._made_follower(stream)
        attempt = _Attempt(follower, change)

        def work(pen: Pen) -> int:
            if attempt.was_made():
                return attempt.version
            follower.check(change)
            with pen.transaction():
                place = attempt.write(pen)
            attempt.seen(self._clients.until_seen(place))
            return attempt.version

        return self._transacted(follower, swap.key, work, change)

    # Logs

    def streams(self) -> list[str]:
        topics = self._look()
        # "" has its cells in a topic whose name has no dot before it.
        names = [
            topic[len(self.prefix) : -len(CELLS)]
            for topic in topics
            if topic.startswith(self.prefix) and topic.endswith(CELLS)
        ]
        return sorted(
            name for name in names if name and (self.prefix + name in topics or self.cells(name))
        )

    def drop(self, stream: str) -> None:
        topic, beside = self._topic(checks.stream_name(stream)), self._cells_topic(stream)
        there = [one for one in (topic, beside) if one in self._look()]
        with self._clients.told(f"drop the stream `{stream}`"):
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
            f"the topics of stream `{stream}` are still there",
        )
        self._forget(stream)

    def open_segments(self, stream: str, names: list[str]) -> None:
        topic = self._topic(checks.stream_name(stream))
        there = self._look().get(topic, 0)
        if not checks.segment_names(names, [str(number) for number in range(there)]):
            return
        count = max(map(int, names)) + 1
        self._make(self._cells_topic(stream), 1, kafka_cells.CONFIG)
        if not there:
            self._make(topic, count, kafka_logs.CONFIG)
        self._grow(topic, count)

    def append(
        self,
        stream: str,
        rows: Mapping[str, Rows],
        *,
        swap: Swap | None = None,
        whole: bool = False,
    ) -> Appended:
        checks.stream_name(stream)
        if swap is None and not whole:
            sending = self.sending(stream)
            sending.add(rows)
            return sending.wait()
        made = None if swap is None or not callable(swap.document) else swap.document
        change = None
        if swap is not None:
            checks.swap(swap)
            change = change_of(swap if made is None else replace(swap, document={}))
        parts = self._parts(stream, rows)
        if swap is None and not parts:
            return Appended()
        follower = self._made_follower(stream)
        attempt = _Attempt(follower, change)
        topic = self._topic(stream)

        def work(pen: Pen) -> Appended:
            if attempt.was_made():
                return attempt.result
            if change is not None:
                follower.check(change)
            if refused := self._sealed(follower, parts):
                return Appended({}, refused)
            with pen.transaction() as undo:
                sent = self._sent_whole(pen, stream, parts)
                follower.read()
                if refused := self._sealed(follower, parts):
                    undo()
                    return Appended({}, refused)
                position = {str(number): offsets[-1] + 1 for number, offsets in sent.items()}
                if swap is not None and made is not None:
                    attempt.change = change_of(replace(swap, document=made(position)))
                attempt.result = Appended(position)
                places: dict[Place, int] = {
                    (topic, number): offsets[-1] for number, offsets in sent.items()
                }
                places |= attempt.write(pen)
            attempt.seen(self._clients.until_seen(places))
            return attempt.result

        return self._transacted(follower, self._own if swap is None else swap.key, work, change)

    def sending(self, stream: str) -> Sending:
        return _Sending(self, checks.stream_name(stream))

    def seal(self, stream: str, segment: str) -> int:
        place = self._place(checks.stream_name(stream), segment)
        follower = self._made_follower(stream)
        key = SEALED + segment

        def put(pen: Pen, end: int | None) -> dict[Place, int]:
            return _Attempt(follower, change_of(Swap(key, {"end": end}, 0))).write(pen)

        def work(pen: Pen) -> int:
            ends = follower.ends()
            if segment not in ends:
                with pen.transaction():
                    seen = put(pen, None)
                self._clients.until_seen(seen)
            elif (known := ends[segment]) is not None:
                return known
            with pen.transaction():
                end = pen.write_record(place[0], (None, None, END_MARKER), place[1])
                seen = {place: end, **put(pen, end)}
            self._clients.until_seen(seen)
            return end

        follower.read()
        known = follower.ends().get(segment)
        return self._transacted(follower, key, work, None) if known is None else known

    def read(
        self, stream: str, segment: str, offset: int, most: int, *, before: int | None = None
    ) -> Block:
        checks.reading(offset, most)
        place = self._place(checks.stream_name(stream), segment)
        first, end = self._clients.bounds([place])[place]
        if offset < first:
            raise kafka_logs.truncated(place, offset, first)
        if offset >= end or (before is not None and before < offset):
            return kafka_logs.empty(offset)
        return self._readers.read(place, offset, most, before, end)

    def bounds(self, stream: str) -> dict[str, tuple[int, int]]:
        topic = self._topic(checks.stream_name(stream))
        count = self._look().get(topic, 0)
        if not count and not self.cells(stream):
            raise self._unknown(stream)
        found = self._clients.bounds([(topic, number) for number in range(count)])
        follower = self._follower(stream)
        ends = {} if follower is None else follower.ends()
        return {
            str(number): (first, _least(last, ends.get(str(number))))
            for (_, number), (first, last) in found.items()
        }

    def truncate(self, stream: str, starts: Mapping[str, int]) -> None:
        from confluent_kafka import TopicPartition

        places = {name: self._place(checks.stream_name(stream), name) for name in starts}
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
        with self._clients.told(f"truncate the stream `{stream}`"):
            (
                self._settled(
                    self._clients.admin().delete_records(asked, operation_timeout=SECONDS)
                )
                if asked
                else None
            )

    def close(self) -> None:
        self._pens.forget()
        self._readers.forget()
        self._plain.discard()
        with self._lock:
            followers, self._followers = list(self._followers.values()), {}
        for follower in followers:
            follower.close()

    # Rows

    def _parts(self, stream: str, rows: Mapping[str, Rows]) -> dict[int, Rows]:
        """Rows by partition."""
        places = {name: self._place(stream, name)[1] for name in rows}
        return {places[name]: part for name, part in rows.items() if len(part)}

    def send(
        self, stream: str, rows: Mapping[str, Rows], letters: Letters | None
    ) -> Letters | None:
        """Hand rows over that are taken one by one; not for segments of which it is known that they
        are sealed.
        """
        known = (
            {}
            if (former := self._followers.get(self._cells_topic(stream))) is None
            else former.ends()
        )
        parts = {
            number: part
            for number, part in self._parts(stream, rows).items()
            if known.get(str(number)) is None
        }
        if not parts:
            return letters
        topic = self._topic(stream)
        with self._clients.told(f"take rows of stream `{stream}`"):
            if letters is None:
                pen = self._plain
                with pen.lock:
                    pen.open()
                    letters = pen.letters(topic, self._partitions[topic])
            for number, part in parts.items():
                letters.send(topic, number, part)
        return letters

    def sent(self, stream: str, rows: Mapping[str, Rows], letters: Letters | None) -> Appended:
        """Wait for rows that were sent; those behind the end of a segment are refused."""
        sent = {}
        if letters is not None:
            try:
                sent = letters.delivered()
            except Undelivered as error:
                if error.reason.fatal():
                    self._plain = Pen(self._clients)
                raise self._untaken(stream, error) from error
        follower = self._follower(stream)
        ends = {} if follower is None else follower.ends()
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

    def _sent_whole(self, pen: Pen, stream: str, parts: Mapping[int, Rows]) -> Sent:
        """Rows that were delivered inside a transaction."""
        from confluent_kafka import KafkaException

        letters = pen.letters(self._topic(stream), max(parts, default=-1) + 1)
        for number, part in parts.items():
            letters.send(self._topic(stream), number, part)
        try:
            return letters.delivered()
        except Undelivered as error:
            if error.reason.name() in FENCED:
                raise KafkaException(error.reason) from None
            raise self._untaken(stream, error) from error

    def _untaken(self, stream: str, error: Undelivered) -> TidegateError:
        return self._clients.failure(
            error.reason,
            f"take {error.count} of {error.total} rows for the topic `{self._topic(stream)}`",
            SinkError,
        )

    @staticmethod
    def _sealed(follower: Follower, parts: Mapping[int, Rows]) -> dict[str, int]:
        ends = follower.ends()
        return {str(number): len(rows) for number, rows in parts.items() if str(number) in ends}

    # Changes

    def _transacted(
        self, follower: Follower, key: str, work: Callable[[Pen], T], change: Change | None
    ) -> T:
        """What comes of work under the transactional id of a key, all cells read; from the begin
        again when another has taken the id.
        """
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + 2 * SECONDS
        # Of rows alone nobody could tell afterwards whether they were committed.
        passing = FENCED if key == self._own else FENCED | UNSURE
        name = f"tidegate.{follower.topic}.{key.partition('#')[0]}"
        with (
            self._pens.held(name) as pen,
            self._clients.told(f"change `{key}` in `{follower.topic}`"),
        ):
            if not pen.is_open:
                # Who is too late already need not disturb who holds it.
                follower.read()
                if change is not None:
                    follower.check(change)
            pause = PAUSE
            while True:
                try:
                    if pen.open():
                        # A new holder has to see what the former one committed last, which may
                        # stand behind the open transactions of others.
                        follower.read(committed=False)
                    elif not follower.suffices(pen.last, change):
                        follower.read()
                    # Who knows what it wrote last under an id, and still has the id, knows all
                    # cells of it. Who has lost it learns so by writing.
                    return work(pen)
                except (KafkaException, Undelivered) as error:
                    pen.discard()
                    reason = error.args[0]
                    if reason.name() not in passing or time.monotonic() > deadline:
                        raise (
                            error if isinstance(error, KafkaException) else KafkaException(reason)
                        ) from error
                    time.sleep(pause * random.random())  # noqa: S311 - so that two do not meet again
                    pause = min(2 * pause, 0.5)

    # Topics

    def _topic(self, stream: str) -> str:
        if stream.endswith(CELLS.lstrip(".")):
            raise SpecError(
                f"the names of streams do not end in `{CELLS.lstrip('.')}`, which is the name of"
                f" topics beside them, got `{stream}`"
            )
        return self.prefix + stream

    def _cells_topic(self, stream: str) -> str:
        return self._topic(stream) + (CELLS if stream else CELLS.lstrip("."))

    def _look(self) -> dict[str, int]:
        """All topics with their partitions, as they are now."""
        found = self._clients.partitions()
        with self._lock:
            self._partitions = found
        return found

    def _place(self, stream: str, segment: str) -> Place:
        """Where a segment is."""
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

    def _follower(self, stream: str) -> Follower | None:
        """The cells of a stream, read to their end; None where it has never had one."""
        topic = self._cells_topic(stream)
        if topic not in self._partitions and topic not in self._look():
            return None
        follower = self._kept(topic)
        try:
            follower.read()
        except StateError:
            if topic in self._look():
                raise
            # Somebody else has dropped the stream.
            self._forget(stream)
            return None
        return follower

    def _made_follower(self, stream: str) -> Follower:
        """The cells of a stream, whose topic is made where there is none."""
        topic = self._cells_topic(stream)
        if topic not in self._partitions:
            self._make(topic, 1, kafka_cells.CONFIG)
        return self._kept(topic)

    def _kept(self, topic: str) -> Follower:
        """The follower of a topic; those that were not used for long are let go."""
        with self._lock:
            follower = self._followers.pop(topic, None) or Follower(self._clients, topic)
            self._followers[topic] = follower
            gone = [self._followers.pop(name) for name in list(self._followers)[:-MOST_FOLLOWERS]]
        for one in gone:
            one.close()
        return follower

    def _make(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        from confluent_kafka.cimpl import NewTopic

        if topic not in self._look():
            with self._clients.told(f"make the topic `{topic}`"):
                new = NewTopic(topic, partitions, config=dict(config))
                self._settled(
                    self._clients.admin().create_topics([new], operation_timeout=SECONDS),
                    "TOPIC_ALREADY_EXISTS",
                )
        self._until(
            lambda: self._look().get(topic, 0) > 0,
            f"the topic `{topic}` was made, and is not there",
        )

    def _grow(self, topic: str, partitions: int) -> None:
        from confluent_kafka.cimpl import NewPartitions

        if self._look().get(topic, 0) < partitions:
            with self._clients.told(f"make the topic `{topic}` larger"):
                # Another may have been faster, and made as many or more.
                answers = self._clients.admin().create_partitions(
                    [NewPartitions(topic, partitions)], operation_timeout=SECONDS
                )
                self._settled(answers, "INVALID_PARTITIONS")
        self._until(
            lambda: self._look().get(topic, 0) >= partitions,
            f"the topic `{topic}` was made larger, and is not",
        )

    def _forget(self, stream: str) -> None:
        topic, beside = self._topic(stream), self._cells_topic(stream)
        self._readers.forget(topic)
        self._pens.forget(f"tidegate.{beside}.")
        # It counts what it has sent to each partition, and these are gone.
        self._plain = Pen(self._clients)
        with self._lock:
            follower = self._followers.pop(beside, None)
        if follower is not None:
            follower.close()

    @staticmethod
    def _until(true: Callable[[], bool], otherwise: str) -> None:
        """Brokers know what they have done a moment later."""
        deadline = time.monotonic() + SECONDS
        while not true():
            if time.monotonic() > deadline:
                raise StateError(
                    f"{otherwise} after {SECONDS:.0f} seconds. Hint: look at the brokers"
                )
            time.sleep(10 * PAUSE)

    @staticmethod
    def _settled(answers: Mapping[Any, Any], *fine: str) -> None:
        """Wait for what was asked of the brokers."""
        from confluent_kafka import KafkaException

        for answer in answers.values():
            try:
                answer.result(2 * SECONDS)
            except KafkaException as error:
                if error.args[0].name() not in fine:
                    raise


class _Sending(Sending):
    """Rows that the producer has already, and hands on while others are still written."""

    def __init__(self, store: KafkaStore, stream: str) -> None:
        super().__init__(store, stream)
        self._kafka = store
        self._letters: Letters | None = None

    def add(self, rows: Mapping[str, Rows]) -> None:
        super().add(rows)
        self._letters = self._kafka.send(self.stream, rows, self._letters)

    def wait(self) -> Appended:
        return self._kafka.sent(self.stream, self.rows, self._letters)


class _Attempt:
    """A change of a cell on its way. Where it is not known whether a commit was the last that its
    producer did, the cells tell.
    """

    def __init__(self, follower: Follower, change: Change | None) -> None:
        self.change = change
        self.version = 0
        self.result = Appended()
        self._follower = follower
        self._offset = -1

    def was_made(self) -> bool:
        return (
            self.version > 0
            and self.change is not None
            and self._follower.has(self.change, self.version)
        )

    def write(self, pen: Pen) -> dict[Place, int]:
        """Put the record into the open transaction, and return where it stands."""
        if self.change is None:
            return {}
        self.version = self._follower.next_version()
        key, _, data = self.change
        topic = self._follower.topic
        self._offset = pen.last = pen.write_record(
            topic, (key.encode(), data, [(VERSION, str(self.version).encode())])
        )
        return {(topic, 0): self._offset}

    def seen(self, ends: Mapping[Place, int]) -> None:
        """Readers see it now, up to these ends."""
        if self.change is not None:
            self._follower.made(
                self.change, self.version, self._offset, ends[self._follower.topic, 0]
            )


def _least(end: int, sealed: int | None) -> int:
    return end if sealed is None else min(end, sealed)
