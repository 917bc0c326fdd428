"""Condensed tables have the same effect on watermarks as whole ones, however they are cut."""

from __future__ import annotations

import json
import warnings
from datetime import UTC, date, datetime
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.examples import examples
from support.source_histories import SCHEMA, histories, row, specs
from tidegate.errors import WatermarkError
from tidegate.instants import MAX, MIN
from tidegate.kernel.watermarks.row_selection import condense
from tidegate.operators.ingest.watermark_tracking import WatermarkTracker
from tidegate.spec.operator import Input, Options, TimeColumn
from tidegate.spec.watermarks import (
    Bounded,
    Explicit,
    Generated,
    Implied,
    Lagging,
    Noted,
    PerKey,
    Punctuated,
    Watermarks,
)
from tidegate.spec.windows import Axis

FAR = 10**9
BY_ROW = {"steps_back", "refused_promises", "after_end"}
"""The counters that count rows."""


def table(*rows: dict[str, Any], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist([dict(row) for row in rows], schema)


def of(watermark: Watermarks, **more: Any) -> Input:
    return Input("ts", partition="p", watermark=watermark, **more)


def shown(found: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*(found.column(name).to_pylist() for name in names), strict=True))


def newest(observed: Any) -> np.ndarray:
    observed.state["rows"] = observed.state.get("rows", 0) + len(observed)
    return observed.behind(3)


everything = st.one_of(
    specs,
    st.builds(PerKey, st.integers(0, 2), st.integers(2, 5)),
    st.just(Generated(newest, "newest")),
)


# Which rows stay


@pytest.mark.parametrize(
    "watermark", [Implied(), Bounded(5), PerKey(0, 5), Lagging(3), Explicit()], ids=str
)
def test_of_most_watermarks_the_newest_row_of_each_partition_stays(watermark):
    whole = table(
        {"ts": 5, "p": "a"},
        {"ts": 9, "p": "a"},
        {"ts": 3, "p": "b"},
        {"ts": 7, "p": "a"},
        {"ts": 9, "p": "a"},
    )
    found = condense(whole, of(watermark), FAR)
    assert found.column_names == ["ts", "p"]
    assert shown(found, "ts", "p") == [(9, "a"), (3, "b")]


def test_what_is_from_the_future_is_left_out_and_no_sign_of_life():
    whole = table({"ts": 50, "p": "a"}, {"ts": 9, "p": "a"}, {"ts": 51, "p": "b"})
    assert shown(condense(whole, of(Bounded(5)), 20), "ts", "p") == [(9, "a")]


def test_the_limit_itself_is_not_the_future():
    assert shown(condense(table({"ts": 20, "p": "a"}), of(Bounded(5)), 20), "ts") == [(20,)]


def test_a_partition_whose_times_cannot_be_read_shows_a_sign_of_life():
    whole = table(
        {"ts": None, "p": "a"},
        {"ts": None, "p": "a"},
        {"ts": 4, "p": None},
        {"ts": None, "p": None},
    )
    assert shown(condense(whole, of(Bounded(5)), FAR), "ts", "p") == [(None, "a"), (4, None)]


def test_the_first_and_the_last_word_of_a_partition_stay():
    words = [(1, 10), (2, 11), (9, None), (3, 12), (4, 13)]
    whole = table(*({"ts": ts, "p": "a", "wm": wm} for ts, wm in words), {"ts": 8, "p": "b"})
    found = condense(whole, of(Punctuated(column="wm")), FAR)
    assert shown(found, "ts", "p", "wm") == [
        (1, "a", 10),
        (9, "a", None),
        (4, "a", 13),
        (8, "b", None),
    ]


def test_all_words_of_a_partition_that_went_back_stay():
    whole = table(
        *(
            {"ts": 1, "p": p, "wm": wm}
            for p, wm in [("a", 10), ("a", 12), ("a", 11), ("a", 13), ("b", 1), ("b", 2), ("b", 3)]
        )
    )
    found = condense(whole, of(Punctuated(column="wm")), FAR)
    assert shown(found, "p", "wm") == [
        ("a", 10),
        ("a", 12),
        ("a", 11),
        ("a", 13),
        ("b", 1),
        ("b", 3),
    ]


def test_a_word_from_the_future_leaves_a_trace():
    whole = table({"ts": 5, "p": "a", "wm": 3}, *({"ts": 1, "p": "a", "wm": 90} for _ in range(5)))
    assert shown(condense(whole, of(Punctuated(column="wm")), 20), "wm") == [(3,), (90,)]


def test_markers_stay_and_one_row_of_each_partition():
    rows = [
        (1, "a", True),
        (2, "a", True),
        (30, "a", False),
        (3, "a", True),
        (4, "b", False),
        (None, "b", True),
    ]
    found = condense(
        table(*({"ts": ts, "p": p, "m": m} for ts, p, m in rows)), of(Punctuated(marker="m")), FAR
    )
    assert found.column_names == ["ts", "p", "m"]
    assert shown(found, "ts", "p", "m") == [
        (1, "a", True),
        (30, "a", False),
        (3, "a", True),
        (4, "b", False),
    ]


def test_every_writer_stays_with_what_it_noted():
    rows = [
        ("a", "x", None, 1),
        ("a", "x", 5, 2),
        ("a", "x", 6, 3),
        ("a", "x", 7, 4),
        ("a", "y", None, 9),
        ("b", "x", 2, 5),
        ("b", None, 3, 1),
    ]
    found = condense(
        table(*({"p": p, "writer": w, "wm": wm, "ts": ts} for p, w, wm, ts in rows)),
        of(Noted("wm")),
        FAR,
    )
    assert shown(found, "p", "writer", "wm") == [
        ("a", "x", None),
        ("a", "x", 5),
        ("a", "x", 7),
        ("a", "y", None),
        ("b", "x", 2),
    ]


def test_a_function_sees_all_rows_that_are_not_from_the_future_and_all_columns():
    whole = table({"ts": 1, "p": "a"}, {"ts": 99, "p": "a"}, {"ts": 1, "p": "a"})
    found = condense(whole, of(Generated(newest)), 20)
    assert found.column_names == SCHEMA.names
    assert shown(found, "ts") == [(1,), (1,)]


def test_without_a_limit_every_time_of_a_partition_stays():
    whole = table(
        *(
            {"ts": ts, "p": p}
            for ts, p in [
                (5, "a"),
                (50, "a"),
                (5, "b"),
                (5, "a"),
                (None, "a"),
                (None, "a"),
                (50, "a"),
            ]
        )
    )
    assert shown(condense(whole, of(Bounded(5)), None), "ts", "p") == [
        (5, "a"),
        (50, "a"),
        (5, "b"),
        (None, "a"),
    ]
    assert condense(whole, of(Punctuated(column="wm")), None).num_rows == 7


def test_words_are_taken_in_the_order_of_offsets():
    schema = SCHEMA.append(pa.field("o", pa.int64()))
    rows = [{"ts": 1, "p": "a", "wm": wm, "o": wm} for wm in (3, 1, 2)]
    found = condense(table(*rows, schema=schema), of(Punctuated(column="wm"), offset="o"), FAR)
    assert shown(found, "wm") == [(1,), (3,)]
    assert "o" not in found.column_names


def test_on_offsets_the_highest_of_each_partition_stays():
    whole = pa.table(
        {"p": ["a", "b", "a", "a"], "o": pa.array([5, 1, 7, None], pa.int32()), "ts": [1, 2, 3, 4]}
    )
    found = condense(whole, of(Bounded(0), offset="o"), FAR, axis=Axis.OFFSET)
    assert shown(found, "p", "o") == [("b", 1), ("a", 7)]
    assert found.schema.field("o").type == pa.int32()


@pytest.mark.parametrize("axis", [Axis.CLOCK, Axis.ORDINAL])
def test_on_the_clock_and_on_ordinals_rows_say_nothing(axis):
    assert condense(table({"ts": 1, "p": "a"}), of(Bounded(0)), FAR, axis=axis).num_rows == 0


def test_nothing_is_condensed_to_nothing():
    for axis in (Axis.EVENT_TIME, Axis.OFFSET):
        whole = table().append_column("o", pa.array([], pa.int64()))
        assert condense(whole, of(Bounded(0), offset="o"), FAR, axis=axis).num_rows == 0


def test_one_column_may_say_several_things():
    found = condense(
        table({"ts": 1, "p": "a", "wm": 1}),
        Input("ts", partition="p", watermark=Noted("ts", writer="p")),
        FAR,
    )
    assert found.column_names == ["ts", "p"]


TIMES = [
    pa.array(
        [datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC)],
        pa.timestamp("ms", "UTC"),
    ),
    pa.array([date(2024, 1, 1), date(2024, 1, 2)]),
    pa.array(["2024-01-01 00:00:00", "2024-01-02 00:00:00Z"]),
    pa.array([5, 6], pa.int32()),
    pa.array(["2024-01-01", "2024-01-02"]).dictionary_encode(),
]


@pytest.mark.parametrize("times", TIMES, ids=lambda times: str(times.type))
def test_times_keep_their_type(times):
    whole = pa.table({"ts": times, "p": pa.array(["a", "a"]).dictionary_encode()})
    found = condense(whole, of(Bounded(0)), MAX - 1)
    assert found.equals(whole.slice(1))


# The same watermarks


def without(document: Any, names: set[str]) -> Any:
    if isinstance(document, dict):
        return {
            name: without(value, names) for name, value in document.items() if name not in names
        }
    return [without(value, names) for value in document] if isinstance(document, list) else document


def standing(watermark_tracker: WatermarkTracker) -> Any:
    return without(json.loads(json.dumps(watermark_tracker.save())), BY_ROW)


def pieces(rows: list[dict[str, Any]], cuts: list[int]) -> list[pa.Table]:
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    return [table(*rows[low:high]) for low, high in pairwise(bounds)]


def happened(watermark_tracker: WatermarkTracker, verb: str, *args: Any) -> None:
    """The watermark of the only input after a history."""
    if verb in {"join", "leave"}:
        getattr(watermark_tracker, verb)(args[1])
    elif verb == "promise":
        watermark_tracker.promise(args[1], partition=args[2])
    else:
        getattr(watermark_tracker, verb)(partition=args[1])


def looked(watermark_tracker: WatermarkTracker, found: pa.Table) -> str:
    try:
        if found.num_rows:
            watermark_tracker.observe_table(0, found)
    except WatermarkError as error:
        return str(error)
    return ""


cuts = st.lists(st.integers(0, 8), max_size=2)
deliveries = st.tuples(
    st.just("deliver"), st.just(0), st.lists(row, min_size=3, max_size=8), st.integers(0, 8)
)
rarely = st.sampled_from([False, False, False, True])


all_cuts = st.lists(cuts, min_size=6, max_size=6)


@given(
    everything,
    histories(*[deliveries] * 8, most=6),
    all_cuts,
    st.sampled_from([FAR, FAR, 40, 7]),
    rarely,
    st.booleans(),
)
@examples(250)
@example(
    Noted("wm"),
    [("deliver", 0, [{"writer": None, "p": "a", "wm": 4, "ts": 5, "m": None}], 0)],
    [[]] * 6,
    FAR,
    False,
    False,
)
def test_condensed_pieces_of_deliveries_say_the_same_as_the_whole(
    watermark, history, cutting, tolerance, by_watermark, strict
):
    given = of(watermark)
    options = Options(
        future_tolerance=tolerance,
        future_reference="watermark" if by_watermark else "clock",
        strict=strict,
    )
    whole, condensed = (WatermarkTracker([given], options, now=0) for _ in range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for (verb, *args), cut in zip(history, cutting, strict=False):
            now = whole.now + (
                args[2] if verb == "deliver" else args[0] if verb == "timeout" else 0
            )
            for watermark_tracker in (whole, condensed):
                watermark_tracker.tick(now)
            if verb == "deliver":
                limit = None if by_watermark else now + tolerance
                little = pa.concat_tables(
                    condense(piece, given, limit) for piece in pieces(args[1], cut)
                )
                assert little.num_rows <= len(args[1])
                # A row from the future that is behind the watermark all the same is late, and at
                # the edge nobody knows.
                late = [
                    r
                    for r in args[1]
                    if not by_watermark
                    and r["ts"] is not None
                    and now + tolerance < r["ts"] < whole.output()
                ]
                rows = [r for r in args[1] if r not in late]
                assert looked(condensed, little) == looked(whole, table(*rows))
            elif verb != "timeout":
                for watermark_tracker in (whole, condensed):
                    try:
                        happened(watermark_tracker, verb, *args)
                    except WatermarkError:
                        continue
            assert whole.release() == condensed.release()
            assert standing(condensed) == standing(whole)


@given(everything, st.lists(row, max_size=8), cuts, st.sampled_from([20, FAR]))
def test_to_condense_twice_changes_nothing(watermark, rows, cut, limit):
    given = of(watermark)
    once = condense(table(*rows), given, limit)
    assert condense(once, given, limit).equals(once)
    merged = condense(
        pa.concat_tables(condense(piece, given, limit) for piece in pieces(rows, cut)), given, limit
    )
    assert merged.num_rows <= len(rows)


@given(st.lists(row, max_size=12))
def test_the_newest_time_is_not_lost(rows):
    times = [r["ts"] for r in rows if r["ts"] is not None and r["ts"] <= 40]
    for watermark in (
        Implied(),
        Bounded(3),
        Punctuated(column="wm"),
        Punctuated(marker="m"),
        Noted("wm"),
        Lagging(1),
        Explicit(),
    ):
        found = condense(table(*rows), of(watermark), 40).column("ts").drop_null().to_pylist()
        assert max(found, default=MIN) == max(times, default=MIN)


@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.integers(0, 50)),
            st.one_of(st.none(), st.integers(0, 50)),
            st.sampled_from("ab"),
        ),
        max_size=20,
    )
)
def test_of_several_time_columns_each_stays_as_far_as_it_was(rows):
    others = (TimeColumn("late", Bounded(3), 1),)
    several = Input(time="t", partition="p", watermark=Bounded(2), others=others)
    table = pa.table(
        {
            "t": pa.array([r[0] for r in rows], pa.int64()),
            "late": pa.array([r[1] for r in rows], pa.int64()),
            "p": [r[2] for r in rows],
        }
    )
    table = table.cast(pa.schema([("t", pa.int64()), ("late", pa.int64()), ("p", pa.string())]))
    whole, few = (WatermarkTracker([several], Options(), now=0) for _ in range(2))
    chosen = condense(table, several, 1000)
    assert chosen.num_rows <= 4 or not rows
    whole.observe_table(0, table)
    few.observe_table(0, chosen)
    whole.release()
    few.release()
    assert [whole.output(key) for key in (0, 1)] == [few.output(key) for key in (0, 1)]
