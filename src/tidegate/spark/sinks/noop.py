"""Sinks that discard their rows: silently, or with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from tidegate.spark.sinks.base import SinkTarget, TaskSink


@dataclass(frozen=True)
class Noop(TaskSink):
    """Discards its rows."""

    def stage(
        self,
        target: SinkTarget,  # noqa: ARG002
        batch: int,  # noqa: ARG002
        task: str,  # noqa: ARG002
        tables: Iterator[pa.Table],
    ) -> list[str]:
        for _ in tables:
            pass
        return []

    def publish(self, target: SinkTarget, batch: int, staged: list[str]) -> None:
        """There is nothing to publish."""


@dataclass(frozen=True)
class WarnDropped(TaskSink):
    """Discards its rows, and warns with their number; the default for late rows of a batch."""

    def stage(
        self,
        target: SinkTarget,  # noqa: ARG002
        batch: int,  # noqa: ARG002
        task: str,  # noqa: ARG002
        tables: Iterator[pa.Table],
    ) -> list[str]:
        rows = sum(table.num_rows for table in tables)
        return [str(rows)] if rows else []

    def publish(self, target: SinkTarget, batch: int, staged: list[str]) -> None:  # noqa: ARG002
        rows = sum(map(int, staged))
        if rows:
            hint = (
                f"write(..., {target.output}=...) with a sink, tg.sinks.noop() to discard them, or"
                " checkpoint=... for a folder in it"
            )
            warnings.warn(
                f"{rows} rows of the output `{target.output}` were dropped: the output has no sink."
                f" Hint: {hint}",
                RuntimeWarning,
                2,
            )


def noop() -> Noop:
    """A sink that discards its rows; the query computes them all the same."""
    return Noop()
