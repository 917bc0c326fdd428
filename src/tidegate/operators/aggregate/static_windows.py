"""Static windows fire without rows.

Every known key gets a cell in each window up to the watermark.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.instants import MAX, MIN
from tidegate.kernel.frame import Frame
from tidegate.kernel.groups import Groups
from tidegate.kernel.keys import KEY
from tidegate.kernel.storage.keyed_table import KeyedTable
from tidegate.kernel.windows.assigners import Aligned
from tidegate.operators.aggregate.context import IDENTITY, OperatorContext
from tidegate.operators.aggregate.slice_buffer import SliceBuffer
from tidegate.operators.ingest.delivery import Delivery


class StaticWindows:
    """The known keys, and how far their windows are made."""

    def __init__(self, context: OperatorContext, assigner: Aligned) -> None:
        self._context = context
        self._assigner = assigner
        self._keys = KeyedTable(context.store, "known_keys", KEY)
        self._made = MIN

    def learn(self, delivery: Delivery) -> None:
        """Remember keys; their windows begin with the first one that has a row."""
        groups = Groups.by([delivery.key_hash, delivery.key_check])
        first = groups.firsts
        seen = Frame(
            {
                "key_hash": delivery.key_hash[first],
                "key_check": delivery.key_check[first],
                **delivery.keys(self._context.spec.input.key, first),
            },
            groups.n,
        )
        self._keys.put(seen.where(~self._keys.find(seen).found))
        if self._made == MIN:
            start, _ = self._assigner.slice_of(delivery.position)
            self._made = int(start.min())

    def open_until(self, watermark: int, slice_buffer: SliceBuffer | None) -> None:
        """Make the windows without rows that end by the watermark.

        At the end of input, these are the windows up to the newest event.
        """
        keys = self._keys.all()
        if self._made == MIN or keys is None:
            return
        limit = self._last_end() if watermark == MAX else watermark
        for start, end in self._assigner.windows_ending_in(self._made, limit):
            self._open(start, end, keys, slice_buffer)
        self._made = max(self._made, limit)

    def next_end(self) -> int:
        """The end of the first window that is not made yet; `MAX` without a known key."""
        if self._made == MIN or not len(self._keys):
            return MAX
        return next((end for _, end in self._assigner.windows_ending_in(self._made, MAX)), MAX)

    def _last_end(self) -> int:
        newest = self._context.progress.newest
        return MIN if newest == MIN else int(self._assigner.last_end(np.array([newest]))[0])

    def _open(self, start: int, end: int, keys: Frame, slice_buffer: SliceBuffer | None) -> None:
        identity = keys.select(KEY).with_columns(
            start=np.full(len(keys), start), end=np.full(len(keys), end)
        )
        missing = ~self._context.cells.find(identity).found
        if slice_buffer is not None:
            missing &= ~slice_buffer.holds((start, end), keys)
        if missing.any():
            absent = np.flatnonzero(missing)
            names = self._context.key_columns
            cells = self._context.fresh(
                identity.take(absent).select(IDENTITY),
                dict(keys.select(names).take(absent).columns),
            )
            # They are due at once: the watermark that makes them completes them.
            self._context.cells.put(
                cells.with_columns(
                    watermark_due=np.full(len(absent), MIN), clock_due=np.full(len(absent), MAX)
                )
            )

    def save(self) -> Any:
        return {"keys": self._keys.save(), "made": self._made}

    def restore(self, document: Any) -> None:
        self._keys.restore(document["keys"])
        self._made = document["made"]
