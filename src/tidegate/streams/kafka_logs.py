"""Events in Kafka: a record each, read in the order of offsets up to what is committed, and up to
the end marker of a sealed segment.
"""

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
"""The header of the record, without a value, that ends a segment."""
MOST_READERS = 32
MOST_AT_ONCE = 100_000
# Streams are truncated by those who own them, not by the brokers.
CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "LogAppendTime",
    "max.message.bytes": str(16 << 20),
}


class Reader:
    """A consumer of one segment, which knows where it is and has the next records ready while there
    are some.
    """

    def __init__(self, clients: Clients, place: Place) -> None:
        self._place = place
        self._consumer: Consumer = clients.consumer()
        self._assigned = False
        self._at = -1
        """Where the last read ended."""
        self._ahead: list[Any] = []
        """Records from there on that were given out already."""
        self._fetched = 0
        """Where the next record is to be expected."""

    def read(self, offset: int, most: int, before: int | None, end: int) -> Block:
        """At most so many events from an offset on; what is committed reaches to `end` at least."""
        if offset != self._at:
            self._ahead, self._fetched = [], offset
            self._assigned = False
        found, self._ahead = self._ahead, []
        self._at = -1
        stop = end if before is None else min(before, end)
        deadline = time.monotonic() + SECONDS
        # One more than asked for: it may be the end of the segment.
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
        """The next records; those that are there, or the first that comes."""
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
                # The end may lie behind what is not given out: ends of transactions, and records of
                # those that were undone.
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


class Readers:
    """Readers that are kept for the next read of their segments."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._lock = threading.Lock()
        self._idle: OrderedDict[Place, Reader] = OrderedDict()

    def read(self, place: Place, offset: int, most: int, before: int | None, end: int) -> Block:
        with self._lock:
            # Taken out while it is used, so that two never use one; it comes back only when all
            # went well.
            reader = self._idle.pop(place, None)
        reader = reader or Reader(self._clients, place)
        try:
            with self._clients.told(f"give out the topic `{place[0]}`"):
                block = reader.read(offset, most, before, end)
        except BaseException:
            reader.close()
            raise
        with self._lock:
            left = [self._idle.pop(place)] if place in self._idle else []
            self._idle[place] = reader
            if len(self._idle) > MOST_READERS:
                left.append(self._idle.popitem(last=False)[1])
        for one in left:
            one.close()
        return block

    def forget(self, topic: str | None = None) -> None:
        """Close the readers of a topic, or all."""
        with self._lock:
            gone = [
                self._idle.pop(place) for place in list(self._idle) if topic in {None, place[0]}
            ]
        for reader in gone:
            reader.close()


def truncated(place: Place, offset: int, first: int | None = None) -> InputError:
    """The error of a read at what is no longer there."""
    there = "" if first is None else f" begins at {first} and"
    return InputError(
        f"segment {place[1]} of the topic `{place[0]}`{there} was truncated beyond the offset"
        f" {offset}. Hint: read from `bounds` on"
    )


def empty(offset: int) -> Block:
    """Nothing, as it is at an offset where nothing is yet."""
    return Block(BLOCK.empty_table(), offset)


def _ends(message: Any) -> bool:
    return message.value() is None and message.headers() == END_MARKER


def _table(messages: list[Any], values: list[bytes | None], offsets: list[int]) -> pa.Table:
    keys = pa.array([message.key() for message in messages], pa.binary())
    # Others may write to the topic what no writer of ours does: keys that are no text, and records
    # without a value.
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
