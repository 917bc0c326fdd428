"""Observations of one micro-batch, which take effect at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tidegate.instants import MIN
from tidegate.kernel.events.duplicates import OffsetMarks
from tidegate.kernel.frame import Frame
from tidegate.kernel.watermarks.per_key import KeyProgress
from tidegate.operators.ingest.delivery import Delivery

_Columns = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(eq=False)
class MicroBatch:
    """What the parts of a micro-batch have shown; all of them are judged by the state before it."""

    newest: int = MIN
    """The newest event that is not from the future."""
    has_rows: bool = False
    """Whether any row could have opened a window."""
    _lookups: int = 0
    """How often keys were looked up."""
    _risers: list[_Columns] = field(default_factory=list)
    """Keys and times of the events that advance the watermarks of keys."""
    _reached: list[tuple[np.ndarray, list[str], np.ndarray]] = field(default_factory=list)
    """Partitions and offsets that other shards have taken."""

    def observe_times(self, times: np.ndarray) -> None:
        """Observe events, none of which is from the future."""
        self.has_rows = True
        if len(times):
            self.newest = max(self.newest, int(times.max()))

    def observe_keys(self, delivery: Delivery, counts: np.ndarray) -> None:
        """Observe rows whose keys were looked up; those in `counts` advance their watermarks."""
        self._lookups += 1
        if counts.any():
            key_hash, key_check, time = delivery.key_hash, delivery.key_check, delivery.time
            self._risers.append(
                (key_hash, key_check, time)
                if counts.all()
                else (key_hash[counts], key_check[counts], time[counts])
            )

    def observe_offsets(
        self, partition: np.ndarray, names: Sequence[str], offset: np.ndarray
    ) -> None:
        """Observe offsets that some shard has taken."""
        self._reached.append((partition, list(names), offset))

    def hold(self) -> None:
        """Continue the micro-batch in another call, which looks its keys up again."""
        self._lookups += 1

    def advance_keys(self, keys: KeyProgress, floor: int) -> Frame | None:
        """Advance the watermarks of keys; returns the keys whose watermark rose."""
        if not self._risers:
            return None
        key_hash, key_check, time = (
            self._risers[0]
            if len(self._risers) == 1
            else (np.concatenate(columns) for columns in zip(*self._risers, strict=True))
        )
        if self._lookups > 1:
            # The last lookup has not found the keys of all parts.
            keys.meet(key_hash, key_check)
        return keys.advance(key_hash, key_check, time, floor)

    def advance_offsets(self, marks: OffsetMarks) -> None:
        """Remember the offsets of other shards as delivered."""
        for partition, names, offset in self._reached:
            marks.advance(partition, names, offset)
