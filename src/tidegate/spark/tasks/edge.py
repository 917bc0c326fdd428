"""The edge turns the input of a task into shuffle rows: the events and source progress of shards.

It runs behind a DataFrame or inside a direct source. Its output is a function of the rows and of
the clock of the batch, so a replay gives the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from tidegate.instants import MAX, MIN, saturating_add
from tidegate.kernel.frame import Frame, constant
from tidegate.kernel.keys import shard_of
from tidegate.kernel.storage.column_encoding import pack
from tidegate.kernel.watermarks.row_selection import condense
from tidegate.operators.aggregate.pre_aggregation import PreAggregator
from tidegate.operators.aggregate.static_windows import observed_positions
from tidegate.operators.async_map.delivery import observed_messages
from tidegate.operators.ingest.arrow_rows import valid
from tidegate.operators.ingest.computed_columns import with_computed_columns
from tidegate.operators.ingest.projection import project
from tidegate.operators.ingest.schema_cast import BROKEN
from tidegate.spark.failures import marks_errors
from tidegate.spark.tasks.async_calls import task_calls
from tidegate.spark.tasks.batch_clock import BatchClock
from tidegate.spark.tasks.garbage import exclude_modules
from tidegate.spark.tasks.shards import ShardLayout
from tidegate.spark.tasks.transport import (
    COMBINED,
    EDGE_WATERMARK,
    FAILED,
    OBSERVED,
    POSITIONS,
    REFUSED,
    ROWS,
    ShuffleRow,
    encode_payloads,
    to_record_batches,
)
from tidegate.spark.tasks.watermark_files import WatermarkFiles
from tidegate.spec.operator import Input
from tidegate.spec.windows import Axis, Window
from tidegate.state.serialization import encode_table

CLOCK = "__tidegate_clock"
"""The column with the clock of the batch, for edges without a `BatchClock`."""
MARK = "__tidegate_broken"
"""The column of a DataFrame that says what is wrong with a row; a name that Spark passes on."""
FLUSH_BYTES = 64 << 20
FLUSH_ROWS = 1 << 20


@dataclass(frozen=True)
class Edge:
    """The edge of one input."""

    input: Input
    layout: ShardLayout
    ordinal: int = 0
    """The number of the input."""
    future_tolerance: int | None = 60_000_000
    """How far ahead of the clock an event may be; None if the clock is not the reference."""
    axis: Axis = Axis.EVENT_TIME
    """The axis of the windows, which also measures the progress of the sources."""
    names: tuple[str, ...] = ()
    """The names of the columns, if Spark sends them numbered."""
    combiner: PreAggregator | None = None
    """Pre-aggregates rows that are on time, if that is possible."""
    static: Window | None = None
    """The window if it is static: then all shards get the positions of all events."""
    watermark_files: WatermarkFiles | None = None
    """The watermarks that decide which rows are on time; None in a batch, and on the clock."""
    clock: BatchClock | None = None
    """The clocks of the batches; without it, the clock is a column."""

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Convert the record batches of a Spark task."""
        exclude_modules()
        context = TaskContext.get()
        batch = None if self.clock is None else _batch_id()
        clock = None if self.clock is None or batch is None else self.clock.of(batch)
        yield from self.pack(batches, 0 if context is None else context.partitionId(), clock)

    def pack(
        self,
        batches: Iterator[pa.RecordBatch],
        task: int,
        clock: int | None = None,
        batch: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The shuffle rows of a task, in record batches, flushed every `FLUSH_BYTES` of input.

        `clock`: of the batch; default: the column `CLOCK`. `batch`: its id; default: of the task.
        """
        packer = _Packer(
            self, task, clock, self._edge_watermark(_batch_id() if batch is None else batch)
        )
        buffered: list[pa.RecordBatch] = []
        size = rows = 0
        for one in batches:
            if not one.num_rows:
                continue
            if buffered and not one.schema.equals(buffered[0].schema):
                # Only record batches with malformed rows have the column that marks them.
                yield from to_record_batches(packer.pack(pa.Table.from_batches(buffered)))
                buffered, size, rows = [], 0, 0
            buffered.append(one)
            size, rows = size + one.nbytes, rows + one.num_rows
            if size >= FLUSH_BYTES or rows >= FLUSH_ROWS:
                yield from to_record_batches(packer.pack(pa.Table.from_batches(buffered)))
                buffered, size, rows = [], 0, 0
        if buffered:
            yield from to_record_batches(packer.pack(pa.Table.from_batches(buffered)))

    def _edge_watermark(self, batch: int | None) -> int | None:
        """The watermark that decides which rows of a batch are on time; None if unknown.

        On the clock, rows are on time at every watermark.
        """
        if self.combiner is not None and self.combiner.is_on_clock:
            return MAX
        if self.combiner is None or self.watermark_files is None:
            return None if self.combiner is None else MIN
        return None if batch is None else self.watermark_files.before(batch, self.layout)

    def future_limit(self, clock: int | None) -> int | None:
        """The instant after which events are from the future; None if only the operator knows."""
        if self.future_tolerance is None:
            return None
        return MAX if clock is None else int(saturating_add(clock, self.future_tolerance))


def _batch_id() -> int | None:
    """The id of the batch of this task."""
    context = TaskContext.get()
    batch = None if context is None else context.getLocalProperty("streaming.sql.batchId")
    return None if batch is None else int(batch)


class _Packer:
    """Converts the tables of one task into shuffle rows."""

    def __init__(self, edge: Edge, task: int, clock: int | None, watermark: int | None) -> None:
        self._edge, self._task, self._clock, self._watermark = edge, task, clock, watermark
        self._seq = 0
        step = edge.input.mapped
        self._calls = None if step is None else task_calls(edge.input, step)

    def pack(self, table: pa.Table) -> list[ShuffleRow]:
        edge = self._edge
        clock = self._clock
        if CLOCK in table.column_names:
            clock = table.column(CLOCK)[0].cast(pa.timestamp("us", "UTC")).value
            table = table.drop_columns([CLOCK])
        if edge.names:
            table = table.rename_columns(list(edge.names))
        table = valid(marked(_without_views(table)))
        table = with_computed_columns(table, edge.input.arrival.computed)
        rows: list[ShuffleRow] = []
        table, observed = self._map(_without_views(table), clock, rows)
        projected = project(table, edge.input.projections)
        table = projected.rows
        table, refused = _split_null_offsets(table, edge.input.offset)
        if observed is None:
            observed = condense(
                _without_malformed(_split_null_offsets(projected.observed, edge.input.offset)[0]),
                edge.input,
                edge.future_limit(clock),
                axis=edge.axis,
            )
        # An empty table is sent as well: every shard has to check the clock.
        for payload in [*encode_payloads(observed)] or [encode_table(observed)]:
            # All shards share the same bytes.
            rows += [self._row(shard, OBSERVED, payload) for shard in edge.layout.ids]
        rows += [
            self._row(shard, POSITIONS, payload)
            for payload in position_payloads(_without_malformed(table), edge.input, edge.static)
            for shard in edge.layout.ids
        ]
        table, combined = self._pre_aggregate(table, clock)
        for shard, part in split_frame(combined, edge.layout):
            rows += [self._row(shard, COMBINED, payload) for payload in encode_payloads(part)]
        for shard, part in split_table(table, edge.input.key, edge.layout):
            rows += [self._row(shard, ROWS, payload) for payload in encode_payloads(part)]
        for shard, part in split_table(refused, edge.input.key, edge.layout):
            rows += [self._row(shard, REFUSED, payload) for payload in encode_payloads(part)]
        return rows

    def _map(
        self, table: pa.Table, clock: int | None, rows: list[ShuffleRow]
    ) -> tuple[pa.Table, pa.Table | None]:
        """The results of the async map, and the messages that determine the watermark.

        Without a map, the rows themselves do; on other axes than time, the results do. `rows` gets
        the failed messages.
        """
        edge = self._edge
        if self._calls is None or edge.input.mapped is None:
            return table, None
        mapped = self._calls.run(table)
        rows += [
            self._row(edge.layout.ids[0], FAILED, payload)
            for payload in encode_payloads(mapped.failed)
        ]
        if edge.axis is not Axis.EVENT_TIME:
            return mapped.rows, None
        messages = replace(edge.input.mapped.input, others=edge.input.others)
        observed = condense(mapped.messages, messages, edge.future_limit(clock))
        return mapped.rows, observed_messages(edge.input, observed)

    def _pre_aggregate(self, table: pa.Table, clock: int | None) -> tuple[pa.Table, Frame]:
        """The rows that cannot be pre-aggregated, and the partial aggregates of the others."""
        edge, watermark = self._edge, self._watermark
        limit = edge.future_limit(clock)
        found = (
            None
            if edge.combiner is None or watermark is None or limit is None
            else edge.combiner.combine(_without_malformed(table), watermark, limit)
        )
        if found is None or watermark is None:
            return table, Frame({}, 0)
        frame, rest = found
        if BROKEN in table.column_names:
            malformed = table.filter(table.column(BROKEN).is_valid())
            rest = pa.concat_tables([malformed, rest], promote_options="default")
        return rest, frame.with_mapping({EDGE_WATERMARK: constant(np.int64(watermark), len(frame))})

    def _row(self, shard: int, kind: str, payload: pa.Buffer) -> ShuffleRow:
        self._seq += 1
        return ShuffleRow(shard, self._edge.ordinal, self._task, self._seq, kind, payload)


def position_payloads(table: pa.Table, given: Input, static: Window | None) -> Iterator[pa.Buffer]:
    """The positions of the events of a table, for static windows on all shards."""
    if static is not None:
        positions = observed_positions(table, given, static)
        yield from encode_payloads(pa.table({"position": positions}))


def split_table(
    table: pa.Table, key: tuple[str, ...], layout: ShardLayout
) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each shard, in their order of arrival."""
    if len(layout) == 1 or not key:
        yield layout.ids[0], table
        return
    key_hash, _ = layout.hasher.identify([table.column(name) for name in key], table.num_rows)
    order, slices = _order_by_shard(key_hash, layout)
    ordered = table.take(pa.array(order))
    for shard, low, high in slices:
        yield shard, ordered.slice(low, high - low)


def split_frame(frame: Frame, layout: ShardLayout) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each shard in a frame with key hashes, in their order, as encoded tables.

    The frame is encoded as a whole: with a thousand shards, that of each shard would cost more than
    everything else that a task does.
    """
    if not len(frame):
        return
    order, slices = _order_by_shard(frame.ints("key_hash"), layout)
    encoded = pack(frame.take(order))
    for shard, low, high in slices:
        yield shard, encoded.slice(low, high - low)


def _order_by_shard(
    key_hash: np.ndarray, layout: ShardLayout
) -> tuple[np.ndarray, list[tuple[int, int, int]]]:
    """The stable order of rows by shard, and the slice of each shard in it."""
    number = shard_of(key_hash, len(layout))
    order = np.argsort(number.astype(np.uint16), kind="stable")
    bounds = np.searchsorted(number[order], np.arange(len(layout) + 1)).tolist()
    return order, [
        (shard, bounds[n], bounds[n + 1])
        for n, shard in enumerate(layout.ids)
        if bounds[n] < bounds[n + 1]
    ]


def _without_views(table: pa.Table) -> pa.Table:
    """The table with string and binary views cast, because Arrow cannot `take` from them."""
    views = [
        n
        for n, kind in enumerate(table.schema.types)
        if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)
    ]
    for n in views:
        kind = (
            pa.large_string()
            if pa.types.is_string_view(table.schema.types[n])
            else pa.large_binary()
        )
        table = table.set_column(n, table.column_names[n], table.column(n).cast(kind))
    return table


def _split_null_offsets(table: pa.Table, offset: str | None) -> tuple[pa.Table, pa.Table]:
    """The rows with an offset, and those with a null offset, which are refused."""
    if offset is None or not table.column(offset).null_count:
        return table, table.slice(0, 0)
    known = table.column(offset).is_valid()
    return table.filter(known), table.filter(known.to_numpy(zero_copy_only=False) ^ True)


def marked(table: pa.Table) -> pa.Table:
    """The table with the marks of a DataFrame where operators look for them, if it has any."""
    if MARK not in table.column_names:
        return table
    marks, plain = table.column(MARK), table.drop_columns([MARK])
    return plain if marks.null_count == len(marks) else plain.append_column(BROKEN, marks)


def _without_malformed(table: pa.Table) -> pa.Table:
    """The table without malformed rows, which do not count as progress of their source."""
    return (
        table
        if BROKEN not in table.column_names
        else table.filter(table.column(BROKEN).is_null()).drop_columns([BROKEN])
    )
