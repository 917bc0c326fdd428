"""Event time: reading time columns as int64 ticks, and classifying events by lateness."""

from __future__ import annotations

import re
import warnings
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import InputError
from tidegate.instants import MAX, MIN, saturating_add
from tidegate.kernel.frame import to_arrow

OK, NULL, BAD = 0, 1, 2
CLASSES = ("on_time", "mildly_late", "very_late", "future")
ON_TIME, MILDLY_LATE, VERY_LATE, FUTURE = range(4)
_PER_UNIT = {"s": 1_000_000, "ms": 1_000}
_FORMATS = (pa.timestamp("us", "UTC"), pa.timestamp("us"))
"""The types of texts with and without a zone; Arrow reads no text as both."""
_HAS_ZONE = re.compile(r":.*[Zz+-]")
"""A zone after the time of day; what it matches is only tried first."""
_FEW = 64
"""Up to this many texts are read one by one if they have several formats."""


def read_times(
    column: pa.Array | pa.ChunkedArray, name: str, *, null_is: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The ticks of each row, and whether its time is readable (`OK`), missing or unreadable.

    With `null_is` a missing time is read as that value.
    """
    ticks, verdict = _read(to_arrow(column), name)
    if null_is is None:
        return ticks, verdict
    return np.where(verdict == NULL, null_is, ticks), np.where(verdict == NULL, OK, verdict).astype(
        np.int8
    )


def is_ticks(kind: pa.DataType) -> bool:
    """Whether times of this type are plain numbers, and window bounds are shown as numbers."""
    return pa.types.is_integer(kind) or pa.types.is_null(kind)


def is_instants(kind: pa.DataType) -> bool:
    """Whether `read_times` accepts columns of this type."""
    if pa.types.is_dictionary(kind):
        return is_instants(kind.value_type)
    return (
        is_ticks(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_date(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
    )


def classify(
    times: np.ndarray,
    watermark: int | np.ndarray,
    lateness: int,
    now: int,
    tolerance: int,
    reference: str,
) -> np.ndarray:
    """The lateness class of each event time, under one watermark or each under its own.

    A watermark of `MIN` means that there is none yet. `reference` is what `tolerance` counts from:
    the `clock`, which is at `now`, or the `watermark`.
    """
    classes = np.zeros(len(times), np.int8)
    origin = np.asarray(now if reference == "clock" else watermark)
    if (origin != MIN).any():
        classes[(times > saturating_add(origin, tolerance)) & (origin != MIN)] = FUTURE
    if np.any(watermark != MIN):
        # An event behind the watermark is late, even if it is ahead of a clock that stands still.
        # No time is before `MIN`.
        classes[times < watermark] = MILDLY_LATE
        classes[times < saturating_add(np.asarray(watermark), -lateness)] = VERY_LATE
    return classes


def _read(array: pa.Array, name: str) -> tuple[np.ndarray, np.ndarray]:
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _read(array.cast(kind.value_type), name)
    if pa.types.is_null(kind):
        return np.zeros(len(array), np.int64), np.full(len(array), NULL, np.int8)
    if pa.types.is_integer(kind):
        ticks, bad = _whole_numbers(array)
    elif pa.types.is_timestamp(kind):
        ticks, bad = _timestamps(array)
    elif pa.types.is_date(kind):
        ticks, bad = _timestamps(array.cast(pa.timestamp("ms")))
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        ticks, bad = _texts(array)
    else:
        raise InputError(
            f"the time column `{name}` has type `{kind}`, which is no instant. Hint: use"
            " a timestamp, an ISO text or integer microseconds"
        )
    if (
        array.null_count == 0
        and bad is None
        and (not len(ticks) or (ticks.min() > MIN and ticks.max() < MAX))
    ):
        return ticks, np.zeros(len(ticks), np.int8)
    unreadable = (
        (ticks == MIN) | (ticks == MAX) if bad is None else bad | (ticks == MIN) | (ticks == MAX)
    )
    verdict = np.where(
        array.is_null().to_numpy(zero_copy_only=False), NULL, np.where(unreadable, BAD, OK)
    ).astype(np.int8)
    return np.where(verdict == OK, ticks, 0), verdict


def _whole_numbers(array: pa.Array) -> tuple[np.ndarray, np.ndarray | None]:
    filled = pc.fill_null(array, 0)
    if pa.types.is_uint64(array.type):
        words = filled.to_numpy(zero_copy_only=False)
        return words.astype(np.int64), words > np.uint64(MAX)
    return filled.cast(pa.int64()).to_numpy(zero_copy_only=False), None


def _timestamps(array: pa.Array) -> tuple[np.ndarray, np.ndarray | None]:
    words = array.view(pa.int64())
    raw = (words if array.null_count == 0 else pc.fill_null(words, 0)).to_numpy(
        zero_copy_only=False
    )
    if array.type.unit == "us":
        return raw, None
    if array.type.unit == "ns":
        ticks = np.floor_divide(raw, 1_000)
        if (ticks * 1_000 != raw).any():
            warnings.warn(
                "times have nanoseconds, which are dropped: windows, watermarks and lateness count"
                " microseconds. Hint: cast the column to timestamp('us')",
                RuntimeWarning,
                stacklevel=2,
            )
        return ticks, None
    factor = _PER_UNIT[array.type.unit]
    limit = MAX // factor
    bad = (raw > limit) | (raw < -limit)
    return np.where(bad, 0, raw) * factor, bad


def _texts(array: pa.Array) -> tuple[np.ndarray, np.ndarray | None]:
    """The ticks of ISO texts, and which are unreadable, if any.

    Texts with and without a zone, or unreadable ones, are separated by halving: Arrow reads a
    column in one format or not at all.
    """
    found = _in_one_format(array)
    if found is not None:
        return _timestamps(found)
    if len(array) > _FEW:
        half = len(array) // 2
        parts = [_texts(array.slice(0, half)), _texts(array.slice(half))]
        return np.concatenate([ticks for ticks, _ in parts]), np.concatenate(
            [np.zeros(len(ticks), bool) if bad is None else bad for ticks, bad in parts]
        )
    ticks, bad = np.zeros(len(array), np.int64), np.zeros(len(array), bool)
    for row, text in enumerate(array.to_pylist()):
        value = None if text is None else _one_text(text)
        bad[row] = value is None
        ticks[row] = value or 0
    return ticks, bad


def _in_one_format(array: pa.Array) -> pa.Array | None:
    """The instants of texts that all have a zone, or all have none; None if they are mixed.

    The format of the first text is tried first: a column in the other one fails slowly, because
    Arrow makes an error for every row.
    """
    first = pc.first(array).as_py()
    formats = _FORMATS if first is None or _HAS_ZONE.search(first) else _FORMATS[::-1]
    for kind in formats:
        with suppress(pa.ArrowInvalid):
            return array.cast(kind)
    return None


def _one_text(text: str) -> int | None:
    for kind in _FORMATS:
        try:
            return int(pa.array([text]).cast(kind).cast(pa.int64())[0].as_py())
        except pa.ArrowInvalid:
            continue
    return None
