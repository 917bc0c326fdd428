"""`tidegate state`: what a query holds, seen from outside while it runs and after it was
stopped.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidegate as tg
from support.spark_streams import BASE, SECOND, Feed, Run, finished
from tidegate.cli import main
from tidegate.spark.environment.session import running_session
from tidegate.spark.query.settings import spark_settings
from tidegate.spark.query.state import query_state

SCHEMA = pa.schema({"user": pa.string(), "part": pa.string(), "ts": pa.timestamp("us", "UTC")})
DDL = "user string, part string, ts timestamp"


def rows(*given: tuple[str, str, float | None]) -> list[dict]:
    return [
        {"user": user, "part": part, "ts": None if at is None else BASE + int(at * SECOND)}
        for user, part, at in given
    ]


def shown(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(command) == 0
    return capsys.readouterr().out


def without_java(checkpoint: Path) -> subprocess.CompletedProcess[str]:
    """The command as a program that cannot start a session."""
    code = "import sys; from tidegate.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, "state", str(checkpoint), "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "JAVA_HOME": str(checkpoint), "PATH": ""},
    )


def show_the_same(state: Any, whole: tg.EmbeddedOperator, until: int) -> None:
    """The windows, values and messages of a key are those of an embedded operator."""
    history = [("a", "p0", 100), ("b", "p0", 110), ("c", "p1", 20), ("d", "p1", 1)]
    later = [("b", "p0", 111.0 + n) for n in range(until - 110)]
    whole.add_messages(pa.Table.from_pylist(rows(*history, *later), SCHEMA), now=1)
    for key in ("a", "b"):
        assert state.messages(key=key).to_pylist() == whole.get_messages(key=key).to_pylist()
        assert state.peek(key=key).to_pylist() == whole.peek(key=key).to_pylist()
    assert state.windows(key="c").num_rows == 0, "it is complete, and without lateness it is gone"
    assert "p1" in str(state.explain_watermark())


def test_sessions_of_a_query_that_runs_with_a_source_that_is_idle(spark, tmp_path, capsys):
    feed = Feed(tmp_path / "in", SCHEMA)
    panes = (
        tg.stream(
            feed.stream(spark, DDL),
            time="ts",
            key="user",
            partition="part",
            watermark=tg.bounded("0 seconds", idle_after="5 seconds"),
        )
        .window(tg.session("30 seconds"))
        .allow_lateness("0 seconds")
        .options(keep_messages=True)
        .aggregate(n=tg.count())
    )
    whole = panes.embedded(now=0)
    feed.put(
        rows(("a", "p0", 100), ("b", "p0", 110), ("c", "p1", 20), ("d", "p1", 1), ("e", "p0", None))
    )
    run = Run(panes, tmp_path / "ck", trigger="1 second", shards=2)
    try:
        deadline, at = time.monotonic() + 240, 111.0
        while True:
            # One source goes on, the other one is silent.
            feed.put(rows(("b", "p0", at)))
            run.query.process_all_available()
            (operator,) = run.query.state().status().operators
            standing = {source.name: source.status for source in operator.sources}
            if standing == {"p0": "active", "p1": "idle"}:
                break
            assert time.monotonic() < deadline, standing
            at += 1
        feed.put(rows(("f", "p0", 5)))
        run.query.process_all_available()
        state = run.query.state()
        ended = without_java(tmp_path / "ck")
        assert run.query.is_active, "it was not disturbed"
        told = shown(["state", str(tmp_path / "ck")], capsys)
    finally:
        run.query.stop()
    assert running_session() is spark, "a session that was there before stays"
    assert run.query.exception() is None
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["query"] == run.query.id
    assert found["specs"][0][0]["window"]["type"] == "session"
    (operator,) = found["operators"]
    assert len(operator["shards"]) == 2
    marks = {
        source["name"]: (source["watermark"] - BASE) / SECOND for source in operator["sources"]
    }
    assert marks == {"p0": at, "p1": 20}
    assert {(shard["watermark"] - BASE) / SECOND for shard in operator["shards"]} == {at}
    windows = sorted(
        ((window["start"] - BASE) / SECOND, window["keys"])
        for shard in operator["shards"]
        for window in shard["windows"]
    )
    assert windows == [(100, 1), (110, 1)], "those of a and b wait; the others are complete"
    assert sum(shard["windows_open"] for shard in operator["shards"]) == 2
    assert all(shard["state_bytes"] > 0 for shard in operator["shards"])
    late = [shard["late"] for shard in operator["shards"]]
    assert sum(sum(reasons.values()) for reasons in late) == 2 == len(run.late)
    assert sum(shard["counters"]["events"] for shard in operator["shards"]) == 6 + int(at - 110)
    show_the_same(state, whole, until=int(at))
    # Further batches may have run before the command.
    assert state.explain_watermark().sentences[-1] in told
    # The same for people.
    assert told.startswith(f"query {run.query.id} at {tmp_path / 'ck'}")
    assert "operator 0: session gap 30 seconds" in told
    assert re.search(r"^ +0 +p1 +idle +2023-11-14T22:14:20", told, re.MULTILINE)
    assert re.search(r"^ +0 +p0 +\w+ +2023-11-14T22:15:", told, re.MULTILINE)
    assert re.search(r"^late rows: \w+ 1, \w+ 1$", told, re.MULTILINE)


def test_a_stopped_chain_of_two_keys_over_sliding_windows(spark, tmp_path, capsys):
    feed = Feed(tmp_path / "in", SCHEMA)
    users = (
        tg.stream(feed.stream(spark, DDL), time="ts", key="user", watermark=tg.bounded("0 seconds"))
        .window(tg.sliding("1 minute", "20 seconds"))
        .allow_lateness("0 seconds")
        .aggregate(n=tg.count())
    )
    total = tg.stream(users).inherit().aggregate(users=tg.count())
    feed.put(rows(("a", "p", 61), ("b", "p", 62), ("c", "p", 70)))
    feed.put(rows(("c", "p", 85), ("a", "p", 1)))
    run = finished(total, tmp_path / "ck", shards=2)
    found = json.loads(shown(["state", "--json", str(tmp_path / "ck")], capsys))
    first, second = found["operators"]
    assert (first["number"], second["number"]) == (0, 1)
    assert [[spec["window"]["type"] for spec in group] for group in found["specs"]] == [
        ["hopping"],
        ["inherited"],
    ]
    assert sum(shard["counters"]["events"] for shard in first["shards"]) == 5
    windows = [
        sorted(((w["start"] - BASE) / SECOND, (w["end"] - BASE) / SECOND) for w in shard["windows"])
        for shard in first["shards"]
    ]
    # Those that end at 80 are out: the watermark is at 85, and the event at 1 was too late for all
    # of its own. Which keys share a shard depends on the secret of the query.
    assert {window for mine in windows for window in mine} == {(40, 100), (60, 120), (80, 140)}
    assert [shard["windows_open"] for shard in first["shards"]] == [*map(len, windows)]
    assert len(second["sources"]) == len(first["shards"]) == 2, (
        "to the second operator the shards of the first are sources"
    )
    assert {source["status"] for source in second["sources"]} == {"active"}
    assert sum(shard["counters"]["events"] for shard in second["shards"]) == 3
    assert sum(sum(shard["late"].values()) for shard in first["shards"]) == len(run.late) == 1
    told = shown(["state", str(tmp_path / "ck")], capsys)
    assert "operator 0: hopping size 1 minute slide 20 seconds" in told
    assert "operator 1: inherited" in told
    assert (
        told.index("operator 0")
        < told.index("late rows: ")
        < told.index("operator 1")
        < told.index("late rows: none")
    )


def test_without_the_library_spark_shows_the_same(spark, tmp_path, monkeypatch):
    feed = Feed(tmp_path / "in", SCHEMA)
    stream = tg.stream(
        feed.stream(spark, DDL), time="ts", key="user", watermark=tg.bounded("0 seconds")
    )
    panes = stream.window(tg.session("20 seconds")).aggregate(parts=tg.list_("part"))
    for at in range(5):
        feed.put(rows(("a", "p", 5 * at), (f"u{at}", "q", 5 * at)))
    # Spark reads checkpoints with unique ids only if the session has the setting as well.
    with spark_settings(spark, {"spark.sql.streaming.stateStore.checkpointFormatVersion": "2"}):
        run = finished(panes, tmp_path / "ck", shards=2)
        files = tg.state(tmp_path / "ck")
        assert (files.batch, files.peek().num_rows) == (4, 6)
        monkeypatch.setattr(query_state, "has_rocksdb", lambda: False)
        with pytest.warns(RuntimeWarning, match=r"Spark, .* pip install 'tidegate\[rocksdb\]'"):
            through_spark = run.query.state()
        assert files.batch == through_spark.batch
        assert files.peek() == through_spark.peek()
        assert files.windows() == through_spark.windows()
        assert files.status() == through_spark.status()


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name in ("empty", "file", "missing"):
        assert main(["state", str(tmp_path / name)]) == 2
        told = capsys.readouterr()
        assert told.out == ""
        assert (
            f"{name} is not the checkpoint of a query that has run a batch: it has no folder `offsets`."
            " Hint: " in told.err
        )
