"""Aggregate functions of the text as aggregates of the API."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlglot import exp
from sqlglot.errors import ErrorLevel

from tidegate.errors import SpecError
from tidegate.spec import aggregates as tg
from tidegate.spec.aggregates import Aggregate
from tidegate.sql.plan import AggregateMaker
from tidegate.sql.planner.checking import check
from tidegate.sql.planner.relation import Merged, Relation, physical
from tidegate.sql.planner.scope import Scope

Name = Callable[[exp.Expr], str]
"""Gives the physical name of the column that an expression over the input becomes."""

_COLUMN: dict[type[exp.Expr], Callable[..., Aggregate]] = {
    exp.Sum: tg.Sum,
    exp.Avg: tg.Mean,
    exp.Min: tg.Min,
    exp.Max: tg.Max,
    exp.Stddev: tg.Stddev,
    exp.StddevSamp: tg.Stddev,
    exp.Variance: tg.Variance,
    exp.First: tg.First,
    exp.FirstValue: tg.First,
    exp.Last: tg.Last,
    exp.LastValue: tg.Last,
    exp.AnyValue: tg.First,
    exp.ArrayUniqueAgg: tg.Distinct,
    exp.ApproxDistinct: tg.ApproxDistinct,
    exp.LogicalOr: tg.AnyTrue,
    exp.LogicalAnd: tg.AllTrue,
}
"""Aggregates of one column."""
_NAMED: dict[str, Callable[..., Aggregate]] = {
    "MEAN": tg.Mean,
    "COUNT_DISTINCT": tg.CountDistinct,
    "SOME": tg.AnyTrue,
    "EVERY": tg.AllTrue,
    "COLLECT": tg.Collect,
}
_IGNORING = (tg.First, tg.Last, tg.Collect)
_WINDOWED_ONLY = (exp.RowNumber, exp.Rank, exp.DenseRank, exp.Lag, exp.Lead, exp.Ntile)
TOP_K, DOCUMENT = "TOP_K", "AGGREGATE_OF"


@dataclass(frozen=True)
class Aggregated:
    """An aggregate, and the expression over its column that the text means."""

    aggregate: Aggregate
    after: Callable[[exp.Expr], exp.Expr] | None = None


class AggregateReader:
    """Reads aggregate functions; `name` gives the columns that they read."""

    def __init__(
        self,
        scope: Scope,
        users: Mapping[str, AggregateMaker | Aggregate],
        name: Name,
        relation: Relation,
    ) -> None:
        self.scope, self._name, self._relation = scope, name, relation
        source = relation.source
        self._merged = frozenset(source.names if isinstance(source, Merged) else ())
        self._users = {key.upper(): value for key, value in users.items()}

    def is_aggregate(self, node: exp.Expr) -> bool:
        """Whether a node is the call of an aggregate."""
        return is_aggregate(node, self._users)

    def read(self, node: exp.Expr) -> Aggregated:
        """The aggregate of a call, with its filter and modifiers."""
        where, ignores, call = None, None, node
        while isinstance(call, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
            if isinstance(call, exp.Filter):
                condition = call.expression
                where = condition.this if isinstance(condition, exp.Where) else condition
            else:
                ignores = isinstance(call, exp.IgnoreNulls)
            call = call.this
        inner = call.args.get("this")
        if isinstance(inner, exp.IgnoreNulls | exp.RespectNulls):
            ignores = isinstance(inner, exp.IgnoreNulls)
            call = call.copy()
            call.set("this", inner.this.copy())
        try:
            found = self._call(call)
            changes: dict[str, Any] = {}
            of = self._input(call)
            if of is not None:
                changes["of"] = of
            if where is not None:
                flag = self._column(where)
                inner = found.aggregate.where
                if inner is not None:
                    flag = self._name(exp.and_(physical(str(inner)), physical(flag)))
                changes["where"] = flag
            if ignores is not None and isinstance(found.aggregate, _IGNORING):
                changes["ignore_nulls"] = ignores
            if not changes:
                return found
            return Aggregated(dataclasses.replace(found.aggregate, **changes), found.after)
        except SpecError as error:
            if hasattr(error, "line"):
                raise
            raise self._refusal(node, error) from None

    def _input(self, call: exp.Expr) -> str | None:
        """The table of a merge whose rows an aggregate takes; None for all."""
        used = {column.table for column in call.find_all(exp.Column)} & self._merged
        if len(used) > 1:
            raise self.scope.error(call, "an aggregate takes the rows of one table of a merge")
        return next(iter(used), None)

    def _refusal(self, node: exp.Expr, error: SpecError) -> SpecError:
        why, _, hint = str(error).partition(". Hint: ")
        return self.scope.error(node, why.rstrip("."), hint)

    def _column(self, node: exp.Expr) -> str:
        """The physical column of an argument."""
        inner = next((part for part in node.find_all(exp.Expr) if self.is_aggregate(part)), None)
        if inner is not None:
            raise self.scope.error(
                inner, "an aggregate is inside of another one", "aggregate in a subquery first"
            )
        resolved = self.scope.resolve(node)
        check(self.scope, self._relation, [(node, resolved)])
        return self._name(resolved)

    def _call(self, call: exp.Expr) -> Aggregated:
        kind = type(call)
        if kind in _COLUMN:
            return self._simple(call, _COLUMN[kind])
        if isinstance(call, exp.Anonymous):
            return self._by_name(call)
        readers: dict[type[exp.Expr], Callable[[Any], Aggregated]] = {
            exp.Count: self._count,
            exp.CountIf: self._count_if,
            exp.StddevPop: lambda node: self._simple(node, tg.Stddev, ddof=0),
            exp.VariancePop: lambda node: self._simple(node, tg.Variance, ddof=0),
            exp.ArgMax: lambda node: self._by(node, tg.ArgMax),
            exp.ArgMin: lambda node: self._by(node, tg.ArgMin),
            exp.ArrayAgg: self._list,
            exp.Quantile: lambda node: self._quantile(node, exact=True),
            exp.ApproxQuantile: lambda node: self._quantile(node, exact=False),
            exp.Median: lambda node: self._simple(node, tg.Quantile, q=0.5, exact=True),
            exp.WithinGroup: self._within_group,
            exp.GroupConcat: self._joined,
        }
        if kind not in readers:
            raise self.scope.error(
                call,
                f"the aggregate {_name(call)} is not supported",
                "register an aggregate of your own under a name",
            )
        return readers[kind](call)

    def _simple(
        self, call: exp.Expr, maker: Callable[..., Aggregate], **options: Any
    ) -> Aggregated:
        node, distinct = _distinct(call.this)
        if isinstance(call, exp.AnyValue):
            options["ignore_nulls"] = True
        if maker is tg.Distinct:
            distinct = False
        return Aggregated(maker(self._column(node), **options, distinct=distinct))

    def _count(self, call: exp.Count) -> Aggregated:
        arguments = [*call.args.get("expressions", ())]
        node, distinct = call.this, False
        if isinstance(node, exp.Distinct):
            distinct, arguments = True, node.expressions[1:]
            node = node.expressions[0]
        of_table = isinstance(node, exp.Column) and isinstance(node.this, exp.Star)
        if node is None or isinstance(node, exp.Star) or of_table:
            return Aggregated(tg.Count())
        if isinstance(node, exp.Literal) and not arguments and not distinct:
            return Aggregated(tg.Count())
        if arguments:
            every = [node, *arguments]
            present = exp.and_(*(exp.not_(one.copy().is_(exp.null())) for one in every))
            fields = [
                exp.PropertyEQ(this=exp.to_identifier(f"_{n}"), expression=one.copy())
                for n, one in enumerate(every)
            ]
            flag = self._column(present)
            column = self._column(exp.Struct(expressions=fields))
            return Aggregated(tg.Count(column, where=flag, distinct=distinct))
        return Aggregated(tg.Count(self._column(node), distinct=distinct))

    def _count_if(self, call: exp.CountIf) -> Aggregated:
        return Aggregated(tg.Count(where=self._column(call.this)))

    def _by(self, call: exp.Expr, maker: Callable[..., Aggregate]) -> Aggregated:
        node, distinct = _distinct(call.this)
        by = call.args.get("expression")
        if distinct and by is None:
            by = call.this.expressions[1]
        if by is None:
            raise self.scope.error(call, "two columns were expected", "MAX_BY(item, price)")
        return Aggregated(maker(self._column(node), self._column(by), distinct=distinct))

    def _list(self, call: exp.ArrayAgg) -> Aggregated:
        node, distinct = _distinct(call.this)
        if isinstance(node, exp.Order):
            raise self.scope.error(
                node, "a list has the order of event time", "leave ORDER BY out, or use TOP_K"
            )
        ignores = bool(call.args.get("nulls_excluded"))
        return Aggregated(tg.Collect(self._column(node), ignores, distinct=distinct))

    def _joined(self, call: exp.GroupConcat) -> Aggregated:
        node, distinct = _distinct(call.this)
        text = exp.cast(node.copy(), "string")
        separator = call.args.get("separator") or exp.Literal.string(",")
        column = self._column(text)
        return Aggregated(
            tg.Collect(column, ignore_nulls=True, distinct=distinct),
            lambda value: exp.ArrayToString(this=value, expression=separator.copy()),
        )

    def _quantile(self, call: exp.Expr, *, exact: bool) -> Aggregated:
        node, distinct = _distinct(call.this)
        wanted = self._numbers(call.args["quantile"])
        return Aggregated(tg.Quantile(self._column(node), wanted, exact, distinct=distinct))

    def _within_group(self, call: exp.WithinGroup) -> Aggregated:
        order = call.expression.expressions[0]
        if not isinstance(call.this, exp.PercentileCont):
            raise self.scope.error(
                call, "this ordered aggregate is not supported", "PERCENTILE(price, 0.5)"
            )
        wanted = self._numbers(call.this.this)
        if order.args.get("desc"):
            wanted = tuple(1 - q for q in wanted) if isinstance(wanted, tuple) else 1 - wanted
        return Aggregated(tg.Quantile(self._column(order.this), wanted, exact=True))

    def _numbers(self, node: exp.Expr) -> Any:
        if isinstance(node, exp.Array):
            return tuple(self._number(one) for one in node.expressions)
        return self._number(node)

    def _number(self, node: exp.Expr) -> Any:
        try:
            found = node.to_py()
            return float(found) if isinstance(found, Decimal) else found
        except ValueError:
            raise self.scope.error(node, "a number was expected", "0.95") from None

    def _by_name(self, call: exp.Anonymous) -> Aggregated:
        name = call.name.upper()
        arguments = list(call.expressions)
        if name == TOP_K:
            return self._top_k(call, arguments)
        if name == DOCUMENT:
            return self._document(call, arguments)
        if name in _NAMED:
            if len(arguments) != 1:
                raise self.scope.error(call, f"{name} takes one column")
            node, distinct = _distinct(arguments[0])
            return Aggregated(_NAMED[name](self._column(node), distinct=distinct))
        maker = self._users[name]
        if isinstance(maker, Aggregate):
            return Aggregated(maker)
        values = [
            one.to_py() if isinstance(one, exp.Literal | exp.Boolean) else self._column(one)
            for one in arguments
        ]
        try:
            found = maker(*values)
        except TypeError as error:
            raise self.scope.error(call, f"{name} cannot be called like this: {error}") from None
        if not isinstance(found, Aggregate):
            raise self.scope.error(call, f"{name} does not make an aggregate, got {found!r}")
        return Aggregated(found)

    def _document(self, call: exp.Anonymous, arguments: list[exp.Expr]) -> Aggregated:
        """`AGGREGATE_OF('{...}')`: an aggregate in its JSON form."""
        text = arguments[0] if len(arguments) == 1 else call
        try:
            document = json.loads(text.name)
            found = tg.aggregate_from_dict(document)
        except (ValueError, TypeError, AttributeError) as error:
            raise self.scope.error(
                text, f"this is no aggregate in JSON: {error}", '{"kind": "sum", "column": "v"}'
            ) from None
        for column in found.reads() or ():
            self._name(physical(column))
        return Aggregated(found)

    def _top_k(self, call: exp.Anonymous, arguments: list[exp.Expr]) -> Aggregated:
        if not 2 <= len(arguments) <= 3:
            raise self.scope.error(
                call, "TOP_K takes a column, a number and a column", "TOP_K(item, 3, price)"
            )
        node, distinct = _distinct(arguments[0])
        by = self._column(arguments[2]) if len(arguments) == 3 else None
        number = self._number(arguments[1])
        return Aggregated(tg.TopK(self._column(node), number, by, distinct=distinct))


def is_aggregate(node: exp.Expr, users: Mapping[str, Any]) -> bool:
    """Whether a node is the call of an aggregate, with its filter if it has one."""
    if isinstance(node, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        return is_aggregate(node.this, users)
    if isinstance(node, exp.WithinGroup):
        return True
    if isinstance(node, exp.Anonymous):
        name = node.name.upper()
        return name in _NAMED or name in (TOP_K, DOCUMENT) or name in users
    return isinstance(node, exp.AggFunc) and not isinstance(node, _WINDOWED_ONLY)


def has_aggregate(node: exp.Expr, users: Mapping[str, Any]) -> bool:
    """Whether an expression contains an aggregate outside of OVER."""
    if isinstance(node, exp.Window):
        return False
    if is_aggregate(node, users):
        return True
    return any(
        has_aggregate(one, users)
        for value in node.args.values()
        for one in (value if isinstance(value, list) else [value])
        if isinstance(one, exp.Expr)
    )


def unknown_function(scope: Scope, node: exp.Anonymous, known: frozenset[str]) -> SpecError:
    """The error for an unknown function."""
    near = difflib.get_close_matches(node.name.lower(), [name.lower() for name in known], 1)
    hint = f"did you mean `{near[0]}`?" if near else "register it, or check its name"
    return scope.error(node, f"there is no function `{node.name}`", hint)


def _name(call: exp.Expr) -> str:
    """The name of a function as it is written."""
    return call.sql("spark", unsupported_level=ErrorLevel.IGNORE).partition("(")[0]


def _distinct(node: exp.Expr) -> tuple[exp.Expr, bool]:
    if isinstance(node, exp.Distinct):
        return node.expressions[0], True
    return node, False
