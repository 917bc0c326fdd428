"""Calendar bounds: the instants at which days, weeks, months and years of a time zone begin.

Contract: bounds are numbered from an anchor date and never decrease. A local day begins at its
first instant: where the clock skips midnight that is the instant of the skip, where midnight occurs
twice it is the first one. A day that a zone skipped has two equal bounds. Only distinct bounds are
looked up in the zone, never events.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import numpy as np

from tidegate.instants import MAX, MIN, saturating_add
from tidegate.spec.windows import Calendar

DAY = 86_400_000_000
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_LAST_DAY = MAX // DAY
# The Gregorian calendar repeats after 400 years, a whole number of weeks; Python's dates end in
# year 9999, int64 microseconds do not.
_CYCLE = 146_097
_FIRST_DATED, _LAST_DATED = (
    date(2, 1, 1).toordinal() - _EPOCH_DAY,
    date(9998, 1, 1).toordinal() - _EPOCH_DAY,
)
_DENSE = 4096


class CalendarBounds:
    """The bounds of one calendar window specification."""

    def __init__(self, spec: Calendar) -> None:
        anchor = spec.anchor
        self._zone = spec.zone
        self._monthly = spec.unit in ("month", "year")
        self._step = spec.n * {"day": 1, "week": 7, "month": 1, "year": 12}[spec.unit]
        self._day_of_month = anchor.day
        self._anchor = (
            (anchor.year - 1970) * 12 + anchor.month - 1
            if self._monthly
            else anchor.toordinal() - _EPOCH_DAY
        )

    def enclosing(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The bound at or before each instant, and the next one after it."""
        if not len(x):
            return x.copy(), x.copy()
        bounds = self.bounds(self._numbers_near(x))
        at = np.searchsorted(bounds, x, side="right") - 1
        # An event at the end of time has no bound after it.
        at = np.minimum(at, len(bounds) - 2)
        return bounds[at], bounds[at + 1]

    def bounds(self, numbers: np.ndarray) -> np.ndarray:
        """The instants of the bounds with these ascending numbers."""
        return self._midnights(self._days(numbers))

    def number_near(self, t: int) -> int:
        """The number of the bound at or before an instant, off by at most one."""
        return int(self._approximate(np.array([t], np.int64))[0])

    def _numbers_near(self, x: np.ndarray) -> np.ndarray:
        low, high = self.number_near(int(x.min())), self.number_near(int(x.max()))
        if high - low <= _DENSE:
            return np.arange(low - 1, high + 3)
        near = np.unique(self._approximate(x))
        return np.unique(np.concatenate([near - 1, near, near + 1, near + 2]))

    def _approximate(self, x: np.ndarray) -> np.ndarray:
        """Bound numbers as if the zone were UTC and months began on their first day; off by at most
        one.
        """
        days = x // DAY
        units = days.astype("M8[D]").astype("M8[M]").astype(np.int64) if self._monthly else days
        numbers: np.ndarray = (units - self._anchor) // self._step
        return numbers

    def _days(self, numbers: np.ndarray) -> np.ndarray:
        """Local dates of bounds, as days since 1970; a missing day of the month becomes the last
        one.
        """
        units = numbers * self._step + self._anchor
        if not self._monthly:
            return units
        first, following = (
            m.astype("M8[M]").astype("M8[D]").astype(np.int64) for m in (units, units + 1)
        )
        days: np.ndarray = first + np.minimum(self._day_of_month, following - first) - 1
        return days

    def _midnights(self, days: np.ndarray) -> np.ndarray:
        whole: np.ndarray = np.clip(days, -_LAST_DAY, _LAST_DAY) * DAY
        if self._zone != "UTC":
            shift = np.fromiter(
                (_midnight_shift(self._zone, int(day)) for day in days), np.int64, len(days)
            )
            whole = saturating_add(whole, shift)
        whole[days > _LAST_DAY] = MAX
        whole[days < -_LAST_DAY] = MIN
        return whole


@lru_cache(maxsize=1 << 16)
def _midnight_shift(zone: str, day: int) -> int:
    """Microseconds from midnight UTC of a day to the first instant of the same date in a zone."""
    if not _FIRST_DATED <= day <= _LAST_DATED:
        near = _FIRST_DATED if day < _FIRST_DATED else _LAST_DATED - _CYCLE
        day = near + (day - near) % _CYCLE
    local = datetime.combine(
        date.fromordinal(day + _EPOCH_DAY), datetime.min.time(), ZoneInfo(zone)
    )
    before, after = _offset(local), _offset(local.replace(fold=1))
    if before >= after:
        return -before * 1_000_000
    return _skip_end(local, before, after) * 1_000_000


def _offset(local: datetime) -> int:
    offset = local.utcoffset()
    return 0 if offset is None else offset.days * 86_400 + offset.seconds


def _skip_end(local: datetime, before: int, after: int) -> int:
    """The second at which the clock jumps over a skipped midnight, counted from midnight UTC."""
    midnight = local.replace(tzinfo=UTC)
    low, high = -after - 1, -before
    while high - low > 1:
        middle = (low + high) // 2
        jumped = (midnight + timedelta(seconds=middle)).astimezone(
            local.tzinfo
        ).date() >= local.date()
        low, high = (low, middle) if jumped else (middle, high)
    return high
