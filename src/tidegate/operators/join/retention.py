"""Retention of a join: pushes out the oldest rows beyond the messages of a key or the bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tidegate.instants import MAX, MIN, saturating_add
from tidegate.kernel.frame import Frame, concat_frames
from tidegate.kernel.groups import Groups
from tidegate.kernel.joins.join_buffer import Query
from tidegate.kernel.joins.range_matching import ordered
from tidegate.kernel.storage.run_store import Places
from tidegate.operators.join.collector import JoinCollector
from tidegate.operators.join.matching import JoinMatching
from tidegate.operators.join.side import Taken
from tidegate.operators.output import class_names
from tidegate.spec.join import LEFT, RIGHT


@dataclass(eq=False)
class JoinRetention:
    """Refuses rows older than retention when they arrive, and enforces it after a micro-batch."""

    matching: JoinMatching
    _keys: dict[int, list[Frame]] = field(default_factory=lambda: {LEFT: [], RIGHT: []})
    """The keys of the rows of the current micro-batch, by side."""

    def admitted(self, side: int, rows: Taken, out: JoinCollector) -> Taken:
        """The rows that retention keeps; a row older than all that its key may have is late."""
        limit = self.matching.spec.retention.messages
        if limit is None or not len(rows):
            return rows
        frame, compared = rows.frame, self.matching.compared
        keys = Groups.by([frame.ints(name) for name in ("equal_hash", *compared)])
        self._keys[side].append(frame.select(["equal_hash", *compared]).take(keys.firsts))
        found = self._of_keys(
            side, frame, saturating_add(frame.ints("position"), 1), np.full(len(frame), MAX)
        )
        full = np.bincount(found[0], minlength=len(frame)) >= limit
        if rows.weight is not None:
            # A retraction makes room.
            full &= rows.weight > 0
        if not full.any():
            return rows
        gone = rows.take(np.flatnonzero(full))
        own = self.matching.sides[side]
        own.late_output(out).late_table(
            self.matching.table(side, gone.frame), "out_of_retention", class_names(gone.classes)
        )
        return rows.take(np.flatnonzero(~full))

    def _of_keys(
        self, side: int, asking: Frame, low: np.ndarray, high: np.ndarray
    ) -> tuple[np.ndarray, Places]:
        """The rows of some keys with a position in a range: the key, and the place."""
        found = self.matching.sides[side].buffer.probe(
            Query(ordered(asking.ints("equal_hash"), low), low, high)
        )
        rows = self.matching.stored(side, found, self.matching.compared)
        keep = np.ones(len(found.row), bool)
        for name in self.matching.compared:
            keep &= rows.ints(name) == asking.ints(name)[found.row]
        return found.row[keep], Places(np.asarray(found.run)[keep], found.at[keep])

    def enforce(self, out: JoinCollector) -> None:
        """Push out rows at the end of a micro-batch, after matching."""
        retention = self.matching.spec.retention
        if retention.messages is not None:
            for side in (LEFT, RIGHT):
                self._enforce_messages(side, retention.messages, out)
        if retention.bytes is not None:
            self._enforce_bytes(retention.bytes, out)

    def _enforce_messages(self, side: int, limit: int, out: JoinCollector) -> None:
        frames, self._keys[side] = self._keys[side], []
        if not frames:
            return
        whole = concat_frames(frames)
        keys = whole.take(
            Groups.by([whole.ints(name) for name in ("equal_hash", *self.matching.compared)]).firsts
        )
        nothing = np.zeros(len(keys), np.int64)
        key, places = self._of_keys(side, keys, nothing + MIN, nothing + MAX)
        if not len(key):
            return
        rows = self.matching.stored(side, places, ["position", "seq"])
        newest = np.lexsort((-rows.ints("seq"), -rows.ints("position"), key))
        begins = np.concatenate([[True], np.diff(key[newest]) != 0])
        rank = np.arange(len(key)) - np.maximum.accumulate(np.where(begins, np.arange(len(key)), 0))
        over = newest[rank >= limit]
        self.matching.push_rows(side, places.take(np.sort(over)), out)

    def _enforce_bytes(self, limit: int, out: JoinCollector) -> None:
        """Push out the oldest rows of both sides until they take no more than the limit."""
        sides = self.matching.sides
        held = sum(side.buffer.held_bytes for side in sides)
        count = sum(len(side.buffer) for side in sides)
        if held <= limit or not count:
            return
        gone = min(count, -(-(held - limit) * count // held))
        places = {side.number: side.buffer.places() for side in sides}
        at = {
            side: self.matching.stored(side, found, ["position"]).ints("position")
            for side, found in places.items()
        }
        every = np.concatenate([at[LEFT], at[RIGHT]])
        chosen = np.argsort(every, kind="stable")[:gone]
        bounds: Mapping[int, np.ndarray] = {
            LEFT: chosen[chosen < len(at[LEFT])],
            RIGHT: chosen[chosen >= len(at[LEFT])] - len(at[LEFT]),
        }
        for side, index in bounds.items():
            if len(index):
                own = sides[side]
                if own.is_timed:
                    own.pushed = max(own.pushed, int(at[side][index].max()))
                self.matching.push_rows(side, places[side].take(np.sort(index)), out)
                own.buffer.compact()
