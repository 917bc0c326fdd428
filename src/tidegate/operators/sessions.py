"""Sessions: windows of a key that overlap become one, and what they had put out under their old bounds is taken back."""

from __future__ import annotations

from typing import cast

import numpy as np

from tidegate.kernel.frame import Column, Frame, concat_frames
from tidegate.kernel.groups import Groups, inverse, present
from tidegate.kernel.keys import KEY
from tidegate.kernel.runs import Places, search_sorted
from tidegate.kernel.sessions import Merged, merge_intervals
from tidegate.kernel.windows import Assigned
from tidegate.operators.absorbing import Absorber, Joining
from tidegate.operators.contents import merge_lists
from tidegate.operators.core import IDENTITY
from tidegate.operators.delivery import Delivery
from tidegate.operators.slices import merged_hold
from tidegate.spec.windows import Session


class SessionAbsorber(Absorber):
    """Rows into sessions."""

    def absorb(self, delivery: Delivery, assigned: Assigned) -> None:
        options = self.core.spec.options
        own = options.drop_by == "event" or options.session_lateness == "own"
        assigned = self.without_expired(delivery, assigned) if own else self._without_old(delivery, assigned)
        if not len(assigned.row):
            return
        keys, code = _key_codes(delivery, assigned.row)
        places = self.core.cells.ranges(keys, KEY)
        old = self.core.cells.take(places) if len(places.run) else self.core.fresh(_no_identity(), self._no_keys(delivery))
        closed = old.ints("closed")
        live = np.flatnonzero(~closed)
        owner, _ = search_sorted(keys, old.select(KEY), KEY)
        merged = self._merge(Frame.of({"code": owner[live], "start": old.ints("start")[live], "end": old.ints("end")[live]}), code, assigned)
        touched = present(merged.groups.ids[len(live) :], merged.groups.n)
        refused = self._refused(merged, touched, old.where(closed), owner[closed], keys)
        if not refused.any():
            held = len(self.core.cells)
            refused = self._no_room(delivery, assigned, merged, touched, old.take(live), len(live))
            if len(self.core.cells) != held:
                # Room was made, and what was found may have gone: look again.
                self.absorb(delivery, assigned)
                return
        if refused.any():
            self._turn_away(delivery, assigned, merged, touched, refused, len(live))
            return
        self._join(delivery, assigned, merged, touched, old.take(live), places.take(live))

    def _without_old(self, delivery: Delivery, assigned: Assigned) -> Assigned:
        """The windows less those that retention has pushed out; what would have been too late in any case is told as that."""
        gone = self.horizons.beyond(delivery, assigned)
        if gone is None:
            return assigned
        late = self.core.expired(self.core.expiry(assigned.end), self.core.watermark_at(delivery, assigned.row))
        told = Assigned(*(column[gone & late] for column in assigned))
        self.without(delivery, told, np.ones(len(told.row), bool), "window_expired")
        rest = ~(gone & late)
        return self.without_old(delivery, Assigned(*(column[rest] for column in assigned)))

    def _merge(self, old: Frame, code: np.ndarray, assigned: Assigned) -> Merged:
        spec = cast("Session", self.core.spec.window)
        start = np.concatenate([old.ints("start"), assigned.start])
        end = np.concatenate([old.ints("end"), assigned.end])
        return merge_intervals(np.concatenate([old.ints("code"), code]), start, end, spec.touch)

    def _refused(self, merged: Merged, touched: np.ndarray, closed: Frame, owner: np.ndarray, keys: Frame) -> np.ndarray:
        """Why sessions cannot take their rows: 1 where a closed session has the same bounds, 2 where their time is over."""
        start, end, code = merged.start[touched], merged.end[touched], merged.key[touched]
        why = np.zeros(len(touched), np.int8)
        if self.windows_expire:
            why[self.core.expired(self.core.expiry(end), self.core.watermark_for(keys.ints("kid")[code], keys.ints("chk")[code]))] = 2
        if len(closed):
            tombs = Frame.of({"code": owner, "start": closed.ints("start"), "end": closed.ints("end")})
            tombs = tombs.take(np.lexsort((tombs.ints("end"), tombs.ints("start"), tombs.ints("code"))))
            _, equal = search_sorted(tombs, Frame.of({"code": code, "start": start, "end": end}), ("code", "start", "end"))
            why[equal] = 1
        return why

    def _no_room(
        self, delivery: Delivery, assigned: Assigned, merged: Merged, touched: np.ndarray, old: Frame, live: int
    ) -> np.ndarray:
        """3 where a key holds as many newer sessions as retention allows."""
        if self.core.spec.retention.windows is None:
            return np.zeros(len(touched), np.int8)
        groups = merged.groups.ids[live:]
        whole = Assigned(assigned.row, merged.start[groups], merged.end[groups])
        growing = np.zeros(merged.groups.n, bool)
        growing[touched] = True
        swallowed = old.where(growing[merged.groups.ids[:live]])
        full = np.zeros(merged.groups.n, bool)
        full[groups] = self.horizons.admit(delivery, whole, swallowed)
        return np.where(full[touched], 3, 0).astype(np.int8)

    def _turn_away(
        self, delivery: Delivery, assigned: Assigned, merged: Merged, touched: np.ndarray, refused: np.ndarray, live: int
    ) -> None:
        """Send the rows of refused sessions to `late`, and absorb the rest."""
        why = np.zeros(merged.groups.n, np.int8)
        why[touched] = refused
        of_row = why[merged.groups.ids[live:]]
        bounds = merged.groups.ids[live:]
        told = Assigned(assigned.row, merged.start[bounds], merged.end[bounds])
        self.without(delivery, told, of_row == 1, "window_closed")
        self.without(delivery, assigned, of_row == 2, "window_expired")
        self.without(delivery, assigned, of_row == 3, "out_of_retention")
        rest = of_row == 0
        self.absorb(delivery, Assigned(*(column[rest] for column in assigned)))

    def _join(self, delivery: Delivery, assigned: Assigned, merged: Merged, touched: np.ndarray, old: Frame, places: Places) -> None:
        number = np.full(merged.groups.n, -1, np.int64)
        number[touched] = np.arange(len(touched))
        row_group = number[merged.groups.ids[len(old) :]]
        old_group = number[merged.groups.ids[: len(old)]]
        taking = np.flatnonzero(old_group >= 0)
        groups = Groups(row_group, len(touched))
        first = assigned.row[groups.firsts]
        identity = Frame.of(
            {"kid": delivery.kid[first], "chk": delivery.chk[first], "start": merged.start[touched], "end": merged.end[touched]}, len(touched)
        )
        keys = delivery.keys(self.core.spec.input.key, first)
        cells = self._united(identity, keys, old.take(taking), old_group[taking], groups.max(delivery.seq[assigned.row]))
        self.core.cells.remove(places.take(taking))
        self.join(delivery, Joining(assigned.row, groups, cells))

    def _united(self, identity: Frame, keys: dict[str, Column], old: Frame, group: np.ndarray, position: np.ndarray) -> Frame:
        """One cell a session: as it was where the bounds stay, otherwise a new one that holds what the old ones held."""
        fresh = self.core.fresh(identity, keys)
        self.core.progress.counters["windows_opened"] += len(identity) - len(present(group, len(identity)))
        if not len(old):
            return fresh
        same = (old.ints("start") == identity.ints("start")[group]) & (old.ints("end") == identity.ints("end")[group])
        replaced = old.where(~same)
        if len(replaced):
            self.firing.retract(replaced, position[group[~same]])
            if self.core.metadata is not None:
                self.core.metadata.rename(replaced, identity.take(group[~same]))
            fresh = self._inherit(fresh, replaced, group[~same])
        if not same.any():
            return fresh
        pick = np.arange(len(identity))
        pick[group[same]] = len(identity) + np.arange(int(same.sum()))
        return concat_frames([fresh, old.where(same)]).take(pick)

    def _inherit(self, fresh: Frame, old: Frame, group: np.ndarray) -> Frame:
        """Fresh cells that take over the contents of the cells they replace."""
        core, n = self.core, len(fresh)
        both = concat_frames([fresh, old])
        groups = Groups(np.concatenate([np.arange(n), group]), n)
        columns: dict[str, Column] = {
            "n": groups.sum(both.ints("n")),
            "pending": groups.sum(both.ints("pending")),
            "ontime": groups.any(both.ints("ontime")),
            "held": groups.any(both.ints("held")),
            "newest_seq": groups.max(both.ints("newest_seq")),
            "fired_seq": groups.max(both.ints("fired_seq")),
            "hold": merged_hold(both, groups, core.spec.options.timestamp),
        }
        state = core.trigger_state(fresh)
        replaced = present(group, n)
        merged = core.machine.merge(core.trigger_state(old), Groups(np.searchsorted(replaced, group), len(replaced)))
        core.machine.rewind(merged, (fresh.ints("end") > core.watermark_of(fresh))[replaced])
        for name, column in merged.items():
            state[name][replaced] = column
        columns.update(state)
        if core.messages is None:
            columns.update(core.bundle.combine(both, groups))
        else:
            columns.update(core.bundle.combine_known(both, groups))
        if "evicted" in both:
            columns["evicted"] = merge_lists(both["evicted"], groups)
        return fresh.with_mapping(columns)

    def _no_keys(self, delivery: Delivery) -> dict[str, Column]:
        return delivery.keys(self.core.spec.input.key, np.zeros(0, np.int64))


def _no_identity() -> Frame:
    nothing = {name: np.zeros(0, np.uint64 if name in KEY else np.int64) for name in IDENTITY}
    return Frame.of(nothing, 0)


def _key_codes(delivery: Delivery, row: np.ndarray) -> tuple[Frame, np.ndarray]:
    """The distinct keys of the rows, sorted, and the number of each row's key among them."""
    kid, chk = delivery.kid[row], delivery.chk[row]
    groups = Groups.by([kid, chk])
    kids, chks = kid[groups.firsts], chk[groups.firsts]
    order = np.lexsort((chks, kids))
    return Frame.of({"kid": kids[order], "chk": chks[order]}, groups.n), inverse(order)[groups.ids]
