"""Packing: whatever a frame holds comes back as it was, and what can be told shorter takes less
room.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tidegate.errors import CorruptStateError
from tidegate.kernel.frame import Frame, constant, equal_rows
from tidegate.kernel.keys import FIXED, KeyHasher
from tidegate.kernel.storage.column_encoding import pack, unpack

ROWS = st.integers(0, 6)
KINDS = st.sampled_from([np.int64, np.uint64, np.int32, np.uint16, np.int8, np.bool_, np.float64])
KEYS = st.sampled_from([pa.int64(), pa.int32(), pa.bool_(), pa.timestamp("us", "UTC"), pa.string()])


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    rows = draw(ROWS)
    columns = {
        f"c{n}": draw(hnp.arrays(kind, rows))
        for n, kind in enumerate(draw(st.lists(KINDS, max_size=4)))
    }
    for name, column in list(columns.items()):
        if draw(st.booleans()):
            columns[f"{name} again"] = column.copy()
    columns["always"] = constant(np.int64(draw(st.integers(-3, 300))), rows)
    small = draw(st.lists(st.one_of(st.none(), st.integers(0, 1)), min_size=rows, max_size=rows))
    for n, kind in enumerate(draw(st.lists(KEYS, max_size=2))):
        values = [
            str(value) if value is not None and pa.types.is_string(kind) else value
            for value in small
        ]
        name = f"{draw(st.sampled_from(['k', 'm']))}.{n}"
        columns[name] = (
            pa.array(values).cast(kind)
            if any(v is not None for v in values)
            else pa.nulls(rows, kind)
        )
    keys = [column for name, column in columns.items() if name.startswith(("k.", "m."))]
    if draw(st.booleans()):
        columns["equal_hash"], columns["key_check"] = FIXED.identify(keys, rows)
    columns["key_hash"], columns["key_check"] = FIXED.identify(keys, rows)
    if draw(st.booleans()) and rows:
        columns["key_hash"] = columns["key_hash"] ^ np.uint64(1)
    return Frame.of(columns, rows)


@given(frames(), st.booleans(), st.booleans(), st.sampled_from([None, FIXED]))
def test_a_frame_comes_back_as_it_was(frame, by_key, is_sorted, hasher):
    if is_sorted:
        frame = frame.take(np.lexsort((frame.ints("key_check"), frame.ints("key_hash"))))
    found = unpack(pack(frame, by_key=by_key, hasher=hasher), hasher)
    assert sorted(found.names) == sorted(frame.names)
    assert len(found) == len(frame)
    for name in frame.names:
        assert equal_rows(found[name], frame[name]).all()
        if isinstance(frame[name], np.ndarray):
            assert found.ints(name).dtype == frame.ints(name).dtype


def test_a_packed_frame_goes_through_the_stored_form():
    frame = Frame.of(
        {"n": np.array([1, 300]), "flag": np.array([True, True]), "v": np.array([0.5, np.nan])}
    )
    sink = pa.BufferOutputStream()
    table = pack(frame)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    found = unpack(pa.ipc.open_stream(sink.getvalue()).read_all())
    assert found.ints("n").tolist() == [1, 300]
    assert found.ints("flag").tolist() == [True, True]
    assert equal_rows(found["v"], frame["v"]).all()


def test_a_column_that_is_the_same_as_another_takes_no_room():
    numbers = np.sqrt(np.arange(1000.0))
    frame = Frame.of(
        {
            "a": numbers,
            "b": numbers.copy(),
            "c": -numbers,
            "n": np.arange(1000),
            "m": np.arange(1000),
        }
    )
    assert pack(frame).column_names == ["a", "c", "n"]
    zeros = Frame.of({"a": np.array([0.0, 1.0]), "b": np.array([-0.0, 1.0])})
    assert np.signbit(unpack(pack(zeros)).ints("b")).tolist() == [True, False]


def test_identities_of_numbers_and_narrow_counts_take_no_room():
    numbers = np.arange(1000, dtype=np.int64)
    key_hash, key_check = FIXED.identify([pa.array(numbers)], 1000)
    frame = Frame.of(
        {
            "key_hash": key_hash,
            "key_check": key_check,
            "k.key": pa.array(numbers),
            "n": np.arange(1000) % 7,
            "closed": np.zeros(1000, bool),
        }
    )
    table = pack(frame)
    assert table.column_names == ["k.key", "n"]
    assert table.schema.field("n").type == pa.uint8()


def test_rows_of_a_join_are_kept_in_what_their_columns_say():
    keys, at = np.arange(1000) % 300, 1_700_000_000_000_000 + np.arange(1000) * 70_000
    lead, key_check = FIXED.identify([pa.array(keys)], 1000)
    payload = {
        "m.other": pa.array(keys[::-1].copy()),
        "m.key": pa.array(keys),
        "m.ts": pa.array(at).cast(pa.timestamp("us", "UTC")),
    }
    frame = Frame.of(
        {
            "equal_hash": lead,
            "key_check": key_check,
            "at": at,
            "seq": np.arange(1000) + 5_000_000_000,
            **payload,
        }
    )
    table = pack(frame)
    assert {field.name: field.type for field in table.schema} == {
        "at": pa.uint32(),
        "seq": pa.uint16(),
        "m.other": pa.uint16(),
        "m.key": pa.uint16(),
    }
    found = unpack(table)
    assert found["m.ts"].equals(frame["m.ts"])
    assert all(equal_rows(found[name], frame[name]).all() for name in frame.names)


KEYED = st.lists(
    st.tuples(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3), st.integers(0, 5)),
    min_size=1,
    max_size=9,
)


@given(KEYED, st.sampled_from([np.int64, np.uint64, np.int32, np.int8]))
def test_rows_in_the_order_of_their_keys_are_read_in_the_order_of_their_identities(rows, kind):
    keys = np.array([key for key, _ in rows], np.int64).astype(kind)
    starts = np.array([start for _, start in rows])
    key_hash, key_check = FIXED.identify([pa.array(keys)], len(keys))
    order = np.lexsort((starts, key_check, key_hash))
    frame = Frame.of(
        {"key_hash": key_hash, "key_check": key_check, "k.key": keys, "start": starts}
    ).take(order)
    found = unpack(pack(frame, by_key=True))
    for name in frame.names:
        assert found.ints(name).tolist() == frame.ints(name).tolist()
        assert found.ints(name).dtype == frame.ints(name).dtype


@pytest.mark.parametrize(
    "bounds", [(0, 300), (-(10**6), 10**6), (-(2**63), 2**63 - 1), (2**40, 2**40 + 2**20)]
)
def test_many_rows_in_the_order_of_their_keys_are_read_in_the_order_of_their_identities(bounds):
    random = np.random.default_rng(5)
    keys, starts = random.integers(*bounds, 9_000), random.integers(0, 50, 9_000)
    key_hash, key_check = FIXED.identify([pa.array(keys)], len(keys))
    frame = Frame.of(
        {"key_hash": key_hash, "key_check": key_check, "k.key": keys, "start": starts}
    ).take(np.lexsort((starts, key_check, key_hash)))
    table = pack(frame, by_key=True)
    assert table.column("k.key").to_pylist() != frame.ints("k.key").tolist()
    assert all(np.array_equal(unpack(table).ints(name), frame.ints(name)) for name in frame.names)


def test_keys_that_are_close_to_each_other_are_a_byte_each():
    keys = np.arange(0, 3_000_000, 3_000)
    key_hash, key_check = FIXED.identify([pa.array(keys)], len(keys))
    frame = Frame.of(
        {
            "key_hash": key_hash,
            "key_check": key_check,
            "k.key": keys * 7,
            "start": np.arange(len(keys)),
        }
    )
    mixed = Frame.of(
        {"key_hash": key_hash, "key_check": key_check, "k.key": keys, "start": np.arange(len(keys))}
    )
    ordered = mixed.take(np.argsort(key_hash))
    assert pack(ordered, by_key=True).column_names == ["k.key", "start"]
    assert len(pack(ordered, by_key=True).column("k.key").unique()) == 2, (
        "the first step, and all others"
    )
    assert pack(mixed, by_key=True).column("k.key").to_pylist() == keys.tolist(), (
        "not sorted by identity, so the order could not be found again"
    )
    assert "key_hash" in pack(frame, by_key=True).column_names, "identities of other keys"


def test_identities_that_do_not_follow_from_the_key_are_kept():
    text = pa.array(["a", "b"])
    key_hash, key_check = FIXED.identify([text], 2)
    assert {"key_hash", "key_check"} <= set(
        pack(Frame.of({"key_hash": key_hash, "key_check": key_check, "k.key": text})).column_names
    )


def test_hashes_of_any_key_take_no_room_where_the_reader_has_the_hasher():
    hasher = KeyHasher(bytes(range(16)))
    names, numbers = pa.array([f"key {n}" for n in range(1000)]), pa.array(range(1000))
    for keys in ([names], [names, numbers]):
        key_hash, key_check = hasher.identify(keys, 1000)
        columns = {f"k.{n}": key for n, key in enumerate(keys)}
        frame = Frame.of({"key_hash": key_hash, "key_check": key_check, **columns})
        table = pack(frame, hasher=hasher)
        assert table.column_names == list(columns)
        found = unpack(table, hasher)
        assert found.ints("key_hash").tolist() == key_hash.tolist()
        assert found.ints("key_check").tolist() == key_check.tolist()
        with pytest.raises(CorruptStateError, match="secret"):
            unpack(table)
        repeated = Frame({"before": keys[0], **frame.columns}, 1000)
        assert unpack(pack(repeated, hasher=hasher), hasher)["k.0"].equals(keys[0])
        other = pack(frame.with_mapping({"key_check": key_check ^ np.uint64(1)}), hasher=hasher)
        assert {"key_hash", "key_check"} < {*other.column_names}


DECIMALS = st.integers(-(10**9), 10**9).map(lambda n: n / 100)
FLOATS = st.one_of(DECIMALS, st.floats(), st.sampled_from([0.0, -0.0, 0.1 + 0.2, 1e300]))


@given(st.lists(FLOATS, max_size=8) | st.lists(DECIMALS, max_size=8))
def test_floating_point_numbers_come_back_bit_by_bit(values):
    column = np.array(values, np.float64)
    found = unpack(pack(Frame.of({"v": column, "n": np.arange(len(values))})))
    assert sorted(found.names) == ["n", "v"]
    assert found.ints("v").view(np.uint64).tolist() == column.view(np.uint64).tolist()


def test_prices_and_their_sums_take_the_room_of_integers():
    prices = np.arange(1000) * 7 % 1000 / 100
    table = pack(Frame.of({"price": prices, "sum": prices + 0.1 + 0.2}))
    assert pa.types.is_uint16(table.schema.field("price").type)
    assert table.nbytes <= 1000 * 5
