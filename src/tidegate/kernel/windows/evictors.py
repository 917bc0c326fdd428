"""Evictors: mask of the messages that stay in a window, for all windows at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidegate.errors import InputError
from tidegate.kernel.accumulations.values import to_floats
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


def check_evictor(evictor: Evictor | None, schema: pa.Schema) -> None:
    """Raise `InputError` if the column that an evictor looks at is missing, or has no numbers."""
    if not isinstance(evictor, EvictDelta):
        return
    name = evictor.column
    if name not in schema.names:
        raise InputError(
            f"the delta evictor looks at `{name}`, but the input has {', '.join(schema.names)}"
        )
    kind = schema.field(name).type
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)
    if not any(test(kind) for test in tests):
        raise InputError(
            f"the delta evictor looks at `{name}`, which has type `{kind}`; it needs numbers"
        )


def _numbers(table: pa.Table, name: str) -> np.ndarray:
    # A missing value is far from everything, including itself, so it is evicted.
    return to_floats(to_arrow(table.column(name)))
