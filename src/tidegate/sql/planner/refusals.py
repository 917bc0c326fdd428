"""What a query over streams cannot have, refused where it stands in the text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlglot import exp

from tidegate.errors import SpecError
from tidegate.sql.plan import Catalog
from tidegate.sql.planner.aggregates import is_aggregate, unknown_function
from tidegate.sql.planner.functions import known_functions
from tidegate.sql.planner.scope import Scope

_CLAUSES = {
    "order": (
        "ORDER BY over a stream never ends",
        "leave it out; a Top-N numbers rows: ROW_NUMBER() OVER (PARTITION BY window_start,"
        " window_end ORDER BY x)",
    ),
    "limit": ("LIMIT of a stream depends on the order of arrival", "leave it out, or use a Top-N"),
    "offset": ("OFFSET of a stream depends on the order of arrival", "leave it out"),
    "laterals": ("LATERAL VIEW is not supported", "flatten the rows before the query"),
    "cluster": ("CLUSTER BY is not supported", "leave it out"),
    "distribute": ("DISTRIBUTE BY is not supported", "leave it out"),
    "sort": ("SORT BY is not supported", "leave it out"),
    "sample": ("TABLESAMPLE is not supported", "filter with WHERE"),
    "match": ("MATCH_RECOGNIZE is not supported", "use windows"),
    "locks": ("FOR UPDATE is not supported", "leave it out"),
    "pivots": ("PIVOT is not supported", "use aggregates with FILTER (WHERE ...)"),
    "hint": ("hints are not supported", "write the options of a table in CREATE TABLE"),
    "into": ("SELECT INTO is not supported", "INSERT INTO name SELECT ..."),
    "connect": ("CONNECT BY is not supported", "leave it out"),
    "when": ("this clause of a table is not supported", "leave it out"),
    "changes": ("CHANGES of a table is not supported", "leave it out"),
}
_UNNESTING = (exp.Explode, exp.Unnest, exp.Inline)
_PLACES = {
    exp.Where: "WHERE",
    exp.Join: "the condition of a join",
    exp.Group: "GROUP BY",
    exp.Having: "HAVING",
}


def refuse_clauses(scope: Scope, tree: exp.Expr) -> None:
    """Refuse the clauses of a query or a table that streams do not have."""
    for name, (why, hint) in _CLAUSES.items():
        found = tree.args.get(name)
        if not found:
            continue
        node = found[0] if isinstance(found, list) else found
        if isinstance(node, exp.Hint):
            # The nodes of a hint count their places from its own begin.
            node = tree.expressions[0]
        raise scope.error(node if isinstance(node, exp.Expr) else tree, why, hint)


def refuse_calls(scope: Scope, tree: exp.Select, catalog: Catalog) -> None:
    """Refuse functions that do not exist, and those that stand where they mean nothing."""
    known = known_functions(catalog)
    users = {name.upper(): one for name, one in catalog.aggregates.items()}
    for node in tree.walk():
        if isinstance(node, exp.Anonymous):
            is_table = isinstance(node.parent, exp.Table) or node.parent_select is not tree
            is_table |= isinstance(node.parent, exp.Anonymous) and node.parent.name == "TABLE"
            if not is_table and node.name.upper() not in known:
                raise unknown_function(scope, node, known)
        if node.parent_select is tree:
            problem = _misplaced(node, users)
            if problem is not None:
                raise scope.error(node, *problem)


def _misplaced(node: exp.Expr, users: Mapping[str, Any]) -> tuple[str, str] | None:
    """What is wrong with the place of a function, and what to do; None if nothing is."""
    if isinstance(node, _UNNESTING) and not isinstance(node.parent, exp.From | exp.Join):
        return f"{node.key.upper()} makes several rows of one", "flatten the rows before the query"
    if isinstance(node, exp.Columns):
        return "COLUMNS is not supported", "name the columns"
    if isinstance(node, exp.Star) and not _is_star(node):
        return "`*` stands in SELECT and in COUNT(*)", "name the columns"
    if not isinstance(node, exp.Window) and not is_aggregate(node, users):
        return None
    clause = node.find_ancestor(exp.Where, exp.Join, exp.Group, exp.Having, exp.Select)
    if isinstance(clause, exp.Where) and isinstance(clause.parent, exp.Filter):
        return None
    name = None if clause is None else _PLACES.get(type(clause))
    if name is None:
        return None
    if isinstance(node, exp.Window) or isinstance(node.parent, exp.Window):
        return f"OVER in {name} is not supported", (
            "compute it in a subquery: SELECT ... FROM (SELECT *, ... OVER (...) AS x FROM t)"
            " WHERE x > 1"
        )
    if isinstance(clause, exp.Group):
        return "an aggregate cannot be grouped by", "aggregate in a subquery first"
    if isinstance(clause, exp.Having):
        return None
    return f"an aggregate in {name} has no group yet", "HAVING COUNT(*) > 1, or a subquery"


def _is_star(node: exp.Star) -> bool:
    """Whether `*` stands for all columns of a SELECT, or for the rows that are counted."""
    parent = node.parent.parent if isinstance(node.parent, exp.Column) else node.parent
    if isinstance(parent, exp.Distinct):
        parent = parent.parent
    return isinstance(parent, exp.Select | exp.Count)


def lone_window(scope: Scope, node: exp.Expr) -> SpecError:
    """The error for a window or a version of a table that nothing joins."""
    of = node.args.get("over") or node.args.get("version")
    if isinstance(of, exp.Version):
        return scope.error(
            node,
            "FOR SYSTEM_TIME AS OF stands behind the right table of a join",
            "FROM orders o JOIN rates FOR SYSTEM_TIME AS OF o.ts AS r ON o.currency = r.currency",
        )
    return scope.error(
        node,
        "the window of a table is for joins",
        "FROM a JOIN b OVER (ROWS 3 PRECEDING) ON a.id = b.id",
    )
