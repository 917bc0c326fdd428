"""The watermark_tracker: inputs, their partitions and their watermark keys make one watermark,
nobody is waited for in vain, and nobody is forgotten.
"""

from __future__ import annotations

import json
import warnings
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.reference.watermark_tracker import SlowIntake
from support.source_histories import histories, specs, watched
from tidegate.api import stream, union
from tidegate.errors import InputError, SpecError, WatermarkError
from tidegate.instants import MAX, MIN
from tidegate.kernel.watermarks.marks import Active, Idle, Mark, Watermark
from tidegate.operators.ingest.watermark_tracking import (
    PausedSource,
    ReleasedMarks,
    WatermarkTracker,
)
from tidegate.spec.operator import Input, Options, TimeColumn
from tidegate.spec.watermarks import (
    Bounded,
    Explicit,
    Generated,
    Implied,
    Lagging,
    Noted,
    PerKey,
    Punctuated,
    Watermarks,
)
from tidegate.spec.windows import Tumbling

Row = dict[str, Any]
COLUMNS = {
    "ts": pa.int64(),
    "p": pa.string(),
    "wm": pa.int64(),
    "m": pa.bool_(),
    "writer": pa.string(),
    "ts2": pa.int64(),
}
FAR = 10**9


def table(*rows: Row) -> pa.Table:
    return pa.table(
        {name: pa.array([row.get(name) for row in rows], kind) for name, kind in COLUMNS.items()}
    )


def watermark_tracker(*specs: Watermarks | Input, now: int = 0, **options: Any) -> WatermarkTracker:
    inputs = [
        spec if isinstance(spec, Input) else Input("ts", partition="p", watermark=spec)
        for spec in specs
    ]
    return WatermarkTracker(inputs, Options(**{"future_tolerance": FAR, **options}), now=now)


def told(
    found: WatermarkTracker, ordinal: int = 0, now: int | None = None, **times: int | None
) -> ReleasedMarks:
    """A delivery with one row for each partition."""
    found.tick(found.now if now is None else now)
    found.observe_table(ordinal, table(*({"ts": time, "p": name} for name, time in times.items())))
    return found.release()


def ticked(found: WatermarkTracker, now: int) -> ReleasedMarks:
    found.tick(now)
    return found.release()


def after(found: WatermarkTracker, verb: str, *args: Any, **more: Any) -> ReleasedMarks:
    getattr(found, verb)(*args, **more)
    return found.release()


def again(found: WatermarkTracker, now: int | None = None) -> WatermarkTracker:
    fresh = WatermarkTracker(found._inputs, found._options, now=found.now if now is None else now)
    fresh.restore(json.loads(json.dumps(found.save())))
    return fresh


# Partitions and inputs


def test_the_watermark_of_an_input_is_the_least_of_its_partitions():
    found = watermark_tracker(Bounded(5))
    assert told(found, a=20, b=30).coalesced == [Watermark(15)]
    assert told(found, a=50).coalesced == [Watermark(25)]
    assert told(found, a=60).coalesced == []


def test_one_step_says_what_single_inputs_and_what_all_of_them_promise():
    found = watermark_tracker(Bounded(0), Bounded(10))
    first = told(found, 0, a=20)
    assert (first.by_input, first.coalesced) == ([(0, Watermark(20))], [])
    second = told(found, 1, a=25)
    assert (second.by_input, second.coalesced) == ([(1, Watermark(15))], [Watermark(15)])
    third = told(found, 1, a=100)
    assert (third.by_input, third.coalesced) == ([(1, Watermark(90))], [Watermark(20)])


def test_there_is_no_watermark_until_every_declared_partition_has_spoken():
    found = watermark_tracker(Bounded(0, declared=("a", "b")))
    assert told(found, a=20) == ReleasedMarks()
    assert told(found, b=10).coalesced == [Watermark(10)]


def test_a_declared_partition_that_never_speaks_is_left_out_when_it_is_idle():
    found = watermark_tracker(Bounded(0, declared=("a", "b"), idle_after=60))
    assert told(found, now=50, a=20) == ReleasedMarks()
    assert ticked(found, 59) == ReleasedMarks()
    assert ticked(found, 60).coalesced == [Watermark(20)]


SILENT = [
    Bounded(0, idle_after=60),
    Explicit(idle_after=60),
    Noted("wm", idle_after=60),
    Punctuated(column="wm", idle_after=60),
]


@pytest.mark.parametrize("silent", SILENT, ids=str)
def test_an_input_that_never_speaks_is_left_out_when_it_is_idle(silent):
    found = watermark_tracker(Bounded(0), silent)
    assert told(found, 0, now=30, a=20).coalesced == []
    assert ticked(found, 59) == ReleasedMarks()
    step = ticked(found, 60)
    assert (step.by_input, step.coalesced) == ([(1, Idle(0))], [Watermark(20)])


def test_an_input_that_never_speaks_and_may_never_be_idle_is_waited_for():
    found = watermark_tracker(Bounded(0, idle_after=60), Bounded(0))
    told(found, 0, a=20)
    assert ticked(found, 10_000).coalesced == []
    assert after(found, "idle", ordinal=1).coalesced == [Watermark(20), Idle(0)]


def test_a_partition_that_joins_is_waited_for_and_one_that_leaves_is_not():
    found = watermark_tracker(Bounded(0))
    told(found, a=20)
    found.join("b")
    assert told(found, a=30).coalesced == []
    assert told(found, b=25).coalesced == [Watermark(25)]
    assert after(found, "leave", "b").coalesced == [Watermark(30)]


def test_a_partition_that_ends_is_not_waited_for_and_says_nothing_more():
    found = watermark_tracker(Bounded(0))
    told(found, a=20, b=30)
    assert after(found, "end", partition="a").coalesced == [Watermark(30)]
    told(found, a=500)
    assert told(found, b=40).coalesced == [Watermark(40)]
    assert found.columns[0][0].sources.coalescer.after_end == 1


def test_partitions_may_be_named_by_numbers():
    found = watermark_tracker(Explicit(declared=("0", "1")))
    found.promise(10, partition=0)
    assert after(found, "promise", 20, partition=1).coalesced == [Watermark(10)]
    assert after(found, "idle", partition=0).coalesced == [Watermark(20)]
    found.join(2)
    found.leave(2)
    found.end(partition=1)
    assert [source.name for source in found.columns[0][0].sources.describe()] == ["0", "1"]


# Ends


def test_an_input_that_ends_releases_its_highest_promise():
    found = watermark_tracker(Bounded(0))
    told(found, a=20, b=30)
    step = after(found, "end")
    assert (step.by_input, step.coalesced) == (
        [(0, Watermark(30)), (0, Idle(0))],
        [Watermark(30), Idle()],
    )


def test_an_input_that_ends_is_not_waited_for_and_what_comes_after_is_counted():
    found = watermark_tracker(Bounded(0), Bounded(0))
    told(found, 0, a=20)
    told(found, 1, a=70)
    assert after(found, "end", ordinal=0).coalesced == [Watermark(70)]
    assert told(found, 0, a=80) == ReleasedMarks()
    found.promise(90, ordinal=0)
    assert told(found, 1, a=75).coalesced == [Watermark(75)]
    assert found.counters["after_end"] == 2


def test_an_input_may_end_before_it_has_said_anything():
    found = watermark_tracker(Bounded(0), Lagging(10))
    found.end(ordinal=1)
    found.end(ordinal=0)
    assert ticked(found, 100).coalesced == [Idle()]
    assert ticked(found, 200) == ReleasedMarks()


def test_when_all_inputs_have_ended_the_highest_promise_of_all_is_out():
    found = watermark_tracker(Bounded(0), Bounded(0))
    told(found, 0, a=20, b=90)
    told(found, 1, a=70)
    assert after(found, "end", ordinal=0).coalesced == [Watermark(70)]
    assert after(found, "end", ordinal=1).coalesced == [Watermark(90), Idle()]
    assert found.is_idle()


# Idleness


def test_a_silent_partition_is_left_out_by_the_clock_and_waited_for_when_it_speaks_again():
    found = watermark_tracker(Bounded(0, idle_after=60))
    told(found, a=20, b=100)
    told(found, now=50, b=110)
    assert ticked(found, 60).coalesced == [Watermark(110)]
    assert told(found, now=61, a=30) == ReleasedMarks(), (
        "it comes back behind the watermark, which stays"
    )
    assert told(found, now=62, b=200) == ReleasedMarks(), "it is waited for"
    assert told(found, now=63, a=150).coalesced == [Watermark(150)]


def test_a_partition_that_realigns_is_left_out_until_it_has_caught_up():
    found = watermark_tracker(Bounded(0, idle_after=60, realign=True))
    told(found, a=20, b=100)
    told(found, now=60, b=110)
    assert found.output() == 110
    told(found, now=61, a=30)
    assert told(found, now=62, b=200).coalesced == [Watermark(200)]
    told(found, now=63, a=250, b=300)
    assert told(found, now=64, b=400).coalesced == []


def test_when_all_partitions_are_idle_the_highest_promise_is_out_and_the_input_is_idle():
    found = watermark_tracker(Bounded(0, idle_after=60))
    told(found, a=20, b=100)
    step = ticked(found, 60)
    assert (step.by_input, step.coalesced) == (
        [(0, Watermark(100)), (0, Idle(0))],
        [Watermark(100), Idle(0)],
    )
    assert ticked(found, 1000) == ReleasedMarks()
    step = told(found, now=1001, a=30)
    assert (step.by_input, step.coalesced) == ([(0, Active(0))], [Active(0)])


def test_an_input_says_that_it_is_idle_and_any_event_brings_it_back():
    found = watermark_tracker(Bounded(0), Bounded(0))
    told(found, 0, a=20)
    told(found, 1, a=70)
    assert after(found, "idle", ordinal=0).coalesced == [Watermark(70)]
    assert told(found, 1, a=80).coalesced == [Watermark(80)]
    step = told(found, 0, a=30)
    assert (step.by_input, step.coalesced) == ([(0, Active(0)), (0, Watermark(30))], [])
    assert told(found, 1, a=200).coalesced == []
    assert told(found, 0, a=150).coalesced == [Watermark(150)]


@pytest.mark.parametrize("how", ["event", "promise", "partition", "join", "active"])
def test_whatever_is_said_of_an_idle_input_brings_it_back(how):
    found = watermark_tracker(Explicit(declared=("a",)), Explicit())
    found.promise(10, partition="a")
    found.promise(50, ordinal=1)
    assert after(found, "idle").coalesced == [Watermark(50)]
    match how:
        case "event":
            told(found, a=5)
        case "promise":
            after(found, "promise", 20)
        case "partition":
            after(found, "promise", 20, partition="a")
        case "join":
            after(found, "join", "b")
        case "active":
            after(found, "active")
    assert after(found, "promise", 90, ordinal=1).coalesced == []
    assert not found.columns[0][0].is_idle


def test_an_input_without_known_partitions_is_idle_as_a_whole_and_comes_back_as_a_whole():
    found = watermark_tracker(Explicit(), Explicit())
    found.promise(50, ordinal=1)
    step = after(found, "idle", ordinal=0)
    assert (step.by_input, step.coalesced) == (
        [(1, Watermark(50)), (0, Idle(0))][::-1],
        [Watermark(50)],
    )
    assert told(found, 0, a=5).by_input == [(0, Active(0))]
    assert after(found, "promise", 60, ordinal=1).coalesced == []


def test_an_idle_input_is_not_brought_back_by_a_partition_that_has_ended():
    found = watermark_tracker(Bounded(0), Bounded(0))
    told(found, 0, a=20)
    told(found, 1, a=70)
    assert after(found, "end", partition="a").coalesced == [Watermark(70)]
    told(found, 0, a=30)
    assert told(found, 1, a=80).coalesced == [Watermark(80)]


def test_an_explicit_input_whose_partitions_are_idle_is_not_brought_back_by_one_that_nobody_waits_for():
    found = watermark_tracker(Explicit(declared=("a",)), Explicit())
    found.idle(partition="a")
    told(found, 0, stranger=5)
    assert after(found, "promise", 80, ordinal=1).coalesced == [Watermark(80)]


def test_an_input_for_which_the_program_promises_is_not_idle_because_its_partitions_say_nothing():
    found = watermark_tracker(Explicit(declared=("a", "b"), idle_after=60), Explicit())
    found.promise(500, ordinal=1)
    for now in range(0, 200, 10):
        found.tick(now)
        found.promise(now)
        assert found.release().coalesced == [Watermark(now)]
    assert ticked(found, 249).coalesced == []
    assert ticked(found, 250).coalesced == [Watermark(500)]


def test_partitions_that_say_that_they_are_idle_are_believed_also_after_a_promise_for_all():
    found = watermark_tracker(Explicit(declared=("a", "b"), idle_after=60), Explicit())
    found.promise(500, ordinal=1)
    found.promise(10)
    found.idle(partition="a")
    found.release()
    assert after(found, "idle", partition="b").coalesced == [Watermark(500)]


def test_a_partition_that_sends_only_what_cannot_be_read_is_alive():
    found = watermark_tracker(Bounded(0, idle_after=60))
    told(found, a=20, b=100)
    told(found, now=50, a=None)
    assert told(found, now=100, b=110) == ReleasedMarks()
    assert ticked(found, 110).coalesced == [Watermark(110)]


def test_an_implied_watermark_that_was_told_is_brought_back_by_events_all_the_same():
    found = watermark_tracker(Implied(), Explicit())
    found.promise(10)
    found.promise(50, ordinal=1)
    found.idle()
    found.release()
    told(found, 0, a=40)
    assert found.output() == 50
    assert after(found, "promise", 90, ordinal=1).coalesced == []


def test_partitions_of_an_implied_watermark_that_is_told_for_each_do_not_wait_for_what_events_said():
    found = watermark_tracker(Implied())
    assert told(found, a=100).coalesced == [Watermark(100)]
    assert after(found, "promise", 200, partition="a").coalesced == [Watermark(200)]
    assert told(found, a=900) == ReleasedMarks()


def test_the_last_partition_that_leaves_takes_nobody_elses_time_away_and_silence_counts_from_then():
    found = watermark_tracker(Bounded(0, idle_after=60), Bounded(0))
    told(found, 0, a=20)
    told(found, 1, a=70)
    found.tick(50)
    assert after(found, "leave", "a").coalesced == []
    assert ticked(found, 109).coalesced == []
    assert ticked(found, 110).coalesced == [Watermark(70)]


def test_a_writer_that_is_silent_is_forgotten():
    found = watermark_tracker(Noted("wm", forget_after=100))
    found.observe_table(
        0, table({"ts": 1, "writer": "x", "wm": 10}, {"ts": 1, "writer": "y", "wm": 50})
    )
    assert found.release().coalesced == [Watermark(10)]
    found.tick(60)
    found.observe_table(0, table({"ts": 1, "writer": "y", "wm": 60}))
    assert found.release().coalesced == []
    assert ticked(found, 100).coalesced == [Watermark(60)]
    assert "null/x" not in found.columns[0][0].sources


def test_a_declared_writer_has_spoken_when_it_was_heard_in_any_partition():
    found = watermark_tracker(Noted("wm", declared=("x", "y")))
    found.observe_table(0, table({"ts": 1, "p": "a", "writer": "x", "wm": 10}))
    assert found.release() == ReleasedMarks()
    found.observe_table(0, table({"ts": 1, "p": "b", "writer": "y", "wm": 20}))
    assert found.release().coalesced == [Watermark(10)]


# The future


def test_rows_from_the_future_neither_promise_nor_count_as_life():
    found = watermark_tracker(Bounded(0, idle_after=60), future_tolerance=10)
    told(found, now=100, a=90, b=110)
    assert told(found, now=120, a=FAR, b=120) == ReleasedMarks()
    assert told(found, now=160, a=FAR, b=170).coalesced == [Watermark(170)]


def test_a_partition_that_is_first_seen_in_the_future_does_not_join():
    found = watermark_tracker(Bounded(0), future_tolerance=10)
    assert told(found, now=100, a=90, b=FAR).coalesced == [Watermark(90)]


def test_the_future_may_be_counted_from_the_watermark():
    found = watermark_tracker(Bounded(0), future_tolerance=10, future_reference="watermark")
    assert told(found, a=500).coalesced == [Watermark(500)], (
        "without a watermark there is no future"
    )
    assert told(found, a=511) == ReleasedMarks()
    assert told(found, a=510).coalesced == [Watermark(510)]


def test_what_is_behind_the_watermark_is_late_and_not_from_the_future_though_the_clock_stands_still():
    found = watermark_tracker(Explicit(declared=("a",), idle_after=60), future_tolerance=10)
    found.promise(1000, partition="a")
    found.release()
    found.idle(partition="a")
    told(found, now=5, a=900)
    assert found.columns[0][0].sources.describe()[0].status == "active"


@pytest.mark.parametrize(
    "spec", [Punctuated(column="wm"), Punctuated(marker="m"), Noted("wm")], ids=str
)
def test_what_is_said_of_the_future_is_refused_and_counted(spec):
    found = watermark_tracker(spec, future_tolerance=10)
    time = FAR if spec == Punctuated(marker="m") else 5
    found.observe_table(
        0,
        table(
            {"ts": time, "wm": FAR, "m": True, "writer": "x"},
            {"ts": 4, "wm": 4, "m": True, "writer": "x"},
        ),
    )
    assert found.release().coalesced == [Watermark(4)]
    assert found.counters["refused_promises"] == 1


# Generators that fail


@pytest.mark.parametrize(
    "harm",
    [lambda seen: 1 // 0, lambda seen: [1.5], lambda seen: [1, 2, 3]],
    ids=["raises", "type", "shape"],
)
def test_a_generator_that_fails_promises_nothing_is_warned_about_and_counted_and_its_partitions_are_alive(
    harm,
):
    broken = [False]
    found = watermark_tracker(
        Generated(lambda seen: harm(seen) if broken[0] else seen.newest(), "mine", idle_after=60)
    )
    told(found, a=10, b=20)
    broken[0] = True
    with pytest.warns(RuntimeWarning, match="a watermark generator failed and did not advance"):
        assert told(found, now=50, a=30) == ReleasedMarks()
    broken[0] = False
    assert told(found, now=70, b=30) == ReleasedMarks(), "partition a was heard at 50"
    assert (found.counters["generator_failures"], ticked(found, 110).coalesced) == (
        1,
        [Watermark(30)],
    )


# Strict mode


def test_a_step_back_is_ignored_and_counted():
    found = watermark_tracker(Explicit())
    after(found, "promise", 50)
    assert after(found, "promise", 40) == ReleasedMarks()
    found.promise(60, partition="a")
    found.promise(55, partition="a")
    assert (found.stats()["watermark_steps_back"], found.stats()["watermark_advances"]) == (2, 1)


def test_strict_names_source_old_and_new():
    found = watermark_tracker(Explicit(), strict=True)
    found.promise(50, partition="a")
    with pytest.raises(
        WatermarkError,
        match=(
            r"source `a` went back from 1970-01-01T00:00:00.000050Z to"
            r" 1970-01-01T00:00:00.000040Z.*Hint"
        ),
    ):
        found.promise(40, partition="a")
    after(found, "promise", 60)
    with pytest.raises(
        WatermarkError,
        match=r"went back from 1970-01-01T00:00:00.000060Z to 1970-01-01T00:00:00.000010Z.*Hint",
    ):
        found.promise(10)


SAYING = [
    (Bounded(0), False),
    (Implied(), False),
    (Punctuated(column="wm"), True),
    (Punctuated(marker="m"), True),
]


@pytest.mark.parametrize(("spec", "refused"), SAYING, ids=str)
def test_strict_lets_events_be_out_of_order_but_no_watermark_that_is_said(spec, refused):
    found = watermark_tracker(spec, strict=True)
    rows = table(
        {"ts": 50, "p": "a", "wm": 50, "m": True},
        {"ts": 40, "p": "a", "wm": 40, "m": True},
        {"ts": 60, "p": "a", "wm": 60, "m": True},
    )
    if refused:
        with pytest.raises(WatermarkError, match="source `a` went back"):
            found.observe_table(0, rows)
    else:
        found.observe_table(0, rows)
        assert found.release().coalesced == [Watermark(60)]


# Watermark keys


def two_times(first: Watermarks, second: Watermarks, key: int = 1) -> Input:
    return Input("ts", partition="p", watermark=first, others=(TimeColumn("ts2", second, key),))


def test_several_time_columns_have_watermarks_of_their_own_in_one_step():
    found = watermark_tracker(two_times(Bounded(5), Bounded(0)))
    found.observe_table(0, table({"ts": 50, "p": "a", "ts2": 7}))
    assert found.release().coalesced == [Watermark(45, 0), Watermark(7, 1)]
    found.observe_table(0, table({"ts": 50, "p": "a", "ts2": 9}))
    assert found.release().coalesced == [Watermark(9, 1)]


def test_an_idle_message_without_a_key_is_for_all_keys_and_one_with_a_key_for_this_one():
    found = watermark_tracker(two_times(Explicit(), Explicit()), two_times(Explicit(), Explicit()))
    for key in (0, 1):
        found.promise(10, ordinal=0, key=key)
        found.promise(50, ordinal=1, key=key)
    found.release()
    assert after(found, "idle", ordinal=0, key=1).coalesced == [Watermark(50, 1)]
    assert after(found, "idle", ordinal=0).coalesced == [Watermark(50, 0)]
    assert after(found, "idle", ordinal=1).coalesced == [Idle()]


def test_a_watermark_with_a_key_that_an_input_lacks_ends_there_and_no_other_news_of_such_a_key_is_taken():
    found = watermark_tracker(Explicit())
    assert after(found, "promise", 1, key=3) == ReleasedMarks()
    assert found.stats()["watermarks_dropped"] == 1
    for call in (lambda: found.idle(key=3), lambda: found.active(key=3)):
        with pytest.raises(InputError, match="input 0 has no watermark key 3; it has 0"):
            call()
    with pytest.raises(InputError, match="there is no input 1"):
        found.idle(ordinal=1)
    with pytest.raises(InputError, match="there is no input -1"):
        found.end(ordinal=-1)


@pytest.mark.parametrize("silence", ["", "idle", "end"])
def test_a_key_that_some_input_lacks_is_never_forwarded_also_while_that_input_is_silent(silence):
    found = watermark_tracker(two_times(Bounded(0), Bounded(0)), Bounded(0))
    if silence:
        getattr(found, silence)(ordinal=1)
    found.observe_table(0, table({"ts": 50, "p": "a", "ts2": 7}))
    step = found.release()
    assert (0, Watermark(7, 1)) in step.by_input
    assert all(mark.key != 1 for mark in step.coalesced)


def test_a_key_that_can_never_be_forwarded_is_said_when_streams_are_united():
    one = stream(time="ts", times={"ts2": Bounded(0)})
    with pytest.warns(
        UserWarning,
        match=r"watermark key 1 can never be forwarded by the union: input\(s\) 1 do not have it",
    ):
        union(one, stream(time="ts"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        union(one, stream(time="ts", times={"ts2": Bounded(9)}))


def test_columns_and_keys_of_a_stream_are_different_and_keys_are_below_128():
    with pytest.raises(SpecError, match="time columns of a stream must be different"):
        stream(time="ts", times={"ts": Bounded(0)})
    with pytest.raises(SpecError, match="watermark keys of a stream must be different"):
        stream(time="ts", times={"ts2": (0, Bounded(0))})
    with pytest.raises(SpecError, match="from 0 to 127, got `128`"):
        stream(time="ts", watermark_key=127, times={"ts2": Bounded(0)})


def test_windows_on_another_column_are_not_aligned_by_the_first():
    several = stream(time="ts", watermark=Bounded(0, align=10), times={"ts2": Bounded(0)})
    chosen = several.window(Tumbling(10), on="ts2").input
    assert [(time.column, time.key, time.watermark) for time in chosen.times] == [
        ("ts2", 1, Bounded(0)),
        ("ts", 0, Bounded(0)),
    ]


def test_what_cannot_be_read_is_refused_before_anything_is_taken():
    found = watermark_tracker(two_times(Bounded(0), Bounded(0)))
    broken = pa.table({"ts": [5], "p": ["a"], "ts2": [1.5]})
    with pytest.raises(InputError, match="`ts2` has type `double`"):
        found.observe_table(0, broken)
    assert found.release() == ReleasedMarks()


# Alignment


def test_a_source_that_runs_ahead_is_paused_until_the_slowest_comes_after_it():
    found = watermark_tracker(Bounded(0, align=10))
    told(found, a=100, b=111)
    assert found.paused() == [PausedSource(0, "b")]
    told(found, a=101)
    assert found.paused() == []


def test_inputs_are_aligned_with_each_other_and_those_that_have_not_spoken_hold_nobody():
    found = watermark_tracker(Bounded(0, align=10), Bounded(0))
    told(found, 0, a=100)
    assert found.paused() == []
    told(found, 1, a=50)
    assert found.paused() == [PausedSource(0, "a")]
    assert PausedSource(1, "a") not in found.paused()


@pytest.mark.parametrize("how", ["idle", "end", "leave", "clock"])
def test_when_the_slowest_is_no_longer_waited_for_the_others_go_on(how):
    found = watermark_tracker(Bounded(0, align=10, idle_after=60))
    told(found, a=100, b=200)
    assert found.paused() == [PausedSource(0, "b")]
    match how:
        case "clock":
            ticked(found, 60)
        case "leave":
            after(found, "leave", "a")
        case _:
            after(found, how, partition="a")
    assert found.paused() == []
    assert found.output() == 200


def test_the_silence_of_a_paused_source_is_no_idleness_also_in_the_call_that_lets_it_go_on():
    found = watermark_tracker(Bounded(0, align=10, idle_after=60))
    told(found, a=100, b=200)
    told(found, now=50, a=110)
    assert told(found, now=110, a=195).coalesced == [Watermark(195)]
    assert found.paused() == []
    assert told(found, now=160, a=300).coalesced == [Watermark(200)]
    assert found.output() == 200, "it was let go at 110, so it is not idle before 170"
    assert told(found, now=170, a=301).coalesced == [Watermark(301)]


def test_a_paused_source_is_idle_for_none_of_its_time_columns():
    found = watermark_tracker(
        two_times(Bounded(0, align=10, idle_after=60), Bounded(0, idle_after=60))
    )
    found.observe_table(0, table({"ts": 100, "p": "a", "ts2": 1}, {"ts": 200, "p": "b", "ts2": 2}))
    found.release()
    for now in (50, 100):
        found.tick(now)
        found.observe_table(0, table({"ts": 101, "p": "a", "ts2": now}))
        found.release()
    assert [source.status for source in found.columns[0][1].sources.describe()] == [
        "active",
        "active",
    ]


def test_only_the_first_time_column_pauses_and_the_silence_of_the_others_counts():
    found = watermark_tracker(
        two_times(Bounded(0, align=10, idle_after=60), Bounded(0, idle_after=60))
    )
    found.observe_table(
        0, table({"ts": 100, "p": "a", "ts2": 1}, {"ts": 100, "p": "b", "ts2": 200})
    )
    found.release()
    assert found.paused() == []
    found.tick(50)
    found.observe_table(0, table({"ts": 100, "p": "a", "ts2": 2}))
    found.release()
    assert ticked(found, 60).coalesced == []
    assert [source.status for source in found.columns[0][1].sources.describe()] == [
        "active",
        "idle",
    ]


# Snapshots


def test_time_in_which_nothing_ran_is_no_silence():
    found = watermark_tracker(Bounded(0, idle_after=60), Explicit(idle_after=60))
    told(found, 0, a=20, b=30)
    found.tick(50)
    found = again(found, now=5000)
    assert ticked(found, 5009) == ReleasedMarks()
    assert ticked(found, 5010).by_input == [(0, Watermark(30)), (0, Idle(0)), (1, Idle(0))]


def test_who_was_paused_before_a_restart_was_not_silent():
    found = watermark_tracker(Bounded(0, align=10, idle_after=60))
    told(found, a=100, b=200)
    found = again(found)
    assert told(found, now=60, a=195).coalesced == [Watermark(195)]
    assert told(found, now=119, a=300).coalesced == [Watermark(200)]


def test_an_implied_watermark_that_was_told_stays_told_after_a_restart():
    found = watermark_tracker(Implied())
    after(found, "promise", 10)
    assert told(again(found), a=90) == ReleasedMarks()


def test_an_input_that_was_idle_or_awake_as_a_whole_is_so_after_a_restart():
    found = watermark_tracker(Explicit(declared=("a",)), Explicit())
    found.promise(10)
    found.idle(partition="a")
    found.promise(20)
    after(found, "promise", 50, ordinal=1)
    assert found.output() == 20
    found = again(found)
    assert found.release() == ReleasedMarks(), "the program promised for all, and is waited for"
    found.idle()
    assert found.release().by_input == [(0, Idle(0))]
    found = again(found)
    assert found.release() == ReleasedMarks(), "it was told already"
    assert after(found, "active").by_input == [(0, Active(0))]


def test_an_input_that_was_idle_for_a_moment_between_two_looks_is_waited_for():
    found = watermark_tracker(Explicit(), Explicit())
    found.promise(10)
    found.promise(50, ordinal=1)
    assert found.release().coalesced == [Watermark(10)]
    found.idle()
    found.active()
    assert found.release() == ReleasedMarks()


def test_a_clock_that_is_behind_after_a_restart_goes_on_where_it_was():
    found = again(watermark_tracker(Bounded(0, idle_after=60), now=1000), now=3)
    assert found.now == 1000


# Against the reference

chosen_specs = st.lists(
    specs | watched.map(lambda more: PerKey(1, 4, **more)), min_size=1, max_size=3
)
steps = histories(st.tuples(st.just("restart"), st.integers(0, 30)), most=25)


def act(
    found: WatermarkTracker, slow: SlowIntake, step: tuple[Any, ...], count: int
) -> tuple[WatermarkTracker, ReleasedMarks | None]:
    """Do one thing to both."""
    match step:
        case ("deliver", ordinal, rows, wait):
            found.tick(found.now + wait)
            found.observe_table(ordinal % count, table(*rows))
            slow.deliver(ordinal % count, rows, slow.now + wait)
        case ("timeout", wait):
            found.tick(found.now + wait)
            slow.timeout(slow.now + wait)
        case ("promise", ordinal, value, partition):
            found.promise(value, ordinal=ordinal % count, partition=partition)
            slow.promise(ordinal % count, value, partition)
        case ("join" | "leave" as verb, ordinal, partition):
            getattr(found, verb)(partition, ordinal=ordinal % count)
            getattr(slow, verb)(ordinal % count, partition)
        case ("idle" | "end" as verb, ordinal, partition):
            getattr(found, verb)(ordinal=ordinal % count, partition=partition)
            getattr(slow, verb)(ordinal % count, partition)
        case ("restart", wait):
            slow.restart(slow.now + wait)
            return again(found, found.now + wait), None
    return found, found.release()


@given(
    chosen_specs,
    steps,
    st.sampled_from([FAR, FAR, 10]),
    st.sampled_from(["clock", "clock", "watermark"]),
)
def test_the_watermark_is_that_of_the_reference_after_every_call(
    chosen, history, tolerance, reference
):
    found = watermark_tracker(*chosen, future_tolerance=tolerance, future_reference=reference)
    slow = SlowIntake(chosen, 0, tolerance, reference)
    seen: list[Mark] = []
    for step in history:
        found, released = act(found, slow, step, len(chosen))
        if released is None:
            continue
        assert (found.output(), found.is_idle()) == (slow.watermark, slow.is_idle), step
        assert [columns[0].sources.output for columns in found.columns] == [
            given.output for given in slow.inputs
        ]
        assert [columns[0].is_idle for columns in found.columns] == [
            given.idle for given in slow.inputs
        ]
        assert {(s.input, s.name) for s in found.paused()} == {
            (n, name) for n in range(len(chosen)) for name in slow.paused(n)
        }
        seen += released.coalesced
    values = [mark.value for mark in seen if isinstance(mark, Watermark)]
    assert values == sorted(set(values))
    assert found.output() == (values[-1] if values else MIN)
    turns = [mark for mark in seen if isinstance(mark, Idle | Active)]
    assert not turns or isinstance(turns[-1], Idle) == slow.is_idle


@given(chosen_specs, steps)
def test_somebody_who_is_waited_for_is_never_paused(chosen, history):
    found, slow = watermark_tracker(*chosen), SlowIntake(chosen, 0, FAR)
    for step in history:
        found, _ = act(found, slow, step, len(chosen))
        active = {
            (number, state.name): state.promise
            for number, columns in enumerate(found.columns)
            for state in columns[0].sources.describe()
            if state.status == "active" and state.promise is not None
        }
        active |= {
            (n, ""): given.output
            for n, given in enumerate(slow.inputs)
            if not given.idle and not given.active() and given.output > MIN
        }
        paused = {(source.input, source.name) for source in found.paused()}
        assert paused <= set(active)
        assert not active or any(
            source not in paused
            for source, promise in active.items()
            if promise == min(active.values())
        )


@given(chosen_specs, steps)
def test_nothing_is_held_back_once_all_inputs_are_idle_or_have_ended(chosen, history):
    found, slow = watermark_tracker(*chosen), SlowIntake(chosen, 0, FAR)
    for step in history:
        found, _ = act(found, slow, step, len(chosen))
    for ordinal in range(len(chosen)):
        (found.idle if ordinal % 2 else found.end)(ordinal=ordinal)
    found.release()
    promises = [
        promise
        for columns in found.columns
        for promise in columns[0].sources.coalescer.promises.tolist()
    ]
    assert found.is_idle()
    assert found.output() >= max(promises, default=MIN)
    assert found.output() < MAX


def test_an_operator_is_given_the_watermarks_of_each_input_and_those_of_all():
    heard: list[tuple[int | None, Any]] = []
    watermark_tracker = WatermarkTracker(
        [Input("ts", watermark=Explicit(declared=("a", "b"))), Input("ts", watermark=Explicit())],
        Options(),
        now=0,
    )
    for value, told in (
        (10, {"ordinal": 0, "partition": "a"}),
        (7, {"ordinal": 0, "partition": "b"}),
        (20, {"ordinal": 1}),
    ):
        watermark_tracker.promise(value, **told)
        step = watermark_tracker.release()
        heard += [*step.by_input, *((None, mark) for mark in step.coalesced)]
    # Input 0 moves when its slowest partition has spoken, and both together when the other input
    # has.
    assert heard == [(0, Watermark(7)), (1, Watermark(20)), (None, Watermark(7))]
