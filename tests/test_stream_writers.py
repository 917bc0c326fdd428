"""Writers: routing, noted times, failures, and scaling with an outdated view."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.stream_worlds import SECOND, values
from tidegate.errors import (
    InputError,
    ParseError,
    SpecError,
    StateError,
    StreamError,
)
from tidegate.kernel.streams.segments import PASSED, Segment
from tidegate.kernel.streams.watermarks import Mark
from tidegate.streams import Streams
from tidegate.streams.description import even
from tidegate.streams.routing import Router, places
from tidegate.streams.store import EventBatch


def writer(stream, name="w", **options):
    return stream.writer(name, **{"linger": None, **options})


# Routing


@given(
    st.lists(st.one_of(st.none(), st.text(max_size=20)), max_size=30),
    st.integers(1, 7),
    st.integers(0, 100),
)
def test_columns_go_where_single_events_go(keys, count, first):
    segments = [Segment(str(n), low, high) for n, (low, high) in enumerate(even(count))]
    rows = EventBatch(keys, [str(n).encode() for n in range(len(keys))])
    found = {name: list(part.values) for name, part in Router(segments).routed(rows, first).items()}
    slow: dict[str, list[bytes]] = {}
    for n, key in enumerate(keys):
        (at,) = places(pa.array([key], pa.string()), first + n)
        (name,) = [one.name for one in segments if one.low <= at < one.high]
        slow.setdefault(name, []).append(str(n).encode())
    assert found == slow


def test_the_place_of_a_key_is_the_same_for_ever():
    found = places(pa.array(["", "a", "user-1", "ä", None]), 3).tolist()
    assert found[:4] == [
        0.49170896417475973,
        0.7446322209328243,
        0.6884128640604861,
        0.6613244798672048,
    ]
    assert found[4:] == places(pa.array([None], pa.string()), 7).tolist() == [0.3898297483912715]


def test_events_without_a_key_go_round(stream):
    with writer(stream) as w:
        for n in range(100):
            w.write(str(n))
        w.flush()
        assert sum(w.position().values()) == 100
        assert min(w.position().values()) > 25


# Events


def test_bytes_text_and_json_are_written(stream):
    with writer(stream) as w:
        for event in (b"\x00", "ä", {"a": [1, None]}, 3, bytearray(b"b"), memoryview(b"m"), ""):
            w.write(event, "k")
    assert values(stream) == [b"\x00", "ä".encode(), b'{"a":[1,null]}', b"3", b"b", b"m", b""]


@pytest.mark.parametrize("event", [None, {1, 2}, float("nan"), "\ud800", object()])
def test_what_is_no_event_is_refused(stream, event):
    with writer(stream) as w, pytest.raises(InputError, match="an event"):
        w.write(event, "k")
    assert values(stream) == []


@pytest.mark.parametrize("key", [3, b"k", "\ud800"])
def test_what_is_no_key_is_refused(stream, key):
    with writer(stream) as w, pytest.raises(InputError, match="a routing key is a string"):
        w.write("e", key)


def test_columns_are_written_as_single_events_are(stream):
    with writer(stream, batch_events=3) as w:
        w.write("first", "k")
        w.write_all(pa.array(["a", "b"]), pa.array(["k", "k"]))
        w.write_all(pa.chunked_array([[b"c"], [b"d"]]), pa.chunked_array([["k"], ["k"]]))
        w.write("last", "k")
    assert values(stream) == [b"first", b"a", b"b", b"c", b"d", b"last"]


@pytest.mark.parametrize(
    ("found", "keys"),
    [
        (pa.array([1, 2]), None),
        (pa.array(["a", None]), None),
        (pa.array(["a"]), pa.array(["k", "l"])),
        (pa.array(["a"]), pa.array([["k"]])),
        (["a"], None),
        (pa.array(["a"]), ["k"]),
    ],
)
def test_columns_that_are_no_events_are_refused(stream, found, keys):
    with writer(stream) as w, pytest.raises(InputError, match=r"events?"):
        w.write_all(found, keys)
    assert values(stream) == []


@pytest.mark.parametrize("options", [{"batch_events": 0}, {"batch_bytes": 0}])
def test_an_empty_batch_is_refused(stream, options):
    with pytest.raises(SpecError, match="at least one event and one byte"):
        writer(stream, **options)


# Times


def test_a_time_is_noted_when_what_was_written_before_is_in_the_stream(stream):
    with writer(stream) as w:
        w.write("a", "k")
        w.note_time(5)
        assert "w" not in stream.marks()
        w.flush()
        assert stream.marks().get("w") == Mark(5, w.position())
        w.note_time(7)
        w.note_time(9)
        w.flush()
        assert stream.marks().get("w") == Mark(9, w.position())


def test_only_a_writer_with_an_id_notes_times(stream):
    with stream.writer(linger=None) as w:
        w.write("a")
        with pytest.raises(SpecError, match="only a writer with an id"):
            w.note_time(5)
    with pytest.raises(SpecError, match="writer with an id"):
        stream.writer(auto_note_time=True)
    assert values(stream) == [b"a"]


@pytest.mark.parametrize("flushed", [False, True])
def test_a_time_that_goes_back_is_refused_and_the_event_stays(stream, flushed):
    with writer(stream) as w:
        w.note_time(5)
        if flushed:
            w.flush()
        w.write("a", "k")
        assert not w.note_time(4)
        assert w.note_time(5)
    assert values(stream) == [b"a"]
    assert stream.marks().get("w").time == 5


def test_what_is_no_time_is_refused(stream):
    with writer(stream) as w, pytest.raises(ParseError):
        w.note_time("yesterday")


def test_a_full_batch_carries_the_time(stream):
    with writer(stream, batch_events=2) as w:
        w.note_time(5)
        w.write("a", "k")
        assert "w" not in stream.marks()
        w.write("b", "k")
        assert stream.marks().get("w") == Mark(5, w.position())


def test_not_every_batch_carries_a_time_while_others_linger(stream, local):
    with writer(stream, batch_events=1, linger="1 hour") as w:
        for n in range(5):
            w.note_time(n)
            w.write("a", "k")
        assert local.calls["append"] == 5
        assert "w" not in stream.marks()
        stream.clock.pass_by(3600)
        w.write("a", "k")
        assert stream.marks().get("w").time == 4


def test_a_later_life_goes_on_from_the_time_of_the_former(stream):
    with writer(stream) as w:
        w.note_time(5)
    with writer(stream) as w:
        assert not w.note_time(4)
        assert w.noted == 5
        assert not stream.marks().get("w").alive
        w.note_time(6)
        w.flush()
        assert stream.marks().get("w").alive


def test_the_times_of_a_later_life_are_for_what_the_former_has_not_noted(stream):
    former = writer(stream)
    former.note_time(5)
    former.flush()
    for n in range(10):
        former.write("unnoted", str(n))
    former.flush()
    reached = former.position()
    with writer(stream) as w:
        w.note_time(20)
        w.flush()
        assert w.position() == {}
        segments = stream.description().segments
        assert (
            segments.compare(segments.upper_bound([stream.marks().get("w").position]), reached)
            == PASSED
        )


def test_one_of_two_lives_at_once_learns_that_the_other_is_further(stream):
    old, new = writer(stream), writer(stream)
    new.note_time(50)
    new.flush()
    old.write("a", "k")
    assert old.note_time(40), "it is not before the times noted here"
    old.flush()
    assert old.noted == 50
    assert not old.note_time(45)
    assert stream.marks().get("w").time == 50
    old.note_time(60)
    old.flush()
    assert values(stream) == [b"a"]
    assert stream.marks().get("w").time == 60


def test_one_rule_for_a_noted_time_and_a_commit_that_go_back(stream):
    """Neither is noted, neither raises an error, and no event is lost."""
    with writer(stream) as w:
        w.note_time(5)
    with stream.transactional_writer("w") as transactions:
        transaction = transactions.begin()
        transaction.write("a", "k")
        assert not transaction.commit(4).noted
    with writer(stream) as w:
        w.write("b", "k")
        assert not w.note_time(4)
    assert values(stream) == [b"a", b"b"]
    assert stream.marks().get("w").time == 5


def test_a_pulse_flushes_and_notes_what_lingers(stream):
    with stream.writer("w", linger="1 ms") as w:
        w.write("a", "k")
        w.note_time(3)
        (found,) = stream.group("g").reader("r").read(wait="20 s")
        assert found.value == b"a"
        with w._lock:
            w._check_open()
    assert stream.marks().get("w").time == 3


def test_the_clock_is_noted_regularly(stream, local, clock):
    beats = threading.Semaphore(0)
    local.before["swap"] = [beats.release] * 1000
    with stream.writer("w", linger=None, auto_note_time=True, note_every="1 ms") as w:
        assert beats.acquire(timeout=600)
        w.flush()
        assert stream.marks().get("w").time == clock.now
        before = clock.now
        clock.pass_by(2)
        assert beats.acquire(timeout=600)
        w.flush()
        assert stream.marks().get("w").time == before + 2 * SECOND
        clock.pass_by(-60)
        w.write("a", "k")
        w.flush()
        assert stream.marks().get("w").time == before + 2 * SECOND, (
            "a clock that goes back does not take time back"
        )


# Failures


def test_a_failure_of_a_batch_is_told_at_the_next_call_and_nothing_is_lost_or_twice(stream, local):
    with writer(stream, batch_events=1) as w:
        local.fail("append")
        w.write("a", "k")
        with pytest.raises(StreamError, match=r"not in the stream yet \(the disk is full\)"):
            w.write("refused", "k")
        w.write("b", "k")
        assert values(stream) == [b"a", b"b"]


def test_a_failure_of_a_flush_leaves_all_for_the_next(stream, local):
    with writer(stream) as w:
        w.write("a", "k")
        w.note_time(5)
        local.fail("append")
        with pytest.raises(StateError, match="disk is full"):
            w.flush()
        assert w.position() == {}
        assert "w" not in stream.marks()
        local.fail("swap")
        with pytest.raises(StateError, match="disk is full"):
            w.flush()
        w.flush()
        assert stream.marks().get("w") == Mark(5, w.position())
    assert values(stream) == [b"a"]


def test_a_failure_that_was_not_told_does_not_keep_the_end_from_flushing(stream, local):
    w = writer(stream, batch_events=1)
    local.fail("append")
    w.write("a", "k")
    w.close()
    assert values(stream) == [b"a"]


def test_a_failure_of_the_pulse_is_told(stream, local):
    failed = threading.Event()

    def failure():
        failed.set()
        raise StateError("the disk is full")

    with stream.writer("w", linger="1 ms") as w:
        local.before["append"] = [failure] * 10_000
        w.write("a", "k")
        assert failed.wait(20)
        with w._lock, pytest.raises(StreamError, match="disk is full"):
            w._check_open()
        local.before.clear()
        w.flush()
    assert values(stream) == [b"a"]


def test_an_end_that_fails_says_so_and_ends(stream, local):
    w = stream.writer("w", linger="1 hour")
    w.write("a", "k")
    local.fail("append")
    with pytest.raises(StateError, match="disk is full"):
        w.close()
    assert not w._thread.is_alive()
    w.close()
    with pytest.raises(StreamError, match="the writer is closed"):
        w.write("b", "k")


def test_who_is_refused_half_and_then_fails_writes_nothing_twice(stream, local):
    """Rows accepted by the open segment stay; only the others are written again."""
    w = writer(stream)
    stream.scale(seal=["0"], ranges=[(0, 0.25), (0.25, 0.5)])
    for n in range(20):
        w.write(f"{n}", str(n))
    local.fail("cells")
    with pytest.raises(StateError, match="disk is full"):
        w.flush()
    assert w.position().keys() == {"1"}
    w.flush()
    assert sorted(values(stream), key=int) == [str(n).encode() for n in range(20)]


def test_closing_ends_the_writer_for_the_controller(stream):
    w = writer(stream)
    w.note_time(5)
    w.close()
    w.close()
    assert stream.marks().get("w") == Mark(5, {}, alive=False)
    for call in (
        lambda: w.write("a"),
        w.flush,
        lambda: w.note_time(6),
        lambda: w.write_all(pa.array(["a"])),
    ):
        with pytest.raises(StreamError, match="the writer is closed"):
            call()


# Scaling


def test_a_writer_that_does_not_know_of_a_scaling_keeps_the_order_of_keys(store, clock):
    stream = Streams(store, clock).create("s", 2)
    with (
        stream.writer("w", linger=None, batch_events=7) as w,
        stream.writer(linger=None, batch_events=5) as nameless,
    ):
        for n in range(120):
            w.write(f"{n}", f"k{n % 5}")
            nameless.write(f"{1000 + n}", f"k{n % 5}")
            if n % 30 == 20:
                stream.scale([3, 1, 4, 2][n // 30])
        w.note_time(5)
    found = [int(value) for value in values(stream)]
    assert sorted(found) == [*range(120), *range(1000, 1120)]
    for start in (0, 1000):
        for key in range(5):
            mine = [n for n in found if n // 1000 == start // 1000 and n % 1000 % 5 == key]
            assert mine == sorted(mine)
    assert len(stream.description().segments.newest()) == 2
    assert len(stream.marks().get("w").position) <= 2


def test_a_position_tells_of_segments_that_are_left(stream):
    with writer(stream) as w:
        for count in [3, 2] * 5:
            stream.scale(count)
            for n in range(20):
                w.write("a", str(n))
            w.flush()
            assert len(w.position()) <= count


def test_several_threads_and_the_pulse_share_a_writer(stream):
    def work(number):
        for n in range(300):
            w.write(f"{n}", f"k{number}")
            if n % 50 == 0:
                w.flush()

    with stream.writer("w", linger="1 ms", batch_events=10) as w:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        stream.scale(3)
        for thread in threads:
            thread.join()
    group = stream.group("g").reader("r")
    found: dict[str, list[int]] = {}
    while events := group.read(10_000):
        for event in events:
            found.setdefault(event.key, []).append(int(event.value))
        group.checkpoint()
    assert found == {f"k{number}": list(range(300)) for number in range(3)}


@pytest.mark.parametrize("whole", [False, True])
def test_an_event_that_the_store_cannot_take_is_refused_and_does_not_hold_the_others(
    stream, local, monkeypatch, whole
):
    monkeypatch.setattr(type(local), "largest", 10, raising=False)
    with (
        stream.writer("w", linger=None) as writer,
        stream.transactional_writer("t") as other,
        other.begin() as transaction,
    ):
        for target in (writer, transaction):
            target.write(b"12345678", "k1")
            with pytest.raises(
                InputError, match="11 bytes including its key, but the store accepts at most 10"
            ):
                (
                    target.write_all(pa.array([b"1", b"123456789"]), pa.array(["k", "k2"]))
                    if whole
                    else target.write(b"123456789", "k2")
                )
            target.write(b"1", "k")
    assert sorted(event.value for event in stream.group("g").reader("r").read()) == [
        b"1",
        b"1",
        b"12345678",
        b"12345678",
    ]
