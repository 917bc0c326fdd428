"""Bad data on Spark: it is in `late` with its reason, or refused before the start with a hint; the
query lives.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from datetime import UTC, datetime

import pyarrow as pa
import pytest

import tidegate as tg
from support.spark_streams import BASE, SECOND, Feed, clicks, finished, netted
from tidegate.errors import InputError, SinkError, SpecError, TidegateError

WORDS = pa.schema(
    {
        "user": pa.string(),
        "ts": pa.string(),
        "price": pa.float64(),
        "o": pa.int64(),
        "class": pa.string(),
    }
)
WORDS_DDL = "user string, ts string, price double, o long, class string"


def text(second: float) -> str:
    return datetime.fromtimestamp(BASE / SECOND + second, UTC).isoformat()


@pytest.fixture(scope="module")
def bad(spark, tmp_path_factory):
    """One query over everything that is wrong; each file is a batch, and one of them is empty."""
    feed = Feed(tmp_path_factory.mktemp("bad") / "in", WORDS)
    huge = "x" * (10 << 20)
    long_key = "k" * (1 << 20)
    offsets = iter(range(100))

    def row(user, ts, price=1.0, **more):
        return {"user": user, "ts": ts, "price": price, "o": next(offsets), "class": "mine", **more}

    feed.put(
        [
            row("ann", text(1)),
            row("ann", None),
            row("ann", "yesterday"),
            row("ann", ""),
            row(None, text(2)),
            row("ann", text(3), math.nan),
        ]
    )
    feed.put([])
    large = row("big", text(8), **{"class": huge})
    feed.put(
        [
            row("ann", text(4), o=0),
            row("ann", text(5), o=None),
            row("bob", text(6), None),
            row(long_key, text(7)),
            large,
        ]
    )
    feed.put(
        [
            row("old", "1969-12-31T23:59:58+00:00"),
            row("old", "0001-01-01T00:00:00Z"),
            row("far", "9999-12-31T23:59:59Z"),
        ]
    )
    feed.put(
        [
            row("far", "+294000-01-01T00:00:00Z"),
            row("zone", "2023-11-14T23:14:09+01:00"),
            row("ann", text(200)),
        ]
    )
    feed.put([row("ann", text(-600))])
    feed.put([row("end", text(4000))])
    panes = (
        tg.stream(
            feed.stream(spark, WORDS_DDL),
            time="ts",
            key="user",
            offset="o",
            watermark=tg.bounded("10 seconds"),
        )
        .window(tg.tumbling("1 minute"))
        .options(future="reject")
        .allow_lateness("100 days")
        .aggregate(n=tg.count(), total=tg.sum("price"), best=tg.max("price"))
    )
    run = finished(panes, tmp_path_factory.mktemp("bad") / "ck")
    # The windows of what is from the far future are beyond what Python's own dates can say.
    return run, run.late_sink.table().drop_columns(["windows"]).to_pylist(), long_key


def test_rows_that_cannot_be_read_are_in_late_with_their_reason(bad):
    _, late, _ = bad
    reasons = Counter((row["user"], row["reason"]) for row in late)
    assert reasons[("ann", "null_time")] == 1
    assert reasons[("ann", "bad_time")] == 2
    assert reasons[("ann", "bad_offset")] == 1
    assert reasons[("far", "future")] + reasons[("far", "bad_time")] == 2


def test_good_rows_beside_bad_ones_count(bad):
    run, _, long_key = bad
    found = netted(run.panes, ["user"], "n")
    assert found[None, 0] == (1,), "a null key is a key"
    assert found[long_key, 0] == (1,)
    assert found["big", 0] == (1,)
    assert found["zone", 0] == (1,), "another time zone is the same instant"
    assert found["ann", 0] == (2,), "o=0 came twice, and one row has no offset"


def test_nan_and_null_are_values(bad):
    run, _, _ = bad
    totals = netted(run.panes, ["user"], "total", "best")
    assert math.isnan(totals["ann", 0][0])
    assert totals["bob", 0] == (None, None)


def test_late_rows_keep_all_their_columns(bad):
    run, late, _ = bad
    (unread,) = [row for row in late if row["ts"] == "yesterday"]
    assert (unread["price"], unread["input_class"]) == (
        1.0,
        "mine",
    ), "an input column that is named like ours is told apart"
    assert list(run.late_sink.table().column_names) == [
        *["user", "ts", "price", "o", "input_class"],
        *["class", "reason", "detail", "watermark", "windows", "emitted_at"],
    ]


def test_times_before_1970_and_very_old_ones_are_told(bad):
    _, late, _ = bad
    assert [row["reason"] for row in late if row["user"] == "old"] == ["very_late", "very_late"]


@pytest.mark.parametrize(
    ("stream", "aggregates", "told"),
    [
        ({"time": "when"}, {}, "`when`"),
        ({"key": "who"}, {}, "`who`"),
        ({"time": "price"}, {}, "price"),
        ({"id": "nr"}, {}, "`nr`"),
        ({"offset": "user"}, {}, "whole numbers"),
        ({"partition": "part"}, {}, "`part`"),
        ({"watermark": tg.punctuated("mark")}, {}, "mark"),
        ({"watermark": tg.explicit()}, {}, "explicit"),
        ({}, {"x": tg.sum("cost")}, "cost"),
        ({}, {"x": tg.sum("user")}, "user"),
        ({}, {"window_start": tg.count()}, "window_start"),
        ({}, {"user": tg.count()}, "user"),
        ({"time": lambda table: table.column("nothing")}, {}, "nothing"),
        ({"key": lambda table: 5}, {}, "Arrow column"),
        ({"key": 7}, {}, "`key`"),
    ],
)
def test_what_cannot_work_is_refused_before_the_start(spark, tmp_path, stream, aggregates, told):
    frame, wanted = Feed(tmp_path / "in").stream(spark), aggregates or {"n": tg.count()}
    with pytest.raises(TidegateError) as caught:
        tg.stream(frame, **{"time": "ts", "key": "user", **stream}).window(
            tg.tumbling("1 minute")
        ).aggregate(**wanted).write(
            tg.sinks.memory("never"), checkpoint=str(tmp_path / "ck"), trigger="available_now"
        )
    assert told in str(caught.value)
    assert not (tmp_path / "ck").exists(), "nothing was begun"


def test_columns_that_cannot_be_told_apart_are_refused(spark, tmp_path):
    frame = Feed(tmp_path / "in").stream(spark)
    with pytest.raises(SpecError, match=r"__tidegate_clock.*Hint"):
        tg.stream(frame.withColumnRenamed("price", "__Tidegate_Clock"), time="ts", key="user")
    with pytest.raises(SpecError, match=r"several columns are named `price`.*Hint"):
        tg.stream(frame.select("user", "ts", "price", "price"), time="ts", key="user")


def test_a_time_zone_of_the_session_does_not_move_instants(spark, tmp_path):
    """Local times (without a zone) are read as they stand; instants are the same in every
    session.
    """
    feed = Feed(tmp_path / "in")
    feed.put(clicks(("ann", 1, 1.0), ("ann", -3, 1.0)))
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        frame = feed.batch(spark)
        panes = (
            tg.stream(frame, time="ts", key="user")
            .window(tg.tumbling("1 minute"))
            .aggregate(n=tg.count())
        )
        starts = {
            row.s: row.n
            for row in panes.df.selectExpr("unix_micros(window_start) AS s", "n").collect()
        }
        assert starts == {BASE: 1, BASE - 60 * SECOND: 1}
        local = frame.selectExpr(
            "user", "CAST('2024-05-01 00:00:30' AS timestamp_ntz) AS ts", "price"
        )
        panes = (
            tg.stream(local, time="ts", key="user")
            .window(tg.tumbling("1 day"))
            .aggregate(n=tg.count())
        )
        assert {
            row.s: row.n
            for row in panes.df.selectExpr("unix_micros(window_start) AS s", "n").collect()
        } == {1_714_521_600_000_000: 2}
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_united_inputs_whose_keys_are_of_different_types_are_refused(spark, tmp_path):
    frame = Feed(tmp_path / "in").stream(spark)
    one, two = (
        tg.stream(frame.withColumn("user", frame.user.cast(kind)), time="ts", key="user")
        for kind in ("long", "double")
    )
    with pytest.raises(SpecError, match=r"the key `user` is int64 .* double.*Hint"):
        _ = tg.union(one, two).window(tg.tumbling("1 minute")).aggregate(n=tg.count()).df


def test_texts_that_are_not_utf8_cost_their_rows(spark, tmp_path):
    """Spark does not check texts that are cast from the bytes of a message."""
    bytes_of = "struct(cast(X'FF' as string) inner)"
    frame = spark.range(4).selectExpr(
        "timestamp_millis(id) ts",
        "if(id = 1, cast(X'FFFE' as string), 'ann') user",
        f"if(id = 2, {bytes_of}, struct('a' inner)) price",
    )
    panes = (
        tg.stream(frame, time="ts", key="user")
        .window(tg.tumbling("1 minute"))
        .aggregate(n=tg.count(), kept=tg.list_("price"))
    )
    assert [(row.user, row.n) for row in panes.df.collect()] == [("ann", 2)]
    rows = panes.late_df.collect()
    assert [row.reason for row in rows] == ["bad_value"] * 2
    assert sorted(row.detail[:7].strip(" s") for row in rows) == ["`price`", "`user`"]


def test_an_empty_batch_frame_gives_no_panes(spark, tmp_path):
    frame = spark.createDataFrame([], "user string, ts timestamp, price double")
    panes = (
        tg.stream(frame, time="ts", key="user")
        .window(tg.tumbling("1 minute"))
        .aggregate(n=tg.count())
    )
    assert panes.df.collect() == []
    assert panes.late_df.collect() == []


def test_late_rows_of_a_batch_frame_are_there_too(spark, tmp_path):
    feed = Feed(tmp_path / "in")
    feed.put(clicks(("ann", 1, 1.0), ("ann", None, 2.0)))
    panes = (
        tg.stream(feed.batch(spark), time="ts", key="user")
        .window(tg.tumbling("1 minute"))
        .aggregate(n=tg.count())
    )
    assert [(row.user, row.price, row.reason) for row in panes.late_df.collect()] == [
        ("ann", 2.0, "null_time")
    ]
    assert json.loads(panes.late_df.schema.json())["fields"][0]["name"] == "user"


def test_late_rows_of_a_batch_go_where_those_of_a_stream_go_and_without_a_place_are_counted(
    spark, tmp_path
):
    feed = Feed(tmp_path / "in")
    feed.put(clicks(("ann", 1, 1.0), ("ann", None, 2.0), ("bob", None, 3.0)))
    panes = (
        tg.stream(feed.batch(spark), time="ts", key="user")
        .window(tg.tumbling("1 minute"))
        .aggregate(n=tg.count())
    )
    sink = tg.sinks.memory("late_of_a_batch")
    with pytest.warns(
        RuntimeWarning, match=r"2 rows of the output `late` were dropped.*Hint"
    ) as told:
        panes.write(sink)
    # PySpark 4.1 leaves sockets open, and Python may tell so at any moment.
    assert [one.category for one in told if one.category is not ResourceWarning] == [RuntimeWarning]
    assert sink.table()["n"].to_pylist() == [1]
    panes.write(tg.sinks.noop(), late=tg.sinks.noop())
    for runs in (1, 2):
        panes.write(tg.sinks.noop(), checkpoint=tmp_path / "ck")
        kept = spark.read.parquet(str(tmp_path / "ck/tidegate/late")).collect()
        assert sorted((row.user, row.price) for row in kept) == sorted(
            [("ann", 2.0), ("bob", 3.0)] * runs
        )


def one_click(spark):
    return spark.createDataFrame(
        [("a", datetime(2025, 1, 1, tzinfo=UTC))], "user string, ts timestamp"
    )


def test_a_frame_without_late_rows_does_not_hide_that_a_function_fails(spark):
    def broken(_state: int, _row: object) -> int:
        raise ValueError("the cup is broken")

    rows = one_click(spark)
    total = tg.python(zero=0, add=broken, merge=max, result=int, result_type=pa.int64())
    panes = tg.stream(rows, time="ts", key="user").window(tg.tumbling("1 minute"))
    panes = panes.aggregate(n=total)
    refusal = r"1 row failed.*the cup is broken.*write\(\.\.\., late="
    with pytest.raises(InputError, match=refusal), tg.spark_errors():
        panes.df.collect()
    assert [row.reason for row in panes.late_df.collect()] == ["accumulation_failed"]


def test_a_path_is_no_sink(spark):
    rows = one_click(spark)
    panes = tg.stream(rows, time="ts", key="user").window(tg.tumbling("1 minute"))
    panes = panes.aggregate(n=tg.count())
    with pytest.raises(SpecError, match=r"`to` is a sink, got 'out/x'. Hint: to=tg.sinks.parquet"):
        panes.write("out/x")
    with pytest.raises(SpecError, match="`write` has 6 wrong arguments:") as several:
        panes.write(
            "out/x", late=3, checkpoint=7, trigger="2 lightyears", shards=0, name=5, metrics=None
        )
    for words in ("`checkpoint` is the path", "`trigger`: `lightyears`", "`shards`", "`name`"):
        assert words in str(several.value)
    with pytest.raises(SpecError, match="can't be negative, got -1 second"):
        panes.write(tg.sinks.noop(), checkpoint="c", trigger="-1 second")
    with pytest.raises(SpecError, match="`late` is a sink, got int"):
        panes.write(tg.sinks.noop(), late=3)


def test_all_outputs_that_cannot_be_written_are_named_at_once(spark, tmp_path):
    rows = one_click(spark)
    panes = tg.stream(rows, time="ts", key="user").window(tg.tumbling("1 minute"))
    panes = panes.aggregate(n=tg.count())
    sinks = {name: tg.sinks.parquet(tmp_path / name) for name in ("to", "late")}
    panes.write(**sinks)
    with pytest.raises(SinkError, match=r"(?s)2 outputs cannot be written.*`panes`.*`late`"):
        panes.write(**sinks)
    again = {name: tg.sinks.parquet(tmp_path / name, overwrite=True) for name in ("to", "late")}
    panes.write(**again)
    assert [row["n"] for row in tg.read_latest(tmp_path / "to").to_pylist()] == [1]
