"""Pre-aggregation of rows where they are read, before the shuffle.

It takes rows that are certainly on time, because the watermark that classifies them is known, in
windows whose trigger depends on the watermark only. It pays where many rows share a key and a
slice, which is estimated for every table. Rows of a key that are less than a gap apart are in one
session, so slices of one gap serve for sessions: each is a part of a session, from its first row to
one gap after its last.

On the clock, nothing is late, and every readable row is in the windows of the instant at which the
operator takes it. Only the operator knows that instant, so its rows are aggregated by key alone, as
if they were at `UNPLACED`, and the operator places them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import pyarrow as pa

from tidegate.instants import MAX, MIN, saturating_add
from tidegate.kernel.events.event_time import OK, ON_TIME
from tidegate.kernel.frame import Frame
from tidegate.kernel.keys import FIXED, KeyHasher
from tidegate.kernel.windows.assigners import Aligned, Assigner, build
from tidegate.operators.aggregate.aggregate_set import AggregateSet
from tidegate.operators.aggregate.requirements import takes_partials
from tidegate.operators.aggregate.slice_buffer import partials_of
from tidegate.operators.ingest.delivery import Delivery, DeliveryReader
from tidegate.operators.ingest.schema_cast import bindable
from tidegate.spec.aggregates import AllTrue, AnyTrue, Count, Max, Mean, Min, Stddev, Sum, Variance
from tidegate.spec.operator import AggregateSpec
from tidegate.spec.watermarks import Bounded, Implied, Lagging, Noted
from tidegate.spec.windows import Axis, Session, Window

NEWEST = "newest"
"""The column with the newest event time of each partial aggregate of windows on the clock."""
UNPLACED = 0
"""The position of rows before the operator places them at its clock."""
_UNORDERED = (Count, Sum, Mean, Min, Max, Variance, Stddev, AnyTrue, AllTrue)
"""Aggregates that do not depend on the order of rows."""
_QUIET = (Bounded, Implied, Lagging, Noted)
"""Watermarks under which every row with a time is an event."""
_SAMPLE = 64
"""One row of this many is sampled to see whether keys repeat."""
_WORTH_IT = 0.5
"""The largest share of rows that may be left."""


def can_combine(spec: AggregateSpec) -> bool:
    """Whether rows of this operator may be aggregated before they reach it."""
    plain = (
        not spec.also
        and spec.input.id is None
        and spec.input.offset is None
        and all(isinstance(time.watermark, _QUIET) for time in spec.input.times)
    )
    timely = (
        (spec.window.axis is Axis.EVENT_TIME or _can_be_placed(spec.window))
        and spec.window.create != "static"
        and spec.options.future_reference == "clock"
    )
    free = all(
        isinstance(aggregate, _UNORDERED)
        and not aggregate.distinct
        and not callable(aggregate.where)
        for _, aggregate in spec.aggregates
    )
    return (
        plain
        and timely
        and free
        and takes_partials(
            spec, keeps_messages=spec.evictor is not None or spec.options.keep_messages
        )
    )


def _can_be_placed(window: Window) -> bool:
    """Whether an operator can place partial aggregates at its clock.

    Rows between two windows would have to go to `late` one by one. Sessions that end at this
    instant may grow or not, which depends on what has fired.
    """
    assigner = build(window)
    return window.axis is Axis.CLOCK and isinstance(assigner, Aligned) and not assigner.has_gaps


@dataclass(frozen=True)
class PreAggregator:
    """Aggregates rows of one operator with this input schema."""

    spec: AggregateSpec
    schema: pa.Schema
    hasher: KeyHasher = FIXED

    @cached_property
    def _aggregates(self) -> AggregateSet:
        return AggregateSet.bound(self.spec, bindable(self.schema), retractions=False)

    @cached_property
    def _assigner(self) -> Assigner:
        return build(self.spec.window)

    @property
    def is_on_clock(self) -> bool:
        """Whether the operator places the rows at its clock, so that none of them is late."""
        return self.spec.window.axis is Axis.CLOCK

    @cached_property
    def _above(self) -> int:
        """How far above the watermark a row has to be at least.

        A session that ends with the watermark has fired, and must not be touched.
        """
        window = self.spec.window
        return int(isinstance(window, Session) and window.reaches_end)

    def combine(self, table: pa.Table, floor: int, limit: int) -> tuple[Frame, pa.Table] | None:
        """Partial aggregates of the rows from `floor` to `limit`, and the other rows.

        The partials are by slice and key; on the clock they are of all readable rows, and by key.
        None where it does not pay.
        """
        time = self.spec.input.time
        if not table.num_rows or not bindable(table.schema).equals(bindable(self.schema)):
            return None
        reader = DeliveryReader(self.spec.input, hasher=self.hasher)
        delivery = reader.read(table, None if time is None else table.column(time), MIN)
        if self.spec.input.key and not _repeats(delivery):
            return None
        sure = self._sure(delivery, floor, limit)
        if not sure.any():
            return None
        delivery = delivery.with_position(
            np.full(len(delivery), UNPLACED) if self.is_on_clock else delivery.time
        )
        found = self._combined(delivery, sure, self._numbers(delivery.position, sure, floor, limit))
        return (
            None
            if found is None
            else (found, table.slice(0, 0) if sure.all() else table.filter(pa.array(~sure)))
        )

    def _sure(self, delivery: Delivery, floor: int, limit: int) -> np.ndarray:
        """Which rows are certainly in a window that has not fired."""
        readable: np.ndarray = delivery.verdict == OK
        if self.is_on_clock:
            return readable
        time = delivery.time
        sure = readable & (time >= saturating_add(floor, self._above)) & (time <= limit)
        if isinstance(self._assigner, Aligned) and self._assigner.has_gaps:
            start, end = self._assigner.slice_of(time)
            sure &= start < end
        return sure

    def _numbers(self, time: np.ndarray, sure: np.ndarray, floor: int, limit: int) -> np.ndarray:
        """The number of the slice of each row.

        The last slice of sessions ends with the newest row, because most rows are less than a gap
        older.
        """
        if isinstance(self._assigner, Aligned):
            return self._assigner.numbers_of(time)
        gap = cast("Session", self.spec.window).gap
        if limit - floor > MAX:
            return time // gap
        newest = np.where(sure, time, MIN).max()
        number: np.ndarray = (time - (newest + 1)) // gap
        return number

    def _combined(self, delivery: Delivery, sure: np.ndarray, number: np.ndarray) -> Frame | None:
        grouped = delivery.grouped(self.spec.input.key, number, sure)
        groups, kept = grouped.groups, grouped.kept
        if kept > _WORTH_IT * len(delivery):
            return None
        delivery = delivery.with_classes(np.full(len(delivery), ON_TIME, np.int8))
        frame, failed, _ = partials_of(self._aggregates, self.spec, delivery, grouped)
        if failed is not None:
            # The operator reports rows that a function refuses one by one.
            return None
        if isinstance(self._assigner, Aligned):
            start, end = self._assigner.slice_of(delivery.position[groups.lasts])
        else:
            start, end = (
                groups.min(delivery.time),
                self._assigner.assign(groups.max(delivery.time)).end,
            )
        frame = frame.with_columns(start=start, end=end)
        if self.is_on_clock and self.spec.input.time is not None:
            frame = frame.with_mapping({NEWEST: groups.max(delivery.time)})
        return frame.slice(0, kept)


def _repeats(delivery: Delivery) -> bool:
    """Whether enough rows share their keys, estimated from a sample.

    With K keys, n rows leave K (1 - exp(-n / K)) groups: half of them at K = 0.63 n. Of a sample of
    s rows then s / 2 K have a key that occurred before.
    """
    sample = len(delivery) // _SAMPLE
    if sample < _SAMPLE:
        return True
    key_hash, _ = delivery.identities.at(slice(sample))
    return len(pa.array(key_hash).unique()) < (1 - 0.8 / _SAMPLE) * sample
