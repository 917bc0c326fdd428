"""Transactions: events that are seen together at their commit, with the time that their writer
gives, or never.
"""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from tidegate.errors import SpecError, StreamError
from tidegate.instants import Instant, format_duration, instant
from tidegate.kernel.streams.cuts import Position
from tidegate.streams.description import checked_name
from tidegate.streams.events import Gathering
from tidegate.streams.noting import WriterCell, committed
from tidegate.streams.routing import Router
from tidegate.streams.store import Conflict, Rows, Swap
from tidegate.streams.stream import Stream, mark_of

OPEN, COMMITTED, ABORTED, TIMED_OUT = "open", "committed", "aborted", "timed out"


@dataclass(frozen=True)
class Committed:
    """Where a transaction was committed."""

    position: Position
    """For each segment that took events of it: the offset after the last of them."""
    noted: bool
    """Whether its time became the writer's mark: not where none was given, or one that goes back.
    """


class TransactionalWriter:
    """Writes in transactions, several at once if need be.

    A transaction is held by its writer until it is committed, so one whose writer dies leaves
    nothing behind, and scaling never meets one that is under way.
    """

    def __init__(self, stream: Stream, writer_id: str, timeout: int) -> None:
        if timeout <= 0:
            raise SpecError(f"`timeout` must be greater than 0, got {format_duration(timeout)}")
        self.id, self._stream, self._timeout = checked_name("a writer", writer_id), stream, timeout
        self._cell = WriterCell(stream, self.id)
        self._open: dict[str, Transaction] = {}
        self._closed = False

    def begin(self) -> Transaction:
        """Begin a transaction. It ends by itself when it was not committed within the timeout;
        `ping` begins that anew.
        """
        if self._closed:
            raise StreamError("the writer is closed")
        for transaction in list(self._open.values()):
            transaction.status  # noqa: B018 - who is too late lets go of its events
        made = Transaction(self, self._stream, self._cell, self._timeout)
        self._open[made.id] = made
        return made

    @property
    def written(self) -> int:
        """How many events the transactions of this writer have brought in all its lives: where a
        producer that was killed goes on.
        """
        return int(self._cell.read().document["events"])

    def close(self) -> None:
        """Abort what is open, and leave: time does not wait for this writer any more."""
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
    """Events that are seen together, or never. As a context it commits at the end of the block, and
    aborts where that fails.
    """

    def __init__(
        self, writer: TransactionalWriter, stream: Stream, cell: WriterCell, timeout: int
    ) -> None:
        self.id = uuid.uuid4().hex
        self._writer, self._stream, self._cell, self._timeout = writer, stream, cell, timeout
        self._events = Gathering(stream.store.largest)
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
        """Add whole columns to it: values of bytes or text, and their keys."""
        with self._lock:
            self._check_open()
            self._events.add_all(values, routing_keys)

    def ping(self) -> None:
        """Keep the transaction open for another timeout."""
        with self._lock:
            self._check_open()
            self._until = self._stream.clock() + self._timeout

    def commit(self, timestamp: Instant | None = None) -> Committed:
        """Make all events of the transaction seen, and the timestamp the writer's mark at the place
        where they are.

        A timestamp that goes back is refused: the mark stays as it was, and the events are
        committed.
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
        """Drop the events; what has ended stays as it is."""
        with self._lock:
            if self._status == OPEN:
                self._end(ABORTED)

    def _tried(self, rows: Rows, time: int | None) -> Committed | None:
        """Commit under the segments of now; None where they, or the writer's cell, have changed
        meanwhile.
        """
        cell = self._cell.read()
        last = cell.document["last"]
        if last is not None and last["id"] == self.id:
            # A try before this one has come through, and only the answer was lost.
            return Committed(last["position"], last["noted"])
        segments = self._stream.description().segments
        former = mark_of(cell.document)
        taken = time if former is None or time is None or time >= former.time else None

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
                f"the transaction is {self._status}{why}, and its events are not written again."
                " Hint: begin another one"
            )

    def _end(self, status: str) -> None:
        self._status, self._events = status, Gathering()
        self._writer._ended(self)  # noqa: SLF001 - it keeps the open ones

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
