"""`explain_watermark` names the sources that hold the watermark back, and what was ignored."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import tidegate as tg
from support.explanations import (
    MINUTE,
    NOON,
    SECOND,
    at,
    explained,
    panes,
    partitioned,
    row,
    sources,
    started,
    text,
)
from tidegate.embedded.operator import EmbeddedOperator
from tidegate.instants import instant
from tidegate.page.feed import Reading
from tidegate.page.panels import waits
from tidegate.page.timeline import Timeline

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


# Sources that hold the watermark back


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


def test_the_inputs_of_a_merge_have_their_names():
    side = tg.stream(time="ts", key="k", watermark=tg.bounded("0 seconds"))
    merged = tg.merge(orders=side, clicks=side).window(tg.tumbling("1 minute"))
    op = merged.aggregate(n=tg.count()).embedded(now=0)
    op.add_messages([{"ts": 1, "k": "a"}], input="orders", now=1)
    assert "Input `clicks` has not sent anything" in str(op.explain_watermark())
    assert [source.label for source in op.status().sources] == ["orders", "clicks"]
    joined = side.join(side, tg.within("1 s", "1 s"), on="k").embedded(now=0)
    joined.add(right=[{"ts": 1, "k": "a"}], now=1)
    assert "Input `left` has not sent anything" in str(joined.explain_watermark())
    timeline = Timeline()
    timeline.add(Reading(joined.status()))
    assert "left</td>" in waits(timeline), "sides are sources of the page"
    assert (
        "<th>clicks</th><td>time ts, key k; watermark bounded"
        in tg.merge(orders=side, clicks=side)._repr_html_()
    )


def test_an_explicit_watermark_is_advanced_by_the_name_of_the_input():
    side = tg.stream(time="ts", watermark=tg.explicit())
    merged = tg.merge(orders=side, clicks=side).window(tg.tumbling("1 minute"))
    op = merged.aggregate(n=tg.count()).embedded(now=0)
    op.add_messages([{"ts": 1}], input="orders", now=1)
    op.advance_watermark(5, input="orders")
    assert "`advance_watermark(..., input='clicks')`" in str(op.explain_watermark())
