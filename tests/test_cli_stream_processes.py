"""`tidegate stream` in processes of its own: signals, kills, closed pipes and memory."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.stream_commands import PROGRAM, Command, ended, numbers, rows, started, until
from tidegate import streams
from tidegate.streams.stream import machine_clock


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "events.db")


def test_lines_go_out_while_the_input_is_open_and_ctrl_c_flushes(clicks: Command, store: str):
    with streams.open(store) as opened:
        reader = opened.stream("clicks").group("g").reader("r")
        with started("write", store, "clicks", "--key", "user", "--json") as process:
            assert process.stdin is not None
            process.stdin.write(rows(3).encode())
            process.stdin.flush()
            assert len(reader.read(10, wait="10 minutes")) > 0
            process.stdin.write(rows(2, 3).encode() + b'{"n": 5}')
            process.stdin.flush()
            until(
                lambda: sum(end for _, end in opened.store.bounds("clicks").values()) == 5, process
            )
            process.send_signal(signal.SIGINT)
            process.wait(600)
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
            # An owner shows that the controller runs, and a mark shows that events were written.
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
    output = json.loads(out)
    assert (output["events"] in (0, 7), output["interrupted"]) == (True, True)
    assert len(clicks("read", "clicks").lines) == output["events"]
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
        out, err = process.communicate(rows(2).encode(), timeout=600)
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
                until(lambda: writer.written > before + 200, process)  # noqa: B023 - called within the loop
                process.kill()
                process.wait()
            before = writer.written
        assert 600 <= before < 30_000
    with started(*words, stdin=subprocess.DEVNULL) as process:
        status, out, _ = ended(process)
    output = json.loads(out)
    assert (status, output["skipped"], output["events"] + output["skipped"]) == (0, before, 30_000)
    found = numbers(clicks("read", "clicks").lines)
    assert sorted(found) == list(range(30_000))
    for user in range(5):
        mine = [n for n in found if n % 5 == user]
        assert mine == sorted(mine)
    with streams.open(store, clock=lambda: machine_clock() + 60_000_000) as opened:
        # A minute later the leases of the killed controllers have expired.
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
        # A batch is longer than the buffer of a pipe, so it cannot have been printed completely.
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
                output = json.loads(process.stdout.readline())
                assert (output["stream"], output["time"], output["upper"]) == ("clicks", time, time)
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
    reason="the peak memory of a process is not available",
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
        output, _, used = done.stdout.splitlines()
        assert output.startswith(f"{megabytes * 1000:,} events written, 0 lines broken")
        return int(used)

    # Kilobytes: a file that is 60 MB longer needs no more memory.
    assert peak(80) < peak(20) + 30_000
