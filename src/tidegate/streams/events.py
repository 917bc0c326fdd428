"""Events: bytes with a routing key, as writers give them and readers get them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import InputError
from tidegate.streams.store import ROWS, Block


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
    ("segment", pa.string()), ("offset", pa.int64()), ("key", pa.string()), ("value", pa.binary()), ("appended", pa.int64()),
]  # fmt: skip
EVENTS = pa.schema(_COLUMNS)
"""The columns of events that were read."""


def table_of(blocks: Mapping[str, Block]) -> pa.Table:
    """What was read of some segments as one table."""
    found = [[pa.repeat(name, block.rows.num_rows), *(block.rows.column(one) for one in EVENTS.names[1:])] for name, block in blocks.items()]
    return pa.concat_tables([EVENTS.empty_table(), *(pa.table(columns, schema=EVENTS) for columns in found)])


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
        return json.dumps(event, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"an event is bytes, text or what JSON can say, got {type(event).__name__} ({error})") from error


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


def columns_of(values: Any, keys: Any) -> pa.Table:
    """Whole columns of events as a store takes them."""
    if not all(isinstance(column, pa.Array | pa.ChunkedArray) for column in (values, *([] if keys is None else [keys]))):
        raise InputError(f"columns of events are of Arrow, got {type(values).__name__} and {type(keys).__name__}. Hint: pyarrow.array(...)")
    try:
        values = values.cast(pa.binary())
        keys = pa.nulls(len(values), pa.string()) if keys is None else keys.cast(pa.string())
    except pa.ArrowException as error:
        raise InputError(f"events are columns of bytes or text, and of keys that are texts ({error})") from error
    if values.null_count or len(keys) != len(values):
        raise InputError(f"each event has a value, and a key or null; got {values.null_count} nulls, {len(values)} values, {len(keys)} keys")
    return pa.table([keys, values], schema=ROWS)


class Gathering:
    """Events that wait, one by one or as whole columns, in the order in which they came; none is larger than the store can take."""

    def __init__(self, largest: int | None = None, tables: Sequence[pa.Table] = ()) -> None:
        self._largest, self._tables = largest, list(tables)
        self._keys: list[str | None] = []
        self._values: list[bytes] = []
        self._settled = sum(map(len, self._tables))
        self.nbytes = sum(table.nbytes for table in self._tables)

    def __len__(self) -> int:
        return self._settled + len(self._values)

    def add(self, event: Any, routing_key: object) -> None:
        """Add an event."""
        # What is bytes under a plain key already goes straight in: this is called once for every event.
        value = event if type(event) is bytes else encoded(event)
        key = routing_key if type(routing_key) is str and routing_key.isascii() else checked_key(routing_key)
        size = len(value)
        if self._largest is not None and size + 4 * len(key or "") > self._largest:
            self._check(size + len((key or "").encode()))
        self._keys.append(key)
        self._values.append(value)
        self.nbytes += size

    def add_all(self, values: Any, routing_keys: Any) -> None:
        """Add whole columns."""
        rows = columns_of(values, routing_keys)
        sizes = [pc.binary_length(rows.column("value")), pc.fill_null(pc.binary_length(rows.column("key")), 0)]
        self._check(pc.max(pc.add(*sizes)).as_py() or 0)
        self._gather()
        self._tables.append(rows)
        self._settled += rows.num_rows
        self.nbytes += rows.nbytes

    def rows(self) -> pa.Table:
        """All of them as a store takes them."""
        self._gather()
        if len(self._tables) != 1:
            self._tables = [pa.concat_tables(self._tables) if self._tables else ROWS.empty_table()]
        return self._tables[0]

    def _gather(self) -> None:
        if self._values:
            self._tables.append(pa.table([pa.array(self._keys, pa.string()), pa.array(self._values, pa.binary())], schema=ROWS))
            self._settled += len(self._values)
            self._keys, self._values = [], []

    def _check(self, size: int) -> None:
        if self._largest is not None and size > self._largest:
            hint = "keep it elsewhere, and write where it is"
            raise InputError(f"an event has {size:,} bytes with its key, and the store takes {self._largest:,} at most. Hint: {hint}")
