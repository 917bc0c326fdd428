"""Watermark advance: windows complete, fire and expire as the watermark rises.

State that no window and no event can need any more is purged in the same step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidegate.instants import MAX, MIN, saturating_add
from tidegate.kernel.events.duplicates import SeenIds
from tidegate.kernel.frame import Frame
from tidegate.kernel.groups import lexicographic_order
from tidegate.kernel.keys import KEY
from tidegate.kernel.storage.run_store import Places
from tidegate.operators.aggregate.cell_values import CellValues
from tidegate.operators.aggregate.collector import Collector
from tidegate.operators.aggregate.context import OperatorContext
from tidegate.operators.aggregate.firing import SILENT, Firing
from tidegate.operators.aggregate.message_recovery import MessageRecovery
from tidegate.operators.aggregate.requirements import message_reach
from tidegate.operators.aggregate.retention import RetentionBounds
from tidegate.operators.aggregate.slice_buffer import SliceBuffer
from tidegate.operators.aggregate.static_windows import StaticWindows
from tidegate.spec.windows import Axis, Session


@dataclass(eq=False)
class WatermarkAdvance:
    """Moves the watermark of one operator."""

    context: OperatorContext
    cell_values: CellValues
    firing: Firing
    retention: RetentionBounds
    slice_buffer: SliceBuffer | None
    static_windows: StaticWindows | None
    ids: SeenIds
    recovery: MessageRecovery | None
    _unneeded: int = 0
    """An upper bound of the messages that lie before all windows of their keys."""

    def move(
        self,
        watermark: int,
        out: Collector,
        *,
        finishing: bool = False,
        risen: Frame | None = None,
    ) -> None:
        """Move the watermark, and fire what is due; `risen` holds the keys whose own rose."""
        context = self.context
        if watermark <= context.progress.watermark and not finishing:
            if risen is not None:
                self.settle(self._due_by_key(risen), out)
            return
        context.progress.watermark = watermark
        if self.static_windows is not None:
            self.static_windows.open_until(watermark, self.slice_buffer)
        if self.slice_buffer is not None:
            for cells in self.slice_buffer.complete(watermark):
                state = context.trigger_state(cells)
                context.cells.put(self.firing.settle(cells, state, out, finishing=finishing))
        due = context.cells.select("start" if finishing else "watermark_due", watermark)
        if risen is not None:
            due = due.and_also(self._due_by_key(risen))
        self.settle(due, out, finishing=finishing)
        self._purge()

    def settle(self, places: Places, out: Collector, *, finishing: bool = False) -> None:
        """Fire and close the cells at these places as far as they are due."""
        context = self.context
        if not len(places.run):
            return
        left = places if finishing else self._without_silent(places)
        if not len(left.run):
            context.cells.remove(places)
            return
        bounds = context.cells.take(left, ("start", "end"))
        if (bounds.ints("end") != bounds.ints("end")[0]).any():
            left = left.take(lexicographic_order([bounds.ints("end"), bounds.ints("start")]))
        cells = context.cells.take(left)
        context.cells.remove(places)
        if finishing and context.spec.window.axis is Axis.ORDINAL:
            # There are no further messages of any key.
            cells = cells.with_columns(ordinal=np.full(len(cells), MAX))
        expired = None
        if self._purges_by_key or (
            context.watermarks.keys is not None and context.messages is not None
        ):
            watermark = context.watermarks.of_cells(cells)
            expired = cells.where(context.expired(cells.ints("expiry"), watermark))
        state = context.trigger_state(cells)
        context.cells.put(self.firing.settle(cells, state, out, finishing=finishing))
        if expired is None or not len(expired):
            return
        if self._purges_by_key:
            self.cell_values.trim(expired.ints("key_hash"), expired.ints("key_check"))
        else:
            self._unneeded += int(expired.ints("row_count").sum())
            self._purge_keys_ahead()

    def _without_silent(self, places: Places) -> Places:
        """The places without those of cells that expire without a pane, which are counted.

        Most columns of these cells are never read.
        """
        context = self.context
        if not self.firing.can_expire_silently:
            return places
        cells = context.cells.take(places, SILENT)
        silent = context.expired(cells.ints("expiry"), context.progress.watermark)
        silent = silent & ~self.firing.has_pane_left(cells)
        context.progress.counters["windows_closed"] += int(np.count_nonzero(silent))
        return places.take(~silent) if silent.any() else places

    def _due_by_key(self, risen: Frame) -> Places:
        """The cells that are due by the watermark of their key, and not by that of all keys."""
        context = self.context
        places = context.cells.ranges(risen, KEY)
        if not len(places.run):
            return places
        found = context.cells.take(places, (*KEY, "watermark_due"))
        due = found.ints("watermark_due")
        return places.take(
            (due <= context.watermarks.of_cells(found)) & (due > context.progress.watermark)
        )

    def _purge(self) -> None:
        """Purge the ids, messages, offsets and retention bounds that cannot matter any more."""
        context, watermark = self.context, self.context.progress.watermark
        lateness = context.event_lateness
        is_unlimited = lateness == MAX and watermark != MAX
        bound = (
            MIN
            if is_unlimited
            else int(saturating_add(watermark, -lateness if lateness != MAX else 0))
        )
        first = done = self._first_needed(bound)
        if is_unlimited and context.retains:
            # Messages of any age are accepted, but none is for a window that was evicted.
            bound = done = min(self._oldest_start(), watermark)
        if bound != MIN and context.spec.window.axis is Axis.EVENT_TIME:
            self.ids.forget(bound)
        elif watermark == MAX:
            self.ids.forget(MAX)
        self.retention.forget(watermark)
        if context.withdrawn is not None:
            context.withdrawn.forget(watermark)
        if context.messages is not None:
            context.messages.expire(first)
            self._purge_without_windows()
        if self.recovery is not None:
            self.recovery.forget(done)
        if context.window_offsets is not None and bound != MIN:
            context.window_offsets.forget_before(min(bound, self._oldest_start()))

    def _first_needed(self, bound: int) -> int:
        """The position below which no message can matter.

        That is the start of the oldest window, or how far the oldest event that may still come
        reaches back, where that is known.
        """
        reach = message_reach(self.context.spec)
        if bound == MIN:
            return MIN
        oldest = self.context.cells.least("start", MAX)
        if bound == MAX:
            return oldest
        if reach is None:
            return MIN
        return min(oldest, int(saturating_add(bound, -reach)))

    def _oldest_start(self) -> int:
        """The start of the oldest window that is held."""
        buffered = MAX if self.slice_buffer is None else self.slice_buffer.oldest_start()
        return min(self.context.cells.least("start", MAX), buffered)

    @property
    def _purges_by_key(self) -> bool:
        """Whether messages are purged key by key, because no position bounds their use."""
        return (
            self.context.messages is not None
            and isinstance(self.context.spec.window, Session)
            and message_reach(self.context.spec) is None
        )

    def _purge_without_windows(self) -> None:
        """Purge all messages when no window is left, where no position bounds their use."""
        messages = self.context.messages
        if (
            messages is not None
            and messages.count
            and message_reach(self.context.spec) is None
            and not len(self.context.cells)
        ):
            messages.remove(messages.read(MIN, MAX))

    def _purge_keys_ahead(self) -> None:
        """Purge the messages of keys that are ahead of the watermark of all keys.

        This reads all messages, so it waits until half of them may be unneeded.
        """
        context = self.context
        if context.messages is None or 2 * self._unneeded < context.messages.count:
            return
        self._unneeded = 0
        held = context.messages.read(MIN, MAX)
        if len(held):
            bound = saturating_add(
                np.asarray(context.watermarks.of_cells(held)), -context.event_lateness
            )
            self.cell_values.trim(held.ints("key_hash"), held.ints("key_check"), bound)
