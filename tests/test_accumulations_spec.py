"""Specifications of aggregates: equality, repr, JSON form and validation."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from tidegate.errors import SpecError
from tidegate.spec import aggregates as tg

PLAIN = [
    tg.count(),
    tg.count("v", distinct=True),
    tg.sum("v", where="ok"),
    tg.mean("v"),
    tg.min("v"),
    tg.max("v"),
    tg.variance("v"),
    tg.stddev("v", ddof=0),
    tg.first("v"),
    tg.last("v", ignore_nulls=True),
    tg.arg_min("v", "by"),
    tg.arg_max("v", "by"),
    tg.any("v"),
    tg.all("v"),
    tg.approx_distinct("v"),
    tg.quantile("v", 0.5),
    tg.quantile("v", [0.1, 0.9], exact=True),
    tg.approx_quantile("v", 1),
    tg.median("v"),
    tg.top_k("v", 3),
    tg.top_k("v", 3, "by"),
    tg.distinct("v"),
    tg.count_distinct("v"),
    tg.list_("v"),
]


def double(table: pa.Table) -> int:
    return 2 * table.num_rows


@pytest.mark.parametrize("aggregate", PLAIN, ids=repr)
def test_text_and_document_come_back_as_the_same(aggregate):
    assert eval(repr(aggregate), vars(tg)) == aggregate  # noqa: S307 - a repr of this project
    assert tg.aggregate_from_dict(json.loads(json.dumps(aggregate.to_dict()))) == aggregate


def test_all_are_different():
    assert len(set(PLAIN)) == len(PLAIN)
    assert len({json.dumps(aggregate.to_dict()) for aggregate in PLAIN}) == len(PLAIN)


def test_documents_name_what_matters_only():
    assert tg.sum("v").to_dict() == {"kind": "sum", "column": "v"}
    assert tg.count().to_dict() == {"kind": "count"}
    assert tg.quantile("v", [0.5], where="ok").to_dict() == {
        "kind": "quantile",
        "column": "v",
        "q": [0.5],
        "where": "ok",
    }


def test_functions_appear_by_their_qualified_name():
    doc = tg.apply(double, pa.int64(), ["v"], where=double).to_dict()
    named = {"function": f"{__name__}:double"}
    assert doc == {
        "kind": "apply",
        "function": named,
        "result_type": "int64",
        "columns": ["v"],
        "where": named,
    }
    custom = tg.python(
        zero={"n": 0},
        add=max,
        merge=max,
        result=double,
        result_type=pa.int64(),
        columns="v",
        remove=min,
    )
    assert custom.to_dict()["remove"] == {"function": "builtins:min"}
    assert json.loads(json.dumps(custom.to_dict()))["zero"] == {"n": 0}
    columns = tg.columnar(
        lift=double,
        combine=double,
        lower=double,
        partial_types={"n": pa.int64()},
        result_type=pa.int64(),
    )
    assert columns.to_dict()["partial_types"] == [["n", "int64"]]
    for doc in (
        custom.to_dict(),
        {"kind": "sum", "column": "v", "where": named},
        {"kind": "sum"},
        {"kind": "smu"},
        {},
    ):
        with pytest.raises(SpecError):
            tg.aggregate_from_dict(doc)


def test_the_columns_that_are_read():
    assert tg.count().reads() == ()
    assert tg.arg_max("a", "b").reads() == ("a", "b")
    assert tg.apply(double, pa.int64()).reads() is None
    assert tg.python(
        zero=0, add=max, merge=max, result=double, result_type=pa.int64(), columns="v"
    ).reads() == ("v",)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: tg.sum(3), "takes the name of a column, got 3"),
        (lambda: tg.count(3), "takes the name of a column or nothing, got 3"),
        (lambda: tg.count(distinct=True), "needs a column"),
        (lambda: tg.sum("v", where=3), "`where` of `sum` must be a column name or a function"),
        (lambda: tg.sum("v", distinct="yes"), "`distinct` of `sum` must be True or False"),
        (lambda: tg.variance("v", ddof=-1), "`ddof` of `variance`"),
        (lambda: tg.quantile("v", 95), "must lie between 0 and 1, got 95"),
        (lambda: tg.quantile("v", "0.5"), "must lie between 0 and 1, got '0.5'"),
        (lambda: tg.quantile("v", []), "must lie between 0 and 1"),
        (lambda: tg.quantile("v", [0.5, 1.5]), "must lie between 0 and 1"),
        (lambda: tg.top_k("v", 0), "`k` of `top_k`"),
        (lambda: tg.top_k("v", 1, by=2), "`by` of `top_k`"),
        (lambda: tg.arg_min("v", None), "takes the name of the column to compare by"),
        (
            lambda: tg.columnar(
                lift=double, combine=double, lower=double, partial_types={}, result_type=pa.int64()
            ),
            "`partial_types`",
        ),
        (
            lambda: tg.columnar(
                lift=double,
                combine=double,
                lower=double,
                partial_types={"present": pa.int8()},
                result_type=pa.int64(),
            ),
            "`present`",
        ),
    ],
)
def test_rules_are_checked_at_once(make, complaint):
    with pytest.raises(SpecError, match=complaint):
        make()
