"""Match bounds: the range of positions that the partners of a row have, and when it is complete.

Sides are numbers (0 is left). Time columns have the names that buffers give them; `position` is the
one that ranges are on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tidegate.instants import MAX, MIN, saturating_add
from tidegate.kernel.frame import constant
from tidegate.kernel.joins.tuple_positions import POSITION_MARK
from tidegate.kernel.windows.assigners import Aligned, Assigner, HoppingAssigner, build
from tidegate.spec.join import LEFT, RIGHT, JoinSpec, Within
from tidegate.spec.windows import ByDifference, Hopping, Window

Times = Mapping[str, np.ndarray]
POSITION = "position"


class MatchBounds(Protocol):
    """Which rows are partners, by their times."""

    def columns(self, side: int) -> dict[str, str]:
        """The names that the buffer has for the time columns of a side."""
        ...

    def reach(self, side: int, times: Times) -> tuple[np.ndarray, np.ndarray]:
        """The first and the last position that partners of each row can have."""
        ...

    def holds(self, left: Times, right: Times) -> np.ndarray | None:
        """Which pairs in reach of each other match; None if all do."""
        ...

    def limits(self, side: int, marks: Mapping[str, int]) -> dict[str, int]:
        """By column, the times of a side below which no partner is expected.

        `marks` are the watermarks of the other side's columns. A row below one limit is complete.
        """
        ...

    def window(self, left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """The first window that holds both rows of a pair; None if the join has no windows."""
        ...

    def promised(
        self, side: int, own: Mapping[str, int], other: Mapping[str, int]
    ) -> dict[str, int]:
        """By time column of a side, the least time that pairs still to come can have."""
        ...


@dataclass(frozen=True)
class TimeBounds:
    """Times within bounds of each other.

    Ranges are those of the narrowest bound. The other bounds are checked pair by pair.
    """

    bounds: tuple[Within, ...]
    mains: tuple[str, str]
    """The main time columns."""

    @property
    def narrowest(self) -> Within:
        return min(
            self.bounds,
            key=lambda bound: (
                MAX if bound.low is None or bound.high is None else bound.high - bound.low
            ),
        )

    def _column(self, bound: Within, side: int) -> str:
        return bound.column(side) or self.mains[side]

    def columns(self, side: int) -> dict[str, str]:
        first = self._column(self.narrowest, side)
        used = [first, self.mains[side], *(self._column(bound, side) for bound in self.bounds)]
        return {name: POSITION if name == first else f"{POSITION}.{name}" for name in used}

    def reach(self, side: int, times: Times) -> tuple[np.ndarray, np.ndarray]:
        low, high, at = self.narrowest.low, self.narrowest.high, times[POSITION]
        if side == LEFT:
            low, high = (None if high is None else -high), (None if low is None else -low)
        first = constant(np.int64(MIN), len(at)) if low is None else saturating_add(at, low)
        return first, constant(np.int64(MAX), len(at)) if high is None else saturating_add(at, high)

    def holds(self, left: Times, right: Times) -> np.ndarray | None:
        mask: np.ndarray | None = None
        for bound in self.bounds:
            if bound is self.narrowest:
                continue
            names = [self.columns(side)[self._column(bound, side)] for side in (LEFT, RIGHT)]
            apart = saturating_add(left[names[LEFT]], -right[names[RIGHT]])
            here = np.ones(len(apart), bool) if bound.low is None else apart >= bound.low
            if bound.high is not None:
                here &= apart <= bound.high
            mask = here if mask is None else mask & here
        return mask

    def limits(self, side: int, marks: Mapping[str, int]) -> dict[str, int]:
        found: dict[str, int] = {}
        names = self.columns(side)
        for bound in self.bounds:
            step = bound.low if side == LEFT else None if bound.high is None else -bound.high
            if step is not None:
                name = names[self._column(bound, side)]
                limit = int(saturating_add(marks[self._column(bound, 1 - side)], step))
                found[name] = max(found.get(name, MIN), limit)
        return found

    def window(self, left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:  # noqa: ARG002
        return None

    def promised(
        self, side: int, own: Mapping[str, int], other: Mapping[str, int]
    ) -> dict[str, int]:
        found = dict.fromkeys(self.columns(side), MIN)
        for bound in self.bounds:
            reach = bound.before if side == LEFT else bound.after
            mark, name = other[self._column(bound, 1 - side)], self._column(bound, side)
            promise = (
                MIN
                if mark == MIN or (reach is None and mark != MAX)
                else int(saturating_add(mark, -(reach or 0)))
            )
            found[name] = max(found[name], promise)
        return {name: min(own[name], promise) for name, promise in found.items()}


@dataclass(frozen=True)
class WindowBounds:
    """Rows that share a window of a grid.

    Of all windows that hold two rows, the first is the first window of the later row: a window
    that holds both begins at or after it, and so does every window that ends after the later row.
    """

    assigner: Aligned
    shown: Assigner
    """Assigns the windows that inspection shows."""
    mains: tuple[str, str]

    @classmethod
    def of(cls, window: Window, mains: tuple[str, str]) -> WindowBounds:
        """The bounds of a window specification.

        Windows by difference that hold two rows are less than their size apart, and the first
        ends with the later row, so they are hopping windows that start at every tick.
        """
        shown = build(window)
        assigner = (
            HoppingAssigner(Hopping(window.size, 1)) if isinstance(window, ByDifference) else shown
        )
        assert isinstance(assigner, Aligned)  # noqa: S101 - the specification allows no other
        return cls(assigner, shown, mains)

    def columns(self, side: int) -> dict[str, str]:
        return {name: POSITION for name in self.mains[side : side + 1] if name != POSITION_MARK}

    def first_window(self, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first window that ends after each instant."""
        return self.assigner.first_window(at)

    def has_window(self, at: np.ndarray) -> np.ndarray:
        """Which instants are in a window at all."""
        if not self.assigner.has_gaps:
            return np.ones(len(at), bool)
        return self.assigner.last_end(at) > at

    def reach(self, side: int, times: Times) -> tuple[np.ndarray, np.ndarray]:  # noqa: ARG002
        at = times[POSITION]
        return self.first_window(at)[0], saturating_add(self.assigner.last_end(at), -1)

    def windows_of(self, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All windows of these instants, by start."""
        found = self.shown.assign(np.unique(at))
        bounds = np.unique(np.column_stack([found.start, found.end]), axis=0)
        return bounds[:, 0], bounds[:, 1]

    def holds(self, left: Times, right: Times) -> np.ndarray | None:  # noqa: ARG002
        return None

    def limits(self, side: int, marks: Mapping[str, int]) -> dict[str, int]:
        return {POSITION: self._open_from(marks[self.mains[1 - side]])}

    def _open_from(self, mark: int) -> int:
        """The start of the first window that a watermark has not completed."""
        return mark if mark in (MIN, MAX) else int(self.first_window(np.array([mark]))[0][0])

    def window(self, left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        return self.first_window(np.maximum(left, right))

    def promised(
        self, side: int, own: Mapping[str, int], other: Mapping[str, int]
    ) -> dict[str, int]:
        least = min(own[self.mains[side]], other[self.mains[1 - side]])
        # Between windows no pair is expected before the next one starts, but late rows of the last
        # one may still come.
        return {self.mains[side]: min(least, self._open_from(least))}


def match_bounds(spec: JoinSpec) -> MatchBounds:
    """The bounds of a join within times or in windows of a grid."""
    mains = (spec.left.time or "", spec.right.time or "")
    if isinstance(spec.window, Window):
        if not spec.is_timed(LEFT):
            mains = (POSITION_MARK, POSITION_MARK)
        return WindowBounds.of(spec.window, mains)
    return TimeBounds(spec.bounds, mains)
