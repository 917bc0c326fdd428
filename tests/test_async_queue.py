"""The queue of an async map against a model that searches the whole history."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import CorruptStateError, InputError
from tidegate.kernel.watermarks.marks import Active, Idle, Mark, Watermark
from tidegate.operators.async_map.queue import (
    AnswerBatch,
    AsyncQueue,
    FailedCall,
    OrderedQueue,
    QueueSnapshot,
    UnorderedQueue,
    async_queue,
    mark_from_json,
    mark_to_json,
)

BOTH = pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
ROW = {"v": 1}


def flat(items: list[Any]) -> list[Any]:
    """Single results, failures as their error, and marks, in order."""
    found: list[Any] = []
    for item in items:
        if isinstance(item, AnswerBatch):
            found += [row["r"] for row in item.rows]
        else:
            found.append(item.error if isinstance(item, FailedCall) else item)
    return found


def answer(machine: AsyncQueue, *tickets: int) -> None:
    for ticket in tickets:
        machine.complete(ticket, [{"r": ticket}])


def travelled(saved: QueueSnapshot) -> QueueSnapshot:
    """A snapshot after a round trip through a store."""
    return QueueSnapshot(
        json.loads(json.dumps(saved.document)),
        [dict(row) for row in saved.rows],
        list(saved.results),
    )


# One thing at a time


@BOTH
def test_a_watermark_waits_for_what_was_submitted_before_it(ordered):
    machine = async_queue(ordered=ordered)
    ticket = machine.submit(ROW)
    machine.mark(Watermark(10))
    assert machine.release() == []
    answer(machine, ticket)
    assert flat(machine.release()) == [0, Watermark(10)]
    assert machine.release() == []


@BOTH
@pytest.mark.parametrize("mark", [Idle(), Idle(3), Active(), Active(0), Watermark(5, 7)])
def test_every_mark_waits_and_leaves_at_once_when_nothing_is_pending(ordered, mark):
    machine = async_queue(ordered=ordered)
    machine.mark(mark)
    assert machine.release() == [mark]
    ticket = machine.submit(ROW)
    machine.mark(mark)
    assert machine.release() == []
    machine.fail(ticket, "no")
    assert machine.release() == [FailedCall(ROW, "no"), mark]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_equal_rows_are_told_apart_and_keep_their_order(order):
    machine = OrderedQueue()
    assert [machine.submit(ROW), machine.submit(ROW)] == [0, 1]
    machine.mark(Watermark(10))
    assert machine.submit(ROW) == 2
    answer(machine, *order)
    assert flat(machine.release()) == [0, 1, Watermark(10), 2]


@pytest.mark.parametrize(
    ("order", "out"), [((2, 1, 0), [2, 1, 0, Watermark(10)]), ((0, 1, 2), [0, 1, Watermark(10), 2])]
)
def test_unordered_events_overtake_a_mark_but_are_not_overtaken_by_it(order, out):
    machine = UnorderedQueue()
    machine.submit(ROW)
    machine.submit(ROW)
    machine.mark(Watermark(10))
    machine.submit(ROW)
    answer(machine, *order)
    assert flat(machine.release()) == out


def test_unordered_answers_leave_with_the_next_release():
    machine = UnorderedQueue()
    for _ in range(3):
        machine.submit(ROW)
    machine.complete(2, [{"r": "c1"}, {"r": "c2"}])
    assert flat(machine.release()) == ["c1", "c2"]
    machine.complete(0, [])
    assert machine.release() == []
    assert len(machine) == 1


@BOTH
def test_a_watermark_replaces_the_one_before_it_only_with_the_same_key(ordered):
    machine = async_queue(ordered=ordered)
    ticket = machine.submit(ROW)
    for mark in (
        Watermark(1),
        Watermark(2),
        Watermark(3, 1),
        Watermark(4),
        Watermark(4, 1),
        Watermark(5, 1),
        Idle(),
        Watermark(6, 1),
    ):
        machine.mark(mark)
    answer(machine, ticket)
    assert flat(machine.release()) == [
        0,
        Watermark(2),
        Watermark(3, 1),
        Watermark(4),
        Watermark(5, 1),
        Idle(),
        Watermark(6, 1),
    ]


@BOTH
def test_a_watermark_with_events_in_between_is_not_replaced(ordered):
    machine = async_queue(ordered=ordered)
    first = machine.submit(ROW)
    machine.mark(Watermark(1))
    second = machine.submit(ROW)
    machine.mark(Watermark(2))
    answer(machine, first)
    assert flat(machine.release()) == [0, Watermark(1)]
    answer(machine, second)
    assert flat(machine.release()) == [1, Watermark(2)]


def test_a_watermark_behind_an_event_that_has_left_is_not_replaced():
    machine = UnorderedQueue()
    machine.submit(ROW)
    machine.mark(Watermark(1))
    machine.submit(ROW)
    answer(machine, 1)
    assert flat(machine.release()) == [1]
    answer(machine, 0)
    machine.mark(Watermark(2))
    assert flat(machine.release()) == [0, Watermark(1), Watermark(2)]


@BOTH
def test_a_smaller_watermark_does_not_replace_a_greater_one(ordered):
    machine = async_queue(ordered=ordered)
    machine.mark(Watermark(5))
    machine.mark(Watermark(3))
    assert machine.release() == [Watermark(5)]


@BOTH
def test_consecutive_rows_leave_together(ordered):
    machine = async_queue(ordered=ordered)
    for _ in range(4):
        machine.submit(ROW)
    answer(machine, 0, 1)
    machine.fail(2, "broken")
    answer(machine, 3)
    assert [type(item) for item in machine.release()] == [AnswerBatch, FailedCall, AnswerBatch]


@BOTH
def test_rows_remember_what_they_were_made_of(ordered):
    machine = async_queue(ordered=ordered)
    machine.submit({"v": 1})
    machine.submit({"v": 2})
    machine.complete(0, [{"r": 0}])
    machine.fail(1, "no")
    rows, failed = machine.release()
    assert isinstance(rows, AnswerBatch)
    assert [(a.row, a.results) for a in rows.answers] == [({"v": 1}, [{"r": 0}])]
    assert failed == FailedCall({"v": 2}, "no")


@BOTH
def test_a_ticket_is_answered_once(ordered):
    machine = async_queue(ordered=ordered)
    ticket = machine.submit(ROW)
    answer(machine, ticket)
    for late in (
        lambda: machine.complete(ticket, []),
        lambda: machine.fail(ticket, "x"),
        lambda: machine.complete(99, []),
    ):
        with pytest.raises(InputError, match="is not pending"):
            late()
    assert flat(machine.release()) == [0]


@BOTH
def test_a_snapshot_with_too_few_rows_is_refused(ordered):
    machine = async_queue(ordered=ordered)
    machine.submit(ROW)
    saved = machine.save()
    with pytest.raises(CorruptStateError, match="fewer stored rows"):
        async_queue(ordered=ordered).restore(QueueSnapshot(saved.document, [], []))


@pytest.mark.parametrize("mark", [Watermark(-5, 127), Idle(), Idle(0), Active(), Active(9)])
def test_marks_come_back_from_json(mark):
    assert mark_from_json(json.loads(json.dumps(mark_to_json(mark)))) == mark


def test_a_mark_that_nobody_wrote_is_refused():
    with pytest.raises(CorruptStateError, match="cannot be read"):
        mark_from_json(["moved", 1])


# Against a model


@dataclass
class Model:
    """The whole history as one list, searched from its beginning for every answer."""

    ordered: bool
    history: list[list[Any]] = field(default_factory=list)
    """["event", ticket, answer or None, has left] or ["mark", mark, None, has left]."""
    answered: list[list[Any]] = field(default_factory=list)
    out: list[Any] = field(default_factory=list)
    fixed: int = 0
    """How much of `out` was read: a mark that was read cannot be replaced."""

    def submit(self, ticket: int) -> None:
        self.history.append(["event", ticket, None, False])

    def mark(self, mark: Mark) -> None:
        last = self.history[-1] if self.history else ["nothing", None, None, False]
        if _replaces(mark, last[1]) and not last[3]:
            last[1] = mark
        elif _replaces(mark, last[1]) and self.out[self.fixed :]:
            # It has left, but nobody has looked.
            self.out[-1] = last[1] = mark
        else:
            self.history.append(["mark", mark, None, False])
            self._leave_marks()

    def settle(self, ticket: int, results: list[Any]) -> None:
        entry = next(e for e in self.history if e[0] == "event" and e[1] == ticket)
        entry[2] = results
        if not self.ordered:
            self._leave(entry)
        self._leave_marks()

    def _leave_marks(self) -> None:
        if self.ordered:
            return
        for number, entry in enumerate(self.history):
            if (
                entry[0] == "mark"
                and not entry[3]
                and all(e[3] for e in self.history[:number] if e[0] == "event")
            ):
                self._leave(entry)

    def _leave(self, entry: list[Any]) -> None:
        entry[3] = True
        self.out += [entry[1]] if entry[0] == "mark" else entry[2]

    def release(self) -> list[Any]:
        if self.ordered:
            for entry in self.history:
                if entry[0] == "event" and entry[2] is None:
                    break
                if not entry[3]:
                    self._leave(entry)
        new = self.out[self.fixed :]
        self.fixed = len(self.out)
        return new


def _replaces(mark: Any, former: Any) -> bool:
    return isinstance(mark, Watermark) and isinstance(former, Watermark) and mark.key == former.key


marks = st.one_of(
    st.builds(Idle, st.sampled_from([None, 0, 1])),
    st.builds(Active, st.sampled_from([None, 0, 1])),
    st.sampled_from([0, 0, 0, 1, 2]),
)
steps = st.lists(
    st.one_of(
        st.just(("submit",)),
        st.tuples(st.just("mark"), marks),
        st.tuples(st.just("complete"), st.integers(0, 9), st.integers(0, 3)),
        st.tuples(st.just("fail"), st.integers(0, 9)),
        st.just(("release",)),
        st.just(("restart",)),
    ),
    max_size=60,
)


class Play:
    """One history on the queue and on the model."""

    def __init__(self, ordered: bool) -> None:
        self.ordered = ordered
        self.machine, self.model = async_queue(ordered=ordered), Model(ordered)
        self.seen: list[Any] = []
        self.before: dict[int, int] = {}
        """By watermark (their values are all different), how many tickets had been given out before
        it.
        """
        self.given = self.clock = 0
        self.open: list[int] = []
        self.expected: dict[int, list[Any]] = {}

    def step(self, verb: str, *rest: Any) -> None:
        if verb == "submit":
            ticket = self.machine.submit({"v": self.given})
            assert ticket == self.given
            self.given += 1
            self.open.append(ticket)
            self.model.submit(ticket)
        elif verb == "mark":
            self.clock += 1
            mark = Watermark(self.clock, rest[0]) if isinstance(rest[0], int) else rest[0]
            self.before[self.clock] = self.given
            self.machine.mark(mark)
            self.model.mark(mark)
        elif verb in {"complete", "fail"} and self.open:
            ticket = self.open.pop(rest[0] % len(self.open))
            self.settle(ticket, None if verb == "fail" else rest[1])
        elif verb == "release":
            self.look()
        elif verb == "restart":
            restored = async_queue(ordered=self.ordered)
            restored.restore(travelled(self.machine.save()))
            self.machine = restored

    def settle(self, ticket: int, results: int | None) -> None:
        names = (
            [f"failed {ticket}"] if results is None else [f"{ticket}.{n}" for n in range(results)]
        )
        self.expected[ticket] = names
        if results is None:
            self.machine.fail(ticket, names[0])
        else:
            self.machine.complete(ticket, [{"r": name} for name in names])
        self.model.settle(ticket, names)

    def look(self) -> None:
        found = flat(self.machine.release())
        assert found == self.model.release()
        self.seen += found
        assert [(call.ticket, call.row) for call in self.machine.unanswered()] == [
            (ticket, {"v": ticket}) for ticket in sorted(self.open)
        ]

    def check(self) -> None:
        """Invariants that hold independently of the model."""
        events = [item for item in self.seen if isinstance(item, str)]
        assert sorted(events) == sorted(name for names in self.expected.values() for name in names)
        if self.ordered:
            assert events == [
                name for ticket in range(self.given) for name in self.expected[ticket]
            ]
        place = {item: number for number, item in enumerate(self.seen) if isinstance(item, str)}
        latest: dict[int, int] = {}
        for number, item in enumerate(self.seen):
            if isinstance(item, Watermark):
                assert item.value > latest.get(item.key, 0)
                latest[item.key] = item.value
                for ticket in range(self.before[item.value]):
                    assert all(place[name] < number for name in self.expected[ticket])


@BOTH
@given(steps=steps)
def test_any_history_leaves_as_the_model_says(ordered, steps):
    play = Play(ordered)
    for step in steps:
        play.step(*step)
    play.look()
    while play.open:
        play.step("complete", 7, 2)
    play.look()
    assert len(play.machine) == 0
    play.check()


@given(steps=steps)
def test_unordered_holds_back_no_longer_than_ordered(steps):
    """With the same answers, what ordered has released unordered has released too, but for
    watermarks that were replaced.
    """
    plays = Play(True), Play(False)
    for step in steps:
        for play in plays:
            play.step(*step)
    for play in plays:
        play.look()
    ordered, unordered = ([item for item in play.seen if isinstance(item, str)] for play in plays)
    assert set(ordered) <= set(unordered)
    highest = [{m.key: m.value for m in play.seen if isinstance(m, Watermark)} for play in plays]
    assert highest[0] == highest[1]
