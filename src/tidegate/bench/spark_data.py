"""The events of the race on Spark: files of parquet that come in their order, each with 20 seconds of event time in disorder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.bench.traffic import SECOND, SPAN, START, TIME

DISORDER = 3 * SECOND
"""How late an event is on average; the delay is exponential."""
DELAY = 10 * SECOND
"""How far the watermarks of both sides stay behind the newest event."""
SCHEMA = "key long, ts timestamp, value double"


@dataclass(frozen=True)
class Events:
    """Some files of events over some keys."""

    files: int
    rows: int
    """The rows of a file."""
    keys: int
    is_late: bool = True
    """Whether some events come after the watermark; the two sides treat those differently, so none must where they are compared."""

    @property
    def total(self) -> int:
        return self.files * self.rows


def write(folder: Path, events: Events) -> None:
    """Generate the files; the same every time."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(7)
    for number in range(events.files):
        delay = random.exponential(DISORDER, events.rows).astype(np.int64)
        if not events.is_late:
            delay = np.minimum(delay, DELAY - SECOND)
        times = START + number * SPAN + random.integers(0, SPAN, events.rows) - delay
        columns = {
            "key": pa.array(random.integers(0, events.keys, events.rows)),
            "ts": pa.array(times).cast(TIME),
            "value": pa.array(random.random(events.rows)),
        }
        path = folder / f"{number:04d}.parquet"
        pq.write_table(pa.table(columns), path)
        # Sources take files in the order in which they were changed.
        os.utime(path, (START // SECOND + number, START // SECOND + number))
