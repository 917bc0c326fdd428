"""Routing: the hash of an event's key is a number of 0..1, and the segment that has this number takes the event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.kernel.keys import identify, mix
from tidegate.kernel.streams.cuts import Segment

_UNIT = float(2**53)
_FEW = 256
_MANY = 100_000


def places(keys: pa.Array, first: int) -> np.ndarray:
    """For each event the place of its key in 0..1; events without a key go round, counted from `first`."""
    kid, _ = identify([keys], len(keys))
    if keys.null_count:
        kid = np.where(keys.is_null().to_numpy(zero_copy_only=False), mix(np.arange(first, first + len(keys)).astype(np.uint64)), kid)
    # The upper 53 bits are a float without rounding, so 1 is never reached.
    return (kid >> np.uint64(11)).astype(np.float64) / _UNIT


class Router:
    """Routes to the segments that are open, which cover the key space, in the order of keys."""

    def __init__(self, open_segments: Sequence[Segment]) -> None:
        self._names = [one.name for one in open_segments]
        self._lows = np.array([one.low for one in open_segments])
        self._known: dict[str, int] = {}
        """Which segment has a key, for batches that are too small to pay for whole columns."""

    def routed(self, rows: pa.Table, first: int = 0) -> dict[str, pa.Table]:
        """The rows of each segment, in the order in which they came."""
        if len(self._names) == 1 or not rows.num_rows:
            return dict.fromkeys(self._names, rows) if rows.num_rows else {}
        keys = rows.column("key")
        few = rows.num_rows <= _FEW and not keys.null_count
        segment = self._looked_up(keys.to_pylist()) if few else self._hashed(keys.combine_chunks(), first)
        if rows.num_rows == 1:
            return {self._names[int(segment[0])]: rows}
        order = np.argsort(segment, kind="stable")
        bounds = np.searchsorted(segment[order], np.arange(len(self._names) + 1)).tolist()
        ordered = rows.take(pa.array(order))
        found = {name: (bounds[n], bounds[n + 1] - bounds[n]) for n, name in enumerate(self._names)}
        return {name: ordered.slice(start, count) for name, (start, count) in found.items() if count}

    def _hashed(self, keys: pa.Array, first: int) -> np.ndarray:
        return np.searchsorted(self._lows, places(keys, first), side="right") - 1

    def _looked_up(self, keys: list[Any]) -> np.ndarray:
        if len(self._known) > _MANY:
            self._known.clear()
        if new := list({key for key in keys if key not in self._known}):
            self._known |= dict(zip(new, self._hashed(pa.array(new, pa.string()), 0).tolist(), strict=True))
        return np.fromiter(map(self._known.__getitem__, keys), np.int64, len(keys))
