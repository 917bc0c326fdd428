"""Frontiers and reader groups as rules: predecessors first, every segment once, fair shares."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import SpecError
from tidegate.kernel.streams.frontier import Frontier
from tidegate.kernel.streams.reader_group import GroupState, Member
from tidegate.kernel.streams.segments import Segment, Segments
from tidegate.streams.description import Description, StreamSettings

# Two segments; the first gives some of its keys to a third one, and the rest to one that also
# succeeds the second.
CROSSED = Segments.of(
    [Segment("0", 0, 0.5), Segment("1", 0.5, 1), Segment("2", 0, 0.25, 1), Segment("3", 0.25, 1, 1)]
)


@st.composite
def histories(draw):
    """A stream that was scaled several times: adjacent segments are merged and split again."""
    described = Description.new(draw(st.integers(1, 3)), StreamSettings(), 0)
    for _ in range(draw(st.integers(0, 5))):
        newest = described.segments.newest()
        first = draw(st.integers(0, len(newest) - 1))
        gone = newest[first : draw(st.integers(first, len(newest) - 1)) + 1]
        low, high = gone[0].low, gone[-1].high
        inner = draw(st.lists(st.sampled_from([0.25, 0.5, 0.75]), max_size=2, unique=True))
        edges = [low, *(low + share * (high - low) for share in sorted(inner)), high]
        described = described.scaled([one.name for one in gone], list(itertools.pairwise(edges)))
    return described.segments


def may_begin(segments, name, finished):
    """Reference: all older segments that share keys with this one are fully read."""
    return all(
        other.name in finished
        for other in segments.by_name.values()
        if segments[name].succeeds(other)
    )


@given(histories(), st.data())
def test_predecessors_are_read_before_successors_and_every_segment_once(segments, data):
    ends = {name: data.draw(st.integers(0, 2)) for name in segments.by_name}
    frontier = Frontier({one.name: 0 for one in segments.by_name.values() if one.epoch == 0})
    finished: set[str] = set()
    opened = {one.name for one in segments.newest()}
    while left := [
        name
        for name in frontier.readable
        if name not in opened or frontier.position[name] < ends[name]
    ]:
        assert set(frontier.readable) == {
            name
            for name in segments.by_name
            if name not in finished and may_begin(segments, name, finished)
        }
        name = data.draw(st.sampled_from(left))
        at = data.draw(st.integers(frontier.position[name], ends[name]))
        over = at == ends[name] and name not in opened
        frontier = frontier.advanced(segments, {name: at}, [name] if over else [])
        assert frontier == Frontier.from_dict(frontier.to_dict())
        if over:
            assert name not in finished
            finished.add(name)
    assert finished | opened == set(segments.by_name)
    assert frontier.position.keys() == opened


@given(histories(), st.data())
def test_what_a_frontier_has_passed_can_be_truncated_and_nothing_else(segments, data):
    ends = dict.fromkeys(segments.by_name, 2)
    frontier = Frontier({one.name: 0 for one in segments.by_name.values() if one.epoch == 0})
    opened = {one.name for one in segments.newest()}
    for _ in range(data.draw(st.integers(0, 12))):
        if left := [
            name for name in frontier.readable if frontier.position[name] < 2 or name not in opened
        ]:
            name = data.draw(st.sampled_from(left))
            frontier = frontier.advanced(segments, {name: 2}, [] if name in opened else [name])
    cut = segments.lower_bound(frontier.position, ends.__getitem__)
    assert segments.upper_bound([cut]) == cut, "every key once"
    assert segments.compare(frontier.position, cut) != -1
    # A reader that starts at the cut reads everything after the frontier.
    later = Frontier(cut)
    while done := [
        name for name in later.readable if name in frontier.ended or name not in frontier.position
    ]:
        later = later.advanced(segments, dict.fromkeys(done, 2), done)
    for name in frontier.readable:
        assert later.position[name] <= frontier.position[name]


def test_a_successor_of_two_waits_for_both():
    begin = Frontier({"0": 0, "1": 0})
    one = begin.advanced(CROSSED, {"0": 5}, ["0"])
    assert one.readable == ["1", "2"]
    assert one == Frontier({"0": 5, "1": 0, "2": 0}, frozenset("0")), (
        "it stays until all its successors are begun"
    )
    both = one.advanced(CROSSED, {"1": 3, "2": 4}, ["1"])
    assert both == Frontier({"2": 4, "3": 0})


def test_an_end_without_events_is_an_end():
    assert Frontier({"0": 0, "1": 0}).advanced(CROSSED, {}, ["0", "1"]) == Frontier(
        {"2": 0, "3": 0}
    )


@pytest.mark.parametrize(
    ("read", "ended"), [({"2": 1}, []), ({"1": 2}, []), ({"0": 6}, []), ({}, ["2"]), ({}, ["3"])]
)
def test_only_what_is_begun_is_read_and_only_forwards(read, ended):
    with pytest.raises(SpecError, match="Hint: only advance segments of the frontier"):
        Frontier({"0": 5, "1": 3}, frozenset("0")).advanced(CROSSED, read, ended)


names = st.sampled_from(["r1", "r2", "r3", "r4"])
words = st.one_of(
    st.tuples(st.just("deal"), names, st.integers(0, 5)),
    st.tuples(st.just("leave"), names),
    st.tuples(st.just("silent"), names, st.integers(0, 20)),
)


@given(st.integers(1, 12), st.lists(words, max_size=25), st.integers(1, 4))
def test_readers_share_without_overlap_and_come_to_even_shares(count, history, readers):
    state, now = GroupState(Frontier({str(n): 0 for n in range(count)})), 0
    for word, name, *more in history:
        if word == "leave":
            state = state.without(name)
        elif word == "silent":
            now += more[0]
            state = state.without_silent(now, name)
            assert all(one.until > now or reader == name for reader, one in state.members.items())
        else:
            kept = state.segments_of(name)[: more[0]]
            state = state.dealt(name, now + 10, keep=kept)
            assert set(kept) <= set(state.segments_of(name))
        held = [segment for one in state.members.values() for segment in one.segments]
        assert len(held) == len(set(held))
        assert state == GroupState.from_dict(state.to_dict())
    state = GroupState(
        state.frontier, {name: one for name, one in state.members.items() if name <= f"r{readers}"}
    )
    for name in [f"r{n + 1}" for n in range(readers)] * 3:
        state = state.dealt(name, now + 10)
    shares = sorted(len(one.segments) for one in state.members.values())
    assert sum(shares) == count
    assert shares[-1] - shares[0] <= 1


def test_confirming_an_end_makes_the_successors_free():
    state = GroupState(Frontier({"0": 0, "1": 0}), {"a": Member(("0",), 9), "b": Member(("1",), 9)})
    state = state.confirmed("a", CROSSED, {"0": 5}, ["0"])
    assert state.segments_of("a") == ()
    assert state.dealt("a", 9).segments_of("a") == ("2",)
    assert state.segments_of("c") == ()


def test_one_that_was_given_up_and_had_nothing_may_still_speak():
    state = GroupState(Frontier({"0": 0}), {"a": Member(("0",), 9)})
    assert state.confirmed("b", CROSSED, {}, []).dealt("b", 9).segments_of("b") == ()


def test_who_speaks_is_not_silent():
    state = GroupState(Frontier({"0": 0}), {"a": Member(("0",), 3), "b": Member((), 4)})
    assert state.without_silent(5, "a").members.keys() == {"a"}
