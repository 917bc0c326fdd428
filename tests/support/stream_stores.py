"""Helpers for tests of streams: rows, reading everything, and programs in other processes.

The stores themselves are fixtures in `stream_fixtures`.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path
from threading import Barrier, Thread
from typing import Any, Self

from tidegate.streams.store import Block, Conflict, EventBatch, Store, Swap, open_store


def fresh() -> str:
    """A unique stream name."""
    return f"s-{uuid.uuid4().hex[:12]}"


def rows(*values: bytes | str, keys: Iterable[str | None] | None = None) -> EventBatch:
    """A batch to append; by default without keys."""
    data = [value.encode() if isinstance(value, str) else value for value in values]
    return EventBatch([None] * len(data) if keys is None else list(keys), data)


def opened(store: Store, segments: int = 1) -> str:
    """A new stream with this number of segments."""
    stream = fresh()
    store.open_segments(stream, [str(n) for n in range(segments)])
    return stream


def documents(store: Store, stream: str, prefix: str = "") -> dict[str, Any]:
    return {key: cell.document for key, cell in store.cells(stream, prefix).items()}


def together(*work: Callable[[], None]) -> None:
    """Run all of this at once in threads; an error in one fails the test."""
    errors: list[BaseException] = []
    start = Barrier(len(work))

    def one(function: Callable[[], None]) -> None:
        start.wait()
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    threads = [Thread(target=one, args=(function,)) for function in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def everything(store: Store, stream: str, segment: str, most: int = 1000) -> list[bytes]:
    """The readable values of a segment."""
    return [
        value
        for block in blocks(store, stream, segment, most)
        for value in block.rows["value"].to_pylist()
    ]


def blocks(store: Store, stream: str, segment: str, most: int = 1000) -> Iterator[Block]:
    """A segment from its first offset to its end, block by block."""
    at, end = store.bounds(stream)[segment]
    while at < end:
        block = store.read(stream, segment, at, most)
        yield block
        assert block.next > at, "a read that stands still before the end"
        at = block.next


class Nursery:
    """A process that has imported everything and forks children: a start costs a millisecond."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, *command: str) -> int:
        """The id of a new child."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


@cache
def nursery() -> Nursery:
    found = Nursery()
    atexit.register(found.close)
    return found


def nurse() -> None:
    """Fork a child for each command: two named pipes, then a program and its arguments."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        source, sink, program, *arguments = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(source, os.O_RDONLY), 0)
            os.dup2(os.open(sink, os.O_WRONLY), 1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                PROGRAMS[program](*arguments)
                say("end")
            except BaseException:  # noqa: BLE001 - a child must not continue as a nurse
                traceback.print_exc()
            os._exit(0)
        say(str(pid))


def through(
    store: Store, stream: str, segment: str, start: int, end: int, most: int
) -> Iterator[Block]:
    """The blocks of a segment between two offsets."""
    at = start
    while at < end:
        block = store.read(stream, segment, at, most, before=end)
        yield block
        if block.ended or block.next <= at:
            return
        at = block.next


class Child:
    """One of the programs below in a process of its own."""

    def __init__(self, program: str, *arguments: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            pipes = [f"{folder}/in", f"{folder}/out"]
            for pipe in pipes:
                os.mkfifo(pipe)
            self.pid = nursery().start(*pipes, program, *map(str, arguments))
            # Each side waits here for the other.
            self._in = Path(pipes[0]).open("w")  # noqa: SIM115 - closed with the child
            self._out = Path(pipes[1]).open()  # noqa: SIM115 - the same

    def tell(self, line: str) -> None:
        self._in.write(f"{line}\n")
        self._in.flush()

    def hear(self) -> str:
        """The next line of its output; empty after the last."""
        return self._out.readline().rstrip("\n")

    def kill(self) -> list[str]:
        """Kill it, and return the complete lines not read yet."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        left = self._rest()
        return [line.rstrip("\n") for line in left.splitlines(keepends=True) if line.endswith("\n")]

    def end(self) -> list[str]:
        """Let it end successfully, and return the remaining lines."""
        self._in.close()
        *left, last = self._rest().splitlines() or [""]
        assert last == "end", "the child failed"
        return left

    def _rest(self) -> str:
        """Its output until it is dead."""
        left = self._out.read()
        self._out.close()
        self._in.close()
        return left

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._out.closed:
            self.kill()


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def appends(url: str, stream: str, name: str, segments: str) -> None:
    """Append numbered rows to all segments, atomically, and print each acknowledged number."""
    with open_store(url) as store:
        say("ready")
        for number in count():
            rows_of = {
                segment: rows(*(f"{name}:{number}:{i}" for i in range(5)))
                for segment in segments.split(",")
            }
            assert not store.append(stream, rows_of, whole=True).refused
            say(str(number))


def swaps(url: str, stream: str, key: str, name: str) -> None:
    """For each version received, try to change it; print the new version or a conflict."""
    with open_store(url) as store:
        say("ready")
        for line in sys.stdin:
            try:
                say(str(store.swap(stream, Swap(key, {"by": name}, int(line)))))
            except Conflict:
                say("conflict")


def shows(url: str, stream: str) -> None:
    """Print a stream as another process sees it."""
    with open_store(url) as store:
        segments = {
            name: [value.hex() for value in everything(store, stream, name)]
            for name in store.bounds(stream)
        }
        cells = {key: [cell.document, cell.version] for key, cell in store.cells(stream).items()}
        say(json.dumps({"streams": store.streams(), "cells": cells, "segments": segments}))


def forks(url: str, stream: str) -> None:
    """Fork while a thread appends, append in all children, and close the store before a child ends."""
    with open_store(url) as store:

        def append(name: str, times: int) -> None:
            for number in range(times):
                store.append(stream, {"0": rows(f"{name}:{number}")})

        def child(work: Callable[[], None]) -> int:
            pid = os.fork()
            if pid:
                return pid
            try:
                work()
            except BaseException:  # noqa: BLE001 - the parent checks the status
                traceback.print_exc()
                os._exit(1)
            os._exit(0)

        thread = Thread(target=append, args=("thread", 30))
        thread.start()
        children = [child(lambda name=f"child{n}": append(name, 3)) for n in range(5)]
        thread.join()
        (heard, reported), (waiting, going) = os.pipe(), os.pipe()

        def work() -> None:
            append("early", 1)
            os.write(reported, b"x")
            os.read(waiting, 1)
            append("late", 3)

        children.append(child(work))
        os.read(heard, 1)
    # This process has closed the file, but its child has not.
    os.write(going, b"x")
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 6


PROGRAMS = {"appends": appends, "swaps": swaps, "shows": shows, "forks": forks}

if __name__ == "__main__":
    nurse()
