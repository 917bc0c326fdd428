"""`tidegate stream write` and `read`: lines become events, and events become lines."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.stream_commands import Command, numbers, rows
from tidegate import streams
from tidegate.cli import stream_lines as reading
from tidegate.cli.stream_lines import Events, Form, events_of, lines_of


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "events.db")


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
    output = done.err.splitlines()
    assert [line.split(" is broken: ")[0] for line in output] == [
        f"tidegate stream write: line {n}" for n in range(2, 14)
    ]
    reasons = dict(enumerate((line.split(" is broken: ")[1] for line in output), 2))
    assert reasons[2].startswith("it is not JSON")
    assert reasons[3] == "it has no field `ts`"
    assert reasons[4] == "it is not an object, so it has no field `k`"
    assert reasons[5].startswith("it is not UTF-8")
    assert reasons[6] == "it has no field `k`"
    assert "an instant is an ISO 8601 text" in reasons[7]
    assert "NaN" in reasons[8]
    assert "cannot be encoded as UTF-8" in reasons[11]
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
