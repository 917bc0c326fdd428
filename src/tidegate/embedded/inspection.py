"""Inspection of an embedded aggregate: windows, messages, current values and counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.embedded.rows import key_identity
from tidegate.errors import InputError
from tidegate.instants import MAX, MIN, Instant, instant
from tidegate.kernel.frame import Frame, concat_frames, to_arrow
from tidegate.kernel.groups import Groups
from tidegate.kernel.windows.assigners import Aligned
from tidegate.operators.aggregate.cell_values import payload
from tidegate.operators.aggregate.operator import WindowedAggregate
from tidegate.operators.aggregate.wiring import Wiring
from tidegate.operators.progress import late_by_reason
from tidegate.spec.windows import Axis


class Inspection:
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
            "events",
            "duplicates",
            "on_time",
            "mildly_late",
            "very_late",
            "future",
            "unreadable",
            "late_rows",
            "dropped_pairs",
            "unfired",
        )
        panes = (
            "panes_early",
            "panes_on_time",
            "panes_late",
            "retractions",
            "windows_opened",
            "windows_closed",
            "windows_pushed_out",
        )
        found = {name: counters[name] for name in (*names, *panes)}
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

    def peek(self) -> pa.Table:
        """The current values of all windows that are not closed."""
        self._drain()
        wiring, renderer = self.operator.wiring, self.operator.renderer()
        cells = None if wiring is None else self._cells(wiring)
        if wiring is None or cells is None:
            return pa.table({})
        cells = cells.where(~cells.ints("closed"))
        order = np.lexsort((cells.ints("key_hash"), cells.ints("end"), cells.ints("start")))
        cells = cells.take(order)
        names = self.operator.spec.input.key
        columns = {name: to_arrow(cells[f"k.{name}"]) for name in names}
        columns.update(
            window_start=renderer.instants(cells.ints("start")),
            window_end=renderer.instants(cells.ints("end")),
        )
        return (
            pa.table({**columns, **wiring.cell_values.values(cells)})
            if len(cells)
            else pa.table({})
        )

    def get_windows(
        self, start: Instant | None = None, end: Instant | None = None, *, key: Any = None
    ) -> list[dict[str, Any]]:
        """The windows that overlap a range, sorted; only those of `key`, if given.

        A window that all keys share is listed once, with counts over all keys; sessions are listed
        for each key.
        """
        self._drain()
        wiring = self.operator.wiring
        cells = None if wiring is None else self._cells(wiring)
        if wiring is None or cells is None:
            return []
        low, high = (
            MIN if start is None else self._position(start),
            MAX if end is None else self._position(end),
        )
        wanted = ~cells.ints("closed") & (cells.ints("end") > low) & (cells.ints("start") <= high)
        key_hash = key_check = None
        if key is not None:
            key_hash, key_check = self._identity(wiring, key)
            wanted &= (cells.ints("key_hash") == key_hash) & (cells.ints("key_check") == key_check)
        cells = cells.where(wanted)
        per_key = key is not None or not isinstance(wiring.cell_update.assigner, Aligned)
        order = np.lexsort((cells.ints("key_hash"), cells.ints("end"), cells.ints("start")))
        return self._describe(cells.take(order), per_key=per_key)

    def _describe(self, cells: Frame, *, per_key: bool) -> list[dict[str, Any]]:
        renderer, names = self.operator.renderer(), self.operator.spec.input.key if per_key else ()
        starts, ends = (
            renderer.instants(cells.ints("start")).to_pylist(),
            renderer.instants(cells.ints("end")).to_pylist(),
        )
        keys = [to_arrow(cells[f"k.{name}"]).to_pylist() for name in names]
        found: dict[tuple[Any, ...], dict[str, Any]] = {}
        for i in range(len(cells)):
            raw = (int(cells.ints("start")[i]), int(cells.ints("end")[i]))
            identity = (
                (*raw, int(cells.ints("key_hash")[i]), int(cells.ints("key_check")[i]))
                if per_key
                else raw
            )
            row = found.get(identity)
            if row is None:
                row = {name: keys[k][i] for k, name in enumerate(names)}
                row.update(
                    window_start=starts[i],
                    window_end=ends[i],
                    count=0,
                    panes=0,
                    offsets=self._offsets(raw, cells, i),
                )
                found[identity] = row
            row["count"] += int(cells.ints("row_count")[i])
            row["panes"] += int(cells.ints("pane_index")[i])
        return list(found.values())

    def _offsets(self, window: tuple[int, int], cells: Frame, i: int) -> dict[str, tuple[int, int]]:
        if self.operator.window_offsets is None:
            return {}
        if self.operator.wiring is not None and self.operator.wiring.cell_update.shares_offsets:
            return self.operator.window_offsets.within(*window, None, None)
        return self.operator.window_offsets.within(
            *window, int(cells.ints("key_hash")[i]), int(cells.ints("key_check")[i])
        )

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
        found = messages.read(
            low, high, start_offset=start_offset, end_offset=end_offset, key_hashes=key_hashes
        )
        if key is not None:
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
            mask = [v == value for v in table.column(name).to_pylist()]
            table = table.filter(pa.array(mask, pa.bool_()))
        return table

    def _position(self, value: Instant) -> int:
        if self.operator.spec.window.axis in (Axis.OFFSET, Axis.ORDINAL) and isinstance(value, int):
            return value
        return instant(value)

    def _identity(self, wiring: Wiring, key: Any) -> tuple[np.uint64, np.uint64]:
        return key_identity(key, self.operator.spec.input.key, wiring.context.schema, "key columns")
