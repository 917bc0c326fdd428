"""Test doubles for streams: a manual clock, and a store whose calls can be intercepted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tidegate.errors import StateError
from tidegate.streams import Stream
from tidegate.streams.store import Appended, Block, Cell, EventBatch, Store, Swap

SECOND = 1_000_000


class HandClock:
    """A clock that moves only by `pass_by`."""

    def __init__(self, now: int = 1_000 * SECOND) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)


class Meddled(Store):
    """A store that delegates to another one.

    A test can intercept or fail the next call of a name.
    """

    def __init__(self, inner: Store) -> None:
        self.inner, self.url = inner, inner.url
        self.before: dict[str, list[Callable[[], Any]]] = {}
        self.after: dict[str, list[Callable[[], Any]]] = {}
        self.calls: dict[str, int] = {}

    def fail(self, name: str, *, after: int = 0) -> None:
        """Fail a later call of this name, after `after` successful ones."""

        def failure() -> None:
            raise StateError("the disk is full")

        self.before[name] = [*[lambda: None] * after, failure]

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        self.calls[name] = self.calls.get(name, 0) + 1
        if self.before.get(name):
            self.before[name].pop(0)()
        found = getattr(self.inner, name)(*arguments, **options)
        if self.after.get(name):
            self.after[name].pop(0)()
        return found

    def cells(self, stream: str, prefix: str = "") -> dict[str, Cell]:
        return self._call("cells", stream, prefix)

    def swap(self, stream: str, swap: Swap) -> int:
        return self._call("swap", stream, swap)

    def streams(self) -> list[str]:
        return self._call("streams")

    def drop(self, stream: str) -> None:
        self._call("drop", stream)

    def open_segments(self, stream: str, names: list[str]) -> None:
        self._call("open_segments", stream, names)

    def append(
        self,
        stream: str,
        rows: Mapping[str, EventBatch],
        *,
        swap: Swap | None = None,
        whole: bool = False,
    ) -> Appended:
        return self._call("append", stream, rows, swap=swap, whole=whole)

    def seal(self, stream: str, segment: str) -> int:
        return self._call("seal", stream, segment)

    def read(
        self, stream: str, segment: str, offset: int, most: int, *, before: int | None = None
    ) -> Block:
        return self._call("read", stream, segment, offset, most, before=before)

    def bounds(self, stream: str) -> dict[str, tuple[int, int]]:
        return self._call("bounds", stream)

    def truncate(self, stream: str, starts: Mapping[str, int]) -> None:
        self._call("truncate", stream, starts)

    def close(self) -> None:
        self._call("close")


def values(stream: Stream) -> list[bytes]:
    """All values of a stream, predecessors first; in order for each key."""
    group = stream.group("all-values")
    group.reset("earliest")
    found: list[bytes] = []
    with group.reader("one") as reader:
        while events := reader.read(10_000):
            found += [event.value for event in events]
            reader.checkpoint()
    return found
