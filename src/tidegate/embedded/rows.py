"""Rows in whatever form people have them become one Arrow table: Arrow tables and batches, pandas frames, dictionaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from tidegate.errors import InputError
from tidegate.operators.conform import MARK


def to_table(rows: Any, schema: pa.Schema | None) -> pa.Table:
    """The rows as a table; a value that does not fit its column marks its row as broken."""
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if isinstance(rows, Mapping):
        return _from_dicts([rows], schema)
    if hasattr(rows, "__arrow_c_stream__"):
        return pa.table(rows)
    if hasattr(rows, "to_dict") and hasattr(rows, "columns"):
        return pa.Table.from_pandas(rows, preserve_index=False)
    if isinstance(rows, Sequence) and all(isinstance(row, Mapping) for row in rows):
        return _from_dicts(rows, schema)
    raise InputError(f"messages come as an Arrow table, a pandas frame or a list of dictionaries, got {type(rows).__name__}")


def _from_dicts(rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None) -> pa.Table:
    known = {} if schema is None else {field.name: field.type for field in schema}
    names = list(dict.fromkeys([*known, *(name for row in rows for name in row)]))
    columns: dict[str, pa.Array] = {}
    problems: dict[int, str] = {}
    for name in names:
        values = [row.get(name) for row in rows]
        columns[name] = _column(name, values, known.get(name), problems)
    if problems:
        columns[MARK] = pa.array([problems.get(row) for row in range(len(rows))], pa.string())
    return pa.table(columns)


def _column(name: str, values: list[Any], kind: pa.DataType | None, problems: dict[int, str]) -> pa.Array:
    try:
        return pa.array(values, None if kind is None or pa.types.is_null(kind) else kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return _column_one_by_one(name, values, kind, problems)


def _column_one_by_one(name: str, values: list[Any], kind: pa.DataType | None, problems: dict[int, str]) -> pa.Array:
    """The path of broken rows: the type is the known one or that of the first value, and what does not fit is marked."""
    if kind is None or pa.types.is_null(kind):
        first = next(value for value in values if value is not None)
        kind = pa.array([first]).type
    kept: list[Any] = []
    for row, value in enumerate(values):
        try:
            kept.append(pa.array([value], kind)[0].as_py())
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            kept.append(None)
            problems[row] = f"`{name}` should be {kind}, got {value!r}"
    return pa.array(kept, kind)
