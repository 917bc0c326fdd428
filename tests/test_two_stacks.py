"""Shared merges against merging every slice of every window: the same rows, for any windows with
ascending bounds and any late patches.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tidegate.kernel.frame import Frame, concat_frames
from tidegate.operators.aggregate.two_stacks import Bounds, TwoStacks

EDGE = 3


def frame(values: Sequence[int]) -> Frame:
    return Frame.of({"x": np.array(values, np.int64)})


def merge(frames: Sequence[Frame]) -> Frame:
    """A merge that forgets nothing: every row of every frame."""
    whole = concat_frames(list(frames))
    return whole.take(np.argsort(whole.ints("x"), kind="stable"))


class Slices:
    """Slices that hold numbered rows, so that a row which is lost or counted twice shows."""

    def __init__(self) -> None:
        self.content: dict[Bounds, list[Frame]] = {}
        self.shared = TwoStacks(self.merge, lambda piece: self.content[piece])
        self.number = 0
        self.merged = 0

    def merge(self, frames: Sequence[Frame]) -> Frame:
        self.merged += len(frames)
        return merge(frames)

    def add(self, at: int, rows: int) -> None:
        piece = (EDGE * at, EDGE * (at + 1))
        new = frame(range(self.number, self.number + rows))
        self.number += rows
        self.content.setdefault(piece, []).append(new)
        self.shared.patch(piece, new)

    def check(self, first: int, last: int) -> None:
        """A window over the slices from one to the other; those before it are over for good."""
        pieces = [
            piece for piece in sorted(self.content) if EDGE * first <= piece[0] <= EDGE * last
        ]
        if pieces:
            wanted = sorted(
                x
                for piece in pieces
                for part in self.content[piece]
                for x in part.ints("x").tolist()
            )
            assert self.shared.window(pieces).ints("x").tolist() == wanted

    def drop_before(self, first: int) -> None:
        for piece in [p for p in self.content if p[0] < EDGE * first]:
            del self.content[piece]


@st.composite
def lives(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    """Rows come for slices in any order; windows slide on, each beginning and ending no earlier
    than the one before.
    """
    steps, first, last = [], 0, draw(st.integers(0, 6))
    for _ in range(draw(st.integers(1, 12))):
        for _ in range(draw(st.integers(0, 4))):
            steps.append(("add", draw(st.integers(first, last + 5)), draw(st.integers(1, 3))))
        steps.append(("window", first, last))
        move = draw(st.integers(0, 3))
        grow = draw(st.integers(0, 3))
        last += grow
        first = min(first + move, last)
        if draw(st.booleans()):
            steps.append(("drop", first, 0))
    return steps


@given(lives())
def test_oracle_windows_with_ascending_bounds(steps):
    slices = Slices()
    for verb, one, two in steps:
        {
            "add": slices.add,
            "window": slices.check,
            "drop": lambda first, _: slices.drop_before(first),
        }[verb](one, two)


@given(
    st.integers(1, 12),
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 39), st.integers(0, 39)), max_size=30),
)
def test_oracle_sliding_windows_with_late_rows(length, slide, late):
    """Windows of a fixed number of slices; before the window numbered so, one more row comes for a
    slice that may be merged already.
    """
    slices = Slices()
    for at in range(40):
        slices.add(at, 1)
    for first in range(0, 40 - length, slide):
        slices.drop_before(first)
        for when, at in late:
            if when == first and at >= first:
                slices.add(at, 1)
        slices.check(first, first + length - 1)


def test_rows_for_a_slice_that_no_window_has_seen_come_with_its_first_window():
    slices = Slices()
    slices.add(0, 1)
    slices.check(0, 2)
    slices.add(2, 1)
    slices.add(2, 1)
    slices.check(0, 2)
    slices.check(1, 3)


def test_a_slice_that_appears_between_merged_ones_is_not_forgotten():
    slices = Slices()
    for at in (0, 1, 3, 4, 6):
        slices.add(at, 1)
    slices.check(0, 6)
    slices.add(2, 1)
    slices.add(5, 1)
    for first in range(6):
        slices.check(first, 6)


def test_a_window_after_a_gap_begins_anew():
    slices = Slices()
    for at in (0, 1, 2, 20, 21):
        slices.add(at, 2)
    slices.check(0, 2)
    slices.drop_before(20)
    slices.check(20, 21)


def test_a_long_window_that_slides_costs_a_few_merges_each_time():
    """A window over 100 slices that slides by one: not a hundred frames a window."""
    slices = Slices()
    for at in range(400):
        slices.add(at, 1)
    for first in range(300):
        slices.check(first, first + 99)
    assert slices.merged <= 300 * 12
