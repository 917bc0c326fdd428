"""Events in Kafka: reading the committed records of a partition, up to the end marker."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.errors import InputError
from tidegate.streams.kafka_clients import NOT_YET, SECONDS, Clients, Place, hanging
from tidegate.streams.store import BLOCK, Block

if TYPE_CHECKING:
    from confluent_kafka import Consumer

END_MARKER: list[tuple[str, str | bytes | None]] = [("tidegate", b"end")]
"""The header of the record without a value that seals a segment."""
MOST_CONSUMERS = 32
MOST_AT_ONCE = 100_000
# Streams are truncated explicitly, not by broker retention.
CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "LogAppendTime",
    "max.message.bytes": str(16 << 20),
}


class SegmentConsumer:
    """A consumer of one segment, with its position and prefetched records."""

    def __init__(self, clients: Clients, place: Place) -> None:
        self._place = place
        self._consumer: Consumer = clients.consumer()
        self._assigned = False
        self._at = -1
        """Where the last read ended."""
        self._ahead: list[Any] = []
        """Prefetched records from there on."""
        self._fetched = 0
        """The offset of the next record to fetch."""

    def read(self, offset: int, most: int, before: int | None, end: int) -> Block:
        """Up to `most` events from `offset` on; records are committed at least up to `end`."""
        if offset != self._at:
            self._ahead, self._fetched = [], offset
            self._assigned = False
        found, self._ahead = self._ahead, []
        self._at = -1
        stop = end if before is None else min(before, end)
        deadline = time.monotonic() + SECONDS
        # Fetch one more than requested: it may be the end marker.
        while (
            len(found) <= most
            and self._fetched < end
            and not (found and (found[-1].offset() >= stop or _ends(found[-1])))
        ):
            more = self._more(most + 1 - len(found), deadline)
            if more:
                found += more
                deadline = time.monotonic() + SECONDS
        offsets = [message.offset() for message in found]
        values = [message.value() for message in found]
        marker = next(
            (at for at, value in enumerate(values) if value is None and _ends(found[at])),
            len(found),
        )
        count = min(most, marker, len(found) if before is None else bisect_left(offsets, before))
        ended = count == marker < len(found) and (before is None or offsets[marker] <= before)
        after = self._fetched if count == len(found) else offsets[count]
        self._at = after if before is None else max(offset, min(after, before))
        self._ahead = found[count:]
        if not self._ahead and self._fetched >= end:
            self._rest()
        return Block(_table(found[:count], values[:count], offsets[:count]), self._at, ended)

    def _more(self, most: int, deadline: float) -> list[Any]:
        """The next available records, at least one."""
        from confluent_kafka import KafkaException, TopicPartition

        if not self._assigned:
            self._consumer.assign([TopicPartition(*self._place, self._fetched)])
            self._assigned = True
        while (first := self._consumer.poll(0.1)) is None:
            if time.monotonic() > deadline:
                raise hanging(self._place[0])
        wanted = min(most, MOST_AT_ONCE) - 1
        found = [
            first,
            *(self._consumer.consume(wanted, 0) if wanted and first.error() is None else ()),
        ]
        good = [message for message in found if message.error() is None]
        for failure in (message for message in found if message.error() is not None):
            name = failure.error().name()
            if name == "_PARTITION_EOF":
                # The end may be after records that are not delivered: transaction markers and
                # aborted records.
                self._fetched = max(self._fetched, failure.offset())
            elif name in {"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"}:
                raise truncated(self._place, self._fetched)
            elif name not in NOT_YET or time.monotonic() > deadline:
                raise KafkaException(failure.error())
        if good:
            self._fetched = max(self._fetched, good[-1].offset() + 1)
        return good

    def _rest(self) -> None:
        if self._assigned:
            self._consumer.unassign()
        self._assigned = False

    def close(self) -> None:
        self._consumer.close()


class ConsumerPool:
    """Idle consumers, kept for the next read of their segments."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._lock = threading.Lock()
        self._idle: OrderedDict[Place, SegmentConsumer] = OrderedDict()

    def read(self, place: Place, offset: int, most: int, before: int | None, end: int) -> Block:
        with self._lock:
            # Checked out while in use, so that no two threads share a consumer; returned only after
            # success.
            reader = self._idle.pop(place, None)
        reader = reader or SegmentConsumer(self._clients, place)
        try:
            with self._clients.translated_errors(f"read the topic `{place[0]}`"):
                block = reader.read(offset, most, before, end)
        except BaseException:
            reader.close()
            raise
        with self._lock:
            left = [self._idle.pop(place)] if place in self._idle else []
            self._idle[place] = reader
            if len(self._idle) > MOST_CONSUMERS:
                left.append(self._idle.popitem(last=False)[1])
        for one in left:
            one.close()
        return block

    def forget(self, topic: str | None = None) -> None:
        """Close the consumers of a topic, or all."""
        with self._lock:
            gone = [
                self._idle.pop(place) for place in list(self._idle) if topic in {None, place[0]}
            ]
        for reader in gone:
            reader.close()


def truncated(place: Place, offset: int, first: int | None = None) -> InputError:
    """The error for a read at a truncated offset."""
    there = "" if first is None else f" starts at {first} and"
    return InputError(
        f"segment {place[1]} of the topic `{place[0]}`{there} is truncated beyond the offset"
        f" {offset}. Hint: read from `bounds` on"
    )


def empty(offset: int) -> Block:
    """An empty block at an offset."""
    return Block(BLOCK.empty_table(), offset)


def _ends(message: Any) -> bool:
    return message.value() is None and message.headers() == END_MARKER


def _table(messages: list[Any], values: list[bytes | None], offsets: list[int]) -> pa.Table:
    keys = pa.array([message.key() for message in messages], pa.binary())
    # Foreign producers may write keys that are not text, and records without a value.
    data = pa.array(values, pa.binary()).fill_null(b"")
    appended = [message.timestamp()[1] * 1000 for message in messages]
    return pa.Table.from_arrays(
        [_text(keys), data, pa.array(offsets, pa.int64()), pa.array(appended, pa.int64())],
        schema=BLOCK,
    )


def _text(keys: pa.Array) -> pa.Array:
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [
                None if key is None else key.decode("utf-8", "backslashreplace")
                for key in keys.to_pylist()
            ],
            pa.string(),
        )
