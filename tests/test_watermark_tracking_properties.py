"""The watermark tracker against the reference, call by call."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from support.reference.watermark_tracker import SlowIntake
from support.source_histories import histories, specs, watched
from support.watermark_trackers import FAR, again, table, watermark_tracker
from tidegate.instants import MAX, MIN
from tidegate.kernel.watermarks.marks import Active, Idle, Mark, Watermark
from tidegate.operators.ingest.watermark_tracking import ReleasedMarks, WatermarkTracker
from tidegate.spec.operator import Input, Options
from tidegate.spec.watermarks import Explicit, PerKey

# Against the reference

chosen_specs = st.lists(
    specs | watched.map(lambda more: PerKey(1, 4, **more)), min_size=1, max_size=3
)
steps = histories(st.tuples(st.just("restart"), st.integers(0, 30)), most=25)


def act(
    found: WatermarkTracker, slow: SlowIntake, step: tuple[Any, ...], count: int
) -> tuple[WatermarkTracker, ReleasedMarks | None]:
    """Apply one step to the tracker and to the reference."""
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
