"""Slices: partial aggregates of incomplete windows, by slice and key.

An event belongs to exactly one slice, however many windows cover it. A window is the merge of its
slices. A slice is a run store, and nothing is read back before a window fires or runs are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tidegate.instants import MAX, MIN
from tidegate.kernel.frame import Column, Frame, concat_frames, constant, is_constant
from tidegate.kernel.groups import Groups
from tidegate.kernel.keys import KEY
from tidegate.kernel.storage.run_store import Adapt, RunStore
from tidegate.operators.aggregate.aggregate_set import AggregateSet
from tidegate.state.store import Store

Bounds = tuple[int, int]


class Slices:
    """Partial aggregates of open windows by slice and key."""

    def __init__(self, store: Store, bundle: AggregateSet, timestamp: str) -> None:
        self._store = store
        self._bundle = bundle
        self._timestamp = timestamp
        self._slices: dict[Bounds, RunStore] = {}
        self._next = 0

    @property
    def runs(self) -> int:
        return sum(piece.runs for piece in self._slices.values())

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for piece in self._slices.values())

    def bounds(self) -> list[Bounds]:
        return sorted(self._slices)

    def append(self, bounds: Bounds, frame: Frame) -> None:
        """Add partial aggregates to a slice: one row per key, sorted by key."""
        piece = self._slices.get(bounds)
        if piece is None:
            piece = self._slices[bounds] = self._slice(f"slices/{self._next:08d}")
            self._next += 1
        piece.append(frame)

    def _slice(self, prefix: str) -> RunStore:
        return RunStore(self._store, prefix, KEY, merge=self.merge)

    def sizes(self, bounds: Bounds) -> list[int]:
        """The number of rows in each run of a slice; no run is read."""
        return self._slices[bounds].sizes()

    def frames(self, bounds: Bounds) -> list[Frame]:
        return list(self._slices[bounds].frames())

    def merged(self, bounds: Sequence[Bounds]) -> Frame:
        """The merge of some slices: one row per key, sorted by key."""
        return self.merge([frame for piece in bounds for frame in self.frames(piece)])

    def merge(self, frames: Sequence[Frame]) -> Frame:
        """One row per key from frames that are sorted by key."""
        if len(frames) == 1:
            return frames[0]
        whole = concat_frames(frames)
        order, starts = _by_key(whole.ints("key_hash"), whole.ints("key_check"))
        groups = Groups(np.empty(len(whole), np.int64), int(np.count_nonzero(starts)))
        groups.ids[order] = np.cumsum(starts) - 1
        keys = whole.select([n for n in whole.names if n in KEY or n.startswith("k.")])
        columns: dict[str, Column] = dict(keys.take(order[starts]).columns)
        columns.update(merged_contents(self._bundle, whole, groups, self._timestamp))
        return Frame(columns, groups.n)

    def retype(self, bundle: AggregateSet, retyped: Callable[[Frame], Frame]) -> None:
        """Convert all runs to the types of another set of aggregates."""
        self._bundle = bundle
        for piece in self._slices.values():
            piece.transform(retyped)

    def drop(self, bounds: Bounds) -> None:
        self._slices.pop(bounds).clear()

    def save(self) -> Any:
        return {
            "next": self._next,
            "slices": [
                [list(bounds), piece.prefix, piece.save()]
                for bounds, piece in sorted(self._slices.items(), key=lambda item: item[0])
            ],
        }

    def release(self) -> None:
        for piece in self._slices.values():
            piece.release()

    def restore(self, document: Any, adapt: Adapt | None = None) -> None:
        self._next = document["next"]
        for (start, end), prefix, manifest in document["slices"]:
            piece = self._slices[(start, end)] = self._slice(prefix)
            piece.restore(manifest, adapt)


def held_by(timestamp: str, x: np.ndarray, good: np.ndarray, groups: Groups) -> dict[str, Column]:
    """The on-time columns of each group.

    They are `has_on_time`, `has_hold` and `hold_time`: whether any row was on time, and the
    earliest or latest position of such rows where the output time depends on it.
    """
    late = np.flatnonzero(~good)
    # Late rows are few, so that they are counted instead of those on time.
    has_on_time = constant(np.True_, groups.n)
    if len(late):
        has_on_time = groups.counts > np.bincount(groups.ids[late], minlength=groups.n)
    if timestamp == "end_of_window":
        return {
            "has_on_time": has_on_time,
            "has_hold": constant(np.True_, groups.n),
            "hold_time": constant(np.int64(0), groups.n),
        }
    best = (
        groups.min(np.where(good, x, MAX))
        if timestamp == "earliest"
        else groups.max(np.where(good, x, -MAX))
    )
    return {"has_on_time": has_on_time, "has_hold": has_on_time, "hold_time": best}


def merged_contents(
    bundle: AggregateSet, frame: Frame, groups: Groups, timestamp: str
) -> dict[str, Column]:
    """The partial aggregates and counts of each group."""
    return {**merged_counts(frame, groups, timestamp), **bundle.combine(frame, groups)}


def merged_counts(frame: Frame, groups: Groups, timestamp: str) -> dict[str, Column]:
    """The row counts and on-time columns of each group."""
    columns: dict[str, Column] = {
        "row_count": groups.sum(frame.ints("row_count")),
        "hold_time": merged_hold(frame, groups, timestamp),
    }
    for name in ("has_on_time", "has_hold"):
        column = frame.ints(name)
        columns[name] = constant(column[0], groups.n) if is_constant(column) else groups.any(column)
    return columns


def merged_hold(frame: Frame, groups: Groups, timestamp: str) -> np.ndarray:
    """The earliest or latest hold time of the on-time rows of each group."""
    hold, has_on_time = frame.ints("hold_time"), frame.ints("has_on_time")
    if is_constant(hold):
        return constant(hold[0], groups.n)
    if timestamp == "latest":
        return groups.max(np.where(has_on_time, hold, MIN))
    return groups.min(np.where(has_on_time, hold, MAX))


def _by_key(key_hash: np.ndarray, key_check: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The order that sorts rows by key, and where a new key begins; cheap for sorted runs."""
    order = np.argsort(key_hash, kind="stable")
    key_hashes = key_hash[order]
    starts = np.ones(len(order), bool)
    np.not_equal(key_hashes[1:], key_hashes[:-1], out=starts[1:])
    if not is_constant(key_check):
        key_checks = key_check[order]
        if (~starts[1:] & (key_checks[1:] != key_checks[:-1])).any():
            order = np.lexsort((key_check, key_hash))
            key_hashes, key_checks = key_hash[order], key_check[order]
            starts[1:] = (key_hashes[1:] != key_hashes[:-1]) | (key_checks[1:] != key_checks[:-1])
    return order, starts
