"""How many rows pass between the JVM and Python at a time.

Spark stops a record batch at a number of bytes, and to know them it adds up all columns before
every row: that costs as much as passing the row. Where no row can be large a number of rows says
enough, and the bytes need not be known.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import SparkSession

from tidegate.spark.plan.planner import Plan
from tidegate.spark.plan.shards import Layout
from tidegate.spark.sources import Direct
from tidegate.spark.tasks.chain import schemas_of
from tidegate.spark.tasks.transport import PIECE
from tidegate.spec.join import ADDED
from tidegate.spec.operator import RESERVED

BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
ROWS = (1 << 30) // PIECE
"""As many payloads together are a gigabyte: a column of bytes that grows beyond it asks for two,
which Arrow does not have.
"""
_UNLIMITED = str((1 << 31) - 1)
"""The number that Spark takes for no limit."""
_OURS = RESERVED | {*ADDED}
"""Columns that Tidegate adds; those that are text have a few characters."""


def limits(plan: Plan, layout: Layout, spark: SparkSession) -> dict[str, str]:
    """The settings with which a query passes rows: none where rows may be large, or do not pass at
    all.
    """
    if any(isinstance(given.source, Direct) for given in plan.sources):
        return {}
    comes_in = [field for given in plan.sources for field in given.schema()]
    goes_out = [
        field
        for chain in plan.chains(layout)
        for field in schemas_of(chain)[0]
        if field.name not in _OURS
    ]
    if not all(is_fixed(field.type) for field in comes_in + goes_out):
        return {}
    said = int(spark.conf.get(RECORDS, None) or 0)
    return {BYTES: _UNLIMITED, RECORDS: str(min(said, ROWS) if said > 0 else ROWS)}


def is_fixed(kind: pa.DataType) -> bool:
    """Whether all values of a type take the same few bytes."""
    if pa.types.is_struct(kind):
        return all(is_fixed(child.type) for child in kind)
    return bool(pa.types.is_null(kind) or pa.types.is_primitive(kind) or pa.types.is_decimal(kind))
