"""Start a pipeline: check its sinks, read its checkpoint, and run it as a query of Spark."""

from __future__ import annotations

import dataclasses
import os
import textwrap
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tidegate.errors import SetupError, SinkError, SpecError, StateError, TidegateError
from tidegate.instants import Duration, duration, format_duration
from tidegate.kernel.keys import FIXED
from tidegate.operators.aggregate import migration
from tidegate.operators.ingest.projection import projected_schema
from tidegate.operators.key_secret import new_hasher
from tidegate.spark.checkpoint import FOLDER, is_local
from tidegate.spark.environment.session import check_session, is_remote
from tidegate.spark.failures import spark_errors
from tidegate.spark.parallelism import PARTITIONS, parallelism
from tidegate.spark.plan.dataflow import Plan, unpack_output
from tidegate.spark.query.batch_progress import shown_progress
from tidegate.spark.query.checkpoint_lock import (
    lock_checkpoint,
    unlock_at_end,
    unlock_checkpoint,
)
from tidegate.spark.query.handle import Query
from tidegate.spark.query.metadata import (
    QueryMetadata,
    create_metadata,
    read_metadata,
    replace_metadata,
)
from tidegate.spark.query.publish import Publisher
from tidegate.spark.query.settings import (
    NO_DATA_BATCHES,
    SHARED_WORKERS,
    arrow_batch_limits,
    spark_settings,
)
from tidegate.spark.sinks import parquet
from tidegate.spark.sinks.base import PANE_ID, Sink, SinkTarget, shared_folders
from tidegate.spark.sinks.noop import WarnDropped
from tidegate.spark.tasks.chain import check_migration
from tidegate.spark.tasks.shards import ShardLayout
from tidegate.spark.tasks.task_output import BoundSink
from tidegate.spark.tasks.transport import LATE, METRICS, PANES
from tidegate.spark.types import spark_types
from tidegate.units import many

DEFAULT_INTERVAL = 1_000_000
"""The default trigger interval: without a pause, an idle query keeps a core busy."""
_DEFAULT_PARTITIONS = "200"
_MIN_SILENCE = 10_000_000


def start(
    plan: Plan,
    *,
    to: Sink,
    late: Sink | None,
    metrics: Sink | None,
    checkpoint: str | None,
    trigger: Duration | None,
    shards: int | None,
    name: str | None,
) -> Query:
    """Run a pipeline: a streaming one until it is stopped, a batch one to its end."""
    spark = plan.session
    check_session(spark)
    if not plan.is_streaming:
        return _run_batch(plan, to, late, metrics, checkpoint, shards)
    if checkpoint is None:
        raise SpecError(
            "a streaming query needs a checkpoint for its state. Hint: write(...,"
            " checkpoint='out/checkpoint')"
        )
    if is_local(checkpoint) and not checkpoint.startswith("file:"):
        # Spark, this process and the workers may have different working directories.
        checkpoint = os.path.abspath(checkpoint)  # noqa: PTH100
    available = trigger == "available_now"
    interval = 0 if available else _interval(trigger)
    plan = plan.for_query(
        silence=max(2 * interval, _MIN_SILENCE), ends=available, checkpoint=checkpoint
    )
    known = read_metadata(checkpoint)
    metadata = (
        QueryMetadata.new(_choose_layout(spark, shards), _documents(plan), name)
        if known is None
        else dataclasses.replace(_checked(known, plan, checkpoint, shards), name=name)
    )
    late = late if late is not None else parquet(_late_folder(checkpoint))
    sinks = {PANES: to, LATE: late, METRICS: metrics}
    bound = _bind_sinks(plan, metadata, sinks, checkpoint)
    publisher = Publisher(bound, checkpoint, plan.used_watermark_files, metadata.layout)
    outputs = {output: sink.place() for output, sink in sinks.items() if sink is not None}
    settings = {
        PARTITIONS: str(metadata.layout.partitions),
        NO_DATA_BATCHES: str(not available).lower(),
        **SHARED_WORKERS,
        **arrow_batch_limits(plan, metadata.layout, spark),
    }
    with spark_settings(spark, settings):
        packed = plan.packed(metadata.layout, publisher.sinks)
        writer = (
            packed.writeStream.outputMode("append")
            .foreachBatch(publisher)
            .option("checkpointLocation", checkpoint)
        )
        writer = (
            writer.trigger(availableNow=True)
            if available
            else writer.trigger(processingTime=f"{interval // 1000} milliseconds")
        )
        wanted = dataclasses.replace(
            metadata if known is None else known,
            specs=_documents(plan),
            name=name,
            outputs=outputs,
        )
        lock = lock_checkpoint(checkpoint, is_remote=is_remote(spark))
        try:
            running = _start_locked(
                writer.queryName(name) if name else writer, checkpoint, known, wanted
            )
        except BaseException:
            unlock_checkpoint(lock)
            raise
        unlock_at_end(lock, running)
    return Query(
        running,
        metadata.query,
        checkpoint=checkpoint,
        specs=[stage.specs for stage in plan.stages],
        shards=len(metadata.layout),
    )


def _start_locked(
    writer: DataStreamWriter,
    checkpoint: str,
    known: QueryMetadata | None,
    wanted: QueryMetadata,
) -> StreamingQuery:
    """Write the metadata of a start, and start the query."""
    if known is None:
        create_metadata(checkpoint, wanted)
    elif read_metadata(checkpoint) != known:
        raise StateError(
            f"another process has changed the query at `{checkpoint}` during this start, and this"
            " one was not started. Hint: start again"
        )
    else:
        replace_metadata(checkpoint, wanted)
    try:
        with spark_errors():
            return writer.start()
    except Exception:
        # Nothing ran, so the state still belongs to the former specification.
        if known is not None:
            replace_metadata(checkpoint, known)
        raise


def check_arguments(
    *, sinks: Mapping[str, Any], checkpoint: Any, trigger: Any, shards: Any, name: Any
) -> None:
    """Raise `SpecError` with all arguments of `write` that have a wrong type or value."""
    found = [_sink_problem(argument, sink) for argument, sink in sinks.items()]
    if not isinstance(checkpoint, str | os.PathLike | None):
        found.append(
            f"`checkpoint` is the path of a folder, got {checkpoint!r}. Hint:"
            " checkpoint='out/checkpoint'"
        )
    else:
        used = [] if checkpoint is None else [("the checkpoint", os.fspath(checkpoint))]
        right = {argument: sink for argument, sink in sinks.items() if isinstance(sink, Sink)}
        found += [problem for _, problem in shared_folders(right, used)]
    if shards is not None and (
        isinstance(shards, bool) or not isinstance(shards, int) or shards < 1
    ):
        found.append(f"`shards` is a whole number of at least 1, got {shards!r}")
    if name is not None and (not isinstance(name, str) or not name):
        found.append(f"`name` is a text, got {name!r}. Hint: leave it out for none")
    if trigger != "available_now":
        try:
            _interval(trigger)
        except TidegateError as error:
            found.append(f"`trigger`: {error}")
    problems = [problem for problem in found if problem]
    if len(problems) == 1:
        raise SpecError(problems[0])
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise SpecError(f"`write` has {many(len(problems), 'wrong argument')}:\n{listed}")


def _sink_problem(argument: str, sink: Any) -> str:
    if isinstance(sink, Sink) or (sink is None and argument != "to"):
        return ""
    is_path = isinstance(sink, str | os.PathLike)
    hint = (
        f"{argument}=tg.sinks.parquet({os.fspath(sink)!r})"
        if is_path
        else "one of tg.sinks, such as tg.sinks.parquet('out/panes')"
    )
    shown = repr(os.fspath(sink)) if is_path else type(sink).__name__
    return f"`{argument}` is a sink, got {shown}. Hint: {hint}"


def _interval(trigger: Duration | None) -> int:
    if trigger is None:
        return DEFAULT_INTERVAL
    if trigger == "once":
        raise SpecError(
            "`once` reads everything in one batch, whatever its size. Hint: trigger='available_now'"
        )
    found = duration(trigger)
    if found < 0:
        raise SpecError(
            f"the interval between batches can't be negative, got {format_duration(found)}"
        )
    return found


def _choose_layout(spark: SparkSession, shards: int | None) -> ShardLayout:
    """The shards of a new query: `shards`, the shuffle partitions if set, or the parallelism."""
    setting = spark.conf.get(PARTITIONS, _DEFAULT_PARTITIONS) or _DEFAULT_PARTITIONS
    partitions = shards or (parallelism(spark) if setting == _DEFAULT_PARTITIONS else int(setting))
    return ShardLayout.balanced(partitions, hasher=new_hasher())


def _checked(
    metadata: QueryMetadata, plan: Plan, checkpoint: str, shards: int | None
) -> QueryMetadata:
    """The metadata of a checkpoint; refuse a plan that does not fit the state."""
    if shards is not None and shards != len(metadata.layout):
        raise SpecError(
            f"the query at {checkpoint} has {len(metadata.layout)} shards, which cannot change, got"
            f" shards={shards}. Hint: leave `shards` out"
        )
    wanted = _documents(plan)
    if [len(group) for group in metadata.specs] != [len(group) for group in wanted]:
        raise SpecError(
            "the query has other operators than at its first start, and Spark cannot change them."
            " Hint: start from a new checkpoint"
        )
    for before, after in zip(metadata.specs, wanted, strict=True):
        for stored, declared in zip(before, after, strict=True):
            migration.changes(stored, declared)
    for chain, before in zip(plan.chains(metadata.layout), metadata.specs, strict=True):
        check_migration(chain, before)
    return metadata


def _documents(plan: Plan) -> list[list[dict[str, Any]]]:
    return [[spec.to_dict() for spec in stage.specs] for stage in plan.stages]


def _bind_sinks(
    plan: Plan,
    metadata: QueryMetadata,
    sinks: Mapping[str, Sink | None],
    checkpoint: str | None = None,
) -> tuple[BoundSink, ...]:
    """Check the sink of each output, and bind it to the columns of the output.

    If the columns are wrong, the other outputs are checked all the same.
    """
    bound, refused = [], list[TidegateError]()
    try:
        schemas = plan.schemas(metadata.layout)
    except SpecError as error:
        refused.append(error)
        schemas = dict.fromkeys((LATE, METRICS), pa.schema([]))
    for output, sink in sinks.items():
        if sink is None or output not in schemas:
            continue
        schema = schemas[output]
        hides_id = output == PANES and PANE_ID not in plan.included
        projections = plan.late_projections if output == LATE else ()
        leaving = spark_types(projected_schema(schema, projections)) if projections else schema
        shown = pa.schema([field for field in leaving if not (hides_id and field.name == PANE_ID)])
        known_by = plan.last.identity if plan.identity is None else plan.identity
        target = SinkTarget(
            metadata.query,
            output,
            shown,
            plan.last.key,
            plan.last.mode,
            known_by,
            name=metadata.name,
            checkpoint=checkpoint,
        )
        try:
            sink.check(target)
        except (SpecError, SinkError, SetupError) as error:
            refused.append(error)
        bound.append(BoundSink(target, sink, schema, projections))
    if len(refused) == 1:
        raise refused[0]
    if refused:
        listed = "\n".join(textwrap.indent(str(error), "  ") for error in refused)
        what = f"{many(len(refused), 'output')} cannot be written"
        if PANES not in schemas:
            what = f"the query cannot be started, for {len(refused)} reasons"
        raise type(refused[0])(f"{what}:\n{listed}")
    return tuple(bound)


def _late_folder(checkpoint: str) -> str:
    """The default folder for late rows."""
    return f"{checkpoint.rstrip('/')}/{FOLDER}/late"


def _run_batch(
    plan: Plan,
    to: Sink,
    late: Sink | None,
    metrics: Sink | None,
    checkpoint: str | None,
    shards: int | None,
) -> Query:
    """Run a batch pipeline, one delivery and the end of the input, until it is written."""
    metadata = QueryMetadata.new(_choose_layout(plan.session, shards), _documents(plan))
    if late is None:
        # Each run is a query of its own, and a folder holds one output of one query.
        late = (
            WarnDropped()
            if checkpoint is None
            else parquet(f"{_late_folder(checkpoint)}/run={metadata.query}")
        )
    publisher = Publisher(_bind_sinks(plan, metadata, {PANES: to, LATE: late, METRICS: metrics}))
    limits = arrow_batch_limits(plan, metadata.layout, plan.session)
    with spark_settings(plan.session, limits), spark_errors(), shown_progress(plan.session):
        publisher.publish(plan.packed(metadata.layout, publisher.sinks), 0)
    return Query(None, metadata.query)


def output_frame(plan: Plan, output: str) -> DataFrame:
    """One output of a pipeline as a plain DataFrame."""
    check_session(plan.session)
    # A stream that is started outside `write` has no place for a secret.
    layout = ShardLayout.balanced(
        int(plan.session.conf.get(PARTITIONS, _DEFAULT_PARTITIONS) or _DEFAULT_PARTITIONS),
        hasher=FIXED if plan.is_streaming else new_hasher(),
    )
    schema = plan.schemas(layout)[output]
    projections = plan.late_projections if output == LATE else ()
    frame = unpack_output(
        plan.packed(layout), output, schema, projections, refuses_failures=output == PANES
    )
    return frame.drop(PANE_ID) if output == PANES and PANE_ID not in plan.included else frame
