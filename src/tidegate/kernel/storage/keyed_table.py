"""Keyed table: a run store whose rows are found by a unique identity.

Contract: at most one live row has an identity. `put` takes only identities that are not live; use
`upsert` where some may be.

Rows that are put go into one run with the youngest small ones. So a small table is one run most of
the time: a lookup searches once, and rows are read from one frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tidegate.kernel.frame import Frame, search_sorted, search_sorted_end
from tidegate.kernel.groups import expand_ranges
from tidegate.kernel.storage.run_store import Located, Places, Run, RunStore
from tidegate.state.store import Store

_FAN = 8
"""Runs of one size that are merged: rows of short-lived windows are gone before, and never move."""
_TOGETHER, _MOVED = 512, 8
"""Up to 512 rows become one run with those that are put, if these are at most 8 times fewer."""
_MOST = 32
"""Runs whose rows go at once are not merged while a table has fewer runs than this."""


class KeyedTable(RunStore):
    """Rows found by identity; see the module's contract."""

    def __init__(
        self,
        store: Store,
        prefix: str,
        identity: Sequence[str],
        watch: Sequence[str] = (),
        *,
        goes_by: str | None = None,
    ) -> None:
        """An empty table; `goes_by` is the watched column that decides when a row is removed."""
        self._goes_by = goes_by
        # A lookup searches every run, so that runs of any size are merged.
        super().__init__(
            store, prefix, identity, watch=watch, full_bytes=None, dense_keys=True, fan=_FAN
        )

    def find(self, query: Frame) -> Places:
        """The places of the rows with the identities of the query, which are distinct."""
        run_of = np.full(len(query), -1, np.int64)
        at = np.zeros(len(query), np.int64)
        for number, run in enumerate(self._runs):
            missing = np.flatnonzero(run_of < 0)
            if not len(missing):
                break
            wanted = query.take(missing) if len(missing) < len(query) else query
            position, hit = search_sorted(self._frame(run), wanted, self.order)
            if run.alive is not None:
                hit &= run.alive[np.minimum(position, run.rows - 1)]
            rows = missing[hit]
            run_of[rows], at[rows] = number, position[hit]
        return Places(run_of, at)

    def ranges(self, keys: Frame, columns: Sequence[str]) -> Places:
        """All rows whose leading identity columns are among the keys, sorted and distinct."""
        return self.owned_ranges(keys, columns)[0]

    def owned_ranges(self, keys: Frame, columns: Sequence[str]) -> tuple[Places, np.ndarray]:
        """The same with the number of the key of each row."""
        found: list[tuple[int, np.ndarray]] = []
        owners = [np.zeros(0, np.int64)]
        for number, run in enumerate(self._runs):
            frame = self._frame(run)
            low, hit = search_sorted(frame, keys, columns)
            owner = np.flatnonzero(hit)
            if not len(owner):
                continue
            low = low[owner]
            high = search_sorted_end(frame, keys.select(columns).take(owner), columns, low)
            position, owner = expand_ranges(low, high - low), np.repeat(owner, high - low)
            if run.alive is not None:
                alive = run.alive[position]
                position, owner = position[alive], owner[alive]
            found.append((number, position))
            owners.append(owner)
        return Places.of(found), np.concatenate(owners)

    def put(self, rows: Frame) -> None:
        """Add rows whose identities are not live."""
        if not len(rows):
            return
        runs, total = [], len(rows)
        for run in reversed(self._runs):
            if run.live > _MOVED * total or total + run.live > _TOGETHER:
                break
            total += run.live
            runs.append(run)
        self._put_together(runs[::-1], [self.sorted(rows)])

    def _put_together(self, runs: Sequence[Run], more: Sequence[Frame] = ()) -> None:
        """Replace the youngest runs by one, with more rows that are sorted."""
        frames = [*(self._frame(run) for run in runs), *more]
        live = [*(self._live(run) for run in runs), *(np.ones(len(rows), bool) for rows in more)]
        for run in runs:
            self._drop(run)
        self.append(frames[0] if len(frames) == 1 else self._united(frames, live)[0])

    def _is_full(self, group: Sequence[Run]) -> bool:
        return super()._is_full(group) or (
            self._goes_by is not None
            and len(self._runs) < _MOST
            and group[0].rows > _TOGETHER
            and self._go_at_once(group, self._goes_by)
        )

    @staticmethod
    def _go_at_once(group: Sequence[Run], name: str) -> bool:
        """Whether all rows are removed at the same time, such as the cells of one window."""
        return len({bound for run in group for bound in (run.lows[name], run.highs[name])}) == 1

    def save(self) -> dict[str, Any]:
        """Write what changed; small runs that the store does not have are written as one."""
        runs: list[Run] = []
        for run in reversed(self._runs):
            if run.is_stored or run.live + sum(other.live for other in runs) > _TOGETHER:
                break
            runs.append(run)
        if len(runs) > 1:
            self._put_together(runs[::-1])
        return super().save()

    def values(self, places: Places, name: str, default: int) -> np.ndarray:
        """An int64 column of the rows at places, with a default where no row was found."""
        values = np.full(len(places.run), default, np.int64)
        found = np.flatnonzero(places.found)
        if len(found):
            values[found] = self.take(places.take(found), (name,)).ints(name)
        return values

    def upsert(self, rows: Frame, places: Places | None = None) -> None:
        """Add rows, in place of those with the same identities; `places` are those if known."""
        self.remove(self.find(rows) if places is None else places)
        self.put(rows)

    def remove(self, places: Located) -> None:
        """Remove the rows at distinct places; places that were not found are ignored."""
        super().remove(places)
        for run in [run for run in self._runs if run.dead == run.rows]:
            self._drop(run)
