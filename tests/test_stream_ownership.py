"""Controllers share the streams evenly, and share them anew when one joins, leaves or is killed."""

from __future__ import annotations

import signal
from collections import Counter
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.examples import examples
from support.stream_commands import started, until
from support.stream_worlds import SECOND, HandClock
from tidegate.errors import SpecError
from tidegate.kernel.streams.ownership import assign_owners
from tidegate.streams import Streams, open
from tidegate.streams.sqlite import SqliteStore
from tidegate.streams.stream import machine_clock

LEASE = 5

names = st.sampled_from("abcdefgh")
owners = st.dictionaries(names, st.sampled_from("stuvw") | st.none())
members = st.sets(st.sampled_from("stuvw"), min_size=1)


@given(owners, members)
def test_shares_differ_by_at_most_one_and_as_few_streams_move_as_possible(owners, members):
    assigned = assign_owners(owners, dict.fromkeys(members))
    assert assigned.keys() == owners.keys()
    loads = Counter(dict.fromkeys(members, 0)) + Counter(assigned.values())
    assert set(assigned.values()) <= members
    assert max(loads.values(), default=0) - min(loads[one] for one in members) <= 1
    moved = sum(owners[s] in members and owners[s] != assigned[s] for s in owners)
    held = sorted((sum(o == one for o in owners.values()) for one in members), reverse=True)
    whole, rest = divmod(len(owners), len(members))
    kept = sum(min(have, whole + (n < rest)) for n, have in enumerate(held))
    assert moved == sum(held) - kept


@given(owners, st.dictionaries(st.sampled_from("stuv"), st.none() | st.frozensets(names)))
def test_a_controller_gets_only_streams_that_it_accepts(owners, members):
    assigned = assign_owners(owners, members)
    for stream in owners:
        able = {one for one, some in members.items() if some is None or stream in some}
        assert (assigned[stream] in able) if able else (stream not in assigned)
    assert assign_owners(assigned, members) == assigned, "nothing moves twice"


def six(streams):
    for n in range(6):
        streams.create(f"s{n}", 1, initial_delay="0 s")


def note(streams, time):
    for name in streams.names():
        with streams.stream(name).writer(f"w{time}", linger=None) as writer:
            writer.note_time(time)
            writer.flush()


def shares(*controllers):
    """The streams of each controller after two rounds: one to release, one to acquire."""
    for _ in range(2):
        for controller in controllers:
            controller.round()
    owned = [name for controller in controllers for name in controller.owned]
    assert len(owned) == len(set(owned)), "a stream has one owner"
    return [len(controller.owned) for controller in controllers]


def test_controllers_share_the_streams_as_they_join_and_leave(streams, clock):
    six(streams)
    a, b, c = (streams.controller(name=name, lease=f"{LEASE} s") for name in "abc")
    assert shares(a) == [6]
    before = a.owned
    assert shares(a, b) == [3, 3]
    assert set(a.owned) < set(before), "an owner keeps what it may keep"
    assert shares(a, b, c) == [2, 2, 2]
    note(streams, 10)
    found = [controller.round() for controller in (a, b, c)]
    assert [len(marks) for marks in found] == [2, 2, 2]
    b.stop()
    assert shares(a, c) == [3, 3], "at once, without waiting for a lease"
    a.stop()
    c.stop()
    assert streams.store.cells("", "controller/") == {}
    assert all(streams.store.cell(name, "owner") is None for name in streams.names())


def test_a_controller_that_died_is_replaced_after_its_lease(streams, clock):
    six(streams)
    a, b, c = (streams.controller(name=name, lease=f"{LEASE} s") for name in "abc")
    assert shares(a, b, c) == [2, 2, 2]
    clock.pass_by(LEASE - 1)
    assert shares(a, b) == [2, 2], "it may be slow, and it has its lease"
    clock.pass_by(1)
    assert shares(a, b) == [3, 3]
    note(streams, 10)
    assert c.round() == {}, "what comes back owns nothing that others own"
    assert shares(a, b, c) == [2, 2, 2]
    clock.pass_by(2 * LEASE)
    a.round()
    assert list(streams.store.cells("", "controller/")) == ["controller/a"]


def test_a_stream_that_its_assignee_does_not_take_is_taken_by_another(streams, clock):
    a, b = (streams.controller(name=name, lease=f"{LEASE} s") for name in "ab")
    a.round()
    b.round()
    streams.create("s", 1, initial_delay="0 s")
    b.round()
    assert b.owned == [], "it is assigned to a, which is live"
    clock.pass_by(LEASE / 2)
    b.round()
    assert b.owned == ["s"]


def test_shares_follow_the_streams_that_controllers_accept(streams):
    six(streams)
    some = streams.controller(name="some", streams=["s0", "s5"])
    every = streams.controller(name="every")
    assert shares(some, every) == [2, 4]
    assert some.owned == ["s0", "s5"]


def test_names_are_checked(streams):
    with pytest.raises(SpecError, match="name of a controller"):
        streams.controller(name="a/b")


steps = st.lists(
    st.tuples(st.sampled_from(["round"] * 6 + ["start", "kill", "stop"]), st.integers(0, 3)),
    min_size=5,
    max_size=40,
)


@given(steps)
@examples(12)
def test_no_stream_has_two_owners_and_none_is_without_one_for_a_lease(tmp_path_factory, steps):
    """Controllers start, stop and die in any order; the live ones run a round each second."""
    clock = HandClock()
    path = tmp_path_factory.mktemp("owners") / "s.db"
    with SqliteStore(path, synchronous="normal") as store:
        streams = Streams(store, clock)
        six(streams)
        number = iter(range(1000))
        live = []
        since = dict.fromkeys(streams.names(), clock.now)

        def all_rounds():
            clock.pass_by(1)
            for controller in live:
                controller.round()
            for name in since:
                cell = store.cell(name, "owner")
                if not live or (cell is not None and cell.document["until"] > clock.now):
                    since[name] = clock.now
                assert clock.now - since[name] <= LEASE * SECOND
            owned = [
                name
                for controller in live
                for name in controller.owned
                if store.cell(name, "owner").document["controller"] == controller.name
            ]
            assert len(owned) == len(set(owned))

        for step, which in [*steps, ("start", 0), *[("round", 0)] * 3 * LEASE]:
            if step == "start":
                live.append(streams.controller(name=f"c{next(number)}", lease=f"{LEASE} s"))
            elif step != "round" and live:
                gone = live.pop(which % len(live))
                if step == "stop":
                    gone.stop()
            all_rounds()
        counts = [len(controller.owned) for controller in live]
        assert sum(counts) == 6
        assert max(counts) - min(counts) <= 1


@pytest.mark.slow
def test_killed_processes_are_replaced_and_time_goes_on(store_url):
    """Three processes, one of them killed with SIGKILL, one stopped, one started."""
    with open(store_url) as opened, ExitStack() as processes:
        six(opened)

        def control():
            words = ("control", store_url, "--period", "50 ms", "--lease", "1 s", "--json")
            return processes.enter_context(started(*words))

        def spread():
            now = machine_clock()
            cells = [opened.store.cell(name, "owner") for name in opened.names()]
            live = [c.document for c in cells if c is not None and c.document["until"] > now]
            return sorted(Counter(one["controller"] for one in live).values())

        a, b = control(), control()
        until(lambda: spread() == [3, 3], a)
        c = control()
        until(lambda: spread() == [2, 2, 2], a)
        b.kill()
        b.wait(60)
        until(lambda: spread() == [3, 3], a)
        note(opened, 10)
        until(lambda: all(opened.stream(name).watermarks() for name in opened.names()), a)
        c.send_signal(signal.SIGTERM)
        until(lambda: spread() == [6], a)
        note(opened, 20)
        until(lambda: all(opened.stream(n).watermarks()[-1].time == 20 for n in opened.names()), a)
