"""Scripts of SQL: statements one after another, over tables, views and settings."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlglot import exp

from tidegate.api.running import Pipeline
from tidegate.api.streams import Stream
from tidegate.errors import InputError, SpecError
from tidegate.instants import duration
from tidegate.spec.aggregates import Aggregate
from tidegate.spec.operator import Input
from tidegate.spec.watermarks import Explicit
from tidegate.sql.definitions import TableDefinition, defined_table
from tidegate.sql.insertion import Insertion, Insertions, inserted
from tidegate.sql.like import likened
from tidegate.sql.listing import Listing, described, listed
from tidegate.sql.parse import parse_script
from tidegate.sql.plan import Catalog, Table, TableScan, lookup
from tidegate.sql.planner.query import plan_query
from tidegate.sql.positions import Place, has_place, place_of
from tidegate.sql.query import SqlQuery
from tidegate.sql.reading import Lines
from tidegate.sql.settings import Settings
from tidegate.sql.statements import (
    CreateTable,
    CreateView,
    Drop,
    Explain,
    Insert,
    Like,
    Query,
    SetOption,
    Show,
    Statement,
    StatementSet,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

Result = SqlQuery | Insertions | str | None
"""What a statement returns: a query, inserts, an explanation, or nothing."""
_QUOTED = re.compile(r"`([^`]+)`")


def run_script(
    text: str,
    tables: Mapping[str, Any],
    *,
    aggregates: Mapping[str, Callable[..., Aggregate] | Aggregate] | None = None,
    folder: str | None = None,
) -> SqlQuery | Insertions | str:
    """What the statements of a script amount to: its query, or its inserts; see `tidegate.sql`."""
    session = SqlSession(tables, aggregates=aggregates, folder=folder)
    results = [result for result in session.execute(text) if result is not None]
    found = [result for result in results if not isinstance(result, Listing)] or results
    inserts = [result for result in found if isinstance(result, Insertions)]
    if inserts and len(inserts) == len(found):
        return Insertions(tuple(one for result in inserts for one in result.inserts)).joined()
    if len(found) != 1:
        raise SpecError(
            "a script has one query, one EXPLAIN or inserts, got"
            f" {len(found)} results. Hint: end it with a SELECT or with INSERT INTO"
        )
    return found[0]


@dataclass
class SqlSession:
    """The tables, views and settings that statements define, one after another."""

    given: Mapping[str, Any] = field(default_factory=dict)
    """What a program hands over, by name: streams, DataFrames, pipelines, Arrow tables."""
    aggregates: Mapping[str, Callable[..., Aggregate] | Aggregate] | None = None
    folder: str | None = None
    """Where relative paths of tables begin."""

    def __post_init__(self) -> None:
        self.definitions: dict[str, TableDefinition] = {}
        self.created: dict[str, CreateTable | CreateView] = {}
        self.pipelines: dict[str, Table] = {}
        self.views: dict[str, Query] = {}
        self.settings = Settings()
        for name, source in self.given.items():
            if isinstance(source, Pipeline | SqlQuery):
                self.pipelines[name] = self._pipeline_table(name, source)
            else:
                self.definitions[name] = given_table(name, source)

    def execute(self, text: str) -> Iterator[Result]:
        """Run the statements of a text; each result is there before the next statement."""
        statements = parse_script(text)
        uses_late = _uses_late(statements)
        for statement in statements:
            yield self.run(statement, complete=uses_late)

    def run(self, statement: Statement, *, complete: bool = False) -> Result:
        """Run one statement. `complete`: late rows have all columns of their table."""
        match statement:
            case CreateTable():
                self._define(statement)
            case CreateView():
                self._view(statement)
            case Drop():
                self._drop(statement)
            case SetOption():
                self.settings = self.settings.changed(statement)
            case Query():
                return self.query(statement, complete=complete)
            case Explain():
                return self._explained(statement)
            case Insert():
                return Insertions((self._inserted(statement, complete=complete),))
            case StatementSet():
                return self._together(statement, complete=complete)
            case Show():
                return self._shown(statement)
        return None

    def _together(self, statement: StatementSet, *, complete: bool = False) -> Insertions:
        found = [self._inserted(one, complete=complete) for one in statement.inserts]
        return Insertions(tuple(found)).joined()

    def tables(self) -> dict[str, TableDefinition]:
        """The tables as queries read them, with the settings of the session."""
        idle = self.settings.idle
        if idle is None:
            return dict(self.definitions)
        return {name: one.idle_after(duration(idle)) for name, one in self.definitions.items()}

    @property
    def catalog(self) -> Catalog:
        """What queries may refer to."""
        tables = {name: one.table for name, one in self.tables().items()}
        return Catalog({**tables, **self.pipelines}, self.views, dict(self.aggregates or {}))

    def query(self, statement: Query, *, complete: bool = False) -> SqlQuery:
        """A query, planned; nothing of it runs."""
        found = SqlQuery(
            statement.text,
            statement.place,
            plan_query(statement, self.catalog),
            self.tables(),
            self.settings,
            complete,
            folder=self.folder,
        )
        self._check_types(found, statement)
        return found

    def _check_types(self, query: SqlQuery, statement: Query) -> None:
        """Refuse what the types of the columns do not allow, as far as they are known."""
        if not query.runs_embedded:
            return
        try:
            with query.embedded(now=0) as op:
                for name in op.inputs:
                    schema = query.tables[name].schema
                    if schema is not None:
                        op.add_messages(schema.empty_table(), input=name)
                op.get_result()
        except (SpecError, InputError) as error:
            if hasattr(error, "line"):
                raise
            why, _, hint = str(error).partition(". Hint: ")
            node = _named(statement.tree, _QUOTED.findall(why))
            place = statement.place if node is None else place_of(statement.place.text, node)
            raise place.error(why.rstrip("."), hint) from None

    def _pipeline_table(self, name: str, source: Any) -> Table:
        """The table of panes or joined rows; inputs without a source are tables themselves."""
        pipeline = source.pipeline if isinstance(source, SqlQuery) else source
        open_inputs = [
            number
            for number, given in enumerate(pipeline.sources or pipeline.spec.inputs)
            if given is None or not pipeline.sources
        ]
        if open_inputs:
            sources = list(pipeline.sources or (None,) * len(pipeline.spec.inputs))
            for number in open_inputs:
                of = name if len(open_inputs) == 1 else f"{name}_{number}"
                sources[number] = TableScan(of)
                self.definitions[of] = TableDefinition(of, pipeline.spec.inputs[number], None)
            pipeline = dataclasses.replace(pipeline, sources=tuple(sources))
        return Table(name, Input(watermark=Explicit()), source=pipeline)

    # Statements

    def _define(self, statement: CreateTable) -> None:
        if self._is_taken(statement.name, statement.place, statement):
            return
        given = self.definitions.get(statement.name)
        if statement.like is not None:
            statement = likened(statement, statement.like, self._source_of(statement.like))
        found = defined_table(statement)
        if given is not None and statement.name in self.given and found.connector is None:
            # A definition without a connector describes the rows that a program hands over.
            found = dataclasses.replace(found, source=given.source)
            if isinstance(self.given[statement.name], Stream) and not statement.watermarks:
                found = dataclasses.replace(found, input=given.input)
        self.definitions[statement.name] = found
        self.created[statement.name] = statement

    def _source_of(self, like: Like) -> CreateTable:
        """The statement that created the table that another one is like."""
        found = lookup(self.created, like.table)
        if not isinstance(found, CreateTable):
            raise like.place.error(
                f"no CREATE TABLE of the script has created `{like.table}`",
                f"known are {', '.join(self.created) or 'none'}",
            )
        return found

    def _shown(self, statement: Show) -> Listing:
        """What `SHOW` and `DESCRIBE` print."""
        tables = {**self.definitions, **self.pipelines}
        match statement.kind:
            case "TABLES":
                return listed("table name", [*tables, *self.views])
            case "VIEWS":
                return listed("view name", [*self.views])
            case "SETTINGS":
                return listed("setting", self.settings.shown())
        name, catalog = statement.name, self.catalog
        table, view = lookup(catalog.tables, name), lookup(self.views, name)
        created = lookup(self.created, name)
        if statement.kind == "CREATE" and created is not None:
            return Listing(f"{created.text};")
        if view is not None:
            table = Table(name, Input(watermark=Explicit()), plan_query(view, catalog).columns)
        if table is None or statement.kind == "CREATE":
            raise statement.place.error(
                f"there is no table or view `{name}`",
                f"known are {', '.join([*tables, *self.views]) or 'none'}",
            )
        return described(table, lookup(self.definitions, name))

    def _view(self, statement: CreateView) -> None:
        if self._is_taken(statement.name, statement.place, statement):
            return
        query = statement.query
        plan = plan_query(query, self.catalog)
        if statement.columns and len(statement.columns) != len(plan.columns):
            raise statement.place.error(
                f"the view has {len(statement.columns)} columns, its query {len(plan.columns)}"
            )
        self.views[statement.name] = (
            query if not statement.columns else _renamed(query, statement.columns)
        )
        self.created[statement.name] = statement

    def _is_taken(self, name: str, place: Place, statement: CreateTable | CreateView) -> bool:
        """Whether a name is taken and the statement ignores that."""
        described = isinstance(statement, CreateTable) and name in self.given
        known = {one.lower(): one for one in (*self.definitions, *self.views, *self.pipelines)}
        taken = known.get(name.lower())
        if taken is None or statement.replace or (described and taken == name):
            self.views.pop(taken or name, None)
            return False
        if not statement.if_not_exists:
            raise place.error(
                f"there is a table or view `{taken}` already", "CREATE OR REPLACE, or another name"
            )
        return True

    def _drop(self, statement: Drop) -> None:
        known: dict[str, Any] = self.views if statement.kind == "VIEW" else self.definitions
        name = next((one for one in known if one.lower() == statement.name.lower()), None)
        if name is not None:
            del known[name]
            self.created.pop(name, None)
        elif not statement.if_exists:
            raise statement.place.error(
                f"there is no {statement.kind.lower()} `{statement.name}`", "DROP ... IF EXISTS"
            )

    def _explained(self, statement: Explain) -> str:
        inner = statement.statement
        if isinstance(inner, Insert):
            return self._inserted(inner, complete=False).explain()
        if isinstance(inner, StatementSet):
            return self._together(inner).explain()
        return self.query(inner).explain()

    def _inserted(self, statement: Insert, *, complete: bool) -> Insertion:
        target = lookup(self.definitions, statement.table)
        if target is None:
            raise statement.place.error(
                f"there is no table `{statement.table}` to insert into",
                f"CREATE TABLE {statement.table} (...) WITH ('connector' = 'print')",
            )
        return inserted(statement, self.query(statement.query, complete=complete), target)


def _named(tree: exp.Expr, names: Sequence[str]) -> exp.Expr | None:
    """The part of a query that an error means by the names of columns; joins come first."""
    nodes = [one for one in tree.find_all(exp.Column, exp.Alias) if has_place(one)]
    found = [
        (number, one.find_ancestor(exp.Join) is None, at, one)
        for number, name in enumerate(names)
        for at, one in enumerate(nodes)
        if one.alias_or_name.lower() == name.lower()
    ]
    return min(found, default=(None,), key=lambda item: item[:3])[-1]


def given_table(name: str, source: Any) -> TableDefinition:
    """The table of what a program hands over."""
    if isinstance(source, TableDefinition):
        return source
    if isinstance(source, Stream):
        if source.also:
            raise SpecError(
                f"`{name}` is a union or a merge, which SQL cannot read as one table. Hint: hand"
                " over its streams and write UNION ALL"
            )
        found = source.sources[0] if source.sources else None
        schema = None if found is None else _plan_schema(found, source.input)
        return TableDefinition(name, source.input, schema, source=found)
    if isinstance(source, Lines):
        # The columns of an input without rows are those that queries name.
        columns = source.schema if source.schema.names else None
        return TableDefinition(name, Input(watermark=Explicit()), columns, source=source)
    if _is_local(source):
        table = _arrow(source)
        return TableDefinition(name, Input(watermark=Explicit()), table.schema, source=table)
    if type(source).__module__.partition(".")[0] in ("pyspark", "tidegate"):
        from tidegate.spark.plan.input import plan_input

        planned, _, _ = plan_input(source, {}, ())
        given = Input(watermark=Explicit())
        return TableDefinition(name, given, planned.schema(), source=planned)
    raise InputError(
        f"`{name}` is {type(source).__name__}, which is no table. Hint: a stream, a DataFrame, a"
        " direct source, panes, or an Arrow table"
    )


def _is_local(source: Any) -> bool:
    return isinstance(source, pa.Table | pa.RecordBatch | list) or (
        type(source).__module__.partition(".")[0] == "pandas"
    )


def _arrow(source: Any) -> pa.Table:
    from tidegate.operators.ingest.python_rows import to_table
    from tidegate.operators.ingest.schema_cast import bindable

    table = to_table(source, None)
    return table.cast(bindable(table.schema)) if isinstance(source, pa.Table) else table


def _plan_schema(source: Any, given: Input) -> pa.Schema:
    from tidegate.spark.plan.input import row_schema

    if isinstance(source, Pipeline):
        raise SpecError(
            "a stream over panes is handed over as the panes themselves. Hint: tg.sql(...,"
            " name=panes)"
        )
    found: pa.Schema = row_schema(given, source)
    return found


def _renamed(query: Query, columns: Sequence[str]) -> Query:
    """The query with other names for its columns."""
    from sqlglot import exp

    alias = exp.TableAlias(
        this=exp.to_identifier("renamed"), columns=[exp.to_identifier(name) for name in columns]
    )
    inner = exp.Subquery(this=query.tree.copy(), alias=alias)
    return dataclasses.replace(query, tree=exp.select("*").from_(inner))


def _uses_late(statements: Sequence[Statement]) -> bool:
    """Whether a query of the script reads late rows."""
    return any(node.name.upper() == "LATE" for one in statements for node in _functions(one))


def _functions(statement: Statement) -> Iterator[Any]:
    from sqlglot import exp

    match statement:
        case Query():
            yield from statement.tree.find_all(exp.Anonymous)
        case Insert() | CreateView():
            yield from statement.query.tree.find_all(exp.Anonymous)
        case Explain():
            yield from _functions(statement.statement)
        case StatementSet():
            for one in statement.inserts:
                yield from _functions(one)
