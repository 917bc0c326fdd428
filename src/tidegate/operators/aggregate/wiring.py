"""The parts of a windowed aggregate once its input's schema is known, wired together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidegate.errors import StateError
from tidegate.instants import MAX, MIN, saturating_add
from tidegate.kernel.frame import Frame
from tidegate.kernel.storage.message_store import MessageStore, choose_layout
from tidegate.kernel.storage.run_store import SortedRuns
from tidegate.kernel.triggers import Machine
from tidegate.kernel.windows.assigners import Aligned, Assigner, build
from tidegate.operators.aggregate.aggregate_set import AggregateSet
from tidegate.operators.aggregate.cell_update import CellUpdate
from tidegate.operators.aggregate.cell_values import PAYLOAD, CellValues
from tidegate.operators.aggregate.cell_watermarks import CellWatermarks
from tidegate.operators.aggregate.collector import Collector
from tidegate.operators.aggregate.context import IDENTITY, Core
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
class Parts:
    """Everything that depends on the schema."""

    core: Core
    contents: CellValues
    firing: Firing
    horizons: RetentionBounds
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
    ) -> Parts:
        bundle = AggregateSet.bound(spec, schema, retractions=retracts)
        messages = _messages(spec, store, bundle, retracts=retracts)
        cells = SortedRuns(store, "cells", IDENTITY, watch=("wm_due", "clock_due", "start", "end"))
        core = Core(
            spec,
            store,
            machine,
            schema,
            bundle,
            progress,
            cells,
            messages,
            _lateness(spec),
            watermarks,
            metadata,
        )
        contents = CellValues(core)
        firing = Firing(core, contents)
        horizons = RetentionBounds(core, firing, contents)
        assigner = build(spec.window)
        cell_update = _cell_update_kind(spec.window)(core, firing, contents, assigner, horizons)
        static = (
            StaticWindows(core, assigner)
            if isinstance(assigner, Aligned) and spec.window.create == "static"
            else None
        )
        count_panes = _count_panes(core, firing, contents, cell_update)
        return cls(
            core,
            contents,
            firing,
            horizons,
            cell_update,
            _slice_buffer(core, assigner),
            Ordinals(store),
            static,
            count_panes,
        )

    def take_partials(self, pieces: Sequence[Frame], out: Collector) -> None:
        """Take rows that were aggregated before they came here, as `PreAggregator` does it."""
        if takes_partials(self.core.spec, keeps_messages=self.core.messages is not None):
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
        core = self.core
        bundle = AggregateSet.bound(core.spec, schema, retractions=core.bundle.retractions).since(
            core.bundle.recent
        )
        core.schema, core.bundle = schema, bundle
        cells = core.cells.all()
        if cells is not None:
            core.cells.rewrite(core.retyped(cells))
        if core.messages is not None:
            core.messages.widen({PAYLOAD + field.name: field.type for field in schema})
        if self.slice_buffer is not None:
            self.slice_buffer.retype(bundle, core.retyped)

    def migrate(self, recent: Sequence[str], given_up: int) -> None:
        """Stored frames may lack the recent aggregates, and windows that ended by `given_up` have
        expired whatever the lateness is now.
        """
        core = self.core
        core.is_migrated, core.given_up = True, given_up
        core.bundle = core.bundle.since(recent)
        if self.slice_buffer is not None:
            self.slice_buffer.retype(core.bundle, core.retyped)

    def lengthen(self, lateness: int) -> None:
        """Keep windows longer from now on; those that have expired stay so."""
        core = self.core
        if lateness > core.kept_for:
            given_up = max(core.given_up, horizon(core.progress.watermark, core.kept_for))
            core.kept_for = lateness
            self.migrate(core.bundle.recent, given_up)

    def oldest_start(self) -> int:
        """The start of the oldest window that is held."""
        opened = MAX if self.slice_buffer is None else self.slice_buffer.oldest_start()
        return min(self.core.cells.least("start", MAX), opened)

    def first_needed(self, bound: int) -> int:
        """The position below which no message can matter: that of the oldest window, or of the
        oldest event that is still taken.
        """
        reach = _reach(self.core.spec)
        if bound == MIN:
            return MIN
        oldest = self.core.cells.least("start", MAX)
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
            self.core.messages is not None
            and isinstance(self.core.spec.window, Session)
            and _reach(self.core.spec) is None
        )

    def drop_orphans(self) -> None:
        """Where no position is known below which messages cannot matter, they go when there is no
        window left.
        """
        messages = self.core.messages
        if (
            messages is not None
            and messages.count
            and _reach(self.core.spec) is None
            and not len(self.core.cells)
        ):
            messages.remove(messages.read(MIN, MAX))


def horizon(watermark: int, lateness: int) -> int:
    """The end at and before which windows have expired."""
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


def needs_messages(spec: AggregateSpec, bundle: AggregateSet, *, retracts: bool) -> bool:
    """Whether panes are made from the messages themselves."""
    return (
        bundle.full_state
        or spec.evictor is not None
        or spec.options.keep_messages
        or isinstance(spec.window, ByDifference)
        or (retracts and not bundle.invertible)
    )


def _messages(
    spec: AggregateSpec, store: Store, bundle: AggregateSet, *, retracts: bool
) -> MessageStore | None:
    """The message store where the messages themselves are needed, opened as it was last flushed."""
    if not needs_messages(spec, bundle, retracts=retracts):
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
    core: Core, firing: Firing, contents: CellValues, cell_update: CellUpdate
) -> CountPanes | None:
    """CountPanes serve where windows never merge, no message has to be looked at, and elements fire
    by being counted.
    """
    rule = core.machine.count_rule()
    shared = core.spec.window.axis is not Axis.ORDINAL and core.watermarks.keys is None
    plain = (
        type(cell_update) is CellUpdate
        and core.messages is None
        and not core.spec.retention
        and shared
    )
    return (
        CountPanes(core, firing, contents, cell_update, rule)
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


def _slice_buffer(core: Core, assigner: Assigner) -> SliceBuffer | None:
    """Where windows follow from the axis and nothing looks at a cell before its window is complete,
    slices serve.
    """
    lazy = takes_partials(core.spec, keeps_messages=core.messages is not None)
    return SliceBuffer(core, assigner) if lazy and isinstance(assigner, Aligned) else None
