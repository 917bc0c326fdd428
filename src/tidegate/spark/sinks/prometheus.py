"""The sink that writes metrics as Prometheus text, for the textfile collector."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tidegate.errors import SinkError, SpecError
from tidegate.spark.metrics import COUNTERS, prometheus_text, sum_rows
from tidegate.spark.sinks.base import DriverSink, SinkTarget

# By file and query: the last batch, and the counters over all batches of this process.
_totals: dict[tuple[str, str], tuple[int, Mapping[str, int]]] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class Prometheus(DriverSink):
    """Writes counters since the start of the process, as Prometheus expects, and gauges."""

    file: str

    def check(self, target: SinkTarget) -> None:
        if target.output != "metrics":
            raise SpecError(
                f"a Prometheus sink writes metrics, got the output `{target.output}`. Hint:"
                " write(..., metrics=tg.sinks.prometheus(...))"
            )

    def write(self, target: SinkTarget, batch: int, tables: Iterator[pa.Table]) -> None:
        rows = [row for table in tables for row in table.to_pylist()]
        if not rows:
            return
        batch_total = sum_rows(rows)
        with _lock:
            last, before = _totals.get((self.file, target.query), (-1, {}))
            # A replay is not counted again.
            totals = (
                dict(before)
                if batch <= last
                else {name: before.get(name, 0) + batch_total[name] for name in COUNTERS}
            )
            _totals[self.file, target.query] = (max(batch, last), totals)
        text = prometheus_text({**batch_total, **totals}, {"query": target.query}, batch=batch)
        temporary = Path(f"{self.file}.{os.getpid()}.tmp")
        try:
            temporary.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(text)
            temporary.replace(self.file)
        except OSError as error:
            raise SinkError(
                f"the metrics cannot be written to {self.file}: {error}. Hint: use a file that"
                " this process can write"
            ) from error


def prometheus(file: str | os.PathLike[str]) -> Prometheus:
    """A sink for `metrics=` that replaces a file of Prometheus text after every batch."""
    return Prometheus(os.fspath(file))
