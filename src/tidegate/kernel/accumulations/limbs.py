"""Exact sums of integers wider than int64, as columns of 32-bit limbs.

A number is `limb[0] + limb[1] * 2**32 + ...`. All limbs but the highest are in [0, 2**32), the
highest is signed and holds the carry. Limbs are int64, so up to 2**31 of them can be added before
the carries are propagated: the sum is exact in any order.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidegate.kernel.groups import Groups

_LOW = np.int64(0xFFFFFFFF)
_SHIFT = np.int64(32)
_SAFE = 2**62

Limbs = list[np.ndarray]


def split(values: np.ndarray) -> Limbs:
    """Integers of up to 64 bit as two limbs."""
    if values.dtype == np.uint64:
        return [
            (values & np.uint64(_LOW)).astype(np.int64),
            (values >> np.uint64(32)).astype(np.int64),
        ]
    wide = values.astype(np.int64, copy=False)
    return [wide & _LOW, wide >> _SHIFT]


def split_decimals(array: pa.Array) -> Limbs:
    """Unscaled decimal values as limbs of their full width; zero at nulls."""
    words = array.type.bit_width // 32
    data = array.buffers()[1]
    if data is None:
        return [np.zeros(len(array), np.int64) for _ in range(words)]
    raw = (
        np.frombuffer(memoryview(data), "<i4", len(array) * words, array.offset * words * 4)
        .reshape(-1, words)
        .astype(np.int64)
    )
    limbs = [raw[:, i] & _LOW for i in range(words - 1)] + [raw[:, -1].copy()]
    if array.null_count:
        absent = array.is_null().to_numpy(zero_copy_only=False)
        for limb in limbs:
            limb[absent] = 0
    return limbs


def carry(limbs: Limbs) -> Limbs:
    """Propagate carries; columns are replaced, not changed, because others may share them."""
    for i in range(len(limbs) - 1):
        over = limbs[i] >> _SHIFT
        if over.any():
            limbs[i], limbs[i + 1] = limbs[i] & _LOW, limbs[i + 1] + over
    return limbs


def add(limbs: Limbs, groups: Groups) -> Limbs:
    """Sums of limbs by group."""
    return carry([groups.sum(limb) for limb in limbs])


def add_integers(values: np.ndarray, groups: Groups) -> Limbs:
    """Sums of integers by group; one addition per row if no sum can exceed int64."""
    if not len(values):
        return [np.zeros(groups.n, np.int64), np.zeros(groups.n, np.int64)]
    bound = max(abs(int(values.min())), abs(int(values.max())))
    if bound * len(values) < _SAFE:
        return split(groups.sum(values.astype(np.int64, copy=False)))
    return add(split(values), groups)


def fits_int64(limbs: Limbs) -> np.ndarray:
    """Mask of two-limb numbers that fit int64."""
    return (limbs[1] >= -(2**31)) & (limbs[1] < 2**31)


def to_int64(limbs: Limbs) -> np.ndarray:
    """Two-limb numbers as int64; wraps where they do not fit."""
    return (limbs[1] << _SHIFT) | limbs[0]


def magnitude(limbs: Limbs) -> tuple[Limbs, np.ndarray]:
    """Absolute values, and a mask of negative numbers."""
    negative = limbs[-1] < 0
    sign = np.where(negative, -1, 1)
    return carry([limb * sign for limb in limbs]), negative


def below(limbs: Limbs, bound: int) -> np.ndarray:
    """Mask of non-negative numbers below a bound."""
    smaller = np.zeros(len(limbs[0]), bool)
    for i, limb in enumerate(limbs):
        part = bound >> 32 * i if i == len(limbs) - 1 else bound >> 32 * i & int(_LOW)
        smaller = (limb < part) | (limb == part) & smaller
    return smaller


def to_floats(limbs: Limbs) -> np.ndarray:
    """Numbers as float64.

    Uses absolute values: the large limbs of a small negative number would cancel out.
    """
    size, negative = magnitude(limbs)
    total = np.zeros(len(limbs[0]))
    for i in reversed(range(len(size))):
        total += size[i] * 2.0 ** (32 * i)
    return np.where(negative, -total, total)


def divide(limbs: Limbs, by: np.ndarray) -> np.ndarray:
    """Two-limb numbers divided by positive integers below 2**31, as float64 with one rounding."""
    high, rest = np.divmod(limbs[1], by)
    low, left = np.divmod((rest << _SHIFT) + limbs[0], by)
    return np.where(
        np.abs(limbs[1]) < 2**20, to_int64(limbs) / by, high * 2.0**32 + (low + left / by)
    )


def floor_divide(limbs: Limbs, by: np.ndarray) -> np.ndarray:
    """Two-limb numbers divided by positive integers below 2**31, rounded down, as int64."""
    high, rest = np.divmod(limbs[1], by)
    return (high << _SHIFT) + ((rest << _SHIFT) + limbs[0]) // by


def to_decimals(limbs: Limbs, present: np.ndarray, type: pa.DataType) -> pa.Array:
    """Numbers as decimals of a type as wide as the limbs; null where absent."""
    words = np.stack([limb & _LOW for limb in limbs], axis=1).astype("<u4")
    bits = pa.py_buffer(np.packbits(present, bitorder="little").tobytes())
    return pa.Array.from_buffers(type, len(present), [bits, pa.py_buffer(words.tobytes())])
