"""Marks are what travels between the events of a stream: watermarks, and the news that a stream has
fallen idle or is active again.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.spec.watermarks import checked_key


@dataclass(frozen=True, slots=True)
class Watermark:
    """No more events with a time below `value` are expected, on the time column that has this
    key.
    """

    value: int
    key: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", checked_key(self.key))


@dataclass(frozen=True, slots=True)
class _Turn:
    """What Idle and Active share."""

    key: int | None = None

    def __post_init__(self) -> None:
        if self.key is not None:
            object.__setattr__(self, "key", checked_key(self.key))


@dataclass(frozen=True, slots=True)
class Idle(_Turn):
    """Nobody should wait for this stream; without a key for no key, also for those that are yet to
    come.
    """


@dataclass(frozen=True, slots=True)
class Active(_Turn):
    """A stream that was idle counts again, and is waited for."""


Mark = Watermark | Idle | Active
