"""Watermark specifications: who says how far event time has come."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from tidegate.errors import SpecError
from tidegate.instants import duration


@dataclass(frozen=True)
class Implied:
    """Nobody declared a watermark: it follows the newest event, so a window is full with the first message at or beyond its end."""


@dataclass(frozen=True)
class Explicit:
    """The watermark moves only where the program advances it."""


@dataclass(frozen=True)
class Bounded:
    """Events are at most `disorder` out of order, per partition."""

    disorder: int

    def __post_init__(self) -> None:
        if self.disorder < 0:
            raise SpecError(f"the disorder of a bounded watermark can't be negative, got {self.disorder}")


Watermarks = Implied | Explicit | Bounded


def explicit() -> Explicit:
    """A watermark that moves only with `advance_watermark`."""
    return Explicit()


def bounded(disorder: str | int | timedelta, *, unit: str | None = None) -> Bounded:
    """A watermark that stays `disorder` behind the newest event of the slowest partition."""
    return Bounded(duration(disorder, unit=unit))


def ascending() -> Bounded:
    """A watermark for partitions whose events come in order."""
    return Bounded(0)
