"""Two stacks: shared merges of neighbouring windows.

A window over many slices costs a few merges instead of one per slice. Windows have ascending
bounds, so slices enter at one end and leave at the other: a queue, kept as two stacks. The back is
one aggregate of all slices that entered since the last turn. The front holds aggregates from each
slice up to the turn, so that the first slice leaves by dropping its aggregate. When the front is
used up, the back is turned into a new one. To bound memory, front aggregates are made for one chunk
of slices at a time, from an aggregate at the end of each chunk.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from math import isqrt

from tidegate.kernel.frame import Frame
from tidegate.operators.aggregate.slices import Bounds

Merge = Callable[[Sequence[Frame]], Frame]


class TwoStacks:
    """The merges of a sequence of windows with ascending bounds."""

    def __init__(self, merge: Merge, frames: Callable[[Bounds], list[Frame]]) -> None:
        self._merge = merge
        self._frames = frames
        self._front: list[Bounds] = []
        self._fine: dict[Bounds, list[Frame]] = {}
        self._coarse: dict[Bounds, list[Frame]] = {}
        self._chunk = 1
        self._back: list[Bounds] = []
        self._back_frames: list[Frame] = []

    def window(self, pieces: Sequence[Bounds]) -> Frame:
        """The merge of the slices of the next window, which are sorted and not empty."""
        first = pieces[0]
        known = set(self._front) | set(self._back)
        for piece in pieces:
            if piece not in known:
                self._back.append(piece)
                self._back_frames = [self._merge([*self._back_frames, *self._frames(piece)])]
        self._front = self._front[bisect_left(self._front, first) :]
        # The back cannot drop a single slice, and a slice that arrived late is in the back.
        if not self._front or min(self._back, default=first) < first:
            self._turn(first)
        return self._merge([*self._aggregate(0), *self._back_frames])

    def patch(self, piece: Bounds, frame: Frame) -> None:
        """Add rows to a slice that is already part of aggregates."""
        if piece in self._back:
            self._back_frames.append(frame)
        for start, frames in self._fine.items():
            if start <= piece and piece in self._front:
                frames.append(frame)
        for chunk_end, frames in self._coarse.items():
            if chunk_end <= piece and piece in self._front:
                frames.append(frame)

    def _turn(self, first: Bounds) -> None:
        """Turn the back into the front, without slices that no window needs any more."""
        self._front = [piece for piece in sorted([*self._front, *self._back]) if piece >= first]
        self._back, self._back_frames, self._fine, self._coarse = [], [], {}, {}
        self._chunk = max(1, isqrt(len(self._front)))
        tail: list[Frame] = []
        # From the end: the aggregate at the start of a chunk is stored for the chunk before it.
        for at in range(len(self._front) - 1, -1, -1):
            tail = [self._merge([*self._frames(self._front[at]), *tail])]
            if (len(self._front) - at) % self._chunk == 0:
                self._coarse[self._front[at]] = list(tail)
        self._fine = {self._front[0]: tail} if self._front else {}

    def _aggregate(self, at: int) -> list[Frame]:
        """The merge of the front from one slice on."""
        piece = self._front[at]
        if piece in self._fine:
            return self._fine[piece]
        if piece in self._coarse:
            return self._coarse[piece]
        self._make_chunk(at)
        return self._fine[piece]

    def _make_chunk(self, at: int) -> None:
        """Make the aggregates from one slice up to the next stored one.

        Aggregates of earlier slices are dropped.
        """
        until = next(
            (i for i in range(at, len(self._front)) if self._front[i] in self._coarse),
            len(self._front),
        )
        tail = self._coarse[self._front[until]] if until < len(self._front) else []
        self._fine = {}
        for i in range(until - 1, at - 1, -1):
            tail = [self._merge([*self._frames(self._front[i]), *tail])]
            self._fine[self._front[i]] = list(tail)
