"""Readers and reader groups: shares, checkpoints, crashes, leases, successors and time windows."""

from __future__ import annotations

import time

import pytest

from tidegate.errors import InputError, SpecError, StreamError
from tidegate.kernel.streams.watermarks import TimeWindow
from tidegate.streams import Frontier, Streams
from tidegate.streams.readers import ReaderGroup
from tidegate.streams.store import Conflict


def fill(stream, count, *, first=0, name=None):
    """Write events with ten keys, so that both segments of a stream have some."""
    with stream.writer(name, linger=None) as w:
        for n in range(first, first + count):
            w.write(str(n), f"k{n % 10}")


def numbers(events):
    return [int(event.value) for event in events]


def drained(*readers):
    """All events that the readers return in turn, each with checkpoints."""
    found, idle = [], 0
    while idle < 2:
        idle += 1
        for reader in readers:
            if events := reader.read(7):
                found += numbers(events)
                idle = 0
            reader.checkpoint()
    return found


@pytest.fixture
def group(stream) -> ReaderGroup:
    return stream.group("g", lease="10 s")


# Reading and checkpoints


def test_two_readers_share_a_stream(store, clock):
    stream = Streams(store, clock).create("s", 4)
    fill(stream, 100)
    group = stream.group("g")
    one, two = group.reader("one"), group.reader("two")
    assert len(one.segments) == 4, "who comes first has all"
    one.checkpoint()
    two.checkpoint()
    assert (len(one.segments), len(two.segments)) == (2, 2)
    assert sorted(drained(one, two)) == list(range(100))


def test_an_event_says_where_it_was(stream, group):
    with stream.writer("w", linger=None) as w:
        w.write({"a": 1}, "k")
    (event,) = group.reader("r").read()
    assert (event.key, event.offset, event.json) == ("k", 0, {"a": 1})
    assert event.segment in {"0", "1"}
    assert event.appended > 0
    table = stream.group("h").reader("r").read_table()
    assert table.column_names == ["segment", "offset", "key", "value", "appended"]
    assert table.to_pylist() == [
        {
            "segment": event.segment,
            "offset": 0,
            "key": "k",
            "value": b'{"a":1}',
            "appended": event.appended,
        }
    ]


def test_what_was_confirmed_does_not_come_again(stream, group):
    fill(stream, 50)
    first = group.reader("r")
    kept = numbers(first.read(20))
    first.checkpoint()
    first.read(20)
    again = group.reader("r")
    assert sorted(kept + drained(again)) == list(range(50))


def test_another_group_reads_the_same(stream, group):
    fill(stream, 30)
    assert sorted(drained(group.reader("r"))) == list(range(30))
    assert sorted(drained(stream.group("h").reader("r"))) == list(range(30))


def test_a_group_begins_where_it_was_told(stream):
    fill(stream, 30)
    tail = stream.tail()
    fill(stream, 10, first=30)
    for start in (tail, Frontier(tail)):
        group = stream.group(f"g{type(start).__name__}", start=start)
        assert sorted(drained(group.reader("r"))) == list(range(30, 40))
    late = stream.group("late", start="latest")
    fill(stream, 5, first=40)
    assert sorted(drained(late.reader("r"))) == list(range(40, 45))
    stream.truncate(tail)
    assert sorted(drained(stream.group("early").reader("r"))) == list(range(30, 45))
    with pytest.raises(InputError, match="is truncated"):
        stream.group("too-early", start={"0": 0, "1": 0})
    with pytest.raises(InputError, match="ends at"):
        stream.group("too-late", start={"0": 0, "1": 999})
    for start in ("middle", 3, {"0": 0}, {"0": 0, "1": "x"}):
        with pytest.raises(SpecError):
            stream.group("bad", start=start)


def test_every_segment_has_its_turn(stream, group):
    fill(stream, 100)
    reader = group.reader("r")
    seen = set()
    for _ in range(4):
        seen.update(event.segment for event in reader.read(3))
        reader.checkpoint()
    assert seen == {"0", "1"}


def test_what_was_read_before_an_error_is_not_confirmed(stream, group, local):
    fill(stream, 20)
    reader = group.reader("r")
    local.fail("read", after=1)
    with pytest.raises(Exception, match="disk is full"):
        reader.read()
    reader.checkpoint()
    assert sorted(drained(reader)) == list(range(20))


@pytest.mark.parametrize("most", [0, -1])
def test_a_read_takes_at_least_one(group, most):
    with pytest.raises(SpecError, match="at least one event"):
        group.reader("r").read(most)


def test_a_reader_that_waits_sleeps_meanwhile_and_is_woken_by_an_event(stream, group, local):
    reader = group.reader("r")
    local.calls.clear()
    begun = time.monotonic()
    assert reader.read(wait="200 ms") == []
    assert time.monotonic() - begun >= 0.2
    assert local.calls["read"] < 2 * 20
    local.before["read"] = [*[lambda: None] * 6, lambda: fill(stream, 1)]
    assert numbers(reader.read(wait="20 s")) == [0]


# Ends and successors


def test_successors_are_read_after_both_that_they_succeed(store, clock):
    stream = Streams(store, clock).create("s", 2)
    group = stream.group("g")
    fill(stream, 40)
    one, two = group.reader("one"), group.reader("two")
    one.checkpoint()
    two.checkpoint()
    stream.scale(1)
    fill(stream, 40, first=40)
    first = numbers(one.read())
    one.checkpoint()
    assert numbers(one.read()) == [], "the other one is not at its end yet"
    second = numbers(two.read())
    two.checkpoint()
    assert sorted(first + second) == list(range(40))
    assert numbers(one.read() + two.read()) == list(range(40, 80))


def test_an_end_without_events_needs_no_checkpoint(stream, group):
    reader = group.reader("r")
    assert reader.read() == []
    for count in (3, 1, 2):
        stream.scale(count)
    fill(stream, 10)
    assert sorted(numbers(reader.read())) == list(range(10))


def test_an_end_that_comes_later_needs_no_checkpoint(stream, group):
    fill(stream, 10)
    reader = group.reader("r")
    reader.read()
    reader.checkpoint()
    stream.scale(1)
    fill(stream, 10, first=10)
    assert sorted(numbers(reader.read())) == list(range(10, 20))


def test_two_readers_that_only_confirm_events_come_to_the_successors(stream, group):
    """Each is at the end of one of two segments that were merged."""
    one, two = group.reader("one"), group.reader("two")
    one.checkpoint()
    two.checkpoint()
    stream.scale(1)
    fill(stream, 10)
    found = []
    for _ in range(3):
        found += numbers(one.read()) + numbers(two.read())
    assert sorted(found) == list(range(10))


def test_a_reader_that_does_not_know_the_newest_segments_confirms_what_it_has(stream, group):
    """Another reader of its group is in segments created since."""
    fill(stream, 20)
    one, two = group.reader("one"), group.reader("two")
    one.checkpoint()
    two.checkpoint()
    assert one.read(1)
    stream.scale(4)
    fill(stream, 20, first=20)
    assert two.read()
    two.checkpoint()
    assert set(two.segments) - {"0", "1"}
    one.checkpoint()
    one.position()
    one.current_time_window()
    rest = drained(one, two)
    assert len(rest) == len(set(rest))


def test_scaling_again_and_again_loses_nothing(stream, group):
    one, two = group.reader("one"), group.reader("two")
    found = []
    for n, count in enumerate([3, 1, 4, 2, 5, 1]):
        fill(stream, 20, first=20 * n)
        stream.scale(count)
        found += numbers(one.read(9))
        one.checkpoint()
    found += drained(one, two)
    assert sorted(found) == list(range(120))
    for key in range(10):
        mine = [number for number in found if number % 10 == key]
        assert mine == sorted(mine)
    assert group.position().ended == frozenset()
    assert len(group.position().position) == 1


# Crashes and leases


def test_the_segments_of_one_that_is_silent_go_to_the_others(stream, group, clock):
    fill(stream, 40)
    lost = group.reader("lost")
    kept = numbers(lost.read(10))
    lost.checkpoint()
    lost.read(10)
    clock.pass_by(11)
    other = group.reader("other")
    assert sorted(kept + drained(other)) == list(range(40))
    with pytest.raises(StreamError, match="has expired"):
        lost.checkpoint()
    assert drained(lost, other) == []
    assert len(lost.segments) == 1, "it has its share again"


def test_one_that_was_given_up_and_has_nothing_to_confirm_just_goes_on(stream, group, clock):
    idle = group.reader("idle")
    clock.pass_by(11)
    other = group.reader("other")
    fill(stream, 10)
    assert sorted(drained(other, idle)) == list(range(10))


def test_one_that_was_given_up_is_told_before_it_reads_what_its_group_has_passed(
    stream, group, clock
):
    fill(stream, 40)
    lost = group.reader("lost")
    lost.read(3)
    clock.pass_by(11)
    other = group.reader("other")
    drained(other)
    with pytest.raises(StreamError, match="has expired"):
        lost.read()
    assert drained(lost, other) == []


def test_one_that_was_given_up_and_reads_what_was_truncated_is_told_that_it_was_given_up(
    stream, group, clock
):
    fill(stream, 40)
    lost = group.reader("lost")
    lost.read(3)
    clock.pass_by(11)
    drained(group.reader("other"))
    stream.truncate(group.position())
    with pytest.raises(StreamError, match="has expired"):
        lost.read()
    fill(stream, 1, first=40)
    clock.pass_by(11)
    assert drained(lost) == [40]


def test_one_that_was_given_up_still_knows_where_its_group_is(stream, group, clock):
    fill(stream, 40)
    lost = group.reader("lost")
    lost.read(10)
    clock.pass_by(11)
    other = group.reader("other")
    drained(other)
    lost.current_time_window()
    assert lost.position() == group.position()


def test_a_reader_that_was_silent_for_long_keeps_what_nobody_took(stream, group, clock):
    """It holds more than its share and has no checkpoint when its lease expires.

    Its next checkpoint confirms everything that it has read.
    """
    fill(stream, 40)
    one = group.reader("one")
    read = numbers(one.read())
    clock.pass_by(5)
    group.reader("two")
    clock.pass_by(6)
    one.read()
    one.checkpoint()
    three = group.reader("three")
    assert sorted(read) == list(range(40))
    assert drained(one, three) == []


def test_a_reader_that_only_reads_keeps_its_lease(stream, group, clock):
    fill(stream, 30)
    one = group.reader("one")
    read = []
    for _ in range(10):
        read += numbers(one.read(3))
        clock.pass_by(4)
    two = group.reader("two")
    assert two.segments == []
    one.checkpoint()
    assert sorted(read + drained(one, two)) == list(range(30))


def test_of_two_with_the_same_name_one_confirms(stream, group):
    fill(stream, 20)
    old = group.reader("r")
    old.read()
    new = group.reader("r")
    new.read()
    new.checkpoint()
    with pytest.raises(StreamError, match="has expired"):
        old.checkpoint()
    assert drained(old) == []


def test_a_checkpoint_whose_answer_was_lost_counts(stream, group, local):
    def lost():
        raise Conflict("another has it")

    fill(stream, 20)
    reader = group.reader("r")
    reader.read()
    local.after["swap"] = [lost]
    reader.checkpoint()
    assert drained(group.reader("r")) == []


def test_a_reader_that_leaves_gives_back_what_it_has_not_confirmed(stream, group):
    fill(stream, 20)
    with group.reader("one") as one:
        one.read()
    assert sorted(drained(group.reader("two"))) == list(range(20))
    assert group.state().members.keys() == {"two"}


# The group


def test_a_reset_takes_all_readers_elsewhere(stream, group):
    fill(stream, 20)
    reader = group.reader("r")
    assert len(drained(reader)) == 20
    group.reset("earliest")
    assert len(drained(reader)) == 20
    group.reset("earliest")
    reader.read(5)
    checkpoint = group.position()
    group.reset("latest")
    with pytest.raises(StreamError, match="was reset"):
        reader.checkpoint()
    assert drained(reader) == []
    group.reset(checkpoint)
    assert len(drained(reader)) == 20


def test_a_group_that_was_overtaken_by_a_truncation_is_told_how_to_go_on(stream, group):
    fill(stream, 20)
    reader = group.reader("r")
    stream.truncate(stream.tail())
    with pytest.raises(StreamError, match=r'stream.group\("g"\).reset\("earliest"\)'):
        reader.read()
    group.reset("earliest")
    fill(stream, 5, first=20)
    assert sorted(drained(reader)) == list(range(20, 25))


def test_a_stream_is_truncated_at_what_a_group_has_confirmed_anywhere(stream, group):
    """Also within a segment whose successor is partly read."""
    fill(stream, 20)
    stream.scale(seal=["0", "1"], ranges=[(0, 0.25), (0.25, 1)])
    fill(stream, 20, first=20)
    one, two = group.reader("one"), group.reader("two")
    one.checkpoint()
    two.checkpoint()
    found = numbers(one.read())
    one.checkpoint()
    found += numbers(one.read())
    one.checkpoint()
    assert group.position().ended
    stream.truncate(group.position())
    later = stream.group("later")
    assert sorted(found + drained(two, one)) == list(range(40))
    again = drained(later.reader("r"))
    assert set(range(40)) - set(found) <= set(again)


def test_a_group_that_is_deleted_is_gone(stream, group):
    reader = group.reader("r")
    fill(stream, 1)
    group.delete()
    group.delete()
    with pytest.raises(StreamError, match="no longer has a reader group `g`"):
        reader.checkpoint()
    assert stream.group("g").state().members == {}


@pytest.mark.parametrize("name", ["", "a b", None])
def test_bad_names_are_refused(stream, group, name):
    with pytest.raises(SpecError, match="the name of a group"):
        stream.group(name)
    with pytest.raises(SpecError, match="the name of a reader"):
        group.reader(name)
    with pytest.raises(SpecError, match="`lease` must be greater than 0"):
        stream.group("h", lease="0 s")


def test_the_tail_of_a_stream_that_is_scaled_meanwhile_is_a_cut(stream, local):
    local.before["bounds"] = [lambda: stream.scale(3)]
    assert stream.tail() == {"0": 0, "1": 0}


# Time


@pytest.fixture
def timed(stream, streams):
    """Ten events before each of the watermarks 10, 20 and 30, and ten after the last.

    The upper bound is 5 more each.
    """
    controller = streams.controller()
    one, two = stream.writer("one", linger=None), stream.writer("two", linger=None)
    for n in range(40):
        one.write(str(n), f"k{n % 10}")
        if n % 10 == 9 and n < 39:
            one.note_time(n + 1)
            two.note_time(n + 6)
            one.flush()
            two.flush()
            controller.round()
    one.flush()
    return stream


def test_a_reader_knows_between_which_watermarks_its_group_is(timed):
    reader = timed.group("g").reader("r")
    cuts = [mark.cut for mark in timed.watermarks()]
    assert reader.current_time_window() == TimeWindow(None, 15)
    seen = []
    while reader.read(1):
        at = reader.position().position
        passed = [n for n, cut in enumerate(cuts) if all(at[name] >= cut[name] for name in at)]
        touched = [
            n
            for n, cut in enumerate(cuts)
            if all(at[name] <= cut[name] for name in at) and n not in passed
        ]
        lower = 10 * len(passed) or None
        window = reader.current_time_window()
        assert window.lower == lower
        if touched:
            assert window.upper == 10 * touched[0] + 15
        else:
            assert window.upper in {None, 35}
        seen.append(window)
    assert seen[-1] == TimeWindow(30, None)
    assert TimeWindow(10, 25) in seen


def test_exactly_at_a_cut_and_between_two(timed):
    first, second, third = (mark.cut for mark in timed.watermarks())
    between = {name: (first[name] + second[name] + 1) // 2 for name in first}
    beyond = {name: at + 1 for name, at in third.items()}
    expected = [
        (first, 10, 25),
        (between, 10, 25),
        (second, 20, 35),
        (third, 30, None),
        (beyond, 30, None),
    ]
    for n, (cut, lower, upper) in enumerate(expected):
        assert timed.group(f"g{n}", start=cut).reader("r").current_time_window() == TimeWindow(
            lower, upper
        )


def test_a_group_is_where_all_its_readers_are(timed):
    group = timed.group("g")
    one, two = group.reader("one"), group.reader("two")
    one.checkpoint()
    two.checkpoint()
    while one.read():
        one.checkpoint()
    one.checkpoint()
    assert one.current_time_window().lower is None, "the other one has read nothing"
    two.read()
    assert one.current_time_window().lower is None, "and has confirmed nothing"
    two.checkpoint()
    assert one.current_time_window() == two.current_time_window() == TimeWindow(30, None)


def test_who_goes_back_is_back_in_time(timed):
    group = timed.group("g")
    reader = group.reader("r")
    drained(reader)
    assert reader.current_time_window() == TimeWindow(30, None)
    group.reset(timed.watermarks()[0].cut)
    assert reader.current_time_window() == TimeWindow(10, 25)
    group.reset("earliest")
    assert reader.current_time_window() == TimeWindow(None, 15)


def test_without_watermarks_there_is_no_time(stream, group):
    fill(stream, 5)
    reader = group.reader("r")
    assert reader.current_time_window() is None
    reader.read()
    assert reader.current_time_window() is None


def test_time_does_not_go_back_when_all_writers_are_gone(streams, stream, group, clock):
    controller = streams.controller()
    with stream.writer("w", linger=None) as writer:
        writer.write("a", "k")
        writer.note_time(10)
        writer.flush()
        controller.round()
    clock.pass_by(3600)
    controller.round()
    assert stream.marks().by_writer == {}
    reader = group.reader("r")
    assert reader.current_time_window() == TimeWindow(None, 10)
    fill(stream, 5)
    while reader.read():
        pass
    assert reader.current_time_window() == TimeWindow(10, None), "the last promise stays"


def test_a_watermark_in_segments_that_come_while_a_reader_looks(stream, streams, group, local):
    controller = streams.controller()
    reader = group.reader("r")
    with stream.writer("w", linger=None) as w:
        count = 0

        def scale():
            nonlocal count
            count += 1
            stream.scale(2 + count % 2)
            for n in range(10):
                w.write("e", f"k{n}")
            w.note_time(count)
            w.flush()
            controller.round()

        for place in range(5):
            local.before["cells"] = [*[lambda: None] * place, scale]
            reader.current_time_window()
            local.before.clear()
        assert count >= 3
