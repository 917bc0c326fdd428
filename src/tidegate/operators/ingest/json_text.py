"""JSON text: whole columns from many objects, and single objects that may be malformed.

Arrow neither validates UTF-8 nor limits the depth of values, so both are checked before.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

from tidegate.operators.ingest.json_depth import MAX_DEPTH, depth, is_too_deep
from tidegate.operators.ingest.typed_rows import as_text, rows_to_table

_NULL = re.compile(rb"[}l\n]\s*null")
_NULL_FIRST = re.compile(rb"[\s\x00\xef\xbb\xbf]*null")
"""A null among objects, on which the reader of Arrow crashes; some of them may be in texts."""
_CHUNK = 256 << 10
"""The number of bytes per step, which fit into the cache of a core."""
_OPENS = np.zeros(256, bool)
"""The bytes after which a null is inside of an object."""
_OPENS[[*b":,["]] = True
_TOO_DEEP = f"a value is nested deeper than {MAX_DEPTH} levels"


def parse_declared(data: bytes, schema: pa.Schema) -> pa.Table:
    """The objects in the columns of a schema; instants are texts. `ArrowInvalid` if one differs."""
    wanted = pa.schema([field.with_type(as_text(field.type)) for field in schema])
    return parse(
        data,
        arrow_json.ParseOptions(explicit_schema=wanted, unexpected_field_behavior="ignore"),
    )


def parse_inferred(data: bytes, schema: pa.Schema) -> pa.Table:
    """The objects in inferred types, with numeric instants read as seconds."""
    found = parse(data)
    names = [name for name in found.column_names if name in schema.names]
    return _in_seconds(found.select(names or found.column_names[:1]), schema)


def parse(data: bytes, options: arrow_json.ParseOptions | None = None) -> pa.Table:
    """The objects in a text of one or more lines."""
    if not data.isascii():
        data.decode()
    if is_too_deep(data):
        raise pa.ArrowInvalid(_TOO_DEEP)
    if _has_null_line(data):
        raise pa.ArrowInvalid("a line may be null, which is no object")
    read = arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    return arrow_json.read_json(io.BytesIO(data), read, options or arrow_json.ParseOptions())


def _has_null_line(data: bytes) -> bool:
    """Whether a null may stand where an object does.

    Looking at the bytes before each null is much faster than the pattern, and mostly finds no null
    or all of them in objects.
    """
    text = np.frombuffer(data, np.uint8)
    nulls = _pairs(text, b"nu")
    nulls = nulls[nulls + 3 < len(text)]
    nulls = nulls[(text[nulls + 2] == ord("l")) & (text[nulls + 3] == ord("l"))]
    spaced = (text[nulls - 1] == ord(" ")).astype(np.int64)
    if (_OPENS[text[nulls - 1 - spaced]] & (nulls > spaced)).all():
        return False
    return bool(_NULL_FIRST.match(data) or _NULL.search(data))


def _pairs(text: np.ndarray, pair: bytes) -> np.ndarray:
    """The positions of two adjacent bytes."""
    first, second = pair
    found = [
        np.flatnonzero((chunk[:-1] == first) & (chunk[1:] == second)) + start
        for start in range(0, len(text) - 1, _CHUNK)
        for chunk in [text[start : start + _CHUNK + 1]]
    ]
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def objects_to_table(
    objects: Sequence[Mapping[str, Any]], schema: pa.Schema, problems: dict[int, str]
) -> pa.Table:
    """Decoded objects in the columns of a schema; `problems` has the errors of malformed ones."""
    return rows_to_table(objects, schema, problems, _json_value)


def _in_seconds(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with numeric instants read as seconds, as in Spark."""
    for n, name in enumerate(table.column_names):
        wanted, kind = (
            schema.field(name).type if name in schema.names else pa.null(),
            table.schema.field(n).type,
        )
        if pa.types.is_timestamp(wanted) and (
            pa.types.is_integer(kind) or pa.types.is_floating(kind)
        ):
            ticks = pc.multiply_checked(table.column(n), 1_000_000).cast(pa.int64(), safe=False)
            table = table.set_column(n, name, ticks.cast(pa.timestamp("us")))
    return table


def decode_object(line: bytes) -> tuple[dict[str, Any] | None, str]:
    """The object in a line, or None and the error."""
    if depth(line) > MAX_DEPTH:
        return None, _TOO_DEEP
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        return None, str(error)
    return (found, "") if isinstance(found, dict) else (None, "not an object")


def _json_value(value: Any, kind: pa.DataType) -> Any:
    """The value by the rules of Spark: texts take any value, instants take seconds."""
    if value is None or isinstance(value, str):
        return value
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    if (
        pa.types.is_timestamp(kind)
        and isinstance(value, int | float)
        and not isinstance(value, bool)
    ):
        return (
            pa.scalar(round(value * 1_000_000), pa.timestamp("us", "UTC")).cast(pa.string()).as_py()
        )
    if pa.types.is_decimal(kind) and isinstance(value, int | float):
        return Decimal(str(value))
    return value
