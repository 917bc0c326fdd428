"""Marks between the events of a stream: watermarks, `Idle` and `Active`."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.spec.watermarks import checked_key


@dataclass(frozen=True, slots=True)
class Watermark:
    """No more events below `value` are expected, on the time column with this watermark key."""

    value: int
    key: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", checked_key(self.key))


@dataclass(frozen=True, slots=True)
class _Status:
    """A status mark, for one watermark key or for all."""

    key: int | None = None

    def __post_init__(self) -> None:
        if self.key is not None:
            object.__setattr__(self, "key", checked_key(self.key))


@dataclass(frozen=True, slots=True)
class Idle(_Status):
    """The stream is idle and holds no watermark back; without a key, for all keys."""


@dataclass(frozen=True, slots=True)
class Active(_Status):
    """A stream that was idle is active, and holds the watermark back again."""


Mark = Watermark | Idle | Active
