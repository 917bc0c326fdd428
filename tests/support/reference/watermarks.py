"""The slow and obvious coalescer and tracker: one input, one rule and one look at a time, without a
single column.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from conformance.coalescers import SystemRules
from tidegate.instants import MAX, MIN


class StepBackError(Exception):
    """What a strict coalescer refuses."""


@dataclass
class SlowInput:
    """One input: what was promised for it, and how it stands."""

    promise: int = MIN
    status: str = "active"


@dataclass
class SlowCoalescer:
    """Inputs by number; the lowest number that nobody has is given to the next one that joins."""

    rules: SystemRules = field(default_factory=SystemRules)
    inputs: dict[int, SlowInput] = field(default_factory=dict)
    lifted: int = MIN
    output: int = MIN
    is_idle: bool = False
    steps_back: int = 0
    advances: int = 0
    after_end: int = 0

    def add(self) -> int:
        number = 0
        while number in self.inputs:
            number += 1
        self.inputs[number] = SlowInput(self.lifted)
        return number

    def remove(self, number: int) -> None:
        self.inputs.pop(number, None)

    def promise(self, number: int, value: int) -> None:
        found = self.inputs.get(number)
        if found is None or found.status == "ended":
            self.after_end += 1
            return
        if found.status == "idle" and self.rules.woken_by == "touch" and value != MIN:
            return
        if MIN < value < found.promise and found.promise > self.lifted:
            if self.rules.strict:
                raise StepBackError
            self.steps_back += 1
        found.promise = max(found.promise, value)
        found.status = "active"

    def touch(self, number: int) -> None:
        found = self.inputs.get(number)
        if found is None or found.status == "ended":
            self.after_end += 1
        else:
            found.status = "active"

    def idle(self, number: int) -> None:
        if number in self.inputs and self.inputs[number].status == "active":
            self.inputs[number].status = "idle"

    def done(self, number: int) -> None:
        if number in self.inputs:
            self.inputs[number].status = "ended"

    def lift(self, value: int) -> None:
        if value < self.lifted:
            if self.rules.strict:
                raise StepBackError
            self.steps_back += 1
            return
        self.lifted = value
        for found in self.inputs.values():
            if found.status != "ended":
                found.promise = max(found.promise, value)

    def active(self) -> list[int]:
        """The promises of the active inputs."""
        return [found.promise for found in self.inputs.values() if found.status == "active"]

    def highest(self) -> int:
        return max([self.lifted, *(found.promise for found in self.inputs.values())])

    def candidate(self) -> int:
        active = self.active()
        if not active or self.rules.policy == "max":
            return self.highest()
        waited = (
            [promise for promise in active if promise >= self.output]
            if self.rules.realign
            else active
        )
        if not waited:
            return MIN
        if self.rules.quorum == 1:
            return min(waited)
        if self.rules.patient and MIN in waited:
            return MIN
        spoken = [promise for promise in active if promise != MIN]
        if len(spoken) < max(1, math.floor(self.rules.quorum * len(self.inputs) + 1e-9)):
            return min(found.promise for found in self.inputs.values() if found.status != "ended")
        return min([promise for promise in waited if promise != MIN], default=MIN)

    def release(self) -> tuple[int | None, bool | None]:
        """The watermark and the news of idleness, as `Released` has them."""
        value = self.candidate()
        if self.rules.frame and value not in (MIN, MAX):
            value -= value % self.rules.frame
        watermark = value if value > self.output else None
        if watermark is not None:
            self.output = watermark
            self.advances += 1
        idle = not self.active() if self.inputs else self.is_idle
        turned, self.is_idle = idle != self.is_idle, idle
        return watermark, idle if turned or (idle and watermark is not None) else None


@dataclass
class SlowSource:
    """One source: what it has promised, how it stands, and its clocks."""

    number: int
    spoke_at: int
    moved_at: int


@dataclass
class SlowTracker:
    """Sources by name, over a slow coalescer."""

    idle_after: int | None = None
    forget_after: int | None = None
    coalescer: SlowCoalescer = field(default_factory=SlowCoalescer)
    sources: dict[str, SlowSource] = field(default_factory=dict)
    since: int = 0

    def known(self, name: str, now: int) -> SlowSource:
        if name not in self.sources:
            self.sources[name] = SlowSource(self.coalescer.add(), now, now)
        return self.sources[name]

    def promise(self, name: str, value: int, now: int) -> None:
        source = self.known(name, now)
        before = self.coalescer.inputs[source.number].promise
        self.coalescer.promise(source.number, value)
        source.spoke_at = now
        if self.coalescer.inputs[source.number].promise > before:
            source.moved_at = now

    def join(self, name: str, now: int) -> None:
        self.coalescer.touch(self.known(name, now).number)
        self.sources[name].spoke_at = now

    def idle(self, name: str, now: int) -> None:
        self.coalescer.idle(self.known(name, now).number)

    def end(self, name: str, now: int) -> None:
        self.coalescer.done(self.known(name, now).number)

    def leave(self, name: str) -> None:
        if name in self.sources:
            self.coalescer.remove(self.sources.pop(name).number)

    def lift(self, value: int, now: int) -> None:
        before = {
            name: self.coalescer.inputs[source.number].promise
            for name, source in self.sources.items()
        }
        self.coalescer.lift(value)
        for name, source in self.sources.items():
            if self.coalescer.inputs[source.number].promise > before[name]:
                source.moved_at = now

    def tick(self, now: int, spared: set[str]) -> None:
        for name, source in list(self.sources.items()):
            if name in spared:
                source.spoke_at = now
            silence, found = now - source.spoke_at, self.coalescer.inputs[source.number]
            if self.idle_after is not None and found.status == "active":
                if silence >= self.idle_after:
                    found.status = "idle"
            elif self.forget_after is not None and silence >= self.forget_after:
                self.leave(name)

    def release(self, now: int) -> tuple[int | None, bool | None]:
        released = self.coalescer.release()
        if released[0] is not None:
            self.since = now
        return released

    def describe(self) -> list[tuple[str, str, int | None, int, int]]:
        found = []
        for name, source in sorted(self.sources.items(), key=lambda item: item[1].number):
            state = self.coalescer.inputs[source.number]
            found.append(
                (
                    name,
                    state.status,
                    None if state.promise == MIN else state.promise,
                    source.spoke_at,
                    source.moved_at,
                )
            )
        return found
