"""Explanations: why there is no output, and which source holds the watermark back.

This module gathers the facts from an operator without changing it. `facts` defines them, and `text`
turns them into sentences.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tidegate.instants import MAX, MIN, saturating_add
from tidegate.kernel.frame import Frame, concat_frames, to_arrow, values_of
from tidegate.kernel.groups import Groups
from tidegate.kernel.triggers import TriggerContext
from tidegate.kernel.watermarks.coalescer import STATUS
from tidegate.kernel.watermarks.marks import Idle, Mark, Watermark
from tidegate.operators.aggregate.context import IDENTITY
from tidegate.operators.aggregate.operator import WindowedAggregate
from tidegate.operators.aggregate.wiring import Wiring
from tidegate.operators.explain.facts import (
    CallFacts,
    Explanation,
    InputFacts,
    KeyFacts,
    MarkFacts,
    SourceFacts,
    WindowFacts,
)
from tidegate.operators.explain.text import sentences
from tidegate.operators.ingest.watermark_tracking import (
    PausedSource,
    TimeColumnTracker,
    WatermarkTracker,
)
from tidegate.operators.inspection.summary import summary
from tidegate.operators.progress import late_by_reason
from tidegate.spec.triggers import (
    AfterCount,
    AfterDelay,
    AfterWatermark,
    EveryElement,
    Policy,
    Trigger,
    needs_all,
)
from tidegate.spec.watermarks import (
    Bounded,
    Explicit,
    Implied,
    Lagging,
    PerKey,
    Watched,
    Watermarks,
)
from tidegate.spec.windows import Axis, Inherited

LISTED = 50
"""The number of windows, or of waiting marks, that are listed; the others are only counted."""
LISTED_KEYS = 10
COUNTED = 100_000
"""The number of rows up to which the keys of incomplete windows are counted."""

_COUNTERS = (
    *("events", "duplicates", "future", "unreadable", "late_rows", "markers"),
    *("panes_early", "panes_on_time", "panes_late"),
)


def explain(operator: WindowedAggregate, *, scans: bool = True) -> Explanation:
    """What an aggregate waits for.

    Without `scans`, only the windows of a summary are listed, and not what single keys wait for.
    """
    progress, spec, axis = operator.progress, operator.spec, operator.spec.window.axis
    watched = axis is Axis.EVENT_TIME
    inputs = _inputs(operator.watermark_tracker, operator.key) if watched else ()
    waiting = _Waiting(operator, scans=scans)
    bare = Explanation(
        axis=str(axis),
        watermark=_known(progress.watermark) if axis is not Axis.ORDINAL else None,
        since=(
            operator.watermark_tracker.since(operator.key)
            if watched and progress.watermark != MAX
            else None
        ),
        now=progress.now,
        newest=_known(progress.newest) if watched else None,
        ticks=_has_ticks(operator),
        watermark_key=operator.key,
        is_finished=progress.watermark == MAX,
        is_idle=watched and operator.watermark_tracker.is_idle(operator.key),
        has_upstream=operator.is_fed or isinstance(spec.window, Inherited),
        inputs=inputs,
        names=spec.names,
        sources=(
            _sources(operator.watermark_tracker, operator.key, inputs)
            if watched
            else _partitions(operator)
            if axis is Axis.OFFSET
            else ()
        ),
        windows=waiting.windows,
        more_windows=waiting.total - len(waiting.windows),
        unlisted=waiting.unlisted,
        kept=waiting.kept,
        key_columns=spec.input.key,
        keys_ahead=None if operator.keys is None else len(operator.keys),
        keys=waiting.keys,
        trigger=str(spec.firing),
        needs_all=needs_all(spec.firing),
        closing=spec.options.closing,
        future_tolerance=spec.options.future_tolerance,
        future_reference=spec.options.future_reference,
        counters={
            **{name: progress.counters[name] for name in _COUNTERS},
            **operator.watermark_tracker.stats(),
        },
        late=late_by_reason(progress.counters),
        failure=operator.watermark_tracker.failure,
    )
    return worded(bare)


def explain_calls(
    watermark_tracker: WatermarkTracker,
    calls: CallFacts,
    ticks: Mapping[int, bool],
    counters: Mapping[str, int],
    *,
    has_upstream: bool,
    **facts: Any,
) -> Explanation:
    """What an async map waits for.

    `ticks` maps its watermark keys, the main one first, to whether their times are plain numbers.
    """
    counted = {
        name: n for name, n in counters.items() if not name.startswith("reason.")
    } | watermark_tracker.stats()
    main, *others = (
        _of_key(watermark_tracker, key, ticks=plain, counters=counted, has_upstream=has_upstream)
        for key, plain in ticks.items()
    )
    return worded(
        main,
        also=tuple(others),
        calls=calls,
        late=late_by_reason(counters),
        failure=watermark_tracker.failure,
        **facts,
    )


def _of_key(
    watermark_tracker: WatermarkTracker,
    key: int,
    *,
    ticks: bool,
    counters: Mapping[str, int],
    has_upstream: bool,
) -> Explanation:
    """The inputs and sources of one watermark key."""
    inputs = _inputs(watermark_tracker, key)
    lacking = tuple(
        ordinal
        for ordinal in range(len(watermark_tracker.columns))
        if not watermark_tracker.has(key, ordinal)
    )
    return Explanation(
        axis=str(Axis.EVENT_TIME),
        watermark=None if lacking else _known(watermark_tracker.output(key)),
        since=watermark_tracker.since(key),
        now=watermark_tracker.now,
        newest=None,
        ticks=ticks,
        watermark_key=key,
        is_idle=watermark_tracker.is_idle(key),
        has_upstream=has_upstream,
        inputs=inputs,
        sources=_sources(watermark_tracker, key, inputs),
        lacking=lacking,
        counters=counters,
    )


def explain_inputs(
    watermark_tracker: WatermarkTracker,
    key: int,
    *,
    ticks: bool,
    counters: Mapping[str, int],
    has_upstream: bool,
    **facts: Any,
) -> Explanation:
    """The inputs of an operator that has neither windows nor calls."""
    return worded(
        _of_key(watermark_tracker, key, ticks=ticks, counters=counters, has_upstream=has_upstream),
        **facts,
    )


def worded(found: Explanation, **facts: Any) -> Explanation:
    """The explanation with further facts, and with sentences for all of them."""
    whole = dataclasses.replace(found, **facts)
    return dataclasses.replace(whole, sentences=sentences(whole))


def waiting_marks(marks: Sequence[tuple[Mark, int]]) -> tuple[MarkFacts, ...]:
    """The first marks that wait, each with the number of messages without an answer before it."""
    return tuple(
        MarkFacts(
            kind=(
                "watermark"
                if isinstance(mark, Watermark)
                else "idle"
                if isinstance(mark, Idle)
                else "active"
            ),
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
    """Whether times are plain numbers.

    Windows on the clock and watermarks that follow the clock have instants, even before a message
    shows a type.
    """
    if operator.spec.window.axis is Axis.CLOCK:
        return False
    unseen = operator.schema is None and operator.spec.window.axis.is_time
    return operator.ticks and not (
        unseen and any(isinstance(given.watermark, Lagging) for given in operator.spec.inputs)
    )


def _fires_on_elements(trigger: Trigger, *, is_complete: bool) -> bool:
    """Whether more events alone may make the trigger fire, before or after completion."""
    match trigger:
        case AfterWatermark(early=early, late=late):
            wiring: tuple[Trigger | None, ...] = (late,) if is_complete else (early,)
        case Policy(early=early, late=late, full=full):
            wiring = (late,) if is_complete else (early, full)
        case AfterCount() | EveryElement() | AfterDelay(delay=0):
            return True
        case _:
            wiring = trigger.children
    return any(
        part is not None and _fires_on_elements(part, is_complete=is_complete) for part in wiring
    )


# Inputs and sources


def _inputs(watermark_tracker: WatermarkTracker, key: int) -> tuple[InputFacts, ...]:
    """The inputs that have the watermark key."""
    # Asking for an unknown key would create it.
    across = (
        watermark_tracker.across.coalescer(key) if key in watermark_tracker.across.keys else None
    )
    ordinals = [
        ordinal
        for ordinal in range(len(watermark_tracker.columns))
        if watermark_tracker.has(key, ordinal)
    ]
    holders = set(ordinals if across is None else across.holders().tolist())
    paused = watermark_tracker.paused()
    found = []
    for ordinal in ordinals:
        column = watermark_tracker.columns[ordinal][key]
        watermark = column.spec.watermark
        found.append(
            InputFacts(
                input=ordinal,
                kind=str(watermark.to_dict()["type"]),
                status="active" if across is None else STATUS[int(across.status[ordinal])],
                promise=None if across is None else _known(int(across.promises[ordinal])),
                since=column.sources.since,
                sources=len(column.sources),
                holds=ordinal in holders,
                behind=_behind(watermark),
                idle_after=watermark.idle_after if isinstance(watermark, Watched) else None,
                idle_at=_idle_at(column),
                is_explicit=isinstance(watermark, Explicit)
                or (column.is_external and isinstance(watermark, Implied)),
                paused=column.is_source and PausedSource(ordinal, "") in paused,
            )
        )
    return tuple(found)


def _idle_at(column: TimeColumnTracker) -> int | None:
    idle_after = column.sources.idle_after
    return (
        int(saturating_add(column.spoke_at, idle_after))
        if column.is_awake and column.is_source and idle_after is not None
        else None
    )


def _behind(watermark: Watermarks) -> int | None:
    match watermark:
        case Implied():
            return 0
        case Bounded(disorder=behind) | PerKey(floor=behind) | Lagging(lag=behind):
            return behind
    return None


def _sources(
    watermark_tracker: WatermarkTracker, key: int, inputs: tuple[InputFacts, ...]
) -> tuple[SourceFacts, ...]:
    paused = {(source.input, source.name) for source in watermark_tracker.paused()}
    found = []
    for given in inputs:
        column = watermark_tracker.columns[given.input][key]
        watermark = column.spec.watermark
        declared = set(watermark.declared) if isinstance(watermark, Watched) else set()
        for state in column.sources.describe():
            idles = given.idle_after is not None and state.status == "active"
            found.append(
                SourceFacts(
                    input=given.input,
                    name=state.name,
                    status=state.status,
                    promise=state.promise,
                    spoke_at=state.spoke_at,
                    moved_at=state.moved_at,
                    holds=state.holds and given.holds,
                    paused=(given.input, state.name) in paused,
                    idle_at=(
                        int(saturating_add(state.spoke_at, given.idle_after or 0))
                        if idles
                        else None
                    ),
                    declared=state.name in declared,
                )
            )
    return tuple(found)


def _partitions(operator: WindowedAggregate) -> tuple[SourceFacts, ...]:
    """On offsets, the progress of every partition is its highest offset."""
    marks, least = operator.marks.marks, operator.marks.progress()
    return tuple(
        SourceFacts(0, name, "active", mark + 1, None, None, mark + 1 == least)
        for name, mark in marks.items()
    )


# Windows


def waiting_windows(operator: WindowedAggregate, cells: Frame) -> dict[int, WindowFacts]:
    """What each of these cells waits for, by row; cells without a pending pane are left out."""
    found = _Waiting(operator, scans=True, cells=cells)
    return {row: window for row, window in enumerate(found.of_cells) if window is not None}


class _Waiting:
    """The windows of an operator with a pending pane, or what single cells wait for."""

    def __init__(
        self, operator: WindowedAggregate, *, scans: bool, cells: Frame | None = None
    ) -> None:
        self._operator = operator
        self.windows: tuple[WindowFacts, ...] = ()
        self.total = 0
        self.unlisted = 0
        self.kept = 0
        self.keys: tuple[KeyFacts, ...] = ()
        self.of_cells: list[WindowFacts | None] = []
        if operator.wiring is not None and cells is not None:
            self.of_cells = [
                next(iter(self._pending(operator.wiring, cells.take(np.array([row])))), None)
                for row in range(len(cells))
            ]
        elif operator.wiring is not None:
            found = (
                [*self._held(operator.wiring), *self._opened(operator.wiring)]
                if scans
                else self._summarized(operator.wiring)
            )
            self.windows = tuple(
                sorted(found, key=lambda window: (window.end, window.start))[:LISTED]
            )

    def _opened(self, wiring: Wiring) -> list[WindowFacts]:
        """Windows in slices: their triggers do not fire before completion, so all are alike."""
        if wiring.slice_buffer is None:
            return []
        found, total = wiring.slice_buffer.waiting(LISTED, COUNTED)
        self.total += total
        return self._alike(wiring, found)

    def _summarized(self, wiring: Wiring) -> list[WindowFacts]:
        """The windows of a summary, as if nothing but the watermark and elements fired them."""
        listed = summary([self._operator])
        found = [((row["start"], row["end"]), row["keys"]) for row in listed["windows"]]
        self.total = len(found)
        self.unlisted = listed["windows_open"] if not found else 0
        return self._alike(wiring, found)

    def _alike(
        self, wiring: Wiring, found: Sequence[tuple[tuple[int, int], int | None]]
    ) -> list[WindowFacts]:
        """Windows whose trigger has not fired, with their numbers of keys."""
        if not found:
            return []
        context, now, watermark = (
            wiring.context,
            wiring.context.progress.now,
            wiring.context.progress.watermark,
        )
        start, end = (np.array([bounds[side] for bounds, _ in found], np.int64) for side in (0, 1))
        trigger_context = TriggerContext(end, watermark, now, np.ones(len(found), np.int64))
        due = context.machine.watermark_due(
            context.machine.initial(len(found), now), trigger_context
        )
        expiry = context.expiry(end)
        return [
            self._window(
                (int(start[n]), int(end[n])),
                keys,
                due=int(due[n]),
                expiry=int(expiry[n]),
                reached=watermark,
            )
            for n, (_, keys) in enumerate(found)
        ]

    def _held(self, wiring: Wiring) -> list[WindowFacts]:
        """Windows in cells, one per key."""
        context = wiring.context
        per_key = context.watermarks.keys is not None
        names = [
            *IDENTITY,
            "pending",
            "closed",
            "clock_due",
            "pane_index",
            "expiry",
            *context.machine.columns,
        ]
        names += context.key_columns if per_key else []
        names += ["ordinal"] if context.spec.window.axis is Axis.ORDINAL else []
        frames = [frame for frame in context.cells.frames(names) if len(frame)]
        if not frames:
            return []
        return self._pending(wiring, concat_frames(frames))

    def _pending(self, wiring: Wiring, cells: Frame) -> list[WindowFacts]:
        """The windows of cells that are not closed and owe a pane."""
        context = wiring.context
        per_key = context.watermarks.keys is not None
        cells = cells.where(~cells.ints("closed"))
        if not len(cells):
            return []
        reached = np.broadcast_to(
            np.asarray(context.watermarks.of_cells(cells), np.int64), len(cells)
        )
        owes = (cells.ints("end") > reached) | (cells.ints("pending") > 0)
        self.kept = int(len(cells) - owes.sum())
        cells, reached = cells.where(owes), reached[owes]
        if not len(cells):
            return []
        if per_key:
            self.keys = self._waited_keys(cells, reached)
        return self._grouped(wiring, cells, reached)

    def _grouped(self, wiring: Wiring, cells: Frame, reached: np.ndarray) -> list[WindowFacts]:
        """One entry for all keys of a window that are in the same state."""
        context, end = wiring.context, cells.ints("end")
        trigger_context = TriggerContext(end, reached, context.progress.now, cells.ints("pending"))
        due = context.machine.watermark_due(
            {name: cells.ints(name) for name in context.machine.columns}, trigger_context
        )
        groups = Groups.by([cells.ints("start"), end, (end <= reached).astype(np.int64)])
        first = groups.firsts
        self.total += groups.n
        order = np.lexsort((cells.ints("start")[first], end[first]))[:LISTED]
        dues, clocks, fired = (
            groups.min(due),
            groups.min(cells.ints("clock_due")),
            groups.max(cells.ints("pane_index")),
        )
        # The distance of the key that is nearest to what its window waits for.
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
    ) -> WindowFacts:
        axis = self._operator.spec.window.axis
        reached = self._operator.progress.now if axis is Axis.CLOCK else reached
        wanted = due if due != MAX else expiry if clock == MAX else MAX
        return WindowFacts(
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

    def _waited_keys(self, cells: Frame, reached: np.ndarray) -> tuple[KeyFacts, ...]:
        """The first due keys whose watermark has not reached the end of their window."""
        behind = np.flatnonzero(cells.ints("end") > reached)
        end = cells.ints("end")[behind]
        chosen = behind[np.lexsort((reached[behind], end))[:LISTED_KEYS]]
        names = self._operator.spec.input.key
        some = cells.take(chosen)
        values = [values_of(to_arrow(some[f"k.{name}"])) for name in names]
        return tuple(
            KeyFacts(
                key=dict(zip(names, (column[n] for column in values), strict=True)),
                watermark=_known(int(reached[row])),
                start=int(some.ints("start")[n]),
                end=int(some.ints("end")[n]),
            )
            for n, row in enumerate(chosen.tolist())
        )
