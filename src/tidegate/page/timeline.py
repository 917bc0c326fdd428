"""The past of a pipeline as a page shows it: bounded, whatever the rate and the uptime."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from tidegate.instants import MAX, MIN
from tidegate.operators.status import QueryStatus
from tidegate.page.feed import Moment, Reading

MAX_BARS, MAX_POINTS = 4000, 2000
MAX_MARKS, MAX_SAMPLES = 1200, 600
RATE_SPAN = 10_000_000
"""The last part of the clock over which the rate of rows is counted, in microseconds."""
SOURCES = (
    *("#8e6fa8", "#457b9d", "#b56576", "#588157", "#bc6c25", "#7209b7", "#3a86ff", "#8d99ae"),
)
"""The colours of the lines of sources."""
MAX_SOURCES = 24
"""The number of sources that have a line of their own."""


@dataclass
class Line:
    """Points of a line by clock; every second one of the older half is dropped when it is full."""

    limit: int
    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)

    def add(self, x: float, y: float) -> None:
        """Add a point; one that repeats the last two moves the last one."""
        if len(self.x) > 1 and self.y[-1] == y == self.y[-2]:
            self.x[-1] = x
            return
        self.x.append(x)
        self.y.append(y)
        if len(self.x) > self.limit:
            half = self.limit // 2
            self.x[:half] = self.x[:half:2]
            self.y[:half] = self.y[:half:2]


@dataclass(frozen=True)
class Sample:
    """Rates and sizes at one instant."""

    clock: int
    rate: float
    lag: float | None
    state_bytes: int
    windows: int
    phases: dict[str, float]


class Timeline:
    """Moments, watermarks and samples; safe to read while another thread adds readings."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.version = 0
        """Grows with each change."""
        self.status: QueryStatus | None = None
        self.error = ""
        self.moments: deque[Moment] = deque()
        self.watermark = Line(MAX_MARKS)
        """The watermark of the pipeline: x is the clock."""
        self.sources: dict[str, Line] = {}
        self.samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self._bars = self._points = 0
        self._counted: deque[tuple[int, int]] = deque()
        """The clock and the number of events of the last readings, for the rate."""

    def add(self, reading: Reading) -> None:
        """Take a reading."""
        with self.lock:
            self.version += 1
            self.error = reading.error
            for moment in reading.moments:
                self._add_moment(moment)
            if reading.status is not None:
                self._add_status(reading.status)

    def _add_moment(self, moment: Moment) -> None:
        if self.moments and moment.clock < self.moments[-1].clock:
            # Read out of order: a plot does not care, but lines do.
            moments = sorted([*self.moments, moment], key=lambda one: one.clock)
            self.moments = deque(moments)
        else:
            self.moments.append(moment)
            if moment.watermark is not None and not self._is_past(moment.clock):
                self.watermark.add(moment.clock, moment.watermark)
        self._bars += len(moment.bars)
        self._points += len(moment.late)
        while len(self.moments) > 1 and (self._bars > MAX_BARS or self._points > MAX_POINTS):
            oldest = self.moments.popleft()
            self._bars -= len(oldest.bars)
            self._points -= len(oldest.late)

    def _is_past(self, clock: float) -> bool:
        return bool(self.watermark.x) and clock < self.watermark.x[-1]

    def _add_status(self, status: QueryStatus) -> None:
        now = status.now
        if status.watermark is not None and status.watermark != MAX and not self._is_past(now):
            self.watermark.add(now, status.watermark)
        for source in status.sources:
            name = source.label
            # Those that hold the watermark back have a line of their own as long as possible.
            most = 2 * MAX_SOURCES if source.holds else MAX_SOURCES
            is_new = name not in self.sources
            if source.watermark is None or (is_new and len(self.sources) >= most):
                continue
            line = self.sources.setdefault(name, Line(MAX_MARKS // 4))
            if not line.x or now >= line.x[-1]:
                line.add(now, source.watermark)
        self._add_sample(status)
        self.status = status

    def _add_sample(self, status: QueryStatus) -> None:
        if self._counted and status.now <= self._counted[-1][0]:
            return
        rate = self._rate(status.now, status.counters.get("events", 0))
        self.samples.append(
            Sample(
                status.now,
                rate,
                None if status.lag is None else status.lag / 1e6,
                status.state_bytes,
                status.windows_open,
                {name: ms / 1000 for name, ms in status.phases.items()},
            )
        )

    def _rate(self, now: int, events: int) -> float:
        """Rows per second, over the last seconds: a batch counts all of its rows at once."""
        while len(self._counted) > 1 and self._counted[1][0] <= now - RATE_SPAN:
            self._counted.popleft()
        self._counted.append((now, events))
        clock, before = self._counted[0]
        return max(0, events - before) / ((now - clock) / 1e6) if now > clock else 0.0

    def colours(self) -> dict[str, str]:
        """The colour of the line of each source that has a name."""
        named = [name for name in self.sources if name]
        return {name: SOURCES[n % len(SOURCES)] for n, name in enumerate(named)}

    # Columns for the plot

    def bar_columns(self) -> dict[str, np.ndarray]:
        """All bars, with the clock and the batch of each."""
        found = [moment for moment in self.moments if len(moment.bars)]
        return {
            "start": _joined([moment.bars.start for moment in found]),
            "end": _joined([moment.bars.end for moment in found]),
            "timing": np.concatenate(
                [np.zeros(0, object), *(moment.bars.timing for moment in found)]
            ),
            "panes": _joined([moment.bars.panes for moment in found]),
            "clock": _repeated(found, [moment.clock for moment in found]),
            "batch": _repeated(
                found, [-1 if moment.batch is None else moment.batch for moment in found]
            ),
        }

    def late_columns(self) -> dict[str, np.ndarray]:
        """The event times and clocks of late rows."""
        found = [moment for moment in self.moments if len(moment.late)]
        return {
            "time": _joined([moment.late for moment in found]),
            "clock": np.repeat(
                np.array([moment.clock for moment in found], np.int64),
                [len(moment.late) for moment in found],
            ),
            "rows": np.repeat(
                np.array([moment.late_rows for moment in found], np.int64),
                [len(moment.late) for moment in found],
            ),
        }

    def waiting_columns(self) -> dict[str, np.ndarray]:
        """The windows that wait, at the clock now."""
        windows = () if self.status is None else self.status.waiting
        shown = [one for one in windows if one.start != MIN and one.end != MAX]
        now = 0 if self.status is None else self.status.now
        return {
            "start": np.array([one.start for one in shown], np.int64),
            "end": np.array([one.end for one in shown], np.int64),
            "keys": np.array([one.keys or 0 for one in shown], np.int64),
            "clock": np.full(len(shown), now, np.int64),
        }

    def clocks(self) -> tuple[int, int] | None:
        """The first and the last clock; None before the first reading."""
        known = [moment.clock for moment in self.moments]
        known += [int(x) for x in (self.watermark.x[:1] + self.watermark.x[-1:])]
        known += [] if self.status is None else [self.status.now]
        return (min(known), max(known)) if known else None


def _joined(columns: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int64), *columns])


def _repeated(found: list[Moment], values: list[int]) -> np.ndarray:
    return np.repeat(np.array(values, np.int64), [len(moment.bars) for moment in found])
