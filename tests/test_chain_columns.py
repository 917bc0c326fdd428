"""Columns between chained operators: types that come late, computed columns, and retractions."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tidegate as tg
from tidegate.instants import MIN

EAGER = tg.after_watermark(early=tg.after_count(1), late=tg.after_count(1))
Row = dict[str, Any]


def windowed(stream: tg.Stream, size: int = 10, trigger: Any = EAGER) -> tg.Windowed:
    found = stream.window(tg.tumbling(size, unit="us")).trigger(trigger)
    return found.retracting().allow_lateness(100, unit="us")


def source(**more: Any) -> tg.Stream:
    return tg.stream(time="ts", key="k", watermark=tg.explicit(), **more)


def panes_of(**more: Any) -> tg.Stream:
    return tg.stream(time="time", watermark=tg.explicit(), **more)


def row(ts: int, k: str | None = "a", **values: Any) -> Row:
    return {"ts": ts, "k": k, **values}


def emitted(operator: Any) -> list[Row]:
    """What is left of the panes after their retractions, without a late row."""
    result = operator.get_result()
    assert result.late.num_rows == 0
    found: list[Row] = []
    hidden = {"pane_id", "pane", "timing", "op", "watermark", "emitted_at", "is_first", "is_last"}
    for pane in result.panes.to_pylist():
        shown = {
            name: value
            for name, value in pane.items()
            if name.removeprefix("input_") not in hidden | {"pane_nonspeculative", "pair_id"}
        }
        if pane["op"] == "+":
            found.append(shown)
        else:
            found.remove(shown)
    return found


@pytest.mark.parametrize(
    ("aggregate", "text", "number"),
    [
        (tg.max("v"), "x", 3),
        (tg.first("v"), "x", 3),
        (tg.distinct("v"), ["x"], [3]),
        (tg.list_("v"), ["x"], [3]),
    ],
)
@pytest.mark.parametrize("joined", [False, True])
def test_a_type_that_comes_after_panes_of_nulls(
    aggregate: Any, text: Any, number: Any, joined: bool
):
    """The first panes hold nulls of no type, which the next operator keeps."""
    for value, wanted in (("x", text), (3, number)):
        stream = panes_of(key=["k"])
        if joined:
            other = tg.stream(time="ts", key=["k"], watermark=tg.explicit())
            spec: Any = stream.join(other, tg.within(5, 5, unit="us"), on="k", how="left")
            last = spec.early_padding().embedded(now=0)
            last.add_messages([row(900)], input="right")
            port: Any = last.port("left")
        else:
            listed = windowed(stream, 100).aggregate(values=tg.list_("found"))
            last = port = listed.embedded(now=0)
        first = windowed(source()).aggregate(found=aggregate).embedded(downstream=port, now=0)
        first.add_messages([row(1, v=None)])
        first.add_messages([row(11, v=value)])
        nothing = [None] if isinstance(aggregate, tg.list_("v").__class__) else []
        empty = nothing if isinstance(wanted, list) else None
        found = emitted(last)
        if joined:
            assert [pane["found"] for pane in found] == [empty, wanted]
        else:
            assert [pane["values"] for pane in found] == [[empty, wanted]]


def test_panes_show_no_type_for_a_column_of_nulls():
    op = (
        windowed(source())
        .aggregate(top=tg.max("v"), every=tg.list_("v"), average=tg.mean("v"), n=tg.count("v"))
        .embedded(now=0)
    )
    op.add_messages([row(1, v=None)])
    schema = op.get_result().panes.schema
    assert schema.field("top").type == pa.null()
    assert schema.field("every").type == pa.list_(pa.null())
    assert schema.field("average").type == pa.float64()
    assert schema.field("n").type == pa.int64()


@pytest.mark.parametrize("shape", [pa.list_, lambda kind: pa.struct({"x": kind})])
def test_a_nested_type_whose_parts_come_later(shape: Any):
    """In messages that an operator keeps."""
    op = windowed(source()).aggregate(last=tg.last("v"), all=tg.list_("v")).embedded(now=0)
    is_list = shape is pa.list_
    values: list[Any] = [[], ["x"]] if is_list else [{"x": None}, {"x": "y"}]
    for ts, value, kind in zip((1, 2), values, (pa.null(), pa.string()), strict=True):
        column = pa.array([value], shape(kind))
        op.add_messages(pa.table({"ts": [ts], "k": ["a"], "v": column}))
    assert [(pane["last"], pane["all"]) for pane in emitted(op)] == [(values[1], values)]


def double_gap(rows: pa.Table) -> pa.ChunkedArray:
    return pc.multiply(rows.column("n"), 2)


def test_a_gap_function_behind_an_upstream_that_announces_its_columns():
    """The upstream has columns before it has panes."""
    last = (
        panes_of()
        .window(tg.session(double_gap))
        .trigger(EAGER)
        .retracting()
        .allow_lateness(100, unit="us")
        .aggregate(most=tg.apply(lambda rows: rows.num_rows, pa.int64(), ["n"]))
        .embedded(now=0)
    )
    first = windowed(source(), 2, tg.after_watermark(late=tg.after_count(1)))
    op = first.aggregate(n=tg.count()).embedded(downstream=last, now=0)
    op.add_messages([row(1), row(2), row(2), row(9)])
    op.advance_watermark(20)
    op.finish()
    bounds = [(p["window_start"], p["window_end"], p["most"]) for p in emitted(last)]
    assert sorted(bounds) == [(1, 3, 1), (3, 7, 1), (9, 11, 1)]


def test_both_inputs_of_a_side_are_announced():
    """The second input of a union has an ordinal of its own."""
    union = tg.union(panes_of(key=["k"]), panes_of(key=["k"]))
    right = tg.stream(time="ts", key=["k"], watermark=tg.explicit())
    joined = union.join(right, tg.within(5, 5, unit="us"), on="k", how="left")
    last = joined.early_padding().embedded(now=0)
    ends = tg.after_watermark(late=tg.after_count(1))
    ups = [
        windowed(source(), 10, ends)
        .aggregate(n=tg.count())
        .embedded(downstream=last.port(number), now=0)
        for number in (0, 1)
    ]
    for op in ups:
        op.add_messages([row(1)])
        op.advance_watermark(20)
    last.add_messages([row(900)], input=2)
    assert [(pane["k"], pane["n"]) for pane in emitted(last)] == [("a", 1), ("a", 1)]


def test_a_join_keeps_no_op_column_when_a_type_comes_late():
    """Rows stored before the type was known and after it have the same columns."""
    left = tg.stream(time="ts", key=["k"], watermark=tg.explicit())
    spec = left.join(panes_of(key=["k"]), tg.within(50, 50, unit="us"), on="k")
    last = spec.embedded(now=0)
    op = windowed(source()).aggregate(top=tg.max("v")).embedded(downstream=last.port(1), now=0)
    for ts in range(40):
        op.add_messages([row(ts, v=None if ts < 3 else ts)])
    last.add_messages([row(1)], input=0)
    assert sorted(pane["top"] for pane in emitted(last)) == [9, 19, 29, 39]


def test_a_first_delivery_whose_retraction_leaves_no_row():
    """Sessions are computed from messages, of which there are none."""
    last = (
        panes_of(key=["k"])
        .window(tg.session(7, unit="us"))
        .trigger(EAGER)
        .allow_lateness(100, unit="us")
        .aggregate(n=tg.count(), middle=tg.median("n"))
        .embedded(now=0)
    )
    op = windowed(source()).aggregate(n=tg.count())
    table = op.embedded(now=0)
    table.add_messages([row(1)])
    pane = table.get_result().panes
    upstream = op.embedded(downstream=last, now=0)
    back = pane.set_column(pane.column_names.index("op"), "op", pa.array(["-"]))
    last.add_messages(pa.concat_tables([pane, back]))
    assert emitted(last) == []
    upstream.add_messages([row(12)])
    assert [(p["window_start"], p["n"]) for p in emitted(last)] == [(19, 1)]


def test_an_upstream_that_repeats_a_pane_at_completion_is_not_idle():
    """A downstream that went on without it would find the pane late."""
    ends = tg.after_watermark(early=tg.after_count(1), late=tg.after_count(1))
    right = tg.stream(time="ts", key=["k"], watermark=tg.explicit())
    joined = panes_of(key=["k"]).join(right, tg.within(0, 0, unit="us"), on="k", how="left")
    last = joined.allow_lateness(0).embedded(now=0)
    op = windowed(source(), 10, ends).allow_lateness(0).aggregate(n=tg.count())
    first = op.embedded(downstream=last.port("left"), now=0)
    first.add_messages([row(1)])
    first.mark_idle()
    assert first.operator.is_idle is False
    last.advance_watermark(30, input="right")
    assert last.operator.sides[0].watermark == MIN
    first.finish()
    last.port("right").finish()
    assert [(pane["k"], pane["n"]) for pane in emitted(last)] == [("a", 1)]


@pytest.mark.parametrize(
    "downstream",
    [
        tg.stream(time="time", key="kk", watermark=tg.explicit())
        .window(tg.session(4, unit="us"))
        .aggregate(n=tg.count()),
        source().join(panes_of(), tg.within(3, 3, unit="us"), on={"k": "kk"}),
    ],
)
def test_a_column_that_the_upstream_lacks_is_named(downstream: Any):
    """Also before the upstream has emitted a pane, which announces its columns."""
    last = downstream.embedded(now=0)
    port = last.port(len(last.inputs) - 1)
    op = windowed(source(), trigger=None).aggregate(n=tg.count()).embedded(downstream=port, now=0)
    with pytest.raises(tg.InputError, match="has no column `kk`; it has k, window_start"):
        op.add_messages([row(1)])
    assert last.get_result().panes.num_rows == 0


def test_a_column_input_of_an_upstream_is_refused_in_a_merge_that_a_join_reads():
    """A join of a merge has that column already."""
    merged = tg.merge(a=source(), b=tg.stream(time="t", key="k", watermark=tg.explicit()))
    upstream = source().join(merged, tg.within(3, 3, unit="us"), on="k")
    side = tg.merge(c=upstream.stream(time="left_ts", key="k"), d=source())
    last = source().join(side, tg.within(3, 3, unit="us"), on="k").embedded(now=0)
    op = upstream.embedded(downstream=last.port(1), now=0)
    op.add_messages([row(1)], input=0)
    with pytest.raises(tg.InputError, match=r"`c` has a column `input`.*Hint: rename"):
        op.add_messages([row(1)], input=1)


@pytest.mark.parametrize("first", [1, 2])
def test_a_window_reads_a_column_of_a_merged_side_before_its_stream_has_rows(first: int):
    """The rows of the other stream have null in it."""
    merged = tg.merge(a=source(), b=tg.stream(time="t", key="k", watermark=tg.explicit()))
    joined = tg.stream(time="at", key="k", watermark=tg.explicit()).join(
        merged, tg.within(3, 3, unit="us")
    )
    last = windowed(tg.stream(time="at", watermark=tg.explicit()))
    end = last.aggregate(n=tg.count(), v=tg.sum("v")).embedded(now=0)
    op = joined.embedded(downstream=end, now=0)
    op.add_messages([{"at": 1, "k": "a"}], input=0)
    rows = {1: [row(1)], 2: [{"t": 2, "k": "a", "v": 4}]}
    for number in (first, 3 - first):
        op.add_messages(rows[number], input=number)
    op.finish()
    (pane,) = emitted(end)
    assert (pane["n"], pane["v"]) == (2, 4)


def test_a_column_that_no_stream_of_a_merged_side_has_is_an_error():
    merged = tg.merge(a=source(), b=tg.stream(time="t", key="k", watermark=tg.explicit()))
    joined = source().join(merged, tg.within(3, 3, unit="us"))
    last = windowed(tg.stream(time="left_ts", watermark=tg.explicit()))
    end = last.aggregate(v=tg.sum("vv")).embedded(now=0)
    op = joined.embedded(downstream=end, now=0)
    op.add_messages([{"t": 2, "k": "a", "v": 4}], input=2)
    op.add_messages([row(1)], input=0)
    with pytest.raises(tg.SpecError, match="reads column `vv`, but none of the streams"):
        op.add_messages([row(1)], input=1)
