"""Arrow lists as columns: parents of values, and lists built from values sorted by group."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def lengths(lists: pa.ListArray) -> np.ndarray:
    """Number of values in each list; 0 for a null list."""
    counts = lists.value_lengths()
    return counts.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)


def owners(lists: pa.ListArray) -> np.ndarray:
    """The index of the list that each value of `lists.flatten()` belongs to."""
    return np.repeat(np.arange(len(lists)), lengths(lists))


def build(values: pa.Array, ids: np.ndarray, n: int) -> pa.ListArray:
    """One list per group of values whose group numbers are sorted."""
    offsets = np.zeros(n + 1, np.int32)
    np.cumsum(np.bincount(ids, minlength=n), out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def struct_of(arrays: dict[str, pa.Array]) -> pa.StructArray:
    """Equally long arrays as one struct array."""
    return pa.StructArray.from_arrays(list(arrays.values()), names=list(arrays))
