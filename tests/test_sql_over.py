"""OVER aggregates: one row for each row, the same as DuckDB computes over the whole table."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.sql_queries import NOON, answer, batch_answer, planned
from tidegate.errors import SqlError

TABLE = """CREATE TABLE bid (id BIGINT, price BIGINT, ts TIMESTAMP(3), bidder STRING,
    seen AS PROCTIME(), WATERMARK FOR ts AS ts - INTERVAL '1' HOUR);"""
SCHEMA = pa.schema(
    [("id", pa.int64()), ("price", pa.int64()), ("ts", pa.timestamp("us")), ("bidder", pa.string())]
)
histories = st.lists(
    st.tuples(st.integers(0, 12), st.integers(-3, 9), st.sampled_from(["x", "y", None])),
    min_size=1,
    max_size=12,
)


def rows_of(history):
    return [
        {"id": n, "price": price, "ts": NOON + timedelta(seconds=at), "bidder": bidder}
        for n, (at, price, bidder) in enumerate(history)
    ]


def in_duckdb(rows):
    naive = [{**row, "ts": row["ts"].replace(tzinfo=None)} for row in rows]
    return pa.Table.from_pylist(naive, schema=SCHEMA)


@pytest.mark.parametrize(
    "frame",
    [
        "PARTITION BY bidder ORDER BY ts RANGE BETWEEN INTERVAL '2' SECOND PRECEDING AND CURRENT ROW",
        "ORDER BY ts RANGE BETWEEN INTERVAL '3' SECOND PRECEDING AND CURRENT ROW",
        "PARTITION BY bidder ORDER BY ts",
        "PARTITION BY bidder ORDER BY ts RANGE UNBOUNDED PRECEDING",
        "PARTITION BY bidder ORDER BY ts ROWS BETWEEN 2 PRECEDING AND CURRENT ROW",
        "ORDER BY ts ROWS UNBOUNDED PRECEDING",
    ],
)
@given(history=histories, deliveries=st.integers(1, 3))
@settings(max_examples=15, deadline=None)
def test_frames_agree_with_a_batch(frame, history, deliveries):
    rows = rows_of(history)
    if "ROWS" in frame:
        # The order of rows of one time is that of their arrival, which a batch does not know.
        times = [row["ts"] for row in rows]
        rows = [row for n, row in enumerate(rows) if row["ts"] not in times[:n]]
    query = """SELECT id, price + 1 AS p, SUM(price) OVER w AS s, COUNT(*) OVER w AS n,
        price - MIN(price) OVER w AS d, AVG(price) OVER w AS a FROM bid WINDOW w AS ({})"""
    expected = batch_answer(query.format(frame), {"bid": in_duckdb(rows)})
    found = answer(TABLE + query.format(frame), {"bid": rows}, deliveries=deliveries)
    assert found == expected


@pytest.mark.parametrize(
    "lag", ["LAG(price)", "LAG(price, 2)", "LAG(price + 1, 3, -1)", "price - LAG(price, 1, 0)"]
)
@given(history=histories, deliveries=st.integers(1, 3))
@settings(max_examples=6, deadline=None)
def test_rows_before_a_row_agree_with_a_batch(lag, history, deliveries):
    rows = rows_of(history)
    times = [row["ts"] for row in rows]
    rows = [row for n, row in enumerate(rows) if row["ts"] not in times[:n]]
    query = f"SELECT id, {lag} OVER (PARTITION BY bidder ORDER BY ts) AS x FROM bid"
    expected = batch_answer(query, {"bid": in_duckdb(rows)})
    assert answer(TABLE + query, {"bid": rows}, deliveries=deliveries) == expected


def test_the_order_of_arrival_decides_on_the_clock():
    rows = rows_of([(5, 1, "x"), (1, 2, "x"), (3, 4, "x"), (1, 8, "y")])
    assert answer(
        TABLE + "SELECT id, SUM(price) OVER (PARTITION BY bidder ORDER BY seen ROWS 1 PRECEDING) s"
        " FROM bid",
        {"bid": rows},
    ) == [(0, 1), (1, 3), (2, 6), (3, 8)]


def test_windows_over_the_rows_of_an_over():
    rows = rows_of([(0, 1, "x"), (1, 2, "x"), (2, 4, "x"), (11, 8, "x")])
    assert answer(
        TABLE
        + """SELECT window_start, SUM(s) AS t FROM TABLE(TUMBLE(TABLE (
            SELECT ts, SUM(price) OVER (ORDER BY ts RANGE INTERVAL '1' SECOND PRECEDING) AS s
            FROM bid), DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY window_start, window_end""",
        {"bid": rows},
    ) == [(0.0, 10), (10.0, 8)]


@pytest.mark.parametrize(
    ("over", "why"),
    [
        ("SUM(price) OVER (PARTITION BY bidder)", "ordered by one time"),
        ("SUM(price) OVER (ORDER BY price)", "a time column"),
        ("SUM(price) OVER (ORDER BY ts DESC)", "ascending"),
        ("SUM(price) OVER (ORDER BY ts ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING)", "ends with"),
        ("RANK() OVER (ORDER BY ts)", "takes an aggregate"),
        ("MEDIAN(price) OVER (ORDER BY ts)", "not supported"),
        (
            "SUM(price) OVER (ORDER BY ts ROWS 1 PRECEDING) + SUM(price) OVER (ORDER BY ts ROWS 2"
            " PRECEDING)",
            "one frame",
        ),
    ],
)
def test_frames_that_are_not_possible_are_refused(over, why):
    with pytest.raises(SqlError, match=why):
        planned(TABLE + f"SELECT {over} AS x FROM bid")


def test_rows_of_a_running_frame_feed_no_other_operator():
    over = "SELECT bidder, SUM(price) OVER (ORDER BY ts ROWS 1 PRECEDING) AS s FROM bid"
    with pytest.raises(SqlError, match="no other operator"):
        planned(TABLE + f"SELECT bidder, SUM(s) AS t FROM ({over}) GROUP BY bidder EMIT CHANGES")
