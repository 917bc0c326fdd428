"""Slices hold what came for windows that are not complete yet, as short lists of immutable runs;
nothing is read back before a window fires.

An event lands in exactly one slice, whatever the number of windows over it. A window is the merge
of its slices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tidegate.instants import MAX, MIN
from tidegate.kernel.frame import Column, Frame, concat_frames, constant, is_constant
from tidegate.kernel.groups import Groups
from tidegate.kernel.storage.run_store import Adapt, StoredFrame
from tidegate.operators.aggregate.aggregate_set import AggregateSet
from tidegate.state.store import Store

Bounds = tuple[int, int]
_FAN = 8
_SMALL = 4
"""The largest size class that is merged in any case: about thirty thousand rows."""
_WORTH_IT = 0.75


@dataclass(slots=True, eq=False)
class _Slice:
    runs: list[StoredFrame] = field(default_factory=list)
    is_wide: bool = False
    """Whether the last merge was not worth it."""


class Slices:
    """Partial aggregates of open windows by slice and key."""

    def __init__(self, store: Store, bundle: AggregateSet, timestamp: str) -> None:
        self._store = store
        self._bundle = bundle
        self._timestamp = timestamp
        self._slices: dict[Bounds, _Slice] = {}
        self._next = 0

    @property
    def runs(self) -> int:
        return sum(len(s.runs) for s in self._slices.values())

    @property
    def nbytes(self) -> int:
        return sum(run.nbytes for s in self._slices.values() for run in s.runs)

    def bounds(self) -> list[Bounds]:
        return sorted(self._slices)

    def append(self, bounds: Bounds, frame: Frame) -> None:
        """Add a run of partial aggregates, one row a key, sorted by key."""
        piece = self._slices.setdefault(bounds, _Slice())
        piece.runs.append(self._stored(frame))
        self._compact(piece)

    def sizes(self, bounds: Bounds) -> list[int]:
        """How many rows each run of a slice has; nothing is read for it."""
        return [run.rows for run in self._slices[bounds].runs]

    def frames(self, bounds: Bounds) -> list[Frame]:
        return [run.frame(self._store) for run in self._slices[bounds].runs]

    def merged(self, bounds: Sequence[Bounds]) -> Frame:
        """The merge of some slices, one row a key, sorted by key."""
        return self.merge([frame for piece in bounds for frame in self.frames(piece)])

    def merge(self, frames: Sequence[Frame]) -> Frame:
        """One row a key from frames that are sorted by key."""
        if len(frames) == 1:
            return frames[0]
        whole = concat_frames(frames)
        order, starts = _by_key(whole.ints("key_hash"), whole.ints("key_check"))
        groups = Groups(np.empty(len(whole), np.int64), int(np.count_nonzero(starts)))
        groups.ids[order] = np.cumsum(starts) - 1
        first = order[starts]
        columns: dict[str, Column] = dict(
            whole.select(
                [n for n in whole.names if n in ("key_hash", "key_check") or n.startswith("k.")]
            )
            .take(first)
            .columns
        )
        columns.update(merged_contents(self._bundle, whole, groups, self._timestamp))
        return Frame(columns, groups.n)

    def retype(self, bundle: AggregateSet, retyped: Callable[[Frame], Frame]) -> None:
        """Bring all runs to the types of another bundle."""
        self._bundle = bundle
        for piece in self._slices.values():
            frames = [retyped(run.frame(self._store)) for run in piece.runs]
            for run in piece.runs:
                run.delete(self._store)
            piece.runs = [self._stored(frame) for frame in frames]

    def drop(self, bounds: Bounds) -> None:
        for run in self._slices.pop(bounds).runs:
            run.delete(self._store)

    def _stored(self, frame: Frame) -> StoredFrame:
        self._next += 1
        return StoredFrame.new(f"slices/{self._next:08d}", frame)

    def _compact(self, piece: _Slice) -> None:
        """Merge runs of about one size when there are enough of them, so that each row is moved a
        few times at most.

        Small runs are always merged, because many of them are slow to read. Large ones are merged
        as long as that makes them smaller: where nearly every row has a key of its own, it does
        not.
        """
        while len(piece.runs) >= _FAN:
            tail = piece.runs[-_FAN:]
            size = _size_class(tail[-1].rows)
            if _size_class(tail[0].rows) > size or (size > _SMALL and piece.is_wide):
                return
            before = sum(run.rows for run in tail)
            merged = self.merge([run.frame(self._store) for run in tail])
            for run in tail:
                run.delete(self._store)
            piece.runs[-_FAN:] = [self._stored(merged)]
            piece.is_wide = len(merged) > _WORTH_IT * before

    def save(self) -> Any:
        for piece in self._slices.values():
            for run in piece.runs:
                run.save(self._store)
        entries = [
            [list(bounds), piece.is_wide, [run.manifest() for run in piece.runs]]
            for bounds, piece in sorted(self._slices.items())
        ]
        return {"next": self._next, "slices": entries}

    def release(self) -> None:
        for piece in self._slices.values():
            for run in piece.runs:
                run.release()

    def restore(self, document: Any, adapt: Adapt | None = None) -> None:
        self._next = document["next"]
        for (start, end), is_wide, runs in document["slices"]:
            self._slices[(start, end)] = _Slice(
                [StoredFrame.from_manifest(run, adapt) for run in runs], is_wide
            )


def held_by(timestamp: str, x: np.ndarray, good: np.ndarray, groups: Groups) -> dict[str, Column]:
    """Whether something of a group is good, which is on time, and the earliest or latest of that
    where panes are told the time by it.
    """
    late = np.flatnonzero(~good)
    # Few rows are late, so they are counted and not those that are on time.
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
    """What the partial aggregates of each group are together."""
    return {**merged_counts(frame, groups, timestamp), **bundle.combine(frame, groups)}


def merged_counts(frame: Frame, groups: Groups, timestamp: str) -> dict[str, Column]:
    """How many rows each group is of, and what of them came on time."""
    columns: dict[str, Column] = {
        "row_count": groups.sum(frame.ints("row_count")),
        "hold_time": merged_hold(frame, groups, timestamp),
    }
    for name in ("has_on_time", "has_hold"):
        column = frame.ints(name)
        columns[name] = constant(column[0], groups.n) if is_constant(column) else groups.any(column)
    return columns


def merged_hold(frame: Frame, groups: Groups, timestamp: str) -> np.ndarray:
    """The earliest or latest of what came on time in the rows of each group."""
    hold, has_on_time = frame.ints("hold_time"), frame.ints("has_on_time")
    if is_constant(hold):
        return constant(hold[0], groups.n)
    if timestamp == "latest":
        return groups.max(np.where(has_on_time, hold, MIN))
    return groups.min(np.where(has_on_time, hold, MAX))


def _size_class(rows: int) -> int:
    """Sizes a factor of eight apart are different classes."""
    return (rows.bit_length() + 2) // 3 - 1


def _by_key(key_hash: np.ndarray, key_check: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The order that brings equal keys together, and where a new key begins in it; runs that are
    sorted already make this cheap.
    """
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
