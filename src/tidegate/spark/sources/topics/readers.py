"""The data source of topics: Spark (4.2 or newer) calls it to plan batches and read messages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tidegate.spark.failures import marks_errors
from tidegate.spark.sources.topics.consumer import (
    Chunk,
    Lost,
    TopicClients,
    grouped,
    keep_reader,
    worker_reader,
)
from tidegate.spark.sources.topics.messages import MessageReader
from tidegate.spark.sources.topics.offsets import OffsetRange, TopicOffset, share_ranges
from tidegate.spark.sources.topics.planner import Starting, TopicPlanner
from tidegate.spark.tasks.garbage import exclude_modules, paused_collections
from tidegate.spark.tasks.packed import Packed

if TYPE_CHECKING:
    from tidegate.spark.tasks.edge import Edge


@dataclass(frozen=True)
class TopicScan:
    """How topics are read."""

    messages: MessageReader
    servers: str
    topics: tuple[str, ...]
    starting: Starting
    # Not shown: they may contain a password.
    options: tuple[tuple[str, str], ...] = field(repr=False)
    tasks: int
    """The number of tasks that run at once."""
    max_messages: int | None = None
    skips_lost: bool = False

    def planner(self) -> TopicPlanner:
        """Plans the batches."""
        clients = TopicClients(self.servers, self.options)
        return TopicPlanner(clients, self.topics, self.starting, skips_lost=self.skips_lost)

    def reader(self, edge: Packed[Edge]) -> TopicReader:
        """Reads all present messages once."""
        return TopicReader(self, edge)

    def stream_reader(self, edge: Packed[Edge]) -> TopicStreamReader:
        """Reads new messages in every batch."""
        return TopicStreamReader(self, edge)


class TopicPartition(InputPartition):
    """The input of one task."""

    def __init__(self, ranges: Sequence[OffsetRange], number: int, clock: int) -> None:
        super().__init__(None)
        self.ranges, self.number, self.clock = list(ranges), number, clock


class _TopicRows:
    """The common part of batch and stream readers."""

    def __init__(self, scan: TopicScan, edge: Packed[Edge]) -> None:
        self._scan, self._edge = scan, edge

    def __getstate__(self) -> dict[str, Any]:
        # Spark sends the reader to tasks; clients stay on the driver.
        return {"_scan": self._scan, "_edge": self._edge}

    @cached_property
    def _planner(self) -> TopicPlanner:
        return self._scan.planner()

    def _partitions(self, ranges: Sequence[OffsetRange], clock: int) -> list[InputPartition]:
        shares = share_ranges(ranges, self._scan.tasks)
        return [TopicPartition(share, n, clock) for n, share in enumerate(shares)]

    @marks_errors
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The shuffle rows of a task."""
        exclude_modules()
        if isinstance(partition, TopicPartition):
            yield from self._edge.content.pack(
                self._batches(partition.ranges), partition.number, partition.clock
            )

    def _batches(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        scan = self._scan
        reader = worker_reader(scan.servers, scan.options)
        try:
            groups = grouped(reader.read(ranges, skips_lost=scan.skips_lost))
            while True:
                with paused_collections():
                    found = next(groups, None)
                    if found is None:
                        break
                    table = self._table(found)
                yield from table.combine_chunks().to_batches()
        except BaseException:
            reader.close()
            raise
        keep_reader(scan.servers, scan.options, reader)

    def _table(self, found: list[Chunk] | Lost) -> pa.Table:
        messages = self._scan.messages
        if isinstance(found, Lost):
            return messages.lost(found.place, found.low, found.high)
        return messages.table(found)


class TopicReader(_TopicRows, DataSourceReader):
    """Reads topics once."""

    @marks_errors
    def partitions(self) -> list[InputPartition]:
        start, clock = self._planner.start(), _now()
        return self._partitions(self._planner.next(start, clock).ranges_after(start), clock)


class TopicStreamReader(_TopicRows, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads new messages of topics; lives as long as the query, on the driver."""

    @marks_errors
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._planner.start().to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._scan.max_messages
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    @marks_errors
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._planner.freeze()

    @marks_errors
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        before = TopicOffset.from_dict(start)
        found = self._planner.next(before, _now(), most)
        return start if found is before else found.to_dict()

    @marks_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        before, after = TopicOffset.from_dict(start), TopicOffset.from_dict(end)
        return self._partitions(after.ranges_after(before), after.clock)


def _now() -> int:
    return time.time_ns() // 1000
