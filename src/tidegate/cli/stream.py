"""`tidegate stream`: create, write, read, scale and inspect streams with writer-side watermarks."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from tidegate.cli.shutdown import ShutdownRequest, shutdown_requests
from tidegate.cli.stream_lines import UNITS
from tidegate.cli.tables import by_number, places
from tidegate.errors import SpecError, TidegateError
from tidegate.instants import duration
from tidegate.kernel.streams.watermarks import StreamMark
from tidegate.operators.text_table import aligned
from tidegate.redaction import redacted_lines
from tidegate.units import many, rounded, when

if TYPE_CHECKING:
    from tidegate import streams
    from tidegate.streams.description import Description

VARIABLE = "TIDEGATE_STORE"
_STORE = (
    "the store: a path, sqlite:PATH or kafka://HOST:PORT/PREFIX (default: the variable"
    " TIDEGATE_STORE)"
)
_ABOUT = f"""\
STORE is a path, sqlite:PATH or kafka://HOST:PORT/PREFIX; it defaults to the variable {VARIABLE}.
The exit status is 0 on success, 1 if something failed on the way, and 2 if the command could not
be run. docs/streams.md describes streams."""
_WRITE = f"""\
Writes the lines of files, or of the standard input, as events. Broken lines are reported and
skipped. Ctrl-C writes what was read, and exits. If the variable {VARIABLE} is set, the first
argument is a store only if it contains a `/` or a `:`."""
_READ = """\
Prints the values of events, one per line. With --group the readers of the group share the stream,
and printed events are checkpointed: the next reader continues after them. Without --group, all
events are read and nothing is checkpointed. Use --limit instead of `head` if every event counts:
a pipe buffers more than its reader has consumed."""

Command = Callable[[argparse.Namespace], int]


# Arguments


def add(commands: Any) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "stream",
        help="create, write, read, scale and inspect streams with writer-side watermarks",
        description=_ABOUT,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_create(actions)
    _add_write(actions)
    _add_read(actions)
    _add_scale(actions)
    _add_marks(actions)
    _add_tail(actions)
    _add_control(actions)
    _action(actions, "list", _list, "list the streams of a store", stream=False)
    _action(actions, "delete", _delete, "delete a stream with its content")


def _add_create(actions: Any) -> None:
    create = _action(actions, "create", _create, "create a stream")
    create.add_argument(
        "--segments",
        type=int,
        default=1,
        metavar="N",
        help="number of segments that its keys are split into (default: %(default)s)",
    )
    create.add_argument(
        "--timeout",
        default="1 minute",
        metavar="TIME",
        help="a writer silent for this long no longer holds the watermark back (default:"
        " %(default)s)",
    )
    create.add_argument(
        "--initial-delay",
        default="5 seconds",
        metavar="TIME",
        help="time after creation without a watermark (default: %(default)s)",
    )


def _add_scale(actions: Any) -> None:
    scale = _action(actions, "scale", _scale, "seal segments, and create their successors")
    scale.add_argument(
        "--segments", type=int, metavar="N", help="the wanted number of segments, of equal size"
    )
    scale.add_argument("--seal", metavar="NAMES", help="seal these segments: 0,1")
    scale.add_argument(
        "--ranges",
        metavar="RANGES",
        help="key ranges of their successors: 0-0.5,0.5-1; thirds are 0-1/3,1/3-2/3,2/3-1",
    )


def _add_marks(actions: Any) -> None:
    marks = _action(
        actions, "marks", _marks, "show the marks of writers, and the newest watermarks"
    )
    marks.add_argument(
        "--limit",
        type=int,
        default=10,
        metavar="N",
        help="number of watermarks (default: %(default)s)",
    )


def _add_tail(actions: Any) -> None:
    tail = _action(
        actions, "tail", _tail, "show segments, the end of the stream and its newest watermark"
    )
    tail.add_argument("--follow", action="store_true", help="show it repeatedly, until Ctrl-C")
    tail.add_argument(
        "--every",
        default="1 second",
        metavar="TIME",
        help="interval of --follow (default: %(default)s)",
    )


def _add_control(actions: Any) -> None:
    control = _action(
        actions,
        "control",
        _control,
        "run a controller until Ctrl-C, and print each new watermark",
        stream=False,
    )
    control.add_argument(
        "--stream",
        action="append",
        metavar="STREAM",
        help="control this stream only; may be repeated",
    )
    control.add_argument(
        "--period",
        default="1 second",
        metavar="TIME",
        help="interval between two rounds (default: %(default)s)",
    )
    control.add_argument(
        "--lease",
        default="5 seconds",
        metavar="TIME",
        help="another controller takes over after this time (default: %(default)s)",
    )


def _add_write(actions: Any) -> None:
    write = _action(actions, "write", _write, "write lines as events", description=_WRITE)
    write.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="files with lines; `-` is the standard input (default: -)",
    )
    write.add_argument(
        "--text", action="store_true", help="take lines as plain text (default: JSON)"
    )
    write.add_argument("--key", metavar="FIELD", help="the field that is the routing key")
    write.add_argument(
        "--writer", metavar="ID", help="the id of the writer, required to note times"
    )
    write.add_argument(
        "--time",
        metavar="FIELD",
        help="the field that is the event time; the writer notes the greatest one seen",
    )
    write.add_argument("--unit", choices=list(UNITS), help="unit of numeric times (default: us)")
    write.add_argument(
        "--disorder",
        default="0 s",
        metavar="TIME",
        help="note this much less, because older events may follow (default: %(default)s)",
    )
    write.add_argument("--auto-note-time", action="store_true", help="note the clock every second")
    write.add_argument(
        "--transaction",
        type=int,
        metavar="N",
        help="commit N lines at a time, with their greatest time",
    )
    write.add_argument(
        "--resume",
        action="store_true",
        help="skip the lines that transactions of this writer have already written",
    )
    write.add_argument(
        "--batch",
        type=int,
        default=20_000,
        metavar="N",
        help="maximum number of events in a batch (default: %(default)s)",
    )
    write.add_argument(
        "--no-control", action="store_true", help="do not run a controller alongside"
    )


def _add_read(actions: Any) -> None:
    read = _action(actions, "read", _read, "print the values of events", description=_READ)
    read.add_argument(
        "--group", metavar="NAME", help="read as a reader group, and checkpoint what was printed"
    )
    read.add_argument(
        "--reader",
        metavar="ID",
        help="the id of the reader in the group (default: machine and process)",
    )
    read.add_argument(
        "--from",
        dest="start",
        metavar="PLACE",
        help="earliest (default), latest, or a cut as JSON; an existing group continues",
    )
    read.add_argument(
        "--lease",
        default="10 seconds",
        metavar="TIME",
        help="a reader silent for this long expires (default: %(default)s)",
    )
    read.add_argument("--limit", type=int, metavar="N", help="exit after N events")
    read.add_argument(
        "--batch",
        type=int,
        default=1000,
        metavar="N",
        help="maximum number of events read and checkpointed together (default: %(default)s)",
    )
    read.add_argument("--follow", action="store_true", help="wait for more, until Ctrl-C")


def _action(
    actions: Any,
    name: str,
    command: Command,
    about: str,
    *,
    stream: bool = True,
    description: str | None = None,
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=about, description=description)
    parser.add_argument("store", nargs="?", metavar="STORE", help=_STORE)
    if stream:
        parser.add_argument("stream", metavar="STREAM", help="the name of the stream")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=_quietly, run=command)
    return parser


def _quietly(options: argparse.Namespace) -> int:
    """Run a command; a closed output pipe ends it without an error."""
    options.name = f"stream {options.action}"
    try:
        return int(options.run(options))
    except BrokenPipeError:
        # Python flushes once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        # A second Ctrl-C: exit at once.
        return 130


# The store


def _opened(options: argparse.Namespace, *, create: bool = False) -> streams.Streams:
    """The store of the argument or the variable; only `create` makes a new file."""
    address = options.store or os.environ.get(VARIABLE)
    if not address:
        raise SpecError(
            f"the store is missing. Hint: tidegate {options.name} events.db ..., or"
            f" {VARIABLE}=events.db"
        )
    from tidegate import streams

    return streams.open(address, create=create)


def _create(options: argparse.Namespace) -> int:
    with _opened(options, create=True) as store:
        stream = store.create(
            options.stream,
            options.segments,
            timestamp_aggregation_timeout=options.timeout,
            initial_delay=options.initial_delay,
        )
        segments = _segments(stream)
        if options.json:
            print(json.dumps({"stream": stream.name, "segments": segments}))
        else:
            print(f"created {stream.name} with {many(len(segments), 'segment')}")
    return 0


def _list(options: argparse.Namespace) -> int:
    with _opened(options) as store:
        found = {name: store.stream(name).description() for name in store.names()}
        if options.json:
            for name, described in found.items():
                print(
                    json.dumps(
                        {
                            "stream": name,
                            "segments": len(described.segments.newest()),
                            "created": described.created,
                        }
                    )
                )
            return 0
        rows = [["stream", "segments", "epoch", "created"]]
        rows += [
            [name, str(len(one.segments.newest())), str(one.segments.epoch), when(one.created)]
            for name, one in found.items()
        ]
        print("\n".join(aligned(rows)) if found else "no streams")
    return 0


def _delete(options: argparse.Namespace) -> int:
    with _opened(options) as store:
        store.delete(options.stream)
    print(json.dumps({"deleted": options.stream}) if options.json else f"deleted {options.stream}")
    return 0


# Events


def _write(options: argparse.Namespace) -> int:
    if (
        os.environ.get(VARIABLE)
        and options.store is not None
        and not set(options.store).intersection("/:")
    ):
        options.store, options.stream, options.files = (
            None,
            options.store,
            [options.stream, *options.files],
        )
    from tidegate.cli import stream_write

    command = stream_write.options_of(options)
    command.check()
    with _opened(options) as store:
        return stream_write.write(store, store.stream(options.stream), command)


def _read(options: argparse.Namespace) -> int:
    from tidegate.cli import stream_read

    command = stream_read.options_of(options)
    command.check()
    with _opened(options) as store:
        return stream_read.read(store.stream(options.stream), command)


# Metadata


def _scale(options: argparse.Namespace) -> int:
    seal = None if options.seal is None else [name.strip() for name in options.seal.split(",")]
    ranges = None if options.ranges is None else _ranges(options.ranges)
    with _opened(options) as store:
        stream = store.stream(options.stream)
        stream.scale(options.segments, seal=seal, ranges=ranges)
        _show(stream, as_json=options.json)
    return 0


def _ranges(text: str) -> list[tuple[float, float]]:
    found = []
    for one in text.split(","):
        low, _, high = one.partition("-")
        try:
            found.append((float(Fraction(low.strip())), float(Fraction(high.strip()))))
        except (ValueError, ZeroDivisionError):
            raise SpecError(
                f"--ranges takes ranges within 0 to 1, got `{one}` in `{text}`. Hint: 0-0.5,0.5-1"
            ) from None
    return found


def _marks(options: argparse.Namespace) -> int:
    if options.limit < 1:
        raise SpecError(f"--limit must be at least 1, got {options.limit}")
    with _opened(options) as store:
        stream = store.stream(options.stream)
        writers, now = sorted(stream.marks().by_writer.items()), store.clock()
        newest = stream.watermarks()[: -options.limit - 1 : -1]
    if options.json:
        marks_json = [
            {
                "writer": name,
                "time": one.time,
                "alive": one.alive,
                "lag": now - one.time,
                "position": by_number(one.position),
            }
            for name, one in writers
        ]
        print(
            json.dumps(
                {
                    "stream": stream.name,
                    "writers": marks_json,
                    "watermarks": [_watermark(mark) for mark in newest],
                }
            )
        )
        return 0
    rows = [["writer", "time", "alive", "behind the clock", "position"]]
    rows += [
        [
            name,
            when(one.time),
            "yes" if one.alive else "no",
            rounded(now - one.time),
            places(one.position),
        ]
        for name, one in writers
    ]
    lines = aligned(rows) if writers else ["  no writers"]
    marks = [
        ["watermark", "upper", "cut"],
        *([when(mark.time), when(mark.upper), places(mark.cut)] for mark in newest),
    ]
    print("\n".join([*lines, "", *(aligned(marks) if newest else ["  no watermark yet"])]))
    return 0


def _tail(options: argparse.Namespace) -> int:
    every = duration(options.every)
    if every <= 0:
        raise SpecError(f"--every must be greater than 0, got {options.every}")
    with _opened(options) as store, shutdown_requests() as shutdown:
        stream = store.stream(options.stream)
        while True:
            _show(stream, as_json=options.json)
            if options.follow:
                shutdown.wait(every / 1e6)
            if shutdown.stop or not options.follow:
                return 0
            if not options.json:
                print()


def _show(stream: streams.Stream, *, as_json: bool) -> None:
    """Print the segments, the tail and the newest watermark."""
    segments, marks, tail = _segments(stream), stream.watermarks(), by_number(stream.tail())
    newest = marks[-1] if marks else None
    if as_json:
        print(
            json.dumps(
                {
                    "stream": stream.name,
                    "segments": segments,
                    "tail": tail,
                    "watermark": newest and _watermark(newest),
                }
            ),
            flush=True,
        )
        return
    rows = [["segment", "epoch", "keys", "", "first", "end"]]
    for one in segments:
        keys = f"[{one['low']:.6g}, {one['high']:.6g})"
        rows.append(
            [
                one["name"],
                str(one["epoch"]),
                keys,
                "open" if one["open"] else "sealed",
                str(one["first"]),
                str(one["end"]),
            ]
        )
    watermark = (
        "none yet"
        if newest is None
        else f"{when(newest.time)}, upper {when(newest.upper)}, cut {places(newest.cut)}"
    )
    print(
        "\n".join(
            [*aligned(rows), "", f"  tail       {places(tail)}", f"  watermark  {watermark}"]
        ),
        flush=True,
    )


def _segments(stream: streams.Stream) -> list[dict[str, Any]]:
    described: Description = stream.description()
    bounds, newest = (
        stream.store.bounds(stream.name),
        {one.name for one in described.segments.newest()},
    )
    return [
        {
            "name": one.name,
            "epoch": one.epoch,
            "low": one.low,
            "high": one.high,
            "open": one.name in newest,
            "first": bounds[one.name][0],
            "end": bounds[one.name][1],
        }
        for one in described.segments.by_name.values()
    ]


def _watermark(mark: StreamMark) -> dict[str, Any]:
    return {"time": mark.time, "upper": mark.upper, "cut": by_number(mark.cut)}


# The controller


def _control(options: argparse.Namespace) -> int:
    with _opened(options) as store, shutdown_requests() as shutdown:
        for name in options.stream or []:
            store.stream(name)
        controller = store.controller(
            streams=options.stream, period=options.period, lease=options.lease
        )
        try:
            return _rounds(controller, shutdown, options)
        finally:
            controller.stop()


def _rounds(
    controller: streams.Controller, shutdown: ShutdownRequest, options: argparse.Namespace
) -> int:
    """Run rounds; an error of the store is reported once, and retried."""
    failing = False
    while not shutdown.stop:
        found: dict[str, StreamMark] = {}
        try:
            found = controller.round()
            failing = False
        except TidegateError as error:
            if not failing:
                text = redacted_lines(f"tidegate {options.name}: {error}")
                print(text, file=sys.stderr, flush=True)
            failing = True
        for name, mark in found.items():
            if options.json:
                print(json.dumps({"stream": name, **_watermark(mark)}), flush=True)
            else:
                print(
                    f"{name}  {when(mark.time)}  upper {when(mark.upper)}  cut {places(mark.cut)}",
                    flush=True,
                )
        shutdown.wait(duration(options.period) / 1e6)
    return int(failing)
