"""What a page reads from a pipeline: its status, what is new, and histories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.instants import MAX, MIN
from tidegate.kernel.frame import to_arrow
from tidegate.operators.history.facts import History
from tidegate.operators.results import late_name
from tidegate.operators.status import QueryStatus

BARS = 150
"""The number of bars that a moment has at most; nearby windows share one beyond it."""
POINTS = 200
"""The number of late rows that a moment shows at most; the others are only counted."""
_TIMINGS = ("early", "on_time", "late")


@dataclass(frozen=True)
class Bars:
    """The windows that fired at one moment, as columns."""

    start: np.ndarray
    end: np.ndarray
    timing: np.ndarray
    panes: np.ndarray
    """The number of panes in each bar: of several keys, or of nearby windows."""

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class Moment:
    """One micro-batch, or one call of an embedded operator, condensed for a plot."""

    clock: int
    batch: int | None
    watermark: int | None
    bars: Bars
    late: np.ndarray
    """Event times of late rows, a sample if there are many."""
    late_rows: int = 0
    panes: int = 0


@dataclass(frozen=True)
class Reading:
    """What a feed returns: the status, and the moments since the last reading."""

    status: QueryStatus | None
    moments: Sequence[Moment] = ()
    error: str = ""
    """Why there is no status."""
    rates: dict[str, float] = field(default_factory=dict)


class Feed(Protocol):
    """The source of a page. It is called from one thread, `why` from another one."""

    name: str
    has_phases: bool
    """Whether its status has the phases of micro-batches."""

    def read(self) -> Reading:
        """The status now, and the moments that are new."""
        ...

    def why(self, key: str, window: str) -> History:
        """The history of a key and a window, both as text; raises `TidegateError`."""
        ...


def moments(
    panes: pa.Table, late: pa.Table, time: str | None, batch: int | None = None
) -> list[Moment]:
    """The panes and late rows of one batch or call, by clock."""
    shown = _fired(panes)
    clocks = {
        *(_ticks(shown, "emitted_at").tolist() if shown.num_rows else ()),
        *(_ticks(late, "emitted_at").tolist() if late.num_rows else ()),
    }
    return [
        _moment(_at(shown, clock), _at(late, clock), time, int(clock), batch)
        for clock in sorted(clocks)
    ]


def _moment(
    panes: pa.Table, late: pa.Table, time: str | None, clock: int, batch: int | None
) -> Moment:
    marks = np.concatenate([_known(rows, "watermark") for rows in (panes, late)])
    times = _known(late, late_name(time)) if time is not None else np.zeros(0, np.int64)
    step = max(1, -(-len(times) // POINTS))
    return Moment(
        clock=clock,
        batch=batch,
        watermark=int(marks.max()) if len(marks) else None,
        bars=bars(panes),
        late=np.sort(times)[::step],
        late_rows=late.num_rows,
        panes=panes.num_rows,
    )


def bars(panes: pa.Table, limit: int = BARS) -> Bars:
    """The windows of panes with the number of panes of each, at most `limit` of them.

    Beyond that, windows of one timing whose middles are near share a bar.
    """
    if not panes.num_rows:
        none = np.zeros(0, np.int64)
        return Bars(none, none, np.zeros(0, object), none)
    whole = pa.table(
        {
            "start": pa.array(_ticks(panes, "window_start", MIN)),
            "end": pa.array(_ticks(panes, "window_end", MAX)),
            "timing": to_arrow(panes.column("timing")).cast(pa.string()),
        }
    )
    found = whole.group_by(["start", "end", "timing"]).aggregate([([], "count_all")])
    start, end = (found.column(name).to_numpy() for name in ("start", "end"))
    timing = np.array(found.column("timing").to_pylist(), object)
    counts = found.column("count_all").to_numpy()
    if len(start) <= limit:
        order = np.lexsort((start, end))
        return Bars(start[order], end[order], timing[order], counts[order])
    return _bucketed(start, end, timing, counts, limit // len(_TIMINGS))


def _bucketed(
    start: np.ndarray, end: np.ndarray, timing: np.ndarray, counts: np.ndarray, buckets: int
) -> Bars:
    """Bars by timing and by equal shares of the range of middles."""
    middle = start // 2 + end // 2
    low = int(middle.min())
    width = max(1, -(-(int(middle.max()) - low + 1) // buckets))
    code = (middle - low) // width + buckets * np.array(
        [_TIMINGS.index(one) if one in _TIMINGS else 0 for one in timing], np.int64
    )
    places, first, group = np.unique(code, return_index=True, return_inverse=True)
    starts, ends = np.full(len(places), MAX), np.full(len(places), MIN)
    np.minimum.at(starts, group, start)
    np.maximum.at(ends, group, end)
    return Bars(starts, ends, timing[first], np.bincount(group, counts).astype(np.int64))


def _fired(panes: pa.Table) -> pa.Table:
    """The panes without retractions."""
    needed = {"window_start", "window_end", "timing", "emitted_at"}
    if not needed <= set(panes.column_names):
        return panes.slice(0, 0)
    if "op" in panes.column_names:
        return panes.filter(pc.equal(panes.column("op"), "+"))
    return panes


def _at(rows: pa.Table, clock: int) -> pa.Table:
    if not rows.num_rows:
        return rows
    mask = _ticks(rows, "emitted_at") == clock
    return rows if mask.all() else rows.filter(pa.array(mask))


def _known(rows: pa.Table, name: str) -> np.ndarray:
    """The values of a column of times that are not null."""
    if name not in rows.column_names or not rows.num_rows:
        return np.zeros(0, np.int64)
    found = _ticks(rows, name, MIN)
    return found[found != MIN]


def _ticks(rows: pa.Table, name: str, missing: int = MIN) -> np.ndarray:
    column = to_arrow(rows.column(name))
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("us"), safe=False)
    if not (pa.types.is_integer(column.type) or pa.types.is_timestamp(column.type)):
        return np.full(len(column), missing, np.int64)
    return np.asarray(pc.fill_null(column.cast(pa.int64()), missing))
