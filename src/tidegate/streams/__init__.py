"""Streams with writer-side watermarks.

Writers note event times, a controller aggregates the notes into watermarks with positions, and
readers know which time window they are in.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tidegate.errors import InputError, SpecError
from tidegate.instants import Duration, duration
from tidegate.kernel.streams.frontier import Frontier
from tidegate.kernel.streams.watermarks import StreamMark, TimeWindow
from tidegate.streams.controller import Controller
from tidegate.streams.description import CELL, Description, StreamSettings, checked_name
from tidegate.streams.events import Event
from tidegate.streams.readers import Reader, ReaderGroup
from tidegate.streams.store import Conflict, Store, Swap, open_store
from tidegate.streams.stream import Clock, Stream, machine_clock, names_of
from tidegate.streams.transactions import Committed, Transaction, TransactionalWriter
from tidegate.streams.writer import Writer

__all__ = [
    "Committed",
    "Controller",
    "Event",
    "Frontier",
    "Reader",
    "ReaderGroup",
    "Stream",
    "StreamMark",
    "Streams",
    "TimeWindow",
    "Transaction",
    "TransactionalWriter",
    "Writer",
    "open",
]


@dataclass(frozen=True)
class Streams:
    """The streams of a store."""

    store: Store
    clock: Clock = machine_clock

    def create(
        self,
        name: str,
        segments: int = 1,
        *,
        timestamp_aggregation_timeout: Duration = "1 minute",
        initial_delay: Duration = "5 seconds",
    ) -> Stream:
        """Create a stream with the given number of segments.

        A writer that is behind and silent for `timestamp_aggregation_timeout` no longer holds the
        watermark back. The stream has no watermark before `initial_delay` has passed.
        """
        settings = StreamSettings(duration(timestamp_aggregation_timeout), duration(initial_delay))
        document = Description.new(segments, settings, self.clock()).to_dict()
        try:
            self.store.swap(checked_name("a stream", name), Swap(CELL, document, 0))
        except Conflict:
            raise InputError(
                f"the stream `{name}` already exists. Hint: store.stream('{name}')"
            ) from None
        stream = Stream(self.store, name, self.clock)
        stream.description()
        return stream

    def stream(self, name: str) -> Stream:
        """An existing stream."""
        stream = Stream(self.store, checked_name("a stream", name), self.clock)
        stream.description()
        return stream

    def names(self) -> list[str]:
        """The names of all streams, sorted."""
        return names_of(self.store)

    def delete(self, name: str) -> None:
        """Delete a stream with its events, marks, watermarks and groups."""
        self.stream(name)
        self.store.drop(name)

    def controller(self, **options: Any) -> Controller:
        """A controller of the streams of this store; see `Controller` for the options."""
        if "clock" in options:
            raise SpecError(
                "a controller uses the clock of its store. Hint: tidegate.streams.open(...,"
                " clock=...)"
            )
        return Controller(self.store, clock=self.clock, **options)

    def close(self) -> None:
        """Close the connection to the store; its content stays."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open(
    url: str | os.PathLike[str], *, create: bool = True, clock: Clock = machine_clock
) -> Streams:
    """Open the streams at an address.

    A path or `sqlite:PATH` is a SQLite file on this machine, `kafka://HOST:PORT/PREFIX` is a set of
    Kafka topics. A missing file is created unless `create` is false.
    """
    return Streams(open_store(url, create=create), clock)
