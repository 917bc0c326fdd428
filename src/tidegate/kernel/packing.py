"""Packing: frames as tables that take little room in a store, because what can be told in a word, in fewer bytes or from another column is.

A column of one value is a word in the schema. Whole numbers are stored in as few bytes as their range needs. The identity of a key that is
one number is left out: it is a function of that number. Reading gives back the frame as it was, types included.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.kernel.frame import Column, Frame, constant, to_arrow
from tidegate.kernel.keys import KEY, identify, is_word

_CONSTANTS, _NARROWED, _IDENTITY = b"constants", b"narrowed", b"identity"
_WORDS = (np.dtype(np.uint8), np.dtype(np.uint16), np.dtype(np.uint32))


def pack(frame: Frame) -> pa.Table:
    """The frame as a table for a store."""
    key = _key_of(frame)
    columns = {name: column for name, column in frame.columns.items() if key is None or name not in KEY}
    constants: dict[str, Any] = {}
    narrowed: dict[str, str] = {}
    for name, given in list(columns.items()):
        column = _numbers(given)
        if column is None or not len(column):
            continue
        low, high = column.min(), column.max()
        if low == high:
            constants[name] = [column.dtype.str, column[0].item()]
            del columns[name]
        elif column.dtype.kind != "b" and low >= 0:
            word = next((word for word in _WORDS if word.itemsize < column.dtype.itemsize and high <= np.iinfo(word).max), None)
            if word is not None:
                narrowed[name], columns[name] = column.dtype.str, column.astype(word)
    if not columns:
        # A table needs a column to have rows.
        return frame.to_table()
    told = {_CONSTANTS: json.dumps(constants), _NARROWED: json.dumps(narrowed), _IDENTITY: key or ""}
    return Frame(columns, len(frame)).to_table().replace_schema_metadata(told)


def _numbers(column: Column) -> np.ndarray | None:
    """The column where it holds whole numbers or flags and no nulls, which is read back as NumPy whatever it was."""
    if isinstance(column, np.ndarray):
        return column if column.dtype.kind in "bui" else None
    return column.to_numpy(zero_copy_only=False) if pa.types.is_integer(column.type) and not column.null_count else None


def unpack(table: pa.Table) -> Frame:
    """The inverse of `pack`."""
    told = table.schema.metadata or {}
    columns = dict(Frame.from_table(table).columns)
    for name, kind in json.loads(told.get(_NARROWED, b"{}")).items():
        columns[name] = np.asarray(columns[name]).astype(kind)
    for name, (kind, value) in json.loads(told.get(_CONSTANTS, b"{}")).items():
        columns[name] = constant(np.dtype(kind).type(value), table.num_rows)
    key = told.get(_IDENTITY, b"").decode()
    if key:
        columns.update(zip(KEY, identify([to_arrow(columns[key])], table.num_rows), strict=True))
    return Frame(columns, table.num_rows)


def _key_of(frame: Frame) -> str | None:
    """The column that the identities of keys follow from; None where they follow from several, or from one that is costly to hash."""
    names = [name for name in frame.names if name.startswith("k.")]
    if len(names) != 1 or not len(frame) or any(name not in frame for name in KEY):
        return None
    column: Column = frame[names[0]]
    array = to_arrow(column)
    if not is_word(array.type):
        return None
    same = all(np.array_equal(found, frame.ints(name)) for found, name in zip(identify([array], len(frame)), KEY, strict=True))
    return names[0] if same else None
