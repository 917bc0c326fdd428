"""Inspection: looking into an operator without changing it: windows, messages, current values,
counts, and why there is no output.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.embedded.clock import Clock
from tidegate.embedded.result_queue import ResultQueue
from tidegate.errors import InputError
from tidegate.instants import MAX, MIN, Instant, instant
from tidegate.kernel.frame import Frame, concat_frames, to_arrow
from tidegate.kernel.groups import Groups
from tidegate.kernel.keys import identify
from tidegate.kernel.windows.assigners import Aligned
from tidegate.operators.aggregate.cell_values import payload
from tidegate.operators.aggregate.operator import WindowedAggregate
from tidegate.operators.aggregate.results import Results
from tidegate.operators.aggregate.wiring import Parts
from tidegate.operators.explain.explanation import explain, worded
from tidegate.operators.explain.facts import Explanation
from tidegate.operators.ingest.watermark_tracking import PausedSource
from tidegate.operators.progress import late_by_reason
from tidegate.spec.windows import Axis


class Inspection:
    """What can be asked of an embedded operator."""

    operator: WindowedAggregate
    _outlet: ResultQueue[Results]
    _clock: Clock

    def _drain(self) -> None:
        """Take what is buffered, so that nobody sees the buffering."""

    @property
    def watermark(self) -> int | None:
        """The watermark, or None while there is none."""
        self._drain()
        found = self.operator.progress.watermark
        return None if found == MIN else found

    @property
    def output_watermark(self) -> int:
        """What may be promised downstream."""
        self._drain()
        return self.operator.output_watermark

    @property
    def hold(self) -> int | None:
        """The earliest output time of the panes that are still owed."""
        self._drain()
        return self.operator.hold

    def explain_watermark(self) -> Explanation:
        """Why there is no output: who holds the watermark back and since when, what is idle, and
        what each window waits for.

        Print it to read sentences; `to_dict` gives the same as data.
        """
        self._drain()
        return worded(explain(self.operator), **self._runtime())

    def _runtime(self) -> dict[str, Any]:
        """Facts for an explanation that only the runtime knows."""
        refused, waiting = self._outlet.waiting, self._outlet.unfetched
        return {
            "machine_clock": self._clock.at(None, 0) if self._clock.is_read else None,
            "waiting_panes": sum(results.panes.num_rows for results in waiting),
            "waiting_late": sum(results.late.num_rows for results in waiting),
            "refused_rows": sum(len(results) for results in refused),
            "is_refused": self._outlet.is_refused,
        }

    def paused(self) -> list[PausedSource]:
        """The sources that run too far ahead of the slowest and should not be read for now."""
        self._drain()
        return self.operator.watermark_tracker.paused()

    def resume_offsets(self) -> dict[str, int]:
        """By partition, the first offset to deliver after a restart."""
        self._drain()
        return self.operator.resume_offsets()

    def stats(self) -> dict[str, Any]:
        """What is held and what was counted: windows, keys, runs, messages, bytes, events by class,
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
        parts = self.operator.parts
        if parts is None:
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
        cells = self._cells(parts)
        keys, windows = 0, 0
        if cells is not None:
            keys = Groups.by([cells.ints("key_hash"), cells.ints("key_check")]).n
            windows = Groups.by([cells.ints("start"), cells.ints("end")]).n
        core, opened = parts.core, parts.slice_buffer
        return {
            "windows": windows,
            "keys": keys,
            "cells": 0 if cells is None else len(cells),
            "runs": (
                core.cells.runs
                + (opened.slices.runs if opened else 0)
                + (core.messages.runs if core.messages else 0)
            ),
            "messages": core.messages.count if core.messages else 0,
            "bytes": self.operator.nbytes,
            "ids": len(self.operator.ids),
            "counted_keys": len(parts.ordinals),
            "keys_ahead": 0 if self.operator.keys is None else len(self.operator.keys),
        }

    def _cells(self, parts: Parts) -> Frame | None:
        """All cells, of complete and of open windows."""
        frames = [f for f in parts.core.cells.live() if len(f)]
        if parts.slice_buffer is not None:
            frames += parts.slice_buffer.preview()
        return concat_frames(frames) if frames else None

    def peek(self) -> pa.Table:
        """The current values of all windows that are not closed."""
        self._drain()
        parts, renderer = self.operator.parts, self.operator.renderer()
        cells = None if parts is None else self._cells(parts)
        if parts is None or cells is None:
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
            pa.table({**columns, **parts.contents.values(cells, tell=False)})
            if len(cells)
            else pa.table({})
        )

    def get_windows(
        self, start: Instant | None = None, end: Instant | None = None, *, key: Any = None
    ) -> list[dict[str, Any]]:
        """The windows that overlap a range, sorted; those of one key where a key is given.

        Windows that are the same for all keys come once, with counts over all keys; sessions come
        once for each key.
        """
        self._drain()
        parts = self.operator.parts
        cells = None if parts is None else self._cells(parts)
        if parts is None or cells is None:
            return []
        low, high = (
            MIN if start is None else self._position(start),
            MAX if end is None else self._position(end),
        )
        wanted = ~cells.ints("closed") & (cells.ints("end") > low) & (cells.ints("start") <= high)
        key_hash = key_check = None
        if key is not None:
            key_hash, key_check = self._identity(parts, key)
            wanted &= (cells.ints("key_hash") == key_hash) & (cells.ints("key_check") == key_check)
        cells = cells.where(wanted)
        per_key = key is not None or not isinstance(parts.cell_update.assigner, Aligned)
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
            row["count"] += int(cells.ints("n")[i])
            row["panes"] += int(cells.ints("index")[i])
        return list(found.values())

    def _offsets(self, window: tuple[int, int], cells: Frame, i: int) -> dict[str, tuple[int, int]]:
        if self.operator.metadata is None:
            return {}
        if self.operator.parts is not None and self.operator.parts.cell_update.shares_offsets:
            return self.operator.metadata.within(*window, None, None)
        return self.operator.metadata.within(
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
        """The messages from (start, start_offset) to (end, end_offset), both included; a session
        key and a join key narrow them.
        """
        self._drain()
        parts = self.operator.parts
        if parts is None:
            return pa.table({})
        messages = parts.core.messages
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
            key_hash, key_check = self._identity(parts, key)
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

    def _identity(self, parts: Parts, key: Any) -> tuple[np.uint64, np.uint64]:
        names = self.operator.spec.input.key
        values = (
            [key.get(name) for name in names]
            if isinstance(key, Mapping)
            else list(key)
            if isinstance(key, tuple)
            else [key]
        )
        if len(values) != len(names) or (isinstance(key, Mapping) and set(key) != set(names)):
            raise InputError(
                f"the key has the columns {list(names)}, got {key!r}. Hint: give a value, a tuple"
                " or a dictionary"
            )
        try:
            columns = [
                pa.array([v], parts.core.schema.field(n).type)
                for n, v in zip(names, values, strict=True)
            ]
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as unfit:
            raise InputError(
                f"the key {key!r} does not fit the key columns {list(names)}: {unfit}"
            ) from unfit
        key_hash, key_check = identify(columns, 1)
        return key_hash[0], key_check[0]
