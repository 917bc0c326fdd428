"""Sessions are unions of overlapping intervals of one key.

Contract: the result does not depend on the order of the intervals. Two intervals are one when they
share an instant; a point `[t, t]` shares the instant t. With `touch="merge"` they are also one when
one ends where the other begins.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tidegate.kernel.groups import Groups, ascending
from tidegate.spec.windows import Touch

Interval = tuple[int, int]
_WORD = 64
_MANY = 4096
"""From this many intervals on it pays to look for those that need no sorting."""


class Merged(NamedTuple):
    """The unions, sorted by key and start, and which interval went into which."""

    groups: Groups
    start: np.ndarray
    end: np.ndarray
    key: np.ndarray


def merge_intervals(
    key: np.ndarray, start: np.ndarray, end: np.ndarray, touch: Touch = "separate"
) -> Merged:
    """The unions of the intervals of each key; `groups` says for each interval which union it is
    in.
    """
    if not len(key):
        return Merged(Groups(np.zeros(0, np.int64), 0), start, end, key)
    if len(key) >= _MANY and int(key.min()) == 0 and int(key.max()) < len(key):
        return _collapsed(key, start, end, touch)
    return _sorted_unions(key, start, end, touch)


def _collapsed(key: np.ndarray, start: np.ndarray, end: np.ndarray, touch: Touch) -> Merged:
    """The same where keys are dense numbers: intervals of a key that all share an instant are one
    at a glance, and are not sorted.
    """
    groups = Groups(key, int(key.max()) + 1)
    if not groups.counts.all():
        return _sorted_unions(key, start, end, touch)
    at_once = groups.max(start) < groups.min(end)
    rest = np.flatnonzero(~at_once[key])
    whole = np.flatnonzero(at_once)
    merged = _sorted_unions(
        np.concatenate([whole, key[rest]]),
        np.concatenate([groups.min(start)[whole], start[rest]]),
        np.concatenate([groups.max(end)[whole], end[rest]]),
        touch,
    )
    of_key = np.empty(groups.n, np.int64)
    of_key[whole] = merged.groups.ids[: len(whole)]
    ids = of_key[key]
    ids[rest] = merged.groups.ids[len(whole) :]
    return Merged(Groups(ids, merged.groups.n), merged.start, merged.end, merged.key)


def _sorted_unions(key: np.ndarray, start: np.ndarray, end: np.ndarray, touch: Touch) -> Merged:
    """The unions by one sort and one running maximum over all keys."""
    points = touch == "separate" and bool((start == end).any())
    line = _Line.over(key, start, end)
    order = np.lexsort((~end, line.starts)) if points else _ascending(line.starts)
    starts, ends = _pick(line.starts, order), np.maximum.accumulate(_pick(line.ends, order))
    fresh = np.ones(len(key), bool)
    fresh[1:] = starts[1:] > ends[:-1] if touch == "merge" else starts[1:] >= ends[:-1]
    if points:
        plain = _pick(line.ends, order)
        fresh[1:] &= (starts[1:] != starts[:-1]) | (plain[1:] != plain[:-1])
    firsts = np.flatnonzero(fresh)
    ids = np.empty(len(key), np.int64)
    ids[order if order is not None else slice(None)] = np.cumsum(fresh) - 1
    head = firsts if order is None else order[firsts]
    return Merged(
        Groups(ids, len(firsts)),
        start[head],
        np.maximum.reduceat(_pick(end, order), firsts),
        key[head],
    )


class _Line(NamedTuple):
    """All keys laid one after the other on one line of integers, so that one sort and one running
    maximum serve them all.
    """

    starts: np.ndarray
    ends: np.ndarray

    @classmethod
    def over(cls, key: np.ndarray, start: np.ndarray, end: np.ndarray) -> _Line:
        low, first = int(start.min()), int(key.min())
        # Two spare places keep an interval that ends at the end of one key's stretch from touching
        # the next key.
        stretch = int(end.max()) - low + 2
        if (int(key.max()) - first + 1) * stretch >= 2**63:
            return cls._ranked(key, start, end)
        base = (key - first) * stretch - low
        return cls(base + start, base + end)

    @classmethod
    def _ranked(cls, key: np.ndarray, start: np.ndarray, end: np.ndarray) -> _Line:
        """The same with ranks in place of keys and times that are too far apart."""
        _, code = np.unique(key, return_inverse=True)
        _, rank = np.unique(np.concatenate([start, end]), return_inverse=True)
        base = code.astype(np.int64) * (len(rank) + 2)
        return cls(base + rank[: len(key)], base + rank[len(key) :])


def _ascending(values: np.ndarray) -> np.ndarray | None:
    """The order that sorts the values, None where they are sorted already."""
    if (values[1:] >= values[:-1]).all():
        return None
    low = int(values.min())
    width = (int(values.max()) - low).bit_length()
    return (
        ascending((values - low).view(np.uint64), range(-(-width // 16)))
        if width < _WORD
        else np.argsort(values)
    )


def _pick(values: np.ndarray, order: np.ndarray | None) -> np.ndarray:
    return values if order is None else values[order]
