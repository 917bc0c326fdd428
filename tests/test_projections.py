"""Projections in front of operators, between them and behind the last one, embedded."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.operators.ingest.projection import project, projected_schema
from tidegate.operators.ingest.schema_cast import BROKEN
from tidegate.spec.from_document import input_from_dict
from tidegate.spec.operator import Input
from tidegate.spec.projection import Projection, Unnest, pass_unchanged

NOON = datetime(2025, 3, 14, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def test_values_of_every_type_pass() -> None:
    table = pa.table(
        {
            "i": pa.array([1, None, 3], pa.int32()),
            "d": pa.array([Decimal("1.50"), None, Decimal("2.25")], pa.decimal128(10, 2)),
            "ts": pa.array([at(0.000001), None, at(1)], pa.timestamp("us", "UTC")),
            "row": [{"a": {"b": "x"}}, None, {"a": None}],
            "nothing": pa.nulls(3),
        }
    )
    given = Projection(
        (
            ("i", '"i" + 1'),
            ("doubled", '"d" * 2'),
            ("later", "\"ts\" + INTERVAL '1' SECOND"),
            ("inner", '"row"."a"."b"'),
            ("nothing", '"nothing"'),
        )
    )
    found = project(table, [given]).rows
    assert found.to_pylist() == [
        {"i": 2, "doubled": Decimal("3.00"), "later": at(1.000001), "inner": "x", "nothing": None},
        dict.fromkeys(("i", "doubled", "later", "inner", "nothing")),
        {"i": 4, "doubled": Decimal("4.50"), "later": at(2), "inner": None, "nothing": None},
    ]
    assert found.schema == projected_schema(table.schema, [given])
    assert found.schema.field("later").type == pa.timestamp("us", "UTC")


def test_a_failing_row_costs_only_itself() -> None:
    table = pa.table({"s": ["1", "two", "3", None], "n": [1, 2, 2**62, 4]})
    found = project(
        table, [Projection((("i", 'CAST("s" AS INT)'), ("n", '"n" * 4')), where="true")]
    ).rows
    assert found.column("i").to_pylist() == [1, None, 3, None]
    assert found.column("n").to_pylist() == [4, 8, None, 16]
    marks = found.column(BROKEN).to_pylist()
    assert [mark is not None for mark in marks] == [False, True, True, False]
    assert "two" in marks[1]
    assert "`i`" in marks[1]


def test_dropped_rows_are_still_observed() -> None:
    found = project(pa.table({"n": [1, 2, None]}), [Projection((("n", '"n"'),), where='"n" > 1')])
    assert found.rows.column("n").to_pylist() == [2]
    assert found.observed.column("n").to_pylist() == [1, 2, None]


def test_rows_that_were_broken_before_stay_whatever_the_condition() -> None:
    table = pa.table({"n": [1, None], BROKEN: pa.array([None, "unreadable"])})
    found = project(table, [Projection((("n", '"n"'),), where='"n" > 1')])
    assert found.rows.column(BROKEN).to_pylist() == ["unreadable"]


def test_lists_become_rows() -> None:
    table = pa.table(
        {"top": [[{"v": 3}, {"v": 2}], [], None, [{"v": 1}]], "pane_id": ["a", "b", "c", "d"]}
    )
    given = Projection((("v", '"v"'), ("n", '"n"')), None, "protocol", Unnest("top", ("v",), "n"))
    assert project(table, [given]).rows.to_pylist() == [
        {"v": 3, "n": 1, "pane_id": "a-1"},
        {"v": 2, "n": 2, "pane_id": "a-2"},
        {"v": 1, "n": 1, "pane_id": "d-1"},
    ]


def test_a_projection_keeps_its_document() -> None:
    given = Projection((("n", '"n"'),), '"n" > 1', "all", Unnest("top", ("v",)))
    whole = Input(time="ts", projections=(given,))
    assert input_from_dict(whole.to_dict()) == whole


def test_only_references_pass_unchanged() -> None:
    given = Projection((("user", '"user"'), ("city", 'upper("city")')), keeps="protocol")
    assert pass_unchanged([given], ["user", "window_start"])
    assert not pass_unchanged([given], ["city"])
    assert not pass_unchanged([given], ["other"])


@pytest.mark.parametrize(
    ("text", "message"),
    [('"missing" + 1', "missing"), ("no_such_function(1)", "no_such_function"), ("(", "syntax")],
)
def test_an_expression_that_does_not_fit_is_refused(text: str, message: str) -> None:
    with pytest.raises(tg.SpecError, match=message):
        projected_schema(pa.schema([("n", pa.int64())]), [Projection((("x", text),))])


def test_names_of_the_protocol_are_refused() -> None:
    with pytest.raises(tg.SpecError, match="`op`"):
        Projection((("op", "'+'"),), keeps="protocol")
    with pytest.raises(tg.SpecError, match="several columns"):
        Projection((("a", "1"), ("a", "2")))


def _stream(projection: Projection, **roles: Any) -> tg.Stream:
    plain = tg.stream(time="ts", watermark=tg.bounded("0 s"), **roles)
    return dataclasses.replace(
        plain, input=dataclasses.replace(plain.input, projections=(projection,))
    )


def test_a_window_sees_projected_rows_and_the_watermark_all() -> None:
    given = Projection(
        (("ts", '"ts"'), ("user", 'lower("user")'), ("v", 'CAST("v" AS INT)')), where="\"v\" <> '9'"
    )
    op = (
        _stream(given, key="user")
        .window(tg.tumbling("1 minute"))
        .aggregate(total=tg.sum("v"))
        .embedded(now=at(600))
    )
    op.add_messages(
        [{"ts": at(1), "user": "Ann", "v": "1"}, {"ts": at(2), "user": "ANN", "v": "x"}]
    )
    op.add_messages([{"ts": at(3), "user": "ann", "v": "2"}, {"ts": at(61), "user": "b", "v": "9"}])
    results = op.get_result()
    assert [(p["user"], p["total"]) for p in results.panes.to_pylist()] == [("ann", 3)]
    assert [row["reason"] for row in results.late.to_pylist()] == ["bad_value"]
    op.finish()
    assert op.get_result().panes.num_rows == 1


def test_a_projection_between_two_operators_keeps_retractions() -> None:
    users = (
        tg.stream(time="ts", key="user", watermark=tg.explicit())
        .window(tg.tumbling("1 minute"))
        .trigger(tg.after_watermark(late=tg.after_count(1)))
        .retracting()
        .aggregate(n=tg.count())
        .embedded
    )
    given = Projection((("many", '"n" * 10'),), where='"n" > 1', keeps="protocol")
    below = tg.stream().inherit().trigger(tg.after_watermark(late=tg.after_count(1))).retracting()
    below = dataclasses.replace(
        below, input=dataclasses.replace(below.input, projections=(given,))
    ).options(granularity="batch")
    second = below.aggregate(total=tg.sum("many")).embedded(now=NOON)
    first = users(downstream=second, now=NOON)
    first.add_messages([{"ts": at(n), "user": user} for n, user in enumerate("aabbbc")])
    first.advance_watermark(at(60))
    first.add_message({"ts": at(50), "user": "a"})
    found = [(pane["op"], pane["total"]) for pane in second.get_result().panes.to_pylist()]
    assert found == [("+", 50), ("-", 50), ("+", 60)]
