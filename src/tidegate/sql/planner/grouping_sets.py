"""Grouping sets: every row is counted in each of them, with nulls in the columns of the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import combinations, product

from sqlglot import exp

from tidegate.sql.planner.aggregates import is_aggregate
from tidegate.sql.planner.grouping import Context
from tidegate.sql.planner.relation import BOUNDS, Field, Relation, Role, United, physical

_MOST = 64
"""The number of grouping sets of a query."""
_KINDS = (exp.GroupingSets, exp.Rollup, exp.Cube)
_SET, _TIME = "_set", "_set_time"


def has_sets(tree: exp.Select) -> bool:
    """Whether a query has grouping sets."""
    group = tree.args.get("group")
    return group is not None and any(isinstance(one, _KINDS) for one in group.expressions)


def with_sets(
    context: Context, relation: Relation, tree: exp.Select
) -> tuple[Relation, exp.Select]:
    """A union with a part for each grouping set, and the query that groups it by all columns."""
    group = tree.args["group"]
    scope = context.scope(relation)
    parts = [_sets(one) for one in group.expressions if isinstance(one, _KINDS)]
    choices = [[one for chosen in choice for one in chosen] for choice in product(*parts)]
    # Bounds of windows that are in every set stand beside the sets.
    shared = [
        one
        for one in (choices[0] if choices else [])
        if isinstance(one, exp.Column)
        and getattr(scope.find(one), "role", None) in BOUNDS
        and all(one in choice for choice in choices)
    ]
    parts = [[[one for one in chosen if one not in shared] for chosen in part] for part in parts]
    choices = [[one for one in choice if one not in shared] for choice in choices]
    if len(choices) > _MOST:
        raise scope.error(
            group, f"a query has at most {_MOST} grouping sets, got {len(choices)}", "use fewer"
        )
    grouped = {one.sql(): one for part in parts for chosen in part for one in chosen}
    names = {text: f"_g{number}" for number, text in enumerate(grouped)}
    plain = [one for one in relation.fields if one.role not in BOUNDS]
    united = []
    for number, chosen in enumerate(choices):
        texts = {one.sql() for one in chosen}
        keys = [
            Field(names[text], _null_unless(text in texts, scope.resolve(one)))
            for text, one in grouped.items()
        ]
        united.append((number, keys))
    return (
        _united(relation, plain, united),
        _rewritten(
            context,
            tree,
            names,
            [{one.sql() for one in choice} for choice in choices],
            [*(one for one in group.expressions if not isinstance(one, _KINDS)), *shared],
        ),
    )


def _null_unless(is_grouped: bool, expression: exp.Expr) -> exp.Expr:  # noqa: FBT001
    """The expression, or a null of its type."""
    if is_grouped:
        return expression
    return exp.Case(ifs=[exp.If(this=exp.false(), true=expression)])


def _united(
    relation: Relation, plain: Sequence[Field], sets: Sequence[tuple[int, Sequence[Field]]]
) -> Relation:
    windowing = relation.windowing
    names = [f"_u{number}" for number in range(len(plain))]
    columns = [*zip(names, plain, strict=True)]
    time = windowing.time if windowing is not None else None
    extra = [] if time is None else [Field(_TIME, physical(time), Role.TIME)]
    parts, fields = [], list[Field]()
    for number, keys in sets:
        marker = Field(_SET, exp.Literal.number(number))
        own = [dataclasses.replace(one, name=name) for name, one in columns]
        parts.append(
            dataclasses.replace(relation, fields=(*own, *keys, marker, *extra), windowing=None)
        )
        fields = [
            *(dataclasses.replace(one, expression=physical(name)) for name, one in columns),
            *(Field(one.name, physical(one.name)) for one in (*keys, marker)),
            *(one for one in relation.fields if one.role in BOUNDS),
        ]
    every = tuple(one.name for one in parts[0].fields)
    if windowing is not None and time is not None:
        windowing = dataclasses.replace(windowing, time=_TIME)
    return Relation(United(tuple(parts), every), tuple(fields), windowing=windowing)


def _level(node: exp.Grouping | exp.GroupingId, sets: Sequence[set[str]]) -> exp.Expr:
    """`GROUPING(a, b)`: a bit for each column, which is 1 in the sets without it."""
    columns = [one.sql() for one in node.expressions]
    branches = []
    for number, chosen in enumerate(sets):
        bits = "".join("0" if one in chosen else "1" for one in columns)
        level = exp.Literal.number(int(bits or "0", 2))
        branches.append(exp.If(this=exp.Literal.number(number), true=level))
    return exp.Case(this=exp.column(_SET), ifs=branches)


def _rewritten(
    context: Context,
    tree: exp.Select,
    names: dict[str, str],
    sets: Sequence[set[str]],
    rest: Sequence[exp.Expr],
) -> exp.Select:
    """The query with the columns of the union in place of what is grouped by."""
    users = {name.upper(): one for name, one in context.catalog.aggregates.items()}

    def swapped(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Grouping | exp.GroupingId):
            return _level(node, sets)
        if is_aggregate(node, users):
            return node
        if node.sql() in names:
            return exp.column(names[node.sql()])
        found = node.copy()
        for key, value in node.args.items():
            if isinstance(value, exp.Expr):
                found.set(key, swapped(value))
            elif isinstance(value, list):
                found.set(
                    key, [swapped(one) if isinstance(one, exp.Expr) else one for one in value]
                )
        return found

    found = tree.copy()
    items = []
    for item in tree.expressions:
        inner = item.this if isinstance(item, exp.Alias) else item
        name = item.alias or (inner.name if isinstance(inner, exp.Column) else "")
        items.append(exp.alias_(swapped(inner), name, quoted=True) if name else swapped(inner))
    found.set("expressions", items)
    having = tree.args.get("having")
    if having is not None:
        found.set("having", exp.Having(this=swapped(having.this)))
    keys = [exp.column(name) for name in (*names.values(), _SET)]
    found.set("group", exp.Group(expressions=[*(one.copy() for one in rest), *keys]))
    return found


def _sets(part: exp.Expr) -> list[list[exp.Expr]]:
    """The sets of one clause."""
    members = [_members(one) for one in part.expressions]
    if isinstance(part, exp.Rollup):
        return [
            [one for member in members[:number] for one in member]
            for number in range(len(members), -1, -1)
        ]
    if isinstance(part, exp.Cube):
        return [
            [one for member in chosen for one in member]
            for number in range(len(members), -1, -1)
            for chosen in combinations(members, number)
        ]
    return members


def _members(node: exp.Expr) -> list[exp.Expr]:
    if isinstance(node, exp.Tuple):
        return list(node.expressions)
    return [node.this if isinstance(node, exp.Paren) else node]
