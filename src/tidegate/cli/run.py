"""`tidegate run`: runs a pipeline file on Spark, with progress and a clean shutdown."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate import pipeline
from tidegate.cli.shutdown import ShutdownRequest, shutdown_requests
from tidegate.cli.stderr_filter import filtered_stderr
from tidegate.errors import MissingExtraError, TidegateError
from tidegate.instants import format_instant
from tidegate.pipeline.outputs import AVAILABLE_NOW
from tidegate.redaction import redacted_lines

if TYPE_CHECKING:
    from tidegate.spark.query.handle import Progress, Query

LINE_EVERY = 1.0
_POLL_SECONDS = 0.25
_TIMINGS = ("early", "on_time", "late")
_ESSENCE = re.compile(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception): .+)$", re.MULTILINE)


def run(
    path: str | Path, *, dry_run: bool = False, as_json: bool = False, until_idle: bool = False
) -> int:
    """Run a pipeline file until it ends or is stopped; returns 1 if the query failed, else 0."""
    read = pipeline.load(path)
    if dry_run:
        _show(read.describe(), as_json=as_json)
        return 0
    try:
        from pyspark.errors import PySparkException
    except ImportError:
        raise MissingExtraError("pyspark", "spark", "`tidegate run`") from None
    report, shutdown = _Report(as_json=as_json), ShutdownRequest()
    try:
        with shutdown_requests(shutdown), _session(read) as spark:
            # Spark has installed a handler of its own.
            shutdown.listen()
            query = read.start(spark, trigger=AVAILABLE_NOW if until_idle else None)
            try:
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
            if not isinstance(error, PySparkException) and not isinstance(
                error.__cause__, PySparkException
            ):
                raise
            report.end("failed")
            return _failed(error)
    report.end("stopped" if shutdown.stop else "ended", checkpoint=read.output.checkpoint)
    return 0


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
            f"{chr(10) if self.in_place else ''}{how} after {seconds:.1f} s and {self.batches}"
            " batches"
        )
        print(f"  events       {state['events']:,}")
        print(f"  panes        {_panes(state)}, {state['retractions']:,} retractions")
        print(f"  late output  {state['late_rows']:,} rows{_late(state)}")
        waits = "; `tidegate state` on the checkpoint shows the sources" if state["events"] else ""
        print(f"  watermark    {state['watermark'] or f'none yet{waits}'}")
        for name, value in more.items():
            print(f"  {name:<12} {value}", flush=True)


def _line(rate: float, state: dict[str, Any]) -> str:
    lag = "" if state["lag_seconds"] is None else f" lag {state['lag_seconds']:,.1f} s"
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
    return f" (of {seen})" if seen else ""


def _failed(error: Exception) -> int:
    """Print an error of Tidegate as one line; any other whole, and then its essence."""
    if isinstance(error, TidegateError):
        name = type(error).__name__
        text = redacted_lines(f"tidegate run: the query failed: {name}: {error}")
        print(text, file=sys.stderr)
        return 1
    text = redacted_lines(str(error))
    found = _ESSENCE.findall(text)
    print(text, file=sys.stderr)
    print(
        "tidegate run: the query failed:"
        f" {found[-1] if found else text.splitlines()[0] if text else type(error).__name__}",
        file=sys.stderr,
    )
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
