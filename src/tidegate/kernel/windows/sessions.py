"""Sessions: unions of overlapping intervals of one key.

Two intervals are one session if they share an instant; a point `[t, t]` shares the instant t. With
`touch="merge"` they are also one if one ends where the other begins. The result does not depend on
the order of the intervals.

There is one algorithm, `merge_intervals`. `extend` merges new intervals with existing sessions and
tells which of these a merge replaces: aggregates take a whole delivery at once in this way, for
only the final sessions matter to them. A join must know the session that each row is in when it
arrives, because rows become pairs at that moment. `session_history` answers that: rows in time
order can only extend the last session of their key, which is found for all of them at once, and
every other row is one interval of an `extend`, together with the next such row of all other keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tidegate.instants import MIN, saturating_add
from tidegate.kernel.groups import Groups, present, sorted_order
from tidegate.spec.windows import Touch

Intervals = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Key, start and end."""
_MANY = 4096
"""From this many intervals on it pays to look for those that need no sorting."""


class Merged(NamedTuple):
    """The unions of intervals, sorted by key and start."""

    groups: Groups
    """The union that each interval is in."""
    start: np.ndarray
    end: np.ndarray
    key: np.ndarray


def merge_intervals(
    key: np.ndarray, start: np.ndarray, end: np.ndarray, touch: Touch = "separate"
) -> Merged:
    """The unions of the intervals of each key."""
    if not len(key):
        return Merged(Groups(np.zeros(0, np.int64), 0), start, end, key)
    if len(key) >= _MANY and int(key.min()) == 0 and int(key.max()) < len(key):
        return _collapsed(key, start, end, touch)
    return _sorted_unions(key, start, end, touch)


def _collapsed(key: np.ndarray, start: np.ndarray, end: np.ndarray, touch: Touch) -> Merged:
    """The unions if keys are dense numbers.

    Intervals of a key that all share an instant are one union, and need no sorting.
    """
    groups = Groups(key, int(key.max()) + 1)
    if not groups.counts.all():
        return _sorted_unions(key, start, end, touch)
    low, high = groups.min(start), groups.max(end)
    at_once = groups.max(start) < groups.min(end)
    if at_once.all():
        return Merged(groups, low, high, np.arange(groups.n))
    rest = np.flatnonzero(~at_once[key])
    others = _sorted_unions(key[rest], start[rest], end[rest], touch)
    sizes = np.bincount(others.key, minlength=groups.n) + at_once
    first = np.cumsum(sizes) - sizes
    # The other unions are sorted by key and start, too.
    of_other = np.arange(len(others.key)) - np.searchsorted(others.key, others.key)
    of_other += first[others.key]
    ids = first[key]
    ids[rest] = of_other[others.groups.ids]
    whole = first[at_once]
    starts, ends = np.empty(int(sizes.sum()), np.int64), np.empty(int(sizes.sum()), np.int64)
    starts[whole], ends[whole] = low[at_once], high[at_once]
    starts[of_other], ends[of_other] = others.start, others.end
    unions = Groups(ids, len(starts))
    return Merged(unions, starts, ends, np.repeat(np.arange(groups.n), sizes))


def _sorted_unions(key: np.ndarray, start: np.ndarray, end: np.ndarray, touch: Touch) -> Merged:
    """The unions by one sort and one running maximum over all keys."""
    points = touch == "separate" and bool((start == end).any())
    line = _Line.over(key, start, end)
    order = np.lexsort((~end, line.starts)) if points else sorted_order(line.starts)
    starts, ends = _pick(line.starts, order), np.maximum.accumulate(_pick(line.ends, order))
    fresh = np.ones(len(key), bool)
    fresh[1:] = starts[1:] > ends[:-1] if touch == "merge" else starts[1:] >= ends[:-1]
    if points:
        plain = _pick(line.ends, order)
        fresh[1:] &= (starts[1:] != starts[:-1]) | (plain[1:] != plain[:-1])
    firsts = np.flatnonzero(fresh)
    ids = np.empty(len(key), np.int64)
    ids[order if order is not None else slice(None)] = np.cumsum(fresh) - 1
    head = firsts if order is None else order[firsts]
    return Merged(
        Groups(ids, len(firsts)),
        start[head],
        np.maximum.reduceat(_pick(end, order), firsts),
        key[head],
    )


class _Line(NamedTuple):
    """Intervals of all keys on one line of integers, where no two keys overlap.

    One sort and one running maximum then serve all keys.
    """

    starts: np.ndarray
    ends: np.ndarray

    @classmethod
    def over(cls, key: np.ndarray, start: np.ndarray, end: np.ndarray) -> _Line:
        low, first = int(start.min()), int(key.min())
        # Two spare places keep the last interval of a key from touching the first of the next.
        stretch = int(end.max()) - low + 2
        if (int(key.max()) - first + 1) * stretch >= 2**63:
            return cls._ranked(key, start, end)
        base = (key - first) * stretch - low
        return cls(base + start, base + end)

    @classmethod
    def _ranked(cls, key: np.ndarray, start: np.ndarray, end: np.ndarray) -> _Line:
        """The line of ranks, if keys and times are too far apart for a line of their values."""
        _, code = np.unique(key, return_inverse=True)
        _, rank = np.unique(np.concatenate([start, end]), return_inverse=True)
        base = code.astype(np.int64) * (len(rank) + 2)
        return cls(base + rank[: len(key)], base + rank[len(key) :])


def _pick(values: np.ndarray, order: np.ndarray | None) -> np.ndarray:
    return values if order is None else values[order]


@dataclass(frozen=True, eq=False)
class Extension:
    """New intervals merged with existing sessions."""

    merged: Merged
    """The unions of the existing sessions and, after them, of the intervals."""
    start: np.ndarray
    end: np.ndarray
    """The bounds of the existing sessions."""
    touched: np.ndarray
    """The unions that have an interval: the sessions that are new or may have changed."""

    @cached_property
    def union(self) -> np.ndarray:
        """The union that each interval is in."""
        return self.merged.groups.ids[len(self.start) :]

    @cached_property
    def session(self) -> np.ndarray:
        """The position of each interval's session among the touched ones."""
        return self._numbers[self.union]

    @property
    def groups(self) -> Groups:
        """The intervals of each touched session."""
        return Groups(self.session, len(self.touched))

    @cached_property
    def absorbed_by(self) -> np.ndarray:
        """The position of the touched session that holds each existing one; -1 if none does."""
        return self._numbers[self.merged.groups.ids[: len(self.start)]]

    @cached_property
    def replaced(self) -> np.ndarray:
        """Which existing sessions are part of a touched session that has other bounds."""
        union = self.merged.groups.ids[: len(self.start)]
        other = (self.start != self.merged.start[union]) | (self.end != self.merged.end[union])
        return (self.absorbed_by >= 0) & other

    @cached_property
    def _numbers(self) -> np.ndarray:
        number = np.full(self.merged.groups.n, -1, np.int64)
        number[self.touched] = np.arange(len(self.touched))
        return number


def extend(sessions: Intervals, intervals: Intervals, touch: Touch) -> Extension:
    """Merge intervals with existing sessions; both are (key, start, end)."""
    key, start, end = (np.concatenate(pair) for pair in zip(sessions, intervals, strict=True))
    merged = merge_intervals(key, start, end, touch)
    _, start, end = sessions
    touched = present(merged.groups.ids[len(start) :], merged.groups.n)
    return Extension(merged, start, end, touched)


@dataclass
class PointSessions:
    """Sessions of points, sorted by key number and start: the times of their first and last row.

    Unlike the end of a session, the time of its last row does not overflow.
    """

    key: np.ndarray
    start: np.ndarray
    last: np.ndarray

    @classmethod
    def none(cls) -> PointSessions:
        return cls(*(np.zeros(0, np.int64) for _ in range(3)))

    @classmethod
    def of(cls, key: np.ndarray, at: np.ndarray, reach: int) -> PointSessions:
        """The sessions of points that are at most `reach` apart."""
        return cls.none().extended(key, at, reach).sessions

    def extended(self, key: np.ndarray, at: np.ndarray, reach: int) -> PointExtension:
        """The sessions with further points."""
        # A session that grows is next to a point, as no two sessions are in reach of each other.
        before = self.of_points(key, at)
        near = np.zeros(len(self.key) + 2, bool)
        near[before + 1] = near[before + 2] = True
        near = near[1:-1]
        old = self.where(near)
        found = extend(
            (old.key, old.start, saturating_add(old.last, reach)),
            (key, at, saturating_add(at, reach)),
            "merge",
        )
        merged = found.merged
        last = merged.groups.max(np.concatenate([old.last, at]))
        new = PointSessions(merged.key, merged.start, last)
        return PointExtension(self.where(~near).with_sessions(new), old, new, found)

    def with_sessions(self, other: PointSessions) -> PointSessions:
        """The sessions of both."""
        key, start, last = (
            np.concatenate(pair)
            for pair in (
                (self.key, other.key),
                (self.start, other.start),
                (self.last, other.last),
            )
        )
        line, _ = _lined(key, start)
        if (line[1:] >= line[:-1]).all():
            return PointSessions(key, start, last)
        order = np.argsort(line, kind="stable")
        return PointSessions(key[order], start[order], last[order])

    def where(self, mask: np.ndarray) -> PointSessions:
        return PointSessions(self.key[mask], self.start[mask], self.last[mask])

    def of_points(self, key: np.ndarray, at: np.ndarray) -> np.ndarray:
        """The position of the session that each point is in, or else of the one before it."""
        line, _ = _lined(np.concatenate([self.key, key]), np.concatenate([self.start, at]))
        n = len(self.key)
        return np.searchsorted(line[:n], line[n:], "right") - 1


class PointExtension(NamedTuple):
    """Sessions with further points."""

    sessions: PointSessions
    old: PointSessions
    """The sessions that the points are next to."""
    unions: PointSessions
    """These with the points."""
    extension: Extension
    """How the points extend them."""


def reach_of(gap: int, touch: Touch) -> int:
    """How far apart two points of a session may be, with none between them."""
    return gap if touch == "merge" else gap - 1


class Bridges(NamedTuple):
    """Rows that join two sessions to one: the row, and the first and last times of both."""

    row: np.ndarray
    earlier: tuple[np.ndarray, np.ndarray]
    later: tuple[np.ndarray, np.ndarray]

    @classmethod
    def all(cls, parts: list[Bridges]) -> Bridges:
        """The bridges of several rounds."""
        none = np.zeros(0, np.int64)
        parts = parts or [cls(none, (none, none), (none, none))]
        earlier, later = (
            (
                np.concatenate([sessions[0] for sessions in column]),
                np.concatenate([sessions[1] for sessions in column]),
            )
            for column in ([part.earlier for part in parts], [part.later for part in parts])
        )
        return cls(np.concatenate([part.row for part in parts]), earlier, later)


@dataclass
class SessionHistory:
    """The session of each row when it arrived, the rows that joined sessions, and the result."""

    start: np.ndarray
    last: np.ndarray
    bridges: Bridges
    sessions: PointSessions
    """All sessions after the last row."""


def session_history(
    key: np.ndarray, at: np.ndarray, sessions: PointSessions, reach: int
) -> SessionHistory:
    """Let rows arrive in their order; `sessions` are those of their keys, which are numbers."""
    start, last = np.empty(len(at), np.int64), np.empty(len(at), np.int64)
    bridges: list[Bridges] = []
    done: list[PointSessions] = []
    rest = np.argsort(key, kind="stable")
    while len(rest):
        rows = _Round(key[rest], at[rest], sessions, reach)
        taken, behind = rest[rows.taken], rest[rows.behind]
        start[taken], last[taken] = rows.start[rows.taken], rows.last[rows.taken]
        sessions = rows.extended(sessions)
        if len(behind):
            found = sessions.extended(key[behind], at[behind], reach)
            union = found.extension.union
            start[behind], last[behind] = found.unions.start[union], found.unions.last[union]
            bridges += _bridges(behind, found.old, found.extension)
            sessions = found.sessions
        rest = rest[rows.left]
        active = np.isin(sessions.key, key[rest])
        done.append(sessions.where(~active))
        sessions = sessions.where(active)
    # Every part has keys of its own.
    whole = PointSessions(
        *(
            np.concatenate([getattr(part, name) for part in done or [sessions]])
            for name in ("key", "start", "last")
        )
    )
    return SessionHistory(
        start, last, Bridges.all(bridges), whole.with_sessions(PointSessions.none())
    )


def _bridges(row: np.ndarray, former: PointSessions, found: Extension) -> list[Bridges]:
    """The rows, one a key, that join two of the former sessions."""
    order = np.argsort(found.absorbed_by, kind="stable")
    group = found.absorbed_by[order]
    twice = np.flatnonzero((group[1:] == group[:-1]) & (group[1:] >= 0))
    if not len(twice):
        return []
    # A row is near the session before it and the one after it at most.
    one, two = order[twice], order[twice + 1]
    of_session = np.empty(len(found.touched), np.int64)
    of_session[found.session] = row
    return [
        Bridges(
            of_session[group[twice]],
            (former.start[one], former.last[one]),
            (former.start[two], former.last[two]),
        )
    ]


class _Round:
    """Rows by key and arrival: those that can be taken at once, and the first of each key that is
    behind its last session.
    """

    def __init__(
        self, key: np.ndarray, at: np.ndarray, sessions: PointSessions, reach: int
    ) -> None:
        self._key = key
        begins = np.ones(len(key), bool)
        begins[1:] = key[1:] != key[:-1]
        number = np.cumsum(begins) - 1
        first, newest = self._last_sessions(sessions)
        self.last = _running(number, at, newest)
        before = np.where(begins, newest, np.concatenate([[MIN], self.last[:-1]]))
        ahead = at >= before
        fresh = ahead & ((before == MIN) | (at > saturating_add(before, reach)))
        self.start = _running(number, np.where(fresh, at, first), first)
        began = np.where(begins, first, np.concatenate([[MIN], self.start[:-1]]))
        behind = ~ahead & (at < began)
        total = np.cumsum(behind.astype(np.int64))
        key_begin = np.maximum.accumulate(np.where(begins, np.arange(len(key)), 0))
        count: np.ndarray = total - (total - behind)[key_begin]
        self.taken = count == 0
        self.behind = behind & (count == 1)
        self.left = ~self.taken & ~self.behind
        self._first = first

    def _last_sessions(self, sessions: PointSessions) -> tuple[np.ndarray, np.ndarray]:
        """Start and last time of the last session of each row's key; `MIN` if it has none."""
        n = len(self._key)
        if not len(sessions.key):
            return np.full(n, MIN), np.full(n, MIN)
        place = np.searchsorted(sessions.key, self._key, "right") - 1
        known = (place >= 0) & (sessions.key[np.maximum(place, 0)] == self._key)
        place = np.maximum(place, 0)
        return np.where(known, sessions.start[place], MIN), np.where(
            known, sessions.last[place], MIN
        )

    def extended(self, sessions: PointSessions) -> PointSessions:
        """The sessions with the rows that were taken."""
        rows = np.flatnonzero(self.taken)
        if not len(rows):
            return sessions
        key, start = self._key[rows], self.start[rows]
        ends = np.ones(len(rows), bool)
        ends[:-1] = (key[1:] != key[:-1]) | (start[1:] != start[:-1])
        rows = rows[ends]
        key, start, last = self._key[rows], self.start[rows], self.last[rows]
        # The last session of a key may go on.
        goes_on = start == self._first[rows]
        kept = np.ones(len(sessions.key), bool)
        kept[np.searchsorted(sessions.key, key[goes_on], "right") - 1] = False
        return sessions.where(kept).with_sessions(PointSessions(key, start, last))


def _running(number: np.ndarray, value: np.ndarray, start: np.ndarray) -> np.ndarray:
    """The greatest value so far in each group, at least `start`; groups are numbered in order."""
    line, values = _lined(number, np.maximum(value, start))
    return values(np.maximum.accumulate(line), number)


def _lined(
    key: np.ndarray, at: np.ndarray
) -> tuple[np.ndarray, Callable[[np.ndarray, np.ndarray], np.ndarray]]:
    """Keys and instants as one integer each, in their order, and the way back to the instants.

    `MIN` is before all other instants.
    """
    known = at[at > MIN]
    low, high = (int(known.min()), int(known.max())) if len(known) else (0, 0)
    width = high - low + 2
    if (int(key.max(initial=0)) + 1) * width < 1 << 62:
        place = np.where(at > MIN, at - low + 1, 0)
        return key * width + place, lambda line, number: _instants(line - number * width, low)
    ranks = np.unique(at)
    return (
        key * len(ranks) + np.searchsorted(ranks, at),
        lambda line, number: ranks[line - number * len(ranks)],
    )


def _instants(place: np.ndarray, low: int) -> np.ndarray:
    return np.where(place > 0, place + (low - 1), MIN)
