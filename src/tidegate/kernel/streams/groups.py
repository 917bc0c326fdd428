"""Reader groups: several readers share the segments of a stream, and each of them is read by one at
a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tidegate.kernel.streams.cuts import Position, Segments
from tidegate.kernel.streams.reading import Frontier


@dataclass(frozen=True)
class Member:
    """A reader: the segments that are its own, and the clock at which it is given up unless it says
    something before.
    """

    segments: tuple[str, ...] = ()
    until: int = 0


@dataclass(frozen=True)
class GroupState:
    """What a group knows: how far it has read, as its readers have confirmed it, and who reads
    what.
    """

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
        """The group without readers that have said nothing for too long, but one that speaks now;
        others go on where these have confirmed last.
        """
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
        """A reader has read so far; what is at its end is nobody's any more."""
        frontier = self.frontier.advanced(segments, read, ended)
        mine = self.members.get(reader, Member())
        kept = replace(
            mine, segments=tuple(name for name in mine.segments if name in frontier.readable)
        )
        return replace(self, frontier=frontier, members={**self.members, reader: kept})

    def dealt(self, reader: str, until: int, keep: Iterable[str] = ()) -> GroupState:
        """The group after a reader has taken its share of the segments and given back what is too
        much, but nothing of `keep`.
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
    """How many of the segments a reader should have; the shares add up."""
    whole, rest = divmod(segments, len(readers))
    return whole + (readers.index(reader) < rest)
