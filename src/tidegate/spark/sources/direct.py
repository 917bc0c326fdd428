"""The base of direct sources: read with Arrow and packed by the edge, without the JVM."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tidegate.errors import SetupError, SpecError
from tidegate.operators.ingest.schema_cast import bindable
from tidegate.spark.types import arrow_schema

if TYPE_CHECKING:
    from tidegate.spark.tasks.edge import Edge
    from tidegate.spark.tasks.processor import ChainProcessor

OLDEST_SPARK = (4, 2)
"""The first version that passes the start offset and a limit to Python sources."""
Declared = pa.Schema | StructType | str | None


class DirectSource(ABC):
    """A source that the edge reads itself, instead of a DataFrame, whose names it shares."""

    isStreaming: bool  # noqa: N815 - as in a DataFrame
    processor: type[ChainProcessor] | None = None
    """Stateful processor for a source that sends more than rows, such as explicit watermarks."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns of the events."""

    @property
    def sparkSession(self) -> SparkSession:  # noqa: N802 - as in a DataFrame
        """The active session."""
        with suppress(RuntimeError):
            return SparkSession.active()
        raise SetupError(
            "a direct source needs a Spark session, and none is active. Hint: spark ="
            " tg.spark_session()"
        )

    @abstractmethod
    def load(self, edge: Edge) -> DataFrame:
        """The shuffle rows of the edge, with the columns `transport.SHUFFLE_COLUMNS`."""


def declared_schema(given: Declared, source: DirectSource) -> pa.Schema:
    """The columns of a declaration: a pyarrow.Schema, a StructType or DDL."""
    if isinstance(given, str):
        given = _parsed(given, source)
    found = arrow_schema(given) if isinstance(given, StructType) else given
    if not isinstance(found, pa.Schema):
        raise SpecError(
            "`schema` is a pyarrow.Schema, a StructType or DDL such as 'key long, ts timestamp',"
            f" got {type(found).__name__}"
        )
    return bindable(found)


def _parsed(ddl: str, source: DirectSource) -> StructType:
    """The columns of DDL, or one of this type with the name that Spark gives it."""
    # Spark needs a session to parse it.
    _ = source.sparkSession
    found = StructType.fromDDL(ddl)
    return found if isinstance(found, StructType) else StructType().add("value", found)


def check_version(version: str) -> None:
    """Refuse a Spark that is too old for direct sources."""
    if tuple(int(number) for number in re.findall(r"\d+", version)[:2]) < OLDEST_SPARK:
        hint = "Hint: read with spark.readStream, or pip install 'pyspark>=4.2'"
        raise SetupError(f"direct sources need Spark 4.2 or newer, got {version}. {hint}")
