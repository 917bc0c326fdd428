"""Queries in the syntax of Flink, and the same questions to DuckDB over all rows at once."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa

NOON = datetime(2025, 3, 14, 12, tzinfo=UTC)
SECONDS = 60
"""The span of the events."""


def at(seconds: float) -> datetime:
    """An instant after noon."""
    return NOON + timedelta(seconds=seconds)


def events() -> dict[str, pa.Table]:
    """Bids, persons and auctions, sorted by time."""
    draw = random.Random(7)
    bids, persons, auctions = range(4 * SECONDS), range(16), range(SECONDS)
    return {
        "bid": pa.table(
            {
                "auction": [1000 + draw.randrange(6) for _ in bids],
                "bidder": [1 + draw.randrange(8) for _ in bids],
                "price": [draw.randrange(100, 10_000) for _ in bids],
                "dateTime": [at(n / 4) for n in bids],
            }
        ),
        "person": pa.table(
            {
                "id": [100 + n for n in persons],
                "name": [f"person {n}" for n in persons],
                "dateTime": [at(3.7 * n) for n in persons],
            }
        ),
        "auction": pa.table(
            {
                "id": [2000 + n for n in auctions],
                "seller": [100 + draw.randrange(16) for _ in auctions],
                "reserve": [draw.randrange(100) for _ in auctions],
                "dateTime": [at(n + 0.1) for n in auctions],
            }
        ),
    }


DEFINITIONS = """
CREATE TABLE bid (auction BIGINT, bidder BIGINT, price BIGINT, dateTime TIMESTAMP(3),
                  WATERMARK FOR dateTime AS dateTime - INTERVAL '4' SECOND);
CREATE TABLE person (id BIGINT, name STRING, dateTime TIMESTAMP(3),
                     WATERMARK FOR dateTime AS dateTime - INTERVAL '4' SECOND);
CREATE TABLE auction (id BIGINT, seller BIGINT, reserve BIGINT, dateTime TIMESTAMP(3),
                      WATERMARK FOR dateTime AS dateTime - INTERVAL '4' SECOND);
"""


@dataclass(frozen=True)
class Case:
    """A query, and the query of DuckDB with the same answer."""

    sql: str
    oracle: str


def answer(case: Case, tables: dict[str, pa.Table]) -> Counter[tuple[Any, ...]]:
    """The rows of the answer, computed by DuckDB."""
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for name, table in tables.items():
        connection.register(name, table)
    return Counter(map(plain, connection.execute(case.oracle).fetchall()))


def plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row whose values compare across engines: instants in UTC, and numbers as floats."""
    return tuple(
        value.astimezone(UTC)
        if isinstance(value, datetime)
        else float(value)
        if not isinstance(value, str | None)
        else value
        for value in row
    )


def changed(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> Counter[tuple[Any, ...]]:
    """The rows that are left when retracted ones are taken away."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        found[plain(tuple(row[name] for name in columns))] += -1 if row.get("op") == "-" else 1
    return +found


_TUMBLED = "SELECT * FROM TABLE(TUMBLE(TABLE {}, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))"
_BUCKETS = "(SELECT *, time_bucket(INTERVAL 10 SECOND, dateTime) AS w FROM {})"
_GROUPED_BIDS = f"""B.window_start, B.window_end, B.auction, B.n, A.total
  FROM (SELECT window_start, window_end, auction, COUNT(*) AS n FROM ({_TUMBLED.format("bid")})
        GROUP BY window_start, window_end, auction) B"""
_GROUPED_AUCTIONS = f"""
    (SELECT window_start, window_end, SUM(reserve) AS total FROM ({_TUMBLED.format("auction")})
     GROUP BY window_start, window_end) A
  ON B.window_start = A.window_start AND B.window_end = A.window_end"""
_BUCKETED_BIDS = f"""(
  SELECT w, auction, COUNT(*) n FROM {_BUCKETS.format("bid")} GROUP BY ALL) B"""
_BUCKETED_AUCTIONS = (
    f"(SELECT w, SUM(reserve) total FROM {_BUCKETS.format('auction')} GROUP BY w) A"
)
CASES: dict[str, Case] = {
    "nexmark_q5": Case(
        """
SELECT AuctionBids.auction, AuctionBids.num
FROM (SELECT auction, count(*) AS num, window_start AS starttime, window_end AS endtime
      FROM TABLE(HOP(TABLE bid, DESCRIPTOR(dateTime), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
      GROUP BY auction, window_start, window_end) AS AuctionBids
JOIN (SELECT max(CountBids.num) AS maxn, CountBids.starttime, CountBids.endtime
      FROM (SELECT count(*) AS num, window_start AS starttime, window_end AS endtime
            FROM TABLE(HOP(TABLE bid, DESCRIPTOR(dateTime), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
            GROUP BY auction, window_start, window_end) AS CountBids
      GROUP BY CountBids.starttime, CountBids.endtime) AS MaxBids
ON AuctionBids.starttime = MaxBids.starttime AND AuctionBids.endtime = MaxBids.endtime AND AuctionBids.num >= MaxBids.maxn
""",
        """
WITH w AS (SELECT auction, to_timestamp(s) AS ws FROM bid, LATERAL (SELECT unnest(range(CAST(floor(epoch(dateTime)/2)*2 AS BIGINT)-8, CAST(floor(epoch(dateTime)/2)*2 AS BIGINT)+2, 2)) AS s)),
c AS (SELECT auction, ws, count(*) AS num FROM w GROUP BY ALL)
SELECT auction, num FROM c WHERE num >= (SELECT max(num) FROM c d WHERE d.ws=c.ws)
""",
    ),
    "nexmark_q7": Case(
        """
SELECT B.auction, B.price, B.bidder, B.dateTime
FROM bid B
JOIN (SELECT MAX(price) AS maxprice, window_end AS dateTime
      FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))
      GROUP BY window_start, window_end) B1
ON B.price = B1.maxprice
WHERE B.dateTime BETWEEN B1.dateTime - INTERVAL '10' SECOND AND B1.dateTime
""",
        """
WITH m AS (SELECT max(price) AS maxprice, time_bucket(INTERVAL 10 SECOND, dateTime)+INTERVAL 10 SECOND AS e FROM bid GROUP BY e)
SELECT B.auction, B.price, B.bidder, B.dateTime FROM bid B JOIN m ON B.price=m.maxprice WHERE B.dateTime BETWEEN e - INTERVAL 10 SECOND AND e
""",
    ),
    "nexmark_q8": Case(
        """
SELECT P.id, P.name, P.starttime
FROM (SELECT id, name, window_start AS starttime, window_end AS endtime
      FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))
      GROUP BY id, name, window_start, window_end) P
JOIN (SELECT seller, window_start AS starttime, window_end AS endtime
      FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))
      GROUP BY seller, window_start, window_end) A
ON P.id = A.seller AND P.starttime = A.starttime AND P.endtime = A.endtime
""",
        """
SELECT DISTINCT P.id, P.name, time_bucket(INTERVAL 10 SECOND, P.dateTime) s FROM person P JOIN auction A ON P.id=A.seller AND time_bucket(INTERVAL 10 SECOND, P.dateTime)=time_bucket(INTERVAL 10 SECOND, A.dateTime)
""",
    ),
    "nexmark_q11": Case(
        """
SELECT bidder, count(*) AS bid_count, window_start AS starttime, window_end AS endtime
FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(dateTime), INTERVAL '2' SECOND))
GROUP BY bidder, window_start, window_end
""",
        """
WITH s AS (SELECT *, CASE WHEN dateTime - lag(dateTime) OVER (PARTITION BY bidder ORDER BY dateTime) <= INTERVAL 2 SECOND THEN 0 ELSE 1 END AS n FROM bid),
g AS (SELECT *, sum(n) OVER (PARTITION BY bidder ORDER BY dateTime) AS k FROM s)
SELECT bidder, count(*), min(dateTime), max(dateTime)+INTERVAL 2 SECOND FROM g GROUP BY bidder, k
""",
    ),
    "window_top_n": Case(
        """
SELECT window_start, auction, total, rownum FROM (
  SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY total DESC, auction) AS rownum
  FROM (SELECT window_start, window_end, auction, SUM(price) AS total
        FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))
        GROUP BY window_start, window_end, auction)
) WHERE rownum <= 3
""",
        """
SELECT * FROM (SELECT time_bucket(INTERVAL 10 SECOND, dateTime) w, auction, SUM(price) t, row_number() OVER (PARTITION BY time_bucket(INTERVAL 10 SECOND, dateTime) ORDER BY SUM(price) DESC, auction) r FROM bid GROUP BY w, auction) WHERE r<=3
""",
    ),
    "window_top_n_of_rows": Case(
        """
SELECT window_start, auction, price FROM (
  SELECT bidder, auction, price, window_start, window_end, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY price DESC) AS rownum
  FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))
) WHERE rownum <= 2
""",
        """
SELECT w, auction, price FROM (SELECT time_bucket(INTERVAL 10 SECOND, dateTime) w, auction, price, row_number() OVER (PARTITION BY w ORDER BY price DESC, dateTime) r FROM bid) WHERE r<=2
""",
    ),
    "window_deduplication": Case(
        """
SELECT bidder, auction, price, window_start FROM (
  SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end, bidder ORDER BY dateTime DESC) AS rownum
  FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))
) WHERE rownum = 1
""",
        """
SELECT bidder, auction, price, w FROM (SELECT *, time_bucket(INTERVAL 10 SECOND, dateTime) w, row_number() OVER (PARTITION BY bidder, w ORDER BY dateTime DESC) r FROM bid) WHERE r=1
""",
    ),
    "interval_join": Case(
        """
SELECT P.name, A.id, A.reserve FROM person P, auction A
WHERE P.id = A.seller AND A.dateTime BETWEEN P.dateTime - INTERVAL '5' SECOND AND P.dateTime + INTERVAL '20' SECOND
""",
        """
SELECT P.name, A.id, A.reserve FROM person P, auction A WHERE P.id=A.seller AND A.dateTime BETWEEN P.dateTime - INTERVAL 5 SECOND AND P.dateTime + INTERVAL 20 SECOND
""",
    ),
    "left_interval_join": Case(
        """
SELECT P.name, A.id FROM person P LEFT JOIN auction A
ON P.id = A.seller AND A.dateTime BETWEEN P.dateTime AND P.dateTime + INTERVAL '20' SECOND
""",
        """
SELECT P.name, A.id FROM person P LEFT JOIN auction A ON P.id=A.seller AND A.dateTime BETWEEN P.dateTime AND P.dateTime + INTERVAL 20 SECOND
""",
    ),
    "over_range": Case(
        """
SELECT bidder, price, SUM(price) OVER (PARTITION BY bidder ORDER BY dateTime RANGE BETWEEN INTERVAL '10' SECOND PRECEDING AND CURRENT ROW) AS s FROM bid
""",
        """
SELECT bidder, price, SUM(price) OVER (PARTITION BY bidder ORDER BY dateTime RANGE BETWEEN INTERVAL 10 SECOND PRECEDING AND CURRENT ROW) AS s FROM bid
""",
    ),
    "cumulate": Case(
        """
SELECT window_start, window_end, SUM(price) AS total, COUNT(DISTINCT bidder) AS bidders, AVG(price) AS mean
FROM TABLE(CUMULATE(TABLE bid, DESCRIPTOR(dateTime), INTERVAL '5' SECOND, INTERVAL '20' SECOND)) GROUP BY window_start, window_end
""",
        """
WITH w AS (SELECT *, time_bucket(INTERVAL 20 SECOND, dateTime) AS s FROM bid), e AS (SELECT w.*, s + k * INTERVAL 5 SECOND AS e FROM w, (VALUES (1),(2),(3),(4)) AS t(k))
SELECT s, e, SUM(price), COUNT(DISTINCT bidder), AVG(price) FROM e WHERE dateTime < e GROUP BY s, e
""",
    ),
    "window_aggregation": Case(
        """
SELECT window_start, window_end, auction, SUM(price) AS total, COUNT(*) FILTER (WHERE price > 5000) AS high
FROM TABLE(TUMBLE(DATA => TABLE bid, TIMECOL => DESCRIPTOR(dateTime), SIZE => INTERVAL '10' SECONDS))
GROUP BY window_start, window_end, auction
""",
        """
SELECT time_bucket(INTERVAL 10 SECOND, dateTime) w, w + INTERVAL 10 SECOND, auction, SUM(price),
       COUNT(*) FILTER (WHERE price > 5000) FROM bid GROUP BY w, auction
""",
    ),
    "window_join": Case(
        """
SELECT L.auction, R.id, L.window_start
FROM (SELECT * FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))) L
JOIN (SELECT * FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))) R
ON L.auction = R.id - 1000 AND L.window_start = R.window_start AND L.window_end = R.window_end
""",
        """
SELECT L.auction, R.id, time_bucket(INTERVAL 10 SECOND, L.dateTime) FROM bid L JOIN auction R
ON L.auction = R.id - 1000
AND time_bucket(INTERVAL 10 SECOND, L.dateTime) = time_bucket(INTERVAL 10 SECOND, R.dateTime)
""",
    ),
    "over_rows": Case(
        """
SELECT bidder, price, COUNT(*) OVER (
  PARTITION BY bidder ORDER BY dateTime ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS n
FROM bid
""",
        """
SELECT bidder, price, COUNT(*) OVER (
  PARTITION BY bidder ORDER BY dateTime ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) FROM bid
""",
    ),
    "union_all": Case(
        """
SELECT window_start, COUNT(*) AS n FROM TABLE(TUMBLE(
  TABLE (SELECT dateTime, price FROM bid UNION ALL SELECT dateTime, reserve FROM auction),
  DESCRIPTOR(dateTime), INTERVAL '10' SECOND))
GROUP BY window_start, window_end
""",
        """
SELECT time_bucket(INTERVAL 10 SECOND, dateTime) w, COUNT(*)
FROM (SELECT dateTime FROM bid UNION ALL SELECT dateTime FROM auction) GROUP BY w
""",
    ),
    "exists": Case(
        """
SELECT P.id FROM person P WHERE EXISTS (
  SELECT * FROM auction A WHERE A.seller = P.id
  AND A.dateTime BETWEEN P.dateTime AND P.dateTime + INTERVAL '15' SECOND)
""",
        """
SELECT id FROM person P WHERE EXISTS (
  SELECT * FROM auction A WHERE A.seller = P.id
  AND A.dateTime BETWEEN P.dateTime AND P.dateTime + INTERVAL 15 SECOND)
""",
    ),
    "aggregation_of_a_window_join": Case(
        f"""
SELECT window_start, window_end, COUNT(*) AS n, SUM(price) AS total FROM (
  SELECT L.window_start, L.window_end, L.price + R.reserve AS price
  FROM ({_TUMBLED.format("bid")}) L JOIN ({_TUMBLED.format("auction")}) R
  ON L.window_start = R.window_start AND L.window_end = R.window_end AND L.auction < R.id - 995)
GROUP BY window_start, window_end
""",
        f"""
SELECT w, w + INTERVAL 10 SECOND, COUNT(*), SUM(price + reserve)
FROM {_BUCKETS.format("bid")} L JOIN {_BUCKETS.format("auction")} R USING (w)
WHERE L.auction < R.id - 995 GROUP BY w
""",
    ),
    "top_n_of_a_window_join": Case(
        f"""
SELECT window_end, name, id, number FROM (
  SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY id DESC, name) number
  FROM (SELECT P.window_start, P.window_end, P.name, A.id
        FROM ({_TUMBLED.format("person")}) P LEFT JOIN ({_TUMBLED.format("auction")}) A
        ON P.window_start = A.window_start AND P.window_end = A.window_end AND P.id < A.seller)
) WHERE number <= 2
""",
        f"""
SELECT w + INTERVAL 10 SECOND, name, id, n FROM (
  SELECT P.w, name, A.id,
    row_number() OVER (PARTITION BY P.w ORDER BY A.id DESC NULLS LAST, name) n
  FROM {_BUCKETS.format("person")} P LEFT JOIN {_BUCKETS.format("auction")} A
  ON P.w = A.w AND P.id < A.seller) WHERE n <= 2
""",
    ),
    "window_join_of_three": Case(
        f"""
SELECT P.id, A.id, B.price, B.window_start
FROM ({_TUMBLED.format("person")}) P JOIN ({_TUMBLED.format("auction")}) A
ON P.id = A.seller AND P.window_start = A.window_start AND P.window_end = A.window_end
JOIN ({_TUMBLED.format("bid")}) B
ON B.auction = 1000 + MOD(A.id, 6) AND B.window_start = A.window_start AND B.window_end = A.window_end
""",
        f"""
SELECT P.id, A.id, B.price, B.w
FROM {_BUCKETS.format("person")} P JOIN {_BUCKETS.format("auction")} A
ON P.id = A.seller AND P.w = A.w JOIN {_BUCKETS.format("bid")} B
ON B.auction = 1000 + MOD(A.id, 6) AND B.w = A.w
""",
    ),
    "unmatched_rows_of_a_window_join": Case(
        f"""
SELECT window_start, COUNT(*) AS n, COUNT(name) AS persons, COUNT(seller) AS sellers FROM (
  SELECT COALESCE(P.window_start, A.window_start) AS window_start,
    COALESCE(P.window_end, A.window_end) AS window_end, P.name, A.seller,
    CASE WHEN P.window_start IS NULL OR A.window_start IS NULL THEN 1 ELSE 0 END AS alone
  FROM ({_TUMBLED.format("person")}) P FULL JOIN ({_TUMBLED.format("auction")}) A
  ON P.id = A.seller AND P.window_start = A.window_start AND P.window_end = A.window_end)
WHERE alone = 1 GROUP BY window_start, window_end
""",
        f"""
SELECT COALESCE(P.w, A.w) w, COUNT(*), COUNT(name), COUNT(seller)
FROM {_BUCKETS.format("person")} P FULL JOIN {_BUCKETS.format("auction")} A
ON P.id = A.seller AND P.w = A.w WHERE P.w IS NULL OR A.w IS NULL GROUP BY ALL
""",
    ),
    "top_n_of_joined_groups": Case(
        f"""
SELECT window_start, window_end, auction, number, total FROM (
  SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY n DESC, auction) number
  FROM (SELECT {_GROUPED_BIDS} JOIN {_GROUPED_AUCTIONS}))
WHERE number <= 2
""",
        f"""
SELECT w, w + INTERVAL 10 SECOND, auction, r, total FROM (
  SELECT B.w, auction, total, row_number() OVER (PARTITION BY B.w ORDER BY n DESC, auction) r
  FROM {_BUCKETED_BIDS} JOIN {_BUCKETED_AUCTIONS} USING (w)) WHERE r <= 2
""",
    ),
    "aggregation_of_joined_groups": Case(
        f"""
SELECT window_end, COUNT(*) AS groups, MAX(n) AS most, SUM(total) AS total
FROM (SELECT {_GROUPED_BIDS} LEFT JOIN {_GROUPED_AUCTIONS} AND A.total > 450)
GROUP BY window_start, window_end
""",
        f"""
SELECT B.w + INTERVAL 10 SECOND, COUNT(*), MAX(n), SUM(total)
FROM {_BUCKETED_BIDS} LEFT JOIN {_BUCKETED_AUCTIONS} ON A.w = B.w AND total > 450 GROUP BY B.w
""",
    ),
    "windows_over_joined_groups": Case(
        f"""
SELECT window_start, COUNT(*) AS groups, SUM(total) AS total FROM TABLE(TUMBLE(
  TABLE (SELECT {_GROUPED_BIDS} JOIN {_GROUPED_AUCTIONS}),
  DESCRIPTOR(window_end), INTERVAL '20' SECOND))
GROUP BY window_start, window_end
""",
        f"""
SELECT time_bucket(INTERVAL 20 SECOND, w) s, COUNT(*), SUM(total)
FROM {_BUCKETED_BIDS} JOIN {_BUCKETED_AUCTIONS} USING (w) GROUP BY s
""",
    ),
    "windows_over_a_union_of_groups": Case(
        f"""
SELECT window_start, COUNT(*) AS groups, SUM(n) AS n FROM TABLE(TUMBLE(TABLE (
  SELECT window_time AS at, COUNT(*) AS n FROM ({_TUMBLED.format("bid")})
  GROUP BY window_start, window_end, window_time, auction
  UNION ALL
  SELECT window_time, SUM(reserve) FROM ({_TUMBLED.format("auction")})
  GROUP BY window_start, window_end, window_time),
  DESCRIPTOR(at), INTERVAL '20' SECOND))
GROUP BY window_start, window_end
""",
        f"""
SELECT time_bucket(INTERVAL 20 SECOND, w) s, COUNT(*), SUM(n) FROM (
  SELECT w, COUNT(*) AS n FROM {_BUCKETS.format("bid")} GROUP BY w, auction
  UNION ALL SELECT w, SUM(reserve) FROM {_BUCKETS.format("auction")} GROUP BY w) GROUP BY s
""",
    ),
    "aggregation_of_a_union_of_groups": Case(
        f"""
SELECT window_start, window_end, MAX(n) AS most FROM (
  SELECT window_start, window_end, COUNT(*) AS n FROM ({_TUMBLED.format("bid")})
  GROUP BY window_start, window_end, auction
  UNION ALL
  SELECT window_start, window_end, COUNT(*) FROM ({_TUMBLED.format("auction")})
  GROUP BY window_start, window_end)
GROUP BY window_start, window_end
""",
        f"""
SELECT w, w + INTERVAL 10 SECOND, MAX(n) FROM (
  SELECT w, COUNT(*) AS n FROM {_BUCKETS.format("bid")} GROUP BY w, auction
  UNION ALL SELECT w, COUNT(*) FROM {_BUCKETS.format("auction")} GROUP BY w) GROUP BY w
""",
    ),
    "as_of_join_of_groups": Case(
        f"""
WITH totals AS (SELECT 1000 + MOD(id, 6) AS auction, reserve AS total, dateTime FROM auction)
SELECT B.auction, B.n, A.total FROM (
  SELECT window_time AS at, auction, COUNT(*) AS n FROM ({_TUMBLED.format("bid")})
  GROUP BY window_start, window_end, window_time, auction) B
LEFT JOIN totals FOR SYSTEM_TIME AS OF B.at AS A ON A.auction = B.auction
""",
        f"""
SELECT auction, n, (SELECT arg_max(reserve, dateTime) FROM auction
                    WHERE 1000 + MOD(id, 6) = B.auction AND dateTime < w + INTERVAL 10 SECOND)
FROM (SELECT w, auction, COUNT(*) AS n FROM {_BUCKETS.format("bid")} GROUP BY ALL) B
""",
    ),
}
