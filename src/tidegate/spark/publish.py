"""Publishing a batch: the packed rows of a query are run once, split by output, and given to the sink of each under the batch id."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from tidegate.spark.plan import unpacked
from tidegate.spark.sinks.base import PANE_ID, DriverSink, FrameSink, Sink, Target, TaskSink
from tidegate.spark.sinks.noop import Noop
from tidegate.spark.types import brought
from tidegate.spark.wire import METRICS, PACKED_SCHEMA, PANES, unpack

_STAGED = "output string, shard int, payload binary"


@dataclass(frozen=True)
class Outlet:
    """One output, and where it goes."""

    target: Target
    sink: Sink
    schema: pa.Schema
    """The columns of the packed tables; those of panes end with their id."""

    def tables(self, payloads: Iterator[pa.Buffer] | list[pa.Buffer]) -> Iterator[pa.Table]:
        return (brought(unpack(payload), self.schema) for payload in payloads)


@dataclass(frozen=True)
class Publisher:
    """What `foreachBatch` calls; it may run in another process than the one that made it."""

    outlets: tuple[Outlet, ...]

    def __call__(self, packed: DataFrame, batch: int) -> None:
        """Run the batch once, inside the tasks where sinks can be written there, and write the rest."""
        frames = [outlet for outlet in self.outlets if isinstance(outlet.sink, FrameSink)]
        if frames:
            # Each of them runs the rows again, and the operator must not run twice.
            packed = packed.persist()
        try:
            # What nobody keeps need not go to Python; a few rows of what was counted always do, so that the batch runs.
            kept = {outlet.target.output for outlet in self.outlets if not isinstance(outlet.sink, Noop)}
            wanted = packed.where(F.col("output").isin(*sorted({*kept, METRICS})))
            found = wanted.mapInArrow(_stager(self.outlets, batch), _STAGED).toArrow()
            for outlet in self.outlets:
                _write(outlet, batch, found, packed)
        finally:
            if frames:
                packed.unpersist()


def _write(outlet: Outlet, batch: int, found: pa.Table, packed: DataFrame) -> None:
    match outlet.sink:
        case TaskSink() as sink:
            sink.publish(outlet.target, batch, [bytes(text).decode() for text in _payloads(found, outlet.target.output)])
        case DriverSink() as sink:
            sink.write(outlet.target, batch, outlet.tables(_payloads(found, outlet.target.output)))
        case FrameSink() as sink:
            frame = unpacked(packed, outlet.target.output, outlet.schema)
            # Not by a selection of names, in which dots would mean fields.
            sink.write_frame(outlet.target, batch, frame.drop(PANE_ID) if outlet.target.output == PANES else frame)


def _payloads(found: pa.Table, output: str) -> list[pa.Buffer]:
    """The payloads of one output by shard, each in the order in which they came."""
    chosen = sorted(
        (
            (shard, number, payload.as_buffer())
            for number, (name, shard, payload) in enumerate(
                zip(found.column("output").to_pylist(), found.column("shard").to_pylist(), found.column("payload"), strict=True)
            )
            if name == output
        ),
        key=lambda row: row[:2],
    )
    return [payload for _, _, payload in chosen]


def _stager(outlets: tuple[Outlet, ...], batch: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Write in the task what can be written there, and let through what the driver writes; everything is consumed."""
    staging = {outlet.target.output: outlet for outlet in outlets if isinstance(outlet.sink, TaskSink)}
    passing = {outlet.target.output for outlet in outlets if isinstance(outlet.sink, DriverSink)}

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        task = f"{0 if context is None else context.partitionId():05d}"
        held: dict[str, list[pa.Buffer]] = {output: [] for output in staging}
        for rows in batches:
            outputs = rows.column("output").to_pylist()
            for output, payload in zip(outputs, rows.column("payload"), strict=True):
                if output in held:
                    held[output].append(payload.as_buffer())
            through = rows.select(PACKED_SCHEMA.names).filter(pa.array([output in passing for output in outputs]))
            if through.num_rows:
                yield through.cast(PACKED_SCHEMA)
        for output, payloads in held.items():
            outlet = staging[output]
            staged = outlet.sink.stage(outlet.target, batch, task, outlet.tables(payloads)) if isinstance(outlet.sink, TaskSink) else []
            texts = [text.encode() for text in staged]
            yield pa.RecordBatch.from_pydict({"output": [output] * len(texts), "shard": [0] * len(texts), "payload": texts}, schema=PACKED_SCHEMA)

    return stage
