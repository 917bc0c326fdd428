"""Rows for the tests of sinks: panes and late rows as the operator gives them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

import tidegate as tg
from tidegate.operators.changelog import changelog
from tidegate.spark.sinks.base import SinkTarget

MINUTE = 60_000_000
MOMENT = pa.timestamp("us", "UTC")
VALUES = pa.schema([("clicks", pa.int64()), ("spent", pa.float64())])


def pane_schema(key: pa.Schema, values: pa.Schema = VALUES) -> pa.Schema:
    """The columns of panes, without `pane_id`."""
    window = [("window_start", MOMENT), ("window_end", MOMENT)]
    facts = [
        ("op", pa.string()),
        ("timing", pa.string()),
        ("pane", pa.int64()),
        ("is_first", pa.bool_()),
        ("is_last", pa.bool_()),
    ]
    return pa.schema(
        [*key, *window, *facts, *values, ("watermark", MOMENT), ("emitted_at", MOMENT)]
    )


LATE = pa.schema(
    [
        ("user", pa.string()),
        ("ts", MOMENT),
        ("class", pa.string()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("watermark", MOMENT),
        ("windows", pa.list_(pa.struct([("window_start", MOMENT), ("window_end", MOMENT)]))),
        ("emitted_at", MOMENT),
    ]
)


def pane_target(
    query: str,
    *,
    mode: str = "accumulating",
    key: pa.Schema | None = None,
    values: pa.Schema = VALUES,
) -> SinkTarget:
    key = pa.schema([("user", pa.string())]) if key is None else key
    return SinkTarget(query, "panes", pane_schema(key, values), tuple(key.names), mode)


def late_target(query: str) -> SinkTarget:
    return SinkTarget(query, "late", LATE, ("user",), "accumulating")


def panes(target: SinkTarget, rows: Sequence[tuple]) -> pa.Table:
    """Panes from (key, minute of the window or None, op, pane, values ...), with their ids."""
    made: list[dict[str, Any]] = []
    for number, (key, minute, op, pane, *values) in enumerate(rows):
        keys = key if isinstance(key, tuple) else (key,)
        named = {
            field.name: value
            for field, value in zip(
                list(target.schema)[len(target.key) + 7 : -2], values, strict=True
            )
        }
        window = {
            "window_start": None if minute is None else minute * MINUTE,
            "window_end": None if minute is None else (minute + 1) * MINUTE,
        }
        facts = {
            "op": op,
            "timing": "on_time" if pane == 0 else "late",
            "pane": pane,
            "is_first": pane == 0,
            "is_last": False,
        }
        made.append(
            {
                **dict(zip(target.key, keys, strict=True)),
                **window,
                **facts,
                **named,
                "watermark": 9 * MINUTE,
                "emitted_at": 10 * MINUTE,
                "pane_id": f"{number:032x}",
            }
        )
    return pa.Table.from_pylist(made, target.schema.append(pa.field("pane_id", pa.string())))


def late_rows(users: Sequence[str | None]) -> pa.Table:
    window = [{"window_start": 0, "window_end": MINUTE}]
    rows = [
        {
            "user": user,
            "ts": 5,
            "class": "very_late",
            "reason": "late",
            "detail": None,
            "watermark": MINUTE,
            "windows": window,
            "emitted_at": MINUTE,
        }
        for user in users
    ]
    return pa.Table.from_pylist(rows, LATE)


def in_pieces(table: pa.Table, size: int = 1) -> Iterator[pa.Table]:
    """The table as a sink gets it: one after the other, empty ones among them."""
    yield table.slice(0, 0)
    for start in range(0, len(table), size):
        yield table.slice(start, size)


MERGED_SESSIONS = {("ann", 0, 25): 3, ("bob", 0, 10): 1}
"""The current rows of `merging_sessions`: user, window in seconds, clicks."""


def merging_sessions(
    query: str, mode: str, *, feed: bool = False
) -> tuple[SinkTarget, list[pa.Table]]:
    """The output of sessions by batch, of which the last one merges two windows; or its feed."""
    windows = tg.stream(time="ts", key="user", watermark=tg.explicit()).window(tg.session("10 s"))
    pipeline = getattr(windows.trigger(tg.every_element()), mode)().aggregate(clicks=tg.count())
    identity = ("user", "window_start", "window_end")
    batches = []
    with pipeline.embedded(now=0) as operator:
        for events in ([("ann", 0), ("bob", 0)], [("ann", 15)], [("ann", 8)]):
            stamps = pa.array([second * 1_000_000 for _, second in events], MOMENT)
            operator.add_messages(pa.table({"user": [user for user, _ in events], "ts": stamps}))
            found = operator.get_result().panes.drop_columns(["pane_nonspeculative", "time"])
            operator.flush()
            batches.append(changelog(found, identity, mode) if feed else found)
    schema = pa.schema([field for field in batches[0].schema if field.name != "pane_id"])
    return SinkTarget(query, "panes", schema, ("user",), mode), batches
