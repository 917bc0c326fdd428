"""The benchmark behind `tidegate bench watermarks`: an update of all partitions of a tracker and
the watermark that follows, against a plain loop.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from tidegate.instants import MIN
from tidegate.kernel.watermarks.tracker import SourceTracker

SIZES = (1_000, 10_000, 100_000, 1_000_000)
AIM = {10_000: 5.0}
"""Milliseconds that an update may take."""
SHUFFLED = frozenset({10_000, 100_000})
"""So many partitions are also named in another order with every update, as if each delivery came
from other partitions.
"""
_SECOND = 1_000_000
_UNMEASURED = 2
"""The first turn lets the partitions join."""


class Runner(Protocol):
    """Something that takes the promises of all partitions and answers with the watermark."""

    def update(self, names: list[str], values: np.ndarray, now: int) -> int: ...


class TrackerRunner:
    """Our tracker, with idleness."""

    def __init__(self) -> None:
        self.tracker = SourceTracker(idle_after=60 * _SECOND)

    def update(self, names: list[str], values: np.ndarray, now: int) -> int:
        self.tracker.promise(names, values, now)
        self.tracker.tick(now)
        self.tracker.release(now)
        return self.tracker.output


class LoopRunner:
    """What one would write first: a dictionary, a loop over the partitions and `min`; it knows
    nothing of idleness.
    """

    def __init__(self) -> None:
        self.promises: dict[str, int] = {}
        self.spoke_at: dict[str, int] = {}
        self.output = MIN

    def update(self, names: list[str], values: np.ndarray, now: int) -> int:
        for name, value in zip(names, values.tolist(), strict=True):
            if value > self.promises.get(name, MIN):
                self.promises[name] = value
            self.spoke_at[name] = now
        self.output = max(self.output, min(self.promises.values()))
        return self.output


@dataclass(frozen=True)
class Measured:
    """What an update of so many partitions takes, in milliseconds."""

    partitions: int
    best: float
    median: float
    aim: float | None
    microseconds_per_partition: float
    peer: str
    peer_best: float
    peer_median: float
    ratio: float
    """Our median over that of the peer."""
    shuffled: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in {"name": "watermarks", **asdict(self)}.items()
        }


def measure(sizes: Sequence[int] = SIZES) -> Iterator[Measured]:
    """One measurement for each number of partitions."""
    for partitions, shuffled in [
        (size, shuffled)
        for size in sizes
        for shuffled in (False, True)
        if size in SHUFFLED or not shuffled
    ]:
        ours, peer = race(
            [TrackerRunner(), LoopRunner()],
            partitions,
            turns=30 if partitions <= 100_000 else 10,
            shuffled=shuffled,
        )
        middle = statistics.median(ours)
        yield Measured(
            partitions,
            min(ours),
            middle,
            AIM.get(partitions),
            middle * 1e3 / partitions,
            "a loop over a dict, and min()",
            min(peer),
            statistics.median(peer),
            middle / statistics.median(peer),
            shuffled,
        )


def race(
    runners: Sequence[Runner], partitions: int, turns: int, *, shuffled: bool = False
) -> list[list[float]]:
    """Milliseconds of every turn, by runner; in a turn all partitions move on by about a second,
    some of them not at all.

    The names are read from each delivery anew, so they are the same texts but never the same
    objects, and every runner gets its own.
    """
    random = np.random.default_rng(7)
    taken: list[list[float]] = [[] for _ in runners]
    gc.collect()
    gc.disable()
    try:
        for turn in range(_UNMEASURED + turns):
            now = turn * _SECOND
            values = now - random.integers(0, 2 * _SECOND, partitions)
            order = random.permutation(partitions).tolist() if shuffled else range(partitions)
            for runner, times in zip(runners, taken, strict=True):
                names = [f"partition-{number:07d}" for number in order]
                start = time.perf_counter()
                runner.update(names, values, now)
                times.append((time.perf_counter() - start) * 1e3)
    finally:
        gc.enable()
    return [times[_UNMEASURED:] for times in taken]


HEAD = (
    f"{'partitions':>12}{'best':>10}{'median':>10}{'aim':>7}{'a partition':>13}{'peer best':>12}{'peer median':>13}{'ratio':>8}"
    f"   against\n{'':>12}{'ms':>10}{'ms':>10}{'ms':>7}{'µs':>13}{'ms':>12}{'ms':>13}"
)


def line(found: Measured) -> str:
    """A measurement for people."""
    aim = "" if found.aim is None else f"< {found.aim:g}"
    verdict = "" if found.aim is None or found.median < found.aim else "  over"
    return (
        f"{found.partitions:>12,}{found.best:>10.3f}{found.median:>10.3f}{aim:>7}{found.microseconds_per_partition:>13.3f}{found.peer_best:>12.3f}{found.peer_median:>13.3f}{found.ratio:>8.2f}"
        f"   {found.peer}{', names shuffled' if found.shuffled else ''}{verdict}"
    )
