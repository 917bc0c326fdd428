"""Sketches: close to the truth, the same on every run, and a distinct count that does not depend on
the cut.
"""

from __future__ import annotations

import datetime as dt
import sys
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from tidegate.errors import MissingExtraError
from tidegate.kernel.accumulations import Accumulation, Rows, bind
from tidegate.kernel.frame import Frame, concat_frames
from tidegate.kernel.groups import Groups
from tidegate.spec import aggregates as tg

pytestmark = pytest.mark.sketches


def rows_of(values: pa.Array) -> Rows:
    place = np.arange(len(values))
    return Rows(pa.table({"v": values}), place, place)


def one(accumulation: Accumulation, values: pa.Array, cuts: int = 1) -> object:
    """The result of one group, its rows lifted in some cuts and combined."""
    rows, part = rows_of(values), np.arange(len(values)) % cuts
    lifted = [
        accumulation.lift(rows.where(part == i), Groups.single(int((part == i).sum()))).partials
        for i in range(cuts)
    ]
    frame = concat_frames([Frame.from_table(Frame.of(partials).to_table()) for partials in lifted])
    return accumulation.lower(accumulation.combine(frame.columns, Groups.single(len(frame))))[
        0
    ].as_py()


@pytest.mark.parametrize("n", [1, 10, 300, 500, 20_000])
def test_distinct_counts_are_close_and_do_not_depend_on_the_cut(n):
    values = pa.array(np.random.default_rng(n).integers(0, n, 3 * n))
    truth = len(values.unique())
    accumulation = bind(tg.approx_distinct("v"), pa.schema({"v": pa.int64()}))
    found = one(accumulation, values)
    assert found == one(accumulation, values, 2) == one(accumulation, values, 7)
    assert abs(found - truth) <= max(1, 0.05 * truth)


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["", "a", "a", None, "ß"]),
        pa.array([b"", b"\xff", b"\xff", None, b"a"]),
        pa.array([0.0, -0.0, float("nan"), None, 2.5], pa.float64()),
        pa.array([Decimal("1.50"), Decimal("1.50"), Decimal("-2.00"), None, Decimal("0.00")]),
        pa.array([2**64 - 1, 2**63, 0, 0, None], pa.uint64()),
        pa.array([dt.date(2020, 1, 1), dt.date(1960, 1, 1), dt.date(1970, 1, 1), None, None]),
        pa.array(["x", "y", "z", "x", None]).dictionary_encode(),
    ],
    ids=lambda values: str(values.type),
)
def test_distinct_counts_of_every_type(values):
    accumulation = bind(tg.approx_distinct("v"), pa.schema({"v": values.type}))
    assert one(accumulation, values) == one(accumulation, values, 2) == 3


def test_quantiles_are_close_and_free_of_chance():
    values = np.random.default_rng(1).normal(size=50_000)
    accumulation = bind(tg.quantile("v", [0.01, 0.5, 0.99]), pa.schema({"v": pa.float64()}))
    for cuts in (1, 5):
        found = one(accumulation, pa.array(values), cuts)
        assert found == one(accumulation, pa.array(values), cuts)
        ranks = [(values < quantile).mean() for quantile in found]
        assert ranks == pytest.approx([0.01, 0.5, 0.99], abs=0.02)


def test_groups_are_kept_apart_and_nulls_and_nan_left_out():
    table = pa.table({"v": [1.0, None, 5.0, float("nan"), 5.0, 7.0]})
    place = np.arange(6)
    groups = Groups(np.array([0, 1, 2, 3, 2, 2]), 5)
    for aggregate, wanted in (
        (tg.quantile("v", 0.5), [1.0, None, 5.0, None, None]),
        (tg.approx_quantile("v", (0, 1)), [[1.0, 1.0], None, [5.0, 7.0], None, None]),
        (tg.approx_distinct("v"), [1, 0, 2, 1, 0]),
        (tg.quantile("v", 1, distinct=True), [1.0, None, 7.0, None, None]),
    ):
        accumulation = bind(aggregate, table.schema)
        partials = accumulation.lift(Rows(table, place, place), groups).partials
        assert accumulation.lower(partials).to_pylist() == wanted
        assert (
            accumulation.lower(accumulation.combine(partials, Groups(np.arange(5), 5))).to_pylist()
            == wanted
        )


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasketches", None)
    for aggregate in (tg.approx_distinct("v"), tg.quantile("v", 0.5)):
        with pytest.raises(MissingExtraError, match=r"pip install 'tidegate\[sketches\]'"):
            bind(aggregate, pa.schema({"v": pa.int64()}))
    assert bind(tg.median("v"), pa.schema({"v": pa.int64()})).full_state
