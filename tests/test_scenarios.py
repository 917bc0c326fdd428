"""Scenarios of `tidegate replay`: differences are found, and unknown words are never ignored."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.documents import REPOSITORY, blocks
from tidegate.errors import ParseError, SpecError
from tidegate.instants import MAX, MIN
from tidegate.scenarios import FAIL, KINDS, PASS, UNSUPPORTED, Outcome, load, parse, run
from tidegate.scenarios.document import Scenario, UnsupportedScenarioError
from tidegate.scenarios.matching import same_value, unmatched
from tidegate.scenarios.settings import operator_settings
from tidegate.scenarios.ticks import Ticks, ticks_of
from tidegate.scenarios.trigger_words import ParsedTrigger, TriggerReader
from tidegate.spec.operator import Options
from tidegate.spec.presets import NAMES, preset_options, system_preset
from tidegate.spec.triggers import (
    AfterAny,
    AfterCount,
    AfterDelay,
    AfterWatermark,
    Default,
    Every,
    Never,
    OrFinally,
    Policy,
    Repeatedly,
)

BASE = """
- id: mine.base
  kind: panes
  unit: s
  config:
    window: {type: fixed, size: 10}
    trigger: AfterWatermark(early=AfterCount(2), late=AfterCount(1))
    mode: retracting
    allowed_lateness: 5
    drop_by: window
    agg: sum
  steps:
    - events: [{t: 1, k: a, v: 1}, {t: 2, k: a, v: 2}]
    - expect: [{window: [0, 10], k: a, v: 3, t: 9, timing: early, first: true, last: false, index: 0, ns_index: -1}]
    - state: [{window: [0, 10], k: a, v: 3}]
    - state_windows: [[0, 10]]
    - watermark: 10
    - expect:
        - {window: [0, 10], k: a, v: 3, retract: true}
        - {window: [0, 10], k: a, v: 3, timing: on_time, index: 1, ns_index: 0}
    - snapshot_restore: true
    - events: [{t: 3, k: a, v: 4}]
    - expect_count: 3
    - expect_pane_of: {window: [0, 10], v: 7, timing: late}
    - dropped: 0
    - watermark: 15
    - out_wm: [10, 15]
    - output_watermark: 15
    - hold: null
    - events: [{t: 4, k: a, v: 1}]
    - late_output: [{t: 4, k: a, v: 1, reason: window_expired}]
    - dropped: 1
    - state_windows: []
"""


def outcome(text: str) -> Outcome:
    (scenario,) = parse(text)
    return run(scenario)


def outcome_of(item: dict[str, Any]) -> Outcome:
    return outcome(yaml.safe_dump([item], sort_keys=False))


def base(change: Callable[[dict[str, Any]], Any] | None = None) -> Outcome:
    item = yaml.safe_load(BASE)[0]
    if change is not None:
        change(item)
    return outcome_of(item)


def test_base_passes() -> None:
    assert base() == Outcome("mine.base", PASS)


@pytest.mark.parametrize(
    ("step", "value", "said"),
    [
        (1, {"expect": []}, "unexpected {window: [0, 10], k: a, v: 3"),
        (1, {"expect": [{"window": [0, 10], "v": 4}]}, "missing {window: [0, 10], v: 4}"),
        (2, {"state": [{"window": [0, 10], "k": "b", "v": 3}]}, "state: missing"),
        (3, {"state_windows": []}, "expected state of windows [], got [[0, 10]]"),
        (8, {"expect_count": 4}, "expected panes so far 4, got 3"),
        (9, {"expect_pane_of": {"v": 8}}, "no pane so far is {'v': 8}"),
        (10, {"dropped": 1}, "expected dropped 1, got 0"),
        (12, {"out_wm": [10]}, "expected forwarded watermarks [10], got [10, 15]"),
        (13, {"output_watermark": 14}, "expected output watermark 14, got 15"),
        (14, {"hold": 9}, "expected hold 9, got None"),
        (16, {"late_output": []}, "expected late rows []"),
        (16, {"late_output": [{"t": 4, "reason": "very_late"}]}, "window_expired"),
    ],
)
def test_a_difference_is_told(step: int, value: dict[str, Any], said: str) -> None:
    ended = base(lambda item: item["steps"].__setitem__(step, value))
    assert ended.status == FAIL
    assert ended.detail.startswith(f"step {step + 1}: ")
    assert said in ended.detail


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s: s.update(colour="red"), "unknown key `colour` in the scenario"),
        (
            lambda s: s.update(kind="stream_made_up"),
            "kind `stream_made_up` is not one of cogroup, join, panes, panes_by_window",
        ),
        (lambda s: s.update(unit="fortnight"), "unit `fortnight`"),
        (lambda s: s.update(wm="loose"), "watermark convention `loose`"),
        (lambda s: s["config"].update(speed=3), "unknown key `speed` in `config`"),
        (lambda s: s["config"].update(mode="bold"), "`mode: bold` is not one of"),
        (lambda s: s["config"].update(agg="median"), "`agg: median` is not one of"),
        (lambda s: s["config"].update(semantics="storm"), "`semantics: storm` is not one of"),
        (lambda s: s["config"].update(trigger="Sometimes"), "trigger `Sometimes` is not covered"),
        (lambda s: s["config"].update(trigger="AfterCount(2"), "cannot be read"),
        (lambda s: s["config"].update(trigger="AfterCount(0)"), "breaks a rule"),
        (lambda s: s["config"].pop("window"), "`config.window` must be a mapping"),
        (lambda s: s["config"]["window"].update(type="spiral"), "window type `spiral`"),
        (lambda s: s["config"]["window"].update(gap=3), "unknown key `gap` in the window"),
        (lambda s: s["steps"].append({"wait": 3}), "unknown key `wait` in a step"),
        (lambda s: s["steps"].append({"batch": {"rows": []}}), "unknown key `rows` in a batch"),
        (
            lambda s: s["steps"].append({"events": [{"t": 1, "x": 2}]}),
            "unknown key `x` in an event",
        ),
        (
            lambda s: s["steps"].append({"expect": [{"colour": 1}]}),
            "unknown key `colour` in an expected pane",
        ),
        (
            lambda s: s["steps"].append({"expect": [{"values": [1]}]}),
            "a pane of `agg: sum` has `v`",
        ),
        (lambda s: s["steps"].append({"expect": [{"timing": "soon"}]}), "`timing: soon`"),
        (
            lambda s: s["steps"].append({"late_output": [{"why": 1}]}),
            "unknown key `why` in a late row",
        ),
        (
            lambda s: s["steps"].append({"state": [{"n": 1}]}),
            "unknown key `n` in an entry of `state`",
        ),
        (
            lambda s: s["steps"].append({"trigger": {"ready": True}}),
            "unknown key `trigger` in a step",
        ),
    ],
)
def test_what_is_not_known_is_unsupported(
    change: Callable[[dict[str, Any]], Any], reason: str
) -> None:
    ended = base(change)
    assert (ended.status, reason in ended.detail) == (UNSUPPORTED, True), ended


def test_must_fail_is_turned_round() -> None:
    read = {
        "expect": [
            {"window": [0, 10], "v": 3, "retract": True},
            {"window": [0, 10], "v": 7, "timing": "late"},
        ]
    }
    matched = base(lambda s: (s.update(must_fail="why"), s["steps"].insert(8, read)))
    assert matched.detail == "a mismatch must be found, but everything matched"
    assert base(lambda s: s.update(must_fail="panes are left over")).status == PASS
    assert (
        base(lambda s: (s.update(must_fail="why"), s["steps"].append({"dropped": 7}))).status
        == PASS
    )
    assert base(lambda s: (s.update(must_fail="why"), s.update(colour="red"))).status == UNSUPPORTED
    # A step of a wrong shape is no mismatch that somebody foresaw.
    assert (
        base(lambda s: (s.update(must_fail="why"), s["steps"].append({"out_wm": 7}))).status == FAIL
    )


def test_a_scenario_of_a_wrong_shape_fails_and_the_next_one_runs() -> None:
    broken = base(lambda s: s["steps"].append({"out_wm": 7}))
    assert (broken.status, "broke off with TypeError" in broken.detail) == (FAIL, True)


def test_a_refused_specification_fails() -> None:
    ended = base(lambda s: s["config"].update(mode="discarding", fire_only_updated=True))
    assert (
        ended.status,
        "refused: `fire_only_updated` contradicts discarding" in ended.detail,
    ) == (FAIL, True)


def test_a_watermark_that_goes_back() -> None:
    assert base(lambda s: s["steps"].append({"watermark": 3})).status == PASS
    assert base(lambda s: s["steps"].extend([{"watermark": 3}, {"error": True}])).status == PASS
    accepted = base(lambda s: s["steps"].extend([{"watermark": 30}, {"error": True}]))
    assert accepted.detail.endswith("`watermark: 30` must be refused, but it was accepted")
    refused = base(lambda s: (s["config"].update(strict=True), s["steps"].append({"watermark": 3})))
    assert (refused.status, "`watermark` was refused" in refused.detail) == (FAIL, True)


def test_order_is_asked_only_where_it_is_said() -> None:
    def turn(item: dict[str, Any]) -> None:
        item["steps"][5]["expect"].reverse()

    assert base(turn).status == PASS
    assert base(lambda s: (turn(s), s["steps"][5].update(ordered=True))).status == FAIL
    assert base(lambda s: (turn(s), s["config"].update(ordered=True))).status == FAIL
    assert base(lambda s: s["config"].update(ordered=True)).status == PASS


def test_a_retraction_must_be_named() -> None:
    ended = base(lambda s: s["steps"][5]["expect"][0].pop("retract"))
    assert (ended.status, "retract: true" in ended.detail) == (FAIL, True)


def test_values_of_mixed_types_and_missing_keys() -> None:
    text = """
- id: mine.mixed
  kind: panes
  config: {window: {type: fixed, size: 10}, trigger: AfterWatermark(), agg: list}
  steps:
    - events: [{t: 1, v: 1}, {t: 2, v: "1", k: a}, {t: 3, v: true, k: a}, {t: 4, v: 1.5, k: 1}]
    - watermark: 10
    - expect: [{values: [1]}, {values: [true, "1"], k: a}, {values: [1.5], k: 1}]
"""
    assert outcome(text).status == PASS
    assert outcome(text.replace('[true, "1"]', "[true, 1]")).status == FAIL
    assert outcome(text.replace("[1.5], k: 1", '[1.5], k: "1"')).status == FAIL


@pytest.mark.parametrize("agg", ["min", "max", "mean", "sum", "count"])
def test_aggregates(agg: str) -> None:
    answer = {"min": 2, "max": 9, "mean": 5, "sum": 15, "count": 3}[agg]
    text = f"""
- id: mine.aggregate
  kind: panes
  config: {{window: {{type: global}}, trigger: AfterCount(3), agg: {agg}}}
  steps:
    - events: [{{t: 1, v: 4}}, {{t: 2, v: 9}}, {{t: 3, v: 2}}]
    - expect: [{{window: global, v: {answer}}}]
"""
    assert outcome(text).status == PASS
    assert outcome(text.replace(f"global, v: {answer}", f"global, v: {answer + 1}")).status == FAIL


def test_tuple_and_clock_windows() -> None:
    text = """
- id: mine.tuples
  kind: panes
  config: {window: {type: tuples, size: 2}, trigger: AfterWatermark(), agg: sum}
  steps:
    - events: [{t: 1, v: 1, k: a}, {t: 1, v: 2, k: b}, {t: 1, v: 4, k: a}]
    - expect: [{window: [0, 2], k: a, v: 5}]
- id: mine.clock
  kind: panes
  unit: ms
  config: {window: {type: fixed, size: 100}, time_domain: processing, initial_processing_time: 50, trigger: AfterWatermark(), agg: sum}
  steps:
    - events: [{v: 1}, {v: 2}]
    - processing_time: 99
    - expect: []
    - processing_time: 100
    - expect: [{window: [0, 100], v: 3}]
"""
    assert [run(scenario) for scenario in parse(text)] == [
        Outcome("mine.tuples", PASS),
        Outcome("mine.clock", PASS),
    ]


def test_gap_rules() -> None:
    text = """
- id: mine.gaps
  kind: panes
  config:
    window: {type: session, gap: 5, gap_rule: [{k: a, gap: 2}, {v: 9, gap: 20}]}
    trigger: AfterWatermark()
    agg: sum
  steps:
    - events: [{t: 0, k: a, v: 9}, {t: 0, k: b, v: 9}, {t: 0, k: c, v: 1}, {t: 0, k: d, v: 9, gap: 7}]
    - watermark: 100
    - expect: [{window: [0, 2], k: a}, {window: [0, 20], k: b}, {window: [0, 5], k: c}, {window: [0, 7], k: d}]
"""
    assert outcome(text).status == PASS
    assert outcome(text.replace("gap: 20", "gap: 21")).status == FAIL
    assert (
        outcome(text.replace("[{k: a, gap: 2}, {v: 9, gap: 20}]", "twice the value")).status
        == UNSUPPORTED
    )


# Time as scenarios write it.


def ticks(**fields: Any) -> Ticks:
    return ticks_of(Scenario("x", "panes", **fields))


def test_ticks_are_units() -> None:
    convert = ticks(unit="ms")
    assert (convert.scale, convert(5), convert("+inf"), convert("-inf"), convert("2 seconds")) == (
        1,
        5,
        MAX,
        MIN,
        2000,
    )
    assert (
        convert.same(9, 9),
        convert.same(9, 10),
        convert.same(None, None),
        convert.same(9, None),
    ) == (True, False, True, False)
    with pytest.raises(UnsupportedScenarioError):
        convert("soon")
    with pytest.raises(UnsupportedScenarioError):
        convert(None)


def test_fractions_scale_all_times_and_are_floored_back() -> None:
    convert = ticks(
        unit="s",
        body={"steps": [{"events": [{"t": 1.25, "v": 0.12345}]}]},
        config={"trigger": "AfterProcessingTime(0.5)"},
    )
    assert (convert.scale, convert(1.25), convert(2), convert.shown(125)) == (100, 125, 200, 1.25)
    assert (
        convert.same(9, 999),
        convert.same(9, 1000),
        convert.same(1.25, 125),
        convert.same(1, 125),
    ) == (True, False, True, True)
    assert ticks(unit="s", config={"trigger": "AfterProcessingTime(0.5)"}).scale == 10


@pytest.mark.parametrize(
    ("wm", "fed"), [("exclusive", 10), ("none", 10), ("inclusive", 11), ("strict", 9)]
)
def test_watermark_conventions(wm: str, fed: int) -> None:
    convert = ticks(wm=wm)
    assert convert.watermark(10) == fed
    assert convert.shown_watermark(fed) == 10
    assert (convert.watermark("+inf"), convert.shown_watermark(MIN)) == (MAX, "-inf")
    assert Ticks("ms", 1, "inclusive").watermark(MAX - 1) == MAX


def test_calendars_and_clocks() -> None:
    assert ticks(unit="iso")("1970-01-01T00:00:01Z") == 1_000_000
    assert ticks(unit="iso").shown(0) == "1970-01-01T00:00:00+00:00"
    assert ticks(unit="clock")("09:00:59") == 9 * 3600 + 59
    assert ticks(unit="s", config={"window": {"type": "calendar_days"}})(2) == 2_000_000
    assert Ticks("ms", 1, end_of_time=Fraction(100))(100) == MAX


# Triggers as scenarios write them.


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        ("Default", ParsedTrigger(Default())),
        (
            "AfterWatermark(early=AfterCount(2), late=Never)",
            ParsedTrigger(AfterWatermark(AfterCount(2), Never())),
        ),
        (
            "Repeatedly(AfterAny(AfterProcessingTime(5), AfterCount(1)))",
            ParsedTrigger(Repeatedly(AfterAny(AfterDelay(5), AfterCount(1)))),
        ),
        ("OrFinally(Default, AfterCount(3))", ParsedTrigger(OrFinally(Default(), AfterCount(3)))),
        ("Every('2 s')", ParsedTrigger(Every(2000))),
        ("Every(3, refire=true)", ParsedTrigger(Every(3, refire=True))),
        ("Policy(late=None)", ParsedTrigger(Policy(late=None))),
        ("none", ParsedTrigger(Never(), closing="never")),
    ],
)
def test_trigger_words(text: str, reading: ParsedTrigger) -> None:
    assert TriggerReader(ticks(unit="ms")).read(text) == reading


@pytest.mark.parametrize(
    "text",
    [
        "",
        "AfterCount",
        "AfterCount(x)",
        "AfterCount(1) 2",
        "AfterAll()",
        "EventTime",
        "Purging(AfterCount(4))",
        "default=window end",
        "Never(1)",
        "AfterWatermark(Default)",
        "A&B",
    ],
)
def test_trigger_words_that_make_no_sense(text: str) -> None:
    with pytest.raises(UnsupportedScenarioError):
        TriggerReader(ticks()).read(text)


# Presets.


@pytest.mark.parametrize("name", NAMES)
def test_presets_are_options(name: str) -> None:
    Options(**preset_options(name))
    settings = operator_settings(
        Scenario("x", "panes", config={"semantics": name, "window": {"type": "session", "gap": 5}}),
        Ticks("tick", 1),
    )
    assert settings.window.touch == system_preset(name).touch
    assert dict(settings.options) == {"future_tolerance": MAX, **preset_options(name)}


def test_presets_differ_from_ours_where_the_systems_do() -> None:
    plain = Options()
    assert Options(**preset_options("tidegate")) == plain
    assert preset_options("beam") == {
        "drop_by": "window",
        "session_lateness": "own",
        "granularity": "batch",
        "on_time": "always",
        "closing": "if_nonempty",
    }
    assert (preset_options("flink")["session_lateness"], preset_options("flink")["closing"]) == (
        "merged",
        "never",
    )
    assert (preset_options("hazelcast")["drop_by"], preset_options("spark")["granularity"]) == (
        "event",
        "batch",
    )
    with pytest.raises(SpecError, match="`storm`"):
        preset_options("storm")


def test_our_own_defaults_follow_the_unit() -> None:
    settings = operator_settings(
        Scenario("mine", "panes", config={"window": {"type": "global"}}), Ticks("s", 1)
    )
    assert (settings.allowed_lateness, settings.trigger, settings.mode) == (
        60,
        Policy(late=AfterDelay(10)),
        "accumulating",
    )


# Matching.


def test_pairing_moves_earlier_pairs_where_that_helps() -> None:
    fit = {("any", 1), ("any", 2), ("one", 1)}
    assert unmatched(["any", "one"], [1, 2], lambda e, f: (e, f) in fit) == ([], [])
    assert unmatched(["one", "one"], [1, 2], lambda e, f: (e, f) in fit) == (["one"], [2])


def test_values_are_compared_by_type() -> None:
    assert same_value(1, 1)
    assert same_value(1.0, 1)
    assert same_value(0.1 + 0.2, 0.3)
    assert not same_value(1, True)
    assert not same_value("1", 1)


# Files.


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- id: [", "is not valid YAML"),
        ("id: x", "must hold one list"),
        ("", "must hold one list"),
        ("- x", "Entry 1"),
        ("- id: x", "Entry 1"),
        ("- {id: x, kind: panes, config: 3}", "`config` of scenario `x`"),
        ("- {id: x, kind: panes}\n- {id: x, kind: panes}", "more than once: x"),
    ],
)
def test_files_that_cannot_be_read(text: str, said: str) -> None:
    with pytest.raises(ParseError, match=re.escape(said)):
        parse(text, "mine.yaml")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="nowhere"):
        load(tmp_path / "nowhere.yaml")


def test_the_examples_of_the_documentation_pass() -> None:
    page = (REPOSITORY / "docs" / "scenarios.md").read_text("utf-8")
    examples = [
        scenario
        for block in blocks(page)
        if block.language == "yaml"
        for scenario in parse(block.code)
    ]
    assert [run(scenario) for scenario in examples] == [
        Outcome(scenario.id, PASS) for scenario in examples
    ]
    assert examples


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"panes"}))
def test_kinds_refuse_unknown_keys(kind: str) -> None:
    steps = {"panes_by_window": {"data": [[1, 1]]}}.get(kind, {"steps": []})
    item = {"id": "mine.one", "kind": kind, "config": {"window": {"type": "fixed", "size": 5}}}
    ended = outcome_of({**item, **steps, "colour": "red"})
    assert (ended.status, "`colour`" in ended.detail) == (UNSUPPORTED, True), ended


def test_ids_choose_no_preset() -> None:
    (scenario,) = parse("- {id: flink.mine, kind: panes, config: {window: {type: global}}}")
    assert scenario.system == "tidegate"


def test_fresh_cases() -> None:
    text = """
- id: mine.fresh
  kind: panes
  config: {window: {type: fixed, size: 10}, trigger: AfterCount(2), agg: sum}
  each_case_fresh: true
  steps:
    - case: [{events: [{t: 1, v: 1}]}, {expect: []}]
    - case: [{events: [{t: 1, v: 1}]}, {expect: []}]
"""
    assert outcome(text).status == PASS
    assert outcome(text.replace("  each_case_fresh: true\n", "")).status == UNSUPPORTED
    assert outcome(text.replace("expect: []", "expect: [{v: 2}]")).status == FAIL
