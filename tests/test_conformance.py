"""Conformance: the scenarios of other systems pass, a changed number makes them fail, and unknown
words are never ignored.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from conformance import EXTENSION, FAIL, FOLDER, KINDS, PASS, UNSUPPORTED, Outcome, load, parse, run
from conformance.__main__ import main
from conformance.words import prepared
from support.contradictions import CONTRADICTIONS
from support.documents import REPOSITORY, blocks
from support.mutations import changed, expectations
from tidegate.instants import MAX
from tidegate.scenarios.document import Scenario, UnsupportedScenarioError
from tidegate.scenarios.settings import operator_settings
from tidegate.scenarios.ticks import Ticks
from tidegate.scenarios.trigger_words import ParsedTrigger, TriggerReader
from tidegate.spec.triggers import (
    AfterCount,
    AfterWatermark,
    EventInterval,
    Every,
    Never,
    Policy,
    Repeatedly,
)

FILES = sorted(FOLDER.glob("*.yaml"))
RAW = {item["id"]: item for path in FILES for item in yaml.safe_load(path.read_text("utf-8"))}


def outcome(text: str) -> Outcome:
    (scenario,) = parse(text)
    return run(scenario)


def outcome_of(item: dict[str, Any]) -> Outcome:
    return outcome(yaml.safe_dump([item], sort_keys=False))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_conformance(path: Path) -> None:
    differing = {
        o.id: (o.status, o.detail)
        for o in map(run, load(path))
        if o.status != CONTRADICTIONS.get(o.id, PASS)
    }
    assert differing == {}


def test_contradictions_name_scenarios_that_are_here() -> None:
    assert CONTRADICTIONS.keys() <= RAW.keys()


def test_every_kind_is_kept() -> None:
    assert {item["kind"] for item in RAW.values()} == set(KINDS)


# A runner that compares nothing would pass everything, so each number that a scenario expects is
# changed once.


# A runner that compares nothing would pass everything, so each expected number is changed once.
SOUND = [
    name for name, item in RAW.items() if not item.get("must_fail") and name not in CONTRADICTIONS
]


@pytest.mark.parametrize("name", SOUND)
def test_a_changed_number_is_noticed(name: str) -> None:
    paths = expectations(RAW[name])
    wrong = [
        path
        for path in paths[:: max(1, len(paths) // 3)]
        if outcome_of(changed(RAW[name], path)).status == PASS
    ]
    assert wrong == []


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"panes"}))
def test_unknown_keys_of_other_kinds_are_unsupported(kind: str) -> None:
    item = next(item for item in RAW.values() if item["kind"] == kind)
    for change in ({"colour": "red"}, {"config": {**item["config"], "colour": "red"}}):
        ended = outcome_of({**item, **change})
        assert (ended.status, "`colour`" in ended.detail) == (UNSUPPORTED, True), ended
    table = "cases" if "cases" in item else "steps" if "steps" in item else "expect"
    ended = outcome_of({**item, table: [{**item[table][0], "colour": "red"}, *item[table][1:]]})
    assert (ended.status, "`colour`" in ended.detail) == (UNSUPPORTED, True), ended


def test_fresh_cases() -> None:
    text = """
- id: mine.fresh
  kind: merge_sequence
  config: {window: {type: session, gap: 3}}
  each_case_fresh: true
  cases:
    - case: [{add: [0, 4], result: [0, 4], merged: []}, {add: [3, 5], result: [0, 5], merged: [[0, 4]]}]
    - case: [{add: [3, 5], result: [3, 5], merged: []}]
"""
    assert outcome(text).status == PASS
    assert outcome(text.replace("  each_case_fresh: true\n", "")).status == UNSUPPORTED
    assert outcome(text.replace("[3, 5], merged: []}]", "[0, 5], merged: []}]")).status == FAIL


def test_windows_that_must_be_refused() -> None:
    text = (
        "- {id: mine.refused, kind: assign, config: {window: {type: fixed, size: 0}}, error: true}"
    )
    assert outcome(text).status == PASS
    assert "was accepted" in outcome(text.replace("size: 0", "size: 1")).detail
    refused, taken = (
        "{window: {type: fixed, size: -1}, error: true}",
        "{window: {type: fixed, size: 4}, t: 5, windows: [[4, 8]]}",
    )
    assert (
        outcome(
            f"- {{id: mine.cases, kind: assign, config: {{}}, cases: [{refused}, {taken}]}}"
        ).status
        == PASS
    )


def test_asymmetric_sessions_run_only_where_it_makes_no_difference() -> None:
    item = copy.deepcopy(RAW["malhar.op.sessions_extend_split_merge_retracting"])
    item["steps"] = [
        {"events": [{"t": 1000, "v": 1, "k": "a"}]},
        {"events": [{"t": 3000, "v": 1, "k": "a"}]},
    ]
    assert "exactly one gap apart" in outcome_of(item).detail
    assert outcome_of(item).status == UNSUPPORTED


def test_a_preset_comes_from_the_id_and_is_overruled_by_the_config() -> None:
    def options(name: str, **config: Any) -> dict[str, Any]:
        return dict(
            operator_settings(
                prepared(Scenario(name, "panes", config={"window": {"type": "global"}, **config})),
                Ticks("tick", 1),
            ).options
        )

    assert options("malhar.x")["granularity"] == "batch"
    assert options("malhar.x", granularity="element")["granularity"] == "element"
    assert options("malhar.x", semantics="flink")["closing"] == "never"
    assert options("design.x") == {"future_tolerance": MAX}
    assert options("design.x", future_tolerance=7, late_rule="window") == {
        "future_tolerance": 7,
        "drop_by": "window",
    }


# Trigger words of other systems.

READER = TriggerReader(Ticks("ms", 1), EXTENSION)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("AfterCount(2)", ParsedTrigger(AfterCount(2))),
        ("EventTime", ParsedTrigger(AfterWatermark(late=AfterCount(1)))),
        ("Purging(Count(4))", ParsedTrigger(Repeatedly(AfterCount(4)), mode="discarding")),
        (
            "ContinuousEventTime(7)",
            ParsedTrigger(AfterWatermark(EventInterval(7, refire=True), AfterCount(1))),
        ),
        ("ProcessingTime", ParsedTrigger(AfterWatermark(), clock=True)),
        ("EndOfStream", ParsedTrigger(Never(), closing="if_nonempty")),
        ("none", ParsedTrigger(Never(), closing="never")),
        ("EarlyEvery(time=9)", ParsedTrigger(AfterWatermark(Every(9, refire=True)))),
        ("EarlyEvery(count=2)", ParsedTrigger(AfterWatermark(AfterCount(2)))),
        (
            "early=Repeatedly(AfterCount(2)), default=window end",
            ParsedTrigger(Policy(Repeatedly(AfterCount(2)), late=None), clock=True),
        ),
        ("default=session gap elapsed", ParsedTrigger(Policy(late=None), clock=True)),
    ],
)
def test_trigger_words(text: str, parsed: ParsedTrigger) -> None:
    assert READER.read(text) == parsed


@pytest.mark.parametrize("text", ["", "EarlyEvery(time=1, count=2)", "Purging(2)", "EventTime(1)"])
def test_trigger_words_that_make_no_sense(text: str) -> None:
    with pytest.raises(UnsupportedScenarioError):
        READER.read(text)


def test_unknown_keys_of_a_trigger_step_are_unsupported() -> None:
    item = next(item for item in RAW.values() if item["kind"] == "panes")
    ended = outcome_of({**item, "steps": [{"trigger": {"now": True}}]})
    reason = "unknown key `now` in a `trigger` step"
    assert (ended.status, reason in ended.detail) == (UNSUPPORTED, True), ended


# The command, and the documentation.


def test_the_command_prints_what_replay_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "- {id: a, kind: assign, config: {window: {type: fixed, size: 5}}, cases: [{t: 7, windows:"
        " [[5, 10]]}]}\n- {id: b, kind: riddle}",
        "utf-8",
    )
    assert main([str(path)]) == 0
    first, second, last = capsys.readouterr().out.splitlines()
    assert first == "pass        a"
    assert second.startswith("unsupported b: kind `riddle` is not one of assign, async, classify")
    assert last == "2 scenarios: 1 passed, 0 failed, 1 unsupported"
    assert main([str(tmp_path / "nowhere.yaml")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_tidegate_never_imports_conformance() -> None:
    sources = (REPOSITORY / "src").rglob("*.py")
    importing = re.compile(r"^\s*(?:from|import) conformance", re.MULTILINE)
    assert [path.name for path in sources if importing.search(path.read_text("utf-8"))] == []


def test_the_examples_of_the_documentation_pass() -> None:
    page = (FOLDER.parent / "README.md").read_text("utf-8")
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
