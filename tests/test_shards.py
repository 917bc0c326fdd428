"""Shards: every partition of Spark has the same number of them, ids are where Spark puts them, and
keys find their shard again.
"""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import SpecMismatchError
from tidegate.spark.tasks.edge import split_table
from tidegate.spark.tasks.shards import ShardLayout, check_layout, spark_partition


@given(st.integers(1, 64))
def test_one_shard_a_partition_unless_said(partitions):
    layout = ShardLayout.balanced(partitions)
    assert len(layout) == partitions
    assert sorted(spark_partition(shard, partitions) for shard in layout.ids) == list(
        range(partitions)
    )


@given(st.integers(1, 40), st.integers(1, 200))
def test_shards_are_dealt_out_evenly(partitions, shards):
    layout = ShardLayout.balanced(partitions, shards)
    assert len(set(layout.ids)) == len(layout) == shards
    homes = Counter(spark_partition(shard, partitions) for shard in layout.ids)
    assert max(homes.values()) - min(homes[n] for n in range(partitions)) <= 1


@given(st.integers(1, 40))
def test_a_layout_is_the_same_every_time(partitions):
    assert ShardLayout.balanced(partitions) == ShardLayout.balanced(partitions)


def test_a_layout_survives_its_json_form():
    layout = ShardLayout.balanced(5, 12)
    check_layout(layout.to_dict(), layout)
    with pytest.raises(SpecMismatchError, match="Hint"):
        check_layout(layout.to_dict(), ShardLayout.balanced(5))


keys = st.none() | st.text(max_size=3) | st.sampled_from(["", "a", "\x00", "é"])


@given(st.lists(keys, max_size=40), st.integers(1, 9))
def test_rows_are_split_by_key_and_keep_their_order(values, shards):
    layout = ShardLayout.balanced(shards)
    table = pa.table({"k": pa.array(values, pa.string()), "n": range(len(values))})
    found = list(split_table(table, ("k",), layout))
    assert [shard for shard, _ in found] == [shard for shard in layout.ids if shard in dict(found)]
    rows = [
        (key, n, shard)
        for shard, part in found
        for key, n in zip(part["k"].to_pylist(), part["n"].to_pylist(), strict=True)
    ]
    assert sorted(n for _, n, _ in rows) == list(range(len(values)))
    homes: dict[str | None, int] = {}
    for key, _, shard in rows:
        assert homes.setdefault(key, shard) == shard
    for _, part in found:
        assert part["n"].to_pylist() == sorted(part["n"].to_pylist())


@pytest.mark.parametrize(
    "other",
    [
        lambda column: column.cast(pa.large_string()),
        lambda column: column.dictionary_encode(),
        lambda column: pa.chunked_array([column.slice(0, 1), column.slice(1)]),
    ],
)
def test_a_key_has_one_shard_whatever_its_column_is_made_of(other):
    layout = ShardLayout.balanced(4)
    column = pa.array(["a", "b", None, "c", "d", "", "e"])
    given_rows = {
        key: shard
        for shard, part in split_table(pa.table({"k": column}), ("k",), layout)
        for key in part["k"].to_pylist()
    }
    changed = {
        key: shard
        for shard, part in split_table(pa.table({"k": other(column)}), ("k",), layout)
        for key in part["k"].to_pylist()
    }
    assert changed == given_rows
    assert len(set(given_rows.values())) > 1


def test_nothing_is_split_into_nothing():
    assert (
        list(
            split_table(pa.table({"k": pa.array([], pa.string())}), ("k",), ShardLayout.balanced(3))
        )
        == []
    )


def test_without_a_key_all_rows_go_to_the_first_shard():
    layout = ShardLayout.balanced(3)
    ((shard, part),) = split_table(pa.table({"n": [1, 2]}), (), layout)
    assert (shard, len(part)) == (layout.ids[0], 2)


def test_all_shards_get_keys():
    layout = ShardLayout.balanced(64)
    parts = dict(split_table(pa.table({"k": range(10_000)}), ("k",), layout))
    assert set(parts) == set(layout.ids)
    assert max(map(len, parts.values())) < 2 * 10_000 / 64
