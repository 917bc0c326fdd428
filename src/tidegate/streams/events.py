"""Events: bytes with a routing key, as writers give them and readers get them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.errors import InputError
from tidegate.streams.store import Block, Rows


@dataclass(frozen=True, slots=True)
class Event:
    """An event as it was read."""

    value: bytes
    key: str | None
    segment: str
    offset: int
    appended: int
    """When the store took it, by its clock, in microseconds."""

    @property
    def json(self) -> Any:
        """What the value says, where it is JSON."""
        return json.loads(self.value)


_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("segment", pa.string()),
    ("offset", pa.int64()),
    ("key", pa.string()),
    ("value", pa.binary()),
    ("appended", pa.int64()),
]
EVENTS = pa.schema(_COLUMNS)
"""The columns of events that were read."""


def table_of(blocks: Mapping[str, Block]) -> pa.Table:
    """What was read of some segments as one table."""
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
    """The bytes of an event: bytes as they are, text in UTF-8, everything else as JSON."""
    if isinstance(event, bytes):
        return event
    try:
        if isinstance(event, str):
            return event.encode()
        if event is None:
            raise InputError("an event cannot be None. Hint: write b'' for an empty one")
        if isinstance(event, bytearray | memoryview):
            return bytes(event)
        return json.dumps(
            event, ensure_ascii=False, separators=(",", ":"), allow_nan=False
        ).encode()
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"an event is bytes, text or what JSON can say, got {type(event).__name__} ({error})"
        ) from error


def checked_key(key: object) -> str | None:
    """A routing key: a text, or none."""
    if key is None:
        return None
    if not isinstance(key, str):
        raise InputError(f"a routing key is a text, got {key!r}. Hint: str(...)")
    if not key.isascii():
        try:
            key.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"a routing key is a text that UTF-8 can say, got {key!r}") from error
    return key


def rows_of(values: Any, keys: Any) -> Rows:
    """Whole columns of events as a store takes them."""
    if not all(
        isinstance(column, pa.Array | pa.ChunkedArray)
        for column in (values, *([] if keys is None else [keys]))
    ):
        raise InputError(
            f"columns of events are of Arrow, got {type(values).__name__} and"
            f" {type(keys).__name__}. Hint: pyarrow.array(...)"
        )
    try:
        values = values.cast(pa.binary())
        keys = pa.nulls(len(values), pa.string()) if keys is None else keys.cast(pa.string())
    except pa.ArrowException as error:
        raise InputError(
            f"events are columns of bytes or text, and of keys that are texts ({error})"
        ) from error
    if values.null_count or len(keys) != len(values):
        raise InputError(
            f"each event has a value, and a key or null; got {values.null_count} nulls,"
            f" {len(values)} values, {len(keys)} keys"
        )
    return Rows(keys.to_pylist(), values.to_pylist())


class Gathering:
    """Events that wait, in the order in which they came; none is larger than the store can take."""

    def __init__(
        self,
        largest: int | None = None,
        rows: Iterable[Rows] = (),
        *,
        events: int = sys.maxsize,
        nbytes: int = sys.maxsize,
    ) -> None:
        """They are enough when there are so many, or so many bytes."""
        self._largest, self._enough, self._enough_bytes = largest, events, nbytes
        # An event of which neither key nor value is longer than this fits, however many bytes the
        # characters of the key have.
        self._plenty = sys.maxsize if largest is None else largest // 8
        self._keys: list[str | None] = []
        self._values: list[bytes] = []
        self.nbytes = 0
        for one in rows:
            self._put(one)

    def __len__(self) -> int:
        return len(self._values)

    def add(self, event: Any, routing_key: object) -> bool:
        """Add an event; whether they are enough now."""
        # What is bytes under a plain key already goes straight in: this is called once for every
        # event.
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
        """Add whole columns."""
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

    def rows(self) -> Rows:
        """All of them as a store takes them."""
        return Rows(self._keys, self._values)

    def taken(self) -> Rows:
        """All of them, which wait no longer."""
        rows = Rows(self._keys, self._values)
        self._keys, self._values, self.nbytes = [], [], 0
        return rows

    def _put(self, rows: Rows) -> None:
        self._keys += rows.keys
        self._values += rows.values
        self.nbytes += sum(map(len, rows.values))

    def _check(self, size: int) -> None:
        if self._largest is not None and size > self._largest:
            hint = "keep it elsewhere, and write where it is"
            raise InputError(
                f"an event has {size:,} bytes with its key, and the store takes {self._largest:,}"
                f" at most. Hint: {hint}"
            )
