"""The cell of a writer holds its mark.

Compare-and-swap keeps a stale mark from replacing a newer one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.kernel.streams.segments import Position, Segments
from tidegate.kernel.streams.watermarks import Marks
from tidegate.streams.store import Cell, Conflict, Swap
from tidegate.streams.stream import MARKS, Stream, mark_of

_NEW = Cell(
    {"time": None, "position": {}, "alive": True, "events": 0, "reached": {}, "last": None}, 0
)


class WriterCell:
    """Cell of one writer: its mark, and the count, position and id of its transactions."""

    def __init__(self, stream: Stream, writer: str) -> None:
        self._stream, self._writer, self.key = stream, writer, f"{MARKS}{writer}"
        self._kept: Cell | None = None
        """The cell after the last change made here.

        Avoids a read while no other process changes it.
        """

    def read(self) -> Cell:
        return self._stream.store.cell(self._stream.name, self.key) or _NEW

    def note(self, time: int, position: Position, segments: Segments) -> bool:
        """Note a time at a position, unless it goes back; returns whether it was noted."""
        while True:
            cell, self._kept = self._kept or self.read(), None
            if goes_back(cell.document, time) and goes_back(self.read().document, time):
                return False
            try:
                self._swap(
                    noted(cell.document, self._writer, time, position, segments), cell.version
                )
            except Conflict:
                continue
            return True

    def shut_down(self) -> None:
        """Mark the writer as ended; its last mark stays until the watermark has passed it."""
        while (cell := self.read()).version and cell.document["alive"]:
            try:
                self._swap({**cell.document, "alive": False}, cell.version)
            except Conflict:
                continue
            return

    def _swap(self, document: Any, version: int) -> None:
        self._kept = Cell(
            document, self._stream.store.swap(self._stream.name, Swap(self.key, document, version))
        )


def goes_back(document: Mapping[str, Any], time: int) -> bool:
    """Whether a time is before the mark of the writer; such a time is not noted."""
    former = mark_of(document)
    return former is not None and time < former.time


def noted(
    document: Mapping[str, Any], writer: str, time: int, position: Position, segments: Segments
) -> dict[str, Any]:
    """The cell document after a writer has noted a time."""
    former = mark_of(document)
    marks = Marks({} if former is None else {writer: former})
    marks.note(writer, time, position)
    mark = marks.by_writer[writer]
    return {
        **document,
        "time": mark.time,
        "position": segments.without_covered(mark.position),
        "alive": mark.alive,
    }


def committed(
    document: Mapping[str, Any],
    writer: str,
    time: int | None,
    events: int,
    position: Position,
    segments: Segments,
) -> dict[str, Any]:
    """The cell document after a transaction; times noted later cover all earlier commits."""
    reached = segments.without_covered({**document["reached"], **position})
    counted = {**document, "events": document["events"] + events, "reached": reached}
    return counted if time is None else noted(counted, writer, time, reached, segments)
