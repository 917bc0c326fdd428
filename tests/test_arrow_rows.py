"""Arrow tables from outside: every value is stored and read again, or is a row of `late`; columns
that cannot be stored are refused with their name.
"""

from __future__ import annotations

from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.state.arrow_types import validate

TEXTS = pa.array([b"a", b"\xff\xfe", b"c"])
ROLES = ("k", "v", "id", "p", "extra")
INVALID: dict[str, pa.Array] = {
    "text": TEXTS.view(pa.string()),
    "large text": TEXTS.cast(pa.large_binary()).view(pa.large_string()),
    "text in a struct": pa.StructArray.from_arrays([TEXTS.view(pa.string())], ["a"]),
    "text in a list": pa.ListArray.from_arrays([0, 1, 2, 3], TEXTS.view(pa.string())),
    "time beyond the day": pa.array([1, 10**9, 3], pa.int32()).view(pa.time32("s")),
    "negative time": pa.array([1, -1, 3]).view(pa.time64("us")),
    "part of a day": pa.array([0, 1, 86_400_000]).view(pa.date64()),
}
"""Columns with a value in the middle that is not valid."""


def stream(**settings: Any) -> Any:
    return tg.stream(time="ts", key="k", watermark=tg.explicit(), **settings).window(
        tg.tumbling(10, unit="us")
    )


def rows(**columns: Any) -> pa.Table:
    plain = {"ts": [1, 2, 3], "k": ["a", "a", "a"], "v": [1, 2, 3], "id": ["x", "y", "z"]}
    return pa.table({**plain, "p": ["p", "p", "p"], **columns})


def outcome(op: tg.EmbeddedOperator) -> tuple[int, list[str]]:
    op.finish()
    result = op.get_result()
    result.panes.validate(full=True)
    result.late.validate(full=True)
    return sum(result.panes["n"].to_pylist()), result.late["reason"].to_pylist()


@pytest.mark.parametrize(
    ("kind", "role"),
    [
        (kind, role)
        for kind in INVALID
        for role in ROLES
        if role != "p" or kind.endswith("text")  # Names of partitions are texts.
    ],
)
def test_a_value_that_is_not_valid_costs_its_row_and_no_state(
    tmp_path: Path, kind: str, role: str
) -> None:
    settings = {"id": "id"} if role == "id" else {"partition": "p"} if role == "p" else {}
    aggregates = {"n": tg.count(), "kept": tg.list_("v"), "last": tg.last("v")}
    panes = stream(**settings).aggregate(**aggregates)
    with closing(tg.RocksDBStore(tmp_path / "state")) as store:
        op = panes.embedded(store=store, now=0)
        op.add_messages(rows(**{role: INVALID[kind]}))
        op.flush()
    with closing(tg.RocksDBStore(tmp_path / "state")) as store:
        op = panes.embedded(store=store, now=0)
        assert outcome(op) == (2, ["bad_value"])
        [row] = op.get_result().late.to_pylist()
        assert row["ts"] == 2
        assert row["detail"].startswith(f"`{role}` should be {INVALID[kind].type}, got ")


def test_values_that_are_not_valid_are_found_in_any_chunk() -> None:
    text = INVALID["text"]
    column = pa.chunked_array([text.slice(0, 2), text.slice(0, 0), text.slice(1), text.slice(2)])
    op = stream().aggregate(n=tg.count()).embedded(now=0)
    op.add_messages(pa.table({"ts": [1, 2, 3, 4, 5], "k": column}))
    assert outcome(op) == (3, ["bad_value", "bad_value"])
    assert op.get_result().late["ts"].to_pylist() == [2, 3]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
@pytest.mark.parametrize(
    "texts",
    [
        ["a", None, "grüße", "bc", ""],
        ["a", None, "b", "bc", ""],
        ["", "", None, "", ""],
        ["ß", "a", "b", "c", "ß"],
    ],
    ids=["other letters", "ascii", "empty", "other letters outside of the slice"],
)
def test_texts_in_any_script_and_slice_are_valid(kind: pa.DataType, texts: list[Any]) -> None:
    whole = pa.table({"a": pa.array(texts, kind)})
    for table in (whole, whole.slice(1, 3), whole.slice(2, 0), whole.slice(5)):
        validate(table)
    validate(pa.table({"a": pa.array([], kind)}))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_texts_with_wrong_offsets_or_bytes_are_not_valid(kind: pa.DataType) -> None:
    width = np.int64 if pa.types.is_large_string(kind) else np.int32
    for offsets, data in (
        ([0, 1 << 30, 3], b"abc"),
        ([2, 1, 3], b"abc"),
        ([-1, 1, 3], b"abc"),
        ([0, 1, 3], b"a\xff\xff"),
        ([0, 1, 3], None),
    ):
        buffers = [None, pa.py_buffer(np.array(offsets, width)), data and pa.py_buffer(data)]
        with pytest.raises(pa.ArrowInvalid):
            validate(pa.table({"a": pa.Array.from_buffers(kind, 2, buffers)}))


def wild(kind: pa.DataType, width: type) -> pa.Array:
    """Values whose offsets lie outside of their buffer."""
    offsets = pa.py_buffer(np.array([0, 1 << 30, 1, 2], width))
    return pa.Array.from_buffers(kind, 3, [None, offsets, pa.py_buffer(b"abc")])


@pytest.mark.parametrize(
    "column",
    [
        wild(pa.string(), np.int32),
        wild(pa.large_binary(), np.int64),
        pa.StructArray.from_arrays([wild(pa.string(), np.int32)], ["a"]),
        pa.DictionaryArray.from_arrays(
            pa.array([0, 1 << 20, 0], pa.int32()), pa.array(["a"]), safe=False
        ),
    ],
    ids=lambda column: str(column.type),
)
def test_a_damaged_table_is_refused_and_costs_nothing_else(column: pa.Array) -> None:
    op = stream().aggregate(n=tg.count()).embedded(now=0)
    op.add_messages(rows())
    for role in ("k", "v", "extra"):
        with pytest.raises(tg.InputError, match=r"Hint"):
            op.add_messages(rows(**{role: column}))
    assert outcome(op) == (3, [])


UUID = pa.array([b"a" * 16, None, b"b" * 16], pa.binary(16))
TABLE: dict[str, tuple[pa.Array, list[Any]]] = {
    "dictionary of lists": (
        pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), pa.array([[1], [2]])),
        [[1], [2], None],
    ),
    "dictionary with a null": (
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int8()), pa.array(["a", None])),
        ["a", None, "a"],
    ),
    "runs of a dictionary": (
        pa.RunEndEncodedArray.from_arrays(
            pa.array([2, 3], pa.int32()), pa.array(["a", "b"]).dictionary_encode()
        ),
        ["a", "a", "b"],
    ),
    "a slice of runs": (
        pa.RunEndEncodedArray.from_arrays(
            pa.array([2, 4, 9], pa.int32()), pa.array(["a", None, "b"], pa.string_view())
        ).slice(1, 4)[:3],
        ["a", None, None],
    ),
    "list of views": (
        pa.array([["a"], None, ["b" * 30]], pa.list_(pa.string_view())),
        [["a"], None, ["b" * 30]],
    ),
    "list of a dictionary": (
        pa.ListArray.from_arrays([0, 1, 1, 3], pa.array(["a", "b", "a"]).dictionary_encode()),
        [["a"], [], ["b", "a"]],
    ),
    "struct of runs": (
        pa.StructArray.from_arrays(
            [pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([1, 2]))],
            ["r"],
        ),
        [{"r": 1}, {"r": 1}, {"r": 2}],
    ),
    "view of lists": (pa.array([[1], None, []], pa.list_view(pa.int64())), [[1], None, []]),
    "uuid": (pa.ExtensionArray.from_storage(pa.uuid(), UUID), UUID.to_pylist()),
    "small decimals": (pa.array([Decimal("1.5")] * 3, pa.decimal64(9, 1)), [Decimal("1.5")] * 3),
}


@pytest.mark.parametrize("name", TABLE)
def test_values_in_any_layout_are_those_of_a_plain_column(tmp_path: Path, name: str) -> None:
    column, values = TABLE[name]
    panes = stream().aggregate(n=tg.count(), kept=tg.list_("v"), distinct=tg.approx_distinct("ts"))
    with closing(tg.MemoryStore(tmp_path / "state")) as store:
        op = panes.embedded(store=store, now=0)
        op.add_messages(rows(v=column).slice(0, 1))
        op.add_messages(rows(v=column).slice(1))
        op.flush()
    with closing(tg.MemoryStore(tmp_path / "state")) as store:
        op = panes.embedded(store=store, now=0)
        op.finish()
        [kept] = op.get_result().panes["kept"].to_pylist()
        assert kept == values


def test_approximate_counts_take_small_decimals() -> None:
    op = stream().aggregate(n=tg.approx_distinct("v")).embedded(now=0)
    op.add_messages(rows(v=TABLE["small decimals"][0]))
    assert outcome(op) == (1, [])


def test_two_fields_of_one_name_are_refused() -> None:
    twice = pa.StructArray.from_arrays([pa.array([1, 2, 3]), pa.array([1, 2, 3])], ["a", "a"])
    op = stream().aggregate(n=tg.count()).embedded(now=0)
    with pytest.raises(tg.InputError, match=r"`v`.* has two fields of one name.*Hint"):
        op.add_messages(rows(v=twice))


FAR: dict[str, pa.Array] = {
    "instants": pa.array([1, 2**62, -(2**62)], pa.timestamp("s")),
    "days": pa.array([1, 2**31 - 1, -(2**31)], pa.date32()),
    "durations": pa.array([1, 2**62, -(2**62)], pa.duration("s")),
    "an unknown zone": pa.array([1, 2, 3], pa.timestamp("us", "Not/AZone")),
    "instants in structs": pa.array([{"t": 2**62}] * 3, pa.struct([("t", pa.timestamp("s"))])),
    "instants in lists": pa.array([[2**62]] * 3, pa.list_(pa.timestamp("s"))),
}


@pytest.mark.parametrize("kind", FAR)
def test_values_that_python_cannot_hold_are_described(kind: str) -> None:
    """As keys and values of their own type, and where they do not fit their column."""
    column = FAR[kind]
    nested = pa.types.is_nested(column.type)
    if not nested:
        sessions = tg.stream(time="ts", key="k").window(tg.session(10, unit="us"))
        op = sessions.aggregate(n=tg.count(), kept=tg.list_("v")).embedded(now=0)
        op.add_messages(rows(k=column, v=column))
        assert op.explain_watermark()
        assert len(op.get_windows()) == 3
        op.finish()
        assert op.get_result().panes.num_rows == 3
    op = stream(id="id").aggregate(n=tg.count(), first=tg.first("v")).embedded(now=0)
    op.add_messages(rows(id=pa.nulls(3, pa.string())))
    op.add_messages(rows(v=column, id=["1", "2", "3"]))
    assert str(op.why("a"))
    total, late = outcome(op)
    assert total + len(late) == 6


def test_late_rows_with_a_time_that_is_no_time_are_explained() -> None:
    op = stream().aggregate(n=tg.count()).embedded(now=0)
    op.add_messages(rows(ts=["1970-01-01T00:00:00", "no time", "1970-01-01"]))
    op.add_messages(rows(ts=pa.array([1.5, 2.5, 3.5])))
    assert "no output" not in str(op.why("a"))
    assert outcome(op) == (2, ["bad_time"] * 4)


@pytest.mark.parametrize("far", [2**63 - 1, 2**40])
def test_an_offset_far_ahead_takes_no_memory(far: int) -> None:
    op = stream(offset="o").aggregate(n=tg.count(), kept=tg.list_("v")).embedded(now=0)
    times = [("1970-01-01", 1), ("x", 2), ("x", far)]
    op.add_messages([{"ts": time, "k": "a", "v": 1, "o": offset} for time, offset in times])
    assert outcome(op) == (1, ["bad_time", "bad_time"])


def test_an_offset_beyond_64_bits_costs_its_row_alone() -> None:
    op = stream(offset="o").aggregate(n=tg.count()).embedded(now=0)
    op.add_messages(rows(o=pa.array([1, 2, 2**64 - 1], pa.uint64())))
    op.add_messages(rows(o=[3, 4, 5]))
    assert outcome(op) == (5, ["bad_offset"])


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("poison", [{"k": [5]}, {"v": "x"}, {"k": 10**5000}, {"v": [1]}])
def test_a_broken_value_does_not_decide_the_type_of_its_column(
    poison: dict[str, Any], place: int
) -> None:
    messages = [{"ts": 1, "k": "a", "v": 1}, {"ts": 2, "k": "a", "v": 2}]
    messages.insert(place, {"ts": 3, "k": "a", "v": 3, **poison})
    op = stream().aggregate(n=tg.count(), total=tg.sum("v")).embedded(now=0)
    op.add_messages(messages)
    assert outcome(op) == (2, ["bad_value"])
    assert op.get_result().panes["total"].to_pylist() == [3]


def test_a_column_of_the_evictor_without_numbers_is_refused_on_arrival() -> None:
    panes = stream().evict(tg.evict_delta("v", 1.5)).aggregate(n=tg.count())
    op = panes.embedded(now=0)
    with pytest.raises(tg.InputError, match=r"`v`.*needs numbers"):
        op.add_messages(rows(v=["a", "b", "c"]))
    op.add_messages(rows(v=pa.array([1, 2**64 - 1, 2**64 - 1], pa.uint64())))
    assert outcome(op) == (2, [])


def test_a_time_column_of_nulls_does_not_take_a_type_without_times(tmp_path: Path) -> None:
    panes = stream().aggregate(n=tg.count())
    with closing(tg.MemoryStore(tmp_path / "state")) as store:
        op = panes.embedded(store=store, now=0)
        op.add_messages(rows(ts=pa.nulls(3)))
        with pytest.raises(tg.InputError, match=r"`ts`.*no instant"):
            op.add_messages(rows(ts=pa.array([1, 2, 3], pa.duration("us"))))
        op.flush()
    with closing(tg.MemoryStore(tmp_path / "state")) as store:
        op = panes.embedded(store=store, now=0)
        op.add_messages(rows())
        assert outcome(op) == (3, ["null_time"] * 3)
