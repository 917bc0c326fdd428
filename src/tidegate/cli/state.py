"""`tidegate state`: shows the state of a query from its checkpoint, while it runs or afterwards."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from tidegate.cli.stderr_filter import filtered_stderr
from tidegate.cli.tables import table, when
from tidegate.instants import format_duration
from tidegate.spark.environment.session import running_session, session
from tidegate.spark.query.state_reader import (
    OperatorStatus,
    QueryStatus,
    check_checkpoint,
    read_state,
)

_SOURCES = 20
"""Maximum number of sources shown; `--json` has all."""
_BOUNDS = {"within": ("before", "after"), "as_of": ("tolerance",)}
"""Time bounds of a join that are shown."""


def state(checkpoint: str, *, as_json: bool) -> int:
    """Print the state of a query."""
    check_checkpoint(checkpoint)
    running = running_session()
    with filtered_stderr():
        spark = running or session("tidegate state", cores=1)
    try:
        found = read_state(spark, checkpoint)
    finally:
        if running is None:
            spark.stop()
    if as_json:
        print(json.dumps(dataclasses.asdict(found)))
    else:
        print("\n".join(_told(checkpoint, found)))
    return 0


def _told(checkpoint: str, found: QueryStatus) -> list[str]:
    lines = [f"query {found.query or '(started without `write`)'} at {checkpoint}"]
    for operator in found.operators:
        specs = found.specs[operator.number] if operator.number < len(found.specs) else []
        kinds = " > ".join(_operator(spec) for spec in specs)
        lines += ["", f"operator {operator.number}{': ' if kinds else ''}{kinds}"]
        lines += _shards(operator) + _windows(operator) + _sources(operator) + _late(operator)
    return lines


def _shards(operator: OperatorStatus) -> list[str]:
    sides = sorted({side for shard in operator.shards for side in shard.rows})
    windows = not sides or any(shard.windows_open for shard in operator.shards)
    held = [*(f"{side} rows" for side in sides), *(["windows open"] if windows else [])]
    rows = [
        ["shard", "batch", "watermark", "newest event", "clock", *held, "events", "state bytes"]
    ]
    for shard in operator.shards:
        times = [when(shard.watermark), when(shard.newest_event), when(shard.clock)]
        counts = [
            *(shard.rows.get(side, 0) for side in sides),
            *([shard.windows_open] if windows else []),
        ]
        rows.append(
            [
                str(shard.shard),
                str(shard.batch),
                *times,
                *map(str, counts),
                str(shard.counters["events"]),
                str(shard.state_bytes),
            ]
        )
    return table(rows)


def _windows(operator: OperatorStatus) -> list[str]:
    keys: dict[tuple[int, int], int | None] = {}
    for shard in operator.shards:
        for window in shard.windows:
            bounds, former = (
                (window["start"], window["end"]),
                keys.get((window["start"], window["end"]), 0),
            )
            keys[bounds] = (
                None if former is None or window["keys"] is None else former + window["keys"]
            )
    if not keys:
        return []
    rows = [["window", "until", "keys"]]
    rows += [
        [when(start), when(end), "many" if count is None else str(count)]
        for (start, end), count in sorted(keys.items())
    ]
    return ["", "windows that complete next", *table(rows)]


def _sources(operator: OperatorStatus) -> list[str]:
    if not operator.sources:
        return []
    shown = operator.sources[:_SOURCES]
    rows = [["input", "source", "status", "watermark", "last seen"]]
    rows += [
        [
            str(given.input),
            given.name or "(all)",
            given.status,
            when(given.watermark),
            when(given.spoke_at),
        ]
        for given in shown
    ]
    more = len(operator.sources) - _SOURCES
    return ["", *table(rows), *([f"and {more} more"] if more > 0 else [])]


def _operator(spec: dict[str, Any]) -> str:
    """A window, or a join with its condition."""
    if "join" not in spec:
        return _window(spec["window"])
    window = spec["window"]
    meets = " and ".join(map(_window, window)) if isinstance(window, list) else _window(window)
    fields = ", ".join(left if left == right else f"{left} = {right}" for left, right in spec["on"])
    return f"{spec['how']} join{f' on {fields}' if fields else ''}, {meets}"


def _window(window: dict[str, Any]) -> str:
    if window["type"] in _BOUNDS:
        ends = [
            f"{name} {format_duration(window[name])}"
            for name in _BOUNDS[window["type"]]
            if window[name] is not None
        ]
        return " ".join([str(window["type"]).replace("_", " "), *ends])
    spans = [
        f"{name} {format_duration(window[name])}"
        for name in ("size", "slide", "gap")
        if isinstance(window.get(name), int)
    ]
    return " ".join(
        [str(window["type"]), *(spans if window.get("axis") in ("event_time", "clock") else [])]
    )


def _late(operator: OperatorStatus) -> list[str]:
    reasons = ", ".join(f"{reason} {count}" for reason, count in operator.late.items())
    return ["", f"late rows: {reasons or 'none'}"]
