"""Grouped queries: windows, keys, aggregates, and the expressions around them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp
from sqlglot.errors import ErrorLevel

from tidegate.api.streams import Panes
from tidegate.errors import SpecError
from tidegate.spec.aggregates import Aggregate, Count
from tidegate.spec.windows import Axis, Session
from tidegate.sql.intervals import ticks
from tidegate.sql.nodes import WindowCall
from tidegate.sql.plan import Catalog
from tidegate.sql.planner.aggregates import AggregateReader
from tidegate.sql.planner.checking import check
from tidegate.sql.planner.emission import emitting
from tidegate.sql.planner.inputs import Columns, in_windows
from tidegate.sql.planner.relation import (
    BOUNDS,
    END,
    SPARK_BOUNDS,
    START,
    Field,
    Relation,
    Role,
    Windowing,
    conjuncts,
    last_instant,
    physical,
)
from tidegate.sql.planner.scope import BOUND_NAMES, WINDOW_TIME, Scope
from tidegate.sql.planner.windows import (
    arguments_of,
    gap_in_microseconds,
    spark_window,
    window_of,
)
from tidegate.sql.positions import Place
from tidegate.sql.statements import EmitClause

_BOUND_CALLS = {"_START": Role.START, "_END": Role.END, "_ROWTIME": Role.WINDOW_TIME}
_LEGACY = ("TUMBLE", "HOP", "SESSION", "CUMULATE")
SPARK_WINDOWS = ("window", "session_window")


@dataclass(frozen=True)
class Context:
    """What every part of the planner needs: the place of the query and the catalog."""

    place: Place
    catalog: Catalog

    @property
    def text(self) -> str:
        """The text of the script."""
        return self.place.text

    def scope(self, *relations: Relation) -> Scope:
        """The fields of relations side by side."""
        return Scope.of(self.place, *relations)

    def refused(self, node: exp.Expr | None, error: SpecError, scope: Scope) -> SpecError:
        """An error of the API at a node of the text."""
        if hasattr(error, "line"):
            return error
        why, _, hint = str(error).partition(". Hint: ")
        return scope.error(node, why.rstrip("."), hint)


def bound(role: Role) -> exp.Expr:
    """The expression of a bound of a window over the columns of panes."""
    if role is Role.START:
        return physical(START)
    if role is Role.END:
        return physical(END)
    return last_instant()


def padded_bound(role: Role, present: str) -> exp.Expr:
    """A bound of a window for rows in which a column is present, else null."""
    known = exp.not_(exp.Is(this=physical(present), expression=exp.Null()))
    return exp.Case(ifs=[exp.If(this=known, true=bound(role))])


def coalesced_bound(expression: exp.Expr) -> Role | None:
    """The bound that `COALESCE(L.window_start, R.window_start)` of an outer join is."""
    if not isinstance(expression, exp.Coalesce):
        return None
    texts = [one.sql() for one in (expression.this, *expression.expressions)]
    for role in BOUNDS:
        padded = [
            padded_bound(role, column.name).sql()
            for part in (expression.this, *expression.expressions)
            for column in part.find_all(exp.Column)
        ]
        whole = bound(role).sql()
        if all(text in (whole, *padded) for text in texts) and (
            whole in texts or len(set(texts)) > 1
        ):
            return role
    return None


def bound_fields(qualifier: str | None = None) -> tuple[Field, ...]:
    """The columns that windowing functions add."""
    return tuple(Field(str(role), bound(role), role, qualifier) for role in BOUNDS)


class Grouping:
    """One grouped query over a relation."""

    def __init__(
        self,
        context: Context,
        relation: Relation,
        select: exp.Select,
        items: Sequence[exp.Expr],
        clause: EmitClause | None,
    ) -> None:
        """`items` are the expressions of SELECT, with their aliases."""
        self.context, self.select, self.items, self.clause = context, select, items, clause
        self.windowing = relation.windowing
        self.inherits = False
        self.relation = relation
        self.scope = context.scope(relation)
        self.keys: dict[str, str] = {}
        """The physical names of keys, by the text of their expressions."""
        self.bounds_grouped: set[Role] = set()
        self.aggregates: dict[str, Aggregate] = {}
        self._after: dict[str, exp.Expr] = {}
        self.aliases = {one.alias: one.this for one in items if isinstance(one, exp.Alias)}

    def planned(self) -> Relation:
        """The relation of the panes, with the fields of SELECT, after HAVING."""
        groups = self._groups()
        self._settle_window(groups)
        self.columns = Columns(self.relation)
        self.reader = AggregateReader(
            self.scope,
            self.context.catalog.aggregates,
            self.columns.name,
            self.relation,
        )
        self._name_keys(groups)
        fields = self._fields()
        having = self._having(fields)
        panes = self._panes()
        where = [*(self.windowing.where if self.windowing else ()), *having]
        found = Relation(panes, tuple(fields), tuple(where))
        items = [*self.items, *conjuncts(getattr(self.select.args.get("having"), "this", None))]
        shown = [*(one.expression for one in fields), *having]
        check(self.scope, found, list(zip(items, shown, strict=True)))
        return found

    # Groups

    def _groups(self) -> list[tuple[exp.Expr, str | None]]:
        """The group expressions and the alias of each; windowing functions are taken out."""
        group = self.select.args.get("group")
        found: list[tuple[exp.Expr, str | None]] = []
        if self.select.args.get("distinct") and group is None:
            found = [(_unaliased(one), one.alias or None) for one in self.items]
        if group is not None:
            for name in ("all", "totals"):
                if group.args.get(name):
                    raise self.scope.error(
                        group,
                        f"{name.replace('_', ' ').upper()} is not supported",
                        "write one query for each grouping, and UNION ALL",
                    )
            found = [self._group(one) for one in group.expressions]
        clause = self.select.args.get("group_window")
        if clause is not None:
            found.append((clause, None))
        rest = []
        for expression, alias in found:
            window = self._group_window(expression)
            if window is None:
                rest.append((expression, alias))
            elif self.windowing is not None and self.windowing.is_group:
                raise self.scope.error(expression, "the query has two windows")
            elif self.windowing is not None:
                raise self.scope.error(
                    expression, "the query has a windowing function in FROM and one in GROUP BY"
                )
            else:
                self.windowing = window
        return rest

    def _group(self, node: exp.Expr) -> tuple[exp.Expr, str | None]:
        """A group expression; positions and aliases stand for select items."""
        if isinstance(node, exp.Literal) and node.is_int:
            number = int(node.name)
            if not 1 <= number <= len(self.items):
                raise self.scope.error(
                    node, f"there is no column {number} in SELECT, it has {len(self.items)}"
                )
            item = self.items[number - 1]
            return _unaliased(item), item.alias or None
        if isinstance(node, exp.Column) and not node.table and self.scope.find(node) is None:
            for name, expression in self.aliases.items():
                if name.lower() == node.name.lower():
                    return expression, name
        for item in self.items:
            if isinstance(item, exp.Alias) and item.this == node:
                return node, item.alias
        return node, None

    def _group_window(self, node: exp.Expr) -> Windowing | None:
        """The windowing of a function in GROUP BY; None of other expressions."""
        if isinstance(node, WindowCall):
            if node.name not in _LEGACY:
                raise self.scope.error(node, f"{node.name} stands in FROM, not in GROUP BY")
            given = arguments_of(node, self.scope, table=False)
            field = self._main_time(node) if given.time is None else self._time_field(given.time)
            is_clock = field.role is Role.PROCTIME
            window = window_of(given, is_clock=is_clock)
            time = None if is_clock else field.column
            return Windowing(window, time, node, is_group=True)
        name, arguments = _call(node)
        if name.lower() in SPARK_WINDOWS and arguments:
            field = self._time_field(arguments[0])
            spark = spark_window(node, name.lower(), arguments, self.scope)
            if field.role is Role.PROCTIME:
                spark = dataclasses.replace(spark, axis=Axis.CLOCK)  # type: ignore[type-var]
            time = None if field.role is Role.PROCTIME else field.column
            gap = None
            if isinstance(spark, Session) and spark.gap is None:
                gap = gap_in_microseconds(self.scope, arguments[1])
            return Windowing(spark, time, node, is_group=True, gap=gap)
        return None

    def _main_time(self, node: WindowCall) -> Field:
        """The time of a window that names none, as `WINDOW TUMBLING (...)`."""
        times = [one for one in self.relation.fields if one.role is Role.TIME]
        if node is not self.select.args.get("group_window") or not times:
            raise self.scope.error(node, "a window needs a time", f"{node.name}(ts, ...)")
        return times[0]

    def _time_field(self, node: exp.Expr) -> Field:
        return time_field(self.scope, node)

    def _settle_window(self, groups: list[tuple[exp.Expr, str | None]]) -> None:
        """Take the bounds of windows out of the groups, and decide which window it is."""
        for expression, alias in list(groups):
            role = self._bound_role(expression)
            if role is not None or self._is_spark_window(expression):
                self.bounds_grouped |= {Role.START, Role.END} if role is None else {role}
                groups.remove((expression, alias))
        if self.windowing is not None:
            if not self.windowing.is_group and not self.bounds_grouped & {Role.START, Role.END}:
                raise self.scope.error(
                    self.select.args.get("group") or self.windowing.node,
                    "a windowed query is grouped by its windows",
                    "GROUP BY window_start, window_end",
                )
            return
        if self.bounds_grouped:
            self.inherits = True
        elif self.clause is None:
            raise self.scope.error(
                self.select.args.get("group") or self.select,
                "a group over a stream without a window never ends, and has no EMIT",
                "group by a window: FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1'"
                " MINUTE)) GROUP BY window_start, window_end; or say when it emits: EMIT CHANGES,"
                " or EMIT FINAL at the end of tables that end",
            )

    def _bound_role(self, node: exp.Expr) -> Role | None:
        """Whether an expression is a bound of the window, and which one."""
        if isinstance(node, exp.Column):
            nested = self._spark_bound(node)
            if nested is not None:
                return nested
            if self._is_spark_window(node):
                return None
            found = self.scope.find(node)
            if found is not None:
                return found.role if found.role in BOUNDS else None
            of_clause = {**BOUND_NAMES, START: Role.START, END: Role.END}
            is_clause = self.select.args.get("group_window") is not None and not node.table
            return of_clause.get(node.name.lower()) if is_clause else None
        if isinstance(node, exp.Dot) and self._is_spark_window(node.this):
            return SPARK_BOUNDS.get(node.expression.name.lower())
        name, arguments = _call(node)
        if name.upper() == WINDOW_TIME and len(arguments) == 1:
            return Role.WINDOW_TIME if self._is_spark_window(arguments[0]) else None
        for suffix, role in _BOUND_CALLS.items():
            kind = name.upper().removesuffix(suffix)
            if kind != name.upper() and kind in _LEGACY:
                self._check_same(node, kind, arguments)
                return role
        return None

    def _check_same(self, node: exp.Expr, kind: str, arguments: Sequence[exp.Expr]) -> None:
        """Refuse `TUMBLE_START(...)` with other arguments than those of the window."""
        if self.windowing is None:
            return
        call = WindowCall(this=kind, expressions=[one.copy() for one in arguments])
        found = self._group_window(call)
        if found is None or found.window != self.windowing.window:
            raise self.scope.error(
                node, "the query has no window with these arguments", "those of GROUP BY"
            )

    def _is_spark_window(self, node: exp.Expr) -> bool:
        """Whether an expression is the column `window` of Spark, or its function."""
        windowing = self.windowing
        if isinstance(node, exp.Column):
            found = self.scope.find(node)
            if found is not None:
                return found.role is Role.WINDOW
        if windowing is None or isinstance(windowing.node, WindowCall):
            return False
        if isinstance(node, exp.Column):
            return node.name.lower() == _call(windowing.node)[0].lower() and not node.table
        return node == windowing.node

    def _spark_bound(self, column: exp.Column) -> Role | None:
        """`window.start` and `window.end` of Spark."""
        is_spark = self.windowing is not None and not isinstance(self.windowing.node, WindowCall)
        if not is_spark or column.table.lower() not in SPARK_WINDOWS:
            return None
        return SPARK_BOUNDS.get(column.name.lower())

    def _name_keys(self, groups: list[tuple[exp.Expr, str | None]]) -> None:
        self._partition_first()
        for expression, alias in groups:
            if self.reader.is_aggregate(expression):
                raise self.scope.error(expression, "an aggregate cannot be grouped by")
            resolved = self.scope.resolve(expression)
            if isinstance(resolved, exp.Literal):
                continue
            check(self.scope, self.relation, [(expression, resolved)])
            name = self.columns.name(resolved, alias, role="_k")
            if self._is_reserved(name):
                name = self.columns.name(resolved, role="_k", copies=True)
            self.keys[_text(resolved)] = name

    def _partition_first(self) -> None:
        """Check that sessions that go by other columns than the groups are not meant."""

    def _is_reserved(self, name: str) -> bool:
        from tidegate.spec.operator import RESERVED

        return name in RESERVED

    # Expressions over panes

    def _fields(self) -> list[Field]:
        taken: list[Field] = []
        for number, item in enumerate(self.items):
            node, alias = _unaliased(item), item.alias or None
            if node.find(exp.Window):
                raise self.scope.error(
                    node,
                    "OVER and ROW_NUMBER read rows, and this query has groups",
                    "group in a subquery: SELECT ... OVER (...) FROM (SELECT ... GROUP BY ...)",
                )
            wanted = alias if self.reader.is_aggregate(node) else None
            expression = self._over_panes(node, wanted)
            role = self._bound_role(node) or (
                Role.WINDOW if self._is_spark_window(node) else Role.PLAIN
            )
            name = alias or _default_name(node, number)
            taken.append(Field(name, expression, role))
        return taken

    def _having(self, fields: Sequence[Field]) -> list[exp.Expr]:
        having = self.select.args.get("having")
        if having is None:
            return []
        aliases = {one.name.lower(): one.expression for one in fields}
        return [self._over_panes(condition, None, aliases) for condition in conjuncts(having.this)]

    def _over_panes(
        self, node: exp.Expr, wanted: str | None, aliases: Mapping[str, exp.Expr] | None = None
    ) -> exp.Expr:
        """An expression of SELECT or HAVING over the columns of the panes."""

        def take(part: exp.Expr) -> exp.Expr | None:
            if self.reader.is_aggregate(part):
                return self._aggregate(part, wanted if part is node else None)
            role = self._bound_role(part)
            if role is Role.WINDOW_TIME and _call(part)[0].upper() == WINDOW_TIME:
                return last_instant("MICROSECOND")
            if role is not None:
                return bound(role)
            if self._is_spark_window(part):
                return _spark_struct()
            if isinstance(part, exp.Literal | exp.DataType | exp.Identifier | exp.Interval):
                return None
            return self._key(part, aliases or {})

        return self.scope.resolve(node, take)

    def _key(self, part: exp.Expr, aliases: Mapping[str, exp.Expr]) -> exp.Expr | None:
        """The key that a part of an expression is; an error for a column that is none."""
        if any(self.reader.is_aggregate(inner) for inner in part.walk()):
            return None
        is_leaf = isinstance(part, exp.Column)
        if is_leaf and not self._is_known(part) and part.name.lower() in aliases:
            return aliases[part.name.lower()].copy()
        if not is_leaf and any(self._bound_role(inner) for inner in part.find_all(exp.Expr)):
            return None
        if not is_leaf and not all(map(self._is_found, part.find_all(exp.Column))):
            return None
        resolved = self.scope.resolve(part)
        name = self.keys.get(_text(resolved))
        if name is not None:
            return physical(name)
        if is_leaf:
            if part.name.lower() in aliases:
                return aliases[part.name.lower()].copy()
            raise self.scope.error(
                part,
                f"the column `{part.name}` is neither grouped by nor in an aggregate",
                f"add it to GROUP BY, or write LAST_VALUE({part.name})",
            )
        return None

    def _is_found(self, column: exp.Column) -> bool:
        return self.scope.is_open or bool(column.table) or self._is_known(column)

    def _is_known(self, column: exp.Expr) -> bool:
        return isinstance(column, exp.Column) and self.scope.find(column) is not None

    def _aggregate(self, node: exp.Expr, wanted: str | None) -> exp.Expr:
        # Two names of one aggregate are two columns.
        text = f"{_text(node)} AS {wanted}"
        if text not in self._after:
            found = self.reader.read(node)
            same = [name for name, one in self.aggregates.items() if one == found.aggregate]
            if same and wanted is None:
                name = same[0]
            else:
                taken = {*self.keys.values(), *self.aggregates}
                name = self.columns.output(wanted, taken, "_a")
                self.aggregates[name] = found.aggregate
            value = physical(name)
            self._after[text] = value if found.after is None else found.after(value)
        return self._after[text].copy()

    # The operator

    def _panes(self) -> Panes:
        node = self.windowing.node if self.windowing is not None else self.select.args.get("group")
        if not self.aggregates:
            self.aggregates[self.columns.output(None, self.keys.values(), "_n")] = Count()
        key = list(dict.fromkeys(self.keys.values()))
        try:
            relation = dataclasses.replace(self.relation, windowing=self.windowing)
            windowed = in_windows(relation, self.columns, key, inherits=self.inherits)
            return emitting(windowed, self._emit()).aggregate(**self.aggregates)
        except SpecError as error:
            raise self.context.refused(node or self.select, error, self.scope) from None

    def _emit(self) -> EmitClause | None:
        """The clause of the query, with the grace period of its window."""
        window = self.select.args.get("group_window")
        grace = None if window is None else window.args.get("grace")
        if grace is None:
            return self.clause
        clause = EmitClause() if self.clause is None else self.clause
        return dataclasses.replace(clause, lateness=ticks(grace))


def time_field(scope: Scope, node: exp.Expr) -> Field:
    """The field of the time of a window; an error for other columns."""
    if not isinstance(node, exp.Column):
        name, _ = _call(node)
        if name.upper() == "PROCTIME":
            return Field("proctime", node, Role.PROCTIME)
        instant = scope.last_instant(node)
        if instant is not None:
            return instant
        raise scope.error(
            node, "the time of a window is a column", "compute it in CREATE TABLE, with a WATERMARK"
        )
    found = scope.field(node)
    if found.role is Role.WINDOW:
        return dataclasses.replace(found, role=Role.WINDOW_TIME)
    if found.role not in (Role.TIME, Role.PROCTIME, Role.WINDOW_TIME, *BOUNDS) and (
        found.column is None
    ):
        raise scope.error(
            node,
            f"`{found.name}` is computed in the query, so that it has no watermark",
            "compute it in CREATE TABLE: ts AS TO_TIMESTAMP(x), WATERMARK FOR ts AS ts",
        )
    return found


def _spark_struct() -> exp.Struct:
    """The column `window` of Spark."""
    return exp.Struct(
        expressions=[
            exp.PropertyEQ(this=exp.to_identifier(name), expression=bound(role))
            for name, role in SPARK_BOUNDS.items()
        ]
    )


def _call(node: exp.Expr) -> tuple[str, list[Any]]:
    if isinstance(node, exp.Anonymous):
        return node.name, list(node.expressions)
    return "", []


def _unaliased(node: exp.Expr) -> exp.Expr:
    return node.this if isinstance(node, exp.Alias) else node


def _default_name(node: exp.Expr, number: int) -> str:
    if isinstance(node, exp.Column | exp.Dot):
        return node.name if isinstance(node, exp.Column) else node.expression.name
    return f"EXPR${number}"


def _text(node: exp.Expr) -> str:
    return node.sql(dialect="spark", unsupported_level=ErrorLevel.IGNORE)
