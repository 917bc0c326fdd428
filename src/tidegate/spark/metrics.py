"""Metrics of a shard in a batch: numbers that Spark aggregates, and rows of a table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidegate.instants import MAX, MIN
from tidegate.operators.progress import REPORTED, late_by_reason

CLASSES = REPORTED
PANES = ("panes_early", "panes_on_time", "panes_late", "retractions")
COUNTERS = ("events", *CLASSES, "late_rows", *PANES, "windows_opened", "windows_closed")
"""Counted per batch; summed over shards."""
GAUGES = ("windows_open", "state_bytes", "pending_output_bytes")
"""Current values; summed over shards."""
CHANGES = tuple(f"{name}_change" for name in GAUGES)
"""How much current values have changed since the last call of a shard; summed over shards.

A batch without rows calls only the shards with a timer that is due, or none.
"""
SHARDS = "shards"
"""The number of shards that a batch has called, over all stages."""
INSTANTS = ("watermark", "newest_event", "clock")
"""Equal in all shards, except for the newest event; null if undefined."""
NUMBERS = (*COUNTERS, *GAUGES, *CHANGES, SHARDS, *INSTANTS)
STRUCT = ", ".join(f"{name}: bigint" for name in NUMBERS)
"""The fields of the struct column with the numbers, as Spark DDL."""
_STAMP = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [("batch_id", pa.int64()), ("operator", pa.int32()), ("shard", pa.int32())]
    + [(name, pa.int64()) for name in (*COUNTERS, *GAUGES)]
    + [(name, _STAMP) for name in INSTANTS]
    + [("watermark_lag_seconds", pa.float64()), ("late_by_reason", pa.string())]
)
"""The columns of the metrics table."""
_ROW = pa.schema([*SCHEMA, *((name, pa.int64()) for name in (*CHANGES, SHARDS))])
"""The columns of a row on its way to the last operator of the query."""


def chain_counters(
    counters: Mapping[str, int], *, is_downstream: bool, has_downstream: bool
) -> Counter[str]:
    """The counters that a chain reports, so that the sum over chained stages is right.

    The first stage reports the input, the last one the panes and windows, and all report late rows.
    """
    hidden = (("events", *CLASSES) if is_downstream else ()) + (
        (*PANES, "windows_opened", "windows_closed") if has_downstream else ()
    )
    return Counter({name: count for name, count in counters.items() if name not in hidden})


def row_numbers(table: pa.Table) -> dict[str, int | None]:
    """The numbers of a row of the metrics table."""
    return {name: table.column(name).cast(pa.int64())[0].as_py() for name in NUMBERS}


@dataclass(frozen=True)
class Gauges:
    """The current values of a shard at the end of a call."""

    now: Mapping[str, int] = field(default_factory=dict)
    before: Mapping[str, int] = field(default_factory=dict)
    """At the end of the call before it."""
    in_batch: Mapping[str, int] | None = None
    """At the end of an earlier call in the same batch; None without one."""

    def numbers(self) -> dict[str, int]:
        """The values and changes, so that their sums over all calls of a batch are right."""
        former = self.in_batch or {}
        return {
            **{name: self.now.get(name, 0) - former.get(name, 0) for name in GAUGES},
            **{
                change: self.now.get(name, 0) - self.before.get(name, 0)
                for name, change in zip(GAUGES, CHANGES, strict=True)
            },
            SHARDS: int(self.in_batch is None),
        }


def batch_numbers(
    before: Mapping[str, int],
    after: Mapping[str, int],
    gauges: Gauges,
    instants: Mapping[str, int],
) -> dict[str, int | None]:
    """The numbers of one call, from the counters before and after it."""
    numbers: dict[str, int | None] = {
        name: after.get(name, 0) - before.get(name, 0) for name in COUNTERS
    }
    numbers.update(gauges.numbers())
    numbers.update(
        {name: None if instants[name] in (MIN, MAX) else instants[name] for name in INSTANTS}
    )
    return numbers


def metrics_row(
    numbers: Mapping[str, int | None],
    before: Mapping[str, int],
    after: Mapping[str, int],
    *,
    batch: int,
    operator: int,
    shard: int,
) -> pa.Table:
    """The numbers of one call as a row of the metrics table."""
    clock, watermark = numbers["clock"], numbers["watermark"]
    reasons = late_by_reason(Counter(after) - Counter(before))
    values: dict[str, Any] = {
        "batch_id": batch,
        "operator": operator,
        "shard": shard,
        **numbers,
        "watermark_lag_seconds": (
            None if clock is None or watermark is None else (clock - watermark) / 1e6
        ),
        "late_by_reason": json.dumps(reasons),
    }
    return pa.table({one.name: pa.array([values[one.name]], one.type) for one in _ROW}, schema=_ROW)
