"""Static windows fire without rows.

Every known key gets a cell in each window from the first one with an event, of whatever key, up to
the watermark. An operator that processes a share of the keys observes the positions of all events.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.instants import MAX, MIN
from tidegate.kernel.events.event_time import OK, read_times
from tidegate.kernel.frame import Frame, to_arrow, to_numpy
from tidegate.kernel.groups import Groups
from tidegate.kernel.keys import KEY
from tidegate.kernel.storage.keyed_table import KeyedTable
from tidegate.kernel.windows.assigners import Aligned, build
from tidegate.operators.aggregate.context import IDENTITY, OperatorContext
from tidegate.operators.aggregate.slice_buffer import SliceBuffer
from tidegate.operators.ingest.delivery import Delivery
from tidegate.operators.ingest.ingest import markers_in
from tidegate.spec.operator import AggregateSpec, Input
from tidegate.spec.windows import Axis, Window


class StaticWindows:
    """The known keys, and how far their windows are made."""

    def __init__(self, context: OperatorContext, assigner: Aligned) -> None:
        self._context = context
        self._assigner = assigner
        self._keys = KeyedTable(context.store, "known_keys", KEY)
        self._made = MIN
        """The end of the last window that is made; `MIN` before the first."""
        self._first, self._last = MAX, MIN
        """The least start and the greatest end of a window of an event."""

    def observe(self, positions: np.ndarray) -> None:
        """Observe the positions of events that are neither very late nor from the future."""
        start, end = self._assigner.slice_of(positions)
        inside = start < end
        if inside.any():
            self._first = min(self._first, int(start[inside].min()))
            self._last = max(self._last, int(self._assigner.last_end(positions[inside]).max()))

    def learn(self, delivery: Delivery) -> None:
        """Remember keys."""
        groups = Groups.by([delivery.key_hash, delivery.key_check])
        first = groups.firsts
        seen = Frame(
            {
                "key_hash": delivery.key_hash[first],
                "key_check": delivery.key_check[first],
                **delivery.keys(self._context.spec.input.key, first),
            },
            groups.n,
        )
        self._keys.put(seen.where(~self._keys.find(seen).found))

    def open_until(self, watermark: int, slice_buffer: SliceBuffer | None) -> None:
        """Make the windows without rows that end by the watermark.

        At the end of input, these are the windows up to the newest event.
        """
        limit, made = self._last if watermark == MAX else watermark, self._begin
        if limit <= made:
            return
        keys = self._keys.all()
        if keys is not None:
            for start, end in self._assigner.windows_ending_in(made, limit):
                self._open(start, end, keys, slice_buffer)
        self._made = limit

    def next_end(self) -> int:
        """The end of the first window that is not made yet; `MAX` before the first event.

        A key that comes later has the windows since then, also one that is not known yet.
        """
        if self._begin == MAX:
            return MAX
        return next((end for _, end in self._assigner.windows_ending_in(self._begin, MAX)), MAX)

    @property
    def _begin(self) -> int:
        """Windows that end after this instant are to be made; `MAX` before the first event."""
        return self._first if self._made == MIN else self._made

    def _open(self, start: int, end: int, keys: Frame, slice_buffer: SliceBuffer | None) -> None:
        identity = keys.select(KEY).with_columns(
            start=np.full(len(keys), start), end=np.full(len(keys), end)
        )
        missing = ~self._context.cells.find(identity).found
        if slice_buffer is not None:
            missing &= ~slice_buffer.holds((start, end), keys)
        if missing.any():
            absent = np.flatnonzero(missing)
            names = self._context.key_columns
            cells = self._context.fresh(
                identity.take(absent).select(IDENTITY),
                dict(keys.select(names).take(absent).columns),
            )
            # They are due at once: the watermark that makes them completes them.
            self._context.cells.put(
                cells.with_columns(
                    watermark_due=np.full(len(absent), MIN), clock_due=np.full(len(absent), MAX)
                )
            )

    def save(self) -> Any:
        bounds = {"made": self._made, "first": self._first, "last": self._last}
        return {"keys": self._keys.save(), **bounds}

    def restore(self, document: Any) -> None:
        self._keys.restore(document["keys"])
        self._made, self._first, self._last = (document[name] for name in ("made", "first", "last"))


def has_static_windows(spec: AggregateSpec) -> bool:
    """Whether windows without messages are made; ordinals of a key have no gaps."""
    return spec.window.create == "static" and spec.window.axis is not Axis.ORDINAL


def observed_positions(table: pa.Table, given: Input, window: Window) -> np.ndarray:
    """The least and the greatest position in each slice that has rows of a table.

    They stand for all rows, wherever a watermark or the clock divides them. On the clock, the
    position is that of the operator, and a single number says that there are rows.
    """
    if window.axis is Axis.CLOCK:
        return np.zeros(min(table.num_rows, 1), np.int64)
    if window.axis is Axis.OFFSET:
        position = to_numpy(to_arrow(table.column(given.offset or "")).cast(pa.int64()))
    else:
        position, verdict = read_times(table.column(given.time or ""), given.time or "")
        markers = markers_in(table, given, verdict)
        position = position[(verdict == OK) & (True if markers is None else ~markers)]
    assigner = build(window)
    groups = Groups.by(
        [assigner.slice_of(position)[0] if isinstance(assigner, Aligned) else position]
    )
    return np.concatenate([groups.min(position), groups.max(position)])
