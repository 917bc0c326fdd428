"""Identities of keys: pinned values, because stored state and every edge depend on them, and equal
exactly where keys are equal, whatever keys a sender chooses.
"""

from __future__ import annotations

import copy
import datetime as dt
import math
import pickle
import secrets
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from tidegate.kernel import keys as keys_module
from tidegate.kernel.keys import FIXED, KeyHasher, mix, shard_of
from tidegate.kernel.siphash import hash_bytes, hash_words
from tidegate.operators import key_secret

Identity = tuple[int, int]


def identities(*columns: Any) -> list[Identity]:
    key_hash, key_check = FIXED.identify(columns, len(columns[0]))
    assert key_hash.dtype == key_check.dtype == np.uint64
    return [(int(k), int(c)) for k, c in zip(key_hash, key_check, strict=True)]


NULL_WORD = (0xE220A8397B1DCDAF, 1)
NULL = (0x722B73BFB2813EEB, 0xB1BFD17BC1EB2159)
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
        (0x87CBBD3A05D97BA3, 0x716D4466C5927C5F),
        (0x90011B9B98F2FCBD, 0xF1F4E4DCE7706D48),
        (0x121A007A12C1E138, 0xA47DD424CF328C34),
        (0x74A9B112FA542CCB, 0x2AEE31D66B3387A0),
    ]


@pytest.mark.parametrize("kind", TEXTS, ids=str)
def test_pinned_texts_and_bytes(kind):
    values = pa.array([b"", b"a", "häß".encode(), b"x" * 20, None], pa.binary()).cast(kind)
    assert identities(values) == [
        (0x7DE0A38047D74950, 0xF4F2CED447AB0242),
        (0xBEA0379C744ECCFF, 0x2573CD0E8904C4E6),
        (0x685BAD52BD4B27AC, 0x1C5927E91559D558),
        (0x8C3F5D7AB8433145, 0xA62B0F9EEF2224DB),
        NULL,
    ]


def test_pinned_bytes_of_fixed_size():
    assert (
        identities(pa.array([b"abcd"], pa.binary(4)))
        == [(0x18E3D614B9DF192E, 0xF2D7336F3F467205)]
        == identities(pa.array(["abcd"]))
    )


@pytest.mark.parametrize("kind", DECIMALS, ids=str)
def test_pinned_decimals(kind):
    assert identities(pa.array([Decimal("1.50"), None], kind)) == [
        (0xE46610260999C7B7, 0xC8601994BE213AF4),
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
        (0xA60A57D7673521D0, 0x2D380D8224474AC8),
        (0xA570BF5A65CFD63F, 0x1BDFE071083CE55F),
        NULL,
    ]


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64()), pa.large_list(pa.int64()), pa.list_(pa.int32())], ids=str
)
def test_pinned_lists(kind):
    assert identities(pa.array([[1, 2], [], None], kind)) == [
        (0x1A005BD76C234E30, 0xD491DEA321DF9E06),
        (0x1ACAC6F3AD36ABD6, 0xECF9FAE6A6550BFD),
        NULL,
    ]


def test_pinned_nulls_and_no_key_at_all():
    assert identities(pa.nulls(2)) == [NULL, NULL]
    key_hash, key_check = FIXED.identify([], 3)
    assert (key_hash.tolist(), key_check.tolist()) == ([0, 0, 0], [0, 0, 0])


def test_pinned_keys_of_several_columns():
    one, two = pa.array([1, 1, None, None]), pa.array(["a", None, "a", None])
    assert identities(one, two) == PAIRS
    assert len(set(PAIRS)) == 4
    assert len({*PAIRS, *identities(two, one)}) == 7, (
        "the order of columns matters, but for nulls alone"
    )


PAIRS = [
    (0x9F78CA45FD587DE7, 0x3C9D0C24446F1DB8),
    (0xE74ADA44703412A2, 0xD125233AF5CE633B),
    (0xA91DBD6D79A7199E, 0x6FC1AE3AD4713E62),
    (0xA570BF5A65CFD63F, 0x1BDFE071083CE55F),
]


def test_pinned_shards():
    key_hash, _ = FIXED.identify([pa.array(range(20))], 20)
    assert shard_of(key_hash, 7).tolist() == SHARDS
    assert shard_of(key_hash, 1).tolist() == [0] * 20


SHARDS = [5, 0, 6, 1, 2, 5, 6, 1, 2, 0, 4, 1, 5, 4, 2, 4, 2, 4, 2, 2]


def test_a_hasher_travels_without_what_it_has_met():
    hasher, rows = KeyHasher(b"0123456789abcdef"), pa.array(range(100_000))
    before = len(pickle.dumps(hasher))
    assert hasher.dense.ranked([rows], len(rows)) is not None
    assert len(pickle.dumps(hasher)) == before
    assert copy.copy(hasher) == hasher


def test_shards_are_about_equally_large():
    key_hash, _ = FIXED.identify([pa.array(range(8_000))], 8_000)
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
        FIXED.identify([pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))], 1)


# Secrets, crafted keys and long keys

KEY_OF_VECTORS = tuple(np.frombuffer(bytes(range(16)), "<u8"))
VECTORS = {
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
    63: "5150d1772f50834a503e069a973fbd7c",
}


def test_siphash_has_its_published_values():
    data = np.arange(64, dtype=np.uint8)
    first, second = hash_bytes(data, np.zeros(64, np.int64), np.arange(64), KEY_OF_VECTORS)
    for length, expected in VECTORS.items():
        assert first[length].tobytes().hex() + second[length].tobytes().hex() == expected
    words = hash_words([data[:8].view("<u8"), data[8:16].view("<u8")], 1, KEY_OF_VECTORS)
    assert (words[0][0], words[1][0]) == (first[16], second[16])


CRAFTED = ["kxcibboe) ~@yDM\x06", "vkigrydk@i\x00*\x06cry"]
"""Keys that a search found for an unkeyed hash."""


def test_crafted_keys_stay_apart():
    assert len(set(identities(pa.array(CRAFTED)))) == 2
    operator = (
        tg.stream(time="t", key="k").window(tg.tumbling("1 s")).aggregate(n=tg.count()).embedded()
    )
    operator.add_messages([{"t": 1, "k": key} for key in CRAFTED])
    operator.finish()
    assert [(row["k"], row["n"]) for row in operator.get_result().panes.to_pylist()] in (
        [(CRAFTED[0], 1), (CRAFTED[1], 1)],
        [(CRAFTED[1], 1), (CRAFTED[0], 1)],
    )


def test_every_durable_state_has_its_own_secret(tmp_path, monkeypatch):
    monkeypatch.setattr(key_secret, "secrets", secrets)
    panes = tg.stream(time="t", key="k").window(tg.tumbling("1 s")).aggregate(n=tg.count())
    found = []
    for name in ("a", "b", "a"):
        with panes.embedded(store=tg.MemoryStore(tmp_path / name)) as operator:
            operator.add_messages([{"t": 1, "k": "x"}])
            operator.flush()
            found.append(operator.operator.hasher.secret)
    assert found[0] == found[2] != found[1]
    assert panes.embedded().operator.hasher == FIXED


def test_hashes_depend_on_the_secret_and_a_repr_hides_it(monkeypatch):
    monkeypatch.setattr(key_secret, "secrets", secrets)
    hasher = key_secret.new_hasher()
    texts, pairs = [pa.array(["a", None])], [pa.array([1, None]), pa.array([1.5, None])]
    for columns in (texts, pairs):
        assert not (hasher.identify(columns, 2)[0] == FIXED.identify(columns, 2)[0]).any()
    assert repr(hasher) == "KeyHasher()"


def test_the_work_of_a_long_key_is_its_own():
    keys = pa.array(["x" * 10_000_000, "x" * 9_999_999, "a", None, "x" * 10_000_000])
    found = identities(keys)
    assert found[0] == found[4]
    assert len(set(found)) == 4
    assert found[2:4] == identities(keys.slice(2, 2))


@pytest.mark.parametrize("rows", [100, 20_000])
def test_repeated_texts_have_the_hashes_of_single_ones(rows):
    few = pa.array([None if n % 7 == 0 else f"key {n % 50}" for n in range(rows)])
    alone = {key: identities(pa.array([key], pa.string()))[0] for key in few.unique().to_pylist()}
    assert identities(few) == [alone[key] for key in few.to_pylist()]


@pytest.mark.parametrize("values", [10, 1000, 20_000, 1_000_000])
def test_the_number_of_values_is_estimated_from_a_sample(values: int) -> None:
    drawn = 4096
    found = len(set(np.random.default_rng(1).integers(0, values, drawn).tolist()))
    assert values / 3 <= keys_module._distinct(found, drawn) <= 3 * values


def test_texts_that_repeat_are_hashed_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []
    hash_bytes = keys_module.hash_bytes

    def counted(data, begin, length, key):
        hashed.append(len(begin))
        return hash_bytes(data, begin, length, key)

    monkeypatch.setattr(keys_module, "hash_bytes", counted)
    for values in (20_000, 10**9):
        drawn = np.random.default_rng(1).integers(0, values, 200_000)
        keys_module.FIXED.identify([pa.array([str(n) for n in drawn])], len(drawn))
    assert hashed[0] <= 20_000
    assert sum(hashed[1:]) == 200_000
