"""Column encoding: compact tables with constant, duplicate, narrow and delta-encoded columns.

A constant column is a value in the schema metadata, and a duplicate of another column, or one that
shares its values with it, is its name. Integers and timestamps take as few bytes as their range
needs, and floating point numbers close to short decimals are integers. The hashes of a key that is
one integer are left out, because they follow from it, and those of any other key where the reader
has its hasher. A frame sorted by hash may be stored sorted by an integer key, which is then
delta-encoded. Decoding restores rows and types; the order of columns may change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.kernel.frame import Column, Frame, constant, is_constant, to_arrow
from tidegate.kernel.groups import ascending
from tidegate.kernel.keys import KEY, KeyHasher, identify_words, is_word
from tidegate.state.damage import damage_in

_CONSTANTS, _NARROWED, _DUPLICATES, _TIMES = b"constants", b"narrowed", b"duplicates", b"times"
_SHARED = b"shared"
_IDENTITY, _HASHES, _DELTAS = b"identity", b"hashes", b"deltas"
_HASHED, _DECIMALS = b"hashed", b"decimals"
_IDENTITIES = (("k.", KEY), ("m.", ("equal_hash", "key_check")))
"""Prefixes of the columns from which hashes may follow, and the names of the hash columns."""
_WORDS = [(2**bits - 1, np.dtype(f"u{bits // 8}")) for bits in (8, 16, 32)]
_SAMPLED, _LONG = 16, 4096
"""Rows of a long frame that are looked at first."""
_SCALES = (0, 2, 4, 6)
"""Numbers of decimals that floating point numbers are tried with."""
_EXACT = float(2**53)
"""Below this, every whole number is a floating point number."""
_CLOSE = 100
"""The largest distance from a decimal, in floating point numbers."""
_DISTANCE = "\x00distance"
"""Added to the name of a column for that of its distances."""


def pack(frame: Frame, *, by_key: bool = False, hasher: KeyHasher | None = None) -> pa.Table:
    """Encode a frame as a table; `by_key` sorts it by its key where that can be undone.

    `hasher`: of the key, if `unpack` gets it too.
    """
    key, hashes = _key_of(frame)
    hashed = [] if key or hasher is None else _hashed_columns(frame, hasher)
    if hashed:
        hashes = KEY
    ordered, deltas = _delta_encoded(frame, key, hashes) if by_key and key else (frame, [])
    columns = {name: column for name, column in ordered.columns.items() if name not in hashes}
    shared = _shared(columns, key)
    columns = {name: column for name, column in columns.items() if name not in shared}
    constants: dict[str, Any] = {}
    narrowed: dict[str, Any] = {}
    times: dict[str, Any] = {}
    decimals = _as_integers(columns)
    for name, given in list(columns.items()):
        column = _numbers(given)
        if column is None or not len(column):
            continue
        if not isinstance(given, np.ndarray) and pa.types.is_timestamp(given.type):
            times[name], columns[name] = [given.type.unit, given.type.tz], column
        if is_constant(column):
            low = high = column[0].item()
        else:
            low, high = column.min().item(), column.max().item()
        if low == high:
            constants[name] = [column.dtype.str, low]
            del columns[name]
        elif column.dtype.kind != "b":
            word, base = _narrowest(low, high)
            if word is not None and word.itemsize < column.dtype.itemsize:
                narrowed[name] = [column.dtype.str, base]
                columns[name] = (column - column.dtype.type(base) if base else column).astype(word)
    duplicates = _duplicates(columns)
    columns = {name: column for name, column in columns.items() if name not in duplicates}
    if not columns:
        # A table without columns has no rows.
        return frame.to_table()
    lists: dict[bytes, Any] = {
        _CONSTANTS: constants,
        _NARROWED: narrowed,
        _DUPLICATES: duplicates,
        _SHARED: shared,
        _TIMES: times,
        _HASHES: hashes,
        _DELTAS: deltas,
        _HASHED: hashed,
        _DECIMALS: decimals,
    }
    metadata = {
        _IDENTITY: key,
        **{name: json.dumps(value) for name, value in lists.items() if value},
    }
    return Frame(columns, len(frame)).to_table().replace_schema_metadata(metadata)


def _narrowest(low: int, high: int) -> tuple[np.dtype[Any] | None, int]:
    """The narrowest type for integers from low to high, and the base subtracted from each."""
    for limit, word in _WORDS:
        if high - low <= limit:
            return word, 0 if low >= 0 and high <= limit else low
    # Without a base, wide integers stay as they are.
    return None, low


def _shared(columns: Mapping[str, Column], key: str) -> dict[str, str]:
    """The names that share the column of an earlier one, or of the key, which is decoded first."""
    first = {id(columns[key]): key} if key else {}
    return {
        name: original
        for name, column in columns.items()
        if (original := first.setdefault(id(column), name)) != name
    }


def _duplicates(columns: Mapping[str, Column]) -> dict[str, str]:
    """The columns that duplicate an earlier one, such as the sum and maximum of single rows."""
    found: dict[str, str] = {}
    seen: dict[tuple[Any, ...], list[tuple[str, np.ndarray]]] = {}
    for name, column in columns.items():
        if not isinstance(column, np.ndarray) or column.dtype.kind not in "uif" or not len(column):
            continue
        # Comparing bits tells 0.0 from -0.0 and finds equal NaNs.
        bits = np.ascontiguousarray(column).view(f"u{column.dtype.itemsize}")
        alike = seen.setdefault((column.dtype, bits[0], bits[-1]), [])
        original = next((other for other, its in alike if np.array_equal(its, bits)), None)
        if original is None:
            alike.append((name, bits))
        else:
            found[name] = original
    return found


def _numbers(column: Column) -> np.ndarray | None:
    """A column of integers, booleans or timestamps without nulls as NumPy; else None."""
    if isinstance(column, np.ndarray):
        return column if column.dtype.kind in "bui" else None
    if column.null_count or not (
        pa.types.is_integer(column.type) or pa.types.is_timestamp(column.type)
    ):
        return None
    return (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_numpy(
        zero_copy_only=False
    )


def _as_integers(columns: dict[str, Column]) -> dict[str, int]:
    """Replace floating point numbers close to short decimals by whole numbers and their distance.

    Returns how many decimals each column has. The distance, counted in floating point numbers, is
    zero for decimals themselves, and small for sums of them.
    """
    found: dict[str, int] = {}
    for name, column in list(columns.items()):
        if (
            not isinstance(column, np.ndarray)
            or column.dtype != np.float64
            or not len(column)
            or is_constant(column)
        ):
            continue
        for scale in _SCALES:
            if _whole(column[:_SAMPLED], scale) is not None:
                whole = _whole(column, scale)
                if whole is not None:
                    (columns[name], columns[name + _DISTANCE]), found[name] = whole, scale
                    break
    return found


def _whole(column: np.ndarray, scale: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The nearest decimals as integers, and the distance from each; None if one is far away."""
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = np.rint(column * 10.0**scale)
        if not (np.abs(scaled) < _EXACT).all():
            return None
        whole = scaled.astype(np.int64)
    distance = _bits(column) - _bits(_decimal(whole, scale))
    return (whole, distance) if ((distance >= -_CLOSE) & (distance <= _CLOSE)).all() else None


def _decimal(whole: np.ndarray, scale: int) -> np.ndarray:
    return whole.astype(np.float64) / 10.0**scale


def _bits(column: np.ndarray) -> np.ndarray:
    """The bits of floating point numbers as integers, which are in the same order."""
    return np.ascontiguousarray(column).view(np.int64)


def unpack(table: pa.Table, hasher: KeyHasher | None = None) -> Frame:
    """Decode a table that `pack` encoded, with the same hasher."""
    with damage_in("a stored table"):
        return _unpacked(table, hasher)


def _unpacked(table: pa.Table, hasher: KeyHasher | None) -> Frame:
    metadata = table.schema.metadata or {}
    columns = dict(Frame.from_table(table).columns)
    for name, original in json.loads(metadata.get(_DUPLICATES, b"{}")).items():
        columns[name] = columns[original]
    for name, given in json.loads(metadata.get(_NARROWED, b"{}")).items():
        kind, base = given
        column = np.asarray(columns[name]).astype(kind)
        columns[name] = column + column.dtype.type(base) if base else column
    for name, (kind, value) in json.loads(metadata.get(_CONSTANTS, b"{}")).items():
        columns[name] = constant(np.dtype(kind).type(value), table.num_rows)
    for name, (unit, zone) in json.loads(metadata.get(_TIMES, b"{}")).items():
        columns[name] = to_arrow(columns[name]).cast(pa.timestamp(unit, zone))
    for name, scale in json.loads(metadata.get(_DECIMALS, b"{}")).items():
        distance = np.asarray(columns.pop(name + _DISTANCE))
        decimal = _decimal(np.asarray(columns[name]), scale)
        columns[name] = (_bits(decimal) + distance).view(np.float64)
    shared = json.loads(metadata.get(_SHARED, b"{}"))
    key = metadata.get(_IDENTITY, b"").decode()
    if not key:
        columns.update({name: columns[original] for name, original in shared.items()})
        names = json.loads(metadata.get(_HASHED, b"[]"))
        columns.update(_identities([columns[name] for name in names], table.num_rows, hasher))
        return Frame(columns, table.num_rows)
    deltas = json.loads(metadata.get(_DELTAS, b"[]"))
    if deltas:
        kind, first = deltas
        columns[key] = (np.cumsum(columns[key], dtype=np.uint64) + np.uint64(first)).astype(kind)
    columns.update({name: columns[original] for name, original in shared.items()})
    hashes = json.loads(metadata[_HASHES])
    columns.update(zip(hashes, identify_words(to_arrow(columns[key])), strict=True))
    frame = Frame(columns, table.num_rows)
    return frame.take(ascending(frame.ints(hashes[0]))) if deltas else frame


def _identities(
    key: Sequence[Column], rows: int, hasher: KeyHasher | None
) -> dict[str, np.ndarray]:
    """The hashes that follow from the columns of a key; none without columns."""
    if not key:
        return {}
    if hasher is None:
        raise ValueError("its hashes follow from a key whose secret is not known here")
    return dict(zip(KEY, hasher.identify(list(map(to_arrow, key)), rows), strict=True))


def _key_of(frame: Frame) -> tuple[str, tuple[str, ...]]:
    """The key column that hashes follow from, and their names; empty where there is none."""
    for prefix, hashes in _IDENTITIES:
        if len(frame) and all(name in frame for name in hashes):
            found = next(
                (
                    name
                    for name in frame.names
                    if name.startswith(prefix) and _gives_hashes(frame, name, hashes)
                ),
                None,
            )
            if found is not None:
                return found, hashes
    return "", ()


def _delta_encoded(frame: Frame, key: str, hashes: tuple[str, ...]) -> tuple[Frame, list[Any]]:
    """The frame sorted by its key, which is delta-encoded, and how to decode the key.

    The frame as it is and an empty list where sorting by hash would not restore its order.
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
    # Offsets from the smallest key are unsigned, so that no delta overflows.
    first = values.min().astype(np.uint64)
    above = values.astype(np.uint64) - first
    order = ascending(above, [word for word in range(4) if int(above.max()) >> 16 * word])
    return frame.take(order).with_mapping({key: np.diff(above[order], prepend=np.uint64(0))}), [
        values.dtype.str,
        int(first),
    ]


def _hashed_columns(frame: Frame, hasher: KeyHasher) -> list[str]:
    """The columns of the key from which its hashes follow; empty if they do not."""
    prefix, hashes = _IDENTITIES[0]
    names = [name for name in frame.names if name.startswith(prefix)]
    if not names or not len(frame) or not all(name in frame for name in hashes):
        return []
    columns = [to_arrow(frame[name]) for name in names]
    follow = all(
        np.array_equal(found, frame.ints(its)[:rows])
        for rows in _prefixes(frame)
        for found, its in zip(
            hasher.identify([column.slice(0, rows) for column in columns], rows),
            hashes,
            strict=True,
        )
    )
    return names if follow else []


def _prefixes(frame: Frame) -> tuple[int, ...]:
    """Numbers of rows to compare: a few mostly show that something does not hold for all."""
    return (_SAMPLED, len(frame)) if len(frame) > _LONG else (len(frame),)


def _gives_hashes(frame: Frame, name: str, hashes: tuple[str, ...]) -> bool:
    """Whether the hashes follow from a column."""
    array = to_arrow(frame[name])
    return is_word(array.type) and all(
        np.array_equal(found, frame.ints(its)[:rows])
        for rows in _prefixes(frame)
        for found, its in zip(identify_words(array.slice(0, rows)), hashes, strict=True)
    )
