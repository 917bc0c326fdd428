"""The rows that each delivery added to windows, counted in deliveries that are still at hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.kernel.events.event_time import OK, is_instants, read_times
from tidegate.kernel.frame import values_of
from tidegate.operators.history.facts import Bounds, Contribution
from tidegate.operators.history.rows import LateRow, Selection, late_rows, of_key
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
    starts, ends = np.array(outer, np.int64).reshape(-1, 2).T
    totals = np.zeros(len(outer), np.int64)
    seen: set[Any] = set()
    for delivered in deliveries:
        parts = [
            _times(arrival, spec.inputs[arrival.ordinal], asked, seen)
            for arrival in delivered.arrivals
        ]
        times = np.sort(np.concatenate([np.zeros(0, np.int64), *parts]))
        added = np.searchsorted(times, ends) - np.searchsorted(times, starts)
        for table in delivered.late:
            for row in late_rows(table, asked.whole, spec.input.time):
                added -= _misses(row, starts, ends)
        added = np.maximum(added, 0)
        totals += added
        for place in np.flatnonzero(added).tolist():
            yield Contribution(
                start=outer[place][0],
                end=outer[place][1],
                at=delivered.clock,
                batch=delivered.call,
                rows=int(added[place]),
                total=int(totals[place]),
            )


def _misses(row: LateRow, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Which of the windows a late row would be in."""
    if row.time is None:
        return np.zeros(len(starts), bool)
    within = (starts <= row.time) & (row.time < ends)
    if row.windows:
        within &= np.any([(starts < high) & (low < ends) for low, high in row.windows], axis=0)
    return within


def _times(arrival: Arrival, given: Input, asked: Selection, seen: set[Any]) -> np.ndarray:
    """The readable times of the rows of the key; a duplicate counts once."""
    table, none = arrival.table, np.zeros(0, np.int64)
    if given.time is None or given.time not in table.column_names or not table.num_rows:
        return none
    if any(name not in table.column_names for name in asked.key):
        return none
    if not is_instants(table.schema.field(given.time).type):
        return none
    rows = of_key(table, asked)
    ticks, verdict = read_times(rows.column(given.time), given.time)
    names = [given.id] if given.id is not None else [given.partition, given.offset]
    identity = [name for name in names if name is not None and name in rows.column_names]
    wanted = verdict == OK
    if given.id is not None or given.offset is not None:
        ids = zip(*(map(_hashable, values_of(rows.column(name))) for name in identity), strict=True)
        for place, one in enumerate(ids):
            found = (arrival.ordinal, *one)
            if wanted[place] and one[-1] is not None:
                wanted[place] = found not in seen
                seen.add(found)
    return np.asarray(ticks[wanted])


def _hashable(value: Any) -> Any:
    """The value itself, or its text where it is a list or a dictionary."""
    return repr(value) if isinstance(value, list | dict) else value
