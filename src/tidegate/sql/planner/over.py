"""OVER aggregates: one output row for each input row, when the watermark has passed it.

A frame of time is a window that ends with the row: windows by difference compute the aggregates of
every instant, and a join puts them beside the rows. A frame of rows needs the rows in the order of
their times: a window of one tick sorts them by the watermark, and a global window with an evictor
keeps the last ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from tidegate.api.streams import Panes, Windowed
from tidegate.errors import SpecError
from tidegate.spec.aggregates import (
    Aggregate,
    AllTrue,
    AnyTrue,
    Collect,
    Count,
    Last,
    Max,
    Mean,
    Min,
    Sum,
)
from tidegate.spec.evictors import EvictCount, EvictTime
from tidegate.spec.triggers import EveryElement
from tidegate.spec.watermarks import Implied
from tidegate.spec.windows import Axis, ByDifference, Global, Tumbling
from tidegate.sql.intervals import ticks
from tidegate.sql.plan import Unnest
from tidegate.sql.planner.aggregates import AggregateReader
from tidegate.sql.planner.emission import emitting, within_chain
from tidegate.sql.planner.grouping import Context
from tidegate.sql.planner.inputs import Columns, opened
from tidegate.sql.planner.joins import beside
from tidegate.sql.planner.ranking import collected, row_of
from tidegate.sql.planner.relation import (
    TIME,
    Field,
    Relation,
    Role,
    Windowing,
    column_of,
    is_implied_time,
    physical,
)
from tidegate.sql.planner.scope import Scope
from tidegate.sql.statements import EmitClause

_LAST, _ROW, _ROWS = "_last", "_row", "_rows"
_USAGE = (
    "SUM(x) OVER (PARTITION BY k ORDER BY ts RANGE BETWEEN INTERVAL '1' HOUR PRECEDING AND CURRENT"
    " ROW), or ROWS 10 PRECEDING"
)


@dataclass(frozen=True)
class Frame:
    """The rows that an aggregate takes for a row: a number of rows, or a span of time."""

    partition: tuple[exp.Expr, ...]
    time: Field
    is_rows: bool
    size: int | None
    """Rows or microseconds before the row; None for all rows before it."""


def settled(node: exp.Window, windows: Mapping[str, exp.Expr]) -> exp.Window:
    """The window of an OVER, with the clauses of a named one."""
    alias = node.args.get("alias")
    named = windows.get(alias.name) if alias is not None else None
    if named is None:
        return node
    found = node.copy()
    found.set("alias", None)
    for name in ("partition_by", "order", "spec"):
        if named.args.get(name) and not found.args.get(name):
            value = named.args[name]
            copied = [one.copy() for one in value] if isinstance(value, list) else value.copy()
            found.set(name, copied)
    return found


def over_relation(
    context: Context,
    relation: Relation,
    items: Sequence[tuple[str, exp.Expr]],
    windows: Mapping[str, exp.Expr],
    clause: EmitClause | None,
) -> Relation:
    """The relation of a SELECT whose items have OVER aggregates."""
    scope = context.scope(relation)
    calls = [settled(one, windows) for _, item in items for one in item.find_all(exp.Window)]
    frames = [_frame(scope, relation, one) for one in calls]
    if len({repr(frame) for frame in frames}) > 1:
        raise scope.error(
            calls[-1], "all OVER aggregates of a SELECT have one frame", "WINDOW w AS (...)"
        )
    planner = _OverPlanner(context, relation, frames[0], clause, calls[0])
    try:
        made = planner.by_rows if frames[0].is_rows else planner.by_time
        return made(items, windows)
    except SpecError as error:
        raise context.refused(calls[0], error, scope) from None


def _frame(scope: Scope, relation: Relation, node: exp.Window) -> Frame:
    """The frame of an OVER; refuses those that reach beyond the row."""
    order = node.args.get("order")
    ordered = order.expressions if order is not None else []
    if len(ordered) != 1 or ordered[0].args.get("desc"):
        raise scope.error(
            ordered[-1] if ordered else node, "OVER is ordered by one time, ascending", _USAGE
        )
    column = ordered[0].this
    time = scope.find(column) if isinstance(column, exp.Column) else None
    known = (Role.TIME, Role.PROCTIME, Role.WINDOW_TIME, Role.END)
    if time is None or (time.role not in known and not is_implied_time(relation, time)):
        raise scope.error(column, "OVER is ordered by a time column with a watermark", _USAGE)
    partition = tuple(scope.resolve(one) for one in node.args.get("partition_by") or [])
    spec = node.args.get("spec")
    if isinstance(node.this, exp.Lag):
        return Frame(partition, time, is_rows=True, size=_lag(scope, node.this))
    if spec is None:
        return Frame(partition, time, is_rows=False, size=None)
    end, side = spec.args.get("end"), str(spec.args.get("start_side") or "").upper()
    if end not in (None, "CURRENT ROW") or spec.args.get("exclude"):
        raise scope.error(node, "a frame ends with the current row", _USAGE)
    start = spec.args["start"]
    is_rows = str(spec.args["kind"]).upper() == "ROWS"
    if start == "CURRENT ROW":
        return Frame(partition, time, is_rows, 0)
    if side != "PRECEDING":
        raise scope.error(node, "a frame begins before the current row", _USAGE)
    if start == "UNBOUNDED":
        return Frame(partition, time, is_rows, None)
    return Frame(partition, time, is_rows, _size(scope, start, is_rows=is_rows))


def _lag(scope: Scope, call: exp.Lag) -> int:
    """By how many rows a `LAG` looks back."""
    offset = call.args.get("offset")
    if offset is None:
        return 1
    return _size(scope, offset, is_rows=True)


def _size(scope: Scope, start: exp.Expr, *, is_rows: bool) -> int:
    if is_rows:
        if isinstance(start, exp.Literal) and start.is_int:
            return int(start.name)
        raise scope.error(start, "a number of rows was expected", "ROWS 10 PRECEDING")
    try:
        return ticks(start)
    except SpecError as error:
        raise scope.error(start, str(error).split(". Hint", maxsplit=1)[0], _USAGE) from None


class _OverPlanner:
    """Plans the OVER aggregates of one SELECT."""

    def __init__(
        self,
        context: Context,
        relation: Relation,
        frame: Frame,
        clause: EmitClause | None,
        node: exp.Expr,
    ) -> None:
        self.context, self.relation, self.frame = context, relation, frame
        self.clause, self.node = within_chain(clause), node
        self.aggregates: dict[str, Aggregate] = {}
        self._values: list[exp.Expr] = []

    # Frames of time

    def by_time(
        self,
        items: Sequence[tuple[str, exp.Expr]],
        windows: Mapping[str, exp.Expr],
    ) -> Relation:
        """Rows beside the aggregates of the windows that end with them."""
        if self.frame.time.role is Role.PROCTIME:
            return self.by_rows(items, windows)
        if self.frame.size is None:
            return self._running_instants(items, windows)
        time = self._time()
        columns = Columns(self.relation)
        keys = [columns.name(one, role="_k") for one in self.frame.partition]
        self._read(self.relation, columns, items, windows, keys)
        stream = opened(self.relation, columns.items(), keys, time)
        window = ByDifference(self.frame.size + 1)
        windowed = Windowed(stream.input, window, also=stream.also, sources=stream.sources)
        panes = emitting(windowed, self.clause).aggregate(**self.aggregates)
        values = [Field(name, physical(name)) for name in self.aggregates]
        pairs = [(one, physical(key)) for one, key in zip(self.frame.partition, keys, strict=True)]
        right = Relation(panes, tuple(values))
        joined = beside(self.context, self.node, self.relation, right, time, pairs, self.clause)
        rows, added = joined.fields[: -len(values)], joined.fields[-len(values) :]
        by_name = {value.name: one.expression for value, one in zip(values, added, strict=True)}
        return dataclasses.replace(
            joined, fields=self._fields(items, rows, lambda name: by_name[name])
        )

    def _time(self) -> str:
        time = self.frame.time
        if time.role is Role.WINDOW_TIME:
            return TIME
        if time.column is None:
            raise self.context.scope().error(self.node, "OVER is ordered by a column", _USAGE)
        return time.column

    def _running_instants(
        self, items: Sequence[tuple[str, exp.Expr]], windows: Mapping[str, exp.Expr]
    ) -> Relation:
        """Rows with the aggregates of all rows up to their time, those of the same time included.

        The aggregates of every instant are aggregated again.
        """
        columns = Columns(self.relation)
        keys = [columns.name(one, role="_k") for one in self.frame.partition]
        self._read(self.relation, columns, items, windows, keys)
        self._split_means()
        plain, row = row_of(self.relation)
        columns.name(row, _ROW)
        stream = opened(self.relation, columns.items(), keys, self._time())
        instants = emitting(
            Windowed(stream.input, Tumbling(1), also=stream.also, sources=stream.sources),
            self.clause,
        ).aggregate(**self.aggregates, **{_ROWS: Collect(_ROW)})
        again = {name: self._again(name, one) for name, one in self.aggregates.items()}
        found = Relation(instants, ())
        inner = opened(found, [(name, physical(name)) for name in (*keys, *again)], keys, TIME)
        panes = Windowed(
            inner.input, Global(), EveryElement(), lateness=0, sources=inner.sources
        ).aggregate(**again, **{_ROWS: Last(_ROWS)})
        fields = self._fields(items, plain, physical)
        unnest = Unnest(_ROWS, tuple(column_of(one.expression) or "" for one in plain))
        return Relation(panes, fields, unnest=unnest, is_running=True)

    def _split_means(self) -> None:
        """Replace means by sums and counts, which can be added."""
        for name, one in list(self.aggregates.items()):
            if isinstance(one, Mean) and not one.distinct:
                number = f"{name}_n"
                self.aggregates[name] = Sum(one.column, where=one.where)
                self.aggregates[number] = Count(one.column, where=one.where)
                mean = exp.Div(this=exp.cast(physical(name), "double"), expression=physical(number))
                self._values = [
                    value.transform(
                        lambda node, name=name, mean=mean: (
                            mean.copy() if column_of(node) == name else node
                        )
                    )
                    for value in self._values
                ]

    def _again(self, name: str, one: Aggregate) -> Aggregate:
        """The aggregate of the aggregates of instants."""
        if not one.distinct and isinstance(one, Count | Sum):
            return Sum(name)
        if isinstance(one, Min | Max | AnyTrue | AllTrue):
            return type(one)(name)
        raise self.context.scope().error(
            self.node,
            "this aggregate over all rows up to a time is not supported",
            "ROWS UNBOUNDED PRECEDING, or RANGE BETWEEN INTERVAL '1' HOUR PRECEDING AND CURRENT"
            " ROW",
        )

    # Frames of rows

    def by_rows(
        self,
        items: Sequence[tuple[str, exp.Expr]],
        windows: Mapping[str, exp.Expr],
    ) -> Relation:
        """The last rows of every key in a window without end, which fires with every row."""
        rows, keys = self._in_order()
        columns = Columns(rows)
        names = [columns.name(one, role="_k") for one in keys]
        self._read(rows, columns, items, windows, names)
        plain, row = row_of(rows)
        self.aggregates[_LAST] = Last(columns.name(row, _ROW))
        panes = self._running(rows, columns, names)
        shown = [
            dataclasses.replace(
                one,
                expression=exp.Dot(
                    this=physical(_LAST),
                    expression=exp.to_identifier(column_of(one.expression), quoted=True),
                ),
            )
            for one in plain
        ]
        fields = self._fields(items, shown, physical)
        return Relation(panes, fields, is_running=True)

    def _in_order(self) -> tuple[Relation, list[exp.Expr]]:
        """The rows in the order of their times, and the expressions of their keys."""
        if self.frame.time.role is Role.PROCTIME:
            return self.relation, list(self.frame.partition)
        windowing = Windowing(Tumbling(1), self._time(), self.node)
        found = collected(
            dataclasses.replace(self.relation, windowing=windowing),
            list(self.frame.partition),
            Collect(_ROW),
            self.clause,
        )
        source = found.source
        assert isinstance(source, Panes)  # noqa: S101
        return found, [physical(name) for name in source.spec.key]

    def _running(self, rows: Relation, columns: Columns, keys: Sequence[str]) -> Panes:
        is_clock = self.frame.time.role is Role.PROCTIME
        stream = opened(rows, columns.items(), keys, None if is_clock else TIME)
        if is_clock:
            # The last row is the last that arrived, whatever its event time is.
            untimed = dataclasses.replace(
                stream.input, time=None, watermark=Implied(), others=(), watermark_key=0
            )
            stream = dataclasses.replace(stream, input=untimed)
        size = self.frame.size
        evictor: EvictCount | EvictTime | None = None
        if size is not None:
            evictor = EvictCount(size + 1) if self.frame.is_rows else EvictTime(size)
        windowed = Windowed(
            stream.input,
            Global(Axis.CLOCK if is_clock else Axis.EVENT_TIME),
            EveryElement(),
            lateness=0,
            evictor=evictor,
            also=stream.also,
            sources=stream.sources,
        )
        return windowed.aggregate(**self.aggregates)

    # Aggregates

    def _read(
        self,
        rows: Relation,
        columns: Columns,
        items: Sequence[tuple[str, exp.Expr]],
        windows: Mapping[str, exp.Expr],
        keys: Sequence[str],
    ) -> None:
        """Read the aggregates of all items; their values follow in the order of the calls."""
        scope = self.context.scope(rows)
        reader = AggregateReader(scope, self.context.catalog.aggregates, columns.name, rows)
        for _, item in items:
            for node in item.find_all(exp.Window):
                call = settled(node, windows).this
                if isinstance(call, exp.Lag):
                    self._values.append(self._lagged(call, reader, columns, keys))
                    continue
                if not reader.is_aggregate(call):
                    raise scope.error(node, "OVER takes an aggregate or LAG", _USAGE)
                found = reader.read(call)
                value = self._named(found.aggregate, columns, keys)
                self._values.append(value if found.after is None else found.after(value))

    def _named(self, aggregate: Aggregate, columns: Columns, keys: Sequence[str]) -> exp.Expr:
        """The value of a further aggregate."""
        name = columns.output(None, [*keys, *self.aggregates, _LAST], "_a")
        self.aggregates[name] = aggregate
        return physical(name)

    def _lagged(
        self, call: exp.Lag, reader: AggregateReader, columns: Columns, keys: Sequence[str]
    ) -> exp.Expr:
        """The first value of the frame, if the frame has all of its rows."""
        first = self._named(reader.read(exp.First(this=call.this.copy())).aggregate, columns, keys)
        rows = self._named(Count(), columns, keys)
        is_whole = exp.GT(this=rows, expression=exp.Literal.number(self.frame.size or 0))
        default = call.args.get("default")
        found = exp.Case(ifs=[exp.If(this=is_whole, true=first)])
        if default is not None:
            found.set("default", default.copy())
        return found

    def _fields(
        self,
        items: Sequence[tuple[str, exp.Expr]],
        rows: Sequence[Field],
        named: Callable[[str], exp.Expr],
    ) -> tuple[Field, ...]:
        """The fields of SELECT over the columns of the operator."""
        scope = Scope(self.context.text, tuple(rows))
        values = iter(self._values)

        def take(part: exp.Expr) -> exp.Expr | None:
            if not isinstance(part, exp.Window):
                return None
            return (
                next(values)
                .copy()
                .transform(
                    lambda node: (
                        named(node.name).copy()
                        if isinstance(node, exp.Column) and node.name in self.aggregates
                        else node
                    )
                )
            )

        found = []
        for name, item in items:
            plain = scope.find(item) if isinstance(item, exp.Column) else None
            role = Role.PLAIN if plain is None else plain.role
            found.append(Field(name, scope.resolve(item, take), role))
        return tuple(found)
