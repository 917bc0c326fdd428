"""The kind `worked_example` for aggregations: examples of design documents by the wall clock."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from conformance.worked_joins import WINDOW, run_worked_join
from tidegate.scenarios.aggregate_adapter import AggregateUnderTest
from tidegate.scenarios.document import (
    MismatchError,
    Scenario,
    UnsupportedScenarioError,
    known,
    mapping,
)
from tidegate.scenarios.matching import Pane, same_bag, same_value, same_window, unmatched
from tidegate.scenarios.runtimes import EMBEDDED, Runtime
from tidegate.scenarios.settings import OperatorSettings, operator_settings
from tidegate.scenarios.ticks import Ticks, ticks_of
from tidegate.spec.triggers import AfterDelay, Every, Policy
from tidegate.spec.watermarks import Implied
from tidegate.spec.windows import Axis, Tumbling

_EVENT = {"offset", "value", "time"}
_TUPLES = re.compile(r"offsets \[(-?\d+),\s*(-?\d+)\]")


def run_worked_example(scenario: Scenario, runtime: Runtime = EMBEDDED) -> None:
    """An aggregation with a periodic update, without any watermark: a window is full with the first
    message at or beyond its end.
    """
    known("the scenario", scenario.body, {"steps"})
    ticks = ticks_of(scenario)
    if any(name.endswith(WINDOW) for name in scenario.config):
        run_worked_join(scenario, ticks, runtime)
        return
    if "update_every" not in scenario.config:
        raise UnsupportedScenarioError("a worked example of an aggregation needs `update_every`")
    steps = [mapping("a step", step) for step in scenario.entries("steps")]
    for step in steps:
        known("a step", step, {"at", "event", "expect"})
    _Example(scenario, ticks, steps, runtime).run()


class _Example:
    """Two operators on the same messages: one for the results, one that tells which messages are
    new in each.
    """

    def __init__(
        self, scenario: Scenario, ticks: Ticks, steps: list[dict[str, Any]], runtime: Runtime
    ) -> None:
        self._ticks, self._steps = ticks, steps
        self._every = ticks(scenario.config["update_every"])
        settings = self._settings(scenario)
        self._messages = [
            self._event(number, step)
            for number, step in enumerate((s for s in steps if "event" in s), 1)
        ]
        self._results = AggregateUnderTest(
            settings, self._messages, ticks, watermarks=(Implied(),), runtime=runtime
        )
        names = [{**message, "v": message["name"]} for message in self._messages]
        self._news = AggregateUnderTest(
            replace(settings, mode="discarding", aggregate="list"),
            names,
            ticks,
            watermarks=(Implied(),),
            runtime=runtime,
        )

    def _settings(self, scenario: Scenario) -> OperatorSettings:
        settings = operator_settings(scenario, self._ticks, more=frozenset({"update_every"}))
        window = settings.window
        if isinstance(window, Tumbling) and window.axis is Axis.ORDINAL:
            # The example counts from the first offset of the stream, so its windows begin there.
            first = min(int(step["event"]["offset"]) for step in self._steps if "event" in step)
            window = Tumbling(window.size, first, Axis.OFFSET)
        start = min((self._ticks(step["at"]) for step in self._steps if "at" in step), default=0)
        trigger = Policy(early=Every(self._every), late=AfterDelay(self._every))
        return replace(settings, window=window, trigger=trigger, mode="accumulating", start=start)

    def _event(self, number: int, step: dict[str, Any]) -> dict[str, Any]:
        event = mapping("an event", step["event"])
        known("an event", event, _EVENT)
        return {
            "t": event["time"],
            "v": event["value"],
            "offset": event.get("offset"),
            "name": f"m{number}",
        }

    def run(self) -> None:
        messages = iter(self._messages)
        for position, step in enumerate(self._steps):
            if "at" in step:
                self._clock(self._ticks(step["at"]))
            if "event" in step:
                message = next(messages)
                self._results.add([message])
                self._news.add([{**message, "v": message["name"]}])
            if "expect" in step:
                if "at" not in step:
                    self._clock(self._until(position))
                self._expect(step["expect"], f"step {position + 1}")

    def _clock(self, now: int) -> None:
        for operator in (self._results, self._news):
            operator.move_clock(now)
            operator.run_clock()

    def _until(self, position: int) -> int:
        """An expectation without a time means: before the next thing happens, or else within one
        update.
        """
        later = next(
            (self._ticks(step["at"]) for step in self._steps[position + 1 :] if "at" in step), None
        )
        return self._results.now + self._every if later is None else later - 1

    def _expect(self, expected: list[Any], where: str) -> None:
        for pane in expected:
            known("an expected pane", mapping("an expected pane", pane), {"window", "new", "v"})
        found = list(self._panes())
        missing, extra = unmatched(expected, found, self._fits)
        if (missing or extra) and not self._results.is_rehearsed:
            shown = [
                {
                    "window": [self._ticks.shown(edge) for edge in p.window],
                    "v": p.value,
                    "new": p.extra["new"],
                }
                for p in extra
            ]
            raise MismatchError(f"{where}: missing {missing}, unexpected {shown}")

    def _panes(self) -> Iterator[Pane]:
        results, news = self._results.take()[0], self._news.take()[0]
        for pane in results:
            new: list[Any] = next(
                (
                    other.value
                    for other in news
                    if (other.window, other.index) == (pane.window, pane.index)
                ),
                [],
            )
            yield replace(pane, extra={"new": new})

    def _fits(self, expected: dict[str, Any], pane: Pane) -> bool:
        return (
            self._same_window(expected["window"], pane.window)
            and ("v" not in expected or same_value(expected["v"], pane.value))
            and ("new" not in expected or same_bag(expected["new"], pane.extra["new"]))
        )

    def _same_window(self, written: Any, window: tuple[int, int]) -> bool:
        tuples = _TUPLES.fullmatch(written) if isinstance(written, str) else None
        if tuples:
            return (int(tuples[1]), int(tuples[2]) + 1) == window
        return same_window(written, window, self._ticks)
