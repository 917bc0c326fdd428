"""The explanation of an operator whose keys are distributed over shards."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tidegate.instants import MIN
from tidegate.operators.aggregate.operator import WindowedAggregate
from tidegate.operators.chain import Operator
from tidegate.operators.explain.explanation import LISTED, LISTED_KEYS, explain, worded
from tidegate.operators.explain.facts import Explanation, WindowFacts
from tidegate.operators.explain.join import explain_join, held_rows
from tidegate.operators.join.operator import WindowedJoin

_OF_SOURCES = ("watermark", "generator_failures")
"""Prefixes of counters that are about sources, which are the same in all shards."""


def explain_shards(
    operators: Sequence[Operator], *, scans: bool = True, now: int = MIN
) -> Explanation:
    """What an operator waits for; `operators` has one or more of its shards.

    `now`: the clock of the last batch, in which a shard may not have been called. Without `scans`,
    the windows come from summaries.
    """
    joins = [operator for operator in operators if isinstance(operator, WindowedJoin)]
    if joins:
        found = _combined([explain_join(join) for join in joins], now)
        return dataclasses.replace(found, sentences=(*found.sentences, *held_rows(joins)))
    aggregates = [operator for operator in operators if isinstance(operator, WindowedAggregate)]
    return _combined([explain(operator, scans=scans) for operator in aggregates], now)


def _combined(shards: Sequence[Explanation], now: int) -> Explanation:
    """One explanation: the sources of a shard, and the windows and counts of all.

    Shards track the same sources. One that was not called lately may have an older watermark.
    """
    last = max(shards, key=lambda shard: (shard.now, _least(shard.watermark)))
    windows = _windows(window for shard in shards for window in shard.windows)
    return worded(
        last,
        now=max(last.now, now),
        is_scheduled=True,
        newest=max((shard.newest for shard in shards if shard.newest is not None), default=None),
        windows=tuple(windows[:LISTED]),
        more_windows=len(windows[LISTED:]) + sum(shard.more_windows for shard in shards),
        unlisted=sum(shard.unlisted for shard in shards),
        kept=sum(shard.kept for shard in shards),
        keys_ahead=(
            None if last.keys_ahead is None else sum(shard.keys_ahead or 0 for shard in shards)
        ),
        keys=tuple(key for shard in shards for key in shard.keys)[:LISTED_KEYS],
        counters=_counters([shard.counters for shard in shards]),
        late=dict(sum((Counter(shard.late) for shard in shards), Counter())),
    )


def _windows(found: Iterable[WindowFacts]) -> list[WindowFacts]:
    """The windows of all shards, those that end first before the others."""
    merged: dict[tuple[int, int], WindowFacts] = {}
    for window in found:
        known = merged.get((window.start, window.end))
        merged[window.start, window.end] = window if known is None else _both(known, window)
    return sorted(merged.values(), key=lambda window: (window.end, window.start))


def _both(one: WindowFacts, other: WindowFacts) -> WindowFacts:
    """A window that two shards have: it waits for what comes first."""
    return dataclasses.replace(
        one,
        keys=None if one.keys is None or other.keys is None else one.keys + other.keys,
        is_complete=one.is_complete and other.is_complete,
        has_fired=one.has_fired or other.has_fired,
        watermark=_first(one.watermark, other.watermark),
        clock=_first(one.clock, other.clock),
        by_elements=one.by_elements or other.by_elements,
        expiry=None
        if one.expiry is None or other.expiry is None
        else max(one.expiry, other.expiry),
        to_go=_first(one.to_go, other.to_go),
    )


def _counters(shards: Sequence[Mapping[str, int]]) -> dict[str, int]:
    return {
        name: (max if name.startswith(_OF_SOURCES) else sum)(
            counters.get(name, 0) for counters in shards
        )
        for name in dict.fromkeys(name for counters in shards for name in counters)
    }


def _first(*values: int | None) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _least(value: int | None) -> int:
    return MIN if value is None else value
