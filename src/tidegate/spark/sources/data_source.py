"""The registered data source of a direct source: Spark finds it by its unique name."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from tidegate.spark.tasks.packed import Packed
from tidegate.spark.tasks.transport import SHUFFLE_COLUMNS

if TYPE_CHECKING:
    from tidegate.spark.tasks.edge import Edge


class Scan(Protocol):
    """What a direct source reads."""

    def reader(self, edge: Packed[Edge]) -> DataSourceReader:
        """Reads everything once."""

    def stream_reader(self, edge: Packed[Edge]) -> DataSourceStreamReader:
        """Reads what is new in every batch."""


class EdgeSource(DataSource):
    """The base class of registered sources, whose rows are those of an edge."""

    alias: ClassVar[str]
    scan: ClassVar[Scan]
    edge: ClassVar[Packed[Edge]]

    @classmethod
    def name(cls) -> str:
        return cls.alias

    def schema(self) -> str:
        return SHUFFLE_COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        return self.scan.reader(self.edge)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        return self.scan.stream_reader(self.edge)


def load_scan(spark: SparkSession, scan: Scan, edge: Edge, *, streaming: bool) -> DataFrame:
    """The shuffle rows of a scan."""
    # Spark Connect resolves the name only when the query starts, so every source has its own.
    alias = f"tidegate_{uuid4().hex}"
    parts = {"alias": alias, "scan": scan, "edge": Packed(edge)}
    spark.dataSource.register(type("DirectSource", (EdgeSource,), parts))
    return (spark.readStream if streaming else spark.read).format(alias).load()
