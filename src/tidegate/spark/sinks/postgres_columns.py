"""PostgreSQL types of Arrow columns, and their values as CSV for COPY.

PostgreSQL supports neither U+0000 in texts, which becomes U+FFFD, nor times before 4713 BC, which
become `-infinity`.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from tidegate.errors import SinkError
from tidegate.spark.sinks.json_rendering import instants, json_values, one_array

TYPES: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.uint8(): "smallint",
    pa.uint16(): "integer",
    pa.uint32(): "bigint",
    pa.uint64(): "numeric(20,0)",
    pa.float16(): "real",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.date32(): "date",
    pa.date64(): "date",
    pa.string(): "text",
    pa.large_string(): "text",
    pa.string_view(): "text",
    pa.null(): "text",
}
"""The type of a created column; `type_of` covers parametric types."""

WIDER: dict[str, tuple[str, ...]] = {
    "smallint": ("integer", "bigint", "numeric"),
    "integer": ("bigint", "numeric"),
    "bigint": ("numeric",),
    "real": ("double precision",),
    "text": ("character varying",),
    "date": (),
}
"""Other types that an existing column may have, because all values fit."""

LONG = ("text", "bytea", "jsonb")
"""Types whose values can be too long for an index."""


def type_of(field: pa.Field) -> str:
    """The PostgreSQL type of a column, spelled as in its catalog."""
    type = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if type in TYPES:
        return TYPES[type]
    if pa.types.is_timestamp(type):
        return "timestamp without time zone" if type.tz is None else "timestamp with time zone"
    if pa.types.is_time(type):
        return "time without time zone"
    if pa.types.is_duration(type):
        return "bigint"
    if pa.types.is_decimal(type):
        # Arrow allows a negative scale: trailing zeros before the decimal point.
        return (
            f"numeric({max(type.precision - min(type.scale, 0), type.scale)},{max(type.scale, 0)})"
        )
    if pa.types.is_nested(type):
        return "jsonb"
    if (
        pa.types.is_binary(type)
        or pa.types.is_large_binary(type)
        or pa.types.is_fixed_size_binary(type)
        or pa.types.is_binary_view(type)
    ):
        return "bytea"
    raise SinkError(
        f"the column `{field.name}` has the type {field.type}, which PostgreSQL does not support."
        " Hint: cast or drop it"
    )


def fits(wanted: str, existing: str) -> bool:
    """Whether a column of the type `existing` can hold every value of the type `wanted`."""
    bare = re.sub(r"\(.*\)", "", existing)
    if wanted.startswith("numeric"):
        return existing in {wanted, "numeric"}
    return wanted == existing or (
        bare in WIDER.get(wanted, ()) and bare in {existing, "character varying"}
    )


def csv_lines(table: pa.Table) -> pa.Buffer:
    """The rows as CSV for COPY: texts are quoted, nulls are empty."""
    columns = [_to_csv(one_array(column)) for column in table.columns]
    lines = pa.BufferOutputStream()
    # The CSV has no header, so any unique names will do.
    plain = pa.table(columns, names=[str(number) for number in range(len(columns))])
    csv.write_csv(plain, lines, csv.WriteOptions(include_header=False))
    return lines.getvalue()


def _to_csv(array: Any) -> pa.Array:
    """The column as numbers or texts that PostgreSQL parses as `type_of`."""
    type = array.type
    kind = type_of(pa.field("", type))
    if kind == "text":
        return _without_zero(pc.cast(array, pa.large_string()))
    if kind == "jsonb":
        return pc.if_else(array.is_valid(), _json_without_zero(json_values(array)), None)
    if kind == "bytea":
        return pa.array(
            [None if value is None else f"\\x{value.hex()}" for value in array.to_pylist()],
            pa.large_string(),
        )
    if kind == "date" or kind.startswith("timestamp"):
        return instants(array, _far)
    if pa.types.is_time(type) or pa.types.is_decimal(type):
        return pc.cast(array, pa.large_string())
    if pa.types.is_duration(type):
        return pc.cast(array, pa.int64())
    return pc.cast(array, pa.float32()) if pa.types.is_float16(type) else array


def _without_zero(texts: pa.Array) -> pa.Array:
    """The texts with U+0000 replaced."""
    return (
        pc.replace_substring(texts, "\0", "\ufffd")
        if pc.any(pc.match_substring(texts, "\0")).as_py()
        else texts
    )


def _json_without_zero(texts: Any) -> pa.Array:
    found = pc.match_substring(texts, "\\u0000")
    if not pc.any(found).as_py():
        return texts
    # An even number of backslashes before it are escaped backslashes.
    replaced = [
        re.sub(r"(?<!\\)((?:\\\\)*)\\u0000", "\\1\\\\ufffd", text)
        for text in texts.filter(found).to_pylist()
    ]
    return pc.replace_with_mask(texts, found, pa.array(replaced, pa.large_string()))


def _far(text: str) -> str:
    """A time outside the years 1 to 9999 in the syntax of PostgreSQL."""
    number, dash, rest = text[1:].partition("-")
    year, rest = int(text[0] + number), dash + rest
    if year > 294275:
        return "infinity"
    if year < -4711:
        return "-infinity"
    return f"{year:04d}{rest}" if year > 0 else f"{1 - year:04d}{rest} BC"
