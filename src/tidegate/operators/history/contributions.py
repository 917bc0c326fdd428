"""The rows that each delivery added to windows, counted in deliveries that are still at hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.kernel.events.event_time import OK, is_instants, read_times
from tidegate.kernel.frame import values_of
from tidegate.operators.history.facts import Bounds, Contribution
from tidegate.operators.history.rows import Selection, late_rows, of_key
from tidegate.operators.ingest.delivery import Arrival
from tidegate.spec.operator import AggregateSpec, Input
from tidegate.spec.windows import Axis, Custom, Inherited, Session


@dataclass(frozen=True, slots=True)
class Delivered:
    """What arrived in one call, and what of it went to `late`."""

    call: int
    clock: int
    arrivals: Sequence[Arrival]
    late: Sequence[pa.Table]


def are_countable(spec: AggregateSpec) -> bool:
    """Whether the time of a row alone decides which windows it is in."""
    window = spec.window
    return window.axis is Axis.EVENT_TIME and not isinstance(window, Custom | Inherited)


def contributions(
    deliveries: Iterable[Delivered],
    spec: AggregateSpec,
    windows: Iterable[Bounds],
    asked: Selection,
) -> Iterator[Contribution]:
    """The rows of the key that each delivery added to each of the windows.

    A session within another one is that session before it grew; its rows count in the larger one.
    """
    known = sorted(set(windows))
    outer = [
        one
        for one in known
        if not isinstance(spec.window, Session)
        or not any(other != one and other[0] <= one[0] and one[1] <= other[1] for other in known)
    ]
    totals = dict.fromkeys(outer, 0)
    seen: set[Any] = set()
    for delivered in deliveries:
        times = [
            time
            for arrival in delivered.arrivals
            for time in _times(arrival, spec.inputs[arrival.ordinal], asked, seen)
        ]
        missed = [
            row
            for table in delivered.late
            for row in late_rows(table, asked, spec.input.time)
            if row.time is not None
        ]
        for start, end in outer:
            rows = sum(start <= time < end for time in times)
            rows -= sum(
                start <= (row.time or 0) < end
                and (
                    not row.windows or any(low < end and start < high for low, high in row.windows)
                )
                for row in missed
            )
            if rows > 0:
                totals[start, end] += rows
                yield Contribution(
                    start=start,
                    end=end,
                    at=delivered.clock,
                    batch=delivered.call,
                    rows=rows,
                    total=totals[start, end],
                )


def _times(arrival: Arrival, given: Input, asked: Selection, seen: set[Any]) -> list[int]:
    """The readable times of the rows of the key; a duplicate counts once."""
    table = arrival.table
    if given.time is None or given.time not in table.column_names or not table.num_rows:
        return []
    if any(name not in table.column_names for name in asked.key):
        return []
    if not is_instants(table.schema.field(given.time).type):
        return []
    rows = of_key(table, asked)
    ticks, verdict = read_times(rows.column(given.time), given.time)
    names = [given.id] if given.id is not None else [given.partition, given.offset]
    identity = [name for name in names if name is not None and name in rows.column_names]
    if given.id is None and given.offset is None:
        return [
            tick for tick, read in zip(ticks.tolist(), verdict.tolist(), strict=True) if read == OK
        ]
    found = []
    ids = zip(*(map(_hashable, values_of(rows.column(name))) for name in identity), strict=True)
    for tick, read, one in zip(ticks.tolist(), verdict.tolist(), ids, strict=True):
        place = (arrival.ordinal, *one)
        if read == OK and (place not in seen or one[-1] is None):
            seen.add(place)
            found.append(tick)
    return found


def _hashable(value: Any) -> Any:
    """The value itself, or its text where it is a list or a dictionary."""
    return repr(value) if isinstance(value, list | dict) else value
