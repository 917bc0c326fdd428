"""The progress of a query: Spark's reports of its batches, with the values that idle ones keep."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tidegate.instants import format_instant, instant
from tidegate.operators.status import QueryStatus
from tidegate.spark import metrics
from tidegate.units import many, when


@dataclass(frozen=True)
class Progress:
    """The progress of a query in one batch: Spark's report, and the metrics of the operators."""

    batch_id: int
    rows_per_second: float
    duration_ms: dict[str, int]
    """The duration of each phase, under Spark's name; `triggerExecution` is the total."""
    counts: dict[str, int] = field(default_factory=dict)
    """The metrics in `metrics.COUNTERS` and `metrics.GAUGES`."""
    watermark: int | None = None
    newest_event: int | None = None
    clock: int | None = None
    rocksdb_bytes: int = 0
    """The size of Spark's state store on disk."""

    def __repr__(self) -> str:
        windows = self.counts.get("windows_open", 0)
        return (
            f"Progress(batch {self.batch_id:,}, {self.rows_per_second:,.0f} rows/s, watermark"
            f" {when(self.watermark)}, {many(windows, 'window')} open)"
        )

    @property
    def watermark_lag_seconds(self) -> float | None:
        """How far the watermark is behind the clock."""
        return (
            None
            if self.watermark is None or self.clock is None
            else (self.clock - self.watermark) / 1e6
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "batch_id": self.batch_id,
            "rows_per_second": self.rows_per_second,
            **self.counts,
            "watermark": None if self.watermark is None else format_instant(self.watermark),
            "watermark_lag_seconds": self.watermark_lag_seconds,
            "rocksdb_bytes": self.rocksdb_bytes,
            "duration_ms": self.duration_ms,
        }


_KEPT = 100
"""The number of reports that Spark keeps."""


class ProgressLog:
    """Reads the reports of a query in order, and carries values over batches without them.

    A batch without rows calls only the shards whose timer is due, or none: the values of the other
    shards have not changed.
    """

    def __init__(self, shards: int, stored: Callable[[], QueryStatus | None]) -> None:
        """`shards`: their number over all stages. `stored` reads the status from the checkpoint."""
        self._shards, self._stored = shards, stored
        self._known: dict[int, Progress] = {}

    def read(self, reports: Iterable[Any]) -> list[Progress]:
        """The progress of the batches among these reports, the oldest first."""
        found: list[Progress] = []
        ran = [report for report in reports if _has_run(report)]
        for report in ran:
            number = int(report.batchId)
            known = self._known.get(number)
            if known is None:
                before = self._known.get(number - 1) or self._base(ran)
                known = self._filled(report, before or Progress(-1, 0.0, {}))
                self._known[number] = known
            found.append(known)
        # Spark keeps the last hundred.
        self._known = {one.batch_id: one for one in found}
        return found

    def last(self, report: Any | None, reports: Callable[[], Iterable[Any]]) -> Progress | None:
        """The progress of the last batch, from the last report; None before the first batch.

        `reports` returns all reports that Spark keeps, for those before the last one that were not
        read. A report without a batch moves the clock. Without a report, it is the state of the
        checkpoint.
        """
        if report is None:
            return self._base(())
        number = int(report.batchId)
        if not _has_run(report):
            before = self._known.get(number - 1) or self._newest(reports()) or self._base(())
            return before and dataclasses.replace(
                before, clock=_latest(before.clock, instant(report.timestamp))
            )
        if number not in self._known:
            before = self._known.get(number - 1)
            if before is None:
                return self._newest(reports())
            self._known = {
                one: known for one, known in self._known.items() if one > number - _KEPT
            } | {number: self._filled(report, before)}
        return self._known[number]

    def _newest(self, reports: Iterable[Any]) -> Progress | None:
        found = self.read(reports)
        return found[-1] if found else None

    def _filled(self, report: Any, known: Progress) -> Progress:
        observed = _observed(report.observedMetrics.get("tidegate"))
        found = read_progress(report)
        if int(observed.get(metrics.SHARDS) or 0) >= self._shards:
            return found
        gauges = {
            name: known.counts.get(name, 0) + int(observed.get(change) or 0)
            for name, change in zip(metrics.GAUGES, metrics.CHANGES, strict=True)
        }
        return dataclasses.replace(
            found,
            counts={**found.counts, **gauges},
            watermark=_latest(found.watermark, known.watermark),
            newest_event=_latest(found.newest_event, known.newest_event),
            clock=_latest(found.clock, instant(report.timestamp)),
        )

    def _base(self, reports: Iterable[Any]) -> Progress | None:
        """What was known before the first of these reports: the state of the checkpoint without
        their changes, if it has one.
        """
        status = self._stored()
        if status is None:
            return None
        batch = -1 if status.batch is None else status.batch
        counts = dict.fromkeys(metrics.COUNTERS, 0)
        counts.update({name: getattr(status, name) for name in metrics.GAUGES})
        for report in reports:
            if int(report.batchId) <= batch:
                changed = _observed(report.observedMetrics.get("tidegate"))
                for name, change in zip(metrics.GAUGES, metrics.CHANGES, strict=True):
                    counts[name] -= int(changed.get(change) or 0)
        return Progress(
            batch,
            0.0,
            {},
            counts=counts,
            watermark=status.watermark,
            newest_event=status.newest_event,
        )


def _has_run(report: Any) -> bool:
    """Whether a report is about a batch that ran.

    While no batch is due, Spark reports the next one again and again, under its number.
    """
    return "addBatch" in report.durationMs


def _latest(one: int | None, other: int | None) -> int | None:
    return max((at for at in (one, other) if at is not None), default=None)


def read_progress(report: Any) -> Progress:
    """Spark's report of a batch as a `Progress`.

    It reads attributes, which are the same with and without Spark Connect.
    """
    observed = _observed(report.observedMetrics.get("tidegate"))
    return Progress(
        batch_id=int(report.batchId),
        rows_per_second=float(report.processedRowsPerSecond or 0),
        duration_ms={str(name): int(ms) for name, ms in report.durationMs.items()},
        counts={
            name: int(observed.get(name) or 0) for name in (*metrics.COUNTERS, *metrics.GAUGES)
        },
        watermark=observed.get("watermark"),
        newest_event=observed.get("newest_event"),
        clock=observed.get("clock"),
        rocksdb_bytes=sum(
            int(operator.customMetrics.get("rocksdbSstFileSize", 0))
            for operator in report.stateOperators
        ),
    )


def _observed(row: Any) -> dict[str, Any]:
    """The observed metrics by name; Spark Connect sends them as values and a schema."""
    observed = {} if row is None else row.asDict()
    if observed.keys() == {"values", "schema"}:
        names = (column["name"] for column in observed["schema"]["fields"])
        return dict(zip(names, observed["values"], strict=True))
    return observed
