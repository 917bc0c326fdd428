"""Bad input: unreadable rows go to `late` with a reason, and refused calls change nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.instants import MAX, MIN


def operator(**aggregates: Any) -> tg.EmbeddedOperator:
    windowed = (
        tg.stream(time="ts", key="k", watermark=tg.explicit())
        .window(tg.tumbling(10, unit="us"))
        .allow_lateness(5, unit="us")
    )
    return windowed.aggregate(**(aggregates or {"n": tg.count()})).embedded(now=0)


def finished(op: tg.EmbeddedOperator) -> tg.Results:
    op.finish()
    return op.get_result()


def late(op: tg.EmbeddedOperator) -> list[tuple[Any, ...]]:
    return [(row["ts"], row["reason"]) for row in op.get_result().late.to_pylist()]


# Times


def test_a_null_time_goes_to_late_and_is_counted():
    op = operator()
    op.add_messages([{"ts": None, "k": "a", "v": 1}, {"ts": 3, "k": "a", "v": 2}])
    [row] = op.get_result().late.to_pylist()
    assert {
        name: row[name] for name in ("ts", "k", "v", "reason", "class", "watermark", "windows")
    } == {
        "ts": None,
        "k": "a",
        "v": 1,
        "reason": "null_time",
        "class": None,
        "watermark": None,
        "windows": [],
    }
    assert op.stats()["unreadable"] == 1
    assert finished(op).panes["n"].to_pylist() == [1]


def test_a_first_delivery_of_null_times_only_does_not_fix_the_type_of_time():
    op = operator()
    op.add_messages([{"ts": None, "k": "a"}])
    op.add_messages([{"ts": 3, "k": "a"}])
    result = finished(op)
    assert [(r["reason"]) for r in result.late.to_pylist()] == ["null_time"]
    assert result.panes["n"].to_pylist() == [1]


@pytest.mark.parametrize(
    "times",
    [
        pa.array(["2024-01-01T00:00:00Z", "yesterday", "2024-01-01T00:00:01+00:00", ""]),
        pa.array(["2024-01-01T00:00:00", "31/12/2023", "2024-01-01 00:00:01", "2024-13-01"]),
        pa.array(
            ["2024-01-01T00:00:00Z", "yesterday", "2024-01-01T01:00:01+01:00", ""]
        ).dictionary_encode(),
        pa.array(["2024-01-01T00:00:00Z", "?", "2024-01-01T00:00:01Z", "!"], pa.large_string()),
    ],
    ids=["zoned", "plain", "dictionary", "large"],
)
def test_a_text_that_is_no_instant_goes_to_late(times):
    op = (
        tg.stream(time="ts")
        .window(tg.tumbling("1 minute"))
        .aggregate(n=tg.count())
        .embedded(now="2024-01-01T00:00:00Z")
    )
    op.add_messages(pa.table({"ts": times}))
    result = finished(op)
    assert result.late["reason"].to_pylist() == ["bad_time"] * 2
    [pane] = result.panes.to_pylist()
    assert (pane["n"], pane["window_start"]) == (2, datetime(2024, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize("edge", [MIN, MAX])
def test_the_ends_of_time_are_no_instants(edge):
    op = operator()
    op.add_messages(pa.table({"ts": pa.array([edge, 1]), "k": ["a", "a"]}))
    assert late(op) == [(edge, "bad_time")]


@pytest.mark.parametrize("ts", [MIN + 1, MIN + 2, -(2**62), -1, 0, 2**62, MAX - 1])
def test_huge_and_negative_times_have_a_window_that_holds_them(ts):
    op = operator()
    op.add_messages([{"ts": ts, "k": "a"}])
    result = finished(op)
    assert result.late.num_rows == 0
    [pane] = result.panes.to_pylist()
    assert (
        (MIN if pane["window_start"] is None else pane["window_start"])
        <= ts
        < (MAX if pane["window_end"] is None else pane["window_end"])
    )
    assert pane["n"] == 1


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        ("ms", 9_223_372_036_854_776),
        ("ms", -9_223_372_036_854_776),
        ("s", 9_223_372_036_855),
        ("ms", 2**62),
        ("s", -(2**62)),
    ],
)
def test_a_timestamp_beyond_int64_microseconds_is_told_and_never_wraps_around(kind, raw):
    op = operator()
    op.add_messages(
        pa.table({"ts": pa.array([raw, 0], pa.int64()).cast(pa.timestamp(kind)), "k": ["a", "a"]})
    )
    table = op.get_result().late
    assert table["reason"].to_pylist() == ["bad_time"]


def test_unsigned_times_beyond_int64_are_told():
    op = operator()
    op.add_messages(pa.table({"ts": pa.array([2**63 + 5, 1], pa.uint64()), "k": ["a", "a"]}))
    assert late(op) == [(2**63 + 5, "bad_time")]


@pytest.mark.parametrize(
    "times",
    [
        pa.array([1_000], pa.timestamp("us")),
        pa.array([1_000], pa.timestamp("us", "America/New_York")),
        pa.array([1_000_000], pa.timestamp("ns")),
        pa.array([1], pa.timestamp("ms", "UTC")),
        pa.array([1_000], pa.int32()),
        pa.array([1_000], pa.uint64()),
        pa.array([datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC)]),
        pa.array(["1970-01-01T00:00:00.001Z"]),
        pa.array(["1970-01-01T01:00:00.001+01:00"]),
    ],
    ids=str,
)
def test_times_of_every_type_mean_the_same_instant(times):
    op = operator()
    op.add_messages(pa.table({"ts": times, "k": ["a"]}))
    start = finished(op).panes["window_start"][0]
    assert start.as_py() == 1_000 if pa.types.is_integer(start.type) else start.value == 1_000


def test_nanoseconds_are_rounded_down_with_a_warning():
    op = operator()
    with pytest.warns(RuntimeWarning, match=r"nanoseconds.*Hint"):
        op.add_messages(pa.table({"ts": pa.array([1_000_999], pa.timestamp("ns")), "k": ["a"]}))
    assert finished(op).panes["window_start"][0].value == 1_000


def test_a_time_column_that_is_no_time_is_refused_and_the_operator_stays_as_it_was():
    op = operator()
    for bad in (1.5, [1], True, b"x", Decimal("1.5")):
        with pytest.raises(tg.InputError, match=r"`ts`.*Hint"):
            op.add_messages([{"ts": bad, "k": "a"}])
    op.add_messages([{"ts": 3, "k": "a"}])
    assert finished(op).panes["n"].to_pylist() == [1]


def test_a_time_column_that_changes_its_unit_keeps_its_meaning():
    """Microseconds first, then timestamps in seconds: read at their instant, or reported."""
    op = operator()
    op.add_messages([{"ts": 2_000_001, "k": "a"}])
    op.add_messages(pa.table({"ts": pa.array([2], pa.timestamp("s")), "k": ["a"]}))
    result = finished(op)
    assert [(p["window_start"], p["n"]) for p in result.panes.to_pylist()] == [
        (2_000_000, 2)
    ] or result.late.num_rows == 1
    assert 0 not in result.panes["window_start"].to_pylist()


def test_finer_timestamps_later_are_not_lost():
    op = operator()
    op.add_messages(pa.table({"ts": pa.array([0], pa.timestamp("s")), "k": ["a"]}))
    op.add_messages(pa.table({"ts": pa.array([15], pa.timestamp("us")), "k": ["a"]}))
    result = finished(op)
    assert [(p["window_start"].microsecond, p["n"]) for p in result.panes.to_pylist()] == [
        (0, 1),
        (10, 1),
    ]


# Columns


@pytest.mark.parametrize("missing", ["ts", "k"])
def test_a_delivery_without_a_named_column_is_refused_with_the_names(missing):
    op = operator()
    full = {"ts": [1], "k": ["a"], "v": [1]}
    with pytest.raises(tg.InputError, match=f"`{missing}`"):
        op.add_messages(
            pa.table({name: column for name, column in full.items() if name != missing})
        )
    assert op.stats()["events"] == 0
    op.add_messages(pa.table(full))
    assert finished(op).panes["n"].to_pylist() == [1]


def test_an_aggregate_over_an_unknown_column_is_refused_with_the_names():
    op = operator(total=tg.sum("price"))
    with pytest.raises(tg.TidegateError, match="price"):
        op.add_messages([{"ts": 1, "k": "a", "v": 1}])
    op.add_messages([{"ts": 1, "k": "a", "price": 4}])
    assert finished(op).panes["total"].to_pylist() == [4]


@pytest.mark.parametrize(
    "empty",
    [
        [],
        pa.table({"ts": pa.array([], pa.int64()), "k": pa.array([], pa.string())}),
        pd.DataFrame({"ts": [], "k": []}),
    ],
)
def test_an_empty_delivery_changes_nothing(empty):
    op = operator()
    op.add_messages(empty)
    op.add_messages([{"ts": 1, "k": "a"}])
    op.add_messages(empty)
    assert op.stats()["events"] == 1
    assert finished(op).panes["n"].to_pylist() == [1]


def test_a_value_that_is_null_at_first_gets_its_type_later():
    op = operator(total=tg.sum("v"), n=tg.count())
    op.add_messages([{"ts": 1, "k": "a", "v": None}])
    op.add_messages([{"ts": 2, "k": "a", "v": 5}])
    result = finished(op)
    assert result.late.to_pylist() == []
    assert [(p["n"], p["total"]) for p in result.panes.to_pylist()] == [(2, 5)]


def test_a_key_that_is_null_at_first_gets_its_type_later():
    op = operator()
    op.add_messages([{"ts": 1, "k": None}])
    op.add_messages([{"ts": 2, "k": "a"}, {"ts": 2, "k": None}])
    result = finished(op)
    assert result.late.to_pylist() == []
    assert sorted((str(p["k"]), p["n"]) for p in result.panes.to_pylist()) == [
        ("None", 2),
        ("a", 1),
    ]


def test_a_value_of_a_wrong_type_goes_to_late_with_its_own_text():
    op = operator(total=tg.sum("v"))
    op.add_messages([{"ts": 1, "k": "a", "v": 4}])
    op.add_messages([{"ts": 2, "k": "a", "v": "many"}, {"ts": 3, "k": "a", "v": 6}])
    result = finished(op)
    [row] = result.late.to_pylist()
    assert (row["ts"], row["k"], row["reason"]) == (2, "a", "bad_value")
    assert "`v`" in row["detail"]
    assert "'many'" in row["detail"]
    assert result.panes["total"].to_pylist() == [10]


@pytest.mark.parametrize("form", ["dicts", "arrow", "pandas"])
def test_a_fraction_for_a_whole_number_is_never_cut_off(form):
    """5.5 after integers: in `late` or in the sum, but never as 5."""
    op = operator(total=tg.sum("v"))
    op.add_messages([{"ts": 1, "k": "a", "v": 4}])
    rows = [{"ts": 2, "k": "a", "v": 5.5}]
    op.add_messages(
        {"dicts": rows, "arrow": pa.Table.from_pylist(rows), "pandas": pd.DataFrame(rows)}[form]
    )
    result = finished(op)
    told = [row["reason"] for row in result.late.to_pylist()]
    assert (result.panes["total"].to_pylist(), told) in [([4], ["bad_value"]), ([9.5], [])]


@pytest.mark.parametrize(
    "value", [2**70, object(), [1, "x"]], ids=["beyond int64", "object", "mixture"]
)
@pytest.mark.parametrize("known", [False, True], ids=["first", "later"])
def test_a_value_that_no_column_can_hold_stops_nothing(value, known):
    op = operator()
    if known:
        op.add_messages([{"ts": 1, "k": "a", "v": 1}])
    op.add_messages([{"ts": 1, "k": "a", "v": value}, {"ts": 2, "k": "a", "v": 1}])
    result = finished(op)
    assert result.panes["n"].to_pylist() == [1 + known]
    assert [(r["ts"], r["reason"]) for r in result.late.to_pylist()] == [(1, "bad_value")]


def test_a_pandas_column_of_mixed_objects_stops_nothing():
    op = operator(total=tg.sum("v"))
    op.add_messages([{"ts": 1, "k": "a", "v": 1}])
    op.add_messages(pd.DataFrame({"ts": [2, 3], "k": ["a", "a"], "v": [5, "many"]}, dtype=object))
    result = finished(op)
    assert result.panes["total"].to_pylist() == [6]
    assert [(r["ts"], r["reason"]) for r in result.late.to_pylist()] == [(3, "bad_value")]


def test_decimals_of_other_digits_are_not_refused():
    """Arrow gives a Python decimal only the digits that it has; a later one with more is valid."""
    op = operator(total=tg.sum("v"))
    for text in ("1.5", "12.25", "-1000.125"):
        op.add_messages([{"ts": 1, "k": "a", "v": Decimal(text)}])
    result = finished(op)
    assert result.late.to_pylist() == []
    assert result.panes["total"].to_pylist() == [Decimal("-986.375")]


def test_a_column_that_appears_later_is_in_the_late_row():
    op = operator()
    op.add_messages([{"ts": 1, "k": "a"}])
    op.advance_watermark(100)
    op.add_messages([{"ts": 1, "k": "a", "note": "x"}])
    [row] = op.get_result().late.to_pylist()
    assert row.get("note") == "x"


def test_a_column_that_stays_away_is_null():
    op = operator(total=tg.sum("v"), n=tg.count("v"))
    op.add_messages([{"ts": 1, "k": "a", "v": 3}])
    op.add_messages(pa.table({"ts": [2], "k": ["a"]}))
    result = finished(op)
    assert [(p["total"], p["n"]) for p in result.panes.to_pylist()] == [(3, 1)]


@pytest.mark.parametrize(
    "name",
    [
        "class",
        "reason",
        "detail",
        "watermark",
        "windows",
        "emitted_at",
        "op",
        "pane",
        "time",
        "window_start",
    ],
)
def test_an_input_may_have_columns_of_any_name(name):
    """Names of result columns are not reserved in the input: the late row keeps its values."""
    op = operator()
    op.add_messages([{"ts": 1, "k": "a", name: "mine"}])
    op.advance_watermark(100)
    op.add_messages([{"ts": 2, "k": "a", name: "mine"}])
    result = op.get_result()
    assert result.panes["n"].to_pylist() == [1]
    [row] = result.late.to_pylist()
    assert (row["ts"], row["reason"]) == (2, "very_late")
    assert "mine" in row.values()


def test_columns_in_another_order_and_of_other_width_are_the_same_columns():
    op = operator(total=tg.sum("v"))
    op.add_messages(
        pa.table({"ts": pa.array([1], pa.int64()), "k": ["a"], "v": pa.array([1], pa.int64())})
    )
    op.add_messages(
        pa.table(
            {
                "v": pa.array([2], pa.int8()),
                "k": pa.array(["a"]).dictionary_encode(),
                "ts": pa.array([2], pa.uint16()),
            }
        )
    )
    op.add_messages(
        pa.table(
            {
                "k": pa.array(["a"], pa.large_string()),
                "v": pa.array([4.0]),
                "ts": pa.array([2], pa.int64()),
            }
        )
    )
    result = finished(op)
    assert result.late.to_pylist() == []
    assert result.panes["total"].to_pylist() == [7]


def test_dictionaries_that_differ_between_chunks_are_one_column():
    op = operator()
    chunks = pa.chunked_array(
        [
            pa.array(["a", "b", None]).dictionary_encode(),
            pa.array(["b", "c", "b"]).dictionary_encode(),
        ]
    )
    op.add_messages(pa.table({"ts": list(range(6)), "k": chunks}))
    assert sorted((str(p["k"]), p["n"]) for p in finished(op).panes.to_pylist()) == [
        ("None", 1),
        ("a", 1),
        ("b", 3),
        ("c", 1),
    ]


def test_a_pandas_frame_is_taken_with_its_columns_and_without_its_index():
    frame = pd.DataFrame(
        {
            "ts": pd.to_datetime([1, 2], unit="us", utc=True),
            "k": pd.Categorical(["a", "a"]),
            "v": [1.5, np.nan],
        },
        index=["x", "y"],
    )
    op = operator(total=tg.sum("v"), n=tg.count("v"))
    op.add_messages(frame)
    op.advance_watermark(1_000)
    op.add_messages(frame)
    result = op.get_result()
    assert [(p["n"], p["total"]) for p in result.panes.to_pylist()] == [(1, 1.5)]
    assert [name for name in result.late.column_names if "index" in name] == []


@pytest.mark.parametrize("messages", [5, "text", [1, 2], [("ts", 1)], None, {"ts"}])
def test_what_is_no_table_is_refused_with_its_type(messages):
    with pytest.raises(tg.InputError, match=type(messages).__name__):
        operator().add_messages(messages)


def test_record_batches_and_single_dictionaries_are_deliveries():
    op = operator()
    op.add_messages(pa.record_batch({"ts": [1], "k": ["a"]}))
    op.add_messages({"ts": 2, "k": "a"})
    assert finished(op).panes["n"].to_pylist() == [2]


def test_a_row_that_makes_a_user_function_fail_goes_to_late_with_its_window():
    def add(state: int, value: int) -> int:
        return state + 10 // value

    def add_up(one: int, other: int) -> int:
        return one + other

    op = operator(
        x=tg.python(columns="v", zero=0, add=add, merge=add_up, result=int, result_type=pa.int64()),
        n=tg.count(),
    )
    op.add_messages(
        [{"ts": 1, "k": "a", "v": 5}, {"ts": 2, "k": "a", "v": 0}, {"ts": 3, "k": "a", "v": 2}]
    )
    result = finished(op)
    [row] = result.late.to_pylist()
    assert (row["ts"], row["v"], row["k"], row["reason"]) == (2, 0, "a", "accumulation_failed")
    assert [tuple(w.values()) for w in row["windows"]] == [(0, 10)]
    assert result.panes["x"].to_pylist() == [7]


def test_a_sum_that_overflows_is_told_with_key_and_window():
    op = operator(total=tg.sum("v"))
    op.add_messages(
        [{"ts": 1, "k": "a", "v": MAX}, {"ts": 2, "k": "a", "v": 1}, {"ts": 2, "k": "b", "v": 1}]
    )
    result = finished(op)
    assert sorted((p["k"], p["total"]) for p in result.panes.to_pylist()) in (
        [("a", None), ("b", 1)],
        [("b", 1)],
    )
    [row] = result.late.to_pylist()
    assert (row["k"], row["reason"]) == ("a", "overflow")
    assert [tuple(w.values()) for w in row["windows"]] == [(0, 10)]


def test_offsets_must_be_whole_and_present_and_a_refusal_changes_nothing():
    op = (
        tg.stream(time="ts", offset="o", watermark=tg.explicit())
        .window(tg.tumbling(10, unit="us"))
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    for bad in ({"ts": 1, "o": None}, {"ts": 1, "o": "x"}, {"ts": 1, "o": 1.5}):
        with pytest.raises(tg.InputError, match="`o`"):
            op.add_messages([bad])
    op.add_messages([{"ts": 1, "o": 0}])
    assert finished(op).panes["n"].to_pylist() == [1]


def test_a_refused_delivery_is_taken_whole_or_not_at_all():
    op = (
        tg.stream(time="ts", offset="o", watermark=tg.punctuated("wm"))
        .window(tg.tumbling(10, unit="us"))
        .options(strict=True)
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    op.add_messages([{"ts": 1, "o": 0, "wm": 1}])
    with pytest.raises(tg.WatermarkError):
        op.add_messages(pa.table({"ts": [2, 3, 4], "o": [1, 2, None], "wm": [5, 0, 0]}))
    assert op.stats()["events"] == 1
    op.add_messages([{"ts": 2, "o": 1, "wm": 2}, {"ts": 3, "o": 2, "wm": 2}])
    result = finished(op)
    assert result.panes["n"].to_pylist() == [3]
    assert result.late.num_rows == 0


def test_windows_at_the_end_of_the_calendar_can_be_fetched():
    op = (
        tg.stream(time="ts", watermark=tg.explicit())
        .window(tg.tumbling("1 minute"))
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    op.add_message({"ts": "9999-12-31T23:59:59Z"})
    op.finish()
    assert op.get_result().panes["n"].to_pylist() == [1]


def test_a_first_delivery_that_strict_refuses_says_nothing_about_the_columns():
    made = (
        tg.stream(time="ts", watermark=tg.punctuated("wm"))
        .window(tg.tumbling(10, unit="us"))
        .options(strict=True)
    )
    op = made.aggregate(total=tg.sum("v")).embedded(now=0)
    with pytest.raises(tg.WatermarkError):
        op.add_messages([{"ts": 1, "wm": 9, "v": 1}, {"ts": 2, "wm": 3, "v": 2}])
    op.add_messages([{"ts": 1, "wm": 3, "v": 0.5}, {"ts": 2, "wm": 9, "v": 2.25}])
    assert finished(op).panes["total"].to_pylist() == [2.75]


def test_rows_that_were_late_before_any_time_was_seen_can_be_fetched_with_later_ones():
    op = (
        tg.stream(time="ts", watermark=tg.explicit())
        .window(tg.tumbling("1 minute"))
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    op.add_messages([{"ts": None}])
    op.add_messages([{"ts": datetime(2025, 3, 14, 12, tzinfo=UTC)}])
    op.finish()
    result = op.get_result()
    assert result.late["reason"].to_pylist() == ["null_time"]
    assert result.panes["window_start"].to_pylist() == [datetime(2025, 3, 14, 12, tzinfo=UTC)]


def test_an_event_that_no_window_holds_is_told():
    with pytest.warns(UserWarning, match="between two windows"):
        gaps = tg.hopping("5 us", "10 us")
    for window in (
        gaps,
        tg.custom(lambda t, _: (np.flatnonzero(t < 5), t[t < 5], t[t < 5] + 1), name="some"),
    ):
        op = (
            tg.stream(time="t", watermark=tg.explicit())
            .window(window)
            .aggregate(n=tg.count())
            .embedded(now=0)
        )
        op.add_messages([{"t": 1}, {"t": 7}])
        op.finish()
        result = op.get_result()
        assert result.panes["n"].to_pylist() == [1]
        assert [(row["t"], row["reason"]) for row in result.late.to_pylist()] == [(7, "no_window")]


def test_custom_windows_hold_what_was_said_where_messages_are_kept():
    """The function decides the windows, even if they overlap or do not contain the time."""
    for shift in (0, 100):
        window = tg.custom(lambda t, _, shift=shift: (t + shift, t + shift + 3), name="own")
        op = (
            tg.stream(time="t", watermark=tg.explicit())
            .window(window)
            .aggregate(n=tg.count(), all=tg.list_("t"))
            .embedded(now=0)
        )
        op.add_messages([{"t": 1}, {"t": 2}, {"t": 3}])
        op.finish()
        assert [
            (p["window_start"] - shift, p["n"], p["all"]) for p in op.get_result().panes.to_pylist()
        ] == [(1, 1, [1]), (2, 1, [2]), (3, 1, [3])]


def test_keys_that_are_views_are_their_values():
    op = (
        tg.stream(time="t", key="k", watermark=tg.explicit())
        .window(tg.tumbling("10 us"))
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    op.add_messages(pa.table({"t": [1, 2], "k": pa.array(["a", "a"], pa.string_view())}))
    op.finish()
    assert [(p["k"], p["n"]) for p in op.get_result().panes.to_pylist()] == [("a", 2)]


@pytest.mark.parametrize("name", [["a"], {"a": 1}, b"\xff"], ids=["list", "struct", "bytes"])
def test_a_partition_that_is_no_name_is_refused_and_leaves_nothing_behind(name):
    op = (
        tg.stream(time="ts", partition="p")
        .window(tg.tumbling(10, unit="us"))
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    with pytest.raises(tg.InputError, match=r"the partition column `p` has type .* Hint: use text"):
        op.add_messages([{"ts": 1, "p": name}])
    op.add_messages([{"ts": 1, "p": "a"}])
    assert finished(op).panes["n"].to_pylist() == [1]
