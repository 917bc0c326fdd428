"""The soak of streams: ten writers, three controllers, two readers and a Spark query, killed at
random: nothing is lost, nothing comes twice.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from support import SUPPORT
from support.stream_soak_worker import LAST, START, STEP, STREAM, noted_down
from tidegate import streams
from tidegate.streams import Stream
from tidegate.streams.writer_cell import WriterCell

pytestmark = [pytest.mark.spark, pytest.mark.slow]
WORKER = SUPPORT / "stream_soak_worker.py"
WRITERS = {f"w{n}": "transactional" if n % 2 else "plain" for n in range(10)}
ROLES = {**WRITERS, "c0": "control", "c1": "control", "c2": "control", "r0": "read", "r1": "read"}
SECOND = 1_000_000
LONG = 60
"""From so many seconds on it is the long form."""
PATIENCE = 400
"""How long anything may take before it is taken for stuck, in seconds; the machine may be busy with
other tests.
"""
Place = tuple[str, int, int]
"""A writer, its life, and the number of an event."""


class Fleet:
    """Processes that are killed and started again."""

    def __init__(self, url: str, folder: Path, dice: random.Random) -> None:
        self._url, self._folder, self._dice = url, folder, dice
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        command = [
            sys.executable,
            WORKER,
            ROLES.get(name, name),
            name,
            self._url,
            self._folder,
            self._dice.randrange(10**6),
        ]
        with (self._folder / f"log-{name}").open("ab") as log:
            environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
            # A group of its own: with a driver of Spark its JVM is killed.
            self._running[name] = subprocess.Popen(
                list(map(str, command)),
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        process = self._running.pop(name)
        if process.poll() is None:
            os.killpg(process.pid, 9)
        process.wait()

    def check_alive(self) -> None:
        """Whatever ends without being killed has failed, except a writer that was told to stop."""
        for name, process in self._running.items():
            if process.poll() is not None and not (process.returncode == 0 and name in WRITERS):
                raise AssertionError(
                    f"{name} ended with"
                    f" {process.returncode}:\n{(self._folder / f'log-{name}').read_text()[-3000:]}"
                )

    def wait_for(self, names: list[str]) -> None:
        for name in names:
            self._running[name].wait(60)
        self.check_alive()

    def kill_all(self) -> None:
        for name in list(self._running):
            self.kill(name)


@pytest.fixture
def fleet_of(tmp_path: Path) -> Iterator[Callable[[str, random.Random], Fleet]]:
    made: list[Fleet] = []

    def make(url: str, dice: random.Random) -> Fleet:
        made.append(Fleet(url, tmp_path, dice))
        return made[-1]

    yield make
    for fleet in made:
        fleet.kill_all()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The short form is on SQLite alone: the rest of the suite has to fit in beside it."""
    long = int(metafunc.config.getoption("--soak-seconds")) >= LONG
    if "kind" in metafunc.fixturenames:
        metafunc.parametrize(
            "kind", ["sqlite", *([pytest.param("kafka", marks=pytest.mark.kafka)] if long else [])]
        )


def test_kills_lose_nothing_and_double_nothing(
    kind: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    soak_seconds: int,
    fleet_of: Callable[[str, random.Random], Fleet],
) -> None:
    url = f"sqlite:{tmp_path / 'soak.db'}?synchronous=normal"
    if kind == "kafka":
        url = f"kafka://{request.getfixturevalue('kafka').bootstrap_servers}/soak{uuid.uuid4().hex[:8]}-"
    seed = random.randrange(10**6)
    print(f"the soak of streams has seed {seed}")
    dice = random.Random(seed)
    stream = streams.open(url).create(
        STREAM, 3, initial_delay="0 s", timestamp_aggregation_timeout="10 minutes"
    )
    # Time waits for a writer from its first mark on, and does not go back for one that is new: so
    # all have said something before it begins.
    for name in WRITERS:
        WriterCell(stream, name).note(START, {}, stream.description().segments)
    fleet = fleet_of(url, dice)
    for name in [*ROLES, "spark"]:
        fleet.start(name)
    kills = disturbed(fleet, stream, dice, soak_seconds)
    (tmp_path / "stop").touch()
    fleet.wait_for(list(WRITERS))
    # A writer that was killed in the middle of a transaction keeps Kafka's readers waiting until
    # that is given up.
    truth = committed(stream, "1 second" if kind == "sqlite" else "30 seconds")
    wait_until(
        lambda: (marks := stream.watermarks()) != [] and marks[-1].time == LAST,
        "the watermark catches up",
        fleet,
    )
    wait_until(
        lambda: {place for place, *_ in seen_by(tmp_path)} >= set(truth),
        "the readers come to the end",
        fleet,
    )
    expected = windows_of(truth)
    wait_until(
        lambda: panes_of(tmp_path) == expected,
        "the query has put out every window",
        fleet,
        lambda: difference(expected, panes_of(tmp_path)),
    )
    fleet.kill_all()
    check_truth(truth, tmp_path)
    check_readers(truth, tmp_path)
    check_watermarks(stream)
    assert (
        not list((tmp_path / "late").rglob("*.parquet"))
        or ds.dataset(tmp_path / "late", format="parquet").count_rows() == 0
    )
    marks, epoch = len(stream.watermarks()), stream.description().segments.epoch
    print(
        f"{kills} kills, {len(truth)} events, {len(expected)} panes, {marks} watermarks, {epoch}"
        " scalings"
    )


def disturbed(fleet: Fleet, stream: Stream, dice: random.Random, seconds: int) -> int:
    """Kill and scale for a while; the number of kills."""
    end, kills, spark_at = (
        time.monotonic() + seconds,
        0,
        time.monotonic() + (20.0 if seconds >= LONG else seconds / 2),
    )
    while time.monotonic() < end or not kills:
        time.sleep(dice.uniform(0.05, 0.6))
        fleet.check_alive()
        name = dice.choice(list(ROLES))
        if time.monotonic() > spark_at:
            name, spark_at = "spark", time.monotonic() + dice.uniform(20, 60)
        fleet.kill(name)
        fleet.start(name)
        kills += 1
        if dice.random() < 0.1:
            stream.scale(dice.randint(1, 5))
    return kills


def wait_until(
    ready: Callable[[], bool], what: str, fleet: Fleet, told: Callable[[], str] = str
) -> None:
    deadline = time.monotonic() + PATIENCE
    while not ready():
        fleet.check_alive()
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE} seconds. {told()}"
        time.sleep(0.2)


def committed(stream: Stream, patience: str) -> dict[tuple[str, int], dict[str, Any]]:
    """All events of the stream, by segment and offset."""
    with stream.group(f"truth{uuid.uuid4().hex}").reader("truth") as reader:
        found: dict[tuple[str, int], dict[str, Any]] = {}
        while events := reader.read(10_000, wait=patience):
            found |= {(one.segment, one.offset): one.json for one in events}
            reader.checkpoint()
        return found


def seen_by(folder: Path) -> list[Any]:
    """What the readers have written down: segment, offset, event, and the lower bound of the time
    that they were in.
    """
    return [
        ((line[0], line[1]), line[2], line[3])
        for name in ("r0", "r1")
        for line in noted_down(folder / f"read-{name}")
    ]


def place_of(event: dict[str, Any]) -> Place:
    return event["w"], event["l"], event["n"]


def check_truth(truth: dict[tuple[str, int], dict[str, Any]], folder: Path) -> None:
    """Every event that a writer was told to be in the stream is there once, and nothing is there
    twice.
    """
    found = Counter(place_of(event) for event in truth.values())
    assert max(found.values()) == 1
    for writer, role in WRITERS.items():
        acked = {(writer, life, number) for life, number in noted_down(folder / f"acked-{writer}")}
        assert acked <= set(found), f"lost of {writer}: {sorted(acked - set(found))[:5]}"
        if role == "transactional":
            # Its transactions follow one another without a gap, over all its lives.
            numbers = sorted(number for name, _, number in found if name == writer)
            assert numbers == list(range(len(numbers)))


def check_readers(truth: dict[tuple[str, int], dict[str, Any]], folder: Path) -> None:
    """The readers together have seen just what is there, in the order of each writer and key."""
    seen = seen_by(folder)
    assert {place: event for place, event, _ in seen} == truth
    for name in ("r0", "r1"):
        newest: dict[tuple[str, str], int] = {}
        confirmed: set[tuple[str, int]] = set()
        for segment, offset, event, _ in noted_down(folder / f"read-{name}"):
            if (segment, offset) in confirmed:
                continue  # read again by a life that came after one that had not confirmed it
            confirmed.add((segment, offset))
            key = (event["w"], event["k"])
            assert event["n"] > newest.get(key, -1), f"{name} read {event} after {newest[key]}"
            newest[key] = event["n"]


def check_watermarks(stream: Stream) -> None:
    marks = stream.watermarks()
    segments = stream.description().segments
    assert [mark.time for mark in marks] == sorted(mark.time for mark in marks)
    for before, after in pairwise(marks):
        assert segments.upper_bound([before.cut, after.cut]) == dict(after.cut)
        assert before.time <= before.upper


def windows_of(truth: dict[tuple[str, int], dict[str, Any]]) -> Counter[tuple[str, int]]:
    """How many events each key has in each second."""
    return Counter((event["k"], event["t"] // SECOND * SECOND) for event in truth.values())


def panes_of(folder: Path) -> Counter[tuple[str, int]]:
    """What the query has put out; parts that are being written are not there yet."""
    found: Counter[tuple[str, int]] = Counter()
    if not (folder / "panes").exists():
        return found
    try:
        table = ds.dataset(folder / "panes", format="parquet").to_table(
            columns=["k", "window_start", "timing", "op", "n"]
        )
    except (OSError, ValueError):
        return found
    for row in table.to_pylist():
        assert (row["op"], row["timing"]) == (
            "+",
            "on_time",
        ), f"the writers have kept their promises, and yet there is {row}"
        found[row["k"], int(row["window_start"].timestamp()) * SECOND] += row["n"]
    return found


def difference(expected: Counter[tuple[str, int]], found: Counter[tuple[str, int]]) -> str:
    return json.dumps(
        {
            "missing": len(expected - found),
            "too much": len(found - expected),
            "first": START,
            "step": STEP,
        }
    )
