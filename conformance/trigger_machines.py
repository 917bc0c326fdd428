"""The kind `trigger`: the state machine of a trigger alone, per window, without an operator around
it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from conformance.assignment import Interval
from tidegate.instants import MIN
from tidegate.kernel.groups import Groups
from tidegate.kernel.triggers import TriggerContext, compile_trigger
from tidegate.kernel.windows.assigners import build
from tidegate.scenarios.document import (
    MismatchError,
    Scenario,
    UnsupportedScenarioError,
    known,
    mapping,
)
from tidegate.scenarios.matching import interval
from tidegate.scenarios.settings import CONFIG
from tidegate.scenarios.ticks import Ticks, ticks_of
from tidegate.scenarios.trigger_words import TriggerReader
from tidegate.scenarios.window_words import window_of
from tidegate.spec.triggers import Trigger
from tidegate.spec.windows import Window

State = dict[str, np.ndarray]
STEPS = frozenset({"events", "watermark", "processing_time", "merge", "fire", "check"})


@dataclass
class _Machines:
    """The machines of all windows of a scenario, and the watermark and clock they see."""

    trigger: Trigger
    window: Window
    watermark: int = MIN
    now: int = 0
    states: dict[Interval, State] = field(default_factory=dict)
    pending: dict[Interval, int] = field(default_factory=dict)
    became: dict[Interval, Interval] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.machine = compile_trigger(self.trigger)

    def context(self, window: Interval, times: np.ndarray | None = None) -> TriggerContext:
        waiting = np.array([self.pending.get(window, 0)], np.int64)
        end = np.array([window[1]], np.int64)
        watermark = np.array([self.watermark], np.int64)
        if times is None:
            return TriggerContext(end=end, watermark=watermark, now=self.now, pending=waiting)
        return TriggerContext(
            end=end, watermark=watermark, now=self.now, pending=waiting, times=times
        )

    def state(self, window: Interval) -> State:
        if window not in self.states:
            self.states[window] = self.machine.initial(1, self.now)
        return self.states[window]

    def add(self, times: list[int], apart: frozenset[Interval] = frozenset()) -> None:
        """One bundle: each window gets its share at once; a window that has finished gets
        nothing.

        Windows that have been merged before get their share again where they are `apart`.
        """
        shares: dict[Interval, list[int]] = {}
        found = build(self.window).assign(np.array(times, np.int64))
        for row, start, end in zip(
            found.row.tolist(), found.start.tolist(), found.end.tolist(), strict=True
        ):
            own = (start, end)
            shares.setdefault(own if own in apart else self.current(own), []).append(times[row])
        for window, share in shares.items():
            if self.finished(window):
                continue
            context = self.context(window, np.array([min(share)], np.int64))
            self.machine.on_elements(self.state(window), np.array([len(share)], np.int64), context)
            self.pending[window] = self.pending.get(window, 0) + len(share)

    def current(self, window: Interval) -> Interval:
        """The window that a window has been merged into."""
        while window in self.became:
            window = self.became[window]
        return window

    def ready(self, window: Interval) -> bool:
        return not self.finished(window) and bool(
            self.machine.ready(self.state(window), self.context(window))[0]
        )

    def finished(self, window: Interval) -> bool:
        return bool(self.machine.finished(self.state(window))[0])

    def fire(self, window: Interval) -> None:
        if self.ready(window):
            self.machine.fire(self.state(window), np.ones(1, bool), self.context(window))
            self.pending[window] = 0

    def merge(self, parts: list[Interval], to: Interval) -> None:
        states = [self.state(part) for part in parts]
        joined = {name: np.concatenate([state[name] for state in states]) for name in states[0]}
        waiting = sum(self.pending.pop(part, 0) for part in parts)
        for part in parts:
            self.states.pop(part, None)
        self.states[to] = self.machine.merge(joined, Groups.single(len(parts)))
        self.pending[to] = waiting
        self.became |= {part: to for part in parts if part != to}
        self.became.pop(to, None)


def run_trigger(scenario: Scenario) -> None:
    """Drive the machine through the steps."""
    known("the scenario", scenario.body, {"steps"})
    known("`config`", scenario.config, CONFIG)
    ticks = ticks_of(scenario)
    reading = TriggerReader(ticks, scenario.extension).read(str(scenario.config.get("trigger")))
    if reading.trigger is None or reading.clock or reading.closing or reading.mode:
        raise UnsupportedScenarioError(
            f"kind `trigger` runs plain triggers only, got `{scenario.config.get('trigger')}`"
        )
    machines = _Machines(reading.trigger, window_of(scenario, ticks))
    steps = [mapping("a step", step) for step in scenario.entries("steps")]
    for number, step in enumerate(steps, 1):
        known("a step", step, STEPS)
        following = steps[number].get("merge") if number < len(steps) else None
        apart = frozenset() if following is None else frozenset(_parts(following, ticks))
        for name, value in step.items():
            _step(machines, name, value, ticks, f"step {number}", apart)


def _step(
    machines: _Machines,
    name: str,
    value: Any,
    ticks: Ticks,
    where: str,
    apart: frozenset[Interval],
) -> None:
    """Apply one word of a step; the windows `apart` are merged by the next step."""
    actions: dict[str, Callable[[], None]] = {
        "events": lambda: machines.add([ticks(t) for t in value], apart),
        "watermark": lambda: setattr(machines, "watermark", ticks.watermark(value)),
        "processing_time": lambda: setattr(machines, "now", ticks(value)),
        "fire": lambda: machines.fire(interval(value, ticks)),
        "merge": lambda: _merge(machines, value, ticks),
        "check": lambda: _check(machines, value, ticks, where),
    }
    actions[name]()


def _merge(machines: _Machines, value: Any, ticks: Ticks) -> None:
    machines.merge(_parts(value, ticks), interval(value["to"], ticks))


def _parts(value: Any, ticks: Ticks) -> list[Interval]:
    """The windows that a merge unites."""
    known("a merge", mapping("a merge", value), {"from", "to"})
    return [interval(w, ticks) for w in value["from"]]


def _check(machines: _Machines, value: Any, ticks: Ticks, where: str) -> None:
    known("a check", mapping("a check", value), {"window", "ready", "finished"})
    window = interval(value["window"], ticks)
    for name, found in (("ready", machines.ready(window)), ("finished", machines.finished(window))):
        if name in value and bool(value[name]) != found:
            raise MismatchError(
                f"{where}: window {value['window']} expected {name} {str(value[name]).lower()}, got"
                f" {str(found).lower()}"
            )
