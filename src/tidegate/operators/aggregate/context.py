"""The context that the steps of a windowed aggregate share, and the columns of its cells.

A cell is the state of one key in one window. Its columns:

    key_hash, key_check, start, end   identity: the hashed key and the bounds of the window
    k.NAME                            key columns
    expiry                            the watermark at which the cell expires
    row_count                         rows in the window
    pending                           rows since the last firing
    has_on_time                       whether an on-time row arrived since the last firing
    hold_time, latest_time            earliest or latest position of those rows (`output_time`)
    has_hold                          whether the pending pane holds back the output watermark
    pane_index                        index of the next pane
    first_pane_index                  index of the first pane since the window was opened
    nonspeculative_index              index of the next pane among those that are not early
    fired_on_time                     whether the window has fired after completion
    closed                            whether the window takes no more rows: its trigger has
                                      finished, or with retention it has expired. Without retention
                                      the cell is a tombstone, with it the content stays readable
    emitted                           whether a pane of the cell was emitted
    last_pane_index, last_nonspeculative_index, last_timing, last_output_time
                                      numbers of the last pane, for its retraction
    newest_seq, fired_seq             arrival numbers: newest row, and newest row that has fired
    watermark_due, clock_due          when the cell has to be settled next
    ordinal, ordinal_before           ordinal axis: messages of the key now, and before the call
    p.NAME.PART, known.NAME           partial aggregates (see `AggregateSet`)
    v.NAME                            values of the last pane, where they are kept
    evicted                           arrival numbers of evicted messages
    further columns                   state of the trigger (see `kernel.triggers`)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.instants import MAX, MIN, saturating_add
from tidegate.kernel.accumulations.protocol import Rows
from tidegate.kernel.frame import (
    Column,
    Frame,
    constant,
    is_constant,
    recast,
    repeat,
    shared,
    squeezed,
    squeezed_all,
    to_arrow,
)
from tidegate.kernel.keys import KEY, KeyHasher
from tidegate.kernel.storage.keyed_table import KeyedTable
from tidegate.kernel.storage.message_store import MessageStore
from tidegate.kernel.triggers import Machine, TriggerContext
from tidegate.operators.aggregate.aggregate_set import AggregateSet
from tidegate.operators.aggregate.cell_watermarks import CellWatermarks
from tidegate.operators.aggregate.output_time import hold_columns
from tidegate.operators.aggregate.window_offsets import WindowOffsets
from tidegate.operators.aggregate.withdrawn_windows import WithdrawnWindows
from tidegate.operators.ingest.delivery import Delivery
from tidegate.operators.progress import Progress
from tidegate.spec.operator import AggregateSpec
from tidegate.spec.windows import Axis, ByDifference, Custom, Inherited, Session
from tidegate.state.store import Store

IDENTITY = (*KEY, "start", "end")


@dataclass(eq=False)
class OperatorContext:
    """Specification, trigger, aggregates and state of one operator, shared by its steps."""

    spec: AggregateSpec
    store: Store
    machine: Machine
    schema: pa.Schema
    aggregates: AggregateSet
    progress: Progress
    cells: KeyedTable
    messages: MessageStore | None
    allowed_lateness: int
    """How long windows accept messages after their end; `MAX` is unlimited."""
    watermarks: CellWatermarks
    hasher: KeyHasher
    window_offsets: WindowOffsets | None = None
    is_migrated: bool = False
    """Whether frames of a former specification may be stored."""
    withdrawn: WithdrawnWindows | None = None
    """The pane numbers of withdrawn windows; None if no window can be opened a second time."""
    expired_at_migration: int = MIN
    """Windows that end here or before had expired when the lateness was extended; they stay so."""

    @property
    def keeps_fired_values(self) -> bool:
        """Whether cells keep the values of their last pane."""
        return (
            self.spec.mode == "retracting"
            or self.spec.options.fire_only_updated
            or (self.spec.mode == "accumulating" and self._withdraws)
        )

    @property
    def takes_retractions(self) -> bool:
        """Whether rows may be retractions."""
        return self.aggregates.retractions

    @property
    def _withdraws(self) -> bool:
        """Whether a fired window may disappear: its rows are retracted, or a session grows."""
        return self.takes_retractions or isinstance(self.spec.window, Session)

    @property
    def retains(self) -> bool:
        """Whether closed windows stay readable until retention evicts them."""
        return bool(self.spec.retention)

    @property
    def has_explicit_windows(self) -> bool:
        """Whether a message carries its windows, instead of its position deciding them."""
        return isinstance(self.spec.window, Custom | Inherited)

    @property
    def key_columns(self) -> list[str]:
        return [f"k.{name}" for name in self.spec.input.key]

    @property
    def event_lateness(self) -> int:
        """How late an event may be.

        After the lateness was extended, an event may not need state that had expired before.
        """
        watermark = self.progress.watermark
        if self.expired_at_migration == MIN or watermark == MAX or not self._needs_expired_state:
            return self.allowed_lateness
        return min(
            self.allowed_lateness, int(saturating_add(watermark, -self.expired_at_migration))
        )

    @property
    def _needs_expired_state(self) -> bool:
        """Whether an event needs more than its window: its id, older messages, or sessions."""
        spec = self.spec
        return spec.options.drop_by == "event" and (
            spec.input.id is not None or isinstance(spec.window, Session | ByDifference)
        )

    def expiry(self, end: np.ndarray) -> np.ndarray:
        """The watermark at which windows expire; `MAX` is never."""
        if self.expired_at_migration != MIN and (end <= self.expired_at_migration).any():
            return np.where(end <= self.expired_at_migration, end, self._expiry(end))
        return self._expiry(end)

    def _expiry(self, end: np.ndarray) -> np.ndarray:
        if self.allowed_lateness == MAX or not len(end):
            return constant(np.int64(MAX), len(end))
        lateness = int(saturating_add(self.allowed_lateness, int(self._takes_events_at_the_end)))
        return (
            constant(np.int64(saturating_add(int(end[0]), lateness)), len(end))
            if is_constant(end)
            else saturating_add(end, lateness)
        )

    @property
    def _takes_events_at_the_end(self) -> bool:
        """Whether an event at the end of a session, which is not late for it, extends it."""
        window, options = self.spec.window, self.spec.options
        return isinstance(window, Session) and window.reaches_end and options.drop_by == "event"

    def expired(self, expiry: np.ndarray, watermark: np.ndarray | int) -> np.ndarray:
        """Which windows have expired; with unlimited lateness none does before the end of input."""
        return (
            np.asarray(expiry < MAX)
            if self.allowed_lateness == MAX
            else np.asarray(expiry <= watermark)
        )

    def trigger_context(
        self, frame: Frame, pending: np.ndarray, times: np.ndarray | None = None
    ) -> TriggerContext:
        return TriggerContext(
            frame.ints("end"), self.watermarks.of_cells(frame), self.progress.now, pending, times
        )

    def trigger_state(self, frame: Frame) -> dict[str, np.ndarray]:
        """A writable copy of the trigger columns."""
        return {name: frame.ints(name).copy() for name in self.machine.columns}

    def fresh(
        self, identity: Frame, keys: dict[str, Column], partials: Mapping[str, Column] | None = None
    ) -> Frame:
        """New cells: empty, or with the given partial aggregates."""
        n = len(identity)
        index, nonspeculative_index = self._first_numbers(identity)
        zeros, no, never = (
            constant(np.int64(0), n),
            constant(np.False_, n),
            constant(np.int64(MIN), n),
        )
        columns: dict[str, Column] = {name: identity[name] for name in IDENTITY}
        columns.update(keys)
        columns.update(
            expiry=self.expiry(identity.ints("end")),
            row_count=zeros,
            pending=zeros,
            has_on_time=no,
            has_hold=no,
            **dict.fromkeys(hold_columns(self.spec.options.timestamp)[2:], zeros),
            pane_index=index,
            first_pane_index=index,
            nonspeculative_index=nonspeculative_index,
        )
        columns.update(
            fired_on_time=no,
            closed=no,
            emitted=no,
            fired_seq=never,
            newest_seq=never,
            watermark_due=zeros,
            clock_due=zeros,
        )
        columns.update(
            last_pane_index=zeros,
            last_nonspeculative_index=zeros,
            last_timing=constant(np.int8(0), n),
            last_output_time=zeros,
        )
        columns.update(
            {
                name: constant(column[0], n)
                for name, column in self.machine.initial(1, self.progress.now).items()
            }
        )
        if self.spec.window.axis is Axis.ORDINAL:
            columns.update(ordinal=zeros, ordinal_before=zeros)
        if self.messages is None:
            columns.update(
                self.aggregates.empty(self.schema, n, zeros) if partials is None else partials
            )
        else:
            columns.update(self.aggregates.all_known(n))
        if self.keeps_fired_values:
            columns.update(
                {
                    f"v.{name}": _no_value(n, kind)
                    for name, kind in self.aggregates.result_types.items()
                }
            )
        if self.spec.evictor is not None and self.spec.evictor.after:
            columns["evicted"] = repeat([], n, pa.list_(pa.int64()))
        return Frame(columns, n)

    def _first_numbers(self, identity: Frame) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of the first panes of windows: a withdrawn window continues its own."""
        if self.withdrawn is None or not len(self.withdrawn):
            zeros = constant(np.int64(0), len(identity))
            return zeros, zeros
        return self.withdrawn.next_numbers(identity)

    def received(self, piece: Frame) -> Frame:
        """A pre-aggregated frame with the partial columns of this operator."""
        partials = [
            name
            for name in self.aggregates.partial_columns
            if name not in self.aggregates.known_columns
        ]
        names = [
            *KEY,
            *self.key_columns,
            "row_count",
            *hold_columns(self.spec.options.timestamp),
            *partials,
            "start",
            "end",
        ]
        return piece.select(names).with_mapping(self.aggregates.all_known(len(piece)))

    def retyped(self, frame: Frame) -> Frame:
        """The frame with empty partial aggregates where their type has changed."""
        # Where messages are kept, cells hold no partial aggregates.
        nothing = Frame(
            self.aggregates.empty(self.schema, len(frame)) if self.messages is None else {},
            len(frame),
        )
        names = [
            n
            for n in nothing.names
            if n not in frame or to_arrow(frame[n]).type != to_arrow(nothing[n]).type
        ]
        stale = [n for n in frame.names if n.startswith("p.") and n not in nothing]
        values = {}
        if self.keeps_fired_values and "emitted" in frame:
            values = {
                f"v.{n}": recast(to_arrow(frame[f"v.{n}"]), kind)
                for n, kind in self.aggregates.result_types.items()
            }
        return frame.drop(stale).with_mapping({**nothing.select(names).columns, **values})

    def migrated(self, frame: Frame) -> Frame:
        """A stored frame under the current specification: new aggregates are unknown to it."""
        if not self.is_migrated:
            return frame
        columns: dict[str, Column] = {}
        new, n = self.aggregates.unseen(frame), len(frame)
        if new and self.messages is None:
            columns.update(self.aggregates.nothing_seen(new, self.schema, n))
        columns.update({f"known.{name}": constant(np.False_, n) for name in new})
        if "expiry" in frame:
            columns["expiry"] = self.expiry(frame.ints("end"))
            if self.keeps_fired_values:
                columns.update(
                    {
                        f"v.{name}": repeat(None, n, self.aggregates.result_types[name])
                        for name in new
                    }
                )
        return frame.with_mapping(columns)

    def due(self, frame: Frame, state: dict[str, np.ndarray]) -> Frame:
        """The cells with their trigger state, and when they have to be settled next."""
        trigger_context = self.trigger_context(frame, frame.ints("pending"))
        closed = frame.ints("closed")
        expiry = frame.ints("expiry")
        # Every window is settled when it completes, whatever its trigger waits for.
        end = np.where(frame.ints("end") > self.watermarks.of_cells(frame), frame.ints("end"), MAX)
        watermark = np.where(
            closed,
            MAX if self.retains else expiry,
            np.minimum(np.minimum(self.machine.watermark_due(state, trigger_context), end), expiry),
        )
        clock = np.where(closed, MAX, self.machine.clock_due(state, trigger_context))
        return frame.with_mapping(
            {
                **squeezed_all({**state, "clock_due": clock.astype(np.int64)}),
                # Most cells wait for the end of their window, or have fired and wait to expire.
                "watermark_due": shared(
                    squeezed(watermark.astype(np.int64, copy=False)), frame.ints("end"), expiry
                ),
            }
        )

    def position_of(self, messages: Frame) -> np.ndarray:
        """The positions of messages on the axis of the window."""
        return messages.ints("time" if self.spec.window.axis.is_time else "offset")

    def rows_of(self, delivery: Delivery, index: np.ndarray | None = None) -> Rows:
        """The rows of a delivery, or some of them, as accumulations take them."""
        if index is None or (len(index) == len(delivery) and (index[1:] > index[:-1]).all()):
            return Rows(delivery.table, delivery.time, delivery.seq, delivery.weight)
        table = delivery.table.take(pa.array(index))
        weight = None if delivery.weight is None else delivery.weight[index]
        return Rows(table, delivery.time[index], delivery.seq[index], weight)


def _no_value(n: int, kind: pa.DataType) -> Column:
    """The values of panes that cells without one have: unread, see `emitted`."""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return constant(np.dtype(kind.to_pandas_dtype()).type(0), n)
    return repeat(None, n, kind)


def expired_end(watermark: int, lateness: int) -> int:
    """The latest end of windows that have expired under a watermark."""
    return MIN if watermark == MIN or lateness == MAX else int(saturating_add(watermark, -lateness))
