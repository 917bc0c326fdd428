"""From relations to streams: which columns a scalar step hands to an operator."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from sqlglot import exp

from tidegate.api.joins import Joined
from tidegate.api.streams import Panes, Stream, Windowed, merge, stream, union
from tidegate.errors import SpecError
from tidegate.spec.operator import RESERVED, Input
from tidegate.spec.watermarks import Generated, Noted, Punctuated
from tidegate.spec.windows import Axis, Global, Inherited, Session, Window
from tidegate.sql.plan import Select, Table, TableScan
from tidegate.sql.planner.relation import (
    TIME,
    Merged,
    Relation,
    Role,
    United,
    column_of,
    columns_in,
    last_instant,
    physical,
)
from tidegate.sql.scalars import compile_duckdb

PROTOCOL = RESERVED | {"pair_id"}
"""Columns of panes and joined rows that every scalar step keeps."""


class Columns:
    """The columns that an operator reads: physical columns, and expressions under new names."""

    def __init__(
        self, relation: Relation, *, protocol: bool = False, taken: Iterable[str] = ()
    ) -> None:
        """With `protocol`, names of columns of panes are left to them.

        `taken` are names that no column may have.
        """
        self._relation, self._taken = relation, frozenset(taken)
        self._names: dict[str, str] = {}
        self._found: dict[str, exp.Expr] = {}
        self._protocol = protocol or isinstance(relation.source, Panes | Joined)

    def items(self) -> list[tuple[str, exp.Expr]]:
        """The columns in the order of their first use."""
        return list(self._found.items())

    def name(
        self,
        expression: exp.Expr,
        wanted: str | None = None,
        *,
        role: str = "_c",
        copies: bool = False,
        shares: bool = False,
    ) -> str:
        """The name of the column of an expression.

        A physical column keeps its name, except with `copies`; with `shares`, even a name that
        the other side of a join has. `wanted` is the name of an expression if it is free.
        """
        column = column_of(expression)
        if column is not None and shares and column in self._taken and not self._protocol:
            self._found.setdefault(column, physical(column))
            return column
        if column is not None and not copies and not self._is_taken(column, expression):
            self._found.setdefault(column, physical(column))
            return column
        text = f"{'copy of ' if copies else ''}{expression.sql(dialect='spark')}"
        if text not in self._names:
            name = wanted
            if name is None or self._is_taken(name, expression):
                number = len(self._names)
                while self._is_taken(f"{role}{number}", expression):
                    number += 1
                name = f"{role}{number}"
            self._names[text] = name
            self._found[name] = expression.copy()
        return self._names[text]

    def output(self, wanted: str | None, taken: Iterable[str], role: str) -> str:
        """A free name for a column that the operator makes."""
        used = {*taken, *PROTOCOL}
        if wanted is not None and wanted not in used:
            return wanted
        number = 0
        while f"{role}{number}" in used:
            number += 1
        return f"{role}{number}"

    def _is_taken(self, name: str, expression: exp.Expr) -> bool:
        """Whether a name belongs to another column."""
        if name in self._taken:
            return True
        if self._protocol and name in PROTOCOL:
            return True
        if column_of(expression) == name:
            return name in self._found and column_of(self._found[name]) != name
        return name in self._found or name in known_columns(self._relation) or name in PROTOCOL


def known_columns(relation: Relation) -> set[str]:
    """The physical columns of a relation."""
    names = {name for one in relation.fields for name in columns_in(one.expression)} | _roles(
        relation
    )
    if isinstance(relation.source, Table):
        names |= set(relation.source.columns or ())
    return names


def _roles(relation: Relation) -> set[str]:
    source = relation.source
    if isinstance(source, Table):
        return set(role_columns(source.input))
    if isinstance(source, United | Merged):
        return {name for part in source.parts for name in _roles(part)}
    return set()


def role_columns(given: Input) -> list[str]:
    """The columns that the roles and watermarks of an input read."""
    found: list[Any] = [given.offset, given.partition, given.id, *given.key]
    for time in given.times:
        mark = time.watermark
        found.append(time.column)
        if isinstance(mark, Punctuated):
            found += [mark.column, mark.marker]
        if isinstance(mark, Noted):
            found += [mark.column, mark.writer]
    return list(dict.fromkeys(name for name in found if name is not None))


def opened(
    relation: Relation,
    columns: Sequence[tuple[str, exp.Expr]],
    key: Sequence[str] | None,
    time: str | None,
    *,
    exact: bool = False,
) -> Stream:
    """The stream of a relation with these columns, time and key; None keeps the key of a table.

    With `exact`, it has no further columns; else a source may be read as it is.
    """
    source = relation.source
    if relation.is_running:
        raise SpecError(
            "the rows of OVER with a frame of rows, or without a bound, are results that no other"
            " operator takes. Hint: RANGE BETWEEN INTERVAL '1' HOUR PRECEDING AND CURRENT ROW"
        )
    if isinstance(source, United):
        _check_ids(source)
        return union(
            *(
                _part(part, source.names, relation, columns, key, time, exact=exact)
                for part in source.parts
            )
        )
    if isinstance(source, Merged):
        return _merged(source, relation, columns, key)
    if isinstance(source, Table):
        return _table_stream(source, relation, columns, key, time, exact=exact)
    if isinstance(source, Joined):
        found = source.stream(time=time or "", key=tuple(key or ()))
        if time == TIME:
            # Pairs that share a window have no time of their own.
            columns = [*columns, (TIME, last_instant())]
        elif time is not None and time not in dict(columns):
            columns = [*columns, (time, physical(time))]
    else:
        found = stream(source, time=time or "time", key=tuple(key or ()))
    as_is = not exact and _is_identity(relation, columns)
    select = relation.select(() if as_is else columns)
    return _projected(found, select)


def in_windows(
    relation: Relation, columns: Columns, key: Sequence[str], *, inherits: bool
) -> Windowed:
    """The stream of a relation in its windows: its own, those of its source, or one for all."""
    windowing = relation.windowing
    window, time = (
        (windowing.window, windowing.time)
        if windowing is not None
        else (Inherited(), TIME)
        if inherits
        else _one_window(relation)
    )
    if isinstance(window, Session) and isinstance(window.gap_column, str):
        gap = None if windowing is None else windowing.gap
        name = columns.name(physical(window.gap_column) if gap is None else gap, role="_g")
        window = dataclasses.replace(window, gap_column=name)
    found = opened(relation, columns.items(), key, time)
    if isinstance(window, Inherited):
        return found.inherit()
    return Windowed(found.input, window, also=found.also, sources=found.sources, names=found.names)


def _one_window(relation: Relation) -> tuple[Window, str | None]:
    """The window that has all rows of a relation, and its time."""
    source = relation.source
    if isinstance(source, Panes):
        # The panes of one window have no time, those of others the end of their window.
        return (Inherited() if _is_global(source) else Global(Axis.EVENT_TIME)), TIME
    times = [one.column for one in relation.fields if one.role is Role.TIME]
    time = times[0] if times else relation.time
    return Global(Axis.CLOCK if time is None else Axis.EVENT_TIME), time


def _is_global(panes: Panes) -> bool:
    """Whether panes are those of a window without an end."""
    window = panes.spec.window
    if isinstance(window, Inherited):
        return all(isinstance(one, Panes) and _is_global(one) for one in panes.sources)
    return isinstance(window, Global)


def _merged(
    source: Merged,
    relation: Relation,
    columns: Sequence[tuple[str, exp.Expr]],
    key: Sequence[str] | None,
) -> Stream:
    """The merge of the streams of several tables, each with the columns that it has."""
    if relation.where:
        raise SpecError(
            "the rows of a merge are filtered for each aggregate. Hint: COUNT(a.*) FILTER (WHERE"
            " ...)"
        )
    streams = {}
    left = {name for name, _ in columns}
    for name, part in zip(source.names, source.parts, strict=True):
        known = {one.name for one in part.fields}
        own = [
            (column, expression)
            for column, expression in columns
            if part.is_open or columns_in(expression) <= known
        ]
        left -= {column for column, _ in own}
        streams[name] = opened(part, own, key, None)
    if left:
        raise SpecError(
            f"no table of the merge has all columns of the expression `{min(left)}`. Hint: an"
            " expression reads the columns of one table"
        )
    return merge(**streams)


def _check_ids(united: United) -> None:
    """Refuse a table that occurs twice and whose rows are recognised by an id."""
    tables = [part.source for part in united.parts if isinstance(part.source, Table)]
    names = [table.name for table in tables if table.input.id is not None]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise SpecError(
            f"the rows of `{twice[0]}` would be duplicates of themselves: the query reads them more"
            " than once, and the table has an `id`. Hint: recognise duplicates by `offset`"
        )


def _part(
    part: Relation,
    names: Sequence[str],
    united: Relation,
    columns: Sequence[tuple[str, exp.Expr]],
    key: Sequence[str] | None,
    time: str | None,
    *,
    exact: bool,
) -> Stream:
    """The stream of a part of a union."""
    own = {name: mine.expression for name, mine in zip(names, part.fields, strict=True)}

    def swapped(expression: exp.Expr) -> exp.Expr:
        # Columns of panes that are no fields of the union have the same name in every part.
        return expression.copy().transform(
            lambda node: (
                own[node.name].copy() if isinstance(node, exp.Column) and node.name in own else node
            )
        )

    return opened(
        part.filtered(swapped(one) for one in united.where),
        [(name, swapped(expression)) for name, expression in columns],
        key,
        column_of(own[time]) if time in own else time,
        exact=exact,
    )


def _table_stream(
    table: Table,
    relation: Relation,
    columns: Sequence[tuple[str, exp.Expr]],
    key: Sequence[str] | None,
    time: str | None,
    *,
    exact: bool,
) -> Stream:
    given = table.input
    if time is not None and given.time is None:
        # Without a watermark, rows are complete at the end of the input.
        given = dataclasses.replace(given, time=time)
    elif time is not None and time != given.time:
        given = given.on(time)
    if key is not None:
        given = dataclasses.replace(given, key=tuple(key))
    table = dataclasses.replace(table, input=given)
    select = relation.select(_with_roles(table, columns))
    if not exact and _is_identity(relation, columns):
        select = Select()
    return Stream(given, sources=(TableScan(table.name, select),))


def _with_roles(
    table: Table, columns: Sequence[tuple[str, exp.Expr]]
) -> list[tuple[str, exp.Expr]]:
    """The columns, and those that the roles of a table need."""
    computes = bool(table.input.computed) or any(
        isinstance(time.watermark, Generated) for time in table.input.times
    )
    roles = role_columns(table.input)
    if computes:
        # A function may read any column.
        roles = [*(table.columns or ()), *roles]
    computed = {column.name for column in table.input.computed}
    own = dict(columns)
    return [
        *((name, physical(name)) for name in dict.fromkeys(roles) if name not in computed | {*own}),
        *((name, expression) for name, expression in own.items() if name not in computed),
    ]


def _is_identity(relation: Relation, columns: Sequence[tuple[str, exp.Expr]]) -> bool:
    """Whether the columns are columns of the source as they are."""
    return (
        not relation.where
        and relation.unnest is None
        and all(column_of(expression) == name for name, expression in columns)
    )


def _projected(found: Stream, select: Select) -> Stream:
    if not select:
        return found
    given = dataclasses.replace(
        found.input, projections=(*found.input.projections, compile_duckdb(select))
    )
    return dataclasses.replace(found, input=given)
