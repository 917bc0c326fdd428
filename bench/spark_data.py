"""The events of the race on Spark: files of parquet that come in their order, each with a span of
event time in disorder.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.traffic import SECOND, SPAN, START, TIME

DISORDER = 3 * SECOND
"""How late an event is on average; the delay is exponential."""
DELAY = 10 * SECOND
"""How far the watermarks of both sides stay behind the newest event."""
SCHEMA = "key long, ts timestamp, value double"
INPUTS = ("left", "right")
"""The folders of the two inputs of a join."""
HOT = 7
"""The key that is hot where one is."""


@dataclass(frozen=True)
class Events:
    """Some files of events over some keys."""

    files: int
    rows: int
    """The rows of a file."""
    keys: int
    is_late: bool = True
    """Whether some events come after the watermark; the two sides treat those differently, so none
    must where they are compared.
    """
    span: int = SPAN
    """The event time that a file covers."""
    inputs: tuple[str, ...] = ()
    """The folders of the inputs, where there are several; each has all of the files."""
    hot: float = 0.0
    """The share of all events that one key has. All of them are in the first input: in both, its
    pairs would grow with the square of its events.
    """

    @property
    def total(self) -> int:
        """All events, of all inputs."""
        return self.files * self.rows * max(1, len(self.inputs))

    def small(self, files: int = 8) -> Events:
        """Few enough for every key to have gaps, and none too late: who is late is decided
        differently by the two sides.
        """
        return replace(self, files=files, rows=1_000, keys=500, is_late=False)


def write(folder: Path, events: Events) -> None:
    """Generate the files; the same every time."""
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
        # Sources take files in the order in which they were changed.
        os.utime(path, (START // SECOND + number, START // SECOND + number))
