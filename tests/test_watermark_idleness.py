"""Idle and paused sources: when a watermark tracker ignores them, and when they count again."""

from __future__ import annotations

import pytest

from support.watermark_trackers import after, table, ticked, told, two_times, watermark_tracker
from tidegate.kernel.watermarks.marks import Active, Idle, Watermark
from tidegate.operators.ingest.watermark_tracking import PausedSource, ReleasedMarks
from tidegate.spec.watermarks import Bounded, Explicit, Implied, Noted

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
