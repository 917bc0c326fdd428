"""Element steps: up to which row the cells of a delivery can be taken before one of them fires."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tidegate.instants import MAX
from tidegate.kernel.frame import Frame
from tidegate.kernel.groups import Groups, inverse, present
from tidegate.kernel.triggers import Elements, Schedule, TriggerContext, schedule
from tidegate.kernel.windows.assigners import Assigned
from tidegate.operators.aggregate.context import OperatorContext
from tidegate.operators.ingest.delivery import Delivery
from tidegate.spec.windows import Axis


@dataclass(frozen=True, slots=True, eq=False)
class CellRows:
    """Rows that go to cells: the rows, the cell of each, and the cells before the update."""

    row: np.ndarray
    groups: Groups
    cells: Frame


def narrowed(joining: CellRows, keep: np.ndarray) -> CellRows:
    """The same with fewer rows; cells that lose all of theirs are left out."""
    if keep.all():
        return joining
    ids = joining.groups.ids[keep]
    used = present(ids, joining.groups.n)
    return CellRows(
        joining.row[keep],
        Groups(inverse(used, joining.groups.n)[ids], len(used)),
        joining.cells.take(used),
    )


@dataclass(frozen=True, eq=False)
class Pace:
    """How rows are counted: one by one, or all rows of a delivery together."""

    by_element: bool
    """Whether triggers are evaluated after every element."""
    unit: np.ndarray | None
    """Where rows have weights: the number of each row's element among those of its key. A
    retraction and the row that replaces it are one, so that no pane shows the state between them.
    """
    weight: np.ndarray | None
    closed: list[Assigned] = field(default_factory=list)
    """The windows that rows have missed because a firing had closed them."""

    @classmethod
    def of(cls, delivery: Delivery, *, by_element: bool) -> Pace:
        unit = None if delivery.weight is None else key_ranks(delivery, np.arange(len(delivery)))
        return cls(by_element, unit, delivery.weight)

    def counts(self, row: np.ndarray, groups: Groups) -> np.ndarray:
        """The number of elements of each group of rows."""
        if self.unit is None or self.weight is None:
            return groups.counts
        if not self.by_element:
            return np.maximum(groups.sum((self.weight[row] > 0).astype(np.int64)), 1)
        order = np.argsort(groups.ids, kind="stable")
        cell, unit = groups.ids[order], self.unit[row[order]]
        return np.bincount(cell[_starts(cell, unit)], minlength=groups.n).astype(np.int64)


@dataclass(frozen=True, eq=False)
class ElementSteps:
    """Finds the steps of deliveries."""

    context: OperatorContext

    def may_fire(self, delivery: Delivery, cells: Frame) -> bool:
        """Whether a cell may change, other than by its rows, before the last of these."""
        machine, window = self.context.machine, self.context.spec.window
        if machine.fires_early or delivery.weight is not None:
            return True
        if window.axis is Axis.ORDINAL or not machine.fires_on_elements:
            return False
        watermark = self.context.watermarks.of_cells(cells)
        return bool((cells.ints("end") <= watermark).any()) and len(delivery) > 1

    def steps(self, delivery: Delivery, joining: CellRows, pace: Pace) -> Steps:
        """The elements of cells, and how many of them may be taken at once."""
        context, cells, order = self.context, joining.cells, joining.groups.order
        row, cell = joining.row[order], joining.groups.ids[order]
        position, offsets = delivery.position[row], joining.groups.offsets
        nth = joining.groups.ranks
        if pace.unit is not None:
            starts = _starts(cell, pace.unit[row])
            firsts = np.flatnonzero(starts)
            offsets = np.searchsorted(cell[firsts], np.arange(len(cells) + 1))
            position = np.minimum.reduceat(position, firsts)
            nth = np.empty(len(row), np.int64)
            nth[order] = np.cumsum(starts) - 1 - offsets[cell]
        elements = Elements(offsets, position)
        is_ordinal = context.spec.window.axis is Axis.ORDINAL
        if is_ordinal:
            watermark = elements.times[offsets[:-1]] + 1
        else:
            watermark = np.broadcast_to(context.watermarks.of_cells(cells), len(cells))
        most = self._most(cells, elements, watermark)
        if delivery.weight is not None:
            total = np.cumsum(delivery.weight[row])
            most = np.minimum(most, _until_empty(cells, cell, total, nth[order], offsets))
        plain = context.messages is None and delivery.weight is None and not is_ordinal
        return Steps(context, cells, joining, elements, watermark, most, nth, plain & (most == MAX))

    def _most(self, cells: Frame, elements: Elements, watermark: np.ndarray) -> np.ndarray:
        """The most elements that may be taken at once, whatever the trigger does."""
        context = self.context
        most = np.full(len(cells), MAX)
        # A cell that has expired fires with each of its elements, and goes.
        most[context.expired(cells.ints("expiry"), watermark)] = 1
        if context.spec.window.axis is Axis.ORDINAL:
            # The last element of a window completes it.
            end = np.repeat(cells.ints("end"), elements.counts)
            before = elements.times + 1 < end
            number = np.repeat(np.arange(len(cells)), elements.counts)
            most = np.maximum(np.bincount(number, before, len(cells)).astype(np.int64), 1)
            if context.machine.reads_times:
                most[:] = 1
        return most


@dataclass(frozen=True, eq=False)
class Steps:
    """The elements of some cells."""

    context: OperatorContext
    cells: Frame
    joining: CellRows
    elements: Elements
    watermark: np.ndarray
    most: np.ndarray
    nth: np.ndarray
    """By entry, the number of its element among those of its cell."""
    is_plain: np.ndarray
    """Which cells may fire several times at once."""

    @property
    def counts(self) -> np.ndarray:
        return self.elements.counts

    def schedule(self, *, once: bool = False) -> Schedule:
        """The schedule of the triggers."""
        cells = self.cells
        trigger_context = TriggerContext(
            cells.ints("end"), self.watermark, self.context.progress.now, cells.ints("pending")
        )
        state = {name: cells.ints(name) for name in self.context.machine.columns}
        return schedule(
            self.context.machine,
            state,
            trigger_context,
            self.elements,
            most=self.most,
            once=once,
        )

    def within(self, taken: np.ndarray) -> np.ndarray:
        """The entries of the first elements of each cell."""
        return self.nth < taken[self.joining.groups.ids]

    def rows(self, chosen: np.ndarray, taken: np.ndarray) -> np.ndarray:
        """The rows of the first elements of some cells, by cell and then by arrival."""
        limit = np.zeros(len(self.cells), np.int64)
        limit[chosen] = taken
        order = self.joining.groups.order
        return self.joining.row[order][self.within(limit)[order]]

    def before_firings_of_keys(
        self, delivery: Delivery, taken: np.ndarray, pace: Pace
    ) -> np.ndarray:
        """The entries of `taken` that come before all others of their key.

        Messages are stored for all windows at once, so that windows of a key advance together.
        """
        row = self.joining.row
        turn = (delivery.seq if pace.unit is None else pace.unit)[row]
        keys = Groups.by([delivery.key_hash[row], delivery.key_check[row]])
        stop = np.full(keys.n, MAX)
        np.minimum.at(stop, keys.ids[~taken], turn[~taken])
        return taken & (turn < stop[keys.ids])


def key_ranks(delivery: Delivery, rows: np.ndarray) -> np.ndarray:
    """The position of each row among the rows of its key; a retraction has that of the row that
    replaces it.
    """
    keys = Groups.by([delivery.key_hash[rows], delivery.key_check[rows]])
    if delivery.weight is None:
        return keys.ranks
    plus = (delivery.weight[rows] > 0)[keys.order].astype(np.int64)
    before = np.cumsum(plus) - plus
    ranks = np.empty(len(rows), np.int64)
    ranks[keys.order] = before - np.repeat(before[keys.offsets[:-1]], keys.counts)
    return ranks


def _starts(cell: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Where another element begins."""
    starts = np.ones(len(cell), bool)
    starts[1:] = (cell[1:] != cell[:-1]) | (unit[1:] != unit[:-1])
    return starts


def _until_empty(
    cells: Frame, cell: np.ndarray, total: np.ndarray, nth: np.ndarray, offsets: np.ndarray
) -> np.ndarray:
    """The number of elements with which each cell first loses all its rows; MAX if it does not."""
    ends = np.append(np.flatnonzero(np.diff(nth) | np.diff(cell)), len(nth) - 1)
    at_end, of = total[ends], cell[ends]
    begin = np.concatenate([[0], at_end])[offsets[:-1]]
    empty = np.flatnonzero(cells.ints("row_count")[of] + at_end - begin[of] <= 0)
    most = np.full(len(cells), MAX)
    np.minimum.at(most, of[empty], nth[ends[empty]] + 1)
    return most
