"""A killed process leaves the state of its last commit, or of the current one, never a mixture."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tidegate.state.memory import MemoryStore
from tidegate.state.rocksdb import RocksDBStore
from tidegate.state.store import Store

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
STORES = {"memory": MemoryStore, "rocksdb": RocksDBStore}
ROUNDS = 25


def content(generation: int) -> dict[str, pa.Table]:
    """All tables of a generation: names come and go, sizes change, and one is stable."""
    tables = {
        f"n{(generation * 3 + i) % 11}": pa.table({"g": [generation] * (i + 1)}) for i in range(7)
    }
    noise = np.random.default_rng(generation).integers(
        0, 2**62, 600_000 if generation % 8 == 0 else 2_000
    )
    return {**tables, "large": pa.table({"x": noise}), "slow": pa.table({"g": [generation // 5]})}


def write_generation(store: Store, generation: int) -> None:
    wanted = content(generation)
    for name in store.names():
        if name != "head" and name not in wanted:
            store.delete(name)
    for name, table in wanted.items():
        if not store.contains(name) or not store.get_table(name).equals(table):
            store.put_table(name, table)
    store.put_json("head", {"generation": generation})
    store.commit()


def writer(kind: str, path: str) -> None:
    """Commit one generation after the other until the process is killed."""
    store = STORES[kind](path)
    generation = store.get_json("head", {"generation": -1})["generation"]
    say("ready")
    while True:
        generation += 1
        write_generation(store, generation)
        say(f"done {generation}")


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def supervise() -> None:
    """For each line of input, run a writer in a process of its own, and report its end."""
    content(
        0
        # The first Arrow table of a process costs a second, because it imports pandas: do it once,
        # before the forks.
    )
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            writer(*line.split())
        say(f"pid {pid}")
        os.waitpid(pid, 0)
        say("dead")


class Supervisor:
    """Starts and kills writers."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout

    def run(self, kind: str, path: Path, commits: int, delay: float) -> list[int]:
        """Let a writer commit some generations (-1: none), kill it, and return those it reported."""
        self._in.write(f"{kind} {path}\n".encode())
        pid, done, ready = 0, [], False
        while not pid or (commits >= 0 and not (ready and len(done) >= commits)):
            word, _, rest = self._line().partition(" ")
            pid, ready = (int(rest), ready) if word == "pid" else (pid, ready or word == "ready")
            done += [int(rest)] if word == "done" else []
            assert word != "dead", "the writer failed by itself"
        select.select([], [], [], delay)
        os.kill(pid, signal.SIGKILL)
        while (line := self._line()) != "dead":
            done += [int(line.split()[1])] if line.startswith("done") else []
        return done

    def close(self) -> None:
        self._in.close()
        self._process.wait()
        self._out.close()

    def _line(self) -> str:
        line = self._out.readline()
        assert line, "the supervisor ended"
        return line.decode().rstrip("\n")


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    running = Supervisor()
    yield running
    running.close()


def state_of(kind: str, path: Path) -> int:
    """The stored generation, verified as consistent; -1 for nothing."""
    store = STORES[kind](path)
    head = store.get_json("head")
    if head is None:
        assert store.names() == []
        store.close()
        return -1
    wanted = content(head["generation"])
    assert store.names() == sorted([*wanted, "head"])
    assert all(store.get_table(name).equals(table) for name, table in wanted.items())
    store.close()
    return int(head["generation"])


@pytest.mark.parametrize("kind", ["memory", pytest.param("rocksdb", marks=pytest.mark.rocksdb)])
def test_a_killed_process_leaves_a_whole_commit(
    kind: str, supervisor: Supervisor, tmp_path: Path
) -> None:
    dice = random.Random(kind)
    last = -1
    for _ in range(ROUNDS):
        done = supervisor.run(
            kind, tmp_path / "state", dice.randrange(-1, 4), dice.random() * 0.006
        )
        reported = max([last, *done])
        found = state_of(kind, tmp_path / "state")
        assert found in {reported, reported + 1}
        last = found
    assert last > ROUNDS // 2


if __name__ == "__main__":
    supervise()
