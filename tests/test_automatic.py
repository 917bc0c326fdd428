"""Automatic mode: results go to a downstream, refusals hold input back, and state is flushed where
it has to be.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidegate as tg


class Sink:
    """A downstream that accepts while it has room, and remembers what it was offered and what it
    took.
    """

    def __init__(self, room: float = float("inf")) -> None:
        self.room = room
        self.offered: list[tg.Results] = []
        self.taken: list[tg.Results] = []

    def __call__(self, results: tg.Results) -> bool:
        self.offered.append(results)
        if self.room <= 0:
            return False
        self.room -= 1
        self.taken.append(results)
        return True

    @property
    def panes(self) -> list[dict[str, Any]]:
        return [row for results in self.taken for row in results.panes.to_pylist()]

    @property
    def late(self) -> list[dict[str, Any]]:
        return [row for results in self.taken for row in results.late.to_pylist()]

    @property
    def windows(self) -> list[tuple[int, int]]:
        return [(row["window_start"], row["n"]) for row in self.panes]


class CountingStore(tg.MemoryStore):
    """A store that knows what was on record at each commit."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__(path)
        self.commits: list[dict[str, Any]] = []

    def commit(self) -> None:
        super().commit()
        self.commits.append(self.get_json("operator"))


def windowed(**stream: Any) -> tg.Windowed:
    return (
        tg.stream(time="ts", key="k", watermark=tg.explicit(), **stream)
        .window(tg.tumbling(10, unit="us"))
        .allow_lateness(5, unit="us")
    )


def counting(**stream: Any) -> tg.Panes:
    return windowed(**stream).aggregate(n=tg.count())


def row(ts: int, k: str = "a", **more: Any) -> dict[str, Any]:
    return {"ts": ts, "k": k, **more}


def test_results_are_offered_without_being_asked_for():
    sink = Sink()
    operator = counting().embedded(downstream=sink, now=0)
    operator.add_messages([row(1), row(2), row(11)])
    assert sink.offered == []
    operator.advance_watermark(10)
    assert sink.windows == [(0, 2)]
    assert operator.get_result().panes.num_rows == 0


def test_nothing_is_offered_where_there_is_nothing():
    sink = Sink()
    operator = counting().embedded(downstream=sink, now=0)
    operator.add_messages([])
    operator.advance_watermark(100)
    operator.timeout(7)
    operator.finish()
    assert sink.offered == []


@pytest.mark.parametrize("answer", [None, True, 1, "yes"])
def test_everything_but_false_is_acceptance(answer):
    operator = counting().embedded(downstream=lambda _: answer, now=0)
    operator.add_messages([row(1)])
    operator.advance_watermark(10)
    operator.add_messages([row(12)])
    assert not operator.is_refusing


def test_late_rows_are_offered_too():
    sink = Sink()
    operator = counting().embedded(downstream=sink, now=0)
    operator.advance_watermark(100)
    operator.add_messages([row(1), row(120)])
    assert [(r["ts"], r["reason"], r["class"], r["watermark"]) for r in sink.late] == [
        (1, "very_late", "very_late", 100)
    ]
    assert all(len(results) for results in sink.offered)


def test_windows_are_offered_one_after_the_other():
    sink = Sink()
    operator = counting().embedded(downstream=sink, now=0)
    operator.add_messages([row(25), row(1), row(11, "b"), row(12, "a")])
    operator.advance_watermark(30)
    assert [set(results.panes.column("window_start").to_pylist()) for results in sink.taken] == [
        {0},
        {10},
        {20},
    ]


def test_refusal_is_told_as_a_clear_error_and_takes_no_input():
    sink = Sink(room=0)
    operator = counting().embedded(downstream=sink, now=0)
    operator.add_messages([row(1)])
    operator.advance_watermark(10)
    assert operator.is_refusing
    before = operator.stats()
    for call in (
        lambda: operator.add_message(row(11)),
        lambda: operator.add_messages([row(11)]),
        lambda: operator.advance_watermark(20),
        operator.finish,
    ):
        with pytest.raises(tg.BackpressureError, match=r"refuses.*timeout"):
            call()
    assert operator.stats() == before
    assert operator.watermark == 10
    sink.room = 5
    operator.timeout(0)
    operator.add_messages([row(11)])
    operator.finish()
    assert sink.windows == [(0, 1), (10, 1)]


def test_the_pending_list_is_kept_and_timeout_resumes_where_it_stopped():
    sink = Sink(room=1)
    operator = counting().embedded(downstream=sink, now=0)
    operator.add_messages([row(1), row(11), row(21), row(31)])
    operator.advance_watermark(40)
    assert [w for w, _ in sink.windows] == [0]
    operator.timeout(1)
    assert [w for w, _ in sink.windows] == [0]
    sink.room = 2
    operator.timeout(2)
    assert [w for w, _ in sink.windows] == [0, 10, 20]
    with pytest.raises(tg.BackpressureError):
        operator.add_messages([row(41)])
    sink.room = 9
    operator.timeout(3)
    assert [w for w, _ in sink.windows] == [0, 10, 20, 30]
    ids = [p["pane_id"] for p in sink.panes]
    assert len(set(ids)) == len(ids)
    # What was refused is offered again whole, and nothing that was accepted is offered twice.
    starts = [results.panes["window_start"][0].as_py() for results in sink.offered]
    assert starts == [0, 10, 10, 10, 20, 30, 30]


def test_once_all_is_accepted_the_same_timeout_evaluates_what_became_due():
    sink = Sink(room=0)
    panes = (
        windowed()
        .trigger(
            tg.after_watermark(
                early=tg.after_delay(100, unit="us"), late=tg.after_delay(100, unit="us")
            )
        )
        .aggregate(n=tg.count())
    )
    operator = panes.embedded(downstream=sink, now=0)
    operator.add_messages([row(1), row(21)])
    operator.advance_watermark(10)
    assert operator.is_refusing
    sink.room = 9
    operator.timeout(150)
    assert [(p["window_start"], p["timing"], p["emitted_at"]) for p in sink.panes] == [
        (0, "on_time", 0),
        (20, "early", 150),
    ]
    operator.add_messages([row(22)])
    assert not operator.is_refusing


def test_a_timeout_that_is_refused_leaves_the_clock_for_the_next_one():
    sink = Sink(room=0)
    panes = (
        windowed()
        .trigger(tg.after_watermark(early=tg.after_delay(100, unit="us")))
        .aggregate(n=tg.count())
    )
    operator = panes.embedded(downstream=sink, now=0)
    operator.add_messages([row(1), row(21)])
    operator.advance_watermark(10)
    operator.timeout(150)
    assert sink.taken == []
    sink.room = 9
    operator.timeout(160)
    assert [(p["window_start"], p["emitted_at"]) for p in sink.panes] == [(0, 0), (20, 160)]


def test_results_of_a_refused_operator_can_be_looked_at_and_are_not_lost_by_a_flush():
    sink = Sink(room=0)
    operator = counting().embedded(downstream=sink, now=0)
    operator.add_messages([row(1)])
    operator.advance_watermark(10)
    assert operator.get_result().panes.num_rows == 1
    operator.flush()
    sink.room = 1
    operator.timeout(1)
    assert sink.windows == [(0, 1)]


def test_flush_after_looking_and_accepting_is_no_error():
    sink = Sink(room=0)
    operator = counting().embedded(downstream=sink, now=0)
    operator.add_messages([row(1), row(11)])
    operator.advance_watermark(20)
    operator.get_result()
    sink.room = 9
    operator.timeout(1)
    operator.flush()
    assert sink.windows == [(0, 1), (10, 1)]


def test_a_downstream_that_raises_loses_nothing():
    calls: list[tg.Results] = []

    def fragile(results: tg.Results) -> None:
        calls.append(results)
        if len(calls) == 1:
            raise RuntimeError("disk full")

    operator = counting().embedded(downstream=fragile, now=0)
    operator.add_messages([row(1), row(11)])
    with pytest.raises(RuntimeError, match="disk full"):
        operator.advance_watermark(20)
    operator.timeout(1)
    assert [r.panes["window_start"][0].as_py() for r in calls] == [0, 0, 10]


def test_finish_that_is_refused_is_resumed_by_timeout():
    sink = Sink(room=1)
    operator = counting().embedded(downstream=sink, now=0)
    operator.add_messages([row(1), row(11), row(21)])
    operator.finish()
    sink.room = 9
    operator.timeout(1)
    assert [w for w, _ in sink.windows] == [0, 10, 20]
    with pytest.raises(tg.InputError, match="finished"):
        operator.add_messages([row(1)])


# Flush points


def test_state_and_offsets_are_flushed_after_opening_a_window():
    store = CountingStore()
    operator = counting(offset="o").embedded(store=store, downstream=Sink(), now=0)
    operator.add_messages([row(1, o=0)])
    assert len(store.commits) == 1
    assert store.commits[-1]["marks"] == {"": 0}


def test_a_message_for_a_window_that_is_open_needs_no_flush():
    store = CountingStore()
    operator = counting(offset="o").embedded(store=store, downstream=Sink(), now=0)
    operator.add_messages([row(1, o=0)])
    commits = len(store.commits)
    operator.add_messages([row(2, o=1), row(3, o=2)])
    assert len(store.commits) == commits


def test_state_and_offsets_are_flushed_after_accepted_output():
    store, sink = CountingStore(), Sink()
    panes = windowed(offset="o").trigger(tg.repeatedly(tg.after_count(2))).aggregate(n=tg.count())
    operator = panes.embedded(store=store, downstream=sink, now=0)
    operator.add_messages([row(1, o=0)])
    commits = len(store.commits)
    operator.add_messages([row(2, o=1)])
    assert sink.windows == [(0, 2)]
    assert len(store.commits) == commits + 1
    assert store.commits[-1]["marks"] == {"": 1}


def test_state_is_flushed_after_a_purge_even_if_nothing_is_put_out():
    store, sink = CountingStore(), Sink()
    operator = counting().embedded(store=store, downstream=sink, now=0)
    operator.add_messages([row(1)])
    operator.advance_watermark(10)
    commits, offered = len(store.commits), len(sink.offered)
    operator.advance_watermark(15)
    assert len(sink.offered) == offered
    assert len(store.commits) == commits + 1
    assert operator.stats()["windows"] == 0


def test_the_purge_comes_before_the_flush():
    """What is on record after a watermark holds no window that the watermark ended."""
    store = CountingStore()
    operator = (
        windowed().aggregate(n=tg.median("v")).embedded(store=store, downstream=Sink(), now=0)
    )
    operator.add_messages([row(t, v=t) for t in range(30)])
    operator.advance_watermark(24)
    again = windowed().aggregate(n=tg.median("v")).embedded(store=store, downstream=Sink(), now=0)
    assert again.stats()["messages"] == operator.stats()["messages"] == 20
    assert [w["window_start"] for w in again.get_windows()] == [10, 20]


def test_output_that_is_refused_is_not_on_record_as_delivered(tmp_path):
    sink = Sink(room=1)
    operator = counting(offset="o").embedded(
        store=tg.MemoryStore(tmp_path / "s"), downstream=sink, now=0
    )
    operator.add_messages([row(1, o=0), row(11, o=1), row(21, o=2)])
    operator.advance_watermark(30)
    operator.close()
    again_sink = Sink()
    again = counting(offset="o").embedded(
        store=tg.MemoryStore(tmp_path / "s"), downstream=again_sink, now=0
    )
    assert again.is_refusing
    again.timeout(1)
    again.add_messages([row(31, o=3)])
    assert [w for w, _ in sink.windows + again_sink.windows] == [0, 10, 20]


def test_a_crash_before_acceptance_is_on_record_gives_the_same_panes_again(tmp_path):
    """The downstream took a pane and the process died before the flush: the pane comes again, with
    its id.
    """

    class CrashError(Exception):
        pass

    class DyingStore(tg.MemoryStore):
        dying = False

        def commit(self) -> None:
            if self.dying:
                raise CrashError
            super().commit()

    store, sink = DyingStore(tmp_path / "s"), Sink()
    operator = counting(offset="o").embedded(store=store, downstream=sink, now=0)
    rows = [row(1, o=0), row(2, o=1), row(12, o=2)]
    operator.add_messages(rows)
    store.dying = True
    with pytest.raises(CrashError):
        operator.advance_watermark(10)
    operator.close()
    second = Sink()
    again = counting(offset="o").embedded(
        store=tg.MemoryStore(tmp_path / "s"), downstream=second, now=0
    )
    resume = again.resume_offsets().get("", 0)
    again.add_messages([r for r in rows if r["o"] >= resume])
    again.advance_watermark(10)
    assert sink.panes == second.panes != []


def test_a_table_of_panes_has_its_columns_whatever_is_in_it():
    sink = Sink()
    operator = counting().embedded(downstream=sink, now=0)
    operator.add_messages(pa.table({"ts": [1], "k": ["a"]}))
    operator.advance_watermark(10)
    operator.advance_watermark(100)
    operator.add_messages([row(3)])
    assert len({tuple(r.panes.column_names) for r in sink.taken}) == 1
    assert len({tuple(r.late.column_names) for r in sink.taken}) == 1
