"""Groups against plain Python: which rows belong together, in which order groups are numbered, and
what reductions give.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.kernel.frame import constant
from tidegate.kernel.groups import Groups, present
from tidegate.kernel.keys import FIXED, DenseKeys, Identities
from tidegate.operators.ingest.delivery import DeliveryReader
from tidegate.spec.operator import Input

small = st.integers(-3, 3)
wide = st.sampled_from([-(2**63), 2**63 - 1, 0, 1, -1])
rows = st.lists(st.tuples(small | wide, small, small), max_size=30)
pairs = st.lists(st.tuples(st.integers(0, 4), st.integers(-50, 50)), min_size=1, max_size=40)


def column(values: Any, dtype: Any = np.int64) -> np.ndarray:
    return np.array(list(values), dtype)


def columns_of(table: list[tuple[int, ...]], width: int = 3) -> list[np.ndarray]:
    return [column(row[at] for row in table) for at in range(width)]


def same(groups: Groups, names: list[Any]) -> None:
    """Rows are together exactly where their names are equal, and every number below `n` occurs."""
    assert len(groups.ids) == len(names)
    assert sorted(set(groups.ids.tolist())) == list(range(groups.n))
    assert len(set(names)) == groups.n == len(set(zip(groups.ids.tolist(), names, strict=True)))


def grouped(pairs: list[tuple[int, Any]]) -> tuple[Groups, list[list[Any]]]:
    """Groups by the first of each pair, and the second ones of every group in group order."""
    groups = Groups.by([column(name for name, _ in pairs)])
    lists: list[list[Any]] = [[] for _ in range(groups.n)]
    for group, (_, value) in zip(groups.ids.tolist(), pairs, strict=True):
        lists[group].append(value)
    return groups, lists


@given(rows)
def test_oracle_rows_with_equal_values_are_one_group(table):
    same(Groups.by(columns_of(table)), table)


@given(rows)
def test_oracle_a_column_that_is_one_value_changes_nothing(table):
    fixed = constant(np.int64(7), len(table))
    same(Groups.by([fixed, *columns_of(table), fixed]), table)


def test_more_combinations_than_rows_are_told_apart():
    """Three columns with 100 values each: a million possible groups, a hundred real ones."""
    at = np.arange(200) % 100
    same(Groups.by([at, at * 3, 99 - at]), at.tolist())


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2), small | wide), max_size=40),
    st.booleans(),
)
def test_oracle_groups_in_order_are_numbered_by_part_then_by_key(table, collide):
    key_hash = column((k for k, _, _ in table), np.uint64)
    key_check = column((c if collide else k % 3 for k, c, _ in table), np.uint64)
    part = column(p for _, _, p in table)
    names = [
        (p, int(k), int(c)) for p, k, c in zip(part.tolist(), key_hash, key_check, strict=True)
    ]
    groups = Groups.in_order(key_hash, key_check, part)
    same(groups, names)
    assert [names[at] for at in groups.firsts.tolist()] == sorted(set(names))


@given(
    st.lists(st.tuples(st.integers(-9, 9), st.sampled_from([0, 1, 2, 40, 10**6])), max_size=60),
    st.sampled_from([0, 2**63 - 10, -(2**63) + 9]),
)
def test_oracle_groups_in_order_by_numbers_that_are_close_together(table, at):
    numbers, part = column(at + k for k, _ in table), column(p for _, p in table)
    key_hash, key_check = FIXED.identify([pa.array(numbers)], len(table))
    near = DenseKeys.of([pa.chunked_array([pa.array(numbers)])], len(table))
    assert (near is not None) == (
        len(table) > 0 and int(numbers.max()) - int(numbers.min()) <= 4 * len(table)
    )
    if near is not None:
        known, plain = (
            Groups.of_numbers(near.numbers, near.key_hash_of, part),
            Groups.in_order(key_hash, key_check, part),
        )
        assert (known.ids.tolist(), known.n) == (plain.ids.tolist(), plain.n)


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdé"), st.sampled_from([0, 1, 40])), min_size=1, max_size=5
    ),
    st.booleans(),
)
@settings(max_examples=25)
def test_oracle_groups_of_texts_that_repeat_are_those_of_their_hashes(table, encode):
    column_ = pa.array([key for key, _ in table] * 4096)
    part = np.tile(column(p for _, p in table), 4096)
    plain = FIXED.identify([column_], len(column_))
    given = column_.dictionary_encode() if encode else column_
    identities = Identities([pa.chunked_array([given])], len(column_))
    codes = identities.encoded
    found, wanted = (
        Groups.of_numbers(codes.numbers, codes.key_hash_of, part),
        Groups.in_order(*plain, part),
    )
    assert (found.n, found.ids.tolist()) == (wanted.n, wanted.ids.tolist())
    at = found.firsts
    assert [word.tolist() for word in identities.at(at)] == [word[at].tolist() for word in plain]
    assert all((mine == theirs).all() for mine, theirs in zip(identities.all, plain, strict=True))


@pytest.mark.parametrize(
    "array",
    [
        pa.array(["a", None] * 4096),
        pa.array([str(n) for n in range(8192)]),
        pa.DictionaryArray.from_arrays([0, 1, 1], ["a", "a"]),
        pa.DictionaryArray.from_arrays([0, 1], ["a", None]),
        pa.array([1, 2]),
    ],
)
def test_keys_that_are_not_grouped_by_codes(array):
    assert Identities([array], len(array)).encoded is None


keys = st.one_of(
    *(
        st.lists(one, max_size=40)
        for one in (
            st.integers(-9, 9),
            st.integers(-(2**63), 2**63 - 1),
            st.sampled_from(["a", "b", None]),
        )
    )
)


@given(keys, st.data())
def test_oracle_rows_outside_are_in_the_last_groups(keys, data):
    some = st.tuples(st.sampled_from([0, 1, 2, 40, 10**6]), st.booleans())
    places = data.draw(st.lists(some, min_size=len(keys), max_size=len(keys)))
    part, inside = column(p for p, _ in places), np.array([i for _, i in places], bool)
    table = pa.table({"t": pa.array(range(len(keys)), pa.int64()), "k": pa.array(keys)})
    delivery = DeliveryReader(Input("t", key=("k",))).read(table, table.column("t"), 0)
    groups, kept = delivery.grouped(("k",), part, inside)
    assert DenseKeys.of([table.column("k")], len(keys)) is None or "all" not in vars(
        delivery.identities
    ), "near keys need no hashes of rows"
    key_hash, key_check = delivery.identities.all
    names = list(zip(part.tolist(), key_hash.tolist(), key_check.tolist(), strict=True))
    wanted = sorted({name for name, one in zip(names, inside.tolist(), strict=True) if one})
    assert kept == len(wanted)
    assert [wanted[group] for group in groups.ids[inside].tolist()] == [
        name for name, one in zip(names, inside.tolist(), strict=True) if one
    ]
    assert (groups.ids[~inside] >= kept).all()
    at = groups.lasts
    assert [word.tolist() for word in Identities([table.column("k")], len(keys)).at(at)] == [
        key_hash[at].tolist(),
        key_check[at].tolist(),
    ]


@pytest.mark.parametrize(
    "columns",
    [
        [],
        [pa.array([1, None])],
        [pa.array(["a", "b"])],
        [pa.array([1, 2]), pa.array([1, 2])],
        [pa.array([0, 2**40])],
        [pa.array([1, 2]).dictionary_encode()],
        [pa.array([0, 2**64 - 1], pa.uint64())],
        [pa.array([], pa.int64())],
    ],
)
def test_keys_that_are_not_close_together(columns):
    assert DenseKeys.of(columns, len(columns[0]) if columns else 2) is None


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint8(), pa.int64(), pa.uint64()])
def test_numbers_that_are_close_together_begin_at_zero(kind):
    low = 2**64 - 4 if kind == pa.uint64() else 100
    keys = pa.array([low + 3, low, low + 1], kind)
    found = DenseKeys.of([keys], 3)
    assert (found.numbers.tolist(), found.numbers.dtype) == ([3, 0, 1], np.int64)
    assert found.key_hash_of(found.numbers).tolist() == FIXED.identify([keys], 3)[0].tolist()


@pytest.mark.parametrize("parts", [[], [5], [3, 3, 1, 2, 1], [2**63 - 1, -(2**63), 0]])
def test_groups_in_order_without_a_key_go_by_part(parts):
    none = constant(np.uint64(0), len(parts))
    groups = Groups.in_order(none, none, column(parts))
    same(groups, parts)
    assert [parts[at] for at in groups.firsts.tolist()] == sorted(set(parts))


def test_groups_in_order_take_keys_above_the_signed_range():
    key_hash = column([2**64 - 1, 0, 2**63, 2**64 - 1], np.uint64)
    groups = Groups.in_order(key_hash, constant(np.uint64(0), 4), column([1, 1, 1, 0]))
    assert groups.ids.tolist() == [3, 1, 2, 0]


@given(st.lists(st.integers(0, 20)), st.integers(21, 60))
def test_oracle_present_numbers(numbers, bound):
    assert present(column(numbers), bound).tolist() == sorted(set(numbers))


def test_runs_begin_where_they_are_marked():
    groups = Groups.runs(column([True, False, True, True, False], bool))
    assert (groups.ids.tolist(), groups.n) == ([0, 0, 1, 2, 2], 3)
    assert Groups.runs(column([], bool)).n == 0


def test_one_group_of_all_rows_and_none_of_nothing():
    assert (Groups.single(3).ids.tolist(), Groups.single(3).n, Groups.single(0).n) == (
        [0, 0, 0],
        1,
        0,
    )
    assert Groups.by([column([])]).n == 0


@given(pairs)
def test_oracle_rows_of_groups(pairs):
    groups, _ = grouped(pairs)
    members = [
        [at for at, group in enumerate(groups.ids.tolist()) if group == number]
        for number in range(groups.n)
    ]
    assert groups.order.tolist() == [at for rows in members for at in rows]
    assert groups.counts.tolist() == [len(rows) for rows in members]
    assert groups.offsets.tolist() == [
        sum(len(rows) for rows in members[:number]) for number in range(groups.n + 1)
    ]
    assert groups.firsts.tolist() == [rows[0] for rows in members]
    assert groups.lasts.tolist() == [rows[-1] for rows in members]
    assert groups.ranks.tolist() == [
        members[group].index(at) for at, group in enumerate(groups.ids.tolist())
    ]


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float64])
@given(pairs=pairs)
def test_oracle_reductions(dtype, pairs):
    groups, lists = grouped(pairs)
    values = column((value for _, value in pairs), dtype)
    assert groups.sum(values).tolist() == [sum(values) for values in lists]
    assert groups.min(values).tolist() == [min(values) for values in lists]
    assert groups.max(values).tolist() == [max(values) for values in lists]
    assert groups.sum(values).dtype == groups.min(values).dtype == dtype


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1))
def test_oracle_truth(pairs):
    groups, lists = grouped(pairs)
    values = column((value for _, value in pairs), bool)
    assert groups.any(values).tolist() == [any(values) for values in lists]
    assert groups.all(values).tolist() == [all(values) for values in lists]
    assert groups.sum(values).tolist() == [sum(values) for values in lists]


def test_integer_sums_are_exact_beyond_what_a_float_holds():
    groups = Groups.single(3)
    assert groups.sum(column([2**62, 1, 1])).tolist() == [2**62 + 2]
