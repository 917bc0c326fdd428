"""The connection between two chained operators, the same in every runtime.

A downstream operator gets, in this order: the panes of its upstream, whose `op` column marks
retractions; then the upstream's output watermark; then whether the upstream is idle. Late rows are
not passed on: they leave the pipeline at the operator that found them.

A runtime decides when and how these travel: through a result queue with backpressure, or through
the shuffle of a query.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidegate.instants import MIN
from tidegate.kernel.watermarks.marks import Active, Idle, Mark, Watermark
from tidegate.operators.aggregate.operator import WindowedAggregate
from tidegate.operators.ingest.computed_columns import with_computed_columns
from tidegate.operators.ingest.projection import project
from tidegate.operators.ingest.watermark_tracking import WatermarkTracker
from tidegate.operators.join.operator import WindowedJoin
from tidegate.operators.output import Output
from tidegate.operators.results import Results
from tidegate.spec.aggregates import INPUT
from tidegate.spec.join import JoinSpec
from tidegate.spec.operator import OPTIONAL_COLUMNS, AggregateSpec, Input
from tidegate.spec.windows import Custom, Session

Operator = WindowedAggregate | WindowedJoin


def render(operator: Operator, output: Output, *, by_window: bool = False) -> list[Results]:
    """The results of a call, none if it has no output; `by_window` splits them by window."""
    if output.is_empty:
        return []
    renderer = operator.renderer()
    return renderer.by_window(output) if by_window else [renderer.render(output)]


def received(panes: pa.Table, given: Input) -> pa.Table:
    """The rows that an input gets of the panes of an upstream: with computed columns, projected."""
    rows = with_computed_columns(panes, given.arrival.computed)
    return project(rows, given.projections).rows


def named_columns(spec: AggregateSpec | JoinSpec, ordinal: int) -> list[str]:
    """The columns of an input that a specification names."""
    given, named = spec.inputs[ordinal], role_columns(spec.inputs[ordinal])
    if isinstance(spec, JoinSpec):
        named += spec.fields(spec.side_of(ordinal))
    else:
        label = spec.names[ordinal] if spec.names else None
        for _, aggregate in spec.aggregates:
            if aggregate.of in (None, label):
                named += [*(aggregate.reads() or ())]
                named += [aggregate.where] if isinstance(aggregate.where, str) else []
        if isinstance(spec.window, Session) and isinstance(spec.window.gap_column, str):
            named.append(spec.window.gap_column)
    made = {INPUT, *(column.name for column in given.computed)}
    return [name for name in dict.fromkeys(named) if name not in made]


def unread_columns(spec: AggregateSpec | JoinSpec, ordinal: int) -> list[str]:
    """The optional columns of panes that an operator does not read of an input.

    A function over whole rows may read any of them, and pairs of a join have all of them.
    """
    given = spec.inputs[ordinal]
    if isinstance(spec, JoinSpec) or given.computed or given.projections or given.arrival.computed:
        return []
    if isinstance(spec.window, Custom) or spec.evictor is not None:
        return []
    if any(
        aggregate.reads() is None or callable(aggregate.where) for _, aggregate in spec.aggregates
    ):
        return []
    read = {*named_columns(spec, ordinal)}
    return [name for name in OPTIONAL_COLUMNS if name not in read]


def role_columns(given: Input) -> list[str]:
    """The columns of an input that have a role."""
    times = [time.column for time in given.times]
    roles = [*times, *given.key, given.id, given.offset, given.partition]
    return [name for name in roles if name is not None]


def with_columns(panes: pa.Table, names: Sequence[str]) -> pa.Table:
    """The panes with columns of nulls for these names, where they have none."""
    for name in names:
        if name not in panes.column_names:
            panes = panes.append_column(name, pa.nulls(panes.num_rows))
    return panes


@dataclass(frozen=True, slots=True)
class OutputProgress:
    """The watermark and the idleness that an operator forwards to its downstream."""

    watermark: int = MIN
    is_idle: bool = False

    @classmethod
    def of(cls, operator: Operator, time: str | None) -> OutputProgress:
        """The progress of an operator's output on the time column that its downstream reads."""
        watermark = operator.output_watermark
        if isinstance(operator, WindowedJoin):
            watermark = operator.output_watermarks.get(time or "", watermark)
        return cls(watermark, operator.is_idle)

    def marks(self, key: int, *, since: OutputProgress | None) -> list[Mark]:
        """What differs from the progress that was forwarded last; all of it if that is unknown."""
        found: list[Mark] = []
        if self.watermark > MIN and (since is None or self.watermark != since.watermark):
            found.append(Watermark(self.watermark, key))
        if since is None or self.is_idle != since.is_idle:
            found.append(Idle(key) if self.is_idle else Active(key))
        return found


NO_PROGRESS = OutputProgress()
"""The progress of an upstream that has forwarded nothing."""


def apply_marks(
    tracker: WatermarkTracker, marks: Iterable[Mark], ordinal: int, partition: str | None = None
) -> None:
    """Apply the marks of an upstream to an input, or to one of its partitions.

    An upstream may repeat marks, for example after a restart: a smaller watermark is no step back.
    Idleness of a watermark key that the input does not have is ignored.
    """
    for mark in marks:
        if isinstance(mark, Watermark):
            tracker.promise(
                mark.value, ordinal=ordinal, partition=partition, key=mark.key, repeats=True
            )
        elif not tracker.has(mark.key, ordinal):
            continue
        elif isinstance(mark, Idle):
            tracker.idle(ordinal=ordinal, partition=partition, key=mark.key)
        else:
            tracker.active(ordinal=ordinal, key=mark.key)
