"""Computed columns: results of users' functions, appended to a table when it arrives.

A runtime computes them before rows reach an operator: embedded in the call that delivers them, on
Spark in the edge. So operators know only columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import InputError, SpecError
from tidegate.kernel.accumulations.filtered import describe, isolate
from tidegate.kernel.frame import to_arrow
from tidegate.operators.ingest.python_rows import to_table
from tidegate.operators.ingest.schema_cast import BROKEN, CastTable
from tidegate.spec.computed import Computed


def arriving_table(rows: Any, expected: pa.Schema | None, computed: Sequence[Computed]) -> pa.Table:
    """Messages in any form as a table with its computed columns.

    A reader may hand over a `CastTable`, which marks the rows that it could not read.
    """
    table = (
        rows.table
        if isinstance(rows, CastTable)
        else to_table(rows, _without_computed(expected, computed))
    )
    if not {*table.column_names} - {BROKEN} and (
        isinstance(rows, CastTable | Mapping) or len(rows)
    ):
        raise InputError(
            "the first messages have no columns. Hint: a message has its time at least"
        )
    return with_computed_columns(table, computed)


def with_computed_columns(table: pa.Table, computed: Sequence[Computed]) -> pa.Table:
    """The table with computed columns at its end; rows for which a function raises are broken."""
    for column in computed:
        if column.name in table.column_names:
            raise InputError(
                f"the rows have a column `{column.name}`, which is the name of a column that a"
                " function computes. Hint: rename the function, or use the column itself"
            )
        table = _with_column(table, column)
    return table


def _without_computed(schema: pa.Schema | None, computed: Sequence[Computed]) -> pa.Schema | None:
    """The columns that rows bring themselves."""
    if schema is None or not computed:
        return schema
    names = {column.name for column in computed}
    return pa.schema([field for field in schema if field.name not in names])


def _with_column(table: pa.Table, column: Computed) -> pa.Table:
    rows = table.drop_columns([BROKEN]) if BROKEN in table.column_names else table
    try:
        values = _call(column, rows)
    except SpecError:
        raise
    except Exception:  # noqa: BLE001 - a user's function may raise anything
        return _isolated(table, rows, column)
    return table.append_column(column.name, values)


def _isolated(table: pa.Table, rows: pa.Table, column: Computed) -> pa.Table:
    """The table with null, and a mark, in the rows for which the function raises."""
    failed, why = isolate(lambda index: _call(column, rows.take(pa.array(index))), len(rows))
    good = np.flatnonzero(~failed)
    try:
        values = _call(column, rows.take(pa.array(good)))
    except SpecError:
        raise
    except Exception as problem:
        raise SpecError(
            f"the function of the column `{column.name}` fails"
            f" {'on an empty table' if not len(good) else 'on rows that it accepts one by one'}:"
            f" {describe(problem)}. Hint: use operations over whole columns"
        ) from problem
    place = np.zeros(len(rows), np.int64)
    place[good] = np.arange(len(good))
    taken = values.take(pa.array(place, mask=failed))
    text = f"`{column.name}` raised {why}"
    marks = pc.if_else(pa.array(failed), text, pa.scalar(None, pa.string()))
    if BROKEN in table.column_names:
        marks = pc.coalesce(table.column(BROKEN), marks)
        table = table.drop_columns([BROKEN])
    return table.append_column(column.name, taken).append_column(BROKEN, marks)


def _call(column: Computed, rows: pa.Table) -> pa.Array:
    """The result of a function, as one array with a value for each row."""
    found = column.function(rows)
    if not isinstance(found, pa.Array | pa.ChunkedArray) or len(found) != len(rows):
        came = f"{len(found)} values" if hasattr(found, "__len__") else type(found).__name__
        raise SpecError(
            f"the function of the column `{column.name}` must return an Arrow column with a value"
            f" for each of {len(rows)} rows, got {came}. Hint: use functions of pyarrow.compute"
        )
    return to_arrow(found)
