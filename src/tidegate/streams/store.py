"""What a store of streams can do: logs that grow at their end until they are sealed, and cells that
only change under those who know them.

Everything else (routing, writers, transactions, the controller, reader groups, Spark's source) is
made of these few operations, once for all stores. A store serves several processes at once, and
several threads of each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from tidegate.errors import InputError, TidegateError

_COLUMNS: list[tuple[str, pa.DataType]] = [("key", pa.string()), ("value", pa.binary())]
BLOCK = pa.schema(
    [
        *pa.schema(_COLUMNS),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("appended", pa.int64(), nullable=False),
    ]
)
"""What is read: the routing key of each event (null where it has none), its bytes, its offset, and
the clock of the store when it took it (µs).
"""


@dataclass(slots=True)
class Rows:
    """What is appended to a segment: the routing key of each event (None where it has none), and
    its bytes.

    Events come to writers one by one, and every store hands them on as Python's bytes, so they are
    lists here and not columns.
    """

    keys: Sequence[str | None]
    values: Sequence[bytes]

    def __post_init__(self) -> None:
        if len(self.keys) != len(self.values):
            raise InputError(
                f"each event has a key or None, got {len(self.keys)} keys for {len(self.values)}"
                " events"
            )

    def __len__(self) -> int:
        return len(self.values)

    def between(self, start: int, stop: int) -> Rows:
        return Rows(self.keys[start:stop], self.values[start:stop])


class Conflict(TidegateError):  # noqa: N818 - it is no failure: somebody else was faster
    """A cell is not what the caller took it for any more."""


@dataclass(frozen=True)
class Cell:
    """A small JSON document, and the version that a change has to name."""

    document: Any
    version: int


@dataclass(frozen=True)
class Swap:
    """A change of a cell: taken only where its version still is the named one; 0 means that there
    must be none. None takes the cell away.
    """

    key: str
    document: Any
    """In an append it may be a function that makes the document of the position of the rows: the
    offset after the last row of each segment.
    """
    version: int


@dataclass(frozen=True)
class Appended:
    """What became of an append."""

    position: Mapping[str, int] = field(default_factory=dict)
    """For each segment that took rows: the offset after the last of them."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """For each segment that was sealed meanwhile: how many of its rows, the last ones, were not
    taken.
    """


@dataclass(frozen=True)
class Block:
    """Neighbouring events of a segment."""

    rows: pa.Table
    """As `BLOCK` has them."""
    next: int
    """Where to read on; beyond the last row's offset, and possibly further."""
    ended: bool = False
    """Whether the segment is sealed and nothing comes after this."""


class Sending:
    """Rows on their way to the ends of segments, handed over piece by piece before anybody waits
    for them.
    """

    def __init__(self, store: Store, stream: str) -> None:
        self.store, self.stream = store, stream
        self._added: dict[str, tuple[list[str | None], list[bytes]]] = {}

    @property
    def rows(self) -> dict[str, Rows]:
        """All that was added, by segment."""
        return {name: Rows(keys, values) for name, (keys, values) in self._added.items()}

    def add(self, rows: Mapping[str, Rows]) -> None:
        """Hand over more rows."""
        for name, more in rows.items():
            if name in self._added:
                keys, values = self._added[name]
                keys += more.keys
                values += more.values
            else:
                self._added[name] = [*more.keys], [*more.values]

    def wait(self) -> Appended:
        """What became of all of it: it is in the stream now, as if it had come in one append."""
        return self.store.append(self.stream, self.rows)


class Store(ABC):
    """A store of streams.

    Contract:
    - Cells belong to a stream, which need not exist as one: `""` holds what belongs to none. A key
      is made of `a-z A-Z 0-9 . _ - / #`. Keys that
      differ only behind a `#` may wait for each other; any two others do not.
    - A change that was returned from is seen by every later call of any process, and survives the
      death of every process.
    - A segment has to be opened before anything is appended. Its offsets only grow, and there may
      be gaps between them.
    - What comes in one append keeps its order inside a segment. With `whole` or with a swap all of
      it is taken or nothing: readers see all or
      nothing, and a segment that is sealed, or a conflict, refuses everything.
    - A read sees events in the order of offsets, only such as will stay, and never passes by one
      that will still come.
    - Sealing is for ever and may be repeated.
    """

    url: str
    """What `tidegate.streams.open` makes an equal store of, in any process."""
    largest: int | None = None
    """How many bytes an event may have with its key; None where nobody has to ask."""

    # Cells

    @abstractmethod
    def cells(self, stream: str, prefix: str = "") -> dict[str, Cell]:
        """The cells whose keys begin so, by key, in the order of keys; all as of one moment."""

    @abstractmethod
    def swap(self, stream: str, swap: Swap) -> int:
        """Change a cell of a stream, and return its new version; `Conflict` where it is not as it
        was.
        """

    def cell(self, stream: str, key: str) -> Cell | None:
        return self.cells(stream, key).get(key)

    # Logs

    @abstractmethod
    def streams(self) -> list[str]:
        """The names of all streams that have a cell or a segment, in their order."""

    @abstractmethod
    def drop(self, stream: str) -> None:
        """Remove a stream with its segments and cells."""

    @abstractmethod
    def open_segments(self, stream: str, names: list[str]) -> None:
        """Make segments that can be appended to; those that are there already stay as they are.
        Names are numbers, without gaps.
        """

    @abstractmethod
    def append(
        self,
        stream: str,
        rows: Mapping[str, Rows],
        *,
        swap: Swap | None = None,
        whole: bool = False,
    ) -> Appended:
        """Put rows at the ends of segments, and change a cell with them."""

    def sending(self, stream: str) -> Sending:
        """Rows that will be appended, neither whole nor with a swap, and may be under way before
        that.
        """
        return Sending(self, stream)

    @abstractmethod
    def seal(self, stream: str, segment: str) -> int:
        """End a segment, and return its end: the offset that a reader has when it has read all of
        it.
        """

    @abstractmethod
    def read(
        self, stream: str, segment: str, offset: int, most: int, *, before: int | None = None
    ) -> Block:
        """At most so many events from an offset on, and none at or after `before`; what is there
        now, without waiting for more.

        `InputError` where what stands at the offset was truncated.
        """

    @abstractmethod
    def bounds(self, stream: str) -> dict[str, tuple[int, int]]:
        """For each segment: the first offset that can still be read, and the one after the last
        event that a reader would see now.
        """

    @abstractmethod
    def truncate(self, stream: str, starts: Mapping[str, int]) -> None:
        """Drop what stands before these offsets; segments that are not named stay."""

    @abstractmethod
    def close(self) -> None:
        """Let go of files and connections; what was appended stays."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
