"""The inputs of a scenario: tracked sources, partitions of producers, or inputs by key."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from conformance.coalescers import SystemKeyedCoalescer, SystemRules
from tidegate.embedded.operator import EmbeddedOperator
from tidegate.errors import InputError
from tidegate.instants import MIN
from tidegate.kernel.watermarks.coalescer import (
    ACTIVE,
    DONE,
    GONE,
    IDLE,
    Coalescer,
    Released,
)
from tidegate.kernel.watermarks.marks import Active, Idle, Mark, Watermark
from tidegate.kernel.watermarks.tracker import SourceTracker
from tidegate.spec import aggregates
from tidegate.spec.operator import AggregateSpec, Input
from tidegate.spec.watermarks import Explicit
from tidegate.spec.windows import Tumbling


class Inputs(Protocol):
    """The verbs and facts of inputs, by name."""

    @property
    def keys(self) -> tuple[int, ...]: ...

    @property
    def is_idle(self) -> bool: ...

    @property
    def ended(self) -> bool: ...

    @property
    def top(self) -> int:
        """The highest promise of all."""
        ...

    def __contains__(self, name: object) -> bool: ...

    def tick(self, now: int) -> None: ...

    def lift(self, value: int) -> None: ...

    def join(self, name: str) -> None: ...

    def leave(self, name: str) -> None: ...

    def promise(self, name: str, value: int, key: int) -> None: ...

    def touch(self, name: str) -> None: ...

    def idle(self, name: str, key: int | None) -> None: ...

    def end(self, name: str) -> None: ...

    def release(self) -> list[Mark]: ...

    def restart(self) -> None:
        """Forget everything that a snapshot does not hold."""
        ...

    def promised(self, name: str) -> int: ...

    def output(self, key: int) -> int: ...

    def value(self, name: str) -> int:
        """The watermark that a look calls by the name of an input or partition."""
        ...


def marks(released: Released) -> list[Mark]:
    """What a coalescer without keys releases."""
    before: list[Mark] = [Active()] if released.idle is False else []
    watermark: list[Mark] = [] if released.watermark is None else [Watermark(released.watermark)]
    return [*before, *watermark, *([Idle()] if released.idle else [])]


def _all_done(status: np.ndarray) -> bool:
    there = status[status != GONE]
    return bool(len(there) and (there == DONE).all())


class Tracked:
    """Sources of one input, with the clock."""

    keys: tuple[int, ...] = ()

    def __init__(
        self, names: Sequence[str], rules: SystemRules, idle_after: int | None, now: int
    ) -> None:
        self._now = now
        self._options: dict[str, Any] = {"idle_after": idle_after, "rules": rules, "now": now}
        self.tracker = SourceTracker(declared=names, **self._options)

    @property
    def is_idle(self) -> bool:
        return self.tracker.is_idle

    @property
    def ended(self) -> bool:
        return _all_done(self.tracker.coalescer.status)

    @property
    def top(self) -> int:
        return max(self.tracker.coalescer.promises.tolist(), default=MIN)

    def __contains__(self, name: object) -> bool:
        return name in self.tracker

    def tick(self, now: int) -> None:
        self._now = now
        self.tracker.tick(now)

    def lift(self, value: int) -> None:
        self.tracker.lift(value, self._now)

    def join(self, name: str) -> None:
        if name in self.tracker:
            raise InputError(f"input `{name}` is there already")
        self.tracker.join([name], self._now)

    def leave(self, name: str) -> None:
        self.tracker.leave([name])

    def promise(self, name: str, value: int, key: int) -> None:
        _keyless(key)
        self.tracker.promise([name], np.array([value], np.int64), self._now)

    def touch(self, name: str) -> None:
        self.tracker.join([name], self._now)

    def idle(self, name: str, key: int | None) -> None:
        _keyless(key)
        self.tracker.idle([name], self._now)

    def end(self, name: str) -> None:
        self.tracker.end([name], self._now)

    def release(self) -> list[Mark]:
        return marks(self.tracker.release(self._now))

    def restart(self) -> None:
        saved = json.loads(json.dumps(self.tracker.save()))
        self.tracker = SourceTracker(**self._options)
        self.tracker.restore(saved)

    def promised(self, name: str) -> int:
        return next(
            (
                MIN if source.promise is None else source.promise
                for source in self.tracker.describe()
                if source.name == name
            ),
            MIN,
        )

    def is_aligned(self, name: str) -> bool:
        """Whether a source is active and no longer behind the output."""
        active = any(
            source.name == name and source.status == "active" for source in self.tracker.describe()
        )
        return active and self.promised(name) >= self.tracker.output

    def output(self, key: int) -> int:
        _keyless(key)
        return self.tracker.output

    def value(self, name: str) -> int:
        return self.promised(name)


def _keyless(key: int | None) -> None:
    if key:
        raise InputError(
            f"watermark key {key} was named where there are no keys. Hint: `semantics:"
            " hazelcast_keyed` has them"
        )


class Keyed:
    """Inputs that promise by watermark key."""

    def __init__(self, names: Sequence[str], rules: SystemRules) -> None:
        self._number = {name: number for number, name in enumerate(names)}
        self._rules = rules
        self._keyed = SystemKeyedCoalescer(len(names), rules, names)

    @property
    def keys(self) -> tuple[int, ...]:
        return self._keyed.keys

    @property
    def is_idle(self) -> bool:
        return self._keyed.is_idle

    @property
    def ended(self) -> bool:
        # An input ends for all keys, so the keyless coalescer knows it.
        return _all_done(np.array(self._keyed.save()["keyless"]["status"]))

    @property
    def top(self) -> int:
        return max(
            (int(self._keyed.coalescer(key).promises.max(initial=MIN)) for key in self.keys),
            default=MIN,
        )

    def __contains__(self, name: object) -> bool:
        return name in self._number

    def tick(self, now: int) -> None:
        """Keyed inputs have no timers: idleness is explicit."""

    def lift(self, value: int) -> None:
        self._keyed.lift(value)

    def join(self, name: str) -> None:
        if name in self._number:
            raise InputError(f"input `{name}` is there already")
        self._number[name] = int(self._keyed.add()[0])

    def leave(self, name: str) -> None:
        self._keyed.remove(self._number.pop(name))

    def promise(self, name: str, value: int, key: int) -> None:
        self._keyed.promise(self._number[name], value, key)

    def touch(self, name: str) -> None:
        self._keyed.touch(self._number[name])

    def idle(self, name: str, key: int | None) -> None:
        self._keyed.idle(self._number[name], key)

    def end(self, name: str) -> None:
        self._keyed.done(self._number[name])

    def release(self) -> list[Mark]:
        return self._keyed.release()

    def restart(self) -> None:
        saved = json.loads(json.dumps(self._keyed.save()))
        self._keyed = SystemKeyedCoalescer(0, self._rules)
        self._keyed.restore(saved)

    def promised(self, name: str) -> int:
        number = self._number[name]
        return max(
            (int(self._keyed.coalescer(key).promises[number]) for key in self.keys), default=MIN
        )

    def output(self, key: int) -> int:
        return self._keyed.coalescer(key).output if key in self.keys else MIN

    def value(self, name: str) -> int:
        return self.promised(name)


class OfWindow(Keyed):
    """One input of a windowed aggregate, which forwards the watermark of its window bounds."""

    def __init__(self, names: Sequence[str], rules: SystemRules) -> None:
        super().__init__(names, rules)
        spec = AggregateSpec(
            Input(time="t", watermark=Explicit()), Tumbling(1), (("n", aggregates.count()),)
        )
        self._operator = EmbeddedOperator(spec, now=0)
        self._forwarded = MIN

    def promise(self, name: str, value: int, key: int) -> None:
        super().promise(name, value, key)
        self._operator.advance_watermark(value, key=key)

    def release(self) -> list[Mark]:
        before, self._forwarded = self._forwarded, self._operator.output_watermark
        return [Watermark(self._forwarded, 0)] if self._forwarded != before else []


class Partitioned:
    """Partitions with producers each, `p0/task1`, and the stream over them: the least of the
    producers, then that of the partitions (Samza).
    """

    keys: tuple[int, ...] = ()

    def __init__(
        self,
        producers: dict[str, list[str]],
        rules: SystemRules,
        idle_after: int | None,
        now: int,
        quorum: float | None = None,
    ) -> None:
        self._now, self._quorum = now, quorum
        self._partitions = list(producers)
        self._options: dict[str, Any] = {"idle_after": idle_after, "rules": rules, "now": now}
        self._trackers = {
            name: SourceTracker(declared=declared, **self._options)
            for name, declared in producers.items()
        }
        for tracker in self._trackers.values():
            # Samza waits for strictly more than the timeout for those who never spoke, and for the
            # timeout for the others.
            tracker.spoke_at += 1
        self._stream = Coalescer(len(producers), names=self._partitions)

    @property
    def is_idle(self) -> bool:
        return self._stream.is_idle

    @property
    def ended(self) -> bool:
        return _all_done(self._stream.status)

    @property
    def top(self) -> int:
        return int(self._stream.promises.max(initial=MIN))

    def __contains__(self, name: object) -> bool:
        partition, producer = _split(str(name))
        return partition in self._trackers and producer in self._trackers[partition]

    def tick(self, now: int) -> None:
        """Samza looks at its clock only when a watermark comes, and then for its partition."""
        self._now = now

    def lift(self, value: int) -> None:
        for tracker in self._trackers.values():
            tracker.lift(value, self._now)
            tracker.release(self._now)
        self._stream.lift(value)

    def join(self, name: str) -> None:
        partition, producer = _split(name)
        if name in self or partition not in self._trackers:
            raise InputError(f"producer `{name}` is there already, or has no partition")
        self._trackers[partition].join([producer], self._now)

    def leave(self, name: str) -> None:
        partition, producer = _split(name)
        self._trackers[partition].leave([producer])
        self._pass_on(partition)

    def promise(self, name: str, value: int, key: int) -> None:
        _keyless(key)
        partition, producer = _split(name)
        # To Samza a watermark that goes back is no sign of life, only a reason to look at the
        # others.
        if value >= self.promised(name):
            self._trackers[partition].promise([producer], np.array([value], np.int64), self._now)
        self._pass_on(partition)

    def touch(self, name: str) -> None:
        partition, producer = _split(name)
        self._trackers[partition].join([producer], self._now)
        self._pass_on(partition)

    def idle(self, name: str, key: int | None) -> None:
        _keyless(key)
        partition, producer = _split(name)
        self._trackers[partition].idle([producer], self._now)
        self._pass_on(partition)

    def end(self, name: str) -> None:
        partition, producer = _split(name)
        self._trackers[partition].end([producer], self._now)
        self._pass_on(partition)

    def _pass_on(self, partition: str) -> None:
        tracker, number = self._trackers[partition], self._partitions.index(partition)
        # With a quorum Samza leaves idle producers out only where the least promise of all does
        # not advance the watermark.
        released = [] if self._quorum is None else self._of_all(tracker)
        if not any(isinstance(mark, Watermark) for mark in released):
            released = self._of_active(tracker)
        for mark in released:
            if isinstance(mark, Watermark):
                self._stream.promise(number, mark.value)
            elif isinstance(mark, Idle):
                self._stream.idle(number)
            else:
                self._stream.touch(number)
        if _all_done(tracker.coalescer.status):
            self._stream.done(number)

    def _of_all(self, tracker: SourceTracker) -> list[Mark]:
        """What the least promise of all producers releases, idle ones included."""
        idle = np.flatnonzero(tracker.coalescer.status == IDLE)
        tracker.coalescer.touch(idle)
        released = marks(tracker.release(self._now))
        tracker.coalescer.idle(idle)
        return released

    def _of_active(self, tracker: SourceTracker) -> list[Mark]:
        tracker.tick(self._now)
        status = tracker.coalescer.status
        if (status == IDLE).any() and not (status == ACTIVE).any():
            # Without an active producer Samza leaves the watermark of the partition where it
            # is.
            return []
        if self._quorum is not None:
            # So it does where too few are active, while the kernel goes by all of them then.
            active = int(np.count_nonzero((status == ACTIVE) & (tracker.coalescer.promises > MIN)))
            if active < math.floor(self._quorum * len(status) + 1e-9):
                return []
        return marks(tracker.release(self._now))

    def release(self) -> list[Mark]:
        return marks(self._stream.release())

    def restart(self) -> None:
        by_partition, stream = json.loads(
            json.dumps(
                [{name: t.save() for name, t in self._trackers.items()}, self._stream.save()]
            )
        )
        self._trackers = {name: SourceTracker(**self._options) for name in by_partition}
        for name, saved in by_partition.items():
            self._trackers[name].restore(saved)
        self._stream = Coalescer(names=self._partitions)
        self._stream.restore(stream)

    def promised(self, name: str) -> int:
        partition, producer = _split(name)
        return next(
            (
                s.promise
                for s in self._trackers[partition].describe()
                if s.name == producer and s.promise is not None
            ),
            MIN,
        )

    def output(self, key: int) -> int:
        _keyless(key)
        return self._stream.output

    def value(self, name: str) -> int:
        if name in self._trackers:
            return self._trackers[name].output
        return self.promised(name)


def _split(name: str) -> tuple[str, str]:
    """The partition and the producer; a partition without producers is its own."""
    partition, _, producer = name.partition("/")
    return partition, producer


def producers_of(
    partitions: Sequence[Any], count: int, named: Sequence[str]
) -> dict[str, list[str]]:
    """The producers of each partition, by the names that steps call them; those that are never
    named are numbered.
    """
    found: dict[str, list[str]] = {}
    for partition in map(str, partitions):
        called = list(
            dict.fromkeys(producer for where, producer in map(_split, named) if where == partition)
        )
        unnamed = [f"#{number}" for number in range(max(count, 1) - len(called))]
        found[partition] = [*called, *unnamed][: max(count, 1)]
    return found
