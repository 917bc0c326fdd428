"""Join words: which rows of two streams match, as a mapping of bounds or a text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Literal

import pyarrow.compute as pc

from tidegate.instants import MAX, MIN
from tidegate.scenarios.document import Scenario, UnsupportedScenarioError, known, mapping
from tidegate.scenarios.settings import choice, flag
from tidegate.scenarios.ticks import Ticks
from tidegate.scenarios.window_words import window_of
from tidegate.spec.join import SIDES, AsOf, JoinWindow, Rows, Within
from tidegate.spec.windows import Hopping, Session, Tumbling

TYPES = {
    "inner": "inner",
    "left": "left",
    "right": "right",
    "full": "full",
    "semi": "semi",
    "anti": "anti",
}
_MATCH = frozenset({"relative_to", "lower", "lower_inclusive", "upper", "upper_inclusive"})
_CLOSED: dict[tuple[bool, bool], Literal["both", "left", "right", "neither"]] = {
    (True, True): "both",
    (True, False): "left",
    (False, True): "right",
    (False, False): "neither",
}
_BETWEEN = re.compile(r"(\S+)\s+BETWEEN\s+(.+?)\s+AND\s+(.+?)(?=\s+AND\s|$)", re.IGNORECASE)
_ATOM = re.compile(r"(.+?)\s*(<=|>=|<|>|=)\s*(.+)")
_TIME = re.compile(r"(left|right)\.t(?:\s*([+-])\s*(.+))?")
_VALUE = re.compile(r"(left|right)\.(?:v|value)")
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "="}
_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
    "=": lambda a, b: a == b,
}


@dataclass
class _Ends:
    """The least and the greatest of `left.t - right.t`, and whether they are included."""

    low: int | None = None
    high: int | None = None
    includes_low: bool = True
    includes_high: bool = True

    def demand(self, op: str, apart: int) -> None:
        """Add a bound of `left.t - right.t`."""
        if op in (">", ">=", "="):
            if self.low is not None:
                raise UnsupportedScenarioError(
                    "a condition bounds the times from the same side twice"
                )
            self.low, self.includes_low = apart, op != ">"
        if op in ("<", "<=", "="):
            if self.high is not None:
                raise UnsupportedScenarioError(
                    "a condition bounds the times from the same side twice"
                )
            self.high, self.includes_high = apart, op != "<"

    def within(self) -> Within:
        return Within(
            None if self.low is None else -self.low,
            self.high,
            _CLOSED[self.includes_low, self.includes_high],
        )

    @property
    def is_bound(self) -> bool:
        return self.low is not None or self.high is not None


@dataclass(frozen=True)
class Condition:
    """The condition that a text states for two rows."""

    bound: Within | None = None
    keyed: bool = False
    shares_window: bool = False
    where: pc.Expression | None = None


@dataclass
class _ParsedCondition:
    ends: _Ends = field(default_factory=_Ends)
    keyed: bool = False
    shares_window: bool = False
    values: list[pc.Expression] = field(default_factory=list)


def read_match(given: Any, ticks: Ticks) -> Within:
    """Bounds: `right.t` in [`left.t + lower`, `left.t + upper`], or the other way round where they
    are `relative_to: right`.
    """
    match = mapping("`match`", given)
    known("`match`", match, _MATCH)
    low, high = (_end(match.get(name), ticks) for name in ("lower", "upper"))
    includes = [
        flag(match, name) if name in match else True
        for name in ("lower_inclusive", "upper_inclusive")
    ]
    if choice(match, "relative_to", {"left": True, "right": False}, default=True):
        low, high = (None if high is None else -high), (None if low is None else -low)
        includes.reverse()
    return Within(None if low is None else -low, high, _CLOSED[includes[0], includes[1]])


def _end(value: Any, ticks: Ticks) -> int | None:
    ticked = None if value is None else ticks(value)
    return None if ticked in (None, MIN, MAX) else ticked


def read_condition(text: Any, ticks: Ticks) -> Condition:
    """A text such as `key = key AND left.t BETWEEN right.t - 5 AND right.t + 5 AND left.value >
    4`.
    """
    reading = _ParsedCondition()
    for atom in _atoms(str(text)):
        _read_atom(reading, atom, ticks)
    where = reduce(lambda a, b: a & b, reading.values) if reading.values else None
    return Condition(
        reading.ends.within() if reading.ends.is_bound else None,
        reading.keyed,
        reading.shares_window,
        where,
    )


def _atoms(text: str) -> Iterator[str]:
    plain = _BETWEEN.sub(
        lambda found: f"{found[1]} >= {found[2]} AND {found[1]} <= {found[3]}", text.strip()
    )
    yield from re.split(r"\s+AND\s+", plain, flags=re.IGNORECASE)


def _read_atom(reading: _ParsedCondition, text: str, ticks: Ticks) -> None:
    atom = _ATOM.fullmatch(text.strip())
    if atom is None:
        raise UnsupportedScenarioError(f"the condition `{text}` cannot be read")
    one, op, other = atom[1].strip(), atom[2], atom[3].strip()
    if op == "=" and one == other and one.isidentifier():
        reading.shares_window |= one == "window"
        reading.keyed |= one != "window"
        return
    times = _TIME.fullmatch(one), _TIME.fullmatch(other)
    if times[0] and times[1] and times[0][1] != times[1][1]:
        apart = _step(times[1], ticks) - _step(times[0], ticks)
        if times[0][1] == "left":
            reading.ends.demand(op, apart)
        else:
            reading.ends.demand(_FLIPPED[op], -apart)
        return
    value = _VALUE.fullmatch(one)
    if value is None or not re.fullmatch(r"-?\d+", other):
        raise UnsupportedScenarioError(
            f"the condition `{text}` is neither one of times nor of a value and a number"
        )
    reading.values.append(_COMPARED[op](pc.field(value_column(SIDES.index(value[1]))), int(other)))


def _step(time: re.Match[str], ticks: Ticks) -> int:
    """The offset of a time: a number of units, or a duration."""
    if not time[2]:
        return 0
    amount = ticks(
        float(time[3])
        if re.fullmatch(r"\d+\.\d+", time[3])
        else int(time[3])
        if time[3].isdigit()
        else time[3]
    )
    return -amount if time[2] == "-" else amount


def value_column(side: int) -> str:
    """The value column of a side, for conditions."""
    return f"{SIDES[side]}_v"


def read_window(scenario: Scenario, ticks: Ticks, given: Any) -> JoinWindow:
    """A window in which rows meet: those of every kind, `{type: rows, left, right}` and `{type:
    as_of, tolerance, strict}`.
    """
    config = mapping("`window`", given)
    if config.get("type") == "rows":
        known("the window of type `rows`", config, {"type", *SIDES})
        return Rows(*(config.get(side) for side in SIDES))
    if config.get("type") == "as_of":
        known("the window of type `as_of`", config, {"type", "tolerance", "strict"})
        return AsOf(
            _end(config.get("tolerance"), ticks),
            flag(config, "strict") if "strict" in config else False,
        )
    window = window_of(scenario, ticks, config)
    if not isinstance(window, Tumbling | Hopping | Session):
        raise UnsupportedScenarioError(
            f"rows of a join do not meet in a window of type `{config['type']}`"
        )
    return window


def window_in(scenario: Scenario, ticks: Ticks, config: Mapping[str, Any]) -> JoinWindow:
    """The one of `match` and `window` that is there."""
    if ("match" in config) == ("window" in config):
        raise UnsupportedScenarioError("a join has either `match` or `window`")
    return (
        (read_match(config["match"], ticks),)
        if "match" in config
        else read_window(scenario, ticks, config["window"])
    )
