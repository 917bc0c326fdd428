"""Watermark specifications: where watermarks come from, and how idle sources are handled.

A *source* emits watermarks of its own within an input: it is a partition or a writer. The
dataclasses take microseconds; the lower-case functions take durations in any form ("10 seconds",
`timedelta`, an integer with `unit=`).
"""

from __future__ import annotations

import dataclasses
import json
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from tidegate.errors import SpecError
from tidegate.instants import MAX, Duration, duration, format_duration
from tidegate.spec.json_form import json_form

KEYS = 128
"""The number of watermark keys: 0 to 127."""


def checked_key(key: Any) -> int:
    """The watermark key as an integer, validated."""
    try:
        number = operator.index(key)
    except TypeError:
        number = -1
    if isinstance(key, bool) or not 0 <= number < KEYS:
        raise SpecError(
            f"a watermark key is a whole number from 0 to {KEYS - 1}, got `{key!r}`. Hint: use one"
            " key for each time column, counted from 0"
        )
    return number


@dataclass(frozen=True)
class Watermarks:
    """Base of the watermark specifications."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "type": type(self).__name__.lower(),
            **{
                field.name: json_form(getattr(self, field.name))
                for field in dataclasses.fields(self)
            },
        }


@dataclass(frozen=True)
class Implied(Watermarks):
    """The default without a declared watermark: it follows the newest event.

    So a window is full with the first message at or after its end.
    """


@dataclass(frozen=True)
class Lagging(Watermarks):
    """The watermark is the clock minus a fixed lag, independent of events."""

    lag: int

    def __post_init__(self) -> None:
        _not_negative("lagging", lag=self.lag)


@dataclass(frozen=True)
class Watched(Watermarks):
    """Options of specifications whose sources may be idle, declared in advance, or aligned."""

    _: KW_ONLY
    idle_after: int | None = None
    """A source without events for this long (by the clock) does not hold the watermark back."""
    declared: tuple[str, ...] = ()
    """Sources that exist from the start: they hold the watermark back until they emit or are idle.
    """
    align: int | None = None
    """A source that is ahead of the slowest one by more than this is paused."""
    realign: bool = False
    """A source that resumes does not hold the watermark back until it has caught up."""

    def __post_init__(self) -> None:
        for name in ("idle_after", "align"):
            value = getattr(self, name)
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int) or not 0 < value < MAX
            ):
                is_span = isinstance(value, int) and not isinstance(value, bool)
                given = format_duration(value) if is_span else repr(value)
                raise SpecError(
                    f"`{name}` must be greater than 0 and finite, got {given}. Hint: omit it for"
                    " none"
                )
        if not isinstance(self.realign, bool):
            raise SpecError(f"`realign` must be True or False, got {self.realign!r}")
        if len(set(self.declared)) != len(self.declared):
            raise SpecError(f"declared partitions must be distinct, got {list(self.declared)}")


@dataclass(frozen=True)
class Explicit(Watched):
    """The watermark advances only when the program advances it."""


@dataclass(frozen=True)
class Bounded(Watched):
    """Events are at most `disorder` out of order, per partition."""

    disorder: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _not_negative("bounded", disorder=self.disorder)


@dataclass(frozen=True)
class Punctuated(Watched):
    """The stream carries its watermark: in a column, or in marker rows whose time is the watermark.

    Marker rows are not events.
    """

    column: str | None = None
    marker: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.column is None) == (self.marker is None):
            raise SpecError(
                "a punctuated watermark needs a column or marker rows. Hint:"
                " tg.punctuated('watermark') or marker='is_marker'"
            )
        _names("punctuated", self.column if self.marker is None else self.marker)


@dataclass(frozen=True)
class Noted(Watched):
    """Writers note their progress; the watermark is the minimum over all live writers."""

    column: str = "noted"
    writer: str = "writer"
    forget_after: int | None = None
    """A writer that notes nothing for this long (by the clock) is removed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _names("noted", self.column, self.writer)
        if self.forget_after is not None and self.forget_after <= 0:
            given = format_duration(self.forget_after)
            raise SpecError(
                f"`forget_after` must be greater than 0, got {given}. Hint: omit it to keep"
                " writers forever"
            )
        if (
            self.forget_after is not None
            and self.idle_after is not None
            and self.forget_after <= self.idle_after
        ):
            spans = (
                f"{format_duration(self.idle_after)} is not below"
                f" {format_duration(self.forget_after)}"
            )
            raise SpecError(
                f"`idle_after` must be shorter than `forget_after`, but {spans}. Hint: omit one of"
                " them"
            )


@dataclass(frozen=True, repr=False)
class Generated(Watched):
    """A user-defined function computes the watermarks, once per delivery, over columns.

    See `tidegate.kernel.watermarks.generators.Observed`.
    """

    function: Callable[[Any], Any]
    name: str = ""
    state: str = "{}"
    """The initial `observed.state`, as JSON."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.function):
            raise SpecError(
                "a generated watermark needs a function of what was observed, got"
                f" {self.function!r}"
            )

    def __repr__(self) -> str:
        function = getattr(self.function, "__qualname__", repr(self.function))
        rest = (
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if field.name != "function"
        )
        return f"Generated(function={function}, {', '.join(rest)})"


@dataclass(frozen=True)
class PerKey(Watched):
    """A watermark for every key, `disorder` behind its newest event and never below the floor.

    The floor is `floor` behind the newest event of the slowest partition. Keys at the floor need no
    state. If more than `max_keys` keys are above it, the floor is raised to drop the slowest ones.
    """

    disorder: int
    floor: int
    max_keys: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _not_negative("per_key", disorder=self.disorder, floor=self.floor)
        if self.floor < self.disorder:
            spans = f"{format_duration(self.floor)} and {format_duration(self.disorder)}"
            raise SpecError(
                f"the floor of per-key watermarks can't be less than their disorder, got {spans}."
                " Hint: make the floor larger"
            )
        if self.max_keys is not None and (
            isinstance(self.max_keys, bool)
            or not isinstance(self.max_keys, int)
            or self.max_keys <= 0
        ):
            raise SpecError(
                f"`max_keys` must be a positive whole number, got {self.max_keys!r}. Hint: omit it"
                " for no bound"
            )


def explicit(
    *,
    partitions: int | Iterable[object] = (),
    idle_after: Duration | None = None,
    align: Duration | None = None,
    realign: bool = False,
) -> Explicit:
    """A watermark that advances only by `advance_watermark`, for all partitions or for one."""
    return Explicit(**_watched(partitions, idle_after, align, realign=realign))


def bounded(
    disorder: Duration,
    *,
    unit: str | None = None,
    partitions: int | Iterable[object] = (),
    idle_after: Duration | None = None,
    align: Duration | None = None,
    realign: bool = False,
) -> Bounded:
    """A watermark `disorder` behind the newest event of the slowest partition."""
    return Bounded(
        duration(disorder, unit=unit), **_watched(partitions, idle_after, align, realign=realign)
    )


def ascending(
    *,
    partitions: int | Iterable[object] = (),
    idle_after: Duration | None = None,
    align: Duration | None = None,
    realign: bool = False,
) -> Bounded:
    """A watermark for partitions whose events arrive in order."""
    return bounded(
        0, unit="us", partitions=partitions, idle_after=idle_after, align=align, realign=realign
    )


def lagging(lag: Duration, *, unit: str | None = None) -> Lagging:
    """A watermark `lag` behind the clock."""
    return Lagging(duration(lag, unit=unit))


def punctuated(
    column: str | None = None,
    *,
    marker: str | None = None,
    partitions: int | Iterable[object] = (),
    idle_after: Duration | None = None,
    align: Duration | None = None,
    realign: bool = False,
) -> Punctuated:
    """A watermark carried by the stream: in `column` (nullable), or in rows marked by `marker`."""
    return Punctuated(column, marker, **_watched(partitions, idle_after, align, realign=realign))


def noted(
    column: str = "noted",
    *,
    writer: str = "writer",
    writers: int | Iterable[object] = (),
    forget_after: Duration | None = None,
    idle_after: Duration | None = None,
    align: Duration | None = None,
    realign: bool = False,
) -> Noted:
    """A watermark noted by writers.

    Each row has the name of its writer, and in `column` the time noted by the writer (nullable).
    """
    forget = None if forget_after is None else duration(forget_after)
    return Noted(column, writer, forget, **_watched(writers, idle_after, align, realign=realign))


def generated(
    function: Callable[[Any], Any],
    *,
    name: str | None = None,
    state: Mapping[str, Any] | None = None,
    partitions: int | Iterable[object] = (),
    idle_after: Duration | None = None,
    align: Duration | None = None,
    realign: bool = False,
) -> Generated:
    """A watermark computed by a function over columns: one watermark per partition."""
    try:
        text = json.dumps(dict(state or {}), sort_keys=True)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"the state of a generated watermark must be JSON-serialisable: {error}"
        ) from None
    given = str(getattr(function, "__name__", "")) if name is None else name
    return Generated(
        function, given, text, **_watched(partitions, idle_after, align, realign=realign)
    )


def per_key(
    disorder: Duration,
    *,
    floor: Duration,
    max_keys: int | None = None,
    partitions: int | Iterable[object] = (),
    idle_after: Duration | None = None,
    align: Duration | None = None,
    realign: bool = False,
) -> PerKey:
    """A watermark for every key, and a global floor, `floor` behind the newest event."""
    return PerKey(
        duration(disorder),
        duration(floor),
        max_keys,
        **_watched(partitions, idle_after, align, realign=realign),
    )


def _watched(
    partitions: int | Iterable[object],
    idle_after: Duration | None,
    align: Duration | None,
    *,
    realign: bool,
) -> dict[str, Any]:
    many = isinstance(partitions, int) and not isinstance(partitions, bool) and partitions >= 0
    if not many and (isinstance(partitions, str) or not isinstance(partitions, Iterable)):
        raise SpecError(
            f"`partitions` takes the names of partitions, or their number, got {partitions!r}"
        )
    names = range(partitions) if isinstance(partitions, int) else partitions
    return {
        "declared": tuple(str(name) for name in names),
        "idle_after": None if idle_after is None else duration(idle_after),
        "align": None if align is None else duration(align),
        "realign": realign,
    }


def _names(owner: str, *columns: object) -> None:
    for column in columns:
        if not isinstance(column, str):
            raise SpecError(f"a {owner} watermark needs column names, got {column!r}")


def _not_negative(owner: str, **values: int) -> None:
    for name, value in values.items():
        if value < 0:
            raise SpecError(
                f"the {name} of a {owner} watermark can't be negative, got {format_duration(value)}"
            )
