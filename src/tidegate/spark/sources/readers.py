"""The data source of a folder: Spark (4.2 or newer) calls it to discover and read files."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from tidegate.errors import CorruptStateError
from tidegate.spark.failures import marks_errors
from tidegate.spark.sources.files import (
    FileEntry,
    FilePart,
    FolderMonitor,
    FolderOffset,
    group_parts,
    parts_of,
)
from tidegate.spark.sources.formats import PartReader
from tidegate.spark.tasks.garbage import exclude_modules
from tidegate.spark.tasks.packed import Packed

if TYPE_CHECKING:
    from tidegate.spark.tasks.edge import Edge


@dataclass(frozen=True)
class FolderScan:
    """How a folder is read."""

    parts: PartReader
    tasks: int
    """The number of tasks that run at once."""
    max_files: int | None = None
    max_bytes: int | None = None
    latest_first: bool = False
    max_age: int | None = None

    def reader(self, edge: Packed[Edge]) -> FolderReader:
        """Reads the folder once."""
        return FolderReader(self, edge)

    def stream_reader(self, edge: Packed[Edge]) -> FolderStreamReader:
        """Reads new files in every batch."""
        return FolderStreamReader(self, edge)


class FolderPartition(InputPartition):
    """The input of one task."""

    def __init__(self, parts: list[FilePart], clock: int) -> None:
        super().__init__(None)
        self.parts, self.clock = parts, clock


class _FolderRows:
    """The common part of batch and stream readers."""

    def __init__(self, scan: FolderScan, edge: Packed[Edge]) -> None:
        self._scan, self._edge = scan, edge

    def _partitions(self, files: list[FileEntry], clock: int) -> list[InputPartition]:
        parts = parts_of(files, splits=self._scan.parts.format.splits)
        return [FolderPartition(group, clock) for group in group_parts(parts, self._scan.tasks)]

    @marks_errors
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The shuffle rows of a task."""
        exclude_modules()
        if isinstance(partition, FolderPartition):
            yield from self._edge.content.pack(
                self._batches(partition), partition.parts[0].number, partition.clock
            )

    def _batches(self, partition: FolderPartition) -> Iterator[pa.RecordBatch]:
        for part in partition.parts:
            for table in self._scan.parts.tables(part):
                yield from table.to_batches()


class FolderReader(_FolderRows, DataSourceReader):
    """Reads a folder once."""

    @marks_errors
    def partitions(self) -> list[InputPartition]:
        files = sorted(self._scan.parts.folder.files(), key=lambda file: (file.modified, file.path))
        return self._partitions(files, _now())


class FolderStreamReader(_FolderRows, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads new files of a folder; lives as long as the query, on the driver."""

    def __init__(self, scan: FolderScan, edge: Packed[Edge]) -> None:
        super().__init__(scan, edge)
        self._monitor = FolderMonitor(
            scan.parts.folder, latest_first=scan.latest_first, max_age=scan.max_age
        )

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return FolderOffset().to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._scan.max_files is not None:
            return ReadMaxFiles(self._scan.max_files)
        return (
            ReadAllAvailable()
            if self._scan.max_bytes is None
            else ReadMaxBytes(self._scan.max_bytes)
        )

    @marks_errors
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._monitor.freeze()

    @marks_errors
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        max_files = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        found = self._monitor.next(FolderOffset.from_dict(start), _now(), max_files, max_bytes)
        return start if found is None else found.to_dict()

    @marks_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        before, after = FolderOffset.from_dict(start), FolderOffset.from_dict(end)
        if after.batch == before.batch:
            return []
        if after.batch != before.batch + 1:
            raise CorruptStateError(
                f"a batch of a direct source goes from offset {before.batch} to {after.batch}, but"
                " offsets must be consecutive. Hint: restore the checkpoint from a copy"
            )
        return self._partitions(list(after.files), after.clock)


def _now() -> int:
    return time.time_ns() // 1000
