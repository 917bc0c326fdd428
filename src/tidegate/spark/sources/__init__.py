"""Direct sources: read with Arrow, and packed by the edge, without a detour through the JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.spark.sources.direct import DirectSource
from tidegate.spark.sources.folders import Files, arrow, csv, json, parquet
from tidegate.spark.sources.topics.source import Topics, kafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register the source `format("tidegate")`, which reads streams; `tg.spark_session` does so."""
    from tidegate.spark.sources.streams import StreamSource

    spark.dataSource.register(StreamSource)


__all__ = [
    "DirectSource",
    "Files",
    "Topics",
    "arrow",
    "csv",
    "json",
    "kafka",
    "parquet",
    "register",
]
