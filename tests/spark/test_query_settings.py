"""Rows pass to Python by number where few of them can be large, and by bytes otherwise."""

from __future__ import annotations

import pyarrow as pa
import pytest

import tidegate as tg
from support.spark_streams import SECOND, finished
from tidegate.api.running import plan_of
from tidegate.spark.query import settings as query_settings
from tidegate.spark.query.settings import (
    ARROW_BYTES,
    ARROW_ROWS,
    MAX_ROWS,
    TEXT_ROWS,
    arrow_batch_limits,
    is_fixed_width,
    spark_settings,
)
from tidegate.spark.tasks.shards import ShardLayout

NARROW = (
    "user long, ts timestamp, price decimal(10, 2), at struct<x: double, y: double>, sold boolean,"
    " day date"
)
LAYOUT = ShardLayout.balanced(2)


def panes(spark, columns: str, **aggregates):
    stream = tg.stream(
        spark.createDataFrame([], columns), time="ts", key="user", watermark=tg.ascending()
    )
    return stream.window(tg.tumbling("1 minute")).aggregate(n=tg.count(), **aggregates)


def found(spark, pipeline) -> dict[str, str]:
    return arrow_batch_limits(plan_of(pipeline), LAYOUT, spark)


def test_rows_of_one_size_pass_by_number(spark):
    with spark_settings(spark, {ARROW_ROWS: "131072"}):
        assert found(spark, panes(spark, NARROW, top=tg.max("price"))) == {
            ARROW_BYTES: str(2**31 - 1),
            ARROW_ROWS: str(MAX_ROWS),
        }
    with spark_settings(spark, {ARROW_ROWS: "100"}):
        assert found(spark, panes(spark, NARROW))[ARROW_ROWS] == "100", "who wants fewer gets fewer"
    with spark_settings(spark, {ARROW_ROWS: "0"}):
        assert found(spark, panes(spark, NARROW))[ARROW_ROWS] == str(MAX_ROWS), (
            "for Spark that is no limit"
        )


@pytest.mark.parametrize("kind", ["string", "binary", "struct<x: string>"])
def test_texts_pass_in_small_record_batches(spark, kind):
    wide = panes(spark, f"{NARROW}, note {kind}")
    with spark_settings(spark, {ARROW_ROWS: "131072"}):
        assert found(spark, wide) == {
            ARROW_BYTES: str(2**31 - 1),
            ARROW_ROWS: str(TEXT_ROWS),
        }
    with spark_settings(spark, {ARROW_ROWS: "100"}):
        assert found(spark, wide)[ARROW_ROWS] == "100"
    with spark_settings(spark, {ARROW_BYTES: "32m"}):
        assert found(spark, wide) == {}, "the session has a limit in bytes of its own"
        assert found(spark, panes(spark, NARROW)) != {}, "which rows of one size do not need"


@pytest.mark.parametrize("kind", ["array<int>", "map<int, int>", "struct<x: array<string>>"])
def test_rows_of_any_size_pass_by_bytes(spark, kind):
    assert found(spark, panes(spark, f"{NARROW}, note {kind}")) == {}


def test_so_do_panes_of_any_size(spark):
    assert found(spark, panes(spark, NARROW, prices=tg.list_("price"))) == {}
    chained = (
        tg.stream(panes(spark, NARROW, prices=tg.list_("price"))).inherit().aggregate(n=tg.count())
    )
    assert found(spark, chained) == {}, "between two operators they pass too"


def test_a_direct_source_passes_nothing(spark, tmp_path):
    import pyarrow.parquet as pq

    pq.write_table(
        pa.table({"user": [1], "ts": pa.array([0], pa.timestamp("us", "UTC"))}),
        tmp_path / "one.parquet",
    )
    stream = tg.stream(
        tg.sources.parquet(tmp_path), time="ts", key="user", watermark=tg.ascending()
    )
    assert found(spark, stream.window(tg.tumbling("1 minute")).aggregate(n=tg.count())) == {}


@pytest.mark.parametrize(
    ("kind", "fixed"),
    [
        (pa.int8(), True),
        (pa.null(), True),
        (pa.duration("us"), True),
        (pa.string(), False),
        (pa.list_(pa.int8()), False),
    ],
)
def test_types_of_one_size(kind, fixed):
    assert is_fixed_width(kind) is fixed


def test_nothing_is_lost_between_the_record_batches(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(query_settings, "MAX_ROWS", 7)
    rows = spark.range(1000).selectExpr(
        "id % 13 AS user", f"timestamp_micros(id * {SECOND}) AS ts", "id AS price"
    )
    rows.write.parquet(str(tmp_path / "rows"))
    stream = spark.readStream.schema("user long, ts timestamp, price long").parquet(
        str(tmp_path / "rows")
    )
    for number, source in enumerate((stream, rows)):
        whole = tg.stream(source, time="ts", key="user", watermark=tg.bounded("1 hour")).window(
            tg.global_window()
        )
        often = whole.trigger(tg.repeatedly(tg.after_count(1))).discarding()
        run = finished(
            often.aggregate(n=tg.count(), spent=tg.sum("price")), tmp_path / f"ck{number}"
        )
        assert sum(pane["n"] for pane in run.panes) == 1000
        assert sum(pane["spent"] for pane in run.panes) == sum(range(1000))
