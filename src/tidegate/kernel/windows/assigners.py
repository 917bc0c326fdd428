"""Window assigners: from columns of times, offsets or ordinals to windows and slices.

Contract: windows are half-open; `assign` returns one entry per (event, window), ordered by row,
then start, then end. Bounds beyond int64 saturate at `MIN` and `MAX`. A slice is a piece of the
axis without a window edge inside, so all events of a slice are in the same windows, and `assign` of
a slice's start returns them. `MAX` is plus infinity and never the time of an event.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import InputError, SpecError
from tidegate.instants import MAX, MIN, clamp, saturating_add
from tidegate.kernel.frame import Column, Frame, to_arrow
from tidegate.kernel.groups import lexicographic_order
from tidegate.kernel.windows.calendar import CalendarBounds
from tidegate.spec.computed import Computed
from tidegate.spec.windows import (
    Axis,
    ByDifference,
    Calendar,
    Cumulative,
    Custom,
    Global,
    Hopping,
    Inherited,
    Session,
    Tumbling,
    Window,
)


class Assigned(NamedTuple):
    """One entry per (event, window)."""

    row: np.ndarray
    start: np.ndarray
    end: np.ndarray


class Assigner(ABC):
    """Assigns windows to events."""

    @abstractmethod
    def assign(self, x: np.ndarray, rows: Frame | None = None) -> Assigned:
        """The windows of events at `x`; `rows` are the same events with all their columns."""


class Aligned(Assigner):
    """Windows that depend on the axis alone, not on the events."""

    is_sliced: bool = False
    """Whether a window can consist of several slices."""
    has_gaps: bool = False
    """Whether an event may be in no window."""

    def assign(self, x: np.ndarray, rows: Frame | None = None) -> Assigned:  # noqa: ARG002
        return self.windows_of(x)

    @abstractmethod
    def slice_of(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Start and end of the slice of each event; equal where there is no window."""

    def numbers_of(self, x: np.ndarray) -> np.ndarray:
        """Numbers that distinguish slices, in their order; consecutive if all slices have one
        size.
        """
        return self.slice_of(x)[0]

    def windows_of(self, x: np.ndarray) -> Assigned:
        """The windows of each event; by default one slice is one window."""
        start, end = self.slice_of(x)
        return Assigned(np.arange(len(start)), start, end)

    def first_window(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first window that ends after each position, also where the position is in none."""
        return self.slice_of(x)

    @abstractmethod
    def last_end(self, x: np.ndarray) -> np.ndarray:
        """The end of the last window of each event; `MIN` without a window."""

    @abstractmethod
    def windows_ending_in(self, lo: int, hi: int) -> Iterator[tuple[int, int]]:
        """Windows with `lo < end <= hi`, by end; lazily, because there may be very many."""

    def windows_of_slice(self, start: int, end: int) -> list[tuple[int, int]]:
        """All windows that contain a slice."""
        if start == end:
            return []
        found = self.windows_of(np.array([start], np.int64))
        return list(zip(found.start.tolist(), found.end.tolist(), strict=True))


def build(window: Window) -> Assigner:
    """The assigner of a window specification."""
    match window:
        case Tumbling():
            return TumblingAssigner(window)
        case Hopping():
            return HoppingAssigner(window)
        case Cumulative():
            return CumulativeAssigner(window)
        case Calendar():
            return CalendarAssigner(window)
        case Global():
            return GlobalAssigner()
        case Session():
            return SessionAssigner(window)
        case ByDifference():
            return ByDifferenceAssigner(window)
        case Custom():
            return CustomAssigner(window)
        case Inherited():
            return InheritedAssigner()
    raise SpecError(
        f"`{window!r}` is not a window. Hint: create one with tg.tumbling(...), tg.session(...) or"
        " another window function"
    )


def _position(x: np.ndarray, period: int, offset: int) -> np.ndarray:
    """The position of each event in its period, from 0 to `period - 1`. NumPy divides by a scalar
    faster than it computes a remainder.
    """
    into: np.ndarray = x - (x // period) * period
    if offset:
        into -= offset
        into[into < 0] += period
    return into


def _roomy(x: np.ndarray, reach: int) -> bool:
    """Whether all events are far enough from the ends of int64 that bounds within `reach` do not
    overflow.
    """
    return not len(x) or (int(x.min()) >= MIN + reach and int(x.max()) <= MAX - reach)


def _period(x: np.ndarray, period: int, offset: int) -> np.ndarray:
    """The number of each event's period, for events far from the ends of int64."""
    number: np.ndarray = (x - offset if offset else x) // period
    return number


def _floor(x: np.ndarray, period: int, offset: int) -> np.ndarray:
    """The start of each event's period, with fewer passes over the column than `_position`."""
    start = _period(x, period, offset)
    start *= period
    if offset:
        start += offset
    return start


def _back(x: np.ndarray, distance: np.ndarray | int) -> np.ndarray:
    """`x - distance` for non-negative distances."""
    moved: np.ndarray = x - distance
    if len(x) and int(x.min()) < MIN + int(np.max(distance)):
        moved[moved > x] = MIN
    return moved


def _ahead(x: np.ndarray, distance: np.ndarray | int) -> np.ndarray:
    """`x + distance` for non-negative distances."""
    moved: np.ndarray = x + distance
    if len(x) and int(x.max()) > MAX - int(np.max(distance)):
        moved[moved < x] = MAX
    return moved


def _spread(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each row repeated by its count, and the index of the repetition from 0."""
    row = np.repeat(np.arange(len(counts)), counts)
    first = np.cumsum(counts) - counts
    return row, np.arange(len(row)) - first[row]


def _one_each(start: np.ndarray, end: np.ndarray) -> Assigned:
    return Assigned(np.arange(len(start)), start, end)


class TumblingAssigner(Aligned):
    """Every slice is one window."""

    def __init__(self, spec: Tumbling) -> None:
        self._size, self._offset = spec.size, spec.offset

    def slice_of(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if _roomy(x, self._size):
            start = _floor(x, self._size, self._offset)
            return start, start + self._size
        into = _position(x, self._size, self._offset)
        return _back(x, into), _ahead(x, self._size - into)

    def numbers_of(self, x: np.ndarray) -> np.ndarray:
        return (
            _period(x, self._size, self._offset) if _roomy(x, self._size) else super().numbers_of(x)
        )

    def last_end(self, x: np.ndarray) -> np.ndarray:
        return self.slice_of(x)[1]

    def windows_ending_in(self, lo: int, hi: int) -> Iterator[tuple[int, int]]:
        return _hops_ending_in(lo, hi, self._size, self._size, self._offset)


class HoppingAssigner(Aligned):
    """Windows start every slide; a period of one slide is cut at 0 and where earlier windows
    end.
    """

    is_sliced = True

    def __init__(self, spec: Hopping) -> None:
        self._size, self._slide, self._offset = spec.size, spec.slide, spec.offset
        # Earlier windows end here; at the end of the period if size is a multiple of slide, and
        # then nothing is cut.
        self._cut = spec.size % spec.slide or spec.slide
        self.has_gaps = spec.slide > spec.size
        self.is_sliced = spec.slide < spec.size

    def slice_of(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if _roomy(x, self._slide):
            start = _floor(x, self._slide, self._offset)
            return (
                self._cut_apart(x, start)
                if self._cut < self._slide
                else (start, start + self._slide)
            )
        into = _position(x, self._slide, self._offset)
        tail = into >= self._cut
        if self.has_gaps:
            return _back(x, np.where(tail, 0, into)), _ahead(x, np.where(tail, 0, self._cut - into))
        return _back(x, np.where(tail, into - self._cut, into)), _ahead(
            x, np.where(tail, self._slide, self._cut) - into
        )

    def numbers_of(self, x: np.ndarray) -> np.ndarray:
        whole = self._cut == self._slide and _roomy(x, self._slide)
        return _period(x, self._slide, self._offset) if whole else super().numbers_of(x)

    def _cut_apart(self, x: np.ndarray, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Slices of periods cut in two; the second is a gap if windows are shorter than the
        slide.
        """
        tail = x - start >= self._cut
        if self.has_gaps:
            return np.where(tail, x, start), np.where(tail, x, start + self._cut)
        start += tail * self._cut
        end = start + self._cut
        end += tail * (self._slide - 2 * self._cut)
        return start, end

    def windows_of(self, x: np.ndarray) -> Assigned:
        into = _position(x, self._slide, self._offset)
        counts = (self._size - 1 - into) // self._slide + 1
        row, nth = _spread(counts)
        distance = into[row] + (counts[row] - 1 - nth) * self._slide
        return Assigned(row, _back(x[row], distance), _ahead(x[row], self._size - distance))

    def first_window(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        into = _position(x, self._slide, self._offset)
        # Between two windows `before` is -1, and the next one is the first.
        before = (self._size - 1 - into) // self._slide
        start = saturating_add(x, -(into + before * self._slide))
        return start, saturating_add(start, self._size)

    def last_end(self, x: np.ndarray) -> np.ndarray:
        left = self._size - _position(x, self._slide, self._offset)
        return (
            np.where(left > 0, _ahead(x, np.maximum(left, 0)), MIN)
            if self.has_gaps
            else _ahead(x, left)
        )

    def windows_ending_in(self, lo: int, hi: int) -> Iterator[tuple[int, int]]:
        return _hops_ending_in(lo, hi, self._size, self._slide, self._offset)


def _hops_ending_in(
    lo: int, hi: int, size: int, slide: int, offset: int
) -> Iterator[tuple[int, int]]:
    start = (lo - size - offset) // slide * slide + slide + offset
    while start < MAX and clamp(start + size) <= hi:
        yield clamp(start), clamp(start + size)
        start += slide


class CumulativeAssigner(Aligned):
    """Slices are the steps; the windows of a slice end with it or with a later slice of the same
    size.
    """

    is_sliced = True

    def __init__(self, spec: Cumulative) -> None:
        self._size, self._step, self._offset = spec.size, spec.step, spec.offset
        self._steps = -(-spec.size // spec.step)
        self.is_sliced = self._steps > 1

    def slice_of(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        into = _position(x, self._size, self._offset)
        first = into // self._step * self._step
        # Compared before adding, so that sizes near the end of int64 do not wrap.
        last = np.where(
            first > self._size - self._step, self._size - into, self._step - (into - first)
        )
        return _back(x, into - first), _ahead(x, last)

    def windows_of(self, x: np.ndarray) -> Assigned:
        into = _position(x, self._size, self._offset)
        done = into // self._step
        row, nth = _spread(self._steps - done)
        steps = done[row] + nth + 1
        ends = np.where(steps == self._steps, self._size, steps * self._step) - into[row]
        found = Assigned(row, _back(x[row], into[row]), _ahead(x[row], ends))
        return _without_twins(found) if len(x) and int(x.max()) > MAX - self._size else found

    def first_window(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return _back(x, _position(x, self._size, self._offset)), self.slice_of(x)[1]

    def last_end(self, x: np.ndarray) -> np.ndarray:
        return _ahead(x, self._size - _position(x, self._size, self._offset))

    def windows_ending_in(self, lo: int, hi: int) -> Iterator[tuple[int, int]]:
        start = (lo - self._offset) // self._size * self._size + self._offset
        while start < MAX:
            for step in range(max(1, (lo - start) // self._step + 1), self._steps + 1):
                end = start + min(step * self._step, self._size)
                if clamp(end) > hi:
                    return
                if end > lo:
                    yield clamp(start), clamp(end)
                if end >= MAX:
                    return
            start += self._size


def _without_twins(found: Assigned) -> Assigned:
    """Remove duplicates of windows whose ends saturate at `MAX`."""
    keep = np.ones(len(found.row), bool)
    keep[1:] = (
        (found.row[1:] != found.row[:-1])
        | (found.start[1:] != found.start[:-1])
        | (found.end[1:] != found.end[:-1])
    )
    return Assigned(found.row[keep], found.start[keep], found.end[keep])


class CalendarAssigner(Aligned):
    """Every slice is one window between two calendar bounds."""

    def __init__(self, spec: Calendar) -> None:
        self._bounds = CalendarBounds(spec)

    def slice_of(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._bounds.enclosing(x)

    def last_end(self, x: np.ndarray) -> np.ndarray:
        return self.slice_of(x)[1]

    def windows_ending_in(self, lo: int, hi: int) -> Iterator[tuple[int, int]]:
        number = self._bounds.number_near(lo) - 1
        while True:
            bounds = self._bounds.bounds(np.arange(number, number + 65)).tolist()
            for start, end in pairwise(bounds):
                if end > hi or start == MAX:
                    return
                if lo < end and start < end:
                    yield start, end
            number += 64


class GlobalAssigner(Aligned):
    """One window, one slice."""

    def slice_of(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.full(len(x), MIN), np.full(len(x), MAX)

    def last_end(self, x: np.ndarray) -> np.ndarray:
        return np.full(len(x), MAX)

    def windows_ending_in(self, lo: int, hi: int) -> Iterator[tuple[int, int]]:
        if lo < MAX == hi:
            yield MIN, MAX


class SessionAssigner(Assigner):
    """Each event opens a window of one gap; overlapping windows of a key merge
    (`kernel.windows.sessions`).
    """

    def __init__(self, spec: Session) -> None:
        column = spec.gap_column
        self._gap, self._column = spec.gap, column.name if isinstance(column, Computed) else column
        # On offsets the gap is the largest difference inside a session, so the window includes it.
        self._more = 1 if spec.axis == Axis.OFFSET else 0

    def proto(self, x: np.ndarray, gaps: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The window of each event alone."""
        if gaps is None:
            if self._gap is None:
                raise InputError(
                    f"session takes its gap from the column `{self._column}`, got no gaps. Hint:"
                    " pass the rows"
                )
            return x, _ahead(x, self._gap + self._more)
        return x, _ahead(x, saturating_add(gaps, self._more))

    def gaps(self, rows: Frame | None) -> np.ndarray | None:
        """The gap of each row from a column, 0 where it is bad; None for a fixed gap."""
        if self._column is None or rows is None:
            return None
        gaps: np.ndarray = np.maximum(self._raw_gaps(rows), 0)
        return gaps

    def bad_gaps(self, rows: Frame) -> np.ndarray:
        """Mask of rows whose gap is missing or negative."""
        if self._column is None:
            return np.zeros(len(rows), bool)
        return self._raw_gaps(rows) < 0

    def assign(self, x: np.ndarray, rows: Frame | None = None) -> Assigned:
        return _one_each(*self.proto(x, self.gaps(rows)))

    def _raw_gaps(self, rows: Frame) -> np.ndarray:
        name = self._column or ""
        if name not in rows:
            raise InputError(
                f"session needs the gap column `{name}`, got the columns {rows.names}. Hint: name"
                " one of these in `gap_column`"
            )
        return whole_numbers(rows[name], name, missing=-1)


def whole_numbers(column: Column, name: str, missing: int) -> np.ndarray:
    """A column of ticks, durations or instants as int64 microseconds."""
    if isinstance(column, np.ndarray) and column.dtype.kind in "iu":
        return column.astype(np.int64)
    array = to_arrow(column)
    if pa.types.is_duration(array.type):
        array = pc.cast(array, pa.duration("us"), safe=False).cast(pa.int64())
    elif pa.types.is_timestamp(array.type):
        array = pc.cast(array, pa.timestamp("us", array.type.tz), safe=False).cast(pa.int64())
    elif not (pa.types.is_integer(array.type) or pa.types.is_null(array.type)):
        raise InputError(
            f"column `{name}` must hold integers, durations or timestamps, got {array.type}. Hint:"
            " cast it to duration('us')"
        )
    filled: np.ndarray = pc.fill_null(array.cast(pa.int64(), safe=False), missing).to_numpy(
        zero_copy_only=False
    )
    return filled


class ByDifferenceAssigner(Assigner):
    """Each event opens the window that ends with it and the window that starts right after it."""

    def __init__(self, spec: ByDifference) -> None:
        self._size = spec.size

    def assign(self, x: np.ndarray, rows: Frame | None = None) -> Assigned:  # noqa: ARG002
        """The two windows that each event opens. The second does not contain the event and counts
        only if it contains another: see `members`.
        """
        row = np.repeat(np.arange(len(x)), 2)
        after = _ahead(x, 1)
        start = np.column_stack([_back(x, self._size - 1), after]).ravel()
        end = np.column_stack([after, _ahead(after, self._size)]).ravel()
        return Assigned(row, start, end)

    def members(self, key: np.ndarray, x: np.ndarray) -> Assigned:
        """The events in each of the distinct non-empty windows opened by events of the same key."""
        opened = self.assign(x)
        owner = key[opened.row]
        _, code = np.unique(np.concatenate([key, owner]), return_inverse=True)
        n, m = len(x), len(owner)
        # Ranks instead of times, so that key and time fit one integer.
        _, rank = np.unique(np.concatenate([x, opened.start, opened.end]), return_inverse=True)
        packed = np.concatenate([code, code[n:]]) * (len(rank) + 1) + rank
        order = np.argsort(packed[:n], kind="stable")
        events = packed[:n][order]
        low, high = packed[n : n + m], packed[n + m :]
        sorted_windows = lexicographic_order([low, high])
        fresh = np.ones(m, bool)
        fresh[1:] = (np.diff(low[sorted_windows]) != 0) | (np.diff(high[sorted_windows]) != 0)
        once = sorted_windows[fresh]
        first, last = np.searchsorted(events, low[once]), np.searchsorted(events, high[once])
        window, nth = _spread(last - first)
        row, start, end = (
            order[first[window] + nth],
            opened.start[once][window],
            opened.end[once][window],
        )
        by_row = lexicographic_order([row, start, end])
        return Assigned(row[by_row], start[by_row], end[by_row])


class CustomAssigner(Assigner):
    """Calls the user's function and validates its result."""

    def __init__(self, spec: Custom) -> None:
        self._call, self._name = spec.assign, spec.name

    def assign(self, x: np.ndarray, rows: Frame | None = None) -> Assigned:
        try:
            result = self._call(x, None if rows is None else rows.to_table())
        except Exception as broken:
            raise InputError(
                f"custom window `{self._name}` failed: {broken!r}. Hint: it is called with (times,"
                " rows)"
            ) from broken
        row, start, end = self._columns(result, len(x))
        order = lexicographic_order([row, start, end])
        return Assigned(row[order], start[order], end[order])

    def _columns(self, result: object, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if not isinstance(result, tuple) or len(result) not in (2, 3):
            raise InputError(
                f"custom window `{self._name}` must return a tuple (start, end) or (row, start,"
                f" end), got {type(result).__name__}"
            )
        columns = [np.asarray(part) for part in result]
        kinds, lengths = {c.dtype.kind for c in columns if c.size}, {c.shape for c in columns}
        if (
            not kinds <= {"i", "u"}
            or len(lengths) != 1
            or columns[0].ndim != 1
            or (len(result) == 2 and len(columns[0]) != n)
        ):
            came = [(str(c.dtype), c.shape) for c in columns]
            raise InputError(
                f"custom window `{self._name}` must return int64 columns of one length, got {came}"
                f" for {n} events"
            )
        row, start, end = (
            c.astype(np.int64) for c in (columns if len(result) == 3 else [np.arange(n), *columns])
        )
        if ((row < 0) | (row >= n)).any():
            raise InputError(
                f"custom window `{self._name}` must name rows from 0 to {n - 1}, got"
                f" {int(row.min())} to {int(row.max())}"
            )
        if (start >= end).any():
            bad = int(np.argmax(start >= end))
            raise InputError(
                f"custom window `{self._name}` must return start < end, got [{start[bad]},"
                f" {end[bad]}) for row {row[bad]}"
            )
        return row, start, end


class InheritedAssigner(Assigner):
    """Uses the windows in the rows; a missing bound is infinite."""

    def assign(self, x: np.ndarray, rows: Frame | None = None) -> Assigned:  # noqa: ARG002
        if rows is None or "window_start" not in rows or "window_end" not in rows:
            raise InputError(
                "inherited windows need `window_start` and `window_end`, got"
                f" {rows and rows.names}. Hint: feed panes, or set a window"
            )
        return _one_each(
            whole_numbers(rows["window_start"], "window_start", MIN),
            whole_numbers(rows["window_end"], "window_end", MAX),
        )
