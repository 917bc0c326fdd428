"""`tidegate stream write`: writes the lines of files, or of the standard input, as events."""

from __future__ import annotations

import io
import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tidegate.cli.shutdown import ShutdownRequest, shutdown_requests
from tidegate.cli.stream_lines import Events, Form, events_of, lines_of
from tidegate.cli.tables import by_number, places
from tidegate.errors import InputError, SpecError, TidegateError
from tidegate.instants import duration, saturating_add
from tidegate.streams import Stream, Streams, TransactionalWriter, Writer
from tidegate.units import many, when

_PIECE = 1 << 20
_STANDARD = "-"
_REPORTED = 20
"""Maximum number of broken lines reported one by one; others are only counted."""


@dataclass(frozen=True)
class WriteOptions:
    """Options of the command."""

    files: tuple[str, ...] = ()
    form: Form = field(default_factory=Form)
    writer: str | None = None
    disorder: str = "0 s"
    auto_note_time: bool = False
    transaction: int | None = None
    resume: bool = False
    batch: int = 20_000
    control: bool = True
    as_json: bool = False

    def check(self) -> None:
        """Validate the options before anything is opened."""
        if self.form.text and (self.form.key or self.form.time):
            raise SpecError(
                "--key and --time name fields of JSON lines, but --text takes lines as plain"
                " text. Hint: omit one of them"
            )
        if self.form.time and self.writer is None:
            raise SpecError("--time needs a writer with an id. Hint: --writer ID")
        if self.auto_note_time and (self.writer is None or self.form.time or self.transaction):
            raise SpecError(
                "--auto-note-time needs a writer with an id (--writer ID), and excludes --time"
                " and --transaction"
            )
        if self.transaction is not None and (self.transaction < 1 or self.writer is None):
            raise SpecError(
                "--transaction takes a number of at least 1, and needs a writer with an id"
                f" (--writer ID), got {self.transaction}"
            )
        if self.resume and self.transaction is None:
            raise SpecError(
                "--resume continues after the transactions of a writer. Hint: --transaction N"
                " --writer ID"
            )
        if self.batch < 1:
            raise SpecError(f"--batch must be at least 1, got {self.batch}")
        if duration(self.disorder) < 0:
            raise SpecError(
                f"--disorder must not be negative, got {self.disorder}. Hint: it is how much older"
                " than the newest event others may be"
            )
        for name in self.files:
            if name != _STANDARD and (not Path(name).exists() or Path(name).is_dir()):
                raise InputError(
                    f"{name} {'is a folder' if Path(name).is_dir() else 'does not exist'}. Hint:"
                    " name files, or `-` for the standard input"
                )


@dataclass
class Tally:
    """Counts of lines and events."""

    lines: int = 0
    events: int = 0
    skipped: int = 0
    broken: int = 0
    behind: int = 0
    """Events older than a time that was noted before them."""
    noted: int | None = None
    position: dict[str, int] = field(default_factory=dict)

    def show(self, *, as_json: bool, interrupted: bool) -> None:
        if as_json:
            counts = {
                "events": self.events,
                "broken": self.broken,
                "skipped": self.skipped,
                "behind": self.behind,
            }
            print(
                json.dumps(
                    {
                        **counts,
                        "noted": self.noted,
                        "position": by_number(self.position),
                        "interrupted": interrupted,
                    }
                ),
                flush=True,
            )
            return
        parts = [
            f"{many(self.events, 'event')} written",
            f"{many(self.broken, 'line')} broken",
            f"position {places(self.position)}",
        ]
        parts += [f"noted {when(self.noted)}"] if self.noted is not None else []
        parts += [f"{self.skipped:,} skipped as already written"] if self.skipped else []
        parts += [f"{self.behind:,} older than the time noted before them"] if self.behind else []
        print(", ".join([*parts, *(["interrupted"] if interrupted else [])]), flush=True)


class _EventSink(Protocol):
    """Where events go."""

    def put(self, events: Events) -> None: ...
    def close(self) -> None: ...
    def give_up(self) -> None: ...


class _BatchSink:
    """Writes events as they arrive, and notes the time after each piece of input."""

    def __init__(self, writer: Writer, tally: Tally, notes: _TimeNotes) -> None:
        self._writer, self._tally, self._notes = writer, tally, notes

    def put(self, events: Events) -> None:
        self._tally.events += len(events)
        self._writer.write_all(*events.columns())
        if (time := self._notes.after(events)) is not None:
            if self._writer.note_time(time):
                self._notes.made(time)
            else:
                self._notes.refused(self._writer.id, time)

    def close(self) -> None:
        self._writer.flush()
        self._tally.position = self._writer.position()
        self._writer.close()

    def give_up(self) -> None:
        """Close the writer: a last attempt to write what it has buffered."""
        self._writer.close()


class _TransactionSink:
    """Commits a fixed number of events at a time, with their time."""

    def __init__(
        self, writer: TransactionalWriter, size: int, tally: Tally, notes: _TimeNotes
    ) -> None:
        self._writer, self._size, self._tally, self._notes = writer, size, tally, notes
        self._buffer = Events()

    def put(self, events: Events) -> None:
        self._buffer.extend(events)
        while len(self._buffer) >= self._size:
            first, self._buffer = self._buffer.split(self._size)
            self._commit(first)

    def close(self) -> None:
        if len(self._buffer):
            self._commit(self._buffer)
        self._writer.close()

    def give_up(self) -> None:
        """Commit nothing after a failure: the stream must contain a prefix of the input."""
        self._writer.close()

    def _commit(self, events: Events) -> None:
        transaction = self._writer.begin()
        transaction.write_all(*events.columns())
        time = self._notes.after(events)
        done = transaction.commit(time)
        self._tally.events += len(events)
        self._tally.position |= done.position
        if done.noted and time is not None:
            self._notes.made(time)
        elif time is not None:
            self._notes.refused(self._writer.id, time)


class _TimeNotes:
    """The time that a writer may note: the greatest time seen, minus the disorder."""

    def __init__(self, disorder: int, tally: Tally, former: int | None) -> None:
        self._disorder, self._tally, self._promised = disorder, tally, former
        self._newest: int | None = None
        self._reported = False

    def seen(self, times: list[int]) -> None:
        if times:
            self._newest = max(times) if self._newest is None else max(self._newest, *times)

    def after(self, events: Events) -> int | None:
        """The time to note after these events; None if they have no times."""
        if self._promised is not None:
            self._tally.behind += sum(time < self._promised for time in events.times)
        self.seen(events.times)
        return None if self._newest is None else saturating_add(self._newest, -self._disorder)

    def made(self, time: int) -> None:
        self._promised = self._tally.noted = time

    def refused(self, writer: str | None, time: int) -> None:
        """Report a time that goes back, once."""
        if not self._reported:
            _report(
                f"the writer `{writer}` has noted a later time than {when(time)}, so this one is"
                " not noted; the events are written"
            )
        self._reported = True


def write(streams: Streams, stream: Stream, options: WriteOptions) -> int:
    """Write all lines and print a summary; returns 1 if lines were broken or writing failed."""
    tally = Tally()
    sink, notes = _sink(stream, options, tally)
    with shutdown_requests() as shutdown:
        try:
            with _controlled(streams, stream, on=options.control):
                try:
                    _pass_on(stream, options, shutdown, sink, notes, tally)
                    sink.close()
                except TidegateError:
                    with suppress(TidegateError):
                        sink.give_up()
                    raise
        except TidegateError as error:
            _report(str(error))
            doubt = "" if options.transaction else ", the last of which may not be in the stream"
            _report(f"it failed after {many(tally.events, 'event')}{doubt}")
            return 1
        if not tally.lines and not shutdown.stop:
            raise InputError("there is nothing to write: the input is empty")
        tally.show(as_json=options.as_json, interrupted=shutdown.stop)
    if tally.broken > _REPORTED:
        _report(f"{tally.broken:,} lines are broken; only the first {_REPORTED} were reported")
    return 1 if tally.broken else 0


def _sink(stream: Stream, options: WriteOptions, tally: Tally) -> tuple[_EventSink, _TimeNotes]:
    former = None if options.writer is None else stream.marks().get(options.writer)
    notes = _TimeNotes(
        duration(options.disorder),
        tally,
        former.time if former is not None and options.form.time else None,
    )
    if options.transaction is None:
        writer = stream.writer(
            options.writer, auto_note_time=options.auto_note_time, batch_events=options.batch
        )
        return _BatchSink(writer, tally, notes), notes
    transactional = stream.transactional_writer(str(options.writer))
    if transactional.written and not options.resume:
        _report(
            f"the writer `{options.writer}` has already written {transactional.written:,} events;"
            " --resume continues after them in the same input"
        )
    return _TransactionSink(transactional, options.transaction, tally, notes), notes


def _pass_on(
    stream: Stream,
    options: WriteOptions,
    shutdown: ShutdownRequest,
    sink: _EventSink,
    notes: _TimeNotes,
    tally: Tally,
) -> None:
    there = stream.transactional_writer(str(options.writer)).written if options.resume else 0
    for name in options.files or (_STANDARD,):
        for number, lines in lines_of(_pieces(name, shutdown), lambda: not shutdown.stop):
            events = events_of(number, lines, options.form)
            tally.lines += len(events) + len(events.broken)
            if tally.skipped < there:
                past, events = events.split(there - tally.skipped)
                tally.skipped += len(past)
                notes.seen(past.times)
            for at, why in events.broken:
                if tally.broken < _REPORTED:
                    _report(f"{'' if name == _STANDARD else f'{name}, '}line {at} is broken: {why}")
                tally.broken += 1
            if len(events):
                sink.put(events)
        if shutdown.stop:
            return
    if tally.skipped < there:
        problem = (
            f"the transactions of the writer `{options.writer}` have written {there:,} events, but"
            f" the input has only {tally.skipped:,}"
        )
        raise InputError(
            f"{problem}. Hint: --resume needs the same input again; use another writer id for each"
            " input"
        )


def _pieces(name: str, shutdown: ShutdownRequest) -> Iterator[bytes]:
    """A file, or the standard input, in pieces."""
    if name != _STANDARD:
        try:
            with Path(name).open("rb", buffering=0) as file:
                yield from _as_it_comes(file.fileno(), shutdown)
        except OSError as error:
            raise InputError(f"{name} cannot be read ({error.strerror})") from error
        return
    try:
        number = sys.stdin.fileno()
    except (io.UnsupportedOperation, AttributeError, ValueError):
        number = None
    if number is None:
        while not shutdown.stop and (piece := sys.stdin.buffer.read(_PIECE)):
            yield piece
    else:
        yield from _as_it_comes(number, shutdown)


def _as_it_comes(number: int, shutdown: ShutdownRequest) -> Iterator[bytes]:
    is_file = stat.S_ISREG(os.fstat(number).st_mode)
    while not shutdown.stop if is_file else shutdown.wait_for(number):
        piece = os.read(number, _PIECE)
        if not piece:
            return
        yield piece


@contextmanager
def _controlled(streams: Streams, stream: Stream, *, on: bool) -> Iterator[None]:
    """A controller alongside; it runs a last round after the last note."""
    if not on:
        yield
        return
    controller = streams.controller(streams=[stream.name])
    controller.start()
    try:
        yield
    except BaseException:
        with suppress(TidegateError):
            controller.stop()
        raise
    controller.stop()
    controller.round()
    controller.stop()


def _report(text: str) -> None:
    print(f"tidegate stream write: {text}", file=sys.stderr, flush=True)


def options_of(arguments: Any) -> WriteOptions:
    """The parsed arguments as arguments."""
    form = Form(text=arguments.text, key=arguments.key, time=arguments.time, unit=arguments.unit)
    return WriteOptions(
        files=tuple(arguments.files),
        form=form,
        writer=arguments.writer,
        disorder=arguments.disorder,
        auto_note_time=arguments.auto_note_time,
        transaction=arguments.transaction,
        resume=arguments.resume,
        batch=arguments.batch,
        control=not arguments.no_control,
        as_json=arguments.json,
    )
