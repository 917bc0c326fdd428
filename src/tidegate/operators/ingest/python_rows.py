"""Conversion of messages in any Python form to Arrow tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from tidegate.errors import InputError
from tidegate.operators.ingest.schema_cast import BROKEN

_CAST_ERRORS = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError)
_DECIMAL = pa.decimal128(38, 10)


def to_table(rows: Any, schema: pa.Schema | None) -> pa.Table:
    """Messages as a table: Arrow tables and batches, pandas frames, and dictionaries.

    A row with a value that does not fit its column is marked as broken, in the column `BROKEN`.
    """
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if isinstance(rows, Mapping):
        return _from_dicts([rows], schema)
    if type(rows).__module__.partition(".")[0] == "pandas" and hasattr(rows, "columns"):
        return _from_pandas(rows, schema)
    if hasattr(rows, "__arrow_c_stream__"):
        return pa.table(rows)
    if isinstance(rows, Sequence) and all(isinstance(row, Mapping) for row in rows):
        return _from_dicts(rows, schema)
    raise InputError(
        "messages are an Arrow table, a pandas frame or a list of dictionaries, got"
        f" {type(rows).__name__}"
    )


def _from_pandas(frame: Any, schema: pa.Schema | None) -> pa.Table:
    try:
        return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    except _CAST_ERRORS:
        return _from_dicts(frame.to_dict("records"), schema)


def _from_dicts(rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None) -> pa.Table:
    known = [] if schema is None else schema.names
    names = list(dict.fromkeys([*known, *(name for row in rows for name in row)]))
    columns: dict[str, pa.Array] = {}
    problems: dict[int, str] = {}
    for name in names:
        kind = schema.field(name).type if schema is not None and name in known else None
        columns[name] = _column(name, [row.get(name) for row in rows], kind, problems)
    if problems:
        columns[BROKEN] = pa.array([problems.get(row) for row in range(len(rows))], pa.string())
    return pa.table(columns)


def _column(
    name: str, values: list[Any], kind: pa.DataType | None, problems: dict[int, str]
) -> pa.Array:
    """The values in their own type; the operator casts them, and finds those that do not fit."""
    try:
        array = pa.array(values)
    except _CAST_ERRORS:
        return _column_one_by_one(name, values, kind, problems)
    # The precision of a first decimal is no limit for the next ones.
    return (
        array.cast(_DECIMAL, safe=False)
        if kind is None and pa.types.is_decimal(array.type) and array.type.scale <= _DECIMAL.scale
        else array
    )


def _column_one_by_one(
    name: str, values: list[Any], kind: pa.DataType | None, problems: dict[int, str]
) -> pa.Array:
    """The values of a column with broken rows, cast one by one; `problems` gets those rows.

    The type is the known one, or that of the first value that has a type.
    """
    if kind is None or pa.types.is_null(kind):
        kind = next(
            (a.type for a in map(_alone, values) if a is not None and not pa.types.is_null(a.type)),
            pa.null(),
        )
    kept: list[Any] = []
    for row, value in enumerate(values):
        array = _alone(value)
        try:
            kept.append(None if array is None else array.cast(kind)[0].as_py())
            fits = array is not None
        except _CAST_ERRORS:
            kept.append(None)
            fits = False
        if not fits:
            problems[row] = f"`{name}` should be {kind}, got {value!r:.200}"
    return pa.array(kept, kind)


def _alone(value: Any) -> pa.Array | None:
    try:
        return pa.array([value])
    except _CAST_ERRORS:
        return None
