"""Leaf trigger nodes: by count, by clock, by event time, and constant ones."""

# ruff: noqa: ARG002 (all nodes share one signature, and few need all of it)

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from tidegate.instants import MAX, MIN, saturating_add
from tidegate.kernel.groups import Groups
from tidegate.kernel.triggers.node import (
    COUNT,
    DUE,
    FLAG,
    Field,
    Life,
    Node,
    State,
    TriggerContext,
    next_tick,
    spread,
)


def _ahead(due: np.ndarray | int, present: np.ndarray | int, ctx: TriggerContext) -> np.ndarray:
    """Due values that lie ahead, otherwise MAX."""
    return spread(np.where(np.greater(due, present), due, MAX), ctx.pending)


class NeverNode(Node):
    """Never ready, never finished."""

    fields: ClassVar[Mapping[str, Field]] = {"done": FLAG}


class DefaultNode(Node):
    """Ready whenever the window is complete; never finished."""

    fields: ClassVar[Mapping[str, Field]] = {"done": FLAG}
    fires_on_elements = True

    def ready(self, state: State, ctx: TriggerContext) -> np.ndarray:
        return ctx.complete.copy()

    def until(self, state: State, ctx: TriggerContext) -> np.ndarray:
        return np.where(ctx.complete, 0, MAX)

    def watermark_due(self, state: State, ctx: TriggerContext) -> np.ndarray:
        return _ahead(ctx.end, ctx.watermark, ctx)


class ElementNode(Node):
    """Ready whenever elements are pending; never finished."""

    fields: ClassVar[Mapping[str, Field]] = {"done": FLAG}
    fires_on_elements = True
    fires_early = True

    def ready(self, state: State, ctx: TriggerContext) -> np.ndarray:
        return ctx.pending > 0


class CountNode(Node):
    """Counts elements up to n, fires once."""

    fields: ClassVar[Mapping[str, Field]] = {"count": COUNT, "done": FLAG}
    fires_on_elements = True
    fires_early = True

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def on_elements(
        self, state: State, mask: np.ndarray, count: np.ndarray, ctx: TriggerContext
    ) -> None:
        self.write(state, "count", mask, self.read(state, "count") + count)

    def ready(self, state: State, ctx: TriggerContext) -> np.ndarray:
        return (self.read(state, "count") >= self.n) & ~self.read(state, "done")

    def until(self, state: State, ctx: TriggerContext) -> np.ndarray:
        rest = np.maximum(self.n - self.read(state, "count"), 0)
        return np.where(self.read(state, "done"), MAX, rest)

    def fire(self, state: State, mask: np.ndarray, ctx: TriggerContext) -> None:
        self.write(state, "count", mask, 0)
        self.write(state, "done", mask, True)


class DelayNode(Node):
    """A clock delay from the first element on, fires once."""

    fields: ClassVar[Mapping[str, Field]] = {"due": DUE, "done": FLAG}
    fires_early = True
    needs_clock = True

    def __init__(self, delay: int) -> None:
        super().__init__()
        self.delay = delay
        self.fires_on_elements = delay == 0

    def on_elements(
        self, state: State, mask: np.ndarray, count: np.ndarray, ctx: TriggerContext
    ) -> None:
        self.write(
            state,
            "due",
            mask & (self.read(state, "due") == MAX),
            saturating_add(ctx.now, self.delay),
        )

    def ready(self, state: State, ctx: TriggerContext) -> np.ndarray:
        due = self.read(state, "due")
        return (due <= ctx.now) & (due != MAX) & ~self.read(state, "done")

    def until(self, state: State, ctx: TriggerContext) -> np.ndarray:
        return np.where(self.ready(state, ctx), 0, MAX)

    def fire(self, state: State, mask: np.ndarray, ctx: TriggerContext) -> None:
        self.write(state, "due", mask, MAX)
        self.write(state, "done", mask, True)

    def clock_due(self, state: State, ctx: TriggerContext) -> np.ndarray:
        return _ahead(self.read(state, "due"), ctx.now, ctx)


class EveryNode(Node):
    """Ticks on the clock, counted from the creation of the row, of the oldest one after a merge;
    with `aligned` from the epoch.

    `due` is the tick for the pending elements, MAX without any: a tick that passed while nothing
    was pending must not fire a row that is merged with this one. With `refire` there is always a
    next tick.
    """

    fields: ClassVar[Mapping[str, Field]] = {"origin": Field(0, Groups.min, Life.ROW), "due": DUE}
    fires_early = True
    needs_clock = True

    def __init__(self, interval: int, *, refire: bool, aligned: bool = False) -> None:
        super().__init__()
        self.interval = interval
        self.refire = refire
        self.aligned = aligned

    def start(self, state: State, n: int, now: int) -> None:
        origin = 0 if self.aligned else now
        state[self.name("origin")] = np.full(n, origin, np.int64)
        first = next_tick(now, self.interval, origin) if self.refire else MAX
        state[self.name("due")] = np.full(n, first, np.int64)

    def on_elements(
        self, state: State, mask: np.ndarray, count: np.ndarray, ctx: TriggerContext
    ) -> None:
        if not self.refire:
            due = self.read(state, "due")
            # A pane of another part may have included the elements of this tick.
            stale = (due == MAX) | ((due <= ctx.now) & (ctx.pending == 0))
            self.write(state, "due", mask & stale, self._next(state, ctx))

    def ready(self, state: State, ctx: TriggerContext) -> np.ndarray:
        due = self.read(state, "due")
        return (due <= ctx.now) & (due != MAX) & self._wanted(ctx)

    def refires(self, state: State, ctx: TriggerContext) -> np.ndarray:
        return self.ready(state, ctx) & self.refire

    def fire(self, state: State, mask: np.ndarray, ctx: TriggerContext) -> None:
        self.clear_own(state, mask, ctx)

    def clear_own(self, state: State, mask: np.ndarray, ctx: TriggerContext | None) -> None:
        if not self.refire:
            self.write(state, "due", mask, MAX)
        elif ctx is not None:
            self.write(state, "due", mask, self._next(state, ctx))

    def clock_due(self, state: State, ctx: TriggerContext) -> np.ndarray:
        return np.where(self._wanted(ctx), _ahead(self.read(state, "due"), ctx.now, ctx), MAX)

    def _next(self, state: State, ctx: TriggerContext) -> np.ndarray:
        return next_tick(ctx.now, self.interval, self.read(state, "origin"))

    def _wanted(self, ctx: TriggerContext) -> np.ndarray:
        return np.ones(ctx.pending.shape, bool) if self.refire else ctx.pending > 0


class EventIntervalNode(Node):
    """Ticks at the multiples of an interval on event time.

    Until the first firing `due` is the first multiple above the earliest element, in any order of
    arrival. A firing moves it, and `floor` with it, to the first multiple above the watermark, so
    that a late element cannot bring back a passed tick.
    """

    fields: ClassVar[Mapping[str, Field]] = {"due": DUE, "floor": Field(MIN, Groups.min, Life.ROW)}
    fires_on_elements = True
    fires_early = True
    reads_times = True

    def __init__(self, interval: int, *, refire: bool) -> None:
        super().__init__()
        self.interval = interval
        self.refire = refire

    def on_elements(
        self, state: State, mask: np.ndarray, count: np.ndarray, ctx: TriggerContext
    ) -> None:
        if ctx.times is None:
            raise ValueError(
                "`EventInterval` needs `ctx.times`, the earliest time of the new elements of each"
                " row, got None"
            )
        tick = np.maximum(next_tick(ctx.times, self.interval), self.read(state, "floor"))
        due = self.read(state, "due")
        self.write(
            state, "due", mask & (due == MAX) if self.refire else mask, np.minimum(due, tick)
        )

    def ready(self, state: State, ctx: TriggerContext) -> np.ndarray:
        due = self.read(state, "due")
        return (due <= ctx.watermark) & (due != MAX) & (self.refire | (ctx.pending > 0))

    def until(self, state: State, ctx: TriggerContext) -> np.ndarray:
        ready = self.ready(state, ctx)
        if ctx.first_before is None:
            return np.where(ready, 0, 1)
        due, floor = self.read(state, "due"), self.read(state, "floor")
        # An element makes a row ready if a tick lies after its time and not above the watermark.
        may = np.less_equal(floor, ctx.watermark)
        if self.refire:
            may &= due == MAX
        watermark = np.maximum(ctx.watermark, MIN + self.interval)
        newest = watermark - np.mod(watermark, self.interval)
        further = np.where(may, ctx.first_before(newest), MAX)
        return np.where(ready, 0, further)

    def refires(self, state: State, ctx: TriggerContext) -> np.ndarray:
        return self.ready(state, ctx) & self.refire

    def fire(self, state: State, mask: np.ndarray, ctx: TriggerContext) -> None:
        self.clear_own(state, mask, ctx)

    def clear_own(self, state: State, mask: np.ndarray, ctx: TriggerContext | None) -> None:
        # In a merge this part has not started; it is cleared again, with a context, when it starts.
        if ctx is not None:
            tick = next_tick(ctx.watermark, self.interval)
            self.write(state, "due", mask, np.where(tick == MIN, MAX, tick))
            self.write(state, "floor", mask, tick)

    def watermark_due(self, state: State, ctx: TriggerContext) -> np.ndarray:
        return np.where(
            self.refire | (ctx.pending > 0),
            _ahead(self.read(state, "due"), ctx.watermark, ctx),
            MAX,
        )
