"""Per-key watermarks: every data key has progress of its own, and none stays behind a global floor.

Only keys that are ahead of the floor are remembered, so memory follows how many keys spoke within
the floor's distance, and not how many there ever were.

Contract: a call is `begin`, `meet` where rows came, `advance` at most once, and `forget` at its
end; between these, watermarks may be asked for as often as one likes. A key rises only by
`advance`, so the keys that were met are the only ones whose watermark is not what it was when the
call began.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tidegate.instants import MIN, saturating_add
from tidegate.kernel.frame import Frame, constant, search_sorted
from tidegate.kernel.groups import Groups
from tidegate.kernel.keys import KEY
from tidegate.kernel.storage.keyed_table import KeyedTable
from tidegate.kernel.storage.run_store import Places
from tidegate.state.store import Store

_REMEMBERED = 4
"""So many columns of keys are remembered with what was found for them: cells on their way through a
firing are asked about again and again.
"""

_Found = tuple[np.ndarray, np.ndarray]
"""For each row, the watermark of its key and what it was when the call began, both without the
floor.
"""


class KeyProgress:
    """The watermark of each key, as long as it is ahead of the floor."""

    def __init__(self, store: Store, disorder: int, max_keys: int | None) -> None:
        self._disorder = disorder
        self._max_keys = max_keys
        self._keys = KeyedTable(store, "key_progress", KEY, watch=("watermark",))
        self._met: _Met | None = None
        self._asked: list[tuple[np.ndarray, np.ndarray, _Found]] = []

    def __len__(self) -> int:
        """How many keys are ahead of the floor."""
        return len(self._keys)

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes

    def begin(self) -> None:
        """A call begins: what rose in the one before is over."""
        self._met, self._asked = None, []

    def meet(self, key_hash: np.ndarray, key_check: np.ndarray) -> None:
        """Rows of these keys have come: each key is looked up once for all that will be asked about
        it.
        """
        if not len(key_hash):
            return
        groups = Groups.in_order(key_hash, key_check, constant(np.int64(0), len(key_hash)))
        first = groups.firsts
        keys = Frame.of({"key_hash": key_hash[first], "key_check": key_check[first]}, groups.n)
        places = self._keys.find(keys)
        found = self._taken(places)
        self._met = _Met(key_hash, key_check, groups.ids, keys, places, found, found)
        self._asked = []

    def watermark(self, key_hash: np.ndarray, key_check: np.ndarray, floor: int) -> np.ndarray:
        """The watermark of each key."""
        return np.maximum(self._found(key_hash, key_check)[0], floor)

    def before(self, key_hash: np.ndarray, key_check: np.ndarray, floor: int) -> np.ndarray:
        """The watermark of each key when the call began, at which the floor was where it is
        said.
        """
        return np.maximum(self._found(key_hash, key_check)[1], floor)

    def advance(
        self, key_hash: np.ndarray, key_check: np.ndarray, times: np.ndarray, floor: int
    ) -> Frame | None:
        """Events of keys that were met have come; the answer is who rose above the floor, in the
        order of keys.
        """
        met = self._met
        if met is None or not len(key_hash):
            return None
        newest = np.full(len(met.keys), MIN)
        np.maximum.at(newest, met.numbers(key_hash, key_check), times)
        promised = saturating_add(newest, -self._disorder)
        rises = promised > np.maximum(met.watermark, floor)
        if not rises.any():
            return None
        risen = met.keys.where(rises).with_columns(watermark=promised[rises])
        places = met.places.take(rises)
        self._keys.remove(places.take(places.found))
        self._keys.put(risen)
        self._met = replace(met, watermark=np.where(rises, promised, met.watermark))
        self._asked = []
        return risen

    def bounded(self, floor: int) -> int:
        """The floor, raised to the slowest keys where more are ahead of it than may be."""
        if self._max_keys is None or len(self._keys) <= self._max_keys:
            return floor
        marks = np.concatenate([frame.ints("watermark") for frame in self._keys.frames()])
        over = len(marks) - self._max_keys
        return max(floor, int(np.partition(marks, over - 1)[over - 1]))

    def forget(self, floor: int) -> None:
        """A call ends: keys that the floor has reached need no memory of their own."""
        self._met, self._asked = None, []
        if floor != MIN:
            self._keys.remove(self._keys.select("watermark", floor))

    def save(self) -> Any:
        return self._keys.save()

    def restore(self, document: Any) -> None:
        self._keys.restore(document)
        everybody = self._keys.all()
        if everybody is not None:
            # Keys are looked up with every delivery, so they do not stay in the store alone.
            self._keys.reset(everybody)

    def _found(self, key_hash: np.ndarray, key_check: np.ndarray) -> _Found:
        met = self._met
        if met is not None and met.is_whole(key_hash, key_check):
            return met.watermark[met.number], met.before[met.number]
        for known_key_hash, known_chk, found in self._asked:
            if known_key_hash is key_hash and known_chk is key_check:
                return found
        found = self._looked_up(key_hash, key_check)
        self._asked = [(key_hash, key_check, found), *self._asked[: _REMEMBERED - 1]]
        return found

    def _looked_up(self, key_hash: np.ndarray, key_check: np.ndarray) -> _Found:
        query = Frame.of({"key_hash": key_hash, "key_check": key_check}, len(key_hash))
        if self._met is None or not len(key_hash):
            found = self._taken(self._keys.find(query))
            return found, found
        at, known = search_sorted(self._met.keys, query, KEY)
        at = np.minimum(at, len(self._met.keys) - 1)
        watermark, before = self._met.watermark[at], self._met.before[at]
        others = np.flatnonzero(~known)
        if len(others):
            watermark[others] = before[others] = self._taken(self._keys.find(query.take(others)))
        return watermark, before

    def _taken(self, places: Places) -> np.ndarray:
        """The watermarks at places, `MIN` where nothing was found."""
        watermark = np.full(len(places.run), MIN)
        there = np.flatnonzero(places.found)
        if len(there):
            watermark[there] = self._keys.take(places.take(there), ("watermark",)).ints("watermark")
        return watermark


@dataclass(frozen=True, slots=True, eq=False)
class _Met:
    """The keys of one delivery in their order, with their watermarks, and which of them each row
    has.
    """

    key_hash: np.ndarray
    key_check: np.ndarray
    number: np.ndarray
    keys: Frame
    places: Places
    watermark: np.ndarray
    before: np.ndarray

    def is_whole(self, key_hash: np.ndarray, key_check: np.ndarray) -> bool:
        """Whether the columns are those of the delivery itself."""
        return key_hash is self.key_hash and key_check is self.key_check

    def numbers(self, key_hash: np.ndarray, key_check: np.ndarray) -> np.ndarray:
        """The number of each row's key; every key was met."""
        if self.is_whole(key_hash, key_check):
            return self.number
        return search_sorted(
            self.keys, Frame.of({"key_hash": key_hash, "key_check": key_check}, len(key_hash)), KEY
        )[0]
