"""Every sink in a real query, whose last batch is run again after a restart: nothing is lost, and
nothing is there twice.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import count
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import tidegate as tg
from support.spark_streams import BASE, SECOND, Feed, clicks, netted

NUMBERS = count()
AMONG = [("a", 1, 1.0), ("b", 2, 2.0), ("a", 3, 4.0), ("c", 75, 8.0)]
"""Their watermark completes the first minute."""
AGAIN = [("b", 20, 16.0), ("z", -900, 1.0)]
"""A correction and an event that is too late; the batch that is run again."""
STANDING = {("a", 0): (2, 5.0), ("b", 0): (2, 18.0)}
LATE = [("z", "very_late")]


@pytest.fixture(scope="module")
def feed(tmp_path_factory):
    found = Feed(tmp_path_factory.mktemp("sinks"))
    for rows in (AMONG, AGAIN):
        found.put(clicks(*rows))
    return found


class Restarted:
    """A query of two batches that can be started again with the last of them not committed."""

    def __init__(self, pipeline, folder: Path, to, late=None, metrics=None) -> None:
        self.pipeline, self.checkpoint = pipeline, folder / "ck"
        self.sinks = {"to": to, "late": late, "metrics": metrics}
        self.run()

    def run(self) -> list[int]:
        """Run to the end; the batches that ran."""
        query = self.pipeline.write(
            **self.sinks, checkpoint=str(self.checkpoint), trigger="available_now", shards=2
        )
        query.await_termination()
        return [batch.batch_id for batch in query.recent_progress]

    def again(self) -> None:
        """A batch whose output is written but which Spark does not know as done runs again."""
        for name in ("1", ".1.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)
        assert self.run() == [1]


def panes_of(spark, feed, mode: str):
    windows = tg.stream(
        feed.stream(spark), time="ts", key="user", watermark=tg.bounded("5 seconds")
    ).window(tg.tumbling("1 minute"))
    fired = windows.trigger(tg.after_watermark(late=tg.after_count(1))).allow_lateness("5 minutes")
    return getattr(fired, mode)().aggregate(n=tg.count(), spent=tg.sum("price"))


def seconds(moment) -> float:
    return moment.timestamp() - BASE / SECOND


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("accumulating", [("a", 0, 0, 2, 5.0), ("b", 0, 1, 2, 18.0)]),
        ("retracting", [("a", 0, 0, 2, 5.0), ("b", 0, 1, 2, 18.0)]),
        ("discarding", [("a", 0, 0, 2, 5.0), ("b", 0, 0, 1, 2.0), ("b", 0, 1, 1, 16.0)]),
    ],
)
def test_postgres_holds_what_stands(mode, wanted, spark, feed, postgres, tmp_path):
    table, late = (f"{name}_in_queries_{next(NUMBERS)}" for name in ("panes", "late"))
    metrics = tg.sinks.memory(f"metrics_{table}")

    def held() -> list[tuple]:
        found = postgres.query(f'SELECT "user", window_start, pane, n, spent FROM {table}')
        return sorted((user, seconds(start), *rest) for user, start, *rest in found)

    query = Restarted(
        panes_of(spark, feed, mode),
        tmp_path,
        tg.sinks.postgres(postgres.dsn, table),
        tg.sinks.postgres(postgres.dsn, late),
        metrics,
    )
    assert held() == wanted
    query.again()
    assert held() == wanted
    assert postgres.query(f'SELECT "user", class FROM {late}') == LATE
    assert sum(row["events"] for row in metrics.rows()) == len(AMONG) + len(AGAIN), (
        "memory replaces a batch that is replayed"
    )


@pytest.mark.kafka
def test_kafka_holds_each_pane_once_for_readers_of_what_is_committed(spark, feed, kafka, tmp_path):
    panes, late = (
        kafka.create_topic(f"{name}-in-queries-{next(NUMBERS)}", 2) for name in ("panes", "late")
    )
    sinks = [tg.sinks.kafka(kafka.bootstrap_servers, topic) for topic in (panes, late)]
    query = Restarted(panes_of(spark, feed, "retracting"), tmp_path, *sinks)

    def held() -> list[tuple]:
        return sorted(
            (m.json["user"], m.json["op"], m.json["n"], m.headers["timing"].decode())
            for m in kafka.consume(panes)
        )

    wanted = [
        ("a", "+", 2, "on_time"),
        ("b", "+", 1, "on_time"),
        ("b", "+", 2, "late"),
        ("b", "-", 1, "on_time"),
    ]
    assert held() == wanted
    query.again()
    assert held() == wanted
    messages = kafka.consume(panes)
    assert {json.loads(message.key)["user"] for message in messages} == {"a", "b"}
    assert (
        len({message.headers["pane_id"] for message in messages if message.headers["op"] == b"+"})
        == 3
    )
    assert [
        (message.json["user"], message.json["class"]) for message in kafka.consume(late)
    ] == LATE


def test_delta_appends_once(spark, feed, tmp_path):
    from deltalake import DeltaTable

    places = [tmp_path / name for name in ("panes", "late", "metrics")]
    query = Restarted(
        panes_of(spark, feed, "retracting"), tmp_path, *(tg.sinks.delta(place) for place in places)
    )
    before = [DeltaTable(place).to_pyarrow_table().num_rows for place in places]
    query.again()
    panes, late, metrics = (DeltaTable(place).to_pyarrow_table() for place in places)
    assert [panes.num_rows, late.num_rows, metrics.num_rows] == before == [4, 1, 4]
    assert (
        netted(
            sorted(panes.to_pylist(), key=lambda row: (row["emitted_at"], row["op"] == "+")),
            ["user"],
            "n",
            "spent",
        )
        == STANDING
    )
    assert "pane_id" not in panes.column_names


def test_parquet_folders_of_a_batch_are_replaced(spark, feed, tmp_path):
    sinks = [tg.sinks.parquet(tmp_path / name) for name in ("panes", "late")]
    query = Restarted(panes_of(spark, feed, "retracting"), tmp_path, *sinks)

    def held(name: str) -> dict[str, list[dict]]:
        files = sorted((tmp_path / name).rglob("*.parquet"))
        found: dict[str, list[dict]] = {}
        for file in files:
            found.setdefault(file.parent.name, []).extend(
                pq.read_table(file, partitioning=None).to_pylist()
            )
        return found

    before = held("panes")
    query.again()
    after = held("panes")
    assert {
        batch: Counter((row["user"], row["op"], row["n"]) for row in rows)
        for batch, rows in after.items()
    } == {
        "batch=0": Counter([("a", "+", 2), ("b", "+", 1)]),
        "batch=1": Counter([("b", "-", 1), ("b", "+", 2)]),
    }
    assert before.keys() == after.keys()
    assert (
        netted([row for batch in sorted(after) for row in after[batch]], ["user"], "n", "spent")
        == STANDING
    )
    assert [(row["user"], row["class"]) for rows in held("late").values() for row in rows] == LATE


def test_a_function_gets_a_replayed_batch_under_the_same_id_and_the_console_says_so(
    spark, feed, tmp_path, capsys
):
    came: list[tuple[int, list[tuple]]] = []

    def take(frame, batch: int) -> None:
        assert frame.columns[-2:] == ["watermark", "emitted_at"]
        came.append((batch, sorted((row.user, row.op, row.n) for row in frame.collect())))

    query = Restarted(
        panes_of(spark, feed, "accumulating"),
        tmp_path,
        tg.sinks.foreach_batch(take),
        tg.sinks.console(),
    )
    first, second = (0, [("a", "+", 2), ("b", "+", 1)]), (1, [("b", "+", 2)])
    assert came == [first, second]
    told = capsys.readouterr().out
    assert "-- batch 1, late: 1 row --" in told
    assert "very_late" in told
    query.again()
    assert came == [first, second, second]
    assert "-- batch 1, late: 1 row, replayed --" in capsys.readouterr().out
