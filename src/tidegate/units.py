"""Quantities in messages: durations, instants, sizes and counts in the units of a reader."""

from __future__ import annotations

from tidegate.instants import MAX, MIN, format_duration, format_instant

_MILLISECOND, SECOND = 1_000, 1_000_000
_HOUR = 3600 * SECOND
_PRECISIONS = ((48 * _HOUR, _HOUR), (10 * SECOND, SECOND), (10 * _MILLISECOND, _MILLISECOND))
"""From which duration on what is rounded to."""
_SIZES = ("bytes", "KiB", "MiB", "GiB", "TiB")


def rounded(span: int) -> str:
    """A duration in microseconds, rounded to what a reader needs.

    >>> rounded(1_234_567), rounded(72_345_678), rounded(52_886_321_700_000)
    ('1 second 235 milliseconds', '1 minute 12 seconds', '612 days 3 hours')
    """
    if span in (MIN, MAX):
        return format_duration(span)
    unit = next((unit for least, unit in _PRECISIONS if abs(span) >= least), 1)
    return format_duration((span + unit // 2) // unit * unit)


def when(instant: int | None) -> str:
    """An instant as ISO text in UTC, or "none".

    >>> when(1_500_000), when(None)
    ('1970-01-01T00:00:01.500000Z', 'none')
    """
    return "none" if instant is None else format_instant(instant)


def byte_size(count: int) -> str:
    """A number of bytes with its unit.

    >>> byte_size(362), byte_size(8_141_594)
    ('362 bytes', '7.8 MiB')
    """
    size, unit = float(count), 0
    while abs(size) >= 1024 and unit + 1 < len(_SIZES):
        size, unit = size / 1024, unit + 1
    return f"{size:,.1f} {_SIZES[unit]}" if unit else f"{count:,} {_SIZES[0]}"


def many(count: int, noun: str, plural: str = "") -> str:
    """A count with its noun; `plural`, if it is irregular.

    >>> many(1, "key"), many(12000, "key")
    ('1 key', '12,000 keys')
    """
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"
