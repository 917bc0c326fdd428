"""JSON encoding of Arrow columns, vectorized.

    integers, booleans          as they are
    floats                      numbers; "NaN", "Infinity", "-Infinity" if not finite
    decimals                    strings, to keep all digits
    strings                     strings
    binary                      base64
    timestamps                  "2024-05-01T09:30:00.000000Z": in UTC, with the digits of the unit;
                                without Z if they have no time zone
    dates, times                "2024-05-01", "09:30:00.000000"
    durations                   integers, in the unit of the type
    lists, structs, maps        arrays, objects, arrays of {"key": ..., "value": ...}
    null                        null

Strings are UTF-8; only characters that JSON does not allow inside a string are escaped.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# Characters that JSON never allows inside a string.
_CONTROL = "[\\x00-\\x1f]"


def json_objects(table: pa.Table, columns: Sequence[str]) -> pa.Array:
    """One JSON object per row, with these columns."""
    return _object(len(table), columns, [json_values(table.column(name)) for name in columns])


def json_values(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One JSON value per row, never null: a null is encoded as `null`."""
    array = one_array(column)
    if len(array) == 0:
        return pa.array([], pa.large_string())
    return pc.fill_null(pc.cast(_present(array), pa.large_string()), "null")


def one_array(column: pa.Array | pa.ChunkedArray) -> Any:
    """The column as one array, without dictionary encoding."""
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    return (
        pc.cast(column, column.type.value_type) if pa.types.is_dictionary(column.type) else column
    )


def _present(array: Any) -> pa.Array:
    """The JSON values of an array; null values stay null."""
    type = array.type
    if pa.types.is_dictionary(type):
        return _present(one_array(array))
    if isinstance(array, pa.ExtensionArray):
        return _present(array.storage)
    if pa.types.is_null(type):
        return pa.nulls(len(array), pa.large_string())
    if pa.types.is_integer(type) or pa.types.is_boolean(type):
        return pc.cast(array, pa.large_string())
    if pa.types.is_floating(type):
        return _floats(array)
    if pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type):
        return _quoted(_escaped(pc.cast(array, pa.large_string())))
    if pa.types.is_duration(type):
        return pc.cast(pc.cast(array, pa.int64()), pa.large_string())
    if pa.types.is_timestamp(type):
        return _quoted(pc.replace_substring(instants(array), " ", "T"))
    if pa.types.is_date(type):
        return _quoted(instants(array))
    if pa.types.is_decimal(type) or pa.types.is_time(type):
        return _quoted(pc.cast(array, pa.large_string()))
    if pa.types.is_struct(type):
        names = [field.name for field in type]
        whole = _object(len(array), names, [json_values(child) for child in array.flatten()])
        return pc.if_else(array.is_valid(), whole, None)
    if (
        pa.types.is_map(type)
        or pa.types.is_list(type)
        or pa.types.is_large_list(type)
        or pa.types.is_fixed_size_list(type)
    ):
        return _lists(array)
    return _binaries(array)


def _object(rows: int, names: Sequence[str], values: Sequence[pa.Array]) -> pa.Array:
    if not names:
        return pa.array(["{}"] * rows, pa.large_string())
    parts: list[Any] = []
    for position, (name, texts) in enumerate(zip(names, values, strict=True)):
        parts += [
            pa.scalar(
                ("{" if position == 0 else ",") + json.dumps(name, ensure_ascii=False) + ":",
                pa.large_string(),
            ),
            texts,
        ]
    return pc.binary_join_element_wise(
        *parts, pa.scalar("}", pa.large_string()), pa.scalar("", pa.large_string())
    )


def _quoted(texts: pa.Array) -> pa.Array:
    quote = pa.scalar('"', pa.large_string())
    return pc.binary_join_element_wise(
        quote, pc.cast(texts, pa.large_string()), quote, pa.scalar("", pa.large_string())
    )


def _escaped(texts: pa.Array) -> pa.Array:
    plain = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    rare = pc.fill_null(pc.match_substring_regex(texts, _CONTROL), False)
    if not pc.any(rare).as_py():
        return plain
    # Control characters are rare enough for a Python loop.
    escaped = [
        json.dumps(text, ensure_ascii=False)[1:-1] for text in texts.filter(rare).to_pylist()
    ]
    return pc.replace_with_mask(plain, rare, pa.array(escaped, pa.large_string()))


def _floats(array: pa.Array) -> pa.Array:
    texts = pc.cast(
        array if not pa.types.is_float16(array.type) else pc.cast(array, pa.float32()),
        pa.large_string(),
    )
    finite = pc.fill_null(pc.is_finite(array), True)
    if pc.all(finite).as_py():
        return texts
    words = {"nan": '"NaN"', "-nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
    odd = pc.invert(finite)
    return pc.replace_with_mask(
        texts,
        odd,
        pa.array([words[text] for text in texts.filter(odd).to_pylist()], pa.large_string()),
    )


def instants(array: Any, far: Callable[[str], str] = str) -> pa.Array:
    """Timestamps or dates as texts.

    Arrow's years have 16 bits, so NumPy formats those outside the years 1 to 9999, and `far` maps
    the result.
    """
    day = pa.types.is_date(array.type)
    zone = "" if day or array.type.tz is None else "Z"
    unit: Any = "D" if day else array.type.unit
    array = pc.cast(
        array, pa.date32() if day else pa.timestamp(unit, "UTC") if zone else pa.timestamp(unit)
    )
    texts = pc.cast(array, pa.large_string())
    counts = pc.fill_null(
        pc.cast(pc.cast(array, pa.int32()) if day else array, pa.int64()), 0
    ).to_numpy(zero_copy_only=False)
    moments = counts.view(f"datetime64[{unit}]")
    outside = (moments < np.datetime64("0001-01-01", unit)) | (
        moments > np.datetime64("9999-12-31", unit)
    )
    # Nanoseconds range from 1677 to 2262, so these bounds overflow.
    if unit == "ns" or not outside.any():
        return texts
    named = [far(text.replace("T", " ") + zone) for text in np.datetime_as_string(moments[outside])]
    return pc.replace_with_mask(texts, pa.array(outside), pa.array(named, pa.large_string()))


def _lists(array: pa.Array) -> pa.Array:
    """JSON arrays, joined by the offsets of the lists from the values of all elements."""
    if pa.types.is_map(array.type):
        entry = pa.struct(
            [pa.field("key", array.type.key_type), pa.field("value", array.type.item_type)]
        )
        array = pc.cast(array, pa.list_(entry))
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    lists = pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), json_values(pc.list_flatten(array))
    )
    bracket = pa.scalar("[", pa.large_string()), pa.scalar("]", pa.large_string())
    joined = pc.binary_join(lists, pa.scalar(",", pa.large_string()))
    whole = pc.binary_join_element_wise(
        bracket[0], joined, bracket[1], pa.scalar("", pa.large_string())
    )
    return pc.if_else(array.is_valid(), whole, None)


def _binaries(array: pa.Array) -> pa.Array:
    texts = [
        None if value is None else f'"{base64.b64encode(value).decode()}"'
        for value in array.to_pylist()
    ]
    return pa.array(texts, pa.large_string())
