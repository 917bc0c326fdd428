"""Range joins: partners lie in a range of times or offsets, within bounds or in shared windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidegate.instants import MAX, MIN, saturating_add
from tidegate.kernel.frame import Frame
from tidegate.kernel.groups import Groups
from tidegate.kernel.joins.join_buffer import Query
from tidegate.kernel.joins.match_bounds import POSITION, WindowBounds, match_bounds
from tidegate.kernel.joins.range_matching import Found, Ordered, ordered
from tidegate.kernel.storage.run_store import Places
from tidegate.operators.join.collector import JoinCollector, Window
from tidegate.operators.join.context import Times
from tidegate.operators.join.matching import (
    Arrived,
    Matches,
    PairMatching,
    Standing,
    Turn,
    below,
    by_side,
)
from tidegate.operators.join.side import Taken
from tidegate.spec.join import LEFT, JoinSpec


@dataclass(eq=False)
class RangeJoin(PairMatching):
    """A join whose rows match in the ranges of its `MatchBounds`."""

    def __post_init__(self) -> None:
        self.bounds = match_bounds(self.spec)

    @classmethod
    def time_columns(cls, spec: JoinSpec, side: int) -> dict[str, str]:
        return match_bounds(spec).columns(side)

    @classmethod
    def last_instant(cls, spec: JoinSpec) -> Callable[[np.ndarray], np.ndarray] | None:
        bounds = match_bounds(spec)
        if not isinstance(bounds, WindowBounds):
            return None
        return lambda at: bounds.reach(LEFT, {POSITION: at})[1]

    @classmethod
    def row_marks(cls, spec: JoinSpec, side: int) -> dict[str, Any]:
        """The marks of all joins; in a semi join also the window of the first pair, if a row is in
        several.
        """
        marks, bounds = super().row_marks(spec, side), match_bounds(spec)
        overlap = isinstance(bounds, WindowBounds) and bounds.assigner.is_sliced
        if marks and spec.how == "semi" and overlap:
            marks.update(start=np.int64(0), end=np.int64(0))
        return marks

    # Limits

    def complete(self, side: int) -> dict[str, int]:
        """By column, the times of a side below which no partner is expected."""
        return self._limits(side, self.sides[1 - side].marks)

    def closed(self, side: int) -> dict[str, int]:
        """By column, the times of a side below which a partner would be too late."""
        return self._limits(side, self.sides[1 - side].horizons())

    def _limits(self, side: int, marks: Mapping[str, int]) -> dict[str, int]:
        if self.finishing:
            return dict.fromkeys(self.sides[side].buffer.watched, MAX)
        return self.bounds.limits(side, marks)

    def expired(self, side: int) -> dict[str, int]:
        """By column, the times of a side below which rows are of no use.

        A row that may be retracted is of use until its retraction would be too late.
        """
        own, limits = self.sides[side], self.closed(side)
        if own.op_column is None or self.finishing:
            return limits
        if not own.is_timed:
            passed = self.bounds.limits(1 - side, own.marks)
            return {name: min(limit, passed[name]) for name, limit in limits.items()}
        taken = {
            own.columns[name]: horizon
            for name, horizon in own.horizons().items()
            if name in own.columns
        }
        return {name: min(limit, taken.get(name, MIN)) for name, limit in limits.items()}

    def due_limits(self, side: int) -> dict[str, int] | None:
        if self.spec.padding == "early":
            return None
        return self.closed(side) if self.spec.padding == "final" else self.complete(side)

    def due_at(self, side: int, first: int) -> int:
        """See `JoinMatching`; offsets do not wait for a watermark of times."""
        if not self.sides[side].is_timed:
            return MAX
        _, last = self.bounds.reach(side, {POSITION: np.array([first])})
        late = self.spec.lateness if self.spec.padding == "final" else 0
        return int(saturating_add(int(saturating_add(int(last[0]), late)), 1))

    # Rows

    def turns(self, rows: Mapping[int, Taken]) -> Iterator[Turn]:
        return by_side(rows, _alternations)

    def match(self, rows: Mapping[int, Taken], out: JoinCollector) -> Matches:
        ((side, taken),) = rows.items()
        standing = self._standing(side, self._times(side, taken.frame))
        frame = self.marked_late(taken, standing.complete)
        places = self.keep(side, taken, frame)
        found = self._found(side, frame, taken.by, out)
        order, pair_order = self.positions(found.row, len(taken), out)
        matched = np.bincount(found.row, minlength=len(taken)) > 0
        mine, theirs = places.take(found.row), Places(np.asarray(found.run), found.at)
        left, right = (mine, theirs) if side == LEFT else (theirs, mine)
        return Matches(
            [Arrived(side, frame, places, standing, matched, order)],
            left,
            right,
            pair_order,
            self.pair_window(left, right),
        )

    def after_match(self, matches: Matches) -> None:
        """Drop new rows that no later row can be paired with, unless retention keeps them."""
        if self.spec.retention:
            return
        for new in matches.arrived:
            limits = self.expired(new.side)
            useless = below(self._times(new.side, new.rows), limits, len(new.rows))
            useless &= new.places.run >= 0
            if useless.any():
                self.sides[new.side].buffer.remove(new.places.take(useless))

    def partners(self, side: int, places: Places) -> Found:
        rows = self.asking(side, places, self.sides[side].buffer.watched)
        return self._found(side, rows, ordered(rows.ints("equal_hash"), rows.ints(POSITION)), None)

    def _found(self, side: int, rows: Frame, by: Ordered, out: JoinCollector | None) -> Found:
        query = Query(by, *self.bounds.reach(side, self._times(side, rows)))
        return self.probe(side, rows, query, out, self.bounds.holds)

    def standing(self, side: int, places: Places) -> Standing:
        names = list(self.sides[side].buffer.watched)
        return self._standing(side, self._times(side, self.stored(side, places, names)))

    def _standing(self, side: int, times: Times) -> Standing:
        n, limits = len(times[POSITION]), self.due_limits(side)
        due = np.ones(n, bool) if limits is None else below(times, limits, n)
        return Standing(below(times, self.complete(side), n), due, self.own_window(times[POSITION]))

    def _times(self, side: int, rows: Frame) -> Times:
        return {name: rows.ints(name) for name in self.sides[side].buffer.watched}

    def expire(self) -> None:
        for side in self.sides:
            side.buffer.expire(self.expired(side.number))

    # Windows

    def has_window(self, at: np.ndarray) -> np.ndarray:
        return (
            self.bounds.has_window(at)
            if isinstance(self.bounds, WindowBounds)
            else np.ones(len(at), bool)
        )

    def own_window(self, at: np.ndarray) -> Window | None:
        if not isinstance(self.bounds, WindowBounds):
            return None
        return self.bounds.first_window(at)

    def pair_window(self, left: Places, right: Places) -> Window | None:
        if not self.spec.has_windows:
            return None
        times = [
            self.stored(side, places, [POSITION]).ints(POSITION)
            for side, places in enumerate((left, right))
        ]
        return self.bounds.window(*times)

    def windows(self, side: int, rows: Frame) -> Frame:
        """The windows that rows match in, or the ranges that rows of the other side look into."""
        at = np.sort(rows.ints(POSITION))
        if isinstance(self.bounds, WindowBounds):
            start, end = self.bounds.windows_of(at)
        else:
            frames = [frame.ints(POSITION) for frame in self.sides[1 - side].buffer.frames()]
            others = np.unique(np.concatenate([*frames, np.zeros(0, np.int64)]))
            start, last = self.bounds.reach(1 - side, {POSITION: others})
            end = saturating_add(np.asarray(last), 1)
        count = np.searchsorted(at, end) - np.searchsorted(at, start)
        found = Frame.of(
            {"start": np.asarray(start), "end": np.asarray(end), "count": count}, len(count)
        )
        return found.where(count > 0)

    def promised(self, side: int) -> dict[str, int]:
        own, other = self.sides[side], self.sides[1 - side]
        if not own.is_timed:
            return self.promised_by_rows(side)
        least = self.emitter.least(side)
        if self.spec.padding == "final":
            pending = self.stored(side, self.pending(side), [POSITION]).ints(POSITION)
            least = min(least, int(pending.min(initial=MAX)))
        found = self.bounds.promised(side, own.marks, other.marks)
        if own.given.time in found:
            # No row that is older than retention comes out any more.
            kept = min(own.watermark, own.horizon)
            found[own.given.time] = max(found[own.given.time], kept)
        return {name: min(promise, least) for name, promise in found.items()}


def _alternations(rows: Taken) -> np.ndarray:
    """Turn numbers: a turn takes the new rows of a key that follow each other, then retractions."""
    if rows.weight is None:
        return np.zeros(len(rows), np.int64)
    frame = rows.frame
    keys = Groups.by([frame.ints(name) for name in ("equal_hash", "key_check")])
    retracts = rows.weight[keys.order] < 0
    first = np.zeros(len(rows), bool)
    first[keys.offsets[:-1]] = True
    before = np.concatenate([[False], retracts[:-1]]) & ~first
    # A turn ends where a new row follows a retraction.
    begins = (~retracts & before).astype(np.int64)
    total = np.cumsum(begins)
    turns = np.empty(len(rows), np.int64)
    turns[keys.order] = total - np.repeat(total[keys.offsets[:-1]], keys.counts)
    return turns
