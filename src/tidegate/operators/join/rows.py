"""Joins of tuples: a new row looks into the last n messages of the other side as they are then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tidegate.instants import MAX, MIN
from tidegate.kernel.frame import Frame
from tidegate.kernel.groups import inverse
from tidegate.kernel.joins.join_buffer import Query
from tidegate.kernel.joins.range_matching import Found, ordered
from tidegate.kernel.storage.run_store import Places
from tidegate.operators.join.collector import JoinCollector
from tidegate.operators.join.matching import (
    STEPS,
    Arrived,
    Matches,
    PairMatching,
    Standing,
    Turn,
)
from tidegate.operators.join.side import Taken
from tidegate.spec.join import LEFT, Rows


@dataclass(eq=False)
class RowsJoin(PairMatching):
    """A join in windows of messages.

    Positions increase, so that a window is a range of positions. With retractions a stored row has
    `seen`: the highest position of the other side when it came.
    """

    highest: list[int] = field(default_factory=lambda: [MIN, MIN])
    """The highest position of each side."""

    def _window_start(self, side: int, highest: np.ndarray) -> np.ndarray:
        """The first offset of the window of a side under its highest offset."""
        size = self.spec.window.size(side) if isinstance(self.spec.window, Rows) else None
        return (
            np.full(len(highest), MIN)
            if size is None
            else np.where(highest == MIN, MIN, highest - (size - 1))
        )

    # Limits

    def complete(self, side: int) -> int:
        """The offset of a side below which rows have left the window."""
        if self.finishing:
            return MAX
        return int(self._window_start(side, np.array([self.highest[side]]))[0])

    def due_limits(self, side: int) -> dict[str, int]:
        return {"position": self.complete(side)}

    def due_at(self, side: int, first: int) -> int:  # noqa: ARG002
        """Never: rows leave windows by offsets, not by watermarks."""
        return MAX

    def expire(self) -> None:
        for side in self.sides:
            side.buffer.expire({"position": self.complete(side.number)})

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
        seen = {side: self._seen(side, rows, step) for side in rows}
        frames = {
            side: taken.frame.with_columns(seen=seen[side]) if self.retracts else taken.frame
            for side, taken in rows.items()
        }
        places = {side: self.keep(side, taken, frames[side]) for side, taken in rows.items()}
        total = sum(map(len, rows.values()))
        base = out.reserve(STEPS * (total + 1))
        pairs = [
            self._pairs(side, taken, places[side], seen[side], step[side], out)
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
                self._standing(np.zeros(len(taken), bool)),
                matched[step[side]],
                base + STEPS * step[side],
            )
            for side, taken in rows.items()
        ]
        for side, taken in rows.items():
            self.highest[side] = max(self.highest[side], int(taken.frame.ints("position")[-1]))
        return Matches(
            arrived, _places(left[order]), _places(right[order]), base + STEPS * when[order]
        )

    def _seen(
        self, side: int, rows: Mapping[int, Taken], step: Mapping[int, np.ndarray]
    ) -> np.ndarray:
        """The highest offset of the other side when each row comes."""
        other = 1 - side
        highest = np.full(len(rows[side]), self.highest[other])
        if other not in rows:
            return highest
        before = np.searchsorted(step[other], step[side])
        return np.where(
            before > 0, rows[other].frame.ints("position")[np.maximum(before - 1, 0)], highest
        )

    def _pairs(
        self,
        side: int,
        taken: Taken,
        mine: Places,
        seen: np.ndarray,
        step: np.ndarray,
        out: JoinCollector,
    ) -> tuple[np.ndarray, ...]:
        """Pairs of new rows with what they see: (run, position) of both rows, and the step."""
        query = Query(taken.by, self._window_start(1 - side, seen), seen)
        found = self.probe(side, taken.frame, query, out)
        places = [
            np.column_stack([mine.run[found.row], mine.at[found.row]]),
            np.column_stack([np.asarray(found.run), found.at]),
        ]
        left, right = places if side == LEFT else places[::-1]
        return left, right, step[found.row]

    def partners(self, side: int, places: Places) -> Found:
        rows = self.asking(side, places, ["position", "seen"])
        n = len(rows)
        query = Query(
            ordered(rows.ints("equal_hash"), rows.ints("position")),
            np.full(n, MIN),
            np.full(n, MAX),
        )
        found = self.probe(side, rows, query, None)
        held, mine = self.stored(1 - side, found, ["position", "seen"]), rows.take(found.row)
        paired = self._saw(side, mine.ints("seen"), held.ints("position")) | self._saw(
            1 - side, held.ints("seen"), mine.ints("position")
        )
        return found.where(paired) if len(found.row) else found

    def _saw(self, side: int, seen: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Which rows of a side saw rows of the other side when they came."""
        return (at <= seen) & (at >= self._window_start(1 - side, seen))

    def standing(self, side: int, places: Places) -> Standing:
        return self._standing(
            self.stored(side, places, ["position"]).ints("position") < self.complete(side)
        )

    def _standing(self, complete: np.ndarray) -> Standing:
        return Standing(complete, complete | (self.spec.padding == "early"))

    def pad_pushed(self, side: int, places: Places, out: JoinCollector) -> None:
        """Rows that retention pushes out are early, also if they have just left their window."""
        n = len(places.at)
        self.pad_as(side, places, Standing(np.zeros(n, bool), np.ones(n, bool)), out)

    # What can be asked

    def promised(self, side: int) -> dict[str, int]:
        return self.promised_by_rows(side)

    def windows(self, side: int, rows: Frame) -> Frame:
        """The window of a side: from its first to its last offset."""
        first = next(iter(self.sides[side].positions.first.values()), 0)
        at = rows.ints("position")
        # Rows that have left the window may be retained.
        at = at[at >= self.complete(side)] + first
        size = 1 if len(at) else 0
        start, end = (at.min(initial=MAX), at.max(initial=MIN) + 1) if size else (0, 0)
        return Frame.of(
            {
                "start": np.full(size, start),
                "end": np.full(size, end),
                "count": np.full(size, len(at)),
            },
            size,
        )

    def save(self) -> Any:
        return {"highest": self.highest}

    def restore(self, document: Any) -> None:
        self.highest = list(document["highest"])


def _places(pairs: np.ndarray) -> Places:
    return Places(pairs[:, 0], pairs[:, 1])
