"""Conditions between times of two sides: which difference of times they allow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sqlglot import exp

from tidegate.errors import SpecError
from tidegate.instants import MAX
from tidegate.spec.join import Closed, Within
from tidegate.sql.intervals import ticks
from tidegate.sql.planner.relation import column_of

FLIPPED: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
    exp.EQ: exp.EQ,
}
"""The comparisons with exchanged sides."""


@dataclass(frozen=True)
class Difference:
    """`low <= left - right <= high` in microseconds, for two marked columns; None is no bound."""

    left: str
    right: str
    low: int | None = None
    high: int | None = None
    low_open: bool = False
    high_open: bool = False

    def within(self, left: str | None, right: str | None) -> Within:
        """The bound of a join over these time columns."""
        closed: dict[tuple[bool, bool], Closed] = {
            (False, False): "both",
            (False, True): "left",
            (True, False): "right",
            (True, True): "neither",
        }
        before = None if self.low is None else -self.low
        return Within(before, self.high, closed[self.low_open, self.high_open], left, right)

    def shifted(self, left: int, right: int) -> Difference:
        """The same for times that are earlier than the columns by these amounts."""
        by = left - right
        return replace(
            self,
            low=None if self.low is None else self.low + by,
            high=None if self.high is None else self.high + by,
        )


def comparisons(condition: exp.Expr) -> list[exp.Expr]:
    """The comparisons that a condition consists of: BETWEEN has two."""
    if isinstance(condition, exp.Between):
        value, low, high = condition.this, condition.args["low"], condition.args["high"]
        return [
            exp.GTE(this=value.copy(), expression=low.copy()),
            exp.LTE(this=value.copy(), expression=high.copy()),
        ]
    return [condition]


def linear(node: exp.Expr) -> tuple[str, int] | None:
    """A column and a duration that is added to it; None of other expressions."""
    while isinstance(node, exp.Paren):
        node = node.this
    column = column_of(node)
    if column is not None:
        return column, 0
    if not isinstance(node, exp.Add | exp.Sub):
        return None
    sides = [(node.left, node.right)]
    if isinstance(node, exp.Add):
        sides.append((node.right, node.left))
    for time, amount in sides:
        found = linear(time)
        if found is None or not isinstance(amount, exp.Interval | exp.Paren):
            continue
        try:
            size = ticks(amount)
        except SpecError:
            continue
        return found[0], found[1] + (size if isinstance(node, exp.Add) else -size)
    return None


def difference(condition: exp.Expr, lefts: Iterable[str]) -> Difference | None:
    """The bound that a comparison of a left and a right time sets; None of other conditions."""
    kind = type(condition)
    if kind not in FLIPPED or not isinstance(condition, exp.Binary):
        return None
    one, other = linear(condition.left), linear(condition.right)
    if one is None or other is None:
        return None
    known = set(lefts)
    if other[0] in known:
        one, other, kind = other, one, FLIPPED[kind]
    if one[0] not in known or other[0] in known:
        return None
    # left + a <op> right + b means left - right <op> b - a.
    amount = other[1] - one[1]
    found = Difference(one[0], other[0])
    if kind is exp.EQ:
        return replace(found, low=amount, high=amount)
    if kind in (exp.GT, exp.GTE):
        return replace(found, low=amount, low_open=kind is exp.GT)
    return replace(found, high=amount, high_open=kind is exp.LT)


def together(found: Iterable[Difference]) -> list[Difference]:
    """One difference for each pair of columns."""
    by_pair: dict[tuple[str, str], Difference] = {}
    for one in found:
        pair = one.left, one.right
        by_pair[pair] = _both(by_pair[pair], one) if pair in by_pair else one
    return list(by_pair.values())


def _both(one: Difference, other: Difference) -> Difference:
    """The difference that both allow."""
    lows = [(a.low, a.low_open) for a in (one, other) if a.low is not None]
    highs = [(a.high, not a.high_open) for a in (one, other) if a.high is not None]
    low = max(lows, default=(None, False), key=lambda bound: (bound[0] or 0, bound[1]))
    high = min(highs, default=(None, True), key=lambda bound: (bound[0] or 0, bound[1]))
    return Difference(one.left, one.right, low[0], high[0], low[1], not high[1])


def is_finite(one: Difference) -> bool:
    """Whether both ends are bounded."""
    return one.low is not None and one.high is not None and max(one.low, one.high) < MAX
