"""Stats: what is held and what was counted, and that all that is held returns to zero."""

from __future__ import annotations

import random
from typing import Any

import pytest

import tidegate as tg

HELD = ("windows", "keys", "cells", "runs", "messages", "bytes", "ids")
WINDOWS = {
    "tumbling": tg.tumbling(10, unit="us"),
    "hopping": tg.hopping(15, 5, unit="us"),
    "cumulative": tg.cumulative(12, 4, unit="us"),
    "session": tg.session(4, unit="us"),
    "by difference": tg.sliding(6, unit="us"),
    "global": tg.global_window(),
    "static": tg.tumbling(10, unit="us", create="static"),
    "clock": tg.tumbling(10, unit="us", axis="clock"),
    "offsets": tg.tumbling(7, axis="offset"),
    "ordinals": tg.tumbling(7, axis="ordinal"),
}
TRIGGERS = {
    "default": None,
    "eager": tg.after_watermark(early=tg.after_count(2), late=tg.after_count(1)),
    "once": tg.after_count(1),
    "never": tg.never(),
}


def windowed(window: Any = None, trigger: Any = None, **stream: Any) -> tg.Windowed:
    keyed = tg.stream(**{"time": "ts", "key": "k", "watermark": tg.explicit(), **stream})
    found = keyed.window(tg.tumbling(10, unit="us") if window is None else window).allow_lateness(
        20, unit="us"
    )
    return found if trigger is None else found.trigger(trigger)


def row(o: int, ts: Any = None, k: Any = "a") -> dict[str, Any]:
    return {"o": o, "ts": o if ts is None else ts, "k": k, "v": o}


def held(op: tg.EmbeddedOperator) -> dict[str, int]:
    stats = op.stats()
    return {name: stats[name] for name in HELD}


def test_a_fresh_operator_holds_and_has_counted_nothing():
    stats = windowed().aggregate(n=tg.count()).embedded(now=0).stats()
    assert set(HELD) <= set(stats)
    assert {name: value for name, value in stats.items() if value} == {}


def test_windows_keys_messages_and_bytes_are_counted():
    op = windowed().aggregate(middle=tg.median("v")).embedded(now=0)
    op.add_messages([row(1), row(2, k="b"), row(11), row(12), row(31, k=None)])
    stats = held(op)
    assert (stats["windows"], stats["keys"], stats["messages"]) == (3, 3, 5)
    assert stats["runs"] > 0
    assert stats["bytes"] >= 5 * 8


def test_bytes_follow_what_is_held():
    sizes = []
    for count in (10, 100, 1000):
        op = windowed().aggregate(all=tg.list_("v")).embedded(now=0)
        op.add_messages([row(o, 5, k=f"k{o}") for o in range(count)])
        sizes.append(op.stats()["bytes"])
    assert sizes[1] > 5 * sizes[0]
    assert sizes[2] > 5 * sizes[1]


def test_ids_that_are_held_count_as_bytes():
    op = windowed(id="o").aggregate(n=tg.count()).embedded(now=0)
    op.add_messages([row(o, 5) for o in range(1000)])
    assert op.stats()["ids"] == 1000
    assert op.stats()["bytes"] >= 1000 * 16


def test_events_are_counted_by_class():
    op = windowed().options(future_tolerance="100 us").aggregate(n=tg.count()).embedded(now=50)
    op.add_messages([row(0, 60), row(1, 151), row(2, 150)])
    op.advance_watermark(50)
    op.add_messages([row(3, 50), row(4, 49), row(5, 30), row(6, 29), row(7, 151)])
    stats = op.stats()
    assert {
        name: stats[name] for name in ("events", "on_time", "mildly_late", "very_late", "future")
    } == {
        "events": 8,
        "on_time": 3,
        "mildly_late": 2,
        "very_late": 1,
        "future": 2,
    }
    assert stats["late_by_reason"] == {"very_late": 1}


def test_classes_unreadable_rows_and_duplicates_add_up_to_what_was_delivered():
    dice = random.Random(7)
    op = windowed(offset="o").aggregate(n=tg.count()).embedded(now=0)
    delivered = 0
    for at in range(0, 300, 10):
        rows = [
            row(o, None if dice.random() < 0.1 else o + dice.randrange(-60, 80))
            for o in range(max(0, at - 3), at + 10)
        ]
        for r in rows:
            r["ts"] = None if dice.random() < 0.1 else r["ts"]
        op.add_messages(rows)
        delivered += len(rows)
        op.advance_watermark(at)
    stats = op.stats()
    assert stats["events"] + stats["duplicates"] == delivered
    assert (
        stats["on_time"]
        + stats["mildly_late"]
        + stats["very_late"]
        + stats["future"]
        + stats["unreadable"]
        == stats["events"]
        == 300
    )
    assert (
        min(
            stats[name]
            for name in ("on_time", "mildly_late", "very_late", "unreadable", "duplicates")
        )
        > 0
    )


def test_panes_are_counted_by_timing_and_retractions_on_their_own():
    op = windowed(trigger=TRIGGERS["eager"]).retracting().aggregate(n=tg.count()).embedded(now=0)
    op.add_messages([row(1), row(2), row(3)])
    op.advance_watermark(10)
    op.add_messages([row(4)])
    stats = op.stats()
    assert [
        stats[name] for name in ("panes_early", "panes_on_time", "panes_late", "retractions")
    ] == [1, 1, 1, 2]


def test_a_watermark_that_steps_back_is_ignored_and_counted():
    op = windowed().aggregate(n=tg.count()).embedded(now=0)
    for watermark in (5, 4, 5, -7):
        op.advance_watermark(watermark)
    assert (op.watermark, op.stats()["watermark_steps_back"]) == (5, 2)


def test_a_watermark_that_steps_back_is_an_error_in_strict_mode():
    op = windowed().options(strict=True).aggregate(n=tg.count()).embedded(now=0)
    op.advance_watermark(5)
    with pytest.raises(tg.WatermarkError, match=r"back.*Hint"):
        op.advance_watermark(4)
    assert op.watermark == 5


@pytest.mark.parametrize("aggregate", [tg.count(), tg.median("v")], ids=["partials", "messages"])
@pytest.mark.parametrize("trigger", TRIGGERS.values(), ids=TRIGGERS)
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_everything_returns_to_zero_at_the_end(window, trigger, aggregate):
    dice = random.Random(3)
    identity = {"id": "o"} if window.axis is tg.Axis.EVENT_TIME else {"offset": "o"}
    op = windowed(window, trigger, **identity).aggregate(x=aggregate).embedded(now=0)
    for at in range(0, 24, 8):
        op.add_messages(
            [row(o, 2 * o + dice.randrange(-15, 9), dice.choice("ab")) for o in range(at, at + 8)]
        )
        if window.axis is tg.Axis.EVENT_TIME:
            op.advance_watermark(2 * at)
        op.timeout(2 * at)
    op.finish()
    assert held(op) == dict.fromkeys(HELD, 0)


@pytest.mark.parametrize("aggregate", [tg.count(), tg.median("v")], ids=["partials", "messages"])
@pytest.mark.parametrize("trigger", TRIGGERS.values(), ids=TRIGGERS)
@pytest.mark.parametrize("window", [name for name in WINDOWS if name not in {"global", "static"}])
def test_everything_returns_to_zero_when_time_has_passed(window, trigger, aggregate):
    """No end of input: a watermark (or the clock) beyond all windows and their lateness is enough.
    Open tuple windows stay.
    """
    window = WINDOWS[window]
    identity = {"id": "o"} if window.axis is tg.Axis.EVENT_TIME else {"offset": "o"}
    op = windowed(window, trigger, **identity).aggregate(x=aggregate).embedded(now=0)
    op.add_messages([row(o, 2 * o) for o in range(21)])
    if window.axis is tg.Axis.EVENT_TIME:
        op.advance_watermark(1_000)
    op.timeout(1_000)
    assert held(op) == dict.fromkeys(HELD, 0)


@pytest.mark.parametrize("window", [name for name in WINDOWS if name != "global"])
def test_a_long_stream_holds_no_more_than_a_short_one(window):
    window = WINDOWS[window]
    op = windowed(window, offset="o").aggregate(x=tg.median("v")).embedded(now=0)
    most: dict[str, int] = {}
    for at in range(0, 400, 20):
        op.add_messages([row(o, 5 * o) for o in range(at, at + 20)])
        if window.axis is tg.Axis.EVENT_TIME:
            op.advance_watermark(5 * (at + 20))
        op.timeout(at)
        found = {**held(op), "metadata": len(op.operator.window_offsets)}
        if at < 140:
            most = {name: max(most.get(name, 0), value) for name, value in found.items()}
        else:
            assert {name: value for name, value in found.items() if value > 2 * most[name]} == {}


@pytest.mark.parametrize(
    "window", [tg.calendar("day"), tg.session(gap_column="gap"), tg.session("1 hour")], ids=str
)
def test_messages_go_with_their_windows_under_the_rule_of_windows(window):
    day = 86_400_000_000
    op = (
        tg.stream(time="ts", key="k", watermark=tg.explicit())
        .window(window)
        .options(semantics="flink")
        .allow_lateness("1 s")
    )
    op = op.aggregate(m=tg.median("v")).embedded(now=0)
    for number in range(12):
        op.add_messages([{"ts": number * day + i, "k": "a", "v": i, "gap": 5} for i in range(20)])
        op.advance_watermark(number * day)
    assert op.stats()["messages"] <= 60
    op.finish()
    assert op.stats()["messages"] == 0
