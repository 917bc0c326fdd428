"""A program that runs pipelines through Spark Connect and prints what it saw as JSON; functions of
it travel to the server by value.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.streaming.listener import StreamingQueryListener

import tidegate as tg
from tidegate.errors import InputError, WatermarkError
from tidegate.spark.query.settings import NO_DATA_BATCHES, spark_settings

DDL = "user string, ts timestamp, price double"


def first_letter(table: pa.Table) -> pa.ChunkedArray:
    return pc.utf8_upper(pc.utf8_slice_codeunits(table.column("user"), 0, 1))


def windowed(source: Any, key: Any) -> Any:
    return (
        tg.stream(source, time="ts", key=key, watermark=tg.bounded("10 seconds"))
        .window(tg.tumbling("1 minute"))
        .trigger(tg.after_watermark(early=tg.after_count(2), late=tg.after_count(1)))
        .allow_lateness("5 minutes")
        .retracting()
    )


def followed(spark: SparkSession, feed: str) -> DataFrame:
    return spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(feed)


def written(spark: SparkSession, feed: str, out: Path) -> dict[str, Any]:
    """Panes, late rows and metrics at parquet sinks, keyed by a function; with what a listener
    heard and the progress says.
    """
    heard: list[dict[str, Any]] = []

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:
            """Nothing is asked of it."""

        def onQueryProgress(self, event: Any) -> None:
            found = event.progress.observedMetrics.get("tidegate")
            if found is not None:
                heard.append(found.asDict())

        def onQueryTerminated(self, event: Any) -> None:
            """Nothing is asked of it."""

    listener = Listener()
    spark.streams.addListener(listener)
    query = (
        windowed(followed(spark, feed), ["user", first_letter])
        .aggregate(n=tg.count(), spent=tg.sum("price"))
        .write(
            tg.sinks.parquet(out / "panes"),
            late=tg.sinks.parquet(out / "late"),
            metrics=tg.sinks.parquet(out / "metrics"),
            checkpoint=str(out / "ck"),
            trigger="available_now",
            name="through_connect",
        )
    )
    query.await_termination()
    progress = query.recent_progress
    listened = wait(
        lambda: (
            sum(batch["events"] for batch in heard)
            >= sum(batch.counts["events"] for batch in progress)
        )
    )
    spark.streams.removeListener(listener)
    return {
        "id": query.id,
        "name": query.name,
        "active": query.is_active,
        "failed": str(query.exception()) if query.exception() else None,
        "progress": [batch.to_dict() for batch in progress],
        "prometheus": query.prometheus(),
        "status": query.status().to_dict(),
        "explained": str(query.explain_watermark()),
        "why": str(query.why(("ann", "A"))),
        "heard": heard if listened else None,
    }


def wait(happened: Any, seconds: float = 60) -> bool:
    import time

    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def streamed(spark: SparkSession, feed: str, out: Path) -> list[str]:
    """A change feed as a plain DataFrame, transformed and written by Spark."""
    frame = windowed(followed(spark, feed), "user").aggregate(n=tg.count()).changelog().df
    changed = frame.transform(
        lambda rows: rows.where("user <> 'end'").withColumn("minute", F.minute("window_start"))
    )
    writer = (
        changed.writeStream.format("parquet")
        .option("path", str(out / "changes"))
        .option("checkpointLocation", str(out / "changes-ck"))
    )
    with spark_settings(spark, {NO_DATA_BATCHES: "false"}):
        query = writer.trigger(availableNow=True).outputMode("append").start()
    query.awaitTermination()
    return frame.columns


def rekeyed(spark: SparkSession, feed: str, out: Path) -> dict[str, Any]:
    """Direct files, a chain of another key, a user's function as the sink, and metrics as text; all
    of it runs in processes of the server.
    """

    def keep(frame: DataFrame, batch: int) -> None:
        frame.coalesce(1).write.mode("overwrite").parquet(f"{out}/totals/batch={batch}")

    source = tg.sources.parquet(feed, max_files_per_trigger=2, spark=spark)
    users = windowed(source, "user").aggregate(n=tg.count(), spent=tg.sum("price"))
    total = (
        tg.stream(users).inherit().retracting().aggregate(users=tg.count(), spent=tg.sum("spent"))
    )
    query = total.write(
        tg.sinks.foreach_batch(keep),
        metrics=tg.sinks.prometheus(out / "metrics.prom"),
        checkpoint=str(out / "totals-ck"),
        trigger="available_now",
    )
    query.await_termination()
    return {"progress": [batch.to_dict() for batch in query.recent_progress]}


def finite(spark: SparkSession, feed: str) -> dict[str, Any]:
    """A batch: its panes, its late rows, and a sink that keeps rows in the process that runs it,
    which is this one.
    """
    frame = spark.read.schema(DDL).parquet(feed)
    windows = tg.stream(frame, time=F.col("ts"), key=["user", first_letter]).window(
        tg.tumbling("1 minute")
    )
    panes = windows.aggregate(n=tg.count(), spent=tg.sum("price"))
    rows = [
        [row.user, row.first_letter, row.window_start.timestamp(), row.n, row.spent]
        for row in panes.df.collect()
    ]
    sink = tg.sinks.memory("here")
    panes.write(sink)
    return {
        "columns": panes.df.columns,
        "rows": rows,
        "late": panes.late_df.count(),
        "kept": sink.table().num_rows,
    }


def in_memory(spark: SparkSession, feed: str, out: Path) -> str:
    """The rows of a streaming query are in a process of the server, and that is said."""
    sink = tg.sinks.memory("there")
    panes = windowed(followed(spark, feed), "user").aggregate(n=tg.count())
    panes.write(
        sink, checkpoint=str(out / "memory-ck"), trigger="available_now"
    ).await_termination()
    try:
        return f"{sink.table().num_rows} rows"
    except InputError as error:
        return str(error)


def failing(spark: SparkSession, feed: str, out: Path) -> list[str]:
    """The errors of a query whose strict watermark goes back: raised, and returned."""
    source = followed(spark, feed).selectExpr("*", "ts as mark")
    strict = tg.stream(source, time="ts", key="user", watermark=tg.punctuated("mark"))
    panes = strict.window(tg.tumbling("1 minute")).options(strict=True).aggregate(n=tg.count())
    query = panes.write(tg.sinks.noop(), checkpoint=str(out / "strict-ck"), trigger="available_now")
    try:
        query.await_termination()
    except WatermarkError as error:
        return [str(error), repr(query.exception()), type(error.__cause__).__name__]
    return []


def main(url: str, feed: str, folder: str) -> None:
    out = Path(folder)
    spark = tg.spark_session("clients", remote=url)
    try:
        print(json.dumps(_seen(spark, feed, out), default=str))
    finally:
        # Threads of listeners would keep the process.
        spark.stop()


def _seen(spark: SparkSession, feed: str, out: Path) -> dict[str, Any]:
    return {
        "session": type(spark).__module__,
        "finite": finite(spark, feed),
        "written": written(spark, feed, out),
        "streamed": streamed(spark, feed, out),
        "rekeyed": rekeyed(spark, feed, out),
        "memory": in_memory(spark, feed, out),
        "failing": failing(spark, feed, out),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
