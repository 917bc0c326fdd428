"""Rows that are aggregated on their way to the operator come to the same panes as rows that travel one by one."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidegate as tg
from spark_fakes import Fleet, shipped
from test_edge import Whole, check
from tidegate.errors import StateError
from tidegate.instants import MIN
from tidegate.operators import combining
from tidegate.operators.combining import Combiner, can_combine
from tidegate.operators.delivery import Arrival
from tidegate.spark.chain import ChainPlan
from tidegate.spark.edge import Edge
from tidegate.spark.floors import Floors
from tidegate.spark.shards import Layout
from tidegate.spark.wire import COMBINED, ROWS
from tidegate.spec.windows import Hopping

THREE = Layout.balanced(3)
SCHEMA = pa.schema([("k", pa.string()), ("t", pa.timestamp("us", "UTC")), ("v", pa.int64()), ("f", pa.bool_())])


@dataclass(frozen=True)
class Known(Floors):
    """What the shards of a fleet have as watermarks, without files."""

    checkpoint: str = ""
    operator: str = "0"
    fleet: list[Fleet] = field(default_factory=list, hash=False, compare=False)

    def before(self, batch: int, layout: Layout) -> int | None:
        return max(self.fleet[0].stages[0].watermarks(), default=MIN)


def panes(window: Any = None, **input: Any) -> Any:
    given_stream = tg.stream(time="t", key="k", watermark=tg.bounded("5 us"), **input)
    return given_stream.window(tg.tumbling("10 us") if window is None else window)


def aggregated(windowed: Any) -> Any:
    return windowed.aggregate(n=tg.count(), total=tg.sum("v"), least=tg.min("v"), most=tg.max("v"), mean=tg.mean("v"), some=tg.count(where="f"))


def edge_of(spec: Any, **more: Any) -> Edge:
    return Edge(spec.input, THREE, 0, spec.options.future_tolerance, combiner=Combiner(spec, SCHEMA), **more)


windows = st.sampled_from(
    [tg.tumbling("10 us"), tg.hopping("20 us", "5 us"), Hopping(3, 10), tg.cumulative("20 us", "5 us"), tg.hopping("15 us", "10 us")]
)
rows = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["a", "b", None]),
        "t": st.one_of(st.integers(0, 60), st.none(), st.integers(200, 210)),
        "v": st.one_of(st.none(), st.integers(-5, 5), st.integers(2**62, 2**63 - 1)),
        "f": st.one_of(st.none(), st.booleans()),
    }
)


@st.composite
def configured(draw: st.DrawFn) -> Any:
    windowed = panes(draw(windows)).allow_lateness(draw(st.integers(0, 15)), unit="us")
    windowed = windowed.options(
        drop_by=draw(st.sampled_from(["event", "window"])),
        timestamp=draw(st.sampled_from(["end_of_window", "earliest", "latest"])),
        future=draw(st.sampled_from(["process", "reject"])),
        future_tolerance="50 us",
    )
    trigger = draw(st.sampled_from([None, tg.after_watermark(), tg.after_watermark(late=tg.after_count(1))]))
    windowed = windowed if trigger is None else windowed.trigger(trigger)
    return aggregated(draw(st.sampled_from([windowed.accumulating(), windowed.discarding(), windowed.retracting()]))).spec


def table(given_rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(given_rows, SCHEMA)


@pytest.mark.slow
@settings(max_examples=60)
@given(configured(), st.lists(st.lists(st.lists(rows, max_size=8), min_size=1, max_size=3), max_size=5), st.booleans())
def test_panes_are_the_same_as_those_of_rows_one_by_one(spec, history, forgetful):
    assert can_combine(spec)
    with pytest.MonkeyPatch().context() as patched:
        patched.setattr(combining, "_WORTH_IT", 1.0)
        known = Known()
        fleet = Fleet([ChainPlan((spec,), SCHEMA)], [edge_of(spec, floors=known)], THREE)
        known.fleet.append(fleet)
        fleet.forget_workers()
        whole, now = Whole(spec, SCHEMA), 100
        for tasks in history:
            if forgetful:
                fleet.forget_workers()
            now += 10
            have = fleet.deliver([(0, number, [table(part)]) for number, part in enumerate(tasks) if part], now, batch=1)
            want = whole.deliver([Arrival(0, table([row for part in tasks for row in part]))], now)
            check(have, want, ("k",))
        now += 20_000_000
        check(fleet.wake(now, all_timers=True), whole.wake(now), ("k",))
        counts = [dict(counters) for counters in (fleet.counters(), whole.operator.operator.progress.counters)]
        names = ("events", "on_time", "mildly_late", "very_late", "future", "unreadable")
        assert [counts[0].get(name, 0) for name in names] == [counts[1].get(name, 0) for name in names]


def kinds(edge: Edge, given_table: pa.Table, batch: int | None = 1) -> list[str]:
    return sorted({row.kind for row in shipped(edge.pack(iter(given_table.to_batches()), 0, 0, batch))})


def many(keys: int, n: int = 8192) -> pa.Table:
    return table([{"k": str(number % keys), "t": number % 50, "v": 1, "f": True} for number in range(n)])


def test_a_batch_that_would_not_shrink_travels_as_it_is():
    edge = edge_of(aggregated(panes()).spec)
    assert COMBINED in kinds(edge, many(5))
    assert ROWS not in kinds(edge, many(5))
    assert COMBINED not in kinds(edge, many(8192))
    assert COMBINED not in kinds(edge, many(5, n=1))


def test_rows_below_the_floor_travel_as_they_are(tmp_path):
    floors = Floors(str(tmp_path))
    edge = edge_of(aggregated(panes()).spec, floors=floors)
    assert COMBINED not in kinds(edge, many(5)), "nothing is known of the shards"
    for shard in THREE.ids:
        floors.leave(shard, 4, 20)
    assert kinds(edge, many(5), batch=5) == [COMBINED, "observed", ROWS]
    assert kinds(edge, many(5), batch=4) == ["observed", ROWS], "a replay knows what was known then"


def test_the_floor_is_the_highest_of_all_shards_and_a_silent_shard_keeps_its_own(tmp_path):
    floors = Floors(str(tmp_path))
    for number, shard in enumerate(THREE.ids):
        floors.leave(shard, 1, number)
    floors.leave(THREE.ids[0], 2, 30)
    floors.leave(THREE.ids[0], 2, 30)
    assert floors.before(2, THREE) == 2
    assert floors.before(3, THREE) == 30
    for batch in range(3, 20):
        floors.leave(THREE.ids[0], batch, batch * 100)
    assert floors.before(20, THREE) == 1900
    assert floors.before(2, THREE) is None, "what is long gone is not kept"


def test_a_floor_of_another_query_is_told():
    spec = aggregated(panes()).spec
    fleet = Fleet([ChainPlan((spec,), SCHEMA)], [edge_of(spec)], THREE)
    fleet.forget_workers()
    fleet.deliver([(0, 0, [table([{"k": "a", "t": 40, "v": 1, "f": True}] * 4)])], 100)
    with pytest.raises(StateError, match="floors"):
        fleet.deliver([(0, 0, [table([{"k": "a", "t": 40, "v": 1, "f": True}] * 4)])], 100)


@pytest.mark.parametrize(
    "windowed",
    [
        panes(id="v"),
        panes(offset="v"),
        panes(tg.session("10 us")),
        panes().trigger(tg.after_watermark(early=tg.after_count(3))),
        panes().retain(messages=3),
        panes().options(keep_messages=True),
        panes().options(future_reference="watermark"),
        panes(tg.tumbling("10 us", create="static")),
    ],
    ids=["id", "offset", "session", "count", "retention", "messages", "future", "static"],
)
def test_what_has_to_be_seen_one_by_one_is_not_combined(windowed):
    assert not can_combine(aggregated(windowed).spec)


def test_aggregates_that_ask_for_an_order_are_not_combined():
    assert not can_combine(panes().aggregate(v=tg.last("v")).spec)
    assert not can_combine(panes().aggregate(v=tg.count("v", distinct=True)).spec)
    assert not can_combine(dataclasses.replace(panes().aggregate(v=tg.sum("v")).spec, evictor=tg.evict_count(3)))
