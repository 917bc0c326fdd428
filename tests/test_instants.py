"""Instants and durations: input forms, and arithmetic at the ends of time."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import ParseError
from tidegate.instants import (
    MAX,
    MIN,
    duration,
    format_duration,
    format_instant,
    instant,
    saturating_add,
)

int64 = st.integers(MIN, MAX)
ends = st.sampled_from([MIN, MIN + 1, -1, 0, 1, MAX - 1, MAX]) | int64


@pytest.mark.parametrize(
    ("written", "us"),
    [
        ("10 seconds", 10_000_000),
        ("1 minute 30 s", 90_000_000),
        ("1 day, 2 hours and 3 min", 93_780_000_000),
        ("250ms", 250_000),
        ("1.5h", 5_400_000_000),
        ("-100 us", -100),
        ("2 Weeks", 1_209_600_000_000),
        ("5000 ns", 5),
        ("PT10S", 10_000_000),
        ("P1DT2H3M4.5S", 93_784_500_000),
        ("-PT1M", -60_000_000),
        ("0", 0),
        ("inf", MAX),
        (0, 0),
        (timedelta(days=-1, microseconds=3), -86_399_999_997),
    ],
)
def test_a_duration_is_read(written, us):
    assert duration(written) == us


@pytest.mark.parametrize(
    ("number", "unit", "us"),
    [
        (10, "s", 10_000_000),
        ("10", "ms", 10_000),
        (0.1, "s", 100_000),
        (np.int32(3), "min", 180_000_000),
    ],
)
def test_a_number_with_a_unit_is_a_duration(number, unit, us):
    assert duration(number, unit=unit) == us


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (10, "needs a unit"),
        ("10", "needs a unit"),
        ("", "empty"),
        ("ten seconds", "unreadable from `ten seconds`"),
        ("10 seconds x", "unreadable from ` x`"),
        ("1 month", "no fixed length"),
        ("3 parsecs", "not a unit of time"),
        ("1 ns", "whole microseconds"),
        ("400000 years", "no fixed length"),
        ("99999999999 days", "292,000 years"),
        ("P", "unreadable"),
        ("PT", "unreadable"),
        (True, "not a duration"),
        (None, "not a duration"),
        (float("nan"), "not a duration"),
    ],
)
def test_a_bad_duration_says_why(written, said):
    with pytest.raises(ParseError, match=said):
        duration(written)


@given(int64)
def test_a_printed_duration_reads_back(us):
    assert duration(format_duration(us)) == us


@pytest.mark.parametrize(
    ("written", "us"),
    [
        ("1970-01-01T00:00:01Z", 1_000_000),
        ("1969-12-31T23:59:59.999999Z", -1),
        ("2014-01-01T00:00-08:00", 1_388_563_200_000_000),
        ("+inf", MAX),
        ("-inf", MIN),
        (-7, -7),
        (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), 0),
    ],
)
def test_an_instant_is_read(written, us):
    assert instant(written) == us


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (datetime(2024, 1, 1), "needs a time zone"),
        ("2024-01-01T00:00", "needs a time zone"),
        ("2024-01-01", "needs a time zone"),
        (date(2024, 1, 1), 'Hint: "2024-01-01T00:00Z"'),
        ("yesterday", "ISO 8601"),
        ("2024-13-01T00:00Z", "ISO 8601"),
        (1.5, "whole number"),
        (2**63, "292,000 years"),
        (None, "not an instant"),
    ],
)
def test_a_bad_instant_says_why(written, said):
    with pytest.raises(ParseError, match=said):
        instant(written)


@given(ends | st.integers(-63_000_000_000_000_000, -61_000_000_000_000_000))
def test_a_printed_instant_reads_back(us):
    assert instant(format_instant(us)) == us


@given(st.datetimes(timezones=st.just(UTC)))
def test_an_instant_prints_as_iso(moment):
    assert datetime.fromisoformat(format_instant(instant(moment))) == moment


def slow_add(a: int, b: int) -> int:
    if MAX in (a, b):
        return MAX
    if MIN in (a, b):
        return MIN
    return min(max(a + b, MIN), MAX)


@given(st.lists(st.tuples(ends, ends), min_size=1, max_size=8))
def test_differential_saturating_add(pairs):
    a, b = (np.array(side, np.int64) for side in zip(*pairs, strict=True))
    assert saturating_add(a, b).tolist() == [slow_add(x, y) for x, y in pairs]
    x, y = pairs[0]
    assert saturating_add(x, y) == slow_add(x, y)
    assert saturating_add(a, y).tolist() == [slow_add(value, y) for value in a.tolist()]
    assert saturating_add(y, a).tolist() == saturating_add(a, y).tolist()


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        (-62_167_219_200_000_000, "0000-01-01T00:00:00Z"),
        (-62_167_219_200_000_001, "-0001-12-31T23:59:59.999999Z"),
        (MAX - 1, "+294247-01-10T04:00:54.775806Z"),
        (MIN, "-inf"),
    ],
)
def test_an_instant_of_any_year_prints(us, text):
    assert format_instant(us) == text


def test_adding_does_not_touch_its_input():
    a = np.array([1, MAX], np.int64)
    saturating_add(a, 0)[0] = 9
    assert a.tolist() == [1, MAX]
