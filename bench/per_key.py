"""Per-key watermarks against one watermark for all keys, on the same rows."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.operators.aggregate.operator import WindowedAggregate
from tidegate.spec import aggregates
from tidegate.spec.operator import AggregateSpec, Input
from tidegate.spec.triggers import AfterCount, AfterWatermark, Trigger
from tidegate.spec.watermarks import Bounded, PerKey, Watermarks
from tidegate.spec.windows import Tumbling
from tidegate.state.memory import MemoryStore

ROWS = 1_000_000
_SECOND = 1_000_000
_DELIVERIES = 10
_MINUTES = 10
_DISORDER = 2 * _SECOND
_KEYS_PER_ROW = 10
_NEVER = AfterWatermark(AfterCount(1 << 40))
"""An early trigger that never fires: it keeps windows in cells, as per-key watermarks do."""
_PEERS: dict[str, Trigger | None] = {
    "one watermark for all keys, windows in slices": None,
    "one watermark for all keys, windows in cells": _NEVER,
}


@dataclass(frozen=True)
class Compared:
    """Seconds with a watermark per key and with one watermark for all keys."""

    rows: int
    keys: int
    seconds: float
    events_per_second: float
    peer: str
    peer_seconds: float
    ratio: float

    def to_dict(self) -> dict[str, Any]:
        return {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in {"name": "per_key", **asdict(self)}.items()
        }


def compare(rows: int = ROWS, turns: int = 3) -> Iterator[Compared]:
    """Compare with each peer; the best of `turns` turns counts."""
    keys = max(1, rows // _KEYS_PER_ROW)
    tables = deliveries(rows, keys)
    floor = _MINUTES * 60 * _SECOND
    ours = min(_seconds(PerKey(_DISORDER, floor), None, tables) for _ in range(turns))
    for peer, trigger in _PEERS.items():
        theirs = min(_seconds(Bounded(_DISORDER), trigger, tables) for _ in range(turns))
        yield Compared(rows, keys, ours, rows / ours, peer, theirs, ours / theirs)


def deliveries(rows: int, keys: int) -> list[pa.Table]:
    """Ten minutes of slightly disordered events of random keys."""
    random = np.random.default_rng(7)
    times = np.arange(rows) * (_MINUTES * 60 * _SECOND) // rows + random.integers(
        0, _DISORDER, rows
    )
    key, value = random.integers(0, keys, rows), random.integers(0, 100, rows)
    whole = pa.table({"ts": pa.array(times, pa.timestamp("us")), "k": key, "v": value})
    size = -(-rows // _DELIVERIES)
    return [whole.slice(start, size) for start in range(0, rows, size)]


def _seconds(watermark: Watermarks, trigger: Trigger | None, tables: list[pa.Table]) -> float:
    """Seconds that an operator takes for all deliveries and `finish`."""
    wanted = (("n", aggregates.count()), ("total", aggregates.sum("v")))
    spec = AggregateSpec(
        Input("ts", ("k",), watermark=watermark), Tumbling(60 * _SECOND), wanted, trigger
    )
    operator = WindowedAggregate(spec, MemoryStore(), now=_MINUTES * 60 * _SECOND)
    gc.collect()
    start = time.perf_counter()
    for table in tables:
        operator.process(table)
    operator.finish()
    return time.perf_counter() - start


HEAD = (
    f"{'rows':>12}{'keys':>10}{'per key':>10}{'events/s':>13}{'peer':>10}{'ratio':>8}  "
    f" against\n{'':>12}{'':>10}{'s':>10}{'':>13}{'s':>10}"
)


def line(found: Compared) -> str:
    """One row of the printed table."""
    return (
        f"{found.rows:>12,}{found.keys:>10,}{found.seconds:>10.3f}{found.events_per_second:>13,.0f}"
        f"{found.peer_seconds:>10.3f}{found.ratio:>8.2f}"
        f"   {found.peer}"
    )
