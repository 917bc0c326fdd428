"""An async map as a step of a pipeline: the same words embedded and at the edge of Spark."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from support.async_service import Service
from support.examples import examples
from support.spark_fakes import Columns, Fleet
from tidegate.errors import SpecError
from tidegate.spark.tasks.shards import ShardLayout
from tidegate.state.memory import MemoryStore

Row = dict[str, Any]
MESSAGES = pa.schema({"ts": pa.int64(), "k": pa.string(), "v": pa.int64()})
SHOWN = ("k", "window_start", "window_end", "op", "timing", "n", "total")


async def scripted(row: Row) -> Any:
    """Drops, splits and fails messages by their value."""
    await asyncio.sleep(0.0005 * (7 - row["v"] % 7))
    match row["v"] % 7:
        case 1:
            return None
        case 2:
            raise ConnectionError(f"{row['v']} is down")
        case 3:
            return [{**row, "w": row["v"]}, {**row, "ts": row["ts"] + 5, "w": 1}]
        case 4:
            return "four"
    return {**row, "w": 2 * row["v"]}


def summed(source: Any = None, **more: Any) -> tg.Panes:
    return (
        tg.stream(source, time="ts", key="k", watermark=tg.bounded(5, unit="us"))
        .async_map(scripted, **{"schema": "*, w long", **more})
        .window(tg.tumbling(10, unit="us"))
        .trigger(tg.after_watermark(early=tg.after_count(2), late=tg.after_count(1)))
        .allow_lateness(20, unit="us")
        .aggregate(n=tg.count(), total=tg.sum("w"))
    )


def shown(rows: list[Row], *names: str) -> list[str]:
    return sorted(repr([row[name] for name in names]) for row in rows)


@given(
    deliveries=st.lists(
        st.lists(
            st.tuples(st.integers(0, 60), st.sampled_from("abc"), st.integers(0, 20)), max_size=8
        ),
        max_size=4,
    ),
    ordered=st.booleans(),
)
@examples(25)
def test_differential_embedded_and_the_edge_agree(
    deliveries: list[list[tuple[int, str, int]]], ordered: bool
) -> None:
    fleet = Fleet.of(summed(Columns(MESSAGES), ordered=ordered), ShardLayout.balanced(3))
    with summed(ordered=ordered).embedded(now=100) as op:
        for number, delivery in enumerate(deliveries):
            rows = [{"ts": ts, "k": k, "v": v} for ts, k, v in delivery]
            table = pa.Table.from_pylist(rows, MESSAGES)
            found = fleet.deliver([(0, 0, [table])], 100 + number)
            op.add_messages(table, now=100 + number)
            results = op.get_result()
            op.flush()
            assert shown(found.panes, *SHOWN) == shown(results.panes.to_pylist(), *SHOWN)
            late = ("ts", "k", "v", "reason", "detail")
            assert shown(found.late, *late) == shown(results.late.to_pylist(), *late)
        assert fleet.counters()["late_rows"] == op.stats()["late_rows"]
        if any(deliveries):
            assert fleet.stages[0].watermarks() == {op.watermark}


def test_failures_are_late_rows_with_reason_detail_and_the_message() -> None:
    with summed().embedded(now=0) as op:
        op.add_messages([{"ts": 1, "k": "a", "v": v} for v in (0, 1, 2, 4)])
        late = op.get_result().late.to_pylist()
    assert [(row["v"], row["reason"], row["detail"]) for row in late] == [
        (2, "async_failed", "ConnectionError: 2 is down"),
        (
            4,
            "async_failed",
            "TypeError: a mapping, a list of mappings or None was expected, got str",
        ),
    ]
    assert {(row["ts"], row["k"], row["watermark"], row["emitted_at"]) for row in late} == {
        (1, "a", -4, 0)
    }


def test_the_watermark_follows_messages_also_those_without_a_result() -> None:
    async def none(row: Row) -> None:
        return None

    mapped = tg.stream(time="ts", watermark=tg.bounded(5, unit="us")).async_map(none)
    panes = mapped.window(tg.tumbling(10, unit="us")).aggregate(n=tg.count())
    with panes.embedded(now=0) as op:
        op.add_messages([{"ts": 30}])
        assert op.watermark == 25


def test_results_may_have_another_time_and_key_than_messages() -> None:
    async def paid(row: Row) -> Row:
        return {"paid": row["ts"] + 100, "shop": row["k"].upper()}

    panes = (
        tg.stream(time="ts", key="k", watermark=tg.bounded(0, unit="us"))
        .async_map(paid, schema="paid long, shop string")
        .stream(time="paid", key="shop")
        .window(tg.tumbling(10, unit="us"))
        .aggregate(n=tg.count())
    )
    with panes.embedded(now=0) as op:
        op.add_messages([{"ts": 1, "k": "a"}, {"ts": 109, "k": "b"}])
        assert op.get_result().panes.to_pylist() == []
        op.add_messages([{"ts": 110, "k": "b"}])
        assert [
            (row["shop"], row["window_start"], row["n"])
            for row in op.get_result().panes.to_pylist()
        ] == [("A", 100, 1)]


def test_answers_keep_the_order_of_messages_or_leave_as_they_come() -> None:
    for ordered, expected in ((True, [1, 2, 3]), (False, [3, 2, 1])):
        answered = {v: threading.Event() for v in (1, 2, 3, 4)}
        answered[4].set()

        async def backwards(row: Row, answered: Any = answered) -> Row:
            await asyncio.to_thread(answered[row["v"] + 1].wait)
            answered[row["v"]].set()
            return row

        panes = (
            tg.stream(time="ts", key="k", watermark=tg.explicit())
            .async_map(backwards, ordered=ordered)
            .window(tg.tumbling(10, unit="us"))
            .aggregate(all=tg.list_("v"))
        )
        with panes.embedded(now=0) as op:
            op.add_messages([{"ts": 1, "k": "a", "v": v} for v in (1, 2, 3)])
            op.finish()
            assert op.get_result().panes["all"].to_pylist() == [expected]


def test_calls_are_bounded_retried_and_timed_out() -> None:
    running: list[int] = []
    most: list[int] = []
    attempts: list[int] = []

    async def slow(row: Row) -> Row:
        running.append(row["v"])
        most.append(len(running))
        attempts.append(row["v"])
        try:
            await asyncio.sleep(0 if row["v"] else 60)
        finally:
            running.remove(row["v"])
        if row["v"] == 1 and attempts.count(1) == 1:
            raise ConnectionError("again")
        return row

    panes = (
        tg.stream(time="ts")
        .async_map(slow, max_in_flight=3, retries=1, backoff="1 ms", timeout="300 ms")
        .window(tg.tumbling(10, unit="us"))
        .aggregate(n=tg.count())
    )
    with panes.embedded(now=0) as op:
        op.add_messages([{"ts": 1, "v": v} for v in range(10)])
        op.finish()
        results = op.get_result()
        assert results.panes["n"].to_pylist() == [9]
        assert results.late.select(["v", "detail"]).to_pylist() == [
            {"v": 0, "detail": "TimeoutError: no answer within 300 milliseconds"}
        ]
    assert max(most) == 3
    assert attempts.count(1) == 2


def test_a_redelivery_after_a_restart_is_called_again_and_counted_once() -> None:
    called: list[int] = []

    async def noted(row: Row) -> Row:
        called.append(row["o"])
        return row

    store = MemoryStore()
    panes = (
        tg.stream(time="ts", offset="o", watermark=tg.bounded(0, unit="us"))
        .async_map(noted)
        .window(tg.tumbling(10, unit="us"))
        .aggregate(n=tg.count())
    )
    op = panes.embedded(store=store, now=0)
    op.add_messages([{"ts": 1, "o": 0}, {"ts": 2, "o": 1}])
    op.flush()
    op = panes.embedded(store=store, now=0)
    op.add_messages([{"ts": 2, "o": 1}, {"ts": 11, "o": 2}])
    assert op.get_result().panes["n"].to_pylist() == [2]
    assert called == [0, 1, 1, 2]
    op.close()


def test_results_that_would_be_duplicates_of_each_other_fail() -> None:
    async def twice(row: Row) -> list[Row]:
        return [row, row] if row["o"] else [{**row, "o": 1}, {**row, "o": 2}]

    panes = (
        tg.stream(time="ts", offset="o")
        .async_map(twice)
        .window(tg.tumbling(10, unit="us"))
        .aggregate(n=tg.count())
    )
    with panes.embedded(now=0) as op:
        op.add_messages([{"ts": 1, "o": 0}, {"ts": 1, "o": 3}])
        op.finish()
        assert op.get_result().panes["n"].to_pylist() == [2]
        assert "have the same `o`" in op.get_result().late["detail"][0].as_py()


def test_declared_columns_decide_which_results_fit() -> None:
    async def answer(row: Row) -> Row:
        return {"ts": row["ts"], **{0: {"w": 1}, 1: {"w": "x"}, 2: {"z": 1}}[row["v"]]}

    mapped = tg.stream(time="ts").async_map(answer, schema="ts long, w double")
    details = [
        "TypeError: `w` should be double, got 'x'",
        "TypeError: the result has a column `z` that is not in its schema. Hint: declare it, for"
        " example schema='*, z string'",
    ]
    rows = [{"ts": 1, "v": v} for v in range(3)]
    with mapped.embedded(now=0) as alone:
        alone.add_messages(rows)
        alone.finish()
        assert alone.get_result().rows.to_pylist() == [{"ts": 1, "w": 1.0}]
        assert alone.get_result().late["detail"].to_pylist() == details
    with mapped.window(tg.tumbling(9, unit="us")).aggregate(w=tg.sum("w")).embedded(now=0) as op:
        op.add_messages(rows)
        op.finish()
        assert op.get_result().panes["w"].to_pylist() == [1.0]
        assert op.get_result().late["detail"].to_pylist() == details


async def tripled(row: Row) -> Row:
    return {**row, "v": 3 * row["v"]}


def combined(*sources: Any) -> dict[str, tg.Panes | tg.Joined]:
    """A mapped stream in a union, in a merge and as a side of a join, beside a plain one."""
    left, right = (
        tg.stream(source, time="ts", key="k", watermark=tg.bounded(5, unit="us"))
        for source in sources
    )
    mapped = left.async_map(tripled, schema="*")
    window = tg.tumbling(10, unit="us")
    return {
        "union": tg.union(mapped, right).window(window).aggregate(total=tg.sum("v")),
        "merge": tg.merge(a=mapped, b=right)
        .window(window)
        .aggregate(total=tg.sum("v", of="a"), n=tg.count()),
        "join": mapped.join(right, window, on="k"),
    }


@pytest.mark.parametrize("kind", ["union", "merge", "join"])
def test_a_mapped_stream_can_be_united_merged_and_joined(kind: str) -> None:
    table = pa.Table.from_pylist([{"ts": t, "k": "a", "v": t} for t in (1, 2, 30)], MESSAGES)
    fleet = Fleet.of(combined(Columns(MESSAGES), Columns(MESSAGES))[kind], ShardLayout.balanced(2))
    found = fleet.deliver([(0, 0, [table]), (1, 1, [table])], 100).panes
    with combined(None, None)[kind].embedded(now=100) as op:
        op.add_messages(table, input=0)
        op.add_messages(table, input=1)
        embedded = op.get_result().panes.to_pylist()
    if kind == "join":
        values = [(row["left_v"], row["right_v"]) for row in found]
        assert sorted(values) == sorted(
            (3 * a, b) for a, b in [(1, 1), (1, 2), (2, 1), (2, 2), (30, 30)]
        )
        assert sorted(values) == sorted((row["left_v"], row["right_v"]) for row in embedded)
    else:
        assert [row["total"] for row in found] == [{"union": 12, "merge": 9}[kind]]
        assert [row["total"] for row in embedded] == [row["total"] for row in found]


def test_markers_are_not_called_and_malformed_messages_are_late() -> None:
    async def same(row: Row) -> Row:
        called.append(row["v"])
        return {"ts": row["ts"], "v": row["v"]}

    called: list[int] = []
    panes = (
        tg.stream(time="ts", watermark=tg.punctuated(marker="mark"))
        .async_map(same)
        .window(tg.tumbling(10, unit="us"))
        .aggregate(n=tg.count())
    )
    with panes.embedded(now=0) as op:
        op.add_messages([{"ts": 1, "v": 1, "mark": None}, {"ts": 10, "v": None, "mark": True}])
        op.add_messages([{"ts": 11, "v": "eleven", "mark": None}])
        assert op.watermark == 10
        assert op.get_result().panes["n"].to_pylist() == [1]
        late = op.get_result().late.to_pylist()
    assert called == [1]
    assert [row["reason"] for row in late] == ["bad_value"]


def test_windows_on_offsets_see_the_results() -> None:
    async def some(row: Row) -> Row | None:
        return None if row["o"] == 1 else row

    def counted(source: Any = None) -> tg.Panes:
        return (
            tg.stream(source, offset="o")
            .async_map(some, schema="*")
            .window(tg.tumbling(2, axis="offset"))
            .aggregate(n=tg.count())
        )

    table = pa.table({"o": [0, 1, 2, 3, 4]})
    fleet = Fleet.of(counted(Columns(table.schema)), ShardLayout.balanced(1))
    found = fleet.deliver([(0, 0, [table])], 1).panes
    with counted().embedded(now=1) as op:
        op.add_messages(table)
        assert op.get_result().panes["n"].to_pylist() == [1, 2] == [row["n"] for row in found]


LOOPS: list[Any] = []


async def looped(row: Row) -> Row:
    LOOPS.append(asyncio.get_running_loop())
    return row


def test_one_event_loop_serves_all_tasks_of_a_worker() -> None:
    LOOPS.clear()
    for _ in range(2):
        panes = (
            tg.stream(Columns(MESSAGES), time="ts", key="k")
            .async_map(looped, schema="*")
            .window(tg.tumbling(10, unit="us"))
            .aggregate(n=tg.count())
        )
        fleet = Fleet.of(panes, ShardLayout.balanced(1))
        fleet.deliver([(0, 0, [pa.table({"ts": [1], "k": ["a"], "v": [1]})])], 100)
    assert len(LOOPS) == 2
    assert LOOPS[0] is LOOPS[1]


def test_what_cannot_run_is_refused_when_it_is_built() -> None:
    source = tg.stream(Columns(MESSAGES), time="ts", key="k")
    counted = source.window(tg.tumbling(10, unit="us")).aggregate(n=tg.count())
    for build, message in (
        (lambda: source.async_map(tripled), r"are declared.*schema='\*, price double'"),
        (lambda: source.async_map(Service(), schema="*"), "cannot be sent to the tasks"),
        (lambda: source.async_map(tripled, schema=7), "`schema` of an async map is"),
        (
            lambda: tg.stream(counted, key="k").async_map(tripled, schema="*"),
            "map the messages before the window",
        ),
        (
            lambda: source.async_map(tripled, schema="*").async_map(tripled, schema="*"),
            "has an async map already",
        ),
        (
            lambda: (
                source.async_map(tripled, schema="*", strict=True)
                .window(tg.tumbling(10, unit="us"))
                .aggregate(n=tg.count())
            ),
            r"options\(strict=True\)",
        ),
        (
            lambda: (
                tg.stream(time="ts", watermark=tg.punctuated("mark"))
                .async_map(tripled)
                .stream(time="mark")
            ),
            "reads the column `mark`",
        ),
    ):
        with pytest.raises(SpecError, match=message):
            build()
    without_key = (
        source.async_map(tripled, schema="ts long")
        .window(tg.tumbling(10, unit="us"))
        .aggregate(n=tg.count())
    )
    with pytest.raises(SpecError, match="have no column `k`"):
        Fleet.of(without_key, ShardLayout.balanced(1))
