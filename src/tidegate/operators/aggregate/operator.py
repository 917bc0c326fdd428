"""The windowed aggregate: deliveries, watermarks and the clock in, panes and late rows out.

Contract: the output of every verb is a function of the state, the rows in (partition, offset) order
and the clock that is passed in. Nothing here reads a wall clock, draws a random number or depends
on the order of a set. Watermarks move at the end of a micro-batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.errors import InputError, StateError, WatermarkError
from tidegate.instants import MAX, MIN, saturating_add
from tidegate.kernel.events.duplicates import ResumeOffsets, partitions_of
from tidegate.kernel.events.event_time import FUTURE, OK, VERY_LATE, classify, read_times
from tidegate.kernel.frame import Frame
from tidegate.kernel.keys import KeyHasher
from tidegate.kernel.triggers import compile_trigger
from tidegate.kernel.watermarks.generators import columns_of
from tidegate.kernel.watermarks.per_key import KeyProgress
from tidegate.kernel.windows.evictors import check_evictor
from tidegate.operators.aggregate.cell_watermarks import CellWatermarks
from tidegate.operators.aggregate.collector import Collector
from tidegate.operators.aggregate.message_recovery import MessageRecovery
from tidegate.operators.aggregate.pre_aggregation import NEWEST
from tidegate.operators.aggregate.rendering import PaneRenderer
from tidegate.operators.aggregate.window_offsets import WindowOffsets
from tidegate.operators.aggregate.wiring import Wiring
from tidegate.operators.ingest.delivery import (
    Arrival,
    Delivery,
    DeliveryReader,
    as_frame,
    merged_arrivals,
)
from tidegate.operators.ingest.ingest import Ingest, IngestHooks, observed_columns
from tidegate.operators.ingest.merge_inputs import MergedInputs
from tidegate.operators.ingest.micro_batch import MicroBatch
from tidegate.operators.ingest.schema_cast import bindable, widened
from tidegate.operators.ingest.watermark_tracking import WatermarkTracker
from tidegate.operators.key_secret import key_hasher
from tidegate.operators.output import Output
from tidegate.operators.progress import Progress
from tidegate.spec.composition import Exchange, composed
from tidegate.spec.operator import DEFAULT_LATENESS, AggregateSpec, input_of
from tidegate.spec.triggers import Never
from tidegate.spec.watermarks import PerKey
from tidegate.spec.windows import Axis, Custom, Inherited
from tidegate.state.store import Store


class WindowedAggregate:
    """One windowed aggregate over one input, or over several that are united."""

    def __init__(
        self, spec: AggregateSpec, store: Store, *, now: int = 0, hasher: KeyHasher | None = None
    ) -> None:
        """Create an operator; `hasher`: of its keys, if the store does not have one."""
        self.declared = spec
        """The specification of the user; `spec` may have the longer lateness of an upstream."""
        self.spec = spec
        self.store = store
        self.hasher = key_hasher(store, hasher)
        self.progress = Progress(now=now)
        # Windows use one time column, so the watermarks of the others end here.
        self.watermark_tracker = WatermarkTracker(
            [dataclasses.replace(given, others=()) for given in spec.inputs], spec.options, now=now
        )
        self.machine = compile_trigger(spec.firing)
        self._ingest = Ingest(spec.inputs, store, self.progress)
        self.marks, self.ids = self._ingest.marks, self._ingest.ids
        self.window_offsets = WindowOffsets(store) if spec.input.offset is not None else None
        self.wiring: Wiring | None = None
        self.recovery = MessageRecovery(store) if spec.input.offset is not None else None
        inherits = isinstance(spec.window, Inherited)
        # A pane of a window without end has no time, but it belongs to its window.
        self._reader = DeliveryReader(
            spec.input,
            "op" if inherits else None,
            MAX - 1 if inherits else None,
            hasher=self.hasher,
        )
        self.merging = MergedInputs(spec) if spec.names else None
        self.panes_from = set(range(len(spec.inputs))) if inherits else set[int]()
        """The inputs whose rows are output of operators."""
        self.upstreams: dict[int, Exchange] = {}
        """By input, what the operator that feeds it passes on."""
        mark = spec.input.watermark
        self.keys = (
            KeyProgress(store, mark.disorder, mark.max_keys) if isinstance(mark, PerKey) else None
        )
        self._renderer: PaneRenderer | None = None
        self.is_fed = False
        """Whether an upstream operator provides the watermark."""
        self._batch = MicroBatch()
        """The micro-batch that has not ended."""
        self._watched = spec.window.axis is Axis.EVENT_TIME
        self.watermarks = CellWatermarks(spec.window.axis, self.progress, self.keys)

    # Verbs

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
        combined: Sequence[Frame] = (),
        positions: Sequence[np.ndarray] = (),
        hold: bool = False,
    ) -> Output:
        """Take a micro-batch; the watermark moves once, at its end.

        All rows are classified by the watermark before the micro-batch. With `observed`, watermarks
        are generated from those rows instead of the arrivals, which may be a share of the input
        (see `condense`). `combined` holds on-time rows that `PreAggregator` has aggregated,
        `positions` those of the whole input, for static windows. With `hold`, the micro-batch
        continues in the next call and the watermark stays.
        """
        out = self._begin()
        self._tell_clock(now)
        for seen in merged_arrivals(observed or ()):
            self._look_at(seen)
        for found in positions:
            self._observe_positions(found)
        for arrival in merged_arrivals(arrivals):
            self._arrive(arrival, out, looks=observed is None)
        if combined:
            self._take_combined(combined, out)
        if hold:
            self._batch.hold()
        else:
            self._end_batch(out)
        return out.output.by_position()

    def refuse(
        self, table: pa.Table, now: int, reason: str, detail: str, ordinal: int = 0
    ) -> Output:
        """Send rows that cannot be delivered to `late`; they are no activity of a source."""
        out = self._begin()
        self._tell_clock(now)
        if table.num_rows:
            reader = self._reader_of(ordinal)
            table = self._admitted(table, reader, ordinal)
            self._bind_or_widen(table.schema)
            self._ingest.refuse(table, reader, self.bound().context.schema, out, reason, detail)
        return out.output.by_position()

    def change_sources(self, change: Callable[[WatermarkTracker], object]) -> Output:
        """Apply a change of the sources to the watermark tracker.

        On other axes than event time, progress is the clock, the offsets or the counts themselves.
        """
        out = self._begin()
        if self._watched:
            change(self.watermark_tracker)
            self._advance(out)
        return self._in_order(out)

    def forget_partition(self, name: str, ordinal: int = 0) -> None:  # noqa: ARG002 - as in a join
        """Forget the offset of a removed partition when its rows would be very late."""
        self.marks.leave(name, self.progress.newest)

    def advance_clock(self, now: int) -> Output:
        """Advance the clock; it never goes back."""
        out = self._begin()
        self._tell_clock(now)
        if self.spec.window.axis is Axis.CLOCK:
            self._move_watermark(self.progress.now, out)
            if self.wiring is not None:
                self.wiring.retention.enforce(out)
        elif self._watched:
            self._advance(out)
        if self.wiring is not None:
            due = self.wiring.context.cells.select("clock_due", self.progress.now)
            self.wiring.watermark_advance.settle(due, out)
        return self._in_order(out)

    def finish(self) -> Output:
        """End the input: everything fires, and no state is left."""
        out = self._begin()
        self._move_watermark(MAX, out, finishing=True)
        if self.keys is not None:
            self.keys.forget(MAX)
        if self.wiring is not None:
            self.wiring.ordinals.clear()
        return self._in_order(out)

    def _tell_clock(self, now: int) -> None:
        self.progress.now = max(self.progress.now, now)
        self.watermark_tracker.tick(self.progress.now)

    # Queries

    @property
    def ticks(self) -> bool:
        """Whether window bounds are plain numbers: counts, or times like those of the input.

        Windows on the clock have instants if the input has no time column.
        """
        axis, schema = self.spec.window.axis, self.schema
        if axis is Axis.CLOCK and all(given.time is None for given in self.spec.inputs):
            return False
        if not axis.is_time or schema is None:
            return True
        # Not every input of a merge has a schema yet.
        spoken = [given for given in self.spec.inputs if given.time in schema.names]
        return all(DeliveryReader(given).ticks(schema) for given in spoken[:1])

    @property
    def key(self) -> int:
        """The watermark key of the time that windows are made on."""
        return self.spec.input.watermark_key

    @property
    def schema(self) -> pa.Schema | None:
        """The schema that the input is brought to, once it is known."""
        return None if self.wiring is None else self.wiring.context.schema

    @cached_property
    def declared_document(self) -> dict[str, Any]:
        """The specification of the user as a document, which every snapshot holds."""
        return self.declared.to_dict()

    @property
    def is_bound(self) -> bool:
        """Whether the schema of the input is known."""
        return self.wiring is not None

    def renderer(self) -> PaneRenderer:
        """What turns the output of a call into results; the same while no type changes."""
        wiring = self.wiring
        schema, types = (
            (None, {})
            if wiring is None
            else (wiring.context.schema, wiring.context.aggregates.shown_types)
        )
        made = PaneRenderer(self.spec, ticks=self.ticks, schema=schema, result_types=types)
        if self._renderer != made:
            self._renderer = made
        return self._renderer

    @property
    def is_typed(self) -> bool:
        """Whether the types of all columns are known."""
        return self.wiring is not None and not any(
            pa.types.is_null(field.type) for field in self.wiring.context.schema
        )

    @property
    def hold(self) -> int | None:
        """The earliest output time of the panes that are pending; None without one."""
        return self._owed()

    @property
    def output_watermark(self) -> int:
        """The watermark for the downstream: at most the output time of a pending pane."""
        owed = self._owed()
        return self.progress.watermark if owed is None else min(self.progress.watermark, owed)

    @property
    def is_idle(self) -> bool:
        """Whether all inputs are idle or done, and no pane is pending or repeated at completion."""
        return (
            self._watched
            and self.watermark_tracker.is_idle(self.key)
            and self._owed() is None
            and not (self.wiring is not None and self.wiring.firing.awaits_completion())
        )

    @property
    def next_due(self) -> int | None:
        """The next instant at which `advance_clock` may emit panes or find a source idle.

        This holds if no row arrives before. A watermark that follows the clock moves in between,
        but nothing is due then. None where the clock changes nothing.
        """
        due, waits = MAX, self.waits_for
        if self.wiring is not None:
            due = self.wiring.context.cells.least("clock_due", MAX)
        if self.spec.window.axis is Axis.CLOCK:
            due = min(due, waits)
        elif self._watched:
            due = min(
                due,
                self.watermark_tracker.next_due,
                MAX if waits == MAX else self.watermark_tracker.clock_at(waits, self.key),
            )
        return None if due == MAX else max(due, self.progress.now + 1)

    @property
    def waits_for(self) -> int:
        """The least watermark at which something happens; `MAX` where nothing waits for one."""
        if self.wiring is None:
            return MAX
        wiring = self.wiring
        opened = MAX if wiring.slice_buffer is None else wiring.slice_buffer.next_end()
        return min(
            wiring.context.cells.least("watermark_due", MAX),
            opened,
            MAX if wiring.static_windows is None else wiring.static_windows.next_end(),
        )

    # Deliveries

    def _bind_or_widen(self, schema: pa.Schema) -> None:
        """Bind to the first schema, and widen the schema later.

        A column of nulls takes the first type that arrives, and new columns are added.
        """
        if self.wiring is None:
            self.bind(schema)
            return
        known, new = self.wiring.context.schema, bindable(schema)
        # Another input of a union may have columns of its own for its time, offset or partition.
        wider = widened(
            known, new, grows=self.wiring.context.messages is None or bool(self.spec.also)
        )
        if not wider.equals(known):
            self._check(wider)
            self.wiring.widen(wider)

    def _check(self, schema: pa.Schema) -> None:
        """Refuse columns that cannot hold times or distances before anything depends on them."""
        for time in {given.time: None for given in self.spec.inputs if given.time in schema.names}:
            read_times(schema.empty_table().column(time), time)
        check_evictor(self.spec.evictor, schema)

    def bind(self, schema: pa.Schema, *, keeps_messages: bool = False) -> None:
        """Fix the schema of the input, and bind the aggregates to its types.

        State that was begun with messages goes on with them (`keeps_messages`), also where the
        types that have come since would not require them.
        """
        self._check(schema)
        schema = schema if self.merging is None else self.merging.whole(schema)
        # Watermark columns of other inputs get their type with their first delivery.
        named = [
            name
            for given in self.spec.inputs
            for name in columns_of(given.watermark)
            if name not in schema.names
        ]
        schema = pa.schema(
            [*bindable(schema), *(pa.field(name, pa.null()) for name in dict.fromkeys(named))]
        )
        self.wiring = Wiring.made(
            self.spec,
            self.store,
            self.machine,
            schema,
            self.watermarks,
            self.ids,
            self.window_offsets,
            self.recovery,
            self.hasher,
            retracts=self.takes_retractions,
            keeps_messages=keeps_messages,
        )

    def expect(self, schema: pa.Schema, ordinal: int = 0) -> None:
        """Take the columns of an input before its first rows."""
        reader = self._reader_of(ordinal)
        reader.check(schema)
        table = self._admitted(schema.empty_table(), reader, ordinal)
        self._bind_or_widen(table.schema)
        if self.merging is not None:
            self.merging.note(ordinal, schema)

    def follow(self, upstream: Exchange | None, ordinal: int | None = None) -> None:
        """Take the watermark of an input, or of all, from an upstream.

        An upstream operator adds its retractions, and how late they may come. Raises `SpecError`
        where the chain has no answer.
        """
        self.is_fed = True
        self.watermark_tracker.follow(ordinal)
        if upstream is None:
            return
        fed = range(len(self.spec.inputs)) if ordinal is None else [ordinal]
        self.upstreams.update(dict.fromkeys(fed, upstream))
        lateness = self.exchange.lateness
        retracts = any(given.changes for given in self.upstreams.values())
        if self.wiring is None:
            self.take_panes(lateness, fed, retracts=retracts)
        elif not self.panes_from.issuperset(fed) or (retracts and not self.takes_retractions):
            raise StateError(
                "an upstream cannot begin to feed an operator that has taken messages. Hint:"
                " connect it before the first message"
            )
        elif lateness > self.spec.lateness:
            # The upstream of restored state has a longer lateness now.
            self.take_panes(lateness, fed, retracts=self.takes_retractions)
            self.wiring.extend_lateness(lateness)

    @property
    def exchange(self) -> Exchange:
        """What the operator passes to the next one."""
        return composed(self.declared, self.upstreams)

    @property
    def takes_retractions(self) -> bool:
        """Whether rows may be retractions."""
        return self._reader.op_column is not None

    def take_panes(self, lateness: int, ordinals: Iterable[int], *, retracts: bool) -> None:
        """Take the output of operators from some inputs, and keep windows for this lateness."""
        self.panes_from.update(ordinals)
        self._reader = dataclasses.replace(self._reader, op_column="op" if retracts else None)
        self.spec = dataclasses.replace(self.spec, allowed_lateness=lateness)

    def _begin(self) -> Collector:
        """Begin a call; the collector receives its output."""
        self.progress.before = self.progress.watermark
        if self.keys is not None:
            self.keys.begin()
        return Collector(self.spec.input.key, self.progress, self.watermarks)

    def _in_order(self, out: Collector) -> Output:
        """The output of a call without rows; static windows of several sources are sorted."""
        return out.output.by_window() if self.spec.window.create == "static" else out.output

    def _reader_of(self, ordinal: int) -> DeliveryReader:
        """The reader of an input; with several inputs, partitions get the prefix of theirs."""
        given = input_of(self.spec.inputs, ordinal)
        if not self.spec.also:
            return self._reader
        label = self.spec.names[ordinal] if self.spec.names else None
        op_column = self._reader.op_column if ordinal in self.panes_from else None
        return dataclasses.replace(
            self._reader, spec=given, prefix=f"{ordinal}/", label=label, op_column=op_column
        )

    def expected(self, ordinal: int = 0) -> pa.Schema | None:
        """The schema that an input is brought to, as far as it is known."""
        return self.schema if self.merging is None else self.merging.expected(ordinal, self.schema)

    def _admitted(self, table: pa.Table, reader: DeliveryReader, ordinal: int) -> pa.Table:
        """The table with the label of its input; a merge checks it against its other inputs."""
        if self.merging is not None:
            self.merging.check(ordinal, table.schema, self.schema)
        return reader.labelled(table)

    def _arrive(self, arrival: Arrival, out: Collector, *, looks: bool) -> None:
        table, reader = arrival.table, self._reader_of(arrival.ordinal)
        reader.check(table.schema)
        table = self._admitted(table, reader, arrival.ordinal)
        fresh = self.wiring is None
        self._bind_or_widen(table.schema)
        try:
            self._deliver(table, reader, arrival.ordinal, out, looks=looks)
        except (InputError, WatermarkError):
            # A first delivery that is refused does not fix the schema.
            self.wiring = None if fresh else self.wiring
            raise
        if self.merging is not None:
            self.merging.note(arrival.ordinal, arrival.table.schema)

    def _deliver(
        self, table: pa.Table, reader: DeliveryReader, ordinal: int, out: Collector, *, looks: bool
    ) -> None:
        wiring = self.bound()

        def observe(new: Delivery) -> None:
            if self.keys is not None:
                self.keys.meet(new.key_hash, new.key_check)
            if looks and self._watched:
                self._observe(new, reader, ordinal)

        rebuilds = self.recovery is not None and self.recovery.is_active
        taken = self._ingest.take(
            table,
            reader,
            wiring.context.schema,
            IngestHooks(out, observe, self._id_expiry, self._recover if rebuilds else None),
        )
        wiring.cell_values.begin()
        delivery = self._classified(taken.events, ordinal, out)
        if len(delivery):
            delivery = wiring.row_update.place(delivery)
            wiring.row_update.take(delivery, out)
            self._purge_keys(delivery)
            counts = delivery.verdict < VERY_LATE
            if wiring.static_windows is not None:
                wiring.static_windows.observe(delivery.position[counts])
            self._batch.observe_times(delivery.time if counts.all() else delivery.time[counts])
            if self.keys is not None:
                self._batch.observe_keys(delivery, counts)
        if self.recovery is not None and wiring.context.messages is not None:
            self.recovery.note_rejected(taken.new, wiring.cell_values.stored)

    def _observe(self, delivery: Delivery, reader: DeliveryReader, ordinal: int) -> None:
        """Let the watermark tracker observe the new rows of an input."""
        columns = {reader.time or "": self.key}
        seen = observed_columns(delivery, reader, self.watermark_tracker, columns)[self.key]
        if (
            self.keys is not None
            and len(seen)
            and (self.spec.options.future_reference == "watermark" or seen.times.max() > seen.limit)
        ):
            # Per-key watermarks: the key's own watermark decides which rows are from the future,
            # for its windows and for the watermark of all keys alike.
            kept = ~seen.readable | (self._classes(delivery) != FUTURE)
            seen = dataclasses.replace(
                seen,
                table=seen.table.filter(pa.array(kept)),
                times=seen.times[kept],
                readable=seen.readable[kept],
                partition=seen.partition[kept],
                limit=MAX,
            )
        self.watermark_tracker.observe(ordinal, seen, self.key)

    def _look_at(self, seen: Arrival) -> None:
        """Observe rows for watermarks and progress only."""
        reader = self._reader_of(seen.ordinal)
        if self.spec.window.axis is Axis.OFFSET:
            table = reader.with_offsets(seen.table)
            partition, names = partitions_of(table, reader.spec.partition)
            self._batch.observe_offsets(
                partition, [reader.prefix + name for name in names], reader.offsets(table)
            )
        elif self._watched and reader.spec.time is not None:
            self.watermark_tracker.observe_table(seen.ordinal, seen.table)
            times, verdict = read_times(seen.table.column(reader.spec.time), reader.spec.time)
            self._batch.observe_times(self._counted(times[verdict == OK]))

    def _observe_positions(self, positions: np.ndarray) -> None:
        """Observe the positions of events of all keys, for static windows."""
        static_windows = self.bound().static_windows
        if static_windows is None:
            return
        if self.spec.window.axis is Axis.CLOCK:
            positions = np.full(len(positions), self.progress.now)
        elif self._watched:
            positions = self._counted(positions)
        static_windows.observe(positions)

    def _counted(self, times: np.ndarray) -> np.ndarray:
        """The times that are neither very late nor from the future."""
        options = self.spec.options
        classes = classify(
            times,
            self.progress.watermark,
            self.spec.lateness,
            self.progress.now,
            options.future_tolerance,
            options.future_reference,
        )
        return times[classes < VERY_LATE]

    def _classes(self, delivery: Delivery, ordinal: int = 0) -> np.ndarray:
        """The lateness class of each row, by the watermark of its key.

        Rows of operators are not from the future: their sources have been classified.
        """
        options, context = self.spec.options, self.bound().context
        watermark = self.watermarks.of_rows(delivery, slice(None))
        return classify(
            delivery.time,
            watermark,
            context.event_lateness,
            self.progress.now,
            MAX if ordinal in self.panes_from else options.future_tolerance,
            options.future_reference,
        )

    def _take_combined(self, pieces: Sequence[Frame], out: Collector) -> None:
        self.bound().take_partials(pieces, out)
        if self.spec.window.axis is Axis.CLOCK:
            # Other windows learn of the newest event from the rows that all shards observe.
            now = np.array([self.progress.now])
            for piece in pieces:
                self._batch.observe_times(piece.ints(NEWEST) if NEWEST in piece else now)
        events = sum(int(piece.ints("row_count").sum()) for piece in pieces)
        self.progress.counters["events"] += events
        self.progress.counters["on_time"] += events

    def bound(self) -> Wiring:
        """The wiring that depend on the input's schema."""
        if self.wiring is None:
            raise InputError("the operator has not seen its input's schema yet")
        return self.wiring

    def _recover(self, duplicates: Delivery) -> None:
        """Take messages that were delivered before into a message store that is rebuilt."""
        if self.recovery is not None:
            self.recovery.take(duplicates, self.bound().cell_values, self.spec.window.axis)

    def _id_expiry(self, delivery: Delivery) -> np.ndarray:
        """The time at which the id of each row expires.

        That is its event time or, where windows decide what is late, the end of its last window.
        """
        time = delivery.time
        if self.spec.options.drop_by == "window":
            row, _, end = self.bound().cell_update.assigner.assign(time, as_frame(delivery))
            last = np.full(len(delivery), MIN)
            np.maximum.at(last, row, np.where(end == MAX, MAX, end - 1))
            time = np.maximum(time, last)
        if self.spec.window.axis is not Axis.EVENT_TIME:
            return np.full(len(delivery), self.progress.now)
        return np.maximum(np.where(delivery.verdict == OK, time, MIN), self.progress.watermark)

    def _classified(self, delivery: Delivery, ordinal: int, out: Collector) -> Delivery:
        """The rows with their classes; very late and rejected future rows go to `late`."""
        if self.spec.window.axis is not Axis.EVENT_TIME or isinstance(self.spec.window, Inherited):
            self.progress.counters["on_time"] += len(delivery)
            return delivery
        return self._ingest.drop_late(
            delivery,
            self._classes(delivery, ordinal),
            self.spec.options,
            out,
            self.bound().row_update.windows_of,
        )

    def _purge_keys(self, delivery: Delivery) -> None:
        """Purge state of keys that count their own messages, and ids that age by the clock."""
        axis = self.spec.window.axis
        if axis is Axis.ORDINAL:
            self.bound().cell_values.trim(
                delivery.key_hash, delivery.key_check, delivery.position + 1
            )
        if axis is not Axis.EVENT_TIME and self.spec.input.id is not None:
            given = self.spec.allowed_lateness
            span = DEFAULT_LATENESS if given is None else given
            self.ids.forget(int(saturating_add(self.progress.now, -span)))

    def lose_messages(self) -> None:
        """Begin to rebuild the message store from input after `resume_offsets`."""
        if self.recovery is None:
            raise StateError(
                "the message store is lost, and the input has no offsets to read it again from."
                " Hint: start from a new store"
            )
        if self.spec.window.axis is Axis.ORDINAL:
            raise StateError(
                "the message store is lost, and messages cannot be counted a second time. Hint:"
                " start from a new store"
            )
        if isinstance(self.spec.window, Custom | Inherited):
            raise StateError(
                "the message store is lost, and the windows of its messages with it. Hint: start"
                " from a new store"
            )
        if self.spec.mode == "discarding" and (
            self.spec.input.partition is not None or self.spec.also
        ):
            raise StateError(
                "the message store is lost, and discarding over several partitions it cannot be"
                " rebuilt. Hint: start from a new store"
            )
        self.recovery.begin(self.marks.marks)

    def resume_offsets(self) -> ResumeOffsets:
        """By partition, the first offset to deliver after a restart."""
        offsets = self.marks.resume()
        if (
            self.recovery is not None
            and self.recovery.is_active
            and self.window_offsets is not None
        ):
            offsets.update(self.window_offsets.earliest())
        return offsets

    @property
    def nbytes(self) -> int:
        """The decoded size of cells, slices, messages, ids and key watermarks, in bytes."""
        if self.wiring is None:
            return 0
        context, opened = self.wiring.context, self.wiring.slice_buffer
        held = (
            context.cells.nbytes + self.ids.nbytes + (0 if self.keys is None else self.keys.nbytes)
        )
        return (
            held
            + (opened.slices.nbytes if opened else 0)
            + (context.messages.nbytes if context.messages else 0)
        )

    # Watermarks

    def _end_batch(self, out: Collector) -> None:
        """End the micro-batch: apply what its rows have shown, and move the watermark."""
        batch, self._batch = self._batch, MicroBatch()
        batch.advance_offsets(self.marks)
        self.progress.newest = max(self.progress.newest, batch.newest)
        if batch.has_rows and self.wiring is not None:
            self.wiring.retention.enforce(out)
        risen = (
            None if self.keys is None else batch.advance_keys(self.keys, self.progress.watermark)
        )
        if self.spec.window.axis is Axis.OFFSET:
            self._move_watermark(self.marks.progress() or MIN, out)
        elif self._watched:
            # Without rows the clock may have moved: watermarks follow it, and sources fall idle.
            self._advance(out, risen)

    def _advance(self, out: Collector, risen: Frame | None = None) -> None:
        """Move to the watermark that the tracker releases; `risen` holds keys with a higher one."""
        watermark = max(self.progress.watermark, self.watermark_tracker.release().watermark)
        if self.marks.leaving and self.spec.lateness != MAX:
            self.marks.forget(int(saturating_add(watermark, -self.spec.lateness)))
        if self.keys is None:
            self._move_watermark(watermark, out)
            return
        self._move_watermark(self.keys.bounded(watermark), out, risen=risen)
        self.keys.forget(self.progress.watermark)

    def _move_watermark(
        self,
        watermark: int,
        out: Collector,
        *,
        finishing: bool = False,
        risen: Frame | None = None,
    ) -> None:
        """Move the watermark of the operator; before the first schema nothing else is there."""
        if self.wiring is None:
            self.progress.watermark = max(self.progress.watermark, watermark)
        else:
            self.wiring.watermark_advance.move(watermark, out, finishing=finishing, risen=risen)

    def _owed(self) -> int | None:
        if self.wiring is None or (
            self.spec.options.closing == "never" and isinstance(self.spec.firing, Never)
        ):
            return None
        wiring = self.wiring
        owed = [wiring.slice_buffer.earliest_owed()] if wiring.slice_buffer is not None else []
        cells = wiring.context.cells.all()
        if cells is not None:
            final = self.spec.options.closing == "always" and self.spec.lateness > 0
            cells = cells.where(((cells.ints("pending") > 0) | final) & ~cells.ints("closed"))
            if len(cells):
                owed.append(int(wiring.firing.owed(cells).min()))
        found = [time for time in owed if time is not None]
        return min(found) if found else None
