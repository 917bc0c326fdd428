"""Columns declared as text, in the DDL of Spark: `user string, price decimal(9, 2)`."""

from __future__ import annotations

import re

import pyarrow as pa

from tidegate.errors import SpecError

EVERY = "*"
"""In front of other columns: all columns of the messages."""
_TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "tinyint": pa.int8(),
    "short": pa.int16(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "decimal": pa.decimal128(10, 0),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_COLUMN = re.compile(r"(?:`(?P<quoted>[^`]+)`|(?P<name>\w+))\s*(?::|\s)\s*(?P<type>.+)", re.DOTALL)
_DECIMAL = re.compile(r"decimal\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
_ARRAY = re.compile(r"array\s*<(.+)>", re.DOTALL)
_BETWEEN = re.compile(r",(?![^(<]*[)>])")
"""A comma between two columns, not one inside of a type."""


def parse_columns(text: str) -> tuple[pa.Schema, bool]:
    """The declared columns, and whether they extend those of the messages (`*`)."""
    parts = [part.strip() for part in _BETWEEN.split(text)]
    extends = parts[0] == EVERY
    fields = [_field(part, text) for part in parts[extends:]]
    names = [field.name for field in fields]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SpecError(f"the column `{twice[0]}` is declared more than once in {text!r}")
    return pa.schema(fields), extends


def extended(known: pa.Schema, declared: pa.Schema) -> pa.Schema:
    """The known columns, with declared ones of the same name in their place and the rest behind."""
    fields = {field.name: field for field in [*known, *declared]}
    return pa.schema(list(fields.values()))


def _field(part: str, text: str) -> pa.Field:
    found = _COLUMN.fullmatch(part)
    if found is None:
        raise SpecError(
            f"{part!r} in the columns {text!r} is not a name and a type. Hint: 'user string, ts"
            " timestamp', with a leading '*' for all columns of the messages"
        )
    return pa.field(found["quoted"] or found["name"], _type(found["type"].strip().lower(), text))


def _type(name: str, text: str) -> pa.DataType:
    if decimal := _DECIMAL.fullmatch(name):
        try:
            return pa.decimal128(int(decimal[1]), int(decimal[2] or 0))
        except (ValueError, pa.ArrowInvalid) as error:
            raise SpecError(f"the type {name!r} in the columns {text!r}: {error}") from error
    if array := _ARRAY.fullmatch(name):
        return pa.list_(_type(array[1].strip(), text))
    if name not in _TYPES:
        raise SpecError(
            f"the type {name!r} in the columns {text!r} is unknown; known are"
            f" {', '.join(_TYPES)} and array<...>. Hint: use a pyarrow.Schema for others"
        )
    return _TYPES[name]
