"""Rows of a declared schema from values that may not fit it.

A malformed row, or one with a value of the wrong type, has an error text in the column
`schema_cast.BROKEN`; the operator sends it to `late`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.kernel.events.event_time import BAD, read_times
from tidegate.kernel.frame import to_arrow
from tidegate.operators.ingest.schema_cast import BROKEN, cast_to_schema, with_errors
from tidegate.state.arrow_types import check_types

UNREADABLE = (
    pa.ArrowInvalid,
    pa.ArrowNotImplementedError,
    pa.ArrowTypeError,
    pa.ArrowSerializationError,
    pa.ArrowIndexError,
    pa.ArrowKeyError,
    pa.ArrowCapacityError,
    # Damaged lengths ask for more memory than there is.
    pa.ArrowMemoryError,
    UnicodeDecodeError,
    EOFError,
)
"""The errors of damaged input."""


def malformed_row(schema: pa.Schema, text: str) -> pa.Table:
    """A row of nulls with an error text."""
    return pa.table(
        [*(pa.nulls(1, field.type) for field in schema), pa.array([text])],
        names=[*schema.names, BROKEN],
    )


def fit_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table in the schema; rows with values of the wrong type get an error text."""
    check_types(table.schema)
    if table.schema.equals(schema):
        return table
    for field in schema:
        if (
            pa.types.is_timestamp(field.type)
            and field.name in table.column_names
            and table.schema.field(field.name).type != field.type
        ):
            table = _with_instants(table, field)
    return cast_to_schema(table, schema, None).table


def _with_instants(table: pa.Table, field: pa.Field) -> pa.Table:
    """The table with instants of the type of the field.

    Arrow neither rounds instants nor parses texts of different formats.
    """
    column = table.column(field.name)
    kind = column.type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not (is_text or pa.types.is_timestamp(kind)) or field.type.unit in {"ns", "s", "ms"}:
        return table
    ticks, verdict = read_times(column, field.name)
    instants = pa.array(ticks, pa.int64(), mask=verdict != 0).view(field.type)
    bad = np.flatnonzero(verdict == BAD)
    if len(bad):
        texts = to_arrow(column).take(pa.array(bad)).to_pylist()
        table = with_errors(
            table,
            {
                int(n): f"`{field.name}` should be {field.type}, got {text!r}"
                for n, text in zip(bad, texts, strict=True)
            },
        )
    return table.set_column(table.column_names.index(field.name), field.name, instants)


def rows_to_table(
    rows: Sequence[Mapping[str, Any]],
    schema: pa.Schema,
    problems: dict[int, str],
    converted: Callable[[Any, pa.DataType], Any],
) -> pa.Table:
    """The rows as a table; values of the wrong type are null, with an error text."""
    columns = []
    for field in schema:
        wanted, values = as_text(field.type), list[Any]()
        for n, row in enumerate(rows):
            value = row.get(field.name)
            try:
                made = converted(value, field.type)
                pa.scalar(made, wanted)
            except (*UNREADABLE, ValueError, TypeError, OverflowError, InvalidOperation):
                problems.setdefault(n, f"`{field.name}` should be {field.type}, got {value!r}")
                made = None
            values.append(made)
        columns.append(pa.array(values, wanted))
    table = pa.table(columns, names=schema.names)
    return with_errors(table, problems) if problems else table


def is_utf8(text: bytes) -> bool:
    """Whether bytes are valid UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def as_text(kind: pa.DataType) -> pa.DataType:
    """The type that text is parsed as; instants stay text, and are parsed later."""
    return pa.string() if pa.types.is_timestamp(kind) else kind
