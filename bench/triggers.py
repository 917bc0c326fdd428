"""Kernel cases with triggers: many keys, few keys and a hot key, against the same without one."""

from __future__ import annotations

from collections.abc import Mapping

from bench.cases import Measured, aggregated, compare, keys_of, windowed
from bench.traffic import Traffic
from tidegate.spec.triggers import (
    Trigger,
    after_all,
    after_any,
    after_count,
    after_delay,
    after_each,
    after_watermark,
    every,
    or_finally,
    repeatedly,
)
from tidegate.spec.windows import Window, session, tumbling

_FEW, _MANY = 100, 10_000
_HOT = 0.2
"""The share of the rows that the hot key has."""
_MINUTE = tumbling("1 minute")
_SESSION = session("30 seconds")
_EVERY = after_watermark(early=every("10 seconds"))
_COUNT = after_watermark(early=repeatedly(after_count(100)))


def _either() -> Trigger:
    return after_any(after_count(100), after_delay("10 seconds"))


_COMPOSITES: Mapping[str, Trigger] = {
    "after_any": repeatedly(_either()),
    "after_all": repeatedly(after_all(after_count(100), after_delay("0 seconds"))),
    "after_each": repeatedly(after_each(after_count(50), after_count(100))),
    "or_finally": repeatedly(or_finally(repeatedly(after_count(100)), after_count(1_000))),
}


def _measure(name: str, aim: float, window: Window, trigger: Trigger, traffic: Traffic) -> Measured:
    """Retracting panes of a trigger against the default trigger, in deliveries of equal rows."""
    windows = windowed(window).retracting()
    ours, peer = aggregated(windows.trigger(trigger)), aggregated(windows)
    return compare(name, aim, "our default trigger", traffic, ours, peer, turns=4, steady=False)


def _traffic(keys: int, rows: int, hot: float = 0.0) -> Traffic:
    # With few keys their number stays, so that the rows of a key shrink instead.
    count = keys if keys <= _FEW else keys_of(keys, rows)
    return Traffic(count, max(1, rows // 5), hot=hot)


def early_every_100(rows: int) -> list[Measured]:
    """An early pane every 10 seconds, 100 keys."""
    return [_measure("early_every_100", 5.0, _MINUTE, _EVERY, _traffic(_FEW, rows))]


def early_every_10k(rows: int) -> list[Measured]:
    """An early pane every 10 seconds, 10 thousand keys."""
    return [_measure("early_every_10k", 5.0, _MINUTE, _EVERY, _traffic(_MANY, rows))]


def early_every_hot(rows: int) -> list[Measured]:
    """An early pane every 10 seconds, 10 thousand keys of which one has a fifth of the rows."""
    return [_measure("early_every_hot", 5.0, _MINUTE, _EVERY, _traffic(_MANY, rows, _HOT))]


def _composites(name: str, traffic: Traffic) -> list[Measured]:
    found = [
        _measure(f"{name}, {words}", 8.0, _MINUTE, trigger, traffic)
        for words, trigger in _COMPOSITES.items()
    ]
    return [found[0].named(name), *found[1:]]


def composite_100(rows: int) -> list[Measured]:
    """Composite triggers, 100 keys."""
    return _composites("composite_100", _traffic(_FEW, rows))


def composite_hot(rows: int) -> list[Measured]:
    """Composite triggers, 10 thousand keys of which one has a fifth of the rows."""
    return _composites("composite_hot", _traffic(_MANY, rows, _HOT))


def session_early_100(rows: int) -> list[Measured]:
    """Sessions with a pane for every hundred rows, 100 keys."""
    return [_measure("session_early_100", 8.0, _SESSION, _COUNT, _traffic(_FEW, rows))]


def session_early_hot(rows: int) -> list[Measured]:
    """Sessions with a pane for every hundred rows, one hot key."""
    return [_measure("session_early_hot", 8.0, _SESSION, _COUNT, _traffic(_MANY, rows, _HOT))]
