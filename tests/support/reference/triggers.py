"""Triggers as one small object per node and window, after Beam's state machines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from conformance.manual import Manual
from tidegate.instants import MIN
from tidegate.spec import triggers as spec


@dataclass(frozen=True)
class Moment:
    """What a trigger may look at: its window's end, the watermark, the clock, the elements since
    the last pane, the new element's time.
    """

    end: int
    watermark: int
    now: Any
    pending: int = 0
    time: int = 0

    @property
    def complete(self) -> bool:
        return self.watermark >= self.end


class Node:
    """A trigger that is never ready; base of the others."""

    def __init__(self, trigger: spec.Trigger, now: Any) -> None:
        self.spec = trigger
        self.finished = False
        self.begin(now)

    def begin(self, now: Any) -> None:
        """Make the state of a trigger that has seen nothing."""

    def clear(self, at: Moment) -> None:
        """Forget what belongs to the pane under way."""
        self.begin(at.now)

    def restart(self, at: Moment) -> None:
        """Forget progress as well."""
        self.clear(at)
        self.finished = False

    def element(self, at: Moment) -> None:
        """One element has come; `at.pending` does not count it."""

    def ready(self, at: Moment) -> bool:
        return False

    def fire(self, at: Moment) -> None:
        """A pane is made because this node is ready."""

    def refires(self, at: Moment) -> bool:
        """Whether a pane is wanted although nothing came."""
        return False

    def merge(self, nodes: list[Any], at: Moment) -> None:
        """Take the place of these nodes, which are those of the windows that became one; finished
        only if all of them are.
        """
        self.finished = all(n.finished for n in nodes)


class Count(Node):
    def begin(self, now):
        self.count = 0

    def element(self, at):
        self.count += 1

    def ready(self, at):
        return self.count >= self.spec.n

    def fire(self, at):
        self.count, self.finished = 0, True

    def merge(self, nodes, at):
        super().merge(nodes, at)
        self.count = sum(n.count for n in nodes)


class EachElement(Node):
    def begin(self, now):
        self.seen = False

    def element(self, at):
        self.seen = True

    def ready(self, at):
        return self.seen

    def fire(self, at):
        self.seen = False

    def merge(self, nodes, at):
        self.seen = any(n.seen for n in nodes)


class Delay(Node):
    def begin(self, now):
        self.deadline = None

    def element(self, at):
        if self.deadline is None:
            self.deadline = at.now + self.spec.delay

    def ready(self, at):
        return self.deadline is not None and at.now >= self.deadline

    def fire(self, at):
        self.deadline, self.finished = None, True

    def merge(self, nodes, at):
        super().merge(nodes, at)
        self.deadline = least(n.deadline for n in nodes)


class Ticks(Node):
    """`Every`: ticks of the clock, counted from the creation of the window's state, of the oldest
    one after a merge.
    """

    def begin(self, now):
        self.origin = 0 if self.spec.aligned else now
        self.due = self.next_tick(now) if self.spec.refire else None

    def clear(self, at):
        self.due = self.next_tick(at.now) if self.spec.refire else None

    def next_tick(self, now):
        return self.origin + ((now - self.origin) // self.spec.interval + 1) * self.spec.interval

    def element(self, at):
        if not self.spec.refire and (self.due is None or (at.pending == 0 and self.due <= at.now)):
            self.due = self.next_tick(at.now)

    def ready(self, at):
        return self.due is not None and at.now >= self.due and (self.spec.refire or at.pending > 0)

    def refires(self, at):
        return self.spec.refire and self.ready(at)

    def fire(self, at):
        self.clear(at)

    def merge(self, nodes, at):
        self.origin = min(n.origin for n in nodes)
        self.due = least(n.due for n in nodes)


class EventTicks(Node):
    """`EventInterval`: multiples of an interval on event time, from the earliest element on; a tick
    that has passed does not come back.
    """

    def begin(self, now):
        self.due, self.floor = None, MIN

    def clear(self, at):
        self.due, self.floor = (
            (None, MIN) if at.watermark == MIN else (self.after(at.watermark),) * 2
        )

    def after(self, instant):
        return (instant // self.spec.interval + 1) * self.spec.interval

    def element(self, at):
        self.due = least([self.due, max(self.after(at.time), self.floor)])

    def ready(self, at):
        return self.due is not None and at.watermark >= self.due and at.pending > 0

    def fire(self, at):
        self.clear(at)

    def merge(self, nodes, at):
        self.due = least(n.due for n in nodes)
        self.floor = min(n.floor for n in nodes)


class Level(Node):
    """`Default`: ready as long as the window is complete."""

    def ready(self, at):
        return at.complete


class ByHand(Node):
    """`Manual`: the switches are set from outside, for all windows at once."""

    switches: ClassVar[dict[str, bool]] = {"ready": False, "finishes": False}

    def ready(self, at):
        return self.switches["ready"]

    def fire(self, at):
        self.finished = self.switches["finishes"]


class Again(Node):
    """`Repeatedly`."""

    def begin(self, now):
        self.child = start(self.spec.trigger, now)

    def clear(self, at):
        self.child.clear(at)

    def restart(self, at):
        self.child.restart(at)

    def element(self, at):
        self.child.element(at)

    def ready(self, at):
        return self.child.ready(at)

    def refires(self, at):
        return self.child.refires(at)

    def fire(self, at):
        self.child.fire(at)
        if self.child.finished:
            self.child.restart(at)

    def merge(self, nodes, at):
        self.child.merge([n.child for n in nodes], at)


class Several(Node):
    """Base of the triggers made of others."""

    def begin(self, now):
        self.parts = [start(part, now) for part in self.spec.children]

    def clear(self, at):
        for part in self.parts:
            part.clear(at)

    def restart(self, at):
        self.finished = False
        for part in self.parts:
            part.restart(at)

    def active(self):
        return self.parts

    def element(self, at):
        for part in self.active():
            part.element(at)

    def refires(self, at):
        return any(part.refires(at) for part in self.active())

    def merge(self, nodes, at):
        super().merge(nodes, at)
        for i, part in enumerate(self.parts):
            part.merge([n.parts[i] for n in nodes], at)


class One(Several):
    """`AfterAny`."""

    def ready(self, at):
        return any(part.ready(at) for part in self.parts)

    def fire(self, at):
        self.restart(at)
        self.finished = True


class All(Several):
    """`AfterAll`."""

    def ready(self, at):
        return all(part.ready(at) for part in self.parts)

    def refires(self, at):
        return self.ready(at) and super().refires(at)

    def fire(self, at):
        self.restart(at)
        self.finished = True


class InTurn(Several):
    """`AfterEach`: the first part that has not finished is the one that runs."""

    def active(self):
        return [part for part in self.parts if not part.finished][:1]

    def ready(self, at):
        return any(part.ready(at) for part in self.active())

    def fire(self, at):
        running = self.active()[0]
        running.fire(at)
        if running.finished:
            for following in self.active():
                following.restart(at)
        self.finished = all(part.finished for part in self.parts)

    def merge(self, nodes, at):
        """Go back to the first part that had not finished everywhere; what follows it has not
        begun.
        """
        super().merge(nodes, at)
        for following in [
            part for i, part in enumerate(self.parts) if not all(p.finished for p in self.parts[:i])
        ]:
            following.restart(at)
        self.finished = all(part.finished for part in self.parts)


class Until(Several):
    """`OrFinally`."""

    def ready(self, at):
        return any(part.ready(at) for part in self.parts)

    def fire(self, at):
        main, until = self.parts
        if until.ready(at):
            until.fire(at)
            main.clear(at)
            self.finished = True
        else:
            main.fire(at)
            self.finished = main.finished


class Phases(Node):
    """`AfterWatermark` and `Policy`: the early part, the moment of completion, the late part."""

    def begin(self, now):
        repeats = isinstance(self.spec, spec.AfterWatermark)
        self.is_late = False
        self.early = (
            None
            if self.spec.early is None
            else start(spec.Repeatedly(self.spec.early) if repeats else self.spec.early, now)
        )
        self.late = None if self.spec.late is None else start(spec.Repeatedly(self.spec.late), now)
        full = None if repeats else self.spec.full
        self.full = None if full is None else start(full, now)

    @property
    def is_over(self):
        """Whether the window has been completed."""
        return self.is_late or self.finished

    def both(self):
        return [part for part in (self.early, self.late, self.full) if part is not None]

    def is_full(self, at):
        return at.complete or (
            self.full is not None and not self.full.finished and self.full.ready(at)
        )

    def clear(self, at):
        for part in self.both():
            part.clear(at)

    def restart(self, at):
        self.finished = self.is_late = False
        for part in self.both():
            part.restart(at)

    def part(self):
        """The part that runs now; an early part of a policy that has finished does not."""
        part = self.late if self.is_late else self.early
        return None if part is None or part.finished else part

    def element(self, at):
        opens_late = at.complete and at.pending == 0 and at.time < at.watermark
        if isinstance(self.spec, spec.Policy) and self.late is not None and opens_late:
            self.is_late = True
        if self.part() is not None:
            self.part().element(at)
        if self.full is not None and not self.is_late and not self.full.finished:
            self.full.element(at)

    def ready(self, at):
        return (not self.is_late and self.is_full(at)) or (
            self.part() is not None and self.part().ready(at)
        )

    def refires(self, at):
        return self.part() is not None and self.part().refires(at)

    def fire(self, at):
        if self.is_late or not self.is_full(at):
            self.part().fire(at)
        elif self.late is None:
            self.finished = True
        else:
            self.is_late = True
            self.late.restart(at)
            if self.early is not None:
                self.early.clear(at)
            if self.full is not None:
                self.full.restart(at)

    def merge(self, nodes, at):
        """Completion is behind only if it was for all and the watermark has reached the end of the
        merged window too.
        """
        self.finished = at.complete and all(n.finished for n in nodes)
        self.is_late = at.complete and all(n.is_late for n in nodes)
        if self.early is not None:
            self.early.merge([n.early for n in nodes], at)
        if self.full is not None:
            self.full.merge([n.full for n in nodes], at)
        if self.late is not None:
            self.late.merge([n.late for n in nodes], at)
            if not self.is_late:
                self.late.restart(at)


KINDS: dict[type[spec.Trigger], type[Node]] = {
    spec.AfterWatermark: Phases,
    spec.Policy: Phases,
    spec.AfterCount: Count,
    spec.EveryElement: EachElement,
    spec.AfterDelay: Delay,
    spec.Every: Ticks,
    spec.EventInterval: EventTicks,
    spec.Repeatedly: Again,
    spec.AfterEach: InTurn,
    spec.AfterAll: All,
    spec.AfterAny: One,
    spec.OrFinally: Until,
    spec.Never: Node,
    spec.Default: Level,
    Manual: ByHand,
}


def least(instants: Iterable[Any]) -> Any:
    """The earliest of those that are set."""
    return min((i for i in instants if i is not None), default=None)


def start(trigger: spec.Trigger, now: Any) -> Node:
    """The node of a trigger for a window whose state is made now."""
    return KINDS[type(trigger)](trigger, now)
