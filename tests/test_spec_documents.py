"""Specifications are restored from their JSON form."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given

import tidegate as tg
from support import join_strategies, soak_worker, strategies
from support.examples import examples
from support.join_machines import specification
from tidegate.errors import SpecError
from tidegate.spec.from_document import UnavailableFunction, spec_from_dict


def again(spec: Any) -> Any:
    """The specification after a round trip through JSON."""
    return spec_from_dict(json.loads(json.dumps(spec.to_dict())))


@examples(60)
@given(strategies.configs())
def test_aggregates_of_every_form(config):
    spec = soak_worker.specification(config).spec
    assert again(spec).to_dict() == spec.to_dict()


@examples(60)
@given(join_strategies.configs(periods=True, retention=True))
def test_joins_of_every_form(config):
    spec = specification(config)
    found = again(spec)
    assert (found.where is None) == (spec.where is None)
    # A document has the text of a condition, not its function.
    assert {**found.to_dict(), "where": None} == {**spec.to_dict(), "where": None}


def stream(**more: Any) -> Any:
    return tg.stream(**{"time": "ts", "key": ("k", "j"), **more})


def watch(marks: Any) -> Any:
    return marks


WATERMARKS = [
    tg.lagging("5 seconds"),
    tg.ascending(idle_after="1 minute"),
    tg.bounded("3 seconds", partitions=["a", "b"], align="1 minute", realign=True),
    tg.punctuated(marker="is_mark"),
    tg.noted(writers=2),
    tg.generated(watch, name="watch", state={"n": 1}),
    tg.per_key("1 second", floor="1 minute", max_keys=5),
]


@pytest.mark.parametrize("watermark", WATERMARKS, ids=lambda mark: type(mark).__name__)
def test_every_kind_of_watermark(watermark):
    spec = (
        stream(watermark=watermark, partition="p", times={"t2": tg.bounded("1 second")})
        .window(tg.session("1 minute"))
        .evict(tg.evict_delta("v", 1.5, after=True))
        .aggregate(n=tg.count(), last=tg.quantile("v", 0.9), some=tg.sum("v", where="good"))
        .spec
    )
    assert again(spec).to_dict() == spec.to_dict()


def test_merges_keep_their_names():
    merged = tg.merge(a=stream(), b=stream()).window(tg.tumbling("1 minute"))
    spec = merged.aggregate(n=tg.count(of="a"), m=tg.count(of="b")).spec
    assert again(spec).to_dict() == spec.to_dict()
    assert again(spec).names == ("a", "b")


def test_functions_for_new_rows_are_replaced_and_raise():
    windows = tg.custom(lambda times, _rows: (times, times + 1), name="mine")
    found = again(stream().window(windows).aggregate(n=tg.count()).spec)
    assert isinstance(found.window.assign, UnavailableFunction)
    with pytest.raises(SpecError, match="`mine` of a stored specification is not available"):
        found.window.assign([], [])
    left, right = stream(key=()), stream(key=())
    condition = pc.field("a") > pc.field("b")
    joined = left.join(right, on="k", window=tg.within("1 s", "1 s"), where=condition)
    assert isinstance(again(joined.spec).where, UnavailableFunction)


@pytest.mark.parametrize(
    "aggregate",
    [
        tg.sum("v", where=lambda table: table["good"]),
        tg.apply(len, pa.int64()),
        tg.python(zero=0, add=max, merge=max, result=int, result_type=pa.int64()),
    ],
    ids=["where", "apply", "python"],
)
def test_functions_of_aggregates_cannot_be_restored(aggregate):
    spec = stream().window(tg.tumbling("1 minute")).aggregate(x=aggregate).spec
    with pytest.raises(SpecError):
        again(spec)


def test_a_damaged_document_is_refused():
    spec = stream().window(tg.tumbling("1 minute")).aggregate(n=tg.count()).spec
    document = spec.to_dict()
    del document["trigger"]
    with pytest.raises(SpecError, match="cannot be read from a document"):
        spec_from_dict(document)
