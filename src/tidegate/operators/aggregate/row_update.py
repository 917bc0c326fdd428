"""Row update: the rows of a delivery into their windows.

A row gets its position on the axis of the window, and its windows. Rows without a window go to
`late`. Rows of windows that no trigger looks at yet go to slices, all others to cells, which take
them from firing to firing. Where retention by count may evict a window, they are taken from one
such point to the next, and rows that open windows by difference one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidegate.instants import MAX
from tidegate.kernel.frame import Frame
from tidegate.kernel.groups import Groups, present
from tidegate.kernel.windows.assigners import Aligned, Assigned, SessionAssigner
from tidegate.operators.aggregate.cell_update import CellUpdate
from tidegate.operators.aggregate.collector import Collector
from tidegate.operators.aggregate.context import OperatorContext
from tidegate.operators.aggregate.element_steps import Pace, key_ranks
from tidegate.operators.aggregate.ordinals import Ordinals
from tidegate.operators.aggregate.output_time import held_by
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

    def place_partials(self, piece: Frame) -> Frame:
        """Pre-aggregated rows with their positions; those of windows on the clock have none yet."""
        assigner = self.cell_update.assigner
        if self.context.spec.window.axis is not Axis.CLOCK or not isinstance(assigner, Aligned):
            return piece
        now = np.full(len(piece), self.context.progress.now)
        start, end = assigner.slice_of(now)
        each = Groups(np.arange(len(piece)), len(piece))
        held = held_by(self.context.spec.options.timestamp, now, np.ones(len(piece), bool), each)
        return piece.with_mapping({**held, "start": start, "end": end})

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
        """Take rows into cells, block by block, and each block from firing to firing."""
        by_element = self.context.spec.options.granularity == "element"
        turns = self._turns(delivery, assigned) if by_element else None
        rest = assigned
        while len(rest.row):
            now = self._block(delivery, rest) if turns is None else turns == turns.min()
            block = Assigned(*(column[now] for column in rest))
            rest = Assigned(*(column[~now] for column in rest))
            turns = None if turns is None else turns[~now]
            self._take_block(delivery, block, out, by_element=by_element)

    def _take_block(
        self, delivery: Delivery, block: Assigned, out: Collector, *, by_element: bool
    ) -> None:
        rows, left = present(block.row, len(delivery)), block
        if len(rows) < len(delivery):
            delivery = delivery.take(rows)
            left = Assigned(np.searchsorted(rows, block.row), block.start, block.end)
        pace = Pace.of(delivery, by_element=by_element)
        while len(left.row):
            left = self.cell_update.absorb(delivery, left, out, pace)
        self.cell_update.report_closed(delivery, out, pace)
        self.retention.enforce_counts(delivery, out)

    def _turns(self, delivery: Delivery, assigned: Assigned) -> np.ndarray | None:
        """For windows by difference, the turn of each entry: every row opens windows of its own.

        None where all rows are taken at once.
        """
        context, spec = self.context, self.context.spec
        if not isinstance(spec.window, ByDifference):
            return None
        turns = key_ranks(delivery, np.arange(len(delivery)))[assigned.row]
        if context.machine.fires_early or spec.retention or spec.options.drop_by == "window":
            return turns
        complete = assigned.end <= context.watermarks.of_rows(delivery, assigned.row)
        few = np.isin(delivery.key_hash[assigned.row], delivery.key_hash[assigned.row[complete]])
        return np.where(few, turns, 0)

    def _block(self, delivery: Delivery, rest: Assigned) -> np.ndarray:
        """The entries before which and among which retention by count evicts no window.

        A key takes its rows before one that opens a window, or that alone, and up to one that
        exceeds the number of messages.
        """
        retention = self.context.spec.retention
        if not retention.counts or self.context.spec.options.granularity != "element":
            return np.ones(len(rest.row), bool)
        rows = np.arange(len(delivery))
        turn = delivery.seq if delivery.weight is None else key_ranks(delivery, rows)
        keys = Groups.by([delivery.key_hash[rest.row], delivery.key_check[rest.row]])
        gone = self.retention.beyond(delivery, rest)
        counts = np.ones(len(rest.row), bool) if gone is None else ~gone
        turn = turn[rest.row]
        opens = np.zeros(len(rest.row), bool)
        opens[self.cell_update.opening(delivery, rest)] = True
        first, opening = keys.min(turn), _least(turn, opens & counts, keys)
        # A window that opens evicts another one, which has to have the rows before.
        now = (turn < opening[keys.ids]) | (turn == first[keys.ids])
        if retention.messages is not None:
            over = self.retention.overflowing(delivery, rest, keys, counts)
            now &= turn <= _least(turn, over & counts, keys)[keys.ids]
        return np.asarray(now)


def _least(turn: np.ndarray, mask: np.ndarray, keys: Groups) -> np.ndarray:
    """The least turn of each key with an entry in the mask; MAX without one."""
    least = np.full(keys.n, MAX)
    np.minimum.at(least, keys.ids[mask], turn[mask])
    return least
