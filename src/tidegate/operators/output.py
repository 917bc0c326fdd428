"""What an operator puts out: panes and late rows as frames of plain columns, collected in order
while a call runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tidegate.kernel.events.event_time import CLASSES
from tidegate.kernel.frame import Frame, concat_frames, repeat

TIMINGS = ("early", "on_time", "late")
EARLY, ON_TIME, LATE = range(3)


@dataclass(frozen=True, slots=True, eq=False)
class LateRows:
    """Rows that are in no pane, with the reason; `table` is None where a whole window is meant and
    not a row.
    """

    table: pa.Table | None
    keys: Frame
    lateness: pa.Array
    reason: str
    detail: pa.Array
    starts: pa.ListArray
    ends: pa.ListArray
    watermark: np.ndarray | int
    """That of the operator, or of each row's key."""
    emitted_at: int
    input: int = 0
    """Whose rows they are, where an operator tells its inputs apart."""

    def __len__(self) -> int:
        return len(self.lateness)


@dataclass(eq=False)
class Output:
    """Panes and late rows of one call."""

    panes: list[Frame] = field(default_factory=list)
    late: list[LateRows] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not self.panes and not self.late

    def by_position(self) -> Output:
        """The output with panes in the order of the elements that fired them.

        Retractions stay before the panes that replace them.
        """
        if len(self.panes) < 2:
            return self
        position = np.concatenate([frame.ints("position") for frame in self.panes])
        if (position[1:] >= position[:-1]).all():
            return self
        order = np.argsort(position, kind="stable")
        return Output([concat_frames(self.panes).take(order)], self.late)

    def by_window(self) -> Output:
        """The output with panes in the order of their windows."""
        if len(self.panes) < 2:
            return self
        panes = concat_frames(self.panes)
        order = np.lexsort((panes.ints("start"), panes.ints("end")))
        return Output([panes.take(order)], self.late)


def class_names(classes: np.ndarray) -> pa.Array:
    """The names of lateness classes."""
    return pa.array(np.array(CLASSES, dtype=object)[classes], pa.string())


def texts(value: str | None, n: int) -> pa.Array:
    """One text, or none, for n rows."""
    return repeat(value, n, pa.string())
