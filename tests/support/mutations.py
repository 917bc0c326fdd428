"""Changed scenarios: a runner that compares nothing would pass everything, so each number that a
scenario expects is changed once.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

LOOKS = {
    "expect",
    "expect_count",
    "expect_pane_of",
    "late_output",
    "dropped",
    "hold",
    "output_watermark",
    "out_wm",
    "state_windows",
    "state",
    "read",
}
JOIN_LOOKS = {"expect", "out_wm", "output_watermark", "late_left", "late_right", "buffer"}
BATCH_LOOKS = {
    "out",
    "all",
    "watermark",
    "watermark_used",
    "agg_watermark_ms",
    "event_time",
    "state_rows",
    "dropped",
}
RESULTS = {
    "windows",
    "expect",
    "merges",
    "result",
    "merged",
    "valid",
    "output_watermark",
    "output_watermark_ms",
    "output_watermarks",
}


def expectations(item: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Paths of the numbers that say what must come out of a scenario about windows and panes."""
    if item["kind"] == "panes_by_window":
        return [path for path in numbers(item) if path[0] == "expect"]
    if "cases" in item:
        return [
            path
            for path in numbers(item["cases"], ("cases",))
            if path[2] in RESULTS and not (item["kind"] == "merge" and path[2] == "windows")
        ]
    if item["kind"] == "trigger":
        # A window that nothing came to is not ready either, so that only the answers are changed
        # here.
        return [
            path for path in numbers(item["steps"], ("steps",)) if path[-1] in {"ready", "finished"}
        ]
    looks = {"microbatch": BATCH_LOOKS, "join": JOIN_LOOKS}.get(item["kind"], LOOKS)
    return [path for path in numbers(item["steps"], ("steps",)) if path[2] in looks]


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
