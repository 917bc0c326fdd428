"""Publish a batch: run the packed rows of a query once, and write each output to its sink."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from tidegate.spark.failures import marks_errors
from tidegate.spark.plan.dataflow import unpack_output
from tidegate.spark.query.checkpoint_sync import sync_checkpoint
from tidegate.spark.sinks.base import PANE_ID, DriverSink, FrameSink, TaskSink
from tidegate.spark.tasks.shards import ShardLayout
from tidegate.spark.tasks.task_output import BoundSink
from tidegate.spark.tasks.transport import OUTPUT_SCHEMA, PANES
from tidegate.spark.tasks.watermark_files import WatermarkFiles


@dataclass(frozen=True)
class Publisher:
    """Writes the outputs of batches; it is the function for `foreachBatch`."""

    sinks: tuple[BoundSink, ...]
    checkpoint: str | None = None
    """The checkpoint of a stream, whose files are synced before sinks publish."""
    watermark_files: tuple[WatermarkFiles, ...] = ()
    """Of the operators whose edges pre-aggregate."""
    layout: ShardLayout | None = None

    @marks_errors
    def __call__(self, packed: DataFrame, batch: int) -> None:
        """Publish a batch; Spark Connect calls this in another process."""
        if self.layout is not None:
            for files in self.watermark_files:
                files.gather(batch, self.layout)
        self.publish(packed, batch)

    def publish(self, packed: DataFrame, batch: int) -> None:
        """Run the batch once, in which task sinks stage their rows, and write all sinks."""
        frames = [bound for bound in self.sinks if isinstance(bound.sink, FrameSink)]
        if frames:
            # Each of them evaluates the rows again, and the operator must not run twice.
            packed = packed.persist()
        try:
            rows = packed.toArrow()
            if self.checkpoint is not None:
                sync_checkpoint(self.checkpoint)
            for bound in self.sinks:
                _write(bound, batch, rows, packed)
        finally:
            if frames:
                packed.unpersist()


def _write(bound: BoundSink, batch: int, rows: pa.Table, packed: DataFrame) -> None:
    target = bound.target
    match bound.sink:
        case TaskSink() as sink:
            staged = [bytes(text).decode() for text in _payloads(rows, target.output)]
            sink.publish(target, batch, staged)
        case DriverSink() as sink:
            sink.write(target, batch, bound.tables(_payloads(rows, target.output)))
        case FrameSink() as sink:
            frame = unpack_output(packed, target.output, bound.schema, bound.projections)
            if target.output == PANES and PANE_ID not in target.schema.names:
                # `select` would read a dot in a name as a field of a struct.
                frame = frame.drop(PANE_ID)
            sink.write_frame(target, batch, frame)


def _payloads(rows: pa.Table, output: str) -> list[pa.Buffer]:
    """The payloads of an output, by shard; rows with metrics only have none."""
    columns = zip(*(rows.column(name) for name in OUTPUT_SCHEMA.names), strict=True)
    found = [
        (shard.as_py(), payload.as_buffer())
        for name, shard, payload in columns
        if name.as_py() == output and payload.is_valid
    ]
    return [payload for _, payload in sorted(found, key=lambda row: row[0])]
