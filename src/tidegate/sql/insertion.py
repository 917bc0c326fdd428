"""Inserts: the output of queries on their way into tables."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlglot import exp

from tidegate.api.running import Pipeline
from tidegate.api.streams import Stream
from tidegate.errors import SpecError
from tidegate.spec.operator import AggregateSpec
from tidegate.spec.projection import Projection, reference
from tidegate.sql.connectors import UPSERTS, spark_sink
from tidegate.sql.definitions import TableDefinition
from tidegate.sql.plan import QueryPlan
from tidegate.sql.query import SqlQuery
from tidegate.sql.scalars import duckdb_text
from tidegate.sql.statements import Insert

if TYPE_CHECKING:
    from tidegate.spark.query.handle import Query

_DUCKDB_TYPES = {
    pa.string(): "VARCHAR",
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "REAL",
    pa.float64(): "DOUBLE",
    pa.binary(): "BLOB",
    pa.date32(): "DATE",
    pa.timestamp("us", "UTC"): "TIMESTAMPTZ",
    pa.timestamp("us"): "TIMESTAMP",
}


@dataclass(frozen=True, eq=False)
class Insertion:
    """One `INSERT INTO`."""

    query: SqlQuery
    target: TableDefinition
    late: TableDefinition | None = None
    """The table that receives the late rows of the query, in the same run."""

    def __repr__(self) -> str:
        return f"INSERT INTO {self.target.name}: {self.query!r}"

    @property
    def is_late(self) -> bool:
        """Whether the rows are late rows."""
        return all(branch.late for branch in self.query.plan.branches)

    def explain(self) -> str:
        """The plan of the insert, and of its late rows."""
        found = f"Insert into {self.target.name}\n" + _indented(self.query.explain())
        if self.late is None or self.query.late is None:
            return found
        names = ", ".join(name for name, _ in self.query.late.select.columns)
        late = f"Late rows{': ' if names else ''}{names}"
        return f"{found}\nInsert into {self.late.name}\n" + _indented(late)

    def start(
        self, *, checkpoint: str | os.PathLike[str] | None = None, trigger: Any = None
    ) -> Query:
        """Run the insert on Spark; relative paths of tables begin in the folder of the script."""
        query, settings = self.query, self.query.settings
        chosen = trigger or settings.trigger or ("available_now" if query.ends else None)
        root = checkpoint if checkpoint is not None else settings.checkpoint
        where = None if root is None else f"{os.fspath(root).rstrip('/')}/{self.target.name}"
        return query.write(
            spark_sink(self.target, query.folder),
            late=None if self.late is None else spark_sink(self.late, query.folder),
            checkpoint=where,
            trigger=chosen,
        )


@dataclass(frozen=True, eq=False)
class Insertions:
    """The inserts of a script; nothing runs before one of its methods is called."""

    inserts: tuple[Insertion, ...]

    def __repr__(self) -> str:
        return f"Insertions({'; '.join(map(repr, self.inserts))})"

    @property
    def runs_embedded(self) -> bool:
        """Whether all tables can be read and written without Spark."""
        return all(one.query.runs_embedded for one in self.inserts)

    def joined(self) -> Insertions:
        """The inserts, with those of late rows in the run of the query that has them."""
        mains = [one for one in self.inserts if not one.is_late]
        late = [one for one in self.inserts if one.is_late]
        rest = []
        for one in late:
            number = next((n for n, main in enumerate(mains) if _same_rows(main, one)), None)
            if number is None or mains[number].late is not None:
                rest.append(one)
                continue
            mains[number] = dataclasses.replace(
                mains[number],
                late=one.target,
                query=dataclasses.replace(
                    mains[number].query,
                    late=one.query.plan.branches[0],
                    late_output=one.query.output,
                ),
            )
        return Insertions((*mains, *rest))

    def explain(self) -> str:
        """The plans of all inserts."""
        return "\n".join(one.explain() for one in self.inserts)

    def start(
        self, *, checkpoint: str | os.PathLike[str] | None = None, trigger: Any = None
    ) -> list[Query]:
        """Run all inserts on Spark, each as a query."""
        return [one.start(checkpoint=checkpoint, trigger=trigger) for one in self.inserts]


def inserted(statement: Insert, query: SqlQuery, target: TableDefinition) -> Insertion:
    """An insert; refuses columns that the table does not have."""
    wanted = target.written_schema()
    fixed = dict(statement.partition)
    names = list(statement.columns) or [name for name in wanted.names if name not in fixed]
    for name in [*names, *fixed]:
        if name not in wanted.names:
            raise statement.place.error(
                f"the table `{target.name}` has no column `{name}`",
                f"its columns are {', '.join(wanted.names)}",
            )
    twice = next((name for name in names if [*names, *fixed].count(name) > 1), None)
    if twice is not None:
        raise statement.place.error(
            f"the column `{twice}` of `{target.name}` is inserted twice", "name each column once"
        )
    if len(names) != len(query.columns):
        raise statement.place.error(
            f"the query has {len(query.columns)} columns, and"
            f" {len(names)} of `{target.name}` are inserted",
            f"select {', '.join(names)}",
        )
    if target.connector == "upsert-kafka" and not target.primary_key:
        raise statement.place.error(
            f"the rows of `{target.name}` are replaced by key, and it has none",
            "PRIMARY KEY (column) NOT ENFORCED in CREATE TABLE",
        )
    _check_changes(statement, query, target)
    projection = Projection(
        tuple(_written(wanted, _sources(names, query.columns, fixed))),
        keeps="nothing" if not _is_upserted(target) else "protocol",
    )
    return Insertion(
        dataclasses.replace(
            query,
            output=(_with_ids(projection, query, target),),
            identity=target.primary_key,
        ),
        target,
    )


def _sources(
    names: Sequence[str], columns: Sequence[str], fixed: Mapping[str, exp.Expr]
) -> dict[str, str]:
    """By column of a table, the expression over the columns of a query."""
    found = {name: duckdb_text(value) for name, value in fixed.items()}
    return {**found, **dict(zip(names, map(reference, columns), strict=True))}


def _written(wanted: pa.Schema, sources: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The columns of a table, from those of a query."""
    for column in wanted:
        kind = _duckdb_type(column.type)
        value = sources.get(column.name, "NULL")
        yield column.name, value if kind is None else f"CAST({value} AS {kind})"


def _duckdb_type(kind: pa.DataType) -> str | None:
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    return _DUCKDB_TYPES.get(kind)


def _is_upserted(target: TableDefinition) -> bool:
    return target.connector in UPSERTS and bool(target.primary_key)


def _with_ids(projection: Projection, query: SqlQuery, target: TableDefinition) -> Projection:
    """The projection with what a sink needs beside the columns of its table."""
    root = query.plan.branches[0].root
    if isinstance(root, Stream) or query.plan.branches[0].late:
        return projection
    is_pane = isinstance(root.spec, AggregateSpec)
    more = [*(["op"] if _is_upserted(target) else []), *(["pane_id"] if is_pane else [])]
    present = {name for name, _ in projection.columns}
    columns = (
        *projection.columns,
        *((name, reference(name)) for name in more if name not in present),
    )
    return Projection(columns, projection.where)


def _check_changes(statement: Insert, query: SqlQuery, target: TableDefinition) -> None:
    """Refuse retractions that a table cannot tell from rows."""
    for branch in query.plan.branches:
        root = branch.root
        if branch.late or isinstance(root, Stream) or not _retracts(root):
            continue
        if _is_upserted(target) or target.connector in ("print", "blackhole"):
            continue
        if "op" not in query.columns:
            raise statement.place.error(
                f"the query retracts rows, and `{target.name}` cannot tell them from others",
                "select `op` into a column, or EMIT ... ACCUMULATING, or write to a table with a"
                " PRIMARY KEY ('upsert-kafka', 'jdbc')",
            )


def _retracts(root: Pipeline[Any]) -> bool:
    spec = root.spec
    return isinstance(spec, AggregateSpec) and spec.mode == "retracting"


def _indented(text: str) -> str:
    return "  " + text.replace("\n", "\n  ")


def _same_rows(main: Insertion, late: Insertion) -> bool:
    """Whether both inserts read the results of the same operators."""
    return _roots(main.query.plan) == _roots(late.query.plan)


def _roots(plan: QueryPlan) -> Sequence[Any]:
    if any(isinstance(branch.root, Stream) for branch in plan.branches):
        raise SpecError(
            "a query without a window or a join has no late rows. Hint: LATE of a view with a"
            " window"
        )
    return [branch.root.spec for branch in plan.branches if not isinstance(branch.root, Stream)]
