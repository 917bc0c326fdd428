"""Range matching: rows sorted by (lead, position) are asked for ranges of positions, and answer
with ranges of rows.

A lead is the 64-bit identity of what must be equal, a position is a time or an offset. All leads
lie one after the other on one line of integers, so that one binary search finds a lead and a
position at once. Two keys may share a lead: who needs to know compares more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tidegate.kernel.frame import is_constant
from tidegate.kernel.groups import ascending, ranked_values

_WORD = 64


class Ordered(NamedTuple):
    """Rows in the order of (lead, position), those that are equal in both in their order of
    arrival.
    """

    order: np.ndarray
    """The row at each place of the order."""
    keys: np.ndarray
    """The different leads, ascending."""
    code: np.ndarray
    """For each row, as it came, which of them it has."""


def ordered(lead: np.ndarray, at: np.ndarray) -> Ordered:
    """Put rows into order."""
    n = len(lead)
    if n == 0 or is_constant(lead):
        keys, code = lead[:1].copy(), np.zeros(n, np.int64)
    else:
        code, keys = ranked_values(lead)
    return Ordered(_order(code, len(keys), at), keys, code)


def _order(code: np.ndarray, keys: int, at: np.ndarray) -> np.ndarray:
    """The stable order of (code, position): both and the number of the row in one word where they
    fit, which sorts quickest.
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
    return np.lexsort((at, code))


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """Sorted rows laid on one line: the different leads, and for each row its place on the line."""

    keys: np.ndarray
    line: np.ndarray
    low: int
    high: int
    ranks: np.ndarray | None = None
    """The different positions, where leads and positions are too far apart to be laid on a line as
    they are.
    """

    @classmethod
    def over(cls, lead: np.ndarray, at: np.ndarray) -> Index:
        """The index of rows that are sorted by (lead, position)."""
        if is_constant(lead):
            keys, code = lead[:1].copy(), np.zeros(len(lead), np.int64)
        else:
            starts = np.ones(len(lead), bool)
            np.not_equal(lead[1:], lead[:-1], out=starts[1:])
            keys, code = lead[starts], np.cumsum(starts) - 1
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
        self, lead: np.ndarray, code: np.ndarray, low: np.ndarray, high: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """For each asking row the first of the rows with its lead and a position from low to high,
        both included, and one past the last.

        `lead` are the different leads that are asked for, and `code` says which of them each row
        asks for.
        """
        at = np.searchsorted(self.keys, lead)
        at[at == len(self.keys)] = 0
        known = self.keys[at] == lead
        stride, begin, end = self._clipped(low, high)
        base = at[code] * stride
        first = np.searchsorted(self.line, base + begin)
        last = np.searchsorted(self.line, base + end)
        if not known.all():
            last = np.where(known[code], last, first)
        return first, np.maximum(first, last)

    def _clipped(self, low: np.ndarray, high: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
        """How long the stretch of a lead is, and where in it ranges begin and end."""
        if self.ranks is not None:
            return (
                len(self.ranks),
                np.searchsorted(self.ranks, low),
                np.searchsorted(self.ranks, high, "right"),
            )
        begin = np.clip(low, self.low, self.high + 1) - self.low
        end = np.clip(high, self.low - 1, self.high) + 1 - self.low
        return self.high - self.low + 1, begin, end


def expanded(first: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """All integers of the ranges that begin at `first`, one range after the other."""
    total = int(counts.sum())
    ends = np.cumsum(counts)
    return np.repeat(first - (ends - counts), counts) + np.arange(total)


class Found(NamedTuple):
    """Pairs of an asking row and a row of a run, by asking row."""

    row: np.ndarray
    run: np.ndarray
    at: np.ndarray

    def where(self, mask: np.ndarray) -> Found:
        return self if mask.all() else Found(self.row[mask], self.run[mask], self.at[mask])

    def take(self, index: np.ndarray) -> Found:
        return Found(self.row[index], self.run[index], self.at[index])


NOTHING = Found(*(np.zeros(0, np.int64) for _ in range(3)))


def pairs(blocks: Sequence[tuple[int, np.ndarray, np.ndarray]]) -> Found:
    """The pairs of ranges in several runs: blocks are (run, first, last) with a range for each
    asking row.
    """
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
            np.repeat(row, counts), np.broadcast_to(np.int64(run), total), expanded(first, counts)
        )
    row = np.concatenate([block[1] for block in kept])
    order = np.argsort(row, kind="stable")
    runs = np.concatenate([np.full(len(block[1]), block[0]) for block in kept])[order]
    first, counts = (np.concatenate([block[n] for block in kept])[order] for n in (2, 3))
    return Found(np.repeat(row[order], counts), np.repeat(runs, counts), expanded(first, counts))
