"""Watermark trackers of tests, and short calls that release their marks."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from tidegate.operators.ingest.watermark_tracking import ReleasedMarks, WatermarkTracker
from tidegate.spec.operator import Input, Options, TimeColumn
from tidegate.spec.watermarks import Watermarks

Row = dict[str, Any]
COLUMNS = {
    "ts": pa.int64(),
    "p": pa.string(),
    "wm": pa.int64(),
    "m": pa.bool_(),
    "writer": pa.string(),
    "ts2": pa.int64(),
}
FAR = 10**9


def table(*rows: Row) -> pa.Table:
    return pa.table(
        {name: pa.array([row.get(name) for row in rows], kind) for name, kind in COLUMNS.items()}
    )


def watermark_tracker(*specs: Watermarks | Input, now: int = 0, **options: Any) -> WatermarkTracker:
    inputs = [
        spec if isinstance(spec, Input) else Input("ts", partition="p", watermark=spec)
        for spec in specs
    ]
    return WatermarkTracker(inputs, Options(**{"future_tolerance": FAR, **options}), now=now)


def told(
    found: WatermarkTracker, ordinal: int = 0, now: int | None = None, **times: int | None
) -> ReleasedMarks:
    """A delivery with one row for each partition."""
    found.tick(found.now if now is None else now)
    found.observe_table(ordinal, table(*({"ts": time, "p": name} for name, time in times.items())))
    return found.release()


def ticked(found: WatermarkTracker, now: int) -> ReleasedMarks:
    found.tick(now)
    return found.release()


def after(found: WatermarkTracker, verb: str, *args: Any, **more: Any) -> ReleasedMarks:
    getattr(found, verb)(*args, **more)
    return found.release()


def again(found: WatermarkTracker, now: int | None = None) -> WatermarkTracker:
    fresh = WatermarkTracker(found._inputs, found._options, now=found.now if now is None else now)
    fresh.restore(json.loads(json.dumps(found.save())))
    return fresh


def two_times(first: Watermarks, second: Watermarks, key: int = 1) -> Input:
    return Input("ts", partition="p", watermark=first, others=(TimeColumn("ts2", second, key),))
