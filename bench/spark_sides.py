"""The two sides of the race on Spark, Tidegate and what Spark itself has for the same windows or
the same join, and what a run measures.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.spark_data import DELAY, INPUTS, SCHEMA, Events, write
from bench.spark_usage import Usage
from tidegate.api import Panes, Stream, stream
from tidegate.api.joins import Joined
from tidegate.spec.aggregates import count
from tidegate.spec.aggregates import max as largest
from tidegate.spec.aggregates import sum as total
from tidegate.spec.join import within
from tidegate.spec.watermarks import bounded
from tidegate.spec.windows import Window, hopping, session, tumbling

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

OURS, THEIRS = "tidegate", "spark"
SIDES = (OURS, THEIRS)
FILES_A_BATCH = 2
WARM_UP = 1
"""So many batches of a run are not counted: they start workers and make files."""
WARM = 60
"""So many batches of few events run before: in them the JVM compiles what every batch runs,
whatever its size. After 20 it is still busy with it.
"""
SIZE, SLIDE, GAP = "10 minutes", "10 seconds", "30 seconds"
INTERVAL, BOUND = "interval", "1 minute"
WINDOWS: dict[str, Callable[[], Window]] = {
    "tumbling": lambda: tumbling("1 minute"),
    "sliding": lambda: hopping(SIZE, SLIDE),
    "session": lambda: session(GAP, touch="merge"),
}
Say = Callable[[str], None]
_MILLISECOND = 1_000


@dataclass(frozen=True)
class Shape:
    """What both sides compute, and how ours reads."""

    window: str
    """One of `WINDOWS`, or `INTERVAL`: rows of two inputs meet that are within `BOUND` of each
    other.
    """
    direct: bool = False

    @property
    def is_join(self) -> bool:
        return self.window == INTERVAL

    @property
    def word(self) -> str:
        """What comes out."""
        return "pairs" if self.is_join else "panes"


@dataclass(frozen=True)
class Batch:
    """One micro-batch of either side."""

    number: int
    events: int
    begin: float
    """When it began, in seconds of the wall clock."""
    milliseconds: int
    panes: int
    newest: int | None
    """The newest event so far."""
    watermark: int | None
    """Windows up to here are complete when the batch ends."""
    parts: dict[str, int] = field(default_factory=dict)
    """How long its parts took, as Spark names them."""

    @property
    def end(self) -> float:
        return self.begin + self.milliseconds / 1e3


@dataclass(frozen=True)
class Run:
    """What one side took for all of the events."""

    events: int
    panes: int
    dropped: int
    """Events that were too late for their windows."""
    events_per_second: float
    p50: float
    p99: float
    event_to_pane: float | None
    """Milliseconds from the begin of the batch that reads the event which completes windows until
    their panes are out; the median.
    """
    cpu: float | None
    """Seconds of processor time of all processes over the batches that are counted."""
    memory: dict[str, int]
    """The most bytes of the JVM, of the workers and of the driver."""
    state: int
    """Bytes of state in the checkpoint at the end."""
    sst: int
    """The most bytes that RocksDB had in sorted files; what is in its buffers is not in it."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def ours(spark: SparkSession, shape: Shape, folder: Path) -> Panes | Joined:
    """The pipeline of Tidegate."""
    if shape.is_join:
        left, right = (_stream(spark, shape, folder / name) for name in INPUTS)
        return left.join(right, within(BOUND, BOUND), on="key").options(semantics="spark")
    windowed = _stream(spark, shape, folder).window(WINDOWS[shape.window]())
    return windowed.options(semantics="spark").aggregate(
        n=count(), total=total("value"), top=largest("value")
    )


def _stream(spark: SparkSession, shape: Shape, folder: Path) -> Stream:
    from tidegate.spark import sources

    given: Any = (
        sources.parquet(str(folder), max_files_per_trigger=FILES_A_BATCH)
        if shape.direct
        else read(spark, folder)
    )
    return stream(given, time="ts", key="key", watermark=bounded(DELAY, unit="microseconds"))


def theirs(spark: SparkSession, shape: Shape, folder: Path) -> DataFrame:
    """Spark's own aggregation, or its own join."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

    if shape.is_join:
        left, right = (_watermarked(spark, folder / name).alias(name[0]) for name in INPUTS)
        meet = f"l.key = r.key AND l.ts BETWEEN r.ts - interval {BOUND} AND r.ts + interval {BOUND}"
        return left.join(right, F.expr(meet))
    windows: dict[str, Callable[[], Column]] = {
        "tumbling": lambda: F.window("ts", "1 minute"),
        "sliding": lambda: F.window("ts", SIZE, SLIDE),
        "session": lambda: F.session_window("ts", GAP),
    }
    grouped = _watermarked(spark, folder).groupBy(windows[shape.window]().alias("window"), "key")
    return grouped.agg(
        F.count("*").alias("n"), F.sum("value").alias("total"), F.max("value").alias("top")
    )


def _watermarked(spark: SparkSession, folder: Path) -> DataFrame:
    return read(spark, folder).withWatermark("ts", f"{DELAY // _MILLISECOND} milliseconds")


def read(spark: SparkSession, folder: Path) -> DataFrame:
    """The events as a streaming DataFrame."""
    return (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", FILES_A_BATCH)
        .parquet(str(folder))
    )


def warm(spark: SparkSession, side: str, shape: Shape, events: Events) -> None:
    """Run one side over few events, and forget what came of it."""
    with ExitStack() as stack:
        place = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        write(place / "events", events)
        query = _start(spark, side, shape, place / "events", str(place / "checkpoint"))
        stack.callback(query.stop)
        query.awaitTermination()


def run(spark: SparkSession, side: str, shape: Shape, folder: Path, say: Say) -> Run:
    """Run one side over all files, into a sink that keeps nothing."""
    with ExitStack() as stack:
        checkpoint = tempfile.mkdtemp(prefix="tidegate-bench-")
        stack.callback(shutil.rmtree, checkpoint, ignore_errors=True)
        with Usage() as usage:
            query = _start(spark, side, shape, folder, checkpoint)
            stack.callback(query.stop)
            progress = _watched(query, side, shape, say)
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
    # Pairs do not wait for a watermark.
    return replace(found, event_to_pane=None) if shape.is_join else found


def _start(
    spark: SparkSession, side: str, shape: Shape, folder: Path, checkpoint: str
) -> StreamingQuery:
    if side == THEIRS:
        writer = theirs(spark, shape, folder).writeStream.outputMode("append").format("noop")
        return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    from tidegate.spark.sinks import noop

    query = (
        ours(spark, shape, folder)
        .write(noop(), checkpoint=checkpoint, trigger="available_now")
        .spark_query
    )
    assert query is not None  # noqa: S101 - the source is a stream
    return query


def _watched(query: StreamingQuery, side: str, shape: Shape, say: Say) -> list[Any]:
    """The progress of all batches of a query that ends by itself."""
    told, ended = -1, False
    while not ended:
        ended = bool(query.awaitTermination(1))
        for given in query.recentProgress:
            batch = read_batch(side, shape, given)
            if batch.number > told:
                told = batch.number
                parts = ", ".join(
                    f"{name} {ms:,}"
                    for name, ms in batch.parts.items()
                    if name != "triggerExecution" and ms >= 50
                )
                say(
                    f"{side} batch {batch.number}: {batch.events:,} events, {batch.panes:,}"
                    f" {shape.word}, {batch.milliseconds:,} ms ({parts})"
                )
    # Spark reports a batch again where it found nothing to do.
    return list(
        {
            given.batchId: given
            for given in query.recentProgress
            if given.durationMs.get("addBatch") is not None
        }.values()
    )


def read_batch(side: str, shape: Shape, given: Any) -> Batch:
    """What Spark reports of a batch."""
    parts = {str(name): int(ms) for name, ms in given.durationMs.items()}
    begin, whole = _instant(given.timestamp) / 1e6, parts["triggerExecution"]
    if side == THEIRS:
        times = {name: _instant(text) for name, text in given.eventTime.items()}
        # Windows leave the state when they come out; rows of a join leave it when no partner can
        # come.
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
        found.batch,
        counts.get("events", 0),
        begin,
        whole,
        counts.get("panes_on_time", 0),
        found.newest,
        found.watermark,
        parts,
    )


def _instant(text: str) -> int:
    """A time as Spark writes it, in microseconds."""
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
    """The numbers of a run; batches without events and those that warm up are not counted."""
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
    )


def event_to_pane(batches: Sequence[Batch], counted: Sequence[Batch]) -> float | None:
    """How long panes take from the event that completes them.

    Spark's own windows learn of an event with the next batch, ours with the same one.
    """
    found = []
    for batch in counted:
        done = (
            one
            for one in batches
            if one.number >= batch.number and batch.newest is not None and one.watermark is not None
        )
        # Spark counts milliseconds.
        reached = (
            one.end
            for one in done
            if one.watermark + _MILLISECOND >= batch.newest - DELAY  # type: ignore[operator]
        )
        end = next(reached, None)
        if end is not None:
            found.append((end - batch.begin) * 1e3)
    return statistics.median(found) if found else None
