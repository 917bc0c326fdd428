"""Window offsets: the first and last offset of each partition in each window.

They tell from which offsets lost messages are replayed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.instants import MAX, MIN
from tidegate.kernel.frame import Frame, concat_frames
from tidegate.kernel.groups import Groups
from tidegate.kernel.storage.keyed_table import KeyedTable
from tidegate.kernel.storage.run_store import Places
from tidegate.state.store import Store

_WINDOW = ("key_hash", "key_check", "start", "end")
FEW_NAMES = 1000
"""The number of names of partitions that are kept without looking for unused ones."""
_ROW = (*_WINDOW, "partition")


class WindowOffsets:
    """Offsets by window (or slice, where windows share slices) and partition."""

    def __init__(self, store: Store) -> None:
        self._rows = KeyedTable(store, "window_offsets", _ROW, watch=("end",))
        self._partitions: list[str | None] = []
        """Names by number; None for a number that is free."""
        self._numbers: dict[str, int] = {}
        self._free: list[int] = []
        self._checked_at = FEW_NAMES

    def __len__(self) -> int:
        return len(self._rows)

    def note(
        self, windows: Frame, names: list[str], partition: np.ndarray, offset: np.ndarray
    ) -> None:
        """Add the offsets of rows; `partition` holds indices into `names`."""
        if not len(windows):
            return
        if len(self._numbers) >= self._checked_at:
            self._forget_names()
        number = np.array([self._number(name) for name in names], np.int64)[partition]
        rows = windows.select(_WINDOW).with_columns(partition=number, first=offset, last=offset)
        self._put(rows)

    def _number(self, name: str) -> int:
        """The number of a partition; a new one takes a free number."""
        found = self._numbers.get(name)
        if found is None:
            if self._free:
                found = self._free.pop()
                self._partitions[found] = name
            else:
                found = len(self._partitions)
                self._partitions.append(name)
            self._numbers[name] = found
        return found

    def _forget_names(self) -> None:
        """Free the numbers of partitions that no window has."""
        rows = self._rows.all()
        used = np.zeros(len(self._partitions), bool)
        if rows is not None:
            used[rows.ints("partition")] = True
        kept = [name if used[n] else None for n, name in enumerate(self._partitions)]
        while kept and kept[-1] is None:
            kept.pop()
        self._set_names(kept)
        self._checked_at = 2 * len(self._numbers) + FEW_NAMES

    def _set_names(self, names: list[str | None]) -> None:
        self._partitions = names
        self._numbers = {name: n for n, name in enumerate(names) if name is not None}
        self._free = [n for n, name in enumerate(names) if name is None]

    def rename(self, old: Frame, new: Frame) -> None:
        """Move the offsets of windows to others, row by row."""
        places, owner = self._of(old)
        if len(places.run):
            rows = self._rows.take(places)
            self._rows.remove(places)
            self._put(rows.with_mapping({name: new.ints(name)[owner] for name in _WINDOW}))

    def forget(self, windows: Frame) -> None:
        places, _ = self._of(windows)
        self._rows.remove(places)

    def forget_before(self, end: int) -> None:
        """Remove the windows that end at or before a position."""
        self._rows.remove(self._rows.select("end", end))

    def earliest(self) -> dict[str, int]:
        """The first offset of each partition that a window still needs."""
        rows = self._rows.all()
        if rows is None:
            return {}
        groups = Groups.by([rows.ints("partition")])
        numbers = rows.ints("partition")[groups.firsts].tolist()
        return {
            str(self._partitions[n]): first
            for n, first in zip(numbers, groups.min(rows.ints("first")).tolist(), strict=True)
        }

    def within(
        self, start: int, end: int, key_hash: int | None, key_check: int | None
    ) -> dict[str, tuple[int, int]]:
        """First and last offset by partition inside a window, of all keys or of one."""
        rows = self._rows.all()
        if rows is None:
            return {}
        inside = (rows.ints("start") >= start) & (rows.ints("end") <= end)
        if key_hash is not None:
            inside &= (rows.ints("key_hash") == np.uint64(key_hash)) & (
                rows.ints("key_check") == np.uint64(key_check or 0)
            )
        rows = rows.where(inside)
        found: dict[str, tuple[int, int]] = {}
        for number, first, last in zip(
            *(rows.ints(c).tolist() for c in ("partition", "first", "last")), strict=True
        ):
            name = str(self._partitions[number])
            low, high = found.get(name, (first, last))
            found[name] = (min(low, first), max(high, last))
        return found

    def _of(self, windows: Frame) -> tuple[Places, np.ndarray]:
        """The places of the rows of windows, and the window that each belongs to."""
        order = np.lexsort([windows.ints(name) for name in reversed(_WINDOW)])
        asked = windows.select(_WINDOW).take(order)
        places = self._rows.ranges(asked, _WINDOW)
        if not len(places.run):
            return places, np.zeros(0, np.int64)
        rows = self._rows.take(places)
        both = concat_frames([asked, rows.select(_WINDOW)])
        groups = Groups.by([both.ints(name) for name in _WINDOW])
        window = np.empty(groups.n, np.int64)
        window[groups.ids[: len(asked)]] = order
        return places, window[groups.ids[len(asked) :]]

    def _put(self, rows: Frame) -> None:
        groups = Groups.by([rows.ints(name) for name in _ROW])
        rows = rows.take(groups.firsts).with_columns(
            first=groups.min(rows.ints("first")), last=groups.max(rows.ints("last"))
        )
        places = self._rows.find(rows)
        first = np.minimum(rows.ints("first"), self._rows.values(places, "first", MAX))
        last = np.maximum(rows.ints("last"), self._rows.values(places, "last", MIN))
        self._rows.upsert(rows.with_columns(first=first, last=last), places)

    def save(self) -> Any:
        return {"partitions": self._partitions, "rows": self._rows.save()}

    def restore(self, document: Any) -> None:
        self._set_names(list(document["partitions"]))
        self._rows.restore(document["rows"])
