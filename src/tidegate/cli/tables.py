"""Positions in streams for the output of commands."""

from __future__ import annotations

from collections.abc import Mapping


def by_number(position: Mapping[str, int]) -> dict[str, int]:
    """A position or cut, sorted by segment number."""
    return {name: position[name] for name in sorted(position, key=int)}


def places(position: Mapping[str, int]) -> str:
    """A position on one line: each segment with its offset."""
    return " ".join(f"{name}:{at}" for name, at in by_number(position).items()) or "none"
