"""Text tables and positions for the output of commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table whose first row is the header."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def by_number(position: Mapping[str, int]) -> dict[str, int]:
    """A position or cut, sorted by segment number."""
    return {name: position[name] for name in sorted(position, key=int)}


def places(position: Mapping[str, int]) -> str:
    """A position on one line: each segment with its offset."""
    return " ".join(f"{name}:{at}" for name, at in by_number(position).items()) or "none"
