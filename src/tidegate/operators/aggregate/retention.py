"""Retention: windows within its bounds stay, and older ones are evicted; rows for those are late.

A closed window (its trigger has finished, or its lateness is over) stays readable and counts like
an open one until it is evicted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.instants import MAX, MIN, saturating_add
from tidegate.kernel.frame import Frame, concat_frames
from tidegate.kernel.groups import Groups, lexicographic_order
from tidegate.kernel.keys import KEY
from tidegate.kernel.storage.keyed_table import KeyedTable
from tidegate.kernel.storage.run_store import Places
from tidegate.kernel.windows.assigners import Assigned
from tidegate.operators.aggregate.cell_values import CellValues
from tidegate.operators.aggregate.collector import Collector
from tidegate.operators.aggregate.context import IDENTITY, OperatorContext
from tidegate.operators.aggregate.firing import Firing
from tidegate.operators.ingest.delivery import Delivery
from tidegate.spec.operator import Retention
from tidegate.spec.windows import Axis


class RetentionBounds:
    """The retention bounds of one operator, by time, windows, messages and bytes."""

    def __init__(self, context: OperatorContext, firing: Firing, cell_values: CellValues) -> None:
        self._context = context
        self._firing = firing
        self._cell_values = cell_values
        self._by_key = KeyedTable(context.store, "retention", KEY, watch=("end",))
        self._everywhere = MIN

    @property
    def _by_time(self) -> int:
        return self._time_bound(self._context.spec.retention)

    def _time_bound(self, retention: Retention) -> int:
        """The end of the newest windows that are too old."""
        span = retention.time
        progress = self._context.progress
        newest = progress.now if self._context.spec.window.axis is Axis.CLOCK else progress.newest
        return MIN if span is None or newest == MIN else int(saturating_add(newest, -span))

    def beyond(self, delivery: Delivery, assigned: Assigned) -> np.ndarray | None:
        """Which windows are behind a bound; None without retention."""
        if not self._context.spec.retention:
            return None
        gone = assigned.end <= max(self._by_time, self._everywhere)
        if len(self._by_key):
            keys = Groups.by([delivery.key_hash[assigned.row], delivery.key_check[assigned.row]])
            first = assigned.row[keys.firsts]
            query = Frame.of(
                {"key_hash": delivery.key_hash[first], "key_check": delivery.key_check[first]},
                keys.n,
            )
            end, start = (bound[keys.ids] for bound in self._horizon(query))
            # Of windows with the same end, the one with the later start is newer.
            gone |= (assigned.end < end) | ((assigned.end == end) & (assigned.start <= start))
        return gone

    def _horizon(self, keys: Frame) -> tuple[np.ndarray, np.ndarray]:
        """End and start of the newest evicted window of each key."""
        places = self._by_key.find(keys)
        return self._by_key.values(places, "end", MIN), self._by_key.values(places, "start", MIN)

    def admit(
        self,
        delivery: Delivery,
        assigned: Assigned,
        out: Collector,
        replaced: Frame | None = None,
    ) -> np.ndarray:
        """Which windows a key has no room for, because it holds as many newer ones.

        Older windows are evicted to make room. `replaced` windows merge into the wanted ones, and
        take no room.
        """
        limit = self._context.spec.retention.windows
        no = np.zeros(len(assigned.row), bool)
        if limit is None or not len(no):
            return no
        wanted = Frame.of(
            {
                "key_hash": delivery.key_hash[assigned.row],
                "key_check": delivery.key_check[assigned.row],
                "start": assigned.start,
                "end": assigned.end,
            },
            len(no),
        )
        held, places = self._held(wanted)
        if replaced is not None and len(held):
            keep = ~_among(held, replaced)
            held, places = held.where(keep), places.take(keep)
        both = concat_frames([wanted, held.select(IDENTITY)]) if len(held) else wanted
        windows = Groups.by([both.ints(name) for name in IDENTITY])
        over = _beyond(both.take(windows.firsts), limit)[windows.ids]
        self._push_and_raise(places.take(over[len(wanted) :]), out)
        return over[: len(wanted)]

    def enforce(self, out: Collector) -> None:
        """At the end of a micro-batch, evict windows behind the bounds of time and bytes."""
        retention = self._context.spec.retention
        if retention.time is not None:
            self._push(self._context.cells.select("end", self._by_time), out)
        if retention.bytes is not None:
            self._push_by_bytes(retention.bytes, out)

    def overflowing(
        self, delivery: Delivery, assigned: Assigned, keys: Groups, counts: np.ndarray
    ) -> np.ndarray:
        """The entries with which keys hold too many messages, and more than one window.

        Only the entries of `counts` add messages.
        """
        limit, over = self._context.spec.retention.messages, np.zeros(len(assigned.row), bool)
        first = assigned.row[keys.firsts]
        asked = Frame.of(
            {"key_hash": delivery.key_hash[first], "key_check": delivery.key_check[first]}, keys.n
        )
        held, _ = self._held(asked)
        if limit is None or not len(held):
            return over
        both = concat_frames([asked, held.select(KEY)])
        owner = Groups.by([both.ints(name) for name in KEY])
        total = np.zeros(owner.n, np.int64)
        np.add.at(total, owner.ids[keys.n :], held.ints("row_count"))
        windows = np.bincount(owner.ids[keys.n :], minlength=owner.n)
        of_key = owner.ids[: keys.n]
        order = keys.order
        added = counts[order].astype(np.int64)
        so_far = np.cumsum(added)
        begin = (so_far - added)[keys.offsets[:-1]]
        key = keys.ids[order]
        over[order] = (windows[of_key] > 1)[key] & (
            total[of_key][key] + so_far - begin[key] > limit
        )
        return over

    def enforce_counts(self, delivery: Delivery, out: Collector) -> None:
        """After a block of rows, evict the oldest windows of keys with too many messages.

        The newest window always stays.
        """
        limit = self._context.spec.retention.messages
        if limit is None or not len(delivery):
            return
        held, places = self._held(
            Frame.of(
                {"key_hash": delivery.key_hash, "key_check": delivery.key_check}, len(delivery)
            )
        )
        if not len(held):
            return
        newest_first = np.lexsort(
            (-held.ints("start"), -held.ints("end"), held.ints("key_check"), held.ints("key_hash"))
        )
        ranked = held.take(newest_first)
        keys = Groups.by([ranked.ints("key_hash"), ranked.ints("key_check")])
        n = ranked.ints("row_count")
        total = np.cumsum(n)
        held_so_far = total - (total - n)[keys.firsts][keys.ids]
        over = newest_first[(held_so_far > limit) & (keys.ranks > 0)]
        self._push_and_raise(places.take(over), out)

    def _held(self, keys: Frame) -> tuple[Frame, Places]:
        """The windows of the keys, open and closed."""
        groups = Groups.by([keys.ints("key_hash"), keys.ints("key_check")])
        distinct = keys.select(KEY).take(groups.firsts)
        places = self._context.cells.ranges(
            distinct.take(np.lexsort((distinct.ints("key_check"), distinct.ints("key_hash")))), KEY
        )
        if not len(places.run):
            return Frame({}, 0), places
        return self._context.cells.take(places), places

    def _push(self, places: Places, out: Collector) -> Frame | None:
        if not len(places.run):
            return None
        axis, cells = self._context.spec.window.axis, self._context.cells.take(places)
        self._context.cells.remove(places)
        order = lexicographic_order([cells.ints("end"), cells.ints("start")])
        self._firing.push_out(cells.take(order), self._context.progress.seq, out)
        self._context.progress.counters["windows_pushed_out"] += len(cells)
        if self._context.window_offsets is not None and axis is Axis.ORDINAL:
            self._context.window_offsets.forget(cells)
        self._cell_values.trim(
            cells.ints("key_hash"), cells.ints("key_check"), evicted=cells.ints("end")
        )
        return cells

    def _push_and_raise(self, places: Places, out: Collector) -> None:
        pushed = self._push(places, out)
        if pushed is not None:
            self._raise(pushed)

    def _raise(self, pushed: Frame) -> None:
        """Remember the newest evicted window of each key."""
        found = _newest(pushed.select(IDENTITY))
        places = self._by_key.find(found)
        if places.found.any():
            old = self._by_key.take(places.take(places.found)).select(IDENTITY)
            found = _newest(concat_frames([found, old]))
        self._by_key.upsert(found)

    def _push_by_bytes(self, limit: int, out: Collector) -> None:
        """Evict whole windows, oldest first, until the rest fits or one is left."""
        context = self._context
        while (
            size := context.cells.nbytes
            + (context.messages.nbytes if context.messages is not None else 0)
        ) > limit:
            cells = context.cells.all()
            ends = np.sort(cells.ints("end")) if cells is not None else np.zeros(0, np.int64)
            older = ends[ends < ends[-1]] if len(ends) else ends
            if not len(older):
                return
            bound = int(older[min(len(older) - 1, int(len(ends) * (1 - limit / size)))])
            self._push(context.cells.select("end", bound), out)
            context.cells.compact()
            self._everywhere = max(self._everywhere, bound)

    def forget(self, watermark: int) -> None:
        """Forget bounds that lateness has passed."""
        if len(self._by_key) and self._context.event_lateness != MAX and watermark != MIN:
            self._by_key.remove(
                self._by_key.select(
                    "end", int(saturating_add(watermark, -self._context.event_lateness)) - 1
                )
            )

    def save(self) -> Any:
        return {"everywhere": self._everywhere, "by_key": self._by_key.save()}

    def restore(self, document: Any, former: Retention | None = None) -> None:
        """Continue from a saved document; with `former` bounds, what was evicted stays evicted."""
        self._everywhere = document["everywhere"]
        if former is not None:
            self._everywhere = max(self._everywhere, self._time_bound(former))
        self._by_key.restore(document["by_key"])


def _newest(windows: Frame) -> Frame:
    """The newest window of each key."""
    ranked = windows.take(lexicographic_order([windows.ints("end"), windows.ints("start")]))
    return ranked.take(Groups.by([ranked.ints("key_hash"), ranked.ints("key_check")]).lasts)


def _beyond(windows: Frame, limit: int) -> np.ndarray:
    """Which windows are not among the newest of their key."""
    order = np.lexsort(
        (
            -windows.ints("start"),
            -windows.ints("end"),
            windows.ints("key_check"),
            windows.ints("key_hash"),
        )
    )
    ranked = windows.take(order)
    beyond = np.empty(len(windows), bool)
    beyond[order] = Groups.by([ranked.ints("key_hash"), ranked.ints("key_check")]).ranks >= limit
    return beyond


def _among(windows: Frame, others: Frame) -> np.ndarray:
    """Which windows are among the others."""
    both = concat_frames([windows.select(IDENTITY), others.select(IDENTITY)])
    groups = Groups.by([both.ints(name) for name in IDENTITY])
    found = np.zeros(groups.n, bool)
    found[groups.ids[len(windows) :]] = True
    return found[groups.ids[: len(windows)]]
