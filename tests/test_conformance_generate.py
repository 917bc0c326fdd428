"""The kinds `generate` and `idleness`: watermarks of generators, partitions and timers."""

from __future__ import annotations

from conformance import FAIL, PASS, UNSUPPORTED
from support.short_scenarios import (
    generated,
    idle_timer,
    outcome,
    timer,
)


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
