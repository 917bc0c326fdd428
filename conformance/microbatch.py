"""The kind `microbatch`: queries of Spark Structured Streaming, replayed with our operators under
Spark's habits.

A batch with its follow-up without data is one delivery: rows are judged by the watermark that stood
before, and it moves at the end. What counts rows by event time is a window of one tick.
Deduplication within the watermark is a session as long as the delay, of which the row that came
first is put out; what replaces a session is taken back, so the sum of what came out is what Spark
puts out. Where several inputs come together Spark has one watermark for the whole query, which is
computed here and set on the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from conformance.microbatch_chains import is_chain, run_chain
from conformance.microbatch_joins import STAGES, run_joins
from conformance.query_watermark import POLICIES, QueryWatermark
from tidegate.errors import SpecError
from tidegate.instants import MAX
from tidegate.scenarios.aggregate_adapter import FIRST_COME, SET_BY_SCENARIO, AggregateUnderTest
from tidegate.scenarios.document import (
    MismatchError,
    Scenario,
    UnsupportedScenarioError,
    known,
    mapping,
)
from tidegate.scenarios.matching import Pane, demand_rows
from tidegate.scenarios.runtimes import EMBEDDED, Runtime
from tidegate.scenarios.settings import OperatorSettings, choice, flag
from tidegate.scenarios.ticks import Ticks, ticks_of
from tidegate.scenarios.window_words import gap_rules, window_of
from tidegate.spec.presets import system_preset
from tidegate.spec.triggers import AfterCount, AfterWatermark
from tidegate.spec.watermarks import Bounded, Punctuated, Watermarks
from tidegate.spec.windows import Session, Tumbling, Window

_CONFIG = {
    "no_data_batches",
    "plan",
    "output_mode",
    "row",
    "policy",
    "semantics",
    "each_case_fresh",
    "restart_between_batches",
}
_STAGE = {"input", "watermark", "window", "group_by", "agg", "dedup_within_watermark", "union"}
_STEP = {
    "batch",
    "out",
    "all",
    "watermark",
    "watermark_used",
    "event_time",
    "state_rows",
    "dropped",
    "restart",
    "purge_last_commit",
    "clear_sink",
    "error",
}
_MODES = {"append": "append", "update": "update", "complete": "complete"}
_SPARK = "spark"
_ONLY = "input"
_RAW_TIME = "event_time"
_WORDS = "word"
_EVERY_BATCH = AfterWatermark(early=AfterCount(1), late=AfterCount(1))


def run_microbatch(scenario: Scenario, runtime: Runtime = EMBEDDED) -> None:
    """Apply the batches in order."""
    known("the scenario", scenario.body, {"steps"})
    ticks = ticks_of(scenario)
    stages = [mapping("a stage of the plan", stage) for stage in scenario.config.get("plan") or []]
    if is_chain(stages):
        run_chain(scenario, ticks, runtime)
        return
    if any(STAGES & stage.keys() for stage in stages):
        run_joins(scenario, ticks, runtime)
        return
    plan = _plan(scenario, ticks)
    steps = [mapping("a step", step) for step in scenario.entries("steps")]
    for step in steps:
        known("a step", step, _STEP)
    if any(step.get("error") for step in steps):
        try:
            opened = _Query(plan, steps, ticks, runtime)
        except SpecError:
            return
        if not opened.operator.is_rehearsed:
            raise MismatchError("the query must be refused, but it was accepted")
        return
    _Query(plan, steps, ticks, runtime).run()


@dataclass
class _Plan:
    """A plan of Spark in our terms."""

    delays: dict[str, Any] = field(default_factory=dict)
    """By input, how far its watermark is behind."""
    window: Window = field(default_factory=lambda: Tumbling(1))
    key: str | None = None
    dedup: bool = False
    mode: str = "append"
    row: tuple[str, ...] = ()
    policy: str = "min"
    no_data_batches: bool = True
    habits: str = _SPARK
    restarts: bool = False
    """Whether the query restarts between two batches."""
    gap_rules: list[dict[str, Any]] | None = None

    def settings(self) -> OperatorSettings:
        preset = system_preset(self.habits)
        options = {"future_tolerance": MAX, **preset.options}
        if self.dedup:
            # A row is late by its own time: how long it is remembered does not matter.
            return OperatorSettings(
                self.window,
                _EVERY_BATCH,
                "retracting",
                0,
                FIRST_COME,
                options={**options, "drop_by": "event"},
            )
        if self.mode == "update" and isinstance(self.window, Session):
            raise SpecError(
                "an update replaces the row of its window, and a session that grows is another"
                " window. Hint: retract what it replaces"
            )
        trigger = AfterWatermark() if self.mode == "append" else _EVERY_BATCH
        if self.mode == "update":
            options["on_time"] = "if_updated"
        return OperatorSettings(
            self.window,
            trigger,
            "retracting" if self.mode == "complete" else "accumulating",
            MAX if self.mode == "complete" else 0,
            "count",
            options=options,
            gap_rules=self.gap_rules,
        )

    @property
    def has_query_watermark(self) -> bool:
        """Whether the watermark follows Spark's own rule: where it lags by a batch, and where
        inputs' progress is lost in a restart.
        """
        return not self.no_data_batches or (len(self.delays) > 1 and self.habits == _SPARK)

    def watermarks(self, ticks: Ticks) -> tuple[Watermarks, ...]:
        if self.has_query_watermark:
            return SET_BY_SCENARIO
        if self.policy == "max" and len(self.delays) > 1:
            # All rows come in one input, and each says how far its own stream is with it.
            return (Punctuated(column="mark"),)
        return tuple(Bounded(ticks(delay)) for delay in self.delays.values())


def _plan(scenario: Scenario, ticks: Ticks) -> _Plan:
    config = scenario.config
    stages = [mapping("a stage of the plan", stage) for stage in config.get("plan") or []]
    known("`config`", config, _CONFIG)
    plan = _Plan(
        mode=choice(config, "output_mode", _MODES, "append"),
        row=tuple(config.get("row") or ()),
        policy=choice(config, "policy", {name: name for name in POLICIES}, "min"),
        no_data_batches=flag(config, "no_data_batches") if "no_data_batches" in config else True,
        habits=str(config.get("semantics", _SPARK)),
        restarts="restart_between_batches" in config and flag(config, "restart_between_batches"),
    )
    known("`row`", plan.row, {*_CELLS, _RAW_TIME})
    for stage in stages:
        known("a stage of the plan", stage, _STAGE)
        _read_stage(plan, stage, scenario, ticks)
    if not plan.delays:
        raise UnsupportedScenarioError("a plan needs a stage with `watermark`")
    return plan


def _read_stage(plan: _Plan, stage: Mapping[str, Any], scenario: Scenario, ticks: Ticks) -> None:
    if "watermark" in stage:
        plan.delays[str(stage.get("input", _ONLY))] = stage["watermark"]
    if "window" in stage:
        plan.window = window_of(scenario, ticks, stage["window"])
        if isinstance(plan.window, Session) and plan.window.gap_column:
            plan.gap_rules = gap_rules(stage["window"])
    if stage.get("group_by", _RAW_TIME) != _RAW_TIME:
        plan.key = str(stage["group_by"])
    if stage.get("agg", "count") != "count":
        raise UnsupportedScenarioError(f"`agg: {stage['agg']}` of a plan is not `count`")
    if "dedup_within_watermark" in stage:
        plan.dedup = True
        plan.key = str(stage["dedup_within_watermark"])
        plan.window = Session(gap=ticks(plan.delays[_ONLY]), touch="separate")


_CELLS: dict[str, Callable[[Pane, Ticks], Any]] = {
    "window_start": lambda pane, ticks: ticks.shown(pane.window[0]),
    "session_start": lambda pane, ticks: ticks.shown(pane.window[0]),
    "window_end": lambda pane, ticks: ticks.shown(pane.window[1]),
    "session_end": lambda pane, ticks: ticks.shown(pane.window[1]),
    "count": lambda pane, _: pane.value,
    "word": lambda pane, _: pane.key,
    "key": lambda pane, _: pane.key,
}
"""The columns of a row, but for the event time: that is the row's own where rows come out, and the
window where they are counted by it.
"""


class _Query:
    """A query that runs, and what is in its sink."""

    def __init__(
        self, plan: _Plan, steps: list[dict[str, Any]], ticks: Ticks, runtime: Runtime
    ) -> None:
        self._plan, self._steps, self._ticks = plan, steps, ticks
        events = [event for step in steps for rows in self._batch(step).values() for event in rows]
        self.operator = AggregateUnderTest(
            plan.settings(), events, ticks, watermarks=plan.watermarks(ticks), runtime=runtime
        )
        self._where = ""
        self._sink: list[Any] = []
        self._table: dict[tuple[Any, tuple[int, int]], Any] = {}
        self._dropped = self._watermark = 0
        delays = [ticks(delay) for delay in plan.delays.values()]
        self._query_watermark = (
            QueryWatermark(delays, POLICIES[plan.policy]) if plan.has_query_watermark else None
        )

    def run(self) -> None:
        for position, step in enumerate(self._steps):
            self._where = f"step {position + 1}"
            if step.get("restart") or (self._plan.restarts and position):
                self.operator.restart()
                if self._query_watermark is not None:
                    self._query_watermark.restart()
            if step.get("clear_sink"):
                self._sink.clear()
            used, before = self._used(), self._dropped
            rows = self._batch(step)
            self._deliver(rows)
            out = list(self._collect())
            self._watermark, self._dropped = max(0, self.operator.watermark), self.operator.dropped
            if not self.operator.is_rehearsed:
                self._check(step, rows, out, used, self._dropped - before)

    def _used(self) -> int:
        """The watermark of the next batch: without batches that have no data, it is set then."""
        if self._query_watermark is None or self._plan.no_data_batches:
            return self._watermark
        return self._query_watermark.value

    def _batch(self, step: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
        """The rows of each input."""
        batch = mapping("a batch", step.get("batch") or {})
        known("a batch", batch, self._plan.delays)
        return {
            name: [event for row in rows for event in self._events(row, self._plan.delays[name])]
            for name, rows in batch.items()
        }

    def _events(self, row: Any, delay: Any) -> Iterator[dict[str, Any]]:
        """A time, or a key and a time; a line of words is a row for each word."""
        key, time = row if isinstance(row, list) else (row, row)
        for name in str(key).split() if self._plan.key == _WORDS else [key]:
            event = {"t": time, "v": time}
            if self._plan.key is not None:
                event["k"] = name
            if self._plan.policy == "max":
                event["mark"] = time - delay
            yield event

    def _deliver(self, rows: Mapping[str, list[dict[str, Any]]]) -> None:
        events = [event for name in self._plan.delays for event in rows.get(name, [])]
        if self._query_watermark is not None:
            self._tell(self._query_watermark, rows, events)
            return
        if self._plan.policy == "max":
            self.operator.add(events)
            return
        for ordinal, name in enumerate(self._plan.delays):
            self.operator.add(rows.get(name, []), ordinal)

    def _tell(
        self,
        known: QueryWatermark,
        rows: Mapping[str, list[dict[str, Any]]],
        events: list[dict[str, Any]],
    ) -> None:
        """Deliver, and tell what the batch teaches: at its end where a batch without data follows,
        else before the next one.
        """
        if known.value and not self._plan.no_data_batches:
            self.operator.advance_watermark(known.value)
        self.operator.add(events)
        learnt = known.learn(
            [
                [self._ticks(event["t"]) for event in rows.get(name, [])]
                for name in self._plan.delays
            ]
        )
        if learnt and self._plan.no_data_batches:
            self.operator.advance_watermark(learnt)

    def _collect(self) -> Iterator[Any]:
        """The new rows; one that is taken back takes an equal one with it."""
        out: list[Any] = []
        gone: list[Any] = []
        for pane in self.operator.take()[0]:
            row = self._row(pane)
            (gone if pane.retract else out).append(row)
            if pane.retract:
                self._table.pop((pane.key, pane.window), None)
            else:
                self._table[pane.key, pane.window] = row
        for row in gone:
            if row in out:
                out.remove(row)
            else:
                out.append({"retract": row})
        self._sink += out
        return iter(out)

    def _row(self, pane: Pane) -> Any:
        time = pane.value if self._plan.dedup else self._ticks.shown(pane.window[0])
        cells = [
            time if name == _RAW_TIME else _CELLS[name](pane, self._ticks)
            for name in self._plan.row
        ]
        return cells[0] if len(cells) == 1 else cells

    def _check(
        self,
        step: Mapping[str, Any],
        rows: Mapping[str, list[dict[str, Any]]],
        out: list[Any],
        used: int,
        dropped: int,
    ) -> None:
        if "out" in step:
            demand_rows(step["out"], out, f"{self._where}: new rows")
        if "all" in step:
            demand_rows(
                step["all"],
                list(self._table.values()) if self._plan.mode == "complete" else self._sink,
                f"{self._where}: rows in all",
            )
        if "event_time" in step:
            self._event_time(
                step["event_time"],
                [
                    self._ticks.shown(self._ticks(e["t"]))
                    for events in rows.values()
                    for e in events
                ],
            )
        for name, found in (("watermark", self._watermark), ("watermark_used", used)):
            if name in step and not self._ticks.same(step[name], found):
                raise MismatchError(
                    f"{self._where}: expected {name} {step[name]}, got {self._ticks.shown(found)}"
                )
        for name, count in (("dropped", dropped), ("state_rows", len(self.operator.contents()))):
            if step.get(name, count) != count:
                raise MismatchError(f"{self._where}: expected {name} {step[name]}, got {count}")

    def _event_time(self, expected: Any, times: list[Any]) -> None:
        found = {
            "min": min(times, default=None),
            "max": max(times, default=None),
            "avg": fmean(times) if times else None,
        }
        known("`event_time`", mapping("`event_time`", expected), found)
        for name, value in expected.items():
            if value != found[name]:
                raise MismatchError(
                    f"{self._where}: expected event_time {name} {value}, got {found[name]}"
                )
