"""Planes: what is split into bytes comes back as it was, and is split only where that takes less
room.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import CorruptStateError
from tidegate.state import byte_split as planes
from tidegate.state.serialization import decode_table, encode_compact, encode_table

ROWS = 2_000
RANDOM = np.random.default_rng(3)
NUMBERS = {
    "doubles": pa.array(RANDOM.random(ROWS)),
    "floats": pa.array(RANDOM.random(ROWS).astype(np.float32)),
    "longs": pa.array(RANDOM.integers(-(10**6), 10**6, ROWS)),
    "times": pa.array(RANDOM.integers(0, 10**9, ROWS)).cast(pa.timestamp("us", "UTC")),
    "dates": pa.array(RANDOM.integers(0, 30_000, ROWS).astype(np.int32)).cast(pa.date32()),
    "shorts": pa.array(RANDOM.integers(0, 600, ROWS).astype(np.uint16)),
    "bytes": pa.array(RANDOM.integers(0, 200, ROWS).astype(np.int8)),
    "flags": pa.array(RANDOM.random(ROWS) < 0.5),
    "halves": pa.array(RANDOM.random(ROWS).astype(np.float16)),
    "nulls": pa.array([None if n % 7 == 0 else n / 3 for n in range(ROWS)]),
    "text": pa.array([f"v{n % 40}" for n in range(ROWS)]),
    "lists": pa.array([[n] * (n % 3) for n in range(ROWS)]),
    "decimals": pa.array(range(ROWS)).cast(pa.decimal128(30, 2)),
}


@given(
    st.lists(st.sampled_from(list(NUMBERS)), min_size=1, max_size=6),
    st.integers(0, ROWS),
    st.integers(0, 3),
    st.booleans(),
)
def test_a_table_comes_back_as_it_was(names, start, chunks, told):
    whole = pa.table(
        [NUMBERS[name] for name in names],
        names=names,
        metadata={"said": "something"} if told else None,
    )
    table = pa.concat_tables([whole.slice(start)] * chunks) if chunks else whole.slice(start)
    found = decode_table(encode_compact(table), "t")
    found.validate(full=True)
    assert found.equals(table, check_metadata=True)


def test_numbers_that_are_alike_take_less_room():
    table = pa.table({"sum": RANDOM.random(20 * ROWS), "at": RANDOM.integers(0, 10**9, 20 * ROWS)})
    assert len(encode_compact(table)) < 0.92 * len(encode_table(table, "zstd"))


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"price": pa.array(RANDOM.random(9)[RANDOM.integers(0, 9, ROWS)])}),
        pa.table({"few": NUMBERS["doubles"].slice(0, 100)}),
        pa.table({"none": pa.array([], pa.float64())}),
        pa.table({name: NUMBERS[name] for name in ("bytes", "flags", "nulls", "text", "decimals")}),
    ],
    ids=["the same few words", "few rows", "no rows", "nothing to split"],
)
def test_a_table_stays_as_it_is_where_splitting_does_not_pay(table):
    assert planes.split(table) is table


def test_columns_that_have_the_same_name_are_told_apart():
    table = pa.Table.from_arrays([NUMBERS["doubles"], NUMBERS["longs"]], names=["x", "x"])
    assert planes.joined(planes.split(table)).equals(table)


def test_a_split_table_that_was_cut_is_told():
    data = encode_compact(pa.table({"x": NUMBERS["doubles"]})).to_pybytes()
    with pytest.raises(CorruptStateError, match=r"stored table `t` is damaged.*Hint"):
        decode_table(data[: len(data) // 2], "t")
