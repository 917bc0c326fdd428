"""Partitions and duplicates: rows that were delivered before, by (partition, offset) or by id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.errors import InputError
from tidegate.instants import MAX
from tidegate.kernel.frame import Frame, constant, to_arrow
from tidegate.kernel.groups import Groups
from tidegate.kernel.storage.keyed_table import KeyedTable
from tidegate.state.store import Store


def partitions_of(table: pa.Table, column: str | None) -> tuple[np.ndarray, list[str]]:
    """The partition of each row as a number, and the sorted names by number."""
    if column is None:
        return constant(np.int64(0), table.num_rows), [""]
    given = to_arrow(table.column(column))
    try:
        texts = given.cast(pa.string()).dictionary_encode(null_encoding="encode")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InputError(
            f"the partition column `{column}` has type `{given.type}` and values that are no names."
            " Hint: use text"
        ) from None
    names = ["null" if v is None else v for v in texts.dictionary.to_pylist()]
    # Numbering by name makes the order of rows independent of which partition arrives first.
    rank = np.argsort(np.argsort(np.array(names, dtype=object), kind="stable"), kind="stable")
    return rank[texts.indices.to_numpy(zero_copy_only=False)], sorted(names)


class ResumeOffsets(dict[str, int]):
    """The first offset to deliver, by partition; 0 for a partition without a delivered row."""

    def __missing__(self, partition: str) -> int:
        return 0


class OffsetMarks:
    """The highest offset taken from each partition."""

    def __init__(self, marks: Mapping[str, int] | None = None) -> None:
        self.marks: dict[str, int] = dict(marks or {})
        self.leaving: dict[str, int] = {}
        """Partitions that were removed, and the instant from which their rows are very late."""

    def fresh(self, partition: np.ndarray, names: list[str], offset: np.ndarray) -> np.ndarray:
        """Which rows were not delivered before.

        `partition` holds indices into `names`; rows are sorted by (partition, offset).
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
                self.leaving.pop(names[code], None)

    def leave(self, name: str, newest: int) -> None:
        """A partition was removed; its last row is not after `newest`."""
        if name in self.marks:
            self.leaving[name] = newest

    def forget(self, bound: int) -> None:
        """Forget the removed partitions whose rows would be very late if they came again."""
        for name in [name for name, newest in self.leaving.items() if newest < bound]:
            del self.marks[name], self.leaving[name]

    def resume(self) -> ResumeOffsets:
        """The first offset to deliver of each partition."""
        return ResumeOffsets({name: mark + 1 for name, mark in self.marks.items()})

    def progress(self) -> int | None:
        """The offset below which all partitions are complete; None before the first row."""
        return min(self.marks.values()) + 1 if self.marks else None


class SeenIds:
    """The ids whose rows could still arrive again within the allowed lateness."""

    def __init__(self, store: Store) -> None:
        self._seen = KeyedTable(store, "ids", ("key_hash", "key_check"), watch=("time",))

    def __len__(self) -> int:
        return len(self._seen)

    @property
    def nbytes(self) -> int:
        return self._seen.nbytes

    def fresh(self, key_hash: np.ndarray, key_check: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Which rows have an id that was not seen before, or none (`known` is False)."""
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
        """Remove the ids that expire before the bound."""
        self._seen.remove(self._seen.select("time", before - 1))

    def save(self) -> dict[str, Any]:
        return self._seen.save()

    def restore(self, manifest: dict[str, Any]) -> None:
        self._seen.restore(manifest)

    def release(self) -> None:
        self._seen.release()
