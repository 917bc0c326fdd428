"""Questions for a history as text: a key by column, and a range of windows."""

from __future__ import annotations

import csv
import datetime as dt
import json
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tidegate.errors import InputError
from tidegate.instants import MAX, Instant

Question = tuple[dict[str, Any] | None, Instant | None, Instant | None]


def question(key: str, window: str, schema: pa.Schema) -> Question:
    """The key, the start and the end that a reader typed.

    Columns are separated by commas; values with commas are in double quotes.
    """
    texts = [key] if len(schema) == 1 else next(csv.reader([key], skipinitialspace=True), [])
    chosen = parse_key([text for text in texts if text], schema) if key or len(schema) else None
    return chosen, *parse_range(window)


def parse_key(texts: Sequence[str], schema: pa.Schema) -> dict[str, Any]:
    """A key from the command line: `VALUE`s in the order of its columns, or `COLUMN=VALUE`s.

    The value `null` is null, and `"null"` a text.
    """
    named: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        free = [known for known in schema.names if known not in named]
        if equals and name in schema.names:
            named[name] = value
        elif free:
            named[free[0]] = text
    if len(named) != len(texts) or set(named) != set(schema.names):
        raise InputError(
            f"the key columns are {', '.join(schema.names) or 'none'}, got"
            f" {' '.join(texts) or 'no key'}. Hint: VALUE or COLUMN=VALUE for each of them"
        )
    return {name: _value(text, schema.field(name)) for name, text in named.items()}


def _value(text: str, column: pa.Field) -> Any:
    """A value of a key column."""
    if text == "null":
        return None
    given = json.loads(text) if text == '"null"' else text
    try:
        return pa.array([given]).cast(column.type)[0].as_py()
    except pa.ArrowException as error:
        raise InputError(
            f"`{text}` is not a value of the key column `{column.name}` of type {column.type}:"
            f" {error}"
        ) from error


def parse_range(window: str | None) -> tuple[Instant | None, Instant | None]:
    """A range as text, `START/END`; one instant, `START`, has no end.

    The bounds may be copied from an explanation, `[START, END)`. Instants without a zone are in
    UTC, a date is its midnight, and a time of day is one of today.
    """
    text = (window or "").strip()
    is_bracketed = text[:1] in {"[", "("}
    start, *end = (_BRACKETED if is_bracketed else _BETWEEN).split(text.strip("[()] "), maxsplit=1)
    low = _instant(start) if start else None
    return low, (_instant(end[0]) if end[0] else MAX) if end else None


def typed_range(
    start: Instant | None, end: Instant | None
) -> tuple[Instant | None, Instant | None]:
    """The bounds of a range of which texts are read as on the command line."""
    if isinstance(start, str) and end is None:
        return parse_range(start)
    low, high = (_instant(at.strip()) if isinstance(at, str) else at for at in (start, end))
    return low, high


_BETWEEN = re.compile(r"\s*(?:/|\.\.|–|→|,\s|\s-\s|\sto\s)\s*")
_BRACKETED = re.compile(r"\s*(?:,|/|–)\s*")
_TIME_OF_DAY = re.compile(r"\d{1,2}:\d\d(?::\d\d(?:\.\d+)?)?")


def _instant(text: str) -> Instant:
    """An instant that a reader typed."""
    if text.lstrip("-").isdecimal():
        return int(text)
    plain = re.sub(r"\s*(?:Z|UTC)$", "", text)
    if _TIME_OF_DAY.fullmatch(plain):
        hours, colon, rest = plain.partition(":")
        plain = f"{dt.datetime.now(dt.UTC):%Y-%m-%d}T{hours:0>2}{colon}{rest}"
    try:
        found = dt.datetime.fromisoformat(plain)
    except ValueError:
        return text
    return found.replace(tzinfo=dt.UTC) if found.tzinfo is None else found
