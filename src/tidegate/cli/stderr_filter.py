"""The error output without what Spark's programs say on every start and nobody can mend."""

from __future__ import annotations

import os
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_NOISE = re.compile(
    rb"WARNING: Using incubator modules|Streaming TransformWithStateIn\w+ Python worker|^\s*$"
)


@contextmanager
def without_noise() -> Iterator[None]:
    """While it lasts, programs that are started get an error output whose lines are looked through;
    all other lines pass.

    The programs keep that output for their whole life, so the looking through goes on afterwards.
    """
    warnings.filterwarnings(
        "ignore", message="PySpark does not yet fully support pandas", category=FutureWarning
    )
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
                if not _NOISE.search(line):
                    os.write(passing, line + b"\n")
    os.close(passing)
