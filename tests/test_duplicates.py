"""Duplicates: a replayed message changes nothing, within and across deliveries and restarts."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg


def windowed(**stream: Any) -> tg.Windowed:
    named = {"time": "ts", "key": "k", "watermark": tg.explicit(), **stream}
    return tg.stream(**named).window(tg.tumbling(10, unit="us")).allow_lateness(20, unit="us")


def by_offset(**stream: Any) -> tg.Panes:
    return windowed(offset="o", **stream).aggregate(n=tg.count(), total=tg.sum("v"))


def by_id() -> tg.Panes:
    return windowed(id="id").aggregate(n=tg.count(), total=tg.sum("v"))


def row(o: int, ts: int, **more: Any) -> dict[str, Any]:
    return {"o": o, "id": f"m{o}", "ts": ts, "k": "a", "v": 1, **more}


BOTH = pytest.mark.parametrize("panes", [by_offset(), by_id()], ids=["offset", "id"])


@BOTH
def test_within_a_delivery(panes):
    op = panes.embedded(now=0)
    op.add_messages([row(0, 1), row(1, 2), row(0, 1), row(1, 2), row(1, 2)])
    assert (op.stats()["events"], op.stats()["duplicates"], op.stats()["on_time"]) == (2, 3, 2)
    op.finish()
    assert op.get_result().panes["n"].to_pylist() == [2]


@BOTH
def test_across_deliveries(panes):
    op = panes.embedded(now=0)
    for _ in range(3):
        op.add_messages([row(0, 1), row(1, 2)])
    op.add_messages([row(1, 2), row(2, 3)])
    op.finish()
    assert op.get_result().panes["n"].to_pylist() == [3]
    assert op.stats()["duplicates"] == 5


@BOTH
def test_single_messages(panes):
    op = panes.embedded(now=0)
    for o in (0, 1, 0, 1, 2, 2):
        op.add_message(row(o, o))
    op.finish()
    assert op.get_result().panes["n"].to_pylist() == [3]


@BOTH
@pytest.mark.parametrize("ts", [-100, None], ids=["very late", "no time"])
def test_what_went_to_late_is_not_reported_a_second_time(panes, ts):
    op = panes.embedded(now=0)
    op.add_messages(pa.Table.from_pylist([row(0, 5)]))
    op.advance_watermark(50)
    schema = pa.schema(
        {"o": pa.int64(), "id": pa.string(), "ts": pa.int64(), "k": pa.string(), "v": pa.int64()}
    )
    late = pa.Table.from_pylist([row(1, ts), row(1, ts)], schema)
    op.add_messages(late)
    op.add_messages(late)
    assert op.get_result().late.num_rows == 1
    assert op.stats()["late_rows"] == 1
    assert op.stats()["very_late"] == (ts is not None)


@BOTH
def test_a_duplicate_fires_nothing(panes):
    identity = {"offset": "o"} if panes.spec.input.offset else {"id": "id"}
    spec = windowed(**identity).trigger(tg.repeatedly(tg.after_count(2))).aggregate(n=tg.count())
    op = spec.embedded(now=0)
    op.add_messages([row(0, 1)])
    op.add_messages([row(0, 1)])
    op.add_messages([row(0, 1)])
    assert op.get_result().panes.num_rows == 0


@BOTH
def test_across_restarts(panes, tmp_path):
    op = panes.embedded(store=tg.MemoryStore(tmp_path / "s"), now=0)
    op.add_messages([row(0, 1), row(1, -10)])
    op.advance_watermark(5)
    op.get_result()
    op.flush()
    op.close()
    again = panes.embedded(store=tg.MemoryStore(tmp_path / "s"), now=0)
    again.add_messages([row(0, 1), row(1, -10), row(2, 6)])
    again.finish()
    result = again.get_result()
    assert [(p["window_start"], p["n"]) for p in result.panes.to_pylist()] == [(0, 2)]
    assert result.late.num_rows == 0


def test_a_duplicate_does_not_move_an_implied_watermark():
    op = by_offset(watermark=None).embedded(now=0)
    op.add_messages([row(5, 8)])
    op.add_messages([row(5, 99), row(4, 99)])
    assert op.watermark == 8


def test_partitions_count_on_their_own():
    op = by_offset(partition="p").embedded(now=0)
    op.add_messages([row(5, 1, p="x"), row(1, 1, p="y"), row(5, 1, p="z"), row(3, 1, p=None)])
    op.add_messages(
        [row(5, 1, p="x"), row(2, 1, p="y"), row(4, 1, p="z"), row(6, 1, p="x"), row(3, 1, p=None)]
    )
    op.finish()
    assert op.get_result().panes["n"].to_pylist() == [6]


@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.string(), pa.dictionary(pa.int32(), pa.string())], ids=str
)
def test_partitions_may_be_numbers_or_names(kind):
    op = by_offset(partition="p").embedded(now=0)
    names = pa.array(["1", "10", "9"]).cast(pa.string())
    partition = (
        names.cast(pa.int64())
        if kind == pa.int64()
        else names.dictionary_encode()
        if pa.types.is_dictionary(kind)
        else names
    )
    for _ in range(2):
        op.add_messages(
            pa.table(
                {"o": [3, 3, 3], "ts": [1, 1, 1], "k": ["a"] * 3, "v": [1] * 3, "p": partition}
            )
        )
    op.finish()
    assert op.get_result().panes["n"].to_pylist() == [3]
    assert op.resume_offsets() == {"1": 4, "10": 4, "9": 4}


def test_a_null_partition_is_not_the_partition_called_null():
    op = by_offset(partition="p").embedded(now=0)
    op.add_messages([row(5, 1, p="null"), row(5, 1, p=None)])
    op.add_messages([row(5, 1, p="null"), row(5, 1, p=None)])
    op.finish()
    assert op.get_result().panes["n"].to_pylist() == [2]


def test_negative_and_huge_offsets():
    op = by_offset().embedded(now=0)
    op.add_messages([row(-(2**63) + 1, 1), row(2**63 - 2, 2), row(0, 3)])
    op.add_messages([row(2**63 - 2, 2), row(-5, 2)])
    op.finish()
    assert op.get_result().panes["n"].to_pylist() == [3]


def test_rows_of_a_delivery_are_taken_in_the_order_of_offsets():
    op = windowed(offset="o").aggregate(all=tg.list_("v")).embedded(now=0)
    op.add_messages([row(3, 1, v=3), row(1, 1, v=1), row(2, 1, v=2), row(1, 1, v=1)])
    op.finish()
    assert op.get_result().panes["all"].to_pylist() == [[1, 2, 3]]


@pytest.mark.parametrize(
    "ids",
    [
        [1, 2, 1],
        ["x", "y", "x"],
        [b"x", b"", b"x"],
        [Decimal("1.10"), Decimal("1.11"), Decimal("1.10")],
        [{"a": 1, "b": "x"}, {"a": 1, "b": None}, {"a": 1, "b": "x"}],
        [[1, 2], [12], [1, 2]],
        [1.5, float("nan"), 1.5],
        [0.0, 1.0, -0.0],
    ],
    ids=lambda ids: type(ids[0]).__name__,
)
def test_ids_of_any_type(ids):
    op = by_id().embedded(now=0)
    op.add_messages([row(0, 1, id=value) for value in ids])
    op.add_messages([row(0, 1, id=value) for value in ids])
    op.finish()
    assert op.get_result().panes["n"].to_pylist() == [2]


def test_messages_without_an_id_are_all_different():
    op = by_id().embedded(now=0)
    for _ in range(2):
        op.add_messages([row(0, 1, id=None), row(0, 1, id="x"), row(0, 1, id=None)])
    op.finish()
    assert op.get_result().panes["n"].to_pylist() == [5]


def test_ids_are_held_while_their_time_is_within_lateness_and_no_longer():
    op = by_id().embedded(now=0)
    for start in range(0, 10_000, 100):
        op.add_messages([row(t, t) for t in range(start, start + 100)])
        op.advance_watermark(start + 100)
        assert op.stats()["ids"] <= 20
    op.add_messages([row(9_985, 9_985)])
    assert op.stats()["duplicates"] == 1


def test_memory_by_offset_does_not_grow():
    op = by_offset().embedded(now=0)
    sizes = []
    for start in range(0, 5_000, 100):
        op.add_messages([row(t, t) for t in range(start, start + 100)])
        op.advance_watermark(start + 100)
        sizes.append((op.stats()["bytes"], len(op.operator.window_offsets)))
    assert max(sizes[10:]) <= max(sizes[:10])


@pytest.mark.parametrize(
    "window",
    [tg.tumbling("10 us", axis="clock"), tg.tumbling(3, axis="ordinal")],
    ids=["clock", "ordinal"],
)
def test_ids_are_bounded_on_every_axis(window):
    op = (
        tg.stream(time="ts", key="k", id="id")
        .window(window)
        .allow_lateness(20, unit="us")
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    for start in range(0, 2_000, 100):
        op.add_messages([row(t, t) for t in range(start, start + 100)], now=start)
        op.timeout(start + 100)
    assert op.stats()["ids"] <= 400
    op.finish()
    assert op.stats()["ids"] == 0


def test_id_and_offset_together_are_refused():
    with pytest.raises(tg.SpecError, match=r"offset.*id"):
        tg.stream(time="ts", id="id", offset="o")


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=60),
    st.integers(1, 7),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_oracle_replays_of_any_shape_change_nothing(sent, cut, use_ids, seed):
    """A source that goes back to random earlier offsets gives the same result as without."""
    dice = random.Random(seed)
    rows = [row(o, ts) for o, ts in enumerate(sent)]
    panes = by_id() if use_ids else by_offset()
    plain, noisy = panes.embedded(now=0), panes.embedded(now=0)
    for at in range(0, len(rows), cut):
        plain.add_messages(rows[at : at + cut])
        back = dice.randrange(0, at + 1)
        noisy.add_messages(rows[back : at + cut])
        if dice.random() < 0.5:
            again = rows[dice.randrange(0, at + 1) : at + cut]
            dice.shuffle(again)
            noisy.add_messages(again)
    for op in (plain, noisy):
        op.finish()
    assert noisy.get_result().panes.to_pylist() == plain.get_result().panes.to_pylist()
    assert noisy.get_result().late.to_pylist() == plain.get_result().late.to_pylist()
