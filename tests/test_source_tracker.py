"""The sources of one input: who joins, falls silent, leaves and ends, and what the clock does to
them.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from tidegate.errors import SpecError, WatermarkError
from tidegate.instants import MAX, MIN
from tidegate.kernel.watermarks.coalescer import Released, Rules
from tidegate.kernel.watermarks.tracker import SourceState, SourceTracker


def say(tracker: SourceTracker, now: int, **promises: int) -> Released:
    tracker.promise(list(promises), np.array(list(promises.values()), np.int64), now)
    return tracker.release(now)


def clock(tracker: SourceTracker, now: int, *spared: int) -> Released:
    tracker.tick(now, np.array(spared, np.int64))
    return tracker.release(now)


def status(tracker: SourceTracker) -> dict[str, str]:
    return {found.name: found.status for found in tracker.describe()}


def test_sources_join_with_their_first_word():
    t = SourceTracker()
    assert say(t, 1, a=10) == Released(10)
    assert say(t, 2, b=5, a=12) == Released()
    assert say(t, 3, b=11) == Released(11)
    assert (t.names, t.output, t.coalescer.advances, t.since, len(t)) == (["a", "b"], 11, 2, 3, 2)
    assert "a" in t
    assert "c" not in t


def test_declared_sources_are_waited_for_before_they_speak():
    t = SourceTracker(declared=["a", "b"], now=5)
    assert say(t, 6, a=10) == Released()
    assert t.describe() == [
        SourceState("a", "active", 10, 6, 6, holds=False),
        SourceState("b", "active", None, 5, 5, holds=True),
    ]
    assert t.since == 5
    assert say(t, 7, b=3) == Released(3)


def test_a_partition_that_is_silent_does_not_stall_the_rest():
    t = SourceTracker(idle_after=10, declared=["a", "b"])
    assert say(t, 4, a=100) == Released()
    assert clock(t, 9) == Released()
    assert clock(t, 10) == Released(100)
    assert status(t) == {"a": "active", "b": "idle"}
    assert clock(t, 14) == Released(idle=True)
    assert say(t, 15, b=50) == Released(idle=False)
    assert (t.output, status(t)) == (100, {"a": "idle", "b": "active"})
    assert say(t, 16, b=120) == Released(120)


def test_a_sign_of_life_without_a_promise_keeps_a_source_active():
    t = SourceTracker(idle_after=10)
    say(t, 0, a=1, b=2)
    say(t, 8, a=MIN)
    clock(t, 10)
    assert status(t) == {"a": "active", "b": "idle"}
    assert [found.moved_at for found in t.describe()] == [0, 0]
    assert [found.spoke_at for found in t.describe()] == [8, 0]


def test_a_source_that_is_held_up_is_not_silent():
    t = SourceTracker(idle_after=10)
    say(t, 0, a=1, b=100)
    say(t, 9, a=2)
    assert t.slowest == 2
    assert t.beyond(52).tolist() == [1]
    clock(t, 12, 1)
    assert status(t) == {"a": "active", "b": "active"}
    clock(t, 22)
    assert status(t) == {"a": "idle", "b": "idle"}
    assert t.slowest is None


def test_silence_long_enough_is_forgotten():
    t = SourceTracker(forget_after=10)
    say(t, 0, a=10, b=50)
    say(t, 5, b=60)
    assert clock(t, 10) == Released(60)
    assert (t.names, len(t)) == (["", "b"], 1)
    assert say(t, 11, c=70) == Released()
    assert t.names == ["c", "b"]


def test_a_source_falls_idle_before_it_is_forgotten_however_far_the_clock_jumps():
    t = SourceTracker(idle_after=5, forget_after=10)
    say(t, 0, a=10, b=50)
    assert clock(t, 100) == Released(50, idle=True)
    assert clock(t, 100) == Released()
    assert (t.describe(), t.is_idle, t.output) == ([], True, 50)
    assert say(t, 101, a=60) == Released(60, idle=False)


def test_sources_that_ended_are_forgotten_too():
    t = SourceTracker(forget_after=10)
    say(t, 0, a=10, b=50)
    t.end(["a"], 1)
    assert t.release(1) == Released(50)
    say(t, 9, b=51)
    clock(t, 10)
    assert status(t) == {"b": "active"}


def test_a_source_that_left_and_comes_again_is_a_new_one():
    t = SourceTracker()
    say(t, 0, a=10, b=20)
    t.leave(["a", "nobody", "a"])
    assert t.release(1) == Released(20)
    assert say(t, 2, a=5) == Released()
    assert t.steps_back == 0
    assert t.spoke_at.tolist() == [2, 0]


def test_what_is_said_of_all_is_said_of_those_that_are_there():
    t = SourceTracker(declared=["a", "b"])
    t.leave(["a"])
    t.idle(None, 1)
    assert t.release(1) == Released(idle=True)
    t.join(["b", "c"], 2)
    assert t.release(2) == Released(idle=False)
    t.end(None, 3)
    t.release(3)
    assert status(t) == {"b": "ended", "c": "ended"}


def test_idle_and_end_of_a_source_that_nobody_knew_let_it_join():
    t = SourceTracker()
    t.idle(["a"], 1)
    t.end(["b"], 1)
    assert t.release(1) == Released(idle=True)
    assert status(t) == {"a": "idle", "b": "ended"}


def test_a_lift_moves_all_who_are_behind_it():
    t = SourceTracker()
    t.lift(5, 0)
    assert t.release(0) == Released(5)
    say(t, 1, a=10, b=20)
    t.lift(15, 2)
    assert t.release(2) == Released(15)
    assert [
        (found.name, found.promise, found.moved_at, found.spoke_at) for found in t.describe()
    ] == [("a", 15, 2, 1), ("b", 20, 1, 1)]


def test_strict_says_which_source_went_back():
    t = SourceTracker(rules=Rules(strict=True))
    say(t, 0, left=5, right=2_000_000)
    with pytest.raises(
        WatermarkError,
        match=r"source `right` went back from 1970-01-01T00:00:02Z to 1970-01-01T00:00:01Z",
    ):
        say(t, 1, left=6, right=1_000_000)
    assert t.coalescer.promises.tolist() == [5, 2_000_000]
    assert t.spoke_at.tolist() == [0, 0]
    t.promise(["right"], np.array([1]), 2, repeats=True)


def test_one_name_may_come_several_times_in_a_call():
    t = SourceTracker()
    t.promise(["a", "b", "a", "a"], np.array([5, 9, 3, 7]), 0)
    assert t.release(0) == Released(7)
    assert (t.steps_back, t.names) == (1, ["a", "b"])


def test_time_in_which_nothing_ran_is_no_silence():
    t = SourceTracker(idle_after=10)
    say(t, 0, a=1)
    again = SourceTracker(idle_after=10)
    again.restore(json.loads(json.dumps(t.save())))
    again.shift(1_000)
    assert clock(again, 1_009) == Released()
    assert clock(again, 1_010) == Released(idle=True)


def test_a_pause_puts_off_the_silence_and_not_what_has_moved():
    t = SourceTracker(declared=["silent", "speaking"])
    say(t, 7, speaking=1)
    t.shift(1_000)
    assert [(state.spoke_at, state.moved_at) for state in t.describe()] == [(1_000, 0), (1_007, 7)]


def test_a_tracker_goes_on_after_a_restart():
    t = SourceTracker(idle_after=10, declared=["a", "b", "c"])
    say(t, 3, a=10, b=20)
    t.leave(["b"])
    again = SourceTracker(idle_after=10, declared=["other"])
    again.restore(json.loads(json.dumps(t.save())))
    for one in (t, again):
        assert say(one, 5, d=7, c=12) == Released(7)
        assert clock(one, 14) == Released()
        assert clock(one, 15) == Released(12, idle=True)
    assert again.save() == t.save()
    assert again.names == ["a", "d", "c"]


def test_clocks_at_the_ends_of_time_do_not_overflow():
    t = SourceTracker(idle_after=MAX, forget_after=MAX, now=MIN + 1)
    say(t, MIN + 1, a=1)
    clock(t, -5)
    assert status(t) == {"a": "active"}
    clock(t, MAX)
    assert status(t) == {"a": "idle"}


@pytest.mark.parametrize("span", [{"idle_after": 0}, {"idle_after": -1}, {"forget_after": 0}])
def test_a_span_of_nothing_is_refused(span):
    with pytest.raises(SpecError, match="must be positive"):
        SourceTracker(**span)
