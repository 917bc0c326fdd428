"""Windows by difference: each event is in the windows of its neighbours.

Every event opens the window that ends with it and the window that begins after it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pyarrow as pa

from tidegate.instants import saturating_add
from tidegate.kernel.frame import Frame
from tidegate.kernel.groups import Groups
from tidegate.kernel.storage.message_store import MessageStore
from tidegate.kernel.storage.run_store import Places
from tidegate.kernel.windows.assigners import Assigned, ByDifferenceAssigner
from tidegate.operators.aggregate.cell_update import CellUpdate
from tidegate.operators.aggregate.cell_values import payload
from tidegate.operators.aggregate.collector import Collector
from tidegate.operators.aggregate.context import IDENTITY
from tidegate.operators.aggregate.element_steps import Pace
from tidegate.operators.ingest.delivery import Delivery
from tidegate.spec.windows import ByDifference


class DifferenceUpdate(CellUpdate):
    """Rows into windows by difference.

    A new window holds older messages too, so messages are kept.
    """

    _older_rows = 0
    """How many rows of the current step are older messages."""

    def absorb(
        self, delivery: Delivery, assigned: Assigned, out: Collector, pace: Pace
    ) -> Assigned:
        """Take all rows; `assigned` lists the windows that the rows open.

        Which windows the rows are in depends on the other rows of their keys.
        """
        older = self._older(delivery)
        both, n = _with_older(delivery, older, self.context.position_of(older)), len(older)
        self._older_rows = n
        members = cast("ByDifferenceAssigner", self.assigner).members(
            Groups.by([both.key_hash, both.key_check]).ids, both.position
        )
        fresh = members.row >= n
        opened = Assigned(assigned.row + n, assigned.start, assigned.end)
        windows = _identities(both, members, opened)
        groups = Groups.by([windows.ints(name) for name in IDENTITY])
        of_member = groups.ids[: len(members.row)]
        touched = np.zeros(groups.n, bool)
        touched[of_member[fresh]] = True
        touched[groups.ids[len(members.row) :]] = True
        places = self.context.cells.find(windows.take(groups.firsts))
        over = self._is_over(both, members)
        refused = self._refused(
            members.row, fresh & ~over & ~self._closed(places)[of_member], n, len(delivery)
        )
        if refused.any():
            # A row that no window takes does not open one.
            entries = fresh & refused[np.maximum(members.row - n, 0)]
            super().absorb(
                both,
                Assigned(members.row[entries], members.start[entries], members.end[entries]),
                out,
                Pace.of(both, by_element=False),
            )
            self._absorb_rest(delivery, assigned, ~refused, out, pace)
            return _none_of(assigned)
        exists = places.found[of_member]
        # A stored window has counted its older messages; a new one counts them now, unless it has
        # expired.
        counts = fresh | (touched[of_member] & ~exists & ~over)
        super().absorb(
            both,
            Assigned(members.row[counts], members.start[counts], members.end[counts]),
            out,
            Pace.of(both, by_element=False),
        )
        return _none_of(assigned)

    def _is_over(self, both: Delivery, members: Assigned) -> np.ndarray:
        """Which windows have expired or were evicted."""
        over = self.context.expired(
            self.context.expiry(members.end), self.context.watermarks.of_rows(both, members.row)
        )
        gone = self.retention.beyond(both, members)
        return over if gone is None else over | gone

    def _closed(self, places: Places) -> np.ndarray:
        """Which windows a finished trigger has closed."""
        closed = np.zeros(len(places.run), bool)
        found = np.flatnonzero(places.found)
        if len(found):
            closed[found] = self.context.cells.take(places.take(found)).ints("closed")
        return closed

    @staticmethod
    def _refused(row: np.ndarray, takes: np.ndarray, older: int, rows: int) -> np.ndarray:
        """Which new rows no window takes."""
        refused = np.ones(rows, bool)
        refused[row[takes] - older] = False
        return refused

    def _absorb_rest(
        self,
        delivery: Delivery,
        assigned: Assigned,
        keep: np.ndarray,
        out: Collector,
        pace: Pace,
    ) -> None:
        if keep.any():
            mine = keep[assigned.row]
            number = np.cumsum(keep) - 1
            self.absorb(
                delivery.where(keep),
                Assigned(number[assigned.row[mine]], assigned.start[mine], assigned.end[mine]),
                out,
                pace,
            )

    def is_new(self, rows: np.ndarray) -> np.ndarray:
        return rows >= self._older_rows

    def _older(self, delivery: Delivery) -> Frame:
        """The stored messages that share a window with the rows."""
        size = cast("ByDifference", self.context.spec.window).size
        x = delivery.position
        low, high = (
            int(saturating_add(int(x.min()), -size)),
            int(saturating_add(int(x.max()), size + 1)),
        )
        found = cast("MessageStore", self.context.messages).window(
            low, high, key_hashes=delivery.key_hash
        )
        if self.context.watermarks.keys is None or not len(found):
            return found
        # The store purges by the watermark of all keys, later than that of the key allows.
        taken = saturating_add(
            np.asarray(self.context.watermarks.of_cells(found)), -self.context.event_lateness
        )
        return found.where(self.context.position_of(found) >= saturating_add(taken, -size))


def _none_of(assigned: Assigned) -> Assigned:
    return Assigned(*(column[:0] for column in assigned))


def _with_older(delivery: Delivery, older: Frame, x: np.ndarray) -> Delivery:
    """The delivery with older messages before its rows."""
    if not len(older):
        return delivery
    added = replace(
        delivery,
        table=payload(older).cast(delivery.table.schema),
        time=older.ints("event_time"),
        identities=delivery.identities.known(older.ints("key_hash"), older.ints("key_check")),
        seq=older.ints("arrival"),
        offset=older.ints("offset"),
        partition=np.zeros(len(older), np.int64),
        verdict=older.ints("verdict"),
        weight=None if delivery.weight is None else np.ones(len(older), np.int64),
        window_position=x,
    )
    names = ("time", "seq", "offset", "partition", "verdict", "window_position")
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(added, name), getattr(delivery, name)]) for name in names
    }
    identities = delivery.identities.known(
        *(
            np.concatenate(both)
            for both in zip(added.identities.all, delivery.identities.all, strict=True)
        )
    )
    weight = (
        None
        if added.weight is None or delivery.weight is None
        else np.concatenate([added.weight, delivery.weight])
    )
    return replace(
        delivery,
        table=pa.concat_tables([added.table, delivery.table]),
        identities=identities,
        weight=weight,
        **columns,
    )


def _identities(delivery: Delivery, *assigned: Assigned) -> Frame:
    """The windows of each entry with the key of its row."""
    row, start, end = (np.concatenate(columns) for columns in zip(*assigned, strict=True))
    return Frame.of(
        {
            "key_hash": delivery.key_hash[row],
            "key_check": delivery.key_check[row],
            "start": start,
            "end": end,
        },
        len(row),
    )
