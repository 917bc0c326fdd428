"""Transactions: events that become visible together at commit, with a timestamp, or not at all."""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from tidegate.errors import SpecError, StreamError
from tidegate.instants import Instant, format_duration, instant
from tidegate.kernel.streams.segments import Position
from tidegate.streams.description import checked_name
from tidegate.streams.events import EventBuffer
from tidegate.streams.routing import Router
from tidegate.streams.store import Conflict, EventBatch, Swap
from tidegate.streams.stream import Stream
from tidegate.streams.writer_cell import WriterCell, committed, goes_back

OPEN, COMMITTED, ABORTED, TIMED_OUT = "open", "committed", "aborted", "timed out"


@dataclass(frozen=True)
class Committed:
    """The result of a commit."""

    position: Position
    """The offset after the last event, for each segment that received events."""
    noted: bool
    """Whether the timestamp became the writer's mark: false without one, or if it goes back."""


class TransactionalWriter:
    """Writes in transactions; several may be open at once.

    The writer buffers a transaction until commit. So the crash of a writer leaves nothing behind,
    and scaling never has to handle an open transaction.
    """

    def __init__(self, stream: Stream, writer_id: str, timeout: int) -> None:
        if timeout <= 0:
            raise SpecError(f"`timeout` must be greater than 0, got {format_duration(timeout)}")
        self.id, self._stream, self._timeout = checked_name("a writer", writer_id), stream, timeout
        self._cell = WriterCell(stream, self.id)
        self._open: dict[str, Transaction] = {}
        self._closed = False

    def begin(self) -> Transaction:
        """Begin a transaction; it times out unless it is committed or pinged within the timeout."""
        if self._closed:
            raise StreamError("the writer is closed")
        for transaction in list(self._open.values()):
            transaction.status  # noqa: B018 - transactions past their timeout drop their events
        made = Transaction(self, self._stream, self._cell, self._timeout)
        self._open[made.id] = made
        return made

    @property
    def written(self) -> int:
        """The number of events committed under this writer id.

        A restarted producer continues there.
        """
        return int(self._cell.read().document["events"])

    def close(self) -> None:
        """Abort open transactions and shut down: the writer no longer holds the watermark back."""
        if self._closed:
            return
        self._closed = True
        for transaction in list(self._open.values()):
            transaction.abort()
        self._cell.shut_down()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ended(self, transaction: Transaction) -> None:
        self._open.pop(transaction.id, None)


class Transaction:
    """Events that become visible together, or not at all.

    As a context manager it commits at the end of the block, and aborts on an exception.
    """

    def __init__(
        self, writer: TransactionalWriter, stream: Stream, cell: WriterCell, timeout: int
    ) -> None:
        self.id = uuid.uuid4().hex
        self._writer, self._stream, self._cell, self._timeout = writer, stream, cell, timeout
        self._events = EventBuffer(stream.store.largest)
        self._lock = threading.RLock()
        self._status = OPEN
        self._until = stream.clock() + timeout

    @property
    def status(self) -> str:
        """`open`, `committed`, `aborted` or `timed out`."""
        with self._lock:
            if self._status == OPEN and self._stream.clock() > self._until:
                self._end(TIMED_OUT)
            return self._status

    def write(self, event: Any, routing_key: str | None = None) -> None:
        """Add an event to the transaction."""
        with self._lock:
            self._check_open()
            self._events.add(event, routing_key)

    def write_all(
        self,
        values: pa.Array | pa.ChunkedArray,
        routing_keys: pa.Array | pa.ChunkedArray | None = None,
    ) -> None:
        """Add columns of events: values as bytes or text, and their keys."""
        with self._lock:
            self._check_open()
            self._events.add_all(values, routing_keys)

    def ping(self) -> None:
        """Keep the transaction open for another timeout."""
        with self._lock:
            self._check_open()
            self._until = self._stream.clock() + self._timeout

    def commit(self, timestamp: Instant | None = None) -> Committed:
        """Make all events visible, and note the timestamp at their position.

        A timestamp that goes back is not noted, as in `Writer.note_time`: the mark stays, and the
        events are committed.
        """
        time = None if timestamp is None else instant(timestamp)
        with self._lock:
            self._check_open()
            rows = self._events.rows()
            while (done := self._tried(rows, time)) is None:
                pass
            self._end(COMMITTED)
        return done

    def abort(self) -> None:
        """Drop the events; no effect on a transaction that has ended."""
        with self._lock:
            if self._status == OPEN:
                self._end(ABORTED)

    def _tried(self, rows: EventBatch, time: int | None) -> Committed | None:
        """Commit to the current segments; None if they, or the writer's cell, have changed."""
        cell = self._cell.read()
        last = cell.document["last"]
        if last is not None and last["id"] == self.id:
            # A former attempt succeeded, and only the response was lost.
            return Committed(last["position"], last["noted"])
        segments = self._stream.description().segments
        taken = None if time is None or goes_back(cell.document, time) else time

        def document(position: Position) -> dict[str, Any]:
            last = {"id": self.id, "position": dict(position), "noted": taken is not None}
            return {
                **committed(cell.document, self._writer.id, taken, len(rows), position, segments),
                "last": last,
            }

        try:
            swap = Swap(self._cell.key, document, cell.version)
            result = self._stream.store.append(
                self._stream.name, Router(segments.newest()).routed(rows), swap=swap, whole=True
            )
        except Conflict:
            return None
        return None if result.refused else Committed(result.position, taken is not None)

    def _check_open(self) -> None:
        if self.status != OPEN:
            why = (
                f" after {format_duration(self._timeout)} without a ping"
                if self._status == TIMED_OUT
                else ""
            )
            raise StreamError(
                f"the transaction is {self._status}{why}, and its events are dropped. Hint: begin"
                " another one"
            )

    def _end(self, status: str) -> None:
        self._status, self._events = status, EventBuffer()
        self._writer._ended(self)  # noqa: SLF001 - the writer tracks open transactions

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.abort()
        elif self.status not in {COMMITTED, ABORTED}:
            self.commit()
