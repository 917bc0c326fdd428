"""The windows of one key that an operator holds, and what each of them waits for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidegate.instants import MAX, MIN
from tidegate.kernel.frame import Frame
from tidegate.operators.aggregate.operator import WindowedAggregate
from tidegate.operators.aggregate.wiring import Wiring
from tidegate.operators.explain.explanation import waiting_windows
from tidegate.operators.history.facts import OpenWindow
from tidegate.operators.history.rows import Selection
from tidegate.operators.inspection.aggregate import AggregateInspection

LISTED = 200
"""The number of windows that are listed; a range may hold any number."""


class _Inspected(AggregateInspection):
    def __init__(self, operator: WindowedAggregate) -> None:
        self.operator = operator

    def cells(self, wiring: Wiring, asked: Selection) -> Frame | None:
        """The cells of a selection."""
        low = None if asked.low == MIN else asked.low
        high = None if asked.high == MAX else asked.high - 1
        return self._selected(wiring, low, high, asked.key or None)


def open_windows(
    operators: Iterable[WindowedAggregate], asked: Selection
) -> tuple[OpenWindow, ...]:
    """The windows of a selection that did not expire, those that end first before the others."""
    found = [window for operator in operators for window in _held(operator, asked)]
    return tuple(sorted(found, key=lambda window: (window.end, window.start))[:LISTED])


def elsewhere(
    operators: Iterable[WindowedAggregate], asked: Selection, found: Sequence[OpenWindow]
) -> int:
    """If no window was found in a selection: how many the key has outside of it."""
    return 0 if found or asked.is_whole else len(open_windows(operators, asked.whole))


def _held(operator: WindowedAggregate, asked: Selection) -> list[OpenWindow]:
    if operator.wiring is None:
        return []
    cells = _Inspected(operator).cells(operator.wiring, asked)
    if cells is None or not len(cells):
        return []
    cells = cells.slice(0, min(len(cells), LISTED))
    waits = waiting_windows(operator, cells)
    context = operator.wiring.context
    columns = [cells.ints(name).tolist() for name in ("start", "end", "row_count", "pending")]
    panes, expiry = cells.ints("pane_index").tolist(), cells.ints("expiry").tolist()
    return [
        OpenWindow(
            start=start,
            end=end,
            rows=rows,
            pending=pending,
            panes=panes[n],
            waits=waits.get(n),
            expiry=None if context.retains or expiry[n] == MAX else expiry[n],
        )
        for n, (start, end, rows, pending) in enumerate(zip(*columns, strict=True))
    ]
