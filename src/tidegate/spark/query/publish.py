"""Publishing a batch: the packed rows of a query are run once, split by output, and given to the
sink of each under the batch id.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from tidegate.spark.plan.planner import unpacked
from tidegate.spark.sinks.base import PANE_ID, DriverSink, FrameSink, TaskSink
from tidegate.spark.tasks.task_output import Outlet
from tidegate.spark.tasks.transport import PACKED_SCHEMA, PANES


@dataclass(frozen=True)
class Publisher:
    """What `foreachBatch` calls; it may run in another process than the one that made it."""

    outlets: tuple[Outlet, ...]

    def __call__(self, packed: DataFrame, batch: int) -> None:
        """Run the batch once, in which sinks that can are written inside the tasks, and write the
        rest.
        """
        frames = [outlet for outlet in self.outlets if isinstance(outlet.sink, FrameSink)]
        if frames:
            # Each of them runs the rows again, and the operator must not run twice.
            packed = packed.persist()
        try:
            found = packed.toArrow()
            for outlet in self.outlets:
                _write(outlet, batch, found, packed)
        finally:
            if frames:
                packed.unpersist()


def _write(outlet: Outlet, batch: int, found: pa.Table, packed: DataFrame) -> None:
    match outlet.sink:
        case TaskSink() as sink:
            sink.publish(
                outlet.target,
                batch,
                [bytes(text).decode() for text in _payloads(found, outlet.target.output)],
            )
        case DriverSink() as sink:
            sink.write(outlet.target, batch, outlet.tables(_payloads(found, outlet.target.output)))
        case FrameSink() as sink:
            frame = unpacked(packed, outlet.target.output, outlet.schema)
            # Not by a selection of names, in which dots would mean fields.
            sink.write_frame(
                outlet.target,
                batch,
                frame.drop(PANE_ID) if outlet.target.output == PANES else frame,
            )


def _payloads(found: pa.Table, output: str) -> list[pa.Buffer]:
    """The payloads of one output by shard, each in the order in which they came; a row that only
    counts has none.
    """
    rows = zip(*(found.column(name) for name in PACKED_SCHEMA.names), strict=True)
    chosen = [
        (shard.as_py(), payload.as_buffer())
        for name, shard, payload in rows
        if name.as_py() == output and payload.is_valid
    ]
    return [payload for _, payload in sorted(chosen, key=lambda row: row[0])]
