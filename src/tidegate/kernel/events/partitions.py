"""Partitions of rows: each row's as a number, with the names by number."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidegate.errors import InputError
from tidegate.kernel.frame import constant, to_arrow


def partitions_of(table: pa.Table, column: str | None) -> tuple[np.ndarray, list[str]]:
    """The partition of each row as a number, and the names by number, in their order."""
    if column is None:
        return constant(np.int64(0), table.num_rows), [""]
    given = to_arrow(table.column(column))
    try:
        texts = given.cast(pa.string()).dictionary_encode(null_encoding="encode")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InputError(
            f"the partition column `{column}` has type `{given.type}` and values that name nothing."
            " Hint: use text"
        ) from None
    names = ["null" if v is None else v for v in texts.dictionary.to_pylist()]
    # Partitions are numbered by name, so that the order of rows does not depend on which partition
    # came first.
    rank = np.argsort(np.argsort(np.array(names, dtype=object), kind="stable"), kind="stable")
    return rank[texts.indices.to_numpy(zero_copy_only=False)], sorted(names)
