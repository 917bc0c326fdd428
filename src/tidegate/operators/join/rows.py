"""Rows that meet in windows of messages: a new row looks into the last n messages of the other
side, as they are when it comes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tidegate.instants import MAX, MIN
from tidegate.kernel.frame import Frame
from tidegate.kernel.joins.buffer import Query
from tidegate.kernel.storage.run_store import Places
from tidegate.operators.join.core import JoinCore
from tidegate.operators.join.side import Taken
from tidegate.operators.output import EARLY, ON_TIME
from tidegate.spec.join import LEFT, RIGHT, Rows

_STEPS = 4


@dataclass(eq=False)
class RowsJoin(JoinCore):
    """A join of tuples. Offsets go up, so that what a row may look at is a range of offsets of the
    other side.
    """

    first: list[int | None] = field(default_factory=lambda: [None, None])
    """The first offset of each side: the alignment, by which rows of both sides in one delivery are
    put into one order.
    """
    highest: list[int] = field(default_factory=lambda: [MIN, MIN])

    def size(self, side: int) -> int | None:
        return self.spec.window.size(side) if isinstance(self.spec.window, Rows) else None

    def _begins(self, side: int, highest: np.ndarray) -> np.ndarray:
        """The first offset of the window of a side under its highest offset."""
        size = self.size(side)
        return (
            np.full(len(highest), MIN)
            if size is None
            else np.where(highest == MIN, MIN, highest - (size - 1))
        )

    def take_all(self, rows: Mapping[int, Taken]) -> None:
        """A micro-batch: rows of both sides by how far they are from the first offset of their
        side, left before right.
        """
        rows = {side: taken for side, taken in rows.items() if len(taken)}
        for side, taken in rows.items():
            if self.first[side] is None:
                self.first[side] = int(taken.frame.ints("at")[0])
        for part, minus in self._parts(rows):
            (self._minus if minus else self._plus)(part)
        for own in self.sides:
            own.buffer.tidy()

    def _parts(self, rows: Mapping[int, Taken]) -> Iterator[tuple[dict[int, Taken], bool]]:
        """The rows in turns: those of one sign that follow each other are one."""
        if all(taken.weight is None for taken in rows.values()):
            if rows:
                yield dict(rows), False
            return
        step = self._steps({side: taken.frame.ints("at") for side, taken in rows.items()})
        sign = np.zeros(sum(map(len, rows.values())), bool)
        for side, taken in rows.items():
            sign[step[side]] = False if taken.weight is None else taken.weight < 0
        turn = np.cumsum(np.concatenate([[False], sign[1:] != sign[:-1]]))
        for number in range(int(turn[-1]) + 1):
            chosen = {side: np.flatnonzero(turn[step[side]] == number) for side in rows}
            yield (
                {side: rows[side].take(index) for side, index in chosen.items() if len(index)},
                bool(sign[np.argmax(turn == number)]),
            )

    def _plus(self, rows: Mapping[int, Taken]) -> None:
        at = {side: taken.frame.ints("at") for side, taken in rows.items()}
        step = self._steps(at)
        seen = {side: self._seen(side, at, step) for side in at}
        if self.retracts:
            rows = {
                side: dataclasses.replace(taken, frame=taken.frame.with_columns(seen=seen[side]))
                for side, taken in rows.items()
            }
        places = {side: self.keep(side, taken) for side, taken in rows.items()}
        base = self.after(_STEPS * (sum(map(len, at.values())) + 1))
        found = [
            self._found(side, rows[side], places[side], seen[side], step[side]) for side in rows
        ]
        left, right, when = (np.concatenate([one[n] for one in found]) for n in range(3))
        order = np.argsort(when, kind="stable")
        if self.spec.padding == "early":
            self._early(rows, places, step, when, base)
        self.pair_up(_places(left[order]), _places(right[order]), base + _STEPS * when[order])
        for side, offsets in at.items():
            self.highest[side] = max(self.highest[side], int(offsets[-1]))

    def _seen(
        self, side: int, at: Mapping[int, np.ndarray], step: Mapping[int, np.ndarray]
    ) -> np.ndarray:
        """The highest offset of the other side when each row comes."""
        other = 1 - side
        highest = np.full(len(at[side]), self.highest[other])
        if other not in at:
            return highest
        before = np.searchsorted(step[other], step[side])
        return np.where(before > 0, at[other][np.maximum(before - 1, 0)], highest)

    def _minus(self, rows: Mapping[int, Taken]) -> None:
        """Rows are taken back, one side after the other in the order in which they come."""
        step = self._steps({side: taken.frame.ints("at") for side, taken in rows.items()})
        side_of = np.zeros(sum(map(len, rows.values())), np.int64)
        for side in rows:
            side_of[step[side]] = side
        turn = np.cumsum(np.concatenate([[0], side_of[1:] != side_of[:-1]]))
        for number in range(int(turn[-1]) + 1):
            side = int(side_of[np.argmax(turn == number)])
            self._take_rows_back(side, rows[side].take(np.flatnonzero(turn[step[side]] == number)))

    def _take_rows_back(self, side: int, rows: Taken) -> None:
        kept, places = self.found_again(side, rows)
        if not len(kept):
            return
        other = 1 - side
        gone = self.stored(
            side, places, ["lead", "at", "seen", "seq", *self.compared, *self.payload(side)]
        )
        asking = Taken(gone, rows.late[kept], rows.classes[kept])
        found = self.met(
            side,
            gone,
            Query(asking.by, np.full(len(kept), MIN), np.full(len(kept), MAX)),
            quiet=True,
        )
        held = self.stored(other, found, ["at", "seen"])
        mine = gone.take(found.row)
        paired = self._saw(side, mine.ints("seen"), held.ints("at")) | self._saw(
            other, held.ints("seen"), mine.ints("at")
        )
        found = found.where(paired) if len(found.row) else found
        base = self.after(_STEPS * (len(found.row) + 1))
        left, right = self.leave(side, places, found, base, _STEPS)
        self.unpair(left, right, base + _STEPS * np.arange(len(found.row)), None, [other])

    def _saw(self, side: int, seen: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Which rows of a side saw rows of the other when they came."""
        return (at <= seen) & (at >= self._begins(1 - side, seen))

    def lonely(self, side: int, places: Places, order: np.ndarray) -> None:
        """A row that has lost its partners comes out alone if it has left its window, or where that
        is asked for at once.
        """
        if self.spec.how == "semi":
            self.take_back(side, places, order)
            return
        timing = np.where(
            self.stored(side, places, ["at"]).ints("at") < self.begins(side), ON_TIME, EARLY
        )
        due = (timing == ON_TIME) | (self.spec.padding == "early")
        places, order, timing = places.take(due), order[due], timing[due]
        if len(order):
            self.alone(
                side, self.stored(side, places, self.shown(side)), op=1, timing=timing, order=order
            )
            self.sides[side].buffer.set_mark("alone", places, timing + 1)

    def begins(self, side: int) -> int:
        """The first offset of the window of a side."""
        return int(self._begins(side, np.array([self.highest[side]]))[0])

    def _steps(self, at: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        """When each row comes, counted over both sides."""
        place = [at[side] - (self.first[side] or 0) for side in at]
        number = np.concatenate([np.full(len(at[side]), side) for side in at])
        order = np.lexsort((number, np.concatenate(place)))
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        bounds = np.cumsum([len(at[side]) for side in at])[:-1]
        return dict(zip(at, np.split(rank, bounds), strict=True))

    def _found(
        self, side: int, taken: Taken, mine: Places, seen: np.ndarray, step: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        """Pairs of new rows of a side with what they see: the places of both rows, and when they
        meet.
        """
        found = self.met(side, taken.frame, Query(taken.by, self._begins(1 - side, seen), seen))
        places = [
            np.column_stack([mine.run[found.row], mine.at[found.row]]),
            np.column_stack([np.asarray(found.run), found.at]),
        ]
        left, right = places if side == LEFT else places[::-1]
        return left, right, step[found.row]

    def _early(
        self,
        rows: Mapping[int, Taken],
        places: Mapping[int, Places],
        step: Mapping[int, np.ndarray],
        when: np.ndarray,
        base: int,
    ) -> None:
        """Rows that meet nobody when they come are padded at once."""
        met = np.zeros(sum(map(len, rows.values())), bool)
        met[when] = True
        for side, taken in rows.items():
            if self.spec.pads(side):
                alone = np.flatnonzero(~met[step[side]])
                self.alone(
                    side,
                    taken.frame.take(alone),
                    op=1,
                    timing=EARLY,
                    order=base + _STEPS * step[side][alone],
                )
                self.sides[side].buffer.set_mark("alone", places[side].take(alone), EARLY + 1)

    def settle(self) -> None:
        """Rows that have left the window of their side come out alone if they have no partner, and
        go.
        """
        for side in (LEFT, RIGHT):
            own, limit = self.sides[side], MAX if self.finishing else self.begins(side)
            if self.spec.pads(side):
                self.pad(side, own.buffer.owing({"at": limit}))
            if not self.finishing:
                own.buffer.expire({"at": limit})
        if self.finishing:
            for own in self.sides:
                own.buffer.clear()

    def pad(self, side: int, places: Places, timing: int = ON_TIME) -> None:
        """Stored rows come out alone, those that came first before the others."""
        if not len(places.at):
            return
        buffer = self.sides[side].buffer
        rows = self.stored(side, places, self.shown(side))
        by = np.argsort(rows.ints("seq"), kind="stable")
        self.alone(
            side, rows.take(by), op=1, timing=timing, order=np.arange(len(by)) + self.after(len(by))
        )
        buffer.set_mark("alone", places, timing + 1)

    def push_out(self, side: int, horizon: int) -> None:
        """Tuples are not retained by time."""

    def pad_rows(self, side: int, places: Places) -> None:
        """Rows come out alone though they are in their window still."""
        self.pad(side, places, EARLY)

    def promised(self, side: int) -> dict[str, int]:
        """The lesser of both watermarks, where the sides have times."""
        own, other = self.sides[side], self.sides[1 - side]
        if own.given.time is None or other.given.time is None:
            return {}
        return {own.given.time: min(own.watermark, other.watermark)}

    def windows(self, side: int, rows: Frame) -> Frame:  # noqa: ARG002
        """The window of a side: from its first to its last offset."""
        at = rows.ints("at")
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

    def waits_for(self) -> int:
        """Nothing waits for a watermark."""
        return MAX

    def save(self) -> Any:
        return {"first": self.first, "highest": self.highest}

    def restore(self, document: Any) -> None:
        self.first, self.highest = list(document["first"]), list(document["highest"])


def _places(pairs: np.ndarray) -> Places:
    return Places(pairs[:, 0], pairs[:, 1])
