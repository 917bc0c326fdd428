"""Collects what one call of a windowed aggregate puts out.

Every verb of the operator makes a collector, passes it down to the steps that fire panes or drop
rows, and returns its output.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tidegate.kernel.accumulations.lists import build
from tidegate.kernel.frame import Frame, to_arrow
from tidegate.operators.aggregate.cell_watermarks import CellWatermarks
from tidegate.operators.ingest.delivery import Delivery
from tidegate.operators.output import LateRows, Output, texts
from tidegate.operators.progress import Progress

Windows = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Windows of rows: positions in an index of rows, starts and ends."""
_NO_WINDOWS: Windows = (np.zeros(0, np.int64),) * 3


@dataclass(frozen=True, eq=False)
class Collector:
    """Collects the panes and late rows of one call, in the order in which they arise."""

    key: tuple[str, ...]
    progress: Progress
    watermarks: CellWatermarks
    output: Output = field(default_factory=Output)

    def emit(self, panes: Frame) -> None:
        """Emit panes, or retractions of panes."""
        self.output.panes.append(panes)

    def late_rows(
        self,
        delivery: Delivery,
        index: np.ndarray,
        reason: str,
        lateness: pa.Array,
        windows: Windows | None = None,
        detail: str | pa.Array = "",
    ) -> None:
        """Emit rows of a delivery as late, with the windows that they missed."""
        n = len(index)
        if n:
            self._late(
                delivery.table.take(pa.array(index)),
                Frame.of(delivery.keys(self.key, index), n),
                lateness,
                reason,
                texts(detail, n) if isinstance(detail, str) else detail,
                _NO_WINDOWS if windows is None else windows,
                self.watermarks.of_rows(delivery, index),
            )

    def late_windows(self, cells: Frame, reason: str, detail: pa.Array) -> None:
        """Report windows of keys without a correct result; no single row is the cause."""
        n = len(cells)
        if n:
            self._late(
                None,
                cells.select([f"k.{name}" for name in self.key]),
                texts("window", n),
                reason,
                detail,
                (np.arange(n), cells.ints("start"), cells.ints("end")),
                self.watermarks.of_cells(cells),
            )

    def _late(
        self,
        table: pa.Table | None,
        keys: Frame,
        lateness: pa.Array,
        reason: str,
        detail: pa.Array,
        windows: Windows,
        watermark: np.ndarray | int,
    ) -> None:
        n = len(lateness)
        owner, start, end = windows
        self.progress.counters["late_rows"] += n
        self.progress.counters[f"reason.{reason}"] += n
        keys = Frame({name: to_arrow(column) for name, column in keys.columns.items()}, n)
        starts, ends = (build(pa.array(bounds), owner, n) for bounds in (start, end))
        self.output.late.append(
            LateRows(
                table, keys, lateness, reason, detail, starts, ends, watermark, self.progress.now
            )
        )
