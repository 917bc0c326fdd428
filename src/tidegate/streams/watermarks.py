"""The watermarks of a stream: one cell each, numbered, and truncated with the stream."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tidegate.kernel.streams.aggregation import StreamMark
from tidegate.kernel.streams.cuts import OVERLAPPING, PASSED, Position, Segments
from tidegate.streams.store import Conflict, Store, Swap

PREFIX = "watermark#"


def cell_of(number: int) -> str:
    """The cell of the watermark with a number, counted from 1."""
    return f"{PREFIX}{number:012d}"


class WatermarkLog:
    """The watermarks of a stream as far as somebody has read them, by number; `refresh` brings what
    is new.
    """

    def __init__(self, store: Store, stream: str) -> None:
        self._store, self._stream = store, stream
        self.marks: dict[int, StreamMark] = {}
        self._forgotten = False

    @property
    def newest(self) -> int:
        """The number of the newest watermark that was read; 0 where there is none."""
        return max(self.marks, default=0)

    def refresh(self) -> WatermarkLog:
        """Read what is new, and all anew where the stream was truncated past what was read last."""
        last = self.newest
        if not last or self._store.cell(self._stream, cell_of(last)) is None:
            found = self._store.cells(self._stream, PREFIX)
            self.marks = {
                int(key.removeprefix(PREFIX)): _mark(cell.document) for key, cell in found.items()
            }
            return self
        while cell := self._store.cell(self._stream, cell_of(last + 1)):
            last += 1
            self.marks[last] = _mark(cell.document)
        return self

    def publish(self, mark: StreamMark) -> None:
        """Add a watermark; `Conflict` where somebody else has added one meanwhile."""
        number = self.newest + 1
        document = {"time": mark.time, "upper": mark.upper, "cut": dict(mark.cut)}
        self._store.swap(self._stream, Swap(cell_of(number), document, 0))
        self.marks[number] = mark

    def passed(self, position: Position, segments: Segments) -> int:
        """The number of the newest watermark whose cut a position has passed; 0 where there is
        none.
        """
        numbers = sorted(self.marks)
        count = self._count(numbers, position, segments, {PASSED})
        return numbers[count - 1] if count else 0

    def around(self, position: Position, segments: Segments) -> list[StreamMark]:
        """Of the watermarks that were read those that tell the time at a position; earlier ones are
        forgotten until somebody goes back.
        """
        if self._forgotten and not self.passed(position, segments):
            self.marks, self._forgotten = {}, False
            self.refresh()
        numbers = sorted(self.marks)
        passed = self._count(numbers, position, segments, {PASSED})
        ahead = self._count(numbers, position, segments, {PASSED, OVERLAPPING})
        found = [
            self.marks[numbers[n]]
            for n in sorted({passed - 1, ahead - 1, ahead})
            if 0 <= n < len(numbers)
        ]
        if passed:
            self.forget_before(numbers[passed - 1])
        return found

    def _count(
        self, numbers: list[int], position: Position, segments: Segments, places: set[int]
    ) -> int:
        """How many watermarks, from the first on, a position is at one of these places to: cuts
        never go back, so neither does that.
        """
        return bisect_left(
            numbers,
            True,
            key=lambda number: segments.compare(position, self.marks[number].cut) not in places,
        )

    def forget_before(self, number: int) -> None:
        """Let go of what no position from here on asks for."""
        kept = {one: mark for one, mark in self.marks.items() if one >= number}
        self._forgotten = self._forgotten or len(kept) < len(self.marks)
        self.marks = kept

    def truncate(self, head: Position, segments: Segments) -> None:
        """Drop the watermarks that every reader has passed, but not the newest of them: it tells
        the time at the stream's begin.
        """
        last = self.refresh().passed(head, segments)
        for key, cell in self._store.cells(self._stream, PREFIX).items():
            if key < cell_of(last):
                # Somebody else may have dropped it meanwhile.
                with suppress(Conflict):
                    self._store.swap(self._stream, Swap(key, None, cell.version))


def _mark(document: Mapping[str, Any]) -> StreamMark:
    return StreamMark(document["time"], document["upper"], document["cut"])
