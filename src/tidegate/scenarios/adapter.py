"""The adapter between scenarios and the embedded operator: the only module here that opens, feeds and reads one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa

from tidegate.api import Panes
from tidegate.instants import MAX, MIN
from tidegate.scenarios.matching import Pane
from tidegate.scenarios.settings import Settings
from tidegate.scenarios.ticks import Ticks
from tidegate.scenarios.windows import GAP_COLUMN, gap_of
from tidegate.spec import aggregates
from tidegate.spec.operator import AggregateSpec, Input, Options
from tidegate.spec.triggers import EventInterval, Trigger
from tidegate.spec.watermarks import Explicit, Implied
from tidegate.spec.windows import Axis
from tidegate.state.memory import MemoryStore

RESULT = "result"
_AGGREGATES: dict[str, Callable[[], aggregates.Aggregate]] = {
    "list": lambda: aggregates.list_("v"),
    "count": aggregates.count,
    "sum": lambda: aggregates.sum("v"),
    "min": lambda: aggregates.min("v"),
    "max": lambda: aggregates.max("v"),
    "mean": lambda: aggregates.mean("v"),
}


def specification(settings: Settings, *, keyed: bool, implied: bool = False) -> AggregateSpec:
    """The specification of the operator; `implied` lets the watermark follow the newest event."""
    axis = settings.window.axis
    return AggregateSpec(
        input=Input(
            time="t" if axis is Axis.EVENT_TIME else None,
            key=("k",) if keyed else (),
            offset="offset" if axis is Axis.OFFSET else None,
            watermark=Implied() if implied else Explicit(),
        ),
        window=settings.window,
        aggregates=((RESULT, _AGGREGATES[settings.aggregate]()),),
        trigger=settings.trigger,
        mode=settings.mode,
        allowed_lateness=settings.allowed_lateness,
        options=Options(**settings.options),
    )


class Codes:
    """Values of any type as integers and back, because a scenario may mix types that no Arrow column can hold."""

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


class Operated:
    """An operator under a scenario: takes events as they are written, gives panes as they are expected."""

    def __init__(self, settings: Settings, events: Sequence[Mapping[str, Any]], ticks: Ticks, *, implied: bool = False) -> None:
        self._settings = settings
        self._ticks = ticks
        self._keyed = any("k" in event for event in events)
        self._floats = any(isinstance(event.get("v"), float) for event in events)
        self._timed = settings.window.axis is Axis.EVENT_TIME or any("t" in event for event in events)
        self._keys, self._values = Codes(), Codes()
        self._store = MemoryStore()
        self._panes = Panes(specification(settings, keyed=self._keyed, implied=implied))
        self.now = settings.start
        self._operator = self._panes.embedded(store=self._store, now=self.now)

    def add(self, events: Sequence[Mapping[str, Any]]) -> None:
        """One delivery, or one a message where the trigger asks which message came first."""
        alone = self._settings.options.get("granularity") == "element" and _asks_for_the_first(self._settings.trigger)
        for share in [[event] for event in events] if alone else [events]:
            if share:
                self._operator.add_messages(self._table(share), now=self.now)

    def advance_watermark(self, watermark: int) -> None:
        self._operator.advance_watermark({MIN: "-inf", MAX: "+inf"}.get(watermark, watermark))

    def move_clock(self, now: int) -> None:
        """The time of the calls that follow; nothing that is due runs before them."""
        self.now = now

    def run_clock(self) -> None:
        """Run what is due at the present time."""
        self._operator.timeout(self.now)

    def finish(self) -> None:
        self._operator.finish()

    def restart(self) -> None:
        """Flush, forget the operator, and open another one on the same store."""
        self._operator.flush()
        self._operator = self._panes.embedded(store=self._store, now=self.now)

    def set_manual(self, *, ready: bool, finishes: bool) -> None:
        """What a `Manual` trigger says from now on; no user's operator has one, so there is no verb for it."""
        self._operator.operator.machine.set_manual(ready, finishes)

    def take(self) -> tuple[list[Pane], list[LateRow]]:
        """What came out since the last time."""
        result = self._operator.get_result()
        self._operator.flush()
        rows = _by_appearance(result.panes.to_pylist())
        return [self._pane(row) for row in rows], [self._late(row) for row in result.late.to_pylist()]

    @property
    def dropped(self) -> int:
        return int(self._operator.stats()["dropped_pairs"])

    @property
    def hold(self) -> int | None:
        return self._operator.hold

    @property
    def output_watermark(self) -> int:
        return self._operator.output_watermark

    def windows(self) -> list[tuple[int, int]]:
        """The windows that have state, each once."""
        return sorted({_window(row) for row in self._operator.get_windows(None, None)})

    def contents(self) -> list[tuple[tuple[int, int], Any, Any]]:
        """Window, key and present value of every open window."""
        return [(_window(row), self._keys.value(row.get("k")), self._decoded(row[RESULT])) for row in self._operator.peek().to_pylist()]

    def _table(self, events: Sequence[Mapping[str, Any]]) -> pa.Table:
        columns: dict[str, pa.Array] = {}
        if self._timed:
            columns["t"] = pa.array([None if e.get("t") is None else self._ticks(e["t"]) for e in events], pa.int64())
        if self._keyed:
            columns["k"] = pa.array([self._keys.code(e.get("k")) for e in events], pa.int64())
        if self._settings.window.axis is Axis.OFFSET:
            columns["offset"] = pa.array([e.get("offset") for e in events], pa.int64())
        if self._settings.gap_rules is not None:
            gaps = [gap_of(self._settings.gap_rules, e) for e in events]
            columns[GAP_COLUMN] = pa.array([None if gap is None else self._ticks(gap) for gap in gaps], pa.int64())
        columns["v"] = self._value_column(events)
        return pa.table(columns)

    def _value_column(self, events: Sequence[Mapping[str, Any]]) -> pa.Array:
        if self._settings.aggregate in {"list", "count"}:
            return pa.array([self._values.code(e.get("v")) for e in events], pa.int64())
        return pa.array([e.get("v") for e in events], pa.float64() if self._floats else pa.int64())

    def _decoded(self, value: Any) -> Any:
        return [self._values.value(code) for code in value or []] if self._settings.aggregate == "list" else value

    def _pane(self, row: Mapping[str, Any]) -> Pane:
        return Pane(
            window=_window(row),
            key=self._keys.value(row.get("k")),
            value=self._decoded(row[RESULT]),
            time=row["time"],
            timing=row["timing"],
            first=row["is_first"],
            last=row["is_last"],
            index=row["pane"],
            ns_index=row["pane_nonspeculative"],
            retract=row["op"] == "-",
        )

    def _late(self, row: Mapping[str, Any]) -> LateRow:
        coded = self._settings.aggregate in {"list", "count"}
        return LateRow(
            t=row.get("t"),
            k=self._keys.value(row.get("k")),
            v=self._values.value(row.get("v")) if coded else row.get("v"),
            reason=row["reason"],
            lateness=row["class"],
            windows=len(row["windows"] or []),
        )


def _window(row: Mapping[str, Any]) -> tuple[int, int]:
    start, end = row["window_start"], row["window_end"]
    return MIN if start is None else start, MAX if end is None else end


def _asks_for_the_first(trigger: Trigger | None) -> bool:
    """Whether a part of the trigger depends on which message of a window came first."""
    if trigger is None:
        return False
    return (isinstance(trigger, EventInterval) and trigger.refire) or any(_asks_for_the_first(part) for part in trigger.children)


def _by_appearance(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Panes that complete one window for several keys at once, in the order in which the keys first came; their codes tell it."""
    found: list[dict[str, Any]] = []
    for (*_, timing, _op), run in groupby(rows, key=lambda row: (row["window_start"], row["window_end"], row["timing"], row["op"])):
        panes = list(run)
        found.extend(sorted(panes, key=lambda row: row.get("k") or 0) if timing == "on_time" else panes)
    return found
