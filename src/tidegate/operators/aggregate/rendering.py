"""The columns of panes: keys, window, timing, index and aggregates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from tidegate.kernel.frame import Column, Frame, is_constant, is_untyped, squeezed, to_arrow
from tidegate.kernel.keys import FIXED, is_word, mix
from tidegate.operators.output import TIMINGS, LateRows, Output
from tidegate.operators.results import (
    STAMP,
    Renderer,
    Results,
    hex_text,
    instants,
    late_columns,
    late_name,
    late_table,
    words_of,
)
from tidegate.spec.operator import AggregateSpec


@dataclass(frozen=True)
class PaneRenderer(Renderer):
    """Turns the output of a windowed aggregate into results."""

    spec: AggregateSpec
    ticks: bool
    schema: pa.Schema | None
    result_types: dict[str, pa.DataType]

    def by_window(self, output: Output) -> list[Results]:
        """One result for each window, in the order of first rows, then one with all late rows."""
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
        """Integers or timestamps; the beginning and the end of time are null."""
        return instants(column, ticks=self.ticks)

    def _panes(self, frame: Frame) -> pa.Table:
        columns: dict[str, Column | pa.Array] = {
            name: frame[f"k.{name}"] for name in self.spec.input.key
        }
        columns.update(
            window_start=self.instants(frame.ints("start")),
            window_end=self.instants(frame.ints("end")),
        )
        columns["op"] = words_of(("-", "+"), squeezed((frame.ints("op") > 0).astype(np.int8)))
        columns["timing"] = words_of(TIMINGS, frame.ints("timing"))
        columns.update(
            pane=frame.ints("pane"),
            pane_nonspeculative=frame.ints("nonspeculative_index"),
            is_first=frame.ints("first"),
            is_last=frame.ints("last"),
        )
        columns.update({name: self._shown(name, frame) for name, _ in self.spec.aggregates})
        columns["time"] = self.instants(frame.ints("time"))
        columns["watermark"] = self.instants(frame.ints("watermark"))
        columns["emitted_at"] = self.instants(frame.ints("emitted_at"))
        columns["pane_id"] = pane_ids(frame, self.spec.input.key)
        return pa.table({name: to_arrow(column) for name, column in columns.items()})

    def _shown(self, name: str, frame: Frame) -> Column:
        """The results of an aggregate in the type that is known of them so far."""
        values, kind = frame[f"a.{name}"], self.result_types.get(name)
        if kind is None or not is_untyped(kind):
            return values
        # There is nothing but nulls in the parts without a type.
        return pa.array(to_arrow(values).to_pylist(), kind)

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


def pane_ids(frame: Frame, key: Sequence[str]) -> pa.Array:
    """128-bit ids of key, window, index and op: a replayed pane has the same id.

    They do not depend on the secret of the state: the same input in a new state has the same ids.
    """
    words = [frame.ints(name) for name in ("start", "end", "pane", "op")]
    # All panes of one window and index share these words: mix them once, not for each row.
    alike = all(is_constant(word) for word in words) and len(frame) > 0
    pane = np.zeros(1 if alike else len(frame), np.uint64)
    for word in words:
        pane = mix(pane ^ (word[:1] if alike else word).astype(np.int64).view(np.uint64))
    keys = [to_arrow(frame[f"k.{name}"]) for name in key]
    if not keys or (len(keys) == 1 and is_word(keys[0].type)):
        # The identities of such keys depend on no secret.
        key_hash, key_check = frame.ints("key_hash"), frame.ints("key_check")
    else:
        key_hash, key_check = FIXED.identify(keys, len(frame))
    first = mix(key_hash ^ pane)
    second = mix(key_check + mix(pane ^ key_hash))
    return hex_text(np.column_stack([first, second]).view(np.uint8).reshape(len(frame), 16))
