"""Scenarios of watermarks: what must come out is compared, habits of other systems are kept apart
from ours, and unknown words are refused.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from conformance import FAIL, FOLDER, PASS, UNSUPPORTED, Outcome, Scenario, parse, run
from support.mutations import changed, numbers

KINDS = ("coalesce", "generate", "idleness", "async")
FILES = sorted(FOLDER.glob("*.yaml"))
RAW = {
    item["id"]: item
    for path in FILES
    for item in yaml.safe_load(path.read_text("utf-8"))
    if item["kind"] in KINDS
}
LOOKS = frozenset(
    {
        "out",
        "out_set",
        "state",
        "idle_pending",
        "check",
        "error",
        "result",
        "returns",
        "keys",
        "aligned",
        "accepted",
    }
)


def outcome(text: str) -> Outcome:
    (scenario,) = parse(text)
    return run(scenario)


def outcome_of(item: dict[str, Any]) -> Outcome:
    return outcome(yaml.safe_dump([item], sort_keys=False))


def coalesced(config: str, *steps: str, wm: str = "exclusive") -> Outcome:
    lines = "\n".join(f"    - {{{step}}}" for step in steps)
    return outcome(
        f"- id: mine.coalesce\n  kind: coalesce\n  wm: {wm}\n  config: {{{config}}}\n "
        f" steps:\n{lines}\n"
    )


def generated(config: str, *steps: str, wm: str = "exclusive") -> Outcome:
    lines = "\n".join(f"    - {{{step}}}" for step in steps)
    return outcome(
        f"- id: mine.generate\n  kind: generate\n  wm: {wm}\n  config: {{{config}}}\n "
        f" steps:\n{lines}\n"
    )


def called(config: str, *steps: str) -> Outcome:
    lines = "\n".join(f"    - {{{step}}}" for step in steps)
    return outcome(f"- id: mine.async\n  kind: async\n  config: {{{config}}}\n  steps:\n{lines}\n")


# A runner that compares nothing would pass everything.


def expectations(item: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [path for path in numbers(item["steps"], ("steps",)) if LOOKS & set(path)]


@pytest.mark.parametrize("name", RAW)
def test_a_changed_expectation_is_noticed(name: str) -> None:
    paths = expectations(RAW[name])
    assert [
        path
        for path in paths[:: max(1, len(paths) // 8)]
        if outcome_of(changed(RAW[name], path)).status == PASS
    ] == []


def outs(item: dict[str, Any]) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """A copy of the scenario for every list of what comes out, and that list in it."""

    def lists(value: Any) -> list[list[Any]]:
        if not isinstance(value, dict | list):
            return []
        found = [value["out"]] if isinstance(value, dict) and "out" in value else []
        return found + [
            one
            for inner in (value.values() if isinstance(value, dict) else value)
            for one in lists(inner)
        ]

    for number in range(len(lists(item["steps"]))):
        twin = copy.deepcopy(item)
        yield twin, lists(twin["steps"])[number]


@pytest.mark.parametrize("name", RAW)
def test_more_than_came_out_is_noticed(name: str) -> None:
    for twin, out in outs(RAW[name]):
        out.append({"wm": 987_654, "key": 0})
        assert outcome_of(twin).status == FAIL


@pytest.mark.parametrize("name", RAW)
def test_less_than_came_out_is_noticed(name: str) -> None:
    for twin, out in outs(RAW[name]):
        if (
            not out
            or "emit" in str(twin["steps"])
            or (out[-1] == "idle" and RAW[name]["config"].get("semantics") == "flink_multiplexer")
        ):
            continue
        out.pop()
        assert outcome_of(twin).status == FAIL, out


@pytest.mark.parametrize("kind", KINDS)
def test_words_that_are_not_known(kind: str) -> None:
    item = next(item for item in RAW.values() if item["kind"] == kind)
    for change in ({"colour": "red"}, {"config": {**item["config"], "colour": "red"}}):
        ended = outcome_of({**item, **change})
        assert (ended.status, "`colour`" in ended.detail) == (UNSUPPORTED, True), ended
    twin = copy.deepcopy(item)
    (twin["steps"][0]["case"][0] if "case" in twin["steps"][0] else twin["steps"][0])["colour"] = (
        "red"
    )
    assert outcome_of(twin).status == UNSUPPORTED


@pytest.mark.parametrize(
    ("ended", "reason"),
    [
        (lambda: coalesced("semantics: storm, inputs: 1", "in: 0, wm: 1"), "`semantics: storm`"),
        (lambda: coalesced("inputs: many", "in: 0, wm: 1"), "`many`"),
        (lambda: coalesced("inputs: 1, policy: median", "in: 0, wm: 1"), "`policy: median`"),
        (lambda: coalesced("inputs: 1, quorum: most", "in: 0, wm: 1"), "`quorum`"),
        (lambda: coalesced("inputs: 1, quorum: 2", "in: 0, wm: 1"), "do not go together"),
        (lambda: coalesced("inputs: 1, emit: never", "in: 0, wm: 1"), "`emit: never`"),
        (lambda: coalesced("inputs: 1, frame: 10", "in: 0, wm: 1", wm="inclusive"), "`frame`"),
        (lambda: coalesced("inputs: 1, partitions: [a]", "in: 0, wm: 1"), "semantics: samza"),
        (lambda: coalesced("inputs: 1", "wm: 1"), "must say `in`"),
        (lambda: coalesced("inputs: 1", "in: 0, idle: yes please"), "`idle` of a step"),
        (lambda: coalesced("inputs: 1", "in: 0, wm: 1, out: 1"), "`out` must be a list"),
        (lambda: coalesced("inputs: 1", "in: 0, wm: 1, out: [{note: 1}]"), "`note`"),
        (lambda: coalesced("inputs: 1", "in: 0, wm: 1, out: [{key: 1}]"), "none of `wm`"),
        (lambda: coalesced("inputs: 1", "in: 0, wm: 1, out: [[1, 2, 3]]"), "a key and a watermark"),
        (lambda: coalesced("inputs: 1", "in: 0, wm: 1, out: [[a, 2]]"), "a watermark key"),
        (lambda: coalesced("inputs: 1", "in: 0, wm: 1, state: {colour: 1}"), "`colour` in a state"),
        (lambda: coalesced("inputs: 1", "in: 0, wm: 1, state: {fires: []}"), "`fires` needs"),
        (
            lambda: coalesced(
                "inputs: 1, window: {type: session, gap: 1}", "in: 0, wm: 1, state: {fires: []}"
            ),
            "plain fixed windows",
        ),
        (
            lambda: coalesced(
                "semantics: hazelcast_keyed, inputs: 1, idle_timeout: 5", "in: 0, wm: 1"
            ),
            "`idle_timeout`",
        ),
        (lambda: coalesced("inputs: 1", "case: 7"), "a `case` must be a list"),
        (lambda: generated("generator: dice", "event: 1"), "generator `dice`"),
        (lambda: generated("lag: 3", "event: 1"), "generator `None`"),
        (lambda: generated("generator: fixed_lag", "event: 1"), "needs `lag`"),
        (lambda: generated("generator: ascending, partitions: few", "event: 1"), "`partitions`"),
        (lambda: generated("generator: ascending", "event: 1, out: 7"), "`out` must be a list"),
        (lambda: generated("generator: ascending", "event: 1", "add: few"), "`add`"),
        (
            lambda: generated("generator: fixed_lag, lag: 1", "lag: 2, error: true", "event: 1"),
            "either sets a generator up",
        ),
        (
            lambda: generated("generator: fixed_lag, lag: 1", "lag: 2"),
            "must be refused can be asked",
        ),
        (
            lambda: generated("generator: ascending, timestamp_fn: clock", "event: 1"),
            "`timestamp_fn`",
        ),
        (lambda: called("order: sideways", "wm: 1"), "`order`"),
        (lambda: called("completion_orders: all", "wm: 1"), "`completion_orders`"),
        (
            lambda: called("completion_orders: [[a]]", "submit: b", "complete_all: true"),
            "leaves out calls",
        ),
        (lambda: called("", "complete: a"), "no call `a`"),
        (lambda: called("", "results: [a]"), "beside `submit`"),
        (lambda: called("", "submit: a, results: a"), "`results` must be"),
        (lambda: called("", "before: []"), "beside `out_set`"),
        (lambda: called("", "or_if_unordered: []"), "beside `out`"),
        (lambda: called("", "out: a"), "must be a list"),
        (lambda: called("", "out_set: [], before: [[a, b]]"), "not in `out_set`"),
        (lambda: called("max_concurrent: 1", "submit: a", "submit: b"), "`max_concurrent`"),
        (
            lambda: outcome("- {id: x, kind: idleness, steps: [{check: true}]}"),
            "begins with a `timeout`",
        ),
    ],
)
def test_what_cannot_be_run_is_unsupported(ended: Callable[[], Outcome], reason: str) -> None:
    found = ended()
    assert (found.status, reason in found.detail) == (UNSUPPORTED, True), found


# Coalescing.


def test_our_own_rules() -> None:
    steps = (
        "in: a, wm: 5, out: []",
        "in: b, wm: 7, out: [5]",
        "in: a, wm: 3, out: []",
        "in: a, idle: true, out: [7]",
    )
    turns = (
        "in: b, idle: true, out: [idle]",
        "in: a, event: true, out: [active]",
        "in: a, wm: 9, out: [9]",
    )
    assert coalesced("inputs: [a, b]", *steps, *turns).status == PASS
    assert (
        "expected [8], got [5]"
        in coalesced("inputs: [a, b]", steps[0], "in: b, wm: 7, out: [8]").detail
    )


def test_inputs_that_are_not_declared_join_when_they_are_named() -> None:
    assert (
        coalesced(
            "",
            "in: a, wm: 5, out: [5]",
            "in: b, event: true",
            "in: a, wm: 7, out: []",
            "in: b, remove: true, out: [7]",
        ).status
        == PASS
    )
    assert (
        coalesced(
            "inputs: 1", "in: 1, wm: 5, error: true", "in: 1, add: true", "in: 1, wm: 5"
        ).status
        == PASS
    )
    assert coalesced("inputs: 1", "in: 0, add: true, error: true").status == PASS
    assert "there is no input `1`" in coalesced("inputs: 1", "in: 1, wm: 5").detail


def test_a_step_back_is_an_error_where_it_is_asked_for() -> None:
    back = ("in: 0, wm: 5", "in: 0, wm: 4")
    assert coalesced("inputs: 1", *back).status == PASS
    assert (
        coalesced(
            "inputs: 1",
            back[0],
            "in: 0, wm: 4, error: true",
            "in: 0, wm: 5",
            "in: 0, wm: 6, out: [6]",
        ).status
        == PASS
    )
    assert "went back" in coalesced("inputs: 1, strict: true", *back).detail
    assert (
        "must be refused, but it was accepted"
        in coalesced(
            "semantics: flink_valve, inputs: 1", back[0], "in: 0, wm: 4, error: true"
        ).detail
    )
    assert (
        coalesced("semantics: hazelcast, inputs: 1", back[0], "in: 0, wm: 5, error: true").status
        == PASS
    )


def test_policies_quorums_and_frames() -> None:
    assert (
        coalesced(
            "inputs: 2, policy: max",
            "in: 0, wm: 5, out: [5]",
            "in: 1, wm: 3, out: []",
            "in: 1, wm: 8, out: [8]",
        ).status
        == PASS
    )
    assert (
        coalesced(
            "inputs: 4, quorum: 0.5", "in: 0, wm: 5, out: []", "in: 3, wm: 3, out: [3]"
        ).status
        == PASS
    )
    assert (
        coalesced(
            "inputs: 1, frame: 10",
            "in: 0, wm: 19, out: [10]",
            "in: 0, wm: 20, out: [20]",
            "in: 0, wm: 29, out: []",
        ).status
        == PASS
    )
    assert (
        coalesced(
            "inputs: 2, initial: 4", "in: 0, wm: 9, out: [], state: {wm: 4, input0: 9, input1: 4}"
        ).status
        == PASS
    )
    assert (
        coalesced(
            "inputs: 2, realign: true",
            "in: 1, idle: true",
            "in: 0, wm: 9",
            "in: 1, event: true",
            "in: 0, wm: 10, out: [10]",
        ).status
        == PASS
    )


def test_the_clock_makes_inputs_idle() -> None:
    steps = (
        "in: 0, wm: 5",
        "clock: 9, in: 0, event: true, out: []",
        "clock: 10, out: [5]",
        "clock: 19, out: [idle]",
    )
    assert (
        coalesced(
            "inputs: 2, idle_timeout: 10", *steps, "clock: 20, in: 1, wm: 6, out: [active, 6]"
        ).status
        == PASS
    )
    assert (
        coalesced(
            "inputs: 2, idle_timeout: 10",
            "clock: 100",
            "clock: 109, out: []",
            "clock: 110, out: [idle]",
        ).status
        == PASS
    )


def test_states_are_looked_at_by_their_names() -> None:
    steps = (
        "in: 0, wm: 5, state: null",
        "in: 1, wm: 7, state: 5",
        "in: 0, idle: true",
        "in: 1, idle: true, state: idle",
    )
    assert coalesced("inputs: 2", *steps).status == PASS
    assert coalesced("inputs: 2", steps[0], "in: 1, wm: 7, state: 6").status == FAIL
    assert coalesced("inputs: 2", steps[0], "in: 1, wm: 7, state: idle").status == FAIL
    assert (
        coalesced(
            "inputs: 2",
            steps[0],
            "in: end, state: {0: 5, input1: null, top: 5, ended: false, idle: false}",
        ).status
        == PASS
    )
    keyed = (
        "in: 0, key: 3, wm: 5",
        "in: 1, key: 4, wm: 5, state: {keys: [3, 4], 3: null}",
        "in: 1, key: 3, wm: 6, state: {3: 5, 4: null, top: 6}",
    )
    assert coalesced("semantics: hazelcast_keyed, inputs: 2", *keyed).status == PASS


def test_windows_fire_beside_watermarks() -> None:
    steps = (
        "in: 0, wm: 9, state: {fires: []}",
        "in: 0, wm: 30, state: {fires: [[0, 10], [10, 20], [20, 30]]}",
        "in: 0, wm: 31, state: {fires: []}",
    )
    assert (
        coalesced("inputs: 1, initial: 0, window: {type: fixed, size: 10}", *steps).status == PASS
    )
    assert coalesced("inputs: 1, initial: 0", *steps).status == PASS
    wrong = coalesced(
        "inputs: 1, initial: 0", steps[0], "in: 0, wm: 30, state: {fires: [[0, 10], [20, 30]]}"
    )
    assert "got [[0, 10], [10, 20], [20, 30]]" in wrong.detail
    assert (
        "too many"
        in coalesced(
            "inputs: 1", "in: 0, wm: 0", "in: 0, wm: 1000000, state: {fires: [[0, 1]]}"
        ).detail
    )


def test_a_snapshot_keeps_what_inputs_have_promised() -> None:
    before, after = (
        ("in: 0, wm: 5", "in: 1, idle: true"),
        ("in: 1, wm: 9, out: []", "in: 0, wm: 7, out: [7]"),
    )
    for config in ("inputs: 2", "semantics: samza, inputs: 2"):
        assert (
            coalesced(
                config, *before, "snapshot_restore: true, state: {0: 5, 1: null, wm: 5}", *after
            ).status
            == PASS
        ), config
    keyed = (
        "in: 0, key: 1, wm: 5",
        "in: 1, idle: true",
        "snapshot_restore: true, state: {1: 5}",
        "in: 0, key: 1, wm: 6, out: [[1, 6]]",
    )
    assert coalesced("semantics: hazelcast_keyed, inputs: 2", *keyed).status == PASS


def test_keyed_inputs_may_be_idle_for_one_key() -> None:
    spoken = ("in: 0, key: 1, wm: 5", "in: 0, key: 2, wm: 5")
    idle = (
        "in: 1, key: 1, idle: true, out: [[1, 5]]",
        "in: 0, key: 1, idle: true, out: [[1, idle]]",
    )
    assert (
        coalesced(
            "semantics: hazelcast_keyed, inputs: 2",
            *spoken,
            *idle,
            "in: 1, key: 2, wm: 4, out: [{wm: 4, key: 2}]",
        ).status
        == PASS
    )
    joined = (
        "in: 0, key: 1, wm: 5",
        "in: c, add: true",
        "in: 1, key: 1, wm: 6, out: []",
        "in: c, remove: true, out: [[1, 5]]",
    )
    assert coalesced("semantics: hazelcast_keyed, inputs: 2", *joined).status == PASS
    assert "no keys" in coalesced("inputs: 1, semantics: samza", "in: 0, key: 3, wm: 1").detail


def test_steps_that_name_watermark_keys_have_them_under_any_rules() -> None:
    steps = (
        "in: 0, idle: true, out: []",
        "in: 1, key: 127, wm: 4, out: [[127, 4]]",
        "in: 0, key: 127, wm: 1, out: []",
    )
    turns = ("in: 1, idle: true, out: []", "in: 0, idle: true, key: 127, out: [idle]")
    assert coalesced("inputs: 2", *steps, *turns).status == PASS
    assert coalesced("inputs: 2, semantics: hazelcast", *steps).status == PASS
    assert "0 to 127" in coalesced("inputs: 1", "in: 0, key: 128, wm: 1").detail


def test_samza_looks_at_its_clock_when_a_watermark_comes() -> None:
    steps = (
        "in: 0, wm: 5",
        "clock: 50, out: []",
        "in: 0, wm: 6, out: [6]",
        "in: 1, wm: 2, out: []",
        "in: 0, done: true, state: {ended: false}",
    )
    assert (
        coalesced(
            "semantics: samza, inputs: 2, idle_timeout: 10",
            *steps,
            "in: 1, done: true, state: {ended: true}",
        ).status
        == PASS
    )
    assert (
        coalesced(
            "semantics: samza, partitions: 1, producers_per_partition: 1",
            "in: p0/x, wm: 3, state: {p0: 3, p0/x: 3}",
        ).status
        == PASS
    )
    unknown = ("in: p0/y, wm: 3, error: true", "in: p7/x, wm: 3, error: true")
    assert coalesced("semantics: samza, partitions: 1", "in: p0/x, wm: 3", *unknown).status == PASS


def test_outputs_of_the_multiplexer_are_immediate_or_wait() -> None:
    config = "semantics: flink_multiplexer, inputs: 2"
    waiting = ("in: 0, wm: 3", "in: 1, wm: 4, state: {wm: null}", "emit: true, state: {wm: 3}")
    assert coalesced(config, *waiting).status == PASS
    assert coalesced(f"{config}, emit: periodic", *waiting).status == PASS
    assert coalesced(f"{config}, emit: immediate", *waiting).status == FAIL
    assert coalesced(config, waiting[0], "in: 1, wm: 4, state: {wm: 2}", waiting[2]).status == FAIL
    assert (
        coalesced(
            "inputs: 2, emit: end_of_batch",
            "in: 0, wm: 3",
            "in: 1, wm: 4, out: []",
            "emit: true, out: [3]",
        ).status
        == PASS
    )


def test_a_case_without_a_fresh_start_is_a_group_of_steps() -> None:
    assert (
        coalesced(
            "inputs: 1",
            "case: [{in: 0, wm: 5, out: [5]}, {in: 0, wm: 6, out: [6]}]",
            "in: 0, wm: 6, out: []",
        ).status
        == PASS
    )
    cases = "case: [{in: 0, wm: 5, out: [5]}]", "case: [{in: 0, wm: 4, out: [4]}]"
    assert coalesced("inputs: 1, each_case_fresh: true", *cases).status == PASS
    assert coalesced("inputs: 1", *cases).status == FAIL


# Generators and timers.


def test_generators() -> None:
    assert (
        generated(
            "generator: fixed_lag, lag: 3",
            "event: 10, out: [{ev: 10}, {wm: 7}]",
            "event: 9, out: [{ev: 9}]",
        ).status
        == PASS
    )
    assert (
        generated(
            "generator: clock_lag, lag: 3",
            "clock: 5, event: 100, out: [{ev: 100}, 2]",
            "clock: 6, out: [3]",
        ).status
        == PASS
    )
    assert (
        generated(
            "generator: implied", "event: 5, out: [{ev: 5}, 5]", "event: 4, out: [{ev: 4}]"
        ).status
        == PASS
    )
    assert (
        generated(
            "generator: punctuated",
            "event: 5, mark: 2, out: [{ev: 5}, 2]",
            "event: 9, out: [{ev: 9}]",
        ).status
        == PASS
    )
    assert (
        generated(
            "generator: ascending, emit: periodic",
            "event: 5, out: [{ev: 5}]",
            "emit: true, out: [5]",
            "emit: true, out: []",
        ).status
        == PASS
    )
    assert (
        generated(
            "generator: ascending",
            "event: 5, out: [{ev: 5}, {wm: 4}]",
            "event: 5, out: [{ev: 5}]",
            wm="inclusive",
        ).status
        == PASS
    )


def test_a_repeated_watermark_is_no_news() -> None:
    steps = ("event: 5", "emit: true, out: [5]", "emit: true, out: [5]")
    assert generated("generator: ascending, emit: periodic", *steps).status == PASS
    assert (
        generated("generator: ascending, emit: periodic, monotone_output: true", *steps).status
        == FAIL
    )
    assert (
        generated("generator: ascending, emit: periodic", *steps[:2], "emit: true, out: [4]").status
        == FAIL
    )


def test_partitions_come_and_go() -> None:
    steps = (
        "event: 5, part: 0, out: [{ev: 5}]",
        "event: 9, part: 1, out: [{ev: 9}, 5]",
        "add: 1",
        "event: 7, part: 0, out: [{ev: 7}]",
    )
    assert (
        generated(
            "generator: ascending, partitions: 2",
            *steps,
            "remove: 2, out: [7]",
            "part: 0, remove: true, out: [9]",
        ).status
        == PASS
    )
    assert (
        generated(
            "generator: ascending, partitions: [a, b]",
            "event: 5, part: a",
            "in: b, remove: true, out: [5]",
        ).status
        == PASS
    )
    assert (
        generated("generator: ascending, partitions: 1", "event: 5, part: 1, error: true").status
        == PASS
    )
    assert (
        "no partition `1`"
        in generated("generator: ascending, partitions: 1", "event: 5, part: 1").detail
    )


def test_partitions_fall_idle_and_come_back() -> None:
    ours = (
        "event: 5, out: [{ev: 5}, 5]",
        "clock: 10, out: [idle]",
        "clock: 10, event: 6, out: [{ev: 6}, active, 6]",
    )
    assert generated("generator: ascending, idle_timeout: 10", *ours).status == PASS
    flink = (
        "event: 5",
        "clock: 1, emit: true, out: [5]",
        "clock: 2, emit: true",
        "clock: 12, emit: true, out: []",
    )
    assert (
        generated(
            "semantics: flink_valve, generator: ascending, idle_timeout: 10",
            *flink,
            "clock: 13, emit: true, out: [idle]",
        ).status
        == PASS
    )


def test_watermarks_are_restored() -> None:
    steps = (
        "event: 9, part: 0, out: [{ev: 9}]",
        "event: 12, part: 1, out: [{ev: 12}]",
        "event: 12, part: 0, out: [{ev: 12}, 12]",
    )
    assert (
        generated("generator: ascending, partitions: 2, restored_watermark: 10", *steps).status
        == PASS
    )
    one = ("event: 9, part: 0, out: [{ev: 9}]", "event: 7, part: 1, out: [{ev: 7}, 7]")
    assert (
        generated("generator: ascending, partitions: 2, restored_watermark: {0: 10}", *one).status
        == PASS
    )


def test_generators_that_must_be_refused() -> None:
    assert generated("generator: fixed_lag, lag: 1", "lag: -1, error: true").status == PASS
    assert "was accepted" in generated("generator: fixed_lag, lag: 1", "lag: 2, error: true").detail
    text = (
        "- {id: x, kind: generate, config: {generator: bounded_out_of_orderness, bound: -1}, error:"
        " true}"
    )
    assert (outcome(text).status, outcome(text.replace("-1", "1")).status) == (PASS, FAIL)
    assert "must be refused" in generated("generator: ascending", "event: 1, error: true").detail


def timer(semantics: str, *steps: str) -> Outcome:
    lines = ", ".join(f"{{{step}}}" for step in steps)
    return outcome(
        f"- {{id: x, kind: idleness, config: {{semantics: {semantics}}}, steps: [{lines}]}}"
    )


def test_silence_is_counted_from_the_last_sign_of_life() -> None:
    steps = (
        "timeout: 10",
        "advance: 4",
        "activity: true",
        "advance: 9, check: false",
        "advance: 1, check: true",
        "activity: true, check: false",
    )
    assert timer("tidegate", *steps).status == PASS
    assert "expected idle True, got False" in timer("flink_valve", *steps).detail
    assert timer("tidegate", "timeout: 10", "clock: 10, check: true").status == PASS
    assert timer("tidegate", "timeout: 10, error: true").status == FAIL
    assert timer("tidegate", "timeout: 0").status == FAIL


# Calls.


def test_calls() -> None:
    both = (
        "submit: a, results: [x, y]",
        "wm: 3",
        "submit: b",
        "wm: 4, key: 1",
        "idle: true",
        "out: []",
    )
    ordered = (
        *both,
        "complete: b",
        "out: []",
        "complete: a",
        "out: [x, y, {wm: 3}, b, {wm: 4, key: 1}, {idle: true}]",
    )
    assert called("order: ordered", *ordered).status == PASS
    unordered = (
        *both,
        "complete: b",
        "out: [b]",
        "complete: a",
        "out: [b, x, y, {wm: 3}, {wm: 4, key: 1}, {idle: true}]",
    )
    assert called("ordered: false", *unordered).status == PASS
    assert called("order: [ordered, unordered]", *unordered).status == FAIL


def test_calls_that_fail_or_give_nothing() -> None:
    steps = (
        "submit: a",
        "submit: b, results: null",
        "wm: 3",
        "active: true",
        "fail: a",
        "out: [{failed: a}, {wm: 3}, {active: true}]",
    )
    assert called("order: [ordered, unordered]", *steps).status == PASS


def test_calls_survive_a_restart() -> None:
    steps = (
        "submit: a",
        "wm: 3",
        "submit: b",
        "complete: b",
        "snapshot_restore: true",
        "complete: a",
    )
    assert called("order: ordered", *steps, "out: [a, {wm: 3}, b]").status == PASS
    assert called("order: unordered", *steps, "out: [b, a, {wm: 3}]").status == PASS


def test_order_of_a_set_of_outputs() -> None:
    backwards = "order: unordered, completion_orders: [[b, a]]"
    steps = ("submit: a", "wm: 3", "submit: b", "complete_all: true")
    assert (
        called(backwards, *steps, "out_set: [a, b, {wm: 3}], before: [[a, {wm: 3}]]").status == PASS
    )
    assert (
        "expected a before b"
        in called(backwards, *steps, "out_set: [a, b, {wm: 3}], before: [[a, b]]").detail
    )
    assert "in any order" in called("order: ordered", *steps, "out_set: [a, b]").detail


# Against slow and obvious models of other systems.

NEVER, ENDED = -math.inf, math.inf


class Hazelcast:
    """Many queues: the least watermark of those that are not idle; the highest of all when there
    are no others.
    """

    def __init__(self, queues: int) -> None:
        self.marks = [NEVER] * queues
        self.idle = [False] * queues
        self.last = self.top = NEVER
        self.told = False

    def step(self, queue: int, action: str, value: int) -> dict[str, Any]:
        if action == "event":
            self.told = self.told and not self.idle[queue]
            self.idle[queue] = False
            return {"event": True, "out": [], "idle_pending": False}
        new = value if action == "wm" else ENDED
        if self.marks[queue] >= new:
            return {action: value if action == "wm" else True, "error": True}
        self.idle[queue] = action == "idle"
        if action != "idle":
            self.marks[queue] = new
        if action == "wm":
            self.told, self.top = False, max(self.top, new)
        return {action: value if action == "wm" else True, **self.look()}

    def look(self) -> dict[str, Any]:
        waited = [
            mark
            for mark, idle in zip(self.marks, self.idle, strict=True)
            if not idle and mark < ENDED
        ]
        pending = not waited and not self.told and min(self.marks) < ENDED
        due = min(waited) if waited else NEVER if self.told else self.top
        self.told = self.told or not waited
        risen, self.last = due > self.last, max(due, self.last)
        return {"out": [int(due)] if risen else [], "idle_pending": pending}


class Valve:
    """Many channels: the least watermark of those that are active and not behind; the highest of
    all when none is active.
    """

    def __init__(self, channels: int) -> None:
        self.marks = [NEVER] * channels
        self.active = [True] * channels
        self.aligned = [True] * channels
        self.last = NEVER

    def step(self, channel: int, action: str, value: int) -> dict[str, Any]:
        was_active, said = any(self.active), []
        if action == "wm" and self.active[channel]:
            self.marks[channel] = max(self.marks[channel], value)
        elif action != "wm":
            self.active[channel] = action == "active"
        for number, mark in enumerate(self.marks):
            self.aligned[number] = self.active[number] and (
                self.aligned[number] or mark >= self.last
            )
        if any(self.active) and not was_active:
            said.append("active")
        waited = [mark for mark, aligned in zip(self.marks, self.aligned, strict=True) if aligned]
        due = max(self.marks) if not any(self.active) else min(waited, default=NEVER)
        if due > self.last:
            self.last = due
            said.append(int(due))
        if was_active and not any(self.active):
            said.append("idle")
        return {action: value if action == "wm" else True, "out": said}


ACTIONS = {
    "hazelcast": ("wm", "wm", "wm", "idle", "event", "done"),
    "flink_valve": ("wm", "wm", "wm", "idle", "active"),
}
MODELS: dict[str, Callable[[int], Any]] = {"hazelcast": Hazelcast, "flink_valve": Valve}


@given(st.sampled_from(sorted(MODELS)), st.integers(2, 4), st.data())
def test_models_of_other_systems_agree(system: str, inputs: int, data: st.DataObject) -> None:
    moves = data.draw(
        st.lists(
            st.tuples(
                st.integers(0, inputs - 1), st.sampled_from(ACTIONS[system]), st.integers(0, 12)
            ),
            max_size=20,
        )
    )
    model = MODELS[system](inputs)
    steps = [{"in": number, **model.step(number, action, value)} for number, action, value in moves]
    assert run(
        Scenario(
            "x", "coalesce", config={"semantics": system, "inputs": inputs}, body={"steps": steps}
        )
    ) == Outcome("x", PASS)


words = st.sampled_from(
    [
        "idle",
        "active",
        "a",
        "-inf",
        "+inf",
        None,
        True,
        False,
        0,
        1,
        7,
        -3,
        2.5,
        [],
        [1, 2],
        {"wm": 3},
        {"ev": 4},
    ]
)
vocabulary = {
    "coalesce": (
        "in",
        "wm",
        "idle",
        "active",
        "event",
        "done",
        "add",
        "remove",
        "emit",
        "clock",
        "key",
        "out",
        "state",
        "error",
        "idle_pending",
    ),
    "generate": ("event", "part", "mark", "clock", "add", "remove", "emit", "out", "error"),
    "idleness": ("timeout", "advance", "clock", "activity", "check", "error"),
    "async": (
        "submit",
        "results",
        "wm",
        "key",
        "idle",
        "complete",
        "complete_all",
        "fail",
        "snapshot_restore",
        "out",
        "out_set",
        "before",
    ),
}
systems = st.sampled_from(
    ["tidegate", "min", "hazelcast", "hazelcast_keyed", "flink_valve", "flink_multiplexer", "samza"]
)


@given(st.sampled_from(KINDS), systems, st.data())
def test_whatever_is_written_ends_with_an_outcome(
    kind: str, system: str, data: st.DataObject
) -> None:
    steps = data.draw(
        st.lists(
            st.dictionaries(st.sampled_from(vocabulary[kind]), words, min_size=1, max_size=4),
            max_size=5,
        )
    )
    config = {
        "coalesce": {"semantics": system, "inputs": 2},
        "generate": {"semantics": system, "generator": "ascending"},
    }.get(kind, {})
    assert "broke off" not in run(Scenario("x", kind, config=config, body={"steps": steps})).detail


# The same thing in the words of another author.


def idle_timer(config: str, *steps: str) -> Outcome:
    lines = "\n".join(f"    - {{{step}}}" for step in steps)
    return outcome(
        f"- id: mine.idleness\n  kind: idleness\n  config: {{{config}}}\n  steps:\n{lines}\n"
    )


def test_an_error_may_stand_in_a_step_of_its_own() -> None:
    assert (
        coalesced(
            "semantics: hazelcast, inputs: 1", "in: 0, wm: 5", "in: 0, wm: 4", "error: true"
        ).status
        == PASS
    )
    assert (
        "must be refused"
        in coalesced("semantics: hazelcast, inputs: 1", "in: 0, wm: 5", "error: true").detail
    )
    assert idle_timer("timeout: 0", "error: true").status == PASS
    assert "must be refused" in idle_timer("timeout: 1", "error: true").detail


def test_inputs_that_are_counted_may_be_called_by_names() -> None:
    steps = ("in: left, wm: 10, out: []", "in: right, wm: 7, out: [7]")
    assert (
        coalesced("inputs: 2", *steps, "in: left, idle: true, state: {left: 10, right: 7}").status
        == PASS
    )
    assert coalesced("inputs: 3", *steps).status == FAIL
    assert "there is no input `left`" in coalesced("inputs: 1", *steps).detail
    assert "there is no input `left`" in coalesced("inputs: 2", "in: 0, wm: 3", *steps).detail


def test_the_names_of_what_is_looked_at() -> None:
    steps = (
        "in: 0, wm: 1, state: {top_observed: 1, coalesced: null}",
        "in: 1, wm: 2, state: {top_observed: 2, coalesced: 1}",
    )
    assert coalesced("semantics: hazelcast, inputs: 2", *steps).status == PASS
    keyed = (
        "in: 0, idle: true, out: [], keys: []",
        "in: 1, key: 42, wm: 10, out: [[42, 10]], keys: [42]",
    )
    assert coalesced("semantics: hazelcast_keyed, inputs: 2", *keyed).status == PASS
    assert (
        "`aligned`"
        in coalesced("semantics: hazelcast_keyed, inputs: 1", "in: 0, wm: 1, aligned: true").detail
    )
    valve = (
        "in: 0, wm: 5, aligned: true",
        "in: 1, idle: true, out: [5], aligned: false",
        "in: 1, active: true, aligned: false",
    )
    assert (
        coalesced("semantics: flink_valve, inputs: 2", *valve, "in: 1, wm: 5, aligned: true").status
        == PASS
    )
    assert (
        "`aligned`"
        in coalesced("semantics: flink_valve, inputs: 2", "in: 0, wm: 5, aligned: false").detail
    )
    mux = "semantics: flink_multiplexer, inputs: 1"
    assert (
        coalesced(
            mux, "in: 0, remove: true, returns: true", "in: 0, remove: true, returns: false"
        ).status
        == PASS
    )
    assert "expected returns" in coalesced(mux, "in: 0, remove: true, returns: false").detail


def test_outputs_that_wait_are_said_in_several_ways() -> None:
    waiting = ("in: 0, wm: 3", "in: 1, wm: 4, state: {wm: null}", "emit: true, state: {wm: 3}")
    for config in ("emit: deferred", "emit: periodic", "deferred: true"):
        assert (
            coalesced(f"semantics: flink_multiplexer, inputs: 2, {config}", *waiting).status == PASS
        ), config
        assert (
            coalesced(
                f"semantics: flink_multiplexer, inputs: 1, {config}",
                "in: 0, wm: 3, immediate: true, state: {wm: 3}",
            ).status
            == PASS
        )
    assert (
        coalesced("semantics: flink_multiplexer, inputs: 2, deferred: false", *waiting).status
        == FAIL
    )
    batches = ("in: 0, wm: 3, out: []", "end_of_batch: true, out: [3]")
    assert coalesced("inputs: 1, emit: end_of_batch", *batches).status == PASS


@pytest.mark.parametrize(("quorum", "least"), [("0.5", 5), ("0.75", 5), ("1.0", None)])
def test_samza_stays_where_it_is_without_a_quorum_of_active_producers(
    quorum: str, least: int | None
) -> None:
    config = (
        "semantics: samza, partitions: 1, producers_per_partition: 2, idle_timeout: 10, quorum:"
        f" {quorum}"
    )
    shown = "null" if least is None else least
    steps = ("in: p0/a, wm: 1", "clock: 10", f"in: p0/b, wm: 5, state: {{p0: {shown}}}")
    assert coalesced(config, *steps).status == PASS
    assert (
        coalesced(
            config, *steps, "in: p0/a, wm: 4, state: {p0: " + ("5" if least else "4") + "}"
        ).status
        == PASS
    )


def test_generators_by_their_names_in_flink() -> None:
    for name in ("ascending", "ascending_timestamps", "monotonous_timestamps"):
        config = f"semantics: flink_valve, generator: {name}, emit: periodic"
        assert (
            generated(
                config,
                "event: 1337, state: {wm: null}",
                "emit: true, out: [{wm: 1336}], state: {wm: 1336}",
                wm="inclusive",
            ).status
            == PASS
        )
    assert "`wm`" in generated("generator: ascending", "event: 5, state: {wm: 4}").detail
    assert "`idle`" in generated("generator: ascending", "event: 5, state: {idle: true}").detail
    assert generated("generator: ascending", "event: 5, state: 5").status == PASS
    assert generated("generator: ascending", "event: 5, state: {colour: red}").status == UNSUPPORTED


def test_generators_emit_by_the_clock_at_the_end_or_never() -> None:
    periodic = "semantics: flink_valve, generator: ascending, emit: periodic"
    for config in ("interval: 50", "auto_watermark_interval: 50"):
        steps = (
            "event: 5, out: [{ev: 5}]",
            "clock: 49, out: []",
            "clock: 50, out: [{wm: 5}]",
            "event: 7",
            "clock: 99, out: []",
            "clock: 100, out: [{wm: 7}]",
        )
        assert generated(f"{periodic}, {config}", *steps).status == PASS, config
    assert generated(periodic, "event: 5", "clock: 50, out: [{wm: 5}]").status == PASS
    assert (
        generated(periodic, "event: 5", "clock: 50, out: []", "emit: true, out: [{wm: 5}]").status
        == PASS
    )
    assert (
        generated(
            "generator: ascending, emit: on_event", "event: 5, out: [{ev: 5}, {wm: 5}]"
        ).status
        == PASS
    )
    for emission in ("never", "periodic", "after_event"):
        ended = generated(
            f"generator: ascending, emit: {emission}",
            "event: 5",
            "end_of_input: true",
            "end_of_input: true, out: []",
        )
        assert ended.status == PASS, ended
    assert (
        generated(
            "generator: ascending, emit: never",
            "event: 5, out: [{ev: 5}]",
            "end_of_input: true, out: [{wm: +inf}]",
        ).status
        == PASS
    )
    assert generated("generator: ascending, frame: +inf", "event: 5, out: [{ev: 5}]").status == PASS


def test_partitions_come_and_go_in_several_words() -> None:
    none = "semantics: hazelcast, generator: fixed_lag, lag: 3, partitions: 0"
    for joins in ("add: true", "add: 1", "add: 0", "add_partitions: 1"):
        assert (
            generated(
                none,
                "event: null, out: [idle]",
                joins,
                "event: 10, part: 0, out: [{wm: 7}, {ev: 10}]",
            ).status
            == PASS
        ), joins
    for leaves in ("remove: 1", "remove: true, part: 1", "remove_partition: 1"):
        two = "semantics: hazelcast, generator: fixed_lag, lag: 0, partitions: 2"
        assert (
            generated(
                two, "event: 10, part: 0, out: [{ev: 10}]", f"{leaves}, out: [{{wm: 10}}]"
            ).status
            == PASS
        ), leaves
    native = "semantics: hazelcast, generator: fixed_lag, lag: 3, timestamp_fn: null"
    assert (
        generated(
            native,
            "event: 10, native: 11, out: [{wm: 8}, {ev: 10}]",
            "event: 10, native: null, error: true",
        ).status
        == PASS
    )


def test_timers_by_their_config_and_other_words() -> None:
    for config in ("timeout: 10", "idle_timeout: 10"):
        assert (
            idle_timer(
                config, "check: false", "advance: 10", "check: true", "event: true", "check: false"
            ).status
            == PASS
        )
        assert idle_timer(config, "check: true").status == FAIL


def test_calls_in_lists_and_with_late_results() -> None:
    listed = (
        "submit: [a, b]",
        "wm: 10",
        "submit: c",
        "complete: [c, b, a], out: [a, b, {wm: 10}, c]",
    )
    assert called("order: ordered", *listed).status == PASS
    assert called("order: ordered", "submit: [a, b], wm: 10").status == UNSUPPORTED
    assert called("order: ordered", "submit: []").status == UNSUPPORTED
    assert (
        called("order: ordered", "submit: a", "complete: a, results: [x, y], out: [x, y]").status
        == PASS
    )
    assert (
        called("order: ordered", "submit: a", "complete: a, results: null, out: []").status == PASS
    )
    assert called("order: ordered", "submit: a", "complete: a, results: x").status == UNSUPPORTED
    assert called("order: ordered", "submit: a", "complete: b, results: [x]").status == UNSUPPORTED


def test_calls_that_have_a_place_and_those_that_have_none() -> None:
    steps = (
        "submit: a, accepted: true",
        "wm: 0, accepted: true",
        "submit: b, accepted: true",
        "submit: c, accepted: false",
    )
    for name in ("max_concurrent", "max_concurrent_ops", "capacity"):
        assert (
            called(
                f"{name}: 2",
                *steps,
                "complete: a",
                "submit: d, accepted: true",
                "out: [a, {wm: 0}]",
            ).status
            == PASS
        ), name
        assert "expected accepted" in called(f"{name}: 1", *steps).detail
    assert called("", steps[0]).status == UNSUPPORTED
    assert called("max_concurrent: 2", "accepted: true").status == UNSUPPORTED
