"""The words in which scenarios write what comes out of watermarks: numbers, `idle`, `active`,
events and rows, and the steps that say them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tidegate.instants import MIN
from tidegate.kernel.watermarks.marks import Active, Idle, Mark, Watermark
from tidegate.scenarios.document import UnsupportedScenarioError, known
from tidegate.scenarios.ticks import Ticks

TURNS = ("idle", "active")


@dataclass(frozen=True)
class Said:
    """One thing that came out: `wm`, `idle` or `active`, maybe with a key, an event `ev`, or a
    `row`.
    """

    word: str
    value: Any = None
    key: int | None = None


def of_mark(mark: Mark) -> Said:
    """A mark of ours."""
    match mark:
        case Watermark(value=value, key=key):
            return Said("wm", value, key)
        case Idle(key=key):
            return Said("idle", key=key)
        case Active(key=key):
            return Said("active", key=key)


def read(written: Any, ticks: Ticks) -> Said:
    """One entry of an `out` list: `7`, `idle`, `[key, 7]`, `{wm: 7, key: 1}`, `{idle: true, key:
    1}` or `{ev: 10}`.
    """
    if isinstance(written, str) and written in TURNS:
        return Said(written)
    if isinstance(written, list):
        if len(written) != 2:
            raise UnsupportedScenarioError(
                f"a pair in `out` is a key and a watermark, got `{written}`"
            )
        key, what = written
        return (
            Said(what, key=_key(key))
            if what in TURNS
            else Said("wm", watermark(what, ticks), _key(key))
        )
    if not isinstance(written, dict):
        return Said("wm", watermark(written, ticks), 0)
    known("an entry of `out`", written, {"wm", "ev", "key", *TURNS})
    if "ev" in written:
        return Said("ev", ticks(written["ev"]))
    if "wm" in written:
        return Said("wm", watermark(written["wm"], ticks), _key(written.get("key", 0)))
    word = next((word for word in TURNS if written.get(word) is True), None)
    if word is None:
        raise UnsupportedScenarioError(
            f"an entry of `out` has none of `wm`, `ev`, `idle`, `active`: {written}"
        )
    return Said(word, key=_key(written["key"]) if "key" in written else None)


def _key(written: Any) -> int:
    if isinstance(written, bool) or not isinstance(written, int):
        raise UnsupportedScenarioError(f"a watermark key is a whole number, got `{written}`")
    return written


def watermark(written: Any, ticks: Ticks) -> int:
    """A watermark as it is written; nothing is the same as the beginning of time."""
    return MIN if written is None else ticks.watermark(written)


def show(said: Iterable[Said], ticks: Ticks) -> list[Any]:
    """What came out, as a scenario would write it."""
    return [_shown(one, ticks) for one in said]


def _shown(said: Said, ticks: Ticks) -> Any:
    if said.word == "wm":
        number = ticks.shown_watermark(said.value)
        return [said.key, number] if said.key else number
    if said.word in TURNS:
        return said.word if said.key is None else [said.key, said.word]
    return {"ev": ticks.shown(said.value)} if said.word == "ev" else said.value
