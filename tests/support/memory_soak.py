"""Traffic that could make memory grow, and the resident memory over time: `python -m
support.memory_soak --seconds N`.

Each load runs in a process of its own on a RocksDB folder, for its share of the seconds, after a
preparation that is not measured. Its memory is level if the last quarter is not above the second
one by more than the tolerance.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

import tidegate as tg

SECOND = 1_000_000
TOLERANCE = 0.15


def resident_mb() -> int:
    """The resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 >> 20


def stream(**options: object) -> tg.Stream:
    return tg.stream(time="ts", watermark=tg.bounded("5 seconds"), **options)  # type: ignore[arg-type]


def send(op: tg.Operator, at: int, keys: np.ndarray, **columns: np.ndarray) -> None:
    """Send messages of one second, at its end: the clock follows, so that none is in the future."""
    ts = at * SECOND + np.arange(len(keys)) * SECOND // max(1, len(keys))
    rows = pa.table({"ts": ts, "k": keys, "v": np.arange(len(keys)), **columns})
    op.add_messages(rows, now=(at + 1) * SECOND)


def large_deliveries(op: tg.Operator) -> Iterator[None]:
    """500,000 messages a delivery, all keys new."""
    for at in range(1 << 40):
        send(op, at, np.arange(500_000) + at * 500_000)
        yield


def hot_key(op: tg.Operator) -> Iterator[None]:
    """One key has all messages, and its window keeps them."""
    for at in range(1 << 40):
        send(op, at, np.zeros(50_000, np.int64))
        yield


def open_windows(op: tg.Operator) -> Iterator[None]:
    """A million windows are open at any time, and 20,000 of them change."""
    for start in range(0, 1_000_000, 100_000):
        send(op, 0, np.arange(start, start + 100_000))
    for at in range(1 << 40):
        keys = (np.arange(20_000) * 49 + at) % 1_000_000
        send(op, 1, keys)
        yield


def ids(op: tg.Operator) -> Iterator[None]:
    """Ten million ids are known at any time: 500,000 come with each second, and expire."""
    for at in range(1 << 40):
        number = np.arange(500_000) + at * 500_000
        send(op, at, number % 100, id=number)
        if at >= 30:
            yield


def partitions(op: tg.Operator) -> Iterator[None]:
    """200 new partitions a delivery, which are removed after it."""
    for at in range(1 << 40):
        names = [f"{at}-{number}" for number in range(200)]
        zeros = np.zeros(200, np.int64)
        send(op, at, zeros, o=zeros, p=np.array(names))
        for name in names:
            op.remove_partition(name)
        yield


def _counting(window: str) -> tg.Panes:
    return stream(key="k").window(tg.tumbling(window)).aggregate(n=tg.count())


LOADS: dict[str, tuple[Callable[[], tg.Panes], Callable[[tg.Operator], Iterator[None]]]] = {
    "large deliveries": (lambda: _counting("10 seconds"), large_deliveries),
    "hot key": (
        lambda: stream(key="k").window(tg.tumbling("10 seconds")).aggregate(m=tg.median("v")),
        hot_key,
    ),
    "million open windows": (lambda: _counting("1 hour"), open_windows),
    "ten million ids": (
        lambda: (
            stream(key="k", id="id")
            .window(tg.tumbling("1 second"))
            .allow_lateness("15 seconds")
            .aggregate(n=tg.count())
        ),
        ids,
    ),
    "forgotten partitions": (
        lambda: (
            stream(key="k", offset="o", partition="p")
            .window(tg.tumbling("1 second"))
            .allow_lateness("5 seconds")
            .aggregate(n=tg.count())
        ),
        partitions,
    ),
}


def run(name: str, seconds: float) -> bool:
    """Run a load, print its memory, and return whether it was level."""
    panes, load = LOADS[name]
    with tempfile.TemporaryDirectory() as folder:
        op = panes().embedded(store=tg.RocksDBStore(Path(folder, "state")), now=0)
        steps = load(op)
        next(steps)
        begin, sizes = time.monotonic(), []
        while time.monotonic() < begin + seconds:
            for _ in range(5):
                next(steps)
                op.get_result()
            op.flush()
            sizes.append(resident_mb())
        events = op.stats()["events"]
        op.close()
    shown = " ".join(str(sizes[len(sizes) * part // 10]) for part in range(10))
    quarter = max(1, len(sizes) // 4)
    before, after = max(sizes[quarter : 2 * quarter] or sizes), max(sizes[-quarter:])
    level = after <= before * (1 + TOLERANCE)
    print(
        f"{name}: {events:,} events, resident MB over time {shown}, at most {max(sizes)},"
        f" {'level' if level else 'GROWS'}",
        flush=True,
    )
    return level


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("loads", nargs="*", help=f"default: {', '.join(LOADS)}")
    parser.add_argument("--seconds", type=float, default=600, help="for all loads together")
    options = parser.parse_args()
    names = options.loads or list(LOADS)
    if len(names) == 1:
        return int(not run(names[0], options.seconds))
    share = options.seconds / len(names)
    command = [sys.executable, "-m", "support.memory_soak", "--seconds", str(share)]
    return sum(subprocess.run([*command, name], check=False).returncode != 0 for name in names)


if __name__ == "__main__":
    sys.exit(main())
