"""The input of a plan: a DataFrame, with the columns of expressions, or a direct source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame

from tidegate.errors import SpecError
from tidegate.operators.ingest.computed_columns import with_computed_columns
from tidegate.operators.ingest.projection import projected_schema
from tidegate.spark.sources import DirectSource
from tidegate.spark.tasks.edge import CLOCK, MARK
from tidegate.spark.types import arrow_schema
from tidegate.spec.async_map import AsyncMap
from tidegate.spec.computed import Computed
from tidegate.spec.operator import Input


@dataclass(frozen=True, eq=False)
class PlanInput:
    """One input of a pipeline."""

    source: DataFrame | DirectSource

    @property
    def is_streaming(self) -> bool:
        return self.source.isStreaming

    def schema(self, computed: Sequence[Computed] = ()) -> pa.Schema:
        """The columns that the operator receives, with those that functions compute."""
        schema = (
            self.source.schema
            if isinstance(self.source, DirectSource)
            else arrow_schema(self.source.schema)
        )
        # A DataFrame may mark rows that cannot be read.
        plain = pa.schema([field for field in schema if field.name != MARK])
        return with_computed_columns(plain.empty_table(), computed).schema


def plan_input(
    source: Any, named: Mapping[str, Any], keys: Sequence[Any]
) -> tuple[PlanInput, dict[str, Any], tuple[Any, ...]]:
    """The input, and the columns of each role in `named` and of the key.

    A Spark expression becomes a column of the DataFrame; names and functions are returned as they
    are.
    """
    if not isinstance(source, DataFrame | DirectSource):
        raise SpecError(
            "a stream is made from a DataFrame, a direct source or panes, got"
            f" {type(source).__name__}. Hint: tg.stream(df, time='ts')"
        )
    _check_columns(source)
    columns = _ColumnBuilder(source)
    names = {role: columns.resolve(role, value) for role, value in named.items()}
    key = tuple(columns.resolve("key", value) for value in keys)
    return PlanInput(columns.source), names, key


def check_map(called: AsyncMap) -> None:
    """Refuse an async map that cannot run inside the tasks of a query."""
    if called.schema is None:
        raise SpecError(
            "on Spark, the columns of the results of an async map are declared. Hint:"
            " async_map(..., schema='*, price double'), where '*' stands for the columns of the"
            " messages"
        )
    try:
        cloudpickle.dumps(called.function)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise SpecError(
            f"the function of an async map cannot be sent to the tasks of a query: {error}. Hint:"
            " define it in a module that the workers can import, and create clients and"
            " connections in its first call"
        ) from error


def row_schema(given: Input, one: PlanInput) -> pa.Schema:
    """The columns of the rows of an input: of the source, or of the results of its async map."""
    schema = one.schema(given.arrival.computed)
    if given.mapped is None:
        return projected_schema(schema, given.projections)
    found = given.mapped.map.columns(schema) or schema
    named = [given.time, *given.key, given.id, given.offset, given.partition]
    missing = [name for name in named if name is not None and name not in found.names]
    if missing:
        raise SpecError(
            f"the results of the async map have no column `{missing[0]}`, which the stream reads;"
            f" they have {', '.join(found.names)}. Hint: return it and declare it in `schema`, or"
            " name another column with .async_map(...).stream(key=...)"
        )
    return projected_schema(found, given.projections)


def _check_columns(source: DataFrame | DirectSource) -> None:
    """Refuse duplicate column names, and the reserved one."""
    names = source.schema.names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SpecError(
            f"several columns are named {', '.join(f'`{name}`' for name in twice)}. Hint: rename"
            " all but one, or drop them"
        )
    if CLOCK in {name.lower() for name in names}:
        raise SpecError(
            f"the column name `{CLOCK}` is reserved for the clock of a batch, and the input has it."
            " Hint: rename the column"
        )


class _ColumnBuilder:
    """Adds the columns of Spark expressions to the source."""

    def __init__(self, source: DataFrame | DirectSource) -> None:
        self.source = source

    def resolve(self, role: str, value: Any) -> Any:
        """The name of the column of an expression; anything else unchanged."""
        return self._expression(role, value) if isinstance(value, Column) else value

    def _expression(self, role: str, column: Column) -> str:
        if isinstance(self.source, DirectSource):
            raise SpecError(
                f"a direct source is read without Spark, so `{role}` cannot be a Spark expression."
                " Hint: use a function over columns"
            )
        name = self.source.select(column).columns[0]
        if name not in self.source.columns:
            self.source = self.source.withColumn(name, column)
        elif str(column) != f"Column<'{name}'>":
            # Another column has this name.
            name = f"{name}_{role}"
            self.source = self.source.withColumn(name, column)
        return name
