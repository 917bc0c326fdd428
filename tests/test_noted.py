"""Notes: rows without a time in which a writer says how far it is, and which are no events,
wherever rows are taken in.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from support.examples import examples
from support.reference.watermark_tracker import SlowIntake, is_event
from support.source_histories import SCHEMA, row, watched
from support.spark_fakes import Columns, Fleet
from tidegate.instants import MIN
from tidegate.kernel.watermarks.row_selection import condense
from tidegate.spark.tasks.shards import ShardLayout
from tidegate.spec.operator import Input, TimeColumn
from tidegate.spec.watermarks import Bounded, Noted, Punctuated

Row = dict[str, Any]
FAR = 10**9
SEVEN = ShardLayout.balanced(7)
NOTED = tg.noted("wm")
FULL = pa.schema({"ts": pa.int64(), "k": pa.string(), "wm": pa.int64(), "writer": pa.string()})


@pytest.fixture(autouse=True)
def _no_workers() -> Iterator[None]:
    Fleet.forget_workers()
    yield
    Fleet.forget_workers()


def counted(
    *, window: Any = None, lateness: int = 0, tolerance: int = FAR, **stream: Any
) -> tg.Panes:
    made = tg.stream(**{"time": "ts", "watermark": NOTED, **stream})
    windowed = made.window(tg.tumbling(10, unit="us") if window is None else window).allow_lateness(
        lateness, unit="us"
    )
    return windowed.options(future_tolerance=f"{tolerance} us").aggregate(n=tg.count())


def event(ts: int | None, **more: Any) -> Row:
    return {"ts": ts, "wm": None, "writer": None, **more}


def note(wm: int | None, writer: str | None = "w", **more: Any) -> Row:
    return {"ts": None, "wm": wm, "writer": writer, **more}


def table(*rows: Row, schema: pa.Schema = FULL) -> pa.Table:
    return pa.Table.from_pylist([dict(row) for row in rows], schema)


def fired(op: Any) -> list[tuple[int, int]]:
    found = [(pane["window_start"], pane["n"]) for pane in op.get_result().panes.to_pylist()]
    op.flush()
    return found


def reasons(op: Any) -> list[str]:
    return [row["reason"] for row in op.get_result().late.to_pylist()]


def tallied(op: Any, *names: str) -> tuple[int, ...]:
    return tuple(op.stats()[name] for name in names)


# One operator


def test_a_note_moves_its_writer_and_is_no_event():
    op = counted().embedded(now=0)
    op.add_messages([event(5), note(10)])
    assert (fired(op), op.watermark) == ([(0, 1)], 10)
    assert tallied(op, "events", "markers", "late_rows", "unreadable") == (1, 1, 0, 0)


@pytest.mark.parametrize("broken", [note(None), note(20, None), note(None, None)], ids=str)
def test_a_row_without_a_time_that_notes_none_or_names_nobody_is_late(broken):
    op = counted().embedded(now=0)
    op.add_messages([event(5), note(10), broken])
    assert (reasons(op), op.watermark) == (["null_time"], 10)
    assert tallied(op, "events", "markers", "unreadable") == (2, 1, 1)


def test_a_time_that_cannot_be_read_makes_no_note_and_nor_does_a_noted_one():
    op = counted().embedded(now=0)
    good = {"ts": "1970-01-01T00:00:01", "wm": "1970-01-01T00:00:01", "writer": "w"}
    op.add_messages(
        [good, {**good, "ts": "soon"}, {**good, "ts": None, "wm": "soon"}, {**good, "ts": None}]
    )
    assert sorted(reasons(op)) == ["bad_time", "null_time"]
    assert tallied(op, "events", "markers", "unreadable") == (3, 1, 2)


def test_a_row_with_a_time_is_an_event_whatever_it_notes():
    op = counted().embedded(now=0)
    op.add_messages([event(5, wm=3, writer="w"), event(11, wm=12, writer="w")])
    assert (fired(op), op.watermark, op.stats()["markers"]) == ([(0, 1)], 12, 0)


def test_a_note_may_come_first_and_alone():
    op = counted().embedded(now=0)
    op.add_messages([note(3)])
    op.add_messages([event(5), note(10)])
    assert (fired(op), op.stats()["markers"]) == ([(0, 1)], 2)


def test_a_note_from_the_future_is_refused_and_no_event():
    op = counted(tolerance=60).embedded(now=0)
    op.add_messages([event(5), note(500)], now=10)
    assert (reasons(op), fired(op), op.watermark) == ([], [], None)
    assert tallied(op, "markers", "watermarks_refused") == (1, 1)


def test_a_note_with_a_value_of_the_wrong_type_goes_to_late():
    op = counted().embedded(now=0)
    op.add_messages(pa.table({"ts": [5], "wm": [1], "writer": ["w"], "v": [1]}))
    op.add_messages(
        pa.table({"ts": pa.nulls(1, pa.int64()), "wm": [2], "writer": ["w"], "v": ["many"]})
    )
    assert (reasons(op), op.stats()["markers"]) == (["bad_value"], 0)


@pytest.mark.parametrize("axis", ["clock", "ordinal", "offset"])
def test_notes_are_events_on_no_axis(axis):
    size = {} if axis != "clock" else {"unit": "us"}
    op = counted(window=tg.tumbling(10, axis=axis, **size), offset="o").embedded(now=0)
    op.add_messages([event(1, o=1), note(99, o=2), event(2, o=3)])
    op.finish()
    assert (reasons(op), op.stats()["markers"]) == ([], 1)
    assert sum(n for _, n in fired(op)) == 2


@pytest.mark.parametrize("name", ["offset", "id"])
def test_a_note_that_comes_again_changes_nothing(name):
    op = counted(lateness=100, **{name: "x"}).embedded(now=0)
    rows = [event(5, x=1), note(8, x=2)]
    op.add_messages(rows)
    op.add_messages([*rows, note(10, x=3)])
    assert (
        fired(op),
        op.watermark,
        tallied(op, "events", "late_rows", "watermark_steps_back"),
    ) == ([(0, 1)], 10, (1, 0, 0))


def test_notes_of_partitions_are_of_writers_in_them():
    op = counted(partition="p").embedded(now=0)
    op.add_messages([event(5, p="a"), note(30, p="a"), note(10, p="b")])
    assert (fired(op), op.watermark) == ([(0, 1)], 10)


def test_each_input_of_a_union_has_its_own_notes():
    streams = [tg.stream(time="ts", watermark=mark) for mark in (NOTED, tg.bounded(0))]
    op = (
        tg.union(*streams)
        .window(tg.tumbling(10, unit="us"))
        .options(future_tolerance=f"{FAR} us")
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    op.add_messages(table(event(5), note(40)), input=0)
    op.add_messages(table(event(20), note(50)), input=1)
    assert (reasons(op), op.stats()["markers"]) == (["null_time"], 1)
    assert (fired(op), op.watermark) == ([(0, 1)], 20)


def test_notes_survive_a_restart():
    store = tg.MemoryStore()
    op = counted().embedded(now=0, store=store)
    op.add_messages(table(event(5), note(8)))
    op.flush()
    op = counted().embedded(now=0, store=store)
    op.add_messages(table(note(10)))
    assert (fired(op), op.watermark, op.stats()["markers"]) == ([(0, 1)], 10, 2)


@pytest.mark.parametrize("granularity", ["batch", "element"])
@pytest.mark.parametrize(
    "trigger", [None, tg.after_watermark(early=tg.after_count(1), late=tg.after_count(1))], ids=str
)
def test_what_a_delivery_notes_makes_none_of_its_events_late(granularity, trigger):
    made = tg.stream(time="ts", watermark=NOTED).window(tg.tumbling(10, unit="us"))
    op = (
        (made if trigger is None else made.trigger(trigger))
        .options(granularity=granularity)
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    op.add_messages(
        [note(30), event(5), note(20, "v"), event(15), note(40), note(40, "v"), event(35)]
    )
    assert (tallied(op, "on_time", "mildly_late", "very_late"), op.watermark) == ((3, 0, 0), 40)
    op.add_messages([event(39), note(41)])
    assert tallied(op, "on_time", "mildly_late", "very_late") == (3, 1, 0)


# Several time columns

TWO = {"time": "ts", "watermark": NOTED, "times": {"seen": tg.noted("wm2", writer="writer2")}}
"""Each of the time columns has notes of its own."""


def of_two(**values: Any) -> Row:
    return {
        "ts": None,
        "wm": None,
        "writer": None,
        "seen": None,
        "wm2": None,
        "writer2": None,
        **values,
    }


def test_a_note_has_none_of_the_times_of_its_stream():
    op = counted(**TWO).embedded(now=0)
    op.add_messages(
        [
            of_two(ts=5, seen=6),
            of_two(wm=10, writer="w", seen=7),
            of_two(wm2=8, writer2="v"),
            of_two(wm=9, writer="w"),
        ]
    )
    assert (reasons(op), op.stats()["markers"], fired(op)) == (["null_time"], 2, [(0, 1)])


def test_both_notes_of_an_async_map_move_their_watermarks_and_are_not_called():
    async def echo(message: Row) -> Row:
        await asyncio.sleep(0)
        return message

    with tg.stream(**TWO).async_map(echo).embedded(now=0) as mapped:
        mapped.add_messages(
            [
                of_two(ts=5, seen=6),
                of_two(wm=3, writer="w"),
                of_two(wm2=4, writer2="v"),
                of_two(wm=9, writer="w", seen=8),
            ],
            now=100,
        )
        mapped.finish()
        result = mapped.get_result()
        assert tallied(mapped, "markers", "results") == (2, 2)
        assert [(message["ts"], message["seen"]) for message in result.rows.to_pylist()] == [
            (5, 6),
            (None, 8),
        ]


def test_of_several_time_columns_the_notes_of_each_are_condensed_for_themselves():
    several = Input(
        "ts",
        watermark=Noted("wm"),
        others=(TimeColumn("seen", Noted("wm2", "writer2"), 1), TimeColumn("third", Bounded(0), 2)),
    )
    rows = [of_two(wm=n, writer="w", third=None) for n in range(1, 6)] + [
        of_two(wm2=n, writer2="v", third=None) for n in range(1, 6)
    ]
    schema = pa.schema({name: pa.string() if "writer" in name else pa.int64() for name in rows[0]})
    found = condense(table(*rows, schema=schema), several, FAR).to_pylist()
    assert sorted({row["wm"] for row in found} - {None}) == [1, 5]
    assert sorted({row["wm2"] for row in found} - {None}) == [1, 5]


# Joins


def joined() -> Any:
    left, right = tg.stream(time="ts", watermark=NOTED), tg.stream(time="at", watermark=NOTED)
    return (
        left.join(right, tg.within(10, 10, unit="us"), on="k", how="left")
        .allow_lateness(0, unit="us")
        .options(future_tolerance=f"{FAR} us")
    )


def test_notes_close_joins_and_are_rows_of_neither_side():
    join = joined().embedded(now=0)
    join.add_messages(
        [
            {"ts": 5, "k": 1, "wm": None, "writer": None},
            {"ts": None, "k": None, "wm": 40, "writer": "w"},
        ],
        input="left",
    )
    join.add_messages(
        [
            {"at": None, "k": None, "wm": 40, "writer": "w"},
            {"at": None, "k": None, "wm": None, "writer": "w"},
        ],
        input="right",
    )
    result = join.get_result()
    assert [(pane["ts"], pane["at"]) for pane in result.panes.to_pylist()] == [(5, None)]
    assert [(late["input"], late["reason"]) for late in result.late.to_pylist()] == [
        ("right", "null_time")
    ]
    assert tallied(join, "events", "markers", "unreadable") == (2, 2, 1)


def test_notes_of_a_join_by_tuples_are_no_tuples():
    left, right = (tg.stream(time="ts", offset="o", watermark=NOTED) for _ in range(2))
    join = left.join(right, tg.rows(1, 1), on="k").embedded(now=0)
    join.add_messages(
        [
            {"ts": 1, "k": 1, "wm": None, "writer": None, "o": 1},
            {"ts": None, "k": 1, "wm": 40, "writer": "w", "o": 2},
        ],
        input="left",
    )
    join.add_messages([{"ts": 2, "k": 1, "wm": None, "writer": None, "o": 1}], input="right")
    assert (join.get_result().panes.num_rows, join.stats()["markers"]) == (1, 1)


# Against the reference

said = st.tuples(watched, st.sampled_from([None, 25])).map(
    lambda both: Noted("wm", forget_after=both[1], **both[0])
)
names = st.sampled_from("ab")
noting = st.fixed_dictionaries(
    {"ts": st.none(), "p": names, "wm": st.integers(0, 60), "m": st.booleans(), "writer": names}
)
deliveries = st.lists(
    st.tuples(st.lists(row | noting, min_size=1, max_size=6), st.integers(0, 8)), max_size=8
)


@given(said | st.just(Punctuated(marker="m")), deliveries, st.sampled_from([FAR, 10]))
def test_what_counts_as_an_event_and_the_watermark_are_those_of_the_reference(
    spec, history, tolerance
):
    op = counted(partition="p", watermark=spec, tolerance=tolerance).embedded(now=0)
    slow = SlowIntake([spec], 0, tolerance)
    events = markers = unreadable = 0
    for rows, wait in history:
        slow.deliver(0, rows, slow.now + wait)
        op.add_messages(table(*rows, schema=SCHEMA), now=slow.now)
        taken = [one for one in rows if is_event(spec, one)]
        events, markers = events + len(taken), markers + len(rows) - len(taken)
        unreadable += sum(one["ts"] is None for one in taken)
        assert op.watermark == (None if slow.watermark == MIN else slow.watermark)
        assert tallied(op, "events", "markers", "unreadable") == (events, markers, unreadable)


# Edges and shards


def pipelined(granularity: str = "element") -> tg.Panes:
    made = tg.stream(Columns(FULL), time="ts", key="k", watermark=NOTED).window(
        tg.tumbling(10, unit="us")
    )
    return made.options(granularity=granularity, future_tolerance=f"{FAR} us").aggregate(
        n=tg.count()
    )


def tasks_of(rows: list[Row], dice: random.Random) -> list[tuple[int, int, list[pa.Table]]]:
    """The rows as three tasks read them, some of them in two pieces."""
    dealt: dict[int, list[Row]] = {}
    for one in rows:
        dealt.setdefault(dice.randrange(3), []).append(one)
    middles = {task: dice.randrange(len(mine) + 1) for task, mine in dealt.items()}
    cut = {task: [mine[: middles[task]], mine[middles[task] :]] for task, mine in dealt.items()}
    return [
        (0, task, [table(*piece) for piece in pieces if piece])
        for task, pieces in sorted(cut.items())
    ]


keyed = st.builds(event, st.integers(0, 9), k=st.sampled_from(["a", "b", "c", None]))


@pytest.mark.parametrize("granularity", ["batch", "element"])
@examples(25)
@given(
    history=st.lists(
        st.tuples(st.lists(keyed, max_size=5), st.integers(1, 20)), min_size=1, max_size=5
    ),
    seed=st.integers(0, 99),
)
def test_what_a_batch_notes_makes_none_of_its_events_late_in_any_task_or_shard(
    granularity, history, seed
):
    """Times of a batch begin where the note of the batch before stands, and its own note is behind
    all of them.
    """
    Fleet.forget_workers()
    fleet, dice, at = Fleet.of(pipelined(granularity), SEVEN), random.Random(seed), 0
    panes: list[Row] = []
    for rows, step in history:
        events = [{**one, "ts": at + min(one["ts"], step - 1)} for one in rows]
        at += step
        noted = [note(at), note(at)]
        found = fleet.deliver(
            tasks_of(dice.sample([*events, *noted], len(events) + 2), dice),
            0,
            shuffle=lambda mine: dice.sample(mine, len(mine)),
        )
        assert found.late == []
        panes += found.panes
    panes += fleet.deliver([(0, 0, [table(note(at + 10))])], 0).panes
    counters = fleet.counters()
    assert (counters["mildly_late"], counters["very_late"], counters["unreadable"]) == (0, 0, 0)
    assert counters["events"] == counters["on_time"] == sum(len(rows) for rows, _ in history)
    assert {pane["timing"] for pane in panes} <= {"on_time"}
    assert sum(pane["n"] for pane in panes) == sum(len(rows) for rows, _ in history)


def test_notes_of_a_join_are_known_in_all_shards_and_make_nothing_of_their_batch_late():
    left, right = (tg.stream(Columns(FULL), time="ts", watermark=NOTED) for _ in range(2))
    join = (
        left.join(right, tg.within(10, 10, unit="us"), on="k", how="left")
        .allow_lateness(0, unit="us")
        .options(future_tolerance=f"{FAR} us")
    )
    fleet = Fleet.of(join, SEVEN)
    keys = "abcdefgh"
    first = fleet.deliver(
        [
            (0, 0, [table(note(20))]),
            (0, 1, [table(*(event(5, k=key) for key in keys))]),
            (1, 0, [table(note(3))]),
        ],
        0,
    )
    assert (first.panes, first.late) == ([], [])
    second = fleet.deliver(
        [
            (1, 0, [table(note(50))]),
            (1, 1, [table(*(event(7, k=key) for key in keys[:4]), event(None, k="a"))]),
        ],
        0,
    )
    assert [row["reason"] for row in second.late] == ["null_time"]
    pairs = [
        (row["left_k"] if "left_k" in row else row["k"], row["right_ts"]) for row in second.panes
    ]
    assert sorted(pairs, key=str) == sorted(
        [(key, 7 if key in keys[:4] else None) for key in keys], key=str
    )
