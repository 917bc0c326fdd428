"""The offsets of a query over topics: where batches begin and end, and how tasks share them.

This module needs neither Spark nor a Kafka client.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate.errors import CorruptStateError
from tidegate.state.damage import damage_in

VERSION = 1
TASK_MESSAGES = 50_000
"""A task reads at least as many messages, if there are."""
MAX_TASK_MESSAGES = 4 << 20
_SNAP = 0.1
"""The part of the input of a task by which its bounds move to those of a partition."""

Place = tuple[str, int]
"""A topic and the number of a partition."""


def partition_name(place: Place) -> str:
    """The name of a partition in rows and watermarks: its topic and number, such as `clicks-0`."""
    return f"{place[0]}-{place[1]}"


@dataclass(frozen=True, order=True, slots=True)
class OffsetRange:
    """Messages of one partition, from an offset up to another one (exclusive)."""

    place: Place
    low: int
    high: int

    def __len__(self) -> int:
        return self.high - self.low


@dataclass(frozen=True)
class TopicOffset:
    """The progress of a query at the end of a batch."""

    positions: Mapping[Place, int] = field(default_factory=dict)
    """The offset of the next message of each partition."""
    joined: Mapping[Place, int] = field(default_factory=dict)
    """The first offsets of the partitions that are new in the batch."""
    clock: int = 0
    """The clock when the batch was planned, in microseconds; a replay has the same."""
    ids: Mapping[str, str] = field(default_factory=dict)
    """The ids of the topics: positions are those of topics with these ids."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "version": VERSION,
            "clock": self.clock,
            "positions": _by_topic(self.positions),
            "joined": _by_topic(self.joined),
            "ids": dict(self.ids),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> TopicOffset:
        if document.get("version") != VERSION:
            raise CorruptStateError(
                f"an offset of a direct Kafka source has version {document.get('version')!r}, this"
                f" version reads {VERSION}. Hint: use the checkpoint of this source, or a new one"
            )
        with damage_in("an offset of a direct Kafka source"):
            return cls(
                _by_place(document["positions"]),
                _by_place(document["joined"]),
                document["clock"],
                dict(document["ids"]),
            )

    def ranges_after(self, start: TopicOffset) -> list[OffsetRange]:
        """The messages between two offsets, by partition."""
        found = [
            OffsetRange(place, start.positions.get(place, self.joined.get(place, 0)), high)
            for place, high in sorted(self.positions.items())
        ]
        return [one for one in found if one.low < one.high]


def _by_topic(positions: Mapping[Place, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (topic, number), offset in sorted(positions.items()):
        found.setdefault(topic, {})[str(number)] = offset
    return found


def _by_place(document: Mapping[str, Mapping[str, int]]) -> dict[Place, int]:
    return {
        (topic, int(number)): offset
        for topic, offsets in document.items()
        for number, offset in offsets.items()
    }


def share_ranges(ranges: Sequence[OffsetRange], tasks: int) -> list[list[OffsetRange]]:
    """The ranges of each task, of about equally many messages, in the order of the partitions.

    A task may have several partitions, and the messages of a long one are split between tasks.
    """
    total = sum(map(len, ranges))
    if not total:
        return []
    count = max(min(tasks, -(-total // TASK_MESSAGES)), -(-total // MAX_TASK_MESSAGES))
    share = total / count
    found: list[list[OffsetRange]] = [[] for _ in range(count)]
    before = 0
    for one in ranges:
        after = before + len(one)
        # The tasks whose share begins inside the range.
        cuts = [
            round(share * n)
            for n in range(1, count)
            if before + _SNAP * share < share * n < after - _SNAP * share
        ]
        edges = [before, *cuts, after]
        for low, high in itertools.pairwise(edges):
            task = min(int((low + high) / 2 / share), count - 1)
            start = one.low - before
            found[task].append(OffsetRange(one.place, start + low, start + high))
        before = after
    return [task for task in found if task]
