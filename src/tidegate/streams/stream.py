"""A stream: segments over a key space, its writers' marks and its watermarks, in a store that many
processes share.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from tidegate.errors import InputError, SpecError
from tidegate.instants import Duration, duration
from tidegate.kernel.streams.aggregation import StreamMark
from tidegate.kernel.streams.cuts import Position
from tidegate.kernel.streams.reading import Frontier
from tidegate.kernel.streams.writer_marks import Mark, Marks
from tidegate.streams.description import CELL, Description
from tidegate.streams.store import Conflict, Store, Swap
from tidegate.streams.watermarks import WatermarkLog

if TYPE_CHECKING:
    from tidegate.streams.readers import ReaderGroup
    from tidegate.streams.transactions import TransactionalWriter
    from tidegate.streams.writer import Writer

MARKS = "mark/"
Clock = Callable[[], int]
Start = Literal["earliest", "latest"] | Position | Frontier


def machine_clock() -> int:
    """The clock of the machine, in microseconds."""
    return time.time_ns() // 1000


@dataclass(frozen=True)
class Stream:
    """A stream of a store; it holds nothing, so two of the same name are the same."""

    store: Store
    name: str
    clock: Clock = machine_clock

    # What is known of it

    def description(self) -> Description:
        """Segments and settings as they are now; a scaling that its process did not live to finish
        is finished first.
        """
        found, version = self._described()
        return self._settled(found, version) if found.scaling else found

    def _described(self) -> tuple[Description, int]:
        cell = self.store.cell(self.name, CELL)
        if cell is None:
            known = names_of(self.store)
            hint = f"there are {', '.join(known)}" if known else "create it first"
            raise InputError(f"there is no stream `{self.name}`. Hint: {hint}")
        return Description.from_dict(cell.document), cell.version

    def _settled(self, described: Description, version: int) -> Description:
        """Open and seal what the epochs say. Writers that do not know of it yet are refused from
        then on, and ask.
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
        """What each writer has said last."""
        cells = self.store.cells(self.name, MARKS).items()
        known = ((key.removeprefix(MARKS), mark_of(cell.document)) for key, cell in cells)
        return Marks({writer: mark for writer, mark in known if mark is not None})

    def watermarks(self) -> list[StreamMark]:
        """All watermarks that the stream still has, in their order."""
        marks = WatermarkLog(self.store, self.name).refresh().marks
        return [marks[number] for number in sorted(marks)]

    def tail(self) -> dict[str, int]:
        """The cut at the end of the stream."""
        newest = self.description().segments.newest()
        bounds = self.store.bounds(self.name)
        return {one.name: bounds[one.name][1] for one in newest}

    def frontier(self, start: Start = "earliest") -> Frontier:
        """Where reading begins."""
        if isinstance(start, Frontier):
            return start
        described = self.description()
        if start == "earliest":
            return Frontier(dict(described.head))
        if start == "latest":
            return Frontier(self.tail())
        if not isinstance(start, Mapping):
            raise SpecError(
                f'reading starts at "earliest", "latest", a cut or a frontier, got {start!r}'
            )
        cut = self._place(described, start)
        if described.segments.upper_bound([described.head, cut]) != cut:
            raise InputError(
                f"the stream begins at {dict(described.head)}, so it cannot be read from {cut}."
                " Hint: what stood there was truncated"
            )
        return Frontier(cut)

    def _place(self, described: Description, cut: Position | Frontier) -> dict[str, int]:
        """Where a reader can stand: a cut as it was given, or the last before it that begins no
        segment before the end of its predecessors.
        """
        segments = described.segments
        if isinstance(cut, Frontier):
            return segments.lower_bound(cut.position, self._end)
        if any(not isinstance(at, int) or isinstance(at, bool) or at < 0 for at in cut.values()):
            raise SpecError(f"a cut names the offset of each of its segments, got {dict(cut)}")
        if segments.upper_bound([cut]) != dict(cut):
            raise SpecError(
                f"a cut has every key once, and {dict(cut)} does not. Hint: take one that the"
                " stream or a group has told"
            )
        bounds = self.store.bounds(self.name)
        for name, at in cut.items():
            end = bounds[name][1]
            # A reader may be further than the last event, where the store keeps things of its own
            # between events.
            if at > end and self.store.read(self.name, name, end, 1).next < at:
                raise InputError(
                    f"the segment `{name}` ends at {end}, so there is no cut at {dict(cut)}"
                )
        return segments.lower_bound(cut, self._end)

    def _end(self, segment: str) -> int:
        """The end of a segment that was sealed before."""
        return self.store.seal(self.name, segment)

    # What changes it

    def scale(
        self,
        segments: int | None = None,
        *,
        seal: Sequence[str] | None = None,
        ranges: Sequence[tuple[float, float]] | None = None,
    ) -> Description:
        """Seal segments and give their keys to successors: to have so many of equal size, or as
        `seal` and `ranges` say.
        """
        if (segments is None) == (seal is None) or (seal is None) != (ranges is None):
            hint = "scale(4), or scale(seal=['0'], ranges=[(0, 0.5), (0.5, 1)])"
            raise SpecError(
                f"scaling takes a number of segments, or `seal` and `ranges`. Hint: {hint}"
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
                # Writers look at the description after they have written: whoever does not find
                # this there was before it.
                version = self.store.swap(self.name, Swap(CELL, wanted.to_dict(), version))
            except Conflict:
                continue
            return self._settled(wanted, version)

    def truncate(self, cut: Position | Frontier) -> None:
        """Drop all that stands before a cut or what a group has confirmed, and the watermarks of
        before; a begin that is further already stays.
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

    # Who works with it

    def writer(self, writer_id: str | None = None, **options: Any) -> Writer:
        """A writer; without an id it cannot note times. `Writer` tells the options."""
        from tidegate.streams.writer import Writer

        return Writer(self, writer_id, **options)

    def transactional_writer(
        self, writer_id: str, *, timeout: Duration = "30 seconds"
    ) -> TransactionalWriter:
        """A writer whose events are seen together, at the commit of their transaction."""
        from tidegate.streams.transactions import TransactionalWriter

        return TransactionalWriter(self, writer_id, duration(timeout))

    def group(
        self, name: str, *, start: Start = "earliest", lease: Duration = "10 seconds"
    ) -> ReaderGroup:
        """A group of readers, which begins at `start` where it is new; a reader that says nothing
        for `lease` is given up.
        """
        from tidegate.streams.readers import ReaderGroup

        return ReaderGroup.opened(self, name, start, duration(lease))


def start_of(text: str, what: str, hint: str) -> Start:
    """Where reading starts as a text says it: a word, or a cut as JSON."""
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
    """The names of all streams of a store, in their order; what has only cells of its own is
    none.
    """
    return [name for name in store.streams() if store.cell(name, CELL) is not None]


def mark_of(document: Mapping[str, Any]) -> Mark | None:
    """The mark in a writer's cell; None where the writer has said no time."""
    return (
        None
        if document["time"] is None
        else Mark(document["time"], document["position"], document["alive"])
    )
