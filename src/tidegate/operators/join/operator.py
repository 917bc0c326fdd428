"""The windowed join: turns deliveries of two inputs into pairs, unmatched rows and late rows.

Contract: the output of every verb is a function of the state, the rows in (input, partition,
offset) order and the clock passed in. Left comes before right inside a delivery. Watermarks move at
the end of a micro-batch, each side's on its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from tidegate.errors import InputError
from tidegate.instants import MAX, MIN
from tidegate.kernel.events.duplicates import ResumeOffsets
from tidegate.kernel.keys import KeyHasher
from tidegate.kernel.watermarks.marks import Watermark
from tidegate.operators.ingest.delivery import Arrival, merged_arrivals
from tidegate.operators.ingest.watermark_tracking import ReleasedMarks, WatermarkTracker
from tidegate.operators.join.as_of import AsOfJoin
from tidegate.operators.join.collector import JoinCollector
from tidegate.operators.join.matching import JoinMatching
from tidegate.operators.join.output import Emitter, JoinRenderer, out_columns
from tidegate.operators.join.range import RangeJoin
from tidegate.operators.join.retention import JoinRetention
from tidegate.operators.join.rows import RowsJoin
from tidegate.operators.join.session import SessionJoin
from tidegate.operators.join.side import Side, Taken
from tidegate.operators.key_secret import key_hasher
from tidegate.operators.output import Output, class_names
from tidegate.operators.progress import Progress
from tidegate.spec.composition import Exchange, composed
from tidegate.spec.join import LEFT, RIGHT, SIDES, AsOf, JoinSpec, Rows
from tidegate.spec.operator import Input, TimeColumn, input_of
from tidegate.spec.windows import Session
from tidegate.state.store import Store


class WindowedJoin:
    """One join of two inputs."""

    def __init__(
        self,
        spec: JoinSpec,
        store: Store,
        *,
        now: int = 0,
        op_column: str | Sequence[str | None] | None = None,
        hasher: KeyHasher | None = None,
    ) -> None:
        """Create a join; `op_column` marks retractions: one column, or one for each side.

        `hasher`: of its keys, if the store does not have one.
        """
        self.declared = self.spec = spec
        self.store = store
        self.hasher = key_hasher(store, hasher)
        self.progress = Progress(now=now)
        self.spec = spec = spec.with_inputs(
            [
                dataclasses.replace(given, others=self._used(given, spec.side_of(ordinal)))
                for ordinal, given in enumerate(spec.inputs)
            ]
        )
        self.watermark_tracker = WatermarkTracker(
            spec.inputs, spec.options, now=now, groups=self._groups()
        )
        self.is_fed = False
        """Whether an upstream operator sends a watermark."""
        self.upstreams: dict[int, Exchange] = {}
        """By input, what the operator that feeds it passes on."""
        self.emitter = Emitter(
            spec, store, counters=self.progress.counters, is_named=not spec.shows_pairs
        )
        columns = (
            [op_column, op_column]
            if op_column is None or isinstance(op_column, str)
            else list(op_column)
        )
        shape = _shape(spec)
        sides = [self._side(number, shape, columns[number]) for number in (LEFT, RIGHT)]
        self.sides: tuple[Side, Side] = (sides[LEFT], sides[RIGHT])
        self.matching = shape(spec, self.sides, self.emitter, self.progress)
        self.retention = JoinRetention(self.matching)

    def _used(self, given: Input, side: int) -> tuple[TimeColumn, ...]:
        """The time columns of an input, beside the main one, that the join compares."""
        used = {time.column for time in self.declared.times(side)}
        return tuple(time for time in given.others if time.column in used)

    def _groups(self) -> list[list[int]]:
        """The inputs of both sides, if a side has several."""
        if not any(self.spec.also):
            return []
        ordinals = range(len(self.spec.inputs))
        return [[n for n in ordinals if self.spec.side_of(n) == side] for side in (LEFT, RIGHT)]

    def _side(self, number: int, shape: type[JoinMatching], op_column: str | None) -> Side:
        spec = self.spec
        return Side(
            number,
            spec,
            self.store,
            self.hasher,
            self.progress,
            self.watermark_tracker,
            shape.time_columns(spec, number),
            shape.row_marks(spec, number),
            op_column,
            shape.last_instant(spec) if spec.options.drop_by == "window" else None,
        )

    # The verbs

    def process(self, table: pa.Table, now: int | None = None, ordinal: int = 0) -> Output:
        """Take a delivery of one input."""
        return self.process_all(
            [Arrival(ordinal, table)], self.progress.now if now is None else now
        )

    def process_all(
        self,
        arrivals: Sequence[Arrival],
        now: int,
        *,
        observed: Sequence[Arrival] | None = None,
        hold: bool = False,
    ) -> Output:
        """Take a micro-batch; watermarks move once, after all rows.

        With `observed`, watermarks follow those rows instead of the arrivals, which may be the
        share of one shard. With `hold`, the micro-batch goes on in the next call, and watermarks
        stay.
        """
        out = self._begin()
        self._tell_clock(now, out)
        for seen in merged_arrivals(observed or ()):
            input_of(self.spec.inputs, seen.ordinal)
            self.sides[self.spec.side_of(seen.ordinal)].look_at(seen)
        taken: dict[int, Taken] = {}
        for arrival in merged_arrivals(sorted(arrivals, key=lambda arrival: arrival.ordinal)):
            input_of(self.spec.inputs, arrival.ordinal)
            side = self.spec.side_of(arrival.ordinal)
            if side in taken:
                # The next input of a side may bring columns that the stored rows then get.
                self.matching.take_all(taken, out)
                taken = {}
            taken[side] = self._arrive(arrival, out, looks=observed is None)
        self.matching.take_all(taken, out)
        if not hold:
            self._end_batch(out)
        return self._finish_call(out)

    def refuse(
        self, table: pa.Table, now: int, reason: str, detail: str, ordinal: int = 0
    ) -> Output:
        """Send rows that cannot be delivered to `late`; they do not make a source active."""
        out = self._begin()
        self._tell_clock(now, out)
        if table.num_rows:
            side = self.sides[self.spec.side_of(ordinal)]
            table, reader = side.admitted(table, ordinal), side.reader(ordinal)
            self._bound(side, table.schema)
            if side.schema is not None:
                side.ingest.refuse(
                    table, reader, side.schema, side.late_output(out), reason, detail
                )
        return self._finish_call(out)

    def change_sources(self, change: Callable[[WatermarkTracker], object]) -> Output:
        """Change the watermarks or the status of sources."""
        out = self._begin()
        change(self.watermark_tracker)
        self._advance(out)
        return self._finish_call(out)

    def advance_clock(self, now: int) -> Output:
        """Advance the clock; it never goes back."""
        out = self._begin()
        self._tell_clock(now, out)
        self._advance(out)
        return self._finish_call(out)

    def finish(self) -> Output:
        """End the input: unmatched and held back rows come out, and no state is left."""
        out = self._begin()
        self.matching.finishing = True
        self.matching.settle(out)
        for side in self.sides:
            side.marks = dict.fromkeys(side.marks, MAX)
            side.forget_ids()
        self.progress.watermark = MAX
        out.release(self.progress.now, finishing=True)
        output = self._finish_call(out)
        self.matching.finishing = False
        return output

    def _tell_clock(self, now: int, out: JoinCollector) -> None:
        self.progress.now = max(self.progress.now, now)
        self.watermark_tracker.tick(self.progress.now)
        out.release(self.progress.now)

    def _begin(self) -> JoinCollector:
        """Begin a call; the collector takes what it puts out."""
        self.progress.before = self.progress.watermark
        return JoinCollector(self.emitter)

    def _finish_call(self, out: JoinCollector) -> Output:
        return out.finish(
            watermark=self.progress.watermark,
            now=self.progress.now,
            finishing=self.matching.finishing,
        )

    # Taking a delivery

    def bind(self, *schemas: pa.Schema | None) -> None:
        """Set the schemas of the inputs, left and right, as far as they are known."""
        for side, schema in zip(self.sides, schemas, strict=False):
            if schema is not None:
                self._bound(side, schema)

    def expect(self, schema: pa.Schema, ordinal: int = 0) -> None:
        """Take the columns of an input before its first rows."""
        side = self.sides[self.spec.side_of(ordinal)]
        self._bound(side, side.expect(schema, ordinal))

    def _bound(self, side: Side, schema: pa.Schema) -> None:
        if side.bind(schema):
            self.name_columns()

    def name_columns(self) -> None:
        """Set the columns of the output, as far as they are known."""
        schemas = [side.schema for side in self.sides]
        _check_types(self.spec, schemas)
        dropped = [side.op_column for side in self.sides]
        self.emitter.is_named = not self.spec.shows_pairs or all(
            schema is not None for schema in schemas
        )
        self.emitter.paired = out_columns(self.spec, schemas, dropped, pairs=True)
        self.emitter.columns = (
            self.emitter.paired
            if self.spec.shows_pairs
            else out_columns(self.spec, schemas, dropped, pairs=False)
        )

    def _arrive(self, arrival: Arrival, out: JoinCollector, *, looks: bool) -> Taken:
        side = self.sides[self.spec.side_of(arrival.ordinal)]
        known = side.schema
        delivery = side.read(arrival, out, looks=looks)
        if side.schema is not known:
            self.name_columns()
        delivery, times = side.judged(delivery, out)
        for taken, reason in (
            (self.matching.has_window, "no_window"),
            (partial(self._is_open, side), "window_expired"),
        ):
            mask = taken(times["position"])
            if not mask.all():
                rows = np.flatnonzero(~mask)
                late = side.late_output(out)
                late.late_rows(delivery, rows, reason, class_names(delivery.verdict[rows]))
                delivery = delivery.where(mask)
                times = {name: column[mask] for name, column in times.items()}
        return self.retention.admitted(side.number, side.taken(delivery, times), out)

    def _is_open(self, side: Side, at: np.ndarray) -> np.ndarray:
        """Which rows are in a window that is not over on their own side.

        By offsets that are rows of a partition that begins late: their partners may be gone.
        """
        last = (
            None if side.is_timed or self.spec.retention else self.matching.last_instant(self.spec)
        )
        return np.ones(len(at), bool) if last is None else last(at) >= side.position_mark

    def follow(self, upstream: Exchange | None, ordinal: int | None = None) -> None:
        """Take the watermark of an input, or of both, from an upstream, and its retractions.

        The join takes rows as late as the upstream may change them.
        """
        self.is_fed = True
        self.watermark_tracker.follow(ordinal)
        if upstream is not None:
            fed = range(len(self.spec.inputs)) if ordinal is None else (ordinal,)
            self.upstreams.update(dict.fromkeys(fed, upstream))
            lateness = self.exchange.lateness
            for part in (self, self.matching, *self.sides):
                part.spec = dataclasses.replace(part.spec, allowed_lateness=lateness)
            for number in fed:
                side = self.sides[self.spec.side_of(number)]
                side.op_column = "op"
                side.fed.add(number)

    @property
    def exchange(self) -> Exchange:
        """What the operator passes to the next one."""
        return composed(self.declared, self.upstreams)

    @property
    def takes_panes(self) -> tuple[bool, bool]:
        """By side, whether rows may be retractions."""
        return (self.sides[LEFT].op_column is not None, self.sides[RIGHT].op_column is not None)

    # Watermarks

    def _end_batch(self, out: JoinCollector) -> None:
        for side in self.sides:
            if side.seen > side.newest:
                side.newest = side.seen
                if side.horizon > MIN:
                    self.matching.push_out(side.number, side.horizon, out)
        self.retention.enforce(out)
        self._advance(out)

    def _advance(self, out: JoinCollector) -> None:
        """Raise both sides to the watermarks that the tracker releases, and settle what is due."""
        self._rise(self.watermark_tracker.release())
        for side in self.sides:
            side.count_positions()
        self.progress.watermark = max(
            self.progress.watermark, min(side.watermark for side in self.sides)
        )
        self.progress.newest = max(side.newest for side in self.sides)
        self.matching.settle(out)
        for side in self.sides:
            side.forget_ids()

    def _rise(self, step: ReleasedMarks) -> None:
        """Raise each side to its input's watermark, and both to the one of all inputs together."""
        for side, mark in step.by_group if any(self.spec.also) else step.by_input:
            if isinstance(mark, Watermark):
                self.sides[side].rise(mark.key, mark.value)
        for mark in step.coalesced:
            if isinstance(mark, Watermark):
                for own in self.sides:
                    own.rise(mark.key, mark.value)

    # What can be asked

    @property
    def ticks(self) -> bool:
        """Whether times are plain numbers."""
        return all(side.ticks for side in self.sides)

    @property
    def key(self) -> int:
        """The watermark key of the left side's time."""
        return self.spec.left.watermark_key

    @property
    def schemas(self) -> tuple[pa.Schema | None, pa.Schema | None]:
        """The schemas that the inputs are cast to, as far as they are known."""
        return self.sides[LEFT].schema, self.sides[RIGHT].schema

    def expected(self, ordinal: int = 0) -> pa.Schema | None:
        """The schema that an input is cast to, as far as it is known."""
        return self.sides[self.spec.side_of(ordinal)].expected(ordinal)

    @property
    def is_bound(self) -> bool:
        """Whether the schemas of both inputs are known."""
        return None not in self.schemas

    @property
    def is_typed(self) -> bool:
        """Whether all columns of the output are known."""
        return self.is_bound or (not self.spec.shows_pairs and self.sides[LEFT].schema is not None)

    def columns_to_come(self, names: Sequence[str]) -> list[str]:
        """Which of these columns the output may still get from inputs without a row so far.

        A column with a prefix is none of them: it has another name until then.
        """
        shown = self.sides if self.spec.shows_pairs else self.sides[:RIGHT]
        if not any(side.lacks_columns for side in shown):
            return []
        return [name for name in names if not name.startswith(self.spec.names)]

    def renderer(self) -> JoinRenderer:
        """What turns the output of a call into results."""
        return JoinRenderer(self.spec, self.ticks, self.schemas, tuple(self.emitter.columns))

    @property
    def output_watermarks(self) -> dict[str, int]:
        """By time column of the output, the least time that rows still to come can have."""
        found: dict[str, int] = {}
        promises = [self.matching.promised(side) for side in (LEFT, RIGHT)]
        for column in self.emitter.columns:
            mine = [
                promises[side].get(name)
                for side, name in enumerate((column.left, column.right))
                if name is not None
            ]
            known = [promise for promise in mine if promise is not None]
            if known:
                found[column.name] = min(known)
        return found

    @property
    def output_watermark(self) -> int:
        """The least of the output watermarks."""
        promises = [
            promise for side in (LEFT, RIGHT) for promise in self.matching.promised(side).values()
        ]
        return min(promises, default=MIN)

    @property
    def is_idle(self) -> bool:
        """Whether this operator holds no watermark back: its inputs are idle and no row waits."""
        return (
            self.watermark_tracker.is_idle(self.key)
            and self.emitter.waiting == 0
            and self.emitter.unnamed == 0
            and self.waits_for == MAX
            and not self.matching.owes_rows()
        )

    @property
    def next_due(self) -> int | None:
        """The next instant at which `advance_clock` may put out rows or find a source idle.

        None if the clock changes nothing.
        """
        due = min(self.emitter.next_due, self.watermark_tracker.next_due)
        waits = self.waits_for
        if waits != MAX:
            due = min(due, self.watermark_tracker.clock_at(waits, self.key))
        return None if due == MAX else max(due, self.progress.now + 1)

    @property
    def waits_for(self) -> int:
        """The least watermark at which a row comes out; `MAX` if none waits for a watermark."""
        return self.matching.waits_for()

    @property
    def nbytes(self) -> int:
        """Decoded size of the rows of both sides, ids and held output."""
        return sum(side.nbytes for side in self.sides) + self.emitter.nbytes + self.matching.nbytes

    def resume_offsets(self) -> ResumeOffsets:
        """By side and partition, the first offset to deliver after a restart."""
        return ResumeOffsets(
            {
                "/".join(filter(None, (SIDES[side.number], name))): offset
                for side in self.sides
                for name, offset in side.ingest.marks.resume().items()
            }
        )


def _shape(spec: JoinSpec) -> type[JoinMatching]:
    """The shape of a join, by its window."""
    match spec.window:
        case Rows():
            return RowsJoin
        case AsOf():
            return AsOfJoin
        case Session():
            return SessionJoin
    return RangeJoin


def _check_types(spec: JoinSpec, schemas: Sequence[pa.Schema | None]) -> None:
    """Equal fields must be comparable."""
    left, right = schemas
    if left is None or right is None:
        return
    for a, b in spec.on:
        one, two = left.field(a).type, right.field(b).type
        texts = (pa.string(), pa.large_string())
        if (
            one == two
            or pa.types.is_null(one)
            or pa.types.is_null(two)
            or (one in texts and two in texts)
        ):
            continue
        whole = pa.types.is_integer(one) and pa.types.is_integer(two)
        if not whole or (
            pa.uint64() in (one, two)
            and not (pa.types.is_unsigned_integer(one) and pa.types.is_unsigned_integer(two))
        ):
            raise InputError(
                f"`{a}` is {one} on the left and `{b}` is {two} on the right, which are never"
                " equal. Hint: cast one of them"
            )
