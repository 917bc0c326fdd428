"""The message store against a plain list of messages, for every layout, over both kinds of
stores.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.examples import examples
from tidegate.errors import CorruptStateError, InputError, SpecError, SpecMismatchError
from tidegate.instants import MAX, MIN
from tidegate.kernel.frame import Frame, to_arrow
from tidegate.kernel.storage.layout import Layout, choose_layout
from tidegate.kernel.storage.message_store import MessageStore
from tidegate.state.memory import MemoryStore

LAYOUTS = [
    Layout((*front, *rest))
    for front in ((), ("session_key",))
    for rest in (
        ("offset",),
        ("equal_fields", "offset"),
        ("timestamp", "offset"),
        ("equal_fields", "timestamp", "offset"),
        ("timestamp", "equal_fields", "offset"),
    )
]
TIME = Layout(("timestamp", "offset"))
KEYED = Layout(("session_key", "timestamp", "offset"))
every_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=str)
Message = dict[str, Any]


class SpillingStore(MemoryStore):
    """A memory store that asks its users not to keep copies, and says what was put and read."""

    spills = True

    def __init__(self) -> None:
        super().__init__()
        self.put: list[str] = []
        self.got: list[str] = []

    def put_table(self, name: str, table: pa.Table) -> None:
        self.put.append(name)
        super().put_table(name, table)

    def get_table(self, name: str) -> pa.Table:
        self.got.append(name)
        return super().get_table(name)


class Reference:
    """What the message store means, message by message."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.messages: list[Message] = []
        self.known: dict[int, int] = {}
        self.horizon = MIN

    def add(self, messages: list[Message]) -> list[bool]:
        return [self._add(message) for message in messages]

    def _add(self, message: Message) -> bool:
        at = message[self.layout.position]
        known = message["uid"] in self.known
        if at < self.horizon or known:
            return False
        self.known[message["uid"]] = at
        self.messages.append(message)
        return True

    def read(
        self,
        start: int,
        end: int,
        start_offset: int,
        end_offset: int,
        key_hashes: list[int] | None,
        equal_hashes: list[int] | None,
    ) -> list[Message]:
        def wanted(m: Message) -> bool:
            if self.layout.position == "offset":
                inside = start <= m["offset"] <= end
            else:
                inside = (start, start_offset) <= (m["time"], m["offset"]) <= (end, end_offset)
            return (
                inside
                and (key_hashes is None or m["key_hash"] in key_hashes)
                and (equal_hashes is None or m["equal_hash"] in equal_hashes)
            )

        return sorted(
            filter(wanted, self.messages),
            key=lambda m: [m[column] for column in self.layout.columns],
        )

    def expire(self, before: int) -> None:
        self.horizon = max(self.horizon, before)
        self.messages = [m for m in self.messages if m[self.layout.position] >= self.horizon]
        self.known = {uid: at for uid, at in self.known.items() if at >= self.horizon}

    def remove(self, uids: set[int]) -> int:
        before = len(self.messages)
        self.messages = [m for m in self.messages if m["uid"] not in uids]
        return before - len(self.messages)


def frame_of(messages: list[Message]) -> Frame:
    columns = {
        name: np.array([m[name] for m in messages], np.int64)
        for name in ("time", "offset", "weight", "uid")
    }
    hashes = {
        name: np.array([m[name] for m in messages], np.uint64)
        for name in ("key_hash", "equal_hash")
    }
    return Frame.of(
        {**columns, **hashes, "text": pa.array([m["text"] for m in messages], pa.string())},
        len(messages),
    )


def rows_of(frame: Frame) -> list[Message]:
    return (
        Frame.of({n: c for n, c in frame.columns.items() if n != "seq"}, len(frame))
        .to_table()
        .to_pylist()
    )


HASHES = st.sampled_from([0, 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1])
TIMES = st.one_of(st.integers(-20, 20), st.sampled_from([MIN, MIN + 1, MAX - 1, MAX]))
OFFSETS = st.one_of(st.integers(-3, 12), st.sampled_from([MIN, MAX]))
MESSAGE = st.fixed_dictionaries(
    {
        "time": TIMES,
        "offset": OFFSETS,
        "key_hash": HASHES,
        "equal_hash": HASHES,
        "weight": st.sampled_from([1, -1]),
        "uid": st.one_of(st.integers(-30, 60), st.integers(-(2**63), 2**63 - 1)),
        "text": st.one_of(st.none(), st.sampled_from(["", "a", "é"])),
    }
)
SOME_KEYS = st.one_of(st.none(), st.lists(HASHES, max_size=3))
STEP = st.one_of(
    st.tuples(st.just("add"), st.lists(MESSAGE, max_size=12)),
    st.tuples(st.just("read"), st.tuples(TIMES, TIMES, OFFSETS, OFFSETS, SOME_KEYS, SOME_KEYS)),
    st.tuples(st.just("expire"), st.integers(-20, 20)),
    st.tuples(st.just("remove_uids"), st.lists(st.integers(-30, 60), max_size=10)),
    st.tuples(st.just("remove_read"), st.tuples(TIMES, TIMES, st.integers(1, 3))),
    st.tuples(st.sampled_from(["flush", "reopen", "compact"]), st.none()),
)


def read(
    store: MessageStore,
    start: int,
    end: int,
    low: int,
    high: int,
    key_hashes: list[int] | None,
    equal_hashes: list[int] | None,
) -> Frame:
    keys = {
        "key_hashes": None if key_hashes is None else np.array(key_hashes, np.uint64),
        "equal_hashes": None if equal_hashes is None else np.array(equal_hashes, np.uint64),
    }
    bounds = {} if store.layout.position == "offset" else {"start_offset": low, "end_offset": high}
    return store.read(start, end, **bounds, **keys)


def remove_every(
    store: MessageStore, reference: Reference, start: int, end: int, step: int
) -> None:
    found = store.read(start, end)
    mask = np.arange(len(found)) % step == 0
    gone = {m["uid"] for m in itertools.compress(rows_of(found), mask)}
    assert store.remove(found, mask) == reference.remove(gone) == len(gone)


@every_layout
@pytest.mark.parametrize("spills", [False, True], ids=["keeps", "spills"])
@examples(60, deadline=None)
@given(steps=st.lists(STEP, max_size=25))
def test_differential_against_a_list(
    layout: Layout, spills: bool, steps: list[tuple[str, Any]]
) -> None:
    backing = SpillingStore() if spills else MemoryStore()
    store = MessageStore(backing, layout, "m", segment_rows=5)
    reference = Reference(layout)
    for verb, value in steps:
        if verb == "add":
            assert store.add(frame_of(value)).tolist() == reference.add(value)
        elif verb == "read":
            assert rows_of(read(store, *value)) == rows_of(frame_of(reference.read(*value)))
        elif verb == "expire":
            store.expire(value)
            reference.expire(value)
        elif verb == "remove_uids":
            assert store.remove(uids=np.array(value, np.int64)) == reference.remove(set(value))
        elif verb == "remove_read":
            remove_every(store, reference, *value)
        elif verb == "compact":
            store.compact()
            assert store.runs <= 1
            assert store.count == len(reference.messages)
        else:
            store.flush()
            if verb == "reopen":
                store = MessageStore.open(backing, layout, "m", segment_rows=5)
        everything = rows_of(store.read(MIN, MAX))
        assert everything == rows_of(frame_of(reference.read(MIN, MAX, MIN, MAX, None, None)))
        assert store.count == len(everything) or (
            store.count > len(everything) and not layout.expires_eagerly
        )


def messages(times: Any, **columns: Any) -> Frame:
    times = np.asarray(times, np.int64)
    n = len(times)
    base = {
        "time": times,
        "offset": np.arange(n),
        "key_hash": np.zeros(n, np.uint64),
        "equal_hash": np.zeros(n, np.uint64),
        "weight": np.ones(n, np.int64),
    }
    return Frame.of({**base, **columns}, n)


@pytest.mark.parametrize(
    ("axis", "operation", "equal_fields", "time_range", "large", "layout"),
    [
        ("tuple", "aggregate", False, False, False, "offset"),
        ("tuple", "aggregate", False, False, True, "offset"),
        ("tuple", "join", False, False, False, "offset"),
        ("tuple", "join", False, False, True, "offset"),
        ("tuple", "join", True, False, False, "offset"),
        ("tuple", "join", True, False, True, "equal_fields, offset"),
        ("time", "aggregate", False, False, False, "timestamp, offset"),
        ("time", "aggregate", True, True, True, "timestamp, offset"),
        ("time", "join", False, False, False, "timestamp, offset"),
        ("time", "join", False, True, True, "timestamp, offset"),
        ("time", "join", True, False, False, "equal_fields, timestamp, offset"),
        ("time", "join", True, False, True, "equal_fields, timestamp, offset"),
        ("time", "join", True, True, False, "timestamp, equal_fields, offset"),
        ("time", "join", True, True, True, "equal_fields, timestamp, offset"),
    ],
)
def test_the_layout_follows_the_query(
    axis: Any, operation: Any, equal_fields: bool, time_range: bool, large: bool, layout: str
) -> None:
    options = {"equal_fields": equal_fields, "time_range": time_range, "large": large}
    assert str(choose_layout(axis, operation, **options)) == layout
    assert (
        str(choose_layout(axis, operation, **options, session_key=True)) == f"session_key, {layout}"
    )


def test_a_layout_is_a_value_and_checks_itself() -> None:
    assert eval(repr(KEYED), {"Layout": Layout}) == KEYED  # noqa: S307
    assert len({KEYED, Layout(KEYED.fields), TIME}) == 2
    for bad in [("time", "offset"), (), ("offset", "timestamp"), ("offset", "offset")]:
        with pytest.raises(SpecError, match="Hint"):
            Layout(bad)
    with pytest.raises(SpecError, match="`space`"):
        choose_layout("space", "join")  # type: ignore[arg-type]


def test_a_window_is_half_open_and_plus_infinity_excludes_nothing() -> None:
    store = MessageStore(MemoryStore(), TIME, "m")
    store.add(messages([0, 5, 10, MAX]))
    assert store.window(0, 10).ints("time").tolist() == [0, 5]
    assert store.window(10, MAX).ints("time").tolist() == [10, MAX]
    assert len(store.window(10, 10)) == len(store.window(MIN, MIN)) == 0


@every_layout
def test_order_does_not_depend_on_the_cut_into_deliveries(layout: Layout) -> None:
    rng = np.random.default_rng(7)
    n = 300
    keys = {name: rng.integers(0, 3, n).astype(np.uint64) for name in ("key_hash", "equal_hash")}
    whole = messages(rng.integers(0, 5, n), payload=np.arange(n), **keys).with_columns(
        offset=rng.integers(0, 4, n)
    )
    one, many = (MessageStore(MemoryStore(), layout, "m", segment_rows=16) for _ in range(2))
    one.add(whole)
    for at in range(0, n, 7):
        many.add(whole.slice(at, min(n, at + 7)))
    assert (
        one.read(MIN, MAX).ints("payload").tolist() == many.read(MIN, MAX).ints("payload").tolist()
    )


def test_the_number_of_runs_grows_with_the_logarithm() -> None:
    store = MessageStore(MemoryStore(), TIME, "m")
    for n in range(2000):
        store.add(messages(np.arange(n * 50, n * 50 + 50)))
    assert store.count == 100_000
    assert store.runs <= 4 * 6


def test_range_reads_skip_what_cannot_matter() -> None:
    backing = SpillingStore()
    store = MessageStore(backing, TIME, "m", segment_rows=100)
    store.add(messages(np.arange(10_000)))
    store.flush()
    backing.got.clear()
    assert store.read(4_210, 4_290).ints("time").tolist() == list(range(4_210, 4_291))
    assert len(backing.got) == 1


def test_reads_by_session_key_skip_what_cannot_matter() -> None:
    backing = SpillingStore()
    store = MessageStore(backing, KEYED, "m", segment_rows=100)
    store.add(messages(np.arange(10_000), key_hash=np.arange(10_000, dtype=np.uint64) % 500))
    store.flush()
    backing.got.clear()
    assert store.read(MIN, MAX, key_hashes=np.array([77], np.uint64)).ints("time").tolist() == list(
        range(77, 10_000, 500)
    )
    assert len(backing.got) == 1
    assert len(store.read(MIN, MAX, key_hashes=np.array([], np.uint64))) == 0
    assert len(store.read(MIN, MAX, key_hashes=np.array([1000], np.uint64))) == 0
    assert len(backing.got) == 1


def test_a_flush_writes_only_new_segments() -> None:
    backing = SpillingStore()
    store = MessageStore(backing, TIME, "m")
    for n in range(3):
        store.add(messages([n] * 1000))
        backing.put.clear()
        store.flush()
        assert len([name for name in backing.put if "/messages/" in name]) == 1
    backing.put.clear()
    store.flush()
    assert not backing.put
    store.add(messages([9] * 1000))
    store.flush()
    assert store.runs == len(backing.names("m/messages/")) == 1


@pytest.mark.parametrize("layout", [TIME, KEYED], ids=str)
def test_expiry_returns_everything(layout: Layout) -> None:
    backing = MemoryStore()
    store = MessageStore(backing, layout, "m", segment_rows=10)
    for n in range(20):
        store.add(messages(np.arange(n, n + 30), uid=np.arange(n * 30, n * 30 + 30)))
        store.flush()
    store.expire(100)
    store.flush()
    assert (store.count, store.nbytes, store.runs) == (0, 0, 0)
    assert backing.names() == ["m/manifest", "m/schema"]
    assert store.read(MIN, MAX).names == [
        "time",
        "offset",
        "key_hash",
        "equal_hash",
        "weight",
        "uid",
        "seq",
    ]
    assert store.add(messages([99, 100], uid=np.array([0, 1]))).tolist() == [False, True]


def test_eager_expiry_counts_at_once_and_lazy_expiry_drops_when_read() -> None:
    eager, lazy = MessageStore(MemoryStore(), TIME, "m"), MessageStore(MemoryStore(), KEYED, "m")
    for store in (eager, lazy):
        store.add(messages(np.arange(100)))
        store.expire(60)
    assert (eager.count, lazy.count) == (40, 100)
    assert lazy.read(0, 99).ints("time").tolist() == list(range(60, 100))
    assert lazy.count == 40
    lazy.expire(70)
    lazy.expire(10)
    assert lazy.expired_before == 70
    lazy.compact()
    assert lazy.count == 30


def test_a_removed_message_stays_away_when_it_is_delivered_again() -> None:
    backing = MemoryStore()
    store = MessageStore(backing, KEYED, "m")
    delivery = messages([1, 2, 3], uid=np.array([10, 20, 30]))
    store.add(delivery)
    assert store.remove(store.read(2, 2)) == 1
    assert store.remove(uids=np.array([30, 99])) == 1
    store.flush()
    store = MessageStore.open(backing, KEYED, "m")
    assert not store.add(delivery).any()
    assert store.read(MIN, MAX).ints("uid").tolist() == [10]


def test_without_identities_equal_messages_are_different_messages() -> None:
    store = MessageStore(MemoryStore(), TIME, "m")
    for _ in range(2):
        assert store.add(messages([5, 5])).all()
    assert store.remove(store.read(5, 5), np.array([True, False, False, True])) == 2
    assert store.read(5, 5).ints("seq").tolist() == [2, 1]


def test_a_new_message_store_replaces_what_was_under_the_prefix() -> None:
    backing = MemoryStore()
    backing.put_json("mine", 1)
    for times in ([1, 2, 3], [4]):
        store = MessageStore(backing, TIME, "m")
        store.add(messages(times))
        store.flush()
    assert MessageStore.open(backing, TIME, "m").read(MIN, MAX).ints("time").tolist() == [4]
    assert backing.get_json("mine") == 1
    assert len(MessageStore.open(backing, TIME, "other").read(MIN, MAX)) == 0


def test_relayout_keeps_the_messages_and_their_ties() -> None:
    backing = MemoryStore()
    rng = np.random.default_rng(3)
    frames = [
        messages(
            rng.integers(0, 4, 40), equal_hash=rng.integers(0, 4, 40).astype(np.uint64)
        ).with_columns(offset=np.zeros(40, np.int64))
        for _ in range(3)
    ]
    joined = Layout(("equal_fields", "timestamp", "offset"))
    store, other = (
        MessageStore(backing, TIME, "m", segment_rows=8),
        MessageStore(MemoryStore(), joined, "m"),
    )
    for frame in frames:
        store.add(frame)
        other.add(frame)
    store.flush()
    store.relayout(joined)
    assert store.read(MIN, MAX).to_table().equals(other.read(MIN, MAX).to_table())
    store.flush()
    with pytest.raises(
        SpecMismatchError, match="`equal_fields, timestamp, offset`, but `timestamp, offset`"
    ):
        MessageStore.open(backing, TIME, "m")
    assert (
        MessageStore.open(backing, joined, "m")
        .read(MIN, MAX)
        .to_table()
        .equals(other.read(MIN, MAX).to_table())
    )
    with pytest.raises(SpecError, match="the axis of a query is fixed"):
        store.relayout(Layout(("offset",)))


def test_types_that_become_known_later_are_taken_over() -> None:
    store = MessageStore(MemoryStore(), TIME, "m")
    store.add(messages([1, 2], v=pa.nulls(2)))
    store.add(messages([3], v=np.array([7])))
    store.add(messages([4], v=pa.array([None], pa.int64())))
    assert to_arrow(store.read(MIN, MAX)["v"]).to_pylist() == [None, None, 7, None]
    assert to_arrow(store.read(90, 99)["v"]).type == pa.int64()


def test_wide_messages_are_cut_into_segments_by_bytes() -> None:
    backing = SpillingStore()
    store = MessageStore(backing, TIME, "m")
    store.add(messages(np.arange(20), text=pa.array(["x" * 1_000_000] * 20)))
    store.flush()
    assert (
        max(backing.get_table(name).nbytes for name in backing.names("m/messages/"))
        <= 4 * 1024 * 1024
    )


def test_unusable_calls_and_damage_are_named() -> None:
    backing = MemoryStore()
    store = MessageStore(backing, TIME, "m")
    with pytest.raises(InputError, match="need the column `key_hash`"):
        store.add(messages([1]).drop(["key_hash"]))
    with pytest.raises(InputError, match="`time` of messages holds 1 nulls"):
        store.add(messages([1]).with_columns(time=pa.array([None], pa.int64())))
    with pytest.raises(InputError, match="`uid` of messages holds 1 nulls"):
        MessageStore(backing, TIME, "n").add(messages([1], uid=pa.array([None], pa.int64())))
    store.add(messages([1]))
    with pytest.raises(InputError, match=r"but .*'extra'.* came"):
        store.add(messages([1], extra=np.ones(1)))
    with pytest.raises(InputError, match="a column `seq`"):
        store.add(store.read(1, 1))
    with pytest.raises(InputError, match="either messages"):
        store.remove()
    with pytest.raises(InputError, match="no column `seq`"):
        store.remove(messages([1]))
    with pytest.raises(InputError, match="is read by offset"):
        MessageStore(backing, Layout(("offset",)), "n").read(0, 1, start_offset=1)
    store.flush()
    segment = backing.names("m/messages/")[0]
    backing.delete(segment)
    with pytest.raises(CorruptStateError, match="lacks its table"):
        MessageStore.open(backing, TIME, "m").read(MIN, MAX)
    backing.put_table(segment, messages([1, 2]).to_table())
    with pytest.raises(CorruptStateError, match="has 2 rows instead of 1"):
        MessageStore.open(backing, TIME, "m").read(MIN, MAX)
    backing.put_json("m/manifest", {**backing.get_json("m/manifest"), "format": 9})
    with pytest.raises(CorruptStateError, match="has format 9"):
        MessageStore.open(backing, TIME, "m")
