"""Events: bytes with an optional routing key, as written and as read."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.errors import InputError
from tidegate.streams.store import Block, EventBatch


@dataclass(frozen=True, slots=True)
class Event:
    """An event that was read."""

    value: bytes
    key: str | None
    segment: str
    offset: int
    appended: int
    """When the store appended it, by the clock of the store, in microseconds."""

    @property
    def json(self) -> Any:
        """The value decoded as JSON."""
        return json.loads(self.value)


_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("segment", pa.string()),
    ("offset", pa.int64()),
    ("key", pa.string()),
    ("value", pa.binary()),
    ("appended", pa.int64()),
]
EVENTS = pa.schema(_COLUMNS)
"""The schema of `Reader.read_table`."""


def table_of(blocks: Mapping[str, Block]) -> pa.Table:
    """The blocks read from several segments as one table."""
    found = [
        [
            pa.repeat(name, block.rows.num_rows),
            *(block.rows.column(one) for one in EVENTS.names[1:]),
        ]
        for name, block in blocks.items()
    ]
    return pa.concat_tables(
        [EVENTS.empty_table(), *(pa.table(columns, schema=EVENTS) for columns in found)]
    )


def encoded(event: Any) -> bytes:
    """The bytes of an event: bytes as they are, text as UTF-8, anything else as JSON."""
    if isinstance(event, bytes):
        return event
    try:
        if isinstance(event, str):
            return event.encode()
        if event is None:
            raise InputError("an event must not be None. Hint: write b'' for an empty event")
        if isinstance(event, bytearray | memoryview):
            return bytes(event)
        return json.dumps(
            event, ensure_ascii=False, separators=(",", ":"), allow_nan=False
        ).encode()
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"an event is bytes, text or JSON-serialisable, got {type(event).__name__} ({error})"
        ) from error


def checked_key(key: object) -> str | None:
    """A routing key, validated: a text, or None."""
    if key is None:
        return None
    if not isinstance(key, str):
        raise InputError(f"a routing key is a string or None, got {key!r}. Hint: str(...)")
    if not key.isascii():
        try:
            key.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"a routing key is a string in UTF-8, got {key!r}") from error
    return key


def rows_of(values: Any, keys: Any) -> EventBatch:
    """Columns of events as a batch."""
    if not all(
        isinstance(column, pa.Array | pa.ChunkedArray)
        for column in (values, *([] if keys is None else [keys]))
    ):
        raise InputError(
            f"columns of events are Arrow arrays, got {type(values).__name__} and"
            f" {type(keys).__name__}. Hint: pyarrow.array(...)"
        )
    try:
        values = values.cast(pa.binary())
        keys = pa.nulls(len(values), pa.string()) if keys is None else keys.cast(pa.string())
    except pa.ArrowException as error:
        raise InputError(
            f"events are columns of bytes or text, with keys as a column of text ({error})"
        ) from error
    if values.null_count or len(keys) != len(values):
        raise InputError(
            f"each event needs a value, and a key or null; got {values.null_count} null values,"
            f" {len(values)} values, {len(keys)} keys"
        )
    return EventBatch(keys.to_pylist(), values.to_pylist())


class EventBuffer:
    """Events to be written, in order; each fits the size limit of the store."""

    def __init__(
        self,
        largest: int | None = None,
        rows: Iterable[EventBatch] = (),
        *,
        events: int = sys.maxsize,
        nbytes: int = sys.maxsize,
    ) -> None:
        """The buffer is full at `events` events or `nbytes` bytes.

        `largest` limits a single event.
        """
        self._largest, self._enough, self._enough_bytes = largest, events, nbytes
        # An event whose key and value are both at most this long always fits, even with four-byte
        # characters in the key.
        self._plenty = sys.maxsize if largest is None else largest // 8
        self._keys: list[str | None] = []
        self._values: list[bytes] = []
        self.nbytes = 0
        for one in rows:
            self._put(one)

    def __len__(self) -> int:
        return len(self._values)

    def add(self, event: Any, routing_key: object) -> bool:
        """Add an event; returns whether the buffer is full."""
        # Fast path for bytes with an ASCII key: this runs once per event.
        value = event if type(event) is bytes else encoded(event)
        key = (
            routing_key
            if type(routing_key) is str and routing_key.isascii()
            else checked_key(routing_key)
        )
        size = len(value)
        if size > self._plenty or (key is not None and len(key) > self._plenty):
            self._check(size + len((key or "").encode()))
        self._keys.append(key)
        self._values.append(value)
        self.nbytes = nbytes = self.nbytes + size
        return nbytes >= self._enough_bytes or len(self._values) >= self._enough

    def add_all(self, values: Any, routing_keys: Any) -> None:
        """Add columns of events."""
        rows = rows_of(values, routing_keys)
        longest = max(map(len, rows.values), default=0)
        if longest + 4 * max(map(len, filter(None, set(rows.keys))), default=0) > self._plenty:
            self._check(
                max(
                    len(value) + len((key or "").encode())
                    for key, value in zip(rows.keys, rows.values, strict=True)
                )
            )
        self._put(rows)

    def rows(self) -> EventBatch:
        """The content as a batch."""
        return EventBatch(self._keys, self._values)

    def taken(self) -> EventBatch:
        """Remove and return the content as a batch."""
        rows = EventBatch(self._keys, self._values)
        self._keys, self._values, self.nbytes = [], [], 0
        return rows

    def _put(self, rows: EventBatch) -> None:
        self._keys += rows.keys
        self._values += rows.values
        self.nbytes += sum(map(len, rows.values))

    def _check(self, size: int) -> None:
        if self._largest is not None and size > self._largest:
            hint = "store the payload elsewhere, and write a reference to it"
            raise InputError(
                f"an event has {size:,} bytes including its key, but the store accepts at most"
                f" {self._largest:,}. Hint: {hint}"
            )
