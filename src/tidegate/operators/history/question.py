"""Questions for a history as text: a key by column, and a range of windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tidegate.errors import InputError
from tidegate.instants import Instant

Question = tuple[dict[str, Any] | None, Instant | None, Instant | None]


def question(key: str, window: str, schema: pa.Schema) -> Question:
    """The key, the start and the end that a reader typed; columns are separated by commas."""
    texts = [part.strip() for part in key.split(",") if part.strip()]
    whole = len(schema) == 1 and key
    chosen = parse_key([key] if whole else texts, schema) if key or len(schema) else None
    low, high = parse_range(window or None)
    return chosen, low, high if "/" in window else None


def parse_key(texts: Sequence[str], schema: pa.Schema) -> dict[str, Any]:
    """A key from the command line: `VALUE`s in the order of its columns, or `COLUMN=VALUE`s."""
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
            f"the key columns are {', '.join(schema.names) or 'none'}, got {' '.join(texts)}. Hint:"
            " --key VALUE for each of them, or --key COLUMN=VALUE"
        )
    try:
        return {
            name: pa.array([text]).cast(schema.field(name).type)[0].as_py()
            for name, text in named.items()
        }
    except pa.ArrowInvalid as error:
        raise InputError(f"the key {' '.join(texts)} does not fit {schema}: {error}") from error


def parse_range(window: str | None) -> tuple[Instant | None, Instant | None]:
    """A range from the command line, `START/END`; one instant is both bounds."""
    if window is None:
        return None, None
    start, slash, end = window.partition("/")
    low, high = (int(text) if text.lstrip("-").isdecimal() else text for text in (start, end))
    return low or None, (high or None) if slash else low
