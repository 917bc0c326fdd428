"""The async map on a real event loop: order, bounds, input and specification."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from datetime import UTC, datetime

import pyarrow as pa
import pytest

import tidegate as tg
from support.async_service import BOTH, PATIENCE, TOLD, Row, Service, brief, echo, hear, made, rows
from tidegate.embedded.async_map import EmbeddedAsyncMap
from tidegate.errors import InputError, SpecError
from tidegate.kernel.watermarks.marks import Idle, Watermark
from tidegate.spec.async_map import AsyncMap
from tidegate.spec.operator import Input, TimeColumn
from tidegate.spec.watermarks import Bounded, Explicit, Punctuated

# Order


def test_ordered_results_keep_the_order_of_messages_and_watermarks():
    service = Service()
    with made(service) as mapped:
        mapped.add_messages(rows("a", "b"))
        mapped.advance_watermark(10)
        mapped.add_messages([{"ts": 11, "v": "c"}])
        for v, left in (("c", 2), ("b", 1)):
            service.answer(v)
            hear(mapped, left)
            assert brief(mapped.get_result()) == []
        service.answer("a")
        hear(mapped)
        assert brief(mapped.get_result()) == ["a", "b", Watermark(10), "c"]


def test_unordered_results_leave_at_once_and_watermarks_when_all_before_them_have():
    service = Service()
    with made(service, ordered=False) as mapped:
        mapped.add_messages(rows("a", "b"))
        mapped.advance_watermark(10)
        mapped.add_messages([{"ts": 11, "v": "c"}])
        for v, left, out in (
            ("c", 2, ["c"]),
            ("b", 1, ["c", "b"]),
            ("a", 0, ["c", "b", "a", Watermark(10)]),
        ):
            service.answer(v)
            hear(mapped, left)
            assert brief(mapped.get_result()) == out


@BOTH
def test_equal_rows_are_different_calls(ordered):
    service = Service()
    with made(service, ordered=ordered) as mapped:
        mapped.add_messages([{"ts": 0, "v": 1}] * 3)
        mapped.advance_watermark(1)
        service.wait_for(3)
        for n in range(3):
            assert brief(mapped.get_result()) in ([1] * n, [])
            service.answer(1, {"v": 1, "n": n})
            hear(mapped, 2 - n)
        found = mapped.get_result()
        assert brief(found) == [1, 1, 1, Watermark(1)]
        assert sorted(found.rows["n"].to_pylist()) == [0, 1, 2]


@BOTH
def test_consecutive_results_are_one_table(ordered):
    service = Service()
    with made(service, ordered=ordered) as mapped:
        mapped.add_messages(rows(0, 1, 2))
        for v in range(3):
            service.answer(v)
        while mapped.pending:
            mapped._take_replies(mapped._executor.replies(wait=True))
        assert [kind for kind, _ in mapped.get_result().items] == ["rows"]


@BOTH
def test_idle_marks_wait_for_pending_messages_too(ordered):
    service = Service()
    with made(service, ordered=ordered) as mapped:
        mapped.advance_watermark(5)
        mapped.add_messages(rows("a"))
        mapped.mark_idle()
        assert brief(mapped.get_result()) == [Watermark(5)]
        service.answer("a")
        hear(mapped)
        assert brief(mapped.get_result()) == [Watermark(5), "a", Idle()]


@BOTH
def test_watermarks_of_several_keys_are_forwarded_on_their_own(ordered):
    service = Service()
    given = Input("ts", watermark=Explicit(), others=(TimeColumn("seen", Explicit(), 1),))
    with made(service, given, ordered=ordered) as mapped:
        mapped.add_messages([{"ts": 1, "seen": 2, "v": "a"}])
        for value, key in ((10, 0), (11, 0), (15, 1), (12, 0)):
            mapped.advance_watermark(value, key=key)
        service.answer("a")
        hear(mapped)
        assert brief(mapped.get_result()) == ["a", Watermark(11), Watermark(15, 1), Watermark(12)]


def test_a_watermark_generated_from_the_rows_stands_behind_them():
    with made(echo, Input("ts", watermark=Bounded(2))) as mapped:
        mapped.add_messages(rows("a", "b", "c", "d"))
        mapped.add_messages([{"ts": 9, "v": "e"}])
        mapped.finish()
        assert brief(mapped.get_result()) == [
            "a",
            "b",
            "c",
            "d",
            Watermark(1),
            "e",
            Watermark(7),
            Idle(),
        ]


def test_several_inputs_have_one_watermark():
    with made(echo, TOLD, TOLD) as mapped:
        mapped.add_messages(rows("a"), input=0)
        mapped.add_messages(rows("b"), input=1)
        mapped.advance_watermark(10, input=0)
        mapped.advance_watermark(4, input=1)
        hear(mapped)
        assert brief(mapped.get_result()) == ["a", "b", Watermark(4)]
        with pytest.raises(InputError, match="no input 2"):
            mapped.add_messages(rows("c"), input=2)


def test_rows_that_only_say_a_watermark_are_not_called():
    with made(echo, Input("ts", watermark=Punctuated(marker="mark"))) as mapped:
        mapped.add_messages(
            [
                {"ts": 1, "v": "a", "mark": None},
                {"ts": 3, "v": "m", "mark": True},
                {"ts": 4, "v": "b", "mark": False},
            ]
        )
        hear(mapped)
        assert brief(mapped.get_result()) == ["a", "b", Watermark(3)]
        assert mapped.stats()["markers"] == 1


# Bounds


@BOTH
def test_a_delivery_waits_for_free_slots(ordered):
    service = Service()
    with made(service, ordered=ordered, max_in_flight=2) as mapped:
        adding = threading.Thread(target=mapped.add_messages, args=(rows("a", "b", "c", "d"),))
        adding.start()
        assert service.wait_for(2) == ["a", "b"]
        service.answer("a")
        assert service.wait_for(2) == ["b", "c"]
        assert service.is_quiet
        assert adding.is_alive()
        service.answer("b")
        assert service.wait_for(2) == ["c", "d"]
        adding.join(PATIENCE)
        assert not adding.is_alive()
        assert mapped.pending == 2
        mapped.advance_watermark(3)
        service.answer("c")
        service.answer("d")
        mapped.finish()
        assert sorted(mapped.get_result().rows["v"].to_pylist()) == ["a", "b", "c", "d"]


def test_an_ordered_answer_that_has_to_wait_keeps_its_slot():
    service = Service()
    with made(service, max_in_flight=2) as mapped:
        adding = threading.Thread(target=mapped.add_messages, args=(rows("a", "b", "c"),))
        adding.start()
        service.wait_for(2)
        service.answer("b")
        service.answer("a")
        service.answer("c")
        adding.join(PATIENCE)
        mapped.finish()
        assert brief(mapped.get_result()) == ["a", "b", "c", Idle()]


@BOTH
def test_never_more_calls_than_allowed_run_at_once(ordered):
    running, peak = [0], [0]

    async def count(row: Row) -> Row:
        running[0] += 1
        peak[0] = max(peak[0], running[0])
        for _ in range(row["v"] % 5):
            await asyncio.sleep(0)
        running[0] -= 1
        return row

    with made(count, ordered=ordered, max_in_flight=7) as mapped:
        for start in range(0, 300, 50):
            mapped.add_messages(rows(*range(start, start + 50)))
        mapped.finish()
        assert mapped.get_result().rows.num_rows == 300
    assert peak[0] <= 7


@BOTH
def test_other_calls_do_not_wait(ordered):
    service = Service()
    with made(service, ordered=ordered, max_in_flight=1) as mapped:
        mapped.add_messages(rows("a"))
        mapped.advance_watermark(5)
        mapped.mark_idle()
        mapped.timeout(3)
        mapped.flush()
        assert brief(mapped.get_result()) == []
        assert mapped.pending == 1
        assert mapped.stats()["in_flight"] == 1


# Input


def test_empty_deliveries_change_nothing_and_start_nothing():
    with made(echo) as mapped:
        for nothing in ([], pa.table({"ts": pa.array([], pa.int64())}), pa.table({})):
            mapped.add_messages(nothing)
        assert mapped._executor._loop is None
        found = mapped.get_result()
        assert (len(found), found.rows.num_rows, found.late.num_rows, found.marks) == (0, 0, 0, [])
        assert not found
        mapped.finish()


def test_rows_with_nulls_go_through():
    with made(echo, Input("ts", key=("k",), watermark=Bounded(0))) as mapped:
        mapped.add_messages([{"ts": None, "k": None, "v": None}, {"ts": 4, "k": None, "v": "a"}])
        mapped.add_messages([{"ts": 5, "k": "x"}])
        mapped.finish()
        found = mapped.get_result()
        assert found.rows.select(["ts", "k", "v"]).to_pylist() == [
            {"ts": None, "k": None, "v": None},
            {"ts": 4, "k": None, "v": "a"},
            {"ts": 5, "k": "x", "v": None},
        ]
        assert [mark for mark in found.marks if isinstance(mark, Watermark)] == [
            Watermark(4),
            Watermark(5),
        ]


def test_values_that_do_not_fit_their_column_go_to_late():
    with made(echo) as mapped:
        mapped.add_messages(rows(1))
        mapped.add_messages([{"ts": 2, "v": "text"}, {"ts": 3, "v": 3}, {"ts": "soon", "v": 4}])
        mapped.finish()
        found = mapped.get_result()
        assert found.rows["v"].to_pylist() == [1, 3]
        assert found.late["reason"].to_pylist() == ["bad_value", "bad_value"]
        assert "should be int64" in found.late["detail"][0].as_py()


def test_times_are_given_in_microseconds_and_what_python_cannot_say_goes_to_late():
    nanos = pa.array([1_500, 2**62, None], pa.timestamp("ns", "UTC"))
    far = pa.array([0, 2**62, None], pa.timestamp("us", "UTC"))
    with made(echo, Input("at")) as mapped:
        with pytest.warns(RuntimeWarning, match="nanoseconds"):
            mapped.add_messages(pa.table({"at": nanos, "far": far, "v": [1, 2, 3]}))
        mapped.finish()
        found = mapped.get_result()
        assert found.rows["v"].to_pylist() == [1, 3]
        assert found.rows["at"].to_pylist()[0] == datetime(1970, 1, 1, 0, 0, 0, 1, UTC)
        assert found.late["v"].to_pylist() == [2]


def test_messages_come_as_tables_batches_frames_and_dictionaries():
    pandas = pytest.importorskip("pandas")
    table = pa.table({"ts": [1], "v": [1]})
    with made(echo) as mapped:
        for form in (
            table,
            table.to_batches()[0],
            pandas.DataFrame({"ts": [1], "v": [1]}),
            [{"ts": 1, "v": 1}],
        ):
            mapped.add_messages(form)
        mapped.add_message({"ts": 1, "v": 1})
        mapped.finish()
        assert mapped.get_result().rows["v"].to_pylist() == [1] * 5


def test_a_delivery_that_is_refused_leaves_no_trace():
    with made(echo, Input("ts", offset="offset", watermark=Bounded(0))) as mapped:
        for bad in (
            pa.table({"x": [1]}),
            pa.table([[1], [2], [0], [1]], names=["v", "v", "ts", "offset"]),
            pa.table({"ts": [1], "offset": ["a"]}),
            pa.table({"ts": [[1]], "offset": [1]}),
        ):
            with pytest.raises(InputError):
                mapped.add_messages(bad)
        assert mapped.pending == 0
        assert mapped.resume_offsets() == {}
        mapped.add_messages([{"ts": 1, "offset": 1, "v": "a"}])
        mapped.finish()
        assert mapped.stats()["events"] == 1


def test_duplicates_are_recognised_by_partition_and_offset():
    given = Input("ts", offset="offset", partition="p", watermark=Explicit())
    with made(echo, given) as mapped:
        first = [{"ts": 0, "p": "x", "offset": n, "v": f"x{n}"} for n in (2, 1, 1, 3)]
        mapped.add_messages(first)
        mapped.add_messages(
            [
                *first,
                {"ts": 0, "p": "y", "offset": 1, "v": "y1"},
                {"ts": 0, "p": "x", "offset": 4, "v": "x4"},
            ]
        )
        mapped.finish()
        assert brief(mapped.get_result()) == ["x1", "x2", "x3", "x4", "y1", Idle()]
        assert mapped.resume_offsets() == {"x": 5, "y": 2}
        assert mapped.stats()["duplicates"] == 5


def test_partitions_of_several_inputs_are_told_apart():
    given = Input("ts", offset="offset", watermark=Explicit())
    with made(echo, given, given) as mapped:
        for number in (0, 1, 0):
            mapped.add_messages([{"ts": 0, "offset": 3, "v": number}], input=number)
        mapped.finish()
        assert brief(mapped.get_result()) == [0, 1, Idle()]
        assert mapped.resume_offsets() == {"0/": 4, "1/": 4}


def test_silent_sources_fall_idle_by_the_clock():
    with made(
        echo, Input("ts", watermark=tg.bounded(0, unit="us", idle_after="1 second"))
    ) as mapped:
        mapped.add_messages(rows("a"), now=0)
        hear(mapped)
        mapped.timeout(2_000_000)
        *before, idle = brief(mapped.get_result())
        assert before == ["a", Watermark(0)]
        assert isinstance(idle, Idle)


# Specification


class Callable_:  # noqa: N801
    async def __call__(self, row: Row) -> Row:
        return row

    async def method(self, row: Row) -> Row:
        return row


@pytest.mark.parametrize(
    "function", [echo, Callable_(), Callable_().method, functools.partial(echo)]
)
def test_coroutine_functions_of_all_kinds_are_taken(function):
    with made(function) as mapped:
        mapped.add_messages(rows("a"))
        mapped.finish()
        assert brief(mapped.get_result()) == ["a", Idle()]


@pytest.mark.parametrize(
    "wrong",
    [
        {"function": lambda row: row},
        {"function": None},
        {"function": "echo"},
        {"ordered": 1},
        {"max_in_flight": 0},
        {"max_in_flight": 1.5},
        {"max_in_flight": True},
        {"timeout": 0},
        {"timeout": 2**63 - 1},
        {"timeout": 2**62, "retries": 4},
        {"retries": -1},
        {"backoff": -1},
    ],
)
def test_a_specification_that_breaks_a_rule_is_refused(wrong):
    with pytest.raises(SpecError):
        AsyncMap(**{"function": echo, **wrong})


def test_a_delivery_that_one_column_refuses_promises_nothing_on_the_others():
    several = tg.stream(time="a", watermark=tg.punctuated("wa"), times={"b": tg.punctuated("wb")})
    with several.async_map(echo, strict=True).embedded(now=0) as mapped:
        mapped.add_messages([{"a": 1, "b": 1, "wa": 5, "wb": 50}])
        with pytest.raises(tg.WatermarkError):
            mapped.add_messages([{"a": 6, "b": 6, "wa": 20, "wb": 40}])
        mapped.finish()
        assert mapped.get_result().marks == [Watermark(5, 0), Watermark(50, 1), Idle()]


def test_inputs_that_cannot_be_served_are_refused():
    with pytest.raises(SpecError, match="needs an input"):
        EmbeddedAsyncMap(AsyncMap(echo), [])
    with pytest.raises(SpecError, match="by `offset=`, not by `id=`"):
        EmbeddedAsyncMap(AsyncMap(echo), [Input("ts", id="event")])


def test_the_words_that_users_write():
    mapped = tg.stream(time="ts", watermark=tg.bounded("1 us")).async_map(
        echo, ordered=False, max_in_flight=3, timeout="1 minute", retries=2, backoff="1 ms"
    )
    with mapped.embedded(now=0) as operator:
        assert operator.spec == AsyncMap(echo, False, 3, 60_000_000, 2, 1_000)
        operator.add_messages(rows("a", "b"))
        operator.finish()
        assert sorted(operator.get_result().rows["r"].to_pylist()) == ["ra", "rb"]


def test_specifications_are_values():
    assert AsyncMap(echo) == AsyncMap(echo)
    assert AsyncMap(echo) != AsyncMap(echo, ordered=False)
    assert json.loads(json.dumps(AsyncMap(echo).to_dict()))["ordered"] is True
