"""Metrics: what a shard counted in a batch, as numbers that Spark can add up and as rows that
people can keep.
"""

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
COUNTS = ("events", *CLASSES, "late_rows", *PANES, "windows_opened", "windows_closed")
"""Counted anew in every batch, and added up over shards."""
HELD = ("windows_open", "state_bytes", "waiting_bytes")
"""How much there is, added up over shards."""
INSTANTS = ("watermark", "newest", "clock")
"""The same in all shards but for the newest event; null while there is none."""
STRUCT = ", ".join(f"{name}: bigint" for name in (*COUNTS, *HELD, *INSTANTS))
"""The numbers as a column of Spark."""
_STAMP = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [("batch_id", pa.int64()), ("shard", pa.int32())]
    + [(name, pa.int64()) for name in (*COUNTS, *HELD)]
    + [(name, _STAMP) for name in INSTANTS]
    + [("watermark_lag_seconds", pa.float64()), ("late_by_reason", pa.string())]
)


def parted(counters: Mapping[str, int], *, follows: bool, is_followed: bool) -> Counter[str]:
    """What a chain tells of its counts: where a key changes, the first chain tells what came in and
    the last one what came out, so all add up.
    """
    hidden = (("events", *CLASSES) if follows else ()) + (
        (*PANES, "windows_opened", "windows_closed") if is_followed else ()
    )
    return Counter({name: count for name, count in counters.items() if name not in hidden})


def numbers_of(table: pa.Table) -> dict[str, int | None]:
    """The numbers of a row of the metrics table, as Spark adds them up."""
    return {
        name: table.column(name).cast(pa.int64())[0].as_py() for name in (*COUNTS, *HELD, *INSTANTS)
    }


def measured(
    before: Mapping[str, int],
    after: Mapping[str, int],
    held: Mapping[str, int],
    instants: Mapping[str, int],
) -> dict[str, int | None]:
    """The numbers of one batch, from what was counted until then and until now."""
    found: dict[str, int | None] = {
        name: after.get(name, 0) - before.get(name, 0) for name in COUNTS
    }
    found.update({name: held.get(name, 0) for name in HELD})
    found.update(
        {name: None if instants[name] in (MIN, MAX) else instants[name] for name in INSTANTS}
    )
    return found


def row(
    numbers: Mapping[str, int | None],
    before: Mapping[str, int],
    after: Mapping[str, int],
    *,
    batch: int,
    shard: int,
) -> pa.Table:
    """The same as a row of the metrics table."""
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


def summed(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows of the metrics table, of all shards of one batch, as one."""
    found: dict[str, Any] = {
        name: sum(given[name] or 0 for given in rows) for name in (*COUNTS, *HELD)
    }
    for name, choose in (("watermark", min), ("newest", max), ("clock", max)):
        known = [given[name] for given in rows if given[name] is not None]
        found[name] = choose(known) if known else None
    return found


_TIMES = {
    "watermark": "The watermark, in seconds since 1970",
    "newest": "The newest event",
    "clock": "The clock of the last batch",
}


def exposition(numbers: Mapping[str, Any], labels: Mapping[str, str], *, batch: int) -> str:
    """Numbers as Prometheus text: counters by class and timing, gauges for what is held and for
    instants.
    """
    lines: list[str] = []
    label = labelled(labels)

    def tell(name: str, kind: str, text: str, values: Mapping[str, Any]) -> None:
        lines.extend((f"# HELP tidegate_{name} {text}", f"# TYPE tidegate_{name} {kind}"))
        lines.extend(f"tidegate_{name}{{{label}{more}}} {value}" for more, value in values.items())

    tell("batch", "gauge", "The last batch", {"": batch})
    tell("events_total", "counter", "Events that were taken", {"": numbers["events"]})
    tell(
        "rows_total",
        "counter",
        "Rows by class of lateness",
        {f',class="{name}"': numbers[name] for name in CLASSES},
    )
    tell("late_rows_total", "counter", "Rows in the late output", {"": numbers["late_rows"]})
    timings = {
        f',timing="{name.removeprefix("panes_")}"': numbers[name]
        for name in PANES
        if name.startswith("panes_")
    }
    tell("panes_total", "counter", "Panes by timing", timings)
    tell("retractions_total", "counter", "Panes that were taken back", {"": numbers["retractions"]})
    for name in HELD:
        tell(name, "gauge", name.replace("_", " ").capitalize(), {"": numbers[name]})
    for name, text in _TIMES.items():
        if numbers[name] is not None:
            tell(f"{name}_seconds", "gauge", text, {"": _seconds(numbers[name])})
    if numbers["clock"] is not None and numbers["watermark"] is not None:
        lag = _seconds(numbers["clock"]) - _seconds(numbers["watermark"])
        tell(
            "watermark_lag_seconds", "gauge", "How far the watermark is behind the clock", {"": lag}
        )
    return "\n".join(lines) + "\n"


def labelled(labels: Mapping[str, str]) -> str:
    """Labels as Prometheus text has them."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _seconds(instant: dt.datetime | int) -> float:
    return instant.timestamp() if isinstance(instant, dt.datetime) else instant / 1e6


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
