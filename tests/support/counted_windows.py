"""Embedded operators that count events in windows of 10 microseconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tidegate as tg
from tidegate.kernel.watermarks.generators import Observed
from tidegate.spec.watermarks import Watermarks

Row = dict[str, Any]
Opener = Callable[[], Any]
FAR = 10**9


def panes(
    watermark: Watermarks | None,
    *,
    window: Any = None,
    lateness: int = 0,
    tolerance: int = FAR,
    **stream: Any,
) -> tg.Panes:
    """Tumbling windows of 10 us, counted."""
    made = tg.stream(**{"time": "ts", "partition": "p", "watermark": watermark, **stream})
    return counted(made, window, lateness, future_tolerance=f"{tolerance} us")


def counted(made: tg.Stream, window: Any = None, lateness: int = 0, **options: Any) -> tg.Panes:
    windowed = made.window(tg.tumbling(10, unit="us") if window is None else window).allow_lateness(
        lateness, unit="us"
    )
    return windowed.options(**{"future_tolerance": f"{FAR} us", **options}).aggregate(n=tg.count())


def run(watermark: Watermarks | None, **more: Any) -> tg.EmbeddedOperator:
    return panes(watermark, **more).embedded(now=0)


def rows(*times: int | None, p: str | None = "a", **more: Any) -> list[Row]:
    return [{"ts": time, "p": p, **more} for time in times]


def fired(op: tg.EmbeddedOperator) -> list[tuple[int, int]]:
    """The windows with their counts since the last call."""
    found = [(pane["window_start"], pane["n"]) for pane in op.get_result().panes.to_pylist()]
    op.flush()
    return found


def reasons(op: tg.EmbeddedOperator) -> list[tuple[Any, str]]:
    return [(row["ts"], row["reason"]) for row in op.get_result().late.to_pylist()]


def halfway(seen: Observed) -> Any:
    """Stays ten behind the newest event of all deliveries so far."""
    seen.state["newest"] = max(seen.state["newest"], int(seen.times.max()))
    return [seen.state["newest"] - 10] * len(seen.partitions)


def united(*marks: Watermarks | None, **stream: Any) -> tg.Panes:
    return counted(
        tg.union(
            *(
                tg.stream(**{"time": "ts", "partition": "p", "watermark": mark, **stream})
                for mark in marks
            )
        )
    )
