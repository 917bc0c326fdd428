"""Composition: operators exchange changes, so that a chain ends in the answer of a batch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import tidegate as tg

EAGER = tg.after_watermark(early=tg.every_element(), late=tg.every_element())
LATE_ONLY = tg.after_watermark(late=tg.every_element())


def source(key: Any = ("c", "u"), window: Any = None, trigger: Any = EAGER) -> tg.Windowed:
    return (
        tg.stream(time="ts", key=list(key), watermark=tg.explicit())
        .window(tg.tumbling("10 s") if window is None else window)
        .trigger(trigger)
    )


def seconds(*times: int, c: str = "x", u: str = "a") -> list[dict[str, Any]]:
    return [{"ts": t * 1_000_000, "c": c, "u": u} for t in times]


def rows_of(operator: tg.EmbeddedOperator, *names: str) -> list[tuple[Any, ...]]:
    """Op, window in seconds, and the named columns of all panes."""
    result = operator.get_result()
    assert result.late.to_pylist() == []
    return [
        (p["op"], p["window_start"] // 10**6, p["window_end"] // 10**6, *(p[n] for n in names))
        for p in result.panes.to_pylist()
    ]


def netted(rows: list[tuple[Any, ...]]) -> set[tuple[Any, ...]]:
    """Emits minus retracts; nothing is retracted that was not emitted."""
    left: Counter[tuple[Any, ...]] = Counter()
    for op, *rest in rows:
        left[tuple(rest)] += 1 if op == "+" else -1
        assert left[tuple(rest)] >= 0, rest
    assert set((+left).values()) <= {1}
    return set(+left)


@pytest.mark.parametrize("mode", ["accumulating", "discarding", "retracting"])
@pytest.mark.parametrize(
    ("trigger", "before", "after"),
    [(LATE_ONLY, (1,), (2,)), (EAGER, (1, 2), (3,))],
    ids=["late", "early"],
)
def test_a_chain_counts_once_whatever_the_mode_of_the_upstream(mode, trigger, before, after):
    last = (
        tg.stream(key="c")
        .inherit()
        .trigger(trigger)
        .retracting()
        .aggregate(n=tg.sum("n"))
        .embedded(now=0)
    )
    first = getattr(source(trigger=trigger), mode)().aggregate(n=tg.count())
    with first.embedded(downstream=last, now=0) as op:
        op.add_messages(seconds(*before))
        op.advance_watermark(10_000_000)
        op.add_messages(seconds(*after))
        op.finish()
    assert netted(rows_of(last, "n")) == {(0, 10, len(before) + len(after))}


@pytest.mark.parametrize("trigger", [EAGER, LATE_ONLY], ids=["early", "late"])
@pytest.mark.parametrize("order", [(0, 15, 8), (0, 8, 15), (15, 8, 0), (8, 0, 15)])
@pytest.mark.parametrize("mode", ["accumulating", "retracting"])
def test_a_window_whose_rows_were_all_retracted_is_withdrawn(trigger, order, mode):
    last = getattr(tg.stream(key="c").inherit().trigger(trigger), mode)().aggregate(n=tg.sum("n"))
    op2 = last.embedded(now=0)
    sessions = source(window=tg.session("10 s"), trigger=trigger).retracting()
    with sessions.aggregate(n=tg.count()).embedded(downstream=op2, now=0) as op:
        for t in order:
            op.add_messages(seconds(t))
            if trigger is LATE_ONLY:
                op.advance_watermark(30_000_000)
        op.finish()
    rows = rows_of(op2, "n")
    assert all(row[3] for row in rows), "no pane shows a window without rows"
    if mode == "accumulating":
        assert current(rows) == {(0, 25): (3,)}
    else:
        assert netted(rows) == {(0, 25, 3)}


def current(rows: list[tuple[Any, ...]]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """The table of an upsert sink: `+` puts the row of a window, `-` deletes it."""
    table: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for op, start, end, *rest in rows:
        if op == "+":
            table[start, end] = tuple(rest)
        else:
            assert table.pop((start, end)) == tuple(rest)
    return table


@pytest.mark.parametrize("trigger", [EAGER, LATE_ONLY], ids=["early", "late"])
def test_sessions_that_grow_withdraw_the_windows_they_replace_in_accumulating_mode(trigger):
    sessions = source(key=("c",), window=tg.session("10 s"), trigger=trigger)
    with sessions.accumulating().aggregate(n=tg.count()).embedded(now=0) as op:
        op.add_messages(seconds(0))
        op.advance_watermark(11_000_000 if trigger is LATE_ONLY else 1)
        op.add_messages(seconds(5))
        op.advance_watermark(16_000_000)
        rows = list(dict.fromkeys(rows_of(op, "n")))
    assert rows == [("+", 0, 10, 1), ("-", 0, 10, 1), ("+", 0, 15, 2)]
    assert current(rows) == {(0, 15): (2,)}


def test_a_window_that_opens_again_continues_its_pane_numbers():
    """The ids of panes stay unique; the first pane of the new life is a first pane again."""
    last = tg.stream(key="c").inherit().trigger(EAGER).aggregate(n=tg.count()).embedded(now=0)
    panes = {
        "c": "x",
        "window_start": 0,
        "window_end": 10,
        "time": 9,
        "n": 1,
    }
    for op in "+-+-+":
        last.add_messages([{**panes, "op": op}])
    found = last.get_result().panes.to_pylist()
    assert [(p["op"], p["pane"], p["is_first"]) for p in found] == [
        ("+", 0, True),
        ("-", 0, True),
        ("+", 1, True),
        ("-", 1, True),
        ("+", 2, True),
    ]
    assert len({p["pane_id"] for p in found}) == len(found)
    last.add_messages([{**panes, "op": "-"}])
    assert last.stats()["windows"] == 0
