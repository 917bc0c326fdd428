"""An explanation answers "why is there no output?": how far the watermark has come, who holds it back, and what windows or calls wait for.

First the facts are gathered from an operator, which they do not change; `explanation_text` then puts them into words. Instants of the
input are int64 ticks here, clocks are microseconds; `to_dict` gives what people and JSON can read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tidegate.instants import MAX, MIN, format_instant, saturating_add
from tidegate.kernel.frame import Frame, concat_frames, to_arrow
from tidegate.kernel.groups import Groups
from tidegate.kernel.triggers import Context
from tidegate.kernel.watermarks.coalescer import STATUS
from tidegate.kernel.watermarks.marks import Idle, Mark, Watermark
from tidegate.operators.aggregate import WindowedAggregate
from tidegate.operators.core import IDENTITY
from tidegate.operators.explanation_text import sentences, time_text
from tidegate.operators.intake import Channel, Intake, Source
from tidegate.operators.parts import Parts
from tidegate.operators.progress import late_by_reason
from tidegate.spec.triggers import AfterAll, AfterCount, AfterDelay, AfterWatermark, EveryElement, Policy, Trigger
from tidegate.spec.watermarks import Bounded, Explicit, Implied, Lagging, PerKey, Watched, Watermarks
from tidegate.spec.windows import Axis, Inherited

LISTED = 50
"""So many windows, or marks that wait, are told one by one; of the others only how many there are."""
LISTED_KEYS = 10
COUNTED = 100_000
"""Keys of windows that are not complete are counted as long as no more rows than this have to be looked at."""

_COUNTERS = (
    *("events", "duplicates", "future", "unreadable", "late_rows", "markers"),
    *("panes_early", "panes_on_time", "panes_late"),
)


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
    """How far its watermark stays behind the newest event, or behind the clock where it follows that."""
    idle_after: int | None = None
    idle_at: int | None = None
    """The clock at which it is left out if it stays silent, where it is waited for as a whole and not for one of its sources."""
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
    """A window that owes a pane, and what it waits for; on the clock, on offsets and on ordinals `watermark` is a position there."""

    start: int
    end: int
    keys: int | None
    """How many keys it has; None where counting them would be dear."""
    is_complete: bool
    has_fired: bool
    watermark: int | None
    """The watermark at which its trigger may be ready next; None if it does not look at the watermark."""
    clock: int | None
    """The clock at which its trigger may be ready next; None if it does not look at the clock."""
    by_elements: bool
    """Whether more events alone may make its trigger ready."""
    expiry: int | None
    """The watermark at which it is over, whatever its trigger says; None if it never is."""
    to_go: int | None
    """How far the watermark (of the key that is nearest) is away from what the window waits for; None where there is none."""


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
    """How the calls of an async map stand. Its clock is that of the machine, whatever the operator is told."""

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
        """How long the oldest call may still take; less than nothing where its event loop does not run."""
        return None if self.oldest_for is None else self.limit - self.oldest_for


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why there is no output, or none yet: as facts, and in `sentences`."""

    axis: str
    watermark: int | None
    since: int | None
    """The clock when the watermark last rose, or at the start while there is none; None where nobody knows."""
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
    """Of an operator that passes on several watermark keys, the sources of the others: without sentences of their own."""
    calls: CallsStanding | None = None
    """What an async map waits for; None where there are windows."""
    windows: tuple[WindowStanding, ...] = ()
    """The windows that wait, those that end first; `more_windows` says how many others there are."""
    more_windows: int = 0
    kept: int = 0
    """Results (of a key and a window) that came out and are kept, so that late events can correct them."""
    key_columns: tuple[str, ...] = ()
    keys_ahead: int | None = None
    """How many data keys are ahead of the watermark, which is the floor of all, where keys have watermarks of their own."""
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

    def worded(self, **facts: Any) -> Explanation:
        """The same with further facts, put into words anew."""
        found = dataclasses.replace(self, **facts)
        return dataclasses.replace(found, sentences=sentences(found))

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: instants as ISO text, or as numbers where the input has plain numbers; clocks as ISO text; spans in microseconds."""
        found = self._rows(self)
        for name in ("inputs", "sources", "windows", "keys"):
            found[name] = [self._rows(row) for row in getattr(self, name)]
        found["also"] = [{name: value for name, value in other.to_dict().items() if name in _OF_A_KEY} for other in self.also]
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
            return time_text(value, ticks=self.ticks) if not self.ticks or value in (MIN, MAX) else value
        if isinstance(value, Mapping):
            return {key: item if isinstance(item, str | int | float | bool | None) else str(item) for key, item in value.items()}
        return list(value) if isinstance(value, tuple) else value


_CLOCKS = frozenset({"since", "now", "spoke_at", "moved_at", "idle_at", "clock", "machine_clock"})
_TIMES = frozenset({"watermark", "newest", "promise", "start", "end", "expiry"})
_OF_A_KEY = ("watermark", "since", "ticks", "watermark_key", "is_idle", "inputs", "sources", "lacking")


def explain(operator: WindowedAggregate) -> Explanation:
    """What an operator waits for; nothing is changed by asking."""
    progress, spec, axis = operator.progress, operator.spec, operator.spec.window.axis
    watched = axis is Axis.EVENT_TIME
    inputs = _inputs(operator.intake, operator.key) if watched else ()
    waiting = _Waiting(operator)
    bare = Explanation(
        axis=str(axis),
        watermark=_known(progress.watermark) if axis is not Axis.ORDINAL else None,
        since=operator.intake.since(operator.key) if watched and progress.watermark != MAX else None,
        now=progress.now,
        newest=_known(progress.newest) if watched else None,
        ticks=_has_ticks(operator),
        watermark_key=operator.key,
        is_finished=progress.watermark == MAX,
        is_idle=watched and operator.intake.is_idle(operator.key),
        has_upstream=operator.is_fed or isinstance(spec.window, Inherited),
        inputs=inputs,
        sources=_sources(operator.intake, operator.key, inputs) if watched else _partitions(operator) if axis is Axis.OFFSET else (),
        windows=waiting.windows,
        more_windows=waiting.total - len(waiting.windows),
        kept=waiting.kept,
        key_columns=spec.input.key,
        keys_ahead=None if operator.keys is None else len(operator.keys),
        keys=waiting.keys,
        trigger=str(spec.firing),
        needs_all=_needs_all(spec.firing),
        closing=spec.options.closing,
        future_tolerance=spec.options.future_tolerance,
        future_reference=spec.options.future_reference,
        counters={**{name: progress.counters[name] for name in _COUNTERS}, **operator.intake.stats()},
        late=late_by_reason(progress.counters),
        failure=operator.intake.failure,
    )
    return bare.worded()


def explain_calls(
    intake: Intake, calls: CallsStanding, ticks: Mapping[int, bool], counters: Mapping[str, int], *, has_upstream: bool, **facts: Any
) -> Explanation:
    """What an async map waits for; `ticks` has its watermark keys, the main one first, and whether their times are plain numbers."""
    counted = {name: n for name, n in counters.items() if not name.startswith("reason.")} | intake.stats()
    main, *others = (_of_key(intake, key, ticks=plain, counters=counted, has_upstream=has_upstream) for key, plain in ticks.items())
    return main.worded(also=tuple(others), calls=calls, late=late_by_reason(counters), failure=intake.failure, **facts)


def _of_key(intake: Intake, key: int, *, ticks: bool, counters: Mapping[str, int], has_upstream: bool) -> Explanation:
    """Who promises what for one of the watermark keys that are passed on."""
    inputs = _inputs(intake, key)
    lacking = tuple(ordinal for ordinal in range(len(intake.channels)) if not intake.has(key, ordinal))
    return Explanation(
        axis=str(Axis.EVENT_TIME),
        watermark=None if lacking else _known(intake.output(key)),
        since=intake.since(key),
        now=intake.now,
        newest=None,
        ticks=ticks,
        watermark_key=key,
        is_idle=intake.is_idle(key),
        has_upstream=has_upstream,
        inputs=inputs,
        sources=_sources(intake, key, inputs),
        lacking=lacking,
        counters=counters,
    )


def waiting_marks(marks: Sequence[tuple[Mark, int]]) -> tuple[MarkStanding, ...]:
    """The first of the marks that wait, each with how many messages without an answer are before it."""
    return tuple(
        MarkStanding(
            kind="watermark" if isinstance(mark, Watermark) else "idle" if isinstance(mark, Idle) else "active",
            watermark=mark.value if isinstance(mark, Watermark) else None,
            watermark_key=mark.key,
            before=before,
        )
        for mark, before in marks[:LISTED]
    )


def _known(value: int) -> int | None:
    return None if value == MIN else int(value)


def _bounded(value: int) -> int | None:
    return None if value == MAX else int(value)


def _has_ticks(operator: WindowedAggregate) -> bool:
    """On the clock, and where the watermark is made of the clock alone, times are clocks even if no message has told a type."""
    if operator.spec.window.axis is Axis.CLOCK:
        return False
    unseen = operator.schema is None and operator.spec.window.axis.is_time
    return operator.ticks and not (unseen and any(isinstance(given.watermark, Lagging) for given in operator.spec.inputs))


def _needs_all(trigger: Trigger) -> bool:
    return isinstance(trigger, AfterAll) or any(_needs_all(part) for part in trigger.children)


def _fires_on_elements(trigger: Trigger, *, is_complete: bool) -> bool:
    """Whether more events alone may make the trigger ready, before or after the window is complete."""
    match trigger:
        case AfterWatermark(early=early, late=late):
            parts: tuple[Trigger | None, ...] = (late,) if is_complete else (early,)
        case Policy(early=early, late=late, full=full):
            parts = (late,) if is_complete else (early, full)
        case AfterCount() | EveryElement() | AfterDelay(delay=0):
            return True
        case _:
            parts = trigger.children
    return any(part is not None and _fires_on_elements(part, is_complete=is_complete) for part in parts)


# Who promises what ----------------------------------------------------------------------------------------------------------------


def _inputs(intake: Intake, key: int) -> tuple[InputStanding, ...]:
    """The inputs that have the watermark key."""
    # Asking for a key that nobody has mentioned would mention it.
    across = intake.across.coalescer(key) if key in intake.across.keys else None
    everybody = [ordinal for ordinal in range(len(intake.channels)) if intake.has(key, ordinal)]
    holders = set(everybody if across is None else across.holders().tolist())
    paused = intake.paused()
    found = []
    for ordinal in everybody:
        channel = intake.channels[ordinal][key]
        watermark = channel.column.watermark
        found.append(
            InputStanding(
                input=ordinal,
                kind=str(watermark.to_dict()["type"]),
                status="active" if across is None else STATUS[int(across.status[ordinal])],
                promise=None if across is None else _known(int(across.promises[ordinal])),
                since=channel.tracker.since,
                sources=len(channel.tracker),
                holds=ordinal in holders,
                behind=_behind(watermark),
                idle_after=watermark.idle_after if isinstance(watermark, Watched) else None,
                idle_at=_idle_at(channel),
                is_told=isinstance(watermark, Explicit) or (channel.told and isinstance(watermark, Implied)),
                paused=channel.is_source and Source(ordinal, "") in paused,
            )
        )
    return tuple(found)


def _idle_at(channel: Channel) -> int | None:
    idle_after = channel.tracker.idle_after
    return int(saturating_add(channel.spoke_at, idle_after)) if channel.is_awake and channel.is_source and idle_after is not None else None


def _behind(watermark: Watermarks) -> int | None:
    match watermark:
        case Implied():
            return 0
        case Bounded(disorder=behind) | PerKey(floor=behind) | Lagging(lag=behind):
            return behind
    return None


def _sources(intake: Intake, key: int, inputs: tuple[InputStanding, ...]) -> tuple[SourceStanding, ...]:
    paused = {(source.input, source.name) for source in intake.paused()}
    found = []
    for given in inputs:
        channel = intake.channels[given.input][key]
        watermark = channel.column.watermark
        declared = set(watermark.declared) if isinstance(watermark, Watched) else set()
        for state in channel.tracker.describe():
            idles = given.idle_after is not None and state.status == "active"
            found.append(
                SourceStanding(
                    input=given.input,
                    name=state.name,
                    status=state.status,
                    promise=state.promise,
                    spoke_at=state.spoke_at,
                    moved_at=state.moved_at,
                    holds=state.holds and given.holds,
                    paused=(given.input, state.name) in paused,
                    idle_at=int(saturating_add(state.spoke_at, given.idle_after or 0)) if idles else None,
                    declared=state.name in declared,
                )
            )
    return tuple(found)


def _partitions(operator: WindowedAggregate) -> tuple[SourceStanding, ...]:
    """On offsets every partition has come as far as its highest offset."""
    marks, least = operator.marks.marks, operator.marks.progress()
    return tuple(SourceStanding(0, name, "active", mark + 1, None, None, mark + 1 == least) for name, mark in marks.items())


# What windows wait for ------------------------------------------------------------------------------------------------------------


class _Waiting:
    """The windows of an operator that owe a pane."""

    def __init__(self, operator: WindowedAggregate) -> None:
        self._operator = operator
        self.windows: tuple[WindowStanding, ...] = ()
        self.total = 0
        self.kept = 0
        self.keys: tuple[KeyStanding, ...] = ()
        if operator.parts is not None:
            found = [*self._held(operator.parts), *self._opened(operator.parts)]
            self.windows = tuple(sorted(found, key=lambda window: (window.end, window.start))[:LISTED])

    def _opened(self, parts: Parts) -> list[WindowStanding]:
        """Windows that are kept in slices: their triggers are quiet until they are complete, so that they are all alike."""
        if parts.open_windows is None:
            return []
        found, total = parts.open_windows.waiting(LISTED, COUNTED)
        self.total += total
        if not found:
            return []
        core, now, watermark = parts.core, parts.core.progress.now, parts.core.progress.watermark
        start, end = (np.array([bounds[side] for bounds, _ in found], np.int64) for side in (0, 1))
        context = Context(end, watermark, now, np.ones(len(found), np.int64))
        due = core.machine.watermark_due(core.machine.initial(len(found), now), context)
        expiry = core.expiry(end)
        return [
            self._window((int(start[n]), int(end[n])), keys, due=int(due[n]), expiry=int(expiry[n]), reached=watermark)
            for n, (_, keys) in enumerate(found)
        ]

    def _held(self, parts: Parts) -> list[WindowStanding]:
        """Windows that are kept in cells, one a key."""
        core = parts.core
        per_key = core.keys is not None
        names = [*IDENTITY, "pending", "closed", "clock_due", "index", "expiry", *core.machine.columns]
        names += core.key_columns if per_key else []
        names += ["seen"] if core.spec.window.axis is Axis.ORDINAL else []
        frames = [frame for frame in core.cells.live(names) if len(frame)]
        if not frames:
            return []
        cells = concat_frames(frames)
        cells = cells.where(~cells.ints("closed"))
        if not len(cells):
            return []
        reached = np.broadcast_to(np.asarray(core.watermark_of(cells), np.int64), len(cells))
        owes = (cells.ints("end") > reached) | (cells.ints("pending") > 0)
        self.kept = int(len(cells) - owes.sum())
        cells, reached = cells.where(owes), reached[owes]
        if not len(cells):
            return []
        if per_key:
            self.keys = self._waited_keys(cells, reached)
        return self._grouped(parts, cells, reached)

    def _grouped(self, parts: Parts, cells: Frame, reached: np.ndarray) -> list[WindowStanding]:
        """One entry for all keys of a window that are in the same state."""
        core, end = parts.core, cells.ints("end")
        context = Context(end, reached, core.progress.now, cells.ints("pending"))
        due = core.machine.watermark_due({name: cells.ints(name) for name in core.machine.columns}, context)
        groups = Groups.by([cells.ints("start"), end, (end <= reached).astype(np.int64)])
        first = groups.firsts
        self.total += groups.n
        order = np.lexsort((cells.ints("start")[first], end[first]))[:LISTED]
        dues, clocks, fired = groups.min(due), groups.min(cells.ints("clock_due")), groups.max(cells.ints("index"))
        # The key that needs least: what it waits for less how far it has come.
        furthest = groups.max(reached)
        found = []
        for group in order.tolist():
            row = first[group]
            found.append(
                self._window(
                    (int(cells.ints("start")[row]), int(end[row])),
                    int(groups.counts[group]),
                    due=int(dues[group]),
                    clock=int(clocks[group]),
                    expiry=int(cells.ints("expiry")[row]),
                    reached=int(furthest[group]),
                    is_complete=bool(end[row] <= reached[row]),
                    has_fired=bool(fired[group] > 0),
                )
            )
        return found

    def _window(
        self,
        bounds: tuple[int, int],
        keys: int | None,
        *,
        due: int,
        expiry: int,
        reached: int,
        clock: int = MAX,
        is_complete: bool = False,
        has_fired: bool = False,
    ) -> WindowStanding:
        axis = self._operator.spec.window.axis
        reached = self._operator.progress.now if axis is Axis.CLOCK else reached
        wanted = due if due != MAX else expiry if clock == MAX else MAX
        return WindowStanding(
            start=bounds[0],
            end=bounds[1],
            keys=keys,
            is_complete=is_complete,
            has_fired=has_fired,
            watermark=_bounded(due),
            clock=_bounded(clock),
            by_elements=_fires_on_elements(self._operator.spec.firing, is_complete=is_complete),
            expiry=_bounded(expiry),
            to_go=None if MAX in (wanted, reached) or reached == MIN else wanted - reached,
        )

    def _waited_keys(self, cells: Frame, reached: np.ndarray) -> tuple[KeyStanding, ...]:
        """Some keys whose watermark has not reached the end of their window, those that are due first."""
        behind = np.flatnonzero(cells.ints("end") > reached)
        end = cells.ints("end")[behind]
        chosen = behind[np.lexsort((reached[behind], end))[:LISTED_KEYS]]
        names = self._operator.spec.input.key
        some = cells.take(chosen)
        values = [to_arrow(some[f"k.{name}"]).to_pylist() for name in names]
        return tuple(
            KeyStanding(
                key=dict(zip(names, (column[n] for column in values), strict=True)),
                watermark=_known(int(reached[row])),
                start=int(some.ints("start")[n]),
                end=int(some.ints("end")[n]),
            )
            for n, row in enumerate(chosen.tolist())
        )
