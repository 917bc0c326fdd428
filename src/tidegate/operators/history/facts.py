"""The facts of a history: steps in the order in which they happened, and what is still open.

Times on the axis of the windows are int64 ticks, clocks are microseconds; `History.to_dict` returns
a readable JSON form.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tidegate.instants import format_instant
from tidegate.operators.explain.facts import WindowFacts, time_text

Bounds = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Something that happened to a window; a subclass says what."""

    kind: ClassVar[str] = ""
    start: int
    end: int
    at: int | None
    """The clock at which it happened; None if unknown."""
    batch: int | None = None
    """The micro-batch on Spark, or the number of the call of an embedded operator."""
    watermark: int | None = None
    """The watermark then; None before there was one, and after the end of the input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution(Step):
    """A delivery added rows to the window."""

    kind: ClassVar[str] = "rows"
    rows: int
    total: int
    """The rows of the window with them."""
    is_early: bool = False
    """Whether the session got these bounds only later, when it grew or merged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fired(Step):
    """A pane was emitted."""

    kind: ClassVar[str] = "pane"
    pane: int
    timing: str
    cause: str
    """`watermark`, `early_trigger`, `late_trigger`, `trigger`, `full_size`, `expired`, `evicted`
    or `end_of_input`; `complete` for a window off event time that has all it can hold.
    """
    trigger: str
    """The part of the trigger that fired, as text; empty if no trigger did."""
    values: Mapping[str, Any]
    changes: Mapping[str, tuple[Any, Any]]
    """By aggregate, the former value and the new one, where the pane changed it."""
    rows: int | None
    """The rows since the former pane; None if the pipeline does not count rows."""
    retracts: bool
    """Whether a retraction of the former pane preceded it."""
    is_first: bool
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn(Step):
    """The last pane of a window was retracted, and nothing replaces it under these bounds."""

    kind: ClassVar[str] = "withdrawn"
    pane: int
    timing: str
    values: Mapping[str, Any]
    into: Bounds | None
    """The session that the window became a part of; None if its rows were retracted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged(Step):
    """A session got other bounds: it grew, or several sessions became one."""

    kind: ClassVar[str] = "merge"
    parts: tuple[Bounds, ...]
    """The sessions with panes that it replaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed(Step):
    """A row of the key went to `late` instead of this window."""

    kind: ClassVar[str] = "late"
    time: int | None
    lateness: str
    """Its class: `very_late`, `mildly_late`, ..."""
    reason: str
    detail: str
    behind: int | None
    """How far its time was behind the watermark."""
    beyond: int | None
    """How far that is beyond the allowed lateness."""
    windows: tuple[Bounds, ...]
    """All windows of the range that it missed; none if it has no time."""
    row: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OpenWindow:
    """A window that is not expired, and what it waits for."""

    start: int
    end: int
    rows: int
    pending: int
    """The rows that no pane has shown yet."""
    panes: int
    waits: WindowFacts | None
    """None if all rows are in a pane, and the window is kept for corrections only."""
    expiry: int | None
    """The watermark at which it expires; None if it never does."""


@dataclass(frozen=True, slots=True, repr=False)
class History:
    """What happened to the windows of one key in a range, in order: print it to read sentences."""

    key: Mapping[str, Any]
    start: int | None
    end: int | None
    """The range that was asked for."""
    ticks: bool
    """Whether times of windows are plain numbers instead of instants."""
    unit: str
    """What `batch` numbers: `batch` on Spark, `call` embedded."""
    trigger: str
    mode: str
    allowed_lateness: int | None
    watermark: int | None
    now: int | None
    steps: tuple[Step, ...] = ()
    open: tuple[OpenWindow, ...] = ()
    notes: tuple[str, ...] = ()
    """What is not known, and why."""
    axis: str = "event_time"
    """The axis of the windows."""
    needs_all: bool = False
    """Whether the trigger needs all of several parts."""
    windows: tuple[Bounds, ...] = ()
    """The bounds of the windows that it is about, in order."""
    others: tuple[int, int, int] = (0, 0, 0)
    """If nothing was found: the rows of panes, the late rows and the open windows that the key has
    elsewhere.
    """
    sentences: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    def __repr__(self) -> str:
        return f"History({self.sentences[0] if self.sentences else ''!r})"

    def _repr_html_(self) -> str:
        from tidegate.operators.history.html import history_html

        return history_html(self)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: instants are ISO text, or numbers if the input has plain numbers."""
        found = self._fields(self)
        found["steps"] = [{"kind": step.kind, **self._fields(step)} for step in self.steps]
        found["open"] = [
            {
                **self._fields(window),
                "waits": None if window.waits is None else self._fields(window.waits),
            }
            for window in self.open
        ]
        return found

    def time(self, value: int) -> str:
        """A time on the axis of the windows as text."""
        return time_text(value, ticks=self.ticks)

    def _fields(self, row: Any) -> dict[str, Any]:
        return {
            part.name: self._plain(part.name, getattr(row, part.name))
            for part in dataclasses.fields(row)
        }

    def _plain(self, name: str, value: Any) -> Any:
        if value is None:
            return None
        if name in _TIMES:
            return value if self.ticks else self.time(value)
        if name in _CLOCKS:
            return format_instant(value)
        if name == "others":
            return list(value)
        if name in {"into", "parts", "windows"}:
            return (
                [self._plain("start", one) for one in value]
                if name == "into"
                else [[self._plain("start", one) for one in bounds] for bounds in value]
            )
        return json_value(value)


_TIMES = frozenset({"start", "end", "watermark", "time", "expiry"})
_CLOCKS = frozenset({"at", "now", "clock"})


def json_value(value: Any) -> Any:
    """A value of a row as JSON has it: times as text, mappings and sequences by element."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            return {str(name): json_value(one) for name, one in value.items()}
        case list() | tuple():
            return [json_value(one) for one in value]
        case dt.datetime() | dt.date():
            return value.isoformat()
    return str(value)
