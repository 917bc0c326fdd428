"""Rows of Spark's state store in the format of `UnsafeRow`.

A row is a bitmap of nulls, one 8-byte word per field, and the bytes of fields of variable length.
The word of such a field has its offset and its size. In the state store, one version byte precedes
a row. All numbers are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Literal

from tidegate.errors import CorruptStateError
from tidegate.state.damage import damage_in

Kind = Literal["int", "text", "bytes"]
VERSION = b"\x00"
_WORD = 8
_INT = struct.Struct("<i")
_PLACE = struct.Struct("<II")
"""The size and the offset of a field of variable length."""


def encode_row(*fields: int | str | bytes) -> bytes:
    """A row without nulls, without the version byte; a nested row is given as bytes."""
    fixed, tail = b"", b""
    start = _WORD * (_bitmap_words(len(fields)) + len(fields))
    for field in fields:
        if isinstance(field, int):
            fixed += _INT.pack(field).ljust(_WORD, b"\x00")
            continue
        data = field.encode() if isinstance(field, str) else field
        fixed += _PLACE.pack(len(data), start + len(tail))
        tail += data.ljust(-(-len(data) // _WORD) * _WORD, b"\x00")
    return bytes(_WORD * _bitmap_words(len(fields))) + fixed + tail


def decode_row(data: bytes, kinds: Sequence[Kind]) -> tuple[Any, ...]:
    """The fields of a stored row, which starts with the version byte; null is None."""
    if data[:1] != VERSION:
        raise CorruptStateError(
            f"a row of the state store has the unknown version {data[:1]!r}. Hint: read it with the"
            " version of Spark that wrote it"
        )
    with damage_in("a row of the state store"):
        return _fields(memoryview(data)[1:], kinds)


def _fields(row: memoryview, kinds: Sequence[Kind]) -> tuple[Any, ...]:
    words = _bitmap_words(len(kinds))
    found: list[Any] = []
    for number, kind in enumerate(kinds):
        at = _WORD * (words + number)
        if row[number // 8] >> (number % 8) & 1:
            found.append(None)
        elif kind == "int":
            found.append(_INT.unpack_from(row, at)[0])
        else:
            size, offset = _PLACE.unpack_from(row, at)
            value = bytes(row[offset : offset + size])
            found.append(value.decode() if kind == "text" else value)
    return tuple(found)


def _bitmap_words(fields: int) -> int:
    return -(-fields // 64)
