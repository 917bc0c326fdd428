"""Notation of watermark output: numbers, `idle`, `active`, events and rows."""

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
class Signal:
    """One output: `wm`, `idle` or `active`, maybe with a key, an event `ev`, or a `row`."""

    word: str
    value: Any = None
    key: int | None = None


def of_mark(mark: Mark) -> Signal:
    """A mark of ours."""
    match mark:
        case Watermark(value=value, key=key):
            return Signal("wm", value, key)
        case Idle(key=key):
            return Signal("idle", key=key)
        case Active(key=key):
            return Signal("active", key=key)


def read(written: Any, ticks: Ticks) -> Signal:
    """One entry of an `out` list: `7`, `idle`, `[key, 7]`, `{wm: 7, key: 1}`, `{idle: true, key:
    1}` or `{ev: 10}`.
    """
    if isinstance(written, str) and written in TURNS:
        return Signal(written)
    if isinstance(written, list):
        if len(written) != 2:
            raise UnsupportedScenarioError(
                f"a pair in `out` is a key and a watermark, got `{written}`"
            )
        key, what = written
        return (
            Signal(what, key=_key(key))
            if what in TURNS
            else Signal("wm", watermark(what, ticks), _key(key))
        )
    if not isinstance(written, dict):
        return Signal("wm", watermark(written, ticks), 0)
    known("an entry of `out`", written, {"wm", "ev", "key", *TURNS})
    if "ev" in written:
        return Signal("ev", ticks(written["ev"]))
    if "wm" in written:
        return Signal("wm", watermark(written["wm"], ticks), _key(written.get("key", 0)))
    word = next((word for word in TURNS if written.get(word) is True), None)
    if word is None:
        raise UnsupportedScenarioError(
            f"an entry of `out` has none of `wm`, `ev`, `idle`, `active`: {written}"
        )
    return Signal(word, key=_key(written["key"]) if "key" in written else None)


def _key(written: Any) -> int:
    if isinstance(written, bool) or not isinstance(written, int):
        raise UnsupportedScenarioError(f"a watermark key is a whole number, got `{written}`")
    return written


def watermark(written: Any, ticks: Ticks) -> int:
    """A watermark as written; null is the beginning of time."""
    return MIN if written is None else ticks.watermark(written)


def show(signal: Iterable[Signal], ticks: Ticks) -> list[Any]:
    """Signals in the notation of a scenario."""
    return [_shown(one, ticks) for one in signal]


def _shown(signal: Signal, ticks: Ticks) -> Any:
    if signal.word == "wm":
        number = ticks.shown_watermark(signal.value)
        return [signal.key, number] if signal.key else number
    if signal.word in TURNS:
        return signal.word if signal.key is None else [signal.key, signal.word]
    return {"ev": ticks.shown(signal.value)} if signal.word == "ev" else signal.value
