"""Acceptance of SQL: the design documents, the forms of Flink, and Nexmark, in this process."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tidegate as tg
from support.sql_cases import CASES, DEFINITIONS, SECONDS, Case, answer, at, changed, events


def embedded(case: Case, tables: dict[str, pa.Table]) -> tuple[Any, int]:
    """What a query has emitted minus what it retracted, and the number of its late rows.

    Every second of the events is a delivery.
    """
    query = tg.sql(DEFINITIONS + case.sql)
    with query.embedded(now=at(1000)) as op:
        for second in range(SECONDS + 1):
            for name in op.inputs:
                times = tables[name].column("dateTime")
                rows = tables[name].filter(
                    pc.and_(
                        pc.greater_equal(times, pa.scalar(at(second), times.type)),
                        pc.less(times, pa.scalar(at(second + 1), times.type)),
                    )
                )
                if rows.num_rows:
                    op.add_messages(rows, input=name)
        op.finish()
        results = op.get_result()
    return changed(results.panes.to_pylist(), query.columns), results.late.num_rows


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_forms_of_flink_and_nexmark_have_the_answers_of_duckdb(name: str) -> None:
    tables = events()
    expected = answer(CASES[name], tables)
    assert expected
    assert embedded(CASES[name], tables) == (expected, 0)


def test_nexmark_q12_counts_by_the_time_of_processing() -> None:
    query = tg.sql(
        DEFINITIONS
        + """
        CREATE VIEW B AS SELECT *, PROCTIME() AS p_time FROM bid;
        SELECT bidder, count(*) AS bid_count, window_start AS starttime, window_end AS endtime
        FROM TABLE(TUMBLE(TABLE B, DESCRIPTOR(p_time), INTERVAL '10' SECOND))
        GROUP BY bidder, window_start, window_end"""
    )
    bids = events()["bid"].slice(0, 3)
    with query.embedded(now=at(0)) as op:
        op.add_messages(bids, now=at(5))
        op.add_messages(bids, now=at(9))
        op.add_messages(bids, now=at(12))
        op.timeout(at(20))
        found = changed(op.get_result().panes.to_pylist(), query.columns)
    bidders = bids.column("bidder").to_pylist()
    assert found == changed(
        [
            {"bidder": one, "bid_count": times * bidders.count(one), "starttime": s, "endtime": e}
            for times, s, e in ((2, at(0), at(10)), (1, at(10), at(20)))
            for one in set(bidders)
        ],
        query.columns,
    )


# The design documents


def on_day(time: str) -> datetime:
    return datetime.fromisoformat(f"2015-04-01T0{time}").replace(tzinfo=UTC)


ORDERS = [
    {"off": 1, "value": 0, "id": 1, "time": on_day("8:59:10")},
    {"off": 2, "value": 5, "id": 3, "time": on_day("9:00:00")},
    {"off": 3, "value": 9, "id": 9, "time": on_day("8:59:30")},
]
SHIPMENTS = [
    {"off": 1000, "cost": 0, "id": 3, "time": on_day("9:00:10")},
    {"off": 1001, "cost": 2, "id": 1, "time": on_day("9:00:10")},
    {"off": 1002, "cost": 3, "id": 1, "time": on_day("9:01:10")},
    {"off": 1003, "cost": 1, "id": 9, "time": on_day("9:01:20")},
]
SHOP = """
CREATE TABLE Orders (off BIGINT, value INT, id INT, time TIMESTAMP(3));
CREATE TABLE Shipments (off BIGINT, cost INT, id INT, time TIMESTAMP(3));
"""


@pytest.mark.parametrize(
    "window", ["OVER (ROWS 3 PRECEDING)", "OVER (ORDER BY time RANGE '2' min PRECEDING)"]
)
def test_the_joins_of_the_window_operator_design(window: str) -> None:
    stream = tg.stream(time="time", offset="off", watermark=tg.bounded("2 minutes"))
    query = tg.sql(
        SHOP
        + f"SELECT id, value, cost FROM Shipments JOIN Orders {window} ON Orders.id = Shipments.id",
        Orders=stream,
        Shipments=stream,
    )
    found = []
    with query.embedded(now=on_day("9:00:00")) as op:
        for clock, orders, shipments in (
            ("9:01:00", ORDERS[:2], SHIPMENTS[:2]),
            ("9:02:00", [], SHIPMENTS[2:]),
            ("9:03:00", ORDERS[2:], []),
        ):
            for name, rows in (("Orders", orders), ("Shipments", shipments)):
                if rows:
                    op.add_messages(rows, input=name, now=on_day(clock))
            rows = op.get_result().panes.to_pylist()
            found.append([(row["id"], row["value"], row["cost"]) for row in rows])
            op.flush()
    assert found == [[(3, 5, 0), (1, 0, 2)], [(1, 0, 3)], [(9, 9, 1)]]


def test_the_query_of_the_keyed_watermark_design() -> None:
    query = tg.sql(
        """
        CREATE TABLE my_stream (time1 TIMESTAMP(3), time2 TIMESTAMP(3),
            WATERMARK FOR time1 AS time1, WATERMARK FOR time2 AS time2);
        select
          window_start window_start_inner,
          window_end window_end_inner,
          time2,
          count(*)
        from tumble(my_stream, descriptor(time1), 5 seconds)
        group by 1, 2, 3"""
    )
    with query.embedded(now=at(60)) as op:
        times = [(1, 2), (3, 2), (4, 9), (6, 9)]
        op.add_messages([{"time1": at(one), "time2": at(two)} for one, two in times])
        rows = op.get_result().panes.to_pylist()
    assert sorted(tuple(row[name] for name in query.columns) for row in rows) == [
        (at(0), at(5), at(2), 2),
        (at(0), at(5), at(9), 1),
    ]
