"""The kernel cases by name."""

from __future__ import annotations

from collections.abc import Callable

from bench import bursty, cases, triggers
from bench.cases import Measured

CASES: dict[str, Callable[[int], list[Measured]]] = {
    "tumbling_100k": cases.tumbling_100k,
    "tumbling_1m": cases.tumbling_1m,
    "sliding": cases.sliding,
    "session": cases.sessions,
    "retracting": cases.retracting,
    "small_deliveries": cases.small_deliveries,
    "early_every_100": triggers.early_every_100,
    "early_every_10k": triggers.early_every_10k,
    "early_every_hot": triggers.early_every_hot,
    "composite_100": triggers.composite_100,
    "composite_hot": triggers.composite_hot,
    "session_early_100": triggers.session_early_100,
    "session_early_hot": triggers.session_early_hot,
    "bursty_sessions": bursty.bursty_sessions,
    "history": cases.history,
}
"""The first measurement of a case has its name, the others are variations of it."""
