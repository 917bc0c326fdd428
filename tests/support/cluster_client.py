"""A program that runs a pipeline on a standalone cluster and prints what it saw as JSON; its
classes travel to the executors by value.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

import tidegate as tg
from tidegate.spark.sinks import SinkTarget, TaskSink

DDL = "user string, ts timestamp, price double"


@dataclass(frozen=True)
class Places(TaskSink):
    """Notes in which folder, which each executor has of its own, every shard was measured."""

    file: str

    def stage(
        self, target: SinkTarget, batch: int, task: str, tables: Iterator[pa.Table]
    ) -> list[str]:
        # Staging runs in the task of the operator itself: there is no shuffle between them.
        return [
            json.dumps({"batch": batch, "shard": row["shard"], "executor": str(Path.cwd())})
            for table in tables
            for row in table.to_pylist()
        ]

    def publish(self, target: SinkTarget, batch: int, staged: list[str]) -> None:
        with Path(self.file).open("a") as file:
            file.writelines(f"{line}\n" for line in staged)


def main(url: str, feed: str, folder: str) -> None:
    out = Path(folder)
    spark = tg.spark_session("on a cluster", master=url, cores=2, memory="800m")
    source = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(feed)
    aggregates = {"n": tg.count(), "spent": tg.sum("price")}
    query = (
        tg.stream(source, time="ts", key="user", watermark=tg.bounded("10 seconds"))
        .window(tg.tumbling("1 minute"))
        .trigger(tg.after_watermark(early=tg.after_count(2), late=tg.after_count(1)))
        .allow_lateness("1 hour")
        .retracting()
        .aggregate(**aggregates)
        .write(
            tg.sinks.parquet(out / "panes"),
            metrics=Places(str(out / "places")),
            checkpoint=str(out / "ck"),
            trigger="available_now",
            shards=4,
        )
    )
    query.await_termination()
    batch = (
        tg.stream(spark.read.schema(DDL).parquet(feed), time="ts", key="user")
        .window(tg.tumbling("1 minute"))
        .aggregate(**aggregates)
        .df
    )
    answer = [[row.user, row.window_start.timestamp(), row.n, row.spent] for row in batch.collect()]
    print(
        json.dumps(
            {
                "master": spark.conf.get("spark.master"),
                "events": sum(p.counts["events"] for p in query.recent_progress),
                "answer": answer,
            }
        )
    )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
