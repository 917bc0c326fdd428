"""The SQL of names, intervals, values, triggers and of the clauses after a query.

`tidegate.sql` parses what these functions print.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from tidegate.errors import SpecError
from tidegate.instants import MAX
from tidegate.spec import triggers as t
from tidegate.spec.evictors import EvictCount, EvictDelta, Evictor, EvictTime
from tidegate.spec.operator import Options, Retention
from tidegate.spec.triggers import Trigger

_UNITS = (
    (86_400_000_000, "DAY"),
    (3_600_000_000, "HOUR"),
    (60_000_000, "MINUTE"),
    (1_000_000, "SECOND"),
    (1_000, "MILLISECOND"),
    (1, "MICROSECOND"),
)


def name(text: str) -> str:
    """A quoted name.

    >>> name("a`b")
    '`a``b`'
    """
    return "`" + text.replace("`", "``") + "`"


def names(texts: Sequence[str]) -> str:
    """Quoted names, separated by commas."""
    return ", ".join(map(name, texts))


def text(value: str) -> str:
    """A quoted string."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def interval(duration: int) -> str:
    """A duration in microseconds, in the largest unit that is exact.

    >>> interval(90_000_000), interval(0)
    ("INTERVAL '90' SECOND", "INTERVAL '0' SECOND")
    """
    if not duration:
        return "INTERVAL '0' SECOND"
    size, unit = next(found for found in _UNITS if duration % found[0] == 0)
    return f"INTERVAL '{duration // size}' {unit}"


def value(given: Any, *, is_duration: bool = False) -> str:
    """The value of an option or of an argument."""
    if is_duration:
        return interval(given)
    if isinstance(given, bool):
        return str(given).upper()
    if isinstance(given, str):
        return text(given)
    if isinstance(given, tuple | list):
        return f"ARRAY({', '.join(map(value, given))})"
    if callable(given):
        raise no_text(f"the function `{getattr(given, '__qualname__', given)}`")
    return repr(given)


def no_text(what: str) -> SpecError:
    """The error for what SQL cannot say."""
    return SpecError(
        f"{what} has no form in SQL. Hint: keep this specification in Python, and give the stream a"
        " name: tg.sql('...', name=stream)"
    )


# Triggers


def trigger(given: Trigger) -> str:
    """A trigger, as it stands after EMIT.

    >>> trigger(t.after_watermark(early=t.after_count(2)))
    'AFTER WATERMARK (EARLY AFTER 2 ROWS)'
    """
    match given:
        case t.AfterWatermark(early=early, late=late):
            return "AFTER WATERMARK" + _parts(early=early, late=late)
        case t.Policy(early=early, late=late, full=full):
            return "POLICY" + _parts(early=early, late=late, full=full)
        case t.OrFinally(main=main, until=until):
            return f"({trigger(main)}) UNTIL ({trigger(until)})"
    if type(given) in _SEVERAL:
        return f"{_SEVERAL[type(given)]} ({', '.join(map(trigger, given.children))})"
    return _SIMPLE[type(given)](given)


_SEVERAL: dict[type[Trigger], str] = {t.AfterEach: "EACH", t.AfterAll: "ALL", t.AfterAny: "ANY"}
_SIMPLE: dict[type[Trigger], Callable[[Any], str]] = {
    t.AfterCount: lambda one: f"AFTER {one.n} ROW{'S' if one.n > 1 else ''}",
    t.EveryElement: lambda _: "EVERY ROW",
    t.AfterDelay: lambda one: f"AFTER DELAY {interval(one.delay)}",
    t.Every: lambda one: (
        f"EVERY {interval(one.interval)}" + " REFIRE" * one.refire + " ALIGNED" * one.aligned
    ),
    t.EventInterval: lambda one: (
        f"EVERY {interval(one.interval)} OF EVENT TIME" + " REFIRE" * one.refire
    ),
    t.Repeatedly: lambda one: f"REPEAT ({trigger(one.trigger)})",
    t.Never: lambda _: "NEVER",
    t.Default: lambda _: "AT WATERMARK",
}


def _parts(**parts: Trigger | None) -> str:
    found = [f"{role.upper()} {trigger(one)}" for role, one in parts.items() if one is not None]
    return f" ({' '.join(found)})" if found else ""


# After a query


def emit(
    firing: Trigger | None,
    mode: str | None,
    lateness: int | None,
    retention: Retention,
    evictor: Evictor | None = None,
    options: Sequence[tuple[str, Any]] = (),
) -> str:
    """The clauses after a query; `options` are those that differ from their defaults."""
    found = ["EMIT", "DEFAULT" if firing is None else trigger(firing)]
    if mode is not None:
        found.append(mode.upper())
    found.append(f"ALLOW LATENESS {_lateness(lateness)}")
    if retention:
        found.append(f"RETAIN {_retention(retention)}")
    if evictor is not None:
        found.append(f"EVICT {_evictor(evictor)}")
    if options:
        given = ", ".join(
            f"{word} = {value(one, is_duration=word in DURATIONS)}" for word, one in options
        )
        found.append(f"WITH ({given})")
    return " ".join(found)


DURATIONS = frozenset({"future_tolerance", "update_every", "late_update_every"})
"""Options whose value is a duration."""


def changed(options: Options) -> list[tuple[str, Any]]:
    """The options that differ from their defaults."""
    usual = Options()
    return [
        (field.name, getattr(options, field.name))
        for field in dataclasses.fields(Options)
        if getattr(options, field.name) != getattr(usual, field.name)
    ]


def _lateness(lateness: int | None) -> str:
    if lateness is None:
        return "DEFAULT"
    return "UNBOUNDED" if lateness >= MAX else interval(lateness)


def _retention(retention: Retention) -> str:
    units = {"windows": "WINDOWS", "messages": "ROWS", "bytes": "BYTES"}
    found = [] if retention.time is None else [interval(retention.time)]
    for bound, unit in units.items():
        number = getattr(retention, bound)
        if number is not None:
            found.append(f"{number} {unit}")
    return ", ".join(found)


def _evictor(evictor: Evictor) -> str:
    after = "AFTER AGGREGATION " if evictor.after else ""
    match evictor:
        case EvictCount(keep=keep):
            return f"{after}KEEP {keep} ROWS"
        case EvictTime(span=span):
            return f"{after}KEEP {interval(span)}"
        case EvictDelta(column=column, threshold=threshold):
            return f"{after}DELTA ({name(column)}) {threshold!r}"
