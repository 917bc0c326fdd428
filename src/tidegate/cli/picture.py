"""A diagram of event time against processing time, as text and as PNG.

It shows when events arrived, the watermark, and the panes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from tidegate.errors import MissingExtraError

_MARKS = {"early": "e", "on_time": "O", "late": "L"}
_COLOURS = {"early": "#7fb3d5", "on_time": "#1e8449", "late": "#ca6f1e"}


@dataclass(frozen=True)
class Moment:
    """One micro-batch."""

    clock: datetime
    events: list[datetime]
    """Event times that arrived; those outside the diagram are omitted."""
    watermark: datetime | None
    panes: list[tuple[datetime, datetime, str]] = field(default_factory=list)
    """Windows that fired, with their timing."""


@dataclass(frozen=True)
class Span:
    """The event times that a diagram covers."""

    start: datetime
    end: datetime

    def share(self, moment: datetime) -> float:
        """The relative position of an instant, from 0 to 1."""
        return (moment - self.start) / (self.end - self.start)


def as_text(moments: Sequence[Moment], span: Span, width: int = 84) -> list[str]:
    """A line per micro-batch, event time to the right.

    `.` is an event, `|` the watermark; the line below has the windows that fired.
    """

    def column(moment: datetime) -> int:
        return min(width - 1, max(0, int(span.share(moment) * width)))

    ticks = [" "] * width
    marks = sorted(
        {
            moment
            for given in moments
            for start, end, _ in given.panes
            for moment in (start, end)
            if span.start <= moment < span.end
        }
    )
    for moment in marks:
        ticks[column(moment) : column(moment) + 5] = list(f"{moment:%H:%M}")
    lines = [" " * 10 + "".join(ticks[:width]).rstrip()]
    for given in moments:
        cells = [" "] * width
        for event in given.events:
            if span.start <= event < span.end:
                cells[column(event)] = "." if cells[column(event)] == " " else ":"
        if given.watermark is not None and span.start <= given.watermark <= span.end:
            cells[column(given.watermark)] = "|"
        lines.append(f"{given.clock:%H:%M:%S}  {''.join(cells)}".rstrip())
        fired = [" "] * width
        for start, end, timing in given.panes:
            left, right = column(start), max(column(start) + 1, column(end) - 1)
            fired[left:right] = list((f"<{_MARKS[timing]}" + "-" * width)[: right - left])
            fired[right - 1] = ">"
        if given.panes:
            lines.append(" " * 10 + "".join(fired[:width]).rstrip())
    return lines


def as_png(moments: Sequence[Moment], span: Span, path: Path) -> None:
    """The same diagram as a PNG image."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise MissingExtraError("matplotlib", "plot", "a picture") from None
    mpl.use("Agg")
    from matplotlib import dates
    from matplotlib import pyplot as plt

    # The type stubs allow only numbers on axes; instants work too.
    axes: Any
    figure, axes = plt.subplots(figsize=(11, 6.5))
    formatter: Any = dates.DateFormatter
    for timing, colour in _COLOURS.items():
        label: str | None = f"{timing.replace('_', '-')} pane"
        for given in moments:
            for start, end, came in given.panes:
                if came == timing:
                    axes.plot(
                        [start, end],
                        [given.clock, given.clock],
                        color=colour,
                        linewidth=7,
                        alpha=0.75,
                        solid_capstyle="butt",
                        label=label,
                    )
                    label = None
    points = [
        (event, given.clock)
        for given in moments
        for event in given.events
        if span.start <= event < span.end
    ]
    axes.scatter(
        [event for event, _ in points],
        [clock for _, clock in points],
        s=8,
        color="#34495e",
        label="event",
        zorder=3,
    )
    known = [(given.watermark, given.clock) for given in moments if given.watermark is not None]
    axes.step(
        [mark for mark, _ in known],
        [clock for _, clock in known],
        where="post",
        color="#c0392b",
        linewidth=2,
        label="watermark",
        zorder=4,
    )
    axes.set_xlim(span.start, span.end)
    axes.set_xlabel("event time")
    axes.set_ylabel("processing time")
    axes.xaxis.set_major_formatter(formatter("%H:%M:%S"))
    axes.yaxis.set_major_formatter(formatter("%H:%M:%S"))
    axes.grid(alpha=0.2)
    axes.legend(loc="upper left")
    axes.set_title("Clicks per user and minute: when they arrived, and when panes were emitted")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
