"""Instants and durations as int64 microseconds: parsing, formatting and saturating arithmetic.

The ends of int64 are infinite: `MIN` is minus infinity, `MAX` is plus infinity. They absorb
whatever is added to them.
"""

from __future__ import annotations

import math
import operator
import re
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from typing import Any, overload

import numpy as np

from tidegate.errors import ParseError

MIN: int = -(2**63)
MAX: int = 2**63 - 1

Duration = str | timedelta | int | float
Instant = str | datetime | int

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_NAMES: dict[int | Fraction, tuple[str, ...]] = {
    Fraction(1, 1000): ("ns", "nanosecond", "nanoseconds"),
    1: ("us", "µs", "μs", "micro", "micros", "microsecond", "microseconds"),
    1_000: ("ms", "milli", "millis", "millisecond", "milliseconds"),
    1_000_000: ("s", "sec", "secs", "second", "seconds"),
    60_000_000: ("m", "min", "mins", "minute", "minutes"),
    3_600_000_000: ("h", "hr", "hrs", "hour", "hours"),
    86_400_000_000: ("d", "day", "days"),
    604_800_000_000: ("w", "week", "weeks"),
}
_UNITS = {name: Fraction(size) for size, names in _NAMES.items() for name in names}
_CALENDAR_UNITS = {
    "month",
    "months",
    "mon",
    "year",
    "years",
    "y",
    "yr",
    "yrs",
    "quarter",
    "quarters",
}
_PRINTED = (
    (86_400_000_000, "day"),
    (3_600_000_000, "hour"),
    (60_000_000, "minute"),
    (1_000_000, "second"),
    (1_000, "millisecond"),
    (1, "microsecond"),
)

_TERM = re.compile(r"\s*(?:,|and\b)?\s*(\d+(?:\.\d+)?|\.\d+)\s*([A-Za-zµμ]+)")
_ISO_DURATION = re.compile(
    r"P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE
)
MAX_TEXT = 1000
"""The maximum length of the text of a duration or an instant, in characters."""
_MOST_BITS = 1000
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")
_FAR_INSTANT = re.compile(r"\s*((?:[+-]\d{4,}|0000)-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?)Z\s*")
_ENDS = {"inf": MAX, "+inf": MAX, "infinity": MAX, "+infinity": MAX, "-inf": MIN, "-infinity": MIN}


def duration(value: Duration, *, unit: str | None = None) -> int:
    """A duration in microseconds.

    >>> duration("1 minute 30 s"), duration("250ms"), duration(10, unit="s")
    (90000000, 250000, 10000000)
    >>> duration("PT10S"), duration("-1.5 hours")
    (10000000, -5400000000)
    """
    if isinstance(value, timedelta):
        return _timedelta(value)
    if isinstance(value, str):
        return _duration_text(_short(value, "duration"), unit)
    number = _number(value, "duration")
    if number in (math.inf, -math.inf):
        return MAX if number > 0 else MIN
    if unit is None and number != 0:
        raise ParseError(
            f'a duration given as a number needs a unit, got `{value!r}`. Hint: write "{value}'
            ' seconds", use a timedelta, or pass `unit=`'
        )
    return _scaled(Fraction(str(number)), _unit(unit or "us"), value)


def instant(value: Instant, *, unit: str | None = None) -> int:
    """An instant in microseconds since 1970-01-01T00:00Z.

    Integers are microseconds unless `unit` is given.

    >>> instant("1970-01-01T00:00:01Z"), instant("1970-01-01T02:00+02:00")
    (1000000, 0)
    >>> instant(5), instant(5, unit="ms")
    (5, 5000)
    """
    if isinstance(value, datetime):
        return _aware(value, value)
    if isinstance(value, str):
        return _instant_text(_short(value, "instant"))
    if isinstance(value, date):
        raise ParseError(
            f"an instant needs a time of day and a zone, got the date `{value}`. Hint:"
            f' "{value}T00:00Z"'
        )
    number = _number(value, "instant")
    if number in (math.inf, -math.inf):
        return MAX if number > 0 else MIN
    if unit is None and isinstance(number, float):
        raise ParseError(
            f"an instant is a whole number of microseconds, got the float `{value!r}`. Hint: pass"
            " `unit=`, or an integer"
        )
    return _scaled(Fraction(str(number)), _unit(unit or "us"), value)


@overload
def saturating_add(a: int, b: int) -> int: ...
@overload
def saturating_add(a: np.ndarray, b: np.ndarray | int) -> np.ndarray: ...
@overload
def saturating_add(a: int, b: np.ndarray) -> np.ndarray: ...
def saturating_add(a: np.ndarray | int, b: np.ndarray | int) -> np.ndarray | int:
    """The sum, saturated to int64; an infinite term makes it infinite, and plus infinity wins."""
    if isinstance(a, np.ndarray):
        return _add_columns(a, b) if isinstance(b, np.ndarray) else _add_scalar(a, int(b))
    if isinstance(b, np.ndarray):
        return _add_scalar(b, int(a))
    if MAX in (a, b):
        return MAX
    return MIN if MIN in (a, b) else clamp(int(a) + int(b))


def clamp(value: int) -> int:
    """The nearest int64."""
    return min(max(value, MIN), MAX)


def format_duration(us: int) -> str:
    """Text that `duration` reads back.

    >>> format_duration(90_000_000), format_duration(-250_000), format_duration(0)
    ('1 minute 30 seconds', '-250 milliseconds', '0 seconds')
    """
    if us in (MIN, MAX):
        return "inf" if us == MAX else "-inf"
    terms, rest = [], abs(int(us))
    for size, name in _PRINTED:
        count, rest = divmod(rest, size)
        if count:
            terms.append(f"{count} {name}{'' if count == 1 else 's'}")
    return ("-" if us < 0 else "") + (" ".join(terms) or "0 seconds")


def format_instant(us: int) -> str:
    """ISO 8601 in UTC, which `instant` reads back.

    >>> format_instant(1_500_000), format_instant(MAX)
    ('1970-01-01T00:00:01.500000Z', '+inf')
    """
    if us in (MIN, MAX):
        return "+inf" if us == MAX else "-inf"
    seconds, fraction = divmod(int(us), 1_000_000)
    text = str(np.datetime64(seconds, "s"))
    year, rest = int(text[:-15]), text[-15:]
    # ISO 8601 requires a sign and at least four digits for years beyond four digits.
    named = f"{year:04d}" if 0 <= year <= 9999 else f"{year:+05d}"
    return f"{named}{rest}.{fraction:06d}Z" if fraction else f"{named}{rest}Z"


def _add_scalar(column: np.ndarray, step: int) -> np.ndarray:
    if step == 0:
        return column.copy()
    if step == MAX:
        return np.full_like(column, MAX)
    if step == MIN:
        return np.where(column == MAX, MAX, MIN)
    if step > 0:
        return np.where(column == MIN, MIN, np.minimum(column, MAX - step) + step)
    return np.where(column == MAX, MAX, np.maximum(column, MIN - step) + step)


def _add_columns(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    total = a + b
    over = ((a ^ total) & (b ^ total)) < 0
    total = np.where(over, np.where(b > 0, MAX, MIN), total)
    total = np.where((a == MIN) | (b == MIN), MIN, total)
    return np.where((a == MAX) | (b == MAX), MAX, total)


def _number(value: Any, what: str) -> int | float:
    if isinstance(value, (float, np.floating)) and not math.isnan(value):
        return float(value)
    if not isinstance(value, (bool, np.bool_)):
        try:
            return _bounded(operator.index(value))
        except TypeError:
            pass
    named = "an instant" if what == "instant" else f"a {what}"
    raise ParseError(
        f"`{_shown(value)}` of type {type(value).__name__} is not {named}. Hint: {_FORMS[what]}"
    )


_FORMS = {
    "duration": 'write "10 seconds", timedelta(seconds=10), or a number with `unit=`',
    "instant": (
        'write "2024-01-31T12:00:00Z", a datetime with tzinfo, or integer microseconds since 1970'
    ),
}


def _short(text: str, what: str) -> str:
    """The text, if it is not longer than any that makes sense."""
    if len(text) > MAX_TEXT:
        raise ParseError(
            f"the text of {'an' if what == 'instant' else 'a'} {what} has at most {MAX_TEXT}"
            f" characters, got {len(text)}, `{text[:50]}...`. Hint: {_FORMS[what]}"
        )
    return text


def _bounded(number: int) -> int:
    """The number, if its digits can be shown in an error."""
    if number.bit_length() > _MOST_BITS:
        raise ParseError(
            f"a time has at most 64 bits, got a number of {number.bit_length()} bits. Hint: write"
            ' "inf" for no bound'
        )
    return number


def _shown(value: object) -> str:
    """The value in an error; Python refuses to show numbers of more than 4,300 digits."""
    try:
        return repr(value)[:MAX_TEXT]
    except Exception:  # noqa: BLE001 - `repr` is of any class
        return "a value that cannot be shown"


def _timedelta(value: timedelta) -> int:
    if getattr(value, "nanoseconds", 0):
        raise ParseError(
            f"a duration is a whole number of microseconds, got `{value!r}`. Hint: round it first"
        )
    return (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds


def _unit(name: str) -> Fraction:
    known = _UNITS.get(name if name in _UNITS else name.lower())
    if known is not None:
        return known
    if name.lower() in _CALENDAR_UNITS:
        raise ParseError(f"`{name}` has no fixed length. Hint: use days, or a calendar window")
    raise ParseError(
        f"`{name}` is not a unit of time. Hint: one of us, ms, s, min, h, d, w or their full names"
    )


def _scaled(number: Fraction, unit: Fraction, source: object) -> int:
    total = number * unit
    if total.denominator != 1:
        raise ParseError(
            f"time is counted in whole microseconds, got `{source}`. Hint: round it to a multiple"
            " of 1 us"
        )
    if not MIN < total < MAX:
        raise ParseError(
            f"`{source}` is beyond the 292,000 years that int64 microseconds can hold. Hint: write"
            ' "inf" for no bound'
        )
    return int(total)


def _duration_text(text: str, unit: str | None) -> int:
    body = text.strip()
    if body.lower() in _ENDS:
        return _ENDS[body.lower()]
    if _NUMBER.fullmatch(body):
        if unit is None and Fraction(body) != 0:
            raise ParseError(
                f'a duration needs a unit, got `{text}`. Hint: "{body} seconds", or pass `unit=`'
            )
        return _scaled(Fraction(body), _unit(unit or "us"), text)
    sign = -1 if body.startswith("-") else 1
    body = body[1:].lstrip() if body[:1] in ("-", "+") else body
    iso = _ISO_DURATION.fullmatch(body)
    if iso and any(iso.groups()) and not body.upper().endswith("T"):
        weeks, days, hours, minutes, seconds = (Fraction(part or 0) for part in iso.groups())
        return _scaled(
            sign * ((((weeks * 7 + days) * 24 + hours) * 60 + minutes) * 60 + seconds),
            _UNITS["s"],
            text,
        )
    return _scaled(sign * _terms(body, text), Fraction(1), text)


def _terms(body: str, text: str) -> Fraction:
    total, at = Fraction(0), 0
    while at < len(body):
        term = _TERM.match(body, at)
        if term is None:
            raise ParseError(
                f"a duration is numbers with units, got `{text}`, unreadable from `{body[at:]}`."
                f" Hint: {_FORMS['duration']}"
            )
        total += Fraction(term[1]) * _unit(term[2])
        at = term.end()
    if at == 0:
        raise ParseError(f"a duration cannot be empty. Hint: {_FORMS['duration']}")
    return total


def _instant_text(text: str) -> int:
    body = text.strip()
    if body.lower() in _ENDS:
        return _ENDS[body.lower()]
    far = _FAR_INSTANT.fullmatch(text)
    try:
        if far:
            return int(np.datetime64(far[1].lstrip("+"), "us").astype(np.int64))
        moment = datetime.fromisoformat(body)
    except ValueError as broken:
        raise ParseError(
            f"an instant is an ISO 8601 text, got `{text}` ({broken}). Hint: {_FORMS['instant']}"
        ) from None
    return _aware(moment, text)


def _aware(moment: datetime, source: object) -> int:
    try:
        since = None if moment.utcoffset() is None else moment - _EPOCH
    except Exception as broken:
        # The class of the time zone is any, and the `NaT` of pandas has none.
        raise ParseError(
            f"`{moment.replace(tzinfo=None)}` is no instant ({broken}). Hint: {_FORMS['instant']}"
        ) from broken
    if since is None:
        raise ParseError(
            f"an instant needs a time zone, got `{source}`. Hint: end the text with Z or +02:00, or"
            " give the datetime a tzinfo"
        )
    # A pandas Timestamp may have nanoseconds; they are floored.
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
