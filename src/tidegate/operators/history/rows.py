"""The rows of one key and a range of windows among the panes and late rows that were written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import InputError
from tidegate.instants import MAX, MIN, format_instant
from tidegate.kernel.events.event_time import OK, is_instants, read_times
from tidegate.kernel.frame import rows_of, to_arrow
from tidegate.operators.ingest.python_rows import shown
from tidegate.operators.results import late_name
from tidegate.spec.operator import RESERVED

BATCH = "batch"
"""The column with the number of the micro-batch, or of the call."""
_TAKEN_BACK = frozenset({"-", "update_preimage", "delete"})
_ADDED = RESERVED | {BATCH, "_change_type", "_commit_version", "_commit_timestamp"}


@dataclass(frozen=True)
class Selection:
    """A key, and a range of the axis of its windows."""

    key: Mapping[str, Any]
    low: int = MIN
    high: int = MAX

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise InputError(
                f"a window ends after its start, got [{format_instant(self.low)},"
                f" {format_instant(self.high)})"
            )

    @classmethod
    def of(cls, key: Any, names: Sequence[str], start: int | None, end: int | None) -> Selection:
        """A key given as a value, a tuple or a dictionary; without `end`, the instant `start`."""
        return cls(
            key_values(key, names),
            MIN if start is None else start,
            (MAX if start is None else start + 1) if end is None else end,
        )

    @property
    def is_whole(self) -> bool:
        """Whether it is all windows of the key."""
        return (self.low, self.high) == (MIN, MAX)

    @property
    def whole(self) -> Selection:
        """All windows of the key."""
        return Selection(self.key)

    def overlaps(self, start: int, end: int) -> bool:
        """Whether a window is one of the range."""
        return start < self.high and end > self.low

    def filter(self, names: Sequence[str]) -> pc.Expression:
        """The rows of the key, for the scan of a dataset with these columns."""
        found = pc.scalar(True)
        for name, value in self.key.items():
            column = late_name(name) if name not in names else name
            if column not in names:
                raise InputError(
                    f"the rows have no key column `{name}`; they have {', '.join(names)}"
                )
            field = pc.field(column)
            found &= field.is_null() if value is None else field == pa.scalar(value)
        return found


def key_values(key: Any, names: Sequence[str]) -> dict[str, Any]:
    """The values of a key by column."""
    if isinstance(key, Mapping):
        values = dict(key)
    else:
        given = tuple(key) if isinstance(key, tuple | list) else () if key is None else (key,)
        values = dict(zip(names, given, strict=False)) if len(given) == len(names) else {"": key}
    if set(values) != set(names):
        raise InputError(
            f"the key columns are {', '.join(names) or 'none'}, got {shown(key)}. Hint: pass a"
            " value, a tuple or a dictionary by column; a null is `(None,)`"
        )
    return {name: values[name] for name in names}


@dataclass(frozen=True, slots=True)
class PaneRow:
    """A row of the panes, or the retraction of one."""

    start: int
    end: int
    is_retraction: bool
    timing: str
    pane: int
    is_first: bool
    is_last: bool
    values: Mapping[str, Any]
    watermark: int | None
    at: int | None
    batch: int | None


@dataclass(frozen=True, slots=True)
class LateRow:
    """A late row, with the windows that it missed."""

    time: int | None
    lateness: str
    reason: str
    detail: str
    watermark: int | None
    at: int | None
    batch: int | None
    windows: tuple[tuple[int, int], ...]
    row: Mapping[str, Any]
    is_own: bool = True
    """Whether it was late for this operator, and not for one before it."""


def check_panes(panes: pa.Table) -> None:
    """Refuse rows without the columns that a history needs."""
    for name in ("window_start", "window_end", "timing", "pane"):
        if name not in panes.column_names:
            raise InputError(
                f"the rows have no column `{name}`, so they are not panes of windows; they have"
                f" {', '.join(panes.column_names)}"
            )


def pane_rows(panes: pa.Table, asked: Selection) -> list[PaneRow]:
    """The panes of a selection, in the order in which they were emitted."""
    if not panes.num_rows:
        return []
    check_panes(panes)
    found = of_key(panes, asked)
    start, end = _bounds(found, "window_start", MIN), _bounds(found, "window_end", MAX)
    inside = (start < asked.high) & (end > asked.low)
    found, start, end = found.filter(pa.array(inside)), start[inside], end[inside]
    values = [name for name in found.column_names if name not in asked.key and name not in _ADDED]
    marks, clocks = _ticks(found, "watermark"), _ticks(found, _clock_column(found))
    rows = rows_of(found.select([name for name in found.column_names if name not in _TIMES]))
    shown = [
        PaneRow(
            start=int(start[n]),
            end=int(end[n]),
            is_retraction=row.get("op", row.get("_change_type")) in _TAKEN_BACK,
            timing=row["timing"],
            pane=row["pane"],
            is_first=bool(row.get("is_first")),
            is_last=bool(row.get("is_last")),
            values={name: row[name] for name in values},
            watermark=marks[n],
            at=clocks[n],
            batch=None if row.get(BATCH) is None else int(row[BATCH]),
        )
        for n, row in enumerate(rows)
    ]
    return _in_order(shown)


def _in_order(rows: list[PaneRow]) -> list[PaneRow]:
    """The rows as they were emitted: a table, unlike folders of batches, has them in any order."""
    found: list[PaneRow] = []
    for _, group in groupby(sorted(rows, key=_moment), key=_moment):
        emitted = list(group)
        last: dict[tuple[int, int], int] = {}
        for row in emitted:
            place = _place(row)
            if last.setdefault((row.start, row.end), place) > place:
                # A session comes after those that became a part of it.
                emitted.sort(key=lambda one: (one.end - one.start, one.start, _place(one)))
                break
            last[row.start, row.end] = place
        found += emitted
    return found


def _moment(row: PaneRow) -> tuple[int, int]:
    """The batch and the clock of a row; batches that the log has forgotten come first."""
    return (
        MIN if row.batch is None else row.batch,
        MIN if row.at is None else row.at,
    )


def _place(row: PaneRow) -> int:
    """The place of a row among those of its window: a pane comes before its retraction."""
    return 2 * row.pane + row.is_retraction


_TIMES = frozenset(
    {"window_start", "window_end", "watermark", "emitted_at", "time", "_commit_timestamp"}
)


def pane_bounds(panes: pa.Table, asked: Selection) -> list[tuple[int, int]]:
    """The bounds of all windows of the key that have panes."""
    if not panes.num_rows:
        return []
    check_panes(panes)
    found = of_key(panes, asked)
    start, end = _bounds(found, "window_start", MIN), _bounds(found, "window_end", MAX)
    return [*{*zip(start.tolist(), end.tolist(), strict=True)}]


def last_marked(rows: pa.Table) -> int:
    """The last batch of rows that have a watermark."""
    if not {"watermark", BATCH} <= set(rows.column_names):
        return MIN
    marked = rows.filter(pc.is_valid(rows.column("watermark"))).column(BATCH)
    return MIN if (last := pc.max(marked).as_py()) is None else int(last)


def late_rows(
    late: pa.Table, asked: Selection, time: str | None, upstream: str | None = None
) -> list[LateRow]:
    """The late rows of the key that missed a window of the selection.

    `upstream`: the time column of rows that were late for an operator before this one.
    """
    if not late.num_rows or "windows" not in late.column_names:
        return []
    found = of_key(late, asked)
    marks, clocks = _ticks(found, "watermark"), _ticks(found, "emitted_at")
    own, before = (_ticks(found, _late_column(found, name)) for name in (time, upstream))
    is_own = [at is not None or other is None for at, other in zip(own, before, strict=True)]
    times = [other if at is None else at for at, other in zip(own, before, strict=True)]
    windows = _windows(found)
    values = [name for name in found.column_names if name not in _OF_LATE]
    rows = rows_of(found.select([*values, "class", "reason", "detail"]))
    batches = _ticks(found, BATCH if BATCH in found.column_names else None)
    return [
        LateRow(
            time=times[n],
            lateness=row["class"] or "",
            reason=row["reason"] or "",
            detail=row["detail"] or "",
            watermark=marks[n],
            at=clocks[n],
            batch=batches[n],
            windows=windows[n],
            row={name: row[name] for name in values},
            is_own=is_own[n],
        )
        for n, row in enumerate(rows)
        if _concerns(asked, windows[n], times[n])
    ]


def _late_column(late: pa.Table, time: str | None) -> str | None:
    name = None if time is None else late_name(time)
    return name if name in late.column_names else None


_OF_LATE = frozenset({"class", "reason", "detail", "watermark", "windows", "emitted_at", BATCH})


def _concerns(asked: Selection, windows: Sequence[tuple[int, int]], time: int | None) -> bool:
    if windows:
        return any(asked.overlaps(start, end) for start, end in windows)
    # A row without a time is in no window, but it is a row of the key.
    return asked.is_whole if time is None else asked.overlaps(time, time + 1)


def of_key(rows: pa.Table, asked: Selection) -> pa.Table:
    """The rows of the key."""
    if not rows.num_rows:
        return rows
    wanted = np.ones(rows.num_rows, bool)
    for name, value in asked.key.items():
        column = rows.column(name if name in rows.column_names else late_name(name))
        wanted &= _equals(to_arrow(column), value)
    return rows if wanted.all() else rows.filter(pa.array(wanted))


def _equals(column: pa.Array, value: Any) -> np.ndarray:
    if value is None or pa.types.is_null(column.type):
        matches = column.is_null() if value is None else pa.nulls(len(column), pa.bool_())
    else:
        try:
            matches = pc.equal(column, pa.scalar(value, column.type))
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise InputError(
                f"the key {shown(value)} does not fit a column of type {column.type}: {error}."
                " Hint: pass a value of that type"
            ) from error
    return np.asarray(pc.fill_null(matches, False))


def _clock_column(found: pa.Table) -> str | None:
    names = ("emitted_at", "_commit_timestamp")
    return next((name for name in names if name in found.column_names), None)


def _ticks(found: pa.Table, name: str | None) -> list[int | None]:
    """A column of times as ticks."""
    if name is None:
        return [None] * found.num_rows
    column = to_arrow(found.column(name))
    if not is_instants(column.type):
        return [None] * found.num_rows
    ticks, verdict = read_times(column, name)
    return [
        tick if read == OK else None
        for tick, read in zip(ticks.tolist(), verdict.tolist(), strict=True)
    ]


def _bounds(found: pa.Table, name: str, missing: int) -> np.ndarray:
    return np.array(
        [missing if tick is None else tick for tick in _ticks(found, name)], np.int64
    ).reshape(-1)


def _windows(found: pa.Table) -> list[tuple[tuple[int, int], ...]]:
    column = found.column("windows")
    if not column.num_chunks or not found.num_rows:
        return [()] * found.num_rows
    lists: Any = to_arrow(column)
    flat = lists.flatten()
    bounds = pa.table({side: flat.field(side) for side in ("window_start", "window_end")})
    low = _bounds(bounds, "window_start", MIN).tolist()
    high = _bounds(bounds, "window_end", MAX).tolist()
    counts = [count or 0 for count in pc.list_value_length(lists).to_pylist()]
    stops = np.cumsum([0, *counts]).tolist()
    return [
        tuple(zip(low[first:last], high[first:last], strict=True))
        for first, last in pairwise(stops)
    ]
