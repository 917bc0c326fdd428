"""What a query counts: the same numbers in its progress, for listeners, as Prometheus text and as a
table; and they add up.
"""

from __future__ import annotations

import datetime as dt
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.streaming.listener import StreamingQueryListener

import tidegate as tg
from support.prometheus_text import by_label, parse, single
from support.spark_streams import BASE, SECOND, Feed, Run, clicks
from tidegate.spark.metrics import CLASSES, COUNTERS, GAUGES
from tidegate.spark.query.progress import Progress
from tidegate.spark.sinks.base import SinkTarget

SCHEMA = pa.schema(
    {"user": pa.string(), "ts": pa.timestamp("us", "UTC"), "price": pa.float64(), "nr": pa.int64()}
)
DDL = "user string, ts timestamp, price double, nr long"
TAKEN = tuple(name for name in CLASSES if name != "duplicates")
"""A message that came before is no event."""
TIMINGS = ("early", "on_time", "late")


class Listener(StreamingQueryListener):
    """Keeps what a user's listener gets of every batch."""

    def __init__(self) -> None:
        self.heard: dict[int, dict[str, Any]] = {}
        self.took: dict[int, int] = {}

    def onQueryStarted(self, event: Any) -> None:
        """Nothing is asked of it."""

    def onQueryProgress(self, event: Any) -> None:
        found = event.progress.observedMetrics.get("tidegate")
        if found is not None:
            self.heard[event.progress.batchId] = found.asDict()
            self.took[event.progress.batchId] = event.progress.durationMs["triggerExecution"]

    def onQueryTerminated(self, event: Any) -> None:
        """Nothing is asked of it."""


def numbered(*rows: tuple[str, float | None, int]) -> list[dict]:
    return [
        {**click, "nr": nr}
        for click, (_, _, nr) in zip(
            clicks(*((user, at, 1.0) for user, at, _ in rows)), rows, strict=True
        )
    ]


def files() -> list[list[dict]]:
    """Every class of lateness; the windows of the second file fire, those of the fourth close."""
    tomorrow = time.time() + 86_400 - BASE / SECOND
    return [
        numbered(("a", 1, 1), ("b", 2, 2), ("a", 3, 3)),
        numbered(("a", 70, 4), ("b", 72, 5), ("a", 1, 1), ("c", None, 6)),
        numbered(("b", 20, 7), ("d", 130, 8)),
        numbered(("end", 4000, 9)),
        numbered(("a", 5, 10), ("a", tomorrow, 11)),
    ]


def pipeline(source):
    return (
        tg.stream(source, time="ts", key="user", id="nr", watermark=tg.bounded("10 seconds"))
        .window(tg.tumbling("1 minute"))
        .trigger(tg.after_watermark(early=tg.after_count(2), late=tg.after_count(1)))
        .allow_lateness("5 minutes")
        .retracting()
        .options(future="reject")
        .aggregate(n=tg.count(), spent=tg.sum("price"))
    )


@pytest.fixture(scope="module")
def feed(tmp_path_factory):
    found = Feed(tmp_path_factory.mktemp("counted"), SCHEMA)
    for rows in files():
        found.put(rows)
    return found


def table(folder: Path) -> list[dict]:
    return [
        row
        for name in sorted(folder.rglob("*.parquet"))
        for row in pq.read_table(name, partitioning=None).to_pylist()
    ]


def check_listener(listener: Listener, batches: list[Progress]) -> None:
    for batch in batches:
        heard = listener.heard[batch.batch_id]
        assert {name: heard[name] for name in (*COUNTERS, *GAUGES)} == batch.counts
        assert (heard["watermark"], heard["newest_event"], heard["clock"]) == (
            batch.watermark,
            batch.newest_event,
            batch.clock,
        )
        assert listener.took[batch.batch_id] == batch.duration_ms["triggerExecution"]


def check_table(rows: list[dict], batches: list[Progress]) -> None:
    """A row for each shard and batch."""
    assert len({(row["batch_id"], row["shard"]) for row in rows}) == len(rows) == 10
    for batch in batches:
        shards = [row for row in rows if row["batch_id"] == batch.batch_id]
        assert {
            name: sum(row[name] for row in shards) for name in (*COUNTERS, *GAUGES)
        } == batch.counts
        for row in shards:
            assert row["watermark_lag_seconds"] == (row["clock"] - row["watermark"]).total_seconds()
    reasons = Counter[str]()
    for row in rows:
        reasons.update(json.loads(row["late_by_reason"]))
    assert reasons == {"very_late": 1, "future": 1, "null_time": 1}


def check_text(samples, last: Progress, total: Counter[str]) -> None:
    """The Prometheus text: counts since the start, and the values after the last batch."""
    assert single(samples, "tidegate_batch_id") == 4
    assert by_label(samples, "tidegate_rows_total", "class") == {
        name: total[name] for name in CLASSES
    }
    for name in ("windows_opened", "windows_closed"):
        assert single(samples, f"tidegate_{name}_total") == total[name]
    assert by_label(samples, "tidegate_late_rows_by_reason_total", "reason") == {
        "very_late": 1,
        "future": 1,
        "null_time": 1,
    }
    assert single(samples, "tidegate_state_bytes") == last.counts["state_bytes"]
    assert single(samples, "tidegate_windows_open") == last.counts["windows_open"]
    assert single(samples, "tidegate_watermark_lag_seconds") == pytest.approx(
        last.watermark_lag_seconds, abs=1
    )
    assert (
        single(samples, "tidegate_batch_duration_seconds")
        == last.duration_ms["triggerExecution"] / 1000
    )


def test_all_ways_to_the_numbers_say_the_same_and_they_add_up(spark, feed, tmp_path):
    listener = Listener()
    spark.streams.addListener(listener)
    try:
        run = Run(
            pipeline(feed.stream(spark, DDL)),
            tmp_path / "ck",
            metrics=tg.sinks.parquet(tmp_path / "metrics"),
            trigger="available_now",
            shards=2,
        )
        run.query.await_termination()
        run.wait_for(lambda: len(listener.heard) == 5)
    finally:
        spark.streams.removeListener(listener)
    batches = run.query.recent_progress
    assert [batch.batch_id for batch in batches] == [0, 1, 2, 3, 4]
    assert [batch.counts["events"] + batch.counts["duplicates"] for batch in batches] == [
        len(rows) for rows in files()
    ]
    for batch in batches:
        assert batch.counts["events"] == sum(batch.counts[name] for name in TAKEN)
    total = Counter[str]()
    for batch in batches:
        total.update({name: batch.counts[name] for name in COUNTERS})
    classes = {
        "on_time": 7,
        "mildly_late": 1,
        "very_late": 1,
        "future": 1,
        "unreadable": 1,
        "duplicates": 1,
    }
    assert {name: total[name] for name in CLASSES} == classes
    # What came out is what was counted.
    assert total["late_rows"] == len(run.late) == 3
    assert {row["reason"] for row in run.late} == {"very_late", "future", "null_time"}
    timings = Counter(row["timing"] for row in run.panes if row["op"] == "+")
    assert {timing: total[f"panes_{timing}"] for timing in TIMINGS} == {
        timing: timings[timing] for timing in TIMINGS
    }
    assert total["retractions"] == sum(row["op"] == "-" for row in run.panes) > 0
    # What is held.
    opened = closed = 0
    for batch in batches:
        opened, closed = (
            opened + batch.counts["windows_opened"],
            closed + batch.counts["windows_closed"],
        )
        assert batch.counts["windows_open"] == opened - closed
        assert batch.counts["state_bytes"] > 0
        assert batch.counts["pending_output_bytes"] == 0
        assert batch.rocksdb_bytes > 0
        assert 0 < batch.duration_ms["addBatch"] <= batch.duration_ms["triggerExecution"]
    assert (opened, closed) == (6, 5)
    # Where it is in time.
    assert [(batch.watermark - BASE) / SECOND for batch in batches] == [-7, 62, 120, 3990, 3990]
    assert [(batch.newest_event - BASE) / SECOND for batch in batches] == [3, 72, 130, 4000, 4000]
    for batch in batches:
        assert batch.watermark_lag_seconds == (batch.clock - batch.watermark) / 1e6
        assert abs(batch.clock / 1e6 - time.time()) < 600
    check_listener(listener, batches)
    check_table(table(tmp_path / "metrics"), batches)
    check_text(parse(run.query.prometheus()), batches[-1], total)


def test_a_chain_of_two_keys_counts_what_came_in_and_what_came_out(spark, feed, tmp_path):
    total = (
        tg.stream(pipeline(feed.stream(spark, DDL)))
        .inherit()
        .retracting()
        .aggregate(users=tg.count())
    )
    file = tmp_path / "text" / "tidegate.prom"
    run = Run(
        total, tmp_path / "ck", metrics=tg.sinks.prometheus(file), trigger="available_now", shards=2
    )
    run.query.await_termination()
    batches = run.query.recent_progress
    counted = Counter[str]()
    for batch in batches:
        counted.update({name: batch.counts[name] for name in COUNTERS})
    assert counted["events"] == sum(counted[name] for name in TAKEN) == 11
    assert counted["late_rows"] == len(run.late) == 3
    timings = Counter(row["timing"] for row in run.panes if row["op"] == "+")
    assert {timing: counted[f"panes_{timing}"] for timing in TIMINGS} == {
        timing: timings[timing] for timing in TIMINGS
    }
    assert counted["retractions"] == sum(row["op"] == "-" for row in run.panes)
    assert batches[1].counts["windows_open"] > 0
    assert batches[-1].counts["windows_open"] == 0, (
        "all of the last operator are complete, whatever the first one has open"
    )
    assert (batches[-1].newest_event - BASE) / SECOND == 4000, (
        "the newest event, and not the end of a pane"
    )
    # Counters of the file are over all batches.
    samples = parse(file.read_text())
    assert by_label(samples, "tidegate_events_total", "query") == {run.query.id: 11}
    assert by_label(samples, "tidegate_rows_total", "class") == {
        name: counted[name] for name in CLASSES
    }
    assert by_label(samples, "tidegate_panes_total", "timing") == {
        timing: counted[f"panes_{timing}"] for timing in TIMINGS
    }
    assert single(samples, "tidegate_late_rows_total") == 3
    assert single(samples, "tidegate_windows_open") == batches[-1].counts["windows_open"]
    assert [path.name for path in file.parent.iterdir()] == ["tidegate.prom"], (
        "nothing is left beside it"
    )


def test_a_shard_that_is_called_twice_in_a_batch_is_counted_once(spark, tmp_path):
    """Rows and a timer that is due come together: what is held is still what is there."""
    feed = Feed(tmp_path / "in")
    panes = (
        tg.stream(feed.stream(spark), time="ts", key="user", watermark=tg.bounded("0 seconds"))
        .window(tg.tumbling("1 minute"))
        .trigger(tg.after_watermark(early=tg.every("1 second")))
        .aggregate(n=tg.count())
    )
    # One file a batch: what the first leaves to a timer is due when the next one comes.
    for number in range(4):
        feed.put(clicks(("a", 1 + number, 1.0), ("b", 2 + number, 1.0)))
    sink = tg.sinks.memory(f"metrics_{tmp_path.name}")
    run = Run(panes, tmp_path / "ck", metrics=sink, trigger="1500 ms", shards=1)
    try:
        run.query.process_all_available()
    finally:
        run.query.stop()
    kept = sink.rows()
    calls = Counter(row["batch_id"] for row in kept)
    assert max(calls.values()) == 2
    for batch in calls:
        assert sum(row["windows_open"] for row in kept if row["batch_id"] == batch) == 2
        assert sum(row["state_bytes"] for row in kept if row["batch_id"] == batch) > 0


def test_another_query_that_writes_the_same_file_begins_anew(tmp_path):
    sink = tg.sinks.prometheus(tmp_path / "t.prom")
    row = dict.fromkeys((*COUNTERS, *GAUGES), 0) | {
        "operator": 0,
        "shard": 0,
        "late_by_reason": "{}",
        "events": 5,
        **dict.fromkeys(("watermark", "newest_event", "clock")),
    }
    for query, batch, expected in (("one", 0, 5), ("one", 1, 10), ("one", 1, 10), ("two", 0, 5)):
        target = SinkTarget(query, "metrics", pa.schema([]), (), "accumulating")
        sink.write(target, batch, iter([pa.Table.from_pylist([row])]))
        assert by_label(
            parse((tmp_path / "t.prom").read_text()), "tidegate_events_total", "query"
        ) == {query: expected}


def test_an_idle_batch_keeps_the_values_in_the_file_and_its_lag_grows(tmp_path):
    file = tmp_path / "t.prom"
    sink = tg.sinks.prometheus(file)
    at = dt.datetime(2025, 1, 1, tzinfo=dt.UTC)
    row = dict.fromkeys((*COUNTERS, *GAUGES), 0) | {
        "operator": 0,
        "shard": 0,
        "late_by_reason": '{"very_late": 2}',
        "events": 5,
        "watermark": at,
        "newest_event": at,
        "clock": at,
        "windows_open": 3,
    }
    target = SinkTarget("id", "metrics", pa.schema([]), (), "accumulating", name="clicks")
    sink.write(target, 0, iter([pa.Table.from_pylist([row, {**row, "shard": 1}])]))
    before = parse(file.read_text())
    sink.write(target, 1, iter([]))
    sink.write(target, 2, iter([pa.Table.from_pylist([{**row, "windows_open": 1}])]))
    after = parse(file.read_text())
    assert by_label(after, "tidegate_events_total", "query") == {"clicks": 15}
    assert by_label(after, "tidegate_late_rows_by_reason_total", "reason") == {"very_late": 6}
    assert single(before, "tidegate_windows_open") == 6
    assert single(after, "tidegate_windows_open") == 4, "a shard that was not called has 3"
    lag = "tidegate_watermark_lag_seconds"
    assert single(after, lag) > single(before, lag) > 0
