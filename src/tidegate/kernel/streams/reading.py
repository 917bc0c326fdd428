"""Frontiers: how far somebody has read a whole stream, predecessors before successors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.errors import SpecError
from tidegate.kernel.streams.cuts import Position, Segments


@dataclass(frozen=True)
class Frontier:
    """Where it goes on in each segment that was begun. One that was read to its end stays until all
    its successors were begun.
    """

    position: Mapping[str, int]
    ended: frozenset[str] = field(default_factory=frozenset)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"position": dict(sorted(self.position.items())), "ended": sorted(self.ended)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Frontier:
        return cls(dict(document["position"]), frozenset(document["ended"]))

    @property
    def readable(self) -> list[str]:
        """The segments that are to be read now."""
        return sorted(name for name in self.position if name not in self.ended)

    def advanced(self, segments: Segments, read: Position, ended: Iterable[str] = ()) -> Frontier:
        """The frontier after reading: where each segment stands now, and which of them are at their
        end.
        """
        finished = self.ended.union(ended)
        if strange := finished - self.position.keys():
            raise SpecError(
                f"`{min(strange)}` is not at its end, because it is not begun. Hint: only go on"
                " where the frontier says"
            )
        for name, at in read.items():
            if name not in self.position or name in self.ended or at < self.position[name]:
                raise SpecError(
                    f"`{name}` is not read at {at}: it is not begun, at its end, or further. Hint:"
                    " only go on where the frontier says"
                )
        position = {**self.position, **read}
        while started := self._started(segments, position, finished):
            position |= dict.fromkeys(started, 0)
        kept = {
            name: at
            for name, at in position.items()
            if name not in finished or not self._succeeded(segments, name, position)
        }
        return Frontier(kept, frozenset(finished.intersection(kept)))

    @staticmethod
    def _started(segments: Segments, position: Position, ended: frozenset[str]) -> list[str]:
        """The segments whose predecessors all were read to their ends."""
        successors = {one for name in ended for one in segments.successors(name)} - set(position)
        begun = [segments[name] for name in position]
        return [
            one
            for one in sorted(successors)
            if ended.issuperset(segments.predecessors(one))
            and not any(other.succeeds(segments[one]) for other in begun)
        ]

    @staticmethod
    def _succeeded(segments: Segments, name: str, position: Position) -> bool:
        """Whether all successors of a segment were begun, or have gone already."""
        begun = [segments[other] for other in position]
        successors = [segments[one] for one in segments.successors(name)]
        return bool(successors) and all(
            one.name in position or any(other.succeeds(one) for other in begun)
            for one in successors
        )
