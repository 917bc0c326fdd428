"""Functions, clauses and types that a query cannot have where they stand, and what WHERE drops."""

from __future__ import annotations

import io
import sys

import pytest

import tidegate as tg
from tidegate.cli import main
from tidegate.errors import SqlError

TABLES = """
CREATE TABLE bid (item STRING, price INT, tags ARRAY<STRING>, ts TIMESTAMP(3),
    WATERMARK FOR ts AS ts);
CREATE TABLE ask (id INT, item STRING, at TIMESTAMP(3), WATERMARK FOR at AS at);
"""
TUMBLE = "TABLE(TUMBLE(TABLE bid, DESCRIPTOR(ts), INTERVAL '10' MINUTES))"
NEAR = "a.at BETWEEN b.ts AND b.ts + INTERVAL '1' MINUTE"
ROWS = [
    {"item": item, "price": price, "tags": [], "ts": f"2025-03-14T12:{minute:02}:00Z"}
    for item, price, minute in (("7", 1, 1), ("x", 2, 2), ("8", 3, 3), ("y", 4, 13))
]


def answer(text: str) -> tuple[list[tuple[object, ...]], int]:
    """The last values of a query over `ROWS`, and the number of late rows."""
    query = tg.sql(TABLES + text)
    with query.embedded(now=0) as op:
        for row in ROWS:
            op.add_messages([row], input="bid")
        op.finish()
        results = op.get_result()
    found: list[tuple[object, ...]] = []
    for row in results.panes.to_pylist():
        values = tuple(row[name] for name in query.columns)
        if row.get("op") == "-":
            found.remove(values)
        else:
            found.append(values)
    return found, results.late.num_rows


@pytest.mark.parametrize(
    ("text", "at", "why"),
    [
        ("SELECT item FROM bid WHERE COUNT(*) > 1", "COUNT", "an aggregate in WHERE"),
        (
            f"SELECT b.item FROM bid b JOIN ask a ON SUM(b.price) > 1 AND a.item = b.item AND {NEAR}",
            "SUM",
            "an aggregate in the condition of a join",
        ),
        (
            "SELECT item FROM bid b WHERE EXISTS (SELECT 1 FROM ask a WHERE MAX(a.id) > 1"
            f" AND a.item = b.item AND {NEAR})",
            "MAX",
            "an aggregate in WHERE",
        ),
        ("SELECT item FROM bid WHERE SUM(price) OVER (ORDER BY ts) > 1", "SUM", "OVER in WHERE"),
        (
            f"SELECT COUNT(*) FROM {TUMBLE} GROUP BY window_start, SUM(price) OVER (ORDER BY ts)",
            "SUM",
            "OVER in GROUP BY",
        ),
        (
            f"SELECT item FROM {TUMBLE} GROUP BY window_start, item"
            " HAVING MIN(price) OVER (ORDER BY window_start) > 1",
            "MIN",
            "OVER in HAVING",
        ),
        ("SELECT explode(tags) FROM bid", "explode", "EXPLODE makes several rows"),
        ("SELECT item FROM bid WHERE unnest(tags) = 'a'", "unnest", "UNNEST makes several rows"),
        (f"SELECT ARRAY_AGG(*) FROM {TUMBLE} GROUP BY window_start", "*", "stands in SELECT"),
        ("SELECT UPPER(bid.*) FROM bid", "*", "stands in SELECT"),
        (
            "SELECT 1 AS n FROM bid GROUP BY session_window(ts, concat(SUM(price), ' s'))",
            "SUM",
            "cannot be grouped by",
        ),
        ("SELECT histogram(price) FROM bid", "histogram", "there is no function `histogram`"),
        ("SELECT item FROM bid PIVOT (SUM(price) FOR item IN ('a'))", "SUM", "PIVOT"),
        ("SELECT item FROM (SELECT * FROM bid) TABLESAMPLE (10 PERCENT)", "10", "TABLESAMPLE"),
        ("SELECT item FROM bid OVER (ROWS 3 PRECEDING)", "bid", "for joins"),
        ("SELECT item FROM bid WITHIN 5 MINUTES", "bid", "for joins"),
        (
            "SELECT item FROM bid FOR SYSTEM_TIME AS OF TIMESTAMP '2025-03-14 12:00:00'",
            "bid",
            "behind the right table of a join",
        ),
        ("SELECT price FROM bid EXCEPT SELECT id FROM ask", "id", "EXCEPT"),
        ("SELECT item FROM bid WHERE item", "item", "of type string"),
        ("SELECT item FROM bid WHERE price > 1 AND ts", "ts", "of type timestamp"),
        (f"SELECT SUM(item) FROM {TUMBLE} GROUP BY window_start", "item", "needs numbers"),
        (
            f"SELECT a.id FROM bid b JOIN ask a ON b.item = a.id AND {NEAR}",
            "b.item = a.id",
            "are never equal",
        ),
        (
            f"SELECT window_start AS op FROM {TUMBLE} GROUP BY window_start",
            "window_start",
            "no expression can have this name",
        ),
        (
            "SELECT COUNT(*) FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(price), INTERVAL '1' MINUTE))"
            " GROUP BY window_start",
            "price",
            "no time column with a watermark",
        ),
        (
            f"SELECT COUNT(*) FROM {TUMBLE} GROUP BY window_start EMIT AFTER WATERMARK EMIT FINAL",
            "EMIT FINAL",
            "has an EMIT already",
        ),
        ("SELECT item, window(ts, '1 minute') FROM bid", "window", "has no groups"),
        (
            f"SELECT JSON_OBJECTAGG(KEY item VALUE price) FROM {TUMBLE} GROUP BY window_start",
            "item",
            "the aggregate JSON_OBJECTAGG is not supported",
        ),
    ],
)
def test_what_stands_in_the_wrong_place_is_refused_there(text: str, at: str, why: str) -> None:
    with pytest.raises(SqlError, match=why) as raised:
        tg.sql(TABLES + text)
    _, line, caret, *_ = str(raised.value).split("\n")
    assert raised.value.line == TABLES.count("\n") + 1
    assert line[caret.index("^") :].startswith(at)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("CREATE VIEW v AS\nSELECT item one two FROM bid", "two"),
        ("CREATE TABLE t (a INT)\nWIHT ('connector' = 'print')", "WIHT"),
        ("SELECT item,\n'open FROM bid;\nSELECT 1", "'open"),
        ("SELECT item\n/* open FROM bid", "/* open"),
    ],
)
def test_what_cannot_be_parsed_has_the_place_where_it_begins(text: str, at: str) -> None:
    with pytest.raises(SqlError) as raised:
        tg.sql(TABLES + text)
    _, line, caret, *_ = str(raised.value).split("\n")
    assert raised.value.line == TABLES.count("\n") + 2
    assert line[caret.index("^") :].startswith(at)


def test_hints_are_in_the_words_of_sql() -> None:
    text = """SELECT item, COUNT(*) FROM TABLE(SESSION(TABLE bid PARTITION BY (item, price),
        DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY window_start, window_end, item"""
    late = "LATE AFTER 1 ROW"
    with pytest.raises(SqlError, match=f"EMIT AFTER WATERMARK {late}"):
        tg.sql(f"{TABLES}{text} EMIT AFTER WATERMARK EARLY AFTER 2 ROWS")
    tg.sql(f"{TABLES}{text} EMIT AFTER WATERMARK EARLY AFTER 2 ROWS {late}")


def test_rows_that_where_drops_are_not_late_whatever_their_other_expressions_are() -> None:
    numbers = "SELECT CAST(item AS INT) AS n FROM bid"
    assert answer(f"{numbers} WHERE item RLIKE '^[0-9]+$'") == ([(7,), (8,)], 0)
    assert answer(f"{numbers} WHERE item <> 'x'") == ([(7,), (8,)], 1)
    assert answer(f"{numbers} WHERE CAST(item AS INT) > 7") == ([(8,)], 2)
    grouped = f"SELECT SUM(CAST(item AS INT)) AS n FROM {TUMBLE}"
    assert answer(f"{grouped} WHERE item < 'a' GROUP BY window_start, window_end") == ([(15,)], 0)


@pytest.mark.parametrize("emit", ["EMIT CHANGES", "EMIT FINAL"])
def test_groups_without_a_window_over_others(emit: str) -> None:
    inner = "(SELECT item, price % 2 AS odd, COUNT(*) AS n FROM bid GROUP BY item, price % 2)"
    found, late = answer(f"SELECT odd, SUM(n) AS n FROM {inner} GROUP BY odd {emit}")
    assert (sorted(found), late) == ([(0, 2), (1, 2)], 0)
    ranks = "ROW_NUMBER() OVER (ORDER BY n DESC, odd) AS rank"
    sums = f"(SELECT odd, SUM(n) AS n FROM {inner} GROUP BY odd)"
    top = f"SELECT odd, rank FROM (SELECT *, {ranks} FROM {sums}) WHERE rank <= 1 {emit}"
    assert answer(top) == ([(0, 1)], 0)


@pytest.mark.parametrize("emit", ["EMIT CHANGES", "EMIT FINAL"])
def test_groups_of_all_windows(emit: str) -> None:
    windows = f"(SELECT window_start, COUNT(*) AS n FROM {TUMBLE} GROUP BY window_start)"
    assert answer(f"SELECT MAX(n) AS most, COUNT(*) AS n FROM {windows} {emit}") == ([(3, 2)], 0)


def test_groups_of_joined_rows_without_their_times() -> None:
    pairs = f"(SELECT b.item, b.price FROM bid b LEFT JOIN ask a ON a.item = b.item AND {NEAR})"
    found, late = answer(
        f"SELECT item < 'a' AS early, MAX(price) AS most FROM {pairs}"
        " GROUP BY item < 'a' EMIT CHANGES"
    )
    assert (sorted(found, key=str), late) == ([(False, 4), (True, 3)], 0)


def test_the_last_row_numbers_of_a_window() -> None:
    ranked = f"""(SELECT price, ROW_NUMBER() OVER (PARTITION BY window_start, window_end
        ORDER BY price DESC) AS rank FROM {TUMBLE})"""
    assert answer(f"SELECT * FROM {ranked} WHERE rank BETWEEN 2 AND 3")[0] == [(2, 2), (1, 3)]
    assert answer(f"SELECT * FROM {ranked} WHERE rank = 2")[0] == [(2, 2)]


def test_joins_in_parentheses() -> None:
    plain = f"bid b JOIN ask a ON a.item = b.item AND {NEAR}"
    assert tg.sql(f"{TABLES} SELECT b.item, a.id FROM ({plain})").columns == ("item", "id")


def test_an_empty_standard_input_has_no_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert main(["sql", "-c", "SELECT user FROM stdin"]) == 0
    assert capsys.readouterr().out == ""


def test_values_that_a_table_cannot_have_are_late_and_not_null(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = b'{"user": "ann", "n": "1"}\n{"user": "bob", "n": "x"}\n'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    table = "CREATE TABLE p (who STRING, n INT) WITH ('connector' = 'print');"
    assert main(["sql", "-c", f"{table} INSERT INTO p SELECT user, n FROM stdin"]) == 1
    out, err = capsys.readouterr()
    assert out == '{"who": "ann", "n": 1}\n'
    assert "late: bad_value: `n`" in err
    with pytest.raises(SqlError, match="inserted twice"):
        tg.sql(f"{TABLES}{table} INSERT INTO p (n, n) SELECT price, price FROM bid")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("SELECT user FROM stdin; SELECT user FROM stdin", 1),
        ("INSERT INTO p SELECT user FROM stdin; INSERT INTO p SELECT user FROM stdin", 0),
    ],
)
def test_standard_input_is_read_once(
    text: str, shown: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"user": "ann"}\n')))
    table = "CREATE TABLE p (who STRING) WITH ('connector' = 'print');"
    assert main(["sql", "-c", f"{table} {text}"]) == 2
    out, err = capsys.readouterr()
    assert out.count("ann") == shown
    assert "read by another query" in err
