"""What every sink shares: what it is told about the rows it gets, and the three ways in which a
sink can be written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PANE_ID = "pane_id"


@dataclass(frozen=True)
class Target:
    """What a sink is told about the rows it gets."""

    query: str
    """The stable id of the query: kept in its checkpoint, the same after a restart."""
    output: str
    """`panes`, `late` or `metrics`."""
    schema: pa.Schema
    """The columns of the rows, without `pane_id`."""
    key: tuple[str, ...]
    """The key columns of the panes."""
    mode: str
    """`accumulating`, `discarding` or `retracting`."""
    known_by: tuple[str, ...] | None = None
    """The columns that say which former row a row replaces or takes back; for panes the key and the
    window.
    """

    @property
    def identity(self) -> tuple[str, ...]:
        return (*self.key, "window_start", "window_end") if self.known_by is None else self.known_by


class Sink:
    """Where one output of a query goes; frozen and picklable, because it is sent to workers and to
    a Connect server.

    A sink is a `TaskSink`, a `DriverSink` or a `FrameSink`. All of them write nothing for an output
    without rows.
    """

    def check(self, target: Target) -> None:
        """Called once before the query starts: refuses, with a hint, what cannot work."""


class TaskSink(Sink, ABC):
    """A sink that is written inside the tasks, from Arrow, and published by the driver."""

    @abstractmethod
    def stage(self, target: Target, batch: int, task: str, tables: Iterator[pa.Table]) -> list[str]:
        """Write the rows of one task where no reader sees them; runs in a Python worker, perhaps
        twice at once for the same task.

        Returns what was staged, as JSON texts. Consumes every table; writes nothing and returns []
        where there are no rows.
        """

    @abstractmethod
    def publish(self, target: Target, batch: int, staged: list[str]) -> None:
        """Make what the tasks staged visible; runs in the process of `foreachBatch`, and may be
        repeated.

        Also called with []: that removes what an earlier attempt of this batch has published.
        """


class DriverSink(Sink, ABC):
    """A sink that is written in the process of `foreachBatch`, in one transaction."""

    @abstractmethod
    def write(self, target: Target, batch: int, tables: Iterator[pa.Table]) -> None:
        """Write the rows of a batch; a repetition under the same (query, output, batch) adds
        nothing.

        Tables of panes have the column `pane_id` at their end.
        """


class FrameSink(Sink, ABC):
    """A sink that gets the rows of a batch as a Spark DataFrame."""

    @abstractmethod
    def write_frame(self, target: Target, batch: int, frame: DataFrame) -> None:
        """Write the rows of a batch; called with the same batch id when the batch is replayed."""


def without_pane_id(target: Target, table: pa.Table) -> pa.Table:
    """The table as users see it: the internal column of panes is left out."""
    return (
        table.drop_columns([PANE_ID])
        if target.output == "panes" and PANE_ID in table.column_names
        else table
    )
