"""Measurements of the cost of a batch: one part of the work, one factor, processor time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OPERATOR, STATE, EDGE, HEADERS, SPARK = "operator", "state", "edge", "headers", "spark"
"""The parts of a batch.

In this order: the operator of a shard, saving its state, the edge of a task, what a shard does with
the headers of all tasks, and Spark's own work.
"""


@dataclass(frozen=True)
class Sample:
    """The cost of one batch of one part, with the counts that explain it."""

    part: str
    factor: str
    """The factor that this sample varies."""
    value: float
    """The value of the factor."""
    seconds: float
    """Processor seconds per batch."""
    counts: dict[str, float] = field(default_factory=dict)
    """What the batch consists of; the terms of the model."""
    wall: float | None = None
    """Wall seconds per batch, where waiting is a part of the cost."""

    @property
    def microseconds_per_row(self) -> float:
        """Processor time per row."""
        return self.seconds / self.counts["rows"] * 1e6

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "part": self.part,
            "factor": self.factor,
            "value": self.value,
            "seconds": self.seconds,
            "wall_seconds": self.wall,
            "counts": self.counts,
        }
