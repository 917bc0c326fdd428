"""Output times of panes, and the columns of a cell that they are computed from.

Contract: the output time of a pane with an on-time row lies between the earliest such row since the
last pane and the last tick of its window; a pane without one has the last tick. While a pane is
pending, the output watermark stays at or below a time that its output time cannot fall below:

    timestamp        output time                    held at
    end_of_window    last tick of the window        the same
    earliest         earliest on-time row           the same
    latest           latest on-time row             the same; it only rises
    a function       its result, clamped            earliest on-time row

New on-time rows are at or above the watermark, so the earliest one never falls below the hold.
"""

from __future__ import annotations

import warnings

import numpy as np
import pyarrow as pa

from tidegate.errors import InputError
from tidegate.instants import MAX, MIN
from tidegate.kernel.accumulations.filtered import describe
from tidegate.kernel.frame import Column, Frame, constant, is_constant, to_arrow
from tidegate.kernel.groups import Groups
from tidegate.kernel.windows.assigners import whole_numbers
from tidegate.spec.operator import Timestamp, TimestampFunction


def hold_columns(timestamp: Timestamp) -> tuple[str, ...]:
    """The columns that describe the on-time rows of a pending pane.

    `has_on_time`, whether there is one; `has_hold`, whether the pane holds back the output
    watermark; `hold_time`, the earliest or latest of them; `latest_time` if a function needs both.
    """
    more = ("latest_time",) if callable(timestamp) else ()
    return ("has_on_time", "has_hold", "hold_time", *more)


def held_by(
    timestamp: Timestamp, x: np.ndarray, good: np.ndarray, groups: Groups
) -> dict[str, Column]:
    """The hold columns of groups of rows at `x`, of which those in `good` are on time."""
    late = np.flatnonzero(~good)
    # Late rows are few, so that they are counted instead of those on time.
    has_on_time = constant(np.True_, groups.n)
    if len(late):
        has_on_time = groups.counts > np.bincount(groups.ids[late], minlength=groups.n)
    if timestamp == "end_of_window":
        return {
            "has_on_time": has_on_time,
            "has_hold": constant(np.True_, groups.n),
            "hold_time": constant(np.int64(0), groups.n),
        }
    columns: dict[str, Column] = {"has_on_time": has_on_time, "has_hold": has_on_time}
    if timestamp != "latest":
        columns["hold_time"] = groups.min(np.where(good, x, MAX))
    if timestamp == "latest" or callable(timestamp):
        name = "latest_time" if callable(timestamp) else "hold_time"
        columns[name] = groups.max(np.where(good, x, -MAX))
    return columns


def merged_holds(frame: Frame, groups: Groups, timestamp: Timestamp) -> dict[str, Column]:
    """The hold columns of groups of cells or slices."""
    columns: dict[str, Column] = {}
    for name in ("has_on_time", "has_hold"):
        column = frame.ints(name)
        columns[name] = constant(column[0], groups.n) if is_constant(column) else groups.any(column)
    hold, has_on_time = frame.ints("hold_time"), frame.ints("has_on_time")
    if is_constant(hold):
        columns["hold_time"] = constant(hold[0], groups.n)
    elif timestamp == "latest":
        columns["hold_time"] = groups.max(np.where(has_on_time, hold, MIN))
    else:
        columns["hold_time"] = groups.min(np.where(has_on_time, hold, MAX))
    if callable(timestamp):
        columns["latest_time"] = groups.max(np.where(has_on_time, frame.ints("latest_time"), MIN))
    return columns


def joined_holds(
    cells: Frame, brought: Frame, timestamp: Timestamp, *, is_open: np.ndarray
) -> dict[str, Column]:
    """The hold columns of cells together with those of the rows that they get.

    `is_open` marks the cells whose windows were not complete before the call.
    """
    has_on_time, fresh = cells.ints("has_on_time"), brought.ints("has_on_time")
    any_on_time = has_on_time | fresh
    if timestamp == "end_of_window":
        return {"has_on_time": any_on_time, "has_hold": cells.ints("has_hold") | is_open}
    columns: dict[str, Column] = {"has_on_time": any_on_time, "has_hold": any_on_time}
    for name in hold_columns(timestamp)[2:]:
        old, new = cells.ints(name), brought.ints(name)
        is_latest = timestamp == "latest" or name == "latest_time"
        both = np.maximum(old, new) if is_latest else np.minimum(old, new)
        columns[name] = np.where(has_on_time & fresh, both, np.where(fresh, new, old))
    return columns


def held_times(cells: Frame, timestamp: Timestamp) -> np.ndarray:
    """The time at which the pending pane of each cell holds back the output watermark."""
    last = _last_ticks(cells)
    if timestamp == "end_of_window":
        return last
    return np.where(cells.ints("has_on_time"), cells.ints("hold_time"), last)


def output_times(cells: Frame, timestamp: Timestamp) -> np.ndarray:
    """The time of the pane that each cell would emit now."""
    held = held_times(cells, timestamp)
    if not callable(timestamp):
        return held
    rows = np.flatnonzero(cells.ints("has_on_time"))
    if not len(rows):
        return held
    times, last = held.copy(), _last_ticks(cells)[rows]
    asked = pa.table(
        {
            "window_start": cells.ints("start")[rows],
            "window_end": cells.ints("end")[rows],
            "earliest": held[rows],
            "latest": cells.ints("latest_time")[rows],
        }
    )
    try:
        chosen = _call(timestamp, asked)
    except Exception as problem:  # noqa: BLE001 - a user's function may raise anything
        warnings.warn(
            "the `timestamp` function failed, and its panes have the end of their windows:"
            f" {describe(problem)}",
            RuntimeWarning,
            stacklevel=2,
        )
        chosen = last
    times[rows] = np.clip(chosen, held[rows], np.maximum(last, held[rows]))
    return times


def _call(timestamp: TimestampFunction, panes: pa.Table) -> np.ndarray:
    """The result of a function as ticks; null is after the end of every window."""
    found = timestamp(panes)
    if len(found) != len(panes):
        raise InputError(f"it returned {len(found)} values for {len(panes)} panes")
    return whole_numbers(to_arrow(found), "timestamp", missing=MAX)


def _last_ticks(cells: Frame) -> np.ndarray:
    end = cells.ints("end")
    return np.where(end == MAX, MAX, end - 1)
