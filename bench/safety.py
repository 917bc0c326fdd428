"""Safety benchmark: the share of the time of embedded windows that goes into measures of safety.

`python -m bench.safety` prints it for validation, checksums and key identities (processor time),
and for syncs in Python (wall time; those inside RocksDB are not seen).
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

import tidegate as tg
from tidegate.kernel import keys
from tidegate.state import rocksdb, serialization

TURNS = 7
ROWS, DELIVERIES = 200_000, 8


def deliveries(*, text: bool) -> list[pa.Table]:
    """Messages of 20,000 keys over eight minutes."""
    dice = np.random.default_rng(1)
    found = []
    for number in range(DELIVERIES):
        ts = number * 60_000_000 + np.sort(dice.integers(0, 60_000_000, ROWS))
        key: Any = dice.integers(0, 20_000, ROWS)
        columns = {"ts": ts, "k": [f"user {one}" for one in key] if text else key}
        found.append(pa.table({**columns, "v": dice.random(ROWS)}))
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


def share(work: Callable[[], None], patched: list[tuple[Any, str]], *, wall: bool = False) -> float:
    """The median share of the time of some work that is spent in functions."""
    clock = time.perf_counter if wall else time.process_time
    shares = []
    for _ in range(TURNS + 1):
        with ExitStack() as stack:
            timed = [Timed(getattr(where, name), clock) for where, name in patched]
            for (where, name), one in zip(patched, timed, strict=True):
                stack.enter_context(patch.object(where, name, one))
            begin = clock()
            work()
            shares.append(sum(one.seconds for one in timed) / (clock() - begin))
    return statistics.median(shares[1:])


def main() -> int:
    """Measure and print."""
    checksums = SimpleNamespace(crc32=zlib.crc32)
    measures: dict[str, tuple[list[tuple[Any, str]], bool]] = {
        "validation of stored tables": ([(serialization, "validate")], False),
        "checksums of stored values": ([(checksums, "crc32")], False),
        "keyed identities of keys": ([(keys, "hash_bytes"), (keys, "hash_words")], False),
        "syncs of a disk (wall time)": ([(os, "fsync")], True),
    }
    with patch.object(rocksdb, "zlib", checksums):
        for kind, text in (("integer keys", False), ("text keys", True)):
            tables = deliveries(text=text)
            for stored in (False, True):

                def work(tables: list[pa.Table] = tables, stored: bool = stored) -> None:  # noqa: FBT001
                    with tempfile.TemporaryDirectory() as folder:
                        run(tables, Path(folder) if stored else None)

                where = "RocksDB, a flush per delivery" if stored else "memory"
                for name, (patched, wall) in measures.items():
                    found = share(work, patched, wall=wall)
                    print(f"{kind}, {where}: {name} {found:.1%}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
