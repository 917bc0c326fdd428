"""Poisoned messages: each costs itself alone, whatever its values, and no call fails for another."""

from __future__ import annotations

import contextlib
import json
import uuid
from datetime import datetime, tzinfo
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from support.examples import examples
from tidegate.operators.ingest.python_rows import MAX_NESTING

GOOD = {"ts": 1, "k": "a"}


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


def nested(depth: int, *, lists: bool = False) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if lists else {"a": value}
    return value


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def operator(**settings: Any) -> tg.EmbeddedOperator:
    return (
        tg.stream(time="ts", key="k", watermark=tg.explicit(), **settings)
        .window(tg.tumbling(10, unit="us"))
        .aggregate(n=tg.count())
        .embedded(now=0)
    )


def outcome(op: tg.EmbeddedOperator) -> tuple[int, list[str]]:
    """The events in panes, and the reasons of late rows."""
    op.finish()
    result = op.get_result()
    return sum(result.panes["n"].to_pylist()), result.late["reason"].to_pylist()


POISON: dict[str, dict[Any, Any]] = {
    "half a surrogate pair": {**GOOD, "k": json.loads('"\\ud800"')},
    "half a surrogate pair in a new column": {**GOOD, "v": "\udfff"},
    "a reserved name": {**GOOD, "\x00broken": 5},
    "a name that is a number": {**GOOD, 5: 1},
    "a name that is none": {**GOOD, None: 1},
    "a name with half a surrogate pair": {**GOOD, "\ud800": 1},
    "NaN as a time": {**GOOD, "ts": float("nan")},
    "a fraction as a time": {**GOOD, "ts": 1.5},
    "a list as a time": {**GOOD, "ts": [1]},
    "more than 4,300 digits as a time": {**GOOD, "ts": 10**5000},
    "more than 4,300 digits as a key": {**GOOD, "k": 10**5000},
    "a value without a text": {**GOOD, "k": Unprintable()},
    "a deep dictionary": {**GOOD, "v": nested(12_000)},
    "a deep list": {**GOOD, "v": nested(100_000, lists=True)},
    "a deep key": {**GOOD, "k": nested(MAX_NESTING + 1)},
    "a value that contains itself": {**GOOD, "v": endless()},
    "a decimal that is no number": {**GOOD, "v": Decimal("NaN")},
}


@pytest.mark.parametrize("poison", POISON.values(), ids=POISON)
def test_a_poisoned_message_costs_itself_alone(poison):
    op = operator()
    for _ in range(500):
        op.add_message(GOOD)
    op.add_message(poison)
    op.add_message(GOOD)
    assert outcome(op) == (501, ["bad_value"])

    together = operator()
    together.add_message(GOOD)
    together.add_messages([GOOD, poison, GOOD])
    assert outcome(together) == (3, ["bad_value"])


def test_values_up_to_the_limit_are_kept():
    op = operator()
    op.add_messages([{**GOOD, "v": nested(MAX_NESTING - 1)}, {**GOOD, "w": nested(31, lists=True)}])
    op.flush()
    assert outcome(op) == (2, [])


def test_nat_is_a_missing_value():
    op = operator()
    op.add_message(GOOD)
    op.add_message({"ts": pd.NaT, "k": "a"})
    op.add_message({"ts": 2, "k": pd.NaT})
    assert outcome(op) == (2, ["null_time"])


def test_a_buffered_message_with_the_name_of_a_computed_column_costs_itself_alone():
    op = (
        tg.stream(time="ts", key=lambda rows: pc.utf8_upper(rows["k"]), watermark=tg.explicit())
        .window(tg.tumbling(10, unit="us"))
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    [computed] = op.spec.input.key
    for row in (GOOD, GOOD, {**GOOD, computed: "A"}, GOOD):
        op.add_message(row)
    assert outcome(op) == (3, ["bad_value"])
    assert computed in op.get_result().late["detail"].to_pylist()[0]


@pytest.mark.parametrize("missing", [None, "x", float("nan")])
def test_an_offset_that_is_missing_costs_its_message_alone(missing):
    rows = [{**GOOD, "o": number} for number in (0, 1, missing, 2)]
    op = operator(offset="o")
    for row in rows:
        op.add_message(row)
    assert outcome(op) == (3, ["bad_offset"])
    together = operator(offset="o")
    together.add_messages(rows[:1])
    together.add_messages(rows[1:])
    assert outcome(together) == (3, ["bad_offset"])
    [row] = together.get_result().late.to_pylist()
    assert row["ts"] == 1
    assert row["detail"].startswith("`o` is null")


def test_an_offset_that_is_missing_costs_its_row_alone_on_every_path():
    times = tg.stream(time="ts", key="k", offset="o", watermark=tg.explicit())
    rows = [{"ts": 1, "k": "a", "o": 5}, {"ts": 2, "k": "a", "o": None}]
    joined = times.join(times, tg.within("1 s", "1 s"), on="k").embedded(now=0)
    joined.add_messages(rows, input="left")
    joined.add_messages(rows, input="right")
    joined.finish()
    found = joined.get_result()
    assert found.panes.num_rows == 1
    assert found.late["reason"].to_pylist() == ["bad_offset"] * 2
    by_offset = times.window(tg.tumbling(10, axis="offset")).aggregate(n=tg.count()).embedded(now=0)
    by_offset.add_messages(rows)
    by_offset.add_messages(rows[1:])
    assert outcome(by_offset) == (1, ["bad_offset"] * 2)


def test_a_first_message_without_columns_is_refused():
    op = operator()
    for empty in ({}, {5: 1}):
        with pytest.raises(tg.InputError, match="no columns"):
            op.add_message(empty)
    for nothing in ({}, [{}, {}], pd.DataFrame(index=range(3))):
        with pytest.raises(tg.InputError, match="no columns"):
            op.add_messages(nothing)
    op.add_messages([])
    op.add_message(GOOD)
    op.add_message({})
    assert outcome(op) == (1, ["null_time"])


@pytest.mark.parametrize("message", [5, None, "text", [("ts", 1)]])
def test_a_message_that_is_no_dictionary_is_refused(message):
    op = operator()
    op.add_message(GOOD)
    with pytest.raises(tg.InputError, match="dictionar"):
        op.add_message(message)
    assert outcome(op) == (1, [])


@pytest.mark.parametrize(
    ("table", "match"),
    [
        (pa.table([[1], ["a"], ["b"]], names=["ts", "k", "k"]), "`k` more than once"),
        (pd.DataFrame([[1, "a", "b"]], columns=["ts", "k", "k"]), "`k` more than once"),
        (pa.table({"ts": [1], "k": ["a"], "\x00broken": [5]}), "reserved"),
        (pa.table({"ts": [1], "k": ["a"], "v": pa.array([nested(40, lists=True)])}), "deep"),
    ],
    ids=["arrow columns twice", "pandas columns twice", "reserved", "nested"],
)
def test_a_table_with_columns_that_no_state_can_hold_is_refused(table, match):
    op = operator()
    op.add_message(GOOD)
    with pytest.raises(tg.InputError, match=match):
        op.add_messages(table)
    assert outcome(op) == (1, [])


def test_a_frame_with_values_of_any_class_costs_their_rows_alone():
    op = operator()
    op.add_messages(
        pd.DataFrame(
            {"ts": [1, 2, 3, 4], "k": ["a", "\ud800", Unprintable(), "b"], "v": [1, 2, 3, 4]}
        )
    )
    op.add_messages(pd.DataFrame({"ts": [1, 2], "k": ["a", "b"], "w": [nested(12_000), None]}))
    op.add_messages(pd.DataFrame({"ts": [1, None], "k": ["a", "b"]}))
    n, reasons = outcome(op)
    assert n == 4
    assert sorted(reasons) == ["bad_value", "bad_value", "bad_value", "null_time"]


class Failing(dict[str, int]):
    def values(self):
        raise RuntimeError("no values")


class FailingText(str):
    __slots__ = ()

    def encode(self, *_):
        raise RuntimeError("no bytes")


class NoZone(tzinfo):
    def utcoffset(self, _):
        raise RuntimeError("no zone")


def test_values_of_classes_that_fail_cost_their_message_alone():
    for poison in ({"k": Failing(a=1)}, {Unprintable(): 1}, {"v": Failing(a=1)}):
        op = operator()
        op.add_messages([GOOD, {**GOOD, **poison}, GOOD])
        assert outcome(op) == (2, ["bad_value"])
    op = operator()
    op.add_messages([GOOD, {**GOOD, FailingText("v"): 1}, GOOD])
    assert outcome(op) == (3, [])


@pytest.mark.parametrize("name", [10**5000, Unprintable()], ids=["many digits", "no text"])
def test_a_frame_with_names_of_any_class_is_late(name):
    op = operator()
    op.add_messages([GOOD])
    op.add_messages(pd.DataFrame({"ts": [1], "k": ["a"], name: [1]}, dtype=object))
    assert outcome(op) == (1, ["bad_value"])


@pytest.mark.parametrize(
    "value", [np.datetime64(2**40, "Y"), np.timedelta64(1, "M")], ids=["far time", "months"]
)
def test_a_frame_with_times_that_pandas_cannot_convert_costs_their_rows_alone(value):
    op = operator()
    op.add_messages([GOOD])
    op.add_messages(pd.DataFrame([GOOD, {**GOOD, "k": value}, GOOD], dtype=object))
    assert outcome(op) == (3, ["bad_value"])


@pytest.mark.parametrize("role", ["k", "v", "id"])
def test_uuids_are_bytes_as_in_tables(role):
    number = uuid.UUID(int=5)
    op = (
        tg.stream(time="ts", key="k", id="id", watermark=tg.explicit())
        .window(tg.session(10, unit="us"))
        .aggregate(n=tg.count(), kept=tg.list_("v"))
        .embedded(now=0)
    )
    for place in range(2):
        op.add_messages([{"ts": 1, "k": "a", "v": "b", "id": f"i{place}", role: number}])
        op.flush()
    op.finish()
    [pane] = op.get_result().panes.to_pylist()
    assert pane["n"] == (1 if role == "id" else 2)
    assert (pane["k"], pane["kept"]) == (
        number.bytes if role == "k" else "a",
        [number.bytes if role == "v" else "b"] * pane["n"],
    )


def test_a_table_of_a_class_that_fails_is_refused():
    class Broken:
        def __arrow_c_stream__(self, _schema=None):
            raise RuntimeError("no stream")

    with pytest.raises(tg.InputError, match=r"Broken cannot be read.*no stream.*Hint"):
        operator().add_messages(Broken())


@pytest.mark.parametrize("key", ["\ud800", 10**5000, pd.NaT, Unprintable()], ids=lambda key: "")
def test_a_key_to_look_at_may_be_any_value(key):
    op = operator()
    op.add_message(GOOD)
    for look in (op.why, op.get_windows, op.peek, op.get_messages):
        with contextlib.suppress(tg.InputError):
            look(key=key)


@pytest.mark.parametrize("now", [pd.NaT, datetime(2025, 1, 1, tzinfo=NoZone())])
def test_a_clock_that_is_no_time_is_refused(now):
    with pytest.raises(tg.ParseError, match="Hint"):
        operator().timeout(now)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=[]), max_size=3)
    | st.binary(max_size=3)
    | st.decimals()
    | st.datetimes()
    | st.complex_numbers()
    | st.sampled_from([pd.NaT, pd.NA, object()])
    | st.builds(pow, st.just(10), st.just(5000)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=5,
)
NAMES = (
    st.sampled_from(["ts", "k", "v", None, pd.NaT, 1.5, b"k", ("k",)])
    | st.integers()
    | st.text(st.characters(exclude_categories=[]), max_size=3)
)


@examples(60)
@given(
    st.lists(st.dictionaries(NAMES, VALUES, max_size=4), max_size=8),
    st.data(),
)
def test_good_messages_among_any_others_are_counted(poison, data):
    messages = data.draw(st.permutations([*poison, *[{"ts": 1, "k": "good", "v": 1}] * 5]))
    op = operator()
    op.add_message({"ts": 1, "k": "good", "v": 1})
    for message in messages:
        op.add_message(message)
    op.finish()
    result = op.get_result()
    counted = {(row["k"], row["window_start"]): row["n"] for row in result.panes.to_pylist()}
    assert counted["good", 0] >= 6
    assert sum(counted.values()) + result.late.num_rows == 6 + len(poison)
