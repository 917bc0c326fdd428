"""Text tables and times for the output of commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidegate.instants import format_duration, format_instant


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table whose first row is the header."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def when(instant: int | None) -> str:
    """An instant as text, or "none"."""
    return "none" if instant is None else format_instant(instant)


def span(us: int) -> str:
    """A rounded duration: from one second on, without microseconds."""
    return format_duration(us if abs(us) < 1_000_000 else round(us / 1000) * 1000)


def counted(number: int, what: str) -> str:
    """A number with a noun in singular or plural."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def by_number(position: Mapping[str, int]) -> dict[str, int]:
    """A position or cut, sorted by segment number."""
    return {name: position[name] for name in sorted(position, key=int)}


def places(position: Mapping[str, int]) -> str:
    """A position on one line: each segment with its offset."""
    return " ".join(f"{name}:{at}" for name, at in by_number(position).items()) or "none"
