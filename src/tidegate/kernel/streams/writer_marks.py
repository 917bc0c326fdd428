"""What writers say: the last time that each has noted, and where in the stream it was then; a stale
mark never replaces a newer one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tidegate.errors import WatermarkError
from tidegate.kernel.streams.cuts import Position


@dataclass(frozen=True)
class Mark:
    """A writer at this position has written everything before this time."""

    time: int
    position: Mapping[str, int] = field(default_factory=dict)
    alive: bool = True
    """Whether the writer goes on; one that has shut down is not waited for."""


@dataclass(frozen=True)
class Commit:
    """A transaction that was committed, with the time that its writer gave."""

    writer: str
    time: int | None


@dataclass
class Marks:
    """The marks of all writers of a stream."""

    by_writer: dict[str, Mark] = field(default_factory=dict)
    written: int = 0
    """How many marks were written."""

    def __contains__(self, writer: str) -> bool:
        return writer in self.by_writer

    def get(self, writer: str) -> Mark | None:
        return self.by_writer.get(writer)

    def note(self, writer: str, time: int, position: Position) -> None:
        """A writer notes a time; one that goes back is refused, and the mark stays."""
        former = self.by_writer.get(writer)
        if former is not None and time < former.time:
            raise WatermarkError(
                f"the writer `{writer}` has noted {former.time}, and its time cannot go back to"
                f" {time}"
            )
        known = {} if former is None else former.position
        furthest = {name: max(at, known.get(name, at)) for name, at in position.items()}
        self.by_writer[writer] = Mark(time, {**known, **furthest})
        self.written += 1

    def commit(self, commits: Iterable[Commit], position: Position) -> None:
        """Transactions were committed together up to a position: each writer's highest time is its
        mark.
        """
        times: dict[str, int] = {}
        for commit in commits:
            if commit.time is not None:
                times[commit.writer] = max(commit.time, times.get(commit.writer, commit.time))
        for writer, time in times.items():
            former = self.by_writer.get(writer)
            self.note(writer, time if former is None else max(time, former.time), position)

    def shut_down(self, writer: str) -> None:
        """The writer has ended: nobody waits for it, and its next mark brings it back."""
        if writer in self.by_writer:
            self.by_writer[writer] = replace(self.by_writer[writer], alive=False)

    def remove(self, writer: str, expected: Mark) -> None:
        """Forget a writer, unless it has said something meanwhile."""
        if self.by_writer.get(writer) != expected:
            raise WatermarkError(
                f"the mark of the writer `{writer}` is not the expected one any more, so it stays"
            )
        del self.by_writer[writer]
