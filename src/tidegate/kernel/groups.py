"""Groups: a partition of rows, and vectorised reductions by group.

Contract: `ids` holds one group number per row, from 0 to `n - 1`, and reductions return one value
per group in group order. A group may be empty: its count and sum are 0 and `any` is False, while
`firsts`, `lasts`, `min` and `max` are undefined. Rows of a group keep their order, so that "first"
and "last" mean the order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from tidegate.kernel.frame import constant, is_constant

_FEW = 4096
"""Below this many rows, a counting sort does not pay."""
_BYTES = 8
"""Integers of this size are sorted by their words."""
_SMALL = 2**16
"""Up to this many groups, their numbers have 16 bits."""
_CLOSE = 1024
"""Range of integers that are ranked by a table."""
_RARELY = 0.96
"""Share of distinct values in a sample from which on sorting is faster than hashing."""
_SPARSE = 4
"""A lookup table with more entries per row than this is not worthwhile."""


def _codes(column: np.ndarray) -> tuple[np.ndarray, int]:
    """Dense codes of an integer column, in order of first appearance."""
    encoded = pa.array(column).dictionary_encode()
    return encoded.indices.to_numpy(zero_copy_only=False), len(encoded.dictionary)


def present(numbers: np.ndarray, bound: int) -> np.ndarray:
    """The distinct numbers below a bound, ascending; a mask is faster than sorting or hashing."""
    seen = np.zeros(bound, bool)
    seen[numbers] = True
    return np.flatnonzero(seen)


def _ranked(column: np.ndarray) -> tuple[np.ndarray, int]:
    """The rank of each value among the distinct ones, and their number.

    Values in a small range are ranked without hashing.
    """
    low, high = column.min(), column.max()
    span = int(high) - int(low) + 1
    if span <= _CLOSE:
        number = column - low
        known = present(number, span)
        if len(known) == span:
            return number, span
        return inverse(known, span)[number], len(known)
    top = column == high
    if (top | (column == low)).all():
        return top.astype(np.int64), 2
    encoded = pa.array(column).dictionary_encode()
    values = encoded.dictionary.to_numpy()
    return inverse(np.argsort(values))[encoded.indices.to_numpy(zero_copy_only=False)], len(values)


def inverse(order: np.ndarray, bound: int | None = None) -> np.ndarray:
    """The position of each row in an order; undefined for rows below `bound` that are not in it."""
    rank = np.empty(len(order) if bound is None else bound, np.int64)
    rank[order] = np.arange(len(order))
    return rank


def expand_ranges(first: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """All integers of the ranges that begin at `first`, one range after the other."""
    return np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))


def lookup(keys: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The position of each wanted value among sorted keys, and whether it is there."""
    if not len(keys):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    position = np.searchsorted(keys, wanted)
    position[position == len(keys)] = 0
    return position, keys[position] == wanted


def ascending(column: np.ndarray, words: Sequence[int] = (1, 2, 3)) -> np.ndarray:
    """The stable order of 64-bit integers that differ in the given 16-bit words, lowest first.

    NumPy sorts 16-bit integers by counting, which beats comparing. If the integers differ in other
    words too, such as hashes that share their upper 48 bits, they are compared after all.
    """
    if len(column) < _FEW or not words:
        return np.argsort(column, kind="stable")
    parts = np.ascontiguousarray(column).view(np.uint16).reshape(-1, 4)
    order = np.argsort(parts[:, words[0]], kind="stable")
    for word in words[1:]:
        order = order[np.argsort(parts[:, word][order], kind="stable")]
    found = column[order]
    return order if (found[1:] >= found[:-1]).all() else np.argsort(column, kind="stable")


def sorted_order(values: np.ndarray) -> np.ndarray | None:
    """The stable order of integers of 64 bits; None if they are sorted.

    Values in a narrow range, such as the bounds of windows, differ in few of their words.
    """
    if (values[1:] >= values[:-1]).all():
        return None
    low = int(values.min())
    width = (int(values.max()) - low).bit_length()
    return ascending((values - low).view(np.uint64), range(-(-width // 16)))


def lexicographic_order(
    keys: Sequence[np.ndarray], sort: Callable[[np.ndarray], np.ndarray | None] = sorted_order
) -> np.ndarray:
    """The stable order by several columns, the most significant one first.

    `sort` orders the rows by the first one; rows that are equal in it are sorted among themselves.
    """
    if len(keys[0]) < _FEW:
        return np.lexsort(keys[::-1])
    varying = [key for key in keys if (key[0] != key).any()]
    if any(key.dtype.kind not in "iu" or key.dtype.itemsize != _BYTES for key in varying):
        return np.lexsort(keys[::-1])
    if not varying:
        return np.arange(len(keys[0]))
    order = _or_as_is(sort(varying[0]), varying[0])
    if len(varying) == 1:
        return order
    values = varying[0][order]
    tied = np.zeros(len(order) + 1, bool)
    np.equal(values[1:], values[:-1], out=tied[1:-1])
    at = np.flatnonzero(tied[1:] | tied[:-1])
    rows = order[at]
    for key in reversed(varying):
        found = sorted_order(key[rows]) if len(rows) else None
        rows = rows if found is None else rows[found]
    order[at] = rows
    return order


def _or_as_is(order: np.ndarray | None, column: np.ndarray) -> np.ndarray:
    return np.arange(len(column)) if order is None else order


def _mostly_different(column: np.ndarray) -> bool:
    """Whether a sample has few equal values; decides between two ways to the same result."""
    sample = len(column) // 64
    return sample > 0 and len(pa.array(column[:sample]).unique()) > _RARELY * sample


def ranked_values(column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rank of each value among the distinct ones, and these in order.

    Found by sorting where values rarely repeat, else by hashing.
    """
    if _mostly_different(column):
        order = ascending(column)
        values = column[order]
        starts = np.ones(len(column), bool)
        np.not_equal(values[1:], values[:-1], out=starts[1:])
        ranks = np.empty(len(column), np.int64)
        ranks[order] = np.cumsum(starts) - 1
        return ranks, values[starts]
    encoded = pa.array(column).dictionary_encode()
    values = encoded.dictionary.to_numpy()
    order = ascending(values)
    return inverse(order)[encoded.indices.to_numpy(zero_copy_only=False)], values[order]


def _collide(codes: np.ndarray, n: int, key_check: np.ndarray) -> bool:
    """Whether two keys share their first hash but not their second."""
    one = np.empty(n, key_check.dtype)
    one[codes] = key_check
    return bool((one[codes] != key_check).any())


def dense_codes(codes: np.ndarray, bound: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes below a bound, renumbered in their order without gaps, and those that occur."""
    if bound > _SPARSE * len(codes):
        values, number = np.unique(codes, return_inverse=True)
        return number, values
    used = np.zeros(bound, bool)
    used[codes] = True
    number = np.cumsum(used)
    number -= 1
    return number[codes], np.flatnonzero(used)


def _parted(ids: np.ndarray, n: int, parts: np.ndarray, many: int) -> tuple[np.ndarray, int]:
    """Group numbers for equal id and part, ordered by part and then id, and how many there are."""
    if many == 1:
        return ids, n
    found, codes = dense_codes(parts * n + ids, many * n)
    return found, len(codes)


class Groups:
    """A partition of rows."""

    def __init__(self, ids: np.ndarray, n: int) -> None:
        self.ids = ids
        self.n = n
        self._sums: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        """Columns by their identity, and their sums."""

    @classmethod
    def by(cls, columns: Sequence[np.ndarray]) -> Groups:
        """Group rows by the integers in all columns."""
        rows = len(columns[0])
        varying = [
            column
            for column in columns
            if rows and column.strides != (0,) and (column != column[0]).any()
        ]
        if not varying:
            return cls.single(rows)
        ids, n = _codes(varying[0])
        for column in varying[1:]:
            more, m = _codes(column)
            packed = ids.astype(np.int64) * m + more
            if n * m > _SPARSE * rows:
                ids, n = _codes(packed)
            else:
                ids, known = dense_codes(packed, n * m)
                n = len(known)
        return cls(ids, n)

    @classmethod
    def in_order(cls, key_hash: np.ndarray, key_check: np.ndarray, part: np.ndarray) -> Groups:
        """Group rows by key and part; groups are numbered by part, then by key."""
        if not len(part):
            return cls.single(0)
        if key_hash.strides == (0,):
            return cls(*_ranked(part))
        ids, key_hashes = ranked_values(key_hash)
        if key_check.strides != (0,) and _collide(ids, len(key_hashes), key_check):
            found = cls.by([part, key_hash, key_check])
            order = np.lexsort(
                (key_check[found.firsts], key_hash[found.firsts], part[found.firsts])
            )
            return cls(inverse(order)[found.ids], found.n)
        return cls(*_parted(ids, len(key_hashes), *_ranked(part)))

    @classmethod
    def of_ranks(
        cls, rank: np.ndarray, bound: int, part: np.ndarray
    ) -> tuple[Groups, np.ndarray, np.ndarray, np.ndarray]:
        """Group rows by part and by the rank of their key, which is below a bound.

        Groups are numbered by part, then by rank. Also returns the rank of each group, the first
        group of each part, and a row of each part.
        """
        parts, many = _ranked(part)
        row = np.empty(many, np.int64)
        row[parts] = np.arange(len(part))
        ids, codes = dense_codes(rank if many == 1 else parts * bound + rank, many * bound)
        low = np.arange(many) * bound
        begins = np.searchsorted(codes, low)
        if many > 1:
            codes -= np.repeat(low, np.diff(begins, append=len(codes)))
        return cls(ids, len(codes)), codes, begins, row

    @classmethod
    def single(cls, rows: int) -> Groups:
        """All rows in one group."""
        return cls(np.zeros(rows, np.int64), 1 if rows else 0)

    @classmethod
    def runs(cls, starts: np.ndarray) -> Groups:
        """Groups of sorted rows; True marks the first row of each."""
        ids = np.cumsum(starts) - 1
        return cls(ids, int(ids[-1]) + 1 if len(ids) else 0)

    @cached_property
    def order(self) -> np.ndarray:
        """Row numbers sorted by group, in order of arrival within a group."""
        # NumPy sorts 16-bit integers by counting.
        small = self.n <= _SMALL and len(self.ids) >= _FEW
        return np.argsort(self.ids.astype(np.uint16) if small else self.ids, kind="stable")

    @cached_property
    def counts(self) -> np.ndarray:
        return np.bincount(self.ids, minlength=self.n).astype(np.int64)

    @cached_property
    def offsets(self) -> np.ndarray:
        """The start of each group in `order`, and one past the end."""
        return np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int64)

    @cached_property
    def firsts(self) -> np.ndarray:
        """The first row of each group."""
        first = np.empty(self.n, np.int64)
        first[self.ids[::-1]] = np.arange(len(self.ids) - 1, -1, -1)
        return first

    @cached_property
    def lasts(self) -> np.ndarray:
        """The last row of each group."""
        last = np.empty(self.n, np.int64)
        last[self.ids] = np.arange(len(self.ids))
        return last

    @cached_property
    def ranks(self) -> np.ndarray:
        """Each row's position inside its group, from 0."""
        rank = np.empty(len(self.ids), np.int64)
        rank[self.order] = np.arange(len(self.ids)) - np.repeat(self.offsets[:-1], self.counts)
        return rank

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sums in the type of the values, int64 for booleans; integer sums wrap on overflow.

        The sums of a column that several aggregates share are computed once.
        """
        if values.dtype.kind == "f":
            return np.bincount(self.ids, values, minlength=self.n).astype(values.dtype, copy=False)
        known = self._sums.get(id(values))
        if known is not None:
            return known[1]
        kind = np.dtype(np.int64) if values.dtype.kind == "b" else values.dtype
        if is_constant(values) and not values[0]:
            total = constant(kind.type(0), self.n)
        else:
            total = np.zeros(self.n, kind)
            np.add.at(total, self.ids, values)
        self._sums[id(values)] = values, total
        return total

    def min(self, values: np.ndarray) -> np.ndarray:
        return self._extreme(np.minimum, values)

    def max(self, values: np.ndarray) -> np.ndarray:
        return self._extreme(np.maximum, values)

    def any(self, values: np.ndarray) -> np.ndarray:
        found = np.zeros(self.n, bool)
        found[self.ids[values]] = True
        return found

    def all(self, values: np.ndarray) -> np.ndarray:
        return ~self.any(~values)

    def _extreme(self, pick: np.ufunc, values: np.ndarray) -> np.ndarray:
        if is_constant(values):
            return constant(values[0], self.n)
        if values.dtype.kind in "iu":
            least = pick is np.minimum
            bounds = np.iinfo(values.dtype)
            best = np.full(self.n, bounds.max if least else bounds.min, values.dtype)
        else:
            # Any row of a group is a valid start.
            best = values[self.firsts if "firsts" in vars(self) else self.lasts]
        pick.at(best, self.ids, values)
        return best
