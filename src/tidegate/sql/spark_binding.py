"""Queries on Spark: tables as DataFrames, with scalar steps as expressions of Spark."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from tidegate.api.running import Pipeline
from tidegate.errors import SpecError
from tidegate.spec.join import Upstream
from tidegate.spec.operator import Input
from tidegate.sql.binding import bound, bound_stream, roles, step
from tidegate.sql.connectors import spark_source
from tidegate.sql.definitions import TableDefinition
from tidegate.sql.plan import Branch, Select, TableScan
from tidegate.sql.positions import has_place, place_of
from tidegate.sql.scalars import spark_column, spark_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidegate.sql.query import SqlQuery


def bound_on_spark(pipeline: Pipeline[Any], query: SqlQuery) -> Pipeline[Any]:
    """The pipeline of a query over DataFrames and direct sources."""
    return bound(pipeline, _Tables(query).leaf)


def stream_frame(branch: Branch, query: SqlQuery, *, marks: bool = False) -> DataFrame:
    """The rows of a query without an operator; with `marks`, the broken ones, too."""
    from tidegate.spark.sources import tables

    stream = bound_stream(branch.root, _Tables(query, plain=True).leaf)  # type: ignore[arg-type]
    frames = []
    for source in stream.sources:
        with _analysed(query, source, branch.select):
            frame = source
            if branch.select.where is not None:
                condition = tables.SparkColumn(*spark_column(tables.KEEP, branch.select.where))
                frame = tables.filtered(source, condition)
            frame, _ = tables.selected(frame, _columns(branch.select), None)
        frames.append(frame if marks else tables.unmarked(frame))
    return united_frames(frames)


def united_frames(frames: Sequence[DataFrame]) -> DataFrame:
    """The rows of all frames, whose columns have the same names."""
    return functools.reduce(
        lambda one, other: one.unionByName(other, allowMissingColumns=True), frames
    )


def session_of(query: SqlQuery) -> SparkSession:
    """The running session, or a new one with what the tables need."""
    from tidegate.spark.environment.jars import kafka_jars
    from tidegate.spark.environment.session import running_session, session

    running = running_session()
    if running is not None:
        return session()
    needs_kafka = any(query.tables[name].connector == "kafka" for name in query.sources)
    jars = {"spark.jars": ",".join(map(str, kafka_jars()))} if needs_kafka else {}
    return session(query.settings.name or "tidegate sql", conf=jars)


class _Tables:
    """Opens the tables of a query; a table that is scanned twice is read twice."""

    def __init__(self, query: SqlQuery, *, plain: bool = False) -> None:
        self._query, self._plain = query, plain

    def leaf(self, scan: TableScan, given: Input, spec: Upstream | None) -> tuple[Input, Any]:  # noqa: ARG002
        """The input and the source of a scan; with `plain`, a DataFrame with a filter applied."""
        from tidegate.spark.plan.input import PlanInput
        from tidegate.spark.sources import DirectSource, tables

        definition = self._query.tables[scan.table]
        source = self._source(definition)
        computes = given.computed or given.mapped is not None
        if isinstance(source, DirectSource) or computes:
            if self._plain:
                raise SpecError(
                    f"`{scan.table}` is not a DataFrame, so a query without a window cannot read"
                    " it. Hint: hand over a DataFrame"
                )
            keeps = "all" if self._query.complete else "nothing"
            projections = (*definition.projections, *step(scan.select, given, keeps=keeps))
            return dataclasses.replace(given, projections=projections), PlanInput(source)
        frame = source
        if definition.computed:
            with _analysed(self._query, frame, definition.computed):
                frame = tables.with_columns(frame, _columns(definition.computed))
        where = scan.select.where
        kept = None if where is None else tables.SparkColumn(*spark_column(tables.KEEP, where))
        with _analysed(self._query, frame, scan.select):
            if self._plain:
                frame = frame if kept is None else tables.filtered(frame, kept)
                return given, tables.selected(frame, _columns(scan.select), None)[0]
            columns = self._selected(scan.select, given, frame.columns)
            frame, projections = tables.selected(frame, columns, kept)
        return dataclasses.replace(given, projections=projections), PlanInput(frame)

    def _selected(self, select: Select, given: Input, present: Sequence[str]) -> list[Any]:
        """The columns of a step, and those that the input or its late rows need beside them."""
        from tidegate.spark.sources.tables import SparkColumn
        from tidegate.spark.tasks.edge import MARK

        found = _columns(select)
        if not found:
            return []
        names = {column.name for column in found}
        more = present if self._query.complete else roles(given)
        return [
            *found,
            *(
                SparkColumn(name, "`" + name.replace("`", "``") + "`")
                for name in more
                if name not in names and name in present and name != MARK
            ),
        ]

    def _source(self, definition: TableDefinition) -> Any:
        """The rows of a table: what a program handed over, or what its connector reads."""
        from tidegate.spark.plan.input import PlanInput

        source = definition.source
        if isinstance(source, PlanInput):
            return source.source
        if source is not None:
            return self._handed_over(definition)
        spark = session_of(self._query)
        if definition.connector == "tidegate":
            from tidegate.spark.sources import register

            register(spark)
        found = spark_source(definition, self._query.folder)
        return found.open(spark, streaming=not self._query.is_batch)

    def _handed_over(self, definition: TableDefinition) -> Any:
        """Rows of Arrow as a DataFrame."""
        import pyarrow as pa

        if isinstance(definition.source, pa.Table):
            return session_of(self._query).createDataFrame(definition.source)
        raise SpecError(
            f"`{definition.name}` has no source that Spark can read. Hint: hand over a DataFrame:"
            f" tg.sql(..., {definition.name}=tg.stream(df, time='ts'))"
        )


@contextmanager
def _analysed(query: SqlQuery, frame: DataFrame, select: Select) -> Iterator[None]:
    """Expressions that Spark refuses over a frame are errors at their place."""
    from pyspark.errors import AnalysisException, ParseException

    try:
        yield
    except (AnalysisException, ParseException) as error:
        trees = [*(tree for _, tree in select.columns), *([select.where] if select.where else ())]
        wrong = next((one for one in trees if not _is_analysed(frame, one)), None)
        if wrong is None:
            raise
        why = str(error).strip().split(" SQLSTATE", 1)[0].splitlines()[0]
        place = place_of(query.place.text, wrong) if has_place(wrong) else query.place
        raise place.error(
            f"Spark cannot evaluate `{spark_text(wrong)}`: {why}",
            "check the names and the types of its functions",
        ) from None


def _is_analysed(frame: DataFrame, tree: exp.Expr) -> bool:
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions

    try:
        return bool(frame.select(functions.expr(spark_text(tree))).columns)
    except (AnalysisException, ParseException):
        return False


def _columns(select: Select) -> list[Any]:
    from tidegate.spark.sources.tables import SparkColumn

    return [SparkColumn(*spark_column(name, tree)) for name, tree in select.columns]
