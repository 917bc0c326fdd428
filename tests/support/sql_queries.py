"""Runs queries embedded, and asks DuckDB for the same over the same rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa

from tidegate.sql.definitions import TableDefinition, defined_table
from tidegate.sql.embedded import EmbeddedQuery
from tidegate.sql.parse import parse_script
from tidegate.sql.plan import Catalog, QueryPlan
from tidegate.sql.planner.query import plan_query
from tidegate.sql.statements import CreateTable, CreateView, Query

NOON = datetime(2025, 3, 14, 12, tzinfo=UTC)
Rows = Mapping[str, Sequence[Mapping[str, Any]]]


def planned(
    script: str, *, roles: Mapping[str, str] | None = None, **options: Any
) -> tuple[QueryPlan, dict[str, TableDefinition]]:
    """The plan of the last statement, and the tables that the others define.

    `roles` are further columns of the inputs by role, such as `offset`.
    """
    *before, query = parse_script(script)
    assert isinstance(query, Query)
    found = {one.name: defined_table(one) for one in before if isinstance(one, CreateTable)}
    if roles:
        found = {
            name: dataclasses.replace(one, input=dataclasses.replace(one.input, **roles))
            for name, one in found.items()
        }
    views = {one.name: one.query for one in before if isinstance(one, CreateView)}
    catalog = Catalog({name: one.table for name, one in found.items()}, views, **options)
    return plan_query(query, catalog), found


def plain(value: Any) -> Any:
    """Instants as seconds after noon, and floats rounded."""
    if isinstance(value, datetime):
        zoned = value if value.tzinfo else value.replace(tzinfo=UTC)
        return (zoned - NOON).total_seconds()
    return round(value, 6) if isinstance(value, float) else value


def answer(
    script: str,
    rows: Rows,
    *,
    deliveries: int = 1,
    shown: Callable[[Any], Any] = plain,
    **options: Any,
) -> list[tuple]:
    """The rows that a query leaves, sorted: those that are retracted are taken away."""
    plan, found = planned(script, **options)
    with EmbeddedQuery(plan, found, now=NOON + timedelta(days=1)) as query:
        for number in range(deliveries):
            for name in query.inputs:
                part = list(rows[name][number::deliveries])
                if part:
                    query.add_messages(part, input=name)
        query.finish()
        table = query.get_result().panes
    if not table.num_columns:
        return []
    left: list[tuple] = []
    signs = table["op"].to_pylist() if "op" in table.column_names else ["+"] * len(table)
    for sign, row in zip(signs, table.select(list(plan.columns)).to_pylist(), strict=True):
        values = tuple(map(shown, row.values()))
        if sign == "-":
            left.remove(values)
        else:
            left.append(values)
    return sorted(left, key=repr)


def batch_answer(query: str, tables: Mapping[str, pa.Table]) -> list[tuple]:
    """The answer of DuckDB, sorted."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name, table in tables.items():
            connection.register(name, table)
        found = connection.execute(query).fetchall()
    return sorted((tuple(map(plain, row)) for row in found), key=repr)
