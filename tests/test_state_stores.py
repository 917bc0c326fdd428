"""The protocol of both stores: reads see writes at once, and only commits survive."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.examples import examples
from tidegate.errors import CorruptStateError, InputError, MissingExtraError, StateError
from tidegate.state import rocksdb
from tidegate.state.memory import MemoryStore
from tidegate.state.rocksdb import PART_BYTES, RocksDBStore
from tidegate.state.store import Store

Opener = Callable[[Path], Store]
durable = pytest.mark.parametrize(
    "open_store",
    [MemoryStore, pytest.param(RocksDBStore, marks=pytest.mark.rocksdb)],
    ids=["memory", "rocksdb"],
)


def table(*values: int) -> pa.Table:
    return pa.table({"x": pa.array(values, pa.int64()), "s": [f"v{v}" for v in values]})


def noise(nbytes: int, seed: int = 0) -> pa.Table:
    """A table that does not compress."""
    return pa.table({"x": np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, nbytes // 8)})


@durable
def test_a_write_is_read_back_before_and_after_the_commit(
    open_store: Opener, tmp_path: Path
) -> None:
    store = open_store(tmp_path / "state")
    store.put_table("a/1", table(1, 2))
    store.put_json("a/2", {"k": [1, None, "é"]})
    for _ in range(2):
        assert store.get_table("a/1").equals(table(1, 2))
        assert store.get_json("a/2") == {"k": [1, None, "é"]}
        assert store.names() == ["a/1", "a/2"]
        assert store.contains("a/1")
        store.commit()
    store.close()


@durable
def test_reopening_gives_the_last_commit_only(open_store: Opener, tmp_path: Path) -> None:
    store = open_store(tmp_path / "state")
    store.put_table("t", table(1))
    store.put_json("j", 1)
    store.put_json("gone", 1)
    store.commit()
    store.put_table("t", table(2))
    store.put_json("new", 2)
    store.delete("gone")
    store.close()
    again = open_store(tmp_path / "state")
    assert again.get_table("t").equals(table(1))
    assert again.names() == ["gone", "j", "t"]
    again.close()


@durable
def test_deletes_are_seen_at_once_and_survive_the_commit(
    open_store: Opener, tmp_path: Path
) -> None:
    store = open_store(tmp_path / "state")
    for name in ("a/1", "a/2", "b/1"):
        store.put_table(name, table(1))
    store.commit()
    store.delete_prefix("a/")
    store.delete("never there")
    assert store.names() == ["b/1"]
    assert not store.contains("a/1")
    with pytest.raises(KeyError):
        store.get_table("a/1")
    store.commit()
    store.close()
    again = open_store(tmp_path / "state")
    assert again.names() == ["b/1"]
    again.close()


@durable
def test_absent_names_and_wrong_kinds(open_store: Opener, tmp_path: Path) -> None:
    store = open_store(tmp_path / "state")
    with pytest.raises(KeyError):
        store.get_table("nothing")
    assert store.get_json("nothing", 7) == 7
    store.put_json("doc", {})
    store.put_table("tab", table())
    for _ in range(2):
        with pytest.raises(StateError, match=r"`doc` was read as a table, but it holds a document"):
            store.get_table("doc")
        with pytest.raises(StateError, match=r"`tab` was read as a document"):
            store.get_json("tab")
        store.commit()
    store.close()


@durable
def test_a_document_is_a_copy_and_must_be_json(open_store: Opener, tmp_path: Path) -> None:
    store = open_store(tmp_path / "state")
    document = {"a": [1]}
    store.put_json("d", document)
    document["a"].append(2)
    store.get_json("d")["a"].append(3)
    assert store.get_json("d") == {"a": [1]}
    for bad in ({1, 2}, float("nan"), b"x"):
        with pytest.raises(InputError, match="is not JSON"):
            store.put_json("d", bad)
    store.close()


@durable
def test_every_kind_of_column_survives(open_store: Opener, tmp_path: Path) -> None:
    rich = pa.table(
        {
            "i": pa.array([1, None, 3]),
            "d": pa.array([1, 2, 3], pa.decimal128(20, 2)),
            "t": pa.array([0, 1, None], pa.timestamp("us", "UTC")),
            "l": pa.array([[1], [], None], pa.list_(pa.int32())),
            "z": pa.array([{"a": 1}, None, {"a": None}]),
            "e": pa.array(["a", "b", "a"]).dictionary_encode(),
            "n": pa.nulls(3),
        }
    ).slice(1, 2)
    store = open_store(tmp_path / "state")
    store.put_table("rich", rich)
    store.put_table("empty", rich.slice(0, 0))
    store.put_table("none", pa.table({}))
    store.commit()
    store.close()
    again = open_store(tmp_path / "state")
    assert again.get_table("rich").to_pylist() == rich.to_pylist()
    assert again.get_table("rich").schema == rich.schema
    assert again.get_table("empty").schema == rich.schema
    assert again.get_table("none").num_columns == 0
    again.close()


@durable
def test_a_closed_store_says_so(open_store: Opener, tmp_path: Path) -> None:
    store = open_store(tmp_path / "state")
    store.close()
    for use in (
        lambda: store.put_json("a", 1),
        lambda: store.get_table("a"),
        store.names,
        store.commit,
    ):
        with pytest.raises(StateError, match="is closed"):
            use()


NAMES = st.sampled_from(["a", "ab", "b/1", "b/2", "ü", "a\0"])
STEP = st.one_of(
    st.tuples(st.just("table"), NAMES, st.integers(0, 9)),
    st.tuples(st.just("json"), NAMES, st.integers(0, 9)),
    st.tuples(st.just("delete"), NAMES, st.just(0)),
    st.tuples(st.just("prefix"), st.sampled_from(["", "a", "b/"]), st.just(0)),
    st.tuples(st.sampled_from(["commit", "reopen"]), st.just(""), st.just(0)),
)


@durable
@examples(40, deadline=None)
@given(steps=st.lists(STEP, max_size=30))
def test_differential_store_against_two_dicts(
    open_store: Opener, tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, int]]
) -> None:
    path = tmp_path_factory.mktemp("store") / "state"
    store = open_store(path)
    seen: dict[str, tuple[str, int]] = {}
    saved: dict[str, tuple[str, int]] = {}
    for verb, name, value in steps:
        if verb == "table":
            store.put_table(name, table(value))
            seen[name] = (verb, value)
        elif verb == "json":
            store.put_json(name, value)
            seen[name] = (verb, value)
        elif verb == "delete":
            store.delete(name)
            seen.pop(name, None)
        elif verb == "prefix":
            store.delete_prefix(name)
            seen = {n: v for n, v in seen.items() if not n.startswith(name)}
        elif verb == "commit":
            store.commit()
            saved = dict(seen)
        else:
            store.close()
            store, seen = open_store(path), dict(saved)
        assert store.names() == sorted(seen)
        for n, (kind, v) in seen.items():
            assert (
                (store.get_json(n) == v) if kind == "json" else store.get_table(n).equals(table(v))
            )
    store.close()


def test_memory_without_a_path_keeps_the_very_table() -> None:
    store, kept = MemoryStore(), table(1)
    store.put_table("t", kept)
    store.commit()
    assert store.get_table("t") is kept
    assert not store.spills


def test_memory_commit_without_a_change_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "state"
    store = MemoryStore(path)
    store.put_json("a", 1)
    store.commit()
    path.unlink()
    store.commit()
    assert not path.exists()


def test_memory_a_failed_write_keeps_the_former_file(tmp_path: Path) -> None:
    path = tmp_path / "state"
    store = MemoryStore(path)
    store.put_json("a", 1)
    store.commit()
    (tmp_path / "state.tmp").mkdir()
    store.put_json("a", 2)
    with pytest.raises(StateError, match="cannot be written"):
        store.commit()
    copy = tmp_path / "copy"
    copy.write_bytes(path.read_bytes())
    assert MemoryStore(copy).get_json("a") == 1
    (tmp_path / "state.tmp").rmdir()
    store.commit()
    store.close()
    assert MemoryStore(path).get_json("a") == 2


@pytest.fixture
def memory_file(tmp_path: Path) -> Path:
    store = MemoryStore(tmp_path / "state")
    store.put_table("t", table(*range(50)))
    store.put_json("j", {"a": 1})
    store.commit()
    return tmp_path / "state"


def test_memory_every_damaged_byte_is_noticed(memory_file: Path) -> None:
    whole = memory_file.read_bytes()
    for at in range(0, len(whole), 7):
        memory_file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        with pytest.raises(CorruptStateError, match="Hint"):
            MemoryStore(memory_file)


def test_memory_every_truncation_and_extension_is_noticed(memory_file: Path) -> None:
    whole = memory_file.read_bytes()
    for cut in [whole[:at] for at in range(0, len(whole), 11)] + [whole + b"x"]:
        memory_file.write_bytes(cut)
        with pytest.raises(CorruptStateError, match="move it away and replay the input"):
            MemoryStore(memory_file)


def test_memory_an_unknown_format_is_refused(memory_file: Path) -> None:
    whole = bytearray(memory_file.read_bytes())
    whole[8] = 99
    memory_file.write_bytes(whole)
    with pytest.raises(CorruptStateError, match="has format 99; this version reads format 1"):
        MemoryStore(memory_file)


@pytest.mark.rocksdb
def test_rocksdb_splits_large_tables_into_parts(tmp_path: Path) -> None:
    big = noise(3 * PART_BYTES)
    store = RocksDBStore(tmp_path / "state", cache_bytes=0)
    store.put_table("big", big)
    store.commit()
    assert store.get_table("big").equals(big)
    assert 0 < max(len(value) for value in store._db.values()) <= PART_BYTES
    assert len(list(store._db.keys())) == 6
    store.put_table("big", table(1))
    store.commit()
    assert store.get_table("big").equals(table(1))
    assert len(list(store._db.keys())) == 3
    store.delete("big")
    store.commit()
    assert list(store._db.keys()) == [b"v"]
    store.close()


@pytest.mark.rocksdb
def test_rocksdb_writes_only_what_changed(tmp_path: Path) -> None:
    store = RocksDBStore(tmp_path / "state")
    store.put_table("large", noise(1 << 20))
    store.put_json("small", 1)
    store.commit()
    before = store._db.latest_sequence_number()
    store.put_json("small", 2)
    store.commit()
    assert store._db.latest_sequence_number() - before == 2
    store.commit()
    assert store._db.latest_sequence_number() - before == 2
    store.close()


@pytest.mark.rocksdb
def test_rocksdb_the_cache_is_bounded_by_bytes(tmp_path: Path) -> None:
    store = RocksDBStore(tmp_path / "state", cache_bytes=20_000)
    for n in range(10):
        store.put_table(f"t{n}", noise(8_000, n))
    store.put_table("huge", noise(80_000))
    store.commit()
    for n in (*range(10), 3, 9):
        assert store.get_table(f"t{n}").equals(noise(8_000, n))
        assert 0 < store.cached_bytes <= 20_000
    assert store.get_table("huge").equals(noise(80_000))
    assert store.cached_bytes <= 20_000
    assert store.get_table("t9") is store.get_table("t9")
    store.close()


@pytest.mark.rocksdb
def test_rocksdb_a_second_opening_is_refused_clearly(tmp_path: Path) -> None:
    store = RocksDBStore(tmp_path / "state")
    with pytest.raises(StateError, match="is already open"):
        RocksDBStore(tmp_path / "state")
    script = (
        "import sys; from tidegate.state.rocksdb import RocksDBStore; RocksDBStore(sys.argv[1])"
    )
    other = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "state")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "StateError" in other.stderr
    assert "is already open, in this or another process" in other.stderr
    store.close()
    RocksDBStore(tmp_path / "state").close()


@pytest.mark.rocksdb
def test_rocksdb_damage_and_foreign_folders_are_refused(tmp_path: Path) -> None:
    store = RocksDBStore(tmp_path / "state")
    store.put_table("t", table(1))
    store.commit()
    store._db[b"dt\0\0\0\0"] = b"other bytes"
    store._cache.discard("t")
    with pytest.raises(CorruptStateError, match="checksum of `t` does not match"):
        store.get_table("t")
    store._db.delete(b"dt\0\0\0\0")
    with pytest.raises(CorruptStateError, match="`t` lacks part 0 of 1"):
        store.get_table("t")
    store._db[b"v"] = b"2"
    store.close()
    with pytest.raises(CorruptStateError, match="has format 2"):
        RocksDBStore(tmp_path / "state")
    for manifest in (tmp_path / "state").glob("MANIFEST*"):
        manifest.write_bytes(b"garbage" * 20)
    with pytest.raises(CorruptStateError, match="is damaged"):
        RocksDBStore(tmp_path / "state")


@pytest.mark.rocksdb
def test_rocksdb_a_damaged_index_is_refused(tmp_path: Path) -> None:
    store = RocksDBStore(tmp_path / "state")
    store.put_json("a", 1)
    store.commit()
    store._db[b"ib"] = b"short"
    store.close()
    with pytest.raises(CorruptStateError, match=r"index entry b'ib' is invalid"):
        RocksDBStore(tmp_path / "state")
    for data in (tmp_path / "state").glob("*.sst"):
        content = bytearray(data.read_bytes())
        content[:16] = b"\xa5" * 16
        data.write_bytes(content)
    with pytest.raises(CorruptStateError, match="is damaged: Corruption"):
        RocksDBStore(tmp_path / "state")


@pytest.mark.rocksdb
def test_rocksdb_a_manifest_that_is_cut_off_is_no_new_state(tmp_path: Path) -> None:
    path = tmp_path / "state"
    store = RocksDBStore(path)
    store.put_json("a", 1)
    store.commit()
    store.close()
    [manifest] = path.glob("MANIFEST*")
    manifest.write_bytes(manifest.read_bytes()[:150])
    for _ in range(2):
        with pytest.raises(CorruptStateError, match="Hint"):
            RocksDBStore(path)


def test_memory_a_link_that_leads_nowhere_is_no_new_state(tmp_path: Path) -> None:
    for target in ("missing", "state"):
        path = tmp_path / "state"
        path.symlink_to(target)
        with pytest.raises(StateError, match="cannot be read"):
            MemoryStore(path)
        path.unlink()


@pytest.mark.rocksdb
def test_rocksdb_every_damaged_block_is_noticed(tmp_path: Path) -> None:
    """A store is never empty, or shorter, because its index cannot be read."""
    path = tmp_path / "state"
    store = RocksDBStore(path)
    names = [f"document {n:04d}" for n in range(400)]
    for name in names:
        store.put_json(name, name)
    store.commit()
    store.close()
    RocksDBStore(path).close()  # Moves the log into a table.
    [data] = path.glob("*.sst")
    content = data.read_bytes()
    noticed = 0
    for at in range(50, len(content), len(content) // 60):
        mutated = bytearray(content)
        mutated[at] ^= 4
        data.write_bytes(mutated)
        store = None
        try:
            store = RocksDBStore(path)
            assert store.names() == names
            assert [store.get_json(name) for name in names] == names
        except StateError:
            noticed += 1
        finally:
            if store is not None:
                store.close()
    assert noticed > 40


_FULL_DISK = """
import resource, signal, sys
import numpy as np, pyarrow as pa
from tidegate.errors import StateError
from tidegate.state.rocksdb import RocksDBStore

def fails(step, text):
    try:
        step()
    except StateError as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = RocksDBStore(sys.argv[1])
store.put_json("a", 1)
store.commit()
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, unlimited[1]))
large = pa.table({"x": np.random.default_rng(0).integers(0, 1 << 60, 100_000)})
store.put_table("large", large)
store.delete("a")
for _ in range(2):
    fails(store.commit, "free some space and commit again")
assert store.get_table("large") == large and not store.contains("a")
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
store.commit()
store.close()
store = RocksDBStore(sys.argv[1])
assert store.get_table("large") == large and store.names() == ["large"]
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, unlimited[1]))
store.put_table("other", large)
fails(store.commit, "free some space")
fails(store.close, "closed with an error")
store.close()
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
assert RocksDBStore(sys.argv[1]).get_table("large") == large
"""


@pytest.mark.rocksdb
@pytest.mark.skipif(sys.platform == "win32", reason="limits of processes are POSIX")
def test_rocksdb_commits_again_after_a_full_disk(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FULL_DISK, str(tmp_path / "state")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.rocksdb
def test_rocksdb_a_foreign_database_is_left_alone(tmp_path: Path) -> None:
    import rocksdict

    foreign = rocksdict.Rdict(str(tmp_path / "foreign"), rocksdict.Options(raw_mode=True))
    foreign[b"theirs"] = b"1"
    foreign.close()
    with pytest.raises(CorruptStateError, match="not written by Tidegate"):
        RocksDBStore(tmp_path / "foreign")


def test_rocksdb_without_the_package_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tidegate\[rocksdb\]'"):
        rocksdb.RocksDBStore(tmp_path / "state")
