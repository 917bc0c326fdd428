"""Sessions as rows come one by one: for each row of a delivery the session that it is in when it
comes, and the sessions that it joins to one.

Rows that come in the order of their times only make the last session of their key longer or begin a
new one, which is found for all of them at once. A row that lies before the last session of its key
takes a round of its own, in which all keys have their next such row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tidegate.instants import MIN, saturating_add


@dataclass
class Table:
    """Sessions by key number and start: the times of their first and of their last row."""

    code: np.ndarray
    start: np.ndarray
    last: np.ndarray

    def where(self, mask: np.ndarray) -> Table:
        return Table(self.code[mask], self.start[mask], self.last[mask])

    def and_also(self, code: np.ndarray, start: np.ndarray, last: np.ndarray) -> Table:
        """With further sessions, in order."""
        return Table(
            *(
                np.concatenate(pair)
                for pair in ((self.code, code), (self.start, start), (self.last, last))
            )
        ).sorted()

    def sorted(self) -> Table:
        """The same by key and start."""
        line, _ = _lined(self.code, self.start)
        if (line[1:] >= line[:-1]).all():
            return self
        order = np.argsort(line, kind="stable")
        return Table(self.code[order], self.start[order], self.last[order])

    def before(self, code: np.ndarray, at: np.ndarray) -> np.ndarray:
        """How many sessions lie before the next one of a key that begins after an instant."""
        line, _ = _lined(np.concatenate([self.code, code]), np.concatenate([self.start, at]))
        return np.searchsorted(line[: len(self.code)], line[len(self.code) :], "right")


@dataclass
class Joined:
    """Rows that join two sessions to one: the row, and first and last times of both."""

    row: list[np.ndarray] = field(default_factory=list)
    earlier: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    later: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)

    def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """All of them: row, start and last of the earlier session, start and last of the later
        one.
        """
        if not self.row:
            nothing = np.zeros(0, np.int64)
            return nothing, nothing, nothing, nothing, nothing
        ends = [
            np.concatenate([pair[n] for pair in pairs])
            for pairs in (self.earlier, self.later)
            for n in (0, 1)
        ]
        return np.concatenate(self.row), ends[0], ends[1], ends[2], ends[3]


@dataclass
class Followed:
    """What became of rows: the session of each when it came, the joined sessions, and all sessions
    at the end.
    """

    start: np.ndarray
    last: np.ndarray
    joined: Joined
    table: Table


def follow(code: np.ndarray, at: np.ndarray, table: Table, gap: int, *, touch: bool) -> Followed:
    """Let rows come in their order; `code` numbers their keys, and the table has the sessions of
    these keys, sorted by key and start.

    With `touch` a session that ends where the next begins is one with it.
    """
    reach = gap if touch else gap - 1
    start, last = np.empty(len(at), np.int64), np.empty(len(at), np.int64)
    joined, done = Joined(), []
    rest = np.argsort(code, kind="stable")
    while len(rest):
        rows = _Round(code[rest], at[rest], table, reach)
        start[rest[rows.taken]], last[rest[rows.taken]] = (
            rows.start[rows.taken],
            rows.last[rows.taken],
        )
        table = rows.grown(table)
        past = np.flatnonzero(rows.past)
        if len(past):
            table = _insert(
                rest[past], code[rest[past]], at[rest[past]], table, reach, joined, (start, last)
            )
        rest = rest[rows.left]
        active = np.isin(table.code, code[rest])
        done.append(table.where(~active))
        table = table.where(active)
    whole = Table(
        *(
            np.concatenate([getattr(part, name) for part in (*done, table)])
            for name in ("code", "start", "last")
        )
    )
    return Followed(start, last, joined, whole.sorted())


class _Round:
    """Rows by key and arrival: those that can be taken at once, and the first of each key that lies
    before its last session.
    """

    def __init__(self, code: np.ndarray, at: np.ndarray, table: Table, reach: int) -> None:
        self._code = code
        begins = np.ones(len(code), bool)
        begins[1:] = code[1:] != code[:-1]
        number = np.cumsum(begins) - 1
        place = np.searchsorted(table.code, code, "right") - 1
        known = (
            (place >= 0) & (table.code[np.maximum(place, 0)] == code)
            if len(table.code)
            else np.zeros(len(code), bool)
        )
        place = np.maximum(place, 0)
        first = np.where(known, table.start[place] if len(table.code) else MIN, MIN)
        newest = np.where(known, table.last[place] if len(table.code) else MIN, MIN)
        self.last = _running(number, at, newest)
        before = np.where(begins, newest, np.concatenate([[MIN], self.last[:-1]]))
        ahead = at >= before
        fresh = ahead & ((before == MIN) | (at > saturating_add(before, reach)))
        self.start = _running(number, np.where(fresh, at, first), first)
        began = np.where(begins, first, np.concatenate([[MIN], self.start[:-1]]))
        behind = ~ahead & (at < began)
        total = np.cumsum(behind.astype(np.int64))
        count: np.ndarray = (
            total
            - (total - behind)[np.maximum.accumulate(np.where(begins, np.arange(len(code)), 0))]
        )
        self.taken = count == 0
        self.past = behind & (count == 1)
        self.left = ~self.taken & ~self.past
        self._first = first

    def grown(self, table: Table) -> Table:
        """The sessions with the rows that were taken."""
        rows = np.flatnonzero(self.taken)
        if not len(rows):
            return table
        code, start = self._code[rows], self.start[rows]
        ends = np.ones(len(rows), bool)
        ends[:-1] = (code[1:] != code[:-1]) | (start[1:] != start[:-1])
        rows = rows[ends]
        code, start, last = self._code[rows], self.start[rows], self.last[rows]
        old = start == self._first[rows]
        # The last session of a key is the one that may go on.
        gone = np.zeros(len(table.code), bool)
        gone[np.searchsorted(table.code, code[old], "right") - 1] = True
        return table.where(~gone).and_also(code, start, last)


def _running(number: np.ndarray, value: np.ndarray, start: np.ndarray) -> np.ndarray:
    """The greatest value so far in each group, which begins with `start`; groups are numbered in
    their order.
    """
    line, values = _lined(number, np.maximum(value, start))
    return values(np.maximum.accumulate(line), number)


def _lined(
    code: np.ndarray, at: np.ndarray
) -> tuple[np.ndarray, Callable[[np.ndarray, np.ndarray], np.ndarray]]:
    """Codes and instants as one number each, in their order, and how an instant is told from such a
    number; `MIN` is before all others.
    """
    known = at[at > MIN]
    low, high = (int(known.min()), int(known.max())) if len(known) else (0, 0)
    width = high - low + 2
    if (int(code.max(initial=0)) + 1) * width < 1 << 62:
        place = np.where(at > MIN, at - low + 1, 0)
        return code * width + place, lambda line, number: _instants(line - number * width, low)
    ranks = np.unique(at)
    return (
        code * len(ranks) + np.searchsorted(ranks, at),
        lambda line, number: ranks[line - number * len(ranks)],
    )


def _instants(place: np.ndarray, low: int) -> np.ndarray:
    return np.where(place > 0, place + (low - 1), MIN)


def _insert(
    row: np.ndarray,
    code: np.ndarray,
    at: np.ndarray,
    table: Table,
    reach: int,
    joined: Joined,
    sessions: tuple[np.ndarray, np.ndarray],
) -> Table:
    """One row a key that lies before its last session: it is one of its own, makes another longer,
    or joins two.
    """
    after = table.before(code, at)
    before = np.maximum(after - 1, 0)
    has_before = (after > 0) & (table.code[before] == code)
    next_one = np.minimum(after, len(table.code) - 1)
    has_after = (after < len(table.code)) & (table.code[next_one] == code)
    earlier = has_before & (at <= saturating_add(table.last[before], reach))
    later = has_after & (table.start[next_one] <= saturating_add(at, reach))
    start = np.where(earlier, np.minimum(at, table.start[before]), at)
    last = np.where(later, table.last[next_one], at)
    last = np.where(earlier, np.maximum(last, table.last[before]), last)
    sessions[0][row], sessions[1][row] = start, last
    both = earlier & later
    if both.any():
        joined.row.append(row[both])
        joined.earlier.append((table.start[before[both]], table.last[before[both]]))
        joined.later.append((table.start[next_one[both]], table.last[next_one[both]]))
    gone = np.zeros(len(table.code), bool)
    gone[before[earlier]] = True
    gone[next_one[later]] = True
    return table.where(~gone).and_also(code, start, last)
