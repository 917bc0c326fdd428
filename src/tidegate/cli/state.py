"""`tidegate state`: shows the state of a query from its checkpoint, while it runs or afterwards."""

from __future__ import annotations

import dataclasses
import json
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from tidegate.cli.state_rows import json_rows, row_lines, selected
from tidegate.cli.stderr_filter import filtered_stderr
from tidegate.cli.tables import table, when
from tidegate.errors import StateError
from tidegate.instants import format_duration
from tidegate.operators.explain.facts import Explanation
from tidegate.spark.query.state.query_state import QueryState, read_state
from tidegate.spark.query.state.status import OperatorStatus, QueryStatus

_SOURCES = 20
"""Maximum number of sources shown; `--json` has all."""
_BOUNDS = {"within": ("before", "after"), "as_of": ("tolerance",)}
"""Time bounds of a join that are shown."""


def state(
    checkpoint: str,
    *,
    key: Sequence[str] | None = None,
    window: str | None = None,
    messages: bool = False,
    operator: int = -1,
    as_json: bool,
) -> int:
    """Print the state of a query, or the windows and rows of a key and a range."""
    with warnings.catch_warnings(), filtered_stderr():
        # Without the files, Spark is started: the reason is shown before that takes its time.
        warnings.simplefilter("always", RuntimeWarning)
        warnings.showwarning = lambda message, *_: print(f"note: {message}", file=sys.stderr)
        found = read_state(checkpoint)
        if key is None and window is None and not messages:
            status = found.status()
            explained = [_explanations(found, one) for one in status.operators]
            shown = _document(status, explained) if as_json else _status_lines(status, explained)
        else:
            tables = selected(found, operator, key, window, messages=messages)
            shown = json_rows(found, tables) if as_json else row_lines(tables)
    if isinstance(shown, dict):
        print(json.dumps(shown))
    else:
        name = found.query or "(started without `write`)"
        print(f"query {name} at {checkpoint}, after batch {found.batch}", *shown, sep="\n")
    return 0


def _explanations(found: QueryState, operator: OperatorStatus) -> list[Explanation | str]:
    """What each operator waits for, or why that is not known."""
    numbers = range(operator.number, operator.number + operator.size)
    return [_explanation(found, number) for number in numbers if operator.shards]


def _explanation(found: QueryState, operator: int) -> Explanation | str:
    try:
        return found.explain_watermark(operator)
    except StateError as reason:
        return str(reason)


def _document(status: QueryStatus, explained: Sequence[list[Explanation | str]]) -> dict[str, Any]:
    document = dataclasses.asdict(status)
    for operator, found in zip(document["operators"], explained, strict=True):
        operator["explanations"] = [
            one.to_dict() if isinstance(one, Explanation) else {"error": one} for one in found
        ]
    return document


def _status_lines(status: QueryStatus, explained: Sequence[list[Explanation | str]]) -> list[str]:
    lines = []
    for stage, (operator, found) in enumerate(zip(status.operators, explained, strict=True)):
        specs = status.specs[stage] if stage < len(status.specs) else []
        kinds = " > ".join(_described(spec) for spec in specs)
        lines += ["", f"operator {operator.number}{': ' if kinds else ''}{kinds}"]
        lines += _shards(operator) + _windows(operator) + _sources(operator) + _late(operator)
        for text in found:
            lines += ["", *str(text).splitlines()]
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


def _described(spec: dict[str, Any]) -> str:
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
