"""Conversion of the times of a scenario to whole ticks and back.

One unit of the scenario is one tick. Where a scenario writes fractions, all its times are scaled by
the smallest power of ten that makes them whole, and what comes out is floored back. Calendar
windows need real time, so there a tick is a microsecond.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from typing import Any

from tidegate.errors import SpecError
from tidegate.instants import MAX, MIN, clamp, duration
from tidegate.scenarios.document import Scenario, UnsupportedScenarioError

MICROSECONDS = {"us": 1, "tick": 1, "ms": 1_000, "s": 1_000_000, "clock": 1_000_000, "iso": 1}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NOT_TIMES = frozenset({"v", "values", "value", "k", "n", "note", "must_fail"})
_SHIFT = {"exclusive": 0, "none": 0, "inclusive": 1, "strict": -1}


def _microseconds(moment: date) -> int:
    """Since 1970; a date is its first moment, and without a zone it is meant in UTC."""
    full = (
        moment
        if isinstance(moment, datetime)
        else datetime(moment.year, moment.month, moment.day, tzinfo=UTC)
    )
    return ((full if full.tzinfo else full.replace(tzinfo=UTC)) - _EPOCH) // timedelta(
        microseconds=1
    )


@dataclass(frozen=True)
class Ticks:
    """The conversion of one scenario."""

    unit: str
    scale: int
    wm: str = "exclusive"
    end_of_time: Fraction | None = None

    def __call__(self, value: Any) -> int:
        """A time or duration of the scenario in ticks; infinities are the ends of int64."""
        exact = self.exact(value)
        if self.end_of_time is not None and exact >= self.end_of_time:
            return MAX
        return int(exact) if exact in (MIN, MAX) else clamp(int(exact * self.scale // 1))

    def exact(self, value: Any) -> Fraction:
        """The value in units of the scenario, without rounding."""
        if isinstance(value, bool) or value is None:
            raise UnsupportedScenarioError(f"a time was expected, got `{value}`")
        if isinstance(value, str) and value.strip() in {"+inf", "inf", "-inf"}:
            return Fraction(MIN if value.strip() == "-inf" else MAX)
        if isinstance(value, float) and value in {float("inf"), float("-inf")}:
            return Fraction(MAX if value > 0 else MIN)
        if isinstance(value, int | float):
            return Fraction(str(value))
        if isinstance(value, date):
            return Fraction(_microseconds(value), MICROSECONDS[self.unit])
        return self._text(str(value))

    def _text(self, text: str) -> Fraction:
        clock = re.fullmatch(r"(\d+):(\d\d)(?::(\d\d(?:\.\d+)?))?", text.strip())
        if clock:
            seconds = int(clock[1]) * 3600 + int(clock[2]) * 60 + Fraction(clock[3] or 0)
            return seconds * 1_000_000 / MICROSECONDS[self.unit]
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            moment = None
        if moment is not None:
            return self.exact(moment)
        try:
            return Fraction(duration(text), MICROSECONDS[self.unit])
        except SpecError as error:
            raise UnsupportedScenarioError(
                f"`{text}` is not a time of unit `{self.unit}`"
            ) from error

    def microseconds(self, amount: int) -> int:
        """A real duration in ticks, for defaults in seconds."""
        return clamp(amount * self.scale // MICROSECONDS[self.unit])

    def watermark(self, value: Any) -> int:
        """A watermark in our convention: `W` promises that no event with `t < W` is left."""
        ticks = self(value)
        return ticks if ticks in (MIN, MAX) else clamp(ticks + _SHIFT[self.wm] * self.scale)

    def shown_watermark(self, ticks: int) -> Any:
        """One of our watermarks in the convention of the scenario."""
        return self.shown(
            ticks if ticks in (MIN, MAX) else clamp(ticks - _SHIFT[self.wm] * self.scale)
        )

    def shown(self, ticks: int | None) -> Any:
        """Ticks in the notation of the scenario."""
        if ticks is None or ticks in (MIN, MAX):
            return {None: None, MIN: "-inf", MAX: "+inf"}[ticks]
        if self.unit == "iso":
            try:
                return (_EPOCH + timedelta(microseconds=ticks)).isoformat()
            except OverflowError:
                return ticks
        exact = Fraction(ticks, self.scale)
        return int(exact) if exact.denominator == 1 else float(exact)

    def same(self, expected: Any, ticks: int | None) -> bool:
        """Whether ticks that came out are the time that the scenario wrote; a fraction of a unit
        below it is allowed.
        """
        if expected is None or ticks is None:
            return expected is None and ticks is None
        wanted = self(expected)
        return wanted == ticks or (
            ticks not in (MIN, MAX) and self.exact(expected) == ticks // self.scale
        )


def ticks_of(scenario: Scenario) -> Ticks:
    """The conversion that fits the times a scenario writes."""
    if scenario.unit not in MICROSECONDS:
        raise UnsupportedScenarioError(
            f"unit `{scenario.unit}` is not one of {', '.join(MICROSECONDS)}"
        )
    if scenario.wm not in _SHIFT:
        raise UnsupportedScenarioError(
            f"watermark convention `{scenario.wm}` is not one of {', '.join(_SHIFT)}"
        )
    end = scenario.config.get("end_of_time")
    return Ticks(
        scenario.unit, _scale(scenario), scenario.wm, None if end is None else Fraction(str(end))
    )


def _scale(scenario: Scenario) -> int:
    window = scenario.config.get("window")
    if isinstance(window, dict) and str(window.get("type", "")).startswith("calendar"):
        return MICROSECONDS[scenario.unit]
    digits = (
        _decimals(number) for number in _numbers([dict(scenario.config), dict(scenario.body)])
    )
    return 10 ** max(digits, default=0)


def _decimals(number: float) -> int:
    if number in {float("inf"), float("-inf")} or number != number:  # noqa: PLR0124
        return 0
    denominator = Fraction(str(number)).denominator
    places = 0
    while 10**places % denominator:
        places += 1
    return places


def _numbers(value: Any) -> Iterator[float]:
    """Every fraction that may be a time, also inside the text of a trigger."""
    if isinstance(value, float):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key == "trigger" and isinstance(inner, str):
                yield from (float(text) for text in re.findall(r"\d+\.\d+", inner))
            elif key not in _NOT_TIMES:
                yield from _numbers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers(inner)


def calendar_date(value: Any) -> date:
    """The first day that a calendar window's `start` names: a date, `2014-03` or the year
    `2014`.
    """
    if isinstance(value, date):
        return value
    parts = re.fullmatch(r"(\d{4})(?:-(\d\d?))?(?:-(\d\d?))?", str(value).strip())
    if not parts:
        raise UnsupportedScenarioError(f"calendar start `{value}` is not a date such as 2014-03-05")
    return date(int(parts[1]), int(parts[2] or 1), int(parts[3] or 1))
