"""Samples of a query on Spark: tasks, shards and cores.

A file is a task, because opening a file counts as much as a whole task may read. The queries run in
a process of their own: `python -m bench.scaling.spark_runs JOB`, which prints a sample per line.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.scaling.samples import SPARK, Sample
from bench.spark_data import SCHEMA, Events, write
from bench.spark_sides import OURS, Shape, read_batch
from bench.spark_usage import Usage
from bench.traffic import SPAN
from tidegate.api.streams import Panes, stream
from tidegate.errors import SetupError
from tidegate.spec.aggregates import count
from tidegate.spec.aggregates import max as largest
from tidegate.spec.aggregates import sum as total
from tidegate.spec.watermarks import bounded
from tidegate.spec.windows import tumbling

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SKIPPED, MEASURED = 2, 4
"""The first batches start workers and create state."""
WARM_UP = 15
KEYS = 1_000
_ROOT = Path(__file__).resolve().parents[2]
_OPEN = str(64 << 20)
_CONF = {"spark.sql.files.openCostInBytes": _OPEN, "spark.sql.files.maxPartitionBytes": _OPEN}


@dataclass(frozen=True)
class Layout:
    """A query: its numbers of tasks and shards, and the rows of a batch."""

    factor: str
    tasks: int = 2
    shards: int = 2
    rows: int = 200_000
    cores: int = 2


BASE = Layout("")
TASKS_AND_SHARDS = [
    Layout("tasks", tasks=2),
    Layout("tasks", tasks=8),
    Layout("tasks", tasks=32),
    Layout("shards", shards=8),
    Layout("shards", shards=32),
    Layout("tasks and shards", tasks=8, shards=8),
    Layout("tasks and shards", tasks=32, shards=32),
]
CORES = [
    Layout("cores", tasks=4, shards=4, rows=2_000_000, cores=1),
    Layout("cores", tasks=4, shards=4, rows=2_000_000, cores=2),
]


def measure(layouts: Sequence[Layout], memory: str) -> Iterator[Sample]:
    """The samples of queries with the same number of cores, in one session."""
    job = {"memory": memory, "layouts": [asdict(one) for one in layouts]}
    command = [sys.executable, "-m", "bench.scaling.spark_runs", json.dumps(job)]
    done = subprocess.run(  # noqa: S603 - this program itself
        command, cwd=_ROOT, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode != 0:
        lines = [*done.stdout.splitlines(), *done.stderr.splitlines()][-40:]
        raise SetupError("a benchmark process failed:\n" + "\n".join(lines))
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            yield Sample(**json.loads(line))


def _run(spark: SparkSession, layout: Layout, batches: int) -> Sample:
    """The cost of a batch of a query, without its first batches."""
    events = Events(layout.tasks * batches, max(1, layout.rows // layout.tasks), KEYS)
    # The files of one batch cover the time of one.
    events = replace(events, span=max(1, SPAN // layout.tasks))
    from tidegate.spark.sinks import noop

    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as place, Usage() as usage:
        write(Path(place) / "events", events)
        rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", layout.tasks)
        query = _panes(rows.parquet(f"{place}/events")).write(
            noop(),
            late=noop(),
            checkpoint=f"{place}/checkpoint",
            trigger="available_now",
            shards=layout.shards,
        )
        query.await_termination()
        progress = [] if query.spark_query is None else query.spark_query.recentProgress
    found = [read_batch(OURS, Shape("tumbling"), given) for given in progress]
    counted = [batch for batch in found if batch.events][SKIPPED:]
    many = max(1, len(counted))
    seconds = usage.seconds_between(counted[0].begin, counted[-1].end) if counted else 0.0
    counts = {
        "batches": 1.0,
        "rows": sum(batch.events for batch in counted) / many,
        "tasks": float(layout.tasks),
        "shards": float(layout.shards),
    }
    value = layout.cores if layout.factor == "cores" else layout.tasks + layout.shards
    wall = sum(batch.milliseconds for batch in counted) / many / 1e3
    return Sample(SPARK, layout.factor, value, seconds / many, counts, wall)


def _panes(rows: DataFrame) -> Panes:
    windowed = stream(rows, time="ts", key="key", watermark=bounded("10 seconds")).window(
        tumbling("1 minute")
    )
    return windowed.aggregate(n=count(), total=total("value"), top=largest("value"))


def main(text: str) -> None:
    """Run the queries of a job and print their samples."""
    from tidegate.spark.environment.session import UNIX_SOCKETS, session

    job = json.loads(text)
    layouts = [Layout(**one) for one in job["layouts"]]
    conf = {**UNIX_SOCKETS, **_CONF}
    spark = session("tidegate bench", cores=layouts[0].cores, memory=job["memory"], conf=conf)
    try:
        _run(spark, replace(BASE, rows=2_000), WARM_UP)
        for layout in layouts:
            found = _run(spark, layout, SKIPPED + MEASURED)
            print(json.dumps(asdict(found)), flush=True)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
