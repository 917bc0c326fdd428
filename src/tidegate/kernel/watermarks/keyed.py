"""A keyed coalescer is one coalescer for each watermark key, over the same inputs, and puts what
they release into one order of marks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tidegate.instants import MIN
from tidegate.kernel.watermarks.coalescer import OURS, Coalescer, Released, Rules
from tidegate.kernel.watermarks.marks import Active, Idle, Mark, Watermark
from tidegate.spec.watermarks import checked_key


class KeyedCoalescer:
    """Many inputs, many keys, one output.

    A key is there from when it is first mentioned. Then its inputs are what was said of them
    without a key: idle for all keys, done, gone.
    """

    def __init__(self, inputs: int = 0, rules: Rules = OURS, names: Sequence[str] = ()) -> None:
        self.rules = rules
        self.names = names
        self._keyless = Coalescer(inputs, rules, names)
        self._by_key: dict[int, Coalescer] = {}
        self._told_idle = False
        """Whether downstream was told to wait for no key, and this holds for keys it has not heard
        of.
        """

    def __len__(self) -> int:
        """The inputs that have not left."""
        return len(self._keyless)

    @property
    def keys(self) -> tuple[int, ...]:
        """The keys that were mentioned, ascending."""
        return tuple(sorted(self._by_key))

    @property
    def is_idle(self) -> bool:
        """Whether downstream was told to wait for no key."""
        return self._told_idle and all(coalescer.is_idle for coalescer in self._by_key.values())

    @property
    def advances(self) -> int:
        return sum(coalescer.advances for coalescer in self._by_key.values())

    def coalescer(self, key: int = 0) -> Coalescer:
        """The coalescer of a key; asking for it mentions the key."""
        found = self._by_key.get(checked_key(key))
        if found is None:
            found = self._by_key[key] = Coalescer(0, self.rules, self.names)
            found.restore(
                {
                    **found.save(),
                    "promises": [MIN] * len(self._keyless.status),
                    "status": self._keyless.status.tolist(),
                }
            )
            found.is_idle = self._told_idle
        return found

    def promise(self, input: int, value: int, key: int = 0) -> None:
        """An input promises a value for a key, which is a sign of life for this key; MIN is only
        that.
        """
        self.coalescer(key).promise(input, value)
        if self.rules.any_key_wakes and (value == MIN or self.rules.woken_by == "any"):
            self._keyless.touch(input)

    def touch(self, input: int) -> None:
        """An event came: the input is active for all keys."""
        for coalescer in self._all():
            coalescer.touch(input)

    def active(self, input: int, key: int | None = None) -> None:
        """The input is active again, for one key or for all."""
        if key is None:
            self.touch(input)
        else:
            self.promise(input, MIN, key)

    def idle(self, input: int, key: int | None = None) -> None:
        """The input is idle for one key, or for all, also those that are not known yet."""
        for coalescer in self._all() if key is None else (self.coalescer(key),):
            coalescer.idle(input)

    def done(self, input: int) -> None:
        """The input has ended."""
        for coalescer in self._all():
            coalescer.done(input)

    def add(self, count: int = 1) -> np.ndarray:
        """Inputs join; all coalescers have had the same joining and leaving, so they give them the
        same numbers.
        """
        rows = self._keyless.add(count)
        for coalescer in self._by_key.values():
            coalescer.add(count)
        return rows

    def remove(self, input: int) -> None:
        """The input leaves."""
        for coalescer in self._all():
            coalescer.remove(input)

    def lift(self, value: int, key: int = 0) -> None:
        """A promise for all inputs that have not ended."""
        self.coalescer(key).lift(value)

    def take(self, input: int, mark: Mark) -> None:
        """A mark came from an input."""
        if isinstance(mark, Watermark):
            self.promise(input, mark.value, mark.key)
        elif isinstance(mark, Idle):
            self.idle(input, mark.key)
        else:
            self.active(input, mark.key)

    def release(self) -> list[Mark]:
        """The marks that are due: first what is active again, then the watermarks, then what is
        idle, each by key.

        Who takes these marks as they come knows of every key what this coalescer knows, also of
        keys that are first mentioned later.
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
        """The news of activity and of idleness."""
        went_idle = [key for key, due in released.items() if due.idle is True]
        if self._keyless.is_idle and all(coalescer.is_idle for coalescer in self._by_key.values()):
            news = bool(went_idle) or not self._told_idle
            self._told_idle = True
            return [], [Idle()] if news else []
        if self._told_idle and not self._keyless.is_idle:
            self._told_idle = False
            return [Active()], [Idle(key) for key in released if self._by_key[key].is_idle]
        return [Active(key) for key, due in released.items() if due.idle is False], [
            Idle(key) for key in went_idle
        ]

    def save(self) -> dict[str, Any]:
        by_key = [[key, self._by_key[key].save()] for key in self.keys]
        return {"keyless": self._keyless.save(), "by_key": by_key, "told_idle": self._told_idle}

    def restore(self, document: dict[str, Any]) -> None:
        self._keyless.restore(document["keyless"])
        self._by_key = {}
        for key, saved in document["by_key"]:
            self._by_key[key] = Coalescer(0, self.rules, self.names)
            self._by_key[key].restore(saved)
        self._told_idle = document["told_idle"]

    def _all(self) -> list[Coalescer]:
        return [self._keyless, *self._by_key.values()]
