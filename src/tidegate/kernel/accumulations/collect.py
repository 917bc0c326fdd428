"""Accumulations that keep values: list, top_k, exact quantiles and distinct values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.kernel.accumulations import lists
from tidegate.kernel.accumulations.protocol import (
    Accumulation,
    Base,
    Lifted,
    Lowered,
    Partials,
    Rows,
)
from tidegate.kernel.accumulations.values import (
    field_ranks,
    from_storage,
    sort_keys,
    storage,
    storage_dtype,
    to_floats,
    typed,
    typed_list,
    valid,
)
from tidegate.kernel.frame import Column
from tidegate.kernel.groups import Groups

Items = dict[str, pa.Array]


def _sorted_rows(ids: np.ndarray, keys: Sequence[np.ndarray]) -> np.ndarray:
    """Rows ordered by group, then by the keys in turn."""
    return np.lexsort([*reversed(keys), ids])


def _changes(ids: np.ndarray, keys: Sequence[np.ndarray]) -> np.ndarray:
    """Mask of rows that differ in group or keys from the row before."""
    new = np.ones(len(ids), bool)
    new[1:] = ids[1:] != ids[:-1]
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    return new


class Kept(Base, ABC):
    """Partials that are equally long lists, one per partial column.

    Combining flattens the lists and rearranges the values.
    """

    def __init__(self, items: dict[str, pa.DataType], result_type: pa.DataType) -> None:
        super().__init__({name: pa.list_(type) for name, type in items.items()}, result_type)

    @abstractmethod
    def arrange(self, items: Items, ids: np.ndarray) -> np.ndarray:
        """The rows to keep, by group, in an order that does not depend on how they were
        combined.
        """

    def keep(self, items: Items, ids: np.ndarray, n: int) -> dict[str, Column]:
        rows = self.arrange(items, ids)
        index = pa.array(rows)
        return {
            name: lists.build(values.take(index), ids[rows], n) for name, values in items.items()
        }

    def combine(self, partials: Partials, groups: Groups) -> dict[str, Column]:
        columns = {
            name: typed_list(partials[name], type) for name, type in self.partial_types.items()
        }
        owner = lists.owners(next(iter(columns.values())))
        return self.keep(
            {name: column.flatten() for name, column in columns.items()},
            groups.ids[owner],
            groups.n,
        )


def present(
    rows: Rows, columns: Items, mask: np.ndarray | None, groups: Groups
) -> tuple[Items, np.ndarray]:
    """Columns with time, sequence number and group number of the rows in a mask."""
    items = {**columns, "time": pa.array(rows.time), "order": pa.array(rows.order)}
    if mask is None:
        return items, groups.ids
    index = pa.array(np.flatnonzero(mask))
    return {name: values.take(index) for name, values in items.items()}, groups.ids[mask]


def by_arrival(items: Items, ids: np.ndarray) -> np.ndarray:
    """Rows ordered by group, event time and arrival."""
    return _sorted_rows(ids, [items["time"].to_numpy(), items["order"].to_numpy()])


class Collect(Kept):
    """All values, by event time, then by arrival."""

    full_state = True

    def __init__(self, column: str, type: pa.DataType, *, ignore_nulls: bool) -> None:
        super().__init__({"value": type, "time": pa.int64(), "order": pa.int64()}, pa.list_(type))
        self.column, self.ignore_nulls = column, ignore_nulls

    def lift(self, rows: Rows, groups: Groups) -> Lifted:
        array = rows.column(self.column)
        items, ids = present(
            rows, {"value": array}, valid(array) if self.ignore_nulls else None, groups
        )
        return Lifted(self.keep(items, ids, groups.n))

    def arrange(self, items: Items, ids: np.ndarray) -> np.ndarray:
        return by_arrival(items, ids)

    def lower(self, partials: Partials) -> pa.Array:
        return typed(partials["value"], self.result_type)


class ExactQuantile(Kept):
    """Quantiles by linear interpolation between the two nearest values; NaN is ignored."""

    full_state = True

    def __init__(self, column: str, q: float | tuple[float, ...]) -> None:
        self.column = column
        self.q = q if isinstance(q, tuple) else (q,)
        super().__init__(
            {"value": pa.float64()},
            pa.list_(pa.float64()) if isinstance(q, tuple) else pa.float64(),
        )

    def lift(self, rows: Rows, groups: Groups) -> Lifted:
        values = to_floats(rows.column(self.column))
        kept = ~np.isnan(values)
        return Lifted(self.keep({"value": pa.array(values[kept])}, groups.ids[kept], groups.n))

    def arrange(self, items: Items, ids: np.ndarray) -> np.ndarray:
        return _sorted_rows(ids, [items["value"].to_numpy(zero_copy_only=False)])

    def lower(self, partials: Partials) -> pa.Array:
        column = typed_list(partials["value"], self.partial_types["value"])
        count = lists.lengths(column)
        seen, start = count > 0, np.cumsum(count) - count
        values = np.append(column.flatten().to_numpy(zero_copy_only=False), 0.0)
        parts = [
            _interpolate(values, np.where(seen, start, len(values) - 1), np.maximum(count, 1), q)
            for q in self.q
        ]
        return quantile_result(np.stack(parts, axis=1), seen, self.result_type)


def _interpolate(values: np.ndarray, start: np.ndarray, count: np.ndarray, q: float) -> np.ndarray:
    place = (count - 1) * q
    below = np.floor(place).astype(np.int64)
    above = np.minimum(below + 1, count - 1)
    low, high = values[start + below], values[start + above]
    share = place - below
    # Do not interpolate on an exact hit: infinity times zero is NaN.
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where((share == 0) | (low == high), low, low * (1 - share) + high * share)


def quantile_result(values: np.ndarray, seen: np.ndarray, type: pa.DataType) -> pa.Array:
    """One row per group: floats, or lists of floats for several quantiles; null for an empty
    group.
    """
    if not pa.types.is_list(type):
        return from_storage(values[:, 0], seen, type)
    offsets = np.concatenate([[0], np.cumsum(np.where(seen, values.shape[1], 0))]).astype(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()),
        pa.array(values[seen].ravel(), pa.float64()),
        mask=pa.array(~seen, pa.bool_()),
    )


class TopK(Kept):
    """The k largest values, or the values of the k rows with the largest `by`.

    Ties are broken by event time and arrival; NaN is smallest. With `ascending`, `by` is a struct
    whose fields decide in turn, each with its own direction; null is smallest.
    """

    def __init__(
        self,
        column: str,
        type: pa.DataType,
        k: int,
        by: str | None,
        by_type: pa.DataType | None,
        *,
        distinct: bool,
        ascending: tuple[bool, ...] = (),
    ) -> None:
        more = {} if by_type is None else {"by": by_type, "time": pa.int64(), "order": pa.int64()}
        super().__init__({"value": type, **more}, pa.list_(type))
        self.column, self.k, self.by, self.distinct = column, k, by, distinct
        self.ascending = ascending

    def lift(self, rows: Rows, groups: Groups) -> Lifted:
        columns = {"value": rows.column(self.column)}
        if self.by is not None:
            columns["by"] = rows.column(self.by)
        items, ids = present(rows, columns, valid(columns.get("by", columns["value"])), groups)
        return Lifted(self.keep({name: items[name] for name in self.partial_types}, ids, groups.n))

    def arrange(self, items: Items, ids: np.ndarray) -> np.ndarray:
        keys = self._keys(items)
        if self.by is not None:
            keys += [items["time"].to_numpy(), items["order"].to_numpy()]
        rows = _sorted_rows(ids, keys)
        if self.distinct:
            rows = rows[self._novel(items, ids, keys, rows)]
        group = ids[rows]
        starts = np.flatnonzero(_changes(group, []))
        rank = np.arange(len(rows)) - np.repeat(starts, np.diff(np.append(starts, len(rows))))
        return rows[rank < self.k]

    def _keys(self, items: Items) -> list[np.ndarray]:
        """Keys by which the first rows sort first."""
        if not self.ascending:
            return [~sort_keys(items["value"] if self.by is None else items["by"])]
        return [
            ranks if first else ~ranks
            for ranks, first in zip(field_ranks(items["by"]), self.ascending, strict=True)
        ]

    def _novel(
        self, items: Items, ids: np.ndarray, keys: list[np.ndarray], rows: np.ndarray
    ) -> np.ndarray:
        """Mask of rows, in sorted order, that are the first of their value (and `by`)."""
        if self.by is None:
            return _changes(ids[rows], [keys[0][rows]])
        value = sort_keys(items["value"])[rows]
        missing = items["value"].is_null().to_numpy(zero_copy_only=False)[rows].astype(np.int64)
        same = [keys[0][rows], missing, np.where(missing, 0, value)]
        order = _sorted_rows(ids[rows], same)
        novel = np.empty(len(rows), bool)
        novel[order] = _changes(ids[rows][order], [key[order] for key in same])
        return novel

    def lower(self, partials: Partials) -> pa.Array:
        return typed(partials["value"], self.result_type)


class Distinct(Kept):
    """The distinct non-null values of one column, or the distinct rows of several, sorted."""

    def __init__(self, columns: tuple[str, ...], types: tuple[pa.DataType, ...]) -> None:
        self.columns = columns
        self.type = (
            types[0] if len(columns) == 1 else pa.struct(list(zip(columns, types, strict=True)))
        )
        super().__init__({"values": self.type}, pa.list_(self.type))

    def lift(self, rows: Rows, groups: Groups) -> Lifted:
        arrays = {name: _positive_zero(rows.column(name)) for name in self.columns}
        if len(arrays) > 1:
            return Lifted(self.keep({"values": lists.struct_of(arrays)}, groups.ids, groups.n))
        array = arrays[self.columns[0]]
        mask = valid(array)
        return Lifted(
            self.keep(
                {"values": array.drop_null()},
                groups.ids if mask is None else groups.ids[mask],
                groups.n,
            )
        )

    def arrange(self, items: Items, ids: np.ndarray) -> np.ndarray:
        keys = sort_keys(items["values"], nan_first=False)
        rows = _sorted_rows(ids, [keys])
        return rows[_changes(ids[rows], [keys[rows]])]

    def lower(self, partials: Partials) -> pa.Array:
        return typed(partials["values"], self.result_type)


def _positive_zero(array: pa.Array) -> pa.Array:
    """Replace -0.0 by 0.0, so that the result does not depend on the order of arrival."""
    dtype = storage_dtype(array.type)
    if dtype is None or dtype.kind != "f":
        return array
    if pa.types.is_float16(array.type):
        # Arrow has no comparison of them.
        values, missing = storage(array), array.is_null().to_numpy(zero_copy_only=False)
        return pa.array(np.where(values == 0, np.float16(0), values), array.type, mask=missing)
    return pc.if_else(
        pc.equal(array, pa.scalar(0.0, array.type)), pa.scalar(0.0, array.type), array
    )


class CountDistinct(Distinct):
    """Exact number of distinct values."""

    def __init__(self, columns: tuple[str, ...], types: tuple[pa.DataType, ...]) -> None:
        super().__init__(columns, types)
        self.result_type = pa.int64()

    def lower(self, partials: Partials) -> pa.Array:
        return pa.array(lists.lengths(typed_list(partials["values"], self.partial_types["values"])))


class OverDistinct(Distinct):
    """Any accumulation over the distinct values, evaluated when the result is lowered."""

    def __init__(
        self, base: Accumulation, columns: tuple[str, ...], types: tuple[pa.DataType, ...]
    ) -> None:
        super().__init__(columns, types)
        self.base, self.result_type, self.full_state = base, base.result_type, base.full_state

    def evaluate(self, partials: Partials) -> Lowered:
        column = typed_list(partials["values"], self.partial_types["values"])
        values = column.flatten()
        arrays = (
            values.flatten()
            if isinstance(values, pa.StructArray) and len(self.columns) > 1
            else [values]
        )
        groups = Groups(lists.owners(column), len(column))
        place = np.arange(len(values))
        lifted = self.base.lift(
            Rows(pa.table(arrays, names=list(self.columns)), place, place), groups
        )
        lowered = self.base.evaluate(lifted.partials)
        if lifted.failed is None or not lifted.failed.any():
            return lowered
        broken = groups.any(lifted.failed)
        failed = broken if lowered.failed is None else broken | lowered.failed
        return Lowered(
            pc.if_else(pa.array(failed), pa.scalar(None, self.result_type), lowered.values),
            failed,
            lifted.why,
        )

    def lower(self, partials: Partials) -> pa.Array:
        return self.evaluate(partials).values

    def overflowed(self, partials: Partials) -> np.ndarray | None:
        return self.evaluate(partials).failed
