"""State and columns that all ways of matching share: sides, stored rows, candidate pairs.

`JoinContext` reads stored rows, finds the partners of rows and finds the rows that retractions take
back. What comes out, and when, is in `matching`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.instants import MAX, MIN
from tidegate.kernel.frame import Frame, is_constant, to_arrow
from tidegate.kernel.groups import Groups
from tidegate.kernel.joins.join_buffer import Query
from tidegate.kernel.joins.range_matching import Found
from tidegate.kernel.storage.run_store import Places
from tidegate.operators.join.collector import JoinCollector
from tidegate.operators.join.output import PAYLOAD, Emitter
from tidegate.operators.join.side import Side, Taken
from tidegate.operators.output import class_names, texts
from tidegate.operators.progress import Progress
from tidegate.spec.join import LEFT, JoinSpec

Times = Mapping[str, np.ndarray]
PairCheck = Callable[[Times, Times], "np.ndarray | None"]
"""Which pairs match, by the times of their left and of their right rows; None if all do."""
_VOLATILE = frozenset({"is_last", "watermark", "emitted_at", "pane_id"})
"""Columns of panes in which a retraction differs from the row that it takes back."""


@dataclass(eq=False)
class JoinContext:
    """The parts of a join that matching works on."""

    spec: JoinSpec
    sides: tuple[Side, Side]
    emitter: Emitter
    progress: Progress
    finishing: bool = False
    """Whether the input has ended, so that no partner is expected any more."""

    @property
    def retracts(self) -> bool:
        """Whether rows may be retractions."""
        return any(side.op_column is not None for side in self.sides)

    # Columns

    def payload(self, side: int) -> list[str]:
        """The input columns of a side, as its buffer names them."""
        schema = self.sides[side].schema
        return (
            []
            if schema is None
            else [PAYLOAD + name for name in schema.names if name != self.sides[side].op_column]
        )

    def shown(self, side: int, *, paired: bool = False) -> list[str]:
        """The stored columns that the output needs of a side's rows, unmatched or in pairs.

        A pair takes the columns that both sides have from its left row.
        """
        columns = self.emitter.columns
        if side == LEFT:
            names = [column.left for column in columns]
        else:
            names = [column.right for column in columns if not paired or column.left is None]
        key = "key_hash" if self.has_key_hash else "equal_hash"
        known = [key, "key_check"] if not paired else [key] if side == LEFT else []
        at = ["position"] if self.spec.has_windows or self.emitter.keeps_times else []
        if "time" in self.sides[side].buffer.watched:
            at.append("time")
        return [*known, "seq", *at, *(PAYLOAD + name for name in names if name is not None)]

    @property
    def has_key_hash(self) -> bool:
        """Whether rows store a key hash too, because `equal_hash` covers some equal fields only."""
        return self.spec.hashed_on != self.spec.on

    @property
    def compared(self) -> list[str]:
        """The columns that tell keys with the same `equal_hash` apart."""
        return ["key_check", "key_hash"] if self.has_key_hash else ["key_check"]

    def table(self, side: int, rows: Frame) -> pa.Table:
        """Rows with their input columns."""
        return pa.table(
            {name.removeprefix(PAYLOAD): to_arrow(rows[name]) for name in self.payload(side)}
        )

    # Stored rows

    def keeps_null_keys(self, side: int) -> bool:
        """Whether rows with a null key, which have no partners, are stored."""
        return self.spec.pads(side) or self.sides[side].op_column is not None

    def keep(self, side: int, rows: Taken, frame: Frame) -> Places:
        """Store rows as `frame`, and return their places.

        A row with a null key that no output needs is not stored, and its place is -1.
        """
        buffer = self.sides[side].buffer
        if rows.null_key is None or self.keeps_null_keys(side):
            return buffer.put(frame, rows.by)
        kept = np.flatnonzero(~rows.null_key)
        found = buffer.put(frame.take(kept))
        places = Places(np.full(len(rows), -1), np.full(len(rows), -1))
        places.run[kept], places.at[kept] = found.run, found.at
        return places

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
        return self.sides[side].buffer.take(places, list(dict.fromkeys(names)))

    def asking(self, side: int, places: Places, names: Sequence[str]) -> Frame:
        """Stored rows with the columns that `probe` needs, and some more."""
        return self.stored(
            side, places, ["equal_hash", "seq", *self.compared, *names, *self.payload(side)]
        )

    # Partners

    def probe(
        self,
        side: int,
        rows: Frame,
        query: Query,
        out: JoinCollector | None,
        check: PairCheck | None = None,
    ) -> Found:
        """The partners that rows of a side have among the stored rows of the other side.

        A partner lies in the range of the query, has the same key and passes `check` and `where`.
        Pairs are sorted by row, then by the partner's arrival. With `out`, pairs for which `where`
        fails are late.
        """
        other = 1 - side
        buffer = self.sides[other].buffer
        found = buffer.probe(query)
        if not len(found.row):
            return found
        held = self.stored(
            other, found, [*self.compared, "seq", *(buffer.watched if check is not None else ())]
        )
        keep = np.ones(len(found.row), bool)
        for name in self.compared:
            keep &= _same(held.ints(name), rows.ints(name), found.row)
        if check is not None:
            mine = {name: rows.ints(name)[found.row] for name in self.sides[side].buffer.watched}
            theirs = {name: held.ints(name) for name in buffer.watched}
            holds = check(mine, theirs) if side == LEFT else check(theirs, mine)
            if holds is not None:
                keep &= holds
        if not keep.all():
            found, held = found.where(keep), held.where(keep)
        found = _by_arrival(found, held.ints("seq"))
        return found if self.spec.where is None else self._wanted(side, rows, found, out)

    def _wanted(self, side: int, rows: Frame, found: Found, out: JoinCollector | None) -> Found:
        """The pairs for which `where` holds."""
        if not len(found.row):
            return found
        theirs = self.stored(1 - side, found, ["seq", *self.payload(1 - side)])
        mine = rows.select(["seq", *self.payload(side)]).take(found.row)
        left, right = (mine, theirs) if side == LEFT else (theirs, mine)
        mask, failed = _evaluate(self.spec.where, self.emitter.candidates(left, right))
        if failed and out is not None:
            self._report(side, mine, theirs, failed, out)
        return found.where(mask)

    def _report(
        self,
        side: int,
        mine: Frame,
        theirs: Frame,
        failed: Mapping[int, str],
        out: JoinCollector,
    ) -> None:
        """Send the newer row of each pair for which `where` failed to `late`."""
        rows = np.array(list(failed), np.int64)
        partners = theirs.ints("seq")[rows].tolist()
        table = self.table(side, mine.take(rows))
        detail = [
            f"{why} (with message {partner} of the other side)"
            for why, partner in zip(failed.values(), partners, strict=True)
        ]
        late = self.sides[side].late_output(out)
        late.late_table(
            table, "bad_condition", texts(None, len(rows)), pa.array(detail, pa.string())
        )

    # Retractions

    def retracted(self, side: int, rows: Taken, out: JoinCollector) -> tuple[np.ndarray, Places]:
        """Which retractions found a stored row to take back, and where these rows are.

        Of equal rows the oldest goes first. A retraction without such a row goes to `late`.
        """
        frame, buffer = rows.frame, self.sides[side].buffer
        at = frame.ints("position")
        # The retraction of a message has an offset of its own.
        low, high = (
            (at, at)
            if self.sides[side].is_timed
            else (np.full(len(at), MIN), np.full(len(at), MAX))
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
            late = self.sides[side].late_output(out)
            late.late_table(table, "nothing_to_retract", class_names(gone.classes))
        kept = np.flatnonzero(chosen >= 0)
        return kept, Places(np.asarray(candidates.run)[chosen[kept]], candidates.at[chosen[kept]])

    def _values(self, side: int, frame: Frame) -> tuple[np.ndarray, np.ndarray]:
        """Hashes of the columns that a retraction shares with the row that it takes back."""
        given = self.sides[side].given
        volatile = {given.offset, given.id, *_VOLATILE}
        names = [name for name in self.payload(side) if name.removeprefix(PAYLOAD) not in volatile]
        columns = [to_arrow(frame[name]) for name in names]
        return self.sides[side].hasher.identify(columns, len(frame))


def _same(held: np.ndarray, asked: np.ndarray, row: np.ndarray) -> np.ndarray:
    if is_constant(held) and is_constant(asked):
        return np.full(len(row), bool(held[0] == asked[0]))
    return held == asked[row]


def _by_arrival(found: Found, seq: np.ndarray) -> Found:
    """Pairs sorted by row, then by the partner's arrival."""
    if len(seq) < 2:
        return found
    wrong = (found.row[1:] == found.row[:-1]) & (seq[1:] < seq[:-1])
    if not wrong.any():
        return found
    # Few rows have partners out of order, so only those rows are sorted.
    mixed = np.zeros(int(found.row[-1]) + 1, bool)
    mixed[found.row[1:][wrong]] = True
    here = np.flatnonzero(mixed[found.row])
    order = np.arange(len(seq))
    order[here] = here[_by_row(found.row[here], seq[here])]
    return found.take(order)


def _by_row(row: np.ndarray, seq: np.ndarray) -> np.ndarray:
    """The order of (row, arrival); no two pairs are equal in both."""
    low = int(seq.min())
    span = (int(seq.max()) - low).bit_length()
    if int(row[-1]).bit_length() + span < 63:
        return np.argsort((row << span) | (seq - low))
    return np.lexsort((seq, row))


def _evaluate(where: Any, table: pa.Table) -> tuple[np.ndarray, dict[int, str]]:
    """Which candidate pairs a condition accepts, and the error of each pair for which it fails.

    If the condition fails for the whole table, pairs are tried one by one.
    """
    try:
        return _condition(where, table), {}
    except Exception:  # noqa: BLE001 - a user's condition may raise anything
        mask, failed = np.zeros(table.num_rows, bool), {}
        for row in range(table.num_rows):
            try:
                mask[row] = _condition(where, table.slice(row, 1))[0]
            except Exception as error:  # noqa: BLE001 - the same
                failed[row] = f"{type(error).__name__}: {error}"
        return mask, failed


def _condition(where: Any, table: pa.Table) -> np.ndarray:
    if isinstance(where, pc.Expression):
        return _filtered(where, table)
    answer = where(table)
    if not isinstance(answer, pa.Array | pa.ChunkedArray):
        answer = pa.array(answer)
    if len(answer) != table.num_rows:
        raise ValueError(f"the condition returned {len(answer)} values for {table.num_rows} pairs")
    return pc.fill_null(to_arrow(answer).cast(pa.bool_()), False).to_numpy(zero_copy_only=False)


def _filtered(where: pc.Expression, table: pa.Table) -> np.ndarray:
    """The pairs that an expression accepts."""
    name = "\x00row"
    rows = table.append_column(name, pa.array(np.arange(table.num_rows)))
    try:
        found = rows.filter(where)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        # Columns without a value yet have no type. With any type that the expression accepts, the
        # result is the same, because all values are null.
        untyped = [field.name for field in rows.schema if pa.types.is_null(field.type)]
        typed = _first_filtered(where, rows, untyped)
        if typed is None:
            raise
        found = typed
    mask = np.zeros(table.num_rows, bool)
    mask[found.column(name).to_numpy()] = True
    return mask


def _first_filtered(
    where: pc.Expression, rows: pa.Table, untyped: Sequence[str]
) -> pa.Table | None:
    """The rows that an expression accepts with the first type that it takes; None if none fits."""
    for kind in (pa.int64(), pa.string(), pa.bool_()) if untyped else ():
        schema = rows.schema
        for name in untyped:
            schema = schema.set(schema.get_field_index(name), pa.field(name, kind))
        try:
            return rows.cast(schema).filter(where)
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
            continue
    return None


def _oldest(
    candidates: Found, seq: np.ndarray, number: np.ndarray, mine: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """The candidate of each retraction, or -1: the n-th oldest for the n-th of the same values."""
    values = Groups.by(mine)
    group = values.ids[candidates.row]
    # Retractions with the same values have the same candidates, so those of the first are enough.
    first = np.flatnonzero(candidates.row == values.firsts[group])
    order = first[np.lexsort((number[first], seq[first], group[first]))]
    counts = np.bincount(group[order], minlength=values.n)
    begin = np.cumsum(counts) - counts
    rank = values.ranks
    chosen = np.full(len(values.ids), -1, np.int64)
    there = rank < counts[values.ids]
    chosen[there] = order[begin[values.ids[there]] + rank[there]]
    return chosen
