"""`explain_watermark` tells what windows wait for, on every axis."""

from __future__ import annotations

from typing import Any

import pytest

import tidegate as tg
from support.explanations import MINUTE, NOON, SECOND, at, explained, row, started, text
from tidegate.instants import instant

# Windows


def test_a_window_says_how_many_keys_it_has_and_how_far_it_is_to_go():
    op = started(tg.explicit())
    op.add_messages([row(5, "a"), row(6, "b"), row(7, "c"), row(8, "c"), row(70, "a")])
    op.advance_watermark(at(46))
    found = explained(op)
    assert [(w.start, w.end, w.keys, w.to_go) for w in found.windows] == [
        (instant(at(0)), instant(at(60)), 3, 14 * SECOND),
        (instant(at(60)), instant(at(120)), 1, 74 * SECOND),
    ]
    assert (
        f"Window [{text(0)}, {text(60)}) of 3 keys waits until the watermark reaches {text(60)}, 14"
        " seconds to go." in found.sentences
    )


def test_keys_that_came_in_several_deliveries_are_counted_once():
    op = started(tg.explicit(), tg.hopping("1 minute", "20 seconds"))
    for _ in range(3):
        op.add_messages([row(5, "a"), row(25, "b"), row(45, "c")])
    counts = {(w.start, w.end): w.keys for w in explained(op).windows}
    assert counts[instant(at(0)), instant(at(60))] == 3
    assert counts[instant(at(-40)), instant(at(20))] == 1


def test_of_many_windows_a_few_are_told():
    op = started(tg.explicit())
    op.add_messages([row(60 * n) for n in range(120)])
    found = explained(op)
    assert len(found.windows) + found.more_windows == 120
    assert found.windows[0].start == instant(NOON)
    assert "117 more windows wait behind them." in found.sentences


def test_keys_are_not_counted_where_that_is_dear(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tidegate.operators.explain.explanation.COUNTED", 5)
    op = started(tg.explicit())
    for _ in range(2):
        op.add_messages([row(5, f"k{n}") for n in range(5)])
    found = explained(op)
    assert found.windows[0].keys is None
    assert f"Window [{text(0)}, {text(60)}) waits until" in str(found)


def test_a_stream_without_key_has_windows_without_keys():
    op = (
        tg.stream(time="ts", watermark=tg.explicit())
        .window(MINUTE)
        .aggregate(n=tg.count())
        .embedded(now=NOON)
    )
    op.add_messages([{"ts": at(5)}])
    assert (
        f"Window [{text(0)}, {text(60)}) waits until the watermark reaches {text(60)}."
        in explained(op).sentences
    )


def test_corrections_wait_for_the_clock():
    op = started(tg.explicit())
    op.add_messages([row(5, "a"), row(6, "b")], now=at(50))
    op.advance_watermark(at(65))
    op.get_result()
    op.flush()
    op.add_messages([row(7, "a")], now=at(66))
    found = explained(op)
    assert [(w.is_complete, w.has_fired, w.keys, w.clock) for w in found.windows] == [
        (True, True, 1, instant(at(76)))
    ]
    assert found.kept == 1
    assert (
        f"of 1 key is complete; corrections wait until the clock reaches {text(76)}, 10 seconds"
        " to go" in str(found)
    )


def test_corrections_wait_for_more_late_events():
    op = started(tg.explicit(), trigger=tg.after_watermark(late=tg.after_count(3)))
    op.add_messages([row(5)])
    op.advance_watermark(at(65))
    op.add_messages([row(7)])
    found = explained(op)
    assert (found.windows[0].by_elements, found.windows[0].watermark, found.windows[0].clock) == (
        True,
        None,
        None,
    )
    assert (
        "is complete; corrections wait for more events (its trigger is"
        " `AfterWatermark(late=AfterCount(3))`)" in str(found)
    )
    assert (
        f"at the latest until the watermark reaches {text(120)}, 55 seconds to go, when the"
        " window expires" in str(found)
    )


def test_an_early_pane_that_is_due_by_the_clock_is_told():
    op = started(tg.explicit(), trigger=tg.after_watermark(early=tg.every("10 seconds")))
    op.add_messages([row(5)], now=at(5))
    found = explained(op)
    assert (found.windows[0].watermark, found.windows[0].clock) == (
        instant(at(60)),
        instant(at(15)),
    )
    assert (
        f"reaches {text(60)}; a pane before that waits until the clock reaches {text(15)}, 10"
        " seconds to go" in str(found)
    )


@pytest.mark.parametrize("trigger", [tg.after_count(3), tg.repeatedly(tg.after_count(3))], ids=str)
def test_a_trigger_that_does_not_fire_on_the_watermark(trigger: Any):
    op = started(tg.explicit(), trigger=trigger)
    op.add_messages([row(5)])
    op.advance_watermark(at(30))
    found = explained(op)
    assert found.windows[0].watermark is None
    assert (
        "waits for more events (its trigger does not fire at the end of the window, it is"
        f" `{trigger}`)" in str(found)
    )
    assert (
        f"at the latest until the watermark reaches {text(120)}, 1 minute 30 seconds to go, when"
        " the window expires." in str(found)
    )


def test_a_trigger_that_looks_at_the_clock_only():
    op = started(tg.explicit(), trigger=tg.every("10 seconds"))
    op.add_messages([row(5)])
    assert (
        f"waits until the clock reaches {text(10)}, 10 seconds to go (its trigger does not fire at"
        " the end of the window" in str(explained(op))
    )


def test_a_trigger_that_never_fires():
    op = started(tg.explicit(), trigger=tg.never())
    op.add_messages([row(5)])
    op.advance_watermark(at(30))
    said = (
        f"until the watermark reaches {text(120)}, 1 minute 30 seconds to go, when the window"
        " expires; its trigger `Never()` does not fire earlier."
    )
    assert said in str(explained(op))


def test_what_never_fires_goes_to_late_where_closing_gives_no_pane():
    stream = (
        tg.stream(time="ts", watermark=tg.explicit())
        .window(MINUTE)
        .trigger(tg.never())
        .options(closing="never")
    )
    op = stream.aggregate(n=tg.count()).embedded(now=NOON)
    op.add_messages([{"ts": at(5)}])
    assert "rows that have not fired by then go to `late` as `unfired`" in str(explained(op))


def test_a_trigger_that_needs_several_things_at_once():
    op = started(tg.explicit(), trigger=tg.after_all(tg.after_watermark(), tg.after_count(3)))
    op.add_messages([row(5)])
    assert "and for all parts of its trigger `AfterAll(AfterWatermark(), AfterCount(3))`." in str(
        explained(op)
    )


def test_the_global_window_waits_for_the_end():
    op = started(tg.explicit(), tg.global_window())
    op.add_messages([row(5)])
    found = explained(op)
    assert (
        "The global window of 1 key waits until the input ends with `finish`; its trigger"
        in str(found)
    )
    assert (found.to_dict()["windows"][0]["start"], found.to_dict()["windows"][0]["end"]) == (
        "-inf",
        "+inf",
    )


def test_a_clock_that_has_passed_asks_for_a_timeout():
    op = started(tg.explicit(), trigger=tg.every("10 seconds"))
    op.add_messages([row(5)])
    op.add_messages([row(5, "b")], now=at(20))
    assert f"until the clock reaches {text(10)}, which has passed: call `timeout`" in str(
        explained(op)
    )


def test_no_window_waits_because_all_have_fired_and_are_kept():
    op = started(tg.explicit())
    op.add_messages([row(5), row(6, "b")])
    op.advance_watermark(at(60))
    found = explained(op)
    assert (found.windows, found.kept) == ((), 2)
    assert (
        "No window waits: 2 results were emitted and are kept for corrections by late events."
        in found.sentences
    )


def test_no_window_waits_because_all_have_fired_and_are_over():
    op = started(tg.explicit())
    op.add_messages([row(5)])
    op.advance_watermark(at(600))
    assert "No window waits: all have fired (1 pane) and expired." in explained(op).sentences


def test_no_window_waits_because_every_event_was_late():
    op = started(tg.explicit())
    op.advance_watermark(at(600))
    op.add_messages([row(5), row(6), row(7)])
    found = explained(op)
    assert found.late == {"very_late": 3}
    assert "No window waits: all rows went to `late`." in found.sentences
    assert "3 rows went to `late`: 3 very_late." in found.sentences


def test_a_finished_operator_says_so():
    op = started(tg.explicit())
    op.add_messages([row(5)])
    op.finish()
    found = explained(op)
    assert found.is_finished
    assert found.to_dict()["watermark"] == "+inf"
    assert (
        "The input has ended: the watermark is at the end of time, and all windows are complete."
        in found.sentences
    )


# Per-key watermarks


def test_keys_with_watermarks_of_their_own_are_told_above_their_floor():
    op = started(tg.per_key("10 seconds", floor="5 minutes"))
    op.add_messages([row(0, "slow"), row(40, "quick"), row(20, "middle")])
    found = explained(op)
    assert found.watermark == instant(at(-260))
    assert found.keys_ahead == 3
    assert [(dict(k.key)["k"], k.watermark) for k in found.keys] == [
        ("slow", instant(at(-10))),
        ("middle", instant(at(10))),
        ("quick", instant(at(30))),
    ]
    assert found.windows[0].to_go == 30 * SECOND
    assert f"The floor of the watermarks of all keys is at {text(-260)}" in str(found)
    assert "3 keys are ahead of it." in found.sentences
    assert (
        f"until the watermark of the key reaches {text(60)}, 30 seconds to go for the nearest key."
        in str(found)
    )
    assert f"key `slow` is at {text(-10)}" in str(found)


# Other axes


def test_windows_on_the_clock_wait_for_the_clock():
    op = started(window=tg.tumbling("1 minute", axis="clock"))
    op.add_messages([row(5)], now=at(50))
    found = explained(op)
    assert found.sources == ()
    assert f"Windows follow the clock, which is at {text(50)}." in found.sentences
    assert f"of 1 key waits until the clock reaches {text(60)}, 10 seconds to go." in str(found)
    op.add_messages([row(5)], now=at(70))
    assert f"until the clock reaches {text(60)}, which has passed: call `timeout`." in str(
        explained(op)
    )


def test_windows_on_offsets_wait_for_messages_of_the_furthest_behind():
    op = started(window=tg.tumbling(10, axis="offset"), offset="o", partition="p")
    op.add_messages([row(5, o=6, p="x"), row(5, o=8, p="y")])
    found = explained(op)
    assert {source.name: (source.promise, source.holds) for source in found.sources} == {
        "x": (7, True),
        "y": (9, False),
    }
    assert found.to_dict()["watermark"] == 7
    assert (
        "all below 7 have arrived. Partition `x` is furthest behind and holds all windows back."
        in str(found)
    )
    assert (
        "Window [0, 10) of 1 key waits until all offsets below 10 have arrived, 3 messages to go."
        in found.sentences
    )


def test_windows_on_ordinals_wait_for_messages_of_their_key():
    op = started(window=tg.tumbling(10, axis="ordinal"))
    op.add_messages([row(5)] * 7)
    found = explained(op)
    assert (found.watermark, found.windows[0].to_go) == (None, 3)
    assert (
        "Window [0, 10) of 1 key waits until 3 more messages of its key have arrived."
        in found.sentences
    )
    op.add_messages([row(5, "b")] * 9)
    assert (
        "Window [0, 10) of 2 keys waits until 1 more message of a key has arrived."
        in explained(op).sentences
    )


@pytest.mark.parametrize("axis", ["clock", "offset", "ordinal"])
def test_nothing_has_come_on_other_axes_and_they_end(axis: str):
    op = started(window=tg.tumbling("1 minute" if axis == "clock" else 10, axis=axis), offset="o")
    assert "No message has arrived yet." in explained(op).sentences
    op.add_messages([row(5, o=1)])
    op.finish()
    assert "The input has ended, and all windows have fired." in explained(op).sentences
