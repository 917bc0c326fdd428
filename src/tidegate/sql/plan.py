"""The plan of a query: tables with scalar steps, and the pipelines of the API between them.

Contract: every column of a `Select` refers to columns of its input by their physical names, as
unqualified and quoted identifiers; nothing is left to resolve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa
from sqlglot import exp

from tidegate.api.joins import Joined
from tidegate.api.streams import Panes, Stream
from tidegate.spec.aggregates import Aggregate
from tidegate.spec.operator import Input


@dataclass(frozen=True)
class Unnest:
    """Makes a row of every element of a list of structs, with their fields as columns."""

    column: str
    fields: tuple[str, ...]
    position: str | None = None
    """The column that numbers the elements of a list, from 1."""


@dataclass(frozen=True)
class Select:
    """A scalar step over whole tables: first `unnest`, then `where`, then the columns.

    Without columns, all columns of the input stay.
    """

    columns: tuple[tuple[str, exp.Expr], ...] = ()
    where: exp.Expr | None = None
    unnest: Unnest | None = None

    def __bool__(self) -> bool:
        return bool(self.columns) or self.where is not None or self.unnest is not None


@dataclass(frozen=True)
class Table:
    """A table that queries read: its columns, and their roles in a stream."""

    name: str
    input: Input
    """The roles: time, key, id, offset, partition, watermarks, further time columns."""
    columns: tuple[str, ...] | None = None
    """The names of all columns; None if they are not known before the first rows."""
    schema: pa.Schema | None = None
    proctimes: tuple[str, ...] = ()
    """Columns that stand for the time of processing."""
    source: Any = None
    """A pipeline whose rows the table has; None for rows of a source."""
    runs_here: bool = True
    """Whether its rows can be read in this process, so that expressions are those of DuckDB."""


@dataclass(frozen=True)
class TableScan:
    """The rows of a table after a scalar step: the source of an input of a pipeline."""

    table: str
    select: Select = field(default_factory=Select)


@dataclass(frozen=True)
class Branch:
    """A pipeline and the last scalar step over its rows.

    A stream is the root of a query without an operator: its rows pass through one by one.
    """

    root: Stream | Panes | Joined
    select: Select
    late: bool = False
    """Whether the rows are the late rows of the root."""


@dataclass(frozen=True)
class QueryPlan:
    """The plan of a query: the rows of all branches together."""

    branches: tuple[Branch, ...]
    columns: tuple[str, ...]
    """The names of the output columns."""


AggregateMaker: TypeAlias = Callable[..., Aggregate]


@dataclass(frozen=True)
class Catalog:
    """What a query may refer to: tables, views as queries, and user-defined aggregates by name.

    Names are looked up as written first, then without regard to case.
    """

    tables: Mapping[str, Table] = field(default_factory=dict)
    views: Mapping[str, Any] = field(default_factory=dict)
    """Views: `Query` statements by name."""
    aggregates: Mapping[str, AggregateMaker | Aggregate] = field(default_factory=dict)
    functions: frozenset[str] = frozenset()
    """The names of further scalar functions."""


def lookup(names: Mapping[str, Any], name: str) -> Any:
    """What has a name, as it is written first, then without regard to case; None if nothing has."""
    if name in names:
        return names[name]
    return next((value for key, value in names.items() if key.lower() == name.lower()), None)
