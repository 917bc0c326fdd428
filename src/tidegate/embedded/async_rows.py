"""What an async map takes and gives, as tables: rows for the function, results in one schema, late
rows, and all of it stored.
"""

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
from tidegate.operators.async_map.queue import Answer, Failed, Row, mark_from_json, mark_to_json
from tidegate.operators.ingest.schema_cast import BROKEN, bindable, cast_to_schema, widened
from tidegate.operators.output import texts

_ADDED = ("reason", "detail")

Piece = tuple[str, pa.Table | Mark]
"""("rows", a table), ("late", a table) or ("mark", a mark)."""


@dataclass(frozen=True, eq=False)
class AsyncResults:
    """What an async map put out: result rows, marks and late rows; `items` has them in their
    order.
    """

    rows: pa.Table
    marks: list[Mark]
    late: pa.Table
    items: tuple[Piece, ...]

    def __len__(self) -> int:
        return self.rows.num_rows + self.late.num_rows + len(self.marks)

    def __bool__(self) -> bool:
        return len(self) > 0


Pieces = list[Piece]
"""What is handed over at once: one table, or marks next to each other."""


class Forms:
    """The columns of what comes in and of what goes out; the first value of a column says what the
    others have to look like.
    """

    def __init__(self) -> None:
        self.input: pa.Schema | None = None
        self.output: pa.Schema | None = None

    def rendered(self, answers: list[Answer]) -> list[pa.Table | Failed | Mark]:
        """The results as tables; where some do not fit, their messages have failed."""
        whole = self._fitted([row for answer in answers for row in answer.results])
        if isinstance(whole, pa.Table):
            return [whole]
        alone = [(answer, self._fitted(answer.results)) for answer in answers]
        return [
            found if isinstance(found, pa.Table) else Failed(answer.row, found)
            for answer, found in alone
        ]

    def _fitted(self, rows: list[Row]) -> pa.Table | str:
        """The rows in the columns of the output, which may become wider for them, or why they do
        not fit.
        """
        try:
            table = to_table(rows, self.output)
            schema = widened(self.output, bindable(table.schema), promotes=True)
            conformed = cast_to_schema(table, schema, None)
        except Exception as error:  # noqa: BLE001 - what a user's function gave can be anything
            return error_text(error)
        if conformed.broken:
            return _first_problem(conformed.table)
        self.output = schema
        return conformed.table

    def results(self, pieces: Sequence[Piece]) -> AsyncResults:
        rows, late = (
            [table for kind, table in pieces if kind == wanted and isinstance(table, pa.Table)]
            for wanted in ("rows", "late")
        )
        nothing = self.input.empty_table() if self.input is not None else pa.table({})
        return AsyncResults(
            _together(self.output, rows),
            marks_of(pieces),
            pa.concat_tables(
                [late_table(nothing, "", texts(None, 0)), *late], promote_options="permissive"
            ),
            tuple(pieces),
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


def _together(schema: pa.Schema | None, tables: Iterable[pa.Table]) -> pa.Table:
    """All tables in the columns that the last of them has."""
    if schema is None:
        return pa.table({})
    return pa.concat_tables([schema.empty_table(), *(_brought(table, schema) for table in tables)])


def _brought(table: pa.Table, schema: pa.Schema) -> pa.Table:
    known = table.column_names
    # Not safe only where a whole number beyond 2**53 stands next to fractions.
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
    """Late rows with the reason; a column that has the name of one of ours is told apart."""
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


def readable(table: pa.Table) -> tuple[list[Row], pa.Table, list[str]]:
    """The rows as Python values, those that hold what Python cannot (the year 10000), and what that
    is.
    """
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
    """Python's own times end at microseconds, as ours do."""
    return pa.schema([field.with_type(_microseconds(field.type)) for field in schema])


def _microseconds(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    return pa.time64("us") if kind == pa.time64("ns") else kind


def unfit(rows: list[Row]) -> str | None:
    """Why no table can hold the rows; None where one can."""
    try:
        table = to_table(rows, None)
    except Exception as error:  # noqa: BLE001 - what a user's function gave can be anything
        return error_text(error)
    return _first_problem(table) if BROKEN in table.column_names else None


def _first_problem(table: pa.Table) -> str:
    return f"TypeError: {table.column(BROKEN).drop_null()[0].as_py()}"


def marks_of(pieces: Iterable[Piece]) -> list[Mark]:
    """The marks among the pieces."""
    return [value for _, value in pieces if not isinstance(value, pa.Table)]


def count_rows(pieces: Iterable[Piece], kind: str) -> int:
    """How many rows the tables of a kind have."""
    return sum(
        value.num_rows for found, value in pieces if found == kind and isinstance(value, pa.Table)
    )


def kind_of(item: pa.Table | Failed | Mark) -> str:
    """Which kind of piece becomes of an item."""
    return "rows" if isinstance(item, pa.Table) else "late" if isinstance(item, Failed) else "mark"


def written(piece: Piece, tables: list[pa.Table]) -> list[Any]:
    """A piece as JSON; its table goes to the others."""
    kind, value = piece
    if isinstance(value, pa.Table):
        tables.append(value)
        return [kind]
    return [kind, mark_to_json(value)]


def reread(document: list[Any], tables: Iterable[pa.Table]) -> Piece:
    """The inverse of `written`; tables come in the order in which they went."""
    if document[0] == "mark":
        return "mark", mark_from_json(document[1])
    for table in tables:
        return document[0], table
    raise CorruptStateError(
        "there are fewer stored tables than results that wait. Hint: restore the state from a copy,"
        " or replay the input"
    )
