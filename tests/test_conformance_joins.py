"""Joins of other systems: Flink's SQL, plans of Spark, worked examples and output watermarks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest
import yaml

from conformance import FAIL, FOLDER, PASS, UNSUPPORTED, Outcome, load, parse, run
from conformance.lazy_joins import without_cleanup
from conformance.words import prepared
from test_scenarios_joins import BASE
from tidegate.instants import MAX, MIN
from tidegate.scenarios.document import Scenario
from tidegate.scenarios.joins import terms_of
from tidegate.scenarios.runner import run_on
from tidegate.scenarios.runtimes import EMBEDDED, Records, RunningAggregate, RunningJoin
from tidegate.scenarios.ticks import ticks_of
from tidegate.spec.join import JoinSpec
from tidegate.spec.operator import AggregateSpec

BATCHES = """
- id: spark.mine
  kind: microbatch
  unit: s
  config:
    plan: [{input: left, watermark: 10}, {input: right, watermark: 10}, {join: key = key AND left.t BETWEEN right.t - 5 AND right.t + 5, type: left}]
    output_mode: append
    row: [key, left_t, right_t]
  steps:
    - {batch: {left: [[1, 5], [3, 5]]}, out: [], state_rows: 2, watermark: 0}
    - {batch: {right: [[1, 10]]}, out: [[1, 5, 10]], all: [[1, 5, 10]]}
    - {batch: {left: [[1, 40]], right: [[0, 30]]}, out: [[3, 5, null]], watermark: 20, watermark_used: 0, state_rows: 2}
    - {batch: {left: [[1, 6]]}, out: [], dropped: 1}
    - {restart: true, clear_sink: true}
    - {batch: {left: [[0, 31]]}, out: [[0, 31, 30]], all: [[0, 31, 30]], watermark: 20}
"""
WORKED = """
- id: mine.worked
  kind: worked_example
  unit: clock
  wm: none
  config: {equal: id, orders_window: "2 minutes [08:59:00, 09:01:00), update every 00:02:00", shipments_window: unbounded, output: [id, value, cost]}
  steps:
    - {orders: [{value: 0, id: 1, time: '08:59:10'}], shipments: {cost: 2, id: 1, time: '09:00:10'}}
    - {at: '09:00:59', expect: [[1, 0, 2]]}
    - shipments: {cost: 3, id: 1, time: '09:01:11'}
    - {at: '09:01:59', expect: []}
"""


def outcome(text: str, change: Callable[[dict[str, Any]], Any] | None = None) -> Outcome:
    item = yaml.safe_load(text)[0]
    if change is not None:
        change(item)
    (scenario,) = parse(yaml.safe_dump([item], sort_keys=False))
    return run(scenario)


@pytest.mark.parametrize("text", [BASE, BATCHES, WORKED])
def test_bases_pass(text: str) -> None:
    assert outcome(text).detail == ""
    assert outcome(text).status == PASS


LAZY = """
- id: flink.sqljoin.lazy
  kind: join
  wm: inclusive
  config: {type: left, match: {relative_to: right, lower: -5, upper: 9}, keyed: true, min_cleanup_interval: 7}
  steps:
    - left: {t: 1, k: a}
    - wm: 13
    - expect: []
    - wm: 14
    - expect: [[1, null]]
"""


def test_flinks_sql_pads_when_it_cleans_up() -> None:
    """It may pad from the instant on at which no partner is expected, and has to when its timer is
    due.
    """
    assert outcome(LAZY).status == PASS
    assert (
        outcome(
            LAZY,
            lambda s: (
                s["steps"].__setitem__(2, {"expect": [[1, None]]})
                or s["steps"].__setitem__(4, {"expect": []})
            ),
        ).status
        == PASS
    )
    assert outcome(LAZY, lambda s: s["steps"].__setitem__(4, {"expect": []})).status == FAIL
    assert outcome(LAZY, lambda s: s["config"].update(min_cleanup_interval=6)).status == FAIL
    late = [{"wm": 10}, {"right": {"t": 2, "k": "a"}}, {"expect": [[1, 2]]}]
    assert outcome(LAZY, lambda s: s["steps"].__setitem__(slice(1, None), late)).detail == ""
    assert (
        outcome(LAZY, lambda s: s["steps"].append({"buffer": {"left": []}})).status == UNSUPPORTED
    )
    unread = outcome(LAZY, lambda s: s["config"].update(match=None))
    assert "`match` must be a mapping" in unread.detail
    windowed = {"window": {"type": "fixed", "size": 1}, "min_cleanup_interval": 3}
    assert "joins with `match`" in outcome(LAZY, lambda s: s.update(config=windowed)).detail


def terms(text: str) -> Any:
    (scenario,) = parse(text)
    return terms_of(without_cleanup(prepared(scenario)), ticks_of(scenario))


def test_terms_of_systems() -> None:
    config = "kind: join, unit: s, config: {match: {lower: 0, upper: 1}%s}"
    assert terms(f"[{{id: flink.a, {config % ''}}}]").allowed_lateness == 0
    assert terms(f"[{{id: mine.a, {config % ''}}}]").allowed_lateness == 60
    assert (
        terms(f"[{{id: flink.a, {config % ', min_cleanup_interval: 7'}}}]").allowed_lateness == MAX
    )
    assert (
        terms(
            f"[{{id: flink.a, {config % ', min_cleanup_interval: 7, allowed_lateness: 5'}}}]"
        ).allowed_lateness
        == 5
    )
    assert terms(f"[{{id: flink.a, {config % ''}}}]").options["drop_by"] == "window"
    assert not terms(f"[{{id: flink.a, {config % ''}}}]").keyed
    assert terms(f"[{{id: a, {config % ''}, steps: [{{left: {{t: 1, k: a}}}}]}}]").keyed


def promised(case: str, *, system: str = "mine", config: str = "", unit: str = "s") -> Outcome:
    return outcome(
        f"[{{id: {system}.a, kind: join_watermark, unit: {unit}, config: {{{config}}}, cases:"
        f" [{{match: left.t <= right.t + 40, {case}}}]}}]"
    )


def test_promises() -> None:
    assert promised("input_watermark: 100, output_watermarks: {right: 60}").status == PASS
    assert (
        promised(
            "left_watermark: 100, right_watermark: 7, output_watermarks: {right: 7, left: -inf}"
        ).status
        == PASS
    )
    assert (
        promised("input_watermark: 100, output_watermarks: {right: 61}").detail
        == "case 1: expected 61 to be promised, got 60"
    )
    assert promised("input_watermark_ms: 100000, output_watermarks: {right: 60}").status == PASS
    bounded = "match: left.t BETWEEN right.t AND right.t + 40"
    assert promised(f"{bounded}, input_watermark: 100, output_watermark_ms: 60000").status == PASS
    assert (
        promised(
            f"{bounded}, input_watermark: 100, output_watermark_ms: 59999", system="spark"
        ).status
        == PASS
    )
    assert (
        promised(
            f"{bounded}, output_watermark: 59",
            system="spark",
            unit="ms",
            config="input_watermark: 100",
        ).status
        == PASS
    )
    assert (
        promised(
            f"{bounded}, input_watermark: 100, output_watermark_ms: 60000", system="spark"
        ).status
        == FAIL
    )


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("input_watermark: 3", "says no output watermark"),
        ("output_watermark: 3", "a case needs `left_watermark`"),
        ("match: id = id, input_watermark: 3, output_watermark: 3", "follows from bounds of times"),
        ("input_watermark: 3, output_watermark: 3, colour: red", "unknown key `colour` in a case"),
        ("input_watermark: 3, output_watermarks: {middle: 3}", "unknown key `middle`"),
    ],
)
def test_promises_that_are_not_understood(case: str, reason: str) -> None:
    ended = promised(case)
    assert (ended.status, reason in ended.detail) == (UNSUPPORTED, True), ended


@pytest.mark.parametrize(
    ("step", "name", "value", "said"),
    [
        (0, "out", [[1, 5, None]], "new rows: missing [[1, 5, None]]"),
        (1, "all", [], "rows in all: missing [], unexpected [[1, 5, 10]]"),
        (2, "out", [], "new rows: missing [], unexpected [[3, 5, None]]"),
        (2, "watermark", 30, "expected watermark 30, got 20"),
        (2, "watermark_used", 20, "expected watermark_used 20, got 0"),
        (2, "state_rows", 3, "expected state_rows 3, got 2"),
        (3, "dropped", 0, "expected dropped 0, got 1"),
    ],
)
def test_a_difference_of_batches_is_told(step: int, name: str, value: Any, said: str) -> None:
    ended = outcome(BATCHES, lambda item: item["steps"][step].__setitem__(name, value))
    assert (ended.status, said in ended.detail) == (FAIL, True), ended


JOIN = {"join": "key = key AND left.t = right.t"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s: s["config"].update(speed=3), "unknown key `speed` in `config`"),
        (
            lambda s: s["config"].update(output_mode="update"),
            "`output_mode: update` is not one of append",
        ),
        (lambda s: s["config"].update(row=["colour"]), "unknown key `colour` in `row`"),
        (
            lambda s: s["config"]["plan"][0].update(colour="red"),
            "unknown key `colour` in a stage of the plan",
        ),
        (
            lambda s: s["config"]["plan"].insert(0, {"input": "middle", "watermark": 3}),
            "has two inputs",
        ),
        (
            lambda s: s["config"].update(
                plan=[{"input": "left", "watermark": 3}, {"left": "all rows", "right": "few"}, JOIN]
            ),
            "unknown key `few`",
        ),
        (lambda s: s["config"]["plan"].append(JOIN), "two joins"),
        (
            lambda s: s["config"]["plan"][2].update(join="key = key"),
            "a join has bounds of times, or a window",
        ),
        (
            lambda s: s["config"]["plan"][2].update(join="key = key AND window = window"),
            "a join has bounds of times, or a window",
        ),
        (lambda s: s["config"]["plan"][2].update(type="cross"), "`type: cross` is not one of"),
        (lambda s: s["config"]["plan"][0].update(value="sqrt(t)"), "`value: sqrt(t)`"),
        (lambda s: s["config"]["plan"].append({"agg": "count"}), "what is aggregated after a join"),
        (
            lambda s: s["config"]["plan"].append({"window": {"type": "fixed", "size": 5}}),
            "a window after a join is",
        ),
        (lambda s: s["steps"].append({"wait": 1}), "unknown key `wait` in a step"),
        (
            lambda s: s["steps"].append({"batch": {"middle": [1]}}),
            "unknown key `middle` in a batch",
        ),
        (
            lambda s: s["steps"].append({"batch": {"left": [[1, 2, 3]]}}),
            "a row of a batch is a time",
        ),
        (lambda s: s["steps"].append({"out": 7}), "a list was expected"),
    ],
)
def test_plans_that_are_not_understood(
    change: Callable[[dict[str, Any]], Any], reason: str
) -> None:
    ended = outcome(BATCHES, change)
    assert (ended.status, reason in ended.detail) == (UNSUPPORTED, True), ended


def test_a_window_after_a_join_tells_no_rows_of_state() -> None:
    def change(item: dict[str, Any]) -> None:
        item["config"]["plan"] += [
            {"window": {"type": "fixed", "size": 10, "by": "left.t"}},
            {"agg": "count"},
        ]
        item["config"]["row"] = ["window_start", "count"]
        item["steps"] = [
            {"batch": {"left": [[1, 5], [3, 5]], "right": [[1, 5]]}, "out": []},
            {"batch": {"left": [50], "right": [50]}, "out": [[0, 2]]},
        ]

    def more(item: dict[str, Any]) -> None:
        change(item)
        item["steps"][1]["state_rows"] = 2

    assert outcome(BATCHES, change).detail == ""
    assert "where a join stands alone" in outcome(BATCHES, more).detail


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s: s["config"].update(speed=3), "unknown key `speed` in `config`"),
        (lambda s: s["config"].pop("shipments_window"), "has the windows of two streams"),
        (
            lambda s: s["config"].update(shipments_window="3 tuples"),
            "the second stream is `unbounded`",
        ),
        (lambda s: s["config"].update(orders_window="some"), "is not a time of unit"),
        (
            lambda s: s["config"].update(orders_window="2 minutes, update every 00:01:00"),
            "updated when it is full",
        ),
        (lambda s: s["steps"].append({"wait": 1}), "unknown key `wait` in a step"),
        (
            lambda s: s["steps"].append({"orders": {"colour": 1}}),
            "unknown key `colour` in a message",
        ),
    ],
)
def test_worked_joins_that_are_not_understood(
    change: Callable[[dict[str, Any]], Any], reason: str
) -> None:
    ended = outcome(WORKED, change)
    assert (ended.status, reason in ended.detail) == (UNSUPPORTED, True), ended


def test_a_difference_of_a_worked_join_is_told() -> None:
    ended = outcome(WORKED, lambda s: s["steps"][1].update(expect=[[1, 0, 3]]))
    assert (ended.status, ended.detail) == (
        FAIL,
        "step 2: missing [[1, 0, 3]], unexpected [[1, 0, 2]]",
    )


class Silent:
    """A join of which nothing is known yet."""

    is_rehearsed = True

    def __init__(self) -> None:
        self.calls: list[str] = []

    def add(self, tables: Mapping[int, pa.Table], now: int) -> None:
        self.calls.append(f"add {sorted(tables)} at {now}")

    def advance_watermark(self, side: int, watermark: int) -> None:
        self.calls.append(f"watermark {side} {watermark}")

    def run_clock(self, now: int) -> None:
        self.calls.append(f"clock {now}")

    def finish(self) -> None:
        self.calls.append("finish")

    def restart(self, now: int) -> None:
        self.calls.append("restart")

    def take(self) -> tuple[Records, Records]:
        return [], []

    def output_watermarks(self) -> dict[str, int]:
        return {"": MIN}

    def held(self, side: int) -> Records:
        return []


class Rehearsal:
    """A runtime that only learns what a scenario is going to do."""

    def __init__(self) -> None:
        self.opened: list[Silent] = []

    def open(self, spec: AggregateSpec, schema: pa.Schema, now: int) -> RunningAggregate:
        return EMBEDDED.open(spec, schema, now)

    def open_join(
        self,
        spec: JoinSpec,
        schemas: tuple[pa.Schema, pa.Schema],
        now: int,
        then: AggregateSpec | None = None,
    ) -> RunningJoin:
        self.opened.append(Silent())
        return self.opened[-1]


def scenarios() -> list[Scenario]:
    return [
        scenario
        for path in sorted(FOLDER.glob("*join*.yaml"))
        for scenario in load(path)
        if not scenario.must_fail
    ]


def test_a_rehearsal_checks_nothing_and_does_everything() -> None:
    for scenario in [*scenarios(), *parse(BATCHES), *parse(WORKED)]:
        rehearsal = Rehearsal()
        assert run_on(scenario, rehearsal).status == PASS, scenario.id
        assert rehearsal.opened, scenario.id
    (base,) = parse(BASE)
    rehearsal = Rehearsal()
    run_on(base, rehearsal)
    wanted = [
        "add [0] at 0",
        "add [1] at 0",
        "watermark 0 17",
        "watermark 1 17",
        "restart",
        "add [1] at 0",
        "add [1] at 0",
        "finish",
    ]
    assert rehearsal.opened[0].calls == wanted
