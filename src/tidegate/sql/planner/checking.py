"""Checks of expressions before anything runs: functions exist, and their arguments fit.

Where the types of columns are not known, as behind an operator, only functions are checked. Rows
that only Spark reads are not checked: their expressions are those of Spark.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
from sqlglot import exp

from tidegate.errors import SpecError
from tidegate.operators.ingest.projection import projected_schema
from tidegate.spec.projection import Projection
from tidegate.sql.plan import Table
from tidegate.sql.planner.relation import END, START, Merged, Relation, United
from tidegate.sql.planner.scope import Scope
from tidegate.sql.scalars import duckdb_text

_PLAIN = (exp.Column, exp.Literal, exp.Null, exp.Boolean)
_STAMP = pa.timestamp("us", "UTC")
_WRONG = re.compile(r"an expression does not fit its columns: (Catalog|Binder|Parser) Error: (.*)")
_MISSING = re.compile(r"Function with name \"?(\w+)\"? does not exist")
Pair = tuple[exp.Expr, exp.Expr]
"""A node of the text, and its expression over physical columns."""


def check(scope: Scope, relation: Relation, pairs: Sequence[Pair]) -> None:
    """Refuse expressions over a relation that cannot be evaluated."""
    source = relation.source
    if isinstance(source, Table) and not source.runs_here:
        return
    schema = None if isinstance(source, United | Merged) else _schema_of(relation)
    found = [(node, expression) for node, expression in pairs if not isinstance(expression, _PLAIN)]
    texts = []
    for node, expression in found:
        try:
            texts.append(duckdb_text(expression if schema is not None else _untyped(expression)))
        except SpecError as error:
            why, _, hint = str(error).partition(". Hint: ")
            raise scope.error(node, why, hint) from None
    if not texts or _problem(texts, schema) is None:
        return
    for (node, _), text in zip(found, texts, strict=True):
        problem = _problem([text], schema)
        if problem is not None and (schema is not None or problem[0] != "Binder"):
            raise _refusal(scope, node, problem[1])


def check_conditions(scope: Scope, relation: Relation, pairs: Sequence[Pair]) -> None:
    """Refuse conditions over a relation that are neither true nor false."""
    source = relation.source
    is_known = isinstance(source, Table) and source.runs_here
    schema = _schema_of(relation) if is_known else None
    if schema is None:
        return
    for node, expression in pairs:
        try:
            condition = Projection(where=duckdb_text(expression), keeps="all")
            projected_schema(schema, [condition])
        except SpecError as error:
            why, _, hint = str(error).partition(". Hint: ")
            raise scope.error(node, why, hint) from None


def _schema_of(relation: Relation) -> pa.Schema | None:
    """The columns that expressions may read, if their types are known."""
    source = relation.source
    if not isinstance(source, Table) or source.schema is None or relation.unnest is not None:
        return None
    bounds = [pa.field(name, _STAMP) for name in (START, END) if name not in source.schema.names]
    return pa.schema([*source.schema, *bounds])


def _untyped(expression: exp.Expr) -> exp.Expr:
    """The expression with null in place of columns."""
    return expression.transform(lambda node: exp.Null() if isinstance(node, exp.Column) else node)


def _problem(texts: Sequence[str], schema: pa.Schema | None) -> tuple[str, str] | None:
    """The kind of error of DuckDB and what it says; None if the expressions can be evaluated."""
    columns = tuple((f"c{number}", text) for number, text in enumerate(texts))
    try:
        projected_schema(schema or pa.schema([]), [Projection(columns, keeps="nothing")])
    except SpecError as error:
        found = _WRONG.match(str(error))
        # Values that fail, such as those of a cast, are those of rows.
        return None if found is None else (found.group(1), found.group(2))
    return None


def _refusal(scope: Scope, node: exp.Expr, why: str) -> SpecError:
    missing = _MISSING.search(why)
    if missing is None:
        return scope.error(node, f"the expression does not fit its columns: {why}")
    inner = [part for part in node.find_all(exp.Func) if _is_missing(part)]
    return scope.error(
        inner[-1] if inner else node,
        f"there is no function `{missing.group(1).upper()}` in this process",
        "check its name; in front of the first window, Spark has functions of its own",
    )


def _is_missing(node: exp.Expr) -> bool:
    problem = _problem([duckdb_text(_untyped(node))], None)
    return problem is not None and _MISSING.search(problem[1]) is not None
