"""The answer of a join over all rows at once, which the net of every history must equal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from support.reference.join_config import GRIDS, LEFT, RIGHT, AsOf, JoinConfig, Row, Rows
from support.reference.windows import aligned
from tidegate.spec.windows import Session


def batch_answer(
    config: JoinConfig, left: list[Row], right: list[Row], first: Sequence[int] = (0, 0)
) -> list[tuple[Row | None, Row | None]]:
    """The pairs and unmatched rows of all rows together, in any order.

    Rows of a side are in the order of arrival. `first` are the first offsets of both sides. Not for
    joins of the last messages.
    """
    pairs = [(a, b) for a in left for b in right if _belong(config, (left, right), a, b, first)]
    if isinstance(config.window, AsOf):
        place = {id(row): number for number, row in enumerate(right)}
        pairs = [
            max((p for p in pairs if p[0] is a), key=lambda p: (p[1]["ts"], place[id(p[1])]))
            for a in left
            if any(p[0] is a for p in pairs)
        ]
    if config.how == "semi":
        return [(a, None) for a in left if any(p[0] is a for p in pairs)]
    alone: list[tuple[Row | None, Row | None]] = []
    if config.pads(LEFT):
        alone += [(a, None) for a in left if not any(p[0] is a for p in pairs)]
    if config.pads(RIGHT):
        alone += [(None, b) for b in right if not any(p[1] is b for p in pairs)]
    return [*(pairs if config.shows_pairs else []), *alone]


def _at(config: JoinConfig, row: Row, first: int) -> int:
    """Where a row is: at its time, or as far as its offset is from the first of its side."""
    return row["o"] - first if config.is_counted else row["ts"]


def _belong(
    config: JoinConfig, sides: tuple[list[Row], list[Row]], a: Row, b: Row, first: Sequence[int]
) -> bool:
    """Whether two rows are a pair: by equal fields, window and condition."""
    if any(a[x] is None or a[x] != b[y] for x, y in config.on):
        return False
    window = config.window
    at = _at(config, a, first[LEFT]), _at(config, b, first[RIGHT])
    if isinstance(window, GRIDS):
        together = bool(set(aligned(window, at[LEFT])) & set(aligned(window, at[RIGHT])))
    elif isinstance(window, Session):
        times = sorted(
            _at(config, row, first[side])
            for side, rows in enumerate(sides)
            for row in rows
            if all(row[p[side]] == a[p[LEFT]] for p in config.on[: config.session_fields])
        )
        low, high = sorted(at)
        path = [time for time in times if low <= time <= high]
        together = all(
            y - x < (window.gap or 0) + (window.touch == "merge" or config.is_counted) or x == y
            for x, y in pairwise(path)
        )
    else:
        assert not isinstance(window, Rows)
        together = all(
            bound.holds(a, b) for bound in (window if isinstance(window, tuple) else (window,))
        )
    try:
        return together and (config.where is None or config.where(a, b) is True)
    except ArithmeticError:
        return False
