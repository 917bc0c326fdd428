"""The sink that writes the metrics of a query as Prometheus text, into a file that a collector of
text files reads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tidegate.errors import SinkError, SpecError
from tidegate.spark.query.metrics import COUNTS, exposition, summed
from tidegate.spark.sinks.base import DriverSink, Target

# By file and query: the last batch, and what was counted in all batches that this process has seen.
_totals: dict[tuple[str, str], tuple[int, Mapping[str, int]]] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class Prometheus(DriverSink):
    """Counters since the process began, which is what Prometheus expects of them, and how much is
    held now.
    """

    file: str

    def check(self, target: Target) -> None:
        if target.output != "metrics":
            raise SpecError(
                f"Prometheus text holds numbers, and {target.output} are rows. Hint: write(...,"
                " metrics=tg.sinks.prometheus(...))"
            )

    def write(self, target: Target, batch: int, tables: Iterator[pa.Table]) -> None:
        rows = [row for table in tables for row in table.to_pylist()]
        if not rows:
            return
        found = summed(rows)
        with _lock:
            last, before = _totals.get((self.file, target.query), (-1, {}))
            # A replay is counted once.
            totals = (
                dict(before)
                if batch <= last
                else {name: before.get(name, 0) + found[name] for name in COUNTS}
            )
            _totals[self.file, target.query] = (max(batch, last), totals)
        text = exposition({**found, **totals}, {"query": target.query}, batch=batch)
        temporary = Path(f"{self.file}.{os.getpid()}.tmp")
        try:
            temporary.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(text)
            temporary.replace(self.file)
        except OSError as error:
            raise SinkError(
                f"the metrics cannot be written to {self.file}: {error}. Hint: a file that this"
                " process may write"
            ) from error


def prometheus(file: str | os.PathLike[str]) -> Prometheus:
    """Metrics as Prometheus text in a file, replaced after every batch."""
    return Prometheus(os.fspath(file))
