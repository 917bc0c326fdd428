"""Joins, concept by concept: what is refused and explained, the output, windows, and retention."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tidegate as tg
from tidegate.errors import InputError, SpecError, SpecMismatchError
from tidegate.instants import MIN
from tidegate.operators.ingest.delivery import Arrival
from tidegate.operators.join.operator import WindowedJoin
from tidegate.spec.join import JoinSpec, Within, equal_fields
from tidegate.spec.operator import Input
from tidegate.spec.watermarks import Explicit
from tidegate.state.memory import MemoryStore

LEFT = tg.stream(time="ts", watermark=tg.explicit())
RIGHT = tg.stream(time="ts", watermark=tg.explicit())
NEAR = tg.within(5, 5, unit="us")


def made(window=NEAR, **words):
    """A join that forgives nothing, whose sides have the columns ts, k and v."""
    schema = pa.schema({"ts": pa.int64(), "k": pa.string(), "v": pa.int64()})
    return (
        LEFT.join(RIGHT, window, **{"on": "k", **words})
        .allow_lateness(0)
        .embedded(now=0, schemas=(schema, schema))
    )


def row(ts, k="a", v=0):
    return {"ts": ts, "k": k, "v": v}


def told(operator, *columns):
    """What has come out since the last look: op, and the named columns."""
    panes = operator.get_result().panes.to_pylist()
    operator.flush()
    return [
        (pane["op"], *(pane[name] for name in columns or ("left_ts", "right_ts"))) for pane in panes
    ]


# What is asked for


def test_bounds_are_whole_numbers_whatever_end_is_open():
    assert [
        (b.low, b.high)
        for b in (
            Within(3, 4),
            Within(3, 4, "left"),
            Within(3, 4, "right"),
            Within(3, 4, "neither"),
        )
    ] == [
        (-3, 4),
        (-3, 3),
        (-2, 4),
        (-2, 3),
    ]
    assert (Within(None, 4).low, Within(3, None).high) == (None, None)


@pytest.mark.parametrize("bound", [(-1, 0), (-5, 4), (0, -1)])
def test_bounds_between_which_nothing_lies_are_refused(bound):
    with pytest.raises(SpecError, match="no two rows"):
        tg.within(*bound, unit="us")
    with pytest.raises(SpecError, match="no two rows"):
        tg.within(0, 0, closed="left")


def test_equal_fields_are_said_in_four_ways():
    plain, keyed = Input(time="ts"), Input(time="ts", key=("k",))
    assert equal_fields("id", plain, plain) == (("id", "id"),)
    assert equal_fields(["a", "b"], plain, plain) == (("a", "a"), ("b", "b"))
    assert equal_fields({"id": "order_id"}, plain, plain) == (("id", "order_id"),)
    assert equal_fields(None, keyed, keyed) == (("k", "k"),)
    assert equal_fields(None, keyed, plain) == ()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"how": "outer"}, "`how` of a join"),
        ({"window": tg.session("1 minute"), "on": None}, "has no equal fields"),
        ({"window": tg.as_of(), "how": "full"}, "inner or a left"),
        ({"window": tg.rows(3)}, "offset="),
        ({"window": tg.within(1, 1, unit="us", left="due")}, "time column `due`"),
        ({"window": tg.tumbling(3, axis="ordinal")}, "share tumbling, hopping, sliding"),
        (
            {"window": tg.custom(lambda times, _: (times, times))},
            "share tumbling, hopping, sliding",
        ),
        ({"window": tg.tumbling("1 day", create="static")}, "created on demand"),
        ({"window": ()}, "all `within`"),
        ({"names": ("a_", "a_")}, "two different prefixes"),
        ({"where": 3}, "`where` is an expression"),
        ({"on": ["k", "k"]}, "twice"),
    ],
)
def test_a_join_that_cannot_be_is_refused(words, why):
    with pytest.raises(SpecError, match=why):
        LEFT.join(RIGHT, **{"window": NEAR, "on": "k", **words})


def test_a_session_join_that_leaves_the_session_key_out_is_refused_with_the_reason():
    keyed = tg.stream(time="ts", key=["user", "device"])
    with pytest.raises(
        SpecError, match=r"leaves out the session key `device`.*every session of the other"
    ):
        keyed.join(keyed, tg.session("1 minute"), on="user")


def test_a_tuple_window_has_messages():
    with pytest.raises(SpecError, match="1 or more"):
        tg.rows(left=0)


def test_other_words_that_contradict_a_join_are_refused():
    joined = LEFT.join(RIGHT, NEAR)
    with pytest.raises(SpecError, match="goes by equal fields"):
        joined.keyed_message_store()
    with pytest.raises(SpecError, match="goes by equal fields"):
        LEFT.join(RIGHT, NEAR, on="k").keyed_message_store("v")
    with pytest.raises(SpecError, match="no option"):
        joined.options(speed=1)
    with pytest.raises(SpecError, match="update period"):
        joined.update_every(on_time="0 seconds")
    with pytest.raises(SpecError, match="per-key"):
        LEFT.join(
            tg.stream(time="ts", key="k", watermark=tg.per_key("1 second", floor="1 hour")), NEAR
        )


def test_a_preset_says_what_was_not_said():
    joined = LEFT.join(RIGHT, NEAR).options(semantics="flink")
    assert (joined.spec.allowed_lateness, joined.spec.options.drop_by) == (0, "window")
    assert (
        LEFT.join(RIGHT, NEAR)
        .allow_lateness("1 hour")
        .options(semantics="flink")
        .spec.allowed_lateness
        == 3_600_000_000
    )


def test_specifications_are_equal_by_what_they_say():
    one, other = (LEFT.join(RIGHT, NEAR, on="k", where=pc.field("v") > 1).spec for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != LEFT.join(RIGHT, NEAR, on="k", where=pc.field("v") > 2).spec


def test_an_explanation_says_kind_bounds_freeing_padding_layout_and_promises():
    text = LEFT.join(
        RIGHT, tg.within("1 hour", "10 minutes", closed="left"), on={"id": "order"}, how="left"
    ).explain()
    for words in (
        "a left join",
        "left id = right order",
        "left.ts in [right.ts - 1 hour, right.ts + 10 minutes)",
        "Left rows: kept until the right watermark is 1 hour 1 minute beyond them",
        "Right rows: kept until the left watermark is 11 minutes beyond them",
        "no partner is expected",
        (
            "timestamp, equal_fields, offset; equal_fields, timestamp, offset once there are more"
            " than 10,000"
        ),
        "left min(W_left, W_right - 1 hour), right min(W_right, W_left - 10 minutes)",
    ):
        assert words in text
    assert "no bound frees them" in LEFT.join(RIGHT, tg.within(None, None), on="k").explain()


@pytest.mark.parametrize(
    ("window", "words"),
    [
        (tg.tumbling("1 minute"), "tumbling windows of 1 minute"),
        (tg.hopping("1 minute", "30 seconds"), "the first that holds both"),
        (tg.cumulative("1 hour", "10 minutes"), "cumulative windows up to 1 hour in steps of 10"),
        (tg.calendar("month", 2), "calendar windows of a 2 months in UTC"),
        (tg.sliding("1 hour"), "the window that ends with its later row"),
        (tg.global_window(), "no bound frees them; give `retain(...)`"),
        (tg.session("1 minute"), "session_key, timestamp, equal_fields, offset"),
        (
            tg.as_of("1 minute", strict=True),
            "the latest right row before the left one, at most 1 minute older",
        ),
        (
            (tg.within(1, 1, unit="s"), tg.within("1 hour", None)),
            " and left.ts in [right.ts - 1 hour, +inf]",
        ),
    ],
)
def test_every_window_is_explained(window, words):
    assert words in LEFT.join(RIGHT, window, on="k").explain()


@pytest.mark.parametrize(
    ("window", "words"),
    [
        (tg.tumbling(3, axis="offset"), "tumbling windows of 3 messages"),
        (tg.hopping(1, 1, axis="offset"), "hopping windows of 1 message every 1 message"),
        (tg.cumulative(6, 2, axis="offset"), "up to 6 messages in steps of 2 messages"),
        (tg.sliding(3, axis="offset"), "sliding windows of 3 messages"),
        (tg.session(3, axis="offset"), "sessions over both sides with a gap of 3 messages"),
        (tg.rows(left=3), "left the last 3 by offset and right all that retention keeps"),
    ],
)
def test_windows_of_messages_are_explained_without_durations(window, words):
    counted = tg.stream(time="ts", watermark=tg.explicit(), offset="n")
    text = counted.join(counted, window, on="k").explain()
    assert words in text
    assert "second" not in text
    assert "minute" not in text
    assert "but none above the times of the rows that it holds" in text


def test_windows_of_time_beside_windows_of_messages_are_checked():
    for words, why in (
        ({"left": "1 minute", "right": "2 minutes"}, "a window of messages on one side"),
        ({"left": 3, "right": "0 seconds"}, "a duration above 0"),
    ):
        with pytest.raises(SpecError, match=why):
            tg.rows(**words)
    counted = tg.stream(offset="n")
    with pytest.raises(SpecError, match="the left stream needs a time column"):
        counted.join(tg.stream(time="ts"), tg.rows(left=3, right="2 minutes"), on="k")


def test_a_window_of_messages_beside_one_of_time():
    """Orders and shipments: each new row looks into the other side's window as it is then."""
    orders = tg.stream(time="ts", offset="n", watermark=tg.explicit())
    shipments = tg.stream(time="ts", watermark=tg.explicit())
    join = orders.join(shipments, tg.rows(left=2, right=timedelta(microseconds=10)), on="k")
    op = join.embedded(now=0)
    found = []

    def add(side, *rows):
        op.add_messages([{"k": "a", **row} for row in rows], input=side)
        result = op.get_result()
        op.flush()
        found.append([(p["n"], p["cost"]) for p in result.panes.to_pylist()])
        return [row["reason"] for row in result.late.to_pylist()]

    add("left", {"ts": 0, "n": 1}, {"ts": 1, "n": 2}, {"ts": 2, "n": 3})
    # The first order has left the window of two; the time of the shipment does not matter.
    add("right", {"ts": 50, "cost": 7})
    # Shipments that are 10 or more older are out of the window; newer ones are in it.
    add("left", {"ts": 60, "n": 4}, {"ts": 59, "n": 5}, {"ts": 20, "n": 6})
    assert found == [[], [(2, 7), (3, 7)], [(5, 7), (6, 7)]]
    op.advance_watermark(120_000_000, input="left")
    assert op.get_messages("right").num_rows == 0
    assert add("left", {"ts": 20, "n": 7}) == ["very_late"]


def test_a_window_of_messages_of_several_partitions():
    """The last messages of each partition, also of one that is far behind."""
    parts = tg.stream(offset="n", partition="p")
    op = parts.join(parts, tg.rows(left=1, right=1), on="k", how="left").embedded(now=0)
    rows = [{"k": "a", "p": p, "n": n} for p, n in (("x", 0), ("y", 70), ("x", 5))]
    op.add_messages(rows[:2], input="left")
    op.add_messages([{"k": "a", "p": "z", "n": 9}], input="right")
    op.add_messages(rows[2:], input="left")
    op.add_messages([{"k": "a", "p": "z", "n": 10}], input="right")
    panes = op.get_result().panes.to_pylist()
    pairs = [(p["left_p"], p["left_n"], p["right_n"]) for p in panes if p["op"] == "+"]
    assert pairs == [("x", 0, 9), ("y", 70, 9), ("x", 5, 9), ("y", 70, 10), ("x", 5, 10)]
    assert op.get_messages("left").num_rows == 2
    bounds = [(w["window_start"], w["window_end"]) for w in op.get_windows("left")]
    assert bounds == [(5, 6), (70, 71)]


def test_a_partition_that_begins_after_another_has_moved_on_keeps_its_messages():
    parts = tg.stream(offset="n", partition="p")
    op = parts.join(parts, tg.rows(left=2, right=2), on="k").embedded(now=0)
    for p, n in (("x", 0), ("x", 5), ("y", 0), ("y", 1)):
        op.add_messages([{"k": "a", "p": p, "n": n}], input="left")
    held = op.get_messages("left").to_pylist()
    assert sorted((row["p"], row["n"]) for row in held) == [("x", 5), ("y", 0), ("y", 1)]
    op.add_messages([{"k": "a", "p": "z", "n": 0}], input="right")
    panes = op.get_result().panes.to_pylist()
    assert sorted((p["left_p"], p["left_n"]) for p in panes) == [("x", 5), ("y", 0), ("y", 1)]


def test_state_of_a_join_of_another_format_is_refused():
    store, parts = tg.MemoryStore(), tg.stream(offset="n", partition="p")
    join = parts.join(parts, tg.rows(left=2), on="k")
    op = join.embedded(store=store, now=0)
    op.add_messages([{"k": "a", "p": "x", "n": 0}], input="left")
    op.flush()
    document = json.loads(json.dumps(store.get_json("operator")))
    store.put_json("operator", {**document, "format": 2})
    with pytest.raises(tg.CorruptStateError, match=r"format 2 cannot be read.*reads format 3"):
        join.embedded(store=store, now=0)


# What comes out


def test_a_pair_comes_out_once_with_both_rows_side_by_side():
    join = made()
    join.add_message(row(10, v=1), input="left")
    join.add_message(row(14, v=2), input="right")
    join.add_message(row(16), input="right")
    panes = join.get_result().panes
    assert panes.column_names == [
        "k",
        "left_ts",
        "left_v",
        "right_ts",
        "right_v",
        "op",
        "timing",
        "pair_id",
        "watermark",
        "emitted_at",
    ]
    assert panes.drop_columns(["pair_id", "watermark", "emitted_at"]).to_pylist() == [
        {
            "k": "a",
            "left_ts": 10,
            "left_v": 1,
            "right_ts": 14,
            "right_v": 2,
            "op": "+",
            "timing": "on_time",
        }
    ]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("inner", [("+", 10, 12)]),
        ("left", [("+", 10, 12), ("+", 30, None)]),
        ("right", [("+", 10, 12), ("+", None, 50)]),
        ("full", [("+", 10, 12), ("+", None, 50), ("+", 30, None)]),
        ("semi", [("+", 10)]),
        ("anti", [("+", 30)]),
    ],
)
def test_rows_without_a_partner_come_out_when_the_watermark_has_passed(how, expected):
    join = made(how=how)
    join.add(left=[row(10), row(30)], right=[row(12), row(50)])
    join.advance_watermark(100, input="left")
    join.advance_watermark(100, input="right")
    assert told(join, *(["ts"] if how in ("semi", "anti") else [])) == expected
    assert (join.stats()["left_rows"], join.stats()["right_rows"]) == (0, 0)


def test_a_partner_that_comes_late_takes_the_padding_back():
    schema = pa.schema({"ts": pa.int64(), "k": pa.string()})
    join = (
        LEFT.join(RIGHT, NEAR, on="k", how="left")
        .allow_lateness(20, unit="us")
        .embedded(now=0, schemas=(schema, schema))
    )
    join.add_message({"ts": 10, "k": "a"}, input="left")
    join.advance_watermark(16, input="right")
    assert told(join) == [("+", 10, None)]
    join.add_message({"ts": 15, "k": "a"}, input="right")
    result = join.get_result().panes.to_pylist()
    assert [(pane["op"], pane["right_ts"], pane["timing"]) for pane in result] == [
        ("-", None, "on_time"),
        ("+", 15, "late"),
    ]


def test_a_null_key_meets_nobody():
    join = made(how="full")
    join.add(left=[row(10, None)], right=[row(10, None)])
    join.finish()
    panes = join.get_result().panes.to_pylist()
    assert [(pane["left_ts"], pane["right_ts"]) for pane in panes] == [(10, None), (None, 10)]
    assert len({pane["pair_id"] for pane in panes}) == 2


def test_a_condition_that_fails_for_a_pair_is_told_of_and_the_others_come_out():
    join = made(
        on=None, where=lambda pairs: pc.greater(pc.divide(pairs["left_v"], pairs["right_v"]), 1)
    )
    join.add(left=[row(1, v=8)], right=[row(1, v=0), row(2, v=2), row(3, v=8)])
    result = join.get_result()
    assert result.panes.column("right_ts").to_pylist() == [2]
    assert result.late.select(["input", "ts", "reason"]).to_pylist() == [
        {"input": "right", "ts": 1, "reason": "bad_condition"}
    ]


def test_a_condition_over_columns_without_a_value_yet_is_null():
    """Embedded, a column of nulls has no type before its first value."""
    left, right = tg.stream(time="at"), tg.stream(time="seen")
    window = tg.within(5, 5, unit="us")
    where = (pc.field("low") <= pc.field("high")) & (pc.field("low") + pc.field("high") > 0)
    join = left.join(right, window, on="k", how="left", where=where).embedded(now=0)
    join.add(left=[{"at": 1, "k": "a", "low": None}], right=[{"seen": 1, "k": "a", "high": None}])
    join.add(left=[{"at": 1, "k": "a", "low": 1}], right=[{"seen": 1, "k": "a", "high": 2}])
    join.finish()
    result = join.get_result()
    assert result.late.to_pylist() == []
    found = [(pane["low"], pane["high"]) for pane in result.panes.to_pylist()]
    assert sorted(found, key=str) == [(1, 2), (None, None)]


def test_several_bounds_on_several_columns_all_hold_and_each_frees_state():
    times = {"due": (1, tg.explicit())}
    both = tg.stream(time="ts", watermark=tg.explicit(), times=times)
    window = (tg.within(100, 100, unit="us"), tg.within(2, 2, unit="us", left="due", right="due"))
    join = both.join(both, window, on="k").allow_lateness(0).embedded(now=0)
    message = {"ts": 10, "due": 50, "k": "a"}
    join.add(
        left=[message],
        right=[{**message, "due": 53}, {**message, "due": 48}, {**message, "ts": 200}],
    )
    assert told(join, "left_due", "right_due") == [("+", 50, 48)]
    join.advance_watermark(53, input="right", key=1)
    assert join.stats()["left_rows"] == 0


def test_keys_of_different_widths_agree_and_others_are_refused():
    join = LEFT.join(RIGHT, NEAR, on={"k": "id"}).embedded(now=0)
    join.add_messages(pa.table({"ts": [1], "k": pa.array([7], pa.int8())}), input="left")
    join.add_messages(pa.table({"ts": [1], "id": pa.array([7], pa.int64())}), input="right")
    assert told(join, "k") == [("+", 7)]
    wrong = LEFT.join(RIGHT, NEAR, on="k").embedded(now=0)
    wrong.add_messages(pa.table({"ts": [1], "k": [7]}), input="left")
    with pytest.raises(InputError, match="never equal"):
        wrong.add_messages(pa.table({"ts": [1], "k": ["7"]}), input="right")


@pytest.mark.parametrize("fields", [(), ("k",), ("k", "v")])
def test_a_keyed_message_store_finds_the_same_pairs(fields):
    stream = tg.stream(time="ts", watermark=tg.explicit())
    joined = stream.join(stream, NEAR, on=["k", "v"], how="full").keyed_message_store(*fields)
    assert "asked for with `keyed_message_store" in joined.explain()
    join = joined.embedded(now=0)
    join.add(left=[row(1), row(2, v=1), row(3, "b")], right=[row(4), row(5, v=1), row(5, "b", 1)])
    join.finish()
    assert sorted(told(join), key=str) == [("+", 1, 4), ("+", 2, 5), ("+", 3, None), ("+", None, 5)]
    assert all(side.buffer.layout.fields[0] == "equal_fields" for side in join.operator.sides)


# Windows of other kinds


def test_a_pair_of_hopping_windows_comes_out_with_the_first_that_holds_both():
    join = made(tg.hopping(10, 5, unit="us"))
    join.add(left=[row(7)], right=[row(9), row(12), row(15)])
    assert told(join, "right_ts", "window_start", "window_end") == [
        ("+", 9, 0, 10),
        ("+", 12, 5, 15),
    ]


def test_rows_between_windows_are_in_none():
    with pytest.warns(UserWarning, match="in no window"):
        window = tg.hopping(3, 10, unit="us")
    join = made(window)
    join.add(left=[row(5)], right=[row(2)])
    assert join.get_result().late.column("reason").to_pylist() == ["no_window"]


def test_sessions_go_by_the_session_key_and_further_equal_fields_narrow_the_pairs():
    """Sessions of `u` hold rows with any `x`, and only rows with the same `x` are pairs."""
    stream = tg.stream(time="ts", key="u", watermark=tg.explicit())
    op = stream.join(stream, tg.session(10, unit="us"), on=["u", "x"]).embedded(now=0)
    op.add_messages([{"ts": 0, "u": 1, "x": 1}], input="left")
    op.add_messages([{"ts": 8, "u": 1, "x": 2}], input="right")
    op.add_messages([{"ts": 16, "u": 1, "x": 1}], input="right")
    assert told(op, "left_ts", "right_ts", "window_start", "window_end") == [("+", 0, 16, 0, 26)]
    assert op.get_messages("right", key=1).column("ts").to_pylist() == [8, 16]
    assert op.get_messages("right", key=1, join_key=(1, 2)).column("ts").to_pylist() == [8]
    assert op.get_messages("right", join_key=(2, 2)).num_rows == 0
    assert op.get_windows("right", key=1) == [{"window_start": 0, "window_end": 26, "count": 2}]
    assert "sessions of u over both sides" in op.explain()
    with pytest.raises(SpecError, match="session key, which is"):
        stream.join(stream, tg.session("1 s"), on=["u", "x"]).keyed_message_store("x")


def test_tuple_windows_are_aligned_by_the_first_offsets_of_both_sides():
    """The first three messages of both sides share a window, whatever their offsets and
    partitions.
    """
    stream = tg.stream(time="ts", offset="o", partition="p", watermark=tg.explicit())
    op = stream.join(stream, tg.tumbling(3, axis="offset"), on="k", how="full").embedded(now=0)
    op.add_messages([{"ts": 5, "k": "a", "o": o, "p": 0} for o in (7, 9, 10)], input="left")
    op.add_messages([{"ts": 50, "k": "a", "o": o, "p": 1} for o in (1002, 1003)], input="right")
    columns = ("left_o", "right_o", "window_start", "window_end")
    assert told(op, *columns) == [
        ("+", left, right, 0, 3) for right in (1002, 1003) for left in (7, 9)
    ]
    op.advance_watermark(40, input="left")
    op.advance_watermark(60, input="right")
    # A row that is held may still come out, so its time holds the output watermark back.
    assert op.output_watermarks == {"left_ts": 5, "right_ts": 60}
    op.add_messages([{"ts": 70, "k": "b", "o": 1006, "p": 1}], input="right")
    op.add_messages([{"ts": 70, "k": "a", "o": 13, "p": 0}], input="left")
    assert told(op, *columns) == [("+", None, 1006, 3, 6)]
    assert op.get_windows("left") == [
        {"window_start": start, "window_end": start + 3, "count": 1} for start in (3, 6)
    ]
    op.end_input(input="right")
    assert told(op, *columns) == [("+", 10, None, 3, 6), ("+", 13, None, 6, 9)]


def test_sessions_of_tuples_go_by_offsets():
    stream = tg.stream(offset="o")
    op = stream.join(stream, tg.session(2, axis="offset"), on="k", how="left").embedded(now=0)
    op.add(
        left=[{"k": "a", "o": 0}, {"k": "a", "o": 5}, {"k": "b", "o": 9}],
        right=[{"k": "a", "o": 100}, {"k": "a", "o": 102}, {"k": "b", "o": 109}],
    )
    assert told(op, "left_o", "right_o", "window_start") == [
        ("+", 0, 100, 0),
        ("+", 0, 102, 0),
        ("+", 9, 109, 9),
        ("+", 5, None, 5),
    ]


def test_rows_of_a_calendar_month_meet():
    window = tg.calendar("month", zone="Europe/Berlin")
    schema = pa.schema({"ts": pa.timestamp("us", "UTC"), "k": pa.string()})
    op = (
        LEFT.join(RIGHT, window, on="k", how="full")
        .allow_lateness(0)
        .embedded(now=0, schemas=(schema, schema))
    )
    times = ["2024-01-31T22:59:59", "2024-01-31T23:00:00", "2024-02-29T22:59:59"]
    rows = [{"ts": datetime.fromisoformat(f"{time}+00:00"), "k": "a"} for time in times]
    op.add(left=rows[1:2], right=rows)
    assert op.get_windows("left")[0]["window_start"] == rows[1]["ts"]
    op.advance_watermark("2024-01-31T23:00:00Z", input="left")
    found = op.get_result().panes.to_pylist()
    assert [(pane["left_ts"], pane["right_ts"], pane["window_start"]) for pane in found] == [
        (rows[1]["ts"], rows[1]["ts"], rows[1]["ts"]),
        (rows[1]["ts"], rows[2]["ts"], rows[1]["ts"]),
        (None, rows[0]["ts"], datetime(2023, 12, 31, 23, tzinfo=UTC)),
    ]


def test_sessions_that_merge_give_the_pairs_that_become_members():
    join = made(tg.session(10, unit="us"))
    join.add_message(row(0), input="left")
    join.add_message(row(15), input="right")
    assert told(join) == []
    join.add_message(row(8), input="left")
    assert told(join, "left_ts", "right_ts", "window_start", "window_end") == [
        ("+", 0, 15, 0, 25),
        ("+", 8, 15, 0, 25),
    ]


def test_a_tuple_join_looks_into_the_last_messages_in_the_order_of_their_alignment():
    stream = tg.stream(offset="o")
    schema = pa.schema({"o": pa.int64(), "k": pa.string()})
    join = stream.join(stream, tg.rows(left=2), on="k", how="left").embedded(
        now=0, schemas=(schema, schema)
    )
    join.add(
        left=[{"o": n, "k": "a"} for n in (1, 2, 4)],
        right=[{"o": 1000 + n, "k": "a"} for n in (0, 1)],
    )
    # left 1, right 1000, left 2, right 1001, left 4 come in this order; a hole counts as a message.
    assert told(join, "left_o", "right_o") == [
        ("+", 1, 1000),
        ("+", 2, 1000),
        ("+", 1, 1001),
        ("+", 2, 1001),
        ("+", 4, 1000),
        ("+", 4, 1001),
    ]
    assert join.get_windows("left") == [{"window_start": 4, "window_end": 5, "count": 1}]


def test_an_as_of_join_waits_for_the_latest_row_and_is_corrected_when_a_late_one_is_better():
    schema = pa.schema({"ts": pa.int64(), "k": pa.string()})
    join = (
        LEFT.join(RIGHT, tg.as_of(), on="k", how="left")
        .allow_lateness(100, unit="us")
        .embedded(now=0, schemas=(schema, schema))
    )
    join.add(
        left=[{"ts": 20, "k": "a"}, {"ts": 3, "k": "a"}],
        right=[{"ts": 5, "k": "a"}, {"ts": 12, "k": "a"}],
    )
    assert told(join) == []
    join.advance_watermark(21, input="right")
    assert told(join) == [("+", 20, 12), ("+", 3, None)]
    join.add_message({"ts": 18, "k": "a"}, input="right")
    assert told(join) == [("-", 20, 12), ("+", 20, 18)]


def test_right_rows_of_an_as_of_join_go_when_a_later_one_answers_all():
    join = made(tg.as_of())
    join.add_messages([row(n) for n in range(100)], input="right")
    join.advance_watermark(50, input="right")
    join.advance_watermark(50, input="left")
    assert join.stats()["right_rows"] == 50


# Retention and state


def test_retention_by_messages_keeps_the_newest_of_a_key_and_pads_what_it_pushes_out():
    schema = pa.schema({"ts": pa.int64(), "k": pa.string()})
    join = (
        LEFT.join(RIGHT, tg.within(None, None), on="k", how="left")
        .retain(messages=2)
        .embedded(now=0, schemas=(schema, schema))
    )
    join.add_messages(
        [{"ts": n, "k": "a"} for n in (1, 2, 3)] + [{"ts": 1, "k": "b"}], input="left"
    )
    assert told(join) == [("+", 1, None)]
    assert join.get_messages("left", key="a").column("ts").to_pylist() == [2, 3]
    join.add_message({"ts": 0, "k": "a"}, input="left")
    assert join.get_result().late.column("reason").to_pylist() == ["out_of_retention"]


def test_retention_by_bytes_pushes_the_oldest_out():
    schema = pa.schema({"ts": pa.int64(), "k": pa.int64()})
    join = (
        LEFT.join(RIGHT, tg.within(None, None), on="k")
        .retain(bytes=4_000)
        .embedded(now=0, schemas=(schema, schema))
    )
    for n in range(0, 1000, 100):
        join.add_messages(
            pa.table({"ts": np.arange(n, n + 100), "k": np.arange(100)}), input="left"
        )
    assert sum(side.buffer.held_bytes for side in join.operator.sides) <= 4_000
    assert join.get_messages("left").column("ts").to_pylist()[-1] == 999
    join.add_message({"ts": 1, "k": 1}, input="left")
    assert join.get_result().late.column("reason").to_pylist() == ["out_of_retention"]


def test_state_of_another_join_is_refused_with_the_difference():
    store = MemoryStore()
    join = LEFT.join(RIGHT, NEAR, on="k").embedded(store=store, now=0)
    join.add_message(row(1), input="left")
    join.flush()
    with pytest.raises(SpecMismatchError, match="`how` was 'inner' and is now 'left'"):
        LEFT.join(RIGHT, NEAR, on="k", how="left").embedded(store=store, now=0)


def test_columns_that_come_later_are_taken_along():
    join = LEFT.join(RIGHT, NEAR, on="k").embedded(now=0)
    join.add_message({"ts": 1, "k": "a", "v": None}, input="left")
    join.add_message({"ts": 2, "k": "a", "v": 5, "w": "x"}, input="left")
    join.add_message({"ts": 1, "k": "a"}, input="right")
    assert told(join, "v", "w") == [("+", None, None), ("+", 5, "x")]


def test_observed_rows_move_watermarks_and_arrivals_do_not():
    spec = LEFT.join(tg.stream(time="ts"), NEAR, on="k", how="left").allow_lateness(0).spec
    join = WindowedJoin(spec, MemoryStore())
    schema = pa.schema({"ts": pa.int64(), "k": pa.string()})
    join.bind(schema, schema)
    left, right = (pa.table({"ts": [ts], "k": ["a"]}) for ts in (10, 40))
    output = join.process_all([Arrival(0, left)], 0, observed=[Arrival(1, right)])
    assert join.renderer().render(output).panes.column("left_ts").to_pylist() == [10]
    assert [side.watermark for side in join.sides] == [MIN, 40]


def test_rows_that_cannot_be_delivered_are_in_late():
    join = WindowedJoin(
        JoinSpec(Input(time="ts", watermark=Explicit()), Input(time="ts"), (NEAR,), (("k", "k"),)),
        MemoryStore(),
    )
    output = join.refuse(
        pa.table({"ts": [1], "k": ["a"]}), 5, "bad_offset", "the offset is null", 1
    )
    late = join.renderer().render(output).late.to_pylist()
    assert [(one["input"], one["reason"], one["detail"]) for one in late] == [
        ("right", "bad_offset", "the offset is null")
    ]
