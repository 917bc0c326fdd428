"""What every store of streams asks of names and changes before it takes them."""

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
    """The name of a stream."""
    return _stream_name(name) if type(name) is str else checked_name("a stream", name)


@lru_cache(1024)
def _stream_name(name: str) -> str:
    # Remembered, because every append asks.
    return checked_name("a stream", name)


def owner_name(name: str) -> str:
    """The name of what cells belong to: a stream, or "" for none."""
    return name and stream_name(name)


def cell_key(key: str) -> str:
    """The key of a cell."""
    if _KEY.fullmatch(key) is None:
        raise SpecError(
            f"the key of a cell is 1 to 500 characters of a-z A-Z 0-9 . _ - / #, got {key!r}. Hint:"
            " replace other characters by _"
        )
    return key


def key_prefix(prefix: str) -> str:
    """What keys may begin with; "" for all."""
    return prefix and cell_key(prefix)


def segment_names(names: Sequence[str], present: Collection[str]) -> list[str]:
    """The names among these that are not there yet, in their order; all together they must be 0, 1,
    2, ... without gaps.
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


def swap(change: Swap) -> None:
    """A change of a cell."""
    cell_key(change.key)
    if change.version < 0:
        raise InputError(
            "the version of a cell is 0 for one that is not there, and more for others, got"
            f" {change.version} for `{change.key}`"
        )


def reading(offset: int, most: int) -> None:
    """Where to read, and how much."""
    if most < 1:
        raise InputError(f"a read takes at least one event, got {most}")
    if offset < 0:
        raise InputError(f"offsets begin at 0, got {offset}")


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"
