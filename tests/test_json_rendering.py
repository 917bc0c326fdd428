"""Columns as JSON texts: every value against Python's own JSON."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.spark.sinks.json_rendering import json_objects, json_values

UTC = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("type", "values", "rendered"),
    [
        (pa.int8(), [-1, None, 2], [-1, None, 2]),
        (pa.uint64(), [2**64 - 1], [2**64 - 1]),
        (pa.bool_(), [True, False, None], [True, False, None]),
        (
            pa.float64(),
            [1.5, None, float("nan"), float("inf"), float("-inf"), 1e300],
            [1.5, None, "NaN", "Infinity", "-Infinity", 1e300],
        ),
        (pa.float16(), [0.5, None], [0.5, None]),
        (pa.decimal128(10, 2), [Decimal("1.20"), None], ["1.20", None]),
        (pa.string(), ['a"\\\n\t\0é', None, ""], ['a"\\\n\t\0é', None, ""]),
        (pa.string_view(), ["x", None], ["x", None]),
        (pa.binary(), [b"\xff", b"", None], ["/w==", "", None]),
        (UTC, [0, -1, None], ["1970-01-01T00:00:00.000000Z", "1969-12-31T23:59:59.999999Z", None]),
        (
            UTC,
            [-(2**62), 2**62],
            ["-144169-06-28T09:59:32.612096Z", "148108-07-06T14:00:27.387904Z"],
        ),
        (pa.timestamp("us", "Asia/Kathmandu"), [0], ["1970-01-01T00:00:00.000000Z"]),
        (pa.timestamp("ns"), [2**62], ["2116-02-20T23:53:38.427387904"]),
        (pa.timestamp("s"), [0], ["1970-01-01T00:00:00"]),
        (pa.date32(), [0, -1_000_000, None], ["1970-01-01", "-768-02-04", None]),
        (pa.time64("us"), [dt.time(1, 2, 3), None], ["01:02:03.000000", None]),
        (pa.duration("us"), [7, None], [7, None]),
        (pa.null(), [None], [None]),
        (pa.dictionary(pa.int8(), pa.string()), ["a", None], ["a", None]),
        (pa.list_(pa.int64()), [[1, None], None, [], [3]], [[1, None], None, [], [3]]),
        (pa.large_list(pa.string()), [["a"], None], [["a"], None]),
        (pa.list_(pa.int64(), 2), [[1, 2], None, [3, None]], [[1, 2], None, [3, None]]),
        (
            pa.struct([("x", pa.int64()), ("y", UTC)]),
            [{"x": 1, "y": 0}, None],
            [{"x": 1, "y": "1970-01-01T00:00:00.000000Z"}, None],
        ),
        (
            pa.list_(pa.struct([("a", pa.list_(pa.string()))])),
            [[{"a": ["q"]}, None], [{"a": None}]],
            [[{"a": ["q"]}, None], [{"a": None}]],
        ),
        (
            pa.map_(pa.string(), pa.int64()),
            [[("k", 1)], None, []],
            [[{"key": "k", "value": 1}], None, []],
        ),
    ],
)
def test_values(type, values, rendered):
    column = pa.array(values, type)
    assert [json.loads(text) for text in json_values(column).to_pylist()] == rendered
    chunked = pa.chunked_array([column.slice(0, 0), column, column.slice(1)])
    assert [json.loads(text) for text in json_values(chunked).to_pylist()] == rendered + rendered[
        1:
    ]
    assert len(json_values(column.slice(0, 0))) == 0


@given(st.lists(st.none() | st.text()), st.text(min_size=1))
def test_any_text_and_any_name(texts, name):
    table = pa.table({name: pa.array(texts, pa.string())})
    assert [json.loads(text) for text in json_objects(table, [name]).to_pylist()] == [
        {name: text} for text in texts
    ]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False)))
def test_any_float_comes_back(numbers):
    assert [
        float(text) for text in json_values(pa.array(numbers, pa.float64())).to_pylist()
    ] == numbers


def test_objects_keep_the_order_of_columns_and_may_be_empty():
    table = pa.table({"b": [1, 2], "a": ["x", None]})
    assert json_objects(table, ["b", "a"]).to_pylist() == ['{"b":1,"a":"x"}', '{"b":2,"a":null}']
    assert json_objects(table, []).to_pylist() == ["{}", "{}"]
