"""The cells of a stream in Kafka: the newest record of each key in a compacted topic.

The topic has one partition. A header of the record has the version of the cell, derived from the
clock and all former versions: it grows, and is not reused when a stream is dropped and created
again. Keys of the store itself contain a `:`, which cell keys never do.

A change is one record. So the topic, read up to any offset, is a consistent snapshot.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from tidegate.state.serialization import decode_json, encode_json
from tidegate.streams.kafka_clients import NOT_YET, SECONDS, Clients, hanging
from tidegate.streams.store import Cell, Conflict, Swap

if TYPE_CHECKING:
    from confluent_kafka import Consumer

VERSION = "version"
SEALED = "sealed:"
"""Key prefix of the end of a segment; the end is null while the segment is being sealed."""
# Compaction skips the active log segment; small log segments keep the initial read short.
CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "60000",
    "max.message.bytes": str(16 << 20),
}
Change = tuple[str, int, bytes | None]
"""A key, its expected version, and its new document."""


def change_of(swap: Swap) -> Change:
    """The change with its document encoded."""
    return (
        swap.key,
        swap.version,
        None if swap.document is None else encode_json(swap.document, swap.key).encode(),
    )


class CellTable:
    """All cells of a topic, up to the offset read so far."""

    def __init__(self, clients: Clients, topic: str) -> None:
        self.topic = topic
        self._clients = clients
        self._lock = threading.RLock()
        self._consumer: Consumer | None = None
        self._forget()

    def _forget(self) -> None:
        self._at = 0
        self._newest = 0
        self._cells: dict[str, tuple[bytes, int]] = {}
        self._keys: list[str] | None = None
        self._ends: dict[str, int | None] = {}

    # Lookup

    def found(self, prefix: str) -> dict[str, Cell]:
        """The cells whose keys start with `prefix`."""
        with self._lock:
            if self._keys is None:
                self._keys = sorted(self._cells)
            # All characters of a key are below this one.
            keys = self._keys[
                bisect_left(self._keys, prefix) : bisect_left(self._keys, f"{prefix}\x7f")
            ]
            raw = [(key, *self._cells[key]) for key in keys]
        return {key: Cell(decode_json(data, key), version) for key, data, version in raw}

    def one(self, key: str) -> Cell | None:
        with self._lock:
            data, version = self._cells.get(key, (None, 0))
        return None if data is None else Cell(decode_json(data, key), version)

    def ends(self) -> dict[str, int | None]:
        """The ends of sealed segments; None for segments being sealed."""
        with self._lock:
            return dict(self._ends)

    def check(self, change: Change) -> None:
        """Raise `Conflict` if the cell does not have the expected version."""
        key, version, _ = change
        with self._lock:
            there = self._cells.get(key, (b"", 0))[1]
        if there != version:
            raise Conflict(
                f"the cell `{key}` in `{self.topic}` has version {there} (0: it does not exist),"
                f" but the change expects version {version}"
            )

    def has(self, change: Change, version: int) -> bool:
        """Whether the change was made and is still the newest."""
        with self._lock:
            return self._cells.get(change[0]) == (change[2], version)

    def suffices(self, offset: int, change: Change | None) -> bool:
        """Whether the offset was read, and the cell has the version that the change expects."""
        with self._lock:
            return self._at > offset and (
                change is None or self._cells.get(change[0], (b"", 0))[1] == change[1]
            )

    def next_version(self) -> int:
        with self._lock:
            return max(self._newest + 1, time.time_ns() // 1000)

    # Reading

    def read(self, *, committed: bool = True) -> None:
        """Read to the end of committed records, or to the end including open transactions."""
        end = self._clients.end(self.topic, committed=committed)
        with self._lock, self._clients.translated_errors(f"read the topic `{self.topic}`"):
            if end < self._at:
                # The topic was dropped and created again.
                self._forget()
            if end > self._at:
                self._read_to(end)

    def _read_to(self, end: int) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        if self._consumer is None:
            self._consumer = self._clients.consumer()
        consumer = self._consumer
        consumer.assign([TopicPartition(self.topic, 0, self._at)])
        deadline = time.monotonic() + SECONDS + self._clients.transaction_seconds
        while self._at < end:
            message: Any = consumer.poll(0.1)
            if message is None:
                if time.monotonic() > deadline:
                    raise hanging(self.topic)
                continue
            failure = message.error()
            if failure is None:
                self._take(message)
                self._at = message.offset() + 1
            elif failure.name() == "_PARTITION_EOF":
                # The end may be after records that are not delivered: transaction markers and
                # aborted records.
                self._at = max(self._at, message.offset())
            elif failure.name() in {"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"}:
                self._forget()
                consumer.assign([TopicPartition(self.topic, 0, 0)])
            elif (
                failure.name() not in NOT_YET
                or time.monotonic() > deadline - self._clients.transaction_seconds
            ):
                raise KafkaException(failure)
        consumer.unassign()

    def _take(self, message: Any) -> None:
        key, data = (message.key() or b"").decode("utf-8", "replace"), message.value()
        version = int(dict(message.headers() or []).get(VERSION) or message.offset() + 1)
        self._put(key, data, version)

    def _put(self, key: str, data: bytes | None, version: int) -> None:
        self._newest = max(self._newest, version)
        if key.startswith(SEALED):
            self._ends[key.removeprefix(SEALED)] = decode_json(data or b"", key)["end"]
            return
        if data is None:
            self._cells.pop(key, None)
            self._keys = None
            return
        if key not in self._cells:
            self._keys = None
        self._cells[key] = (data, version)

    def made(self, change: Change, version: int, offset: int, end: int) -> None:
        """Apply a change made here without reading it, if nothing else came in between.

        A record and its commit marker are two offsets.
        """
        with self._lock:
            if self._at == offset and end == offset + 2:
                self._put(change[0], change[2], version)
                self._at = end

    def close(self) -> None:
        with self._lock:
            if self._consumer is not None:
                self._consumer.close()
            self._consumer = None
