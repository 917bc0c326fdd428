"""The edge turns what a task reads into a few rows for every shard: its events, and what all shards
have to learn of the sources.

It runs wherever rows come in: behind a DataFrame, or inside a direct source. What it puts out is a
function of the rows and of the clock of the batch, which comes with them, so a batch that is
replayed gives the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from tidegate.instants import MAX, MIN, saturating_add
from tidegate.kernel.frame import Frame, constant
from tidegate.kernel.keys import identify, shard_of
from tidegate.kernel.storage.column_encoding import pack
from tidegate.kernel.watermarks.row_selection import condense
from tidegate.operators.aggregate.pre_aggregation import PreAggregator
from tidegate.operators.ingest.schema_cast import BROKEN
from tidegate.spark.plan.shards import Layout
from tidegate.spark.tasks.batch_clock import BatchClock
from tidegate.spark.tasks.transport import (
    COMBINED,
    FLOOR,
    OBSERVED,
    REFUSED,
    ROWS,
    Shipped,
    batches_of,
    pieces,
)
from tidegate.spark.tasks.watermark_files import WatermarkFiles
from tidegate.spec.operator import Input
from tidegate.spec.windows import Axis
from tidegate.state.ipc import encode_table

CLOCK = "__tidegate_clock"
"""The column that the clock of the batch comes in where nothing else tells it."""
FLUSH_BYTES = 64 << 20
FLUSH_ROWS = 1 << 20
Computed = tuple[str, Callable[[pa.Table], pa.Array | pa.ChunkedArray]]


@dataclass(frozen=True)
class Edge:
    """The edge of one input."""

    given: Input
    layout: Layout
    ordinal: int = 0
    future_tolerance: int | None = 60_000_000
    """How far ahead of the clock an event may be before it is from the future; None where that is
    not said by the clock.
    """
    computed: tuple[Computed, ...] = ()
    """Columns that a function makes of the others."""
    axis: Axis = Axis.EVENT_TIME
    """What windows are measured on, and so what tells how far the sources are."""
    names: tuple[str, ...] = ()
    """The names of the columns, where they do not come with them."""
    combiner: PreAggregator | None = None
    """What aggregates rows that are on time before they travel, where that is allowed."""
    floors: WatermarkFiles | None = None
    """What tells which are; without it nothing was said of time before, as in a batch."""
    clock: BatchClock | None = None
    """What tells the clock of a batch that Spark runs; without it the clock comes as a column."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pack the batches of a task of Spark."""
        context = TaskContext.get()
        running = None if self.clock is None else _running()
        clock = None if self.clock is None or running is None else self.clock.of(running)
        yield from self.pack(batches, 0 if context is None else context.partitionId(), clock)

    def pack(
        self,
        batches: Iterator[pa.RecordBatch],
        task: int,
        clock: int | None = None,
        batch: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Rows for the shards, a record batch for each so many bytes that came.

        The clock of the batch may come as a column instead, and its number be that of the task's.
        """
        packer = _Packer(self, task, clock, self._floor(_running() if batch is None else batch))
        held: list[pa.RecordBatch] = []
        size = rows = 0
        for given in batches:
            if not given.num_rows:
                continue
            if held and not given.schema.equals(held[0].schema):
                # Only some of the rows of a direct source have a mark that they are broken.
                yield from batches_of(packer.packed(pa.Table.from_batches(held)))
                held, size, rows = [], 0, 0
            held.append(given)
            size, rows = size + given.nbytes, rows + given.num_rows
            if size >= FLUSH_BYTES or rows >= FLUSH_ROWS:
                yield from batches_of(packer.packed(pa.Table.from_batches(held)))
                held, size, rows = [], 0, 0
        if held:
            yield from batches_of(packer.packed(pa.Table.from_batches(held)))

    def _floor(self, batch: int | None) -> int | None:
        """The watermark by which the rows of a batch are judged, if that is known here."""
        if self.combiner is None or self.floors is None:
            return None if self.combiner is None else MIN
        return None if batch is None else self.floors.before(batch, self.layout)

    def limit(self, clock: int | None) -> int | None:
        """The instant beyond which events are from the future; None where only the operator can
        tell.
        """
        if self.future_tolerance is None:
            return None
        return MAX if clock is None else int(saturating_add(clock, self.future_tolerance))


def _running() -> int | None:
    """The number of the batch that this task is part of."""
    context = TaskContext.get()
    batch = None if context is None else context.getLocalProperty("streaming.sql.batchId")
    return None if batch is None else int(batch)


class _Packer:
    """Packs the tables of one task one after the other."""

    def __init__(self, edge: Edge, task: int, clock: int | None, floor: int | None) -> None:
        self._edge, self._task, self._clock, self._floor, self._seq = edge, task, clock, floor, 0

    def packed(self, table: pa.Table) -> list[Shipped]:
        edge = self._edge
        clock = self._clock
        if CLOCK in table.column_names:
            clock = table.column(CLOCK)[0].cast(pa.timestamp("us", "UTC")).value
            table = table.drop_columns([CLOCK])
        if edge.names:
            table = table.rename_columns(list(edge.names))
        for name, function in edge.computed:
            table = table.append_column(name, function(table))
        table, unnumbered = _numbered(_whole(table), edge.given.offset)
        found: list[Shipped] = []
        seen = condense(_sound(table), edge.given, edge.limit(clock), axis=edge.axis)
        # Where nothing is to be learnt all shards still are told that something came: they have to
        # look at the clock.
        for payload in [*pieces(seen)] or [encode_table(seen)]:
            # Everybody gets the same bytes.
            found += [self._row(shard, OBSERVED, payload) for shard in edge.layout.ids]
        table, combined = self._combined(table, clock)
        for shard, share in shares(combined, edge.layout):
            found += [self._row(shard, COMBINED, payload) for payload in pieces(pack(share))]
        for shard, part in split(table, edge.given.key, edge.layout):
            found += [self._row(shard, ROWS, payload) for payload in pieces(part)]
        for shard, part in split(unnumbered, edge.given.key, edge.layout):
            found += [self._row(shard, REFUSED, payload) for payload in pieces(part)]
        return found

    def _combined(self, table: pa.Table, clock: int | None) -> tuple[pa.Table, Frame]:
        """The rows that have to travel as they are, and what the others are together."""
        edge, floor = self._edge, self._floor
        limit = edge.limit(clock)
        found = (
            None
            if edge.combiner is None or floor is None or limit is None
            else edge.combiner.combine(table, floor, limit)
        )
        if found is None or floor is None:
            return table, Frame({}, 0)
        frame, rest = found
        return rest, frame.with_mapping({FLOOR: constant(np.int64(floor), len(frame))})

    def _row(self, shard: int, kind: str, payload: pa.Buffer) -> Shipped:
        self._seq += 1
        return Shipped(shard, self._edge.ordinal, self._task, self._seq, kind, payload)


def split(table: pa.Table, key: tuple[str, ...], layout: Layout) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each shard, in the order in which they came."""
    if len(layout) == 1 or not key:
        yield layout.ids[0], table
        return
    key_hash, _ = identify([table.column(name) for name in key], table.num_rows)
    order, places = _dealt(key_hash, layout)
    ordered = table.take(pa.array(order))
    for shard, low, high in places:
        yield shard, ordered.slice(low, high - low)


def shares(frame: Frame, layout: Layout) -> Iterator[tuple[int, Frame]]:
    """The part of a frame of keys that each shard has, in its order."""
    if not len(frame):
        return
    order, places = _dealt(frame.ints("key_hash"), layout)
    ordered = frame.take(order)
    for shard, low, high in places:
        yield shard, ordered.slice(low, high)


def _dealt(key_hash: np.ndarray, layout: Layout) -> tuple[np.ndarray, list[tuple[int, int, int]]]:
    """The order that brings the rows of a shard together, and where those of each begin and end."""
    number = shard_of(key_hash, len(layout))
    order = np.argsort(number.astype(np.uint16), kind="stable")
    bounds = np.searchsorted(number[order], np.arange(len(layout) + 1)).tolist()
    return order, [
        (shard, bounds[n], bounds[n + 1])
        for n, shard in enumerate(layout.ids)
        if bounds[n] < bounds[n + 1]
    ]


def _whole(table: pa.Table) -> pa.Table:
    """The table without views of text and bytes, whose rows Arrow cannot pick."""
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


def _numbered(table: pa.Table, offset: str | None) -> tuple[pa.Table, pa.Table]:
    """The rows that have an offset, and those that should have one."""
    if offset is None or not table.column(offset).null_count:
        return table, table.slice(0, 0)
    known = table.column(offset).is_valid()
    return table.filter(known), table.filter(known.to_numpy(zero_copy_only=False) ^ True)


def _sound(table: pa.Table) -> pa.Table:
    """The table without rows that are broken: they do not say how far their source has come."""
    return (
        table
        if BROKEN not in table.column_names
        else table.filter(table.column(BROKEN).is_null()).drop_columns([BROKEN])
    )
