"""Marks are what travels between the events of a stream: watermarks, and the news that a stream has fallen idle or is active again."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from tidegate.errors import SpecError

KEYS = 128
"""Watermark keys are 0 to 127."""


def checked_key(key: Any) -> int:
    """The key as an integer, if it is one."""
    try:
        number = operator.index(key)
    except TypeError:
        number = -1
    if isinstance(key, bool) or not 0 <= number < KEYS:
        raise SpecError(f"a watermark key is a whole number from 0 to {KEYS - 1}, got `{key!r}`. Hint: one key for each time column, counted from 0")
    return number


@dataclass(frozen=True, slots=True)
class Watermark:
    """No more events with a time below `value` are expected, on the time column that has this key."""

    value: int
    key: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", checked_key(self.key))


@dataclass(frozen=True, slots=True)
class Idle:
    """Nobody should wait for this stream; without a key for no key, also for those that are yet to come."""

    key: int | None = None

    def __post_init__(self) -> None:
        if self.key is not None:
            object.__setattr__(self, "key", checked_key(self.key))


@dataclass(frozen=True, slots=True)
class Active:
    """A stream that was idle counts again, and is waited for."""

    key: int | None = None

    def __post_init__(self) -> None:
        if self.key is not None:
            object.__setattr__(self, "key", checked_key(self.key))


Mark = Watermark | Idle | Active
