"""Whether both sides of the race on Spark put out the same panes: without that, their times say nothing."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np
import pyarrow as pa

from tidegate.bench import spark_data
from tidegate.bench.spark_data import Events
from tidegate.bench.spark_sides import Shape, ours, theirs
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = Events(files=8, rows=1_000, keys=500, is_late=False)
"""Few enough for every key to have gaps, and none too late: who is late is decided differently by the two sides."""
_ORDER = ["key", "window_start", "window_end"]
_COLUMNS = [*_ORDER, "n", "total", "top"]


class UnequalError(TidegateError):
    """The two sides of a race do not compute the same."""


def check(spark: SparkSession, shape: Shape, events: Events = EVENTS) -> int:
    """Run both sides over a few events and compare what comes out; returns the number of panes."""
    with ExitStack() as stack:
        place = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        spark_data.write(place / "events", events)
        left = our_panes(spark, shape, place)
        right = their_panes(spark, shape, place)
    found = difference(left, right)
    if found is not None or not left.num_rows:
        raise UnequalError(f"the two sides do not put out the same {shape.window} panes: {found or 'neither put out any'}. Their times say nothing")
    return left.num_rows


def our_panes(spark: SparkSession, shape: Shape, place: Path) -> pa.Table:
    """Every pane of Tidegate over the events of a place."""
    from tidegate.spark.sinks import memory

    sink = memory()
    ours(spark, shape, place / "events").write(sink, checkpoint=str(place / "ours"), trigger="available_now").await_termination()
    found = sink.table("panes").select(_COLUMNS)
    sink.clear()
    return found


def their_panes(spark: SparkSession, shape: Shape, place: Path) -> pa.Table:
    """Every row of Spark's own windows over the events of a place."""
    name = f"bench_{uuid4().hex}"
    frame = theirs(spark, shape, place / "events").selectExpr("key", "window.start window_start", "window.end window_end", "n", "total", "top")
    writer = frame.writeStream.outputMode("append").format("memory").queryName(name).option("checkpointLocation", str(place / "theirs"))
    writer.trigger(availableNow=True).start().awaitTermination()
    found = spark.table(name).toArrow()
    spark.catalog.dropTempView(name)
    return found


def difference(left: pa.Table, right: pa.Table) -> str | None:
    """What differs first between the panes of two sides, in words; None where nothing does."""
    if left.num_rows != right.num_rows:
        return f"{left.num_rows:,} panes of Tidegate, {right.num_rows:,} of Spark"
    left, right = (side.sort_by([(name, "ascending") for name in _ORDER]) for side in (left, right))
    for name in _COLUMNS:
        mine, other = (side.column(name).to_numpy() for side in (left, right))
        # Sums of floating point numbers depend on their order.
        same = np.isclose(mine, other, rtol=1e-9, atol=0) if name == "total" else mine == other
        if not same.all():
            row = int(np.flatnonzero(~same)[0])
            first, against = (side.slice(row, 1).to_pylist()[0] for side in (left, right))
            return f"`{name}` differs in {int((~same).sum()):,} panes, first {first} against {against}"
    return None
