"""`tidegate stream write`: the lines of files, or of the standard input, become the events of a
stream.
"""

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

from tidegate.cli.shutdown import Asked, asking
from tidegate.cli.stream_lines import Events, Form, events_of, lines_of
from tidegate.cli.tables import by_number, counted, places, when
from tidegate.errors import InputError, SpecError, TidegateError, WatermarkError
from tidegate.instants import duration, saturating_add
from tidegate.streams import Stream, Streams, TransactionalWriter, Writer

_PIECE = 1 << 20
_STANDARD = "-"
_TOLD = 20
"""So many broken lines are told one by one; the rest is only counted."""


@dataclass(frozen=True)
class Wish:
    """What was asked for on the command line."""

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
        """Words that do not go together are told before anything is opened."""
        if self.form.text and (self.form.key or self.form.time):
            raise SpecError(
                "--key and --time name fields of JSON lines, and --text takes lines as they are."
                " Hint: leave one of them out"
            )
        if self.form.time and self.writer is None:
            raise SpecError("--time is noted by a writer with an id. Hint: --writer ID")
        if self.auto_note_time and (self.writer is None or self.form.time or self.transaction):
            raise SpecError(
                "--auto-note-time is for a writer with an id (--writer ID), without --time and"
                " without --transaction"
            )
        if self.transaction is not None and (self.transaction < 1 or self.writer is None):
            raise SpecError(
                "--transaction takes a number from 1 on, and a writer with an id (--writer ID),"
                f" got {self.transaction}"
            )
        if self.resume and self.transaction is None:
            raise SpecError(
                "--resume goes on after what transactions of a writer have brought. Hint:"
                " --transaction N --writer ID"
            )
        if self.batch < 1:
            raise SpecError(f"--batch takes a number from 1 on, got {self.batch}")
        if duration(self.disorder) < 0:
            raise SpecError(
                "--disorder is how much older than the newest event others may be, got"
                f" {self.disorder}"
            )
        for name in self.files:
            if name != _STANDARD and (not Path(name).exists() or Path(name).is_dir()):
                raise InputError(
                    f"{name} is {'a folder' if Path(name).is_dir() else 'not there'}. Hint: give"
                    " files, or `-` for the standard input"
                )


@dataclass
class Tally:
    """What has become of the lines so far."""

    lines: int = 0
    events: int = 0
    skipped: int = 0
    broken: int = 0
    behind: int = 0
    """Events older than what was noted before they came."""
    noted: int | None = None
    position: dict[str, int] = field(default_factory=dict)

    def tell(self, *, as_json: bool, interrupted: bool) -> None:
        if as_json:
            told = {
                "events": self.events,
                "broken": self.broken,
                "skipped": self.skipped,
                "behind": self.behind,
            }
            print(
                json.dumps(
                    {
                        **told,
                        "noted": self.noted,
                        "position": by_number(self.position),
                        "interrupted": interrupted,
                    }
                ),
                flush=True,
            )
            return
        parts = [
            f"{counted(self.events, 'event')} written",
            f"{counted(self.broken, 'line')} broken",
            f"position {places(self.position)}",
        ]
        parts += [f"noted {when(self.noted)}"] if self.noted is not None else []
        parts += [f"{self.skipped:,} skipped that were there already"] if self.skipped else []
        parts += [f"{self.behind:,} behind the time noted before them"] if self.behind else []
        print(", ".join([*parts, *(["interrupted"] if interrupted else [])]), flush=True)


class _Outlet(Protocol):
    """Where events go."""

    def put(self, events: Events) -> None: ...
    def close(self) -> None: ...
    def give_up(self) -> None: ...


class _Batches:
    """Events go out as they come, and after each piece of the input its time is noted."""

    def __init__(self, writer: Writer, tally: Tally, notes: _Notes) -> None:
        self._writer, self._tally, self._notes = writer, tally, notes

    def put(self, events: Events) -> None:
        self._tally.events += len(events)
        self._writer.write_all(*events.columns())
        if (time := self._notes.after(events)) is not None:
            try:
                self._writer.note_time(time)
                self._notes.made(time)
            except WatermarkError as error:
                self._notes.refused(str(error))

    def close(self) -> None:
        self._writer.flush()
        self._tally.position = self._writer.position()
        self._writer.close()

    def give_up(self) -> None:
        """The store may answer again for what waits."""
        self._writer.close()


class _Transactions:
    """So many events at a time are committed together, with their time."""

    def __init__(self, writer: TransactionalWriter, size: int, tally: Tally, notes: _Notes) -> None:
        self._writer, self._size, self._tally, self._notes = writer, size, tally, notes
        self._waiting = Events()

    def put(self, events: Events) -> None:
        self._waiting.extend(events)
        while len(self._waiting) >= self._size:
            first, self._waiting = self._waiting.split(self._size)
            self._commit(first)

    def close(self) -> None:
        if len(self._waiting):
            self._commit(self._waiting)
        self._writer.close()

    def give_up(self) -> None:
        """Nothing is committed after what has failed: what is there has to be the begin of the
        input.
        """
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
            self._notes.refused(
                f"the writer `{self._writer.id}` has noted a later time than {when(time)}, and its"
                " time cannot go back"
            )


class _Notes:
    """What a writer may promise: the greatest time seen, less the disorder."""

    def __init__(self, disorder: int, tally: Tally, former: int | None) -> None:
        self._disorder, self._tally, self._promised = disorder, tally, former
        self._newest: int | None = None
        self._told = False

    def seen(self, times: list[int]) -> None:
        if times:
            self._newest = max(times) if self._newest is None else max(self._newest, *times)

    def after(self, events: Events) -> int | None:
        """The time to note after these events; None where they have none."""
        if self._promised is not None:
            self._tally.behind += sum(time < self._promised for time in events.times)
        self.seen(events.times)
        return None if self._newest is None else saturating_add(self._newest, -self._disorder)

    def made(self, time: int) -> None:
        self._promised = self._tally.noted = time

    def refused(self, why: str) -> None:
        """An older time is no reason to lose events; it is told once."""
        if not self._told:
            _say(f"{why}; the events are written all the same")
        self._told = True


def write(streams: Streams, stream: Stream, wish: Wish) -> int:
    """Write all lines, and tell what has become of them; 1 where some were broken or it failed on
    the way.
    """
    tally = Tally()
    outlet, notes = _outlet(stream, wish, tally)
    with asking() as asked:
        try:
            with _controlled(streams, stream, on=wish.control):
                try:
                    _pass_on(stream, wish, asked, outlet, notes, tally)
                    outlet.close()
                except TidegateError:
                    with suppress(TidegateError):
                        outlet.give_up()
                    raise
        except TidegateError as error:
            _say(str(error))
            doubt = "" if wish.transaction else ", of which the last may not be in the stream"
            _say(f"it failed after {counted(tally.events, 'event')}{doubt}")
            return 1
        if not tally.lines and not asked.stop:
            raise InputError("there is nothing to write: the input has no line")
        tally.tell(as_json=wish.as_json, interrupted=asked.stop)
    if tally.broken > _TOLD:
        _say(f"{tally.broken:,} lines are broken, of which the first {_TOLD} were told")
    return 1 if tally.broken else 0


def _outlet(stream: Stream, wish: Wish, tally: Tally) -> tuple[_Outlet, _Notes]:
    former = None if wish.writer is None else stream.marks().get(wish.writer)
    notes = _Notes(
        duration(wish.disorder),
        tally,
        former.time if former is not None and wish.form.time else None,
    )
    if wish.transaction is None:
        writer = stream.writer(
            wish.writer, auto_note_time=wish.auto_note_time, batch_events=wish.batch
        )
        return _Batches(writer, tally, notes), notes
    transactional = stream.transactional_writer(str(wish.writer))
    if transactional.written and not wish.resume:
        _say(
            f"the writer `{wish.writer}` has brought {transactional.written:,} events before;"
            " --resume would go on after them in the same input"
        )
    return _Transactions(transactional, wish.transaction, tally, notes), notes


def _pass_on(
    stream: Stream, wish: Wish, asked: Asked, outlet: _Outlet, notes: _Notes, tally: Tally
) -> None:
    there = stream.transactional_writer(str(wish.writer)).written if wish.resume else 0
    for name in wish.files or (_STANDARD,):
        for number, lines in lines_of(_pieces(name, asked), lambda: not asked.stop):
            events = events_of(number, lines, wish.form)
            tally.lines += len(events) + len(events.broken)
            if tally.skipped < there:
                past, events = events.split(there - tally.skipped)
                tally.skipped += len(past)
                notes.seen(past.times)
            for at, why in events.broken:
                if tally.broken < _TOLD:
                    _say(f"{'' if name == _STANDARD else f'{name}, '}line {at} is broken: {why}")
                tally.broken += 1
            if len(events):
                outlet.put(events)
        if asked.stop:
            return
    if tally.skipped < there:
        told = (
            f"the transactions of the writer `{wish.writer}` have brought {there:,} events, and the"
            f" input has only {tally.skipped:,}"
        )
        raise InputError(
            f"{told}. Hint: --resume is for the input that they were from, and each input has a"
            " writer of its own"
        )


def _pieces(name: str, asked: Asked) -> Iterator[bytes]:
    """A file, or the standard input, as it comes."""
    if name != _STANDARD:
        try:
            with Path(name).open("rb", buffering=0) as file:
                yield from _as_it_comes(file.fileno(), asked)
        except OSError as error:
            raise InputError(f"{name} cannot be read ({error.strerror})") from error
        return
    try:
        number = sys.stdin.fileno()
    except (io.UnsupportedOperation, AttributeError, ValueError):
        number = None
    if number is None:
        while not asked.stop and (piece := sys.stdin.buffer.read(_PIECE)):
            yield piece
    else:
        yield from _as_it_comes(number, asked)


def _as_it_comes(number: int, asked: Asked) -> Iterator[bytes]:
    is_file = stat.S_ISREG(os.fstat(number).st_mode)
    while not asked.stop if is_file else asked.wait_for(number):
        piece = os.read(number, _PIECE)
        if not piece:
            return
        yield piece


@contextmanager
def _controlled(streams: Streams, stream: Stream, *, on: bool) -> Iterator[None]:
    """A controller beside; at the end it looks once more, at what was noted last."""
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


def _say(text: str) -> None:
    print(f"tidegate stream write: {text}", file=sys.stderr, flush=True)


def wish_of(options: Any) -> Wish:
    """What the words of the command line ask for."""
    form = Form(text=options.text, key=options.key, time=options.time, unit=options.unit)
    return Wish(
        files=tuple(options.files),
        form=form,
        writer=options.writer,
        disorder=options.disorder,
        auto_note_time=options.auto_note_time,
        transaction=options.transaction,
        resume=options.resume,
        batch=options.batch,
        control=not options.no_control,
        as_json=options.json,
    )
