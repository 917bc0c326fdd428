"""The small query by which `tidegate doctor --spark` sees that everything works together."""

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
    """Two windows of three rows through a real pipeline; what it took, in words."""
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
            f"one pane that counts 2 rows must come out, got {found}. Hint: this is an error of"
            " Tidegate or Spark; report it"
        )
    return (
        "a session started and a stateful query gave the right pane, in"
        f" {time.monotonic() - began:.0f} s"
    )
