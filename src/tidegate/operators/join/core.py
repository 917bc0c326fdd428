"""The core of a join is what its ways of meeting share: the sides, conditions on pairs, rows that
come out alone, and retractions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.instants import MAX, MIN
from tidegate.kernel.frame import Column, Frame, is_constant, to_arrow
from tidegate.kernel.groups import Groups
from tidegate.kernel.joins.buffer import Query
from tidegate.kernel.joins.ranges import Found
from tidegate.kernel.keys import identify
from tidegate.kernel.storage.run_store import Places
from tidegate.operators.join.output import PAYLOAD, Emitter
from tidegate.operators.join.side import Side, Taken
from tidegate.operators.output import EARLY, LATE, ON_TIME, class_names, texts
from tidegate.operators.progress import Progress
from tidegate.spec.join import LEFT, RIGHT, JoinSpec

Window = tuple[np.ndarray, np.ndarray]
_PASSING = frozenset({"is_last", "watermark", "emitted_at", "pane_id"})
"""Columns of panes in which a retraction differs from what it takes back."""
AWAITED = 2
"""What `late` says of a row that was late and for which no partner was to be expected when it came.
"""


Work = Callable[[int, Taken], None]


def take_in_turns(
    rows: Mapping[int, Taken], turns_of: Callable[[Taken], np.ndarray], plus: Work, minus: Work
) -> None:
    """A micro-batch in its order: left before right, and where rows are taken back, these and the
    others of a side turn by turn.
    """
    for side in (LEFT, RIGHT):
        given = rows.get(side)
        if given is None or not len(given):
            continue
        if given.weight is None:
            plus(side, given)
            continue
        turns = turns_of(given)
        for turn in range(int(turns.max()) + 1):
            for sign, work in ((1, plus), (-1, minus)):
                chosen = np.flatnonzero((turns == turn) & (given.weight == sign))
                if len(chosen):
                    work(side, given.take(chosen))


@dataclass(eq=False)
class JoinCore(ABC):
    """One way of meeting: what is common to all, and what each says on its own."""

    spec: JoinSpec
    sides: tuple[Side, Side]
    emitter: Emitter
    progress: Progress
    finishing: bool = False
    _order: int = field(default=0)
    """Where the next rows come in the output of the call."""

    @abstractmethod
    def take_all(self, rows: Mapping[int, Taken]) -> None:
        """A micro-batch of rows, by side."""

    @abstractmethod
    def settle(self) -> None:
        """Watermarks may have moved: rows for which no partner is expected come out alone, and
        those that are of no use go.
        """

    @abstractmethod
    def lonely(self, side: int, places: Places, order: np.ndarray) -> None:
        """Stored rows have no partner any more."""

    @abstractmethod
    def pad_rows(self, side: int, places: Places) -> None:
        """Stored rows come out alone, whether or not a partner is expected."""

    @abstractmethod
    def push_out(self, side: int, horizon: int) -> None:
        """Rows older than retention go; those without a partner come out alone first."""

    @abstractmethod
    def promised(self, side: int) -> dict[str, int]:
        """By time column of a side, the time that nothing that is yet to come is below."""

    @abstractmethod
    def windows(self, side: int, rows: Frame) -> Frame:
        """The windows of a side with `start`, `end` and how many of these rows each holds."""

    @abstractmethod
    def waits_for(self) -> int:
        """The least watermark at which something comes out; `MAX` where nothing waits for one."""

    def admitted(self, side: int, at: np.ndarray) -> np.ndarray:  # noqa: ARG002
        """Which rows are in a window at all."""
        return np.ones(len(at), bool)

    def owed(self, side: int) -> int:
        """How many rows of a side are still to come out alone if no partner comes."""
        return len(self.sides[side].buffer.owing(None).at) if self.spec.pads(side) else 0

    def push_rows(self, side: int, places: Places) -> None:
        """Rows go because of retention; those without a partner come out alone first."""
        buffer = self.sides[side].buffer
        if self.spec.pads(side):
            self.pad_rows(
                side,
                places.take((buffer.mark("n", places) == 0) & (buffer.mark("alone", places) == 0)),
            )
        buffer.remove(places)

    @property
    def retracts(self) -> bool:
        """Whether rows may be retractions."""
        return any(side.op_column is not None for side in self.sides)

    def marks_rows(self, side: int) -> bool:
        """Whether it must be known of the rows of a side how many partners they have."""
        return self.spec.pads(side) or (side == LEFT and self.spec.how == "semi")

    def keeps_null_keys(self, side: int) -> bool:
        """Whether rows are kept that can have no partner."""
        return self.spec.pads(side) or self.sides[side].op_column is not None

    def keep(self, side: int, taken: Taken) -> Places:
        """Store rows, and say where they are; those that can have no partner and that nobody wants
        are nowhere.
        """
        buffer = self.sides[side].buffer
        if taken.nobody is None or self.keeps_null_keys(side):
            return buffer.put(taken.frame, taken.by)
        kept = np.flatnonzero(~taken.nobody)
        found = buffer.put(taken.frame.take(kept))
        places = Places(np.full(len(taken), -1), np.full(len(taken), -1))
        places.run[kept], places.at[kept] = found.run, found.at
        return places

    def after(self, n: int) -> int:
        """The place of the next `n` rows in the output."""
        here, self._order = self._order, self._order + n
        return here

    # Columns

    def payload(self, side: int) -> list[str]:
        """The input columns of a side, as its buffer has them."""
        schema = self.sides[side].schema
        return (
            []
            if schema is None
            else [PAYLOAD + name for name in schema.names if name != self.sides[side].op_column]
        )

    def shown(self, side: int, *, paired: bool = False) -> list[str]:
        """What the output needs of the rows of a side, alone or in pairs: what both sides have is
        taken from the left one.
        """
        columns = self.emitter.columns
        if side == LEFT:
            names = [column.left for column in columns]
        else:
            names = [column.right for column in columns if not paired or column.left is None]
        known = (
            []
            if paired and side == RIGHT
            else (
                ["key_hash"]
                if self._has_key_hash
                else ["lead"]
                if paired
                else ["lead", "key_check"]
            )
        )
        at = ["at"] if self.spec.has_windows or self.emitter.keeps_times else []
        return [*known, "seq", *at, *(PAYLOAD + name for name in names if name is not None)]

    @property
    def _has_key_hash(self) -> bool:
        return self.spec.layout is not None and set(self.spec.layout) != set(self.spec.fields(LEFT))

    @property
    def compared(self) -> list[str]:
        """The columns that tell keys apart which share a lead."""
        return ["key_check", "key_hash"] if self._has_key_hash else ["key_check"]

    def table(self, side: int, rows: Frame) -> pa.Table:
        """Rows as they came."""
        return pa.table(
            {name.removeprefix(PAYLOAD): to_arrow(rows[name]) for name in self.payload(side)}
        )

    def stored(self, side: int, places: Places | Found, names: list[str]) -> Frame:
        """Columns of stored rows."""
        if not len(places.at):
            types = {PAYLOAD + field_.name: field_.type for field_ in self.sides[side].schema or ()}
            return Frame(
                {
                    name: pa.array([], types[name]) if name in types else np.zeros(0, np.int64)
                    for name in names
                },
                0,
            )
        return Frame(
            self.sides[side].buffer.take(places, list(dict.fromkeys(names))), len(places.at)
        )

    # Pairs

    def met(
        self, side: int, new: Frame, query: Query, times: Any = None, *, quiet: bool = False
    ) -> Found:
        """The stored rows of the other side that rows meet, by row and then by arrival: in reach,
        of the same key, and under all conditions.
        """
        other = 1 - side
        buffer = self.sides[other].buffer
        found = buffer.probe(query)
        if not len(found.row):
            return found
        held = self.stored(
            other, found, [*self.compared, "seq", *(buffer.watched if times is not None else ())]
        )
        keep = np.ones(len(found.row), bool)
        for name in self.compared:
            keep &= _same(held.ints(name), new.ints(name), found.row)
        if times is not None:
            mine = {name: new.ints(name)[found.row] for name in self.sides[side].buffer.watched}
            theirs = {name: held.ints(name) for name in buffer.watched}
            holds = times(mine, theirs) if side == LEFT else times(theirs, mine)
            if holds is not None:
                keep &= holds
        if not keep.all():
            found, held = found.where(keep), held.where(keep)
        found = by_arrival(found, held.ints("seq"))
        return found if self.spec.where is None else self._wanted(side, new, found, quiet=quiet)

    def _wanted(self, side: int, new: Frame, found: Found, *, quiet: bool) -> Found:
        if not len(found.row):
            return found
        theirs = self.stored(1 - side, found, ["seq", *self.payload(1 - side)])
        mine = new.select(["seq", *self.payload(side)]).take(found.row)
        left, right = (mine, theirs) if side == LEFT else (theirs, mine)
        mask, failed = conditions(self.spec.where, self.emitter.candidates(left, right))
        if failed and not quiet:
            self._report(side, mine, theirs, failed)
        return found.where(mask)

    def _report(self, side: int, mine: Frame, theirs: Frame, failed: Mapping[int, str]) -> None:
        """Tell of pairs whose condition failed, with the row that came last."""
        rows = np.array(list(failed), np.int64)
        partners = theirs.ints("seq")[rows].tolist()
        table = self.table(side, mine.take(rows))
        detail = [
            f"{why} (with message {partner} of the other side)"
            for why, partner in zip(failed.values(), partners, strict=True)
        ]
        self.sides[side].late_table(
            table, "bad_condition", texts(None, len(rows)), pa.array(detail, pa.string())
        )

    def pair_up(
        self, left: Places, right: Places, order: np.ndarray, window: Window | None = None
    ) -> None:
        """Stored rows become pairs, in this order; what stood of them alone is taken back before,
        and in a semi join left rows come out.
        """
        if not len(order):
            return
        for side, places in ((LEFT, left), (RIGHT, right)):
            if self.marks_rows(side):
                first = firsts(self.sides[side].buffer.numbers(places))
                alone = self.sides[side].buffer.mark("alone", places.take(first))
                if self.spec.how == "semi":
                    new = first[alone == 0]
                    self._come_out(
                        left.take(new),
                        right.take(new),
                        order[new] + 2,
                        None if window is None else (window[0][new], window[1][new]),
                    )
                else:
                    told = first[alone > 0]
                    self.take_back(side, places.take(told), order[told] + 1)
                self.sides[side].buffer.add_to_mark("n", places, 1)
        if self.spec.shows_pairs:
            self.put_pairs(left, right, 1, order + 2, window)

    def leave(
        self, side: int, places: Places, found: Found, base: int, step: int
    ) -> tuple[Places, Places]:
        """Stored rows go, and what stood of them alone is taken back; their pairs, as places on the
        left and on the right, are still to be.
        """
        buffer = self.sides[side].buffer
        if self.marks_rows(side):
            told = buffer.mark("alone", places) > 0
            counts = np.bincount(found.row, minlength=len(places.at))
            self.take_back(
                side, places.take(told), base + step * (np.cumsum(counts) - counts)[told]
            )
        buffer.remove(places)
        mine, theirs = places.take(found.row), Places(np.asarray(found.run), found.at)
        return (mine, theirs) if side == LEFT else (theirs, mine)

    def unpair(
        self,
        left: Places,
        right: Places,
        order: np.ndarray,
        window: Window | None,
        losing: Sequence[int],
    ) -> None:
        """Pairs are taken back, in this order; rows of the losing sides, which stay, may come out
        alone again after their last one.
        """
        if not len(order):
            return
        if self.spec.shows_pairs:
            self.put_pairs(left, right, -1, order + 2, window)
        for side in losing:
            if self.marks_rows(side):
                places, buffer = (right if side == RIGHT else left), self.sides[side].buffer
                buffer.add_to_mark("n", places, -1)
                last = len(order) - 1 - firsts(buffer.numbers(places)[::-1])[::-1]
                lost = last[buffer.mark("n", places.take(last)) == 0]
                self.lonely(side, places.take(lost), order[lost] + 3)

    def put_pairs(
        self, left: Places, right: Places, op: int, order: np.ndarray, window: Window | None
    ) -> None:
        """Pairs of stored rows come out, or are taken back."""
        mine = self.stored(LEFT, left, ["late", *self.shown(LEFT, paired=True)])
        theirs = self.stored(RIGHT, right, ["late", *self.shown(RIGHT, paired=True)])
        self.emitter.put(
            mine,
            theirs,
            op=op,
            timing=pair_timing(mine["late"], theirs["late"]),
            order=order,
            window=window,
        )

    def _come_out(
        self, left: Places, right: Places, order: np.ndarray, window: Window | None
    ) -> None:
        """Left rows of a semi join come out with their first partner."""
        if not len(order):
            return
        rows = self.stored(LEFT, left, ["late", *self.shown(LEFT)])
        timing = pair_timing(rows["late"], self.stored(RIGHT, right, ["late"])["late"])
        self.alone(LEFT, rows, op=1, timing=timing, order=order, window=window)
        self.sides[LEFT].buffer.set_mark("alone", left, timing + 1)
        self.note_windows(LEFT, left, window)

    # Rows that come out alone

    def alone(
        self,
        side: int,
        rows: Frame,
        *,
        op: int,
        timing: np.ndarray | int,
        order: np.ndarray,
        window: Window | None = None,
    ) -> None:
        """Rows of one side come out, or are taken back, without a partner."""
        left, right = (rows, None) if side == LEFT else (None, rows)
        self.emitter.put(left, right, op=op, timing=timing, order=order, window=window)

    def take_back(self, side: int, places: Places, order: np.ndarray) -> None:
        """What stands of stored rows alone is taken back, as it was told."""
        buffer = self.sides[side].buffer
        codes = buffer.mark("alone", places)
        rows = self.stored(side, places, ["at", *self.shown(side)])
        self.alone(
            side,
            rows,
            op=-1,
            timing=codes - 1,
            order=order,
            window=self.told_window(side, places, rows),
        )
        buffer.set_mark("alone", places, 0)

    def told_window(self, side: int, places: Places, rows: Frame) -> Window | None:
        """The windows that stored rows were put out alone with."""
        buffer = self.sides[side].buffer
        if "start" in buffer.marks:
            return buffer.mark("start", places), buffer.mark("end", places)
        return self.own_window(rows.ints("at")) if self.spec.has_windows else None

    def own_window(self, at: np.ndarray) -> Window | None:  # noqa: ARG002
        """The first window of rows that have no partner, where it follows from their time."""
        return None

    def note_windows(self, side: int, places: Places, window: Window | None) -> None:
        """Remember the windows that rows were put out alone with, where they do not follow from the
        rows.
        """
        buffer = self.sides[side].buffer
        if window is not None and "start" in buffer.marks:
            buffer.set_mark("start", places, window[0])
            buffer.set_mark("end", places, window[1])

    @property
    def nbytes(self) -> int:
        """What is held beside the sides."""
        return 0

    def save(self) -> Any:
        """What is to be remembered beside the sides."""
        return None

    def restore(self, document: Any) -> None:  # noqa: B027 - most have nothing to remember
        """Continue from that."""

    # Retractions

    def found_again(self, side: int, rows: Taken) -> tuple[np.ndarray, Places]:
        """For retractions the stored rows that they take back, the oldest first; a row that is not
        there goes to `late`.
        """
        frame, buffer = rows.frame, self.sides[side].buffer
        at = frame.ints("at")
        # The message that takes a tuple back has an offset of its own.
        low, high = (
            (at, at) if self.spec.is_timed else (np.full(len(at), MIN), np.full(len(at), MAX))
        )
        candidates = buffer.probe(Query(rows.by, low, high))
        held = self.stored(side, candidates, [*self.compared, "seq", *self.payload(side)])
        chosen = np.full(len(rows), -1, np.int64)
        if len(candidates.row):
            mine, theirs = self._values(side, frame), self._values(side, held)
            same = (mine[0][candidates.row] == theirs[0]) & (mine[1][candidates.row] == theirs[1])
            candidates, held = candidates.where(same), held.where(same)
            chosen = _oldest(candidates, held.ints("seq"), buffer.numbers(candidates), mine)
        missing = np.flatnonzero(chosen < 0)
        if len(missing):
            gone = rows.take(missing)
            table = self.table(side, gone.frame)
            table = table.append_column(
                self.sides[side].op_column or "op", texts("-", len(missing))
            )
            self.sides[side].late_table(table, "nothing_to_retract", class_names(gone.classes))
        kept = np.flatnonzero(chosen >= 0)
        return kept, Places(np.asarray(candidates.run)[chosen[kept]], candidates.at[chosen[kept]])

    def _values(self, side: int, frame: Frame) -> tuple[np.ndarray, np.ndarray]:
        """The identity of what a retraction has in common with the row that it takes back."""
        given = self.sides[side].given
        passing = {given.offset, given.id, *_PASSING}
        names = [name for name in self.payload(side) if name.removeprefix(PAYLOAD) not in passing]
        return identify([to_arrow(frame[name]) for name in names], len(frame))


def by_arrival(found: Found, seq: np.ndarray) -> Found:
    """Pairs by asking row, and those of a row by the arrival of the partner."""
    if len(seq) < 2:
        return found
    wrong = (found.row[1:] == found.row[:-1]) & (seq[1:] < seq[:-1])
    if not wrong.any():
        return found
    # Few rows have partners out of order, so that only those are sorted.
    mixed = np.zeros(int(found.row[-1]) + 1, bool)
    mixed[found.row[1:][wrong]] = True
    here = np.flatnonzero(mixed[found.row])
    order = np.arange(len(seq))
    order[here] = here[_by_row(found.row[here], seq[here])]
    return found.take(order)


def _by_row(row: np.ndarray, seq: np.ndarray) -> np.ndarray:
    """The order of (row, arrival); no two are equal in both."""
    low = int(seq.min())
    span = (int(seq.max()) - low).bit_length()
    if int(row[-1]).bit_length() + span < 63:
        return np.argsort((row << span) | (seq - low))
    return np.lexsort((seq, row))


def firsts(numbers: np.ndarray) -> np.ndarray:
    """Where each number occurs first, in order."""
    _, first = np.unique(numbers, return_index=True)
    return np.sort(first)


def conditions(where: Any, table: pa.Table) -> tuple[np.ndarray, dict[int, str]]:
    """Which candidate pairs a condition wants, and those for which it fails, with the reason: they
    are tried one by one.
    """
    try:
        return _condition(where, table), {}
    except Exception:  # noqa: BLE001 - a user's condition may fail in any way
        mask, failed = np.zeros(table.num_rows, bool), {}
        for row in range(table.num_rows):
            try:
                mask[row] = _condition(where, table.slice(row, 1))[0]
            except Exception as error:  # noqa: BLE001 - the same
                failed[row] = f"{type(error).__name__}: {error}"
        return mask, failed


def _condition(where: Any, table: pa.Table) -> np.ndarray:
    if isinstance(where, pc.Expression):
        name = "\x00at"
        rows = (
            table.append_column(name, pa.array(np.arange(table.num_rows)))
            .filter(where)
            .column(name)
        )
        mask = np.zeros(table.num_rows, bool)
        mask[rows.to_numpy()] = True
        return mask
    answer = where(table)
    if not isinstance(answer, pa.Array | pa.ChunkedArray):
        answer = pa.array(answer)
    if len(answer) != table.num_rows:
        raise ValueError(f"the condition answered {len(answer)} times for {table.num_rows} pairs")
    return pc.fill_null(to_arrow(answer).cast(pa.bool_()), False).to_numpy(zero_copy_only=False)


def _same(held: np.ndarray, asked: np.ndarray, row: np.ndarray) -> np.ndarray:
    if is_constant(held) and is_constant(asked):
        return np.full(len(row), bool(held[0] == asked[0]))
    return held == asked[row]


def _oldest(
    candidates: Found, seq: np.ndarray, number: np.ndarray, mine: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """For each asking row the candidate that it gets: of rows with the same values the n-th oldest
    goes to the n-th that asks.
    """
    values = Groups.by(mine)
    group = values.ids[candidates.row]
    # Every row with these values has the same candidates, so that those of the first one are all
    # there are.
    firsts = np.flatnonzero(candidates.row == values.firsts[group])
    order = firsts[np.lexsort((number[firsts], seq[firsts], group[firsts]))]
    counts = np.bincount(group[order], minlength=values.n)
    begin = np.cumsum(counts) - counts
    rank = values.ranks
    chosen = np.full(len(values.ids), -1, np.int64)
    there = rank < counts[values.ids]
    chosen[there] = order[begin[values.ids[there]] + rank[there]]
    return chosen


def column_times(frame: Frame, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The time columns of a frame."""
    return {name: frame.ints(name) for name in names}


def below(times: Mapping[str, np.ndarray], limits: Mapping[str, int], n: int) -> np.ndarray:
    """Which rows are below one of the limits."""
    mask = np.zeros(n, bool)
    for name, limit in limits.items():
        if limit > MIN:
            mask |= times[name] < limit
    return mask


def timing_of(complete: np.ndarray, late: np.ndarray) -> np.ndarray:
    """The timing of rows that come out alone: early while a partner may come, late where none was
    to be expected when they came.
    """
    return np.where(~complete, EARLY, np.where(late == AWAITED, LATE, ON_TIME)).astype(np.int8)


def pair_timing(left: Column, right: Column) -> np.ndarray:
    """A pair is late if either row was late when it came."""
    return np.where((np.asarray(left) > 0) | (np.asarray(right) > 0), LATE, ON_TIME).astype(np.int8)
