"""Scenarios of watermarks: differences are found, and models of other systems agree."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from conformance import EXTENSION, FAIL, FOLDER, PASS, UNSUPPORTED, Outcome, Scenario, run
from support.mutations import changed, numbers
from support.short_scenarios import (
    called,
    coalesced,
    generated,
    idle_timer,
    outcome,
    outcome_of,
)

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
            "x",
            "coalesce",
            config={"semantics": system, "inputs": inputs},
            body={"steps": steps},
            extension=EXTENSION,
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
    assert (
        "broke off"
        not in run(
            Scenario("x", kind, config=config, body={"steps": steps}, extension=EXTENSION)
        ).detail
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
