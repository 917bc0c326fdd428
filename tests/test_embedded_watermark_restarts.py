"""Embedded operators that restart: watermarks, sources and clocks go on where they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tidegate as tg
from support.counted_windows import Opener, Row, fired, halfway, panes, rows, united
from tidegate.spec.watermarks import Watermarks

# Restarts


@pytest.fixture(params=["memory", pytest.param("rocksdb", marks=pytest.mark.rocksdb)])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    kind = {"memory": tg.MemoryStore, "rocksdb": tg.RocksDBStore}[request.param]
    return lambda: kind(tmp_path / "state")


def traffic(count: int = 40) -> list[Row]:
    """Two partitions that take turns, one of them silent in the middle, with all that any generator
    wants to see.
    """
    found = []
    for n in range(count):
        p = "a" if n % 3 or 12 < n < 30 else "b"
        time = 3 * n - (5 if n % 4 == 0 else 0)
        found.append(
            {
                "ts": time,
                "p": p,
                "k": n % 2,
                "wm": 3 * n - 6 if n % 2 else None,
                "m": n % 7 == 6,
                "writer": f"w{n % 2}",
                "o": n,
            }
        )
    return found


RESTARTED: dict[str, Watermarks | None] = {
    "implied": None,
    "bounded": tg.bounded(6, unit="us", idle_after="20 us", partitions=["a", "b"]),
    "realigning": tg.bounded(6, unit="us", idle_after="20 us", realign=True),
    "lagging": tg.lagging("9 us"),
    "column": tg.punctuated("wm", idle_after="20 us"),
    "marker": tg.punctuated(marker="m", idle_after="30 us"),
    "noted": tg.noted("wm", writers=["w0", "w1"], forget_after="40 us"),
    "generated": tg.generated(halfway, state={"newest": 0}, idle_after="20 us"),
    "per_key": tg.per_key("3 us", floor="12 us"),
}


@pytest.mark.parametrize("name", RESTARTED)
def test_a_restart_in_the_middle_changes_no_pane_and_no_watermark(name, open_store):
    spec = panes(RESTARTED[name], key="k", offset="o", lateness=5)

    def play(op: tg.EmbeddedOperator, cut: int | None) -> tuple[list[Any], list[Any], Any]:
        marks, found, late = [], [], []
        for n, message in enumerate(traffic()):
            if cut is not None and n % cut == 0:
                collect(op, found, late)
                op.close()
                op = spec.embedded(store=open_store(), now=max(0, 3 * n - 3))
            op.add_messages([message], now=3 * n)
            marks.append(op.watermark)
        op.timeout(500)
        marks.append(op.watermark)
        op.finish()
        collect(op, found, late)
        stats = {
            name: op.stats()[name]
            for name in ("events", "late_rows", "watermark_steps_back", "watermark_advances")
        }
        op.close()
        return marks, found, (late, stats)

    def collect(op: tg.EmbeddedOperator, found: list[Any], late: list[Any]) -> None:
        result = op.get_result()
        found += [
            (pane["k"], pane["window_start"], pane["n"], pane["timing"])
            for pane in result.panes.to_pylist()
        ]
        late += [(row["o"], row["reason"]) for row in result.late.to_pylist()]
        op.flush()

    undisturbed = play(spec.embedded(now=0), None)
    assert play(spec.embedded(store=open_store(), now=0), 7) == undisturbed
    assert len(undisturbed[1]) > 15


def test_a_union_goes_on_after_a_restart_where_it_was(open_store):
    spec = united(tg.bounded(0, idle_after="60 us"), tg.explicit(), tg.bounded(0), offset="o")
    with spec.embedded(store=open_store(), now=0) as op:
        op.add_messages(rows(1, o=1), input=0)
        op.advance_watermark(20, input=1)
        op.mark_idle(input=2)
        op.add_messages(rows(2, o=1), input=2)
        op.end_input(input=2)
        op.get_result()
        op.flush()
    with spec.embedded(store=open_store(), now=30) as op:
        assert op.watermark == 1
        op.add_messages(rows(1, o=1), input=0)
        assert op.stats()["duplicates"] == 1
        op.timeout(89)
        assert op.watermark == 1, "30 of the 60 were before the restart, and nothing ran in between"
        op.timeout(90)
        assert (fired(op), op.watermark) == ([(0, 2)], 20)


def test_the_time_in_which_nothing_ran_is_no_silence(open_store):
    spec = panes(tg.bounded(0, idle_after="60 us"))
    with spec.embedded(store=open_store(), now=0) as op:
        op.add_messages(rows(1) + rows(25, p="b"))
        op.timeout(50)
        op.flush()
    with spec.embedded(store=open_store(), now=9000) as op:
        op.timeout(9009)
        assert op.watermark == 1
        op.timeout(9010)
        assert op.watermark == 25


def test_the_clock_begins_after_a_restart_where_it_is_told_to(open_store):
    spec = panes(tg.bounded(0), tolerance=60)
    with spec.embedded(store=open_store(), now=0) as op:
        op.add_messages(rows(1))
        op.flush()
    with spec.embedded(store=open_store(), now=500) as op:
        op.add_messages(rows(550))
        assert (op.watermark, op.stats()["future"]) == (550, 0)


def test_the_intake_is_stored_as_json_and_holds_no_python(open_store):
    spec = panes(tg.generated(halfway, state={"newest": 0}))
    with spec.embedded(store=open_store(), now=0) as op:
        op.add_messages(rows(33))
        op.flush()
    store = open_store()
    document = store.get_json("operator")["watermark_tracker"]
    store.close()
    assert document["columns"][0]["0"]["generator"] == {"newest": 33}
    assert json.loads(json.dumps(document)) == document
