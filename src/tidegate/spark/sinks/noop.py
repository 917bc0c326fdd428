"""Sinks that keep nothing: for benchmarks and outputs that nobody wants, and for rows that have no
place to go.
"""

from __future__ import annotations

import warnings
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


@dataclass(frozen=True)
class Dropped(TaskSink):
    """Keeps nothing, and says how many rows that were."""

    def stage(self, target: Target, batch: int, task: str, tables: Iterator[pa.Table]) -> list[str]:  # noqa: ARG002 - what a task sink is given
        rows = sum(table.num_rows for table in tables)
        return [str(rows)] if rows else []

    def publish(self, target: Target, batch: int, staged: list[str]) -> None:  # noqa: ARG002 - what a task sink is given
        rows = sum(map(int, staged))
        if rows:
            hint = (
                f"write(..., {target.output}=...) with a sink, tg.sinks.noop() if nobody wants"
                " them, or checkpoint=... for a folder in it"
            )
            warnings.warn(
                f"{rows} rows of the output `{target.output}` were dropped: they have no place to"
                f" go. Hint: {hint}",
                RuntimeWarning,
                2,
            )


def noop() -> Noop:
    """A sink that keeps nothing; all of the work is done."""
    return Noop()
