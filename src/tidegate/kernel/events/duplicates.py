"""Duplicates are recognised before anything else: by (partition, offset) at or below the
partition's mark, or by id while its time matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tidegate.instants import MAX
from tidegate.kernel.frame import Frame
from tidegate.kernel.groups import Groups
from tidegate.kernel.storage.run_store import SortedRuns
from tidegate.state.protocol import Store


class OffsetMarks:
    """The highest offset taken from each partition."""

    def __init__(self, marks: Mapping[str, int] | None = None) -> None:
        self.marks: dict[str, int] = dict(marks or {})

    def fresh(self, partition: np.ndarray, names: list[str], offset: np.ndarray) -> np.ndarray:
        """Which rows were not delivered before; `partition` holds indices into `names`, rows are
        sorted by (partition, offset).
        """
        floor = np.array([self.marks.get(name, -MAX - 1) for name in names], np.int64)
        first = np.ones(len(offset), bool)
        first[1:] = (offset[1:] != offset[:-1]) | (partition[1:] != partition[:-1])
        return first & (offset > floor[partition])

    def advance(self, partition: np.ndarray, names: list[str], offset: np.ndarray) -> None:
        """Remember the rows as delivered."""
        groups = Groups.by([partition])
        if groups.n:
            for code, highest in zip(
                partition[groups.firsts].tolist(), groups.max(offset).tolist(), strict=True
            ):
                self.marks[names[code]] = max(highest, self.marks.get(names[code], highest))

    def progress(self) -> int | None:
        """The lowest of the highest offsets plus one: everything below has come."""
        return min(self.marks.values()) + 1 if self.marks else None


class SeenIds:
    """The ids whose times are still within lateness."""

    def __init__(self, store: Store) -> None:
        self._seen = SortedRuns(store, "ids", ("key_hash", "key_check"), watch=("time",))

    def __len__(self) -> int:
        return len(self._seen)

    @property
    def nbytes(self) -> int:
        return self._seen.nbytes

    def fresh(self, key_hash: np.ndarray, key_check: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Which rows carry an id that was not seen; rows without an id (`known` is False) are
        always fresh.
        """
        groups = Groups.by([key_hash, key_check])
        mask = np.zeros(len(key_hash), bool)
        if groups.n:
            firsts = groups.firsts
            query = Frame.of({"key_hash": key_hash[firsts], "key_check": key_check[firsts]})
            mask[firsts[~self._seen.find(query).found]] = True
        return mask | ~known

    def remember(self, key_hash: np.ndarray, key_check: np.ndarray, time: np.ndarray) -> None:
        self._seen.put(
            Frame.of({"key_hash": key_hash, "key_check": key_check, "time": time}, len(key_hash))
        )

    def forget(self, before: int) -> None:
        """Ids whose time is below the bound cannot come back within lateness."""
        self._seen.remove(self._seen.select("time", before - 1))

    def save(self) -> list[Any]:
        return self._seen.save()

    def restore(self, manifest: list[Any]) -> None:
        self._seen.restore(manifest)

    def release(self) -> None:
        self._seen.release()
