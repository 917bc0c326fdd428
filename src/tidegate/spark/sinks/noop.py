"""The sink that reads every row and keeps none: for benchmarks, and for outputs that nobody wants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from tidegate.spark.sinks.base import Target, TaskSink


@dataclass(frozen=True)
class Noop(TaskSink):
    """Keeps nothing."""

    def stage(self, target: Target, batch: int, task: str, tables: Iterator[pa.Table]) -> list[str]:  # noqa: ARG002 - what a task sink is given
        for _ in tables:
            pass
        return []

    def publish(self, target: Target, batch: int, staged: list[str]) -> None:
        """There is nothing to publish."""


def noop() -> Noop:
    """A sink that reads every row, so that all of the work is done, and keeps none."""
    return Noop()
