"""Routing of events to segments by the hash of their key.

The hash is a number in [0, 1); the open segment whose range contains it receives the event.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import numpy as np
import pyarrow as pa

from tidegate.kernel.keys import FIXED, mix
from tidegate.kernel.streams.segments import Segment
from tidegate.streams.store import EventBatch

_UNIT = float(2**53)
_MANY = 100_000


def places(keys: pa.Array, first: int) -> np.ndarray:
    """The hash of each key in [0, 1); events without a key are spread round-robin from `first`."""
    key_hash, _ = FIXED.identify([keys], len(keys))
    if keys.null_count:
        key_hash = np.where(
            keys.is_null().to_numpy(zero_copy_only=False),
            mix(np.arange(first, first + len(keys)).astype(np.uint64)),
            key_hash,
        )
    # The upper 53 bits are an exact float, so the result stays below 1.
    return (key_hash >> np.uint64(11)).astype(np.float64) / _UNIT


class Router:
    """Routes events to the open segments, which cover the key space in order."""

    def __init__(self, open_segments: Sequence[Segment]) -> None:
        self._names = [one.name for one in open_segments]
        self._lows = np.array([one.low for one in open_segments])
        self._known: dict[str | None, int] = {}
        """Cache of the segment of each key: most writers repeat their keys."""

    def routed(self, rows: EventBatch, first: int = 0) -> dict[str, EventBatch]:
        """The rows of each segment, in order.

        `first` continues the round-robin of events without a key.
        """
        if len(self._names) == 1 or not rows.values:
            return dict.fromkeys(self._names, rows) if rows.values else {}
        segments = self._segments(rows.keys, first)
        if len(set(segments)) == 1:
            return {self._names[segments[0]]: rows}
        places = np.fromiter(segments, np.int64, len(segments))
        order = np.argsort(places, kind="stable")
        bounds = np.searchsorted(places[order], np.arange(len(self._names) + 1)).tolist()
        in_order = itemgetter(*order.tolist())
        ordered = EventBatch(in_order(rows.keys), in_order(rows.values))
        found = {name: (bounds[n], bounds[n + 1]) for n, name in enumerate(self._names)}
        return {
            name: ordered.between(start, stop)
            for name, (start, stop) in found.items()
            if stop > start
        }

    def _segments(self, keys: Sequence[str | None], first: int) -> list[int]:
        known = self._known
        new = set(keys).difference(known)
        if None in new or len(new) > _MANY:
            return self._hashed(keys, first)
        if new:
            if len(known) + len(new) > _MANY:
                known.clear()
                new = set(keys)
            names = list(new)
            known.update(zip(names, self._hashed(names, 0), strict=True))
        return list(map(known.__getitem__, keys))

    def _hashed(self, keys: Sequence[str | None], first: int) -> list[int]:
        found: list[int] = (
            np.searchsorted(self._lows, places(pa.array(keys, pa.string()), first), side="right")
            - 1
        ).tolist()
        return found
