"""Random queries give what the same pipelines of the API give, over the same deliveries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from support.sql_cases import at
from tidegate.api.streams import Panes, Windowed
from tidegate.spec.aggregates import Aggregate

Choice = tuple[str, Callable[..., Any]]

WINDOWS: list[tuple[str, Any]] = [
    ("TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '10' SECOND)", tg.tumbling("10 s")),
    (
        "HOP(TABLE t, DESCRIPTOR(ts), INTERVAL '4' SECOND, INTERVAL '10' SECOND)",
        tg.hopping("10 s", "4 s"),
    ),
    (
        "CUMULATE(TABLE t, DESCRIPTOR(ts), INTERVAL '5' SECOND, INTERVAL '20' SECOND)",
        tg.cumulative("20 s", "5 s"),
    ),
    (
        "TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '10' SECOND, INTERVAL '3' SECOND)",
        tg.tumbling("10 s", offset="3 s"),
    ),
]
AGGREGATES: list[tuple[str, Aggregate]] = [
    ("COUNT(*)", tg.count()),
    ("COUNT(v)", tg.count("v")),
    ("SUM(v)", tg.sum("v")),
    ("MIN(v)", tg.min("v")),
    ("MAX(v)", tg.max("v")),
    ("AVG(v)", tg.mean("v")),
    ("COUNT(DISTINCT v)", tg.count_distinct("v")),
    ("SUM(v) FILTER (WHERE v > 3)", tg.sum("v", where=lambda t: pc.greater(t["v"], 3))),
]
TRIGGERS: list[tuple[str, Any]] = [
    ("AFTER WATERMARK", tg.after_watermark()),
    ("AFTER WATERMARK EARLY AFTER 2 ROWS", tg.after_watermark(early=tg.after_count(2))),
    ("AFTER WATERMARK LATE AFTER 1 ROW", tg.after_watermark(late=tg.after_count(1))),
    (
        "AFTER WATERMARK EARLY EVERY INTERVAL '2' SECOND LATE AFTER 2 ROWS",
        tg.after_watermark(early=tg.every("2 s"), late=tg.after_count(2)),
    ),
]
MODES: dict[str, Callable[[Windowed], Windowed]] = {
    "ACCUMULATING": Windowed.accumulating,
    "DISCARDING": Windowed.discarding,
    "RETRACTING": Windowed.retracting,
}
ROWS = st.lists(
    st.tuples(st.integers(0, 60), st.sampled_from(["a", "b"]), st.none() | st.integers(-5, 9)),
    min_size=1,
    max_size=12,
)
EMITTED = ("k", "window_start", "window_end", "op", "timing", "pane")


def emitted(op: Any, deliveries: list[list[Any]], names: list[str]) -> Counter[Any]:
    """What an operator emits for deliveries, each of which is two seconds after the one before."""
    for number, rows in enumerate(deliveries):
        table = [{"ts": at(second), "k": k, "v": v} for second, k, v in rows]
        op.add_messages(table, now=at(100 + 2 * number))
    op.timeout(at(200))
    op.finish()
    results = op.get_result()
    panes = [tuple(row[name] for name in [*EMITTED, *names]) for row in results.panes.to_pylist()]
    late = [(row["ts"], row["k"], row["reason"]) for row in results.late.to_pylist()]
    return Counter([*panes, *late])


@given(
    window=st.sampled_from(WINDOWS),
    aggregates=st.lists(st.sampled_from(AGGREGATES), min_size=1, max_size=3),
    trigger=st.sampled_from(TRIGGERS),
    mode=st.sampled_from(sorted(MODES)),
    lateness=st.sampled_from([0, 15]),
    deliveries=st.lists(ROWS, min_size=1, max_size=4),
)
def test_a_query_and_its_pipeline_emit_the_same(
    window: tuple[str, Any],
    aggregates: list[tuple[str, Aggregate]],
    trigger: tuple[str, Any],
    mode: str,
    lateness: int,
    deliveries: list[list[Any]],
) -> None:
    names = [f"x{number}" for number in range(len(aggregates))]
    selected = ", ".join(
        f"{text} AS {name}" for name, (text, _) in zip(names, aggregates, strict=True)
    )
    query = tg.sql(
        f"""
        CREATE TABLE t (ts TIMESTAMP(3), k STRING, v BIGINT,
                        WATERMARK FOR ts AS ts - INTERVAL '3' SECOND);
        SELECT k, window_start, window_end, {selected} FROM TABLE({window[0]})
        GROUP BY k, window_start, window_end
        EMIT {trigger[0]} ALLOW LATENESS INTERVAL '{lateness}' SECOND {mode}
        """
    )
    stream = tg.stream(time="ts", key="k", watermark=tg.bounded("3 s"))
    windowed = stream.window(window[1]).trigger(trigger[1]).allow_lateness(f"{lateness} s")
    pipeline: Panes = MODES[mode](windowed).aggregate(
        **{name: one for name, (_, one) in zip(names, aggregates, strict=True)}
    )
    with query.embedded(now=at(100)) as op, pipeline.embedded(now=at(100)) as own:
        assert emitted(op, deliveries, names) == emitted(own, deliveries, names)
