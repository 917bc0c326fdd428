"""Results: panes and late rows as Arrow tables, with the columns that users read.

Windows and joins have different columns; what they share is here: the tables, the columns of late
rows, and the form of instants, words and ids.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import pyarrow as pa

from tidegate.errors import InputError
from tidegate.instants import MAX, MIN
from tidegate.kernel.frame import Frame, is_constant, recast, repeat, to_arrow
from tidegate.operators.output import LateRows, Output
from tidegate.operators.text_table import results_html, results_text
from tidegate.units import many

_LATE_COLUMNS = frozenset({"class", "reason", "detail", "watermark", "windows", "emitted_at"})
_TIME_COLUMNS = frozenset(
    {"window_start", "window_end", "time", "watermark", "emitted_at", "windows"}
)
_FEW = 256
"""Up to this many values are made one by one, which is faster than asking Arrow for them."""
STAMP = pa.timestamp("us", "UTC")


@dataclass(frozen=True, eq=False)
class Results:
    """Panes and late rows of one or more calls."""

    panes: pa.Table
    late: pa.Table

    def __len__(self) -> int:
        return self.panes.num_rows + self.late.num_rows

    def __repr__(self) -> str:
        return (
            f"Results({many(self.panes.num_rows, 'pane')}, {many(self.late.num_rows, 'late row')})"
        )

    def _repr_html_(self) -> str:
        return results_html(self.panes, self.late)

    def show(self, n: int = 20) -> None:
        """Print the first `n` panes and the first `n` late rows as text."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise InputError(f"`n` is a number of rows of 0 or more, got {n!r}")
        sys.stdout.write(results_text(self.panes, self.late, n))

    def __bool__(self) -> bool:
        return len(self) > 0

    @classmethod
    def together(cls, parts: Sequence[Results]) -> Results:
        """All results in order, with the column types of the first part.

        Older parts may have other types: those that were known when they were made.
        """
        return cls(_concat([part.panes for part in parts]), _concat([part.late for part in parts]))


class Renderer(ABC):
    """Turns the output of an operator into results."""

    def render(self, output: Output) -> Results:
        """All panes and all late rows; tables without rows have their columns, too."""
        panes = [self._panes(frame) for frame in output.panes if len(frame)]
        late = [self._late(rows) for rows in output.late if len(rows)]
        empty = self._empty
        return Results(_append(empty.panes, panes), _append(empty.late, late))

    @cached_property
    def _empty(self) -> Results:
        return Results(self._no_panes(), self._no_late())

    @abstractmethod
    def by_window(self, output: Output) -> list[Results]:
        """The same, split into the units that a downstream accepts or refuses."""

    @abstractmethod
    def _panes(self, frame: Frame) -> pa.Table: ...

    @abstractmethod
    def _late(self, rows: LateRows) -> pa.Table: ...

    @abstractmethod
    def _no_panes(self) -> pa.Table: ...

    @abstractmethod
    def _no_late(self) -> pa.Table: ...


def _append(empty: pa.Table, tables: list[pa.Table]) -> pa.Table:
    if not tables:
        return empty
    if len(tables) == 1 and tables[0].schema.equals(empty.schema):
        return tables[0]
    return pa.concat_tables([empty, *tables], promote_options="permissive")


def _concat(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(
        [_cast_columns(table, tables[0].schema) for table in tables], promote_options="permissive"
    )


def _cast_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with the types of the schema: until an input has a time, times are integers."""
    if table.schema.equals(schema):
        return table
    for name in [name for name in table.column_names if name in schema.names]:
        kind, former = schema.field(name).type, table.schema.field(name).type
        if former != kind and not pa.types.is_null(kind) and not pa.types.is_null(former):
            cast = (
                table.column(name).cast(kind)
                if name in _TIME_COLUMNS
                else recast(to_arrow(table.column(name)), kind)
            )
            table = table.set_column(table.schema.get_field_index(name), name, cast)
    return table


# Columns


def words_of(words: Sequence[str], codes: np.ndarray) -> pa.Array:
    """The word of each code."""
    if len(codes) <= _FEW:
        return pa.array([words[code] for code in codes.tolist()], pa.string())
    if is_constant(codes):
        return repeat(words[int(codes[0])], len(codes), pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int8)), pa.array(words)).cast(
        pa.string()
    )


def hex_text(raw: np.ndarray) -> pa.Array:
    """The rows of a matrix of bytes, an even number of them, as hexadecimal text."""
    rows, width = raw.shape
    is_large = 2 * width * rows > np.iinfo(np.int32).max
    step = 2 * width
    offsets = np.arange(0, step * (rows + 1), step, dtype=np.int64 if is_large else np.int32)
    kind = pa.LargeStringArray if is_large else pa.StringArray
    text = _digits()[np.ascontiguousarray(raw).view(np.uint16)]
    return kind.from_buffers(rows, pa.py_buffer(offsets.data), pa.py_buffer(text.data)).cast(
        pa.string()
    )


@cache
def _digits() -> np.ndarray:
    """The four hexadecimal digits of each pair of bytes, as one word in the order of memory."""
    pairs = np.arange(1 << 16, dtype=np.uint16).view(np.uint8)
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    return np.column_stack([digits[pairs >> 4], digits[pairs & 15]]).ravel().view(np.uint32)


def instants(column: np.ndarray, *, ticks: bool) -> pa.Array:
    """Integers (`ticks`) or timestamps; the beginning and the end of time are null."""
    if is_constant(column) and len(column) > _FEW:
        # Arrow scalars would go through Python's datetime, which ends with the year 9999.
        return instants(column[:1].copy(), ticks=ticks).take(
            pa.array(np.zeros(len(column), np.int64))
        )
    array = pa.array(column, mask=(column == MIN) | (column == MAX))
    return array if ticks else array.cast(STAMP)


# Late rows


def late_name(name: str) -> str:
    """The name of an input column in the late output, where `input_` resolves a conflict."""
    return f"input_{name}" if name in _LATE_COLUMNS else name


def late_columns(*, ticks: bool) -> list[tuple[str, pa.DataType]]:
    """The columns of the late output after those of the row."""
    when = pa.int64() if ticks else STAMP
    windows = pa.list_(pa.struct([("window_start", when), ("window_end", when)]))
    texts = [("class", pa.string()), ("reason", pa.string()), ("detail", pa.string())]
    return [*texts, ("watermark", when), ("windows", windows), ("emitted_at", when)]


def late_table(columns: dict[str, pa.Array], rows: LateRows, *, ticks: bool) -> pa.Table:
    """Late rows: their own columns, then `late_columns`."""
    n = len(rows)
    added = {
        "class": rows.lateness,
        "reason": repeat(rows.reason, n, pa.string()),
        "detail": rows.detail,
        "watermark": instants(np.full(n, rows.watermark), ticks=ticks),
        "windows": _windows(rows.starts, rows.ends, ticks=ticks),
        "emitted_at": repeat(rows.emitted_at, n, pa.int64()).cast(pa.int64() if ticks else STAMP),
    }
    return pa.table({**columns, **added})


def _windows(starts: pa.ListArray, ends: pa.ListArray, *, ticks: bool) -> pa.Array:
    bounds = [
        instants(np.asarray(column.flatten()).astype(np.int64), ticks=ticks)
        for column in (starts, ends)
    ]
    return pa.ListArray.from_arrays(
        starts.offsets, pa.StructArray.from_arrays(bounds, ["window_start", "window_end"])
    )
