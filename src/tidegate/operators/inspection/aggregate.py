"""Inspection of an aggregate: windows, messages, current values and counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.errors import InputError
from tidegate.instants import MAX, MIN, Instant, instant
from tidegate.kernel.frame import Frame, concat_frames, to_arrow, values_of
from tidegate.kernel.groups import Groups
from tidegate.kernel.windows.assigners import Aligned
from tidegate.operators.aggregate.cell_values import payload
from tidegate.operators.aggregate.operator import WindowedAggregate
from tidegate.operators.aggregate.wiring import Wiring
from tidegate.operators.inspection.key_identity import key_identity
from tidegate.operators.progress import PANE_COUNTERS, ROW_COUNTERS, late_by_reason
from tidegate.spec.windows import Axis


class AggregateInspection:
    """Read-only access to the windows, messages, values and counts of an operator."""

    operator: WindowedAggregate

    def _drain(self) -> None:
        """Process buffered messages, so that buffering stays invisible."""

    @property
    def hold(self) -> int | None:
        """The earliest output time of the panes that are still to fire."""
        self._drain()
        return self.operator.hold

    def stats(self) -> dict[str, Any]:
        """Sizes and counters: windows, keys, runs, messages, bytes, events by lateness class,
        panes by timing, late rows by reason.
        """
        self._drain()
        counters = self.operator.progress.counters
        names = (
            *ROW_COUNTERS,
            "dropped_pairs",
            "unfired",
            *PANE_COUNTERS,
            "windows_opened",
            "windows_closed",
            "windows_pushed_out",
        )
        found = {name: counters[name] for name in names}
        found |= {"markers": counters["markers"], **self.operator.watermark_tracker.stats()}
        return {**found, "late_by_reason": late_by_reason(counters), **self._held()}

    def _held(self) -> dict[str, int]:
        wiring = self.operator.wiring
        if wiring is None:
            return dict.fromkeys(
                (
                    "windows",
                    "keys",
                    "cells",
                    "runs",
                    "messages",
                    "bytes",
                    "ids",
                    "counted_keys",
                    "keys_ahead",
                ),
                0,
            )
        cells = self._cells(wiring)
        keys, windows = 0, 0
        if cells is not None:
            keys = Groups.by([cells.ints("key_hash"), cells.ints("key_check")]).n
            windows = Groups.by([cells.ints("start"), cells.ints("end")]).n
        context, opened = wiring.context, wiring.slice_buffer
        return {
            "windows": windows,
            "keys": keys,
            "cells": 0 if cells is None else len(cells),
            "runs": (
                context.cells.runs
                + (opened.slices.runs if opened else 0)
                + (context.messages.runs if context.messages else 0)
            ),
            "messages": context.messages.count if context.messages else 0,
            "bytes": self.operator.nbytes,
            "ids": len(self.operator.ids),
            "counted_keys": len(wiring.ordinals),
            "keys_ahead": 0 if self.operator.keys is None else len(self.operator.keys),
        }

    def _cells(self, wiring: Wiring) -> Frame | None:
        """The cells of all windows: one for each key and window."""
        frames = [f for f in wiring.context.cells.frames() if len(f)]
        if wiring.slice_buffer is not None:
            frames += wiring.slice_buffer.preview()
        return concat_frames(frames) if frames else None

    def peek(
        self, start: Instant | None = None, end: Instant | None = None, *, key: Any = None
    ) -> pa.Table:
        """The current values of the windows that are open or retained and overlap a range.

        `key` selects the windows of one key.
        """
        self._drain()
        wiring = self.operator.wiring
        cells = None if wiring is None else self._selected(wiring, start, end, key)
        if wiring is None or cells is None or not len(cells):
            return pa.table({})
        renderer, names = self.operator.renderer(), self.operator.spec.input.key
        columns = {name: to_arrow(cells[f"k.{name}"]) for name in names}
        columns.update(
            window_start=renderer.instants(cells.ints("start")),
            window_end=renderer.instants(cells.ints("end")),
        )
        return pa.table({**columns, **wiring.cell_values.values(cells)})

    def get_windows(
        self, start: Instant | None = None, end: Instant | None = None, *, key: Any = None
    ) -> list[dict[str, Any]]:
        """The windows that overlap a range, sorted; only those of `key`, if given.

        These are the windows that are open or retained.

        A window that all keys share is listed once, with counts over all keys; sessions are listed
        for each key.
        """
        self._drain()
        wiring = self.operator.wiring
        cells = None if wiring is None else self._selected(wiring, start, end, key)
        if wiring is None or cells is None:
            return []
        return self._describe(cells, per_key=key is not None or not self._shares_windows(wiring))

    def _shares_windows(self, wiring: Wiring) -> bool:
        """Whether all keys have the same windows."""
        return isinstance(wiring.cell_update.assigner, Aligned)

    def _selected(
        self, wiring: Wiring, start: Instant | None, end: Instant | None, key: Any
    ) -> Frame | None:
        """The cells that are not closed and overlap a range, of all keys or of one, sorted."""
        cells = self._cells(wiring)
        if cells is None:
            return None
        low, high = (
            MIN if start is None else self._position(start),
            MAX if end is None else self._position(end),
        )
        wanted = (
            _readable(wiring, cells) & (cells.ints("end") > low) & (cells.ints("start") <= high)
        )
        if key is not None:
            key_hash, key_check = self._identity(wiring, key)
            wanted &= (cells.ints("key_hash") == key_hash) & (cells.ints("key_check") == key_check)
        cells = cells.where(wanted)
        order = np.lexsort((cells.ints("key_hash"), cells.ints("end"), cells.ints("start")))
        return cells.take(order)

    def _describe(self, cells: Frame, *, per_key: bool) -> list[dict[str, Any]]:
        """One dictionary per window, or per window and key; the cells are sorted."""
        identity = ("start", "end", *(("key_hash", "key_check") if per_key else ()))
        groups = Groups.by([cells.ints(name) for name in identity])
        order = np.argsort(groups.firsts)
        firsts = groups.firsts[order]
        shown, renderer = cells.take(firsts), self.operator.renderer()
        names = self.operator.spec.input.key if per_key else ()
        columns: dict[str, list[Any]] = {
            name: values_of(to_arrow(shown[f"k.{name}"])) for name in names
        }
        columns.update(
            window_start=values_of(renderer.instants(shown.ints("start"))),
            window_end=values_of(renderer.instants(shown.ints("end"))),
            count=groups.sum(cells.ints("row_count"))[order].tolist(),
            panes=groups.sum(cells.ints("pane_index"))[order].tolist(),
            offsets=self._window_offsets(shown),
        )
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def _window_offsets(self, cells: Frame) -> list[dict[str, tuple[int, int]]]:
        """The first and last offset by partition of each cell's window."""
        offsets = self.operator.window_offsets
        if offsets is None:
            return [{} for _ in range(len(cells))]
        wiring = self.operator.wiring
        bounds = zip(cells.ints("start").tolist(), cells.ints("end").tolist(), strict=True)
        if wiring is not None and wiring.cell_update.shares_offsets:
            return [offsets.within(start, end, None, None) for start, end in bounds]
        hashes = zip(cells.ints("key_hash").tolist(), cells.ints("key_check").tolist(), strict=True)
        return [
            offsets.within(start, end, key_hash, key_check)
            for (start, end), (key_hash, key_check) in zip(bounds, hashes, strict=True)
        ]

    def get_messages(
        self,
        start: Instant | None = None,
        end: Instant | None = None,
        *,
        start_offset: int | None = None,
        end_offset: int | None = None,
        key: Any = None,
        join_key: Mapping[str, Any] | None = None,
    ) -> pa.Table:
        """The messages from (start, start_offset) to (end, end_offset), both included.

        In windows on offsets and ordinals, start and end are offsets already, and the later start
        and the earlier end count.

        `key` selects one key; `join_key` selects messages with these values in other columns.
        """
        self._drain()
        wiring = self.operator.wiring
        if wiring is None:
            return pa.table({})
        messages = wiring.context.messages
        if messages is None:
            raise InputError(
                "the aggregates of this operator do not need the messages, so none are kept. Hint:"
                " .options(keep_messages=True)"
            )
        low, high = (
            MIN if start is None else self._position(start),
            MAX if end is None else self._position(end),
        )
        key_hashes = None
        if key is not None:
            key_hash, key_check = self._identity(wiring, key)
            key_hashes = np.array([key_hash])
        if messages.layout.position == "offset":
            low = low if start_offset is None else max(low, start_offset)
            high = high if end_offset is None else min(high, end_offset)
            start_offset = end_offset = None
        found = messages.read(
            low, high, start_offset=start_offset, end_offset=end_offset, key_hashes=key_hashes
        )
        if key is not None and len(found):
            found = found.where(found.ints("key_check") == key_check)
        position = found.ints(messages.layout.position)
        found = found.take(np.lexsort((found.ints("offset"), position)))
        table = payload(found)
        for name, value in (join_key or {}).items():
            if name not in table.column_names:
                raise InputError(
                    f"`join_key` names the column `{name}`, but the messages have"
                    f" {', '.join(table.column_names)}"
                )
            mask = [v == value for v in values_of(table.column(name))]
            table = table.filter(pa.array(mask, pa.bool_()))
        return table

    def _position(self, value: Instant) -> int:
        if self.operator.spec.window.axis in (Axis.OFFSET, Axis.ORDINAL) and isinstance(value, int):
            return value
        return instant(value)

    def _identity(self, wiring: Wiring, key: Any) -> tuple[np.uint64, np.uint64]:
        context = wiring.context
        return key_identity(
            key, context.spec.input.key, context.schema, "key columns", context.hasher
        )


def _readable(wiring: Wiring, cells: Frame) -> np.ndarray:
    """Which cells have content: a window that closed without retention is a tombstone."""
    return ~cells.ints("closed") | wiring.context.retains
