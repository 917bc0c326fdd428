"""Files that arrive one after the other, and queries over them, for tests on Spark."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.errors import InputError
from tidegate.spark import sinks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidegate.api.streams import Panes
    from tidegate.spark.query.handle import Query

BASE = 1_700_000_040_000_000
"""The beginning of a minute, in microseconds."""
SECOND = 1_000_000
UTC = pa.timestamp("us", "UTC")
CLICKS = pa.schema({"user": pa.string(), "ts": UTC, "price": pa.float64()})
DDL = "user string, ts timestamp, price double"
Row = dict[str, Any]


def clicks(*rows: tuple[str | None, float | None, float | None]) -> list[Row]:
    """Rows of user, second and price."""
    return [
        {"user": user, "ts": None if at is None else BASE + int(at * SECOND), "price": price}
        for user, at, price in rows
    ]


class Feed:
    """A folder that files are put into; each is a batch."""

    def __init__(self, folder: Path, schema: pa.Schema = CLICKS) -> None:
        self.folder, self.schema, self._count, self._begun = folder, schema, 0, time.time() - 3600
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, rows: Sequence[Mapping[str, Any]]) -> None:
        table = pa.Table.from_pylist([dict(row) for row in rows], self.schema)
        hidden = self.folder / f".{self._count:05d}.parquet"
        pq.write_table(table, hidden)
        # Spark reads files in the order of their times, and two may be of the same millisecond.
        moment = self._begun + self._count
        os.utime(hidden, (moment, moment))
        hidden.rename(self.folder / f"{self._count:05d}.parquet")
        self._count += 1

    def stream(self, spark: SparkSession, ddl: str = DDL) -> DataFrame:
        return (
            spark.readStream.schema(ddl).option("maxFilesPerTrigger", 1).parquet(str(self.folder))
        )

    def batch(self, spark: SparkSession, ddl: str = DDL) -> DataFrame:
        return spark.read.schema(ddl).parquet(str(self.folder))


class Run:
    """A query that writes to memory."""

    def __init__(
        self, panes: Panes, checkpoint: Path, *, name: str | None = None, **more: Any
    ) -> None:
        self.name = uuid.uuid4().hex if name is None else name
        self.panes_sink, self.late_sink = (
            sinks.memory(f"panes_{self.name}"),
            sinks.memory(f"late_{self.name}"),
        )
        self.query: Query = panes.write(
            self.panes_sink, late=self.late_sink, checkpoint=str(checkpoint), **more
        )

    @property
    def panes(self) -> list[Row]:
        return _rows(self.panes_sink)

    @property
    def late(self) -> list[Row]:
        return _rows(self.late_sink)

    def wait_for(self, condition: Callable[[], bool], seconds: float = 90) -> None:
        """Wait until something is so; a query that fails, or a deadline that passes, is an
        error.
        """
        deadline = time.monotonic() + seconds
        while not condition():
            failure = self.query.exception()
            assert failure is None, failure
            assert time.monotonic() < deadline, (self.panes, self.late)
            time.sleep(0.05)


def finished(panes: Panes, checkpoint: Path, **more: Any) -> Run:
    """A query that reads all there is and ends."""
    run = Run(panes, checkpoint, trigger="available_now", **more)
    run.query.await_termination()
    return run


def _rows(sink: Any) -> list[Row]:
    try:
        return sink.rows()
    except InputError:
        # Nothing was written yet.
        return []


def netted(rows: Sequence[Row], key: Sequence[str], *aggregates: str) -> dict[Any, Any]:
    """What stands in the end, by key and start in seconds."""
    standing: dict[Any, Any] = {}
    for row in rows:
        place = (*(row[name] for name in key), _seconds(row["window_start"]))
        if row["op"] == "-":
            standing.pop(place)
        else:
            standing[place] = tuple(row[name] for name in aggregates)
    return standing


def _seconds(moment: Any) -> float | None:
    return None if moment is None else moment.timestamp() - BASE / SECOND
