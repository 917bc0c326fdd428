"""Tables of an async map: rows for the function, results in one schema, late rows, snapshots."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.embedded.async_executor import error_text
from tidegate.embedded.rows import to_table
from tidegate.errors import CorruptStateError
from tidegate.kernel.watermarks.marks import Mark
from tidegate.operators.async_map.queue import Answer, FailedCall, Row, mark_from_json, mark_to_json
from tidegate.operators.ingest.schema_cast import BROKEN, bindable, cast_to_schema, widened
from tidegate.operators.output import texts

_ADDED = ("reason", "detail")

ResultItem = tuple[str, pa.Table | Mark]
"""("rows", a table), ("late", a table) or ("mark", a mark)."""


@dataclass(frozen=True, eq=False)
class AsyncResults:
    """The output of an async map: result rows, marks and late rows; `items` has all in order."""

    rows: pa.Table
    marks: list[Mark]
    late: pa.Table
    items: tuple[ResultItem, ...]

    def __len__(self) -> int:
        return self.rows.num_rows + self.late.num_rows + len(self.marks)

    def __bool__(self) -> bool:
        return len(self) > 0


ResultItems = list[ResultItem]
"""The items that are offered at once: one table, or consecutive marks."""


class AsyncSchemas:
    """The schemas of input and output; the first value of a column decides its type."""

    def __init__(self) -> None:
        self.input: pa.Schema | None = None
        self.output: pa.Schema | None = None

    def to_tables(self, answers: list[Answer]) -> list[pa.Table | FailedCall | Mark]:
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
            schema = widened(self.output, bindable(table.schema), promotes=True)
            cast = cast_to_schema(table, schema, None)
        except Exception as error:  # noqa: BLE001 - results of a user's function may be anything
            return error_text(error)
        if cast.broken:
            return _first_problem(cast.table)
        self.output = schema
        return cast.table

    def results(self, items: Sequence[ResultItem]) -> AsyncResults:
        rows, late = (
            [table for kind, table in items if kind == wanted and isinstance(table, pa.Table)]
            for wanted in ("rows", "late")
        )
        nothing = self.input.empty_table() if self.input is not None else pa.table({})
        return AsyncResults(
            _concatenated(self.output, rows),
            marks_of(items),
            pa.concat_tables(
                [late_table(nothing, "", texts(None, 0)), *late], promote_options="permissive"
            ),
            tuple(items),
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


def _concatenated(schema: pa.Schema | None, tables: Iterable[pa.Table]) -> pa.Table:
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


def late_table(rows: pa.Table, reason: str, details: pa.Array) -> pa.Table:
    """Late rows with reason and detail; input columns of these names get the prefix `input_`."""
    shown = rows.rename_columns(
        [f"input_{name}" if name in _ADDED else name for name in rows.column_names]
    )
    columns = dict(zip(shown.column_names, shown.columns, strict=True))
    return pa.table(
        {
            **columns,
            "reason": texts(reason, rows.num_rows),
            "detail": details,
        }
    )


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


def marks_of(items: Iterable[ResultItem]) -> list[Mark]:
    """The marks among the items."""
    return [value for _, value in items if not isinstance(value, pa.Table)]


def count_rows(items: Iterable[ResultItem], kind: str) -> int:
    """The number of rows in the tables of a kind."""
    return sum(
        value.num_rows for found, value in items if found == kind and isinstance(value, pa.Table)
    )


def kind_of(item: pa.Table | FailedCall | Mark) -> str:
    """The kind of a released item in the output."""
    return (
        "rows" if isinstance(item, pa.Table) else "late" if isinstance(item, FailedCall) else "mark"
    )


def item_to_json(item: ResultItem, tables: list[pa.Table]) -> list[Any]:
    """An item as JSON; its table is appended to `tables`."""
    kind, value = item
    if isinstance(value, pa.Table):
        tables.append(value)
        return [kind]
    return [kind, mark_to_json(value)]


def item_from_json(document: list[Any], tables: Iterable[pa.Table]) -> ResultItem:
    """The inverse of `item_to_json`; tables are read in the order of writing."""
    if document[0] == "mark":
        return "mark", mark_from_json(document[1])
    for table in tables:
        return document[0], table
    raise CorruptStateError(
        "there are fewer stored tables than results that wait. Hint: restore the state from a copy,"
        " or replay the input"
    )
