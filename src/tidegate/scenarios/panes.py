"""The kinds `panes` and `panes_by_window`: a timeline of input, and the expected panes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from tidegate.errors import TidegateError
from tidegate.instants import MAX, MIN
from tidegate.kernel.windows.assigners import build
from tidegate.scenarios.aggregate_adapter import AggregateUnderTest, LateRow
from tidegate.scenarios.document import (
    MismatchError,
    Scenario,
    UnsupportedScenarioError,
    known,
    mapping,
)
from tidegate.scenarios.matching import (
    Pane,
    check_expected,
    demand,
    describe,
    fits,
    interval,
    same_bag,
    same_value,
    same_window,
    unmatched,
)
from tidegate.scenarios.runtimes import EMBEDDED, Runtime
from tidegate.scenarios.settings import OperatorSettings, operator_settings
from tidegate.scenarios.ticks import Ticks, ticks_of
from tidegate.spec.windows import Session

STEP = frozenset(
    {
        "events",
        "watermark",
        "processing_time",
        "clock_only",
        "batch",
        "snapshot_restore",
        "end_of_input",
        "expect",
        "expect_count",
        "expect_pane_of",
        "late_output",
        "dropped",
        "hold",
        "output_watermark",
        "out_wm",
        "state_windows",
        "state_windows_hint",
        "state",
        "error",
        "ordered",
    }
)
EVENT = frozenset({"t", "v", "k", "offset", "gap"})
LATE = frozenset({"t", "v", "k", "reason", "class"})
UNFIRED = "unfired"


def run_panes(scenario: Scenario, runtime: Runtime = EMBEDDED) -> None:
    """Apply the steps in order."""
    PaneTimeline(scenario, runtime).run()


class PaneTimeline:
    """One run over the steps of a scenario."""

    steps = STEP
    """The words of a step."""

    def __init__(self, scenario: Scenario, runtime: Runtime) -> None:
        known("the scenario", scenario.body, {"steps"})
        self._ticks = ticks = ticks_of(scenario)
        self._settings = settings = operator_settings(scenario, ticks)
        self._must_fail = scenario.must_fail
        self._steps = [mapping("a step", step) for step in scenario.entries("steps")]
        for step in self._steps:
            known("a step", step, self.steps)
        self._operator = AggregateUnderTest(
            settings, list(_events(self._steps)), ticks, runtime=runtime
        )
        self._fresh: list[Pane] = []
        self._panes: list[Pane] = []
        self._fresh_late: list[LateRow] = []
        self._late: list[LateRow] = []
        self._forwarded: list[int] = []
        self._output_watermark = MIN
        self._ordered = settings.ordered
        self._where = ""
        self._checks: dict[str, Callable[[Any], None]] = {
            "expect": self._expect,
            "expect_count": self._expect_count,
            "expect_pane_of": self._expect_pane_of,
            "late_output": self._late_output,
            "dropped": lambda n: self._equal("dropped", n, self._operator.dropped),
            "hold": self._hold,
            "output_watermark": self._output,
            "out_wm": self._out_wm,
            "state_windows": self._state_windows,
            "state_windows_hint": self._state_windows_hint,
            "state": self._state,
        }

    def _actions(self) -> dict[str, Callable[[Any], None]]:
        ticks = self._ticks
        return {
            "events": self._operator.add,
            "watermark": lambda value: self._operator.advance_watermark(ticks.watermark(value)),
            "processing_time": self._processing_time,
            "clock_only": lambda value: self._operator.move_clock(ticks(value)),
            "batch": self._batch,
            "snapshot_restore": lambda _: self._operator.restart(),
            "end_of_input": lambda _: self._operator.finish(),
        }

    def run(self) -> None:
        """Apply the steps in order."""
        actions = self._actions()
        for position, step in enumerate(self._steps):
            refused = (
                bool(self._steps[position + 1].get("error"))
                if position + 1 < len(self._steps)
                else False
            )
            self._where = f"step {position + 1}"
            self._ordered = bool(step.get("ordered", self._settings.ordered))
            for name, value in step.items():
                if name in actions:
                    self._act(name, value, actions[name], refused=refused)
                elif name in self._checks and not self._operator.is_rehearsed:
                    self._checks[name](value)
        if self._must_fail and (self._fresh or self._operator.take()[0]):
            raise MismatchError("panes were left over that no step expects")

    def _act(self, name: str, value: Any, action: Callable[[Any], None], *, refused: bool) -> None:
        try:
            action(value)
        except TidegateError as error:
            if not refused:
                raise MismatchError(f"{self._where}: `{name}` was refused: {error}") from error
        else:
            if refused and not self._operator.is_rehearsed:
                raise MismatchError(
                    f"{self._where}: `{name}: {value}` must be refused, but it was accepted"
                )
        self._collect()

    def _collect(self) -> None:
        panes, late = self._operator.take()
        self._fresh += panes
        self._panes += panes
        self._fresh_late += late
        self._late += late
        watermark = self._operator.output_watermark
        if watermark != self._output_watermark:
            self._output_watermark = watermark
            self._forwarded.append(watermark)

    def _processing_time(self, value: Any) -> None:
        self._operator.move_clock(self._ticks(value))
        self._operator.run_clock()

    def _batch(self, value: Any) -> None:
        """The events, then the watermark, then what the clock makes due, once."""
        batch = mapping("a batch", value)
        known("a batch", batch, {"processing_time", "events", "watermark"})
        if "processing_time" in batch:
            self._operator.move_clock(self._ticks(batch["processing_time"]))
        self._operator.add(batch.get("events") or [])
        if "watermark" in batch:
            self._operator.advance_watermark(self._ticks.watermark(batch["watermark"]))
        self._operator.run_clock()

    def _expect(self, value: Any) -> None:
        panes, self._fresh = self._fresh, []
        demand(
            check_expected(value, self._settings.aggregate),
            panes,
            self._ticks,
            ordered=self._ordered,
            where=self._where,
        )

    def _expect_count(self, n: Any) -> None:
        self._equal("panes so far", n, sum(not pane.retract for pane in self._panes))

    def _expect_pane_of(self, value: Any) -> None:
        (expected,) = check_expected([value], self._settings.aggregate)
        if not any(fits(expected, pane, self._ticks) for pane in self._panes):
            seen = ", ".join(describe(pane, self._ticks) for pane in self._panes) or "none"
            raise MismatchError(f"{self._where}: no pane so far is {expected}; there were {seen}")

    def _equal(self, what: str, expected: Any, found: Any) -> None:
        if expected != found:
            raise MismatchError(f"{self._where}: expected {what} {expected}, got {found}")

    def _hold(self, value: Any) -> None:
        if not self._ticks.same(value, self._operator.hold):
            raise MismatchError(
                f"{self._where}: expected hold {value}, got"
                f" {self._ticks.shown(self._operator.hold)}"
            )

    def _output(self, value: Any) -> None:
        found = self._operator.output_watermark
        if self._ticks.watermark(value) != found:
            raise MismatchError(
                f"{self._where}: expected output watermark {value}, got"
                f" {self._ticks.shown_watermark(found)}"
            )

    def _out_wm(self, value: list[Any]) -> None:
        found, self._forwarded = self._forwarded, []
        if [self._ticks.watermark(w) for w in value] != found:
            raise MismatchError(
                f"{self._where}: expected forwarded watermarks {value}, got"
                f" {[self._ticks.shown_watermark(w) for w in found]}"
            )

    def _state_windows(self, value: list[Any]) -> None:
        found = self._operator.windows()
        if sorted({interval(w, self._ticks) for w in value}) != found:
            shown = [[self._ticks.shown(edge) for edge in w] for w in found]
            raise MismatchError(f"{self._where}: expected state of windows {value}, got {shown}")

    def _state_windows_hint(self, value: dict[str, Any]) -> None:
        """Compare windows with state, and windows without state except a tombstone."""
        known(
            "`state_windows_hint`",
            mapping("`state_windows_hint`", value),
            {"present", "absent", "tombstone"},
        )
        found = set(self._operator.windows())
        wanted = {interval(w, self._ticks) for w in value.get("present", [])}
        gone = {
            interval(w, self._ticks)
            for name in ("absent", "tombstone")
            for w in value.get(name, [])
        }
        if not wanted <= found or gone & found:
            shown = [[self._ticks.shown(edge) for edge in w] for w in sorted(found)]
            raise MismatchError(f"{self._where}: expected {value}, got state of windows {shown}")

    def _state(self, value: list[Any]) -> None:
        for entry in value:
            known(
                "an entry of `state`",
                mapping("an entry of `state`", entry),
                {"window", "k", "v", "values"},
            )
        found = self._operator.contents()
        missing, extra = unmatched(value, found, self._same_content)
        if missing or extra:
            shown = [
                {"window": [self._ticks.shown(edge) for edge in w], "k": k, "v": v}
                for w, k, v in extra
            ]
            raise MismatchError(f"{self._where}: state: missing {missing}, unexpected {shown}")

    def _same_content(
        self, entry: Mapping[str, Any], content: tuple[tuple[int, int], Any, Any]
    ) -> bool:
        window, key, value = content
        return (
            ("window" not in entry or same_window(entry["window"], window, self._ticks))
            and ("k" not in entry or same_value(entry["k"], key))
            and ("v" not in entry or same_value(entry["v"], value))
            and ("values" not in entry or same_bag(entry["values"], value))
        )

    def _late_output(self, value: list[Any]) -> None:
        """Compare with all late rows so far, or with those since the last look."""
        for row in value:
            known("a late row", mapping("a late row", row), LATE)
        fresh, self._fresh_late = self._fresh_late, []
        named = any("reason" in row for row in value)
        rows, late = (
            [row for row in side if self._is_late(row, named=named)] for side in (fresh, self._late)
        )
        if any(unmatched(value, rows, self._same_late)) and any(
            unmatched(value, late, self._same_late)
        ):
            shown = [
                {"t": self._ticks.shown(row.t), "k": row.k, "v": row.v, "reason": row.reason}
                for row in rows
            ]
            raise MismatchError(f"{self._where}: expected late rows {value}, got {shown}")

    def _is_late(self, row: LateRow, *, named: bool) -> bool:
        """Whether a row missed all its windows; `unfired` counts only if a reason is named."""
        if row.reason == UNFIRED and not named:
            return False
        if row.t is None or not row.windows or isinstance(self._settings.window, Session):
            return True
        return row.windows >= len(
            build(self._settings.window).assign(np.array([row.t], np.int64)).row
        )

    def _same_late(self, expected: Mapping[str, Any], row: LateRow) -> bool:
        found = {"k": row.k, "v": row.v, "reason": row.reason, "class": row.lateness}
        if "t" in expected and not self._ticks.same(expected["t"], row.t):
            return False
        return all(same_value(expected[name], found[name]) for name in expected.keys() - {"t"})


def _events(steps: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Every event of the timeline; refuses unknown fields."""
    for step in steps:
        batch = step.get("batch")
        for event in [
            *(step.get("events") or []),
            *((batch.get("events") or []) if isinstance(batch, dict) else []),
        ]:
            known("an event", mapping("an event", event), EVENT)
            yield event


def run_panes_by_window(scenario: Scenario, runtime: Runtime = EMBEDDED) -> None:
    """Run the data once per bundle size; the panes of each window must come in order."""
    known("the scenario", scenario.body, {"data", "late_data", "bundle_sizes", "expect"})
    ticks = ticks_of(scenario)
    settings = operator_settings(scenario, ticks)
    if settings.aggregate != "list":
        raise UnsupportedScenarioError(
            "kind `panes_by_window` compares lists of values and needs `agg: list`"
        )
    for size in scenario.body.get("bundle_sizes", [1]):
        if not isinstance(size, int) or size == 0:
            raise UnsupportedScenarioError(
                f"a bundle size is a whole number other than 0, got `{size}`"
            )
        operator = _operated(scenario, settings, ticks, size, runtime)
        if not operator.is_rehearsed:
            _compare(scenario, _panes_of(operator), ticks, size)


def _operated(
    scenario: Scenario, settings: OperatorSettings, ticks: Ticks, size: int, runtime: Runtime
) -> AggregateUnderTest:
    data, late = (_pairs(scenario, name) for name in ("data", "late_data"))
    operator = AggregateUnderTest(settings, data + late, ticks, runtime=runtime)
    for bundle in _bundles(data, size):
        operator.add(bundle)
    # One below the end of time: with infinite lateness no window ever expires, and the end of time
    # itself would expire all.
    operator.advance_watermark(MAX - 1)
    for bundle in _bundles(late, size):
        operator.add(bundle)
    return operator


def _panes_of(operator: AggregateUnderTest) -> dict[tuple[int, int], list[list[Any]]]:
    found: dict[tuple[int, int], list[list[Any]]] = {}
    for pane in operator.take()[0]:
        if not pane.retract:
            found.setdefault(pane.window, []).append(pane.value)
    return found


def _pairs(scenario: Scenario, name: str) -> list[dict[str, Any]]:
    pairs = scenario.entries(name)
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise UnsupportedScenarioError(f"`{name}` must be a list of [t, v]")
    return [{"t": t, "v": v} for t, v in pairs]


def _bundles(events: list[dict[str, Any]], size: int) -> Iterator[list[dict[str, Any]]]:
    ordered = events[::-1] if size < 0 else events
    step = abs(size)
    yield from (ordered[i : i + step] for i in range(0, len(ordered), step))


def _compare(
    scenario: Scenario, found: dict[tuple[int, int], list[list[Any]]], ticks: Ticks, size: int
) -> None:
    wanted: dict[tuple[int, int], list[list[Any]]] = {}
    for entry in scenario.entries("expect"):
        known("an expected window", mapping("an expected window", entry), {"window", "panes"})
        wanted[interval(entry["window"], ticks)] = entry["panes"]
    same = wanted.keys() == found.keys() and all(
        len(wanted[w]) == len(found[w])
        and all(same_bag(a, b) for a, b in zip(wanted[w], found[w], strict=True))
        for w in wanted
    )
    if not same:
        expected, got = (
            {str([ticks.shown(edge) for edge in w]): side[w] for w in sorted(side)}
            for side in (wanted, found)
        )
        raise MismatchError(f"bundles of {size}: expected {expected}, got {got}")
