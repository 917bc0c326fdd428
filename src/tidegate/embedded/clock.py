"""The clock of an embedded operator: the only place of this runtime that reads the machine's."""

from __future__ import annotations

import time

from tidegate.instants import Instant, instant


class Clock:
    """The clock of the machine, or a manual clock that moves only with the calls."""

    def __init__(self, start: int | None) -> None:
        """A manual clock that starts at `start`; the clock of the machine if that is None."""
        self.is_read = start is None
        self.start = wall_clock() if start is None else start

    def at(self, now: Instant | None, current: int) -> int:
        """The instant of a call: `now` if given, else the machine's clock or the `current` one."""
        if now is not None:
            return instant(now)
        return wall_clock() if self.is_read else current


def wall_clock() -> int:
    """The clock of this machine, in microseconds."""
    return time.time_ns() // 1_000
