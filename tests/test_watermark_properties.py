"""Whatever happens to inputs and sources, in whatever order: the output behaves, and the columns
agree with a slow and obvious reference.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.coalescers import SystemKeyedCoalescer, SystemRules
from support.reference.watermarks import SlowCoalescer, SlowTracker, StepBackError
from tidegate.errors import WatermarkError
from tidegate.instants import MAX, MIN
from tidegate.kernel.watermarks.coalescer import (
    ACTIVE,
    DONE,
    GONE,
    IDLE,
    Coalescer,
    Released,
    Rules,
)
from tidegate.kernel.watermarks.keyed import KeyedCoalescer
from tidegate.kernel.watermarks.marks import Active, Idle, Watermark
from tidegate.kernel.watermarks.tracker import SourceTracker

Op = tuple[str, int, int]
VERBS = ["promise"] * 6 + [
    "touch",
    "idle",
    "idle",
    "idle_all",
    "done",
    "add",
    "remove",
    "lift",
    "restore",
]
START = 2

values = st.integers(-4, 20) | st.sampled_from([MIN, MIN + 1, MAX - 1, MAX])


def histories(step: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Lists are short if left alone, and most of what is rare takes some steps to come about."""
    return st.lists(step, max_size=40) | st.lists(step, min_size=12, max_size=40)


operations = histories(st.tuples(st.sampled_from(VERBS), st.integers(0, 7), values))
ours = st.builds(Rules, strict=st.booleans(), realign=st.booleans())
rules = st.builds(
    SystemRules,
    strict=st.booleans(),
    realign=st.booleans(),
    woken_by=st.sampled_from(["any", "any", "touch"]),
    quorum=st.sampled_from([1.0, 1.0, 0.01, 0.29, 0.5, 0.75]),
    patient=st.booleans(),
    frame=st.sampled_from([0, 0, 1, 5]),
) | st.builds(SystemRules, policy=st.just("max"), strict=st.booleans())


def again(fresh: Any, old: Any) -> Any:
    """The same thing after a restart."""
    fresh.restore(json.loads(json.dumps(old.save())))
    return fresh


def apply(coalescer: Coalescer, op: Op) -> Coalescer:
    """Do one thing to one of the slots there are."""
    verb, number, value = op
    slot = number % max(1, len(coalescer.status))
    if verb == "restore":
        return again(coalescer.rules.coalescer(), coalescer)
    if verb == "add":
        coalescer.add()
    elif verb == "lift":
        coalescer.lift(value)
    elif verb == "idle_all":
        coalescer.idle(np.arange(len(coalescer.status)))
    elif len(coalescer.status) and verb == "promise":
        coalescer.promise(slot, value)
    elif len(coalescer.status):
        getattr(coalescer, verb)(slot)
    return coalescer


def apply_slowly(slow: SlowCoalescer, op: Op, slots: int) -> None:
    verb, number, value = op
    slot = number % max(1, slots)
    if verb == "add":
        slow.add()
    elif verb == "lift":
        slow.lift(value)
    elif verb == "idle_all":
        for number in slow.inputs:
            slow.idle(number)
    elif slots and verb == "promise":
        slow.promise(slot, value)
    elif slots and verb != "restore":
        getattr(slow, verb)(slot)


@given(ours | rules, operations)
def test_columns_agree_with_the_reference(rule: Rules, history: list[Op]) -> None:
    ours, slow = rule.coalescer(START), SlowCoalescer(SystemRules(**asdict(rule)))
    for _ in range(START):
        slow.add()
    for op in history:
        slots = len(ours.status)
        try:
            apply_slowly(slow, op, slots)
        except StepBackError:
            with pytest.raises(WatermarkError):
                apply(ours, op)
        else:
            ours = apply(ours, op)
        released = ours.release()
        assert (released.watermark, released.idle) == slow.release()
        assert (ours.output, ours.is_idle, len(ours)) == (
            slow.output,
            slow.is_idle,
            len(slow.inputs),
        )
        assert (ours.steps_back, ours.advances, ours.after_end) == (
            slow.steps_back,
            slow.advances,
            slow.after_end,
        )


@given(operations)
def test_output_is_strictly_increasing_whatever_comes(history: list[Op]) -> None:
    coalescer, outputs = Coalescer(START), []
    for op in history:
        coalescer = apply(coalescer, op)
        outputs.append(coalescer.release().watermark)
    emitted = [output for output in outputs if output is not None]
    assert emitted == sorted(set(emitted))
    assert coalescer.advances == len(emitted)
    assert coalescer.output == (emitted[-1] if emitted else MIN)


@given(operations)
def test_output_follows_the_least_active_promise_in_the_very_call_and_is_never_above_it(
    history: list[Op],
) -> None:
    coalescer = Coalescer(START)
    for op in history:
        coalescer = apply(coalescer, op)
        active = coalescer.promises[coalescer.status == ACTIVE]
        before, released = coalescer.output, coalescer.release()
        if len(active):
            assert released.watermark == (active.min() if active.min() > before else None)
            assert not coalescer.is_idle


@given(operations)
def test_nothing_is_held_back_when_all_are_idle_or_done(history: list[Op]) -> None:
    coalescer = Coalescer(START)
    for op in history:
        coalescer = apply(coalescer, op)
        coalescer.release()
    numbers = np.flatnonzero(coalescer.status < DONE)
    for number in numbers.tolist():
        (coalescer.idle if number % 2 else coalescer.done)(number)
    coalescer.release()
    there = coalescer.promises[coalescer.status != GONE]
    if len(there):
        assert coalescer.output >= there.max()
        assert coalescer.is_idle


@given(operations, st.integers(0, 40))
def test_an_input_that_comes_back_never_pulls_the_output_back(history: list[Op], late: int) -> None:
    coalescer = Coalescer(START)
    for op in history:
        coalescer = apply(coalescer, op)
        coalescer.release()
    before = coalescer.output
    for number in np.flatnonzero(coalescer.status == IDLE).tolist():
        coalescer.promise(number, min(late, before))
        assert coalescer.release().watermark is None
    assert coalescer.output == before


@given(operations, st.sets(st.integers(0, 40)))
def test_restarts_at_any_point_change_nothing(history: list[Op], restarts: set[int]) -> None:
    plain, restarted = Coalescer(START), Coalescer(START)
    for number, op in enumerate(history):
        if number in restarts:
            restarted = again(Coalescer(), restarted)
        plain, restarted = apply(plain, op), apply(restarted, op)
        assert restarted.release() == plain.release()
        assert restarted.save() == plain.save()


promises = st.lists(st.tuples(st.integers(0, 5), values), max_size=30)


@given(ours | rules, operations, promises)
def test_a_column_of_promises_is_the_same_as_one_promise_after_the_other(
    rule: Rules, history: list[Op], given_: list[tuple[int, int]]
) -> None:
    # A touch inside the column would let later promises of the same input through.
    others = {"woken_by": "any"} if isinstance(rule, SystemRules) else {}
    rule = replace(rule, strict=False, **others)
    together = rule.coalescer(6)
    for op in history:
        together = apply(together, op)
    one_by_one = again(rule.coalescer(), together)
    together.promise([number for number, _ in given_], [value for _, value in given_])
    for number, value in given_:
        one_by_one.promise(number, value)
    assert together.release() == one_by_one.release()
    assert together.save() == one_by_one.save()


@given(operations, promises)
def test_a_strict_coalescer_refuses_a_column_with_a_step_back_whole(
    history: list[Op], given_: list[tuple[int, int]]
) -> None:
    lenient, strict = Coalescer(6), Coalescer(6, Rules(strict=True))
    for op in history:
        lenient = apply(lenient, op)
    again(strict, lenient)
    before = strict.promises.copy()
    numbers, given_values = [number for number, _ in given_], [value for _, value in given_]
    counted = lenient.steps_back
    lenient.promise(numbers, given_values)
    if lenient.steps_back > counted:
        with pytest.raises(WatermarkError):
            strict.promise(numbers, given_values)
        assert strict.promises.tolist() == before.tolist()
    else:
        strict.promise(numbers, given_values)
        assert strict.promises.tolist() == lenient.promises.tolist()


# Keys

KEYED_VERBS = (
    ["promise"] * 4
    + ["touch", "idle", "idle", "idle_key", "done", "add", "remove", "lift", "restore"]
    + ["release"] * 5
)
keyed_operations = histories(
    st.tuples(st.sampled_from(KEYED_VERBS), st.integers(0, 1), values, st.integers(0, 2))
)


def apply_keyed(keyed: KeyedCoalescer, op: tuple[str, int, int, int]) -> KeyedCoalescer:
    verb, number, value, key = op
    if verb == "restore":
        return again(type(keyed)(0, keyed.rules), keyed)
    if verb == "add":
        keyed.add()
    elif verb == "lift":
        keyed.lift(value, key)
    elif verb == "promise":
        keyed.promise(number, value, key)
    elif verb == "idle_key":
        keyed.idle(number, key)
    elif verb != "release":
        getattr(keyed, verb)(number)
    return keyed


@given(keyed_operations)
def test_a_keyed_coalescer_is_one_without_keys_for_each_key(
    history: list[tuple[str, int, int, int]],
) -> None:
    keyed, single = KeyedCoalescer(2), {key: Coalescer(2) for key in range(3)}
    for verb, number, value, key in history:
        keyed = apply_keyed(keyed, (verb, number, value, key))
        for other, coalescer in single.items():
            if verb == "promise" and other == key:
                coalescer.promise(number, value)
            elif verb == "lift" and other == key:
                coalescer.lift(value)
            elif verb == "idle_key" and other == key:
                coalescer.idle(number)
            elif verb == "add":
                coalescer.add()
            elif verb in {"touch", "idle", "done", "remove"}:
                getattr(coalescer, verb)(number)
        marks = keyed.release()
        expected = {
            key: released
            for key, coalescer in single.items()
            if (released := coalescer.release()).watermark is not None
        }
        assert {mark.key: mark.value for mark in marks if isinstance(mark, Watermark)} == {
            key: due.watermark for key, due in expected.items()
        }
        assert all(keyed.coalescer(key).is_idle == single[key].is_idle for key in keyed.keys)


@pytest.mark.parametrize(
    "rule",
    [Rules(), SystemRules(any_key_wakes=True), Rules(realign=True)],
    ids=["ours", "any key wakes", "realign"],
)
@given(history=keyed_operations)
def test_who_takes_the_marks_knows_what_the_coalescer_knows(
    rule: Rules, history: list[tuple[str, int, int, int]]
) -> None:
    kind = SystemKeyedCoalescer if isinstance(rule, SystemRules) else KeyedCoalescer
    upstream, downstream = kind(2, rule), kind(1, replace(rule, realign=False))
    for op in history:
        upstream = apply_keyed(upstream, op)
        if op[0] != "release":
            continue
        marks = upstream.release()
        order = [(Active, Watermark, Idle).index(type(mark)) for mark in marks]
        assert order == sorted(order)
        assert len(set(marks)) == len(marks)
        for mark in marks:
            downstream.take(0, mark)
        downstream.release()
        for key in upstream.keys:
            assert downstream.coalescer(key).output == upstream.coalescer(key).output
            assert (downstream.coalescer(key).status[0] == IDLE) == upstream.coalescer(key).is_idle
        # Of keys that come later downstream knows what was said without a key.
        if downstream._keyless.status[0] == IDLE:
            assert upstream._keyless.is_idle
        if upstream.is_idle:
            assert downstream._keyless.status[0] == IDLE


# Sources with clocks

TRACKER_VERBS = ["promise"] * 5 + [
    "join",
    "idle",
    "end",
    "leave",
    "lift",
    "tick",
    "tick",
    "tick",
    "spare",
    "restore",
    "pause",
]
tracker_operations = histories(
    st.tuples(
        st.sampled_from(TRACKER_VERBS), st.sampled_from("abc"), st.integers(-4, 20) | st.just(MIN)
    )
)
spans = st.none() | st.integers(1, 12)


def step(
    ours: SourceTracker, slow: SlowTracker, verb: str, name: str, value: int, now: int
) -> SourceTracker:
    """One thing happens to both."""
    if verb == "promise":
        ours.promise([name], np.array([value]), now)
        slow.promise(name, value, now)
    elif verb == "lift":
        ours.lift(value, now)
        slow.lift(value, now)
    elif verb == "leave":
        ours.leave([name])
        slow.leave(name)
    elif verb in {"tick", "spare"}:
        spared = [row for row, found in enumerate(ours.names) if found == name and verb == "spare"]
        ours.tick(now, np.array(spared, np.int64))
        slow.tick(now, {name} if verb == "spare" else set())
    elif verb == "restore":
        return again(
            SourceTracker(idle_after=ours.idle_after, forget_after=ours.forget_after), ours
        )
    elif verb == "pause":
        ours.shift(3)
        for source in slow.sources.values():
            source.spoke_at += 3
    else:
        getattr(ours, verb)([name], now)
        getattr(slow, verb)(name, now)
    return ours


@given(spans, spans, tracker_operations)
def test_a_tracker_agrees_with_the_reference(
    idle_after: int | None, forget_after: int | None, history: list[tuple[str, str, int]]
) -> None:
    ours = SourceTracker(idle_after=idle_after, forget_after=forget_after, declared=["a", "b"])
    slow = SlowTracker(idle_after, forget_after)
    slow.join("a", 0)
    slow.join("b", 0)
    now = 0
    for verb, name, value in history:
        now += value % 7
        ours = step(ours, slow, verb, name, value, now)
        released = ours.release(now)
        assert (released.watermark, released.idle) == slow.release(now)
        described = [
            (found.name, found.status, found.promise, found.spoke_at, found.moved_at)
            for found in ours.describe()
        ]
        assert described == slow.describe()
        assert (ours.output, ours.is_idle, ours.since, len(ours)) == (
            slow.coalescer.output,
            slow.coalescer.is_idle,
            slow.since,
            len(slow.sources),
        )
        assert [found.name for found in ours.describe() if found.holds] == _holders(slow)


def _holders(slow: SlowTracker) -> list[str]:
    """The active sources without a promise, or with the least, or all that came back behind the
    output.
    """
    found = [(name, state.promise) for name, state in _active(slow)]
    least = min((promise for _, promise in found), default=MIN)
    return [
        name
        for name, promise in found
        if promise == least or (least > MIN and promise < slow.coalescer.output)
    ]


def _active(slow: SlowTracker) -> list[Any]:
    numbered = sorted(slow.sources.items(), key=lambda item: item[1].number)
    return [
        (name, slow.coalescer.inputs[source.number])
        for name, source in numbered
        if slow.coalescer.inputs[source.number].status == "active"
    ]


@given(st.lists(st.lists(st.tuples(st.sampled_from("abcdefgh"), values), max_size=12), max_size=6))
def test_sources_of_a_delivery_may_promise_together_or_one_by_one(
    deliveries: list[list[tuple[str, int]]],
) -> None:
    together, one_by_one = SourceTracker(), SourceTracker()
    for now, delivery in enumerate(deliveries):
        together.promise(
            [name for name, _ in delivery],
            np.array([value for _, value in delivery], np.int64),
            now,
        )
        for name, value in delivery:
            one_by_one.promise([name], np.array([value]), now)
        assert together.release(now) == one_by_one.release(now)
        assert together.save() == one_by_one.save()


@given(st.lists(st.booleans(), max_size=60))
def test_memory_is_bounded_by_the_most_inputs_at_once(joins: list[bool]) -> None:
    coalescer, there, most = Coalescer(), [], 0
    for joining in joins:
        if joining:
            there.append(int(coalescer.add()[0]))
        elif there:
            coalescer.remove(there.pop(len(there) // 2))
        most = max(most, len(there))
        assert len(set(there)) == len(there) == len(coalescer)
        assert len(coalescer.status) == most


def test_nothing_is_released_where_nothing_happened() -> None:
    assert Coalescer(3).release() == Coalescer().release() == Released()
