"""A trigger node at run time: it reads and writes its own state columns, for all rows at once.

Contract. A row is one (key, window). A column is named `t.<node number>.<field>` and is bool or
int64. Verbs take a mask of rows, never a row number, and no verb loops over rows. What happens to a
field when rows are cleared, reset or merged is declared with it (`Field`); a node adds code only
for other rules.

- `clear` resets what belongs to the pending pane (counts, deadlines); `reset` also resets progress
  (finished, phase, position in a sequence).
- A finished node is never ready.
- Every leaf has a column, so that any state has a row count.
"""

# ruff: noqa: ARG002 (all nodes share one signature, and few need all of it)

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

import numpy as np

from tidegate.instants import MAX, saturating_add
from tidegate.kernel.groups import Groups

State = dict[str, np.ndarray]
"""The columns of some rows."""


@dataclass(frozen=True, slots=True, eq=False)
class TriggerContext:
    """Window ends, watermark and clock for the rows at hand.

    `pending` counts the elements since the row's last pane: in `on_elements` without the new ones,
    elsewhere with all of them (at a firing: those in the pane). `times` is the earliest time of the
    new elements of each row; only `EventInterval` reads it.
    """

    end: np.ndarray | int
    watermark: np.ndarray | int
    now: int
    pending: np.ndarray
    times: np.ndarray | None = None
    first_before: Callable[[np.ndarray | int], np.ndarray] | None = None
    """In `until`: how many of the coming elements of each row end with the first one whose time is
    below a bound; MAX without such an element.
    """

    @property
    def complete(self) -> np.ndarray:
        """Mask of rows whose window is complete."""
        return spread(np.greater_equal(self.watermark, self.end), self.pending)


def spread(values: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Values of rows, or one value for all of them, as a column."""
    # NumPy's own check costs ten times as much, which small deliveries notice.
    return values if values.shape == like.shape else np.broadcast_to(values, like.shape)


class Life(Enum):
    """Lifetime of the value of a field: until the pane fires, until the trigger restarts, or as
    long as the row.
    """

    PANE = "pane"
    PROGRESS = "progress"
    ROW = "row"


@dataclass(frozen=True, slots=True)
class Field:
    """A column of a node: initial value, merge rule and lifetime."""

    initial: bool | int
    merge: Callable[[Groups, np.ndarray], np.ndarray]
    life: Life

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(bool if isinstance(self.initial, bool) else np.int64)


COUNT = Field(0, Groups.sum, Life.PANE)
DUE = Field(MAX, Groups.min, Life.PANE)
FLAG = Field(False, Groups.all, Life.PROGRESS)
PLACE = Field(0, Groups.min, Life.PROGRESS)


def next_tick(x: np.ndarray | int, interval: int, phase: np.ndarray | int = 0) -> np.ndarray:
    """The first `phase + k * interval` strictly after x, computed without overflow."""
    return saturating_add(
        np.asarray(x), interval - np.mod(np.mod(x, interval) - np.mod(phase, interval), interval)
    )


class Node:
    """Base of all nodes: a leaf without state that is never ready."""

    fields: ClassVar[Mapping[str, Field]] = {}
    fires_on_elements: bool = False
    fires_early: bool = False
    needs_clock: bool = False
    reads_times: bool = False

    def __init__(self, children: tuple[Node, ...] = ()) -> None:
        self.children = children
        self.number = 0

    def walk(self) -> Iterator[Node]:
        """This node and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def name(self, field: str) -> str:
        return f"t.{self.number}.{field}"

    def read(self, state: State, field: str) -> np.ndarray:
        return state[self.name(field)]

    def write(self, state: State, field: str, mask: np.ndarray, value: np.ndarray | int) -> None:
        """Set the rows of the mask in place; a read-only column from a store is copied first."""
        name = self.name(field)
        if not state[name].flags.writeable:
            state[name] = state[name].copy()
        np.copyto(state[name], value, where=mask)

    def start(self, state: State, n: int, now: int) -> None:
        """Add this node's columns for n new rows."""
        for field, kind in self.fields.items():
            state[self.name(field)] = np.full(n, kind.initial, kind.dtype)

    def on_elements(
        self, state: State, mask: np.ndarray, count: np.ndarray, ctx: TriggerContext
    ) -> None:
        """Count new elements of the rows of the mask."""

    def ready(self, state: State, ctx: TriggerContext) -> np.ndarray:
        return np.zeros(ctx.pending.shape, bool)

    def until(self, state: State, ctx: TriggerContext) -> np.ndarray:
        """The number of further elements that make each row ready, 0 where it is; MAX for never.

        Clock and watermark stand still meanwhile, and the row has had an element under both.
        """
        further = 1 if self.fires_on_elements else MAX
        return np.where(self.ready(state, ctx), 0, further)

    def refires(self, state: State, ctx: TriggerContext) -> np.ndarray:
        """The rows in which a due interval requires a pane without new elements."""
        wants = np.zeros(ctx.pending.shape, bool)
        for child in self.children:
            wants |= child.refires(state, ctx) & ~child.finished(state)
        return wants

    def fire(self, state: State, mask: np.ndarray, ctx: TriggerContext) -> None:
        """Record that the rows of the mask emit a pane."""

    def finished(self, state: State) -> np.ndarray:
        return (
            self.read(state, "done")
            if "done" in self.fields
            else np.zeros(len(next(iter(state.values()))), bool)
        )

    def clear(self, state: State, mask: np.ndarray, ctx: TriggerContext | None) -> None:
        """Reset the pending pane of the rows of the mask; a merge has no context."""
        for node in self.walk():
            node.clear_own(state, mask, ctx)

    def reset(self, state: State, mask: np.ndarray, ctx: TriggerContext | None) -> None:
        """Reset the rows of the mask to the initial state; a merge has no context."""
        self.clear(state, mask, ctx)
        for node in self.walk():
            for field, kind in node.fields.items():
                if kind.life is Life.PROGRESS:
                    node.write(state, field, mask, kind.initial)

    def clear_own(self, state: State, mask: np.ndarray, ctx: TriggerContext | None) -> None:
        for field, kind in self.fields.items():
            if kind.life is Life.PANE:
                self.write(state, field, mask, kind.initial)

    def merge(self, state: State, groups: Groups, merged: State) -> None:
        """Add the merged columns of this node and of those below it."""
        for field, kind in self.fields.items():
            merged[self.name(field)] = kind.merge(groups, self.read(state, field))
        for child in self.children:
            child.merge(state, groups, merged)

    def rewind(self, state: State, mask: np.ndarray) -> None:
        """The windows of the mask were complete and, having grown, no longer are."""
        for child in self.children:
            child.rewind(state, mask)

    def watermark_due(self, state: State, ctx: TriggerContext) -> np.ndarray:
        """The next watermark above the current one at which this node or one below it may become
        ready.
        """
        return self._least(ctx, [child.watermark_due(state, ctx) for child in self.children])

    def clock_due(self, state: State, ctx: TriggerContext) -> np.ndarray:
        """The next clock time after the current one at which this node or one below it may become
        ready.
        """
        return self._least(ctx, [child.clock_due(state, ctx) for child in self.children])

    def _least(self, ctx: TriggerContext, dues: list[np.ndarray]) -> np.ndarray:
        least = np.full(ctx.pending.shape, MAX, np.int64)
        for due in dues:
            np.minimum(least, due, out=least)
        return least
