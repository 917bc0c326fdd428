"""Specifications as SQL: the tables that an operator reads, its query, and its EMIT.

Contract: `tidegate.sql` reads the text as a specification that is equal to the printed one.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from tidegate.spec import aggregates as agg
from tidegate.spec import sql_clauses as sql
from tidegate.spec import watermarks as w
from tidegate.spec.aggregates import Aggregate
from tidegate.spec.join import LEFT, RIGHT, AsOf, JoinSpec, Rows, Within
from tidegate.spec.operator import AggregateSpec, Input
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

# Tables


def table_text(name: str, given: Input, *, keyed: bool = False) -> str:
    """`CREATE TABLE` for an input: its watermarks, and the roles of its columns.

    With `keyed`, the key is one of them; the key of an aggregate is that of its groups.
    """
    for what, found in (
        ("an async map", given.mapped),
        ("a computed column", given.computed),
        ("a projection", given.projections),
    ):
        if found:
            raise sql.no_text(what)
    marks = [
        f"WATERMARK FOR {sql.name(time.column)} AS {_watermark(time.watermark, time.key, number)}"
        for number, time in enumerate(given.times)
        if time.column is not None
    ]
    options = [
        (role, getattr(given, role))
        for role in ("id", "offset", "partition")
        if getattr(given, role) is not None
    ]
    if keyed and given.key:
        options.append(("key", ", ".join(map(sql.name, given.key))))
    if given.time is None and given.watermark != w.Explicit():
        options.append(("watermark", _watermark(given.watermark, given.watermark_key, 0)))
    columns = f" ({', '.join(marks)})" if marks else ""
    roles = ", ".join(f"{sql.text(role)} = {sql.text(column)}" for role, column in options)
    return f"CREATE TABLE {sql.name(name)}{columns}" + (f" WITH ({roles})" if roles else "")


def _watermark(mark: w.Watermarks, key: int, number: int) -> str:
    """The generator of a watermark; its key is shown if it is not its number."""
    arguments: list[str] = []
    named: list[tuple[str, str]] = []
    match mark:
        case w.Implied():
            kind = "NEWEST"
        case w.Explicit():
            kind = "EXPLICIT"
        case w.Lagging(lag=lag):
            kind, arguments = "LAGGING", [sql.interval(lag)]
        case w.Bounded(disorder=disorder):
            kind, arguments = "BOUNDED", [sql.interval(disorder)]
        case w.Punctuated(column=None, marker=marker):
            kind, named = "PUNCTUATED", [("MARKER", sql.name(marker or ""))]
        case w.Punctuated(column=column):
            kind, arguments = "PUNCTUATED", [sql.name(column or "")]
        case w.Noted(column=column, writer=writer, forget_after=forget):
            kind, arguments = "NOTED", [sql.name(column)]
            named = [("WRITER", sql.name(writer))]
            named += [] if forget is None else [("FORGET_AFTER", sql.interval(forget))]
        case w.PerKey(disorder=disorder, floor=floor, max_keys=most):
            kind, arguments = "PER_KEY", [sql.interval(disorder)]
            named = [("FLOOR", sql.interval(floor))]
            named += [] if most is None else [("MAX_KEYS", str(most))]
        case _:
            raise sql.no_text(f"the watermark {mark!r}")
    if isinstance(mark, w.Watched):
        named += _watched(mark)
    if key != number:
        named.append(("KEY", str(key)))
    arguments += [f"{word} => {given}" for word, given in named]
    return f"{kind}({', '.join(arguments)})"


def _watched(mark: w.Watched) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if mark.declared:
        word = "WRITERS" if isinstance(mark, w.Noted) else "PARTITIONS"
        found.append((word, sql.value(mark.declared)))
    for word in ("idle_after", "align"):
        span = getattr(mark, word)
        if span is not None:
            found.append((word.upper(), sql.interval(span)))
    return [*found, *([("REALIGN", "TRUE")] if mark.realign else [])]


# Windows


def window_call(window: Window, table: str, given: Input, keys: Sequence[str]) -> str:
    """The windowing function over a table."""
    if isinstance(window, Custom):
        raise sql.no_text(f"the window function `{window.name}`")
    source = f"TABLE {table}"
    if isinstance(window, Session) and keys:
        source += f" PARTITION BY ({sql.names(keys)})"
    timed = window.axis is Axis.EVENT_TIME and given.time is not None
    time = [f"DESCRIPTOR({sql.name(given.time or '')})"] if timed else []
    call, arguments = _call(window)
    return f"TABLE({call}({', '.join([source, *time, *arguments])}))"


def _call(window: Window) -> tuple[str, list[str]]:
    axis = window.axis

    def size(ticks: int) -> str:
        return sql.interval(ticks) if axis.is_time else f"ROWS {ticks}"

    more = [] if axis is Axis.EVENT_TIME else [f"AXIS => {sql.text(str(axis))}"]
    if window.create == "static":
        more.append("CREATE => 'static'")
    match window:
        case Tumbling(size=length, offset=offset):
            return "TUMBLE", [size(length), *([size(offset)] if offset else []), *more]
        case Hopping(size=length, slide=slide, offset=offset):
            sizes = [size(slide), size(length), *([size(offset)] if offset else [])]
            return "HOP", [*sizes, *more]
        case Cumulative(size=length, step=step, offset=offset):
            sizes = [size(step), size(length), *([size(offset)] if offset else [])]
            return "CUMULATE", [*sizes, *more]
        case ByDifference(size=length):
            return "SLIDE", [size(length), *more]
        case Session(gap=gap, gap_column=column, touch=touch):
            length_text = size(gap) if gap is not None else f"DESCRIPTOR({sql.name(str(column))})"
            # In SQL, sessions on time that touch are one.
            touching = [f"TOUCH => {sql.text(touch)}"] if touch == "separate" else []
            return "SESSION", [f"GAP => {length_text}", *touching, *more]
        case Calendar(unit=unit, n=n, zone=zone, start=start, offset=offset):
            words = [f"ZONE => {sql.text(zone)}", f"START => {sql.text(start or '')}"]
            words += [f"OFFSET => {sql.interval(offset)}"] if offset else []
            return "CALENDAR", [sql.text(unit), str(n), *words, *more]
        case Global():
            return "ALL_ROWS", more
    return "INHERIT", []


# Aggregates


def aggregate_text(given: Aggregate) -> str:
    """The call of an aggregate."""
    if not isinstance(given.where, str | None):
        raise sql.no_text("a condition that is a function")
    plain = dataclasses.replace(given, where=None)
    call = _aggregate(plain)
    return call + (f" FILTER (WHERE {sql.name(given.where)})" if given.where is not None else "")


def _aggregate(given: Aggregate) -> str:
    column = sql.name(getattr(given, "column", None) or "")
    distinct = "DISTINCT " if given.distinct else ""
    simple = _SIMPLE.get(type(given))
    nulls = " IGNORE NULLS" if getattr(given, "ignore_nulls", False) else ""
    if given.of is None:
        match given:
            case agg.Count(column=None):
                return "COUNT(*)"
            case agg.Collect(ignore_nulls=ignores):
                word = "COLLECT_LIST" if ignores else "ARRAY_AGG"
                return f"{word}({distinct}{column})"
            case agg.Variance(ddof=ddof) | agg.Stddev(ddof=ddof) if ddof in (0, 1):
                word = "VAR" if isinstance(given, agg.Variance) else "STDDEV"
                return f"{word}_{'SAMP' if ddof else 'POP'}({distinct}{column})"
            case agg.ArgMin(by=by) | agg.ArgMax(by=by) if not given.distinct:
                word = "MIN_BY" if isinstance(given, agg.ArgMin) else "MAX_BY"
                return f"{word}({column}, {sql.name(by)})"
            case agg.Quantile(q=q, exact=exact) if not given.distinct:
                word = "PERCENTILE" if exact else "APPROX_PERCENTILE"
                return f"{word}({column}, {sql.value(q)})"
            case agg.TopK(k=k, by=other, ascending=()) if not given.distinct:
                rest = "" if other is None else f", {sql.name(other)}"
                return f"TOP_K({column}, {k}{rest})"
            case _ if simple is not None:
                return f"{simple}({distinct}{column}{nulls})"
    return f"AGGREGATE_OF({sql.text(_document(given))})"


_SIMPLE: dict[type[Aggregate], str] = {
    agg.Count: "COUNT",
    agg.Sum: "SUM",
    agg.Mean: "AVG",
    agg.Min: "MIN",
    agg.Max: "MAX",
    agg.First: "FIRST_VALUE",
    agg.Last: "LAST_VALUE",
    agg.AnyTrue: "BOOL_OR",
    agg.AllTrue: "BOOL_AND",
    agg.ApproxDistinct: "APPROX_COUNT_DISTINCT",
    agg.Distinct: "COLLECT_SET",
    agg.CountDistinct: "COUNT_DISTINCT",
}


def _document(given: Aggregate) -> str:
    """The JSON form of an aggregate without a function of its own in SQL."""
    if isinstance(given, agg.Columnar | agg.Python | agg.Apply):
        raise sql.no_text(f"a user-defined aggregate ({given.kind})")
    return json.dumps(given.to_dict())


# Queries


def aggregate_query(
    spec: AggregateSpec, tables: Sequence[str], *, feeds: bool = False, fed: bool = False
) -> str:
    """The query of a windowed aggregate over tables with these names.

    With `feeds`, another query reads its rows; with `fed`, it reads those of another one.
    """
    keys = list(spec.key)
    first = tables[0]
    bounds = [sql.name("window_start"), sql.name("window_end")]
    shown = [
        *(sql.name(key) for key in keys),
        *bounds,
        *([sql.name("window_time")] if feeds else []),
        *(f"{aggregate_text(one)} AS {sql.name(name)}" for name, one in spec.aggregates),
    ]
    if spec.names:
        source = f"MERGED({sql.names(tables)})"
    elif spec.also:
        source = "(" + _united(spec, tables, fed=fed) + ")"
    else:
        source = sql.name(first)
    given = _dated(spec.input, fed=fed)
    window = window_call(spec.window, source, given, keys)
    if fed and isinstance(spec.window, Inherited):
        window = source
    clauses = sql.emit(
        spec.trigger,
        spec.mode,
        spec.allowed_lateness,
        spec.retention,
        spec.evictor,
        sql.changed(spec.options),
    )
    group = ", ".join([*map(sql.name, keys), *bounds])
    return f"SELECT {', '.join(shown)}\nFROM {window}\nGROUP BY {group}\n{clauses}"


def _dated(given: Input, *, fed: bool) -> Input:
    """An input under the name that its time has in SQL; `fed` is whether it reads panes."""
    return dataclasses.replace(given, time="window_time") if fed and given.time == "time" else given


def _united(spec: AggregateSpec, tables: Sequence[str], *, fed: bool) -> str:
    """The union of the inputs; their times have one name in it."""
    columns = set(spec.key)
    for _, aggregate in spec.aggregates:
        reads = aggregate.reads()
        if reads is None:
            raise sql.no_text("an aggregate of all columns")
        columns |= {*reads, *([aggregate.where] if isinstance(aggregate.where, str) else [])}
    if isinstance(spec.window, Session) and isinstance(spec.window.gap_column, str):
        columns.add(spec.window.gap_column)
    columns -= {given.time for given in spec.inputs}
    parts = []
    common = _dated(spec.input, fed=fed).time or ""
    for table, one in zip(tables, spec.inputs, strict=True):
        given = _dated(one, fed=fed)
        time = [] if given.time is None else [f"{sql.name(given.time)} AS {sql.name(common)}"]
        shown = ", ".join([*time, *map(sql.name, sorted(columns))])
        parts.append(f"SELECT {shown} FROM {sql.name(table)}")  # noqa: S608
    return " UNION ALL ".join(parts)


def join_query(spec: JoinSpec, tables: tuple[str, str]) -> str:
    """The query of a join of two tables with these names."""
    if any(spec.also) or any(spec.merged):
        raise sql.no_text("a join of united streams")
    if spec.where is not None:
        raise sql.no_text("a further condition of a join")
    left, right = "`l`", "`r`"
    froms, on, kind = _sides(spec, tables)
    on += [f"{left}.{sql.name(a)} = {right}.{sql.name(b)}" for a, b in spec.on]
    shown = [f"{left}.{sql.name(one)}" for one, _ in spec.on[:1]] or ["1 AS `one`"]
    options: list[tuple[str, Any]] = sql.changed(spec.options)
    if spec.padding != "complete":
        options.append(("padding", spec.padding))
    if spec.names != ("left_", "right_"):
        options.append(("names", spec.names))
    if any(bound.left or bound.right for bound in spec.bounds):
        options.append(("times", (spec.left.time, spec.right.time)))
    for word, given in (
        ("update_every", spec.on_time_period),
        ("late_update_every", spec.late_period),
        ("layout", spec.layout),
    ):
        if given is not None:
            options.append((word, given))
    clauses = sql.emit(None, None, spec.allowed_lateness, spec.retention, None, options)
    how = "" if spec.how == "inner" else f"{spec.how.upper()} "
    if spec.how in ("semi", "anti"):
        how = f"LEFT {how}"
    condition = " AND ".join(on)
    return (
        f"SELECT {', '.join(shown)}\nFROM {froms[0]} {kind}{how}JOIN {froms[1]}"
        + (f" ON {condition}" if condition else "")
        + f"\n{clauses}"
    )


def _sides(spec: JoinSpec, tables: tuple[str, str]) -> tuple[list[str], list[str], str]:
    """Both sides in FROM, the conditions of the window, and the kind of the join."""
    plain = [
        f"{sql.name(table)} AS {sql.name(alias)}" for table, alias in zip(tables, "lr", strict=True)
    ]
    match spec.window:
        case AsOf(tolerance=tolerance, strict=strict):
            times = [
                f"`{alias}`.{sql.name(given.time or '')}"
                for alias, given in zip("lr", (spec.left, spec.right), strict=True)
            ]
            on = [f"{times[0]} {'>' if strict else '>='} {times[1]}"]
            if tolerance is not None:
                on.append(f"{times[0]} <= {times[1]} + {sql.interval(tolerance)}")
            return plain, on, "ASOF "
        case Rows():
            windows = _row_windows(spec.window)
            return [one + window for one, window in zip(plain, windows, strict=True)], [], ""
        case tuple():
            return plain, [text for bound in spec.window for text in _bounds(spec, bound)], ""
    calls = [
        f"{window_call(spec.window, sql.name(table), given, given.key)} AS {sql.name(alias)}"
        for table, given, alias in zip(tables, (spec.left, spec.right), "lr", strict=True)
    ]
    on = [f"`l`.{sql.name(one)} = `r`.{sql.name(one)}" for one in ("window_start", "window_end")]
    return calls, on, ""


def _row_windows(window: Rows) -> list[str]:
    """The window of each side after its table; a side of all rows is written where SQL needs it."""
    windows = []
    for side in (LEFT, RIGHT):
        size, span = window.size(side), window.span(side)
        if span is not None:
            windows.append(f" OVER (RANGE {sql.interval(span)} PRECEDING)")
        elif size is not None:
            windows.append(f" OVER (ROWS {size} PRECEDING)")
        elif window.compares_times or (window.left is window.right is None and side == LEFT):
            windows.append(" OVER (ROWS UNBOUNDED PRECEDING)")
        else:
            windows.append("")
    return windows


def _bounds(spec: JoinSpec, bound: Within) -> list[str]:
    """The conditions of a bound of time."""
    left = f"`l`.{sql.name(bound.left or spec.left.time or '')}"
    right = f"`r`.{sql.name(bound.right or spec.right.time or '')}"
    found = []
    if bound.before is not None:
        sign = ">=" if bound.closed in ("both", "left") else ">"
        found.append(f"{left} {sign} {right} - {sql.interval(bound.before)}")
    if bound.after is not None:
        sign = "<=" if bound.closed in ("both", "right") else "<"
        found.append(f"{left} {sign} {right} + {sql.interval(bound.after)}")
    return found
