"""Count panes: many panes of one window in one delivery, computed from grouped prefixes.

A trigger that fires with every n-th element cuts the rows of a cell into segments whose ends are
known beforehand. Each segment is lifted once, and a prefix over the segments of a cell gives the
values of all its panes. The cell ends as if its elements had arrived one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidegate.instants import MAX
from tidegate.kernel.frame import Column, Frame, concat_frames
from tidegate.kernel.groups import Groups, inverse, present
from tidegate.kernel.storage.run_store import Places
from tidegate.kernel.windows.assigners import Assigned
from tidegate.operators.aggregate.cell_update import CellUpdate
from tidegate.operators.aggregate.cell_values import CellValues
from tidegate.operators.aggregate.collector import Collector
from tidegate.operators.aggregate.context import OperatorContext
from tidegate.operators.aggregate.firing import Firing
from tidegate.operators.ingest.delivery import Delivery


@dataclass(frozen=True, slots=True, eq=False)
class _Segments:
    """Rows of cells cut where a pane fires: by cell, then by arrival."""

    row: np.ndarray
    """The rows of the delivery in the order of the segments."""
    groups: Groups
    """The segment of each of these rows."""
    cell: np.ndarray
    """The cell of each segment; cells ascend."""
    fires: np.ndarray
    """Whether a pane fires at the end of a segment; only the last of a cell may not."""

    @property
    def is_first(self) -> np.ndarray:
        return np.concatenate([[True], self.cell[1:] != self.cell[:-1]])

    @property
    def is_last(self) -> np.ndarray:
        return np.concatenate([self.cell[1:] != self.cell[:-1], [True]])


class CountPanes:
    """Takes the rows of cells that fire with every n-th element."""

    def __init__(
        self,
        context: OperatorContext,
        firing: Firing,
        cell_values: CellValues,
        cell_update: CellUpdate,
        rule: tuple[int | None, int | None],
    ) -> None:
        self._context = context
        self._firing = firing
        self._cell_values = cell_values
        self._cell_update = cell_update
        self._early, self._late = rule

    def take(self, delivery: Delivery, assigned: Assigned, out: Collector) -> Assigned:
        """Take all rows that can be taken at once; the rest has to be taken row by row."""
        groups, identity, places = self._cell_update.look_up(delivery, assigned)
        chosen = self._eligible(identity, places, groups)
        if not chosen.any():
            return assigned
        mine = chosen[groups.ids]
        picked = present(groups.ids[mine], groups.n)
        cells = self._cell_update.base(
            identity.take(picked),
            delivery.keys(self._context.spec.input.key, assigned.row[groups.firsts[picked]]),
            places.take(picked),
        )
        owners = Groups(np.searchsorted(picked, groups.ids[mine]), len(picked))
        segments = self._cut(assigned.row[mine], owners, cells)
        partials, failed, _ = self._context.aggregates.lift(
            self._context.rows_of(delivery, segments.row), segments.groups
        )
        if failed is not None:
            return assigned
        found = np.flatnonzero(places.found[picked])
        self._context.cells.remove(places.take(picked[found]))
        self._fire(delivery, cells, segments, Frame(partials, segments.groups.n), out)
        return Assigned(*(column[~mine] for column in assigned))

    def _eligible(self, identity: Frame, places: Places, groups: Groups) -> np.ndarray:
        """Which cells can be taken at once.

        They get several rows, and counting decides when they fire: they are open, or complete and
        have fired on time.
        """
        complete = identity.ints("end") <= self._context.progress.watermark
        eligible = groups.counts > 1
        eligible &= np.where(complete, self._late is not None, self._early is not None)
        found = np.flatnonzero(places.found)
        eligible[~places.found] &= ~complete[~places.found]
        if len(found):
            old = self._context.cells.take(places.take(found))
            due = old.ints("clock_due") <= self._context.progress.now
            eligible[found] &= (
                ~old.ints("closed") & (~complete[found] | old.ints("fired_on_time")) & ~due
            )
        return eligible

    def _cut(self, row: np.ndarray, owners: Groups, cells: Frame) -> _Segments:
        complete = cells.ints("end") <= self._context.progress.watermark
        every = np.where(complete, self._late or 1, self._early or 1)
        order = owners.order
        cell = owners.ids[order]
        counted = cells.ints("pending")[cell] + owners.ranks[order]
        number = counted // every[cell]
        starts = np.ones(len(order), bool)
        starts[1:] = (cell[1:] != cell[:-1]) | (number[1:] != number[:-1])
        groups = Groups.runs(starts)
        last = np.append(np.flatnonzero(starts)[1:], len(order)) - 1
        return _Segments(
            row[order], groups, cell[starts], (counted[last] + 1) % every[cell[last]] == 0
        )

    def _fire(
        self,
        delivery: Delivery,
        cells: Frame,
        segments: _Segments,
        lifted: Frame,
        out: Collector,
    ) -> None:
        """Emit a pane for each segment that ends with one, and put the cells back."""
        added = segments.groups.counts
        total = np.cumsum(added)
        before = (total - added)[segments.is_first][np.cumsum(segments.is_first) - 1]
        after = self._contents_of(cells, segments, lifted).with_mapping(
            {
                **self._holds(delivery, cells, segments),
                "row_count": cells.ints("row_count")[segments.cell] + total - before,
            }
        )
        fires, owner = segments.fires, segments.cell[segments.fires]
        if len(owner):
            panes = cells.take(segments.cell).with_mapping(after.columns).where(fires)
            position = segments.groups.max(delivery.seq[segments.row])[fires]
            remembered, emitted = self._firing.emit(
                panes, np.zeros(len(owner), bool), position, out, owner
            )
            owner = owner[emitted]
            lasts = np.flatnonzero(np.append(owner[1:] != owner[:-1], True)[: len(owner)])
            cells = cells.replaced(owner[lasts], remembered.take(lasts))
        self._put_back(cells, segments, after)

    def _contents_of(self, cells: Frame, segments: _Segments, lifted: Frame) -> Frame:
        """The partial aggregates of a cell after each of its segments.

        They cover all rows so far or, in discarding mode, the segment and the rows pending before
        it.
        """
        context, m = self._context, len(cells)
        both = concat_frames([cells.select(context.aggregates.partial_columns), lifted])
        cell = np.concatenate([np.arange(m), segments.cell])
        if context.spec.mode == "discarding":
            # Each segment is a group of its own; the first of a cell includes the former content.
            group = np.concatenate(
                [np.flatnonzero(segments.is_first), np.arange(len(segments.cell))]
            )
            alone = Frame(
                context.aggregates.combine(both, Groups(group, len(segments.cell))),
                len(segments.cell),
            )
            # An aggregate that is unknown for a window is so for all of its panes.
            return alone.with_mapping(
                cells.select(context.aggregates.known_columns).take(segments.cell).columns
            )
        order = np.argsort(cell, kind="stable")
        prefix = Frame(
            context.aggregates.prefix(both.take(order), Groups(cell[order], m)), len(order)
        )
        return prefix.take(inverse(order)[m:])

    def _holds(self, delivery: Delivery, cells: Frame, segments: _Segments) -> dict[str, Column]:
        """The on-time columns after each segment.

        The first segment of a cell continues from the pending rows.
        """
        before = cells.take(segments.cell)
        goes_on = segments.is_first
        before = before.with_columns(
            has_on_time=before.ints("has_on_time") & goes_on,
            has_hold=before.ints("has_hold") & goes_on,
        )
        return self._cell_update.holds(delivery, segments.row, segments.groups, before)

    def _put_back(self, cells: Frame, segments: _Segments, after: Frame) -> None:
        """Put the cells back as they are after all their segments.

        The rows after the last pane are pending.
        """
        context, n = self._context, len(cells)
        end = np.flatnonzero(segments.is_last)
        fired_at_end = segments.fires[end]
        fired = np.bincount(segments.cell, segments.fires, minlength=n) > 0
        pending = np.where(fired, 0, cells.ints("pending"))
        far = np.full(n, MAX)
        state = context.trigger_state(cells)
        trigger_context = context.trigger_context(cells, pending, far)
        context.machine.on_elements(state, np.ones(n, np.int64), trigger_context)
        context.machine.fire(state, fired, trigger_context)
        rest = np.where(fired_at_end, 0, segments.groups.counts[end])
        # A cell that did not fire has counted one element already.
        more = np.where(fired, rest, rest - 1)
        context.machine.on_elements(
            state, more, context.trigger_context(cells, np.zeros(n, np.int64), far)
        )
        after = after.take(end)
        cells = cells.with_mapping(after.columns).with_columns(
            pending=pending + rest,
            has_on_time=after.ints("has_on_time") & ~fired_at_end,
            has_hold=after.ints("has_hold") & ~fired_at_end,
        )
        if context.spec.mode == "discarding":
            cells = cells.with_mapping(self._cell_values.emptied(cells, fired_at_end))
        context.cells.put(context.due(cells, state))
