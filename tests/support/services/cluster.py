"""A private Spark cluster: a master and two workers, from the installed PySpark."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.services.processes import PATIENT, SHORT_LIVED, Process, ServiceUnavailable, free_ports
from tidegate.spark.environment.java import find_java

WORKERS = 2
CORES_EACH = 1
MEMORY_EACH = "1g"


@dataclass
class SparkCluster:
    """A running cluster: its address for `tidegate.session(master=...)`, and its processes."""

    url: str
    page: str
    master: Process
    workers: list[Process]

    def state(self) -> dict[str, Any]:
        """What the master knows of its workers and applications."""
        with urllib.request.urlopen(f"{self.page}/json/", timeout=5) as answer:  # noqa: S310 - our own server
            return json.loads(answer.read())

    def executors(self) -> list[int]:
        """The process ids of the executors that run now, in no stable order: a test may kill
        one.
        """
        return [
            pid
            for pid, command in _commands().items()
            if "CoarseGrainedExecutorBackend" in command and self._is_ours(pid)
        ]

    def _is_ours(self, pid: int) -> bool:
        """Whether a worker of this cluster started it: a worker and its executors are one process
        group.
        """
        try:
            return os.getpgid(pid) in {worker.pid for worker in self.workers}
        except ProcessLookupError:
            return False

    def alive(self) -> int:
        """How many workers the master counts on."""
        try:
            # A page that is still being built is not JSON yet.
            return int(self.state()["aliveworkers"])
        except (urllib.error.URLError, ConnectionError, TimeoutError, ValueError):
            return 0


def _commands() -> dict[int, str]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
            except OSError:
                continue
    return found


def spark_home() -> Path:
    """The folder of the installed PySpark, which is a whole Spark."""
    if find_java() is None:
        raise ServiceUnavailable("Spark needs Java, and there is none")
    import pyspark

    return Path(pyspark.__file__).parent


def spark_environment(folder: Path) -> dict[str, str]:
    """The environment of a Spark server: this Python, loopback only, and nothing outside
    `folder`.
    """
    # What is meant for sessions of the tests is not meant for servers.
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SPARK_", "PYSPARK_"))
    }
    return kept | {
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": " ".join(SHORT_LIVED + PATIENT),
        "SPARK_DAEMON_JAVA_OPTS": " ".join(SHORT_LIVED),
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_WORKER_DIR": str(folder / "work"),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


@contextmanager
def spark_cluster() -> Iterator[SparkCluster]:
    """Run a master and two workers of one core each until the end of the block."""
    launcher = spark_home() / "bin" / "spark-class"
    folder = Path(tempfile.mkdtemp(prefix="tidegate-cluster-"))
    environment = spark_environment(folder) | {"SPARK_DAEMON_MEMORY": "256m"}
    processes: list[Process] = []
    try:
        port, page, *ports = free_ports(2 + 2 * WORKERS)
        at = ["--host", "127.0.0.1"]
        master = Process(
            "the Spark master",
            [
                launcher,
                "org.apache.spark.deploy.master.Master",
                *at,
                "--port",
                str(port),
                "--webui-port",
                str(page),
            ],
            folder / "master.log",
            environment,
        )
        processes.append(master)
        cluster = SparkCluster(f"spark://127.0.0.1:{port}", f"http://127.0.0.1:{page}", master, [])
        for number in range(WORKERS):
            size = ["--cores", str(CORES_EACH), "--memory", MEMORY_EACH]
            where = ["--port", str(ports[2 * number]), "--webui-port", str(ports[2 * number + 1])]
            worker = [
                launcher,
                "org.apache.spark.deploy.worker.Worker",
                *at,
                *where,
                *size,
                cluster.url,
            ]
            cluster.workers.append(
                Process(
                    f"Spark worker {number}", worker, folder / f"worker-{number}.log", environment
                )
            )
            processes.append(cluster.workers[-1])
        master.wait_until(lambda: cluster.alive() == WORKERS, 90)
        yield cluster
    finally:
        for process in reversed(processes):
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)
