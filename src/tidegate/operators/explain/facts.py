"""The facts of an explanation: the state of inputs, sources, keys, windows and calls.

Instants of the input are int64 ticks, clocks are microseconds. `Explanation.to_dict` returns a
readable JSON form.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.html import sentences_html
from tidegate.instants import MAX, MIN, format_instant


def time_text(value: int, *, ticks: bool) -> str:
    """An instant of the input; a number if the input has plain numbers."""
    return str(value) if ticks and value not in (MIN, MAX) else format_instant(value)


@dataclass(frozen=True, slots=True)
class InputFacts:
    """The watermark of one input."""

    input: int
    kind: str
    """The kind of its watermark: `bounded`, `explicit`, `lagging`, ..."""
    status: str
    """`active`, `idle` or `ended`."""
    promise: int | None
    """Its watermark, coalesced over its sources."""
    since: int
    """The clock when its watermark last advanced, or at the start."""
    sources: int
    holds: bool
    """Whether it holds the watermark of the operator back."""
    behind: int | None = None
    """How far its watermark stays behind the newest event, or behind the clock that it follows."""
    idle_after: int | None = None
    idle_at: int | None = None
    """The clock at which it becomes idle if it stays silent, where it counts as a single source."""
    is_explicit: bool = False
    """Whether only the program or an upstream advances its watermark."""
    paused: bool = False
    """Whether it should not be read for now, where it counts as a single source."""


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """The state of one partition or writer."""

    input: int
    name: str
    status: str
    promise: int | None
    spoke_at: int | None
    """The clock at its last activity, or when it joined; None if unknown."""
    moved_at: int | None
    """The clock when its promise last advanced, or when it joined."""
    holds: bool
    """Whether it holds the watermark of the operator back."""
    paused: bool = False
    """Whether it is so far ahead of the others that it should not be read for now."""
    idle_at: int | None = None
    """The clock at which it becomes idle if it stays silent."""
    declared: bool = False


@dataclass(frozen=True, slots=True)
class WindowFacts:
    """A window with a pending pane, and what it waits for.

    On the clock, on offsets and on ordinals `watermark` is a position on that axis.
    """

    start: int
    end: int
    keys: int | None
    """The number of its keys; None where counting them would be expensive."""
    is_complete: bool
    has_fired: bool
    watermark: int | None
    """The watermark at which its trigger may fire next; None if it ignores the watermark."""
    clock: int | None
    """The clock at which its trigger may fire next; None if it ignores the clock."""
    by_elements: bool
    """Whether more events alone may make its trigger fire."""
    expiry: int | None
    """The watermark at which it expires, whatever its trigger; None if it never does."""
    to_go: int | None
    """The distance of the watermark (of the nearest key) from what the window waits for; None
    without one.
    """


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """A data key that a window waits for, with per-key watermarks."""

    key: Mapping[str, Any]
    watermark: int | None
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class MarkFacts:
    """A mark that waits in an async map for the answers of all messages before it."""

    kind: str
    """`watermark`, `idle` or `active`."""
    watermark: int | None
    watermark_key: int | None
    """None: for all keys."""
    before: int
    """The number of messages without an answer before it."""


@dataclass(frozen=True, slots=True)
class CallFacts:
    """The calls of an async map, by the clock of the machine."""

    pending: int
    """Messages without an answer, and those whose answer was not taken yet."""
    untaken: int
    """Answers that have arrived; the next call of the program takes them."""
    in_flight: int
    """Running calls, and those whose answer was not taken yet."""
    max_in_flight: int
    answered: int
    """Messages whose answer waits for those of earlier ones; each of them keeps its slot."""
    is_ordered: bool
    limit: int
    """The longest that a call may take, with all attempts and pauses."""
    oldest: Mapping[str, Any] | None = None
    """The message of the first call that has no answer."""
    oldest_for: int | None = None
    """How long that call has been running."""
    marks: tuple[MarkFacts, ...] = ()
    """The first marks that wait, in their order; `more_marks` counts the others."""
    more_marks: int = 0
    error: str = ""
    """The error of the last failed call since the start."""
    lost_loops: int = 0
    """How often the function has blocked its event loop, and a new loop was started."""

    @property
    def left(self) -> int | None:
        """How long the oldest call may still take; negative if its event loop is blocked."""
        return None if self.oldest_for is None else self.limit - self.oldest_for


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """Why there is no output yet: as facts, and as `sentences`."""

    axis: str
    watermark: int | None
    since: int | None
    """The clock when the watermark last advanced, or at the start; None if unknown."""
    now: int
    """The clock of the operator."""
    newest: int | None
    """The newest event that is not from the future."""
    ticks: bool
    """Whether times are plain numbers instead of instants."""
    watermark_key: int = 0
    is_finished: bool = False
    is_idle: bool = False
    """Whether every source is idle or has ended, so that the highest promise was released."""
    is_scheduled: bool = False
    """Whether the runtime advances the clock itself, as Spark does with its batches."""
    has_upstream: bool = False
    inputs: tuple[InputFacts, ...] = ()
    sources: tuple[SourceFacts, ...] = ()
    names: tuple[str, ...] = ()
    """The names of the inputs, by number: of a merge, or the sides of a join; else none."""
    lacking: tuple[int, ...] = ()
    """Inputs without this watermark key, which is therefore dropped."""
    also: tuple[Explanation, ...] = ()
    """The other watermark keys of an operator that forwards several; without sentences."""
    calls: CallFacts | None = None
    """The calls of an async map; None for other operators."""
    windows: tuple[WindowFacts, ...] = ()
    """The windows that wait and end first; `more_windows` counts the others."""
    more_windows: int = 0
    unlisted: int = 0
    """Windows of single keys that are too many to be listed."""
    kept: int = 0
    """Emitted results (of a key and a window) that are kept for corrections by late events."""
    key_columns: tuple[str, ...] = ()
    keys_ahead: int | None = None
    """The number of data keys ahead of the floor, with per-key watermarks."""
    keys: tuple[KeyFacts, ...] = ()
    """Some of the data keys that windows wait for, with per-key watermarks."""
    trigger: str = ""
    needs_all: bool = False
    """Whether several parts of the trigger must be ready together."""
    closing: str = "if_nonempty"
    future_tolerance: int = 0
    future_reference: str = "clock"
    counters: Mapping[str, int] = field(default_factory=dict)
    late: Mapping[str, int] = field(default_factory=dict)
    """Rows that went to `late`, by reason."""
    failure: str = ""
    """The last failure of a watermark generator."""
    machine_clock: int | None = None
    """The clock of the machine, if the runtime reads it."""
    waiting_panes: int = 0
    """Emitted panes that were not fetched yet."""
    waiting_results: int = 0
    """Result rows of an async map that were not fetched yet."""
    waiting_marks: int = 0
    """Watermarks of an async map that were not fetched yet."""
    waiting_late: int = 0
    refused_rows: int = 0
    """Panes, rows and late rows that wait for the downstream."""
    refused_marks: int = 0
    is_refused: bool = False
    """Whether the downstream refuses results, so that input is refused too."""
    sentences: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    def __repr__(self) -> str:
        first = self.sentences[0] if self.sentences else "without sentences"
        more = len(self.sentences) - 1
        return f"Explanation({first!r}{f', and {more} more' if more > 0 else ''})"

    def _repr_html_(self) -> str:
        return sentences_html(self.sentences)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form.

        Instants are ISO text, or numbers if the input has plain numbers; clocks are ISO text; spans
        are in microseconds.
        """
        found = self._rows(self)
        for name in ("inputs", "sources", "windows", "keys"):
            found[name] = [self._rows(row) for row in getattr(self, name)]
        found["also"] = [
            {name: value for name, value in other.to_dict().items() if name in _OF_A_KEY}
            for other in self.also
        ]
        if self.calls is not None:
            marks = [
                self.of_key(mark.watermark_key)._rows(mark)  # noqa: SLF001 - the same class
                for mark in self.calls.marks
            ]
            found["calls"] = {**self._rows(self.calls), "marks": marks, "left": self.calls.left}
        return found

    def of_key(self, key: int | None) -> Explanation:
        """The explanation of a watermark key: one of `also`, or this one."""
        return next((other for other in self.also if other.watermark_key == key), self)

    def _rows(self, row: Any) -> dict[str, Any]:
        """The fields of a fact; `asdict` copies deeply, which is slow for thousands of sources."""
        return {f.name: self._plain(f.name, getattr(row, f.name)) for f in dataclasses.fields(row)}

    def _plain(self, name: str, value: Any) -> Any:
        if value is None:
            return None
        if name in _CLOCKS:
            return format_instant(value)
        if name in _TIMES and not isinstance(value, Mapping):
            return (
                time_text(value, ticks=self.ticks)
                if not self.ticks or value in (MIN, MAX)
                else value
            )
        if isinstance(value, Mapping):
            return {
                key: item if isinstance(item, str | int | float | bool | None) else str(item)
                for key, item in value.items()
            }
        return list(value) if isinstance(value, tuple) else value


_CLOCKS = frozenset({"since", "now", "spoke_at", "moved_at", "idle_at", "clock", "machine_clock"})
_TIMES = frozenset({"watermark", "newest", "promise", "start", "end", "expiry"})
_OF_A_KEY = (
    "watermark",
    "since",
    "ticks",
    "watermark_key",
    "is_idle",
    "inputs",
    "sources",
    "lacking",
)
