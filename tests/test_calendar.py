"""Calendar windows: days, weeks, months and years of a zone, also where its clock skips or repeats
midnight.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from tidegate.errors import SpecError
from tidegate.instants import MAX, MIN, format_instant, instant
from tidegate.kernel.windows.assigners import build
from tidegate.spec.windows import DAY, Calendar, window_from_dict

HOUR = DAY // 24
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/Los_Angeles",
    "America/Sao_Paulo",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "Pacific/Apia",
]
moments = st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)).map(
    instant
)


def window(spec: Calendar, at: str | int) -> tuple[str, str]:
    start, end = build(spec).slice_of(np.array([instant(at)], np.int64))
    return format_instant(int(start[0])), format_instant(int(end[0]))


def local_date(us: int, spec: Calendar) -> date:
    """The date in the zone, where days begin at the offset."""
    shown = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)).astimezone(
        ZoneInfo(spec.zone)
    )
    return (shown.replace(tzinfo=None) - timedelta(microseconds=spec.offset)).date()


def day_of(us: int, spec: Calendar) -> date:
    """The date of an event; a clock that is set back does not return to an earlier day."""
    return max(local_date(us - minutes * 60_000_000, spec) for minutes in range(0, 121, 5))


def slow_first(spec: Calendar, day: date) -> date:
    """The first date of the window that a local date is in, by the definition."""
    anchor = spec.anchor
    if spec.unit in ("day", "week"):
        length = spec.n * (7 if spec.unit == "week" else 1)
        return date.fromordinal(
            (day.toordinal() - anchor.toordinal()) // length * length + anchor.toordinal()
        )
    step = spec.n * (12 if spec.unit == "year" else 1)
    guess = ((day.year - anchor.year) * 12 + day.month - anchor.month) // step + 1
    while month_start(anchor, guess * step) > day:
        guess -= 1
    return month_start(anchor, guess * step)


def month_start(anchor: date, months: int) -> date:
    year, month = divmod(anchor.year * 12 + anchor.month - 1 + months, 12)
    for day in (anchor.day, 30, 29, 28):
        try:
            return date(year, month + 1, min(day, anchor.day))
        except ValueError:
            continue
    raise AssertionError


specs = st.builds(
    Calendar,
    st.sampled_from(["day", "week", "month", "year"]),
    st.integers(1, 9),
    st.sampled_from(ZONES),
    st.dates(date(1950, 1, 1), date(2030, 1, 1)).map(date.isoformat),
    offset=st.sampled_from([0, 0, 5 * HOUR // 2, 6 * HOUR, 47 * HOUR // 2]),
)


@given(specs, st.lists(moments, min_size=1, max_size=8))
def test_differential_calendar(spec, at):
    starts, ends = build(spec).slice_of(np.array(at, np.int64))
    for t, start, end in zip(at, starts.tolist(), ends.tolist(), strict=True):
        first = slow_first(spec, day_of(t, spec))
        assert start <= t < end
        assert local_date(start - 1, spec) < first <= local_date(start, spec)
        assert local_date(end - 1, spec) < slow_first(spec, local_date(end, spec))


@given(specs, st.lists(st.integers(MIN, MAX - 1) | moments, min_size=1, max_size=5))
def test_every_instant_of_int64_is_in_one_window(spec, at):
    assigner = build(spec)
    starts, ends = (c.tolist() for c in assigner.slice_of(np.array(at, np.int64)))
    for t, start, end in zip(at, starts, ends, strict=True):
        assert start <= t < end
        alone = assigner.slice_of(np.array([t, start, end - 1], np.int64))
        assert [c.tolist() for c in alone] == [[start] * 3, [end] * 3]


@given(specs, moments, st.integers(0, 100 * DAY))
def test_windows_ending_in_a_range_follow_each_other(spec, lo, more):
    assigner = build(spec)
    found = list(assigner.windows_ending_in(lo, lo + more))
    start, end = (int(c[0]) for c in assigner.slice_of(np.array([lo], np.int64)))
    while end <= lo + more:
        assert found.pop(0) == (start, end)
        start, end = (int(c[0]) for c in assigner.slice_of(np.array([end], np.int64)))
    assert found == []


@pytest.mark.parametrize(
    ("spec", "at", "start", "end"),
    [
        (
            Calendar("day", zone="Europe/Berlin"),
            "2024-03-31T12:00Z",
            "2024-03-30T23:00:00Z",
            "2024-03-31T22:00:00Z",
        ),
        (
            Calendar("day", zone="Europe/Berlin"),
            "2024-10-27T12:00Z",
            "2024-10-26T22:00:00Z",
            "2024-10-27T23:00:00Z",
        ),
        (
            Calendar("month", zone="America/Los_Angeles"),
            "2024-03-01T07:59Z",
            "2024-02-01T08:00:00Z",
            "2024-03-01T08:00:00Z",
        ),
        (Calendar("week"), "2024-01-01T00:00Z", "2024-01-01T00:00:00Z", "2024-01-08T00:00:00Z"),
        (
            Calendar("week", start="1970-01-04"),
            "2024-01-01T00:00Z",
            "2023-12-31T00:00:00Z",
            "2024-01-07T00:00:00Z",
        ),
        (
            Calendar("year", start="1970-04-01"),
            "2024-03-31T23:59Z",
            "2023-04-01T00:00:00Z",
            "2024-04-01T00:00:00Z",
        ),
        (
            Calendar("month", start="1970-01-31"),
            "2024-03-01T00:00Z",
            "2024-02-29T00:00:00Z",
            "2024-03-31T00:00:00Z",
        ),
        (
            Calendar("month", 7, start="2014-03-05"),
            "2013-08-04T23:59Z",
            "2013-01-05T00:00:00Z",
            "2013-08-05T00:00:00Z",
        ),
        # The clock jumps from midnight to one.
        (
            Calendar("day", zone="America/Sao_Paulo"),
            "2018-11-04T12:00Z",
            "2018-11-04T03:00:00Z",
            "2018-11-05T02:00:00Z",
        ),
        # It jumps from half past eleven to half past midnight: the day begins at the jump.
        (
            Calendar("day", zone="America/Toronto"),
            "1919-03-31T12:00Z",
            "1919-03-31T04:30:00Z",
            "1919-04-01T04:00:00Z",
        ),
        # Samoa left out 30 December 2011.
        (
            Calendar("day", zone="Pacific/Apia"),
            "2011-12-30T10:00Z",
            "2011-12-30T10:00:00Z",
            "2011-12-31T10:00:00Z",
        ),
        (
            Calendar("day", zone="Pacific/Apia"),
            "2011-12-30T09:59Z",
            "2011-12-29T10:00:00Z",
            "2011-12-30T10:00:00Z",
        ),
        # Midnight comes twice: the day begins with the first.
        (
            Calendar("day", zone="America/Havana"),
            "2023-11-05T12:00Z",
            "2023-11-05T04:00:00Z",
            "2023-11-06T05:00:00Z",
        ),
    ],
)
def test_known_days(spec, at, start, end):
    assert window(spec, at) == (start, end)


def test_years_beyond_python_dates():
    assert window(Calendar("day", zone="Europe/Berlin"), instant("+12024-07-01T12:00:00Z")) == (
        "+12024-06-30T22:00:00Z",
        "+12024-07-01T22:00:00Z",
    )
    assert window(Calendar("year"), instant("-0500-06-01T00:00:00Z")) == (
        "-0500-01-01T00:00:00Z",
        "-0499-01-01T00:00:00Z",
    )


def test_the_ends_of_time():
    starts, ends = build(Calendar("year", zone="Asia/Tokyo")).slice_of(
        np.array([MIN, MAX - 1], np.int64)
    )
    assert starts[0] == MIN
    assert ends[1] == MAX


def test_a_day_that_was_left_out_is_no_window():
    found = list(
        build(Calendar("day", zone="Pacific/Apia")).windows_ending_in(
            instant("2011-12-29T10:00Z"), instant("2011-12-31T10:00Z")
        )
    )
    assert [(format_instant(s), format_instant(e)) for s, e in found] == [
        ("2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"),
        ("2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"),
    ]


def test_one_event_far_away_does_not_make_the_batch_look_at_every_day_between():
    at = np.array([0, MAX // 2], np.int64)
    starts, ends = build(Calendar("day", zone="Europe/Berlin")).slice_of(at)
    assert (ends - starts).tolist() == [DAY, DAY]


@pytest.mark.parametrize(
    ("spec", "at", "start", "end"),
    [
        (tg.calendar("week", week_start="sunday"), "2024-01-01", "2023-12-31", "2024-01-07"),
        (tg.calendar("week", week_start="Wednesday"), "2014-01-05", "2014-01-01", "2014-01-08"),
        (tg.calendar("week", 2, week_start="saturday"), "1969-12-31", "1969-12-27", "1970-01-10"),
        (tg.calendar("year", year_start="04-06"), "2024-04-05", "2023-04-06", "2024-04-06"),
        (tg.calendar("quarter"), "1969-12-31", "1969-10-01", "1970-01-01"),
        (tg.calendar("quarter", year_start="02-01"), "2024-01-31", "2023-11-01", "2024-02-01"),
        (tg.calendar("quarter", 2, year_start="04-06"), "2024-10-06", "2024-10-06", "2025-04-06"),
        (tg.calendar("decade"), "1969-12-31", "1960-01-01", "1970-01-01"),
        (tg.calendar("year", 10, start="2000-05-05"), "2060-05-04", "2050-05-05", "2060-05-05"),
        (tg.calendar("month", year_start="01-31"), "2024-03-01", "2024-02-29", "2024-03-31"),
    ],
    ids=str,
)
def test_first_days_of_weeks_and_years_and_multiples(spec, at, start, end):
    assert window(spec, f"{at}T12:00Z") == (f"{start}T00:00:00Z", f"{end}T00:00:00Z")
    assert window_from_dict(spec.to_dict()) == spec


@pytest.mark.parametrize(
    ("offset", "at", "start", "end"),
    [
        ("6 hours", "2024-07-01T03:59Z", "2024-06-30T04:00:00Z", "2024-07-01T04:00:00Z"),
        # A day with 23 hours, and one with 25.
        ("6 hours", "2024-03-31T03:59Z", "2024-03-30T05:00:00Z", "2024-03-31T04:00:00Z"),
        ("6 hours", "2024-10-27T04:59Z", "2024-10-26T04:00:00Z", "2024-10-27T05:00:00Z"),
        # Half past two is skipped: the day begins at the jump.
        ("150 minutes", "2024-03-31T12:00Z", "2024-03-31T01:00:00Z", "2024-04-01T00:30:00Z"),
        ("9000500 ms", "2024-03-31T01:00Z", "2024-03-31T01:00:00Z", "2024-04-01T00:30:00.500000Z"),
        # It comes twice: the day begins with the first, and what follows stays in it.
        ("150 minutes", "2024-10-27T01:10Z", "2024-10-27T00:30:00Z", "2024-10-28T01:30:00Z"),
    ],
)
def test_days_that_begin_at_a_local_time(offset, at, start, end):
    spec = tg.calendar("day", zone="Europe/Berlin", offset=offset)
    assert window(spec, at) == (start, end)
    assert window_from_dict(spec.to_dict()) == spec


@pytest.mark.parametrize(
    ("build_spec", "message"),
    [
        (lambda: tg.calendar("week", week_start="noday"), "`week_start` must be one of monday"),
        (lambda: tg.calendar("day", week_start="sunday"), "`week_start` is for weeks"),
        (lambda: tg.calendar("week", year_start="04-06"), "`year_start` is for months and years"),
        (lambda: tg.calendar("year", year_start="02-29"), 'start="2000-02-29"'),
        (lambda: tg.calendar("year", year_start="04-06", start="2000-01-01"), "got both"),
        (lambda: tg.calendar("day", offset="24 hours"), "shorter than a day"),
        (lambda: tg.calendar("century"), "`unit` must be one of day, week"),
        (lambda: tg.calendar("decade", 0), "`n` must be greater than 0"),
    ],
)
def test_calendars_that_contradict_themselves_are_refused(build_spec, message):
    with pytest.raises(SpecError, match=message):
        build_spec()
