"""A user's own accumulations: plain Python, whole columns, and functions over rows; what they
refuse goes nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidegate.errors import SpecError
from tidegate.kernel.accumulations import Accumulation, Lifted, Rows, bind
from tidegate.kernel.frame import Frame, concat_frames
from tidegate.kernel.groups import Groups
from tidegate.spec import aggregates as tg

IDS = np.array([0, 1, 0, 1, 2, 0])
TABLE = pa.table(
    {
        "v": [1, 2, 3, 4, 5, 6],
        "k": ["a", "b", "a", None, "c", "c"],
        "ok": [True, True, True, True, False, True],
    }
)


def rows_of(table: pa.Table = TABLE, weight: list[int] | None = None) -> Rows:
    place = np.arange(table.num_rows)
    return Rows(table, place[::-1].copy(), place, None if weight is None else np.array(weight))


def results(accumulation: Accumulation, lifted: Lifted) -> list[Any]:
    return accumulation.lower(lifted.partials).to_pylist()


def in_two(accumulation: Accumulation, table: pa.Table = TABLE) -> list[Any]:
    """The two halves lifted apart, stored and combined."""
    rows, early = rows_of(table), np.arange(table.num_rows) < table.num_rows // 2
    parts = [
        accumulation.lift(rows.where(mask), Groups(IDS[: table.num_rows][mask], 3)).partials
        for mask in (early, ~early)
    ]
    frame = concat_frames([Frame.from_table(Frame.of(part).to_table()) for part in parts])
    return accumulation.lower(
        accumulation.combine(frame.columns, Groups(np.tile(np.arange(3), 2), 3))
    ).to_pylist()


def product(**options: Any) -> tg.Python:
    return tg.python(
        **{
            "zero": 1,
            "add": lambda s, v: s * v,
            "merge": lambda a, b: a * b,
            "result": lambda s: s,
            "result_type": pa.int64(),
            "columns": "v",
            **options,
        }
    )


def test_plain_python_over_values():
    accumulation = bind(product(), TABLE.schema)
    assert results(accumulation, accumulation.lift(rows_of(), Groups(IDS, 3))) == [18, 8, 5]
    assert in_two(accumulation) == [18, 8, 5]
    assert not accumulation.invertible


def test_plain_python_over_rows_with_a_filter():
    def add(state: dict[str, int], row: Mapping[str, Any]) -> dict[str, int]:
        state[str(row["k"])] = state.get(str(row["k"]), 0) + row["v"]
        return state

    def merge(left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
        return {key: left.get(key, 0) + right.get(key, 0) for key in sorted({*left, *right})}

    aggregate = tg.python(
        zero={},
        add=add,
        merge=merge,
        result=json.dumps,
        result_type=pa.string(),
        columns=["k", "v"],
        where="ok",
    )
    accumulation = bind(aggregate, TABLE.schema)
    wanted = ['{"a": 4, "c": 6}', '{"b": 2, "None": 4}', "{}"]
    assert results(accumulation, accumulation.lift(rows_of(), Groups(IDS, 3))) == wanted
    assert [json.loads(text) for text in in_two(accumulation)] == [
        json.loads(text) for text in wanted
    ]
    assert accumulation.lift(rows_of(), Groups(IDS, 3)).partials["state"].to_pylist()[2] is None


def test_remove_makes_it_invertible():
    def move(by: int) -> Any:
        return lambda state, v: [state[0] + by, state[1] + by * v]

    aggregate = tg.python(
        zero=[0, 0],
        add=move(1),
        remove=move(-1),
        merge=lambda a, b: [a[0] + b[0], a[1] + b[1]],
        result=lambda s: s[1],
        result_type=pa.int64(),
        columns="v",
    )
    accumulation = bind(aggregate, TABLE.schema)
    assert accumulation.invertible
    assert results(
        accumulation, accumulation.lift(rows_of(weight=[1, 1, -1, 1, -1, 1]), Groups(IDS, 3))
    ) == [4, 6, -5]


def test_a_row_that_raises_is_marked_and_leaves_no_trace_in_the_state():
    def add(state: list[int], v: int) -> list[int]:
        state.append(v)
        if v in (3, 2):
            raise ValueError(f"{v} is unlucky")
        return state

    aggregate = tg.python(
        zero=list,
        add=add,
        merge=lambda a, b: a + b,
        result=lambda s: s,
        result_type=pa.list_(pa.int64()),
        columns="v",
    )
    accumulation = bind(aggregate, TABLE.schema)
    lifted = accumulation.lift(rows_of(), Groups(IDS, 3))
    assert results(accumulation, lifted) == [[1, 6], [4], [5]]
    assert lifted.failed.tolist() == [False, True, True, False, False, False]
    assert "ValueError: 2 is unlucky" in lifted.why


def test_failed_rows_are_numbered_before_the_filter():
    accumulation = bind(
        product(add=lambda s, v: s * (10 // (6 - v)), where=lambda t: pc.greater(t["v"], 2)),
        TABLE.schema,
    )
    lifted = accumulation.lift(rows_of(), Groups(IDS, 3))
    assert lifted.failed.tolist() == [False] * 5 + [True]
    assert results(accumulation, lifted) == [3, 5, 10]


def test_a_filter_that_raises_marks_the_rows_it_cannot_take():
    def positive(table: pa.Table) -> list[bool]:
        return [10 // (v - 3) > 0 for v in table["v"].to_pylist()]

    accumulation = bind(tg.sum("v", where=positive), TABLE.schema)
    lifted = accumulation.lift(rows_of(), Groups(IDS, 3))
    assert results(accumulation, lifted) == [6, 4, 5]
    assert lifted.failed.tolist() == [False, False, True, False, False, False]
    assert "`where` of `sum` raised ZeroDivisionError" in lifted.why


def test_null_in_a_filter_does_not_count():
    accumulation = bind(tg.count(where=lambda t: pc.equal(t["k"], "b")), TABLE.schema)
    lifted = accumulation.lift(rows_of(), Groups(IDS, 3))
    assert lifted.failed is None
    assert results(accumulation, lifted) == [0, 1, 0]


@pytest.mark.parametrize(
    "zero", [{1: 2}, (1, 2), {"a": {3}}, object()], ids=["number as key", "tuple", "set", "object"]
)
def test_a_state_that_json_cannot_hold_is_refused_when_bound(zero):
    with pytest.raises(
        SpecError, match="the state of the accumulation `my_own` must be what JSON can hold"
    ):
        bind(product(zero=zero, name="my_own"), TABLE.schema)


def test_a_state_that_json_cannot_hold_is_refused_when_it_turns_up():
    accumulation = bind(product(add=lambda s, v: {s, v}, name="my_own"), TABLE.schema)
    with pytest.raises(SpecError, match=r"`my_own` must be what JSON can hold, got \{1"):
        accumulation.lift(rows_of(), Groups.single(6))


def test_a_state_of_another_kind_brings_its_own_text_form():
    accumulation = bind(
        product(
            zero=frozenset,
            add=lambda s, v: s | {v % 2},
            merge=lambda a, b: a | b,
            result=len,
            encode=lambda s: ",".join(map(str, sorted(s))),
            decode=lambda text: frozenset(map(int, filter(None, text.split(",")))),
        ),
        TABLE.schema,
    )
    assert in_two(accumulation) == [2, 1, 1]


def test_a_result_that_fails_or_does_not_fit_is_null_and_reported():
    accumulation = bind(
        product(
            result=lambda s: (
                {18: 1 // (s - 18), 8: "eight"}[s] if s == 18 else "eight" if s == 8 else s
            )
        ),
        TABLE.schema,
    )
    lowered = accumulation.evaluate(accumulation.lift(rows_of(), Groups(IDS, 3)).partials)
    assert lowered.values.to_pylist() == [None, None, 5]
    assert lowered.failed.tolist() == [True, True, False]
    assert "ZeroDivisionError" in lowered.why
    only = bind(product(result=lambda s: "eight" if s == 8 else s), TABLE.schema)
    lowered = only.evaluate(only.lift(rows_of(), Groups(IDS, 3)).partials)
    assert lowered.failed.tolist() == [False, True, False]
    assert "'eight'" in lowered.why


def test_distinct_before_plain_python():
    table = TABLE.set_column(0, "v", pa.array([3, 2, 3, 2, 5, 6]))
    accumulation = bind(product(distinct=True), table.schema)
    assert results(accumulation, accumulation.lift(rows_of(table), Groups(IDS, 3))) == [18, 2, 5]
    assert in_two(accumulation, table) == [18, 2, 5]


def test_distinct_over_several_columns_counts_each_row_once():
    table = pa.table({"v": [1, 1, 1, None, None, 2], "k": ["a", "a", None, "a", "a", "a"]})
    accumulation = bind(
        tg.apply(lambda t: t.num_rows, pa.int64(), ["v", "k"], distinct=True), table.schema
    )
    assert results(accumulation, accumulation.lift(rows_of(table), Groups.single(6))) == [4]


def test_distinct_reports_groups_whose_values_are_refused():
    accumulation = bind(product(add=lambda s, v: s // (v - 5), distinct=True), TABLE.schema)
    lowered = accumulation.evaluate(accumulation.lift(rows_of(), Groups(IDS, 3)).partials)
    assert lowered.failed.tolist() == [False, False, True]
    assert lowered.values[2].as_py() is None


def squares(**options: Any) -> tg.Columnar:
    return tg.columnar(
        **{
            "lift": lambda table, groups: {
                "total": groups.sum(table["v"].to_numpy() ** 2),
                "low": groups.min(table["v"].to_numpy()),
            },
            "combine": lambda parts, groups: {
                "total": groups.sum(parts["total"]),
                "low": groups.min(parts["low"]),
            },
            "lower": lambda parts: pa.array(parts["total"] / parts["low"]),
            "partial_types": {"total": pa.int64(), "low": pa.int64()},
            "result_type": pa.float64(),
            **options,
        }
    )


def test_columns():
    accumulation = bind(squares(), TABLE.schema)
    assert results(accumulation, accumulation.lift(rows_of(), Groups(IDS, 3))) == [46.0, 10.0, 5.0]
    assert in_two(accumulation) == [46.0, 10.0, 5.0]


def test_columns_only_see_groups_that_hold_something():
    accumulation = bind(squares(where="ok", columns=["v"]), TABLE.schema)
    assert results(accumulation, accumulation.lift(rows_of(), Groups(IDS, 3))) == [46.0, 10.0, None]
    assert in_two(accumulation) == [46.0, 10.0, None]


def test_columns_that_raise_mark_the_rows_they_cannot_take():
    def lift(table: pa.Table, groups: Groups) -> dict[str, np.ndarray]:
        values = table["v"].to_numpy()
        if (values == 4).any():
            raise ValueError("four")
        return {"total": groups.sum(values**2), "low": groups.min(values)}

    accumulation = bind(squares(lift=lift), TABLE.schema)
    lifted = accumulation.lift(rows_of(), Groups(IDS, 3))
    assert lifted.failed.tolist() == [False, False, False, True, False, False]
    assert "ValueError: four" in lifted.why
    assert results(accumulation, lifted) == [46.0, 2.0, 5.0]


def test_columns_whose_lower_raises_report_the_groups():
    def lower(parts: dict[str, np.ndarray]) -> pa.Array:
        if (parts["low"] == 2).any():
            raise ValueError("two")
        return pa.array(parts["total"] / parts["low"])

    accumulation = bind(squares(lower=lower), TABLE.schema)
    lowered = accumulation.evaluate(accumulation.lift(rows_of(), Groups(IDS, 3)).partials)
    assert lowered.values.to_pylist() == [46.0, None, 5.0]
    assert lowered.failed.tolist() == [False, True, False]


def test_columns_that_break_their_promise_are_named():
    for lift, complaint in (
        (
            lambda table, groups: {"total": groups.counts},
            r"must give the partial columns \['low', 'total'\], got \['total'\]",
        ),
        (
            lambda table, groups: {"total": groups.counts, "low": groups.counts[:1]},
            r"one value per group \(3\) in `low`, got 1",
        ),
    ):
        with pytest.raises(SpecError, match=complaint):
            bind(squares(lift=lift), TABLE.schema).lift(rows_of(), Groups(IDS, 3))


def test_a_function_over_rows_gets_them_by_event_time():
    accumulation = bind(
        tg.apply(lambda table: table["v"].to_pylist(), pa.list_(pa.int64()), ["v"]), TABLE.schema
    )
    assert accumulation.full_state
    assert results(accumulation, accumulation.lift(rows_of(), Groups(IDS, 3))) == [
        [6, 3, 1],
        [4, 2],
        [5],
    ]
    assert in_two(accumulation) == [[6, 3, 1], [4, 2], [5]]


def test_a_function_over_rows_may_fail_for_a_group_and_sees_no_empty_one():
    def ratio(table: pa.Table) -> Any:
        assert table.num_rows
        return pc.divide(pc.sum(table["v"]), pc.subtract(pc.min(table["v"]), 2))

    accumulation = bind(tg.apply(ratio, pa.int64(), where="ok"), TABLE.schema)
    lowered = accumulation.evaluate(accumulation.lift(rows_of(), Groups(IDS, 3)).partials)
    assert lowered.values.to_pylist() == [-10, None, None]
    assert lowered.failed.tolist() == [False, True, False]
    assert "ArrowInvalid" in lowered.why
