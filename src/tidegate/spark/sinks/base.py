"""The base classes of sinks, and the description of the output that a sink receives."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PANE_ID = "pane_id"
NEW_QUERY = "new"
"""The id in checks before the first start."""


@dataclass(frozen=True)
class SinkTarget:
    """The output of a query that a sink receives."""

    query: str
    """The id of the query, stored in its checkpoint and stable over restarts."""
    output: str
    """`panes`, `late` or `metrics`."""
    schema: pa.Schema
    """The columns of the rows; `pane_id` is one of them only on request."""
    key: tuple[str, ...]
    """The key columns of the panes."""
    mode: str
    """`accumulating`, `discarding` or `retracting`."""
    known_by: tuple[str, ...] | None = None
    """The columns that identify the row that a row replaces or retracts.

    Default for panes: the key and the window.
    """
    name: str | None = None
    """The name that the user gave the query."""

    checkpoint: str | None = None
    """The checkpoint of the query, if it has one."""

    @property
    def identity(self) -> tuple[str, ...]:
        return (*self.key, "window_start", "window_end") if self.known_by is None else self.known_by


class Sink:
    """The destination of one output of a query: a `TaskSink`, `DriverSink` or `FrameSink`.

    A sink is frozen and picklable, because Spark sends it to workers and to a Connect server. It
    writes nothing for an output without rows.
    """

    def check(self, target: SinkTarget) -> None:
        """Refuse an output that the sink cannot write; called before the query starts."""

    def place(self) -> dict[str, str]:
        """Where its rows are, for `read_rows`: a kind, and a path or name without secrets."""
        return {"kind": type(self).__name__.lower()}


def shared_folders(
    sinks: Mapping[str, Sink], used: Iterable[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    """The sinks whose folder has another use, by argument, each with the problem.

    `used`: other folders of the query, each after what it is.
    """
    known = {_resolved(folder): use for use, folder in used}
    for name, sink in sinks.items():
        place = sink.place()
        if place["kind"] not in {"parquet", "delta"}:
            continue
        use = known.setdefault(_resolved(place["path"]), name)
        if use != name:
            what = (
                f"`{name}` and `{use}` write to the same folder, `{place['path']}`. Hint: one"
                " folder for each output"
                if use in sinks
                else f"`{name}` writes to the folder of {use}, `{place['path']}`. Hint: use"
                " another folder"
            )
            yield name, what


def _resolved(folder: str) -> str:
    local = folder.removeprefix("file://").removeprefix("file:")
    return folder.rstrip("/") if "://" in local else os.path.realpath(local)


class TaskSink(Sink, ABC):
    """A sink that tasks write, from Arrow, and that the driver publishes."""

    @abstractmethod
    def stage(
        self, target: SinkTarget, batch: int, task: str, tables: Iterator[pa.Table]
    ) -> list[str]:
        """Write the rows of one task, invisible to readers, and return JSON texts for `publish`.

        Runs in a Python worker, possibly twice at once for the same task. Consumes every table.
        Without rows, it writes nothing and returns [].
        """

    @abstractmethod
    def publish(self, target: SinkTarget, batch: int, staged: list[str]) -> None:
        """Make the staged rows visible; runs in the process of `foreachBatch`, and may be repeated.

        With [], it removes what an earlier attempt of this batch has published.
        """


class DriverSink(Sink, ABC):
    """A sink that the process of `foreachBatch` writes, in one transaction."""

    @abstractmethod
    def write(self, target: SinkTarget, batch: int, tables: Iterator[pa.Table]) -> None:
        """Write the rows of a batch; idempotent for the same (query, output, batch).

        The last column of panes is `pane_id`.
        """


class FrameSink(Sink, ABC):
    """A sink that receives the rows of a batch as a Spark DataFrame."""

    @abstractmethod
    def write_frame(self, target: SinkTarget, batch: int, frame: DataFrame) -> None:
        """Write the rows of a batch; a replay has the same batch id."""


def without_pane_id(target: SinkTarget, table: pa.Table) -> pa.Table:
    """The table without `pane_id`, which panes always have, if it is no column of the rows."""
    return (
        table.drop_columns([PANE_ID])
        if target.output == "panes"
        and PANE_ID in table.column_names
        and PANE_ID not in target.schema.names
        else table
    )
