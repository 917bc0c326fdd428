"""Retention: bounds on state by time, windows, messages and bytes; what is pushed out fires, and
what comes for it is told.
"""

from __future__ import annotations

from typing import Any

import pytest

import tidegate as tg


def windowed(window: Any = None, key: Any = "k", **stream: Any) -> tg.Windowed:
    return tg.stream(time="ts", key=key, watermark=tg.explicit(), **stream).window(
        window or tg.tumbling(10, unit="us")
    )


def row(ts: int, k: Any = "a", v: int = 1) -> dict[str, Any]:
    return {"ts": ts, "k": k, "v": v}


def panes(op: tg.EmbeddedOperator) -> list[tuple[Any, ...]]:
    return [
        (p["k"], p["window_start"], p["n"], p["is_last"]) for p in op.get_result().panes.to_pylist()
    ]


def late(op: tg.EmbeddedOperator) -> list[tuple[Any, ...]]:
    return [
        (r["k"], r["ts"], r["reason"], [w["window_start"] for w in r["windows"]])
        for r in op.get_result().late.to_pylist()
    ]


def test_by_time_is_measured_back_from_the_newest_event():
    op = windowed().retain(time="20 us").aggregate(n=tg.count()).embedded(now=0)
    op.add_messages([row(5), row(15)])
    op.add_messages([row(29)])
    assert panes(op) == []
    op.add_messages([row(30)])
    assert panes(op) == [("a", 0, 1, True)]
    op.add_messages([row(9), row(10)])
    assert late(op) == [("a", 9, "out_of_retention", [0])]
    assert [w["window_start"] for w in op.get_windows()] == [10, 20, 30]


def test_by_time_counts_over_all_keys():
    op = windowed().retain(time="20 us").aggregate(n=tg.count()).embedded(now=0)
    op.add_messages([row(5, "a")])
    op.add_messages([row(100, "b")])
    assert panes(op) == [("a", 0, 1, True)]


def test_an_event_from_the_future_pushes_nothing_out():
    op = (
        windowed()
        .retain(time="20 us")
        .options(future_tolerance="100 us")
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    op.add_messages([row(5)])
    op.add_messages([row(1_000)])
    assert panes(op) == []
    op.add_messages([row(6)])
    op.finish()
    assert panes(op) == [("a", 0, 2, True), ("a", 1000, 1, True)]


def test_by_windows_counts_per_key():
    op = windowed().retain(windows=2).aggregate(n=tg.count()).embedded(now=0)
    op.add_messages([row(5, "a"), row(5, "b"), row(15, "a")])
    op.add_messages([row(25, "a")])
    assert panes(op) == [("a", 0, 1, True)]
    op.add_messages([row(6, "a"), row(6, "b"), row(16, "a")])
    assert late(op) == [("a", 6, "out_of_retention", [0])]
    op.finish()
    assert sorted(panes(op)) == [
        ("a", 0, 1, True),
        ("a", 10, 2, True),
        ("a", 20, 1, True),
        ("b", 0, 2, True),
    ]


def test_a_null_key_is_a_key_of_its_own():
    op = windowed().retain(windows=1).aggregate(n=tg.count()).embedded(now=0)
    op.add_messages([row(5, None), row(5, "a")])
    op.add_messages([row(15, None)])
    op.add_messages([row(6, None), row(6, "a")])
    assert panes(op) == [(None, 0, 1, True)]
    assert late(op) == [(None, 6, "out_of_retention", [0])]


def test_by_messages_counts_per_key():
    op = windowed().retain(messages=4).aggregate(n=tg.count()).embedded(now=0)
    op.add_messages([row(1), row(2), row(3), row(11), row(1, "b"), row(2, "b")])
    assert panes(op) == []
    op.add_messages([row(12)])
    assert panes(op) == [("a", 0, 3, True)]
    op.add_messages([row(3, "b")])
    assert panes(op) == [("a", 0, 3, True)]


def test_the_newest_window_stays_even_if_it_alone_holds_too_many():
    op = windowed().retain(messages=2).aggregate(n=tg.count()).embedded(now=0)
    op.add_messages([row(1) for _ in range(10)])
    assert panes(op) == []
    op.finish()
    assert panes(op) == [("a", 0, 10, True)]


def test_messages_that_are_pushed_out_are_not_held():
    op = windowed().retain(messages=10).aggregate(n=tg.count(), all=tg.list_("v")).embedded(now=0)
    for start in range(0, 1_000, 10):
        op.add_messages([row(start + i) for i in range(5)])
    stats = op.stats()
    assert stats["windows"] <= 2
    assert stats["messages"] <= 10


def test_windows_that_are_pushed_out_leave_no_messages():
    op = windowed().retain(windows=3).aggregate(n=tg.count(), all=tg.list_("v")).embedded(now=0)
    for start in range(0, 1_000, 10):
        op.add_messages([row(start + i) for i in range(5)])
    assert op.stats()["windows"] == 3
    assert op.stats()["messages"] <= 15


def test_time_that_is_pushed_out_leaves_no_messages():
    op = windowed().retain(time="30 us").aggregate(n=tg.count(), all=tg.list_("v")).embedded(now=0)
    for start in range(0, 1_000, 10):
        op.add_messages([row(start + i) for i in range(5)])
    assert op.stats()["messages"] <= 25


@pytest.mark.parametrize(
    "aggregates",
    [{"n": tg.count()}, {"n": tg.count(), "all": tg.list_("v")}],
    ids=["partials", "messages"],
)
def test_by_bytes_bounds_the_operator(aggregates):
    limit = 20_000
    op = windowed().retain(bytes=limit).aggregate(**aggregates).embedded(now=0)
    told = 0
    for start in range(0, 1_500, 10):
        op.add_messages([row(start + i, f"k{i}") for i in range(10)])
        assert op.stats()["bytes"] <= 1.5 * limit
        told += op.get_result().panes.num_rows
        op.flush()
    op.finish()
    told += op.get_result().panes.num_rows
    assert told == 1_500
    assert op.stats()["windows_pushed_out"] > 100


def test_by_bytes_pushes_the_oldest_windows_first():
    op = windowed().retain(bytes=10_000).aggregate(n=tg.count()).embedded(now=0)
    for start in range(0, 2_000, 10):
        op.add_messages([row(start)])
    gone = [p[1] for p in panes(op)]
    assert gone == sorted(gone)
    assert gone
    assert gone[-1] < min(w["window_start"] for w in op.get_windows())
    op.add_messages([row(gone[-1])])
    assert late(op) == [("a", gone[-1], "out_of_retention", [gone[-1]])]


def test_what_is_pushed_out_fires_only_what_is_new():
    op = (
        windowed()
        .trigger(tg.after_watermark(early=tg.after_count(1)))
        .retain(windows=1)
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    op.add_messages([row(1)])
    op.add_messages([row(11)])
    assert panes(op) == [("a", 0, 1, False), ("a", 10, 1, False)]


def test_what_is_pushed_out_in_retracting_mode_takes_its_former_pane_back():
    eager = tg.after_watermark(early=tg.repeatedly(tg.after_count(2)))
    op = (
        windowed()
        .trigger(eager)
        .retracting()
        .retain(windows=1)
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    op.add_messages([row(1), row(2), row(3)])
    op.add_messages([row(11)])
    told = [
        (p["window_start"], p["op"], p["n"], p["timing"]) for p in op.get_result().panes.to_pylist()
    ]
    assert told == [(0, "+", 2, "early"), (0, "-", 2, "early"), (0, "+", 3, "early")]


def test_an_event_in_windows_on_both_sides_of_the_bound_is_told_what_it_missed():
    op = (
        windowed(tg.hopping(20, 10, unit="us"))
        .retain(windows=2)
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    op.add_messages([row(15), row(25)])
    op.add_messages([row(16)])
    assert late(op) == [("a", 16, "out_of_retention", [0])]
    op.finish()
    assert panes(op) == [("a", 0, 1, True), ("a", 10, 3, True), ("a", 20, 1, True)]


def test_sessions_are_pushed_out_whole():
    op = (
        windowed(tg.session(5, unit="us")).retain(windows=1).aggregate(n=tg.count()).embedded(now=0)
    )
    op.add_messages([row(1), row(4)])
    op.add_messages([row(30)])
    assert panes(op) == [("a", 1, 2, True)]
    op.add_messages([row(3)])
    assert [r[:3] for r in late(op)] == [("a", 3, "out_of_retention")]


def test_bounds_work_together():
    op = (
        windowed()
        .retain(windows=3, messages=4, time="1000 us")
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    op.add_messages([row(1), row(11), row(12), row(13)])
    op.add_messages([row(21)])
    assert [p[1] for p in panes(op)] == [0]
    op.add_messages([row(2_000)])
    assert [p[1] for p in panes(op)] == [0, 10, 20]


def test_all_bounds_survive_a_restart():
    spec = windowed().retain(windows=1, time="1000 us").aggregate(n=tg.count())
    store = tg.MemoryStore()
    op = spec.embedded(store=store, now=0)
    op.add_messages([row(1), row(11)])
    op.get_result()
    op.flush()
    again = spec.embedded(store=store, now=0)
    again.add_messages([row(2)])
    assert late(again) == [("a", 2, "out_of_retention", [0])]


@pytest.mark.parametrize("bound", [{"time": "0 s"}, {"windows": 0}, {"messages": -1}, {"bytes": 0}])
def test_bounds_must_be_positive(bound):
    with pytest.raises(tg.SpecError, match=next(iter(bound))):
        windowed().retain(**bound)


def test_nothing_that_comes_is_lost():
    """Every message is in a pane or in `late`."""
    op = (
        windowed()
        .discarding()
        .retain(windows=2, messages=3)
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    for start in range(0, 300, 7):
        op.add_messages([row((start * 13 + i * 29) % 300, "ab"[i % 2]) for i in range(5)])
    op.finish()
    result = op.get_result()
    assert sum(result.panes["n"].to_pylist()) + result.late.num_rows == 5 * len(range(0, 300, 7))
    assert result.late.num_rows > 0


def test_retention_by_time_needs_a_window_on_time():
    with pytest.raises(tg.SpecError, match="retention by time needs a window on time"):
        tg.stream().window(tg.tumbling(3, axis="ordinal")).retain(time="1 minute").aggregate(
            n=tg.count()
        )
