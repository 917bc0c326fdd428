"""`explain_watermark` tells why there is no output, in sentences that are right and in data that
says the same.
"""

from __future__ import annotations

import dataclasses
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.embedded.operator import EmbeddedOperator
from tidegate.instants import instant
from tidegate.operators.explain.explanation import explain
from tidegate.operators.explain.facts import Explanation
from tidegate.operators.explain.wording import listed, rounded

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
MINUTE = tg.tumbling("1 minute")
SECOND = 1_000_000


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def text(seconds: float) -> str:
    return at(seconds).isoformat().replace("+00:00", "Z")


def row(seconds: float, key: str = "a", **more: Any) -> dict[str, Any]:
    return {"ts": at(seconds), "k": key, **more}


def started(
    watermark: Any = None,
    window: Any = MINUTE,
    *,
    trigger: Any = None,
    downstream: Any = None,
    **stream: Any,
) -> EmbeddedOperator:
    """An operator whose clock begins at noon and goes on where a call tells it."""
    return panes(watermark, window, trigger=trigger, **stream).embedded(
        now=NOON, downstream=downstream
    )


def panes(
    watermark: Any = None, window: Any = MINUTE, *, trigger: Any = None, **stream: Any
) -> Any:
    windowed = tg.stream(**{"time": "ts", "key": "k", "watermark": watermark, **stream}).window(
        window
    )
    return (windowed if trigger is None else windowed.trigger(trigger)).aggregate(n=tg.count())


def partitioned(watermark: Any, **more: Any) -> EmbeddedOperator:
    return started(watermark, partition="p", **more)


def explained(op: EmbeddedOperator) -> Explanation:
    """The explanation, which must be fit for JSON and consist of sentences."""
    found = op.explain_watermark()
    json.dumps(found.to_dict(), allow_nan=False)
    assert str(found) == "\n".join(found.sentences)
    assert found.sentences
    for sentence in found.sentences:
        assert sentence.endswith(".")
        assert sentence[0].isupper() or sentence[0].isdigit()
        assert "  " not in sentence
        assert "None" not in re.sub("`.*?`", "", sentence)
    return found


def sources(found: Explanation) -> dict[str, Any]:
    return {source.name: source for source in found.sources}


# No watermark yet


def test_nothing_has_come():
    found = explained(started(tg.bounded("10 seconds")))
    assert (found.watermark, found.windows, found.sources) == (None, (), ())
    assert found.sentences == ("There is no watermark yet.", "No message has arrived yet.")


def test_a_declared_partition_that_has_not_spoken_is_named_with_since_when():
    op = partitioned(tg.bounded("10 seconds", partitions=3))
    op.add_messages([row(5, p="0"), row(6, p="2")], now=at(20))
    found = explained(op)
    assert found.watermark is None
    assert [name for name, source in sources(found).items() if source.holds] == ["1"]
    assert sources(found)["1"].promise is None
    assert sources(found)["1"].moved_at == instant(NOON)
    assert (
        "Partition `1` (declared) has not sent an event yet; it has held the watermark back since"
        f" {text(0)}, 20 seconds ago." in found.sentences
    )
    assert "Hint: set `idle_after`" in str(found)
    assert f"waits until the watermark reaches {text(60)}." in str(found)


def test_it_says_when_a_silent_partition_will_be_left_out():
    op = partitioned(tg.bounded("10 seconds", partitions=2, idle_after="1 minute"))
    op.add_messages([row(5, p="0")], now=at(20))
    found = explained(op)
    assert sources(found)["1"].idle_at == instant(at(60))
    assert (
        f"If it stays silent, it becomes idle when the clock reaches {text(60)}, 40 seconds"
        " to go." in found.sentences
    )
    assert "Hint" not in str(found)


def test_only_events_from_the_future_came():
    op = panes(tg.bounded("10 seconds")).embedded(now=0)
    op.add_messages([row(5), row(6), row(7)])
    found = explained(op)
    assert (found.watermark, found.newest, found.counters["future"]) == (None, None, 3)
    assert "Only events from the future have arrived (3)" in str(found)
    assert "more than 1 minute ahead of the clock, which is at 1970-01-01T00:00:00Z" in str(found)
    assert "raise `future_tolerance`" in str(found)


def test_some_events_from_the_future_came():
    op = started(tg.bounded("10 seconds"))
    op.add_messages([row(5), row(3600)])
    found = explained(op)
    assert found.watermark == instant(at(-5))
    assert "1 event from the future arrived: it is more than 1 minute ahead of the clock" in str(
        found
    )


def test_events_from_the_future_of_the_watermark_are_told_as_such():
    op = (
        tg.stream(time="ts")
        .window(MINUTE)
        .options(future_reference="watermark")
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    op.add_messages([{"ts": at(0)}])
    op.add_messages([{"ts": at(3600)}])
    assert (
        "ahead of the watermark, so it does not advance the watermark. Hint: raise"
        " `future_tolerance`." in str(explained(op))
    )


def test_nobody_has_advanced_an_explicit_watermark():
    op = started(tg.explicit())
    op.add_messages([row(5)])
    found = explained(op)
    assert found.inputs[0].is_explicit
    assert (
        "The watermark is explicit and has not been advanced yet. Hint: call `advance_watermark`."
        in found.sentences
    )


def test_nobody_has_advanced_an_explicit_watermark_for_one_partition():
    op = partitioned(tg.explicit(partitions=["left", "right"]))
    op.advance_watermark(at(60), partition="left")
    op.add_messages([row(5, p="right")], now=at(30))
    found = explained(op)
    assert found.watermark is None
    assert sources(found)["left"].promise == instant(at(60))
    said = (
        f"has not been advanced for partition `right`, which has held it back since {text(0)}, 30"
        " seconds ago."
    )
    assert said in str(found)
    assert "`advance_watermark(..., partition='right')`" in str(found)


def test_rows_come_but_none_says_a_watermark():
    op = started(tg.punctuated("w"))
    op.add_messages(
        pa.table({"ts": [at(5)], "k": ["a"], "w": pa.array([None], pa.timestamp("us", "UTC"))})
    )
    assert "Messages have arrived, but none carries a watermark." in explained(op).sentences


def test_rows_come_but_none_has_a_time():
    op = started(tg.bounded("10 seconds"))
    op.add_messages(pa.table({"ts": pa.array([None], pa.timestamp("us", "UTC")), "k": ["a"]}))
    found = explained(op)
    assert (
        "Messages have arrived, but none has a time that advances the watermark." in found.sentences
    )
    assert "1 row went to `late`: 1 null_time." in found.sentences


def test_a_watermark_behind_the_clock_needs_the_clock():
    op = panes(tg.lagging("5 seconds")).embedded(now=NOON)
    assert "follows the clock, which the operator has not read yet. Hint: call `timeout`." in str(
        explained(op)
    )
    op.timeout(at(30))
    found = explained(op)
    assert found.to_dict()["watermark"] == text(25)
    assert (
        "It stays 5 seconds behind the clock, and advances when the operator reads the clock."
        in found.sentences
    )


# Who holds it back


def test_one_partition_holds_it_back():
    op = partitioned(tg.bounded("10 seconds", idle_after="5 minutes"))
    op.add_messages([row(5, p="slow"), row(6, p="fast")], now=at(10))
    op.add_messages([row(100, p="fast")], now=at(110))
    found = explained(op)
    assert found.watermark == instant(at(-5))
    assert found.since == instant(at(10))
    assert [source.name for source in found.sources if source.holds] == ["slow"]
    assert (
        f"Partition `slow` holds the watermark back: it has promised {text(-5)}, others up to"
        f" {text(90)}." in found.sentences
    )
    assert f"It was last active at {text(10)}, 1 minute 40 seconds ago." in found.sentences
    assert (
        f"it becomes idle when the clock reaches {text(310)}, 3 minutes 20 seconds to go."
        in str(found)
    )
    assert (
        f"The newest event is at {text(100)}, 1 minute 45 seconds ahead of the watermark."
        in found.sentences
    )


def test_a_partition_that_speaks_but_does_not_move_is_told_from_a_silent_one():
    op = partitioned(tg.bounded("10 seconds"))
    op.add_messages([row(5, p="slow"), row(6, p="fast")], now=at(10))
    op.add_messages([row(4, p="slow"), row(100, p="fast")], now=at(110))
    found = explained(op)
    assert sources(found)["slow"].spoke_at == instant(at(110))
    assert sources(found)["slow"].moved_at == instant(at(10))
    assert (
        f"It was last active at {text(110)}; its promise last advanced at {text(10)}, 1 minute"
        " 40 seconds"
        " ago." in found.sentences
    )
    assert (
        "Hint: set `idle_after`, after which it becomes idle when silent, or call `mark_idle`."
        in found.sentences
    )


def test_of_many_that_hold_it_back_a_few_are_named():
    op = partitioned(tg.bounded("10 seconds", partitions=10_001))
    op.add_messages([row(5, p="10000")])
    found = explained(op)
    assert len(found.sources) == 10_001
    assert sum(source.holds for source in found.sources) == 10_000
    assert (
        "Partitions `0`, `1`, `2` and 9,997 more (declared) have not sent an event yet; they have"
        " held the watermark back since" in str(found)
    )
    assert len(str(found)) < 1_000


def test_several_with_the_same_promise_hold_it_together():
    op = partitioned(tg.bounded("10 seconds"))
    op.add_messages([row(5, p="a"), row(5, p="b"), row(50, p="c")])
    assert "Partitions `a` and `b` hold the watermark back: they have promised" in str(
        explained(op)
    )


def test_who_joins_late_is_waited_for():
    op = partitioned(tg.bounded("10 seconds"))
    op.add_messages([row(50, p="a")])
    op.add_partition("new")
    found = explained(op)
    assert found.watermark == instant(at(40))
    assert "Partition `new` has not sent an event yet; it has held the watermark back since" in str(
        found
    )


def test_the_watermark_lags_by_the_disorder_only():
    op = started(tg.bounded("10 seconds"))
    op.add_messages([row(56)], now=at(60))
    found = explained(op)
    assert found.inputs[0].behind == 10 * SECOND
    assert (
        f"It stays 10 seconds behind the newest event, which is at {text(56)}; it advances when"
        " newer"
        " events arrive." in found.sentences
    )
    assert (
        f"Window [{text(0)}, {text(60)}) of 1 key waits until the watermark reaches {text(60)}, 14"
        " seconds to go." in found.sentences
    )


def test_an_implied_watermark_follows_the_newest_event_until_the_program_advances_it():
    op = started()
    op.add_messages([row(5)])
    assert f"It follows the newest event, which is at {text(5)}" in str(explained(op))
    op.advance_watermark(at(30))
    assert "It advances only when the program calls `advance_watermark`." in explained(op).sentences


def test_writers_are_called_writers():
    op = started(tg.noted("noted", writer="w"))
    op.add_messages([row(5, noted=at(5), w="one"), row(5, noted=at(50), w="two")])
    assert (
        f"Writer `one` holds the watermark back: it has promised {text(5)}, others up to"
        f" {text(50)}." in explained(op).sentences
    )


# Idle, ended, paused


def test_idle_partitions_are_told_with_since_when():
    op = partitioned(tg.bounded("10 seconds", idle_after="1 minute"))
    op.add_messages([row(5, p="silent"), row(6, p="loud")], now=at(10))
    op.add_messages([row(50, p="loud")], now=at(60))
    op.timeout(at(75))
    found = explained(op)
    assert sources(found)["silent"].status == "idle"
    assert found.watermark == instant(at(40))
    assert (
        "Partition `silent` is idle and does not hold the watermark back, silent since"
        f" {text(10)}, 1 minute 5"
        " seconds ago." in found.sentences
    )


def test_when_all_are_idle_the_highest_promise_was_released():
    op = partitioned(tg.bounded("10 seconds", idle_after="1 minute"))
    op.add_messages([row(5, p="a"), row(50, p="b")], now=at(10))
    op.timeout(at(100))
    found = explained(op)
    assert found.is_idle
    assert found.watermark == instant(at(40))
    assert (
        "so the highest promise was released; it advances when one of them becomes active again."
        in str(found)
    )
    assert "Partitions `a` and `b` are idle" in str(found)


def test_when_all_are_idle_and_none_has_promised_there_is_nothing_to_release():
    op = partitioned(tg.bounded("10 seconds", partitions=2, idle_after="1 minute"))
    op.timeout(at(100))
    found = explained(op)
    assert found.is_idle
    assert "none has promised anything, so nothing was released." in str(found)


def test_an_ended_partition_is_told():
    op = partitioned(tg.bounded("10 seconds"))
    op.add_messages([row(5, p="a"), row(50, p="b")])
    op.end_input(partition="a")
    found = explained(op)
    assert sources(found)["a"].status == "ended"
    assert "Partition `a` has ended." in found.sentences


def test_when_all_have_ended_finish_fires_the_rest():
    op = partitioned(tg.bounded("10 seconds"))
    op.add_messages([row(5, p="a"), row(50, p="b")])
    op.end_input()
    assert (
        "Every source has ended, so the highest promise was released; `finish` fires the"
        " remaining windows." in explained(op).sentences
    )


def test_who_runs_ahead_is_paused():
    op = partitioned(tg.bounded("1 second", align="30 seconds"))
    op.add_messages([row(0, p="slow"), row(50, p="fast")])
    found = explained(op)
    assert [source.name for source in found.sources if source.paused] == ["fast"]
    assert [(source.input, source.name) for source in op.paused()] == [(0, "fast")]
    assert (
        "Partition `fast` is paused: it is too far ahead of the slowest source and should not be"
        " read" in str(found)
    )


def test_nobody_is_paused_without_alignment():
    op = partitioned(tg.bounded("1 second"))
    op.add_messages([row(0, p="slow"), row(50, p="fast")])
    assert op.paused() == []


# Several inputs


def united(*watermarks: Any, **stream: Any) -> EmbeddedOperator:
    inputs = [
        tg.stream(time="ts", key="k", watermark=watermark, **stream) for watermark in watermarks
    ]
    return tg.union(*inputs).window(MINUTE).aggregate(n=tg.count()).embedded(now=NOON)


def test_an_input_from_which_nothing_came_is_named():
    op = united(tg.bounded("10 seconds"), tg.bounded("10 seconds"))
    op.add_messages([row(50)], input=0)
    found = explained(op)
    assert found.watermark is None
    assert [given.holds for given in found.inputs] == [False, True]
    assert found.inputs[0].promise == instant(at(40))
    assert "Input 1 has not sent anything that advances the watermark." in found.sentences


def test_an_input_that_holds_the_others_back_is_named():
    op = united(tg.bounded("10 seconds"), tg.bounded("10 seconds"))
    op.add_messages([row(5)], input=1, now=at(10))
    op.add_messages([row(50)], input=0, now=at(55))
    found = explained(op)
    assert (
        f"Input 1 holds the watermark back: it has promised {text(-5)}, others up to {text(40)}."
        in found.sentences
    )
    assert f"It was last active at {text(10)}, 45 seconds ago." in found.sentences


def test_a_partition_of_one_input_is_named_with_its_input():
    op = united(
        tg.bounded("10 seconds"), tg.bounded("10 seconds", partitions=["x", "y"]), partition="p"
    )
    op.add_messages([row(50, p="x")], input=0)
    op.add_messages([row(50, p="x")], input=1)
    assert (
        "Partition `y` of input 1 (declared) has not sent an event yet; it has held the watermark"
        in str(explained(op))
    )


def test_an_explicit_input_is_told_with_the_call_that_moves_it():
    op = united(tg.bounded("10 seconds"), tg.explicit())
    op.add_messages([row(50)], input=0)
    assert (
        "has not been advanced for input 1. Hint: call `advance_watermark(..., input=1)`."
        in str(explained(op))
    )
    op.advance_watermark(at(5), input=1)
    found = explained(op)
    assert (
        f"Input 1 holds the watermark back: it has promised {text(5)}, others up to {text(40)}."
        in found.sentences
    )
    assert (
        "The watermark is explicit there. Hint: call `advance_watermark(..., input=1)`."
        in found.sentences
    )


def test_an_idle_input_is_not_waited_for():
    op = united(tg.bounded("10 seconds"), tg.bounded("10 seconds"))
    op.add_messages([row(50)], input=0)
    op.mark_idle(input=1)
    found = explained(op)
    assert found.watermark == instant(at(40))
    assert found.inputs[1].status == "idle"
    assert "Input 1 is idle and does not hold the watermark back." in found.sentences


# What was ignored


def test_a_step_back_was_ignored():
    op = started(tg.explicit())
    op.advance_watermark(at(60))
    op.advance_watermark(at(30))
    found = explained(op)
    assert found.counters["watermark_steps_back"] == 1
    assert "1 step back of a promise was ignored." in found.sentences


def test_watermarks_in_rows_that_cannot_be_taken_are_counted():
    op = started(tg.punctuated("w"))
    op.add_messages([row(5, w=at(5)), row(6, w=at(9999))])
    found = explained(op)
    assert found.counters["watermarks_refused"] == 1
    assert "1 watermark was refused as unreadable or in the future." in found.sentences


def test_a_generator_that_fails_is_told_with_its_last_error():
    def broken(observed: Any) -> Any:
        raise ValueError(f"no luck with {len(observed)} row")

    op = started(tg.generated(broken))
    with pytest.warns(RuntimeWarning, match="no luck"):
        op.add_messages([row(5)])
    found = explained(op)
    assert found.counters["generator_failures"] == 1
    assert (
        "The watermark generator failed 1 time and did not advance the watermark then; the last"
        " error was:"
        " ValueError: no luck with 1 row." in found.sentences
    )


def test_watermarks_of_other_keys_are_told():
    op = started(tg.explicit(), watermark_key=3)
    op.advance_watermark(at(60), key=5)
    found = explained(op)
    assert found.watermark_key == 3
    assert "1 watermark of keys other than 3 was dropped." in found.sentences


def test_duplicates_are_told():
    op = started(tg.explicit(), offset="o")
    op.add_messages([row(5, o=1)])
    op.add_messages([row(5, o=1)])
    assert "1 duplicate message was dropped." in explained(op).sentences


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


# The runtime


def inherited() -> EmbeddedOperator:
    return tg.stream(key="k").inherit().aggregate(total=tg.sum("n")).embedded(now=NOON)


def test_an_upstream_tells_the_watermark():
    below = inherited()
    op = started(tg.explicit(), downstream=below)
    found = explained(below)
    assert found.has_upstream
    assert "The upstream provides the watermark, and has sent none yet." in found.sentences
    op.add_messages([row(5)])
    op.advance_watermark(at(65))
    found = explained(below)
    assert found.watermark is not None
    assert "The upstream provides it." in found.sentences


def test_results_wait_because_the_downstream_refuses_them():
    op = started(tg.explicit(), downstream=lambda _: False)
    op.add_messages([row(5), row(6, "b")])
    op.advance_watermark(at(65))
    found = explained(op)
    assert found.is_refused
    assert (found.refused_rows, found.waiting_panes) == (2, 0)
    assert found.sentences[0].startswith(
        "2 results wait because the downstream refuses; no input is accepted until it takes"
        " results."
    )


def test_results_wait_to_be_taken():
    op = started(tg.explicit())
    op.add_messages([row(5)])
    op.advance_watermark(at(600))
    op.add_messages([row(5)])
    assert (
        explained(op).sentences[0]
        == "1 pane and 1 late row wait to be fetched. Hint: call `get_result`."
    )
    op.get_result()
    assert explained(op).waiting_panes == 0


def test_messages_that_are_buffered_are_seen():
    op = panes(tg.explicit()).embedded()
    for _ in range(3):
        op.add_message(row(5))
    assert explained(op).counters["events"] == 3


def test_nobody_has_told_the_clock_for_long(monkeypatch: pytest.MonkeyPatch):
    clock = [instant(NOON)]
    monkeypatch.setattr("tidegate.embedded.clock.wall_clock", lambda: clock[0])
    op = panes(tg.bounded("10 seconds", idle_after="1 minute"), partition="p").embedded()
    op.add_messages([row(5, p="a"), row(50, p="b")])
    clock[0] += 30 * SECOND
    assert "last read the clock" not in str(explained(op))
    clock[0] += 60 * SECOND
    assert (
        "The operator last read the clock 1 minute 30 seconds ago, and something has become due"
        " since." in str(explained(op))
    )
    op.timeout()
    assert "last read the clock" not in str(explained(op))


# Data


def test_instants_are_iso_texts_and_clocks_too():
    op = partitioned(tg.bounded("10 seconds", idle_after="1 minute"))
    op.add_messages([row(50, p="a")], now=at(60))
    data = explained(op).to_dict()
    assert (data["watermark"], data["since"], data["now"], data["newest"]) == (
        text(40),
        text(60),
        text(60),
        text(50),
    )
    assert data["sources"] == [
        {
            "input": 0,
            "name": "a",
            "status": "active",
            "promise": text(40),
            "spoke_at": text(60),
            "moved_at": text(60),
            "holds": True,
            "paused": False,
            "idle_at": text(120),
            "declared": False,
        }
    ]
    assert (
        data["windows"][0]["start"],
        data["windows"][0]["end"],
        data["windows"][0]["to_go"],
    ) == (text(0), text(60), 20 * SECOND)


def test_plain_ticks_stay_numbers():
    op = (
        tg.stream(time="ts", watermark=tg.bounded(3, unit="us"))
        .window(tg.tumbling(10, unit="us"))
        .aggregate(n=tg.count())
        .embedded(now=NOON)
    )
    op.add_messages([{"ts": 7}])
    found = explained(op)
    data = found.to_dict()
    assert (data["watermark"], data["newest"], data["windows"][0]["end"], data["now"]) == (
        4,
        7,
        10,
        text(0),
    )
    assert "The watermark is at 4 since" in str(found)
    assert "It stays 3 ticks behind the newest event, which is at 7" in str(found)
    assert "Window [0, 10) waits until the watermark reaches 10, 6 ticks to go." in found.sentences


def test_keys_of_any_type_are_fit_for_json():
    op = started(tg.per_key("10 seconds", floor="5 minutes"))
    op.add_messages(pa.table({"ts": [at(0)], "k": [at(1)]}))
    assert explained(op).to_dict()["keys"][0]["key"]["k"].startswith("2024-01-01 12:00:01")


def test_an_operator_without_a_runtime_is_explained():
    op = started(tg.explicit())
    op.add_messages([row(5)])
    found = explain(op.operator)
    assert found.machine_clock is None
    assert found.sentences == op.explain_watermark().sentences


def test_an_explanation_cannot_be_changed():
    found = explained(started())
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.watermark = 1  # type: ignore[misc]


def test_since_when_survives_a_restart():
    store = tg.MemoryStore()
    watched = panes(tg.bounded("10 seconds"))
    op = watched.embedded(now=NOON, store=store)
    op.add_messages([row(50)], now=at(60))
    op.flush()
    again = watched.embedded(now=at(500), store=store)
    assert explained(again).since == instant(at(60))


def test_names_are_listed_with_how_many_more():
    assert listed([]) == ""
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c", "d"]) == "a, b, c and d"
    assert listed([str(n) for n in range(10_000)]) == "0, 1, 2 and 9,997 more"


@pytest.mark.parametrize(
    ("span", "said"),
    [
        (0, "0 seconds"),
        (14_400_123, "14 seconds"),
        (1_234_567, "1 second 235 milliseconds"),
        (17, "17 microseconds"),
    ],
)
def test_spans_are_rounded_to_what_people_read(span: int, said: str):
    assert rounded(span) == said
