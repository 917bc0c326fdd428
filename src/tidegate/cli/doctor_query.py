"""The end-to-end query of `tidegate doctor --spark`."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.errors import SetupError
from tidegate.pipeline import parse
from tidegate.spark.environment.session import running_session

_PIPELINE = """
input: {type: parquet, folder: events, time: ts, key: user}
window: tumbling(1 minute)
aggregate: {n: count}
write: {to: parquet(panes), late: noop, checkpoint: checkpoint, trigger: available_now}
session: {cores: 2}
"""


def small_query() -> str:
    """Run three rows in two windows through a real pipeline, and describe the result."""
    began, shared = time.monotonic(), running_session() is not None
    with tempfile.TemporaryDirectory(prefix="tidegate-doctor-") as name:
        folder = Path(name)
        (folder / "events").mkdir()
        times = pa.array([0, 1_000_000, 90_000_000], pa.timestamp("us", "UTC"))
        pq.write_table(
            pa.table({"ts": times, "user": ["a", "a", "b"]}), folder / "events" / "events.parquet"
        )
        pipeline = parse(_PIPELINE, name="doctor", folder=folder)
        spark = pipeline.session()
        try:
            pipeline.start(spark).await_termination()
            files = list((folder / "panes").rglob("*.parquet"))
            found = [
                count
                for file in files
                for count in pq.read_table(file, partitioning=None)["n"].to_pylist()
            ]
        finally:
            if not shared:
                spark.stop()
    if found != [2]:
        raise SetupError(
            f"the query must emit one pane that counts 2 rows, got {found}. Hint: this is a bug in"
            " Tidegate or Spark; please report it"
        )
    return (
        "a session started and a stateful query emitted the right pane, in"
        f" {time.monotonic() - began:.0f} s"
    )
