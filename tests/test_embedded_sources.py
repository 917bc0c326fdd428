"""Corner cases of sources: empty deliveries, refusals, odd names, inputs without partitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidegate as tg
from support.counted_windows import counted, fired, rows, run
from tidegate.errors import WatermarkError
from tidegate.operators.ingest.watermark_tracking import PausedSource


@pytest.mark.parametrize(
    "nothing",
    [[], pa.table({"ts": pa.array([], pa.int64()), "p": pa.array([], pa.string())})],
    ids=["list", "table"],
)
def test_an_empty_delivery_tells_the_clock_to_watermarks_too(nothing):
    op = run(tg.bounded(0, unit="us", partitions=["a", "b"], idle_after="60 us"))
    op.add_messages(rows(12, 1), now=0)
    op.add_messages(nothing, now=59)
    assert op.watermark is None
    op.add_messages(nothing, now=60)
    assert (op.watermark, fired(op)) == (12, [(0, 1)])


def test_a_watermark_behind_the_clock_moves_with_an_empty_delivery():
    op = run(tg.lagging("5 us"))
    op.add_messages(rows(1), now=3)
    op.add_messages([], now=15)
    assert (op.watermark, fired(op)) == (10, [(0, 1)])


def test_strict_names_the_input_of_a_union_that_went_back():
    said = tg.stream(time="ts", watermark=tg.punctuated("wm"))
    op = counted(tg.union(said, said), strict=True).embedded(now=0)
    op.add_messages([{"ts": 9, "wm": 8}], input=1)
    with pytest.raises(
        WatermarkError,
        match=r"^input 1 went back from 1970-01-01T00:00:00.000008Z to 1970-01-01T00:00:00.000007Z",
    ):
        op.add_messages([{"ts": 9, "wm": 7}], input=1)
    with pytest.raises(WatermarkError, match=r"^the watermark of input 1 went back"):
        op.advance_watermark(3, input=1)


def test_strict_names_the_partition_and_its_input():
    said = tg.stream(time="ts", partition="p", watermark=tg.punctuated("wm"))
    op = counted(tg.union(said, said), strict=True).embedded(now=0)
    op.add_messages(rows(9, wm=8), input=1)
    with pytest.raises(WatermarkError, match=r"^source `a` of input 1 went back"):
        op.add_messages(rows(9, wm=7), input=1)


def test_nobody_is_waited_for_who_was_only_in_a_delivery_that_strict_refused():
    op = counted(
        tg.stream(time="ts", partition="p", watermark=tg.punctuated("wm")), strict=True
    ).embedded(now=0)
    op.add_messages(rows(1, wm=8))
    with pytest.raises(WatermarkError):
        op.add_messages(rows(9, p="new", wm=9) + rows(9, wm=7))
    op.add_messages(rows(12, wm=11))
    assert (op.watermark, fired(op)) == (11, [(0, 1)])


@pytest.mark.parametrize("key", [-1, 128, True, "0", 1.0])
def test_what_is_no_watermark_key_is_refused(key):
    op = run(tg.explicit())
    with pytest.raises(tg.SpecError, match="a watermark key is a whole number from 0 to 127"):
        op.advance_watermark(5, key=key)
    with pytest.raises(tg.SpecError, match="a watermark key is a whole number from 0 to 127"):
        op.mark_idle(key=key)


def test_writers_are_told_apart_whatever_they_and_their_partitions_are_called():
    op = run(tg.noted("noted", writer="by"))
    op.add_messages(rows(1, p="a/b", by="c", noted=30) + rows(1, p="a", by="b/c", noted=4))
    assert op.watermark == 4


# Inputs whose watermark the program advances as a whole


def test_an_input_that_is_promised_for_as_a_whole_is_paused_like_a_source():
    told = tg.stream(time="ts", watermark=tg.explicit(align="10 us", idle_after="50 us"))
    op = (
        tg.union(told, told)
        .window(tg.tumbling(10, unit="us"))
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    op.advance_watermark(100, input=0)
    assert op.paused() == []
    op.advance_watermark(10, input=1)
    assert op.paused() == [PausedSource(0, "")]
    assert (
        "Input 0 is paused: it is too far ahead of the slowest source and should not be read for now (`paused`)."
        in op.explain_watermark().sentences
    )
    op.advance_watermark(50, input=1)
    op.timeout(49)
    op.advance_watermark(60, input=1)
    op.timeout(60)
    assert [given.status for given in op.explain_watermark().inputs] == [
        "active",
        "active",
    ], "a paused input is not silent"
    op.advance_watermark(90, input=1)
    assert op.paused() == []
    op.end_input(input=1)
    op.advance_watermark(500, input=0)
    assert op.paused() == []


def test_a_generator_has_not_seen_a_delivery_that_strict_refuses():
    def counting(observed: Any) -> Any:
        observed.state["deliveries"] += 1
        return np.array([{1: 10, 2: 5, 3: 20}[observed.state["deliveries"]]])

    made = tg.stream(time="ts", watermark=tg.generated(counting, state={"deliveries": 0})).window(
        tg.tumbling(10, unit="us")
    )
    op = made.options(strict=True).aggregate(n=tg.count()).embedded(now=0)
    op.add_message({"ts": 1})
    for _ in range(2):
        with pytest.raises(tg.WatermarkError, match="went back"):
            op.add_message({"ts": 11})
    assert op.operator.watermark_tracker.columns[0][0].generator.save() == {"deliveries": 1}
