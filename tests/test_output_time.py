"""The output time of panes as a function, and the watermark that is held for it."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from support.column_functions import middle
from support.examples import examples
from tidegate.errors import SpecError, StateError
from tidegate.state.memory import MemoryStore

FUNCTIONS = {
    "middle": middle,
    "earliest": lambda panes: panes["earliest"],
    "start": lambda panes: panes["window_start"],
    "beyond the end": lambda panes: pc.add(panes["window_end"], 100),
    "falling": lambda panes: pc.subtract(panes["window_end"], panes["latest"]),
    "null": lambda panes: pc.if_else(
        pa.scalar(False), panes["latest"], pa.scalar(None, pa.int64())
    ),
}
WINDOWS = {
    "tumbling": tg.tumbling(10, unit="us"),
    "hopping": tg.hopping(10, 5, unit="us"),
    "session": tg.session(4, unit="us"),
}
TRIGGERS = {
    "default": None,
    "early": tg.after_watermark(early=tg.after_count(2), late=tg.after_count(1)),
    "each": tg.after_watermark(early=tg.after_count(1), late=tg.after_count(1)),
}


def counted(timestamp, window=WINDOWS["tumbling"], trigger=None, mode="accumulating"):
    windowed = (
        tg.stream(time="ts", key="k", watermark=tg.explicit())
        .window(window)
        .options(timestamp=timestamp)
        .allow_lateness(20, unit="us")
    )
    windowed = getattr(windowed, mode)()
    return (windowed if trigger is None else windowed.trigger(trigger)).aggregate(n=tg.count())


def rows(*times, key="a"):
    return [{"ts": ts, "k": key} for ts in times]


def pane_times(op):
    found = [pane["time"] for pane in op.get_result().panes.to_pylist()]
    op.flush()
    return found


@pytest.mark.parametrize("window", WINDOWS)
def test_a_pane_has_the_time_that_the_function_computes(window):
    op = counted(middle, tg.session(20, unit="us") if window == "session" else WINDOWS[window])
    op = op.embedded(now=0)
    op.add_messages(rows(1, 3, 8))
    assert op.output_watermark <= 1
    op.advance_watermark(50)
    assert pane_times(op)[-1 if window == "hopping" else 0] in {4, 6, 8}


def test_times_are_clamped_to_the_rows_and_to_the_window():
    expected = {
        "middle": 4,
        "earliest": 2,
        "start": 2,
        "beyond the end": 9,
        "falling": 3,
        "null": 9,
    }
    found = {}
    for name, function in FUNCTIONS.items():
        op = counted(function).embedded(now=0)
        op.add_messages(rows(2, 7))
        op.advance_watermark(10)
        (found[name],) = pane_times(op)
    assert found == expected


def test_a_pane_of_late_rows_alone_has_the_end_of_its_window():
    op = counted(middle, trigger=TRIGGERS["each"]).embedded(now=0)
    op.add_messages(rows(2, 6))
    op.advance_watermark(10)
    op.add_messages(rows(4))
    assert pane_times(op) == [2, 6, 9, 9], "two early, on time without new rows, late"


deliveries = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 40), st.sampled_from("ab")), max_size=5),
        st.integers(0, 6),
    ),
    max_size=8,
)


@given(
    st.sampled_from(sorted(FUNCTIONS)),
    st.sampled_from(sorted(WINDOWS)),
    st.sampled_from(sorted(TRIGGERS)),
    st.sampled_from(["accumulating", "retracting", "discarding"]),
    deliveries,
    st.integers(0, 7),
)
@examples(60)
def test_no_pane_of_on_time_rows_is_behind_the_output_watermark(
    function, window, trigger, mode, deliveries, restart
):
    """A pane is at or above the output watermark before its call, if it has new on-time rows."""
    panes = counted(FUNCTIONS[function], WINDOWS[window], TRIGGERS[trigger], mode)
    store, watermark = MemoryStore(), 0
    op = panes.embedded(store=store, now=0)
    op.advance_watermark(0)
    for number, (events, step) in enumerate(deliveries):
        if number == restart:
            op.flush()
            op = panes.embedded(store=store, now=0)
        promised = op.output_watermark
        op.add_messages([{"ts": ts + watermark, "k": k} for ts, k in events])
        watermark += step
        op.advance_watermark(watermark)
        for pane in op.get_result().panes.to_pylist():
            if pane["op"] == "+":
                assert promised <= pane["time"] < pane["window_end"]
        op.flush()


def test_the_function_is_part_of_the_specification_by_name():
    store = MemoryStore()
    op = counted(middle).embedded(store=store, now=0)
    op.add_messages(rows(2))
    op.flush()
    assert json.dumps(op.spec.to_dict())
    named = counted({"function": "support.column_functions:middle"})
    assert named.spec == op.spec
    op = named.embedded(store=store, now=0)
    op.add_messages(rows(8))
    op.advance_watermark(10)
    assert pane_times(op) == [5]
    with pytest.raises(StateError, match="timestamp"):
        counted("latest").embedded(store=store, now=0)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda panes: panes["price"], "fails on an empty table"),
        (lambda panes: 7, "must return an Arrow column"),
        (lambda panes: pa.array([1]), "must return an Arrow column"),
        (lambda panes: pc.cast(panes["latest"], pa.string()), "got string"),
        ("newest", "must be one of end_of_window"),
    ],
)
def test_functions_that_return_no_times_are_refused(function, message):
    with pytest.raises(SpecError, match=message):
        counted(function)


def test_a_function_that_fails_later_is_a_warning_and_loses_no_pane():
    def fragile(panes):
        if len(panes) > 0:
            raise OSError("out of luck")
        return panes["latest"]

    op = counted(fragile).embedded(now=0)
    op.add_messages(rows(2))
    with pytest.warns(RuntimeWarning, match="OSError: out of luck"):
        op.advance_watermark(10)
    assert pane_times(op) == [9]
