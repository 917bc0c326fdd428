"""Intervals of SQL as microseconds, or as calendar units."""

from __future__ import annotations

from fractions import Fraction

from sqlglot import exp

from tidegate.errors import ParseError
from tidegate.instants import MAX

_SIZES = {
    "MICROSECOND": 1,
    "MILLISECOND": 1_000,
    "SECOND": 1_000_000,
    "MINUTE": 60_000_000,
    "HOUR": 3_600_000_000,
    "DAY": 86_400_000_000,
    "WEEK": 604_800_000_000,
}
_ALIASES = {
    "US": "MICROSECOND",
    "MS": "MILLISECOND",
    "S": "SECOND",
    "SEC": "SECOND",
    "M": "MINUTE",
    "MIN": "MINUTE",
    "H": "HOUR",
    "HR": "HOUR",
    "D": "DAY",
    "W": "WEEK",
    "MON": "MONTH",
}
_CALENDAR = ("MONTH", "QUARTER", "YEAR", "DECADE")
_HINT = "Hint: INTERVAL '10' SECOND"


def unit_of(name: str) -> str:
    """The singular of a unit, in capitals."""
    word = name.upper()
    word = _ALIASES.get(word, word)
    if word not in _SIZES and word not in _CALENDAR and word.endswith("S"):
        word = word[:-1]
    return _ALIASES.get(word, word)


def ticks(node: exp.Expr | None) -> int:
    """An interval in microseconds."""
    if isinstance(node, exp.Paren):
        return ticks(node.this)
    if isinstance(node, exp.Neg):
        return -ticks(node.this)
    if isinstance(node, exp.Add):
        return ticks(node.this) + ticks(node.expression)
    if not isinstance(node, exp.Interval):
        written = "nothing" if node is None else f"`{node.sql('spark')}`"
        raise ParseError(f"an interval was expected, got {written}. {_HINT}")
    amount = node.this.name if node.this is not None else ""
    unit = node.args.get("unit")
    if isinstance(node.this, exp.Neg):
        amount = f"-{node.this.this.name}"
    if isinstance(unit, exp.IntervalSpan):
        return _span(amount, unit_of(unit.this.name), unit_of(unit.expression.name))
    return _single(amount, unit_of(unit.name if unit is not None else ""))


def calendar_unit(node: exp.Expr | None) -> tuple[str, int] | None:
    """The unit and the number of an interval of months, quarters or years; None of others."""
    if not isinstance(node, exp.Interval) or not isinstance(node.args.get("unit"), exp.Var):
        return None
    unit = unit_of(node.args["unit"].name)
    if unit not in _CALENDAR:
        return None
    text = node.this.name if node.this is not None else ""
    if not text.isdigit() or int(text) < 1:
        raise ParseError(f"an interval has a whole number of {unit.lower()}s, got `{text}`")
    return unit.lower(), int(text)


def _single(amount: str, unit: str) -> int:
    if unit in _CALENDAR:
        raise ParseError(
            f"an interval of {unit.lower()}s has no fixed length. Hint: use days or shorter units"
            " here; INTERVAL '1' MONTH is the size of TUMBLE"
        )
    if unit not in _SIZES:
        raise ParseError(f"`{unit}` is no unit of an interval. {_HINT}")
    return _whole(_number(amount, unit) * _SIZES[unit])


def _number(amount: str, unit: str) -> Fraction:
    try:
        return Fraction(amount.strip())
    except (ValueError, ZeroDivisionError):
        raise ParseError(
            f"an interval has a number of {unit.lower()}s, got `{amount}`. {_HINT}"
        ) from None


def _whole(number: Fraction) -> int:
    if number.denominator != 1 or abs(number) >= MAX:
        raise ParseError("an interval is a whole number of microseconds within 290,000 years")
    return int(number)


def _span(amount: str, first: str, last: str) -> int:
    """An interval such as '1 10:30:00' DAY TO SECOND."""
    units = ["DAY", "HOUR", "MINUTE", "SECOND"]
    if first not in units or last not in units or units.index(first) >= units.index(last):
        raise ParseError(f"`{first} TO {last}` is no range of units of an interval")
    text = amount.strip()
    sign = -1 if text.startswith("-") else 1
    parts = text.lstrip("+-").replace(" ", ":").split(":")
    names = units[units.index(first) : units.index(last) + 1]
    if len(parts) != len(names):
        raise ParseError(f"`{amount}` is no interval of {first} TO {last}")
    return sign * sum(_single(part, name) for part, name in zip(parts, names, strict=True))
