"""Session steps: how many rows of each key can be taken before their order matters.

The rows of a key are a *block* as long as every row touches its session when it arrives (see
`kernel.windows.session_growth`): then the rows of each session are the elements of one window that
grows, and a schedule finds where it fires. Where triggers are not ready early, only the rows up to
the last late one of a key have to. A row that merges two sessions ends a block; the longest
one is found by doubling and halving, because a part of a block is a block. So are rows that are not
taken: rows of closed and of expired sessions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from tidegate.instants import MAX
from tidegate.kernel.frame import Frame, search_sorted
from tidegate.kernel.groups import Groups
from tidegate.kernel.triggers import Elements, Schedule, TriggerContext, schedule
from tidegate.kernel.windows.assigners import Assigned
from tidegate.kernel.windows.session_growth import Growth
from tidegate.kernel.windows.sessions import Extension, extend
from tidegate.operators.aggregate.context import OperatorContext
from tidegate.operators.aggregate.element_steps import Pace
from tidegate.operators.ingest.delivery import Delivery
from tidegate.spec.windows import Session, Touch

_BOUNDS = ("code", "start", "end")
_SMALL = 4096
"""Below this many rows it does not pay to take those apart whose order does not matter."""


@dataclass(frozen=True, eq=False)
class Sessions:
    """Rows of some keys, and the sessions of these keys that can grow."""

    keys: Frame
    code: np.ndarray
    """The number of the key of each row."""
    old: Frame
    owner: np.ndarray
    """The number of the key of each session."""
    tombstones: Frame
    """Number of the key, start and end of closed sessions."""


@dataclass(frozen=True, eq=False)
class Block:
    """Which rows are taken now, and how."""

    together: np.ndarray
    """The rows after which no session fires before its last row."""
    several: np.ndarray
    """The rows of sessions that fire several times."""
    plan: Schedule | None
    """When these fire."""


@dataclass(frozen=True, eq=False)
class SessionSteps:
    """Finds blocks of rows for sessions."""

    context: OperatorContext
    merges_late_rows: bool
    """Whether a late row is taken if it merges with a session that is not late."""

    def ordered(self, delivery: Delivery, assigned: Assigned) -> np.ndarray:
        """The rows of keys in which the order of rows may matter."""
        row = assigned.row
        if self.context.machine.fires_early or (
            delivery.weight is not None and (delivery.weight[row] < 0).any()
        ):
            return np.ones(len(row), bool)
        # A session without an element is complete only if a row of it is late.
        late = assigned.end <= self.context.watermarks.of_rows(delivery, row)
        matters = self.context.machine.fires_on_elements or self.merges_late_rows
        if not matters or not late.any():
            return np.zeros(len(row), bool)
        if len(row) < _SMALL:
            return np.ones(len(row), bool)
        return np.isin(delivery.key_hash[row], delivery.key_hash[row[late]])

    def block(
        self,
        delivery: Delivery,
        assigned: Assigned,
        sessions: Sessions,
        extension: Extension,
        pace: Pace,
        *,
        once: bool = False,
    ) -> Block:
        """The first rows of each key that can be taken at once; with `once` up to one firing.

        `extension`: of the sessions with all rows.
        """
        rows = _Rows.of(self.context, delivery, assigned, sessions, pace)
        block, extension, growth = self._one_by_one(rows, extension)
        bad = self._turned_away(rows, block, growth)
        if bad.any():
            block &= rows.rank < np.maximum(rows.first_of(bad), 1)[rows.code]
            extension, growth = self._growth(rows, block)
        plain = (
            self.context.messages is None
            and delivery.weight is None
            and not self.context.spec.retention.counts
        )
        return self._until_firing(rows, block, extension, growth, once=once or not plain)

    def _one_by_one(
        self, rows: _Rows, extension: Extension
    ) -> tuple[np.ndarray, Extension, Growth]:
        """The longest blocks; at least the first element of every key."""
        limit = rows.before_retractions()
        block = rows.rank < limit[rows.code]
        if block.all():
            growth = self._relevant(rows, block, extension)
        else:
            extension, growth = self._growth(rows, block)
        if not growth.apart.any():
            return block, extension, growth
        low = np.minimum(limit, np.maximum(rows.first_of(rows.spread(block, growth)), 1))
        high, step = limit.copy(), np.ones(len(limit), np.int64)
        while len(keys := np.flatnonzero(low < high)):
            middle = high.copy()
            middle[keys] = np.minimum(low + step, (low + high + 1) // 2)[keys]
            asked = np.zeros(len(limit), bool)
            asked[keys] = True
            part = asked[rows.code] & (rows.rank < middle[rows.code])
            _, growth = self._growth(rows, part)
            fails = np.zeros(len(limit), bool)
            fails[rows.code[part][growth.order[growth.apart]]] = True
            fits = asked & ~fails
            low[fits], high[fails] = middle[fits], middle[fails] - 1
            step[fits] *= 2
        block = rows.rank < low[rows.code]
        return block, *self._growth(rows, block)

    @property
    def _touch(self) -> Touch:
        return cast("Session", self.context.spec.window).touch

    def _growth(self, rows: _Rows, block: np.ndarray) -> tuple[Extension, Growth]:
        old = rows.sessions.old
        code, start, end = rows.code[block], rows.start[block], rows.end[block]
        extension = extend(
            (rows.sessions.owner, old.ints("start"), old.ints("end")),
            (code, start, end),
            self._touch,
        )
        return extension, self._relevant(rows, block, extension)

    def _relevant(self, rows: _Rows, block: np.ndarray, extension: Extension) -> Growth:
        """The growth of sessions; rows lie apart only where that can change a result.

        Where triggers are not ready early, no element is looked at after the last late row of its
        key: a session that it opens, or is in, is not complete.
        """
        growth = Growth.of(extension, rows.start[block], rows.end[block], self._touch)
        if rows.last_late is None or not growth.apart.any():
            return growth
        rank, code = rows.rank[block][growth.order], rows.code[block][growth.order]
        return replace(growth, apart=growth.apart & (rank <= rows.last_late[code]))

    def _turned_away(self, rows: _Rows, block: np.ndarray, growth: Growth) -> np.ndarray:
        """The rows that a session does not take when they come, but would take with others."""
        bad = np.zeros(len(growth.order), bool)
        code = rows.code[block][growth.order]
        tombstones = rows.sessions.tombstones
        if len(tombstones):
            order = np.lexsort([tombstones.ints(name) for name in reversed(_BOUNDS)])
            now = Frame.of({"code": code, "start": growth.start, "end": growth.end})
            bad |= search_sorted(tombstones.take(order), now, _BOUNDS)[1]
        if self.merges_late_rows:
            watermark = rows.watermark[code]
            over = self.context.expired(self.context.expiry(growth.end), watermark)
            # No row of a session that has expired in the end is taken, in any order.
            last = growth.offsets[1:] - 1
            bad |= over & ~over[last][growth.session]
        found = np.zeros(len(block), bool)
        found[np.flatnonzero(block)[growth.order[bad]]] = True
        return found

    def _until_firing(
        self,
        rows: _Rows,
        block: np.ndarray,
        extension: Extension,
        growth: Growth,
        *,
        once: bool,
    ) -> Block:
        """The block, cut where sessions fire unless they can fire several times at once."""
        mine = np.flatnonzero(block)
        steps = self._scheduled(rows, mine, extension, growth, once=True)
        counts = np.diff(growth.offsets)
        # An expired session fires for none of its rows, because it takes none.
        taken = np.where(self._expired(rows, extension), counts, steps.taken)
        early = taken < counts
        nothing = np.zeros(len(block), bool)
        if not early.any():
            return Block(block, nothing, None)
        plan = None
        several = np.zeros(len(counts), bool)
        if not once:
            chosen = np.flatnonzero(early)
            plan = self._scheduled(rows, mine, extension, growth).of(chosen)
            several[chosen] = True
            finished = chosen[plan.taken < counts[chosen]]
            if len(finished):
                # Rows after the end of a trigger open another session; its key stops there.
                key = extension.merged.key[extension.touched]
                several &= ~np.isin(key, key[finished])
                plan = plan.of(np.flatnonzero(several[chosen]))
        # All sessions of a key stop with the first one that fires, after the rows of its element.
        nth = np.arange(len(mine)) - growth.offsets[growth.session]
        left = (nth >= taken[growth.session]) & ~several[growth.session]
        stop = np.maximum(rows.first_of(_among(block, growth.order[left])), 1)
        together = block & (rows.rank < stop[rows.code])
        fired = _among(block, growth.order[several[growth.session]])
        fired &= together
        return Block(together & ~fired, fired, plan if several.any() else None)

    def _expired(self, rows: _Rows, extension: Extension) -> np.ndarray:
        """The touched sessions that have expired."""
        if not self.merges_late_rows:
            return np.zeros(len(extension.touched), bool)
        merged, touched = extension.merged, extension.touched
        expiry = self.context.expiry(merged.end[touched])
        return self.context.expired(expiry, rows.watermark[merged.key[touched]])

    def _scheduled(
        self,
        rows: _Rows,
        mine: np.ndarray,
        extension: Extension,
        growth: Growth,
        *,
        once: bool = False,
    ) -> Schedule:
        """The schedule of the touched sessions."""
        context, machine = self.context, self.context.machine
        n, held = len(extension.touched), extension.absorbed_by >= 0
        owner, old = extension.absorbed_by[held], rows.sessions.old.where(held)
        pending = np.zeros(n, np.int64)
        state = {
            name: np.repeat(column, n)
            for name, column in machine.initial(1, context.progress.now).items()
        }
        if len(owner):
            pending[owner] = old.ints("pending")
            for name, column in state.items():
                column[owner] = old.ints(name)
        watermark = rows.watermark[extension.merged.key[extension.touched]]
        complete = growth.end <= watermark[growth.session]
        elements = Elements(
            growth.offsets,
            rows.position[mine][growth.order],
            np.bincount(growth.session, complete, n).astype(np.int64),
            growth.changes,
        )
        # A row between several sessions is a block of its own.
        most = np.where(growth.is_one_by_one, MAX, 1)
        trigger_context = TriggerContext(
            np.zeros(n, np.int64), watermark, context.progress.now, pending
        )
        return schedule(machine, state, trigger_context, elements, most=most, once=once)


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows by key and arrival."""

    sessions: Sessions
    code: np.ndarray
    rank: np.ndarray
    """The number of the element of each row among those of its key."""
    counts: np.ndarray
    """The number of elements of each key."""
    start: np.ndarray
    end: np.ndarray
    position: np.ndarray
    shrinks: np.ndarray | None
    """Which rows are retractions."""
    watermark: np.ndarray
    """The watermark of each key."""
    last_late: np.ndarray | None
    """The number of the last late element of each key, -1 without one; None where any element may
    make a trigger ready.
    """

    @classmethod
    def of(
        cls,
        context: OperatorContext,
        delivery: Delivery,
        assigned: Assigned,
        sessions: Sessions,
        pace: Pace,
    ) -> _Rows:
        code, keys = sessions.code, Groups(sessions.code, len(sessions.keys))
        rank = keys.ranks
        if pace.unit is not None:
            # A retraction and its replacement are one element.
            unit = pace.unit[assigned.row]
            order = keys.order
            new = np.ones(len(code), bool)
            new[1:] = (code[order][1:] != code[order][:-1]) | (unit[order][1:] != unit[order][:-1])
            number = np.cumsum(new) - 1
            rank = np.empty(len(code), np.int64)
            rank[order] = number - number[keys.offsets[:-1]][code[order]]
        counts = np.zeros(keys.n, np.int64)
        np.maximum.at(counts, code, rank + 1)
        weight, last_late = delivery.weight, None
        shrinks = None if weight is None else weight[assigned.row] < 0
        watermark = np.broadcast_to(context.watermarks.of_cells(sessions.keys), keys.n)
        if not context.machine.fires_early and (shrinks is None or not shrinks.any()):
            late = assigned.end <= watermark[code]
            last_late = np.full(keys.n, -1, np.int64)
            np.maximum.at(last_late, code[late], rank[late])
        return cls(
            sessions,
            code,
            rank,
            counts,
            assigned.start,
            assigned.end,
            delivery.position[assigned.row],
            shrinks,
            watermark,
            last_late,
        )

    def first_of(self, mask: np.ndarray) -> np.ndarray:
        """The first element of each key with a row of the mask; MAX without one."""
        first = np.full(len(self.counts), MAX)
        np.minimum.at(first, self.code[mask], self.rank[mask])
        return first

    def before_retractions(self) -> np.ndarray:
        """The elements of each key before the first retraction, or that alone."""
        if self.shrinks is None:
            return self.counts.copy()
        return np.maximum(np.minimum(self.counts, self.first_of(self.shrinks)), 1)

    def spread(self, block: np.ndarray, growth: Growth) -> np.ndarray:
        """The rows of a block that lie apart from their session."""
        return _among(block, growth.order[growth.apart])


def _among(block: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """The rows with some numbers among those of a block."""
    mask = np.zeros(len(block), bool)
    mask[np.flatnonzero(block)[chosen]] = True
    return mask
