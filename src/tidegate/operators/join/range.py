"""Rows that meet in ranges of time: within bounds of each other, or in windows that are aligned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tidegate.instants import MAX, MIN, saturating_add
from tidegate.kernel.frame import Frame, squeezed
from tidegate.kernel.groups import Groups
from tidegate.kernel.joins.buffer import Query
from tidegate.kernel.joins.ranges import Found
from tidegate.kernel.joins.shapes import Shape, WindowShape
from tidegate.kernel.storage.run_store import Places
from tidegate.operators.join.core import (
    AWAITED,
    JoinCore,
    Window,
    below,
    firsts,
    pair_timing,
    take_in_turns,
    timing_of,
)
from tidegate.operators.join.side import Taken
from tidegate.spec.join import LEFT, RIGHT

_STEPS = 4
"""Places in the output for each pair: what is taken back before it, the pair, and what comes out
alone after it.
"""


@dataclass(eq=False)
class RangeJoin(JoinCore):
    """A join whose rows meet in a shape."""

    shape: Shape | None = None

    @property
    def shaped(self) -> Shape:
        if self.shape is None:
            raise ValueError("a join in ranges needs a shape")
        return self.shape

    # Limits

    def complete(self, side: int) -> dict[str, int]:
        """The times of a side below which no partner is expected."""
        names = self.sides[side].buffer.watched
        return (
            dict.fromkeys(names, MAX)
            if self.finishing
            else self.shaped.limits(side, self.sides[1 - side].marks)
        )

    def free(self, side: int) -> dict[str, int]:
        """The times of a side below which no partner could be taken."""
        names = self.sides[side].buffer.watched
        return (
            dict.fromkeys(names, MAX)
            if self.finishing
            else self.shaped.limits(side, self.sides[1 - side].horizons())
        )

    def gone(self, side: int) -> dict[str, int]:
        """The times of a side below which rows are of no use: a row that may be taken back is,
        until that would be too late.
        """
        own, limits = self.sides[side], self.free(side)
        if own.op_column is None or self.finishing:
            return limits
        taken = {
            own.columns[name]: horizon
            for name, horizon in own.horizons().items()
            if name in own.columns
        }
        return {name: min(limit, taken.get(name, MIN)) for name, limit in limits.items()}

    def padded_from(self, side: int) -> dict[str, int] | None:
        """The times below which rows without a partner come out alone; None where all do at
        once.
        """
        return (
            None
            if self.spec.padding == "early"
            else self.free(side)
            if self.spec.padding == "final"
            else self.complete(side)
        )

    def own_window(self, at: np.ndarray) -> Window | None:
        if not isinstance(self.shape, WindowShape):
            return None
        start = self.shape.first_start(at)
        return start, start + self.shape.size

    # Rows come

    def take_all(self, rows: Mapping[int, Taken]) -> None:
        """A micro-batch: left before right."""
        take_in_turns(rows, _turns, self._plus, self._minus)

    def admitted(self, side: int, at: np.ndarray) -> np.ndarray:  # noqa: ARG002
        """Which rows are in a window at all."""
        return (
            self.shape.has_window(at)
            if isinstance(self.shape, WindowShape)
            else np.ones(len(at), bool)
        )

    def _plus(self, side: int, rows: Taken) -> None:
        other, frame, n = 1 - side, rows.frame, len(rows)
        times = {name: frame.ints(name) for name in self.sides[side].buffer.watched}
        found = self.met(
            side, frame, Query(rows.by, *self.shaped.reach(side, times)), self.shaped.holds
        )
        base = self.after(_STEPS * (len(found.row) + 1))
        order = base + _STEPS * np.arange(len(found.row))
        complete = below(times, self.complete(side), n)
        late = np.where(rows.late, np.where(complete, AWAITED, 1), 0).astype(np.int8)
        frame = frame.with_columns(late=squeezed(late))
        if len(found.row):
            self._pairs(side, frame, found, order)
            if self.marks_rows(other):
                self.sides[other].buffer.add_to_mark("n", found, 1)
        marks = (
            self._marks_of_new(side, frame, found, complete, base) if self.marks_rows(side) else {}
        )
        self._store(side, frame, rows, marks)

    def _pairs(self, side: int, frame: Frame, found: Found, order: np.ndarray) -> None:
        """Pairs come out; what stood of their stored rows alone is taken back before."""
        other, spec = 1 - side, self.spec
        if self.marks_rows(other):
            self._first_partners(side, frame, found, order)
        if not spec.shows_pairs:
            return
        theirs = self.stored(other, found, ["late", *self.shown(other, paired=True)])
        mine = frame.select(["late", *self.shown(side, paired=True)]).take(found.row)
        left, right = (mine, theirs) if side == LEFT else (theirs, mine)
        window = self._window(left, right)
        self.emitter.put(
            left,
            right,
            op=1,
            timing=pair_timing(left["late"], right["late"]),
            order=order + 2,
            window=window,
        )

    def _window(self, left: Frame, right: Frame) -> Window | None:
        return (
            self.shaped.window(left.ints("at"), right.ints("at")) if self.spec.has_windows else None
        )

    def _first_partners(self, side: int, frame: Frame, found: Found, order: np.ndarray) -> None:
        """Stored rows get their first partner: those that came out alone for want of one are taken
        back, and in a semi join they come out.
        """
        other = 1 - side
        buffer = self.sides[other].buffer
        first = firsts(buffer.numbers(found))
        places = Places(np.asarray(found.run)[first], found.at[first])
        alone = buffer.mark("alone", places)
        if self.spec.how != "semi":
            told = alone > 0
            self.take_back(other, places.take(told), order[first[told]] + 1)
            return
        new = alone == 0
        self._stored_come_out(
            other, places.take(new), frame.take(found.row[first[new]]), order[first[new]] + 2
        )

    def _stored_come_out(
        self, side: int, places: Places, partners: Frame, order: np.ndarray
    ) -> None:
        """Stored rows of a semi join come out with their first partner."""
        if not len(order):
            return
        rows = self.stored(side, places, ["late", "at", *self.shown(side)])
        timing = pair_timing(rows["late"], partners["late"])
        window = self.shaped.window(rows.ints("at"), partners.ints("at"))
        self.alone(side, rows, op=1, timing=timing, order=order, window=window)
        self.sides[side].buffer.set_mark("alone", places, timing + 1)
        self.note_windows(side, places, window)

    def _marks_of_new(
        self, side: int, frame: Frame, found: Found, complete: np.ndarray, base: int
    ) -> dict[str, np.ndarray]:
        """What is known of new rows: how many partners they have, and whether they came out
        alone.
        """
        n = len(frame)
        partners = np.bincount(found.row, minlength=n).astype(np.int32)
        alone = np.zeros(n, np.int8)
        bounds = (np.zeros(n, np.int64), np.zeros(n, np.int64))
        before = np.cumsum(partners) - partners
        if self.spec.how == "semi":
            rows = np.flatnonzero(partners)
            if len(rows):
                first = found.take(before[rows])
                theirs = self.stored(1 - side, first, ["late", "at"])
                mine = frame.take(rows)
                alone[rows], window = self._semi(
                    side, mine, theirs, base + _STEPS * before[rows] + 2
                )
                if window is not None:
                    bounds[0][rows], bounds[1][rows] = window
        else:
            times = {name: frame.ints(name) for name in self.sides[side].buffer.watched}
            limits = self.padded_from(side)
            due = (partners == 0) & (True if limits is None else below(times, limits, n))
            rows = np.flatnonzero(due)
            if len(rows):
                timing = timing_of(complete[rows], frame.ints("late")[rows])
                mine, order = frame.take(rows), base + _STEPS * before[rows]
                self.alone(
                    side,
                    mine,
                    op=1,
                    timing=timing,
                    order=order,
                    window=self.own_window(mine.ints("at")),
                )
                alone[rows] = timing + 1
        marks: dict[str, np.ndarray] = {"n": partners, "alone": alone}
        if "start" in self.sides[side].buffer.marks:
            marks.update(start=bounds[0], end=bounds[1])
        return marks

    def _semi(
        self, side: int, mine: Frame, theirs: Frame, order: np.ndarray
    ) -> tuple[np.ndarray, Window | None]:
        timing = pair_timing(mine["late"], theirs["late"])
        window = self.shaped.window(mine.ints("at"), theirs.ints("at"))
        self.alone(side, mine, op=1, timing=timing, order=order, window=window)
        return timing + 1, window

    def _store(self, side: int, frame: Frame, rows: Taken, marks: dict[str, np.ndarray]) -> None:
        """Keep the rows that are of use."""
        buffer = self.sides[side].buffer
        kept = ~below(
            {name: frame.ints(name) for name in buffer.watched}, self.gone(side), len(frame)
        )
        if rows.nobody is not None and not self.keeps_null_keys(side):
            kept &= ~rows.nobody
        if kept.all():
            buffer.add(frame, rows.by, **marks)
        elif kept.any():
            index = np.flatnonzero(kept)
            buffer.add(
                frame.take(index), None, **{name: column[index] for name, column in marks.items()}
            )

    # Rows are taken back

    def _minus(self, side: int, rows: Taken) -> None:
        kept, places = self.found_again(side, rows)
        if not len(kept):
            return
        own = self.sides[side]
        gone = self.stored(
            side,
            places,
            ["lead", "seq", "late", *self.compared, *own.buffer.watched, *self.payload(side)],
        )
        times = {name: gone.ints(name) for name in own.buffer.watched}
        asking = Taken(gone, rows.late[kept], rows.classes[kept])
        found = self.met(
            side,
            gone,
            Query(asking.by, *self.shaped.reach(side, times)),
            self.shaped.holds,
            quiet=True,
        )
        base = self.after(_STEPS * (len(found.row) + 1))
        left, right = self.leave(side, places, found, base, _STEPS)
        window = (
            self._window(self.stored(LEFT, left, ["at"]), self.stored(RIGHT, right, ["at"]))
            if self.spec.has_windows
            else None
        )
        self.unpair(left, right, base + _STEPS * np.arange(len(found.row)), window, [1 - side])

    def lonely(self, side: int, places: Places, order: np.ndarray) -> None:
        """Stored rows have no partner any more."""
        if not len(order):
            return
        if self.spec.how == "semi":
            self.take_back(side, places, order)
            return
        buffer = self.sides[side].buffer
        limits = self.padded_from(side)
        if limits is not None:
            times = self.stored(side, places, list(buffer.watched))
            due = below({name: times.ints(name) for name in buffer.watched}, limits, len(order))
            places, order = places.take(due), order[due]
        self.pad(side, places, order)

    # Watermarks move

    def settle(self) -> None:
        """Rows for which no partner is expected come out alone, and those that are of no use go."""
        for side in (LEFT, RIGHT):
            if self.spec.pads(side) and self.spec.padding != "early":
                self._pad_below(side, self.padded_from(side))
        if self.finishing:
            for own in self.sides:
                own.buffer.clear()
            return
        for side in (LEFT, RIGHT):
            self.sides[side].buffer.expire(self.gone(side))

    def _pad_below(self, side: int, limits: Mapping[str, int] | None) -> None:
        self.pad_rows(side, self.sides[side].buffer.owing(limits))

    def pad(self, side: int, places: Places, order: np.ndarray) -> None:
        """Stored rows come out alone."""
        if not len(order):
            return
        buffer = self.sides[side].buffer
        rows = self.stored(side, places, ["late", *buffer.watched, *self.shown(side)])
        times = {name: rows.ints(name) for name in buffer.watched}
        timing = timing_of(below(times, self.complete(side), len(order)), rows.ints("late"))
        window = self.own_window(rows.ints("at"))
        self.alone(side, rows, op=1, timing=timing, order=order, window=window)
        buffer.set_mark("alone", places, timing + 1)
        self.note_windows(side, places, window)

    def pad_rows(self, side: int, places: Places) -> None:
        """Stored rows come out alone, whether or not a partner is expected."""
        if len(places.at):
            seq = self.stored(side, places, ["seq"]).ints("seq")
            self.pad(
                side,
                places.take(np.argsort(seq, kind="stable")),
                np.arange(len(seq)) + self.after(len(seq)),
            )

    def push_out(self, side: int, horizon: int) -> None:
        """Rows older than retention go; those without a partner come out alone first."""
        own = self.sides[side]
        limits = {own.columns[own.given.time or ""]: horizon}
        if self.spec.pads(side):
            self._pad_below(side, limits)
        own.buffer.expire(limits)

    # What is promised

    def promised(self, side: int) -> dict[str, int]:
        """By time column of a side, the time that nothing that is yet to come is below."""
        own, other = self.sides[side], self.sides[1 - side]
        found = self.shaped.promised(side, own.marks, other.marks)
        owed = self.emitter.least(side)
        if self.spec.pads(side) and self.spec.padding == "final":
            places = own.buffer.owing(None)
            if len(places.at):
                owed = min(owed, int(self.stored(side, places, ["at"]).ints("at").min()))
        return {name: min(promise, owed) for name, promise in found.items()}

    def windows(self, side: int, rows: Frame) -> Frame:
        """The windows of a side, with how many of its rows each holds: those that rows meet in, or
        those that rows of the other side look into.
        """
        at = np.sort(rows.ints("at"))
        if isinstance(self.shape, WindowShape):
            start, end = self.shape.windows_of(at)
        else:
            frames = [frame.ints("at") for frame in self.sides[1 - side].buffer.frames()]
            others = np.unique(np.concatenate([*frames, np.zeros(0, np.int64)]))
            start, last = self.shaped.reach(1 - side, {"at": others})
            end = saturating_add(np.asarray(last), 1)
        count = np.searchsorted(at, end) - np.searchsorted(at, start)
        found = Frame.of(
            {"start": np.asarray(start), "end": np.asarray(end), "count": count}, len(count)
        )
        return found.where(count > 0)

    def waits_for(self) -> int:
        """The least watermark at which a row comes out alone."""
        least = MAX
        for side in (LEFT, RIGHT):
            if self.spec.pads(side) and self.spec.padding != "early":
                places = self.sides[side].buffer.owing(None)
                if len(places.at):
                    first = self.stored(side, places, ["at"]).ints("at").min()
                    _, last = self.shaped.reach(side, {"at": np.array([first])})
                    late = self.spec.allowed_lateness if self.spec.padding == "final" else 0
                    least = min(
                        least, int(saturating_add(int(saturating_add(int(last[0]), late)), 1))
                    )
        return least


def _turns(rows: Taken) -> np.ndarray:
    """When each row is taken: those of a key in their order, those of one sign that follow each
    other at once; a turn has a plus and a minus.
    """
    if rows.weight is None:
        return np.zeros(len(rows), np.int64)
    frame = rows.frame
    keys = Groups.by([frame.ints(name) for name in ("lead", "key_check")])
    sign = rows.weight[keys.order] < 0
    first = np.zeros(len(rows), bool)
    first[keys.offsets[:-1]] = True
    before = np.concatenate([[False], sign[:-1]]) & ~first
    # A turn ends where a plus follows a minus.
    begins = (~sign & before).astype(np.int64)
    total = np.cumsum(begins)
    turns = np.empty(len(rows), np.int64)
    turns[keys.order] = total - np.repeat(total[keys.offsets[:-1]], keys.counts)
    return turns
