"""The windowed join does what the reference does, and its net is the batch answer, for random joins
and histories.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given

from support.examples import examples
from support.join_machines import Bare, Embedded, Model, late_shapes, name, net, play, shapes
from support.join_strategies import HOWS, TIMED, Case, Step, cases, cut_cases
from support.reference.batch_join import batch_answer
from support.reference.join_config import GRIDS, LEFT, RIGHT, AsOf, JoinConfig, Row, Rows, Within
from tidegate.instants import MIN
from tidegate.state.rocksdb import RocksDBStore
from tidegate.state.store import Store

MACHINES = [Model, Bare]
machines = pytest.mark.parametrize("machine", MACHINES)


def taken(case: Case, outputs: list[Any]) -> list[list[Row]]:
    """The rows that are in the join: what came for the first time, was not put to `late`, and was
    not taken back.
    """
    known: set[tuple[int, Any]] = set()
    found: list[list[Row]] = [[], []]
    for step, (_, late) in zip(case.steps, outputs, strict=False):
        refused = Counter(
            (row["side"], row["row"]["n"], row["row"].get("op"))
            for row in late
            if row["reason"] != "bad_condition"
        )
        arrived = (
            [(LEFT, row) for row in step.value[LEFT]] + [(RIGHT, row) for row in step.value[RIGHT]]
            if step.verb == "add"
            else []
        )
        for side, row in arrived:
            identity = row["o"] if case.config.offset else row["n"]
            again = (side, identity) in known and (case.config.offset or case.config.id)
            known.add((side, identity))
            if refused[side, row["n"], row.get("op")]:
                refused[side, row["n"], row.get("op")] -= 1
            elif again:
                pass
            elif row.get("op") == "-":
                found[side].remove(next(other for other in found[side] if other["n"] == row["n"]))
            else:
                found[side].append(row)
    return found


def batch(case: Case, outputs: list[Any]) -> Counter[tuple[str | None, str | None]]:
    steps = [step.value for step in case.steps if step.verb == "add"]
    first = [min((row["o"] for rows in steps for row in rows[side]), default=0) for side in (0, 1)]
    return Counter(
        (name(left), name(right))
        for left, right in batch_answer(case.config, *taken(case, outputs), first)
    )


@machines
@given(case=cases((*TIMED, "tuples")))
def test_the_net_is_the_batch_answer(machine, case):
    outputs = play(machine(case.config), case)
    found = net(outputs)
    assert not -found
    assert found == batch(case, outputs)


@pytest.mark.slow
@machines
@given(case=cases(TIMED, retracts=True))
def test_the_net_is_the_batch_answer_of_what_was_not_taken_back(machine, case):
    outputs = play(machine(case.config), case)
    found = net(outputs)
    assert not -found
    assert +found == batch(case, outputs)


@pytest.mark.slow
@machines
@given(case=cases(periods=True))
def test_pairs_that_wait_for_their_period_come_out_once(machine, case):
    found = net(play(machine(case.config), case))
    at_once = replace(case.config, on_time_every=None, late_every=None)
    assert +found == +net(play(machine(at_once), Case(at_once, case.steps)))
    assert not -found


@pytest.mark.slow
@machines
@given(pair=cut_cases())
def test_cuts_do_not_matter(machine, pair):
    one, other = (play(machine(case.config), case) for case in pair)
    (rows, late), (other_rows, other_late) = (
        [[row for out in outputs for row in out[which]] for which in (0, 1)]
        for outputs in (one, other)
    )
    assert shapes(rows) == shapes(other_rows)
    if pair[0].config.partition is None:
        # Within a delivery rows are numbered partition by partition.
        assert Counter(row.get("pair_id") for row in rows) == Counter(
            row.get("pair_id") for row in other_rows
        )
    assert late_shapes(late) == late_shapes(other_late)


def row(ts: int, name: str) -> Row:
    return {"ts": ts, "t2": ts, "k": "a", "v": 0, "n": name, "o": ts}


AT_LAST = Case(
    JoinConfig(
        AsOf(None, strict=False),
        "inner",
        on=(),
        padding="final",
        allowed_lateness=30,
        watermark="explicit",
    ),
    (
        Step("add", ([row(-25, "l")], [row(-25, "r")])),
        Step("watermark", (0, -12, "ts")),
        Step("watermark", (1, -12, "ts")),
    ),
)
"""Answers that are never taken back come after the watermark of both."""


@machines
@given(case=cases(TIMED))
@example(AT_LAST)
def test_a_promise_is_not_broken_by_rows_that_were_on_time(machine, case):
    model = Model(case.config)
    play(model, case)
    behind = {held.row["n"] for held in model.machine.accepted if held.late}
    promised = [MIN, MIN]
    for (rows, _), promises in play(
        machine(case.config), case, look=lambda found: found.output_watermarks()
    ):
        for row in (
            row
            for row in rows
            if row["op"] == "+" and not behind & {name(row["left"]), name(row["right"])}
        ):
            for side, number in (("left", LEFT), ("right", RIGHT)):
                assert (
                    row[side] is None
                    or row["timing"] == "late"
                    or row[side]["ts"] >= promised[number]
                ), (side, promised)
        promised = [max(before, after) for before, after in zip(promised, promises, strict=True)]


@machines
@given(case=cases())
def test_a_row_is_in_the_answer_or_held_or_late(machine, case):
    """Of sides whose rows come out alone where they have no partner."""
    config = case.config
    answers = play(
        machine(config), case, look=lambda found: [found.kept(side) for side in (LEFT, RIGHT)]
    )
    outputs = [output for output, _ in answers]
    for number, (_, held) in enumerate(answers):
        standing = net(outputs[: number + 1])
        shown = [
            {pair[side] for pair, count in standing.items() if count} for side in (LEFT, RIGHT)
        ]
        there = taken(Case(config, case.steps[: number + 1]), outputs)
        for side in (side for side in (LEFT, RIGHT) if config.pads(side) and config.how != "anti"):
            assert {row["n"] for row in there[side]} <= shown[side] | set(held[side])
    assert answers[-1][1] == [[], []]


def held(machine: Any) -> list[list[str]]:
    return [machine.kept(side) for side in (LEFT, RIGHT)]


def looked_at(config: JoinConfig) -> Callable[[Any], list[Any]]:
    """What is compared beside the output: the rows in state, and what is promised where that
    follows from the watermarks alone.
    """
    kept = [LEFT, RIGHT]
    promises = isinstance(config.window, (tuple, *GRIDS)) and not config.is_counted
    if isinstance(config.window, AsOf):
        # A right row may be forgotten as soon as a later one is the answer of all that can come.
        kept = [LEFT]
    if config.retracts and any("t2" in config.columns(side) for side in (LEFT, RIGHT)):
        # A row that may be taken back is kept until every column says that this would be too late.
        kept = []
    return lambda machine: [
        *(machine.kept(side) for side in kept),
        *(machine.output_watermarks() if promises else ()),
    ]


def compare(
    case: Case, store: Callable[[], Store] | None = None, machine: type[Bare] = Bare
) -> None:
    """Every step gives the same, and leaves the same in state."""
    look = looked_at(case.config)
    wanted, got = (
        play(Model(case.config), case, look),
        play(machine(case.config, store), case, look),
    )
    for number, (((rows, late), there), ((have, have_late), have_there)) in enumerate(
        zip(wanted, got, strict=True)
    ):
        step = case.steps[number] if number < len(case.steps) else "finish"
        assert shapes(have) == shapes(rows), step
        assert late_shapes(have_late) == late_shapes(late), step
        assert have_there == there, step
    check_order([row for ((rows, _), _) in got for row in rows])


def check_order(rows: list[Row]) -> None:
    """A retraction takes back what stands under its id, all of it as it was told; nothing comes out
    twice.
    """
    standing: dict[str, Row] = {}
    for row in rows:
        told = {name: value for name, value in row.items() if name not in ("op", "emitted_at")}
        if row["op"] == "-":
            assert standing.pop(row["pair_id"]) == told
        else:
            assert row["pair_id"] not in standing
            standing[row["pair_id"]] = told


def message(side: str, ts: int, op: str = "+") -> Row:
    return {"ts": ts, "t2": ts, "k": "a", "v": 1, "n": f"{side}{ts}", "o": ts, "op": op}


@pytest.mark.parametrize("padding", ["complete", "early", "final"])
@pytest.mark.parametrize("how", HOWS)
def test_rows_of_a_delivery_are_taken_back_and_sent_again_in_their_order(how, padding):
    config = JoinConfig((Within(5, 5),), how, padding=padding, allowed_lateness=100, retracts=True)
    meet = Step("add", ([message("l", 1)], [message("r", 2)]))
    past = [Step("watermark", (side, 50, "ts")) for side in (LEFT, RIGHT)]
    for rows in (
        [message("l", 1, "-"), message("l", 1)],
        [message("l", 1), message("l", 1, "-")],
        [message("l", 3, "-"), message("l", 3)],
    ):
        compare(Case(config, (meet, Step("add", (rows, [])))))
        compare(Case(config, (meet, *past, Step("add", (rows, [])))))


@pytest.mark.parametrize("side", [LEFT, RIGHT])
def test_rows_that_have_left_windows_of_messages_and_time_are_taken_back(side):
    config = JoinConfig(Rows(left=1, right_time=2), offset="o", watermark="explicit", retracts=True)
    back = {**message("lr"[side], 1, "-"), "o": 9}
    steps = (
        Step("add", ([message("l", 1)], [message("r", 1)])),
        Step("add", ([message("l", 8)] if side == LEFT else [], [])),
        Step("watermark", (1 - side, 50, "ts")),
        Step("add", ([back], []) if side == LEFT else ([], [back])),
    )
    compare(Case(config, steps))
    outputs = play(Bare(config), Case(config, steps))
    assert not any(late for _, late in outputs)
    assert [row["op"] for rows, _ in outputs for row in rows] == ["+", "-"]


@machines
@pytest.mark.parametrize("side", [LEFT, RIGHT])
def test_a_row_that_is_pushed_out_is_judged_by_the_watermarks_before_its_delivery(machine, side):
    """Retention is enforced before watermarks move, those of both sides: a partner of the row was
    still expected.
    """
    window, how = ((Within(0, None),), "left") if side == LEFT else ((Within(None, 0),), "right")
    config = JoinConfig(window, how, on=(), retain_time=1, watermark="implied")
    rows = ([message("l", 0)], [message("r", 0)])
    rows[side].append(message("lr"[side], -2))
    (panes, late), _ = play(machine(config), Case(config, (Step("add", rows),)))
    assert [(name(row["left"]), name(row["right"]), row["timing"]) for row in panes] == [
        ("l0", "r0", "on_time"),
        ("l-2", None, "early") if side == LEFT else (None, "r-2", "early"),
    ]
    assert not late


@given(case=cases())
def test_every_step_is_that_of_the_reference(case):
    compare(case)


@given(case=cases(retracts=True))
def test_retractions_go_through_as_in_the_reference(case):
    compare(case)


@given(case=cases(periods=True))
def test_periods_are_those_of_the_reference(case):
    compare(case)


@given(case=cases(retention=True))
def test_retention_is_that_of_the_reference(case):
    compare(case)


@pytest.mark.slow
@pytest.mark.rocksdb
@examples(25)
@given(case=cases(retracts=True, periods=True))
def test_state_on_disk_is_that_of_the_reference(case):
    with tempfile.TemporaryDirectory() as folder:
        compare(case, lambda: RocksDBStore(f"{folder}/state"))


@pytest.mark.slow
@given(case=cases(periods=True))
def test_the_embedded_runtime_gives_what_the_operator_gives(case):
    compare(case, machine=Embedded)
