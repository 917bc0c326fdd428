"""Generated data of the Spark benchmark: Parquet files of disordered events, read in order."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.traffic import SECOND, SPAN, START, TIME

DISORDER = 3 * SECOND
"""Mean delay of an event; the delay is exponential."""
DELAY = 10 * SECOND
"""Distance of both sides' watermark from the newest event."""
SCHEMA = "key long, ts timestamp, value double"
INPUTS = ("left", "right")
"""The folders of the two inputs of a join."""
HOT = 7
"""The hot key, if there is one."""


@dataclass(frozen=True)
class Events:
    """Description of the generated files."""

    files: int
    rows: int
    """Rows per file."""
    keys: int
    is_late: bool = True
    """Whether some events arrive behind the watermark. The two sides treat those differently, so
    equality is checked without them.
    """
    span: int = SPAN
    """Event time that a file covers."""
    inputs: tuple[str, ...] = ()
    """Folders of the inputs, if there are several; each has `files` files."""
    hot: float = 0.0
    """Share of all events that belong to one key. They are in the first input only: in both, the
    number of pairs would grow quadratically.
    """

    @property
    def total(self) -> int:
        """Number of events of all inputs."""
        return self.files * self.rows * max(1, len(self.inputs))

    def small(self, files: int = 8) -> Events:
        """A small version without late events, with few enough rows that every key has gaps."""
        return replace(self, files=files, rows=1_000, keys=500, is_late=False)


def write(folder: Path, events: Events) -> None:
    """Generate the files, the same in every run."""
    hot = events.hot * max(1, len(events.inputs))
    for number, name in enumerate(events.inputs or (".",)):
        _write(
            folder / name, events, np.random.default_rng(7 + number), hot if number == 0 else 0.0
        )


def _write(folder: Path, events: Events, random: np.random.Generator, hot: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(events.files):
        delay = random.exponential(DISORDER, events.rows).astype(np.int64)
        if not events.is_late:
            delay = np.minimum(delay, DELAY - SECOND)
        times = START + number * events.span + random.integers(0, events.span, events.rows) - delay
        keys = random.integers(0, events.keys, events.rows)
        if hot:
            keys[random.random(events.rows) < hot] = HOT % events.keys
        columns = {
            "key": pa.array(keys),
            "ts": pa.array(times).cast(TIME),
            "value": pa.array(random.random(events.rows)),
        }
        path = folder / f"{number:04d}.parquet"
        pq.write_table(pa.table(columns), path)
        # Sources read files in order of modification time.
        os.utime(path, (START // SECOND + number, START // SECOND + number))
