"""Pipelines on Spark: built from plans over DataFrames, run as a batch and as a stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import tidegate as tg
from support.composition.batch import Accepted, shown
from support.composition.embedded import aggregate, join
from support.composition.plans import (
    ENOUGH,
    Aggregate,
    Join,
    Node,
    Operator,
    Row,
    Source,
    operators,
    sources,
)
from support.composition.strategies import ENDING_TRIGGERS, no_answer
from support.spark_streams import UTC as MOMENT
from support.spark_streams import Feed, finished

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DISORDER = 2
"""How far the watermark of a source is behind its newest row, in microseconds."""
END = 1_000_000
"""The time of the rows that close all windows before them, lateness included."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Delivery = Mapping[str, Sequence[Row]]
"""The rows of one micro-batch by source."""


# Plans


def patient(node: Node) -> Node:
    """The same pipeline with first operators that accept every row, however late it is."""
    if isinstance(node, Source):
        return node
    first = any(isinstance(child, Source) for child in node.inputs)
    lateness = ENOUGH if first else node.lateness
    inputs = tuple(patient(child) for child in node.inputs)
    if isinstance(node, Join):
        return replace(node, left=inputs[0], right=inputs[1], lateness=lateness)
    trigger = None if first and node.trigger in ENDING_TRIGGERS else node.trigger
    return replace(node, inputs=inputs, lateness=lateness, trigger=trigger)


def ends_by_time(plan: Operator) -> bool:
    """Whether the pipeline has an answer, and rows of the far future close all of its windows."""
    windows = [node.window for node in operators(plan) if isinstance(node, Aggregate)]
    return no_answer(plan) is None and all(
        window.kind != "global" and window.axis == "event_time" for window in windows
    )


def pipeline(node: Operator, frames: Mapping[str, DataFrame]) -> Any:
    """The operators of a plan over the frames of its sources."""
    if isinstance(node, Join):
        return join(node, [_stream(child, (), frames) for child in node.inputs])
    return aggregate(node, [_stream(child, node.key, frames) for child in node.inputs])


def _stream(node: Node, key: Sequence[str], frames: Mapping[str, DataFrame]) -> tg.Stream:
    if isinstance(node, Source):
        identity = {} if node.identity == "none" else {node.identity: node.number}
        mark = tg.bounded(DISORDER, unit="us")
        return tg.stream(
            frames[node.name], time=node.time, key=list(key), watermark=mark, **identity
        )
    found = pipeline(node, frames)
    if isinstance(node, Join):
        return found.stream(time=node.time, key=list(key))
    return tg.stream(found, time=node.time, key=list(key))


# Runs


class Inputs:
    """The deliveries of all sources as files; rows of the far future come last."""

    def __init__(self, plan: Operator, deliveries: Sequence[Delivery], folder: Path) -> None:
        self.plan, self.feeds = plan, {}
        self.accepted = Accepted({})
        for number, source in enumerate(sources(plan), END):
            feed = Feed(folder / source.name, _schema(source))
            for delivery in deliveries:
                feed.put(delivery[source.name])
            feed.put([{source.time: END, "k": "end", "u": 0, source.number: number}])
            self.feeds[source.name] = feed
            # A row that comes again counts once.
            every = (row for delivery in deliveries for row in delivery[source.name])
            self.accepted.rows[source.name] = list(
                {row[source.number]: row for row in every}.values()
            )

    def batch(self, spark: SparkSession) -> list[Row]:
        """The panes of one batch over all files."""
        whole = pipeline(self.plan, self._frames(lambda feed, ddl: feed.batch(spark, ddl)))
        return self._before_end([row.asDict() for row in whole.df.collect()])

    def stream(self, spark: SparkSession, checkpoint: Path) -> tuple[list[Row], list[Row]]:
        """The panes and the late rows of a stream that takes one file of each source at a time."""
        whole = pipeline(self.plan, self._frames(lambda feed, ddl: feed.stream(spark, ddl)))
        run = finished(whole, checkpoint, shards=2)
        return self._before_end(run.panes), run.late

    def _frames(self, read: Callable[[Feed, str], DataFrame]) -> dict[str, DataFrame]:
        return {
            source.name: read(self.feeds[source.name], _ddl(source))
            for source in sources(self.plan)
        }

    def _before_end(self, rows: Sequence[Row]) -> list[Row]:
        """Rows with instants as integers, without the rows that stem from the far future."""
        names = shown(self.plan)
        found = [{name: _plain(value) for name, value in row.items()} for row in rows]
        return [
            row
            for row in found
            if not any(isinstance(row[name], int) and row[name] >= END for name in names)
        ]


def _schema(source: Source) -> pa.Schema:
    numbers = dict.fromkeys(("u", *source.values, source.number), pa.int64())
    floats = dict.fromkeys(source.floats, pa.float64())
    texts = dict.fromkeys(source.texts, pa.string())
    return pa.schema({source.time: MOMENT, "k": pa.string(), **numbers, **floats, **texts})


def _ddl(source: Source) -> str:
    numbers = (f"{name} long" for name in ("u", *source.values, source.number))
    floats = (f"{name} double" for name in source.floats)
    texts = (f"{name} string" for name in source.texts)
    return ", ".join([f"{source.time} timestamp", "k string", *numbers, *floats, *texts])


def _plain(value: Any) -> Any:
    if not isinstance(value, datetime):
        return value
    return (value.astimezone(UTC) - EPOCH) // timedelta(microseconds=1)
