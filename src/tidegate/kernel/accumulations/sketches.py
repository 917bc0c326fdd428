"""Approximate accumulations with bounded state, by Apache DataSketches: HyperLogLog and t-digest.

Both are deterministic: the same deliveries give the same estimates after a replay (a KLL sketch
would not). The distinct count depends on the set of values only, not on how they were cut into
deliveries. Sketches are stored in their binary form, null for an empty group. There is a loop over
groups, which passes the values of each group to native code at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import MissingExtraError
from tidegate.kernel.accumulations.collect import quantile_result
from tidegate.kernel.accumulations.protocol import Base, Lifted, Partials, Rows
from tidegate.kernel.accumulations.values import (
    dictionary,
    storage,
    storage_dtype,
    to_floats,
    typed,
    valid,
)
from tidegate.kernel.frame import Column, values_of
from tidegate.kernel.groups import Groups

_LOG_REGISTERS = 12
_CENTROIDS = 200


def _library(purpose: str) -> Any:
    """The package, imported when the first sketch is bound."""
    try:
        import datasketches
    except ImportError as problem:
        raise MissingExtraError("datasketches", "sketches", purpose) from problem
    return datasketches


def _slices(ids: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """(group, start, stop) of each group, from sorted group numbers."""
    starts = np.flatnonzero(np.diff(ids, prepend=-1)).tolist()
    stops = [*starts[1:], len(ids)]
    return zip(ids[starts].tolist(), starts, stops[: len(starts)], strict=True)


class _Sketch(Base, ABC):
    """One binary partial column."""

    def __init__(self, result_type: pa.DataType) -> None:
        super().__init__({"sketch": pa.binary()}, result_type)

    def combine(self, partials: Partials, groups: Groups) -> dict[str, Column]:
        column = typed(partials["sketch"], pa.binary())
        rows = groups.order[column.is_valid().to_numpy(zero_copy_only=False)[groups.order]]
        images: list[Any] = column.take(pa.array(rows)).to_pylist()
        merged: list[bytes | None] = [None] * groups.n
        for group, start, stop in _slices(groups.ids[rows]):
            merged[group] = images[start] if stop - start == 1 else self.merge(images[start:stop])
        return {"sketch": pa.array(merged, pa.binary())}

    @abstractmethod
    def merge(self, images: list[bytes]) -> bytes:
        """Several sketches merged into one."""


class ApproxDistinct(_Sketch):
    """Approximate number of distinct values."""

    def __init__(self, column: str) -> None:
        super().__init__(pa.int64())
        self.column = column
        self.library = _library("`approx_distinct`")

    def lift(self, rows: Rows, groups: Groups) -> Lifted:
        array = rows.column(self.column)
        mask = valid(array)
        ids = groups.ids if mask is None else groups.ids[mask]
        encoded = dictionary(array.drop_null())
        size = max(len(encoded.dictionary), 1)
        pairs = np.sort(
            ids.astype(np.int64) * size + encoded.indices.to_numpy(zero_copy_only=False)
        )
        pairs = pairs[np.diff(pairs, prepend=-1) != 0]
        values = _updatable(encoded.dictionary)[pairs % size]
        images: list[bytes | None] = [None] * groups.n
        for group, start, stop in _slices(pairs // size):
            images[group] = self._sketch_of(values[start:stop])
        return Lifted({"sketch": pa.array(images, pa.binary())})

    def _sketch_of(self, values: np.ndarray) -> bytes:
        sketch = self.library.hll_sketch(_LOG_REGISTERS, self.library.HLL_4)
        deque(map(sketch.update, values), maxlen=0)
        image: bytes = sketch.serialize_compact()
        return image

    def merge(self, images: list[bytes]) -> bytes:
        union = self.library.hll_union(_LOG_REGISTERS)
        for image in images:
            union.update(self.library.hll_sketch.deserialize(image))
        merged: bytes = union.get_result(self.library.HLL_4).serialize_compact()
        return merged

    def lower(self, partials: Partials) -> pa.Array:
        images = typed(partials["sketch"], pa.binary()).to_pylist()
        return pa.array(
            [0 if image is None else self._estimate(image) for image in images], pa.int64()
        )

    def _estimate(self, image: bytes) -> int:
        """Merge a sketch with itself, which removes the order of its updates.

        The estimate then depends on the set of values only.
        """
        sketch = self.library.hll_sketch.deserialize(image)
        union = self.library.hll_union(_LOG_REGISTERS)
        union.update(sketch)
        union.update(sketch)
        return round(union.get_estimate())


def _updatable(values: pa.Array) -> np.ndarray:
    """Distinct values as objects that a sketch accepts: integers, floats, or texts."""
    dtype = storage_dtype(values.type)
    if dtype is None:
        return np.array(_texts(values), dtype=object)
    raw = storage(values)
    if dtype.kind == "f":
        return raw.astype(np.float64).astype(object)
    return (raw.view(np.int64) if dtype == np.uint64 else raw.astype(np.int64)).astype(object)


def _texts(values: pa.Array) -> list[str]:
    """Prefix each text with a letter, because a sketch ignores the empty text."""
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.string())
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        prefix = pa.scalar("s", values.type)
        texts: list[str] = pc.binary_join_element_wise(
            prefix, values, pa.scalar("", values.type)
        ).to_pylist()
        return texts
    raw = values_of(values)
    return ["b" + value.decode("latin-1") for value in raw]


class ApproxQuantile(_Sketch):
    """Approximate quantiles, most precise at both ends; NaN is ignored."""

    def __init__(self, column: str, q: float | tuple[float, ...]) -> None:
        super().__init__(pa.list_(pa.float64()) if isinstance(q, tuple) else pa.float64())
        self.column = column
        self.q = q if isinstance(q, tuple) else (q,)
        digest: Callable[[int], Any] = _library("an approximate `quantile`").tdigest_double
        self.digest = digest

    def lift(self, rows: Rows, groups: Groups) -> Lifted:
        values = to_floats(rows.column(self.column))
        place = groups.order[~np.isnan(values)[groups.order]]
        values = values[place]
        images: list[bytes | None] = [None] * groups.n
        for group, start, stop in _slices(groups.ids[place]):
            sketch = self.digest(_CENTROIDS)
            sketch.update(values[start:stop])
            images[group] = sketch.serialize()
        return Lifted({"sketch": pa.array(images, pa.binary())})

    def merge(self, images: list[bytes]) -> bytes:
        merged = self.digest(_CENTROIDS)
        for image in images:
            merged.merge(self._read(image))
        result: bytes = merged.serialize()
        return result

    def _read(self, image: bytes) -> Any:
        return self.digest.deserialize(image)  # type: ignore[attr-defined]  # a static method of the class

    def lower(self, partials: Partials) -> pa.Array:
        images = typed(partials["sketch"], pa.binary()).to_pylist()
        values = np.zeros((len(images), len(self.q)))
        seen = np.zeros(len(images), bool)
        for i, image in enumerate(images):
            if image is not None:
                sketch = self._read(image)
                values[i], seen[i] = [sketch.get_quantile(q) for q in self.q], True
        return quantile_result(values, seen, self.result_type)
