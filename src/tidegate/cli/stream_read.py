"""`tidegate stream read`: prints the events of a stream, as a reader group or without one."""

from __future__ import annotations

import base64
import json
import os
import select
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from tidegate.cli.shutdown import ShutdownRequest, shutdown_requests
from tidegate.errors import SpecError, StreamError, TidegateError
from tidegate.kernel.streams.watermarks import time_window
from tidegate.streams import Frontier, Reader, Stream, TimeWindow
from tidegate.streams.events import EVENTS, table_of
from tidegate.streams.store import Block
from tidegate.streams.stream import Start, start_of

_HINT = '{"0": 12, "1": 7}, as `tidegate stream tail --json` shows it'
_WAIT = 0.2


@dataclass(frozen=True)
class ReadOptions:
    """Options of the command."""

    group: str | None = None
    reader: str | None = None
    start: str | None = None
    lease: str = "10 seconds"
    limit: int | None = None
    batch: int = 1000
    follow: bool = False
    as_json: bool = False

    def check(self) -> None:
        """Validate the options before anything is opened."""
        if self.reader is not None and self.group is None:
            raise SpecError("--reader is the id of a reader in a group. Hint: --group NAME")
        if self.batch < 1 or (self.limit is not None and self.limit < 1):
            raise SpecError(
                f"--batch and --limit must be at least 1, got {self.batch} and {self.limit}"
            )


class _EventSource(Protocol):
    """Where events come from."""

    def next(self, most: int) -> pa.Table: ...
    def confirm(self) -> None: ...
    def place(self) -> object: ...
    def window(self) -> TimeWindow: ...


class _GroupReader:
    """A reader of a group, with checkpoints."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def next(self, most: int) -> pa.Table:
        return self._reader.read_table(most)

    def confirm(self) -> None:
        try:
            self._reader.checkpoint()
        except StreamError as error:
            _report(str(error))

    def place(self) -> object:
        return self._reader.segments, self._reader.position()

    def window(self) -> TimeWindow:
        return self._reader.current_time_window() or TimeWindow()


class _StreamCursor:
    """Reads the whole stream without a group."""

    def __init__(self, stream: Stream, start: Frontier) -> None:
        self._stream, self._at, self._turn = stream, start, 0

    def next(self, most: int) -> pa.Table:
        found: dict[str, Block] = {}
        segments = self._stream.description().segments
        names = self._at.readable
        self._turn = (self._turn + 1) % max(len(names), 1)
        for name in [*names[self._turn :], *names[: self._turn]]:
            block = found[name] = self._stream.store.read(
                self._stream.name, name, self._at.position[name], most
            )
            self._at = self._at.advanced(
                segments, {name: block.next}, [name] if block.ended else []
            )
            most -= block.rows.num_rows
            if not most:
                break
        return table_of(found)

    def confirm(self) -> None:
        """Nothing to checkpoint."""

    def place(self) -> object:
        return self._at

    def window(self) -> TimeWindow:
        return time_window(
            self._at.position, self._stream.watermarks(), self._stream.description().segments
        )


def read(stream: Stream, options: ReadOptions) -> int:
    """Print events until the end, the limit or Ctrl-C; returns 1 if it failed on the way."""
    start = _start(stream, options.start)
    with shutdown_requests() as shutdown, _source(stream, options, start) as source:
        try:
            _print_all(source, options, shutdown)
        except TidegateError as error:
            _report(str(error))
            return 1
    return 0


def _print_all(source: _EventSource, options: ReadOptions, shutdown: ShutdownRequest) -> None:
    left, window = options.limit, source.window() if options.as_json else TimeWindow()
    while not shutdown.stop and left != 0:
        before = source.place()
        table = source.next(options.batch if left is None else min(options.batch, left))
        if table.num_rows:
            # From the watermark before all of these events to the one after them.
            after = source.window() if options.as_json else window
            lines = (
                _json_lines(table, TimeWindow(window.lower, after.upper))
                if options.as_json
                else _values(table)
            )
            print("\n".join(lines), flush=True)
            window = after
        if table.num_rows or source.place() != before:
            # Only printed events are checkpointed. Successors of segments that ended become
            # readable.
            source.confirm()
            left = None if left is None else left - table.num_rows
        elif options.follow:
            shutdown.wait(_WAIT)
            if _is_broken(sys.stdout):
                raise BrokenPipeError
        else:
            return


def _values(table: pa.Table) -> Iterator[str]:
    """Each value on a line of its own."""
    for value in _column(table, "value"):
        yield value.decode("utf-8", "backslashreplace").replace("\r", "\\r").replace("\n", "\\n")


def _column(table: pa.Table, name: str) -> list[Any]:
    return table.column(name).to_pylist()


def _json_lines(table: pa.Table, window: TimeWindow) -> Iterator[str]:
    bounds = {"lower": window.lower, "upper": window.upper}
    for segment, offset, key, value, appended in zip(
        *(_column(table, name) for name in EVENTS.names), strict=True
    ):
        fields: dict[str, Any] = {"segment": segment, "offset": offset, "key": key}
        try:
            fields["value"] = value.decode()
        except UnicodeDecodeError:
            fields |= {"value": None, "base64": base64.b64encode(value).decode()}
        yield json.dumps({**fields, "appended": appended, "window": bounds}, ensure_ascii=False)


@contextmanager
def _source(stream: Stream, options: ReadOptions, start: Start) -> Iterator[_EventSource]:
    if options.group is None:
        yield _StreamCursor(stream, stream.frontier(start))
        return
    reader = stream.group(options.group, start=start, lease=options.lease).reader(
        options.reader or f"{socket.gethostname()}-{os.getpid()}"
    )
    try:
        yield _GroupReader(reader)
    finally:
        with suppress(TidegateError):
            reader.close()


def _start(stream: Stream, text: str | None) -> Start:
    """The start position: a word, or a cut of the stream."""
    start = start_of("earliest" if text is None else text, "--from", _HINT)
    return start if isinstance(start, str) else stream.frontier(start)


def _is_broken(file: Any) -> bool:
    """Whether the reading end of a pipe is closed."""
    try:
        number = file.fileno()
    except (OSError, AttributeError, ValueError):
        return False
    if not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(number, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _report(text: str) -> None:
    print(f"tidegate stream read: {text}", file=sys.stderr, flush=True)


def options_of(arguments: Any) -> ReadOptions:
    """The parsed arguments as arguments."""
    return ReadOptions(
        group=arguments.group,
        reader=arguments.reader,
        start=arguments.start,
        lease=arguments.lease,
        limit=arguments.limit,
        batch=arguments.batch,
        follow=arguments.follow,
        as_json=arguments.json,
    )
