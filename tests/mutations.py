"""Changed scenarios: a runner that compares nothing would pass everything, so each number that a scenario expects is changed once."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any


def numbers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all numbers and truth values."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers(inner, (*path, key))
    elif isinstance(value, int):
        yield path


def changed(item: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    """The same scenario with another number at the path."""
    twin = copy.deepcopy(item)
    place: Any = twin
    for key in path[:-1]:
        place = place[key]
    old = place[path[-1]]
    place[path[-1]] = (not old) if isinstance(old, bool) else old + 1
    return twin
