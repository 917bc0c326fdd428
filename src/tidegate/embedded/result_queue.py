"""The queue between an operator and its downstream, or the program that fetches the results."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from tidegate.errors import BackpressureError
from tidegate.instants import Instant
from tidegate.kernel.watermarks.marks import Mark
from tidegate.spec.composition import Exchange
from tidegate.spec.operator import Input

T = TypeVar("T")


class Downstream(Protocol):
    """An operator that takes the results of another one."""

    @property
    def inputs(self) -> tuple[Input, ...]: ...

    @property
    def named_columns(self) -> list[str]: ...

    def follow(self, upstream: Exchange | None) -> None: ...

    def expect(self, schema: pa.Schema) -> None: ...

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
    """Results in order, until a downstream accepts them or the program has fetched them."""

    def __init__(self, accept: Callable[[T], bool] | None = None) -> None:
        """`accept` offers one result to the downstream; None if there is no downstream."""
        self._accept = accept
        self._fetched = 0
        self.waiting: deque[T] = deque()
        """Results that the downstream has not accepted."""
        self.kept: deque[T] = deque()
        """Results to be fetched."""
        self.is_refused = False
        """Whether the downstream refused the last result that was offered."""

    def put(self, item: T, *, stays: bool = False) -> None:
        """Add a result; one that `stays` is to be fetched even if there is a downstream."""
        (self.kept if stays or self._accept is None else self.waiting).append(item)

    def offer(self) -> int:
        """Offer results one by one until one is refused; returns how many were accepted."""
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
        """All results; they stay until `drop_fetched`."""
        self._fetched = len(self.kept)
        return [*self.kept, *self.waiting]

    def drop_fetched(self) -> None:
        """Remove the results that the last `fetch` returned and no downstream takes."""
        for _ in range(self._fetched):
            self.kept.popleft()
        self._fetched = 0

    @property
    def unfetched(self) -> list[T]:
        """Results to be fetched that `fetch` has not returned."""
        return list(self.kept)[self._fetched :]

    def check(self) -> None:
        """Raise while the downstream refuses results: input is refused, too."""
        if self.is_refused:
            raise BackpressureError(
                f"the downstream refuses results and {len(self.waiting)} wait; no input is taken"
                " until they are accepted. Hint: call timeout(now)"
            )
