"""The kind `async`: calls, marks between them, and the order of what comes out."""

from __future__ import annotations

from conformance import FAIL, PASS, UNSUPPORTED
from support.short_scenarios import (
    called,
)


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
