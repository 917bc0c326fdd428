"""Two drivers on one checkpoint: one runs, the other is refused, and nothing is damaged."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from support import SUPPORT
from support.spark_streams import Feed, clicks

pytestmark = [pytest.mark.slow]


class Driver:
    """A process with a Spark of its own."""

    def __init__(self, folder: Path, log: Path) -> None:
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, SUPPORT / "driver_worker.py", folder],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                bufsize=1,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )

    def order(self, word: str) -> None:
        print(word, file=self._process.stdin, flush=True)

    def answer(self) -> str:
        return self._process.stdout.readline().strip()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                stream.close()


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[list[Driver]]:
    found = [Driver(tmp_path, tmp_path / f"log{number}") for number in range(2)]
    yield found
    for driver in found:
        driver.kill()


def test_one_of_two_drivers_runs_and_the_other_can_follow_it(drivers, tmp_path):
    feed = Feed(tmp_path / "in")
    feed.put(clicks(("a", 1, 1.0), ("b", 2, 1.0), ("a", 70, 1.0)))
    assert [driver.answer() for driver in drivers] == ["ready", "ready"]
    for driver in drivers:
        driver.order("start")
    answers = [driver.answer() for driver in drivers]
    assert sorted(answer.partition(":")[0] for answer in answers) == ["refused", "started"]
    winner, loser = sorted(drivers, key=lambda one: answers[drivers.index(one)] != "started")
    loser.order("start")
    assert loser.answer().startswith("refused: another process runs the query at")
    winner.order("stop")
    assert winner.answer() == "stopped"
    feed.put(clicks(("c", 80, 1.0), ("d", 200, 1.0)))
    loser.order("start")
    assert loser.answer() == "started"
    # A driver that is killed leaves no lock.
    winner.order("start")
    assert winner.answer().startswith("refused")
    loser.order("stop")
    assert loser.answer() == "stopped"
    loser.order("start")
    assert loser.answer() == "started"
    loser.kill()
    winner.order("start")
    assert winner.answer() == "started"
    winner.order("stop")
    assert winner.answer() == "stopped"
    rows = pq.read_table(tmp_path / "out").to_pylist()
    assert sorted((row["user"], row["n"]) for row in rows) == [
        ("a", 1),
        ("a", 1),
        ("b", 1),
        ("c", 1),
    ]
