"""The handle of a query: control, wait for it, and read its progress, state and metrics."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from tidegate.errors import StateError, TidegateError
from tidegate.html import fields_html
from tidegate.instants import Instant
from tidegate.operators.explain.facts import Explanation
from tidegate.operators.history.facts import History
from tidegate.operators.prometheus import families, text_of
from tidegate.operators.status import QueryStatus, aged
from tidegate.page import serve
from tidegate.spark.failures import essence, spark_errors
from tidegate.spark.query.feed import QueryFeed
from tidegate.spark.query.history import why
from tidegate.spark.query.progress import Progress, ProgressLog
from tidegate.spark.query.state.query_state import QueryState, read_state
from tidegate.spark.query.watch import Watch
from tidegate.spec.join import Upstream
from tidegate.units import when

if TYPE_CHECKING:
    from tidegate.page.server import Page

_POLL_SECONDS = 0.05
"""How often `process_all_available` reads the progress of a query."""


@contextmanager
def _quiet_callbacks() -> Iterator[None]:
    """Keep py4j from logging the batch that a stop cancels, as an error with a long trace."""
    logger = logging.getLogger("py4j.clientserver")
    logger.addFilter(_is_no_cancellation)
    try:
        yield
    finally:
        logger.removeFilter(_is_no_cancellation)


def _shown(error: Exception) -> str:
    """An error of Tidegate as it is; of any other one the line that says what happened."""
    return str(error) if isinstance(error, TidegateError) else essence(str(error))


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not any(word in str(error) for word in ("SPARK_JOB_CANCELLED", "InterruptedException"))


class Query:
    """A running query, or one that has ended."""

    def __init__(
        self,
        query: StreamingQuery | None,
        id: str,
        *,
        checkpoint: str | None = None,
        specs: Sequence[Sequence[Upstream]] | None = None,
        shards: int = 1,
    ) -> None:
        """`checkpoint` and `specs`, the specifications by stage: to read the state of a stream.

        `shards`: the number of shards of each stage.
        """
        self._query, self._checkpoint, self._specs = query, checkpoint, specs
        self._progress_log = ProgressLog(shards * len(specs or ()), self._readable_status)
        self.id = id
        """The id of the query, stored in its checkpoint."""
        self._watch = Watch(self) if query is not None else None

    def __repr__(self) -> str:
        name = "" if self.name is None else f"{self.name!r}, "
        return f"Query({name}{self.id!r}, {self._state()})"

    def _state(self) -> str:
        if self.is_active:
            return "running"
        has_failed = self._query is not None and self._query.exception() is not None
        return "failed" if has_failed else "ended"

    def _repr_html_(self) -> str:
        last = self.progress
        shown = [
            ("query", self.id),
            ("name", self.name or "none"),
            ("checkpoint", self._checkpoint),
        ]
        if last is not None:
            shown += [
                ("batch", f"{last.batch_id:,}"),
                ("rows per second", f"{last.rows_per_second:,.0f}"),
                ("watermark", when(last.watermark)),
            ]
        return fields_html(self._state(), shown)

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
            if self._watch is not None:
                self._watch.stop()
            with spark_errors(), _quiet_callbacks():
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
        """The progress of the last batch, after a restart that before it; None before the first.

        Counts are of that batch; sizes and instants of a batch without rows are those before it.
        """
        # Spark sends a hundred reports as text if it is asked for all of them.
        query = self._query
        if query is None:
            return None
        return self._progress_log.last(query.lastProgress, lambda: query.recentProgress)

    @property
    def recent_progress(self) -> list[Progress]:
        """The progress of the last batches, the oldest first."""
        return [] if self._query is None else self._progress_log.read(self._query.recentProgress)

    def state(self) -> QueryState:
        """The state after the last committed batch: windows, messages, values and watermarks.

        It is read from the checkpoint, which this process must be able to read.
        """
        if self._checkpoint is None:
            raise StateError("a batch query has no state. Hint: read what it has written")
        return read_state(self._checkpoint, specs=self._specs)

    def status(self) -> QueryStatus:
        """What the query has done, holds and waits for: the state after its last committed batch,
        with lags that count to now while it runs.

        It needs no Spark job. Where this process cannot read the checkpoint, `problem` says so, and
        the status has no operators.
        """
        found = self._stored_status()
        last = self.progress
        failure = None if self.is_active else self.exception()
        state = "running" if self.is_active else "ended" if failure is None else "failed"
        return dataclasses.replace(
            aged(found, time.time_ns() // 1000) if self.is_active else found,
            query=self.id,
            name=self.name,
            state=state,
            error="" if failure is None else _shown(failure),
            phases={} if last is None else last.duration_ms,
            rows_per_second=None if last is None else last.rows_per_second,
        )

    def explain_watermark(self, operator: int = -1) -> Explanation:
        """Why there is no output: what holds the watermark back, and what windows wait for.

        Print it to read sentences; `to_dict` returns the same as data. It is read from the
        checkpoint.
        """
        return self.state().explain_watermark(operator)

    def _stored_status(self) -> QueryStatus:
        try:
            return self.state().status()
        except (TidegateError, OSError) as reason:
            return QueryStatus(self.id, None, time.time_ns() // 1000, problem=str(reason))

    def why(
        self,
        key: Any = None,
        start: Instant | None = None,
        end: Instant | None = None,
        *,
        operator: int = -1,
    ) -> History:
        """The history of one key and window, in order: panes with their causes, late rows, and
        what is still open.

        `start` and `end` are the bounds of the window; with `start` alone, the windows that contain
        this instant, or that overlap the range of a text like "12:00..12:05". It is read from the
        output and the checkpoint, which this process must be able to read. Print it to read
        sentences; `to_dict` returns the same as data.
        """
        if self._checkpoint is None:
            raise StateError(
                "a batch query has no checkpoint. Hint: tg.why(folder, ...) reads the panes that it"
                " has written"
            )
        return why(self._checkpoint, key, start, end, operator=operator, specs=self._specs)

    def ui(self, *, port: int = 0) -> Page:
        """Start the live page of the query on this machine, and return it.

        Print it or its `url` to see the address; `stop` ends it. Its address has a token.
        """
        if self._checkpoint is None:
            raise StateError(
                "a batch query has no live page. Hint: tg.why reads what it has written"
            )
        feed = QueryFeed(self._checkpoint, name=self.name, status=self.status, specs=self._specs)
        return serve(feed, port=port)

    def _readable_status(self) -> QueryStatus | None:
        found = self._stored_status()
        return found if found.operators else None

    def prometheus(self) -> str:
        """The metrics of the query as Prometheus text; counters count since it was created.

        `tg.serve_metrics(query)` serves them, and `tg.sinks.prometheus` writes them to a file.
        """
        return text_of(families(self.status()))
