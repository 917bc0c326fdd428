"""Queries of Spark with several stateful operators in a row, replayed with chained operators.

Every stage is an embedded operator that feeds the next one. As in `microbatch`, a batch with its
follow-up without data is one delivery.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from tidegate.embedded.join import EmbeddedJoin
from tidegate.embedded.operator import EmbeddedOperator
from tidegate.instants import MAX
from tidegate.scenarios.document import (
    MismatchError,
    Scenario,
    UnsupportedScenarioError,
    known,
    mapping,
)
from tidegate.scenarios.matching import demand_rows
from tidegate.scenarios.runtimes import EMBEDDED, Runtime
from tidegate.scenarios.settings import flag
from tidegate.scenarios.ticks import Ticks
from tidegate.scenarios.window_words import window_of
from tidegate.spec import aggregates
from tidegate.spec.aggregates import Aggregate
from tidegate.spec.join import SIDES, JoinSpec, Within
from tidegate.spec.operator import AggregateSpec, Input, Options
from tidegate.spec.presets import system_preset
from tidegate.spec.triggers import AfterWatermark
from tidegate.spec.watermarks import Bounded, Explicit, Watermarks
from tidegate.spec.windows import Window

_STAGE = frozenset({"input", "watermark", "dedup", "window", "of", "agg", "join", "type"})
_CONFIG = frozenset({"no_data_batches", "plan", "output_mode", "row", "semantics"})
_STEP = frozenset({"batch", "out", "watermark", "state_rows", "dropped"})
_ONLY = "input"
_ON = ("previous_window", "window_time")
"""What a window of a window may be made on: both are the end of the window before it."""
_AGGREGATES = {"count": "t", "sum": "t", "sum_of_count": "count", "sum_of_sum": "sum"}
"""The column of the stage before it that an aggregate reads."""


def is_chain(stages: list[dict[str, Any]]) -> bool:
    """Whether a plan has several stateful operators in a row that no other module plays."""
    return sum("window" in stage for stage in stages) > 1 or any("dedup" in s for s in stages)


def run_chain(scenario: Scenario, ticks: Ticks, runtime: Runtime) -> None:
    """Apply the batches in order."""
    if runtime is not EMBEDDED:
        raise UnsupportedScenarioError("chains of Spark's operators are replayed embedded only")
    known("`config`", scenario.config, _CONFIG)
    known("`output_mode`", [scenario.config.get("output_mode", "append")], {"append"})
    if not flag({"no_data_batches": True, **scenario.config}, "no_data_batches"):
        raise UnsupportedScenarioError("a chain without `no_data_batches` is not covered")
    query = _Query(scenario, ticks)
    for number, step in enumerate(scenario.entries("steps"), 1):
        known("a step", mapping("a step", step), _STEP)
        query.step(step, f"step {number}")


@dataclass
class _Line:
    """The operators from one input on: windows over windows."""

    delay: int
    dedup: bool = False
    windows: list[Window] = field(default_factory=list)
    results: list[dict[str, Aggregate]] = field(default_factory=list)

    def specs(self, options: Options) -> Iterator[AggregateSpec]:
        if len(self.windows) != len(self.results):
            raise UnsupportedScenarioError("every window of a chain needs an `agg` after it")
        watermark: Watermarks = Bounded(self.delay)
        given = Input(time="t", id="id" if self.dedup else None, watermark=watermark)
        for window, results in zip(self.windows, self.results, strict=True):
            yield AggregateSpec(
                given, window, tuple(results.items()), AfterWatermark(), "accumulating", 0, options
            )
            given = Input(time="time", watermark=Explicit())


class _Query:
    """A query that runs."""

    def __init__(self, scenario: Scenario, ticks: Ticks) -> None:
        self._ticks = ticks
        self._row = tuple(scenario.config.get("row") or ())
        lines, join = _plan(scenario, ticks)
        preset = system_preset(str(scenario.config.get("semantics", "spark")))
        options = Options(**{"future_tolerance": MAX, **preset.options})
        self._join = _joined(options) if join else None
        if join != (len(lines) == 2) or len(lines) > 2:
            raise UnsupportedScenarioError("a chain has one input, or two that are joined")
        self._chains: dict[str, list[EmbeddedOperator]] = {}
        for side, (name, line) in enumerate(lines.items()):
            self._chains[name] = _opened(list(line.specs(options)), self._join, side)

    def step(self, step: Mapping[str, Any], where: str) -> None:
        """Deliver a batch, and compare."""
        for name, times in self._batch(step).items():
            rows = [self._ticks(time) for time in times]
            table = pa.table({"t": pa.array(rows, pa.int64()), "id": pa.array(rows, pa.int64())})
            self._chains[name][0].add_messages(table, now=0)
        last = self._join if self._join is not None else self._operators[-1]
        found = [self._cells(row) for row in last.get_result().panes.to_pylist()]
        dropped = [_windows_dropped(operator) for operator in self._operators]
        self._flush()
        if "out" in step:
            demand_rows(step["out"], found, f"{where}: new rows")
        watermark = min(chain[0].watermark or 0 for chain in self._chains.values())
        if "watermark" in step and not self._ticks.same(step["watermark"], max(0, watermark)):
            raise MismatchError(
                f"{where}: expected watermark {step['watermark']}, got"
                f" {self._ticks.shown(watermark)}"
            )
        for word, counts in (("dropped", dropped), ("state_rows", self._state_rows())):
            if step.get(word, counts) != counts:
                raise MismatchError(f"{where}: expected {word} {step[word]}, got {counts}")

    def _batch(self, step: Mapping[str, Any]) -> dict[str, list[Any]]:
        """The times of each input; `input_range` has its first and its last."""
        batch = dict(mapping("a batch", step.get("batch") or {}))
        if "input_range" in batch:
            first, last = batch.pop("input_range")
            batch[_ONLY] = list(range(first, last + 1))
        known("a batch", batch, self._chains)
        return batch

    @property
    def _operators(self) -> list[EmbeddedOperator]:
        return [operator for chain in self._chains.values() for operator in chain]

    def _flush(self) -> None:
        for chain in self._chains.values():
            chain[0].flush()

    def _state_rows(self) -> list[int]:
        """The rows of every operator's state; ids come before the windows that they guard."""
        found: list[int] = []
        for operator in self._operators:
            if operator.spec.input.id is not None:
                found.append(len(operator.operator.ids))
            found.append(operator.peek().num_rows)
        return found

    def _cells(self, row: Mapping[str, Any]) -> list[Any]:
        known("`row`", self._row, {*row, "window_end"})
        named = {"window_end": row.get("left_window_end"), **row}
        return [
            self._ticks.shown(named[name]) if name.startswith("window_") else named[name]
            for name in self._row
        ]


def _plan(scenario: Scenario, ticks: Ticks) -> tuple[dict[str, _Line], bool]:
    """The operators of each input, and whether they are joined at the end."""
    lines: dict[str, _Line] = {}
    join = False
    for stage in scenario.config["plan"]:
        known("a stage of the plan", stage, _STAGE)
        if "watermark" in stage:
            lines[str(stage.get("input", _ONLY))] = _Line(ticks(stage["watermark"]))
        elif "join" in stage:
            join = True
            if stage["join"] != "window = window" or stage.get("type") != "inner":
                raise UnsupportedScenarioError(
                    f"windows are joined by `window = window`, got `{stage['join']}`"
                )
        else:
            _read_stage(lines, stage, scenario, ticks)
    return lines, join


def _read_stage(
    lines: dict[str, _Line], stage: Mapping[str, Any], scenario: Scenario, ticks: Ticks
) -> None:
    name = str(stage.get("of", _ONLY))
    if name not in lines:
        raise UnsupportedScenarioError(f"the plan has no input `{name}` before {stage}")
    line = lines[name]
    if "window" in stage:
        given: dict[Any, Any] = dict(mapping("`window`", stage["window"]))
        # YAML reads the key `on` as a truth value.
        known("what a window is made on", {given.pop(True, _ON[0]), given.pop("on", _ON[0])}, _ON)
        line.windows.append(window_of(scenario, ticks, given))
    elif "agg" in stage:
        words = stage["agg"] if isinstance(stage["agg"], list) else [stage["agg"]]
        known("`agg`", words, _AGGREGATES)
        suffix = "" if name == _ONLY else f"_{name}"
        line.results.append(
            {
                word.partition("_")[0] + suffix: (
                    aggregates.count() if word == "count" else aggregates.sum(_AGGREGATES[word])
                )
                for word in words
            }
        )
    elif "dedup" in stage:
        line = replace(line, dedup=True)
        lines[name] = line


def _joined(options: Options) -> EmbeddedJoin:
    """The inner join of the panes of two chains with the same window."""
    left, right = (Input(time="time", watermark=Explicit()) for _ in SIDES)
    return EmbeddedJoin(
        JoinSpec(
            left,
            right,
            (Within(0, 0, "both"),),
            on=(("window_end", "window_end"),),
            how="inner",
            allowed_lateness=0,
            options=options,
        ),
        now=0,
    )


def _opened(
    specs: list[AggregateSpec], join: EmbeddedJoin | None, side: int
) -> list[EmbeddedOperator]:
    """The operators of a chain, each of which feeds the next one."""
    operators: list[EmbeddedOperator] = []
    downstream: Any = None if join is None else join.port(side)
    for spec in reversed(specs):
        operators.insert(0, EmbeddedOperator(spec, downstream=downstream, now=0))
        downstream = operators[0]
    return operators


def _windows_dropped(operator: EmbeddedOperator) -> int:
    """The windows that late rows missed: Spark drops what it has aggregated before."""
    late = operator.get_result().late
    return len(
        {
            (window["window_start"], window["window_end"])
            for row in late.to_pylist()
            for window in row["windows"]
        }
    )
