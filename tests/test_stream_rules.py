"""Cuts, marks, rounds of the controller and time windows of readers, as rules without a store."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import SpecError
from tidegate.kernel.streams.segments import BEFORE, PASSED, Segment, Segments
from tidegate.kernel.streams.watermarks import (
    Aggregation,
    Commit,
    Mark,
    Marks,
    StreamMark,
    TimeWindow,
    time_window,
)

# The stream has two segments; the first is split, and then one of its halves is merged with the
# second.
SCALED = Segments.of(
    [
        Segment("a", 0, 0.5),
        Segment("b", 0.5, 1),
        Segment("c", 0, 0.25, 1),
        Segment("d", 0.25, 0.5, 1),
        Segment("e", 0.25, 1, 2),
    ]
)
positions = st.dictionaries(st.sampled_from("abcde"), st.integers(0, 9), max_size=5)


def covers(cut: Any) -> bool:
    """Whether a cut covers every key exactly once."""
    shares = sorted((SCALED[name].low, SCALED[name].high) for name in cut)
    return (
        bool(shares)
        and shares[0][0] == 0
        and shares[-1][1] == 1
        and all(a[1] == b[0] for a, b in itertools.pairwise(shares))
    )


def test_successors_are_later_and_share_keys():
    assert SCALED["c"].succeeds(SCALED["a"])
    assert SCALED["e"].succeeds(SCALED["b"])
    assert SCALED["e"].succeeds(SCALED["d"])
    assert not SCALED["c"].succeeds(SCALED["b"])
    assert not SCALED["a"].succeeds(SCALED["c"])
    assert [segment.name for segment in SCALED.newest()] == ["c", "e"]


@given(st.lists(positions, max_size=4))
def test_the_upper_bound_is_a_cut_at_or_after_all_positions(found):
    cut = SCALED.upper_bound(found)
    assert covers(cut)
    for position in found:
        for name, at in position.items():
            assert (name in cut and cut[name] >= at) or any(
                SCALED[other].succeeds(SCALED[name]) for other in cut
            )


def test_where_nobody_was_the_newest_segments_begin():
    assert SCALED.upper_bound([]) == {"c": 0, "e": 0}
    assert SCALED.upper_bound([{"a": 3, "b": 1}]) == {"a": 3, "b": 1}
    assert SCALED.upper_bound([{"a": 3}, {"c": 1}]) == {"c": 1, "e": 0}
    assert SCALED.upper_bound([{"b": 3}, {"c": 1}]) == {
        "c": 1,
        "e": 0,
    }, "what fills a gap may succeed what is there"


cuts = positions.map(lambda position: SCALED.upper_bound([position]))


@given(cuts, cuts)
def test_a_position_is_not_before_and_after_a_cut_at_once(one, other):
    there, back = SCALED.compare(one, other), SCALED.compare(other, one)
    if there == BEFORE:
        assert back == PASSED
    if one == other:
        assert there == PASSED


def test_a_writers_time_does_not_go_back():
    marks = Marks()
    assert marks.note("w", 5, {"a": 3})
    assert not marks.note("w", 4, {"a": 4})
    assert marks.get("w") == Mark(5, {"a": 3})
    assert marks.note("w", 5, {"a": 2, "b": 1})
    assert marks.get("w") == Mark(5, {"a": 3, "b": 1})


def test_commits_without_a_time_say_nothing_and_do_not_pull_time_back():
    marks = Marks()
    marks.commit([Commit("w", None)], {"a": 1})
    assert "w" not in marks
    marks.note("w", 9, {"a": 1})
    marks.commit([Commit("w", 4), Commit("w", 6)], {"a": 2})
    assert marks.get("w") == Mark(9, {"a": 2})


def test_a_writer_that_has_shut_down_leaves_at_once_and_comes_back_with_its_next_mark():
    marks, rounds = Marks(), Aggregation(timeout=1000)
    marks.note("one", 10, {"a": 1})
    marks.note("two", 20, {"b": 1})
    assert rounds.compute(marks, SCALED, 0) == StreamMark(10, 20, {"a": 1, "b": 1})
    assert rounds.compute(marks, SCALED, 1) is None
    marks.shut_down("one")
    assert rounds.compute(marks, SCALED, 2) == StreamMark(20, 20, {"a": 1, "b": 1})
    assert "one" not in marks
    marks.note("one", 15, {"a": 2})
    assert rounds.compute(marks, SCALED, 3) is None


def test_a_stream_without_writers_is_left_alone():
    rounds = Aggregation(timeout=1)
    assert rounds.compute(Marks(), SCALED, 0) is None
    assert rounds.last is None


writers = st.sampled_from(["one", "two", "three"])
words = st.one_of(
    st.tuples(st.just("note"), writers, st.integers(0, 40), positions),
    st.tuples(st.just("shut"), writers),
    st.tuples(st.just("round"), st.integers(0, 30)),
)


@given(st.lists(words, max_size=40))
def test_time_and_cut_never_go_back_and_no_live_writer_is_overtaken(history):
    marks, rounds, now = Marks(), Aggregation(timeout=20), 0
    for word in history:
        if word[0] == "note":
            former = marks.get(word[1])
            marks.note(word[1], word[2] if former is None else max(word[2], former.time), word[3])
        elif word[0] == "shut":
            marks.shut_down(word[1])
        else:
            now += word[1]
            before = rounds.last
            found = rounds.compute(marks, SCALED, now)
            if found is None:
                assert rounds.last == before
                continue
            assert found.time <= found.upper
            assert all(mark.time >= found.time for mark in marks.by_writer.values())
            if before is not None:
                assert found.time > before.time
                for name, at in before.cut.items():
                    assert found.cut.get(name, -1) >= at or any(
                        SCALED[other].succeeds(SCALED[name]) for other in found.cut
                    )


def test_a_group_that_has_read_nothing_is_nowhere_in_time():
    assert time_window(None, [StreamMark(1, 2, {"a": 0, "b": 0})], SCALED) == TimeWindow(None, None)
    assert time_window({"a": 0, "b": 0}, [], SCALED) == TimeWindow(None, None)


@pytest.mark.parametrize("keys", [(0.5, 0.5), (-0.1, 0.5), (0.5, 1.1)])
def test_a_segment_has_some_of_the_keys(keys):
    with pytest.raises(SpecError, match=r"lies within 0\.\.1"):
        Segment("s", *keys)


def test_segments_are_told_apart_by_name():
    with pytest.raises(SpecError, match="two segments named `s`"):
        Segments.of([Segment("s", 0, 1), Segment("s", 0, 1, 1)])
    with pytest.raises(SpecError, match="has no segment `z`"):
        SCALED.compare({"z": 1}, {"a": 1})
