"""The sink that writes metrics as Prometheus text, for the textfile collector."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidegate.errors import SinkError, SpecError
from tidegate.operators.prometheus import families, text_of
from tidegate.operators.status import OperatorStatus, QueryStatus, ShardStatus
from tidegate.spark.metrics import COUNTERS, GAUGES
from tidegate.spark.sinks.base import DriverSink, SinkTarget


@dataclass
class _Totals:
    """What a query has counted in this process, and the last values of each shard."""

    batch: int = -1
    counters: Counter[str] = field(default_factory=Counter)
    late: Counter[str] = field(default_factory=Counter)
    shards: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    """By operator and shard; an idle batch calls none of them."""

    def add(self, batch: int, rows: Iterable[Mapping[str, Any]]) -> None:
        seen = set()
        for row in rows:
            place = (row["operator"] or 0, row["shard"] or 0)
            former = self.shards.get(place) if place in seen else None
            seen.add(place)
            # A second call in the same batch has differences.
            gauges = {name: (former or {}).get(name, 0) + (row[name] or 0) for name in GAUGES}
            instants = {name: _micros(row[name]) for name in ("watermark", "newest_event")}
            self.shards[place] = {**gauges, **instants}
            # A replay is not counted again.
            if batch > self.batch:
                self.counters.update({name: row[name] or 0 for name in COUNTERS})
                self.late.update(json.loads(row["late_by_reason"] or "{}"))
        self.batch = max(batch, self.batch)

    def status(self, target: SinkTarget) -> QueryStatus:
        """The status that these numbers show; sources are not known here."""
        marks = [one["watermark"] for one in self.shards.values() if one["watermark"] is not None]
        newest = [one["newest_event"] for one in self.shards.values() if one["newest_event"]]
        sums = {name: sum(one[name] for one in self.shards.values()) for name in GAUGES}
        now = time.time_ns() // 1000
        whole = ShardStatus(
            shard=0,
            batch=self.batch,
            clock=now,
            watermark=min(marks, default=None),
            newest_event=max(newest, default=None),
            windows_open=sums["windows_open"],
            state_bytes=sums["state_bytes"],
            pending_output_bytes=sums["pending_output_bytes"],
            late=dict(self.late),
            counters=dict(self.counters),
        )
        return QueryStatus(
            target.query, self.batch, now, (OperatorStatus(0, 1, (whole,), ()),), name=target.name
        )


_totals: dict[tuple[str, str], _Totals] = {}
"""By file and query."""
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
        with _lock:
            totals = _totals.setdefault((self.file, target.query), _Totals())
            totals.add(batch, rows)
            # Before the first rows, a file of the last run says more.
            text = text_of(families(totals.status(target))) if totals.shards else None
        if text is None:
            return
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


def _micros(instant: Any) -> int | None:
    return None if instant is None else round(instant.timestamp() * 1e6)


def prometheus(file: str | os.PathLike[str]) -> Prometheus:
    """A sink for `metrics=` that replaces a file of Prometheus text with every batch.

    Idle batches write it, too, so that the lag in the file grows while nothing arrives.
    """
    return Prometheus(os.fspath(file))
