"""The interface of a store of streams: append-only logs, and cells that change by compare-and-swap.

Routing, writers, transactions, the controller, reader groups and the Spark source are built on
these operations, once for all stores. A store serves several processes and threads at once.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa

from tidegate.errors import InputError, SpecError, TidegateError

_COLUMNS: list[tuple[str, pa.DataType]] = [("key", pa.string()), ("value", pa.binary())]
BLOCK = pa.schema(
    [
        *pa.schema(_COLUMNS),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("appended", pa.int64(), nullable=False),
    ]
)
"""The schema of a read.

Routing key (nullable), value, offset, and the time of the append by the clock of the store (µs).
"""


@dataclass(slots=True)
class EventBatch:
    """Events to append to a segment: routing keys (None for no key) and values.

    Writers produce events one by one, and every store passes them on as Python bytes, so these are
    lists and not columns.
    """

    keys: Sequence[str | None]
    values: Sequence[bytes]

    def __post_init__(self) -> None:
        if len(self.keys) != len(self.values):
            raise InputError(
                f"each event needs a key or None, got {len(self.keys)} keys for {len(self.values)}"
                " events"
            )

    def __len__(self) -> int:
        return len(self.values)

    def between(self, start: int, stop: int) -> EventBatch:
        return EventBatch(self.keys[start:stop], self.values[start:stop])


class Conflict(TidegateError):  # noqa: N818 - a lost race, not a failure
    """A cell no longer has the version that the caller expects."""


@dataclass(frozen=True)
class Cell:
    """A small JSON document with the version that a change must name."""

    document: Any
    version: int


@dataclass(frozen=True)
class Swap:
    """A compare-and-swap of a cell; applied only if the cell has this version.

    Version 0: the cell must not exist. Document None: delete the cell.
    """

    key: str
    document: Any
    """The new document.

    In an append, it may be a function from the position of the rows (the offset after the last row
    of each segment) to the document.
    """
    version: int


@dataclass(frozen=True)
class Appended:
    """The result of an append."""

    position: Mapping[str, int] = field(default_factory=dict)
    """The offset after the last row, for each segment that accepted rows."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """The number of rows not accepted, always the last ones, for each segment that is sealed."""


@dataclass(frozen=True)
class Block:
    """Consecutive events of a segment."""

    rows: pa.Table
    """A table with the schema `BLOCK`."""
    next: int
    """The offset to continue at; greater than the offset of the last row."""
    ended: bool = False
    """Whether the segment is sealed and this is its end."""


class PendingAppend:
    """Rows handed to the store before their append is awaited."""

    def __init__(self, store: Store, stream: str) -> None:
        self.store, self.stream = store, stream
        self._added: dict[str, tuple[list[str | None], list[bytes]]] = {}

    @property
    def rows(self) -> dict[str, EventBatch]:
        """All added rows, by segment."""
        return {name: EventBatch(keys, values) for name, (keys, values) in self._added.items()}

    def add(self, rows: Mapping[str, EventBatch]) -> None:
        """Add rows."""
        for name, more in rows.items():
            if name in self._added:
                keys, values = self._added[name]
                keys += more.keys
                values += more.values
            else:
                self._added[name] = [*more.keys], [*more.values]

    def wait(self) -> Appended:
        """Wait for the result: the rows are in the stream, as if appended by one call."""
        return self.store.append(self.stream, self.rows)


class Store(ABC):
    """A store of streams.

    Contract:
    - Cells belong to a stream, which need not have segments: `""` owns cells that belong to none. A
      key consists of `a-z A-Z 0-9 . _ - / #`. Changes of keys that differ only after a `#` may
      block each other; other changes do not.
    - Once a change has returned, every later call in any process sees it, and it survives the crash
      of every process.
    - A segment must be opened before an append. Its offsets grow, possibly with gaps.
    - An append keeps the order of rows within a segment. With `whole` or with a swap it is atomic:
      readers see all of it or nothing, and a sealed segment or a conflict rejects all of it.
    - A read returns events in the order of offsets, only committed ones, and never skips one that
      is committed later.
    - Sealing is final and idempotent.
    """

    url: str
    """The address for `tidegate.streams.open`, valid in any process."""
    largest: int | None = None
    """The maximum size of an event in bytes, including its key; None for no limit."""

    # Cells

    @abstractmethod
    def cells(self, stream: str, prefix: str = "") -> dict[str, Cell]:
        """The cells whose keys start with `prefix`, by key, sorted; a consistent snapshot."""

    @abstractmethod
    def swap(self, stream: str, swap: Swap) -> int:
        """Change a cell, and return its new version; raises `Conflict` if its version differs."""

    def cell(self, stream: str, key: str) -> Cell | None:
        return self.cells(stream, key).get(key)

    # Logs

    @abstractmethod
    def streams(self) -> list[str]:
        """The names of all streams that have a cell or a segment, sorted."""

    @abstractmethod
    def drop(self, stream: str) -> None:
        """Delete a stream with its segments and cells."""

    @abstractmethod
    def open_segments(self, stream: str, names: list[str]) -> None:
        """Create segments, named by consecutive numbers; existing ones stay as they are."""

    @abstractmethod
    def append(
        self,
        stream: str,
        rows: Mapping[str, EventBatch],
        *,
        swap: Swap | None = None,
        whole: bool = False,
    ) -> Appended:
        """Append rows to segments, and change a cell in the same step."""

    def begin_append(self, stream: str) -> PendingAppend:
        """A pipelined append: not atomic and without a swap; rows may be sent before `wait`."""
        return PendingAppend(self, stream)

    @abstractmethod
    def seal(self, stream: str, segment: str) -> int:
        """Seal a segment, and return its end: the offset of a reader that has read all of it."""

    @abstractmethod
    def read(
        self, stream: str, segment: str, offset: int, most: int, *, before: int | None = None
    ) -> Block:
        """Up to `most` events from `offset` on, and before `before`, without waiting for more.

        Raises `InputError` if the offset is truncated.
        """

    @abstractmethod
    def bounds(self, stream: str) -> dict[str, tuple[int, int]]:
        """For each segment: the first readable offset, and the end of the visible events."""

    @abstractmethod
    def truncate(self, stream: str, starts: Mapping[str, int]) -> None:
        """Delete events before these offsets; segments that are not named stay."""

    @abstractmethod
    def close(self) -> None:
        """Close files and connections; the content stays."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_store(url: str | os.PathLike[str], *, create: bool = True) -> Store:
    """Open the store at an address: a path, `sqlite:PATH` or `kafka://HOST:PORT/PREFIX`.

    A missing file is created only with `create`.
    """
    text = os.fspath(url)
    if text.startswith("kafka:"):
        from tidegate.streams.kafka import KafkaStore

        parts = urlsplit(text)
        if not parts.netloc:
            # The options after `?` may contain secrets.
            raise SpecError(
                f"the address of a Kafka store names its brokers, got `{text.partition('?')[0]}`."
                " Hint: kafka://localhost:9092/prefix"
            )
        return KafkaStore(
            parts.netloc,
            prefix=unquote(parts.path.lstrip("/")),
            options=tuple(parse_qsl(parts.query)),
        )
    from tidegate.streams.sqlite import SqliteStore

    if not text.startswith("sqlite:"):
        return SqliteStore(text, create=create)
    path, _, query = text.removeprefix("sqlite:").partition("?")
    options = dict(parse_qsl(query))
    if unknown := options.keys() - {"synchronous"}:
        raise SpecError(
            f"a SQLite store has no option `{min(unknown)}`. Hint: sqlite:PATH?synchronous=normal"
        )
    return SqliteStore(path, create=create, **options)
