"""A side of a join: its ingest, its watermarks and the buffer of its rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.errors import InputError
from tidegate.instants import MAX, MIN, saturating_add
from tidegate.kernel.accumulations.lists import build
from tidegate.kernel.events.event_time import (
    FUTURE,
    MILDLY_LATE,
    OK,
    VERY_LATE,
    classify,
    read_times,
)
from tidegate.kernel.frame import Column, Frame, is_untyped, repeat, to_arrow
from tidegate.kernel.joins.join_buffer import JoinBuffer
from tidegate.kernel.joins.range_matching import Ordered, ordered
from tidegate.kernel.joins.tuple_positions import POSITION_MARK, TuplePositions
from tidegate.kernel.keys import KeyHasher
from tidegate.kernel.storage.layout import Layout, choose_layout
from tidegate.operators.ingest.delivery import Arrival, Delivery, DeliveryReader
from tidegate.operators.ingest.ingest import Ingest, IngestHooks, Windows, observed_columns
from tidegate.operators.ingest.schema_cast import bindable, widened
from tidegate.operators.ingest.watermark_tracking import WatermarkTracker
from tidegate.operators.join.collector import JoinCollector
from tidegate.operators.join.output import NULL_KEY, PAYLOAD
from tidegate.operators.output import LateRows, class_names, texts
from tidegate.operators.progress import Progress
from tidegate.spec.aggregates import INPUT
from tidegate.spec.join import LEFT, SIDES, AsOf, JoinSpec, Rows
from tidegate.spec.operator import DEFAULT_LATENESS, ROLES
from tidegate.spec.windows import Global, Session
from tidegate.state.store import PrefixedStore, Store

_TAKEN = np.uint64(1 << 63)
"""Flipped in the hash of a key that happens to be the null key."""
SESSION_KEY = ("session_hash", "session_check")
"""The identity of a session key that has fewer fields than the equal fields."""


@dataclass(frozen=True, eq=False)
class Taken:
    """Rows that a side accepted: the columns of the buffer, in the order of arrival."""

    frame: Frame
    late: np.ndarray
    """Whether each row was behind the watermark when it came."""
    classes: np.ndarray
    """The lateness class of each row."""
    weight: np.ndarray | None = None
    """-1 for a retraction; None if there are none."""
    null_key: np.ndarray | None = None
    """Whether each row has a null among its equal fields; None if none has."""

    def __len__(self) -> int:
        return len(self.frame)

    @cached_property
    def by(self) -> Ordered:
        """The order by equal-field hash and position."""
        return ordered(self.frame.ints("equal_hash"), self.frame.ints("position"))

    def take(self, index: np.ndarray) -> Taken:
        weight, null_key = (
            None if column is None else column[index] for column in (self.weight, self.null_key)
        )
        return Taken(
            self.frame.take(index), self.late[index], self.classes[index], weight, null_key
        )


@dataclass(eq=False)
class Side:
    """One of the two inputs of a join."""

    number: int
    spec: JoinSpec
    store: Store
    hasher: KeyHasher
    """The identities of equal fields, of session keys and of ids; the same for both sides."""
    shared: Progress
    """The operator's progress: its clock, and what it counts."""
    watermark_tracker: WatermarkTracker
    columns: Mapping[str, str]
    """By time column of the input, the name that it has in the buffer."""
    marks_of_rows: Mapping[str, Any]
    op_column: str | None = None
    last_instant: Callable[[np.ndarray], np.ndarray] | None = None
    """The last instant of the last window of rows, where that decides whether they are too late,
    and not their own time.
    """
    newest: int = MIN
    """The newest row that is not from the future, at the end of the last micro-batch."""
    seen: int = MIN
    """The same with what the present micro-batch has shown."""
    pushed: int = MIN
    """Rows that are older were pushed out by retention."""

    def __post_init__(self) -> None:
        self.given = self.spec.side(self.number)
        self.ordinals = tuple(
            n for n in range(len(self.spec.inputs)) if self.spec.side_of(n) == self.number
        )
        self.has_partitions = self.given.partition is not None or len(self.ordinals) > 1
        self.fed = set(self.ordinals if self.op_column is not None else ())
        """The inputs whose rows may be retractions."""
        self.store = PrefixedStore(self.store, f"{SIDES[self.number]}/")
        self.progress = Progress(now=self.shared.now, counters=self.shared.counters)
        self.ingest = Ingest(self.spec.inputs_of(self.number), self.store, self.progress)
        self.schema: pa.Schema | None = None
        self.brought: set[int] = set()
        """The inputs whose columns have come since the start."""
        self.keys = {time.column: time.key for time in self.given.times if time.column is not None}
        self.marks: dict[str, int] = dict.fromkeys(self.keys, MIN)
        """The watermarks of the time columns, and of positions if rows are matched by offset."""
        self.is_timed = self.spec.is_timed(self.number)
        window = self.spec.window
        self.has_lanes = isinstance(window, Rows)
        self.is_judged = self.is_timed or (isinstance(window, Rows) and window.compares_times)
        """Whether times decide which rows are too late."""
        self.positions = TuplePositions()
        has_time = not self.is_timed and self.given.time is not None
        if not self.is_timed:
            self.marks[POSITION_MARK] = MIN
        self.buffer = JoinBuffer(
            self.store,
            "rows",
            self.marks_of_rows,
            tuple(self.columns.values())
            or (
                "position",
                *(["time"] if has_time else []),
                *(["lane", "came"] if self.has_lanes else []),
            ),
            (layout_of(self.spec, is_large=False), layout_of(self.spec, is_large=True)),
        )

    # The schema

    @property
    def lacks_columns(self) -> bool:
        """Whether another of its inputs may still bring columns."""
        return len(self.ordinals) > 1 and not self.brought.issuperset(self.ordinals)

    def reader(self, ordinal: int) -> DeliveryReader:
        """Reads rows of an input, which have the column names of the side.

        Equal fields are the key; tuples are not judged by their times.
        """
        names = {role: getattr(self.given, role) for role in ROLES}
        several, labels = len(self.ordinals) > 1, self.spec.merged[self.number]
        return DeliveryReader(
            dataclasses.replace(
                self.spec.inputs[ordinal], key=self.spec.fields(self.number), **names
            ),
            self.op_column if ordinal in self.fed else None,
            prefix=f"{ordinal}/" if several else "",
            label=labels[self.ordinals.index(ordinal)] if labels else None,
            reads_time=self.is_judged,
            hasher=self.hasher,
        )

    def admitted(self, table: pa.Table, ordinal: int) -> pa.Table:
        """Rows of an input with the column names of the side, and of a merge with its name."""
        renamed = renamed_roles(self.spec, ordinal)
        taken = [name for name in renamed.values() if name in table.column_names]
        if taken:
            raise InputError(
                f"the column `{taken[0]}` of input {ordinal} is in the way: a side of a join has"
                f" the column names of its first input, where `{taken[0]}` has another role. Hint:"
                " rename it"
            )
        if renamed:
            table = table.rename_columns([renamed.get(name, name) for name in table.column_names])
        return self.reader(ordinal).labelled(table)

    def expect(self, schema: pa.Schema, ordinal: int) -> pa.Schema:
        """The columns of the side, by those of an input; raises `InputError` if one is missing."""
        found = self.admitted(schema.empty_table(), ordinal).schema
        self.reader(ordinal).check(found)
        self.brought.add(ordinal)
        return found

    def expected(self, ordinal: int) -> pa.Schema | None:
        """The known columns of the side under the names that an input has for them."""
        if self.schema is None or len(self.ordinals) == 1:
            return self.schema
        names = {other: name for name, other in renamed_roles(self.spec, ordinal).items()}
        label = self.reader(ordinal).label
        return pa.schema(
            [
                field.with_name(names.get(field.name, field.name))
                for field in self.schema
                if label is None or field.name != INPUT
            ]
        )

    def bind(self, schema: pa.Schema) -> bool:
        """Take a schema in; whether anything about the columns is new."""
        missing = [name for name in self.columns if name not in schema.names]
        if missing:
            raise InputError(
                f"the {SIDES[self.number]} input has no column `{missing[0]}`; it has"
                f" {', '.join(schema.names)}"
            )
        for name in self.columns:
            # A column that can say no time is refused here, before anything depends on it.
            read_times(schema.empty_table().column(name), name)
        wider = widened(self.schema, bindable(schema))
        if self.schema is not None and wider.equals(self.schema):
            return False
        former, self.schema = self.schema, wider
        if former is not None:
            self.buffer.transform(lambda frame: self._widened(frame, wider))
        return True

    def _widened(self, frame: Frame, schema: pa.Schema) -> Frame:
        """Stored rows with the columns and types that are known by now."""
        columns: dict[str, Column] = {}
        for field_ in schema:
            if field_.name == self.op_column:
                continue
            name = PAYLOAD + field_.name
            held = frame.columns.get(name)
            if held is None:
                columns[name] = repeat(None, len(frame), field_.type)
            elif not isinstance(held, np.ndarray) and is_untyped(held.type):
                columns[name] = held.cast(field_.type)
        return frame.with_mapping(columns)

    @property
    def ticks(self) -> bool:
        """Whether times are plain numbers, as far as is known."""
        return (
            self.schema is None
            or self.given.time is None
            or DeliveryReader(self.given).ticks(self.schema)
        )

    # Taking rows in

    def read(self, arrival: Arrival, out: JoinCollector, *, looks: bool) -> Delivery:
        """The rows of a delivery that are new and can be read, in their order; the others are gone
        or in `late`.
        """
        reader = self.reader(arrival.ordinal)
        table = self.admitted(arrival.table, arrival.ordinal)
        reader.check(table.schema)
        self.brought.add(arrival.ordinal)
        self.progress.now = self.shared.now
        fresh_schema, former = self.schema is None, self.schema
        self.bind(table.schema)
        try:
            return self._read(Arrival(arrival.ordinal, table), reader, out, looks=looks)
        except Exception:
            # A first delivery that is refused must not decide what the next ones have to look like.
            self.schema = None if fresh_schema else former
            raise

    def _read(
        self, arrival: Arrival, reader: DeliveryReader, out: JoinCollector, *, looks: bool
    ) -> Delivery:
        assert self.schema is not None  # noqa: S101 - it was bound just before

        def observe(new: Delivery) -> None:
            if looks:
                tracker = self.watermark_tracker
                seen = observed_columns(new, reader, tracker, self.keys)
                tracker.observe_columns(arrival.ordinal, seen)

        hooks = IngestHooks(self.late_output(out), observe, self._id_expiry)
        return self.ingest.take(arrival.table, reader, self.schema, hooks).events

    def look_at(self, seen: Arrival) -> None:
        """Observe rows that another shard processes, for the watermarks."""
        time = self.spec.inputs[seen.ordinal].time
        if time is None:
            return
        self.watermark_tracker.observe_table(seen.ordinal, seen.table)
        times, verdict = read_times(seen.table.column(time), time)
        self._saw(times[verdict == OK])

    def _saw(self, times: np.ndarray) -> None:
        options = self.spec.options
        kinds = classify(
            times,
            self.marks[self.given.time or ""],
            0,
            self.shared.now,
            options.future_tolerance,
            options.future_reference,
        )
        known = times[kinds != FUTURE]
        if len(known):
            self.seen = max(self.seen, int(known.max()))

    def _id_expiry(self, delivery: Delivery) -> np.ndarray:
        """The time at which the id of each row expires; rows of an untimed join are never late, so
        their ids expire by the clock.
        """
        if not self.is_timed:
            return np.full(len(delivery), self.shared.now)
        time = (
            delivery.time
            if self.last_instant is None
            else np.maximum(delivery.time, self.last_instant(delivery.time))
        )
        return np.maximum(
            np.where(delivery.verdict == OK, time, MIN), self.marks[self.given.time or ""]
        )

    def judged(
        self, delivery: Delivery, out: JoinCollector
    ) -> tuple[Delivery, dict[str, np.ndarray]]:
        """The rows that are neither too late nor refused, with their times under the names of the
        buffer.
        """
        if not self.is_judged:
            self.shared.counters["on_time"] += len(delivery)
            return delivery, self._counted(delivery)
        delivery, times = self._timed(delivery, out)
        options, lateness = self.spec.options, self.spec.lateness
        kinds = []
        for name in times:
            found = classify(
                times[name],
                self.marks[name],
                lateness,
                self.shared.now,
                options.future_tolerance,
                options.future_reference,
            )
            if self.last_instant is not None:
                # A row is too late when its last window is.
                open_still = self.last_instant(times[name]) >= taken_from(
                    self.marks[name], lateness
                )
                found[(found == VERY_LATE) & open_still] = MILDLY_LATE
            kinds.append(found)
        self._saw(times[self.given.time or ""])
        classes = _worst(kinds, rejects=options.future == "reject")
        held = Frame.of(times, len(delivery))
        event = dataclasses.replace(options, drop_by="event")
        kept = (classes < VERY_LATE) | ((classes == FUTURE) & (options.future == "process"))
        delivery = self.ingest.drop_late(delivery, classes, event, self.late_output(out))
        if not self.is_timed:
            return delivery, self._counted(delivery)
        held = held.where(kept)
        return self._retained(
            delivery, {self.columns[name]: held.ints(name) for name in times}, out
        )

    def _counted(self, delivery: Delivery) -> dict[str, np.ndarray]:
        """The positions of rows on the offset axis, and their times, for the output watermark."""
        partition, names, offset = delivery.partition, delivery.partitions, delivery.offset
        if self.given.offset is None:
            # Rows without offsets are one sequence, in the order of arrival.
            partition, names, offset = np.zeros(len(delivery), np.int64), [""], delivery.seq
        found = {"position": self.positions.of(partition, names, offset)}
        if self.has_lanes:
            found["lane"] = self.positions.lanes(partition, names)
        if self.given.time is not None:
            times, verdict = read_times(delivery.table.column(self.given.time), self.given.time)
            found["time"] = np.where(verdict == OK, times, MAX)
        return found

    def _timed(
        self, delivery: Delivery, out: JoinCollector
    ) -> tuple[Delivery, dict[str, np.ndarray]]:
        """The rows all of whose times can be read, and these."""
        times = {self.given.time or "": delivery.time}
        bad = np.zeros(len(delivery), bool)
        for name in self.columns:
            if name not in times:
                times[name], verdict = read_times(delivery.table.column(name), name)
                bad |= verdict != OK
        if not bad.any():
            return delivery, times
        rows = np.flatnonzero(bad)
        self.late_output(out).late_rows(delivery, rows, "null_time", texts(None, len(rows)))
        self.shared.counters["unreadable"] += len(rows)
        return delivery.where(~bad), {name: column[~bad] for name, column in times.items()}

    def _retained(
        self, delivery: Delivery, times: dict[str, np.ndarray], out: JoinCollector
    ) -> tuple[Delivery, dict[str, np.ndarray]]:
        """The rows that are not older than retention."""
        horizon = max(self.pushed, self.horizon)
        gone = times[self.columns[self.given.time or ""]] < horizon
        if not gone.any():
            return delivery, times
        rows = np.flatnonzero(gone)
        self.late_output(out).late_rows(
            delivery, rows, "out_of_retention", class_names(delivery.verdict[rows])
        )
        return delivery.where(~gone), {name: column[~gone] for name, column in times.items()}

    @property
    def horizon(self) -> int:
        """The time below which retention keeps nothing."""
        span = self.spec.retention.time
        return (
            MIN if span is None or self.newest == MIN else int(saturating_add(self.newest, -span))
        )

    def taken(self, delivery: Delivery, times: Mapping[str, np.ndarray]) -> Taken:
        """The rows with the columns of the buffer."""
        n, table = len(delivery), delivery.table
        late = delivery.verdict == MILDLY_LATE if self.is_judged else np.zeros(n, bool)
        missing = self._nulls(table, self.spec.on)
        columns: dict[str, Column] = {
            **self._key_columns(delivery, missing),
            **times,
            "seq": delivery.seq,
            "late": late.astype(np.int8),
        }
        columns.update(
            {
                PAYLOAD + name: to_arrow(table.column(name))
                for name in table.column_names
                if name != self.op_column
            }
        )
        weight = delivery.weight
        classes = delivery.verdict if self.is_judged else np.zeros(n, np.int8)
        return Taken(
            Frame.of(columns, n),
            late,
            classes,
            None if weight is None or (weight > 0).all() else weight,
            missing,
        )

    def _key_columns(self, delivery: Delivery, missing: np.ndarray | None) -> dict[str, np.ndarray]:
        """The identities of the equal fields and of a narrower session key.

        `equal_hash` is the hash of the fields that rows are sorted by. A row whose `missing` says
        that a field is null never matches: the hash of its null fields is that of its side.
        """
        spec, table, n = self.spec, delivery.table, len(delivery)
        key_hash, key_check = delivery.key_hash, delivery.key_check
        equal_hash = key_hash
        if spec.hashed_on != spec.on:
            equal_hash, _ = self.hasher.identify(self._columns_of(table, spec.hashed_on), n)
        unlucky = (equal_hash == NULL_KEY[0]) | (equal_hash == NULL_KEY[1])
        if unlucky.any():
            equal_hash, key_check = (
                np.where(unlucky, equal_hash ^ _TAKEN, equal_hash),
                np.where(unlucky, key_check ^ _TAKEN, key_check),
            )
        found: dict[str, np.ndarray] = {}
        no_session = missing
        if spec.session_on != spec.on:
            found = dict(
                zip(
                    SESSION_KEY,
                    self.hasher.identify(self._columns_of(table, spec.session_on), n),
                    strict=True,
                )
            )
            no_session = self._nulls(table, spec.session_on)
        if no_session is not None:
            equal_hash = np.where(no_session, NULL_KEY[self.number], equal_hash)
        if missing is not None:
            # The second word still tells keys apart that are null in part only.
            key_check = np.where(missing, key_hash, key_check)
        if spec.hashed_on != spec.on:
            found["key_hash"] = (
                key_hash if missing is None else np.where(missing, NULL_KEY[self.number], key_hash)
            )
        return {"equal_hash": equal_hash, "key_check": key_check, **found}

    def _columns_of(self, table: pa.Table, on: Sequence[tuple[str, str]]) -> list[pa.ChunkedArray]:
        return [table.column(pair[self.number]) for pair in on]

    def _nulls(self, table: pa.Table, on: Sequence[tuple[str, str]]) -> np.ndarray | None:
        """Which rows have a null among these equal fields; None if none has."""
        found: np.ndarray | None = None
        for column in self._columns_of(table, on):
            if column.null_count:
                mask = column.is_null().to_numpy()
                found = mask if found is None else found | mask
        return found

    def late_output(self, out: JoinCollector) -> SideLateOutput:
        """What sends rows of this side to the late output of a call."""
        return SideLateOutput(self, out)

    # Watermarks

    @property
    def watermark(self) -> int:
        return self.marks.get(self.given.time or "", MIN)

    @property
    def position_mark(self) -> int:
        """The watermark of positions: of the main time column, or of offsets."""
        return self.watermark if self.is_timed else self.marks[POSITION_MARK]

    @property
    def closed_mark(self) -> int:
        """The position below which rows are too late to be taken; offsets are never late."""
        mark = self.position_mark
        return taken_from(mark, self.spec.lateness) if self.is_timed else mark

    def count_positions(self) -> None:
        """Raise the watermark of offsets to what has arrived, at the end of a micro-batch."""
        if not self.is_timed and self.given.offset is not None:
            ended = all(self.watermark_tracker.has_ended(n) for n in self.ordinals)
            mark = MAX if ended else self.positions.mark(self.ingest.marks.marks)
            self.marks[POSITION_MARK] = max(self.marks[POSITION_MARK], mark)

    def rise(self, key: int, value: int) -> None:
        for name, number in self.keys.items():
            if number == key:
                self.marks[name] = max(self.marks[name], value)

    def horizons(self) -> dict[str, int]:
        """By time column, the time below which rows are too late to be taken."""
        late = self.spec.lateness
        return {
            name: mark if name == POSITION_MARK else taken_from(mark, late)
            for name, mark in self.marks.items()
        }

    def forget_ids(self) -> None:
        """Forget ids whose duplicates would be too late.

        Where retention alone decides what is too late, those are the ids of rows that are older
        than all that it keeps.
        """
        if self.given.id is None:
            return
        allowed = self.spec.allowed_lateness
        if not self.is_timed:
            span = DEFAULT_LATENESS if allowed is None else allowed
            bound = int(saturating_add(self.shared.now, -span))
        elif self.spec.retention and self.spec.lateness == MAX and self.watermark != MAX:
            oldest = self.buffer.least(self.columns[self.given.time or ""], MAX)
            bound = min(oldest, self.watermark)
        else:
            bound = taken_from(self.watermark, self.spec.lateness)
        if bound != MIN:
            self.ingest.ids.forget(bound)

    # Snapshots

    def save(self) -> dict[str, Any]:
        return {
            "marks": self.ingest.marks.marks,
            "ids": self.ingest.ids.save(),
            "seq": self.progress.seq,
            "watermarks": self.marks,
            "newest": self.newest,
            "pushed": self.pushed,
            "positions": self.positions.save(),
            "fed": sorted(self.fed),
            "buffer": self.buffer.save(),
        }

    def restore(self, document: Mapping[str, Any], schema: pa.Schema | None) -> None:
        self.schema = schema
        self.ingest.marks.marks = dict(document["marks"])
        self.ingest.ids.restore(document["ids"])
        self.progress.seq = document["seq"]
        self.marks = dict(document["watermarks"])
        self.newest = self.seen = document["newest"]
        self.pushed = document["pushed"]
        self.positions.restore(document["positions"])
        self.fed = set(document["fed"])
        self.buffer.restore(document["buffer"])

    @property
    def nbytes(self) -> int:
        return self.buffer.nbytes + self.ingest.ids.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class SideLateOutput:
    """Sends rows of a side to the late output of one call."""

    side: Side
    out: JoinCollector

    def late_rows(
        self,
        delivery: Delivery,
        index: np.ndarray,
        reason: str,
        lateness: pa.Array,
        windows: Windows | None = None,  # noqa: ARG002 - rows of a join miss partners, not windows
        detail: str | pa.Array = "",
    ) -> None:
        """Send rows of a delivery to `late`."""
        table = delivery.table.take(pa.array(index))
        self.late_table(
            table,
            reason,
            lateness,
            texts(detail, len(index)) if isinstance(detail, str) else detail,
        )

    def late_table(
        self, table: pa.Table, reason: str, lateness: pa.Array, detail: pa.Array | None = None
    ) -> None:
        """Send rows to `late`."""
        n, side = len(lateness), self.side
        if not n:
            return
        side.shared.counters["late_rows"] += n
        side.shared.counters[f"reason.{reason}"] += n
        nothing = build(pa.array(np.zeros(0, np.int64)), np.zeros(0, np.int64), n)
        self.out.late(
            LateRows(
                table,
                Frame({}, n),
                lateness,
                reason,
                texts("", n) if detail is None else detail,
                nothing,
                nothing,
                side.marks.get(side.given.time or "", MIN),
                side.shared.now,
                side.number,
            )
        )


def renamed_roles(spec: JoinSpec, ordinal: int) -> dict[str, str]:
    """The time, id, offset and partition columns of an input that its side names otherwise."""
    given, main = spec.inputs[ordinal], spec.side(spec.side_of(ordinal))
    pairs = [(getattr(given, role), getattr(main, role)) for role in ROLES]
    return {name: other for name, other in pairs if name != other}


def layout_of(spec: JoinSpec, *, is_large: bool) -> Layout:
    """The order in which the messages of a side are stored."""
    is_unbounded = isinstance(spec.window, Global) or (
        bool(spec.bounds) and all(bound.low is None or bound.high is None for bound in spec.bounds)
    )
    return choose_layout(
        axis="time" if spec.is_timed(LEFT) else "tuple",
        operation="join",
        equal_fields=bool(spec.on),
        time_range=not isinstance(spec.window, AsOf) and not is_unbounded,
        large=is_large or spec.layout is not None,
        session_key=isinstance(spec.window, Session),
    )


def taken_from(mark: int, lateness: int) -> int:
    """The earliest time of rows that are not too late under a watermark."""
    if mark in (MIN, MAX):
        return mark
    return MIN if lateness == MAX else int(saturating_add(mark, -lateness))


def _worst(kinds: Sequence[np.ndarray], *, rejects: bool) -> np.ndarray:
    """The class of rows with several times: the worst of the classes of each."""
    if len(kinds) == 1:
        return kinds[0]
    found = np.zeros(len(kinds[0]), np.int8)
    for kind in (FUTURE, MILDLY_LATE, FUTURE if rejects else MILDLY_LATE, VERY_LATE):
        for classes in kinds:
            found[classes == kind] = kind
    return found
