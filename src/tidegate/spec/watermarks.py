"""Watermark specifications: who says how far event time has come, and what becomes of those who
fall silent.

A *source* is whatever makes promises of its own inside an input: a partition, or a writer. The
dataclasses take microseconds as they are; the functions in lower case take what people write ("10
seconds", `timedelta`, an integer with `unit=`).
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
"""Watermark keys are 0 to 127."""


def checked_key(key: Any) -> int:
    """The watermark key as an integer, if it is one."""
    try:
        number = operator.index(key)
    except TypeError:
        number = -1
    if isinstance(key, bool) or not 0 <= number < KEYS:
        raise SpecError(
            f"a watermark key is a whole number from 0 to {KEYS - 1}, got `{key!r}`. Hint: one key"
            " for each time column, counted from 0"
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
    """Nobody declared a watermark: it follows the newest event, so a window is full with the first
    message at or beyond its end.
    """


@dataclass(frozen=True)
class Lagging(Watermarks):
    """The watermark is the clock less a fixed lag, whatever comes."""

    lag: int

    def __post_init__(self) -> None:
        _not_negative("lagging", lag=self.lag)


@dataclass(frozen=True)
class Watched(Watermarks):
    """What the specifications share whose sources may fall silent, be declared beforehand, or run
    ahead of each other.
    """

    _: KW_ONLY
    idle_after: int | None = None
    """A source that is silent for so long (by the clock) is left out of the minimum until it speaks
    again.
    """
    declared: tuple[str, ...] = ()
    """Sources that there are from the beginning: without a word from them, or their being idle,
    there is no watermark.
    """
    align: int | None = None
    """A source that runs ahead of the slowest by more is paused."""
    realign: bool = False
    """A source that comes back is left out of the minimum until it has caught up with the
    watermark.
    """

    def __post_init__(self) -> None:
        for name in ("idle_after", "align"):
            value = getattr(self, name)
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int) or not 0 < value < MAX
            ):
                raise SpecError(
                    f"`{name}` must be greater than 0 and finite, got {value!r}. Hint: leave it out"
                    " to have none"
                )
        if not isinstance(self.realign, bool):
            raise SpecError(f"`realign` is True or False, got {self.realign!r}")
        if len(set(self.declared)) != len(self.declared):
            raise SpecError(f"declared partitions must be different, got {list(self.declared)}")


@dataclass(frozen=True)
class Explicit(Watched):
    """The watermark moves only where the program advances it."""


@dataclass(frozen=True)
class Bounded(Watched):
    """Events are at most `disorder` out of order, per partition."""

    disorder: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _not_negative("bounded", disorder=self.disorder)


@dataclass(frozen=True)
class Punctuated(Watched):
    """The stream itself says its watermark: in a column of its events, or in marker rows whose time
    is the watermark and which are no events.
    """

    column: str | None = None
    marker: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.column is None) == (self.marker is None):
            raise SpecError(
                "a punctuated watermark is said by a column or by marker rows. Hint:"
                " tg.punctuated('watermark') or marker='is_marker'"
            )
        _names("punctuated", self.column if self.marker is None else self.marker)


@dataclass(frozen=True)
class Noted(Watched):
    """Writers note how far they have come; the watermark is the minimum over the writers that
    live.
    """

    column: str = "noted"
    writer: str = "writer"
    forget_after: int | None = None
    """A writer that says nothing for so long (by the clock) is forgotten."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _names("noted", self.column, self.writer)
        if self.forget_after is not None and self.forget_after <= 0:
            given = format_duration(self.forget_after)
            raise SpecError(
                f"`forget_after` must be greater than 0, got {given}. Hint: leave it out to"
                " remember writers for ever"
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
                f"writers are idle before they are forgotten; {spans}. Hint: leave one out"
            )


@dataclass(frozen=True, repr=False)
class Generated(Watched):
    """A user's function makes the promises: once a delivery, over whole columns. See
    `tidegate.kernel.watermarks.generators.Observed`.
    """

    function: Callable[[Any], Any]
    name: str = ""
    state: str = "{}"
    """What `observed.state` holds at the beginning, as JSON."""

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
    """Every data key has its own watermark, `disorder` behind its newest event, and none is ever
    below the floor.

    The floor is `floor` behind the newest event of the slowest partition. Keys at the floor need no
    memory of their own. Of more than `max_keys` others, the slowest are given up, and the floor is
    raised to them.
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
                f"`max_keys` must be positive and a whole number, got {self.max_keys!r}. Hint:"
                " leave it out to have no bound"
            )


def explicit(
    *,
    partitions: int | Iterable[object] = (),
    idle_after: Duration | None = None,
    align: Duration | None = None,
    realign: bool = False,
) -> Explicit:
    """A watermark that moves only with `advance_watermark`, for all partitions or for one."""
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
    """A watermark that stays `disorder` behind the newest event of the slowest partition."""
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
    """A watermark for partitions whose events come in order."""
    return bounded(
        0, unit="us", partitions=partitions, idle_after=idle_after, align=align, realign=realign
    )


def lagging(lag: Duration, *, unit: str | None = None) -> Lagging:
    """A watermark that stays `lag` behind the clock."""
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
    """A watermark that the stream says: in `column` (null where a row says none), or in rows whose
    boolean column `marker` is true.
    """
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
    """A watermark noted by writers: each row names its writer, and in `column` the time that the
    writer has noted (null where it has not).
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
    """A watermark by a function over columns: it gets what was observed and returns one promise per
    partition.
    """
    try:
        text = json.dumps(dict(state or {}), sort_keys=True)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"the state of a generated watermark is stored as JSON, and this cannot be: {error}"
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
    """A watermark of its own for every data key, and a global one, `floor` behind the newest event,
    that no key stays behind.
    """
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
            f"`partitions` takes the names of partitions, or how many there are, got {partitions!r}"
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
            raise SpecError(f"a {owner} watermark names columns, got {column!r}")


def _not_negative(owner: str, **values: int) -> None:
    for name, value in values.items():
        if value < 0:
            raise SpecError(
                f"the {name} of a {owner} watermark can't be negative, got {format_duration(value)}"
            )
