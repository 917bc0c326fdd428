"""As-of joins: each left row is answered by the latest right row at or before it.

An answer is corrected when a better right row arrives.

Marks of a left row: `emitted` is 0 while the row has no answer, then the answer's timing plus one,
or 4 if the answer is that there is no right row and this does not come out. `answer` and `answered`
are the arrival number and the time of the right row, `MIN` if there is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidegate.instants import MAX, MIN, saturating_add
from tidegate.kernel.frame import Frame, concat_frames
from tidegate.kernel.joins.join_buffer import JoinBuffer, Query
from tidegate.kernel.joins.range_matching import Found, ordered
from tidegate.kernel.storage.run_store import Places
from tidegate.operators.join.collector import JoinCollector
from tidegate.operators.join.matching import (
    STEPS,
    JoinMatching,
    Turn,
    by_side,
    firsts,
    one_by_one,
)
from tidegate.operators.join.side import Taken, taken_from
from tidegate.operators.output import EARLY, LATE, ON_TIME
from tidegate.spec.join import LEFT, RIGHT, AsOf, JoinSpec

_NOT_SHOWN = 4
"""`emitted` of a row whose answer is that there is no right row, if that does not come out."""


@dataclass(eq=False)
class AsOfJoin(JoinMatching):
    """A join in which each left row has at most one partner."""

    _cleaned: int = MIN
    """The time up to which right rows that can answer no left row were looked for."""

    def __post_init__(self) -> None:
        self.past = JoinBuffer(self.sides[RIGHT].store, "past")
        """Right rows that retention has pushed out and that still are answers of left rows."""

    @classmethod
    def row_marks(cls, spec: JoinSpec, side: int) -> dict[str, Any]:  # noqa: ARG003
        """What each left row was answered with."""
        if side == RIGHT:
            return {}
        return {"emitted": np.int8(0), "answer": np.int64(MIN), "answered": np.int64(MIN)}

    @property
    def window(self) -> AsOf:
        if not isinstance(self.spec.window, AsOf):
            raise TypeError("not an as-of join")
        return self.spec.window

    # Limits

    def complete(self) -> int:
        """The time of left rows below which no better answer is expected."""
        return (
            MAX
            if self.finishing
            else int(saturating_add(self.sides[RIGHT].watermark, int(self.window.strict)))
        )

    def closed(self) -> int:
        """The time of left rows below which a better answer would be too late."""
        right = self.sides[RIGHT]
        return (
            MAX
            if self.finishing
            else int(
                saturating_add(
                    taken_from(right.watermark, self.spec.lateness), int(self.window.strict)
                )
            )
        )

    def expired(self) -> int:
        """The time of left rows below which they are of no use.

        A row that may be retracted is of use until its retraction would be too late.
        """
        left = self.sides[LEFT]
        if left.op_column is None or self.finishing:
            return self.closed()
        return min(self.closed(), taken_from(left.watermark, self.spec.lateness))

    def _due_below(self) -> int:
        return (
            MAX
            if self.spec.padding == "early"
            else self.closed()
            if self.spec.padding == "final"
            else self.complete()
        )

    def _reach(self, side: int, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The range of times of the rows that rows of a side can be answered by, or can answer."""
        strict, tolerance = int(self.window.strict), self.window.tolerance
        if side == LEFT:
            return (
                np.full(len(at), MIN) if tolerance is None else saturating_add(at, -tolerance)
            ), saturating_add(at, -strict)
        return saturating_add(at, strict), (
            np.full(len(at), MAX) if tolerance is None else saturating_add(at, tolerance)
        )

    # Rows arrive

    def awaits_partner(self, side: int) -> bool:
        """Whether rows of a side are to be answered: left rows, also in an inner join."""
        return side == LEFT

    def turns(self, rows: Mapping[int, Taken]) -> Iterator[Turn]:
        """Rows of a key one by one if some are retractions: each may change the next answer."""
        return by_side(rows, one_by_one)

    def add(self, rows: Mapping[int, Taken], out: JoinCollector) -> None:
        """Answer new left rows that are due, and correct answers by new right rows."""
        for side, taken in rows.items():
            places = self.keep(side, taken, taken.frame)
            if side == LEFT:
                is_due = taken.frame.ints("position") < self._due_below()
                due = np.flatnonzero(is_due & (places.run >= 0))
                order = out.reserve(STEPS * len(taken)) + STEPS * due
                self.answer(places.take(due), order, out)
            else:
                self._improve(taken, places, out)

    def pad(self, side: int, places: Places, order: np.ndarray, out: JoinCollector) -> None:  # noqa: ARG002
        """Answer stored left rows: what padding is to other shapes."""
        self.answer(places, order, out)

    def answer(self, left: Places, order: np.ndarray, out: JoinCollector) -> None:
        """Answer left rows by the best right row of each."""
        if not len(order):
            return
        buffer = self.sides[LEFT].buffer
        rows = self.stored(
            LEFT,
            left,
            ["equal_hash", "position", "seq", "late", *self.compared, *self.payload(LEFT)],
        )
        right, has = self._best(rows)
        late = rows.ints("late") > 0
        answer, answered = np.full(len(order), MIN), np.full(len(order), MIN)
        if has.any():
            best = self.stored(RIGHT, right, ["seq", "position", "late"])
            answer[has], answered[has] = best.ints("seq"), best.ints("position")
            late[has] |= best.ints("late") > 0
        timing = np.where(
            late, LATE, np.where(rows.ints("position") < self.complete(), ON_TIME, EARLY)
        ).astype(np.int8)
        if has.any():
            self._put_answer(left.take(has), right, 1, timing[has], order[has] + 2, out)
        unmatched = ~has & self.spec.pads(LEFT)
        if unmatched.any():
            pads = self.stored(LEFT, left.take(unmatched), self.shown(LEFT))
            self.put_single(
                LEFT, pads, op=1, timing=timing[unmatched], order=order[unmatched] + 2, out=out
            )
        buffer.set_mark("emitted", left, np.where(has | unmatched, timing + 1, _NOT_SHOWN))
        buffer.set_mark("answer", left, answer)
        buffer.set_mark("answered", left, answered)

    def _put_answer(
        self,
        left: Places,
        right: Places | Frame,
        op: int,
        timing: np.ndarray,
        order: np.ndarray,
        out: JoinCollector,
    ) -> None:
        mine = self.stored(LEFT, left, self.shown(LEFT, paired=True))
        theirs = (
            right
            if isinstance(right, Frame)
            else self.stored(RIGHT, right, self.shown(RIGHT, paired=True))
        )
        out.put(mine, theirs, op=op, timing=timing, order=order)

    def _best(self, rows: Frame) -> tuple[Places, np.ndarray]:
        """The latest right rows of the left rows that have one, and which left rows have one."""
        query = Query(
            ordered(rows.ints("equal_hash"), rows.ints("position")),
            *self._reach(LEFT, rows.ints("position")),
        )
        if self.spec.where is None:
            query = self._latest(rows, query)
        found = self.probe(LEFT, rows, query, None)
        if not len(found.row):
            return Places.of([]), np.zeros(len(rows), bool)
        held = self.stored(RIGHT, found, ["position", "seq"])
        order = np.lexsort((held.ints("seq"), held.ints("position"), found.row))
        last = order[np.concatenate([np.diff(found.row[order]) > 0, [True]])]
        has = np.zeros(len(rows), bool)
        has[found.row[last]] = True
        return Places(np.asarray(found.run)[last], found.at[last]), has

    def _latest(self, rows: Frame, query: Query) -> Query:
        """The query narrowed to the latest time that has a row, so that older rows are not read."""
        times = self.sides[RIGHT].buffer.latest(query, rows, self.compared)
        known = times > MIN
        return Query(query.by, np.where(known, times, 0), np.where(known, times, -1))

    def _improve(self, rows: Taken, places: Places, out: JoinCollector) -> None:
        """Correct the answers of left rows by better new right rows, in the order of arrival."""
        at, buffer = rows.frame.ints("position"), self.sides[LEFT].buffer
        found = self.probe(RIGHT, rows.frame, Query(rows.by, *self._reach(RIGHT, at)), out)
        base = out.reserve(STEPS * (len(found.row) + 1))
        if len(found.row):
            found = found.where(buffer.mark("emitted", found) > 0)
        if not len(found.row):
            return
        number, given = buffer.numbers(found), buffer.mark("answered", found)
        order = np.lexsort((found.row, number))
        better = np.zeros(len(order), bool)
        better[order] = _records(number[order], at[found.row[order]], given[order])
        if better.any():
            self._replace(
                found.where(better), rows, places, base + STEPS * np.flatnonzero(better), out
            )

    def _replace(
        self, found: Found, rows: Taken, places: Places, order: np.ndarray, out: JoinCollector
    ) -> None:
        buffer = self.sides[LEFT].buffer
        left, right = Places(np.asarray(found.run), found.at), places.take(found.row)
        number = buffer.numbers(left)
        held = self.stored(LEFT, left, ["position", "late"])
        late = (held.ints("late") > 0) | (rows.frame.ints("late")[found.row] > 0)
        timing = np.where(
            late, LATE, np.where(held.ints("position") < self.complete(), ON_TIME, EARLY)
        ).astype(np.int8)
        first = np.zeros(len(number), bool)
        first[firsts(number)] = True
        self.unanswer(left.take(first), order[first] + 1, out)
        by = np.lexsort((found.row, number))
        again = np.flatnonzero(~first[by])
        if len(again):
            now, before = by[again], by[again - 1]
            self._put_answer(
                left.take(now), right.take(before), -1, timing[before], order[now] + 1, out
            )
        self._put_answer(left, right, 1, timing, order + 2, out)
        last = by[np.concatenate([np.diff(number[by]) > 0, [True]])]
        buffer.set_mark("emitted", left.take(last), timing[last] + 1)
        buffer.set_mark("answer", left.take(last), rows.frame.ints("seq")[found.row[last]])
        buffer.set_mark("answered", left.take(last), rows.frame.ints("position")[found.row[last]])

    # Retractions

    def unanswer(self, left: Places, order: np.ndarray, out: JoinCollector) -> None:
        """Take back the answers of left rows."""
        if not len(order):
            return
        buffer = self.sides[LEFT].buffer
        codes, answer = buffer.mark("emitted", left), buffer.mark("answer", left)
        paired = answer > MIN
        pads = ~paired & (codes > 0) & (codes < _NOT_SHOWN)
        if pads.any():
            rows = self.stored(LEFT, left.take(pads), self.shown(LEFT))
            self.put_single(LEFT, rows, op=-1, timing=codes[pads] - 1, order=order[pads], out=out)
        if paired.any():
            some = left.take(paired)
            self._put_answer(some, self._answers(some), -1, codes[paired] - 1, order[paired], out)
        buffer.set_mark("emitted", left, 0)
        buffer.set_mark("answer", left, MIN)
        buffer.set_mark("answered", left, MIN)

    def _answers(self, left: Places) -> Frame:
        """The right rows that are the answers of left rows."""
        buffer, names = self.sides[LEFT].buffer, self.shown(RIGHT, paired=True)
        seq, at = buffer.mark("answer", left), buffer.mark("answered", left)
        query = Query(
            ordered(self.stored(LEFT, left, ["equal_hash"]).ints("equal_hash"), at), at, at
        )
        row, frames = [], []
        for held in (self.sides[RIGHT].buffer, self.past):
            found = held.probe(query)
            if len(found.row):
                found = found.where(held.take(found, ["seq"]).ints("seq") == seq[found.row])
            if len(found.row):
                row.append(found.row)
                frames.append(held.take(found, names))
        return concat_frames(frames).take(np.argsort(np.concatenate(row)))

    def retract(self, side: int, rows: Taken, out: JoinCollector) -> None:
        kept, places = self.retracted(side, rows, out)
        if not len(kept):
            return
        base = out.reserve(STEPS * len(rows))
        if side == LEFT:
            self.unanswer(places, base + STEPS * kept, out)
            self.sides[LEFT].buffer.remove(places)
        else:
            self._remove_right(places, base, out)

    def _remove_right(self, places: Places, base: int, out: JoinCollector) -> None:
        """Remove right rows, and answer the left rows again whose answers they were."""
        gone = self.stored(RIGHT, places, ["equal_hash", "position", "seq", *self.compared])
        buffer = self.sides[LEFT].buffer
        found = buffer.probe(
            Query(
                ordered(gone.ints("equal_hash"), gone.ints("position")),
                *self._reach(RIGHT, gone.ints("position")),
            )
        )
        if len(found.row):
            found = found.where(buffer.mark("answer", found) == gone.ints("seq")[found.row])
        left = Places(np.asarray(found.run), found.at)
        order = base + STEPS * np.arange(len(found.row))
        self.unanswer(left, order, out)
        self.sides[RIGHT].buffer.remove(places)
        self.answer(left, order, out)

    # Watermarks move

    def due_limits(self, side: int) -> dict[str, int]:  # noqa: ARG002
        return {"position": self._due_below()}

    def due_at(self, side: int, first: int) -> int:  # noqa: ARG002
        return int(saturating_add(first, 1 - int(self.window.strict)))

    def expire(self) -> None:
        self.sides[LEFT].buffer.expire({"position": self.expired()})
        self._clean()

    def clear(self) -> None:
        super().clear()
        self.past.clear()

    def _clean(self) -> None:
        """Drop right rows that cannot be an answer any more.

        A later row of their key is before all left rows that may still come or be corrected.
        """
        lateness, strict, tolerance = (
            self.spec.lateness,
            int(self.window.strict),
            self.window.tolerance,
        )
        first = min(taken_from(self.sides[LEFT].watermark, lateness), self.closed())
        if first <= self._cleaned:
            return
        self._cleaned = first
        buffer = self.sides[RIGHT].buffer
        if tolerance is not None:
            buffer.expire({"position": int(saturating_add(first, -tolerance))})
        if self.spec.where is not None:
            return
        # If a row may be retracted, the one before it may be needed again.
        certain = min(
            int(saturating_add(first, 1 - strict)),
            taken_from(self.sides[RIGHT].watermark, lateness) if self.retracts else MAX,
        )
        places = buffer.places({"position": certain})
        if len(places.at) < 2:
            return
        rows = self.stored(RIGHT, places, ["equal_hash", "key_check", "position", "seq"])
        order = np.lexsort(
            (
                rows.ints("seq"),
                rows.ints("position"),
                rows.ints("key_check"),
                rows.ints("equal_hash"),
            )
        )
        same = (np.diff(rows.ints("equal_hash")[order]) == 0) & (
            np.diff(rows.ints("key_check")[order]) == 0
        )
        buffer.remove(places.take(order[:-1][same]))

    # Retention

    def push_out(self, side: int, horizon: int, out: JoinCollector) -> None:
        if side == RIGHT:
            self._remember(self.sides[RIGHT].buffer.places({"position": horizon}))
        super().push_out(side, horizon, out)

    def push_rows(self, side: int, places: Places, out: JoinCollector) -> None:
        if side == RIGHT:
            self._remember(places)
        super().push_rows(side, places, out)

    def pad_pushed(self, side: int, places: Places, out: JoinCollector) -> None:
        """Answer left rows for good, as if no better answer were expected."""
        before, self.finishing = self.finishing, True
        self.pad_in_order(side, places, out)
        self.finishing = before

    def _remember(self, places: Places) -> None:
        """Keep right rows that are pushed out but are the answers of left rows."""
        left = self.sides[LEFT].buffer
        held = left.places()
        answers = np.unique(left.mark("answer", held)) if len(held.at) else np.zeros(0, np.int64)
        frames = [frame.where(np.isin(frame.ints("seq"), answers)) for frame in self.past.frames()]
        if len(places.at):
            names = ["equal_hash", "position", "seq", "late", *self.compared, *self.payload(RIGHT)]
            gone = self.stored(RIGHT, places, names)
            frames.append(gone.where(np.isin(gone.ints("seq"), answers)))
        frames = [frame for frame in frames if len(frame)]
        self.past.clear()
        if frames:
            self.past.add(concat_frames(frames))

    def save(self) -> Any:
        return self.past.save()

    def restore(self, document: Any) -> None:
        self.past.restore(document)

    # What can be asked

    def promised(self, side: int) -> dict[str, int]:
        """For left rows the lesser of both watermarks and the rows without an answer.

        Right rows may be of any age within the tolerance.
        """
        left, right = self.sides
        waiting = self.stored(LEFT, self.pending(LEFT), ["position"]).ints("position")
        least = int(waiting.min(initial=MAX))
        if side == LEFT:
            # In an inner join, a row that is due and has no right row does not come out.
            unanswered = (
                least
                if self.spec.pads(LEFT)
                else int(waiting[waiting >= self._due_below()].min(initial=MAX))
            )
            promise = min(left.watermark, right.watermark, unanswered)
        else:
            first, tolerance = min(left.watermark, least), self.window.tolerance
            behind = (
                MIN
                if first == MIN or (tolerance is None and first != MAX)
                else int(saturating_add(first, -(tolerance or 0)))
            )
            promise = min(right.watermark, behind)
        return {self.sides[side].given.time or "": min(promise, self.emitter.least(side))}

    def windows(self, side: int, rows: Frame) -> Frame:
        """The ranges of right rows that left rows can be answered by; none on the left side."""
        frames = (
            [frame.ints("position") for frame in self.sides[LEFT].buffer.frames()]
            if side == RIGHT
            else []
        )
        others = np.unique(np.concatenate([*frames, np.zeros(0, np.int64)]))
        start, last = self._reach(LEFT, others)
        at = np.sort(rows.ints("position"))
        end = saturating_add(np.asarray(last), 1)
        count = np.searchsorted(at, end) - np.searchsorted(at, start)
        return Frame.of({"start": np.asarray(start), "end": end, "count": count}, len(count)).where(
            count > 0
        )


def _records(group: np.ndarray, value: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Where a value is not below `start` nor any value before it in its group.

    The rows of a group follow each other.
    """
    n = len(group)
    begins = np.ones(n, bool)
    begins[1:] = group[1:] != group[:-1]
    number = np.cumsum(begins) - 1
    ranks = np.unique(np.concatenate([value, start]), return_inverse=True)[1]
    width = int(ranks.max()) + 1
    own, initial = ranks[:n] + number * width, ranks[n:] + number * width
    best = np.maximum.accumulate(np.maximum(own, initial))
    before = np.where(begins, initial, np.concatenate([[0], best[:-1]]))
    return own >= before
