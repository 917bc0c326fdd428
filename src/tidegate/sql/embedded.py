"""A query in this process: operators that feed each other, with input by the name of a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Self

import pyarrow as pa

from tidegate.api.running import Pipeline
from tidegate.api.streams import Stream
from tidegate.embedded.base import EmbeddedBase
from tidegate.errors import InputError
from tidegate.instants import Instant
from tidegate.operators.ingest.projection import project, projected_schema
from tidegate.operators.ingest.python_rows import to_table
from tidegate.operators.ingest.schema_cast import BROKEN, CastTable, bindable, cast_to_schema
from tidegate.operators.projected_output import project_results
from tidegate.operators.results import Results
from tidegate.spec.join import Upstream
from tidegate.spec.operator import AggregateSpec, Input
from tidegate.spec.projection import Projection
from tidegate.sql.binding import bound, bound_stream, step
from tidegate.sql.definitions import TableDefinition
from tidegate.sql.plan import QueryPlan, TableScan
from tidegate.sql.scalars import compile_duckdb


class EmbeddedQuery:
    """A query that runs embedded: rows go in by table, and `get_result` has what comes out."""

    def __init__(
        self,
        plan: QueryPlan,
        tables: Mapping[str, TableDefinition],
        *,
        now: Instant | None = None,
    ) -> None:
        self._tables = tables
        self._now = now
        self._inputs: dict[str, list[_Operator | _Way]] = {}
        self._branches = [self._branch(branch) for branch in plan.branches]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the tables that the query reads."""
        return tuple(self._inputs)

    @property
    def operators(self) -> list[EmbeddedBase]:
        """The operators of the query, each before those that it feeds."""
        return [op for branch in self._branches if isinstance(branch, _Branch) for op in branch.all]

    # Input

    def add_messages(
        self, messages: Any, *, now: Instant | None = None, input: str | None = None
    ) -> None:
        """Process a delivery of a table: Arrow data, a pandas frame, or dictionaries."""
        for port in self._ports(input):
            port.add_messages(messages, now)

    def add_message(
        self, message: Mapping[str, Any], *, now: Instant | None = None, input: str | None = None
    ) -> None:
        """Process one message of a table."""
        self.add_messages([message], now=now, input=input)

    def advance_watermark(
        self, instant: Instant, *, input: str | None = None, partition: str | None = None
    ) -> None:
        """Advance the watermark of a table; default: of all tables."""
        for name in self._inputs if input is None else [input]:
            for port in self._ports(name):
                port.advance_watermark(instant, partition)

    def timeout(self, now: Instant | None = None) -> None:
        """Advance the clock."""
        for op in reversed(self.operators):
            op.timeout(now)

    def finish(self, *, input: str | None = None) -> None:
        """End a table, or without `input` all of them: windows fire when their inputs end."""
        for name in self._inputs if input is None else [input]:
            for port in self._ports(name):
                port.finish()

    # Output

    def get_result(self) -> Results:
        """A copy of the queued results of all branches; they stay queued until `flush`."""
        found = [branch.results() for branch in self._branches]
        return Results(united([one.panes for one in found]), united([one.late for one in found]))

    def flush(self) -> None:
        """Remove the results that were returned, and save the state of all operators."""
        for branch in self._branches:
            branch.flush()

    def close(self) -> None:
        """Close the operators; what was not flushed is lost."""
        for op in self.operators:
            op.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Construction

    def _ports(self, name: str | None) -> list[_Operator | _Way]:
        if name is None:
            if len(self._inputs) != 1:
                raise InputError(
                    f"the query reads {', '.join(f'`{one}`' for one in self._inputs)}. Hint:"
                    f" add_messages(rows, input={next(iter(self._inputs), '')!r})"
                )
            name = next(iter(self._inputs))
        if name not in self._inputs:
            raise InputError(
                f"the query does not read `{name}`, only"
                f" {', '.join(f'`{one}`' for one in self._inputs)}"
            )
        return self._inputs[name]

    def _leaf(self, scan: TableScan, given: Input, spec: Upstream | None) -> tuple[Input, Any]:
        # Late rows of a window are complete; a join names its columns after those of both sides.
        keeps = "all" if isinstance(spec, AggregateSpec) else "nothing"
        definition = self._tables[scan.table]
        projections = (*definition.projections, *step(scan.select, given, keeps=keeps))
        return dataclasses.replace(given, projections=projections), scan

    def _branch(self, branch: Any) -> _Branch | _Passing:
        last = (compile_duckdb(branch.select),) if branch.select else ()
        if isinstance(branch.root, Stream):
            return self._passing(bound_stream(branch.root, self._leaf), last)
        found = _Branch(last, is_late=branch.late)
        root = bound(branch.root, self._leaf)
        found.all = self._built(root, None)
        return found

    def _passing(self, stream: Stream, last: tuple[Projection, ...]) -> _Passing:
        passing = _Passing()
        for given, scan in zip(stream.inputs, stream.sources, strict=True):
            schema = self._tables[scan.table].schema
            way = _Way(passing, (*given.projections, *last), schema)
            self._inputs.setdefault(scan.table, []).append(way)
        return passing

    def _built(self, pipeline: Pipeline[Any], downstream: Any) -> list[EmbeddedBase]:
        """The operators of a pipeline, the last one at the end."""
        op: Any = pipeline.embedded(downstream=downstream, now=self._now)  # type: ignore[attr-defined]
        before: list[EmbeddedBase] = []
        for number, source in enumerate(pipeline.sources):
            if isinstance(source, Pipeline):
                target = op if len(op.inputs) == 1 else op.port(number)
                before += self._built(source, target)
                continue
            schema = self._tables[source.table].schema
            if schema is not None:
                op.expect(bindable(schema), input=number)
            self._inputs.setdefault(source.table, []).append(_Operator(op, number, schema))
        return [*before, op]


class _Operator:
    """One input of an operator that reads a table."""

    def __init__(self, op: EmbeddedBase, number: int, schema: pa.Schema | None) -> None:
        self._op, self._number, self._schema = op, number, schema

    def add_messages(self, messages: Any, now: Instant | None) -> None:
        self._op.add_messages(_marked(messages), now=now, input=self._number)

    def advance_watermark(self, instant: Instant, partition: str | None) -> None:
        self._op.advance_watermark(instant, input=self._number, partition=partition)

    def finish(self) -> None:
        if self._op.finished:
            return
        if len(self._op.inputs) > 1:
            self._op.end_input(input=self._number)
            if len(self._op.ended) < len(self._op.inputs):
                return
        self._op.finish()


class _Way:
    """The way of the rows of a table through a query without an operator."""

    def __init__(
        self, target: _Passing, projections: Sequence[Projection], schema: pa.Schema | None
    ) -> None:
        self._target, self._projections, self._schema = target, projections, schema
        if schema is not None:
            target.add(projected_schema(schema, projections).empty_table())

    def add_messages(self, messages: Any, now: Instant | None) -> None:  # noqa: ARG002
        given = _marked(messages)
        table = given.table if isinstance(given, CastTable) else to_table(given, self._schema)
        if self._schema is not None:
            table = cast_to_schema(table, self._schema, None).table
        self._target.add(project(table, self._projections).rows)

    def advance_watermark(self, instant: Instant, partition: str | None) -> None:
        """Rows pass at once, whatever the watermark is."""

    def finish(self) -> None:
        """Nothing is pending."""


class _Passing:
    """The rows of a query without an operator."""

    def __init__(self) -> None:
        self.all: list[EmbeddedBase] = []
        self._rows: list[pa.Table] = []
        self._fetched = 0

    def add(self, rows: pa.Table) -> None:
        self._rows.append(rows)

    def results(self) -> Results:
        self._fetched = len(self._rows)
        whole = united(self._rows)
        if BROKEN not in whole.column_names:
            return Results(whole, whole.slice(0, 0).select([]))
        broken = whole.column(BROKEN).is_valid()
        late = whole.filter(broken)
        detail = late.column(BROKEN)
        late = late.drop_columns([BROKEN])
        late = late.append_column("reason", pa.array(["bad_value"] * len(late), pa.string()))
        late = late.append_column("detail", detail)
        rows = whole.filter(whole.column(BROKEN).is_null()).drop_columns([BROKEN])
        return Results(rows, late)

    def flush(self) -> None:
        kept = [rows.slice(0, 0) for rows in self._rows[:1]]
        self._rows = [*kept, *self._rows[self._fetched :]]
        self._fetched = 0


class _Branch:
    """A pipeline of the query, and the last scalar step over its rows."""

    def __init__(self, last: tuple[Projection, ...], *, is_late: bool) -> None:
        self.all: list[EmbeddedBase] = []
        self._last, self._is_late = last, is_late

    def results(self) -> Results:
        found = [op.get_result() for op in self.all]
        late = united([one.late for one in found])
        if self._is_late:
            rows = project(late, self._last).rows
            return Results(rows, late.slice(0, 0))
        return project_results(Results(found[-1].panes, late), self._last)

    def flush(self) -> None:
        for op in self.all:
            op.flush()


def _marked(messages: Any) -> Any:
    """A table whose unreadable rows are marked, in the form that operators take."""
    if isinstance(messages, pa.Table) and BROKEN in messages.column_names:
        return CastTable(messages, broken=True)
    return messages


def united(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of all tables; where types of a column differ, it is text."""
    found = [table for table in tables if table.num_columns]
    if not found:
        return pa.table({})
    kept = [table for table in found if table.num_rows] or found[:1]
    try:
        return pa.concat_tables([found[0].slice(0, 0), *kept], promote_options="permissive")
    except pa.ArrowException:
        return pa.concat_tables([_as_text(table) for table in kept], promote_options="default")


def _as_text(table: pa.Table) -> pa.Table:
    columns = [
        pa.array([None if value is None else str(value) for value in column.to_pylist()])
        for column in table.columns
    ]
    return pa.table(dict(zip(table.column_names, columns, strict=True)))
