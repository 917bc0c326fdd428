"""Sessions: unions of overlapping intervals per key, in any order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from conformance.assignment import MergingSet
from tidegate.instants import MAX, MIN
from tidegate.kernel.windows.sessions import merge_intervals

touches = st.sampled_from(["separate", "merge"])
near = st.integers(-20, 20)
far = st.one_of(near, st.integers(MIN, MAX), st.sampled_from([MIN, MAX]))


def interval(at: st.SearchStrategy[int]) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(at, at).map(lambda pair: (min(pair), max(pair)))


def meet(a: tuple[int, int], b: tuple[int, int], touch: str) -> bool:
    """Two intervals share an instant, a point being an instant; with touch = merge, the end is an
    instant of the interval too.
    """
    if touch == "merge":
        return max(a[0], b[0]) <= min(a[1], b[1])
    if a == b:
        return True
    if a[0] == a[1]:
        return b[0] <= a[0] < b[1]
    if b[0] == b[1]:
        return a[0] <= b[0] < a[1]
    return max(a[0], b[0]) < min(a[1], b[1])


def slow_unions(
    intervals: list[tuple[int, tuple[int, int]]], touch: str
) -> list[tuple[int, int, int, list[int]]]:
    """Joins sets of intervals for as long as two of them meet."""
    unions = [(key, window, [i]) for i, (key, window) in enumerate(intervals)]
    joined = True
    while joined:
        joined = False
        for i, (key, a, members) in enumerate(unions):
            for j, (other, b, more) in enumerate(unions[:i]):
                if key == other and meet(a, b, touch):
                    unions[j] = (key, (min(a[0], b[0]), max(a[1], b[1])), sorted(members + more))
                    del unions[i]
                    joined = True
                    break
            if joined:
                break
    return sorted((key, *window, members) for key, window, members in unions)


def fast_unions(
    intervals: list[tuple[int, tuple[int, int]]], touch: str
) -> list[tuple[int, int, int, list[int]]]:
    columns = [
        np.array([row[i] for row in ((k, *w) for k, w in intervals)], np.int64) for i in range(3)
    ]
    merged = merge_intervals(*columns, touch)
    members = [np.flatnonzero(merged.groups.ids == g).tolist() for g in range(merged.groups.n)]
    return list(
        zip(merged.key.tolist(), merged.start.tolist(), merged.end.tolist(), members, strict=True)
    )


@given(st.lists(st.tuples(st.integers(0, 2), interval(near)), max_size=12), touches)
def test_differential_merge_intervals(intervals, touch):
    assert fast_unions(intervals, touch) == slow_unions(intervals, touch)


@given(st.lists(st.tuples(st.sampled_from([MIN, -1, 0, MAX]), interval(far)), max_size=8), touches)
def test_differential_merge_intervals_at_the_ends_of_int64(intervals, touch):
    assert fast_unions(intervals, touch) == slow_unions(intervals, touch)


@given(st.lists(interval(near), max_size=10), touches)
def test_adding_one_by_one_gives_the_same_sessions(intervals, touch):
    added = MergingSet(touch)
    for window in intervals:
        result, _ = added.add(window)
        assert result in added.windows
    assert added.windows == [
        (start, end) for _, start, end, _ in slow_unions([(0, w) for w in intervals], touch)
    ]


@given(st.lists(interval(near), max_size=10), touches)
def test_a_merge_names_what_it_replaces(intervals, touch):
    added = MergingSet(touch)
    for window in intervals:
        before = list(added.windows)
        result, replaced = added.add(window)
        assert set(replaced) <= set(before)
        assert sorted({*before, result} - set(replaced)) == added.windows


@pytest.mark.parametrize(
    ("touch", "sessions"), [("separate", [(0, 10), (10, 20)]), ("merge", [(0, 20)])]
)
def test_sessions_exactly_one_gap_apart(touch, sessions):
    merged = merge_intervals(np.array([7, 7]), np.array([10, 0]), np.array([20, 10]), touch)
    assert list(zip(merged.start.tolist(), merged.end.tolist(), strict=True)) == sessions


def test_a_window_inside_another_is_no_merge():
    added = MergingSet("merge")
    assert added.add((0, 6)) == ((0, 6), [])
    assert added.add((1, 4)) == ((0, 6), [])
    assert added.add((6, 8)) == ((0, 8), [(0, 6)])


def test_nothing_merges_to_nothing():
    nothing = np.zeros(0, np.int64)
    merged = merge_intervals(nothing, nothing, nothing, "separate")
    assert (merged.groups.n, len(merged.start), len(merged.end)) == (0, 0, 0)


@pytest.mark.parametrize("touch", ["separate", "merge"])
@pytest.mark.parametrize("span", [40, 2_000])
def test_differential_many_intervals_are_merged_as_few_are(touch, span):
    """Beyond a number of intervals those of a key that share an instant are not sorted; the answer
    is the same.
    """
    dice = np.random.default_rng(7)
    key = np.unique(dice.integers(0, 900, 6_000), return_inverse=True)[1]
    start = dice.integers(0, span, 6_000)
    end = start + dice.integers(0, 30, 6_000)
    at_once = merge_intervals(key, start, end, touch)
    for one in range(0, 900, 97):
        mine = key == one
        alone = merge_intervals(key[mine], start[mine], end[mine], touch)
        chosen = at_once.key == one
        assert at_once.start[chosen].tolist() == alone.start.tolist()
        assert at_once.end[chosen].tolist() == alone.end.tolist()
        assert (
            at_once.groups.ids[mine] - np.flatnonzero(chosen)[0]
        ).tolist() == alone.groups.ids.tolist()


def test_a_tuple_session_joins_offsets_that_differ_by_at_most_its_gap():
    op = (
        tg.stream(key="k", offset="offset")
        .window(tg.session(3, axis="offset"))
        .aggregate(n=tg.count())
        .embedded()
    )
    op.add_messages([{"k": "a" if o in (0, 3, 7) else "b", "offset": o} for o in range(8)])
    op.finish()
    found = [pane["n"] for pane in op.get_result().panes.to_pylist() if pane["k"] == "a"]
    assert found == [2, 1], "two messages of another key are between 0 and 3, three before 7"


@pytest.mark.parametrize("deliveries", [[(-42, -41)], [(-42,), (-41,)]], ids=["one", "two"])
def test_events_of_an_expired_session_are_late_in_one_delivery_as_in_two(deliveries):
    """They merge with each other, but with no session that is not over."""
    op = (
        tg.stream(time="t", watermark=tg.explicit())
        .window(tg.session(2, unit="us"))
        .allow_lateness(10, unit="us")
        .options(drop_by="window", session_lateness="merged")
        .trigger(tg.after_watermark(late=tg.every_element()))
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    op.advance_watermark(-16)
    for times in deliveries:
        op.add_messages([{"t": t} for t in times])
    result = op.get_result()
    assert result.panes.num_rows == 0
    assert result.late["reason"].to_pylist() == ["window_expired"] * 2
