"""The edges of the machines of triggers: the ends of time, scalars for columns, switches from
outside, and triggers nobody knows.
"""

from __future__ import annotations

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
    assert [(pane["n"], pane["timing"]) for pane in op.get_result().panes.to_pylist()] == [
        (1, "early"),
        (2, "early"),
        (3, "on_time"),
    ]
