"""The state machine of a trigger: state in columns, verbs over all (key, window) rows at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tidegate.errors import SpecError
from tidegate.instants import MAX
from tidegate.kernel.groups import Groups
from tidegate.kernel.triggers import composites, leaves
from tidegate.kernel.triggers.node import Node, State, TriggerContext
from tidegate.spec import triggers as spec
from tidegate.spec.triggers import Trigger

_FURTHER_NODES: dict[type[Trigger], Callable[[], Node]] = {}


def register_trigger(trigger: type[Trigger], node: Callable[[], Node]) -> None:
    """Let machines run a further leaf trigger, each occurrence by a new node.

    Extension point for triggers that Tidegate does not offer. The module of the trigger registers
    it when it is imported, so that a worker that unpickles a specification knows it too.
    """
    _FURTHER_NODES[trigger] = node


def compile_trigger(trigger: Trigger) -> Machine:
    """The state machine of a trigger specification."""
    return Machine(trigger)


class Machine:
    """The state machine of one trigger.

    The caller owns the state columns: `initial` creates them, the other verbs change rows in place
    (a read-only column is replaced in the mapping), and `merge` returns new ones. The caller sets
    `pending` of a fired row to zero.
    """

    def __init__(self, trigger: Trigger) -> None:
        self.trigger = trigger
        self._root = _node(trigger)
        self.nodes = list(self._root.walk())
        for number, node in enumerate(self.nodes):
            node.number = number
        self.fires_on_elements = self._root.fires_on_elements
        """Whether an element may make a row ready, also in a complete window."""
        self.fires_early = self._root.fires_early
        """Whether a row may fire before its window is complete."""
        self.needs_clock = any(node.needs_clock for node in self.nodes)
        """Whether the clock alone may make a row ready."""
        self.reads_times = any(node.reads_times for node in self.nodes)
        """Whether the time of an element may make a row ready."""
        self.has_full = any(
            isinstance(node, composites.WatermarkNode) and node.full is not None
            for node in self.nodes
        )
        """Whether elements may complete a window before the watermark does."""
        self.columns = {
            node.name(field): kind.dtype
            for node in self.nodes
            for field, kind in node.fields.items()
        }
        """The state columns and their types."""

    def initial(self, n: int, now: int) -> State:
        """The columns of n rows created at clock `now`."""
        state: State = {}
        for node in self.nodes:
            node.start(state, n, now)
        return state

    def on_elements(self, state: State, count: np.ndarray, ctx: TriggerContext) -> None:
        """Count new elements: each row got `count` (at least one) at clock `ctx.now`. `ctx.pending`
        does not include them yet.
        """
        self._root.on_elements(state, ~self._root.finished(state), count, ctx)

    def ready(self, state: State, ctx: TriggerContext) -> np.ndarray:
        """The rows that should fire now."""
        return self._root.ready(state, ctx)

    def until(self, state: State, ctx: TriggerContext) -> np.ndarray:
        """After how many further elements each row is ready, 0 where it is; MAX for never.

        For rows that have had an element under this clock and this watermark, which stand still.
        """
        return np.where(self._root.finished(state), MAX, self._root.until(state, ctx))

    def refires(self, state: State, ctx: TriggerContext) -> np.ndarray:
        """The rows in which a due interval requires a pane without new elements."""
        return self._root.refires(state, ctx)

    def fire(self, state: State, mask: np.ndarray, ctx: TriggerContext) -> None:
        """Fire the rows of the mask, ready or not."""
        self._root.fire(state, mask, ctx)

    def finished(self, state: State) -> np.ndarray:
        """The rows that never fire again, unless a merge revives them."""
        return self._root.finished(state).copy()

    def full(self, state: State, n: int) -> np.ndarray:
        """Which of the n rows a full-size policy, or the watermark after it, has completed.

        A policy that is a part of another trigger completes no window.
        """
        root = self._root
        if isinstance(root, composites.WatermarkNode) and root.full is not None:
            return root.read(state, "late")
        return np.zeros(n, bool)

    def merge(self, state: State, groups: Groups) -> State:
        """One row per group of rows that merged into one window.

        A part has finished if it had in all rows of the group; counts add up, the earliest deadline
        stays.
        """
        merged: State = {}
        self._root.merge(state, groups, merged)
        return merged

    def rewind(self, state: State, mask: np.ndarray) -> None:
        """The windows of the mask were complete and grew beyond the watermark: they complete
        again.
        """
        self._root.rewind(state, mask)

    def watermark_due(self, state: State, ctx: TriggerContext) -> np.ndarray:
        """The next watermark, above the current one, at which a row could become ready; MAX if
        none. A row woken there may not be ready yet.
        """
        return np.where(self._root.finished(state), MAX, self._root.watermark_due(state, ctx))

    def clock_due(self, state: State, ctx: TriggerContext) -> np.ndarray:
        """The next clock time, after the current one, at which a row could become ready; MAX if
        none.
        """
        return np.where(self._root.finished(state), MAX, self._root.clock_due(state, ctx))


def _node(trigger: Trigger) -> Node:
    """The tree of nodes of a tree of triggers."""
    match trigger:
        case spec.AfterWatermark(early=early, late=late):
            return composites.WatermarkNode(_part(early), _part(late), stops=False)
        case spec.Policy(early=early, late=late, full=full):
            return composites.WatermarkNode(_part(early), _part(late), _part(full), stops=True)
        case spec.Repeatedly(trigger=repeated):
            return composites.RepeatNode(_node(repeated))
        case spec.OrFinally(main=main, until=until):
            return composites.FinallyNode(_node(main), _node(until))
        case spec.AfterEach(triggers=parts):
            return composites.EachNode(tuple(map(_node, parts)))
        case spec.AfterAll(triggers=parts):
            return composites.AllNode(tuple(map(_node, parts)))
        case spec.AfterAny(triggers=parts):
            return composites.AnyNode(tuple(map(_node, parts)))
    return _leaf(trigger)


def _part(trigger: Trigger | None) -> Node | None:
    return None if trigger is None else _node(trigger)


def _leaf(trigger: Trigger) -> Node:
    match trigger:
        case spec.AfterCount(n=n):
            return leaves.CountNode(n)
        case spec.AfterDelay(delay=delay):
            return leaves.DelayNode(delay)
        case spec.Every(interval=interval, refire=refire, aligned=aligned):
            return leaves.EveryNode(interval, refire=refire, aligned=aligned)
        case spec.EventInterval(interval=interval, refire=refire):
            return leaves.EventIntervalNode(interval, refire=refire)
        case spec.EveryElement():
            return leaves.ElementNode()
        case spec.Default():
            return leaves.DefaultNode()
        case spec.Never():
            return leaves.NeverNode()
    further = _FURTHER_NODES.get(type(trigger))
    if further is not None:
        return further()
    raise SpecError(
        f"`{trigger!r}` is not a trigger. Hint: use the triggers of `tidegate.spec.triggers`"
    )
