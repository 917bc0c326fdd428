"""Tables of panes and late rows for sinks, and how Spark calls a task sink."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tidegate.spark.sinks import SinkTarget

STAMP = pa.timestamp("us", "UTC")
PANES = pa.schema(
    [
        ("user", pa.string()),
        ("window_start", STAMP),
        ("op", pa.string()),
        ("n", pa.int64()),
        ("mean", pa.float64()),
    ]
)
WINDOWS = pa.list_(pa.struct([("window_start", STAMP), ("window_end", STAMP)]))
LATE = pa.schema(
    [
        ("ts", STAMP),
        ("price", pa.int64()),
        ("class", pa.string()),
        ("detail", pa.string()),
        ("windows", WINDOWS),
        ("emitted_at", STAMP),
    ]
)
TARGET = SinkTarget("q1", "panes", PANES, ("user",), "retracting")
LATE_TARGET = SinkTarget("q1", "late", LATE, ("user",), "retracting")


def panes(first: int, rows: int = 3, **others: pa.Array) -> pa.Table:
    numbers = list(range(first, first + rows))
    columns: dict[str, Any] = {
        "user": [f"u{number}" for number in numbers],
        "window_start": pa.array(numbers, STAMP),
        "op": ["+"] * rows,
        "n": pa.array(numbers, pa.int64()),
        "mean": pa.array([number / 2 for number in numbers]),
    }
    return pa.table({**columns, **others, "pane_id": [f"{number:032x}" for number in numbers]})


def late_rows(rows: int = 2) -> pa.Table:
    window = [{"window_start": 0, "window_end": 10}]
    columns = {
        "ts": [None] * rows,
        "price": list(range(rows)),
        "class": ["broken"] * rows,
        "detail": [None] * rows,
    }
    columns |= {"windows": [window, *[[]] * (rows - 1)], "emitted_at": [5] * rows}
    return pa.table(
        {field.name: pa.array(columns[field.name], field.type) for field in LATE}, schema=LATE
    )


def write(sink: Any, batch: int, *tasks: list[pa.Table], target: SinkTarget = TARGET) -> None:
    staged = [
        text
        for number, tables in enumerate(tasks)
        for text in sink.stage(target, batch, str(number), iter(tables))
    ]
    sink.publish(target, batch, staged)
