"""Generated data of the Spark benchmark: files of disordered events, read in order."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from bench.traffic import SECOND, SPAN, START, TIME

DISORDER = 3 * SECOND
"""Mean delay of an event; the delay is exponential."""
DELAY = 10 * SECOND
"""Distance of both sides' watermark from the newest event."""
SCHEMA = "key long, ts timestamp, value double"
TEXT_SCHEMA = "key string, ts timestamp, value double, note string"
"""With text keys, and a second text that no window reads."""
LATE = (15 * SECOND, 45 * SECOND)
"""How far behind late events are, beside their delay."""
NOTES = 10_000
"""Number of different values of the column `note`."""
INPUTS = ("left", "right")
"""The folders of the two inputs of a join."""
HOT = 7
"""The hot key, if there is one."""


@dataclass(frozen=True)
class Events:
    """Description of the generated files."""

    files: int
    rows: int
    """Rows per file."""
    keys: int
    is_late: bool = True
    """Whether some events arrive behind the watermark. The two sides treat those differently, so
    equality is checked without them.
    """
    span: int = SPAN
    """Event time that a file covers."""
    inputs: tuple[str, ...] = ()
    """Folders of the inputs, if there are several; each has `files` files."""
    hot: float = 0.0
    """Share of all events that belong to one key. They are in the first input only: in both, the
    number of pairs would grow quadratically.
    """
    text: bool = False
    """Whether keys are texts of 22 characters, with a power law of their frequencies, and there is
    a second text column.
    """
    late: float = 0.0
    """Share of events that are behind the others."""
    format: str = "parquet"

    @property
    def schema(self) -> str:
        """The columns, as DDL."""
        return TEXT_SCHEMA if self.text else SCHEMA

    @property
    def total(self) -> int:
        """Number of events of all inputs."""
        return self.files * self.rows * max(1, len(self.inputs))

    def small(self, files: int = 8) -> Events:
        """A small version without late events, with few enough rows that every key has gaps."""
        return replace(self, files=files, rows=1_000, keys=500, is_late=False)


def write(folder: Path, events: Events) -> None:
    """Generate the files, the same in every run."""
    hot = events.hot * max(1, len(events.inputs))
    for number, name in enumerate(events.inputs or (".",)):
        _write(
            folder / name, events, np.random.default_rng(7 + number), hot if number == 0 else 0.0
        )


def _write(folder: Path, events: Events, random: np.random.Generator, hot: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = text_keys(events.keys) if events.text else None
    for number in range(events.files):
        path = folder / f"{number:04d}.{events.format}"
        _WRITERS[events.format](table(events, number, random, hot, names), path)
        # Sources read files in order of modification time.
        os.utime(path, (START // SECOND + number, START // SECOND + number))


def text_keys(keys: int) -> pa.Array:
    """The text of each key: 22 characters without a common start."""
    words = np.arange(keys, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return pa.array([f"{int(word):022x}"[::-1] for word in words])


def table(
    events: Events,
    number: int,
    random: np.random.Generator,
    hot: float = 0.0,
    names: pa.Array | None = None,
) -> pa.Table:
    """The events of a file. `names`: the texts of the keys."""
    delay = random.exponential(DISORDER, events.rows).astype(np.int64)
    if not events.is_late:
        delay = np.minimum(delay, DELAY - SECOND)
    times = START + number * events.span + random.integers(0, events.span, events.rows) - delay
    if events.late and events.is_late:
        behind = random.random(events.rows) < events.late
        times[behind] -= random.integers(*LATE, int(behind.sum()))
    if names is None:
        keys = random.integers(0, events.keys, events.rows)
    else:
        keys = (events.keys * random.random(events.rows) ** 3).astype(np.int64)
    if hot:
        keys[random.random(events.rows) < hot] = HOT % events.keys
    columns = {
        "key": pa.array(keys) if names is None else names.take(pa.array(keys)),
        "ts": pa.array(times).cast(TIME),
        "value": pa.array(random.random(events.rows).round(6)),
    }
    if names is not None:
        notes = [f"https://example.org/pages/{n:05d}?from=search" for n in range(NOTES)]
        columns["note"] = pa.array(notes).take(pa.array(random.integers(0, NOTES, events.rows)))
    return pa.table(columns)


def json_lines(found: pa.Table) -> pa.Array:
    """The rows as JSON objects."""
    parts: list[Any] = []
    for n, name in enumerate(found.column_names):
        column = found.column(name).combine_chunks()
        is_text = not pa.types.is_floating(column.type) and not pa.types.is_integer(column.type)
        quote = '"' if is_text else ""
        parts += [f'{", " if n else "{"}"{name}": {quote}', as_text(column), quote]
    return pc.binary_join_element_wise(*parts, "}", "")


def as_text(column: pa.Array) -> pa.Array:
    """The values as text; instants in ISO form."""
    if pa.types.is_timestamp(column.type):
        return pc.strftime(column, format="%Y-%m-%dT%H:%M:%SZ")
    return column.cast(pa.string())


def _write_json(found: pa.Table, path: Path) -> None:
    path.write_text("\n".join(map(str, json_lines(found).to_pylist())) + "\n")


def _write_csv(found: pa.Table, path: Path) -> None:
    at = found.column_names.index("ts")
    arrow_csv.write_csv(
        found.set_column(at, "ts", as_text(found.column("ts").combine_chunks())), path
    )


_WRITERS: dict[str, Callable[[pa.Table, Path], None]] = {
    "parquet": pq.write_table,
    "csv": _write_csv,
    "json": _write_json,
}
