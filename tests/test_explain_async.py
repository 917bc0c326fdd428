"""`explain_watermark` of an async map: calls, and the watermarks that wait behind them."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from support.async_service import (
    BOTH,
    LONG,
    PATIENCE,
    TOLD,
    Row,
    Service,
    Sink,
    counting,
    echo,
    hear,
    made,
    rows,
)
from support.explanations import explained, sources
from tidegate.embedded.async_map import EmbeddedAsyncMap
from tidegate.errors import StateError
from tidegate.instants import format_duration, instant
from tidegate.kernel.watermarks.marks import Idle, Watermark
from tidegate.operators.async_map.queue import async_queue
from tidegate.operators.explain.explanation import LISTED
from tidegate.operators.explain.facts import Explanation
from tidegate.spec.operator import Input, TimeColumn
from tidegate.spec.watermarks import Bounded, Explicit
from tidegate.state.memory import MemoryStore

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
TWO_KEYS = Input("ts", watermark=Explicit(), others=(TimeColumn("seen", Explicit(), 1),))


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def text(seconds: float) -> str:
    return at(seconds).isoformat().replace("+00:00", "Z")


def asked(mapped: EmbeddedAsyncMap) -> Explanation:
    """The explanation, checked to change nothing."""

    def held() -> tuple[Any, ...]:
        return (
            mapped._watermark_tracker.save(),
            mapped._queue.save(),
            mapped.stats(),
            len(mapped._results.unfetched),
            len(mapped._results.waiting),
        )

    before = held()
    found = explained(mapped)
    assert held() == before
    return found


def calls(found: Explanation) -> Any:
    assert found.calls is not None
    return found.calls


def marks(found: Explanation) -> list[tuple[Any, ...]]:
    return [
        (mark.kind, mark.watermark, mark.watermark_key, mark.before) for mark in calls(found).marks
    ]


def replied(mapped: EmbeddedAsyncMap) -> None:
    """Wait until an answer has arrived, without taking it."""
    loop = mapped._executor._loop
    assert loop is not None
    loop.replies.put(loop.replies.get(timeout=PATIENCE))


# Sources


def test_nothing_has_come():
    with made(echo, Input("ts", watermark=Bounded(5))) as mapped:
        found = asked(mapped)
        assert (found.watermark, calls(found).pending, marks(found)) == (None, 0, [])
        assert found.sentences == ("There is no watermark yet.", "No message has arrived yet.")


def test_nothing_is_pending_and_a_source_holds_the_watermark_back():
    stream = tg.stream(
        time="ts",
        partition="p",
        watermark=tg.bounded("10 seconds", partitions=["x", "y"], idle_after="1 minute"),
    )
    with stream.async_map(echo).embedded(now=NOON) as mapped:
        mapped.add_messages([{"ts": at(50), "p": "x", "v": 1}], now=at(20))
        hear(mapped)
        mapped.get_result()
        found = asked(mapped)
        assert (found.watermark, found.newest, found.ticks, calls(found).pending) == (
            None,
            instant(at(50)),
            False,
            0,
        )
        assert [name for name, source in sources(found).items() if source.holds] == ["y"]
        assert found.sentences == (
            "No message waits for an answer.",
            f"There is no watermark yet; the operator started at {text(0)}, 20 seconds ago.",
            (
                "Partition `y` (declared) has not sent an event yet; it has held the watermark back"
                f" since {text(0)}, 20 seconds ago."
            ),
            (
                f"If it stays silent, it becomes idle when the clock reaches {text(60)}, 40"
                " seconds to go."
            ),
        )


def test_who_is_behind_is_told_as_for_windows():
    stream = tg.stream(time="ts", partition="p", watermark=tg.bounded("10 seconds"))
    with stream.async_map(echo).embedded(now=NOON) as mapped:
        mapped.add_messages(
            [{"ts": at(5), "p": "slow", "v": 1}, {"ts": at(50), "p": "fast", "v": 2}], now=at(50)
        )
        found = asked(mapped)
        assert (
            f"Partition `slow` holds the watermark back: it has promised {text(-5)}, others up"
            f" to {text(40)}." in found.sentences
        )
        assert (
            f"The newest event is at {text(50)}, 55 seconds ahead of the watermark."
            in found.sentences
        )
        mapped.end_input()
        assert (
            "Every source has ended, so the highest promise was released; `finish` ends the input."
            in asked(mapped).sentences
        )


def test_events_from_the_future_move_no_watermark():
    with (
        tg.stream(time="ts", watermark=tg.bounded("10 seconds"))
        .async_map(echo)
        .embedded(now=NOON) as mapped
    ):
        mapped.add_messages([{"ts": at(3600), "v": 1}, {"ts": at(3601), "v": 2}])
        found = asked(mapped)
        assert (found.counters["future"], found.newest) == (2, None)
        assert (
            "Only events from the future have arrived (2): they are more than 1 minute ahead of the"
            " clock" in str(found)
        )
        mapped.add_messages([{"ts": at(5), "v": 3}])
        found = asked(mapped)
        assert found.newest == instant(at(5))
        assert "2 events from the future arrived" in str(found)


def test_a_row_that_only_says_a_watermark_is_no_event_from_the_future():
    with (
        tg.stream(time="ts", watermark=tg.punctuated(marker="m"))
        .async_map(echo)
        .embedded(now=NOON) as mapped
    ):
        mapped.add_messages(
            [{"ts": at(5), "m": False, "v": 1}, {"ts": at(3600), "m": True, "v": 2}]
        )
        found = asked(mapped)
        assert (found.counters["future"], found.counters["watermarks_refused"], found.newest) == (
            0,
            1,
            instant(at(5)),
        )


def test_an_upstream_tells_the_watermark():
    async def same(row: Row) -> Row:
        return row

    with made(same, Input("time", watermark=Explicit())) as mapped:
        op = counting().embedded(now=0, downstream=mapped)
        found = asked(mapped)
        assert found.has_upstream
        assert "The upstream provides the watermark, and has sent none yet." in found.sentences
        op.add_messages(rows("a"))
        op.advance_watermark(20)
        assert "The upstream provides it." in asked(mapped).sentences


# Calls


@BOTH
def test_a_watermark_waits_behind_the_messages_without_an_answer_that_came_before_it(ordered):
    service = Service()
    with made(service, ordered=ordered, max_in_flight=10) as mapped:
        mapped.add_messages(rows("a", "b"))
        mapped.advance_watermark(10)
        mapped.add_messages([{"ts": 11, "v": "c"}])
        found = asked(mapped)
        standing = calls(found)
        assert (
            standing.pending,
            standing.in_flight,
            standing.max_in_flight,
            standing.answered,
        ) == (3, 3, 10, 0)
        assert (found.watermark, marks(found)) == (10, [("watermark", 10, 0, 2)])
        assert found.sentences[:2] == (
            "3 messages have no answer yet; 3 calls of at most 10 are running.",
            "Watermark 10 waits behind 2 of them.",
        )
        assert found.sentences[-2] == "The watermark is at 10 since 1970-01-01T00:00:00Z."
        assert found.sentences[-1] == "It advances only when the program calls `advance_watermark`."
        mapped.advance_watermark(20)
        mapped.advance_watermark(30)
        found = asked(mapped)
        assert marks(found) == [("watermark", 10, 0, 2), ("watermark", 30, 0, 3)]
        assert (
            "Watermark 10 waits behind 2 of them, and 1 more behind it, up to 30."
            in found.sentences
        )
        service.answer("a")
        hear(mapped, 2)
        assert marks(asked(mapped)) == [("watermark", 10, 0, 1), ("watermark", 30, 0, 2)]
        service.answer("b")
        hear(mapped, 1)
        mapped.get_result()
        found = asked(mapped)
        assert marks(found) == [("watermark", 30, 0, 1)]
        assert "Watermark 30 waits behind it." in found.sentences


@BOTH
def test_an_ordered_answer_waits_for_earlier_ones_and_keeps_its_slot(ordered):
    service = Service()
    with made(service, ordered=ordered, max_in_flight=2) as mapped:
        mapped.add_messages(rows("a", "b"))
        assert (
            "All 2 slots are in use, so `add_messages` waits for an answer. Hint: raise"
            " `max_in_flight`." in asked(mapped).sentences
        )
        service.answer("b")
        hear(mapped, 1)
        found = asked(mapped)
        assert calls(found).is_ordered is ordered
        assert calls(found).answered == ordered
        assert ("1 answer waits for the answers of earlier messages." in found.sentences) is ordered
        assert ("slots are in use" in str(found)) is ordered
        assert (
            "1 result waits to be fetched. Hint: call `get_result`." in found.sentences
        ) is not ordered


@BOTH
def test_answers_that_have_come_are_told_and_not_taken(ordered):
    service = Service()
    with made(service, ordered=ordered) as mapped:
        mapped.add_messages(rows("a", "b"))
        mapped.advance_watermark(10)
        service.answer("a")
        replied(mapped)
        found = asked(mapped)
        assert (calls(found).pending, calls(found).untaken, calls(found).in_flight) == (2, 1, 2)
        assert calls(found).oldest == {"ts": 1, "v": "b"}
        assert found.sentences[:3] == (
            "1 answer has arrived and waits to be taken. Hint: call `timeout` or `get_result`.",
            "2 messages have no answer that was taken; 1 call of at most 100 is running.",
            "Watermark 10 waits behind them.",
        )
        service.answer("b")
        hear(mapped)
        assert calls(asked(mapped)).untaken == 0


def test_the_oldest_call_is_told_with_how_long_it_may_still_take():
    service = Service()
    with made(service, timeout=LONG, retries=2) as mapped:
        assert calls(asked(mapped)).oldest is None
        mapped.add_messages(rows("a", "b"))
        service.wait_for(2)
        found = asked(mapped)
        standing = calls(found)
        assert standing.limit == 3 * LONG
        assert standing.oldest == {"ts": 0, "v": "a"}
        assert 0 <= standing.oldest_for < LONG
        assert standing.left == standing.limit - standing.oldest_for
        assert found.to_dict()["calls"]["left"] == standing.left
        assert "The oldest call has been running for" in str(found)
        assert "with an answer or in `late`; its message is `ts=0, v=a`." in str(found)
        service.answer("a")
        hear(mapped, 1)
        assert calls(asked(mapped)).oldest == {"ts": 1, "v": "b"}


def test_a_call_that_blocks_its_event_loop_is_overdue():
    begun, over = threading.Event(), threading.Event()

    async def block(row: Row) -> None:
        begun.set()
        over.wait(PATIENCE)

    with made(block, timeout=1) as mapped:
        try:
            mapped.add_messages([{"ts": 0, "v": "x" * 500}])
            assert begun.wait(PATIENCE)
            found = asked(mapped)
        finally:
            over.set()
        assert calls(found).left < 0
        assert (
            f"longer than its limit of {format_duration(1)}: it or another call blocks the event"
            " loop" in str(found)
        )
        assert len(str(found)) < 1_000
        mapped._executor.lost_loops = 2
        assert "The function blocked its event loop 2 times, and a new loop was started." in str(
            asked(mapped)
        )


@BOTH
def test_that_all_sources_are_idle_waits_too(ordered):
    service = Service()
    with made(service, ordered=ordered) as mapped:
        mapped.advance_watermark(5)
        mapped.get_result()
        mapped.add_messages(rows("a"))
        mapped.mark_idle()
        found = asked(mapped)
        assert found.is_idle
        assert marks(found) == [("idle", None, None, 1)]
        assert "The idle status of all sources waits behind it." in found.sentences


def test_what_became_of_the_calls_is_told():
    async def picky(row: Row) -> Any:
        if row["v"] == "bad":
            raise ValueError("no\n  luck")
        return None if row["v"] == "unwanted" else row

    with made(picky, retries=1) as mapped:
        mapped.add_messages(rows("bad", "unwanted", "good"))
        mapped.advance_watermark(10)
        hear(mapped)
        found = asked(mapped)
        assert (
            found.counters["failed"],
            found.counters["retried"],
            found.counters["filtered"],
            found.counters["results"],
        ) == (1, 1, 1, 1)
        assert found.late == {"async_failed": 1}
        assert (found.waiting_results, found.waiting_marks, found.waiting_late) == (1, 1, 1)
        assert (
            found.sentences[0]
            == "1 result, 1 watermark and 1 late row wait to be fetched. Hint: call `get_result`."
        )
        assert found.sentences[-4:] == (
            "1 row went to `late`: 1 async_failed.",
            "The last failed call ended with: ValueError: no luck.",
            "1 attempt was a retry after a failure.",
            "1 message had no result and was dropped.",
        )
        mapped.get_result()
        assert asked(mapped).sentences[0] == "No message waits for an answer."


# Watermark keys


@BOTH
def test_watermarks_of_several_keys_wait_on_their_own(ordered):
    service = Service()
    with made(service, TWO_KEYS, ordered=ordered) as mapped:
        mapped.add_messages([{"ts": 1, "seen": at(0), "v": "a"}])
        mapped.advance_watermark(10)
        mapped.add_messages([{"ts": 2, "seen": at(1), "v": "b"}])
        mapped.advance_watermark(at(5), key=1)
        found = asked(mapped)
        assert marks(found) == [("watermark", 10, 0, 1), ("watermark", instant(at(5)), 1, 2)]
        assert found.sentences[1:3] == (
            "Watermark 10 of key 0 waits behind 1 of them.",
            f"Watermark {text(5)} of key 1 waits behind them.",
        )
        assert "The watermark of key 0 is at 10 since 1970-01-01T00:00:00Z." in found.sentences
        told = found.to_dict()
        assert [mark["watermark"] for mark in told["calls"]["marks"]] == [10, text(5)]
        assert [(other["watermark_key"], other["watermark"]) for other in told["also"]] == [
            (1, text(5))
        ]
        assert "calls" not in told["also"][0]


def test_a_key_that_is_held_back_is_told_beside_the_first():
    with made(echo, TWO_KEYS) as mapped:
        mapped.advance_watermark(10)
        found = asked(mapped)
        assert (
            found.watermark_key,
            found.watermark,
            [other.watermark for other in found.also],
        ) == (0, 10, [None])
        text_of_key = "There is no watermark of key 1 yet."
        assert text_of_key in found.sentences
        hint = (
            "The watermark is explicit and has not been advanced yet. Hint: call"
            " `advance_watermark(..., key=1)`."
        )
        assert found.sentences[found.sentences.index(text_of_key) + 1] == hint
        mapped.advance_watermark(3, key=1)
        assert "key 1" not in str(asked(mapped))


def test_inputs_that_hold_another_key_back_are_named():
    with made(echo, TWO_KEYS, TWO_KEYS) as mapped:
        for number in range(2):
            mapped.advance_watermark(10, input=number)
            mapped.advance_watermark(20 - 10 * number, input=number, key=1)
        found = asked(mapped)
        assert [given.holds for given in found.also[0].inputs] == [False, True]
        assert "The watermark of key 1 is at 10 since 1970-01-01T00:00:00Z." in found.sentences
        assert (
            "Input 1 holds the watermark back: it has promised 10, others up to 20."
            in found.sentences
        )
        assert (
            "The watermark is explicit there. Hint: call `advance_watermark(..., input=1, key=1)`."
            in found.sentences
        )


def test_a_key_that_an_input_lacks_ends_here():
    with made(echo, TOLD, TWO_KEYS) as mapped:
        mapped.advance_watermark(20, input=1, key=1)
        found = asked(mapped)
        assert [
            (other.watermark_key, other.lacking, [given.input for given in other.inputs])
            for other in found.also
        ] == [(1, (0,), [1])]
        assert (
            "The watermark of key 1 is dropped, because input 0 does not have that key."
            in found.sentences
        )


def test_of_many_keys_and_marks_a_few_are_told():
    keys = range(1, 10)
    given = Input(
        "ts",
        watermark=Explicit(),
        others=tuple(TimeColumn(f"t{key}", Explicit(), key) for key in keys),
    )
    service = Service()
    with made(service, given) as mapped:
        assert "The watermarks of 6 more keys are held back too." in asked(mapped).sentences
        mapped.add_messages([{"ts": 1, "v": "a", **{f"t{key}": 1 for key in keys}}])
        for value in range(10):
            for key in (0, *keys):
                mapped.advance_watermark(value, key=key)
        found = asked(mapped)
        assert (len(calls(found).marks), calls(found).more_marks) == (LISTED, 100 - LISTED)
        assert (
            "Watermark 0 of key 2 waits behind it, and 4 more behind it, up to 4."
            in found.sentences
        )
        assert "85 more watermarks wait with them." in found.sentences


# The runtime


def test_results_wait_because_the_downstream_refuses_them():
    sink, service = Sink(room=0), Service()
    with made(service, downstream=sink) as mapped:
        mapped.add_messages(rows("a", "b"))
        mapped.advance_watermark(10)
        service.answer("a")
        service.answer("b")
        hear(mapped)
        found = asked(mapped)
        assert (
            found.is_refused,
            found.refused_rows,
            found.refused_marks,
            found.waiting_results,
        ) == (True, 2, 1, 0)
        assert found.sentences[0].startswith(
            "2 results and 1 watermark wait because the downstream refuses; no input is accepted"
            " until it takes results."
        )
        sink.room = 10
        mapped.timeout()
        assert not asked(mapped).is_refused


def test_the_end_waits_for_a_downstream_that_refuses():
    refusing = Sink(room=0)
    below = counting().embedded(now=0, downstream=refusing)
    with made(echo, downstream=below) as mapped:
        mapped.add_messages(rows("a"))
        mapped.advance_watermark(20)
        hear(mapped)
        mapped.finish()
        found = asked(mapped)
        assert found.is_refused
        assert found.is_finished
        assert "because the downstream refuses" in found.sentences[0]
        assert found.sentences[-1] == "The input has ended, and every message has its answer."
        mapped._results.waiting.clear()
        assert (
            explained(mapped)
            .sentences[0]
            .startswith("The end of the input waits because the downstream refuses;")
        )


def test_a_finished_map_says_so():
    with made(echo) as mapped:
        mapped.add_messages(rows("a"))
        mapped.finish()
        mapped.get_result()
        found = asked(mapped)
        assert found.is_finished
        assert found.sentences == ("The input has ended, and every message has its answer.",)


@BOTH
def test_what_waits_is_told_after_a_restart(ordered):
    store, service = MemoryStore(), Service()
    given = Input("ts", watermark=Bounded(0))
    mapped = made(service, given, ordered=ordered, store=store)
    mapped.add_messages(rows("a", "b"))
    mapped.flush()
    before = asked(mapped)
    again = made(service, given, ordered=ordered, store=store, max_in_flight=1)
    try:
        found = asked(again)
        assert (marks(found), found.newest) == (marks(before), 1)
        assert marks(found) == [("watermark", 1, 0, 2)]
        assert (
            "2 messages have no answer yet; 1 call of at most 1 is running, and 1 message waits"
            " for a slot." in found.sentences
        )
        assert "The only slot is in use, so `add_messages` waits for an answer." in str(found)
    finally:
        again.close()
        mapped.close()


@BOTH
def test_a_mark_that_nothing_holds_leaves_with_the_next_call(ordered):
    with made(echo, ordered=ordered) as mapped:
        mapped._queue.mark(Watermark(7))
        found = asked(mapped)
        assert marks(found) == [("watermark", 7, 0, 0)]
        assert "Watermark 7 waits only for the next call of `timeout`." in found.sentences
        mapped.timeout()
        assert marks(asked(mapped)) == []


def test_a_closed_map_cannot_be_asked():
    mapped = made(echo)
    mapped.close()
    with pytest.raises(StateError, match="closed"):
        mapped.explain_watermark()


steps = st.lists(
    st.one_of(
        st.just("submit"),
        st.integers(0, 5),
        st.tuples(st.integers(1, 3), st.integers(0, 1)),
        st.just("idle"),
    ),
    max_size=30,
)


@given(steps, st.booleans())
def test_every_mark_knows_how_many_unanswered_submissions_are_before_it(
    history: list[Any], ordered: bool
):
    found = async_queue(ordered=ordered)
    open_tickets: list[int] = []
    expected: list[tuple[Any, frozenset[int]]] = []
    for step in history:
        match step:
            case "submit":
                open_tickets.append(found.submit({}))
            case "idle":
                expected.append((Idle(), frozenset(open_tickets)))
                found.mark(Idle())
            case (value, key):
                mark = Watermark(value, key)
                replaced = (
                    expected[-1] if expected and isinstance(expected[-1][0], Watermark) else None
                )
                if replaced is not None and replaced[0].key == key and found._is_marked:
                    expected[-1] = (max(mark, replaced[0], key=lambda one: one.value), replaced[1])
                else:
                    expected.append((mark, frozenset(open_tickets)))
                found.mark(mark)
            case number if open_tickets:
                found.complete(open_tickets.pop(number % len(open_tickets)), [])
    left = set(open_tickets)
    assert sorted(map(str, found.waiting())) == sorted(
        str((mark, len(before & left))) for mark, before in expected
    )
    found.release()
    assert all(before for _, before in found.waiting())
    assert [before for _, before in found.waiting()] == sorted(
        before for _, before in found.waiting()
    )
