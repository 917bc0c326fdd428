"""Cell update: rows of a delivery into the cells of their windows, which then fire if ready.

With triggers by element, the rows of a cell are taken up to its next firing, which its trigger
knows beforehand. Cells that fire several times do so at once where partial aggregates hold all they
contain (`ElementPanes`). Otherwise the rows after the first firing are left for the next call.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tidegate.instants import MIN
from tidegate.kernel.frame import Column, Frame, concat_frames, squeezed_all
from tidegate.kernel.groups import Groups, present
from tidegate.kernel.storage.run_store import Places
from tidegate.kernel.triggers import Schedule
from tidegate.kernel.windows.assigners import Aligned, Assigned, Assigner
from tidegate.operators.aggregate.cell_values import CellValues
from tidegate.operators.aggregate.collector import Collector
from tidegate.operators.aggregate.context import IDENTITY, OperatorContext
from tidegate.operators.aggregate.element_panes import ElementPanes, Segments, Spans
from tidegate.operators.aggregate.element_steps import (
    CellRows,
    ElementSteps,
    Pace,
    Steps,
    narrowed,
)
from tidegate.operators.aggregate.firing import Firing
from tidegate.operators.aggregate.output_time import held_by, joined_holds
from tidegate.operators.aggregate.retention import RetentionBounds
from tidegate.operators.ingest.delivery import Delivery
from tidegate.operators.output import class_names
from tidegate.spec.windows import Axis, Custom, Inherited, Session


class CellUpdate:
    """Rows into cells, for windows that never merge."""

    def __init__(
        self,
        context: OperatorContext,
        firing: Firing,
        cell_values: CellValues,
        assigner: Assigner,
        retention: RetentionBounds,
        element_panes: ElementPanes,
    ) -> None:
        self.element_panes = element_panes
        self.elements = ElementSteps(context)
        self.context = context
        self.firing = firing
        self.cell_values = cell_values
        self.assigner = assigner
        self.retention = retention
        # Where the event time decides, the window of an accepted event has not expired; a custom
        # assigner may still return older windows.
        by_window = context.spec.options.drop_by == "window" or isinstance(
            context.spec.window, Custom
        )
        # On offsets no event is late, but a partition may begin behind windows that are over.
        self.windows_expire = context.spec.window.axis is Axis.OFFSET or (
            by_window
            and context.spec.window.axis is Axis.EVENT_TIME
            and not isinstance(context.spec.window, Inherited)
        )
        late_joins = (
            isinstance(context.spec.window, Session)
            and context.spec.options.session_lateness == "merged"
        )
        self.merges_late_rows = self.windows_expire and late_joins
        """Whether a late row is taken if it merges with a session that is not late.

        Then the order of rows inside a delivery matters.
        """

    @property
    def shares_offsets(self) -> bool:
        """Whether offsets are noted by slice, because all keys share their windows."""
        return (
            isinstance(self.assigner, Aligned) and self.context.spec.window.axis is not Axis.ORDINAL
        )

    def absorb(
        self, delivery: Delivery, assigned: Assigned, out: Collector, pace: Pace
    ) -> Assigned:
        """Take rows into their windows and fire these; returns the entries that are left.

        At least one row of every key is taken, and all of those that no firing follows.
        """
        if self.context.spec.retention.windows is None:
            return self._place(delivery, self.without_expired(delivery, assigned, out), out, pace)
        in_time = self._in_time(delivery, assigned, out)
        return self._place(delivery, self._with_room(delivery, in_time, out, pace), out, pace)

    def opening(self, delivery: Delivery, assigned: Assigned) -> np.ndarray:
        """The entries that open a window, if those before them are taken first."""
        groups, _, places = self.look_up(delivery, assigned)
        return groups.firsts[~places.found]

    def _with_room(
        self, delivery: Delivery, assigned: Assigned, out: Collector, pace: Pace
    ) -> Assigned:
        """The windows that retention admits.

        One late row per event lists both the windows behind the retention bounds and those without
        room.
        """
        gone = self.retention.beyond(delivery, assigned)
        old = np.zeros(len(assigned.row), bool) if gone is None else gone
        rest = self._without_closed(
            delivery, Assigned(*(column[~old] for column in assigned)), out, pace
        )
        full = self.retention.admit(delivery, rest, out)
        missed = Assigned(
            *(np.concatenate([a[old], b[full]]) for a, b in zip(assigned, rest, strict=True))
        )
        self.without(delivery, missed, np.ones(len(missed.row), bool), "out_of_retention", out)
        return Assigned(*(column[~full] for column in rest))

    def _without_closed(
        self, delivery: Delivery, assigned: Assigned, out: Collector, pace: Pace
    ) -> Assigned:
        """The windows that no finished trigger has closed."""
        groups, _, places = self.look_up(delivery, assigned)
        found = np.flatnonzero(places.found)
        if not len(found):
            return assigned
        shut = np.zeros(groups.n, bool)
        shut[found] = self.context.cells.take(places.take(found)).ints("closed")
        missed = shut[groups.ids]
        if not pace.by_element:
            return self.without(delivery, assigned, missed, "window_closed", out)
        # Windows of a row may be closed by different firings, and are reported together.
        pace.closed.append(Assigned(*(column[missed] for column in assigned)))
        return Assigned(*(column[~missed] for column in assigned))

    def report_closed(self, delivery: Delivery, out: Collector, pace: Pace) -> None:
        """Send the rows that missed windows because these had been closed to `late`."""
        if pace.closed:
            missed = Assigned(*(np.concatenate(c) for c in zip(*pace.closed, strict=True)))
            self.without(delivery, missed, np.ones(len(missed.row), bool), "window_closed", out)

    def _place(
        self, delivery: Delivery, assigned: Assigned, out: Collector, pace: Pace
    ) -> Assigned:
        """Put rows into windows that have not expired; rows of closed windows go to `late`."""
        groups, identity, places = self.look_up(delivery, assigned)
        if not groups.n:
            return assigned
        found = np.flatnonzero(places.found)
        if len(found) and self.context.cells.take(places.take(found)).ints("closed").any():
            return self._place(
                delivery, self._without_closed(delivery, assigned, out, pace), out, pace
            )
        keys = delivery.keys(self.context.spec.input.key, assigned.row[groups.firsts])
        cells = self.base(identity, keys, places)
        self.context.cells.remove(places.take(found))
        joining = CellRows(assigned.row, groups, cells)
        taken = self._join_by_element(delivery, joining, ~places.found, out, pace)
        if taken is not None:
            return Assigned(*(column[~taken] for column in assigned))
        self.join(delivery, joining, out, pace)
        return Assigned(*(column[:0] for column in assigned))

    def _join_by_element(
        self,
        delivery: Delivery,
        joining: CellRows,
        is_new: np.ndarray,
        out: Collector,
        pace: Pace,
    ) -> np.ndarray | None:
        """Add rows up to the firings of their cells; returns which entries were added.

        None, with nothing done, if no cell fires before its last row.
        """
        if not pace.by_element or not self.elements.may_fire(delivery, joining.cells):
            return None
        steps = self.elements.steps(delivery, joining, pace)
        first = steps.schedule(once=True)
        early = first.taken < steps.counts
        if not early.any():
            return None
        taken = steps.within(first.taken)
        several = early & steps.is_plain
        if several.any():
            chosen = np.flatnonzero(several)
            plan = self._fire_several(delivery, joining, steps, chosen, out)
            if plan is not None:
                limit = first.taken.copy()
                limit[chosen] = plan.taken
                taken = steps.within(limit)
                once = ~several[joining.groups.ids]
                self.join(delivery, narrowed(joining, taken & once), out, pace)
                return taken
        if self.context.messages is not None:
            taken = steps.before_firings_of_keys(delivery, taken, pace)
            self._return(joining, taken, is_new)
        self.join(delivery, narrowed(joining, taken), out, pace)
        return taken

    def _return(self, joining: CellRows, taken: np.ndarray, is_new: np.ndarray) -> None:
        """Put the cells back that take no row yet; new ones are not opened yet."""
        waits = np.ones(joining.groups.n, bool)
        waits[joining.groups.ids[taken]] = False
        self.context.progress.counters["windows_opened"] -= int((waits & is_new).sum())
        self.context.cells.put(joining.cells.where(waits & ~is_new))

    def _fire_several(
        self,
        delivery: Delivery,
        joining: CellRows,
        steps: Steps,
        chosen: np.ndarray,
        out: Collector,
    ) -> Schedule | None:
        """Fire some cells as often as their rows make them; None if a row cannot be aggregated."""
        plan = steps.schedule().of(chosen)
        segments = Segments.of(steps.rows(chosen, plan.taken), plan)
        partials, failed, _ = self.context.aggregates.lift(
            self.context.rows_of(delivery, segments.row), segments.groups
        )
        if failed is not None:
            return None
        cells = joining.cells.take(chosen)
        cell = segments.cell[segments.groups.ids]
        self._keep(delivery, CellRows(segments.row, Groups(cell, len(cells)), cells))
        self.element_panes.fire(
            delivery,
            segments,
            Spans.fixed(cells, segments),
            Frame(partials, segments.groups.n),
            out,
        )
        return plan

    def without_expired(self, delivery: Delivery, assigned: Assigned, out: Collector) -> Assigned:
        """The windows that have neither expired nor been evicted; the others go to `late`."""
        return self.without_old(delivery, self._in_time(delivery, assigned, out), out)

    def _in_time(self, delivery: Delivery, assigned: Assigned, out: Collector) -> Assigned:
        """The windows that have not expired."""
        if self.windows_expire:
            over = self.context.expired(
                self.context.expiry(assigned.end),
                self.context.watermarks.of_rows(delivery, assigned.row),
            )
        elif self.context.expired_at_migration != MIN:
            over = assigned.end <= self.context.expired_at_migration
        else:
            return assigned
        return self.without(delivery, assigned, over, "window_expired", out)

    def without_old(self, delivery: Delivery, assigned: Assigned, out: Collector) -> Assigned:
        """The windows that retention has not evicted."""
        gone = self.retention.beyond(delivery, assigned)
        return (
            assigned
            if gone is None
            else self.without(delivery, assigned, gone, "out_of_retention", out)
        )

    def without(
        self,
        delivery: Delivery,
        assigned: Assigned,
        missed: np.ndarray,
        reason: str,
        out: Collector,
    ) -> Assigned:
        """The windows that are not missed; one late row per event lists the missed ones."""
        if not missed.any():
            return assigned
        row, start, end = (column[missed] for column in assigned)
        self.context.progress.counters["dropped_pairs"] += len(row)
        order = np.lexsort((start, row))
        rows, owner = np.unique(row, return_inverse=True)
        out.late_rows(
            delivery,
            rows,
            reason,
            class_names(delivery.verdict[rows]),
            (owner[order], start[order], end[order]),
        )
        return Assigned(*(column[~missed] for column in assigned))

    def join(self, delivery: Delivery, joining: CellRows, out: Collector, pace: Pace) -> None:
        """Add rows to cells that are out of the table, fire them, and put them back."""
        if not joining.groups.n:
            return
        joining, partials = self._lifted(delivery, joining, out)
        row, groups, cells = joining.row, joining.groups, joining.cells
        if not groups.n:
            return
        self._keep(delivery, joining)
        rows = groups.counts if delivery.weight is None else groups.sum(delivery.weight[row])
        counts = pace.counts(row, groups)
        if self.context.spec.window.axis is Axis.ORDINAL:
            cells = cells.with_mapping(self._ordinal_progress(delivery, row, groups, pace))
        seq, first = groups.max(delivery.seq[row]), groups.min(delivery.position[row])
        brought = Frame.of(
            {**partials, **self._held_by(delivery, row, groups), "row_count": rows},
            groups.n,
        )
        self.add(cells, brought.with_columns(count=counts, seq=seq, first=first), out)

    def add(self, cells: Frame, brought: Frame, out: Collector) -> None:
        """Add partial results to cells that are out of the table, fire them, and put them back.

        `brought` has one row per cell: partial aggregates (if cells hold any), `row_count`, the
        `count` for the trigger, the last arrival number `seq`, the `first` position and the on-time
        columns.
        """
        context = self.context
        seq, counts, pending = brought.ints("seq"), brought.ints("count"), cells.ints("pending")
        # The rows of a cell that has not fired are all pending: one column for both.
        alike = pending is cells["row_count"] and counts is brought["row_count"]
        cells = cells.with_mapping(self._with_contents(cells, brought))
        if context.messages is not None:
            # Arrival numbers select the messages since the last pane.
            cells = cells.with_columns(newest_seq=np.maximum(cells.ints("newest_seq"), seq))
        cells = cells.with_mapping(self._held(cells, brought))
        state = context.trigger_state(cells)
        context.machine.on_elements(
            state, counts, context.trigger_context(cells, pending, brought.ints("first"))
        )
        cells = cells.with_columns(pending=cells["row_count"] if alike else pending + counts)
        context.cells.put(self.firing.settle(cells, state, out, seq))

    def _with_contents(self, cells: Frame, brought: Frame) -> Mapping[str, Column]:
        """Row counts and partial aggregates of the cells combined with those of the rows."""
        context, n = self.context, len(cells)
        rows = cells.ints("row_count")
        if context.messages is not None:
            return {"row_count": rows + brought.ints("row_count")}
        names = ["row_count", *context.aggregates.partial_columns]
        # A recent aggregate may not know rows that were retracted before.
        if (rows == 0).all() and not context.aggregates.recent:
            return brought.select(names).columns
        both = concat_frames([cells.select(names), brought.select(names)])
        groups = Groups(np.tile(np.arange(n), 2), n)
        total = groups.sum(both.ints("row_count"))
        return {"row_count": total, **context.aggregates.combine(both, groups)}

    def _keep(self, delivery: Delivery, joining: CellRows) -> None:
        """Store the messages where needed, and their offsets where windows depend on the key."""
        if self.context.messages is not None and self.context.has_explicit_windows:
            cell = joining.groups.ids
            self.cell_values.store_in_windows(
                delivery.take(joining.row),
                joining.cells.ints("start")[cell],
                joining.cells.ints("end")[cell],
            )
        elif self.context.messages is not None:
            rows = present(joining.row, len(delivery))
            self.cell_values.store(delivery.take(rows[self.is_new(rows)]))
        if self.context.window_offsets is not None and not self.shares_offsets:
            windows = joining.cells.select(IDENTITY).take(joining.groups.ids)
            self.context.window_offsets.note(
                windows,
                delivery.partitions,
                delivery.partition[joining.row],
                delivery.offset[joining.row],
            )

    def is_new(self, rows: np.ndarray) -> np.ndarray:
        """Which rows belong to this delivery."""
        return np.ones(len(rows), bool)

    def look_up(self, delivery: Delivery, assigned: Assigned) -> tuple[Groups, Frame, Places]:
        """The cell of each entry as groups, the identity of these cells, and their places."""
        row, start, end = assigned
        groups = Groups.by([delivery.key_hash[row], delivery.key_check[row], start, end])
        first = groups.firsts
        identity = Frame.of(
            {
                "key_hash": delivery.key_hash[row[first]],
                "key_check": delivery.key_check[row[first]],
                "start": start[first],
                "end": end[first],
            },
            groups.n,
        )
        return groups, identity, self.context.cells.find(identity)

    def base(self, identity: Frame, keys: dict[str, Column], places: Places) -> Frame:
        """The stored cells, and fresh ones where none is stored."""
        found, new = np.flatnonzero(places.found), np.flatnonzero(~places.found)
        self.context.progress.counters["windows_opened"] += len(new)
        if not len(found):
            return self.context.fresh(identity, keys)
        old = self.context.cells.take(places.take(found))
        if not len(new):
            return old
        fresh = self.context.fresh(
            identity.take(new), dict(Frame(keys, len(identity)).take(new).columns)
        )
        order = np.empty(len(identity), np.int64)
        order[np.concatenate([found, new])] = np.arange(len(identity))
        return concat_frames([old, fresh]).take(order)

    def _lifted(
        self, delivery: Delivery, joining: CellRows, out: Collector
    ) -> tuple[CellRows, dict[str, Column]]:
        """Partial aggregates of the rows by cell.

        Rows that a user function refuses go to `late`, and are left out.
        """
        context = self.context
        if context.messages is not None:
            return joining, {}
        rows = context.rows_of(delivery, joining.row)
        partials, failed, why = context.aggregates.lift(rows, joining.groups)
        if failed is not None:
            self._refuse(delivery, joining, failed, why, out)
            joining = narrowed(joining, ~failed)
            if joining.groups.n:
                partials, _, _ = context.aggregates.lift(
                    context.rows_of(delivery, joining.row), joining.groups
                )
        return joining, partials

    def _refuse(
        self,
        delivery: Delivery,
        joining: CellRows,
        failed: np.ndarray,
        why: str,
        out: Collector,
    ) -> None:
        entries = np.flatnonzero(failed)
        cell = joining.groups.ids[entries]
        bounds = (
            np.arange(len(entries)),
            joining.cells.ints("start")[cell],
            joining.cells.ints("end")[cell],
        )
        rows = joining.row[entries]
        out.late_rows(
            delivery, rows, "accumulation_failed", class_names(delivery.verdict[rows]), bounds, why
        )
        untouched = np.ones(joining.groups.n, bool)
        untouched[joining.groups.ids[~failed]] = False
        # Cells with failed rows only go back unchanged, unless they are new.
        self.context.cells.put(
            joining.cells.where(
                untouched & (joining.cells.ints("pane_index") + joining.cells.ints("row_count") > 0)
            )
        )

    @staticmethod
    def _ordinal_progress(
        delivery: Delivery, row: np.ndarray, groups: Groups, pace: Pace
    ) -> dict[str, Column]:
        position = delivery.position[row]
        if pace.by_element:
            # Every element moves the watermark of its key, and completes its window or does not.
            return {"ordinal": groups.max(position) + 1, "ordinal_before": groups.min(position)}
        keys = Groups.by([delivery.key_hash[row], delivery.key_check[row]])
        cell_key = keys.ids[groups.firsts]
        return {
            "ordinal": keys.max(position)[cell_key] + 1,
            "ordinal_before": keys.min(position)[cell_key],
        }

    def _held_by(self, delivery: Delivery, row: np.ndarray, groups: Groups) -> dict[str, Column]:
        return held_by(
            self.context.spec.options.timestamp,
            delivery.position[row],
            delivery.is_on_time[row],
            groups,
        )

    def _held(self, cells: Frame, brought: Frame) -> dict[str, Column]:
        """The hold columns of the cells together with those of the rows."""
        context = self.context
        is_open = cells.ints("end") > context.watermarks.before_call(cells)
        return squeezed_all(
            joined_holds(cells, brought, context.spec.options.timestamp, is_open=is_open)
        )
