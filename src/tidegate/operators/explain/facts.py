"""Standings are the facts of an explanation: how inputs, sources, keys, windows and calls stand,
apart from who gathers them and how they are told.

Instants of the input are int64 ticks here, clocks are microseconds; `Explanation.to_dict` gives
what people and JSON can read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.instants import MAX, MIN, format_instant


def time_text(value: int, *, ticks: bool) -> str:
    """An instant of the input: a number where the input has numbers."""
    return str(value) if ticks and value not in (MIN, MAX) else format_instant(value)


@dataclass(frozen=True, slots=True)
class InputStanding:
    """How an input stands among the others."""

    input: int
    kind: str
    """How its watermark comes about: `bounded`, `explicit`, `lagging`, ..."""
    status: str
    """`active`, `idle` or `ended`."""
    promise: int | None
    """Its watermark, coalesced over its sources."""
    since: int
    """The clock when that last rose, or at the start."""
    sources: int
    holds: bool
    """Whether it holds the watermark of the operator where it is."""
    behind: int | None = None
    """How far its watermark stays behind the newest event, or behind the clock where it follows
    that.
    """
    idle_after: int | None = None
    idle_at: int | None = None
    """The clock at which it is left out if it stays silent, where it is waited for as a whole and
    not for one of its sources.
    """
    is_told: bool = False
    """Whether its watermark moves only where the program or an upstream advances it."""
    paused: bool = False
    """Whether it should not be read for now, where it is waited for as a whole."""


@dataclass(frozen=True, slots=True)
class SourceStanding:
    """How a partition or a writer stands among the others."""

    input: int
    name: str
    status: str
    promise: int | None
    spoke_at: int | None
    """The clock at its last sign of life, or when it joined; None where that is not known."""
    moved_at: int | None
    """The clock when its promise last rose, or when it joined."""
    holds: bool
    """Whether it holds the watermark of the operator where it is."""
    paused: bool = False
    """Whether it is so far ahead of the others that it should not be read for now."""
    idle_at: int | None = None
    """The clock at which it is left out if it stays silent."""
    declared: bool = False


@dataclass(frozen=True, slots=True)
class WindowStanding:
    """A window that owes a pane, and what it waits for; on the clock, on offsets and on ordinals
    `watermark` is a position there.
    """

    start: int
    end: int
    keys: int | None
    """How many keys it has; None where counting them would be dear."""
    is_complete: bool
    has_fired: bool
    watermark: int | None
    """The watermark at which its trigger may be ready next; None if it does not look at the
    watermark.
    """
    clock: int | None
    """The clock at which its trigger may be ready next; None if it does not look at the clock."""
    by_elements: bool
    """Whether more events alone may make its trigger ready."""
    expiry: int | None
    """The watermark at which it is over, whatever its trigger says; None if it never is."""
    to_go: int | None
    """How far the watermark (of the key that is nearest) is away from what the window waits for;
    None where there is none.
    """


@dataclass(frozen=True, slots=True)
class KeyStanding:
    """A data key that a window waits for, where keys have watermarks of their own."""

    key: Mapping[str, Any]
    watermark: int | None
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class MarkStanding:
    """A mark that waits in an async map until everything before it has its answer."""

    kind: str
    """`watermark`, `idle` or `active`."""
    watermark: int | None
    watermark_key: int | None
    """None: for all keys."""
    before: int
    """How many messages without an answer are before it."""


@dataclass(frozen=True, slots=True)
class CallsStanding:
    """How the calls of an async map stand. Its clock is that of the machine, whatever the operator
    is told.
    """

    pending: int
    """Messages without an answer, or whose answer nobody has taken."""
    untaken: int
    """Answers that have come, and are taken by the next call of the program."""
    in_flight: int
    """Calls under way, with those whose answer nobody has taken."""
    max_in_flight: int
    answered: int
    """Messages whose answer waits for those of earlier ones; each of them keeps its slot."""
    is_ordered: bool
    limit: int
    """How long a call may take, with all attempts and pauses."""
    oldest: Mapping[str, Any] | None = None
    """The message of the first call that has no answer."""
    oldest_for: int | None = None
    """How long that is under way."""
    marks: tuple[MarkStanding, ...] = ()
    """The marks that wait, in their order; `more_marks` says how many others there are."""
    more_marks: int = 0
    error: str = ""
    """Why the last call that failed did so, since the start."""
    lost_loops: int = 0
    """How often the function has blocked its event loop, and another one was started."""

    @property
    def left(self) -> int | None:
        """How long the oldest call may still take; less than nothing where its event loop does not
        run.
        """
        return None if self.oldest_for is None else self.limit - self.oldest_for


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why there is no output, or none yet: as facts, and in `sentences`."""

    axis: str
    watermark: int | None
    since: int | None
    """The clock when the watermark last rose, or at the start while there is none; None where
    nobody knows.
    """
    now: int
    """The clock that the operator was last told."""
    newest: int | None
    """The newest event that is not from the future."""
    ticks: bool
    """Whether times are plain numbers and no instants."""
    watermark_key: int = 0
    is_finished: bool = False
    is_idle: bool = False
    """Whether every source is idle or has ended, so that the highest promise was released."""
    has_upstream: bool = False
    inputs: tuple[InputStanding, ...] = ()
    sources: tuple[SourceStanding, ...] = ()
    lacking: tuple[int, ...] = ()
    """Inputs that do not have this watermark key, so that it ends here."""
    also: tuple[Explanation, ...] = ()
    """Of an operator that passes on several watermark keys, the sources of the others: without
    sentences of their own.
    """
    calls: CallsStanding | None = None
    """What an async map waits for; None where there are windows."""
    windows: tuple[WindowStanding, ...] = ()
    """The windows that wait, those that end first; `more_windows` says how many others there are.
    """
    more_windows: int = 0
    kept: int = 0
    """Results (of a key and a window) that came out and are kept, so that late events can correct
    them.
    """
    key_columns: tuple[str, ...] = ()
    keys_ahead: int | None = None
    """How many data keys are ahead of the watermark, which is the floor of all, where keys have
    watermarks of their own.
    """
    keys: tuple[KeyStanding, ...] = ()
    """Some of the data keys that windows wait for, where keys have watermarks of their own."""
    trigger: str = ""
    needs_all: bool = False
    """Whether several parts of the trigger have to be ready together."""
    closing: str = "if_nonempty"
    future_tolerance: int = 0
    future_reference: str = "clock"
    counters: Mapping[str, int] = field(default_factory=dict)
    late: Mapping[str, int] = field(default_factory=dict)
    """Rows that went to `late`, by reason."""
    failure: str = ""
    """The last failure of a watermark generator."""
    machine_clock: int | None = None
    """The clock of the machine, where the runtime reads it."""
    waiting_panes: int = 0
    """Panes that came out and that nobody has taken, where the runtime knows."""
    waiting_results: int = 0
    """The same for the rows that an async map gives."""
    waiting_marks: int = 0
    """And for its watermarks."""
    waiting_late: int = 0
    refused_rows: int = 0
    """Panes, rows and late rows that wait for the downstream."""
    refused_marks: int = 0
    is_refused: bool = False
    """Whether the downstream refuses results, so that they wait and input is refused."""
    sentences: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: instants as ISO text, or as numbers where the input has plain numbers;
        clocks as ISO text; spans in microseconds.
        """
        found = self._rows(self)
        for name in ("inputs", "sources", "windows", "keys"):
            found[name] = [self._rows(row) for row in getattr(self, name)]
        found["also"] = [
            {name: value for name, value in other.to_dict().items() if name in _OF_A_KEY}
            for other in self.also
        ]
        if self.calls is not None:
            marks = [self.of_key(mark.watermark_key)._rows(mark) for mark in self.calls.marks]  # noqa: SLF001 - one of the same class
            found["calls"] = {**self._rows(self.calls), "marks": marks, "left": self.calls.left}
        return found

    def of_key(self, key: int | None) -> Explanation:
        """The part about a watermark key: one of `also`, or else this."""
        return next((other for other in self.also if other.watermark_key == key), self)

    def _rows(self, row: Any) -> dict[str, Any]:
        """Not `asdict`, which copies deeply and takes its time for thousands of sources."""
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
