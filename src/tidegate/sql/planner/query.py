"""The planner: from a query and a catalog to pipelines of the API."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence

import pyarrow as pa
from sqlglot import exp

from tidegate.api.joins import Joined
from tidegate.api.streams import Panes, Stream
from tidegate.errors import SpecError
from tidegate.spec.windows import Axis, Window
from tidegate.sql.nodes import Descriptor, TableArgument, TableWindow, WindowCall, local_name
from tidegate.sql.plan import Branch, Catalog, QueryPlan, Table, TableScan, lookup
from tidegate.sql.planner.aggregates import has_aggregate
from tidegate.sql.planner.checking import check, check_conditions
from tidegate.sql.planner.emission import merged, within_chain
from tidegate.sql.planner.grouping import (
    SPARK_WINDOWS,
    Context,
    Grouping,
    bound,
    bound_fields,
    coalesced_bound,
    time_field,
)
from tidegate.sql.planner.grouping_sets import has_sets, with_sets
from tidegate.sql.planner.joins import JoinPlanner, subquery_condition
from tidegate.sql.planner.over import over_relation, settled
from tidegate.sql.planner.ranking import bounds_of, materialised, rank_limit, ranked
from tidegate.sql.planner.refusals import lone_window, refuse_calls, refuse_clauses
from tidegate.sql.planner.relation import (
    BOUNDS,
    PENDING,
    TIME,
    Field,
    Merged,
    Relation,
    Role,
    United,
    Windowing,
    columns_in,
    conjuncts,
    physical,
)
from tidegate.sql.planner.scope import Scope
from tidegate.sql.planner.tables import late_columns, table_relation
from tidegate.sql.planner.windows import arguments_of, table_of, usage, window_of
from tidegate.sql.statements import EmitClause, Query


def plan_query(query: Query, catalog: Catalog) -> QueryPlan:
    """The plan of a query. Raises `SqlError` for what is not possible."""
    planner = _Planner(Context(query.place, catalog))
    try:
        relation = planner.query(query.tree, None)
        return planner.finished(relation)
    except RecursionError:
        raise query.place.error("the query is nested too deep") from None
    except (AttributeError, IndexError, KeyError) as error:
        # The parser of sqlglot accepts calls without their arguments.
        raise query.place.error(
            f"an expression of the query is incomplete ({type(error).__name__})",
            "check the arguments of the functions",
        ) from error


class _Planner:
    """Plans one statement; `views` are the common table expressions in scope."""

    def __init__(
        self,
        context: Context,
        views: Mapping[str, Relation] | None = None,
        names: tuple[str, ...] = (),
    ) -> None:
        self.context, self.views, self.names = context, dict(views or {}), names

    # Queries

    def query(self, tree: exp.Expr, outer: EmitClause | None) -> Relation:
        """The relation of a query; `outer` is the EMIT of the query around it."""
        if isinstance(tree, exp.Subquery):
            self._refuse_modifiers(tree)
            own = _clause_of(tree)
            return self.query(tree.this, merged(own, outer))
        with_ = tree.args.get("with_")
        planner = self if with_ is None else self._with(with_, outer)
        if isinstance(tree, exp.Union):
            return planner.union(tree, outer)
        if not isinstance(tree, exp.Select):
            name = type(tree).__name__.upper()
            place = tree.args.get("expression") or tree
            raise self.error(place, f"{name} is not supported over streams", "UNION ALL is")
        return planner.select(tree, outer)

    def _with(self, with_: exp.Expr, outer: EmitClause | None) -> _Planner:
        if with_.args.get("recursive"):
            raise self.error(with_, "WITH RECURSIVE is not supported")
        planner = _Planner(self.context, self.views, self.names)
        for cte in with_.expressions:
            found = planner.query(cte.this, within_chain(outer))
            alias = cte.args.get("alias")
            names = [one.name for one in alias.columns] if alias is not None else []
            planner.views[cte.alias] = found.named(None, names)
        return planner

    def union(self, tree: exp.Union, outer: EmitClause | None) -> Relation:
        """The rows of several queries one after another."""
        self._refuse_modifiers(tree)
        if tree.args.get("distinct"):
            raise self.error(
                tree.expression, "UNION removes duplicates of all time", "write UNION ALL"
            )
        clause = merged(_clause_of(tree), outer)
        return self._united((tree.this, tree.expression), clause)

    def _united(self, queries: Sequence[exp.Expr], clause: EmitClause | None) -> Relation:
        """The rows of queries one after another."""
        parts: list[Relation] = []
        for side in queries:
            found = self._settled(self.query(side, clause), clause)
            # A condition over a union holds for each of its parts at the end.
            whole = isinstance(found.source, United) and not found.where
            parts += found.source.parts if whole and isinstance(found.source, United) else [found]
        first = parts[0]
        for part in parts[1:]:
            if len(part.fields) != len(first.fields):
                raise self.error(
                    queries[-1],
                    f"the queries of a UNION have {len(first.fields)} and {len(part.fields)}"
                    " columns",
                )
        fields = []
        for number, one in enumerate(first.fields):
            roles = {part.fields[number].role for part in parts}
            role = one.role if len(roles) == 1 else Role.PLAIN
            fields.append(Field(one.name, physical(one.name), role))
        names = tuple(one.name for one in first.fields)
        return Relation(United(tuple(parts), names), tuple(fields))

    def select(self, tree: exp.Select, outer: EmitClause | None) -> Relation:
        """The relation of a SELECT."""
        self._refuse_modifiers(tree)
        clause = merged(_clause_of(tree), outer)
        refuse_calls(self.context.scope(), tree, self.context.catalog)
        relation = self._filtered(tree, clause)
        if has_sets(tree):
            relation, tree = with_sets(self.context, relation, tree)
        items = self._items(tree, relation)
        users = {name.upper(): one for name, one in self.context.catalog.aggregates.items()}
        having = tree.args.get("having")
        is_grouped = (
            tree.args.get("group") is not None
            or tree.args.get("distinct") is not None
            or any(has_aggregate(item, users) for item in items)
            or (having is not None and has_aggregate(having, users))
        )
        if is_grouped:
            relation = self._ready_to_group(tree, relation, clause)
            return Grouping(self.context, relation, tree, items, clause).planned()
        window = tree.args.get("group_window")
        if window is not None:
            raise self.error(window, "a query with a WINDOW has groups", "GROUP BY user")
        if having is not None:
            raise self.error(having, "HAVING needs aggregates", "use WHERE")
        found = self._projected(tree, relation, items)
        qualify = tree.args.get("qualify")
        return found if qualify is None else self._qualified(found, qualify.this, clause)

    def _refuse_modifiers(self, tree: exp.Expr) -> None:
        refuse_clauses(self.context.scope(), tree)

    def error(self, node: exp.Expr | None, why: str, hint: str = "") -> SpecError:
        """An error at a node of the text."""
        return self.context.scope().error(node, why, hint)

    # FROM

    def _filtered(self, tree: exp.Select, clause: EmitClause | None) -> Relation:
        """The relation of FROM, JOIN and WHERE."""
        from_ = tree.args.get("from_")
        if from_ is None:
            raise self.error(tree, "a query reads a table", "SELECT ... FROM name")
        where = tree.args.get("where")
        conditions = list(conjuncts(where.this)) if where is not None else []
        relation = _with_named(self._from(from_.this, clause), from_.this, tree)
        joins = tree.args.get("joins") or []
        relation, conditions = self._joined(relation, joins, conditions, tree, clause)
        if relation.window is not None and not any(map(subquery_condition, conditions)):
            raise lone_window(self.context.scope(), from_.this)
        rest = []
        for condition in conditions:
            found = subquery_condition(condition)
            if found is None:
                rest.append(condition)
                continue
            relation = JoinPlanner.for_condition(self.context, found, clause).matched(
                self._settled_side(relation, clause),
                lambda query: self._side_of(query, clause),
                found,
            )
        return self._where(tree, relation, rest, clause)

    def _joined(
        self,
        relation: Relation,
        joins: Sequence[exp.Expr],
        conditions: list[exp.Expr],
        tree: exp.Select | None,
        clause: EmitClause | None,
    ) -> tuple[Relation, list[exp.Expr]]:
        """A relation with the tables that it is joined with, and the conditions that are left."""
        for join in joins:
            planner = JoinPlanner(self.context, join, clause)
            right = self._from(join.this, within_chain(clause))
            if tree is not None:
                right = _with_named(right, join.this, tree)
            left = self._settled_side(relation, clause)
            relation, conditions = planner.joined(
                left, self._settled_side(right, clause), conditions
            )
        return relation, conditions

    def _side_of(self, query: exp.Expr, clause: EmitClause | None) -> Relation:
        from_ = query.args.get("from_")
        if not isinstance(query, exp.Select) or from_ is None or query.args.get("joins"):
            raise self.error(query, "the query of IN and EXISTS reads one table")
        refuse_calls(self.context.scope(), query, self.context.catalog)
        for name in ("group", "having", "distinct"):
            if query.args.get(name):
                return self.query(
                    _without_where(query) if name != "group" else query, within_chain(clause)
                )
        return self._settled_side(self._from(from_.this, within_chain(clause)), clause)

    def _where(
        self,
        tree: exp.Select,
        relation: Relation,
        conditions: Sequence[exp.Expr],
        clause: EmitClause | None,
    ) -> Relation:
        ranks = [one for one in relation.fields if one.role is Role.RANK]
        if ranks:
            return self._ranked(tree, relation, ranks[0], list(conditions), clause)
        scope = self.context.scope(relation)
        plain: list[exp.Expr] = []
        after: list[exp.Expr] = []
        pairs = [(condition, scope.resolve(condition)) for condition in conditions]
        check(scope, relation, pairs)
        check_conditions(scope, relation, pairs)
        for condition, resolved in pairs:
            names = {one.name for one in relation.fields if one.role in BOUNDS}
            uses_bounds = relation.windowing is not None and (
                columns_in(resolved) & {"window_start", "window_end"}
                and bool(names)
                and any(
                    (found := scope.find(column)) is not None and found.role in BOUNDS
                    for column in condition.find_all(exp.Column)
                )
            )
            (after if uses_bounds else plain).append(resolved)
        relation = relation.filtered(plain)
        if after and relation.windowing is not None:
            windowing = relation.windowing
            relation = dataclasses.replace(
                relation, windowing=dataclasses.replace(windowing, where=(*windowing.where, *after))
            )
        return relation

    def _from(self, node: exp.Expr, clause: EmitClause | None) -> Relation:
        """The relation of a table, a function or a subquery in FROM."""
        alias = node.alias or None
        names = _alias_columns(node)
        joins = node.args.get("joins")
        if isinstance(node, exp.Table) and joins:
            # `(a JOIN b ON ...)` in parentheses.
            first = node.copy()
            first.set("joins", None)
            return self._joined(self._from(first, clause), joins, [], None, clause)[0]
        if isinstance(node, exp.Subquery):
            self._refuse_modifiers(node)
            if isinstance(node.this, exp.Table):
                return _renamed(self._from(node.this, clause), alias, names)
            own = _clause_of(node)
            found = self.query(node.this, merged(own, within_chain(clause)))
            return found.named(alias, names)
        if isinstance(node, exp.TableFromRows):
            return _renamed(self._from_call(node.this, clause), alias, names)
        if not isinstance(node, exp.Table):
            kind = type(node).__name__.upper()
            flattens = isinstance(node, exp.Unnest | exp.Lateral)
            hint = "flatten the rows before the query" if flattens else "FROM name"
            raise self.error(node, f"{kind} cannot be read as a stream", hint)
        self._refuse_modifiers(node)
        if not isinstance(node.this, exp.Identifier):
            found = _renamed(self._from_call(node.this, clause), alias, names)
        else:
            found = self.table(node).named(alias or node.name, names)
        window = node.args.get("over") or node.args.get("version")
        if isinstance(window, TableWindow | exp.Version):
            found = dataclasses.replace(found, window=window)
        return found

    def _from_call(self, call: exp.Expr, clause: EmitClause | None) -> Relation:
        if isinstance(call, exp.Anonymous) and call.name.upper() == "TABLE" and call.expressions:
            return self._from_call(call.expressions[0], clause)
        if isinstance(call, WindowCall):
            return self._windowed(call, clause)
        if isinstance(call, exp.Anonymous) and call.name.upper() == "LATE":
            return self._late(call)
        if isinstance(call, exp.Anonymous) and call.name.upper() == "MERGED":
            return self._merged(call)
        name = call.name if isinstance(call, exp.Anonymous) else type(call).__name__
        near = difflib.get_close_matches(name.upper(), ["TUMBLE", "HOP", "CUMULATE", "SESSION"], 1)
        hint = usage(near[0]) if near else "TUMBLE, HOP, CUMULATE, SESSION, SLIDE, LATE"
        raise self.error(call, f"there is no table function `{name}`", hint)

    def _merged(self, call: exp.Anonymous) -> Relation:
        """The relation of several tables whose rows are aggregated together."""
        parts: list[Relation] = []
        for node in call.expressions:
            if not isinstance(node, exp.Column):
                raise self.error(node, "MERGED takes names of tables", "MERGED(orders, clicks)")
            part = self.table(exp.to_table(node.name), node).named(node.name)
            if not isinstance(part.source, Table) or part.where:
                raise self.error(node, f"`{node.name}` is no table", "merge tables, not queries")
            parts.append(part)
        names = [node.name for node in call.expressions]
        if len(set(names)) != len(names) or len(names) < 2:
            raise self.error(call, "MERGED takes two or more different tables")
        return Relation(
            Merged(tuple(parts), tuple(names)),
            tuple(one for part in parts for one in part.fields),
            is_open=any(part.is_open for part in parts),
        )

    def _late(self, call: exp.Anonymous) -> Relation:
        names = list(call.expressions)
        if len(names) != 1 or not isinstance(names[0], exp.Column):
            raise self.error(call, "LATE takes the name of a query or a view", "LATE(clicks)")
        found = self.table(exp.to_table(names[0].name), names[0])
        if isinstance(found.source, Table | United):
            raise self.error(
                names[0],
                f"`{names[0].name}` has no late rows of its own: it has no window",
                "name a view with a window",
            )
        fields = tuple(
            Field(name, physical(name))
            for name in (*late_columns(found.source), "class", "reason", "detail", "windows")
        )
        return Relation(found.source, fields, is_open=True, late=True)

    def _windowed(self, call: WindowCall, clause: EmitClause | None) -> Relation:
        """The relation of a windowing function."""
        given = arguments_of(call, self.context.scope(), table=True)
        data = table_of(given)
        partition = data.args.get("partition_by") if isinstance(data, TableArgument) else None
        relation = self._settled(self._argument(data, clause), within_chain(clause))
        scope = self.context.scope(relation)
        given = dataclasses.replace(given, scope=scope)
        time = given.time
        if isinstance(time, Descriptor):
            time = exp.Column(this=time.expressions[0])
        field = None if time is None else time_field(scope, time)
        window = window_of(given, is_clock=field is not None and field.role is Role.PROCTIME)
        column = self._time_column(window, field, relation, call, time)
        kept = tuple(one for one in relation.fields if one.name not in set(BOUNDS))
        resolved = None if partition is None else tuple(scope.resolve(one) for one in partition)
        return dataclasses.replace(
            relation,
            fields=(*kept, *bound_fields()),
            windowing=Windowing(window, column, call, resolved),
            ends=None,
        )

    def _time_column(
        self,
        window: Window,
        field: Field | None,
        relation: Relation,
        call: exp.Expr,
        place: exp.Expr | None = None,
    ) -> str | None:
        """The physical time column of a window on event time."""
        if window.axis != Axis.EVENT_TIME:
            return None
        if field is None:
            times = [one for one in relation.fields if one.role is Role.TIME]
            field = times[0] if times else None
        if field is None:
            raise self.error(call, "the window needs a time column", "DESCRIPTOR(ts)")
        if field.role is Role.WINDOW_TIME:
            return TIME
        if field.role in (Role.START, Role.END):
            return relation.ends or str(field.role)
        source = relation.source
        if field.role is Role.PLAIN and isinstance(source, Table) and source.input.time:
            known = [str(time.column) for time in source.input.times]
            can_be = source.schema is None or (
                field.column in source.schema.names
                and pa.types.is_timestamp(source.schema.field(field.column).type)
            )
            raise self.error(
                place or call,
                f"`{field.name}` is no time column with a watermark; `{source.name}` has"
                f" {', '.join(known)}",
                f"WATERMARK FOR {field.name} AS {field.name} - INTERVAL '5' SECOND"
                if can_be
                else f"DESCRIPTOR({known[0]})",
            )
        return field.column

    def _argument(self, data: exp.Expr, clause: EmitClause | None) -> Relation:
        inner = within_chain(clause)
        if isinstance(data, TableArgument):
            data = data.this
        if isinstance(data, exp.Column):
            data = exp.Table(this=data.this)
        if isinstance(data, exp.Select | exp.Union):
            return self.query(data, inner)
        return self._from(data, inner)

    def table(self, node: exp.Table, place: exp.Expr | None = None) -> Relation:
        """The relation of a name: a common table expression, a view or a table."""
        name = local_name([part.name for part in node.parts])
        catalog = self.context.catalog
        found = lookup(self.views, name)
        if found is not None:
            return found
        view = lookup(catalog.views, name)
        if view is not None:
            if name.lower() in self.names:
                raise self.error(place or node, f"the view `{name}` reads itself")
            planner = _Planner(Context(view.place, catalog), None, (*self.names, name.lower()))
            return planner._settled(planner.query(view.tree, None), None)
        table = lookup(catalog.tables, name)
        if table is None:
            known = [*self.views, *catalog.views, *catalog.tables]
            near = difflib.get_close_matches(name, known, 1, 0.5)
            hint = (
                f"did you mean `{near[0]}`?" if near else f"known are {', '.join(known) or 'none'}"
            )
            raise self.error(place or node, f"there is no table `{name}`", hint)
        return table_relation(table)

    # SELECT

    def _items(self, tree: exp.Select, relation: Relation) -> list[exp.Expr]:
        """The select items; stars stand for all fields."""
        found: list[exp.Expr] = []
        for item in tree.expressions:
            qualifier = None
            star = item
            if isinstance(item, exp.Column) and isinstance(item.this, exp.Star):
                qualifier, star = item.table, item.this
            if not isinstance(star, exp.Star):
                found.append(item)
                continue
            found += self._starred(star, qualifier, relation)
        return found

    def _starred(self, star: exp.Expr, qualifier: str | None, relation: Relation) -> list[exp.Expr]:
        if relation.is_open and not relation.late:
            raise self.error(
                star, "the columns of the table are not known", "name them, or declare the table"
            )
        dropped = {one.name.lower() for one in star.args.get("except_") or []}
        fields = [
            one
            for one in relation.fields
            if (qualifier is None or (one.qualifier or "").lower() == qualifier.lower())
            and one.name.lower() not in dropped
        ]
        if not fields:
            raise self.error(star, f"there is no table `{qualifier}` in FROM")
        return [
            exp.column(
                exp.to_identifier(one.name, quoted=True),
                table=exp.to_identifier(one.qualifier, quoted=True) if one.qualifier else None,
            )
            for one in fields
        ]

    def _projected(
        self, tree: exp.Select, relation: Relation, items: Sequence[exp.Expr]
    ) -> Relation:
        if any(one.find(exp.Window) for one in items):
            return self._with_row_windows(tree, relation, items)
        scope = self.context.scope(relation)
        for call in (call for item in items for call in item.find_all(exp.Anonymous)):
            if call.name.lower() in SPARK_WINDOWS and call.expressions:
                raise scope.error(
                    call,
                    f"`{call.name}` groups rows, and this query has no groups",
                    f"GROUP BY {call.name}(ts, '10 minutes'), or FROM TABLE(TUMBLE(TABLE t,"
                    " DESCRIPTOR(ts), INTERVAL '10' MINUTE))",
                )
        fields = [self._field(scope, item, number) for number, item in enumerate(items)]
        known = zip(items, fields, strict=True)
        pairs = [(item, one.expression) for item, one in known if one.role not in PENDING]
        check(scope, relation, pairs)
        return dataclasses.replace(relation, fields=tuple(fields), is_open=False)

    def _field(self, scope: Scope, item: exp.Expr, number: int) -> Field:
        node = item.this if isinstance(item, exp.Alias) else item
        name = item.alias or _name_of(node, number)
        if isinstance(node, exp.Anonymous) and node.name.upper() == "PROCTIME":
            return Field(name, exp.CurrentTimestamp(), Role.PROCTIME)
        if isinstance(node, exp.Column):
            found = scope.find(node)
            if found is not None:
                if found.role in PENDING:
                    return dataclasses.replace(found, name=name)
                return Field(name, scope.resolve(node), found.role)
        instant = scope.last_instant(node)
        if instant is not None:
            return dataclasses.replace(instant, name=name)
        expression = scope.resolve(node)
        role = coalesced_bound(expression)
        return Field(name, expression) if role is None else Field(name, bound(role), role)

    def _with_row_windows(
        self, tree: exp.Select, relation: Relation, items: Sequence[exp.Expr]
    ) -> Relation:
        """A SELECT with row numbers or OVER aggregates."""
        scope = self.context.scope(relation)
        windows = {one.name: one for one in tree.args.get("windows") or []}
        items_by_name = [
            (item.alias or _name_of(_plain(item), number), _plain(item))
            for number, item in enumerate(items)
        ]
        numbers = [
            name
            for name, node in items_by_name
            if isinstance(node, exp.Window) and isinstance(node.this, exp.RowNumber)
        ]
        if not numbers:
            clause = _clause_of(tree)
            if relation.windowing is not None:
                relation = materialised(self.context, relation, within_chain(clause))
            return over_relation(self.context, relation, items_by_name, windows, clause)
        fields = []
        for number, (name, node) in enumerate(items_by_name):
            if name in numbers and isinstance(node, exp.Window):
                rank = scope.resolve(settled(node, windows))
                fields.append(Field(name, rank, Role.RANK))
            elif node.find(exp.Window):
                raise scope.error(node, "a SELECT has row numbers or OVER aggregates, not both")
            else:
                fields.append(self._field(scope, items[number], number))
        return dataclasses.replace(relation, fields=tuple(fields), is_open=False)

    # Top-N

    def _ranked(
        self,
        tree: exp.Select,
        relation: Relation,
        rank: Field,
        conditions: list[exp.Expr],
        clause: EmitClause | None,
    ) -> Relation:
        scope = self.context.scope(relation)
        limits, rest, more = [], [], []
        for condition in bounds_of(conditions):
            uses = [scope.find(column) for column in condition.find_all(exp.Column)]
            if rank not in uses:
                rest.append(condition)
                continue
            limit = rank_limit(condition, lambda node: scope.find(node) is rank)
            if limit is not None:
                limits.append(limit)
            if limit is None or isinstance(condition, exp.EQ):
                more.append(condition)
        if not limits:
            raise self.error(
                tree.args.get("where") or tree,
                f"the row number `{rank.name}` has no upper bound",
                f"WHERE {rank.name} <= 3",
            )
        found = ranked(self.context, relation, rank, min(limits), clause, tree)
        after = self.context.scope(found)
        return found.filtered(after.resolve(one) for one in [*rest, *more])

    def _qualified(
        self, relation: Relation, condition: exp.Expr, clause: EmitClause | None
    ) -> Relation:
        names = {one.name.lower() for one in relation.fields if one.role is Role.RANK}
        if not names:
            raise self.error(
                condition, "QUALIFY needs a row number in SELECT", "ROW_NUMBER() OVER (...) AS n"
            )
        rank = next(one for one in relation.fields if one.role is Role.RANK)
        return self._ranked(exp.select(), relation, rank, list(conjuncts(condition)), clause)

    # Pending windows

    def _ready_to_group(
        self, tree: exp.Select, relation: Relation, clause: EmitClause | None
    ) -> Relation:
        """The relation for a grouped query: sessions of other keys than the groups come first."""
        if relation.ends is not None and any(
            (one := self.context.scope(relation).find(column)) is not None and one.role is Role.END
            for column in (tree.args.get("group") or tree).find_all(exp.Column)
        ):
            return relation.by_end(tree.args.get("group") or tree)
        windowing = relation.windowing
        if windowing is None or (windowing.partition is None and not _is_session(windowing)):
            return relation
        if windowing.is_group or not _is_session(windowing):
            return relation
        scope = self.context.scope(relation)
        group = tree.args.get("group")
        keys = set()
        for node in group.expressions if group is not None else []:
            if isinstance(node, exp.Literal):
                number = int(node.name) if node.is_int else 0
                if not 1 <= number <= len(tree.expressions):
                    continue
                node = tree.expressions[number - 1]  # noqa: PLW2901
                node = node.this if isinstance(node, exp.Alias) else node  # noqa: PLW2901
            found = scope.find(node) if isinstance(node, exp.Column) else None
            if found is None or found.role not in BOUNDS:
                try:
                    keys.add(scope.resolve(node).sql(dialect="spark"))
                except SpecError:
                    continue
        partition = {one.sql(dialect="spark") for one in windowing.partition or ()}
        if keys == partition:
            return relation
        return materialised(self.context, relation, within_chain(clause))

    def _settled(self, relation: Relation, clause: EmitClause | None) -> Relation:
        """The relation with all windows assigned and no pending row numbers."""
        if relation.windowing is not None:
            return materialised(self.context, relation, clause)
        return relation

    def _settled_side(self, relation: Relation, clause: EmitClause | None) -> Relation:
        """A side of a join: windows that both sides share are not assigned before."""
        pending = [one for one in relation.fields if one.role in PENDING]
        if pending:
            raise self.error(
                None, f"the row number `{pending[0].name}` is not limited", "WHERE row_num <= 3"
            )
        del clause
        return relation

    # The end

    def finished(self, relation: Relation) -> QueryPlan:
        """The plan of the relation of a whole query."""
        relation = self._settled(relation, None)
        relation = dataclasses.replace(relation, fields=_distinct_names(relation.fields))
        source = relation.source
        parts = source.parts if isinstance(source, United) else (relation,)
        branches = []
        for part in parts:
            united = relation if isinstance(source, United) else None
            branches.append(self._branch(part, united))
        names = [one.name for one in relation.fields]
        return QueryPlan(tuple(branches), tuple(names))

    def _branch(self, part: Relation, united: Relation | None) -> Branch:
        pending = [one for one in part.fields if one.role in PENDING]
        if pending:
            raise self.error(
                pending[0].expression,
                f"the row number `{pending[0].name}` has no upper bound",
                f"WHERE {pending[0].name} <= 3 around the query",
            )
        part = self._settled(part, None)
        outputs = [(one.name, one.expression) for one in part.fields]
        if united is not None and isinstance(united.source, United):
            own = {
                name: one.expression
                for name, one in zip(united.source.names, part.fields, strict=True)
            }
            part = part.filtered(_swapped(one, own) for one in united.where)
            outputs = [(one.name, _swapped(one.expression, own)) for one in united.fields]
        root: Stream | Panes | Joined
        if isinstance(part.source, Table):
            root = Stream(part.source.input, sources=(TableScan(part.source.name),))
        elif isinstance(part.source, United | Merged):
            raise self.error(
                None,
                "the rows of a merge are aggregated together"
                if isinstance(part.source, Merged)
                else "a filtered UNION inside of a UNION is not supported",
                "GROUP BY window_start, window_end",
            )
        else:
            root = part.source
        return Branch(root, part.select(outputs), part.late)


def _swapped(expression: exp.Expr, own: Mapping[str, exp.Expr]) -> exp.Expr:
    """An expression over the fields of a union over the columns of one part."""
    return expression.copy().transform(
        lambda node: own[node.name].copy() if isinstance(node, exp.Column) else node
    )


def _renamed(relation: Relation, alias: str | None, names: Sequence[str]) -> Relation:
    """A relation under its alias; without one, its columns keep the names of their tables."""
    return relation if alias is None else relation.named(alias, names)


def _distinct_names(fields: Sequence[Field]) -> tuple[Field, ...]:
    """The fields with distinct names: the second `id` is `id0`."""
    found: list[Field] = []
    names = {one.name for one in fields}
    used: set[str] = set()
    for one in fields:
        name, number = one.name, 0
        while name in used or (name != one.name and name in names):
            name = f"{one.name}{number}"
            number += 1
        used.add(name)
        found.append(dataclasses.replace(one, name=name))
    return tuple(found)


def _with_named(relation: Relation, node: exp.Expr, tree: exp.Select) -> Relation:
    """A relation whose columns are not known, with those that the query names with its alias."""
    if not relation.is_open:
        return relation
    alias = node.alias_or_name
    names = {one.name for one in relation.fields}
    named = [
        column.name for column in tree.find_all(exp.Column) if column.table.lower() == alias.lower()
    ]
    more = [
        Field(name, physical(name), qualifier=alias)
        for name in dict.fromkeys(named)
        if name not in names
    ]
    return dataclasses.replace(relation, fields=(*relation.fields, *more))


def _clause_of(tree: exp.Expr) -> EmitClause | None:
    emit = tree.args.get("emit")
    return None if emit is None else emit.args["clause"]


def _alias_columns(node: exp.Expr) -> list[str]:
    alias = node.args.get("alias")
    return [one.name for one in alias.columns] if isinstance(alias, exp.TableAlias) else []


def _name_of(node: exp.Expr, number: int) -> str:
    if isinstance(node, exp.Column):
        return node.name
    if isinstance(node, exp.Dot):
        return node.expression.name
    return f"EXPR${number}"


def _plain(item: exp.Expr) -> exp.Expr:
    return item.this if isinstance(item, exp.Alias) else item


def _is_session(windowing: Windowing) -> bool:
    return windowing.window.kind == "session"


def _without_where(query: exp.Select) -> exp.Select:
    found = query.copy()
    found.set("where", None)
    return found
