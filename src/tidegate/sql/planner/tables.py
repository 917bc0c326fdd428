"""The relations of tables of the catalog: rows of a source, or of a pipeline."""

from __future__ import annotations

from sqlglot import exp

from tidegate.api.joins import Joined
from tidegate.api.streams import Panes
from tidegate.sql.plan import Table
from tidegate.sql.planner.grouping import bound_fields
from tidegate.sql.planner.relation import Field, Relation, Role, physical


def table_relation(table: Table) -> Relation:
    """The relation of a table of the catalog."""
    if isinstance(table.source, Panes | Joined):
        return _pipeline_relation(table)
    times = {time.column for time in table.input.times if time.column is not None}
    names = list(table.columns or ())
    names += [name for name in sorted(times) if name not in names]
    names += [name for name in table.proctimes if name not in names]
    fields = []
    for name in names:
        role = Role.TIME if name in times else Role.PLAIN
        if name in table.proctimes:
            fields.append(Field(name, exp.CurrentTimestamp(), Role.PROCTIME, table.name))
        else:
            fields.append(Field(name, physical(name), role, table.name))
    return Relation(table, tuple(fields), is_open=table.columns is None)


def _pipeline_relation(table: Table) -> Relation:
    """The relation of a pipeline in the catalog: its rows have keys, windows and values."""
    source = table.source
    fields: list[Field] = []
    if isinstance(source, Panes):
        names = [*source.spec.key, *(name for name, _ in source.spec.aggregates)]
        fields = [Field(name, physical(name), qualifier=table.name) for name in names]
        return Relation(source, (*fields, *bound_fields(table.name)))
    times = [time.column for side in (0, 1) for time in source.spec.times(side)]
    names = list(table.columns or ())
    fields = [
        Field(
            name, physical(name), Role.TIME if name in times else Role.PLAIN, qualifier=table.name
        )
        for name in names
    ]
    return Relation(source, tuple(fields), is_open=not names)


def late_columns(source: object) -> list[str]:
    """The columns of late rows that the specification of their operator names."""
    if isinstance(source, Panes | Joined):
        return [
            name
            for given in source.spec.inputs
            for name in (*given.key, given.time)
            if name is not None
        ]
    return []
