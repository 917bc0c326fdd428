"""Merges: several streams with columns of their own in one accumulation per window and key."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from tidegate.kernel.watermarks.marks import Watermark
from tidegate.operators import snapshot as stored

ORDERS = tg.stream(time="ts", key="k", watermark=tg.explicit())
CLICKS = tg.stream(time="at", key="k", watermark=tg.explicit())
TEN = tg.tumbling(10, unit="us")
OURS = ("k", "window_start")


def rows(op: tg.EmbeddedOperator, *names: str) -> list[tuple[Any, ...]]:
    """The panes that wait, sorted, and only these columns of them."""
    result = op.get_result()
    op.flush()
    found = result.panes.select(["op", *OURS, *names]).to_pylist()
    return [
        tuple(row.values())
        for row in sorted(found, key=lambda row: (row["k"], row["window_start"]))
    ]


def merged(**aggregates: Any) -> tg.Panes:
    return tg.merge(orders=ORDERS, clicks=CLICKS).window(TEN).aggregate(**aggregates)


# What comes out


def test_aggregates_take_the_messages_of_their_input():
    op = merged(
        spent=tg.sum("price", of="orders"),
        clicks=tg.count(of="clicks"),
        urls=tg.list_("url", of="clicks"),
        n=tg.count(),
        seen=tg.any("seen", of="clicks"),
    ).embedded(now=0)
    op.add_messages(
        [{"ts": 1, "k": "a", "price": 2.5}, {"ts": 12, "k": "a", "price": 1.0}], input="orders"
    )
    op.add_messages(
        [
            {"at": 2, "k": "a", "url": "x", "seen": True},
            {"at": 3, "k": "b", "url": "y", "seen": False},
        ],
        input="clicks",
    )
    op.finish()
    assert rows(op, "spent", "clicks", "urls", "n", "seen") == [
        ("+", "a", 0, 2.5, 1, ["x"], 2, True),
        ("+", "a", 10, 1.0, 0, [], 1, None),
        ("+", "b", 0, None, 1, ["y"], 1, False),
    ]


def test_a_filter_sees_the_rows_of_its_input_only():
    seen: list[set[str]] = []

    def dear(table: pa.Table) -> pa.ChunkedArray:
        seen.append(set(table["input"].to_pylist()))
        return pc.greater(table["price"], 1)

    op = merged(
        dear=tg.count(of="orders", where=dear), n=tg.count(where="good", of="clicks")
    ).embedded(now=0)
    op.add_messages(
        [{"at": 1, "k": "a", "good": True}, {"at": 1, "k": "a", "good": False}], input=1
    )
    op.add_messages([{"ts": 1, "k": "a", "price": 2.5}, {"ts": 2, "k": "a", "price": 1.0}], input=0)
    op.finish()
    assert rows(op, "dear", "n") == [("+", "a", 0, 1, 1)]
    assert set.union(*seen) == {"orders"}


def test_a_late_row_says_which_input_it_is_of():
    op = merged(n=tg.count()).embedded(now=0)
    op.add_messages([{"ts": 1, "k": "a"}], input="orders")
    op.advance_watermark(100_000_000, input="orders")
    op.advance_watermark(100_000_000, input="clicks")
    op.add_messages([{"at": 5, "k": "a", "url": "x"}], input="clicks")
    (late,) = op.get_result().late.to_pylist()
    assert (late["input"], late["url"], late["ts"], late["reason"]) == (
        "clicks",
        "x",
        None,
        "very_late",
    )


def test_an_input_of_a_merge_may_be_a_union():
    shops, web = (
        tg.stream(time="ts", key="k", watermark=tg.explicit()),
        tg.stream(time="ts", key="k", watermark=tg.explicit()),
    )
    panes = (
        tg.merge(orders=tg.union(shops, web), clicks=CLICKS)
        .window(TEN)
        .aggregate(orders=tg.count(of="orders"), clicks=tg.count(of="clicks"))
    )
    op = panes.embedded(now=0)
    for number, row in enumerate([{"ts": 1, "k": "a"}, {"ts": 2, "k": "a"}, {"at": 3, "k": "a"}]):
        op.add_messages([row], input=number)
    with pytest.raises(
        tg.InputError, match=r"union of several inputs. Hint: use the number of one, 0 or 1"
    ):
        op.add_messages([{"ts": 4, "k": "a"}], input="orders")
    op.finish()
    assert rows(op, "orders", "clicks") == [("+", "a", 0, 2, 1)]


def test_ids_and_offsets_of_different_inputs_are_different():
    by_id = [
        tg.stream(time="ts", key="k", id=name, watermark=tg.explicit())
        for name in ("order", "click")
    ]
    op = (
        tg.merge(orders=by_id[0], clicks=by_id[1])
        .window(TEN)
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    for name, column in (("orders", "order"), ("clicks", "click"), ("orders", "order")):
        op.add_messages([{"ts": 1, "k": "a", column: 7}], input=name)
    op.finish()
    assert rows(op, "n") == [("+", "a", 0, 2)]
    by_offset = [
        tg.stream(time="ts", key="k", offset=name, watermark=tg.explicit()) for name in ("o", "p")
    ]
    panes = (
        tg.merge(orders=by_offset[0], clicks=by_offset[1])
        .window(TEN)
        .trigger(tg.repeatedly(tg.after_count(1)))
        .discarding()
    )
    op = panes.aggregate(values=tg.list_("v")).embedded(now=0)
    op.add_messages([{"ts": 1, "k": "a", "o": 1000, "v": 1}], input="orders")
    op.add_messages([{"ts": 2, "k": "a", "p": 5, "v": 2}], input="clicks")
    op.add_messages([{"ts": 2, "k": "a", "o": 1000, "v": 1}], input="orders")
    assert rows(op, "values") == [("+", "a", 0, [1]), ("+", "a", 0, [2])]
    assert op.resume_offsets() == {"0/": 1001, "1/": 6}


# A user's own accumulation


def balance(**more: Any) -> tg.Panes:
    return tg.python(
        zero=lambda: [0, 0],
        add={
            "orders": lambda state, row: [state[0] + row["v"], state[1]],
            "clicks": lambda state, row: [state[0], state[1] + row["w"]],
        },
        merge=lambda left, right: [left[0] + right[0], left[1] + right[1]],
        result=lambda state: state,
        result_type=pa.list_(pa.int64()),
        **more,
    )


TAKEN_BACK = {
    "orders": lambda state, row: [state[0] - row["v"], state[1]],
    "clicks": lambda state, row: [state[0], state[1] - row["w"]],
}


def lift(table: pa.Table, groups: Any) -> dict[str, Any]:
    sign = pc.if_else(pc.equal(table["input"], "orders"), 1, -1).to_numpy()
    return {"balance": groups.sum(sign * pc.coalesce(table["v"], table["w"]).to_numpy())}


@pytest.mark.parametrize("columns", [None, ("v", "w")])
def test_a_merge_accumulation_has_a_function_for_each_input(columns: tuple[str, ...] | None):
    net = tg.columnar(
        lift=lift,
        combine=lambda partials, groups: {"balance": groups.sum(partials["balance"])},
        lower=lambda partials: partials["balance"],
        partial_types={"balance": pa.int64()},
        result_type=pa.int64(),
    )
    op = merged(
        both=balance(columns=columns),
        net=net,
        whole=tg.apply(lambda table: sorted(table["input"].to_pylist()), pa.list_(pa.string())),
    )
    op = op.embedded(now=0)
    op.add_messages([{"ts": 1, "k": "a", "v": 5, "w": None}], input="orders")
    op.add_messages([{"at": 2, "k": "a", "w": 3}, {"at": 3, "k": "b", "w": 4}], input="clicks")
    op.add_messages([{"ts": 4, "k": "a", "v": 6}], input="orders")
    op.finish()
    assert rows(op, "both", "net", "whole") == [
        ("+", "a", 0, [11, 3], 8, ["clicks", "orders", "orders"]),
        ("+", "b", 0, [0, 4], -4, ["clicks"]),
    ]


# Columns that become known later


@pytest.mark.parametrize("restarts", [False, True])
def test_an_input_that_speaks_late_brings_its_columns_and_types(restarts: bool):
    panes = (
        tg.merge(orders=ORDERS, clicks=CLICKS)
        .window(TEN)
        .trigger(tg.repeatedly(tg.after_count(1)))
        .retracting()
        .aggregate(
            values=tg.list_("v", of="orders"),
            urls=tg.list_("url", of="clicks"),
            when=tg.max("when", of="clicks"),
            rows=tg.apply(lambda table: table.num_rows, pa.int64()),
        )
    )
    store = tg.MemoryStore()
    op = panes.embedded(now=0, store=store)
    op.add_messages([{"ts": 1, "k": "a", "v": 5}], input="orders")
    if restarts:
        op.flush()
        op = panes.embedded(now=0, store=store)
    op.add_messages(
        pa.table(
            {"at": [2], "k": ["a"], "url": ["x"], "when": pa.array([1], pa.timestamp("us", "UTC"))}
        ),
        input="clicks",
    )
    op.add_messages([{"ts": 3, "k": "b", "v": 6}], input="orders")
    found = [(op_, k, v, u, n) for op_, k, _, v, u, n in rows(op, "values", "urls", "rows")]
    assert found == [
        ("+", "a", [5], [], 1),
        ("-", "a", [5], [], 1),
        ("+", "a", [5], ["x"], 2),
        ("+", "b", [6], [], 1),
    ]


def test_a_column_must_have_one_type_in_all_inputs():
    op = merged(n=tg.count("v")).embedded(now=0)
    op.add_messages([{"ts": 1, "k": "a", "v": 1.5}], input="orders")
    with pytest.raises(
        tg.InputError,
        match=(
            r"`v` is string in the stream `clicks` and double in another one of the merge. Hint:"
            r" cast or rename"
        ),
    ):
        op.add_messages([{"at": 1, "k": "a", "v": "x"}], input="clicks")
    op.add_messages(
        [{"at": 1, "k": "a", "v": None}, {"at": 1, "k": "a", "v": None}], input="clicks"
    )
    op.add_messages([{"at": 1, "k": "a", "v": 2}], input="clicks")
    # From now on it is known, and a wrong value is that of a row.
    op.add_messages([{"at": 1, "k": "a", "v": "x"}], input="clicks")
    op.finish()
    assert rows(op, "n") == [("+", "a", 0, 2)]


def test_times_are_all_instants_or_all_numbers():
    op = merged(n=tg.count()).embedded(now=0)
    op.add_messages([{"ts": 1, "k": "a"}], input="orders")
    with pytest.raises(tg.InputError, match="are all instants or all numbers"):
        op.add_messages(
            pa.table({"at": pa.array([1], pa.timestamp("us", "UTC")), "k": ["a"]}), input="clicks"
        )


def test_a_column_that_nobody_brings_is_refused_when_that_is_known():
    op = merged(n=tg.sum("price", of="clicks")).embedded(now=0)
    op.add_messages([{"ts": 1, "k": "a", "price": 1}], input="orders")
    with pytest.raises(
        tg.SpecError, match="`n` reads column `price`, but the input `clicks` has `at`, `k`"
    ):
        op.add_messages([{"at": 1, "k": "a"}], input="clicks")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: tg.merge(orders=ORDERS), "two or more streams"),
        (
            lambda: tg.merge(orders=ORDERS, clicks=tg.stream(time="at", key="user")),
            r"same key columns; \['user'\] of `clicks`",
        ),
        (
            lambda: tg.merge(orders=ORDERS, clicks=tg.stream(time="at", key="k", id="id")),
            "some of the merged streams have `id` and some do not",
        ),
        (
            lambda: tg.merge(orders=ORDERS, clicks=tg.stream(time="input", key="k")),
            "has a column `input`",
        ),
        (
            lambda: tg.merge(orders=ORDERS, clicks=tg.stream(time="at", key="k", watermark_key=1)),
            "watermark key of `clicks` is 1",
        ),
        (
            lambda: tg.merge(orders=ORDERS, rest=tg.merge(a=CLICKS, b=CLICKS)),
            "cannot be merged again",
        ),
        (lambda: tg.union(tg.merge(a=CLICKS, b=CLICKS), CLICKS), "cannot be part of a union"),
        (
            lambda: merged(n=tg.count(of="views")),
            "`n` refers to the input `views`; the inputs of the merge are `orders`, `clicks`",
        ),
        (lambda: ORDERS.window(TEN).aggregate(n=tg.count(of="views")), "nothing is merged"),
        (lambda: tg.count(of=1), "`of` of `count` must be the name"),
        (
            lambda: merged(
                n=tg.python(
                    zero=0, add={"orders": max}, merge=max, result=max, result_type=pa.int64()
                )
            ),
            "no function for the input `clicks`",
        ),
        (
            lambda: tg.python(
                zero=0, add={"orders": 1}, merge=max, result=max, result_type=pa.int64()
            ),
            "one for each input of a merge",
        ),
        (lambda: balance(of="orders"), "omit `of`"),
    ],
)
def test_what_cannot_be_merged_is_refused(make: Any, reason: str):
    with pytest.raises(tg.SpecError, match=reason):
        make()


def test_inputs_are_told_by_name_or_number():
    op = merged(n=tg.count()).embedded(now=0)
    with pytest.raises(
        tg.InputError, match="there is no input `views`; inputs are `orders`, `clicks`"
    ):
        op.add_messages([{"ts": 1, "k": "a"}], input="views")
    with pytest.raises(
        tg.InputError, match="has a column `input`, which in a merge is the name of the input"
    ):
        op.add_messages([{"ts": 1, "k": "a", "input": 1}], input="orders")
    plain = ORDERS.window(TEN).aggregate(n=tg.count()).embedded(now=0)
    with pytest.raises(tg.InputError, match="inputs have numbers only"):
        plain.advance_watermark(1, input="orders")


def test_state_of_another_merge_is_refused():
    store = tg.MemoryStore()
    op = merged(n=tg.count()).embedded(now=0, store=store)
    op.add_messages([{"ts": 1, "k": "a"}], input="orders")
    op.flush()
    other = tg.merge(orders=ORDERS, views=CLICKS).window(TEN).aggregate(n=tg.count())
    with pytest.raises(tg.SpecMismatchError, match="`names` was"):
        other.embedded(now=0, store=store)
    assert stored.NAME == "operator"


# Watermarks


class Recorder:
    """A downstream that notes the watermarks that it is told."""

    def __init__(self) -> None:
        self.inputs = (tg.stream(time="time", key="k").input,)
        self.told: list[int] = []
        self.is_refusing = self.finished = False

    def follow(self, upstream: Any) -> None: ...

    def add_messages(self, messages: Any, *, now: Any = None) -> None: ...

    def take_marks(self, marks: Any) -> None:
        self.told += [mark.value for mark in marks if isinstance(mark, Watermark)]

    def timeout(self, now: Any = None) -> None: ...

    def finish(self) -> None: ...

    def flush(self) -> None: ...


def test_the_watermark_is_the_earliest_and_is_passed_on_only_when_it_changes():
    recorder = Recorder()
    op = merged(n=tg.count()).embedded(now=0, downstream=recorder)
    for name, watermark in [
        ("orders", 10),
        ("clicks", 5),
        ("orders", 20),
        ("clicks", 5),
        ("clicks", 12),
        ("orders", 20),
        ("clicks", 30),
    ]:
        op.advance_watermark(watermark, input=name)
    assert recorder.told == [5, 12, 20]


# Retractions


def chained(panes: tg.Panes) -> tuple[tg.EmbeddedOperator, dict[str, tg.EmbeddedOperator]]:
    """A merge of the panes of two operators, which retract."""
    windowed = [
        stream.window(TEN)
        .trigger(tg.after_watermark(late=tg.after_count(1)))
        .retracting()
        .allow_lateness(1000, unit="us")
        for stream in (ORDERS, CLICKS)
    ]
    target = panes.embedded(now=0)
    return target, {
        "orders": (
            windowed[0]
            .aggregate(spent=tg.sum("price"))
            .embedded(now=0, downstream=target.port("orders"))
        ),
        "clicks": (
            windowed[1]
            .aggregate(clicks=tg.count(), worst=tg.max("load"))
            .embedded(now=0, downstream=target.port("clicks"))
        ),
    }


PORTS = tg.merge(orders=tg.stream(time="time", key="k"), clicks=tg.stream(time="time", key="k"))


@pytest.mark.parametrize(
    ("aggregates", "names", "before", "after"),
    [
        (
            {"spent": tg.sum("spent", of="orders"), "clicks": tg.sum("clicks", of="clicks")},
            ("spent", "clicks"),
            (3.0, 1),
            (4.5, 2),
        ),
        (
            {"spent": tg.list_("spent", of="orders"), "worst": tg.max("worst", of="clicks")},
            ("spent", "worst"),
            ([3.0], 7),
            ([4.5], 9),
        ),
        ({"n": tg.count(), "most": tg.max("spent")}, ("n", "most"), (2, 3.0), (2, 4.5)),
    ],
)
@pytest.mark.parametrize("own", [False, True])
def test_retractions_of_each_input_go_through(
    aggregates: Any, names: tuple[str, ...], before: Any, after: Any, own: bool
):
    windowed = PORTS.window(tg.tumbling(20, unit="us")) if own else PORTS.inherit()
    windowed = (
        windowed.trigger(tg.after_watermark(late=tg.after_count(1)))
        .retracting()
        .options(granularity="batch")
    )
    target, upstreams = chained(windowed.aggregate(**aggregates))
    upstreams["orders"].add_messages(
        [{"ts": 1, "k": "a", "price": 1.0}, {"ts": 2, "k": "a", "price": 2.0}]
    )
    upstreams["clicks"].add_messages([{"at": 1, "k": "a", "load": 7}])
    upstreams["orders"].advance_watermark(50)
    assert rows(target) == []
    upstreams["clicks"].advance_watermark(50)
    assert rows(target, *names) == [("+", "a", 0, *before)]
    upstreams["orders"].add_messages([{"ts": 3, "k": "a", "price": 1.5}])
    upstreams["clicks"].add_messages([{"at": 3, "k": "a", "load": 9}])
    found = rows(target, *names)
    assert (found[0], found[-1]) == (("-", "a", 0, *before), ("+", "a", 0, *after))
    for upstream in upstreams.values():
        assert not target.finished
        upstream.finish()
    assert target.finished


def test_a_merge_accumulation_takes_rows_back():
    twice = tg.python(
        zero=0,
        add={
            "orders": lambda state, row: state + row["spent"],
            "clicks": lambda state, row: state - row["clicks"],
        },
        remove={
            "orders": lambda state, row: state - row["spent"],
            "clicks": lambda state, row: state + row["clicks"],
        },
        merge=lambda left, right: left + right,
        result=lambda state: state,
        result_type=pa.float64(),
    )
    windowed = (
        PORTS.inherit()
        .trigger(tg.after_watermark(late=tg.after_count(1)))
        .options(granularity="batch")
    )
    target, upstreams = chained(windowed.aggregate(net=twice))
    upstreams["orders"].add_messages([{"ts": 1, "k": "a", "price": 5.0}])
    upstreams["clicks"].add_messages([{"at": 1, "k": "a", "load": 7}])
    for upstream in upstreams.values():
        upstream.advance_watermark(50)
    upstreams["clicks"].add_messages([{"at": 3, "k": "a", "load": 9}])
    assert rows(target, "net") == [("+", "a", 0, 4.0), ("+", "a", 0, 3.0)]
    assert target.stats()["messages"] == 0


def test_an_input_without_an_upstream_stands_beside_one_that_retracts():
    panes = tg.merge(orders=tg.stream(time="time", key="k"), clicks=CLICKS).window(
        tg.tumbling(20, unit="us")
    )
    panes = panes.trigger(tg.repeatedly(tg.after_count(1))).aggregate(
        spent=tg.sum("spent", of="orders"), n=tg.count(of="clicks")
    )
    store = tg.MemoryStore()

    def opened(target: tg.EmbeddedOperator, kept: tg.MemoryStore) -> tg.EmbeddedOperator:
        early = (
            ORDERS.window(TEN)
            .trigger(tg.repeatedly(tg.after_count(1)))
            .retracting()
            .aggregate(spent=tg.sum("price"))
        )
        return early.embedded(now=0, downstream=target.port(0), store=kept)

    target, kept = panes.embedded(now=0, store=store), tg.MemoryStore()
    orders = opened(target, kept)
    orders.add_messages([{"ts": 1, "k": "a", "price": 1.0}])
    target.add_messages([{"at": 1, "k": "a"}], input="clicks")
    orders.flush()
    target = panes.embedded(now=0, store=store)
    orders = opened(target, kept)
    target.add_messages([{"at": 2, "k": "a"}], input="clicks")
    orders.add_messages([{"ts": 3, "k": "a", "price": 2.0}])
    assert rows(target, "spent", "n")[-1] == ("+", "a", 0, 3.0, 2)


def test_an_upstream_cannot_come_after_messages():
    target = PORTS.window(TEN).aggregate(n=tg.count()).embedded(now=0)
    target.add_messages([{"time": 1, "k": "a"}], input=1)
    with pytest.raises(tg.StateError, match="connect it before the first message"):
        ORDERS.window(TEN).aggregate(n=tg.count()).embedded(now=0, downstream=target.port(0))
    with pytest.raises(tg.InputError, match="there is no input 2"):
        target.port(2)


UPDATES = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(0, 25),
        st.sampled_from("ab"),
        st.integers(-5, 5),
        st.integers(0, 40),
    ),
    max_size=25,
)


@given(updates=UPDATES, subtracts=st.booleans(), own=st.booleans())
def test_retractions_leave_what_all_messages_give(updates: list[Any], subtracts: bool, own: bool):
    best = (
        {}
        if subtracts
        else {"most": tg.max("spent", of="orders"), "worst": tg.list_("worst", of="clicks")}
    )
    windowed = PORTS.window(tg.tumbling(20, unit="us")) if own else PORTS.inherit()
    windowed = windowed.trigger(tg.after_watermark(late=tg.after_count(1))).allow_lateness(
        1000, unit="us"
    )
    target, upstreams = chained(
        windowed.aggregate(
            spent=tg.sum("spent", of="orders"),
            clicks=tg.sum("clicks", of="clicks"),
            n=tg.count(),
            **best,
        )
    )
    prices: dict[Any, list[float]] = defaultdict(list)
    loads: dict[Any, list[int]] = defaultdict(list)
    for number, time, key, value, watermark in updates:
        if number:
            upstreams["clicks"].add_messages([{"at": time, "k": key, "load": value}])
            loads[key, time // 10 * 10].append(value)
        else:
            upstreams["orders"].add_messages([{"ts": time, "k": key, "price": float(value)}])
            prices[key, time // 10 * 10].append(float(value))
        upstreams["clicks" if number else "orders"].advance_watermark(watermark)
    for upstream in upstreams.values():
        upstream.finish()
    size = 20 if own else 10
    found = {
        (row["k"], row["window_start"]): row
        for row in target.get_result().panes.to_pylist()
        if row["n"]
    }
    assert found.keys() == {
        (key, start // size * size) for key, start in prices.keys() | loads.keys()
    }
    for (key, start), row in found.items():
        inside = [(key, at) for at in range(start, start + size, 10)]
        spent, clicks = (
            [places[place] for place in inside if place in places] for places in (prices, loads)
        )
        assert (row["spent"], row["clicks"]) == (
            sum(map(sum, spent)) if spent else None,
            sum(map(len, clicks)) if clicks else None,
        )
        assert row["n"] == len(spent) + len(clicks)
        if not subtracts:
            assert row["most"] == max(map(sum, spent), default=None)
            assert sorted(row["worst"]) == sorted(map(max, clicks))


# A merge is the separate aggregates of its streams

WINDOWS = [TEN, tg.hopping(10, 5, unit="us"), tg.cumulative(20, 10, unit="us")]
MESSAGES = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(0, 40),
        st.sampled_from("ab"),
        st.one_of(st.none(), st.integers(-5, 5)),
    ),
    max_size=30,
)


def aggregates_of(column: str, of: str | None) -> dict[str, tg.Panes]:
    found = {
        "total": tg.sum(column, of=of),
        "n": tg.count(of=of),
        "all": tg.list_(column, of=of),
        "least": tg.min(column, of=of),
    }
    return {**found, "first": tg.first(column, of=of), "distinct": tg.count_distinct(column, of=of)}


@given(
    messages=MESSAGES,
    window=st.sampled_from(WINDOWS),
    cuts=st.lists(st.booleans(), min_size=30, max_size=30),
    keeps=st.booleans(),
)
def test_each_side_is_what_its_stream_alone_gives(
    messages: list[Any], window: Any, cuts: list[bool], keeps: bool
):
    columns, names = ("v", "w", "v"), ("x", "y", "z")
    streams = {name: tg.stream(time="ts", key="k", watermark=tg.explicit()) for name in names}
    kinds = (
        ("total", "n", "all", "least", "first", "distinct")
        if keeps
        else ("total", "n", "least", "distinct")
    )
    asked = {
        f"{name}_{kind}": aggregate
        for name, column in zip(names, columns, strict=True)
        for kind, aggregate in aggregates_of(column, name).items()
        if kind in kinds
    }
    panes, store = tg.merge(**streams).window(window).aggregate(**asked), tg.MemoryStore()
    op = panes.embedded(now=0, store=store)
    alone = {
        name: (
            stream.window(window)
            .aggregate(**{k: a for k, a in aggregates_of(column, None).items() if k in kinds})
            .embedded(now=0)
        )
        for (name, stream), column in zip(streams.items(), columns, strict=True)
    }
    for (number, time, key, value), restarts in zip(messages, cuts, strict=False):
        message = [{"ts": time, "k": key, columns[number]: value}]
        op.add_messages(message, input=number)
        alone[names[number]].add_messages(message)
        if restarts:
            op.flush()
            op = panes.embedded(now=0, store=store)
    op.finish()
    found = {
        (row["k"], row["window_start"], row["window_end"]): row
        for row in op.get_result().panes.to_pylist()
    }
    nothing = {"total": None, "n": 0, "all": [], "least": None, "first": None, "distinct": 0}
    wanted: dict[Any, dict[str, Any]] = defaultdict(dict)
    for name, single in alone.items():
        single.finish()
        for row in single.get_result().panes.to_pylist():
            wanted[row["k"], row["window_start"], row["window_end"]].update(
                {f"{name}_{kind}": row[kind] for kind in kinds}
            )
    assert found.keys() == wanted.keys()
    for where, row in found.items():
        expected = {f"{name}_{kind}": nothing[kind] for name in names for kind in kinds} | wanted[
            where
        ]
        assert {name: row[name] for name in expected} == expected
