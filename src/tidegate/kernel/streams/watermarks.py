"""Watermarks of a stream: marks of writers, their aggregation, and the time window of a reader.

A writer's mark is the last time that it noted, with its position at that moment. The aggregation
combines the marks of all live writers into watermarks: a time that all of them have passed, and
a cut that all of them have reached. A writer takes part while its mark is above the last
watermark. One that is behind holds the watermark back until it has been silent for the timeout;
then it is removed, and its next mark adds it again. Neither time nor cut goes back.

A reader is between the last watermark that its group has passed and the first one ahead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tidegate.errors import WatermarkError
from tidegate.kernel.streams.segments import BEFORE, PASSED, Position, Segments


@dataclass(frozen=True)
class Mark:
    """At this position, a writer has written all events before this time."""

    time: int
    position: Mapping[str, int] = field(default_factory=dict)
    alive: bool = True
    """Whether the writer is still running; one that has shut down holds nothing back."""


@dataclass(frozen=True)
class Commit:
    """A committed transaction with the timestamp of its writer."""

    writer: str
    time: int | None


@dataclass
class Marks:
    """The marks of all writers of a stream."""

    by_writer: dict[str, Mark] = field(default_factory=dict)
    written: int = 0
    """The number of marks written."""

    def __contains__(self, writer: str) -> bool:
        return writer in self.by_writer

    def get(self, writer: str) -> Mark | None:
        return self.by_writer.get(writer)

    def note(self, writer: str, time: int, position: Position) -> bool:
        """Note a time for a writer; a time that goes back is ignored: the mark stays.

        Returns whether the time is now the mark.
        """
        former = self.by_writer.get(writer)
        if former is not None and time < former.time:
            return False
        known = {} if former is None else former.position
        furthest = {name: max(at, known.get(name, at)) for name, at in position.items()}
        self.by_writer[writer] = Mark(time, {**known, **furthest})
        self.written += 1
        return True

    def commit(self, commits: Iterable[Commit], position: Position) -> None:
        """Note transactions committed together up to a position.

        The highest time of each writer becomes its mark.
        """
        times: dict[str, int] = {}
        for commit in commits:
            if commit.time is not None:
                times[commit.writer] = max(commit.time, times.get(commit.writer, commit.time))
        for writer, time in times.items():
            former = self.by_writer.get(writer)
            self.note(writer, time if former is None else max(time, former.time), position)

    def shut_down(self, writer: str) -> None:
        """Mark a writer as ended: it holds nothing back until its next mark."""
        if writer in self.by_writer:
            self.by_writer[writer] = replace(self.by_writer[writer], alive=False)

    def remove(self, writer: str, expected: Mark) -> None:
        """Remove a writer unless its mark has changed."""
        if self.by_writer.get(writer) != expected:
            raise WatermarkError(f"the mark of the writer `{writer}` has changed, so it stays")
        del self.by_writer[writer]


@dataclass(frozen=True)
class StreamMark:
    """A watermark of a stream: up to `cut`, all events before `time` are written.

    No time noted up to the cut is beyond `upper`.
    """

    time: int
    upper: int
    cut: Mapping[str, int]


def takes_part(previous: int | None, time: int) -> bool:
    """Whether a writer with this mark advances the watermark."""
    return previous is None or time > previous


@dataclass
class Aggregation:
    """The rounds of the controller of one stream."""

    timeout: int
    last: StreamMark | None = None
    _silent: dict[str, tuple[Mark, int]] = field(default_factory=dict)
    """Writers that are behind: the mark they were first seen with, and when."""

    def is_active(self, writer: str, mark: Mark, now: int) -> bool:
        """Whether a writer counts: ahead, or alive and not silent beyond the timeout."""
        previous = None if self.last is None else self.last.time
        if takes_part(previous, mark.time):
            self._silent.pop(writer, None)
            return True
        known = self._silent.get(writer)
        if known is None or known[0] != mark:
            known = self._silent[writer] = (mark, now)
        return mark.alive and now - known[1] < self.timeout

    def compute(self, marks: Marks, segments: Segments, now: int) -> StreamMark | None:
        """Run one round: returns the new watermark or None, and removes inactive writers."""
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


@dataclass(frozen=True)
class TimeWindow:
    """Bounds on the time of the events at a position; None if no watermark gives one."""

    lower: int | None = None
    upper: int | None = None


def time_window(
    position: Position | None, marks: Sequence[StreamMark], segments: Segments
) -> TimeWindow:
    """The time window at a position, from the watermarks of the stream in order.

    The upper bound is that of the first watermark ahead; if none is fully ahead, of the last one
    that overlaps the position.
    """
    if position is None:
        return TimeWindow()
    places = [segments.compare(position, mark.cut) for mark in marks]
    passed = [mark for mark, place in zip(marks, places, strict=True) if place == PASSED]
    ahead = [mark for mark, place in zip(marks, places, strict=True) if place == BEFORE]
    between = [
        mark for mark, place in zip(marks, places, strict=True) if place not in (PASSED, BEFORE)
    ]
    upper = ahead[0].upper if ahead else between[-1].upper if between else None
    return TimeWindow(passed[-1].time if passed else None, upper)
