"""Watermarks of unions, of further time columns and of chained embedded operators."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

import tidegate as tg
from support.counted_windows import FAR, Row, counted, fired, panes, rows, run, united
from tidegate.kernel.watermarks.marks import Active, Idle, Watermark

# Unions


def test_the_watermark_of_a_union_is_the_least_of_its_streams_whatever_makes_them():
    op = united(tg.bounded(5, unit="us"), tg.punctuated("wm"), tg.explicit()).embedded(now=0)
    op.add_messages(rows(1, 40), input=0)
    op.add_messages([*rows(2, wm=None), *rows(3, wm=30)], input=1)
    assert (fired(op), op.watermark) == ([], None)
    op.advance_watermark(20, input=2)
    assert (fired(op), op.watermark) == ([(0, 3)], 20)
    op.advance_watermark(50, input=2)
    assert op.watermark == 30


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)], ids=str)
@pytest.mark.parametrize("whole", [False, True], ids=["partials", "messages"])
def test_streams_of_a_union_may_have_columns_of_their_own_for_their_watermarks(whole, order):
    made = tg.union(
        tg.stream(time="ts", partition="p", watermark=tg.bounded(0)),
        tg.stream(time="ts", partition="p", watermark=tg.punctuated("wm")),
        tg.stream(time="ts", partition="p", watermark=tg.noted("note", writer="who")),
    )
    aggregate = tg.median("ts") if whole else tg.max("ts")
    op = (
        made.window(tg.tumbling(10, unit="us"))
        .options(future_tolerance=f"{FAR} us")
        .aggregate(value=aggregate)
        .embedded(now=0)
    )
    deliveries = [
        [{"ts": 1, "p": "a"}, {"ts": 40, "p": "a"}],
        [{"ts": 2, "p": "a", "wm": 30}],
        [{"ts": 3, "p": "a", "note": 20, "who": "x"}],
    ]
    for number in order:
        op.add_messages(pa.Table.from_pylist(deliveries[number]), input=number)
    assert op.watermark == 20
    assert [pane["window_start"] for pane in op.get_result().panes.to_pylist()] == [0]


@pytest.mark.parametrize("aggregate", [tg.sum("v"), tg.list_("v")], ids=["partials", "messages"])
def test_streams_of_a_union_may_name_their_columns_differently(aggregate):
    first, second = (
        tg.stream(time=f"t{n}", offset=f"o{n}", partition=f"p{n}", watermark=tg.bounded(0))
        for n in (1, 2)
    )
    windowed = tg.union(first, second).window(tg.tumbling(10, unit="us"))
    op = windowed.aggregate(value=aggregate).embedded(now=0)
    op.add_messages([{"t1": 1, "o1": 1, "p1": "a", "v": 1}], input=0)
    op.add_messages([{"t2": 2, "o2": 1, "p2": "a", "v": 1}] * 2, input=1)
    op.finish()
    assert op.stats()["duplicates"] == 1
    assert op.get_result().panes["value"].to_pylist() in ([2], [[1, 1]])


def test_an_input_that_never_speaks_stalls_no_union_once_it_is_idle():
    op = united(tg.bounded(0), tg.bounded(0, idle_after="60 us")).embedded(now=0)
    op.add_messages(rows(1, 15), now=10)
    op.timeout(59)
    assert (fired(op), op.watermark) == ([], None)
    op.timeout(60)
    assert (fired(op), op.watermark) == ([(0, 1)], 15)


def test_an_input_of_a_union_says_that_it_is_idle_and_comes_back():
    op = united(tg.bounded(0), tg.bounded(0)).embedded(now=0)
    op.add_messages(rows(1), input=0)
    op.add_messages(rows(25), input=1)
    op.mark_idle(input=0)
    assert (fired(op), op.watermark) == ([(0, 1)], 25)
    op.add_messages(rows(30), input=0)
    op.add_messages(rows(50), input=1)
    assert op.watermark == 30
    op.end_input(input=0)
    assert op.watermark == 50


def test_duplicates_of_inputs_are_told_apart():
    op = united(tg.bounded(0), tg.bounded(0), offset="o").embedded(now=0)
    op.add_messages(rows(1, o=7), input=0)
    op.add_messages(rows(2, o=7), input=1)
    op.add_messages(rows(2, o=7), input=1)
    assert (op.stats()["events"], op.stats()["duplicates"]) == (2, 1)
    assert op.resume_offsets() == {"0/a": 8, "1/a": 8}


def test_an_event_of_a_duplicate_promises_nothing():
    op = run(tg.bounded(0), offset="o")
    op.add_messages(rows(5, o=1))
    op.add_messages(rows(99, o=1))
    assert op.watermark == 5


# Windows on another time column, and chains


def test_windows_may_be_made_on_the_second_time_column():
    made = tg.stream(
        time="ts", partition="p", watermark=tg.bounded(0), times={"seen": tg.bounded(5, unit="us")}
    )
    for on, mark, windows in (("ts", 40, [(0, 1)]), ("seen", 15, [(0, 1)]), (None, 40, [(0, 1)])):
        windowed = made.window(tg.tumbling(10, unit="us"), on=on).options(
            future_tolerance=f"{FAR} us"
        )
        op = windowed.aggregate(n=tg.count()).embedded(now=0)
        op.add_messages([{"ts": 5, "seen": 8, "p": "a"}, {"ts": 40, "seen": 20, "p": "a"}])
        assert (op.watermark, fired(op)) == (mark, windows)


def test_the_watermark_key_of_a_window_is_that_of_its_column():
    made = tg.stream(
        time="ts", partition="p", watermark=tg.explicit(), times={"seen": (9, tg.explicit())}
    )
    op = counted(made).embedded(now=0)
    other = (
        made.window(tg.tumbling(10, unit="us"), on="seen").aggregate(n=tg.count()).embedded(now=0)
    )
    op.take_marks([Watermark(10, 0)])
    other.take_marks([Watermark(20, 9)])
    assert (op.watermark, other.watermark) == (10, 20)


def test_marks_of_keys_that_the_window_does_not_have_end_there():
    op = counted(tg.stream(time="ts", watermark=tg.explicit())).embedded(now=0)
    op.take_marks([Watermark(10, 0), Watermark(99, 1), Idle(1), Active(1)])
    assert op.watermark == 10


def test_a_chain_takes_its_watermarks_from_upstream():
    inner = tg.stream().inherit().aggregate(total=tg.sum("n")).embedded(now=0)
    outer = panes(tg.bounded(0, idle_after="60 us")).embedded(now=0, downstream=inner)
    outer.add_messages(rows(1) + rows(2, p="b"))
    outer.add_messages(rows(25, p="b"), now=30)
    assert inner.get_result().panes.num_rows == 0
    outer.timeout(60)
    assert [
        (pane["window_start"], pane["total"]) for pane in inner.get_result().panes.to_pylist()
    ] == [(0, 2)]
    assert inner.watermark is not None
    assert inner.watermark <= outer.output_watermark


def test_a_chain_with_windows_of_its_own_has_no_late_panes():
    wide = (
        tg.stream(time="time", watermark=tg.explicit())
        .window(tg.tumbling(20, unit="us"))
        .options(future_tolerance=f"{FAR} us")
    )
    inner = wide.allow_lateness("0 us").aggregate(total=tg.sum("n")).embedded(now=0)
    outer = panes(tg.bounded(0, partitions=["a", "b"])).embedded(now=0, downstream=inner)
    for time in range(0, 100, 3):
        outer.add_messages(rows(time) + rows(time + 5, p="b"))
    outer.finish()
    assert sum(pane["total"] for pane in inner.get_result().panes.to_pylist()) == 68
    assert inner.get_result().late.num_rows == 0


def test_an_idle_upstream_of_a_union_is_not_waited_for_and_its_activity_is():
    op = united(tg.explicit(), tg.explicit(), partition=None).embedded(now=0)
    op.take_marks([Watermark(10)], input=0)
    op.take_marks([Watermark(50)], input=1)
    op.take_marks([Idle()], input=0)
    assert op.watermark == 50
    op.take_marks([Active()], input=0)
    op.take_marks([Watermark(90)], input=1)
    assert op.watermark == 50
    op.take_marks([Watermark(60)], input=0)
    assert op.watermark == 60


def test_an_async_map_forwards_the_watermarks_of_all_columns_and_a_window_takes_its_own():
    async def same(row: Row) -> Row:
        await asyncio.sleep(0)
        return row

    made = tg.stream(time="ts", watermark=tg.bounded(0), times={"seen": tg.bounded(5, unit="us")})
    window = counted(tg.stream(time="seen", watermark=tg.explicit(), watermark_key=1)).embedded(
        now=0
    )
    with made.async_map(same).embedded(downstream=window, now=0) as mapped:
        mapped.add_messages([{"ts": 5, "seen": 8}, {"ts": 40, "seen": 20}], now=FAR)
        mapped.finish()
        assert [
            (pane["window_start"], pane["n"]) for pane in window.get_result().panes.to_pylist()
        ] == [(0, 1), (20, 1)]
