"""Frontiers: the reading progress in a whole stream, predecessors before successors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.errors import SpecError
from tidegate.kernel.streams.segments import Position, Segments


@dataclass(frozen=True)
class Frontier:
    """The next offset in each segment that was started.

    A segment that was read to its end stays until all of its successors are started.
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
        """The segments that can be read now."""
        return sorted(name for name in self.position if name not in self.ended)

    def advanced(self, segments: Segments, read: Position, ended: Iterable[str] = ()) -> Frontier:
        """The frontier after reading: the new offset of segments, and which of them ended."""
        finished = self.ended.union(ended)
        if strange := finished - self.position.keys():
            raise SpecError(
                f"`{min(strange)}` cannot end, because it is not started. Hint: only advance"
                " segments of the frontier"
            )
        for name, at in read.items():
            if name not in self.position or name in self.ended or at < self.position[name]:
                raise SpecError(
                    f"`{name}` cannot advance to {at}: it is not started, already at its end, or"
                    " further. Hint: only advance segments of the frontier"
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
        """The segments whose predecessors are all read to their ends."""
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
        """Whether all successors of a segment are started, or already gone."""
        begun = [segments[other] for other in position]
        successors = [segments[one] for one in segments.successors(name)]
        return bool(successors) and all(
            one.name in position or any(other.succeeds(one) for other in begun)
            for one in successors
        )
