"""Writers: events go out in batches, and the times that a writer notes become its mark once all
that it wrote before is in the stream.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from tidegate.errors import SpecError, StreamError, WatermarkError
from tidegate.instants import Duration, Instant, duration, format_instant, instant
from tidegate.streams.description import checked_name
from tidegate.streams.events import Gathering
from tidegate.streams.noting import WriterCell
from tidegate.streams.routing import Router
from tidegate.streams.store import Rows
from tidegate.streams.stream import Stream

PIECE = 4000
"""So many events are handed to the store at a time, which may send them on while others are
written.
"""


class Writer:
    """Writes events to a stream.

    An event is in the stream when `flush` has returned, or `linger` later. Events of one routing
    key are read in the order in which one writer wrote them. After an error of `flush` what was not
    taken waits for the next one.
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
        """`linger` is how long an event waits for others at most, None until `flush`; a batch is
        full at so many events or bytes.

        With `auto_note_time` the clock is noted every `note_every`.
        """
        if auto_note_time and writer_id is None:
            raise SpecError(
                "`auto_note_time` notes the time of a writer that has an id. Hint:"
                " stream.writer('id', auto_note_time=True)"
            )
        if batch_events < 1 or batch_bytes < 1:
            raise SpecError(
                f"a batch holds at least one event and one byte, got {batch_events} and"
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
        # A former life of this writer may have written more than it has noted, and the times of
        # this one are for that too.
        self._before: dict[str, int] = (
            stream.tail() if former is not None and former.version else {}
        )
        self._waiting = self._gathering()
        self._sending = stream.store.sending(stream.name)
        self._under_way, self._bytes_under_way = 0, 0
        self._handed_over = 0
        self._lock = threading.RLock()
        self._closed, self._ended = threading.Event(), False
        self._failure: Exception | None = None
        self._auto = duration(note_every) if auto_note_time else None
        self._linger = None if linger is None else duration(linger)
        self._last_note = stream.clock()
        self._pulse = self._started()

    # What a user calls

    def write(self, event: Any, routing_key: str | None = None) -> None:
        """Write an event: bytes, text, or what JSON can say. Without a key it goes to any
        segment.
        """
        with self._lock:
            if self._ended or self._failure is not None:
                self._check_open()
            if self._waiting.add(event, routing_key):
                self._go_on()

    def write_all(
        self,
        values: pa.Array | pa.ChunkedArray,
        routing_keys: pa.Array | pa.ChunkedArray | None = None,
    ) -> None:
        """Write whole columns: values of bytes or text, and their keys."""
        with self._lock:
            self._check_open()
            self._waiting.add_all(values, routing_keys)
            self._go_on()

    def note_time(self, time: Instant) -> None:
        """Say that all events before this time are written. A time that goes back is refused, and
        what was written stays written.
        """
        if self._cell is None:
            raise SpecError("only a writer with an id can note a time. Hint: stream.writer('id')")
        moment = instant(time)
        with self._lock:
            self._check_open()
            latest = self._noted if self._pending is None else self._pending
            if latest is not None and moment < latest:
                told = (
                    f"{format_instant(latest)}, and its time cannot go back to"
                    f" {format_instant(moment)}"
                )
                raise WatermarkError(f"the writer `{self.id}` has noted {told}")
            self._pending = moment

    def flush(self) -> None:
        """Wait until all that was written and noted is in the stream."""
        with self._lock:
            failure, self._failure = self._failure, None
            self._check_open()
            self._push(note=True)
            if isinstance(failure, WatermarkError):
                raise failure

    def position(self) -> dict[str, int]:
        """How far this writer has written in each segment, as far as it was flushed; one whose
        successors tell it all may be left out.
        """
        with self._lock:
            return dict(self._position)

    def close(self) -> None:
        """Flush, and leave: time does not wait for this writer any more."""
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
            if self._pulse is not None:
                self._pulse.join()
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

    # How it goes out

    def _check_open(self) -> None:
        if self._ended:
            raise StreamError("the writer is closed")
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise StreamError(
                f"what was written or noted before is not in the stream yet ({failure}). Hint:"
                " flush"
            ) from failure

    def _go_on(self) -> None:
        """Hand over what waits, so that the store may work on it while more is written; wait for it
        where the batch is full.
        """
        events, size = (
            self._under_way + len(self._waiting),
            self._bytes_under_way + self._waiting.nbytes,
        )
        if events >= self._batch_events or size >= self._batch_bytes:
            # Not every batch carries a mark: it is a change of a cell, and the controller looks
            # once a period.
            self._tried(
                lambda: self._push(
                    note=self._stream.clock() - self._last_note >= (self._linger or 0)
                )
            )
        else:
            self._tried(self._hand_over)

    def _tried(self, step: Callable[[], None]) -> None:
        """Do it; a failure is told at the next call, because what was written now is taken and
        waits.
        """
        try:
            step()
        except Exception as error:  # noqa: BLE001 - told at the next call
            self._failure = error

    def _push(self, note: bool) -> None:  # noqa: FBT001 - private
        while (waits := len(self._waiting) > 0) or self._under_way:
            if waits:
                self._hand_over()
            self._settle()
        pending = self._pending
        if note and pending is not None and self._cell is not None:
            try:
                self._cell.note(pending, {**self._before, **self._position}, self._segments)
            except WatermarkError:
                # Another life of this writer has noted more.
                self._noted, self._pending = self._cell.read().document["time"], None
                raise
            self._noted, self._pending, self._last_note = pending, None, self._stream.clock()

    def _hand_over(self) -> None:
        """Give the store what waits; where that fails all that was given since the last wait waits
        again.
        """
        if self._outdated:
            self._segments = self._stream.description().segments
            self._router, self._outdated = Router(self._segments.newest()), False
        self._bytes_under_way += self._waiting.nbytes
        rows = self._waiting.taken()
        parts = self._router.routed(rows, self._handed_over)
        count = len(rows)
        self._handed_over += count
        self._under_way += count
        try:
            self._sending.add(parts)
        except BaseException:
            self._begin_again(self._sending.rows.values())
            raise

    def _settle(self) -> None:
        """Wait for what was handed over; rows of segments that have successors now wait again,
        before all that came after them.
        """
        try:
            result = self._sending.wait()
        except BaseException:
            self._begin_again(self._sending.rows.values())
            raise
        if result.position.keys() <= self._position.keys():
            self._position |= result.position
        else:
            self._position = self._segments.without_covered({**self._position, **result.position})
        refused: list[Rows] = []
        if result.refused:
            rows = self._sending.rows
            refused = [
                rows[name].between(len(rows[name]) - count, len(rows[name]))
                for name, count in result.refused.items()
                if count
            ]
        self._outdated = len(refused) > 0
        self._begin_again(refused)

    def _begin_again(self, first: Collection[Rows]) -> None:
        if first:
            self._waiting = self._gathering([*first, self._waiting.rows()])
        self._sending = self._stream.store.sending(self._stream.name)
        self._under_way, self._bytes_under_way = 0, 0

    def _gathering(self, rows: Iterable[Rows] = ()) -> Gathering:
        return Gathering(
            self._stream.store.largest, rows, events=self._piece, nbytes=self._batch_bytes
        )

    # The pulse

    def _started(self) -> threading.Thread | None:
        """What flushes and notes while nobody calls."""
        if self._linger is None and self._auto is None:
            return None
        spans = [span for span in (self._linger, self._auto) if span is not None]
        pulse = threading.Thread(
            target=self._beat,
            args=(max(min(spans), 1000) / 1e6,),
            name=f"tidegate writer {self.id or ''}",
            daemon=True,
        )
        pulse.start()
        return pulse

    def _beat(self, seconds: float) -> None:
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
                    len(self._waiting) or self._under_way or self._pending is not None
                ):
                    self._tried(lambda: self._push(note=True))
