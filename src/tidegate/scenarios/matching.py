"""Matching of output with expectations, and the text of the difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate.instants import MAX
from tidegate.scenarios.document import MismatchError, UnsupportedScenarioError, known, mapping
from tidegate.scenarios.ticks import Ticks

PANE = frozenset(
    {
        "window",
        "k",
        "v",
        "values",
        "t",
        "timing",
        "not_timing",
        "first",
        "last",
        "index",
        "ns_index",
        "retract",
        "n",
        "pane_id",
    }
)
TIMINGS = {"early": "early", "on_time": "on_time", "late": "late", "default": "on_time"}


@dataclass(frozen=True)
class Pane:
    """One row of output, in ticks, with keys and values as the scenario wrote them."""

    window: tuple[int, int]
    key: Any
    value: Any
    time: int | None
    timing: str
    first: bool
    last: bool
    index: int
    ns_index: int
    retract: bool
    shard: int = 0
    """Of those that put panes out beside each other, so that there is no order between them."""
    extra: dict[str, Any] = field(default_factory=dict)


def check_expected(panes: Any, aggregate: str) -> list[dict[str, Any]]:
    """The expected panes of a step; refuses unknown fields."""
    if not isinstance(panes, list):
        raise UnsupportedScenarioError(f"expected panes must be a list, got `{panes}`")
    for pane in panes:
        known("an expected pane", mapping("an expected pane", pane), PANE)
        if ("values" in pane or "n" in pane) != (aggregate == "list") and pane.keys() & {
            "values",
            "n",
            "v",
        }:
            raise UnsupportedScenarioError(
                f"a pane of `agg: {aggregate}` has"
                f" {'`values` or `n`' if aggregate == 'list' else '`v`'}, got `{pane}`"
            )
        for name in ("timing", "not_timing"):
            if pane.get(name, "early") not in TIMINGS:
                raise UnsupportedScenarioError(
                    f"`{name}: {pane[name]}` is not one of {', '.join(TIMINGS)}"
                )
    return panes


def fits(expected: dict[str, Any], pane: Pane, ticks: Ticks) -> bool:
    """Whether a pane is the expected one; compares the named fields, and always `retract`."""
    if bool(expected.get("retract", False)) != pane.retract:
        return False
    tests: dict[str, Callable[[Any], bool]] = {
        "window": lambda w: same_window(w, pane.window, ticks),
        "k": lambda k: same_value(k, pane.key),
        "v": lambda v: same_value(v, pane.value) or (v == 0 and pane.value is None),
        "values": lambda vs: same_bag(vs, pane.value or []),
        "n": lambda n: n == len(pane.value or []),
        "t": lambda t: ticks.same(t, MAX if pane.time is None and t is not None else pane.time),
        "timing": lambda name: TIMINGS[name] == pane.timing,
        "not_timing": lambda name: TIMINGS[name] != pane.timing,
        "first": lambda flag: flag == pane.first,
        "last": lambda flag: flag == pane.last,
        "index": lambda i: i == pane.index,
        "ns_index": lambda i: i == pane.ns_index,
        "pane_id": lambda t: ticks.same(t, pane.window[0]),
        "retract": lambda _: True,
    }
    return all(tests[name](value) for name, value in expected.items())


def interval(written: Any, ticks: Ticks) -> tuple[int, int]:
    """A window as written: `[start, end]` or `global`."""
    if written == "global":
        written = ["-inf", "+inf"]
    if not isinstance(written, list) or len(written) != 2:
        raise UnsupportedScenarioError(f"a window is written [start, end], got `{written}`")
    return ticks(written[0]), ticks(written[1])


def same_window(expected: Any, window: tuple[int, int], ticks: Ticks) -> bool:
    """Whether a window is the expected one."""
    return interval(expected, ticks) == window


def same_value(expected: Any, value: Any) -> bool:
    """Equality that distinguishes 1 from true and "1", but not from 1.0."""
    if (
        isinstance(expected, float)
        and isinstance(value, int | float)
        and not isinstance(value, bool)
    ):
        return abs(expected - value) <= 1e-9 * max(1.0, abs(expected))
    return bool(expected == value) and isinstance(expected, bool) == isinstance(value, bool)


def same_bag(expected: Any, values: Sequence[Any]) -> bool:
    """The same values, each as often, in any order."""
    if not isinstance(expected, list):
        raise UnsupportedScenarioError(f"`values` must be a list, got `{expected}`")
    return len(expected) == len(values) and not unmatched(expected, values, same_value)[0]


def unmatched(
    expected: Sequence[Any], found: Sequence[Any], fit: Callable[[Any, Any], bool]
) -> tuple[list[Any], list[Any]]:
    """What is left on both sides after as many as possible were paired.

    Several panes may fit one expectation, so that pairing greedily could miss a full match: earlier
    pairs are moved where that helps.
    """
    partner: dict[int, int] = {}

    def place(i: int, tried: set[int]) -> bool:
        for j, item in enumerate(found):
            if j not in tried and fit(expected[i], item):
                tried.add(j)
                if j not in partner or place(partner[j], tried):
                    partner[j] = i
                    return True
        return False

    for i in range(len(expected)):
        place(i, set())
    placed = set(partner.values())
    return [e for i, e in enumerate(expected) if i not in placed], [
        f for j, f in enumerate(found) if j not in partner
    ]


def demand_rows(expected: Any, found: Sequence[Any], where: str) -> None:
    """Raise the difference between rows that are lists of cells, or single cells, in any order."""
    if not isinstance(expected, list):
        raise UnsupportedScenarioError(f"{where}: a list was expected, got `{expected}`")
    missing, extra = unmatched(expected, found, _same_row)
    if missing or extra:
        raise MismatchError(f"{where}: missing {missing}, unexpected {extra}")


def _same_row(expected: Any, found: Any) -> bool:
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(same_value, expected, found))
    return same_value(expected, found)


def demand(
    expected: list[dict[str, Any]], panes: list[Pane], ticks: Ticks, *, ordered: bool, where: str
) -> None:
    """Raise the difference between expected and actual panes."""
    if ordered and len(expected) == len(panes):
        panes = _interleaved(expected, panes, ticks)
        wrong = [(e, p) for e, p in zip(expected, panes, strict=True) if not fits(e, p, ticks)]
        missing, extra = [e for e, _ in wrong], [p for _, p in wrong]
    else:
        missing, extra = unmatched(expected, panes, lambda e, p: fits(e, p, ticks))
    if missing or extra:
        raise MismatchError(
            f"{where}: {_side('missing', [_plain(e) for e in missing])};"
            f" {_side('unexpected', [describe(p, ticks) for p in extra])}"
        )


def _interleaved(expected: list[dict[str, Any]], panes: list[Pane], ticks: Ticks) -> list[Pane]:
    """The panes with those of one shard in their order, and beside each other as they are expected
    if there is such an order.
    """
    lines = [
        [pane for pane in panes if pane.shard == shard]
        for shard in sorted({pane.shard for pane in panes})
    ]
    ways: dict[tuple[int, ...], list[Pane]] = {(0,) * len(lines): []}
    for wanted in expected if len(lines) > 1 else []:
        further: dict[tuple[int, ...], list[Pane]] = {}
        for taken, way in ways.items():
            for n, line in enumerate(lines):
                if taken[n] < len(line) and fits(wanted, line[taken[n]], ticks):
                    further.setdefault(
                        (*taken[:n], taken[n] + 1, *taken[n + 1 :]), [*way, line[taken[n]]]
                    )
        ways = further
    found = next(iter(ways.values()), [])
    return found or panes


def _side(name: str, texts: list[str]) -> str:
    return f"{name} {', '.join(texts)}" if texts else f"nothing {name}"


def _plain(fields: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{name}: {_show(value)}" for name, value in fields.items()) + "}"


def _show(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_show(v) for v in value) + "]"
    return (
        str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)
    )


def describe(pane: Pane, ticks: Ticks) -> str:
    """A pane in the words of the format."""
    fields: dict[str, Any] = {"window": [ticks.shown(edge) for edge in pane.window]}
    if pane.key is not None:
        fields["k"] = pane.key
    fields["values" if isinstance(pane.value, list) else "v"] = pane.value
    fields |= {
        "t": ticks.shown(pane.time),
        "timing": pane.timing,
        "first": pane.first,
        "last": pane.last,
    }
    fields |= {"index": pane.index, "ns_index": pane.ns_index}
    if pane.retract:
        fields["retract"] = True
    return _plain(fields)
