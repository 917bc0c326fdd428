"""Schedule: where the elements of a delivery make triggers fire, for all rows at once.

Inside a delivery the clock and the watermark stand still, so that a machine knows after how many
further elements a row is ready (`Machine.until`). A schedule advances every row from firing to
firing. Where a firing leaves a row as an earlier one left it, the rest of its elements repeats the
same steps, and is scheduled at once.

Contract. A row is one (key, window) and has at least one element. The result is that of counting
the elements one by one and firing after each that makes the row ready.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from tidegate.instants import MAX
from tidegate.kernel.groups import expand_ranges
from tidegate.kernel.triggers.machine import Machine
from tidegate.kernel.triggers.node import State, TriggerContext


@dataclass(frozen=True, eq=False)
class Elements:
    """New elements of rows, by row and then by arrival."""

    offsets: np.ndarray
    """The first element of each row, and one past the last element of all."""
    times: np.ndarray
    reopens: np.ndarray | None = None
    """For sessions, the number of elements before the one with which the window reaches beyond the
    watermark. None where windows do not grow.
    """
    grows: np.ndarray | None = None
    """Which elements give a window that grows other bounds."""

    @property
    def counts(self) -> np.ndarray:
        return np.diff(self.offsets)

    def least(self, begin: np.ndarray, count: np.ndarray) -> np.ndarray:
        """The earliest time of `count` elements from `begin` on; MAX of none."""
        least = np.full(len(begin), MAX)
        some = np.flatnonzero(count > 0)
        if len(some):
            bounds = np.column_stack([begin[some], begin[some] + count[some]]).ravel()
            padded = np.append(self.times, MAX)
            least[some] = np.minimum.reduceat(padded, bounds)[::2]
        return least

    def first_before(
        self, begin: np.ndarray, stop: np.ndarray, bound: np.ndarray | int
    ) -> np.ndarray:
        """How many elements from `begin` on end with the first one below a bound; MAX if none."""
        limit = np.broadcast_to(bound, begin.shape)
        found = np.full(len(begin), MAX)
        for row in np.flatnonzero(self.least(begin, stop - begin) < limit).tolist():
            below = self.times[begin[row] : stop[row]] < limit[row]
            found[row] = int(np.argmax(below)) + 1
        return found


@dataclass(frozen=True, eq=False)
class Schedule:
    """The elements of rows, cut where the rows fire."""

    row: np.ndarray
    """The row of each segment; rows ascend."""
    size: np.ndarray
    """The number of elements of each segment."""
    fires: np.ndarray
    """Whether the row fires with the last element; only the last segment of a row may not."""
    full: np.ndarray
    """Whether a full-size policy completes the window with a firing, or has done so before."""
    taken: np.ndarray
    """The number of elements of each row that belong to segments."""
    state: State
    """The state of the rows after their last segment."""
    pending: np.ndarray
    """The elements since the last firing."""

    def of(self, rows: np.ndarray) -> Schedule:
        """The schedule of some rows, ascending, which are renumbered."""
        number = np.full(len(self.taken), -1)
        number[rows] = np.arange(len(rows))
        mine = number[self.row] >= 0
        return Schedule(
            number[self.row[mine]],
            self.size[mine],
            self.fires[mine],
            self.full[mine],
            self.taken[rows],
            {name: column[rows] for name, column in self.state.items()},
            self.pending[rows],
        )


def schedule(
    machine: Machine,
    state: State,
    context: TriggerContext,
    elements: Elements,
    *,
    most: np.ndarray | None = None,
    once: bool = False,
) -> Schedule:
    """Advance rows through their elements until these, `most` of them, or the trigger end.

    With `once`, a row stops at its first firing. `context.pending` does not include the elements.
    """
    run = _Run(machine, state, context, elements, most)
    active = np.arange(len(run.taken))
    while len(active):
        active = run.advance(active)
        if once:
            break
    return run.result()


class _Part(NamedTuple):
    """One step of some rows: row, number of elements, whether it fires, whether it is full."""

    row: np.ndarray
    size: np.ndarray
    fires: np.ndarray
    full: np.ndarray


class _Run:
    """The state of a schedule while it is made."""

    def __init__(
        self,
        machine: Machine,
        state: State,
        context: TriggerContext,
        elements: Elements,
        most: np.ndarray | None,
    ) -> None:
        self._machine = machine
        self._context = context
        self._elements = elements
        counts = elements.counts
        self._limit = counts if most is None else np.minimum(counts, most)
        self.state = {name: np.array(column) for name, column in state.items()}
        self.taken = np.zeros(len(counts), np.int64)
        self._pending = np.array(context.pending)
        self._parts: list[_Part] = []
        self._steps: list[_Part] = []
        """The parts without repetitions; all rows that go on take part in every step."""
        self._mark = {name: column.copy() for name, column in self.state.items()}
        self._marked_at = 0
        self._fired = np.zeros(len(counts), bool)
        """Which rows have fired in every step from the mark on, and in the one before it."""
        self._since = np.zeros(len(counts), np.int64)
        """The elements of each row since the mark."""

    def result(self) -> Schedule:
        row, size, fires, full = (
            np.concatenate(column) for column in zip(*self._parts, strict=True)
        )
        order = np.argsort(row, kind="stable")
        row, size, fires, full = (column[order] for column in (row, size, fires, full))
        # Elements that did not fire a row are part of its next segment.
        ends = fires.copy()
        ends[:-1] |= row[1:] != row[:-1]
        ends[-1:] = True
        total = np.cumsum(size)[ends]
        size = np.diff(total, prepend=0)
        return Schedule(
            row[ends], size, fires[ends], full[ends], self.taken, self.state, self._pending
        )

    def advance(self, rows: np.ndarray) -> np.ndarray:
        """Advance rows to their next firing; returns those that go on."""
        machine = self._machine
        begin, taken = self._elements.offsets[:-1][rows] + self.taken[rows], self.taken[rows]
        left, pending = self._limit[rows] - taken, self._pending[rows]
        state = {name: column[rows] for name, column in self.state.items()}
        self._reopen(state, rows, taken)
        context = self._context_of(rows, pending, taken)
        one = np.ones(len(rows), np.int64)
        machine.on_elements(state, one, replace(context, times=self._elements.times[begin]))
        context = replace(context, pending=pending + 1)
        further = machine.until(
            state,
            replace(
                context,
                first_before=lambda bound: self._elements.first_before(
                    begin + 1, begin + left, bound
                ),
            ),
        )
        step = np.minimum(further, self._room(rows, taken, left) - 1)
        if step.any():
            times = (
                self._elements.least(begin + 1, step)
                if machine.reads_times
                else np.full(len(rows), MAX)
            )
            machine.on_elements(state, step, replace(context, times=times))
        size = step + 1
        pending = pending + size
        context = replace(context, pending=pending)
        fires = machine.ready(state, context)
        machine.fire(state, fires, context)
        finished = machine.finished(state)
        full = machine.full(state, len(rows))
        for name, column in state.items():
            self.state[name][rows] = column
        self.taken[rows] += size
        self._pending[rows] = np.where(fires, 0, pending)
        self._steps.append(_Part(rows, size, fires, full))
        self._parts.append(self._steps[-1])
        self._repeat(rows, size, fires & ~finished)
        return rows[(self.taken[rows] < self._limit[rows]) & ~finished]

    def _context_of(
        self, rows: np.ndarray, pending: np.ndarray, taken: np.ndarray
    ) -> TriggerContext:
        context = self._context
        end, watermark = (
            np.broadcast_to(bound, self.taken.shape)[rows]
            for bound in (context.end, context.watermark)
        )
        if self._elements.reopens is not None:
            # The end grows with the elements; triggers see whether the watermark has reached it.
            over = taken < self._elements.reopens[rows]
            end = np.where(over, watermark, MAX)
        return TriggerContext(end, watermark, context.now, pending)

    def _reopen(self, state: State, rows: np.ndarray, taken: np.ndarray) -> None:
        """Let windows complete again that the next element makes grow beyond the watermark."""
        elements = self._elements
        if elements.reopens is not None:
            again = taken == elements.reopens[rows]
            if elements.grows is not None:
                if self._machine.has_full:
                    again |= taken > elements.reopens[rows]
                again &= elements.grows[elements.offsets[rows] + taken]
            self._machine.rewind(state, again)
            # What repeats before this element need not repeat after it.
            self._fired[rows[again]] = False

    def _room(self, rows: np.ndarray, taken: np.ndarray, left: np.ndarray) -> np.ndarray:
        """How many elements may come before the window is open again."""
        elements = self._elements
        if elements.reopens is None:
            return left
        reopens = elements.reopens[rows]
        room = np.where(taken < reopens, np.minimum(left, reopens - taken), left)
        if elements.grows is not None and self._machine.has_full:
            growing = np.append(np.flatnonzero(elements.grows), len(elements.times))
            begin = elements.offsets[rows] + taken
            room = np.minimum(room, growing[np.searchsorted(growing, begin + 1)] - begin)
        return room

    def _repeat(self, rows: np.ndarray, size: np.ndarray, fires: np.ndarray) -> None:
        """Repeat the steps since the mark in rows that are as they were then.

        The mark moves ever further (Brent's algorithm), so that cycles of any length are found.
        """
        # Where times of elements count, no two elements are alike.
        if self._machine.reads_times or (
            self._elements.grows is not None and self._machine.has_full
        ):
            return
        self._fired[rows] &= fires
        self._since[rows] += size
        same = self._fired[rows]
        for name, column in self.state.items():
            same = same & (column[rows] == self._mark[name][rows])
        again = rows[same]
        if len(again):
            room = self._room(again, self.taken[again], self._limit[again] - self.taken[again])
            times = room // self._since[again]
            self._append(again[times > 0], times[times > 0])
        step = len(self._steps)
        if step & (step - 1) == 0:
            self._marked_at = step
            self._since[rows], self._fired[rows] = 0, fires
            for name, column in self.state.items():
                self._mark[name][rows] = column[rows]

    def _append(self, rows: np.ndarray, times: np.ndarray) -> None:
        """Append the steps of some rows since the mark a number of times."""
        if not len(rows):
            return
        cycle = self._steps[self._marked_at :]
        places = [np.searchsorted(part.row, rows) for part in cycle]
        total = times * len(cycle)
        row = np.repeat(np.arange(len(rows)), total)
        nth = expand_ranges(np.zeros(len(rows), np.int64), total) % len(cycle)
        columns = [
            np.stack([getattr(part, name)[at] for part, at in zip(cycle, places, strict=True)])
            for name in ("size", "fires", "full")
        ]
        size, fires, full = (column[nth, row] for column in columns)
        self._parts.append(_Part(rows[row], size, fires, full))
        self.taken[rows] += times * self._since[rows]
