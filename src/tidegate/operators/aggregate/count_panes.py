"""CountPanes: many panes of one window in one delivery, all taken from grouped prefixes instead of
from one event after the other.

A trigger that fires with every n-th element cuts the rows of a cell into segments whose ends are
known beforehand. Each segment is lifted once, a prefix over the segments of a cell gives the values
of all its panes, and the cell ends up as if its elements had come one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.instants import MAX
from tidegate.kernel.frame import Column, Frame, concat_frames, equal_rows, to_numpy
from tidegate.kernel.groups import Groups, inverse, present
from tidegate.kernel.storage.run_store import Places
from tidegate.kernel.windows.assigners import Assigned
from tidegate.operators.aggregate.cell_update import CellUpdate
from tidegate.operators.aggregate.cell_values import CellValues
from tidegate.operators.aggregate.context import Core
from tidegate.operators.aggregate.firing import Firing
from tidegate.operators.ingest.delivery import Delivery
from tidegate.operators.output import EARLY, LATE


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
    """Whether a pane fires at the end of a segment; only the last segment of a cell may go without.
    """

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
        core: Core,
        firing: Firing,
        contents: CellValues,
        cell_update: CellUpdate,
        rule: tuple[int | None, int | None],
    ) -> None:
        self._core = core
        self._firing = firing
        self._contents = contents
        self._absorber = cell_update
        self._early, self._late = rule

    def take(self, delivery: Delivery, assigned: Assigned) -> Assigned:
        """Take what can be taken at once; what comes back has to be taken row by row."""
        groups, identity, places = self._absorber.look_up(delivery, assigned)
        chosen = self._eligible(identity, places, groups)
        if not chosen.any():
            return assigned
        mine = chosen[groups.ids]
        picked = present(groups.ids[mine], groups.n)
        cells = self._absorber.base(
            identity.take(picked),
            delivery.keys(self._core.spec.input.key, assigned.row[groups.firsts[picked]]),
            places.take(picked),
        )
        owners = Groups(np.searchsorted(picked, groups.ids[mine]), len(picked))
        segments = self._cut(assigned.row[mine], owners, cells)
        partials, failed, _ = self._core.bundle.lift(
            self._core.rows_of(delivery, segments.row), segments.groups
        )
        if failed is not None:
            return assigned
        found = np.flatnonzero(places.found[picked])
        self._core.cells.remove(places.take(picked[found]))
        self._fire(delivery, cells, segments, Frame(partials, segments.groups.n))
        return Assigned(*(column[~mine] for column in assigned))

    def _eligible(self, identity: Frame, places: Places, groups: Groups) -> np.ndarray:
        """Cells that get several rows and whose firings are a matter of counting: open ones, and
        complete ones that have fired on time.
        """
        complete = identity.ints("end") <= self._core.progress.watermark
        eligible = groups.counts > 1
        eligible &= np.where(complete, self._late is not None, self._early is not None)
        found = np.flatnonzero(places.found)
        eligible[~places.found] &= ~complete[~places.found]
        if len(found):
            old = self._core.cells.take(places.take(found))
            due = old.ints("clock_due") <= self._core.progress.now
            eligible[found] &= ~old.ints("closed") & (~complete[found] | old.ints("done")) & ~due
        return eligible

    def _cut(self, row: np.ndarray, owners: Groups, cells: Frame) -> _Segments:
        complete = cells.ints("end") <= self._core.progress.watermark
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

    def _fire(self, delivery: Delivery, cells: Frame, segments: _Segments, lifted: Frame) -> None:
        contents = self._contents_of(cells, segments, lifted)
        added = segments.groups.counts
        total = np.cumsum(added)
        before = (total - added)[segments.is_first][np.cumsum(segments.is_first) - 1]
        n = cells.ints("n")[segments.cell] + total - before
        holds = self._holds(delivery, cells, segments)
        panes = (
            cells.take(segments.cell)
            .with_mapping({**contents.columns, **holds, "n": n})
            .where(segments.fires)
        )
        position = segments.groups.max(delivery.seq[segments.row])
        last = self._emit(panes, segments.cell[segments.fires], position[segments.fires], cells)
        self._put_back(delivery, last, segments, contents, n, holds)

    def _contents_of(self, cells: Frame, segments: _Segments, lifted: Frame) -> Frame:
        """What a cell holds after each of its segments: all so far, or in discarding mode the
        segment and what was pending before it.
        """
        core, m = self._core, len(cells)
        both = concat_frames([cells.select(core.bundle.partial_columns), lifted])
        cell = np.concatenate([np.arange(m), segments.cell])
        if core.spec.mode == "discarding":
            # Each segment is a group of its own, but for the first of a cell, which takes in what
            # the cell held.
            group = np.concatenate(
                [np.flatnonzero(segments.is_first), np.arange(len(segments.cell))]
            )
            alone = Frame(
                core.bundle.combine(both, Groups(group, len(segments.cell))), len(segments.cell)
            )
            # What was not known of a window is not known of any of its panes.
            return alone.with_mapping(
                cells.select(core.bundle.known_columns).take(segments.cell).columns
            )
        order = np.argsort(cell, kind="stable")
        prefix = Frame(core.bundle.prefix(both.take(order), Groups(cell[order], m)), len(order))
        return prefix.take(inverse(order)[m:])

    def _holds(self, delivery: Delivery, cells: Frame, segments: _Segments) -> dict[str, Column]:
        """What came on time in each segment, and its earliest or latest; the first segment of a
        cell goes on from what was pending.
        """
        before = cells.take(segments.cell)
        goes_on = segments.is_first
        before = before.with_columns(
            ontime=before.ints("ontime") & goes_on, held=before.ints("held") & goes_on
        )
        return self._absorber.holds(delivery, segments.row, segments.groups, before)

    def _emit(self, panes: Frame, cell: np.ndarray, position: np.ndarray, cells: Frame) -> Frame:
        """All panes, each preceded by the retraction of the one before it; the answer is the cells
        as the last panes leave them.
        """
        if not len(panes):
            return cells
        core = self._core
        values = self._contents.values(panes)
        first = np.concatenate([[True], cell[1:] != cell[:-1]])
        given = np.ones(len(panes), bool)
        if core.spec.options.fire_only_updated:
            given = ~_same_as_before(panes, values, first)
        number = np.cumsum(given) - given
        nth = number - np.maximum.accumulate(np.where(first, number, 0))
        timing = np.where(panes.ints("end") <= core.progress.watermark, LATE, EARLY).astype(np.int8)
        panes = panes.with_columns(
            index=panes.ints("index") + nth, ns=panes.ints("ns") + np.where(timing == EARLY, 0, nth)
        )
        latest = _latest_given(given, first)
        before = np.concatenate([[-1], latest[:-1]])
        before[first] = -1
        self._firing.put_out(
            panes, self._standing(panes, values, before, timing), values, timing, position, given
        )
        end = np.flatnonzero(np.concatenate([first[1:], [True]]))
        left = self._standing(panes.take(end), values, latest[end], timing[end], panes, timing)
        return self._after(cells, left, cell[end], panes.take(end), given[end], timing[end])

    def _standing(
        self,
        panes: Frame,
        values: dict[str, pa.Array],
        before: np.ndarray,
        timing: np.ndarray,
        given: Frame | None = None,
        given_timing: np.ndarray | None = None,
    ) -> Frame:
        """What stands beside each pane: the given pane at `before`, or what the cell had put out
        where that is -1.
        """
        source = panes if given is None else given
        times = timing if given_timing is None else given_timing
        ours, at = before >= 0, np.maximum(before, 0)
        index = source.ints("index")[at]
        columns: dict[str, Column] = {
            "emitted": panes.ints("emitted") | ours,
            "last_pane": np.where(ours, index, panes.ints("last_pane")),
            "last_ns": np.where(
                ours, np.where(times[at] == EARLY, -1, source.ints("ns")[at]), panes.ints("last_ns")
            ),
            "last_timing": np.where(ours, times[at], panes.ints("last_timing")).astype(np.int8),
            "last_time": np.where(
                ours, self._firing.output_time(source)[at], panes.ints("last_time")
            ),
        }
        if self._core.keeps_fired:
            for name, column in values.items():
                both = concat_frames(
                    [
                        Frame({"v": panes[f"v.{name}"]}, len(panes)),
                        Frame({"v": column}, len(column)),
                    ]
                )
                columns[f"v.{name}"] = both.take(
                    np.where(ours, len(panes) + at, np.arange(len(panes)))
                )["v"]
        return panes.with_mapping(columns)

    def _after(
        self,
        cells: Frame,
        left: Frame,
        cell: np.ndarray,
        last: Frame,
        given: np.ndarray,
        timing: np.ndarray,
    ) -> Frame:
        """All cells; those that fired with what their panes leave behind."""
        kept = [name for name in left.names if name.startswith(("last_", "v."))]
        fired = cells.take(cell).with_mapping(left.select([*kept, "emitted"]).columns)
        fired = fired.with_columns(
            index=last.ints("index") + given,
            ns=last.ints("ns") + np.where(timing == EARLY, 0, given),
            pending=np.zeros(len(cell), np.int64),
            fired_seq=fired.ints("newest_seq"),
        )
        pick = np.arange(len(cells))
        pick[cell] = len(cells) + np.arange(len(cell))
        return concat_frames([cells, fired]).take(pick)

    def _put_back(
        self,
        delivery: Delivery,
        cells: Frame,
        segments: _Segments,
        contents: Frame,
        n: np.ndarray,
        holds: dict[str, Column],
    ) -> None:
        """The cells as they are after all their segments; what came after the last pane is
        pending.
        """
        core = self._core
        end = np.flatnonzero(segments.is_last)
        fired_at_end = segments.fires[end]
        fired = np.bincount(segments.cell, segments.fires, minlength=len(cells)) > 0
        state = core.trigger_state(cells)
        context = core.context(cells, cells.ints("pending"), np.full(len(cells), MAX))
        core.machine.on_elements(state, np.ones(len(cells), np.int64), context)
        core.machine.fire(state, fired, context)
        rest = np.where(fired_at_end, 0, segments.groups.counts[end])
        # A cell that did not fire has counted one element already.
        more = np.where(fired, rest, rest - 1)
        core.machine.on_elements(
            state,
            more,
            core.context(cells, np.zeros(len(cells), np.int64), np.full(len(cells), MAX)),
        )
        pending = np.where(fired, rest, cells.ints("pending") + rest)
        columns: dict[str, Column] = {"n": n[end], "pending": pending, **contents.take(end).columns}
        columns.update(Frame(holds, len(segments.cell)).take(end).columns)
        for name in ("ontime", "held"):
            columns[name] = to_numpy(columns[name]) & ~fired_at_end
        if core.messages is not None:
            columns["newest_seq"] = np.maximum(
                cells.ints("newest_seq"), segments.groups.max(delivery.seq[segments.row])[end]
            )
        cells = cells.with_mapping(columns)
        if core.spec.mode == "discarding":
            cells = cells.with_mapping(self._contents.emptied(cells, fired_at_end))
        core.cells.put(core.due(cells, state))


def _latest_given(given: np.ndarray, first: np.ndarray) -> np.ndarray:
    """For each pane the last given one of its cell up to it, -1 where there is none."""
    latest = np.maximum.accumulate(np.where(given, np.arange(len(given)), -1))
    start = np.maximum.accumulate(np.where(first, np.arange(len(first)), 0))
    return np.where(latest < start, -1, latest)


def _same_as_before(panes: Frame, values: dict[str, pa.Array], first: np.ndarray) -> np.ndarray:
    """Which panes hold what the one before them holds."""
    before = np.maximum(np.arange(len(panes)) - 1, 0)
    same = np.where(first, panes.ints("emitted"), True)
    for name, column in values.items():
        again = equal_rows(column, column.take(pa.array(before)))
        stood = equal_rows(column, panes[f"v.{name}"])
        same &= np.where(first, stood, again)
    return same
