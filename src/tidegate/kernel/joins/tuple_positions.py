"""Positions of messages on the offset axis: their distance from the first offset of the partition.

Offsets of two streams have nothing to do with each other, so that the first offsets are recorded as
their alignment: the n-th offsets of all partitions of both sides are at position n.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tidegate.instants import MIN
from tidegate.kernel.groups import Groups

POSITION_MARK = "\x00position"
"""The name of the watermark of positions, beside those of time columns."""


class TuplePositions:
    """The alignment of one side of a join."""

    def __init__(self) -> None:
        self.first: dict[str, int] = {}
        """The first offset of each partition."""

    def of(self, partition: np.ndarray, names: list[str], offset: np.ndarray) -> np.ndarray:
        """The positions of rows; `partition` holds indices into `names`."""
        groups = Groups.by([partition])
        least = groups.min(offset).tolist() if groups.n else []
        for code, first in zip(partition[groups.firsts].tolist(), least, strict=True):
            self.first.setdefault(names[code], first)
        start = np.array([self.first.get(name, 0) for name in names], np.int64)
        return offset - start[partition]

    def lanes(self, partition: np.ndarray, names: list[str]) -> np.ndarray:
        """The number of the partition of each row, in the order in which they appeared."""
        number = {name: lane for lane, name in enumerate(self.first)}
        return np.array([number.get(name, 0) for name in names], np.int64)[partition]

    def mark(self, highest: Mapping[str, int]) -> int:
        """The position below which all partitions are complete, from their highest offsets."""
        ends = (highest[name] + 1 - first for name, first in self.first.items())
        return min(ends, default=MIN)

    def save(self) -> dict[str, Any]:
        return self.first

    def restore(self, document: Mapping[str, Any]) -> None:
        self.first = dict(document)
