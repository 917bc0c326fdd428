"""Row update: the rows of a delivery into their windows.

A row gets its position on the axis of the window, and its windows. Rows without a window go to
`late`. Rows of windows that no trigger looks at yet go to slices, all others to cells: in one step
where the order of rows does not matter, otherwise the n-th row of every key in the n-th step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidegate.kernel.frame import Frame
from tidegate.kernel.groups import Groups, present
from tidegate.kernel.windows.assigners import Aligned, Assigned, SessionAssigner
from tidegate.operators.aggregate.cell_update import CellUpdate
from tidegate.operators.aggregate.collector import Collector
from tidegate.operators.aggregate.context import OperatorContext
from tidegate.operators.aggregate.count_panes import CountPanes
from tidegate.operators.aggregate.ordinals import Ordinals
from tidegate.operators.aggregate.retention import RetentionBounds
from tidegate.operators.aggregate.slice_buffer import SliceBuffer
from tidegate.operators.aggregate.static_windows import StaticWindows
from tidegate.operators.ingest.delivery import Delivery, as_frame
from tidegate.operators.output import class_names
from tidegate.spec.windows import Axis, ByDifference, Custom, Hopping, Inherited, Session


@dataclass(frozen=True, eq=False)
class RowUpdate:
    """Takes the classified rows of a delivery."""

    context: OperatorContext
    cell_update: CellUpdate
    retention: RetentionBounds
    ordinals: Ordinals
    slice_buffer: SliceBuffer | None
    static_windows: StaticWindows | None
    count_panes: CountPanes | None

    def place(self, delivery: Delivery) -> Delivery:
        """The rows with their positions on the axis of the window."""
        match self.context.spec.window.axis:
            case Axis.CLOCK:
                position = np.full(len(delivery), self.context.progress.now)
            case Axis.OFFSET:
                position = delivery.offset
            case Axis.ORDINAL:
                position = self.ordinals.number(delivery)
            case _:
                position = delivery.time
        return delivery.with_position(position)

    def take(self, delivery: Delivery, out: Collector) -> None:
        """Take rows with positions into their windows."""
        self._note_offsets(delivery)
        if isinstance(self.cell_update.assigner, SessionAssigner):
            bad = self._bad_gaps(delivery)
            rows = np.flatnonzero(bad)
            out.late_rows(delivery, rows, "bad_gap", class_names(delivery.verdict[rows]))
            delivery = delivery.where(~bad)
        if not len(delivery):
            return
        delivery, assigned = self._with_windows(delivery, out)
        if not len(delivery):
            return
        if self.static_windows is not None:
            self.static_windows.learn(delivery)
        if assigned is None:
            assigned = (
                self.slice_buffer.take(delivery, out)
                if self.slice_buffer is not None
                else self.cell_update.assigner.assign(delivery.position)
            )
        self._update_cells(delivery, assigned, out)

    def windows_of(self, delivery: Delivery, rows: np.ndarray) -> Assigned | None:
        """The windows that dropped rows would have been in, for the late output."""
        if not len(rows):
            return None
        chosen = delivery.take(rows)
        row, start, end = self.cell_update.assigner.assign(chosen.time, as_frame(chosen))
        inside = start <= chosen.time[row]
        if isinstance(self.context.spec.window, Session):
            inside &= ~self._bad_gaps(chosen)[row]
        return Assigned(row[inside], start[inside], end[inside])

    def _note_offsets(self, delivery: Delivery) -> None:
        """Note offsets by slice where all keys share their windows.

        Other windows note their offsets when their bounds are known.
        """
        assigner, offsets = self.cell_update.assigner, self.context.window_offsets
        if (
            offsets is not None
            and isinstance(assigner, Aligned)
            and self.cell_update.shares_offsets
        ):
            start, end = assigner.slice_of(delivery.position)
            no_key = np.zeros(len(delivery), np.uint64)
            windows = Frame.of(
                {"key_hash": no_key, "key_check": no_key, "start": start, "end": end}, len(delivery)
            )
            offsets.note(windows, delivery.partitions, delivery.partition, delivery.offset)

    def _with_windows(self, delivery: Delivery, out: Collector) -> tuple[Delivery, Assigned | None]:
        """The rows that are in some window; the others go to `late`.

        The second value is their windows, where these had to be found; None otherwise.
        """
        window, assigner = self.context.spec.window, self.cell_update.assigner
        if (
            isinstance(window, Hopping)
            and window.slide > window.size
            and isinstance(assigner, Aligned)
        ):
            start, end = assigner.slice_of(delivery.position)
            return self._without_window(delivery, start < end, out), None
        if not isinstance(window, Session | Custom | Inherited):
            return delivery, None
        assigned = assigner.assign(delivery.position, as_frame(delivery))
        if isinstance(window, Session):
            return delivery, assigned
        inside = np.zeros(len(delivery), bool)
        inside[assigned.row] = True
        number = np.cumsum(inside) - 1
        return self._without_window(delivery, inside, out), Assigned(
            number[assigned.row], assigned.start, assigned.end
        )

    def _without_window(self, delivery: Delivery, inside: np.ndarray, out: Collector) -> Delivery:
        rows = np.flatnonzero(~inside)
        out.late_rows(delivery, rows, "no_window", class_names(delivery.verdict[rows]))
        return delivery.where(inside)

    def _bad_gaps(self, delivery: Delivery) -> np.ndarray:
        assigner = self.cell_update.assigner
        return (
            assigner.bad_gaps(as_frame(delivery))
            if isinstance(assigner, SessionAssigner)
            else np.zeros(len(delivery), bool)
        )

    def _update_cells(self, delivery: Delivery, assigned: Assigned, out: Collector) -> None:
        """Take rows into cells, in one step or in several."""
        by_element = self.context.spec.options.granularity == "element"
        if self.count_panes is not None and by_element and delivery.weight is None:
            assigned = self.count_panes.take(
                delivery, self.cell_update.without_expired(delivery, assigned, out), out
            )
        rows = present(assigned.row, len(delivery))
        if not len(rows):
            return
        steps = (
            self._steps(delivery, rows, assigned)
            if by_element and self._is_ordered
            else np.zeros(len(rows), np.int64)
        )
        if not steps.any():
            self.cell_update.absorb(delivery, assigned, out)
            self.retention.enforce_counts(delivery, out)
            return
        entry_step = steps[np.searchsorted(rows, assigned.row)]
        entries, by_step = np.argsort(entry_step, kind="stable"), np.argsort(steps, kind="stable")
        entry_bounds = np.concatenate([[0], np.cumsum(np.bincount(entry_step))])
        row_bounds = np.concatenate([[0], np.cumsum(np.bincount(steps))])
        for step in range(len(row_bounds) - 1):
            chosen = rows[by_step[row_bounds[step] : row_bounds[step + 1]]]
            row, start, end = (
                column[entries[entry_bounds[step] : entry_bounds[step + 1]]] for column in assigned
            )
            part = delivery.take(chosen)
            windows = Assigned(np.searchsorted(chosen, row), start, end)
            self.cell_update.absorb(part, windows, out)
            self.retention.enforce_counts(part, out)

    @property
    def _is_ordered(self) -> bool:
        """Whether the order of the rows of a key may matter."""
        spec = self.context.spec
        return (
            self.context.machine.fires_on_elements
            or spec.retention.counts
            or isinstance(spec.window, ByDifference)
            or self.cell_update.merges_late_rows
        )

    def _steps(self, delivery: Delivery, rows: np.ndarray, assigned: Assigned) -> np.ndarray:
        """The step in which each row is taken: rows of a key that may fire go one by one."""
        context, spec = self.context, self.context.spec
        steps = np.zeros(len(rows), np.int64)
        # Which windows by difference a row misses depends on the rows before it.
        by_difference = isinstance(spec.window, ByDifference) and (
            spec.options.drop_by == "window" or bool(spec.retention)
        )
        if context.machine.fires_early or spec.retention.counts or by_difference:
            return _key_ranks(delivery, rows)
        complete = np.flatnonzero(
            assigned.end <= context.watermarks.of_rows(delivery, assigned.row)
        )
        if spec.window.axis is Axis.ORDINAL or not len(complete):
            return steps
        # Few keys have rows in complete windows: a lookup is faster than grouping all rows.
        few = np.unique(delivery.key_hash[assigned.row[complete]])
        key_hash = delivery.key_hash[rows]
        one_by_one = np.flatnonzero(
            few[np.minimum(np.searchsorted(few, key_hash), len(few) - 1)] == key_hash
        )
        steps[one_by_one] = _key_ranks(delivery, rows[one_by_one])
        return steps


def _key_ranks(delivery: Delivery, rows: np.ndarray) -> np.ndarray:
    """The position of each row among the rows of its key.

    A retraction and the row that replaces it share a position, so that no pane shows the state
    between them.
    """
    keys = Groups.by([delivery.key_hash[rows], delivery.key_check[rows]])
    if delivery.weight is None:
        return keys.ranks
    plus = (delivery.weight[rows] > 0)[keys.order].astype(np.int64)
    before = np.cumsum(plus) - plus
    ranks = np.empty(len(rows), np.int64)
    ranks[keys.order] = before - np.repeat(before[keys.offsets[:-1]], keys.counts)
    return ranks
