"""Windows of the embedded operator with every watermark generator, from the API to panes."""

from __future__ import annotations

import pyarrow as pa
import pytest

import tidegate as tg
from support.counted_windows import FAR, Row, counted, fired, halfway, panes, reasons, rows, run
from tidegate.errors import InputError, SpecMismatchError, WatermarkError
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
    assert (op.stats()["events"], op.resume_offsets(), op.operator.wiring) == (0, {}, None)
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
