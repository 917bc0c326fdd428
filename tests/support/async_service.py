"""Support for tests of the async map: a scripted service, short results, a bounded sink."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import pytest

import tidegate as tg
from tidegate.embedded.async_map import AsyncResults, EmbeddedAsyncMap
from tidegate.spec.async_map import AsyncMap
from tidegate.spec.operator import Input
from tidegate.spec.watermarks import Explicit

Row = dict[str, Any]
BOTH = pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
TOLD = Input("ts", watermark=Explicit())
MS = 1_000
LONG = 60_000_000
PATIENCE = 30
"""Seconds after which an expected event counts as missing."""


class Service:
    """A function whose answers the test gives one by one."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[tuple[Row, Future]] = SimpleQueue()
        self._open: list[tuple[Row, Future]] = []

    async def __call__(self, row: Row) -> Any:
        answer: Future = Future()
        self._asked.put((row, answer))
        return await asyncio.wrap_future(answer)

    def wait_for(self, count: int) -> list[Any]:
        """Wait until `count` calls are open; returns their `v`."""
        while len(self._open) < count:
            self._open.append(self._asked.get(timeout=PATIENCE))
        return [row["v"] for row, _ in self._open]

    @property
    def is_quiet(self) -> bool:
        """Whether there is no call that the test does not know of."""
        return self._asked.empty()

    def answer(self, v: Any, reply: Any = ...) -> None:
        """Answer the first open call for `v`; the default reply is its own row."""
        while not any(row["v"] == v for row, _ in self._open):
            self._open.append(self._asked.get(timeout=PATIENCE))
        number = next(n for n, (row, _) in enumerate(self._open) if row["v"] == v)
        row, future = self._open.pop(number)
        if isinstance(reply, BaseException):
            future.set_exception(reply)
        else:
            future.set_result({**row, "r": f"r{v}"} if reply is ... else reply)


def made(function: Any, *inputs: Input, ordered: bool = True, **more: Any) -> EmbeddedAsyncMap:
    named = {field.name for field in dataclasses.fields(AsyncMap)}
    settings = {
        "timeout": LONG,
        "backoff": 0,
        **{name: value for name, value in more.items() if name in named},
    }
    rest = {"now": 0, **{name: value for name, value in more.items() if name not in named}}
    return EmbeddedAsyncMap(AsyncMap(function, ordered, **settings), inputs or [TOLD], **rest)


def hear(mapped: EmbeddedAsyncMap, pending: int = 0) -> None:
    """Wait until only `pending` messages have no answer."""
    while mapped.pending > pending:
        mapped._take_replies(mapped._executor.replies(wait=True))
    mapped.timeout()


def rows(*values: Any, **more: Any) -> list[Row]:
    return [{"ts": n, "v": v, **more} for n, v in enumerate(values)]


def brief(results: AsyncResults) -> list[Any]:
    """Items in order: `v` of rows, marks, and ("late", v)."""
    found: list[Any] = []
    for kind, value in results.items:
        if kind == "mark":
            found.append(value)
        else:
            found += [
                row["v"] if kind == "rows" else ("late", row["v"]) for row in value.to_pylist()
            ]
    return found


async def echo(row: Row) -> Row:
    return {**row, "r": f"r{row['v']}"}


async def never(row: Row) -> None:
    await asyncio.get_running_loop().create_future()


class Sink:
    """A downstream that accepts while it has room."""

    def __init__(self, room: float = float("inf")) -> None:
        self.room = room
        self.taken: list[Any] = []

    def __call__(self, results: AsyncResults) -> bool:
        if self.room <= 0:
            return False
        self.room -= 1
        self.taken += brief(results)
        return True


def counting(**more: Any) -> tg.Panes:
    return (
        tg.stream(time="ts", watermark=tg.explicit(), **more)
        .window(tg.tumbling(10, unit="us"))
        .aggregate(n=tg.count())
    )


async def priced(row: Row) -> Any:
    """The message with twice its price, and the process and event loop of the call."""
    await asyncio.sleep(0)
    if row["price"] is None:
        return None
    if row["price"] < 0:
        raise ValueError(f"{row['price']} is no price")
    loop = f"{os.getpid()} {id(asyncio.get_running_loop())}"
    return {**row, "price": 2 * row["price"], "loop": loop}
