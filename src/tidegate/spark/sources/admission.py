"""Admission control: how many events of each partition a batch reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

K = TypeVar("K", bound=Any)


def limit_events(available: Mapping[K, int], max_events: int | None) -> dict[K, int]:
    """The number of events to read of each partition: equally many of each, if available.

    If there are more partitions than events, the longest partitions are read.
    """
    if max_events is None or sum(available.values()) <= max_events:
        return dict(available)
    longest = sorted(available, key=lambda name: (-available[name], name))[:max_events]
    taken: dict[K, int] = {}
    left = max_events
    for many, name in zip(range(len(longest), 0, -1), reversed(longest), strict=True):
        taken[name] = min(available[name], left // many)
        left -= taken[name]
    return taken
