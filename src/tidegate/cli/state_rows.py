"""`tidegate state` with a key or a range: the selected windows, values and rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from tidegate.operators.history.question import parse_key, parse_range
from tidegate.operators.text_table import aligned
from tidegate.spark.query.state.query_state import QueryState
from tidegate.spark.sinks.json_rendering import json_objects, json_values
from tidegate.spec.join import SIDES, JoinSpec

_ROWS = 50
"""Maximum number of rows shown of a table; `--json` has all."""


def selected(
    found: QueryState,
    operator: int,
    key: Sequence[str] | None,
    window: str | None,
    *,
    messages: bool,
) -> dict[str, pa.Table]:
    """The windows, values and messages of an aggregate, or the rows of a join."""
    asked: dict[str, Any] = {"operator": operator}
    if key is not None:
        asked["key"] = parse_key(key, found.key_schema(operator))
    start, end = parse_range(window)
    end = start if end is None else end
    if isinstance(found.spec(operator), JoinSpec):
        return {side: found.messages(start, end, side=side, **asked) for side in SIDES}
    tables = {
        "windows": found.windows(start, end, **asked),
        "values": found.peek(start, end, **asked),
    }
    return {**tables, "messages": found.messages(start, end, **asked)} if messages else tables


def row_lines(tables: Mapping[str, pa.Table]) -> list[str]:
    """The tables as text, each with its first rows."""
    lines = []
    for name, rows in tables.items():
        lines += ["", f"{name}: {rows.num_rows or 'none'}"]
        # Offsets are many and long; `--json` has them.
        columns = [column for column in rows.column_names if column != "offsets"]
        if rows.num_rows:
            lines += aligned([columns, *_cells(rows.slice(0, _ROWS).select(columns))])
        if rows.num_rows > _ROWS:
            lines.append(f"  and {rows.num_rows - _ROWS} more")
    return lines


def _cells(rows: pa.Table) -> list[list[str]]:
    columns = [json_values(column).to_pylist() for column in rows.columns]
    return [[text.strip('"') for text in row] for row in zip(*columns, strict=True)]


def json_rows(found: QueryState, tables: Mapping[str, pa.Table]) -> dict[str, Any]:
    """The tables as one JSON object, with the batch that they are of."""
    return {
        "query": found.query,
        "batch": found.batch,
        **{
            name: [json.loads(str(text)) for text in json_objects(rows, rows.column_names)]
            for name, rows in tables.items()
        },
    }
