"""Windows on the clock come to the same panes whether their rows travel one by one or aggregated."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from support.examples import examples
from support.spark_fakes import Columns, Fleet, Found, shipped
from test_edge import check
from test_edge import edge_of as plain_edge_of
from test_pre_aggregation import SCHEMA as EVENTS
from test_pre_aggregation import STAMP, THREE, aggregated
from tidegate.api.running import plan_of
from tidegate.instants import MIN
from tidegate.operators.aggregate import pre_aggregation as combining
from tidegate.operators.aggregate.pre_aggregation import PreAggregator, can_combine
from tidegate.spark.tasks.batch import batch_function
from tidegate.spark.tasks.chain import ChainPlan
from tidegate.spark.tasks.edge import MARK, Edge
from tidegate.spark.tasks.transport import COMBINED, OBSERVED, ROWS
from tidegate.spec.operator import OPTIONAL_COLUMNS
from tidegate.spec.triggers import Default
from tidegate.spec.windows import Axis, Hopping

SCHEMA = EVENTS.append(pa.field("number", pa.int64()))
TEXTS, TICKS = (
    SCHEMA.set(SCHEMA.get_field_index("t"), pa.field("t", kind))
    for kind in (pa.string(), pa.int64())
)
DAY = 86_400_000_000
Delivery = tuple[int, list[list[dict[str, Any]]]]
"""How far the machine's clock moves before a batch, and the rows of its tasks."""


def panes(window: Any, source: Any = None, **given_input: Any) -> Any:
    given_input = {"time": "t", "key": "k", **given_input}
    return tg.stream(source, **given_input).window(window)


def edge_of(spec: Any, schema: pa.Schema = SCHEMA) -> Edge:
    return dataclasses.replace(
        plain_edge_of(spec, layout=THREE), combiner=PreAggregator(spec, schema, THREE.hasher)
    )


def table(rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> pa.Table:
    """The rows as a DataFrame delivers them: it has marks if a row is malformed."""
    if any(MARK in row for row in rows):
        schema = schema.append(pa.field(MARK, pa.string()))
    return pa.Table.from_pylist(rows, schema)


@dataclass(frozen=True)
class Shown:
    """What a query shows after a batch."""

    found: Found
    shards: list[dict[str, Any]]
    """The stored summary of each shard: counters, watermark, newest event, clock, open windows."""

    @classmethod
    def of(cls, fleet: Fleet, found: Found) -> Shown:
        stored = {"bytes", "digest", "checksum", "document_checksum"}
        return cls(
            found,
            [
                {name: value for name, value in summary.items() if name not in stored}
                | {"counters": {name: n for name, n in summary["counters"].items() if n}}
                for summary in fleet.stages[0].summaries()
            ],
        )


def run(
    spec: Any, edge: Edge, schema: pa.Schema, history: list[Delivery], *, forgetful: bool
) -> list[Shown]:
    """What shards show batch by batch, and when the clock has reached the end of all windows."""
    plan = ChainPlan((spec,), schema, included=tuple(OPTIONAL_COLUMNS))
    fleet, now, shown = Fleet([plan], [edge], THREE), 1_000, []
    fleet.forget_workers()
    for step, tasks in history:
        if forgetful:
            fleet.forget_workers()
        now += step
        given_tables = [(0, n, [table(part, schema)]) for n, part in enumerate(tasks) if part]
        found = fleet.deliver(given_tables, now, batch=1)
        shown.append(Shown.of(fleet, found))
    found = fleet.wake(now + 3 * DAY, all_timers=True)
    return [*shown, Shown.of(fleet, found)]


def check_history(
    spec: Any, schema: pa.Schema, history: list[Delivery], *, forgetful: bool
) -> list[Shown]:
    """Compare shards that get partial aggregates with shards that get all rows."""
    assert can_combine(spec)
    combined, single = edge_of(spec, schema), plain_edge_of(spec, layout=THREE)
    assert single.combiner is None
    with pytest.MonkeyPatch().context() as patched:
        patched.setattr(combining, "_WORTH_IT", 1.0)
        have, want = (
            run(spec, edge, schema, history, forgetful=forgetful) for edge in (combined, single)
        )
    for one, other in zip(have, want, strict=True):
        check(one.found, other.found, spec.input.key)
        assert one.shards == other.shards
    return have


windows = st.sampled_from(
    [
        tg.tumbling("10 us", axis="clock"),
        tg.tumbling("10 us", offset="3 us", axis="clock"),
        tg.hopping("20 us", "5 us", axis="clock"),
        tg.hopping("25 us", "10 us", axis="clock"),
        tg.cumulative("20 us", "5 us", axis="clock"),
        tg.calendar("day", axis="clock"),
        tg.global_window(axis="clock"),
    ]
)
rows = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["a", "b", None]),
        "number": st.sampled_from([1, 2, None]),
        "t": st.one_of(st.integers(0, 60), st.none(), st.just(10**15)),
        "v": st.one_of(st.none(), st.integers(-5, 5), st.integers(2**62, 2**63 - 1)),
        "f": st.one_of(st.none(), st.booleans()),
        "writer": st.sampled_from(["x", "y", None]),
        "noted": st.one_of(st.none(), st.integers(0, 60)),
    }
)
malformed = rows.map(lambda row: {**row, "v": None, MARK: "`v` is 'many'"})
histories = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 4, 10, 35, 1_000, -3, -500]),
        st.lists(
            st.lists(st.one_of(rows, rows, rows, malformed), max_size=8), min_size=1, max_size=3
        ),
    ),
    max_size=5,
)


@st.composite
def configured(draw: st.DrawFn) -> Any:
    windowed = panes(
        draw(windows),
        time=draw(st.sampled_from(["t", "t", None])),
        key=draw(st.sampled_from(["k", "number", ("k", "number"), None])),
        watermark=draw(st.sampled_from([None, tg.bounded("5 us"), tg.lagging("3 us"), tg.noted()])),
    ).options(
        on_time=draw(st.sampled_from(["always", "if_nonempty", "if_updated"])),
        closing=draw(st.sampled_from(["always", "if_nonempty", "never"])),
        timestamp=draw(
            st.sampled_from(["end_of_window", "earliest", "latest", lambda one: one["latest"]])
        ),
        future=draw(st.sampled_from(["process", "reject"])),
    )
    trigger = draw(st.sampled_from([None, tg.after_watermark(), Default(), tg.never()]))
    windowed = windowed if trigger is None else windowed.trigger(trigger)
    modes = [windowed.accumulating(), windowed.discarding(), windowed.retracting()]
    return aggregated(draw(st.sampled_from(modes))).spec


@pytest.mark.slow
@examples(80)
@given(configured(), histories, st.booleans())
def test_panes_on_the_clock_are_the_same_as_those_of_rows_one_by_one(spec, history, forgetful):
    check_history(spec, SCHEMA, history, forgetful=forgetful)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "readable", "other"),
    [(TEXTS, "1970-01-01T00:00:07Z", "soon"), (TICKS, 7, MIN)],
    ids=["texts", "ticks"],
)
@examples(20)
@given(spec=configured(), history=histories)
def test_rows_with_unreadable_times_are_late_as_before(schema, readable, other, spec, history):
    told = [
        (step, [[{**row, "t": readable if row["f"] else other} for row in part] for part in tasks])
        for step, tasks in history
    ]
    check_history(spec, schema, told, forgetful=False)


def kinds(edge: Edge, given_table: pa.Table, batch: int | None = 1) -> list[str]:
    return sorted(
        {row.kind for row in shipped(edge.pack(iter(given_table.to_batches()), 0, 0, batch))}
    )


def many(n: int = 8192, **more: Any) -> pa.Table:
    return table(
        [{"k": str(row % 5), "t": row % 5000, "v": 1, "f": True, **more} for row in range(n)]
    )


@pytest.mark.parametrize(
    "window",
    [
        tg.tumbling("10 us", axis="clock"),
        tg.hopping("20 us", "5 us", axis="clock"),
        tg.calendar("day", axis="clock"),
    ],
    ids=["tumbling", "hopping", "calendar"],
)
@pytest.mark.parametrize("time", ["t", None])
@pytest.mark.parametrize("key", ["k", None])
def test_rows_of_any_time_travel_as_partial_aggregates_without_watermark_files(window, time, key):
    pipeline = aggregated(panes(window, Columns(SCHEMA), time=time, key=key))
    edge = Fleet.of(pipeline, THREE).edges[0]
    assert kinds(edge, many()) == [COMBINED, OBSERVED]
    assert kinds(edge, many(), batch=None) == [COMBINED, OBSERVED]
    assert kinds(edge, many(t=None)) == ([COMBINED, OBSERVED] if time is None else [OBSERVED, ROWS])


def test_only_windows_on_event_time_need_watermark_files(tmp_path):
    def used(axis: str) -> int:
        pipeline = aggregated(panes(tg.tumbling("10 us", axis=axis), Columns(SCHEMA)))
        plan = plan_of(pipeline).for_query(silence=1, ends=False, checkpoint=str(tmp_path))
        assert plan.edge(0, plan.sources[0], THREE).combiner is not None
        return len(plan.used_watermark_files)

    assert (used("event_time"), used("clock")) == (1, 0)


def test_the_clock_of_the_shard_decides_the_window():
    """The machine's clock steps back: that of a shard goes on from where it was."""
    spec = aggregated(panes(tg.tumbling("10 us", axis="clock")).trigger(tg.after_watermark())).spec
    one = [{"k": "a", "t": 5, "v": 1, "f": True}] * 4
    shown = check_history(spec, SCHEMA, [(0, [one, one]), (-500, [one])], forgetful=True)
    assert [
        (row["window_start"], row["window_end"], row["n"])
        for after in shown
        for row in after.found.panes
    ] == [(tick(1000), tick(1010), 12)]


def in_a_batch(spec: Any, edge: Edge, tables: list[pa.Table]) -> Found:
    """What a batch query returns, whose clock is that of its start."""
    shuffled = [row for n, one in enumerate(tables) for row in shipped(edge.pack([one], n, 1_000))]
    function, found = batch_function(ChainPlan((spec,), SCHEMA), THREE, 1_007), Found()
    for shard in THREE.ids:
        rows = [dataclasses.asdict(row) for row in shuffled if row.shard == shard]
        for batch in function((pa.scalar(shard),), iter([pa.RecordBatch.from_pylist(rows)])):
            for row in batch.to_pylist():
                found.take(row["output"], row["payload"])
    return found


@pytest.mark.parametrize("time", ["t", None])
def test_a_batch_query_has_the_same_panes(time):
    window = tg.hopping("20 us", "5 us", axis="clock")
    spec = aggregated(panes(window, time=time).trigger(tg.after_watermark())).spec
    batches = [many(2_000, k=key).combine_chunks().to_batches()[0] for key in ("a", "b", None)]
    have, want = (
        in_a_batch(spec, edge, batches) for edge in (edge_of(spec), plain_edge_of(spec, 0, THREE))
    )
    check(have, want, ("k",))
    assert sum(row["n"] for row in have.panes) == 4 * 6_000
    assert have.metrics == want.metrics


def tick(microseconds: int) -> Any:
    return pa.scalar(microseconds, STAMP).as_py()


@pytest.mark.parametrize(
    "windowed",
    [
        panes(tg.session("10 us", axis="clock")),
        panes(Hopping(5, 10, axis=Axis.CLOCK)),
        panes(tg.tumbling("10 us", axis="clock", create="static")),
        panes(tg.tumbling("10 us", axis="clock"), id="v"),
        panes(tg.tumbling("10 us", axis="clock"), offset="v"),
        panes(tg.tumbling("10 us", axis="clock")).trigger(tg.every_element()),
        panes(tg.tumbling("10 us", axis="clock")).retain(windows=3),
        panes(tg.tumbling(10, axis="offset"), offset="v"),
    ],
    ids=["sessions", "gaps", "static", "id", "offset", "elements", "windows", "offsets"],
)
def test_what_has_to_be_seen_one_by_one_on_the_clock_is_not_combined(windowed):
    assert not can_combine(aggregated(windowed).spec)
