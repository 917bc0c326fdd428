"""Lines as events: what `tidegate stream write` makes of the lines of a file."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidegate.errors import InputError, ParseError
from tidegate.instants import MAX, MIN, instant

LINE_BYTES = 64 << 20
"""A line that is longer is broken."""
UNITS = {"s": 1_000_000, "ms": 1000, "us": 1}
_BETWEEN = f"tidegate {uuid.uuid4().hex}"
"""Stands between two lines that are read as JSON together; no line has it."""
_MARK = b"\xef\xbb\xbf"
Line = bytes | None
"""A line without its end; None stands for one that is too long."""


@dataclass(frozen=True)
class Form:
    """What lines are, and where key and time of an event stand in them."""

    text: bool = False
    key: str | None = None
    time: str | None = None
    unit: str | None = None
    """What a number counts that is a time; microseconds unless said."""


@dataclass
class Events:
    """Neighbouring lines, as columns, and those of them that are broken."""

    numbers: list[int] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    """Empty where lines have no time."""
    broken: list[tuple[int, str]] = field(default_factory=list)
    """Line numbers, and what is wrong there."""

    def __len__(self) -> int:
        return len(self.values)

    def columns(self) -> tuple[pa.Array, pa.Array]:
        """Values and keys as a writer takes them."""
        return pa.array(self.values, pa.binary()), pa.array(self.keys, pa.string())

    def split(self, count: int) -> tuple[Events, Events]:
        """The first so many events, and the rest; broken lines stay with the event that comes after
        them.
        """
        if count > len(self):
            return self, Events()
        after = self.numbers[count - 1] if count else -1
        before, behind = slice(count), slice(count, None)
        told = (
            [one for one in self.broken if one[0] < after],
            [one for one in self.broken if one[0] > after],
        )
        return self._part(before, told[0]), self._part(behind, told[1])

    def _part(self, rows: slice, broken: list[tuple[int, str]]) -> Events:
        return Events(
            self.numbers[rows], self.values[rows], self.keys[rows], self.times[rows], broken
        )

    def extend(self, other: Events) -> None:
        for mine, more in zip(_columns(self), _columns(other), strict=True):
            mine.extend(more)


def _columns(events: Events) -> list[list[Any]]:
    return [events.numbers, events.values, events.keys, events.times, events.broken]


def lines_of(
    pieces: Iterable[bytes], is_whole: Callable[[], bool] = lambda: True
) -> Iterator[tuple[int, list[Line]]]:
    """The lines of a file that comes in pieces: those that end in a piece together, with the number
    of the first.

    What stands behind the last line end is a line too, if the file is whole.
    """
    number, size = 1, 0
    held: list[bytes] = []

    def whole(end: bytes) -> Line:
        return None if size + len(end) > LINE_BYTES else b"".join((*held, end))

    for piece in pieces:
        first, newline, rest = piece.partition(b"\n")
        if newline:
            *others, left = rest.split(b"\n")
            found: list[Line] = [whole(first), *others]
            yield number, [line if line is None else line.removesuffix(b"\r") for line in found]
            number, held, size = number + len(found), [], 0
        else:
            left = piece
        size += len(left)
        if size <= LINE_BYTES:
            held.append(left)
        else:
            held.clear()
    if size and is_whole():
        yield number, [whole(b"")]


def events_of(number: int, lines: Sequence[Line], form: Form) -> Events:
    """The events of lines, of which the first has this number."""
    found = Events()
    if number == 1 and lines and lines[0] is not None:
        lines = [lines[0].removeprefix(_MARK), *lines[1:]]
    numbered = [(at, line) for at, line in enumerate(lines, number) if line is not None]
    if len(numbered) < len(lines):
        found.broken += [
            (at, f"it is longer than {LINE_BYTES >> 20} MB")
            for at, line in enumerate(lines, number)
            if line is None
        ]
    if form.text:
        found.numbers, found.values = [at for at, _ in numbered], [line for _, line in numbered]
        found.keys = [None] * len(numbered)
        return found
    numbered = [(at, stripped) for at, line in numbered if (stripped := line.strip())]
    said = _read([line for _, line in numbered])
    for place, (at, line) in enumerate(numbered):
        try:
            document = _read_one(line) if said is None else said[place]
            if form.key is not None or form.time is not None:
                key, time = _key(document, form.key), _time(document, form)
                found.keys.append(key)
                if time is not None:
                    found.times.append(time)
            else:
                found.keys.append(None)
        except (InputError, ParseError) as error:
            found.broken.append((at, str(error)))
            continue
        found.numbers.append(at)
        found.values.append(line)
    found.broken.sort()
    return found


def _read(lines: list[bytes]) -> list[Any] | None:
    """What the lines say, all read at once; None where one of them is broken."""
    between = f',"{_BETWEEN}",'.encode()
    try:
        said = json.loads(
            b"".join((b"[", between.join(lines), b"]")).decode(), parse_constant=_no_constant
        )
    except (ValueError, RecursionError):
        return None
    if not lines:
        return []
    # A line that is not one value would move what stands between two lines, or take it in.
    return (
        said[::2]
        if len(said) == 2 * len(lines) - 1 and said[1::2].count(_BETWEEN) == len(lines) - 1
        else None
    )


def _read_one(line: bytes) -> Any:
    try:
        return json.loads(line.decode(), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise InputError(f"it is not UTF-8 ({error.reason} at byte {error.start})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"it is not JSON ({str(error) or type(error).__name__}). Hint: --text takes lines as"
            " they are"
        ) from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no value")


def _field(document: Any, name: str) -> Any:
    value = document.get(name) if isinstance(document, dict) else None
    if value is None:
        raise InputError(
            f"it has no field `{name}`"
            if isinstance(document, dict)
            else f"it is no object, so it has no field `{name}`"
        )
    return value


def _key(document: Any, name: str | None) -> str | None:
    """The routing key: text as it is, anything else as JSON says it."""
    if name is None:
        return None
    value = _field(document, name)
    key = (
        value
        if isinstance(value, str)
        else json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    )
    if not key.isascii():
        try:
            key.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"its field `{name}` is a text that UTF-8 cannot say") from error
    return key


def _time(document: Any, form: Form) -> int | None:
    if form.time is None:
        return None
    value = _field(document, form.time)
    if type(value) is int and MIN < (found := value * UNITS[form.unit or "us"]) < MAX:
        return found
    if isinstance(value, float) and form.unit is not None and math.isfinite(value):
        found = instant(math.floor(value * UNITS[form.unit]))
    else:
        found = instant(value) if isinstance(value, str) else instant(value, unit=form.unit)
    if found in (MIN, MAX):
        raise InputError(f"its field `{form.time}` is the end of time, got {value!r}")
    return found
