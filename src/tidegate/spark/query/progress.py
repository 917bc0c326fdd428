"""Progress: how a batch went, from what Spark reports of a query and what the operator counted in
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.instants import format_instant
from tidegate.spark.query import metrics


@dataclass(frozen=True)
class Progress:
    """One batch of a query."""

    batch: int
    rows_per_second: float
    milliseconds: dict[str, int]
    """How long the parts of the batch took, as Spark names them; `triggerExecution` is the whole.
    """
    counts: dict[str, int] = field(default_factory=dict)
    """See `metrics.COUNTS` and `metrics.HELD`."""
    watermark: int | None = None
    newest: int | None = None
    clock: int | None = None
    stored_bytes: int = 0
    """What Spark's state store holds on disk."""

    @property
    def lag_seconds(self) -> float | None:
        """How far the watermark is behind the clock."""
        return (
            None
            if self.watermark is None or self.clock is None
            else (self.clock - self.watermark) / 1e6
        )

    def prometheus(self, labels: Mapping[str, str]) -> str:
        """The numbers of the batch as Prometheus text."""
        instants = {"watermark": self.watermark, "newest": self.newest, "clock": self.clock}
        whole = self.milliseconds.get("triggerExecution", 0) / 1000
        text = metrics.exposition({**self.counts, **instants}, labels, batch=self.batch)
        told = (
            "# HELP tidegate_batch_seconds How long the last batch took\n# TYPE"
            " tidegate_batch_seconds gauge\n"
        )
        return f"{text}{told}tidegate_batch_seconds{{{metrics.labelled(labels)}}} {whole}\n"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        watermark = None if self.watermark is None else format_instant(self.watermark)
        shown = {
            "batch": self.batch,
            "rows_per_second": self.rows_per_second,
            **self.counts,
            "watermark": watermark,
        }
        return {
            **shown,
            "watermark_lag_seconds": self.lag_seconds,
            "stored_bytes": self.stored_bytes,
            "milliseconds": self.milliseconds,
        }


def read_progress(given: Any) -> Progress:
    """What Spark reports of a batch; it is read by attribute, which is the same through Connect."""
    known = _observed(given.observedMetrics.get("tidegate"))
    counts = {name: int(known.get(name) or 0) for name in (*metrics.COUNTS, *metrics.HELD)}
    stored = sum(
        int(operator.customMetrics.get("rocksdbSstFileSize", 0))
        for operator in given.stateOperators
    )
    return Progress(
        batch=int(given.batchId),
        rows_per_second=float(given.processedRowsPerSecond or 0),
        milliseconds={str(name): int(ms) for name, ms in given.durationMs.items()},
        counts=counts,
        watermark=known.get("watermark"),
        newest=known.get("newest"),
        clock=known.get("clock"),
        stored_bytes=stored,
    )


def _observed(row: Any) -> dict[str, Any]:
    """The row of an observation; through Connect it comes as its values and their schema."""
    known = {} if row is None else row.asDict()
    if known.keys() == {"values", "schema"}:
        return dict(
            zip(
                (field["name"] for field in known["schema"]["fields"]), known["values"], strict=True
            )
        )
    return known
