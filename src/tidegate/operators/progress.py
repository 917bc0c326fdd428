"""Progress of an operator: watermark, clock, newest event and the counters of `stats`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tidegate.instants import MIN
from tidegate.kernel.events.event_time import CLASSES

ROW_COUNTERS = ("events", "duplicates", *CLASSES, "unreadable", "late_rows")
PANE_COUNTERS = ("panes_early", "panes_on_time", "panes_late", "retractions")
"""The counters that `stats` of aggregates and joins have in common."""

REPORTED = ("on_time", "mildly_late", "very_late", "future", "unreadable", "duplicates")
"""The classes that metrics report; all but duplicates are events."""


@dataclass
class Progress:
    """The scalar state of an operator."""

    now: int = 0
    watermark: int = MIN
    before: int = MIN
    """The watermark when the current call began: a window that was complete then fires late."""
    newest: int = MIN
    """The newest event time, future rows excluded."""
    seq: int = 0
    counters: Counter[str] = field(default_factory=Counter)

    def count_classes(self, classes: np.ndarray) -> None:
        counts = np.bincount(classes[classes > 0], minlength=len(CLASSES))
        counts[0] = len(classes) - counts.sum()
        for name, count in zip(CLASSES, counts.tolist(), strict=True):
            self.counters[name] += count

    def to_json(self) -> dict[str, Any]:
        return {
            "now": self.now,
            "watermark": self.watermark,
            "newest": self.newest,
            "seq": self.seq,
            "counters": dict(self.counters),
        }

    def restore(self, document: dict[str, Any]) -> None:
        self.now = max(self.now, document["now"])
        self.watermark = self.before = document["watermark"]
        self.newest = document["newest"]
        self.seq = document["seq"]
        self.counters = Counter(document["counters"])


def late_by_reason(counters: Mapping[str, int]) -> dict[str, int]:
    """The number of late rows by reason, from counters whose names begin with `reason.`."""
    return {
        name.removeprefix("reason."): n
        for name, n in sorted(counters.items())
        if name.startswith("reason.") and n
    }
