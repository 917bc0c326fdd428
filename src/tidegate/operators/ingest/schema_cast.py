"""Schema cast: tables cast to the bound schema; values that do not fit mark their rows broken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.kernel.events.event_time import is_instants
from tidegate.kernel.frame import to_arrow, typed, values_of

BROKEN = "\x00broken"
"""The column that describes the broken value of each row; null where there is none."""


@dataclass(frozen=True, slots=True, eq=False)
class CastTable:
    """A table in the bound schema; with the column `BROKEN` if a row is broken."""

    table: pa.Table
    broken: bool = False


def bindable(schema: pa.Schema) -> pa.Schema:
    """The schema that state is bound to, with dictionaries and views as plain types."""
    return pa.schema(
        [
            f.with_type(_plain(f.type)).with_nullable(True).remove_metadata()
            for f in schema
            if f.name != BROKEN
        ]
    )


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type of the same values that every kernel accepts."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary_view(kind) else kind


def widened(
    known: pa.Schema | None, new: pa.Schema, *, grows: bool = True, promotes: bool = False
) -> pa.Schema:
    """The known columns, and with `grows` the new ones; a null column takes the new type.

    With `promotes` integers become floats.
    """
    if known is None:
        return new

    def wider(field: pa.Field) -> pa.Field:
        came = new.field(field.name) if field.name in new.names else field
        is_promoted = (
            promotes and pa.types.is_integer(field.type) and pa.types.is_floating(came.type)
        )
        return came if is_promoted else field.with_type(typed([field.type, came.type]))

    return pa.schema(
        [*map(wider, known), *(field for field in new if grows and field.name not in known.names)]
    )


def cast_to_schema(table: pa.Table, schema: pa.Schema, time: str | None) -> CastTable:
    """The table cast to the schema.

    `time` names the time column: it is read from the original table, so it never marks a row as
    broken. The exception is a column of a type that holds no times, such as floats.
    """
    if table.schema.equals(schema):
        return CastTable(table)
    columns, problems = [], _marked(table)
    for field in schema:
        if field.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        column, bad = _cast(table.column(field.name), field)
        columns.append(column)
        if field.name != time or not is_instants(table.column(time).type):
            problems.update(bad)
    plain = pa.table(columns, schema=schema)
    if not problems:
        return CastTable(plain)
    marks = [problems.get(row) for row in range(table.num_rows)]
    return CastTable(plain.append_column(BROKEN, pa.array(marks, pa.string())), broken=True)


def _marked(table: pa.Table) -> dict[int, str]:
    """The rows that were marked broken while the table was made."""
    if BROKEN not in table.column_names:
        return {}
    return {
        row: text for row, text in enumerate(table.column(BROKEN).to_pylist()) if text is not None
    }


def _cast(
    column: pa.ChunkedArray, field: pa.Field
) -> tuple[pa.ChunkedArray | pa.Array, dict[int, str]]:
    if column.type == field.type:
        return column, {}
    try:
        return column.cast(field.type), {}
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        if not _is_text_of_instants(column.type, field.type):
            return _cast_one_by_one(column, field)
    column = _zoned(column)
    try:
        return column.cast(field.type), {}
    except pa.ArrowInvalid:
        return _cast_one_by_one(column, field)


def _is_text_of_instants(kind: pa.DataType, wanted: pa.DataType) -> bool:
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return is_text and pa.types.is_timestamp(wanted) and wanted.tz is not None


def _zoned(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts of instants with a zone each: without one, they are in UTC, like those of times."""
    has_zone = pc.match_substring_regex(column, r"(?:[Zz]|:\d\d(?:\.\d+)?[+-]\d\d(?::?\d\d)?)$")
    return pc.if_else(has_zone, column, pc.binary_join_element_wise(column, "Z", ""))


def _cast_one_by_one(column: pa.ChunkedArray, field: pa.Field) -> tuple[pa.Array, dict[int, str]]:
    """Cast value by value, to find those that do not fit."""
    cells: list[pa.Array] = [pa.nulls(0, field.type)]
    problems: dict[int, str] = {}
    for row in range(len(column)):
        cell = to_arrow(column.slice(row, 1))
        try:
            cells.append(pa.nulls(1, field.type) if cell.null_count else cell.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            cells.append(pa.nulls(1, field.type))
            [value] = values_of(cell)
            problems[row] = f"`{field.name}` should be {field.type}, got {value!r}"
    return pa.concat_arrays(cells), problems


def with_errors(table: pa.Table, problems: Mapping[int, str]) -> pa.Table:
    """The table with more error texts; a row keeps its first one."""
    known = (
        table.column(BROKEN).to_pylist()
        if BROKEN in table.column_names
        else [None] * table.num_rows
    )
    texts = pa.array(
        [text if text is not None else problems.get(n) for n, text in enumerate(known)], pa.string()
    )
    if BROKEN in table.column_names:
        return table.set_column(table.column_names.index(BROKEN), BROKEN, texts)
    return table.append_column(BROKEN, texts)
