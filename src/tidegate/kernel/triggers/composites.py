"""Composite trigger nodes: they route elements and firings to the parts active in each row."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import ClassVar

import numpy as np

from tidegate.instants import MAX
from tidegate.kernel.groups import Groups
from tidegate.kernel.triggers.node import FLAG, PLACE, Field, Node, State, TriggerContext


class RepeatNode(Node):
    """Restarts its part whenever that has finished."""

    def __init__(self, child: Node) -> None:
        super().__init__((child,))
        self.child = child
        self.fires_on_elements = child.fires_on_elements
        self.fires_early = child.fires_early

    def on_elements(
        self, state: State, mask: np.ndarray, count: np.ndarray, ctx: TriggerContext
    ) -> None:
        self.child.on_elements(state, mask, count, ctx)

    def ready(self, state: State, ctx: TriggerContext) -> np.ndarray:
        return self.child.ready(state, ctx)

    def until(self, state: State, ctx: TriggerContext) -> np.ndarray:
        return self.child.until(state, ctx)

    def fire(self, state: State, mask: np.ndarray, ctx: TriggerContext) -> None:
        self.child.fire(state, mask, ctx)
        self.child.reset(state, mask & self.child.finished(state), ctx)


class EachNode(Node):
    """Runs its parts in order; `at` is the index of the running one."""

    fields: ClassVar[Mapping[str, Field]] = {"at": PLACE}

    def __init__(self, children: tuple[Node, ...]) -> None:
        super().__init__(children)
        self.fires_on_elements = any(child.fires_on_elements for child in children)
        # A part that never fires early finishes no earlier than the window completes, so the
        # parts after it are not early either.
        self.fires_early = children[0].fires_early

    def on_elements(
        self, state: State, mask: np.ndarray, count: np.ndarray, ctx: TriggerContext
    ) -> None:
        at = self.read(state, "at")
        for place, child in enumerate(self.children):
            child.on_elements(state, mask & (at == place), count, ctx)

    def ready(self, state: State, ctx: TriggerContext) -> np.ndarray:
        at = self.read(state, "at")
        return _any(
            [child.ready(state, ctx) & (at == place) for place, child in enumerate(self.children)]
        )

    def until(self, state: State, ctx: TriggerContext) -> np.ndarray:
        """That of the running part; the parts after it have not had the elements so far."""
        return self._least(
            ctx,
            [
                self._where_running(state, i, child.until(state, ctx))
                for i, child in enumerate(self.children)
            ],
        )

    def fire(self, state: State, mask: np.ndarray, ctx: TriggerContext) -> None:
        at = self.read(state, "at").copy()
        for place, child in enumerate(self.children):
            running = mask & (at == place)
            child.fire(state, running, ctx)
            over = running & child.finished(state)
            self.write(state, "at", over, place + 1)
            if place + 1 < len(self.children):
                self.children[place + 1].reset(state, over, ctx)

    def refires(self, state: State, ctx: TriggerContext) -> np.ndarray:
        at = self.read(state, "at")
        return _any(
            [child.refires(state, ctx) & (at == place) for place, child in enumerate(self.children)]
        )

    def finished(self, state: State) -> np.ndarray:
        return self.read(state, "at") == len(self.children)

    def merge(self, state: State, groups: Groups, merged: State) -> None:
        """Return to the first part that had not finished in all rows; later parts have not
        started.
        """
        super().merge(state, groups, merged)
        at = self.read(merged, "at")
        for place, child in enumerate(self.children):
            child.reset(merged, at < place, None)

    def watermark_due(self, state: State, ctx: TriggerContext) -> np.ndarray:
        return self._least(
            ctx,
            [
                self._where_running(state, i, child.watermark_due(state, ctx))
                for i, child in enumerate(self.children)
            ],
        )

    def clock_due(self, state: State, ctx: TriggerContext) -> np.ndarray:
        return self._least(
            ctx,
            [
                self._where_running(state, i, child.clock_due(state, ctx))
                for i, child in enumerate(self.children)
            ],
        )

    def _where_running(self, state: State, place: int, due: np.ndarray) -> np.ndarray:
        return np.where(self.read(state, "at") == place, due, MAX)


class _OnceNode(Node):
    """Fires once for all its parts together, so no part fires or finishes on its own."""

    fields: ClassVar[Mapping[str, Field]] = {"done": FLAG}

    def on_elements(
        self, state: State, mask: np.ndarray, count: np.ndarray, ctx: TriggerContext
    ) -> None:
        for child in self.children:
            child.on_elements(state, mask, count, ctx)

    def refires(self, state: State, ctx: TriggerContext) -> np.ndarray:
        return self.ready(state, ctx) & super().refires(state, ctx)

    def fire(self, state: State, mask: np.ndarray, ctx: TriggerContext) -> None:
        """The pane contains everything the parts waited for."""
        for child in self.children:
            child.clear(state, mask, ctx)
        self.write(state, "done", mask, True)


class AllNode(_OnceNode):
    """Ready when all its parts are."""

    def __init__(self, children: tuple[Node, ...]) -> None:
        super().__init__(children)
        self.fires_on_elements = any(child.fires_on_elements for child in children)
        self.fires_early = all(child.fires_early for child in children)

    def ready(self, state: State, ctx: TriggerContext) -> np.ndarray:
        return reduce(
            np.logical_and, [child.ready(state, ctx) for child in self.children]
        ) & ~self.read(state, "done")

    def until(self, state: State, ctx: TriggerContext) -> np.ndarray:
        most = reduce(np.maximum, [child.until(state, ctx) for child in self.children])
        return np.where(self.read(state, "done"), MAX, most)


class AnyNode(_OnceNode):
    """Ready when one of its parts is."""

    def __init__(self, children: tuple[Node, ...]) -> None:
        super().__init__(children)
        self.fires_on_elements = any(child.fires_on_elements for child in children)
        self.fires_early = any(child.fires_early for child in children)

    def ready(self, state: State, ctx: TriggerContext) -> np.ndarray:
        return _any([child.ready(state, ctx) for child in self.children]) & ~self.read(
            state, "done"
        )

    def until(self, state: State, ctx: TriggerContext) -> np.ndarray:
        least = self._least(ctx, [child.until(state, ctx) for child in self.children])
        return np.where(self.read(state, "done"), MAX, least)


class FinallyNode(Node):
    """Runs `main` until it finishes or `until` is ready at a firing. Firings of `main` do not clear
    `until`, kept as `last`.
    """

    fields: ClassVar[Mapping[str, Field]] = {"done": FLAG}

    def __init__(self, main: Node, until: Node) -> None:
        super().__init__((main, until))
        self.main = main
        self.last = until
        self.fires_on_elements = main.fires_on_elements or until.fires_on_elements
        self.fires_early = main.fires_early or until.fires_early

    def on_elements(
        self, state: State, mask: np.ndarray, count: np.ndarray, ctx: TriggerContext
    ) -> None:
        self.main.on_elements(state, mask, count, ctx)
        self.last.on_elements(state, mask, count, ctx)

    def ready(self, state: State, ctx: TriggerContext) -> np.ndarray:
        return (self.main.ready(state, ctx) | self.last.ready(state, ctx)) & ~self.read(
            state, "done"
        )

    def until(self, state: State, ctx: TriggerContext) -> np.ndarray:
        least = np.minimum(self.main.until(state, ctx), self.last.until(state, ctx))
        return np.where(self.read(state, "done"), MAX, least)

    def fire(self, state: State, mask: np.ndarray, ctx: TriggerContext) -> None:
        last = mask & self.last.ready(state, ctx)
        self.last.fire(state, last, ctx)
        self.main.clear(state, last, ctx)
        self.main.fire(state, mask & ~last, ctx)
        self.write(state, "done", last | (mask & self.main.finished(state)), True)


class WatermarkNode(Node):
    """Fires when the window is complete; `late` marks the rows that have done so.

    The early part runs before, the late part after, and each restarts when it has finished. With
    `stops` (the named policies) a finished early part stays finished, and a window that a late
    element opens starts with the late part. A `full` part that is ready completes a window before
    the watermark does.
    """

    fields: ClassVar[Mapping[str, Field]] = {"late": FLAG}
    fires_on_elements = True

    def __init__(
        self, early: Node | None, late: Node | None, full: Node | None = None, *, stops: bool
    ) -> None:
        super().__init__(tuple(child for child in (early, late, full) if child is not None))
        self.early = early
        self.late = late
        self.full = full
        self.stops = stops
        self.fires_early = any(part is not None and part.fires_early for part in (early, full))

    def _is_full(self, state: State, ctx: TriggerContext) -> np.ndarray:
        return ctx.complete if self.full is None else ctx.complete | self.full.ready(state, ctx)

    def on_elements(
        self, state: State, mask: np.ndarray, count: np.ndarray, ctx: TriggerContext
    ) -> None:
        if self.stops and self.late is not None:
            self._open_late(state, mask, ctx)
        late = self.read(state, "late")
        if self.early is not None:
            self.early.on_elements(state, mask & ~late & ~self.early.finished(state), count, ctx)
        if self.full is not None:
            self.full.on_elements(state, mask & ~late & ~self.full.finished(state), count, ctx)
        if self.late is not None:
            self.late.on_elements(state, mask & late, count, ctx)

    def _open_late(self, state: State, mask: np.ndarray, ctx: TriggerContext) -> None:
        """Start with the late part in windows that were complete before their first element."""
        if ctx.times is not None:
            opened = mask & ctx.complete & (ctx.pending == 0)
            self.write(state, "late", opened & np.less(ctx.times, ctx.watermark), True)

    def ready(self, state: State, ctx: TriggerContext) -> np.ndarray:
        late = self.read(state, "late")
        full = self._is_full(state, ctx)
        before = full if self.early is None else full | self.early.ready(state, ctx)
        return (
            before & ~late
            if self.late is None
            else np.where(late, self.late.ready(state, ctx), before)
        )

    def until(self, state: State, ctx: TriggerContext) -> np.ndarray:
        late = self.read(state, "late")
        early = [part.until(state, ctx) for part in (self.early, self.full) if part is not None]
        before = np.where(self._is_full(state, ctx), 0, self._least(ctx, early))
        after = self._least(ctx, [] if self.late is None else [self.late.until(state, ctx)])
        return np.where(late, after, before)

    def fire(self, state: State, mask: np.ndarray, ctx: TriggerContext) -> None:
        late = self.read(state, "late").copy()
        full = self._is_full(state, ctx)
        now_complete = mask & ~late & full
        if self.early is not None:
            self._fire_early(self.early, state, mask & ~late & ~full, ctx)
            self.early.clear(state, now_complete, ctx)
        if self.full is not None:
            self.full.reset(state, now_complete, ctx)
        self.write(state, "late", now_complete, True)
        if self.late is not None:
            self.late.fire(state, mask & late, ctx)
            over = mask & late & self.late.finished(state)
            self.late.reset(state, over | now_complete, ctx)

    def refires(self, state: State, ctx: TriggerContext) -> np.ndarray:
        nothing = np.zeros(ctx.pending.shape, bool)
        early = (
            nothing
            if self.early is None
            else self.early.refires(state, ctx) & ~self.early.finished(state)
        )
        late = nothing if self.late is None else self.late.refires(state, ctx)
        return np.where(self.read(state, "late"), late, early)

    def _fire_early(self, early: Node, state: State, mask: np.ndarray, ctx: TriggerContext) -> None:
        early.fire(state, mask, ctx)
        if not self.stops:
            early.reset(state, mask & early.finished(state), ctx)

    def finished(self, state: State) -> np.ndarray:
        return (
            self.read(state, "late")
            if self.late is None
            else np.zeros_like(self.read(state, "late"))
        )

    def merge(self, state: State, groups: Groups, merged: State) -> None:
        """Unless all rows were late, the window completes again and its late part has not
        started.
        """
        super().merge(state, groups, merged)
        if self.late is not None:
            self.late.reset(merged, ~self.read(merged, "late"), None)

    def rewind(self, state: State, mask: np.ndarray) -> None:
        """The windows complete again and the parts restart; a finished early part of a policy stays
        finished.
        """
        back = mask & self.read(state, "late")
        for child in self.children:
            if child is not self.early or not self.stops:
                child.reset(state, back, None)
        self.write(state, "late", back, False)

    def watermark_due(self, state: State, ctx: TriggerContext) -> np.ndarray:
        early = [
            part.watermark_due(state, ctx) for part in (self.early, self.full) if part is not None
        ]
        end = np.where(np.greater(ctx.end, ctx.watermark), ctx.end, MAX)
        late = self._least(ctx, [] if self.late is None else [self.late.watermark_due(state, ctx)])
        return np.where(self.read(state, "late"), late, self._least(ctx, [*early, end]))

    def clock_due(self, state: State, ctx: TriggerContext) -> np.ndarray:
        early = self._least(
            ctx,
            [part.clock_due(state, ctx) for part in (self.early, self.full) if part is not None],
        )
        late = self._least(ctx, [] if self.late is None else [self.late.clock_due(state, ctx)])
        return np.where(self.read(state, "late"), late, early)


def _any(masks: list[np.ndarray]) -> np.ndarray:
    return reduce(np.logical_or, masks)
