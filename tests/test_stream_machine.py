"""Streams as a whole against a model, with actions in any order and crashes.

The actors are writers, transactions, scaling, controllers and readers.
"""

from __future__ import annotations

import itertools
import tempfile
import uuid
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from support.examples import examples
from support.stream_worlds import HandClock, Meddled
from tidegate.errors import InputError, StateError, StreamError
from tidegate.kernel.streams.segments import PASSED
from tidegate.streams import Streams, TimeWindow
from tidegate.streams.sqlite import SqliteStore
from tidegate.streams.store import Store, open_store

KEYS = ["a", "b", "c", "d", "e", "f"]
LEASE, TIMEOUT, PATIENCE = 10, 20, 15
"""Seconds: lease of a reader, timeout of a transaction, timeout of a silent writer."""
BATCH, PIECE = 4, 2
MOST_SEGMENTS = 30


@dataclass
class Written:
    """A written event, and its place among those of its writer and key once it is in the stream."""

    writer: str
    life: int
    key: str
    time: int
    place: int | None = None


@dataclass
class Hand:
    """The model of a writer; it writes nothing older than what it has noted."""

    name: str
    object: Any = None
    noted: int = 0
    pending: int = 0
    """The last noted time; `noted` is the part that is in the stream."""
    life: int = 0
    since: int = 0
    """The first life covered by its marks: a writer that was removed and resumed is new."""
    waiting: list[int] = field(default_factory=list)
    transactions: list[tuple[Any, list[int]]] = field(default_factory=list)


@dataclass
class Eye:
    """The model of a reader."""

    object: Any
    given: list[int] = field(default_factory=list)


class StreamMachine(RuleBasedStateMachine):
    """Nothing lost or duplicated, order kept, time monotonic, and time windows right."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = HandClock()
        self.store = Meddled(self.opened())
        self.streams = Streams(self.store, self.clock)
        self.numbers = itertools.count()
        self.events: dict[int, Written] = {}
        self.places: dict[tuple[str, str], int] = defaultdict(int)
        self.hands = {name: Hand(name) for name in ("p", "q", "t", "u")}
        self.controllers = [self.streams.controller(name=f"c{n}") for n in range(2)]
        self.lives = itertools.count(2)
        self.marks: list[Any] = []
        self.took_part: dict[int, dict[str, int]] = {}
        self.eyes: dict[tuple[str, str], Eye] = {}
        self.confirmed: dict[str, list[int]] = {"g": [], "h": []}
        self.seen: dict[tuple[str, str, str], int] = defaultdict(lambda: -1)

    def opened(self) -> Store:
        return SqliteStore(Path(self.folder.name) / "streams.db", synchronous="normal")

    @initialize(segments=st.integers(1, 3), delay=st.sampled_from(["0 s", "5 s"]))
    def create(self, segments: int, delay: str) -> None:
        self.stream = self.streams.create(
            "s", segments, initial_delay=delay, timestamp_aggregation_timeout=f"{PATIENCE} s"
        )
        for name in self.confirmed:
            self.group(name)

    def group(self, name: str) -> Any:
        return self.stream.group(name, lease=f"{LEASE} s")

    def teardown(self) -> None:
        try:
            if hasattr(self, "stream"):
                self.drain()
        finally:
            self.store.close()
            self.folder.cleanup()

    # Writers

    def begun(self, name: str) -> Hand:
        """A live writer."""
        hand = self.hands[name]
        if hand.object is None:
            hand.life += 1
            if name in "pq":
                if self.store.cell("s", f"mark/{name}") is None:
                    hand.since = hand.life
                hand.object = self.stream.writer(name, linger=None, batch_events=BATCH)
                hand.object._piece = PIECE
                hand.object._buffer = hand.object._new_buffer()
            else:
                hand.object = self.stream.transactional_writer(name, timeout=f"{TIMEOUT} s")
        return hand

    def made(self, hand: Hand, key: str, ahead: int) -> tuple[int, dict[str, int]]:
        number = next(self.numbers)
        self.events[number] = Written(
            hand.name, hand.life, key, max(hand.noted, hand.pending) + ahead
        )
        return number, {"n": number}

    def stored(self, numbers: list[int]) -> None:
        """These events are in the stream now, in this order."""
        for number in numbers:
            event = self.events[number]
            event.place = self.places[event.writer, event.key]
            self.places[event.writer, event.key] += 1

    def last_time(self) -> int:
        return self.marks[-1].time if self.marks else 0

    def flushed(self, hand: Hand) -> None:
        self.stored(hand.waiting)
        hand.waiting, hand.noted = [], hand.pending

    @rule(
        name=st.sampled_from("pq"),
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=6),
        ahead=st.integers(0, 30),
    )
    def write(self, name: str, keys: list[str], ahead: int) -> None:
        hand = self.begun(name)
        for key in keys:
            number, value = self.made(hand, key, ahead)
            try:
                hand.object.write(value, key)
            except StreamError:
                del self.events[number]
                continue
            hand.waiting.append(number)
            if not hand.object._in_flight + len(hand.object._buffer):
                self.flushed(hand)

    @rule(name=st.sampled_from("pq"), ahead=st.integers(0, 20))
    def note(self, name: str, ahead: int) -> None:
        hand = self.begun(name)
        with suppress(StreamError):
            hand.object.note_time(hand.pending + ahead)
            hand.pending += ahead

    @rule(name=st.sampled_from("pq"), failing=st.booleans())
    def flush(self, name: str, failing: bool) -> None:
        hand = self.begun(name)
        if failing:
            self.store.fail("append")
        try:
            hand.object.flush()
            self.flushed(hand)
        except StateError:
            hand.object.flush()
            self.flushed(hand)
        self.store.before.clear()

    @rule(
        name=st.sampled_from("pq"),
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=6),
        ahead=st.integers(1, 20),
        which=st.integers(0, 1),
    )
    def work(self, name: str, keys: list[str], ahead: int, which: int) -> None:
        """Routine work of a writer and a controller."""
        self.write(name, keys, ahead)
        self.note(name, max(0, self.last_time() - self.hands[name].pending) + ahead)
        self.flush(name, failing=False)
        self.round(which, crash=False)

    @rule(name=st.sampled_from("pqtu"), crash=st.booleans())
    def end(self, name: str, crash: bool) -> None:
        hand = self.hands[name]
        if hand.object is not None and not crash:
            hand.object.close()
            self.flushed(hand)
        hand.object, hand.waiting, hand.transactions = None, [], []
        hand.pending = max(hand.pending, hand.noted)

    @rule(name=st.sampled_from("tu"))
    def begin(self, name: str) -> None:
        hand = self.begun(name)
        if len(hand.transactions) < 3:
            hand.transactions.append((hand.object.begin(), []))

    @precondition(lambda self: any(hand.transactions for hand in self.hands.values()))
    @rule(data=st.data())
    def use_transaction(self, data: st.DataObject) -> None:
        hand = data.draw(
            st.sampled_from([hand for hand in self.hands.values() if hand.transactions])
        )
        chosen = data.draw(st.sampled_from(hand.transactions))
        transaction, numbers = chosen
        what = data.draw(
            st.sampled_from(["write", "write", "write", "ping", "commit", "commit", "abort"])
        )
        if transaction.status == "timed out":
            with pytest.raises(StreamError, match="timed out"):
                transaction.commit()
            hand.transactions.remove(chosen)
        elif what == "write":
            number, value = self.made(
                hand, data.draw(st.sampled_from(KEYS)), data.draw(st.integers(0, 30))
            )
            transaction.write(value, self.events[number].key)
            numbers.append(number)
        elif what == "ping":
            transaction.ping()
        else:
            hand.transactions.remove(chosen)
            if what == "abort":
                transaction.abort()
            else:
                self.commit(hand, transaction, numbers, data)

    def commit(self, hand: Hand, transaction: Any, numbers: list[int], data: st.DataObject) -> None:
        """Commit with a valid time, with one that goes back, or with none."""
        open_times = [
            self.events[number].time for _, others in hand.transactions for number in others
        ]
        latest = min([*open_times, max(hand.noted, self.last_time()) + 20])
        time = data.draw(
            st.one_of(
                st.none(),
                st.just(latest),
                st.integers(hand.noted, latest),
                st.integers(0, hand.noted),
            )
        )
        done = transaction.commit(time)
        self.stored(numbers)
        if time is not None and time >= hand.noted:
            assert done.noted
            hand.noted = hand.pending = time
        assert hand.object.written == sum(
            event.writer == hand.name and event.place is not None for event in self.events.values()
        )

    # Scaling

    def scaled(self, death: str | None, after: int, **how: Any) -> None:
        if death is not None:
            self.store.fail(death, after=after)
        with suppress(StateError):
            self.stream.scale(**how)
        self.store.before.clear()

    deaths = st.sampled_from([None, None, "open_segments", "seal"])

    @precondition(lambda self: len(self.store.inner.bounds("s")) < MOST_SEGMENTS)
    @rule(count=st.integers(1, 4), death=deaths, after=st.integers(0, 1))
    def scale(self, count: int, death: str | None, after: int) -> None:
        self.scaled(death, after, segments=count)

    @precondition(lambda self: len(self.store.inner.bounds("s")) < MOST_SEGMENTS)
    @rule(data=st.data(), death=deaths, after=st.integers(0, 1))
    def split_or_merge(self, data: st.DataObject, death: str | None, after: int) -> None:
        newest = self.stream.description().segments.newest()
        first = data.draw(st.integers(0, len(newest) - 1))
        last = data.draw(st.integers(first, min(first + 2, len(newest) - 1)))
        gone = newest[first : last + 1]
        low, high = gone[0].low, gone[-1].high
        inner = data.draw(st.lists(st.sampled_from([1 / 4, 1 / 2, 3 / 4]), max_size=2, unique=True))
        edges = [low, *(low + share * (high - low) for share in sorted(inner)), high]
        self.scaled(
            death, after, seal=[one.name for one in gone], ranges=list(itertools.pairwise(edges))
        )

    # Controllers and the clock

    @rule(seconds=st.sampled_from([0.1, 1, 1, 3, 6, 11, 16]))
    def time_passes(self, seconds: float) -> None:
        self.clock.pass_by(seconds)

    @rule(which=st.integers(0, 1), crash=st.booleans())
    def round(self, which: int, crash: bool) -> None:
        before = self.stream.marks()
        found = self.controllers[which].round()
        if "s" in found:
            mark = found["s"]
            assert mark.time <= mark.upper
            if self.marks:
                assert mark.time > self.marks[-1].time
                assert (
                    self.stream.description().segments.compare(mark.cut, self.marks[-1].cut)
                    == PASSED
                )
            self.covered(mark.cut)
            self.marks.append(mark)
            after = self.stream.marks()
            self.took_part[mark.time] = {
                name: self.hands[name].since for name in before.by_writer if name in after
            }
        if crash:
            self.controllers[which] = self.streams.controller(name=f"c{next(self.lives)}")

    def covered(self, cut: Any) -> None:
        segments = self.stream.description().segments
        shares = sorted((segments[name].low, segments[name].high) for name in cut)
        assert shares[0][0] == 0
        assert shares[-1][1] == 1
        assert all(one[1] == other[0] for one, other in itertools.pairwise(shares))

    # Readers

    readers = st.tuples(st.sampled_from("gh"), st.sampled_from(["r1", "r2", "r3"]))

    def eye(self, which: tuple[str, str]) -> Eye:
        if which not in self.eyes:
            self.eyes[which] = Eye(self.group(which[0]).reader(which[1]))
        return self.eyes[which]

    @rule(which=readers, most=st.integers(1, 9), confirm=st.booleans())
    def read(self, which: tuple[str, str], most: int, confirm: bool) -> None:
        eye = self.eye(which)
        window = eye.object.current_time_window() or TimeWindow()
        if window.lower is not None and window.upper is not None:
            assert window.lower <= window.upper
        try:
            events = eye.object.read(most)
        except StreamError as error:
            assert "has expired" in str(error)  # noqa: PT017 - the error is optional
            eye.given, events = [], []
        for found in events:
            number = found.json["n"]
            event = self.events[number]
            assert event.place is not None, "seen, and not committed"
            assert event.key == found.key
            if (
                window.lower is not None
                and self.took_part[window.lower].get(event.writer, event.life + 1) <= event.life
            ):
                assert event.time >= window.lower, f"older than {window.lower}: {event}"
            eye.given.append(number)
        if confirm:
            self.checkpoint(which)

    @rule(which=readers)
    def checkpoint(self, which: tuple[str, str]) -> None:
        eye = self.eye(which)
        try:
            eye.object.checkpoint()
        except StreamError as error:
            assert "has expired" in str(error)  # noqa: PT017 - the error is optional
        else:
            for number in eye.given:
                event = self.events[number]
                last = (which[0], event.writer, event.key)
                assert event.place == self.seen[last] + 1, f"{event} after {self.seen[last]}"
                self.seen[last] += 1
            self.confirmed[which[0]] += eye.given
        eye.given = []

    @rule(which=readers, crash=st.booleans())
    def leave(self, which: tuple[str, str], crash: bool) -> None:
        eye = self.eyes.pop(which, None)
        if eye is not None and not crash:
            eye.object.close()

    @rule(name=st.sampled_from("gh"))
    def truncate(self, name: str) -> None:
        frontiers = {one: self.group(one).position() for one in self.confirmed}
        segments = self.stream.description().segments
        if all(
            segments.compare(other.position, frontiers[name].position) == PASSED
            for other in frontiers.values()
        ):
            self.stream.truncate(frontiers[name])
            kept = self.stream.watermarks()
            assert kept == self.marks[len(self.marks) - len(kept) :]
            assert bool(kept) == bool(self.marks)

    @invariant()
    def nothing_is_confirmed_twice(self) -> None:
        for numbers in self.confirmed.values():
            assert len(numbers) == len(set(numbers))

    def drain(self) -> None:
        """Read everything to the end."""
        self.store.before.clear()
        for name in self.confirmed:
            for which in [which for which in self.eyes if which[0] == name]:
                self.leave(which, crash=False)
            which, idle = (name, "last"), 0
            self.clock.pass_by(LEASE + 1)
            while idle < 2:
                self.read(which, 50, confirm=False)
                idle = 0 if self.eyes[which].given else idle + 1
                self.checkpoint(which)
            committed = {number for number, event in self.events.items() if event.place is not None}
            assert set(self.confirmed[name]) == committed
        self.nothing_is_confirmed_twice()
        with pytest.raises(InputError):
            self.stream.truncate({name: at + 1 for name, at in self.stream.tail().items()})


def patience(count: int, steps: int, **more: Any) -> settings:
    return examples(
        count,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        **more,
    )


TestShort = StreamMachine.TestCase
TestShort.settings = patience(6, 30)


@pytest.mark.slow
class TestLong(StreamMachine.TestCase):
    settings = patience(150, 60)


@pytest.mark.slow
@pytest.mark.kafka
def test_the_same_over_kafka(kafka):
    class OverKafka(StreamMachine):
        def opened(self) -> Store:
            return open_store(f"kafka://{kafka.bootstrap_servers}/m{uuid.uuid4().hex[:12]}-")

    # Failures are not shrunk, because every step takes long.
    run_state_machine_as_test(OverKafka, settings=patience(4, 30, phases=[Phase.generate]))
