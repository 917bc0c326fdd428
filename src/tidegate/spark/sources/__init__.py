"""DirectSource sources: streams that are read with Arrow and packed by the edge in the reader, so that
events never pass through the JVM row by row.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack
from urllib.parse import unquote, urlparse
from uuid import uuid4

import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tidegate.errors import SetupError, SpecError
from tidegate.instants import Duration, duration
from tidegate.operators.ingest.schema_cast import bindable
from tidegate.spark.parallelism import parallelism
from tidegate.spark.sources.files import Folder
from tidegate.spark.sources.formats import Arrow, Csv, Format, Json, Parquet, Reading, read_schema
from tidegate.spark.tasks.edge import Edge
from tidegate.spark.types import arrow_schema

if TYPE_CHECKING:
    from tidegate.spark.tasks.processor import ChainProcessor

OLDEST_SPARK = (4, 2)
"""The first version that asks a Python source for what is new since an offset."""
MAX_AGE = "7 days"
"""As Spark's file source has it."""
Declared = pa.Schema | StructType | str | None


class DirectSource(ABC):
    """What stands in the place of a DataFrame where the edge reads by itself; names follow those of
    a DataFrame.
    """

    isStreaming: bool  # noqa: N815 - the name that a DataFrame has for it
    processor: type[ChainProcessor] | None = None
    """Stateful processor for a source that sends more than rows, such as explicit watermarks."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns of the events."""

    @property
    def sparkSession(self) -> SparkSession:  # noqa: N802 - the name that a DataFrame has for it
        """The session that reads: the active one."""
        with suppress(RuntimeError):
            return SparkSession.active()
        raise SetupError(
            "a direct source needs a Spark session, and none is active. Hint: spark ="
            " tg.spark_session()"
        )

    @abstractmethod
    def load(self, edge: Edge) -> DataFrame:
        """The rows that the edge sends: those of `wire.SHUFFLE_COLUMNS`."""


class Options(TypedDict, total=False):
    """What can be said about the files of a folder, whatever is in them; most of it is as Spark's
    file source has it.
    """

    schema: Declared
    """The columns: a pyarrow.Schema, a StructType, or a text as in 'key long, ts timestamp'; those
    of the first file unless said.
    """
    glob: str | None
    """Which names of files are read, as in `*.parquet`."""
    recursive: bool
    """Whether all folders inside are looked into; otherwise only those that name a column are, as
    in `day=2024-01-01`.
    """
    max_files_per_trigger: int | None
    max_bytes_per_trigger: int | None
    latest_first: bool
    max_file_age: Duration
    """Files that are older than this against the newest that was read are not looked at any more;
    "7 days" unless said.
    """
    corrupt: Literal["late", "fail"]
    """What becomes of a file that cannot be read: a row in `late` that names it, or the end of the
    query.
    """
    ignore_missing: bool
    """Whether the query goes on without files that vanish after they were found."""
    streaming: bool
    """Whether the folder is followed, or read once."""
    spark: SparkSession | None


class Files(DirectSource):
    """The files of a folder."""

    def __init__(self, folder: str | os.PathLike[str], form: Format, options: Options) -> None:
        _check_version(pyspark.__version__)
        _check(options)
        self.isStreaming = options.get("streaming", True)
        self._folder = Folder(
            _location(folder), options.get("glob"), recursive=options.get("recursive", False)
        )
        self._format, self._options = form, options

    @property
    def sparkSession(self) -> SparkSession:  # noqa: N802 - the name that a DataFrame has for it
        """The session that was given, or the active one."""
        return self._options.get("spark") or super().sparkSession

    @property
    def schema(self) -> pa.Schema:
        """The columns that were declared, or those of the first file."""
        return self._schema

    @cached_property
    def _schema(self) -> pa.Schema:
        found = self._options.get("schema")
        if found is None:
            return self._format.checked(read_schema(self._folder, self._format))
        if isinstance(found, str):
            # Spark reads the text, and needs a session for it.
            found = self.sparkSession.createDataFrame([], found).schema
        found = arrow_schema(found) if isinstance(found, StructType) else found
        if not isinstance(found, pa.Schema):
            raise SpecError(
                "`schema` is a pyarrow.Schema, a StructType or a text as in 'key long, ts"
                f" timestamp', got {type(found).__name__}"
            )
        return self._format.checked(bindable(found))

    def load(self, edge: Edge) -> DataFrame:
        """The rows of the files as the edge sends them."""
        from tidegate.spark.sources.readers import Following, source_of

        spark, options = self.sparkSession, self._options
        _check_version(spark.version)
        reading = Reading(
            self._folder,
            self._format,
            self.schema,
            options.get("corrupt", "late"),
            options.get("ignore_missing", False),
        )
        max_files, max_bytes = (
            options.get("max_files_per_trigger"),
            options.get("max_bytes_per_trigger"),
        )
        latest_first = options.get("latest_first", False)
        # As in Spark: where the oldest are read last, they are not too old.
        oldest_last = latest_first and (max_files is not None or max_bytes is not None)
        max_age = None if oldest_last else duration(options.get("max_file_age", MAX_AGE))
        following = Following(
            reading,
            parallelism(spark),
            max_files,
            max_bytes,
            latest_first=latest_first,
            max_age=max_age,
        )
        # Through Spark Connect a name is looked up only when the query starts, so it must not come
        # to mean another source meanwhile.
        alias = f"tidegate_{uuid4().hex}"
        spark.dataSource.register(source_of(alias, following, edge))
        return (spark.readStream if self.isStreaming else spark.read).format(alias).load()

    def __repr__(self) -> str:
        return f"tidegate.sources.{type(self._format).__name__.lower()}({self._folder.location!r})"


def register(spark: SparkSession) -> None:
    """Let a session read streams of writers with `format("tidegate")`; those of `tg.spark_session`
    do already.
    """
    from tidegate.spark.sources.streams import StreamSource

    spark.dataSource.register(StreamSource)


def parquet(folder: str | os.PathLike[str], **options: Unpack[Options]) -> Files:
    """The Parquet files of a folder."""
    return Files(folder, Parquet(), options)


def arrow(folder: str | os.PathLike[str], **options: Unpack[Options]) -> Files:
    """The Arrow files of a folder: Feather, or streams of record batches."""
    return Files(folder, Arrow(), options)


def json(folder: str | os.PathLike[str], **options: Unpack[Options]) -> Files:
    """The JSON files of a folder, an object a line, compressed or not; lines that are broken go to
    `late`.
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
    """The CSV files of a folder, a row a line, compressed or not; lines that are broken go to
    `late`.

    `header` says whether the first line of a file names its columns; unless it is said, it does
    where these are names of the schema. Without it the columns are those of the schema, in its
    order.
    """
    return Files(folder, Csv(header, delimiter, quote, escape, null), options)


def _check(options: Options) -> None:
    unknown = [name for name in options if name not in Options.__annotations__]
    if unknown:
        raise SpecError(
            f"a direct source has no option `{unknown[0]}`. Hint: it has"
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
    if options.get("corrupt", "late") not in {"late", "fail"}:
        raise SpecError(f"`corrupt` is 'late' or 'fail', got {options.get('corrupt')!r}")
    if duration(options.get("max_file_age", MAX_AGE)) < 0:
        raise SpecError(f"`max_file_age` is a duration, got {options.get('max_file_age')!r}")


def _location(folder: str | os.PathLike[str]) -> str:
    """The folder as tasks find it, wherever they run."""
    text = os.fspath(folder)
    if text.startswith("file:"):
        text = unquote(urlparse(text).path)
    return text if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text) else str(Path(text).absolute())


def _check_version(version: str) -> None:
    if tuple(int(number) for number in re.findall(r"\d+", version)[:2]) < OLDEST_SPARK:
        hint = "Hint: read with spark.readStream, or pip install 'pyspark>=4.2'"
        raise SetupError(f"direct sources need Spark 4.2 or newer, this is {version}. {hint}")
