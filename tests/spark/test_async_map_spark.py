"""An async map in front of windows, inside the reading tasks of real queries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import tidegate as tg
from support.async_service import priced
from support.spark_streams import BASE, SECOND, Feed, clicks, finished

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "*, loop string"


def counted(source: Any) -> tg.Panes:
    return (
        tg.stream(source, time="ts", key="user", watermark=tg.bounded("5 seconds"))
        .async_map(priced, schema=SCHEMA, max_in_flight=8, retries=1, backoff="1 ms")
        .window(tg.tumbling("1 minute"))
        .aggregate(n=tg.count(), spent=tg.sum("price"), loops=tg.list_("loop"))
    )


def shown(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    start = "window_start"
    return sorted(
        (row["user"], (row[start].timestamp() * SECOND - BASE) / SECOND, row["n"], row["spent"])
        for row in rows
    )


def test_a_stream_calls_in_its_tasks_and_sends_failures_to_late(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(tmp_path / "in")
    # A price below zero fails, none drops the message.
    feed.put(clicks(("ann", 1, 1.0), ("bob", 2, -1.0), ("ann", 3, 2.0), ("bob", 4, None)))
    feed.put(clicks(("bob", 30, 4.0), ("ann", 61, 8.0)))
    feed.put(clicks(("eve", 200, -1.0)))
    run = finished(counted(feed.stream(spark)), tmp_path / "checkpoint")
    # The watermark follows the message of eve, although its call fails.
    assert shown(run.panes) == [("ann", 0, 2, 6.0), ("ann", 60, 1, 16.0), ("bob", 0, 1, 8.0)]
    late = [(row["user"], row["price"], row["reason"], row["detail"]) for row in run.late]
    assert sorted(late) == [
        ("bob", -1.0, "async_failed", "ValueError: -1.0 is no price"),
        ("eve", -1.0, "async_failed", "ValueError: -1.0 is no price"),
    ]
    # A worker process keeps its event loop over tasks and batches.
    loops = [loop for row in run.panes for loop in row["loops"]]
    assert len({loop.split()[0] for loop in loops}) == len(set(loops))


def test_a_direct_batch_calls_in_its_reader_and_the_function_may_be_local(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(tmp_path / "in")
    feed.put(clicks(("ann", 1, 1.0), ("ann", 2, None), ("bob", 61, 3.0)))

    async def local(row: dict[str, Any]) -> Any:
        return None if row["price"] is None else {"who": row["user"], "ts": row["ts"]}

    panes = (
        tg.stream(tg.sources.parquet(tmp_path / "in", streaming=False), time="ts", key="user")
        .async_map(local, schema="who string, ts timestamp", ordered=False)
        .stream(key="who")
        .window(tg.tumbling("1 minute"))
        .aggregate(n=tg.count())
    )
    assert sorted((row["who"], row["n"]) for row in panes.df.collect()) == [("ann", 1), ("bob", 1)]
