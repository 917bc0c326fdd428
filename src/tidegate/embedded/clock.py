"""The clock of an embedded operator: the only place of this runtime that reads the machine's."""

from __future__ import annotations

import time

from tidegate.instants import Instant, instant


class Clock:
    """The clock of an operator: that of the machine, or one that moves only where a call tells
    it.
    """

    def __init__(self, start: int | None) -> None:
        self.is_read = start is None
        self.start = wall_clock() if start is None else start

    def at(self, now: Instant | None, stands: int) -> int:
        """The instant that a call happens at: what was told, the clock of this machine, or where a
        told clock stands.
        """
        if now is not None:
            return instant(now)
        return wall_clock() if self.is_read else stands


def wall_clock() -> int:
    """The clock of this machine."""
    return time.time_ns() // 1_000
