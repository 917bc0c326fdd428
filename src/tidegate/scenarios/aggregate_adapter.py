"""Adapter between a scenario and an aggregation: events in, panes and late rows out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa

from tidegate.instants import instant
from tidegate.scenarios.matching import Pane
from tidegate.scenarios.runtimes import EMBEDDED, SHARD, Adjustment, Records, Runtime, window_of
from tidegate.scenarios.settings import OperatorSettings
from tidegate.scenarios.ticks import Ticks
from tidegate.scenarios.window_words import GAP_COLUMN, gap_of
from tidegate.spec import aggregates
from tidegate.spec.operator import AggregateSpec, Input, Options
from tidegate.spec.triggers import EventInterval, Trigger
from tidegate.spec.watermarks import Explicit, Watermarks
from tidegate.spec.windows import Axis

RESULT = "result"
FIRST_COME = "first_come"
"""The aggregate of the first value to arrive, whatever its time; for extensions."""
_AGGREGATES: dict[str, Callable[[], aggregates.Aggregate]] = {
    "list": lambda: aggregates.list_("v"),
    "count": aggregates.count,
    "sum": lambda: aggregates.sum("v"),
    "min": lambda: aggregates.min("v"),
    "max": lambda: aggregates.max("v"),
    "mean": lambda: aggregates.mean("v"),
    FIRST_COME: lambda: aggregates.arg_min("v", "seq"),
}
_CODED = frozenset({"list", "count", FIRST_COME})
SET_BY_SCENARIO: tuple[Watermarks, ...] = (Explicit(),)
"""One input, whose watermark the scenario sets."""


def specification(
    settings: OperatorSettings, *, keyed: bool, watermarks: Sequence[Watermarks] = SET_BY_SCENARIO
) -> AggregateSpec:
    """The specification of the operator, with an input for each of the watermarks."""
    axis = settings.window.axis
    inputs = [
        Input(
            time="t" if axis is Axis.EVENT_TIME else None,
            key=("k",) if keyed else (),
            offset="offset" if axis is Axis.OFFSET else None,
            watermark=watermark,
        )
        for watermark in watermarks
    ]
    return AggregateSpec(
        input=inputs[0],
        window=settings.window,
        aggregates=((RESULT, _AGGREGATES[settings.aggregate]()),),
        trigger=settings.trigger,
        mode=settings.mode,
        allowed_lateness=settings.allowed_lateness,
        options=Options(**settings.options),
        also=tuple(inputs[1:]),
    )


class ValueCodes:
    """Values of any type as integers and back: a scenario may mix types in one column."""

    def __init__(self) -> None:
        self._values: list[Any] = []

    def code(self, value: Any) -> int:
        for code, other in enumerate(self._values):
            if other == value and type(other) is type(value):
                return code
        self._values.append(value)
        return len(self._values) - 1

    def value(self, code: int | None) -> Any:
        return None if code is None else self._values[code]


@dataclass(frozen=True)
class LateRow:
    """A row of the late output."""

    t: int | None
    k: Any
    v: Any
    reason: str
    lateness: str | None
    windows: int


class AggregateUnderTest:
    """The operator of a scenario: takes events as written, returns panes as expected."""

    def __init__(
        self,
        settings: OperatorSettings,
        events: Sequence[Mapping[str, Any]],
        ticks: Ticks,
        *,
        watermarks: Sequence[Watermarks] = SET_BY_SCENARIO,
        runtime: Runtime = EMBEDDED,
    ) -> None:
        self._settings = settings
        self._ticks = ticks
        self._keyed = any("k" in event for event in events)
        self._marked = any("mark" in event for event in events)
        self._floats = any(isinstance(event.get("v"), float) for event in events)
        self._timed = settings.window.axis is Axis.EVENT_TIME or any(
            "t" in event for event in events
        )
        self._keys, self._values = ValueCodes(), ValueCodes()
        self._came = 0
        self.now = settings.start
        spec = specification(settings, keyed=self._keyed, watermarks=watermarks)
        self._running = runtime.open(spec, self._table([]).schema, self.now)

    @property
    def is_rehearsed(self) -> bool:
        """Whether nothing runs yet, so that there is nothing to check."""
        return self._running.is_rehearsed

    def add(self, events: Sequence[Mapping[str, Any]], ordinal: int = 0) -> None:
        """One delivery, or one per message where the trigger depends on the first message."""
        alone = self._settings.options.get("granularity") == "element" and _asks_for_the_first(
            self._settings.trigger
        )
        for share in [[event] for event in events] if alone else [events]:
            if share:
                self._running.add(self._table(share), self.now, ordinal)

    def advance_watermark(self, watermark: int) -> None:
        self._running.advance_watermark(watermark)

    def move_clock(self, now: int) -> None:
        """Set the clock of the following calls; nothing runs before them."""
        self.now = now

    def run_clock(self) -> None:
        """Run what is due at the current clock."""
        self._running.run_clock(self.now)

    def finish(self) -> None:
        self._running.finish()

    def restart(self) -> None:
        """Drop the operator and restore another one from its store."""
        self._running.restart(self.now)

    def adjust(self, adjustment: Adjustment) -> None:
        """Apply a function to the operator, until a restart."""
        self._running.adjust(adjustment)

    def take(self) -> tuple[list[Pane], list[LateRow]]:
        """Panes and late rows since the last call."""
        panes, late = self._running.take()
        return [self._pane(row) for row in _by_appearance(panes)], [self._late(row) for row in late]

    @property
    def dropped(self) -> int:
        return self._running.dropped

    @property
    def hold(self) -> int | None:
        return self._running.hold

    @property
    def watermark(self) -> int:
        return self._running.watermark

    @property
    def output_watermark(self) -> int:
        return self._running.output_watermark

    def windows(self) -> list[tuple[int, int]]:
        """The windows that have state, each once."""
        return self._running.windows()

    def contents(self) -> list[tuple[tuple[int, int], Any, Any]]:
        """Window, key and current value of every open window."""
        return [
            (window_of(row), self._keys.value(row.get("k")), self._decoded(row[RESULT]))
            for row in self._running.contents()
        ]

    def _table(self, events: Sequence[Mapping[str, Any]]) -> pa.Table:
        columns: dict[str, pa.Array] = {}
        if self._timed:
            columns["t"] = pa.array(
                [None if e.get("t") is None else self._ticks(e["t"]) for e in events], pa.int64()
            )
        if self._keyed:
            columns["k"] = pa.array([self._keys.code(e.get("k")) for e in events], pa.int64())
        if self._settings.window.axis is Axis.OFFSET:
            columns["offset"] = pa.array([e.get("offset") for e in events], pa.int64())
        if self._settings.gap_rules is not None:
            gaps = [gap_of(self._settings.gap_rules, e) for e in events]
            columns[GAP_COLUMN] = pa.array(
                [None if gap is None else self._ticks(gap) for gap in gaps], pa.int64()
            )
        if self._marked:
            columns["mark"] = pa.array(
                [
                    None if e.get("mark") is None else self._ticks.watermark(e["mark"])
                    for e in events
                ],
                pa.int64(),
            )
        if self._settings.aggregate == FIRST_COME:
            columns["seq"] = pa.array(range(self._came, self._came + len(events)), pa.int64())
            self._came += len(events)
        columns["v"] = self._value_column(events)
        return pa.table(columns)

    def _value_column(self, events: Sequence[Mapping[str, Any]]) -> pa.Array:
        if self._settings.aggregate in _CODED:
            return pa.array([self._values.code(e.get("v")) for e in events], pa.int64())
        return pa.array([e.get("v") for e in events], pa.float64() if self._floats else pa.int64())

    def _decoded(self, value: Any) -> Any:
        if self._settings.aggregate == FIRST_COME:
            return self._values.value(value)
        return (
            [self._values.value(code) for code in value or []]
            if self._settings.aggregate == "list"
            else value
        )

    def _pane(self, row: Mapping[str, Any]) -> Pane:
        return Pane(
            window=window_of(row),
            key=self._keys.value(row.get("k")),
            value=self._decoded(row[RESULT]),
            time=None if row["time"] is None else instant(row["time"]),
            timing=row["timing"],
            first=row["is_first"],
            last=row["is_last"],
            index=row["pane"],
            ns_index=row["pane_nonspeculative"],
            retract=row["op"] == "-",
            shard=row.get(SHARD, 0),
        )

    def _late(self, row: Mapping[str, Any]) -> LateRow:
        coded = self._settings.aggregate in _CODED
        return LateRow(
            t=row.get("t"),
            k=self._keys.value(row.get("k")),
            v=self._values.value(row.get("v")) if coded else row.get("v"),
            reason=row["reason"],
            lateness=row["class"],
            windows=len(row["windows"] or []),
        )


def _asks_for_the_first(trigger: Trigger | None) -> bool:
    """Whether a part of the trigger depends on which message of a window came first."""
    if trigger is None:
        return False
    return (isinstance(trigger, EventInterval) and trigger.refire) or any(
        _asks_for_the_first(part) for part in trigger.children
    )


def _by_appearance(rows: Records) -> Records:
    """The panes, with those that complete one window for several keys ordered by key code."""
    found: Records = []
    for (*_, timing), run in groupby(
        rows,
        key=lambda row: (
            row.get(SHARD),
            row["window_start"],
            row["window_end"],
            row["op"],
            row["timing"],
        ),
    ):
        panes = list(run)
        found.extend(
            sorted(panes, key=lambda row: row.get("k") or 0) if timing == "on_time" else panes
        )
    return found
