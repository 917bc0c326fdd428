"""The projection of the results that leave a pipeline; rows for which it fails are late rows."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tidegate.operators.ingest.projection import project
from tidegate.operators.ingest.schema_cast import BROKEN
from tidegate.operators.results import Results
from tidegate.spec.projection import Projection


def project_results(results: Results, projections: Sequence[Projection]) -> Results:
    """The results with projected panes; a pane for which an expression fails is in `late`."""
    if not projections:
        return results
    projected = project(results.panes, projections).rows
    if BROKEN not in projected.column_names:
        return Results(projected, results.late)
    broken = projected.column(BROKEN).is_valid()
    failed = projected.filter(broken)
    rows = projected.filter(projected.column(BROKEN).is_null()).drop_columns([BROKEN])
    late = pa.concat_tables([results.late, _late_rows(failed, results.late.schema)])
    return Results(rows, late)


def _late_rows(failed: pa.Table, schema: pa.Schema) -> pa.Table:
    """Late rows that describe panes; they have the columns of the panes that late rows have."""
    given: dict[str, pa.ChunkedArray | pa.Array] = {
        "class": pa.array(["window"] * len(failed), pa.string()),
        "reason": pa.array(["bad_value"] * len(failed), pa.string()),
        "detail": failed.column(BROKEN),
    }
    columns = []
    for field in schema:
        column = given.get(field.name)
        if column is None and field.name in failed.column_names:
            found = failed.column(field.name)
            column = found if found.type == field.type else None
        columns.append(
            pa.nulls(len(failed), field.type) if column is None else column.cast(field.type)
        )
    return pa.table(columns, schema=schema)
