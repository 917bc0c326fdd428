"""The clock of an embedded operator: the only place of this runtime that reads the machine's.

The wall clock may jump: it is set, corrected by NTP, read wrongly once, or goes on while the
machine is suspended. A clock that followed it at once would fire too early, and one that waited for
it after a step back would not fire at all. So `Clock` measures time by the steady clock, which no
one sets, and follows the wall clock in three ways: a small step forward at once, a large one if it
lasts, and a step back by running at half speed until the wall clock is level.
"""

from __future__ import annotations

import time

from tidegate.instants import Instant, instant

FOLLOWED = 60_000_000
"""The largest step forward of the wall clock that is followed at once, in microseconds."""
CONFIRMED = 10_000_000
"""How long a larger step must last before it is followed, in microseconds."""
UNNOTICED = 1_000_000
"""The largest step that counts as passing time for the idleness of sources, in microseconds."""


class Clock:
    """The clock of the machine, or a manual clock that moves only with the calls."""

    def __init__(self, start: int | None) -> None:
        """A manual clock that starts at `start`; the clock of the machine if that is None."""
        self.is_read = start is None
        self.start = wall_clock() if start is None else start
        self._now = self.start
        self._read_at = steady_clock()
        self._ahead: tuple[int, int] | None = None
        """A large step that is not followed yet: the steady clock when it was first seen, and how
        far the wall clock was ahead of the steady one.
        """
        self._skipped = 0

    def at(self, now: Instant | None, current: int) -> int:
        """The instant of a call: `now` if given, else the machine's clock or the `current` one.

        The clock of the machine is never before `current`, and always moves on from there.
        """
        if now is not None:
            return instant(now)
        return self._read(current) if self.is_read else current

    def skipped(self) -> int:
        """The time since the last call that the clock has jumped over, in microseconds."""
        found, self._skipped = self._skipped, 0
        return found

    def _read(self, current: int) -> int:
        wall, steady = wall_clock(), steady_clock()
        elapsed, self._read_at = steady - self._read_at, steady
        before = max(self._now, current)
        step = wall - before - elapsed
        if step > FOLLOWED and not self._lasts(wall - steady, steady):
            self._now = before + elapsed
        elif step >= 0:
            self._now, self._ahead = wall, None
            self._skipped += step if step > UNNOTICED else 0
        else:
            self._now, self._ahead = max(wall, before + elapsed // 2), None
        return self._now

    def _lasts(self, distance: int, steady: int) -> bool:
        """Whether a step to this distance between the clocks has been seen for long enough."""
        if self._ahead is None or abs(distance - self._ahead[1]) > FOLLOWED:
            self._ahead = steady, distance
        return steady - self._ahead[0] >= CONFIRMED


def wall_clock() -> int:
    """The clock of this machine, in microseconds."""
    return time.time_ns() // 1_000


def steady_clock() -> int:
    """A clock of this machine that is never set and stands still during a suspend, likewise."""
    return time.monotonic_ns() // 1_000
