"""The async map with a downstream: order, refusals, windows and chains."""

from __future__ import annotations

from typing import Any

import pytest

import tidegate as tg
from support.async_service import BOTH, Row, Sink, brief, counting, echo, hear, made, rows
from tidegate.embedded.async_map import AsyncResults
from tidegate.errors import BackpressureError, SpecError
from tidegate.kernel.watermarks.marks import Active, Idle, Watermark
from tidegate.spec.operator import Input

# Downstream


@BOTH
def test_a_downstream_gets_everything_in_order(ordered):
    async def function(row: Row) -> Row:
        if row["v"] == "bad":
            raise ValueError("bad")
        return row

    sink = Sink()
    with made(function, ordered=ordered, downstream=sink) as mapped:
        mapped.add_messages(rows("a", "bad", "b"))
        mapped.advance_watermark(5)
        mapped.finish()
        assert sorted(map(str, sink.taken[:3])) == sorted(map(str, ["a", ("late", "bad"), "b"]))
        assert sink.taken[3:] == [Watermark(5), Idle()]
        assert brief(mapped.get_result()) == []


def test_a_refusing_downstream_holds_results_and_input_back():
    sink = Sink(room=1)
    with made(echo, downstream=sink) as mapped:
        mapped.add_messages(rows("a"))
        hear(mapped)
        mapped.advance_watermark(1)
        assert sink.taken == ["a"]
        assert mapped.is_refusing
        for refused in (
            lambda: mapped.add_messages(rows("b")),
            lambda: mapped.advance_watermark(2),
            mapped.finish,
            lambda: mapped.take_marks([]),
        ):
            with pytest.raises(BackpressureError, match="call timeout"):
                refused()
        mapped.timeout()
        assert mapped.is_refusing
        assert brief(mapped.get_result()) == [Watermark(1)]
        sink.room = float("inf")
        mapped.timeout()
        assert not mapped.is_refusing
        mapped.add_messages(rows("b"))
        mapped.finish()
        assert sink.taken == ["a", Watermark(1), "b", Idle()]


def test_a_downstream_that_refuses_in_the_middle_of_a_delivery_gets_the_rest_later():
    sink = Sink(room=1)
    with made(echo, downstream=sink, max_in_flight=1) as mapped:
        mapped.add_messages(rows(*range(20)))
        assert mapped.is_refusing
        sink.room = float("inf")
        mapped.timeout()
        mapped.finish()
        assert sink.taken == [*range(20), Idle()]


def test_what_a_downstream_raises_comes_through_and_nothing_is_lost():
    broken = [True]
    taken: list[Any] = []

    def sink(results: AsyncResults) -> None:
        if broken[0]:
            raise OSError("full")
        taken.extend(brief(results))

    with made(echo, downstream=sink) as mapped:
        mapped._offer = lambda: None  # nothing is offered before both answers are there
        mapped.add_messages(rows("a", "b"))
        hear(mapped)
        del mapped._offer
        with pytest.raises(OSError, match="full"):
            mapped.timeout()
        broken[0] = False
        mapped.timeout()
        mapped.finish()
    assert taken == ["a", "b", Idle()]


@BOTH
def test_windows_downstream_count_what_was_mapped(ordered):
    windows = counting().embedded(now=0)
    with made(echo, ordered=ordered, downstream=windows) as mapped:
        mapped.add_messages([{"ts": t, "v": t} for t in range(25)])
        mapped.advance_watermark(20)
        hear(mapped)
        assert windows.watermark == 20
        assert windows.get_result().panes["n"].to_pylist() == [10, 10]
        mapped.finish()
        assert windows.finished
        assert windows.get_result().panes["n"].to_pylist() == [5]
        assert windows.stats()["late_rows"] == 0


def test_late_rows_wait_where_the_downstream_is_an_operator():
    async def fail(row: Row) -> None:
        raise ValueError("x")

    windows = counting().embedded(now=0)
    with made(fail, downstream=windows) as mapped:
        mapped.add_messages(rows(1, 2))
        mapped.finish()
        assert mapped.get_result().late["v"].to_pylist() == [1, 2]
        mapped.flush()
        assert mapped.get_result().late.num_rows == 0


def test_a_refusal_further_down_comes_up_and_the_end_goes_down():
    room = [False]
    taken: list[int] = []

    def sink(results: tg.Results) -> bool:
        if room[0]:
            taken.extend(results.panes["n"].to_pylist())
        return room[0]

    windows = counting().embedded(downstream=sink, now=0)
    with made(echo, downstream=windows) as mapped:
        mapped.add_messages([{"ts": t, "v": t} for t in range(25)])
        mapped.advance_watermark(10)
        hear(mapped)
        assert windows.is_refusing
        assert not mapped.is_refusing
        mapped.advance_watermark(20)
        assert mapped.is_refusing
        room[0] = True
        mapped.timeout()
        assert not mapped.is_refusing
        assert taken == [10, 10]
        room[0] = False
        mapped.finish()
        assert windows.finished
        room[0] = True
        mapped.timeout()
        assert taken == [10, 10, 5]


def test_async_maps_can_be_chained():
    sink = Sink()
    second = made(echo, downstream=sink, ordered=False)
    with second, made(echo, downstream=second, ordered=False) as first:
        first.add_messages(rows("a", "b"))
        hear(first)
        first.advance_watermark(7)
        first.mark_idle()
        hear(second)
        assert sink.taken == ["a", "b", Watermark(7), Idle()]
        second.take_marks([Active(), Watermark(8), Watermark(9, 5)])
        assert [mark for mark in sink.taken if isinstance(mark, Watermark)] == [
            Watermark(7),
            Watermark(8),
        ]
        first.finish()
        assert second.finished


def test_unordered_results_are_refused_where_offsets_recognise_duplicates():
    for downstream in (
        counting(offset="offset").embedded(now=0),
        made(echo, Input("ts", offset="offset")),
    ):
        with pytest.raises(SpecError, match="would drop results that are out of order"):
            made(echo, ordered=False, downstream=downstream)
        made(echo, ordered=True, downstream=downstream).close()


def test_a_downstream_is_told_the_clock_with_the_rows():
    async def same(row: Row) -> Row:
        return row

    told = (
        tg.stream(time="ts", watermark=tg.explicit())
        .window(tg.tumbling("1 hour"))
        .options(future="reject")
        .aggregate(n=tg.count())
    )
    last = told.embedded(now=0)
    with (
        tg.stream(time="ts", watermark=tg.bounded("1 second"))
        .async_map(same)
        .embedded(now=0, downstream=last) as first
    ):
        for minute in range(10):
            first.add_messages([{"ts": minute * 60_000_000}], now=minute * 60_000_000)
        first.finish()
    assert (last.stats()["future"], last.stats()["late_by_reason"]) == (0, {})
    assert last.get_result().panes["n"].to_pylist() == [10]
