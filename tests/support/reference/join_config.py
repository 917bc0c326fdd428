"""What a join of the reference is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tidegate.instants import MAX
from tidegate.spec.windows import (
    Axis,
    ByDifference,
    Cumulative,
    Global,
    Hopping,
    Tumbling,
    Window,
)

Row = dict[str, Any]
LEFT, RIGHT = 0, 1
GRIDS = (Tumbling, Hopping, Cumulative, Global, ByDifference)
"""Windows that do not depend on other rows."""


@dataclass(frozen=True)
class Within:
    """`left.t` in [`right.t` - before, `right.t` + after]; None is no bound on that end."""

    before: int | None
    after: int | None
    closed: Literal["both", "left", "right", "neither"] = "both"
    left: str = "ts"
    right: str = "ts"

    def holds(self, left: Row, right: Row) -> bool:
        earlier = right[self.right] - left[self.left]
        low = (
            self.before is None
            or earlier < self.before
            or (earlier == self.before and self.closed in ("both", "left"))
        )
        high = (
            self.after is None
            or -earlier < self.after
            or (-earlier == self.after and self.closed in ("both", "right"))
        )
        return low and high

    def column(self, side: int) -> str:
        return self.right if side == RIGHT else self.left

    def last_partner(self, side: int, row: Row) -> int:
        """The greatest time that a partner of the row can have."""
        reach, ends = (
            (self.before, ("both", "left")) if side == LEFT else (self.after, ("both", "right"))
        )
        return MAX if reach is None else row[self.column(side)] + reach - (self.closed not in ends)


@dataclass(frozen=True)
class Rows:
    """The window of a side is its last n messages by offset, in every partition, or its messages
    that are less than a time older than the row that looks; None is unbounded.
    """

    left: int | None = None
    right: int | None = None
    left_time: int | None = None
    right_time: int | None = None

    def size(self, side: int) -> int | None:
        return self.right if side == RIGHT else self.left

    def span(self, side: int) -> int | None:
        return self.right_time if side == RIGHT else self.left_time

    @property
    def compares_times(self) -> bool:
        return self.left_time is not None or self.right_time is not None


@dataclass(frozen=True)
class AsOf:
    """Each left row has the latest right row at or before it; not at it where it is strict."""

    tolerance: int | None = None
    strict: bool = False

    def holds(self, left: Row, right: Row) -> bool:
        age = left["ts"] - right["ts"]
        return age >= self.strict and (self.tolerance is None or age <= self.tolerance)


@dataclass(frozen=True)
class JoinConfig:
    """What a join is made of; the names are those of the words that users write, durations are
    ticks.
    """

    window: tuple[Within, ...] | Window | Rows | AsOf
    how: str = "inner"
    on: tuple[tuple[str, str], ...] = (("k", "k"),)
    where: Callable[[Row, Row], bool | None] | None = None
    allowed_lateness: int = 0
    padding: str = "complete"
    on_time_every: int | None = None
    late_every: int | None = None
    retain_time: int | None = None
    id: str | None = None
    offset: str | None = None
    partition: str | None = None
    watermark: str = "explicit"
    future: str = "process"
    future_tolerance: int = MAX // 2
    retracts: bool = False
    session_fields: int | None = None
    """How many of the first equal fields are the session key; None where all are."""

    def columns(self, side: int) -> tuple[str, ...]:
        """The time columns of a side that its rows are judged by."""
        if self.is_counted:
            is_mixed = isinstance(self.window, Rows) and self.window.compares_times
            return ("ts",) if is_mixed else ()
        bounds = self.window if isinstance(self.window, tuple) else ()
        return tuple(dict.fromkeys(["ts", *(bound.column(side) for bound in bounds)]))

    def pads(self, side: int) -> bool:
        """Whether rows of a side come out alone where they have no partner."""
        return self.how in (("right", "full") if side == RIGHT else ("left", "full", "anti"))

    @property
    def shows_pairs(self) -> bool:
        return self.how not in ("semi", "anti")

    @property
    def is_counted(self) -> bool:
        """Whether rows are where their offsets are, not where their times are."""
        window = self.window
        return isinstance(window, Rows) or (
            isinstance(window, Window) and window.axis is Axis.OFFSET
        )
