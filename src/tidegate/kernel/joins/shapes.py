"""Shapes say which rows may meet: for a row of one side the range of positions that its partners
have, and until when they are waited for.

A shape knows sides by number (0 is left), and time columns by the names that buffers give them:
`at` is the one that ranges are on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tidegate.instants import MAX, MIN, saturating_add
from tidegate.kernel.frame import constant
from tidegate.spec.join import LEFT, RIGHT, Within
from tidegate.spec.windows import Hopping, Tumbling

Times = Mapping[str, np.ndarray]
AT = "at"


class Shape(Protocol):
    """How rows meet."""

    def columns(self, side: int) -> dict[str, str]:
        """By time column of the input, the name that it has in buffers."""
        ...

    def reach(self, side: int, times: Times) -> tuple[np.ndarray, np.ndarray]:
        """The first and the last position that a partner of each row can have."""
        ...

    def holds(self, left: Times, right: Times) -> np.ndarray | None:
        """Which of the pairs in reach of each other meet; None where all do."""
        ...

    def limits(self, side: int, marks: Mapping[str, int]) -> dict[str, int]:
        """The times of a side below which no partner is to be expected, under the watermarks of the
        other side's columns; any of them decides.
        """
        ...

    def window(self, left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """The first window that holds both rows of a pair; None where rows do not meet in
        windows.
        """
        ...

    def promised(
        self, side: int, own: Mapping[str, int], other: Mapping[str, int]
    ) -> dict[str, int]:
        """By time column of the input, the time that no pair that is yet to come is below."""
        ...


@dataclass(frozen=True)
class BoundShape:
    """Times are within bounds of each other; ranges are on the narrowest, and the others are looked
    at pair by pair.
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
        return {name: AT if name == first else f"{AT}.{name}" for name in used}

    def reach(self, side: int, times: Times) -> tuple[np.ndarray, np.ndarray]:
        low, high, at = self.narrowest.low, self.narrowest.high, times[AT]
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
class WindowShape:
    """Rows meet that share a window; windows are aligned."""

    size: int
    slide: int
    offset: int
    mains: tuple[str, str]

    @classmethod
    def of(cls, window: Tumbling | Hopping, mains: tuple[str, str]) -> WindowShape:
        return cls(
            window.size,
            window.slide if isinstance(window, Hopping) else window.size,
            window.offset,
            mains,
        )

    def columns(self, side: int) -> dict[str, str]:
        return {self.mains[side]: AT}

    def first_start(self, at: np.ndarray) -> np.ndarray:
        """The start of the first window that ends after an instant."""
        return self._aligned(at, -self.size) + self.slide

    def _aligned(self, at: np.ndarray, step: int) -> np.ndarray:
        room = 4 * (self.size + self.slide)
        base = np.clip(at, MIN + room, MAX - room) + (step - self.offset)
        return base // self.slide * self.slide + self.offset

    def has_window(self, at: np.ndarray) -> np.ndarray:
        """Which rows are in a window at all."""
        return self._aligned(at, 0) + self.size > at

    def reach(self, side: int, times: Times) -> tuple[np.ndarray, np.ndarray]:  # noqa: ARG002
        return self.first_start(times[AT]), self._aligned(times[AT], 0) + (self.size - 1)

    def windows_of(self, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All windows that hold one of these instants, by start."""
        first, last = self.first_start(at), self._aligned(at, 0)
        counts = (last - first) // self.slide + 1
        counts = np.maximum(counts, 0)
        step = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        start = np.unique(np.repeat(first, counts) + step * self.slide)
        return start, start + self.size

    def holds(self, left: Times, right: Times) -> np.ndarray | None:  # noqa: ARG002
        return None

    def limits(self, side: int, marks: Mapping[str, int]) -> dict[str, int]:
        return {AT: self._open_from(marks[self.mains[1 - side]])}

    def _open_from(self, mark: int) -> int:
        """The start of the first window that a watermark has not completed."""
        return mark if mark in (MIN, MAX) else int(self.first_start(np.array([mark]))[0])

    def window(self, left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        start = self.first_start(np.maximum(left, right))
        return start, start + self.size

    def promised(
        self, side: int, own: Mapping[str, int], other: Mapping[str, int]
    ) -> dict[str, int]:
        least = min(own[self.mains[side]], other[self.mains[1 - side]])
        # In a gap between windows nothing is to be expected before the next one, but what was late
        # in the last one may still come.
        return {self.mains[side]: min(least, self._open_from(least))}
