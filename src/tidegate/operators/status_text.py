"""A status as text: each operator with its shards, windows and sources, and what comes next."""

from __future__ import annotations

from tidegate.operators.explain.brief import spec_text
from tidegate.operators.explain.facts import time_text
from tidegate.operators.status import Happening, OperatorStatus, QueryStatus, foremost
from tidegate.operators.text_table import aligned
from tidegate.units import byte_size, rounded, when

_SOURCES = 20
"""Maximum number of sources shown; `to_dict` has all."""


def status_text(status: QueryStatus) -> str:
    """The status of a query or an embedded operator."""
    name = status.name or status.query or status.runtime
    batch = "" if status.batch is None else f", after batch {status.batch}"
    lag = "" if status.lag is None else f", {rounded(status.lag)} behind the clock"
    problems = [text for text in (status.problem, status.error) if text]
    state = "from its checkpoint" if status.state == "unknown" else status.state
    lines = [f"{name}, {state}{batch}{lag}", *problems, *status_lines(status)]
    return "\n".join(lines)


def status_lines(status: QueryStatus) -> list[str]:
    """What each operator has and waits for, and what comes next."""
    lines = []
    for stage, operator in enumerate(status.operators):
        specs = status.specs[stage] if stage < len(status.specs) else []
        kinds = " > ".join(spec_text(spec) for spec in specs)
        lines += ["", f"operator {operator.number}{': ' if kinds else ''}{kinds}"]
        ticks = any(found is not None and found.ticks for found in operator.explanations)
        lines += _shards(operator, ticks=ticks, sharded=status.batch is not None)
        lines += _windows(operator, ticks=ticks)
        lines += _sources(operator, ticks=ticks) + _late(operator)
        for found in operator.explanations:
            lines += ["", *str(found or operator.problem).splitlines()]
    return lines + _happenings(status)


def _happenings(status: QueryStatus) -> list[str]:
    """What comes next, with the time to go."""
    lines = [f"  {_moment(event, status)}: {event.text}" for event in status.happenings]
    return ["", "what comes next", *lines] if lines else []


def _moment(event: Happening, status: QueryStatus) -> str:
    if event.clock is None:
        return f"when the watermark reaches {_time(event.watermark, ticks=status.ticks)}"
    left = event.clock - status.now
    if left > 0:
        return f"in {rounded(left)}"
    return "with the next batch" if status.batch is not None else "with the next call"


def _time(at: int | None, *, ticks: bool) -> str:
    return "none" if at is None else time_text(at, ticks=ticks)


def _shards(operator: OperatorStatus, *, ticks: bool, sharded: bool) -> list[str]:
    """`sharded`: whether the operator runs as shards of a query."""
    sides = sorted({side for shard in operator.shards for side in shard.rows})
    windows = not sides or any(shard.windows_open for shard in operator.shards)
    held = [*(f"{side} rows" for side in sides), *(["windows open"] if windows else [])]
    place = ["shard", "batch"] if sharded else []
    rows = [[*place, "watermark", "newest event", "clock", *held, "events", "state"]]
    for shard in operator.shards:
        times = [_time(at, ticks=ticks) for at in (shard.watermark, shard.newest_event)]
        counts = [
            *(shard.rows.get(side, 0) for side in sides),
            *([shard.windows_open] if windows else []),
        ]
        rows.append(
            [
                *([str(shard.shard), str(shard.batch)] if sharded else []),
                *times,
                when(shard.clock),
                *(f"{count:,}" for count in counts),
                f"{shard.counters.get('events', 0):,}",
                byte_size(shard.state_bytes),
            ]
        )
    return aligned(rows)


def _windows(operator: OperatorStatus, *, ticks: bool) -> list[str]:
    if not operator.windows:
        return []
    rows = [["window", "until", "keys"]]
    rows += [
        [
            _time(window["start"], ticks=ticks),
            _time(window["end"], ticks=ticks),
            "many" if window["keys"] is None else f"{window['keys']:,}",
        ]
        for window in operator.windows
    ]
    return ["", "windows that complete next", *aligned(rows)]


def _sources(operator: OperatorStatus, *, ticks: bool) -> list[str]:
    if not operator.sources:
        return []
    rows = [["input", "source", "status", "watermark", "lag", "last seen", "holds back"]]
    rows += [
        [
            given.input_name or str(given.input),
            given.name or "(all)",
            given.status,
            _time(given.watermark, ticks=ticks),
            "" if given.lag is None else rounded(given.lag),
            "never" if given.spoke_at is None else when(given.spoke_at),
            "yes" if given.holds else "",
        ]
        for given in foremost(operator.sources, _SOURCES)
    ]
    more = len(operator.sources) - _SOURCES
    return ["", *aligned(rows), *([f"and {more:,} more"] if more > 0 else [])]


def _late(operator: OperatorStatus) -> list[str]:
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in operator.late.items())
    return ["", f"late rows: {reasons or 'none'}"]
