"""A port is one input of an operator as another operator sees it: what stands upstream of a union
or a merge feeds it through one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from tidegate.instants import Instant
from tidegate.kernel.watermarks.marks import Mark
from tidegate.spec.join import Upstream
from tidegate.spec.operator import Input


class Ported(Protocol):
    """An operator with several inputs."""

    @property
    def inputs(self) -> tuple[Input, ...]: ...

    @property
    def is_refusing(self) -> bool: ...

    @property
    def finished(self) -> bool: ...

    @property
    def ended(self) -> frozenset[int]:
        """The inputs that have ended."""
        ...

    def follow(self, upstream: Upstream | None, *, input: int | None = None) -> None: ...

    def add_messages(
        self, messages: Any, *, now: Instant | None = None, input: int | str = 0
    ) -> None: ...

    def take_marks(self, marks: Iterable[Mark], *, input: int | str = 0) -> None: ...

    def end_input(self, *, input: int | str = 0, partition: str | None = None) -> None: ...

    def timeout(self, now: Instant | None = None) -> None: ...

    def finish(self) -> None: ...

    def flush(self) -> None: ...


class Port:
    """One input of an operator, to be the `downstream` of another one."""

    def __init__(self, operator: Ported, ordinal: int) -> None:
        self._operator, self._ordinal = operator, ordinal

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (self._operator.inputs[self._ordinal],)

    @property
    def is_refusing(self) -> bool:
        return self._operator.is_refusing

    @property
    def finished(self) -> bool:
        """Whether this input has ended."""
        return self._operator.finished or self._ordinal in self._operator.ended

    def follow(self, upstream: Upstream | None) -> None:
        """Take the watermark of an upstream for this input, and of a window retractions."""
        self._operator.follow(upstream, input=self._ordinal)

    def add_messages(self, messages: Any, *, now: Instant | None = None) -> None:
        self._operator.add_messages(messages, now=now, input=self._ordinal)

    def take_marks(self, marks: Iterable[Mark]) -> None:
        self._operator.take_marks(marks, input=self._ordinal)

    def timeout(self, now: Instant | None = None) -> None:
        self._operator.timeout(now)

    def finish(self) -> None:
        """End this input; with the last one the operator ends."""
        self._operator.end_input(input=self._ordinal)
        if len(self._operator.ended) == len(self._operator.inputs):
            self._operator.finish()

    def flush(self) -> None:
        self._operator.flush()
