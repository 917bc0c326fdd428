"""Packing: frames as tables that take little room in a store, because what can be told in a word,
in fewer bytes or from another column is.

A column of one value is a word in the schema, and one that is the same as another is the name of
that. Whole numbers and times are stored in as few bytes as their range needs. The identity of a key
that is one number is left out: it is a function of that number. A frame that is sorted by identity
may be stored in the order of such a key, of which then only the steps are told. Reading gives back
the frame as it was, types included.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.kernel.frame import Column, Frame, constant, to_arrow
from tidegate.kernel.groups import ascending
from tidegate.kernel.keys import KEY, identify, is_word

_CONSTANTS, _NARROWED, _TWINS, _TIMES = b"constants", b"narrowed", b"twins", b"times"
_IDENTITY, _HASHES, _STEPS = b"identity", b"hashes", b"steps"
_IDENTITIES = (("k.", KEY), ("m.", ("equal_hash", "key_check")))
"""How the columns are named that an identity may follow from, and what the two words of it are
called.
"""
_WORDS = (np.dtype(np.uint8), np.dtype(np.uint16), np.dtype(np.uint32))
_TRIED = 16


def pack(frame: Frame, *, by_key: bool = False) -> pa.Table:
    """The frame as a table for a store; in the order of its key where that is asked for and can be
    undone.
    """
    key, hashes = _key_of(frame)
    ordered, steps = _in_steps(frame, key, hashes) if by_key and key else (frame, [])
    columns = {name: column for name, column in ordered.columns.items() if name not in hashes}
    constants: dict[str, Any] = {}
    narrowed: dict[str, Any] = {}
    times: dict[str, Any] = {}
    for name, given in list(columns.items()):
        column = _numbers(given)
        if column is None or not len(column):
            continue
        if not isinstance(given, np.ndarray) and pa.types.is_timestamp(given.type):
            times[name], columns[name] = [given.type.unit, given.type.tz], column
        low, high = column.min().item(), column.max().item()
        if low == high:
            constants[name] = [column.dtype.str, low]
            del columns[name]
        elif column.dtype.kind != "b":
            word, base = _narrowest(low, high)
            if word is not None and word.itemsize < column.dtype.itemsize:
                narrowed[name] = [column.dtype.str, base]
                columns[name] = (column - column.dtype.type(base) if base else column).astype(word)
    twins = _twins(columns)
    columns = {name: column for name, column in columns.items() if name not in twins}
    if not columns:
        # A table needs a column to have rows.
        return frame.to_table()
    lists: dict[bytes, Any] = {
        _CONSTANTS: constants,
        _NARROWED: narrowed,
        _TWINS: twins,
        _TIMES: times,
        _HASHES: hashes,
        _STEPS: steps,
    }
    told = {_IDENTITY: key, **{name: json.dumps(value) for name, value in lists.items()}}
    return Frame(columns, len(frame)).to_table().replace_schema_metadata(told)


def _narrowest(low: int, high: int) -> tuple[np.dtype[Any] | None, int]:
    """The word that holds the numbers from low to high, and what is taken off each for that."""
    word, plain = (
        next((word for word in _WORDS if most <= np.iinfo(word).max), None)
        for most in (high - low, high)
    )
    return word, 0 if low >= 0 and word == plain else low


def _twins(columns: Mapping[str, Column]) -> dict[str, str]:
    """The columns that are the same as one before them: a sum and a maximum where keys rarely
    repeat, or several counts of the same rows.
    """
    found: dict[str, str] = {}
    seen: dict[tuple[Any, ...], list[tuple[str, np.ndarray]]] = {}
    for name, column in columns.items():
        if not isinstance(column, np.ndarray) or column.dtype.kind not in "uif" or not len(column):
            continue
        # Bits are compared, so that one zero is not taken for the other, and one NaN is as good as
        # the same.
        bits = np.ascontiguousarray(column).view(f"u{column.dtype.itemsize}")
        alike = seen.setdefault((column.dtype, bits[0], bits[-1]), [])
        twin = next((other for other, its in alike if np.array_equal(its, bits)), None)
        if twin is None:
            alike.append((name, bits))
        else:
            found[name] = twin
    return found


def _numbers(column: Column) -> np.ndarray | None:
    """The column where it holds whole numbers, flags or times and no nulls; all but times are read
    back as NumPy, whatever they were.
    """
    if isinstance(column, np.ndarray):
        return column if column.dtype.kind in "bui" else None
    if column.null_count or not (
        pa.types.is_integer(column.type) or pa.types.is_timestamp(column.type)
    ):
        return None
    return (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_numpy(
        zero_copy_only=False
    )


def unpack(table: pa.Table) -> Frame:
    """The inverse of `pack`."""
    told = table.schema.metadata or {}
    columns = dict(Frame.from_table(table).columns)
    for name, twin in json.loads(told.get(_TWINS, b"{}")).items():
        columns[name] = columns[twin]
    for name, given in json.loads(told.get(_NARROWED, b"{}")).items():
        # Former versions took nothing off.
        kind, base = (given, 0) if isinstance(given, str) else given
        column = np.asarray(columns[name]).astype(kind)
        columns[name] = column + column.dtype.type(base) if base else column
    for name, (kind, value) in json.loads(told.get(_CONSTANTS, b"{}")).items():
        columns[name] = constant(np.dtype(kind).type(value), table.num_rows)
    for name, (unit, zone) in json.loads(told.get(_TIMES, b"{}")).items():
        columns[name] = to_arrow(columns[name]).cast(pa.timestamp(unit, zone))
    key = told.get(_IDENTITY, b"").decode()
    if not key:
        return Frame(columns, table.num_rows)
    steps = json.loads(told.get(_STEPS, b"[]"))
    if steps:
        kind, first = steps
        columns[key] = (np.cumsum(columns[key], dtype=np.uint64) + np.uint64(first)).astype(kind)
    hashes = json.loads(told[_HASHES]) if _HASHES in told else KEY
    columns.update(zip(hashes, identify([to_arrow(columns[key])], table.num_rows), strict=True))
    frame = Frame(columns, table.num_rows)
    return frame.take(ascending(frame.ints(hashes[0]))) if steps else frame


def _key_of(frame: Frame) -> tuple[str, tuple[str, ...]]:
    """The column that identities follow from, and what these are called; nothing where there are
    several, or one that is costly to hash.
    """
    for prefix, hashes in _IDENTITIES:
        if len(frame) and all(name in frame for name in hashes):
            found = next(
                (
                    name
                    for name in frame.names
                    if name.startswith(prefix) and _gives(frame, name, hashes)
                ),
                None,
            )
            if found is not None:
                return found, hashes
    return "", ()


def _in_steps(frame: Frame, key: str, hashes: tuple[str, ...]) -> tuple[Frame, list[Any]]:
    """The frame in the order of its key, with the steps from one to the next in its place, and what
    tells the key by them.

    The same frame and nothing where sorting by identity would not give back the order that the
    frame has.
    """
    column = frame[key]
    values = (
        None
        if not isinstance(column, np.ndarray) and not pa.types.is_integer(column.type)
        else _numbers(column)
    )
    if values is None or values.dtype.kind not in "ui":
        return frame, []
    key_hash = frame.ints(hashes[0])
    if not ((key_hash[1:] > key_hash[:-1]) | (values[1:] == values[:-1])).all():
        return frame, []
    # From the least one on, because steps between signed numbers may be too large for them.
    first = values.min().astype(np.uint64)
    above = values.astype(np.uint64) - first
    order = ascending(above, [word for word in range(4) if int(above.max()) >> 16 * word])
    return frame.take(order).with_mapping({key: np.diff(above[order], prepend=np.uint64(0))}), [
        values.dtype.str,
        int(first),
    ]


def _gives(frame: Frame, name: str, hashes: tuple[str, ...]) -> bool:
    """Whether a column gives the identities; a few rows mostly tell that it does not."""
    array = to_arrow(frame[name])
    return is_word(array.type) and all(
        np.array_equal(found, frame.ints(its)[:rows])
        for rows in (min(_TRIED, len(frame)), len(frame))
        for found, its in zip(identify([array.slice(0, rows)], rows), hashes, strict=True)
    )
