"""The embedded operator without a downstream: input, queued results, and inspection."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from support.calls import calls_of


def windowed(window: Any = None, **stream: Any) -> tg.Windowed:
    keyed = tg.stream(**{"time": "ts", "key": "k", "watermark": tg.explicit(), **stream})
    return keyed.window(tg.tumbling(10, unit="us") if window is None else window).allow_lateness(
        20, unit="us"
    )


def counting(window: Any = None, **stream: Any) -> tg.EmbeddedOperator:
    return windowed(window, **stream).aggregate(n=tg.count(), total=tg.sum("v")).embedded(now=0)


def row(ts: Any, k: Any = "a", v: Any = 1, **more: Any) -> dict[str, Any]:
    return {"ts": ts, "k": k, "v": v, **more}


def counts(op: tg.EmbeddedOperator) -> list[tuple[Any, ...]]:
    return [(p["k"], p["window_start"], p["n"]) for p in op.get_result().panes.to_pylist()]


# Input

ROWS = [row(1), row(2, "b", 5), row(11, None, None), row(12, "a", 7)]
FORMS = {
    "dicts": ROWS,
    "table": pa.Table.from_pylist(ROWS),
    "batch": pa.RecordBatch.from_pylist(ROWS),
    "chunks": pa.concat_tables(
        [
            pa.Table.from_pylist(ROWS[:1], pa.Table.from_pylist(ROWS).schema),
            pa.Table.from_pylist(ROWS[1:]),
        ]
    ),
    "slice": pa.Table.from_pylist([row(99), *ROWS, row(99)]).slice(1, 4),
    "pandas": pd.DataFrame(
        {"ts": [1, 2, 11, 12], "k": ["a", "b", None, "a"], "v": pd.array([1, 5, None, 7], "Int64")}
    ),
    "dictionary": (
        pa.Table.from_pylist(ROWS).set_column(
            1, "k", pa.array(["a", "b", None, "a"]).dictionary_encode()
        )
    ),
    "generator of batches": pa.Table.from_pylist(ROWS).to_reader(),
    "tuple": tuple(ROWS),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_of_the_same_rows_gives_the_same_panes(form):
    op = counting()
    op.add_messages(form)
    op.finish()
    found = [
        (p["k"], p["window_start"], p["n"], p["total"]) for p in op.get_result().panes.to_pylist()
    ]
    assert sorted(found, key=str) == sorted(
        [("a", 0, 1, 1), ("b", 0, 1, 5), (None, 10, 1, None), ("a", 10, 1, 7)], key=str
    )


def test_add_message_is_add_messages_of_one():
    one, other = counting(), counting()
    for r in ROWS:
        one.add_message(r)
        other.add_messages([r])
    for op in (one, other):
        op.finish()
    assert one.get_result().panes.to_pylist() == other.get_result().panes.to_pylist()


def test_a_message_belongs_to_the_caller():
    op = counting()
    message = row(1)
    op.add_message(message)
    message["ts"] = 55
    op.finish()
    assert counts(op) == [("a", 0, 1)]


LOOKS = {
    "stats": lambda op: op.stats()["events"],
    "windows": lambda op: sum(w["count"] for w in op.get_windows()),
    "messages": lambda op: op.get_messages().num_rows,
    "peek": lambda op: sum(op.peek()["n"].to_pylist()),
    "resume": lambda op: op.resume_offsets()[""],
    "hold": lambda op: {None: 0}.get(op.hold, 2),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_nobody_can_see_that_single_messages_are_buffered(look):
    op = windowed(offset="o").options(keep_messages=True).aggregate(n=tg.count()).embedded(now=0)
    op.add_message(row(1, o=0))
    op.add_message(row(2, o=1))
    assert look(op) == 2


@given(st.lists(st.sampled_from([1, 2.5, "x", None, 2**63, [1], True, -7]), min_size=1, max_size=6))
def test_oracle_buffered_messages_give_what_single_ones_give(values):
    """For all values: the same panes, the same late rows, the same errors."""
    outcomes = []
    for clock in ({}, {"now": 0}):
        op = windowed().aggregate(n=tg.count()).embedded(now=0)
        errors = []
        for number, value in enumerate(values):
            try:
                op.add_message(row(number, v=value), **clock)
            except tg.TidegateError as error:
                errors.append(str(error))
        op.finish()
        result = op.get_result()
        outcomes.append(
            (counts(op), [(r["ts"], r["reason"]) for r in result.late.to_pylist()], errors)
        )
    assert outcomes[0] == outcomes[1]


def test_an_error_in_a_buffered_message_comes_where_it_was_caused_and_loses_no_other():
    op = counting()
    op.add_message(row(1))
    with contextlib.suppress(tg.InputError):
        op.add_message({"v": 1})
    op.add_message(row(2))
    op.finish()
    assert counts(op) == [("a", 0, 2)]


def test_the_clock_of_a_message_can_be_told():
    op = (
        tg.stream(key="k")
        .window(tg.tumbling(10, unit="us", axis="clock"))
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    op.add_message({"k": "a"}, now=3)
    op.add_messages([{"k": "a"}], now=12)
    op.add_message({"k": "a"}, now=5)
    op.timeout(100)
    assert counts(op) == [("a", from_epoch(0), 1), ("a", from_epoch(10), 2)]


def from_epoch(ticks):
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=ticks)


@pytest.mark.parametrize(
    ("given", "first"),
    [
        (tg.stream(key="k"), from_epoch(10)),
        (tg.union(tg.stream(key="k"), tg.stream(key="k")), from_epoch(10)),
        (tg.stream(key="k", time="ts", watermark=tg.explicit()), 10),
    ],
)
def test_windows_on_the_clock_have_instants_unless_the_times_of_the_input_are_numbers(given, first):
    op = (
        given.window(tg.tumbling(10, unit="us", axis="clock"))
        .trigger(tg.every_element())
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    assert op.get_windows() == []
    op.add_message({"k": "a", "ts": 3}, now=13)
    assert [window["window_start"] for window in op.get_windows()] == [first]
    pane = op.get_result().panes.to_pylist()[0]
    assert pane["window_start"] == first
    assert type(pane["emitted_at"]) is type(pane["window_end"]) is type(first)


def test_without_a_told_clock_the_clock_of_the_machine_is_read():
    before = datetime.now(UTC)
    op = (
        windowed(tg.tumbling("1 day"))
        .trigger(tg.every_element())
        .aggregate(n=tg.count())
        .embedded()
    )
    op.add_message(row(before.isoformat()))
    emitted = op.get_result().panes["emitted_at"][0].as_py()
    assert before - timedelta(seconds=1) <= emitted <= datetime.now(UTC)


def test_finish_fires_everything_and_ends_the_input():
    op = counting()
    op.add_messages(ROWS)
    op.finish()
    assert len(counts(op)) == 4
    assert set(op.get_result().panes["is_last"].to_pylist()) == {True}
    for call in (
        lambda: op.add_message(row(1)),
        lambda: op.add_messages([row(1)]),
        lambda: op.advance_watermark(5),
    ):
        with pytest.raises(tg.InputError, match="finished"):
            call()
    op.timeout(5)
    op.flush()
    assert op.get_result().panes.num_rows == 0


@pytest.mark.parametrize("kind", ["watermark", "finish", "timeout", "flush", "nothing"])
def test_verbs_before_any_message_are_no_error(kind):
    op = counting()
    verbs = {
        "watermark": lambda: op.advance_watermark(5),
        "finish": op.finish,
        "timeout": lambda: op.timeout(9),
        "flush": op.flush,
    }
    verbs.get(kind, lambda: None)()
    assert (op.get_result().panes.num_rows, op.get_windows(), op.get_messages().num_rows) == (
        0,
        [],
        0,
    )
    assert op.peek().num_rows == 0


def test_peek_selects_by_key_and_range():
    op = counting()
    op.add_messages([row(1, "a"), row(2, "b"), row(12, "a"), row(25, "a")])

    def peeked(*bounds: int, **key: Any) -> list[tuple[Any, ...]]:
        return [(r["k"], r["window_start"], r["n"]) for r in op.peek(*bounds, **key).to_pylist()]

    assert peeked(key="a") == [("a", 0, 1), ("a", 10, 1), ("a", 20, 1)]
    assert sorted(peeked(5, 5)) == [("a", 0, 1), ("b", 0, 1)], "the window that contains 5"
    assert peeked(10, 19, key={"k": "a"}) == [("a", 10, 1)]
    assert peeked(key="c") == []


@pytest.mark.parametrize("options", [{}, {"downstream": lambda _: True}], ids=["buffer", "offer"])
def test_the_first_message_is_cheap(options):
    panes = windowed().aggregate(n=tg.count(), total=tg.sum("v"))
    assert calls_of(panes.embedded(now=0, **options).add_message, row(1)) < 10_000


def test_the_first_message_of_a_process_imports_nothing():
    program = """
import sys, tidegate as tg
panes = tg.stream(time='ts').window(tg.tumbling('1 minute')).aggregate(n=tg.count())
op = panes.embedded(downstream=lambda r: True)
before = set(sys.modules)
op.add_message({'ts': 1, 'v': 2})
print(sorted(set(sys.modules) - before))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


# Results


def test_get_result_returns_a_copy_of_what_waits():
    op = counting()
    op.add_messages(ROWS)
    op.advance_watermark(10)
    assert counts(op) == counts(op) != []


def test_flush_clears_what_was_returned_and_never_what_nobody_fetched():
    op = counting()
    op.add_messages(ROWS)
    op.advance_watermark(10)
    op.flush()
    assert len(counts(op)) == 2
    op.advance_watermark(20)
    op.flush()
    assert [start for _, start, _ in counts(op)] == [10, 10]
    op.flush()
    assert counts(op) == []


def test_late_rows_wait_like_panes():
    op = counting()
    op.add_messages([row(100)])
    op.advance_watermark(100)
    op.add_messages([row(1)])
    op.flush()
    assert op.get_result().late["reason"].to_pylist() == ["very_late"]
    op.flush()
    assert op.get_result().late.num_rows == 0


def test_results_have_their_columns_before_anything_came():
    result = counting().get_result()
    pane = {
        "k",
        "window_start",
        "window_end",
        "op",
        "timing",
        "pane",
        "n",
        "total",
        "time",
        "watermark",
        "emitted_at",
        "pane_id",
    }
    assert pane <= set(result.panes.column_names)
    assert {"k", "class", "reason", "detail", "watermark", "windows"} <= set(
        result.late.column_names
    )
    assert not result
    assert len(result) == 0


def test_columns_and_types_do_not_depend_on_what_is_in_a_result():
    op = counting()
    op.add_messages([row(1)])
    empty = op.get_result()
    op.advance_watermark(100)
    op.add_messages([row(1)])
    full = op.get_result()
    assert (full.panes.num_rows, full.late.num_rows) == (1, 1)
    assert full.panes.schema == empty.panes.schema
    assert full.late.schema == empty.late.schema


def test_the_late_output_has_the_row_its_class_the_reason_and_the_watermark_of_that_moment():
    op = counting()
    op.advance_watermark(100)
    op.add_messages([row(7, "b", 3)])
    op.advance_watermark(200)
    [late] = op.get_result().late.to_pylist()
    assert {name: late[name] for name in ("ts", "k", "v", "class", "reason", "watermark")} == {
        "ts": 7,
        "k": "b",
        "v": 3,
        "class": "very_late",
        "reason": "very_late",
        "watermark": 100,
    }


def test_pane_ids_tell_keys_windows_indices_and_ops_apart():
    eager = tg.after_watermark(early=tg.repeatedly(tg.after_count(1)), late=tg.after_count(1))
    op = windowed().trigger(eager).retracting().aggregate(n=tg.count()).embedded(now=0)
    op.add_messages([row(ts, k) for ts in (1, 2, 11, 12) for k in ("a", "b", None)])
    op.finish()
    panes = op.get_result().panes.to_pylist()
    assert len({p["pane_id"] for p in panes}) == len(panes)


def test_windows_of_timestamps_are_timestamps_and_the_ends_of_time_are_null():
    op = (
        tg.stream(time="ts")
        .window(tg.global_window())
        .aggregate(n=tg.count())
        .embedded(now="2024-01-01T00:00:00Z")
    )
    op.add_messages([{"ts": datetime(2024, 1, 1, tzinfo=UTC)}])
    op.finish()
    [pane] = op.get_result().panes.to_pylist()
    assert (pane["window_start"], pane["window_end"], pane["n"]) == (None, None, 1)
    assert op.get_result().panes.schema.field("window_start").type == pa.timestamp("us", "UTC")


# Windows


def spans(found: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(w["window_start"], w["window_end"]) for w in found]


@pytest.mark.parametrize(
    "trigger", [None, tg.after_watermark(early=tg.after_count(99))], ids=["quiet", "early"]
)
def test_get_windows_is_sorted_and_covers_the_range(trigger):
    spec = windowed() if trigger is None else windowed().trigger(trigger)
    op = spec.aggregate(n=tg.count()).embedded(now=0)
    op.add_messages([row(ts, k) for ts in (35, 5, 15, -5, 25) for k in "ba"])
    assert spans(op.get_windows()) == [(-10, 0), (0, 10), (10, 20), (20, 30), (30, 40)]
    assert spans(op.get_windows(5, 20)) == [(0, 10), (10, 20), (20, 30)]
    assert spans(op.get_windows(10, 19)) == [(10, 20)]
    assert spans(op.get_windows(10, 10)) == [(10, 20)]
    assert spans(op.get_windows(100, 200)) == []
    assert spans(op.get_windows(20, 5)) == []
    assert [w["count"] for w in op.get_windows(0, 9)] == [2]


def test_get_windows_by_session_key_gives_those_that_overlap():
    op = counting(tg.session(5, unit="us"))
    op.add_messages([row(0), row(3), row(20), row(2, "b"), row(40)])
    assert spans(op.get_windows(4, 21, key="a")) == [(0, 8), (20, 25)]
    assert spans(op.get_windows(8, 19, key="a")) == []
    assert spans(op.get_windows(key="b")) == [(2, 7)]
    assert spans(op.get_windows(key="c")) == []
    assert [(w["k"], w["window_start"]) for w in op.get_windows()] == [
        ("a", 0),
        ("b", 2),
        ("a", 20),
        ("a", 40),
    ]


def test_get_windows_leaves_out_what_has_expired():
    op = counting()
    op.add_messages([row(5), row(35)])
    op.advance_watermark(29)
    assert spans(op.get_windows()) == [(0, 10), (30, 40)]
    op.advance_watermark(30)
    assert spans(op.get_windows()) == [(30, 40)]


def test_a_null_key_and_keys_of_several_columns_can_be_asked_for():
    op = windowed(key=["k", "v"]).aggregate(n=tg.count()).embedded(now=0)
    op.add_messages([row(1, "a", 1), row(2, None, 1), row(3, "a", None)])
    assert [w["count"] for w in op.get_windows(key=("a", 1))] == [1]
    assert [w["count"] for w in op.get_windows(key=(None, 1))] == [1]
    assert [w["count"] for w in op.get_windows(key={"v": None, "k": "a"})] == [1]
    assert op.get_windows(key=(None, None)) == []


@pytest.mark.parametrize("key", [("a", 1), {"other": 1}, 5, [1]], ids=str)
def test_a_key_that_does_not_fit_is_refused_with_the_columns(key):
    op = counting()
    op.add_messages([row(1)])
    with pytest.raises(tg.InputError, match="k"):
        op.get_windows(key=key)


# Messages


def keeping(window: Any = None, **stream: Any) -> tg.EmbeddedOperator:
    return (
        windowed(window, offset="o", **stream)
        .options(keep_messages=True)
        .aggregate(n=tg.count())
        .embedded(now=0)
    )


def offsets(table: pa.Table) -> list[int]:
    return table["o"].to_pylist()


def test_get_messages_takes_inclusive_bounds_of_time_and_offset():
    op = keeping()
    op.add_messages([row(ts, o=o) for o, ts in enumerate([5, 7, 7, 7, 9, 12])])
    assert offsets(op.get_messages(5, 9)) == [0, 1, 2, 3, 4]
    assert offsets(op.get_messages(7, 7)) == [1, 2, 3]
    assert offsets(op.get_messages(7, 7, start_offset=2)) == [2, 3]
    assert offsets(op.get_messages(7, 7, end_offset=2)) == [1, 2]
    assert offsets(op.get_messages(5, 7, start_offset=0, end_offset=1)) == [0, 1]
    assert offsets(op.get_messages(7, 12, start_offset=3, end_offset=0)) == [3, 4]
    assert offsets(op.get_messages()) == [0, 1, 2, 3, 4, 5]
    assert offsets(op.get_messages(13)) == []
    assert offsets(op.get_messages(9, 5)) == []


def test_get_messages_is_sorted_by_time_and_offset_whatever_the_order_of_arrival():
    op = keeping()
    op.add_messages([row(9, o=0), row(3, o=1)])
    op.add_messages([row(9, o=2), row(1, o=3), row(3, o=4)])
    assert offsets(op.get_messages()) == [3, 1, 4, 0, 2]


@pytest.mark.parametrize("window", [None, tg.session(5, unit="us")], ids=["tumbling", "session"])
def test_a_join_key_and_a_session_key_narrow_the_messages(window):
    op = keeping(window)
    op.add_messages(
        [
            row(1, "a", 1, o=0),
            row(2, "b", 1, o=1),
            row(3, "a", 2, o=2),
            row(4, None, 2, o=3),
            row(4, "a", None, o=4),
        ]
    )
    assert offsets(op.get_messages(key="a")) == [0, 2, 4]
    assert offsets(op.get_messages(key=(None,))) == [3]
    assert offsets(op.get_messages(join_key={"v": 2})) == [2, 3]
    assert offsets(op.get_messages(key="a", join_key={"v": 2})) == [2]
    assert offsets(op.get_messages(2, 9, key="a", join_key={"v": 1})) == []


def test_a_join_key_over_an_unknown_column_is_refused_with_its_name():
    op = keeping()
    op.add_messages([row(1, o=0)])
    with pytest.raises(tg.InputError, match="price"):
        op.get_messages(join_key={"price": 1})


def test_messages_come_back_as_they_were_given():
    op = keeping()
    given_ = {
        "ts": [1, 2],
        "k": ["a", None],
        "v": [1.5, None],
        "o": [0, 1],
        "tags": [["x"], []],
        "at": [{"lat": 1.0}, None],
    }
    op.add_messages(pa.table(given_))
    assert op.get_messages().to_pydict() == given_


def test_get_messages_of_an_operator_that_keeps_none_says_how_to_keep_them():
    op = counting()
    op.add_messages([row(1)])
    with pytest.raises(tg.InputError, match="keep_messages"):
        op.get_messages()


def test_messages_are_read_by_offset_on_the_offset_axis():
    op = (
        tg.stream(key="k", offset="o")
        .window(tg.tumbling(10, axis="offset"))
        .options(keep_messages=True)
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    op.add_messages([row(None, o=o) for o in (40, 41, 45, 47)])
    assert offsets(op.get_messages(41, 45)) == [41, 45]


def test_messages_that_came_out_of_order_before_an_older_window_exists_are_kept():
    """An event that is on time is kept even if its window is older than the only one in state."""
    op = windowed().aggregate(n=tg.count(), middle=tg.median("v")).embedded(now=0)
    op.add_messages([row(100, v=1)])
    op.advance_watermark(50)
    op.add_messages([row(60, v=7), row(45, v=9)])
    op.finish()
    found = [(p["window_start"], p["n"], p["middle"]) for p in op.get_result().panes.to_pylist()]
    # The window that a late event opened waits for the late trigger, here until the end.
    assert found == [(60, 1, 7.0), (100, 1, 1.0), (40, 1, 9.0)]


def test_messages_of_a_window_that_is_still_taken_are_kept_when_windows_decide():
    """`drop_by="window"`: a late event counts as long as its window is open."""
    op = (
        windowed(tg.tumbling(100, unit="us"))
        .options(drop_by="window")
        .aggregate(n=tg.count(), middle=tg.median("v"))
        .embedded(now=0)
    )
    op.add_messages([row(250, v=1)])
    op.advance_watermark(190)
    op.add_messages([row(101, v=7)])
    op.finish()
    assert [
        (p["window_start"], p["n"], p["middle"]) for p in op.get_result().panes.to_pylist()
    ] == [(100, 1, 7.0), (200, 1, 1.0)]


# Watermark


def test_the_output_watermark_waits_for_panes_that_are_owed():
    op = counting()
    assert op.watermark is None
    op.add_messages([row(5)])
    op.advance_watermark(7)
    assert (op.watermark, op.hold) == (7, 9)
    assert op.output_watermark <= 7
    op.advance_watermark(12)
    assert op.output_watermark == 12
    op.add_messages([row(6)])
    assert op.hold is not None
    assert op.output_watermark <= 29


def test_granularity_batch_fires_at_most_once_a_delivery():
    for granularity, wanted in (("element", [2, 4]), ("batch", [5])):
        op = (
            windowed()
            .trigger(tg.repeatedly(tg.after_count(2)))
            .options(granularity=granularity)
            .aggregate(n=tg.count())
            .embedded(now=0)
        )
        op.add_messages([row(1) for _ in range(5)])
        assert op.get_result().panes["n"].to_pylist() == wanted


def test_instants_are_taken_in_every_form():
    panes = (
        tg.stream(time="ts", watermark=tg.explicit())
        .window(tg.tumbling("1 minute"))
        .aggregate(n=tg.count())
    )
    op = panes.embedded(now=datetime(2024, 1, 1, tzinfo=UTC))
    op.add_messages([{"ts": "2024-01-01T00:00:30Z"}])
    op.advance_watermark("2024-01-01T01:00:59+01:00")
    assert op.get_result().panes.num_rows == 0
    op.advance_watermark(datetime(2024, 1, 1, 0, 1, tzinfo=UTC))
    assert op.get_result().panes.num_rows == 1
    with pytest.raises(tg.TidegateError, match="Hint"):
        op.advance_watermark(datetime(2024, 1, 1, 0, 2))


def test_all_aggregates_that_do_not_fit_are_in_one_error():
    pipeline = tg.stream(time="ts", key="user").window(tg.tumbling("1 minute"))
    op = pipeline.aggregate(n=tg.count(), total=tg.sum("user"), mean=tg.mean("other")).embedded()
    with pytest.raises(tg.SpecError, match="2 aggregates do not fit the columns") as raised:
        op.add_messages([{"ts": "2026-03-01T10:00:00Z", "user": "ann"}])
    assert "`sum` needs numbers, but column `user` is of type string" in str(raised.value)
    assert "reads column `other`" in str(raised.value)
