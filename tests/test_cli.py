"""The command line: its output and exit status."""

from __future__ import annotations

import builtins
import json
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tidegate.cli import main
from tidegate.cli.demo_clicks import FILES, files, write
from tidegate.cli.picture import Moment, Span, as_text

PASSING = """
- {id: a.pass, kind: panes_by_window, config: {window: {type: fixed, size: 5}, trigger: AfterWatermark()}, data: [[7, x]], expect: [{window: [5, 10], panes: [[x]]}]}
- {id: a.assign, kind: assign, config: {window: {type: fixed, size: 5}}, cases: [{t: 7, windows: [[5, 10]]}]}
"""
FAILING = """
- {id: b.fail, kind: panes_by_window, config: {window: {type: fixed, size: 5}, trigger: AfterWatermark()}, data: [[7, x]], expect: [{window: [0, 5], panes: [[x]]}]}
"""


@pytest.fixture
def passing(tmp_path: Path) -> str:
    path = tmp_path / "passing.yaml"
    path.write_text(PASSING, "utf-8")
    return str(path)


@pytest.fixture
def failing(tmp_path: Path) -> str:
    path = tmp_path / "failing.yaml"
    path.write_text(FAILING, "utf-8")
    return str(path)


def test_replay_prints_a_line_for_each_scenario(
    passing: str, failing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", passing, failing]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "pass        a.pass",
        "unsupported a.assign: kind `assign` is not one of cogroup, join, panes, panes_by_window",
        "fail        b.fail: bundles of 1: expected {'[0, 5]': [['x']]}, got {'[5, 10]': [['x']]}",
        "3 scenarios: 1 passed, 1 failed, 1 unsupported",
    ]


def test_replay_ends_well_if_nothing_failed(
    passing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", "--runtime", "embedded", passing]) == 0
    assert capsys.readouterr().out.endswith("2 scenarios: 1 passed, 0 failed, 1 unsupported\n")


def test_replay_json(passing: str, failing: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", passing, failing, "--json"]) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["id"], line["status"]) for line in lines] == [
        ("a.pass", "pass"),
        ("a.assign", "unsupported"),
        ("b.fail", "fail"),
    ]
    assert all(set(line) == {"id", "status", "detail"} for line in lines)


@pytest.mark.parametrize("content", [None, "- id: [", "{}", "- 3"])
def test_replay_of_what_cannot_be_read(
    content: str | None, passing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd.yaml"
    if content is not None:
        path.write_text(content, "utf-8")
    assert main(["replay", passing, str(path)]) == 2
    reported = capsys.readouterr()
    assert reported.out == ""
    assert reported.err.startswith("tidegate replay: ")
    assert "odd.yaml" in reported.err


@pytest.mark.parametrize(
    ("lacking", "reported"),
    [
        ("pyspark", "needs `pyspark`, which is not installed"),
        ("pyspark.sql.streaming.datasource", "scenarios run on Spark 4.2 or newer"),
    ],
)
def test_replay_on_a_spark_that_is_missing_or_too_old(
    lacking: str,
    reported: str,
    passing: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def absent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "tidegate.scenarios.spark_runtime":
            raise ModuleNotFoundError(f"No module named {lacking!r}", name=lacking)
        return imported(name, *args, **kwargs)

    imported = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", absent)
    assert main(["replay", "--runtime", "spark", passing]) == 2
    assert reported in capsys.readouterr().err


def test_replay_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(tmp_path)]) == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [[], ["replay"], ["fly"], ["replay", "x.yaml", "--runtime", "flink"]]
)
def test_words_that_make_no_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert "usage: tidegate" in capsys.readouterr().err


def test_the_installed_command_is_this_one(passing: str) -> None:
    program = "import sys; from tidegate.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, "replay", passing],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout


def test_the_clicks_of_the_demonstration_are_the_same_every_time_and_spare_nothing() -> None:
    now = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)
    made = list(files(now))
    assert made == list(files(now))
    assert len(made) == FILES
    flat = [click for clicks in made for click in clicks]
    repeated = [
        name for name, times in Counter(click.event_id for click in flat).items() if times > 1
    ]
    assert repeated
    times = {click.event_id: click.ts for click in flat}
    assert times["8-null"] is None
    assert times["8-broken"] == "yesterday, about noon"
    assert times["7-future"] > "2026-01-02"
    known = [ts for name, ts in times.items() if name.split("-")[1].isdigit()]
    assert known != sorted(known), "out of order"
    assert max(known) < now.isoformat()
    assert times["10-lost0"] < times["4-late0"] < times["10-0"]


def test_clicks_are_written_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    made = write(tmp_path / "clicks", datetime(2026, 1, 1, 12, tzinfo=UTC))
    found = sorted((tmp_path / "clicks").iterdir(), key=lambda path: path.stat().st_mtime)
    assert [path.name for path in found] == [f"clicks-{number:02}.json" for number in range(FILES)]
    assert [
        [json.loads(line) for line in path.read_text("utf-8").splitlines()] for path in found
    ] == [[asdict(c) for c in clicks] for clicks in made]


def test_a_picture_as_text() -> None:
    def at(seconds: int) -> datetime:
        return datetime(2026, 1, 1, 12, tzinfo=UTC) + timedelta(seconds=seconds)

    moments = [
        Moment(at(3600), [at(0), at(30), at(30), at(900)], None),
        Moment(
            at(3605), [at(60)], at(90), [(at(0), at(60), "on_time"), (at(60), at(120), "early")]
        ),
        Moment(at(3610), [], at(500), [(at(0), at(60), "late")]),
    ]
    assert as_text(moments, Span(at(0), at(120)), width=24) == [
        "          12:00       12:01",
        "13:00:00  .     :",
        "13:00:05              .     |",
        "          <O--------> <e------->",
        "13:00:10",
        "          <L-------->",
    ]
