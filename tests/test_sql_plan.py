"""Plans of queries, run embedded: windows, groups, Top-N, joins, chains, and what is refused."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from support import sql_queries
from support.examples import examples
from support.sql_queries import NOON
from tidegate.errors import SqlError
from tidegate.sql.embedded import EmbeddedQuery

TABLES = """
CREATE TABLE bid (item STRING, price INT, ts TIMESTAMP(3), bidder STRING, seen AS PROCTIME(),
    WATERMARK FOR ts AS ts - INTERVAL '1' SECOND);
CREATE TABLE ask (id INT, item STRING, at TIMESTAMP(3), WATERMARK FOR at AS at);
CREATE TABLE plain (k STRING, v INT, ts TIMESTAMP(3));
CREATE VIEW counted AS SELECT bidder, window_start, window_end, COUNT(*) AS n
    FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(ts), INTERVAL '10' MINUTES))
    GROUP BY bidder, window_start, window_end;
"""
TUMBLE = "TABLE(TUMBLE(TABLE bid, DESCRIPTOR(ts), INTERVAL '10' MINUTES))"
HOP = "TABLE(HOP(TABLE bid, DESCRIPTOR(ts), INTERVAL '5' MINUTES, INTERVAL '10' MINUTES))"
ASKS = "TABLE(TUMBLE(TABLE ask, DESCRIPTOR(at), INTERVAL '10' MINUTES))"


def at(minutes, seconds=0):
    return NOON + timedelta(minutes=minutes, seconds=seconds)


ROWS = {
    "bid": [
        {"item": item, "price": price, "ts": at(*time), "bidder": bidder}
        for item, price, time, bidder in [
            ("A", 4, (8, 5), "x"),
            ("C", 2, (8, 7), "y"),
            ("D", 5, (8, 9), "x"),
            ("B", 3, (9, 11), "z"),
            ("E", 1, (9, 15), "y"),
            ("F", 6, (10, 57), "x"),
        ]
    ],
    "ask": [
        {"id": 1, "item": "A", "at": at(8, 10)},
        {"id": 2, "item": "C", "at": at(8)},
        {"id": 3, "item": "F", "at": at(16, 40)},
    ],
    "plain": [{"k": "a", "v": 1, "ts": at(1)}, {"k": "a", "v": 2, "ts": at(2)}],
}


def planned(text, **options):
    return sql_queries.planned(TABLES + text, **options)


def rows_of(text, **options):
    """The rows of a query; instants are minutes after noon."""
    return sql_queries.answer(TABLES + text, ROWS, shown=minutes, **options)


def minutes(value):
    if isinstance(value, datetime):
        return (value - NOON).total_seconds() / 60
    return value


def test_a_window_aggregation_has_one_row_for_each_window():
    assert rows_of(
        f"SELECT window_start, window_end, SUM(price) AS total FROM {TUMBLE}"
        " GROUP BY window_start, window_end"
    ) == [(0, 10, 15), (10, 20, 6)]


@pytest.mark.parametrize(
    "source",
    [
        HOP,
        "HOP(TABLE bid, DESCRIPTOR(ts), INTERVAL '5' MINUTES, INTERVAL '10' MINUTES)",
        "TABLE(HOP(DATA => TABLE bid, TIMECOL => DESCRIPTOR(ts), SIZE => INTERVAL '10' MINUTES,"
        " SLIDE => INTERVAL '5' MINUTES))",
        "hop(bid, descriptor(ts), 5 minutes, 10 minutes)",
        "TABLE(HOP(TABLE bid, DESCRIPTOR(ts), INTERVAL '5' MINUTES, INTERVAL '10' MINUTES,"
        " INTERVAL '0' SECOND))",
    ],
)
def test_a_hop_takes_the_slide_before_the_size(source):
    assert rows_of(
        f"SELECT window_start, window_end, SUM(price) s FROM {source}"
        " GROUP BY window_start, window_end"
    ) == [(0, 10, 15), (10, 20, 6), (5, 15, 21)]


def test_windows_that_grow_and_windows_of_the_calendar():
    step = "CUMULATE(TABLE bid, DESCRIPTOR(ts), INTERVAL '5' MINUTES, INTERVAL '20' MINUTES)"
    assert rows_of(
        f"SELECT window_end, COUNT(*) n FROM {step} GROUP BY window_start, window_end"
    ) == [(10, 5), (15, 6), (20, 6)]
    month = "TUMBLE(TABLE bid, DESCRIPTOR(ts), INTERVAL '1' MONTH)"
    assert rows_of(f"SELECT COUNT(*) n FROM {month} GROUP BY window_start, window_end") == [(6,)]


def test_expressions_inside_and_around_aggregates_filters_having_positions_and_aliases():
    assert rows_of(
        f"""SELECT window_start, UPPER(item) AS i, SUM(price * 2) + 1 AS p,
            COUNT(DISTINCT bidder) FILTER (WHERE price > 2) AS d
        FROM {TUMBLE} WHERE price <> 3 GROUP BY 1, window_end, i HAVING COUNT(*) >= 1 AND p > 6"""
    ) == [(0, "A", 9, 1), (0, "D", 11, 1), (10, "F", 13, 1)]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT bidder, SESSION_START(ts, INTERVAL '1' MINUTE) s, COUNT(*) n FROM bid"
        " GROUP BY bidder, SESSION(ts, INTERVAL '1' MINUTE)",
        "SELECT bidder, window_start, COUNT(*) n FROM TABLE(SESSION(TABLE bid PARTITION BY bidder,"
        " DESCRIPTOR(ts), INTERVAL '1' MINUTE)) GROUP BY bidder, window_start, window_end",
        "SELECT bidder, session_window.start, COUNT(*) n FROM bid"
        " GROUP BY bidder, session_window(ts, '1 minute')",
    ],
)
def test_sessions_of_every_key(text):
    second = 1 / 60
    assert rows_of(text) == [
        ("x", pytest.approx(10 + 57 * second), 1),
        ("x", pytest.approx(8 + 5 * second), 2),
        ("y", pytest.approx(8 + 7 * second), 1),
        ("y", pytest.approx(9 + 15 * second), 1),
        ("z", pytest.approx(9 + 11 * second), 1),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "SELECT bidder, WINDOWSTART s, COUNT(*) n FROM bid b"
            " WINDOW TUMBLING (SIZE 10 MINUTES) WHERE price > 1 GROUP BY bidder EMIT FINAL",
            [("x", 0, 2), ("x", 10, 1), ("y", 0, 1), ("z", 0, 1)],
        ),
        (
            "SELECT bidder, WINDOWEND e FROM bid WINDOW HOPPING (SIZE 10 MINUTES, ADVANCE BY 5"
            " MINUTES, GRACE PERIOD 1 HOUR) WHERE price > 4 GROUP BY bidder EMIT CHANGES",
            [("x", 10), ("x", 15), ("x", 20)],
        ),
        (
            "SELECT bidder, windowstart FROM bid WINDOW SESSION (90 SECONDS) WHERE price > 1"
            " GROUP BY bidder",
            [
                ("x", 10.95),
                ("x", pytest.approx(8 + 1 / 12)),
                ("y", pytest.approx(8 + 7 / 60)),
                ("z", pytest.approx(9 + 11 / 60)),
            ],
        ),
        (
            "SELECT TumbleBid.wstart, MAX(TumbleBid.price) m FROM Tumble(data => TABLE(bid),"
            " timecol => DESCRIPTOR(ts), dur => INTERVAL '10' MINUTE) TumbleBid GROUP BY"
            " TumbleBid.wend, TumbleBid.wstart EMIT STREAM AFTER WATERMARK",
            [(0, 5), (10, 6)],
        ),
        (
            "SELECT w.start AS s, w.end AS e, n FROM (SELECT window AS w, COUNT(*) AS n FROM bid"
            " GROUP BY window(ts, '10 minutes'))",
            [(0, 10, 5), (10, 20, 1)],
        ),
        (
            "SELECT window(ts, '10 minutes').end AS e, COUNT(*) AS n FROM bid"
            " GROUP BY window(ts, '10 minutes')",
            [(10, 5), (20, 1)],
        ),
        (
            "SELECT window.start AS s, SUM(n) AS n FROM (SELECT window, bidder, COUNT(*) AS n"
            " FROM bid GROUP BY window(ts, '10 minutes'), bidder) GROUP BY window",
            [(0, 5), (10, 1)],
        ),
        (
            "SELECT w.start AS s, MAX(n) AS n FROM (SELECT window AS w, bidder, COUNT(*) AS n"
            " FROM bid GROUP BY window(ts, '10 minutes'), bidder) t GROUP BY t.w.start",
            [(0, 2), (10, 1)],
        ),
        (
            "SELECT window_time(w) AS t, n FROM (SELECT window AS w, COUNT(*) AS n FROM bid"
            " GROUP BY window(ts, '10 minutes')) WHERE w.start < TIMESTAMP '2025-03-14 12:10:00'",
            [(pytest.approx(10 - 1 / 60_000_000, abs=1e-9), 5)],
        ),
        (
            "SELECT window.end AS e, window_time(window) < window.end AS before, SUM(n) AS n"
            " FROM (SELECT window, COUNT(*) AS n FROM bid GROUP BY window(ts, '10 minutes'))"
            " GROUP BY window(window_time(window), '20 minutes')",
            [(20, True, 6)],
        ),
        (
            "SELECT window.end AS e, SUM(n) AS n FROM (SELECT window AS w, COUNT(*) AS n FROM bid"
            " GROUP BY window(ts, '10 minutes')) GROUP BY window(w, '20 minutes')",
            [(20, 6)],
        ),
        (
            "SELECT item, session_window.end AS e FROM bid WHERE price > 4 GROUP BY item,"
            " session_window(ts, CASE WHEN item = 'D' THEN '1 minute' ELSE '2 minutes' END)",
            [("D", pytest.approx(9 + 9 / 60)), ("F", pytest.approx(12 + 57 / 60))],
        ),
        (
            "SELECT item, session_window.end AS e FROM bid WHERE price > 5 GROUP BY item,"
            " session_window(ts, INTERVAL '3' MINUTE)",
            [("F", pytest.approx(13 + 57 / 60))],
        ),
        (
            "SELECT b.item, a.id FROM bid b JOIN ask a WITHIN (2 MINUTES, 5 SECONDS)"
            " GRACE PERIOD 1 MINUTE ON b.item = a.item",
            [("A", 1), ("C", 2)],
        ),
    ],
)
def test_windows_in_the_words_of_ksqldb_spark_and_the_paper(text, expected):
    assert rows_of(text) == expected


def test_sessions_over_all_keys_are_grouped_afterwards():
    found = rows_of(
        "SELECT bidder, COUNT(*) n FROM TABLE(SESSION(TABLE bid, DESCRIPTOR(ts),"
        " INTERVAL '1' MINUTE)) GROUP BY bidder, window_start, window_end"
    )
    assert found == [("x", 1), ("x", 2), ("y", 1), ("y", 1), ("z", 1)]


def test_rows_of_windows_without_a_group():
    found = rows_of(f"SELECT item, window_start, window_end, window_time FROM {HOP}")
    assert len(found) == 12
    assert ("F", 5, 15, pytest.approx(15 - 1 / 60_000)) in found


def test_the_first_groups_of_a_window():
    assert rows_of(
        f"""SELECT window_start, bidder, total, row_num FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end
                ORDER BY total DESC) AS row_num
            FROM (SELECT window_start, window_end, bidder, SUM(price) AS total FROM {TUMBLE}
                GROUP BY window_start, window_end, bidder))
        WHERE row_num <= 2"""
    ) == [(0, "x", 9, 1), (0, "y", 3, 2), (10, "x", 6, 1)]


def test_the_first_rows_of_a_window():
    assert rows_of(
        f"""SELECT item, row_num FROM (SELECT item, ROW_NUMBER() OVER (
            PARTITION BY window_start, window_end ORDER BY price, item DESC) AS row_num
            FROM {TUMBLE}) WHERE row_num <= 2"""
    ) == [("C", 2), ("E", 1), ("F", 1)]


def test_deduplication_keeps_the_last_row_of_a_key():
    assert rows_of(
        f"""SELECT bidder, item FROM (SELECT bidder, item, ROW_NUMBER() OVER (
            PARTITION BY window_start, window_end, bidder ORDER BY ts DESC) AS row_num
            FROM {TUMBLE}) WHERE row_num = 1"""
    ) == [("x", "D"), ("x", "F"), ("y", "E"), ("z", "B")]
    assert rows_of(
        """SELECT bidder, item FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder
            ORDER BY ts DESC) AS r FROM bid) WHERE r = 1 EMIT CHANGES"""
    ) == [("x", "F"), ("y", "E"), ("z", "B")]


def test_windows_over_windows():
    assert rows_of(
        "SELECT window_start, SUM(n) AS s, MAX(n) AS m FROM counted"
        " GROUP BY window_start, window_end"
    ) == [(0, 5, 2), (10, 1, 1)]
    assert rows_of(
        f"""SELECT window_start, SUM(n) AS s FROM TABLE(TUMBLE(TABLE (
            SELECT bidder, window_time AS t, COUNT(*) AS n FROM {TUMBLE}
            GROUP BY bidder, window_start, window_end, window_time),
            DESCRIPTOR(t), INTERVAL '20' MINUTES)) GROUP BY window_start, window_end"""
    ) == [(0, 6)]
    assert rows_of(
        """WITH w AS (SELECT * FROM counted WHERE n > 1) SELECT window_start s, COUNT(*) k FROM w
        GROUP BY window_start, window_end"""
    ) == [(0, 2)]


def test_groups_without_a_window_emit_changes():
    found = rows_of("SELECT bidder, COUNT(*) n FROM bid GROUP BY bidder EMIT CHANGES")
    assert found == [("x", 3), ("y", 2), ("z", 1)]


def test_rows_pass_through_and_unions():
    assert rows_of("SELECT item, price * 2 AS q FROM bid WHERE price > 4") == [("D", 10), ("F", 12)]
    assert len(rows_of("SELECT item FROM bid UNION ALL SELECT item FROM ask")) == 9
    assert rows_of(
        """SELECT item, COUNT(*) n FROM TABLE(TUMBLE(TABLE (
            SELECT item, ts FROM bid UNION ALL SELECT item, at FROM ask),
            DESCRIPTOR(ts), INTERVAL '1' HOUR)) GROUP BY window_start, window_end, item
        HAVING COUNT(*) > 1"""
    ) == [("A", 2), ("C", 2), ("F", 2)]


def test_a_table_without_a_watermark_is_complete_at_its_end():
    assert rows_of(
        "SELECT k, SUM(v) s FROM TUMBLE(TABLE plain, DESCRIPTOR(ts), INTERVAL '1' HOUR)"
        " GROUP BY k, window_start, window_end"
    ) == [("a", 3)]


UNTIMED = """
CREATE TABLE a (k STRING, v INT, ts TIMESTAMP(3)); CREATE TABLE b (k STRING, w INT, ts STRING);
"""
UNTIMED_ROWS = {
    "a": [{"k": "x", "v": n, "ts": at(n)} for n in range(4)],
    "b": [{"k": "x", "w": n, "ts": at(n).isoformat()} for n in range(4)],
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "SELECT v, SUM(v) OVER (ORDER BY ts RANGE INTERVAL '1' MINUTE PRECEDING) s FROM a",
            [(0, 0), (1, 1), (2, 3), (3, 5)],
        ),
        (
            "SELECT w, SUM(w) OVER (ORDER BY ts ROWS 1 PRECEDING) s FROM b",
            [(0, 0), (1, 1), (2, 3), (3, 5)],
        ),
        (
            "SELECT v, w FROM a, b WHERE a.k = b.k AND a.ts BETWEEN b.ts - INTERVAL '30' SECOND"
            " AND b.ts AND v > 1",
            [(2, 2), (3, 3)],
        ),
        (
            "SELECT l.v, r.v AS w FROM a l LEFT JOIN a FOR SYSTEM_TIME AS OF l.ts AS r"
            " ON l.k = r.k WHERE l.v > 2",
            [(3, 3)],
        ),
        (
            "SELECT l.v, r.w FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '1' HOUR)) l JOIN"
            " TABLE(TUMBLE(TABLE b, DESCRIPTOR(ts), INTERVAL '1' HOUR)) r ON l.window_start ="
            " r.window_start AND l.window_end = r.window_end AND l.k = r.k AND l.v > r.w + 1",
            [(2, 0), (3, 0), (3, 1)],
        ),
    ],
)
def test_tables_without_watermarks_take_their_time_from_the_query(text, expected):
    assert sql_queries.answer(UNTIMED + text, UNTIMED_ROWS, shown=minutes) == expected


def test_a_window_join_keeps_its_conditions_on_times():
    left = f"(SELECT item, ts, window_start, window_end FROM {TUMBLE}) l"
    right = f"(SELECT id, at, window_start, window_end FROM {ASKS}) r"
    same = "l.window_start = r.window_start AND l.window_end = r.window_end"
    assert rows_of(f"SELECT item, id FROM {left} JOIN {right} ON {same} AND l.ts > r.at") == [
        ("A", 2),
        ("B", 1),
        ("B", 2),
        ("C", 2),
        ("D", 2),
        ("E", 1),
        ("E", 2),
    ]


def test_windows_on_the_clock_and_on_counts():
    assert rows_of(
        "SELECT bidder, COUNT(*) n FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(seen),"
        " INTERVAL '10' SECOND)) GROUP BY bidder, window_start, window_end"
    ) == [("x", 3), ("y", 2), ("z", 1)]
    assert rows_of(
        "SELECT bidder, SUM(price) n FROM TABLE(TUMBLE(TABLE bid, ROWS 2))"
        " GROUP BY bidder, window_start, window_end"
    ) == [("x", 6), ("x", 9), ("y", 3), ("z", 3)]


BOUNDS = "b.ts BETWEEN a.at - INTERVAL '1' MINUTE AND a.at + INTERVAL '1' MINUTE"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            f"SELECT id, price FROM ask a, bid b WHERE a.item = b.item AND {BOUNDS}",
            [(1, 4), (2, 2)],
        ),
        (
            f"SELECT id, price FROM ask a LEFT JOIN bid b ON a.item = b.item AND {BOUNDS}",
            [(1, 4), (2, 2), (3, None)],
        ),
        (
            "SELECT a.item x, b.item y FROM ask a FULL JOIN bid b ON a.item = b.item"
            f" AND {BOUNDS} AND b.price < 6",
            [
                ("A", "A"),
                ("C", "C"),
                ("F", None),
                (None, "B"),
                (None, "D"),
                (None, "E"),
                (None, "F"),
            ],
        ),
        (
            f"SELECT b.item FROM bid b LEFT ANTI JOIN ask a ON a.item = b.item AND {BOUNDS}",
            [("B",), ("D",), ("E",), ("F",)],
        ),
        (
            "SELECT id, price FROM ask a JOIN bid FOR SYSTEM_TIME AS OF a.at AS b"
            " ON a.item = b.item",
            [(1, 4), (3, 6)],
        ),
        (
            "SELECT id, price FROM ask a ASOF JOIN bid b ON a.item = b.item AND a.at >= b.ts"
            " AND a.at <= b.ts + INTERVAL '1' MINUTE",
            [(1, 4)],
        ),
        (
            "SELECT id, price FROM ask a ASOF JOIN bid b MATCH_CONDITION (a.at >= b.ts)"
            " ON a.item = b.item",
            [(1, 4), (3, 6)],
        ),
    ],
)
def test_joins_with_bounds_of_time(text, expected):
    assert rows_of(text) == expected


def test_window_joins_of_all_kinds():
    left = f"(SELECT * FROM {TUMBLE}) L"
    right = f"(SELECT * FROM {ASKS}) R"
    same = "L.window_start = R.window_start AND L.window_end = R.window_end"
    assert rows_of(
        f"SELECT L.item x, R.item y, COALESCE(L.window_start, R.window_start) s FROM {left}"
        f" FULL JOIN {right} ON L.item = R.item AND {same} WHERE price > 3 OR R.id > 2"
    ) == [("A", "A", 0), ("D", None, 0), ("F", "F", 10)]
    assert rows_of(
        f"SELECT item FROM {left} WHERE L.item IN (SELECT item FROM {right} WHERE {same})"
    ) == [("A",), ("C",), ("F",)]
    assert rows_of(
        f"SELECT item FROM {left} WHERE NOT EXISTS (SELECT * FROM {right}"
        f" WHERE L.item = R.item AND {same})"
    ) == [("B",), ("D",), ("E",)]
    assert rows_of(
        f"SELECT L.item, R.id FROM {left} JOIN {right} ON {same} AND L.price > R.id + 2"
    ) == [("A", 1), ("D", 1), ("D", 2), ("F", 3)]


def test_the_hottest_groups_of_every_window():
    counts = f"""SELECT bidder, COUNT(*) AS n, window_start AS s, window_end AS e FROM {HOP}
        GROUP BY bidder, window_start, window_end"""
    assert rows_of(
        f"""SELECT a.bidder, a.n, a.s FROM ({counts}) AS a JOIN (
            SELECT MAX(c.n) AS most, c.s, c.e FROM ({counts}) AS c GROUP BY c.s, c.e) AS m
        ON a.s = m.s AND a.e = m.e AND a.n >= m.most"""
    ) == [("x", 1, 10), ("x", 2, 0), ("x", 3, 5), ("y", 2, 0)]


def test_the_highest_bids_of_every_window():
    assert rows_of(
        f"""SELECT b.item, b.price FROM bid b JOIN (SELECT MAX(price) AS most, window_end AS ends
            FROM {TUMBLE} GROUP BY window_start, window_end) m ON b.price = m.most
        WHERE b.ts BETWEEN m.ends - INTERVAL '10' MINUTE AND m.ends"""
    ) == [("D", 5), ("F", 6)]


def test_rows_between_the_bounds_of_a_window():
    assert rows_of(
        """SELECT id, c.bidder, c.n FROM counted c JOIN ask a
        ON a.at >= c.window_start AND a.at < c.window_end AND c.n > 1"""
    ) == [(1, "x", 2), (1, "y", 2), (2, "x", 2), (2, "y", 2)]


def test_emit_becomes_the_trigger_the_mode_and_the_lateness():
    plan, _ = planned(
        f"""SELECT bidder, COUNT(*) n FROM {TUMBLE} GROUP BY bidder, window_start, window_end
        EMIT EARLY EVERY INTERVAL '10' SECOND LATE AFTER 1 ROW ALLOW LATENESS INTERVAL '1' MINUTE"""
    )
    spec = plan.branches[0].root.spec
    assert spec.trigger == tg.after_watermark(early=tg.every("10 s"), late=tg.after_count(1))
    assert (spec.mode, spec.allowed_lateness) == ("retracting", 60_000_000)
    late, _ = planned(
        f"SELECT COUNT(*) n FROM {TUMBLE} GROUP BY window_start, window_end EMIT LATE AFTER 1 ROW"
    )
    # Late panes need late rows: windows take them as long as those of the API.
    assert late.branches[0].root.spec.lateness == 60_000_000
    plain, _ = planned(f"SELECT COUNT(*) n FROM {TUMBLE} GROUP BY window_start, window_end")
    assert plain.branches[0].root.spec.trigger == tg.after_watermark()
    assert plain.branches[0].root.spec.allowed_lateness == 0


def test_columns_that_need_no_step_are_read_as_they_are():
    plan, _ = planned(
        f"SELECT bidder, SUM(price) n FROM {TUMBLE} GROUP BY bidder, window_start, window_end"
    )
    root = plan.branches[0].root
    assert not root.sources[0].select
    assert root.spec.key == ("bidder",)
    assert dict(root.spec.aggregates) == {"n": tg.sum("price")}


def test_aggregates_of_the_user_are_known_by_name():
    assert rows_of(
        f"SELECT BIGGEST(price) b, twice(price) FROM {TUMBLE} GROUP BY window_start, window_end",
        aggregates={"biggest": tg.max, "TWICE": lambda column: tg.top_k(column, 2)},
    ) == [(5, [5, 4]), (6, [6])]


@pytest.mark.parametrize(
    ("text", "at", "why"),
    [
        ("SELECT item FROM bid ORDER BY item", "item", "ORDER BY over a stream"),
        ("SELECT item FROM bid LIMIT 3", "3", "LIMIT of a stream"),
        ("SELECT item, COUNT(*) FROM bid GROUP BY item", "item", "without a window"),
        ("SELECT id FROM ask JOIN bid ON ask.item = bid.item", "ask", "without time bounds"),
        ("SELECT nothing FROM bid", "nothing", "no column `nothing`"),
        ("SELECT pric FROM bid", "pric", "did you mean `price`"),
        ("SELECT * FROM bids", "bids", "did you mean `bid`"),
        ("SELECT item FROM bid b, ask a WHERE b.ts = a.at", "item", "ambiguous"),
        (f"SELECT item, COUNT(*) FROM {TUMBLE} GROUP BY window_start", "item", "neither grouped"),
        (f"SELECT COUNT(*) FROM {TUMBLE} GROUP BY item", "item", "grouped by its windows"),
        ("SELECT * FROM TUMBL(TABLE bid, 3)", "TUMBL", "no table function"),
        (
            "SELECT * FROM TUMBLE(TABLE bid, DESCRIPTOR(price), INTERVAL '1' DAY)",
            "price",
            "no time",
        ),
        ("SELECT * FROM HOP(TABLE bid, DESCRIPTOR(ts), INTERVAL '1' DAY)", "HOP", "needs its"),
        ("SELECT fro(item) FROM bid", "fro", "no function `fro`"),
        (
            "SELECT a.x FROM (SELECT ROW_NUMBER() OVER (ORDER BY ts) AS x FROM bid) a",
            "",
            "row number",
        ),
        ("SELECT item FROM bid UNION SELECT item FROM ask", "item", "UNION ALL"),
        ("SELECT item FROM MERGED(bid, ask)", "", "aggregated together"),
        ("SELECT SUM(bid.price + ask.id) FROM MERGED(bid, ask) EMIT CHANGES", "SUM", "one table"),
        ("SELECT SUM(MAX(price)) FROM bid EMIT CHANGES", "MAX", "inside of another"),
        ("SELECT ARRAY_AGG(DISTINCT ) FROM bid EMIT CHANGES", "SELECT", "incomplete"),
        ("SELECT APPROX_PERCENTILE(price) FROM bid EMIT CHANGES", "SELECT", "incomplete"),
        (
            "SELECT TUMBLE_START(ts, INTERVAL '1' HOUR) FROM bid"
            " GROUP BY TUMBLE(ts, INTERVAL '1' DAY)",
            "TUMBLE_START",
            "no window with these arguments",
        ),
        ("SELECT item FROM bid /*+ OPTIONS('a'='b') */", "bid", "hints are not supported"),
        ("SELECT /*+ BROADCAST(bid) */ item FROM bid", "item", "hints are not supported"),
        ("SELECT item FROM bid WINDOW TUMBLING (SIZE 1 DAY)", "TUMBLING", "a WINDOW has groups"),
        (
            "SELECT k, COUNT(*) FROM plain WINDOW SESSION (1 DAY) GROUP BY k",
            "SESSION",
            "a window needs a time",
        ),
        ("SELECT UPPER(SOUNDEX(item)) FROM bid", "SOUNDEX", "no function `SOUNDEX`"),
        ("SELECT MAX(SOUNDEX(item)) FROM bid EMIT CHANGES", "SOUNDEX", "no function `SOUNDEX`"),
        ("SELECT SOUNDEX(MAX(item)) FROM bid EMIT CHANGES", "SOUNDEX", "no function `SOUNDEX`"),
        (
            f"SELECT id FROM ask a, bid b WHERE {BOUNDS} AND SOUNDEX(id) = a.item",
            "SOUNDEX",
            "no function",
        ),
        ("SELECT item FROM bid WHERE ts * 2 > 3", "ts", "does not fit its columns"),
        ("SELECT TUMBLE_END(ts, INTERVAL '1' DAY) FROM bid", "TUMBLE_END", "no function"),
        (
            f"SELECT SUM(price) OVER (ORDER BY ts) FROM {TUMBLE} GROUP BY window_start, window_end",
            "SUM",
            "has groups",
        ),
        ("SELECT item FROM bid WHERE price > (SELECT 3 FROM ask)", "3", "subquery"),
    ],
)
def test_what_is_not_possible_is_refused_with_its_place(text, at, why):
    with pytest.raises(SqlError) as caught:
        planned(text)
    assert why.lower() in str(caught.value).lower()
    _, line, caret, *_ = str(caught.value).split("\n")
    assert line[caret.index("^") : caret.rindex("^") + 1].startswith(at)


@pytest.mark.parametrize(
    "window", ["ROWS 3 PRECEDING", "ORDER BY time RANGE '2' min PRECEDING"], ids=["rows", "range"]
)
def test_the_joins_of_the_design_document_give_its_results(window):
    """Orders and shipments at 9 o'clock, in the order and with the results of the document."""

    def nine(seconds):
        return NOON - timedelta(hours=3) + timedelta(seconds=seconds)

    plan, tables = sql_queries.planned(
        f"""CREATE TABLE Orders (offset BIGINT, value INT, id INT, time TIMESTAMP(3));
        CREATE TABLE Shipments (offset BIGINT, cost INT, id INT, time TIMESTAMP(3));
        SELECT id, value, cost FROM Shipments JOIN Orders OVER ({window})
        ON Orders.id = Shipments.id""",
        roles={"offset": "offset"} if window.startswith("ROWS") else {},
    )
    with EmbeddedQuery(plan, tables, now=nine(0)) as query:

        def new():
            rows = query.get_result().panes.select(["id", "value", "cost"]).to_pylist()
            query.flush()
            return sorted(tuple(row.values()) for row in rows)

        def orders(offset, value, number, time):
            row = {"offset": offset, "value": value, "id": number, "time": nine(time)}
            query.add_messages([row], input="Orders")

        def shipments(offset, cost, number, time):
            row = {"offset": offset, "cost": cost, "id": number, "time": nine(time)}
            query.add_messages([row], input="Shipments")

        orders(1, 0, 1, -50)
        shipments(1000, 0, 3, 10)
        shipments(1001, 2, 1, 10)
        orders(2, 5, 3, 0)
        assert new() == [(1, 0, 2), (3, 5, 0)]
        shipments(1002, 3, 1, 70)
        shipments(1003, 1, 9, 80)
        assert new() == [(1, 0, 3)]
        orders(3, 9, 9, -30)
        assert new() == [(9, 9, 1)]


def test_the_window_of_the_design_document_with_two_time_columns():
    rows = [{"time1": at(0, second), "time2": at(0, 3)} for second in (1, 2, 7)]
    found = sql_queries.answer(
        """CREATE TABLE my_stream (time1 TIMESTAMP(3), time2 TIMESTAMP(3),
            WATERMARK FOR time1 AS time1, WATERMARK FOR time2 AS time2);
        select window_start window_start_inner, window_end window_end_inner, time2, count(*)
        from tumble(my_stream, descriptor(time1), 5 seconds) group by 1, 2, 3""",
        {"my_stream": rows},
    )
    assert found == [(0.0, 5.0, 3.0, 2), (5.0, 10.0, 3.0, 1)]


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        ("GROUPING SETS ((bidder), ())", [("x", 15), ("y", 3), ("z", 3), (None, 21)]),
        ("ROLLUP (bidder)", [("x", 15), ("y", 3), ("z", 3), (None, 21)]),
        ("CUBE (bidder)", [("x", 15), ("y", 3), ("z", 3), (None, 21)]),
    ],
)
def test_grouping_sets_are_united(sets, expected):
    hour = "TUMBLE(TABLE bid, DESCRIPTOR(ts), INTERVAL '1' HOUR)"
    query = f"SELECT bidder, SUM(price) s FROM {hour} GROUP BY "
    assert rows_of(f"{query} window_start, window_end, {sets}") == expected
    bounds = "(window_start, window_end, bidder), (window_start, window_end)"
    assert rows_of(f"{query} GROUPING SETS ({bounds})") == expected


def test_grouping_tells_the_set_of_a_row():
    hour = "TUMBLE(TABLE bid, DESCRIPTOR(ts), INTERVAL '1' HOUR)"
    assert rows_of(
        f"""SELECT bidder, COUNT(*) n, GROUPING(bidder) g, GROUPING_ID(item, bidder) + 1 h FROM {hour}
        GROUP BY window_start, window_end, GROUPING SETS ((bidder), (item), ()) HAVING COUNT(*) > 1"""
    ) == [("x", 3, 0, 3), ("y", 2, 0, 3), (None, 6, 1, 4)]


def test_tables_are_aggregated_together():
    assert rows_of(
        """SELECT item, COUNT(*) AS n, COUNT(ask.*) AS asks, SUM(bid.price) AS price,
            MAX(id) FILTER (WHERE id < 3) AS top
        FROM TUMBLE(TABLE MERGED(bid, ask), DESCRIPTOR(ts), INTERVAL '1' HOUR)
        GROUP BY item, window_start, window_end HAVING COUNT(*) > 1"""
    ) == [("A", 2, 1, 4, 1), ("C", 2, 1, 2, 2), ("F", 2, 1, 6, None)]


def test_a_table_with_ids_is_not_read_for_several_sets():
    table = "CREATE TABLE t (k STRING, ts TIMESTAMP(3), i STRING, WATERMARK FOR ts AS ts);"
    with pytest.raises(SqlError, match="duplicates of themselves"):
        sql_queries.planned(
            f"{table} SELECT COUNT(*) FROM TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' MINUTE)"
            " GROUP BY window_start, window_end, ROLLUP (k)",
            roles={"id": "i"},
        )


def test_equal_names_of_columns_get_a_number():
    plan, _ = planned(f"SELECT * FROM ask a JOIN bid b ON a.item = b.item AND {BOUNDS}")
    assert plan.columns[:4] == ("id", "item", "at", "item0")


def test_columns_of_a_windowed_table_keep_its_name():
    assert rows_of(
        f"SELECT bid.bidder, COUNT(*) n FROM {TUMBLE} GROUP BY bid.bidder, window_start, window_end"
    ) == [("x", 1), ("x", 2), ("y", 2), ("z", 1)]


TOKENS = """SELECT FROM WHERE GROUP BY HAVING EMIT AFTER WATERMARK EARLY LATE EVERY ROW ROWS bid ask
    item price ts at window_start window_end COUNT(*) SUM(price) TUMBLE HOP SESSION TABLE DESCRIPTOR
    ( ) , . * = <= AND OR NOT NULL 1 2 'x' INTERVAL '1' MINUTE JOIN LEFT FULL ON OVER PARTITION ORDER
    UNION ALL IN EXISTS ROW_NUMBER() AS n CASE WHEN THEN END BETWEEN LATE(bid) counted DISTINCT
    FILTER ROLLUP CUBE RETAIN ASOF FOR SYSTEM_TIME OF""".split()  # noqa: SIM905
FORMS = [
    f"SELECT window_start, COUNT(*) FROM {TUMBLE} WHERE price > 1 GROUP BY window_start, window_end",
    f"SELECT id, price FROM ask a LEFT JOIN bid b ON a.item = b.item AND {BOUNDS} WHERE id > 1",
    "SELECT item, SUM(price) OVER (PARTITION BY bidder ORDER BY ts ROWS 1 PRECEDING) s FROM bid",
    f"SELECT * FROM (SELECT item, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY"
    f" price) AS r FROM {TUMBLE}) WHERE r <= 2 EMIT CHANGES",
    f"SELECT * FROM (SELECT * FROM {TUMBLE}) L WHERE L.item IN (SELECT item FROM (SELECT * FROM"
    f" {ASKS}) R WHERE L.window_start = R.window_start AND L.window_end = R.window_end)",
    "SELECT bidder, COUNT(*) n FROM bid GROUP BY bidder EMIT EARLY AFTER 3 ROWS LATE EVERY ROW",
    "SELECT item FROM bid UNION ALL SELECT item FROM ask",
    "SELECT window_start, SUM(n) s FROM counted GROUP BY window_start, window_end HAVING s > 1",
]


@st.composite
def shuffled_queries(draw):
    """Queries with words exchanged, dropped and added."""
    words = draw(st.sampled_from(FORMS)).replace("(", " ( ").replace(")", " ) ").split()
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, len(words) - 1))
        match draw(st.integers(0, 2)):
            case 0:
                words[at] = draw(st.sampled_from(TOKENS))
            case 1:
                del words[at]
            case _:
                words.insert(at, draw(st.sampled_from(TOKENS) | st.sampled_from(words)))
        if not words:
            break
    return " ".join(words)


@examples(150)
@given(shuffled_queries())
def test_shuffled_queries_are_planned_or_refused_with_a_place(text):
    try:
        planned(text)
    except SqlError as error:
        assert error.line is not None, str(error)  # noqa: PT017


def test_a_window_of_rows_beside_one_of_time():
    plan, _ = planned(
        """CREATE TABLE a (k INT, o BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts) WITH ('offset' = 'o');
        CREATE TABLE b (k INT, o BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts) WITH ('offset' = 'o');
        SELECT a.k FROM a OVER (ROWS 3 PRECEDING)
        JOIN b OVER (ORDER BY ts RANGE INTERVAL '2' MINUTE PRECEDING) ON a.k = b.k"""
    )
    assert plan.branches[0].root.spec.window == tg.rows(left=3, right="2 minutes")
