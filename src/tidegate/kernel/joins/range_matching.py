"""Range matching: finds rows with the same equal-field hash and a position in a range.

An equal-field hash is the 64-bit hash of the values that must be equal. A position is a time or an
offset. The rows of all hashes lie one after the other on one line of integers, so that one binary
search finds hash and position at once. Two keys may share a hash; callers compare further columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tidegate.kernel.frame import is_constant
from tidegate.kernel.groups import (
    ascending,
    expand_ranges,
    lexicographic_order,
    lookup,
    ranked_values,
)

_WORD = 64


class Ordered(NamedTuple):
    """Rows in the order of (equal-field hash, position); rows equal in both by arrival."""

    order: np.ndarray
    """The row at each position of the order."""
    keys: np.ndarray
    """The distinct equal-field hashes, ascending."""
    code: np.ndarray
    """For each row, in the order of arrival, which of them it has."""


def ordered(equal_hash: np.ndarray, at: np.ndarray) -> Ordered:
    """Sort rows by equal-field hash and position."""
    n = len(equal_hash)
    if n == 0 or is_constant(equal_hash):
        keys, code = equal_hash[:1].copy(), np.zeros(n, np.int64)
    else:
        code, keys = ranked_values(equal_hash)
    return Ordered(_order(code, len(keys), at), keys, code)


def _order(code: np.ndarray, keys: int, at: np.ndarray) -> np.ndarray:
    """The stable order of (code, position).

    Both and the number of the row are sorted as one 64-bit word if they fit, which is fastest.
    """
    n = len(code)
    if n < 2:
        return np.arange(n)
    low, high = int(at.min()), int(at.max())
    span, number = (high - low).bit_length(), (n - 1).bit_length()
    width = (keys - 1).bit_length() + span
    if width + number <= _WORD and high - low < 1 << 62:
        word = code.astype(np.uint64) << np.uint64(span) | (at - low).astype(np.uint64)
        packed = np.sort(word << np.uint64(number) | np.arange(n, dtype=np.uint64))
        return (packed & np.uint64((1 << number) - 1)).astype(np.int64)
    if width <= _WORD and high - low < 1 << 62:
        word = code.astype(np.uint64) << np.uint64(span) | (at - low).astype(np.uint64)
        return ascending(word, range(-(-width // 16)))
    return lexicographic_order([code, at])


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """Sorted rows on one line of integers."""

    keys: np.ndarray
    line: np.ndarray
    low: int
    high: int
    ranks: np.ndarray | None = None
    """The distinct positions, if the line has their ranks because their values do not fit."""

    @classmethod
    def over(cls, equal_hash: np.ndarray, at: np.ndarray) -> Index:
        """The index of rows that are sorted by (equal-field hash, position)."""
        if is_constant(equal_hash):
            keys, code = equal_hash[:1].copy(), np.zeros(len(equal_hash), np.int64)
        else:
            starts = np.ones(len(equal_hash), bool)
            np.not_equal(equal_hash[1:], equal_hash[:-1], out=starts[1:])
            keys, code = equal_hash[starts], np.cumsum(starts) - 1
        low, high = int(at.min()), int(at.max())
        stride = high - low + 1
        if len(keys) * stride < 1 << 62:
            return cls(keys, code * stride + (at - low), low, high)
        ranks, rank = np.unique(at, return_inverse=True)
        return cls(keys, code * len(ranks) + rank, low, high, ranks)

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.line.nbytes

    def ranges(
        self, equal_hash: np.ndarray, code: np.ndarray, low: np.ndarray, high: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """For each row of a query, the first row in its range and one past the last.

        `equal_hash` are the distinct hashes of the query, ascending, and `code` tells which of them
        each row has. `low` and `high` are positions, both included.
        """
        at, known = lookup(self.keys, equal_hash)
        stride, begin, end = self._clipped(low, high)
        base = at[code] * stride
        first = np.searchsorted(self.line, base + begin)
        last = np.searchsorted(self.line, base + end)
        if not known.all():
            last = np.where(known[code], last, first)
        return first, np.maximum(first, last)

    def _clipped(self, low: np.ndarray, high: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
        """The length of the line of one hash, and where on it ranges begin and end."""
        if self.ranks is not None:
            return (
                len(self.ranks),
                np.searchsorted(self.ranks, low),
                np.searchsorted(self.ranks, high, "right"),
            )
        begin = np.clip(low, self.low, self.high + 1) - self.low
        end = np.clip(high, self.low - 1, self.high) + 1 - self.low
        return self.high - self.low + 1, begin, end


class Found(NamedTuple):
    """Pairs of a row of the query and a stored row (run, position in it), by row of the query."""

    row: np.ndarray
    run: np.ndarray
    at: np.ndarray

    def where(self, mask: np.ndarray) -> Found:
        return self if mask.all() else Found(self.row[mask], self.run[mask], self.at[mask])

    def take(self, index: np.ndarray) -> Found:
        return Found(self.row[index], self.run[index], self.at[index])


NOTHING = Found(*(np.zeros(0, np.int64) for _ in range(3)))


def pairs(blocks: Sequence[tuple[int, np.ndarray, np.ndarray]]) -> Found:
    """The pairs of ranges in several runs; a block is (run, first, last) with a range a row."""
    kept = []
    for run, first, last in blocks:
        rows = np.flatnonzero(last > first)
        if len(rows):
            kept.append((run, rows, first[rows], last[rows] - first[rows]))
    if not kept:
        return NOTHING
    if len(kept) == 1:
        run, row, first, counts = kept[0]
        total = int(counts.sum())
        return Found(
            np.repeat(row, counts),
            np.broadcast_to(np.int64(run), total),
            expand_ranges(first, counts),
        )
    row = np.concatenate([block[1] for block in kept])
    order = np.argsort(row, kind="stable")
    runs = np.concatenate([np.full(len(block[1]), block[0]) for block in kept])[order]
    first, counts = (np.concatenate([block[n] for block in kept])[order] for n in (2, 3))
    return Found(
        np.repeat(row[order], counts), np.repeat(runs, counts), expand_ranges(first, counts)
    )
