"""Races the Nexmark queries: Tidegate on Spark against Flink SQL over the same events."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.nexmark import answers, flink_job, generator
from bench.nexmark.queries import DELAY, QUERIES, Query
from bench.nexmark.spark_job import FILES_A_BATCH
from bench.spark_usage import Usage
from tidegate.errors import SetupError, SpecError

EVENTS, FILES = 12_000_000, 24
HEAP, ROCKSDB = "flink heap", "flink rocksdb"
AIMS = {HEAP: 2.0, ROCKSDB: 4.0}
OURS = "tidegate"
NAMES = list(QUERIES)
_ROOT = Path(__file__).resolve().parents[2]
_LINES = 40
Say = Callable[[str], None]


@dataclass(frozen=True)
class Raced:
    """The result of one query."""

    query: Query
    events: int
    seconds: dict[str, float]
    """Seconds from the start of the query to its end, by side."""
    processor: dict[str, float]
    """Processor seconds of all processes of a side, with their start; empty without /proc."""
    checked: int | None
    """Number of rows of complete windows that were equal on all sides; None on the clock."""

    def ratio(self, side: str) -> float | None:
        """Our throughput over that of a side of Flink; None where it did not run."""
        return self.seconds[side] / self.seconds[OURS] if side in self.seconds else None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "name": self.query.name,
            "ratio": self.ratio(HEAP),
            "aim": AIMS[HEAP],
            "rocksdb_ratio": self.ratio(ROCKSDB),
            "rocksdb_aim": AIMS[ROCKSDB],
            "seconds": self.seconds,
            "processor_seconds": self.processor,
            "events": self.events,
            "events_per_second": {
                side: self.events / seconds for side, seconds in self.seconds.items()
            },
            "checked_rows": self.checked,
        }


HEAD = f"{'query':<8}{'ratio':>7}{'aim':>6}   {'rocksdb':>8}{'aim':>6}   seconds per side"


def line(raced: Raced) -> str:
    """The result as a line of a table."""
    cells = []
    for side, width in ((HEAP, 7), (ROCKSDB, 8)):
        ratio = raced.ratio(side)
        cells.append(f"{'-' if ratio is None else f'{ratio:.2f}':>{width}}{AIMS[side]:>6.1f}")
    seconds = ", ".join(f"{side} {taken:.1f}" for side, taken in raced.seconds.items())
    return f"{raced.query.name:<8}{'   '.join(cells)}   {seconds}"


def named(names: str | None) -> list[str]:
    """The names of the queries in a comma-separated list; all without one."""
    chosen = NAMES if names is None else names.split(",")
    unknown = [name for name in chosen if name not in QUERIES]
    if unknown:
        raise SpecError(f"there is no query `{unknown[0]}`. Hint: use one of {', '.join(QUERIES)}")
    return chosen


def flink_python() -> str | None:
    """The interpreter that has apache-flink: `FLINK_PYTHON`, or the environment of the Makefile."""
    found = os.environ.get("FLINK_PYTHON") or str(_ROOT / ".venv-flink" / "bin" / "python")
    try:
        done = subprocess.run(  # noqa: S603 - the user's own interpreter
            [found, "-c", "import pyflink"], capture_output=True, check=False
        )
    except OSError:
        return None
    return found if done.returncode == 0 else None


def race(
    names: Sequence[str], say: Say, *, events: int = EVENTS, cores: int = 2, memory: str = "8g"
) -> Iterator[Raced]:
    """Run each query on all sides, one after the other, each in a process of its own."""
    flink = flink_python()
    if flink is None:
        say("Flink is skipped: no interpreter has apache-flink. Hint: set FLINK_PYTHON")
    with tempfile.TemporaryDirectory(prefix="tidegate-nexmark-") as place:
        folder = Path(place)
        files = max(1, min(FILES, events // generator.GROUP))
        say(f"generating {events:,} events")
        generator.write(folder / "events", events, files)
        if flink is not None:
            generator.halves(folder / "events", folder / "halves", cores)
        for name in names:
            yield _raced(QUERIES[name], folder, flink, say, events, cores, memory)


def _raced(
    query: Query,
    folder: Path,
    flink: str | None,
    say: Say,
    events: int,
    cores: int,
    memory: str,
) -> Raced:
    output = folder / query.name
    job = {
        "query": query.name,
        "folder": str(folder / "events"),
        "output": str(output / "tidegate"),
        "cores": cores,
        "memory": memory,
        "files_per_batch": FILES_A_BATCH,
    }
    say(f"{query.name}: {OURS}")
    processor: dict[str, float] = {}
    command = [sys.executable, "-m", "bench.nexmark.spark_job", json.dumps(job)]
    seconds = {OURS: _run(OURS, command, processor)}
    found = {OURS: answers.of_tidegate(query, output / "tidegate")}
    if flink is not None:
        for side in AIMS:
            say(f"{query.name}: {side}")
            place = output / side.replace(" ", "-")
            text = json.dumps(_flink_job(query, folder, place, side, cores))
            seconds[side] = _run(side, [flink, flink_job.__file__, text], processor)
            found[side] = answers.of_flink(query, place / "answers")
    return Raced(query, events, seconds, processor, _checked(query, found, events))


def _flink_job(query: Query, folder: Path, place: Path, side: str, cores: int) -> dict[str, Any]:
    rocksdb = {
        "state.backend.type": "rocksdb",
        "execution.checkpointing.interval": "5 s",
        "execution.checkpointing.dir": (place / "checkpoints").as_uri(),
    }
    return {
        "tables": {
            kind: {
                "path": str(folder / "halves" / kind),
                "schema": generator.SCHEMAS[kind],
            }
            for kind in query.inputs
        },
        "delay": DELAY.split()[0],
        "select": query.flink,
        "columns": {name: sql for name, (sql, _) in answers.flink_types(query).items()},
        "output": str(place / "answers"),
        "parallelism": cores,
        "settings": rocksdb if side == ROCKSDB else {"state.backend.type": "hashmap"},
    }


def _checked(query: Query, found: dict[str, list[answers.Row]], events: int) -> int | None:
    if not query.is_exact:
        return None
    newest = generator.START + (events - 1) * 1_000 // generator.RATE
    delay = timedelta(seconds=int(DELAY.split()[0]))
    until = datetime.fromtimestamp(newest / 1_000, UTC).replace(tzinfo=None) - 2 * delay
    rows = {side: answers.complete(given, query, until) for side, given in found.items()}
    different = [side for side, given in rows.items() if given != rows[OURS]]
    if different:
        raise SetupError(
            f"{query.name}: {OURS} and {different[0]} differ, {len(rows[OURS])} and"
            f" {len(rows[different[0]])} rows; first differences:"
            f" {sorted(set(rows[OURS]) ^ set(rows[different[0]]))[:4]}"
        )
    return len(rows[OURS])


def _run(side: str, command: list[str], processor: dict[str, float]) -> float:
    """Run a job in a process and return the seconds that it reports in its last line."""
    with Usage() as usage:
        done = subprocess.run(  # noqa: S603 - this program itself
            command, cwd=_ROOT, capture_output=True, text=True, errors="replace", check=False
        )
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        output = "\n".join([*lines, *done.stderr.splitlines()][-_LINES:])
        raise SetupError(f"a benchmark process exited with status {done.returncode}:\n{output}")
    if usage.samples:
        processor[side] = round(usage.seconds_between(float("-inf"), float("inf")), 2)
    return float(json.loads(lines[-1])["seconds"])
