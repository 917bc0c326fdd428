"""The soak: random traffic on RocksDB, killed at random moments, ends in exactly the panes of an
undisturbed run and of the reference.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import SUPPORT
from support.reference import Reference
from support.soak_worker import AUTOMATIC, CONFIGS, Life, Row, script
from tidegate.state.memory import MemoryStore

pytestmark = [
    pytest.mark.rocksdb,
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL"),
]

WORKER = SUPPORT / "soak_worker.py"
SHORT, LONG = 60, (120, 500, 2_000)
PANE = (
    "window_start",
    "window_end",
    "op",
    "timing",
    "pane",
    "pane_nonspeculative",
    "is_first",
    "is_last",
    "time",
    "watermark",
    "emitted_at",
)


class Record:
    """What was heard from one or more lives, each pane and each late row once."""

    def __init__(self) -> None:
        self.panes: dict[str, Row] = {}
        self.late: dict[str, Row] = {}
        self.heard: Counter[str] = Counter()

    def say(self, kind: str, rows: list[Row]) -> None:
        for row in rows:
            name = (
                row["pane_id"]
                if kind == "pane"
                else json.dumps(
                    [row["offset"], row["partition"], row["id"], row["reason"], row["windows"]]
                )
            )
            first = (self.panes if kind == "pane" else self.late).setdefault(name, row)
            assert first == row, "what comes again is the same"
            self.heard[kind] += 1


class Supervisor:
    """Starts lives and kills them."""

    def __init__(self) -> None:
        folders = os.pathsep.join(entry for entry in sys.path if entry)
        environment = {**os.environ, "PYTHONPATH": folders}
        self._process = subprocess.Popen(
            [sys.executable, WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=environment,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout

    def life(self, order: list[Any], patience: float | None) -> bool:
        """Let one life run, kill it when the patience is over, and tell whether it came to its
        end.
        """
        self._in.write(json.dumps(order).encode() + b"\n")
        pid = self._number()
        if patience is not None and not select.select([self._out], [], [], patience)[0]:
            # It may have come to its end meanwhile.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        status = self._number()
        assert status in {0, signal.SIGKILL}, "the worker failed by itself; its error is on stderr"
        return status == 0

    def close(self) -> None:
        self._in.close()
        self._process.wait()
        self._out.close()

    def _number(self) -> int:
        line = self._out.readline()
        assert line, "the supervisor ended"
        return int(line)


@pytest.fixture(scope="module")
def supervisor() -> Iterator[Supervisor]:
    running = Supervisor()
    yield running
    running.close()


def disturbed(
    supervisor: Supervisor, name: str, seed: int, size: int, path: Path, least: int
) -> tuple[Record, int]:
    """The record of all lives together, and how many were killed; the first few are sure to be, and
    each may last a little longer.
    """
    dice, record, kills = random.Random(seed), Record(), 0
    path.mkdir()
    for life in range(100):
        patience = dice.random() * 0.05 * 1.35**life
        ended = supervisor.life([name, seed, size, str(path), life], patience)
        for line in (
            (path / f"{life}.jsonl").read_bytes().split(b"\n")[:-1]
            if (path / f"{life}.jsonl").exists()
            else []
        ):
            kind, row = json.loads(line)
            record.say(kind, [row])
        if ended:
            break
        kills += 1
    assert ended
    assert kills >= least
    return record, kills


def undisturbed(name: str, seed: int, size: int) -> Record:
    record = Record()
    Life(name, MemoryStore(), record.say, None).run(script(CONFIGS[name], seed, size))
    return record


def reference(name: str, seed: int, size: int) -> Reference:
    model = Reference(CONFIGS[name])
    verbs = {"add": model.add, "watermark": model.advance_watermark, "timeout": model.timeout}
    outputs = [
        *(verbs[verb](value) for verb, value in script(CONFIGS[name], seed, size)),
        model.finish(),
    ]
    model.panes = [pane for out in outputs for pane in out[0]]
    model.late = [row for out in outputs for row in out[1]]
    return model


def told(name: str, panes: list[Row]) -> list[str]:
    """What panes say, in an order that does not depend on who made them; the reference knows no
    median but has the values.
    """
    names = CONFIGS[name].aggregates
    found = []
    for pane in panes:
        values = sorted(pane.get("values") or []) if "values" in names else None
        middle = (
            pane["middle"]
            if "middle" in pane
            else float(statistics.median(values))
            if values
            else None
        )
        found.append(
            repr(
                [
                    pane["k"],
                    *(pane[field] for field in PANE),
                    pane["n"],
                    pane["total"],
                    values,
                    middle if "middle" in names else None,
                ]
            )
        )
    return sorted(found)


def blamed(rows: list[Row]) -> list[str]:
    fields = ("offset", "partition", "id", "ts", "class", "reason", "emitted_at")
    return sorted(repr([*(row[name] for name in fields), spans(row)]) for row in rows)


def spans(row: Row) -> list[tuple[int, int]]:
    return sorted(
        tuple(s.values()) if isinstance(s, dict) else tuple(s) for s in row["windows"] or []
    )


def check(record: Record, name: str, seed: int, size: int) -> None:
    quiet = undisturbed(name, seed, size)
    assert list(record.panes.values()) == list(quiet.panes.values()), (
        "the same panes in the same order"
    )
    assert sorted(record.late) == sorted(quiet.late)
    model = reference(name, seed, size)
    assert told(name, list(record.panes.values())) == told(name, model.panes)
    assert blamed(list(record.late.values())) == blamed(model.late)


@pytest.mark.parametrize("name", CONFIGS)
def test_kills_do_not_show(
    name: str, supervisor: Supervisor, soak_seconds: int, tmp_path: Path
) -> None:
    until = time.monotonic() + soak_seconds / len(CONFIGS)
    dice, rounds, kills, panes, again = random.Random(name), 0, 0, 0, 0
    while not rounds or time.monotonic() < until:
        seed, size = dice.randrange(10**6), dice.choice(LONG) if soak_seconds >= 60 else SHORT
        record, killed = disturbed(supervisor, name, seed, size, tmp_path / str(rounds), least=3)
        try:
            check(record, name, seed, size)
        except AssertionError:
            print(f"\nround {rounds} of `{name}`: seed {seed}, size {size}")
            raise
        rounds, kills, panes, again = (
            rounds + 1,
            kills + killed,
            panes + len(record.panes),
            again + record.heard["pane"] - len(record.panes),
        )
    print(f"\n{name}: {rounds} rounds, {kills} kills, {panes} panes, {again} of them told again")
    assert again > 0 or name in AUTOMATIC
