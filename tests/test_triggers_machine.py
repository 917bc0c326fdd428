"""The machines of triggers, against one plain object per window and trigger."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.reference.plain_triggers import Plain, World, plain
from tidegate.instants import MAX, MIN
from tidegate.kernel.frame import Frame
from tidegate.kernel.groups import Groups
from tidegate.kernel.triggers import Elements, TriggerContext, compile_trigger, schedule
from tidegate.spec import triggers as spec
from tidegate.spec.trigger_text import parse_trigger

# ---- both side by side


@dataclass
class Window:
    """The reference's side of one row."""

    machine: Plain
    end: int
    pending: int = 0

    def world(self, both, **changes):
        return replace(World(self.end, both.watermark, both.now, self.pending), **changes)

    def ready(self, both, **changes):
        return self.machine.ready(self.world(both, **changes))


class Both:
    """Rows in a machine, and the same windows in the reference."""

    def __init__(self, trigger, ends, created=(0, 0, 0, 0)):
        self.now, self.watermark, self.forced = max(created), MIN, False
        self.machine = compile_trigger(trigger)
        rows = [self.machine.initial(1, now) for now in created[: len(ends)]]
        self.state = {
            name: np.concatenate([row[name] for row in rows]) for name in self.machine.columns
        }
        self.windows = [
            Window(plain(trigger, now), end) for end, now in zip(ends, created, strict=False)
        ]

    def context(self, rows=None, **changes):
        windows = self.windows if rows is None else [self.windows[row] for row in rows]
        column = {
            name: np.array([getattr(w, name) for w in windows], np.int64)
            for name in ("end", "pending")
        }
        return replace(
            TriggerContext(column["end"], self.watermark, self.now, column["pending"]), **changes
        )

    def elements(self, shares):
        """Rows of `shares` get elements at the listed times, in the machine at once, in the
        reference one by one.
        """
        rows = np.array(sorted(shares), np.int64)
        ready = [self.windows[row].ready(self) for row in rows]
        part = {name: column[rows] for name, column in self.state.items()}
        context = self.context(rows, times=np.array([min(shares[row]) for row in rows], np.int64))
        self.machine.on_elements(
            part, np.array([len(shares[row]) for row in rows], np.int64), context
        )
        for name, column in part.items():
            self.state[name][rows] = column
        for row in rows:
            window = self.windows[row]
            for time in shares[row]:
                if not window.machine.finished():
                    window.machine.element(window.world(self, time=time))
                window.pending += 1
        if not self.machine.fires_on_elements:
            assert [self.windows[row].ready(self) for row in rows] == ready

    def fire(self, mask):
        self.forced |= bool((mask & ~self.machine.ready(self.state, self.context())).any())
        self.machine.fire(self.state, mask, self.context())
        for window in (w for w, fires in zip(self.windows, mask, strict=True) if fires):
            window.machine.fire(window.world(self))
            window.pending = 0

    def merge(self, ids):
        groups = Groups.by([np.array(ids, np.int64)])
        self.state = self.machine.merge(self.state, groups)
        merged = []
        for group in range(groups.n):
            first, *others = [
                window for window, i in zip(self.windows, groups.ids, strict=True) if i == group
            ]
            first.machine.merge([other.machine for other in others])
            first.end = max(window.end for window in [first, *others])
            first.pending += sum(other.pending for other in others)
            merged.append(first)
        self.windows = merged

    def check(self):
        context = self.context()
        ready = [window.ready(self) for window in self.windows]
        assert self.machine.ready(self.state, context).tolist() == ready
        assert self.machine.finished(self.state).tolist() == [
            window.machine.finished() for window in self.windows
        ]
        assert {name: column.dtype for name, column in self.state.items()} == self.machine.columns
        if not self.machine.fires_early and not self.forced:
            assert not any(
                r and self.watermark < w.end for r, w in zip(ready, self.windows, strict=True)
            )
        self.check_dues(context, ready)

    def check_dues(self, context, ready):
        """Nobody who sleeps until the due value misses that the row became ready."""
        watermark_due, clock_due = (
            self.machine.watermark_due(self.state, context),
            self.machine.clock_due(self.state, context),
        )
        assert (watermark_due > self.watermark).all()
        assert (clock_due > self.now).all()
        assert self.machine.needs_clock or (clock_due == MAX).all()
        for i, window in enumerate(self.windows):
            if ready[i]:
                continue
            for step in range(1, 40):
                if max(self.watermark, 0) + step < watermark_due[i]:
                    assert not window.ready(self, watermark=max(self.watermark, 0) + step)
                if self.now + step < clock_due[i]:
                    assert not window.ready(self, now=self.now + step)


def trees():
    ticks = st.integers(1, 9)
    leaves = st.one_of(
        st.builds(spec.AfterCount, st.integers(1, 3)),
        st.sampled_from([spec.AfterWatermark(), spec.EveryElement(), spec.Never(), spec.Default()]),
        st.builds(spec.AfterDelay, st.integers(0, 9)),
        st.builds(spec.Every, ticks, st.booleans()),
        st.builds(spec.EventInterval, ticks),
    )
    twice = composites(leaves)
    return st.one_of(twice, composites(leaves | twice), leaves)


def composites(part):
    optional = st.none() | part
    several = st.lists(part, min_size=1, max_size=3)
    return st.one_of(
        st.builds(spec.AfterWatermark, optional, optional),
        st.builds(spec.Policy, optional, optional),
        st.builds(spec.Repeatedly, part),
        st.builds(spec.OrFinally, part, part),
        st.tuples(st.sampled_from([spec.AfterEach, spec.AfterAll, spec.AfterAny]), several).map(
            lambda made: made[0](*made[1])
        ),
    )


def steps():
    times = st.lists(st.integers(0, 40), min_size=1, max_size=4)
    return st.lists(
        st.one_of(
            st.tuples(st.just("elements"), st.dictionaries(st.integers(0, 3), times, min_size=1)),
            st.tuples(st.just("watermark"), st.integers(1, 15)),
            st.tuples(st.just("clock"), st.integers(1, 12)),
            st.tuples(st.just("fire"), st.none()),
            st.tuples(st.just("force"), st.lists(st.booleans(), min_size=4, max_size=4)),
            st.tuples(st.just("merge"), st.integers(0, 3)),
        ),
        min_size=4,
        max_size=25,
    )


def play(both, step, value):
    n = len(both.windows)
    if step == "elements":
        both.elements({row % n: times for row, times in value.items()})
    elif step == "watermark":
        both.watermark = max(both.watermark, 0) + value
    elif step == "clock":
        both.now += value
    elif step == "fire":
        both.fire(both.machine.ready(both.state, both.context()))
    elif step == "force":
        both.fire(np.array(value[:n]))
    else:
        both.merge([i - (i > value % n) for i in range(n)])


@given(
    trees(),
    st.lists(st.integers(5, 25), min_size=2, max_size=4),
    st.tuples(*[st.integers(0, 9)] * 4),
    steps(),
)
def test_differential_machine_against_one_object_per_window(trigger, ends, created, timeline):
    both = Both(trigger, ends, created)
    both.check()
    for step, value in timeline:
        play(both, step, value)
        both.check()


@given(trees(), st.lists(st.integers(5, 25), min_size=2, max_size=4), steps())
def test_merging_a_row_with_nothing_changes_nothing(trigger, ends, timeline):
    both = Both(trigger, ends)
    for step, value in timeline:
        if step != "merge":
            play(both, step, value)
    alone = both.machine.merge(both.state, Groups(np.arange(len(ends)), len(ends)))
    for name, column in both.state.items():
        assert alone[name].tolist() == column.tolist()


@given(trees(), st.lists(st.integers(5, 25), min_size=2, max_size=4), steps())
def test_state_that_comes_read_only_from_a_table_goes_on(trigger, ends, timeline):
    both = Both(trigger, ends)
    for step, value in timeline:
        stored = Frame.from_table(Frame.of(both.state).to_table())
        both.state = {name: stored.ints(name) for name in both.machine.columns}
        if step == "elements":
            both.state = {name: column.copy() for name, column in both.state.items()}
        play(both, step, value)
        both.check()


def one(text, end=100):
    return Both(parse_trigger(text), [end])


def dues(both):
    context = both.context()
    return (
        both.machine.watermark_due(both.state, context)[0],
        both.machine.clock_due(both.state, context)[0],
    )


def ready(both):
    both.check()
    return bool(both.machine.ready(both.state, both.context())[0])


# ---- single rules


def test_every_keeps_the_beat_of_its_creation():
    both = one("Every(10)")
    both.now = 14
    both.elements({0: [1]})
    assert (ready(both), dues(both)) == (False, (MAX, 20))
    both.now = 23
    assert ready(both)
    both.fire(np.array([True]))
    assert (ready(both), dues(both)) == (False, (MAX, MAX))
    both.now = 55
    assert not ready(both), "nothing came"
    both.elements({0: [1]})
    assert dues(both) == (MAX, 60)


def test_every_with_refire_fires_although_nothing_came():
    both = one("Every(10, refire=True)")
    both.now = 10
    assert ready(both)
    both.fire(np.array([True]))
    assert (ready(both), dues(both)) == (False, (MAX, 20))


def test_the_next_in_a_sequence_does_not_fire_for_ticks_before_its_turn():
    both = one("AfterEach(AfterCount(1), Every(10, refire=True))")
    both.now = 95
    both.elements({0: [1]})
    both.fire(np.array([True]))
    assert (ready(both), dues(both)) == (False, (MAX, 100))


def test_every_starts_anew_on_the_same_beat():
    both = Both(parse_trigger("Repeatedly(AfterAny(Every(10), AfterCount(2)))"), [100], (3,))
    both.now = 15
    both.elements({0: [1, 2]})
    both.fire(np.array([True]))
    both.elements({0: [1]})
    assert (ready(both), dues(both)) == (False, (MAX, 23))


def test_every_that_is_due_stays_due_when_more_comes():
    both = one("Every(10)")
    both.elements({0: [1]})
    both.now = 12
    both.elements({0: [1]})
    assert ready(both)


def test_every_lets_go_of_a_tick_whose_elements_another_part_has_shown():
    both = one("OrFinally(Repeatedly(AfterCount(2)), Every(10))")
    both.elements({0: [1, 2]})
    both.fire(np.array([True]))
    both.now = 25
    both.elements({0: [1]})
    assert (ready(both), dues(both)) == (False, (MAX, 30))


def test_a_late_part_on_the_clock_does_not_fire_for_ticks_before_the_end():
    both = one("AfterWatermark(late=Every(10, refire=True))")
    both.now, both.watermark = 95, 100
    both.fire(np.array([True]))
    assert (ready(both), dues(both)) == (False, (MAX, 100))


def test_event_interval_waits_for_the_multiple_above_its_earliest_element_in_any_order():
    for times in ([25, 5], [5, 25]):
        both = one("EventInterval(10)")
        for time in times:
            both.elements({0: [time]})
        assert dues(both) == (10, MAX)
    both.watermark = 33
    assert ready(both)
    both.fire(np.array([True]))
    both.elements({0: [2]})
    assert (ready(both), dues(both)) == (
        False,
        (40, MAX),
    ), "a tick that has passed does not come back"


def test_event_interval_says_that_it_needs_times():
    both = one("EventInterval(10)")
    with pytest.raises(ValueError, match=r"needs `ctx\.times`"):
        both.machine.on_elements(both.state, np.array([1]), both.context())


def test_an_early_trigger_repeats_in_a_watermark_trigger_and_stops_in_a_policy():
    for text, again in (
        ("AfterWatermark(early=AfterCount(2))", True),
        ("Policy(early=AfterCount(2))", False),
    ):
        both = one(text)
        both.elements({0: [1, 2]})
        assert ready(both)
        both.fire(np.array([True]))
        both.elements({0: [3, 4, 5]})
        assert ready(both) == again
        both.watermark = 100
        assert ready(both)


def test_the_default_policy_batches_late_updates_for_ten_seconds():
    both = Both(spec.Policy(), [100])
    both.elements({0: [1]})
    both.watermark = 100
    both.fire(np.array([True]))
    both.elements({0: [2]})
    assert (ready(both), dues(both)) == (False, (MAX, 10_000_000))
    both.now = 10_000_000
    assert ready(both)


def test_a_finished_machine_takes_no_elements_and_is_never_due():
    both = one("AfterAny(AfterCount(1), AfterDelay(5), AfterWatermark())")
    both.elements({0: [1]})
    both.fire(np.array([True]))
    both.elements({0: [1, 2, 3]})
    both.now, both.watermark = 50, 99
    assert (ready(both), dues(both)) == (False, (MAX, MAX))


# ---- what a merge keeps


def merged(text, first, second, ends=(10, 20)):
    """Two windows, each played through its own steps, then made one. A step is elements (a number),
    "fire", or a watermark or clock.
    """
    both = Both(parse_trigger(text), list(ends))
    for row, timeline in enumerate((first, second)):
        for step in timeline:
            if isinstance(step, int):
                both.elements({row: [1] * step})
            elif step == "fire":
                both.fire(np.arange(2) == row)
            else:
                name, value = step.split("=")
                setattr(both, name, int(value))
    both.merge([0, 0])
    return both


def needs(both):
    """How many more elements make the merged window ready."""
    for more in range(10):
        if ready(both):
            return more
        both.elements({0: [1]})
    return None


@pytest.mark.parametrize(
    ("text", "first", "second", "more"),
    [
        ("AfterCount(5)", [2], [1], 2),
        ("AfterCount(2)", [2, "fire"], [1], 1),
        ("AfterCount(2)", [2, "fire", 1], [1], 1),
        ("AfterCount(2)", [2, "fire"], [2, "fire"], None),
        ("AfterEach(AfterCount(2), AfterCount(1))", [2, "fire"], [1], 1),
        ("AfterEach(AfterCount(2), AfterCount(4))", [2, "fire", 3], [2, "fire"], 1),
        ("OrFinally(AfterCount(3), AfterDelay(5))", [2, "now=5", "fire"], [1], 2),
        ("OrFinally(AfterCount(9), AfterCount(2))", [2, "fire"], [1], 1),
        ("OrFinally(AfterCount(2), AfterCount(5))", [2, "fire"], [1], 1),
        ("OrFinally(AfterCount(3), AfterCount(4))", [3, "fire"], [], 1),
        ("AfterAny(AfterCount(3), AfterDelay(5))", [2, "now=5", "fire"], [1], 2),
        ("AfterAll(AfterCount(3), Always)", [4, "fire"], [1], 2),
        (
            "AfterWatermark(early=AfterCount(2), late=AfterCount(1))",
            [1, "watermark=10", "fire"],
            [1],
            1,
        ),
        (
            "AfterWatermark(early=AfterCount(9), late=AfterCount(3))",
            [1, "watermark=20", "fire", 1],
            [1, "fire", 1],
            1,
        ),
        ("Policy(early=AfterCount(2))", [2, "fire", 1], [1], 1),
        ("Policy(early=AfterCount(2))", [2, "fire"], [2, "fire"], None),
    ],
)
def test_a_merge_keeps_what_all_windows_agree_on(text, first, second, more):
    assert needs(merged(text, first, second)) == more


def test_a_merge_leaves_nothing_in_parts_that_have_not_begun():
    each = merged("AfterEach(AfterCount(2), AfterCount(5))", [2, "fire", 3], [1])
    assert (each.state["t.1.count"].tolist(), each.state["t.2.count"].tolist()) == ([1], [0])
    late = merged("AfterWatermark(late=AfterCount(5))", [1, "watermark=10", "fire", 3], [1])
    assert (late.state["t.0.late"].tolist(), late.state["t.1.count"].tolist()) == ([False], [0])


def test_a_merge_takes_the_earliest_deadline():
    for text, due in (("AfterDelay(10)", 11), ("Every(10)", 10)):
        both = merged(text, ["now=1", 1], ["now=4", 1])
        assert (ready(both), dues(both)) == (False, (MAX, due))
    both = merged("Every(10)", [1, "now=10", "fire", "now=34"], [1])
    assert (ready(both), dues(both)) == (
        False,
        (MAX, 40),
    ), "ticks that passed while a window had nothing do not count"


def test_a_merge_ticks_on_from_the_oldest_creation():
    both = Both(parse_trigger("Every(10)"), [10, 20], (3, 8))
    both.merge([0, 0])
    both.elements({0: [1]})
    assert dues(both) == (MAX, 13)


def test_a_merge_with_a_window_that_never_fired_opens_passed_event_ticks_again():
    both = merged("EventInterval(10)", [1, "watermark=33", "fire"], [])
    both.elements({0: [5]})
    assert ready(both)


def one_by_one(both, row, times, most, *, once):
    """Segments of one row whose elements are counted one by one: size, whether it fires."""
    machine, state = both.machine, {name: c[[row]] for name, c in both.state.items()}
    context = both.context(np.array([row]))
    pending, size, segments, taken = context.pending.copy(), 0, [], 0
    for time in times[:most]:
        machine.on_elements(
            state, np.array([1]), replace(context, pending=pending, times=np.array([time]))
        )
        pending, size, taken = pending + 1, size + 1, taken + 1
        now = replace(context, pending=pending)
        fires = machine.ready(state, now)
        machine.fire(state, fires, now)
        if fires[0]:
            segments.append((size, True))
            pending, size = np.zeros(1, np.int64), 0
            if once or machine.finished(state)[0]:
                break
    if size:
        segments.append((size, False))
    return segments, taken, state, pending[0]


@given(
    trees(),
    st.lists(st.integers(5, 25), min_size=2, max_size=4),
    steps(),
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 40), min_size=1, max_size=3),
            st.integers(1, 12),
            st.integers(1, 30),
        ),
        min_size=4,
        max_size=4,
    ),
    st.booleans(),
)
def test_a_schedule_fires_where_elements_one_by_one_fire(trigger, ends, timeline, came, once):
    both = Both(trigger, ends)
    for step, value in timeline:
        play(both, step, value)
    rows = np.flatnonzero(~both.machine.finished(both.state))
    if not len(rows):
        return
    shares = [times * often for times, often, _ in came[: len(rows)]]
    most = np.array([limit for _, _, limit in came[: len(rows)]])
    found = schedule(
        both.machine,
        {name: column[rows] for name, column in both.state.items()},
        both.context(rows),
        Elements(
            np.concatenate([[0], np.cumsum([len(share) for share in shares])]),
            np.concatenate(shares),
        ),
        most=most,
        once=once,
    )
    for place, row in enumerate(rows.tolist()):
        segments, taken, state, pending = one_by_one(
            both, row, shares[place], most[place], once=once
        )
        mine = found.row == place
        assert [*zip(found.size[mine], found.fires[mine], strict=True)] == segments
        assert (found.taken[place], found.pending[place]) == (taken, pending)
        assert {name: column[place] for name, column in found.state.items()} == {
            name: column[0] for name, column in state.items()
        }


def test_a_schedule_of_many_firings_takes_few_steps(monkeypatch):
    """Firings of one kind are scheduled at once, whatever their number."""
    both, calls = one("Repeatedly(AfterAny(AfterCount(3), AfterDelay(10)))"), []
    until = type(both.machine).until
    monkeypatch.setattr(type(both.machine), "until", lambda *a: calls.append(1) or until(*a))
    elements = Elements(np.array([0, 100_000]), np.zeros(100_000, np.int64))
    found = schedule(both.machine, both.state, both.context(np.array([0])), elements)
    assert (found.size == 3).sum() == 33_333
    assert len(calls) < 10


@pytest.mark.parametrize("cycle", ["AfterEach(AfterCount(3), AfterCount(5))", "AfterCount(7)"])
def test_a_schedule_finds_cycles_of_several_firings(cycle):
    both = one(f"Repeatedly(OrFinally(Repeatedly({cycle}), AfterCount(40)))")
    elements = Elements(np.array([0, 300]), np.zeros(300, np.int64))
    found = schedule(both.machine, both.state, both.context(np.array([0])), elements)
    segments, _, state, _ = one_by_one(both, 0, [0] * 300, 300, once=False)
    assert [*zip(found.size, found.fires, strict=True)] == segments
    assert {name: column[0] for name, column in found.state.items()} == {
        name: column[0] for name, column in state.items()
    }


def test_a_session_is_open_before_the_first_watermark():
    both = one("AfterWatermark(early=AfterCount(1), late=AfterCount(2))")
    elements = Elements(np.array([0, 6]), np.zeros(6, np.int64), np.array([0]))
    found = schedule(both.machine, both.state, both.context(np.array([0])), elements)
    assert found.size.tolist() == [1] * 6


def test_a_session_that_grows_beyond_the_watermark_completes_again():
    trigger = "AfterWatermark(early=AfterCount(2), late=AfterCount(1))"
    both = one(trigger)
    both.watermark = 100
    elements = Elements(np.array([0, 6]), np.zeros(6, np.int64), np.array([3]))
    found = schedule(both.machine, both.state, both.context(np.array([0])), elements)
    assert found.size.tolist() == [1, 1, 1, 2, 1]
    assert found.fires.tolist() == [True, True, True, True, False]


def test_a_window_is_full_with_the_trigger_or_with_the_watermark():
    """The full-size policy: whichever comes first completes the window, and what follows is
    late.
    """
    for steps, firings in (
        ([1, 1, 1], [False, False, True]),
        ([1, "complete", 1], [False, True, False]),
    ):
        machine = compile_trigger(spec.Policy(late=spec.AfterCount(2), full=spec.AfterCount(3)))
        state, watermark, pending, seen = machine.initial(1, 0), 0, 0, []
        for step in steps:
            if step == "complete":
                watermark = 10
            else:
                machine.on_elements(
                    state, np.array([1]), TriggerContext(10, watermark, 0, np.array([pending]))
                )
                pending += 1
            context = TriggerContext(10, watermark, 0, np.array([pending]))
            ready = machine.ready(state, context)
            machine.fire(state, ready, context)
            pending = 0 if ready[0] else pending
            seen.append(bool(ready[0]))
        assert seen == firings
        assert not machine.finished(state)[0]
