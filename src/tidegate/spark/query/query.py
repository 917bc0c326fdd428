"""Starting a pipeline: sinks are checked, the checkpoint is read, and Spark runs the query until it
is stopped or has read everything.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tidegate.errors import SpecError
from tidegate.instants import Duration, duration
from tidegate.operators.aggregate import migration
from tidegate.spark.environment.session import PARTITIONS, check, cores_of
from tidegate.spark.plan.planner import Plan, unpacked
from tidegate.spark.plan.shards import Layout
from tidegate.spark.query import metadata as keeping
from tidegate.spark.query.arrow_batches import limits
from tidegate.spark.query.metadata import QueryMetadata
from tidegate.spark.query.progress import Progress, read_progress
from tidegate.spark.query.publish import Publisher
from tidegate.spark.sinks import parquet
from tidegate.spark.sinks.base import PANE_ID, Sink, Target
from tidegate.spark.sinks.noop import Dropped
from tidegate.spark.tasks.batch_clock import is_local
from tidegate.spark.tasks.chain import rehearse
from tidegate.spark.tasks.task_output import Outlet
from tidegate.spark.tasks.transport import LATE, METRICS, PANES

NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
INTERVAL = 1_000_000
"""A query runs once a second unless said: without any pause an idle one keeps a core busy."""
_DEFAULT_PARTITIONS = "200"
_AT_LEAST = 10_000_000
_LOOKS = 0.05
"""How often a waiting process looks at the progress of a query, in seconds."""


class Query:
    """A running query, or one that has ended."""

    def __init__(self, query: StreamingQuery | None, id: str) -> None:
        self._query = query
        self.id = id
        """The id of the query, which is kept in its checkpoint."""

    def __repr__(self) -> str:
        return f"Query({self.id!r}, {'running' if self.is_active else 'ended'})"

    @property
    def spark_query(self) -> StreamingQuery | None:
        """Spark's own handle; None where a batch was run."""
        return self._query

    @property
    def name(self) -> str | None:
        return None if self._query is None else self._query.name

    @property
    def is_active(self) -> bool:
        return self._query is not None and self._query.isActive

    def stop(self) -> None:
        """End the query; a batch that runs is given up, and runs again at the next start."""
        if self._query is not None:
            self._query.stop()

    def await_termination(self, timeout: int | None = None) -> bool:
        """Wait until the query ends, or for so many seconds; True where it has ended. An error of
        the query is raised.
        """
        if self._query is None:
            return True
        ended = self._query.awaitTermination(timeout)
        return True if timeout is None else bool(ended)

    def process_all_available(self) -> None:
        """Wait until everything that is there now has been read and written. An error of the query
        is raised.
        """
        if self._query is None:
            return
        # Spark's own method waits for a moment in which there is no batch to run, and where timers
        # may be set there always is one.
        known = {given.batchId for given in self._query.recentProgress}
        while self._query.isActive:
            # What the first batch from now on reads may have been chosen before.
            later = [given for given in self._query.recentProgress if given.batchId not in known][
                1:
            ]
            if any(
                all(source.startOffset == source.endOffset for source in given.sources)
                for given in later
            ):
                return
            time.sleep(_LOOKS)
        self._query.awaitTermination()

    def exception(self) -> Exception | None:
        """What ended the query, if it failed."""
        return None if self._query is None else self._query.exception()

    @property
    def progress(self) -> Progress | None:
        """How the last batch went; None before the first."""
        found = self.recent_progress
        return found[-1] if found else None

    @property
    def recent_progress(self) -> list[Progress]:
        """How the last batches went, the oldest first."""
        return (
            []
            if self._query is None
            else [read_progress(given) for given in self._query.recentProgress]
        )

    def prometheus(self) -> str:
        """How the last batch went, as Prometheus text; `tg.sinks.prometheus` writes counters over
        all batches.
        """
        last = self.progress
        return "" if last is None else last.prometheus({"query": self.id})


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
    """Run a pipeline."""
    spark = plan.session
    check(spark)
    if not plan.is_streaming:
        return _run_batch(plan, to, late, metrics, checkpoint, shards)
    if checkpoint is None:
        raise SpecError(
            "a streaming query needs a place for its state. Hint: write(...,"
            " checkpoint='out/checkpoint')"
        )
    if is_local(checkpoint) and not checkpoint.startswith("file:"):
        # Spark, this process and the workers need not have the same current folder.
        checkpoint = os.path.abspath(checkpoint)  # noqa: PTH100 - a link stays a link: what it leads to may change its place
    available = trigger == "available_now"
    interval = 0 if available else _interval(trigger)
    plan = plan.running(silence=max(2 * interval, _AT_LEAST), ends=available, checkpoint=checkpoint)
    known = _opened(plan, checkpoint, spark, shards)
    late = late if late is not None else parquet(_late_folder(checkpoint))
    publisher = Publisher(_outlets(plan, known, {PANES: to, LATE: late, METRICS: metrics}))
    settings = {
        PARTITIONS: str(known.layout.partitions),
        NO_DATA: str(not available).lower(),
        **limits(plan, known.layout, spark),
    }
    with settings_of(spark, settings):
        packed = plan.packed(known.layout, publisher.outlets)
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
        keeping.write(checkpoint, dataclasses.replace(known, specs=_documents(plan)))
        try:
            return Query((writer.queryName(name) if name else writer).start(), known.query)
        except Exception:
            # Nothing ran, so the state still is as the former specification left it.
            keeping.write(checkpoint, known)
            raise


def _interval(trigger: Duration | None) -> int:
    if trigger is None:
        return INTERVAL
    if trigger == "once":
        raise SpecError(
            "`once` reads everything in one batch, whatever its size. Hint: trigger='available_now'"
        )
    return duration(trigger)


def layout_of(spark: SparkSession, shards: int | None) -> Layout:
    """As many shards as the user says, or as tasks run at once."""
    said = spark.conf.get(PARTITIONS, _DEFAULT_PARTITIONS) or _DEFAULT_PARTITIONS
    partitions = shards or (cores_of(spark) if said == _DEFAULT_PARTITIONS else int(said))
    return Layout.balanced(partitions)


def _opened(plan: Plan, checkpoint: str, spark: SparkSession, shards: int | None) -> QueryMetadata:
    """What the checkpoint knows of the query; a specification that does not fit it is refused."""
    known = keeping.read(checkpoint)
    if known is None:
        return QueryMetadata.new(layout_of(spark, shards), _documents(plan))
    if shards is not None and shards != len(known.layout):
        raise SpecError(
            f"the query at {checkpoint} has {len(known.layout)} shards for good, got"
            f" shards={shards}. Hint: leave `shards` out"
        )
    wanted = _documents(plan)
    if [len(group) for group in known.specs] != [len(group) for group in wanted]:
        raise SpecError(
            "the query has other operators than at its first start, and Spark cannot change them."
            " Hint: start from a new checkpoint"
        )
    for before, after in zip(known.specs, wanted, strict=True):
        for stored, given in zip(before, after, strict=True):
            migration.changes(stored, given)
    for chain, before in zip(plan.chains(known.layout), known.specs, strict=True):
        rehearse(chain, before)
    return known


def _documents(plan: Plan) -> list[list[dict[str, Any]]]:
    return [[spec.to_dict() for spec in stage.specs] for stage in plan.stages]


def _outlets(
    plan: Plan, known: QueryMetadata, sinks: Mapping[str, Sink | None]
) -> tuple[Outlet, ...]:
    schemas = plan.schemas(known.layout)
    found = []
    for output, sink in sinks.items():
        if sink is None:
            continue
        schema = schemas[output]
        shown = pa.schema(
            [field for field in schema if not (output == PANES and field.name == PANE_ID)]
        )
        target = Target(
            known.query, output, shown, plan.last.key, plan.last.mode, plan.last.identity
        )
        sink.check(target)
        found.append(Outlet(target, sink, schema))
    return tuple(found)


def _late_folder(checkpoint: str) -> str:
    """Where rows that are in no pane go unless said."""
    return f"{checkpoint.rstrip('/')}/{keeping.FOLDER}/late"


def _run_batch(
    plan: Plan,
    to: Sink,
    late: Sink | None,
    metrics: Sink | None,
    checkpoint: str | None,
    shards: int | None,
) -> Query:
    """A batch has one delivery and an end; when this returns it is written."""
    known = QueryMetadata.new(layout_of(plan.session, shards), _documents(plan))
    if late is None:
        # Each run is a query of its own, and a folder holds one output of one query.
        late = (
            Dropped()
            if checkpoint is None
            else parquet(f"{_late_folder(checkpoint)}/run={known.query}")
        )
    publisher = Publisher(_outlets(plan, known, {PANES: to, LATE: late, METRICS: metrics}))
    with settings_of(plan.session, limits(plan, known.layout, plan.session)):
        publisher(plan.packed(known.layout, publisher.outlets), 0)
    return Query(None, known.query)


@contextlib.contextmanager
def settings_of(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """The settings that a query reads when it starts; the session has its own again afterwards."""
    before = {key: spark.conf.get(key, None) for key in wanted}
    try:
        for key, value in wanted.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, former in before.items():
            if former is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, former)


def panes_frame(plan: Plan, output: str) -> DataFrame:
    """One output of a pipeline as a plain DataFrame."""
    check(plan.session)
    layout = Layout.balanced(
        int(plan.session.conf.get(PARTITIONS, _DEFAULT_PARTITIONS) or _DEFAULT_PARTITIONS)
    )
    schema = plan.schemas(layout)[output]
    frame = unpacked(plan.packed(layout), output, schema)
    return frame.drop(PANE_ID) if output == PANES else frame
