"""Rows of an async map: messages as Python values, results in one schema, failures."""

from __future__ import annotations

import base64
from collections.abc import Iterable

import pyarrow as pa

from tidegate.operators.async_map.executor import error_text
from tidegate.operators.async_map.queue import Answer, FailedCall, Row
from tidegate.operators.ingest.python_rows import to_table
from tidegate.operators.ingest.schema_cast import BROKEN, bindable, cast_to_schema, widened
from tidegate.spec.async_map import AsyncMap


class AsyncSchemas:
    """The columns of messages and results.

    Those of the results are declared, or the first value of a column decides its type.
    """

    def __init__(self, spec: AsyncMap) -> None:
        self._spec = spec
        self.input: pa.Schema | None = None
        self.output: pa.Schema | None = None

    def bind(self, messages: pa.Schema) -> None:
        """Set the columns of the messages, and with them declared columns of the results."""
        self.input = messages
        declared = self._spec.columns(messages)
        self.output = self.output if declared is None else declared

    def to_tables(self, answers: list[Answer]) -> list[pa.Table | FailedCall]:
        """The results as tables; a message whose results do not fit the schema has failed."""
        whole = self._to_table([row for answer in answers for row in answer.results])
        if isinstance(whole, pa.Table):
            return [whole]
        alone = [(answer, self._to_table(answer.results)) for answer in answers]
        return [
            found if isinstance(found, pa.Table) else FailedCall(answer.row, found)
            for answer, found in alone
        ]

    def _to_table(self, rows: list[Row]) -> pa.Table | str:
        """The rows in the output schema, which may widen, or why they do not fit."""
        try:
            table = to_table(rows, self.output)
            self._check_declared(table)
            schema = (
                widened(self.output, bindable(table.schema), promotes=True)
                if self._spec.schema is None or self.output is None
                else self.output
            )
            cast = cast_to_schema(table, schema, None)
        except Exception as error:  # noqa: BLE001 - results of a user's function may be anything
            return error_text(error)
        if cast.broken:
            return _first_problem(cast.table)
        self.output = schema
        return cast.table

    def _check_declared(self, table: pa.Table) -> None:
        """Raise for a column that the schema lacks: its values would be lost."""
        if self._spec.schema is None or self.output is None:
            return
        others = [name for name in table.column_names if name not in {*self.output.names, BROKEN}]
        if others:
            raise TypeError(
                f"the result has a column `{others[0]}` that is not in its schema. Hint: declare"
                f" it, for example schema='*, {others[0]} string'"
            )

    def save(self) -> list[str | None]:
        return [
            None if schema is None else base64.b64encode(schema.serialize().to_pybytes()).decode()
            for schema in (self.input, self.output)
        ]

    def restore(self, document: list[str | None]) -> None:
        self.input, self.output = (
            None if text is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
            for text in document
        )


def concatenated(schema: pa.Schema | None, tables: Iterable[pa.Table]) -> pa.Table:
    """All tables, cast to the schema of the last one."""
    if schema is None:
        return pa.table({})
    return pa.concat_tables([schema.empty_table(), *(_cast(table, schema) for table in tables)])


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    known = table.column_names
    # Unsafe only for integers beyond 2**53 in a column of floats.
    columns = [
        (
            table.column(f.name).cast(f.type, safe=False)
            if f.name in known
            else pa.nulls(table.num_rows, f.type)
        )
        for f in schema
    ]
    return pa.table(columns, schema=schema)


def python_rows(table: pa.Table) -> tuple[list[Row], pa.Table, list[str]]:
    """The rows as Python values, the rows that Python cannot hold (the year 10000), and errors."""
    nothing = table.slice(0, 0)
    try:
        return rows_of([table]), nothing, []
    except (ValueError, OverflowError, pa.ArrowException):
        rows, bad, errors = [], [], []
    for number in range(table.num_rows):
        try:
            rows += rows_of([table.slice(number, 1)])
        except (ValueError, OverflowError, pa.ArrowException) as error:
            bad.append(number)
            errors.append(error_text(error))
    return rows, table.take(pa.array(bad, pa.int64())), errors


def rows_of(tables: Iterable[pa.Table]) -> list[Row]:
    """All rows as Python values."""
    return [
        row
        for table in tables
        for row in table.cast(_in_microseconds(table.schema), safe=False).to_pylist()
    ]


def _in_microseconds(schema: pa.Schema) -> pa.Schema:
    """The schema in microseconds, the resolution of Python's own times."""
    return pa.schema([field.with_type(_microseconds(field.type)) for field in schema])


def _microseconds(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    return pa.time64("us") if kind == pa.time64("ns") else kind


def table_error(rows: list[Row]) -> str | None:
    """Why no table can hold the rows; None if one can."""
    try:
        table = to_table(rows, None)
    except Exception as error:  # noqa: BLE001 - results of a user's function may be anything
        return error_text(error)
    return _first_problem(table) if BROKEN in table.column_names else None


def _first_problem(table: pa.Table) -> str:
    return f"TypeError: {table.column(BROKEN).drop_null()[0].as_py()}"
