"""Additive accumulations: count, sum, mean, variance, any and all.

Those of exact types support retractions.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidegate.kernel.accumulations import limbs
from tidegate.kernel.accumulations.limbs import Limbs
from tidegate.kernel.accumulations.protocol import Base, Fallible, Lifted, Lowered, Partials, Rows
from tidegate.kernel.accumulations.values import from_storage, storage, to_floats, valid
from tidegate.kernel.frame import Column, to_numpy
from tidegate.kernel.groups import Groups


def _tally(groups: Groups, mask: np.ndarray | None, weight: np.ndarray | None) -> np.ndarray:
    """Weighted number of masked rows per group."""
    if mask is None:
        return groups.counts if weight is None else groups.sum(weight.astype(np.int64, copy=False))
    return groups.sum(
        mask.astype(np.int64) if weight is None else mask * weight.astype(np.int64, copy=False)
    )


def _filled(values: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """Values with zero where the mask is false."""
    return values if mask is None else np.where(mask, values, values.dtype.type(0))


class _Additive(Base):
    """Partials that are combined by adding every column."""

    invertible = True

    def combine(self, partials: Partials, groups: Groups) -> dict[str, Column]:
        return {name: groups.sum(to_numpy(partials[name])) for name in self.partial_types}


class Count(_Additive):
    """Number of rows, or of non-null values."""

    def __init__(self, column: str | None) -> None:
        super().__init__({"n": pa.int64()}, pa.int64())
        self.column = column

    def lift(self, rows: Rows, groups: Groups) -> Lifted:
        mask = None if self.column is None else valid(rows.column(self.column))
        return Lifted({"n": _tally(groups, mask, rows.weight)})

    def lower(self, partials: Partials) -> pa.Array:
        return pa.array(to_numpy(partials["n"]))


class AnyAll(_Additive):
    """Number of true and of false values."""

    def __init__(self, column: str, *, every: bool) -> None:
        super().__init__({"true": pa.int64(), "false": pa.int64()}, pa.bool_())
        self.column, self.every = column, every

    def lift(self, rows: Rows, groups: Groups) -> Lifted:
        array = rows.column(self.column)
        mask = valid(array)
        true = storage(array)
        false = ~true if mask is None else ~true & mask
        return Lifted(
            {"true": _tally(groups, true, rows.weight), "false": _tally(groups, false, rows.weight)}
        )

    def lower(self, partials: Partials) -> pa.Array:
        true, false = to_numpy(partials["true"]) > 0, to_numpy(partials["false"]) > 0
        return from_storage(~false if self.every else true, true | false, pa.bool_())


class _Limbed(Fallible):
    """Exact sums in limbs, and the number of values."""

    invertible = True

    def __init__(self, column: str, source: pa.DataType, result_type: pa.DataType) -> None:
        self.column = column
        self.decimal = pa.types.is_decimal(source)
        self.scale = int(getattr(source, "scale", 0))
        self.width = max(source.bit_width // 32, 4) if self.decimal else 2
        self.names = [f"s{i}" for i in range(self.width)]
        super().__init__(
            {**{name: pa.int64() for name in self.names}, "n": pa.int64()}, result_type
        )

    def lift(self, rows: Rows, groups: Groups) -> Lifted:
        array = rows.column(self.column)
        mask = valid(array)
        total = (
            _decimals(array, rows.weight, groups)
            if self.decimal
            else _integers(array, mask, rows.weight, groups)
        )
        return Lifted(
            {**dict(zip(self.names, total, strict=True)), "n": _tally(groups, mask, rows.weight)}
        )

    def combine(self, partials: Partials, groups: Groups) -> dict[str, Column]:
        total = limbs.add(self._limbs(partials), groups)
        return {
            **dict(zip(self.names, total, strict=True)),
            "n": groups.sum(to_numpy(partials["n"])),
        }

    def _limbs(self, partials: Partials) -> Limbs:
        return [to_numpy(partials[name]) for name in self.names]


def _decimals(array: pa.Array, weight: np.ndarray | None, groups: Groups) -> Limbs:
    if array.type.bit_width < 128:
        array = array.cast(pa.decimal128(38, array.type.scale))
    parts = limbs.split_decimals(array)
    return limbs.add(parts if weight is None else [part * weight for part in parts], groups)


def _integers(
    array: pa.Array, mask: np.ndarray | None, weight: np.ndarray | None, groups: Groups
) -> Limbs:
    values = storage(array)
    values = _filled(values.astype(np.int64) if values.dtype == np.bool_ else values, mask)
    if weight is None:
        return limbs.add_integers(values, groups)
    return limbs.add([part * weight for part in limbs.split(values)], groups)


class ExactSum(_Limbed):
    """The sum of integers, durations or decimals."""

    def evaluate(self, partials: Partials) -> Lowered:
        total = self._limbs(partials)
        # A change between two panes may have as many new values as retracted ones.
        seen = (to_numpy(partials["n"]) != 0) | np.logical_or.reduce([part != 0 for part in total])
        if self.decimal:
            fits = limbs.below(limbs.magnitude(total)[0], 10 ** (76 if self.width == 8 else 38))
            values = limbs.to_decimals(total, seen & fits, self.result_type)
        else:
            fits = limbs.fits_int64(total)
            values = from_storage(limbs.to_int64(total), seen & fits, self.result_type)
        failed = seen & ~fits
        if not failed.any():
            return Lowered(values)
        return Lowered(
            values,
            failed,
            f"the sum of `{self.column}` does not fit {self.result_type}",
            "overflow",
        )


class ExactMean(_Limbed):
    """The mean of integers, durations or decimals, from their exact sum."""

    def lower(self, partials: Partials) -> pa.Array:
        total, n = self._limbs(partials), to_numpy(partials["n"])
        seen, by = n > 0, np.maximum(n, 1)
        if self.decimal:
            return from_storage(limbs.to_floats(total) / by / 10.0**self.scale, seen, pa.float64())
        mean = (
            limbs.floor_divide(total, by)
            if pa.types.is_duration(self.result_type)
            else limbs.divide(total, by)
        )
        return from_storage(mean, seen, self.result_type)

    def evaluate(self, partials: Partials) -> Lowered:
        return Lowered(self.lower(partials))


class FloatSum(Base):
    """The sum or mean of floats.

    Floats cannot be subtracted exactly: 1e300 + 1 - 1e300 is 0, and no number is left of an
    infinity. With retractions it is computed from the messages.
    """

    def __init__(self, column: str, *, mean: bool) -> None:
        super().__init__({"sum": pa.float64(), "n": pa.int64()}, pa.float64())
        self.column, self.mean = column, mean

    def lift(self, rows: Rows, groups: Groups) -> Lifted:
        array = rows.column(self.column)
        mask = valid(array)
        values = _filled(storage(array).astype(np.float64, copy=False), mask)
        return Lifted({"sum": groups.sum(values), "n": _tally(groups, mask, None)})

    def combine(self, partials: Partials, groups: Groups) -> dict[str, Column]:
        return {name: groups.sum(to_numpy(partials[name])) for name in self.partial_types}

    def lower(self, partials: Partials) -> pa.Array:
        total, n = to_numpy(partials["sum"]), to_numpy(partials["n"])
        return from_storage(total / np.maximum(n, 1) if self.mean else total, n > 0, pa.float64())


class Spread(Base):
    """Variance and standard deviation, by sums of squares around the mean.

    A partial has n, the mean as the centre, and the sum of squared deviations from it. With
    retractions it is computed from the messages, like other results of floats.
    """

    def __init__(self, column: str, ddof: int, *, root: bool) -> None:
        super().__init__(
            {"n": pa.int64(), "centre": pa.float64(), "m2": pa.float64()}, pa.float64()
        )
        self.column, self.ddof, self.root = column, ddof, root

    def lift(self, rows: Rows, groups: Groups) -> Lifted:
        array = rows.column(self.column)
        mask = valid(array)
        values = _filled(to_floats(array), mask)
        single: dict[str, Column] = {
            "n": _filled(np.ones(len(values), np.int64), mask),
            "centre": values,
            "m2": np.zeros(len(values)),
        }
        return Lifted(self.combine(single, groups))

    def combine(self, partials: Partials, groups: Groups) -> dict[str, Column]:
        n, centre, m2 = (to_numpy(partials[name]) for name in ("n", "centre", "m2"))
        count = groups.sum(n)
        with np.errstate(invalid="ignore", over="ignore"):
            new = self._centre(n, centre, count, groups)
            squares = m2 + n * (centre - new[groups.ids]) ** 2
            return {"n": count, "centre": new, "m2": groups.sum(squares)}

    def _centre(
        self, n: np.ndarray, centre: np.ndarray, count: np.ndarray, groups: Groups
    ) -> np.ndarray:
        """The mean, as a correction to an average of centres, so that large offsets keep
        precision.
        """
        used = n != 0
        kept = groups if used.all() else Groups(groups.ids[used], groups.n)
        start = kept.sum(centre[used]) / np.maximum(kept.counts, 1)
        step = groups.sum(n * np.where(used, centre - start[groups.ids], 0.0))
        return start + np.where(count > 0, step / np.maximum(count, 1), 0.0)

    def lower(self, partials: Partials) -> pa.Array:
        n, m2 = to_numpy(partials["n"]), to_numpy(partials["m2"])
        with np.errstate(invalid="ignore", divide="ignore"):
            spread = np.maximum(m2, 0.0) / np.maximum(n - self.ddof, 1)
            spread = np.sqrt(spread) if self.root else spread
        return from_storage(spread, n > self.ddof, pa.float64())
