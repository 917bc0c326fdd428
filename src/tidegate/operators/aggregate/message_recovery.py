"""Recovery of a lost message store from input that is delivered again.

Messages that had gone to `late` are not stored again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tidegate.kernel.events.event_time import OK
from tidegate.kernel.frame import Frame
from tidegate.kernel.storage.keyed_table import KeyedTable
from tidegate.operators.aggregate.cell_values import CellValues, message_ids
from tidegate.operators.ingest.delivery import Delivery
from tidegate.spec.windows import Axis
from tidegate.state.store import Store


class MessageRecovery:
    """Which messages no window took, and how far a recovery has come."""

    def __init__(self, store: Store) -> None:
        self._rejected = KeyedTable(store, "rejected", ("uid",), watch=("at",))
        self._left: dict[str, int] = {}

    @property
    def is_active(self) -> bool:
        return bool(self._left)

    def begin(self, marks: Mapping[str, int]) -> None:
        """Begin a recovery: all input up to the marks is to be delivered again."""
        self._left = dict(marks)

    def note_rejected(self, delivery: Delivery, stored: np.ndarray) -> None:
        """Remember the rows of a delivery that no window took; a recovery skips them."""
        rejected = delivery.where(~np.isin(delivery.seq, stored))
        if len(rejected):
            self._rejected.put(
                Frame.of({"uid": message_ids(rejected), "at": rejected.time}, len(rejected))
            )

    def take(self, delivery: Delivery, cell_values: CellValues, axis: Axis) -> None:
        """Store messages again that some window had taken."""
        sound = delivery.where(delivery.verdict == OK)
        sound = sound.where(
            ~self._rejected.find(Frame.of({"uid": message_ids(sound)}, len(sound))).found
        )
        if len(sound):
            x = sound.offset if axis is Axis.OFFSET else sound.time
            cell_values.store(sound.with_seq(sound.offset).with_position(x))
        for number, name in enumerate(delivery.partitions):
            offsets = delivery.offset[delivery.partition == number]
            if len(offsets) and name in self._left and int(offsets.max()) >= self._left[name]:
                del self._left[name]

    def forget(self, before: int) -> None:
        self._rejected.remove(self._rejected.select("at", before - 1))

    def save(self) -> Any:
        return {"rejected": self._rejected.save(), "left": self._left}

    def restore(self, document: Any) -> None:
        self._rejected.restore(document["rejected"])
        self._left = dict(document["left"])
