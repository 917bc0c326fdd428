"""Withdrawn windows: the pane numbers of windows whose rows were all retracted.

The cell of a withdrawn window is gone. If later rows open the window again, its panes continue the
numbers of the former ones, so that the id of a pane (key, window, index, op) stays unique. Numbers
are kept until the window would have expired.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.kernel.frame import Frame
from tidegate.kernel.keys import KEY
from tidegate.kernel.storage.keyed_table import KeyedTable
from tidegate.state.store import Store

_IDENTITY = (*KEY, "start", "end")
_NUMBERS = ("pane_index", "nonspeculative_index")


class WithdrawnWindows:
    """The next pane numbers of the withdrawn windows of one operator."""

    def __init__(self, store: Store) -> None:
        self._rows = KeyedTable(store, "withdrawn", _IDENTITY, watch=("expiry",))

    def __len__(self) -> int:
        return len(self._rows)

    def note(self, cells: Frame, mask: np.ndarray) -> None:
        """Remember the numbers of some cells that are withdrawn."""
        if mask.any():
            self._rows.upsert(cells.select([*_IDENTITY, *_NUMBERS, "expiry"]).where(mask))

    def next_numbers(self, windows: Frame) -> tuple[np.ndarray, np.ndarray]:
        """The index and the non-speculative index of the next pane; 0 for other windows."""
        places = self._rows.find(windows.select(_IDENTITY))
        index, nonspeculative_index = (self._rows.values(places, name, 0) for name in _NUMBERS)
        return index, nonspeculative_index

    def forget(self, watermark: int) -> None:
        """Forget the windows that have expired."""
        self._rows.remove(self._rows.select("expiry", watermark))

    def save(self) -> Any:
        return self._rows.save()

    def restore(self, document: Any) -> None:
        self._rows.restore(document)
