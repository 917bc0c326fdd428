"""Safety benchmark: the share of the time of windows that goes into each measure of safety.

Embedded, it is processor time, and for syncs in Python wall time (those inside RocksDB are not
seen). On Spark, it is the time of the Python workers, from their profiles.
"""

from __future__ import annotations

import os
import pstats
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

import tidegate as tg
from bench import spark
from bench.spark_sides import OURS
from tidegate.kernel import keys, siphash
from tidegate.operators.ingest import arrow_rows
from tidegate.state import rocksdb, serialization

TURNS = 7
ROWS, DELIVERIES = 200_000, 8
KINDS = ("integer keys", "text keys", "text keys, nearly all differ")
CASES = ("text_200k", "tumbling_1m")
"""The cases of the Spark benchmark that are profiled."""
HEAD = f"{'keys':<30}{'runtime':<30}{'measure':<30}{'share':>7}"
PROFILED = {
    "validation of tables": ("validate",),
    "checksums of stored values": ("<built-in method zlib.crc32>",),
    "keyed identities of keys": ("hash_bytes", "hash_words"),
    "syncs of a disk (wall time)": ("<built-in method posix.fsync>",),
}
"""The functions of each measure, as profiles name them."""


@dataclass(frozen=True)
class Share:
    """The share of a measure in the time of windows."""

    keys: str
    runtime: str
    measure: str
    share: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def line(found: Share) -> str:
    """One row of the printed table."""
    return f"{found.keys:<30}{found.runtime:<30}{found.measure:<30}{found.share:>7.1%}"


def deliveries(kind: str, rows: int) -> list[pa.Table]:
    """Messages over eight minutes: of a tenth as many keys as rows of a delivery, or each of its
    own key, with 6 to 40 letters.
    """
    dice = np.random.default_rng(1)
    found = []
    for number in range(DELIVERIES):
        ts = number * 60_000_000 + np.sort(dice.integers(0, 60_000_000, rows))
        key: Any = dice.integers(0, max(1, rows // 10), rows)
        if kind == KINDS[1]:
            key = [f"user {one}" for one in key]
        elif kind == KINDS[2]:
            key = [f"{number * rows + row:06x}{'x' * (row % 35)}" for row in range(rows)]
        found.append(pa.table({"ts": ts, "k": key, "v": dice.random(rows)}))
    return found


def run(tables: list[pa.Table], folder: Path | None) -> None:
    """Windows over all deliveries; with a folder, on RocksDB, flushed after each."""
    store = None if folder is None else tg.RocksDBStore(folder / "state", cache_bytes=0)
    op = (
        tg.stream(time="ts", key="k", watermark=tg.bounded("1 second"))
        .window(tg.hopping("2 minutes", "1 minute"))
        .aggregate(n=tg.count(), total=tg.sum("v"))
        .embedded(store=store, now=0)
    )
    for table in tables:
        op.add_messages(table)
        op.get_result()
        if folder is not None:
            op.flush()
    op.finish()
    op.close()


Measure = tuple[list[tuple[Any, str]], Callable[[], float]]
"""Functions, by module and name, and the clock for their time."""


class Timed:
    """A function that adds the time of its calls to a total."""

    def __init__(self, function: Callable[..., Any], clock: Callable[[], float]) -> None:
        self.function, self.clock, self.seconds = function, clock, 0.0

    def __call__(self, *args: Any, **options: Any) -> Any:
        begin = self.clock()
        try:
            return self.function(*args, **options)
        finally:
            self.seconds += self.clock() - begin


def shares(work: Callable[[], None], measures: dict[str, Measure], turns: int) -> dict[str, float]:
    """By measure, the median share of the time of some work that is spent in its functions."""
    found: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(turns + 1):
        with ExitStack() as stack:
            timed: dict[str, list[Timed]] = {name: [] for name in measures}
            for name, (functions, clock) in measures.items():
                for where, function in functions:
                    timed[name].append(Timed(getattr(where, function), clock))
                    stack.enter_context(patch.object(where, function, timed[name][-1]))
            begins = [(clock, clock()) for _, clock in measures.values()]
            work()
            for name, (clock, begin) in zip(measures, begins, strict=True):
                spent = sum(one.seconds for one in timed[name])
                found[name].append(spent / (clock() - begin))
    return {name: statistics.median(each[1:]) for name, each in found.items()}


def loss(work: Callable[[], None], turns: int) -> float:
    """How much longer some work takes than with hashes that have no key."""
    ratios = []
    for _ in range(turns + 1):
        times = []
        for function in (siphash.hash_bytes, unkeyed):
            with patch.object(keys, "hash_bytes", function):
                begin = time.process_time()
                work()
                times.append(time.process_time() - begin)
        ratios.append(times[0] / times[1])
    return statistics.median(ratios[1:]) - 1


def unkeyed(
    data: np.ndarray, begin: np.ndarray, length: np.ndarray, _key: object
) -> tuple[np.ndarray, np.ndarray]:
    """Two chains of splitmix64, whose collisions can be computed; the keyed hash replaced it."""
    first, second = (np.full(len(begin), seed, np.uint64) for seed in (1, 2))
    raw, lanes = np.concatenate([data, np.zeros(8, np.uint8)]), np.arange(8)
    live, position = np.flatnonzero(length > 0), 0
    while len(live):
        left = np.minimum(length[live] - position, 8)
        chunk = raw[(begin[live] + position)[:, None] + lanes]
        chunk[lanes >= left[:, None]] = 0
        word = chunk.view(np.uint64).ravel()
        first[live], second[live] = keys.mix(first[live] ^ word), keys.mix(second[live] + word)
        position += 8
        live = live[length[live] > position]
    words = length.astype(np.uint64)
    return keys.mix(first ^ words), keys.mix(second + words)


def embedded(rows: int) -> Iterator[Share]:
    """The shares of embedded windows, in memory and on RocksDB."""
    checksums = SimpleNamespace(crc32=zlib.crc32)
    cpu, wall = time.process_time, time.perf_counter
    measures: dict[str, Measure] = {
        "validation of tables": ([(serialization, "validate"), (arrow_rows, "valid")], cpu),
        "checksums of stored values": ([(checksums, "crc32")], cpu),
        "keyed identities of keys": ([(keys, "hash_bytes"), (keys, "hash_words")], cpu),
        "syncs of a disk (wall time)": ([(os, "fsync")], wall),
    }
    with patch.object(rocksdb, "zlib", checksums):
        for kind in KINDS:
            tables = deliveries(kind, rows)
            for stored in (False, True):

                def work(tables: list[pa.Table] = tables, stored: bool = stored) -> None:  # noqa: FBT001
                    with tempfile.TemporaryDirectory() as folder:
                        run(tables, Path(folder) if stored else None)

                runtime = "RocksDB, a flush per delivery" if stored else "memory"
                for name, found in shares(work, measures, TURNS).items():
                    yield Share(kind, runtime, name, found)
                if kind != KINDS[0]:
                    yield Share(kind, runtime, "keyed, not unkeyed, hashes", loss(work, TURNS))


def on_spark(racing: spark.Racing, names: Sequence[str] = CASES) -> Iterator[Share]:
    """The shares of the Python workers of Spark."""
    for case in spark.named(",".join(names), spark.CASES):
        with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
            racing.sides, racing.profile, racing.warm = (OURS,), Path(folder), 0
            list(racing.race([case]))
            for part in ("edge", "operator"):
                dumps = sorted(str(path) for path in Path(folder).glob(f"{part}-*"))
                for measure, found in profiled(dumps).items():
                    yield Share(case.name, f"Spark, {part}", measure, found)


def profiled(dumps: Sequence[str]) -> dict[str, float]:
    """The share of each measure in the time of some profiles."""
    if not dumps:
        return {}
    stats: dict[tuple[str, int, str], tuple[Any, ...]] = pstats.Stats(*dumps).stats  # type: ignore[attr-defined]
    whole = sum(own for _, _, own, _, _ in stats.values())
    return {
        measure: sum(inside for (_, _, name), (_, _, _, inside, _) in stats.items() if name in all_)
        / whole
        for measure, all_ in PROFILED.items()
    }
