"""`tidegate stream` in this process and in others, as fixtures and functions.

A test requests `tidegate`, or `clicks` for a store that has a stream. Both use the fixture
`store`, the path of a store, which the test module defines.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tidegate.cli import main

NOW = ["--initial-delay", "0 s"]


class Run:
    """A finished command."""

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
        output = self._capsys.readouterr()
        return Run(status, output.out, output.err)


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
    """Wait for an effect of a process."""
    while not condition():
        assert process.poll() is None, "it has ended before"


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    out, err = process.communicate(timeout=600)
    return process.returncode, out, err
