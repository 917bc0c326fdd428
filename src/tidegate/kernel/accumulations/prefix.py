"""Grouped prefixes: the inclusive running combination of partials per group, in row order."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from tidegate.kernel.accumulations.protocol import Partials
from tidegate.kernel.frame import Column, concat, take
from tidegate.kernel.groups import Groups


class Combining(Protocol):
    """Combines partials, as an accumulation does."""

    def combine(self, partials: Partials, groups: Groups) -> dict[str, Column]: ...


def prefix_combine(
    accumulation: Combining, partials: Partials, groups: Groups
) -> dict[str, Column]:
    """For each row, its partial combined with those of all earlier rows of its group.

    In step k every row is combined with the row 2**k places before it (Hillis and Steele), so the
    number of combines is the logarithm of the longest group, each over whole columns.
    """
    current = dict(partials)
    rows = len(groups.ids)
    longest = int(groups.counts.max()) if rows else 0
    place = np.empty(rows, np.int64)
    place[groups.order] = np.arange(rows)
    step = 1
    while step < longest:
        later = np.flatnonzero(groups.ranks >= step)
        earlier = groups.order[place[later] - step]
        pair = np.arange(len(later))
        both = {
            name: concat([take(column, earlier), take(column, later)])
            for name, column in current.items()
        }
        merged = accumulation.combine(both, Groups(np.concatenate([pair, pair]), len(later)))
        source = np.arange(rows)
        source[later] = rows + pair
        current = {name: take(concat([current[name], merged[name]]), source) for name in current}
        step *= 2
    return current
