"""Sessions: windows of a key that overlap become one.

A session that gets other bounds is another window: the panes of the former one are withdrawn. Rows
extend and merge sessions; retractions also shorten, split and remove them, which is computed from
the messages that are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np

from tidegate.kernel.frame import (
    Column,
    Frame,
    concat_frames,
    search_sorted,
    to_arrow,
)
from tidegate.kernel.groups import Groups, expand_ranges, present
from tidegate.kernel.keys import KEY
from tidegate.kernel.storage.run_store import Places
from tidegate.kernel.triggers import Schedule
from tidegate.kernel.windows.assigners import Assigned
from tidegate.kernel.windows.session_growth import Growth
from tidegate.kernel.windows.sessions import Extension, Merged, extend, merge_intervals
from tidegate.operators.aggregate.cell_update import CellUpdate
from tidegate.operators.aggregate.cell_values import merge_lists, payload
from tidegate.operators.aggregate.collector import Collector
from tidegate.operators.aggregate.context import IDENTITY
from tidegate.operators.aggregate.element_panes import Segments
from tidegate.operators.aggregate.element_steps import CellRows, Pace
from tidegate.operators.aggregate.output_time import held_by, hold_columns
from tidegate.operators.aggregate.session_spans import spans_of
from tidegate.operators.aggregate.session_steps import Sessions, SessionSteps
from tidegate.operators.aggregate.slices import merged_contents, merged_counts
from tidegate.operators.ingest.delivery import Delivery, key_codes
from tidegate.spec.windows import Session, Touch

_BY_START, _BY_END = ("union", "start"), ("union", "end")


@dataclass(frozen=True, eq=False)
class _Merge:
    """Intervals of some keys, merged with the sessions of these keys."""

    sessions: Sessions
    """With the columns of these sessions that merging and triggers need."""
    places: Places
    """The places of the sessions that can grow."""
    extension: Extension
    """The intervals merged with these."""

    @property
    def absorbed(self) -> np.ndarray:
        """Which sessions intervals touch."""
        return self.extension.absorbed_by >= 0

    @property
    def keys(self) -> Frame:
        return self.sessions.keys

    @property
    def old(self) -> Frame:
        return self.sessions.old

    @property
    def identity(self) -> Frame:
        """Key and bounds of the touched sessions."""
        merged, touched = self.extension.merged, self.extension.touched
        return self.keys.take(merged.key[touched]).with_columns(
            start=merged.start[touched], end=merged.end[touched]
        )

    def of(self, assigned: Assigned, mask: np.ndarray, touch: Touch) -> _Merge:
        """The merge of some of its intervals, while its sessions are as they were."""
        if mask.all():
            return self
        sessions, old = replace(self.sessions, code=self.sessions.code[mask]), self.old
        extension = extend(
            (sessions.owner, old.ints("start"), old.ints("end")),
            (sessions.code, assigned.start[mask], assigned.end[mask]),
            touch,
        )
        return _Merge(sessions, self.places, extension)


class SessionUpdate(CellUpdate):
    """Rows, or wiring of sessions, into sessions."""

    @cached_property
    def steps(self) -> SessionSteps:
        return SessionSteps(self.context, self.merges_late_rows)

    def absorb(
        self, delivery: Delivery, assigned: Assigned, out: Collector, pace: Pace
    ) -> Assigned:
        options = self.context.spec.options
        own = options.drop_by == "event" or options.session_lateness == "own"
        assigned = (
            self.without_expired(delivery, assigned, out)
            if own
            else self._without_old(delivery, assigned, out)
        )
        if not pace.by_element or not len(assigned.row):
            self._absorb_together(delivery, assigned, out, pace)
            return _some(assigned, np.zeros(len(assigned.row), bool))
        ordered = self.steps.ordered(delivery, assigned)
        self._absorb_together(delivery, _some(assigned, ~ordered), out, pace)
        assigned = _some(assigned, ordered)
        return self._absorb_block(delivery, assigned, out, pace) if ordered.any() else assigned

    def opening(self, delivery: Delivery, assigned: Assigned) -> np.ndarray:
        merge = self._merge_rows(delivery, assigned)
        growth = self._growth(merge, assigned)
        new = np.ones(len(merge.extension.touched), bool)
        new[merge.extension.absorbed_by[merge.extension.absorbed_by >= 0]] = False
        # A row that lies apart opens a session until another row merges both.
        return np.concatenate([growth.order[growth.offsets[:-1][new]], growth.order[growth.apart]])

    def _absorb_block(
        self, delivery: Delivery, assigned: Assigned, out: Collector, pace: Pace
    ) -> Assigned:
        """Take the first rows of each key; returns the entries that are left."""
        merge = self._merge_rows(delivery, assigned)
        block = self.steps.block(delivery, assigned, merge.sessions, merge.extension, pace)
        grown = False
        if block.plan is not None:
            several = merge.of(assigned, block.several, self._touch)
            grown = self._grow(delivery, _some(assigned, block.several), several, block.plan, out)
            if not grown:
                # A row cannot be aggregated: its sessions fire one after the other.
                block = self.steps.block(
                    delivery, assigned, merge.sessions, merge.extension, pace, once=True
                )
        if block.together.any():
            part = None if grown else merge.of(assigned, block.together, self._touch)
            self._absorb_together(delivery, _some(assigned, block.together), out, pace, part)
        return _some(assigned, ~(block.together | block.several))

    @property
    def _touch(self) -> Touch:
        return cast("Session", self.context.spec.window).touch

    def _growth(self, merge: _Merge, assigned: Assigned) -> Growth:
        return Growth.of(merge.extension, assigned.start, assigned.end, self._touch)

    def _grow(
        self,
        delivery: Delivery,
        assigned: Assigned,
        merge: _Merge,
        plan: Schedule,
        out: Collector,
    ) -> bool:
        """Let sessions grow with their rows and fire several times.

        Returns False, with nothing done, if a row cannot be aggregated.
        """
        growth = self._growth(merge, assigned)
        segments = Segments.of(assigned.row[growth.order], plan)
        partials, failed, _ = self.context.aggregates.lift(
            self.context.rows_of(delivery, segments.row), segments.groups
        )
        if failed is not None:
            return False
        context, absorbed = self.context, merge.absorbed
        old, of_old = self._taken_out(merge), merge.extension.absorbed_by[absorbed]
        first, n = assigned.row[growth.order[growth.offsets[:-1]]], len(growth.offsets) - 1
        spans = spans_of(
            growth,
            segments,
            merge.identity,
            Frame(delivery.keys(context.spec.input.key, first), n),
            (of_old, old),
            delivery.seq[segments.row],
            context.fresh,
        )
        final, replaced = spans.cells.take(spans.last), merge.extension.replaced[absorbed]
        context.progress.counters["windows_opened"] += n - len(old)
        if context.window_offsets is not None and replaced.any():
            context.window_offsets.rename(old.where(replaced), final.take(of_old[replaced]))
        self._keep(delivery, CellRows(segments.row, Groups(growth.session, n), final))
        self.element_panes.fire(delivery, segments, spans, Frame(partials, segments.groups.n), out)
        return True

    def _absorb_together(
        self,
        delivery: Delivery,
        assigned: Assigned,
        out: Collector,
        pace: Pace,
        merge: _Merge | None = None,
    ) -> None:
        """Take rows among which no trigger has to be evaluated; `merge` if they are merged."""
        row = assigned.row
        if not len(row):
            return
        merge = self._merge_rows(delivery, assigned) if merge is None else merge
        refused = self._refused(merge)
        if not refused.any():
            held = len(self.context.cells)
            refused = self._no_room(delivery, assigned, merge, out)
            if len(self.context.cells) != held:
                # Room was made, and what was found may have gone: look again.
                self._absorb_together(delivery, assigned, out, pace)
                return
        if refused.any():
            self._turn_away(delivery, assigned, merge, refused, out, pace)
            return
        groups = merge.extension.groups
        if delivery.weight is not None and (delivery.weight[row] < 0).any():
            shrinking = groups.any(delivery.weight[row] < 0)[groups.ids]
            if shrinking.all():
                self._divide(delivery, assigned, merge, out)
                return
            for part in (~shrinking, shrinking):
                self._absorb_together(delivery, _some(assigned, part), out, pace)
            return
        keys = delivery.keys(self.context.spec.input.key, row[groups.firsts])
        cells = self._united(merge, keys, groups.max(delivery.seq[row]), out)
        self.join(delivery, CellRows(row, groups, cells), out, pace)

    def take_partials(self, pieces: Sequence[Frame], out: Collector) -> None:
        """Take partial sessions, aggregated before the shuffle, that end after the watermark.

        A session that they merge with ends after it too: it has not fired, is not closed and not
        late.
        """
        context = self.context
        came = concat_frames([context.received(piece) for piece in pieces])
        keys_of, code = key_codes(came.ints("key_hash"), came.ints("key_check"))
        merge = self._merge(keys_of, code, came.ints("start"), came.ints("end"))
        groups = merge.extension.groups
        keys = dict(came.select(context.key_columns).take(groups.firsts).columns)
        # They come after all rows.
        seq = np.full(groups.n, context.progress.seq)
        brought = Frame(
            merged_contents(context.aggregates, came, groups, context.spec.options.timestamp),
            groups.n,
        )
        brought = brought.with_columns(
            count=brought.ints("row_count"), seq=seq, first=groups.min(came.ints("start"))
        )
        self.add(self._united(merge, keys, seq, out), brought, out)

    def _merge_rows(self, delivery: Delivery, assigned: Assigned) -> _Merge:
        """Rows merged with the sessions of their keys."""
        keys, code = delivery.key_codes(self.context.spec.input.key, assigned.row)
        return self._merge(keys, code, assigned.start, assigned.end)

    def _merge(self, keys: Frame, code: np.ndarray, start: np.ndarray, end: np.ndarray) -> _Merge:
        """Find the sessions of the keys of some intervals, and merge all."""
        places, owner = self._near(keys, code, start, end)
        columns = (*IDENTITY, "closed", "pending", *self.context.machine.columns)
        old = self.context.cells.take(places, columns) if len(places.run) else _nothing()
        closed = old.ints("closed")
        live = ~closed
        tombstones = Frame.of(
            {
                "code": owner[closed],
                "start": old.ints("start")[closed],
                "end": old.ints("end")[closed],
            }
        )
        old = old.where(live)
        extension = extend(
            (owner[live], old.ints("start"), old.ints("end")),
            (code, start, end),
            self._touch,
        )
        sessions = Sessions(keys, code, old, owner[live], tombstones)
        return _Merge(sessions, places.take(live), extension)

    def _near(
        self, keys: Frame, code: np.ndarray, start: np.ndarray, end: np.ndarray
    ) -> tuple[Places, np.ndarray]:
        """The sessions of keys that lie between the first and the last of some intervals, and
        their keys: no other can touch one of these.
        """
        places, owner = self.context.cells.owned_ranges(keys, KEY)
        if not len(owner):
            return places, owner
        bounds, of_key = self.context.cells.take(places, ("start", "end")), Groups(code, len(keys))
        near = bounds.ints("end") >= of_key.min(start)[owner]
        near &= bounds.ints("start") <= of_key.max(end)[owner]
        return (places, owner) if near.all() else (places.take(near), owner[near])

    def _without_old(self, delivery: Delivery, assigned: Assigned, out: Collector) -> Assigned:
        """The windows that retention has not evicted.

        An evicted window that has expired as well counts as expired.
        """
        gone = self.retention.beyond(delivery, assigned)
        if gone is None:
            return assigned
        late = self.context.expired(
            self.context.expiry(assigned.end),
            self.context.watermarks.of_rows(delivery, assigned.row),
        )
        missed = Assigned(*(column[gone & late] for column in assigned))
        self.without(delivery, missed, np.ones(len(missed.row), bool), "window_expired", out)
        rest = ~(gone & late)
        return self.without_old(delivery, Assigned(*(column[rest] for column in assigned)), out)

    def _refused(self, merge: _Merge) -> np.ndarray:
        """Why sessions cannot take their rows: 1 where a closed session has the same bounds, 2
        where their time is over.
        """
        merged, touched = merge.extension.merged, merge.extension.touched
        tombstones = merge.sessions.tombstones
        start, end, code = merged.start[touched], merged.end[touched], merged.key[touched]
        why = np.zeros(len(touched), np.int8)
        if self.windows_expire:
            watermark = self.context.watermarks.of_keys(
                merge.keys.ints("key_hash")[code], merge.keys.ints("key_check")[code]
            )
            why[self.context.expired(self.context.expiry(end), watermark)] = 2
        if len(tombstones):
            by = [tombstones.ints(name) for name in ("end", "start", "code")]
            _, equal = search_sorted(
                tombstones.take(np.lexsort(by)),
                Frame.of({"code": code, "start": start, "end": end}),
                ("code", "start", "end"),
            )
            why[equal] = 1
        return why

    def _no_room(
        self, delivery: Delivery, assigned: Assigned, merge: _Merge, out: Collector
    ) -> np.ndarray:
        """3 where a key holds as many newer sessions as retention allows."""
        if self.context.spec.retention.windows is None:
            return np.zeros(len(merge.extension.touched), np.int8)
        extension = merge.extension
        absorbed = merge.old.where(merge.absorbed)
        full = np.zeros(len(extension.touched), bool)
        whole = _whole(merge, assigned)
        full[extension.session] = self.retention.admit(delivery, whole, out, absorbed)
        return np.where(full, 3, 0).astype(np.int8)

    def _turn_away(
        self,
        delivery: Delivery,
        assigned: Assigned,
        merge: _Merge,
        refused: np.ndarray,
        out: Collector,
        pace: Pace,
    ) -> None:
        """Send the rows of refused sessions to `late`, and absorb the rest."""
        of_row = refused[merge.extension.session]
        whole = _whole(merge, assigned)
        self.without(delivery, whole, of_row == 1, "window_closed", out)
        self.without(delivery, assigned, of_row == 2, "window_expired", out)
        self.without(delivery, assigned, of_row == 3, "out_of_retention", out)
        rest = of_row == 0
        part = merge.of(assigned, rest, self._touch) if rest.any() else None
        self._absorb_together(delivery, _some(assigned, rest), out, pace, part)

    def _united(
        self, merge: _Merge, keys: dict[str, Column], position: np.ndarray, out: Collector
    ) -> Frame:
        """One cell a touched session, out of the table: as it was where the bounds stay, otherwise
        a new one that holds what the old ones held.
        """
        extension, identity = merge.extension, merge.identity
        changed, stays = extension.replaced, merge.absorbed & ~extension.replaced
        cells = self.context.fresh(identity, keys)
        self.context.progress.counters["windows_opened"] += len(identity) - len(
            present(extension.absorbed_by[merge.absorbed], len(identity))
        )
        same = self._cells_of(merge, stays)
        if changed.any():
            group = extension.absorbed_by[changed]
            self._withdraw(merge.places.take(changed), position[group], out)
            names = (*IDENTITY, *self._inherited, *self.context.machine.columns)
            old = self.context.cells.take(merge.places.take(changed), names)
            if self.context.window_offsets is not None:
                self.context.window_offsets.rename(old, identity.take(group))
            cells = self._inherit(cells, old, group)
        self.context.cells.remove(merge.places.take(merge.absorbed))
        return cells.replaced(extension.absorbed_by[stays], same) if len(same) else cells

    def _withdraw(self, places: Places, position: np.ndarray, out: Collector) -> None:
        """Withdraw the panes of sessions that get other bounds; most have none."""
        numbers = self.context.cells.take(places, ("emitted", "pane_index"))
        shown = np.flatnonzero(numbers.ints("emitted") | (numbers.ints("pane_index") > 0))
        if len(shown):
            cells = self.context.cells.take(places.take(shown))
            self.firing.withdraw(cells, position[shown], out)

    def _cells_of(self, merge: _Merge, which: np.ndarray) -> Frame:
        """The cells of some sessions."""
        places = merge.places.take(which)
        return self.context.cells.take(places) if len(places.run) else _nothing()

    def _taken_out(self, merge: _Merge) -> Frame:
        """The sessions that intervals touch, out of the table."""
        cells = self._cells_of(merge, merge.absorbed)
        self.context.cells.remove(merge.places.take(merge.absorbed))
        return cells

    def _divide(
        self, delivery: Delivery, assigned: Assigned, merge: _Merge, out: Collector
    ) -> None:
        """Apply changes with retractions: find the sessions of the messages that are left.

        A session with the bounds of a former one is that one. Others are new, and continue the
        triggers of the former sessions that they overlap.
        """
        context, row, unions = self.context, assigned.row, merge.extension.groups
        self.cell_values.store(delivery.take(present(row, len(delivery))))
        left = self._left(merge.identity)
        union, start, end = left.key, left.start, left.end
        old, of_old = self._taken_out(merge), merge.extension.absorbed_by[merge.absorbed]
        found = Frame.of({"union": union, "start": start, "end": end}, left.groups.n)
        former = old.select(("start", "end")).with_columns(union=of_old)
        at, stays = search_sorted(found, former, ("union", "start", "end"))
        seq = unions.max(delivery.seq[row])
        if len(old):
            self.firing.withdraw(old.where(~stays), seq[of_old[~stays]], out)
        opened = left.groups.n - len(old)
        context.progress.counters["windows_opened" if opened > 0 else "windows_closed"] += abs(
            opened
        )
        if not left.groups.n:
            return
        identity = merge.identity.take(union).with_columns(start=start, end=end)
        keys = delivery.keys(context.spec.input.key, row[unions.firsts[union]])
        cells = context.fresh(identity, keys)
        parts = former.where(~stays)
        low, _ = search_sorted(found, parts.with_columns(end=parts.ints("start") + 1), _BY_END)
        high, _ = search_sorted(found, parts.with_columns(start=parts.ints("end")), _BY_START)
        sizes = np.maximum(high - low, 0)
        if sizes.any():
            whole = old.where(~stays).take(np.repeat(np.arange(len(parts)), sizes))
            cells = self._inherit(cells, whole, expand_ranges(low, sizes))
        if stays.any():
            cells = cells.replaced(at[stays], old.where(stays))
        brought = self._brought(delivery, assigned, unions.ids, found)
        self.add(
            cells,
            brought.with_columns(
                seq=seq[union], row_count=left.groups.counts - cells.ints("row_count")
            ),
            out,
        )

    def _left(self, unions: Frame) -> Merged:
        """The sessions of the messages inside unions of former sessions and new rows."""
        messages, union = self.cell_values.messages_of(unions)
        rows = payload(messages)
        columns = Frame.of({name: to_arrow(rows.column(name)) for name in rows.column_names})
        _, start, end = self.assigner.assign(self.context.position_of(messages), columns)
        return merge_intervals(union, start, end, self._touch)

    def _brought(
        self, delivery: Delivery, assigned: Assigned, union: np.ndarray, sessions: Frame
    ) -> Frame:
        """What the new rows bring to each session: counts, positions and the on-time columns.

        A session without new rows has changed too, and counts one element.
        """
        weight = cast("np.ndarray", delivery.weight)[assigned.row]
        position = delivery.position[assigned.row]
        asked = Frame.of({"union": union, "start": position + 1}, len(union))
        at = search_sorted(sessions, asked, _BY_START)[0] - 1
        inside = (weight > 0) & (at >= 0)
        inside &= (sessions.ints("union")[at] == union) & (position <= sessions.ints("end")[at])
        row, groups = assigned.row[inside], Groups(at[inside], len(sessions))
        held = held_by(
            self.context.spec.options.timestamp,
            position[inside],
            delivery.is_on_time[row],
            groups,
        )
        has_rows = groups.counts > 0
        held["has_on_time"] = held["has_on_time"] & has_rows
        first = sessions.ints("start").copy()
        np.minimum.at(first, groups.ids, position[inside])
        return Frame.of(held, len(sessions)).with_columns(
            count=np.maximum(groups.counts, 1), first=first
        )

    def _inherit(self, fresh: Frame, old: Frame, group: np.ndarray) -> Frame:
        """Fresh cells that take over the content of the cells they replace."""
        context = self.context
        heirs = present(group, len(fresh))
        groups = Groups(np.searchsorted(heirs, group), len(heirs))
        content = self._content(old, groups)
        state = context.machine.merge(context.trigger_state(old), groups)
        context.machine.rewind(
            state, (fresh.ints("end") > context.watermarks.of_cells(fresh))[heirs]
        )
        return fresh.replaced(heirs, content.with_mapping(state))

    @property
    def _inherited(self) -> list[str]:
        """The columns of what a cell holds."""
        context = self.context
        aggregates = context.aggregates
        own = ("row_count", *hold_columns(context.spec.options.timestamp))
        partials = (
            aggregates.partial_columns if context.messages is None else aggregates.known_columns
        )
        evictor = context.spec.evictor
        evicted = ["evicted"] if evictor is not None and evictor.after else []
        return [*own, "pending", "newest_seq", "fired_seq", *partials, *evicted]

    def _content(self, old: Frame, groups: Groups) -> Frame:
        """What cells hold together: rows, holds, arrival numbers and partial aggregates."""
        aggregates, timestamp = self.context.aggregates, self.context.spec.options.timestamp
        names = self._inherited
        if groups.n == len(old) and (groups.ids[1:] > groups.ids[:-1]).all():
            return old.select(names)
        found = old.select(names).take(groups.firsts)
        several = groups.counts > 1
        if not several.any():
            return found
        # Most cells replace one only.
        rows = np.flatnonzero(several[groups.ids])
        old = old.select(names).take(rows)
        groups = Groups((np.cumsum(several) - 1)[groups.ids[rows]], int(several.sum()))
        columns = merged_counts(old, groups, timestamp)
        columns.update(
            pending=groups.sum(old.ints("pending")),
            newest_seq=groups.max(old.ints("newest_seq")),
            fired_seq=groups.max(old.ints("fired_seq")),
        )
        if self.context.messages is None:
            columns.update(aggregates.combine(old, groups))
        else:
            columns.update(aggregates.combine_known(old, groups))
        if "evicted" in old:
            columns["evicted"] = merge_lists(old["evicted"], groups)
        return found.replaced(np.flatnonzero(several), Frame(columns, groups.n))


def _some(assigned: Assigned, mask: np.ndarray) -> Assigned:
    return Assigned(*(column[mask] for column in assigned))


def _whole(merge: _Merge, assigned: Assigned) -> Assigned:
    """Rows with the bounds of the sessions that they would be in."""
    merged, union = merge.extension.merged, merge.extension.union
    return Assigned(assigned.row, merged.start[union], merged.end[union])


def _nothing() -> Frame:
    """No sessions."""
    return Frame.of(
        {
            **{name: np.zeros(0, np.uint64 if name in KEY else np.int64) for name in IDENTITY},
            "closed": np.zeros(0, bool),
        },
        0,
    )
