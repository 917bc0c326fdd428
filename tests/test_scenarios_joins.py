"""The kind `join`: differences are found, unknown words refused, and conditions read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc
import pytest
import yaml

from tidegate.scenarios import FAIL, PASS, UNSUPPORTED, Outcome, parse, run
from tidegate.scenarios.document import Scenario, UnsupportedScenarioError
from tidegate.scenarios.join_words import Condition, read_condition, read_match, read_window
from tidegate.scenarios.ticks import Ticks
from tidegate.spec.join import AsOf, Within
from tidegate.spec.join import Rows as LastRows
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


def outcome(text: str, change: Callable[[dict[str, Any]], Any] | None = None) -> Outcome:
    item = yaml.safe_load(text)[0]
    if change is not None:
        change(item)
    (scenario,) = parse(yaml.safe_dump([item], sort_keys=False))
    return run(scenario)


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
            lambda s: s["config"].update(match=None),
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


def test_base_passes() -> None:
    assert outcome(BASE).detail == ""
    assert outcome(BASE).status == PASS


def test_words_of_other_systems_are_not_ours() -> None:
    ended = outcome(BASE, lambda item: item["config"].update(min_cleanup_interval=7))
    assert (ended.status, "`min_cleanup_interval`" in ended.detail) == (UNSUPPORTED, True)
