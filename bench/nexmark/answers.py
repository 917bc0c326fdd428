"""The answers of both sides as comparable rows."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.dataset as ds

from bench.nexmark.queries import Query

TIME = pa.timestamp("us")
Row = tuple[Any, ...]


def of_tidegate(query: Query, folder: Path) -> list[Row]:
    """The rows that Tidegate wrote; a list of the greatest rows counts as a row each."""
    table = ds.dataset(folder / "answers", partitioning=None).to_table()
    if "top" in table.schema.names:
        lists: Any = table["top"].combine_chunks()
        rows = lists.flatten()
        table = table.drop_columns("top").take(pc.list_parent_indices(lists))
        for number in range(rows.type.num_fields):
            name = rows.type.field(number).name
            table = table.append_column(name, rows.field(number))
    return _rows(query, table)


def of_flink(query: Query, folder: Path) -> list[Row]:
    """The rows that Flink wrote as CSV files without a header."""
    options = pa.csv.ConvertOptions(
        column_types={name: flink_types(query)[name][1] for name in query.columns}
    )
    read = pa.csv.ReadOptions(column_names=list(query.columns))
    tables = [
        pa.csv.read_csv(path, read_options=read, convert_options=options)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.stat().st_size
    ]
    return _rows(query, pa.concat_tables(tables)) if tables else []


def flink_types(query: Query) -> dict[str, tuple[str, pa.DataType]]:
    """The type of each column of an answer, in SQL and in Arrow."""
    known: dict[str, tuple[str, pa.DataType]] = {
        "window_start": ("TIMESTAMP(3)", TIME),
        "window_end": ("TIMESTAMP(3)", TIME),
    }
    if not query.is_exact:
        known = dict.fromkeys(known, ("TIMESTAMP_LTZ(3)", pa.string()))
    return {
        name: known.get(name, ("STRING", pa.string()) if name == "name" else ("BIGINT", pa.int64()))
        for name in query.columns
    }


def complete(rows: list[Row], query: Query, until: datetime) -> list[Row]:
    """The rows of windows that end by a time, in order.

    Windows that are open when the input ends are fired by Flink and kept open by Tidegate.
    """
    end = query.columns.index("window_end")
    return sorted(row for row in rows if row[end] <= until)


def _rows(query: Query, table: pa.Table) -> list[Row]:
    columns = [table[name] for name in query.columns]
    return list(
        zip(
            *(
                (column.cast(TIME) if pa.types.is_timestamp(column.type) else column).to_pylist()
                for column in columns
            ),
            strict=True,
        )
    )
