"""Sides of a join that consist of several streams, or are the output of another join."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from support.examples import examples
from tidegate.errors import InputError, SpecError
from tidegate.state.memory import MemoryStore

PLAIN = tg.stream(time="ts", watermark=tg.explicit())
OTHER = tg.stream(time="when", watermark=tg.explicit())
NEAR = tg.within(5, 5, unit="us")


def pairs(operator, *names):
    panes = operator.get_result().panes.to_pylist()
    operator.flush()
    return [(pane["op"], *(pane[name] for name in names)) for pane in panes]


def test_a_union_is_a_side_with_the_column_names_of_its_first_stream():
    store = MemoryStore()
    joined = tg.union(PLAIN, OTHER).join(PLAIN, NEAR, on="k", how="left").allow_lateness(0)
    op = joined.embedded(now=0, store=store)
    op.add_messages([{"ts": 1, "k": "a"}], input=0)
    op.add_messages([{"when": 3, "k": "b", "extra": 7}], input=1)
    op.add_messages([{"ts": 4, "k": "b"}], input="right")
    assert pairs(op, "left_ts", "right_ts", "extra") == [("+", 3, 4, 7)]
    op.advance_watermark(50, input=0)
    op.flush()
    op = joined.embedded(now=0, store=store)
    op.advance_watermark(50, input="right")
    assert pairs(op, "left_ts", "right_ts") == [("+", 1, None)]
    assert op.watermarks == (None, 50)
    assert op.output_watermarks == {"left_ts": -(1 << 63), "right_ts": -(1 << 63)}
    op.advance_watermark(40, input=1)
    assert op.watermarks == (40, 50)
    op.mark_idle(input=1)
    op.advance_watermark(60, input=0)
    assert op.watermarks == (60, 50)
    op.add_messages([{"when": 39, "k": "a"}], input=1)
    assert op.get_result().late.to_pylist()[0]["reason"] == "very_late"
    with pytest.raises(InputError, match="union of several inputs"):
        op.add(left=[])
    with pytest.raises(InputError, match="`ts` of input 1 is in the way"):
        op.add_messages([{"when": 70, "ts": 1, "k": "a"}], input=1)


def test_a_merge_is_a_side_whose_rows_have_the_name_of_their_stream():
    sides = tg.merge(orders=PLAIN, views=OTHER)
    op = sides.join(PLAIN, tg.tumbling(10, unit="us"), on="k", how="full").embedded(now=0)
    op.add_messages([{"ts": 1, "k": "a", "price": 3}], input="orders")
    op.add_messages([{"when": 2, "k": "a", "page": "x"}], input="views")
    op.add_messages([{"ts": 9, "k": "a"}], input="right")
    op.finish()
    assert pairs(op, "left_ts", "right_ts", "input", "price", "page", "window_end") == [
        ("+", 1, 9, "orders", 3, None, 10),
        ("+", 2, 9, "views", None, "x", 10),
    ]


def test_a_join_is_a_side_of_another_join():
    """A partner that comes late takes back what the padding of the first join brought about."""
    first = PLAIN.join(PLAIN, NEAR, on="k", how="left", names=("a_", "b_"))
    second = first.stream(time="a_ts").join(
        tg.stream(time="at", watermark=tg.explicit()), NEAR, on="k"
    )
    down = second.embedded(now=0)
    up = first.embedded(now=0, downstream=down.port("left"))
    down.add_messages([{"at": 2, "k": "x"}], input="right")
    up.add_messages([{"ts": 1, "k": "x"}], input="left")
    up.advance_watermark(20, input="left")
    up.advance_watermark(20, input="right")
    up.add_messages([{"ts": 3, "k": "x"}], input="right")
    assert pairs(down, "a_ts", "b_ts", "at") == [
        ("+", 1, None, 2),
        ("-", 1, None, 2),
        ("+", 1, 3, 2),
    ]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (tg.stream(time="ts", key="k"), "same key columns"),
        (tg.stream(time="ts", offset="o"), "`offset` and some do not"),
    ],
)
def test_streams_that_cannot_be_united_are_refused(other, why):
    with pytest.raises(SpecError, match=why):
        tg.union(tg.stream(time="ts"), other)


def test_a_union_of_streams_with_different_time_columns_is_aggregated():
    panes = tg.union(PLAIN, OTHER).window(tg.tumbling(10, unit="us")).aggregate(n=tg.count())
    op = panes.embedded(now=0)
    op.add_messages([{"ts": 1}], input=0)
    op.add_messages([{"when": 2}, {"when": 12}], input=1)
    op.finish()
    assert [pane["n"] for pane in op.get_result().panes.to_pylist()] == [2, 1]


ROWS = st.tuples(st.integers(0, 2), st.integers(0, 20), st.sampled_from("ab"))
WINDOWS = [
    NEAR,
    tg.tumbling(6, unit="us"),
    tg.session(3, unit="us"),
    tg.as_of(5, unit="us"),
    tg.sliding(4, unit="us"),
]


@examples(60)
@given(
    rows=st.lists(ROWS, max_size=20),
    window=st.sampled_from(WINDOWS),
    how=st.sampled_from(["inner", "left"]),
    mark=st.integers(0, 25),
)
def test_a_union_gives_what_one_stream_with_its_rows_gives(rows, window, how, mark):
    """Input 0 and 1 are the left side of one join, and both go to the left input of the other."""
    schemas = (pa.schema({"ts": pa.int64(), "k": pa.string()}),) * 2
    many = tg.union(PLAIN, OTHER).join(PLAIN, window, on="k", how=how).allow_lateness(3, unit="us")
    one = PLAIN.join(PLAIN, window, on="k", how=how).allow_lateness(3, unit="us")
    ops = [joined.embedded(now=0, schemas=schemas) for joined in (many, one)]
    for number, (given_input, time, key) in enumerate(rows):
        name = "when" if given_input == 1 else "ts"
        ops[0].add_messages([{name: time, "k": key}], input=given_input)
        ops[1].add_messages([{"ts": time, "k": key}], input=given_input // 2)
        if number == len(rows) // 2:
            for ordinal, later in ((0, 0), (1, 2), (2, 0)):
                ops[0].advance_watermark(mark + later, input=ordinal)
            for ordinal in (0, 1):
                ops[1].advance_watermark(mark, input=ordinal)
    for op in ops:
        op.finish()
    found = [op.get_result() for op in ops]
    assert found[0].panes.to_pylist() == found[1].panes.to_pylist()
    assert found[0].late.num_rows == found[1].late.num_rows


@pytest.mark.parametrize("kept", [False, True])
def test_a_partition_that_begins_behind_windows_on_offsets_is_late(kept: bool):
    """Its partners may be gone; retention keeps them."""
    side = tg.stream(key="k", offset="o", partition="p")
    joined = side.join(side, tg.tumbling(2, axis="offset"), how="left", names=("l_", "r_"))
    op = (joined.retain(messages=100) if kept else joined).embedded(now=0)
    for offset in range(4):
        rows = [{"k": 1, "o": offset, "p": "x"}]
        op.add(left=rows, right=rows)
    op.get_result()
    op.flush()
    late = [{"k": 1, "o": 1, "p": "y"}, {"k": 1, "o": 7, "p": "y"}]
    op.add(left=late)
    op.add(right=late[:1])
    op.finish()
    result = op.get_result()
    found = {(row["l_o"], row["r_o"], row["r_p"]) for row in result.panes.to_pylist()}
    reasons = [(row["reason"], row["input"]) for row in result.late.to_pylist()]
    if kept:
        assert (1, 1, "y") in found
        assert not reasons
    else:
        assert found == {(7, None, None)}
        assert reasons == [("window_expired", "left"), ("window_expired", "right")]
