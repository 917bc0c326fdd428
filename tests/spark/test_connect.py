"""Pipelines through Spark Connect: the client is a process of its own, and all that the library
does goes over the wire.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import tidegate as tg
from support import SUPPORT
from support.prometheus_text import by_label, parse, single
from support.spark_streams import BASE, SECOND, Feed, clicks, netted

pytestmark = [pytest.mark.connect, pytest.mark.slow]

FILES = [
    [("ann", 1, 1.0), ("bob", 2, 2.0), ("ann", 3, 4.0)],
    [("ann", 70, 1.0), ("bob", 80, 1.0), ("cid", None, 1.0)],
    [("bob", 20, 8.0), ("dan", 130, 1.0)],
    [("end", 4000, 0.0)],
    [("ann", 5, 9.0)],
]
"""Events without a time and events that are too late among them."""
PANES = {
    ("ann", 0): (2, 5.0),
    ("bob", 0): (2, 10.0),
    ("ann", 60): (1, 1.0),
    ("bob", 60): (1, 1.0),
    ("dan", 120): (1, 1.0),
}
CLASSIC = {
    "_jvm",
    "_jdf",
    "_jc",
    "_jsparkSession",
    "_jsc",
    "_sc",
    "_jsdf",
    "sparkContext",
    "SparkContext",
    "rdd",
    "RDD",
    "toJavaRDD",
    "_gateway",
}
"""What exists only where Python and the JVM of the driver share a machine."""


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("connect")


@pytest.fixture(scope="module")
def seen(connect, out):
    """What the client saw; it runs once for all tests."""
    feed = Feed(out / "in")
    for rows in FILES:
        feed.put(clicks(*rows))
    program = SUPPORT / "connect_client.py"
    command = [sys.executable, str(program), connect.url, str(feed.folder), str(out)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=560)
    assert ended.returncode == 0, ended.stderr[-4000:] + connect.process.tail(40)
    return json.loads(ended.stdout.splitlines()[-1])


def rows(folder: Path) -> list[dict]:
    found = []
    for name in sorted(folder.rglob("*.parquet")):
        batch = next(
            (int(part.removeprefix("batch=")) for part in name.parts if part.startswith("batch=")),
            0,
        )
        found += [(batch, row) for row in pq.read_table(name, partitioning=None).to_pylist()]
    return [row for _, row in sorted(found, key=lambda pair: pair[0])]


def test_the_library_uses_nothing_that_only_a_classic_session_has(repository):
    used = []
    for path in sorted((repository / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            name = (
                node.attr
                if isinstance(node, ast.Attribute)
                else node.id
                if isinstance(node, ast.Name)
                else getattr(node, "name", None)
            )
            if name in CLASSIC:
                used.append(f"{path.relative_to(repository)}:{node.lineno} {name}")
    assert used == []


def test_panes_late_rows_and_metrics_are_written(seen, out):
    assert seen["session"] == "pyspark.sql.connect.session"
    assert (seen["written"]["failed"], seen["written"]["active"], seen["written"]["name"]) == (
        None,
        False,
        "through_connect",
    )
    panes = rows(out / "panes")
    assert netted(panes, ["user"], "n", "spent") == PANES
    assert {row["first_letter"] for row in panes} == {
        "A",
        "B",
        "D",
    }, "a function makes a part of the key"
    assert {row["timing"] for row in panes} == {"early", "on_time", "late"}
    assert sorted((row["user"], row["reason"]) for row in rows(out / "late")) == [
        ("ann", "very_late"),
        ("cid", "null_time"),
    ]
    metrics = rows(out / "metrics")
    assert sum(row["events"] for row in metrics) == 10
    assert sum(row["late_rows"] for row in metrics) == 2


def test_progress_prometheus_and_listeners_say_the_same(seen):
    written = seen["written"]
    progress = written["progress"]
    assert [batch["events"] for batch in progress] == [len(rows) for rows in FILES]
    assert [batch["watermark"] is not None for batch in progress] == [True] * 5
    heard = {
        tuple(
            batch[name]
            for name in ("events", "late_rows", "panes_on_time", "retractions", "state_bytes")
        )
        for batch in written["heard"]
    }
    assert heard == {
        tuple(
            batch[name]
            for name in ("events", "late_rows", "panes_on_time", "retractions", "state_bytes")
        )
        for batch in progress
    }
    samples = parse(written["prometheus"])
    assert single(samples, "tidegate_batch_id") == 4
    assert by_label(samples, "tidegate_rows_total", "class")["very_late"] == 1
    assert by_label(samples, "tidegate_events_total", "query") == {"through_connect": 10}
    assert single(samples, "tidegate_watermark_seconds") == BASE / SECOND + 3990
    assert single(samples, "tidegate_batch_duration_seconds") > 0


def test_status_explanation_and_history_of_the_client(seen, out):
    written, last = seen["written"], seen["written"]["progress"][-1]
    status, stored = written["status"], tg.state(out / "ck").status()
    assert (status["state"], status["name"], status["batch"]) == ("ended", "through_connect", 4)
    for name in ("watermark", "windows_open", "state_bytes"):
        assert status[name] == stored.to_dict()[name] == last[name], name
    assert status["counters"] == stored.counters
    assert status["counters"]["events"] == 10
    # This process lacks the function that makes a part of the key; the client has it.
    assert written["explained"].startswith("The watermark is at 2023-11-14T23:20:30Z since ")
    assert "2 rows went to `late`: 1 null_time, 1 very_late." in written["explained"]
    assert written["why"].startswith("Key user=ann, first_letter=A, ")
    far = "(2023-11-14T23:20:30Z), 1 hour 1 minute 25 seconds more than the allowed lateness."
    assert written["why"].endswith(f" 25 seconds behind the watermark {far}")


def test_a_change_feed_as_a_frame(seen, out):
    assert seen["streamed"][-2:] == ["_change_type", "_commit_timestamp"]
    changes = rows(out / "changes")
    assert {row["minute"] for row in changes} == {row["window_start"].minute for row in changes}
    told = sorted((row["_change_type"], row["n"]) for row in changes if row["user"] == "bob")
    assert told == [("insert", 1), ("insert", 1), ("update_postimage", 2), ("update_preimage", 1)]


def test_a_chain_of_another_key_with_a_function_as_its_sink(seen, out):
    totals = rows(out / "totals")
    assert netted(totals, [], "users", "spent") == {
        (0,): (2, 15.0),
        (60,): (2, 2.0),
        (120,): (1, 1.0),
    }
    samples = parse((out / "metrics.prom").read_text())
    assert single(samples, "tidegate_events_total") == 10, (
        "what came in, and not what one operator told the other"
    )
    assert single(samples, "tidegate_late_rows_total") == 2
    panes = by_label(samples, "tidegate_panes_total", "timing")
    assert sum(panes.values()) == sum(row["op"] == "+" for row in totals)
    assert sum(batch["events"] for batch in seen["rekeyed"]["progress"]) == 10
    assert sum(batch["late_rows"] for batch in seen["rekeyed"]["progress"]) == 2


def test_a_batch_and_its_sinks(seen):
    finite = seen["finite"]
    wanted = {**PANES, ("ann", 0): (3, 14.0), ("end", 3960): (1, 0.0)}
    assert {
        (user, start - BASE / SECOND): (n, spent) for user, _, start, n, spent in finite["rows"]
    } == wanted
    assert finite["columns"][:2] == ["user", "first_letter"]
    assert (finite["late"], finite["kept"]) == (1, len(wanted))


def test_rows_that_are_kept_in_the_server_cannot_be_read_here_and_that_is_said(seen):
    assert "under Spark Connect the rows are in the server's process" in seen["memory"]


def test_an_error_of_a_task_is_raised_as_an_error_of_tidegate(seen):
    message, returned, cause = seen["failing"]
    assert "went back" in message
    assert "\n" not in message
    assert returned == f"WatermarkError({message!r})"
    assert cause.endswith("Exception")
