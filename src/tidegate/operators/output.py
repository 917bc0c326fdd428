"""Output of an operator: panes and late rows as frames of plain columns."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tidegate.kernel.events.event_time import CLASSES
from tidegate.kernel.frame import Frame, concat_frames, repeat
from tidegate.kernel.groups import lexicographic_order

TIMINGS = ("early", "on_time", "late")
EARLY, ON_TIME, LATE = range(3)


@dataclass(frozen=True, slots=True, eq=False)
class LateRows:
    """Rows that are in no pane, with the reason.

    `table` is None where a whole window is meant instead of rows.
    """

    table: pa.Table | None
    keys: Frame
    lateness: pa.Array
    reason: str
    detail: pa.Array
    starts: pa.ListArray
    ends: pa.ListArray
    watermark: np.ndarray | int
    """The watermark of the operator, or of the key of each row."""
    emitted_at: int
    input: int = 0
    """The input of the rows, for operators with several inputs."""

    def __len__(self) -> int:
        return len(self.lateness)


@dataclass(eq=False)
class Output:
    """The panes and late rows of one call."""

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
        order = lexicographic_order([panes.ints("end"), panes.ints("start")])
        return Output([panes.take(order)], self.late)


def class_names(classes: np.ndarray) -> pa.Array:
    """The names of lateness classes."""
    return pa.array(np.array(CLASSES, dtype=object)[classes], pa.string())


def texts(value: str | None, n: int) -> pa.Array:
    """A column with one text, or null, in n rows."""
    return repeat(value, n, pa.string())
