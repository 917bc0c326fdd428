"""Firing turns cells whose trigger is ready, or that expire, into panes.

Panes are numbered in one place, `Firing.numbered`: it takes the panes of cells in order, several of
a cell if need be. `Firing.show` emits them, each after the retraction of the pane that it replaces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.instants import MAX
from tidegate.kernel.frame import (
    Column,
    Frame,
    constant,
    equal_rows,
    plain,
    squeezed,
    squeezed_all,
)
from tidegate.kernel.keys import KEY
from tidegate.operators.aggregate.cell_values import CellValues
from tidegate.operators.aggregate.collector import Collector
from tidegate.operators.aggregate.context import OperatorContext
from tidegate.operators.aggregate.output_time import held_times, output_times
from tidegate.operators.output import EARLY, LATE, ON_TIME, texts
from tidegate.spec.triggers import contains_refire
from tidegate.spec.windows import Axis


@dataclass(frozen=True, slots=True, eq=False)
class Numbered:
    """Panes with their numbers and values."""

    panes: Frame
    """The cells when they fire."""
    replaced: Frame
    """The same before the pane: with the numbers and values of the pane that it replaces."""
    values: Mapping[str, pa.Array]
    after: Frame
    """The columns in which the cell of each pane remembers it."""
    last: np.ndarray
    timing: np.ndarray
    position: np.ndarray
    emitted: np.ndarray
    """Which of the asked panes are emitted."""


SILENT = ("expiry", "pending", "fired_on_time", "closed")
"""The columns that tell which cells expire without a pane."""


class Firing:
    """Fires cells of one operator."""

    def __init__(self, context: OperatorContext, cell_values: CellValues) -> None:
        self._context = context
        self._cell_values = cell_values
        self._refires = contains_refire(context.spec.firing)
        self._static = context.spec.window.create == "static"

    @property
    def can_expire_silently(self) -> bool:
        """Whether a cell with nothing new emits nothing, and leaves nothing, when it expires."""
        context, options = self._context, self._context.spec.options
        return not (
            self._refires
            or self._static
            or context.retains
            or context.takes_retractions
            or context.messages is not None
            or context.window_offsets is not None
            or context.watermarks.keys is not None
            or "always" in (options.closing, options.on_time)
        )

    @staticmethod
    def has_pane_left(cells: Frame) -> np.ndarray:
        """Which cells, with the columns `SILENT`, may emit a pane when they expire."""
        fresh = (cells.ints("pending") != 0) | ~cells.ints("fired_on_time")
        return np.asarray(fresh & ~cells.ints("closed"))

    def settle(
        self,
        cells: Frame,
        state: dict[str, np.ndarray],
        out: Collector,
        position: np.ndarray | None = None,
        *,
        finishing: bool = False,
    ) -> Frame:
        """Fire the cells that are ready, close those that expire, and return those that live on.

        Panes come in the order of the cells, after those that elements of the delivery fire; with
        `position` in that order.
        """
        context = self._context
        if position is None:
            # After all panes that single elements of the same delivery fire.
            position = np.full(len(cells), context.progress.seq)
        empty = self._emptied(cells)
        if empty is not None:
            self._withdraw_empty(cells.where(empty), position[empty], out)
            cells, position = cells.where(~empty), position[~empty]
            state = {name: column[~empty] for name, column in state.items()}
            if not len(cells):
                return context.due(cells, state)
        open_ = ~cells.ints("closed")
        trigger_context = context.trigger_context(cells, cells.ints("pending"))
        expiring = (
            np.full(len(cells), True)
            if finishing
            else context.expired(cells.ints("expiry"), context.watermarks.of_cells(cells))
        )
        ready = context.machine.ready(state, trigger_context) & open_
        again = (
            context.machine.refires(state, trigger_context)
            if self._refires
            else np.zeros(len(cells), bool)
        )
        if ready.any():
            context.machine.fire(state, ready, trigger_context)
        finished = context.machine.finished(state)
        complete = self._complete(cells) | context.machine.full(state, len(cells))
        wanted = self._wanted(cells, ready, again, complete)
        if context.spec.options.closing == "always":
            wanted |= ready & expiring
        cells, emitted = self._fire(
            cells, ready, wanted, finished | expiring, position, out, complete
        )
        cells = self._close(cells, expiring & open_ & ~emitted, position, out)
        if context.retains and not finishing:
            context.progress.counters["windows_closed"] += int((expiring & open_).sum())
            finished, expiring = finished | expiring, np.zeros(len(cells), bool)
        if finished.any():
            cells = self.shut(cells, finished)
        if expiring.any():
            keep = ~expiring
            if context.window_offsets is not None and context.spec.window.axis is Axis.ORDINAL:
                context.window_offsets.forget(cells.where(expiring))
            self._cell_values.expired(cells.where(expiring))
            context.progress.counters["windows_closed"] += int(expiring.sum())
            cells, state = cells.where(keep), {name: column[keep] for name, column in state.items()}
        return context.due(cells, state)

    def numbered(
        self,
        panes: Frame,
        last: np.ndarray,
        position: np.ndarray,
        out: Collector,
        cell: np.ndarray | None = None,
        complete: np.ndarray | None = None,
    ) -> Numbered:
        """Number panes, and evaluate their aggregates.

        A row of `panes` is a cell at the moment when the pane fires, with the pane numbers that it
        had before this call. `cell` identifies the cell of each row; panes of a cell are
        consecutive and in order. Without `cell` every row is a cell of its own. `complete` tells
        which windows are complete; default: by the watermark. With `fire_only_updated`, a pane that
        equals the one before it is left out.
        """
        values = self._cell_values.values(panes, out)
        emitted = np.ones(len(panes), bool)
        complete = self._complete(panes) if complete is None else complete
        if self._context.spec.options.fire_only_updated:
            emitted = ~_unchanged(panes, values, cell)
            values = {name: column.filter(pa.array(emitted)) for name, column in values.items()}
            last, position, complete = last[emitted], position[emitted], complete[emitted]
            panes, cell = panes.where(emitted), None if cell is None else cell[emitted]
        timing = self._timing(panes, complete)
        if cell is not None:
            number = np.arange(len(cell))
            first = np.maximum.accumulate(np.where(_starts(cell), number, 0))
            counted = np.cumsum(timing != EARLY)
            counted -= timing != EARLY
            panes = panes.with_columns(
                pane_index=panes.ints("pane_index") + number - first,
                nonspeculative_index=panes.ints("nonspeculative_index") + counted - counted[first],
            )
        after = self._remembered(panes, values, timing)
        replaced = panes
        if cell is not None:
            later = np.flatnonzero(~_starts(cell))
            replaced = panes.replaced(later, after.take(later - 1))
        return Numbered(panes, replaced, values, after, last, timing, position, emitted)

    def show(self, numbered: Numbered, out: Collector) -> None:
        """Emit numbered panes, each after the retraction of the pane that it replaces."""
        panes, after = numbered.panes, numbered.after
        if self._context.spec.mode == "retracting":
            self._retract(numbered.replaced, numbered.position, out)
        if len(panes):
            self._count(numbered.timing)
            index = panes.ints("pane_index")
            out.emit(
                self._frame(
                    panes,
                    numbered.values,
                    numbered.position,
                    op=1,
                    timing=numbered.timing,
                    pane=index,
                    nonspeculative_index=after.ints("last_nonspeculative_index"),
                    first=index == panes.ints("first_pane_index"),
                    last=numbered.last,
                    time=after.ints("last_output_time"),
                )
            )

    def _remembered(
        self, panes: Frame, values: Mapping[str, pa.Array], timing: np.ndarray
    ) -> Frame:
        """What a cell remembers of each pane: its numbers and values, and the next numbers."""
        index, ns, n = panes.ints("pane_index"), panes.ints("nonspeculative_index"), len(panes)
        columns: dict[str, Column] = {
            "emitted": constant(np.True_, n),
            "pane_index": index + 1,
            "nonspeculative_index": ns + (timing != EARLY),
            "last_pane_index": index,
            "last_nonspeculative_index": np.where(timing == EARLY, -1, ns),
            "last_timing": timing,
            "last_output_time": self.output_time(panes),
        }
        if self._context.keeps_fired_values:
            columns.update({f"v.{name}": plain(column) for name, column in values.items()})
        return Frame(columns, n)

    def push_out(self, cells: Frame, position: int, out: Collector) -> None:
        """Fire cells that retention evicts, as their last pane.

        An evicted window is complete, whatever the watermark is.
        """
        held = ~cells.ints("closed")
        if self._context.spec.options.closing != "always":
            held &= cells.ints("pending") > 0
        positions = np.full(len(cells), position, np.int64)
        self._fire(cells, held, held, held, positions, out, np.ones(len(cells), bool))

    def withdraw(self, cells: Frame, position: np.ndarray, out: Collector) -> None:
        """Retract the last panes of windows that disappear.

        In discarding mode a pane holds what came since the last one, so that nothing is replaced.
        """
        if self._context.spec.mode != "discarding":
            self._retract(cells, position, out)
        if self._context.withdrawn is not None:
            self._context.withdrawn.note(cells, cells.ints("pane_index") > 0)

    def _emptied(self, cells: Frame) -> np.ndarray | None:
        """Which cells have lost all their rows to retractions; None if none has."""
        if not self._context.takes_retractions or self._static:
            return None
        empty = (cells.ints("row_count") <= 0) & ~cells.ints("closed")
        return empty if empty.any() else None

    def _withdraw_empty(self, cells: Frame, position: np.ndarray, out: Collector) -> None:
        """Withdraw windows without rows; in discarding mode a last pane takes back their rows."""
        if self._context.spec.mode == "discarding":
            shown = cells.ints("emitted")
            complete = self._complete(cells)
            cells, _ = self._fire(cells, shown, shown, shown, position, out, complete)
        self.withdraw(cells, position, out)
        self._context.progress.counters["windows_closed"] += len(cells)
        surplus = cells.where(cells.ints("row_count") < 0)
        out.late_windows(
            surplus,
            "nothing_to_retract",
            texts("more rows were retracted than the window had", len(surplus)),
        )

    def _retract(self, cells: Frame, position: np.ndarray, out: Collector) -> None:
        """Retract the panes that cells have emitted last."""
        rows = np.flatnonzero(cells.ints("emitted"))
        if not len(rows):
            return
        cells = cells.select(
            [
                *KEY,
                *self._context.key_columns,
                *("start", "end", "last_timing", "last_pane_index", "first_pane_index"),
                *("last_nonspeculative_index", "last_output_time"),
                *(f"v.{name}" for name in self._context.aggregates.result_types),
                *(["ordinal"] if "ordinal" in cells else []),
            ]
        ).take(rows)
        self._context.progress.counters["retractions"] += len(cells)
        out.emit(
            self._frame(
                cells,
                {name: cells[f"v.{name}"] for name in self._context.aggregates.result_types},
                position[rows],
                op=-1,
                timing=cells.ints("last_timing"),
                pane=cells.ints("last_pane_index"),
                nonspeculative_index=cells.ints("last_nonspeculative_index"),
                first=cells.ints("last_pane_index") == cells.ints("first_pane_index"),
                last=np.zeros(len(cells), bool),
                time=cells.ints("last_output_time"),
            )
        )

    def owed(self, cells: Frame) -> np.ndarray:
        """The hold of the pending pane; late rows are due when the window expires."""
        last = cells.ints("expiry")
        return np.where(
            cells.ints("has_hold"),
            held_times(cells, self._context.spec.options.timestamp),
            np.where(last == MAX, MAX, last - 1),
        )

    def awaits_completion(self) -> bool:
        """Whether a window that has emitted all its rows emits a pane again when it completes."""
        context = self._context
        cells = context.cells.all()
        if cells is None or context.spec.options.on_time == "if_updated":
            return False
        complete = self._complete(cells)
        has_content = (cells.ints("row_count") > 0) & (context.spec.mode != "discarding")
        content = has_content | (context.spec.options.on_time == "always")
        cells = cells.where(content & ~complete & ~cells.ints("closed"))
        if not len(cells):
            return False
        due = context.machine.watermark_due(
            context.trigger_state(cells), context.trigger_context(cells, cells.ints("pending"))
        )
        return bool((due <= cells.ints("end")).any())

    def _wanted(
        self, cells: Frame, firing: np.ndarray, again: np.ndarray, complete: np.ndarray
    ) -> np.ndarray:
        """Which firings emit a pane.

        Empty firings do so by option only, and repeated ones where an interval refires (`again`).
        """
        context = self._context
        fresh = cells.ints("pending") > 0
        content = fresh if context.spec.mode == "discarding" else cells.ints("row_count") > 0
        completing = complete & ~cells.ints("fired_on_time")
        rule = {"always": np.ones(len(cells), bool), "if_nonempty": content, "if_updated": fresh}[
            context.spec.options.on_time
        ]
        if self._static:
            rule = np.ones(len(cells), bool)
        return firing & np.where(completing, rule, fresh | (again & content))

    def _close(
        self, cells: Frame, closing: np.ndarray, position: np.ndarray, out: Collector
    ) -> Frame:
        """Fire the last pane of windows that expire: the rest, or an empty one by the options."""
        context = self._context
        if not closing.any():
            return cells
        fresh = closing & (cells.ints("pending") > 0)
        if context.spec.options.closing == "never":
            unfired = cells.take(np.flatnonzero(fresh))
            context.progress.counters["unfired"] += (
                int(unfired.ints("pending").sum()) if len(unfired) else 0
            )
            out.late_windows(
                unfired,
                "unfired",
                texts("the window expired before its trigger fired", len(unfired)),
            )
            return cells
        wanted = closing if context.spec.options.closing == "always" else fresh
        if context.spec.options.on_time == "always":
            # The window completes and expires in one step, so its trigger has not fired on time.
            on_time = self._timing(cells, self._complete(cells)) == ON_TIME
            wanted = wanted | (closing & on_time & cells.ints("emitted"))
        return self._fire(cells, wanted, wanted, wanted, position, out, self._complete(cells))[0]

    def shut(self, cells: Frame, finished: np.ndarray) -> Frame:
        """Close windows with a finished trigger: further rows are late.

        With retention the content stays readable, otherwise a tombstone stays.
        """
        self._cell_values.closed(cells.where(finished & ~cells.ints("closed")))
        cells = cells.with_columns(
            closed=cells.ints("closed") | finished,
            pending=np.where(finished, 0, cells.ints("pending")),
        )
        if self._context.retains:
            return cells
        return cells.with_columns(row_count=np.where(finished, 0, cells.ints("row_count")))

    def _complete(self, cells: Frame) -> np.ndarray:
        return np.asarray(cells.ints("end") <= self._context.watermarks.of_cells(cells))

    def _timing(self, cells: Frame, complete: np.ndarray) -> np.ndarray:
        behind = (cells.ints("end") <= self._context.watermarks.before_call(cells)) & ~cells.ints(
            "has_on_time"
        )
        return np.where(
            ~complete, EARLY, np.where(cells.ints("fired_on_time") | behind, LATE, ON_TIME)
        ).astype(np.int8)

    def _fire(
        self,
        cells: Frame,
        firing: np.ndarray,
        wanted: np.ndarray,
        last: np.ndarray,
        position: np.ndarray,
        out: Collector,
        complete: np.ndarray,
    ) -> tuple[Frame, np.ndarray]:
        """Emit a pane for each wanted cell, and reset what is new in all cells that fire.

        Returns the cells, and which of them emitted a pane.
        """
        emitted = np.zeros(len(cells), bool)
        if not firing.any():
            return cells, emitted
        rows = np.flatnonzero(wanted)
        if len(rows):
            panes = self.numbered(
                cells.where(wanted), last[rows], position[rows], out, complete=complete[rows]
            )
            self.show(panes, out)
            rows = rows[panes.emitted]
            emitted[rows] = True
            changed = cells.select(panes.after.names).replaced(rows, panes.after)
            cells = cells.with_mapping(squeezed_all(changed.columns))
        cells = cells.with_mapping(self._reset(cells, firing, complete))
        if self._context.spec.mode == "discarding":
            cells = cells.with_mapping(self._cell_values.emptied(cells, firing))
        return self._cell_values.after(cells, emitted), emitted

    @staticmethod
    def _reset(cells: Frame, firing: np.ndarray, complete: np.ndarray) -> dict[str, Column]:
        """The columns of what is new since the last firing, after this one."""
        if firing.all():
            nothing, no = constant(np.int64(0), len(cells)), constant(np.False_, len(cells))
            before = cells.ints("fired_on_time")
            return {
                "pending": nothing,
                "has_on_time": no,
                "has_hold": no,
                "fired_on_time": squeezed(before | complete),
                "fired_seq": cells["newest_seq"],
            }
        return squeezed_all(
            {
                "pending": np.where(firing, 0, cells.ints("pending")),
                "has_on_time": cells.ints("has_on_time") & ~firing,
                "has_hold": cells.ints("has_hold") & ~firing,
                "fired_on_time": cells.ints("fired_on_time") | (firing & complete),
                "fired_seq": np.where(firing, cells.ints("newest_seq"), cells.ints("fired_seq")),
            }
        )

    def output_time(self, cells: Frame) -> np.ndarray:
        """The time of the pane that a cell would put out now."""
        return output_times(cells, self._context.spec.options.timestamp)

    def _frame(
        self,
        cells: Frame,
        values: Mapping[str, Column],
        position: np.ndarray,
        *,
        op: int,
        **columns: np.ndarray,
    ) -> Frame:
        context, n = self._context, len(cells)
        return Frame(
            {
                **{
                    name: cells[name]
                    for name in ("key_hash", "key_check", *context.key_columns, "start", "end")
                },
                "op": constant(np.int8(op), n),
                **{name: squeezed(column) for name, column in columns.items()},
                **{f"a.{name}": column for name, column in values.items()},
                "watermark": np.broadcast_to(
                    np.asarray(
                        (
                            context.watermarks.of_cells(cells)
                            if context.watermarks.keys is not None
                            else context.progress.watermark
                        ),
                        np.int64,
                    ),
                    n,
                ),
                "emitted_at": constant(np.int64(context.progress.now), n),
                "position": position,
            },
            n,
        )

    def _count(self, timing: np.ndarray) -> None:
        early, on_time, late = np.bincount(timing, minlength=3).tolist()
        self._context.progress.counters.update(
            panes_early=early, panes_on_time=on_time, panes_late=late
        )


def _starts(cell: np.ndarray) -> np.ndarray:
    """Which panes are the first of their cell."""
    starts = np.ones(len(cell), bool)
    starts[1:] = cell[1:] != cell[:-1]
    return starts


def _unchanged(panes: Frame, values: Mapping[str, pa.Array], cell: np.ndarray | None) -> np.ndarray:
    """Which panes have the values of the pane before them."""
    first = np.ones(len(panes), bool) if cell is None else _starts(cell)
    before = pa.array(np.maximum(np.arange(len(panes)) - 1, 0))
    same = ~first | panes.ints("emitted")
    for name, column in values.items():
        equal = equal_rows(panes[f"v.{name}"], column)
        if cell is not None:
            equal = np.where(first, equal, equal_rows(column, column.take(before)))
        same &= equal
    return same
