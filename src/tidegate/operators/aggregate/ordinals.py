"""Ordinals number the messages of each key from 0, over the life of the operator."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.kernel.frame import Frame
from tidegate.kernel.groups import Groups
from tidegate.kernel.keys import KEY
from tidegate.kernel.storage.keyed_table import KeyedTable
from tidegate.operators.ingest.delivery import Delivery
from tidegate.state.store import Store


class Ordinals:
    """How many messages of each key have come."""

    def __init__(self, store: Store) -> None:
        self._counts = KeyedTable(store, "ordinals", KEY)

    def __len__(self) -> int:
        return len(self._counts)

    def number(self, delivery: Delivery) -> np.ndarray:
        """The ordinal of every row, which is counted with that."""
        keys = Groups.by([delivery.key_hash, delivery.key_check])
        first = keys.firsts
        query = Frame.of(
            {"key_hash": delivery.key_hash[first], "key_check": delivery.key_check[first]}, keys.n
        )
        places = self._counts.find(query)
        known = np.flatnonzero(places.found)
        before = np.zeros(keys.n, np.int64)
        if len(known):
            there = places.take(known)
            before[known] = self._counts.take(there).ints("count")
            self._counts.remove(there)
        self._counts.put(query.with_columns(count=before + keys.counts))
        return before[keys.ids] + keys.ranks

    def clear(self) -> None:
        """The input has ended: no key counts on."""
        self._counts.clear()

    def save(self) -> Any:
        return self._counts.save()

    def restore(self, document: Any) -> None:
        self._counts.restore(document)
