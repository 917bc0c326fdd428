"""The input of a plan: a DataFrame or a direct source, with computed columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame

from tidegate.errors import SpecError
from tidegate.spark.sources import DirectSource
from tidegate.spark.tasks.edge import CLOCK, Computed
from tidegate.spark.types import arrow_schema


@dataclass(frozen=True, eq=False)
class PlanInput:
    """One input of a pipeline."""

    source: DataFrame | DirectSource
    computed: tuple[Computed, ...] = ()
    """Columns that vectorised functions compute from the others, in the workers."""

    @property
    def is_streaming(self) -> bool:
        return self.source.isStreaming

    def schema(self) -> pa.Schema:
        """The columns that the operator receives."""
        schema = (
            self.source.schema
            if isinstance(self.source, DirectSource)
            else arrow_schema(self.source.schema)
        )
        for name, function in self.computed:
            column = _compute_empty(name, function, schema.empty_table())
            schema = schema.append(pa.field(name, column.type))
        return schema


def plan_input(
    source: Any, named: Mapping[str, Any], keys: Sequence[Any]
) -> tuple[PlanInput, dict[str, str | None], tuple[str, ...]]:
    """The input, the column name of each role in `named`, and the names of the key columns.

    A column is declared by its name, by a Spark expression, or by a function over columns.
    """
    if not isinstance(source, DataFrame | DirectSource):
        raise SpecError(
            "a stream is made from a DataFrame, a direct source or panes, got"
            f" {type(source).__name__}. Hint: tg.stream(df, time='ts')"
        )
    _check_columns(source)
    columns = _ColumnBuilder(source)
    names = {role: columns.name(role, value) for role, value in named.items()}
    key = tuple(str(columns.name("key", value)) for value in keys)
    return PlanInput(columns.source, tuple(columns.computed)), names, key


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
    """Resolves columns to names, and adds computed ones to the source."""

    def __init__(self, source: DataFrame | DirectSource) -> None:
        self.source = source
        self.computed: list[Computed] = []

    def name(self, role: str, value: Any) -> str | None:
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, Column):
            return self._expression(role, value)
        if callable(value):
            return self._function(role, value)
        raise SpecError(
            f"`{role}` is a column name, an expression or a function over columns, got {value!r}"
        )

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

    def _function(self, role: str, function: Callable[[pa.Table], Any]) -> str:
        name = getattr(function, "__name__", role)
        name = role if name == "<lambda>" else name
        taken = {*(self.source.schema.names), *(known for known, _ in self.computed)}
        while name in taken:
            name += "_"
        self.computed.append((name, function))
        return name


def _compute_empty(
    name: str, function: Callable[[pa.Table], Any], empty: pa.Table
) -> pa.Array | pa.ChunkedArray:
    """The computed column of an empty table, which has its type."""
    try:
        column = function(empty)
    except Exception as error:
        raise SpecError(
            f"the function of the column `{name}` fails on an empty table: {error}. Hint: use"
            " operations over whole columns"
        ) from error
    if not isinstance(column, pa.Array | pa.ChunkedArray) or len(column):
        raise SpecError(
            f"the function of the column `{name}` must return an Arrow column with a value for each"
            f" row, got {type(column).__name__}"
        )
    return column
