"""The windowed join, one row and one pair at a time: lists, and loops inside loops."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from support.reference.join_config import GRIDS, LEFT, RIGHT, AsOf, JoinConfig, Row, Rows
from support.reference.windows import Span, aligned, clamp, meet, proto, union
from tidegate.instants import MAX, MIN
from tidegate.spec.windows import Hopping, Session


@dataclass(eq=False)
class Held:
    """A row that was taken; `pairs` are those that stand, `alone` is what stands of the row itself:
    padding, or its place in a semi join.
    """

    side: int
    seq: int
    row: Row
    late: bool
    was_complete: bool = False
    asked: list[Held] = field(default_factory=list)
    """The right rows that it was looked at with."""
    pairs: list[Pair] = field(default_factory=list)
    alone: Row | None = None


@dataclass(eq=False)
class Pair:
    """Two rows that came out together, and what came out."""

    left: Held
    right: Held
    out: Row

    def partner(self, held: Held) -> Held:
        return self.right if held is self.left else self.left


class JoinReference:
    """The operator. Every call returns the rows and the late rows that it caused."""

    def __init__(self, config: JoinConfig) -> None:
        self.config = config
        self.now = 0
        self.held: list[Held] = []
        self.marks: list[dict[str, int]] = [
            dict.fromkeys(config.columns(side), MIN) for side in (LEFT, RIGHT)
        ]
        self.told: set[tuple[int, str]] = set()
        self.observed: list[dict[str, int]] = [{}, {}]
        self.newest = [MIN, MIN]
        self.newest_before = [MIN, MIN]
        self.highest: list[dict[Any, int]] = [{}, {}]
        self.first: list[dict[Any, int]] = [{}, {}]
        self.offsets: list[dict[Any, int]] = [{}, {}]
        """By partition, the highest accepted, the first, and the highest offset of all."""
        self.counted = [MIN, MIN]
        """How far the offsets of each side had come, from the first, when the last call ended."""
        self.ids: list[dict[Any, int]] = [{}, {}]
        self.seq = 0
        self.ended = False
        self.out: list[Row] = []
        self.late: list[Row] = []
        self.waiting: list[tuple[int, Row]] = []
        self.pushed: list[Held] = []
        """Rows that retention has pushed out: the session that they made stays as it is."""
        self.accepted: list[Held] = []
        """All that was ever taken and not taken back, for the batch answer."""

    # ---- what the outside calls

    def add(
        self, left: list[Row], right: list[Row], now: int | None = None
    ) -> tuple[list[Row], list[Row]]:
        """One delivery: left before right, but in a join of tuples by how far each is from the
        first offset of its side.
        """
        self._tick(now)
        for side, row in self._in_order(left, right):
            self._take(side, row)
        there = [side for side, rows in ((LEFT, left), (RIGHT, right)) if rows]
        # What is pushed out is judged by the watermarks that stood before the delivery, so none
        # moves until both sides are through.
        for side in there:
            self._retain(side)
        for side in there:
            self._imply(side)
            ends = [
                highest + 1 - self.first[side].get(partition, 0)
                for partition, highest in self.offsets[side].items()
            ]
            self.counted[side] = min(ends, default=MIN)
        self._settle()
        return self._collect()

    def advance_watermark(
        self, side: int, watermark: int, column: str = "ts"
    ) -> tuple[list[Row], list[Row]]:
        if column in self.marks[side]:
            self.told.add((side, column))
            self.marks[side][column] = max(self.marks[side][column], watermark)
            self._settle()
        return self._collect()

    def timeout(self, now: int) -> tuple[list[Row], list[Row]]:
        self._tick(now)
        return self._collect()

    def finish(self) -> tuple[list[Row], list[Row]]:
        """Everything that has no partner is padded, what waits comes out, and nothing is left."""
        self.ended = True
        self._settle()
        self.out += [row for _, row in self.waiting]
        self.waiting, self.held = [], []
        self.marks = [dict.fromkeys(marks, MAX) for marks in self.marks]
        return self._collect()

    def snapshot(self) -> Any:
        return copy.deepcopy(
            {name: value for name, value in vars(self).items() if name != "config"}
        )

    def restore(self, snapshot: Any) -> None:
        vars(self).update(copy.deepcopy(snapshot))

    def kept(self, side: int) -> list[Row]:
        """The rows of a side that are in state."""
        return [held.row for held in self.held if held.side == side]

    # ---- a row comes in

    def _tick(self, now: int | None) -> None:
        """Pairs that wait come out when the clock reaches their instant."""
        self.now = self.now if now is None else max(self.now, now)
        self.out += [row for due, row in self.waiting if due <= self.now]
        self.waiting = [(due, row) for due, row in self.waiting if due > self.now]

    def _in_order(self, left: list[Row], right: list[Row]) -> list[tuple[int, Row]]:
        rows = [(LEFT, row) for row in left] + [(RIGHT, row) for row in right]
        if self.config.offset is None:
            return rows
        offset = self.config.offset
        rows.sort(key=lambda item: (item[0], item[1][offset]))
        for side, row in rows:
            if self._is_taken(side, row):
                self.first[side].setdefault(self._partition(row), row[offset])
        if not isinstance(self.config.window, Rows):
            return rows
        # Rows of several partitions are in the order of these first.
        rows.sort(key=lambda item: (item[0], self._partition(item[1]) or ""))
        return sorted(rows, key=lambda item: (self._at(*item), item[0]))

    def _is_taken(self, side: int, row: Row) -> bool:
        """Whether the times of a row allow it: other rows have no position."""
        refused = {"very_late", *(["future"] if self.config.future == "reject" else [])}
        return all(
            row[column] is not None and self._class(side, column, row[column]) not in refused
            for column in self.config.columns(side)
            if self.config.is_counted
        )

    def _partition(self, row: Row) -> Any:
        return row[self.config.partition] if self.config.partition is not None else None

    def _is_duplicate(self, side: int, row: Row) -> bool:
        if self.config.offset is not None:
            if row[self.config.offset] <= self.offsets[side].get(self._partition(row), MIN):
                return True
            self.offsets[side][self._partition(row)] = row[self.config.offset]
        if self.config.id is not None and row[self.config.id] is not None:
            if row[self.config.id] in self.ids[side]:
                return True
            self.ids[side][row[self.config.id]] = max(
                row["ts"] if row["ts"] is not None else MIN, self._mark(side)
            )
        return False

    def _at(self, side: int, row: Row) -> int:
        """Where a row is: at its time, or as far as its offset is from the first of its side."""
        if self.config.is_counted:
            return row[self.config.offset or ""] - self.first[side].get(self._partition(row), 0)
        return row["ts"]

    def _take(self, side: int, row: Row) -> None:
        if self._is_duplicate(side, row):
            return
        columns = self.config.columns(side)
        classes = [
            self._class(side, column, row[column]) for column in columns if row[column] is not None
        ]
        for column in columns:
            # Each column is a sign of progress of its own, also where another one is missing.
            if row[column] is not None and self._class(side, column, row[column]) != "future":
                self.observed[side][column] = max(self.observed[side].get(column, MIN), row[column])
        if len(classes) < len(columns):
            self._to_late(side, row, None, "null_time")
            return
        if columns and classes[0] != "future":
            self.newest[side] = max(self.newest[side], row["ts"])
        # Of a row with several times the worst counts.
        kind = next((kind for kind in ("mildly_late", "future") if kind in classes), "on_time")
        if "very_late" in classes:
            self._to_late(side, row, "very_late", "very_late")
        elif "future" in classes and self.config.future == "reject":
            self._to_late(side, row, "future", "future")
        elif self._is_out_of_retention(row, self.newest_before[side]):
            self._to_late(side, row, kind, "out_of_retention")
        elif isinstance(self.config.window, Hopping) and not aligned(
            self.config.window, self._at(side, row)
        ):
            self._to_late(side, row, kind, "no_window")
        elif row.get("op") == "-":
            self._retract(side, row, kind)
        else:
            self._place(Held(side, self._number(), row, kind == "mildly_late"))

    def _number(self) -> int:
        self.seq += 1
        return self.seq

    def _class(self, side: int, column: str, time: int) -> str:
        mark = self.marks[side][column]
        if time < mark:
            return "very_late" if time < self._horizon(mark) else "mildly_late"
        return "future" if time > self.now + self.config.future_tolerance else "on_time"

    def _horizon(self, mark: int) -> int:
        """What is before it is not taken any more."""
        if mark in (MIN, MAX):
            return mark
        return (
            MIN
            if self.config.allowed_lateness == MAX
            else clamp(mark - self.config.allowed_lateness)
        )

    def _mark(self, side: int) -> int:
        return self.marks[side].get("ts", MIN)

    def _place(self, new: Held) -> None:
        self.held.append(new)
        self.accepted.append(new)
        if isinstance(self.config.window, Rows):
            self.highest[new.side][self._partition(new.row)] = new.row[self.config.offset or ""]
        new.was_complete = self._is_complete(new)
        self._match(new)
        self._settle_row(new)

    def _match(self, new: Held) -> None:
        """Pair the new row with what it meets; a session that it joins to others makes pairs of
        their rows too.
        """
        for left, right in self._candidates(new):
            window = self._meets(left, right)
            if window is not None and right not in left.asked:
                left.asked.append(right)
                if self._wanted(left, right):
                    self._pair(left, right, window)

    def _candidates(self, new: Held) -> list[tuple[Held, Held]]:
        if isinstance(self.config.window, Session):
            return [(left, right) for left in self._side(LEFT) for right in self._side(RIGHT)]
        others = self._side(1 - new.side)
        return [(new, other) if new.side == LEFT else (other, new) for other in others]

    def _side(self, side: int) -> list[Held]:
        return [held for held in self.held if held.side == side]

    # ---- which rows belong together

    def _equal(self, left: Row, right: Row) -> bool:
        """A null is equal to nothing."""
        return all(left[a] is not None and left[a] == right[b] for a, b in self.config.on)

    def _meets(self, left: Held, right: Held) -> Span | tuple[()] | None:
        """The first window that holds both, or nothing where windows have no bounds of their own;
        None where they do not meet.
        """
        window = self.config.window
        if not self._equal(left.row, right.row):
            return None
        if isinstance(window, GRIDS):
            shared = set(aligned(window, self._at(LEFT, left.row))) & set(
                aligned(window, self._at(RIGHT, right.row))
            )
            return min(shared, default=None)
        if isinstance(window, Session):
            mine = self.session(left)
            return mine if mine == self.session(right) else None
        if isinstance(window, Rows):
            # The later row looks into the window of the other side.
            new, old = (left, right) if left.seq > right.seq else (right, left)
            span = window.span(old.side)
            if span is not None:
                return () if old.row["ts"] > new.row["ts"] - span else None
            return () if self._is_in_window(old) else None
        bounds = window if isinstance(window, tuple) else (window,)
        return () if all(bound.holds(left.row, right.row) for bound in bounds) else None

    def _wanted(self, left: Held, right: Held) -> bool:
        """What is unknown is no match; a condition that fails is no match either, and is told."""
        try:
            return self.config.where is None or self.config.where(left.row, right.row) is True
        except ArithmeticError:
            last = max(left, right, key=lambda held: held.seq)
            self._to_late(last.side, last.row, None, "bad_condition")
            return False

    def session(self, held: Held) -> Span:
        """The session that a row is in: over both sides, grown until nothing meets it."""
        window = self.config.window
        assert isinstance(window, Session)
        whole, grown = (MIN, MIN), proto(window, self._at(held.side, held.row), window.gap or 0)
        same = [
            other
            for other in [*self.held, *self.pushed]
            if self._session_key(other) == self._session_key(held)
            and (None not in self._session_key(held) or other is held)
        ]
        while whole != grown:
            whole = grown
            spans = [
                proto(window, self._at(other.side, other.row), window.gap or 0) for other in same
            ]
            grown = union([whole, *(span for span in spans if meet(window.touch, whole, span))])
        return grown

    def _key(self, held: Held) -> tuple[Any, ...]:
        return tuple(held.row[pair[held.side]] for pair in self.config.on)

    def _session_key(self, held: Held) -> tuple[Any, ...]:
        return self._key(held)[: self.config.session_fields]

    def _is_in_window(self, held: Held) -> bool:
        """Whether a row is among the last n of its side."""
        assert isinstance(self.config.window, Rows)
        size = self.config.window.size(held.side)
        highest = self.highest[held.side].get(self._partition(held.row))
        return (
            size is None or highest is None or held.row[self.config.offset or ""] > highest - size
        )

    # ---- how long a row is waited for

    def _is_complete(self, held: Held) -> bool:
        """Whether no partner is expected any more."""
        return self._is_past(held, lambda mark: mark)

    def _is_free(self, held: Held) -> bool:
        """Whether no partner could be taken any more."""
        return self._is_past(held, self._horizon)

    def _is_gone(self, held: Held) -> bool:
        """Whether a row is of no use: no partner could be taken any more, nor, where rows are taken
        back, its retraction.
        """
        columns = self.config.columns(held.side)
        late = (not columns and self._has_passed(held)) or any(
            held.row[column] < self._horizon(self.marks[held.side][column]) for column in columns
        )
        return self._is_free(held) and (not self.config.retracts or self.ended or late)

    def _has_passed(self, held: Held) -> bool:
        """Whether its own side is beyond the windows of a row."""
        window = self.config.window
        return (
            not isinstance(window, GRIDS)
            or self.counted[held.side] > aligned(window, self._at(held.side, held.row))[-1][1] - 1
        )

    @property
    def _retains(self) -> bool:
        return self.config.retain_time is not None and not self.ended

    def _is_useless(self, held: Held) -> bool:
        """Whether a row can never be in the output: it equals nothing, and is not padded."""
        needed = self.config.retracts or self.config.pads(held.side)
        return None in self._key(held) and not needed

    def _is_past(self, held: Held, shifted: Callable[[int], int]) -> bool:
        if self.ended:
            return True
        window, other = self.config.window, 1 - held.side
        match window:
            case tuple():
                return any(
                    shifted(self.marks[other][bound.column(other)])
                    > bound.last_partner(held.side, held.row)
                    for bound in window
                )
            case Rows():
                span = window.span(held.side)
                if span is None:
                    return not self._is_in_window(held)
                mark = shifted(self._mark(other))
                return mark == MAX or (mark != MIN and held.row["ts"] <= mark - span)
            case Session():
                # A row of its own side may make the session longer, so that it waits for both.
                end = self.session(held)[1]
                marks = [
                    self.counted[side] if self.config.is_counted else shifted(self._mark(side))
                    for side in (LEFT, RIGHT)
                ]
                return min(marks) > (end if window.touch == "merge" else end - 1)
            case AsOf():
                return (
                    held.side == LEFT
                    and shifted(self._mark(RIGHT)) > held.row["ts"] - window.strict
                )
            case _:
                last = aligned(window, self._at(held.side, held.row))[-1][1]
                if self.config.is_counted:
                    return self.counted[other] > last - 1
                return shifted(self._mark(other)) > last - 1

    def _imply(self, side: int) -> None:
        """A watermark that nobody tells follows the newest row."""
        if self.config.watermark == "implied":
            for column, newest in self.observed[side].items():
                if (side, column) not in self.told:
                    self.marks[side][column] = max(self.marks[side][column], newest)

    def _is_out_of_retention(self, row: Row, newest: int) -> bool:
        return (
            self.config.retain_time is not None
            and newest > MIN
            and row["ts"] < newest - self.config.retain_time
        )

    def _retain(self, side: int) -> None:
        """Rows too far behind the newest of their side go; those without a partner are padded
        first.
        """
        self.newest_before[side] = self.newest[side]
        for held in self._side(side):
            if self._is_out_of_retention(held.row, self.newest_before[side]):
                self._pad(held, due=True)
                self.held.remove(held)
                self.pushed.append(held)

    def _settle(self) -> None:
        """Watermarks may have moved: pad what is complete, and let go of what is free."""
        for held in list(self.held):
            self._settle_row(held)
        # A row that no output needs makes its session longer all the same.
        useless = [held for held in self.held if self._is_useless(held)]
        self.held = [held for held in self.held if held not in useless]
        self.pushed += useless
        if not self._retains:
            self.held, self.pushed = (
                [held for held in rows if not self._is_gone(held)]
                for rows in (self.held, self.pushed)
            )
        for side in (LEFT, RIGHT):
            self.ids[side] = {
                name: until
                for name, until in self.ids[side].items()
                if until >= self._horizon(self._mark(side))
            }

    def _settle_row(self, held: Held) -> None:
        self._pad(held, due=self._is_due(held))

    def _is_due(self, held: Held) -> bool:
        """Whether a row comes out alone if it has no partner."""
        padding = self.config.padding
        return padding == "early" or (
            self._is_free(held) if padding == "final" else self._is_complete(held)
        )

    # ---- what comes out

    def _pair(self, left: Held, right: Held, window: Span | tuple[()]) -> None:
        for held in (left, right):
            if held.alone is not None and not held.pairs and self.config.how != "semi":
                self._take_back(held)
        timing = "late" if left.late or right.late else "on_time"
        pair = Pair(left, right, self._row(left, right, window, timing))
        left.pairs.append(pair)
        right.pairs.append(pair)
        if self.config.shows_pairs:
            self._emit("+", pair.out)
        elif self.config.how == "semi" and left.alone is None:
            left.alone = self._row(left, None, window, timing)
            self._emit("+", left.alone)

    def _pad(self, held: Held, *, due: bool) -> None:
        if due and self.config.pads(held.side) and not held.pairs and held.alone is None:
            timing = (
                "early"
                if not self._is_complete(held)
                else "late"
                if held.late and held.was_complete
                else "on_time"
            )
            left, right = (held, None) if held.side == LEFT else (None, held)
            held.alone = self._row(left, right, self._own_window(held), timing)
            self._emit("+", held.alone)

    def _own_window(self, held: Held) -> Span | tuple[()]:
        window = self.config.window
        if isinstance(window, Session):
            return self.session(held)
        at = self._at(held.side, held.row)
        return aligned(window, at)[0] if isinstance(window, GRIDS) else ()

    def _take_back(self, held: Held) -> None:
        if held.alone is not None:
            self._emit("-", held.alone)
            held.alone = None

    def _retract(self, side: int, row: Row, kind: str) -> None:
        """Remove one row with the same values; what stands of it is taken back, and those that lose
        their last partner are padded again.
        """
        same = [held for held in self._side(side) if self._values(held.row) == self._values(row)]
        if not same:
            self._to_late(side, row, kind, "nothing_to_retract")
            return
        gone = same[0]
        self._take_back(gone)
        self.held.remove(gone)
        self.accepted.remove(gone)
        for pair in list(gone.pairs):
            if pair.partner(gone) in self.held:
                self._unpair(pair)
        if isinstance(self.config.window, Session):
            # A session may fall apart.
            for pair in [
                pair for held in self._side(LEFT) for pair in held.pairs if pair.right in self.held
            ]:
                if self._meets(pair.left, pair.right) is None:
                    self._unpair(pair)

    def _values(self, row: Row) -> Row:
        """What a retraction has in common with the row that it takes back: all but what tells one
        delivery from another.
        """
        return {
            name: value
            for name, value in row.items()
            if name not in ("op", self.config.offset, self.config.id)
        }

    def _unpair(self, pair: Pair) -> None:
        pair.left.pairs.remove(pair)
        pair.right.pairs.remove(pair)
        pair.left.asked.remove(pair.right)
        if self.config.shows_pairs:
            self._emit("-", pair.out)
        for held in (pair.left, pair.right):
            if held in self.held and not held.pairs:
                if self.config.how == "semi":
                    self._take_back(held)
                self._settle_row(held)

    def _row(
        self, left: Held | None, right: Held | None, window: Span | tuple[()], timing: str
    ) -> Row:
        return {
            "left": left and left.row,
            "right": right and right.row,
            "window": window or None,
            "timing": timing,
        }

    def _emit(self, op: str, out: Row) -> None:
        """Put a row out, or let it wait for the next multiple of its period."""
        row = {**out, "op": op}
        period = self.config.late_every if out["timing"] == "late" else self.config.on_time_every
        if period is None or self.ended:
            self.out.append(row)
        else:
            self.waiting.append(((self.now // period + 1) * period, row))

    def _to_late(self, side: int, row: Row, kind: str | None, reason: str) -> None:
        self.late.append({"side": side, "row": row, "class": kind, "reason": reason})

    def _collect(self) -> tuple[list[Row], list[Row]]:
        done = self.out, self.late
        self.out, self.late = [], []
        return done

    # ---- how far the output has come

    def output_watermarks(self) -> tuple[int, int]:
        """What is promised of the main time columns of the left and of the right."""
        return self._promised(LEFT), self._promised(RIGHT)

    def _promised(self, side: int) -> int:
        window, own, other = self.config.window, self._mark(side), self._mark(1 - side)
        promises = [own, other]
        if isinstance(window, tuple):
            bounds = [bound for bound in window if bound.column(side) == "ts"]
            behind = [
                _behind(
                    self.marks[1 - side][b.column(1 - side)], b.before if side == LEFT else b.after
                )
                for b in bounds
            ]
            promises = [own, max(behind, default=MIN)]
        elif isinstance(window, AsOf):
            # The latest right row may be of any age, but for the tolerance.
            waiting = [held.row["ts"] for held in self._side(LEFT) if not self._is_due(held)]
            promises = (
                [own, other, *waiting]
                if side == LEFT
                else [own, _behind(min([other, *waiting]), window.tolerance)]
            )
        elif isinstance(window, GRIDS):
            # A new row may still meet one from the start of its first window.
            first = min(own, other)
            promises = [
                first,
                *(
                    [aligned(window, first)[0][0]]
                    if first not in (MIN, MAX) and aligned(window, first)
                    else []
                ),
            ]
        elif isinstance(window, Session):
            promises += [self.session(held)[0] for held in self.held if not self._is_complete(held)]
        if self.config.retain_time is not None and isinstance(window, (tuple, *GRIDS)):
            # A row that is older than retention does not come out any more.
            promises = [
                max(
                    min(promises),
                    min(own, clamp(self.newest_before[side] - self.config.retain_time)),
                )
            ]
        owed = [
            held.row["ts"]
            for held in self._side(side)
            if self.config.pads(side) and not held.pairs and held.alone is None
        ]
        waits = [row["left" if side == LEFT else "right"] for _, row in self.waiting]
        return min([*promises, *owed, *(row["ts"] for row in waits if row is not None)])


class AsOfReference(JoinReference):
    """An as-of join: every left row has one answer, which is looked for again whenever anything has
    changed.
    """

    def _place(self, new: Held) -> None:
        self.held.append(new)
        self.accepted.append(new)
        new.was_complete = self._is_complete(new)
        self._answer_all()

    def _settle_row(self, held: Held) -> None:
        """An answer is due when no better row is expected, or at once where it may be corrected."""
        if held.side == RIGHT:
            return
        if not self._is_due(held):
            return
        best = self._best(held)
        now = held.pairs[0].right if held.pairs else None
        if now is best and (
            best is not None or held.alone is not None or not self.config.pads(LEFT)
        ):
            return
        if now is not None:
            self._emit("-", held.pairs[0].out)
            held.pairs = []
        self._take_back(held)
        timing = (
            "late"
            if held.late or (best is not None and best.late)
            else "on_time"
            if self._is_complete(held)
            else "early"
        )
        if best is not None:
            held.pairs = [Pair(held, best, self._row(held, best, (), timing))]
            self._emit("+", held.pairs[0].out)
        elif self.config.pads(LEFT):
            held.alone = self._row(held, None, (), timing)
            self._emit("+", held.alone)

    def _best(self, left: Held) -> Held | None:
        found = [
            right
            for right in self._side(RIGHT)
            if self._meets(left, right) is not None and self._wanted(left, right)
        ]
        # A row that retention has pushed out stays the answer where it was.
        found += [pair.right for pair in left.pairs if pair.right in self.accepted]
        return max(found, key=lambda right: (right.row["ts"], right.seq), default=None)

    def _answer_all(self) -> None:
        for held in list(self.held):
            self._settle_row(held)

    def _retract(self, side: int, row: Row, kind: str) -> None:
        same = [held for held in self._side(side) if self._values(held.row) == self._values(row)]
        if not same:
            self._to_late(side, row, kind, "nothing_to_retract")
            return
        gone = same[0]
        self.held.remove(gone)
        self.accepted.remove(gone)
        self._take_back(gone)
        for pair in gone.pairs:
            self._emit("-", pair.out)
        self._answer_all()

    def _retain(self, side: int) -> None:
        """A left row that is pushed out gets its answer first."""
        self.newest_before[side] = self.newest[side]
        gone = [
            held
            for held in self._side(side)
            if self._is_out_of_retention(held.row, self.newest_before[side])
        ]
        for held in gone:
            before, self.ended = self.ended, True
            self._settle_row(held)
            self.ended = before
        self.held = [held for held in self.held if held not in gone]


def _behind(mark: int, reach: int | None) -> int:
    if reach is None or mark == MIN:
        return MAX if mark == MAX else MIN
    return mark if mark == MAX else clamp(mark - reach)


def reference(config: JoinConfig) -> JoinReference:
    """The reference of a configuration."""
    return AsOfReference(config) if isinstance(config.window, AsOf) else JoinReference(config)
