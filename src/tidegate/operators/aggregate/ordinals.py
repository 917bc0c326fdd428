"""Ordinals: the number of each message among those of its key, from 0."""

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
    """The number of messages of each key so far."""

    def __init__(self, store: Store) -> None:
        self._counts = KeyedTable(store, "ordinals", KEY)

    def __len__(self) -> int:
        return len(self._counts)

    def number(self, delivery: Delivery) -> np.ndarray:
        """Count the rows of a delivery and return the ordinal of each."""
        keys = Groups.by([delivery.key_hash, delivery.key_check])
        first = keys.firsts
        query = Frame.of(
            {"key_hash": delivery.key_hash[first], "key_check": delivery.key_check[first]}, keys.n
        )
        places = self._counts.find(query)
        before = self._counts.values(places, "count", 0)
        self._counts.upsert(query.with_columns(count=before + keys.counts), places)
        return before[keys.ids] + keys.ranks

    def clear(self) -> None:
        """Remove all keys, because the input has ended."""
        self._counts.clear()

    def save(self) -> Any:
        return self._counts.save()

    def restore(self, document: Any) -> None:
        self._counts.restore(document)
