"""The torture: a driver is killed at random moments while its input grows, and its panes, netted,
are the batch answer.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import SUPPORT
from support.services.processes import Process
from support.torture_worker import ENDED, KINDS, Orders, Sender, Truth, compare, net, written

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for orphans in /proc"),
]

WORKER = SUPPORT / "torture_worker.py"
SEED = 4
FILES = 6
"""How many files come while a driver lives."""
PATIENCE = 600
"""No machine is so slow."""
OVERLOADED = "Timed out while waiting for the Python worker to connect back"
"""Spark gives a Python process ten seconds to start, which a busy machine may not keep; then the
driver has to be started again.
"""
MOMENTS = ("anywhere", "running", "running", "staged", "published", "replaced", "alone")
SHORT = ("staged", "published", "alone")
"""Between staging and publishing, between publishing and the commit, and the Python process without
its JVM.
"""


@contextlib.contextmanager
def writing(sender: Sender, files: int, every: float) -> Iterator[None]:
    """Write so many files beside what the block does; all of them are there when it ends."""
    hurry = threading.Event()

    def write() -> None:
        for _ in range(files):
            sender.put()
            hurry.wait(every)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        hurry.set()
        thread.join()


class Driver:
    """One life of the worker."""

    def __init__(self, orders: Orders, log: Path) -> None:
        paths = os.pathsep.join(entry for entry in sys.path if entry)
        self.process = Process(
            "the driver",
            [sys.executable, WORKER, orders.to_json()],
            log,
            {**os.environ, "PYTHONPATH": paths},
        )

    def said(self, word: str) -> bool:
        return any(
            line.startswith(word)
            for line in self.process.log.read_text("utf-8", "replace").splitlines()
        )

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so, or the driver is gone."""
        deadline = time.monotonic() + PATIENCE
        while not condition() and self.process.running:
            assert time.monotonic() < deadline, self.process.tail()
            time.sleep(0.05)

    def kill(self, *, alone: bool = False) -> None:
        """Kill the Python process and its JVM, or it alone; what they started has to go by
        itself.
        """
        with contextlib.suppress(ProcessLookupError):
            (
                os.kill(self.process.pid, signal.SIGKILL)
                if alone
                else os.killpg(self.process.pid, signal.SIGKILL)
            )
        self.gone()

    def gone(self) -> None:
        """Nothing is left of the driver: Python workers are in groups of their own, but in the same
        session.
        """
        deadline = time.monotonic() + PATIENCE
        while left := [pid for pid in _processes() if _session(pid) == self.process.pid]:
            assert time.monotonic() < deadline, f"orphans: {left}"
            time.sleep(0.05)
        # Nobody else may get the number before this.
        self.process.kill()

    def died_by_itself(self) -> bool:
        """Whether it failed; that the machine is overloaded is nobody's fault."""
        if self.process._server.returncode == -signal.SIGKILL:
            return False
        assert OVERLOADED in self.process.log.read_text("utf-8", "replace"), self.process.tail(200)
        return True


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _session(pid: int) -> int | None:
    """The session of a process that runs; a dead one that nobody has asked after has ended."""
    try:
        state, _, _, session = (
            (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[:4]
        )
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state == "Z" else int(session)


def live(orders: Orders, moment: str, log: Path, dice: random.Random, usual: float) -> bool:
    """Start a driver and kill it at the moment; False where it failed before."""
    driver = Driver(orders, log)
    try:
        if moment == "anywhere":
            until = time.monotonic() + dice.uniform(0, 1.5 * usual)
            driver.wait_for(lambda: time.monotonic() > until)
        elif orders.dies_at is None:
            driver.wait_for(lambda: driver.said("batches"))
            until = time.monotonic() + dice.uniform(0, 0.5 * usual)
            driver.wait_for(lambda: time.monotonic() > until)
        else:
            driver.wait_for(lambda: False)
        if driver.process.running:
            driver.kill(alone=moment == "alone")
            return True
        driver.gone()
        return not driver.died_by_itself()
    finally:
        driver.process.kill()


def archived(folder: Path, feed: Path) -> dict[str, str]:
    """Settings for JVMs that start faster: the classes that one life needed are written down when
    it ends, for all others.
    """
    (folder / "once").mkdir()
    (folder / "once" / "in").symlink_to(feed, target_is_directory=True)
    options = "spark.driver.extraJavaOptions"
    archive = folder / "classes.jsa"
    driver = Driver(
        Orders(
            str(folder / "once"), conf={options: f"-XX:ArchiveClassesAtExit={archive}"}, ends=True
        ),
        folder / "once.log",
    )
    driver.wait_for(lambda: False)
    driver.gone()
    return {options: f"-XX:SharedArchiveFile={archive}"} if archive.exists() else {}


def test_a_driver_that_is_killed_again_and_again_loses_nothing_and_writes_nothing_twice(
    tmp_path, torture_kills
):
    dice = random.Random(SEED)
    sender = Sender(tmp_path / "in", SEED)
    sender.put(4)
    long = torture_kills > len(SHORT)
    conf = archived(tmp_path, tmp_path / "in") if long else {}
    moments = (
        [dice.choice(MOMENTS) for _ in range(torture_kills)]
        if long
        else list(SHORT[:torture_kills])
    )
    usual, kills, lives, begun = 20.0, 0, 0, time.monotonic()
    while kills < len(moments):
        moment = moments[kills]
        dies_at = moment if moment in {"staged", "published", "replaced"} else None
        orders = Orders(str(tmp_path), conf=conf, dies_at=dies_at, after=dice.randrange(12))
        log = tmp_path / f"life-{lives}.log"
        with writing(sender, FILES, every=usual / FILES):
            kills += live(orders, moment, log, dice, usual)
        lives += 1
        assert lives < 3 * len(moments) + 10, "the machine is too busy for Spark"
        for kind in KINDS:
            net(written(tmp_path / kind / "panes"))
        usual = _first_batch(log) or usual
        if long:
            print(
                f"{time.monotonic() - begun:6.0f} s  kill {kills} of {len(moments)}: {moment}",
                flush=True,
            )
    sender.close()
    finish(Orders(str(tmp_path), conf=conf, ends=True), tmp_path / "last.log")
    truth = Truth(sender.rows)
    for kind in KINDS:
        assert {row["timing"] for row in written(tmp_path / kind / "panes")} == {
            "early",
            "on_time",
            "late",
        }
        compare(tmp_path, kind, truth)


def finish(orders: Orders, log: Path) -> None:
    """Let a driver come to the end of its input."""
    for _ in range(10):
        driver = Driver(orders, log)
        driver.wait_for(lambda driver=driver: driver.said(ENDED))
        ended = driver.said(ENDED)
        driver.kill()
        if ended:
            return
        assert driver.died_by_itself(), driver.process.tail(200)
        log.unlink()
    raise AssertionError("the machine is too busy for Spark")


def _first_batch(log: Path) -> float | None:
    """How long the driver took to its first batch."""
    said = [
        line.split()
        for line in log.read_text("utf-8", "replace").splitlines()
        if line.startswith("batches ")
    ]
    return float(said[0][-1]) if said else None
