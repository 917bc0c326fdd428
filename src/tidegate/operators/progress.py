"""How far an operator has come: watermark, clock, newest event and the counters that `stats`
shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tidegate.instants import MIN
from tidegate.kernel.events.event_time import CLASSES


@dataclass
class Progress:
    """The scalars of an operator's state."""

    now: int = 0
    watermark: int = MIN
    before: int = MIN
    """The watermark when the current call began: a pane that was complete then is late."""
    newest: int = MIN
    """The newest event that is not future."""
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
    """How many rows went to `late`, by reason; among other counts their names begin with
    `reason.`.
    """
    return {
        name.removeprefix("reason."): n
        for name, n in sorted(counters.items())
        if name.startswith("reason.") and n
    }
