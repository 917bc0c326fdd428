"""Values of cells: from their partial aggregates, or from the messages where these are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import pyarrow as pa

from tidegate.errors import StateError
from tidegate.instants import MAX, MIN, saturating_add
from tidegate.kernel.accumulations import lists
from tidegate.kernel.accumulations.protocol import Rows
from tidegate.kernel.frame import Column, Frame, concat_frames, constant, search_sorted, to_arrow
from tidegate.kernel.groups import Groups, expand_ranges, lexicographic_order
from tidegate.kernel.keys import FIXED, KEY
from tidegate.kernel.storage.message_store import MessageStore
from tidegate.kernel.windows.evictors import kept
from tidegate.operators.aggregate.collector import Collector
from tidegate.operators.aggregate.context import OperatorContext
from tidegate.operators.ingest.delivery import Delivery
from tidegate.spec.windows import Axis, ByDifference, Session

PAYLOAD = "m."
"""Prefix of the input columns in the message store."""
_VOLATILE = frozenset(
    PAYLOAD + name for name in ("op", "is_last", "watermark", "emitted_at", "pane_id")
)
"""Pane columns in which a retraction may differ from the pane that it retracts."""
_SAME = frozenset({"key_hash", "key_check", "w_start", "w_end"})
"""Further columns in which a retraction equals the message that it retracts."""


@dataclass(frozen=True, slots=True, eq=False)
class _Members:
    """Which messages are in which cell, by cell and then by arrival."""

    messages: Frame
    cell: np.ndarray

    def where(self, mask: np.ndarray) -> _Members:
        return _Members(self.messages.where(mask), self.cell[mask])


class CellValues:
    """The values of cells of one operator."""

    def __init__(self, context: OperatorContext) -> None:
        self._context = context
        self._stored: list[np.ndarray] = []
        self._tags = (
            context.messages is not None
            and context.retains
            and isinstance(context.spec.window, Session)
        )
        """Whether messages of closed sessions stay, tagged with the bounds of their session: other
        sessions may overlap it and must not find them.
        """
        # Merged sessions have no common arrival number that has fired, so discarding removes fired
        # messages instead.
        self._forgets = (
            context.messages is not None
            and context.spec.mode == "discarding"
            and isinstance(context.spec.window, Session)
        )

    def begin(self) -> None:
        """Begin a delivery: none of its rows is stored yet."""
        self._stored = []

    @property
    def stored(self) -> np.ndarray:
        """The arrival numbers of the rows of the current delivery that are stored."""
        return np.concatenate(self._stored) if self._stored else np.zeros(0, np.int64)

    def trim(
        self,
        key_hash: np.ndarray,
        key_check: np.ndarray,
        seen: np.ndarray | None = None,
        *,
        evicted: np.ndarray | None = None,
    ) -> None:
        """Purge the messages of keys that lie before all their windows.

        With `seen`, closed windows that no further message can reach are purged too, unless
        retention keeps them. `evicted` holds the ends of windows that retention evicts.
        """
        context = self._context
        keys = Groups.by([key_hash, key_check])
        asked = Frame.of(
            {"key_hash": key_hash[keys.firsts], "key_check": key_check[keys.firsts]}, keys.n
        )
        if seen is not None:
            asked = asked.with_columns(seen=keys.max(seen))
        if evicted is not None and context.allowed_lateness == MAX:
            # With a lateness, the watermark purges the messages of windows by difference.
            asked = asked.with_columns(evicted=keys.max(evicted))
        asked = asked.take(np.lexsort((asked.ints("key_check"), asked.ints("key_hash"))))
        places = context.cells.ranges(asked, KEY)
        first = np.full(len(asked), MAX)
        if len(places.run):
            cells = context.cells.take(places)
            owner, _ = search_sorted(asked, cells.select(KEY), KEY)
            over = np.zeros(len(cells), bool)
            if seen is not None and not context.retains:
                over = cells.ints("closed") & (cells.ints("end") <= asked.ints("seen")[owner])
                context.cells.remove(places.take(over))
            if isinstance(context.spec.window, Session) and not context.retains:
                # A closed session holds no messages, and others may have existed inside it.
                over |= cells.ints("closed")
            np.minimum.at(first, owner[~over], cells.ints("start")[~over])
        if isinstance(context.spec.window, ByDifference):
            # The next message opens a window that reaches back by its size; windows that end with
            # an evicted one or before are not opened again.
            known = [name for name in ("seen", "evicted") if name in asked]
            bound = asked.ints(known[0]) if known else np.full(len(asked), MIN)
            first = np.minimum(first, saturating_add(bound, -context.spec.window.size))
        if context.messages is not None and context.messages.count:
            held = context.messages.read(MIN, MAX, key_hashes=asked.ints("key_hash"))
            owner, _ = search_sorted(asked, held.select(KEY), KEY)
            old = context.position_of(held) < first[np.minimum(owner, len(asked) - 1)]
            if old.any():
                context.messages.remove(held, old, forget=context.retains)

    @property
    def _messages(self) -> MessageStore:
        if self._context.messages is None:
            raise StateError("the operator keeps no messages")
        return self._context.messages

    def values(self, cells: Frame, out: Collector | None = None) -> dict[str, pa.Array]:
        """The results of all aggregates; null where one has no correct result.

        Windows without a correct result are reported to `out`, if there is one.
        """
        context = self._context
        partials = cells
        if context.messages is not None:
            partials = self._from_messages(cells, out).with_mapping(
                cells.select(context.aggregates.known_columns).columns
            )
        values, failures = context.aggregates.lower(partials)
        if out is None:
            return values
        for name, (mask, reason, why) in failures.items():
            broken = cells.take(np.flatnonzero(mask))
            out.late_windows(broken, reason, pa.repeat(pa.scalar(f"{name}: {why}"), len(broken)))
        return values

    def messages_of(self, windows: Frame) -> tuple[Frame, np.ndarray]:
        """The messages of open windows of keys, and the number of the window of each."""
        members = self._members(windows.with_columns(closed=constant(False, len(windows))))
        return members.messages, members.cell

    def after(self, cells: Frame, given: np.ndarray) -> Frame:
        """The cells after a firing; an evictor may remove messages after the function."""
        evictor = self._context.spec.evictor
        if self._forgets and given.any():
            self._retire(self._members(cells.where(given)), MAX, MAX)
        if evictor is None or not evictor.after or not given.any():
            return cells
        members = self._members(cells.where(given))
        gone = members.where(~self._kept(members))
        evicted = _append_lists(
            cells["evicted"], np.flatnonzero(given)[gone.cell], gone.messages.ints("arrival")
        )
        return cells.with_columns(evicted=evicted)

    def closed(self, cells: Frame) -> None:
        """Retire the messages of closed sessions: a later session must not find them."""
        if (
            self._context.messages is not None
            and isinstance(self._context.spec.window, Session)
            and len(cells)
        ):
            members = self._members(cells)
            self._retire(
                members, cells.ints("start")[members.cell], cells.ints("end")[members.cell]
            )

    def _retire(self, members: _Members, start: np.ndarray | int, end: np.ndarray | int) -> None:
        """Remove messages of sessions, or tag them with bounds where retention keeps them."""
        found = members.messages
        if self._tags:
            bounds = {
                name: np.broadcast_to(np.int64(bound), len(found))
                for name, bound in (("w_start", start), ("w_end", end))
            }
            self._messages.replace(found.drop(("at",)), **bounds)
        else:
            self._messages.remove(found)

    def expired(self, cells: Frame) -> None:
        """Purge messages without a gap with their sessions.

        They lie on the end of their session, where a later session may begin.
        """
        window = self._context.spec.window
        if isinstance(window, Session) and window.gap_column is not None:
            self.closed(
                cells
                if window.touch == "merge"
                else cells.where(cells.ints("start") == cells.ints("end"))
            )

    def emptied(self, cells: Frame, mask: np.ndarray) -> dict[str, Column]:
        """The partial columns, empty in some cells; discarding mode."""
        context = self._context
        if context.messages is not None or not mask.any():
            return {}
        rows = np.flatnonzero(mask)
        # Panes of a window add up, so an aggregate that is unknown for one is so for the next.
        nothing = Frame(context.aggregates.empty(context.schema, len(rows)), len(rows)).drop(
            context.aggregates.known_columns
        )
        return dict(cells.select(nothing.names).replaced(rows, nothing).columns)

    def store_in_windows(self, delivery: Delivery, start: np.ndarray, end: np.ndarray) -> None:
        """Store messages with explicit windows, once per window, at the last position of it."""
        last = np.where(end == MAX, MAX - 1, end - 1)
        self._store(delivery.with_position(last), {"w_start": start, "w_end": end})

    def store(self, delivery: Delivery) -> None:
        """Store the messages of a delivery once each."""
        nothing = constant(np.int64(MIN), len(delivery))
        self._store(delivery, {"w_start": nothing, "w_end": nothing} if self._tags else {})

    def _store(self, delivery: Delivery, windows: dict[str, Column]) -> None:
        context = self._context
        if context.messages is None or not len(delivery):
            return
        self._stored.append(delivery.seq)
        tuples = not context.spec.window.axis.is_time
        order = delivery.seq if context.spec.input.offset is None else delivery.offset
        columns: dict[str, Column] = {
            "time": delivery.time if tuples else delivery.position,
            "offset": delivery.position if tuples else order,
            "key_hash": delivery.key_hash,
            "key_check": delivery.key_check,
            "arrival": delivery.seq,
            "event_time": delivery.time,
            "verdict": delivery.verdict,
        }
        columns.update(
            {
                PAYLOAD + name: to_arrow(delivery.table.column(name))
                for name in delivery.table.column_names
            }
        )
        columns.update(windows)
        if (
            context.spec.input.offset is not None
            and context.spec.window.axis is not Axis.ORDINAL
            and not context.has_explicit_windows
        ):
            columns["uid"] = message_ids(delivery)
        messages = Frame(columns, len(delivery))
        if delivery.weight is not None and (delivery.weight < 0).any():
            messages = self._netted(messages, delivery.weight)
        # Without a message it learns the columns, which later reads return.
        context.messages.add(messages)

    def _netted(self, messages: Frame, weight: np.ndarray) -> Frame:
        """The messages that stay; a retraction removes the newest equal one, stored or new."""
        position = self._context.position_of(messages)
        minus = weight < 0
        stored = self._messages.read(
            int(position.min()), int(position.max()), key_hashes=messages.ints("key_hash")[minus]
        )
        same = [name for name in messages.names if name in _SAME or _is_lasting(name)]
        both = [messages.select(same)]
        if len(stored):
            both.insert(0, stored.select(same))
        m, whole = len(stored), concat_frames(both)
        weight = np.concatenate([np.ones(m, np.int64), weight])
        groups = Groups.by(
            self._context.hasher.identify([to_arrow(whole[name]) for name in same], len(whole))
        )
        kept = weight > 0
        rank = np.zeros(len(weight), np.int64)
        rank[kept] = Groups(groups.ids[kept], groups.n).ranks
        kept &= rank < groups.sum(weight)[groups.ids]
        if not kept[:m].all():
            self._messages.remove(stored, ~kept[:m])
        return messages.where(kept[m:])

    def _from_messages(self, cells: Frame, out: Collector | None) -> Frame:
        context = self._context
        members = self._members(cells)
        if context.spec.mode == "discarding" and not self._forgets:
            members = members.where(
                members.messages.ints("arrival") > cells.ints("fired_seq")[members.cell]
            )
        if context.spec.evictor is not None and not context.spec.evictor.after:
            members = members.where(self._kept(members))
        groups = Groups(members.cell, len(cells))
        rows = Rows(
            payload(members.messages),
            members.messages.ints("event_time"),
            members.messages.ints("arrival"),
        )
        partials, failed, why = context.aggregates.lift(rows, groups)
        if failed is not None and out is not None:
            blamed = members.where(failed)
            broken = cells.take(blamed.cell)
            out.late_windows(broken, "accumulation_failed", pa.repeat(pa.scalar(why), len(broken)))
        return Frame(partials, len(cells))

    def _kept(self, members: _Members) -> np.ndarray:
        evictor = self._context.spec.evictor
        if evictor is None:
            return np.ones(len(members.cell), bool)
        groups = Groups.by([members.cell]) if len(members.cell) else Groups.single(0)
        return kept(evictor, payload(members.messages), members.messages.ints("event_time"), groups)

    def _members(self, cells: Frame) -> _Members:
        """The messages of each cell."""
        context = self._context
        upto = self._upto(cells)
        found = self._messages.window(
            int(cells.ints("start").min()), int(upto.max()), key_hashes=cells.ints("key_hash")
        )
        at = context.position_of(found)
        found = found.with_columns(at=at).take(
            lexicographic_order([found.ints("key_hash"), at, found.ints("arrival")])
        )
        low, _ = search_sorted(
            found, cells.select(["key_hash", "start"]).rename({"start": "at"}), ("key_hash", "at")
        )
        high, _ = search_sorted(
            found,
            Frame({"key_hash": cells["key_hash"], "at": upto}, len(cells)),
            ("key_hash", "at"),
        )
        if (upto == MAX).any():
            high = np.where(
                upto == MAX,
                np.searchsorted(found.ints("key_hash"), cells.ints("key_hash"), "right"),
                high,
            )
        sizes = np.maximum(high - low, 0)
        cell = np.repeat(np.arange(len(cells)), sizes)
        position = expand_ranges(low, sizes)
        members = _Members(found.take(position), cell)
        members = members.where(members.messages.ints("key_check") == cells.ints("key_check")[cell])
        if context.has_explicit_windows or self._tags:
            # Messages of open sessions have no bounds.
            is_open = ~cells.ints("closed") & self._tags
            for own, bound in (("w_start", "start"), ("w_end", "end")):
                tag = np.where(is_open, MIN, cells.ints(bound))
                members = members.where(members.messages.ints(own) == tag[members.cell])
        return self._by_arrival(_without_evicted(members, cells))

    def _upto(self, cells: Frame) -> np.ndarray:
        """The end of the positions of the messages of a cell.

        That is its end, or one more where a message without a gap may lie on it.
        """
        end, window = cells.ints("end"), self._context.spec.window
        if not isinstance(window, Session):
            return end
        on_end = np.ones(len(end), bool) if window.touch == "merge" else cells.ints("start") == end
        return np.where(on_end, saturating_add(end, 1), end)

    @staticmethod
    def _by_arrival(members: _Members) -> _Members:
        order = lexicographic_order([members.cell, members.messages.ints("arrival")])
        return _Members(members.messages.take(order), members.cell[order])


def message_ids(delivery: Delivery) -> np.ndarray:
    """A hash per message that is unique over partitions and restarts."""
    names = pa.array(delivery.partitions, pa.string()).take(pa.array(delivery.partition))
    return FIXED.identify([names, pa.array(delivery.offset)], len(delivery))[0]


def payload(messages: Frame) -> pa.Table:
    """The input columns of messages."""
    return pa.table(
        {
            name[len(PAYLOAD) :]: to_arrow(c)
            for name, c in messages.columns.items()
            if name.startswith(PAYLOAD)
        }
    )


def _is_lasting(name: str) -> bool:
    """Whether a column of messages is an input column that a retraction repeats."""
    return name.startswith(PAYLOAD) and name not in _VOLATILE


def _without_evicted(members: _Members, cells: Frame) -> _Members:
    if "evicted" not in cells:
        return members
    owner, arrivals = _parts(cells["evicted"])
    gone = Groups.by(
        [
            np.concatenate([owner, members.cell]),
            np.concatenate([arrivals, members.messages.ints("arrival")]),
        ]
    )
    evicted = np.zeros(gone.n, bool)
    evicted[gone.ids[: len(owner)]] = True
    return members.where(~evicted[gone.ids[len(owner) :]])


def _append_lists(column: Column, owner: np.ndarray, values: np.ndarray) -> pa.Array:
    """List column with values added to the lists of their owners."""
    former, items = _parts(column)
    owners, items = np.concatenate([former, owner]), np.concatenate([items, values])
    order = np.argsort(owners, kind="stable")
    return lists.build(pa.array(items[order]), owners[order], len(column))


def merge_lists(column: Column, groups: Groups) -> pa.Array:
    """The lists of each group, one after the other."""
    owner, items = _parts(column)
    of = groups.ids[owner]
    order = np.argsort(of, kind="stable")
    return lists.build(pa.array(items[order]), of[order], groups.n)


def _parts(column: Column) -> tuple[np.ndarray, np.ndarray]:
    """The values of a column of lists, and which list each is in."""
    array = cast("pa.ListArray", to_arrow(column))
    return lists.owners(array), np.asarray(array.flatten()).astype(np.int64)
