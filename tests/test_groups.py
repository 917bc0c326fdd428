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
from tidegate.kernel.groups import Groups, lexicographic_order, present, sorted_order
from tidegate.kernel.keys import FIXED, DenseKeys, Identities, RankedKeys
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
    dense, columns = DenseKeys(), [pa.chunked_array([pa.array(numbers)])]
    # The ranks of a range are made when its keys come again.
    for near in (dense.ranked(columns, len(table)) for _ in range(3)):
        assert (near is not None) == (
            len(table) > 0 and int(numbers.max()) - int(numbers.min()) <= 4 * len(table)
        )
        if near is not None:
            plain = Groups.in_order(key_hash, key_check, part)
            assert_groups_of_ranks(near, part, plain, (key_hash, key_check))
            assert near.keys is not None
            assert near.keys.take(pa.array(near.rank)).to_pylist() == numbers.tolist()


def assert_groups_of_ranks(
    ranked: RankedKeys, part: np.ndarray, plain: Groups, hashes: tuple[np.ndarray, np.ndarray]
) -> None:
    """Grouping by ranks gives the groups of the hashes, and names the key of each group."""
    found, rank, begins, row = Groups.of_ranks(ranked.rank, len(ranked.hashes[0]), part)
    assert (found.n, found.ids.tolist()) == (plain.n, plain.ids.tolist())
    for mine, theirs in zip(ranked.hashes_of(rank), hashes, strict=True):
        assert mine.tolist() == theirs[plain.firsts].tolist()
    parts = part[plain.firsts].tolist()
    assert [parts[at] for at in begins.tolist()] == part[row].tolist() == sorted(set(parts))


@given(st.lists(st.tuples(st.integers(-60, 60), st.integers(1, 30)), min_size=1, max_size=6))
def test_oracle_ranks_are_those_of_the_hashes_whatever_ranges_came_before(ranges):
    dense = DenseKeys()
    for first, count in ranges:
        keys = pa.array(range(first, first + count))
        found = dense.ranked([keys], count)
        hashes = FIXED.identify([keys], count)
        assert [word.tolist() for word in found.hashes_of(found.rank)] == [
            word.tolist() for word in hashes
        ]
        assert np.argsort(found.rank).tolist() == np.argsort(hashes[0]).tolist()


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
    wanted = Groups.in_order(*plain, part)
    assert_groups_of_ranks(codes.ranked(), part, wanted, plain)
    at = wanted.firsts
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
    found = delivery.grouped(("k",), part, inside)
    groups, kept = found.groups, found.kept
    assert DenseKeys().ranked([table.column("k")], len(keys)) is None or "all" not in vars(
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
    assert [*zip(part[found.rows].tolist(), found.bounds, strict=False)] == [
        (p, [name[0] for name in wanted].index(p)) for p in sorted({name[0] for name in wanted})
    ]
    at = groups.lasts
    assert [word.tolist() for word in found.hashes] == [
        key_hash[at].tolist(),
        key_check[at].tolist(),
    ]
    assert found.keys["k.k"].to_pylist() == [keys[row] for row in at.tolist()]
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
    assert DenseKeys().ranked(columns, len(columns[0]) if columns else 2) is None


@pytest.mark.parametrize(
    ("kind", "low"),
    [
        (pa.int8(), 100),
        (pa.int8(), -128),
        (pa.uint8(), 252),
        (pa.int64(), -(2**63)),
        (pa.int64(), 2**63 - 4),
        (pa.uint64(), 2**64 - 4),
        (pa.uint64(), 0),
    ],
)
def test_ranks_of_numbers_at_the_ends_of_their_type(kind, low):
    keys = pa.array([low + 3, low, low + 1], kind)
    dense = DenseKeys()
    for found in (dense.ranked([keys], 3) for _ in range(3)):
        assert found.keys.type == kind
        assert found.keys.take(pa.array(found.rank)).equals(keys)
        assert (found.hashes_of(found.rank)[0] == FIXED.identify([keys], 3)[0]).all()


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


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-2, 2))), st.booleans())
def test_oracle_orders_by_several_columns(pairs, is_long):
    # Long columns are sorted by their words, and rows that are equal in the first one again.
    pairs = pairs * (5000 // max(1, len(pairs))) if is_long else pairs
    high, low = (column([pair[at] for pair in pairs]) for at in (0, 1))
    for keys in ([high, low], [low, high], [low, low], [low.astype(np.int32), high]):
        assert (lexicographic_order(keys) == np.lexsort(keys[::-1])).all()


@pytest.mark.parametrize("values", [[0, 2**64 - 1], [5, 4], [2**63, 2**63 - 1, 1]])
def test_unsigned_integers_are_ordered_over_their_whole_range(values):
    many = column(values * 3000, np.uint64)
    assert (sorted_order(many) == np.argsort(many, kind="stable")).all()
    assert sorted_order(np.sort(many)) is None


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
