"""Joins in shards on stored state do what one join does, and trees of operators come to the plain
answer; no Spark is started.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import tidegate as tg
from support.examples import examples
from support.join_machines import Bare, late_shapes, shapes, specification
from support.join_strategies import Case, cases
from support.reference.join_config import JoinConfig
from support.spark_fakes import Columns, Fleet, Found, Row
from test_edge import (
    FAR,
    MS,
    SEVEN,
    THREE,
    dealt,
    drained,
    instants,
    many_shards,
    restarted,
    shuffled,
)
from test_join_properties import check_order
from tidegate.api.joins import Joined
from tidegate.api.running import plan_of
from tidegate.scenarios.spark_script import Command
from tidegate.spark.plan.input import PlanInput
from tidegate.spark.tasks import edge as edges
from tidegate.spark.tasks import processor

SIDES = (0, 1)


@pytest.fixture(autouse=True)
def _no_workers() -> Iterator[None]:
    Fleet.forget_workers()
    yield
    Fleet.forget_workers()


# One join


def fleet_of(config: JoinConfig, schema: pa.Schema) -> Fleet:
    return Fleet.of(
        Joined(specification(config), tuple(PlanInput(Columns(schema)) for _ in SIDES)), SEVEN
    )


def is_the_same_in_shards(config: JoinConfig) -> bool:
    """What was from the future and comes again when it is not is a duplicate, and at the edge
    nobody knows.
    """
    return not ((config.id or config.offset) and config.future_tolerance < 1000)


class Both:
    """One join whole, and in shards that are given the same."""

    def __init__(self, config: JoinConfig, draw: st.DrawFn) -> None:
        self.whole, self.draw, self.now = Bare(config), draw, 0
        self.fleet = fleet_of(config, self.whole.schema)
        self.rows: list[Row] = []

    def step(self, verb: str, value: Any) -> None:
        restarted(self.draw, self.fleet)
        if verb == "add":
            pieces, (left, right) = dealt(self.draw, value, [self.whole.schema] * 2)
            saved = self.fleet.snapshot()
            have = self.fleet.deliver(pieces, self.now, shuffle=shuffled(self.draw))
            if self.draw(st.integers(0, 3)) == 0:
                # The batch fails, be it after its tasks, and runs again; workers may have kept what
                # they made of it.
                self.fleet.restore(saved)
                restarted(self.draw, self.fleet)
                have = self.fleet.deliver(pieces, self.now)
            self.compare(have, self.whole.add(left, right))
        elif verb == "watermark":
            side, watermark, column = value
            commands = [Command(watermark=watermark, input=side, key=1 if column == "t2" else 0)]
            self.compare(
                self.fleet.deliver([], self.now, commands=commands),
                self.whole.advance_watermark(side, watermark, column),
            )
        elif verb == "timeout":
            self.now = max(self.now, value)
            self.compare(self.fleet.wake(self.now, all_timers=True), self.whole.timeout(self.now))
        elif verb == "restart":
            self.fleet.forget_workers()
            self.whole.restart()
        assert len(self.fleet.stages[0].watermarks()) <= 1

    def finish(self) -> None:
        self.compare(
            self.fleet.deliver([], self.now, commands=[Command(end=True)]), self.whole.finish()
        )
        check_order(self.rows)

    def compare(self, have: Found, want: Any) -> None:
        shown = self.whole.shown(have.panes, have.late)
        assert shapes(shown[0]) == shapes(want[0])
        assert late_shapes(shown[1]) == late_shapes(want[1])
        # Rows without a whole key are told apart by their equal fields too, as sinks do.
        self.rows += [
            {**row, "pair_id": f"{self.fields(row)} {row['pair_id']}"} for row in shown[0]
        ]

    def fields(self, row: Row) -> list[Any]:
        one = row["left"] or row["right"]
        return [one[name] for name, _ in self.whole.config.on]


def play(case: Case, draw: st.DrawFn) -> None:
    both = Both(case.config, draw)
    for step in case.steps:
        both.step(step.verb, step.value)
    restarted(draw, both.fleet)
    both.finish()


@many_shards
@given(cases() | cases(periods=True) | cases(retention=True), st.data())
def test_shards_on_stored_state_do_what_one_join_does(case, data):
    assume(is_the_same_in_shards(case.config))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(edges, "FLUSH_ROWS", data.draw(st.sampled_from([1, 2, 1 << 20])))
        Fleet.forget_workers()
        play(case, data.draw)


# Trees of operators

EVENTS = pa.schema({"ts": pa.int64(), "k": pa.string(), "g": pa.string(), "v": pa.int64()})
event = st.fixed_dictionaries(
    {
        "ts": instants,
        "k": st.sampled_from(["a", "b", "c", "d", None]),
        "g": st.sampled_from(["x", "y"]),
        "v": st.integers(-3, 9),
    }
)
side = st.lists(event, max_size=6)
histories = st.lists(st.tuples(side, side, st.integers(0, 9)), min_size=1, max_size=5)
EAGER = tg.after_watermark(early=tg.after_count(1), late=tg.after_count(1))
FOREVER = "10 hours"
LAG, LEAD, SIZE = 6 * MS, 3 * MS, 10 * MS
Pair = tuple[Row | None, Row | None]


def trees(test: Any) -> Any:
    """Two stages or three with all their shards at every step, so a few examples have to do."""
    return pytest.mark.slow(examples(12)(test))


def source() -> tg.Stream:
    return tg.stream(Columns(EVENTS), time="ts", watermark=tg.bounded("5 ms"))


def windowed(stream: tg.Stream, window: Any = None) -> Any:
    """Early panes, late corrections, and retractions of both."""
    found = stream.inherit() if window is None else stream.window(window)
    return (
        found.trigger(EAGER).allow_lateness(FOREVER).options(future_tolerance="1 hour").retracting()
    )


def counted(*key: str) -> tg.Panes:
    stream = tg.stream(Columns(EVENTS), time="ts", key=list(key), watermark=tg.bounded("5 ms"))
    return windowed(stream, tg.tumbling(SIZE, unit="us")).aggregate(n=tg.count(), total=tg.sum("v"))


def joined(left: tg.Stream, right: tg.Stream, window: Any, how: str, **more: Any) -> Joined:
    return (
        left.join(right, window, on="k", how=how, **more)
        .allow_lateness(FOREVER)
        .options(future_tolerance="1 hour")
    )


def run(
    pipeline: Any, history: Sequence[Any], draw: st.DrawFn
) -> tuple[list[Row], list[Row], list[Row]]:
    """All panes of a query over two inputs, and the rows of each; workers are lost, and a call puts
    out little.
    """
    Fleet.forget_workers()
    fleet, now, panes = Fleet.of(pipeline, THREE), 0, list[Row]()
    rows: list[list[Row]] = [[], []]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(processor, "OUTPUT_LIMIT", draw(st.sampled_from([1, 3000, 256 << 20])))
        ends = [{"ts": FAR, "k": "end", "g": "end", "v": 0}]
        for left, right, pause in [*history, (ends, ends, 1)]:
            now += pause * MS
            restarted(draw, fleet)
            pieces, _ = dealt(draw, [left, right], [EVENTS] * 2)
            saved = fleet.snapshot()
            found = fleet.deliver(pieces, now, shuffle=shuffled(draw))
            if draw(st.integers(0, 3)) == 0:
                fleet.restore(saved)
                found = fleet.deliver(pieces, now)
            for held, more in zip(rows, (left, right), strict=True):
                held += [row for row in more if row["ts"] < FAR]
            assert found.late == []
            panes += found.panes
            if draw(st.booleans()):
                now += 3 * MS
                panes += fleet.wake(now).panes
        panes += drained(fleet, now)[0]
    return panes, *rows


def standing(panes: Sequence[Row], *columns: str) -> Counter[tuple[Any, ...]]:
    """What stands in the end; nothing is taken back that did not stand."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row in panes:
        place = tuple(row[name] for name in columns)
        found[place] += 1 if row["op"] == "+" else -1
        assert found[place] >= 0, place
    return Counter({place: n for place, n in found.items() if n and "end" not in place})


def met(left: Sequence[Row], right: Sequence[Row], how: str, fits: Any) -> list[Pair]:
    """The join of all rows, by hand."""
    pairs = [
        (one, two)
        for one, two in itertools.product(left, right)
        if one["k"] is not None and one["k"] == two["k"] and fits(one, two)
    ]
    alone = [
        [row for row in rows if not any(pair[n] is row for pair in pairs)]
        for n, rows in enumerate((left, right))
    ]
    match how:
        case "semi":
            return [(row, None) for row in left if not any(row is other for other in alone[0])]
        case "anti":
            return [(row, None) for row in alone[0]]
    found: list[Pair] = list(pairs)
    found += [(row, None) for row in alone[0]] if how in ("left", "full") else []
    return found + ([(None, row) for row in alone[1]] if how in ("right", "full") else [])


def within(one: Row, two: Row) -> bool:
    return -LAG <= one["ts"] - two["ts"] <= LEAD


def start_of(ts: int) -> int:
    return ts // SIZE * SIZE


def grouped(rows: Sequence[Row], *key: str) -> list[Row]:
    """The panes that stand in the end, by hand."""
    found: dict[Any, Row] = {}
    for row in rows:
        place = (*(row[name] for name in key), start_of(row["ts"]))
        names = {
            **{name: row[name] for name in key},
            "start": start_of(row["ts"]),
            "n": 0,
            "total": 0,
        }
        pane = found.setdefault(place, names)
        pane.update(n=pane["n"] + 1, total=pane["total"] + row["v"])
    return list(found.values())


def value(row: Row | None, name: str) -> Any:
    return None if row is None else row[name]


@pytest.mark.parametrize("key", ["k", "left_g", None])
@trees
@given(history=histories, data=st.data())
def test_a_window_over_a_join_comes_to_the_plain_answer(key, history, data):
    how = data.draw(st.sampled_from(["inner", "left", "semi", "anti"]))
    plain = how in ("semi", "anti")
    both = joined(source(), source(), tg.within(LAG, LEAD, unit="us"), how)
    both = data.draw(
        st.sampled_from([both, both.early_padding(), both.update_every("4 ms", "7 ms")])
    )
    key = "g" if plain and key == "left_g" else key
    names = ("ts", "v") if plain else ("left_ts", "right_v")
    panes = windowed(both.stream(time=names[0], key=key), tg.tumbling(SIZE, unit="us")).aggregate(
        n=tg.count(), total=tg.sum(names[1])
    )
    found, left, right = run(panes, history, data.draw)
    wanted: dict[Any, list[Any]] = {}
    for one, two in met(left, right, how, within):
        assert one is not None
        place = (*(() if key is None else (one[key.removeprefix("left_")],)), start_of(one["ts"]))
        wanted.setdefault(place, []).append(one["v"] if plain else value(two, "v"))
    sums = {place: [v for v in values if v is not None] for place, values in wanted.items()}
    answer = Counter(
        (*place, len(values), sum(sums[place]) if sums[place] else None)
        for place, values in wanted.items()
    )
    # A window all of whose rows were taken back says so with a pane of none.
    ended = [row for row in found if row["window_start"] < start_of(FAR) and row["n"]]
    assert standing(ended, *(() if key is None else (key,)), "window_start", "n", "total") == answer


@pytest.mark.parametrize("window", ["tumbling", "within", "beside a plain stream"])
@trees
@given(history=histories, data=st.data())
def test_a_join_over_panes_that_are_taken_back_comes_to_the_plain_answer(window, history, data):
    how = data.draw(st.sampled_from(["inner", "left", "right", "full", "semi", "anti"]))
    panes = tg.stream(counted("k", "g"), key="k")
    if window == "beside a plain stream":
        pipeline = joined(
            panes, source(), tg.tumbling(SIZE, unit="us"), how, names=("left_", "right_")
        )
    elif window == "tumbling":
        pipeline = joined(
            panes, tg.stream(counted("k"), key="k"), tg.tumbling(SIZE, unit="us"), how
        )
    else:
        pipeline = joined(
            panes, tg.stream(counted("k"), key="k"), tg.within(SIZE, 0, unit="us"), how
        )
    pipeline = data.draw(st.sampled_from([pipeline, pipeline.early_padding()]))
    found, left, right = run(pipeline, history, data.draw)
    plain = window == "beside a plain stream"
    ones, twos = (
        grouped(left, "k", "g"),
        [{**row, "start": start_of(row["ts"])} for row in right] if plain else grouped(right, "k"),
    )

    def fits(one: Row, two: Row) -> bool:
        return one["start"] - two["start"] in ((0, -SIZE) if window == "within" else (0,))

    pairs = met(ones, twos, how, fits)
    if how in ("semi", "anti"):
        assert standing(found, "k", "g", "n", "total") == Counter(
            (one["k"], one["g"], one["n"], one["total"]) for one, _ in pairs if one is not None
        )
    elif plain:
        wanted = Counter(
            (value(one or two, "k"), value(one, "g"), value(one, "n"), value(two, "v"))
            for one, two in pairs
        )
        assert standing(found, "k", "left_g", "n", "v") == wanted
    else:
        wanted = Counter(
            (
                value(one or two, "k"),
                value(one, "g"),
                value(one, "n"),
                value(two, "n"),
                value(two, "total"),
            )
            for one, two in pairs
        )
        assert standing(found, "k", "g", "left_n", "right_n", "right_total") == wanted


@pytest.mark.parametrize("kind", ["inherited", "windows", "beside a plain stream", "united"])
@trees
@given(history=histories, data=st.data())
def test_a_merge_over_panes_that_are_taken_back_comes_to_the_plain_answer(kind, history, data):
    first = tg.stream(counted("k", "g"), key="k")
    second = (
        tg.stream(Columns(EVENTS), time="ts", key="k", watermark=tg.bounded("5 ms"))
        if kind == "beside a plain stream"
        else None
    )
    second = tg.stream(counted("k"), key="k") if second is None else second
    stream = tg.union(first, second) if kind == "united" else tg.merge(a=first, b=second)
    window = None if kind in ("inherited", "united") else tg.tumbling(2 * SIZE, unit="us")
    of: dict[str, Any] = {} if kind == "united" else {"of": "a"}
    found, left, right = run(
        windowed(stream, window).aggregate(rows=tg.count(), n=tg.sum("n", **of)), history, data.draw
    )
    ones = grouped(left, "k", "g")
    twos = (
        [{**row, "start": start_of(row["ts"])} for row in right]
        if kind == "beside a plain stream"
        else grouped(right, "k")
    )
    size = SIZE if window is None else 2 * SIZE
    wanted: dict[Any, tuple[int, list[int]]] = {}
    for row in [*ones, *twos]:
        place = (row["k"], row["start"] // size * size)
        rows, values = wanted.get(place, (0, []))
        counts = [row["n"]] if kind == "united" or ("g" in row and "n" in row) else []
        wanted[place] = (rows + 1, [*values, *counts])
    answer = Counter(
        (*place, rows, sum(values) if values else None) for place, (rows, values) in wanted.items()
    )
    assert (
        standing([row for row in found if row["rows"]], "k", "window_start", "rows", "n") == answer
    )


def test_late_rows_of_a_tree_whose_columns_disagree_are_told_as_text():
    """The first operator has words in `v` and the second has panes with a count in it; a list
    beside a number is a text too.
    """
    words = pa.schema({"ts": pa.int64(), "k": pa.string(), "v": pa.string()})
    numbers = pa.schema({"ts": pa.int64(), "k": pa.string(), "all": pa.float64()})
    panes = (
        tg.stream(Columns(words), time="ts", key="k")
        .window(tg.tumbling(SIZE, unit="us"))
        .retracting()
    )
    panes = panes.allow_lateness(0).aggregate(v=tg.count(), all=tg.list_("v"))
    both = (
        tg.stream(panes, key="k")
        .join(tg.stream(Columns(numbers), time="ts"), tg.tumbling(SIZE, unit="us"), on="k")
        .allow_lateness(0)
    )
    late = plan_of(both).schemas(THREE)["late"]
    assert (late.field("v").type, late.field("all").type) == (pa.string(), pa.string())
    fleet, found = Fleet.of(both, THREE), list[Row]()
    for ts in (FAR, 0):
        word, number = ([{"ts": ts, "k": "a", **more}] for more in ({"v": "x"}, {"all": 0.5}))
        tables = [pa.Table.from_pylist(word, words), pa.Table.from_pylist(number, numbers)]
        found += fleet.deliver([(n, 0, [table]) for n, table in enumerate(tables)], FAR).late
    assert {(row["reason"], row.get("v"), row.get("all")) for row in found} == {
        ("very_late", None, "0.5"),
        ("very_late", "x", None),
    }
