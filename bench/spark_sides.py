"""The two sides of the Spark benchmark, and the measurements of a run."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bench.spark_data import DELAY, INPUTS, SCHEMA, Events, write
from bench.spark_usage import Usage
from tidegate.api.joins import Joined
from tidegate.api.streams import Panes, Stream, stream
from tidegate.spec.aggregates import count
from tidegate.spec.aggregates import max as largest
from tidegate.spec.aggregates import sum as total
from tidegate.spec.join import within
from tidegate.spec.triggers import after_count, after_watermark, every
from tidegate.spec.watermarks import bounded
from tidegate.spec.windows import Window, hopping, session, tumbling

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

OURS, THEIRS, FLOOR = "tidegate", "spark", "floor"
"""The floor passes the rows of a DataFrame to Python and does nothing with them: no operator in
Python can be faster behind a DataFrame.
"""
SIDES = (OURS, THEIRS)
FILES_A_BATCH = 2
WARM_UP = 1
"""Number of first batches that are not measured: they start workers and create files."""
WARM = 60
"""Default number of small warm-up batches. After 20 the JVM is still busy compiling."""
EARLY = "10 seconds"
SIZE, SLIDE, GAP = "10 minutes", "10 seconds", "30 seconds"
INTERVAL, BOUND = "interval", "1 minute"
WINDOWS: dict[str, Callable[[], Window]] = {
    "tumbling": lambda: tumbling("1 minute"),
    "sliding": lambda: hopping(SIZE, SLIDE),
    "session": lambda: session(GAP, touch="merge"),
}
Say = Callable[[str], None]
_MILLISECOND = 1_000
_FASTEST = "8192"
"""The rows of a record batch with which rows reach Python soonest."""


@dataclass(frozen=True)
class Shape:
    """The computation of both sides, and whether ours uses a direct source."""

    window: str
    """One of `WINDOWS`, or `INTERVAL`: a join of rows within `BOUND` of each other."""
    direct: bool = False
    schema: str = SCHEMA
    """The columns of the events, as DDL."""
    format: str = "parquet"
    """The format of the files, or `kafka` for JSON messages of a topic."""
    early: bool = False
    """Whether ours emits early panes by the clock, with retractions."""
    messages: int = 1_000_000
    """The maximum number of Kafka messages of a batch."""

    @property
    def is_join(self) -> bool:
        return self.window == INTERVAL

    @property
    def word(self) -> str:
        """The kind of output rows."""
        return "pairs" if self.is_join else "panes"


@dataclass(frozen=True)
class Batch:
    """One micro-batch of either side."""

    number: int
    events: int
    begin: float
    """Start, in seconds of wall time."""
    milliseconds: int
    panes: int
    newest: int | None
    """Time of the newest event so far."""
    watermark: int | None
    """Watermark at the end of the batch."""
    parts: dict[str, int] = field(default_factory=dict)
    """Duration of its phases, under Spark's names."""

    @property
    def end(self) -> float:
        return self.begin + self.milliseconds / 1e3


@dataclass(frozen=True)
class Run:
    """Measurements of one side over all events."""

    events: int
    panes: int
    dropped: int
    """Events dropped as late."""
    events_per_second: float
    p50: float
    p99: float
    event_to_pane: float | None
    """Median milliseconds from the start of the batch whose events complete a window until its pane
    is emitted.
    """
    cpu: float | None
    """Processor seconds of all processes over the measured batches."""
    memory: dict[str, int]
    """Peak bytes of the JVM, the workers and the driver."""
    state: int
    """State bytes in the checkpoint at the end."""
    sst: int
    """Peak bytes of RocksDB's sorted files, without its write buffers."""
    first: float = 0.0
    """Milliseconds of the first batch."""
    seconds: float = 0.0
    """Seconds from the start of the query to its end."""
    process_seconds: float = 0.0
    """Seconds from the start of the process to the end of the query."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def ours(spark: SparkSession, shape: Shape, folder: Path) -> Panes | Joined:
    """The pipeline of Tidegate."""
    if shape.is_join:
        left, right = (_stream(spark, shape, folder / name) for name in INPUTS)
        return left.join(right, within(BOUND, BOUND), on="key").options(semantics="spark")
    windowed = _stream(spark, shape, folder).window(WINDOWS[shape.window]())
    if shape.early:
        trigger = after_watermark(early=every(EARLY), late=after_count(1))
        windowed = windowed.trigger(trigger).retracting()
    return windowed.options(semantics="spark").aggregate(
        n=count(), total=total("value"), top=largest("value")
    )


def _stream(spark: SparkSession, shape: Shape, folder: Path) -> Stream:
    given: Any = direct(shape, folder) if shape.direct else read(spark, shape, folder)
    return stream(given, time="ts", key="key", watermark=bounded(DELAY, unit="microseconds"))


def direct(shape: Shape, folder: Path) -> Any:
    """The events as a direct source of Tidegate."""
    from tidegate.spark import sources

    if shape.format == "kafka":
        brokers, topic = topic_of(folder)
        return sources.kafka(
            brokers,
            topic,
            schema=shape.schema,
            starting="earliest",
            columns=(),
            max_messages_per_trigger=shape.messages,
        )
    of_format = getattr(sources, shape.format)
    # The columns of Parquet files are those of the files.
    schema = None if shape.format == "parquet" else shape.schema
    return of_format(str(folder), schema=schema, max_files_per_trigger=FILES_A_BATCH)


def topic_of(folder: Path) -> tuple[str, str]:
    """The brokers and the topic that stand for a folder of files."""
    return folder.parent.name, folder.name


def theirs(spark: SparkSession, shape: Shape, folder: Path) -> DataFrame:
    """Spark's own aggregation, or its own join."""
    from pyspark.sql import functions as F  # noqa: N812 - the usual alias

    if shape.is_join:
        left, right = (_watermarked(spark, shape, folder / name).alias(name[0]) for name in INPUTS)
        meet = f"l.key = r.key AND l.ts BETWEEN r.ts - interval {BOUND} AND r.ts + interval {BOUND}"
        return left.join(right, F.expr(meet))
    windows: dict[str, Callable[[], Column]] = {
        "tumbling": lambda: F.window("ts", "1 minute"),
        "sliding": lambda: F.window("ts", SIZE, SLIDE),
        "session": lambda: F.session_window("ts", GAP),
    }
    grouped = _watermarked(spark, shape, folder).groupBy(
        windows[shape.window]().alias("window"), "key"
    )
    return grouped.agg(
        F.count("*").alias("n"), F.sum("value").alias("total"), F.max("value").alias("top")
    )


def passed(spark: SparkSession, shape: Shape, folder: Path) -> DataFrame:
    """The number of rows of each record batch that reaches Python.

    All columns do, as late rows are written with all of theirs.
    """
    return read(spark, shape, folder).mapInArrow(_counted, "n long")


def _counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch([pa.array([batch.num_rows])], ["n"])


def _watermarked(spark: SparkSession, shape: Shape, folder: Path) -> DataFrame:
    return read(spark, shape, folder).withWatermark("ts", f"{DELAY // _MILLISECOND} milliseconds")


def read(spark: SparkSession, shape: Shape, folder: Path) -> DataFrame:
    """The events as a streaming DataFrame."""
    if shape.format != "kafka":
        files = spark.readStream.format(shape.format).schema(shape.schema)
        if shape.format == "csv":
            files = files.option("header", "true")
        return files.option("maxFilesPerTrigger", FILES_A_BATCH).load(str(folder))
    from pyspark.sql import functions as F  # noqa: N812 - the usual alias

    brokers, topic = topic_of(folder)
    messages = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", brokers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", shape.messages)
    ).load()
    values = F.from_json(F.col("value").cast("string"), shape.schema)
    return messages.select(values.alias("event")).select("event.*")


def warm(spark: SparkSession, side: str, shape: Shape, events: Events, source: Path) -> None:
    """Run one side over few events and discard the measurements."""
    with ExitStack() as stack:
        place = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        if shape.format == "kafka":
            folder = source.with_name(topic_name(events))
            shape = replace(shape, messages=events.rows * FILES_A_BATCH)
        else:
            folder = place / "events"
            write(folder, events)
        query = _start(spark, side, shape, folder, str(place / "checkpoint"))
        stack.callback(query.stop)
        query.awaitTermination()


def topic_name(events: Events) -> str:
    """The topic of generated events."""
    return f"bench-{events.files}-{events.rows}-{events.keys}-{events.is_late}"


def run(spark: SparkSession, side: str, shape: Shape, folder: Path, say: Say) -> Run:
    """Run one side over all files into a no-op sink."""
    with ExitStack() as stack:
        checkpoint = tempfile.mkdtemp(prefix="tidegate-bench-")
        stack.callback(shutil.rmtree, checkpoint, ignore_errors=True)
        begin = time.time()
        with Usage() as usage:
            query = _start(spark, side, shape, folder, checkpoint)
            stack.callback(query.stop)
            progress = _watched(query, side, shape, say)
        seconds = time.time() - begin
        state = sum(
            path.stat().st_size
            for path in (Path(checkpoint) / "state").rglob("*")
            if path.is_file()
        )
    found = measured(
        [read_batch(side, shape, given) for given in progress],
        usage,
        state,
        _dropped(progress),
        _sst(progress),
    )
    # Pairs do not depend on a watermark.
    return replace(
        found, event_to_pane=None if shape.is_join else found.event_to_pane, seconds=seconds
    )


def _start(
    spark: SparkSession, side: str, shape: Shape, folder: Path, checkpoint: str
) -> StreamingQuery:
    if side != OURS:
        from tidegate.spark.query.settings import ARROW_BYTES, ARROW_ROWS, spark_settings

        frame = theirs(spark, shape, folder) if side == THEIRS else passed(spark, shape, folder)
        writer = frame.writeStream.outputMode("append").format("noop")
        # Spark's own operators send nothing to Python.
        limits = {ARROW_BYTES: str(2**31 - 1), ARROW_ROWS: _FASTEST} if side == FLOOR else {}
        with spark_settings(spark, limits):
            return (
                writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
            )
    from tidegate.spark.sinks import noop

    query = (
        ours(spark, shape, folder)
        .write(noop(), checkpoint=checkpoint, trigger="available_now")
        .spark_query
    )
    assert query is not None  # noqa: S101 - the source is a stream
    return query


def _watched(query: StreamingQuery, side: str, shape: Shape, say: Say) -> list[Any]:
    """The progress of all batches of a query that terminates by itself."""
    reported, ended = -1, False
    while not ended:
        ended = bool(query.awaitTermination(1))
        for given in query.recentProgress:
            batch = read_batch(side, shape, given)
            if batch.number > reported:
                reported = batch.number
                parts = ", ".join(
                    f"{name} {ms:,}"
                    for name, ms in batch.parts.items()
                    if name != "triggerExecution" and ms >= 50
                )
                say(
                    f"{side} batch {batch.number}: {batch.events:,} events, {batch.panes:,}"
                    f" {shape.word}, {batch.milliseconds:,} ms ({parts})"
                )
    # Spark reports a batch again if there is no new data.
    return list(
        {
            given.batchId: given
            for given in query.recentProgress
            if given.durationMs.get("addBatch") is not None
        }.values()
    )


def read_batch(side: str, shape: Shape, given: Any) -> Batch:
    """A batch from Spark's progress report."""
    parts = {str(name): int(ms) for name, ms in given.durationMs.items()}
    begin, whole = _instant(given.timestamp) / 1e6, parts["triggerExecution"]
    if side != OURS:
        times = {name: _instant(text) for name, text in given.eventTime.items()}
        # Windows leave the state when they are emitted; rows of a join leave it later.
        panes = (
            max(0, given.sink.numOutputRows)
            if shape.is_join
            else sum(operator.numRowsRemoved for operator in given.stateOperators)
        )
        return Batch(
            given.batchId,
            given.numInputRows,
            begin,
            whole,
            panes,
            times.get("max"),
            times.get("watermark"),
            parts,
        )
    from tidegate.spark.query.progress import read_progress

    found = read_progress(given)
    counts = found.counts
    return Batch(
        found.batch_id,
        counts.get("events", 0),
        begin,
        whole,
        counts.get("panes_on_time", 0),
        found.newest_event,
        found.watermark,
        parts,
    )


def _instant(text: str) -> int:
    """Microseconds of a timestamp in Spark's format."""
    return round(datetime.fromisoformat(text).timestamp() * 1e6)


def _dropped(progress: Sequence[Any]) -> int:
    from tidegate.spark.query.progress import read_progress

    theirs = sum(
        operator.numRowsDroppedByWatermark
        for given in progress
        for operator in given.stateOperators
    )
    return theirs + sum(read_progress(given).counts.get("late_rows", 0) for given in progress)


def _sst(progress: Sequence[Any]) -> int:
    sizes = [
        sum(
            int(operator.customMetrics.get("rocksdbSstFileSize", 0))
            for operator in given.stateOperators
        )
        for given in progress
    ]
    return max(sizes, default=0)


def measured(batches: Sequence[Batch], usage: Usage, state: int, dropped: int, sst: int) -> Run:
    """The measurements of a run, without empty batches and the first ones."""
    full = [batch for batch in batches if batch.events]
    counted = full[WARM_UP:] or full
    times = [batch.milliseconds for batch in counted]
    return Run(
        events=sum(batch.events for batch in full),
        panes=sum(batch.panes for batch in batches),
        dropped=dropped,
        events_per_second=sum(batch.events for batch in counted) / max(1, sum(times)) * 1e3,
        p50=float(np.percentile(times, 50)),
        p99=float(np.percentile(times, 99)),
        event_to_pane=event_to_pane(batches, counted),
        cpu=usage.seconds_between(counted[0].begin, counted[-1].end) if usage.samples else None,
        memory=usage.peaks,
        state=state,
        sst=sst,
        first=full[0].milliseconds,
    )


def event_to_pane(batches: Sequence[Batch], counted: Sequence[Batch]) -> float | None:
    """Median milliseconds from the event that completes a window to its pane.

    Spark's own watermark moves with the next batch, ours with the same one.
    """
    found = []
    for batch in counted:
        done = (
            one
            for one in batches
            if one.number >= batch.number and batch.newest is not None and one.watermark is not None
        )
        # Spark's watermark has millisecond resolution.
        reached = (
            one.end
            for one in done
            if one.watermark + _MILLISECOND >= batch.newest - DELAY  # type: ignore[operator]
        )
        end = next(reached, None)
        if end is not None:
            found.append((end - batch.begin) * 1e3)
    return statistics.median(found) if found else None
