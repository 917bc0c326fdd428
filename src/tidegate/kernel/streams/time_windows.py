"""Where a reader is in time: between the last watermark that its group has passed as a whole and
the first that is still ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.kernel.streams.aggregation import StreamMark
from tidegate.kernel.streams.cuts import BEFORE, PASSED, Position, Segments


@dataclass(frozen=True)
class TimeWindow:
    """Events here are of times from `lower` to `upper`; a bound is None where no writer is known
    there.
    """

    lower: int | None = None
    upper: int | None = None


def time_window(
    position: Position | None, marks: Sequence[StreamMark], segments: Segments
) -> TimeWindow:
    """The window of a group at a position, given the watermarks of the stream in their order.

    The upper bound is that of the first watermark ahead; where none is wholly ahead, of the last
    that is neither ahead nor passed.
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
