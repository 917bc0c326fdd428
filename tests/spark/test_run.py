"""`tidegate run` on Spark: what comes out at the sinks, what is told on the way, and how it
ends.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.cli import main
from tidegate.errors import SetupError
from tidegate.pipeline import load
from tidegate.spark.environment.session import (
    PROVIDER,
    RUNTIME_CONF,
    check_session,
    running_session,
    session,
)
from tidegate.spark.parallelism import PARTITIONS, parallelism

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "user string, ts timestamp, price double"
FILE = """
name: clicks
input: {{type: {format}, folder: clicks, schema: "{schema}", max_files_per_trigger: 1{more}}}
stream: {{time: ts, key: user, watermark: bounded(5 seconds)}}
window: tumbling(1 minute)
aggregate: {{n: count, spent: sum(price)}}
write: {{to: parquet(out/panes), late: parquet(out/late), checkpoint: out/checkpoint}}
"""
EXPECTED = [("a", 0, 2, 3.0), ("a", 60, 1, 4.0), ("b", 0, 1, 8.0)]
"""User, start in seconds, count and sum of the windows that are complete; one row in `late` comes
an hour behind.
"""


def clicks() -> list[pa.Table]:
    """Three files, the last one with a click that is very late and one that closes the second
    minute.
    """
    rows = [
        [("a", 1, 1.0), ("a", 30, 2.0), ("b", 59, 8.0)],
        [("a", 70, 4.0)],
        [("b", -3600, 1.0), ("c", 200, 1.0)],
    ]
    second = 1_000_000
    origin = int(START.timestamp()) * second
    return [
        pa.table(
            {
                "user": [user for user, _, _ in part],
                "ts": pa.array(
                    [origin + at * second for _, at, _ in part], pa.timestamp("us", "UTC")
                ),
                "price": [price for _, _, price in part],
            }
        )
        for part in rows
    ]


def write_clicks(folder: Path, kind: str = "parquet") -> None:
    folder.mkdir()
    for number, table in enumerate(clicks()):
        name = folder / f"{number}.{kind}"
        if kind == "parquet":
            pq.write_table(table, name)
        elif kind == "json":
            name.write_text(
                "".join(
                    json.dumps({**row, "ts": row["ts"].isoformat()}) + "\n"
                    for row in table.to_pylist()
                )
            )
        else:
            name.write_text(
                "".join(
                    f"{row['user']},{row['ts'].isoformat()},{row['price']}\n"
                    for row in table.to_pylist()
                )
            )
        # Spark takes the files in the order of their times.
        os.utime(name, (1_700_000_000 + number, 1_700_000_000 + number))


def write_file(folder: Path, kind: str = "parquet", more: str = "") -> Path:
    (folder / "p.yaml").write_text(FILE.format(format=kind, schema=SCHEMA, more=more))
    return folder / "p.yaml"


def rows(folder: Path) -> list[dict]:
    return [
        row
        for name in sorted(folder.rglob("*.parquet"))
        for row in pq.read_table(name, partitioning=None).to_pylist()
    ]


def panes(folder: Path) -> list[tuple]:
    seconds = lambda row: int((row["window_start"] - START).total_seconds())  # noqa: E731 - used once
    return sorted(
        (row["user"], seconds(row), row["n"], row["spent"])
        for row in rows(folder / "out" / "panes")
    )


@pytest.mark.parametrize(
    ("kind", "more"), [("parquet", ""), ("json", ""), ("csv", ""), ("parquet", ", direct: true")]
)
def test_a_file_runs_until_idle_and_again_adds_nothing(kind, more, spark, tmp_path, capsys) -> None:
    write_clicks(tmp_path / "clicks", kind)
    path = write_file(tmp_path, kind, more)
    assert main(["run", "--until-idle", str(path)]) == 0
    assert panes(tmp_path) == EXPECTED
    assert [(row["user"], row["class"]) for row in rows(tmp_path / "out" / "late")] == [
        ("b", "very_late")
    ]
    shown = capsys.readouterr().out
    assert re.search(r"ended after [\w ]+ and \d+ batches", shown)
    assert re.search(r"events +6\n", shown)
    assert "1 very late" in shown
    assert main(["run", "--until-idle", str(path)]) == 0
    assert panes(tmp_path) == EXPECTED
    assert running_session() is spark, "a session that was there before stays"


def test_json_lines_end_with_a_summary(spark, tmp_path, capsys) -> None:
    write_clicks(tmp_path / "clicks")
    assert main(["run", "--until-idle", "--json", str(write_file(tmp_path))]) == 0
    *lines, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(line["event"] == "progress" for line in lines)
    assert (last["event"], last["events"], last["late_rows"], last["panes"]) == (
        "ended",
        6,
        1,
        {"early": 0, "on_time": 3, "late": 0},
    )
    assert last["watermark"].startswith("2026-01-01T00:03:15")
    assert last["late"]["very_late"] == 1


def test_where_and_select_shape_the_rows(spark, tmp_path) -> None:
    write_clicks(tmp_path / "clicks")
    path = write_file(
        tmp_path,
        more=", where: user != 'b', select: [upper(user) as user, ts, price * 10 as price]",
    )
    assert main(["run", "--until-idle", str(path)]) == 0
    assert panes(tmp_path) == [("A", 0, 2, 30.0), ("A", 60, 1, 40.0)]


def test_a_schema_is_found_in_the_files_and_metrics_are_served(spark, tmp_path, capsys) -> None:
    write_clicks(tmp_path / "clicks")
    path = write_file(tmp_path)
    path.write_text(path.read_text().replace(f'schema: "{SCHEMA}", ', ""))
    assert main(["run", "--until-idle", "--metrics", "0", str(path)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^metrics: http://127\.0\.0\.1:\d+/metrics$", shown, re.MULTILINE)
    assert panes(tmp_path) == EXPECTED


def test_no_schema_and_no_files_is_refused_before_the_start(tmp_path, capsys) -> None:
    (tmp_path / "clicks").mkdir()
    path = write_file(tmp_path)
    path.write_text(path.read_text().replace(f'schema: "{SCHEMA}", ', ""))
    assert main(["run", "--until-idle", str(path)]) == 2
    assert "because it has no files. Hint: add `schema:" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_query_that_fails_ends_with_status_1_and_its_cause(spark, tmp_path, capsys) -> None:
    write_clicks(tmp_path / "clicks")
    path = write_file(
        tmp_path, more=""", select: ["raise_error('the cup is broken') as user", ts, price]"""
    )
    assert main(["run", "--until-idle", str(path)]) == 1
    captured = capsys.readouterr()
    assert "failed after" in captured.out
    assert "the cup is broken" in captured.err
    assert captured.err.splitlines()[-1].startswith("tidegate run: the query failed: ")


@pytest.mark.parametrize(
    ("right", "wrong"), [("key: user", "key: usr"), ("sum(price)", "sum(prize)")]
)
def test_an_unknown_column_is_refused_before_the_start(right, wrong, tmp_path, capsys) -> None:
    write_clicks(tmp_path / "clicks")
    path = write_file(tmp_path)
    path.write_text(path.read_text().replace(right, wrong))
    assert main(["run", "--until-idle", str(path)]) == 2
    assert re.search(
        r"line \d+, column \d+: `(usr|prize)` is not a column for `(key|spent)`. Hint: did you mean"
        r" `(user|price)`\?",
        capsys.readouterr().err,
    )
    assert not (tmp_path / "out").exists()


def test_what_only_spark_knows_is_refused_before_a_batch(spark, tmp_path, capsys) -> None:
    write_clicks(tmp_path / "clicks")
    path = write_file(tmp_path, more=", select: [no_such_function(user) as user, ts, price]")
    assert main(["run", "--until-idle", str(path)]) == 2
    told = capsys.readouterr().err
    assert re.search(r"cannot be started: .*no_such_function", told)
    assert not (tmp_path / "out").exists()


def test_a_pipeline_gives_its_panes_as_a_frame(spark, tmp_path) -> None:
    write_clicks(tmp_path / "clicks")
    frame = load(write_file(tmp_path)).panes(spark).df
    assert frame.isStreaming
    assert frame.columns[:3] == ["user", "window_start", "window_end"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_cleanly(number, tmp_path) -> None:
    (tmp_path / "p.yaml").write_text("""
input: {type: rate, rows_per_second: 20, time: timestamp}
window: tumbling(1 second)
aggregate: {n: count}
write: {to: parquet(panes), checkpoint: checkpoint}
session: {cores: 1, memory: 600m}
""")
    command = [
        sys.executable,
        "-c",
        "import sys; from tidegate.cli import main; sys.exit(main())",
        "run",
        "--json",
        str(tmp_path / "p.yaml"),
    ]
    # A session of its own, so that Ctrl-C can be sent to all of its processes, as a terminal does.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        lines, sent = [], False
        for line in process.stdout:
            lines.append(json.loads(line))
            if not sent and lines[-1]["event"] == "progress" and lines[-1]["panes"]["on_time"]:
                sent = True
                (
                    os.killpg(process.pid, number)
                    if number == signal.SIGINT
                    else process.send_signal(number)
                )
        said = process.stderr.read()
    assert process.returncode == 0, said
    assert lines[-1]["event"] == "stopped"
    # The JVM may log that it gave up a batch; nothing that looks like a failure of ours may be
    # told.
    assert not re.search("Traceback|Exception|Interrupt", said), said
    assert sum(row["n"] for row in rows(tmp_path / "panes")) > 0


# -- the session


def test_a_running_session_is_told_what_it_can_be_told(spark) -> None:
    before = {
        name: spark.conf.get(name)
        for name in (PARTITIONS, PROVIDER, "spark.sql.session.timeZone", "spark.master")
    }
    spark.conf.set(
        PROVIDER, "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    )
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        with pytest.raises(SetupError, match=r"kept in RocksDB, but .* Hint: "):
            check_session(spark)
        assert session(cores=2) is spark
        assert {name: spark.conf.get(name) for name in before} == before
        assert {name: spark.conf.get(name) for name in RUNTIME_CONF} == RUNTIME_CONF
        check_session(spark)
    finally:
        for name in (PARTITIONS, PROVIDER, "spark.sql.session.timeZone"):
            spark.conf.set(name, before[name])


def test_cores_are_read_without_a_context(spark) -> None:
    assert parallelism(spark) == 2


def test_packages_cannot_be_added_to_a_running_session(spark) -> None:
    with pytest.raises(SetupError, match="lacks a:b:1"):
        session(packages=["a:b:1"])


def test_doctor_runs_a_query(spark, capsys, monkeypatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert main(["doctor", "--spark"]) == 0
    assert "a stateful query emitted the right pane" in capsys.readouterr().out
