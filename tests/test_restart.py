"""Restarts: flush, reopen, replay from the offsets to resume from, and get what an undisturbed run
gives.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from support.examples import examples

Opener = Callable[[], Any]
EAGER = tg.after_watermark(early=tg.after_count(2), late=tg.after_count(1))


@pytest.fixture(params=["memory", pytest.param("rocksdb", marks=pytest.mark.rocksdb)])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens the same store again and again; the one before must be closed."""
    kind = {"memory": tg.MemoryStore, "rocksdb": tg.RocksDBStore}[request.param]
    return lambda: kind(tmp_path / "state")


def windowed(window: Any = None, **stream: Any) -> tg.Windowed:
    keyed = tg.stream(
        **{"time": "ts", "key": "k", "offset": "o", "watermark": tg.explicit(), **stream}
    )
    return (
        keyed.window(tg.tumbling(10, unit="us") if window is None else window)
        .allow_lateness(20, unit="us")
        .retracting()
        .trigger(EAGER)
    )


CHEAP = {"n": tg.count(), "total": tg.sum("v"), "best": tg.max("v")}
WHOLE = {"n": tg.count(), "middle": tg.median("v"), "all": tg.list_("v")}


SIZE, STEP, PACE = 30, 5, 3


def traffic(seed: int) -> list[dict[str, Any]]:
    """Event time moves by `PACE` a message, out of order, and one in ten is too late for
    everything.
    """
    dice = random.Random(seed)
    times = [
        PACE * o + (-50 if dice.random() < 0.1 else dice.randrange(-12, 6)) for o in range(SIZE)
    ]
    return [
        {"o": o, "ts": ts, "k": dice.choice(["a", "b", None]), "v": dice.randrange(-5, 20)}
        for o, ts in enumerate(times)
    ]


def answers(results: tg.Results, seen: dict[str, Any]) -> None:
    """Panes by id; one that comes again must be the same but for when it was told."""
    for pane in results.panes.to_pylist():
        told = {
            name: value for name, value in pane.items() if name not in {"watermark", "emitted_at"}
        }
        assert seen.setdefault(pane["pane_id"], told) == told


class Life:
    """An operator that dies and comes back: what was not flushed is replayed."""

    def __init__(self, panes: tg.Panes, open_store: Opener, rows: list[dict[str, Any]]) -> None:
        self.panes, self.open_store, self.rows = panes, open_store, rows
        self.seen: dict[str, Any] = {}
        self.late: list[tuple[Any, ...]] = []
        self.open()

    def open(self) -> None:
        self.operator = self.panes.embedded(store=self.open_store(), now=0)
        self.at = self.operator.resume_offsets().get("", 0)

    def step(self) -> None:
        """A delivery and the watermark that belongs to its end, which depends on offsets only."""
        self.operator.add_messages(
            pa.Table.from_pylist(self.rows[self.at : self.at + STEP], SCHEMA)
        )
        self.at += STEP
        self.operator.advance_watermark(PACE * self.at - 10)

    def flush(self) -> None:
        results = self.operator.get_result()
        answers(results, self.seen)
        self.late += [(row["o"], row["reason"]) for row in results.late.to_pylist()]
        self.operator.flush()

    def crash(self) -> None:
        self.operator.close()
        self.open()

    def finish(self) -> dict[str, Any]:
        while self.at < len(self.rows):
            self.step()
        self.operator.finish()
        self.flush()
        self.operator.close()
        return self.seen


@lru_cache
def undisturbed(window: str, aggregates: str, seed: int) -> Life:
    """The end of a run without flushes in between and without crashes."""
    life = Life(specification(window, aggregates), tg.MemoryStore, traffic(seed))
    life.finish()
    return life


def specification(window: str, aggregates: str) -> tg.Panes:
    return windowed(WINDOWS[window]).aggregate(**{"partials": CHEAP, "messages": WHOLE}[aggregates])


SCHEMA = pa.schema({"o": pa.int64(), "ts": pa.int64(), "k": pa.string(), "v": pa.int64()})
WINDOWS = {
    "tumbling": tg.tumbling(10, unit="us"),
    "hopping": tg.hopping(15, 5, unit="us"),
    "cumulative": tg.cumulative(12, 4, unit="us"),
    "session": tg.session(4, unit="us"),
    "by difference": tg.sliding(6, unit="us"),
    "global": tg.global_window(),
    "offsets": tg.tumbling(7, axis="offset"),
    "ordinals": tg.tumbling(7, axis="ordinal"),
}


@pytest.mark.parametrize("aggregates", ["partials", "messages"])
@pytest.mark.parametrize("window", WINDOWS)
def test_crashes_between_flushes_do_not_show(window, aggregates, open_store):
    quiet = undisturbed(window, aggregates, 1)
    life = Life(specification(window, aggregates), open_store, traffic(1))
    for _ in range(2):
        life.step()
        life.step()
        life.flush()
        life.step()
        life.crash()
    assert life.at == 4 * STEP
    assert life.finish() == quiet.seen != {}
    assert sorted(life.late) == sorted(quiet.late)
    assert bool(quiet.late) == (WINDOWS[window].axis is tg.Axis.EVENT_TIME)


@examples(10)
@given(
    st.integers(1, 3),
    st.lists(st.sampled_from(["step", "step", "step", "flush", "crash"]), max_size=20),
    st.sampled_from(list(WINDOWS)),
    st.sampled_from(["partials", "messages"]),
)
def test_oracle_any_history_of_flushes_and_crashes_gives_the_panes_of_an_undisturbed_run(
    tmp_path_factory, seed, history, window, aggregates
):
    path = tmp_path_factory.mktemp("life") / "state"
    life = Life(specification(window, aggregates), lambda: tg.MemoryStore(path), traffic(seed))
    for verb in history:
        if verb != "step":
            {"flush": life.flush, "crash": life.crash}[verb]()
        elif life.at < SIZE:
            life.step()
    assert life.finish() == undisturbed(window, aggregates, seed).seen


def test_offsets_to_resume_from_are_those_of_the_flush_and_by_partition(open_store):
    panes = windowed(partition="p").aggregate(n=tg.count())
    op = panes.embedded(store=open_store(), now=0)
    assert op.resume_offsets() == {}
    assert op.resume_offsets()["x"] == 0, "everything of a partition without a message is new"
    op.add_messages([{"o": 4, "p": "x", "ts": 1, "k": "a"}, {"o": 9, "p": "y", "ts": 1, "k": "a"}])
    op.flush()
    op.add_messages([{"o": 5, "p": "x", "ts": 1, "k": "a"}])
    assert op.resume_offsets() == {"x": 6, "y": 10}
    op.close()
    assert panes.embedded(store=open_store(), now=0).resume_offsets() == {"x": 5, "y": 10}


def test_results_that_wait_survive_and_those_that_were_fetched_do_not(open_store):
    panes = windowed().aggregate(n=tg.count())
    op = panes.embedded(store=open_store(), now=0)
    op.add_messages([{"o": i, "ts": i, "k": "a"} for i in range(4)])
    assert op.get_result().panes.num_rows
    op.flush()
    op.advance_watermark(100)
    waiting = panes_of(op, fetch=False)
    op.flush()
    op.close()
    again = panes.embedded(store=open_store(), now=0)
    assert panes_of(again, fetch=True) == waiting != []
    again.flush()
    again.close()
    assert panes_of(panes.embedded(store=open_store(), now=0), fetch=True) == []


def panes_of(op: tg.EmbeddedOperator, *, fetch: bool) -> list[dict[str, Any]]:
    waiting = [row for results in op._queue.kept for row in results.panes.to_pylist()]
    return op.get_result().panes.to_pylist() if fetch else waiting


def test_clock_watermark_counters_and_retention_survive(open_store):
    panes = windowed().retain(windows=2).aggregate(n=tg.count())
    op = panes.embedded(store=open_store(), now=5)
    op.add_messages([{"o": i, "ts": 10 * i, "k": "a"} for i in range(5)])
    op.advance_watermark(3)
    op.timeout(77)
    op.get_result()
    op.flush()
    stats, watermark, windows = op.stats(), op.watermark, op.get_windows()
    op.close()
    again = panes.embedded(store=open_store(), now=5)
    assert (again.stats(), again.watermark, again.get_windows()) == (stats, watermark, windows)
    again.add_messages([{"o": 9, "ts": 11, "k": "a"}])
    assert again.get_result().late["reason"].to_pylist() == ["out_of_retention"]
    assert again.get_result().late["emitted_at"].to_pylist() == [77]


def test_timers_go_on_after_a_restart(open_store):
    panes = (
        windowed()
        .trigger(tg.after_watermark(early=tg.after_delay(50, unit="us")))
        .aggregate(n=tg.count())
    )
    op = panes.embedded(store=open_store(), now=0)
    op.add_messages([{"o": 0, "ts": 1, "k": "a"}])
    op.flush()
    op.close()
    again = panes.embedded(store=open_store(), now=0)
    again.timeout(49)
    assert again.get_result().panes.num_rows == 0
    again.timeout(50)
    assert again.get_result().panes["timing"].to_pylist() == ["early"]


CHANGES = {
    "window": (
        lambda s: windowed(tg.tumbling(20, unit="us")).aggregate(n=tg.count()),
        "window.*10.*20",
    ),
    "trigger": (
        lambda s: s.trigger(tg.after_watermark()).aggregate(n=tg.count()),
        "trigger.*AfterCount",
    ),
    "mode": (lambda s: s.accumulating().aggregate(n=tg.count()), "mode.*retracting.*accumulating"),
    "lateness": (
        lambda s: s.allow_lateness(19, unit="us").aggregate(n=tg.count()),
        "lateness.*20.*19.*not shorter",
    ),
    "aggregate": (lambda s: s.aggregate(n=tg.count("v")), "aggregates.n"),
    "other aggregates": (
        lambda s: s.aggregate(m=tg.count()),
        r"aggregates\.m.*aggregates\.n.*cannot follow `aggregates\.n`",
    ),
    "key": (lambda s: windowed(key=["k", "v"]).aggregate(n=tg.count()), "input.key"),
    "option": (
        lambda s: s.options(drop_by="window").aggregate(n=tg.count()),
        "drop_by.*event.*window",
    ),
    "retention": (
        lambda s: s.retain(windows=3).aggregate(n=tg.count()),
        "retention.windows.*None.*3",
    ),
    "evictor": (lambda s: s.evict(tg.evict_count(2)).aggregate(n=tg.count()), "evictor"),
    "watermark": (
        lambda s: windowed(watermark=tg.ascending()).aggregate(n=tg.count()),
        "watermark",
    ),
}


@pytest.mark.parametrize(("change", "told"), CHANGES.values(), ids=CHANGES)
def test_another_specification_is_refused_with_the_difference(change, told, tmp_path):
    op = windowed().aggregate(n=tg.count()).embedded(store=tg.MemoryStore(tmp_path / "s"), now=0)
    op.add_messages([{"o": 0, "ts": 1, "k": "a", "v": 1}])
    op.flush()
    op.close()
    before = (tmp_path / "s").read_bytes()
    with pytest.raises(tg.SpecMismatchError, match=f"(?s){told}.*Hint"):
        change(windowed()).embedded(store=tg.MemoryStore(tmp_path / "s"), now=0)
    assert (tmp_path / "s").read_bytes() == before
    assert (
        windowed()
        .aggregate(n=tg.count())
        .embedded(store=tg.MemoryStore(tmp_path / "s"), now=0)
        .stats()["windows"]
        == 1
    )


def test_the_difference_names_only_what_differs(tmp_path):
    op = windowed().aggregate(n=tg.count()).embedded(store=tg.MemoryStore(tmp_path / "s"), now=0)
    op.flush()
    op.close()
    with pytest.raises(tg.SpecMismatchError) as told:
        windowed().accumulating().aggregate(n=tg.count()).embedded(
            store=tg.MemoryStore(tmp_path / "s"), now=0
        )
    assert "`mode`" in str(told.value)
    assert "lateness" not in str(told.value)


# A lost message store


def lose_messages(store: Any) -> None:
    store.delete_prefix("messages")
    store.commit()
    store.close()


@pytest.mark.parametrize("window", [n for n in WINDOWS if n not in {"ordinals", "offsets"}])
def test_a_lost_message_store_is_rebuilt_by_replay(window, open_store):
    rows, lost_at = traffic(1), 4 * STEP
    life = Life(specification(window, "messages"), open_store, rows)
    while life.at < lost_at:
        life.step()
    life.flush()
    life.operator.close()
    lose_messages(open_store())
    life.open()
    assert life.at < lost_at, "messages of windows that are still there have to be read again"
    # What is replayed comes without watermarks of its own: those that were told are on record.
    life.operator.add_messages(pa.Table.from_pylist(rows[life.at : lost_at], SCHEMA))
    life.at = lost_at
    assert life.finish() == undisturbed(window, "messages", 1).seen


def test_a_lost_message_store_on_offsets_is_rebuilt_by_replay(open_store):
    rows = traffic(1)
    panes = tg.stream(key="k", offset="o").window(tg.tumbling(20, axis="offset")).aggregate(**WHOLE)
    whole = panes.embedded(now=0)
    whole.add_messages(pa.Table.from_pylist(rows, SCHEMA))
    whole.finish()
    op = panes.embedded(store=open_store(), now=0)
    op.add_messages(pa.Table.from_pylist(rows[:27], SCHEMA))
    first = op.get_result().panes.to_pylist()
    op.flush()
    op.close()
    lose_messages(open_store())
    again = panes.embedded(store=open_store(), now=0)
    resume = again.resume_offsets()[""]
    assert resume <= 20
    again.add_messages(pa.Table.from_pylist(rows[resume:], SCHEMA))
    again.finish()
    assert told(first + again.get_result().panes.to_pylist()) == told(
        whole.get_result().panes.to_pylist()
    )


def told(panes: list[dict[str, Any]]) -> list[str]:
    """What panes say, in an order that does not depend on when they came."""
    return sorted(
        repr([pane[name] for name in ("k", "window_start", "op", "n", "middle", "all")])
        for pane in panes
    )


def test_messages_of_a_window_whose_first_slices_are_long_over_are_read_again(open_store):
    """No lateness, windows of 20 every 2: at watermark 15 the window from 0 on still needs its
    first message.
    """
    panes = windowed(tg.hopping(20, 2, unit="us")).allow_lateness(0, unit="us").aggregate(**WHOLE)
    rows = [{"o": o, "ts": o, "k": "a", "v": o} for o in range(18)]
    op = panes.embedded(store=open_store(), now=0)
    op.add_messages(rows)
    op.advance_watermark(15)
    op.get_result()
    op.flush()
    op.close()
    lose_messages(open_store())
    again = panes.embedded(store=open_store(), now=0)
    again.add_messages([row for row in rows if row["o"] >= again.resume_offsets()[""]])
    again.finish()
    found = {
        p["window_start"]: p["all"] for p in again.get_result().panes.to_pylist() if p["op"] == "+"
    }
    assert found[0] == list(range(18))


def test_a_message_that_was_late_does_not_come_in_by_the_rebuild(open_store):
    """A window of 100, lateness 20: the event at 5 was refused at watermark 50 although its window
    is open.
    """
    panes = windowed(tg.tumbling(100, unit="us")).aggregate(**WHOLE)
    op = panes.embedded(store=open_store(), now=0)
    rows = [{"o": 0, "ts": 60, "k": "a", "v": 1}, {"o": 1, "ts": 5, "k": "a", "v": 1000}]
    op.add_messages(rows[:1])
    op.advance_watermark(50)
    op.add_messages(rows[1:])
    assert op.get_result().late["reason"].to_pylist() == ["very_late"]
    op.flush()
    op.close()
    lose_messages(open_store())
    again = panes.embedded(store=open_store(), now=0)
    again.add_messages([row for row in rows if row["o"] >= again.resume_offsets()[""]])
    again.finish()
    result = again.get_result()
    assert result.panes["all"].to_pylist() == [[1]]
    assert result.late.num_rows == 0


def test_a_rebuild_that_reads_twice_stores_once_and_comes_to_an_end(open_store):
    panes = windowed(tg.tumbling(100, unit="us")).aggregate(**WHOLE)
    rows = [{"o": o, "ts": o, "k": "a", "v": o} for o in range(6)]
    op = panes.embedded(store=open_store(), now=0)
    op.add_messages(rows)
    op.get_result()
    op.flush()
    op.close()
    lose_messages(open_store())
    again = panes.embedded(store=open_store(), now=0)
    again.add_messages(rows[:4])
    again.add_messages(rows)
    again.add_messages(rows)
    assert again.stats()["messages"] == 6
    again.get_result()
    again.flush()
    assert again.resume_offsets() == {"": 6}
    again.finish()
    assert again.get_result().panes["all"].to_pylist()[-1] == list(range(6))


def test_a_lost_message_store_without_offsets_is_told(tmp_path):
    panes = windowed(offset=None).aggregate(**WHOLE)
    op = panes.embedded(store=tg.MemoryStore(tmp_path / "s"), now=0)
    op.add_messages([{"ts": 1, "k": "a", "v": 1}])
    op.flush()
    op.close()
    lose_messages(tg.MemoryStore(tmp_path / "s"))
    with pytest.raises(tg.StateError, match=r"message store.*offsets"):
        panes.embedded(store=tg.MemoryStore(tmp_path / "s"), now=0)


def test_metadata_keeps_first_and_last_offset_per_partition():
    for window in (tg.tumbling(10, unit="us"), tg.session(4, unit="us")):
        op = windowed(window, partition="p").aggregate(n=tg.count()).embedded(now=0)
        op.add_messages(
            [
                {"o": 7, "p": "x", "ts": 1, "k": "a"},
                {"o": 9, "p": "x", "ts": 2, "k": "a"},
                {"o": 3, "p": "y", "ts": 3, "k": "a"},
            ]
        )
        op.add_messages(
            [{"o": 12, "p": "x", "ts": 4, "k": "a"}, {"o": 13, "p": "x", "ts": 24, "k": "a"}]
        )
        assert [w["offsets"] for w in op.get_windows()] == [
            {"x": (7, 12), "y": (3, 3)},
            {"x": (13, 13)},
        ]
