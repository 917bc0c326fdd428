"""Relations: rows of a table or a pipeline, with scalar steps that are not executed yet."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import pyarrow as pa
from sqlglot import exp

from tidegate.api.joins import Joined
from tidegate.api.streams import Panes
from tidegate.spec.windows import Tumbling, Window
from tidegate.sql.plan import Select, Table, Unnest

START, END, TIME = "window_start", "window_end", "time"
"""Physical columns of panes."""


class Role(StrEnum):
    """What a column means beside its value."""

    PLAIN = "plain"
    TIME = "time"
    """An event time with a watermark."""
    PROCTIME = "proctime"
    START = "window_start"
    END = "window_end"
    WINDOW_TIME = "window_time"
    """The time of a pane, the last instant of its window."""
    WINDOW = "window"
    """Both bounds of a window, the column `window` of Spark."""
    RANK = "rank"
    """A row number that is not computed yet."""
    OVER = "over"
    """An expression over OVER aggregates that are not computed yet."""


BOUNDS = (Role.START, Role.END, Role.WINDOW_TIME)
PENDING = (Role.RANK, Role.OVER)


@dataclass(frozen=True)
class Field:
    """A column of a relation: an expression over physical columns, and its role."""

    name: str
    expression: exp.Expr
    role: Role = Role.PLAIN
    qualifier: str | None = None
    """The name of the table that the column belongs to."""

    @property
    def column(self) -> str | None:
        """The physical column, if the expression is nothing else."""
        return column_of(self.expression)


@dataclass(frozen=True)
class Windowing:
    """A windowing function whose windows are not assigned yet."""

    window: Window
    time: str | None
    """The physical time column; None for windows on the clock or on counts."""
    node: exp.Expr
    partition: tuple[exp.Expr, ...] | None = None
    """The expressions that sessions go by, if the function names them."""
    is_group: bool = False
    """Whether the function stands in GROUP BY, so that sessions go by the other expressions."""
    where: tuple[exp.Expr, ...] = ()
    """Conditions over the bounds of windows."""
    gap: exp.Expr | None = None
    """The gap of sessions, if rows have gaps of their own: microseconds."""


@dataclass(frozen=True)
class United:
    """Relations whose rows follow each other, with fields that correspond by position."""

    parts: tuple[Relation, ...]
    names: tuple[str, ...]
    """The names of the fields, which are the physical columns of the union."""


@dataclass(frozen=True)
class Merged:
    """Tables with different columns that are aggregated together, by name."""

    parts: tuple[Relation, ...]
    names: tuple[str, ...]


Source: TypeAlias = Table | Panes | Joined | United | Merged


@dataclass(frozen=True)
class Relation:
    """Rows of a source after `unnest` and `where`, with named fields."""

    source: Source
    fields: tuple[Field, ...]
    where: tuple[exp.Expr, ...] = ()
    """Conditions that all hold, over physical columns."""
    unnest: Unnest | None = None
    windowing: Windowing | None = None
    is_open: bool = False
    """Whether the source may have columns that are not known."""
    late: bool = False
    is_running: bool = False
    """Whether the rows are panes that do not replace each other, so that no operator takes them."""
    window: exp.Expr | None = None
    """For a side of a join, its `OVER` window; or the time of `FOR SYSTEM_TIME AS OF`."""
    ends: str | None = None
    """Of joined panes, the physical column with the last instant of their window."""
    time: str | None = None
    """Of joined rows, the physical column with their time, whether it is a field or not."""

    def select(self, columns: Iterable[tuple[str, exp.Expr]] = ()) -> Select:
        """The scalar step of the relation with these columns."""
        return Select(tuple(columns), conjunction(self.where), self.unnest)

    def named(self, qualifier: str | None, names: Sequence[str] = ()) -> Relation:
        """The relation under an alias, with other names of columns."""
        fields = [
            dataclasses.replace(
                one, qualifier=qualifier, name=names[number] if number < len(names) else one.name
            )
            for number, one in enumerate(self.fields)
        ]
        return dataclasses.replace(self, fields=tuple(fields))

    def by_end(self, node: exp.Expr) -> Relation:
        """Joined panes as rows in windows: those of one instant, the last of the panes."""
        if self.ends is None:
            return self
        fields = tuple(
            dataclasses.replace(one, expression=physical(END)) if one.role is Role.END else one
            for one in self.fields
        )
        windowing = Windowing(Tumbling(1), self.ends, node)
        return dataclasses.replace(self, fields=fields, windowing=windowing, ends=None)

    def filtered(self, conditions: Iterable[exp.Expr]) -> Relation:
        """The rows for which further conditions hold."""
        found = tuple(conditions)
        return dataclasses.replace(self, where=(*self.where, *found)) if found else self

    @property
    def has_windows(self) -> bool:
        """Whether rows belong to windows of an operator, so that others may inherit them."""
        source = self.source
        return isinstance(source, Panes) or (isinstance(source, Joined) and source.spec.has_windows)


def is_implied_time(relation: Relation, one: Field, *, spans: bool = True) -> bool:
    """Whether a column of a table without watermarks can be its time.

    With `spans`, the query uses it as one; else only its type decides.
    """
    source = relation.source
    if not isinstance(source, Table) or source.input.time is not None or one.column is None:
        return False
    if source.schema is None or one.column not in source.schema.names:
        return spans
    kind = source.schema.field(one.column).type
    return pa.types.is_temporal(kind) or (spans and pa.types.is_string(kind))


def physical(name: str) -> exp.Column:
    """A reference to a physical column."""
    return exp.column(exp.to_identifier(name, quoted=True))


def last_instant(unit: str = "MILLISECOND") -> exp.Expr:
    """The last instant of the window of a row, as far as SQL can tell; Spark has microseconds."""
    return exp.Sub(
        this=physical(END),
        expression=exp.Interval(this=exp.Literal.string("1"), unit=exp.Var(this=unit)),
    )


SPARK_BOUNDS = {"start": Role.START, "end": Role.END}
"""The fields of the column `window` of Spark."""


def spark_bound(one: Field, name: str) -> Field | None:
    """The bound `window.start` or `window.end` of the column `window` of Spark."""
    role = SPARK_BOUNDS.get(name.lower())
    if role is None or one.role is not Role.WINDOW or not isinstance(one.expression, exp.Struct):
        return None
    return Field(name, physical(str(role)), role, one.qualifier)


def column_of(expression: exp.Expr) -> str | None:
    """The name of the column that an expression is; None if it computes something."""
    while isinstance(expression, exp.Paren):
        expression = expression.this
    if isinstance(expression, exp.Column) and not expression.table:
        return expression.name
    return None


def conjuncts(condition: exp.Expr | None) -> Iterator[exp.Expr]:
    """The conditions that a condition connects by AND."""
    if condition is None:
        return
    while isinstance(condition, exp.Paren):
        condition = condition.this
    if isinstance(condition, exp.And):
        yield from conjuncts(condition.left)
        yield from conjuncts(condition.right)
    else:
        yield condition


def conjunction(conditions: Sequence[exp.Expr]) -> exp.Expr | None:
    """One condition for all; None for none."""
    if not conditions:
        return None
    return exp.and_(*(one.copy() for one in conditions), copy=False)


def columns_in(expression: exp.Expr) -> set[str]:
    """The physical columns that an expression reads."""
    return {column.name for column in expression.find_all(exp.Column)}
