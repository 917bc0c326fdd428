"""Faults under a query that runs: Python workers and executors die, disks are full, sinks fail;
afterwards nothing is lost and nothing is twice.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from test_torture import PATIENCE, Driver, finish

import tidegate as tg
from support.services.postgres import PostgresServer, postgres_server
from support.services.processes import Process, ServiceUnavailable
from support.spark_streams import SECOND, Row
from support.torture_worker import (
    ENDED,
    Orders,
    Sender,
    Truth,
    compare,
    join_of,
    overwriting,
    panes_of,
    started,
)
from tidegate.errors import SetupError, SinkError

pytestmark = pytest.mark.slow

SEED = 11
FILES = 8


@pytest.fixture
def sent(tmp_path) -> list[Row]:
    """All rows, which are in the folder `in`."""
    sender = Sender(tmp_path / "in", SEED)
    sender.put(FILES)
    sender.close()
    return sender.rows


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def failed(spark, tmp_path: Path, kind: str, told: str, **more: Any) -> None:
    """Run the query into a fault that ends it."""
    query = started(spark, Orders(str(tmp_path)), kind, **more)
    wait_for(lambda: not query.is_active)
    assert told in str(query.exception())


def mended(spark, tmp_path: Path, kind: str, sent: list[Row], **more: Any) -> None:
    """Start the query again, and hold what it wrote against the truth."""
    query = started(spark, Orders(str(tmp_path)), kind, trigger="available_now", **more)
    query.await_termination()
    compare(tmp_path, kind, Truth(sent))


# Processes


def holding(folder: Path, number: int) -> Callable[[pa.Table], None]:
    """A function that tells who runs it and waits, once, when the rows of one file come to it; it
    brings along what it needs.
    """

    def hold(table: pa.Table) -> None:
        import os
        import time

        if (
            any(seq // 60 == number for seq in table.column("seq").to_pylist())
            and not (folder / "went-on").exists()
        ):
            (folder / "draft").write_text(str(os.getpid()))
            (folder / "draft").replace(folder / "held")
            while not (folder / "went-on").exists():
                time.sleep(0.02)

    return hold


def children(pid: int) -> list[int]:
    """The processes that a process has started and that run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(parent) == pid and state != "Z":
                found.append(int(entry.name))
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("where", ["edge", "operator", "join"])
def test_python_workers_that_are_killed_in_a_batch_lose_nothing(spark, tmp_path, sent, where):
    hold = holding(tmp_path, 4)

    def owner(table):
        hold(table)
        return table.column("user")

    def size(table):
        hold(table)
        return table.num_rows

    def condition(pairs):
        hold(pairs.rename_columns([name.removeprefix("left_") for name in pairs.column_names]))
        return pa.repeat(True, pairs.num_rows)

    kind = "join" if where == "join" else "tumbling"
    if where == "join":
        panes = join_of(spark, tmp_path / "in", where=condition)
    else:
        key, more = (
            (owner, {})
            if where == "edge"
            else ("user", {"size": tg.apply(size, pa.int64(), ["seq"])})
        )
        panes = panes_of(spark, tmp_path / "in", "tumbling", key=key, **more)
    query = started(spark, Orders(str(tmp_path)), kind, panes=panes)
    wait_for((tmp_path / "held").exists)
    worker = int((tmp_path / "held").read_text())
    # Workers are forked from a process that they have in common; those that rest are killed too.
    doomed = children(parent(worker))
    assert worker in doomed
    for pid in doomed:
        # One that rests may end by itself.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    (tmp_path / "went-on").touch()
    # In local mode a task that has failed is not tried again, so the query ends.
    wait_for(lambda: not query.is_active)
    assert "Python worker exited unexpectedly" in str(query.exception())
    started(
        spark, Orders(str(tmp_path)), kind, panes=panes, trigger="available_now"
    ).await_termination()
    compare(tmp_path, kind, Truth(sent), key="owner" if where == "edge" else "user")


@pytest.mark.cluster
def test_an_executor_of_a_cluster_that_is_killed_is_replaced_and_nothing_is_lost(
    cluster, tmp_path, sent
):
    files = sorted((tmp_path / "in").glob("*.parquet"))
    (tmp_path / "later").mkdir()
    for file in files[4:]:
        file.rename(tmp_path / "later" / file.name)
    orders = Orders(
        str(tmp_path),
        kinds=["tumbling"],
        master=cluster.url,
        conf={"spark.executor.memory": "512m"},
    )
    driver = Driver(orders, tmp_path / "driver.log")
    try:
        driver.wait_for(lambda: driver.said("batches"))
        for file in files[4:]:
            (tmp_path / "later" / file.name).rename(file)
            victims = cluster.executors()
            if file == files[5] and victims:
                os.kill(victims[0], signal.SIGKILL)
                driver.wait_for(lambda dead=victims[0]: len({*cluster.executors()} - {dead}) == 2)
        (tmp_path / "enough").touch()
        driver.wait_for(lambda: driver.said(ENDED))
        if not driver.said(ENDED):
            assert driver.died_by_itself(), driver.process.tail(100)
            finish(dataclasses.replace(orders, ends=True), tmp_path / "last.log")
    finally:
        driver.kill()
    compare(tmp_path, "tumbling", Truth(sent))


# Disks


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of its own with 24 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", place],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip(f"a disk that can be full needs the right to mount one: {made.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def fill(file: Path) -> None:
    """Write until there is no room any more."""
    with file.open("wb", buffering=0) as ballast:
        while True:
            ballast.write(bytes(4096))


def test_a_full_disk_ends_the_query_and_it_goes_on_when_there_is_room(
    spark, tmp_path, sent, small_disk
):
    (tmp_path / "tumbling").mkdir()
    (tmp_path / "tumbling" / "checkpoint").symlink_to(small_disk, target_is_directory=True)
    query = started(spark, Orders(str(tmp_path)), "tumbling")
    wait_for(lambda: len(query.recent_progress) >= 2 or not query.is_active)
    with pytest.raises(OSError, match="No space left"):
        fill(small_disk / "ballast")
    wait_for(lambda: not query.is_active)
    assert "No space left" in str(query.exception())
    with pytest.raises(SetupError, match="No space left"):
        started(spark, Orders(str(tmp_path)), "tumbling")
    (small_disk / "ballast").unlink()
    mended(spark, tmp_path, "tumbling", sent)


# Sinks


@pytest.mark.parametrize("kind", ["sessions", "join"])
def test_a_sink_that_fails_for_a_while_gets_every_batch_once(spark, tmp_path, sent, kind):
    """It fails before it writes, then after it has written, then works."""
    trouble = tmp_path / "trouble"
    write = overwriting(tmp_path / kind / "panes")

    def unreliable(frame, batch):
        if trouble.exists() and trouble.read_text() == "before" and batch >= 2:
            raise ConnectionError("the sink is away")
        write(frame, batch)
        if trouble.exists() and trouble.read_text() == "after" and batch >= 3:
            raise ConnectionError("the sink went away")

    sink = tg.sinks.foreach_batch(unreliable)
    trouble.write_text("before")
    failed(spark, tmp_path, kind, "the sink is away", to=sink)
    failed(spark, tmp_path, kind, "the sink is away", to=sink)
    trouble.write_text("after")
    failed(spark, tmp_path, kind, "the sink went away", to=sink)
    trouble.unlink()
    mended(spark, tmp_path, kind, sent, to=sink)


def test_waiting_for_everything_ends_when_it_is_written_and_tells_a_failure(spark, tmp_path, sent):
    query = started(spark, Orders(str(tmp_path)), "sessions")
    waiting = threading.Thread(target=query.process_all_available, daemon=True)
    waiting.start()
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
    assert query.is_active
    query.stop()
    compare(tmp_path, "sessions", Truth(sent))

    def broken(frame, batch):
        raise ConnectionError("the sink is away")

    other = started(spark, Orders(str(tmp_path)), "tumbling", to=tg.sinks.foreach_batch(broken))
    with pytest.raises(StreamingQueryException, match="the sink is away"):
        other.process_all_available()


def restart(server: PostgresServer) -> Process:
    """Start a server again that was stopped, in the same folder and on the same port."""
    import psycopg

    account = server.process.log.parent.stat().st_uid if os.geteuid() == 0 else None
    process = Process("PostgreSQL", server.process._server.args, server.process.log, user=account)

    def ready() -> bool:
        try:
            server.query("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    process.wait_until(ready, PATIENCE)
    return process


@pytest.mark.postgres
def test_a_database_that_is_stopped_and_started_has_every_pane_once(spark, tmp_path, sent):
    files = sorted((tmp_path / "in").glob("*.parquet"))
    (tmp_path / "later").mkdir()
    for file in files[4:]:
        file.rename(tmp_path / "later" / file.name)
    truth = Truth(sent)
    try:
        running = postgres_server()
        server = running.__enter__()
    except ServiceUnavailable as unavailable:
        pytest.skip(str(unavailable))
    again = None
    try:
        sink = tg.sinks.postgres(server.dsn, "panes")
        query = started(spark, Orders(str(tmp_path)), "tumbling", to=sink)
        wait_for(lambda: len(query.recent_progress) >= 2 or not query.is_active)
        server.process.stop(signal.SIGINT)
        for file in files[4:]:
            (tmp_path / "later" / file.name).rename(file)
        wait_for(lambda: not query.is_active)
        assert "cannot be reached, or was lost" in str(query.exception())
        with pytest.raises(SinkError, match="cannot be reached"):
            started(spark, Orders(str(tmp_path)), "tumbling", to=sink)
        again = restart(server)
        started(
            spark, Orders(str(tmp_path)), "tumbling", trigger="available_now", to=sink
        ).await_termination()
        rows = server.query(
            'SELECT "user", extract(epoch FROM window_start), extract(epoch FROM window_end), n,'
            " total FROM panes"
        )
        found = [
            (user, int(start * SECOND), int(end * SECOND), n, int(total))
            for user, start, end, n, total in rows
        ]
        assert sorted(found) == sorted(truth.panes("tumbling"))
    finally:
        if again is not None:
            again.stop(signal.SIGINT)
        running.__exit__(None, None, None)
