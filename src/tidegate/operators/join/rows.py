"""Joins of tuples: a new row looks into the last n messages of the other side as they are then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from tidegate.instants import MAX, MIN, saturating_add
from tidegate.kernel.frame import Frame
from tidegate.kernel.groups import inverse
from tidegate.kernel.joins.join_buffer import Query
from tidegate.kernel.joins.range_matching import Found, ordered
from tidegate.kernel.storage.run_store import Places
from tidegate.operators.join.collector import JoinCollector
from tidegate.operators.join.context import Times
from tidegate.operators.join.matching import (
    STEPS,
    Arrived,
    Matches,
    PairMatching,
    Standing,
    Turn,
)
from tidegate.operators.join.side import Taken
from tidegate.spec.join import LEFT, RIGHT, Rows


@dataclass(eq=False)
class RowsJoin(PairMatching):
    """A join in windows of messages of each side, or of time on one side.

    A stored row has a `lane`, the number of its partition, and `came`, its number among the rows of
    both sides. It leaves a window of n messages with the first row of its lane that is n positions
    further.
    """

    came: int = 0
    """The number of rows of both sides so far."""
    lanes: tuple[dict[int, Lane], dict[int, Lane]] = field(default_factory=lambda: ({}, {}))

    @property
    def window(self) -> Rows:
        return cast("Rows", self.spec.window)

    # Limits

    def _starts(self, side: int) -> np.ndarray:
        """By lane, the position at which the window of a side starts."""
        size, lanes = self.window.size(side), self.lanes[side]
        if size is None:
            return np.full(len(lanes), MIN)
        return np.array([lanes[n].position[-1] - size + 1 for n in range(len(lanes))], np.int64)

    def _time_limit(self, side: int, *, is_final: bool) -> int:
        """The time up to which rows of a side have left a window of time."""
        span, mark = self.window.span(side), self.sides[1 - side].watermark
        if span is None or mark == MIN:
            return MIN
        late = self.spec.lateness if is_final else 0
        return mark if mark == MAX else int(saturating_add(int(saturating_add(mark, -span)), -late))

    def _has_left(self, side: int, rows: Frame, *, is_final: bool) -> np.ndarray:
        """Which rows have left the window of their side for good."""
        if self.finishing:
            return np.ones(len(rows), bool)
        if self.window.span(side) is not None:
            return rows.ints("time") <= self._time_limit(side, is_final=is_final)
        starts = self._starts(side)
        if not len(starts):
            return np.zeros(len(rows), bool)
        return rows.ints("position") < starts[rows.ints("lane")]

    @property
    def _limited(self) -> list[str]:
        return ["position", "lane", *(["time"] if self.window.compares_times else [])]

    def pad_due(self, out: JoinCollector) -> None:
        if self.spec.padding == "early":
            return
        for side in (LEFT, RIGHT):
            places = self.pending(side)
            if len(places.at):
                rows = self.stored(side, places, self._limited)
                due = self._has_left(side, rows, is_final=self.spec.padding == "final")
                self.pad_in_order(side, places.take(np.flatnonzero(due)), out)

    def due_at(self, side: int, first: int) -> int:  # noqa: ARG002
        """Never: rows leave windows of messages by offsets; see `waits_for`."""
        return MAX

    def waits_for(self) -> int:
        for side in (LEFT, RIGHT):
            span, places = self.window.span(side), self.pending(side)
            if span is not None and len(places.at) and self.spec.padding != "early":
                late = self.spec.lateness if self.spec.padding == "final" else 0
                least = int(self.stored(side, places, ["time"]).ints("time").min())
                return int(saturating_add(int(saturating_add(least, span)), late))
        return MAX

    def expire(self) -> None:
        for side in self.sides:
            number, buffer, kept = side.number, side.buffer, self._kept_from(side.number)
            if self.window.span(number) is not None:
                limit = self._time_limit(number, is_final=True)
                left = int(saturating_add(limit, 1)) if limit != MIN else MIN
                buffer.expire({"time": min(left, kept)})
                continue
            starts = self._starts(number)
            if not len(starts) or self.window.size(number) is None:
                continue
            if kept == MAX and not side.has_partitions:
                buffer.expire({"position": int(starts[0])})
                continue
            # A horizon of positions would hide the first rows of a partition that begins later.
            places = buffer.places({"position": int(starts.max())})
            rows = self.stored(number, places, self._limited)
            gone = self._has_left(number, rows, is_final=True)
            if kept != MAX:
                gone &= rows.ints("time") < kept
            buffer.remove(places.take(np.flatnonzero(gone)))

    def _kept_from(self, side: int) -> int:
        """The time from which rows that have left their window are kept, because retractions of
        them may be taken; `MAX` if none are.
        """
        own = self.sides[side]
        if own.op_column is None or not self.window.compares_times:
            return MAX
        return own.horizons()[own.given.time or ""]

    # Rows

    def turns(self, rows: Mapping[int, Taken]) -> Iterator[Turn]:
        """New rows of both sides up to a retraction, or retractions of one side, in one order."""
        if all(taken.weight is None for taken in rows.values()):
            if rows:
                yield 1, rows
            return
        step = self._steps(rows)
        total = sum(map(len, rows.values()))
        # What tells turns apart: 0 for new rows, else the retraction's side plus one.
        kind = np.zeros(total, np.int64)
        for side, taken in rows.items():
            if taken.weight is not None:
                kind[step[side]] = np.where(taken.weight < 0, side + 1, 0)
        turn = np.cumsum(np.concatenate([[0], kind[1:] != kind[:-1]]))
        for number in range(int(turn[-1]) + 1):
            chosen = {side: np.flatnonzero(turn[step[side]] == number) for side in rows}
            yield (
                -1 if kind[np.argmax(turn == number)] else 1,
                {side: rows[side].take(index) for side, index in chosen.items() if len(index)},
            )

    def _steps(self, rows: Mapping[int, Taken]) -> dict[int, np.ndarray]:
        """The place of each row in the order of both sides: by position, left before right."""
        at = {side: taken.frame.ints("position") for side, taken in rows.items()}
        distance = list(at.values())
        number = np.concatenate([np.full(len(at[side]), side) for side in at])
        order = np.lexsort((number, np.concatenate(distance)))
        bounds = np.cumsum([len(at[side]) for side in at])[:-1]
        return dict(zip(at, np.split(inverse(order), bounds), strict=True))

    def match(self, rows: Mapping[int, Taken], out: JoinCollector) -> Matches:
        step = self._steps(rows)
        starts = [self._starts(side) for side in (LEFT, RIGHT)]
        standing = {side: self._arriving(side, taken.frame) for side, taken in rows.items()}
        frames = {
            side: self.marked_late(taken, standing[side].complete).with_columns(
                came=self.came + step[side]
            )
            for side, taken in rows.items()
        }
        total = sum(map(len, rows.values()))
        self.came += total
        places = {side: self.keep(side, taken, frames[side]) for side, taken in rows.items()}
        for side, frame in frames.items():
            self._note(side, frame)
        # A partition that is new has rows at any position.
        low = [
            int(at.min()) if len(at) and len(at) == len(self.lanes[side]) else MIN
            for side, at in enumerate(starts)
        ]
        base = out.reserve(STEPS * (total + 1))
        pairs = [
            self._pairs(side, taken, frames[side], places[side], step[side], low[1 - side], out)
            for side, taken in rows.items()
        ]
        left, right, when = (np.concatenate([part[n] for part in pairs]) for n in range(3))
        order = np.argsort(when, kind="stable")
        matched = np.zeros(total, bool)
        matched[when] = True
        arrived = [
            Arrived(
                side,
                frames[side],
                places[side],
                standing[side],
                matched[step[side]],
                base + STEPS * step[side],
            )
            for side, taken in rows.items()
        ]
        self._forget()
        return Matches(
            arrived, _places(left[order]), _places(right[order]), base + STEPS * when[order]
        )

    def _note(self, side: int, frame: Frame) -> None:
        """Note when positions were reached, by lane."""
        lane, at, came = (frame.ints(name) for name in ("lane", "position", "came"))
        for number in np.unique(lane).tolist():
            here = lane == number
            known = self.lanes[side].get(number, Lane())
            self.lanes[side][number] = known.with_rows(at[here], came[here])

    def _forget(self) -> None:
        """Forget when positions were reached that no stored row is asked about."""
        for side, lanes in enumerate(self.lanes):
            # Without retractions, pairs of stored rows are not looked at again.
            least = self.sides[side].buffer.least("position", MAX) if self.retracts else MAX
            for number, lane in lanes.items():
                lanes[number] = lane.since(least)

    def _pairs(
        self,
        side: int,
        taken: Taken,
        frame: Frame,
        mine: Places,
        step: np.ndarray,
        low: int,
        out: JoinCollector,
    ) -> tuple[np.ndarray, ...]:
        """Pairs of new rows with what they see: (run, position) of both rows, and the step."""
        other, n = 1 - side, len(frame)
        query = Query(taken.by, np.full(n, low), np.full(n, MAX))

        def sees(left: Times, right: Times) -> np.ndarray:
            new, held = (left, right) if side == LEFT else (right, left)
            return (held["came"] < new["came"]) & self._saw(other, held, new)

        found = self.probe(side, frame, query, out, sees)
        places = [
            np.column_stack([mine.run[found.row], mine.at[found.row]]),
            np.column_stack([np.asarray(found.run), found.at]),
        ]
        left, right = places if side == LEFT else places[::-1]
        return left, right, step[found.row]

    def partners(self, side: int, places: Places) -> Found:
        rows = self.asking(side, places, list(self.sides[side].buffer.watched))
        n = len(rows)
        query = Query(
            ordered(rows.ints("equal_hash"), rows.ints("position")),
            np.full(n, MIN),
            np.full(n, MAX),
        )

        def met(left: Times, right: Times) -> np.ndarray:
            return np.where(
                left["came"] < right["came"],
                self._saw(LEFT, left, right),
                self._saw(RIGHT, right, left),
            )

        return self.probe(side, rows, query, None, met)

    def _saw(self, side: int, held: Times, new: Times) -> np.ndarray:
        """Whether rows of a side were in its window when later rows of the other side came."""
        size, span = self.window.size(side), self.window.span(side)
        if span is not None:
            return held["time"] > saturating_add(new["time"], -span)
        if size is None:
            return np.ones(len(held["came"]), bool)
        leaves = np.full(len(held["came"]), MAX)
        for number, lane in self.lanes[side].items():
            here = held["lane"] == number
            leaves[here] = lane.reached(held["position"][here] + size)
        return new["came"] < leaves

    def standing(self, side: int, places: Places) -> Standing:
        return self._standing(side, self.stored(side, places, self._limited))

    def _arriving(self, side: int, rows: Frame) -> Standing:
        """How new rows stand: every row is in a window of messages when it comes."""
        if self.window.span(side) is None:
            new = np.zeros(len(rows), bool)
            return Standing(new, self._due(new))
        return self._standing(side, rows)

    def _standing(self, side: int, rows: Frame) -> Standing:
        complete = self._has_left(side, rows, is_final=False)
        if self.spec.padding == "final":
            return Standing(complete, self._has_left(side, rows, is_final=True))
        return Standing(complete, self._due(complete))

    def _due(self, complete: np.ndarray) -> np.ndarray:
        return complete | (self.spec.padding == "early")

    def pad_pushed(self, side: int, places: Places, out: JoinCollector) -> None:
        """Rows that retention pushes out are early, also if they have just left their window."""
        n = len(places.at)
        self.pad_as(side, places, Standing(np.zeros(n, bool), np.ones(n, bool)), out)

    # What can be asked

    def promised(self, side: int) -> dict[str, int]:
        return self.promised_by_rows(side)

    def windows(self, side: int, rows: Frame) -> Frame:
        """The windows of a side: of each partition from its first to its last offset, or of time
        back from the newest message.
        """
        span = self.window.span(side)
        # Rows that have left the window may be retained.
        kept = rows.where(~self._has_left(side, rows, is_final=False)) if len(rows) else rows
        found: list[tuple[int, int, int]] = []
        if span is not None and len(kept):
            end = int(kept.ints("time").max()) + 1
            inside = int((kept.ints("time") >= end - span).sum())
            found.append((end - span, end, inside))
        elif len(kept):
            lane, firsts = kept.ints("lane"), list(self.sides[side].positions.first.values())
            for number in np.unique(lane).tolist():
                at = kept.ints("position")[lane == number] + firsts[number]
                found.append((int(at.min()), int(at.max()) + 1, len(at)))
        columns = np.array(found, np.int64).reshape(-1, 3).T
        return Frame.of(dict(zip(("start", "end", "count"), columns, strict=True)), len(found))

    def save(self) -> Any:
        lanes = [
            [[number, *lane.save()] for number, lane in sorted(lanes.items())]
            for lanes in self.lanes
        ]
        return {"came": self.came, "lanes": lanes}

    def restore(self, document: Any) -> None:
        self.came = document["came"]
        left, right = (
            {
                number: Lane(np.array(at, np.int64), np.array(came, np.int64))
                for number, at, came in lanes
            }
            for lanes in document["lanes"]
        )
        self.lanes = left, right


@dataclass(frozen=True, eq=False)
class Lane:
    """When the positions of one partition were reached: increasing, both columns."""

    position: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    came: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def with_rows(self, position: np.ndarray, came: np.ndarray) -> Lane:
        """The lane with further rows, by position."""
        order = np.argsort(position, kind="stable")
        return Lane(
            np.concatenate([self.position, position[order]]),
            np.concatenate([self.came, came[order]]),
        )

    def reached(self, position: np.ndarray) -> np.ndarray:
        """The number of the row that reached each position or a later one; `MAX` if none has."""
        at = np.searchsorted(self.position, position)
        return np.append(self.came, MAX)[at]

    def since(self, position: int) -> Lane:
        """The lane without rows below a position, but with the last one."""
        first = min(int(np.searchsorted(self.position, position)), len(self.position) - 1)
        return Lane(self.position[first:], self.came[first:])

    def save(self) -> list[list[int]]:
        """The lane as JSON."""
        return [self.position.tolist(), self.came.tolist()]


def _places(pairs: np.ndarray) -> Places:
    return Places(pairs[:, 0], pairs[:, 1])
