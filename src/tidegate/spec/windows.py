"""Window specifications: on event time, processing time, offsets or counts.

Sizes are int64 ticks of the window's axis: microseconds on the time axes, messages on the tuple
axes. The dataclasses take ticks; the lower-case functions take durations in any form ("1 minute",
`timedelta`, an integer with `unit=`).
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum
from typing import Any, ClassVar, Literal
from zoneinfo import ZoneInfo

from tidegate.errors import SpecError
from tidegate.instants import MAX, Duration, duration, format_duration
from tidegate.spec.computed import ColumnFunction, Computed
from tidegate.spec.json_form import function_from, is_function_form

Create = Literal["demand", "static"]
Touch = Literal["separate", "merge"]
Unit = Literal["day", "week", "month", "year"]
DAY = 86_400_000_000
GAP = "session_gap"
"""The column of gaps that a function computes."""
_UNITS = ("day", "week", "month", "year")
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


class Axis(StrEnum):
    """The axis of a window."""

    EVENT_TIME = "event_time"
    CLOCK = "clock"
    OFFSET = "offset"
    ORDINAL = "ordinal"

    def __repr__(self) -> str:
        return f"Axis.{self.name}"

    @property
    def is_time(self) -> bool:
        """Whether ticks are microseconds; on the other axes they count messages."""
        return self in (Axis.EVENT_TIME, Axis.CLOCK)


class Window:
    """Base of the window specifications."""

    kind: ClassVar[str]
    axis: Axis = Axis.EVENT_TIME
    create: Create = "demand"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; `window_from_dict` is its inverse."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        return {
            "type": self.kind,
            **{name: str(v) if isinstance(v, Axis) else v for name, v in fields.items()},
        }

    def _settle(self, **values: object) -> None:
        """Normalise field values in the constructor."""
        for name, value in values.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Tumbling(Window):
    """Windows of one size, adjacent and without overlap."""

    kind: ClassVar[str] = "tumbling"
    size: int
    offset: int = 0
    axis: Axis = Axis.EVENT_TIME
    create: Create = "demand"

    def __post_init__(self) -> None:
        _positive("tumbling", self.axis, size=self.size)
        self._settle(
            offset=_whole("tumbling", "offset", self.offset) % self.size,
            axis=_axis(self.axis),
            create=_create(self.create),
        )


@dataclass(frozen=True)
class Hopping(Window):
    """Windows of one size, one starting every `slide`.

    They overlap if `slide < size`, and leave gaps if `slide > size`.
    """

    kind: ClassVar[str] = "hopping"
    size: int
    slide: int
    offset: int = 0
    axis: Axis = Axis.EVENT_TIME
    create: Create = "demand"

    def __post_init__(self) -> None:
        _positive("hopping", self.axis, size=self.size, slide=self.slide)
        self._settle(
            offset=_whole("hopping", "offset", self.offset) % self.slide,
            axis=_axis(self.axis),
            create=_create(self.create),
        )


@dataclass(frozen=True)
class ByDifference(Window):
    """The distinct non-empty windows `(t - size, t]` and `(t, t + size]` of every event.

    In half-open form, each bound is one tick later.
    """

    kind: ClassVar[str] = "by_difference"
    size: int
    axis: Axis = Axis.EVENT_TIME

    def __post_init__(self) -> None:
        _positive("sliding", self.axis, size=self.size)
        self._settle(axis=_axis(self.axis))


@dataclass(frozen=True)
class Cumulative(Window):
    """Windows with a common start aligned to `size`, ending after each `step` up to `size`."""

    kind: ClassVar[str] = "cumulative"
    size: int
    step: int
    offset: int = 0
    axis: Axis = Axis.EVENT_TIME
    create: Create = "demand"

    def __post_init__(self) -> None:
        _positive("cumulative", self.axis, size=self.size, step=self.step)
        if self.step > self.size:
            raise SpecError(
                f"cumulative `step` must not exceed `size`, got step {_span(self.axis, self.step)}"
                f" and size {_span(self.axis, self.size)}. Hint: swap them, or use tumbling"
            )
        self._settle(
            offset=_whole("cumulative", "offset", self.offset) % self.size,
            axis=_axis(self.axis),
            create=_create(self.create),
        )


@dataclass(frozen=True)
class Session(Window):
    """Events of one key separated by less than a gap: fixed, from a column, or from a function.

    On offsets, a gap of N joins messages whose offsets differ by at most N. `touch` sets whether
    two sessions stay separate if one ends exactly where the other begins.
    """

    kind: ClassVar[str] = "session"
    gap: int | None = None
    gap_column: str | Computed | None = None
    touch: Touch = "separate"
    axis: Axis = Axis.EVENT_TIME

    @property
    def reaches_end(self) -> bool:
        """Whether an event at the end of a session may extend it: by `touch`, or because the
        session of an event without a gap begins and ends with it.
        """
        has_own_gaps = self.gap_column is not None and self.axis is Axis.EVENT_TIME
        return self.touch == "merge" or has_own_gaps

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; a function appears by its qualified name."""
        form = super().to_dict()
        if isinstance(self.gap_column, Computed):
            form["gap_column"] = self.gap_column.to_dict()
        return form

    def __post_init__(self) -> None:
        if (self.gap is None) == (self.gap_column is None):
            both = "both" if self.gap is not None else "neither"
            raise SpecError(
                f"session takes either `gap` or `gap_column`, got {both}. Hint:"
                " tg.session('10 seconds')"
            )
        if self.gap is not None:
            _positive("session", self.axis, gap=self.gap)
        if is_function_form(self.gap_column):
            self._settle(gap_column=Computed.from_dict(self.gap_column))  # type: ignore[arg-type]
        _one_of("session", "touch", self.touch, ("separate", "merge"))
        self._settle(axis=_axis(self.axis))
        if self.axis == Axis.ORDINAL:
            raise SpecError(
                "session cannot use the axis `ordinal`: the messages of a key are numbered"
                ' without gaps. Hint: use axis="offset"'
            )
        if self.axis == Axis.OFFSET and self.touch == "merge":
            raise SpecError(
                'session on `offset` supports only touch="separate", got `merge`: its gap is'
                " already inclusive. Hint: increase the gap by one"
            )


@dataclass(frozen=True)
class Calendar(Window):
    """Windows of n days, weeks, months or years of a time zone, counted from a date.

    They begin at midnight of the zone, or at the local time `offset` after midnight.
    """

    kind: ClassVar[str] = "calendar"
    unit: Unit
    n: int = 1
    zone: str = "UTC"
    start: str | None = None
    axis: Axis = Axis.EVENT_TIME
    create: Create = "demand"
    offset: int = 0

    def __post_init__(self) -> None:
        _one_of("calendar", "unit", self.unit, _UNITS)
        _positive("calendar", n=self.n)
        _zone(self.zone)
        first = (
            self.start
            if self.start is not None
            else ("1970-01-05" if self.unit == "week" else "1970-01-01")
        )
        self._settle(
            start=_date(first).isoformat(), axis=_axis(self.axis), create=_create(self.create)
        )
        if not self.axis.is_time:
            raise SpecError(
                f"calendar needs a time axis, got `{self.axis}`. Hint: use tumbling on tuples"
            )
        if not 0 <= _whole("calendar", "offset", self.offset) < DAY:
            raise SpecError(
                "calendar `offset` must be at least 0 and shorter than a day, got"
                f" {format_duration(self.offset)}. Hint: move `start` by whole days"
            )

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; an offset of 0 is omitted."""
        form = super().to_dict()
        if not self.offset:
            del form["offset"]
        return form

    @property
    def anchor(self) -> date:
        """A date at which a window starts."""
        return _date(self.start or "")


@dataclass(frozen=True)
class Global(Window):
    """A single window over everything."""

    kind: ClassVar[str] = "global"
    axis: Axis = Axis.EVENT_TIME

    def __post_init__(self) -> None:
        self._settle(axis=_axis(self.axis))


@dataclass(frozen=True, repr=False)
class Custom(Window):
    """Windows assigned by a user-defined function over columns.

    `assign(times, rows)` receives the int64 times and an Arrow table of the same rows. It returns
    `(start, end)` for one window per event, or `(row, start, end)` for any number of windows per
    event.
    """

    kind: ClassVar[str] = "custom"
    assign: Callable[[Any, Any], Any]
    name: str
    axis: Axis = Axis.EVENT_TIME

    def __post_init__(self) -> None:
        if not callable(self.assign):
            raise SpecError(
                f"custom `assign` must be callable, got `{self.assign!r}`. Hint: def assign(times,"
                " rows): return start, end"
            )
        if not self.name:
            raise SpecError(
                'custom needs a `name`, which identifies its state. Hint: custom(assign, name="my'
                ' windows")'
            )
        self._settle(axis=_axis(self.axis))

    def __repr__(self) -> str:
        return (
            f"Custom(assign={getattr(self.assign, '__qualname__', repr(self.assign))},"
            f" name={self.name!r}, axis={self.axis!r})"
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON form with the name of the function, which cannot be restored from it."""
        return {"type": self.kind, "name": self.name, "axis": str(self.axis)}


@dataclass(frozen=True)
class Inherited(Window):
    """The windows of an upstream operator, in the columns `window_start` and `window_end`."""

    kind: ClassVar[str] = "inherited"


_KINDS: dict[str, type[Window]] = {
    w.kind: w
    for w in (Tumbling, Hopping, ByDifference, Cumulative, Session, Calendar, Global, Inherited)
}


_DAY = 86_400_000_000
_LONGEST = {"day": 2 * _DAY, "week": 8 * _DAY, "month": 32 * _DAY, "year": 367 * _DAY}
"""Upper bounds of the length of one calendar unit, in any time zone."""


def longest(window: Window) -> int | None:
    """The greatest length of a window; None without a bound."""
    match window:
        case Tumbling(size=size) | Hopping(size=size) | Cumulative(size=size):
            return size
        case ByDifference(size=size):
            return size
        case Calendar(unit=unit, n=n):
            return n * _LONGEST[unit]
    return None


def tumbling(
    size: Duration,
    *,
    offset: Duration = 0,
    axis: Axis | str = Axis.EVENT_TIME,
    create: Create = "demand",
    unit: str | None = None,
) -> Tumbling:
    """Windows of one size side by side.

    >>> tumbling("1 minute")
    Tumbling(size=60000000, offset=0, axis=Axis.EVENT_TIME, create='demand')
    >>> tumbling(3, axis="ordinal").size
    3
    """
    on = _axis(axis)
    return Tumbling(_ticks(size, on, unit, "size"), _ticks(offset, on, unit, "offset"), on, create)


def hopping(
    size: Duration,
    slide: Duration,
    *,
    offset: Duration = 0,
    axis: Axis | str = Axis.EVENT_TIME,
    create: Create = "demand",
    unit: str | None = None,
) -> Hopping:
    """Windows of one size, one starting every `slide`."""
    on = _axis(axis)
    window = Hopping(
        _ticks(size, on, unit, "size"),
        _ticks(slide, on, unit, "slide"),
        _ticks(offset, on, unit, "offset"),
        on,
        create,
    )
    if window.slide > window.size:
        lost = (
            format_duration(window.slide - window.size)
            if on.is_time
            else f"{window.slide - window.size} messages"
        )
        warnings.warn(
            f"hopping `slide` is longer than `size`: events in the {lost} between two windows are"
            " in no window",
            stacklevel=2,
        )
    return window


def sliding(
    size: Duration,
    slide: Duration | None = None,
    *,
    offset: Duration = 0,
    axis: Axis | str = Axis.EVENT_TIME,
    create: Create = "demand",
    unit: str | None = None,
) -> Hopping | ByDifference:
    """With `slide` the same as `hopping`; else the windows that begin or end at an event."""
    if slide is not None:
        return hopping(size, slide, offset=offset, axis=axis, create=create, unit=unit)
    if offset != 0 or create != "demand":
        came = f"offset={offset!r}, create={create!r}"
        raise SpecError(
            "sliding without `slide` is aligned to events, so it takes no `offset` or `create`,"
            f" got {came}. Hint: pass `slide=`"
        )
    on = _axis(axis)
    return ByDifference(_ticks(size, on, unit, "size"), on)


def cumulative(
    size: Duration,
    step: Duration,
    *,
    offset: Duration = 0,
    axis: Axis | str = Axis.EVENT_TIME,
    create: Create = "demand",
    unit: str | None = None,
) -> Cumulative:
    """Windows that grow by `step` until they reach `size`."""
    on = _axis(axis)
    return Cumulative(
        _ticks(size, on, unit, "size"),
        _ticks(step, on, unit, "step"),
        _ticks(offset, on, unit, "offset"),
        on,
        create,
    )


def session(
    gap: Duration | ColumnFunction | Mapping[str, str] | None = None,
    *,
    gap_column: str | None = None,
    touch: Touch = "separate",
    axis: Axis | str = Axis.EVENT_TIME,
    unit: str | None = None,
) -> Session:
    """Sessions by a fixed gap, or by a gap per event: from a column, or from a function.

    A column or a function over columns returns durations, or integer ticks. See
    `tidegate.spec.computed` for the contract of functions. `{"function": "module:name"}` names one.
    """
    on = _axis(axis)
    function = function_from(gap) if isinstance(gap, Mapping) else gap if callable(gap) else None
    if function is None:
        fixed = None if gap is None else _ticks(gap, on, unit, "gap")  # type: ignore[arg-type]
        return Session(fixed, gap_column, touch, on)
    if gap_column is not None or unit is not None:
        raise SpecError(
            "a `gap` that a function computes takes neither `gap_column` nor `unit`. Hint: omit"
            " them; return durations, or integer ticks"
        )
    return Session(None, Computed(GAP, function), touch, on)


def calendar(
    unit: Unit | Literal["quarter", "decade"],
    n: int = 1,
    *,
    zone: str = "UTC",
    start: str | date | None = None,
    week_start: str | None = None,
    year_start: str | None = None,
    offset: Duration = 0,
    axis: Axis | str = Axis.EVENT_TIME,
    create: Create = "demand",
) -> Calendar:
    """Windows of n days, weeks, months, quarters, years or decades of a zone.

    - `start`: a date at which a window begins; windows are counted from it, in both directions.
      Default: the first suitable date of 1970.
    - `week_start`: the first day of a week, by name. Default: Monday.
    - `year_start`: the first day of a year as `month-day`; months, quarters and decades follow it.
      Default: `"01-01"`.
    - `offset`: the local time at which a day begins, as the duration since midnight.

    >>> calendar("month", 7, start="2014-03-05").to_dict()["start"]
    '2014-03-05'
    >>> calendar("week", 2, week_start="sunday").start
    '1970-01-04'
    >>> calendar("quarter", year_start="04-06") == Calendar("month", 3, start="1970-04-06")
    True
    """
    _one_of("calendar", "unit", unit, (*_UNITS, "quarter", "decade"))
    _positive("calendar", n=n)
    base: Unit
    if unit == "quarter":
        base, n = "month", 3 * n
    elif unit == "decade":
        base, n = "year", 10 * n
    else:
        base = unit
    if week_start is not None:
        _follows_start("week_start", start, "weeks", fits=base == "week")
        start = _first_weekday(week_start)
    if year_start is not None:
        _follows_start("year_start", start, "months and years", fits=base in ("month", "year"))
        start = _first_of_year(year_start)
    first = start.isoformat() if isinstance(start, date) else start
    return Calendar(base, n, zone, first, _axis(axis), create, duration(offset))


def _follows_start(field: str, start: object, units: str, *, fits: bool) -> None:
    if not fits:
        raise SpecError(f"calendar `{field}` is for {units}. Hint: omit it, or use `start`")
    if start is not None:
        raise SpecError(
            f"calendar takes `start` or `{field}`, got both. Hint: `start` is a date, and windows"
            " begin on its day"
        )


def _first_weekday(name: str) -> date:
    """The first such weekday from Sunday 1970-01-04 on; that of Monday is the default anchor."""
    known = str(name).lower()
    _one_of("calendar", "week_start", known, _WEEKDAYS)
    return date(1970, 1, 4) + timedelta(days=(_WEEKDAYS.index(known) + 1) % len(_WEEKDAYS))


def _first_of_year(month_day: str) -> date:
    try:
        return date.fromisoformat(f"1970-{month_day}")
    except ValueError:
        raise SpecError(
            "calendar `year_start` must be a month and a day that every year has, got"
            f' `{month_day}`. Hint: year_start="04-06"; for 29 February use start="2000-02-29"'
        ) from None


def global_window(*, axis: Axis | str = Axis.EVENT_TIME) -> Global:
    """A single window over everything."""
    return Global(_axis(axis))


def custom(
    assign: Callable[[Any, Any], Any],
    *,
    name: str | None = None,
    axis: Axis | str = Axis.EVENT_TIME,
) -> Custom:
    """Windows assigned by a function over columns; see `Custom`."""
    return Custom(assign, name or str(getattr(assign, "__name__", "")), _axis(axis))


def window_from_dict(document: Mapping[str, Any]) -> Window:
    """The inverse of `to_dict`."""
    kind, fields = (
        document.get("type"),
        {name: value for name, value in document.items() if name != "type"},
    )
    if kind == Custom.kind:
        raise SpecError(
            f"custom window `{fields.get('name')}` cannot be restored from data. Hint: create it"
            " again with custom(...)"
        )
    _one_of("window", "type", kind, tuple(_KINDS))
    made = _KINDS[str(kind)]
    known = {f.name for f in dataclasses.fields(made)}  # type: ignore[arg-type]
    if not fields.keys() <= known:
        raise SpecError(
            f"{kind} has the fields {sorted(known)}, got {sorted(fields)}. Hint: remove"
            f" {sorted(fields.keys() - known)}"
        )
    try:
        return made(**fields)
    except TypeError as missing:
        raise SpecError(
            f"{kind} cannot be created from {dict(fields)}: {missing}. Hint: set every field"
            " without a default"
        ) from None


def _ticks(value: Duration, axis: Axis, unit: str | None, field: str) -> int:
    if axis.is_time:
        return duration(value, unit=unit)
    if unit is not None or isinstance(value, bool) or not isinstance(value, int):
        raise SpecError(
            f"`{field}` on `{axis}` counts messages, got"
            f" `{value!r}`{f' with unit {unit}' if unit else ''}. Hint: pass a plain integer"
        )
    return value


def _whole(owner: str, field: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise SpecError(
            f"{owner} `{field}` is an integer number of ticks, got `{value!r}`. Hint:"
            f" tg.{owner}(...) takes strings and timedeltas"
        )
    return value


def _positive(owner: str, axis: object = None, **values: object) -> None:
    """Refuse sizes that are not positive; on an axis of time they are durations."""
    for field, value in values.items():
        given = _whole(owner, field, value)
        if not 0 < given < MAX:
            raise SpecError(
                f"{owner} `{field}` must be greater than 0 and finite, got {_span(axis, given)}."
                " Hint: use global_window() for a window without end"
            )


def _span(axis: object, value: int) -> str:
    """A size in the unit of its axis."""
    return format_duration(value) if axis in (Axis.EVENT_TIME, Axis.CLOCK) else str(value)


def _one_of(owner: str, field: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise SpecError(f"{owner} `{field}` must be one of {', '.join(allowed)}; got `{value}`")


def _axis(value: Axis | str) -> Axis:
    _one_of("window", "axis", value, tuple(Axis))
    return Axis(value)


def _create(value: Create) -> Create:
    _one_of("window", "create", value, ("demand", "static"))
    return value


def _zone(name: str) -> None:
    try:
        ZoneInfo(name)
    except (OSError, ValueError, KeyError, TypeError):
        raise SpecError(
            f'calendar `zone` must be the name of a time zone, got `{name}`. Hint: "Europe/Berlin",'
            ' "UTC"'
        ) from None


def _date(text: str) -> date:
    try:
        return date.fromisoformat(f"{text}-01" if len(text) == len("2014-03") else text)
    except (ValueError, TypeError):
        raise SpecError(
            f'calendar `start` must be an ISO date, got `{text}`. Hint: "2014-03-05"'
        ) from None
