"""Horizons are the bounds of retention: windows that lie behind them are pushed out, and messages for them come too late."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.instants import MAX, MIN, saturating_add
from tidegate.kernel.frame import Frame, concat_frames
from tidegate.kernel.groups import Groups
from tidegate.kernel.runs import Places, SortedRuns
from tidegate.kernel.windows import Assigned
from tidegate.operators.core import KEY, Core
from tidegate.operators.delivery import Delivery
from tidegate.operators.firing import Firing


class Horizons:
    """Retention by time, windows, messages and bytes."""

    def __init__(self, core: Core, firing: Firing) -> None:
        self._core = core
        self._firing = firing
        self._by_key = SortedRuns(core.store, "horizons", KEY, watch=("end",))
        self._everywhere = MIN

    @property
    def _by_time(self) -> int:
        span = self._core.spec.retention.time
        newest = self._core.progress.newest
        return MIN if span is None or newest == MIN else int(saturating_add(newest, -span))

    def beyond(self, delivery: Delivery, assigned: Assigned) -> np.ndarray | None:
        """Which windows are behind a horizon; None where there is no retention."""
        if not self._core.spec.retention:
            return None
        gone = assigned.end <= max(self._by_time, self._everywhere)
        if len(self._by_key):
            keys = Groups.by([delivery.kid[assigned.row], delivery.chk[assigned.row]])
            first = assigned.row[keys.firsts]
            query = Frame.of({"kid": delivery.kid[first], "chk": delivery.chk[first]}, keys.n)
            gone |= assigned.end <= self._horizon(query)[keys.ids]
        return gone

    def _horizon(self, keys: Frame) -> np.ndarray:
        places = self._by_key.find(keys)
        horizon = np.full(len(keys), MIN)
        found = np.flatnonzero(places.found)
        if len(found):
            horizon[found] = self._by_key.take(Places(places.run[found], places.at[found])).ints("end")
        return horizon

    def enforce(self) -> None:
        """Push out what is behind the horizons, oldest first."""
        retention = self._core.spec.retention
        if not retention or not len(self._core.cells):
            return
        if retention.time is not None:
            self._push(self._core.cells.select("end", self._by_time))
        if retention.windows is not None or retention.messages is not None:
            self._push_by_key(retention.windows or MAX, retention.messages or MAX)
        if retention.bytes is not None:
            self._push_by_bytes(retention.bytes)

    def _push(self, places: Places) -> Frame | None:
        if not len(places.run):
            return None
        cells = self._core.cells.take(places)
        self._core.cells.remove(places)
        order = np.lexsort((cells.ints("start"), cells.ints("end")))
        self._firing.push_out(cells.take(order), self._core.progress.seq)
        self._core.progress.counters["windows_pushed_out"] += len(cells)
        return cells

    def _push_by_key(self, windows: int, messages: int) -> None:
        cells = self._core.cells.all()
        if cells is None:
            return
        newest_first = np.lexsort((-cells.ints("end"), cells.ints("chk"), cells.ints("kid")))
        ranked = cells.take(newest_first)
        keys = Groups.by([ranked.ints("kid"), ranked.ints("chk")])
        total = np.cumsum(ranked.ints("n"))
        start = np.zeros(keys.n, np.int64)
        start[keys.ids[keys.firsts]] = total[keys.firsts] - ranked.ints("n")[keys.firsts]
        held = total - start[keys.ids]
        # The newest window stays even if it alone holds more than is allowed: it is the one being filled.
        over = ((keys.ranks >= windows) | (held > messages)) & (keys.ranks > 0)
        if over.any():
            pushed = self._push(self._core.cells.find(ranked.where(over).select(("kid", "chk", "start", "end"))))
            if pushed is not None:
                self._raise(pushed)

    def _raise(self, pushed: Frame) -> None:
        """Remember per key how far windows were pushed out."""
        keys = Groups.by([pushed.ints("kid"), pushed.ints("chk")])
        found = Frame.of({"kid": pushed.ints("kid")[keys.firsts], "chk": pushed.ints("chk")[keys.firsts], "end": keys.max(pushed.ints("end"))}, keys.n)
        places = self._by_key.find(found)
        known = np.flatnonzero(places.found)
        if len(known):
            there = Places(places.run[known], places.at[known])
            old = self._by_key.take(there)
            self._by_key.remove(there)
            found = concat_frames([found, old])
            keys = Groups.by([found.ints("kid"), found.ints("chk")])
            found = found.take(keys.firsts).with_columns(end=keys.max(found.ints("end")))
        self._by_key.put(found)

    def _push_by_bytes(self, limit: int) -> None:
        core = self._core
        size = core.cells.nbytes + (core.messages.nbytes if core.messages is not None else 0)
        if size <= limit:
            return
        cells = core.cells.all()
        if cells is None:
            return
        ends = np.sort(cells.ints("end"))
        share = min(len(ends) - 1, int(len(ends) * (1 - limit / size)))
        bound = int(ends[share])
        if bound >= int(ends[-1]):
            bound = int(ends[0]) if ends[0] < ends[-1] else MIN
        if bound != MIN:
            self._push(core.cells.select("end", bound))
            self._everywhere = max(self._everywhere, bound)

    def forget(self, watermark: int) -> None:
        """Horizons that lateness has passed no longer matter."""
        if len(self._by_key) and self._core.lateness != MAX and watermark != MIN:
            self._by_key.remove(self._by_key.select("end", int(saturating_add(watermark, -self._core.lateness)) - 1))

    def save(self) -> Any:
        return {"everywhere": self._everywhere, "by_key": self._by_key.save()}

    def restore(self, document: Any) -> None:
        self._everywhere = document["everywhere"]
        self._by_key.restore(document["by_key"])
