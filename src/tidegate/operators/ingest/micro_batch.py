"""What a micro-batch has shown so far, and what has to wait until its end."""

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
class Batch:
    """The parts of one micro-batch are all judged by what was known before it, so what they teach
    is kept here until it ends.
    """

    newest: int = MIN
    """The newest event that is not from the future."""
    has_rows: bool = False
    """Whether anything came that windows could have been made for."""
    _lookups: int = 0
    """How often keys were looked up for it."""
    _risers: list[_Columns] = field(default_factory=list)
    """Keys and times of the events that raise the watermarks of keys."""
    _reached: list[tuple[np.ndarray, list[str], np.ndarray]] = field(default_factory=list)
    """Partitions and offsets that others have taken."""

    def saw(self, times: np.ndarray) -> None:
        """Events with these times are there, and none of them is from the future."""
        self.has_rows = True
        if len(times):
            self.newest = max(self.newest, int(times.max()))

    def met(self, delivery: Delivery, counts: np.ndarray) -> None:
        """Rows have come whose keys were looked up; those that count raise the watermarks of their
        keys.
        """
        self._lookups += 1
        if counts.any():
            key_hash, key_check, time = delivery.key_hash, delivery.key_check, delivery.time
            self._risers.append(
                (key_hash, key_check, time)
                if counts.all()
                else (key_hash[counts], key_check[counts], time[counts])
            )

    def reached(self, partition: np.ndarray, names: Sequence[str], offset: np.ndarray) -> None:
        """Somebody has taken these offsets."""
        self._reached.append((partition, list(names), offset))

    def hold(self) -> None:
        """The micro-batch goes on in another call, in which nothing is known of keys that were
        looked up in this one.
        """
        self._lookups += 1

    def raise_keys(self, keys: KeyProgress, floor: int) -> Frame | None:
        """Let the watermarks of keys rise; the answer is who did."""
        if not self._risers:
            return None
        key_hash, key_check, time = (
            self._risers[0]
            if len(self._risers) == 1
            else (np.concatenate(columns) for columns in zip(*self._risers, strict=True))
        )
        if self._lookups > 1:
            # What was found last are not the keys of all parts.
            keys.meet(key_hash, key_check)
        return keys.advance(key_hash, key_check, time, floor)

    def advance(self, marks: OffsetMarks) -> None:
        """Count as delivered what others have taken."""
        for partition, names, offset in self._reached:
            marks.advance(partition, names, offset)
