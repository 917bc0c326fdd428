"""The edges of the machines of triggers: the ends of time, scalars for columns, switches from
outside, and triggers nobody knows.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import tidegate as tg
from conformance.manual import Manual, set_manual
from tidegate.errors import SpecError
from tidegate.instants import MAX, MIN
from tidegate.kernel.triggers import TriggerContext, compile_trigger
from tidegate.spec import triggers as spec
from tidegate.spec.trigger_text import parse_trigger


def test_manual_does_as_it_is_told():
    machine = compile_trigger(spec.Repeatedly(spec.AfterEach(Manual(), Manual())))
    state, context = machine.initial(2, 0), TriggerContext(100, 0, 0, np.zeros(2, np.int64))
    assert machine.ready(state, context).tolist() == [False, False]
    set_manual(machine, ready=True, finishes=True)
    machine.fire(state, np.array([True, False]), context)
    assert state["t.1.at"].tolist() == [1, 0]
    assert machine.ready(state, context).tolist() == [True, True]
    alone = compile_trigger(Manual())
    set_manual(alone, ready=True, finishes=False)
    state = alone.initial(2, 0)
    alone.fire(state, np.array([True, True]), context)
    assert alone.finished(state).tolist() == [False, False]
    set_manual(alone, ready=True, finishes=True)
    alone.fire(state, np.array([True, False]), context)
    assert alone.finished(state).tolist() == [True, False]
    assert alone.ready(state, context).tolist() == [False, True]


def test_the_ends_of_time_do_not_overflow():
    ends = np.array([MAX, MIN + 1, 0], np.int64)
    some = np.ones(3, np.int64)
    for text in (
        "Every(7)",
        "EventInterval(7)",
        "AfterDelay(7)",
        "AfterWatermark(early=EventInterval(9), late=Every(3, refire=True))",
    ):
        machine = compile_trigger(parse_trigger(text))
        for now in (MIN + 1, 0, MAX - 1):
            state = machine.initial(3, now)
            for watermark in (MIN, 0, MAX):
                context = TriggerContext(
                    ends, watermark, now, some, np.array([MIN, 0, MAX - 1], np.int64)
                )
                machine.on_elements(state, some, context)
                machine.fire(state, machine.ready(state, context), context)
                due = machine.watermark_due(state, context), machine.clock_due(state, context)
                assert ((due[0] > watermark) | (due[0] == MAX)).all()
                assert (due[1] > now).all()


def test_a_tick_at_the_end_of_time_does_not_fire_for_ever():
    machine = compile_trigger(spec.Every(7, refire=True))
    assert machine.ready(
        machine.initial(1, MAX), TriggerContext(0, 0, MAX, np.ones(1, np.int64))
    ).tolist() == [False]


def test_a_watermark_and_an_end_may_be_one_number_for_all_rows():
    machine = compile_trigger(
        parse_trigger("AfterWatermark(early=AfterCount(2), late=AfterCount(1))")
    )
    state = machine.initial(3, 0)
    context = TriggerContext(100, 0, 0, np.zeros(3, np.int64))
    machine.on_elements(state, np.array([1, 2, 3]), context)
    assert machine.ready(state, context).tolist() == [False, True, True]
    assert machine.watermark_due(state, context).tolist() == [100, 100, 100]


def test_a_trigger_of_somebody_else_is_refused():
    class Strange(spec.Trigger):
        pass

    with pytest.raises(SpecError, match="is not a trigger"):
        compile_trigger(Strange())


def test_the_early_part_of_a_policy_stays_over_when_a_session_grows_after_it_was_full():
    policies = (
        tg.stream(offset="o")
        .window(tg.session(1, axis="offset"))
        .early_emission(tg.after_count(1))
        .full_size(tg.after_count(2))
    )
    op = policies.late_arrival(tg.after_count(1)).aggregate(n=tg.count()).embedded(now=0)
    for offset in (1, 2, 3):
        op.add_message({"o": offset})
    op.finish()
    found = op.get_result().panes.to_pylist()
    assert [(pane["n"], pane["timing"]) for pane in found if pane["op"] == "+"] == [
        (1, "early"),
        (2, "on_time"),
        (3, "on_time"),
    ]


def panes_of(op: tg.EmbeddedOperator) -> list[tuple[int, str, bool]]:
    return [(p["n"], p["timing"], p["is_last"]) for p in op.get_result().panes.to_pylist()]


def test_a_window_that_a_late_event_opens_waits_for_the_late_updates():
    made = tg.stream(time="ts", watermark=tg.explicit()).window(tg.tumbling("10 seconds"))
    op = made.aggregate(n=tg.count()).embedded(now=0)
    op.advance_watermark(20_000_000)
    op.add_messages([{"ts": 1}], now=0)
    op.add_messages([{"ts": 2}], now=9_000_000)
    assert panes_of(op) == []
    op.timeout(10_000_000)
    assert panes_of(op) == [(2, "late", False)]


def test_a_window_that_a_late_event_opens_counts_late_elements_from_the_first():
    made = tg.stream(time="ts", watermark=tg.explicit()).window(tg.tumbling("10 seconds"))
    late = made.late_arrival(tg.after_count(2)).aggregate(n=tg.count()).embedded(now=0)
    explicit = (
        made.trigger(tg.after_watermark(late=tg.after_count(2)))
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    for op in (late, explicit):
        op.advance_watermark(20_000_000)
        op.add_messages([{"ts": n} for n in range(5)])
    assert [n for n, _, _ in panes_of(late)] == [2, 4]
    assert [n for n, _, _ in panes_of(explicit)] == [1, 3, 5]


def test_the_pane_of_a_full_window_is_on_time_and_what_follows_is_late():
    op = (
        tg.stream(time="ts", watermark=tg.explicit())
        .window(tg.tumbling("10 seconds"))
        .early_emission(tg.after_count(1))
        .full_size(tg.after_count(2))
        .late_arrival(tg.after_count(1))
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    op.add_messages([{"ts": n} for n in range(3)])
    op.advance_watermark(10_000_000)
    op.finish()
    assert panes_of(op) == [(1, "early", False), (2, "on_time", False), (3, "late", False)]


def test_policies_take_the_text_of_a_trigger_as_triggers_do():
    made = tg.stream(time="ts").window(tg.tumbling("10 seconds"))
    written = made.early_emission("AfterCount(1)").full_size("AfterCount(9)")
    built = made.early_emission(tg.after_count(1)).full_size(tg.after_count(9))
    assert written.late_arrival("EveryElement") == built.late_arrival(tg.every_element())
    assert str(written.firing) == str(built.firing)


@pytest.mark.parametrize("aggregate", [tg.max("v"), tg.list_("v")])
def test_fire_only_updated_finds_nan_equal_to_nan(aggregate):
    op = (
        tg.stream(time="ts", watermark=tg.explicit())
        .window(tg.tumbling("10 seconds"))
        .trigger(tg.after_watermark(early=tg.every("1 second", refire=True)))
        .options(fire_only_updated=True)
        .aggregate(n=aggregate)
        .embedded(now=0)
    )
    op.add_messages([{"ts": 1, "v": math.nan}], now=0)
    op.timeout(1_000_000)
    op.timeout(2_000_000)
    assert op.get_result().panes.num_rows == 1


def test_every_counts_from_the_first_element_or_from_the_epoch():
    found = []
    for text in ("Every(10)", "Every(10, aligned=True)", "Every(10, refire=True, aligned=True)"):
        trigger = parse_trigger(text)
        assert parse_trigger(str(trigger)) == trigger
        op = (
            tg.stream(time="ts", watermark=tg.explicit())
            .window(tg.tumbling("10 seconds"))
            .trigger(tg.after_watermark(early=trigger))
            .aggregate(n=tg.count())
            .embedded(now=0)
        )
        op.add_messages([{"ts": 1}], now=3)
        for now in range(4, 25):
            op.timeout(now)
        found.append(op.get_result().panes["emitted_at"].to_pylist())
    assert found == [[13], [10], [10, 20]]
    assert tg.every("1 minute", aligned=True) != tg.every("1 minute")


def test_windows_that_are_given_by_hand_need_no_op_column():
    op = tg.stream(key="k").inherit().aggregate(n=tg.count()).embedded(now=0)
    op.add_messages([{"k": "a", "window_start": 0, "window_end": 10, "time": 9}])
    op.finish()
    assert op.get_result().panes["n"].to_pylist() == [1]


def test_messages_of_tuple_windows_are_read_by_offset_under_both_names():
    op = (
        tg.stream(offset="o")
        .window(tg.tumbling(10, axis="offset"))
        .options(keep_messages=True)
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    op.add_messages([{"o": offset} for offset in range(6)])
    for given in ({"start": 2, "end": 3}, {"start_offset": 2, "end_offset": 3}):
        assert op.get_messages(**given)["o"].to_pylist() == [2, 3]
