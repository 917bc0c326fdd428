"""Readers: what Spark calls to follow a folder and to read its files, from version 4.2 on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
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
from pyspark.sql.types import StructType

from tidegate.errors import CorruptStateError
from tidegate.spark.sources.files import Follower, Found, Offset, Part, parts_of, shares
from tidegate.spark.sources.formats import Reading
from tidegate.spark.tasks.edge import Edge
from tidegate.spark.tasks.transport import SHUFFLE_COLUMNS


@dataclass(frozen=True)
class Following:
    """How a folder is followed."""

    reading: Reading
    tasks: int
    """How many tasks run at once."""
    max_files: int | None = None
    max_bytes: int | None = None
    latest_first: bool = False
    max_age: int | None = None


class Share(InputPartition):
    """What one task reads."""

    def __init__(self, parts: list[Part], clock: int) -> None:
        super().__init__(None)
        self.parts, self.clock = parts, clock


class _Rows:
    """What reading is to batches and to streams alike."""

    def __init__(self, following: Following, edge: Edge) -> None:
        self._following, self._edge = following, edge

    def _shares(self, files: list[Found], clock: int) -> list[InputPartition]:
        parts = parts_of(files, splits=self._following.reading.format.splits)
        return [Share(share, clock) for share in shares(parts, self._following.tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of the share as the edge sends them."""
        if isinstance(partition, Share):
            yield from self._edge.pack(
                self._batches(partition), partition.parts[0].number, partition.clock
            )

    def _batches(self, share: Share) -> Iterator[pa.RecordBatch]:
        for part in share.parts:
            for table in self._following.reading.tables(part):
                yield from table.to_batches()


class FolderReader(_Rows, DataSourceReader):
    """Reads a folder once."""

    def partitions(self) -> list[InputPartition]:
        files = sorted(
            self._following.reading.folder.files(), key=lambda file: (file.changed, file.path)
        )
        return self._shares(files, _now())


class FolderStreamReader(_Rows, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a folder; the object lives as long as the query, on the side of the driver."""

    def __init__(self, following: Following, edge: Edge) -> None:
        super().__init__(following, edge)
        self._follower = Follower(
            following.reading.folder, latest_first=following.latest_first, max_age=following.max_age
        )

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return Offset().to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._following.max_files is not None:
            return ReadMaxFiles(self._following.max_files)
        return (
            ReadAllAvailable()
            if self._following.max_bytes is None
            else ReadMaxBytes(self._following.max_bytes)
        )

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._follower.freeze()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        max_files = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        found = self._follower.next(Offset.from_dict(start), _now(), max_files, max_bytes)
        return start if found is None else found.to_dict()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        before, after = Offset.from_dict(start), Offset.from_dict(end)
        if after.batch == before.batch:
            return []
        if after.batch != before.batch + 1:
            raise CorruptStateError(
                f"a batch of a direct source goes from offset {before.batch} to {after.batch}, but"
                " offsets follow one another"
            )
        return self._shares(list(after.files), after.clock)


class FolderSource(DataSource):
    """The base of all sources that are registered; each has a name of its own, because Spark finds
    them by it.
    """

    alias: ClassVar[str]
    following: ClassVar[Following]
    edge: ClassVar[Edge]

    @classmethod
    def name(cls) -> str:
        return cls.alias

    def schema(self) -> str:
        return SHUFFLE_COLUMNS

    def reader(self, schema: StructType) -> FolderReader:  # noqa: ARG002
        return FolderReader(self.following, self.edge)

    def streamReader(self, schema: StructType) -> FolderStreamReader:  # noqa: ARG002, N802
        return FolderStreamReader(self.following, self.edge)


def source_of(alias: str, following: Following, edge: Edge) -> type[FolderSource]:
    """A class of its own for the source: it is sent as it is, with all that it holds."""
    return type(
        "DirectFiles", (FolderSource,), {"alias": alias, "following": following, "edge": edge}
    )


def _now() -> int:
    return time.time_ns() // 1000
