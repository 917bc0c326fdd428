"""Scenarios of joins: differences are told, what is not known is never passed over, and the words
of conditions mean what they say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml
from conformance.lazy_joins import without_cleanup
from conformance.words import prepared

from conformance import FAIL, FOLDER, PASS, UNSUPPORTED, Outcome, load, parse, run
from tidegate.instants import MAX, MIN
from tidegate.scenarios.document import Scenario, UnsupportedScenarioError
from tidegate.scenarios.join_words import Condition, read_condition, read_match, read_window
from tidegate.scenarios.joins import terms_of
from tidegate.scenarios.runner import run_on
from tidegate.scenarios.runtimes import EMBEDDED, Joining, Rows, Running
from tidegate.scenarios.ticks import Ticks, ticks_of
from tidegate.spec.join import AsOf, JoinSpec, Within
from tidegate.spec.join import Rows as LastRows
from tidegate.spec.operator import AggregateSpec
from tidegate.spec.windows import Hopping

TICKS = Ticks("s", 1)

BASE = """
- id: mine.base
  kind: join
  config: {type: left, match: {relative_to: right, lower: -5, upper: 5}, keyed: true, allowed_lateness: 10}
  steps:
    - left: [{t: 10, k: a}, {t: 11, k: b, v: eleven}]
    - right: {t: 12, k: a}
    - expect: [{pair: [10, 12], timing: on_time}]
    - buffer: {left: [10, eleven], right: [12]}
    - wm: 17
    - out_wm: [12]
    - output_watermark: {left: 12, right: 12}
    - expect: [[eleven, null]]
    - snapshot_restore: true
    - right: {t: 6, k: b}
    - late_right: [{row: 6, reason: very_late}]
    - right: {t: 13, k: b}
    - expect: [{pair: [eleven, null], retract: true}, {pair: [eleven, 13], timing: late}]
    - end_of_input: true
    - expect: []
"""
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


@pytest.mark.parametrize(
    ("step", "value", "said"),
    [
        (2, {"expect": []}, "unexpected [{'pair': [10, 12], 'timing': 'on_time'}]"),
        (2, {"expect": [[10, 13]]}, "missing [{'pair': [10, 13]}]"),
        (2, {"expect": [{"pair": [10, 12], "timing": "late"}]}, "missing"),
        (2, {"expect": [{"pair": [10, 12], "retract": True}]}, "missing"),
        (2, {"expect": [{"pair": [10, 12], "window": [0, 20]}]}, "missing"),
        (
            3,
            {"buffer": {"left": [10], "right": [12]}},
            "expected the left rows [10] to be kept, got [10, 'eleven']",
        ),
        (3, {"buffer": {"right": []}}, "expected the right rows [] to be kept"),
        (5, {"out_wm": [11]}, "expected watermarks [11], got [12]"),
        (5, {"out_wm": [["left", 12], ["right", 13]]}, "expected right watermarks [13], got [12]"),
        (6, {"output_watermark": {"left": 11}}, "expected output watermark 11, got 12"),
        (6, {"output_watermark": 13}, "expected output watermark 13, got 12"),
        (10, {"late_right": []}, "expected late right rows [], got [(6, 'very_late')]"),
        (10, {"late_right": [{"row": 6, "reason": "null_time"}]}, "got [(6, 'very_late')]"),
        (10, {"late_left": [6]}, "expected late left rows [6], got []"),
        (10, {"right": {"t": 20, "k": "b"}, "error": True}, "must be refused, but it was accepted"),
        (14, {"left": {"t": 30, "k": "b"}}, "was refused: the operator is finished"),
    ],
)
def test_a_difference_is_told(step: int, value: dict[str, Any], said: str) -> None:
    ended = outcome(BASE, lambda item: item["steps"].__setitem__(step, value))
    assert (ended.status, ended.detail.startswith(f"step {step + 1}: ")) == (FAIL, True), ended
    assert said in ended.detail


def test_a_step_that_must_be_refused() -> None:
    late = [{"left": {"t": 30, "k": "b"}}, {"error": True}]
    assert outcome(BASE, lambda item: item["steps"].extend(late)).status == PASS


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s: s["config"].update(speed=3), "unknown key `speed` in `config`"),
        (lambda s: s["config"].update(type="cross"), "`type: cross` is not one of inner, left"),
        (lambda s: s["config"].update(padding="soft"), "`padding: soft` is not one of"),
        (lambda s: s["config"].update(semantics="storm"), "`semantics: storm` is not one of"),
        (lambda s: s["config"].update(keyed="yes"), "`keyed` must be true or false"),
        (
            lambda s: s["config"].update(update_every={"early": 3}),
            "unknown key `early` in `update_every`",
        ),
        (lambda s: s["config"].update(where="left.t < right.t"), "`where` is about values"),
        (
            lambda s: s["config"].update(window={"type": "fixed", "size": 10}),
            "either `match` or `window`",
        ),
        (lambda s: s["config"].pop("match"), "either `match` or `window`"),
        (lambda s: s["config"]["match"].update(middle=3), "unknown key `middle` in `match`"),
        (
            lambda s: s["config"]["match"].update(relative_to="both"),
            "`relative_to: both` is not one of",
        ),
        (
            lambda s: s["config"].update(match=None, min_cleanup_interval=3),
            "`match` must be a mapping",
        ),
        (lambda s: s["steps"].append({"wait": 3}), "unknown key `wait` in a step"),
        (lambda s: s["steps"].append({"left": {"t": 1, "x": 2}}), "unknown key `x` in a message"),
        (lambda s: s["steps"].append({"left": 7}), "a message must be a mapping"),
        (lambda s: s["steps"].append({"expect": 3}), "expected pairs must be a list"),
        (lambda s: s["steps"].append({"expect": [[1]]}), "a row of this join is a list of 2"),
        (
            lambda s: s["steps"].append({"expect": [{"row": [1, 2]}]}),
            "unknown key `row` in an expected pair",
        ),
        (
            lambda s: s["steps"].append({"expect": [{"pair": [1, 2], "timing": "soon"}]}),
            "`timing: soon`",
        ),
        (lambda s: s["steps"].append({"late_left": 3}), "late rows must be a list"),
        (
            lambda s: s["steps"].append({"late_left": [{"why": 3}]}),
            "unknown key `why` in a late row",
        ),
        (
            lambda s: s["steps"].append({"buffer": {"middle": []}}),
            "unknown key `middle` in a buffer",
        ),
        (lambda s: s["steps"].append({"buffer": {"left": 3}}), "must be a list"),
        (
            lambda s: s["steps"].append({"out_wm": [3, ["left", 4]]}),
            "watermarks are numbers, or all have",
        ),
        (lambda s: s["steps"].append({"output_watermark": {"middle": 3}}), "unknown key `middle`"),
        (lambda s: s["steps"].append({"snapshot_restore": "yes"}), "must be true or false"),
    ],
)
def test_what_is_not_known_is_unsupported(
    change: Callable[[dict[str, Any]], Any], reason: str
) -> None:
    ended = outcome(BASE, change)
    assert (ended.status, reason in ended.detail) == (UNSUPPORTED, True), ended


def test_unread_pairs_are_a_mismatch_for_a_self_test() -> None:
    assert outcome(BASE, lambda s: s.update(must_fail="why")).status == FAIL
    assert (
        outcome(
            BASE,
            lambda s: (
                s.update(must_fail="why"),
                s["steps"].pop(2),
                s["steps"].__delitem__(slice(2, None)),
            ),
        ).status
        == PASS
    )


# Systems


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


# Words


@pytest.mark.parametrize(
    ("match", "bound"),
    [
        ({"relative_to": "right", "lower": -5, "upper": 9}, Within(5, 9)),
        ({"relative_to": "left", "lower": -5, "upper": 9}, Within(9, 5)),
        ({"lower": -5, "upper": 9}, Within(9, 5)),
        ({"lower": -5, "upper": 9, "lower_inclusive": False}, Within(9, 5, "left")),
        (
            {"relative_to": "right", "lower": -5, "upper": 9, "lower_inclusive": False},
            Within(5, 9, "right"),
        ),
        (
            {
                "relative_to": "right",
                "lower": 1,
                "upper": 3,
                "lower_inclusive": False,
                "upper_inclusive": False,
            },
            Within(-1, 3, "neither"),
        ),
        ({"relative_to": "right", "lower": None, "upper": "2 minutes"}, Within(None, 120)),
        ({"relative_to": "right", "lower": -5, "upper": "+inf"}, Within(5, None)),
    ],
)
def test_matches(match: dict[str, Any], bound: Within) -> None:
    assert read_match(match, TICKS) == bound


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("left.t BETWEEN right.t - 5 AND right.t + 9", Condition(Within(5, 9))),
        ("right.t BETWEEN left.t AND left.t + 5", Condition(Within(5, 0))),
        ("right.t between left.t - 30 s and left.t + 1 minute", Condition(Within(60, 30))),
        ("key = key AND left.t < right.t - 5", Condition(Within(None, -5, "left"), keyed=True)),
        (
            "left.t >= right.t AND id = id AND left.t < right.t + 3",
            Condition(Within(0, 3, "left"), keyed=True),
        ),
        ("right.t > left.t - 3", Condition(Within(None, 3, "left"))),
        ("left.t = right.t", Condition(Within(0, 0))),
        ("left.t + 2 <= right.t + 5", Condition(Within(None, 3))),
        ("key = key AND window = window", Condition(keyed=True, shares_window=True)),
        ("window = window", Condition(shares_window=True)),
    ],
)
def test_conditions(text: str, condition: Condition) -> None:
    assert read_condition(text, TICKS) == condition


def test_conditions_on_values() -> None:
    found = read_condition("key = key AND left.value > 4 AND right.v <= 7", TICKS)
    assert found.keyed
    assert found.where is not None
    assert found.where.equals((pc.field("left_v") > 4) & (pc.field("right_v") <= 7))


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "a = b",
        "left.t < left.t",
        "left.t > right.t AND left.t > right.t + 1",
        "left.t < right.t AND left.t <= right.t",
        "left.v > x",
        "left.t < 5",
    ],
)
def test_conditions_that_make_no_sense(text: str) -> None:
    with pytest.raises(UnsupportedScenarioError):
        read_condition(text, TICKS)


def test_windows_of_joins() -> None:
    scenario = Scenario("mine.a", "join")
    assert read_window(scenario, TICKS, {"type": "rows", "left": 3}) == LastRows(3, None)
    assert read_window(scenario, TICKS, {"type": "as_of", "tolerance": 5, "strict": True}) == AsOf(
        5, strict=True
    )
    assert read_window(scenario, TICKS, {"type": "as_of"}) == AsOf()
    assert read_window(scenario, TICKS, {"type": "sliding", "size": 10, "period": 5}) == Hopping(
        10, 5
    )
    for window in (
        {"type": "global"},
        {"type": "rows", "middle": 3},
        {"type": "as_of", "size": 3},
        {"type": "spiral"},
        7,
    ):
        with pytest.raises(UnsupportedScenarioError):
            read_window(scenario, TICKS, window)


# Promises


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


# Batches


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


# Worked examples


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


# Runtimes


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

    def take(self) -> tuple[Rows, Rows]:
        return [], []

    def output_watermarks(self) -> dict[str, int]:
        return {"": MIN}

    def held(self, side: int) -> Rows:
        return []


class Rehearsal:
    """A runtime that only learns what a scenario is going to do."""

    def __init__(self) -> None:
        self.opened: list[Silent] = []

    def open(self, spec: AggregateSpec, schema: pa.Schema, now: int) -> Running:
        return EMBEDDED.open(spec, schema, now)

    def open_join(
        self,
        spec: JoinSpec,
        schemas: tuple[pa.Schema, pa.Schema],
        now: int,
        then: AggregateSpec | None = None,
    ) -> Joining:
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
