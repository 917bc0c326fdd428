"""One step of the Spark benchmark: the equality check or the run of one side.

Every step runs in its own process with its own session, so that the second side does not profit
from what the JVM compiled for the first, and memory is measured separately.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.spark_data import Events
from bench.spark_sides import OURS, Run, Say, Shape
from tidegate.errors import SetupError, TidegateError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROGRESS, _RESULT, _FAILED = (
    "tidegate-bench progress ",
    "tidegate-bench result ",
    "tidegate-bench failed ",
)
_LINES = 40


@dataclass(frozen=True)
class Job:
    """A step, as it is passed to its process."""

    shape: Shape
    events: Events
    """Data in the folder, or data of the equality check."""
    side: str | None = None
    """The side to run; None runs the equality check."""
    folder: str = ""
    memory: str = "8g"
    cores: int | None = None
    profile: str | None = None
    warm: int = 0
    """Number of small warm-up batches."""
    spawned: float = 0.0
    """When its process was started."""

    @property
    def needs_kafka(self) -> bool:
        """Whether Spark's own Kafka source is read."""
        return self.shape.format == "kafka" and (self.side != OURS or not self.shape.direct)

    @classmethod
    def from_text(cls, text: str) -> Job:
        document = json.loads(text)
        events = {**document["events"], "inputs": tuple(document["events"]["inputs"])}
        return cls(**{**document, "shape": Shape(**document["shape"]), "events": Events(**events)})


def do(job: Job, spark: SparkSession, say: Say) -> dict[str, Any]:
    """Run a step in a session."""
    from bench import spark_check, spark_sides

    if job.side is None:
        source = Path(job.folder) if job.folder else None
        return {"panes": spark_check.check(spark, job.shape, job.events, source)}
    if job.warm:
        say(f"{job.side} warms up over {job.warm} small batches")
        small = job.events.small(job.warm * spark_sides.FILES_A_BATCH)
        spark_sides.warm(spark, job.side, job.shape, small, Path(job.folder))
    found = spark_sides.run(spark, job.side, job.shape, Path(job.folder), say)
    return replace(found, process_seconds=time.time() - job.spawned).to_dict()


def apart(job: Job, say: Say) -> dict[str, Any]:
    """Run a step in its own process and forward its progress."""
    command = [
        sys.executable,
        "-m",
        "bench.spark_job",
        json.dumps(asdict(replace(job, spawned=time.time()))),
    ]
    rest: deque[str] = deque(maxlen=_LINES)
    result: dict[str, Any] | None = None
    failed = None
    with subprocess.Popen(  # noqa: S603 - this program itself
        command,
        cwd=Path(__file__).resolve().parent.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as child:
        try:
            for line in child.stdout or ():
                if line.startswith(_PROGRESS):
                    say(line.removeprefix(_PROGRESS).rstrip())
                elif line.startswith(_RESULT):
                    result = json.loads(line.removeprefix(_RESULT))
                elif line.startswith(_FAILED):
                    failed = json.loads(line.removeprefix(_FAILED))
                elif line.strip():
                    rest.append(line)
        except BaseException:
            child.terminate()
            raise
    if failed is not None:
        raise SetupError(failed)
    if result is None:
        output = "".join(rest)
        raise SetupError(
            f"a benchmark process exited with status {child.returncode}:\n{output}Hint: run"
            " `tidegate doctor --spark`"
        )
    return result


def run_of(result: dict[str, Any]) -> Run:
    """The measurements in the result of `do`."""
    return Run(**result)


def main(text: str) -> None:
    """Run a step in a new session."""
    from tidegate.spark.environment.session import UNIX_SOCKETS, session

    job = Job.from_text(text)
    try:
        if job.profile is not None:
            from bench import spark_profile

            spark_profile.install(Path(job.profile))
        spark = session(
            "tidegate bench",
            cores=job.cores,
            memory=job.memory,
            conf=UNIX_SOCKETS,
            kafka=job.needs_kafka,
        )
        try:
            result = do(job, spark, lambda line: print(f"{_PROGRESS}{line}", flush=True))
        finally:
            spark.stop()
    except TidegateError as error:
        print(f"{_FAILED}{json.dumps(str(error))}", flush=True)
        sys.exit(2)
    print(f"{_RESULT}{json.dumps(result)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
