"""Values of every type of Arrow, and texts and numbers of any size: a result, a late row, or an
error of ours.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidegate as tg
from tidegate import pipeline
from tidegate.instants import duration, instant
from tidegate.scenarios import document

D = Decimal("1.10")
HUGE = 10**5000
ODD: dict[str, pa.Array] = {
    "float16": pa.array(np.array([1, -0.0, 0.0], np.float16)),
    "float16 with null": pa.array([np.float16(1), None, np.float16(1)], pa.float16()),
    "decimal32": pa.array([D, None, D], pa.decimal32(5, 2)),
    "decimal64": pa.array([D, None, D], pa.decimal64(15, 2)),
    "decimal256": pa.array([D, None, D], pa.decimal256(60, 2)),
    "sparse union": pa.UnionArray.from_sparse(
        pa.array([0, 1, 0], pa.int8()), [pa.array([1, 2, 3]), pa.array(["a", "b", "c"])]
    ),
    "dense union": pa.UnionArray.from_dense(
        pa.array([0, 1, 0], pa.int8()),
        pa.array([0, 0, 1], pa.int32()),
        [pa.array([1, 2]), pa.array(["a"])],
    ),
    "run end": pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), ["a", "b"]),
    "interval": pa.array([(1, 2, 3)] * 3, pa.month_day_nano_interval()),
    "list view": pa.array([[1], [2], [1]], pa.list_view(pa.int64())),
    "map": pa.array([[("a", 1)]] * 3, pa.map_(pa.string(), pa.int64())),
    "struct": pa.array([{"a": 1.5}, None, {"a": -0.0}]),
    "null": pa.nulls(3),
    "fixed binary": pa.array([b"aa", None, b"bb"], pa.binary(2)),
    "string view": pa.array(["a", None, "a"], pa.string_view()),
    "dictionary": pa.array(["a", None, "a"]).dictionary_encode(),
    "time": pa.array([1, 2, 3], pa.time32("s")),
    "duration": pa.array([1, None, 3], pa.duration("ns")),
}
AGGREGATES: dict[str, Callable[[str], Any]] = {
    "count_distinct": tg.count_distinct,
    "list": tg.list_,
    "first": tg.first,
    "max": tg.max,
    "sum": tg.sum,
    "mean": tg.mean,
    "median": tg.median,
}


def run(table: Any, aggregate: Any = None, **stream: Any) -> list[Any]:
    op = (
        tg.stream(**{"time": "ts", "key": "k", **stream})
        .window(tg.tumbling("1 minute"))
        .aggregate(x=tg.count() if aggregate is None else aggregate)
        .embedded(now=0)
    )
    op.add_messages(table)
    op.finish()
    return [row["x"] for row in op.get_result().panes.to_pylist()]


def table(**columns: Any) -> pa.Table:
    return pa.table({"ts": pa.array([1, 2, 3]), "k": pa.array(["a"] * 3), **columns})


@pytest.mark.parametrize("kind", ODD)
def test_any_type_is_processed_or_refused(kind: str) -> None:
    for role in ({"key": "v"}, {"time": "v"}, {"id": "v"}, {"offset": "v"}, {"partition": "v"}):
        with contextlib.suppress(tg.TidegateError):
            run(table(v=ODD[kind]), **role)
    for aggregate in AGGREGATES.values():
        with contextlib.suppress(tg.TidegateError):
            run(table(v=ODD[kind]), aggregate("v"))


def test_narrow_types_are_counted_and_ordered() -> None:
    assert run(table(v=ODD["float16"]), tg.count_distinct("v")) == [2]
    assert run(table(v=ODD["float16 with null"]), tg.count_distinct("v")) == [1]
    for kind in ("decimal32", "decimal64"):
        assert run(table(v=ODD[kind]), tg.count_distinct("v")) == [1]
        assert run(table(v=ODD[kind]), tg.max("v")) == [D]


@pytest.mark.parametrize("kind", ["sparse union", "dense union"])
def test_unions_are_refused_with_their_column(kind: str) -> None:
    for column in (ODD[kind], pa.StructArray.from_arrays([ODD[kind]], ["inside"])):
        with pytest.raises(tg.InputError, match=r"the column `v` is a union.*Hint"):
            run(table(v=column))


@pytest.mark.parametrize("parse", [duration, instant])
@pytest.mark.parametrize(
    "value",
    [
        *("9" * 5000, "9" * 5000 + " s", "1." + "1" * 5000 + " s", "1e5000 s", "1 s " * 5000),
        *(HUGE, -HUGE, Fraction(HUGE, 3), Decimal("1e5000"), [HUGE], float("nan")),
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_times_of_any_size_are_refused(parse: Callable[[Any], int], value: Any) -> None:
    with pytest.raises(tg.ParseError) as refused:
        parse(value)
    assert len(str(refused.value)) < 3000


def test_numbers_of_any_size_are_late() -> None:
    for name in ("ts", "k", "v"):
        op = (
            tg.stream(time="ts", key="k")
            .window(tg.tumbling("1 minute"))
            .aggregate(total=tg.sum("v"))
            .embedded(now=0)
        )
        op.add_messages([{"ts": 1, "k": 1, "v": 1}, {"ts": 1, "k": 1, "v": 1, name: HUGE}])
        op.finish()
        result = op.get_result()
        assert result.panes["total"].to_pylist() == [1]
        assert result.late["reason"].to_pylist() == ["bad_value"]


def texts() -> Iterator[str]:
    for value in ("!!timestamp x", "!!int x", "!!float x", "!!binary '%'", "9" * 5000):
        yield from (value, f"a: {value}", f"- {value}", f"? {value}\n: 1")
    yield from ("0x" + "f" * 5000, "a: 0x" + "f" * 5000, "a: 2025-13-45", "{" * 3000, "[" * 3000)
    yield from ("&a [*a]", "a: &x [*x]", "!!set {x}", "a: !!omap [x: 1]", "a: 1:" + "5:" * 3000)
    yield from ("!!python/object:os.system x", "a: ${" * 2000, "\x00", "\ufeff", "- id: {}\n")


@pytest.mark.parametrize("parse", [pipeline.parse, document.parse], ids=["pipeline", "scenarios"])
def test_texts_of_yaml_are_refused(parse: Callable[[str], Any]) -> None:
    for text in texts():
        with pytest.raises(tg.TidegateError):
            parse(text)


def expanding(levels: int) -> str:
    """A list of ten texts, ten lists of it, and so on."""
    names = [f"a{n}" for n in range(levels + 1)]
    lines = [f"    - &{names[0]} [{', '.join('x' * 10)}]"]
    for former, name in itertools.pairwise(names):
        lines.append(f"    - &{name} [{', '.join([f'*{former}'] * 10)}]")
    return "\n".join(lines)


@pytest.mark.parametrize("place", ["unit", "wm", "config", "steps", "note"])
@pytest.mark.parametrize("body", [expanding(40), "    - &a [*a]"], ids=["expanding", "endless"])
def test_anchors_of_scenarios_do_not_expand_without_bound(place: str, body: str) -> None:
    with pytest.raises(tg.ParseError, match=r"more than 1,000,000 parts.*Hint"):
        document.parse(f"- id: a\n  kind: aggregate\n  {place}:\n{body}\n")


def test_many_scenarios_are_read_once_each() -> None:
    text = "\n".join(f"- {{id: s{n}, kind: aggregate}}" for n in range(3000))
    assert len(document.parse(text)) == 3000
    with pytest.raises(tg.ParseError, match="more than once: s7"):
        document.parse(text + "\n- {id: s7, kind: aggregate}")


@pytest.mark.parametrize("start", ["${A:-", "${A", "${"])
@pytest.mark.parametrize("end", ["", ":}"])
def test_references_that_do_not_end_are_not_searched_for_from_each_dollar(
    start: str, end: str
) -> None:
    """The work would be quadratic: minutes for these texts."""
    with pytest.raises(tg.TidegateError):
        pipeline.parse(f"a: '{start * (200_000 // len(start))}{end}'")


def test_a_first_message_without_columns_is_refused_and_costs_itself_only() -> None:
    op = (
        tg.stream(time="ts", key="k")
        .window(tg.tumbling("1 minute"))
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    with pytest.raises(tg.InputError, match="no columns"):
        op.add_message({})
    op.add_message({"ts": 1, "k": "a"})
    op.add_message({})
    op.finish()
    result = op.get_result()
    assert result.panes["n"].to_pylist() == [1]
    assert result.late["reason"].to_pylist() == ["null_time"]
