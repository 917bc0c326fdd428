"""Static windows: every known key has every window from the first event to the watermark, and it
does not matter how the keys are divided into shards or the events into deliveries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from support.examples import examples
from support.spark_fakes import Columns, Fleet
from tidegate.spark.tasks.shards import ShardLayout
from tidegate.spec.windows import Hopping

SCHEMA = pa.schema({"k": pa.string(), "t": pa.int64(), "o": pa.int64()})
THREE = ShardLayout.balanced(3)
HOUR = 3_600_000_000
WINDOWS = {
    "tumbling": tg.tumbling("10 us", create="static"),
    "hopping": tg.hopping("20 us", "10 us", create="static"),
    "gaps": Hopping(4, 10, create="static"),
    "cumulative": tg.cumulative("30 us", "10 us", create="static"),
    "clock": tg.tumbling("10 ms", axis="clock", create="static"),
    "offset": tg.tumbling(4, axis="offset", create="static"),
}
Delivery = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def _no_workers() -> Iterator[None]:
    Fleet.forget_workers()
    yield
    Fleet.forget_workers()


def counts(window: Any, **options: Any) -> tg.Panes:
    stream = tg.stream(Columns(SCHEMA), time="t", key="k", offset="o", watermark=tg.bounded("3 us"))
    return stream.window(window).options(**options).aggregate(n=tg.count())


def shown(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The panes of one call; the order of keys in a window depends on the shards."""
    return sorted(
        (row["window_end"], row["window_start"], row["k"], row["op"], row["n"], row["timing"])
        for row in rows
    )


def numbered(deliveries: list[list[tuple[str, int]]]) -> Iterator[pa.Table]:
    offset = 0
    for rows in deliveries:
        found = [{"k": k, "t": t, "o": offset + n} for n, (k, t) in enumerate(rows)]
        offset += len(rows)
        yield pa.Table.from_pylist(found, SCHEMA)


def embedded(panes: tg.Panes, deliveries: list[list[tuple[str, int]]]) -> list[Any]:
    op = panes.embedded(now=0)
    op.operator.bind(SCHEMA)
    found = []
    for n, table in enumerate(numbered(deliveries), 1):
        op.add_messages(table, now=n * 7_000)
        op.timeout(now=n * 7_000)
        found.append(shown(op.get_result().panes.to_pylist()))
        op.flush()
    return found


def sharded(panes: tg.Panes, deliveries: list[list[tuple[str, int]]]) -> list[Any]:
    fleet = Fleet.of(panes, THREE)
    return [
        shown(fleet.deliver([(0, 0, [table])], n * 7_000).panes)
        for n, table in enumerate(numbered(deliveries), 1)
    ]


histories = st.lists(
    st.lists(
        st.tuples(st.sampled_from("abcdefg"), st.integers(-20, 90) | st.just(HOUR)), max_size=5
    ),
    max_size=6,
)


@pytest.mark.parametrize("kind", WINDOWS)
@examples(8)
@given(histories)
def test_shards_have_the_windows_of_one_operator(kind, deliveries):
    panes = counts(WINDOWS[kind])
    assert sharded(panes, deliveries) == embedded(panes, deliveries)


def test_a_key_that_comes_later_has_the_windows_since_the_last_watermark():
    deliveries = [[("a", 5)], [("b", 43)]]
    wanted = [
        [],
        [
            (e, e - 10, k, "+", int((e, k) == (10, "a")), "on_time")
            for e in (10, 20, 30, 40)
            for k in "ab"
        ],
    ]
    assert embedded(counts(WINDOWS["tumbling"]), deliveries) == wanted
    assert sharded(counts(WINDOWS["tumbling"]), deliveries) == wanted


def test_windows_begin_with_the_earliest_event_before_the_first_watermark_that_completes_one():
    whole = embedded(counts(WINDOWS["tumbling"]), [[("a", 24), ("b", 12), ("a", 43)]])
    parts = embedded(counts(WINDOWS["tumbling"]), [[("a", 24)], [("b", 22)], [("a", 43)]])
    assert [row[:3] for row in whole[0]] == [
        (end, end - 10, key) for end in (20, 30, 40) for key in "ab"
    ]
    assert [row[:3] for row in parts[-1]] == [
        (end, end - 10, key) for end in (30, 40) for key in "ab"
    ]


def test_a_shard_without_keys_keeps_up_with_the_clock():
    deliveries = [[("a", 5)], [], [("b", 5)]]
    found = sharded(counts(WINDOWS["clock"]), deliveries)
    assert found == embedded(counts(WINDOWS["clock"]), deliveries)
    assert [row[0] for row in found[2]] == [20_000, 20_000], "no window before the key was known"


def test_an_event_from_the_future_does_not_begin_them():
    deliveries = [[("a", HOUR)], [("b", 5)], [("b", 33)]]
    found = embedded(counts(WINDOWS["tumbling"]), deliveries)
    assert {row[:3] for row in found[-1]} == {(e, e - 10, k) for e in (10, 20, 30) for k in "ab"}
    assert sharded(counts(WINDOWS["tumbling"]), deliveries) == found


def test_ordinals_have_no_windows_without_messages():
    op = counts(tg.tumbling(2, axis="ordinal", create="static")).embedded(now=0)
    op.add_messages([{"k": k, "t": HOUR, "o": n} for n, k in enumerate("aaab")])
    op.finish()
    found = op.get_result().panes.to_pylist()
    assert sorted((row["k"], row["window_start"], row["n"]) for row in found) == [
        ("a", 0, 2),
        ("a", 2, 1),
        ("b", 0, 1),
    ]


def test_static_windows_over_panes_of_the_same_key_begin_together():
    inner = counts(tg.tumbling("10 us"))
    outer = tg.stream(inner, key="k").window(tg.tumbling("20 us", create="static"))
    totals = outer.aggregate(n=tg.sum("n"))
    fleet = Fleet.of(totals, THREE)
    assert len(fleet.stages) == 2
    found = []
    for n, table in enumerate(numbered([[("a", 5), ("a", 14)], [("b", 91)], [("c", 150)]]), 1):
        found += fleet.deliver([(0, 0, [table])], n * 7_000).panes
    last = max(row["window_end"] for row in found if row["k"] == "b")
    assert {row["window_end"] for row in found if row["k"] == "a"} == {*range(20, last + 1, 20)}
