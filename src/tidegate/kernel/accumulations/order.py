"""Accumulations that pick one value of a group: min, max, first, last, arg_min and arg_max."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidegate.kernel.accumulations.protocol import Base, Lifted, Partials, Rows
from tidegate.kernel.accumulations.values import (
    from_storage,
    sort_keys,
    storage,
    storage_type,
    typed,
    valid,
)
from tidegate.kernel.frame import Column, to_numpy
from tidegate.kernel.groups import Groups

NONE = -1


def winners(
    ids: np.ndarray, n: int, keys: Sequence[np.ndarray], present: np.ndarray | None
) -> np.ndarray:
    """The row of each group with the smallest keys, compared in turn; `NONE` without a row."""
    rows = np.arange(len(ids)) if present is None else np.flatnonzero(present)
    for key in keys:
        group, value = ids[rows], key[rows]
        best = np.full(n, np.iinfo(np.int64).max)
        np.minimum.at(best, group, value)
        rows = rows[value == best[group]]
    found = np.full(n, NONE, np.int64)
    found[ids[rows][::-1]] = rows[::-1]
    return found


def pick(column: Column, index: np.ndarray) -> Column:
    """The values at the winning rows; null (zero in NumPy) where there is none."""
    missing = index == NONE
    if isinstance(column, np.ndarray):
        picked = column[index] if len(column) else np.zeros(len(index), column.dtype)
        return np.where(missing, np.zeros(1, column.dtype), picked) if missing.any() else picked
    return column.take(pa.array(index, mask=missing))


class Extreme(Base):
    """Min or max of values with a NumPy type: the value, and whether there is one."""

    def __init__(self, column: str, type: pa.DataType, dtype: np.dtype, *, largest: bool) -> None:
        super().__init__({"value": storage_type(type), "seen": pa.bool_()}, type)
        self.column, self.dtype = column, dtype
        self.better: np.ufunc
        self.worst: float | int | bool
        if dtype.kind == "b":
            self.better, self.worst = (np.maximum if largest else np.minimum), not largest
        elif dtype.kind == "f":
            self.better, self.worst = (np.maximum, -np.inf) if largest else (np.minimum, np.inf)
        else:
            self.better, self.worst = (
                (np.maximum, np.iinfo(dtype).min) if largest else (np.minimum, np.iinfo(dtype).max)
            )
        # About twice as slow as the plain functions, so used only for batches with a NaN.
        self.despite_nan = np.fmax if largest else np.fmin

    def lift(self, rows: Rows, groups: Groups) -> Lifted:
        array = rows.column(self.column)
        return Lifted(self._reduce(storage(array), valid(array), groups))

    def combine(self, partials: Partials, groups: Groups) -> dict[str, Column]:
        seen = to_numpy(partials["seen"])
        return self._reduce(to_numpy(partials["value"]), None if seen.all() else seen, groups)

    def _reduce(
        self, values: np.ndarray, present: np.ndarray | None, groups: Groups
    ) -> dict[str, Column]:
        seen = (groups.counts if present is None else groups.sum(present.astype(np.int64))) > 0
        if self.dtype.kind == "b":
            decisive = values if self.worst is False else ~values
            found = groups.any(decisive if present is None else decisive & present)
            return {"value": found if self.worst is False else ~found, "seen": seen}
        best = self._scatter(self.better, self.worst, values, present, groups)
        if self.dtype.kind == "f" and np.isnan(best).any():
            best = self._scatter(self.despite_nan, np.nan, values, present, groups)
        return {"value": best, "seen": seen}

    def _scatter(
        self,
        better: np.ufunc,
        worst: float,
        values: np.ndarray,
        present: np.ndarray | None,
        groups: Groups,
    ) -> np.ndarray:
        best = np.full(groups.n, worst, self.dtype)
        with np.errstate(invalid="ignore"):
            better.at(
                best,
                groups.ids,
                values if present is None else np.where(present, values, self.dtype.type(worst)),
            )
        return best

    def lower(self, partials: Partials) -> pa.Array:
        return from_storage(
            to_numpy(partials["value"]), to_numpy(partials["seen"]), self.result_type
        )


class RankedExtreme(Base):
    """Min or max of values that only Arrow supports (text, decimals); null where there is none."""

    def __init__(self, column: str, type: pa.DataType, *, largest: bool) -> None:
        super().__init__({"value": type}, type)
        self.column, self.largest = column, largest

    def lift(self, rows: Rows, groups: Groups) -> Lifted:
        return Lifted(self.combine({"value": rows.column(self.column)}, groups))

    def combine(self, partials: Partials, groups: Groups) -> dict[str, Column]:
        array = typed(partials["value"], self.result_type)
        keys = sort_keys(array)
        return {
            "value": pick(
                array,
                winners(groups.ids, groups.n, [~keys if self.largest else keys], valid(array)),
            )
        }

    def lower(self, partials: Partials) -> pa.Array:
        return typed(partials["value"], self.result_type)


class Edge(Base):
    """First or last: the value, its event time and sequence number, and whether there is one."""

    def __init__(self, column: str, type: pa.DataType, *, last: bool, ignore_nulls: bool) -> None:
        super().__init__(
            {"value": type, "time": pa.int64(), "order": pa.int64(), "seen": pa.bool_()}, type
        )
        self.column, self.last, self.ignore_nulls = column, last, ignore_nulls

    def lift(self, rows: Rows, groups: Groups) -> Lifted:
        array = rows.column(self.column)
        return Lifted(
            self._choose(
                array, rows.time, rows.order, valid(array) if self.ignore_nulls else None, groups
            )
        )

    def combine(self, partials: Partials, groups: Groups) -> dict[str, Column]:
        time, order, seen = (to_numpy(partials[name]) for name in ("time", "order", "seen"))
        return self._choose(
            typed(partials["value"], self.result_type),
            time,
            order,
            None if seen.all() else seen,
            groups,
        )

    def _choose(
        self,
        array: pa.Array,
        time: np.ndarray,
        order: np.ndarray,
        present: np.ndarray | None,
        groups: Groups,
    ) -> dict[str, Column]:
        keys = [~time, ~order] if self.last else [time, order]
        rows = winners(groups.ids, groups.n, keys, present)
        return {
            "value": pick(array, rows),
            "time": pick(time, rows),
            "order": pick(order, rows),
            "seen": rows != NONE,
        }

    def lower(self, partials: Partials) -> pa.Array:
        return typed(partials["value"], self.result_type)


class ArgExtreme(Base):
    """arg_min or arg_max: the value, its `by`, and the time and sequence number of its row."""

    def __init__(
        self, column: str, type: pa.DataType, by: str, by_type: pa.DataType, *, largest: bool
    ) -> None:
        types = {"value": type, "by": by_type, "time": pa.int64(), "order": pa.int64()}
        super().__init__(types, type)
        self.column, self.by, self.largest = column, by, largest

    def lift(self, rows: Rows, groups: Groups) -> Lifted:
        return Lifted(
            self._choose(
                rows.column(self.column), rows.column(self.by), rows.time, rows.order, groups
            )
        )

    def combine(self, partials: Partials, groups: Groups) -> dict[str, Column]:
        value, by = (typed(partials[name], self.partial_types[name]) for name in ("value", "by"))
        return self._choose(
            value, by, to_numpy(partials["time"]), to_numpy(partials["order"]), groups
        )

    def _choose(
        self, value: pa.Array, by: pa.Array, time: np.ndarray, order: np.ndarray, groups: Groups
    ) -> dict[str, Column]:
        keys = sort_keys(by, nan_first=self.largest)
        rows = winners(
            groups.ids, groups.n, [~keys if self.largest else keys, time, order], valid(by)
        )
        return {
            "value": pick(value, rows),
            "by": pick(by, rows),
            "time": pick(time, rows),
            "order": pick(order, rows),
        }

    def lower(self, partials: Partials) -> pa.Array:
        return typed(partials["value"], self.result_type)
