"""The same deliveries produce the same panes and late rows embedded and on Spark.

`tests/test_edge.py` does this for many specifications on shards in one process. Here, a few random
ones run as real queries, each file a delivery.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

import tidegate as tg
from support.spark_streams import BASE, SECOND, UTC, Feed, finished

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCHEMA = pa.schema({"user": pa.string(), "ts": UTC, "price": pa.int64(), "o": pa.int64()})
DDL = "user string, ts timestamp, price bigint, o bigint"
WINDOWS = [
    tg.tumbling("10 seconds"),
    tg.tumbling("10 seconds", create="static"),
    tg.hopping("20 seconds", "5 seconds"),
    tg.session("6 seconds"),
    tg.cumulative("30 seconds", "10 seconds"),
    tg.tumbling(3, axis="ordinal"),
]
TRIGGERS = [
    tg.after_watermark(late=tg.after_count(1)),
    tg.after_watermark(early=tg.after_count(2), late=tg.after_count(1)),
    tg.after_watermark(early=tg.every_element(), late=tg.every_element()),
    tg.repeatedly(tg.after_count(3)),
]
MODES = ["accumulating", "discarding", "retracting"]
LATENESS = ["0 seconds", "8 seconds", "1 minute"]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"timestamp": "earliest"},
    {"drop_by": "window"},
    {"granularity": "batch"},
    {"on_time": "always", "closing": "always"},
]
VOLATILE = {"emitted_at", "windows"}
"""Clocks differ, and the order of missed windows is not defined."""


def pipeline(dice: random.Random, window: Any, source: Any = None) -> tg.Panes:
    """A random specification over a window."""
    stream = tg.stream(source, time="ts", key="user", offset="o", watermark=tg.bounded("3 seconds"))
    windowed = stream.window(window).trigger(dice.choice(TRIGGERS))
    windowed = getattr(windowed, dice.choice(MODES))().allow_lateness(dice.choice(LATENESS))
    windowed = windowed.options(**dice.choice(OPTIONS))
    return windowed.aggregate(n=tg.count(), spent=tg.sum("price"), dear=tg.arg_max("o", "price"))


def deliveries(dice: random.Random) -> list[list[dict[str, Any]]]:
    """Disordered events of five users; some are very late, one has no time."""
    rows = [
        {
            "user": dice.choice("abcde"),
            "ts": BASE + (2 * n + dice.randint(-15, 3)) * SECOND,
            "price": dice.randint(0, 9),
            "o": n,
        }
        for n in range(48)
    ]
    rows[dice.randrange(48)]["ts"] = None
    return [rows[n : n + 12] for n in range(0, 48, 12)]


def by_window(rows: list[dict[str, Any]]) -> dict[Any, list[Any]]:
    """The panes of each key and window in their order; there is none between windows."""
    found: dict[Any, list[Any]] = {}
    for row in rows:
        place = (row["user"], row["window_start"], row["window_end"])
        found.setdefault(place, []).append(_stable(row))
    return found


def _stable(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted((name, repr(v)) for name, v in row.items() if name not in VOLATILE))


@pytest.mark.parametrize("number", range(len(WINDOWS)), ids=lambda n: type(WINDOWS[n]).__name__)
def test_the_same_deliveries_produce_the_same_rows(spark, tmp_path, number):
    feed, given = Feed(tmp_path / "in", SCHEMA), deliveries(random.Random(number))
    for rows in given:
        feed.put(rows)
    seed = 100 + number
    source = feed.stream(spark, DDL)
    panes = pipeline(random.Random(seed), WINDOWS[number], source).include()
    run = finished(panes, tmp_path / "ck", shards=3)
    op = pipeline(random.Random(seed), WINDOWS[number]).embedded()
    for rows in given:
        op.add_messages(pa.Table.from_pylist(rows, SCHEMA))
    wanted = op.get_result()
    assert by_window(run.panes) == by_window(wanted.panes.to_pylist())
    assert Counter(map(_stable, run.late)) == Counter(map(_stable, wanted.late.to_pylist()))
    assert run.panes
