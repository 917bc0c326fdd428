"""Key identities: 128-bit (key_hash, key_check), by a vectorised hash that is stable everywhere.

A single integer-like key column is hashed by a bijection and `key_check` only marks nulls, so the
identity is exact. Every other key has two independent 64-bit hashes; two different keys share both
with a probability below 1e-18 at ten billion keys. `key_hash` also determines the shard
(`shard_of`). A test pins the values: stored state and every edge depend on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import InputError
from tidegate.kernel.frame import constant, to_arrow

KEY = ("key_hash", "key_check")
"""The columns of a key's identity in every frame."""
_NULL = np.uint64(0x7F4A7C159E3779B9)
_SEEDS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
_WORD = 8
_SPREAD = 4
"""Maximum entries per row of a lookup table for dense keys."""


def mix(values: np.ndarray) -> np.ndarray:
    """A bijection on 64-bit integers with full avalanche (the finaliser of splitmix64)."""
    z = values.astype(np.uint64, copy=True)
    z += np.uint64(0x9E3779B97F4A7C15)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def identify(
    columns: Sequence[pa.Array | pa.ChunkedArray], rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """The (key_hash, key_check) of every row; without columns all rows share one key."""
    if not columns:
        return constant(np.uint64(0), rows), constant(np.uint64(0), rows)
    arrays = [_plain(to_arrow(column)) for column in columns]
    if len(arrays) == 1 and is_word(arrays[0].type):
        key_hash = mix(_words(arrays[0]))
        return key_hash, (
            constant(np.uint64(0), rows)
            if arrays[0].null_count == 0
            else _missing(arrays[0]).astype(np.uint64)
        )
    key_hash, key_check = (np.full(rows, seed, np.uint64) for seed in _SEEDS)
    for array in arrays:
        first, second = _hash_column(array)
        key_hash = mix(key_hash ^ first)
        key_check = mix(key_check + second)
    return key_hash, key_check


class Identities:
    """The identities of some rows, hashed on demand."""

    def __init__(self, columns: Sequence[pa.Array | pa.ChunkedArray], rows: int) -> None:
        self._columns, self._rows = columns, rows

    @classmethod
    def known(cls, key_hash: np.ndarray, key_check: np.ndarray) -> Identities:
        """Identities that are already computed."""
        found = cls((), len(key_hash))
        found.all = key_hash, key_check
        return found

    @cached_property
    def all(self) -> tuple[np.ndarray, np.ndarray]:
        """The (key_hash, key_check) of every row."""
        return identify(self._columns, self._rows)

    def at(self, index: np.ndarray | slice) -> tuple[np.ndarray, np.ndarray]:
        """The identities of some rows; hashes only these if the others are not hashed yet."""
        if "all" in vars(self):
            key_hash, key_check = self.all
            return key_hash[index], key_check[index]
        if isinstance(index, slice):
            return identify(
                [column[index] for column in self._columns], len(range(self._rows)[index])
            )
        rows = pa.array(index)
        return identify([column.take(rows) for column in self._columns], len(index))


@dataclass(frozen=True)
class DenseKeys:
    """Dense integer keys, as numbers from 0."""

    numbers: np.ndarray
    first: np.generic
    """The key with number 0."""
    kind: pa.DataType

    @classmethod
    def of(cls, columns: Sequence[pa.Array | pa.ChunkedArray], rows: int) -> DenseKeys | None:
        """The keys of some rows; None if they are not dense integers."""
        if (
            len(columns) != 1
            or not rows
            or not pa.types.is_integer(columns[0].type)
            or columns[0].null_count
        ):
            return None
        keys = to_arrow(columns[0]).to_numpy(zero_copy_only=False)
        low, high = keys.min(), keys.max()
        if int(high) - int(low) > _SPREAD * rows:
            return None
        # Differences of small types may overflow them, and large unsigned keys only fit as
        # differences.
        wide = keys if keys.dtype.itemsize == _WORD else keys.astype(np.int64)
        return cls((wide - wide.dtype.type(low)).astype(np.int64, copy=False), low, columns[0].type)

    def key_hash_of(self, numbers: np.ndarray) -> np.ndarray:
        """The key hashes of the keys with some numbers."""
        keys = numbers.astype(self.first.dtype) + self.first
        return identify([pa.array(keys, self.kind)], len(keys))[0]


def shard_of(key_hash: np.ndarray, shards: int) -> np.ndarray:
    """The shard of each key, from the high bits, so that it is independent of the order inside a
    shard.
    """
    return ((key_hash >> np.uint64(33)) % np.uint64(shards)).astype(np.int64)


def _plain(array: pa.Array) -> pa.Array:
    """Decode dictionaries and views."""
    if pa.types.is_dictionary(array.type):
        return array.cast(array.type.value_type)
    if pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type):
        return array.cast(
            pa.large_string() if pa.types.is_string_view(array.type) else pa.large_binary()
        )
    return array


def is_word(kind: pa.DataType) -> bool:
    """Whether the values of a type are one 64-bit word."""
    tests = (
        pa.types.is_integer,
        pa.types.is_boolean,
        pa.types.is_timestamp,
        pa.types.is_date,
        pa.types.is_time,
        pa.types.is_duration,
    )
    return any(test(kind) for test in tests)


def _words(array: pa.Array) -> np.ndarray:
    if pa.types.is_boolean(array.type):
        return (
            pc.fill_null(array, False)
            .cast(pa.uint8())
            .to_numpy(zero_copy_only=False)
            .astype(np.uint64)
        )
    width = pa.int32() if array.type.bit_width == 32 else pa.int64()
    plain = array if pa.types.is_integer(array.type) else array.view(width)
    numbers = pc.fill_null(plain, 0).to_numpy(zero_copy_only=False)
    return (
        numbers.astype(np.uint64)
        if numbers.dtype.kind == "u"
        else numbers.astype(np.int64).view(np.uint64)
    )


def _missing(array: pa.Array) -> np.ndarray:
    if array.null_count == 0:
        return np.zeros(len(array), bool)
    return array.is_null().to_numpy(zero_copy_only=False)


def _hash_column(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Two independent hashes of one column; null has its own."""
    array = _plain(array)
    if is_word(array.type):
        words = _words(array)
        first, second = mix(words ^ _SEEDS[0]), mix(words ^ _SEEDS[1])
    elif pa.types.is_floating(array.type):
        # -0.0 equals 0.0 and one NaN equals another, so they share a word.
        numbers = pc.fill_null(array.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False) + 0.0
        numbers = np.where(np.isnan(numbers), np.nan, numbers)
        words = numbers.view(np.uint64)
        first, second = mix(words ^ _SEEDS[0]), mix(words ^ _SEEDS[1])
    elif pa.types.is_struct(array.type):
        first, second = (np.full(len(array), seed, np.uint64) for seed in _SEEDS)
        for child in cast("pa.StructArray", array).flatten():
            one, two = _hash_column(child)
            first, second = mix(first ^ one), mix(second + two)
    elif pa.types.is_null(array.type):
        first = second = np.zeros(len(array), np.uint64)
    else:
        first, second = _hash_bytes(_as_binary(array))
    missing = _missing(array)
    if missing.any():
        first, second = np.where(missing, _NULL, first), np.where(missing, ~_NULL, second)
    return first, second


def _as_binary(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        return array.cast(pa.large_binary())
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return array.cast(pa.binary()).cast(pa.large_binary())
    if pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind):
        return array.cast(pa.binary()).cast(pa.large_binary())
    if pa.types.is_decimal(kind):
        return array.cast(pa.string()).cast(pa.large_binary())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        # Lists are rare as keys: they are hashed by their canonical text.
        return pa.array(
            [None if v is None else repr(v).encode() for v in array.to_pylist()], pa.large_binary()
        )
    raise InputError(
        f"a key column of type `{kind}` cannot be compared for equality. Hint: cast it to a plain"
        " type first"
    )


def _hash_bytes(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Hash eight bytes of every value at a time, in as many rounds as the longest value has
    words.
    """
    rows = len(array)
    first, second = (np.full(rows, seed, np.uint64) for seed in _SEEDS)
    _, bounds, data = array.buffers()
    if bounds is None:
        return first, second
    offsets = np.frombuffer(memoryview(bounds), np.int64, rows + 1, array.offset * 8)
    raw = np.frombuffer(memoryview(data), np.uint8) if data is not None else np.zeros(0, np.uint8)
    raw = np.concatenate([raw, np.zeros(_WORD, np.uint8)])
    begin, length = offsets[:-1], offsets[1:] - offsets[:-1]
    lanes = np.arange(_WORD)
    live = np.flatnonzero(length > 0)
    position = 0
    while len(live):
        at = begin[live] + position
        left = np.minimum(length[live] - position, _WORD)
        chunk = raw[at[:, None] + lanes]
        chunk[lanes >= left[:, None]] = 0
        word = chunk.view(np.uint64).ravel()
        first[live] = mix(first[live] ^ word)
        second[live] = mix(second[live] + word)
        position += _WORD
        live = live[length[live] > position]
    words = length.astype(np.uint64)
    return mix(first ^ words), mix(second + words)
