"""Rows of windows and their first rows: windowing without groups, Top-N, deduplication."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

from sqlglot import exp

from tidegate.errors import SpecError
from tidegate.spec.aggregates import Aggregate, Collect, TopK
from tidegate.sql.plan import Unnest
from tidegate.sql.planner.emission import emitting
from tidegate.sql.planner.grouping import Context, bound
from tidegate.sql.planner.inputs import Columns, in_windows
from tidegate.sql.planner.relation import (
    BOUNDS,
    END,
    PENDING,
    Field,
    Relation,
    Role,
    column_of,
    physical,
)
from tidegate.sql.planner.time_bounds import FLIPPED
from tidegate.sql.statements import EmitClause

ROW, _ROWS, _BY = "_row", "_rows", "_by"
_LARGEST = 1_000_000


def materialised(context: Context, relation: Relation, clause: EmitClause | None) -> Relation:
    """The rows of every window, each with the bounds of its window, when the window is complete."""
    windowing = relation.windowing
    assert windowing is not None  # noqa: S101
    scope = context.scope(relation)
    if relation.is_open:
        raise scope.error(
            windowing.node,
            "rows are assigned to windows as they are, but their columns are not known",
            "GROUP BY window_start, window_end, or declare the table",
        )
    try:
        return collected(relation, list(windowing.partition or ()), Collect(ROW), clause)
    except SpecError as error:
        raise context.refused(windowing.node, error, scope) from None


def ranked(
    context: Context,
    relation: Relation,
    rank: Field,
    limit: int,
    clause: EmitClause | None,
    tree: exp.Expr,
) -> Relation:
    """The first rows of every window and key, with their numbers."""
    scope = context.scope(relation)
    window = rank.expression
    assert isinstance(window, exp.Window)  # noqa: S101
    order = window.args.get("order")
    if order is None:
        raise scope.error(tree, "a row number needs an order", "ORDER BY price DESC")
    if any(_is_end(relation, one) for one in window.args.get("partition_by") or []):
        ends = {one.expression for one in relation.fields if one.role is Role.END}
        relation = relation.by_end(window)
        window = window.transform(lambda node: physical(END) if node in ends else node)
        rank = dataclasses.replace(rank, expression=window)
        relation = dataclasses.replace(
            relation,
            fields=tuple(rank if one.role is Role.RANK else one for one in relation.fields),
        )
    is_windowed = relation.windowing is not None or relation.has_windows
    bounds = {bound(role).sql(dialect="spark") for role in BOUNDS if is_windowed}
    partition = window.args.get("partition_by") or []
    keys = [one for one in partition if one.sql(dialect="spark") not in bounds]
    has_bounds = len(keys) < len(partition)
    if not has_bounds and relation.windowing is not None:
        raise scope.error(
            relation.windowing.node,
            "a Top-N of windows goes by windows",
            "PARTITION BY window_start, window_end, ...",
        )
    if not has_bounds and clause is None:
        raise scope.error(
            order,
            "a Top-N over a stream without a window never ends, and has no EMIT",
            "PARTITION BY window_start, window_end, ..., EMIT CHANGES, or EMIT FINAL at the end of"
            " tables that end",
        )
    by = exp.Struct(
        expressions=[
            exp.PropertyEQ(this=exp.to_identifier(f"_{number}"), expression=one.copy())
            for number, one in enumerate(_sort_expressions(order))
        ]
    )
    ascending = tuple(_directions(order))
    top = TopK(ROW, limit, _BY, ascending)
    try:
        return collected(
            relation, keys, top, clause, position=rank.name, by=by, inherits=has_bounds
        )
    except SpecError as error:
        raise context.refused(tree.args.get("where") or tree, error, scope) from None


def _is_end(relation: Relation, node: exp.Expr) -> bool:
    """Whether an expression is the end of the windows of joined panes."""
    return relation.ends is not None and any(
        one.role is Role.END and one.expression == node for one in relation.fields
    )


def _sort_expressions(order: exp.Expr) -> list[exp.Expr]:
    """The expressions of an order; an unusual place of nulls is an expression before."""
    found: list[exp.Expr] = []
    for one in order.expressions:
        if bool(one.args.get("nulls_first")) == bool(one.args.get("desc")):
            found.append(one.this.copy().is_(exp.null()))
        found.append(one.this)
    return found


def _directions(order: exp.Expr) -> list[bool]:
    """For each of these expressions, whether the smallest come first."""
    found = []
    for one in order.expressions:
        is_descending = bool(one.args.get("desc"))
        if bool(one.args.get("nulls_first")) == is_descending:
            found.append(not is_descending)
        found.append(not is_descending)
    return found


def bounds_of(conditions: Iterable[exp.Expr]) -> Iterator[exp.Expr]:
    """The conditions, with both bounds of a BETWEEN on their own."""
    for one in conditions:
        if isinstance(one, exp.Between) and not one.args.get("symmetric"):
            yield exp.GTE(this=one.this.copy(), expression=one.args["low"].copy())
            yield exp.LTE(this=one.this.copy(), expression=one.args["high"].copy())
        else:
            yield one


def rank_limit(condition: exp.Expr, is_rank: Callable[[exp.Column], bool]) -> int | None:
    """The upper bound that a condition sets for a row number; None if it sets none."""

    def rank(node: exp.Expr) -> bool:
        return isinstance(node, exp.Column) and is_rank(node)

    if isinstance(condition, exp.EQ | exp.LT | exp.LTE | exp.GT | exp.GTE):
        left, right = condition.left, condition.right
        kind: type[exp.Expr] = type(condition)
        if rank(right):
            left, right = right, left
            kind = FLIPPED[kind]
        if not rank(left) or not isinstance(right, exp.Literal) or not right.is_int:
            return None
        number = int(right.name)
        if kind in (exp.LTE, exp.EQ):
            return max(1, min(number, _LARGEST))
        if kind is exp.LT:
            return max(1, min(number - 1, _LARGEST))
    return None


def row_of(relation: Relation) -> tuple[list[Field], exp.Struct]:
    """A row as a struct, and the fields of the relation over the fields of the struct."""
    plain = [one for one in relation.fields if one.role not in (*BOUNDS, *PENDING)]
    names = [f"_f{number}" for number in range(len(plain))]
    row = exp.Struct(
        expressions=[
            exp.PropertyEQ(this=exp.to_identifier(name), expression=one.expression.copy())
            for name, one in zip(names, plain, strict=True)
        ]
    )
    fields = [
        dataclasses.replace(
            one,
            expression=physical(name),
            role=one.role if one.role is Role.PROCTIME else Role.PLAIN,
        )
        for name, one in zip(names, plain, strict=True)
    ]
    return fields, row


def collected(
    relation: Relation,
    keys: list[exp.Expr],
    aggregate: Aggregate,
    clause: EmitClause | None,
    *,
    position: str | None = None,
    by: exp.Expr | None = None,
    inherits: bool = False,
) -> Relation:
    """A relation of the rows that an aggregate of structs keeps for every window and key."""
    windowing = relation.windowing
    shown, row = row_of(relation)
    names = [column_of(one.expression) or "" for one in shown]
    left = iter(shown)
    columns = Columns(relation)
    key = [columns.name(one, role="_k") for one in keys]
    columns.name(row, ROW)
    if by is not None:
        columns.name(by, _BY)
    windowed = in_windows(relation, columns, key, inherits=inherits)
    panes = emitting(windowed, clause).aggregate(**{_ROWS: aggregate})
    fields = []
    for one in relation.fields:
        if one.role in BOUNDS:
            fields.append(one)
        elif one.role is Role.RANK and position is not None:
            fields.append(Field(one.name, physical("_position"), qualifier=one.qualifier))
        elif one.role not in PENDING:
            fields.append(next(left))
    where = windowing.where if windowing is not None else ()
    return Relation(
        panes,
        tuple(fields),
        tuple(where),
        Unnest(_ROWS, tuple(names), None if position is None else "_position"),
    )
