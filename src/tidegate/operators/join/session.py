"""Session joins: rows of both sides form the sessions of a key, and match within a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from tidegate.instants import MAX, MIN, saturating_add
from tidegate.kernel.frame import Frame
from tidegate.kernel.groups import Groups
from tidegate.kernel.joins.join_buffer import Query
from tidegate.kernel.joins.range_matching import ordered
from tidegate.kernel.keys import KEY
from tidegate.kernel.storage.keyed_table import KeyedTable
from tidegate.kernel.storage.run_store import Places
from tidegate.kernel.windows.assigners import SessionAssigner
from tidegate.kernel.windows.sessions import (
    PointSessions,
    SessionHistory,
    reach_of,
    session_history,
)
from tidegate.operators.join.collector import JoinCollector
from tidegate.operators.join.matching import (
    STEPS,
    Arrived,
    Matches,
    PairMatching,
    Standing,
    Turn,
    by_side,
    one_by_one,
)
from tidegate.operators.join.output import NULL_KEY
from tidegate.operators.join.side import SESSION_KEY, Taken
from tidegate.spec.join import LEFT, RIGHT, JoinSpec
from tidegate.spec.windows import Session

_PAIR = (*KEY, "left_seq", "right_seq")


@dataclass(eq=False)
class SessionJoin(PairMatching):
    """A join in sessions, which are stored beside the rows by key and start."""

    nulls: list[bool] = field(default_factory=lambda: [False, False])
    """By side, whether there may be rows with a null key; each is a session of its own."""

    def __post_init__(self) -> None:
        self.sessions = KeyedTable(
            self.emitter.store, "sessions", (*KEY, "start"), watch=("due", "end")
        )
        self.pairs = KeyedTable(self.emitter.store, "pairs", _PAIR, watch=("end",))
        """Pairs with the session that they came out with, if rows may be retracted."""

    @classmethod
    def row_marks(cls, spec: JoinSpec, side: int) -> dict[str, Any]:
        """The marks of all joins, and the session that an unmatched row came out with."""
        marks = super().row_marks(spec, side)
        return {**marks, "start": np.int64(0), "end": np.int64(0)} if marks else {}

    @classmethod
    def last_instant(cls, spec: JoinSpec) -> Callable[[np.ndarray], np.ndarray] | None:
        return lambda at: saturating_add(at, _length(spec) - 1)

    @cached_property
    def gap(self) -> int:
        """The length of the session of a single row."""
        return _length(self.spec)

    @property
    def touches(self) -> bool:
        """Whether a session that ends where the next one begins is one with it."""
        return isinstance(self.spec.window, Session) and self.spec.window.touch == "merge"

    @property
    def reach(self) -> int:
        """How far apart two rows of a session may be, with none between them."""
        return reach_of(self.gap, "merge" if self.touches else "separate")

    @property
    def _identity(self) -> tuple[str, str]:
        """The columns with the identity of the session key."""
        if self.spec.session_on != self.spec.on:
            return SESSION_KEY
        return ("key_hash" if self.has_key_hash else "equal_hash", "key_check")

    def _keys(self, rows: Frame) -> Frame:
        """The session keys of rows."""
        names = {**dict(zip(KEY, self._identity, strict=True)), "equal_hash": "equal_hash"}
        return Frame.of({name: rows.ints(column) for name, column in names.items()}, len(rows))

    def _of_keys(self, rows: Frame, keys: Frame, number: np.ndarray) -> np.ndarray:
        """Which rows have the session keys with these numbers."""
        mask = np.ones(len(rows), bool)
        for name, column in zip(KEY, self._identity, strict=True):
            mask &= rows.ints(column) == keys.ints(name)[number]
        return mask

    def keeps_null_keys(self, side: int) -> bool:
        """Also if rows may be retracted: a row with a null may hold a session together."""
        return super().keeps_null_keys(side) or self.retracts

    # Limits

    def complete(self) -> int:
        """The end up to which sessions are complete, which takes both watermarks.

        A row of either side could extend a session.
        """
        return self._ended(min(side.position_mark for side in self.sides))

    def closed(self) -> int:
        """The end up to which sessions cannot get rows any more."""
        return self._ended(min(side.closed_mark for side in self.sides))

    def _ended(self, mark: int) -> int:
        if self.finishing:
            return MAX
        return mark - 1 if self.touches and mark not in (MIN, MAX) else mark

    def _due_by(self) -> int:
        """The end up to which unmatched rows of sessions come out."""
        if self.spec.padding == "early":
            return MAX
        return self.closed() if self.spec.padding == "final" else self.complete()

    def _standing(self, start: np.ndarray, last: np.ndarray) -> Standing:
        end = saturating_add(last, self.gap)
        return Standing(end <= self.complete(), end <= self._due_by(), (start, end))

    def standing(self, side: int, places: Places) -> Standing:
        return self._standing(*self.session_of(side, places))

    # Rows

    def turns(self, rows: Mapping[int, Taken]) -> Iterator[Turn]:
        """Rows of a key one by one if some are retractions, which may split sessions."""
        return by_side(rows, lambda taken: one_by_one(taken, self._identity))

    def match(self, rows: Mapping[int, Taken], out: JoinCollector) -> Matches:
        ((side, taken),) = rows.items()
        n = len(taken)
        history = self._history(side, taken)
        standing = self._standing(history.start, history.last)
        frame = self.marked_late(taken, standing.complete)
        places = self.keep(side, taken, frame)
        left, right, step = self._found(side, frame, taken, places, history, out)
        order, pair_order = self.positions(step, n, out)
        matched = np.zeros(n, bool)
        if len(history.bridges.row):
            # Pairs of other rows that a row brings together do not make it a matched one.
            mine = left if side == LEFT else right
            own = (mine.run == places.run[step]) & (mine.at == places.at[step])
            matched[step[own]] = True
        else:
            matched[step] = True
        arrived = [Arrived(side, frame, places, standing, matched, order)]
        return Matches(arrived, left, right, pair_order, standing.take(step).window)

    def _history(self, side: int, rows: Taken) -> SessionHistory:
        """The sessions of new rows, each when it arrives; the stored sessions are updated.

        A row with a null session key is a session of its own, which is not stored.
        """
        frame = rows.frame
        is_null = frame.ints("equal_hash") == NULL_KEY[side]
        if not is_null.any():
            return self._merged(frame)
        self.nulls[side] = True
        some = np.flatnonzero(~is_null)
        found = self._merged(frame.take(some))
        start, last = frame.ints("position").copy(), frame.ints("position").copy()
        start[some], last[some] = found.start, found.last
        bridges = found.bridges._replace(row=some[found.bridges.row])
        return SessionHistory(start, last, bridges, found.sessions)

    def _merged(self, frame: Frame) -> SessionHistory:
        """The sessions of new rows that have a session key."""
        keys = Groups.by([frame.ints(name) for name in self._identity])
        asked = self._keys(frame.take(keys.firsts))
        history = session_history(
            keys.ids.astype(np.int64), frame.ints("position"), self._take_out(asked), self.reach
        )
        self._store(asked, history.sessions)
        return history

    def _take_out(self, keys: Frame) -> PointSessions:
        """The stored sessions of some keys, which are removed."""
        order = np.lexsort((keys.ints("key_check"), keys.ints("key_hash")))
        asked = keys.select(KEY).take(order)
        places = self.sessions.ranges(asked, KEY) if len(asked) else Places.of([])
        if not len(places.run):
            return PointSessions.none()
        held = self.sessions.take(places, (*KEY, "start", "last"))
        self.sessions.remove(places)
        return _sorted(_numbers_of(held.select(KEY), keys), held)

    def _store(self, keys: Frame, sessions: PointSessions) -> None:
        """Store the sessions of some keys."""
        if len(sessions.key):
            end = saturating_add(sessions.last, self.gap)
            columns = {name: keys.ints(name)[sessions.key] for name in (*KEY, "equal_hash")}
            columns.update(start=sessions.start, last=sessions.last, end=end, due=end)
            self.sessions.put(Frame.of(columns, len(end)))

    def _found(
        self,
        side: int,
        frame: Frame,
        rows: Taken,
        places: Places,
        history: SessionHistory,
        out: JoinCollector,
    ) -> tuple[Places, Places, np.ndarray]:
        """New pairs: left and right rows, and the row that brings them together, by which they
        are sorted; those of a row by arrival.
        """
        found = self.probe(side, frame, Query(rows.by, history.start, history.last), out)
        mine, theirs, step = (
            [places.take(found.row)],
            [Places(np.asarray(found.run), found.at)],
            [found.row],
        )
        row, earlier, later = history.bridges
        for one, two in ((earlier, later), (later, earlier)):
            if len(row):
                own, other, number = self._across(side, frame, row, one, two, out)
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
            return left, right, steps
        order = np.argsort(steps, kind="stable")
        mixed = np.zeros(len(frame), bool)
        mixed[row] = True
        here = np.flatnonzero(mixed[steps[order]])
        some = order[here]
        left_seq, right_seq = (
            self.stored(number, places.take(some), ["seq"]).ints("seq")
            for number, places in ((LEFT, left), (RIGHT, right))
        )
        order[here] = some[np.lexsort((right_seq, left_seq, steps[some]))]
        return left.take(order), right.take(order), steps[order]

    def _across(
        self,
        side: int,
        frame: Frame,
        row: np.ndarray,
        mine: tuple[np.ndarray, np.ndarray],
        theirs: tuple[np.ndarray, np.ndarray],
        out: JoinCollector,
    ) -> tuple[Places, Places, np.ndarray]:
        """Pairs of rows of this side and of the other side, whose sessions were joined."""
        asking = frame.take(row)
        equal_hash = asking.ints("equal_hash")
        own = self.sides[side].buffer.probe(Query(ordered(equal_hash, mine[0]), mine[0], mine[1]))
        held = self.asking(side, Places(np.asarray(own.run), own.at), self._identity)
        keep = held.ints("seq") < asking.ints("seq")[own.row]
        keep &= self._of_keys(held, self._keys(asking), own.row)
        own, held = own.where(keep), held.where(keep)
        found = self.probe(
            side,
            held,
            Query(
                ordered(held.ints("equal_hash"), theirs[0][own.row]),
                theirs[0][own.row],
                theirs[1][own.row],
            ),
            out,
        )
        ours = Places(np.asarray(own.run)[found.row], own.at[found.row])
        return ours, Places(np.asarray(found.run), found.at), row[own.row[found.row]]

    # Rows are taken back

    def after_match(self, matches: Matches) -> None:
        """Remember the session that each pair came out with, if rows may be retracted."""
        left, right, window = matches.left, matches.right, matches.window
        if not self.retracts or not len(left.at) or window is None:
            return
        rows = self.stored(LEFT, left, ["equal_hash", *self._identity, "seq"])
        pairs = self._keys(rows).drop(["equal_hash"])
        right_seq = self.stored(RIGHT, right, ["seq"]).ints("seq")
        self.pairs.put(
            pairs.with_columns(
                left_seq=rows.ints("seq"), right_seq=right_seq, start=window[0], end=window[1]
            )
        )

    def retract(self, side: int, rows: Taken, out: JoinCollector) -> None:
        """Take back one row a key, with its pairs and those across the sessions that it joined."""
        kept, places = self.retracted(side, rows, out)
        if not len(kept):
            return
        own = self.sides[side]
        self.take_back(side, places, out.reserve(len(kept)) + np.arange(len(kept)), out)
        gone = self.stored(side, places, ["equal_hash", "seq", *self._identity])
        gone = gone.where(gone.ints("equal_hash") != NULL_KEY[side])
        keys = self._keys(gone)
        held = [self._rows_of(number, keys) for number in (LEFT, RIGHT)]
        own.buffer.remove(places)
        if len(keys):
            held[side] = held[side].with_columns(
                there=held[side].ints("seq") != gone.ints("seq")[held[side].ints("code")]
            )
            held[1 - side] = held[1 - side].with_columns(there=np.ones(len(held[1 - side]), bool))
            sessions = self._rebuilt(keys, held)
            self._fall_apart(side, keys, held, sessions, out)

    def _rows_of(self, side: int, keys: Frame) -> Frame:
        """The rows of some keys: number of the key, time, arrival number and place."""
        zeros = np.zeros(len(keys), np.int64)
        found = self.sides[side].buffer.probe(
            Query(ordered(keys.ints("equal_hash"), zeros), zeros + MIN, zeros + MAX)
        )
        rows = self.stored(side, found, ["position", "seq", *self._identity])
        keep = self._of_keys(rows, keys, found.row)
        columns = {
            "code": found.row,
            "position": rows.ints("position"),
            "seq": rows.ints("seq"),
            "run": np.asarray(found.run),
            "place": found.at,
        }
        return Frame.of(columns, len(found.row)).where(keep)

    def _rebuilt(self, keys: Frame, held: list[Frame]) -> PointSessions:
        """The sessions of some keys, made anew from the rows that are left."""
        self._take_out(keys)
        some = [rows.where(rows.ints("there")) for rows in held]
        codes, times = (
            np.concatenate([rows.ints(name) for rows in some]) for name in ("code", "position")
        )
        sessions = PointSessions.of(codes, times, self.reach)
        self._store(keys, sessions)
        return sessions

    def _fall_apart(
        self, side: int, keys: Frame, held: list[Frame], sessions: PointSessions, out: JoinCollector
    ) -> None:
        """Take back the pairs of removed rows, and of rows that no longer share a session."""
        found = self.pairs.ranges(
            keys.select(KEY).take(np.lexsort((keys.ints("key_check"), keys.ints("key_hash")))), KEY
        )
        if not len(found.run):
            return
        emitted = self.pairs.take(found)
        code = _numbers_of(emitted.select(KEY), keys.select(KEY))
        index = [
            _positions(rows, code, emitted.ints(name))
            for rows, name in zip(held, ("left_seq", "right_seq"), strict=True)
        ]
        known = [at >= 0 for at in index]
        there = [
            ok & rows.ints("there")[np.maximum(at, 0)] if len(rows) else ok
            for ok, rows, at in zip(known, held, index, strict=True)
        ]
        lost = known[side] & ~there[side] & there[1 - side]
        session = [
            sessions.of_points(code, rows.ints("position")[np.maximum(at, 0)])
            if len(rows)
            else code
            for rows, at in zip(held, index, strict=True)
        ]
        apart = there[LEFT] & there[RIGHT] & (session[LEFT] != session[RIGHT])
        for mask, losing in ((lost, [1 - side]), (apart, [LEFT, RIGHT])):
            rows = np.flatnonzero(mask)
            rows = rows[
                np.lexsort((emitted.ints("right_seq")[rows], emitted.ints("left_seq")[rows]))
            ]
            left, right = (
                Places(part.ints("run")[at[rows]], part.ints("place")[at[rows]])
                for part, at in zip(held, index, strict=True)
            )
            order = out.reserve(STEPS * len(rows)) + STEPS * np.arange(len(rows))
            self.unpair(
                left,
                right,
                order,
                (emitted.ints("start")[rows], emitted.ints("end")[rows]),
                losing,
                out,
            )
        self.pairs.remove(found.take(apart | (known[side] & ~there[side])))

    def session_of(self, side: int, places: Places) -> tuple[np.ndarray, np.ndarray]:
        """The first and the last time of the sessions that stored rows are in."""
        rows = self.stored(side, places, ["position", "equal_hash", *self._identity])
        start, last = rows.ints("position").copy(), rows.ints("position").copy()
        some = np.flatnonzero(rows.ints("equal_hash") != NULL_KEY[side])
        if not len(some):
            return start, last
        keys = Groups.by([rows.ints(name)[some] for name in self._identity])
        asked = self._keys(rows.take(some[keys.firsts])).select(KEY)
        found = self.sessions.ranges(
            asked.take(np.lexsort((asked.ints("key_check"), asked.ints("key_hash")))), KEY
        )
        held = self.sessions.take(found, (*KEY, "start", "last"))
        sessions = _sorted(_numbers_of(held.select(KEY), asked), held)
        at = sessions.of_points(keys.ids.astype(np.int64), rows.ints("position")[some])
        start[some], last[some] = sessions.start[at], sessions.last[at]
        return start, last

    # Watermarks move

    def pad_due(self, out: JoinCollector) -> None:
        """Put out the unmatched rows of sessions that are due, then those with a null key."""
        sides = [side for side in (LEFT, RIGHT) if self.spec.pads(side)]
        if not sides or self.spec.padding == "early":
            return
        limit = self._due_by()
        due = self.sessions.select("due", limit)
        if len(due.run):
            table = self.sessions.take(due)
            for side in sides:
                self._pad_pending(side, *self._members(side, table), out)
            self.sessions.remove(due)
            self.sessions.put(table.with_columns(due=np.full(len(table), MAX)))
        for side in sides:
            if self.nulls[side]:
                places = self._null_rows(side, limit)
                at = self.stored(side, places, ["position"]).ints("position")
                self._pad_pending(side, places, at, at, out)

    def _pad_pending(
        self, side: int, places: Places, start: np.ndarray, last: np.ndarray, out: JoinCollector
    ) -> None:
        pending = np.flatnonzero(self.is_pending(side, places))
        self.pad_as(side, places.take(pending), self._standing(start[pending], last[pending]), out)

    def waits_for(self) -> int:
        if not any(self.spec.pads(side) for side in (LEFT, RIGHT)) or self.spec.padding == "early":
            return MAX
        first = self.sessions.least("due", MAX) if self.sides[LEFT].is_timed else MAX
        return MAX if first == MAX else self.due_at(LEFT, first)

    def due_at(self, side: int, first: int) -> int:  # noqa: ARG002
        """The watermark at which unmatched rows of a session that ends at `first` come out."""
        late = self.spec.lateness if self.spec.padding == "final" else 0
        return int(saturating_add(int(saturating_add(first, late)), int(self.touches)))

    def _members(self, side: int, table: Frame) -> tuple[Places, np.ndarray, np.ndarray]:
        """The rows of a side that are in sessions, and the first and last time of these."""
        query = Query(
            ordered(table.ints("equal_hash"), table.ints("start")),
            table.ints("start"),
            table.ints("last"),
        )
        found = self.sides[side].buffer.probe(query)
        keep = self._of_keys(self.stored(side, found, [*self._identity]), table, found.row)
        found = found.where(keep) if len(found.row) else found
        return (
            Places(np.asarray(found.run), found.at),
            table.ints("start")[found.row],
            table.ints("last")[found.row],
        )

    def _null_rows(self, side: int, limit: int) -> Places:
        """Rows with a null key whose sessions end at or before a limit."""
        places = self.sides[side].buffer.places(
            {"position": int(saturating_add(int(saturating_add(limit, -self.gap)), 1))}
        )
        rows = self.stored(side, places, ["equal_hash"])
        return places.take(rows.ints("equal_hash") == NULL_KEY[side])

    def expire(self) -> None:
        limit = self.closed()
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

    def forget(self) -> None:
        """Drop sessions that lie before all rows that retention keeps or accepts."""
        limit = self._ended(min(side.horizon for side in self.sides))
        self.sessions.remove(self.sessions.select("end", limit))
        if self.retracts:
            self.pairs.remove(self.pairs.select("end", max(limit, self.closed())))

    def clear(self) -> None:
        super().clear()
        self.sessions.clear()
        self.pairs.clear()

    # What can be asked

    def promised(self, side: int) -> dict[str, int]:
        """The lesser of both watermarks, down to the start of the first session that may get rows:
        they bring older rows together.
        """
        own, other = self.sides[side], self.sides[1 - side]
        if not own.is_timed:
            return self.promised_by_rows(side)
        promise = min(own.watermark, other.watermark, self.emitter.least(side))
        limit = self.closed()
        for frame in self.sessions.frames(("start", "end")):
            starts = frame.ints("start")[frame.ints("end") > limit]
            promise = min(promise, int(starts.min(initial=MAX)))
        if self.spec.pads(side) and self.spec.padding != "early":
            pending = self.stored(side, self.pending(side), ["position"]).ints("position")
            promise = min(promise, int(pending.min(initial=MAX)))
        return {own.given.time or "": promise}

    def windows(self, side: int, rows: Frame) -> Frame:
        """The sessions that rows of a side are in."""
        held = self.sessions.all()
        if held is None or not len(rows):
            nothing = np.zeros(0, np.int64)
            return Frame.of({"start": nothing, "end": nothing, "count": nothing}, 0)
        found = self.sides[side].buffer.probe(
            Query(
                ordered(held.ints("equal_hash"), held.ints("start")),
                held.ints("start"),
                held.ints("last"),
            )
        )
        there = self.stored(side, found, ["seq", *self._identity])
        keep = self._of_keys(there, held, found.row)
        keep &= np.isin(there.ints("seq"), rows.ints("seq"))
        count = np.bincount(found.row[keep], minlength=len(held))
        return held.select(["start", "end"]).with_columns(count=count).where(count > 0)

    def save(self) -> Any:
        return {"sessions": self.sessions.save(), "pairs": self.pairs.save(), "nulls": self.nulls}

    def restore(self, document: Any) -> None:
        self.sessions.restore(document["sessions"])
        self.pairs.restore(document["pairs"])
        self.nulls = list(document["nulls"])

    @property
    def nbytes(self) -> int:
        """Decoded size of sessions and pairs."""
        return self.sessions.nbytes + self.pairs.nbytes


def _length(spec: JoinSpec) -> int:
    """The length of the session that a row makes alone."""
    assert isinstance(spec.window, Session)  # noqa: S101 - the shape of session joins
    return int(SessionAssigner(spec.window).proto(np.zeros(1, np.int64))[1][0])


def _sorted(key: np.ndarray, held: Frame) -> PointSessions:
    """Stored sessions by key number and start."""
    by = np.lexsort((held.ints("start"), key))
    return PointSessions(key[by], held.ints("start")[by], held.ints("last")[by])


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
