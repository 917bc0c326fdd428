"""The life of rows in a join, common to all shapes: arrive, match, come out unmatched, expire.

A *shape* of a join (`range`, `session`, `rows`, `as_of`) decides which rows are partners, from when
on none is expected, and which window a row is in. The rest is here. `JoinMatching` is what all
shapes share: turns, rows that wait for a partner, watermarks and retention. `PairMatching` is for
the shapes in which a row may have many partners: it puts out pairs, pads unmatched rows, and takes
both back. An as-of join has one answer for each left row instead.

Marks of a stored row, kept for rows that may come out by themselves:
- `partners`: how many partners the row has.
- `emitted`: 0 until the row itself has come out (padded, or as a row of a semi join), then its
  timing plus one.
- `start`, `end`: the window that it came out with, if that does not follow from its time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tidegate.instants import MAX, MIN
from tidegate.kernel.frame import Column, Frame, squeezed
from tidegate.kernel.groups import Groups
from tidegate.kernel.joins.range_matching import NOTHING, Found
from tidegate.kernel.storage.run_store import Places
from tidegate.operators.join.collector import JoinCollector, Window
from tidegate.operators.join.context import JoinContext, Times
from tidegate.operators.join.side import Taken
from tidegate.operators.output import EARLY, LATE, ON_TIME
from tidegate.spec.join import LEFT, RIGHT, JoinSpec

Turn = tuple[int, Mapping[int, Taken]]
"""Rows by side that are taken at once: 1 for new rows, -1 for retractions."""
STEPS = 4
"""Positions in the output for each pair: the padding of a row that comes before it, what the pair
takes back, the pair, and the padding that follows its retraction.
"""
_LATE_COMPLETE = 2
"""`late` of a row that was late and for which no partner was expected any more when it came."""


@dataclass(eq=False)
class JoinMatching(JoinContext, ABC):
    """A join of one shape; the abstract methods are what the shape decides."""

    @classmethod
    @abstractmethod
    def row_marks(cls, spec: JoinSpec, side: int) -> dict[str, Any]:
        """The marks of the rows of a side, with the values that a new row has."""

    @classmethod
    def time_columns(cls, spec: JoinSpec, side: int) -> dict[str, str]:
        """The names that the buffer has for the time columns of a side; none on offsets."""
        return {spec.side(side).time or "": "position"} if spec.is_timed(side) else {}

    @classmethod
    def last_instant(cls, spec: JoinSpec) -> Callable[[np.ndarray], np.ndarray] | None:  # noqa: ARG003
        """The last instant of the last window of rows, from their times; None without windows."""
        return None

    @abstractmethod
    def turns(self, rows: Mapping[int, Taken]) -> Iterator[Turn]:
        """A micro-batch in parts that can each be matched at once, in the order of arrival."""

    @abstractmethod
    def add(self, rows: Mapping[int, Taken], out: JoinCollector) -> None:
        """Take new rows: store them, and put out what they bring about."""

    @abstractmethod
    def retract(self, side: int, rows: Taken, out: JoinCollector) -> None:
        """Take retractions of a side: stored rows go, and what they brought about is taken back."""

    @abstractmethod
    def pad(self, side: int, places: Places, order: np.ndarray, out: JoinCollector) -> None:
        """Put out stored rows that have no partner."""

    @abstractmethod
    def due_at(self, side: int, first: int) -> int:
        """The watermark at which an unmatched row at position `first` comes out."""

    @abstractmethod
    def expire(self) -> None:
        """Drop the rows that are of no use any more."""

    def forget(self) -> None:
        """Drop what belongs to rows that retention has evicted; the rows are dropped already."""

    @abstractmethod
    def promised(self, side: int) -> dict[str, int]:
        """By time column of a side, the least time that rows still to come out can have."""

    @abstractmethod
    def windows(self, side: int, rows: Frame) -> Frame:
        """The windows of a side with `start`, `end` and how many of these rows each holds."""

    def promised_by_rows(self, side: int) -> dict[str, int]:
        """The promise where rows match by offset: a row that is held may come out at any time."""
        own = self.sides[side]
        if own.given.time is None:
            return {}
        held = own.buffer.least("time", MAX)
        return {own.given.time: min(own.watermark, held, self.emitter.least(side))}

    def due_limits(self, side: int) -> Mapping[str, int] | None:  # noqa: ARG002
        """By column, the positions below which unmatched rows are due; None if all are.

        Not used by shapes that override `pad_due`.
        """
        return None

    def has_window(self, at: np.ndarray) -> np.ndarray:
        """Which rows are in a window at all."""
        return np.ones(len(at), bool)

    @property
    def nbytes(self) -> int:
        """Bytes that the shape holds beside the rows of both sides."""
        return 0

    def save(self) -> Any:
        """Write what the shape holds beside the rows, and return the document to restore from."""
        return None

    def restore(self, document: Any) -> None:
        """Continue from a saved document."""

    # Rows arrive

    def take_all(self, rows: Mapping[int, Taken], out: JoinCollector) -> None:
        """Take a micro-batch: new rows and retractions by side."""
        for sign, turn in self.turns({side: taken for side, taken in rows.items() if len(taken)}):
            if sign > 0:
                self.add(turn, out)
            else:
                for side, taken in turn.items():
                    self.retract(side, taken, out)
            for side in turn:
                self.sides[side].buffer.tidy()

    # Unmatched rows

    def awaits_partner(self, side: int) -> bool:
        """Whether rows of a side that have no partner are still to come out."""
        return self.spec.pads(side)

    def pending(self, side: int, limits: Mapping[str, int] | None = None) -> Places:
        """The rows of a side without a partner that have not come out, below the limits if any."""
        if not self.awaits_partner(side):
            return Places.of([])
        return self.sides[side].buffer.pending(limits)

    def owes_rows(self) -> bool:
        """Whether unmatched rows are still to come out, at the latest at the end of the input."""
        return any(self.spec.pads(side) and len(self.pending(side).at) for side in (LEFT, RIGHT))

    def is_pending(self, side: int, places: Places) -> np.ndarray:
        """Which stored rows have no partner and have not come out."""
        buffer = self.sides[side].buffer
        mask = buffer.mark("emitted", places) == 0
        return mask & (buffer.mark("partners", places) == 0) if "partners" in buffer.marks else mask

    def pad_in_order(self, side: int, places: Places, out: JoinCollector) -> None:
        """Put out stored rows that have no partner, in the order of arrival."""
        if len(places.at):
            by = np.argsort(self.stored(side, places, ["seq"]).ints("seq"), kind="stable")
            order = out.reserve(STEPS * len(by)) + STEPS * np.arange(len(by))
            self.pad(side, places.take(by), order, out)

    # Watermarks move

    def settle(self, out: JoinCollector) -> None:
        """Watermarks may have moved: put out the rows that are due, and drop those of no use.

        With retention, rows of no use stay readable.
        """
        self.pad_due(out)
        if self.finishing:
            self.clear()
        elif self.spec.retention:
            self.forget()
        else:
            self.expire()

    def pad_due(self, out: JoinCollector) -> None:
        """Put out the unmatched rows that are due."""
        for side in (LEFT, RIGHT):
            if self.awaits_partner(side) and self.spec.padding != "early":
                self.pad_in_order(side, self.pending(side, self.due_limits(side)), out)

    def waits_for(self) -> int:
        """The least watermark at which a row comes out; `MAX` if none waits for a watermark."""
        least = MAX
        for side in (LEFT, RIGHT):
            places = self.pending(side)
            if len(places.at) and self.spec.padding != "early":
                first = int(self.stored(side, places, ["position"]).ints("position").min())
                least = min(least, self.due_at(side, first))
        return least

    def clear(self) -> None:
        """Drop everything: the input has ended."""
        for side in self.sides:
            side.buffer.clear()

    # Retention

    def push_out(self, side: int, horizon: int, out: JoinCollector) -> None:
        """Push out the rows of a side below a time; unmatched ones come out first."""
        own = self.sides[side]
        limits = {own.columns[own.given.time or ""]: horizon}
        self.pad_pushed(side, self.pending(side, limits), out)
        own.buffer.expire(limits)

    def push_rows(self, side: int, places: Places, out: JoinCollector) -> None:
        """Push out stored rows; unmatched ones come out first."""
        if self.awaits_partner(side):
            self.pad_pushed(side, places.take(self.is_pending(side, places)), out)
        self.sides[side].buffer.remove(places)

    def pad_pushed(self, side: int, places: Places, out: JoinCollector) -> None:
        """Put out unmatched rows that retention pushes out, whether or not they are due."""
        self.pad_in_order(side, places, out)

    # Output

    def put_single(
        self,
        side: int,
        rows: Frame,
        *,
        op: int,
        timing: np.ndarray,
        order: np.ndarray,
        out: JoinCollector,
        window: Window | None = None,
    ) -> None:
        """Put out rows of one side without a partner, or take them back."""
        left, right = (rows, None) if side == LEFT else (None, rows)
        out.put(left, right, op=op, timing=timing, order=order, window=window)


class Standing(NamedTuple):
    """How rows stand that have no partner."""

    complete: np.ndarray
    """Whether no partner is expected any more."""
    due: np.ndarray
    """Whether the row comes out now."""
    window: Window | None = None
    """The window that it comes out with."""

    def take(self, index: np.ndarray) -> Standing:
        window = None if self.window is None else (self.window[0][index], self.window[1][index])
        return Standing(self.complete[index], self.due[index], window)


class Arrived(NamedTuple):
    """New rows of a side."""

    side: int
    rows: Frame
    places: Places
    standing: Standing
    matched: np.ndarray
    """Whether the row had a partner when it came."""
    order: np.ndarray
    """Its position in the output if it comes out unmatched."""


class Matches(NamedTuple):
    """New rows, and the pairs that they bring about."""

    arrived: Sequence[Arrived]
    left: Places
    right: Places
    order: np.ndarray
    """The positions of the pairs in the output."""
    window: Window | None = None
    """The windows of the pairs."""


@dataclass(eq=False)
class PairMatching(JoinMatching):
    """A join in which a row has any number of partners."""

    @classmethod
    def row_marks(cls, spec: JoinSpec, side: int) -> dict[str, Any]:
        return (
            {"partners": np.int32(0), "emitted": np.int8(0)} if _counts_partners(spec, side) else {}
        )

    @abstractmethod
    def match(self, rows: Mapping[int, Taken], out: JoinCollector) -> Matches:
        """Store the new rows of a turn, and find their partners."""

    @abstractmethod
    def standing(self, side: int, places: Places) -> Standing:
        """How stored rows stand that have no partner."""

    def partners(self, side: int, places: Places) -> Found:  # noqa: ARG002
        """The rows that stored rows of a side are paired with.

        Not used by shapes that override `retract`.
        """
        return NOTHING

    def pair_window(self, left: Places, right: Places) -> Window | None:  # noqa: ARG002
        """The windows of pairs, if they follow from the times of the rows."""
        return None

    def own_window(self, at: np.ndarray) -> Window | None:  # noqa: ARG002
        """The windows of unmatched rows, if they follow from the times of the rows."""
        return None

    def after_match(self, matches: Matches) -> None:
        """Called when the pairs of a turn have come out."""

    # Rows arrive

    def add(self, rows: Mapping[int, Taken], out: JoinCollector) -> None:
        matches = self.match(rows, out)
        for new in matches.arrived:
            if self.spec.pads(new.side):
                due = np.flatnonzero(~new.matched & new.standing.due & (new.places.run >= 0))
                self.pad_rows(
                    new.side,
                    new.rows.take(due),
                    new.places.take(due),
                    new.standing.take(due),
                    new.order[due],
                    out,
                )
        self._pair(matches, out)
        self.after_match(matches)

    def retract(self, side: int, rows: Taken, out: JoinCollector) -> None:
        kept, places = self.retracted(side, rows, out)
        if not len(kept):
            return
        found = self.partners(side, places)
        base = out.reserve(STEPS * (len(found.row) + 1))
        counts = np.bincount(found.row, minlength=len(kept))
        self.take_back(side, places, base + STEPS * (np.cumsum(counts) - counts), out)
        self.sides[side].buffer.remove(places)
        mine, theirs = places.take(found.row), Places(np.asarray(found.run), found.at)
        left, right = (mine, theirs) if side == LEFT else (theirs, mine)
        order = base + STEPS * np.arange(len(found.row))
        self.unpair(left, right, order, self.pair_window(left, right), [1 - side], out)

    def marked_late(self, rows: Taken, complete: np.ndarray) -> Frame:
        """New rows with `late`: 0, or 1 if late, or 2 if also no partner was expected any more."""
        late = np.where(rows.late, np.where(complete, _LATE_COMPLETE, 1), 0).astype(np.int8)
        return rows.frame.with_columns(late=squeezed(late))

    def positions(
        self, row: np.ndarray, n: int, out: JoinCollector
    ) -> tuple[np.ndarray, np.ndarray]:
        """Positions in the output of `n` rows and of pairs, which are sorted by `row`.

        What a row brings about comes after all that the rows before it do.
        """
        base, counts = out.reserve(STEPS * (n + len(row) + 1)), np.bincount(row, minlength=n)
        rows = base + STEPS * (np.cumsum(counts) - counts + np.arange(n))
        return rows, base + STEPS * (np.arange(len(row)) + row + 1)

    # Pairs

    def _pair(self, matches: Matches, out: JoinCollector) -> None:
        """Put out pairs of stored rows.

        Paddings of their rows are taken back first. In a semi join a left row comes out with its
        first partner.
        """
        _, left, right, order, window = matches
        if not len(order):
            return
        semi = self.spec.how == "semi"
        for side, places in ((LEFT, left), (RIGHT, right)):
            if _counts_partners(self.spec, side):
                buffer = self.sides[side].buffer
                emitted = buffer.mark("emitted", places) > 0
                rows = np.flatnonzero(~emitted if semi else emitted)
                rows = rows[firsts(buffer.numbers(places.take(rows)))]
                if semi:
                    self._emit_semi(matches, rows, out)
                else:
                    self.take_back(side, places.take(rows), order[rows] + 1, out)
                buffer.add_to_mark("partners", places, 1)
        if self.spec.shows_pairs:
            self._put_pairs(left, right, 1, order + 2, window, out)

    def unpair(
        self,
        left: Places,
        right: Places,
        order: np.ndarray,
        window: Window | None,
        losing: Sequence[int],
        out: JoinCollector,
    ) -> None:
        """Take back pairs; rows of the `losing` sides, which stay, may be unmatched after it."""
        if not len(order):
            return
        if self.spec.shows_pairs:
            self._put_pairs(left, right, -1, order + 2, window, out)
        for side in losing:
            if _counts_partners(self.spec, side):
                places, buffer = (right if side == RIGHT else left), self.sides[side].buffer
                buffer.add_to_mark("partners", places, -1)
                last = len(order) - 1 - firsts(buffer.numbers(places)[::-1])[::-1]
                lost = last[buffer.mark("partners", places.take(last)) == 0]
                self._unmatched(side, places.take(lost), order[lost] + 3, out)

    def _put_pairs(
        self,
        left: Places,
        right: Places,
        op: int,
        order: np.ndarray,
        window: Window | None,
        out: JoinCollector,
    ) -> None:
        mine = self.stored(LEFT, left, ["late", *self.shown(LEFT, paired=True)])
        theirs = self.stored(RIGHT, right, ["late", *self.shown(RIGHT, paired=True)])
        out.put(
            mine,
            theirs,
            op=op,
            timing=_pair_timing(mine["late"], theirs["late"]),
            order=order,
            window=window,
        )

    def _emit_semi(self, matches: Matches, pairs: np.ndarray, out: JoinCollector) -> None:
        """Put out the left rows of some pairs, which are their first."""
        if not len(pairs):
            return
        left, window = matches.left.take(pairs), matches.window
        window = None if window is None else (window[0][pairs], window[1][pairs])
        rows = self.stored(LEFT, left, ["late", *self.shown(LEFT)])
        partners = self.stored(RIGHT, matches.right.take(pairs), ["late"])
        timing = _pair_timing(rows["late"], partners["late"])
        order = matches.order[pairs] + 2
        self.put_single(LEFT, rows, op=1, timing=timing, order=order, out=out, window=window)
        self._note_emitted(LEFT, left, timing, window)

    # Unmatched rows

    def _unmatched(self, side: int, places: Places, order: np.ndarray, out: JoinCollector) -> None:
        """Stored rows have lost their last partner."""
        if self.spec.how == "semi":
            self.take_back(side, places, order, out)
        elif len(order):
            due = np.flatnonzero(self.standing(side, places).due)
            self.pad(side, places.take(due), order[due], out)

    def pad(self, side: int, places: Places, order: np.ndarray, out: JoinCollector) -> None:
        if len(order):
            rows = self.stored(side, places, ["late", *self.shown(side)])
            self.pad_rows(side, rows, places, self.standing(side, places), order, out)

    def pad_as(self, side: int, places: Places, standing: Standing, out: JoinCollector) -> None:
        """Put out stored rows whose standing is known, in the order of arrival."""
        if len(places.at):
            rows = self.stored(side, places, ["late", *self.shown(side)])
            by = np.argsort(rows.ints("seq"), kind="stable")
            order = out.reserve(len(by)) + np.arange(len(by))
            self.pad_rows(side, rows.take(by), places.take(by), standing.take(by), order, out)

    def pad_rows(
        self,
        side: int,
        rows: Frame,
        places: Places,
        standing: Standing,
        order: np.ndarray,
        out: JoinCollector,
    ) -> None:
        """Put out rows whose columns and standing are known."""
        if len(order):
            timing = _unmatched_timing(standing.complete, rows.ints("late"))
            self.put_single(
                side, rows, op=1, timing=timing, order=order, out=out, window=standing.window
            )
            self._note_emitted(side, places, timing, standing.window)

    def _note_emitted(
        self, side: int, places: Places, timing: np.ndarray, window: Window | None
    ) -> None:
        buffer = self.sides[side].buffer
        buffer.set_mark("emitted", places, timing + 1)
        if window is not None and "start" in buffer.marks:
            buffer.set_mark("start", places, window[0])
            buffer.set_mark("end", places, window[1])

    def take_back(self, side: int, places: Places, order: np.ndarray, out: JoinCollector) -> None:
        """Take back those of some stored rows that came out by themselves, as they came out."""
        if not len(order) or not _counts_partners(self.spec, side):
            return
        buffer = self.sides[side].buffer
        emitted = np.flatnonzero(buffer.mark("emitted", places) > 0)
        places, order = places.take(emitted), order[emitted]
        rows = self.stored(side, places, ["position", *self.shown(side)])
        window = self.own_window(rows.ints("position"))
        if "start" in buffer.marks:
            window = buffer.mark("start", places), buffer.mark("end", places)
        timing = buffer.mark("emitted", places) - 1
        self.put_single(side, rows, op=-1, timing=timing, order=order, out=out, window=window)
        buffer.set_mark("emitted", places, 0)


def by_side(rows: Mapping[int, Taken], numbered: Callable[[Taken], np.ndarray]) -> Iterator[Turn]:
    """Turns in which left comes before right, and the rows of a side by their turn numbers."""
    for side in (LEFT, RIGHT):
        given = rows.get(side)
        if given is None:
            continue
        if given.weight is None:
            yield 1, {side: given}
            continue
        number = numbered(given)
        for turn in range(int(number.max()) + 1):
            for sign in (1, -1):
                chosen = np.flatnonzero((number == turn) & (given.weight == sign))
                if len(chosen):
                    yield sign, {side: given.take(chosen)}


def one_by_one(rows: Taken, key: Sequence[str] = ("equal_hash", "key_check")) -> np.ndarray:
    """Turn numbers in which every row of a key has a turn of its own."""
    return Groups.by([rows.frame.ints(name) for name in key]).ranks


def below(times: Times, limits: Mapping[str, int], n: int) -> np.ndarray:
    """Which rows are below one of the limits."""
    mask = np.zeros(n, bool)
    for name, limit in limits.items():
        if limit > MIN:
            mask |= times[name] < limit
    return mask


def firsts(numbers: np.ndarray) -> np.ndarray:
    """Where each number occurs first, in order."""
    _, first = np.unique(numbers, return_index=True)
    return np.sort(first)


def _counts_partners(spec: JoinSpec, side: int) -> bool:
    """Whether it matters how many partners the rows of a side have."""
    return spec.pads(side) or (side == LEFT and spec.how == "semi")


def _unmatched_timing(complete: np.ndarray, late: np.ndarray) -> np.ndarray:
    """The timing of unmatched rows: early while a partner may come, late if none could."""
    known = np.where(late == _LATE_COMPLETE, LATE, ON_TIME)
    return np.where(complete, known, EARLY).astype(np.int8)


def _pair_timing(left: Column, right: Column) -> np.ndarray:
    """The timing of pairs: late if either row was late."""
    return np.where((np.asarray(left) > 0) | (np.asarray(right) > 0), LATE, ON_TIME).astype(np.int8)
