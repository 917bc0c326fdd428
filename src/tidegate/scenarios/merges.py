"""The kind `cogroup`: a merge of several inputs by window and key, with the values of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tidegate.instants import MIN
from tidegate.scenarios.aggregate_adapter import ValueCodes, specification
from tidegate.scenarios.document import (
    MismatchError,
    Scenario,
    UnsupportedScenarioError,
    is_set,
    known,
    mapping,
    steps_of,
)
from tidegate.scenarios.matching import TIMINGS, same_bag, same_value, same_window, unmatched
from tidegate.scenarios.runtimes import EMBEDDED, Records, Runtime, window_of
from tidegate.scenarios.settings import operator_settings
from tidegate.scenarios.ticks import Ticks, ticks_of
from tidegate.spec import aggregates
from tidegate.spec.operator import AggregateSpec
from tidegate.spec.watermarks import Explicit
from tidegate.spec.windows import Axis

MESSAGE = frozenset({"t", "k", "v"})
ACTIONS = MESSAGE | {"in", "wm", "watermark", "processing_time", "snapshot_restore", "end_of_input"}
CHECKS = frozenset({"out", "state", "expect"})
OF_STATE = frozenset({"window", "k", "sides"})
OF_PANE = OF_STATE | {"timing", "retract"}


def run_cogroup(scenario: Scenario, runtime: Runtime = EMBEDDED) -> None:
    """Apply the steps in order."""
    ticks, steps = ticks_of(scenario), steps_of(scenario, ACTIONS | CHECKS)
    merge = _Merge(scenario, ticks, steps, runtime)
    for number, step in enumerate(steps, 1):
        merge.step(step, f"step {number}")


class _Merge:
    """A merge under a scenario."""

    def __init__(
        self, scenario: Scenario, ticks: Ticks, steps: list[dict[str, Any]], runtime: Runtime
    ) -> None:
        settings = operator_settings(scenario, ticks)
        self._ticks, self._now = ticks, settings.start
        self._keys, self._values = ValueCodes(), ValueCodes()
        self._inputs = _inputs_of(steps)
        self._keyed = any("k" in step for step in steps)
        if settings.window.axis is not Axis.EVENT_TIME:
            raise UnsupportedScenarioError(
                f"inputs are brought together on event time, got a window on {settings.window.axis}"
            )
        spec = specification(settings, keyed=self._keyed, watermarks=[Explicit()] * self._inputs)
        schema = pa.unify_schemas([self._table(n, []).schema for n in range(self._inputs)])
        self._running = runtime.open(_sided(spec), schema, self._now)
        self._watermark = MIN
        self._panes: Records = []

    def step(self, step: dict[str, Any], where: str) -> None:
        self._act(step)
        self._panes += self._running.take()[0]
        if self._running.is_rehearsed:
            return
        watermark = self._running.watermark
        moved = [] if watermark == self._watermark else [self._ticks.shown_watermark(watermark)]
        self._watermark = watermark
        if (
            "out" in step
            and [self._ticks.shown_watermark(self._ticks.watermark(one)) for one in step["out"]]
            != moved
        ):
            raise MismatchError(
                f"{where}: the watermark {step['out']} must be passed on, came {moved}"
            )
        if "state" in step:
            self._same(step["state"], self._running.contents(), OF_STATE, f"{where}, state")
        if "expect" in step:
            panes, self._panes = self._panes, []
            self._same(step["expect"], panes, OF_PANE, where)

    def _act(self, step: dict[str, Any]) -> None:
        if "in" in step and not step.keys() & {"wm", *MESSAGE}:
            raise UnsupportedScenarioError(
                f"a step with `in` brings a message or a watermark: {step}"
            )
        if step.keys() & MESSAGE:
            if "in" not in step or "wm" in step:
                raise UnsupportedScenarioError(
                    f"a message has `in`, and no watermark beside it: {step}"
                )
            self._running.add(self._table(step["in"], [step]), self._now, step["in"])
        elif "wm" in step:
            self._advance(self._ticks.watermark(step["wm"]), step.get("in"))
        if "watermark" in step:
            self._advance(self._ticks.watermark(step["watermark"]), None)
        if "processing_time" in step:
            self._now = self._ticks(step["processing_time"])
            self._running.run_clock(self._now)
        if is_set(step, "snapshot_restore"):
            self._running.restart(self._now)
        if is_set(step, "end_of_input"):
            self._running.finish()

    def _advance(self, watermark: int, ordinal: int | None) -> None:
        """The watermark of one input, or of all."""
        for number in range(self._inputs) if ordinal is None else [ordinal]:
            self._running.advance_watermark(watermark, number)

    def _table(self, ordinal: int, messages: list[dict[str, Any]]) -> pa.Table:
        """Messages of an input, with its own value column. Default time: 0."""
        columns = {
            "t": pa.array([self._ticks(message.get("t", 0)) for message in messages], pa.int64())
        }
        if self._keyed:
            columns["k"] = pa.array(
                [self._keys.code(message.get("k")) for message in messages], pa.int64()
            )
        columns[f"v{ordinal}"] = pa.array(
            [self._values.code(message.get("v")) for message in messages], pa.int64()
        )
        return pa.table(columns)

    def _same(self, expected: Any, found: Records, words: frozenset[str], where: str) -> None:
        if not isinstance(expected, list):
            raise UnsupportedScenarioError(f"{where}: a list was expected, got `{expected}`")
        for one in expected:
            known("what is expected", mapping("what is expected", one), words)
            if not isinstance(one.get("sides"), list) or len(one["sides"]) != self._inputs:
                raise UnsupportedScenarioError(
                    f"`sides` must list the values of each of the {self._inputs} inputs, got"
                    f" `{one.get('sides')}`"
                )
        missing, extra = unmatched(expected, [self._read(row) for row in found], self._fits)
        if missing or extra:
            shown = [
                {**row, "window": [self._ticks.shown(edge) for edge in row["window"]]}
                for row in extra
            ]
            raise MismatchError(f"{where}: missing {missing}, unexpected {shown}")

    def _read(self, row: Mapping[str, Any]) -> dict[str, Any]:
        sides = [
            [self._values.value(code) for code in row[_side(number)] or []]
            for number in range(self._inputs)
        ]
        pane = {"timing": row["timing"], "retract": row["op"] == "-"} if "op" in row else {}
        return {
            "window": window_of(row),
            "k": self._keys.value(row.get("k")),
            "sides": sides,
            **pane,
        }

    def _fits(self, expected: dict[str, Any], row: dict[str, Any]) -> bool:
        return (
            all(
                same_bag(one, other)
                for one, other in zip(expected["sides"], row["sides"], strict=True)
            )
            and ("k" not in expected or same_value(expected["k"], row["k"]))
            and (
                "window" not in expected
                or same_window(expected["window"], row["window"], self._ticks)
            )
            and ("timing" not in expected or TIMINGS.get(expected["timing"]) == row["timing"])
            and expected.get("retract", False) == row.get("retract", False)
        )


def _inputs_of(steps: list[dict[str, Any]]) -> int:
    """How many inputs there are: two, or as many as the steps number."""
    numbers = [step["in"] for step in steps if "in" in step]
    if not all(
        isinstance(number, int) and not isinstance(number, bool) and number >= 0
        for number in numbers
    ):
        raise UnsupportedScenarioError(f"`in` is the number of an input, got {numbers}")
    return max(2, *(number + 1 for number in numbers)) if numbers else 2


def _side(number: int) -> str:
    return f"side{number}"


def _sided(spec: AggregateSpec) -> AggregateSpec:
    """The same windows with the values of each input as a list."""
    names = tuple(f"in{number}" for number in range(len(spec.inputs)))
    sides = tuple(
        (_side(number), aggregates.list_(f"v{number}", of=name))
        for number, name in enumerate(names)
    )
    return replace(spec, aggregates=sides, names=names)
