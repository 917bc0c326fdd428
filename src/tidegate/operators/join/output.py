"""Output of a join: the columns of both sides, rows that are held back, and rendered results."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.instants import MAX, MIN
from tidegate.kernel.frame import (
    Column,
    Frame,
    cast_to,
    concat_frames,
    constant,
    repeat,
    squeezed,
    to_arrow,
)
from tidegate.operators.output import LATE, TIMINGS, LateRows, Output
from tidegate.operators.results import (
    STAMP,
    Renderer,
    Results,
    hex_text,
    instants,
    late_columns,
    late_name,
    late_table,
    words_of,
)
from tidegate.spec.aggregates import INPUT
from tidegate.spec.join import ADDED, BOUNDS, LEFT, RIGHT, SIDES, JoinSpec
from tidegate.state.store import Store

PAYLOAD = "m."
"""Prefix of input columns in the buffers of a join."""
_NONE = MIN
"""The arrival number of a missing row."""
NULL_KEY = (np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(0xFFFFFFFFFFFFFFFE))
"""The equal-field hash of rows with a null among their equal fields, by side: they never match."""
_LARGE = 65_536
"""From this many rows on a piece of the output is not copied into a larger one."""


@dataclass(frozen=True, slots=True)
class OutColumn:
    """A column of the output, and the columns of the sides that it is taken from."""

    name: str
    left: str | None
    right: str | None
    type: pa.DataType


def out_columns(
    spec: JoinSpec,
    schemas: Sequence[pa.Schema | None],
    dropped: Sequence[str | None],
    *,
    pairs: bool,
) -> list[OutColumn]:
    """The output's columns of inputs: equal fields once, then the others of the left and of the
    right; without `pairs` only those of the left.

    Of a side that has not spoken the columns that the specification names are known to exist.
    `dropped` is a column of each side that says whether a row is a retraction, and is no part of
    the output. A name that is taken gets the prefix of its side, repeatedly until it is free: the
    columns of a join that is a side may have a prefix already.
    """
    sides = [_names(spec, side, schemas[side], dropped[side]) for side in (LEFT, RIGHT)]
    equal = [
        OutColumn(a, a, b, _equal_type(_type(schemas[LEFT], a), _type(schemas[RIGHT], b)))
        for a, b in spec.on
    ]
    if not pairs:
        equal = [
            OutColumn(column.name, column.left, None, _type(schemas[LEFT], column.left or ""))
            for column in equal
        ]
    rest = [
        [name for name in names if name not in spec.fields(side)]
        for side, names in enumerate(sides)
    ]
    if not pairs:
        rest[RIGHT] = []
    ours = {*ADDED, *(BOUNDS if spec.has_windows else ())}
    found = [
        column
        for column in equal
        if _has(schemas, LEFT, column.left) or _has(schemas, RIGHT, column.right)
    ]
    equal_names = {column.name for column in equal}
    used = {*ours, *equal_names, *rest[LEFT], *rest[RIGHT]}
    for side, names in enumerate(rest):
        taken = {*ours, *rest[1 - side], *equal_names}
        for name in names:
            shown = _free_name(name, spec.names[side], used) if name in taken else name
            used.add(shown)
            if _has(schemas, side, name):
                found.append(
                    OutColumn(
                        shown,
                        name if side == LEFT else None,
                        name if side == RIGHT else None,
                        _type(schemas[side], name),
                    )
                )
    return found


def _free_name(name: str, prefix: str, used: AbstractSet[str]) -> str:
    shown = f"{prefix}{name}"
    while shown in used:
        shown = f"{prefix}{shown}"
    return shown


def _names(spec: JoinSpec, side: int, schema: pa.Schema | None, dropped: str | None) -> list[str]:
    if schema is not None:
        return [name for name in schema.names if name != dropped]
    given = spec.side(side)
    named = [
        *(time.column for time in given.times),
        *given.key,
        given.id,
        given.offset,
        given.partition,
        *spec.fields(side),
    ]
    return list(dict.fromkeys(name for name in named if name is not None))


def _has(schemas: Sequence[pa.Schema | None], side: int, name: str | None) -> bool:
    schema = schemas[side]
    return schema is not None and name in schema.names


def _type(schema: pa.Schema | None, name: str) -> pa.DataType:
    return pa.null() if schema is None or name not in schema.names else schema.field(name).type


def _equal_type(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """The type that holds the values of both sides."""
    if pa.types.is_null(left) or left == right:
        return right
    if pa.types.is_integer(left) and pa.types.is_integer(right):
        return (
            pa.uint64()
            if pa.types.is_unsigned_integer(left) and pa.types.is_unsigned_integer(right)
            else pa.int64()
        )
    return left


@dataclass
class Piece:
    """Rows of the output, and their positions in it."""

    frame: Frame
    order: np.ndarray


@dataclass(eq=False)
class Emitter:
    """Makes the rows of the output, and holds back those that come out later."""

    spec: JoinSpec
    store: Store
    columns: list[OutColumn] = field(default_factory=list)
    """The output's columns of inputs."""
    paired: list[OutColumn] = field(default_factory=list)
    """Those of candidate pairs, which have both sides also where the output has one."""
    counters: dict[str, int] = field(default_factory=dict)
    is_named: bool = True
    """Whether the output has its columns: where it has those of both sides, both must be known."""
    _held: Frame | None = None
    """Rows that wait for the clock."""
    _unnamed: Frame | None = None
    """Rows of one side that wait until the columns of the other side are known."""
    _saved: bool = True

    # Making rows

    def candidates(self, left: Frame, right: Frame) -> pa.Table:
        """Candidate pairs, with the columns that conditions read."""
        columns = _columns(self.paired, left, right, len(left))
        return pa.table(
            {column.name: to_arrow(columns[f"o.{column.name}"]) for column in self.paired}
        )

    def rows(
        self,
        left: Frame | None,
        right: Frame | None,
        *,
        op: int,
        timing: np.ndarray | int,
        n: int,
        window: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> Frame:
        """Rows of the output: pairs, or rows of one side if the other is None."""
        columns: dict[str, Column] = (
            {}
            if self.is_named
            else {"side": constant(np.int8(LEFT if right is None else RIGHT), n)}
        )
        if self.is_named:
            columns.update(_columns(self.columns, left, right, n))
        some = left if left is not None else right
        if some is not None:
            columns["key_hash"] = _identity(some)
            if not self.is_named:
                columns.update(
                    {name: some[name] for name in some.names if name.startswith(PAYLOAD)}
                )
        for name, frame in (("left_seq", left), ("right_seq", right)):
            columns[name] = constant(np.int64(_NONE), n) if frame is None else frame["seq"]
        if self.keeps_times:
            for name, frame in (("left_position", left), ("right_position", right)):
                columns[name] = constant(np.int64(MAX), n) if frame is None else _time_of(frame)
        columns["op"] = constant(np.int8(op), n)
        columns["timing"] = squeezed(np.broadcast_to(np.asarray(timing, np.int8), n))
        if window is not None:
            columns.update(start=window[0], end=window[1])
        return Frame(columns, n)

    def emit(
        self, pieces: Sequence[Piece], *, watermark: int, now: int, finishing: bool = False
    ) -> list[Frame]:
        """The rows of a call that come out now, in order; the others are held back."""
        found: list[Frame] = []
        unnamed = [piece for piece in pieces if "side" in piece.frame]
        if unnamed:
            self._wait_for_names(unnamed, watermark)
            pieces = [piece for piece in pieces if "side" not in piece.frame]
        if self._unnamed is not None and (self.is_named or finishing):
            named, self._unnamed, self._saved = self._named(self._unnamed), None, False
            found += self._emitted(named if finishing else self._hold(named, now), now)
        if not pieces:
            return found
        frames = [piece.frame for piece in pieces]
        if len(pieces) > 1:
            order = np.concatenate([piece.order for piece in pieces])
            in_turn = not (order[1:] < order[:-1]).any()
            # Large pieces that come one after the other are not worth a copy.
            if not in_turn or len(order) < _LARGE * len(pieces):
                frame = concat_frames(frames)
                frames = [frame if in_turn else frame.take(np.argsort(order, kind="stable"))]
        for frame in frames:
            marked = frame.with_columns(watermark=constant(np.int64(watermark), len(frame)))
            found += self._emitted(marked if finishing else self._hold(marked, now), now)
        return found

    # Waiting for names

    def _wait_for_names(self, pieces: Sequence[Piece], watermark: int) -> None:
        frame = concat_frames([piece.frame for piece in pieces])
        frame = frame.take(
            np.argsort(np.concatenate([piece.order for piece in pieces]), kind="stable")
        )
        frame = frame.with_columns(watermark=constant(np.int64(watermark), len(frame)))
        self._unnamed = (
            frame
            if self._unnamed is None
            else concat_frames([self._widened(self._unnamed, frame), frame])
        )
        self._saved = False

    def _named(self, frame: Frame) -> Frame:
        """Rows that waited for the columns of the output, with these columns."""
        side = int(frame.ints("side")[0])
        known = [column.left if side == LEFT else column.right for column in self.columns]
        missing = [name for name in known if name is not None and PAYLOAD + name not in frame]
        rows = frame.with_mapping(
            {PAYLOAD + name: repeat(None, len(frame), pa.null()) for name in missing}
        )
        columns = _columns(
            self.columns,
            rows if side == LEFT else None,
            rows if side == RIGHT else None,
            len(frame),
        )
        rest = {
            name: frame[name]
            for name in frame.names
            if not name.startswith(PAYLOAD) and name != "side"
        }
        if not self.holds_back:
            rest = {
                name: column
                for name, column in rest.items()
                if name not in ("left_position", "right_position")
            }
        return Frame({**columns, **rest}, len(frame))

    # Holding rows back

    def _hold(self, frame: Frame, now: int) -> Frame:
        """The rows that come out at once; the others wait for the next multiple of their period."""
        spec = self.spec
        if not self.holds_back:
            return frame
        late = frame.ints("timing") == LATE
        due = np.full(len(frame), now)
        for mask, period in ((late, spec.late_period), (~late, spec.on_time_period)):
            if period is not None:
                due[mask] = (now // period + 1) * period
        waits = frame.where(due > now).with_columns(due=due[due > now])
        if len(waits):
            self._held = (
                waits
                if self._held is None
                else concat_frames([self._widened(self._held, waits), waits])
            )
            self._saved = False
        return frame.where(due <= now)

    @staticmethod
    def _widened(held: Frame, new: Frame) -> Frame:
        """Held rows with the columns that new rows have."""
        missing = {
            name: repeat(None, len(held), to_arrow(new[name]).type)
            for name in new.names
            if name not in held
        }
        columns = held.with_mapping(missing)
        return Frame({name: columns[name] for name in new.names}, len(held))

    def release(self, now: int, *, finishing: bool = False) -> list[Frame]:
        """The rows that were held back until now, or all of them."""
        if self._held is None:
            return []
        due = np.ones(len(self._held), bool) if finishing else self._held.ints("due") <= now
        if not due.any():
            return []
        ready, self._held = self._held.where(due), None if due.all() else self._held.where(~due)
        self._saved = False
        return self._emitted(ready.drop(["due"]), now)

    def _emitted(self, frame: Frame, now: int) -> list[Frame]:
        """Rows that come out now, counted and with the time of the clock."""
        n = len(frame)
        if not n:
            return []
        timings = np.bincount(frame.ints("timing")[frame.ints("op") > 0], minlength=len(TIMINGS))
        for name, count in zip(TIMINGS, timings.tolist(), strict=True):
            self.counters[f"panes_{name}"] += count
        self.counters["retractions"] += n - int(timings.sum())
        return [frame.with_columns(emitted_at=constant(np.int64(now), n))]

    @property
    def holds_back(self) -> bool:
        """Whether rows wait for the clock before they come out."""
        return self.spec.on_time_period is not None or self.spec.late_period is not None

    @property
    def keeps_times(self) -> bool:
        """Whether rows keep their times, because they may wait."""
        return self.holds_back or not self.is_named

    @property
    def next_due(self) -> int:
        return MAX if self._held is None else int(self._held.ints("due").min())

    def least(self, side: int) -> int:
        """The least time of a side among the rows that wait."""
        name = "right_position" if side == RIGHT else "left_position"
        return min(
            (
                int(frame.ints(name).min())
                for frame in (self._held, self._unnamed)
                if frame is not None
            ),
            default=MAX,
        )

    @property
    def waiting(self) -> int:
        """How many rows wait for the clock."""
        return 0 if self._held is None else len(self._held)

    @property
    def unnamed(self) -> int:
        """How many rows wait until the columns of the other side are known."""
        return 0 if self._unnamed is None else len(self._unnamed)

    @property
    def nbytes(self) -> int:
        return sum(frame.nbytes for frame in (self._held, self._unnamed) if frame is not None)

    def save(self) -> list[str]:
        """Write the rows that wait, and return the names of the tables."""
        found = {"held": self._held, "unnamed": self._unnamed}
        if not self._saved:
            for name, frame in found.items():
                if frame is None:
                    self.store.delete(name)
                else:
                    self.store.put_table(name, frame.to_table())
            self._saved = True
        return [name for name, frame in found.items() if frame is not None]

    def restore(self, names: Sequence[str]) -> None:
        self._held, self._unnamed = (
            Frame.from_table(self.store.get_table(name)) if name in names else None
            for name in ("held", "unnamed")
        )


def _time_of(rows: Frame) -> Column:
    """The times of rows, which rows that are matched by offset have in a column of their own."""
    return rows["time"] if "time" in rows else rows["position"]


def _identity(rows: Frame) -> Column:
    """The key identity in pair ids; for a null key its second word."""
    key = rows.ints("key_hash" if "key_hash" in rows else "equal_hash")
    if "key_check" not in rows:
        return key
    null_key = (key == NULL_KEY[LEFT]) | (key == NULL_KEY[RIGHT])
    return np.where(null_key, rows.ints("key_check"), key) if null_key.any() else key


def _columns(
    columns: Sequence[OutColumn], left: Frame | None, right: Frame | None, n: int
) -> dict[str, Column]:
    found: dict[str, Column] = {}
    for column in columns:
        if left is not None and column.left is not None:
            values = left[PAYLOAD + column.left]
        elif right is not None and column.right is not None:
            values = right[PAYLOAD + column.right]
        else:
            values = repeat(None, n, column.type)
        found[f"o.{column.name}"] = _typed(values, column.type)
    return found


def _typed(values: Column, kind: pa.DataType) -> Column:
    if isinstance(values, np.ndarray) or values.type == kind or pa.types.is_null(kind):
        return values
    return values.cast(kind)


@dataclass(frozen=True)
class JoinRenderer(Renderer):
    """Turns a join's output into results."""

    spec: JoinSpec
    ticks: bool
    schemas: tuple[pa.Schema | None, pa.Schema | None]
    columns: Sequence[OutColumn]

    def by_window(self, output: Output) -> list[Results]:
        """The units in which a downstream accepts: all rows of a call, and the late rows last."""
        whole = self.render(output)
        parts = [Results(whole.panes, self._no_late())] if whole.panes.num_rows else []
        return [*parts, Results(self._no_panes(), whole.late)] if whole.late.num_rows else parts

    def _panes(self, frame: Frame) -> pa.Table:
        columns: dict[str, Any] = {
            column.name: frame[f"o.{column.name}"]
            for column in self.columns
            if f"o.{column.name}" in frame
        }
        if self.spec.has_windows:
            columns.update(
                window_start=self.bounds(frame.ints("start")),
                window_end=self.bounds(frame.ints("end")),
            )
        columns["op"] = words_of(("-", "+"), squeezed((frame.ints("op") > 0).astype(np.int8)))
        columns["timing"] = words_of(TIMINGS, frame.ints("timing"))
        columns["pair_id"] = pair_ids(frame)
        columns.update(
            watermark=self.instants(frame.ints("watermark")),
            emitted_at=self.instants(frame.ints("emitted_at")),
        )
        return pa.table({name: to_arrow(column) for name, column in columns.items()})

    def instants(self, column: np.ndarray) -> pa.Array:
        """Ticks or timestamps; the ends of time are null."""
        return instants(column, ticks=self.ticks)

    def bounds(self, column: np.ndarray) -> pa.Array:
        """Bounds of windows: instants, or positions on the offset axis."""
        return instants(column, ticks=self.ticks or not self.spec.is_timed(LEFT))

    def _no_panes(self) -> pa.Table:
        when = pa.int64() if self.ticks else STAMP
        fields = [(column.name, column.type) for column in self.columns]
        bound = when if self.spec.is_timed(LEFT) else pa.int64()
        fields += [(name, bound) for name in BOUNDS] if self.spec.has_windows else []
        fields += [
            ("op", pa.string()),
            ("timing", pa.string()),
            ("pair_id", pa.string()),
            ("watermark", when),
            ("emitted_at", when),
        ]
        return pa.schema(fields).empty_table()

    def _late(self, rows: LateRows) -> pa.Table:
        columns: dict[str, pa.Array] = {}
        kinds = self._late_types()
        if rows.table is not None:
            for name in rows.table.column_names:
                shown = _late_name(name)
                array = to_arrow(rows.table.column(name))
                columns[shown] = to_arrow(cast_to(array, kinds.get(shown, array.type)))
        columns["input"] = repeat(SIDES[rows.input], len(rows), pa.string())
        return late_table(columns, rows, ticks=self.ticks)

    def _late_types(self) -> dict[str, pa.DataType]:
        """The columns of both sides; where they disagree about a type, the type is text."""
        kinds: dict[str, pa.DataType] = {}
        for field_ in [f for schema in self.schemas if schema is not None for f in schema]:
            name = _late_name(field_.name)
            known = kinds.get(name, field_.type)
            kinds[name] = (
                field_.type if known == field_.type or pa.types.is_null(known) else pa.string()
            )
        return kinds

    def _no_late(self) -> pa.Table:
        fields = [
            *self._late_types().items(),
            ("input", pa.string()),
            *late_columns(ticks=self.ticks),
        ]
        return pa.schema(fields).empty_table()


def _late_name(name: str) -> str:
    """The name of an input column in the late output, where `input` is the side."""
    return f"input_{name}" if name == INPUT else late_name(name)


def pair_ids(frame: Frame) -> pa.Array:
    """The identity of the key and the arrival numbers of both rows as text; `-` where a row is
    missing.
    """
    key = frame.ints("key_hash").astype(">u8").view(np.uint8).reshape(len(frame), 8)
    words = [hex_text(key)]
    for name in ("left_seq", "right_seq"):
        seq = frame.ints(name)
        known = pa.array(seq, mask=seq == _NONE) if (seq == _NONE).any() else pa.array(seq)
        words.append(pc.fill_null(known.cast(pa.string()), "-"))
    return pc.binary_join_element_wise(*words, ":")
