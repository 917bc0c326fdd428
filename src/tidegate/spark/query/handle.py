"""The handle of a query: control, wait for it, and read the progress of its batches."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from tidegate.errors import StateError, TidegateError
from tidegate.instants import format_instant
from tidegate.spark import metrics
from tidegate.spark.failures import spark_errors
from tidegate.spark.query.state.query_state import QueryState, read_state
from tidegate.spec.join import Upstream

_POLL_SECONDS = 0.05
"""How often `process_all_available` reads the progress of a query."""


class Query:
    """A running query, or one that has ended."""

    def __init__(
        self,
        query: StreamingQuery | None,
        id: str,
        *,
        checkpoint: str | None = None,
        specs: Sequence[Sequence[Upstream]] | None = None,
    ) -> None:
        """`checkpoint` and `specs`, the specifications by stage: to read the state of a stream."""
        self._query, self._checkpoint, self._specs = query, checkpoint, specs
        self.id = id
        """The id of the query, stored in its checkpoint."""

    def __repr__(self) -> str:
        return f"Query({self.id!r}, {'running' if self.is_active else 'ended'})"

    @property
    def spark_query(self) -> StreamingQuery | None:
        """Spark's own handle; None for a batch query."""
        return self._query

    @property
    def name(self) -> str | None:
        return None if self._query is None else self._query.name

    @property
    def is_active(self) -> bool:
        return self._query is not None and self._query.isActive

    def stop(self) -> None:
        """Stop the query; an unfinished batch is discarded, and replayed at the next start."""
        if self._query is not None:
            with spark_errors():
                self._query.stop()

    def await_termination(self, timeout: int | None = None) -> bool:
        """Wait until the query ends, at most `timeout` seconds; return whether it has ended.

        Raises the error of a query that failed: an error of Tidegate as such, with the exception of
        Spark as its cause, any other as the exception of Spark.
        """
        if self._query is None:
            return True
        with spark_errors():
            ended = self._query.awaitTermination(timeout)
        return True if timeout is None else bool(ended)

    def process_all_available(self) -> None:
        """Wait until all input that is available now is processed and written.

        Raises the error of a query that failed, like `await_termination`.
        """
        if self._query is None:
            return
        # Spark's own method waits for a moment without a batch to run. With timers, there is
        # always one.
        known = {batch.batchId for batch in self._query.recentProgress}
        while self._query.isActive:
            # The input of the first new batch may have been planned before this call.
            later = [batch for batch in self._query.recentProgress if batch.batchId not in known]
            if any(
                all(source.startOffset == source.endOffset for source in batch.sources)
                for batch in later[1:]
            ):
                return
            time.sleep(_POLL_SECONDS)
        self.await_termination()

    def exception(self) -> Exception | None:
        """The error that ended the query, if it failed, as `await_termination` raises it."""
        if self._query is None or (reported := self._query.exception()) is None:
            return None
        try:
            # Spark Connect abbreviates the message of an exception that it returns, and sends the
            # whole message of one that it raises.
            self.await_termination()
        except (TidegateError, PySparkException) as error:
            return error
        return reported

    @property
    def progress(self) -> Progress | None:
        """The progress of the last batch; None before the first."""
        found = self.recent_progress
        return found[-1] if found else None

    @property
    def recent_progress(self) -> list[Progress]:
        """The progress of the last batches, the oldest first."""
        return [] if self._query is None else [*map(read_progress, self._query.recentProgress)]

    def state(self) -> QueryState:
        """The state after the last committed batch: windows, messages, values and watermarks.

        It is read from the checkpoint, which this process must be able to read.
        """
        if self._checkpoint is None:
            raise StateError("a batch query has no state. Hint: read what it has written")
        return read_state(self._checkpoint, specs=self._specs)

    def prometheus(self) -> str:
        """The metrics of the last batch as Prometheus text.

        `tg.sinks.prometheus` writes counters over all batches instead.
        """
        last = self.progress
        return "" if last is None else last.prometheus({"query": self.id})


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

    @property
    def watermark_lag_seconds(self) -> float | None:
        """How far the watermark is behind the clock."""
        return (
            None
            if self.watermark is None or self.clock is None
            else (self.clock - self.watermark) / 1e6
        )

    def prometheus(self, labels: Mapping[str, str]) -> str:
        """The metrics of the batch as Prometheus text."""
        instants = {
            "watermark": self.watermark,
            "newest_event": self.newest_event,
            "clock": self.clock,
        }
        text = metrics.prometheus_text({**self.counts, **instants}, labels, batch=self.batch_id)
        name = "tidegate_batch_duration_seconds"
        seconds = self.duration_ms.get("triggerExecution", 0) / 1000
        return (
            f"{text}# HELP {name} Duration of the last batch\n# TYPE {name} gauge\n"
            f"{name}{{{metrics.prometheus_labels(labels)}}} {seconds}\n"
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
