"""A summary of the state of a chain of operators: its sizes, and the windows that complete next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidegate.instants import MAX, MIN
from tidegate.kernel.frame import concat_frames
from tidegate.kernel.groups import Groups
from tidegate.kernel.storage.keyed_table import KeyedTable
from tidegate.operators.chain import Operator
from tidegate.operators.join.operator import WindowedJoin
from tidegate.spec.join import SIDES

LISTED = 10
"""The number of windows in a summary."""
_COUNTED = 1 << 16
"""A summary lists the windows of single keys only up to this number of cells."""


def summary(operators: Sequence[Operator]) -> dict[str, Any]:
    """A summary of the state, without a full scan: its sizes, and the next windows to complete.

    It describes the last operator, and the rows of both sides if the first is a join.
    """
    first, last = operators[0], operators[-1]
    rows = (
        {SIDES[side.number]: len(side.buffer) for side in first.sides}
        if isinstance(first, WindowedJoin)
        else {}
    )
    found: dict[str, Any] = {"windows": [], "windows_open": 0, "cells": 0}
    if isinstance(last, WindowedJoin) or last.wiring is None:
        return {**found, "messages": sum(rows.values()), "rows": rows}
    wiring = last.wiring
    windows, shared = (
        wiring.slice_buffer.waiting(LISTED, 0) if wiring.slice_buffer is not None else ([], 0)
    )
    if len(wiring.context.cells) <= _COUNTED:
        windows += _first_windows(wiring.context.cells, wiring.context.progress.watermark)
    next_ones = sorted(windows, key=lambda window: (window[0][1], window[0][0]))[:LISTED]
    return {
        "windows": [{"start": start, "end": end, "keys": keys} for (start, end), keys in next_ones],
        # All keys share an open window in the slice buffer; fired windows are counted per key.
        "windows_open": shared + len(wiring.context.cells),
        "cells": len(wiring.context.cells),
        "messages": 0 if wiring.context.messages is None else wiring.context.messages.count,
        "rows": rows,
    }


def _first_windows(cells: KeyedTable, watermark: int) -> list[tuple[tuple[int, int], int | None]]:
    """The first incomplete windows that are stored per key, with their number of keys."""
    frames = [frame for frame in cells.frames(("start", "end", "closed")) if len(frame)]
    if not frames:
        return []
    whole = concat_frames(frames)
    # Complete windows are kept for late events.
    whole = whole.where(~whole.ints("closed") & (whole.ints("end") > watermark))
    # With sessions every cell may be a window of its own: keep only the first ends before grouping.
    last, later = MIN, whole.ints("end")
    for _ in range(LISTED):
        last = int(later.min(initial=MAX))
        later = later[later > last]
    whole = whole.where(whole.ints("end") <= last)
    groups = Groups.by([whole.ints("start"), whole.ints("end")])
    starts, ends = (whole.ints(name)[groups.firsts].tolist() for name in ("start", "end"))
    return list(zip(zip(starts, ends, strict=True), groups.counts.tolist(), strict=True))
