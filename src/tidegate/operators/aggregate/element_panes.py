"""Element panes: many panes of one window in one delivery, computed from grouped prefixes.

A schedule cuts the rows of a cell into segments that end where the cell fires. Each segment is
lifted once, and a prefix over the segments of a cell gives the values of all its panes. The cell
ends as if its elements had arrived one by one.

A session may get other bounds with each segment. Segments with equal bounds are a *span*: a window
of its own, which takes over the content of the one before it and withdraws its pane.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidegate.kernel.frame import Column, Frame, concat_frames
from tidegate.kernel.groups import Groups, inverse
from tidegate.kernel.triggers import Schedule
from tidegate.operators.aggregate.cell_values import CellValues
from tidegate.operators.aggregate.collector import Collector
from tidegate.operators.aggregate.context import OperatorContext
from tidegate.operators.aggregate.firing import Firing
from tidegate.operators.aggregate.output_time import held_by, hold_columns, joined_holds
from tidegate.operators.ingest.delivery import Delivery


@dataclass(frozen=True, eq=False)
class Segments:
    """Rows of cells cut where a pane fires: by cell, then by arrival."""

    row: np.ndarray
    """The rows of the delivery in the order of the segments."""
    groups: Groups
    """The segment of each of these rows."""
    schedule: Schedule
    """Cell, size and firing of each segment; the state of the cells after the last one."""

    @classmethod
    def of(cls, row: np.ndarray, plan: Schedule) -> Segments:
        """The segments of rows that are sorted by cell and have as many as were taken."""
        return cls(
            row, Groups(np.repeat(np.arange(len(plan.size)), plan.size), len(plan.size)), plan
        )

    @property
    def cell(self) -> np.ndarray:
        """The cell of each segment; cells ascend."""
        return self.schedule.row

    @property
    def is_first(self) -> np.ndarray:
        return _starts(self.cell)

    @property
    def is_last(self) -> np.ndarray:
        return np.append(self.cell[1:] != self.cell[:-1], True)


@dataclass(frozen=True, eq=False)
class Spans:
    """Windows that rows go through: cells, and further ones where a session gets other bounds."""

    cells: Frame
    """The cells before their segments and, after them, the further spans without content."""
    of_segment: np.ndarray
    """The span of each segment."""
    last: np.ndarray
    """The span that each cell ends in."""
    left: np.ndarray
    """The spans that are withdrawn because the session grew."""
    left_at: np.ndarray
    """The arrival numbers of the rows with which it did."""

    @classmethod
    def fixed(cls, cells: Frame, segments: Segments) -> Spans:
        """The cells of windows that never change their bounds."""
        nothing = np.zeros(0, np.int64)
        return cls(cells, segments.cell, np.arange(len(cells)), nothing, nothing)


class ElementPanes:
    """Fires cells several times in a delivery."""

    def __init__(self, context: OperatorContext, firing: Firing, cell_values: CellValues) -> None:
        self._context = context
        self._firing = firing
        self._cell_values = cell_values

    def fire(
        self,
        delivery: Delivery,
        segments: Segments,
        spans: Spans,
        partials: Frame,
        out: Collector,
    ) -> None:
        """Emit a pane for each segment that ends with one, and put the cells back."""
        context, plan = self._context, segments.schedule
        states, cells = self._states(delivery, segments, spans, partials), spans.cells
        fires, owner = plan.fires, spans.of_segment[plan.fires]
        finished = context.machine.finished(plan.state)
        panes = states.where(fires)
        position = segments.groups.max(delivery.seq[segments.row])[fires]
        numbered = self._firing.numbered(
            panes,
            (segments.is_last & finished[segments.cell])[fires],
            position,
            out,
            owner,
            self._completes(panes, plan.full[fires]),
        )
        owner = owner[numbered.emitted]
        lasts = np.flatnonzero(np.append(owner[1:] != owner[:-1], True)[: len(owner)])
        if len(lasts):
            cells = cells.replaced(owner[lasts], numbered.after.take(lasts))
        if len(spans.left):
            # A session is withdrawn before a pane of the larger one that replaces it.
            self._firing.withdraw(cells.take(spans.left), spans.left_at, out)
        self._firing.show(numbered, out)
        self._put_back(cells.take(spans.last), segments, states, finished)

    def _completes(self, cells: Frame, full: np.ndarray) -> np.ndarray:
        return np.asarray(cells.ints("end") <= self._context.watermarks.of_cells(cells)) | full

    def _states(
        self, delivery: Delivery, segments: Segments, spans: Spans, partials: Frame
    ) -> Frame:
        """The cells as they are at the end of each segment, when they may fire."""
        plan, first = segments.schedule, np.flatnonzero(segments.is_first)
        states, before = spans.cells.take(spans.of_segment), spans.cells.take(segments.cell)
        total = np.cumsum(plan.size)
        added = total - (total - plan.size)[first][np.cumsum(segments.is_first) - 1]
        fired = _any_before(plan.fires & self._completes(states, plan.full), spans.of_segment)
        return states.with_mapping(
            {
                **self._contents_of(before, segments, partials).columns,
                **self._holds(delivery, before, states, segments),
                "row_count": before.ints("row_count") + added,
                "fired_on_time": states.ints("fired_on_time") | fired,
            }
        )

    def _contents_of(self, before: Frame, segments: Segments, partials: Frame) -> Frame:
        """The partial aggregates of a cell after each of its segments.

        They cover all rows so far or, in discarding mode, the segment and the rows pending before
        it.
        """
        context, n = self._context, len(segments.cell)
        first = np.flatnonzero(segments.is_first)
        cells = before.select(context.aggregates.partial_columns).take(first)
        both = concat_frames([cells, partials])
        if context.spec.mode == "discarding":
            # Each segment is a group of its own; the first of a cell includes the former content.
            group = np.concatenate([first, np.arange(n)])
            alone = Frame(context.aggregates.combine(both, Groups(group, n)), n)
            # An aggregate that is unknown for a window is so for all of its panes.
            return alone.with_mapping(before.select(context.aggregates.known_columns).columns)
        m = len(first)
        cell = np.concatenate([np.arange(m), np.cumsum(segments.is_first) - 1])
        order = np.argsort(cell, kind="stable")
        prefix = Frame(
            context.aggregates.prefix(both.take(order), Groups(cell[order], m)), len(order)
        )
        return prefix.take(inverse(order)[m:])

    def _holds(
        self, delivery: Delivery, before: Frame, states: Frame, segments: Segments
    ) -> dict[str, Column]:
        """The on-time columns after each segment.

        The first segment of a cell continues from the pending rows.
        """
        goes_on = segments.is_first
        before = before.with_columns(
            has_on_time=before.ints("has_on_time") & goes_on,
            has_hold=before.ints("has_hold") & goes_on,
        )
        timestamp, row = self._context.spec.options.timestamp, segments.row
        held = held_by(timestamp, delivery.position[row], delivery.is_on_time[row], segments.groups)
        is_open = states.ints("end") > self._context.watermarks.before_call(states)
        return joined_holds(before, Frame(held, len(states)), timestamp, is_open=is_open)

    def _put_back(
        self, cells: Frame, segments: Segments, states: Frame, finished: np.ndarray
    ) -> None:
        """Put the cells back as they are after all their segments.

        The rows after the last pane are pending.
        """
        context, plan = self._context, segments.schedule
        end = np.flatnonzero(segments.is_last)
        fires, after = plan.fires[end], states.take(end)
        content = [*context.aggregates.partial_columns, "row_count"]
        held = hold_columns(context.spec.options.timestamp)[2:]
        complete = self._completes(after, plan.full[end])
        cells = cells.with_mapping(after.select([*content, *held]).columns).with_columns(
            pending=plan.pending,
            has_on_time=after.ints("has_on_time") & ~fires,
            has_hold=after.ints("has_hold") & ~fires,
            fired_on_time=after.ints("fired_on_time") | (fires & complete),
        )
        if context.spec.mode == "discarding":
            cells = cells.with_mapping(self._cell_values.emptied(cells, fires))
        if finished.any():
            cells = self._firing.shut(cells, finished)
        context.cells.put(context.due(cells, plan.state))


def _starts(cell: np.ndarray) -> np.ndarray:
    """Which segments are the first of their cell."""
    return np.concatenate([[True], cell[1:] != cell[:-1]])


def _any_before(mask: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Whether the mask holds for an earlier row of the same group; rows of a group adjoin."""
    before = np.cumsum(mask) - mask
    first = np.flatnonzero(_starts(group))
    return np.asarray(before > before[first][np.cumsum(_starts(group)) - 1])
