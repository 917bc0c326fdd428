"""Kafka clients of a direct source: the ends of partitions, and messages of offset ranges."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tidegate.errors import InputError, SpecError, TidegateError
from tidegate.spark.sources.topics.offsets import OffsetRange, Place, partition_name
from tidegate.streams.kafka_clients import ANSWER_SECONDS, NOT_YET, Clients, retried

if TYPE_CHECKING:
    from confluent_kafka import Consumer

CHUNK_MESSAGES = 1 << 13
"""The maximum number of messages that are decoded at once.

They are objects, which decoding reads while they are in the cache of the processor.
"""
CHUNK_BYTES = 4 << 20
"""The size of messages that are decoded at once, unless a single one is larger."""
WAVE_MESSAGES = 1 << 14
"""Short ranges of several partitions are requested together, up to as many messages."""
READ_SECONDS = 60.0
"""Timeout of reading without any message."""
_POLL_SECONDS = 0.05
_LOST = {"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"}
_TRANSIENT = NOT_YET | {"_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE"}
_READING = {
    "group.id": "tidegate",
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "auto.offset.reset": "error",
    "enable.partition.eof": "true",
    "allow.auto.create.topics": "false",
}


class TopicClients(Clients):
    """The clients of a direct source."""

    purpose = "a direct Kafka source"
    reserved = ("bootstrap.servers", "logger", "log_level", *_READING)

    @property
    def is_committed(self) -> bool:
        """Whether only committed messages are read, which is the default."""
        return self._options.get("isolation.level", "read_committed") == "read_committed"

    def failure(
        self, reason: Any, what: str, kind: type[TidegateError] = InputError
    ) -> TidegateError:
        hint = "the query continues from its checkpoint when the brokers are reachable"
        if "AUTHORIZATION" in reason.name() or "AUTHENTICATION" in reason.name():
            hint = "the user needs read access to the topics; pass its settings as `options`"
        elif reason.name().removeprefix("_") in {"UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC"}:
            hint = "create the topic first, or check its name"
        return kind(f"the brokers {self.servers} could not {what} ({reason.str()}). Hint: {hint}")

    def consumer(self) -> Consumer:
        """A consumer to be assigned to ranges."""
        from confluent_kafka import Consumer, KafkaException

        usual = {
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": "10",
            "fetch.queue.backoff.ms": "1",
            # Of a partition with a backlog, far more would be fetched than a small batch reads.
            "queued.min.messages": "10000",
        }
        try:
            return Consumer(self.settings({**usual, **self._options, **_READING}))
        except KafkaException as error:
            raise SpecError(
                f"`options` of a Kafka source are settings of librdkafka: {error.args[0].str()}."
                " Hint: security.protocol, sasl.mechanism, ssl.ca.location"
            ) from error

    def describe(self, topics: Sequence[str]) -> TopicsFound:
        """The partitions of topics, and the ids that brokers gave the topics."""
        from confluent_kafka import TopicCollection

        # Unlike a request for the metadata of a topic, this one never creates it.
        def described() -> dict[str, Any]:
            asked = self.admin().describe_topics(
                TopicCollection([*topics]), request_timeout=ANSWER_SECONDS
            )
            return {topic: answer.result(ANSWER_SECONDS + 1) for topic, answer in asked.items()}

        with self.translated_errors(f"list the partitions of {', '.join(topics)}"):
            found = described()
        ids = {topic: str(found[topic].topic_id) for topic in topics}
        return TopicsFound(
            [
                (topic, number)
                for topic in topics
                for number in sorted(one.id for one in found[topic].partitions)
            ],
            {topic: one for topic, one in ids.items() if one.strip("A")},
        )

    def read_ends(self, places: Sequence[Place]) -> dict[Place, int]:
        """The ends of partitions as far as this source reads them."""
        return self.ends(places, committed=self.is_committed)

    def first_offsets(self, places: Sequence[Place]) -> dict[Place, int]:
        """The first offsets of partitions."""
        return self._offsets(places, ["earliest"], committed=True)[0]

    def offsets_at(self, places: Sequence[Place], time_us: int) -> dict[Place, int]:
        """The offsets of the first messages at or after a time; the end if there is none."""
        from confluent_kafka import TopicPartition

        consumer = self.consumer()
        try:
            wanted = [TopicPartition(*place, time_us // 1000) for place in places]
            with self.translated_errors("look up offsets by time"):
                found = retried(lambda: consumer.offsets_for_times(wanted, timeout=ANSWER_SECONDS))
        finally:
            consumer.close()
        ends = self.read_ends(places)
        at = {(one.topic, one.partition): one.offset for one in found}
        return {place: at[place] if at[place] >= 0 else ends[place] for place in places}


@dataclass(frozen=True)
class TopicsFound:
    """What exists of the topics of a source."""

    places: list[Place]
    ids: dict[str, str]
    """The id of each topic, which a topic of the same name does not share; none of old brokers."""


@dataclass(frozen=True)
class Lost:
    """Messages that the brokers deleted before they were read."""

    place: Place
    low: int
    high: int


@dataclass
class _Arrived:
    """Messages of a range that were received and not yet returned."""

    range: OffsetRange
    messages: list[Any] = field(default_factory=list)
    nbytes: int = 0
    next: int = 0
    """The offset of the next message to receive."""
    is_complete: bool = False

    def add(self, messages: list[Any]) -> int:
        """Add messages, and return their size; those after the end of the range are dropped."""
        high = self.range.high
        if not messages or self.is_complete:
            return 0
        self.next = messages[-1].offset() + 1
        if self.next >= high:
            self.is_complete = True
            messages = [one for one in messages if one.offset() < high]
        self.messages += messages
        added = sum(map(len, messages))
        self.nbytes += added
        return added

    def chunks(self) -> Iterator[list[Any]]:
        """The messages in chunks whose bounds do not depend on how they arrived."""
        while self.nbytes >= CHUNK_BYTES or len(self.messages) >= CHUNK_MESSAGES:
            sizes = np.cumsum(np.fromiter(map(len, self.messages), np.int64, len(self.messages)))
            many = min(CHUNK_MESSAGES, int(np.searchsorted(sizes, CHUNK_BYTES)) + 1)
            chunk, self.messages = self.messages[:many], self.messages[many:]
            self.nbytes -= int(sizes[len(chunk) - 1])
            yield chunk
        if self.is_complete and self.messages:
            yield self.messages
            self.messages, self.nbytes = [], 0


class RangeReader:
    """Reads offset ranges with one consumer."""

    def __init__(self, clients: TopicClients) -> None:
        self._clients = clients
        self._consumer = clients.consumer()
        self._mean_bytes = 1024.0

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def read(
        self, ranges: Sequence[OffsetRange], *, skips_lost: bool = False
    ) -> Iterator[tuple[Place, list[Any]] | Lost]:
        """The messages of ranges, in their order, in chunks of one partition.

        With `skips_lost`, messages that are not available any more are reported as `Lost`;
        otherwise they are an `InputError`.
        """
        for wave in _waves(ranges):
            try:
                yield from self._read_wave(wave, skips_lost=skips_lost)
            finally:
                self._consumer.unassign()

    def _read_wave(
        self, wave: Sequence[OffsetRange], *, skips_lost: bool
    ) -> Iterator[tuple[Place, list[Any]] | Lost]:
        arrived = {one.place: _Arrived(one, next=one.low) for one in wave}
        self._assign(arrived)
        deadline = time.monotonic() + READ_SECONDS
        for place, here in arrived.items():
            while True:
                for chunk in here.chunks():
                    yield place, chunk
                if here.is_complete:
                    break
                before = _left(arrived)
                found = self._consumer.consume(self._request_size(before), _POLL_SECONDS)
                yield from self._receive(found, arrived, skips_lost=skips_lost)
                if _left(arrived) < before:
                    deadline = time.monotonic() + READ_SECONDS
                elif time.monotonic() > deadline:
                    raise self._timeout(here)

    def _timeout(self, here: _Arrived) -> TidegateError:
        cause = self._clients.cause(None)
        if cause is not None:
            return self._clients.failure(cause, "return messages")
        return InputError(
            f"the brokers {self._clients.servers} returned no message of"
            f" `{partition_name(here.range.place)}` from {here.next} to {here.range.high} for"
            f" {READ_SECONDS:g} seconds. Hint: the query continues from its checkpoint when they"
            " are reachable"
        )

    def _assign(self, arrived: dict[Place, _Arrived]) -> None:
        """Assign the consumer to what is left of the ranges."""
        from confluent_kafka import TopicPartition

        self._consumer.assign(
            [
                TopicPartition(*place, one.next)
                for place, one in arrived.items()
                if not one.is_complete
            ]
        )

    def _request_size(self, left: int) -> int:
        """The number of messages to wait for: no more than are left, and than a chunk has bytes."""
        return max(1, min(left, CHUNK_MESSAGES // 4, int(CHUNK_BYTES / self._mean_bytes)))

    def _receive(
        self, found: list[Any], arrived: dict[Place, _Arrived], *, skips_lost: bool
    ) -> list[Lost]:
        """Record received messages and events; return what was lost."""
        messages, lost, added = found, list[Lost](), 0
        events = [one for one in found if one.error() is not None]
        if events:
            messages = [one for one in found if one.error() is None]
        if len(arrived) == 1:
            added = next(iter(arrived.values())).add(messages)
        else:
            by_place: dict[Place, list[Any]] = {place: [] for place in arrived}
            for one in messages:
                by_place[one.topic(), one.partition()].append(one)
            for place, some in by_place.items():
                added += arrived[place].add(some)
        if added:
            self._mean_bytes = max(64.0, added / len(messages))
        for event in events:
            lost += self._handle(event, arrived, skips_lost=skips_lost)
        return lost

    def _handle(
        self, event: Any, arrived: dict[Place, _Arrived], *, skips_lost: bool
    ) -> list[Lost]:
        """Handle the end of a partition, lost messages, and errors."""
        reason = event.error()
        here = arrived.get((event.topic(), event.partition()))
        if reason.name() == "_PARTITION_EOF":
            # The last offsets of a range may be those of markers of transactions.
            if here is not None and event.offset() >= here.range.high:
                here.is_complete = True
            return []
        if reason.name() in _LOST and here is not None:
            return self._skip(here, arrived, skips_lost=skips_lost)
        if reason.fatal() or not (reason.retriable() or reason.name() in _TRANSIENT):
            raise self._clients.failure(reason, "return messages")
        return []

    def _skip(
        self, here: _Arrived, arrived: dict[Place, _Arrived], *, skips_lost: bool
    ) -> list[Lost]:
        """Continue a range at the first available message."""
        place = here.range.place
        first = self._clients.first_offsets([place])[place]
        name, high = partition_name(place), min(first, here.range.high)
        if first <= here.next or not skips_lost:
            raise InputError(
                f"messages {here.next} to {here.range.high - 1} of `{name}` are to be read, and the"
                f" first available one is {first}: the brokers have deleted the others. Hint:"
                ' lost="late" continues with available messages, and a late row names the others'
            )
        lost = Lost(place, here.next, high)
        here.next, here.is_complete = high, high >= here.range.high
        self._assign(arrived)
        return [lost]


Chunk = tuple[Place, list[Any]]
"""Messages of a partition, in their order."""


def grouped(chunks: Iterable[Chunk | Lost]) -> Iterator[list[Chunk] | Lost]:
    """Consecutive chunks together, up to about the size of one, for whatever costs per chunk.

    A batch of 10,000 partitions may have a few messages of each.
    """
    group: list[Chunk] = []
    many = 0
    for one in chunks:
        if isinstance(one, Lost):
            if group:
                yield group
            yield one
            group, many = [], 0
            continue
        group.append(one)
        many += len(one[1])
        if many >= CHUNK_MESSAGES:
            yield group
            group, many = [], 0
    if group:
        yield group


def _left(arrived: dict[Place, _Arrived]) -> int:
    """The number of offsets that were not yet received."""
    return sum(one.range.high - one.next for one in arrived.values() if not one.is_complete)


def _waves(ranges: Sequence[OffsetRange]) -> Iterator[list[OffsetRange]]:
    """The ranges in groups of short ones of different partitions, and long ones alone."""
    wave: list[OffsetRange] = []
    for one in ranges:
        taken = sum(map(len, wave))
        if wave and (
            taken + len(one) > WAVE_MESSAGES or one.place in {other.place for other in wave}
        ):
            yield wave
            wave = []
        wave.append(one)
    if wave:
        yield wave


_readers: dict[tuple[str, tuple[tuple[str, str], ...]], RangeReader] = {}
"""The readers of this worker by brokers and options; a new connection costs more than a batch."""


def worker_reader(servers: str, options: tuple[tuple[str, str], ...]) -> RangeReader:
    """The reader of this process, removed from the cache while it is used."""
    return _readers.pop((servers, options), None) or RangeReader(TopicClients(servers, options))


def keep_reader(servers: str, options: tuple[tuple[str, str], ...], reader: RangeReader) -> None:
    """Keep a reader that has not failed for the next task."""
    former = _readers.pop((servers, options), None)
    if former is not None:
        former.close()
    _readers[servers, options] = reader
