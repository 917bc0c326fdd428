"""A slow, obvious watermark_tracker: sources of inputs promise, fall idle, come and go; the
watermark is the minimum of those that are waited for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tidegate.instants import MAX, MIN, clamp
from tidegate.spec.watermarks import (
    Bounded,
    Explicit,
    Implied,
    Lagging,
    Noted,
    PerKey,
    Punctuated,
    Watched,
    Watermarks,
)

Row = dict[str, Any]


def is_event(spec: Watermarks, row: Row) -> bool:
    """Whether a row is one, be it broken: markers and notes only say a watermark."""
    match spec:
        case Punctuated(marker=str()):
            return not (row["m"] and row["ts"] is not None)
        case Noted():
            return not (row["ts"] is None and row["wm"] is not None and row["writer"] is not None)
    return True


@dataclass
class SlowSource:
    """A partition, or a writer."""

    spoke_at: int
    promise: int = MIN
    state: str = "active"
    always_active: bool = True


@dataclass
class SlowInput:
    """One input and its sources."""

    spec: Watermarks
    now: int
    sources: dict[str, SlowSource] = field(default_factory=dict)
    lifted: int = MIN
    output: int = MIN
    told: bool = False
    ended: bool = False
    idle: bool = False
    awake: bool = True
    """Whether the input as a whole spoke last, and not one of its sources."""

    def __post_init__(self) -> None:
        self.spoke_at = self.now
        watched = self.spec if isinstance(self.spec, Watched) else Watched()
        self.idle_after, self.align = watched.idle_after, watched.align
        self.forget_after = self.spec.forget_after if isinstance(self.spec, Noted) else None
        for name in watched.declared:
            self.sources[name] = SlowSource(self.now)

    def speak(self, name: str, promise: int, now: int) -> None:
        source = self.sources.get(name)
        if source is None:
            source = self.sources[name] = SlowSource(now, self.lifted, always_active=False)
        self.awake = False
        if source.state != "ended":
            source.promise, source.state, source.spoke_at = (
                max(source.promise, promise),
                "active",
                now,
            )

    def active(self) -> list[SlowSource]:
        return [source for source in self.sources.values() if source.state == "active"]

    def promised(self) -> dict[str, int]:
        """What everybody has promised who is waited for; the input itself, where it is none of its
        sources.
        """
        found = {
            name: source.promise
            for name, source in self.sources.items()
            if source.state == "active"
        }
        return found or ({} if self.idle else {"": self.output})

    def settle(self, now: int, held: set[str]) -> None:
        """Who was silent for long is idle, or forgotten; then the input's watermark is looked
        at.
        """
        was_active = {name for name, source in self.sources.items() if source.state == "active"}
        for name, source in self.sources.items():
            if name in held:
                source.spoke_at = now
            if (
                self.idle_after is not None
                and source.state == "active"
                and now - source.spoke_at >= self.idle_after
            ):
                source.state, source.always_active = "idle", False
        for name, source in list(self.sources.items()):
            waits = self.idle_after is not None and name in was_active
            if (
                self.forget_after is not None
                and now - source.spoke_at >= self.forget_after
                and not waits
            ):
                self.drop(name, now)
        if "" in held and not self.active():
            self.spoke_at = now
        promises = [source.promise for source in self.sources.values()]
        active = [source.promise for source in self.active()]
        self.output = max(self.output, min(active) if active else max([self.lifted, *promises]))
        silent = not self.awake or (
            self.idle_after is not None and now - self.spoke_at >= self.idle_after
        )
        self.idle = self.ended or (not active and silent)

    def drop(self, name: str, now: int) -> None:
        self.sources.pop(name, None)
        if not self.sources and not self.idle:
            self.awake, self.spoke_at = True, now


class SlowIntake:
    """All inputs; `watermark` is what an operator over them has."""

    def __init__(
        self, specs: list[Watermarks], now: int, tolerance: int, reference: str = "clock"
    ) -> None:
        self.now, self.tolerance, self.reference = now, tolerance, reference
        self.inputs = [SlowInput(spec, now) for spec in specs]
        self.watermark = MIN
        self.is_idle = False
        self.held: list[set[str]] = [set() for _ in specs]

    # What happens

    def deliver(self, number: int, rows: list[Row], now: int) -> None:
        self.tick(now)
        given, limit, settled = self.inputs[number], self.limit(), self.watermark
        for row in rows if not given.ended else []:
            if row["ts"] is None or row["ts"] <= limit or row["ts"] < settled:
                self._row(given, row, limit)
        self.settle()

    def timeout(self, now: int) -> None:
        self.tick(now)
        self.settle()

    def tick(self, now: int) -> None:
        self.now = max(self.now, now)
        for given in self.inputs:
            if isinstance(given.spec, Lagging) and not given.ended:
                given.speak("", clamp(self.now - given.spec.lag), self.now)

    def promise(self, number: int, value: int, partition: str | None) -> None:
        given = self.inputs[number]
        if not given.ended:
            given.told = True
            if partition is None:
                given.awake, given.spoke_at = True, self.now
                if value >= given.output:
                    given.lifted = max(given.lifted, value)
                for source in given.sources.values() if value >= given.output else ():
                    source.promise = (
                        max(source.promise, value) if source.state != "ended" else source.promise
                    )
            else:
                if isinstance(given.spec, Implied):
                    given.sources.pop("", None)
                given.speak(partition, value, self.now)
        self.settle()

    def idle(self, number: int, partition: str | None) -> None:
        given = self.inputs[number]
        if partition is not None and partition not in given.sources:
            given.sources[partition] = SlowSource(self.now, given.lifted)
        for source in given.sources.values() if partition is None else [given.sources[partition]]:
            if source.state != "ended":
                source.state, source.always_active = "idle", False
        given.awake = False
        self.settle()

    def end(self, number: int, partition: str | None) -> None:
        given = self.inputs[number]
        if partition is not None and partition not in given.sources:
            given.sources[partition] = SlowSource(self.now, given.lifted)
        for source in given.sources.values() if partition is None else [given.sources[partition]]:
            source.state = "ended"
        given.awake = False
        given.ended = given.ended or partition is None
        self.settle()

    def join(self, number: int, partition: str) -> None:
        self.inputs[number].speak(partition, MIN, self.now)
        self.settle()

    def leave(self, number: int, partition: str) -> None:
        if partition in self.inputs[number].sources:
            self.inputs[number].drop(partition, self.now)
        self.settle()

    def restart(self, now: int) -> None:
        pause = max(0, now - self.now)
        self.now = max(self.now, now)
        for given in self.inputs:
            given.spoke_at += pause
            for source in given.sources.values():
                source.spoke_at += pause

    # What follows from it

    def limit(self) -> int:
        origin = self.now if self.reference == "clock" else self.watermark
        return MAX if origin == MIN else clamp(origin + self.tolerance)

    def settle(self) -> None:
        for given, held in zip(self.inputs, self.held, strict=True):
            given.settle(self.now, held)
        waited = [given.output for given in self.inputs if not given.idle]
        self.watermark = max(
            self.watermark, min(waited) if waited else max(given.output for given in self.inputs)
        )
        self.is_idle = not waited
        self.held = [self.paused(number) for number in range(len(self.inputs))]

    def paused(self, number: int) -> set[str]:
        given = self.inputs[number]
        spoken = [
            promise
            for other in self.inputs
            for promise in other.promised().values()
            if promise > MIN
        ]
        if given.align is None or not spoken:
            return set()
        return {
            name
            for name, promise in given.promised().items()
            if promise > min(spoken) + given.align
        }

    def _row(self, given: SlowInput, row: Row, limit: int) -> None:
        time, partition = row["ts"], row["p"] or "null"
        name, promise = partition, MIN
        match given.spec:
            case Implied():
                name, promise = "", MIN if time is None else time
            case Bounded(disorder=behind) | PerKey(floor=behind):
                promise = MIN if time is None else clamp(time - behind)
            case Lagging(lag=lag):
                name, promise = "", clamp(self.now - lag)
            case Punctuated(column=str()):
                promise = row["wm"] if row["wm"] is not None and row["wm"] <= limit else MIN
            case Punctuated():
                promise = time if row["m"] and time is not None else MIN
            case Noted():
                if row["writer"] is None:
                    if not given.sources:
                        given.awake, given.spoke_at = True, self.now
                    return
                name = f"{partition}/{row['writer']}"
                promise = row["wm"] if row["wm"] is not None and row["wm"] <= limit else MIN
                given.sources.pop(row["writer"], None)
        told = isinstance(given.spec, Explicit) or (isinstance(given.spec, Implied) and given.told)
        if told and name not in given.sources:
            if not given.sources:
                given.awake, given.spoke_at = True, self.now
            return
        given.speak(name, MIN if told else promise, self.now)
