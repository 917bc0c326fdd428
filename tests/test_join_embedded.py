"""Joins in this process: calls, watermarks of both sides, restarts, what stands before and after
them, and what can be seen from outside.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.errors import InputError
from tidegate.instants import MIN
from tidegate.state.memory import MemoryStore

ORDERS = tg.stream(time="ts", watermark=tg.explicit())
SHIPMENTS = tg.stream(time="at", watermark=tg.explicit())
HOUR = tg.within("1 hour", "1 hour")
MINUTE = 60_000_000


def joined(**words):
    return ORDERS.join(SHIPMENTS, HOUR, **{"on": "id", **words}).allow_lateness("1 minute")


def order(minute, number=1, value=5):
    return {"ts": minute * MINUTE, "id": number, "value": value}


def shipment(minute, number=1, cost=2):
    return {"at": minute * MINUTE, "id": number, "cost": cost}


def pairs(operator):
    panes = operator.get_result().panes.to_pylist()
    operator.flush()
    return [
        (
            pane["op"],
            *(None if pane[name] is None else pane[name] // MINUTE for name in ("ts", "at")),
        )
        for pane in panes
    ]


def test_inputs_are_said_by_name_or_by_number():
    join = joined().embedded(now=0)
    join.add_message(order(0), input=0)
    join.add_messages(pa.table({"at": [10 * MINUTE], "id": [1], "cost": [2]}), input="right")
    assert pairs(join) == [("+", 0, 10)]
    with pytest.raises(InputError, match="no input `middle`"):
        join.add_message(order(0), input="middle")


def test_rows_wait_for_names_that_depend_on_both_sides():
    both = ORDERS.join(
        tg.stream(time="ts", watermark=tg.explicit()), HOUR, on="id", how="left"
    ).early_padding()
    store = MemoryStore()
    join = both.embedded(now=0, store=store)
    join.add_message(order(0), input="left")
    assert join.get_result().panes.num_rows == 0
    assert "waits until the columns of the other side are known" in str(join.explain_watermark())
    join.flush()
    join = both.embedded(now=0, store=store)
    join.add_message({"ts": 0, "id": 1}, input="right")
    panes = join.get_result().panes.to_pylist()
    assert [(pane["op"], pane["left_ts"], pane["right_ts"], pane["value"]) for pane in panes] == [
        ("+", 0, None, 5),
        ("-", 0, None, 5),
        ("+", 0, 0, 5),
    ]
    alone = both.embedded(now=0)
    alone.add_message(order(0), input="left")
    alone.finish()
    assert alone.get_result().panes.num_rows == 1


def test_each_side_is_judged_by_its_own_watermark():
    join = joined().embedded(now=0)
    join.advance_watermark(30 * MINUTE, input="left")
    join.add(left=[order(28), order(29)], right=[shipment(1)])
    result = join.get_result()
    assert result.panes.column("timing").to_pylist() == ["late"]
    assert result.late.select(["input", "class", "reason"]).to_pylist() == [
        {"input": "left", "class": "very_late", "reason": "very_late"}
    ]
    assert join.watermarks == (30 * MINUTE, None)


def test_output_watermarks_are_postponed_by_the_bounds():
    join = joined().embedded(now=0)
    join.add(left=[order(0)], right=[shipment(0)])
    assert join.output_watermark == MIN
    join.advance_watermark(100 * MINUTE, input="left")
    join.advance_watermark(90 * MINUTE, input="right")
    assert join.output_watermarks == {"ts": 30 * MINUTE, "at": 40 * MINUTE}


def test_a_side_that_is_idle_is_not_waited_for():
    join = joined(how="left").embedded(
        now=0, schemas=(None, pa.schema({"at": pa.int64(), "id": pa.int64(), "cost": pa.int64()}))
    )
    join.add_message(order(0), input="left")
    join.advance_watermark(200 * MINUTE, input="left")
    assert pairs(join) == []
    join.mark_idle(input="right")
    assert pairs(join) == [("+", 0, None)]
    join.add_message(shipment(10), input="right")
    assert join.get_result().late.column("reason").to_pylist() == ["very_late"]


def test_a_restart_continues_where_it_was_flushed():
    store = MemoryStore()
    join = joined(how="full").embedded(now=0, store=store)
    join.add(left=[order(0), order(1, 2)], right=[shipment(5)])
    assert pairs(join) == [("+", 0, 5)]
    join = joined(how="full").embedded(now=0, store=store)
    join.add_message(shipment(6, 2), input="right")
    join.add_message(shipment(7, 3), input="right")
    assert pairs(join) == [("+", 1, 6)]
    join.finish()
    assert pairs(join) == [("+", None, 7)]
    again = joined(how="full").embedded(now=0, store=store)
    assert again.finished
    with pytest.raises(InputError, match="finished"):
        again.add_message(order(9), input="left")


def test_pairs_wait_for_the_clock_where_updates_come_in_periods():
    store = MemoryStore()
    words = joined().update_every(on_time="10 seconds")
    join = words.embedded(now=0, store=store)
    join.add(left=[order(0)], right=[shipment(0)], now=3_000_000)
    assert pairs(join) == []
    assert "1 row of the output waits for the clock" in str(join.explain_watermark())
    join = words.embedded(now=4_000_000, store=store)
    join.timeout(9_999_999)
    assert pairs(join) == []
    assert join.operator.next_due == 10_000_000
    join.timeout(10_000_000)
    assert pairs(join) == [("+", 0, 0)]


def test_messages_and_windows_of_a_side_can_be_looked_at():
    join = joined().embedded(now=0)
    join.add(left=[order(0), order(30, 2), order(90)], right=[shipment(10)])
    assert join.get_messages("left", key=1).column("ts").to_pylist() == [0, 90 * MINUTE]
    assert join.get_messages("left", 10 * MINUTE, 40 * MINUTE).column("id").to_pylist() == [2]
    assert join.get_windows("left") == [
        {"window_start": -50 * MINUTE, "window_end": 70 * MINUTE + 1, "count": 2}
    ]
    assert join.get_windows("left", key={"id": 2})[0]["count"] == 1
    assert join.get_messages("right").column_names == ["at", "id", "cost"]
    with pytest.raises(InputError, match="is of type int64, got 'one'"):
        join.get_messages("left", key="one")


def test_what_comes_out_of_a_join_is_windowed_on_one_of_its_times():
    sums = (
        joined(how="left")
        .stream(time="ts", key="id")
        .window(tg.tumbling("1 hour"))
        .aggregate(n=tg.count(), cost=tg.sum("cost"))
        .embedded(now=0)
    )
    join = joined(how="left").embedded(now=0, downstream=sums)
    join.add(left=[order(0), order(70)], right=[shipment(10), shipment(100)])
    join.advance_watermark(60 * MINUTE, input="left")
    assert sums.get_result().panes.num_rows == 0
    join.advance_watermark(121 * MINUTE, input="right")
    panes = sums.get_result().panes.to_pylist()
    assert [(pane["window_start"], pane["n"], pane["cost"]) for pane in panes] == [(0, 1, 2)]
    join.finish()
    assert sums.finished
    assert [
        (pane["window_start"], pane["n"], pane["cost"])
        for pane in sums.get_result().panes.to_pylist()
    ][1:] == [(60 * MINUTE, 2, 4)]


def test_retractions_of_a_window_go_through_a_join():
    clicks = tg.stream(time="ts", key="user", watermark=tg.explicit())
    counts = (
        clicks.window(tg.tumbling("1 minute"))
        .trigger(tg.after_watermark(late=tg.after_count(1)))
        .retracting()
        .aggregate(n=tg.count())
    )
    users = tg.stream(time="since", watermark=tg.explicit())
    named = (
        tg.stream(time="time", watermark=tg.explicit())
        .join(users, tg.within(None, None), on={"user": "name"})
        .embedded(now=0)
    )
    feed = counts.embedded(now=0, downstream=named.port("left"))
    named.add_message({"since": 0, "name": "a", "city": "Bern"}, input="right")
    feed.add_message({"ts": 1, "user": "a"})
    feed.advance_watermark(MINUTE)
    feed.add_message({"ts": 2, "user": "a"})
    panes = named.get_result().panes.to_pylist()
    assert [(pane["op"], pane["user"], pane["n"], pane["city"]) for pane in panes] == [
        ("+", "a", 1, "Bern"),
        ("-", "a", 1, "Bern"),
        ("+", "a", 2, "Bern"),
    ]
    assert panes[0]["pair_id"] == panes[1]["pair_id"] != panes[2]["pair_id"]


def test_a_side_that_ends_ends_the_join_with_the_other():
    join = joined(how="left").embedded(
        now=0, schemas=(None, pa.schema({"at": pa.int64(), "id": pa.int64(), "cost": pa.int64()}))
    )
    left, right = join.port("left"), join.port("right")
    left.add_messages([order(0)])
    right.finish()
    assert not join.finished
    left.finish()
    assert join.finished
    assert pairs(join) == [("+", 0, None)]


def test_what_is_counted_and_what_is_waited_for_is_told():
    join = joined(how="left").embedded(now=0)
    join.add(left=[order(0), order(0), order(1, 2)], right=[shipment(0)])
    found = join.stats()
    assert (
        found["events"],
        found["on_time"],
        found["panes_on_time"],
        found["left_rows"],
        found["right_rows"],
    ) == (4, 4, 2, 3, 1)
    text = str(join.explain_watermark())
    assert "The left side has no watermark yet and holds 3 rows." in text
    assert "1 left row without a partner waits for the right watermark" in text
    assert "at most 10,000 of them" in join.explain()


def test_columns_of_a_join_that_is_a_side_get_a_free_name():
    """The inner join has `left_timing` of its left panes and its own `timing`."""
    counts = (
        tg.stream(time="ts", key="id", watermark=tg.explicit())
        .window(tg.tumbling("1 hour"))
        .aggregate(n=tg.count())
    )
    panes = tg.stream(time="time", key="id", watermark=tg.explicit())
    outer = tg.stream(time="left_time", watermark=tg.explicit()).join(panes, HOUR, on="id")
    last = outer.embedded(now=0)
    inner = panes.join(panes, HOUR, on="id").embedded(now=0, downstream=last.port("left"))
    feeds = [
        counts.embedded(now=0, downstream=port)
        for port in (inner.port("left"), inner.port("right"), last.port("right"))
    ]
    for feed in feeds:
        feed.add_message({"ts": 0, "id": 1})
        feed.finish()
    (row,) = last.get_result().panes.to_pylist()
    assert (row["left_timing"], row["left_left_timing"], row["right_right_timing"]) == (
        "on_time",
        "on_time",
        "on_time",
    )
    assert (row["left_n"], row["right_n"], row["n"]) == (1, 1, 1)


def test_columns_of_an_upstream_without_rows_are_known_downstream():
    """An anti join that emits nothing still names the columns of the join behind it."""
    last = ORDERS.join(SHIPMENTS, HOUR, on="id", how="left").embedded(now=0)
    anti = SHIPMENTS.join(SHIPMENTS, HOUR, on="id", how="anti")
    with anti.embedded(now=0, downstream=last.port("right")) as upstream:
        upstream.add(left=[shipment(0)], right=[shipment(0)])
        last.add_message(order(0, 2), input="left")
        last.advance_watermark(200 * MINUTE, input="left")
        for side in ("left", "right"):
            upstream.advance_watermark(300 * MINUTE, input=side)
    (row,) = last.get_result().panes.to_pylist()
    assert (row["id"], row["cost"], row["at"]) == (2, None, None)


def test_a_join_with_unmatched_rows_is_not_idle_for_its_downstream():
    """Its inputs have ended, and the rows that it still has to pad are not late."""
    last = ORDERS.join(SHIPMENTS, HOUR, on="id", how="right").allow_lateness(0).embedded(now=0)
    anti = SHIPMENTS.join(SHIPMENTS, HOUR, on="id", how="anti")
    upstream = anti.embedded(now=0, downstream=last.port("right"))
    upstream.add(left=[shipment(0)], right=[shipment(0, 2)])
    last.advance_watermark(100 * MINUTE, input="left")
    last.port("left").finish()
    for side in (0, 1):
        upstream.port(side).finish()
    result = last.get_result()
    assert result.late.to_pylist() == []
    assert [(row["op"], row["id"], row["cost"]) for row in result.panes.to_pylist()] == [
        ("+", 1, 2)
    ]


@pytest.mark.parametrize("window", [HOUR, tg.global_window(), tg.within(None, "1 hour")])
def test_rows_that_are_unmatched_until_the_end_of_input_are_not_late_downstream(window):
    """The watermark of a merge waits for them, also when all inputs of the join have ended."""
    counts = (
        tg.merge(orders=ORDERS, missing=tg.stream(time="at", watermark=tg.explicit()))
        .window(tg.tumbling("1 hour"))
        .allow_lateness(0)
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    anti = SHIPMENTS.join(SHIPMENTS, window, on="id", how="anti").allow_lateness(0)
    upstream = anti.embedded(now=0, downstream=counts.port("missing"))
    counts.add_message(order(500), input="orders")
    counts.advance_watermark(500 * MINUTE, input="orders")
    upstream.add(left=[shipment(0)], right=[shipment(0, 2)])
    for side in (0, 1):
        upstream.port(side).finish()
    result = counts.get_result()
    assert result.late.to_pylist() == []
    assert result.panes.column("n").to_pylist() == [1]


@pytest.mark.parametrize("how", ["right", "full"])
def test_a_side_without_a_row_feeds_nulls_into_the_rest_of_the_pipeline(how):
    side = tg.stream(time="t", key="k", watermark=tg.explicit())
    joined = side.join(side, tg.within(1, 1, unit="us"), how=how)
    last = (
        joined.stream(time="right_t", key="k")
        .window(tg.tumbling(10, unit="us"))
        .aggregate(n=tg.count(), first=tg.min("left_t"), most=tg.max("price"))
        .embedded(now=0)
    )
    late = joined.stream(time="left_t").join(side, tg.within(1, 1, unit="us"), on="k")
    for second in (last, late.embedded(now=0)):
        port = second if second is last else second.port("left")
        first = joined.embedded(now=0, downstream=port)
        first.add_messages([{"t": 3, "k": "a"}], input="right")
        first.finish()
    [pane] = last.get_result().panes.to_pylist()
    assert (pane["k"], pane["n"], pane["first"], pane["most"]) == ("a", 1, None, None)
    assert second.get_result().late["reason"].to_pylist() == ["null_time"]
