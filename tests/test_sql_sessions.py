"""Sessions of SQL: rows exactly a gap apart are one, in whatever deliveries they come."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from support.examples import examples
from tidegate.errors import SqlError

NOON = datetime(2025, 3, 14, 12, tzinfo=UTC)
BID = "CREATE TABLE bid (ts TIMESTAMP(3), who STRING, WATERMARK FOR ts AS ts);"
SESSION = """(SELECT who, window_start, window_end, window_time, COUNT(*) AS n FROM TABLE(SESSION(
    TABLE bid PARTITION BY who, DESCRIPTOR(ts), INTERVAL '3' SECOND))
    GROUP BY who, window_start, window_end, window_time)"""
FORMS = {
    "groups": f"SELECT who, window_start, window_end, n FROM {SESSION}",
    "legacy": """SELECT who, SESSION_START(ts, INTERVAL '3' SECOND) AS s, COUNT(*) AS n FROM bid
        GROUP BY who, SESSION(ts, INTERVAL '3' SECOND)""",
    "spark": """SELECT who, session_window.end AS e, COUNT(*) AS n FROM bid
        GROUP BY who, session_window(ts, '3 seconds')""",
    "rows": """SELECT * FROM TABLE(SESSION(TABLE bid PARTITION BY who, DESCRIPTOR(ts),
        INTERVAL '3' SECOND))""",
    "of all keys": """SELECT who, window_start, window_end, COUNT(*) AS n FROM TABLE(SESSION(
        TABLE bid, DESCRIPTOR(ts), INTERVAL '3' SECOND)) GROUP BY who, window_start, window_end""",
    "top": f"""SELECT who, n, rank FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start,
        window_end ORDER BY n DESC, who) AS rank FROM {SESSION}) WHERE rank <= 1""",
    "windows over them": f"""SELECT window_start, COUNT(*) AS c, SUM(n) AS n FROM TABLE(TUMBLE(
        TABLE {SESSION}, DESCRIPTOR(window_time), INTERVAL '10' SECOND))
        GROUP BY window_start, window_end EMIT AFTER WATERMARK""",
    "joined": f"""SELECT a.who, b.who AS other, a.n + b.n AS n FROM {SESSION} a JOIN {SESSION} b
        ON a.window_start = b.window_start AND a.window_end = b.window_end""",
}


def at(second: int) -> datetime:
    return NOON + timedelta(seconds=second)


def answer(text: str, deliveries: list[list[dict[str, object]]]) -> tuple[list[str], int]:
    """The rows of a query, none of which is retracted, and the number of late ones."""
    query = tg.sql(BID + text)
    with query.embedded(now=at(3600)) as op:
        for rows in deliveries:
            op.add_messages(rows)
        op.finish()
        results = op.get_result()
    assert "-" not in results.panes["op"].to_pylist()
    rows = results.panes.select(list(query.columns)).to_pylist()
    return sorted(map(str, rows)), results.late.num_rows


@pytest.mark.parametrize("name", FORMS)
@examples(5)
@given(st.lists(st.tuples(st.integers(0, 20), st.sampled_from("ab")), min_size=1, max_size=12))
def test_a_session_takes_the_row_at_its_end(name: str, bids: list[tuple[int, str]]) -> None:
    rows: list[dict[str, object]] = [{"ts": at(s), "who": who} for s, who in sorted(bids)]
    expected = answer(FORMS[name], [rows])
    assert answer(FORMS[name], [[row] for row in rows]) == expected
    assert expected[1] == 0


def test_a_gap_of_a_row_is_a_duration() -> None:
    with pytest.raises(SqlError, match="a duration is numbers with units, got `soon`"):
        tg.sql(
            f"{BID} SELECT COUNT(*) FROM bid"
            " GROUP BY session_window(ts, IF(who = 'a', 'soon', '3 seconds'))"
        )
