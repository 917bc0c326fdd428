"""Filters known, harmless start-up messages of Spark from the standard error stream."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_HARMLESS = re.compile(
    rb"WARNING: Using incubator modules|Streaming TransformWithStateIn\w+ Python worker|^\s*$"
)


@contextmanager
def filtered_stderr() -> Iterator[None]:
    """Within this context, started programs write to a filtered standard error stream.

    The programs keep that stream, so filtering continues afterwards.
    """
    sys.stderr.flush()
    before, (reading, writing) = os.dup(2), os.pipe()
    passing = os.dup(before)
    threading.Thread(target=_pass_on, args=(reading, passing), daemon=True).start()
    os.dup2(writing, 2)
    os.close(writing)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)


def _pass_on(reading: int, passing: int) -> None:
    with os.fdopen(reading, "rb", buffering=0) as lines:
        rest = b""
        while piece := lines.read(65536):
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                if not _HARMLESS.search(line):
                    os.write(passing, line + b"\n")
    os.close(passing)
