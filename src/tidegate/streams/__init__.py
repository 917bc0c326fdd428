"""Streams whose writers know the time: writers note it, a controller folds it into watermarks with
positions, and readers know where they are.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tidegate.errors import InputError, SpecError
from tidegate.instants import Duration, duration
from tidegate.kernel.streams.aggregation import StreamMark
from tidegate.kernel.streams.reading import Frontier
from tidegate.kernel.streams.time_windows import TimeWindow
from tidegate.streams.controller import Controller
from tidegate.streams.description import CELL, Description, Settings, checked_name
from tidegate.streams.events import Event
from tidegate.streams.opening import open_store
from tidegate.streams.readers import Reader, ReaderGroup
from tidegate.streams.store import Conflict, Store, Swap
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
        """Make a stream with so many segments.

        A writer that is behind and silent for `timestamp_aggregation_timeout` is forgotten. There
        is no watermark within `initial_delay`.
        """
        settings = Settings(duration(timestamp_aggregation_timeout), duration(initial_delay))
        document = Description.new(segments, settings, self.clock()).to_dict()
        try:
            self.store.swap(checked_name("a stream", name), Swap(CELL, document, 0))
        except Conflict:
            raise InputError(
                f"there is a stream `{name}` already. Hint: store.stream('{name}')"
            ) from None
        stream = Stream(self.store, name, self.clock)
        stream.description()
        return stream

    def stream(self, name: str) -> Stream:
        """A stream that was created before."""
        stream = Stream(self.store, checked_name("a stream", name), self.clock)
        stream.description()
        return stream

    def names(self) -> list[str]:
        """The names of all streams, in their order."""
        return names_of(self.store)

    def delete(self, name: str) -> None:
        """Remove a stream with all that is in it."""
        self.stream(name)
        self.store.drop(name)

    def controller(self, **options: Any) -> Controller:
        """A controller of the streams of this store; `Controller` tells the options."""
        if "clock" in options:
            raise SpecError(
                "a controller has the clock of its store. Hint: tidegate.streams.open(...,"
                " clock=...)"
            )
        return Controller(self.store, clock=self.clock, **options)

    def close(self) -> None:
        """Let go of the store; what is in it stays."""
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
    """The streams at an address: a path or `sqlite:PATH` is a file of this machine,
    `kafka://HOST:PORT/PREFIX` are topics of Kafka.

    A file that is not there is made, unless `create` is false.
    """
    return Streams(open_store(url, create=create), clock)
