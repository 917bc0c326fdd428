"""The clock of the machine jumps: triggers go on, and sources do not become idle by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from support.examples import examples
from tidegate.embedded.clock import CONFIRMED, FOLLOWED, Clock
from tidegate.state.memory import MemoryStore

NOON = 1_750_000_000_000_000
SECOND = 1_000_000
HOUR = 3600 * SECOND


@dataclass
class Machine:
    """A machine whose clocks are set by the test."""

    wall: int = NOON
    steady: int = 77 * SECOND

    def run(self, duration: int) -> None:
        self.wall += duration
        self.steady += duration


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine()
    monkeypatch.setattr("tidegate.embedded.clock.wall_clock", lambda: found.wall)
    monkeypatch.setattr("tidegate.embedded.clock.steady_clock", lambda: found.steady)
    return found


def firing(**given: Any) -> tg.EmbeddedOperator:
    """An operator that fires every 5 seconds of the clock if a message has arrived."""
    return (
        tg.stream(time="ts", watermark=tg.explicit())
        .window(tg.tumbling("1 day"))
        .trigger(tg.repeatedly(tg.after_delay("5 s")))
        .aggregate(n=tg.count())
        .embedded(**given)
    )


def panes_in(op: tg.EmbeddedOperator, machine: Machine, seconds: int) -> int:
    """The panes of some seconds with a message in each."""
    op.get_result()
    op.flush()
    for _ in range(seconds):
        machine.run(SECOND)
        op.add_message({"ts": NOON})
        op.timeout()
    return op.get_result().panes.num_rows


def test_one_reading_an_hour_ahead_silences_nothing(machine):
    op = firing()
    usual = panes_in(op, machine, 120)
    assert usual >= 19
    machine.wall += HOUR
    op.timeout()
    machine.wall -= HOUR
    assert panes_in(op, machine, 120) >= usual - 1


@pytest.mark.parametrize("step", [50 * SECOND, HOUR, 24 * HOUR])
def test_a_clock_that_is_set_ahead_for_a_minute_and_back_silences_nothing(machine, step):
    op = firing()
    usual = panes_in(op, machine, 120)
    machine.wall += step
    assert panes_in(op, machine, 60) >= usual // 2 - 1
    machine.wall -= step
    assert panes_in(op, machine, 120) >= usual // 2 - 1


def test_a_clock_that_is_set_back_silences_nothing(machine):
    op = firing()
    usual = panes_in(op, machine, 120)
    machine.wall -= HOUR
    assert panes_in(op, machine, 120) >= usual // 2 - 1


def test_a_restart_under_an_earlier_clock_silences_nothing(machine):
    store = MemoryStore()
    op = firing(store=store)
    usual = panes_in(op, machine, 120)
    op.flush()
    machine.wall -= HOUR
    assert panes_in(firing(store=store), machine, 120) >= usual // 2 - 1


def test_a_call_with_a_later_clock_silences_nothing(machine):
    op = firing()
    usual = panes_in(op, machine, 120)
    op.timeout(machine.wall + HOUR)
    assert panes_in(op, machine, 120) >= usual // 2 - 1


@pytest.mark.parametrize("step", [30 * SECOND, HOUR])
def test_a_suspend_makes_no_source_idle(machine, step):
    """The wall clock goes on while the machine is suspended, and the steady one does not."""
    op = (
        tg.stream(time="ts", partition="p", watermark=tg.bounded(0, unit="us", idle_after="20 s"))
        .window(tg.tumbling("1 day"))
        .aggregate(n=tg.count())
        .embedded()
    )
    op.add_messages([{"ts": NOON, "p": "a"}, {"ts": NOON + 5, "p": "b"}])
    machine.wall += step
    for _ in range(19):
        machine.run(SECOND)
        op.add_messages([{"ts": NOON + 9, "p": "b"}])
        assert op.watermark == NOON
    machine.run(2 * SECOND)
    op.timeout()
    assert op.watermark == NOON + 9


def test_a_large_step_is_followed_once_it_has_lasted(machine):
    clock = Clock(None)
    machine.wall += HOUR
    assert clock.at(None, 0) == NOON
    machine.run(CONFIRMED - 1)
    assert clock.at(None, 0) == NOON + CONFIRMED - 1
    machine.run(1)
    assert clock.at(None, 0) == machine.wall
    assert clock.skipped() == HOUR
    assert clock.skipped() == 0


def test_a_clock_ahead_of_the_machine_runs_at_half_speed_until_they_are_level(machine):
    clock = Clock(None)
    machine.wall -= 10 * SECOND
    for second in range(1, 20):
        machine.run(SECOND)
        assert clock.at(None, 0) == NOON + second * SECOND // 2
    for _ in range(3):
        machine.run(SECOND)
        assert clock.at(None, 0) == machine.wall


def test_a_manual_clock_moves_with_the_calls_alone(machine):
    clock = Clock(5)
    machine.run(HOUR)
    assert clock.at(None, 7) == 7
    assert clock.at(9, 7) == 9


STEPS = st.integers(-3 * HOUR, 3 * HOUR) | st.integers(-2 * FOLLOWED, 2 * FOLLOWED) | st.just(0)


@examples(50)
@given(st.lists(st.tuples(st.integers(0, 20 * SECOND), STEPS), min_size=1, max_size=20))
def test_the_clock_always_moves_on_and_reaches_the_machine(readings):
    with pytest.MonkeyPatch.context() as patch:
        machine = Machine()
        patch.setattr("tidegate.embedded.clock.wall_clock", lambda: machine.wall)
        patch.setattr("tidegate.embedded.clock.steady_clock", lambda: machine.steady)
        clock, before = Clock(None), NOON
        for elapsed, step in readings:
            machine.run(elapsed)
            machine.wall += step
            now = clock.at(None, 0)
            assert before + elapsed // 2 <= now
            before = now
        for _ in range(40):
            machine.run(HOUR * 5)
            now = clock.at(None, 0)
        assert now == machine.wall
