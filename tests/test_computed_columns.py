"""Time, key and session gap as functions over columns."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tidegate as tg
from support.column_functions import owner, patience, seconds
from tidegate.errors import InputError, SpecError, StateError
from tidegate.operators.ingest.computed_columns import with_computed_columns
from tidegate.spec.computed import Computed
from tidegate.spec.windows import Session, window_from_dict
from tidegate.state.memory import MemoryStore

SECOND = 1_000_000
ROWS = [
    {"s": "3", "user": "ann.phone", "v": 1},
    {"s": "8", "user": "ann.web", "v": 2},
    {"s": "12", "user": "bob.web", "v": 4},
    {"s": "21", "user": "ann.web", "v": 8},
]


def summed(**columns):
    return (
        tg.stream(watermark=tg.explicit(), **columns)
        .window(tg.tumbling("10 seconds"))
        .aggregate(total=tg.sum("v"))
    )


def values(op, *names):
    op.finish()
    return [tuple(pane[name] for name in names) for pane in op.get_result().panes.to_pylist()]


def test_time_and_key_are_computed_from_other_columns():
    op = summed(time=seconds, key=owner).embedded(now=0)
    op.add_messages(ROWS)
    assert values(op, "owner", "window_start", "total") == [
        ("ann", 0, 3),
        ("bob", 10 * SECOND, 4),
        ("ann", 20 * SECOND, 8),
    ]


@pytest.mark.parametrize("cuts", [[1, 2, 3], [2], []])
@pytest.mark.parametrize("single", [False, True])
def test_the_result_does_not_depend_on_deliveries_or_on_their_form(cuts, single):
    op = summed(time=seconds, key=owner).embedded(now=0)
    for first, last in zip([0, *cuts], [*cuts, len(ROWS)], strict=True):
        if single:
            for row in ROWS[first:last]:
                op.add_message(row)
        else:
            op.add_messages(pa.Table.from_pylist(ROWS[first:last]))
    assert sorted(values(op, "owner", "total")) == [("ann", 3), ("ann", 8), ("bob", 4)]


def test_a_lambda_is_named_after_its_role_and_several_keys_are_told_apart():
    keys = [lambda rows: rows["user"], lambda rows: pc.utf8_length(rows["user"])]
    stream = tg.stream(time=lambda rows: pc.add(seconds(rows), 0), key=[*keys, "v"])
    assert (stream.input.time, stream.input.key) == ("time", ("key", "key_", "v"))
    op = summed(time=lambda rows: pc.add(seconds(rows), 0), key=keys).embedded(now=0)
    op.add_messages(ROWS[:1])
    assert values(op, "key", "key_", "total") == [("ann.phone", 9, 1)]


def test_rows_for_which_a_function_raises_are_late_and_the_others_count():
    op = summed(time=seconds, key=owner).embedded(now=0)
    op.add_messages([*ROWS[:2], {"s": "soon", "user": "ann.web", "v": 16}, *ROWS[2:]])
    late = op.get_result().late.to_pylist()
    assert [(row["reason"], row["v"]) for row in late] == [("bad_value", 16)]
    assert "`seconds` raised ArrowInvalid" in late[0]["detail"]
    assert [total for (total,) in values(op, "total")] == [3, 4, 8]


def test_a_null_time_is_a_missing_time():
    op = summed(time=seconds).embedded(now=0)
    op.add_messages([{"s": None, "user": "x", "v": 1}, ROWS[0]])
    assert [row["reason"] for row in op.get_result().late.to_pylist()] == ["null_time"]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda rows: rows["missing"], "fails on an empty table"),
        (lambda rows: [1] * len(rows), "must return an Arrow column"),
        (lambda rows: pa.array([1]), "for each of 4 rows, got 1 values"),
        (lambda rows: 7, "got int"),
    ],
)
def test_functions_that_break_the_contract_are_refused_and_nothing_is_processed(function, message):
    op = summed(time=function).embedded(now=0)
    with pytest.raises(SpecError, match=message):
        op.add_messages(ROWS)
    assert op.get_result().late.num_rows == 0


def test_a_column_of_the_same_name_is_refused():
    op = summed(time=seconds).embedded(now=0)
    with pytest.raises(InputError, match="have a column `seconds`"):
        op.add_messages([{**ROWS[0], "seconds": 1}])


def test_what_is_no_function_is_refused():
    with pytest.raises(SpecError, match="`key` takes the name of a column or a function"):
        tg.stream(time="ts", key=7)
    with pytest.raises(SpecError, match="got 3"):
        Computed("x", 3)


def test_functions_are_part_of_the_specification_by_name():
    store = MemoryStore()
    op = summed(time=seconds, key=owner).embedded(store=store, now=0)
    op.add_messages(ROWS[:2])
    op.flush()
    assert json.dumps(op.spec.to_dict())
    again = summed(
        time={"function": "support.column_functions:seconds"},
        key={"function": "support.column_functions:owner"},
    )
    assert again.spec == op.spec
    op = again.embedded(store=store, now=0)
    op.add_messages(ROWS[2:])
    assert sorted(values(op, "owner", "total")) == [("ann", 3), ("ann", 8), ("bob", 4)]

    def other(rows):
        return owner(rows)

    other.__name__ = "owner"
    with pytest.raises(StateError, match="computed"):
        summed(time=seconds, key=other).embedded(store=store, now=0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seconds", "named as `module:name`"),
        ("support.column_functions:hours", "cannot be imported"),
        ("support.no_such_module:seconds", "cannot be imported"),
        ("support.column_functions:NUMBER", "is a int, not a function"),
        (3, "named as `module:name`"),
    ],
)
def test_names_that_name_no_function_are_refused(text, message):
    with pytest.raises(SpecError, match=message):
        tg.stream(time={"function": text})


def test_joins_unions_and_async_maps_compute_columns_too():
    left = tg.stream(time=seconds, key=owner, watermark=tg.explicit())
    right = tg.stream(time="ts", key="owner", watermark=tg.explicit())
    join = left.join(right, tg.within("5 seconds", "5 seconds"), on="owner").embedded(now=0)
    join.add(left=ROWS[:1], right=[{"ts": 4 * SECOND, "owner": "ann", "w": 1}])
    join.finish()
    assert [row["w"] for row in join.get_result().panes.to_pylist()] == [1]

    united = tg.union(
        tg.stream(time=seconds, watermark=tg.explicit()),
        tg.stream(time="seconds", watermark=tg.explicit()),
    )
    op = united.window(tg.tumbling("10 seconds")).aggregate(total=tg.sum("v")).embedded(now=0)
    op.add_messages([{"s": "3", "v": 1}])
    op.add_messages([{"seconds": 4 * SECOND, "v": 2}], input=1)
    assert values(op, "total") == [(3,)]

    async def doubled(row):
        return {"v": 2 * row["v"], "at": row["seconds"]}

    mapped = tg.stream(time=seconds).async_map(doubled).embedded(now=0)
    mapped.add_messages(ROWS[:1])
    mapped.finish()
    assert mapped.get_result().rows.to_pylist() == [{"v": 2, "at": 3 * SECOND}]


# Session gaps


def sessions(gap, **options):
    return (
        tg.stream(time="ts", key="k", watermark=tg.explicit())
        .window(tg.session(gap, **options))
        .aggregate(n=tg.count())
    )


def visits(*rows):
    return [{"ts": ts * SECOND, "k": "a", "wait": wait} for ts, wait in rows]


def test_each_event_has_the_gap_that_a_function_computes():
    op = sessions(patience).embedded(now=0)
    op.add_messages(visits((0, 10), (5, 1), (12, 3), (14, 0)))
    by_function = values(op, "window_start", "window_end", "n")
    assert by_function == [(0, 10 * SECOND, 2), (12 * SECOND, 15 * SECOND, 2)]


def test_bad_gaps_are_late():
    op = sessions(patience).embedded(now=0)
    op.add_messages(visits((0, 10), (1, None), (2, -1)))
    assert [row["reason"] for row in op.get_result().late.to_pylist()] == ["bad_gap", "bad_gap"]
    assert values(op, "n") == [(1,)]


def test_gaps_of_a_function_equal_those_of_a_column():
    rows = visits((0, 10), (5, 1), (12, 3), (14, 4), (30, 2), (17, 5))
    by_function, by_column = sessions(patience).embedded(now=0), None
    by_function.add_messages(rows)
    by_column = (
        tg.stream(time="ts", key="k", watermark=tg.explicit())
        .window(tg.session(gap_column="gap"))
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    by_column.add_messages([{**row, "gap": row["wait"] * SECOND} for row in rows])
    names = ("window_start", "window_end", "n")
    assert values(by_function, *names) == values(by_column, *names)


def test_a_gap_by_function_is_data():
    window = tg.session(patience)
    assert window == tg.session({"function": "support.column_functions:patience"})
    assert window_from_dict(json.loads(json.dumps(window.to_dict()))) == window
    spec = sessions(patience).spec
    assert spec.window == Session(gap_column="session_gap")
    assert [column.name for column in spec.input.computed] == ["session_gap"]


@pytest.mark.parametrize("options", [{"gap_column": "g"}, {"unit": "s"}])
def test_a_gap_by_function_takes_no_column_and_no_unit(options):
    with pytest.raises(SpecError, match="neither `gap_column` nor `unit`"):
        tg.session(patience, **options)


def test_broken_rows_stay_broken():
    table = pa.table({"s": ["3", "x"]})
    first = with_computed_columns(table, [Computed("a", seconds)])
    second = with_computed_columns(first, [Computed("b", seconds)])
    assert second["b"].to_pylist() == [3 * SECOND, None]
    assert second.column_names.count("\x00broken") == 1
