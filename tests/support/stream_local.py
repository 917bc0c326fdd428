"""A local store, a manual clock and a stream of two segments, as fixtures.

A test requests `clock`, `local`, `streams` or `stream`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.stream_worlds import HandClock, Meddled
from tidegate.streams import Stream, Streams
from tidegate.streams.sqlite import SqliteStore


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Meddled]:
    """A local store whose calls a test can intercept."""
    with Meddled(SqliteStore(tmp_path / "local.db", synchronous="normal")) as found:
        yield found


@pytest.fixture
def streams(local: Meddled, clock: HandClock) -> Streams:
    return Streams(local, clock)


@pytest.fixture
def stream(streams: Streams) -> Stream:
    """A stream of two segments without initial delay and with a writer timeout of 30 seconds."""
    return streams.create("s", 2, initial_delay="0 s", timestamp_aggregation_timeout="30 s")
