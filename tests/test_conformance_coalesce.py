"""The kind `coalesce`: one watermark of many inputs, by our rules and those of others."""

from __future__ import annotations

import pytest

from conformance import FAIL, PASS
from support.short_scenarios import (
    coalesced,
)


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


@pytest.mark.parametrize(("quorum", "active"), [("0.5", 6), ("0.75", 6), ("1.0", 1)])
def test_samza_leaves_idle_producers_out_where_a_quorum_is_active(quorum: str, active: int) -> None:
    config = (
        "semantics: samza, partitions: 1, producers_per_partition: 2, idle_timeout: 10, quorum:"
        f" {quorum}"
    )
    steps = (
        "in: p0/a, wm: 1",
        "clock: 10",
        # The least promise of both advances the watermark; the next one does not.
        "in: p0/b, wm: 5, state: {p0: 1}",
        f"in: p0/b, wm: 6, state: {{p0: {active}}}",
        f"in: p0/a, wm: 4, state: {{p0: {max(active, 4)}}}",
    )
    assert coalesced(config, *steps).status == PASS
