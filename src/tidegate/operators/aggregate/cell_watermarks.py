"""The watermark that applies to each cell, key or row of a windowed aggregate.

On the ordinal axis every key counts its own messages, so a cell carries how far its key has come.
Elsewhere it is the watermark of the operator or, with per-key watermarks, that of the data key.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidegate.kernel.frame import Frame
from tidegate.kernel.watermarks.per_key import KeyProgress
from tidegate.operators.ingest.delivery import Delivery
from tidegate.operators.progress import Progress
from tidegate.spec.windows import Axis


@dataclass(frozen=True, eq=False)
class CellWatermarks:
    """Looks up watermarks; one number where all cells share it."""

    axis: Axis
    progress: Progress
    keys: KeyProgress | None
    """The watermarks of data keys; None without per-key watermarks."""

    def of_cells(self, cells: Frame) -> np.ndarray | int:
        """The watermark of each cell."""
        if self.axis is Axis.ORDINAL:
            return cells.ints("ordinal")
        return self.of_keys(cells.ints("key_hash"), cells.ints("key_check"))

    def of_keys(self, key_hash: np.ndarray, key_check: np.ndarray) -> np.ndarray | int:
        """The watermark of each key."""
        watermark = self.progress.watermark
        return (
            watermark if self.keys is None else self.keys.watermark(key_hash, key_check, watermark)
        )

    def of_rows(self, delivery: Delivery, rows: np.ndarray | slice) -> np.ndarray | int:
        """The watermark of some rows of a delivery; hashes no key where all share one."""
        watermark = self.progress.watermark
        if self.keys is None:
            return watermark
        return self.keys.watermark(delivery.key_hash, delivery.key_check, watermark)[rows]

    def before_call(self, cells: Frame) -> np.ndarray | int:
        """The watermark of each cell when the current call began."""
        if self.axis is Axis.ORDINAL:
            return cells.ints("ordinal_before")
        if self.keys is None:
            return self.progress.before
        return self.keys.before(
            cells.ints("key_hash"), cells.ints("key_check"), self.progress.before
        )
