"""Lateness tells on-time, mildly late, very late and future events apart, all events of a delivery
at once.
"""

from __future__ import annotations

import numpy as np

from tidegate.instants import MIN, saturating_add

CLASSES = ("on_time", "mildly_late", "very_late", "future")
ON_TIME, MILDLY_LATE, VERY_LATE, FUTURE = range(4)


def classify(
    times: np.ndarray,
    watermark: int | np.ndarray,
    lateness: int,
    now: int,
    tolerance: int,
    reference: str,
) -> np.ndarray:
    """The class of each event time under one watermark, or each under its own; `MIN` as watermark
    means that there is none yet.
    """
    classes = np.zeros(len(times), np.int8)
    origin = np.asarray(now if reference == "clock" else watermark)
    if (origin != MIN).any():
        classes[(times > saturating_add(origin, tolerance)) & (origin != MIN)] = FUTURE
    if np.any(watermark != MIN):
        # What is behind the watermark is late, even if a clock that stands still calls it future.
        # No time is before `MIN`.
        classes[times < watermark] = MILDLY_LATE
        classes[times < saturating_add(np.asarray(watermark), -lateness)] = VERY_LATE
    return classes
