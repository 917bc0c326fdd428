"""Writers send events in batches, and note times once all earlier events are in the stream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from tidegate.errors import SpecError, StreamError
from tidegate.instants import Duration, Instant, duration, instant
from tidegate.streams.description import checked_name
from tidegate.streams.events import EventBuffer
from tidegate.streams.routing import Router
from tidegate.streams.store import EventBatch
from tidegate.streams.stream import Stream
from tidegate.streams.writer_cell import WriterCell

PIECE = 4000
"""Events handed to the store at a time; the store may send them while more are written."""


class Writer:
    """Writes events to a stream.

    An event is in the stream after `flush`, or after `linger`. Events with the same routing key are
    read in the order in which a writer wrote them. After a failed `flush` the next one retries what
    was not accepted.
    """

    def __init__(
        self,
        stream: Stream,
        writer_id: str | None = None,
        *,
        auto_note_time: bool = False,
        note_every: Duration = "1 second",
        linger: Duration | None = "100 ms",
        batch_events: int = 20_000,
        batch_bytes: int = 4 << 20,
    ) -> None:
        """`linger` is the maximum delay of an event before it is sent; None: until `flush`.

        A batch is full at `batch_events` events or `batch_bytes` bytes. With `auto_note_time` the
        writer notes the clock every `note_every`.
        """
        if auto_note_time and writer_id is None:
            raise SpecError(
                "`auto_note_time` needs a writer with an id. Hint: stream.writer('id',"
                " auto_note_time=True)"
            )
        if batch_events < 1 or batch_bytes < 1:
            raise SpecError(
                f"a batch needs at least one event and one byte, got {batch_events} and"
                f" {batch_bytes}"
            )
        self.id = None if writer_id is None else checked_name("a writer", writer_id)
        self._stream, self._batch_events, self._batch_bytes = stream, batch_events, batch_bytes
        self._piece = min(PIECE, batch_events)
        self._segments = stream.description().segments
        self._router, self._outdated = Router(self._segments.newest()), False
        self._cell = None if self.id is None else WriterCell(stream, self.id)
        former = None if self._cell is None else self._cell.read()
        self._noted: int | None = None if former is None else former.document["time"]
        self._pending: int | None = None
        self._position: dict[str, int] = {}
        # A former writer with this id may have written more than it noted, and the times noted here
        # cover that too.
        self._before: dict[str, int] = (
            stream.tail() if former is not None and former.version else {}
        )
        self._buffer = self._new_buffer()
        self._append = stream.store.begin_append(stream.name)
        self._in_flight, self._bytes_in_flight = 0, 0
        self._handed_over = 0
        self._lock = threading.RLock()
        self._closed, self._ended = threading.Event(), False
        self._failure: Exception | None = None
        self._auto = duration(note_every) if auto_note_time else None
        self._linger = None if linger is None else duration(linger)
        self._last_note = stream.clock()
        self._thread = self._start_thread()

    # Public interface

    def write(self, event: Any, routing_key: str | None = None) -> None:
        """Write an event: bytes, text, or anything JSON-serialisable.

        Without a key it goes to any segment.
        """
        with self._lock:
            if self._ended or self._failure is not None:
                self._check_open()
            if self._buffer.add(event, routing_key):
                self._send_full_batches()

    def write_all(
        self,
        values: pa.Array | pa.ChunkedArray,
        routing_keys: pa.Array | pa.ChunkedArray | None = None,
    ) -> None:
        """Write columns of events: values as bytes or text, and their keys."""
        with self._lock:
            self._check_open()
            self._buffer.add_all(values, routing_keys)
            self._send_full_batches()

    def note_time(self, time: Instant) -> bool:
        """Declare that all events before this time are written.

        A time that goes back is not noted: the mark stays, and no event is lost. Returns whether
        the time is not before the ones noted here. `noted` is the one in the stream.
        """
        if self._cell is None:
            raise SpecError("only a writer with an id can note a time. Hint: stream.writer('id')")
        moment = instant(time)
        with self._lock:
            self._check_open()
            latest = self._noted if self._pending is None else self._pending
            if latest is not None and moment < latest:
                return False
            self._pending = moment
            return True

    @property
    def noted(self) -> int | None:
        """The last time that is noted in the stream under this id, as far as this writer knows."""
        with self._lock:
            return self._noted

    def flush(self) -> None:
        """Wait until everything written and noted is in the stream."""
        with self._lock:
            self._failure = None
            self._check_open()
            self._push(note=True)

    def position(self) -> dict[str, int]:
        """The flushed position in each segment; may omit segments covered by their successors."""
        with self._lock:
            return dict(self._position)

    def close(self) -> None:
        """Flush and shut down: the writer no longer holds the watermark back."""
        try:
            with self._lock:
                if self._ended:
                    return
                try:
                    self.flush()
                finally:
                    self._ended = True
                    self._closed.set()
        finally:
            if self._thread is not None:
                self._thread.join()
        if self._cell is not None:
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

    # Sending

    def _check_open(self) -> None:
        if self._ended:
            raise StreamError("the writer is closed")
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise StreamError(
                f"events or times of earlier calls are not in the stream yet ({failure}). Hint:"
                " flush"
            ) from failure

    def _send_full_batches(self) -> None:
        """Hand buffered events to the store; wait for the append if the batch is full."""
        events, size = (
            self._in_flight + len(self._buffer),
            self._bytes_in_flight + self._buffer.nbytes,
        )
        if events >= self._batch_events or size >= self._batch_bytes:
            # Not every batch carries a mark: a mark changes a cell, and the controller reads it
            # once per period.
            self._tried(
                lambda: self._push(
                    note=self._stream.clock() - self._last_note >= (self._linger or 0)
                )
            )
        else:
            self._tried(self._hand_over)

    def _tried(self, step: Callable[[], None]) -> None:
        """Run the action; the next call raises its error, because the event is already buffered."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - raised by the next call
            self._failure = error

    def _push(self, note: bool) -> None:  # noqa: FBT001 - private
        while (waits := len(self._buffer) > 0) or self._in_flight:
            if waits:
                self._hand_over()
            self._settle()
        pending = self._pending
        if note and pending is not None and self._cell is not None:
            position = {**self._before, **self._position}
            if not self._cell.note(pending, position, self._segments):
                # Another writer with this id has noted a later time.
                pending = self._cell.read().document["time"]
            self._noted, self._pending, self._last_note = pending, None, self._stream.clock()

    def _hand_over(self) -> None:
        """Hand the buffered events to the store.

        On failure, buffer everything unacknowledged again.
        """
        if self._outdated:
            self._segments = self._stream.description().segments
            self._router, self._outdated = Router(self._segments.newest()), False
        self._bytes_in_flight += self._buffer.nbytes
        rows = self._buffer.taken()
        parts = self._router.routed(rows, self._handed_over)
        count = len(rows)
        self._handed_over += count
        self._in_flight += count
        try:
            self._append.add(parts)
        except BaseException:
            self._begin_again(self._append.rows.values())
            raise

    def _settle(self) -> None:
        """Wait for the append.

        Buffer rows refused by sealed segments again, before all later ones.
        """
        try:
            result = self._append.wait()
        except BaseException:
            self._begin_again(self._append.rows.values())
            raise
        if result.position.keys() <= self._position.keys():
            self._position |= result.position
        else:
            self._position = self._segments.without_covered({**self._position, **result.position})
        refused: list[EventBatch] = []
        if result.refused:
            rows = self._append.rows
            refused = [
                rows[name].between(len(rows[name]) - count, len(rows[name]))
                for name, count in result.refused.items()
                if count
            ]
        self._outdated = len(refused) > 0
        self._begin_again(refused)

    def _begin_again(self, first: Collection[EventBatch]) -> None:
        if first:
            self._buffer = self._new_buffer([*first, self._buffer.rows()])
        self._append = self._stream.store.begin_append(self._stream.name)
        self._in_flight, self._bytes_in_flight = 0, 0

    def _new_buffer(self, rows: Iterable[EventBatch] = ()) -> EventBuffer:
        return EventBuffer(
            self._stream.store.largest, rows, events=self._piece, nbytes=self._batch_bytes
        )

    # Background thread

    def _start_thread(self) -> threading.Thread | None:
        """Start the thread that flushes and notes between calls."""
        if self._linger is None and self._auto is None:
            return None
        spans = [span for span in (self._linger, self._auto) if span is not None]
        thread = threading.Thread(
            target=self._run,
            args=(max(min(spans), 1000) / 1e6,),
            name=f"tidegate writer {self.id or ''}",
            daemon=True,
        )
        thread.start()
        return thread

    def _run(self, seconds: float) -> None:
        auto_at = self._stream.clock()
        while not self._closed.wait(seconds):
            with self._lock:
                if self._ended:
                    return
                now = self._stream.clock()
                if self._auto is not None and now >= auto_at:
                    auto_at = now + self._auto
                    self._pending = max(now, self._noted or now, self._pending or now)
                    self._tried(lambda: self._push(note=True))
                elif self._linger is not None and (
                    len(self._buffer) or self._in_flight or self._pending is not None
                ):
                    self._tried(lambda: self._push(note=True))
