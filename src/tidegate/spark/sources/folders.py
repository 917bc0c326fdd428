"""Folders of files as direct sources."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession

from tidegate.errors import SpecError
from tidegate.instants import Duration, duration
from tidegate.spark.parallelism import parallelism
from tidegate.spark.sources.binary_formats import Arrow, Parquet
from tidegate.spark.sources.direct import Declared, DirectSource, check_version, declared_schema
from tidegate.spark.sources.files import Folder
from tidegate.spark.sources.formats import Format, PartReader, checked_names, read_schema
from tidegate.spark.sources.text_formats import Csv, Json

if TYPE_CHECKING:
    from tidegate.spark.tasks.edge import Edge

MAX_AGE = "7 days"
"""The default of Spark's file source."""


class Options(TypedDict, total=False):
    """Options for all formats; most are those of Spark's file source."""

    schema: Declared
    """The columns: a pyarrow.Schema, a StructType, or DDL such as 'key long, ts timestamp'.

    Default: the columns of the first file.
    """
    columns: Sequence[str] | None
    """The columns to read, of those in the schema. Default: all. Late rows have them, too."""
    glob: str | None
    """A pattern of file names, such as `*.parquet`."""
    recursive: bool
    """Whether to read all subfolders. Default: partition folders only, such as `day=2024-01-01`."""
    max_files_per_trigger: int | None
    max_bytes_per_trigger: int | None
    latest_first: bool
    max_file_age: Duration
    """Files that are this much older than the newest one are ignored. Default: "7 days"."""
    corrupt: Literal["late", "fail"]
    """For a file that cannot be read: a row in `late` (default), or an error of the query."""
    ignore_missing: bool
    """Whether the query continues without files that are deleted before they are read."""
    streaming: bool
    """Whether to read the folder as a stream (default), or once."""
    spark: SparkSession | None


class Files(DirectSource):
    """The files of a folder."""

    def __init__(self, folder: str | os.PathLike[str], form: Format, options: Options) -> None:
        check_version(pyspark.__version__)
        _check(options)
        self.isStreaming = options.get("streaming", True)
        self._folder = Folder(
            _location(folder), options.get("glob"), recursive=options.get("recursive", False)
        )
        self._format, self._options = form, options

    @property
    def sparkSession(self) -> SparkSession:  # noqa: N802 - as in a DataFrame
        """The session of the options, or the active one."""
        return self._options.get("spark") or super().sparkSession

    @property
    def schema(self) -> pa.Schema:
        """The declared columns, or those of the first file."""
        return self._schema

    @cached_property
    def _schema(self) -> pa.Schema:
        columns, whole = self._options.get("columns"), self._whole_schema
        if columns is None:
            return whole
        unknown = [name for name in columns if name not in whole.names]
        if unknown:
            raise SpecError(
                f"`columns` has {unknown[0]!r}, which the files have not. Hint: they have"
                f" {', '.join(whole.names)}"
            )
        return checked_names(pa.schema([whole.field(name) for name in columns]))

    @cached_property
    def _whole_schema(self) -> pa.Schema:
        """All columns of the files."""
        given = self._options.get("schema")
        found = (
            read_schema(self._folder, self._format)
            if given is None
            else declared_schema(given, self)
        )
        return self._format.checked(found)

    @property
    def parts(self) -> PartReader:
        """What reads the files in tasks."""
        return PartReader(
            self._folder,
            self._format.in_files_of(self._whole_schema),
            self.schema,
            self._options.get("corrupt", "late"),
            self._options.get("ignore_missing", False),
        )

    def load(self, edge: Edge) -> DataFrame:
        """The shuffle rows of the files."""
        from tidegate.spark.sources.data_source import load_scan
        from tidegate.spark.sources.readers import FolderScan

        spark, options = self.sparkSession, self._options
        check_version(spark.version)
        max_files, max_bytes = (
            options.get("max_files_per_trigger"),
            options.get("max_bytes_per_trigger"),
        )
        latest_first = options.get("latest_first", False)
        # As in Spark: if the oldest files are read last, they are never too old.
        oldest_last = latest_first and (max_files is not None or max_bytes is not None)
        max_age = None if oldest_last else duration(options.get("max_file_age", MAX_AGE))
        scan = FolderScan(
            self.parts,
            parallelism(spark),
            max_files,
            max_bytes,
            latest_first=latest_first,
            max_age=max_age,
        )
        return load_scan(spark, scan, edge, streaming=self.isStreaming)

    def __repr__(self) -> str:
        return f"tidegate.sources.{type(self._format).__name__.lower()}({self._folder.location!r})"


def parquet(folder: str | os.PathLike[str], **options: Unpack[Options]) -> Files:
    """A source of the Parquet files of a folder."""
    return Files(folder, Parquet(), options)


def arrow(folder: str | os.PathLike[str], **options: Unpack[Options]) -> Files:
    """A source of the Arrow IPC files of a folder: Feather, or streams of record batches."""
    return Files(folder, Arrow(), options)


def json(folder: str | os.PathLike[str], **options: Unpack[Options]) -> Files:
    """A source of the JSON Lines files of a folder, optionally compressed.

    Malformed lines go to `late`.
    """
    return Files(folder, Json(), options)


def csv(
    folder: str | os.PathLike[str],
    *,
    header: bool | None = None,
    delimiter: str = ",",
    quote: str | None = '"',
    escape: str | None = None,
    null: str = "",
    **options: Unpack[Options],
) -> Files:
    """A source of the CSV files of a folder, optionally compressed.

    `header`: whether the first line of a file has the column names. Default: if they match the
    schema. Without a header, the columns are those of the schema, in its order. Malformed lines go
    to `late`.
    """
    return Files(folder, Csv(header, delimiter, quote, escape, null), options)


def _check(options: Options) -> None:
    unknown = [name for name in options if name not in Options.__annotations__]
    if unknown:
        raise SpecError(
            f"a direct source has no option `{unknown[0]}`. Hint: use one of"
            f" {', '.join(Options.__annotations__)}"
        )
    limits = {
        name: options.get(name) for name in ("max_files_per_trigger", "max_bytes_per_trigger")
    }
    for name, value in limits.items():
        if value is not None and (
            not isinstance(value, int) or isinstance(value, bool) or value < 1
        ):
            raise SpecError(f"`{name}` is a number of at least 1, got {value!r}")
    if None not in limits.values():
        raise SpecError(
            f"{' and '.join(f'`{name}`' for name in limits)} exclude each other. Hint: leave"
            " one out"
        )
    columns = options.get("columns")
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns or ()):
        raise SpecError(f"`columns` is a list of names, got {columns!r}")
    if options.get("corrupt", "late") not in {"late", "fail"}:
        raise SpecError(f"`corrupt` is 'late' or 'fail', got {options.get('corrupt')!r}")
    if duration(options.get("max_file_age", MAX_AGE)) < 0:
        raise SpecError(f"`max_file_age` is a duration, got {options.get('max_file_age')!r}")


def _location(folder: str | os.PathLike[str]) -> str:
    """The absolute path or URI of a folder, for tasks on any machine."""
    text = os.fspath(folder)
    if text.startswith("file:"):
        text = unquote(urlparse(text).path)
    return text if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text) else str(Path(text).absolute())
