"""Windowing functions of the text as windows of the API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from tidegate.errors import SpecError
from tidegate.instants import duration
from tidegate.spec import windows
from tidegate.spec.windows import Axis, Touch, Window
from tidegate.sql.intervals import calendar_unit, ticks
from tidegate.sql.nodes import Descriptor, NamedArgument, RowCount, TableArgument, WindowCall
from tidegate.sql.planner.scope import Scope

_PARAMETERS: dict[str, tuple[str, ...]] = {
    "TUMBLE": ("SIZE", "OFFSET"),
    "HOP": ("SLIDE", "SIZE", "OFFSET"),
    "CUMULATE": ("STEP", "SIZE", "OFFSET"),
    "SESSION": ("GAP",),
    "SLIDE": ("SIZE",),
    "CALENDAR": ("UNIT", "N"),
    "ALL_ROWS": (),
    "INHERIT": (),
}
"""The parameters after the table and its time column, in their order."""
_MORE: dict[str, tuple[str, ...]] = {
    "TUMBLE": ("AXIS", "CREATE", "ZONE"),
    "HOP": ("AXIS", "CREATE"),
    "CUMULATE": ("AXIS", "CREATE"),
    "SESSION": ("AXIS", "TOUCH"),
    "SLIDE": ("AXIS",),
    "CALENDAR": ("AXIS", "CREATE", "ZONE", "START", "OFFSET"),
    "ALL_ROWS": ("AXIS",),
    "INHERIT": (),
}
"""Further parameters, by name only."""
GAP = "_gap"
"""The column with the gaps of rows."""
_SYNONYMS = {"DUR": "SIZE", "HOPSIZE": "SLIDE"}
"""Names that the paper "One SQL to Rule Them All" has for parameters."""


@dataclass(frozen=True)
class Arguments:
    """The arguments of a windowing function by name."""

    call: WindowCall
    scope: Scope
    data: exp.Expr | None
    time: exp.Expr | None
    rest: dict[str, exp.Expr]

    def __contains__(self, name: str) -> bool:
        return name in self.rest

    def error(self, name: str, why: str, hint: str = "") -> Exception:
        """An error at an argument."""
        return self.scope.error(self.rest.get(name, self.call), why, hint)

    def text(self, name: str, default: str | None = None) -> Any:
        """A string."""
        found = self.rest.get(name)
        return default if found is None else found.name

    def amount(self, name: str, default: int = 0) -> int:
        """A duration in microseconds, or a number of messages."""
        found = self.rest.get(name)
        if found is None:
            return default
        if isinstance(found, RowCount):
            found = found.this
        if isinstance(found, exp.Literal) and not found.is_string and found.is_int:
            return int(found.name)
        if isinstance(found, exp.Neg) and isinstance(found.this, exp.Literal):
            return -int(found.this.name)
        try:
            if isinstance(found, exp.Literal):
                return duration(found.name)
            return ticks(found)
        except SpecError as error:
            raise self.error(name, _first(error), "INTERVAL '10' MINUTE, or ROWS 100") from None

    @property
    def counts(self) -> bool:
        """Whether sizes are numbers of messages."""
        return any(isinstance(value, RowCount) for value in self.rest.values())


def arguments_of(call: WindowCall, scope: Scope, *, table: bool) -> Arguments:
    """The arguments of a call; `table` is whether its first one is a table."""
    name = call.name
    known = _PARAMETERS[name]
    positional = [one for one in call.expressions if not isinstance(one, NamedArgument)]
    named = {
        _SYNONYMS.get(one.this.name.upper(), one.this.name.upper()): one.expression
        for one in call.expressions
        if isinstance(one, NamedArgument)
    }
    data = named.pop("DATA", None)
    if data is None and table and positional:
        data = positional.pop(0)
    time = named.pop("TIMECOL", None)
    if time is None and positional and _is_time(positional[0]):
        time = positional.pop(0)
    # After a named argument, positional ones take the parameters that are left.
    left = [parameter for parameter in known if parameter not in named]
    if len(positional) > len(left):
        raise scope.error(
            positional[len(left)],
            f"{name} takes {', '.join(known) or 'nothing'} after its time column, got more",
            usage(name),
        )
    rest = {**named, **dict(zip(left, positional, strict=False))}
    for word, value in rest.items():
        if word not in (*known, *_MORE[name]):
            raise scope.error(value, f"{name} takes no argument {word}", usage(name))
    missing = [word for word in known if word not in rest and word not in ("OFFSET", "N")]
    if missing:
        raise scope.error(call, f"{name} needs its argument {missing[0]}", usage(name))
    return Arguments(call, scope, data, time, rest)


def usage(name: str) -> str:
    """How a windowing function is written."""
    return {
        "TUMBLE": "TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '10' MINUTE)",
        "HOP": "HOP(TABLE t, DESCRIPTOR(ts), INTERVAL '5' MINUTE, INTERVAL '10' MINUTE):"
        " slide before size",
        "CUMULATE": "CUMULATE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' HOUR, INTERVAL '1' DAY):"
        " step before size",
        "SESSION": "SESSION(TABLE t PARTITION BY k, DESCRIPTOR(ts), INTERVAL '10' MINUTE)",
        "SLIDE": "SLIDE(TABLE t, DESCRIPTOR(ts), INTERVAL '10' MINUTE)",
        "CALENDAR": "CALENDAR(TABLE t, DESCRIPTOR(ts), 'month', 1, ZONE => 'Europe/Berlin')",
        "INHERIT": "INHERIT(TABLE t): the windows of an operator before",
        "ALL_ROWS": "ALL_ROWS(TABLE t, DESCRIPTOR(ts))",
    }[name]


def _is_time(node: exp.Expr) -> bool:
    return isinstance(node, Descriptor | exp.Column)


def window_of(given: Arguments, *, is_clock: bool) -> Window:
    """The window of a call; `is_clock` is whether its time column is the processing time."""
    default = Axis.ORDINAL if given.counts else Axis.CLOCK if is_clock else Axis.EVENT_TIME
    try:
        return _window(given, Axis(given.text("AXIS", str(default))))
    except SpecError as error:
        if hasattr(error, "line"):
            raise
        raise given.scope.error(given.call, _first(error), usage(given.call.name)) from None
    except ValueError:
        raise given.error(
            "AXIS", f"there is no axis `{given.text('AXIS')}`", "event_time, clock, offset, ordinal"
        ) from None


def _window(given: Arguments, axis: Axis) -> Window:
    create = given.text("CREATE", "demand")
    match given.call.name:
        case "TUMBLE":
            unit = calendar_unit(given.rest["SIZE"])
            zone = given.text("ZONE", "UTC")
            if unit is not None:
                return windows.calendar(
                    *unit,  # type: ignore[arg-type]
                    zone=zone,
                    offset=timedelta_of(given.amount("OFFSET")),
                    axis=axis,
                    create=create,
                )
            if "ZONE" in given:
                raise given.error(
                    "ZONE", "ZONE is for sizes of calendar units", "CALENDAR(TABLE t, ..., 'day')"
                )
            return windows.Tumbling(given.amount("SIZE"), given.amount("OFFSET"), axis, create)
        case "HOP":
            return windows.Hopping(
                given.amount("SIZE"), given.amount("SLIDE"), given.amount("OFFSET"), axis, create
            )
        case "CUMULATE":
            return windows.Cumulative(
                given.amount("SIZE"), given.amount("STEP"), given.amount("OFFSET"), axis, create
            )
        case "SESSION":
            gap = given.rest["GAP"]
            touch = given.text("TOUCH", _touch(axis))
            if isinstance(gap, Descriptor):
                return windows.Session(None, gap.expressions[0].name, touch, axis)
            return windows.Session(given.amount("GAP"), None, touch, axis)
        case "SLIDE":
            return windows.ByDifference(given.amount("SIZE"), axis)
        case "CALENDAR":
            return windows.calendar(
                given.text("UNIT"),
                given.amount("N", 1),
                zone=given.text("ZONE", "UTC"),
                start=given.text("START"),
                offset=timedelta_of(given.amount("OFFSET")),
                axis=axis,
                create=create,
            )
        case "INHERIT":
            return windows.Inherited()
    return windows.Global(axis)


def _touch(axis: Axis) -> Touch:
    """What sessions do that are exactly a gap apart: one session, as in Flink and Spark."""
    return "separate" if axis is Axis.OFFSET else "merge"


def timedelta_of(microseconds: int) -> str:
    """A duration in the form that functions of the API take."""
    return f"{microseconds} us"


def spark_window(call: exp.Expr, name: str, arguments: Sequence[exp.Expr], scope: Scope) -> Window:
    """The window of `window(ts, size, slide, start)` or `session_window(ts, gap)` of Spark."""
    if name == "session_window" and len(arguments) == 2 and not _is_text(arguments[1]):
        return windows.Session(None, GAP, touch="merge")
    lengths = [_length(scope, one, name) for one in arguments[1:]]
    most = 1 if name == "session_window" else 3
    if not 1 <= len(lengths) <= most:
        raise scope.error(call, f"{name} takes a time and 1 to {most} durations")
    try:
        if name == "session_window":
            return windows.Session(lengths[0], touch="merge")
        size = lengths[0]
        slide = lengths[1] if len(lengths) > 1 else size
        start = lengths[2] if len(lengths) > 2 else 0
        if slide == size:
            return windows.Tumbling(size, start)
        return windows.Hopping(size, slide, start)
    except SpecError as error:
        raise scope.error(call, _first(error)) from None


def gap_in_microseconds(scope: Scope, node: exp.Expr) -> exp.Expr:
    """The gap of each row: `CASE WHEN ... THEN '5 minutes' ... END`, or a column of durations."""
    found = scope.resolve(node)
    if isinstance(found, exp.Column):
        return found
    for one in list(found.find_all(exp.Literal, exp.Interval)):
        result = one.parent
        is_result = one is found or (
            isinstance(result, exp.If | exp.Case | exp.Coalesce) and one is not result.this
        )
        if not is_result:
            continue
        amount = exp.Literal.number(_length(scope, one, "session_window"))
        if one is found:
            return exp.cast(amount, "bigint")
        one.replace(amount)
    return exp.cast(found, "bigint")


def _length(scope: Scope, node: exp.Expr, name: str) -> int:
    """A duration in microseconds: a text, or an interval."""
    hint = f"{name}(ts, '10 minutes')"
    try:
        if isinstance(node, exp.Interval):
            return ticks(node)
        if _is_text(node):
            return duration(node.name)
    except SpecError as error:
        raise scope.error(node, _first(error), hint) from None
    raise scope.error(node, "a duration was expected", hint)


def _is_text(node: exp.Expr) -> bool:
    return isinstance(node, exp.Literal) and bool(node.is_string)


def table_of(given: Arguments) -> TableArgument | exp.Expr:
    """The table that a windowing function reads."""
    if given.data is None:
        raise given.scope.error(
            given.call, f"{given.call.name} needs a table", usage(given.call.name)
        )
    return given.data


def _first(error: Exception) -> str:
    return str(error).split(". Hint", 1)[0].rstrip(".")
