"""Evictor specifications: which messages of a window are dropped before or after the function."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from tidegate.errors import SpecError
from tidegate.instants import duration, format_duration


@dataclass(frozen=True)
class EvictCount:
    """Keeps the last `keep` messages."""

    keep: int
    after: bool = False

    def __post_init__(self) -> None:
        if self.keep < 0:
            raise SpecError(f"`keep` of an evictor must be 0 or more, got {self.keep}")


@dataclass(frozen=True)
class EvictTime:
    """Keeps the messages at most `span` older than the newest one."""

    span: int
    after: bool = False

    def __post_init__(self) -> None:
        if self.span < 0:
            raise SpecError(
                f"`span` of an evictor must be 0 or more, got {format_duration(self.span)}"
            )


@dataclass(frozen=True)
class EvictDelta:
    """Drops messages whose `column` differs from that of the last one by `threshold` or more."""

    column: str
    threshold: float
    after: bool = False

    def __post_init__(self) -> None:
        if self.threshold < 0:
            raise SpecError(f"a delta threshold can't be negative, got {self.threshold}")


Evictor = EvictCount | EvictTime | EvictDelta


def evict_count(keep: int, *, after: bool = False) -> EvictCount:
    """Keep the last messages by number, before or after the function."""
    return EvictCount(keep, after)


def evict_time(
    span: str | int | timedelta, *, after: bool = False, unit: str | None = None
) -> EvictTime:
    """Keep the newest messages by time, before or after the function."""
    return EvictTime(duration(span, unit=unit), after)


def evict_delta(column: str, threshold: float, *, after: bool = False) -> EvictDelta:
    """Drop messages too far from the last one, before or after the function."""
    return EvictDelta(column, threshold, after)
