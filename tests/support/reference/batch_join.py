"""The answer of a join over all rows at once, which the net of every history must equal."""

from __future__ import annotations

from itertools import pairwise

from support.reference.join import GRIDS, LEFT, RIGHT, AsOf, JoinConfig, Row, Rows
from support.reference.windows import aligned
from tidegate.spec.windows import Session


def batch_answer(
    config: JoinConfig, left: list[Row], right: list[Row]
) -> list[tuple[Row | None, Row | None]]:
    """The pairs and unmatched rows of all rows together, in any order.

    Rows of a side are in the order of arrival. Not for joins of tuples.
    """
    pairs = [(a, b) for a in left for b in right if _belong(config, left, right, a, b)]
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


def _belong(config: JoinConfig, left: list[Row], right: list[Row], a: Row, b: Row) -> bool:
    """Whether two rows are a pair: by equal fields, window and condition."""
    if any(a[x] is None or a[x] != b[y] for x, y in config.on):
        return False
    window = config.window
    if isinstance(window, GRIDS):
        together = bool(set(aligned(window, a["ts"])) & set(aligned(window, b["ts"])))
    elif isinstance(window, Session):
        times = sorted(
            row["ts"]
            for side, rows in ((LEFT, left), (RIGHT, right))
            for row in rows
            if all(row[p[side]] == a[p[LEFT]] for p in config.on[: config.session_fields])
        )
        low, high = sorted((a["ts"], b["ts"]))
        path = [time for time in times if low <= time <= high]
        together = all(
            y - x < (window.gap or 0) + (window.touch == "merge") or x == y
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
