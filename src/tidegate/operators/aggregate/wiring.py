"""Wiring: the steps of a windowed aggregate, made once the schema of its input is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidegate.errors import StateError
from tidegate.kernel.events.duplicates import SeenIds
from tidegate.kernel.frame import Frame
from tidegate.kernel.keys import KeyHasher
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
from tidegate.operators.aggregate.context import IDENTITY, OperatorContext, expired_end
from tidegate.operators.aggregate.difference_update import DifferenceUpdate
from tidegate.operators.aggregate.element_panes import ElementPanes
from tidegate.operators.aggregate.firing import Firing
from tidegate.operators.aggregate.message_recovery import MessageRecovery
from tidegate.operators.aggregate.ordinals import Ordinals
from tidegate.operators.aggregate.requirements import (
    needs_messages,
    takes_partials,
    window_lateness,
)
from tidegate.operators.aggregate.retention import RetentionBounds
from tidegate.operators.aggregate.row_update import RowUpdate
from tidegate.operators.aggregate.session_update import SessionUpdate
from tidegate.operators.aggregate.slice_buffer import SliceBuffer
from tidegate.operators.aggregate.static_windows import StaticWindows, has_static_windows
from tidegate.operators.aggregate.watermark_advance import WatermarkAdvance
from tidegate.operators.aggregate.window_offsets import WindowOffsets
from tidegate.operators.aggregate.withdrawn_windows import WithdrawnWindows
from tidegate.spec.operator import AggregateSpec
from tidegate.spec.windows import ByDifference, Session, Window
from tidegate.state.store import Store


@dataclass(frozen=True, eq=False)
class Wiring:
    """The steps of one operator, bound to the schema of its input."""

    context: OperatorContext
    cell_values: CellValues
    firing: Firing
    retention: RetentionBounds
    cell_update: CellUpdate
    slice_buffer: SliceBuffer | None
    ordinals: Ordinals
    static_windows: StaticWindows | None
    row_update: RowUpdate
    watermark_advance: WatermarkAdvance

    @classmethod
    def made(
        cls,
        spec: AggregateSpec,
        store: Store,
        machine: Machine,
        schema: pa.Schema,
        watermarks: CellWatermarks,
        ids: SeenIds,
        window_offsets: WindowOffsets | None,
        recovery: MessageRecovery | None,
        hasher: KeyHasher,
        *,
        retracts: bool,
        keeps_messages: bool = False,
    ) -> Wiring:
        """Make the steps; `keeps_messages` if stored cells depend on their messages."""
        aggregates = AggregateSet.bound(spec, schema, retractions=retracts)
        context = OperatorContext(
            spec,
            store,
            machine,
            schema,
            aggregates,
            watermarks.progress,
            KeyedTable(
                store,
                "cells",
                IDENTITY,
                watch=("watermark_due", "clock_due", "start", "end"),
                goes_by="watermark_due",
            ),
            _messages(spec, store)
            if keeps_messages or needs_messages(spec, aggregates, retracts=retracts)
            else None,
            window_lateness(spec),
            watermarks,
            hasher,
            window_offsets,
            withdrawn=WithdrawnWindows(store) if retracts else None,
        )
        cell_values = CellValues(context)
        firing = Firing(context, cell_values)
        retention = RetentionBounds(context, firing, cell_values)
        assigner = build(spec.window)
        cell_update = _cell_update_kind(spec.window)(
            context,
            firing,
            cell_values,
            assigner,
            retention,
            ElementPanes(context, firing, cell_values),
        )
        ordinals, slice_buffer = Ordinals(store), _slice_buffer(context, assigner)
        static_windows = (
            StaticWindows(context, assigner)
            if isinstance(assigner, Aligned) and has_static_windows(spec)
            else None
        )
        return cls(
            context,
            cell_values,
            firing,
            retention,
            cell_update,
            slice_buffer,
            ordinals,
            static_windows,
            RowUpdate(context, cell_update, retention, ordinals, slice_buffer, static_windows),
            WatermarkAdvance(
                context,
                cell_values,
                firing,
                retention,
                slice_buffer,
                static_windows,
                ids,
                recovery,
            ),
        )

    def take_partials(self, pieces: Sequence[Frame], out: Collector) -> None:
        """Take rows that `PreAggregator` has aggregated before the shuffle."""
        if takes_partials(self.context.spec, keeps_messages=self.context.messages is not None):
            if isinstance(self.cell_update, SessionUpdate):
                self.cell_update.take_partials(pieces, out)
                return
            if self.slice_buffer is not None:
                self.slice_buffer.take_partials(
                    [self.row_update.place_partials(piece) for piece in pieces]
                )
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


def _messages(spec: AggregateSpec, store: Store) -> MessageStore:
    """The message store as of the last flush."""
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


def _slice_buffer(context: OperatorContext, assigner: Assigner) -> SliceBuffer | None:
    """Slices serve windows that all keys share, if nothing looks at them before completion."""
    lazy = takes_partials(context.spec, keeps_messages=context.messages is not None)
    return SliceBuffer(context, assigner) if lazy and isinstance(assigner, Aligned) else None
