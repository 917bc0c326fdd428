"""The keyed coalescer: one coalescer for each watermark key, over the same inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tidegate.instants import MIN
from tidegate.kernel.watermarks.coalescer import OURS, Coalescer, Released, Rules
from tidegate.kernel.watermarks.marks import Active, Idle, Mark, Watermark
from tidegate.spec.watermarks import checked_key


class KeyedCoalescer:
    """Coalesces many inputs with many watermark keys into one sequence of marks.

    A key exists from its first use on. Its inputs then have the status that was set without a key:
    idle for all keys, done, or gone.
    """

    def __init__(self, inputs: int = 0, rules: Rules = OURS, names: Sequence[str] = ()) -> None:
        self.rules = rules
        self.names = names
        self._keyless = rules.coalescer(inputs, names)
        self._by_key: dict[int, Coalescer] = {}
        self._released_idle = False
        """Whether the last released status is idle for all keys, including unknown ones."""

    def __len__(self) -> int:
        """The number of inputs that have not left."""
        return len(self._keyless)

    @property
    def keys(self) -> tuple[int, ...]:
        """The known keys, ascending."""
        return tuple(sorted(self._by_key))

    @property
    def is_idle(self) -> bool:
        """Whether the released status is idle for all keys."""
        return self._released_idle and all(coalescer.is_idle for coalescer in self._by_key.values())

    @property
    def advances(self) -> int:
        return sum(coalescer.advances for coalescer in self._by_key.values())

    def coalescer(self, key: int = 0) -> Coalescer:
        """The coalescer of a key; creates an unknown key."""
        found = self._by_key.get(checked_key(key))
        if found is None:
            found = self._by_key[key] = self.rules.coalescer(0, self.names)
            found.restore(
                {
                    **found.save(),
                    "promises": [MIN] * len(self._keyless.status),
                    "status": self._keyless.status.tolist(),
                }
            )
            found.is_idle = self._released_idle
        return found

    def promise(self, input: int, value: int, key: int = 0) -> None:
        """Advance the promise of an input for a key, and make it active; `MIN` only does the
        latter.
        """
        self.coalescer(key).promise(input, value)

    def touch(self, input: int) -> None:
        """Record an event: the input is active for all keys."""
        for coalescer in self._all():
            coalescer.touch(input)

    def active(self, input: int, key: int | None = None) -> None:
        """Mark an input as active again, for one key or for all."""
        if key is None:
            self.touch(input)
        else:
            self.promise(input, MIN, key)

    def idle(self, input: int, key: int | None = None) -> None:
        """Mark an input as idle for one key, or for all present and future keys."""
        for coalescer in self._all() if key is None else (self.coalescer(key),):
            coalescer.idle(input)

    def done(self, input: int) -> None:
        """End an input."""
        for coalescer in self._all():
            coalescer.done(input)

    def add(self, count: int = 1) -> np.ndarray:
        """Add inputs and return their numbers, which are the same in all coalescers."""
        rows = self._keyless.add(count)
        for coalescer in self._by_key.values():
            coalescer.add(count)
        return rows

    def remove(self, input: int) -> None:
        """Remove an input."""
        for coalescer in self._all():
            coalescer.remove(input)

    def lift(self, value: int, key: int = 0) -> None:
        """Raise the promises of all inputs that have not ended."""
        self.coalescer(key).lift(value)

    def take(self, input: int, mark: Mark) -> None:
        """Apply a mark of an input."""
        if isinstance(mark, Watermark):
            self.promise(input, mark.value, mark.key)
        elif isinstance(mark, Idle):
            self.idle(input, mark.key)
        else:
            self.active(input, mark.key)

    def release(self) -> list[Mark]:
        """The marks that are due: `Active`, then watermarks, then `Idle`, each by key.

        A receiver that applies the marks in order knows the status of every key, also of keys that
        are first used later.
        """
        self._keyless.release()
        released = {key: self._by_key[key].release() for key in self.keys}
        watermarks: list[Mark] = [
            Watermark(due.watermark, key)
            for key, due in released.items()
            if due.watermark is not None
        ]
        before, after = self._turns(released)
        return [*before, *watermarks, *after]

    def _turns(self, released: dict[int, Released]) -> tuple[list[Mark], list[Mark]]:
        """The `Active` and the `Idle` marks that are due."""
        went_idle = [key for key, due in released.items() if due.idle is True]
        if self._keyless.is_idle and all(coalescer.is_idle for coalescer in self._by_key.values()):
            changed = bool(went_idle) or not self._released_idle
            self._released_idle = True
            return [], [Idle()] if changed else []
        if self._released_idle and not self._keyless.is_idle:
            self._released_idle = False
            return [Active()], [Idle(key) for key in released if self._by_key[key].is_idle]
        return [Active(key) for key, due in released.items() if due.idle is False], [
            Idle(key) for key in went_idle
        ]

    def save(self) -> dict[str, Any]:
        by_key = [[key, self._by_key[key].save()] for key in self.keys]
        return {
            "keyless": self._keyless.save(),
            "by_key": by_key,
            "released_idle": self._released_idle,
        }

    def restore(self, document: dict[str, Any]) -> None:
        self._keyless.restore(document["keyless"])
        self._by_key = {}
        for key, saved in document["by_key"]:
            self._by_key[key] = self.rules.coalescer(0, self.names)
            self._by_key[key].restore(saved)
        self._released_idle = document["released_idle"]

    def _all(self) -> list[Coalescer]:
        return [self._keyless, *self._by_key.values()]
