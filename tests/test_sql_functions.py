"""Scalar functions of Flink in this process, where DuckDB evaluates them."""

from __future__ import annotations

import pytest

import tidegate as tg
from support.sql_functions import DEFINITION, QUERY, ROW, VALUES, shown
from tidegate.errors import SqlError


def test_functions_have_the_values_of_flink() -> None:
    query = tg.sql(DEFINITION + QUERY)
    with query.embedded() as op:
        op.add_message(ROW)
        [row] = op.get_result().panes.to_pylist()
    assert shown(row) == VALUES


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("DATE_FORMAT(ts, 'w')", "the letters `w`"),
        ("DATE_FORMAT(ts, name)", "the pattern of a time is a text"),
        ("name SIMILAR TO name", "the pattern of SIMILAR TO is a text"),
    ],
)
def test_patterns_that_mean_nothing_here_are_refused_with_their_place(
    expression: str, why: str
) -> None:
    with pytest.raises(SqlError, match=why) as caught:
        tg.sql(DEFINITION + f"SELECT\n{expression} FROM t")
    assert caught.value.line == 5
    assert "Hint" in str(caught.value)
