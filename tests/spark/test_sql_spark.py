"""SQL on Spark: the same answers as embedded, scripts with late rows, and expressions of Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pytest
from pyspark.sql import SparkSession

import tidegate as tg
from support.sql_cases import CASES, DEFINITIONS, answer, at, changed, events
from support.sql_functions import DEFINITION, QUERY, ROW, VALUES, shown
from test_sql_acceptance import ORDERS, SHIPMENTS

pytestmark = pytest.mark.slow


def frames(spark: SparkSession, tables: dict[str, pa.Table]) -> dict[str, Any]:
    return {name: spark.createDataFrame(table.to_pandas()) for name, table in tables.items()}


@pytest.mark.parametrize("name", ["nexmark_q5", "over_range"])
def test_the_answers_are_those_of_duckdb(name: str, spark: SparkSession) -> None:
    tables = events()
    query = tg.sql(DEFINITIONS + CASES[name].sql, **frames(spark, tables))
    rows = [row.asDict() for row in query.df.collect()]
    assert changed(rows, query.columns) == answer(CASES[name], tables)


def written(folder: Path) -> list[dict[str, Any]]:
    return pa.dataset.dataset(folder).to_table().to_pylist()


def test_the_statements_of_the_design_documents(spark: SparkSession) -> None:
    stream = {"time": "time", "offset": "off", "watermark": tg.bounded("2 minutes")}
    shop = {
        name: tg.stream(spark.createDataFrame(rows), **stream)
        for name, rows in (("Orders", ORDERS), ("Shipments", SHIPMENTS))
    }
    for window in ("OVER (ROWS 3 PRECEDING)", "OVER (ORDER BY time RANGE '2' min PRECEDING)"):
        query = tg.sql(
            f"SELECT id, value, cost FROM Shipments JOIN Orders {window}"
            " ON Orders.id = Shipments.id",
            **shop,
        )
        rows = [tuple(row[name] for name in query.columns) for row in query.df.collect()]
        assert sorted(rows) == [(1, 0, 2), (1, 0, 3), (3, 5, 0), (9, 9, 1)]
    times = [(1, 2), (3, 2), (4, 9), (6, 9)]
    query = tg.sql(
        """select window_start window_start_inner, window_end window_end_inner, time2, count(*)
        from tumble(my_stream, descriptor(time1), 5 seconds) group by 1, 2, 3""",
        my_stream=spark.createDataFrame([{"time1": at(a), "time2": at(b)} for a, b in times]),
    )
    rows = [(row["time2"].second, row[query.columns[3]]) for row in query.df.collect()]
    assert sorted(rows) == [(2, 2), (9, 1), (9, 1)]


def test_a_script_writes_results_and_late_rows_in_one_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    lines = [
        {"ts": at(5).isoformat(), "user": "ann", "price": "1"},
        {"ts": at(20).isoformat(), "user": "bob", "price": "2"},
        {"ts": at(21).isoformat(), "user": "bob", "price": "x"},
        {"ts": at(90).isoformat(), "user": "spy", "price": "none"},
    ]
    (tmp_path / "in").mkdir()
    text = "".join(json.dumps(line) + "\n" for line in lines) + "nonsense\n"
    (tmp_path / "in" / "clicks.json").write_text(text)
    script = tg.sql(
        """
        CREATE TABLE clicks (ts TIMESTAMP(3), user STRING, price STRING,
                             WATERMARK FOR ts AS ts - INTERVAL '5' SECOND)
        WITH ('connector' = 'filesystem', 'path' = 'in', 'format' = 'json',
              'source.monitor-interval' = '1 s');
        CREATE TABLE totals (minute TIMESTAMP(3), who STRING, total DECIMAL(10, 2))
        WITH ('connector' = 'filesystem', 'path' = 'totals', 'format' = 'parquet');
        CREATE TABLE lost (who STRING, reason STRING, detail STRING)
        WITH ('connector' = 'filesystem', 'path' = 'lost', 'format' = 'parquet');
        CREATE TABLE plain (who STRING, price INT)
        WITH ('connector' = 'filesystem', 'path' = 'plain', 'format' = 'parquet');
        SET 'tidegate.trigger' = 'available_now';
        CREATE VIEW minutes AS
            SELECT window_start, upper(user) AS who, SUM(CAST(price AS INT) * 2) AS total
            FROM TABLE(TUMBLE(TABLE clicks, DESCRIPTOR(ts), INTERVAL '1' MINUTE))
            WHERE user <> 'spy' GROUP BY window_start, window_end, upper(user)
            HAVING SUM(CAST(price AS INT)) > 1;
        INSERT INTO totals SELECT * FROM minutes;
        INSERT INTO lost SELECT user, reason, detail FROM LATE(minutes);
        INSERT INTO plain SELECT upper(user), CAST(price AS INT) FROM clicks WHERE CAST(price AS INT) <> 2;
        """,
        folder=tmp_path,
    )
    for query in script.start(checkpoint=tmp_path / "checkpoint"):
        query.await_termination()
    assert written(tmp_path / "totals") == [{"minute": at(0), "who": "BOB", "total": 4}]
    lost = written(tmp_path / "lost")
    assert sorted((row["who"] or "", row["reason"], row["detail"][:9]) for row in lost) == [
        ("", "bad_value", "unreadabl"),
        ("bob", "bad_value", "`_c1` can"),
    ]
    # A query without a window keeps the rows that it cannot read or decide, too.
    assert [row["who"] for row in written(tmp_path / "plain")] == ["ANN"]
    late = written(tmp_path / "checkpoint" / "plain" / "tidegate" / "late")
    assert sorted((row["reason"], row["detail"][:13]) for row in late) == [
        ("bad_value", "the condition"),
        ("bad_value", "the condition"),
        ("bad_value", "unreadable: n"),
    ]


def test_functions_have_the_values_of_flink(spark: SparkSession) -> None:
    columns = (
        "ts timestamp, day date, name string, n int, price double, numbers array<int>,"
        " counts map<string, int>, doc string"
    )
    frame = spark.createDataFrame([tuple(ROW.values())], columns)
    [row] = tg.sql(DEFINITION + QUERY, t=frame).df.collect()
    assert shown(row.asDict(recursive=True)) == VALUES
    for wrong, why in (("n + sounds(name)", "no function"), ("JSON_ARRAY(n)", "Spark cannot")):
        with pytest.raises(tg.errors.SqlError, match=why) as caught:
            _ = tg.sql(f"{DEFINITION}SELECT\n{wrong} FROM t", t=frame).df
        assert caught.value.line == 5


def test_queries_without_windows_are_dataframes(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("1", 5), ("x", 6), ("3", 7)], "price string, n int")
    query = tg.sql("SELECT CAST(price AS INT) + n AS total FROM bids WHERE n > 5", bids=frame)
    assert [row.total for row in query.df.collect()] == [10]
