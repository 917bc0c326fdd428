"""Running results inside groups equal the results of every prefix."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.kernel.accumulations import Rows, bind, prefix_combine
from tidegate.kernel.groups import Groups
from tidegate.spec import aggregates as tg

JOINED = tg.python(
    zero=list,
    add=lambda state, v: [*state, v],
    merge=lambda a, b: a + b,
    result=lambda s: s,
    result_type=pa.list_(pa.int64()),
    columns="v",
)
AGGREGATES = [
    tg.count(),
    tg.sum("v"),
    tg.max("v"),
    tg.mean("v"),
    tg.last("v"),
    tg.list_("v"),
    tg.distinct("v"),
    tg.top_k("v", 2),
    JOINED,
]


@pytest.mark.parametrize("aggregate", AGGREGATES, ids=lambda a: a.kind)
@given(data=st.data())
def test_every_row_sees_its_prefix(aggregate, data):
    n = data.draw(st.integers(0, 20))
    ids = np.array(data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)), np.int64)
    values = pa.array(
        data.draw(st.lists(st.none() | st.integers(-3, 3), min_size=n, max_size=n)), pa.int64()
    )
    place = np.arange(n)
    rows = Rows(pa.table({"v": values}), place, place)
    groups = Groups.by([ids])
    accumulation = bind(aggregate, rows.table.schema)
    single = accumulation.lift(rows, Groups(place, n)).partials
    running = accumulation.lower(prefix_combine(accumulation, single, groups)).to_pylist()
    for row in range(n):
        before = (ids == ids[row]) & (place <= row)
        alone = accumulation.lift(rows.where(before), Groups.single(int(before.sum()))).partials
        assert running[row] == accumulation.lower(alone)[0].as_py()


def test_the_number_of_combines_follows_the_logarithm_of_the_longest_group():
    place = np.arange(1000)
    rows = Rows(pa.table({"v": place}), place, place)
    accumulation = bind(tg.sum("v"), rows.table.schema)
    single = accumulation.lift(rows, Groups(place, 1000)).partials

    class Counted:
        calls = 0

        def combine(self, partials, groups):
            Counted.calls += 1
            return accumulation.combine(partials, groups)

    running = prefix_combine(Counted(), single, Groups.single(1000))
    assert accumulation.lower(running).to_pylist() == np.cumsum(place).tolist()
    assert Counted.calls == 10
