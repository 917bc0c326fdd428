"""A pipeline with every kind of pane, whose history is known: deliveries and what each of them does.

Sessions of user `a`: one is extended by an early row, two merge, the result is corrected by a late
row, and a very late row misses it. The clock of a delivery is five seconds after its newest event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tidegate as tg

BASE = 1_700_000_040_000_000
SECOND = 1_000_000
GAP = 10


def at(second: float) -> int:
    """An instant, in microseconds."""
    return BASE + int(second * SECOND)


DELIVERIES: list[list[tuple[str, float, int]]] = [
    # An early pane of [1, 13).
    [("a", 1, 10), ("a", 3, 20)],
    # An early pane of [20, 31); the watermark, 16, completes [1, 13).
    [("a", 20, 1), ("a", 21, 2)],
    # Joins the two sessions to [1, 31).
    [("a", 12, 5)],
    # The watermark 35 completes it.
    [("b", 40, 0)],
    # Mildly late, corrects it.
    [("a", 20, 100)],
    # The watermark 95 expires it.
    [("b", 100, 0)],
    # Very late.
    [("a", 22, 7)],
    # A new session that stays open.
    [("a", 101, 3)],
]


def rows(number: int) -> list[dict[str, Any]]:
    """The messages of a delivery; times are microseconds."""
    return [{"user": user, "ts": at(second), "v": v} for user, second, v in DELIVERIES[number]]


def panes(stream: tg.Stream) -> tg.Panes:
    """The pipeline over a stream of these messages."""
    return (
        stream.window(tg.session(f"{GAP} seconds"))
        .trigger(tg.after_watermark(early=tg.after_count(2), late=tg.every_element()))
        .retracting()
        .allow_lateness("20 seconds")
        .aggregate(n=tg.count(), total=tg.sum("v"))
    )


@dataclass(frozen=True)
class Known:
    """A step as the test knows it: the delivery, the kind, the window and what matters of it."""

    delivery: int
    kind: str
    window: tuple[float, float]
    detail: tuple[Any, ...] = ()


EARLY, LATE = "early_trigger", "late_trigger"
FINAL = (1, 31)
HISTORY = [
    Known(0, "rows", FINAL, (2,)),
    Known(
        0, "pane", (1, 13), ("early", 0, EARLY, "AfterCount(2)", {"n": 2, "total": 30}, 2, False)
    ),
    Known(1, "rows", FINAL, (2,)),
    Known(
        1, "pane", (20, 31), ("early", 0, EARLY, "AfterCount(2)", {"n": 2, "total": 3}, 2, False)
    ),
    Known(1, "pane", (1, 13), ("on_time", 1, "watermark", "", {}, 0, True)),
    Known(2, "rows", FINAL, (1,)),
    Known(2, "merge", FINAL, ({(1, 13), (20, 31)},)),
    Known(2, "withdrawn", (1, 13), (FINAL, {"n": 2, "total": 30})),
    Known(2, "withdrawn", (20, 31), (FINAL, {"n": 2, "total": 3})),
    Known(3, "pane", FINAL, ("on_time", 0, "watermark", "", {"n": 5, "total": 38}, 1, False)),
    Known(4, "rows", FINAL, (1,)),
    Known(4, "pane", FINAL, ("late", 1, LATE, "EveryElement()", {"n": 6, "total": 138}, 1, True)),
    Known(6, "late", (22, 32), ("very_late", "very_late", 73, 53, 7)),
]
"""The history of user `a` between 0 and 60 s."""


def known(step: Any, first: int) -> Known:
    """A step of a history, as the test knows them; `first` is the number of the first delivery."""
    window = ((step.start - BASE) / SECOND, (step.end - BASE) / SECOND)
    match step.kind:
        case "rows":
            window, detail = FINAL, (step.rows,)
        case "pane":
            new = {name: value for name, (_, value) in step.changes.items()}
            detail = (
                step.timing,
                step.pane,
                step.cause,
                step.trigger,
                new,
                step.rows,
                step.retracts,
            )
        case "merge":
            detail = ({_seconds(part) for part in step.parts},)
        case "withdrawn":
            detail = (None if step.into is None else _seconds(step.into), dict(step.values))
        case "late":
            far = [step.behind // SECOND, step.beyond // SECOND]
            detail = (step.lateness, step.reason, *far, step.row["v"])
    return Known(step.batch - first, step.kind, window, detail)


def _seconds(bounds: tuple[int, int]) -> tuple[float, float]:
    return (bounds[0] - BASE) / SECOND, (bounds[1] - BASE) / SECOND
