"""Join buffer: the rows of one side of a join, which rows of the other side are matched against.

It is a run store in the layout of the join. The layout changes once there are more than
`LARGE_WINDOW` rows, and stays so.

Contract
- `equal_hash` is the hash of the equal fields, `position` the time or offset that ranges go by.
  Other columns are the caller's.
- `put` moves nothing, so that places stay valid until `tidy`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tidegate.instants import MIN
from tidegate.kernel.frame import Frame, is_constant
from tidegate.kernel.groups import inverse, lexicographic_order
from tidegate.kernel.joins.range_matching import NOTHING, Found, Index, Ordered, ordered, pairs
from tidegate.kernel.storage.layout import LARGE_WINDOW, Layout
from tidegate.kernel.storage.run_store import Adapt, Places, Run, RunStore
from tidegate.state.store import Store

BY_FIELDS = ("equal_hash", "position")
LAYOUTS = (
    Layout(("timestamp", "equal_fields", "offset")),
    Layout(("equal_fields", "timestamp", "offset")),
)
"""The layouts of small and of large windows where the query has equal fields and a time range."""


@dataclass(slots=True)
class Query:
    """Rows in their order of arrival, with the inclusive ranges of positions they match."""

    by: Ordered
    low: np.ndarray
    high: np.ndarray

    def __len__(self) -> int:
        return len(self.low)


class _RunIndex(NamedTuple):
    ranges: Index
    rows: np.ndarray | None
    """The row of the run at each place of the index; None where they are the same."""


class JoinBuffer(RunStore):
    """The rows of one side; see the module's contract."""

    def __init__(
        self,
        store: Store,
        prefix: str,
        marks: Mapping[str, Any] | None = None,
        watch: Sequence[str] = ("position",),
        layouts: tuple[Layout, Layout] = LAYOUTS,
    ) -> None:
        self.layouts = layouts
        self.is_large = False
        super().__init__(store, prefix, _order(layouts[0]), watch=watch, marks=marks)

    @property
    def layout(self) -> Layout:
        """The layout of the rows."""
        return self.layouts[self.is_large]

    @property
    def nbytes(self) -> int:
        """Decoded size of rows, marks and indexes."""
        return super().nbytes + sum(
            run.index.ranges.nbytes for run in self._runs if run.index is not None
        )

    def add(self, frame: Frame, by: Ordered | None = None, **marks: np.ndarray) -> None:
        """Store rows, with the marks that differ from those of a new row, and compact."""
        self.put(frame, by, **marks)
        self.tidy()

    def put(self, frame: Frame, by: Ordered | None = None, **marks: np.ndarray) -> Places:
        """Store rows and return their places; no other row moves before `tidy`."""
        if not len(frame):
            return Places.of([])
        for name, start in self.marks.items():
            marks.setdefault(name, np.full(len(frame), start))
        self._grow(sum(run.rows for run in self._runs) + len(frame))
        is_by_fields = _is_by_fields(self.order, frame)
        order = by.order if by is not None and is_by_fields else self._sort_order(frame)
        self._append(frame.take(order), {name: column[order] for name, column in marks.items()})
        return Places(np.full(len(frame), len(self._runs) - 1), inverse(order))

    def _grow(self, rows: int) -> None:
        if not self.is_large and rows > LARGE_WINDOW:
            self.is_large, self.order = True, _order(self.layouts[1])

    def _sort_order(self, frame: Frame) -> np.ndarray:
        if _is_by_fields(self.order, frame):
            return ordered(frame.ints("equal_hash"), frame.ints("position")).order
        return lexicographic_order([frame.ints(name) for name in self.order])

    def expire(self, horizons: Mapping[str, int]) -> None:
        """Raise horizons: whole runs go at once, single rows once half of their run is gone."""
        if any(limit > self.horizons[name] for name, limit in horizons.items()):
            super().expire(horizons)
            for run in list(self._runs):
                self.shrink(run)

    # Matching rows

    def probe(self, query: Query) -> Found:
        """The live rows with the equal-field hash of each row of the query and a position in its
        range; by row of the query, then by run.
        """
        if not len(query) or not self._runs:
            return NOTHING
        blocks: list[tuple[int, np.ndarray, np.ndarray]] = []
        order, keys, code = query.by
        low, high, codes = query.low[order], query.high[order], code[order]
        lowest, highest = int(low.min()), int(high.max())
        for number, run in enumerate(self._runs):
            if (
                run.highs["position"] < lowest
                or run.lows["position"] > highest
                or run.dead == run.rows
            ):
                continue
            first, last = self._index(run).ranges.ranges(keys, codes, low, high)
            blocks.append((number, _by_arrival(first, order), _by_arrival(last, order)))
        found = pairs(blocks)
        for number, _, _ in blocks:
            rows = self._index(self._runs[number]).rows
            if rows is not None:
                here = found.run == number
                at = found.at.copy()
                at[here] = rows[at[here]]
                found = found._replace(at=at)
        return found.where(self.are_live(found)) if len(found.row) else found

    def latest(self, query: Query, rows: Frame, compared: Sequence[str]) -> np.ndarray:
        """The latest position in the range of each row of the query at which a live row is equal
        in the compared columns; `MIN` where none is.
        """
        best = np.full(len(query), MIN)
        order, keys, code = query.by
        low, high, codes = query.low[order], query.high[order], code[order]
        for run in self._runs:
            index, row_at = self._index(run)
            first, last = (
                _by_arrival(column, order) for column in index.ranges(keys, codes, low, high)
            )
            live, at = self._live(run), self._ints(run, "position")
            place = last - 1
            pending = np.flatnonzero(place >= first)
            while len(pending):
                here = place[pending] if row_at is None else row_at[place[pending]]
                good = live[here]
                for name in compared:
                    good &= self._ints(run, name)[here] == rows.ints(name)[pending]
                best[pending[good]] = np.maximum(best[pending[good]], at[here[good]])
                # Few rows are passed over: they were retracted, or their hashes collide.
                pending = pending[~good]
                place[pending] -= 1
                pending = pending[place[pending] >= first[pending]]
        return best

    def pending(self, below: Mapping[str, int] | None) -> Places:
        """The live rows that have no partner and were not emitted without one; with limits, those
        below one of them.
        """
        found = []
        for number, run in enumerate(self._runs):
            if below is not None and all(run.lows[name] >= limit for name, limit in below.items()):
                continue
            pending = run.marks["emitted"] == 0
            if "partners" in run.marks:
                pending &= run.marks["partners"] == 0
            if not pending.any():
                continue
            pending &= self._live(run)
            if below is not None:
                pending &= self._below(run, below)
            found.append((number, np.flatnonzero(pending)))
        return Places.of(found)

    def _index(self, run: Run) -> _RunIndex:
        if run.index is None:
            equal_hash, at = self._ints(run, "equal_hash"), self._ints(run, "position")
            rows = None
            if not _is_by_fields(run.order, self._frame(run)):
                rows = ordered(equal_hash, at).order
                equal_hash, at = equal_hash[rows], at[rows]
            run.index = _RunIndex(Index.over(equal_hash, at), rows)
        return run.index

    # Snapshots

    def save(self) -> dict[str, Any]:
        """Write what changed, and return the manifest to restore from."""
        return {**super().save(), "is_large": self.is_large}

    def restore(self, manifest: Mapping[str, Any], adapt: Adapt | None = None) -> None:
        """Continue from a manifest."""
        self.is_large = manifest["is_large"]
        self.order = _order(self.layout)
        super().restore(manifest, adapt)


def _order(layout: Layout) -> tuple[str, ...]:
    """The columns of the buffer to sort by; the key of a session is its equal fields."""
    names = {
        "session_key": "equal_hash",
        "equal_fields": "equal_hash",
        "timestamp": "position",
        "offset": "position",
    }
    return tuple(dict.fromkeys(names[field] for field in layout.fields))


def _is_by_fields(order: tuple[str, ...], frame: Frame) -> bool:
    """Whether an order is that of (equal-field hash, position)."""
    return order == BY_FIELDS or (order[0] == "position" and is_constant(frame["equal_hash"]))


def _by_arrival(column: np.ndarray, order: np.ndarray) -> np.ndarray:
    """A column of sorted rows in the order of arrival."""
    found = np.empty_like(column)
    found[order] = column
    return found
