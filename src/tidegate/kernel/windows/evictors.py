"""Evictors: mask of the messages that stay in a window, for all windows at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import InputError
from tidegate.kernel.frame import to_arrow
from tidegate.kernel.groups import Groups
from tidegate.spec.evictors import EvictCount, EvictDelta, Evictor, EvictTime


def kept(evictor: Evictor, table: pa.Table, time: np.ndarray, groups: Groups) -> np.ndarray:
    """Mask of the rows that stay; rows of a group are in order of arrival."""
    if not len(time):
        return np.ones(0, bool)
    match evictor:
        case EvictCount():
            return groups.ranks >= groups.counts[groups.ids] - evictor.keep
        case EvictTime():
            return time >= groups.max(time)[groups.ids] - evictor.span
        case EvictDelta():
            values = _numbers(table, evictor.column)
            with np.errstate(invalid="ignore"):
                return np.abs(values - values[groups.lasts][groups.ids]) < evictor.threshold


def _numbers(table: pa.Table, name: str) -> np.ndarray:
    if name not in table.column_names:
        raise InputError(
            f"the delta evictor looks at `{name}`, but the input has"
            f" {', '.join(table.column_names)}"
        )
    column = to_arrow(table.column(name))
    if not (
        pa.types.is_integer(column.type)
        or pa.types.is_floating(column.type)
        or pa.types.is_decimal(column.type)
    ):
        raise InputError(
            f"the delta evictor looks at `{name}`, which has type `{column.type}`; it needs numbers"
        )
    # A missing value is far from everything, including itself, so it is evicted.
    return pc.fill_null(column.cast(pa.float64()), float("nan")).to_numpy(zero_copy_only=False)
