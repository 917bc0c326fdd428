"""`tidegate run`: runs a pipeline file on Spark, with progress and a clean shutdown."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate import pipeline
from tidegate.cli.shutdown import ShutdownRequest, shutdown_requests
from tidegate.cli.ui import announce
from tidegate.errors import InputError, MissingExtraError, SetupError, TidegateError
from tidegate.instants import format_instant
from tidegate.operators.prometheus_server import serve_metrics
from tidegate.operators.status_log import LOGGER
from tidegate.page import check_bokeh
from tidegate.pipeline.outputs import AVAILABLE_NOW
from tidegate.redaction import redacted_lines
from tidegate.spark.environment.stderr_filter import filtered_stderr
from tidegate.spark.failures import essence
from tidegate.units import many, rounded

if TYPE_CHECKING:
    from tidegate.page.server import Page
    from tidegate.spark.query.handle import Query
    from tidegate.spark.query.progress import Progress

LINE_EVERY = 1.0
_POLL_SECONDS = 0.25
_LAST_PORT = 65535
_TIMINGS = ("early", "on_time", "late")


def run(
    path: str | Path,
    *,
    dry_run: bool = False,
    as_json: bool = False,
    until_idle: bool = False,
    with_ui: bool = False,
    metrics: str | None = None,
) -> int:
    """Run a pipeline file until it ends or is stopped; returns 1 if the query failed, else 0.

    `metrics`: the address of the endpoint `/metrics`, as `PORT` or `HOST:PORT`. Raises
    `TidegateError` if the query cannot be started.
    """
    host, port = ("", 0) if metrics is None else _address(metrics)
    read = pipeline.load(path, checked=True)
    if dry_run:
        _show(read.describe(), as_json=as_json)
        return 0
    try:
        from pyspark.errors import PySparkException
    except ImportError:
        raise MissingExtraError("pyspark", "spark", "`tidegate run`") from None
    if with_ui:
        check_bokeh("`tidegate run --ui`")
    report, shutdown = _Report(as_json=as_json), ShutdownRequest()
    try:
        with shutdown_requests(shutdown), _session(read) as spark:
            # Spark has installed a handler of its own.
            shutdown.listen()
            query = _started(read, spark, until_idle=until_idle)
            try:
                with contextlib.ExitStack() as serving:
                    serving.enter_context(_log_lines(report))
                    if with_ui:
                        serving.enter_context(_page(query, as_json=as_json))
                    if metrics is not None:
                        server = serving.enter_context(serve_metrics(query, port=port, host=host))
                        report.say("metrics", server.url)
                    _watch(query, report, shutdown)
            finally:
                query.stop()
                report.take(query)
    except KeyboardInterrupt:
        shutdown.stop = True
    except Exception as error:
        # On shutdown Spark may exit before this process; the micro-batch is abandoned in either
        # case.
        if not shutdown.stop:
            is_ours = not isinstance(error, PySparkException) and not isinstance(
                error.__cause__, PySparkException
            )
            if is_ours or isinstance(error, SetupError):
                raise
            report.end("failed")
            return _failed(error)
    report.end("stopped" if shutdown.stop else "ended", checkpoint=read.output.checkpoint)
    return 0


def _page(query: Query, *, as_json: bool) -> Page:
    """The live page of the query; its address is printed."""
    page = query.ui()
    announce(page, as_json=as_json)
    return page


def _address(text: str) -> tuple[str, int]:
    """The host and the port of `PORT` or `HOST:PORT`; loopback by default."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > _LAST_PORT:
        raise InputError(f"`--metrics` is PORT or HOST:PORT, got {text!r}. Hint: --metrics 9464")
    return host or "127.0.0.1", int(port)


@contextlib.contextmanager
def _log_lines(report: _Report) -> Iterator[None]:
    """Within this context, what operators must know is written to standard error."""
    handler = _LogLines(report)
    level = LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(min(level or logging.INFO, logging.INFO))
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(level)


class _LogLines(logging.Handler):
    """Writes log records between the lines of progress."""

    def __init__(self, report: _Report) -> None:
        super().__init__(logging.INFO)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        clear = "\r\x1b[2K" if self._report.in_place else ""
        print(f"{clear}{redacted_lines(record.getMessage())}", file=sys.stderr, flush=True)


def _started(read: pipeline.Pipeline, spark: Any, *, until_idle: bool) -> Query:
    """Start the query; what Spark refuses is an error of the setup, and no failed query."""
    from pyspark.errors import PySparkException

    try:
        return read.start(spark, trigger=AVAILABLE_NOW if until_idle else None)
    except PySparkException as error:
        raise SetupError(f"the query cannot be started: {essence(str(error))}") from error


def _watch(query: Query, report: _Report, shutdown: ShutdownRequest) -> None:
    """Report progress until the query ends or a shutdown is requested."""
    while query.is_active and not shutdown.stop:
        shutdown.wait(_POLL_SECONDS)
        if report.is_due:
            report.show(query)
    if shutdown.stop:
        # It logs every connection that Spark closes.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
    else:
        # The query has ended: this raises its error, if any.
        query.await_termination()


@contextlib.contextmanager
def _session(read: pipeline.Pipeline) -> Iterator[Any]:
    """The session of the pipeline; stopped afterwards unless it already existed."""
    from tidegate.spark.environment.session import running_session

    if running_session() is not None:
        yield read.session()
        return
    with filtered_stderr():
        spark = read.session()
    try:
        yield spark
    finally:
        spark.stop()


class _Report:
    """Progress of a query: totals since the start, and the rate since the last line."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.in_place = not as_json and sys.stdout.isatty()
        self.counts: Counter[str] = Counter()
        self.last: Progress | None = None
        self.batches = 0
        self.began = self.shown = time.monotonic()
        self.shown_events = 0

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self.shown >= LINE_EVERY

    def take(self, query: Query) -> None:
        """Add new micro-batches; Spark retains the last hundred."""
        for progress in query.recent_progress:
            if self.last is None or progress.batch_id > self.last.batch_id:
                self.counts.update(progress.counts)
                self.batches += 1
                self.last = progress

    def show(self, query: Query) -> None:
        """Print a line of progress: in place on a terminal, else only after a micro-batch."""
        batches, now = self.batches, time.monotonic()
        self.take(query)
        if self.last is None or (self.batches == batches and not self.in_place):
            return
        rate = (self.counts["events"] - self.shown_events) / max(now - self.shown, 1e-9)
        self.shown, self.shown_events = now, self.counts["events"]
        if self.as_json:
            print(
                json.dumps(
                    {"event": "progress", "rows_per_second": round(rate, 1), **self.state()}
                ),
                flush=True,
            )
            return
        text, width = _line(rate, self.state()), shutil.get_terminal_size().columns - 1
        print(
            f"\r\x1b[2K{text[:width]}" if self.in_place else text,
            end="" if self.in_place else "\n",
            flush=True,
        )

    def state(self) -> dict[str, Any]:
        """Totals since the start, and the last progress."""
        last = self.last
        return {
            "batch": None if last is None else last.batch_id,
            "events": self.counts["events"],
            "watermark": (
                None if last is None or last.watermark is None else format_instant(last.watermark)
            ),
            "lag_seconds": (
                None
                if last is None or last.watermark_lag_seconds is None
                else round(last.watermark_lag_seconds, 3)
            ),
            "panes": {timing: self.counts[f"panes_{timing}"] for timing in _TIMINGS},
            "retractions": self.counts["retractions"],
            "late": {
                name: self.counts[name]
                for name in ("mildly_late", "very_late", "future", "unreadable", "duplicates")
            },
            "late_rows": self.counts["late_rows"],
            "windows_open": 0 if last is None else last.counts.get("windows_open", 0),
        }

    def say(self, event: str, text: str) -> None:
        """Print a fact about the run."""
        print(json.dumps({"event": event, "url": text}) if self.as_json else f"{event}: {text}")

    def end(self, how: str, **more: str) -> None:
        """Print the summary."""
        seconds = time.monotonic() - self.began
        if self.as_json:
            print(
                json.dumps(
                    {
                        "event": how,
                        "seconds": round(seconds, 1),
                        "batches": self.batches,
                        **self.state(),
                        **more,
                    }
                ),
                flush=True,
            )
            return
        state = self.state()
        print(
            f"{chr(10) if self.in_place else ''}{how} after {rounded(round(seconds * 1e6))} and"
            f" {many(self.batches, 'batch', 'batches')}"
        )
        print(f"  events       {state['events']:,}")
        print(f"  panes        {_panes(state)}, {many(state['retractions'], 'retraction')}")
        print(f"  late output  {many(state['late_rows'], 'row')}{_late(state)}")
        waits = "; `tidegate state` on the checkpoint shows the sources" if state["events"] else ""
        print(f"  watermark    {state['watermark'] or f'none yet{waits}'}")
        for name, value in more.items():
            print(f"  {name:<12} {value}", flush=True)


def _line(rate: float, state: dict[str, Any]) -> str:
    seconds = state["lag_seconds"]
    lag = "" if seconds is None else f" lag {rounded(round(seconds * 1e6))}"
    watermark = f"watermark {state['watermark'] or 'none yet'}{lag}"
    late = f"late output {state['late_rows']:,}{_late(state)}"
    return (
        f"batch {state['batch']} · {rate:,.0f} rows/s · {watermark} · panes {_panes(state)} ·"
        f" {late} · {state['windows_open']:,} windows open"
    )


def _panes(state: dict[str, Any]) -> str:
    return ", ".join(
        f"{count:,} {timing.replace('_', ' ')}" for timing, count in state["panes"].items()
    )


def _late(state: dict[str, Any]) -> str:
    """Counts of the lateness classes that occurred."""
    seen = ", ".join(
        f"{count:,} {name.replace('_', ' ')}" for name, count in state["late"].items() if count
    )
    return f" (seen: {seen})" if seen else ""


def _failed(error: Exception) -> int:
    """Print an error of Tidegate as one line; any other whole, and then its essence."""
    if isinstance(error, TidegateError):
        name = type(error).__name__
        text = redacted_lines(f"tidegate run: the query failed: {name}: {error}")
        print(text, file=sys.stderr)
        return 1
    text = redacted_lines(str(error))
    print(text, file=sys.stderr)
    shown = essence(text) or type(error).__name__
    print(f"tidegate run: the query failed: {shown}", file=sys.stderr)
    return 1


def _show(description: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(description))
        return
    print("Nothing is started or written. This would run:")
    for name, value in description.items():
        print(f"  {name:<15}{_cell(value)}")


def _cell(value: Any) -> str:
    """A value as text; items of lists and mappings are on lines of their own."""
    below = f"\n{' ' * 17}"
    if isinstance(value, dict):
        return below.join(f"{name}: {inner}" for name, inner in value.items())
    return below.join(_cell(inner) for inner in value) if isinstance(value, list) else str(value)
