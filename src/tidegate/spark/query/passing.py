"""Queries without an operator: the rows of a DataFrame go to a sink, exactly once.

Rows that are broken, or for which a projection fails, are late rows with the reason `bad_value`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from tidegate.errors import SpecError
from tidegate.operators.ingest.projection import project, projected_schema
from tidegate.operators.ingest.schema_cast import BROKEN
from tidegate.operators.key_secret import new_hasher
from tidegate.spark.checkpoint import FOLDER
from tidegate.spark.environment.session import check_session
from tidegate.spark.failures import marks_errors, spark_errors
from tidegate.spark.query.handle import Query
from tidegate.spark.query.metadata import QueryMetadata, create_metadata, read_metadata
from tidegate.spark.query.publish import Publisher
from tidegate.spark.sinks import parquet
from tidegate.spark.sinks.base import Sink, SinkTarget
from tidegate.spark.sinks.noop import WarnDropped
from tidegate.spark.tasks.edge import MARK, marked
from tidegate.spark.tasks.shards import ShardLayout
from tidegate.spark.tasks.task_output import BoundSink, OutputPayload, TaskOutput
from tidegate.spark.tasks.transport import LATE, OUTPUT_SCHEMA, PANES
from tidegate.spark.types import arrow_schema, spark_types
from tidegate.spec.projection import Projection

_COLUMNS = "output string, shard int, payload binary"
_LATE = pa.schema([("reason", pa.string()), ("detail", pa.string())])


@dataclass(frozen=True)
class RowsSender:
    """Sends the rows of tasks to the sinks."""

    sinks: tuple[BoundSink, ...]
    projections: tuple[Projection, ...]

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The payloads of the rows of a task, and what its sinks have staged."""
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        batch = None if context is None else context.getLocalProperty("streaming.sql.batchId")
        output = TaskOutput(self.sinks)
        for one in batches:
            rows = project(marked(pa.Table.from_batches([one])), self.projections).rows
            for name, part in _parts(rows):
                if part.num_rows:
                    output.add(name, part)
            yield from (_packed(sent, task) for sent in output.take_payloads())
        yield from (_packed(sent, task) for sent in output.stage(int(batch or 0), f"{task:05d}"))


def start_rows(
    frame: DataFrame,
    projections: Sequence[Projection],
    *,
    to: Sink,
    late: Sink | None = None,
    checkpoint: str | None = None,
    trigger: str | None = None,
    name: str | None = None,
) -> Query:
    """Run a query without an operator: a streaming one until it is stopped, a batch to its end.

    `trigger`: the interval of micro-batches in the words of Spark, or "available_now".
    """
    check_session(frame.sparkSession)
    if frame.isStreaming and checkpoint is None:
        raise SpecError(
            "a streaming query needs a checkpoint. Hint: write(..., checkpoint='out/checkpoint')"
        )
    known = None if checkpoint is None or not frame.isStreaming else read_metadata(checkpoint)
    metadata = known or QueryMetadata.new(ShardLayout.balanced(1, hasher=new_hasher()), [])
    if late is None:
        late = (
            WarnDropped()
            if checkpoint is None
            else parquet(f"{checkpoint.rstrip('/')}/{FOLDER}/late/run={metadata.query}")
        )
    sinks = _bound(frame, projections, metadata.query, to, late)
    publisher = Publisher(sinks)
    packed = frame.mapInArrow(RowsSender(sinks, tuple(projections)), _COLUMNS)
    if not frame.isStreaming:
        with spark_errors():
            publisher.publish(packed, 0)
        return Query(None, metadata.query)
    writer = packed.writeStream.foreachBatch(publisher).option("checkpointLocation", checkpoint)
    writer = (
        writer.trigger(availableNow=True)
        if trigger == "available_now"
        else writer.trigger(processingTime=trigger or "1 second")
    )
    if known is None and checkpoint is not None:
        create_metadata(checkpoint, metadata)
    with spark_errors():
        return Query((writer.queryName(name) if name else writer).start(), metadata.query)


def _bound(
    frame: DataFrame, projections: Sequence[Projection], query: str, to: Sink, late: Sink
) -> tuple[BoundSink, ...]:
    """The sinks with the columns of the rows and of the late rows."""
    given = arrow_schema(frame.schema)
    plain = pa.schema([field for field in given if field.name != MARK])
    rows = spark_types(projected_schema(plain, projections))
    bound = []
    for output, sink, schema in ((PANES, to, rows), (LATE, late, pa.schema([*rows, *_LATE]))):
        target = SinkTarget(query, output, schema, (), "discarding", ())
        sink.check(target)
        bound.append(BoundSink(target, sink, schema))
    return tuple(bound)


def _parts(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """The rows, and the late ones among them."""
    if BROKEN not in rows.column_names:
        yield PANES, rows
        return
    marks = rows.column(BROKEN)
    plain = rows.drop_columns([BROKEN])
    yield PANES, plain.filter(marks.is_null())
    late = plain.filter(marks.is_valid())
    reasons = pa.array(["bad_value"] * len(late), pa.string())
    yield LATE, late.append_column("reason", reasons).append_column("detail", marks.drop_null())


def _packed(sent: OutputPayload, task: int) -> pa.RecordBatch:
    row = {"output": sent.output, "shard": task, "payload": sent.payload}
    return pa.RecordBatch.from_pylist([row], OUTPUT_SCHEMA)
