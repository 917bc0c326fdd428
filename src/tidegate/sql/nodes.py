"""Nodes of the syntax tree that Tidegate adds to those of sqlglot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from sqlglot import exp

NAMESPACES = ("default_catalog", "default_database")
"""The catalog and the database of Flink that tables may be named with."""


def local_name(parts: Sequence[str]) -> str:
    """The name of a table without its default catalog and database.

    >>> local_name(["default_catalog", "default_database", "bids"]), local_name(["a", "b"])
    ('bids', 'a.b')
    """
    rest = list(parts)
    for number, namespace in enumerate(NAMESPACES):
        if len(rest) > 1 and rest[0].lower() == namespace and (number or len(rest) > 2):
            rest = rest[1:]
    return ".".join(rest)


class WindowCall(exp.Expression, exp.Func):
    """A windowing function: `TUMBLE`, `HOP`, `CUMULATE`, `SESSION`, `SLIDE`, `CALENDAR` or `ALL`.

    `this` is its name in capitals, `expressions` are its arguments. `grace` is the lateness of the
    window of a query of ksqlDB.
    """

    arg_types: ClassVar[dict[str, Any]] = {"this": True, "expressions": False, "grace": False}
    is_var_len_args = True
    _sql_names: ClassVar[list[str]] = ["TIDEGATE_WINDOW"]


class NamedArgument(exp.Expression):
    """A named argument of a windowing function: `SIZE => INTERVAL '1' MINUTE`."""

    arg_types: ClassVar[dict[str, Any]] = {"this": True, "expression": True}


class TableArgument(exp.Expression):
    """An argument `TABLE name PARTITION BY columns`; `this` is a table or a subquery."""

    arg_types: ClassVar[dict[str, Any]] = {"this": True, "partition_by": False}


class Descriptor(exp.Expression):
    """`DESCRIPTOR(column)`."""

    arg_types: ClassVar[dict[str, Any]] = {"expressions": True}


class RowCount(exp.Expression):
    """A number of messages: `ROWS 100`."""

    arg_types: ClassVar[dict[str, Any]] = {"this": True}


class TableWindow(exp.Expression):
    """The window of a side of a join: `OVER (ROWS 3 PRECEDING)`, or `WITHIN (1 HOUR, 2 HOURS)`.

    With the kind `WITHIN`, its rows are at most `size` before and `after` behind those of the left;
    `grace` is the lateness of the join.
    """

    arg_types: ClassVar[dict[str, Any]] = {
        "kind": True,
        "size": True,
        "order": False,
        "partition_by": False,
        "after": False,
        "grace": False,
    }


class Watermark(exp.Expression):
    """`WATERMARK FOR this AS expression` of a table."""

    arg_types: ClassVar[dict[str, Any]] = {"this": True, "expression": True}


class MetadataColumn(exp.Expression, exp.ColumnConstraintKind):
    """`METADATA [FROM 'key'] [VIRTUAL]` of a column of a table."""

    arg_types: ClassVar[dict[str, Any]] = {"this": False, "virtual": False}


class Emit(exp.Expression):
    """The clauses after a query that say when its panes fire; `clause` is an `EmitClause`."""

    arg_types: ClassVar[dict[str, Any]] = {"clause": True}
