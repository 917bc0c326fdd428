"""The watermark log of a stream: one numbered cell per watermark, truncated with the stream."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tidegate.kernel.streams.segments import OVERLAPPING, PASSED, Position, Segments
from tidegate.kernel.streams.watermarks import StreamMark
from tidegate.streams.store import Conflict, Store, Swap

PREFIX = "watermark#"


def cell_of(number: int) -> str:
    """The cell key of a watermark, by its number from 1 on."""
    return f"{PREFIX}{number:012d}"


class WatermarkLog:
    """Watermarks of a stream by number, as of the last `refresh`."""

    def __init__(self, store: Store, stream: str) -> None:
        self._store, self._stream = store, stream
        self.marks: dict[int, StreamMark] = {}
        self._forgotten = False

    @property
    def newest(self) -> int:
        """The number of the newest known watermark; 0 if there is none."""
        return max(self.marks, default=0)

    def refresh(self) -> WatermarkLog:
        """Read new watermarks, or all of them if the stream was truncated past the known ones."""
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
        """Append a watermark; raises `Conflict` if another controller has appended one."""
        number = self.newest + 1
        document = {"time": mark.time, "upper": mark.upper, "cut": dict(mark.cut)}
        self._store.swap(self._stream, Swap(cell_of(number), document, 0))
        self.marks[number] = mark

    def passed(self, position: Position, segments: Segments) -> int:
        """The number of the newest watermark whose cut a position has passed; 0 if none."""
        numbers = sorted(self.marks)
        count = self._count(numbers, position, segments, {PASSED})
        return numbers[count - 1] if count else 0

    def around(self, position: Position, segments: Segments) -> list[StreamMark]:
        """The watermarks that determine the time window at a position.

        Drops earlier ones from memory; a position that goes back reads them again.
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
        """The number of leading watermarks for which the position compares as one of `places`.

        Cuts never go back, so these watermarks are a prefix.
        """
        return bisect_left(
            numbers,
            True,
            key=lambda number: segments.compare(position, self.marks[number].cut) not in places,
        )

    def forget_before(self, number: int) -> None:
        """Drop watermarks before this number from memory."""
        kept = {one: mark for one, mark in self.marks.items() if one >= number}
        self._forgotten = self._forgotten or len(kept) < len(self.marks)
        self.marks = kept

    def truncate(self, head: Position, segments: Segments) -> None:
        """Delete watermarks that every reader has passed, except the newest.

        The newest one is the time at the head of the stream.
        """
        last = self.refresh().passed(head, segments)
        for key, cell in self._store.cells(self._stream, PREFIX).items():
            if key < cell_of(last):
                # Another process may have deleted it.
                with suppress(Conflict):
                    self._store.swap(self._stream, Swap(key, None, cell.version))


def _mark(document: Mapping[str, Any]) -> StreamMark:
    return StreamMark(document["time"], document["upper"], document["cut"])
