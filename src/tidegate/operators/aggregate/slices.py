"""Slices: partial aggregates of incomplete windows, by slice and key.

An event belongs to exactly one slice, however many windows cover it. A window is the merge of its
slices. A slice is a run store, and nothing is read back before a window fires or runs are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tidegate.kernel.frame import Column, Frame, concat_frames, is_constant
from tidegate.kernel.groups import Groups
from tidegate.kernel.keys import KEY, KeyHasher
from tidegate.kernel.storage.run_store import Adapt, RunStore
from tidegate.operators.aggregate.aggregate_set import AggregateSet
from tidegate.operators.aggregate.output_time import merged_holds
from tidegate.spec.operator import Timestamp
from tidegate.state.store import Store

Bounds = tuple[int, int]


class Slices:
    """Partial aggregates of open windows by slice and key."""

    def __init__(
        self, store: Store, bundle: AggregateSet, timestamp: Timestamp, hasher: KeyHasher
    ) -> None:
        self._store, self._hasher = store, hasher
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
        return RunStore(self._store, prefix, KEY, merge=self.merge, hasher=self._hasher)

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
        names = [n for n in whole.names if n in KEY or n.startswith("k.")]
        if _have_same_keys(frames):
            # Long windows have nearly all keys, and so do their parts.
            n = len(frames[0])
            groups, keys = Groups(np.tile(np.arange(n), len(frames)), n), frames[0].select(names)
        else:
            order, starts = _by_key(whole.ints("key_hash"), whole.ints("key_check"))
            groups = Groups(np.empty(len(whole), np.int64), int(np.count_nonzero(starts)))
            groups.ids[order] = np.cumsum(starts) - 1
            keys = whole.select(names).take(order[starts])
        columns: dict[str, Column] = dict(keys.columns)
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


def merged_contents(
    bundle: AggregateSet, frame: Frame, groups: Groups, timestamp: Timestamp
) -> dict[str, Column]:
    """The partial aggregates and counts of each group."""
    return {**merged_counts(frame, groups, timestamp), **bundle.combine(frame, groups)}


def merged_counts(frame: Frame, groups: Groups, timestamp: Timestamp) -> dict[str, Column]:
    """The row counts and hold columns of each group."""
    return {
        "row_count": groups.sum(frame.ints("row_count")),
        **merged_holds(frame, groups, timestamp),
    }


def _have_same_keys(frames: Sequence[Frame]) -> bool:
    first = frames[0]
    return all(
        len(frame) == len(first)
        and all(np.array_equal(frame.ints(name), first.ints(name)) for name in KEY)
        for frame in frames[1:]
    )


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
