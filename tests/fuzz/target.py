"""A fuzz target: a function of bytes that may raise only errors of Tidegate."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.errors import TidegateError

CORPUS = Path(__file__).parent / "corpus"
"""Inputs that crashed, by target; kept as regression tests."""


@dataclass(frozen=True)
class Target:
    """What is fuzzed, under a name."""

    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    """Valid inputs, which mutations start from."""
    allowed: tuple[type[BaseException], ...] = field(default=(TidegateError,))
    """The errors that say that an input is refused."""

    def check(self, data: bytes) -> None:
        """Run one input; any error that is not allowed comes out."""
        with contextlib.suppress(*self.allowed):
            self.run(data)

    @property
    def crashes(self) -> list[Path]:
        """The inputs that crashed once."""
        return sorted((CORPUS / self.name).glob("*"))


def text(data: bytes) -> str:
    """Any text, also with lone surrogates."""
    return data.decode("utf-8", "surrogateescape" if data[:1] == b"\xff" else "replace")


def json_of(data: bytes) -> object:
    """The JSON document of an input; `ValueError` for other inputs is no finding."""
    return json.loads(data.decode("utf-8", "replace"))


def gzipped(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)
