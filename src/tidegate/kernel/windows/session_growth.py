"""Session growth: the bounds of sessions after each of their rows, in the order of arrival.

Rows grow a session *one by one* if each of them touches the session as it is when the row arrives:
then no row opens a session that another row merges with it later, and the rows of the session are
elements of one window that only grows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidegate.kernel.groups import Groups
from tidegate.kernel.windows.sessions import Extension
from tidegate.spec.windows import Touch


@dataclass(frozen=True, eq=False)
class Growth:
    """The rows of touched sessions, by session and then by arrival."""

    order: np.ndarray
    """The intervals in this order."""
    session: np.ndarray
    """The session of each interval."""
    offsets: np.ndarray
    """The first interval of each session, and one past the last."""
    start: np.ndarray
    end: np.ndarray
    """The bounds of the session after each interval."""
    changes: np.ndarray
    """Whether an interval gives a session that existed before it other bounds."""
    apart: np.ndarray
    """Whether an interval does not touch its session: that merges with it by a later one."""

    @classmethod
    def of(cls, extension: Extension, start: np.ndarray, end: np.ndarray, touch: Touch) -> Growth:
        """The growth of touched sessions with the intervals that extend them."""
        groups: Groups = extension.groups
        order, n = groups.order, groups.n
        session = groups.ids[order]
        first = np.zeros(len(order), bool)
        first[groups.offsets[:-1]] = True
        held = extension.absorbed_by >= 0
        owner = extension.absorbed_by[held]
        existing = np.bincount(owner, minlength=n)
        low, high = start[order[groups.offsets[:-1]]], end[order[groups.offsets[:-1]]]
        low[owner], high[owner] = extension.start[held], extension.end[held]
        own = start[order], end[order]
        starts = np.minimum(-_running(-own[0], session), low[session])
        ends = np.maximum(_running(own[1], session), high[session])
        before = _shifted(starts, first, low[session]), _shifted(ends, first, high[session])
        apart = ~_touches(own, before, touch) & ~(first & (existing == 0)[session])
        # Several sessions that existed are one only with the row between them.
        apart |= (existing > 1)[session]
        changes = (starts != before[0]) | (ends != before[1])
        return cls(order, session, groups.offsets, starts, ends, changes, apart)

    @property
    def is_one_by_one(self) -> np.ndarray:
        """Which sessions all their rows grow one by one."""
        return np.bincount(self.session, self.apart, len(self.offsets) - 1) == 0


def _running(values: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The running maximum of each group; groups ascend."""
    low = int(values.min())
    stretch = int(values.max()) - low + 1
    if (int(group[-1]) + 1) * stretch < 2**62:
        base = group * stretch
        return np.asarray(np.maximum.accumulate(base + (values - low)) - base + low)
    known, rank = np.unique(values, return_inverse=True)
    base = group * len(known)
    return np.asarray(known[np.maximum.accumulate(base + rank) - base])


def _shifted(values: np.ndarray, first: np.ndarray, initial: np.ndarray) -> np.ndarray:
    """The value before each row; the initial one for the first row of a group."""
    return np.where(first, initial, np.concatenate([values[:1], values[:-1]]))


def _touches(
    own: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray], touch: Touch
) -> np.ndarray:
    """Which intervals are one session with others."""
    (start, end), (low, high) = own, other
    if touch == "merge":
        return np.asarray((start <= high) & (low <= end))
    # A point shares the instant at which it lies.
    inside = (start == end) & (low <= start) & (start < high)
    around = (low == high) & (start <= low) & (low < end)
    equal = (start == low) & (end == high)
    return np.asarray(((start < high) & (low < end)) | inside | around | equal)
