"""Evictor specifications: which messages of a window the function does not see, or does not see
again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from tidegate.errors import SpecError
from tidegate.instants import duration


@dataclass(frozen=True)
class EvictCount:
    """Keep the last `keep` messages."""

    keep: int
    after: bool = False

    def __post_init__(self) -> None:
        if self.keep < 0:
            raise SpecError(f"an evictor can't keep {self.keep} messages; it needs 0 or more")


@dataclass(frozen=True)
class EvictTime:
    """Keep the messages at most `span` older than the newest one."""

    span: int
    after: bool = False

    def __post_init__(self) -> None:
        if self.span < 0:
            raise SpecError(f"an evictor can't keep a span of {self.span}; it needs 0 or more")


@dataclass(frozen=True)
class EvictDelta:
    """Drop the messages whose `column` differs from that of the last message by `threshold` or
    more.
    """

    column: str
    threshold: float
    after: bool = False

    def __post_init__(self) -> None:
        if self.threshold < 0:
            raise SpecError(f"a delta threshold can't be negative, got {self.threshold}")


Evictor = EvictCount | EvictTime | EvictDelta


def evict_count(keep: int, *, after: bool = False) -> EvictCount:
    """Keep the last messages by number, before the function or after it."""
    return EvictCount(keep, after)


def evict_time(
    span: str | int | timedelta, *, after: bool = False, unit: str | None = None
) -> EvictTime:
    """Keep the newest messages by time, before the function or after it."""
    return EvictTime(duration(span, unit=unit), after)


def evict_delta(column: str, threshold: float, *, after: bool = False) -> EvictDelta:
    """Drop what is too far from the last message, before the function or after it."""
    return EvictDelta(column, threshold, after)
