"""Threads: the calls of an operator are made one at a time, and nothing is lost between them."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tidegate as tg
from tidegate.embedded.base import Port
from tidegate.errors import InputError

THREADS, CALLS = 8, 60
EXPLICIT = tg.stream(time="ts", key="k", watermark=tg.explicit())


@pytest.fixture(autouse=True)
def _frequent_switches() -> Iterator[None]:
    """Threads that take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(work: Callable[[int], None]) -> None:
    """Run `work` in all threads at once; raises the first error of any."""
    errors: list[BaseException] = []
    start = threading.Barrier(THREADS)

    def run(number: int) -> None:
        start.wait()
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def counting(**given: Any) -> tg.EmbeddedOperator:
    return EXPLICIT.window(tg.tumbling("1 s")).aggregate(n=tg.count()).embedded(now=0, **given)


def counted(op: tg.EmbeddedOperator) -> int:
    op.finish()
    return sum(op.get_result().panes["n"].to_pylist())


@pytest.mark.parametrize("single", [True, False])
def test_messages_of_several_threads_are_all_counted(single):
    op = counting()

    def work(number: int) -> None:
        for call in range(CALLS):
            message = {"ts": call, "k": f"k{number % 3}"}
            if single:
                op.add_message(message)
            else:
                op.add_messages([message])
            if call % 20 == 0:
                op.stats()
                op.timeout(call)
                assert op.watermark is None
                op.flush()

    in_threads(work)
    assert counted(op) == THREADS * CALLS


def test_both_sides_of_a_join_may_come_from_threads_of_their_own():
    joined = EXPLICIT.join(EXPLICIT, tg.within("1 s", "1 s"), on="k").embedded(now=0)
    left, right = joined.port("left"), joined.port("right")

    def work(number: int) -> None:
        side = (left, right)[number % 2]
        for call in range(CALLS // 4):
            side.add_messages([{"ts": call, "k": f"{number // 2}-{call}"}])

    in_threads(work)
    joined.finish()
    assert joined.get_result().panes.num_rows == THREADS // 2 * (CALLS // 4)


def test_upstreams_in_threads_of_their_own_share_a_downstream():
    panes = tg.stream(time="time", watermark=tg.explicit())
    total = (
        tg.union(panes, panes).window(tg.tumbling("1 day")).aggregate(n=tg.sum("n")).embedded(now=0)
    )
    counts = [counting(downstream=total.port(number)) for number in range(2)]

    def work(number: int) -> None:
        op = counts[number % 2]
        for _ in range(CALLS // 4):
            op.add_message({"ts": number, "k": "a"})
            total.get_result()
            op.flush()

    in_threads(work)
    assert {op.lock for op in counts} == {total.lock}
    for op in counts:
        op.finish()
    assert counted(total) == THREADS * (CALLS // 4)


def test_an_async_map_takes_messages_of_several_threads():
    async def double(row: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"v": row["v"] * 2}

    with tg.stream(time="ts").async_map(double, max_in_flight=4).embedded(now=0) as mapped:
        in_threads(
            lambda number: (
                [
                    mapped.add_messages([{"ts": call, "v": number * CALLS + call}])
                    for call in range(CALLS // 4)
                ]
                and None
            )
        )
        mapped.finish()
        found = mapped.get_result().rows["v"].to_pylist()
    assert sorted(found) == sorted(
        2 * (number * CALLS + call) for number in range(THREADS) for call in range(CALLS // 4)
    )


def test_a_function_of_a_map_that_calls_its_own_operator_is_told_so():
    async def ask(row: dict[str, Any]) -> dict[str, Any]:
        return {"v": mapped.stats()["events"]}

    with tg.stream(time="ts").async_map(ask).embedded(now=0) as mapped:
        with mapped.lock:
            mapped.add_messages([{"ts": 1, "v": 1}])
            mapped.finish()
        [row] = mapped.get_result().late.to_pylist()
    assert row["reason"] == "async_failed"
    assert row["detail"].startswith("InputError: the function of an async map called `stats`")


@pytest.mark.parametrize("kind", [tg.EmbeddedOperator, tg.EmbeddedJoin, tg.EmbeddedAsyncMap, Port])
def test_every_public_call_holds_the_lock(kind):
    for name in dir(kind):
        found = getattr(kind, name)
        if name.startswith("_") or name == "lock":
            continue
        method = found.fget if isinstance(found, property) else found
        assert not callable(method) or hasattr(method, "__wrapped__"), name


def test_the_lock_makes_several_calls_one():
    op = counting()
    done: list[int] = []

    def work(number: int) -> None:
        for _ in range(CALLS // 4):
            with op.lock:
                before = op.stats()["events"]
                op.add_message({"ts": number, "k": "a"})
                done.append(op.stats()["events"] - before)

    in_threads(work)
    assert set(done) == {1}


def test_an_error_leaves_the_operator_to_the_others():
    op = counting()
    with pytest.raises(InputError):
        op.add_messages(5)
    in_threads(lambda number: op.add_message({"ts": number, "k": "a"}))
    assert counted(op) == THREADS
