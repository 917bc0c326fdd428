"""Windows: what a specification accepts, and which windows and slices an event is in, against exact
arithmetic on Python integers.
"""

from __future__ import annotations

import json
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import InputError, ParseError, SpecError
from tidegate.instants import MAX, MIN
from tidegate.kernel.frame import Frame
from tidegate.kernel.windows.assigners import Aligned, build
from tidegate.spec import windows
from tidegate.spec.windows import (
    Axis,
    ByDifference,
    Calendar,
    Cumulative,
    Custom,
    Global,
    Hopping,
    Inherited,
    Session,
    Tumbling,
    Window,
    calendar,
    cumulative,
    custom,
    global_window,
    hopping,
    session,
    sliding,
    tumbling,
    window_from_dict,
)

times = st.one_of(
    st.integers(-300, 300),
    st.integers(MIN, MIN + 300),
    st.integers(MAX - 300, MAX - 1),
    st.integers(MIN, MAX - 1),
)
small = st.integers(1, 12)
sizes = small | st.integers(1, MAX - 1)
aligned = st.one_of(
    st.builds(Tumbling, sizes, st.integers(-50, 50)),
    st.builds(Hopping, st.integers(1, 60), small, st.integers(-50, 50)),
    st.integers(1, 40).flatmap(
        lambda size: st.builds(
            Cumulative, st.just(size), st.integers(1, size), st.integers(-50, 50)
        )
    ),
)


def column(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def clip(start: int, end: int) -> tuple[int, int]:
    return max(start, MIN), min(end, MAX)


def slow_windows(window: Window, t: int) -> list[tuple[int, int]]:
    """Every window that holds t, by the definition, in integers without end."""
    match window:
        case Tumbling(size, offset):
            start = (t - offset) // size * size + offset
            return [clip(start, start + size)]
        case Hopping(size, slide, offset):
            last = (t - offset) // slide * slide + offset
            starts = range(last - (size // slide + 1) * slide, last + 1, slide)
            return [clip(s, s + size) for s in starts if s <= t < s + size]
        case Cumulative(size, step, offset):
            start = (t - offset) // size * size + offset
            ends = sorted({min(start + n * step, start + size) for n in range(1, size // step + 2)})
            return sorted({clip(start, e) for e in ends if t < e})
    raise AssertionError(window)


def assigned(window: Window, *at: int) -> list[list[tuple[int, int]]]:
    found = build(window).assign(column(*at))
    rows: list[list[tuple[int, int]]] = [[] for _ in at]
    for row, start, end in zip(*(c.tolist() for c in found), strict=True):
        rows[row].append((start, end))
    assert (np.diff(found.row) >= 0).all()
    return rows


@given(aligned, st.lists(times, max_size=6))
def test_differential_assign(window, at):
    assert assigned(window, *at) == [slow_windows(window, t) for t in at]


@given(aligned, st.lists(times, min_size=1, max_size=6))
def test_a_slice_is_a_piece_that_no_window_edge_cuts(window, at):
    assigner = build(window)
    assert isinstance(assigner, Aligned)
    for t, start, end in zip(
        at, *(c.tolist() for c in assigner.slice_of(column(*at))), strict=True
    ):
        expected = slow_windows(window, t)
        assert assigner.windows_of_slice(start, end) == expected
        if not expected:
            assert start == end
            continue
        assert start <= t < end
        assert slow_windows(window, start) == slow_windows(window, end - 1) == expected
        assert start == MIN or slow_windows(window, start - 1) != expected
        assert end == MAX or slow_windows(window, end) != expected
        if not assigner.is_sliced:
            assert expected == [(start, end)]


@given(aligned, st.lists(times, min_size=1, max_size=6))
def test_last_end(window, at):
    assigner = build(window)
    assert isinstance(assigner, Aligned)
    assert assigner.last_end(column(*at)).tolist() == [
        max((e for _, e in slow_windows(window, t)), default=MIN) for t in at
    ]


@given(
    aligned.filter(lambda w: w.size <= 60),
    st.sampled_from([-40, MIN, MAX - 90]),
    st.integers(0, 40),
    st.integers(0, 40),
)
def test_windows_ending_in_a_range(window, base, low, more):
    lo, hi = base + low, base + low + more
    around = range(max(lo - 61, MIN), min(hi + 1, MAX))
    expected = {w for t in around for w in slow_windows(window, t) if lo < w[1] <= hi}
    found = list(build(window).windows_ending_in(lo, hi))
    assert sorted(found) == sorted(expected)
    assert [e for _, e in found] == sorted(e for _, e in found)


def test_the_last_windows_of_time_end_with_it():
    ends = list(build(Tumbling(4)).windows_ending_in(MAX - 6, MAX))
    assert ends == [(MAX - 7, MAX - 3), (MAX - 3, MAX)]


def test_tumbling_near_the_end_of_int64():
    assert assigned(Tumbling(1000), 9223372036854774057, MAX - 1, MIN) == [
        [(9223372036854774000, 9223372036854775000)],
        [(9223372036854775000, MAX)],
        [(MIN, -9223372036854775000)],
    ]


def test_windows_longer_than_half_of_time():
    assert assigned(Hopping(MAX - 1, MAX - 1), -1, 5) == [[(-(MAX - 1), 0)], [(0, MAX - 1)]]


def test_global_is_one_window():
    assigner = build(Global())
    assert assigned(Global(), -5, 7) == [[(MIN, MAX)], [(MIN, MAX)]]
    assert list(assigner.windows_ending_in(0, MAX)) == [(MIN, MAX)]
    assert list(assigner.windows_ending_in(0, MAX - 1)) == []
    assert assigner.windows_of_slice(MIN, MAX) == [(MIN, MAX)]


@pytest.mark.parametrize(
    "window",
    [
        Tumbling(5),
        Hopping(7, 5),
        Hopping(2, 4),
        Cumulative(7, 3),
        Calendar("month"),
        Global(),
        Session(3),
        ByDifference(4),
    ],
)
def test_no_events_have_no_windows(window):
    assert [len(c) for c in build(window).assign(column())] == [0, 0, 0]


def test_sliding_by_difference_opens_two_windows_an_event():
    assert assigned(ByDifference(10), 20) == [[(11, 21), (21, 31)]]


@given(st.integers(1, 9), st.lists(st.tuples(st.integers(0, 2), times), max_size=10))
def test_differential_members_by_difference(size, events):
    key, x = column(*(k for k, _ in events)), column(*(t for _, t in events))
    found = build(ByDifference(size)).members(key, x)
    expected = set()
    for owner, t in events:
        for start, end in ((t - size + 1, t + 1), (t + 1, t + size + 1)):
            inside = (i for i, (k, u) in enumerate(events) if k == owner and start <= u < end)
            expected |= {(i, *clip(start, end)) for i in inside}
    assert list(zip(*(c.tolist() for c in found), strict=True)) == sorted(expected)


def test_a_session_opens_with_the_event_and_lasts_one_gap():
    assert assigned(Session(10), -3, MAX - 2, MIN) == [
        [(-3, 7)],
        [(MAX - 2, MAX)],
        [(MIN, MIN + 10)],
    ]


def test_a_session_on_offsets_includes_its_gap():
    assert assigned(Session(10, axis=Axis.OFFSET), 5) == [[(5, 16)]]


def gaps_of(gaps: object, *at: int) -> tuple[list[bool], list[tuple[int, int]]]:
    rows = Frame.of({"g": gaps})
    assigner = build(Session(gap_column="g"))
    found = assigner.assign(column(*at), rows)
    return assigner.bad_gaps(rows).tolist(), list(
        zip(found.start.tolist(), found.end.tolist(), strict=True)
    )


def test_a_gap_column_of_integers_with_holes():
    assert gaps_of(pa.array([5, None, -1, 0]), 0, 1, 2, 3) == (
        [False, True, True, False],
        [(0, 5), (1, 1), (2, 2), (3, 3)],
    )


def test_a_gap_column_of_durations():
    assert gaps_of(pa.array([2, None], pa.duration("ms")), 0, 1) == (
        [False, True],
        [(0, 2000), (1, 1)],
    )


def test_a_gap_column_in_numpy_saturates():
    assert gaps_of(column(MAX, 3), 7, MAX - 1) == ([False, False], [(7, MAX), (MAX - 1, MAX)])


def test_a_gap_column_must_be_there_and_be_a_number():
    with pytest.raises(InputError, match="needs the gap column `g`"):
        build(Session(gap_column="g")).assign(column(1), Frame.of({"x": column(1)}))
    with pytest.raises(InputError, match="must hold integers, durations or timestamps, got string"):
        gaps_of(pa.array(["soon"]), 1)


def test_a_fixed_gap_is_never_bad():
    assert build(Session(3)).bad_gaps(Frame.of({"x": column(1, 2)})).tolist() == [False, False]


def test_custom_windows_come_sorted():
    def both(t, rows):
        return (
            np.tile(np.arange(len(t)), 2),
            np.concatenate([t, t - 5]),
            np.concatenate([t + rows.column("v").to_numpy(), t]),
        )

    found = build(custom(both)).assign(column(10, 20), Frame.of({"v": column(1, 2)}))
    assert [c.tolist() for c in found] == [[0, 0, 1, 1], [5, 10, 15, 20], [10, 11, 20, 22]]


def test_custom_may_give_one_window_an_event():
    assert assigned(custom(lambda t, rows: (t, t + 1)), 3, 4) == [[(3, 4)], [(4, 5)]]


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (column(1), "must return a tuple"),
        ((column(1), column(2, 3)), "of one length"),
        ((column(1, 2), column(3, 4)), "for 1 events"),
        ((np.array([0.5]), np.array([1.5])), "int64 columns"),
        ((column(1), column(0), column(3)), "must name rows from 0 to 0, got 1 to 1"),
        ((column(5), column(5)), r"start < end, got \[5, 5\) for row 0"),
    ],
)
def test_custom_is_checked(returned, said):
    with pytest.raises(InputError, match=said):
        build(Custom(lambda t, rows: returned, "mine")).assign(column(7))


def test_a_custom_function_that_fails_is_named():
    with pytest.raises(InputError, match="custom window `broken` failed: ZeroDivisionError"):
        build(Custom(lambda t, rows: 1 // 0, "broken")).assign(column(7))


def test_inherited_windows_come_with_the_rows():
    rows = Frame.of(
        {
            "window_start": pa.array([0, None], pa.timestamp("us", "UTC")),
            "window_end": pa.array([5, None]),
        }
    )
    found = build(Inherited()).assign(column(1, 2), rows)
    assert [c.tolist() for c in found] == [[0, 1], [0, MIN], [5, MAX]]
    with pytest.raises(InputError, match="need `window_start` and `window_end`"):
        build(Inherited()).assign(column(1), Frame.of({"x": column(1)}))


def test_factories_take_what_people_write():
    assert tumbling("1 minute") == Tumbling(60_000_000)
    assert tumbling(1, unit="min", offset="-10 s") == Tumbling(60_000_000, 50_000_000)
    assert tumbling(3, axis="ordinal") == Tumbling(3, axis=Axis.ORDINAL)
    assert hopping(timedelta(seconds=10), "5 s", axis="clock") == Hopping(
        10_000_000, 5_000_000, axis=Axis.CLOCK
    )
    assert sliding("10 s", "5 s") == hopping("10 s", "5 s")
    assert sliding("10 s") == ByDifference(10_000_000)
    assert cumulative("1 hour", "10 min", create="static") == Cumulative(
        3_600_000_000, 600_000_000, create="static"
    )
    assert session("10 s", touch="merge") == Session(10_000_000, touch="merge")
    assert session(gap_column="g") == Session(gap_column="g")
    assert session(4, axis="offset") == Session(4, axis=Axis.OFFSET)
    assert global_window() == Global()
    assert calendar("week").start == "1970-01-05"


def test_offsets_are_reduced():
    assert Tumbling(10, 23) == Tumbling(10, 3) == Tumbling(10, -7)
    assert Hopping(10, 4, -1).offset == 3


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: tumbling(5), ParseError, "needs a unit"),
        (lambda: tumbling("5 s", axis="offset"), SpecError, "counts messages"),
        (lambda: tumbling(5, axis="offset", unit="s"), SpecError, "with unit s"),
        (lambda: Tumbling(0), SpecError, "must be greater than 0"),
        (lambda: tumbling("inf"), SpecError, "finite"),
        (lambda: Tumbling(1.5), SpecError, "integer number of ticks"),
        (lambda: Tumbling(5, axis="sideways"), SpecError, "must be one of event_time"),
        (lambda: Tumbling(5, create="later"), SpecError, "demand, static"),
        (
            lambda: Hopping(5, -1_000_000),
            SpecError,
            "`slide` must be greater than 0 and finite, got -1 second.",
        ),
        (
            lambda: Tumbling(-3, axis=Axis.OFFSET),
            SpecError,
            "`size` must be greater than 0 and finite, got -3.",
        ),
        (lambda: Cumulative(5, 6), SpecError, "must not exceed `size`"),
        (lambda: sliding("5 s", offset="1 s"), SpecError, "takes no `offset`"),
        (lambda: Session(0), SpecError, "greater than 0"),
        (Session, SpecError, "either `gap` or `gap_column`"),
        (lambda: Session(5, "g"), SpecError, "either `gap` or `gap_column`"),
        (lambda: Session(5, touch="maybe"), SpecError, "separate, merge"),
        (lambda: Session(5, axis="ordinal"), SpecError, "cannot use the axis `ordinal`"),
        (lambda: Session(5, touch="merge", axis="offset"), SpecError, "already inclusive"),
        (lambda: Calendar("fortnight"), SpecError, "day, week, month, year"),
        (lambda: Calendar("day", 0), SpecError, "greater than 0"),
        (lambda: Calendar("day", zone="Mars/Olympus"), SpecError, "got `Mars/Olympus`"),
        (lambda: Calendar("day", start="soon"), SpecError, "ISO date, got `soon`"),
        (lambda: Calendar("day", axis="offset"), SpecError, "needs a time axis"),
        (lambda: custom("no function"), SpecError, "must be callable"),
        (lambda: window_from_dict({"type": "round"}), SpecError, "got `round`"),
        (
            lambda: window_from_dict({"type": "tumbling", "sise": 3}),
            SpecError,
            r"remove \['sise'\]",
        ),
        (lambda: window_from_dict({"type": "hopping", "size": 3}), SpecError, "slide"),
        (lambda: build("tumbling"), SpecError, "is not a window"),
    ],
)
def test_a_bad_specification_says_why(make, error, said):
    with pytest.raises(error, match=said):
        make()


def test_gaps_between_windows_are_warned_about():
    with pytest.warns(
        UserWarning, match="events in the 2 seconds between two windows are in no window"
    ):
        hopping("2 s", "4 s")
    with pytest.warns(UserWarning, match="the 3 messages between"):
        sliding(2, 5, axis="ordinal")


EVERY = [
    Tumbling(5, 2, Axis.CLOCK, "static"),
    Hopping(7, 5, 1),
    ByDifference(4, Axis.ORDINAL),
    Cumulative(7, 3),
    Session(5, touch="merge"),
    Session(gap_column="g"),
    Calendar("month", 7, "Europe/Berlin", "2014-03-05"),
    Global(),
    Inherited(),
]


@pytest.mark.parametrize("window", EVERY, ids=repr)
def test_a_specification_reads_back(window):
    assert window_from_dict(json.loads(json.dumps(window.to_dict()))) == window
    assert eval(repr(window), vars(windows)) == window  # noqa: S307 - that is what "can be pasted back" means
    assert hash(window) == hash(window_from_dict(window.to_dict()))


def test_a_custom_window_is_known_by_name_only():
    window = custom(lambda t, rows: (t, t + 1), name="ticks")
    assert window.to_dict() == {"type": "custom", "name": "ticks", "axis": "event_time"}
    with pytest.raises(SpecError, match="custom window `ticks` cannot be restored"):
        window_from_dict(window.to_dict())
