"""File formats: the rows of a file as tables of the declared schema.

A malformed row, or one with a value of the wrong type, has an error text in the column
`schema_cast.BROKEN`; the operator sends it to `late`. A malformed file gives one such row for its
unreadable part. This module does not need Spark.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from tidegate.errors import InputError, SpecError
from tidegate.operators.ingest.schema_cast import bindable
from tidegate.operators.ingest.typed_rows import UNREADABLE, fit_schema, malformed_row
from tidegate.spark.sources.files import FilePart, Folder

ROWS = 1 << 20
"""The maximum number of rows per read."""
READ_BYTES = 64 << 20
"""The number of bytes of decoded columns per read."""
MAX_LINE_BYTES = 64 << 20
"""The maximum length of a line of text; a longer one is malformed, and is not held in memory."""


def checked_names(schema: pa.Schema) -> pa.Schema:
    """The schema, if it has columns with different names."""
    if not schema.names:
        raise SpecError(
            "a direct source needs columns, and its schema has none. Hint: schema='key long, ts"
            " timestamp'"
        )
    if len({*schema.names}) < len(schema):
        raise SpecError(f"column names must be unique, got {', '.join(schema.names)}")
    return schema


@dataclass(frozen=True)
class Format(ABC):
    """How the files of a folder are read."""

    splits: ClassVar[bool] = False
    """Whether files can be split."""

    @abstractmethod
    def schema(self, file: pa.NativeFile, path: str) -> pa.Schema:
        """The columns of a file."""

    def checked(self, schema: pa.Schema) -> pa.Schema:
        """The schema, if the format supports it."""
        return checked_names(schema)

    def in_files_of(self, schema: pa.Schema) -> Format:  # noqa: ARG002 - used by subclasses
        """The format of files with all of these columns, of which only some are read."""
        return self

    @abstractmethod
    def tables(self, file: pa.NativeFile, part: FilePart, schema: pa.Schema) -> Iterator[pa.Table]:
        """The rows of a part, in the order of the file, at least with its columns in the schema."""


@dataclass(frozen=True)
class PartReader:
    """Reads parts of files in a task."""

    folder: Folder
    format: Format
    schema: pa.Schema
    corrupt: str = "late"
    ignore_missing: bool = False

    def tables(self, part: FilePart) -> Iterator[pa.Table]:
        """The rows of a part, in the schema of the source."""
        system, root = self.folder.open()
        where = f"{root}/{part.file.path}"
        rows = 0
        try:
            with system.open_input_file(where) as file:
                for table in self.format.tables(file, part, self.schema):
                    rows += table.num_rows
                    yield fit_schema(self._with_partition_columns(table, part), self.schema)
        except FileNotFoundError as error:
            if not self.ignore_missing:
                raise InputError(
                    f"the file `{where}` was deleted after the batch was planned. Hint: restore it,"
                    " or read with ignore_missing=True to continue without it"
                ) from error
        except (*UNREADABLE, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                # An error of the disk, the network or permissions, which a retry may resolve.
                raise
            yield self._malformed(where, part, rows, error)

    def _with_partition_columns(self, table: pa.Table, part: FilePart) -> pa.Table:
        for name, value in self.folder.partition_values(part.file.path).items():
            if name in self.schema.names and name not in table.column_names:
                table = table.append_column(
                    name, pa.array(np.full(table.num_rows, value, object), pa.string())
                )
        return table

    def _malformed(self, where: str, part: FilePart, rows: int, error: BaseException) -> pa.Table:
        """One row for those that cannot be read."""
        which = "" if part.is_whole else f" from byte {part.start} to {part.end}"
        text = f"the file `{where}`{which} cannot be read after {rows} rows: {error}"
        if self.corrupt == "fail":
            raise InputError(
                f"{text}. Hint: with corrupt='late', the query continues, and a late row names the"
                " file"
            ) from error
        return malformed_row(self.schema, text)


def read_schema(folder: Folder, form: Format) -> pa.Schema:
    """The columns of the first file of the folder, and its partition columns."""
    files = sorted(folder.files(), key=lambda file: (file.modified, file.path))
    if not files:
        raise SpecError(
            f"the columns of `{folder.location}` are unknown, because it has no files. Hint:"
            " schema='key long, ts timestamp'"
        )
    system, root = folder.open()
    problems = []
    for file in files[:10]:
        try:
            with system.open_input_file(f"{root}/{file.path}") as opened:
                found = form.schema(opened, file.path)
                # Names are decoded when they are read.
                names = {*found.names}
        except UNREADABLE as error:
            problems.append(f"{file.path}: {error}")
            continue
        except OSError as error:
            if error.errno is not None:
                raise
            problems.append(f"{file.path}: {error}")
            continue
        partitions = [
            (name, pa.int64() if value.isdigit() else pa.string())
            for name, value in folder.partition_values(file.path).items()
        ]
        return bindable(
            pa.schema(
                [*found, *(pa.field(*field) for field in partitions if field[0] not in names)]
            )
        )
    raise SpecError(
        f"the columns of `{folder.location}` cannot be read from its files ({'; '.join(problems)})."
        " Hint: schema='key long, ts timestamp'"
    )
