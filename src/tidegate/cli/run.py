"""`tidegate run`: a pipeline file on Spark, with its progress while it runs and a clean end."""

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
from tidegate.cli.shutdown import Asked, asking
from tidegate.cli.stderr_filter import without_noise
from tidegate.errors import MissingExtraError
from tidegate.instants import format_instant
from tidegate.pipeline.outputs import AVAILABLE_NOW

if TYPE_CHECKING:
    from tidegate.spark.query.progress import Progress
    from tidegate.spark.query.query import Query

LINE_EVERY = 1.0
_LOOK_EVERY = 0.25
_TIMINGS = ("early", "on_time", "late")
_ESSENCE = re.compile(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception): .+)$", re.MULTILINE)


def run(
    path: str | Path, *, dry_run: bool = False, as_json: bool = False, until_idle: bool = False
) -> int:
    """Run a pipeline file until it ends or is stopped; 0 when all is well, 1 when the query
    failed.
    """
    read = pipeline.load(path)
    if dry_run:
        _show(read.describe(), as_json=as_json)
        return 0
    try:
        from pyspark.errors import PySparkException
    except ImportError:
        raise MissingExtraError("pyspark", "spark", "`tidegate run`") from None
    report, asked = _Report(as_json=as_json), Asked()
    try:
        with asking(asked), _session(read) as spark:
            # Spark has put its own handler in place.
            asked.listen()
            query = read.start(spark, trigger=AVAILABLE_NOW if until_idle else None)
            try:
                _watch(query, report, asked)
            finally:
                query.stop()
                report.take(query)
    except KeyboardInterrupt:
        asked.stop = True
    except Exception as error:
        # Where all processes were asked to end, Spark may be gone before we are; the batch is given
        # up in either case.
        if not asked.stop:
            if not isinstance(error, PySparkException):
                raise
            report.end("failed")
            return _failed(error)
    report.end("stopped" if asked.stop else "ended", checkpoint=read.output.checkpoint)
    return 0


def _watch(query: Query, report: _Report, asked: Asked) -> None:
    """Tell the progress until the query ends or somebody asks for its end."""
    while query.is_active and not asked.stop:
        asked.wait(_LOOK_EVERY)
        if report.is_due:
            report.tell(query)
    if asked.stop:
        # It logs every connection that Spark has closed.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
    else:
        # It has ended: this raises what ended it, if that was an error.
        query.await_termination()


@contextlib.contextmanager
def _session(read: pipeline.Pipeline) -> Iterator[Any]:
    """The session of the pipeline; one that was there before stays."""
    from tidegate.spark.environment.session import running_session

    if running_session() is not None:
        yield read.session()
        return
    with without_noise():
        spark = read.session()
    try:
        yield spark
    finally:
        spark.stop()


class _Report:
    """What is told while a query runs: totals since the start, and the rate since the last line."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.in_place = not as_json and sys.stdout.isatty()
        self.counts: Counter[str] = Counter()
        self.last: Progress | None = None
        self.batches = 0
        self.began = self.told = time.monotonic()
        self.told_events = 0

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self.told >= LINE_EVERY

    def take(self, query: Query) -> None:
        """Add the batches that came since the last look; Spark remembers the last hundred."""
        for progress in query.recent_progress:
            if self.last is None or progress.batch > self.last.batch:
                self.counts.update(progress.counts)
                self.batches += 1
                self.last = progress

    def tell(self, query: Query) -> None:
        """One line of progress: in place on a terminal, elsewhere only where a batch has ended
        since the last one.
        """
        batches, now = self.batches, time.monotonic()
        self.take(query)
        if self.last is None or (self.batches == batches and not self.in_place):
            return
        rate = (self.counts["events"] - self.told_events) / max(now - self.told, 1e-9)
        self.told, self.told_events = now, self.counts["events"]
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
        """Totals since the start, and where the query is."""
        last = self.last
        return {
            "batch": None if last is None else last.batch,
            "events": self.counts["events"],
            "watermark": (
                None if last is None or last.watermark is None else format_instant(last.watermark)
            ),
            "lag_seconds": (
                None if last is None or last.lag_seconds is None else round(last.lag_seconds, 3)
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
        """The summary."""
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
        print(f"  watermark    {state['watermark'] or 'none yet'}")
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
    """The classes of events that are not simply on time, where there were any."""
    seen = ", ".join(
        f"{count:,} {name.replace('_', ' ')}" for name, count in state["late"].items() if count
    )
    return f" (of {seen})" if seen else ""


def _failed(error: Exception) -> int:
    """The whole error for those who look for its cause, and then its essence."""
    text = str(error)
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
    """A value on one line, the parts of what has parts below each other."""
    below = f"\n{' ' * 17}"
    if isinstance(value, dict):
        return below.join(f"{name}: {inner}" for name, inner in value.items())
    return below.join(_cell(inner) for inner in value) if isinstance(value, list) else str(value)
