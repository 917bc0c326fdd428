"""Combining aggregates rows where they are read, before they travel: only those that nobody ever has to see one by one.

Those are rows that are on time for sure, because the watermark that judges them is known, in windows whose trigger looks at nothing but the
watermark. It pays only where many rows share a key and a slice, which is found out anew for every table. Rows of a key that are less than a gap
apart are in one session, so slices of one gap serve for sessions: what is in one of them is a part of a session, from its first row to one gap
after its last.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from tidegate.instants import MAX, MIN, saturating_add
from tidegate.kernel.frame import Frame
from tidegate.kernel.lateness import ON_TIME
from tidegate.kernel.times import OK
from tidegate.kernel.windows import Aligned, build
from tidegate.operators.bundle import Bundle
from tidegate.operators.conform import bindable
from tidegate.operators.delivery import Delivery, Reader
from tidegate.operators.opening import partials_of
from tidegate.operators.parts import takes_partials
from tidegate.spec.aggregates import AllTrue, AnyTrue, Count, Max, Mean, Min, Stddev, Sum, Variance
from tidegate.spec.operator import AggregateSpec
from tidegate.spec.watermarks import Bounded, Implied, Lagging, Noted
from tidegate.spec.windows import Axis, Session, Tumbling

_UNORDERED = (Count, Sum, Mean, Min, Max, Variance, Stddev, AnyTrue, AllTrue)
"""Aggregates that do not ask which row came first."""
_QUIET = (Bounded, Implied, Lagging, Noted)
"""Watermarks under which a row with a time is an event, whatever else it says."""
_SAMPLE = 64
"""One row of so many is looked at to see whether keys repeat."""
_WORTH_IT = 0.5
"""The share of the rows that may be left at most."""


def can_combine(spec: AggregateSpec) -> bool:
    """Whether rows of this operator may be aggregated before they reach it."""
    plain = not spec.also and spec.input.id is None and spec.input.offset is None and isinstance(spec.input.watermark, _QUIET)
    timely = spec.window.axis is Axis.EVENT_TIME and spec.window.create != "static" and spec.options.future_reference == "clock"
    free = all(isinstance(aggregate, _UNORDERED) and not aggregate.distinct and not callable(aggregate.where) for _, aggregate in spec.aggregates)
    return plain and timely and free and takes_partials(spec, keeps_messages=spec.evictor is not None or spec.options.keep_messages)


@dataclass(frozen=True)
class Combiner:
    """Combines rows of one operator, whose input has these columns."""

    spec: AggregateSpec
    schema: pa.Schema

    @cached_property
    def _bundle(self) -> Bundle:
        return Bundle.bound(self.spec, bindable(self.schema), retractions=False)

    @cached_property
    def _gap(self) -> int | None:
        """The gap of sessions; None where windows are no sessions."""
        return self.spec.window.gap if isinstance(self.spec.window, Session) else None

    @cached_property
    def _assigner(self) -> Aligned:
        assigner = build(self.spec.window if self._gap is None else Tumbling(self._gap))
        if not isinstance(assigner, Aligned):
            raise TypeError(f"the windows of {self.spec.window} do not follow from time")
        return assigner

    @cached_property
    def _above(self) -> int:
        """How far above the watermark a row has to be at least: a session that ends with the watermark has fired, and must not be touched."""
        return 1 if isinstance(self.spec.window, Session) and self.spec.window.touch == "merge" else 0

    def combine(self, table: pa.Table, floor: int, limit: int) -> tuple[Frame, pa.Table] | None:
        """Partial aggregates of the rows from the watermark up to the limit, by slice and key, and the other rows; None where it does not pay."""
        time = self.spec.input.time
        if time is None or not table.num_rows or not bindable(table.schema).equals(bindable(self.schema)):
            return None
        delivery = Reader(self.spec.input).read(table, table.column(time), MIN)
        if not _repeats(delivery.kid):
            return None
        start, end = self._assigner.slice_of(delivery.time)
        sure = (delivery.verdict == OK) & (delivery.time >= saturating_add(floor, self._above)) & (delivery.time <= limit) & (start < end)
        if not sure.any():
            return None
        found = self._combined(delivery, start if sure.all() else np.where(sure, start, MAX), end)
        return None if found is None else (found, table.slice(0, 0) if sure.all() else table.filter(pa.array(~sure)))

    def _combined(self, delivery: Delivery, start: np.ndarray, end: np.ndarray) -> Frame | None:
        """Rows whose slice starts at `MAX`, where no slice can, ride along and are left out at the end: few are, and leaving out costs a copy."""
        groups = delivery.grouped(self.spec.input.key, start)
        kept = int(np.searchsorted(start[groups.lasts], MAX))
        if kept > _WORTH_IT * len(delivery):
            return None
        delivery = delivery.with_position(delivery.time).with_classes(np.full(len(delivery), ON_TIME, np.int8))
        frame, failed, _ = partials_of(self._bundle, self.spec, delivery, groups)
        if failed is not None:
            # A row that a function refuses has to be told one by one.
            return None
        if self._gap is None:
            return frame.with_columns(start=start[groups.lasts], end=end[groups.lasts]).slice(0, kept)
        last = build(self.spec.window).assign(groups.max(delivery.time))
        return frame.with_columns(start=groups.min(delivery.time), end=last.end).slice(0, kept)


def _repeats(kid: np.ndarray) -> bool:
    """Whether rows share their keys so often that aggregating them may pay, as far as a sample tells.

    With K keys, n rows leave K (1 - exp(-n / K)) groups: half of them at K = 0.63 n. Of a sample of s rows then s / 2 K have a key that was
    there before.
    """
    sample = len(kid) // _SAMPLE
    if sample < _SAMPLE or kid.strides == (0,):
        return True
    return len(pa.array(kid[:sample]).unique()) < (1 - 0.8 / _SAMPLE) * sample
