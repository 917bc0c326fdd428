"""`tidegate stream`: what it writes, reads and prints, the status it ends with, and what is left
when it is interrupted or killed.
"""

from __future__ import annotations

import io
import itertools
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate import streams
from tidegate.cli import main
from tidegate.cli import stream_lines as reading
from tidegate.cli.stream_lines import Events, Form, events_of, lines_of
from tidegate.streams.stream import machine_clock

NOW = ["--initial-delay", "0 s"]


class Run:
    """A command that has ended."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class Command:
    """`tidegate stream` in this process, on one store."""

    def __init__(
        self, store: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.store, self._capsys, self._monkeypatch = store, capsys, monkeypatch

    def __call__(self, action: str, *words: object, given: str | bytes = b"") -> Run:
        return self.bare(action, self.store, *words, given=given)

    def bare(self, *words: object, given: str | bytes = b"") -> Run:
        data = given.encode() if isinstance(given, str) else given
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        self._capsys.readouterr()
        status = main(["stream", *map(str, words)])
        told = self._capsys.readouterr()
        return Run(status, told.out, told.err)


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "events.db")


@pytest.fixture
def tidegate(
    store: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    monkeypatch.delenv("TIDEGATE_STORE", raising=False)
    return Command(store, capsys, monkeypatch)


@pytest.fixture
def clicks(tidegate: Command) -> Command:
    """A store with a stream `clicks` of three segments."""
    assert tidegate("create", "clicks", "--segments", 3, *NOW).status == 0
    return tidegate


def rows(count: int, first: int = 0) -> str:
    return "".join(
        json.dumps({"n": n, "user": f"u{n % 5}", "ts": n * 1000}) + "\n"
        for n in range(first, first + count)
    )


def numbers(lines: list[str]) -> list[int]:
    return [json.loads(line)["n"] for line in lines]


# Making and showing streams


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
    told = clicks(action, "visits", *words, given="1\n")
    assert (told.status, told.out) == (2, "")
    assert (
        told.err
        == f"tidegate stream {action}: there is no stream `visits`. Hint: there are clicks\n"
    )


@pytest.mark.parametrize("action", ["write", "read", "marks", "tail", "delete", "list", "control"])
def test_a_store_that_is_not_there_is_not_made(tidegate: Command, tmp_path: Path, action: str):
    words = [] if action in {"list", "control"} else ["clicks"]
    told = tidegate(action, *words)
    assert told.status == 2
    assert "there is no store" in told.err
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_store(tidegate: Command, tmp_path: Path):
    file = tmp_path / "text.txt"
    file.write_text("a text that is longer than what SQLite reads first\n" * 100, "utf-8")
    told = tidegate.bare("tail", file, "clicks")
    assert told.status == 2
    assert "no file of SQLite" in told.err
    assert tidegate.bare("create", file, "clicks").status == 2
    assert tidegate.bare("create", tmp_path / "no" / "folder.db", "clicks").status == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["create", "clicks"], "there is a stream `clicks` already"),
        (["create", "a b"], "a stream is named by"),
        (["create", "new", "--segments", "0"], "a stream has 1 to 10000 segments"),
        (["create", "new", "--timeout", "soon"], "a duration is numbers with units"),
        (["write", "clicks", "--time", "ts"], "--writer ID"),
        (["write", "clicks", "--transaction", "5"], "--writer ID"),
        (["write", "clicks", "--transaction", "0", "--writer", "w"], "a number from 1 on"),
        (["write", "clicks", "--resume", "--writer", "w"], "--transaction N"),
        (["write", "clicks", "--text", "--key", "user"], "--text takes lines as they are"),
        (["write", "clicks", "--auto-note-time"], "--writer ID"),
        (["write", "clicks", "--writer", "a b"], "a writer is named by"),
        (["write", "clicks", "--writer", "w", "--time", "ts", "--disorder", "-1 s"], "--disorder"),
        (["write", "clicks", "--batch", "0"], "--batch"),
        (["write", "clicks", "nowhere.jsonl"], "nowhere.jsonl is not there"),
        (["write", "clicks", "."], ". is a folder"),
        (["write", "clicks"], "there is nothing to write: the input has no line"),
        (["read", "clicks", "--reader", "r"], "--group NAME"),
        (["read", "clicks", "--limit", "0"], "--limit"),
        (["read", "clicks", "--group", "a b"], "a group is named by"),
        (["read", "clicks", "--from", "noon"], "--from is earliest, latest or a cut"),
        (["read", "clicks", "--from", "[1]"], "--from is earliest, latest or a cut"),
        (["read", "clicks", "--from", '{"0": 0}'], "a cut has every key once"),
        (["read", "clicks", "--from", '{"0": 0, "1": 0, "9": 0}'], "has no segment `9`"),
        (
            ["read", "clicks", "--from", '{"0": 0, "1": 0, "2": 5}'],
            "the segment `2` ends at 0, so there is no cut at",
        ),
        (["read", "clicks", "--from", '{"0": 0, "1": 0, "2": "x"}'], "a cut names the offset"),
        (["scale", "clicks"], "scaling takes a number of segments"),
        (
            ["scale", "clicks", "--segments", "2", "--seal", "0", "--ranges", "0-1"],
            "scaling takes a number of segments",
        ),
        (
            ["scale", "clicks", "--seal", "0", "--ranges", "0-0.1"],
            "the successors must have the keys",
        ),
        (["scale", "clicks", "--seal", "7", "--ranges", "0-1"], "has no segment `7`"),
        (
            ["scale", "clicks", "--seal", "0", "--ranges", "low-high"],
            "--ranges takes parts of 0 to 1",
        ),
        (["marks", "clicks", "--limit", "0"], "--limit"),
        (["tail", "clicks", "--every", "0 s"], "--every"),
        (["control", "--stream", "visits"], "there is no stream `visits`"),
        (["control", "--period", "1 minute"], "shorter than the lease"),
    ],
)
def test_words_that_cannot_be_followed(clicks: Command, words: list[str], told: str):
    done = clicks(words[0], *words[1:])
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"tidegate stream {words[0]}: ")
    assert told in done.err
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


# Writing and reading


def test_what_is_written_is_read(clicks: Command):
    done = clicks("write", "clicks", given='{"a": 1}\n\n  {"b":  2}\r\n[3]')
    assert re.fullmatch(r"3 events written, 0 lines broken, position (\d:\d ?)+\n", done.out)
    assert sorted(clicks("read", "clicks").lines) == ["[3]", '{"a": 1}', '{"b":  2}']
    assert len(clicks("read", "clicks").lines) == 3, "nothing is confirmed without a group"


def test_keys_keep_their_order_in_one_segment(clicks: Command):
    clicks("write", "clicks", "--key", "user", given=rows(100))
    events = [json.loads(line) for line in clicks("read", "clicks", "--json", "--batch", 7).lines]
    assert set(events[0]) == {"segment", "offset", "key", "value", "appended", "window"}
    for user in {event["key"] for event in events}:
        mine = [event for event in events if event["key"] == user]
        assert len({event["segment"] for event in mine}) == 1
        assert numbers([event["value"] for event in mine]) == sorted(
            numbers([event["value"] for event in mine])
        )


def test_keys_that_are_no_text_are_as_json_says_them(clicks: Command):
    clicks(
        "write",
        "clicks",
        "--key",
        "k",
        given='{"k": 7}\n{"k": true}\n{"k": {"b": 1, "a": "é"}}\n{"k": "7"}\n{"k": ""}\n',
    )
    keys = [json.loads(line)["key"] for line in clicks("read", "clicks", "--json").lines]
    assert sorted(keys) == ["", "7", "7", "true", '{"a":"é","b":1}']


def test_text_is_taken_as_it_is(clicks: Command):
    clicks("write", "clicks", "--text", given=b"one\r\n\n tw\xffo \nthree")
    assert sorted(clicks("read", "clicks").lines) == ["", " tw\\xffo ", "one", "three"]
    found = [json.loads(line) for line in clicks("read", "clicks", "--json").lines]
    assert sorted(str(one.get("base64", one["value"])) for one in found) == [
        "",
        "IHR3/28g",
        "one",
        "three",
    ]


def test_values_with_line_ends_stay_on_one_line(clicks: Command, store: str):
    with streams.open(store) as opened, opened.stream("clicks").writer() as writer:
        writer.write("one\ntwo\r\n")
    assert clicks("read", "clicks").out == "one\\ntwo\\r\\n\n"
    assert clicks("read", "clicks", "--json").json["value"] == "one\ntwo\r\n"


def test_broken_lines_are_told_and_the_rest_goes_on(clicks: Command):
    lines = [
        b'{"k": "a", "ts": 5}',
        b"no",
        b'{"k": "a"}',
        b"[1]",
        b'{"k": "\xff", "ts": 1}',
        b'{"k": null, "ts": 1}',
        b'{"k": "a", "ts": "noon"}',
        b'{"k": "a", "ts": NaN}',
        b"[" * 100_000,
        b'{"k": "a", "ts": 1.5}',
        b'{"k": "\\ud800", "ts": 1}',
        b'{"k": "a", "ts": 1e400}',
        b"1,2",
        b'{"k": "b", "ts": 6}',
    ]
    done = clicks(
        "write", "clicks", "--key", "k", "--time", "ts", "--writer", "w", given=b"\n".join(lines)
    )
    assert done.status == 1
    assert done.out.startswith("2 events written, 12 lines broken, position ")
    told = done.err.splitlines()
    assert [line.split(" is broken: ")[0] for line in told] == [
        f"tidegate stream write: line {n}" for n in range(2, 14)
    ]
    reasons = dict(enumerate((line.split(" is broken: ")[1] for line in told), 2))
    assert reasons[2].startswith("it is not JSON")
    assert reasons[3] == "it has no field `ts`"
    assert reasons[4] == "it is no object, so it has no field `k`"
    assert reasons[5].startswith("it is not UTF-8")
    assert reasons[6] == "it has no field `k`"
    assert "an instant is an ISO 8601 text" in reasons[7]
    assert "NaN" in reasons[8]
    assert "UTF-8 cannot say" in reasons[11]
    assert sorted(clicks("read", "clicks").lines) == ['{"k": "a", "ts": 5}', '{"k": "b", "ts": 6}']


def test_many_broken_lines_are_counted(clicks: Command):
    done = clicks("write", "clicks", "--json", given="no\n" * 1000 + "1\n")
    assert (done.json["events"], done.json["broken"]) == (1, 1000)
    assert len(done.err.splitlines()) == 21
    assert "1,000 lines are broken" in done.err


def test_files_are_named_with_their_broken_lines_and_may_stand_anywhere(
    clicks: Command, tmp_path: Path
):
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    one.write_bytes(b"\xef\xbb\xbf" + rows(3).encode())
    two.write_text("no\n" + rows(2, 3), "utf-8")
    done = clicks("write", "clicks", one, "--key", "user", two, "-", given=rows(1, 5))
    assert done.err.startswith(f"tidegate stream write: {two}, line 1 is broken: ")
    assert sorted(numbers(clicks("read", "clicks").lines)) == list(range(6))


def test_a_line_of_ten_megabytes_is_an_event_and_one_that_is_too_long_is_broken(
    clicks: Command, monkeypatch: pytest.MonkeyPatch
):
    long = json.dumps({"n": 1, "text": "x" * 10_000_000})
    assert clicks("write", "clicks", given=f"{long}\n{rows(1)}").status == 0
    assert sorted(map(len, clicks("read", "clicks").lines)) == [len(rows(1)) - 1, len(long)]
    monkeypatch.setattr(reading, "LINE_BYTES", 5 << 20)
    done = clicks("write", "clicks", given=f"{rows(1)}{long}\n{rows(1)}{long}")
    assert (done.status, done.out.split(", position")[0]) == (1, "2 events written, 2 lines broken")
    assert [line.split(": ", 1)[1] for line in done.err.splitlines()] == [
        "line 2 is broken: it is longer than 5 MB",
        "line 4 is broken: it is longer than 5 MB",
    ]


def test_a_reader_begins_where_it_is_told(clicks: Command):
    clicks("write", "clicks", given=rows(10))
    cut = clicks("tail", "clicks", "--json").json["tail"]
    clicks("write", "clicks", given=rows(5, 10))
    assert sorted(numbers(clicks("read", "clicks", "--from", json.dumps(cut)).lines)) == [
        10,
        11,
        12,
        13,
        14,
    ]
    assert clicks("read", "clicks", "--from", "latest").out == ""
    assert len(clicks("read", "clicks", "--from", "earliest", "--limit", 4).lines) == 4


def test_a_group_goes_on_after_what_was_printed(clicks: Command):
    clicks("write", "clicks", given=rows(20))
    first = clicks(
        "read", "clicks", "--group", "g", "--reader", "r", "--limit", 7, "--batch", 3
    ).lines
    rest = clicks("read", "clicks", "--group", "g").lines
    assert len(first) == 7
    assert sorted(numbers(first + rest)) == list(range(20))
    assert clicks("read", "clicks", "--group", "g").out == ""
    assert len(clicks("read", "clicks", "--group", "other", "--from", "latest").lines) == 0


@pytest.mark.parametrize("group", [[], ["--group", "g"]])
def test_scaled_streams_are_read_through(clicks: Command, group: list[str]):
    clicks("write", "clicks", "--key", "user", given=rows(50))
    clicks("scale", "clicks", "--segments", 2)
    clicks("write", "clicks", "--key", "user", given=rows(50, 50))
    shown = clicks("scale", "clicks", "--seal", "3,4", "--ranges", "0-1/4,1/4-1", "--json").json
    assert [
        (one["low"], one["high"], one["epoch"]) for one in shown["segments"] if one["open"]
    ] == [(0, 0.25, 2), (0.25, 1, 2)]
    clicks("write", "clicks", "--key", "user", given=rows(50, 100))
    found = [json.loads(line) for line in clicks("read", "clicks", "--batch", 9, *group).lines]
    assert sorted(one["n"] for one in found) == list(range(150))
    for _, mine in itertools.groupby(
        sorted(found, key=lambda one: one["user"]), key=lambda one: one["user"]
    ):
        ordered = [one["n"] for one in mine]
        assert ordered == sorted(ordered)


@pytest.mark.parametrize("group", [[], ["--group", "g"]])
def test_segments_without_events_are_passed(clicks: Command, group: list[str]):
    for segments in (1, 2, 4):
        clicks("scale", "clicks", "--segments", segments)
    clicks("write", "clicks", given=rows(5))
    assert sorted(numbers(clicks("read", "clicks", *group).lines)) == [0, 1, 2, 3, 4]


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
    assert clicks("marks", "clicks").lines == ["  no writer is known", "", "  no watermark yet"]
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
            told = clicks("marks", "clicks", "--json", "--limit", 2).json
    assert re.split(r"\s{2,}", shown[0].strip()) == [
        "writer",
        "time",
        "alive",
        "behind the clock",
        "position",
    ]
    assert re.match(
        r"  w1      1970-01-01T00:00:30Z  yes    \d+ days .* seconds.*  \d:3$", shown[1]
    )
    assert [line.split()[0] for line in shown[4:]] == [
        "watermark",
        *(f"1970-01-01T00:00:{s}Z" for s in (30, 20, 10)),
    ]
    assert [(one["writer"], one["time"], one["alive"]) for one in told["writers"]] == [
        ("w1", 30_000_000, True),
        ("w2", 35_000_000, True),
    ]
    assert all(one["lag"] > 10**15 for one in told["writers"])
    assert [(one["time"], one["upper"]) for one in told["watermarks"]] == [
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
        "has noted 1970-01-01T00:00:50Z, and its time cannot go back to 1970-01-01T00:00:09Z; the"
        " events are written all the same" in done.err
    )
    assert done.out.endswith(", 10 behind the time noted before them\n")
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
    # The 20 comes after a commit that has noted 30; the second 30 is not behind it.
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
        "0 events written, 0 lines broken, position none, 17 skipped that were there already\n",
    )
    short = clicks("write", "clicks", *words, "--resume", given=rows(5))
    assert short.status == 1
    assert "have brought 17 events, and the input has only 5" in short.err
    assert (
        "has brought 17 events before; --resume"
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


# Lines


@given(
    st.lists(
        st.binary(max_size=5).map(lambda line: line.replace(b"\n", b"n").replace(b"\r", b"r"))
    ),
    st.integers(1, 7),
    st.booleans(),
)
def test_lines_do_not_depend_on_how_they_come(lines: list[bytes], size: int, ended: bool):
    data = b"\n".join(lines) + (b"\n" if ended and lines else b"")
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    found = list(lines_of(pieces))
    wanted = data.split(b"\n")
    assert [line for _, several in found for line in several] == (
        wanted if wanted[-1] else wanted[:-1]
    )
    at = 1
    for number, several in found:
        assert number == at
        at += len(several)


PLAIN = st.none() | st.booleans() | st.integers() | st.text(max_size=4)
JSON = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
)
ODD = st.sampled_from(
    [
        "1,2",
        "[3",
        "4]",
        '{"a":1',
        '"b":2}',
        "1],[2",
        "]",
        "[",
        '"',
        "NaN",
        "-Infinity",
        "{}",
        "[]",
        ",",
    ]
)


@given(st.lists(JSON.map(json.dumps) | ODD, max_size=8))
@example(["NaN"])
@example(["1", "-Infinity"])
@example(["1,2", "[3", "4]"])
@example(["[1", "2]", "3,4"])
def test_lines_that_are_read_together_say_what_each_says_alone(lines: list[str]):
    def is_good(line: str) -> bool:
        try:
            json.loads(line, parse_constant=lambda _: 1 / 0)
        except (ValueError, ZeroDivisionError):
            return False
        return True

    found = events_of(1, [line.encode() for line in lines], Form())
    assert found.numbers == [at for at, line in enumerate(lines, 1) if is_good(line)]
    assert [at for at, _ in found.broken] == [
        at for at, line in enumerate(lines, 1) if not is_good(line)
    ]


@given(st.integers(0, 6))
def test_splitting_keeps_broken_lines_with_what_comes_after_them(count: int):
    events = events_of(1, [b"1", b"x", b"2", b"3", b"x", b"x", b"4", b"x"], Form())
    first, rest = events.split(count)
    whole = Events()
    whole.extend(first)
    whole.extend(rest)
    assert whole == events
    assert len(first) == min(count, 4)
    assert (
        all(at < first.numbers[-1] for at, _ in first.broken)
        if first.numbers and count <= 4
        else True
    )


# Other processes

PROGRAM = "import sys; from tidegate.cli import main; sys.exit(main(['stream', *sys.argv[1:]]))"


@contextmanager
def started(*words: object, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    options = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        **options,
    }
    with subprocess.Popen([sys.executable, "-c", PROGRAM, *map(str, words)], **options) as process:
        try:
            yield process
        finally:
            process.kill()


def until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait for something that a process brings about."""
    while not condition():
        assert process.poll() is None, "it has ended before"


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_lines_go_out_while_the_input_is_open_and_ctrl_c_flushes(clicks: Command, store: str):
    with streams.open(store) as opened:
        reader = opened.stream("clicks").group("g").reader("r")
        with started("write", store, "clicks", "--key", "user", "--json") as process:
            assert process.stdin is not None
            process.stdin.write(rows(3).encode())
            process.stdin.flush()
            assert len(reader.read(10, wait="30 seconds")) > 0
            process.stdin.write(rows(2, 3).encode() + b'{"n": 5}')
            process.stdin.flush()
            until(
                lambda: sum(end for _, end in opened.store.bounds("clicks").values()) == 5, process
            )
            process.send_signal(signal.SIGINT)
            process.wait(60)
            status, out, err = ended(process)
        assert (status, err) == (0, b"")
        assert json.loads(out)["interrupted"] is True
        assert json.loads(out)["events"] == 5, "the line that has no end yet may be half a line"
    assert sorted(numbers(clicks("read", "clicks").lines)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "words", [["--transaction", 1000, "--writer", "w"], ["--writer", "w", "--auto-note-time"]]
)
def test_sigterm_commits_what_was_read_and_lets_go_of_the_writer(
    clicks: Command, store: str, words: list[object]
):
    with started("write", store, "clicks", "--json", *words) as process:
        assert process.stdin is not None
        process.stdin.write(rows(7).encode())
        process.stdin.flush()
        with streams.open(store) as opened:
            stream = opened.stream("clicks")
            # What looks at the stream beside has begun when there is an owner, and what is written
            # when there is a mark.
            until(
                lambda: (
                    bool(stream.marks().by_writer)
                    or (
                        "--transaction" in words
                        and opened.store.cell("clicks", "owner") is not None
                    )
                ),
                process,
            )
        process.send_signal(signal.SIGTERM)
        status, out, err = ended(process)
    assert (status, err) == (0, b"")
    told = json.loads(out)
    assert (told["events"] in (0, 7), told["interrupted"]) == (True, True)
    assert len(clicks("read", "clicks").lines) == told["events"]
    assert [
        one for one in clicks("marks", "clicks", "--json").json["writers"] if one["alive"]
    ] == []


@pytest.mark.parametrize("words", [[], ["--transaction", 2, "--writer", "w"]])
def test_what_fails_on_the_way_is_told(clicks: Command, store: str, words: list[object]):
    with started("write", store, "clicks", *words) as process, streams.open(store) as opened:
        assert process.stdin is not None
        process.stdin.write(rows(4).encode())
        process.stdin.flush()
        until(lambda: sum(end for _, end in opened.store.bounds("clicks").values()) == 4, process)
        opened.delete("clicks")
        out, err = process.communicate(rows(2).encode(), timeout=60)
    assert (process.returncode, out) == (1, b"")
    assert b"there is no stream `clicks`" in err
    assert b"it failed after " in err
    assert b"Traceback" not in err


@pytest.mark.slow
def test_a_writer_that_is_killed_goes_on_exactly_once(clicks: Command, store: str, tmp_path: Path):
    file = tmp_path / "many.jsonl"
    file.write_text("no\n" + rows(30_000), "utf-8")
    times = ["--time", "ts", "--unit", "ms", "--writer", "w"]
    words = [
        "write",
        store,
        "clicks",
        file,
        "--key",
        "user",
        *times,
        "--transaction",
        50,
        "--resume",
        "--json",
    ]
    with streams.open(store) as opened:
        writer, before = opened.stream("clicks").transactional_writer("w"), -1
        for _ in range(3):
            with started(
                *words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            ) as process:
                until(lambda: writer.written > before + 200, process)  # noqa: B023 - it is called now
                process.kill()
                process.wait()
            before = writer.written
        assert 600 <= before < 30_000
    with started(*words, stdin=subprocess.DEVNULL) as process:
        status, out, _ = ended(process)
    told = json.loads(out)
    assert (status, told["skipped"], told["events"] + told["skipped"]) == (0, before, 30_000)
    found = numbers(clicks("read", "clicks").lines)
    assert sorted(found) == list(range(30_000))
    for user in range(5):
        mine = [n for n in found if n % 5 == user]
        assert mine == sorted(mine)
    with streams.open(store, clock=lambda: machine_clock() + 60_000_000) as opened:
        # A minute later nobody holds the stream for the controllers that were killed.
        opened.controller().round()
        assert opened.stream("clicks").watermarks()[-1].time == 29_999_000_000


@pytest.mark.parametrize("follow", [[], ["--follow"]])
def test_a_closed_pipe_ends_quietly_and_confirms_nothing_that_was_not_printed(
    clicks: Command, store: str, follow: list[str]
):
    wide = "".join(json.dumps({"n": n, "wide": "x" * 2000}) + "\n" for n in range(500))
    clicks("write", "clicks", given=wide)
    with started("read", store, "clicks", "--group", "g", "--batch", 100, *follow) as process:
        assert process.stdout is not None
        # A batch is longer than what a pipe holds, so this one cannot have been printed whole.
        assert process.stdout.readline().startswith(b'{"n": ')
        process.stdout.close()
        process.stdout = None
        status, _, err = ended(process)
    assert (status, err) == (0, b"")
    assert sorted(numbers(clicks("read", "clicks", "--group", "g").lines)) == list(range(500))


def test_a_follower_sees_the_closed_pipe_while_nothing_comes(clicks: Command, store: str):
    clicks("write", "clicks", given=rows(1))
    with started("read", store, "clicks", "--follow") as process:
        assert process.stdout is not None
        assert numbers([process.stdout.readline().decode()]) == [0]
        process.stdout.close()
        process.stdout = None
        assert ended(process)[0] == 0


def test_a_follower_prints_what_comes_until_ctrl_c(clicks: Command, store: str):
    with started("read", store, "clicks", "--group", "g", "--follow") as process:
        assert process.stdout is not None
        clicks("write", "clicks", given=rows(2))
        assert sorted(numbers([process.stdout.readline().decode() for _ in range(2)])) == [0, 1]
        clicks("scale", "clicks", "--segments", 1)
        clicks("write", "clicks", given=rows(2, 2))
        assert sorted(numbers([process.stdout.readline().decode() for _ in range(2)])) == [2, 3]
        process.send_signal(signal.SIGINT)
        assert ended(process) == (0, b"", b"")
    assert clicks("read", "clicks", "--group", "g").out == ""


def test_a_controller_tells_watermarks_until_ctrl_c(clicks: Command, store: str):
    with (
        started("control", store, "--period", "50 ms", "--stream", "clicks", "--json") as process,
        streams.open(store) as opened,
    ):
        assert process.stdout is not None
        with opened.stream("clicks").writer("w") as writer:
            for time in (10, 20):
                writer.write("x")
                writer.note_time(time)
                writer.flush()
                told = json.loads(process.stdout.readline())
                assert (told["stream"], told["time"], told["upper"]) == ("clicks", time, time)
        process.send_signal(signal.SIGINT)
        assert ended(process) == (0, b"", b"")
        assert opened.store.cell("clicks", "owner") is None, (
            "the stream is free for another controller at once"
        )


def test_the_tail_is_shown_again_and_again_until_ctrl_c(clicks: Command, store: str):
    with started("tail", store, "clicks", "--follow", "--every", "20 ms", "--json") as process:
        assert process.stdout is not None
        assert sum(json.loads(process.stdout.readline())["tail"].values()) == 0
        clicks("write", "clicks", given=rows(4))
        while sum(json.loads(process.stdout.readline())["tail"].values()) < 4:
            pass
        process.send_signal(signal.SIGINT)
        assert ended(process)[0] == 0


PEAK = (
    "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
)


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(),
    reason="nobody tells how much memory a process has had at most",
)
def test_a_file_larger_than_what_is_held_streams_through(
    clicks: Command, store: str, tmp_path: Path
):
    def peak(megabytes: int) -> int:
        file = tmp_path / "lines.txt"
        with file.open("wb") as out:
            for _ in range(megabytes):
                out.write((b"y" * 999 + b"\n") * 1000)
        words = ["write", f"sqlite:{store}?synchronous=normal", "clicks", "--text", file]
        program = f"{PROGRAM.replace('sys.exit', 'print')}; {PEAK}"
        done = subprocess.run(
            [sys.executable, "-c", program, *words], capture_output=True, text=True, check=True
        )
        told, _, used = done.stdout.splitlines()
        assert told.startswith(f"{megabytes * 1000:,} events written, 0 lines broken")
        return int(used)

    # Kilobytes: a file that is 60 MB longer takes no more memory.
    assert peak(80) < peak(20) + 30_000


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
