"""Aggregation folds the marks of all live writers into watermarks: a time that all of them have
passed, and a cut that all of them have reached.

A writer takes part as long as its mark is above the last watermark. One that is behind holds time
back until it was seen silent for the timeout; then it is forgotten, and its next mark brings it
back. Time and cut never go back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate.kernel.streams.cuts import Segments
from tidegate.kernel.streams.writer_marks import Mark, Marks


@dataclass(frozen=True)
class StreamMark:
    """A watermark of a stream: up to the cut everything before `time` was written, and nothing
    noted by then is beyond `upper`.
    """

    time: int
    upper: int
    cut: Mapping[str, int]


def takes_part(previous: int | None, time: int) -> bool:
    """Whether a writer with this mark brings time forward."""
    return previous is None or time > previous


@dataclass
class Aggregation:
    """The rounds of one stream's controller."""

    timeout: int
    last: StreamMark | None = None
    _silent: dict[str, tuple[Mark, int]] = field(default_factory=dict)
    """Writers that are behind, with the mark that they were seen with first, and when that was."""

    def is_active(self, writer: str, mark: Mark, now: int) -> bool:
        """Whether time waits for a writer: it takes part, or lives and has not been silent for too
        long.
        """
        previous = None if self.last is None else self.last.time
        if takes_part(previous, mark.time):
            self._silent.pop(writer, None)
            return True
        known = self._silent.get(writer)
        if known is None or known[0] != mark:
            known = self._silent[writer] = (mark, now)
        return mark.alive and now - known[1] < self.timeout

    def compute(self, marks: Marks, segments: Segments, now: int) -> StreamMark | None:
        """One round at this clock: the new watermark, or None; writers that are neither waited for
        nor take part are forgotten.
        """
        previous = None if self.last is None else self.last.time
        for writer, mark in list(marks.by_writer.items()):
            if not self.is_active(writer, mark, now):
                marks.remove(writer, mark)
                del self._silent[writer]
        live = marks.by_writer.values()
        if not live or not all(takes_part(previous, mark.time) for mark in live):
            return None
        positions = [
            *(mark.position for mark in live),
            *([] if self.last is None else [self.last.cut]),
        ]
        self.last = StreamMark(
            min(mark.time for mark in live),
            max(mark.time for mark in live),
            segments.upper_bound(positions),
        )
        return self.last
