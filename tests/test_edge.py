"""Edges, shards and chains do together what one embedded operator does, row for row; no Spark is
started.
"""

from __future__ import annotations

import dataclasses
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import tidegate as tg
from support.examples import examples
from support.spark_fakes import Fleet, Found, shipped
from support.strategies import Case, cases, per_key_cases
from test_differential import SCHEMA, specification
from tidegate.embedded.operator import EmbeddedOperator
from tidegate.errors import SpecMismatchError
from tidegate.instants import MAX
from tidegate.operators.ingest.delivery import Arrival
from tidegate.operators.ingest.schema_cast import BROKEN
from tidegate.scenarios.spark_script import Command
from tidegate.spark.plan.dataflow import static_window
from tidegate.spark.tasks import edge as edges
from tidegate.spark.tasks import processor
from tidegate.spark.tasks.chain import ChainPlan, ReshuffledInput, check_migration, output_schemas
from tidegate.spark.tasks.edge import CLOCK, Edge
from tidegate.spark.tasks.shards import ShardLayout
from tidegate.spark.tasks.transport import (
    OBSERVED,
    REFUSED,
    ROWS,
    ShuffleRow,
    decode_payload,
    to_record_batches,
)
from tidegate.spec.computed import Computed
from tidegate.spec.operator import AggregateSpec, Input, Options
from tidegate.spec.watermarks import Bounded, Lagging, Noted, Punctuated, Watermarks
from tidegate.spec.windows import Axis

Row = dict[str, Any]
THREE, SEVEN = ShardLayout.balanced(3), ShardLayout.balanced(7)
"""Seven is the least number of shards with one of its own for each of the keys `a`, `b` and null.
"""
pytestmark = pytest.mark.filterwarnings("ignore:a watermark generator failed:RuntimeWarning")


def many_shards(test: Any) -> Any:
    """Every step is one of seven shards with state that is written and read, so fewer examples have
    to do.
    """
    return pytest.mark.slow(examples(15)(test))


@pytest.fixture(autouse=True)
def _no_workers() -> Iterator[None]:
    Fleet.forget_workers()
    yield
    Fleet.forget_workers()


def edge_of(spec: AggregateSpec, number: int = 0, layout: ShardLayout = SEVEN) -> Edge:
    """The edge that a plan would make."""
    tolerance = spec.options.future_tolerance if spec.options.future_reference == "clock" else None
    return Edge(
        spec.inputs[number],
        layout,
        number,
        tolerance,
        spec.window.axis,
        static=static_window(spec),
    )


def fleet_of(spec: AggregateSpec, schema: pa.Schema, layout: ShardLayout = SEVEN) -> Fleet:
    return Fleet(
        [ChainPlan((spec,), schema)],
        [edge_of(spec, n, layout) for n in range(len(spec.inputs))],
        layout,
    )


class Whole:
    """One embedded operator that is told the same."""

    def __init__(self, spec: AggregateSpec, schema: pa.Schema, now: int = 0) -> None:
        self.operator = EmbeddedOperator(spec, now=now)
        self.operator.operator.bind(schema)

    def deliver(
        self, arrivals: Sequence[Arrival], now: int, commands: Sequence[Command] = ()
    ) -> Found:
        inner = self.operator.operator
        self.operator._emit(inner.process_all(arrivals, now))
        for one in commands:
            if one.watermark is not None:
                self.operator.advance_watermark(one.watermark)
        self.operator.timeout(now)
        if any(one.end for one in commands):
            self.operator.finish()
        return self.results()

    def wake(self, now: int) -> Found:
        self.operator.timeout(now)
        return self.results()

    def results(self) -> Found:
        result = self.operator.get_result()
        self.operator.flush()
        return Found(
            result.panes.drop_columns(["pane_nonspeculative", "time"]).to_pylist(),
            result.late.to_pylist(),
        )


def by_key(
    rows: Sequence[Row], key: Sequence[str], *, without: Sequence[str] = ()
) -> dict[Any, list[str]]:
    """The rows of each key and window in their order; between keys and between windows there is
    none.
    """
    found: dict[Any, list[str]] = {}
    for row in rows:
        group = repr(
            [row[name] for name in (*key, *(n for n in ("window_start", "window_end") if n in row))]
        )
        found.setdefault(group, []).append(
            repr({name: value for name, value in row.items() if name not in without})
        )
    return found


def check(have: Found, want: Found, key: Sequence[str], *, without: Sequence[str] = ()) -> None:
    assert by_key(have.panes, key, without=without) == by_key(want.panes, key, without=without)
    assert Counter(map(_told, have.late)) == Counter(map(_told, want.late))


def _told(row: Row) -> str:
    spans = sorted((repr(one) for one in row["windows"] or []), key=repr)
    return repr({**row, "windows": spans})


# Random configurations and histories


def cut(
    draw: st.DrawFn, rows: list[Row], schema: pa.Schema, inputs: int = 1
) -> tuple[list[tuple[int, int, list[pa.Table]]], list[Arrival]]:
    """The rows as tasks read them, in pieces; and as the embedded operator gets them: input by
    input, task by task.
    """
    sides: list[list[Row]] = [[] for _ in range(inputs)]
    for row in rows:
        sides[draw(st.integers(0, inputs - 1))].append(row)
    given, ordered = dealt(draw, sides, [schema] * inputs)
    return given, [
        Arrival(number, pa.Table.from_pylist(whole, schema))
        for number, whole in enumerate(ordered)
        if whole
    ]


def dealt(
    draw: st.DrawFn, sides: Sequence[list[Row]], schemas: Sequence[pa.Schema]
) -> tuple[list[tuple[int, int, list[pa.Table]]], list[list[Row]]]:
    """The rows of each input as tasks read them, in pieces; and in the order that this makes of
    them.
    """
    given, ordered = [], []
    for number, rows in enumerate(sides):
        tasks: dict[int, list[Row]] = {}
        for row in rows:
            tasks.setdefault(draw(st.integers(0, 2)), []).append(row)
        for task in range(3):
            mine = tasks.get(task, [])
            middle = draw(st.integers(0, len(mine)))
            pieces = [part for part in (mine[:middle], mine[middle:]) if part]
            if pieces or draw(st.integers(0, 5)) == 0:
                given.append(
                    (number, task, [pa.Table.from_pylist(part, schemas[number]) for part in pieces])
                )
        ordered.append([row for task in range(3) for row in tasks.get(task, [])])
    return given, ordered


def restarted(draw: st.DrawFn, fleet: Fleet) -> None:
    if draw(st.booleans()):
        fleet.forget_workers()


def shuffled(draw: st.DrawFn) -> Callable[[list[Any]], list[Any]]:
    """Spark brings the rows of a shard in any order."""
    dice = random.Random(draw(st.integers(0, 99)))
    return lambda rows: dice.sample(rows, len(rows))


def play(draw: st.DrawFn, case: Case, key: tuple[str, ...], without: Sequence[str] = ()) -> None:
    config = dataclasses.replace(case.config, key=key)
    spec = specification(config)
    fleet, whole, now = fleet_of(spec, SCHEMA), Whole(spec, SCHEMA), 0
    for step in case.steps:
        restarted(draw, fleet)
        if step.verb == "add":
            given_rows, arrivals = cut(draw, step.value, SCHEMA)
            have = fleet.deliver(given_rows, now, shuffle=shuffled(draw))
            want = whole.deliver(arrivals, now)
        elif step.verb == "watermark":
            commands = [Command(watermark=step.value)]
            have, want = fleet.deliver([], now, commands=commands), whole.deliver([], now, commands)
        else:
            now = step.value if step.verb == "timeout" else now
            have, want = fleet.wake(now, all_timers=True), whole.wake(now)
        check(have, want, key, without=without)
        assert len(fleet.stages[0].watermarks()) <= 1
    restarted(draw, fleet)
    end = [Command(end=True)]
    check(fleet.deliver([], now, commands=end), whole.deliver([], now, end), key, without=without)


def is_the_same_in_shards(case: Case) -> bool:
    """How many keys are ahead, and whether an event is from the future for its key, is known only
    where the keys are.
    """
    config = case.config
    of_keys = config.max_keys is not None or (
        config.watermark == "per_key" and config.future_reference == "watermark"
    )
    # What was from the future and comes again when it is not is a duplicate, and at the edge nobody
    # knows.
    again = (config.id is not None or config.offset is not None) and config.future_tolerance < 1000
    return not of_keys and not again


@many_shards
@given(cases() | per_key_cases(), st.data())
def test_shards_on_stored_state_do_what_one_operator_does(case, data):
    assume(is_the_same_in_shards(case))
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patched, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patched.setattr(edges, "FLUSH_ROWS", data.draw(st.sampled_from([1, 2, 1 << 20])))
        Fleet.forget_workers()
        play(
            data.draw,
            case,
            ("k",),
            ("watermark",) if case.config.window.axis is Axis.ORDINAL else (),
        )


@many_shards
@given(cases(), st.data())
def test_without_a_key_one_shard_has_all_rows(case, data):
    assume(is_the_same_in_shards(case))
    Fleet.forget_workers()
    play(data.draw, case, (), ("watermark",) if case.config.window.axis is Axis.ORDINAL else ())


# Several inputs, partitions, silence and timers

MS = 1000
"""Spark's timers count milliseconds."""
FULL = pa.schema(
    {
        "ts": pa.int64(),
        "k": pa.string(),
        "v": pa.int64(),
        "p": pa.string(),
        "wm": pa.int64(),
        "m": pa.bool_(),
        "writer": pa.string(),
    }
)
instants = st.integers(0, 60).map(lambda n: n * MS)
event = st.fixed_dictionaries(
    {
        "ts": instants | instants | instants | st.none(),
        "k": st.sampled_from(["a", "b", "c", "d", None]),
        "v": st.integers(-3, 9),
        "p": st.sampled_from(["p", "q", None]),
        "wm": st.none() | instants,
        "m": st.sampled_from([True, False, None]),
        "writer": st.sampled_from(["x", "y", None]),
    }
)
watched = st.fixed_dictionaries(
    {
        "idle_after": st.sampled_from([None, 5 * MS, 20 * MS]),
        "declared": st.sampled_from([(), (), ("p",), ("p", "q")]),
        "realign": st.booleans(),
    }
)
marks = st.one_of(
    st.integers(0, 9).map(lambda n: Lagging(n * MS)),
    st.tuples(watched, st.integers(0, 6)).map(lambda both: Bounded(both[1] * MS, **both[0])),
    st.tuples(watched, st.integers(0, 6)).map(lambda both: Bounded(both[1] * MS, **both[0])),
    watched.map(lambda more: Punctuated(column="wm", **more)),
    watched.map(lambda more: Punctuated(marker="m", **more)),
    st.tuples(watched, st.sampled_from([None, 25 * MS])).map(
        lambda both: Noted(
            "wm",
            forget_after=both[1],
            **{**both[0], "declared": ("x",) if both[0]["declared"] else ()},
        )
    ),
)
firings = st.sampled_from(
    [
        None,
        tg.after_watermark(),
        tg.after_watermark(early=tg.every("7 ms"), late=tg.after_delay("3 ms")),
        tg.after_watermark(early=tg.after_count(2), late=tg.after_count(1)),
        tg.after_watermark(early=tg.every("4 ms", refire=True)),
        tg.repeatedly(tg.after_delay("5 ms")),
    ]
)
plain_window = tg.tumbling("10 ms")
shapes = st.sampled_from(
    [
        plain_window,
        plain_window,
        tg.hopping("12 ms", "4 ms"),
        tg.session("5 ms"),
        tg.tumbling("10 ms", create="static"),
        tg.tumbling("15 ms", axis="clock"),
        tg.global_window(),
    ]
)


@st.composite
def specs(draw: st.DrawFn) -> AggregateSpec:
    found = draw(st.lists(marks, min_size=1, max_size=3))
    partition = draw(st.sampled_from([None, "p"]))

    def undeclared(mark: Watermarks) -> Watermarks:
        return (
            dataclasses.replace(mark, declared=())
            if partition is None and isinstance(mark, Bounded | Punctuated)
            else mark
        )

    first, *others = (
        Input("ts", ("k",), partition=partition, watermark=undeclared(mark)) for mark in found
    )
    tolerance = draw(st.sampled_from([1000 * MS, 1000 * MS, 10 * MS]))
    return AggregateSpec(
        first,
        draw(shapes),
        (("n", tg.count()), ("total", tg.sum("v")), ("values", tg.list_("v"))),
        draw(firings),
        draw(st.sampled_from(["accumulating", "discarding", "retracting"])),
        draw(st.sampled_from([0, 10 * MS, 40 * MS, MAX])),
        Options(future_tolerance=tolerance, future=draw(st.sampled_from(["process", "reject"]))),
        also=tuple(others),
    )


def follows_clock(spec: AggregateSpec) -> bool:
    return spec.window.axis is Axis.CLOCK or any(
        isinstance(given.watermark, Lagging) for given in spec.inputs
    )


happenings = st.lists(
    st.one_of(
        st.tuples(st.lists(event, max_size=8), st.integers(0, 8)),
        st.tuples(st.none(), st.integers(0, 25)),
    ),
    min_size=1,
    max_size=12,
)


@many_shards
@given(specs(), happenings, st.data())
def test_inputs_partitions_and_silence_are_the_same_in_all_shards(spec, history, data):
    Fleet.forget_workers()
    # An operator of Spark begins with the first rows of the query.
    history = history[next((n for n, (rows, _) in enumerate(history) if rows), len(history)) :]
    assume(history)
    fleet, whole, now = fleet_of(spec, FULL), Whole(spec, FULL, history[0][1] * MS), 0
    for rows, step in history:
        now += step * MS
        restarted(data.draw, fleet)
        if not rows:
            # A watermark that follows the clock stands still in a shard that no timer wakes, and
            # nothing waits for it there.
            have, want = fleet.wake(now, all_timers=follows_clock(spec)), whole.wake(now)
        else:
            given_rows, arrivals = cut(data.draw, rows, FULL, len(spec.inputs))
            saved = fleet.snapshot()
            have = fleet.deliver(given_rows, now, shuffle=shuffled(data.draw))
            if data.draw(st.integers(0, 3)) == 0:
                # The batch fails, be it after its tasks, and runs again; workers may have kept what
                # they made of it.
                fleet.restore(saved)
                restarted(data.draw, fleet)
                have = fleet.deliver(given_rows, now)
            want = whole.deliver(arrivals, now)
        check(have, want, ("k",))
    restarted(data.draw, fleet)
    now += MS
    check(
        fleet.deliver([], now, commands=[Command(end=True)]),
        whole.deliver([], now, [Command(end=True)]),
        ("k",),
    )


# Chains and re-keying

FAR = 10**6 * MS
PAIRS = pa.schema({"ts": pa.int64(), "k": pa.string(), "g": pa.string(), "v": pa.int64()})
pair = st.fixed_dictionaries(
    {
        "ts": instants,
        "k": st.sampled_from(["a", "b", "c", "d", None]),
        "g": st.sampled_from(["x", "y", None]),
        "v": st.integers(-3, 9),
    }
)


def upstream_of(draw: st.DrawFn, window: Any) -> AggregateSpec:
    return AggregateSpec(
        Input("ts", ("k", "g"), watermark=Bounded(draw(st.sampled_from([0, 5 * MS])))),
        window,
        (("n", tg.count()), ("total", tg.sum("v"))),
        # Those that neither end with a window's first complete pane nor fire for ever.
        draw(
            firings.filter(
                lambda firing: (
                    firing is None or "late=" in str(firing) or "Repeatedly" in str(firing)
                )
            )
        ),
        "retracting",
        MAX,
        Options(future_tolerance=2 * FAR),
    )


def downstream_of(draw: st.DrawFn, key: tuple[str, ...], mode: str = "retracting") -> AggregateSpec:
    spec = (
        tg.stream(key=list(key))
        .inherit()
        .trigger(tg.after_watermark(early=tg.after_count(1), late=tg.after_count(1)))
    )
    return (
        (spec.retracting() if mode == "retracting" else spec.accumulating())
        .aggregate(rows=tg.count(), total=tg.sum("total"), n=tg.sum("n"))
        .spec
    )


def netted(panes: Sequence[Row], key: Sequence[str]) -> dict[Any, Any]:
    """What stands in the end."""
    standing: dict[Any, Any] = {}
    for row in panes:
        place = (*(row[name] for name in key), row["window_start"], row["window_end"])
        value = tuple(value for name, value in row.items() if name in ("rows", "n", "total"))
        if row["op"] == "-":
            assert standing.pop(place) == value, "what is taken back stood there"
        else:
            assert place not in standing, "what stands is taken back before something else comes"
            standing[place] = value
    return standing


def drained(fleet: Fleet, now: int) -> tuple[list[Row], int]:
    """Let all timers expire that there are."""
    found: list[Row] = []
    for _ in range(200):
        due = min(
            (at for stage in fleet.stages if (at := stage.next_timer) is not None), default=None
        )
        if due is None:
            return found, now
        now = max(now + MS, due)
        found += fleet.wake(now).panes
    raise AssertionError("timers are set again and again")


def answer(rows: Sequence[Row], key: Sequence[str], size: int, step: int) -> dict[Any, Any]:
    """Rows, sums and counts of the groups and windows, by hand: `rows` counts the upstream's panes,
    one for each pair.
    """
    found: dict[Any, tuple[set[Any], int, int]] = {}
    for row in rows:
        for start in range((row["ts"] // step) * step, row["ts"] - size, -step):
            place = (*(row[name] for name in key), start, start + size)
            pairs, n, total = found.get(place, (set(), 0, 0))
            found[place] = (pairs | {(row["k"], row["g"])}, n + 1, total + row["v"])
    return {place: (len(pairs), total, n) for place, (pairs, n, total) in found.items()}


histories_of_pairs = st.lists(
    st.tuples(st.lists(pair, min_size=1, max_size=7), st.integers(0, 9)), min_size=1, max_size=6
)


@pytest.mark.parametrize("key", [("k", "g"), ("g",), ("k",), ()])
@many_shards
@given(history=histories_of_pairs, data=st.data())
def test_chains_in_shards_come_to_the_plain_answer(key, history, data):
    Fleet.forget_workers()
    window, size, step = data.draw(
        st.sampled_from([(tg.tumbling("10 ms"), 10, 10), (tg.hopping("12 ms", "4 ms"), 12, 4)])
    )
    first, second = upstream_of(data.draw, window), downstream_of(data.draw, key)
    fused = ChainPlan((first, second), PAIRS)
    if key == ("k", "g"):
        plans = [fused]
    else:
        before = ChainPlan((first,), PAIRS, has_downstream=True)
        plans = [
            before,
            ChainPlan(
                (second,),
                output_schemas(before)[0],
                reshuffled={0: ReshuffledInput(before.exchange, SEVEN.ids)},
            ),
        ]
    fleet = Fleet(plans, [edge_of(first)], SEVEN)
    now, panes, rows = 0, list[Row](), list[Row]()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(processor, "OUTPUT_LIMIT", data.draw(st.sampled_from([1, 3000, 256 << 20])))
        for given_rows, pause in [*history, ([{"ts": FAR, "k": "end", "g": "end", "v": 0}], 1)]:
            now += pause * MS
            restarted(data.draw, fleet)
            pieces, _ = cut(data.draw, given_rows, PAIRS)
            found = fleet.deliver(pieces, now, shuffle=shuffled(data.draw))
            rows += given_rows
            assert found.late == []
            panes += found.panes
            if data.draw(st.booleans()):
                now += 3 * MS
                panes += fleet.wake(now).panes
        panes += drained(fleet, now)[0]
    standing = netted(panes, key)
    wanted = answer(rows, key, size * MS, step * MS)
    ended = {place: value for place, value in wanted.items() if place[-1] < FAR}
    assert {place: value for place, value in standing.items() if place[-1] < FAR} == ended


# Changed specifications


def test_what_state_cannot_follow_is_refused_before_the_start():
    plain = tg.stream(time="ts", key="k").window(tg.tumbling("10 ms"))
    before = [plain.aggregate(n=tg.count()).spec.to_dict()]
    check_migration(
        ChainPlan((plain.aggregate(n=tg.count(), total=tg.sum("v")).spec,), FULL), before
    )
    check_migration(
        ChainPlan((plain.allow_lateness("2 hours").aggregate(n=tg.count()).spec,), FULL), before
    )
    with pytest.raises(SpecMismatchError, match=r"`aggregates.middle`.*messages.*Hint"):
        check_migration(
            ChainPlan((plain.aggregate(n=tg.count(), middle=tg.median("v")).spec,), FULL), before
        )
    with pytest.raises(SpecMismatchError, match="mode"):
        check_migration(ChainPlan((plain.discarding().aggregate(n=tg.count()).spec,), FULL), before)


def test_workers_that_outlive_a_query_follow_its_changed_specification():
    plain = (
        tg.stream(time="ts", key="k", watermark=tg.bounded("0 seconds"))
        .window(tg.tumbling("10 ms"))
        .options(future_tolerance="1 hour")
    )
    before, after = (
        plain.aggregate(n=tg.count()).spec,
        plain.aggregate(n=tg.count(), total=tg.sum("v")).spec,
    )
    first, second = fleet_of(before, FULL), fleet_of(after, FULL)
    first.deliver([(0, 0, [pa.Table.from_pylist([{"ts": 1000, "k": "a", "v": 5}], FULL)])], 0)
    second.restore(first.snapshot())
    rows = [
        {"ts": 2000, "k": "a", "v": 7},
        {"ts": 2000, "k": "b", "v": 2},
        {"ts": FAR, "k": "a", "v": 0},
    ]
    found = second.deliver([(0, 0, [pa.Table.from_pylist(rows, FULL)])], MS)
    assert sorted((row["k"], row["n"], row["total"]) for row in found.panes) == [
        ("a", 2, None),
        ("b", 1, 2),
    ]


# Silence and pauses

S = 1000 * MS


def silent(idle_after: str, silence: int) -> Fleet:
    """Two inputs, of which the second never speaks, in a query that runs every second."""
    mark = tg.bounded("0 seconds", idle_after=idle_after)
    streams = [tg.stream(time="ts", key="k", watermark=mark) for _ in range(2)]
    spec = tg.union(*streams).window(tg.tumbling("10 seconds")).aggregate(n=tg.count()).spec
    fleet = Fleet(
        [ChainPlan((spec,), FULL, silence=silence)], [edge_of(spec, n) for n in range(2)], SEVEN
    )
    rows = [{"ts": ts * S, "k": key} for ts in (1, 12) for key in "abcd"]
    assert fleet.deliver([(0, 0, [pa.Table.from_pylist(rows, FULL)])], 20 * S).panes == []
    return fleet


def first_panes(fleet: Fleet, start: int, most: int = 500) -> int:
    """The second at which something comes out, if no rows come and nothing but timers wakes a
    shard.
    """
    found: list[int] = []
    for now in range(start, start + most):
        found += [now] * len(fleet.wake(now * S).panes)
        if found:
            break
    assert len(found) == 4, "all shards learn of it at the same time"
    return found[0]


@pytest.mark.parametrize(
    ("idle_after", "second"), [("5 seconds", 25), ("60 seconds", 80), ("200 seconds", 220)]
)
def test_time_in_which_a_query_runs_and_no_timer_is_due_is_silence(idle_after, second):
    assert first_panes(silent(idle_after, 10 * S), 21) in (second, second + 1)


def test_time_in_which_a_query_did_not_run_is_no_silence():
    fleet = silent("60 seconds", 10 * S)
    for now in range(21, 50):
        assert fleet.wake(now * S).panes == []
    fleet.forget_workers()
    assert 3600 + 60 - 30 - 10 - 1 <= first_panes(fleet, 3600) <= 3600 + 60 - 30 + 11


# The edge alone


def packed(edge: Edge, *tables: pa.Table, clock: int | None = None) -> list[ShuffleRow]:
    return shipped(edge.pack((batch for table in tables for batch in table.to_batches()), 5, clock))


def plain_edge(**more: Any) -> Edge:
    given_input = Input("ts", ("k",), watermark=Bounded(0), **more.pop("given", {}))
    return Edge(given_input, THREE, 2, **{"future_tolerance": 10, **more})


def of_kind(rows: Sequence[ShuffleRow], kind: str) -> list[Row]:
    return [
        row for one in rows if one.kind == kind for row in decode_payload(one.payload).to_pylist()
    ]


def test_rows_go_to_one_shard_and_what_is_learnt_to_all():
    rows = packed(plain_edge(), pa.table({"ts": [3, 9, 4], "k": ["a", "b", "c"]}))
    assert {(row.input, row.task) for row in rows} == {(2, 5)}
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    assert [row.shard for row in rows if row.kind == OBSERVED] == list(THREE.ids)
    assert of_kind(rows, OBSERVED) == [{"ts": 9}] * 3
    assert sorted(row["ts"] for row in of_kind(rows, ROWS)) == [3, 4, 9]


def test_rows_from_the_future_tell_nothing_and_are_sent_all_the_same():
    rows = packed(plain_edge(), pa.table({"ts": [3, 500], "k": ["a", "b"]}), clock=20)
    assert of_kind(rows, OBSERVED) == [{"ts": 3}] * 3
    assert len(of_kind(rows, ROWS)) == 2


def test_where_nothing_is_learnt_all_shards_are_told_that_something_came():
    rows = packed(
        plain_edge(), pa.table({"ts": pa.array([None], pa.int64()), "k": ["a"]}), clock=20
    )
    assert [row.shard for row in rows if row.kind == OBSERVED] == list(THREE.ids)
    assert len(of_kind(rows, ROWS)) == 1


def test_nothing_gives_nothing():
    assert packed(plain_edge()) == packed(plain_edge(), FULL.empty_table()) == []


def test_the_clock_may_come_as_a_column_and_leaves_again():
    stamps = pa.array([20, 20], pa.timestamp("us", "UTC"))
    rows = packed(plain_edge(), pa.table({"ts": [3, 500], "k": ["a", "b"], CLOCK: stamps}))
    assert of_kind(rows, OBSERVED) == [{"ts": 3}] * 3
    assert all(CLOCK not in row for row in of_kind(rows, ROWS))


def test_rows_without_an_offset_are_refused_and_say_nothing_of_their_source():
    table = pa.table({"ts": [3, 9, 4], "k": ["a", "a", "b"], "o": [1, None, 2]})
    rows = packed(plain_edge(given={"offset": "o"}), table)
    assert of_kind(rows, REFUSED) == [{"ts": 9, "k": "a", "o": None}]
    assert of_kind(rows, OBSERVED) == [{"ts": 4}] * 3
    assert len(of_kind(rows, ROWS)) == 2


def test_rows_that_are_broken_say_nothing_of_their_source():
    table = pa.table(
        {"ts": [3, 9], "k": ["a", "b"], BROKEN: [None, "`v` should be int64, got 'many'"]}
    )
    rows = packed(plain_edge(), pa.table({"ts": [1], "k": ["a"]}), table)
    assert of_kind(rows, OBSERVED) == [{"ts": 1}] * 3 + [{"ts": 3}] * 3
    assert [row[BROKEN] for row in of_kind(rows, ROWS) if row.get(BROKEN)] == [
        "`v` should be int64, got 'many'"
    ]


def test_a_function_makes_a_column_of_the_others():
    doubled = Computed("ts", lambda table: pc.multiply(table.column("x"), 2))
    edge = plain_edge(given={"computed": (doubled,)})
    assert of_kind(packed(edge, pa.table({"x": [4], "k": ["a"]})), ROWS) == [
        {"x": 4, "k": "a", "ts": 8}
    ]


def test_a_row_for_which_a_function_raises_is_marked():
    def read(table):
        return pc.cast(table.column("x"), pa.int64())

    edge = plain_edge(given={"computed": (Computed("ts", read),)})
    rows = of_kind(packed(edge, pa.table({"x": ["4", "no"], "k": ["a", "a"]})), ROWS)
    assert [row["ts"] for row in rows] == [4, None]
    assert "`ts` raised ArrowInvalid" in rows[1][BROKEN]
    assert rows[0][BROKEN] is None


@pytest.mark.parametrize(
    "kind", [pa.string_view(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())], ids=str
)
def test_a_key_goes_to_the_same_shard_whatever_its_column_is_made_of(kind):
    keys = pa.array(["a", "b", "c", "d", "e", None])
    plain, other = (pa.table({"ts": range(6), "k": column}) for column in (keys, keys.cast(kind)))
    homes, others = (
        {
            (row["k"], one.shard)
            for one in packed(plain_edge(), table)
            if one.kind == ROWS
            for row in decode_payload(one.payload).to_pylist()
        }
        for table in (plain, other)
    )
    assert homes == others
    assert len(homes) == 6


def test_what_is_shipped_is_cut_before_it_is_too_large_for_arrow():
    rows = [ShuffleRow(n, 0, 0, n, ROWS, b"x" * 40) for n in range(7)]
    batches = list(to_record_batches(rows, 100))
    assert [batch.num_rows for batch in batches] == [2, 2, 2, 1]
    assert shipped(batches) == rows
    assert [batch.num_rows for batch in to_record_batches(rows, 10)] == [1] * 7
    assert list(to_record_batches([], 10)) == []


def test_a_large_event_is_alone_in_its_payload():
    rows = packed(
        plain_edge(),
        pa.table(
            {
                "ts": [1, 2, 3],
                "k": ["a", "a", "a"],
                "text": ["x" * (5 << 20), "small", "y" * (6 << 20)],
            }
        ),
    )
    sizes = [len(decode_payload(one.payload)) for one in rows if one.kind == ROWS]
    assert sum(sizes) == 3
    assert max(len(one.payload) for one in rows) < 12 << 20
