"""Joins: equal fields, windows, time bounds, and further conditions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from tidegate.api.joins import Joined, join
from tidegate.api.streams import Panes
from tidegate.errors import SpecError
from tidegate.spec.aggregates import Collect
from tidegate.spec.join import AsOf, JoinWindow, Rows, Within
from tidegate.spec.operator import Retention
from tidegate.spec.windows import Axis, Global, Hopping, Session, Tumbling
from tidegate.sql.intervals import ticks
from tidegate.sql.nodes import TableWindow
from tidegate.sql.plan import Table
from tidegate.sql.planner.checking import check
from tidegate.sql.planner.emission import joining, within_chain
from tidegate.sql.planner.grouping import Context, padded_bound
from tidegate.sql.planner.inputs import Columns, known_columns, opened, role_columns
from tidegate.sql.planner.ranking import ROW, collected, materialised
from tidegate.sql.planner.relation import (
    BOUNDS,
    END,
    START,
    TIME,
    Field,
    Relation,
    Role,
    United,
    column_of,
    columns_in,
    conjuncts,
    is_implied_time,
    physical,
)
from tidegate.sql.planner.scope import Scope
from tidegate.sql.planner.time_bounds import (
    Difference,
    comparisons,
    difference,
    is_finite,
    together,
)
from tidegate.sql.scalars import compile_condition
from tidegate.sql.statements import EmitClause

_HINT = (
    "a.ts BETWEEN b.ts - INTERVAL '1' HOUR AND b.ts, windows on both sides, OVER (RANGE ...), or"
    " EMIT CHANGES RETAIN INTERVAL '1' DAY behind the SELECT that joins"
)
LEFT, RIGHT = 0, 1
_MARKS = ("\0l", "\0r")


@dataclass
class _Conditions:
    """The conditions of a join, sorted by what they do."""

    equal: list[tuple[exp.Expr, exp.Expr]] = field(default_factory=list)
    bounds: set[Role] = field(default_factory=set)
    """The bounds of windows that are equal on both sides."""
    times: list[Difference] = field(default_factory=list)
    timed: list[exp.Expr] = field(default_factory=list)
    """The conditions that `times` stand for."""
    rest: list[exp.Expr] = field(default_factory=list)
    sides: tuple[list[exp.Expr], list[exp.Expr]] = field(default_factory=lambda: ([], []))
    """Conditions over one side alone, which filter it before."""


@dataclass(frozen=True)
class SubqueryCondition:
    """`IN (SELECT ...)` or `EXISTS (SELECT ...)`, or the opposite."""

    query: exp.Select
    value: exp.Expr | None
    negated: bool
    node: exp.Expr


def subquery_condition(condition: exp.Expr) -> SubqueryCondition | None:
    """A condition with a subquery; None of others."""
    negated = False
    node = condition
    while isinstance(node, exp.Not | exp.Paren):
        negated ^= isinstance(node, exp.Not)
        node = node.this
    if isinstance(node, exp.Exists):
        query = node.this.unnest() if isinstance(node.this, exp.Subquery) else node.this
        if isinstance(query, exp.Select):
            return SubqueryCondition(query, None, negated, condition)
    if isinstance(node, exp.In) and node.args.get("query") is not None:
        query = node.args["query"]
        query = query.unnest() if isinstance(query, exp.Subquery) else query
        if isinstance(query, exp.Select):
            return SubqueryCondition(query, node.this, negated, condition)
    return None


def beside(
    context: Context,
    node: exp.Expr,
    left: Relation,
    right: Relation,
    time: str,
    pairs: Sequence[tuple[exp.Expr, exp.Expr]],
    clause: EmitClause | None,
) -> Relation:
    """The rows of the left side beside the panes of the right that end with them.

    The fields are those of the left, then those of the right. Nulls of `pairs` are equal.
    """
    planner = JoinPlanner(context, node, clause, how="inner")
    planner.take(left, right)
    found = _Conditions()
    if pairs:
        found.equal.append((_struct([a for a, _ in pairs]), _struct([b for _, b in pairs])))
    return _Assembly(
        planner, (left, right), found, Within(0, 0), (time, TIME), shares=False
    ).relation()


def _struct(expressions: Sequence[exp.Expr]) -> exp.Struct:
    return exp.Struct(
        expressions=[
            exp.PropertyEQ(this=exp.to_identifier(f"_{number}"), expression=one.copy())
            for number, one in enumerate(expressions)
        ]
    )


class JoinPlanner:
    """Plans one join of two relations."""

    def __init__(
        self,
        context: Context,
        node: exp.Expr,
        clause: EmitClause | None,
        *,
        how: str | None = None,
    ) -> None:
        self.context, self.node, self.clause = context, node, clause
        self._uses_times = False
        self.how = how if how is not None else self._how()

    @classmethod
    def for_condition(
        cls, context: Context, found: SubqueryCondition, clause: EmitClause | None
    ) -> JoinPlanner:
        """The planner of a semi or anti join."""
        return cls(context, found.node, clause, how="anti" if found.negated else "semi")

    def _how(self) -> str:
        side = str(self.node.args.get("side") or "").lower()
        kind = str(self.node.args.get("kind") or "").lower()
        if kind in ("semi", "anti"):
            return kind
        return side or "inner"

    def take(self, left: Relation, right: Relation) -> None:
        """Take these sides, whose fields get marks."""
        self._sides = (left, right)
        self._fields = _marked((left, right))

    def error(self, why: str, hint: str = "", node: exp.Expr | None = None) -> SpecError:
        """An error at the join."""
        scope = self.context.scope()
        at = node if node is not None else self.node
        inner = at.args.get("on") if isinstance(at, exp.Join) else at
        return scope.error(inner or at, why, hint)

    # What joins

    def joined(
        self, left: Relation, right: Relation, where: Sequence[exp.Expr]
    ) -> tuple[Relation, list[exp.Expr]]:
        """The joined relation, and the conditions of WHERE that it does not use."""
        on = list(conjuncts(self.node.args.get("on")))
        on = [one for one in on if not (isinstance(one, exp.Boolean) and one.this)]
        on += conjuncts(self.node.args.get("match_condition"))
        on += self._using(left, right)
        rest: list[exp.Expr] = []
        if self.how == "inner":
            for one in where:
                usable = subquery_condition(one) is None and self._is_known(one, left, right)
                (on if usable else rest).append(one)
        else:
            rest = list(where)
        return self._planned(left, right, on), rest

    def matched(
        self,
        left: Relation,
        side_of: Callable[[exp.Expr], Relation],
        found: SubqueryCondition,
    ) -> Relation:
        """The rows of the left side with a partner in a subquery, or without."""
        query = found.query
        right = side_of(query)
        where = query.args.get("where")
        inner = conjuncts(where.this) if where is not None else ()
        on: list[exp.Expr] = [_qualified(one, right) for one in inner]
        if found.value is not None:
            if len(query.expressions) != 1 or isinstance(query.expressions[0], exp.Star):
                raise self.error("the query of IN has one column", "WHERE a IN (SELECT b FROM ...)")
            item = query.expressions[0]
            item = item.this if isinstance(item, exp.Alias) else item
            value = _qualified(found.value, left)
            on.append(exp.EQ(this=value, expression=_qualified(item, right)))
        return self._planned(left, right, on)

    def _is_known(self, condition: exp.Expr, left: Relation, right: Relation) -> bool:
        """Whether all columns of a condition belong to these sides, and some to the right."""
        both, other = self.context.scope(left, right), self.context.scope(right)
        columns = list(condition.find_all(exp.Column))
        try:
            return all(both.find(column) is not None for column in columns) and any(
                other.find(column) is not None for column in columns
            )
        except SpecError:
            return False

    def _using(self, left: Relation, right: Relation) -> list[exp.Expr]:
        names = [one.name for one in self.node.args.get("using") or []]
        if str(self.node.args.get("method") or "").upper() == "NATURAL":
            ours = {one.name for one in left.fields}
            names = [one.name for one in right.fields if one.name in ours]
        found: list[exp.Expr] = []
        for name in names:
            sides = [
                exp.column(
                    name,
                    table=next((one.qualifier for one in side.fields if one.name == name), None),
                )
                for side in (left, right)
            ]
            found.append(exp.EQ(this=sides[0], expression=sides[1]))
        return found

    # The plan

    def _planned(self, left: Relation, right: Relation, on: Sequence[exp.Expr]) -> Relation:
        sides = (left, right)
        try:
            return self._join(sides, self._sorted(sides, on))
        except SpecError as error:
            raise self.context.refused(
                self.node.args.get("on") or self.node, error, self.context.scope()
            ) from None

    def _sorted(self, sides: tuple[Relation, Relation], on: Sequence[exp.Expr]) -> _Conditions:
        """The conditions by kind; columns are marked with their side and number."""
        found = _Conditions()
        scope = self._marked_scope(sides)
        self._fields = _marked(sides)
        is_asof = isinstance(sides[RIGHT].window, exp.Version)
        for condition in on:
            resolved = scope.resolve(condition)
            if all(not isinstance(one.source, Table) or one.source.runs_here for one in sides):
                check(scope, Relation(United((), ()), ()), [(condition, resolved)])
            used = {name[:2] for name in columns_in(resolved)}
            if used <= {_MARKS[RIGHT]} and self.how in ("inner", "left", "semi", "anti") and used:
                found.sides[RIGHT].append(self._own(resolved))
            elif used <= {_MARKS[LEFT]} and self.how in ("inner", "right", "semi") and used:
                found.sides[LEFT].append(self._own(resolved))
            else:
                spans = resolved.find(exp.Interval) is not None
                for one in comparisons(resolved):
                    self._sort(one, found, takes_times=not is_asof, spans=spans)
        found.times = together(found.times)
        return found

    def _sort(
        self, condition: exp.Expr, found: _Conditions, *, takes_times: bool, spans: bool
    ) -> None:
        lefts = [mark for mark in self._fields if mark.startswith(_MARKS[LEFT])]
        pair = self._equal_pair(condition)
        if pair is not None:
            roles = [
                self._fields[name].role if name in self._fields else Role.PLAIN
                for name in map(column_of, pair)
            ]
            if roles[0] is roles[1] and roles[0] in BOUNDS:
                found.bounds.add(roles[0])
                found.equal.append(pair)
                return
            if not (roles[0] is roles[1] is Role.TIME):
                found.equal.append(pair)
                return
        bound = difference(condition, lefts) if takes_times else None
        if bound is not None and all(
            self._is_time(mark, spans=spans) for mark in (bound.left, bound.right)
        ):
            found.times.append(bound)
            found.timed.append(condition)
        elif pair is not None:
            found.equal.append(pair)
        else:
            found.rest.append(condition)

    def _is_time(self, mark: str, *, spans: bool) -> bool:
        """Whether a field is a time; `spans` is whether it is compared with an interval added."""
        one = self._fields[mark]
        side = self._sides[LEFT if mark.startswith(_MARKS[LEFT]) else RIGHT]
        return one.role in (Role.TIME, *BOUNDS) or is_implied_time(side, one, spans=spans)

    def _equal_pair(self, condition: exp.Expr) -> tuple[exp.Expr, exp.Expr] | None:
        """The left and the right expression of an equality."""
        if not isinstance(condition, exp.EQ):
            return None
        left, right = condition.left, condition.right
        used = [{name[:2] for name in columns_in(one)} for one in (left, right)]
        if used == [{_MARKS[RIGHT]}, {_MARKS[LEFT]}]:
            left, right = right, left
        elif used != [{_MARKS[LEFT]}, {_MARKS[RIGHT]}]:
            return None
        return left, right

    def _marked_scope(self, sides: tuple[Relation, Relation]) -> Scope:
        """A scope whose columns tell their side."""
        self._sides = sides
        marked = [
            dataclasses.replace(one, expression=physical(f"{_MARKS[side]}{number}"))
            for side in (LEFT, RIGHT)
            for number, one in enumerate(sides[side].fields)
        ]
        return Scope(self.context.text, tuple(marked))

    def _own(self, expression: exp.Expr) -> exp.Expr:
        """A marked expression over the physical columns of its side."""
        return expression.copy().transform(
            lambda node: (
                self._fields[node.name].expression.copy()
                if isinstance(node, exp.Column) and node.name in self._fields
                else node
            )
        )

    def _join(self, sides: tuple[Relation, Relation], found: _Conditions) -> Relation:
        sides = (
            self._filtered(sides[LEFT], found.sides[LEFT]),
            self._filtered(sides[RIGHT], found.sides[RIGHT]),
        )
        pending = [side.windowing for side in sides]
        shares = (
            pending[LEFT] is not None
            and pending[RIGHT] is not None
            and bool(found.bounds & {Role.START, Role.END})
        )
        if shares and pending[LEFT].window != pending[RIGHT].window:  # type: ignore[union-attr]
            raise self.error(
                "the sides of a window join have different windows",
                "the same function with the same sizes on both sides",
                pending[RIGHT].node,  # type: ignore[union-attr]
            )
        if not shares and (any(pending) or found.bounds):
            sides = (self._assigned(sides[LEFT]), self._assigned(sides[RIGHT]))
            found = self._sorted_again(sides, found)
        window, times = self._window(sides, found, shares=shares)
        if found.times and not self._uses_times:
            found.rest.extend(found.timed)
        return _Assembly(self, sides, found, window, times, shares=shares).relation()

    def _filtered(self, side: Relation, conditions: list[exp.Expr]) -> Relation:
        if side.windowing is None:
            return side.filtered(conditions)
        bounds = {START, END}
        plain = [one for one in conditions if not columns_in(one) & bounds]
        after = [one for one in conditions if columns_in(one) & bounds]
        windowing = dataclasses.replace(side.windowing, where=(*side.windowing.where, *after))
        return dataclasses.replace(side.filtered(plain), windowing=windowing)

    def _assigned(self, side: Relation) -> Relation:
        """The side with rows of its windows as panes, whose time is the end of their window."""
        clause = within_chain(self.clause)
        side = side.by_end(self.node)
        if side.windowing is not None:
            found = materialised(self.context, side, clause)
        elif isinstance(side.source, Joined) and side.has_windows:
            found = collected(side, [], Collect(ROW), clause, inherits=True)
        else:
            return side
        return dataclasses.replace(found, window=side.window)

    def _sorted_again(self, sides: tuple[Relation, Relation], found: _Conditions) -> _Conditions:
        """The same conditions, with the fields of sides whose windows are assigned."""
        self.take(*sides)
        return dataclasses.replace(found, sides=([], []))

    # Windows

    def _window(
        self, sides: tuple[Relation, Relation], found: _Conditions, *, shares: bool
    ) -> tuple[JoinWindow | Within, tuple[str | None, str | None]]:
        """The window of the join, and the time column of each side."""
        if shares:
            left, right = (side.windowing for side in sides)
            return left.window, (left.time, right.time)  # type: ignore[union-attr, return-value]
        over = [side.window for side in sides]
        if any(isinstance(one, TableWindow) for one in over):
            return self._over_window(sides, over)
        version = over[RIGHT]
        if isinstance(version, exp.Version):
            return self._system_time(sides, version)
        if str(self.node.args.get("method") or "").upper() == "ASOF":
            return self._as_of(found)
        if found.bounds & {Role.START, Role.END, Role.WINDOW_TIME} and not found.times:
            return Within(0, 0), (TIME, TIME)
        if found.times:
            return self._within(sides, found)
        if self.clause is not None and self.clause.retention != Retention():
            times = tuple(_main_time(side) for side in sides)
            if None in times:
                raise self.error("a join needs a time on both sides", "WATERMARK FOR ts AS ts")
            return Global(Axis.EVENT_TIME), times  # type: ignore[return-value]
        raise self.error("a join of two streams without time bounds keeps all rows", _HINT)

    def _within(
        self, sides: tuple[Relation, Relation], found: _Conditions
    ) -> tuple[Any, tuple[str | None, str | None]]:
        self._uses_times = True
        mains = [_main_time(side) for side in sides]
        shifted = []
        for one in found.times:
            (left, early), (right, earlier) = self._time_of(one.left), self._time_of(one.right)
            shifted.append(dataclasses.replace(one.shifted(early, earlier), left=left, right=right))
        bounds = [(one, one.left, one.right) for one in together(shifted)]
        chosen = dict(self.clause.options).get("times") if self.clause is not None else None
        for side in (LEFT, RIGHT):
            if chosen is not None:
                mains[side] = chosen[side]
            elif len({bound[1 + side] for bound in bounds}) == 1:
                mains[side] = bounds[0][1 + side]  # type: ignore[assignment]
        keeps = self.clause is not None and self.clause.retention != Retention()
        if not keeps and not any(is_finite(bound) for bound, _, _ in bounds):
            raise self.error("the time bounds of the join are open on one end", _HINT)
        window = tuple(
            bound.within(
                None if left == mains[LEFT] and chosen is None else left,
                None if right == mains[RIGHT] and chosen is None else right,
            )
            for bound, left, right in bounds
        )
        return (window[0] if len(window) == 1 else window), (mains[LEFT], mains[RIGHT])

    def _time_of(self, mark: str) -> tuple[str, int]:
        """The physical time column of a field, and by how much the field is earlier."""
        one = self._fields[mark]
        if one.role is Role.WINDOW_TIME:
            return END, 1_000
        side = self._sides[LEFT if mark.startswith(_MARKS[LEFT]) else RIGHT]
        if one.role is Role.START and isinstance(side.source, Panes):
            window = side.source.spec.window
            if isinstance(window, Tumbling | Hopping):
                # Both bounds of a window of one size are one time.
                return END, window.size
        column = one.column
        if column is None:
            raise self.error(f"`{one.name}` is computed, so that it has no watermark")
        return column, 0

    def _over_window(
        self, sides: tuple[Relation, Relation], over: Sequence[object]
    ) -> tuple[Any, tuple[str | None, str | None]]:
        """The windows of `OVER (ROWS n PRECEDING)` or `OVER (ORDER BY time RANGE ...)`."""
        found = [one if isinstance(one, TableWindow) else None for one in over]
        kinds = {one.args["kind"] for one in found if one is not None}
        times = [
            _main_time(side) if one is None else self._ordered_by(side, one)
            for side, one in zip(sides, found, strict=True)
        ]
        if "WITHIN" in kinds:
            return self._around(found[RIGHT], times)
        spans = [
            None if one is None or one.args["kind"] == "ROWS" else self._span(one) for one in found
        ]
        if "ROWS" in kinds:
            sizes = [
                None if one is None or one.args["kind"] != "ROWS" else self._count(one)
                for one in found
            ]
            return self._last_rows(sizes, spans), (times[LEFT], times[RIGHT])
        named = [one for one in times if one is not None]
        for number in (LEFT, RIGHT):
            # A table without a watermark has its time under the same name.
            times[number] = times[number] or _named_column(sides[number], named[0])
        # A row of one side meets the rows of the other that are at most as old as its window.
        before = 0 if spans[LEFT] is None else spans[LEFT]
        after = 0 if spans[RIGHT] is None else spans[RIGHT]
        return Within(before, after), (times[LEFT], times[RIGHT])

    def _around(
        self, window: TableWindow | None, times: Sequence[str | None]
    ) -> tuple[Within, tuple[str | None, str | None]]:
        """`a JOIN b WITHIN (5 MINUTES, 1 MINUTE)` of ksqlDB: how far b may be off."""
        if window is None or window.args["kind"] != "WITHIN" or None in times:
            raise self.error(
                "WITHIN stands behind the right table of a join of tables with a time each",
                "a JOIN b WITHIN 5 MINUTES ON a.id = b.id",
            )
        earlier, later = ticks(window.args["size"]), ticks(window.args["after"])
        grace = window.args.get("grace")
        if grace is not None:
            clause = EmitClause() if self.clause is None else self.clause
            self.clause = dataclasses.replace(clause, lateness=ticks(grace))
        return Within(later, earlier), (times[LEFT], times[RIGHT])

    def _last_rows(self, sizes: Sequence[int | None], spans: Sequence[int | None]) -> Rows:
        try:
            return Rows(*sizes, *spans)
        except SpecError as error:
            raise self.error(str(error)) from None

    def _count(self, window: TableWindow) -> int | None:
        size = window.args["size"]
        if isinstance(size, exp.Var):
            return None
        if isinstance(size, exp.Literal) and size.is_int:
            return int(size.name)
        raise self.error("a number of rows was expected", "OVER (ROWS 3 PRECEDING)", size)

    def _span(self, window: TableWindow) -> int:
        try:
            return ticks(window.args["size"])
        except SpecError as error:
            raise self.error(
                str(error).split(". Hint", maxsplit=1)[0],
                "OVER (ORDER BY ts RANGE INTERVAL '2' MINUTE PRECEDING)",
                window,
            ) from None

    def _ordered_by(self, side: Relation, window: TableWindow) -> str | None:
        order = window.args.get("order")
        if order is None:
            return _main_time(side)
        scope = self.context.scope(side)
        one = scope.field(order.expressions[0].this)
        if one.column is None:
            raise self.error("a window of time is ordered by a time column", "", window)
        return one.column

    def _system_time(
        self, sides: tuple[Relation, Relation], version: exp.Version
    ) -> tuple[Any, tuple[str | None, str | None]]:
        scope = self.context.scope(sides[LEFT])
        node = version.expression
        one = scope.field(node) if isinstance(node, exp.Column) else None
        if one is None or one.role is Role.PROCTIME:
            raise self.error(
                "an as-of join takes the event time of the left table",
                "FOR SYSTEM_TIME AS OF orders.ts; a lookup by the clock is an async map",
                node,
            )
        right = _main_time(sides[RIGHT])
        left = TIME if one.role is Role.WINDOW_TIME else one.column
        if left is None or right is None:
            raise self.error("an as-of join needs a time on both sides", "WATERMARK FOR ts AS ts")
        return AsOf(), (left, right)

    def _as_of(self, found: _Conditions) -> tuple[Any, tuple[str | None, str | None]]:
        self._uses_times = True
        if len(found.times) != 1 or found.times[0].low is None:
            raise self.error(
                "an as-of join compares one time of both sides",
                "ASOF JOIN prices AS p ON o.item = p.item AND o.ts >= p.ts",
            )
        bound = found.times[0]
        if bound.low != 0:
            raise self.error("an as-of join compares the times as they are", "o.ts >= p.ts")
        tolerance = bound.high
        if tolerance is not None and bound.high_open:
            tolerance -= 1
        (left, _), (right, _) = self._time_of(bound.left), self._time_of(bound.right)
        return AsOf(tolerance, bound.low_open), (left, right)


class _Assembly:
    """The columns of both sides, the operator, and the fields of its output."""

    def __init__(
        self,
        planner: JoinPlanner,
        sides: tuple[Relation, Relation],
        found: _Conditions,
        window: Any,
        times: tuple[str | None, str | None],
        *,
        shares: bool,
    ) -> None:
        self.planner, self.sides, self.found = planner, sides, found
        self.window, self.times, self.shares = window, times, shares
        self.how = planner.how
        roles = [_side_roles(side) for side in sides]
        left = Columns(sides[LEFT], taken=roles[RIGHT])
        self.columns = (
            left,
            Columns(sides[RIGHT], taken={*roles[LEFT], *known_columns(sides[LEFT])}),
        )
        self.names: list[dict[str, str]] = [{}, {}]
        """By side, the output column of each marked field."""
        self.present: dict[int, str] = {}
        """By side whose rows may be missing, an output column that is null without them."""
        self.ends: str | None = None
        """The output column with the last instant of the window of joined panes."""

    def relation(self) -> Relation:
        """The relation of the joined rows."""
        pairs = self._equal_fields()
        self._name_fields(dict(pairs))
        where = self._condition()
        streams = [
            opened(side, columns.items(), self._key(number), time, exact=True)
            for number, (side, columns, time) in enumerate(
                zip(self.sides, self.columns, self.times, strict=True)
            )
        ]
        joined = join(
            streams[LEFT],
            streams[RIGHT],
            self.window,
            on=dict(pairs),
            how=self.how,
            where=where,
        )
        joined = joining(joined, self.planner.clause).checked()
        fields = tuple(self._output())
        times = [one.column for one in fields if one.role is Role.TIME]
        time = times[0] if times else TIME if joined.spec.has_windows else None
        return Relation(joined, fields, ends=self.ends, time=time)

    def _key(self, side: int) -> list[str] | None:
        windowing = self.sides[side].windowing
        if windowing is None or not isinstance(self.window, Session):
            return None
        if windowing.partition is None:
            # Without a key of their own, sessions go by all equal fields.
            return None
        columns = self.columns[side]
        return [columns.name(one, role="_k", shares=True) for one in windowing.partition]

    def _equal_fields(self) -> list[tuple[str, str]]:
        pairs: list[tuple[str, str]] = []
        for left, right in self.found.equal:
            marks = [column_of(one) for one in (left, right)]
            roles = {self.planner._fields[mark].role for mark in marks if mark}
            if self.shares and roles & set(BOUNDS):
                continue
            pair = tuple(
                columns.name(self.planner._own(one), role=f"_{'lr'[number]}", shares=True)  # noqa: SLF001
                for number, (columns, one) in enumerate(
                    zip(self.columns, (left, right), strict=True)
                )
            )
            if pair in pairs:
                continue
            if any(pair[side] == other[side] for other in pairs for side in (LEFT, RIGHT)):
                self.found.rest.append(exp.EQ(this=left.copy(), expression=right.copy()))
                continue
            pairs.append((pair[LEFT], pair[RIGHT]))
        return pairs

    def _name_fields(self, pairs: dict[str, str]) -> None:
        """The output column of every field of both sides."""
        by_right = {right: left for left, right in pairs.items()}
        pads = [self._pads(side) for side in (LEFT, RIGHT)]
        for mark, one in self.planner._fields.items():
            side = LEFT if mark.startswith(_MARKS[LEFT]) else RIGHT
            if self.shares and one.role in BOUNDS:
                continue
            if side == RIGHT and self.how in ("semi", "anti") and not self._is_used(mark):
                continue
            columns = self.columns[side]
            known = pairs if side == LEFT else by_right
            role = f"_{'lr'[side]}"
            name = columns.name(one.expression, role=role, shares=one.column in known)
            is_equal = name in known
            if is_equal and pads[side]:
                # Equal fields are in the output once; padding must not show those of the other.
                name = columns.name(one.expression, role=f"_{'lr'[side]}", copies=True)
            elif is_equal and side == RIGHT:
                name = by_right[name]
            self.names[side][mark] = name
        for side, time in enumerate(self.times):
            if self.shares and pads[side] and time is not None:
                self.present[side] = self._copied(side, time)
        if not self.shares and self.found.bounds and self.window == Within(0, 0):
            whole = next((side for side in (LEFT, RIGHT) if not pads[side]), None)
            self.ends = None if whole is None else self._copied(whole, TIME)

    def _copied(self, side: int, column: str) -> str:
        """The output column with a column of a side, under a name of its own."""
        return self.columns[side].name(physical(column), role=f"_{'lr'[side]}", copies=True)

    def _pads(self, side: int) -> bool:
        """Whether rows of the output may have nulls in place of this side."""
        return self.how in (("left", "full") if side == RIGHT else ("right", "full"))

    def _is_used(self, mark: str) -> bool:
        return any(mark in columns_in(one) for one in self.found.rest)

    def _condition(self) -> Any:
        rest = self.found.rest
        if not rest:
            return None
        together = exp.and_(*(self._shown(one) for one in rest), copy=False)
        return compile_condition(together)

    def _shown(self, expression: exp.Expr) -> exp.Expr:
        """A marked expression over the columns of the output."""

        def swapped(node: exp.Expr) -> exp.Expr:
            if not isinstance(node, exp.Column):
                return node
            for names in self.names:
                if node.name in names:
                    return physical(names[node.name])
            one = self.planner._fields.get(node.name)
            return node if one is None else one.expression.copy()

        return expression.copy().transform(swapped)

    def _output(self) -> list[Field]:
        found = []
        for mark, one in self.planner._fields.items():
            side = LEFT if mark.startswith(_MARKS[LEFT]) else RIGHT
            if side == RIGHT and self.how in ("semi", "anti"):
                continue
            if self.shares and one.role in BOUNDS:
                present = self.present.get(side)
                found.append(
                    one
                    if present is None
                    else dataclasses.replace(
                        one, expression=padded_bound(one.role, present), role=Role.PLAIN
                    )
                )
                continue
            expression = physical(self.names[side][mark])
            role: Role = one.role if one.role in (Role.TIME, Role.PROCTIME) else Role.PLAIN
            if role is Role.TIME and one.column != self.times[side]:
                role = Role.PLAIN
            if self.ends is not None and one.role is Role.END and not self._pads(side):
                role = Role.END
            found.append(dataclasses.replace(one, expression=expression, role=role))
        return found


def _marked(sides: tuple[Relation, Relation]) -> dict[str, Field]:
    return {
        f"{_MARKS[side]}{number}": one
        for side in (LEFT, RIGHT)
        for number, one in enumerate(sides[side].fields)
    }


def _qualified(expression: exp.Expr, side: Relation) -> exp.Expr:
    """An expression whose columns without a table are those of a side, if it has them."""

    def named(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and not node.table:
            fields = [one for one in side.fields if one.name.lower() == node.name.lower()]
            if fields and fields[0].qualifier is not None:
                node.set("table", exp.to_identifier(fields[0].qualifier))
        return node

    return expression.copy().transform(named)


def _main_time(side: Relation) -> str | None:
    """The time column of a side that the query does not name."""
    if isinstance(side.source, Panes):
        return TIME
    times = [one.column for one in side.fields if one.role is Role.TIME]
    if times:
        return times[0]
    if isinstance(side.source, Table):
        implied = [one.column for one in side.fields if is_implied_time(side, one, spans=False)]
        return implied[0] if len(implied) == 1 else side.source.input.time
    return None


def _named_column(side: Relation, name: str) -> str | None:
    return next((one.column for one in side.fields if one.name == name), None)


def _side_roles(side: Relation) -> set[str]:
    if isinstance(side.source, Table):
        return set(role_columns(side.source.input))
    return set()
