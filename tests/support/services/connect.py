"""A private Spark Connect server, from the installed PySpark."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.services.cluster import spark_environment, spark_home
from support.services.processes import Process, accepts, free_ports
from tidegate.spark.environment.session import RUNTIME_CONF

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@dataclass
class ConnectServer:
    """A running server: its address for `tidegate.session(remote=...)`."""

    url: str
    process: Process


@contextmanager
def connect_server(conf: Mapping[str, str] | None = None) -> Iterator[ConnectServer]:
    """Run a server with two local cores until the end of the block."""
    folder = Path(tempfile.mkdtemp(prefix="tidegate-connect-"))
    process = None
    try:
        (port,) = free_ports(1)
        settings = {
            **RUNTIME_CONF,
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": "-Xss16m",
            "spark.pyspark.python": sys.executable,
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.ui.enabled": "false",
            **(conf or {}),
        }
        options = [
            part for name, value in settings.items() for part in ("--conf", f"{name}={value}")
        ]
        command = [
            spark_home() / "bin" / "spark-submit",
            "--class",
            SERVER,
            "--master",
            "local[2]",
            "--driver-memory",
            "1g",
            *options,
        ]
        process = Process(
            "Spark Connect", command, folder / "server.log", spark_environment(folder)
        )
        process.wait_until(lambda: accepts(port), 120)
        yield ConnectServer(f"sc://127.0.0.1:{port}", process)
    finally:
        if process is not None:
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)
