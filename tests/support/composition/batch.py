"""The answer of a pipeline over all of its rows at once, stage by stage over lists of rows.

Slow and obvious on purpose, and independent of the library.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from support.composition.plans import Aggregate, Join, Match, Node, Row, Source, Value, Window

Bounds = tuple[int | None, int | None]


@dataclass
class Accepted:
    """The rows that the first operators accepted, by source in the order of arrival."""

    rows: dict[str, list[Row]]
    missed: set[tuple[int, Bounds]] = field(default_factory=set)
    """Windows that had closed before a row arrived, by the number of the row."""


def answer(node: Node, accepted: Accepted) -> list[Row]:
    """The rows that a pipeline ends with."""
    if isinstance(node, Source):
        return accepted.rows[node.name]
    if isinstance(node, Join):
        left, right = (_timed(child, answer(child, accepted)) for child in node.inputs)
        return _joined(node, left, right)
    rows: list[tuple[Row, str | None, set[Bounds]]] = []
    for number, child in enumerate(node.inputs):
        name = node.names[number] if node.names else None
        found = answer(child, accepted)
        # A row that inherits its window needs no time.
        for row in found if node.window.kind == "inherited" else _timed(child, found):
            # Windows and keys go by the same names in all inputs.
            own = {**row, "#time": row[child.time]}
            if isinstance(child, Source):
                own["#offset"] = row[child.number]
            missed = (
                {bounds for n, bounds in accepted.missed if n == row[child.number]}
                if isinstance(child, Source)
                else set()
            )
            rows.append((own, name, missed))
    return _aggregated(node, rows)


def _timed(node: Node, rows: Sequence[Row]) -> list[Row]:
    """The rows that have a time; unmatched rows of a join may have none."""
    if isinstance(node, Aggregate):
        return list(rows)
    return [row for row in rows if row[node.time] is not None]


# Windowed aggregates


def _aggregated(node: Aggregate, rows: Sequence[tuple[Row, str | None, set[Bounds]]]) -> list[Row]:
    groups: dict[tuple[Any, ...], list[tuple[Row, str | None, set[Bounds]]]] = {}
    for entry in rows:
        groups.setdefault(tuple(entry[0][name] for name in node.key), []).append(entry)
    found = []
    for key, members in groups.items():
        windows: dict[Bounds, list[tuple[Row, str | None]]] = {}
        for (row, name, missed), bounds in _assigned(node.window, members):
            for window in bounds:
                if window not in missed:
                    windows.setdefault(window, []).append((row, name))
        for (start, end), content in windows.items():
            values = {value.name: _value(value, content) for value in node.aggregates}
            time = None if end is None else end - 1
            bounds = {"window_start": start, "window_end": end, "time": time}
            found.append({**dict(zip(node.key, key, strict=True)), **bounds, **values})
    return found


def _assigned(window: Window, members: Sequence[Any]) -> list[tuple[Any, list[Bounds]]]:
    """The rows of one key, each with its windows."""
    if window.kind == "session":
        return _sessions(window, members)
    if window.kind == "sliding":
        times = sorted({member[0]["#time"] for member in members})
        return [(m, _by_difference(window.size, times, m[0]["#time"])) for m in members]
    places = {
        "event_time": [member[0]["#time"] for member in members],
        "ordinal": list(range(len(members))),
        "offset": [member[0].get("#offset") for member in members],
    }[window.axis]
    return [
        (member, _aligned(window, member[0], at))
        for member, at in zip(members, places, strict=True)
    ]


def _aligned(window: Window, row: Row, at: int) -> list[Bounds]:
    match window.kind:
        case "global":
            return [(None, None)]
        case "inherited":
            return [(row["window_start"], row["window_end"])]
        case "cumulative":
            base = at // window.size * window.size
            ends = range(base + window.slide, base + window.size + 1, window.slide)
            return [(base, end) for end in ends if end > at]
        case "tumbling":
            start = (at - window.offset) // window.size * window.size + window.offset
            return [(start, start + window.size)]
    last = at // window.slide * window.slide
    starts = range(last, at - window.size, -window.slide)
    return [(start, start + window.size) for start in starts]


def _sessions(window: Window, members: Sequence[Any]) -> list[tuple[Any, list[Bounds]]]:
    """Rows whose own sessions overlap are in one; `end` is that of the session so far."""
    found: list[tuple[int, int, list[Any]]] = []
    for member in sorted(members, key=lambda entry: entry[0]["#time"]):
        at = member[0]["#time"]
        end = at + window.size * (member[0][window.by] if window.by is not None else 1)
        if found and at < found[-1][1]:
            start, last, others = found.pop()
            found.append((start, max(last, end), [*others, member]))
        else:
            found.append((at, end, [member]))
    return [(member, [(start, end)]) for start, end, session in found for member in session]


def _by_difference(size: int, times: Sequence[int], at: int) -> list[Bounds]:
    """The windows that end with an event, or start after one, and contain `at`."""
    ends = {(t - size + 1, t + 1) for t in times} | {(t + 1, t + size + 1) for t in times}
    return [(start, end) for start, end in sorted(ends) if start <= at < end]


def _value(value: Value, content: Sequence[tuple[Row, str | None]]) -> Any:
    rows = [row for row, name in content if value.of in (None, name)]
    if value.above is not None:
        column = value.column or ""
        rows = [row for row in rows if row[column] is not None and row[column] > value.above]
    if value.function == "count":
        return len(rows)
    every = [row.get(value.column or "") for row in rows]
    found = [item for item in every if item is not None]
    match value.function:
        case "list":
            return every
        case "count_distinct":
            return len(set(found))
        case "distinct":
            return sorted(set(found))
        case "squares":
            return sum(item * item for item in found)
        case "first":
            return min(rows, key=lambda row: row["#time"])[value.column] if rows else None
        case "last":
            return max(reversed(rows), key=lambda row: row["#time"])[value.column] if rows else None
        case "stddev":
            return statistics.stdev(found) if len(found) > 1 else None
    if not found:
        return None
    functions = {
        "sum": sum,
        "min": min,
        "max": max,
        "mean": statistics.fmean,
        "median": statistics.median,
        "quantile": lambda items: _quantile(sorted(items), 0.25),
        "spread": lambda items: max(items) - min(items),
    }
    return functions[value.function](found)  # type: ignore[operator]


def _quantile(items: Sequence[float], q: float) -> float:
    """By linear interpolation."""
    place = q * (len(items) - 1)
    low = int(place)
    high = min(low + 1, len(items) - 1)
    return items[low] + (items[high] - items[low]) * (place - low)


# Joins


def _joined(node: Join, left: Sequence[Row], right: Sequence[Row]) -> list[Row]:
    pairs = [
        (a, b)
        for a, one in enumerate(left)
        for b, other in enumerate(right)
        if _matches(node, left, right, one, other)
    ]
    if node.match.kind == "as_of":
        times = [row[node.right.time] for row in right]
        pairs = [
            max(
                (pair for pair in pairs if pair[0] == a), key=lambda pair: (times[pair[1]], pair[1])
            )
            for a in sorted({a for a, _ in pairs})
        ]
    matched = {a for a, _ in pairs}, {b for _, b in pairs}
    alone = [
        [row for number, row in enumerate(rows) if number not in matched[side]]
        for side, rows in enumerate((left, right))
    ]
    if node.how == "semi":
        return [_out(node, left[a], None) for a in sorted(matched[0])]
    found = [] if node.how == "anti" else [_out(node, left[a], right[b]) for a, b in pairs]
    if node.how in ("left", "full", "anti"):
        found += [_out(node, row, None) for row in alone[0]]
    if node.how in ("right", "full"):
        found += [_out(node, None, row) for row in alone[1]]
    return found


def _matches(node: Join, left: Sequence[Row], right: Sequence[Row], one: Row, other: Row) -> bool:
    if any(one[name] is None or one[name] != other[name] for name in node.on):
        return False
    if node.ascending:
        low, high = (row[child.values[0]] for child, row in ((node.left, one), (node.right, other)))
        if low is None or high is None or low > high:
            return False
    a, b, match = one[node.left.time], other[node.right.time], node.match
    if match.kind == "session":
        key = [one[name] for name in node.on]
        times = sorted(
            row[child.time]
            for child, rows in ((node.left, left), (node.right, right))
            for row in rows
            if [row[name] for name in node.on] == key
        )
        path = [time for time in times if min(a, b) <= time <= max(a, b)]
        return all(y - x < match.before for x, y in pairwise(path))
    return _in_reach(match, a, b)


def _in_reach(match: Match, a: int, b: int) -> bool:
    match match.kind:
        case "within":
            return -match.before <= a - b <= match.after
        case "tumbling":
            return a // match.before == b // match.before
        case "hopping" | "cumulative":
            window = Window(match.kind, match.before, match.after)
            return bool(set(_aligned(window, {}, a)) & set(_aligned(window, {}, b)))
        case "sliding":
            return abs(a - b) < match.before
        case "global":
            return True
    return b <= a and a - b <= match.before


def _out(node: Join, one: Row | None, other: Row | None) -> Row:
    found: Row = {name: (one or other or {}).get(name) for name in node.on}
    for side, row in enumerate((one, other)):
        if side == 0 or node.shows_right:
            for name in node.inputs[side].columns:
                if name not in node.on:
                    found[node.shown(side, name)] = None if row is None else row.get(name)
    if node.match.kind == "tumbling":
        at = one[node.left.time] if one is not None else (other or {})[node.right.time]
        start = at // node.match.before * node.match.before
        found |= {"window_start": start, "window_end": start + node.match.before}
    if node.match.kind == "global":
        found |= {"window_start": None, "window_end": None}
    return found


# Comparison


def shape(node: Node, row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The columns of a row that the batch answer decides, in a form that compares."""
    return tuple(_plain(row.get(name)) for name in shown(node))


def shown(node: Node) -> tuple[str, ...]:
    """The columns that are compared: keys, window and values, not the time of panes."""
    if isinstance(node, Aggregate):
        return tuple(name for name in node.columns if name != "time")
    return tuple(name for name in node.columns if name not in undetermined(node))


def undetermined(node: Node) -> set[str]:
    """Columns that no batch answer decides."""
    return node.undetermined if isinstance(node, Join) else set()


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        # Nulls come last.
        found = [_plain(item) for item in value]
        return (*sorted(item for item in found if item is not None), *[None] * found.count(None))
    # A rounded zero has no sign.
    return round(value, 9) + 0.0 if isinstance(value, float) else value


def wanted(node: Node, accepted: Accepted) -> Counter[tuple[Any, ...]]:
    """The batch answer in the form of `net`: discarded panes add up from nothing."""
    rows = answer(node, accepted)
    if isinstance(node, Aggregate) and node.mode == "discarding":
        names = [value.name for value in node.aggregates]
        rows = [{**row, **{name: row[name] or 0 for name in names}} for row in rows]
    return Counter(shape(node, row) for row in rows)
