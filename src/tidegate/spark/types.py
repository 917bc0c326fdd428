"""The correspondence between Spark types and Arrow types."""

from __future__ import annotations

import inspect
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from tidegate.kernel.frame import cast_to

_SIGNED: dict[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}
_UTC: dict[str, Any] = (
    {"timezone": "UTC"}
    if "timezone" in inspect.signature(to_arrow_schema).parameters
    else {"timestamp_utc": True}
)
"""PySpark's option for instants in UTC; it has another name since 4.3."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that workers receive; instants are in UTC in every session time zone."""
    found = to_arrow_schema(schema, **_UTC)
    return pa.schema([field.with_nullable(True).remove_metadata() for field in found])


def spark_schema(schema: pa.Schema) -> StructType:
    """The Spark schema of Arrow columns."""
    return from_arrow_schema(spark_types(schema), prefer_timestamp_ntz=True)


def spark_types(schema: pa.Schema) -> pa.Schema:
    """The schema with each type replaced by the closest one that Spark supports."""
    return pa.schema([pa.field(field.name, _spark_type(field.type)) for field in schema])


def _spark_type(kind: pa.DataType) -> pa.DataType:
    if kind in _SIGNED:
        return _SIGNED[kind]
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_dictionary(kind):
        return _spark_type(kind.value_type)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC") if kind.tz is not None else pa.timestamp("us")
    if pa.types.is_time(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.string() if pa.types.is_time(kind) else pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(child.name, _spark_type(child.type)) for child in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_spark_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_spark_type(kind.key_type), _spark_type(kind.item_type))
    return kind


def align_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with exactly the columns of the schema; missing columns are null."""
    if table.schema.equals(schema):
        return table
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        columns.append(cast_to(table.column(field.name), field.type))
    return pa.table(columns, schema=schema)
