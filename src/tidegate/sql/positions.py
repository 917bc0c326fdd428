"""Places in a SQL text, and errors that point at them with a caret and a hint."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from tidegate.errors import SqlError
from tidegate.redaction import masked_sql

_WIDEST = 120
"""The number of columns of a line that an error shows."""


_IN_SQL = (
    ("such as late=tg.after_count(1)", "EMIT AFTER WATERMARK LATE AFTER 1 ROW"),
    ("tg.within(...)", "a.ts BETWEEN b.ts - INTERVAL '1' HOUR AND b.ts"),
    ("tg.hopping(...)", "HOP(TABLE t, DESCRIPTOR(ts), slide, size)"),
    ("tg.repeatedly(...), or tg.after_watermark(early=", "EMIT AFTER WATERMARK EARLY ("),
    (", late=...)", ") LATE AFTER 1 ROW"),
    ("allow_lateness(0)", "an EMIT without LATE and ALLOW LATENESS"),
)
"""Words of hints of the API, and what they are in SQL."""


@dataclass(frozen=True)
class Place:
    """A range of characters of a text: of `start` and `end`, both are included."""

    text: str
    start: int
    end: int

    @property
    def line(self) -> int:
        """The number of the line, from 1."""
        return self.text.count("\n", 0, self.start) + 1

    @property
    def column(self) -> int:
        """The number of the character in its line, from 1."""
        return self.start - self.text.rfind("\n", 0, self.start)

    def error(self, why: str, hint: str = "") -> SqlError:
        """An error that points at the place; a hint in terms of the API is one of SQL here."""
        why, _, own = why.partition(". Hint: ")
        hint = hint or own
        for words, sql in _IN_SQL:
            hint = hint.replace(words, sql)
        first = self.start - self.column + 1
        line = masked_sql(self.text)[first:].split("\n", 1)[0].replace("\t", " ").rstrip("\r")
        at = self.column - 1
        cut = max(0, at - _WIDEST // 2)
        shown = line[cut : cut + _WIDEST]
        width = max(1, min(self.end - self.start + 1, len(shown) - (at - cut)))
        caret = " " * (at - cut) + "^" * width
        return SqlError(
            f"{why} at line {self.line}, column {self.column}\n  {shown}\n  {caret}"
            + (f"\nHint: {hint}" if hint else ""),
            self.line,
            self.column,
        )


def has_place(node: exp.Expr) -> bool:
    """Whether a node or a part of it knows its place in the text."""
    return any(part.meta.get("start") is not None for part in node.walk())


def place_of(text: str, *nodes: exp.Expr | None) -> Place:
    """The place of the first of these nodes that has one; the start of the text without any."""
    for node in nodes:
        if node is None:
            continue
        found = [
            (part.meta["start"], part.meta["end"])
            for part in node.walk()
            if part.meta.get("start") is not None
        ]
        if found:
            start = min(start for start, _ in found)
            own = node.meta.get("start")
            end = node.meta["end"] if own == start else next(e for s, e in found if s == start)
            return Place(text, start, end)
    start = len(text) - len(text.lstrip())
    return Place(text, start, start)
