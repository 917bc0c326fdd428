"""`tidegate state`: shows the state of a query from its checkpoint, while it runs or afterwards."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence

from tidegate.cli.state_rows import json_rows, row_lines, selected
from tidegate.cli.tables import table
from tidegate.operators.explain.brief import spec_text
from tidegate.operators.status import OperatorStatus, QueryStatus
from tidegate.spark.environment.stderr_filter import filtered_stderr
from tidegate.spark.query.state.query_state import read_state
from tidegate.units import byte_size, rounded, when

_SOURCES = 20
"""Maximum number of sources shown; `--json` has all."""


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
            shown = status.to_dict() if as_json else _status_lines(status)
        else:
            tables = selected(found, operator, key, window, messages=messages)
            shown = json_rows(found, tables) if as_json else row_lines(tables)
    if isinstance(shown, dict):
        print(json.dumps(shown))
    else:
        name = found.name or found.query or "(started without `write`)"
        print(f"query {name} at {checkpoint}, after batch {found.batch}", *shown, sep="\n")
    return 0


def _status_lines(status: QueryStatus) -> list[str]:
    lines = []
    for stage, operator in enumerate(status.operators):
        specs = status.specs[stage] if stage < len(status.specs) else []
        kinds = " > ".join(spec_text(spec) for spec in specs)
        lines += ["", f"operator {operator.number}{': ' if kinds else ''}{kinds}"]
        lines += _shards(operator) + _windows(operator) + _sources(operator) + _late(operator)
        for found in operator.explanations:
            lines += ["", *str(found or operator.problem).splitlines()]
    return lines + _happenings(status)


def _happenings(status: QueryStatus) -> list[str]:
    """What comes next, with the time to go."""
    lines = []
    for event in status.happenings:
        if event.clock is not None:
            left = event.clock - status.now
            at = f"in {rounded(left)}" if left > 0 else "with the next batch"
        else:
            at = f"when the watermark reaches {when(event.watermark)}"
        lines.append(f"  {at}: {event.text}")
    return ["", "what comes next", *lines] if lines else []


def _shards(operator: OperatorStatus) -> list[str]:
    sides = sorted({side for shard in operator.shards for side in shard.rows})
    windows = not sides or any(shard.windows_open for shard in operator.shards)
    held = [*(f"{side} rows" for side in sides), *(["windows open"] if windows else [])]
    rows = [["shard", "batch", "watermark", "newest event", "clock", *held, "events", "state"]]
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
                byte_size(shard.state_bytes),
            ]
        )
    return table(rows)


def _windows(operator: OperatorStatus) -> list[str]:
    if not operator.windows:
        return []
    rows = [["window", "until", "keys"]]
    rows += [
        [
            when(window["start"]),
            when(window["end"]),
            "many" if window["keys"] is None else str(window["keys"]),
        ]
        for window in operator.windows
    ]
    return ["", "windows that complete next", *table(rows)]


def _sources(operator: OperatorStatus) -> list[str]:
    if not operator.sources:
        return []
    rows = [["input", "source", "status", "watermark", "lag", "last seen", "holds back"]]
    rows += [
        [
            str(given.input),
            given.name or "(all)",
            given.status,
            when(given.watermark),
            "" if given.lag is None else rounded(given.lag),
            "never" if given.spoke_at is None else when(given.spoke_at),
            "yes" if given.holds else "",
        ]
        for given in operator.sources[:_SOURCES]
    ]
    more = len(operator.sources) - _SOURCES
    return ["", *table(rows), *([f"and {more} more"] if more > 0 else [])]


def _late(operator: OperatorStatus) -> list[str]:
    reasons = ", ".join(f"{reason} {count}" for reason, count in operator.late.items())
    return ["", f"late rows: {reasons or 'none'}"]
