"""Validation of names, keys and changes, shared by all stores of streams."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import lru_cache

from tidegate.errors import InputError, SpecError
from tidegate.streams.description import checked_name
from tidegate.streams.store import Swap

_KEY = re.compile(r"[A-Za-z0-9._/#-]{1,500}")
_SEGMENT = re.compile(r"0|[1-9][0-9]{0,8}")


def stream_name(name: str) -> str:
    """The name of a stream, validated."""
    return _stream_name(name) if type(name) is str else checked_name("a stream", name)


@lru_cache(1024)
def _stream_name(name: str) -> str:
    # Cached, because every append validates the name.
    return checked_name("a stream", name)


def owner_name(name: str) -> str:
    """The owner of cells, validated: a stream, or "" for none."""
    return name and stream_name(name)


def cell_key(key: str) -> str:
    """The key of a cell, validated."""
    if _KEY.fullmatch(key) is None:
        raise SpecError(
            f"a cell key has 1 to 500 characters of a-z A-Z 0-9 . _ - / #, got {key!r}. Hint:"
            " replace other characters by _"
        )
    return key


def key_prefix(prefix: str) -> str:
    """A prefix of cell keys, validated; "" matches all."""
    return prefix and cell_key(prefix)


def new_segments(names: Sequence[str], present: Collection[str]) -> list[str]:
    """The names that are not present yet, in ascending order.

    Present and new names together must be 0, 1, 2, ... without gaps.
    """
    for name in names:
        if _SEGMENT.fullmatch(name) is None:
            raise SpecError(f'segments are named by numbers, got {name!r}. Hint: "0", "1", "2"')
    new = sorted({int(name) for name in names} - {int(name) for name in present})
    wanted = list(range(len(present), len(present) + len(new)))
    if new != wanted:
        raise SpecError(
            f"segments are numbered without gaps: there are {len(present)}, so the next ones are"
            f" {_listed(wanted)}, got {_listed(new)}"
        )
    return [str(number) for number in new]


def check_swap(change: Swap) -> None:
    """Validate a change of a cell."""
    cell_key(change.key)
    if change.version < 0:
        raise InputError(
            "the version of a cell is 0 if the cell does not exist, and greater otherwise, got"
            f" {change.version} for `{change.key}`"
        )


def check_read(offset: int, most: int) -> None:
    """Validate the arguments of a read."""
    if most < 1:
        raise InputError(f"a read returns at least one event, got a limit of {most}")
    if offset < 0:
        raise InputError(f"offsets start at 0, got {offset}")


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"
