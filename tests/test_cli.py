"""The command line: what it prints, and the status it ends with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.cli import main
from tidegate.cli.demo import clicks, steps

PASSING = """
- {id: a.pass, kind: assign, config: {window: {type: fixed, size: 5}}, cases: [{t: 7, windows: [[5, 10]]}]}
- {id: a.join, kind: join, config: {}}
"""
FAILING = "- {id: b.fail, kind: assign, config: {window: {type: fixed, size: 5}}, cases: [{t: 7, windows: [[0, 5]]}]}"


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


def test_replay_prints_a_line_for_each_scenario(passing: str, failing: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", passing, failing]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "pass        a.pass",
        "unsupported a.join: kind `join` is not covered by this version",
        "fail        b.fail: t 7: expected [[0, 5]], got [[5, 10]]",
        "3 scenarios: 1 passed, 1 failed, 1 unsupported",
    ]


def test_replay_ends_well_if_nothing_failed(passing: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--runtime", "embedded", passing]) == 0
    assert capsys.readouterr().out.endswith("2 scenarios: 1 passed, 0 failed, 1 unsupported\n")


def test_replay_json(passing: str, failing: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", passing, failing, "--json"]) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["id"], line["status"]) for line in lines] == [("a.pass", "pass"), ("a.join", "unsupported"), ("b.fail", "fail")]
    assert all(set(line) == {"id", "status", "detail"} for line in lines)


@pytest.mark.parametrize("content", [None, "- id: [", "{}", "- 3"])
def test_replay_of_what_cannot_be_read(content: str | None, passing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "odd.yaml"
    if content is not None:
        path.write_text(content, "utf-8")
    assert main(["replay", passing, str(path)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("tidegate replay: ")
    assert "odd.yaml" in told.err


def test_replay_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(tmp_path)]) == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["replay"], ["fly"], ["replay", "x.yaml", "--runtime", "spark"]])
def test_words_that_make_no_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert "usage: tidegate" in capsys.readouterr().err


def test_the_installed_command_is_this_one(passing: str) -> None:
    program = "import sys; from tidegate.cli import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", program, "replay", passing], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout


def test_demo_tells_a_story(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text
    for word in ("early", "on_time", "late", "very_late", "  - "):
        assert word in text
    assert main(["demo"]) == 0
    assert capsys.readouterr().out == text


def test_demo_nets_to_the_truth() -> None:
    net: dict[tuple[str, str], list[int]] = {}
    late = 0
    for step in steps():
        late += len(step.late)
        for pane in step.panes:
            sign = 1 if pane["op"] == "+" else -1
            entry = net.setdefault((pane["user"], str(pane["window_start"])), [0, 0])
            entry[0] += sign * pane["clicks"]
            entry[1] += sign * pane["spent"]
    assert late == 1
    assert sum(count for count, _ in net.values()) == len(clicks()) - late
    assert sum(spent for _, spent in net.values()) == sum(click.price for click in clicks()) - 8


def test_demo_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["output"] for row in rows} == {"panes", "late"}
    seen = {(row["op"], row["timing"]) for row in rows if row["output"] == "panes"}
    assert seen >= {("+", "early"), ("+", "on_time"), ("-", "early"), ("+", "late")}


def test_the_help_of_a_benchmark_needs_no_part(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--help"])
    assert ended.value.code == 0
    assert "usage: tidegate bench" in capsys.readouterr().out
