"""The wiring of a windowed aggregate once its input's schema is known, wired together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidegate.errors import StateError
from tidegate.instants import MAX, MIN, saturating_add
from tidegate.kernel.frame import Frame
from tidegate.kernel.storage.keyed_table import KeyedTable
from tidegate.kernel.storage.layout import choose_layout
from tidegate.kernel.storage.message_store import MessageStore
from tidegate.kernel.triggers import Machine
from tidegate.kernel.windows.assigners import Aligned, Assigner, build
from tidegate.operators.aggregate.aggregate_set import AggregateSet
from tidegate.operators.aggregate.cell_update import CellUpdate
from tidegate.operators.aggregate.cell_values import PAYLOAD, CellValues
from tidegate.operators.aggregate.cell_watermarks import CellWatermarks
from tidegate.operators.aggregate.collector import Collector
from tidegate.operators.aggregate.context import IDENTITY, OperatorContext
from tidegate.operators.aggregate.count_panes import CountPanes
from tidegate.operators.aggregate.difference_update import DifferenceUpdate
from tidegate.operators.aggregate.firing import Firing
from tidegate.operators.aggregate.ordinals import Ordinals
from tidegate.operators.aggregate.retention import RetentionBounds
from tidegate.operators.aggregate.session_update import SessionUpdate
from tidegate.operators.aggregate.slice_buffer import SliceBuffer
from tidegate.operators.aggregate.static_windows import StaticWindows
from tidegate.operators.aggregate.window_offsets import WindowOffsets
from tidegate.operators.progress import Progress
from tidegate.spec.operator import AggregateSpec
from tidegate.spec.triggers import AfterWatermark, Default, Never, Policy, Trigger
from tidegate.spec.watermarks import PerKey
from tidegate.spec.windows import (
    Axis,
    ByDifference,
    Calendar,
    Cumulative,
    Custom,
    Hopping,
    Inherited,
    Session,
    Tumbling,
    Window,
)
from tidegate.state.store import Store


@dataclass(frozen=True, eq=False)
class Wiring:
    """Everything that depends on the schema."""

    context: OperatorContext
    cell_values: CellValues
    firing: Firing
    retention: RetentionBounds
    cell_update: CellUpdate
    slice_buffer: SliceBuffer | None
    ordinals: Ordinals
    static: StaticWindows | None
    count_panes: CountPanes | None

    @classmethod
    def made(
        cls,
        spec: AggregateSpec,
        store: Store,
        machine: Machine,
        progress: Progress,
        schema: pa.Schema,
        metadata: WindowOffsets | None,
        watermarks: CellWatermarks,
        *,
        retracts: bool,
    ) -> Wiring:
        aggregates = AggregateSet.bound(spec, schema, retractions=retracts)
        messages = _messages(spec, store, aggregates, retracts=retracts)
        cells = KeyedTable(
            store, "cells", IDENTITY, watch=("watermark_due", "clock_due", "start", "end")
        )
        context = OperatorContext(
            spec,
            store,
            machine,
            schema,
            aggregates,
            progress,
            cells,
            messages,
            _lateness(spec),
            watermarks,
            metadata,
        )
        cell_values = CellValues(context)
        firing = Firing(context, cell_values)
        retention = RetentionBounds(context, firing, cell_values)
        assigner = build(spec.window)
        cell_update = _cell_update_kind(spec.window)(
            context, firing, cell_values, assigner, retention
        )
        static = (
            StaticWindows(context, assigner)
            if isinstance(assigner, Aligned) and spec.window.create == "static"
            else None
        )
        count_panes = _count_panes(context, firing, cell_values, cell_update)
        return cls(
            context,
            cell_values,
            firing,
            retention,
            cell_update,
            _slice_buffer(context, assigner),
            Ordinals(store),
            static,
            count_panes,
        )

    def take_partials(self, pieces: Sequence[Frame], out: Collector) -> None:
        """Take rows that were aggregated before they came here, as `PreAggregator` does it."""
        if takes_partials(self.context.spec, keeps_messages=self.context.messages is not None):
            if isinstance(self.cell_update, SessionUpdate):
                self.cell_update.take_partials(pieces, out)
                return
            if self.slice_buffer is not None:
                self.slice_buffer.take_partials(pieces)
                return
        raise StateError(
            "rows were aggregated on their way to windows that have to look at each of them"
        )

    def widen(self, schema: pa.Schema) -> None:
        """Columns that held nothing but nulls have a type now; what was aggregated of them is
        nothing in any type.
        """
        context = self.context
        aggregates = AggregateSet.bound(
            context.spec, schema, retractions=context.aggregates.retractions
        ).since(context.aggregates.recent)
        context.schema, context.aggregates = schema, aggregates
        cells = context.cells.all()
        if cells is not None:
            context.cells.reset(context.retyped(cells))
        if context.messages is not None:
            context.messages.widen({PAYLOAD + field.name: field.type for field in schema})
        if self.slice_buffer is not None:
            self.slice_buffer.retype(aggregates, context.retyped)

    def migrate(self, recent: Sequence[str], expired_at_migration: int) -> None:
        """Adapt to state of a former specification.

        Stored frames may lack the `recent` aggregates. Windows that end at or before
        `expired_at_migration` have expired, whatever the allowed lateness is now.
        """
        context = self.context
        context.is_migrated, context.expired_at_migration = True, expired_at_migration
        context.aggregates = context.aggregates.since(recent)
        if self.slice_buffer is not None:
            self.slice_buffer.retype(context.aggregates, context.retyped)

    def extend_lateness(self, lateness: int) -> None:
        """Keep windows longer from now on; windows that have expired stay expired."""
        context = self.context
        if lateness > context.allowed_lateness:
            expired = expired_end(context.progress.watermark, context.allowed_lateness)
            context.allowed_lateness = lateness
            self.migrate(context.aggregates.recent, max(context.expired_at_migration, expired))

    def oldest_start(self) -> int:
        """The start of the oldest window that is held."""
        opened = MAX if self.slice_buffer is None else self.slice_buffer.oldest_start()
        return min(self.context.cells.least("start", MAX), opened)

    def first_needed(self, bound: int) -> int:
        """The position below which no message can matter: that of the oldest window, or of the
        oldest event that is still taken.
        """
        reach = _reach(self.context.spec)
        if bound == MIN:
            return MIN
        oldest = self.context.cells.least("start", MAX)
        if bound == MAX:
            return oldest
        if reach is None:
            return MIN
        return min(oldest, int(saturating_add(bound, -reach)))

    @property
    def forgets_by_key(self) -> bool:
        """Whether messages have to be forgotten key by key, because no position tells which are of
        no use any more.
        """
        return (
            self.context.messages is not None
            and isinstance(self.context.spec.window, Session)
            and _reach(self.context.spec) is None
        )

    def drop_orphans(self) -> None:
        """Where no position is known below which messages cannot matter, they go when there is no
        window left.
        """
        messages = self.context.messages
        if (
            messages is not None
            and messages.count
            and _reach(self.context.spec) is None
            and not len(self.context.cells)
        ):
            messages.remove(messages.read(MIN, MAX))


def expired_end(watermark: int, lateness: int) -> int:
    """The latest end of windows that have expired under a watermark."""
    return MIN if watermark == MIN or lateness == MAX else int(saturating_add(watermark, -lateness))


_DAY = 86_400_000_000
_LONGEST = {"day": 2 * _DAY, "week": 8 * _DAY, "month": 32 * _DAY, "year": 367 * _DAY}
"""No calendar window is longer, whatever its zone does with its clocks."""


def _reach(spec: AggregateSpec) -> int | None:
    """How far before the oldest event that is still taken a message can matter; None where that is
    not known.
    """
    match spec.window:
        case ByDifference(size=size):
            return size
        case Custom() | Inherited():
            # They lie at the end of their windows.
            return 0
        case _ if spec.options.drop_by == "event":
            return 0
        case Calendar(unit=unit, n=n):
            return n * _LONGEST[unit]
        case Tumbling(size=size) | Hopping(size=size) | Cumulative(size=size):
            return size
        case Session(gap=int(gap)) if spec.options.session_lateness == "own":
            # Otherwise a session may grow backwards, message by message, without end.
            return gap
    return None


def _lateness(spec: AggregateSpec) -> int:
    """Allowed lateness counts on event time; on the other axes nothing is late."""
    if isinstance(spec.window, Inherited) or spec.window.axis is Axis.EVENT_TIME:
        return spec.allowed_lateness
    return 0


def needs_messages(spec: AggregateSpec, aggregates: AggregateSet, *, retracts: bool) -> bool:
    """Whether panes are made from the messages themselves."""
    return (
        aggregates.full_state
        or spec.evictor is not None
        or spec.options.keep_messages
        or isinstance(spec.window, ByDifference)
        or (retracts and not aggregates.invertible)
    )


def _messages(
    spec: AggregateSpec, store: Store, aggregates: AggregateSet, *, retracts: bool
) -> MessageStore | None:
    """The message store where the messages themselves are needed, opened as it was last flushed."""
    if not needs_messages(spec, aggregates, retracts=retracts):
        return None
    layout = choose_layout(
        axis="time" if spec.window.axis.is_time else "tuple",
        operation="aggregate",
        equal_fields=False,
        time_range=False,
        large=False,
        session_key=isinstance(spec.window, Session),
    )
    return MessageStore.open(store, layout, "messages")


def _cell_update_kind(window: Window) -> type[CellUpdate]:
    if isinstance(window, Session):
        return SessionUpdate
    return DifferenceUpdate if isinstance(window, ByDifference) else CellUpdate


def _count_panes(
    context: OperatorContext, firing: Firing, cell_values: CellValues, cell_update: CellUpdate
) -> CountPanes | None:
    """CountPanes serve where windows never merge, no message has to be looked at, and elements fire
    by being counted.
    """
    rule = context.machine.count_rule()
    shared = context.spec.window.axis is not Axis.ORDINAL and context.watermarks.keys is None
    plain = (
        type(cell_update) is CellUpdate
        and context.messages is None
        and not context.spec.retention
        and shared
    )
    return (
        CountPanes(context, firing, cell_values, cell_update, rule)
        if plain and rule is not None and rule != (None, None)
        else None
    )


def _is_quiet(trigger: Trigger) -> bool:
    """Whether elements leave no trace in the trigger before the window is complete."""
    if isinstance(trigger, Policy):
        return trigger.early is None and trigger.full is None
    return isinstance(trigger, Default | Never) or (
        isinstance(trigger, AfterWatermark) and trigger.early is None
    )


def takes_partials(spec: AggregateSpec, *, keeps_messages: bool) -> bool:
    """Whether nothing looks at a row before its window is complete, and what rows are together in
    follows from how far they are apart.
    """
    by_key = isinstance(spec.input.watermark, PerKey)
    plain = (
        spec.window.axis is not Axis.ORDINAL
        and not by_key
        and not keeps_messages
        and not spec.retention
    )
    fixed = isinstance(build(spec.window), Aligned) or (
        isinstance(spec.window, Session) and spec.window.gap is not None
    )
    return plain and fixed and _is_quiet(spec.firing)


def _slice_buffer(context: OperatorContext, assigner: Assigner) -> SliceBuffer | None:
    """Where windows follow from the axis and nothing looks at a cell before its window is complete,
    slices serve.
    """
    lazy = takes_partials(context.spec, keeps_messages=context.messages is not None)
    return SliceBuffer(context, assigner) if lazy and isinstance(assigner, Aligned) else None
