"""Specifications printed as SQL are read as the same specifications."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import tidegate as tg
from support import join_strategies, soak_worker, strategies
from support.examples import examples
from support.join_machines import specification
from support.sql_queries import planned
from tidegate.api.joins import Joined
from tidegate.api.streams import Panes
from tidegate.errors import SpecError
from tidegate.instants import MAX
from tidegate.spec.operator import Options, Retention


def again(pipeline):
    """The specification of the script of a pipeline."""
    plan, _ = planned(pipeline.to_sql())
    return plan.branches[0].root.spec


@examples(100)
@given(strategies.configs())
def test_random_aggregates_come_back_as_the_same(config):
    spec = soak_worker.specification(config).spec
    assert again(Panes(spec)) == spec


def settled(bound):
    """The bound with an end that it does not have as an included one, as SQL writes it."""
    closed = bound.closed
    if bound.before is None:
        closed = {"right": "both", "neither": "left"}.get(closed, closed)
    if bound.after is None:
        closed = {"left": "both", "neither": "right"}.get(closed, closed)
    return dataclasses.replace(bound, closed=closed)


@examples(100)
@given(join_strategies.configs(periods=True, retention=True))
def test_random_joins_come_back_as_the_same(config):
    spec = dataclasses.replace(specification(config), where=None)
    # Several bounds of the same two columns are one bound in SQL.
    pairs = [(one.left, one.right) for one in spec.bounds]
    assume(len(set(pairs)) == len(pairs))
    if isinstance(spec.window, tuple):
        spec = dataclasses.replace(spec, window=tuple(map(settled, spec.window)))
    assert again(Joined(spec)) == spec


AGGREGATES = {
    "a": tg.count(),
    "b": tg.count("v", where="ok"),
    "c": tg.count("v", distinct=True),
    "d": tg.sum("v", distinct=True),
    "e": tg.mean("v"),
    "f": tg.variance("v"),
    "g": tg.variance("v", ddof=0),
    "h": tg.stddev("v", ddof=3),
    "i": tg.first("v"),
    "j": tg.last("v", ignore_nulls=True, where="ok"),
    "k2": tg.arg_min("v", "w"),
    "l": tg.arg_max("v", "w", distinct=True),
    "m": tg.any("v"),
    "n": tg.all("v"),
    "o": tg.approx_distinct("v"),
    "p": tg.quantile("v", 0.5),
    "q": tg.quantile("v", [0.1, 0.9], exact=True),
    "r": tg.median("v", distinct=True),
    "s": tg.top_k("v", 3),
    "t": tg.top_k("v", 3, "w"),
    "u": tg.top_k("v", 3, "w", ascending=[True, False]),
    "x": tg.distinct("v"),
    "y": tg.count_distinct("a`b 'c\\"),
    "z": tg.list_("v"),
    "z2": tg.list_("v", ignore_nulls=True),
    "same": tg.sum("v"),
    "again": tg.sum("v"),
    "v": tg.min("v"),
}


@pytest.mark.parametrize("name", AGGREGATES)
def test_every_aggregate_comes_back_as_the_same(name):
    pipeline = (
        tg.stream(time="ts", key=["k", "select"])
        .window(tg.tumbling("1 minute"))
        .aggregate(**{name: AGGREGATES[name]})
    )
    assert again(pipeline) == pipeline.spec


def test_all_aggregates_together():
    pipeline = tg.stream(time="ts", key="k").window(tg.tumbling("1 hour")).aggregate(**AGGREGATES)
    assert again(pipeline) == pipeline.spec


WATERMARKS = [
    tg.explicit(idle_after="1 minute"),
    tg.lagging("5 seconds"),
    tg.ascending(idle_after="1 minute"),
    tg.bounded("3 seconds", partitions=["a", "b'c"], align="1 minute", realign=True),
    tg.punctuated("mark"),
    tg.punctuated(marker="is_mark"),
    tg.noted(writers=2, forget_after="1 day"),
    tg.per_key("1 second", floor="1 minute", max_keys=5),
]


@pytest.mark.parametrize("watermark", WATERMARKS, ids=lambda mark: type(mark).__name__)
def test_every_watermark_comes_back_as_the_same(watermark):
    pipeline = (
        tg.stream(
            time="ts",
            key="k",
            partition="p",
            id="id",
            watermark=watermark,
            watermark_key=4,
            times={"t2": tg.bounded("1 second"), "t3": (9, tg.explicit())},
        )
        .window(tg.tumbling("1 minute"))
        .aggregate(n=tg.count())
    )
    assert again(pipeline) == pipeline.spec


WINDOWS = [
    tg.calendar("month", 3, zone="Europe/Berlin", year_start="04-06"),
    tg.calendar("week", 2, offset="6 hours", create="static"),
    tg.session(gap_column="gap", touch="merge"),
    tg.session(5, axis="offset"),
    tg.cumulative("1 hour", "10 minutes", offset="1 minute", axis="clock"),
    tg.hopping(4, 2, axis="ordinal"),
    tg.sliding("1 minute"),
    tg.tumbling("1 minute", create="static"),
    tg.global_window(axis="clock"),
]


@pytest.mark.parametrize("window", WINDOWS, ids=repr)
def test_every_window_comes_back_as_the_same(window):
    pipeline = tg.stream(time="ts", key="k", offset="o").window(window).aggregate(n=tg.count())
    assert again(pipeline) == pipeline.spec


retentions = st.builds(
    Retention,
    *([st.none() | st.integers(1, 10**15)] + [st.none() | st.integers(1, 10**6)] * 3),
)
evictors = st.one_of(
    st.none(),
    st.builds(tg.evict_count, st.integers(0, 9), after=st.booleans()),
    st.builds(tg.evict_time, st.integers(0, 10**12), after=st.booleans(), unit=st.just("us")),
    st.builds(tg.evict_delta, st.just("v"), st.floats(0, 9), after=st.booleans()),
)
options = st.builds(
    Options,
    drop_by=st.sampled_from(["event", "window"]),
    future_tolerance=st.integers(0, 10**12),
    closing=st.sampled_from(["if_nonempty", "always", "never"]),
    timestamp=st.sampled_from(["end_of_window", "earliest"]),
    strict=st.booleans(),
    keep_messages=st.booleans(),
)


@examples(100)
@given(
    strategies.triggers,
    st.sampled_from(["accumulating", "discarding", "retracting"]),
    st.none() | st.sampled_from([0, 1, 10**6, MAX]),
    retentions,
    evictors,
    options,
)
def test_random_clauses_come_back_as_the_same(trigger, mode, lateness, retained, evictor, chosen):
    plain = tg.stream(time="ts", key="k").window(tg.tumbling("1 minute")).aggregate(n=tg.count())
    spec = dataclasses.replace(
        plain.spec,
        trigger=trigger,
        mode=mode,
        allowed_lateness=lateness,
        retention=retained,
        evictor=evictor,
        options=chosen,
    )
    assert again(Panes(spec)) == spec


def test_unions_and_chains_come_back_as_the_same():
    streams = [tg.stream(time=time, key="k", offset="o") for time in ("ts", "at")]
    united = tg.union(*streams).window(tg.tumbling("1 minute")).aggregate(n=tg.sum("v", where="w"))
    assert again(united) == united.spec
    counted = [one.window(tg.tumbling("1 minute")).aggregate(n=tg.count()) for one in streams]
    over = tg.union(*(tg.stream(one, key="k") for one in counted))
    assert again(over.window(tg.tumbling("1 hour")).aggregate(n=tg.sum("n"))) == (
        over.window(tg.tumbling("1 hour")).aggregate(n=tg.sum("n")).spec
    )
    first = (
        tg.stream(time="ts", key=["city", "user"])
        .window(tg.tumbling("1 minute"))
        .retracting()
        .aggregate(clicks=tg.count())
    )
    for second in (
        tg.stream(first, key="city").aggregate(users=tg.count(), most=tg.max("clicks")),
        tg.stream(first, key="city").window(tg.tumbling("1 hour")).aggregate(n=tg.sum("clicks")),
    ):
        plan, _ = planned(second.to_sql())
        root = plan.branches[0].root
        assert root.spec == second.spec
        assert root.sources[0].spec == first.spec


def test_merges_come_back_as_the_same():
    merged = tg.merge(
        orders=tg.stream(time="ordered", key="k"), clicks=tg.stream(time="clicked", key="k")
    )
    pipeline = merged.window(tg.tumbling("1 minute")).aggregate(
        n=tg.count(), clicks=tg.count(of="clicks"), spent=tg.sum("price", of="orders")
    )
    assert again(pipeline) == pipeline.spec


def test_functions_have_no_form_in_sql():
    stream = tg.stream(time="ts")
    for pipeline in (
        stream.window(tg.custom(lambda times, _: (times, times + 1), name="own")).aggregate(
            n=tg.count()
        ),
        stream.window(tg.tumbling("1 s")).aggregate(n=tg.count(where=lambda rows: rows["ok"])),
        tg.stream(time=lambda rows: rows["ts"]).window(tg.tumbling("1 s")).aggregate(n=tg.count()),
    ):
        with pytest.raises(SpecError, match="has no form in SQL"):
            pipeline.to_sql()
