"""Explanations of any operator in any state change nothing and are true."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from support.calls import calls_of
from support.explanations import explained, partitioned
from support.strategies import Case, cases, per_key_cases
from test_differential import Embedded, play
from tidegate.embedded.operator import EmbeddedOperator
from tidegate.instants import MIN

FAR = 10**9
Action = tuple[Any, ...]


class Explained(Embedded):
    """An operator that is explained before and after every step."""

    def results(self):
        check(self.operator)
        found = super().results()
        check(self.operator)
        return found


def check(op: EmbeddedOperator) -> None:
    """The listed windows are those with a pending pane, and explaining changes nothing."""
    before = (op.operator.watermark_tracker.save(), op.operator.progress.to_json())
    found = explained(op)
    assert (op.operator.watermark_tracker.save(), op.operator.progress.to_json()) == before
    wiring = op.operator.wiring
    cells = None if wiring is None else op._cells(wiring)
    owing: dict[tuple[int, int, bool], int] = {}
    if wiring is not None and cells is not None:
        reached = np.broadcast_to(wiring.context.watermarks.of_cells(cells), len(cells))
        rows = zip(
            cells.ints("start"),
            cells.ints("end"),
            reached,
            cells.ints("pending"),
            cells.ints("closed"),
            strict=True,
        )
        for start, end, mark, pending, closed in rows:
            if not closed and (end > mark or pending > 0):
                window = (int(start), int(end), bool(end <= mark))
                owing[window] = owing.get(window, 0) + 1
    assert len(found.windows) + found.more_windows == len(owing)
    assert {(w.start, w.end, w.is_complete): w.keys for w in found.windows}.items() <= owing.items()


@given(st.one_of(cases(), per_key_cases()))
def test_any_operator_can_be_asked_at_any_time_without_a_trace(case: Case):
    assert play(Explained(case.config), case) == play(Embedded(case.config), case)


def test_ten_thousand_partitions_and_many_keys_are_explained_quickly():
    op = partitioned(tg.bounded("10 seconds", partitions=10_000))
    n = 200_000
    spread = np.arange(n)
    op.add_messages(
        pa.table(
            {
                "ts": pa.array(spread, pa.timestamp("us", "UTC")),
                "k": spread,
                "p": pa.array((spread % 9_999).astype(str)),
            }
        )
    )
    assert calls_of(op.explain_watermark) < 20 * 10_000, "the cost grows with the sources alone"
    found = op.explain_watermark()
    assert len(found.sources) == 10_000
    assert len(str(found)) < 2_000


inputs = st.integers(0, 1)
names = st.sampled_from(["a", "b", "c"])
actions = st.lists(
    st.one_of(
        st.tuples(st.just("advance"), inputs, st.none() | names, st.integers(0, 40)),
        st.tuples(st.just("idle"), inputs, st.none() | names),
        st.tuples(st.just("end"), inputs, names),
        st.tuples(st.just("join"), inputs, names),
        st.tuples(st.just("leave"), inputs, names),
        st.tuples(st.just("timeout"), st.integers(1, 60)),
    ),
    max_size=12,
)


def led(history: list[Action], idle_after: int | None) -> EmbeddedOperator:
    """A union of two explicit inputs after a history."""
    streams = [
        tg.stream(
            time="ts", watermark=tg.spec.watermarks.Explicit(idle_after=idle_after, declared=names)
        )
        for names in (("a",), ())
    ]
    op = (
        tg.union(*streams)
        .window(tg.tumbling(10, unit="us"))
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    clock = 0
    for verb, *rest in history:
        match verb, rest:
            case "advance", [ordinal, name, value]:
                op.advance_watermark(value, input=ordinal, partition=name)
            case "idle", [ordinal, name]:
                op.mark_idle(input=ordinal, partition=name)
            case "end", [ordinal, name]:
                op.end_input(input=ordinal, partition=name)
            case "join", [ordinal, name]:
                op.add_partition(name, input=ordinal)
            case "leave", [ordinal, name]:
                op.remove_partition(name, input=ordinal)
            case "timeout", [span]:
                clock += span
                op.timeout(clock)
    return op


@given(actions, st.sampled_from([None, None, 30]))
def test_who_is_said_to_hold_the_watermark_back_does_and_nobody_else(
    history: list[Action], idle_after: int | None
):
    op = led(history, idle_after)
    found = explained(op)
    assert found.watermark == op.watermark
    if found.is_idle:
        return
    active = [
        source
        for source in found.sources
        if source.status == "active" and found.inputs[source.input].status == "active"
    ]
    whole = [
        given
        for given in found.inputs
        if given.status == "active" and given.input not in {source.input for source in active}
    ]
    holders = [(s.input, s.name) for s in active if s.holds] + [
        (given.input, None) for given in whole if given.holds
    ]
    others = [(s.input, s.name) for s in active if not s.holds] + [
        (given.input, None) for given in whole if not given.holds
    ]
    assert holders
    for holder in holders:
        # Each of them alone keeps the watermark where it is, however far the others go.
        ahead = [("advance", *other, FAR) for other in (*others, *holders) if other != holder]
        assert led([*history, *ahead], idle_after).watermark == found.watermark
    standing = [s.promise for s in active if not s.holds] + [
        given.promise for given in found.inputs if given.status == "active" and not given.holds
    ]
    watermark = MIN if found.watermark is None else found.watermark
    if all(promise is not None and promise > watermark for promise in standing):
        moved = led(
            [*history, *(("advance", ordinal, name, FAR) for ordinal, name in holders)], idle_after
        )
        assert moved.watermark is not None
        assert moved.watermark > watermark
