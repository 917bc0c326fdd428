"""The statements of a SQL script as values; queries and expressions are trees of sqlglot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sqlglot import exp

from tidegate.spec.evictors import Evictor
from tidegate.spec.operator import Retention
from tidegate.spec.triggers import Trigger
from tidegate.sql.positions import Place


@dataclass(frozen=True)
class EmitClause:
    """When panes fire, how long windows wait for late rows, and what panes contain.

    None is the default of the place where the clause stands.
    """

    trigger: Trigger | None = None
    mode: str | None = None
    lateness: int | None = None
    """The allowed lateness; negative for the default of the API."""
    retention: Retention = field(default_factory=Retention)
    evictor: Evictor | None = None
    options: tuple[tuple[str, Any], ...] = ()
    """Further options of the operator by name; those of a join have names of their own."""
    is_final: bool = False
    """Whether there is one pane, when the window closes."""
    is_default: bool = False
    """Whether panes fire by the default trigger of the API."""


@dataclass(frozen=True)
class ColumnDefinition:
    """A column of a table: of its rows, computed from them, or from the metadata of the source."""

    name: str
    type: exp.DataType | None
    place: Place
    computed: exp.Expr | None = None
    metadata: str | None = None
    """The name of the metadata; the name of the column without `FROM`."""
    is_virtual: bool = False


@dataclass(frozen=True)
class WatermarkDefinition:
    """The watermark of a time column: an expression over it, or a named generator."""

    column: str
    expression: exp.Expr
    place: Place


@dataclass(frozen=True)
class TableOption:
    """An option of a table, such as `'connector' = 'kafka'`."""

    name: str
    value: str
    place: Place


@dataclass(frozen=True)
class Like:
    """`LIKE table (INCLUDING OPTIONS, EXCLUDING ALL)`."""

    table: str
    rules: tuple[tuple[str, str], ...]
    """Features, such as `OPTIONS`, and whether they are `INCLUDING`, `EXCLUDING`, `OVERWRITING`."""
    place: Place


@dataclass(frozen=True)
class CreateTable:
    """`CREATE TABLE name (columns, watermarks) WITH (options)`."""

    name: str
    columns: tuple[ColumnDefinition, ...]
    watermarks: tuple[WatermarkDefinition, ...]
    primary_key: tuple[str, ...]
    partitioned_by: tuple[str, ...]
    options: tuple[TableOption, ...]
    place: Place
    like: Like | None = None
    if_not_exists: bool = False
    replace: bool = False
    text: str = ""


@dataclass(frozen=True)
class Query:
    """A `SELECT`, or several of them united."""

    tree: exp.Query
    place: Place
    text: str = ""


@dataclass(frozen=True)
class CreateView:
    """`CREATE VIEW name AS query`."""

    name: str
    query: Query
    columns: tuple[str, ...]
    place: Place
    if_not_exists: bool = False
    replace: bool = False
    text: str = ""


@dataclass(frozen=True)
class Insert:
    """`INSERT INTO table [(columns)] query`."""

    table: str
    columns: tuple[str, ...]
    query: Query
    place: Place
    partition: tuple[tuple[str, exp.Expr], ...] = ()
    """Columns with one value for all rows: `PARTITION (day = '2025-03-14')`."""
    text: str = ""


@dataclass(frozen=True)
class Explain:
    """`EXPLAIN statement`."""

    statement: Query | Insert | StatementSet
    place: Place
    text: str = ""


@dataclass(frozen=True)
class SetOption:
    """`SET 'name' = 'value'`, or `RESET 'name'`."""

    name: str | None
    """The name; None for all settings."""
    value: str | None
    """The value; None for the default."""
    place: Place
    text: str = ""


@dataclass(frozen=True)
class Drop:
    """`DROP TABLE name` or `DROP VIEW name`."""

    kind: str
    name: str
    place: Place
    if_exists: bool = False
    text: str = ""


@dataclass(frozen=True)
class StatementSet:
    """Inserts that run together."""

    inserts: tuple[Insert, ...]
    place: Place
    text: str = ""


@dataclass(frozen=True)
class Show:
    """`SHOW TABLES`, `SHOW VIEWS`, `DESCRIBE name`, `SHOW CREATE TABLE name` or a bare `SET`."""

    kind: str
    """`TABLES`, `VIEWS`, `COLUMNS`, `CREATE` or `SETTINGS`."""
    name: str
    place: Place
    text: str = ""


Statement: TypeAlias = (
    CreateTable | CreateView | Insert | Query | Explain | SetOption | Drop | StatementSet | Show
)
