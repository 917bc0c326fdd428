"""Patterns of times, such as `yyyy-MM-dd HH:mm:ss.SSS`, as formats of DuckDB."""

from __future__ import annotations

import re

from sqlglot import exp, parse_one
from sqlglot.dialects.spark import Spark

from tidegate.errors import SqlError

_PARTS = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+|'")
_FORMATS = {
    **dict.fromkeys(("y", "u", "yyyy", "uuuu"), "%Y"),
    **dict.fromkeys(("yy", "uu"), "%y"),
    "MMMM": "%B",
    "MMM": "%b",
    "MM": "%m",
    "M": "%-m",
    "dd": "%d",
    "d": "%-d",
    "DDD": "%j",
    "DD": "%j",
    "D": "%-j",
    "HH": "%H",
    "H": "%-H",
    "hh": "%I",
    "h": "%-I",
    "a": "%p",
    "mm": "%M",
    "m": "%-M",
    "ss": "%S",
    "s": "%-S",
    "SSS": "%g",
    "SSSSSS": "%f",
    "SSSSSSSSS": "%n",
    **dict.fromkeys(("E", "EE", "EEE"), "%a"),
    "EEEE": "%A",
}
_ZONES = {
    **{"X" * letters: "Z" for letters in (1, 2, 3)},
    "Z": "+0000",
    "xx": "+0000",
    "xxx": "+00:00",
    "VV": "UTC",
}
"""How zones show an instant in UTC."""


def duckdb_format(pattern: str, *, parses: bool) -> str:
    """A pattern of times as a format of DuckDB, to parse texts or to show instants.

    >>> duckdb_format("yyyy-MM-dd'T'HH:mm:ss.SSS", parses=False)
    '%Y-%m-%dT%H:%M:%S.%g'
    """
    found = ""
    for part in _PARTS.finditer(pattern):
        text, quoted = part[0], part[1]
        if quoted is not None:
            found += (quoted.replace("''", "'") or "'").replace("%", "%%")
        elif part[2] is None:
            found += text.replace("%", "%%")
        elif text in _FORMATS:
            found += _FORMATS[text]
        elif text in _ZONES:
            found += "%z" if parses else _ZONES[text]
        else:
            raise SqlError(
                f"the letters `{text}` of the pattern `{pattern}` have no format in this process."
                " Hint: yyyy-MM-dd HH:mm:ss.SSS"
            )
    return found


def pattern_of(form: exp.Expr) -> str:
    """The pattern that the text has, of a format in the letters of sqlglot."""
    if not isinstance(form, exp.Literal):
        raise SqlError(
            "the pattern of a time is a text in this process. Hint: 'yyyy-MM-dd HH:mm:ss'"
        )
    shown = Spark().generator().format_time(exp.StrToTime(this=exp.null(), format=form.copy()))
    return parse_one(str(shown), read=Spark).name
