"""Conforming brings a delivery to the schema that the operator was bound to; values that do not fit
mark their rows as broken.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

MARK = "\x00broken"


@dataclass(frozen=True, slots=True, eq=False)
class Conformed:
    """A table in the bound schema; where something is broken it has one more column that says what,
    row by row.
    """

    table: pa.Table
    broken: bool = False


def bindable(schema: pa.Schema) -> pa.Schema:
    """The schema that state is bound to: dictionaries and views are plain values to it."""
    return pa.schema(
        [
            f.with_type(_plain(f.type)).with_nullable(True).remove_metadata()
            for f in schema
            if f.name != MARK
        ]
    )


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type that holds the same values and that every kernel takes."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary_view(kind) else kind


def widened(
    known: pa.Schema | None, new: pa.Schema, *, grows: bool = True, promotes: bool = False
) -> pa.Schema:
    """The known columns, and with `grows` the new ones; one that held nothing takes the type that
    comes.

    With `promotes` whole numbers give way to fractions.
    """
    if known is None:
        return new

    def wider(field: pa.Field) -> pa.Field:
        came = new.field(field.name) if field.name in new.names else field
        fraction = promotes and pa.types.is_integer(field.type) and pa.types.is_floating(came.type)
        return came if fraction or pa.types.is_null(field.type) else field

    return pa.schema(
        [*map(wider, known), *(field for field in new if grows and field.name not in known.names)]
    )


def conform(table: pa.Table, schema: pa.Schema, time: str | None) -> Conformed:
    """The table with the columns and types of the schema; times are read from the original column,
    so they break nothing here.
    """
    if table.schema.equals(schema):
        return Conformed(table)
    columns, problems = [], _marked(table)
    for field in schema:
        if field.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        column, bad = _cast(table.column(field.name), field)
        columns.append(column)
        if field.name != time:
            problems.update(bad)
    plain = pa.table(columns, schema=schema)
    if not problems:
        return Conformed(plain)
    marks = [problems.get(row) for row in range(table.num_rows)]
    return Conformed(plain.append_column(MARK, pa.array(marks, pa.string())), broken=True)


def _marked(table: pa.Table) -> dict[int, str]:
    """What was found broken before, while the table was made."""
    if MARK not in table.column_names:
        return {}
    return {
        row: text for row, text in enumerate(table.column(MARK).to_pylist()) if text is not None
    }


def _cast(
    column: pa.ChunkedArray, field: pa.Field
) -> tuple[pa.ChunkedArray | pa.Array, dict[int, str]]:
    if column.type == field.type:
        return column, {}
    try:
        return column.cast(field.type), {}
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return _cast_one_by_one(column, field)


def _cast_one_by_one(column: pa.ChunkedArray, field: pa.Field) -> tuple[pa.Array, dict[int, str]]:
    """The path of broken values: find out which they are."""
    values: list[object] = []
    problems: dict[int, str] = {}
    for row, scalar in enumerate(column):
        try:
            values.append(scalar.cast(field.type).as_py() if scalar.is_valid else None)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            values.append(None)
            problems[row] = f"`{field.name}` should be {field.type}, got {scalar.as_py()!r}"
    return pa.array(values, field.type), problems
