"""An outlet holds what an operator has put out until somebody has it: what waits to be fetched, and
what a downstream has yet to accept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from tidegate.errors import BackpressureError
from tidegate.instants import Instant
from tidegate.kernel.watermarks.marks import Mark
from tidegate.spec.join import Upstream
from tidegate.spec.operator import Input

T = TypeVar("T")


class Target(Protocol):
    """An operator that stands downstream of another one."""

    @property
    def inputs(self) -> tuple[Input, ...]: ...

    def follow(self, upstream: Upstream | None) -> None: ...

    @property
    def is_refusing(self) -> bool: ...

    @property
    def finished(self) -> bool: ...

    def add_messages(self, messages: Any, *, now: Instant | None = None) -> None: ...

    def take_marks(self, marks: Iterable[Mark]) -> None: ...

    def timeout(self, now: Instant | None = None) -> None: ...

    def finish(self) -> None: ...

    def flush(self) -> None: ...


class ResultQueue(Generic[T]):
    """Results in their order; `accept` offers one to the downstream, and there is none where it is
    None.
    """

    def __init__(self, accept: Callable[[T], bool] | None = None) -> None:
        self._accept = accept
        self._fetched = 0
        self.waiting: deque[T] = deque()
        """What the downstream has not accepted."""
        self.kept: deque[T] = deque()
        """What is there to be fetched."""
        self.is_refused = False

    def put(self, item: T, *, stays: bool = False) -> None:
        """Something came out; what `stays` is for whoever fetches, even if there is a
        downstream.
        """
        (self.kept if stays or self._accept is None else self.waiting).append(item)

    def offer(self) -> int:
        """Offer what waits, one after the other; the answer is how many were accepted."""
        accepted = 0
        self.is_refused = False
        while self.waiting and self._accept is not None and not self.is_refused:
            if self._accept(self.waiting[0]):
                self.waiting.popleft()
                accepted += 1
            else:
                self.is_refused = True
        return accepted

    def fetch(self) -> list[T]:
        """What is there; it waits on until it is dropped."""
        self._fetched = len(self.kept)
        return [*self.kept, *self.waiting]

    def drop_fetched(self) -> None:
        for _ in range(self._fetched):
            self.kept.popleft()
        self._fetched = 0

    @property
    def unfetched(self) -> list[T]:
        """What is there to be fetched and was not."""
        return list(self.kept)[self._fetched :]

    def check(self) -> None:
        """Refuse input while the downstream refuses results."""
        if self.is_refused:
            raise BackpressureError(
                f"the downstream refuses results and {len(self.waiting)} wait; no input is taken"
                " until they are accepted. Hint: call timeout(now)"
            )
