"""A stream: segments over a key space, marks of its writers and watermarks, in a shared store."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from tidegate.errors import InputError, SpecError
from tidegate.instants import Duration, duration
from tidegate.kernel.streams.frontier import Frontier
from tidegate.kernel.streams.segments import Position
from tidegate.kernel.streams.watermarks import Mark, Marks, StreamMark
from tidegate.streams.description import CELL, Description
from tidegate.streams.store import Conflict, Store, Swap
from tidegate.streams.watermark_log import WatermarkLog

if TYPE_CHECKING:
    from tidegate.streams.readers import ReaderGroup
    from tidegate.streams.transactions import TransactionalWriter
    from tidegate.streams.writer import Writer

MARKS = "mark/"
Clock = Callable[[], int]
Start = Literal["earliest", "latest"] | Position | Frontier


def machine_clock() -> int:
    """The system clock, in microseconds."""
    return time.time_ns() // 1000


@dataclass(frozen=True)
class Stream:
    """A stream of a store; stateless, so two objects with the same name are the same stream."""

    store: Store
    name: str
    clock: Clock = machine_clock

    # Metadata

    def description(self) -> Description:
        """Segments and settings; completes a scaling that was interrupted."""
        found, version = self._described()
        return self._settled(found, version) if found.scaling else found

    def _described(self) -> tuple[Description, int]:
        cell = self.store.cell(self.name, CELL)
        if cell is None:
            known = names_of(self.store)
            hint = f"the store has {', '.join(known)}" if known else "create it first"
            raise InputError(f"there is no stream `{self.name}`. Hint: {hint}")
        return Description.from_dict(cell.document), cell.version

    def _settled(self, described: Description, version: int) -> Description:
        """Open and seal segments as the epochs require.

        Writers with an old view are rejected and refresh.
        """
        self.store.open_segments(self.name, list(described.segments.by_name))
        for name in described.sealed:
            self.store.seal(self.name, name)
        done = replace(described, scaling=False)
        try:
            self.store.swap(self.name, Swap(CELL, done.to_dict(), version))
        except Conflict:
            return self.description()
        return done

    def marks(self) -> Marks:
        """The last mark of each writer."""
        cells = self.store.cells(self.name, MARKS).items()
        known = ((key.removeprefix(MARKS), mark_of(cell.document)) for key, cell in cells)
        return Marks({writer: mark for writer, mark in known if mark is not None})

    def watermarks(self) -> list[StreamMark]:
        """All retained watermarks, oldest first."""
        marks = WatermarkLog(self.store, self.name).refresh().marks
        return [marks[number] for number in sorted(marks)]

    def tail(self) -> dict[str, int]:
        """The cut at the end of the stream."""
        newest = self.description().segments.newest()
        bounds = self.store.bounds(self.name)
        return {one.name: bounds[one.name][1] for one in newest}

    def frontier(self, start: Start = "earliest") -> Frontier:
        """The frontier at which reading starts."""
        if isinstance(start, Frontier):
            return start
        described = self.description()
        if start == "earliest":
            return Frontier(dict(described.head))
        if start == "latest":
            return Frontier(self.tail())
        if not isinstance(start, Mapping):
            raise SpecError(f'`start` is "earliest", "latest", a cut or a frontier, got {start!r}')
        cut = self._place(described, start)
        if described.segments.upper_bound([described.head, cut]) != cut:
            raise InputError(
                f"the stream starts at {dict(described.head)}, so it cannot be read from {cut}."
                " Hint: that part is truncated"
            )
        return Frontier(cut)

    def _place(self, described: Description, cut: Position | Frontier) -> dict[str, int]:
        """The cut itself, or the last readable cut before it.

        In a readable cut no segment starts before its predecessors end.
        """
        segments = described.segments
        if isinstance(cut, Frontier):
            return segments.lower_bound(cut.position, self._end)
        if any(not isinstance(at, int) or isinstance(at, bool) or at < 0 for at in cut.values()):
            raise SpecError(
                f"a cut has a non-negative offset for each of its segments, got {dict(cut)}"
            )
        if segments.upper_bound([cut]) != dict(cut):
            raise SpecError(
                f"a cut covers every key exactly once, got {dict(cut)}. Hint: use a cut returned"
                " by the stream or a group"
            )
        bounds = self.store.bounds(self.name)
        for name, at in cut.items():
            end = bounds[name][1]
            # A reader may be past the last event if the store has records of its own between
            # events.
            if at > end and self.store.read(self.name, name, end, 1).next < at:
                raise InputError(
                    f"the segment `{name}` ends at {end}, so there is no cut at {dict(cut)}"
                )
        return segments.lower_bound(cut, self._end)

    def _end(self, segment: str) -> int:
        """The end of a sealed segment."""
        return self.store.seal(self.name, segment)

    # Changes

    def scale(
        self,
        segments: int | None = None,
        *,
        seal: Sequence[str] | None = None,
        ranges: Sequence[tuple[float, float]] | None = None,
    ) -> Description:
        """Seal segments and create their successors.

        `segments` is the wanted number of equal segments; `seal` and `ranges` name the segments and
        the key ranges of their successors.
        """
        if (segments is None) == (seal is None) or (seal is None) != (ranges is None):
            hint = "scale(4), or scale(seal=['0'], ranges=[(0, 0.5), (0.5, 1)])"
            raise SpecError(
                f"`scale` takes a number of segments, or both `seal` and `ranges`. Hint: {hint}"
            )
        while True:
            self.description()
            before, version = self._described()
            wanted = (
                before.scaled_to(segments)
                if segments is not None
                else before.scaled(seal or [], ranges or [])
            )
            if wanted == before:
                return before
            try:
                # Writers read the description after writing: a writer that does not see this
                # version wrote before it.
                version = self.store.swap(self.name, Swap(CELL, wanted.to_dict(), version))
            except Conflict:
                continue
            return self._settled(wanted, version)

    def truncate(self, cut: Position | Frontier) -> None:
        """Delete events before a cut or a group's position, and their watermarks.

        Never moves the head back.
        """
        while True:
            self.description()
            before, version = self._described()
            head = before.segments.upper_bound([self._place(before, cut), before.head])
            try:
                self.store.swap(
                    self.name, Swap(CELL, replace(before, head=head).to_dict(), version)
                )
                break
            except Conflict:
                continue
        segments = before.segments
        passed = [
            name
            for name, one in segments.by_name.items()
            if any(segments[other].succeeds(one) for other in head) and name not in head
        ]
        self.store.truncate(self.name, {**{name: self._end(name) for name in passed}, **head})
        WatermarkLog(self.store, self.name).truncate(head, segments)

    # Writers and readers

    def writer(self, writer_id: str | None = None, **options: Any) -> Writer:
        """A writer; one without an id cannot note times. See `Writer` for the options."""
        from tidegate.streams.writer import Writer

        return Writer(self, writer_id, **options)

    def transactional_writer(
        self, writer_id: str, *, timeout: Duration = "30 seconds"
    ) -> TransactionalWriter:
        """A writer whose events become visible together when their transaction commits."""
        from tidegate.streams.transactions import TransactionalWriter

        return TransactionalWriter(self, writer_id, duration(timeout))

    def group(
        self, name: str, *, start: Start = "earliest", lease: Duration = "10 seconds"
    ) -> ReaderGroup:
        """A reader group, created at `start` if new; a reader silent for `lease` expires."""
        from tidegate.streams.readers import ReaderGroup

        return ReaderGroup.opened(self, name, start, duration(lease))


def start_of(text: str, what: str, hint: str) -> Start:
    """The start position given as text: `earliest`, `latest` or a cut as JSON."""
    if text in {"earliest", "latest"}:
        return "latest" if text == "latest" else "earliest"
    try:
        cut = json.loads(text)
    except ValueError:
        cut = None
    if not isinstance(cut, dict):
        raise SpecError(f"{what} is earliest, latest or a cut as JSON, got `{text}`. Hint: {hint}")
    return cut


def names_of(store: Store) -> list[str]:
    """The names of all streams of a store, sorted; owners of other cells are not streams."""
    return [name for name in store.streams() if store.cell(name, CELL) is not None]


def mark_of(document: Mapping[str, Any]) -> Mark | None:
    """The mark in the cell of a writer; None if it has not noted a time."""
    return (
        None
        if document["time"] is None
        else Mark(document["time"], document["position"], document["alive"])
    )
