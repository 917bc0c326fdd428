"""Fuzz targets for texts that people write: durations, triggers, files, SQL and command lines."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable
from pathlib import Path

from fuzz.target import Target, text
from tidegate import cli, pipeline
from tidegate.errors import TidegateError
from tidegate.instants import duration, format_duration, format_instant, instant
from tidegate.scenarios import document as scenario_document
from tidegate.spec.trigger_text import parse_trigger
from tidegate.sql.parse import parse_script

ROOT = Path(__file__).parent.parent.parent
PIPELINE = ROOT / "examples" / "pipeline.yaml"
TRIGGERS = (
    "after_watermark(early=after_count(3), late=after_count(1))",
    "repeatedly(after_any(after_count(3), after_delay('5 seconds')))",
    "after_each(after_count(1), after_all(after_count(2), after_watermark()))",
    "never()",
)
SQL = (
    "SELECT user, COUNT(*) AS n FROM TUMBLE(TABLE clicks, DESCRIPTOR(ts), INTERVAL 1 MINUTE)"
    " GROUP BY user, window_start, window_end EMIT AFTER WATERMARK",
    "CREATE TABLE clicks (user STRING, ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL 5 SECOND)"
    " WITH ('connector' = 'parquet', 'path' = 'in'); INSERT INTO out SELECT * FROM clicks;",
)
COMMANDS = (
    "state out/checkpoint --key user=ann --window 2025-01-01",
    "run pipeline.yaml --dry-run --set a=b",
    "stream write sqlite:events.db clicks --json --key user",
    "replay scenarios.yaml --runtime embedded",
)


def durations(data: bytes) -> None:
    """What is parsed can be formatted, and means the same again."""
    for parse, show in ((duration, format_duration), (instant, format_instant)):
        try:
            found = parse(text(data))
        except TidegateError:
            continue
        assert parse(show(found)) == found


def triggers(data: bytes) -> None:
    found = parse_trigger(text(data))
    assert parse_trigger(str(found)) == found


def pipelines(data: bytes) -> None:
    pipeline.parse(text(data), environment={"A": "x", "B": "1: {"})


def scenarios(data: bytes) -> None:
    scenario_document.parse(text(data))


def sql(data: bytes) -> None:
    parse_script(text(data))


def commands(data: bytes) -> None:
    """Only the parsing of the arguments."""
    words = text(data).split()
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        cli._parsed(words)


def _scenario_files() -> Iterable[bytes]:
    found = sorted((ROOT / "conformance").rglob("*.yaml"))
    return [path.read_bytes()[:4000] for path in found[:3]] or [b"- scenario: a\n"]


TARGETS = (
    Target(
        "durations",
        durations,
        lambda: [b"1 hour 5 minutes", b"-3.5s", b"2025-03-14T12:00:19.5+01:00", b"P1D", b"1e9 ns"],
    ),
    Target("triggers", triggers, lambda: [one.encode() for one in TRIGGERS]),
    Target("pipelines", pipelines, lambda: [PIPELINE.read_bytes()]),
    Target(
        "scenarios",
        scenarios,
        _scenario_files,
        (TidegateError, scenario_document.UnsupportedScenarioError),
    ),
    Target("sql", sql, lambda: [one.encode() for one in SQL]),
    Target("commands", commands, lambda: [one.encode() for one in COMMANDS], (SystemExit,)),
)
