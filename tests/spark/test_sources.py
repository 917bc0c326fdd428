"""Direct sources on Spark: the same rows as Spark's own reader, in batches that replay."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pyspark
import pytest
from pyarrow import feather
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DoubleType, LongType, StructField, StructType, TimestampType

import tidegate as tg
from tidegate.errors import CorruptStateError, InputError, SetupError, SpecError
from tidegate.operators.ingest.schema_cast import BROKEN
from tidegate.spark.sources.binary_formats import Parquet
from tidegate.spark.sources.files import Folder
from tidegate.spark.sources.formats import PartReader
from tidegate.spark.sources.readers import FolderScan, FolderStreamReader
from tidegate.spark.tasks.edge import Edge
from tidegate.spark.tasks.packed import Packed
from tidegate.spark.tasks.shards import ShardLayout
from tidegate.spark.tasks.transport import (
    OBSERVED,
    ROWS,
    ShuffleRow,
    decode_payload,
    decode_payloads,
)
from tidegate.spec.computed import Computed
from tidegate.spec.operator import Input

UTC = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("key", pa.int64()), ("ts", UTC), ("value", pa.float64())])
DDL = "key long, ts timestamp, value double"
BASE = 1_700_000_000
EDGE = Edge(Input(time="ts", key=("key",)), ShardLayout.balanced(2))


def events(n: int, rows: int = 100) -> pa.Table:
    random = np.random.default_rng(n)
    at = BASE * 1_000_000 + n * 20_000_000 + random.integers(0, 20_000_000, rows)
    return pa.table(
        {
            "key": random.integers(0, 7, rows),
            "ts": pa.array(at, UTC),
            "value": random.random(rows).round(3),
        },
        schema=SCHEMA,
    )


def put(folder: Path, n: int, form: str = "parquet", table: pa.Table | None = None) -> Path:
    """The n-th file, as old as its number says."""
    folder.mkdir(exist_ok=True)
    path, table = folder / f"f{n:04}.{form}", events(n) if table is None else table
    if form == "parquet":
        pq.write_table(table, path)
    elif form == "arrow":
        feather.write_feather(table, path)
    elif form == "csv":
        arrow_csv.write_csv(table, path)
    else:
        path.write_text(
            "".join(
                json.dumps({**row, "ts": row["ts"].isoformat()}) + "\n" for row in table.to_pylist()
            )
        )
    os.utime(path, (BASE + n, BASE + n))
    return path


class Batches:
    """What came, by batch."""

    def __init__(self) -> None:
        self.rows: dict[int, list[ShuffleRow]] = {}

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.rows[batch] = sorted(
            (ShuffleRow(*row) for row in frame.collect()), key=lambda row: row.order
        )

    def table(self, batch: int | None = None) -> pa.Table:
        """The events of a batch or of all, in order."""
        chosen = self.rows.values() if batch is None else [self.rows[batch]]
        found = [
            table
            for rows in chosen
            for table in [decode_payloads(row.payload for row in rows if row.kind == ROWS)]
            if table is not None
        ]
        return pa.concat_tables(found, promote_options="default")


def follow(
    source: tg.sources.Files,
    checkpoint: Path,
    sink: Callable[[DataFrame, int], None],
    edge: Edge = EDGE,
) -> None:
    """Read what is there, and end."""
    query = (
        source.load(edge)
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def plain(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.select(SCHEMA.names).to_pylist())


@pytest.mark.parametrize("form", ["parquet", "arrow", "json", "csv"])
def test_a_stream_has_the_rows_of_all_files_once_in_batches_of_the_size_that_was_said(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    for n in range(5):
        put(tmp_path / "in", n, form)
    source = getattr(tg.sources, form)(
        tmp_path / "in", schema=DDL, max_files_per_trigger=2, spark=spark
    )
    assert source.isStreaming
    assert source.schema == SCHEMA
    found = Batches()
    follow(source, tmp_path / "checkpoint", found)
    assert {batch: found.table(batch).num_rows for batch in found.rows} == {0: 200, 1: 200, 2: 100}
    for batch, numbers in enumerate([(0, 1), (2, 3), (4,)]):
        assert plain(found.table(batch)) == plain(pa.concat_tables(events(n) for n in numbers))
    assert {row.shard for rows in found.rows.values() for row in rows} == {*EDGE.layout.ids}


def test_a_restart_reads_what_came_meanwhile_whatever_its_date(
    spark: SparkSession, tmp_path: Path
) -> None:
    for n in (10, 11):
        put(tmp_path / "in", n)
    source = tg.sources.parquet(tmp_path / "in", spark=spark)
    found = Batches()
    follow(source, tmp_path / "checkpoint", found)
    follow(source, tmp_path / "checkpoint", found)
    assert list(found.rows) == [0]
    for n in (12, 3):
        put(tmp_path / "in", n)
    follow(source, tmp_path / "checkpoint", found)
    assert list(found.rows) == [0, 1]
    assert plain(found.table(1)) == plain(pa.concat_tables([events(12), events(3)]))


def test_a_batch_that_failed_is_replayed_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    for n in (10, 11):
        put(tmp_path / "in", n)
    source = tg.sources.parquet(tmp_path / "in", max_files_per_trigger=1, spark=spark)
    first, second = Batches(), Batches()

    def failing(frame: DataFrame, batch: int) -> None:
        first(frame, batch)
        if batch == 1:
            raise ValueError("the sink is full")

    with pytest.raises(Exception, match="the sink is full"):
        follow(source, tmp_path / "checkpoint", failing)
    # Meanwhile an older file came, which would have been first.
    put(tmp_path / "in", 1)
    follow(source, tmp_path / "checkpoint", second)
    assert list(second.rows) == [1, 2]
    assert second.rows[1] == first.rows[1], (
        "the rows, their order, and what the clock had to say about them"
    )
    assert plain(second.table(2)) == plain(events(1))


def test_the_clock_of_a_batch_tells_what_is_from_the_future(
    spark: SparkSession, tmp_path: Path
) -> None:
    now = time.time_ns() // 1000
    put(
        tmp_path / "in",
        0,
        table=pa.table(
            {"key": [1, 2], "ts": pa.array([now, now + 3_600_000_000], UTC), "value": [1.0, 2.0]}
        ),
    )
    found = Batches()
    follow(tg.sources.parquet(tmp_path / "in", spark=spark), tmp_path / "checkpoint", found)
    assert found.table().num_rows == 2
    seen = [
        decode_payload(row.payload).column("ts").cast(pa.int64()).to_pylist()
        for row in found.rows[0]
        if row.kind == OBSERVED
    ]
    assert seen == [[now]] * 2


@pytest.mark.parametrize("latest_first", [False, True])
def test_the_order_of_rows_is_that_of_files_whichever_task_is_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, latest_first: bool
) -> None:
    for n in range(8):
        put(
            tmp_path / "in",
            n,
            table=pa.table(
                {"key": [1] * 10, "ts": pa.array(range(10), UTC), "value": np.arange(10) + n * 10.0}
            ),
        )
    # As if they were large, so that each has a task.
    monkeypatch.setattr("tidegate.spark.sources.files.SHARE_BYTES", 1)
    scan = FolderScan(
        PartReader(Folder(str(tmp_path / "in")), Parquet(), SCHEMA),
        tasks=2,
        latest_first=latest_first,
    )
    reader = FolderStreamReader(scan, Packed(EDGE))
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end
    assert reader.partitions(end, end) == []
    tasks = reader.partitions(start, end)
    assert len(tasks) == 8
    rows = [
        ShuffleRow(*row.values())
        for task in reversed(tasks)
        for batch in reader.read(task)
        for row in batch.to_pylist()
    ]
    table = decode_payloads(
        row.payload for row in sorted(rows, key=lambda row: row.order) if row.kind == ROWS
    )
    assert table is not None
    assert (
        table.column("value").to_pylist()[::10]
        == list(range(0, 80, 10))[:: -1 if latest_first else 1]
    )
    assert sorted(table.column("value").to_pylist()) == list(range(80))
    with pytest.raises(CorruptStateError, match="from offset 0 to 2"):
        reader.partitions(start, {**end, "batch": 2})


def test_batches_of_so_many_bytes(spark: SparkSession, tmp_path: Path) -> None:
    size = max(put(tmp_path / "in", n).stat().st_size for n in range(4))
    found = Batches()
    follow(
        tg.sources.parquet(tmp_path / "in", max_bytes_per_trigger=2 * size + 1, spark=spark),
        tmp_path / "checkpoint",
        found,
    )
    assert [found.table(batch).num_rows for batch in found.rows] == [200, 200]


def test_a_batch_source_reads_the_folder_once(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    source = tg.sources.parquet(tmp_path / "in", schema=SCHEMA, streaming=False, spark=spark)
    assert not source.isStreaming
    assert source.load(EDGE).count() == 0
    for n in range(3):
        put(tmp_path / "in", n)
    found = Batches()
    found(source.load(EDGE), 0)
    assert plain(found.table()) == plain(pa.concat_tables(map(events, range(3))))
    own = spark.read.parquet(str(tmp_path / "in")).toArrow()
    assert plain(found.table()) == plain(own)


def test_broken_rows_and_files_are_marked_and_the_query_lives(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path / "in", 0, "json")
    (tmp_path / "in" / "g.json").write_text(
        '{"key": 1, "ts"\n{"key": 2, "ts": "2023-11-14T22:13:20Z", "value": "much"}\n'
    )
    found = Batches()
    follow(
        tg.sources.json(tmp_path / "in", schema=DDL, spark=spark), tmp_path / "checkpoint", found
    )
    table = found.table()
    assert table.num_rows == 102
    texts = sorted(table.column(BROKEN).drop_null().to_pylist())
    assert texts[0] == "`value` should be double, got 'much'"
    assert texts[1].startswith("line 1 of `g.json` cannot be read")
    put(tmp_path / "other", 0)
    (tmp_path / "other" / "g.parquet").write_bytes(b"PAR1 and then nothing")
    follow(
        tg.sources.parquet(tmp_path / "other", schema=DDL, spark=spark),
        tmp_path / "other_checkpoint",
        found,
    )
    assert found.table().num_rows == 101
    assert "g.parquet" in found.table().column(BROKEN).drop_null()[0].as_py()
    with pytest.raises(Exception, match=r"g\.parquet.*corrupt='late'"):
        follow(
            tg.sources.parquet(tmp_path / "other", schema=DDL, corrupt="fail", spark=spark),
            tmp_path / "failing",
            found,
        )


def test_a_file_that_vanished_before_its_batch_was_replayed(
    spark: SparkSession, tmp_path: Path
) -> None:
    paths = [put(tmp_path / "in", n) for n in (0, 1)]

    def failing(frame: DataFrame, batch: int) -> None:
        raise ValueError("no")

    with pytest.raises(Exception, match="no"):
        follow(tg.sources.parquet(tmp_path / "in", spark=spark), tmp_path / "checkpoint", failing)
    paths[0].unlink()
    found = Batches()
    with pytest.raises(Exception, match=r"f0000\.parquet.*ignore_missing"):
        follow(tg.sources.parquet(tmp_path / "in", spark=spark), tmp_path / "checkpoint", found)
    follow(
        tg.sources.parquet(tmp_path / "in", ignore_missing=True, spark=spark),
        tmp_path / "checkpoint",
        found,
    )
    assert plain(found.table()) == plain(events(1))


def test_functions_of_the_user_travel_with_the_source(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", 0)
    shift = 1_000

    def moved(table: pa.Table) -> pa.ChunkedArray:
        return pa.compute.add(table.column("key"), shift)

    edge = Edge(
        Input(time="ts", key=("moved",), computed=(Computed("moved", moved),)),
        ShardLayout.balanced(2),
    )
    found = Batches()
    follow(tg.sources.parquet(tmp_path / "in", spark=spark), tmp_path / "checkpoint", found, edge)
    assert sorted(found.table().column("moved").to_pylist()) == sorted(
        key + 1_000 for key in events(0).column("key").to_pylist()
    )


def test_schemas_are_said_in_any_form(spark: SparkSession, tmp_path: Path) -> None:
    struct = StructType(
        [
            StructField("key", LongType()),
            StructField("ts", TimestampType()),
            StructField("value", DoubleType()),
        ]
    )
    for schema in (DDL, struct, SCHEMA):
        assert tg.sources.json(tmp_path, schema=schema, spark=spark).schema == SCHEMA
    put(tmp_path / "in", 0)
    assert tg.sources.parquet(tmp_path / "in", spark=spark).schema == SCHEMA
    with pytest.raises(SpecError, match="no files"):
        _ = tg.sources.parquet(tmp_path / "in", glob="*.json", spark=spark).schema
    with pytest.raises(SpecError, match="got int"):
        _ = tg.sources.parquet(tmp_path, schema=5, spark=spark).schema  # type: ignore[arg-type]
    with pytest.raises(InputError, match="nowhere"):
        _ = tg.sources.parquet(tmp_path / "nowhere", spark=spark).schema


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_files_per_trigger": 0}, "at least 1, got 0"),
        ({"max_bytes_per_trigger": "1m"}, "at least 1, got '1m'"),
        ({"max_files_per_trigger": 1, "max_bytes_per_trigger": 1}, "exclude each other"),
        ({"corrupt": "drop"}, "'late' or 'fail'"),
        ({"maxFilesPerTrigger": 1}, "no option `maxFilesPerTrigger`"),
        ({"max_file_age": "a while"}, "a while"),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        tg.sources.parquet(tmp_path, **options)


def test_an_older_spark_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.1.2")
    with pytest.raises(SetupError, match=r"4\.2 or newer, got 4\.1\.2.*readStream"):
        tg.sources.parquet(tmp_path)


# Whole pipelines


def written(source: Any, out: Path) -> tuple[list[tuple[Any, ...]], list[dict[str, Any]]]:
    """The panes and the late rows of a pipeline over the source."""
    panes = (
        tg.stream(source, time="ts", key="key", watermark=tg.bounded("5 seconds"))
        .window(tg.tumbling("20 seconds"))
        .aggregate(n=tg.count(), total=tg.sum("value"), top=tg.max("value"))
    )
    query = panes.write(
        to=tg.sinks.parquet(str(out / "panes")),
        late=tg.sinks.parquet(str(out / "late")),
        checkpoint=str(out / "checkpoint"),
        trigger="available_now",
    )
    query.await_termination()

    def rows(name: str) -> list[dict[str, Any]]:
        files = sorted((out / name).rglob("*.parquet"))
        return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]

    chosen = ("key", "window_start", "op", "n", "total", "top", "is_last", "timing")
    return sorted(tuple(row[name] for name in chosen) for row in rows("panes")), rows("late")


@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
def test_panes_are_those_of_sparks_own_reader(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    for n in range(4):
        put(tmp_path / "in", n, form)
    direct, late = written(
        getattr(tg.sources, form)(
            tmp_path / "in", schema=DDL, max_files_per_trigger=2, spark=spark
        ),
        tmp_path / "direct",
    )
    reader = (
        spark.readStream.schema(DDL).option("maxFilesPerTrigger", 2).option("header", form == "csv")
    )
    own, own_late = written(reader.format(form).load(str(tmp_path / "in")), tmp_path / "own")
    assert direct == own
    assert len(direct) == 7 * 3
    assert late == own_late == []


def test_broken_data_comes_out_late_with_its_reason(spark: SparkSession, tmp_path: Path) -> None:
    for n in range(3):
        put(tmp_path / "in", n, "json")
    broken = put(tmp_path / "in", 1, "json").with_name("broken.json")
    broken.write_text(
        '{"key": 1, "ts"\n{"key": 2, "ts": "2023-11-14T22:13:20Z", "value": "much"}\n{"key": 3}\n'
    )
    (tmp_path / "in" / "lost.json.gz").write_bytes(b"not compressed")
    direct, late = written(
        tg.sources.json(tmp_path / "in", schema=DDL, spark=spark), tmp_path / "out"
    )
    assert sum(row[3] for row in direct) > 0
    found = sorted((row["reason"], row["detail"] or "") for row in late)
    assert [reason for reason, _ in found] == ["bad_value", "bad_value", "bad_value", "null_time"]
    assert found[0][1] == "`value` should be double, got 'much'"
    assert found[1][1].startswith("line 1 of `broken.json` cannot be read")
    assert "lost.json.gz" in found[2][1]
