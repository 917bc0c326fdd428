"""The Spark settings of a query: set while it starts, and restored afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql import SparkSession

from tidegate.spark.plan.dataflow import Plan
from tidegate.spark.sources import DirectSource
from tidegate.spark.tasks.chain import output_schemas
from tidegate.spark.tasks.shards import ShardLayout
from tidegate.spark.tasks.transport import PAYLOAD_BYTES
from tidegate.spec.join import ADDED
from tidegate.spec.operator import RESERVED

NO_DATA_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
SHARED_WORKERS = {"spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false"}
"""Lets all stages of a query use the same Python workers.

Spark starts workers for each environment, and those of stateful operators never shorten tracebacks.
"""
MAX_ROWS = (1 << 30) // PAYLOAD_BYTES
"""The payloads of this many rows take 1 GB.

A binary column that grows beyond that allocates 2 GB, which is more than Arrow supports.
"""
TEXT_ROWS = 1024
"""The rows of a record batch with texts: 256 MB, Spark's own limit, if each takes 256 kB."""
_UNLIMITED = str((1 << 31) - 1)
"""Spark's value for no limit."""
_TEXTS = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
_ADDED_COLUMNS = RESERVED | {*ADDED}
"""Columns that Tidegate adds; their texts are short."""


@contextlib.contextmanager
def spark_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Apply settings inside the block, and restore those of the session afterwards.

    A query reads its settings when it starts.
    """
    before = {key: spark.conf.get(key, None) for key in settings}
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, former in before.items():
            if former is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, former)


def arrow_batch_limits(plan: Plan, layout: ShardLayout, spark: SparkSession) -> dict[str, str]:
    """Settings that limit Arrow batches by rows instead of bytes; empty if rows can be large.

    To limit a record batch by bytes, Spark adds up the size of all columns before every row. That
    costs as much as the transfer of the row. Rows of fixed width do not need it, and with texts a
    small number of rows is a limit as well. A limit in bytes that the session sets remains.
    """
    if any(isinstance(one.source, DirectSource) for one in plan.sources):
        return {}
    inputs = [field for one in plan.sources for field in one.schema()]
    outputs = [
        field
        for chain in plan.chains(layout)
        for field in output_schemas(chain)[0]
        if field.name not in _ADDED_COLUMNS
    ]
    types = [field.type for field in inputs + outputs]
    if all(map(is_fixed_width, types)):
        most = MAX_ROWS
    elif all(map(has_short_values, types)) and not _limits_bytes(spark):
        most = TEXT_ROWS
    else:
        return {}
    limit = int(spark.conf.get(ARROW_ROWS, None) or 0)
    return {ARROW_BYTES: _UNLIMITED, ARROW_ROWS: str(min(limit, most) if limit > 0 else most)}


def _limits_bytes(spark: SparkSession) -> bool:
    """Whether the session sets a limit in bytes; Spark has one by default."""
    return spark.conf.get(ARROW_BYTES, None) not in {None, _UNLIMITED}


def has_short_values(kind: pa.DataType) -> bool:
    """Whether the values of a type are usually short: lists and maps grow with the data."""
    if pa.types.is_struct(kind):
        return all(has_short_values(child.type) for child in kind)
    return is_fixed_width(kind) or kind in _TEXTS


def is_fixed_width(kind: pa.DataType) -> bool:
    """Whether all values of a type take the same few bytes."""
    if pa.types.is_struct(kind):
        return all(is_fixed_width(child.type) for child in kind)
    return bool(pa.types.is_null(kind) or pa.types.is_primitive(kind) or pa.types.is_decimal(kind))
