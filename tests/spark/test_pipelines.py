"""Pipelines on real Spark: columns, expressions, unions, chains, timers and change feeds give what
batches and Spark itself give.
"""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

import tidegate as tg
from support.column_functions import middle, owner, patience, seconds
from support.spark_streams import BASE, SECOND, Feed, Run, clicks, finished, netted
from tidegate.errors import SpecError
from tidegate.spark.query.settings import NO_DATA_BATCHES, spark_settings

EAGER = tg.after_watermark(early=tg.after_count(2), late=tg.after_count(1))
OURS = ["window_start", "window_end", "op", "timing", "pane", "is_first", "is_last"]
WORDS = pa.schema(
    {"who": pa.string(), "stamp": pa.string(), "price": pa.float64(), "nr": pa.int64()}
)
WORDS_DDL = "who string, stamp string, price double, nr long"


def traffic(seed: int, size: int = 60) -> list[tuple[str, float, float]]:
    """Out of order by up to 20 seconds, five seconds a click."""
    dice = random.Random(seed)
    return [
        (dice.choice("abcdef"), 5 * n + dice.randrange(0, 20), float(dice.randrange(1, 9)))
        for n in range(size)
    ]


@pytest.fixture(scope="module")
def feed(tmp_path_factory):
    """Three files of random traffic, and one that closes their windows."""
    found, rows = Feed(tmp_path_factory.mktemp("feed")), traffic(1)
    for start in range(0, len(rows), 20):
        found.put(clicks(*rows[start : start + 20]))
    found.put(clicks(("end", 4000, 0.0)))
    return found


def windowed(source, **more):
    return (
        tg.stream(
            source, **{"time": "ts", "key": "user", "watermark": tg.bounded("10 seconds"), **more}
        )
        .window(tg.tumbling("1 minute"))
        .trigger(EAGER)
        .allow_lateness("1 hour")
        .retracting()
    )


def own_answer(frame, *aggregates):
    """What Spark's own aggregation says, by user and start in seconds."""
    grouped = frame.groupBy("user", F.window("ts", "1 minute")).agg(*aggregates)
    return {
        (row[0], row[1].start.timestamp() - BASE / SECOND): tuple(row[2:])
        for row in grouped.collect()
    }


@pytest.fixture(scope="module")
def answer(spark, feed):
    return own_answer(feed.batch(spark), F.count("*"), F.sum("price"), F.max("price"))


def complete(found):
    """Without the window that nothing closes."""
    return {place: value for place, value in found.items() if place[-1] < 3600}


AGGREGATES = {"n": tg.count(), "spent": tg.sum("price"), "best": tg.max("price")}


def test_a_batch_frame_gives_what_spark_gives(spark, feed, answer):
    panes = (
        tg.stream(feed.batch(spark), time="ts", key="user")
        .window(tg.tumbling("1 minute"))
        .aggregate(**AGGREGATES)
    )
    assert panes.df.columns == ["user", *OURS, "n", "spent", "best", "watermark", "emitted_at"]
    found = {
        (row.user, row.window_start.timestamp() - BASE / SECOND): (row.n, row.spent, row.best)
        for row in panes.df.collect()
    }
    assert found == answer


def test_a_stream_comes_to_the_answer_of_the_batch(spark, feed, answer, tmp_path):
    run = finished(windowed(feed.stream(spark)).aggregate(**AGGREGATES), tmp_path / "ck", shards=3)
    assert run.panes_sink.table().column_names == [
        "user",
        *OURS,
        "n",
        "spent",
        "best",
        "watermark",
        "emitted_at",
    ]
    assert complete(netted(run.panes, ["user"], "n", "spent", "best")) == complete(answer)
    assert {row["timing"] for row in run.panes} >= {"early", "on_time"}
    assert run.late == []
    assert sum(batch.counts["events"] for batch in run.query.recent_progress) == 61


def test_columns_by_expression_and_by_function(spark, feed, answer, tmp_path):
    words = Feed(tmp_path / "in", WORDS)
    for number, click in enumerate(traffic(1)):
        who, second, price = click
        if number % 20 == 0:
            rows: list[dict[str, object]] = []
        rows.append(
            {
                "who": f" {who.upper()} ",
                "stamp": str(BASE + second * SECOND),
                "price": price,
                "nr": number,
            }
        )
        if number % 20 == 19:
            words.put([*rows, rows[3]])
    words.put([{"who": "END", "stamp": str(BASE + 4000 * SECOND), "price": 0.0, "nr": 999}])

    def user(table: pa.Table) -> pa.ChunkedArray:
        return pc.utf8_lower(pc.utf8_trim_whitespace(table.column("who")))

    panes = windowed(
        words.stream(spark, WORDS_DDL),
        time=F.timestamp_micros(F.col("stamp").cast("long")).alias("at"),
        key=user,
        id=lambda table: pc.cast(table.column("nr"), pa.string()),
    ).aggregate(**AGGREGATES)
    shown = panes.df.transform(
        lambda frame: frame.where("op = '+'").withColumn("minute", F.minute("window_start"))
    )
    writer = (
        shown.writeStream.format("memory")
        .queryName("by_expression")
        .option("checkpointLocation", str(tmp_path / "ck"))
    )
    with spark_settings(spark, {NO_DATA_BATCHES: "false"}):
        query = writer.trigger(availableNow=True).outputMode("append").start()
    query.awaitTermination()
    frame = spark.table("by_expression")
    assert frame.columns == [
        "user",
        *OURS,
        "n",
        "spent",
        "best",
        "watermark",
        "emitted_at",
        "minute",
    ]
    standing = {}
    for row in frame.orderBy("pane").collect():
        standing[row.user, row.window_start.timestamp() - BASE / SECOND] = (
            row.n,
            row.spent,
            row.best,
        )
    assert complete(standing) == complete(answer), (
        "the last pane of each window; messages that came twice count once"
    )


def test_united_inputs_wait_for_each_other(spark, tmp_path):
    first, second = Feed(tmp_path / "one"), Feed(tmp_path / "two")
    first.put(clicks(("a", 1, 1.0), ("b", 500, 1.0)))
    second.put(clicks(("a", 2, 2.0), ("c", 70, 4.0)))
    streams = [
        tg.stream(feed.stream(spark), time="ts", key="user", watermark=tg.ascending())
        for feed in (first, second)
    ]
    panes = (
        tg.union(*streams)
        .window(tg.tumbling("1 minute"))
        .aggregate(n=tg.count(), spent=tg.sum("price"))
    )
    run = finished(panes, tmp_path / "ck")
    assert netted(run.panes, ["user"], "n", "spent") == {("a", 0): (2, 3.0)}, (
        "the second input is at 70 seconds"
    )


def test_a_chain_of_one_key_and_one_of_another_key(spark, feed, answer, tmp_path):
    first = windowed(feed.stream(spark)).aggregate(n=tg.count(), spent=tg.sum("price"))
    fused = (
        tg.stream(first, key="user")
        .inherit()
        .trigger(EAGER)
        .retracting()
        .aggregate(most=tg.max("spent"))
    )
    run = finished(fused, tmp_path / "one")
    assert complete(netted(run.panes, ["user"], "most")) == complete(
        {place: (value[1],) for place, value in answer.items()}
    )
    everybody = (
        tg.stream(first)
        .inherit()
        .trigger(EAGER)
        .retracting()
        .aggregate(users=tg.count(), spent=tg.sum("spent"))
    )
    run = finished(everybody, tmp_path / "two", shards=2)
    wanted: dict[tuple[float], tuple[int, float]] = {}
    for (_, start), (_, spent, _) in answer.items():
        users, total = wanted.get((start,), (0, 0.0))
        wanted[start,] = (users + 1, total + spent)
    assert complete(netted(run.panes, [], "users", "spent")) == complete(wanted)
    assert run.panes_sink.table().column_names == [
        *OURS,
        "users",
        "spent",
        "watermark",
        "emitted_at",
    ]


def test_timers_work_while_no_data_comes(spark, tmp_path):
    """An early pane by the clock, and an input that falls silent: nothing is written to either
    folder after the first file.
    """
    feed, silent = Feed(tmp_path / "one"), Feed(tmp_path / "two")
    mark = tg.bounded("0 seconds", idle_after="6 seconds")
    streams = [
        tg.stream(one.stream(spark), time="ts", key="user", watermark=mark)
        for one in (feed, silent)
    ]
    early = tg.after_watermark(early=tg.every("2 seconds"))
    panes = (
        tg.union(*streams).window(tg.tumbling("1 minute")).trigger(early).aggregate(n=tg.count())
    )
    feed.put(clicks(("a", 1, 1.0), ("b", 65, 1.0)))
    run = Run(panes, tmp_path / "ck", trigger="250 ms")
    try:
        # On a slow machine `a` may be complete before its early pane is due; `b` waits for an event
        # that never comes.
        run.wait_for(
            lambda: (
                {(row["user"], row["timing"]) for row in run.panes}
                >= {("b", "early"), ("a", "on_time")}
            )
        )
    finally:
        run.query.stop()
    assert Counter((row["user"], row["timing"]) for row in run.panes)["a", "on_time"] == 1


def test_windows_on_the_clock_count_every_row_once(spark, tmp_path):
    feed = Feed(tmp_path / "in")
    panes = (
        tg.stream(feed.stream(spark), time="ts", key="user")
        .window(tg.tumbling("1 second", axis="clock"))
        .trigger(tg.after_watermark())
        .aggregate(n=tg.count(), spent=tg.sum("price"))
    )
    feed.put(clicks(("a", None, 1.0), *(("ab"[n % 2], n - 200, 2.0) for n in range(400))))
    run = Run(panes, tmp_path / "ck", trigger="250 ms")
    try:
        run.wait_for(lambda: sum(row["n"] for row in run.panes) == 400)
        feed.put(clicks(*(("b", n, 1.0) for n in range(100))))
        run.wait_for(lambda: sum(row["n"] for row in run.panes) == 500)
    finally:
        run.query.stop()
    spent = Counter[str]()
    for row in run.panes:
        spent[row["user"]] += row["spent"]
        assert row["window_end"] - row["window_start"] == timedelta(seconds=1)
    assert spent == {"a": 400.0, "b": 500.0}
    assert [row["reason"] for row in run.late] == ["null_time"]
    assert not (tmp_path / "ck" / "tidegate" / "watermarks").exists()


def test_a_change_feed_of_corrections(spark, tmp_path):
    feed = Feed(tmp_path / "in")
    feed.put(clicks(("a", 1, 1.0), ("b", 2, 1.0)))
    feed.put(clicks(("a", 100, 1.0)))
    feed.put(clicks(("a", 3, 5.0)))
    panes = (
        windowed(feed.stream(spark))
        .trigger(tg.after_watermark(late=tg.after_count(1)))
        .aggregate(spent=tg.sum("price"))
        .changelog()
    )
    run = finished(panes, tmp_path / "ck")
    rows = [(row["user"], row["_change_type"], row["spent"]) for row in run.panes]
    assert Counter(rows[:2]) == Counter([("a", "insert", 1.0), ("b", "insert", 1.0)])
    assert rows[2:] == [("a", "update_preimage", 1.0), ("a", "update_postimage", 6.0)]
    assert "op" not in run.panes_sink.table().column_names


def test_names_with_dots_and_blanks_are_names(spark, tmp_path):
    feed = Feed(tmp_path / "in")
    feed.put(clicks(("a", 1, 1.0), ("a", 2, 4.0)))
    frame = feed.batch(spark).toDF("the.user", "ts", "price paid")
    kept: list[dict[str, object]] = []
    panes = (
        tg.stream(frame, time="ts", key="the.user")
        .window(tg.tumbling("1 minute"))
        .aggregate(spent=tg.sum("price paid"))
    )
    panes.write(
        tg.sinks.foreach_batch(
            lambda rows, batch: kept.extend(row.asDict() for row in rows.collect())
        )
    )
    assert [(row["the.user"], row["spent"]) for row in kept] == [("a", 5.0)]
    assert panes.df.columns[0] == "the.user"


def test_streaming_and_batch_inputs_are_not_united(spark, feed):
    one, two = (
        tg.stream(frame, time="ts", key="user") for frame in (feed.batch(spark), feed.stream(spark))
    )
    with pytest.raises(SpecError, match="Hint"):
        _ = tg.union(one, two).window(tg.tumbling("1 minute")).aggregate(n=tg.count()).df


def test_functions_over_columns_give_the_same_panes_as_embedded(spark):
    """Time, key, session gap and output time; a bad gap and a bad time are late."""
    rows = [
        {"s": "0", "user": "ann.web", "wait": 10},
        {"s": "5", "user": "ann.phone", "wait": 1},
        {"s": "12", "user": "bob.web", "wait": 3},
        {"s": "13", "user": "bob.web", "wait": -1},
        {"s": "soon", "user": "bob.web", "wait": 3},
        {"s": "14", "user": "bob.phone", "wait": 4},
    ]

    def panes(source=None):
        return (
            tg.stream(source, time=seconds, key=owner)
            .window(tg.session(patience))
            .options(timestamp=middle)
            .aggregate(n=tg.count())
        )

    op = panes().embedded(now=60 * SECOND)
    op.add_messages(rows)
    op.finish()
    results = op.get_result()
    names = ("owner", "window_start", "window_end", "n", "time")
    expected = sorted(tuple(row[name] for name in names) for row in results.panes.to_pylist())
    assert sorted(results.late["reason"].to_pylist()) == ["bad_gap", "bad_value"]
    frame = spark.createDataFrame(rows, "s string, user string, wait long")
    on_spark = panes(frame)
    found = on_spark.include("time").df.collect()
    assert sorted(tuple(row[name] for name in names) for row in found) == expected
    late = [row["reason"] for row in on_spark.late_df.collect()]
    assert sorted(late) == ["bad_gap", "bad_value"]


def test_a_chain_behind_an_accumulating_upstream_gives_the_batch_answer(spark, tmp_path):
    """A late click corrects the first operator; the stream and the batch count it once."""
    feed = Feed(tmp_path / "in")
    for rows in ([("a", 1, 1.0)], [("a", 100, 1.0)], [("a", 2, 1.0)]):
        feed.put(clicks(*rows))

    def total(source):
        late = tg.after_watermark(late=tg.after_count(1))
        first = windowed(source).accumulating().trigger(late).aggregate(n=tg.count())
        return tg.stream(first).inherit().trigger(late).aggregate(n=tg.sum("n"))

    run = finished(total(feed.stream(spark)), tmp_path / "ck", shards=2)
    streamed = {row["window_start"]: row["n"] for row in run.panes if row["op"] == "+"}
    batch = {row.window_start: row.n for row in total(feed.batch(spark)).df.collect()}
    first = min(batch)
    assert batch[first] == 2
    assert streamed[min(streamed)] == 2


@pytest.mark.parametrize("key", [["user"], []], ids=["fused", "reshuffled"])
def test_a_chain_behind_discarding_sessions_nets_to_the_batch_answer_over_a_restart(
    key, spark, tmp_path
):
    """The sessions of `a` merge after the restart, and the window (0, 30) loses a row of `b`.

    A chain whose last trigger finishes before the changes end is refused before anything starts.
    """
    each = tg.after_watermark(early=tg.after_count(1), late=tg.after_count(1))
    feed = Feed(tmp_path / "in")

    def total(source, last=each):
        sessions = (
            tg.stream(source, time="ts", key="user", watermark=tg.bounded("10 seconds"))
            .window(tg.session("30 seconds"))
            .trigger(each)
            .allow_lateness("1 hour")
            .discarding()
            .aggregate(n=tg.count())
        )
        return tg.stream(sessions, key=key).inherit().trigger(last).aggregate(n=tg.sum("n"))

    def standing(rows):
        table: dict = {}
        for row in rows:
            place = tuple(row[name] for name in (*key, "window_start", "window_end"))
            if row["op"] == "-":
                assert table.pop(place) == row["n"]
            else:
                table[place] = row["n"]
        return table

    streamed = []
    before = [("a", 0, 1.0), ("b", 0, 1.0), ("a", 40, 1.0)], [("b", 100, 1.0)]
    for files in (before, ([("a", 20, 1.0)], [("b", 5, 1.0)])):
        for rows in files:
            feed.put(clicks(*rows))
        run = finished(total(feed.stream(spark)), tmp_path / "ck", shards=2)
        assert run.late == []
        streamed += run.panes
    sink = tg.sinks.memory(run.name)
    total(feed.batch(spark)).write(sink, shards=2)
    assert standing(streamed) == standing(sink.rows())
    assert sorted(standing(streamed).values()) == [1, 2, 3]
    for start in (lambda panes: panes.df, lambda panes: Run(panes, tmp_path / "refused")):
        with pytest.raises(SpecError, match=r"late=tg.after_count"):
            start(total(feed.stream(spark), tg.after_watermark()))
    assert not (tmp_path / "refused").exists()


def test_a_function_may_bring_more_data_than_spark_sends_with_a_task(spark, tmp_path):
    prices = {f"user {n}": n for n in range(200_000)}

    def price(rows):
        return sum(prices[f"user {int(nr)}"] for nr in rows["price"].to_pylist())

    feed = Feed(tmp_path / "feed")
    feed.put(clicks(("a", 1, 199_999.0), ("a", 2, 5.0), ("a", 4000, 0.0)))
    found = (
        tg.stream(tg.sources.parquet(feed.folder), time="ts", key="user", watermark=tg.bounded(0))
        .window(tg.tumbling("1 minute"))
        .aggregate(total=tg.apply(price, pa.int64(), ["price"]))
        .write(
            tg.sinks.parquet(tmp_path / "out"), checkpoint=tmp_path / "ck", trigger="available_now"
        )
    )
    found.await_termination()
    assert [row["total"] for row in tg.read_latest(tmp_path / "out").to_pylist()] == [200_004]
