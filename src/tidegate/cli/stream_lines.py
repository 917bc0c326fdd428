"""The lines of a file as events, for `tidegate stream write`."""

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
"""Maximum length of a line; a longer one is broken."""
UNITS = {"s": 1_000_000, "ms": 1000, "us": 1}
_BETWEEN = f"tidegate {uuid.uuid4().hex}"
"""Separator between two lines that are parsed as JSON together; no line contains it."""
_MARK = b"\xef\xbb\xbf"
Line = bytes | None
"""A line without its end; None for a line that is too long."""


@dataclass(frozen=True)
class Form:
    """The format of lines, and the fields with the key and the time of an event."""

    text: bool = False
    key: str | None = None
    time: str | None = None
    unit: str | None = None
    """Unit of numeric times. Default: microseconds."""


@dataclass
class Events:
    """Consecutive lines as columns, and the broken ones among them."""

    numbers: list[int] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    """Empty if lines have no time."""
    broken: list[tuple[int, str]] = field(default_factory=list)
    """Line numbers, and what is wrong with each."""

    def __len__(self) -> int:
        return len(self.values)

    def columns(self) -> tuple[pa.Array, pa.Array]:
        """Values and keys as columns for a writer."""
        return pa.array(self.values, pa.binary()), pa.array(self.keys, pa.string())

    def split(self, count: int) -> tuple[Events, Events]:
        """The first `count` events, and the rest; a broken line stays with the event after it."""
        if count > len(self):
            return self, Events()
        after = self.numbers[count - 1] if count else -1
        before, behind = slice(count), slice(count, None)
        broken = (
            [one for one in self.broken if one[0] < after],
            [one for one in self.broken if one[0] > after],
        )
        return self._part(before, broken[0]), self._part(behind, broken[1])

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
    """The lines that end in each piece of a file, with the number of the first.

    Text after the last line end is a line too, if the file is complete.
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
    """The events of lines; `first` is the number of the first line."""
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
    parsed = _read([line for _, line in numbered])
    for place, (at, line) in enumerate(numbered):
        try:
            document = _read_one(line) if parsed is None else parsed[place]
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
    """The lines parsed as JSON, all at once; None if one is broken."""
    between = f',"{_BETWEEN}",'.encode()
    try:
        parsed = json.loads(
            b"".join((b"[", between.join(lines), b"]")).decode(), parse_constant=_no_constant
        )
    except (ValueError, RecursionError):
        return None
    if not lines:
        return []
    # A line that is not exactly one value would shift or absorb a separator.
    return (
        parsed[::2]
        if len(parsed) == 2 * len(lines) - 1 and parsed[1::2].count(_BETWEEN) == len(lines) - 1
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
            " plain text"
        ) from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def _field(document: Any, name: str) -> Any:
    value = document.get(name) if isinstance(document, dict) else None
    if value is None:
        raise InputError(
            f"it has no field `{name}`"
            if isinstance(document, dict)
            else f"it is not an object, so it has no field `{name}`"
        )
    return value


def _key(document: Any, name: str | None) -> str | None:
    """The routing key: text as it is, anything else as JSON."""
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
            raise InputError(f"its field `{name}` cannot be encoded as UTF-8") from error
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
        raise InputError(f"its field `{form.time}` is beyond the last instant, got {value!r}")
    return found
