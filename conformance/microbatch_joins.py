"""Queries of Spark that join two streams, replayed with our join, alone or before a window.

Spark has one watermark for the whole query, the least of its inputs. It is computed here and set on
both sides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from conformance.query_watermark import POLICIES, QueryWatermark
from tidegate.instants import MAX
from tidegate.scenarios.aggregate_adapter import RESULT, specification
from tidegate.scenarios.document import (
    MismatchError,
    Scenario,
    UnsupportedScenarioError,
    known,
    mapping,
)
from tidegate.scenarios.join_adapter import JoinUnderTest, Message, Pair, Terms, time_column
from tidegate.scenarios.join_words import TYPES, read_condition
from tidegate.scenarios.matching import demand_rows
from tidegate.scenarios.runtimes import Runtime, window_of
from tidegate.scenarios.settings import OperatorSettings, choice, flag
from tidegate.scenarios.ticks import MICROSECONDS, Ticks
from tidegate.scenarios.window_words import window_of as read_window
from tidegate.spec.join import LEFT, RIGHT, SIDES, JoinWindow, Within
from tidegate.spec.operator import AggregateSpec
from tidegate.spec.presets import system_preset
from tidegate.spec.triggers import AfterWatermark
from tidegate.spec.windows import Hopping, Session, Tumbling, Window

STAGES = frozenset({"join", *SIDES})
"""Stages that only plans with joins have."""
_STAGE = STAGES | {"input", "watermark", "value", "window", "type", "agg"}
_CONFIG = frozenset(
    {"no_data_batches", "plan", "output_mode", "row", "policy", "semantics", "each_case_fresh"}
)
_STEP = frozenset(
    {
        "batch",
        "out",
        "all",
        "watermark",
        "watermark_used",
        "agg_watermark_ms",
        "state_rows",
        "dropped",
        "restart",
        "purge_last_commit",
        "clear_sink",
    }
)
_CHOSEN: dict[str, Callable[[int], bool]] = {
    "all rows": lambda _: True,
    "even values only": lambda value: value % 2 == 0,
    "odd values only": lambda value: value % 2 == 1,
}
_TIMES = {"t1 = t2": "left.t = right.t"}
_VALUE = re.compile(r"(?:t|key|value)\s*\*\s*(\d+)")


@dataclass
class _Plan:
    """A plan with a join in our terms."""

    delays: dict[str, Any] = field(default_factory=dict)
    """By input, how far its watermark is behind; None where it has none."""
    values: dict[str, int] = field(default_factory=dict)
    """By input, how many times the key a value is."""
    chosen: tuple[Callable[[int], bool], Callable[[int], bool]] | None = None
    """Where one stream is joined with itself, which of its rows each side has."""
    shared: Window | None = None
    terms: Terms | None = None
    then: Window | None = None
    by: int = LEFT
    row: tuple[str, ...] = ()
    policy: Callable[[Sequence[int]], int] = min
    no_data_batches: bool = True

    @property
    def is_of_equal_times(self) -> bool:
        """Whether the join asks for equal times, so that those of either side can be used."""
        return self.terms is not None and self.terms.window == (Within(0, 0, "both"),)

    @property
    def inputs(self) -> tuple[str, str]:
        """The inputs of the sides."""
        names = tuple(self.delays)
        return (names[0], names[0]) if self.chosen is not None else (names[0], names[1])


def run_joins(scenario: Scenario, ticks: Ticks, runtime: Runtime) -> None:
    """Apply the batches in order."""
    known("the scenario", scenario.body, {"steps"})
    plan = _plan(scenario, ticks)
    steps = [mapping("a step", step) for step in scenario.entries("steps")]
    for step in steps:
        known("a step", step, _STEP)
    query = _Query(plan, ticks, runtime, scenario)
    for number, step in enumerate(steps, 1):
        query.step(step, f"step {number}")


def _plan(scenario: Scenario, ticks: Ticks) -> _Plan:
    config = scenario.config
    known("`config`", config, _CONFIG)
    plan = _Plan(
        row=tuple(config.get("row") or ()),
        policy=choice(config, "policy", POLICIES, min),
        no_data_batches=flag(config, "no_data_batches") if "no_data_batches" in config else True,
    )
    choice(config, "output_mode", {"append": "append"}, "append")
    for stage in config["plan"]:
        known("a stage of the plan", stage, _STAGE)
        _read_stage(plan, stage, scenario, ticks)
    if plan.terms is None or len(plan.delays) != (1 if plan.chosen else 2):
        raise UnsupportedScenarioError(
            "a plan with a join has two inputs, or one and which of its rows are `left` and `right`"
        )
    known("`row`", plan.row, _PANE_CELLS if plan.then is not None else _CELLS)
    return plan


def _read_stage(plan: _Plan, stage: Mapping[str, Any], scenario: Scenario, ticks: Ticks) -> None:
    if "input" in stage:
        name = str(stage["input"])
        plan.delays[name] = stage.get("watermark")
        scaled = _VALUE.fullmatch(str(stage.get("value", "t*1")))
        if scaled is None:
            raise UnsupportedScenarioError(
                f"`value: {stage['value']}` is not the time or the key times a number"
            )
        plan.values[name] = int(scaled[1])
    elif "join" in stage:
        plan.terms = _terms(plan, stage, scenario, ticks)
    elif stage.keys() & set(SIDES):
        known("what the sides have", [stage.get(side) for side in SIDES], _CHOSEN)
        plan.chosen = (_CHOSEN[stage["left"]], _CHOSEN[stage["right"]])
    elif "window" in stage:
        given = dict(mapping("`window`", stage["window"]))
        by = given.pop("by", "left.t" if plan.is_of_equal_times else None)
        window = read_window(scenario, ticks, given)
        if plan.terms is None:
            plan.shared = window
        elif by in tuple(f"{side}.t" for side in SIDES):
            plan.then, plan.by = window, SIDES.index(by.removesuffix(".t"))
        else:
            raise UnsupportedScenarioError(
                f"a window after a join is `by: left.t` or `by: right.t`, got `{by}`"
            )
    if stage.get("agg", "count") != "count" or ("agg" in stage and plan.then is None):
        raise UnsupportedScenarioError("what is aggregated after a join is `count`, in a window")


def _terms(plan: _Plan, stage: Mapping[str, Any], scenario: Scenario, ticks: Ticks) -> Terms:
    if plan.terms is not None:
        raise UnsupportedScenarioError("a plan with two joins is not covered by this version")
    condition = read_condition(_TIMES.get(stage["join"], stage["join"]), ticks)
    window: JoinWindow | None = None if condition.bound is None else (condition.bound,)
    if condition.shares_window and isinstance(plan.shared, Tumbling | Hopping | Session):
        window = None if window is not None else plan.shared
    if window is None:
        raise UnsupportedScenarioError(
            "a join has bounds of times, or a window before it that both sides share:"
            f" `{stage['join']}`"
        )
    return Terms(
        window=window,
        how=choice(stage, "type", TYPES, "inner"),
        keyed=condition.keyed,
        where=condition.where,
        options=system_preset(str(scenario.config.get("semantics", "spark"))).options,
    )


def _part(side: int, name: str) -> Callable[[Pair, Ticks], Any]:
    """A cell that shows something of one side's message."""

    def cell(pair: Pair, _: Ticks) -> Any:
        message = pair.message(side)
        return None if message is None else message.get(name)

    return cell


def _either_key(pair: Pair, _: Ticks) -> Any:
    message = pair.left if pair.left is not None else pair.right
    return None if message is None else message.get("k")


_CELLS: dict[str, Callable[[Pair, Ticks], Any]] = {
    **{
        f"{side}_{word}": _part(number, "k")
        for number, side in enumerate(SIDES)
        for word in ("key", "id")
    },
    **{f"{side}_t": _part(number, "t") for number, side in enumerate(SIDES)},
    **{f"{side}_value": _part(number, "v") for number, side in enumerate(SIDES)},
    "key": _either_key,
    "id": _either_key,
    "window_start": lambda pair, ticks: (
        None if pair.window is None else ticks.shown(pair.window[0])
    ),
    "window_end": lambda pair, ticks: None if pair.window is None else ticks.shown(pair.window[1]),
}
_PANE_CELLS: dict[str, Callable[[Mapping[str, Any], Ticks], Any]] = {
    "window_start": lambda row, ticks: ticks.shown(window_of(row)[0]),
    "window_end": lambda row, ticks: ticks.shown(window_of(row)[1]),
    "count": lambda row, _: row[RESULT],
}


class _Query:
    """A query that runs, and what is in its sink."""

    def __init__(self, plan: _Plan, ticks: Ticks, runtime: Runtime, scenario: Scenario) -> None:
        if plan.terms is None:
            raise UnsupportedScenarioError("the plan has no join")
        self._plan, self._ticks = plan, ticks
        self._meeting = JoinUnderTest(plan.terms, ticks, runtime, then=_downstream(plan, scenario))
        delays = [plan.delays[name] for name in plan.inputs]
        self._watermark = QueryWatermark(
            [None if delay is None else ticks(delay) for delay in delays], plan.policy
        )
        self._last_watermark = 0
        self._sink: list[Any] = []

    def step(self, step: Mapping[str, Any], where: str) -> None:
        if step.get("restart"):
            self._meeting.restart()
            self._watermark.restart()
        if step.get("clear_sink"):
            self._sink.clear()
        left, right = self._batch(step)
        self._meeting.add(left, right)
        before = self._watermark.value
        learnt = self._watermark.learn(
            [[self._ticks(row["t"]) for row in rows] for rows in (left, right)]
        )
        self._tell(learnt if self._plan.no_data_batches else before)
        out, dropped = self._collect()
        if self._meeting.is_rehearsed:
            return
        self._check(step, where, out, {"watermark": learnt, "watermark_used": before})
        if step.get("dropped", dropped) != dropped:
            raise MismatchError(f"{where}: expected dropped {step['dropped']}, got {dropped}")

    def _batch(self, step: Mapping[str, Any]) -> tuple[list[Message], list[Message]]:
        """The rows of each side: a time, or a key and a time."""
        batch = mapping("a batch", step.get("batch") or {})
        known("a batch", batch, self._plan.delays)
        found: list[list[Message]] = []
        for side, name in enumerate(self._plan.inputs):
            rows = [row if isinstance(row, list) else [row, row] for row in batch.get(name) or []]
            if not all(len(row) == 2 for row in rows):
                raise UnsupportedScenarioError(
                    f"a row of a batch is a time, or a key and a time: {rows}"
                )
            if self._plan.chosen is not None:
                rows = [row for row in rows if self._plan.chosen[side](row[0])]
            times = self._plan.values[name]
            found.append(
                [
                    {"k": key, "t": time, "v": key * times if isinstance(key, int) else None}
                    for key, time in rows
                ]
            )
        return found[LEFT], found[RIGHT]

    def _tell(self, watermark: int) -> None:
        if watermark > self._last_watermark:
            self._last_watermark = watermark
            for side in (LEFT, RIGHT):
                self._meeting.advance_watermark(side, watermark)

    def _collect(self) -> tuple[list[Any], int]:
        """The new rows, and how many were too late."""
        if self._plan.then is None:
            pairs, late = self._meeting.take()
            made = [
                ([_CELLS[name](pair, self._ticks) for name in self._plan.row], pair.retract)
                for pair in pairs
            ]
        else:
            rows, late = self._meeting.take_rows()
            made = [
                ([_PANE_CELLS[name](row, self._ticks) for name in self._plan.row], row["op"] == "-")
                for row in rows
            ]
        out = [
            {"retract": cells} if retract else cells[0] if len(cells) == 1 else cells
            for cells, retract in made
        ]
        self._sink += out
        return out, len(late)

    def _check(
        self, step: Mapping[str, Any], where: str, out: list[Any], marks: Mapping[str, int]
    ) -> None:
        for name, what, found in (("out", "new rows", out), ("all", "rows in all", self._sink)):
            if name in step:
                demand_rows(step[name], found, f"{where}: {what}")
        for name, mark in marks.items():
            if name in step and not self._ticks.same(step[name], mark):
                raise MismatchError(
                    f"{where}: expected {name} {step[name]}, got {self._ticks.shown(mark)}"
                )
        if "agg_watermark_ms" in step:
            self._downstream_watermark(step["agg_watermark_ms"], where)
        if "state_rows" in step:
            if self._plan.then is not None:
                raise UnsupportedScenarioError(
                    "`state_rows` is understood where a join stands alone"
                )
            kept = sum(len(self._meeting.held(side)) for side in (LEFT, RIGHT))
            if kept != step["state_rows"]:
                raise MismatchError(
                    f"{where}: expected state_rows {step['state_rows']}, got {kept}"
                )

    def _downstream_watermark(self, expected: Any, where: str) -> None:
        """What the window after the join goes by; Spark takes a millisecond off what the join
        knows.
        """
        found = self._meeting.output_watermark(self._plan.by)
        found_value = Fraction(found * MICROSECONDS[self._ticks.unit], 1000 * self._ticks.scale) - 1
        if found_value != expected:
            raise MismatchError(f"{where}: expected agg_watermark_ms {expected}, got {found_value}")


def _downstream(plan: _Plan, scenario: Scenario) -> AggregateSpec | None:
    if plan.then is None:
        return None
    options = {
        "future_tolerance": MAX,
        **system_preset(str(scenario.config.get("semantics", "spark"))).options,
    }
    spec = specification(
        OperatorSettings(plan.then, AfterWatermark(), "accumulating", 0, "count", options=options),
        keyed=False,
    )
    return replace(spec, input=replace(spec.input, time=time_column(plan.by)))
