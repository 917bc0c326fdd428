"""Session joins: rows of both sides make the sessions of a key together, and meet when they become
members of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tidegate.instants import MAX, MIN, saturating_add
from tidegate.kernel.frame import Frame, concat_frames, squeezed
from tidegate.kernel.groups import Groups
from tidegate.kernel.joins.buffer import Query
from tidegate.kernel.joins.ranges import ordered
from tidegate.kernel.joins.sessions import Followed, Table, follow
from tidegate.kernel.keys import KEY
from tidegate.kernel.storage.run_store import Places, SortedRuns
from tidegate.kernel.windows.sessions import merge_intervals
from tidegate.operators.join.core import AWAITED, JoinCore, Window, take_in_turns, timing_of
from tidegate.operators.join.output import NOBODY
from tidegate.operators.join.side import Taken, taken_from
from tidegate.spec.join import LEFT, RIGHT
from tidegate.spec.windows import Session

_STEPS = 4
_PAIR = (*KEY, "lseq", "rseq")


@dataclass(eq=False)
class SessionJoin(JoinCore):
    """A join in sessions: these are kept beside the rows, found by key and start."""

    nulls: list[bool] = field(default_factory=lambda: [False, False])
    """Of which sides there may be rows with a null among their equal fields; each is a session of
    its own.
    """

    def __post_init__(self) -> None:
        self.sessions = SortedRuns(
            self.emitter.store, "sessions", (*KEY, "start"), watch=("due", "end")
        )
        self.pairs = SortedRuns(self.emitter.store, "pairs", _PAIR, watch=("end",))
        """Pairs with the session that they were told with, where they may be taken back."""

    @property
    def gap(self) -> int:
        return (self.spec.window.gap or 0) if isinstance(self.spec.window, Session) else 0

    @property
    def touches(self) -> bool:
        return isinstance(self.spec.window, Session) and self.spec.window.touch == "merge"

    @property
    def _key(self) -> str:
        """The column that has the first half of a key's identity."""
        return "key_hash" if self._has_key_hash else "lead"

    # Limits

    def complete(self) -> int:
        """Sessions that end at or before it are complete: a row of either side could make one
        longer, so that both are waited for.
        """
        return self._ended(min(side.watermark for side in self.sides))

    def free(self) -> int:
        """Sessions that end at or before it cannot get rows any more."""
        return self._ended(
            min(taken_from(side.watermark, self.spec.allowed_lateness) for side in self.sides)
        )

    def _ended(self, mark: int) -> int:
        if self.finishing:
            return MAX
        return mark - 1 if self.touches and mark not in (MIN, MAX) else mark

    def _due_by(self) -> int:
        return (
            MAX
            if self.spec.padding == "early"
            else self.free()
            if self.spec.padding == "final"
            else self.complete()
        )

    # Rows come

    def take_all(self, rows: Mapping[int, Taken]) -> None:
        """A micro-batch: left before right."""
        # A row that is taken back may let a session fall apart, so that the rows of a key come one
        # by one.
        take_in_turns(
            rows,
            lambda mixed: (
                Groups.by([mixed.frame.ints(name) for name in ("lead", "key_check")]).ranks
            ),
            self._plus,
            self._minus,
        )
        for own in self.sides:
            own.buffer.tidy()

    def _plus(self, side: int, rows: Taken) -> None:
        frame, n = rows.frame, len(rows)
        followed = self._followed(rows)
        end = saturating_add(followed.last, self.gap)
        complete = end <= self.complete()
        late = np.where(rows.late, np.where(complete, AWAITED, 1), 0).astype(np.int8)
        if rows.nobody is not None:
            self.nulls[side] |= bool(rows.nobody.any())
        rows = Taken(
            frame.with_columns(late=squeezed(late)), rows.late, rows.classes, None, rows.nobody
        )
        places = self.keep(side, rows)
        left, right, step, order = self._met(side, rows, places, followed)
        base = self.after(_STEPS * (n + len(step) + 1))
        # What a row puts out comes after all that the rows before it put out.
        counts = np.bincount(step, minlength=n)
        before = base + _STEPS * (np.cumsum(counts) - counts + np.arange(n))
        if self.spec.pads(side):
            own = (
                counts
                if not len(followed.joined.row)
                else np.bincount(step[self._own(side, left, right, places, step)], minlength=n)
            )
            due = np.flatnonzero((own == 0) & (end <= self._due_by()) & (places.run >= 0))
            window = followed.start[due], end[due]
            self._alone_now(
                side,
                rows.frame.take(due),
                places.take(due),
                timing_of(complete[due], late[due]),
                before[due],
                window,
            )
        rank = np.arange(len(step)) - (np.cumsum(counts) - counts)[step]
        at = (before[step] + _STEPS * (rank + 1))[order] if len(order) else step
        left, right, step = left.take(order), right.take(order), step[order]
        self.pair_up(left, right, np.sort(at), (followed.start[step], end[step]))
        self._note_pairs(left, right, (followed.start[step], end[step]))

    @staticmethod
    def _own(
        side: int, left: Places, right: Places, places: Places, step: np.ndarray
    ) -> np.ndarray:
        """Which pairs are those of the row itself, and not of rows that it brings together."""
        mine = left if side == LEFT else right
        return (mine.run == places.run[step]) & (mine.at == places.at[step])

    def _alone_now(
        self,
        side: int,
        rows: Frame,
        places: Places,
        timing: np.ndarray,
        order: np.ndarray,
        window: Window,
    ) -> None:
        if len(order):
            self.alone(side, rows, op=1, timing=timing, order=order, window=window)
            self.sides[side].buffer.set_mark("alone", places, timing + 1)
            self.note_windows(side, places, window)

    def _followed(self, rows: Taken) -> Followed:
        """The sessions of rows as they come, and those of their keys after them, which are
        noted.
        """
        frame = rows.frame
        at = frame.ints("at")
        if rows.nobody is not None and rows.nobody.any():
            some = np.flatnonzero(~rows.nobody)
            found = self._followed(Taken(frame.take(some), rows.late[some], rows.classes[some]))
            start, last = at.copy(), at.copy()
            start[some], last[some] = found.start, found.last
            found.joined.row = [some[row] for row in found.joined.row]
            return Followed(start, last, found.joined, found.table)
        keys = Groups.by([frame.ints(self._key), frame.ints("key_check")])
        first = frame.select(["lead", "key_check", self._key]).take(keys.firsts)
        asked = Frame.of(
            {
                "key_hash": first.ints(self._key),
                "key_check": first.ints("key_check"),
                "lead": first.ints("lead"),
            },
            keys.n,
        )
        table = self._taken_out(asked)
        followed = follow(keys.ids.astype(np.int64), at, table, self.gap, touch=self.touches)
        self._put(asked, followed.table)
        return followed

    def _taken_out(self, keys: Frame) -> Table:
        """The sessions of some keys, which are no longer in the table."""
        order = np.lexsort((keys.ints("key_check"), keys.ints("key_hash")))
        asked = keys.select(KEY).take(order)
        places = self.sessions.ranges(asked, KEY) if len(asked) else Places.of([])
        if not len(places.run):
            nothing = np.zeros(0, np.int64)
            return Table(nothing, nothing, nothing)
        held = self.sessions.take(places, (*KEY, "start", "last"))
        self.sessions.remove(places)
        both = concat_frames([keys.select(KEY), held.select(KEY)])
        groups = Groups.by([both.ints("key_hash"), both.ints("key_check")])
        number = np.empty(groups.n, np.int64)
        number[groups.ids[: len(keys)]] = np.arange(len(keys))
        code = number[groups.ids[len(keys) :]]
        by = np.lexsort((held.ints("start"), code))
        return Table(code[by], held.ints("start")[by], held.ints("last")[by])

    def _put(self, keys: Frame, table: Table) -> None:
        if len(table.code):
            end = saturating_add(table.last, self.gap)
            columns = {name: keys.ints(name)[table.code] for name in (*KEY, "lead")}
            self.sessions.put(
                Frame.of(
                    {**columns, "start": table.start, "last": table.last, "end": end, "due": end},
                    len(end),
                )
            )

    def _met(
        self, side: int, rows: Taken, places: Places, followed: Followed
    ) -> tuple[Places, Places, np.ndarray, np.ndarray]:
        """Pairs that come about: left and right rows, the row that brings them together, and the
        order in which they come out.
        """
        frame = rows.frame
        found = self.met(side, frame, Query(rows.by, followed.start, followed.last))
        mine, theirs, step = (
            [places.take(found.row)],
            [Places(np.asarray(found.run), found.at)],
            [found.row],
        )
        row, a_start, a_last, b_start, b_last = followed.joined.columns()
        for one, two in (
            ((a_start, a_last), (b_start, b_last)),
            ((b_start, b_last), (a_start, a_last)),
        ):
            if len(row):
                own, other, number = self._across(side, frame, row, one, two)
                mine.append(own)
                theirs.append(other)
                step.append(number)
        ours, others = (
            Places(
                *(np.concatenate([getattr(part, name) for part in parts]) for name in ("run", "at"))
            )
            for parts in (mine, theirs)
        )
        left, right = (ours, others) if side == LEFT else (others, ours)
        steps = np.concatenate(step)
        if not len(row):
            # Pairs are by row, and those of a row by the arrival of the partner.
            return left, right, steps, np.arange(len(steps))
        order = np.argsort(steps, kind="stable")
        mixed = np.zeros(len(frame), bool)
        mixed[row] = True
        here = np.flatnonzero(mixed[steps[order]])
        some = order[here]
        lseq, rseq = (
            self.stored(number, places.take(some), ["seq"]).ints("seq")
            for number, places in ((LEFT, left), (RIGHT, right))
        )
        order[here] = some[np.lexsort((rseq, lseq, steps[some]))]
        return left, right, steps, order

    def _across(
        self,
        side: int,
        frame: Frame,
        row: np.ndarray,
        mine: tuple[np.ndarray, np.ndarray],
        theirs: tuple[np.ndarray, np.ndarray],
    ) -> tuple[Places, Places, np.ndarray]:
        """Pairs of rows of this side in one session with rows of the other side in another, which
        rows have joined.
        """
        asking = frame.take(row)
        lead = asking.ints("lead")
        own = self.sides[side].buffer.probe(Query(ordered(lead, mine[0]), mine[0], mine[1]))
        held = self.stored(side, own, ["lead", "seq", *self.compared, *self.payload(side)])
        keep = held.ints("seq") < asking.ints("seq")[own.row]
        for name in self.compared:
            keep &= held.ints(name) == asking.ints(name)[own.row]
        own, held = own.where(keep), held.where(keep)
        found = self.met(
            side,
            held,
            Query(
                ordered(held.ints("lead"), theirs[0][own.row]),
                theirs[0][own.row],
                theirs[1][own.row],
            ),
        )
        ours = Places(np.asarray(own.run)[found.row], own.at[found.row])
        return ours, Places(np.asarray(found.run), found.at), row[own.row[found.row]]

    # Rows are taken back

    def _note_pairs(self, left: Places, right: Places, window: Window) -> None:
        if not self.retracts or not len(left.at):
            return
        rows = self.stored(LEFT, left, [self._key, "key_check", "seq"])
        rseq = self.stored(RIGHT, right, ["seq"]).ints("seq")
        columns = {
            "key_hash": rows.ints(self._key),
            "key_check": rows.ints("key_check"),
            "lseq": rows.ints("seq"),
            "rseq": rseq,
        }
        self.pairs.put(Frame.of({**columns, "start": window[0], "end": window[1]}, len(rseq)))

    def _minus(self, side: int, rows: Taken) -> None:
        """One row a key is taken back: with its pairs, and with those of rows that share no session
        without it.
        """
        kept, places = self.found_again(side, rows)
        if not len(kept):
            return
        own = self.sides[side]
        if self.marks_rows(side):
            told = own.buffer.mark("alone", places) > 0
            self.take_back(
                side, places.take(told), np.arange(int(told.sum())) + self.after(int(told.sum()))
            )
        gone = self.stored(side, places, ["lead", "seq", "key_check", self._key])
        somebody = gone.ints("lead") != NOBODY[side]
        gone = gone.where(somebody)
        keys = Frame.of(
            {
                "key_hash": gone.ints(self._key),
                "key_check": gone.ints("key_check"),
                "lead": gone.ints("lead"),
            },
            len(gone),
        )
        held = [self._rows_of(number, keys) for number in (LEFT, RIGHT)]
        own.buffer.remove(places)
        if len(keys):
            held[side] = held[side].with_columns(
                there=held[side].ints("seq") != gone.ints("seq")[held[side].ints("code")]
            )
            held[1 - side] = held[1 - side].with_columns(there=np.ones(len(held[1 - side]), bool))
            table = self._rebuilt(keys, held)
            self._fall_apart(side, keys, held, table)

    def _rows_of(self, side: int, keys: Frame) -> Frame:
        """The rows of some keys: which key each has, its time and arrival number, and where it
        is.
        """
        zeros = np.zeros(len(keys), np.int64)
        found = self.sides[side].buffer.probe(
            Query(ordered(keys.ints("lead"), zeros), zeros + MIN, zeros + MAX)
        )
        rows = self.stored(side, found, ["at", "seq", *self.compared])
        keep = rows.ints("key_check") == keys.ints("key_check")[found.row]
        if self._has_key_hash:
            keep &= rows.ints("key_hash") == keys.ints("key_hash")[found.row]
        columns = {
            "code": found.row,
            "at": rows.ints("at"),
            "seq": rows.ints("seq"),
            "run": np.asarray(found.run),
            "place": found.at,
        }
        return Frame.of(columns, len(found.row)).where(keep)

    def _rebuilt(self, keys: Frame, held: list[Frame]) -> Table:
        """The sessions of some keys, made anew from the rows that are there."""
        self._taken_out(keys)
        some = [rows.where(rows.ints("there")) for rows in held]
        codes, times = (
            np.concatenate([rows.ints(name) for rows in some]) for name in ("code", "at")
        )
        merged = merge_intervals(
            codes, times, times + self.gap, "merge" if self.touches else "separate"
        )
        order = np.lexsort((merged.start, merged.key))
        table = Table(merged.key[order], merged.start[order], merged.end[order] - self.gap)
        self._put(keys, table)
        return table

    def _fall_apart(self, side: int, keys: Frame, held: list[Frame], table: Table) -> None:
        """Take back the pairs of rows that are gone, and of rows that are in one session no
        more.
        """
        found = self.pairs.ranges(
            keys.select(KEY).take(np.lexsort((keys.ints("key_check"), keys.ints("key_hash")))), KEY
        )
        if not len(found.run):
            return
        told = self.pairs.take(found)
        code = _numbers_of(told.select(KEY), keys.select(KEY))
        index = [
            _positions(rows, code, told.ints(name))
            for rows, name in zip(held, ("lseq", "rseq"), strict=True)
        ]
        known = [at >= 0 for at in index]
        there = [
            ok & rows.ints("there")[np.maximum(at, 0)] if len(rows) else ok
            for ok, rows, at in zip(known, held, index, strict=True)
        ]
        lost = known[side] & ~there[side] & there[1 - side]
        sessions = [
            table.before(code, rows.ints("at")[np.maximum(at, 0)]) if len(rows) else code
            for rows, at in zip(held, index, strict=True)
        ]
        apart = there[LEFT] & there[RIGHT] & (sessions[LEFT] != sessions[RIGHT])
        for mask, losing in ((lost, [1 - side]), (apart, [LEFT, RIGHT])):
            rows = np.flatnonzero(mask)
            rows = rows[np.lexsort((told.ints("rseq")[rows], told.ints("lseq")[rows]))]
            left, right = (
                Places(part.ints("run")[at[rows]], part.ints("place")[at[rows]])
                for part, at in zip(held, index, strict=True)
            )
            order = self.after(_STEPS * len(rows)) + _STEPS * np.arange(len(rows))
            self.unpair(
                left, right, order, (told.ints("start")[rows], told.ints("end")[rows]), losing
            )
        self.pairs.remove(found.take(apart | (known[side] & ~there[side])))

    def session_of(self, side: int, places: Places) -> tuple[np.ndarray, np.ndarray]:
        """The first and the last time of the sessions that stored rows are in."""
        rows = self.stored(side, places, ["at", "lead", "key_check", self._key])
        start, last = rows.ints("at").copy(), rows.ints("at").copy()
        some = np.flatnonzero(rows.ints("lead") != NOBODY[side])
        if not len(some):
            return start, last
        keys = Groups.by([rows.ints(self._key)[some], rows.ints("key_check")[some]])
        first = some[keys.firsts]
        asked = Frame.of(
            {"key_hash": rows.ints(self._key)[first], "key_check": rows.ints("key_check")[first]},
            keys.n,
        )
        found = self.sessions.ranges(
            asked.take(np.lexsort((asked.ints("key_check"), asked.ints("key_hash")))), KEY
        )
        held = self.sessions.take(found, (*KEY, "start", "last"))
        code = _numbers_of(held.select(KEY), asked)
        by = np.lexsort((held.ints("start"), code))
        table = Table(code[by], held.ints("start")[by], held.ints("last")[by])
        at = table.before(keys.ids.astype(np.int64), rows.ints("at")[some]) - 1
        start[some], last[some] = table.start[at], table.last[at]
        return start, last

    def lonely(self, side: int, places: Places, order: np.ndarray) -> None:
        """Stored rows have no partner any more."""
        if self.spec.how == "semi":
            self.take_back(side, places, order)
            return
        if not len(order):
            return
        start, last = self.session_of(side, places)
        due = saturating_add(last, self.gap) <= self._due_by()
        self._pad(
            side, places.take(due), order[due], (start[due], saturating_add(last[due], self.gap))
        )

    def _pad(self, side: int, places: Places, order: np.ndarray, window: Window) -> None:
        """Stored rows come out alone."""
        if not len(order):
            return
        rows = self.stored(side, places, ["late", *self.shown(side)])
        self._alone_now(
            side,
            rows,
            places,
            timing_of(window[1] <= self.complete(), rows.ints("late")),
            order,
            window,
        )

    # Watermarks move

    def settle(self) -> None:
        """Rows of complete sessions come out alone if they have no partner, and sessions that
        cannot get rows any more go.
        """
        pads = [side for side in (LEFT, RIGHT) if self.spec.pads(side)]
        if pads and self.spec.padding != "early":
            self._pad_due(pads, self._due_by())
        if self.finishing:
            for own in self.sides:
                own.buffer.clear()
            self.sessions.clear()
            self.pairs.clear()
            return
        self._let_go(self.free())

    def _pad_due(self, pads: list[int], limit: int) -> None:
        due = self.sessions.select("due", limit)
        if len(due.run):
            table = self.sessions.take(due)
            for side in pads:
                found, window = self._members(side, table)
                self._pad_owing(side, found, window)
            self.sessions.remove(due)
            self.sessions.put(table.with_columns(due=np.full(len(table), MAX)))
        for side in pads:
            if self.nulls[side]:
                places = self._null_rows(side, limit)
                at = self.stored(side, places, ["at"]).ints("at")
                self._pad_owing(side, places, (at, saturating_add(at, self.gap)))

    def _pad_owing(self, side: int, places: Places, window: Window) -> None:
        buffer = self.sides[side].buffer
        owes = np.flatnonzero((buffer.mark("n", places) == 0) & (buffer.mark("alone", places) == 0))
        if len(owes):
            seq = self.stored(side, places.take(owes), ["seq"]).ints("seq")
            owes = owes[np.argsort(seq, kind="stable")]
            order = np.arange(len(owes)) + self.after(len(owes))
            self._pad(side, places.take(owes), order, (window[0][owes], window[1][owes]))

    def _members(self, side: int, table: Frame) -> tuple[Places, Window]:
        """The rows of a side that are in sessions, and these."""
        query = Query(
            ordered(table.ints("lead"), table.ints("start")),
            table.ints("start"),
            table.ints("last"),
        )
        found = self.sides[side].buffer.probe(query)
        rows = self.stored(side, found, self.compared)
        keep = rows.ints("key_check") == table.ints("key_check")[found.row]
        if self._has_key_hash:
            keep &= rows.ints("key_hash") == table.ints("key_hash")[found.row]
        found = found.where(keep) if len(found.row) else found
        return Places(np.asarray(found.run), found.at), (
            table.ints("start")[found.row],
            table.ints("end")[found.row],
        )

    def _null_rows(self, side: int, limit: int) -> Places:
        """Rows of sessions of their own that end at or before a limit."""
        places = self.sides[side].buffer.places(
            {"at": int(saturating_add(int(saturating_add(limit, -self.gap)), 1))}
        )
        rows = self.stored(side, places, ["lead"])
        return places.take(rows.ints("lead") == NOBODY[side])

    def _let_go(self, limit: int) -> None:
        over = self.sessions.select("end", limit)
        if len(over.run):
            table = self.sessions.take(over)
            for side in (LEFT, RIGHT):
                self.sides[side].buffer.remove(self._members(side, table)[0])
            self.sessions.remove(over)
            if self.retracts:
                self.pairs.remove(self.pairs.select("end", limit))
        for side in (LEFT, RIGHT):
            if self.nulls[side]:
                self.sides[side].buffer.remove(self._null_rows(side, limit))

    def push_out(self, side: int, horizon: int) -> None:
        """Rows older than retention go, and those without a partner come out alone first; their
        sessions stay what they were.
        """
        buffer = self.sides[side].buffer
        if self.spec.pads(side):
            self.pad_rows(side, buffer.owing({"at": horizon}))
        buffer.expire({"at": horizon})

    def pad_rows(self, side: int, places: Places) -> None:
        """Stored rows come out alone, whether or not a partner is expected."""
        if len(places.at):
            start, last = self.session_of(side, places)
            self._pad_owing(side, places, (start, saturating_add(last, self.gap)))

    # What can be asked

    def promised(self, side: int) -> dict[str, int]:
        """The lesser of both watermarks, down to the start of the first session that is open."""
        own, other = self.sides[side], self.sides[1 - side]
        promise = min(own.watermark, other.watermark, self.emitter.least(side))
        limit = self.complete()
        for frame in self.sessions.live(("start", "end")):
            starts = frame.ints("start")[frame.ints("end") > limit]
            promise = min(promise, int(starts.min(initial=MAX)))
        if self.spec.pads(side) and self.spec.padding != "early":
            owed = self.stored(side, own.buffer.owing(None), ["at"]).ints("at")
            promise = min(promise, int(owed.min(initial=MAX)))
        return {own.given.time or "": promise}

    def windows(self, side: int, rows: Frame) -> Frame:
        """The sessions that rows of a side are in."""
        held = self.sessions.all()
        if held is None or not len(rows):
            nothing = np.zeros(0, np.int64)
            return Frame.of({"start": nothing, "end": nothing, "count": nothing}, 0)
        found = self.sides[side].buffer.probe(
            Query(
                ordered(held.ints("lead"), held.ints("start")),
                held.ints("start"),
                held.ints("last"),
            )
        )
        there = self.stored(side, found, ["seq", *self.compared])
        keep = (there.ints("key_check") == held.ints("key_check")[found.row]) & np.isin(
            there.ints("seq"), rows.ints("seq")
        )
        count = np.bincount(found.row[keep], minlength=len(held))
        return held.select(["start", "end"]).with_columns(count=count).where(count > 0)

    def waits_for(self) -> int:
        """The least watermark at which a row comes out alone."""
        if not any(self.spec.pads(side) for side in (LEFT, RIGHT)) or self.spec.padding == "early":
            return MAX
        late = self.spec.allowed_lateness if self.spec.padding == "final" else 0
        first = self.sessions.least("due", MAX)
        return (
            MAX
            if first == MAX
            else int(saturating_add(int(saturating_add(first, late)), int(self.touches)))
        )

    def save(self) -> Any:
        return {"sessions": self.sessions.save(), "pairs": self.pairs.save(), "nulls": self.nulls}

    def restore(self, document: Any) -> None:
        self.sessions.restore(document["sessions"])
        self.pairs.restore(document["pairs"])
        self.nulls = list(document["nulls"])

    @property
    def nbytes(self) -> int:
        """What sessions and pairs take beside the rows."""
        return self.sessions.nbytes + self.pairs.nbytes


def _numbers_of(rows: Frame, keys: Frame) -> np.ndarray:
    """Which of the keys each row has."""
    groups = Groups.by([np.concatenate([keys.ints(name), rows.ints(name)]) for name in KEY])
    number = np.empty(groups.n, np.int64)
    number[groups.ids[: len(keys)]] = np.arange(len(keys))
    return number[groups.ids[len(keys) :]]


def _positions(rows: Frame, code: np.ndarray, seq: np.ndarray) -> np.ndarray:
    """Where the row with a key and an arrival number is among some rows; -1 where it is not
    there.
    """
    groups = Groups.by(
        [np.concatenate([rows.ints("code"), code]), np.concatenate([rows.ints("seq"), seq])]
    )
    place = np.full(groups.n, -1, np.int64)
    place[groups.ids[: len(rows)]] = np.arange(len(rows))
    return place[groups.ids[len(rows) :]]
