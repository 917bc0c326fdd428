"""The watermark tracker: one watermark from inputs, partitions and watermark keys."""

from __future__ import annotations

import warnings

import pyarrow as pa
import pytest

from support.watermark_trackers import (
    FAR,
    after,
    again,
    table,
    ticked,
    told,
    two_times,
    watermark_tracker,
)
from tidegate.api.streams import stream, union
from tidegate.errors import InputError, SpecError, WatermarkError
from tidegate.kernel.watermarks.marks import Active, Idle, Watermark
from tidegate.operators.ingest.watermark_tracking import ReleasedMarks
from tidegate.spec.watermarks import (
    Bounded,
    Explicit,
    Generated,
    Implied,
    Lagging,
    Noted,
    Punctuated,
)
from tidegate.spec.windows import Tumbling

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
        match=r"the union can never forward watermark key 1: input\(s\) 1 do not have it",
    ):
        union(one, stream(time="ts"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        union(one, stream(time="ts", times={"ts2": Bounded(9)}))


def test_columns_and_keys_of_a_stream_are_different_and_keys_are_below_128():
    with pytest.raises(SpecError, match="time columns of a stream must be distinct"):
        stream(time="ts", times={"ts": Bounded(0)})
    with pytest.raises(SpecError, match="watermark keys of a stream must be distinct"):
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
