"""Metrics of a shard in a batch: numbers that Spark aggregates, table rows, and Prometheus text."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from tidegate.instants import MAX, MIN
from tidegate.operators.progress import late_by_reason

CLASSES = ("on_time", "mildly_late", "very_late", "future", "unreadable", "duplicates")
PANES = ("panes_early", "panes_on_time", "panes_late", "retractions")
COUNTERS = ("events", *CLASSES, "late_rows", *PANES, "windows_opened", "windows_closed")
"""Counted per batch; summed over shards."""
GAUGES = ("windows_open", "state_bytes", "pending_output_bytes")
"""Current values; summed over shards."""
INSTANTS = ("watermark", "newest_event", "clock")
"""Equal in all shards, except for the newest event; null if undefined."""
STRUCT = ", ".join(f"{name}: bigint" for name in (*COUNTERS, *GAUGES, *INSTANTS))
"""The fields of the struct column with the numbers, as Spark DDL."""
_STAMP = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [("batch_id", pa.int64()), ("shard", pa.int32())]
    + [(name, pa.int64()) for name in (*COUNTERS, *GAUGES)]
    + [(name, _STAMP) for name in INSTANTS]
    + [("watermark_lag_seconds", pa.float64()), ("late_by_reason", pa.string())]
)
"""The columns of the metrics table."""


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
    return {
        name: table.column(name).cast(pa.int64())[0].as_py()
        for name in (*COUNTERS, *GAUGES, *INSTANTS)
    }


def batch_numbers(
    before: Mapping[str, int],
    after: Mapping[str, int],
    gauges: Mapping[str, int],
    instants: Mapping[str, int],
) -> dict[str, int | None]:
    """The numbers of one batch, from the counters before and after it."""
    numbers: dict[str, int | None] = {
        name: after.get(name, 0) - before.get(name, 0) for name in COUNTERS
    }
    numbers.update({name: gauges.get(name, 0) for name in GAUGES})
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
    shard: int,
) -> pa.Table:
    """The numbers of one batch as a row of the metrics table."""
    clock, watermark = numbers["clock"], numbers["watermark"]
    reasons = late_by_reason(Counter(after) - Counter(before))
    values: dict[str, Any] = {
        "batch_id": batch,
        "shard": shard,
        **numbers,
        "watermark_lag_seconds": (
            None if clock is None or watermark is None else (clock - watermark) / 1e6
        ),
        "late_by_reason": json.dumps(reasons),
    }
    return pa.table(
        {field.name: pa.array([values[field.name]], field.type) for field in SCHEMA}, schema=SCHEMA
    )


def sum_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The rows of the metrics table of all shards of one batch as one."""
    total: dict[str, Any] = {
        name: sum(row[name] or 0 for row in rows) for name in (*COUNTERS, *GAUGES)
    }
    for name, choose in (("watermark", min), ("newest_event", max), ("clock", max)):
        known = [row[name] for row in rows if row[name] is not None]
        total[name] = choose(known) if known else None
    return total


_INSTANT_HELP = {
    "watermark": "Watermark, in seconds since 1970",
    "newest_event": "Time of the newest event, in seconds since 1970",
    "clock": "Clock of the last batch, in seconds since 1970",
}


def prometheus_text(numbers: Mapping[str, Any], labels: Mapping[str, str], *, batch: int) -> str:
    """Numbers as Prometheus text: counters, and gauges for current values and instants."""
    lines: list[str] = []
    label = prometheus_labels(labels)

    def add(name: str, kind: str, text: str, values: Mapping[str, Any]) -> None:
        lines.extend((f"# HELP tidegate_{name} {text}", f"# TYPE tidegate_{name} {kind}"))
        lines.extend(f"tidegate_{name}{{{label}{more}}} {value}" for more, value in values.items())

    add("batch_id", "gauge", "Id of the last batch", {"": batch})
    add("events_total", "counter", "Processed events", {"": numbers["events"]})
    add(
        "rows_total",
        "counter",
        "Rows by class of lateness",
        {f',class="{name}"': numbers[name] for name in CLASSES},
    )
    add("late_rows_total", "counter", "Rows in the late output", {"": numbers["late_rows"]})
    timings = {
        f',timing="{name.removeprefix("panes_")}"': numbers[name]
        for name in PANES
        if name.startswith("panes_")
    }
    add("panes_total", "counter", "Panes by timing", timings)
    add("retractions_total", "counter", "Retracted panes", {"": numbers["retractions"]})
    for name in GAUGES:
        add(name, "gauge", name.replace("_", " ").capitalize(), {"": numbers[name]})
    for name, text in _INSTANT_HELP.items():
        if numbers[name] is not None:
            add(f"{name}_seconds", "gauge", text, {"": _seconds(numbers[name])})
    if numbers["clock"] is not None and numbers["watermark"] is not None:
        lag = _seconds(numbers["clock"]) - _seconds(numbers["watermark"])
        add("watermark_lag_seconds", "gauge", "Watermark lag behind the clock", {"": lag})
    return "\n".join(lines) + "\n"


def prometheus_labels(labels: Mapping[str, str]) -> str:
    """Labels in the syntax of Prometheus text."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _seconds(instant: dt.datetime | int) -> float:
    return instant.timestamp() if isinstance(instant, dt.datetime) else instant / 1e6


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
