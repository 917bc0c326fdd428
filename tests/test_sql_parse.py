"""Statements of SQL scripts, their clauses, and errors that point at a place."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import SqlError
from tidegate.spec import triggers as t
from tidegate.spec.operator import Retention
from tidegate.sql.parse import parse_query, parse_script
from tidegate.sql.statements import (
    CreateTable,
    CreateView,
    Drop,
    EmitClause,
    Explain,
    Insert,
    Query,
    SetOption,
    StatementSet,
)

SECOND = 1_000_000


def emitted(text):
    return parse_query(f"SELECT n FROM t GROUP BY n {text}").tree.args["emit"].args["clause"]


QUERIES = [
    "SELECT * FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(ts), INTERVAL '10' MINUTES))",
    "SELECT * FROM TUMBLE(TABLE bid, DESCRIPTOR(ts), INTERVAL '10' MINUTES) AS b",
    "SELECT * FROM TABLE(TUMBLE(DATA => TABLE bid, TIMECOL => DESCRIPTOR(ts), SIZE => INTERVAL '1' DAY))",
    "SELECT * FROM TABLE(SESSION(TABLE bid PARTITION BY item, DESCRIPTOR(ts), INTERVAL '5' MINUTES))",
    "SELECT * FROM TABLE(SESSION(TABLE bid PARTITION BY (item, x), DESCRIPTOR(ts), INTERVAL '5' MINUTES))",
    "SELECT * FROM TABLE(TUMBLE(TABLE (SELECT *, PROCTIME() AS p FROM bid), DESCRIPTOR(p), INTERVAL '1' DAY))",
    "SELECT * FROM TABLE(TUMBLE(TABLE bid, ROWS 100))",
    "SELECT a FROM s JOIN o OVER (ROWS 3 PRECEDING) ON o.id = s.id",
    "SELECT a FROM s JOIN o OVER (ORDER BY time RANGE '2' min PRECEDING) ON o.id = s.id",
    "SELECT a FROM s JOIN orders AS o OVER (ORDER BY time RANGE INTERVAL '2' MINUTE PRECEDING) ON o.id = s.id",
    "SELECT a FROM s LEFT JOIN c FOR SYSTEM_TIME AS OF s.t AS cc ON cc.x = s.x",
    "SELECT a FROM s ASOF LEFT JOIN c ON a.x = s.x AND s.t >= c.t",
    "SELECT TUMBLE_START(ts, INTERVAL '1' DAY) FROM t GROUP BY TUMBLE(ts, INTERVAL '1' DAY), u",
    "SELECT window_start x, window_end, time2, count(*) FROM tumble(s, descriptor(time1), 5 seconds) GROUP BY 1, 2, 3",
    "SELECT window.start FROM t GROUP BY window(ts, '10 minutes', '5 minutes'), session_window(ts, '5 minutes')",
    "SELECT SUM(a) OVER w FROM t WINDOW w AS (PARTITION BY k ORDER BY ts ROWS 3 PRECEDING)",
    "SELECT emit, late, early, time, value, user, session FROM t",
    "WITH x AS (SELECT 1 AS a FROM t) SELECT * FROM x EMIT FINAL",
    "SELECT * FROM LATE(clicks)",
]


@pytest.mark.parametrize("text", QUERIES)
def test_queries_of_all_forms_are_parsed(text):
    (statement,) = parse_script(text)
    assert isinstance(statement, Query)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("EMIT AFTER WATERMARK", EmitClause(t.AfterWatermark())),
        ("EMIT CHANGES", EmitClause(t.EveryElement())),
        ("EMIT FINAL", EmitClause(is_final=True)),
        ("EMIT ON WINDOW CLOSE", EmitClause(is_final=True)),
        ("EMIT STREAM", EmitClause(t.EveryElement())),
        (
            "EMIT STREAM AFTER DELAY INTERVAL '6' MINUTES",
            EmitClause(t.Repeatedly(t.AfterDelay(360 * SECOND))),
        ),
        (
            "EMIT STREAM AFTER DELAY INTERVAL '6' SECONDS AND AFTER WATERMARK",
            EmitClause(t.AfterWatermark(t.AfterDelay(6 * SECOND), t.AfterDelay(6 * SECOND))),
        ),
        (
            "EMIT EARLY EVERY INTERVAL '10' SECOND OR AFTER 100 ROWS LATE AFTER 1 ROW",
            EmitClause(
                t.AfterWatermark(
                    t.AfterAny(t.Every(10 * SECOND), t.AfterCount(100)), t.AfterCount(1)
                )
            ),
        ),
        (
            "EMIT AFTER WATERMARK AND EARLY AFTER 3 ROWS, DISCARDING WITH (closing = 'never')",
            EmitClause(
                t.AfterWatermark(t.AfterCount(3)), "discarding", options=(("closing", "never"),)
            ),
        ),
        (
            "EMIT AFTER WATERMARK ALLOW LATENESS INTERVAL '1' MINUTE RETRACTING"
            " RETAIN INTERVAL '2' MINUTES, 100 WINDOWS AND 5 ROWS",
            EmitClause(
                t.AfterWatermark(),
                "retracting",
                60 * SECOND,
                Retention(120 * SECOND, 100, 5),
            ),
        ),
        (
            "EMIT AFTER 1 ROW THEN EVERY 2 ROWS OR EVERY ROW AND NEVER",
            EmitClause(
                t.AfterEach(
                    t.AfterCount(1),
                    t.AfterAny(
                        t.Repeatedly(t.AfterCount(2)), t.AfterAll(t.EveryElement(), t.Never())
                    ),
                )
            ),
        ),
        ("ALLOW LATENESS INTERVAL '1' MINUTE", EmitClause(lateness=60 * SECOND)),
    ],
)
def test_clauses_after_a_query(text, expected):
    assert emitted(text) == expected


def test_a_table_has_columns_watermarks_and_options():
    (table,) = parse_script(
        """CREATE TABLE t (a INT, `user` STRING, ts TIMESTAMP(3), r ROW<a INT, b STRING>,
        p AS PROCTIME(), m TIMESTAMP_LTZ(3) METADATA FROM 'timestamp' VIRTUAL,
        WATERMARK FOR ts AS ts - INTERVAL '5' SECOND, PRIMARY KEY (a) NOT ENFORCED)
        PARTITIONED BY (a) WITH ('connector' = 'kafka', 'scan.startup.mode' = 'earliest-offset')"""
    )
    assert isinstance(table, CreateTable)
    assert [column.name for column in table.columns] == ["a", "user", "ts", "r", "p", "m"]
    assert table.columns[5].metadata == "timestamp"
    assert table.columns[5].is_virtual
    assert table.columns[4].computed is not None
    assert [mark.column for mark in table.watermarks] == ["ts"]
    assert table.primary_key == ("a",)
    assert table.partitioned_by == ("a",)
    assert {option.name: option.value for option in table.options} == {
        "connector": "kafka",
        "scan.startup.mode": "earliest-offset",
    }


def test_statements_of_a_script():
    found = parse_script(
        """CREATE TEMPORARY VIEW v AS SELECT 1 FROM t EMIT CHANGES; INSERT INTO x SELECT * FROM y;
        EXPLAIN SELECT 1 FROM t; EXPLAIN PLAN FOR SELECT 1 FROM t; SET 'a.b' = 'c';
        DROP TABLE IF EXISTS x; BEGIN STATEMENT SET; INSERT INTO a SELECT 1 FROM t; END;
        EXECUTE STATEMENT SET BEGIN INSERT INTO a SELECT 1 FROM t; END; -- a comment
        """
    )
    kinds = [CreateView, Insert, Explain, Explain, SetOption, Drop, StatementSet, StatementSet]
    assert [type(statement) for statement in found] == kinds
    assert (found[4].name, found[4].value) == ("a.b", "c")
    assert found[5].if_exists


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("SELECT a FROM t WHERE\n  b = = 3", 2, 7),
        ("SELECT 1;\n  SELECT a FROM t GROUP BY a EMIT EARLY EVERY 3", 2, 47),
        ("SELECT 'a FROM t", 1, 8),
        ("\ufeffSELECT a FROM t WHERE b = = 3", 1, 28),
        ("SELECT 'a\ud800' FROM t", 1, 10),
        ("SHOW JARS", 1, 1),
        ("USE CATALOG other", 1, 13),
        ("DESCRIBE", 1, 1),
        ("EXPLAIN EXPLAIN SELECT 1 FROM t", 1, 1),
        ("CREATE TABLE t LIKE s (INCLUDING NOTHING)", 1, 34),
        ("CREATE TABLE t (a)", 1, 17),
        ("MERGE INTO t USING x", 1, 20),
        ("SELECT (((", 1, 10),
        ("SELECT a FROM t GROUP BY a EMIT EARLY", 1, 33),
        ("SELECT a FROM t GROUP BY a EMIT CHANGES FINAL", 1, 41),
        ("SELECT a FROM t GROUP BY a EMIT FINAL LATE AFTER 1 ROW", 1, 52),
        ("SELECT a FROM t GROUP BY a EMIT EARLY EVERY INTERVAL '0' SECOND", 1, 39),
        ("SELECT a FROM t GROUP BY a EMIT ALLOW LATENESS INTERVAL '-1' SECOND", 1, 48),
        ("SELECT a FROM t GROUP BY a EMIT EVERY INTERVAL '1' MONTH", 1, 39),
    ],
)
def test_errors_point_at_a_place(text, line, column):
    with pytest.raises(SqlError) as caught:
        parse_script(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    shown = str(caught.value).split("\n")
    assert shown[2].index("^") == column + 1


@st.composite
def damaged(draw):
    text = draw(st.sampled_from([*QUERIES, "CREATE TABLE t (a INT, WATERMARK FOR a AS a)"]))
    for _ in range(draw(st.integers(1, 4))):
        at, until = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
        with_ = draw(
            st.sampled_from(
                ["", "(", ")", "'", "`", ";", " EMIT ", " AFTER 1 ROW ", " TABLE ", "\n"]
            )
            | st.text(max_size=3)
        )
        text = text[:at] + with_ + text[min(until, at + 9) :]
    return text


@given(damaged())
def test_damaged_scripts_raise_our_errors_only(text):
    with contextlib.suppress(SqlError):
        parse_script(text)


@given(st.text())
def test_texts_raise_our_errors_only(text):
    with contextlib.suppress(SqlError):
        parse_script(text)
