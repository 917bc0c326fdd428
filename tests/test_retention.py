"""Retention: windows and messages within the bounds of time, windows, messages and bytes stay
readable and accept late messages; older ones are evicted.
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
    assert told == [(0, "+", 2, "early"), (0, "-", 2, "early"), (0, "+", 3, "on_time")]


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


# Retention keeps


def spans(op: tg.EmbeddedOperator) -> list[tuple[int, int]]:
    """Start and number of messages of the readable windows."""
    return [(w["window_start"], w["count"]) for w in op.get_windows()]


def kept(**retention: Any) -> tg.Windowed:
    return windowed().retain(**retention).options(keep_messages=True)


@pytest.mark.parametrize(
    ("retention", "oldest"),
    [({"time": "35 us"}, 5), ({"windows": 4}, 5), ({"messages": 8}, 5), ({"bytes": 10**6}, 0)],
)
def test_windows_within_retention_stay_readable_and_take_late_messages(retention, oldest):
    op = kept(**retention).late_arrival(tg.after_count(1)).aggregate(n=tg.count()).embedded(now=0)
    for start in range(0, 90, 10):
        op.add_messages([row(start), row(start + 5)])
        op.advance_watermark(start + 10)
    expected = [(10 * i, 2) for i in range(oldest, 9)]
    assert spans(op) == expected
    assert [r["ts"] for r in op.get_messages().to_pylist()] == [
        10 * i + j for i in range(oldest, 9) for j in (0, 5)
    ]
    assert [(r["window_start"], r["n"]) for r in op.peek().to_pylist()] == expected
    op.get_result()
    op.flush()
    op.add_messages([row(71)])
    assert panes(op) == [("a", 70, 3, False)]
    assert late(op) == []
    op.add_messages([row(1)])
    assert [r[2] for r in late(op)] == ["out_of_retention"] * bool(oldest)


def test_lateness_decides_what_is_updated_and_retention_what_stays_readable():
    op = (
        kept(windows=3)
        .allow_lateness(5, unit="us")
        .late_arrival(tg.after_count(1))
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    op.add_messages([row(1), row(11), row(21)])
    op.advance_watermark(14)
    op.add_messages([row(9)])
    op.advance_watermark(20)
    assert panes(op) == [
        ("a", 0, 1, False),
        ("a", 0, 2, False),
        ("a", 10, 1, False),
    ]
    op.add_messages([row(8), row(16)])
    assert late(op) == [("a", 8, "very_late", [0])]
    assert spans(op) == [(0, 2), (10, 2), (20, 1)]
    op.add_messages([row(31)])
    assert spans(op) == [(10, 2), (20, 1), (30, 1)]
    op.finish()
    assert spans(op) == []
    assert op.get_messages().num_rows == 0


def test_the_last_pane_before_lateness_ends_is_the_last_one():
    """A window that only stays readable emits nothing when retention evicts it."""
    op = kept(windows=1).allow_lateness(0, unit="us").aggregate(n=tg.count()).embedded(now=0)
    op.add_messages([row(1)])
    op.advance_watermark(10)
    assert panes(op) == [("a", 0, 1, True)]
    op.add_messages([row(11)])
    assert panes(op) == [("a", 0, 1, True)]
    assert spans(op) == [(10, 1)]


@pytest.mark.parametrize("axis", ["offset", "ordinal"])
def test_tuple_windows_are_kept_with_their_messages(axis):
    op = (
        tg.stream(key="k", offset="o")
        .window(tg.tumbling(2, axis=axis))
        .retain(windows=3)
        .options(keep_messages=True)
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    for offset in range(9):
        op.add_messages([{"o": offset, "k": "a"}])
    assert spans(op) == [(4, 2), (6, 2), (8, 1)]
    assert op.get_messages()["o"].to_pylist() == [4, 5, 6, 7, 8]
    assert [p[1:] for p in panes(op)] == [(2 * i, 2, True) for i in range(4)]
    assert op.resume_offsets() == {"": 9}


def test_a_new_partition_updates_a_tuple_window_that_is_kept():
    op = (
        tg.stream(key="k", offset="o", partition="p")
        .window(tg.tumbling(2, axis="offset"))
        .late_arrival(tg.after_count(1))
        .retain(windows=2)
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    for offset in range(5):
        op.add_messages([{"o": offset, "k": "a", "p": "x"}])
    op.get_result()
    op.flush()
    op.add_messages([{"o": 0, "k": "a", "p": "y"}, {"o": 2, "k": "a", "p": "y"}])
    assert panes(op) == [("a", 2, 3, False)]
    assert op.get_result().late["reason"].to_pylist() == ["out_of_retention"]


@pytest.mark.parametrize("more", [{}, {"m": tg.median("o")}])
def test_a_new_partition_is_late_for_a_tuple_window_that_is_not_kept(more):
    """A second pane of a window that is over would have the number of the first."""
    op = (
        tg.stream(key="k", offset="o", partition="p")
        .window(tg.tumbling(2, axis="offset"))
        .retracting()
        .aggregate(n=tg.count(), **more)
        .embedded(now=0)
    )
    for offset in range(4):
        op.add_messages([{"o": offset, "k": "a", "p": "x"}])
    op.add_messages([{"o": o, "k": "a", "p": "y"} for o in (0, 1, 3, 4)])
    op.finish()
    assert panes(op) == [("a", 0, 2, True), ("a", 2, 2, True), ("a", 4, 1, True)]
    late = op.get_result().late.to_pylist()
    assert [(row["reason"], row["o"], row["windows"]) for row in late] == [
        ("window_expired", 0, [{"window_start": 0, "window_end": 2}]),
        ("window_expired", 1, [{"window_start": 0, "window_end": 2}]),
        ("window_expired", 3, [{"window_start": 2, "window_end": 4}]),
    ]


def test_clock_windows_are_kept_by_time():
    op = (
        tg.stream(key="k")
        .window(tg.tumbling(10, unit="us", axis="clock"))
        .retain(time="20 us")
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    op.add_messages([{"k": "a"}], now=5)
    op.add_messages([{"k": "a"}], now=15)
    op.timeout(29)
    assert len(op.get_windows()) == 2
    op.timeout(30)
    assert len(op.get_windows()) == 1
    op.timeout(40)
    assert op.get_windows() == []


@pytest.mark.parametrize("mode", ["accumulating", "discarding"])
def test_sessions_are_kept_with_their_messages_and_do_not_grow_after_closing(mode):
    op = (
        getattr(windowed(tg.session(5, unit="us")).retain(windows=3), mode)()
        .trigger(tg.after_watermark())
        .aggregate(n=tg.count(), all=tg.list_("ts"))
        .embedded(now=0)
    )
    op.add_messages([row(1), row(4)])
    op.advance_watermark(9)
    op.add_messages([row(7), row(30)])
    op.advance_watermark(20)
    result = op.get_result().panes.to_pylist()
    assert [(p["window_start"], p["all"]) for p in result] == [(1, [1, 4]), (7, [7])]
    assert spans(op) == [(1, 2), (7, 1), (30, 1)]
    assert op.get_messages()["ts"].to_pylist() == [1, 4, 7, 30]
    if mode == "accumulating":
        assert op.peek()["all"].to_pylist() == [[1, 4], [7], [30]]
    op.add_messages([row(50)])
    assert spans(op) == [(7, 1), (30, 1), (50, 1)]
    assert op.get_messages()["ts"].to_pylist() == [7, 30, 50]


def test_what_is_kept_survives_a_restart():
    spec = kept(windows=3).allow_lateness(0, unit="us").aggregate(n=tg.count())
    store = tg.MemoryStore()
    op = spec.embedded(store=store, now=0)
    for start in range(0, 50, 10):
        op.add_messages([row(start)])
        op.advance_watermark(start + 10)
    op.flush()
    again = spec.embedded(store=store, now=0)
    assert spans(again) == spans(op) == [(20, 1), (30, 1), (40, 1)]
    assert again.get_messages().equals(op.get_messages())


@pytest.mark.parametrize("identity", ["id", "offset"])
@pytest.mark.parametrize("retention", [{"windows": 3}, {"time": "30 us"}, {"messages": 6}])
def test_state_is_bounded_by_retention_alone(identity, retention):
    op = (
        windowed(**{identity: "n"})
        .retain(**retention)
        .options(keep_messages=True)
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    sizes = []
    for step in range(60):
        op.add_messages([{**row(10 * step + i), "n": 2 * step + i} for i in range(2)])
        op.advance_watermark(10 * step)
        sizes.append(op.stats()["bytes"])
        op.flush()
    stats = op.stats()
    assert stats["messages"] <= 8
    assert stats["ids"] <= 8
    assert max(sizes[10:]) < 2 * max(sizes[:10])


def test_a_duplicate_is_found_as_long_as_its_window_is_kept():
    op = windowed(id="v").retain(windows=2).aggregate(n=tg.count()).embedded(now=0)
    for i in range(5):
        op.add_messages([row(10 * i, v=i)])
        op.advance_watermark(10 * i + 10)
    op.get_result()
    op.flush()
    op.add_messages([row(30, v=3)])
    op.timeout(20_000_000)
    assert panes(op) == []
    assert op.stats()["duplicates"] == 1


def after(former: dict[str, Any], current: dict[str, Any]) -> tg.EmbeddedOperator:
    """An operator with `current` retention over the state of 100 ticks with `former` retention."""
    store = tg.MemoryStore()
    op = kept(**former).aggregate(n=tg.count()).embedded(store=store, now=0)
    for start in range(0, 100, 10):
        op.add_messages([row(start)])
    op.get_result()
    op.flush()
    return kept(**current).aggregate(n=tg.count()).embedded(store=store, now=0)


@pytest.mark.parametrize(
    ("former", "current"),
    [
        ({"windows": 3}, {"windows": 5}),
        ({"time": "20 us"}, {"time": "80 us"}),
        ({"time": "20 us"}, {"windows": 5}),
    ],
)
def test_longer_retention_does_not_bring_back_what_was_evicted(former, current):
    op = after(former, current)
    assert spans(op) == [(70, 1), (80, 1), (90, 1)]
    op.add_messages([row(65), row(75), row(100)])
    assert late(op) == [("a", 65, "out_of_retention", [60])]
    assert spans(op) == [(70, 2), (80, 1), (90, 1), (100, 1)]


def test_shorter_retention_evicts_with_the_next_message_of_a_key():
    op = after({"windows": 5}, {"windows": 2})
    op.add_messages([row(95)])
    assert spans(op) == [(80, 1), (90, 2)]


def test_lateness_that_is_left_out_gives_way_to_retention():
    """State of an explicit lateness follows; what had been too late stays too late."""
    store = tg.MemoryStore()
    strict = kept(windows=5).allow_lateness(0, unit="us").aggregate(n=tg.count())
    op = strict.embedded(store=store, now=0)
    op.add_messages([row(1), row(11)])
    op.advance_watermark(10)
    op.get_result()
    op.flush()
    again = kept(windows=5).aggregate(n=tg.count()).embedded(store=store, now=0)
    again.advance_watermark(20)
    again.add_messages([row(2), row(12)])
    assert late(again) == [("a", 2, "window_expired", [0])]
    assert spans(again) == [(0, 1), (10, 2)]
    again.flush()
    with pytest.raises(tg.SpecMismatchError, match="not shorter"):
        strict.embedded(store=store, now=0)


def test_the_specification_tells_an_explicit_lateness_from_none():
    free, strict = (
        made.aggregate(n=tg.count()).spec
        for made in (
            windowed().retain(windows=5),
            windowed().retain(windows=5).allow_lateness("1m"),
        )
    )
    assert (free.allowed_lateness, strict.allowed_lateness) == (None, 60_000_000)
    assert free != strict
    assert free.to_dict() != strict.to_dict()
    assert free.lateness > strict.lateness == windowed().aggregate(n=tg.count()).spec.lateness


# Joins


def pair_stream(**stream: Any) -> tg.Stream:
    return tg.stream(time="ts", watermark=tg.explicit(), **stream)


def joined(window: Any, **retention: Any) -> tg.Joined:
    left, right = pair_stream(), pair_stream()
    return left.join(right, on="k", window=window, how="left").retain(**retention)


def held(op: Any, side: str = "left") -> list[int]:
    return op.get_messages(side)["ts"].to_pylist()


JOIN_WINDOWS = {
    "bounds": tg.within("5 us", "5 us"),
    "tumbling": tg.tumbling(10, unit="us"),
    "session": tg.session(5, unit="us"),
    "as of": tg.as_of(tolerance="5 us"),
}


@pytest.mark.parametrize("window", JOIN_WINDOWS.values(), ids=JOIN_WINDOWS)
@pytest.mark.parametrize("retention", [{"time": "35 us"}, {"messages": 4}, {"bytes": 10**6}])
def test_rows_of_a_join_within_retention_stay_readable_and_match_late_rows(window, retention):
    op = joined(window, **retention).embedded(now=0)
    for start in range(0, 80, 10):
        op.add_messages([row(start)], input="left")
        op.add_messages([row(start)], input="right")
        for side in ("left", "right"):
            op.advance_watermark(start + 9, input=side)
    oldest = 0 if "bytes" in retention else 40
    assert held(op) == held(op, "right") == list(range(oldest, 80, 10))
    op.get_result()
    op.flush()
    op.add_messages([row(61)], input="left")
    pairs = op.get_result().panes.to_pylist()
    assert [(p["left_ts"], p["right_ts"]) for p in pairs] == [(61, 60)]
    op.add_messages([row(1)], input="left")
    reasons = op.get_result().late["reason"].to_pylist()
    assert reasons == ["out_of_retention"] * bool(oldest)
    op.finish()
    assert held(op) == []


@pytest.mark.parametrize("window", JOIN_WINDOWS.values(), ids=JOIN_WINDOWS)
def test_lateness_decides_what_a_join_matches_and_retention_what_stays_readable(window):
    op = joined(window, messages=3).allow_lateness(5, unit="us").embedded(now=0)
    for start in (0, 20, 40):
        op.add_messages([row(start)], input="left")
        op.add_messages([row(start)], input="right")
    for side in ("left", "right"):
        op.advance_watermark(39, input=side)
    op.get_result()
    op.flush()
    op.add_messages([row(1), row(40)], input="left")
    result = op.get_result()
    assert result.late["reason"].to_pylist() == ["very_late"]
    for side in ("left", "right"):
        op.advance_watermark(41, input=side)
    assert {p["left_ts"] for p in op.get_result().panes.to_pylist()} == {40}
    assert held(op) == [20, 40, 40]
    assert held(op, "right") == [0, 20, 40]
    assert "matched until" in joined(window, messages=3).allow_lateness("5 us").explain()
    assert "matched until" not in joined(window, messages=3).explain()


def test_rows_that_left_a_tuple_window_stay_readable_without_matching():
    left, right = tg.stream(offset="o"), tg.stream(offset="o")
    made = left.join(right, on="k", window=tg.rows(left=1, right=1)).retain(messages=3)
    op = made.embedded(now=0)
    for offset in range(5):
        op.add_messages([{"o": offset, "k": "a"}], input="left")
    op.add_messages([{"o": 0, "k": "a"}], input="right")
    assert op.get_messages("left")["o"].to_pylist() == [2, 3, 4]
    assert op.get_result().panes["left_o"].to_pylist() == [4]
    assert [w["count"] for w in op.get_windows("left")] == [1]
