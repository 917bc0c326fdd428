"""Tables of SQL as DataFrames: files, topics of Kafka and streams, with metadata columns.

A row that cannot be read has nulls, and the reason in the column of broken rows, so that it is a
late row of the query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from tidegate.spark.tasks.edge import MARK
from tidegate.spark.types import spark_schema
from tidegate.spec.projection import Projection, reference

CORRUPT = "__corrupt"
"""The column that Spark fills with the text of an unreadable row."""
KEEP = "__keep"
"""The column with the condition of a query."""
_SHOWN = 1000


@dataclass(frozen=True)
class TableSource:
    """Where the rows of a table come from, in the words of Spark's readers."""

    format: str
    schema: pa.Schema
    """The columns of the values, without metadata."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    path: str | None = field(default=None, repr=False)
    metadata: tuple[tuple[str, str], ...] = ()
    """Further columns, as expressions over the columns of the reader."""
    value: str | None = None
    """How the column `value` is decoded: `json`, `csv` or `raw`; None for rows with columns."""
    value_options: Mapping[str, str] = field(default_factory=dict)
    skips_unreadable: bool = False
    """Whether unreadable rows are dropped."""

    def open(self, spark: SparkSession, *, streaming: bool) -> DataFrame:
        """The rows, streaming or as they are now."""
        reader = spark.readStream if streaming else spark.read
        reader = reader.format(self.format).options(**self.options)
        corrupt = self.value is None and self.format in ("json", "csv")
        if self.value is None and self.format != "tidegate":
            schema = self.schema.append(pa.field(CORRUPT, pa.string())) if corrupt else self.schema
            reader = reader.schema(spark_schema(schema))
        if corrupt:
            reader = reader.option("columnNameOfCorruptRecord", CORRUPT)
        rows = reader.load() if self.path is None else reader.load(self.path)
        metadata = [F.expr(text).alias(name) for name, text in self.metadata]
        if self.value is None:
            columns = [F.col(_quoted(name)) for name in self.schema.names]
            rows = rows.select(*columns, *metadata, *([F.col(CORRUPT)] if corrupt else []))
            return self._marked(rows, corrupt=corrupt)
        if self.value == "raw":
            (name,) = self.schema.names
            kind = spark_schema(self.schema)[0].dataType
            return rows.select(F.col("value").cast(kind).alias(name), *metadata)
        decoded = rows.select(self._decoded().alias("value"), *metadata)
        columns = [F.col(f"value.{_quoted(name)}") for name in [*self.schema.names, CORRUPT]]
        names = [F.col(_quoted(name)) for name, _ in self.metadata]
        return self._marked(decoded.select(*columns, *names), corrupt=True)

    def _decoded(self) -> Column:
        schema = spark_schema(self.schema.append(pa.field(CORRUPT, pa.string())))
        options = {**self.value_options, "columnNameOfCorruptRecord": CORRUPT}
        text = F.col("value").cast("string")
        if self.value == "csv":
            return F.from_csv(text, F.lit(schema.simpleString()[7:-1]), options)
        return F.from_json(text, schema, options)

    def _marked(self, rows: DataFrame, *, corrupt: bool) -> DataFrame:
        """The rows with a mark where they are unreadable."""
        if not corrupt:
            return rows
        if self.skips_unreadable:
            return rows.where(F.col(CORRUPT).isNull()).drop(CORRUPT)
        text = F.concat(F.lit("unreadable: "), F.substring(F.col(CORRUPT), 1, _SHOWN))
        mark = F.when(F.col(CORRUPT).isNotNull(), text)
        return rows.withColumn(MARK, mark).drop(CORRUPT)


@dataclass(frozen=True)
class SparkColumn:
    """A column as an expression of Spark, and when it fails for a row."""

    name: str
    text: str
    failure: str | None = None


def with_columns(frame: DataFrame, columns: Sequence[SparkColumn]) -> DataFrame:
    """The frame with further columns; a row for which one fails is marked."""
    return _with_marks(frame, columns, [name for name in frame.columns if name != MARK])


def selected(
    frame: DataFrame, columns: Sequence[SparkColumn], where: SparkColumn | None
) -> tuple[DataFrame, tuple[Projection, ...]]:
    """The frame with these columns only, and the projection that applies a condition in the edge.

    Rows that the condition drops still determine the watermark.
    """
    if not columns:
        columns = [SparkColumn(name, _quoted(name)) for name in frame.columns if name != MARK]
    found = _with_marks(frame, columns, [], where)
    if where is None:
        return found, ()
    kept = tuple((one.name, reference(one.name)) for one in columns)
    return found, (Projection(kept, reference(KEEP)),)


def filtered(frame: DataFrame, condition: SparkColumn) -> DataFrame:
    """The rows of a frame for which a condition holds, and those that are broken."""
    holds = F.expr(condition.text)
    if condition.failure is not None:
        # A row for which the condition fails is broken.
        frame = frame.withColumn(MARK, F.coalesce(*_known_marks(frame), _failed(condition)))
    return frame.where(holds | F.col(MARK).isNotNull() if MARK in frame.columns else holds)


def unmarked(frame: DataFrame) -> DataFrame:
    """The rows of a frame that are not broken, without the mark."""
    if MARK not in frame.columns:
        return frame
    return frame.where(F.col(_quoted(MARK)).isNull()).drop(MARK)


def _with_marks(
    frame: DataFrame,
    columns: Sequence[SparkColumn],
    kept: Sequence[str],
    where: SparkColumn | None = None,
) -> DataFrame:
    """The kept columns, the new ones and the condition; the mark of a row is its first failure.

    A row that the condition drops is not broken, whatever its columns are.
    """
    known = _known_marks(frame)
    wanted, failures = list(columns), [_failed(one) for one in columns if one.failure is not None]
    if where is not None:
        wanted.append(where)
        holds = F.expr(where.text)
        failures = [F.when(holds, one) for one in failures]
        failures = [*([] if where.failure is None else [_failed(where)]), *failures]
    return frame.select(
        *(F.col(_quoted(name)) for name in kept),
        *(F.expr(one.text).alias(one.name) for one in wanted),
        *([F.coalesce(*known, *failures).alias(MARK)] if known or failures else []),
    )


def _known_marks(frame: DataFrame) -> list[Column]:
    return [F.col(_quoted(MARK))] if MARK in frame.columns else []


def _failed(column: SparkColumn) -> Column:
    """The mark of the rows for which a column or a condition fails."""
    shown = "the condition" if column.name == KEEP else f"`{column.name}`"
    return F.when(F.expr(column.failure or "false"), F.lit(f"{shown} cannot be computed"))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
