"""The store over Spark's state variables keeps the protocol of stores: it does what the memory
store does, across batches and lost workers.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from support.spark_fakes import FakeMap, FakeValue
from tidegate.errors import CorruptStateError, InputError, StateError
from tidegate.operators.ingest.delivery import Arrival
from tidegate.spark.query.state.status import source_status
from tidegate.spark.tasks import local_state_cache
from tidegate.spark.tasks import state_store as stores
from tidegate.spark.tasks.chain import Chain, ChainInput, ChainPlan
from tidegate.spark.tasks.local_state_cache import LocalStateCache
from tidegate.spark.tasks.state_store import SparkStore
from tidegate.state.memory import MemoryStore
from tidegate.state.serialization import encode_table
from tidegate.state.store import PrefixedStore


class State:
    """The two variables of one shard."""

    def __init__(self, cache: LocalStateCache | None = None) -> None:
        self.held: dict[Any, Any] = {}
        self.cache = cache

    @property
    def meta(self) -> FakeValue:
        return FakeValue(self.held, "meta")

    @property
    def blobs(self) -> FakeMap:
        return FakeMap(self.held, "blobs")

    def open(self) -> SparkStore:
        return SparkStore(self.meta, self.blobs, self.meta.get(), self.cache)

    @property
    def names(self) -> set[tuple[str, int]]:
        """What the map holds."""
        return {key[1] for key in self.held if key != "meta"}


def noise(nbytes: int, seed: int = 0) -> pa.Table:
    """A table that does not compress."""
    return pa.table({"x": np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, nbytes // 8)})


def table(*values: int) -> pa.Table:
    return pa.table({"x": pa.array(values, pa.int64()), "s": [f"v{v}" for v in values]})


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "PART_BYTES", 64)


names = st.sampled_from(["a", "a/1", "a/2", "b", "b/\x00", "é"])
tables = st.lists(st.integers(-(2**62), 2**62), max_size=60).map(lambda values: table(*values))
leaves = st.none() | st.booleans() | st.integers() | st.text(max_size=30)
documents = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
own = st.one_of(
    st.tuples(st.just("put_table"), names, tables),
    st.tuples(st.just("put_json"), names, documents),
    st.tuples(st.just("delete"), names),
    st.tuples(st.just("delete_prefix"), st.sampled_from(["", "a", "a/", "b/"])),
    st.tuples(st.just("commit")),
)
"""What is asked of a store, and then what happens around it too."""
calls = own | st.one_of(
    st.tuples(st.just("open")),
    st.tuples(st.just("attach")),
    st.tuples(st.just("lose")),
    st.tuples(st.just("undo")),
    st.tuples(st.just("harm"), st.sampled_from(["remove", "cut"])),
)


def read(store: Any, name: str) -> Any:
    """What is under a name, as both kinds, with the errors as values."""
    found: list[Any] = []
    for get in (store.get_table, store.get_json):
        try:
            found.append(get(name))
        except (KeyError, StateError) as error:
            found.append(type(error))
    return found


def check_same(store: SparkStore, memory: MemoryStore) -> None:
    assert store.names() == memory.names()
    for name in ("a", "a/1", "a/2", "b", "b/\x00", "é"):
        assert store.contains(name) == memory.contains(name)
        assert read(store, name) == read(memory, name)


def copied(memory: MemoryStore) -> MemoryStore:
    other = MemoryStore()
    other._values = dict(memory._values)
    return other


def harm(cache: LocalStateCache | None, how: str) -> None:
    """The machine has cleaned its temporary files, or its disk was full."""
    for file in cache.folder.iterdir() if cache is not None and cache.folder.exists() else ():
        (
            file.unlink()
            if how == "remove"
            else file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        )


@given(st.lists(calls, max_size=30), st.sampled_from([None, 0, 2000, 1 << 20]))
def test_it_does_what_the_memory_store_does(history, limit):
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory() as folder:
        patched.setattr(stores, "PART_BYTES", 64)
        patched.setattr(local_state_cache, "MIN_BYTES", 0)
        state, memory = (
            State(None if limit is None else LocalStateCache(Path(folder), limit)),
            MemoryStore(),
        )
        store, committed = state.open(), copied(memory)
        before = dict(state.held), committed
        for verb, *args in history:
            if verb == "open":
                # The worker is gone: only what was committed is there.
                store, memory = state.open(), copied(committed)
            elif verb == "lose":
                store.close()
                store, memory = state.open(), copied(committed)
            elif verb == "undo":
                # The batch failed after the commit of its shard, so Spark has the state before it.
                state.held, committed = dict(before[0]), before[1]
                store, memory = state.open(), copied(committed)
            elif verb == "attach":
                store.attach(state.meta, state.blobs)
            elif verb == "harm":
                harm(state.cache, *args)
            else:
                before = (dict(state.held), committed) if verb == "commit" else before
                for one in (store, memory):
                    getattr(one, verb)(*args)
                committed = copied(memory) if verb == "commit" else committed
            check_same(store, memory)
        store.commit()
        check_same(state.open(), memory)
        check_clean(state)


def test_another_worker_reads_copies_and_not_the_state(tmp_path):
    cache = LocalStateCache.open(tmp_path, "run", 1 << 20)
    state = State(cache)
    store = state.open()
    store.put_table("large", noise(100_000))
    store.put_table("small", table(1))
    store.commit()
    assert len(list(cache.folder.iterdir())) == 1
    # Were it read from the state, parts would be missing.
    state.held = {
        key: value for key, value in state.held.items() if key == "meta" or key[1][0] != "large"
    }
    other = state.open()
    assert other.get_table("large") == noise(100_000)
    assert other.get_table("small") == table(1)
    other.delete("large")
    other.commit()
    assert list(cache.folder.iterdir()) == []


def test_copies_end_at_their_limit_and_go_with_their_run(tmp_path):
    cache = LocalStateCache.open(tmp_path, "first", 250_000)
    names = [cache.put(noise(100_000, seed)) for seed in range(3)]
    assert [name is None for name in names] == [False, False, True]
    assert cache.put(noise(300_000)) is None
    assert cache.get(names[1]) == noise(100_000, 1)
    cache.drop(names[0])
    assert cache.get(names[0]) is None
    assert cache.put(noise(100_000)) is not None
    later = LocalStateCache.open(tmp_path, "second", 250_000)
    assert [folder.name for folder in tmp_path.iterdir()] == []
    assert later.get(names[1]) is None


def test_without_a_place_for_copies_there_are_none(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    cache = LocalStateCache.open(tmp_path / "file", "run", 1 << 20)
    assert cache.put(noise(100_000)) is None


def check_clean(state: State) -> None:
    """No part of anything that is gone stays in the map."""
    version, summary, document = state.meta.get()
    spilled = json.loads(summary)["spilled"]
    opened = state.open()
    wanted = {(name, part) for name, (parts, *_) in opened._tables.items() for part in range(parts)}
    assert state.names == wanted | {("\x00document", part) for part in range(spilled)}
    assert (version, not spilled) == (stores.FORMAT, bool(document))


@given(st.lists(own, max_size=12), st.lists(own, max_size=3))
def test_only_the_store_that_committed_last_is_the_same(history, others):
    state = State()
    store = state.open()
    assert not store.is_current(state.meta.get())
    for verb, *args in history:
        getattr(store, verb)(*args)
    store.commit()
    before = dict(state.held)
    assert store.is_current(state.meta.get())
    other = state.open()
    assert other.is_current(state.meta.get())
    for verb, *args in others:
        getattr(other, verb)(*args)
    other.commit()
    assert not store.is_current(state.meta.get()), "somebody else has written since"
    state.held = before
    assert store.is_current(state.meta.get())
    assert not other.is_current(state.meta.get()), "what it wrote was given up by Spark"


def test_a_store_that_wrote_nothing_is_not_the_same_as_no_state():
    assert not State().open().is_current(None)


def test_large_tables_are_written_in_parts_and_smaller_ones_leave_none_behind():
    state = State()
    store = state.open()
    store.put_table("t", noise(9 << 20))
    store.commit()
    assert state.names == {("t", 0), ("t", 1), ("t", 2)}
    assert all(
        len(value[0]) <= stores.PART_BYTES for key, value in state.held.items() if key != "meta"
    )
    assert state.open().get_table("t").equals(noise(9 << 20))
    store.put_table("t", table(1))
    store.commit()
    assert state.names == {("t", 0)}
    assert state.open().get_table("t").equals(table(1))


def test_documents_that_are_too_large_for_one_value_are_spilled(small_parts):
    state = State()
    store = state.open()
    text = "".join(chr(33 + n % 90) for n in np.random.default_rng(0).integers(0, 90, 4000))
    store.put_json("long", text)
    store.commit()
    assert len(state.names) > 3
    assert state.open().get_json("long") == text
    store.delete("long")
    store.put_json("x", 1)
    store.commit()
    assert state.open().get_json("x") == 1
    check_clean(state)


def test_a_commit_writes_only_what_changed(monkeypatch):
    state = State()
    store = state.open()
    store.put_table("a", table(1))
    store.put_table("b", table(2))
    store.commit()
    written: list[Any] = []
    monkeypatch.setattr(FakeMap, "updateValue", lambda self, key, value: written.append(key))
    again = state.open()
    again.put_table("b", table(3))
    again.commit()
    assert written == [("b", 0)]


def test_the_size_is_that_of_what_is_stored():
    state = State()
    store = state.open()
    store.put_table("t", noise(1 << 20))
    store.commit()
    stored = sum(len(value[0]) for key, value in state.held.items() if key != "meta") + len(
        state.meta.get()[2]
    )
    assert store.nbytes == stored
    assert state.open().nbytes == stored
    store.delete("t")
    store.commit()
    assert store.nbytes == len(state.meta.get()[2])


def test_a_summary_is_kept_with_the_state():
    state = State()
    store = state.open()
    store.summary = {"watermark": 5}
    store.put_table("t", table(1))
    store.commit()
    assert json.loads(state.meta.get()[1])["watermark"] == 5
    assert state.open().summary["watermark"] == 5


def test_state_of_another_format_is_refused():
    state = State()
    state.open().commit()
    _, summary, document = state.meta.get()
    state.meta.update((3, summary, document))
    with pytest.raises(CorruptStateError, match=r"format 3; this version reads 1.*Hint"):
        state.open()


def test_tables_without_a_byte_split_are_read(monkeypatch):
    monkeypatch.setattr(stores, "encode_compact", lambda given: encode_table(given, "zstd"))
    state = State()
    store = state.open()
    store.put_table("t", table(*range(5_000)))
    store.commit()
    assert state.meta.get()[0] == 1
    monkeypatch.undo()
    assert state.open().get_table("t").equals(table(*range(5_000)))


def test_a_part_that_is_missing_is_told():
    state = State()
    store = state.open()
    store.put_table("t", noise(9 << 20))
    store.commit()
    state.blobs.removeKey(("t", 1))
    with pytest.raises(CorruptStateError, match=r"`t` of a shard is damaged .it lacks a part"):
        state.open().get_table("t")


def test_what_is_no_json_is_refused_and_nothing_is_written():
    state = State()
    store = state.open()
    with pytest.raises(InputError):
        store.put_json("bad", float("nan"))
    assert not store.contains("bad")


def test_operators_that_share_a_store_do_not_see_each_other(small_parts):
    state = State()
    store = state.open()
    first, second = PrefixedStore(store, "0/"), PrefixedStore(store, "1/")
    first.put_table("t", table(1))
    second.put_table("t", table(2))
    second.put_json("j", 3)
    first.commit()
    assert state.meta.get() is None, "the owner commits"
    second.delete_prefix("")
    assert (first.names(), second.names(), store.names()) == (["t"], [], ["0/t"])
    store.commit()
    assert PrefixedStore(state.open(), "0/").get_table("t").equals(table(1))


def test_the_sources_of_a_chain_are_read_from_its_document():
    rows = pa.table(
        {"ts": pa.array([7, 9], pa.timestamp("us", "UTC")), "k": ["a", "b"], "p": ["0", "1"]}
    )
    stream = tg.stream(time="ts", key="k", partition="p", watermark=tg.bounded("5 us"))
    spec = stream.window(tg.tumbling("1 minute")).aggregate(n=tg.count()).spec
    state = State()
    store = state.open()
    chain = Chain(ChainPlan((spec,), rows.schema), store)
    chain.process(ChainInput([Arrival(0, rows)], [Arrival(0, rows)]), 20)
    chain.save()
    store.commit()
    sources = source_status(SparkStore(state.meta, state.blobs, state.meta.get()), 20)
    assert [(one.name, one.status, one.watermark, one.spoke_at) for one in sources] == [
        ("0", "active", 2, 20),
        ("1", "active", 4, 20),
    ]


def test_a_changed_byte_anywhere_is_an_error_and_never_other_content(small_parts):
    state = State()
    store = state.open()
    store.summary = {"watermark": 5}
    store.put_table("t", table(*range(40)))
    store.put_table("u", table(7))
    store.put_json("d", "".join(map(chr, range(33, 126))) * 3)
    store.commit()
    spilled = {key: value for key, value in state.held.items() if key != "meta"}
    assert any(key[1][0] == "\x00document" for key in spilled)
    for key, (payload,) in spilled.items():
        for at in range(0, len(payload), 7):
            damaged = bytearray(payload)
            damaged[at] ^= 1 << at % 8
            state.held[key] = (bytes(damaged),)
            with pytest.raises(CorruptStateError, match=r"is damaged .*Hint"):
                [state.open().get_table(name) for name in ("t", "u")]
        state.held[key] = (payload,)
    version, summary, document = state.meta.get()
    for at in range(0, len(summary), 3):
        changed = summary[:at] + chr(ord(summary[at]) ^ 1) + summary[at + 1 :]
        state.meta.update((version, changed, document))
        with pytest.raises(CorruptStateError, match=r"is damaged .*Hint"):
            state.open()
        with pytest.raises(CorruptStateError, match="is damaged"):
            store.is_current(state.meta.get())


def test_a_damaged_index_in_the_value_is_an_error():
    state = State()
    store = state.open()
    store.put_json("d", 1)
    store.commit()
    version, summary, document = state.meta.get()
    for at in range(len(document)):
        damaged = bytearray(document)
        damaged[at] ^= 4
        state.meta.update((version, summary, bytes(damaged)))
        with pytest.raises(CorruptStateError, match="stored index of a shard is damaged"):
            state.open()


def test_a_damaged_cached_table_is_read_from_the_state(tmp_path):
    state = State(LocalStateCache.open(tmp_path, "run", 1 << 20))
    store = state.open()
    store.put_table("large", noise(100_000))
    store.commit()
    (file,) = state.cache.folder.iterdir()
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert state.open().get_table("large") == noise(100_000)
