"""Kernel cases: each races an operator against a peer on the same rows and returns the ratio."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from bench.racing import GroupByRunner, OperatorRunner, Runner, Times, race
from bench.traffic import PER_MINUTE, Delivery, Traffic, deliver, distinct_keys, small_delivery
from tidegate.api.streams import Panes, Windowed, stream
from tidegate.spec import aggregates
from tidegate.spec.triggers import after_count, after_watermark
from tidegate.spec.watermarks import bounded
from tidegate.spec.windows import Window, hopping, session, tumbling

FULL = 1_000_000
"""Rows of a large delivery. With fewer rows the number of keys shrinks in proportion."""


@dataclass(frozen=True)
class Measured:
    """One ratio: our processor time over the peer's, for the same events."""

    name: str
    ratio: float
    aim: float
    peer: str
    keys: int
    events: int
    seconds: float
    peer_seconds: float
    events_per_second: float
    wall_ratio: float
    bytes_per_key_and_window: float

    def named(self, name: str) -> Measured:
        """The same under another name."""
        return replace(self, name=name)

    def to_dict(self) -> dict[str, Any]:
        digits = {
            "ratio": 3,
            "wall_ratio": 3,
            "seconds": 4,
            "peer_seconds": 4,
            "events_per_second": 0,
            "bytes_per_key_and_window": 1,
        }
        return {
            name: round(value, digits[name]) if name in digits else value
            for name, value in asdict(self).items()
        }


def windowed(window: Window) -> Windowed:
    """The input of all cases, windowed."""
    return stream(time="ts", key="key", watermark=bounded("10 seconds")).window(window)


def aggregated(windows: Windowed) -> Panes:
    """Count, sum and maximum."""
    return windows.aggregate(
        n=aggregates.count(), total=aggregates.sum("v"), top=aggregates.max("v")
    )


def _minutes(traffic: Traffic, count: int) -> Iterator[list[Delivery]]:
    minute = traffic.minute()
    return (deliver(minute, number) for number in range(count))


def compare(
    name: str,
    aim: float,
    peer: str,
    traffic: Traffic,
    ours: Panes,
    other: Panes | Runner,
    *,
    fill: int = 3,
    turns: int = 5,
    steady: bool = True,
) -> Measured:
    """Race an operator against another one or against bare Arrow. A turn is a minute of events."""
    runner = OperatorRunner(ours)
    runners: dict[str, Runner] = {
        "ours": runner,
        "peer": OperatorRunner(other) if isinstance(other, Panes) else other,
    }
    times = race(runners, _minutes(traffic, fill + turns), unmeasured=fill, steady=steady)
    return measured(name, aim, peer, traffic.keys, traffic.rows * PER_MINUTE, runner, times)


def measured(
    name: str,
    aim: float,
    peer: str,
    keys: int,
    events: int,
    ours: OperatorRunner,
    times: dict[str, Times],
) -> Measured:
    """The ratio of the times of `ours` and `peer`."""
    mine, other = times["ours"], times["peer"]
    ratio, wall_ratio = mine.processor / other.processor, mine.wall / other.wall
    return Measured(
        name,
        ratio,
        aim,
        peer,
        keys,
        events,
        mine.processor,
        other.processor,
        events / mine.wall,
        wall_ratio,
        ours.bytes_per_cell,
    )


def keys_of(count: int, rows: int) -> int:
    """The number of keys, in proportion to the rows of a delivery."""
    return max(1, count * rows // FULL)


def _tumbling(name: str, keys: int, rows: int) -> list[Measured]:
    traffic, ours = Traffic(keys_of(keys, rows), rows), aggregated(windowed(tumbling("1 minute")))
    return [compare(name, 1.8, "arrow group_by", traffic, ours, GroupByRunner())]


def tumbling_100k(rows: int = FULL) -> list[Measured]:
    """Tumbling minutes against `Table.group_by`, at 100 thousand keys."""
    return _tumbling("tumbling_100k", 100_000, rows)


def tumbling_1m(rows: int = FULL) -> list[Measured]:
    """Tumbling minutes against `Table.group_by`, at a million keys."""
    return _tumbling("tumbling_1m", 1_000_000, rows)


def sliding(rows: int = FULL) -> list[Measured]:
    """Windows of 10 minutes every 10 seconds against tumbling minutes, once every window is full.

    Uses the mean: slices shared by neighbouring windows are merged once in ten minutes, which a
    median would hide.
    """
    ours, peer = (
        aggregated(windowed(hopping("10 minutes", "10 seconds"))),
        aggregated(windowed(tumbling("1 minute"))),
    )
    found = []
    for name, keys in (("sliding", 10_000), ("sliding at 100 thousand keys", 100_000)):
        traffic = Traffic(keys_of(keys, rows), rows)
        found.append(
            compare(name, 2.0, "our tumbling", traffic, ours, peer, fill=10, turns=10, steady=False)
        )
    return found


def sessions(rows: int = FULL) -> list[Measured]:
    """Sessions with a gap of 30 seconds against tumbling minutes.

    With few keys sessions hardly ever end, with many they are short.
    """
    ours, peer = (
        aggregated(windowed(session("30 seconds"))),
        aggregated(windowed(tumbling("1 minute"))),
    )
    found = []
    for name, keys in (("session", 100_000), ("session at 1 million keys", 1_000_000)):
        found.append(
            compare(
                name, 4.0, "our tumbling", Traffic(keys_of(keys, rows), rows), ours, peer, turns=3
            )
        )
    return found


def retracting(rows: int = FULL) -> list[Measured]:
    """Retracting against accumulating mode, with three percent of the rows late or nearly late."""
    traffic = Traffic(keys_of(100_000, rows), rows, stragglers=30)
    default = windowed(tumbling("1 minute"))
    each = default.trigger(after_watermark(late=after_count(1)))
    found = []
    for name, windows in (
        ("retracting", each),
        ("retracting, late panes every 10 seconds", default),
    ):
        found.append(
            compare(
                name,
                2.0,
                "our accumulating",
                traffic,
                aggregated(windows.retracting()),
                aggregated(windows),
                turns=3,
            )
        )
    return found


def small_deliveries(rows: int = FULL) -> list[Measured]:
    """Short deliveries with many keys in state against the same with few keys.

    Uses the mean, because compaction happens in only some of the deliveries.
    """
    hour = windowed(tumbling("1 hour"))
    early = hour.trigger(after_watermark(early=after_count(1_000_000)))
    found = [_small("small_deliveries", aggregated(hour), 10 * rows, rows)]
    found.append(
        _small("small_deliveries, early trigger, 2 million keys", aggregated(early), 2 * rows, rows)
    )
    return found


def _small(name: str, panes: Panes, keys: int, rows: int) -> Measured:
    small, few, turns = max(1, rows // 100), max(1, rows // 10), 60
    ours, peer = OperatorRunner(panes), OperatorRunner(panes)
    for first in range(0, keys, rows):
        ours.take([distinct_keys(first, min(rows, keys - first))])
    peer.take([distinct_keys(0, few)])
    times = {
        **race(
            {"ours": ours},
            (_small_turn(n, small, keys) for n in range(turns)),
            unmeasured=2,
            steady=False,
        ),
        **race(
            {"peer": peer},
            (_small_turn(n, small, few) for n in range(turns)),
            unmeasured=2,
            steady=False,
        ),
    }
    return measured(name, 1.5, f"the same at {few:,} keys", keys, small, ours, times)


def _small_turn(number: int, rows: int, keys: int) -> list[Delivery]:
    return [small_delivery(number, rows, keys)]


def _mean(times: list[Times]) -> Times:
    """The mean of the times of several races."""
    return Times(
        sum(one.processor for one in times) / len(times),
        sum(one.wall for one in times) / len(times),
    )


def history(rows: int = FULL) -> list[Measured]:
    """What an operator records for `why` and `plot`, against the same operator without it.

    A delivery of 10 thousand rows, and of 100 rows. Of two equal runners the first is slower by a
    few percent, so the race is run in both orders.
    """
    panes = aggregated(windowed(tumbling("1 minute")))
    found = []
    for name, share, turns in (("history", 100, 100), ("history, deliveries of 100", 10_000, 400)):
        size = max(1, rows // share)
        raced, ours = [], OperatorRunner(panes)
        for names in (("ours", "peer"), ("peer", "ours")):
            ours = OperatorRunner(panes)
            runners = {"ours": ours, "peer": OperatorRunner(panes, history=0)}
            raced.append(
                race(
                    {side: runners[side] for side in names},
                    (_small_turn(number, size, rows) for number in range(turns)),
                    unmeasured=turns // 10,
                )
            )
        times = {side: _mean([times[side] for times in raced]) for side in ("ours", "peer")}
        found.append(measured(name, 1.02, "without a history", rows, size, ours, times))
    return found
