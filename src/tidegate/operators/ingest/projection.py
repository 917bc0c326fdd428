"""Evaluation of projections by DuckDB, on whole Arrow tables; failing rows cost only themselves.

DuckDB runs in the process of the operator, with one thread. Columns that an expression only names
are not copied.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import MissingExtraError, SpecError
from tidegate.kernel.accumulations.filtered import isolate
from tidegate.kernel.frame import to_arrow
from tidegate.operators.ingest.delivery import Arrival
from tidegate.operators.ingest.schema_cast import BROKEN
from tidegate.spec.operator import Input
from tidegate.spec.projection import Projection, Unnest, referenced

_local = threading.local()
_ROWS = "rows"


@dataclass(frozen=True, slots=True, eq=False)
class ProjectedRows:
    """The rows behind projections."""

    rows: pa.Table
    observed: pa.Table
    """The same with the rows that a condition dropped, which determine the watermark, too."""


def project(table: pa.Table, projections: Sequence[Projection]) -> ProjectedRows:
    """The rows behind projections, one after the other.

    A row for which an expression fails stays, with null, and is marked as broken.
    """
    kept: np.ndarray | None = None
    for projection in projections:
        if projection.unnest is not None:
            table, kept = _unnested(table, projection.unnest), None
        table, mask = _apply(table, projection)
        kept = mask if kept is None else kept if mask is None else kept & mask
    rows = table if kept is None or kept.all() else table.filter(pa.array(kept))
    return ProjectedRows(rows, table)


def project_arrivals(
    inputs: Sequence[Input], arrivals: Sequence[Arrival], observed: Sequence[Arrival] | None
) -> tuple[list[Arrival], list[Arrival] | None]:
    """The arrivals behind the projections of their inputs, and the rows that watermarks follow.

    The latter are `observed` if given, None if they are the arrivals.
    """
    if not any(inputs[arrival.ordinal].projections for arrival in arrivals):
        return list(arrivals), None if observed is None else list(observed)
    found = [
        (arrival.ordinal, project(arrival.table, inputs[arrival.ordinal].projections))
        for arrival in arrivals
    ]
    if observed is None and any(one.rows is not one.observed for _, one in found):
        observed = [Arrival(ordinal, _well_formed(one.observed)) for ordinal, one in found]
    rows = [Arrival(ordinal, one.rows) for ordinal, one in found]
    return rows, None if observed is None else list(observed)


def _well_formed(table: pa.Table) -> pa.Table:
    """The rows that are not broken: others are no progress of their source."""
    if BROKEN not in table.column_names:
        return table
    return table.filter(table.column(BROKEN).is_null()).drop_columns([BROKEN])


def projected_schema(schema: pa.Schema, projections: Sequence[Projection]) -> pa.Schema:
    """The columns behind projections; raises `SpecError` if an expression does not fit."""
    if not projections:
        return schema
    return project(schema.empty_table(), projections).rows.schema


@dataclass(frozen=True)
class SqlCondition:
    """A condition in the SQL of DuckDB as a function over rows, such as the `where` of a join."""

    text: str

    def __post_init__(self) -> None:
        # Stored specifications know a function by its name.
        object.__setattr__(self, "__qualname__", f"sql({self.text})")

    def __call__(self, rows: pa.Table) -> pa.Array:
        return _run(rows, {"": self.text})[""]


def _apply(table: pa.Table, projection: Projection) -> tuple[pa.Table, np.ndarray | None]:
    """The columns of a projection for all rows, and which of them its condition keeps."""
    marks = table.column(BROKEN) if BROKEN in table.column_names else None
    rows = table if marks is None else table.drop_columns([BROKEN])
    texts = {name: text for name, text in projection.columns if referenced(text) is None}
    if projection.where is not None:
        texts[BROKEN] = projection.where
    values, failed = _evaluated(rows, texts)
    # With `keeps="all"`, computed columns follow those of the rows.
    before = projection.stays(rows.column_names) if projection.keeps == "all" else []
    found: dict[str, Any] = {name: rows.column(name) for name in before}
    for name, text in projection.columns:
        column = referenced(text)
        found[name] = values[name] if column is None else _named(rows, column)
    for name in projection.stays(rows.column_names):
        found.setdefault(name, rows.column(name))
    result = pa.table(found) if found else pa.table({}).slice(0, 0)
    if failed is not None:
        texts_of = to_arrow(failed)
        marks = pa.chunked_array([texts_of]) if marks is None else pc.coalesce(marks, texts_of)
    if marks is not None:
        result = result.append_column(BROKEN, marks)
    mask = None
    if projection.where is not None:
        mask = _holds(values[BROKEN])
        # A broken row stays, so that it reaches the late output.
        if marks is not None:
            mask = mask | to_arrow(marks).is_valid().to_numpy(zero_copy_only=False)
    return result, mask


def _named(rows: pa.Table, column: str) -> pa.ChunkedArray:
    if column not in rows.column_names:
        raise SpecError(
            f"there is no column `{column}`; the rows have"
            f" {', '.join(f'`{name}`' for name in rows.column_names)}"
        )
    return rows.column(column)


def _evaluated(
    rows: pa.Table, texts: dict[str, str]
) -> tuple[dict[str, pa.Array], pa.Array | None]:
    """The values of expressions, and what is wrong with each row; None if all rows are fine."""
    if not texts:
        return {}, None
    duckdb = _duckdb()
    try:
        return _run(rows, texts), None
    except (duckdb.DataError, duckdb.OutOfRangeException, duckdb.InvalidInputException) as error:
        if not rows.num_rows:
            raise SpecError(f"an expression cannot be evaluated: {_first_line(error)}") from error
    except duckdb.Error as error:
        raise SpecError(f"an expression does not fit its columns: {_first_line(error)}") from error
    return _isolated(rows, texts)


def _isolated(rows: pa.Table, texts: dict[str, str]) -> tuple[dict[str, pa.Array], pa.Array | None]:
    """The values, null in the rows for which an expression fails, and the failures.

    A row that the condition drops is not broken, whatever its other expressions are.
    """
    values: dict[str, pa.Array] = {}
    problems = pa.nulls(rows.num_rows, pa.string())
    dropped = np.zeros(rows.num_rows, bool)
    for name, text in sorted(texts.items(), key=lambda item: item[0] != BROKEN):
        one = {name: text}
        failed, why = isolate(functools.partial(_run_some, rows, one), len(rows))
        good = np.flatnonzero(~failed)
        place = np.zeros(len(rows), np.int64)
        place[good] = np.arange(len(good))
        found = _run(rows.take(pa.array(good)), one)[name]
        values[name] = found.take(pa.array(place, mask=failed))
        if name == BROKEN:
            dropped = ~failed & ~_holds(values[name])
        counted = failed & ~dropped
        if counted.any():
            shown = "the condition" if name == BROKEN else f"`{name}`"
            what = f"{shown}: {why.partition(': ')[2].splitlines()[0]}"
            marks = pc.if_else(pa.array(counted), what, pa.scalar(None, pa.string()))
            problems = pc.coalesce(problems, marks)
    return values, problems


def _holds(answer: pa.Array) -> np.ndarray:
    """In which rows a condition holds; null is no."""
    kind = answer.type
    if not (pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise SpecError(
            f"a condition is true or false, and this one is of type {kind}. Hint: compare it"
        )
    return answer.cast(pa.bool_()).fill_null(False).to_numpy(zero_copy_only=False)


def _run(rows: pa.Table, texts: dict[str, str]) -> dict[str, pa.Array]:
    """The values of expressions for all rows."""
    if not rows.num_columns:
        # DuckDB has no tables without columns; the number of rows counts.
        rows = pa.table({BROKEN: pa.nulls(rows.num_rows, pa.int8())})
    relation = _connection().from_arrow(rows)
    selected = ", ".join(f'{text} AS "c{number}"' for number, text in enumerate(texts.values()))
    found = relation.project(selected).to_arrow_table()
    return {name: to_arrow(found.column(number)) for number, name in enumerate(texts)}


def _run_some(rows: pa.Table, texts: dict[str, str], index: np.ndarray) -> dict[str, pa.Array]:
    return _run(rows.take(pa.array(index)), texts)


def _connection() -> Any:
    """The connection of this thread, whose time zone is UTC."""
    connection = getattr(_local, "connection", None)
    if connection is None:
        connection = _duckdb().connect(
            ":memory:",
            config={
                "threads": 1,
                "enable_external_access": "false",
                "autoload_known_extensions": "false",
                "autoinstall_known_extensions": "false",
            },
        )
        connection.execute("SET TimeZone = 'UTC'")
        _local.connection = connection
    return connection


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError:
        raise MissingExtraError("duckdb", "sql", "SQL") from None
    return duckdb


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def _unnested(table: pa.Table, unnest: Unnest) -> pa.Table:
    """A row for each element of a list of structs; every new row has an id of its own."""
    lists = to_arrow(table.column(unnest.column)).fill_null([])
    parents = pc.list_parent_indices(lists)
    structs = to_arrow(pc.list_flatten(lists))
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int64)
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    positions = np.arange(len(structs), dtype=np.int64) - starts + 1
    found = table.take(parents).drop_columns([unnest.column])
    for field in unnest.fields:
        found = _with_column(found, field, pc.struct_field(structs, field))
    if unnest.position is not None:
        found = _with_column(found, unnest.position, pa.array(positions))
    if "pane_id" in found.column_names:
        ids = pc.binary_join_element_wise(
            found.column("pane_id"), pa.array(positions).cast(pa.string()), "-"
        )
        found = _with_column(found, "pane_id", ids)
    return found


def _with_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    if name in table.column_names:
        return table.set_column(table.column_names.index(name), name, values)
    return table.append_column(name, values)
