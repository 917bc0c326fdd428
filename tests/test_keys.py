"""Identities of keys: pinned values, because stored state and every edge depend on them, and equal
exactly where keys are equal.
"""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from tidegate.kernel.keys import identify, mix, shard_of

Identity = tuple[int, int]


def identities(*columns: Any) -> list[Identity]:
    key_hash, key_check = identify(columns, len(columns[0]))
    assert key_hash.dtype == key_check.dtype == np.uint64
    return [(int(k), int(c)) for k, c in zip(key_hash, key_check, strict=True)]


NULL_WORD = (0xE220A8397B1DCDAF, 1)
NULL = (0x18B301E8A5358CB4, 0xC9F1E0EB92D2AC6B)
INTEGERS = [
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint8(),
    pa.uint16(),
    pa.uint32(),
    pa.uint64(),
]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
TEXTS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]
TIMES = [
    pa.timestamp("s"),
    pa.timestamp("ms"),
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
    pa.timestamp("ns"),
    pa.time64("us"),
    pa.duration("us"),
]
DECIMALS = [pa.decimal128(10, 2), pa.decimal256(10, 2)]


@pytest.mark.parametrize("kind", INTEGERS, ids=str)
def test_pinned_integers(kind):
    assert identities(pa.array([0, 1, 7, None], kind)) == [
        (0xE220A8397B1DCDAF, 0),
        (0x910A2DEC89025CC1, 0),
        (0x63CBE1E459320DD7, 0),
        NULL_WORD,
    ]


@pytest.mark.parametrize("kind", INTEGERS[:4], ids=str)
def test_pinned_minus_one(kind):
    assert identities(pa.array([-1], kind)) == [(0xE4D971771B652C20, 0)]


def test_pinned_ends_of_the_integers():
    assert identities(pa.array([2**63 - 1, -(2**63)])) == [
        (0x2A67D7552E039EA7, 0),
        (0x481EC0A212A9F3DB, 0),
    ]
    assert identities(pa.array([2**64 - 1], pa.uint64())) == [(0xE4D971771B652C20, 0)]


def test_pinned_booleans():
    assert identities(pa.array([False, True, None])) == [
        (0xE220A8397B1DCDAF, 0),
        (0x910A2DEC89025CC1, 0),
        NULL_WORD,
    ]


@pytest.mark.parametrize("kind", FLOATS, ids=str)
def test_pinned_floats(kind):
    values = np.array([0.0, 1.5, np.nan, np.inf], kind.to_pandas_dtype())
    assert identities(pa.array(values, kind)) == [
        (0x479111FC0BB0ED65, 0x5D0E18449EDDE018),
        (0xFEBC2F04A298E502, 0xB535AF75B6992E2B),
        (0x73D7D470FD0CDB65, 0x8BC4E89D391BC7C5),
        (0x6373FAF99F0FBEF9, 0x43A5F457AEBA1862),
    ]


@pytest.mark.parametrize("kind", TEXTS, ids=str)
def test_pinned_texts_and_bytes(kind):
    values = pa.array([b"", b"a", "häß".encode(), b"x" * 20, None], pa.binary()).cast(kind)
    assert identities(values) == [
        (0x479111FC0BB0ED65, 0x5D0E18449EDDE018),
        (0x407AEF356EDC8F0A, 0x2FEEFC22136B60AE),
        (0xE31E7164EFA8B2B5, 0xDE7761200CDDE1ED),
        (0xC402657A4C552944, 0x13B23FE0231A8B76),
        NULL,
    ]


def test_pinned_bytes_of_fixed_size():
    assert (
        identities(pa.array([b"abcd"], pa.binary(4)))
        == [(0x5AAC123F9855471E, 0x406EFA16D7277200)]
        == identities(pa.array(["abcd"]))
    )


@pytest.mark.parametrize("kind", DECIMALS, ids=str)
def test_pinned_decimals(kind):
    assert identities(pa.array([Decimal("1.50"), None], kind)) == [
        (0x232C42CD083F1AED, 0x4655DA4AE2460F2F),
        NULL,
    ]


@pytest.mark.parametrize("kind", TIMES, ids=str)
def test_pinned_instants_times_and_durations(kind):
    assert identities(pa.array([86_400_000, None], pa.int64()).cast(kind)) == [
        (0xA10C907DF09C06A6, 0),
        NULL_WORD,
    ]


def test_pinned_dates():
    day = dt.date(2022, 1, 8)
    assert identities(pa.array([day, None], pa.date32())) == [(0xD27C8B8B04E647F1, 0), NULL_WORD]
    assert identities(pa.array([dt.date(1970, 1, 2)], pa.date64())) == [(0xA10C907DF09C06A6, 0)]
    assert identities(pa.array([19_000], pa.int32()).cast(pa.time32("s"))) == [
        (0xD27C8B8B04E647F1, 0)
    ]


def test_pinned_structs():
    assert identities(pa.array([{"a": 1, "b": "x"}, {"a": None, "b": None}, None])) == [
        (0x55C77979CFA46387, 0xAF4799A74C3A3325),
        (0x2C09FD152AB498C4, 0x346CC84D12371DC0),
        NULL,
    ]


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64()), pa.large_list(pa.int64()), pa.list_(pa.int32())], ids=str
)
def test_pinned_lists(kind):
    assert identities(pa.array([[1, 2], [], None], kind)) == [
        (0xE54D749F33DCCECB, 0x91BFD019C8C41EBC),
        (0xF523BE6A40EF39D3, 0xBD0C782489F9AC5C),
        NULL,
    ]


def test_pinned_nulls_and_no_key_at_all():
    assert identities(pa.nulls(2)) == [NULL, NULL]
    key_hash, key_check = identify([], 3)
    assert (key_hash.tolist(), key_check.tolist()) == ([0, 0, 0], [0, 0, 0])


def test_pinned_keys_of_several_columns():
    one, two = pa.array([1, 1, None, None]), pa.array(["a", None, "a", None])
    assert identities(one, two) == PAIRS
    assert len(set(PAIRS)) == 4
    assert len({*PAIRS, *identities(two, one)}) == 7, (
        "the order of columns matters, but for nulls alone"
    )


PAIRS = [
    (0x9A98607C00EEF5AD, 0x1CF690D11F36AE42),
    (0x15D3562FC9999CDF, 0x22E2DDDCFD06F61C),
    (0x3581B2DEA2031BD6, 0x9705AFEEA37AD193),
    (0x2015A76B83532E35, 0x4748398D68432ECF),
]


def test_pinned_shards():
    key_hash, _ = identify([pa.array(range(20))], 20)
    assert shard_of(key_hash, 7).tolist() == SHARDS
    assert shard_of(key_hash, 1).tolist() == [0] * 20


SHARDS = [5, 0, 6, 1, 2, 5, 6, 1, 2, 0, 4, 1, 5, 4, 2, 4, 2, 4, 2, 2]


def test_shards_are_about_equally_large():
    key_hash, _ = identify([pa.array(range(8_000))], 8_000)
    sizes = np.bincount(shard_of(key_hash, 8), minlength=8)
    assert sizes.min() > 850
    assert sizes.max() < 1_150


def test_mixing_is_a_bijection_in_the_small_and_changes_half_the_bits():
    values = np.arange(100_000, dtype=np.uint64)
    assert len(np.unique(mix(values))) == 100_000
    flipped = mix(values) ^ mix(values ^ np.uint64(1))
    assert abs(np.unpackbits(flipped.view(np.uint8)).mean() - 0.5) < 0.01


# Equal and different


def test_zeros_and_nans_are_one_key_each():
    payload = np.array([0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(np.float64)
    found = identities(pa.array(np.concatenate([[0.0, -0.0, np.nan], payload])))
    assert found[0] == found[1]
    assert len(set(found[2:])) == 1
    assert found[0] != found[2]


def test_null_is_no_value():
    for values in (
        [0, None],
        [False, None],
        ["", None],
        ["None", None],
        [0.0, None],
        [math.nan, None],
        [[], None],
        [b"", None],
    ):
        assert len(set(identities(pa.array(values)))) == 2
        assert len(set(identities(pa.array(values), pa.array(["x", "x"])))) == 2


def test_zero_bytes_at_the_end_count():
    assert (
        len(set(identities(pa.array([b"", b"\0", b"\0\0", b"\0" * 8, b"\0" * 9, b"a", b"a\0"]))))
        == 7
    )


def test_the_border_between_columns_counts():
    found = identities(pa.array(["ab", "a", "", "abc"]), pa.array(["c", "bc", "abc", ""]))
    assert len(set(found)) == 4


scalars: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "integers": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "small integers": (pa.int8(), st.integers(-128, 127)),
    "texts": (pa.string(), st.text(max_size=20)),
    "similar texts": (pa.string(), st.text("a\0", max_size=18)),
    "bytes": (pa.binary(), st.binary(max_size=40)),
    "floats": (pa.float64(), st.floats(allow_nan=False)),
    "decimals": (pa.decimal128(12, 3), st.decimals(-999_999, 999_999, places=3)),
    "booleans": (pa.bool_(), st.booleans()),
    "instants": (
        pa.timestamp("us"),
        st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1)),
    ),
    "dates": (pa.date32(), st.dates()),
    "lists": (
        pa.list_(pa.string()),
        st.lists(st.text("a,' ", max_size=3) | st.none(), max_size=3).map(tuple),
    ),
    "structs": (
        pa.struct({"a": pa.int64(), "b": pa.string()}),
        st.tuples(st.none() | st.integers(0, 2), st.none() | st.text("ab", max_size=2)).map(
            lambda v: (("a", v[0]), ("b", v[1]))
        ),
    ),
}


def column(name: str, values: list[Any]) -> pa.Array:
    kind = scalars[name][0]
    plain = [
        (
            dict(v)
            if v is not None and name == "structs"
            else list(v)
            if v is not None and name == "lists"
            else v
        )
        for v in values
    ]
    return pa.array(plain, kind)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[pa.Array], list[tuple[Any, ...]]]:
    """One to three key columns with repeated values, as Arrow arrays and as plain tuples."""
    names = draw(st.lists(st.sampled_from(list(scalars)), min_size=1, max_size=3))
    rows = draw(st.integers(0, 12))
    pools = [draw(st.lists(st.none() | scalars[name][1], min_size=1, max_size=6)) for name in names]
    values = [[draw(st.sampled_from(pool)) for _ in range(rows)] for pool in pools]
    return [column(name, v) for name, v in zip(names, values, strict=True)], list(
        zip(*values, strict=True)
    )


@given(tables())
def test_oracle_equal_keys_have_equal_identities_and_different_ones_different(table):
    columns, keys = table
    found = identities(*columns)
    numbers = {key: at for at, key in reversed(list(enumerate(keys)))}
    assert [[a == b for b in found] for a in found] == [
        [numbers[a] == numbers[b] for b in keys] for a in keys
    ]


@given(tables(), st.integers(0, 12), st.integers(0, 12))
def test_oracle_an_identity_does_not_depend_on_where_the_row_lies(table, start, length):
    columns, _ = table
    whole = identities(*columns)
    assert identities(*(c.slice(start, length) for c in columns)) == whole[start : start + length]
    chunked = [pa.chunked_array([c.slice(0, start), c.slice(start)]) for c in columns]
    assert identities(*chunked) == whole


@given(tables())
def test_oracle_a_dictionary_is_its_values(table):
    columns, _ = table
    plain = [c for c in columns if not pa.types.is_nested(c.type)]
    if plain:
        assert identities(*(c.dictionary_encode() for c in plain)) == identities(*plain)


@pytest.mark.parametrize(
    "kind",
    [pa.int64(), pa.string(), pa.float64(), pa.timestamp("us"), pa.list_(pa.int64())],
    ids=str,
)
def test_no_rows_have_no_identities(kind):
    assert identities(pa.array([], kind)) == []


def test_a_type_without_equality_is_refused_with_a_hint():
    with pytest.raises(tg.InputError, match=r"map<string, int64>.*Hint"):
        identify([pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))], 1)
