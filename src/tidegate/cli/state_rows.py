"""`tidegate state` with a key or a range: the selected windows, values and rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from tidegate.cli.tables import table
from tidegate.errors import InputError
from tidegate.instants import Instant
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
        asked["key"] = _key(key, found.key_schema(operator))
    start, end = _range(window)
    if isinstance(_spec(found, operator), JoinSpec):
        return {side: found.messages(start, end, side=side, **asked) for side in SIDES}
    tables = {
        "windows": found.windows(start, end, **asked),
        "values": found.peek(start, end, **asked),
    }
    return {**tables, "messages": found.messages(start, end, **asked)} if messages else tables


def _spec(found: QueryState, operator: int) -> Any:
    specs = found.specs
    return specs[operator] if -len(specs) <= operator < len(specs) else None


def _key(texts: Sequence[str], schema: pa.Schema) -> dict[str, Any]:
    """A key from the command line: `VALUE`s in the order of its columns, or `COLUMN=VALUE`s."""
    named: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        free = [known for known in schema.names if known not in named]
        if equals and name in schema.names:
            named[name] = value
        elif free:
            named[free[0]] = text
    if len(named) != len(texts) or set(named) != set(schema.names):
        raise InputError(
            f"the key columns are {', '.join(schema.names) or 'none'}, got {' '.join(texts)}. Hint:"
            " --key VALUE for each of them, or --key COLUMN=VALUE"
        )
    try:
        return {
            name: pa.array([text]).cast(schema.field(name).type)[0].as_py()
            for name, text in named.items()
        }
    except pa.ArrowInvalid as error:
        raise InputError(f"the key {' '.join(texts)} does not fit {schema}: {error}") from error


def _range(window: str | None) -> tuple[Instant | None, Instant | None]:
    if window is None:
        return None, None
    start, slash, end = window.partition("/")
    low, high = (int(text) if text.lstrip("-").isdecimal() else text for text in (start, end))
    return low or None, (high or None) if slash else low


def row_lines(tables: Mapping[str, pa.Table]) -> list[str]:
    """The tables as text, each with its first rows."""
    lines = []
    for name, rows in tables.items():
        lines += ["", f"{name}: {rows.num_rows or 'none'}"]
        # Offsets are many and long; `--json` has them.
        columns = [column for column in rows.column_names if column != "offsets"]
        if rows.num_rows:
            lines += table([columns, *_cells(rows.slice(0, _ROWS).select(columns))])
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
