"""Pipelines as SQL scripts: tables, views of upstream operators, and the query of the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.spec import sql_clauses
from tidegate.spec.join import JoinSpec
from tidegate.spec.operator import AggregateSpec
from tidegate.spec.sql_text import aggregate_query, join_query, table_text

if TYPE_CHECKING:
    from tidegate.api.running import Pipeline


def script(pipeline: Pipeline[Any], name: str) -> str:
    """The script of a pipeline; `name` begins the names of its tables."""
    statements: list[str] = []
    query = _query(pipeline, name, statements, feeds=False)
    return ";\n".join([*statements, query]) + ";\n"


def _query(pipeline: Pipeline[Any], name: str, statements: list[str], *, feeds: bool) -> str:
    """The query of the last operator; the statements before it are appended."""
    from tidegate.api.running import Pipeline

    spec = pipeline.spec
    tables, fed = [], False
    for number, given in enumerate(spec.inputs):
        table = name if len(spec.inputs) == 1 else f"{name}_{number + 1}"
        if isinstance(spec, AggregateSpec) and spec.names:
            table = spec.names[number]
            if spec.names.count(table) > 1:
                raise sql_clauses.no_text("a merge of united streams")
        tables.append(table)
        source = pipeline.sources[number] if pipeline.sources else None
        if not isinstance(source, Pipeline):
            statements.append(table_text(table, given, keyed=isinstance(spec, JoinSpec)))
            continue
        if isinstance(spec, JoinSpec) or isinstance(source.spec, JoinSpec) or given.projections:
            raise sql_clauses.no_text("a join between other operators")
        fed = True
        inner = _query(source, f"{table}_input", statements, feeds=True)
        statements.append(f"CREATE VIEW {sql_clauses.name(table)} AS {inner}")
    if isinstance(spec, JoinSpec):
        return join_query(spec, (tables[0], tables[-1]))
    return aggregate_query(spec, tables, feeds=feeds, fed=fed)
