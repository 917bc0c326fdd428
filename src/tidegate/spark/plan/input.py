"""What a stream is made of on Spark: a DataFrame or a direct source, and the columns that
expressions and functions add to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame

from tidegate.errors import SpecError
from tidegate.spark.sources import Direct
from tidegate.spark.tasks.edge import CLOCK, Computed
from tidegate.spark.types import arrow_schema


@dataclass(frozen=True, eq=False)
class PlanInput:
    """One input of a pipeline."""

    source: DataFrame | Direct
    computed: tuple[Computed, ...] = ()
    """Columns that a vectorised function makes of the others, in the workers."""

    @property
    def is_streaming(self) -> bool:
        return self.source.isStreaming

    def schema(self) -> pa.Schema:
        """The columns that the operator sees."""
        known = (
            self.source.schema
            if isinstance(self.source, Direct)
            else arrow_schema(self.source.schema)
        )
        for name, function in self.computed:
            made = _checked(name, function, known.empty_table())
            known = known.append(pa.field(name, made.type))
        return known


def given(
    source: Any, named: Mapping[str, Any], keys: Sequence[Any]
) -> tuple[PlanInput, dict[str, str | None], tuple[str, ...]]:
    """The input, and the names of the columns that say when, whose and which a row is: each may be
    said by name, expression or function.
    """
    if not isinstance(source, DataFrame | Direct):
        raise SpecError(
            "a stream is made from a DataFrame, a direct source or panes, got"
            f" {type(source).__name__}. Hint: tg.stream(df, time='ts')"
        )
    _check_columns(source)
    maker = _Columns(source)
    names = {role: maker.name(role, value) for role, value in named.items()}
    key = tuple(str(maker.name("key", value)) for value in keys)
    return PlanInput(maker.source, tuple(maker.computed)), names, key


def _check_columns(source: DataFrame | Direct) -> None:
    """Columns are told apart by name, and one name is taken."""
    names = source.schema.names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SpecError(
            f"several columns are named {', '.join(f'`{name}`' for name in twice)}. Hint: rename"
            " all but one, or drop them"
        )
    if CLOCK in {name.lower() for name in names}:
        raise SpecError(
            f"the clock of a batch travels in a column named `{CLOCK}`, and the input has one."
            " Hint: rename it"
        )


class _Columns:
    """Adds columns to a source while they are named."""

    def __init__(self, source: DataFrame | Direct) -> None:
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
            f"`{role}` takes the name of a column, an expression or a function over columns, got"
            f" {value!r}"
        )

    def _expression(self, role: str, column: Column) -> str:
        if isinstance(self.source, Direct):
            raise SpecError(
                f"a direct source is read without Spark, so `{role}` cannot be one of its"
                " expressions. Hint: use a function over columns"
            )
        name = self.source.select(column).columns[0]
        if name not in self.source.columns:
            self.source = self.source.withColumn(name, column)
        elif str(column) != f"Column<'{name}'>":
            # The name is taken by another column.
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


def _checked(
    name: str, function: Callable[[pa.Table], Any], empty: pa.Table
) -> pa.Array | pa.ChunkedArray:
    try:
        made = function(empty)
    except Exception as error:
        raise SpecError(
            f"the function of the column `{name}` fails on a table without rows: {error}. Hint:"
            " write it over whole columns"
        ) from error
    if not isinstance(made, pa.Array | pa.ChunkedArray) or len(made):
        raise SpecError(
            f"the function of the column `{name}` must return an Arrow column with a value for each"
            f" row, got {type(made).__name__}"
        )
    return made
