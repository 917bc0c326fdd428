"""Definitions of tables: columns with Arrow types, computed columns, watermarks and roles."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from tidegate.errors import SpecError
from tidegate.operators.ingest.projection import projected_schema
from tidegate.spec import watermarks
from tidegate.spec.operator import Input, TimeColumn
from tidegate.spec.projection import Projection
from tidegate.spec.watermarks import Bounded, Explicit, Implied, Watched, Watermarks
from tidegate.sql.dialect import Tidegate
from tidegate.sql.intervals import ticks
from tidegate.sql.nodes import NamedArgument
from tidegate.sql.options import Options
from tidegate.sql.plan import Select, Table
from tidegate.sql.positions import Place
from tidegate.sql.scalars import arrow_type, compile_duckdb
from tidegate.sql.statements import ColumnDefinition, CreateTable, WatermarkDefinition

KAFKA_METADATA: Mapping[str, pa.DataType] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "key": pa.string(),
}
"""Metadata of messages of Kafka, and their types."""
_METADATA: Mapping[str, Mapping[str, pa.DataType]] = {
    "kafka": KAFKA_METADATA,
    "filesystem": {"file.path": pa.string()},
    "tidegate": {
        "key": pa.string(),
        "segment": pa.string(),
        "offset": pa.int64(),
        "appended": pa.timestamp("us", "UTC"),
        "writer": pa.string(),
        "noted": pa.timestamp("us", "UTC"),
    },
}
PARTITION, OFFSET = "__partition", "__offset"
"""Columns with the position of a message, where the table has none."""
_GENERATORS = (
    "bounded",
    "ascending",
    "lagging",
    "punctuated",
    "noted",
    "per_key",
    "explicit",
    "newest",
)


@dataclass(frozen=True, eq=False)
class TableDefinition:
    """A table: what its rows contain, what is computed from them, and where they come from."""

    name: str
    input: Input
    schema: pa.Schema | None
    """The columns of the rows as they are read; None if only the rows tell."""
    computed: Select = field(default_factory=Select)
    """The columns that expressions add."""
    metadata: tuple[tuple[str, str], ...] = ()
    """Columns with metadata of the source, and the names of the metadata."""
    proctimes: tuple[str, ...] = ()
    primary_key: tuple[str, ...] = ()
    options: Options | None = None
    """The options of a connector; None if the rows are handed over by a program."""
    source: Any = None
    """What a program has handed over: a DataFrame, a stream, a direct source or a table."""
    place: Place | None = None

    @property
    def projections(self) -> tuple[Projection, ...]:
        """The computed columns, for DuckDB."""
        return (compile_duckdb(self.computed, keeps="all"),) if self.computed else ()

    @property
    def columns(self) -> pa.Schema | None:
        """All columns of the table, without the hidden ones."""
        if self.schema is None:
            return None
        whole = projected_schema(self.schema, self.projections)
        return pa.schema([one for one in whole if not one.name.startswith("__")])

    @property
    def table(self) -> Table:
        """The table as the planner needs it."""
        columns = self.columns
        names = None if columns is None else (*columns.names, *self.proctimes)
        return Table(
            self.name, self.input, names, columns, self.proctimes, runs_here=self.is_embedded
        )

    @property
    def is_embedded(self) -> bool:
        """Whether the table can be read without Spark."""
        if self.source is not None:
            return type(self.source).__name__ != "PlanInput"
        return self.connector in (None, "filesystem")

    @property
    def connector(self) -> str | None:
        """The name of the connector."""
        if self.options is None or self.options.connector is None:
            return None
        return self.options.connector.name

    def idle_after(self, idle: int) -> TableDefinition:
        """The table whose partitions are idle after this time, unless it has a time of its own."""

        def changed(mark: Watermarks) -> Watermarks:
            if not isinstance(mark, Watched) or mark.idle_after is not None:
                return mark
            return dataclasses.replace(mark, idle_after=idle)

        others = tuple(
            dataclasses.replace(one, watermark=changed(one.watermark)) for one in self.input.others
        )
        given = dataclasses.replace(
            self.input, watermark=changed(self.input.watermark), others=others
        )
        return dataclasses.replace(self, input=given)

    def written_schema(self) -> pa.Schema:
        """The columns that a sink receives: physical ones, without metadata."""
        virtual = {name for name, _ in self.metadata}
        return pa.schema([one for one in self.schema or () if one.name not in virtual])


def defined_table(statement: CreateTable) -> TableDefinition:
    """The definition of a `CREATE TABLE`; refuses types, options and watermarks that are wrong."""
    options = Options(statement)
    name = None if options.connector is None else options.connector.name
    fields, metadata, computed, proctimes = [], [], [], []
    for column in statement.columns:
        if column.computed is not None:
            if _is_proctime(column.computed):
                proctimes.append(column.name)
            else:
                computed.append(column)
            continue
        fields.append(pa.field(column.name, _type_of(column)))
        if column.metadata is not None and name is not None:
            # Rows that a program hands over have their metadata as columns.
            metadata.append((column.name, _metadata(column, name)))
    _check_distinct([*(one.name for one in fields), *(one.name for one in computed)], statement)
    if name == "kafka":
        fields, metadata = _with_position(fields, metadata)
    # A table without columns takes those of its rows.
    is_open = not statement.columns and name is None
    schema = None if is_open else pa.schema(fields)
    select = _computed(computed, schema or pa.schema([]))
    definition = TableDefinition(
        statement.name,
        Input(watermark=Explicit()),
        schema,
        select,
        tuple(metadata),
        tuple(proctimes),
        _key(statement, schema or pa.schema([])),
        options,
        place=statement.place,
    )
    return dataclasses.replace(definition, input=_input(statement, definition, options))


def _type_of(column: ColumnDefinition) -> pa.DataType:
    found = None if column.type is None else arrow_type(column.type)
    if found is None:
        kind = "no type" if column.type is None else f"the type {column.type.sql()}"
        raise column.place.error(
            f"the column `{column.name}` has {kind}, which columns cannot have",
            "STRING, BIGINT, DOUBLE, DECIMAL(10, 2), BOOLEAN, DATE, TIMESTAMP(3), ARRAY<T>,"
            " MAP<K, V>, ROW<a T>",
        )
    return found


def _metadata(column: ColumnDefinition, connector: str | None) -> str:
    known = _METADATA.get(connector or "", {})
    if column.metadata not in known:
        raise column.place.error(
            f"the connector `{connector}` has no metadata `{column.metadata}`",
            f"one of {', '.join(known)}" if known else "leave the column out",
        )
    return str(column.metadata)


def _check_distinct(names: Sequence[str], statement: CreateTable) -> None:
    for column in statement.columns:
        if names.count(column.name) > 1:
            raise column.place.error(f"the table has several columns `{column.name}`")
        if column.name.startswith("__"):
            raise column.place.error(
                f"the column `{column.name}` begins with two underscores, as hidden columns do",
                "rename it",
            )


def _with_position(
    fields: list[pa.Field], metadata: list[tuple[str, str]]
) -> tuple[list[pa.Field], list[tuple[str, str]]]:
    """The columns of a Kafka table with the position of its messages."""
    return (
        [*fields, pa.field(PARTITION, pa.string()), pa.field(OFFSET, pa.int64())],
        [*metadata, (PARTITION, PARTITION), (OFFSET, "offset")],
    )


def _key(statement: CreateTable, schema: pa.Schema) -> tuple[str, ...]:
    for name in statement.primary_key:
        if name not in schema.names:
            raise statement.place.error(
                f"the primary key of `{statement.name}` has the column `{name}`, which the table"
                " does not have"
            )
    return statement.primary_key


def _is_proctime(tree: exp.Expr) -> bool:
    return isinstance(tree, exp.Anonymous) and tree.name.upper() == "PROCTIME"


def _computed(columns: Sequence[ColumnDefinition], schema: pa.Schema) -> Select:
    """The computed columns; each may refer to those before it."""
    done: dict[str, exp.Expr] = {}
    for column in columns:
        if column.computed is not None:
            tree = resolved(column.computed.copy(), [*schema.names, *done], column.place)
            done[column.name] = _inlined(tree, done)
    select = Select(tuple(done.items()))
    if done:
        try:
            projected_schema(schema, [compile_duckdb(select, keeps="all")])
        except SpecError as error:
            raise columns[0].place.error(f"a computed column is wrong: {error}") from None
    return select


def resolved(tree: exp.Expr, names: Sequence[str], place: Place) -> exp.Expr:
    """The expression with the names of columns as the table has them, quoted."""
    lower = {name.lower(): name for name in names}
    for column in list(tree.find_all(exp.Column)):
        parts = [part.name for part in column.parts]
        first = parts[0] if parts[0] in names else lower.get(parts[0].lower())
        if first is None:
            raise place.error(
                f"there is no column `{parts[0]}`", f"the columns are {', '.join(names)}"
            )
        found: exp.Expr = exp.column(exp.to_identifier(first, quoted=True))
        for part in parts[1:]:
            found = exp.Dot(this=found, expression=exp.to_identifier(part, quoted=True))
        if column is tree:
            tree = found
        else:
            column.replace(found)
    return tree


def _inlined(tree: exp.Expr, done: Mapping[str, exp.Expr]) -> exp.Expr:
    for column in list(tree.find_all(exp.Column)):
        if column.name in done:
            inner = exp.Paren(this=done[column.name].copy())
            if column is tree:
                tree = inner
            else:
                column.replace(inner)
    return tree


# Watermarks and roles


def _input(statement: CreateTable, definition: TableDefinition, options: Options) -> Input:
    """The roles of the columns of a table."""
    columns = definition.columns
    found: list[tuple[str, Watermarks]] = []
    keys: list[int | None] = []
    for one in statement.watermarks:
        name = _named(one.column, columns, one.place)
        if columns is not None:
            _check_time(name, columns.field(name).type, one.place)
        found.append((name, _watched(_watermark(one, name, columns), options)))
        keys.append(_watermark_key(one))
    roles: dict[str, Any] = {
        role: None if value is None else _named(value, columns, options.place(role))
        for role in ("partition", "offset", "id")
        for value in [options.get(role)]
    }
    key = options.get("key")
    if key is not None:
        names = [one.strip().strip("`") for one in key.split(",")]
        roles["key"] = tuple(_named(one, columns, options.place("key")) for one in names)
    if definition.connector == "kafka":
        roles["partition"] = roles["partition"] or PARTITION
        if roles["id"] is None:
            roles["offset"] = roles["offset"] or OFFSET
    if not found:
        return Input(watermark=_untimed(options), **roles)
    (time, mark), *others = found
    first = keys[0] or 0
    try:
        return Input(
            time=time,
            watermark=mark,
            watermark_key=first,
            others=tuple(
                TimeColumn(column, other, number if key is None else key)
                for number, ((column, other), key) in enumerate(
                    zip(others, keys[1:], strict=True), 1
                )
            ),
            **roles,
        )
    except SpecError as error:
        raise statement.watermarks[0].place.error(str(error)) from None


def _untimed(options: Options) -> Watermarks:
    """The watermark of a table without a time column."""
    text = options.get("watermark")
    if text is None:
        return Explicit()
    place = options.place("watermark")
    try:
        tree = parse_one(text, dialect=Tidegate)
    except SqlglotError:
        tree = exp.null()
    if not isinstance(tree, exp.Func) or tree.name.lower() not in _GENERATORS:
        raise place.error(f"`{text}` is no watermark", "'watermark' = 'NEWEST()'")
    return _generator(tree, place, None)


def _watermark_key(statement: WatermarkDefinition) -> int | None:
    """The key of a watermark, if its generator names one."""
    for one in statement.expression.find_all(NamedArgument, exp.Kwarg, exp.PropertyEQ):
        if one.this.name.lower() == "key":
            number = _value(one.expression, None, statement.place)
            if not isinstance(number, int):
                raise statement.place.error("the key of a watermark is a number", "KEY => 1")
            return number
    return None


def _named(name: str, columns: pa.Schema | None, place: Place) -> str:
    if columns is None:
        return name
    names = columns.names
    if name in names:
        return name
    found = {known.lower(): known for known in names}.get(name.lower())
    if found is None:
        raise place.error(f"there is no column `{name}`", f"the columns are {', '.join(names)}")
    return found


def _check_time(name: str, kind: pa.DataType, place: Place) -> None:
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        raise place.error(
            f"a watermark needs a time column, but `{name}` is {kind}",
            "a TIMESTAMP(3), which reads texts of times, too; of a number, a computed column: ts AS"
            " TO_TIMESTAMP_LTZ(millis, 3)",
        )


def _watermark(statement: WatermarkDefinition, name: str, columns: pa.Schema | None) -> Watermarks:
    """The generator that an expression stands for."""
    tree = statement.expression
    while isinstance(tree, exp.Paren):
        tree = tree.this
    if isinstance(tree, exp.Column) and tree.name.lower() == name.lower():
        return Bounded(0)
    if (
        isinstance(tree, exp.Sub)
        and isinstance(tree.this, exp.Column)
        and tree.this.name.lower() == name.lower()
    ):
        try:
            return Bounded(ticks(tree.expression))
        except ValueError as error:
            raise statement.place.error(str(error)) from None
    if isinstance(tree, exp.Func) and tree.name.lower() in _GENERATORS:
        return _generator(tree, statement.place, columns)
    raise statement.place.error(
        f"the watermark of `{name}` is none that Tidegate knows",
        f"WATERMARK FOR {name} AS {name} - INTERVAL '10' SECOND, or a generator:"
        f" {', '.join(one.upper() for one in _GENERATORS)}",
    )


def _generator(tree: exp.Func, place: Place, columns: pa.Schema | None) -> Watermarks:
    arguments: list[Any] = []
    named: dict[str, Any] = {}
    for one in tree.expressions:
        if isinstance(one, NamedArgument | exp.Kwarg | exp.PropertyEQ):
            named[one.name.lower() or one.this.name.lower()] = _value(
                one.expression, columns, place
            )
        else:
            arguments.append(_value(one, columns, place))
    named.pop("key", None)
    name = tree.name.lower()
    try:
        return Implied() if name == "newest" else getattr(watermarks, name)(*arguments, **named)
    except (SpecError, TypeError, ValueError) as error:
        raise place.error(f"the watermark {tree.sql()} is wrong: {error}") from None


def _value(tree: exp.Expr, columns: pa.Schema | None, place: Place) -> Any:
    """An argument of a generator: an interval in microseconds, a column, a literal or a list."""
    match tree:
        case exp.Interval():
            return f"{ticks(tree)} us"
        case exp.Column():
            return _named(tree.name, columns, place)
        case exp.Boolean():
            return bool(tree.this)
        case exp.Literal():
            return tree.name if tree.is_string else int(tree.name)
        case exp.Array():
            return [_value(one, columns, place) for one in tree.expressions]
    raise place.error(f"`{tree.sql()}` is no argument of a watermark")


def _watched(found: Watermarks, options: Options) -> Watermarks:
    """The watermark with the options of the table for idleness and partitions."""
    if not isinstance(found, Watched):
        return found
    idle = options.duration("scan.watermark.idle-timeout")
    declared = options.get("scan.watermark.partitions")
    changes: dict[str, Any] = {}
    if idle:
        changes["idle_after"] = idle
    if declared is not None:
        changes["declared"] = (
            tuple(str(number) for number in range(int(declared)))
            if declared.isdecimal()
            else tuple(name.strip() for name in declared.split(","))
        )
    try:
        return dataclasses.replace(found, **changes)
    except SpecError as error:
        raise options.place("scan.watermark.idle-timeout").error(str(error)) from None
