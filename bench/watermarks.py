"""Watermark benchmark: an update of all partitions of a tracker, against a plain Python loop."""

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
"""Target of an update in milliseconds."""
SHUFFLED = frozenset({10_000, 100_000})
"""Sizes that are also measured with partitions in another order in every update."""
_SECOND = 1_000_000
_UNMEASURED = 2
"""The partitions join in the first turn."""


class Runner(Protocol):
    """Takes the watermarks of all partitions and returns the coalesced one."""

    def update(self, names: list[str], values: np.ndarray, now: int) -> int: ...


class TrackerRunner:
    """The source tracker, with idleness."""

    def __init__(self) -> None:
        self.tracker = SourceTracker(idle_after=60 * _SECOND)

    def update(self, names: list[str], values: np.ndarray, now: int) -> int:
        self.tracker.promise(names, values, now)
        self.tracker.tick(now)
        self.tracker.release(now)
        return self.tracker.output


class LoopRunner:
    """A dictionary, a loop over the partitions and `min`; without idleness."""

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
    """Milliseconds of an update of all partitions."""

    partitions: int
    best: float
    median: float
    aim: float | None
    microseconds_per_partition: float
    peer: str
    peer_best: float
    peer_median: float
    ratio: float
    """Our median over the peer's."""
    shuffled: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in {"name": "watermarks", **asdict(self)}.items()
        }


def measure(sizes: Sequence[int] = SIZES) -> Iterator[Measured]:
    """One measurement per number of partitions."""
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
    """Milliseconds of every turn, by runner. In a turn most partitions advance by about a second.

    Names are new string objects in every turn, as when they are decoded from a delivery.
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
    f"{'partitions':>12}{'best':>10}{'median':>10}{'aim':>7}{'a partition':>13}"
    f"{'peer best':>12}{'peer median':>13}{'ratio':>8}"
    f"   against\n{'':>12}{'ms':>10}{'ms':>10}{'ms':>7}{'µs':>13}{'ms':>12}{'ms':>13}"
)


def line(found: Measured) -> str:
    """One row of the printed table."""
    aim = "" if found.aim is None else f"< {found.aim:g}"
    verdict = "" if found.aim is None or found.median < found.aim else "  over"
    return (
        f"{found.partitions:>12,}{found.best:>10.3f}{found.median:>10.3f}{aim:>7}"
        f"{found.microseconds_per_partition:>13.3f}{found.peer_best:>12.3f}"
        f"{found.peer_median:>13.3f}{found.ratio:>8.2f}"
        f"   {found.peer}{', names shuffled' if found.shuffled else ''}{verdict}"
    )
