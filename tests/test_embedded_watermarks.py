"""Windows of the embedded operator with every watermark generator, from the public words to the
panes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from support.reference.watermark_tracker import SlowIntake
from support.source_histories import SCHEMA, histories, specs
from tidegate.errors import InputError, SpecMismatchError, WatermarkError
from tidegate.instants import MIN
from tidegate.kernel.watermarks.generators import Observed
from tidegate.kernel.watermarks.marks import Active, Idle, Watermark
from tidegate.spec.watermarks import (
    Bounded,
    Explicit,
    Implied,
    Lagging,
    Noted,
    PerKey,
    Punctuated,
    Watermarks,
)

Row = dict[str, Any]
Opener = Callable[[], Any]
FAR = 10**9


def panes(
    watermark: Watermarks | None,
    *,
    window: Any = None,
    lateness: int = 0,
    tolerance: int = FAR,
    **stream: Any,
) -> tg.Panes:
    """Tumbling windows of 10 us, counted."""
    made = tg.stream(**{"time": "ts", "partition": "p", "watermark": watermark, **stream})
    return counted(made, window, lateness, future_tolerance=f"{tolerance} us")


def counted(made: tg.Stream, window: Any = None, lateness: int = 0, **options: Any) -> tg.Panes:
    windowed = made.window(tg.tumbling(10, unit="us") if window is None else window).allow_lateness(
        lateness, unit="us"
    )
    return windowed.options(**{"future_tolerance": f"{FAR} us", **options}).aggregate(n=tg.count())


def run(watermark: Watermarks | None, **more: Any) -> tg.EmbeddedOperator:
    return panes(watermark, **more).embedded(now=0)


def rows(*times: int | None, p: str | None = "a", **more: Any) -> list[Row]:
    return [{"ts": time, "p": p, **more} for time in times]


def fired(op: tg.EmbeddedOperator) -> list[tuple[int, int]]:
    """Windows with their counts since the last time this was asked."""
    found = [(pane["window_start"], pane["n"]) for pane in op.get_result().panes.to_pylist()]
    op.flush()
    return found


def reasons(op: tg.EmbeddedOperator) -> list[tuple[Any, str]]:
    return [(row["ts"], row["reason"]) for row in op.get_result().late.to_pylist()]


# Every generator closes windows


def test_an_implied_watermark_closes_a_window_with_the_first_event_beyond_it():
    op = run(None)
    op.add_messages(rows(1, 2))
    assert fired(op) == []
    op.add_messages(rows(10))
    assert fired(op) == [(0, 2)]


def test_a_bounded_watermark_waits_for_the_disorder_of_the_slowest_partition():
    op = run(tg.bounded(5, unit="us"))
    op.add_messages(rows(1, 14) + rows(20, p="b"))
    assert (fired(op), op.watermark) == ([], 9)
    op.add_messages(rows(9, 15))
    assert (fired(op), op.watermark) == ([(0, 2)], 10)


def test_an_ascending_watermark_waits_for_nothing_but_the_slowest_partition():
    op = run(tg.ascending(partitions=["a", "b"]))
    op.add_messages(rows(1, 10))
    assert fired(op) == []
    op.add_messages(rows(12, p="b"))
    assert fired(op) == [(0, 1)]


def test_a_lagging_watermark_closes_windows_by_the_clock_alone():
    op = run(tg.lagging("30 us"))
    op.add_messages(rows(1), now=20)
    op.timeout(39)
    assert (fired(op), op.watermark) == ([], 9)
    op.timeout(40)
    assert (fired(op), op.watermark) == ([(0, 1)], 10)


def test_a_punctuated_watermark_closes_windows_where_a_column_says_so():
    op = run(tg.punctuated("wm"))
    op.add_messages([*rows(1, 50, wm=None), *rows(9, wm=9)])
    assert fired(op) == []
    op.add_messages(rows(12, wm=10))
    assert fired(op) == [(0, 2)]


def test_marker_rows_close_windows_and_are_no_events():
    op = run(tg.punctuated(marker="m"))
    op.add_messages([*rows(1, 2, 50, m=False), *rows(10, m=True)])
    assert fired(op) == [(0, 2)]
    stats = op.stats()
    assert (stats["events"], stats["on_time"], stats["late_rows"]) == (3, 3, 0)
    op.finish()
    assert fired(op) == [(50, 1)]


def test_watermarks_that_writers_note_close_windows_and_a_writer_that_is_gone_is_forgotten():
    op = run(tg.noted("wm", forget_after="100 us"), partition=None)
    op.add_messages([{"ts": 1, "writer": "x", "wm": 5}, {"ts": 2, "writer": "y", "wm": 20}])
    op.add_messages([{"ts": 7, "writer": "y", "wm": 30}], now=50)
    assert (fired(op), op.watermark) == ([], 5)
    op.timeout(99)
    assert op.watermark == 5
    op.timeout(100)
    assert (fired(op), op.watermark) == ([(0, 3)], 30)


def halfway(seen: Observed) -> Any:
    """Stays ten behind the newest event of all deliveries so far."""
    seen.state["newest"] = max(seen.state["newest"], int(seen.times.max()))
    return [seen.state["newest"] - 10] * len(seen.partitions)


def test_a_generated_watermark_closes_windows_and_keeps_its_state():
    op = run(tg.generated(halfway, state={"newest": 0}))
    op.add_messages(rows(1, 19))
    assert (fired(op), op.watermark) == ([], 9)
    op.add_messages(rows(20))
    assert fired(op) == [(0, 1)]


def test_an_explicit_watermark_is_told_for_all_or_by_partition():
    op = run(tg.explicit(partitions=["a", "b"]))
    op.add_messages(rows(1) + rows(2, p="b"))
    op.advance_watermark(10, partition="a")
    assert (fired(op), op.watermark) == ([], None)
    op.advance_watermark(12, partition="b")
    assert fired(op) == [(0, 2)]
    op.add_messages(rows(15))
    op.advance_watermark(20)
    assert fired(op) == [(10, 1)]


def test_per_key_watermarks_close_the_windows_of_a_key_by_its_own_events():
    op = run(tg.per_key("0 us", floor="100 us"), key="k")
    op.add_messages([*rows(1, 10, k="x"), *rows(1, k="y")])
    assert [(pane["k"], pane["window_start"]) for pane in op.get_result().panes.to_pylist()] == [
        ("x", 0)
    ]


EVERY: dict[str, tuple[Watermarks, list[Row]]] = {
    "implied": (Implied(), rows(1, 5, 25)),
    "explicit": (Explicit(), rows(1, 5, 30)),
    "bounded": (Bounded(5), rows(1, 5, 30)),
    "lagging": (Lagging(75), rows(1, 5, 30)),
    "column": (Punctuated(column="wm"), [*rows(1, 5, 30, wm=None), *rows(31, wm=25)]),
    "marker": (Punctuated(marker="m"), [*rows(1, 5, 30, m=None), *rows(25, m=True)]),
    "noted": (Noted("wm"), [*rows(1, 5, 30, wm=None, writer="x"), *rows(31, wm=25, writer="x")]),
    "generated": (tg.generated(halfway, state={"newest": 0}), rows(1, 5, 35)),
    "per_key": (PerKey(5, 5), rows(1, 5, 30)),
}
WINDOWS = {
    "tumbling": (tg.tumbling(10, unit="us"), [(0, 2)]),
    "hopping": (tg.hopping("20 us", "10 us"), [(-10, 2), (0, 2)]),
    "session": (tg.session(gap="6 us"), [(1, 2)]),
}


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", EVERY)
def test_every_window_closes_by_every_generator(name, window):
    spec, messages = EVERY[name]
    shape, expected = WINDOWS[window]
    op = run(spec, window=shape, key="k")
    op.add_messages([{**row, "k": "x"} for row in messages], now=100)
    if name == "explicit":
        op.advance_watermark(25)
    assert op.watermark == 25
    assert fired(op) == expected


@pytest.mark.parametrize("name", EVERY)
def test_triggers_by_count_fire_early_under_every_generator(name):
    spec, messages = EVERY[name]
    made = (
        tg.stream(time="ts", partition="p", key="k", watermark=spec)
        .window(tg.tumbling(10, unit="us"))
        .options(future_tolerance=f"{FAR} us")
    )
    op = (
        made.trigger(tg.after_watermark(early=tg.after_count(1)))
        .allow_lateness("0 us")
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    op.add_messages([{**row, "k": "x"} for row in messages], now=100)
    early = [
        pane["n"]
        for pane in op.get_result().panes.to_pylist()
        if pane["window_start"] == 0 and pane["timing"] == "early"
    ]
    assert early == [1, 2]


@pytest.mark.parametrize("axis", ["event_time", "clock", "ordinal", "offset"])
def test_markers_are_events_on_no_axis(axis):
    size = {"unit": "us"} if axis in {"event_time", "clock"} else {}
    op = run(tg.punctuated(marker="m"), window=tg.tumbling(10, axis=axis, **size), offset="o")
    op.add_messages([*rows(1, m=False, o=1), *rows(2, m=True, o=2), *rows(3, m=False, o=3)])
    op.finish()
    assert [n for _, n in fired(op)] == [2]
    assert op.stats()["events"] == 2


def test_a_marker_with_a_bad_time_or_a_bad_value_goes_to_late():
    op = run(tg.punctuated(marker="m"))
    op.add_messages(rows(1, m=False, v=1))
    op.add_messages([*rows(None, m=True, v=1), *rows(10, m=True, v="much")])
    assert (op.watermark, reasons(op)) == (None, [(10, "bad_value"), (None, "null_time")])
    assert op.stats()["unreadable"] == 2


def test_a_marker_from_the_future_closes_nothing_and_leaves_a_trace():
    op = run(tg.punctuated(marker="m"), tolerance=60)
    op.add_messages([*rows(1, m=False), *rows(FAR, m=True)], now=10)
    assert (fired(op), op.watermark) == ([], None)
    assert (op.stats()["markers"], op.stats()["watermarks_refused"]) == (1, 1)


# Partitions that are silent


def test_an_idle_partition_does_not_stall_the_others():
    op = run(tg.bounded(0, idle_after="60 us"))
    op.add_messages(rows(1) + rows(2, p="b"))
    op.add_messages(rows(25, p="b"), now=30)
    assert (fired(op), op.watermark) == ([], 1)
    op.timeout(60)
    assert (fired(op), op.watermark) == ([(0, 2)], 25)


def test_a_declared_partition_that_never_speaks_stalls_nobody_once_it_is_idle():
    op = run(tg.bounded(0, partitions=["a", "b"], idle_after="60 us"))
    op.add_messages(rows(1, 15), now=10)
    assert op.watermark is None
    op.add_messages(rows(16), now=60)
    assert (fired(op), op.watermark) == ([(0, 1)], 16)


def test_a_partition_that_comes_back_is_late_and_then_waited_for():
    op = run(tg.bounded(0, idle_after="60 us"))
    op.add_messages(rows(1) + rows(2, p="b"))
    op.add_messages(rows(25, p="b"), now=60)
    assert op.watermark == 25
    op.add_messages(rows(3), now=61)
    assert (op.watermark, reasons(op)) == (25, [(3, "very_late")])
    fired(op)
    op.add_messages(rows(45, p="b"), now=62)
    assert (op.watermark, fired(op)) == (25, [])
    op.add_messages(rows(31), now=63)
    assert (op.watermark, fired(op)) == (31, [(20, 1)])


def test_one_row_from_the_future_closes_nothing():
    op = run(tg.bounded(0), tolerance=60)
    op.add_messages(rows(1, FAR), now=5)
    assert (fired(op), op.watermark, op.stats()["future"]) == ([], 1, 1)


def test_a_partition_that_sends_only_rows_from_the_future_goes_idle():
    op = run(tg.bounded(0, idle_after="60 us"), tolerance=60)
    op.add_messages(rows(1) + rows(12, p="b"))
    for now in (20, 40, 60):
        op.add_messages(rows(FAR) + rows(12 + now, p="b"), now=now)
    assert (fired(op), op.watermark) == ([(0, 1), (10, 1), (30, 1), (50, 1)], 72)


def test_partitions_say_that_they_are_idle_end_come_and_go():
    op = run(tg.explicit(partitions=2), partition="p")
    op.add_messages(rows(1, p="0") + rows(2, p="1"))
    op.advance_watermark(10, partition="0")
    op.mark_idle(partition="1")
    assert (fired(op), op.watermark) == ([(0, 2)], 10)
    op.add_messages(rows(11, p="1"))
    op.advance_watermark(30, partition="0")
    assert op.watermark == 10, "an event brings the partition back"
    op.end_input(partition="1")
    assert (fired(op), op.watermark) == ([(10, 1)], 30)
    op.add_partition("2")
    op.advance_watermark(40, partition="0")
    assert op.watermark == 30
    op.remove_partition("2")
    assert op.watermark == 40
    op.end_input()
    assert op.watermark == 40


def test_the_end_of_an_input_releases_the_highest_promise_of_its_partitions():
    op = run(tg.bounded(0))
    op.add_messages(rows(1) + rows(25, p="b"))
    op.end_input()
    assert (fired(op), op.watermark) == ([(0, 1)], 25)


# Bad input


@pytest.mark.parametrize(
    ("spec", "message", "text"),
    [
        (tg.punctuated("wm"), {"ts": 1, "p": "a"}, "no column `wm`"),
        (tg.punctuated(marker="m"), {"ts": 1, "p": "a"}, "no column `m`"),
        (tg.noted("wm", writer="who"), {"ts": 1, "p": "a", "wm": 1}, "no column `who`"),
        (tg.punctuated("wm"), {"ts": 1, "p": "a", "wm": 1.5}, "`wm` has type `double`"),
        (
            tg.punctuated(marker="m"),
            {"ts": 1, "p": "a", "m": "yes"},
            "marker column `m` has type `string`",
        ),
    ],
)
def test_a_column_that_says_no_watermark_is_refused_before_anything_is_taken(spec, message, text):
    op = run(spec, offset="o")
    with pytest.raises(InputError, match=text):
        op.add_messages([{**message, "o": 1}])
    assert (op.stats()["events"], op.resume_offsets(), op.operator.parts) == (0, {}, None)
    good = {"ts": 1, "p": "a", "o": 1, "wm": 1, "m": True, "who": "x"}
    op.add_messages([good])
    assert op.watermark == 1
    with pytest.raises(InputError, match=text):
        op.add_messages(pa.Table.from_pylist([{**message, "o": 2}]))
    assert op.resume_offsets() == {"a": 2}


def test_an_input_that_is_not_there_is_refused():
    op = run(None)
    for call in (
        lambda: op.add_messages(rows(1), input=1),
        lambda: op.advance_watermark(5, input=1),
        lambda: op.mark_idle(input=1),
    ):
        with pytest.raises(
            InputError, match="there is no input 1; the operator has 1, numbered from 0"
        ):
            call()
    assert (op.watermark, op.stats()["events"]) == (None, 0)


HARM = {
    "raises": lambda seen: 1 // 0,
    "type": lambda seen: [1.5],
    "shape": lambda seen: [],
    "state": lambda seen: seen.state.update(x=object()),
}


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM)
def test_a_generator_that_fails_does_not_stop_the_query(harm, tmp_path):
    op = panes(tg.generated(harm)).embedded(store=tg.MemoryStore(tmp_path / "state"), now=0)
    with pytest.warns(RuntimeWarning, match="a watermark generator failed and did not advance"):
        op.add_messages(rows(1, 2))
    op.flush()
    op.advance_watermark(10)
    assert fired(op) == [(0, 2)]
    assert op.stats()["generator_failures"] == 1


def test_a_changed_watermark_over_old_state_is_refused(tmp_path):
    with panes(tg.bounded(5, unit="us")).embedded(
        store=tg.MemoryStore(tmp_path / "state"), now=0
    ) as op:
        op.add_messages(rows(1))
        op.flush()
    for changed in (
        tg.bounded(6, unit="us"),
        tg.bounded(5, unit="us", idle_after="1 s"),
        tg.ascending(),
        tg.punctuated("wm"),
        None,
    ):
        with pytest.raises(SpecMismatchError, match=r"input\.watermark\."):
            panes(changed).embedded(store=tg.MemoryStore(tmp_path / "state"), now=0)


# Strict mode and counters


def test_steps_back_are_counted_and_strict_refuses_them():
    op = run(tg.explicit())
    op.advance_watermark(20)
    op.advance_watermark(10)
    op.advance_watermark(30, partition="a")
    op.advance_watermark(25, partition="a")
    assert (op.stats()["watermark_steps_back"], op.stats()["watermark_advances"], op.watermark) == (
        2,
        2,
        30,
    )
    strict = counted(
        tg.stream(time="ts", partition="p", watermark=tg.punctuated("wm")), strict=True
    ).embedded(now=0)
    strict.add_messages(rows(1, wm=20))
    with pytest.raises(
        WatermarkError,
        match=(
            r"source `a` went back from 1970-01-01T00:00:00.000020Z to 1970-01-01T00:00:00.000010Z"
        ),
    ):
        strict.add_messages(rows(1, wm=10))


def test_whatever_is_said_of_watermarks_leaves_a_trace():
    op = run(tg.punctuated("wm"), tolerance=60)
    op.add_messages([*rows(1, wm=FAR), *rows(2, wm=20), *rows(30, wm=10)])
    op.end_input(partition="a")
    op.add_messages(rows(31, wm=40))
    op.end_input()
    op.advance_watermark(50)
    stats = op.stats()
    assert (
        stats["watermarks_refused"],
        stats["watermark_steps_back"],
        stats["watermarks_after_end"],
    ) == (1, 1, 2)
    assert (stats["events"], op.watermark) == (4, 20)


def test_single_messages_that_wait_for_each_other_bring_an_idle_partition_back_all_the_same():
    op = run(tg.explicit(partitions=["a", "b"]))
    op.add_message(rows(1)[0])
    op.mark_idle(partition="b")
    op.advance_watermark(10, partition="a")
    assert op.watermark == 10
    op.add_message(rows(11, p="b")[0])
    op.advance_watermark(30, partition="a")
    assert op.watermark == 10


def test_a_delivery_that_strict_refuses_can_be_delivered_again():
    made = tg.stream(time="ts", partition="p", offset="o", watermark=tg.punctuated("wm"))
    op = counted(made, strict=True).embedded(now=0)
    op.add_messages(rows(1, wm=5, o=1))
    with pytest.raises(WatermarkError, match="went back"):
        op.add_messages(rows(6, wm=2, o=2))
    assert op.resume_offsets() == {"a": 2}
    op.add_messages(rows(6, wm=None, o=2))
    op.finish()
    assert fired(op) == [(0, 2)]


def test_events_out_of_order_are_no_steps_back():
    op = counted(
        tg.stream(time="ts", partition="p", watermark=tg.bounded(0)), strict=True
    ).embedded(now=0)
    op.add_messages(rows(20))
    op.add_messages(rows(10))
    assert op.stats()["watermark_steps_back"] == 0


# Unions


def united(*marks: Watermarks | None, **stream: Any) -> tg.Panes:
    return counted(
        tg.union(
            *(
                tg.stream(**{"time": "ts", "partition": "p", "watermark": mark, **stream})
                for mark in marks
            )
        )
    )


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


# Restarts


@pytest.fixture(params=["memory", pytest.param("rocksdb", marks=pytest.mark.rocksdb)])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    kind = {"memory": tg.MemoryStore, "rocksdb": tg.RocksDBStore}[request.param]
    return lambda: kind(tmp_path / "state")


def traffic(count: int = 40) -> list[Row]:
    """Two partitions that take turns, one of them silent in the middle, with all that any generator
    wants to see.
    """
    found = []
    for n in range(count):
        p = "a" if n % 3 or 12 < n < 30 else "b"
        time = 3 * n - (5 if n % 4 == 0 else 0)
        found.append(
            {
                "ts": time,
                "p": p,
                "k": n % 2,
                "wm": 3 * n - 6 if n % 2 else None,
                "m": n % 7 == 6,
                "writer": f"w{n % 2}",
                "o": n,
            }
        )
    return found


RESTARTED: dict[str, Watermarks | None] = {
    "implied": None,
    "bounded": tg.bounded(6, unit="us", idle_after="20 us", partitions=["a", "b"]),
    "realigning": tg.bounded(6, unit="us", idle_after="20 us", realign=True),
    "lagging": tg.lagging("9 us"),
    "column": tg.punctuated("wm", idle_after="20 us"),
    "marker": tg.punctuated(marker="m", idle_after="30 us"),
    "noted": tg.noted("wm", writers=["w0", "w1"], forget_after="40 us"),
    "generated": tg.generated(halfway, state={"newest": 0}, idle_after="20 us"),
    "per_key": tg.per_key("3 us", floor="12 us"),
}


@pytest.mark.parametrize("name", RESTARTED)
def test_a_restart_in_the_middle_changes_no_pane_and_no_watermark(name, open_store):
    spec = panes(RESTARTED[name], key="k", offset="o", lateness=5)

    def play(op: tg.EmbeddedOperator, cut: int | None) -> tuple[list[Any], list[Any], Any]:
        marks, found, late = [], [], []
        for n, message in enumerate(traffic()):
            if cut is not None and n % cut == 0:
                collect(op, found, late)
                op.close()
                op = spec.embedded(store=open_store(), now=max(0, 3 * n - 3))
            op.add_messages([message], now=3 * n)
            marks.append(op.watermark)
        op.timeout(500)
        marks.append(op.watermark)
        op.finish()
        collect(op, found, late)
        stats = {
            name: op.stats()[name]
            for name in ("events", "late_rows", "watermark_steps_back", "watermark_advances")
        }
        op.close()
        return marks, found, (late, stats)

    def collect(op: tg.EmbeddedOperator, found: list[Any], late: list[Any]) -> None:
        result = op.get_result()
        found += [
            (pane["k"], pane["window_start"], pane["n"], pane["timing"])
            for pane in result.panes.to_pylist()
        ]
        late += [(row["o"], row["reason"]) for row in result.late.to_pylist()]
        op.flush()

    undisturbed = play(spec.embedded(now=0), None)
    assert play(spec.embedded(store=open_store(), now=0), 7) == undisturbed
    assert len(undisturbed[1]) > 15


def test_a_union_goes_on_after_a_restart_where_it_was(open_store):
    spec = united(tg.bounded(0, idle_after="60 us"), tg.explicit(), tg.bounded(0), offset="o")
    with spec.embedded(store=open_store(), now=0) as op:
        op.add_messages(rows(1, o=1), input=0)
        op.advance_watermark(20, input=1)
        op.mark_idle(input=2)
        op.add_messages(rows(2, o=1), input=2)
        op.end_input(input=2)
        op.get_result()
        op.flush()
    with spec.embedded(store=open_store(), now=30) as op:
        assert op.watermark == 1
        op.add_messages(rows(1, o=1), input=0)
        assert op.stats()["duplicates"] == 1
        op.timeout(89)
        assert op.watermark == 1, "30 of the 60 were before the restart, and nothing ran in between"
        op.timeout(90)
        assert (fired(op), op.watermark) == ([(0, 2)], 20)


def test_the_time_in_which_nothing_ran_is_no_silence(open_store):
    spec = panes(tg.bounded(0, idle_after="60 us"))
    with spec.embedded(store=open_store(), now=0) as op:
        op.add_messages(rows(1) + rows(25, p="b"))
        op.timeout(50)
        op.flush()
    with spec.embedded(store=open_store(), now=9000) as op:
        op.timeout(9009)
        assert op.watermark == 1
        op.timeout(9010)
        assert op.watermark == 25


def test_the_clock_begins_after_a_restart_where_it_is_told_to(open_store):
    spec = panes(tg.bounded(0), tolerance=60)
    with spec.embedded(store=open_store(), now=0) as op:
        op.add_messages(rows(1))
        op.flush()
    with spec.embedded(store=open_store(), now=500) as op:
        op.add_messages(rows(550))
        assert (op.watermark, op.stats()["future"]) == (550, 0)


def test_the_intake_is_stored_as_json_and_holds_no_python(open_store):
    spec = panes(tg.generated(halfway, state={"newest": 0}))
    with spec.embedded(store=open_store(), now=0) as op:
        op.add_messages(rows(33))
        op.flush()
    store = open_store()
    document = store.get_json("operator")["watermark_tracker"]
    store.close()
    assert document["columns"][0]["0"]["generator"] == {"newest": 33}
    assert json.loads(json.dumps(document)) == document


# Against the reference


def act(op: tg.EmbeddedOperator, slow: SlowIntake, step: tuple[Any, ...], count: int) -> None:
    match step:
        case ("deliver", ordinal, messages, wait):
            now = slow.now + wait
            slow.deliver(ordinal % count, messages, now)
            op.add_messages(pa.Table.from_pylist(messages, SCHEMA), now=now, input=ordinal % count)
        case ("timeout", wait):
            slow.timeout(slow.now + wait)
            op.timeout(slow.now)
        case ("promise", ordinal, value, partition):
            slow.promise(ordinal % count, value, partition)
            op.advance_watermark(value, input=ordinal % count, partition=partition)
        case ("idle", ordinal, partition):
            slow.idle(ordinal % count, partition)
            op.mark_idle(input=ordinal % count, partition=partition)
        case ("end", ordinal, partition):
            slow.end(ordinal % count, partition)
            op.end_input(input=ordinal % count, partition=partition)
        case ("join", ordinal, partition):
            slow.join(ordinal % count, partition)
            op.add_partition(partition, input=ordinal % count)
        case ("leave", ordinal, partition):
            slow.leave(ordinal % count, partition)
            op.remove_partition(partition, input=ordinal % count)


def is_marker(spec: Watermarks, row: Row) -> bool:
    return isinstance(spec, Punctuated) and spec.marker is not None and bool(row["m"])


@given(
    st.lists(specs, min_size=1, max_size=3),
    histories(),
    st.sampled_from([FAR, 10]),
    st.sampled_from(["clock", "clock", "watermark"]),
)
def test_the_watermark_is_that_of_the_reference_after_every_call(
    chosen, history, tolerance, reference
):
    made = tg.union(*(tg.stream(time="ts", partition="p", watermark=spec) for spec in chosen))
    op = counted(made, future_tolerance=f"{tolerance} us", future_reference=reference).embedded(
        now=0
    )
    slow = SlowIntake(chosen, 0, tolerance, reference)
    for step in history:
        before, counts = slow.watermark, op.stats()
        promises = safe_promises(slow)
        act(op, slow, step, len(chosen))
        assert op.watermark == (None if slow.watermark == MIN else slow.watermark), step
        if step[0] != "deliver":
            continue
        ordinal = step[1] % len(chosen)
        events = [
            row for row in step[2] if row["ts"] is not None and not is_marker(chosen[ordinal], row)
        ]
        late = sum(row["ts"] < before for row in events)
        after = op.stats()
        assert (
            after["mildly_late"] + after["very_late"] - counts["mildly_late"] - counts["very_late"]
            == late
        )
        assert not any(
            row["ts"] < before
            for row in events
            if row["ts"] >= promises.get((ordinal, row["p"]), row["ts"] + 1)
        )


def safe_promises(slow: SlowIntake) -> dict[tuple[int, str], int]:
    """What sources promised that were there from the beginning and were never left out: what they
    send at or after it is late nowhere.
    """
    return {
        (ordinal, name): source.promise
        for ordinal, given in enumerate(slow.inputs)
        for name, source in given.sources.items()
        if source.always_active
        and source.state == "active"
        and isinstance(given.spec, Bounded | Punctuated)
    }
