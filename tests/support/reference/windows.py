"""The windows of one element, computed the way one would on paper."""

from __future__ import annotations

from typing import Any

from tidegate.instants import MAX, MIN
from tidegate.spec.windows import (
    Axis,
    ByDifference,
    Cumulative,
    Global,
    Hopping,
    Session,
    Tumbling,
    Window,
)

Span = tuple[int, int]


def clamp(instant: int) -> int:
    """Instants beyond the ends of time are the ends of time."""
    return max(MIN, min(MAX, instant))


def span(start: int, end: int) -> Span:
    return clamp(start), clamp(end)


def aligned(window: Window, x: int) -> list[Span]:
    """The windows of an element at `x`, for windows that do not depend on other elements;
    ascending.
    """
    match window:
        case Tumbling():
            start = (x - window.offset) // window.size * window.size + window.offset
            return [span(start, start + window.size)]
        case Hopping():
            return hops(window, x)
        case Cumulative():
            return growing(window, x)
        case Global():
            return [(MIN, MAX)]
        case ByDifference():
            # All that events around it could open.
            return [span(start, start + window.size) for start in range(x - window.size + 1, x + 1)]
    raise AssertionError(window)


def hops(window: Hopping, x: int) -> list[Span]:
    """Go back from the last window that starts at or before `x` as long as they reach it."""
    start = (x - window.offset) // window.slide * window.slide + window.offset
    found = []
    while start + window.size > x:
        found.append(span(start, start + window.size))
        start -= window.slide
    return sorted(found)


def growing(window: Cumulative, x: int) -> list[Span]:
    """Every step of the period whose end is after `x`, and the whole period."""
    start = (x - window.offset) // window.size * window.size + window.offset
    ends = [*range(start + window.step, start + window.size, window.step), start + window.size]
    return [span(start, end) for end in ends if end > x]


def left_of(x: int, size: int) -> Span:
    """The window `(x - size, x]`."""
    return span(x - size + 1, x + 1)


def right_of(x: int, size: int) -> Span:
    """The window `(x, x + size]`."""
    return span(x + 1, x + size + 1)


def gap_of(window: Session, row: dict[str, Any]) -> int | None:
    """The gap of an element; None if it has no usable one."""
    gap = window.gap if window.gap_column is None else row[window.gap_column]
    return None if gap is None or gap < 0 else gap


def proto(window: Session, x: int, gap: int) -> Span:
    """The session that an element makes alone."""
    return span(x, x + gap + (1 if window.axis is Axis.OFFSET else 0))


def meet(touch: str, a: Span, b: Span) -> bool:
    """Whether two sessions are one; a point `[t, t]` holds the instant t."""
    if touch == "merge":
        return a[0] <= b[1] and b[0] <= a[1]
    early, late = sorted([a, b], key=lambda s: (s[0], -s[1]))
    return a == b or late[0] < early[1]


def union(spans: list[Span]) -> Span:
    return min(s[0] for s in spans), max(s[1] for s in spans)
