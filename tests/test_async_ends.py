"""Shutdown and restart of an async map: functions that hang, block or ignore cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from support import SUPPORT
from support.async_service import (
    BOTH,
    MS,
    PATIENCE,
    TOLD,
    Row,
    Service,
    Sink,
    brief,
    counting,
    echo,
    hear,
    made,
    never,
    rows,
)
from tidegate.embedded.async_map import EmbeddedAsyncMap
from tidegate.errors import (
    BackpressureError,
    CorruptStateError,
    InputError,
    SpecMismatchError,
    StateError,
)
from tidegate.kernel.watermarks.marks import Idle, Mark, Watermark
from tidegate.operators.async_map import executor as async_executor
from tidegate.spec.operator import Input
from tidegate.spec.watermarks import Bounded, Explicit
from tidegate.state.memory import MemoryStore
from tidegate.state.rocksdb import RocksDBStore

pytestmark = pytest.mark.slow

STORES = pytest.mark.parametrize(
    "kind",
    [MemoryStore, pytest.param(RocksDBStore, marks=pytest.mark.rocksdb)],
    ids=["memory", "rocksdb"],
)


# The end


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(async_executor, "GRACE", 0.5)
    monkeypatch.setattr(async_executor, "SHUTDOWN_TIMEOUT", 0.2)


@BOTH
def test_finish_ends_though_a_function_never_answers(ordered):
    with made(never, ordered=ordered, timeout=MS) as mapped:
        mapped.add_messages(rows("a", "b"))
        mapped.finish()
        assert mapped.get_result().late.num_rows == 2
        mapped.finish()
        with pytest.raises(InputError, match="finished"):
            mapped.add_messages(rows("c"))


def test_close_cancels_what_runs():
    cancelled = []

    async def careful(row: Row) -> None:
        try:
            await never(row)
        finally:
            cancelled.append(row["v"])

    mapped = made(careful)
    mapped.add_messages(rows("a", "b"))
    service = mapped._executor._loop
    mapped.close()
    assert sorted(cancelled) in (["a", "b"], [])
    assert not service.thread.is_alive()
    mapped.close()
    for use in (
        mapped.get_result,
        mapped.flush,
        mapped.timeout,
        mapped.finish,
        lambda: mapped.add_messages(rows("c")),
    ):
        with pytest.raises(StateError, match="closed"):
            use()


def test_close_without_a_message_has_nothing_to_do():
    made(echo).close()


class Blocking:
    """A function that blocks the thread of its loop for the row `block`, until it is released."""

    def __init__(self) -> None:
        self.free, self.inside = threading.Event(), threading.Event()
        self.thread: threading.Thread | None = None

    async def __call__(self, row: Row) -> Row:
        if row["v"] == "block":
            self.thread = threading.current_thread()
            self.inside.set()
            self.free.wait(PATIENCE)
        return row

    def end(self) -> None:
        """Release the thread, which must then end by itself."""
        self.free.set()
        assert self.thread is not None
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


def run(mapped: EmbeddedAsyncMap, *deliveries: list[Row]) -> None:
    for delivery in deliveries:
        mapped.add_messages(delivery)
    mapped.finish()


@BOTH
def test_a_function_that_blocks_the_loop_hinders_neither_finish_nor_close(ordered, impatient):
    function = Blocking()
    mapped = made(function, ordered=ordered, timeout=MS)
    with pytest.warns(RuntimeWarning, match="blocks its event loop"):
        run(mapped, rows("a", "block", "b"))
    found = mapped.get_result()
    assert found.late["v"].to_pylist() == ["block"]
    assert "the event loop does not run" in found.late["detail"][0].as_py()
    assert sorted(found.rows["v"].to_pylist()) == ["a", "b"]
    assert mapped.stats()["lost_loops"] == 1
    mapped.close()
    function.end()


def test_calls_that_a_blocked_loop_had_not_begun_are_made_in_another(impatient):
    function = Blocking()
    with made(function, timeout=MS) as mapped:
        with pytest.warns(RuntimeWarning, match="blocks its event loop"):
            run(mapped, rows("block"), rows("a"), rows("b"))
        assert brief(mapped.get_result()) == [("late", "block"), "a", "b", Idle()]
    function.end()


def test_a_function_that_stops_its_loop_hinders_nobody():
    async def stop(row: Row) -> Row:
        if row["v"] == "stop":
            asyncio.get_running_loop().stop()
            await never(row)
        return row

    with made(stop) as mapped:
        with pytest.warns(RuntimeWarning, match="has stopped it"):
            run(mapped, rows("stop"), rows("a"))
        assert brief(mapped.get_result()) == [("late", "stop"), "a", Idle()]


def test_a_call_that_a_stopped_loop_had_not_begun_leaves_no_warning_behind():
    """A retry is scheduled in the very round of the loop in which another call stops it; that it
    never ran must not be complained of later.
    """
    asked = []

    async def stop(row: Row) -> Row:
        asked.append(row["v"])
        if row["v"] == "stop":
            await asyncio.sleep(0)
            asyncio.get_running_loop().stop()
            await never(row)
        if asked.count("a") == 1:
            raise ValueError("not yet")
        return row

    with made(stop, retries=1) as mapped:
        with pytest.warns(RuntimeWarning, match="has stopped it"):
            run(mapped, rows("a", "stop"))
        assert brief(mapped.get_result()) == [("late", "a"), ("late", "stop"), Idle()]
    del mapped
    gc.collect()


def test_close_reports_a_function_that_blocks(impatient):
    function, store = Blocking(), MemoryStore()
    mapped = made(function, store=store)
    mapped.add_messages(rows("block"))
    assert function.inside.wait(PATIENCE)
    with pytest.warns(RuntimeWarning, match="whose thread is abandoned"):
        mapped.close()
    with pytest.raises(StateError, match="closed"):
        store.names()
    function.end()


@BOTH
def test_a_function_that_ignores_its_cancellation_is_left_behind(ordered, monkeypatch):
    monkeypatch.setattr(async_executor, "SHUTDOWN_TIMEOUT", 1.0)

    async def stubborn(row: Row) -> Row:
        while row["v"] == "stubborn":
            with contextlib.suppress(asyncio.CancelledError):
                await never(row)
        return row

    mapped = made(stubborn, ordered=ordered, timeout=MS, retries=1)
    mapped.add_messages(rows("stubborn", "a"))
    mapped.finish()
    assert sorted(map(str, brief(mapped.get_result()))) == sorted(
        map(str, [("late", "stubborn"), "a", Idle()])
    )
    loop = mapped._executor._loop
    with pytest.warns(RuntimeWarning, match="ignored the cancellation of 2 of its calls"):
        mapped.close()
    assert not loop.thread.is_alive()


def test_who_forgets_to_close_leaves_no_thread_behind():
    mapped = made(never)
    mapped.add_messages(rows("a"))
    thread = mapped._executor._loop.thread
    del mapped
    thread.join(PATIENCE)
    assert not thread.is_alive()


# Restarts

OFFSETS = Input("ts", offset="offset", watermark=Bounded(0))


def numbered(*values: Any) -> list[Row]:
    return [
        {"ts": v, "offset": v, "v": v, "at": datetime(2024, 1, 1, tzinfo=UTC), "n": None}
        for v in values
    ]


@STORES
@BOTH
def test_a_restart_loses_and_doubles_nothing(kind, ordered, tmp_path):
    service = Service()
    mapped = made(service, OFFSETS, ordered=ordered, store=kind(tmp_path / "state"))
    mapped.add_messages(numbered(0, 1, 2))
    mapped.add_messages(numbered(3))
    service.wait_for(4)
    service.answer(1)
    service.answer(2, ValueError("no"))
    hear(mapped, 2)
    before = brief(mapped.get_result())
    assert before == ([] if ordered else [1, ("late", 2)])
    mapped.flush()
    mapped.close()

    service = Service()
    mapped = made(service, OFFSETS, ordered=ordered, store=kind(tmp_path / "state"))
    assert mapped.resume_offsets() == {"": 4}
    assert mapped.pending == 2
    assert sorted(service.wait_for(2)) == [0, 3]
    mapped.add_messages(numbered(2, 3, 4))
    for v in (4, 3, 0):
        service.answer(v)
    mapped.finish()
    found = mapped.get_result()
    out = [*before, *brief(found)]
    assert [item for item in out if isinstance(item, Mark)] == [
        Watermark(2),
        Watermark(3),
        Watermark(4),
        Idle(),
    ]
    assert sorted(item for item in out if isinstance(item, int)) == [0, 1, 3, 4]
    assert ("late", 2) in out
    if ordered:
        assert out == [0, 1, ("late", 2), Watermark(2), 3, Watermark(3), 4, Watermark(4), Idle()]
    assert found.rows["at"].to_pylist()[0] == datetime(2024, 1, 1, tzinfo=UTC)
    stats = mapped.stats()
    assert (stats["events"], stats["duplicates"], stats["failed"], stats["results"]) == (5, 2, 1, 4)
    mapped.flush()
    mapped.close()
    with made(service, OFFSETS, ordered=ordered, store=kind(tmp_path / "state")) as ended:
        assert ended.finished
        assert brief(ended.get_result()) == []


@STORES
def test_results_that_wait_are_kept(kind, tmp_path):
    async def function(row: Row) -> Row:
        if row["v"] == 1:
            raise ValueError("x")
        return {"v": row["v"]}

    sink = Sink(room=0)
    mapped = made(function, OFFSETS, downstream=sink, store=kind(tmp_path / "state"))
    mapped.add_messages(numbered(0, 1, 2))
    hear(mapped)
    mapped.flush()
    mapped.close()
    sink.room = float("inf")
    with made(function, OFFSETS, downstream=sink, store=kind(tmp_path / "state")) as mapped:
        with pytest.raises(BackpressureError):
            mapped.add_messages(numbered(3))
        mapped.timeout()
        assert sink.taken == [0, ("late", 1), 2, Watermark(2)]
    with made(function, OFFSETS, store=kind(tmp_path / "state")) as mapped:
        assert brief(mapped.get_result()) == []


def test_answers_of_all_types_survive_a_restart_until_they_may_leave(tmp_path):
    service = Service()
    mapped = made(service, store=MemoryStore(tmp_path / "state"))
    mapped.add_messages(rows(0, 1, 2, 3))
    service.wait_for(4)
    for v, x in ((1, "text"), (2, [1, 2]), (3, {"a": None})):
        service.answer(v, [{"v": v, "x": x}] if v < 3 else [{"v": v, f"x{v}": x}])
    hear(mapped, 1)
    mapped.flush()
    mapped.close()
    service = Service()
    with made(service, store=MemoryStore(tmp_path / "state")) as mapped:
        service.answer(0, {"v": 0})
        mapped.finish()
        assert brief(mapped.get_result()) == [0, 1, ("late", 2), 3, Idle()]


def test_pending_rows_of_all_types_come_back_as_they_were(tmp_path):
    kinds = {
        "small": pa.array([3, None], pa.int8()),
        "large": pa.array([2**63 + 1, None], pa.uint64()),
        "real": pa.array([1.5, None], pa.float32()),
        "text": pa.array(["x", None], pa.large_string()),
        "bytes": pa.array([b"x", None]),
        "day": pa.array([datetime(2024, 1, 1, tzinfo=UTC).date(), None]),
        "at": pa.array([1, None], pa.timestamp("ms", "Europe/Berlin")),
        "cost": pa.array([Decimal("1.50"), None]),
        "list": pa.array([[1, None], None]),
        "struct": pa.array([{"a": 1}, None]),
        "map": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int8())),
        "code": pa.array(["x", None]).dictionary_encode(),
        "none": pa.nulls(2),
    }
    mapped = made(never, store=MemoryStore(tmp_path / "state"))
    mapped.add_messages(pa.table({"ts": [1, 2], "v": [0, 1], **kinds}))
    before = [call.row for call in mapped._queue.unanswered()]
    mapped.flush()
    mapped.close()
    with made(never, store=MemoryStore(tmp_path / "state")) as mapped:
        assert [call.row for call in mapped._queue.unanswered()] == before
        assert mapped._schemas.input is not None
        assert mapped._schemas.input.field("small").type == pa.int8()


def test_what_was_accepted_is_on_record_before_the_call_returns(tmp_path):
    sink = Sink()
    mapped = made(echo, OFFSETS, downstream=sink, store=MemoryStore(tmp_path / "state"))
    mapped.add_messages(numbered(0, 1, 2))
    hear(mapped)
    assert sink.taken == [0, 1, 2, Watermark(2)]
    mapped.close()
    with made(echo, OFFSETS, downstream=sink, store=MemoryStore(tmp_path / "state")) as mapped:
        mapped.add_messages(numbered(0, 1, 2))
        mapped.finish()
        assert sink.taken == [0, 1, 2, Watermark(2), Idle()]


def test_a_chain_restarts_as_a_whole(tmp_path):
    def chain() -> tuple[EmbeddedAsyncMap, tg.EmbeddedOperator]:
        windows = counting().embedded(store=MemoryStore(tmp_path / "windows"), now=0)
        return made(echo, OFFSETS, downstream=windows, store=MemoryStore(tmp_path / "map")), windows

    mapped, windows = chain()
    mapped.add_messages(numbered(*range(12)))
    hear(mapped)
    mapped.close()
    windows.close()
    mapped, windows = chain()
    mapped.add_messages(numbered(*range(25)))
    mapped.finish()
    assert windows.get_result().panes["n"].to_pylist() == [10, 10, 5]


def test_state_of_another_specification_or_format_is_refused(tmp_path):
    def store() -> MemoryStore:
        return MemoryStore(tmp_path / "state")

    with made(echo, OFFSETS, store=store()) as mapped:
        mapped.flush()
    for other in ({"ordered": False}, {"inputs": [TOLD]}, {"function": never}):
        inputs = other.pop("inputs", [OFFSETS])
        with pytest.raises(SpecMismatchError):
            made(other.pop("function", echo), *inputs, store=store(), **other)
    with made(echo, OFFSETS, store=store(), max_in_flight=3, timeout=5, retries=2) as mapped:
        mapped.flush()
    damaged = store()
    damaged.put_json("async_map", {"format": 99})
    with pytest.raises(CorruptStateError, match="format 99"):
        made(echo, OFFSETS, store=damaged)


# Any traffic


async def hesitant(row: Row) -> Any:
    for _ in range(row["steps"]):
        await asyncio.sleep(0)
    if row["fate"] == "fail":
        raise ValueError(row["v"])
    return (
        None
        if row["fate"] == "filter"
        else [{"ts": row["ts"], "v": row["v"], "n": n} for n in range(row["results"])]
    )


sent_rows = st.tuples(
    st.integers(0, 40),
    st.integers(0, 6),
    st.integers(1, 3),
    st.sampled_from(["go", "go", "fail", "filter"]),
)
traffic = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(sent_rows, max_size=8)),
        st.tuples(st.just("watermark"), st.integers(0, 45)),
        st.tuples(st.sampled_from(["fetch", "restart", "idle", "timeout"]), st.none()),
    ),
    max_size=12,
)


@BOTH
@given(steps=traffic, slots=st.integers(1, 5))
def test_nothing_is_lost_doubled_or_made_late_by_any_traffic(
    ordered, steps, slots, tmp_path_factory
):
    path = tmp_path_factory.mktemp("state") / "state"

    def opened() -> EmbeddedAsyncMap:
        return made(
            hesitant,
            Input("ts", watermark=Explicit()),
            ordered=ordered,
            max_in_flight=slots,
            store=MemoryStore(path),
        )

    mapped, out = opened(), []
    sent: list[Row] = []
    on_time: set[int] = set()
    watermark = -1

    def fetch() -> None:
        out.extend(mapped.get_result().items)
        mapped.flush()

    for verb, value in steps:
        if verb == "add":
            new = [
                {"ts": t, "v": len(sent) + n, "steps": s, "results": r, "fate": f}
                for n, (t, s, r, f) in enumerate(value)
            ]
            on_time |= {row["v"] for row in new if row["ts"] >= watermark}
            sent += new
            mapped.add_messages(new)
        elif verb == "watermark":
            watermark = max(watermark, value)
            mapped.advance_watermark(value)
        elif verb == "restart":
            fetch()
            mapped.close()
            mapped = opened()
        else:
            {"fetch": fetch, "idle": mapped.mark_idle, "timeout": mapped.timeout}[verb]()
    mapped.finish()
    fetch()
    mapped.close()
    tables = [(kind, row) for kind, value in out if kind != "mark" for row in value.to_pylist()]
    expected = [(row["v"], n) for row in sent if row["fate"] == "go" for n in range(row["results"])]
    results = [(row["v"], row["n"]) for kind, row in tables if kind == "rows"]
    assert (results if ordered else sorted(results)) == expected
    assert sorted(row["v"] for kind, row in tables if kind == "late") == [
        row["v"] for row in sent if row["fate"] == "fail"
    ]
    reached = -1
    for kind, value in out:
        if kind == "rows":
            assert all(row["ts"] >= reached for row in value.to_pylist() if row["v"] in on_time)
        elif isinstance(value, Watermark):
            assert value.value > reached
            reached = value.value
    assert reached == watermark


# A real kill


def lives(*arguments: str, kill: bool) -> list[list[Any]]:
    """The output of a worker until it was done, or until it had flushed and was killed."""
    worker = SUPPORT / "async_worker.py"
    said = []
    with subprocess.Popen(
        [sys.executable, worker, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(json.loads(line))
            if kill and said[-1][0] == "flushed":
                process.send_signal(signal.SIGKILL)
    assert process.returncode == (-signal.SIGKILL if kill else 0)
    return said


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
@pytest.mark.parametrize(
    ("kind", "order"),
    [("memory", "ordered"), pytest.param("rocksdb", "unordered", marks=pytest.mark.rocksdb)],
)
def test_a_killed_process_calls_again_what_was_pending(kind, order, tmp_path):
    first = lives(kind, str(tmp_path / "state"), order, "first", kill=True)
    assert first[-1] == ["flushed", 4]
    second = lives(kind, str(tmp_path / "state"), order, "second", kill=False)
    assert second[0] == ["resume", {"": 20}, 4]
    assert second[-1] == ["flushed", 0]
    found = [[words[1]["v"] for words in life if words[0] == "rows"] for life in (first, second)]
    assert sorted([*found[0], *found[1]]) == list(range(20))
    assert (
        found == [[0, 1, 2], list(range(3, 20))]
        if order == "ordered"
        else sorted(found[1]) == [3, 7, 8, 15]
    )
    assert [words[1] for words in [*first, *second] if words[0] == "mark"] == [
        repr(Watermark(19)),
        repr(Idle()),
    ]


class Unusual(BaseException):
    """The kind of error that some libraries derive from `BaseException`."""


@BOTH
def test_an_error_of_any_kind_is_reported_as_what_it_is(ordered):
    async def raising(row: Row) -> Row:
        raise Unusual("no way")

    with made(raising, ordered=ordered) as mapped:
        mapped.add_messages(rows("a"))
        mapped.finish()
        assert mapped.get_result().late["detail"].to_pylist() == ["Unusual: no way"]
