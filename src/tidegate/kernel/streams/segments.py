"""Segments and cuts of a stream.

Segments split a stream by key. Scaling replaces segments by successors. A position is an offset in
each of some segments. A cut is a position that covers the key space 0..1 exactly once. Of two
segments that share keys, the one of the later epoch is the successor, and all of its events come
after those of the other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tidegate.errors import SpecError

Position = Mapping[str, int]
"""The offset in each segment."""
BEFORE, OVERLAPPING, PASSED = -1, 0, 1


@dataclass(frozen=True)
class Segment:
    """A range [low, high) of the key space 0..1, from one epoch of the stream on."""

    name: str
    low: float
    high: float
    epoch: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= 1:
            raise SpecError(
                f"the range of a segment lies within 0..1, got [{self.low}, {self.high}) for"
                f" `{self.name}`"
            )

    def meets(self, other: Segment) -> bool:
        """Whether the two share keys."""
        return self.low < other.high and other.low < self.high

    def succeeds(self, other: Segment) -> bool:
        """Whether this segment takes over keys of another."""
        return self.epoch > other.epoch and self.meets(other)


@dataclass(frozen=True)
class Segments:
    """All segments of a stream, including sealed ones."""

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
        """The segments without successors, sorted by key range."""
        return self._newest

    def successors(self, name: str) -> list[str]:
        """The segments that took over the keys of a sealed one; empty while it is open."""
        return self._after[self[name].name]

    def predecessors(self, name: str) -> list[str]:
        """The segments whose keys this one took over."""
        return self._before[self[name].name]

    @cached_property
    def _after(self) -> dict[str, list[str]]:
        every = list(self.by_name.values())
        low, high, epoch = self._columns(self.by_name)
        found = {}
        for one in every:
            after = np.flatnonzero((epoch > one.epoch) & (low < one.high) & (high > one.low))
            sealed = epoch[after].min(initial=epoch.max())
            found[one.name] = sorted(every[n].name for n in after[epoch[after] == sealed])
        return found

    @cached_property
    def _before(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {name: [] for name in self.by_name}
        for name in sorted(self.by_name):
            for after in self._after[name]:
                found[after].append(name)
        return found

    @cached_property
    def _newest(self) -> list[Segment]:
        return sorted(
            (one for one in self.by_name.values() if not self._after[one.name]),
            key=lambda segment: segment.low,
        )

    def _all_before(self, name: str) -> set[str]:
        """All segments that are read before this one starts."""
        found: set[str] = set()
        ahead = [name]
        while ahead:
            fresh = set(self.predecessors(ahead.pop())) - found
            found |= fresh
            ahead += fresh
        return found

    def _columns(self, names: Iterable[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Lower and upper bounds and epochs as arrays; comparing all pairs at once beats a loop."""
        found = [self[name] for name in names]
        return (
            np.array([one.low for one in found]),
            np.array([one.high for one in found]),
            np.array([one.epoch for one in found], int),
        )

    def _later(self, names: Iterable[str], others: Iterable[str]) -> np.ndarray:
        """For each pair of segments, by how many epochs the first is later.

        0 if they share no keys.
        """
        (low, high, epoch), (its_low, its_high, its_epoch) = (
            self._columns(names),
            self._columns(others),
        )
        meets = (low[:, None] < its_high) & (its_low < high[:, None])
        return np.where(meets, epoch[:, None] - its_epoch, 0)

    def compare(self, position: Position, cut: Position) -> int:
        """`BEFORE`, `PASSED` or `OVERLAPPING`: where a position is relative to a cut.

        It overlaps if it is ahead for some keys and behind for others.
        """
        later = self._later(position, cut)
        same = [(at, cut[name]) for name, at in position.items() if name in cut]
        behind = bool((later < 0).any()) or any(at < mark for at, mark in same)
        ahead = bool((later > 0).any()) or any(at > mark for at, mark in same)
        if behind and ahead:
            return OVERLAPPING
        return BEFORE if behind else PASSED

    def upper_bound(self, positions: Iterable[Position]) -> dict[str, int]:
        """The least cut at or after all positions.

        It has the greatest offset of each segment, and no segment whose successor it has. Keys
        without a position are filled with the newest segments that cover them, from their start;
        these may succeed others in turn.
        """
        furthest: dict[str, int] = {}
        for position in positions:
            for name, at in position.items():
                furthest[name] = max(furthest.get(name, at), at)
        cut = self._without_predecessors(furthest)
        while missing := self._uncovered(cut):
            cut = self._without_predecessors({**cut, **{segment.name: 0 for segment in missing}})
        return cut

    def lower_bound(self, position: Position, end: Callable[[str], int]) -> dict[str, int]:
        """The last readable cut at or before a position that covers every key.

        Successors of a segment that is not read to its end cannot be started: their predecessors
        replace them, at their ends.
        """
        found = dict(position)
        while early := [name for name in found if not self._all_before(name).isdisjoint(found)]:
            for name in early:
                del found[name]
            for before in {one for name in early for one in self.predecessors(name)} - found.keys():
                found[before] = end(before)
        return found

    def without_covered(self, position: Position) -> dict[str, int]:
        """An equivalent, shorter position: without segments fully covered by their successors."""
        if len(position) <= len(self.newest()):
            return dict(position)
        known = [self.by_name[name] for name in position if name in self.by_name]
        gone = {
            one.name
            for one in known
            if _covers(one, [other for other in known if other.succeeds(one)])
        }
        return {name: at for name, at in position.items() if name not in gone}

    def _without_predecessors(self, position: Position) -> dict[str, int]:
        succeeded = np.any(self._later(position, position) < 0, axis=1).tolist()
        return {
            name: at
            for (name, at), gone in zip(position.items(), succeeded, strict=True)
            if not gone
        }

    def _uncovered(self, names: Iterable[str]) -> list[Segment]:
        """The newest segments with keys that none of the named ones covers."""
        gaps, reached = [], 0.0
        for low, high in sorted((self[name].low, self[name].high) for name in names):
            if low > reached:
                gaps.append((reached, low))
            reached = max(reached, high)
        if reached < 1:
            gaps.append((reached, 1.0))
        begins, ends = [low for low, _ in gaps], [high for _, high in gaps]
        # The first gap that ends after a segment starts overlaps it, or none does.
        first = [(segment, bisect_right(ends, segment.low)) for segment in self.newest()]
        return [segment for segment, n in first if n < len(gaps) and begins[n] < segment.high]


def _covers(one: Segment, others: Iterable[Segment]) -> bool:
    """Whether others cover all keys of a segment."""
    reached = one.low
    for other in sorted(others, key=lambda segment: segment.low):
        if other.low > reached:
            return False
        reached = max(reached, other.high)
    return reached >= one.high
