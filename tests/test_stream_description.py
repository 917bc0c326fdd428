"""The description of a stream: segments, scaling, names, settings and validation."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import CorruptStateError, SpecError
from tidegate.kernel.streams.segments import Segment, Segments
from tidegate.streams import description
from tidegate.streams.description import Description, StreamSettings, checked_name, even

NEW = Description.new(2, StreamSettings(), 5)


def newest(described: Description) -> dict[str, tuple[float, float]]:
    return {one.name: (one.low, one.high) for one in described.segments.newest()}


def test_a_new_stream_has_equal_parts_from_their_begin():
    assert newest(NEW) == {"0": (0, 0.5), "1": (0.5, 1)}
    assert NEW.head == {"0": 0, "1": 0}
    assert NEW.sealed == []
    assert NEW.scaling


def test_scaling_takes_numbers_that_nobody_had_and_the_next_epoch():
    found = NEW.scaled(["0"], [(0.25, 0.5), (0, 0.25)])
    assert newest(found) == {"2": (0, 0.25), "3": (0.25, 0.5), "1": (0.5, 1)}
    assert found.sealed == ["0"]
    assert [found.segments[name].epoch for name in "0123"] == [0, 0, 1, 1]
    again = found.scaled(["3", "1"], [(0.25, 1)])
    assert newest(again) == {"2": (0, 0.25), "4": (0.25, 1)}
    assert again.segments.successors("3") == ["4"]
    assert again.segments.predecessors("4") == ["1", "3"]


def test_segments_that_fit_stay():
    assert newest(NEW.scaled_to(4)) == {
        "2": (0, 0.25),
        "3": (0.25, 0.5),
        "4": (0.5, 0.75),
        "5": (0.75, 1),
    }
    uneven = NEW.scaled(["0"], [(0, 0.25), (0.25, 0.5)])
    assert newest(uneven.scaled_to(2)) == {"4": (0, 0.5), "1": (0.5, 1)}
    assert NEW.scaled_to(2) is NEW


@given(st.lists(st.integers(1, 12), max_size=6))
def test_any_counts_one_after_the_other_cover_every_key_once(counts):
    described = NEW
    for count in counts:
        described = described.scaled_to(count)
        assert sorted(newest(described).values()) == even(count)


@pytest.mark.parametrize(
    ("seal", "ranges", "why"),
    [
        (["0"], [(0, 0.4)], "must cover the keys"),
        (["0"], [(0, 0.3), (0.2, 0.5)], "must cover the keys"),
        (["0"], [(0, 0.5), (0.5, 0.5)], "must cover the keys"),
        (["0"], [(0, float("nan")), (0.2, 0.5)], "must cover the keys"),
        (["0"], [], "must cover the keys"),
        ([], [], "must cover the keys"),
        (["7"], [(0, 0.5)], "no segment `7`"),
        ("0", [(0, 0.5)], r"Hint: seal=\['0'\]"),
        (["0"], [0, 0.5], "pairs of numbers"),
        (["0"], [("a", "b")], "pairs of numbers"),
        (["0"], [(0, 0.2, 0.5)], "pairs of numbers"),
    ],
)
def test_scaling_that_loses_or_shares_keys_is_refused(seal, ranges, why):
    with pytest.raises(SpecError, match=why):
        NEW.scaled(seal, ranges)


def test_what_is_sealed_is_not_sealed_again():
    with pytest.raises(SpecError, match=r"`0` is already sealed. Hint: open segments are 2, 3"):
        NEW.scaled(["0", "1"], [(0, 0.1), (0.1, 1)]).scaled(["0"], [(0, 0.5)])


@pytest.mark.parametrize("count", [0, -1, 10_001, 1.5, True, "3", None])
def test_bad_counts_are_refused(count):
    with pytest.raises(SpecError, match="1 to 10000 segments"):
        even(count)


def test_a_stream_does_not_scale_for_ever(monkeypatch):
    monkeypatch.setattr(description, "MOST_SEGMENTS", 10)
    with pytest.raises(SpecError, match="at most 10 segments, including sealed ones"):
        NEW.scaled_to(5).scaled_to(6)


@pytest.mark.parametrize("name", ["", "a b", "ä", "a/b", "x" * 201, ".", "..", None, 3])
def test_bad_names_are_refused(name):
    with pytest.raises(SpecError, match="the name of a writer"):
        checked_name("a writer", name)


def test_good_names_are_taken():
    assert [checked_name("a writer", name) for name in ("a", ".a", "A-1_b.c", "x" * 200)]


def test_the_json_form_comes_back_equal():
    described = NEW.scaled_to(3)
    assert Description.from_dict(described.to_dict()) == described
    with pytest.raises(CorruptStateError, match="version 2"):
        Description.from_dict({**described.to_dict(), "version": 2})


@pytest.mark.parametrize("name", ["timestamp_aggregation_timeout", "initial_delay"])
def test_spans_of_time_are_not_negative(name):
    with pytest.raises(SpecError, match=rf"`{name}` must not be negative, got -1 microsecond"):
        StreamSettings(**{name: -1})


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.data())
def test_a_shorter_position_has_the_same_upper_bound(counts, data):
    described = NEW
    for count in counts:
        described = described.scaled_to(count)
    segments = described.segments
    positions = st.dictionaries(st.sampled_from(list(segments.by_name)), st.integers(0, 9))
    one, other = data.draw(positions), data.draw(positions)
    shorter = segments.without_covered(one)
    assert shorter.items() <= one.items()
    assert segments.upper_bound([shorter, other]) == segments.upper_bound([one, other])


def slow_comparison(segments, position, cut):
    """Pairwise reference: 0 ahead in some keys and behind in others, -1 behind, 1 at or after."""
    ahead = behind = False
    for (name, at), (other, mark) in itertools.product(position.items(), cut.items()):
        mine, its = segments[name], segments[other]
        ahead |= at > mark if name == other else mine.succeeds(its)
        behind |= at < mark if name == other else its.succeeds(mine)
    return 0 if ahead and behind else -1 if behind else 1


def slow_upper_bound(segments, positions):
    """Reference: the greatest offset of each segment, newest segments for missing keys.

    Removes segments that have a successor there, until nothing changes.
    """
    found = {}
    for name, at in itertools.chain.from_iterable(position.items() for position in positions):
        found[name] = max(at, found.get(name, at))
    while True:
        found = {
            name: at
            for name, at in found.items()
            if not any(segments[other].succeeds(segments[name]) for other in found)
        }
        # A key in the middle of each range between two segment bounds.
        edges = sorted({edge for one in segments.by_name.values() for edge in (one.low, one.high)})
        keys = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
        missing = [
            key
            for key in keys
            if not any(segments[name].low <= key < segments[name].high for name in found)
        ]
        if not missing:
            return found
        found |= {
            one.name: 0
            for one in segments.newest()
            if any(one.low <= key < one.high for key in missing)
        }


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.data())
def test_cuts_are_compared_and_bounded_as_pair_by_pair(counts, data):
    described = NEW
    for count in counts:
        described = described.scaled_to(count)
    segments = described.segments
    positions = st.dictionaries(st.sampled_from(list(segments.by_name)), st.integers(0, 3))
    one, other = data.draw(positions), data.draw(positions)
    assert segments.compare(one, other) == slow_comparison(segments, one, other)
    assert segments.upper_bound([one, other]) == slow_upper_bound(segments, [one, other])


def test_a_position_does_not_grow_with_every_scaling():
    described, position = NEW, {"0": 1, "1": 1}
    for count in [3, 2] * 20:
        described = described.scaled_to(count)
        position = described.segments.without_covered(
            {**position, **{one.name: 1 for one in described.segments.newest()}}
        )
        assert len(position) <= count


def test_a_reader_stands_where_no_segment_is_begun_before_the_end_of_its_predecessors():
    # Two segments are merged, and split elsewhere: one of the first and one of the last cover every
    # key.
    segments = Segments.of(
        [
            Segment("0", 0, 0.25),
            Segment("1", 0.25, 1),
            Segment("2", 0, 1, 1),
            Segment("3", 0, 0.25, 2),
            Segment("4", 0.25, 1, 2),
        ]
    )
    ends = {"0": 10, "1": 11, "2": 12}
    assert segments.lower_bound({"0": 3, "4": 5}, ends.__getitem__) == {"0": 3, "1": 11}
    assert segments.lower_bound({"3": 3, "1": 5}, ends.__getitem__) == {"0": 10, "1": 5}
    for cut in ({"0": 1, "1": 2}, {"2": 3}, {"3": 4, "4": 5}):
        assert segments.lower_bound(cut, ends.__getitem__) == cut
    assert segments.lower_bound({"2": 12, "3": 1}, ends.__getitem__) == {"2": 12}, (
        "one that is begun while its predecessor still is there"
    )


def test_successors_are_found_among_hundreds():
    described = Description.new(1, StreamSettings(), 0)
    for count in itertools.islice(itertools.cycle([40, 41]), 12):
        described = described.scaled_to(count)
    segments = described.segments
    for one in list(segments.by_name.values())[::31]:
        later = [other for other in segments.by_name.values() if other.succeeds(one)]
        first = min((other.epoch for other in later), default=None)
        assert segments.successors(one.name) == sorted(
            other.name for other in later if other.epoch == first
        )
        assert segments.predecessors(one.name) == sorted(
            other for other in segments.by_name if one.name in segments.successors(other)
        )
