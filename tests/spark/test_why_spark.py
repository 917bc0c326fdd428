"""`tg.why`, `query.why` and `tidegate why` over a query on Spark, against a known history."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import tidegate as tg
from support.known_history import BASE, DELIVERIES, HISTORY, SECOND, at, known, panes, rows
from support.spark_streams import Feed
from tidegate.cli import main
from tidegate.operators.history.facts import History
from tidegate.spark.query.settings import spark_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
SCHEMA = pa.schema({"user": pa.string(), "ts": pa.timestamp("us", "UTC"), "v": pa.int64()})


@pytest.fixture(scope="module")
def folders(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The checkpoint and the output of the query, which has stopped."""
    root = tmp_path_factory.mktemp("why")
    feed = Feed(root / "in", SCHEMA)
    for number in range(len(DELIVERIES)):
        feed.put(rows(number))
    df = feed.stream(spark, "user string, ts timestamp, v bigint")
    pipeline = panes(tg.stream(df, time="ts", key="user", watermark=tg.bounded("5 seconds")))
    query = pipeline.write(
        tg.sinks.parquet(root / "panes"),
        late=tg.sinks.parquet(root / "late"),
        checkpoint=root / "checkpoint",
        trigger="available_now",
        shards=2,
    )
    query.await_termination()
    # The handle reads the same files.
    check(query.why("a", at(0), at(60)))
    return root / "checkpoint", root / "panes"


def check(found: History) -> None:
    first = found.steps[0].batch
    assert first is not None
    assert [known(step, first) for step in found.steps] == HISTORY


def test_the_history_has_all_that_happened_in_order(folders: tuple[Path, Path]):
    for folder in folders:
        check(tg.why(folder, "a", at(0), at(60)))


def test_an_open_window_says_what_it_waits_for(folders: tuple[Path, Path]):
    (window,) = tg.why(folders[0], "a", at(101)).open
    assert (window.start, window.end, window.rows, window.pending) == (at(101), at(111), 1, 1)
    assert window.waits is not None
    assert window.waits.watermark == at(111)


def test_the_command_shows_the_same(folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]):
    window = "2023-11-14T22:14:00Z/2023-11-14T22:15:00Z"
    assert main(["why", str(folders[0]), "--key", "user=a", "--window", window]) == 0
    assert capsys.readouterr().out.rstrip("\n") == str(tg.why(folders[0], "a", at(0), at(60)))
    assert main(["why", str(folders[1]), "--key", "a", "--window", window, "--json"]) == 0
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert [step["kind"] for step in steps] == [step.kind for step in HISTORY]
    assert main(["why", str(folders[0]), "--key", "user=a", "--key", "x"]) == 2
    assert "the key columns are user" in capsys.readouterr().err
    assert main(["why", str(folders[0])]) == 2
    assert "the key columns are user, got no key" in capsys.readouterr().err
    for command in ("why", "state"):
        assert main([command, str(folders[0]), "--key", "a", "--operator", "3"]) == 2
        assert "the query has 1 operator, got operator=3" in capsys.readouterr().err
    assert main(["why", str(folders[0].parent)]) == 2
    assert "neither the checkpoint of a query nor a folder of its panes" in capsys.readouterr().err
    assert main(["why", str(folders[0] / "missing")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_rows_of_batches_whose_state_is_gone_are_named(spark: SparkSession, tmp_path: Path):
    feed = Feed(tmp_path / "in", SCHEMA)
    for number in range(len(DELIVERIES)):
        feed.put(rows(number))
    df = feed.stream(spark, "user string, ts timestamp, v bigint")
    pipeline = panes(tg.stream(df, time="ts", key="user", watermark=tg.bounded("5 seconds")))
    with spark_settings(spark, {"spark.sql.streaming.minBatchesToRetain": "2"}):
        query = pipeline.write(
            tg.sinks.parquet(tmp_path / "panes"),
            checkpoint=tmp_path / "checkpoint",
            trigger="available_now",
            shards=1,
        )
        query.await_termination()
    found = query.why("a", at(0), at(60))
    assert [step.kind for step in found.steps if step.kind != "rows"] == [
        step.kind for step in HISTORY if step.kind != "rows"
    ]
    (note,) = found.notes
    assert note.startswith("the rows that arrived up to batch ")
    assert query.why("a", at(101)).notes == ()


def test_a_history_that_would_read_too_many_states_says_so(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
):
    whole = tg.why(folders[0], "a")
    assert whole.notes == ()
    monkeypatch.setattr("tidegate.spark.query.history.VERSIONS_READ", 3)
    cut = tg.why(folders[0], "a")
    rows, all_rows = ([step for step in one.steps if step.kind == "rows"] for one in (cut, whole))
    assert 0 < len(rows) < len(all_rows)
    assert rows == all_rows[: len(rows)]
    (note,) = cut.notes
    assert note.startswith(f"the rows that arrived after batch {rows[-1].batch} are not listed")
    assert [one.kind for one in cut.steps if one.kind != "rows"] == [
        one.kind for one in whole.steps if one.kind != "rows"
    ]


def test_without_a_checkpoint_the_panes_are_a_history(folders: tuple[Path, Path], tmp_path: Path):
    copied = tmp_path / "panes"
    for file in folders[1].rglob("*.parquet"):
        target = copied / file.relative_to(folders[1])
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    found = tg.why(copied, "a", BASE, BASE + 60 * SECOND)
    assert [step.kind for step in found.steps].count("pane") == 5
    assert "names no checkpoint" in found.notes[0]
