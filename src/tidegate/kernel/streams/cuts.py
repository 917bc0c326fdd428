"""Segments and cuts: a stream is split by key into segments, scaling replaces some of them by successors, and a cut is a place in all of it.

A position says how far somebody is in some segments. A cut is a position that covers the whole key space 0..1 once. Of two segments that share
keys the one of the later epoch is the successor, and everything in it comes after everything in the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidegate.errors import SpecError

Position = Mapping[str, int]
"""How far it is in each segment."""
BEFORE, OVERLAPPING, PASSED = -1, 0, 1


@dataclass(frozen=True)
class Segment:
    """A share of the keys, [low, high) of 0..1, from one epoch of the stream on."""

    name: str
    low: float
    high: float
    epoch: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= 1:
            raise SpecError(f"the keys of a segment are a part of 0..1, got [{self.low}, {self.high}) for `{self.name}`")

    def meets(self, other: Segment) -> bool:
        """Whether the two share keys."""
        return self.low < other.high and other.low < self.high

    def succeeds(self, other: Segment) -> bool:
        """Whether this one takes over keys of another."""
        return self.epoch > other.epoch and self.meets(other)


@dataclass(frozen=True)
class Segments:
    """All segments that a stream has had."""

    by_name: Mapping[str, Segment]

    @classmethod
    def of(cls, segments: Iterable[Segment]) -> Segments:
        found: dict[str, Segment] = {}
        for segment in segments:
            if segment.name in found:
                raise SpecError(f"a stream has two segments named `{segment.name}`")
            found[segment.name] = segment
        return cls(found)

    def __getitem__(self, name: str) -> Segment:
        if name not in self.by_name:
            raise SpecError(f"the stream has no segment `{name}`; it has {', '.join(self.by_name)}")
        return self.by_name[name]

    @property
    def epoch(self) -> int:
        """The newest epoch."""
        return max((segment.epoch for segment in self.by_name.values()), default=0)

    def newest(self) -> list[Segment]:
        """The segments that no other one has taken over, by their keys."""
        every = self.by_name.values()
        return sorted((one for one in every if not any(other.succeeds(one) for other in every)), key=lambda segment: segment.low)

    def compare(self, position: Position, cut: Position) -> int:
        """Whether a position is before a cut, at or after it, or neither, because it is ahead in some keys and behind in others."""
        behind = ahead = False
        for name, at in position.items():
            mine = self[name]
            for other, mark in cut.items():
                its = self[other]
                if name == other:
                    behind, ahead = behind or at < mark, ahead or at > mark
                elif mine.meets(its):
                    behind, ahead = behind or its.succeeds(mine), ahead or mine.succeeds(its)
        if behind and ahead:
            return OVERLAPPING
        return BEFORE if behind else PASSED

    def upper_bound(self, positions: Iterable[Position]) -> dict[str, int]:
        """The least cut that is at or after all positions: the furthest offset of each segment, and no segment that another one there succeeds.

        Keys that no position tells of are filled with the newest segments that have them, from their begin; these may succeed others in turn.
        """
        furthest: dict[str, int] = {}
        for position in positions:
            for name, at in position.items():
                furthest[name] = max(furthest.get(name, at), at)
        cut = self._without_predecessors(furthest)
        while missing := self._uncovered(cut):
            cut = self._without_predecessors({**cut, **{segment.name: 0 for segment in missing}})
        return cut

    def _without_predecessors(self, position: Position) -> dict[str, int]:
        return {name: at for name, at in position.items() if not any(self[other].succeeds(self[name]) for other in position)}

    def _uncovered(self, names: Iterable[str]) -> list[Segment]:
        """The newest segments with keys that none of the named ones has."""
        covered = sorted((self[name].low, self[name].high) for name in names)
        gaps, reached = [], 0.0
        for low, high in covered:
            if low > reached:
                gaps.append((reached, low))
            reached = max(reached, high)
        if reached < 1:
            gaps.append((reached, 1.0))
        return [segment for segment in self.newest() if any(segment.low < high and low < segment.high for low, high in gaps)]
