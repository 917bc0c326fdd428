"""Per-key watermarks: each data key has its own watermark, which never falls behind a floor.

Only keys ahead of the floor are stored, so memory follows the number of keys that were active
within the distance of the floor, and not the number of all keys.

Contract: a call is `begin`, `meet` for its rows, `advance` at most once, and `forget` at its end.
Between these, watermarks may be read at any time. Only `advance` raises watermarks, and only those
of keys that were met in the call.
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

_CACHED = 4
"""Size of the cache of lookups: the same cells are looked up several times in a firing."""

_Found = tuple[np.ndarray, np.ndarray]
"""For each row, the watermark of its key now and when the call began, without the floor."""


class KeyProgress:
    """The watermarks of the keys that are ahead of the floor."""

    def __init__(self, store: Store, disorder: int, max_keys: int | None) -> None:
        self._disorder = disorder
        self._max_keys = max_keys
        self._keys = KeyedTable(store, "key_progress", KEY, watch=("watermark",))
        self._met: _Met | None = None
        self._cache: list[tuple[np.ndarray, np.ndarray, _Found]] = []

    def __len__(self) -> int:
        """Number of keys ahead of the floor."""
        return len(self._keys)

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes

    def begin(self) -> None:
        """Begin a call."""
        self._met, self._cache = None, []

    def meet(self, key_hash: np.ndarray, key_check: np.ndarray) -> None:
        """Look up the keys of a delivery, each once for the whole call."""
        if not len(key_hash):
            return
        groups = Groups.in_order(key_hash, key_check, constant(np.int64(0), len(key_hash)))
        first = groups.firsts
        keys = Frame.of({"key_hash": key_hash[first], "key_check": key_check[first]}, groups.n)
        places = self._keys.find(keys)
        found = self._keys.values(places, "watermark", MIN)
        self._met = _Met(key_hash, key_check, groups.ids, keys, places, found, found)
        self._cache = []

    def watermark(self, key_hash: np.ndarray, key_check: np.ndarray, floor: int) -> np.ndarray:
        """The watermark of each key."""
        return np.maximum(self._found(key_hash, key_check)[0], floor)

    def before(self, key_hash: np.ndarray, key_check: np.ndarray, floor: int) -> np.ndarray:
        """The watermark of each key when the call began, where the floor was `floor`."""
        return np.maximum(self._found(key_hash, key_check)[1], floor)

    def advance(
        self, key_hash: np.ndarray, key_check: np.ndarray, times: np.ndarray, floor: int
    ) -> Frame | None:
        """Advance watermarks by events of keys that were met.

        Returns the keys that rose above the floor, in the order of keys; None where none did.
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
        self._keys.upsert(risen, met.places.take(rises))
        self._met = replace(met, watermark=np.where(rises, promised, met.watermark))
        self._cache = []
        return risen

    def bounded(self, floor: int) -> int:
        """The floor, raised so that at most `max_keys` keys are ahead of it."""
        if self._max_keys is None or len(self._keys) <= self._max_keys:
            return floor
        marks = np.concatenate([frame.ints("watermark") for frame in self._keys.frames()])
        over = len(marks) - self._max_keys
        return max(floor, int(np.partition(marks, over - 1)[over - 1]))

    def forget(self, floor: int) -> None:
        """End a call and remove the keys that the floor has reached."""
        self._met, self._cache = None, []
        if floor != MIN:
            self._keys.remove(self._keys.select("watermark", floor))

    def save(self) -> Any:
        return self._keys.save()

    def restore(self, document: Any) -> None:
        self._keys.restore(document)

    def _found(self, key_hash: np.ndarray, key_check: np.ndarray) -> _Found:
        met = self._met
        if met is not None and met.is_whole(key_hash, key_check):
            return met.watermark[met.number], met.before[met.number]
        for known_key_hash, known_key_check, found in self._cache:
            if known_key_hash is key_hash and known_key_check is key_check:
                return found
        found = self._look_up(key_hash, key_check)
        self._cache = [(key_hash, key_check, found), *self._cache[: _CACHED - 1]]
        return found

    def _look_up(self, key_hash: np.ndarray, key_check: np.ndarray) -> _Found:
        query = Frame.of({"key_hash": key_hash, "key_check": key_check}, len(key_hash))
        if self._met is None or not len(key_hash):
            found = self._stored(query)
            return found, found
        at, known = search_sorted(self._met.keys, query, KEY)
        at = np.minimum(at, len(self._met.keys) - 1)
        watermark, before = self._met.watermark[at], self._met.before[at]
        others = np.flatnonzero(~known)
        if len(others):
            watermark[others] = before[others] = self._stored(query.take(others))
        return watermark, before

    def _stored(self, query: Frame) -> np.ndarray:
        """The stored watermarks of keys; `MIN` where there is none."""
        return self._keys.values(self._keys.find(query), "watermark", MIN)


@dataclass(frozen=True, slots=True, eq=False)
class _Met:
    """The distinct keys of a delivery, sorted, with their watermarks and the key of each row."""

    key_hash: np.ndarray
    key_check: np.ndarray
    number: np.ndarray
    keys: Frame
    places: Places
    watermark: np.ndarray
    before: np.ndarray

    def is_whole(self, key_hash: np.ndarray, key_check: np.ndarray) -> bool:
        """Whether the columns are those of the delivery."""
        return key_hash is self.key_hash and key_check is self.key_check

    def numbers(self, key_hash: np.ndarray, key_check: np.ndarray) -> np.ndarray:
        """The number of the key of each row; every key was met."""
        if self.is_whole(key_hash, key_check):
            return self.number
        return search_sorted(
            self.keys, Frame.of({"key_hash": key_hash, "key_check": key_check}, len(key_hash)), KEY
        )[0]
