"""File formats of columns: Parquet and Arrow IPC. This module does not need Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.spark.sources.arrow_ipc import open_ipc, validated
from tidegate.spark.sources.files import FilePart
from tidegate.spark.sources.formats import READ_BYTES, ROWS, Format


@dataclass(frozen=True)
class Parquet(Format):
    """Parquet files; large ones are split by row groups."""

    splits: ClassVar[bool] = True

    def schema(self, file: pa.NativeFile, path: str) -> pa.Schema:  # noqa: ARG002
        opened = pq.ParquetFile(file, coerce_int96_timestamp_unit="us")
        instants = {
            column.path
            for column in map(opened.schema.column, range(len(opened.schema)))
            if column.physical_type == "INT96"
        }
        # Writers of this legacy type mean instants in UTC, although the type has no time zone.
        return pa.schema(
            [
                field.with_type(pa.timestamp("us", "UTC")) if field.name in instants else field
                for field in opened.schema_arrow
            ]
        )

    def tables(self, file: pa.NativeFile, part: FilePart, schema: pa.Schema) -> Iterator[pa.Table]:
        opened = pq.ParquetFile(file, coerce_int96_timestamp_unit="us", pre_buffer=True)
        groups = None if part.is_whole else _groups(opened.metadata, part)
        if groups == []:
            return
        names = [name for name in opened.schema_arrow.names if name in schema.names]
        if not names:
            # Rows without any wanted column still count.
            yield from _empty_rows(opened.metadata.num_rows)
            return
        for batch in opened.iter_batches(
            _rows_at_once(opened.metadata), row_groups=groups, columns=names, use_threads=False
        ):
            yield validated(batch)


def _rows_at_once(metadata: pq.FileMetaData) -> int:
    """The number of rows of about two blocks: rows can be large."""
    size = sum(metadata.row_group(n).total_byte_size for n in range(metadata.num_row_groups))
    return max(1, min(ROWS, READ_BYTES * metadata.num_rows // max(1, size)))


def _groups(metadata: pq.FileMetaData, part: FilePart) -> list[int]:
    """The row groups whose middle lies in the part, so that each belongs to one part."""
    found = []
    for n in range(metadata.num_row_groups):
        group = metadata.row_group(n)
        columns = [group.column(c) for c in range(group.num_columns)]
        first = min(
            min(c.data_page_offset, c.dictionary_page_offset or c.data_page_offset) for c in columns
        )
        middle = first + sum(c.total_compressed_size for c in columns) // 2
        if part.start <= middle < part.end:
            found.append(n)
    return found


def _empty_rows(count: int) -> Iterator[pa.Table]:
    for start in range(0, count, ROWS):
        yield pa.table({"": pa.nulls(min(ROWS, count - start))})


@dataclass(frozen=True)
class Arrow(Format):
    """Arrow IPC files (Feather) and streams."""

    def schema(self, file: pa.NativeFile, path: str) -> pa.Schema:  # noqa: ARG002
        return open_ipc(file).schema

    def tables(self, file: pa.NativeFile, part: FilePart, schema: pa.Schema) -> Iterator[pa.Table]:  # noqa: ARG002
        opened = open_ipc(file)
        for batch in (
            map(opened.get_batch, range(opened.num_record_batches))
            if isinstance(opened, pa.RecordBatchFileReader)
            else opened
        ):
            names = batch.schema.names
            wanted = [name for name in names if name in schema.names]
            if len(set(wanted)) < len(wanted):
                raise pa.ArrowInvalid("two columns have the same name")
            columns = [n for n, name in enumerate(names) if name in wanted]
            yield validated(batch.select(columns or [*range(len(names))][:1]))
