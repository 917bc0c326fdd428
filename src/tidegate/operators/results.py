"""Results are panes and late rows as people read them: named columns, window bounds as instants or
numbers, and a pane id that replays keep.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from tidegate.instants import MAX, MIN
from tidegate.kernel.frame import Column, Frame, is_constant, recast, repeat, squeezed, to_arrow
from tidegate.kernel.keys import mix
from tidegate.operators.output import TIMINGS, LateRows, Output
from tidegate.spec.operator import AggregateSpec

_HEX = np.array(
    [int.from_bytes(f"{byte:02x}".encode(), "little") for byte in range(256)], np.uint16
)
_LATE_COLUMNS = frozenset({"class", "reason", "detail", "watermark", "windows", "emitted_at"})
_OUR_TIMES = frozenset({"window_start", "window_end", "time", "watermark", "emitted_at", "windows"})
STAMP = pa.timestamp("us", "UTC")


@dataclass(frozen=True, eq=False)
class Results:
    """Panes and late rows that wait to be fetched."""

    panes: pa.Table
    late: pa.Table

    def __len__(self) -> int:
        return self.panes.num_rows + self.late.num_rows

    def __bool__(self) -> bool:
        return len(self) > 0

    @classmethod
    def together(cls, parts: Sequence[Results]) -> Results:
        """All results in order; the first part says how times are shown, because others may be
        older than what is known of them now.
        """
        return cls(
            _together([part.panes for part in parts]), _together([part.late for part in parts])
        )


class Rendering(ABC):
    """Turns an operator's output into results."""

    def render(self, output: Output) -> Results:
        """All panes, and all late rows; tables without rows have their columns."""
        panes = [self._panes(frame) for frame in output.panes if len(frame)]
        late = [self._late(rows) for rows in output.late if len(rows)]
        return Results(
            (
                pa.concat_tables([self._no_panes(), *panes], promote_options="permissive")
                if panes
                else self._no_panes()
            ),
            (
                pa.concat_tables([self._no_late(), *late], promote_options="permissive")
                if late
                else self._no_late()
            ),
        )

    @abstractmethod
    def by_window(self, output: Output) -> list[Results]:
        """The same in the units in which a downstream accepts."""

    @abstractmethod
    def _panes(self, frame: Frame) -> pa.Table: ...

    @abstractmethod
    def _late(self, rows: LateRows) -> pa.Table: ...

    @abstractmethod
    def _no_panes(self) -> pa.Table: ...

    @abstractmethod
    def _no_late(self) -> pa.Table: ...


@dataclass(frozen=True)
class Renderer(Rendering):
    """Turns the output of a windowed aggregate into results."""

    spec: AggregateSpec
    ticks: bool
    schema: pa.Schema | None
    result_types: dict[str, pa.DataType]

    def by_window(self, output: Output) -> list[Results]:
        """One result a window, in the order of their first rows, and the late rows last: the units
        in which a downstream accepts.
        """
        whole = self.render(output)
        parts: list[Results] = []
        if whole.panes.num_rows:
            start, end = (
                to_arrow(whole.panes.column(c)).dictionary_encode(null_encoding="encode").indices
                for c in ("window_start", "window_end")
            )
            code = np.asarray(start).astype(np.int64) * (whole.panes.num_rows + 1) + np.asarray(end)
            breaks = np.flatnonzero(np.diff(code)) + 1
            bounds = [0, *breaks.tolist(), whole.panes.num_rows]
            parts = [
                Results(whole.panes.slice(a, b - a), self._no_late()) for a, b in pairwise(bounds)
            ]
        if whole.late.num_rows:
            parts.append(Results(self._no_panes(), whole.late))
        return parts

    def instants(self, column: np.ndarray) -> pa.Array:
        """Ticks or timestamps; the ends of time are null."""
        return instants(column, ticks=self.ticks)

    def _panes(self, frame: Frame) -> pa.Table:
        columns: dict[str, Column | pa.Array] = {
            name: frame[f"k.{name}"] for name in self.spec.input.key
        }
        columns.update(
            window_start=self.instants(frame.ints("start")),
            window_end=self.instants(frame.ints("end")),
        )
        columns["op"] = chosen(("-", "+"), squeezed((frame.ints("op") > 0).astype(np.int8)))
        columns["timing"] = chosen(TIMINGS, frame.ints("timing"))
        columns.update(
            pane=frame.ints("pane"),
            pane_nonspeculative=frame.ints("ns"),
            is_first=frame.ints("first"),
            is_last=frame.ints("last"),
        )
        columns.update({name: frame[f"a.{name}"] for name, _ in self.spec.aggregates})
        columns["time"] = self.instants(frame.ints("time"))
        columns["watermark"] = self.instants(frame.ints("watermark"))
        columns["emitted_at"] = self.instants(frame.ints("emitted_at"))
        columns["pane_id"] = pane_ids(frame)
        return pa.table({name: to_arrow(column) for name, column in columns.items()})

    def _late(self, rows: LateRows) -> pa.Table:
        columns: dict[str, pa.Array] = {}
        if rows.table is not None:
            columns.update(
                {
                    late_name(name): to_arrow(rows.table.column(name))
                    for name in rows.table.column_names
                }
            )
        columns.update({name: to_arrow(rows.keys[f"k.{name}"]) for name in self.spec.input.key})
        return late_table(columns, rows, ticks=self.ticks)

    def _no_panes(self) -> pa.Table:
        when = pa.int64() if self.ticks else STAMP
        fields = [(name, self._type(name)) for name in self.spec.input.key]
        fields += [
            ("window_start", when),
            ("window_end", when),
            ("op", pa.string()),
            ("timing", pa.string()),
            ("pane", pa.int64()),
        ]
        fields += [
            ("pane_nonspeculative", pa.int64()),
            ("is_first", pa.bool_()),
            ("is_last", pa.bool_()),
        ]
        fields += [
            (name, self.result_types.get(name, pa.null())) for name, _ in self.spec.aggregates
        ]
        fields += [
            ("time", when),
            ("watermark", when),
            ("emitted_at", when),
            ("pane_id", pa.string()),
        ]
        return pa.schema(fields).empty_table()

    def _no_late(self) -> pa.Table:
        fields = (
            []
            if self.schema is None
            else [(late_name(field.name), field.type) for field in self.schema]
        )
        fields += [
            (name, self._type(name))
            for name in self.spec.input.key
            if name not in {f[0] for f in fields}
        ]
        return pa.schema([*fields, *late_columns(ticks=self.ticks)]).empty_table()

    def _type(self, name: str) -> pa.DataType:
        return pa.null() if self.schema is None else self.schema.field(name).type


def _together(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(
        [_timed(table, tables[0].schema) for table in tables], promote_options="permissive"
    )


def _timed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table in the types of the schema: before an input has shown a time, times are plain
    numbers, and what nothing is known of is too.
    """
    for name in [name for name in table.column_names if name in schema.names]:
        kind, former = schema.field(name).type, table.schema.field(name).type
        if former != kind and not pa.types.is_null(kind) and not pa.types.is_null(former):
            cast = (
                table.column(name).cast(kind)
                if name in _OUR_TIMES
                else recast(to_arrow(table.column(name)), kind)
            )
            table = table.set_column(table.schema.get_field_index(name), name, cast)
    return table


def late_name(name: str) -> str:
    """The name of an input column in the late output: one that the late output has itself is told
    apart.
    """
    return f"input_{name}" if name in _LATE_COLUMNS else name


def pane_ids(frame: Frame) -> pa.Array:
    """128 bits of key, window, index and op as text: the same pane has the same id after every
    replay.
    """
    words = [frame.ints(name) for name in ("start", "end", "pane", "op")]
    # Panes of one window share these words, so that they are mixed once and not row by row.
    alike = all(is_constant(word) for word in words) and len(frame) > 0
    pane = np.zeros(1 if alike else len(frame), np.uint64)
    for word in words:
        pane = mix(pane ^ (word[:1] if alike else word).astype(np.int64).view(np.uint64))
    first, second = (
        mix(frame.ints("key_hash") ^ pane),
        mix(frame.ints("key_check") + mix(pane ^ frame.ints("key_hash"))),
    )
    raw = np.column_stack([first, second]).view(np.uint8).reshape(len(frame), 16)
    text = _HEX[raw].view(np.uint8)
    offsets = np.arange(0, 32 * (len(frame) + 1), 32, dtype=np.int64)
    return pa.LargeStringArray.from_buffers(
        len(frame), pa.py_buffer(offsets.tobytes()), pa.py_buffer(text.tobytes())
    ).cast(pa.string())


def chosen(words: Sequence[str], codes: np.ndarray) -> pa.Array:
    """The word of each code."""
    if is_constant(codes):
        return repeat(words[int(codes[0])], len(codes), pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int8)), pa.array(words)).cast(
        pa.string()
    )


def instants(column: np.ndarray, *, ticks: bool) -> pa.Array:
    """Ticks or timestamps; the ends of time are null."""
    if is_constant(column):
        # Not through Python's own datetime, which ends with the year 9999.
        return instants(column[:1].copy(), ticks=ticks).take(
            pa.array(np.zeros(len(column), np.int64))
        )
    array = pa.array(column, mask=(column == MIN) | (column == MAX))
    return array if ticks else array.cast(STAMP)


def late_columns(*, ticks: bool) -> list[tuple[str, pa.DataType]]:
    """What stands in the late output after the columns of the row."""
    when = pa.int64() if ticks else STAMP
    windows = pa.list_(pa.struct([("window_start", when), ("window_end", when)]))
    texts = [("class", pa.string()), ("reason", pa.string()), ("detail", pa.string())]
    return [*texts, ("watermark", when), ("windows", windows), ("emitted_at", when)]


def late_table(columns: dict[str, pa.Array], rows: LateRows, *, ticks: bool) -> pa.Table:
    """Late rows with the columns of their own, and after them what is said of them."""
    n = len(rows)
    told = {
        "class": rows.lateness,
        "reason": repeat(rows.reason, n, pa.string()),
        "detail": rows.detail,
        "watermark": instants(np.full(n, rows.watermark), ticks=ticks),
        "windows": _windows(rows.starts, rows.ends, ticks=ticks),
        "emitted_at": repeat(rows.emitted_at, n, pa.int64()).cast(pa.int64() if ticks else STAMP),
    }
    return pa.table({**columns, **told})


def _windows(starts: pa.ListArray, ends: pa.ListArray, *, ticks: bool) -> pa.Array:
    bounds = [
        instants(np.asarray(column.flatten()).astype(np.int64), ticks=ticks)
        for column in (starts, ends)
    ]
    return pa.ListArray.from_arrays(
        starts.offsets, pa.StructArray.from_arrays(bounds, ["window_start", "window_end"])
    )
