"""Progress bars: on a terminal only, and nothing is left of them."""

from __future__ import annotations

import io
import sys

import pytest

from tidegate.progress_bar import progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def work() -> None:
    with progress_bar("scenarios") as advance:
        for number in range(3):
            advance(number + 1, 3)


def test_without_a_terminal_nothing_is_printed(capsys: pytest.CaptureFixture[str]):
    work()
    assert capsys.readouterr() == ("", "")


def test_a_terminal_has_a_bar_that_is_removed(monkeypatch: pytest.MonkeyPatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    work()
    assert "scenarios" in terminal.getvalue()
    # The last thing that is written erases the line.
    assert terminal.getvalue().rstrip().endswith("\x1b[2K")
