"""Key identities: 128 bits (key_hash, key_check), the same wherever the secret is the same.

A single integer-like key column is hashed by a bijection and `key_check` only marks nulls, so the
identity is exact. Every other key has a 128-bit SipHash under a secret of its state (`KeyHasher`):
keys that collide can neither be computed nor found by looking at output, and two of a billion
different keys share an identity by chance with a probability of 1.5e-21. `key_hash` also determines
the shard (`shard_of`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import InputError
from tidegate.kernel.frame import constant, is_constant, to_arrow, values_of
from tidegate.kernel.groups import ascending, inverse, present
from tidegate.kernel.siphash import Hashes, Key, hash_bytes, hash_words

KEY = ("key_hash", "key_check")
"""The columns of a key's identity in every frame."""
SECRET_BYTES = 16
_WORD = 8
_SPREAD = 4
"""Maximum entries per row of a lookup table for dense keys."""
_LONG = 1024
"""The length in bytes from which values are hashed one by one: the work of a column follows its
longest value.
"""
_SAMPLE, _REPEATED = 4096, 4
"""Rows to look at, and how often a value occurs in the column on average, as far as these tell,
for values to be hashed once each.
"""


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


@dataclass(frozen=True)
class KeyHasher:
    """The identities of keys under one secret."""

    secret: bytes = field(repr=False)

    def __reduce__(self) -> tuple[type[KeyHasher], tuple[bytes]]:
        """Ranks of keys that it has met stay here: they would travel with every task."""
        return KeyHasher, (self.secret,)

    def identify(self, columns: Sequence[pa.Array | pa.ChunkedArray], rows: int) -> Hashes:
        """The (key_hash, key_check) of every row; without columns all rows share one key."""
        if not columns:
            return constant(np.uint64(0), rows), constant(np.uint64(0), rows)
        arrays = [to_arrow(column) for column in columns]
        if len(arrays) > 1:
            return self._combined(arrays, rows)
        if _is_bytes(arrays[0].type):
            return self._values(arrays[0])
        plain = _plain(arrays[0])
        return identify_words(plain) if is_word(plain.type) else self._hashes(plain)

    def identities(self, columns: Sequence[pa.Array | pa.ChunkedArray], rows: int) -> Identities:
        """The identities of some rows, hashed on demand."""
        return Identities(columns, rows, self)

    @cached_property
    def dense(self) -> DenseKeys:
        """The ranks of keys that are dense integers."""
        return DenseKeys()

    @cached_property
    def _key(self) -> Key:
        first, second = np.frombuffer(self.secret, "<u8")
        return np.uint64(first), np.uint64(second)

    @cached_property
    def _null(self) -> tuple[np.uint64, np.uint64]:
        """The hash of null: under another key, so that it has nothing to do with any value."""
        other = self._key[0] ^ np.uint64(1), self._key[1]
        first, second = hash_words([], 1, other)
        return first[0], second[0]

    def _combined(self, arrays: Sequence[pa.Array], rows: int) -> Hashes:
        """The hashes of several columns: every column is two words of what is hashed."""
        words = [word for array in arrays for word in self._two_words(array)]
        return hash_words(words, rows, self._key)

    def _two_words(self, array: pa.Array) -> Hashes:
        """Two words for each value that tell it apart from the others, and from null."""
        if _is_bytes(array.type):
            return self._values(array)
        plain = _plain(array)
        if not is_word(plain.type) and not pa.types.is_floating(plain.type):
            return self._hashes(plain)
        word = _word(plain) if is_word(plain.type) else _float_word(plain)
        return self._with_nulls(plain, word, np.zeros(len(plain), np.uint64))

    def _hashes(self, array: pa.Array) -> Hashes:
        """The hashes of a column that is neither texts nor bytes."""
        rows = len(array)
        if pa.types.is_null(array.type):
            return constant(self._null[0], rows), constant(self._null[1], rows)
        if pa.types.is_floating(array.type):
            first, second = hash_words([_float_word(array)], rows, self._key)
        elif pa.types.is_struct(array.type):
            first, second = self._combined(cast("pa.StructArray", array).flatten(), rows)
        else:
            return self._each(_as_binary(array))
        return self._with_nulls(array, first, second)

    def encode(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> EncodedKeys | None:
        """The keys as codes, if they are one column of texts or bytes whose values repeat."""
        if len(columns) != 1 or not _is_bytes(columns[0].type) or columns[0].null_count:
            return None
        array = to_arrow(columns[0])
        if not pa.types.is_dictionary(array.type):
            if not _repeats(array):
                return None
            array = array.dictionary_encode()
        found = cast("pa.DictionaryArray", array)
        if not len(found.dictionary) or found.dictionary.null_count:
            return None
        hashes = self._each(_as_binary(_plain(found.dictionary)))
        ordered = np.sort(hashes[0])
        if (ordered[1:] == ordered[:-1]).any():
            # Equal values, or a collision, which only `key_check` resolves.
            return None
        return EncodedKeys(found.indices.to_numpy(zero_copy_only=False), hashes)

    def _values(self, array: pa.Array) -> Hashes:
        """The hashes of a column of texts or bytes; values that repeat are hashed once."""
        if not pa.types.is_dictionary(array.type) and _repeats(array):
            array = array.dictionary_encode()
        if not pa.types.is_dictionary(array.type):
            return self._each(_as_binary(_plain(array)))
        found = cast("pa.DictionaryArray", array)
        each = self._each(_as_binary(_plain(found.dictionary)))
        if not len(found.dictionary):
            return constant(self._null[0], len(array)), constant(self._null[1], len(array))
        codes = pc.fill_null(found.indices, 0).to_numpy(zero_copy_only=False)
        return self._with_nulls(found.indices, each[0][codes], each[1][codes])

    def _each(self, array: pa.Array) -> Hashes:
        """The hashes of a column of large binaries."""
        rows = len(array)
        _, bounds, data = array.buffers()
        if bounds is None or not rows:
            return np.zeros(rows, np.uint64), np.zeros(rows, np.uint64)
        offsets = np.frombuffer(memoryview(bounds), np.int64, rows + 1, array.offset * _WORD)
        raw = (
            np.zeros(0, np.uint8)
            if data is None
            else np.frombuffer(memoryview(data), np.uint8)[offsets[0] : offsets[-1]]
        )
        begin, length = offsets[:-1] - offsets[0], offsets[1:] - offsets[:-1]
        long = np.flatnonzero(length >= _LONG)
        # Long values keep their place with no bytes, until their own hashes replace those.
        short = length if not len(long) else np.where(length >= _LONG, 0, length)
        first, second = hash_bytes(raw, begin, short, self._key)
        for row in long.tolist():
            value = raw[begin[row] : begin[row] + length[row]]
            digest = hashlib.blake2b(
                value.tobytes(), key=self.secret, digest_size=SECRET_BYTES
            ).digest()
            first[row], second[row] = np.frombuffer(digest, "<u8")
        return self._with_nulls(array, first, second)

    def _with_nulls(self, array: pa.Array, first: np.ndarray, second: np.ndarray) -> Hashes:
        if array.null_count == 0:
            return first, second
        missing = _missing(array)
        return np.where(missing, self._null[0], first), np.where(missing, self._null[1], second)


FIXED = KeyHasher(bytes(SECRET_BYTES))
"""The hasher of what has no secret: routing that many processes share, and state that no file
holds.
"""


def identify_words(array: pa.Array) -> Hashes:
    """The exact identities of a single integer-like key column."""
    key_hash = mix(_word(array))
    if array.null_count == 0:
        return key_hash, constant(np.uint64(0), len(array))
    return key_hash, _missing(array).astype(np.uint64)


class Identities:
    """The identities of some rows, hashed on demand."""

    def __init__(
        self,
        columns: Sequence[pa.Array | pa.ChunkedArray],
        rows: int,
        hasher: KeyHasher = FIXED,
    ) -> None:
        self._columns, self._rows, self.hasher = columns, rows, hasher

    def known(self, key_hash: np.ndarray, key_check: np.ndarray) -> Identities:
        """Identities that are already computed, under the same secret."""
        found = Identities((), len(key_hash), self.hasher)
        found.all = key_hash, key_check
        return found

    @cached_property
    def encoded(self) -> EncodedKeys | None:
        """The keys as codes; None if they are not texts that repeat."""
        return self.hasher.encode(self._columns)

    @cached_property
    def all(self) -> tuple[np.ndarray, np.ndarray]:
        """The (key_hash, key_check) of every row."""
        encoded = vars(self).get("encoded")
        if encoded is not None:
            return cast("EncodedKeys", encoded).at(slice(None))
        return self.hasher.identify(self._columns, self._rows)

    def at(self, index: np.ndarray | slice) -> tuple[np.ndarray, np.ndarray]:
        """The identities of some rows; hashes only these if the others are not hashed yet."""
        if "all" in vars(self):
            key_hash, key_check = self.all
            return key_hash[index], key_check[index]
        encoded = vars(self).get("encoded")
        if encoded is not None:
            return cast("EncodedKeys", encoded).at(index)
        if isinstance(index, slice):
            return self.hasher.identify(
                [column[index] for column in self._columns], len(range(self._rows)[index])
            )
        rows = pa.array(index)
        return self.hasher.identify([column.take(rows) for column in self._columns], len(index))


@dataclass(frozen=True, eq=False)
class RankedKeys:
    """The distinct keys of some rows in the order of their hashes, and the rank of each row's key.

    There may be keys that no row has.
    """

    rank: np.ndarray
    hashes: Hashes
    """The (key_hash, key_check) by rank; no two keys have the same `key_hash`."""
    keys: pa.Array | None = None
    """The keys by rank, where they are known beforehand."""

    def hashes_of(self, rank: np.ndarray) -> Hashes:
        """The (key_hash, key_check) of the keys with some ranks."""
        first, second = self.hashes
        return first[rank], (
            constant(second[0], len(rank)) if is_constant(second) else second[rank]
        )


@dataclass(frozen=True)
class EncodedKeys:
    """Keys as codes of their distinct values, of which each is hashed once."""

    numbers: np.ndarray
    """The code of the key of each row."""
    hashes: Hashes
    """The (key_hash, key_check) of each code; no two have the same `key_hash`."""

    def at(self, index: np.ndarray | slice) -> Hashes:
        """The (key_hash, key_check) of some rows."""
        numbers = self.numbers[index]
        return self.hashes[0][numbers], self.hashes[1][numbers]

    def ranked(self) -> RankedKeys:
        """The keys by their hashes."""
        order = ascending(self.hashes[0])
        first, second = self.hashes
        return RankedKeys(inverse(order)[self.numbers], (first[order], second[order]))


class _RankTable(NamedTuple):
    """The ranks of integer keys from `first` to `last`, or of those of them that occur."""

    first: int
    last: int
    rank: np.ndarray
    hashes: Hashes
    keys: pa.Array

    @classmethod
    def of(cls, first: int, last: int, numbers: np.ndarray, like: np.ndarray) -> _RankTable:
        """The ranks of the keys `first + numbers`, of the type of other keys."""
        keys = numbers.astype(like.dtype) + like.dtype.type(first)
        order = ascending(mix(_wide(keys)))
        keys = pa.array(keys[order])
        rank = inverse(numbers[order], last - first + 1)
        return cls(first, last, rank, identify_words(keys), keys)

    def covers(self, low: int, high: int, like: np.ndarray) -> bool:
        """Whether keys of a range, and of the type of others, have a rank."""
        return (
            self.first <= low
            and high <= self.last
            and self.keys.type == pa.from_numpy_dtype(like.dtype)
        )


class DenseKeys:
    """Ranks dense integer keys; the ranks of a range are kept once its keys come a second time."""

    def __init__(self) -> None:
        self._held: _RankTable | None = None
        self._seen = (0, -1)
        """A range in which keys have been."""

    def ranked(self, columns: Sequence[pa.Array | pa.ChunkedArray], rows: int) -> RankedKeys | None:
        """The keys of some rows by their hashes; None if they are not dense integers."""
        if (
            len(columns) != 1
            or not rows
            or not pa.types.is_integer(columns[0].type)
            or columns[0].null_count
        ):
            return None
        keys = to_arrow(columns[0]).to_numpy(zero_copy_only=False)
        low, high = int(keys.min()), int(keys.max())
        if high - low > _SPREAD * rows:
            return None
        table = self._table(keys, low, high)
        return RankedKeys(table.rank[_numbers(keys, table.first)], table.hashes, table.keys)

    def _table(self, keys: np.ndarray, low: int, high: int) -> _RankTable:
        held, (first, last) = self._held, self._seen
        if held is not None and held.covers(low, high, keys):
            return held
        if first <= low and high <= last:
            self._held = _RankTable.of(first, last, np.arange(last - first + 1), keys)
            return self._held
        # Ranges move: rank the keys that occur, and the whole range only if it comes again.
        first, last = min(first, low), max(last, high)
        if last - first > _SPREAD * len(keys) or self._seen == (0, -1):
            first, last = low, high
        margin, limits = (last - first) // 16 + 1, np.iinfo(keys.dtype)
        self._seen = max(int(limits.min), first - margin), min(int(limits.max), last + margin)
        return _RankTable.of(low, high, present(_numbers(keys, low), high - low + 1), keys)


def _numbers(keys: np.ndarray, first: int) -> np.ndarray:
    """Keys as numbers from the first one.

    Differences of small types may overflow them, and large unsigned keys only fit as differences.
    """
    wide = keys if keys.dtype.itemsize == _WORD else keys.astype(np.int64)
    return (wide - wide.dtype.type(first)).astype(np.int64, copy=False)


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


def _word(array: pa.Array) -> np.ndarray:
    if pa.types.is_boolean(array.type):
        return (
            pc.fill_null(array, False)
            .cast(pa.uint8())
            .to_numpy(zero_copy_only=False)
            .astype(np.uint64)
        )
    width = pa.int32() if array.type.bit_width == 32 else pa.int64()
    plain = array if pa.types.is_integer(array.type) else array.view(width)
    return _wide(pc.fill_null(plain, 0).to_numpy(zero_copy_only=False))


def _wide(numbers: np.ndarray) -> np.ndarray:
    """Integers as 64-bit words."""
    return (
        numbers.astype(np.uint64, copy=False)
        if numbers.dtype.kind == "u"
        else numbers.astype(np.int64, copy=False).view(np.uint64)
    )


def _missing(array: pa.Array) -> np.ndarray:
    if array.null_count == 0:
        return np.zeros(len(array), bool)
    return array.is_null().to_numpy(zero_copy_only=False)


def _float_word(array: pa.Array) -> np.ndarray:
    """Floats as words: -0.0 equals 0.0 and one NaN equals another, so they share a word."""
    numbers = pc.fill_null(array.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False) + 0.0
    return np.where(np.isnan(numbers), np.nan, numbers).view(np.uint64)


def _is_bytes(kind: pa.DataType) -> bool:
    """Whether the values of a type, or of its dictionary, are texts or bytes."""
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    return any(
        test(plain)
        for test in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_string_view,
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_binary_view,
        )
    )


def _repeats(array: pa.Array) -> bool:
    """Whether values occur several times, so that a dictionary of them pays."""
    if len(array) < _SAMPLE or not _is_bytes(array.type):
        return False
    sample = array.slice(len(array) // 2, _SAMPLE)
    found = pc.count_distinct(_plain(sample)).as_py()
    return _distinct(found, len(sample)) * _REPEATED <= len(array)


def _distinct(found: int, drawn: int) -> float:
    """How many values there are, if `found` different ones are among `drawn` at random."""
    if found >= drawn:
        return math.inf
    low, high = float(found), 1e12
    for _ in range(60):
        middle = (low + high) / 2
        expected = -middle * math.expm1(-drawn / middle)
        low, high = (middle, high) if expected < found else (low, middle)
    return high


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
            [None if v is None else repr(v).encode() for v in values_of(array)], pa.large_binary()
        )
    raise InputError(
        f"a key column of type `{kind}` cannot be compared for equality. Hint: cast it to a plain"
        " type first"
    )
