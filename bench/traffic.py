"""Generated input of the benchmarks: deliveries of disordered events, the same in every run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

SECOND = 1_000_000
MINUTE = 60 * SECOND
SPAN = 20 * SECOND
"""Event time that one large delivery covers."""
PER_MINUTE = MINUTE // SPAN
START = 1_700_000_040 * SECOND
"""A full minute, so that windows and deliveries start together."""
TIME = pa.timestamp("us", "UTC")


@dataclass(frozen=True, eq=False)
class Delivery:
    """Rows that arrive together; `starts` is the minute of each row, for peers without windows."""

    rows: pa.Table
    starts: pa.Array
    now: int


@dataclass(frozen=True)
class Traffic:
    """One minute of events that repeats, shifted in time.

    An event arrives after an exponential delay with mean `delay`. Of every thousand events,
    `stragglers` arrive another 15 to 45 seconds later.
    """

    keys: int
    rows: int
    delay: int = SECOND
    stragglers: int = 0
    hot: float = 0.0
    """The share of the rows that have key 0, beside its even share of the rest."""

    def minute(self) -> list[tuple[np.ndarray, pa.Array, pa.Array]]:
        """Times relative to the minute, keys and values of each delivery."""
        random = np.random.default_rng(self.keys)
        return [self._delivery(random, n * SPAN) for n in range(PER_MINUTE)]

    def _delivery(
        self, random: np.random.Generator, begin: int
    ) -> tuple[np.ndarray, pa.Array, pa.Array]:
        arrival = begin + np.arange(self.rows) * SPAN // self.rows
        delay = random.exponential(self.delay, self.rows)
        straggling = random.random(self.rows) * 1_000 < self.stragglers
        delay += straggling * random.uniform(MINUTE / 4, MINUTE * 3 / 4, self.rows)
        key = random.integers(0, self.keys, self.rows)
        if self.hot:
            key[random.random(self.rows) < self.hot] = 0
        value = pa.array(random.integers(0, 1_000, self.rows))
        return arrival - delay.astype(np.int64), pa.array(key), value


def deliver(minute: list[tuple[np.ndarray, pa.Array, pa.Array]], number: int) -> list[Delivery]:
    """The deliveries of the n-th repetition of a minute."""
    base = START + number * MINUTE
    return [
        shifted(times + base, key, value, base + (n + 1) * SPAN)
        for n, (times, key, value) in enumerate(minute)
    ]


def shifted(times: np.ndarray, key: pa.Array, value: pa.Array, now: int) -> Delivery:
    """A delivery of rows at some times; `now` is the clock."""
    starts = pa.array(times - times % MINUTE)
    return Delivery(
        pa.table({"key": key, "ts": pa.array(times).cast(TIME), "v": value}), starts, now
    )


def distinct_keys(first: int, rows: int) -> Delivery:
    """A delivery in which every row has its own key; all rows lie in one second."""
    times = START + np.arange(rows) % SECOND
    return shifted(
        times,
        pa.array(np.arange(first, first + rows)),
        pa.array(np.arange(rows) % 1_000),
        START + SECOND,
    )


def small_delivery(number: int, rows: int, keys: int) -> Delivery:
    """A short delivery of random keys in one second."""
    random = np.random.default_rng(number)
    times = START + np.arange(rows) % SECOND
    return shifted(
        times,
        pa.array(random.integers(0, keys, rows)),
        pa.array(np.arange(rows) % 1_000),
        START + SECOND,
    )
