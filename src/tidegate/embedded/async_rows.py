"""The output of an embedded async map: result rows, marks and late rows, in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.errors import CorruptStateError
from tidegate.kernel.watermarks.marks import Mark
from tidegate.operators.async_map.queue import FailedCall, mark_from_json, mark_to_json
from tidegate.operators.async_map.rows import AsyncSchemas, concatenated
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


def results_of(schemas: AsyncSchemas, items: Sequence[ResultItem]) -> AsyncResults:
    """The output of these items."""
    rows, late = (
        [table for kind, table in items if kind == wanted and isinstance(table, pa.Table)]
        for wanted in ("rows", "late")
    )
    nothing = schemas.input.empty_table() if schemas.input is not None else pa.table({})
    return AsyncResults(
        concatenated(schemas.output, rows),
        marks_of(items),
        pa.concat_tables(
            [late_table(nothing, "", texts(None, 0)), *late], promote_options="permissive"
        ),
        tuple(items),
    )


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
