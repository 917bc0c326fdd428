"""The controller: watermarks from writer marks, silent writers, and ownership by lease."""

from __future__ import annotations

import itertools
import threading

import pytest

from support.stream_worlds import values
from tidegate.errors import InputError, SpecError, StateError, StreamError
from tidegate.kernel.streams.segments import PASSED
from tidegate.kernel.streams.watermarks import StreamMark
from tidegate.streams import Streams
from tidegate.streams.store import Swap


@pytest.fixture
def controller(streams):
    return streams.controller()


def say(stream, name, time, *keys):
    """A writer writes events with these keys and notes a time; it stays alive."""
    writer = stream.writer(name, linger=None)
    for key in keys:
        writer.write("e", key)
    writer.note_time(time)
    writer.flush()
    return writer


def times(stream):
    return [mark.time for mark in stream.watermarks()]


def test_time_is_the_least_and_the_cut_is_behind_all(store, clock):
    streams = Streams(store, clock)
    stream = streams.create("s", 2, initial_delay="0 s")
    one = say(stream, "one", 10, *"abcdefgh")
    two = say(stream, "two", 20, *"ijklmnop")
    found = streams.controller().round()["s"]
    assert (found.time, found.upper) == (10, 20)
    segments = stream.description().segments
    for writer in (one, two):
        assert segments.compare(found.cut, writer.position()) == PASSED
    assert stream.watermarks() == [found]


def test_the_cut_is_the_least_behind_all_and_has_every_key(stream, controller):
    stream.scale(seal=["1"], ranges=[(0.5, 0.75), (0.75, 1)])
    one = stream.writer("one", linger=None)
    one.write("e", "user-1")
    one.note_time(5)
    one.flush()
    (segment,) = one.position()
    assert controller.round()["s"].cut == {"0": 0, "2": 0, "3": 0, segment: 1}


def test_time_and_cut_do_not_go_back(stream, controller):
    one = say(stream, "one", 10, *"abcdefgh")
    first = controller.round()["s"]
    assert controller.round() == {}, "nothing new"
    one.close()
    say(stream, "two", 5)
    assert controller.round() == {}, "a new one does not pull time back"
    say(stream, "two", 15)
    second = controller.round()["s"]
    assert (second.time, second.cut) == (15, first.cut)


def test_a_segment_is_replaced_by_its_successors(stream, controller):
    one = say(stream, "one", 10, *"abcdefgh")
    controller.round()
    stream.scale(3)
    one.write("e", "a")
    one.note_time(11)
    one.flush()
    found = controller.round()["s"].cut
    assert set(found) == {segment.name for segment in stream.description().segments.newest()}
    assert sum(found.values()) == 1


def test_one_that_is_behind_holds_time_until_it_was_seen_silent_and_then_comes_back(
    stream, controller, clock
):
    say(stream, "slow", 10)
    fast = say(stream, "fast", 20)
    assert controller.round()["s"].time == 10
    for time in (30, 40, 50):
        clock.pass_by(14)
        fast.note_time(time)
        fast.flush()
        assert controller.round() == {}
    clock.pass_by(2)
    assert controller.round()["s"].time == 50, "30 seconds after it was first seen behind"
    assert "slow" not in stream.marks()
    say(stream, "slow", 45)
    say(stream, "fast", 60)
    assert controller.round() == {}, "it is back, and behind again"
    say(stream, "slow", 55)
    assert controller.round()["s"].time == 55


def test_one_that_says_the_same_time_elsewhere_is_not_silent(stream, controller, clock):
    slow = say(stream, "slow", 10)
    fast = say(stream, "fast", 20)
    controller.round()
    for time in range(30, 80, 10):
        clock.pass_by(20)
        slow.write("e", "k")
        slow.note_time(10)
        slow.flush()
        fast.note_time(time)
        fast.flush()
        assert controller.round() == {}


def test_one_that_speaks_while_it_is_forgotten_stays(stream, local, controller, clock):
    say(stream, "slow", 10)
    fast = say(stream, "fast", 20)
    controller.round()
    fast.note_time(30)
    fast.flush()
    controller.round()
    clock.pass_by(31)
    spoken = []

    def speak():
        spoken.append(say(stream, "slow", 25))

    # The owner renews its membership and its lease first, and then removes the mark.
    local.before["swap"] = [lambda: None, lambda: None, speak]
    assert controller.round() == {}
    assert spoken
    assert stream.marks().get("slow").time == 25
    assert controller.round()["s"].time == 25


def test_one_that_has_shut_down_leaves_at_once(stream, controller):
    one = say(stream, "one", 10)
    say(stream, "two", 20)
    assert controller.round()["s"].time == 10
    one.close()
    assert controller.round()["s"].time == 20
    assert "one" not in stream.marks()


def test_a_stream_without_writers_is_left_alone_until_one_speaks(stream, controller, local):
    assert controller.round() == {}
    one = say(stream, "one", 10)
    one.close()
    assert controller.round()["s"].time == 10
    assert controller.round() == {}
    assert stream.marks().by_writer == {}
    assert controller.round() == {}
    say(stream, "one", 12)
    assert controller.round()["s"].time == 12


def test_a_new_stream_waits_for_its_writers(streams, controller, clock):
    stream = streams.create("late", 1, initial_delay="5 s")
    say(stream, "one", 10)
    assert controller.round() == {}
    clock.pass_by(4.9)
    assert controller.round() == {}
    clock.pass_by(0.1)
    assert controller.round()["late"].time == 10


def test_another_one_takes_over_when_the_owner_is_silent(store, clock):
    streams = Streams(store, clock)
    stream = streams.create("s", 2, initial_delay="0 s")
    first, second = (
        streams.controller(name="first", lease="5 s"),
        streams.controller(name="second", lease="5 s"),
    )
    one = say(stream, "one", 10)
    assert first.round()["s"].time == 10
    one.note_time(20)
    one.flush()
    clock.pass_by(4.9)
    assert second.round() == {}
    clock.pass_by(0.2)
    assert second.round()["s"].time == 20
    one.note_time(30)
    one.flush()
    assert first.round() == {}, "who comes back is the owner no more"
    assert second.round()["s"].time == 30
    assert times(stream) == [10, 20, 30]


def test_an_owner_that_works_stays_the_owner(stream, streams, clock):
    first, second = (
        streams.controller(name="first", lease="5 s"),
        streams.controller(name="second", lease="5 s"),
    )
    one = say(stream, "one", 1)
    for time in range(2, 12):
        clock.pass_by(2)
        one.note_time(time)
        one.flush()
        assert first.round()["s"].time == time
        assert second.round() == {}


def test_who_takes_over_sees_anew_who_is_silent(stream, streams, clock):
    first, second = (
        streams.controller(name="first", lease="5 s"),
        streams.controller(name="second", lease="5 s"),
    )
    say(stream, "slow", 10)
    fast = say(stream, "fast", 20)
    first.round()
    fast.note_time(30)
    fast.flush()
    first.round()
    clock.pass_by(29)
    assert second.round() == {}
    clock.pass_by(2)
    assert second.round() == {}
    clock.pass_by(28)
    assert second.round()["s"].time == 30


@pytest.mark.parametrize("how", ["overtaken", "only too late"])
def test_an_owner_that_was_slow_writes_nothing(stream, streams, local, clock, how):
    """The other controller takes over between computing and publishing."""
    slow, other = (
        streams.controller(name="slow", lease="5 s"),
        streams.controller(name="other", lease="5 s"),
    )
    one = say(stream, "one", 10)
    slow.round()
    one.note_time(20)
    one.flush()

    def meanwhile():
        clock.pass_by(6)
        if how == "overtaken":
            one.note_time(25)
            one.flush()
            assert other.round()["s"].time == 25

    # Members, description, owner (twice) and marks are read before the other change.
    local.before["cells"] = [*[lambda: None] * 5, meanwhile]
    assert slow.round() == {}
    assert times(stream) == ([10, 25] if how == "overtaken" else [10])
    assert other.round() == {} if how == "overtaken" else other.round()["s"].time == 20


def test_two_watermarks_never_have_the_same_number(stream, streams, local, clock):
    """Even if the clocks of two owners disagree."""
    fast_clock = Streams(local, lambda: clock.now + 60_000_000)
    slow, other = streams.controller(name="slow"), fast_clock.controller(name="other")
    one = say(stream, "one", 10)
    slow.round()
    one.note_time(20)
    one.flush()
    local.before["cells"] = [*[lambda: None] * 5, other.round]
    assert slow.round() == {}
    assert times(stream) == [10, 20]


def test_a_stale_mark_never_replaces_a_newer_one(stream, local):
    old, new = stream.writer("w", linger=None), stream.writer("w", linger=None)
    old.write("e", "k")
    old.note_time(5)

    def newer():
        new.note_time(9)
        new.flush()

    local.before["swap"] = [newer]
    old.flush()
    assert old.noted == stream.marks().get("w").time == 9


def test_watermarks_are_truncated_with_the_stream(stream, controller):
    one = stream.writer("one", linger=None)
    for time in range(1, 7):
        for key in "abcdefgh":
            one.write("e", key)
        one.note_time(time)
        one.flush()
        controller.round()
    marks = stream.watermarks()
    stream.truncate(marks[3].cut)
    assert stream.watermarks() == marks[3:], (
        "the newest that was passed tells the time at the begin"
    )
    assert len(values(stream)) == 16
    stream.truncate(marks[1].cut)
    assert stream.watermarks() == marks[3:], "the begin does not go back"
    stream.truncate(stream.tail())
    assert stream.watermarks() == marks[5:]
    one.note_time(9)
    one.flush()
    assert controller.round()["s"].time == 9


def test_a_cut_beyond_the_end_leaves_the_stream_as_it_was(stream):
    say(stream, "one", 5, "a", "b")
    with pytest.raises(InputError, match="ends at"):
        stream.truncate({"0": 999, "1": 0})
    stream.scale(1)
    with pytest.raises(InputError, match="ends at"):
        stream.truncate({"0": 999, "1": 0})
    for cut in (
        {"0": 0},
        {"0": 0, "1": -1},
        {"0": 0, "1": 1.5},
        {"0": 0, "1": 0, "2": 0},
        {"9": 0},
    ):
        with pytest.raises(SpecError):
            stream.truncate(cut)
    assert stream.description().head == {"0": 0, "1": 0}
    assert len(values(stream)) == 2


def test_a_cut_that_nobody_can_stand_at_drops_nothing_that_is_after_it(stream):
    """A watermark that covers every key with segments of the first and the last epoch.

    Two segments are merged and split elsewhere in between.
    """
    stream.scale(seal=["0", "1"], ranges=[(0, 0.25), (0.25, 1)])
    with stream.writer(linger=None) as w:
        for n in range(20):
            w.write(str(n), str(n))
        w.flush()
        stream.scale(1)
        for n in range(20, 40):
            w.write(str(n), str(n))
        w.flush()
        stream.scale(seal=["4"], ranges=[(0, 0.25), (0.25, 1)])
        for n in range(40, 60):
            w.write(str(n), str(n))
    cut = {"2": 1, "6": 0}
    reader = stream.group("g", start=cut).reader("r")
    found = []
    while events := reader.read():
        found += [int(event.value) for event in events]
        reader.checkpoint()
    assert set(range(20, 60)) <= set(found)
    stream.truncate(cut)
    assert sorted(int(value) for value in values(stream)) == sorted(found)


@pytest.mark.parametrize("where", ["open_segments", "seal", "swap"])
def test_a_scaling_that_its_process_did_not_live_to_finish_is_finished(
    stream, local, controller, where
):
    before = say(stream, "one", 10, "a", "b", "c")
    local.fail(where, after=where == "swap")
    with pytest.raises(StateError):
        stream.scale(3)
    local.before.clear()
    assert local.cell("s", "description").document["scaling"]
    controller.round()
    assert not local.cell("s", "description").document["scaling"]
    before.write("d", "a")
    before.flush()
    assert len(values(stream)) == 4
    assert len(stream.tail()) == 3


def test_a_stream_whose_process_did_not_live_to_open_it_is_opened(streams, local, controller):
    local.fail("open_segments")
    with pytest.raises(StateError):
        streams.create("half")
    assert controller.round() == {}
    with streams.stream("half").writer() as w:
        w.write("a")
    with pytest.raises(InputError, match="already"):
        streams.create("half")


def test_segments_that_come_while_the_controller_looks_are_known(stream, local, controller):
    one = say(stream, "one", 10, "a", "b")
    clock = itertools.count(20)

    def scale():
        stream.scale(3)
        one.write("e", "a")
        one.note_time(next(clock))
        one.flush()

    for place in range(7):
        local.before["cells"] = [*[lambda: None] * place, scale]
        controller.round()
        local.before.clear()
        stream.scale(2)
    controller.round()
    assert times(stream)[-1] == next(clock) - 1 >= 25


def test_one_stream_that_fails_does_not_keep_time_from_the_others(
    streams, stream, local, controller
):
    local.swap("bad", Swap("description", {"version": 99}, 0))
    say(stream, "one", 10)
    with pytest.raises(StateError, match="version 99"):
        controller.round()
    assert times(stream) == [10]


def test_a_failure_in_the_middle_of_a_round_does_not_lose_the_watermark(stream, local, controller):
    say(stream, "one", 10)
    local.fail("swap", after=1)
    with pytest.raises(StateError):
        controller.round()
    assert controller.round()["s"] == StreamMark(10, 10, {"0": 0, "1": 0})


def test_a_controller_looks_after_the_streams_that_it_was_told(streams, stream):
    other = streams.create("other", initial_delay="0 s")
    say(stream, "one", 10)
    say(other, "one", 10)
    assert streams.controller(streams=["other", "missing"]).round().keys() == {"other"}


def test_a_stream_that_is_deleted_and_made_again_begins_anew(streams, stream, controller):
    say(stream, "one", 10)
    assert controller.round()["s"].time == 10
    streams.delete("s")
    assert controller.round() == {}
    again = streams.create("s", 1, initial_delay="0 s")
    say(again, "one", 3)
    assert controller.round()["s"] == StreamMark(3, 3, {"0": 0})


def test_it_runs_in_the_background_and_gives_its_streams_free(stream, streams, local):
    say(stream, "one", 10)
    looked = threading.Event()
    controller = streams.controller(period="1 ms")
    with controller:
        with pytest.raises(StreamError, match="already running"):
            controller.start()
        local.before["cells"] = [*[lambda: None] * 20, looked.set]
        assert looked.wait(20)
    assert times(stream) == [10]
    assert local.cell("s", "owner") is None
    say(stream, "one", 20)
    with controller:
        local.before["cells"] = [lambda: 1 / 0]
        controller._thread.join(20)
        with pytest.raises(StreamError, match="background thread of the controller failed"):
            controller.stop()


def test_a_store_that_does_not_answer_is_asked_again(stream, streams, local, clock):
    say(stream, "one", 10)
    controller = streams.controller(period="1 ms", lease="2 ms")
    looked = threading.Event()
    local.fail("cells")
    local.before["cells"] += [*[lambda: None] * 20, looked.set]
    with controller:
        assert looked.wait(20)
    assert times(stream) == [10]


@pytest.mark.parametrize(
    "options", [{"period": "0 s"}, {"period": "5 s"}, {"lease": "1 s"}, {"clock": None}]
)
def test_bad_options_are_refused(streams, options):
    with pytest.raises(SpecError):
        streams.controller(**options)
