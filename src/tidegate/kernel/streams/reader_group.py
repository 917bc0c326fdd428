"""State of a reader group: readers share the segments of a stream, one reader per segment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tidegate.kernel.streams.frontier import Frontier
from tidegate.kernel.streams.segments import Position, Segments


@dataclass(frozen=True)
class Member:
    """A reader: its segments, and the time at which it expires unless it renews its lease."""

    segments: tuple[str, ...] = ()
    until: int = 0


@dataclass(frozen=True)
class GroupState:
    """The checkpointed frontier of a group, and the segments of each reader."""

    frontier: Frontier
    members: Mapping[str, Member] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        members = {
            name: {"segments": list(one.segments), "until": one.until}
            for name, one in sorted(self.members.items())
        }
        return {**self.frontier.to_dict(), "readers": members}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> GroupState:
        members = {
            name: Member(tuple(one["segments"]), one["until"])
            for name, one in document["readers"].items()
        }
        return cls(Frontier.from_dict(document), members)

    def segments_of(self, reader: str) -> tuple[str, ...]:
        """The segments that a reader may read now."""
        return self.members[reader].segments if reader in self.members else ()

    def without_silent(self, now: int, but: str) -> GroupState:
        """The group without expired readers, except the caller; their segments become free."""
        return replace(
            self,
            members={
                name: one for name, one in self.members.items() if one.until > now or name == but
            },
        )

    def without(self, reader: str) -> GroupState:
        return replace(
            self, members={name: one for name, one in self.members.items() if name != reader}
        )

    def confirmed(
        self, reader: str, segments: Segments, read: Position, ended: Iterable[str]
    ) -> GroupState:
        """The group after a reader has checkpointed; segments at their end are released."""
        frontier = self.frontier.advanced(segments, read, ended)
        mine = self.members.get(reader, Member())
        kept = replace(
            mine, segments=tuple(name for name in mine.segments if name in frontier.readable)
        )
        return replace(self, frontier=frontier, members={**self.members, reader: kept})

    def dealt(self, reader: str, until: int, keep: Iterable[str] = ()) -> GroupState:
        """The group after a reader took its share and released surplus segments.

        Segments in `keep` are not released.
        """
        members = {**self.members, reader: replace(self.members.get(reader, Member()), until=until)}
        share = _share(sorted(members), reader, len(self.frontier.readable))
        kept = set(keep)
        mine = tuple(sorted(members[reader].segments, key=lambda name: name not in kept))
        mine = mine[: max(share, len(kept.intersection(mine)))]
        taken = {
            name for one, member in members.items() if one != reader for name in member.segments
        }
        free = [name for name in self.frontier.readable if name not in taken and name not in mine]
        mine = (*mine, *free[: max(0, share - len(mine))])
        return replace(
            self,
            members={**members, reader: replace(members[reader], segments=tuple(sorted(mine)))},
        )


def _share(readers: list[str], reader: str, segments: int) -> int:
    """The number of segments a reader should have; the shares add up to the total."""
    whole, rest = divmod(segments, len(readers))
    return whole + (readers.index(reader) < rest)
