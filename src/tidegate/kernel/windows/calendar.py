"""Calendar bounds: the instants at which days, weeks, months and years of a time zone begin.

Contract: bounds are numbered from an anchor date and never decrease. A local day begins at
midnight, or at the local time `offset` after it: where the clock skips that time the day begins at
the instant of the skip, where the time occurs twice at the first one. A day that a zone skipped has
two equal bounds. Only distinct bounds are looked up in the zone, never events.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import numpy as np

from tidegate.instants import MAX, MIN, saturating_add
from tidegate.spec.windows import DAY, Calendar

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
        self._zone, self._offset = spec.zone, spec.offset
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
        return self._day_starts(self._days(numbers))

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
        days = saturating_add(x, -self._offset) // DAY
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

    def _day_starts(self, days: np.ndarray) -> np.ndarray:
        """The first instants of local days."""
        whole: np.ndarray = np.clip(days, -_LAST_DAY, _LAST_DAY) * DAY
        if self._zone != "UTC":
            shift = np.fromiter(
                (_day_shift(self._zone, int(day), self._offset) for day in days),
                np.int64,
                len(days),
            )
            whole = saturating_add(whole, shift)
        elif self._offset:
            whole = saturating_add(whole, self._offset)
        whole[days > _LAST_DAY] = MAX
        whole[days < -_LAST_DAY] = MIN
        return whole


@lru_cache(maxsize=1 << 16)
def _day_shift(zone: str, day: int, offset: int) -> int:
    """Microseconds from midnight UTC of a day to the start of the same date in a zone."""
    if not _FIRST_DATED <= day <= _LAST_DATED:
        near = _FIRST_DATED if day < _FIRST_DATED else _LAST_DATED - _CYCLE
        day = near + (day - near) % _CYCLE
    midnight = datetime.combine(date.fromordinal(day + _EPOCH_DAY), time(), ZoneInfo(zone))
    # Adding to a datetime moves its local time, also across a change of the clock.
    local = midnight + timedelta(microseconds=offset)
    before, after = _utc_offset(local), _utc_offset(local.replace(fold=1))
    if before >= after:
        return offset - before * 1_000_000
    jump = _skip_end(local.replace(microsecond=0), before, after)
    return jump * 1_000_000 + offset - local.microsecond


def _utc_offset(local: datetime) -> int:
    offset = local.utcoffset()
    return 0 if offset is None else offset.days * 86_400 + offset.seconds


def _skip_end(local: datetime, before: int, after: int) -> int:
    """Seconds from a skipped local time, read as UTC, to the instant at which the clock jumps over
    it.
    """
    as_utc = local.replace(tzinfo=UTC)
    low, high = -after - 1, -before
    while high - low > 1:
        middle = (low + high) // 2
        shown = (as_utc + timedelta(seconds=middle)).astimezone(local.tzinfo)
        jumped = shown.replace(tzinfo=None) >= local.replace(tzinfo=None)
        low, high = (low, middle) if jumped else (middle, high)
    return high
