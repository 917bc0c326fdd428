"""Checks that both sides of the Spark benchmark emit the same panes or pairs."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np
import pyarrow as pa

from bench import spark_data
from bench.spark_data import INPUTS, Events
from bench.spark_sides import Shape, ours, theirs
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Compared:
    """The compared columns, as `{our name: expression on Spark's side}`; `order` sorts the rows."""

    order: dict[str, str]
    others: dict[str, str]

    @property
    def columns(self) -> dict[str, str]:
        return {**self.order, **self.others}

    @classmethod
    def of(cls, shape: Shape) -> Compared:
        if not shape.is_join:
            return PANES
        sides = {
            f"{side}_{name}": f"{side[0]}.{name}" for side in INPUTS for name in ("ts", "value")
        }
        return cls({"key": "l.key", **sides}, {})


PANES = Compared(
    {"key": "key", "window_start": "window.start", "window_end": "window.end"},
    {"n": "n", "total": "total", "top": "top"},
)


class UnequalError(TidegateError):
    """The two sides of a race emit different rows."""


def check(spark: SparkSession, shape: Shape, events: Events, source: Path | None = None) -> int:
    """Run both sides over few events, compare their output, return its number of rows.

    `source`: where the events are; by default they are generated.
    """
    with ExitStack() as stack:
        place = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        if source is None:
            source = place / "events"
            spark_data.write(source, events)
        left = our_panes(spark, shape, source, place)
        right = their_panes(spark, shape, source, place)
    found = difference(left, right, Compared.of(shape), shape.word)
    if found is not None or not left.num_rows:
        why = found or "neither side emitted any"
        raise UnequalError(
            f"the two sides emit different {shape.window} {shape.word}: {why}. Their times cannot"
            " be compared"
        )
    return left.num_rows


def our_panes(spark: SparkSession, shape: Shape, source: Path, place: Path) -> pa.Table:
    """All output of Tidegate over the events of a folder."""
    from tidegate.spark.sinks import memory

    sink = memory()
    ours(spark, shape, source).write(
        sink, checkpoint=str(place / "ours"), trigger="available_now"
    ).await_termination()
    found = sink.table("panes").select(list(Compared.of(shape).columns))
    sink.clear()
    return found


def their_panes(spark: SparkSession, shape: Shape, source: Path, place: Path) -> pa.Table:
    """All output of Spark's own operator over the events of a folder."""
    name = f"bench_{uuid4().hex}"
    frame = theirs(spark, shape, source).selectExpr(
        *(f"{expression} {name}" for name, expression in Compared.of(shape).columns.items())
    )
    writer = (
        frame.writeStream.outputMode("append")
        .format("memory")
        .queryName(name)
        .option("checkpointLocation", str(place / "theirs"))
    )
    writer.trigger(availableNow=True).start().awaitTermination()
    found = spark.table(name).toArrow()
    spark.catalog.dropTempView(name)
    return found


def difference(
    left: pa.Table, right: pa.Table, compared: Compared = PANES, word: str = "panes"
) -> str | None:
    """Description of the first difference between the rows of both sides; None if equal."""
    if left.num_rows != right.num_rows:
        return f"{left.num_rows:,} {word} of Tidegate, {right.num_rows:,} of Spark"
    left, right = (
        side.sort_by([(name, "ascending") for name in compared.order]) for side in (left, right)
    )
    for name in compared.columns:
        mine, other = (side.column(name).to_numpy() for side in (left, right))
        # Sums of floating point numbers depend on their order.
        same = np.isclose(mine, other, rtol=1e-9, atol=0) if name == "total" else mine == other
        if not same.all():
            row = int(np.flatnonzero(~same)[0])
            first, against = (side.slice(row, 1).to_pylist()[0] for side in (left, right))
            return (
                f"`{name}` differs in {int((~same).sum()):,} {word}, first {first} against"
                f" {against}"
            )
    return None
