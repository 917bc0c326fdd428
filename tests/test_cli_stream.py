"""`tidegate stream`: creating, showing and scaling streams, times, transactions and errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from support.stream_commands import NOW, Command, numbers, rows
from tidegate import streams
from tidegate.cli import main


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "events.db")


# Creating and showing streams


def test_a_stream_is_made_shown_and_removed(tidegate: Command):
    assert tidegate("create", "clicks", "--segments", 2).out == "created clicks with 2 segments\n"
    assert tidegate("create", "views", "--json").json["segments"][0] == {
        "name": "0",
        "epoch": 0,
        "low": 0.0,
        "high": 1.0,
        "open": True,
        "first": 0,
        "end": 0,
    }
    listed = [json.loads(line) for line in tidegate("list", "--json").lines]
    assert [(one["stream"], one["segments"]) for one in listed] == [("clicks", 2), ("views", 1)]
    assert [line.split()[:3] for line in tidegate("list").lines] == [
        ["stream", "segments", "epoch"],
        ["clicks", "2", "0"],
        ["views", "1", "0"],
    ]
    assert tidegate("delete", "clicks").out == "deleted clicks\n"
    assert tidegate("delete", "views", "--json").json == {"deleted": "views"}
    assert tidegate("list").out == "no streams\n"


def test_settings_are_those_that_were_said(tidegate: Command, store: str):
    tidegate("create", "clicks", "--timeout", "30 seconds", "--initial-delay", "2 minutes")
    with streams.open(store) as opened:
        settings = opened.stream("clicks").description().settings
    assert (settings.timestamp_aggregation_timeout, settings.initial_delay) == (
        30_000_000,
        120_000_000,
    )


def test_the_store_may_come_from_the_environment(
    clicks: Command, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "some.jsonl"
    file.write_text(rows(3), "utf-8")
    monkeypatch.setenv("TIDEGATE_STORE", store)
    assert clicks.bare("write", "clicks", given=rows(2)).status == 0
    assert clicks.bare("write", "clicks", file).status == 0
    assert clicks.bare("write", store, "clicks", file).status == 0
    assert len(clicks.bare("read", "clicks").lines) == 8
    assert clicks.bare("list", "--json").json["stream"] == "clicks"
    monkeypatch.delenv("TIDEGATE_STORE")
    missing = clicks.bare("tail", "clicks")
    assert missing.status == 2
    assert missing.err.startswith("tidegate stream tail: the store is missing.")


@pytest.mark.parametrize("action", ["write", "read", "scale", "marks", "tail", "delete"])
def test_a_stream_that_is_not_there(clicks: Command, action: str):
    words = ["--segments", 2] if action == "scale" else []
    output = clicks(action, "visits", *words, given="1\n")
    assert (output.status, output.out) == (2, "")
    assert (
        output.err
        == f"tidegate stream {action}: there is no stream `visits`. Hint: the store has clicks\n"
    )


@pytest.mark.parametrize("action", ["write", "read", "marks", "tail", "delete", "list", "control"])
def test_a_store_that_is_not_there_is_not_made(tidegate: Command, tmp_path: Path, action: str):
    words = [] if action in {"list", "control"} else ["clicks"]
    output = tidegate(action, *words)
    assert output.status == 2
    assert "there is no store" in output.err
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_store(tidegate: Command, tmp_path: Path):
    file = tmp_path / "text.txt"
    file.write_text("a text that is longer than what SQLite reads first\n" * 100, "utf-8")
    output = tidegate.bare("tail", file, "clicks")
    assert output.status == 2
    assert "not a SQLite file" in output.err
    assert tidegate.bare("create", file, "clicks").status == 2
    assert tidegate.bare("create", tmp_path / "no" / "folder.db", "clicks").status == 2


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["create", "clicks"], "the stream `clicks` already exists"),
        (["create", "a b"], "the name of a stream"),
        (["create", "new", "--segments", "0"], "a stream has 1 to 10000 segments"),
        (["create", "new", "--timeout", "soon"], "a duration is numbers with units"),
        (["write", "clicks", "--time", "ts"], "--writer ID"),
        (["write", "clicks", "--transaction", "5"], "--writer ID"),
        (["write", "clicks", "--transaction", "0", "--writer", "w"], "a number of at least 1"),
        (["write", "clicks", "--resume", "--writer", "w"], "--transaction N"),
        (["write", "clicks", "--text", "--key", "user"], "--text takes lines as plain text"),
        (["write", "clicks", "--auto-note-time"], "--writer ID"),
        (["write", "clicks", "--writer", "a b"], "the name of a writer"),
        (["write", "clicks", "--writer", "w", "--time", "ts", "--disorder", "-1 s"], "--disorder"),
        (["write", "clicks", "--batch", "0"], "--batch"),
        (["write", "clicks", "nowhere.jsonl"], "nowhere.jsonl does not exist"),
        (["write", "clicks", "."], ". is a folder"),
        (["write", "clicks"], "there is nothing to write: the input is empty"),
        (["read", "clicks", "--reader", "r"], "--group NAME"),
        (["read", "clicks", "--limit", "0"], "--limit"),
        (["read", "clicks", "--group", "a b"], "the name of a group"),
        (["read", "clicks", "--from", "noon"], "--from is earliest, latest or a cut"),
        (["read", "clicks", "--from", "[1]"], "--from is earliest, latest or a cut"),
        (["read", "clicks", "--from", '{"0": 0}'], "a cut covers every key exactly once"),
        (["read", "clicks", "--from", '{"0": 0, "1": 0, "9": 0}'], "has no segment `9`"),
        (
            ["read", "clicks", "--from", '{"0": 0, "1": 0, "2": 5}'],
            "the segment `2` ends at 0, so there is no cut at",
        ),
        (
            ["read", "clicks", "--from", '{"0": 0, "1": 0, "2": "x"}'],
            "a cut has a non-negative offset",
        ),
        (["scale", "clicks"], "`scale` takes a number of segments"),
        (
            ["scale", "clicks", "--segments", "2", "--seal", "0", "--ranges", "0-1"],
            "`scale` takes a number of segments",
        ),
        (
            ["scale", "clicks", "--seal", "0", "--ranges", "0-0.1"],
            "the successors must cover the keys",
        ),
        (["scale", "clicks", "--seal", "7", "--ranges", "0-1"], "has no segment `7`"),
        (
            ["scale", "clicks", "--seal", "0", "--ranges", "low-high"],
            "--ranges takes ranges within 0 to 1",
        ),
        (["marks", "clicks", "--limit", "0"], "--limit"),
        (["tail", "clicks", "--every", "0 s"], "--every"),
        (["control", "--stream", "visits"], "there is no stream `visits`"),
        (["control", "--period", "1 minute"], "shorter than `lease`"),
    ],
)
def test_words_that_cannot_be_followed(clicks: Command, words: list[str], output: str):
    done = clicks(words[0], *words[1:])
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"tidegate stream {words[0]}: ")
    assert output in done.err
    assert len(done.err.splitlines()) == 1


def test_words_that_nobody_knows(clicks: Command, capsys: pytest.CaptureFixture[str]):
    for words in (
        ["fly"],
        ["write", clicks.store, "clicks", "--wings"],
        ["tail", clicks.store, "clicks", "more"],
        [],
    ):
        with pytest.raises(SystemExit) as stopped:
            main(["stream", *words])
        assert stopped.value.code == 2
        assert "usage: tidegate" in capsys.readouterr().err


# Time


def test_the_time_of_events_is_noted_and_becomes_a_watermark(clicks: Command):
    words = [
        "--key",
        "user",
        "--time",
        "ts",
        "--unit",
        "ms",
        "--writer",
        "w1",
        "--disorder",
        "2 seconds",
    ]
    done = clicks("write", "clicks", *words, given=rows(100))
    assert done.out.endswith(", noted 1970-01-01T00:01:37Z\n")
    assert done.status == 0
    shown = clicks("marks", "clicks", "--json").json
    tail = clicks("tail", "clicks", "--json").json
    assert shown["watermarks"] == [{"time": 97_000_000, "upper": 97_000_000, "cut": tail["tail"]}]
    assert tail["watermark"] == shown["watermarks"][0]
    assert (
        "watermark  1970-01-01T00:01:37Z, upper 1970-01-01T00:01:37Z, cut 0:"
        in clicks("tail", "clicks").out
    )


def test_marks_and_watermarks_are_shown(clicks: Command, store: str):
    assert clicks("marks", "clicks").lines == ["  no writers", "", "  no watermark yet"]
    assert clicks("marks", "clicks", "--json").json == {
        "stream": "clicks",
        "writers": [],
        "watermarks": [],
    }
    with streams.open(store) as opened:
        stream, controller = opened.stream("clicks"), opened.controller()
        with stream.writer("w1") as one, stream.writer("w2") as two:
            for time in (10_000_000, 20_000_000, 30_000_000):
                one.write("x", "k")
                one.note_time(time)
                one.flush()
                two.note_time(time + 5_000_000)
                two.flush()
                assert controller.round()
            shown = clicks("marks", "clicks").lines
            output = clicks("marks", "clicks", "--json", "--limit", 2).json
    assert re.split(r"\s{2,}", shown[0].strip()) == [
        "writer",
        "time",
        "alive",
        "behind the clock",
        "position",
    ]
    assert re.match(r"  w1      1970-01-01T00:00:30Z  yes    \d+ days .*  \d:3$", shown[1])
    assert [line.split()[0] for line in shown[4:]] == [
        "watermark",
        *(f"1970-01-01T00:00:{s}Z" for s in (30, 20, 10)),
    ]
    assert [(one["writer"], one["time"], one["alive"]) for one in output["writers"]] == [
        ("w1", 30_000_000, True),
        ("w2", 35_000_000, True),
    ]
    assert all(one["lag"] > 10**15 for one in output["writers"])
    assert [(one["time"], one["upper"]) for one in output["watermarks"]] == [
        (30_000_000, 35_000_000),
        (20_000_000, 25_000_000),
    ]


def test_windows_bound_the_times_of_their_events(clicks: Command, store: str):
    with streams.open(store) as opened:
        stream, controller = opened.stream("clicks"), opened.controller()
        with stream.writer("w") as writer:
            for part in range(6):
                for n in range(10):
                    time = part * 10 + n
                    writer.write({"ts": time}, f"k{n}")
                writer.note_time(part * 10 + 10)
                writer.flush()
                controller.round()
    for group in ([], ["--group", "g"]):
        found = [
            json.loads(line)
            for line in clicks("read", "clicks", "--json", "--batch", 4, *group).lines
        ]
        assert len(found) == 60
        for one in found:
            lower, upper = one["window"]["lower"], one["window"]["upper"]
            time = json.loads(one["value"])["ts"]
            assert lower is None or lower <= time
            assert upper is None or time < upper
        assert {one["window"]["lower"] for one in found} >= {None, 10, 20, 30}


def test_a_time_that_goes_back_is_told_and_loses_nothing(clicks: Command, store: str):
    with streams.open(store) as opened, opened.stream("clicks").writer("w") as writer:
        writer.note_time(50_000_000)
    words = ["--time", "ts", "--unit", "ms", "--writer", "w"]
    done = clicks("write", "clicks", "--no-control", *words, given=rows(10))
    assert done.status == 0
    assert (
        "has noted a later time than 1970-01-01T00:00:09Z, so this one is not noted; the events are"
        " written" in done.err
    )
    assert done.out.endswith(", 10 older than the time noted before them\n")
    done = clicks("write", "clicks", "--no-control", *words, "--transaction", 3, given=rows(10))
    assert (done.status, len(done.err.splitlines())) == (0, 1)
    assert clicks("marks", "clicks", "--json").json["writers"][0]["time"] == 50_000_000
    assert len(clicks("read", "clicks").lines) == 20


@pytest.mark.parametrize(
    ("unit", "value", "time"),
    [
        ([], 1_500_000, 1_500_000),
        ([], '"1970-01-01T00:00:01.5Z"', 1_500_000),
        (["--unit", "s"], 1.5, 1_500_000),
        (["--unit", "s"], 1.2345678, 1_234_567),
        (["--unit", "ms"], 1500, 1_500_000),
        (["--unit", "ms"], '"1970-01-01T01:00:01+01:00"', 1_000_000),
    ],
)
def test_times_are_read_in_their_unit(clicks: Command, unit: list[str], value: object, time: int):
    assert (
        clicks(
            "write",
            "clicks",
            "--time",
            "t",
            "--writer",
            "w",
            "--json",
            *unit,
            given=f'{{"t": {value}}}',
        ).json["noted"]
        == time
    )


def test_without_a_controller_there_is_no_watermark(clicks: Command):
    clicks("write", "clicks", "--no-control", "--time", "ts", "--writer", "w", given=rows(10))
    shown = clicks("marks", "clicks", "--json").json
    assert (shown["watermarks"], shown["writers"][0]["alive"]) == ([], False)


# Transactions


def test_each_commit_notes_the_time_of_its_own_lines(clicks: Command, store: str):
    times = [5, 9, 30, 20, 30, 40, 41]
    given = "".join(f'{{"ts": {time}}}\n' for time in times)
    done = clicks(
        "write",
        "clicks",
        "--time",
        "ts",
        "--writer",
        "w",
        "--transaction",
        3,
        "--no-control",
        "--json",
        given=given,
    )
    # The 20 comes after a commit that noted 30; the second 30 is not older.
    assert (done.json["events"], done.json["noted"], done.json["behind"]) == (7, 41, 1)
    with streams.open(store) as opened:
        assert opened.stream("clicks").transactional_writer("w").written == 7
    assert clicks("marks", "clicks", "--json").json["writers"][0]["time"] == 41


def test_resume_skips_what_is_there(clicks: Command):
    words = ["--writer", "w", "--transaction", 4, "--key", "user"]
    assert clicks("write", "clicks", *words, "--resume", given="no\n" + rows(10)).out.startswith(
        "10 events written, 1 line broken"
    )
    done = clicks(
        "write",
        "clicks",
        *words,
        "--resume",
        "--json",
        given="no\n" + rows(10) + "no\n" + rows(7, 10),
    )
    assert {name: done.json[name] for name in ("events", "skipped", "broken")} == {
        "events": 7,
        "skipped": 10,
        "broken": 1,
    }
    assert "line 12 is broken" in done.err
    assert sorted(numbers(clicks("read", "clicks").lines)) == list(range(17))
    done = clicks("write", "clicks", *words, "--resume", given=rows(17))
    assert (done.status, done.out) == (
        0,
        "0 events written, 0 lines broken, position none, 17 skipped as already written\n",
    )
    short = clicks("write", "clicks", *words, "--resume", given=rows(5))
    assert short.status == 1
    assert "have written 17 events, but the input has only 5" in short.err
    assert (
        "has already written 17 events; --resume"
        in clicks("write", "clicks", *words, given=rows(1)).err
    )


def test_resume_remembers_the_times_of_what_it_skips(clicks: Command):
    words = [
        "--writer",
        "w",
        "--transaction",
        1,
        "--time",
        "ts",
        "--no-control",
        "--resume",
        "--json",
    ]
    assert clicks("write", "clicks", *words, given='{"ts": 100}\n').json["noted"] == 100
    done = clicks("write", "clicks", *words, given='{"ts": 100}\n{"ts": 50}\n')
    assert (done.json["noted"], done.json["behind"], done.err) == (100, 1, "")


# On Kafka


def test_the_same_on_every_store(store_url: str, tidegate: Command):
    tidegate.store = store_url
    assert tidegate("create", "clicks", "--segments", 2, *NOW).status == 0
    words = ["--key", "user", "--time", "ts", "--unit", "ms", "--writer", "w", "--transaction", 10]
    done = tidegate("write", "clicks", *words, given=rows(25))
    assert (done.status, done.out.split(",")[0]) == (0, "25 events written")
    tidegate("scale", "clicks", "--segments", 3)
    done = tidegate("write", "clicks", *words, "--resume", given=rows(40))
    assert (done.status, "25 skipped" in done.out) == (0, True)
    found = numbers(tidegate("read", "clicks", "--group", "g").lines)
    assert sorted(found) == list(range(40))
    assert tidegate("read", "clicks", "--group", "g").out == ""
    assert sorted(numbers(tidegate("read", "clicks").lines)) == list(range(40))
    assert tidegate("marks", "clicks", "--json").json["watermarks"][0]["time"] == 39_000_000
    assert (
        len([one for one in tidegate("tail", "clicks", "--json").json["segments"] if one["open"]])
        == 3
    )
    assert tidegate("delete", "clicks").status == 0
