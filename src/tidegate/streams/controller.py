"""The controller aggregates writer marks into stream watermarks.

Several controllers may run. They share the streams, and a lease makes one of them the owner of a
stream at a time (`streams.ownership`).
"""

from __future__ import annotations

import os
import threading
import uuid
from dataclasses import dataclass
from socket import gethostname
from types import TracebackType
from typing import Self

from tidegate.errors import SpecError, StreamError, TidegateError
from tidegate.instants import Duration, duration
from tidegate.kernel.streams.watermarks import Aggregation, Marks, StreamMark
from tidegate.streams.description import CELL, checked_name
from tidegate.streams.ownership import Ownership
from tidegate.streams.store import Cell, Conflict, Store, Swap
from tidegate.streams.stream import MARKS, Clock, Stream, machine_clock, mark_of
from tidegate.streams.watermark_log import WatermarkLog


@dataclass
class _Owned:
    """State of a stream that this controller owns: silent writers and the watermark log."""

    aggregation: Aggregation
    log: WatermarkLog


class Controller:
    """Computes the watermarks of streams, one round per period.

    Any number of controllers may run in any processes, each with its own name. They share the
    streams evenly, and share them anew when a controller joins or leaves. Each stream has one
    owner. If the owner is silent for `lease`, another controller takes over from the last published
    watermark. An owner that was only slow notices that it lost the lease, and publishes nothing.
    """

    def __init__(
        self,
        store: Store,
        *,
        streams: list[str] | None = None,
        period: Duration = "1 second",
        lease: Duration = "5 seconds",
        name: str | None = None,
        clock: Clock = machine_clock,
    ) -> None:
        """`streams` are the names of the streams to control. Default: all of the store."""
        self._store, self._clock = store, clock
        self._period, self._lease = duration(period), duration(lease)
        if not 0 < self._period < self._lease:
            raise SpecError(
                f"`period` must be greater than 0 and shorter than `lease`, got {period!r} and"
                f" {lease!r}"
            )
        self.name = _unique_name() if name is None else checked_name("a controller", name)
        self._ownership = Ownership(store, self.name, streams, self._lease)
        self._owned: dict[str, _Owned] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._died = False
        self.failure: Exception | None = None
        """The error of the last round; None if it succeeded."""

    @property
    def owned(self) -> list[str]:
        """The streams that this controller owned after its last round, sorted."""
        return sorted(self._ownership.owned)

    def round(self) -> dict[str, StreamMark]:
        """Run one round over the streams of this controller; returns the new watermarks."""
        found: dict[str, StreamMark] = {}
        failure: TidegateError | None = None
        share = self._ownership.share(self._clock())
        self._owned = {name: state for name, state in self._owned.items() if name in share}
        for name in share:
            try:
                mark = self._look(name)
            except TidegateError as error:
                # A watermark that was computed but not published does not exist.
                self._owned.pop(name, None)
                # A conflict is no failure: a new owner took over, a writer noted a time, or the
                # stream was deleted.
                if not isinstance(error, Conflict) and self._store.cell(name, CELL) is not None:
                    failure = failure or error
                continue
            if mark is not None:
                found[name] = mark
        if failure is not None:
            raise failure
        return found

    def _look(self, name: str) -> StreamMark | None:
        now = self._clock()
        lease = self._ownership.acquire(name, now)
        if lease is None or lease.is_new:
            self._owned.pop(name, None)
        if lease is None:
            return None
        cells = self._store.cells(name, MARKS)
        log = (
            WatermarkLog(self._store, name).refresh()
            if name not in self._owned
            else self._owned[name].log
        )
        # Read the description last, so that it has all segments that the cells refer to.
        described = Stream(self._store, name, self._clock).description()
        owned = self._owned.get(name)
        if owned is None:
            last = log.marks.get(log.newest)
            owned = self._owned[name] = _Owned(
                Aggregation(described.settings.timestamp_aggregation_timeout, last), log
            )
        if (
            owned.aggregation.last is None
            and now < described.created + described.settings.initial_delay
        ):
            return None
        known = {key: mark_of(cell.document) for key, cell in cells.items()}
        marks = Marks({key: mark for key, mark in known.items() if mark is not None})
        mark = owned.aggregation.compute(marks, described.segments, now)
        if self._clock() >= lease.until:
            raise Conflict(
                f"the lease of the stream `{name}` has expired, so another controller may own it"
            )
        for key, before in known.items():
            if before is not None and key not in marks:
                self._forget(name, key, cells[key])
        if mark is not None:
            owned.log.publish(mark)
            owned.log.forget_before(owned.log.newest)
        return mark

    def _forget(self, name: str, key: str, cell: Cell) -> None:
        """Remove the mark of a writer unless it has changed; keep its count of committed events."""
        document = (
            {**cell.document, "time": None, "position": {}} if cell.document["events"] else None
        )
        self._store.swap(name, Swap(key, document, cell.version))

    # Background thread

    def run(self) -> None:
        """Run rounds until `stop`. After an error of the store, set `failure` and retry."""
        while not self._ended.is_set():
            try:
                self.round()
                self.failure = None
            except TidegateError as error:
                self.failure = error
            self._ended.wait(self._period / 1e6)

    def start(self) -> Self:
        """Run in a background thread."""
        if self._thread is not None:
            raise StreamError("the controller is already running")
        self._ended.clear()
        self._thread = threading.Thread(
            target=self._guarded, name=f"tidegate controller {self.name}", daemon=True
        )
        self._thread.start()
        return self

    def _guarded(self) -> None:
        try:
            self.run()
        except Exception as error:  # noqa: BLE001 - raised by stop
            self.failure, self._died = error, True

    def stop(self) -> None:
        """Stop, release the streams, and raise the error of the background thread, if any."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        try:
            self._ownership.leave()
        finally:
            self._owned.clear()
            if self._died:
                self._died = False
                raise StreamError(
                    f"the background thread of the controller failed ({self.failure})"
                ) from self.failure

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _unique_name() -> str:
    host = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in gethostname())
    return f"{host[:100]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
