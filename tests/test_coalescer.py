"""One watermark of many promises: who is waited for, who is left out, and what goes out when, with
one key and with many.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from conformance.coalescers import SystemKeyedCoalescer, SystemRules
from tidegate.errors import InputError, SpecError, WatermarkError
from tidegate.instants import MAX, MIN
from tidegate.kernel.watermarks.coalescer import ACTIVE, IDLE, Coalescer, Released, Rules
from tidegate.kernel.watermarks.keyed import KeyedCoalescer
from tidegate.kernel.watermarks.marks import Active, Idle, Watermark


def after(coalescer: Coalescer, verb: str, *given: object) -> Released:
    getattr(coalescer, verb)(*given)
    return coalescer.release()


def test_the_example_of_the_design():
    c = Coalescer(2)
    said = [(0, 10), (1, 12), (0, 11), (1, 13), (0, 14)]
    assert [after(c, "promise", number, value).watermark for number, value in said] == [
        None,
        10,
        11,
        None,
        13,
    ]
    assert c.advances == 3


def test_an_input_that_has_not_spoken_is_waited_for_until_it_is_idle():
    c = Coalescer(2)
    assert after(c, "promise", 0, 100) == Released()
    assert c.holders().tolist() == [1]
    assert after(c, "idle", 1) == Released(watermark=100)
    assert c.holders().tolist() == [0]


def test_an_event_brings_an_idle_input_back_and_it_is_waited_for_again():
    c = Coalescer(2)
    c.idle(0)
    assert after(c, "promise", 1, 11).watermark == 11
    assert after(c, "touch", 0) == Released()
    assert after(c, "promise", 1, 12) == Released()
    assert after(c, "promise", 0, 13).watermark == 12


def test_when_all_are_idle_the_highest_promise_goes_out_and_then_the_news():
    c = Coalescer(2)
    c.promise([0, 1], [10, 11])
    assert c.release() == Released(10)
    assert after(c, "idle", 1) == Released()
    assert after(c, "idle", 0) == Released(11, idle=True)
    assert after(c, "idle", 0) == Released()
    assert after(c, "promise", 0, 5) == Released(idle=False)
    assert (c.output, c.steps_back) == (11, 1)


def test_when_all_have_ended_the_highest_promise_goes_out():
    c = Coalescer(2)
    c.promise([0, 1], [10, 11])
    c.release()
    assert after(c, "done", 1) == Released()
    assert after(c, "done", 0) == Released(11, idle=True)
    assert after(c, "promise", [0, 1], [50, 60]) == Released()
    assert after(c, "touch", 0) == Released()
    assert c.after_end == 3


def test_an_output_that_is_idle_says_so_again_after_each_watermark():
    c = Coalescer(1)
    assert after(c, "idle", 0) == Released(idle=True)
    assert after(c, "lift", 7) == Released(7, idle=True)
    assert after(c, "lift", 7) == Released()


def test_a_repeated_promise_is_a_sign_of_life_and_a_smaller_one_is_a_step_back():
    c = Coalescer(2)
    c.promise([0, 1], [10, 20])
    c.idle(0)
    assert c.release().watermark == 20
    assert after(c, "promise", 0, 10) == Released()
    assert (c.status[0], c.steps_back) == (ACTIVE, 0)
    c.promise(0, 9)
    c.promise(0, MIN)
    assert (int(c.promises[0]), c.steps_back) == (10, 1)


def test_values_that_only_tell_what_was_seen_do_not_step_back():
    c = Coalescer(1, Rules(strict=True))
    c.promise(0, 10)
    c.promise(0, 3, repeats=True)
    assert (int(c.promises[0]), c.steps_back) == (10, 0)


def test_strict_names_the_source_and_both_values_and_takes_nothing():
    c = Coalescer(2, Rules(strict=True), names=["p0", "p1"])
    c.promise([0, 1], [1_000_000, 2_000_000])
    with pytest.raises(
        WatermarkError,
        match=r"source `p1` went back from 1970-01-01T00:00:02Z to 1970-01-01T00:00:01Z.*Hint",
    ):
        c.promise([0, 1], [5_000_000, 1_000_000])
    assert c.promises.tolist() == [1_000_000, 2_000_000]
    with pytest.raises(WatermarkError, match="input 1 went back"):
        after(again := Coalescer(2, Rules(strict=True)), "promise", [1, 1], [2, 1])
    assert again.promises.tolist() == [MIN, MIN]
    c.lift(9)
    with pytest.raises(WatermarkError, match="the watermark for all sources went back"):
        c.lift(8)


def test_strictly_increasing_promises_can_be_asked_for():
    c = SystemRules(strict=True, increasing=True).coalescer(1)
    c.promise(0, 10)
    with pytest.raises(WatermarkError, match="twice"):
        c.promise(0, 10)
    c.done(0)
    for verb, given in (("promise", (0, 11)), ("idle", (0,)), ("done", (0,))):
        with pytest.raises(WatermarkError, match="has ended"):
            getattr(c, verb)(*given)


def test_a_lift_promises_for_those_that_are_there_and_those_to_come():
    c = Coalescer(2)
    c.promise(0, 30)
    c.done(0)
    assert after(c, "lift", 20).watermark == 20
    c.add()
    assert c.release() == Released()
    assert c.promises.tolist() == [30, 20, 20]
    c.promise(2, 15)
    assert c.steps_back == 0
    assert after(c, "promise", [1, 2], [25, 27]).watermark == 25


def test_a_lift_counts_where_there_are_no_inputs():
    c = Coalescer()
    assert c.release() == Released()
    assert after(c, "lift", 5) == Released(5)
    assert after(c, "lift", 4) == Released()
    assert c.steps_back == 1


def test_a_lift_counts_where_all_have_ended():
    c = Coalescer(1)
    c.promise(0, 10)
    assert after(c, "done", 0) == Released(10, idle=True)
    assert after(c, "lift", 20) == Released(20, idle=True)
    assert c.promises.tolist() == [10]


def test_late_joiners_are_waited_for_and_leavers_are_not():
    c = Coalescer(1)
    assert after(c, "promise", 0, 10).watermark == 10
    (newcomer,) = c.add().tolist()
    assert after(c, "promise", 0, 20) == Released()
    assert c.holders().tolist() == [newcomer]
    assert after(c, "remove", newcomer).watermark == 20
    assert c.add(2).tolist() == [newcomer, newcomer + 1]
    assert len(c) == 3


def test_the_highest_promise_of_one_that_left_is_forgotten():
    c = Coalescer(2)
    c.promise([0, 1], [10, 99])
    c.remove(1)
    assert after(c, "idle", 0) == Released(10, idle=True)


def test_when_all_have_left_nothing_changes():
    c = Coalescer(1)
    c.promise(0, 1)
    c.release()
    assert after(c, "remove", 0) == Released()
    assert not c.is_idle
    c.add()
    assert after(c, "idle", 0) == Released(idle=True)
    assert after(c, "remove", 0) == Released()
    assert c.is_idle
    assert after(c, "add") == Released(idle=False)


def test_realign_leaves_one_that_is_behind_out_until_it_has_caught_up():
    c = Coalescer(3, Rules(realign=True))
    c.promise([0, 1, 2], [10, 7, 3])
    assert c.release().watermark == 3
    assert after(c, "idle", 2).watermark == 7
    assert [
        after(c, verb, *given).watermark
        for verb, given in [("touch", (2,)), ("promise", (2, 5)), ("promise", (2, 9))]
    ] == [None] * 3
    assert after(c, "promise", 1, 12).watermark == 9


def test_realign_says_nothing_while_all_who_are_active_are_behind():
    c = Coalescer(2, Rules(realign=True))
    c.promise([0, 1], [5, 20])
    c.idle(0)
    assert c.release().watermark == 20
    c.idle(1)
    c.touch(0)
    assert c.release() == Released()
    assert c.holders().tolist() == [0]
    assert after(c, "promise", 0, 20) == Released()
    assert after(c, "promise", 0, 21).watermark == 21


def test_who_is_woken_by_touch_only_is_not_heard_while_idle():
    c = SystemRules(woken_by="touch").coalescer(1)
    assert after(c, "promise", 0, 25).watermark == 25
    c.idle(0)
    assert c.release() == Released(idle=True)
    assert after(c, "promise", 0, 50) == Released()
    assert (int(c.promises[0]), c.status[0]) == (25, IDLE)
    assert after(c, "touch", 0) == Released(idle=False)
    assert after(c, "promise", 0, 50).watermark == 50


def test_the_maximum_waits_for_nobody():
    c = SystemRules(policy="max").coalescer(3)
    assert after(c, "promise", 1, 10).watermark == 10
    assert after(c, "promise", 0, 5) == Released()
    assert after(c, "promise", 2, 11).watermark == 11
    assert c.holders().tolist() == [0, 1, 2]


def test_a_quorum_does_not_wait_for_the_rest():
    c = SystemRules(quorum=0.5).coalescer(4)
    assert after(c, "promise", 0, 10) == Released()
    assert c.holders().tolist() == [1, 2, 3]
    assert after(c, "promise", 1, 8).watermark == 8
    assert c.holders().tolist() == [1]
    assert after(c, "promise", 2, 3) == Released()


def test_without_a_quorum_of_active_ones_none_is_left_out():
    c = SystemRules(quorum=0.5, patient=True).coalescer(4)
    c.promise([0, 1, 2], [10, 20, 30])
    assert c.release() == Released()
    c.idle(3)
    assert c.release().watermark == 10
    c.idle([0, 1])
    assert c.release() == Released()
    c.promise(3, 15)
    c.idle(3)
    assert c.release() == Released()
    assert after(c, "promise", 0, 12).watermark == 12


@pytest.mark.parametrize(
    ("share", "inputs", "needed"), [(0.29, 100, 29), (0.5, 3, 1), (0.1, 3, 1), (0.999, 1000, 999)]
)
def test_a_quorum_is_rounded_down_and_at_least_one(share, inputs, needed):
    c = SystemRules(quorum=share).coalescer(inputs)
    c.promise(np.arange(needed - 1), 5)
    assert c.release() == Released()
    c.promise(needed - 1, 5)
    assert c.release().watermark == 5


def test_frames_hold_small_steps_back_but_not_the_end():
    c = SystemRules(frame=10).coalescer(1)
    assert [after(c, "promise", 0, value).watermark for value in (-11, -1, 0, 9, 10, MAX)] == [
        -20,
        -10,
        0,
        None,
        10,
        MAX,
    ]
    low = SystemRules(frame=10).coalescer(1)
    assert after(low, "promise", 0, MIN + 1) == Released()


def test_numbers_that_nobody_has_are_refused():
    c = Coalescer(2)
    for given in (-1, 2, [0, 5]):
        with pytest.raises(InputError, match="inputs 0 to 1"):
            c.touch(given)
    with pytest.raises(InputError, match="negative"):
        c.add(-1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"policy": "mean"},
        {"woken_by": "noise"},
        {"quorum": 0},
        {"quorum": 1.5},
        {"quorum": True},
        {"frame": -1},
        {"increasing": True},
        {"policy": "max", "quorum": 0.5},
        {"policy": "max", "realign": True},
    ],
)
def test_rules_that_make_no_sense_are_refused(wrong):
    with pytest.raises(SpecError):
        SystemRules(**wrong)


@pytest.mark.parametrize("key", [-1, 128, 1.0, "0", True])
def test_a_watermark_key_is_0_to_127(key):
    for made in (
        lambda: Watermark(5, key),
        lambda: Idle(key),
        lambda: Active(key),
        lambda: KeyedCoalescer(1).promise(0, 5, key),
    ):
        with pytest.raises(SpecError, match="0 to 127"):
            made()
    assert Watermark(5, np.int8(127)).key == 127


# Keys


def test_keys_are_coalesced_on_their_own():
    c = KeyedCoalescer(2)
    c.promise(0, 10, key=1)
    c.promise(1, 12, key=2)
    assert c.release() == []
    c.promise(1, 9, key=1)
    c.promise(0, 7, key=2)
    assert c.release() == [Watermark(9, 1), Watermark(7, 2)]
    assert (c.keys, c.advances) == ((1, 2), 2)


def test_idle_without_a_key_holds_for_keys_that_come_later():
    c = KeyedCoalescer(2)
    c.idle(0)
    assert c.release() == []
    c.promise(1, 5, key=42)
    assert c.release() == [Watermark(5, 42)]


def test_all_idle_is_said_once_for_all_keys():
    c = KeyedCoalescer(2)
    c.promise(0, 10, key=1)
    c.promise(1, 20, key=1)
    c.promise(0, 5, key=7)
    c.idle(0)
    assert c.release() == [Watermark(20, 1)]
    c.idle(1)
    assert c.release() == [Watermark(5, 7), Idle()]
    c.idle(1)
    assert c.release() == []
    assert c.is_idle
    c.touch(0)
    assert c.release() == [Active()]


def test_one_key_may_be_idle_alone():
    c = KeyedCoalescer(1)
    c.promise(0, 10, key=1)
    c.idle(0, key=2)
    assert c.release() == [Watermark(10, 1), Idle(2)]
    c.active(0, key=2)
    assert c.release() == [Active(2)]


def test_a_watermark_wakes_its_own_key_only():
    c = KeyedCoalescer(1)
    c.promise(0, 10, key=1)
    c.promise(0, 10, key=2)
    c.idle(0)
    assert c.release() == [Watermark(10, 1), Watermark(10, 2), Idle()]
    c.promise(0, 11, key=1)
    assert c.release() == [Active(1), Watermark(11, 1)]
    assert c.coalescer(2).is_idle
    c.idle(0)
    assert c.release() == [Idle()]


def test_a_key_that_comes_while_all_is_idle_is_active_before_its_watermark():
    c = KeyedCoalescer(2)
    c.idle(0)
    c.idle(1)
    assert c.release() == [Idle()]
    c.promise(0, 100, key=0)
    assert c.release() == [Active(0), Watermark(100, 0)]
    c.promise(1, 101, key=0)
    assert c.release() == []


@pytest.mark.parametrize("any_key_wakes", [False, True])
def test_whether_a_watermark_wakes_keys_that_are_yet_to_come_is_an_option(any_key_wakes):
    c = SystemKeyedCoalescer(2, SystemRules(any_key_wakes=any_key_wakes))
    c.idle(0)
    c.promise(0, 10, key=1)
    c.promise(1, 20, key=2)
    assert c.release() == ([] if any_key_wakes else [Watermark(20, 2)])


def test_what_is_idle_still_is_said_again_when_the_rest_wakes():
    c = KeyedCoalescer(1)
    c.promise(0, 10, key=1)
    c.promise(0, 10, key=2)
    c.idle(0)
    c.release()
    c.touch(0)
    c.idle(0, key=2)
    assert c.release() == [Active(), Idle(2)]


def test_inputs_that_ended_or_left_count_for_no_key():
    c = KeyedCoalescer(3)
    c.done(0)
    c.remove(1)
    c.promise(2, 5, key=3)
    assert c.release() == [Watermark(5, 3)]
    assert c.add().tolist() == [1]
    c.promise(2, 6, key=3)
    c.promise(2, 6, key=4)
    assert c.release() == []
    c.take(1, Watermark(8, 3))
    c.take(1, Idle(4))
    assert c.release() == [Watermark(6, 3), Watermark(6, 4)]
    c.take(1, Active())
    assert c.coalescer(4).status.tolist() == [2, ACTIVE, ACTIVE]


def test_a_keyed_coalescer_goes_on_after_a_restart():
    c = KeyedCoalescer(2)
    c.promise(0, 10, key=1)
    c.idle(1)
    c.release()
    c.idle(0)
    c.release()
    again = KeyedCoalescer()
    again.restore(json.loads(json.dumps(c.save())))
    assert again.save() == c.save()
    for one in (c, again):
        one.promise(0, 12, key=5)
    assert again.release() == c.release() == [Active(5), Watermark(12, 5)]
    assert len(again) == 2
