"""The servers that tests use: they end with the tests, and Spark reaches them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.services.processes import Process
from tidegate.errors import SetupError
from tidegate.spark.environment import jars
from tidegate.spark.environment.java import Java

STARTER = """
import sys, time
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from support.services.processes import Process
sleeper = Process("sleeper", ["sleep", "600"], Path(sys.argv[1]))
print(sleeper.pid, flush=True)
time.sleep(600)
"""

COPIER = """
import sys
from tidegate.spark.environment.jars import kafka_jars
from tidegate.spark.environment.session import session
servers, folder = sys.argv[1:]
spark = session(cores=2, memory="1g", conf={"spark.jars": ",".join(map(str, kafka_jars()))})
source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", "copied")
rows = source.option("startingOffsets", "earliest").load()
target = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", "copy")
target.option("checkpointLocation", folder).trigger(availableNow=True).start().awaitTermination()
"""


def gone(pid: int) -> bool:
    """Whether the process has ended; one that nobody has waited for yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def until(happened, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_server_ends_when_the_tests_are_killed(tmp_path, repository):
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, tmp_path / "log", repository / "tests"],
        stdout=subprocess.PIPE,
        text=True,
    )
    pid = int(starter.stdout.readline())
    assert not gone(pid)
    os.kill(starter.pid, signal.SIGKILL)
    starter.wait()
    starter.stdout.close()
    until(lambda: gone(pid))


def test_a_server_that_does_not_start_shows_its_log(tmp_path):
    process = Process("the broken one", ["sh", "-c", "echo the reason; exit 3"], tmp_path / "log")
    with pytest.raises(
        RuntimeError, match=r"the broken one ended with 3 while it started:\nthe reason"
    ):
        process.wait_until(lambda: False, 30)
    process.stop()


def test_the_connector_is_that_of_pyspark():
    import pyspark

    assert jars.kafka_packages() == (
        f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}",
    )
    assert jars.kafka_packages("4.1.1") == ("org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1",)


def test_what_was_fetched_is_not_fetched_again_and_what_is_not_there_is_told(tmp_path, monkeypatch):
    asked: list[list[str]] = []

    def ivy(command, **_options):
        asked.append(command)
        wanted = Path(command[command.index("-ivy") + 1]).read_text("utf-8")
        if "missing" in wanted:
            return subprocess.CompletedProcess(command, 1, "\t\t:: a#missing;1: not found\n", "")
        folder = Path(command[command.index("-retrieve") + 1]).parent
        folder.mkdir()
        (folder / "there-1.jar").write_bytes(b"")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(jars.subprocess, "run", ivy)
    monkeypatch.setattr(jars, "find_java", lambda: Java("java", 17, "PATH"))
    for _ in range(2):
        assert [jar.name for jar in jars.fetch(["a:there:1"], tmp_path)] == ["there-1.jar"]
    assert len(asked) == 1
    with pytest.raises(
        SetupError,
        match=r"a:missing:1 cannot be downloaded: the registry lacks a#missing;1\. Hint: ",
    ):
        jars.fetch(["a:missing:1"], tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a_there_1"]


@pytest.mark.kafka
@pytest.mark.slow
def test_spark_reads_and_writes_kafka(kafka, tmp_path):
    kafka.create_topic("copied", 2)
    kafka.create_topic("copy", 2)
    kafka.produce(
        "copied", [{"key": str(number), "value": {"number": number}} for number in range(20)]
    )
    subprocess.run(
        [sys.executable, "-c", COPIER, kafka.bootstrap_servers, tmp_path / "checkpoint"],
        check=True,
        timeout=300,
    )
    assert sorted(message.json["number"] for message in kafka.consume("copy")) == list(range(20))
