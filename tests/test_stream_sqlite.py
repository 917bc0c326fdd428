"""Specifics of the SQLite store: file ownership, locking, WAL size and forks."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.examples import examples
from support.stream_stores import Child, blocks, everything, open_store, rows
from tidegate.errors import CorruptStateError, InputError, SetupError, SpecError, StateError
from tidegate.streams import sqlite, sqlite_blocks
from tidegate.streams.sqlite import SqliteStore
from tidegate.streams.store import Swap


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with SqliteStore(tmp_path / "streams.db", synchronous="normal") as found:
        found.open_segments("s", ["0", "1"])
        yield found


def plain(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


# The file


def test_the_address_makes_an_equal_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.db", "with space & ünï #%41.db"):
        with SqliteStore(name) as full, SqliteStore(Path(name), synchronous="normal") as normal:
            assert full.url == f"sqlite:{tmp_path}/{name}"
            assert normal.url == f"sqlite:{tmp_path}/{name}?synchronous=normal"
            full.swap("", Swap("a", 1, 0))
            for url in (full.url, normal.url):
                with open_store(url) as again:
                    assert again.url == url
                    assert again.cells("") == full.cells("")
    with pytest.raises(SpecError, match=r"must not contain `\?`"):
        SqliteStore("a?b.db")


@pytest.mark.parametrize(("synchronous", "level"), [("full", 2), ("normal", 1)])
def test_every_connection_is_as_synchronous_as_was_asked(
    tmp_path: Path, synchronous: str, level: int
) -> None:
    with SqliteStore(tmp_path / "s.db", synchronous=synchronous) as store:
        held = threading.Barrier(3)

        def look(file: sqlite3.Connection) -> tuple[int, str]:
            held.wait()
            return (
                file.execute("PRAGMA synchronous").fetchone()[0],
                file.execute("PRAGMA journal_mode").fetchone()[0],
            )

        found: list[tuple[int, str]] = []
        threads = [
            threading.Thread(target=lambda: found.append(store._seen(look))) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [(level, "wal")] * 3


def test_another_level_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r'"full" or "normal", got .off.'):
        SqliteStore(tmp_path / "s.db", synchronous="off")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "s.db").touch()
    with SqliteStore(tmp_path / "s.db") as store:
        assert store.streams() == []


def test_a_file_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"no database at all, and long enough to be one\n" * 100)
    with pytest.raises(CorruptStateError, match="not a SQLite file"):
        SqliteStore(text)
    assert text.read_bytes().startswith(b"no database")
    foreign = tmp_path / "foreign.db"
    with closing(plain(foreign)) as file:
        file.execute("CREATE TABLE t (x)")
    with pytest.raises(CorruptStateError, match="not a store of streams"):
        SqliteStore(foreign)
    with closing(plain(foreign)) as file:
        assert file.execute("SELECT name FROM sqlite_master").fetchall() == [("t",)]
        assert file.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_a_file_of_a_newer_format_is_left_alone(store: SqliteStore) -> None:
    with closing(plain(store.path)) as file:
        file.execute(f"PRAGMA user_version = {sqlite.FORMAT + 1}")
    with pytest.raises(
        CorruptStateError,
        match=f"format {sqlite.FORMAT + 1}, but this Tidegate reads format {sqlite.FORMAT}",
    ):
        SqliteStore(store.path)


def test_a_place_where_no_file_can_be(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="mkdir -p"):
        SqliteStore(tmp_path / "missing" / "s.db")
    with pytest.raises(SetupError, match="cannot be opened"):
        SqliteStore(tmp_path)


@pytest.fixture
def powerless() -> Iterator[None]:
    """Requires a user other than root, which may write everywhere."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield
    os.seteuid(user)


def test_a_folder_that_cannot_be_written(powerless: None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o500)
        with pytest.raises(SetupError, match="file and folder must be readable and writable"):
            SqliteStore(Path(folder) / "s.db")
        Path(folder).chmod(0o000)
        with pytest.raises(SetupError, match="the folder of a store must exist"):
            SqliteStore(Path(folder) / "deep" / "s.db")
        Path(folder).chmod(0o700)


def test_a_file_that_belongs_to_another(powerless: None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.db"
        with SqliteStore(path) as store:
            store.open_segments("s", ["0"])
        path.chmod(0o400)
        with SqliteStore(path) as store, pytest.raises(SetupError, match="cannot be changed"):
            store.open_segments("t", ["0"])


def setting(store: SqliteStore, text: str) -> None:
    """Change a setting of the only connection of the store."""
    assert len(store._idle) == 1
    store._idle[0].execute(f"PRAGMA {text}")


def test_a_full_disk_keeps_nothing_of_the_change(store: SqliteStore) -> None:
    store.append("s", {"0": rows("a")})
    setting(store, "max_page_count = 20")
    with pytest.raises(StateError, match="the disk is full"):
        store.append("s", {"0": rows("b"), "1": rows(b"x" * 500_000)}, swap=Swap("c", 1, 0))
    assert (everything(store, "s", "0"), everything(store, "s", "1"), store.cells("s")) == (
        [b"a"],
        [],
        {},
    )
    setting(store, "max_page_count = 1000000")
    store.append("s", {"0": rows("b"), "1": rows(b"x" * 500_000)}, swap=Swap("c", 1, 0))
    assert everything(store, "s", "0") == [b"a", b"b"]


def test_a_file_that_cannot_be_changed_can_be_read(store: SqliteStore) -> None:
    store.append("s", {"0": rows("a")})
    setting(store, "query_only = ON")
    with pytest.raises(SetupError, match="cannot be changed"):
        store.append("s", {"0": rows("b")})
    assert everything(store, "s", "0") == [b"a"]


def test_damage_is_told(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with SqliteStore(path) as store:
        store.open_segments("s", ["0"])
        store.append("s", {"0": rows(*[b"x" * 100] * 200)})
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)
    with SqliteStore(path) as store, pytest.raises(CorruptStateError, match="is damaged"):
        store.read("s", "0", 0, 10)


def test_events_that_are_missing_are_told(store: SqliteStore) -> None:
    for value in "abc":
        store.append("s", {"0": rows(value), "1": rows(value)})
    with closing(plain(store.path)) as file:
        file.execute("DELETE FROM block WHERE id = (1 << 40) + 1")
        file.execute("DELETE FROM block WHERE id = 2 << 40")
    assert store.read("s", "0", 2, 1).rows["value"].to_pylist() == [b"c"]
    for segment, offset, most in (("0", 0, 3), ("0", 1, 1), ("1", 0, 1), ("1", 0, 3)):
        with pytest.raises(CorruptStateError, match="lost events"):
            store.read("s", segment, offset, most)


@pytest.mark.parametrize(
    "damage",
    [
        "data = CAST(replace(CAST(data AS TEXT), 'a', 'b') AS BLOB)",
        "data = substr(data, 1, length(data) - 1)",
        "data = 'text'",
        "count = count + 1",
        "appended = appended + 1",
        "appended = 'text'",
        "checksum = checksum + 1",
    ],
)
def test_a_damaged_block_is_refused(store: SqliteStore, damage: str) -> None:
    store.append("s", {"0": rows("a"), "1": rows("a")})
    store.append("s", {"0": rows("a", "a")})
    with closing(plain(store.path)) as file:
        file.execute(f"UPDATE block SET {damage} WHERE id >> 40 = 1")
    with pytest.raises(CorruptStateError, match="checksum does not match"):
        store.read("s", "0", 0, 3)
    assert store.read("s", "1", 0, 1).rows["value"].to_pylist() == [b"a"]


def test_a_closed_store_takes_nothing_and_closes_again(store: SqliteStore) -> None:
    store.close()
    store.close()
    with pytest.raises(InputError, match="is closed"):
        store.streams()
    # The last connection that closes moves everything into the file.
    assert [path.name for path in store.path.parent.iterdir()] == ["streams.db"]


# Waiting


def test_a_change_waits_for_another_and_a_read_does_not(store: SqliteStore) -> None:
    store.append("s", {"0": rows("a")})
    with closing(plain(store.path)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("UPDATE counter SET version = 100")
        thread = threading.Thread(target=store.swap, args=("s", Swap("c", 1, 0)))
        thread.start()
        assert everything(store, "s", "0") == [b"a"]
        assert store.cells("s") == {}
        other.execute("COMMIT")
        thread.join()
    assert store.cell("s", "c").version == 101


def test_a_change_does_not_wait_for_ever(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "PATIENCE", 0.05)
    with closing(plain(store.path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StateError, match="locked by other processes"):
            store.append("s", {"0": rows("a")})
    store.append("s", {"0": rows("b")})
    assert everything(store, "s", "0") == [b"b"]


def test_many_open_a_new_file_at_once(tmp_path: Path) -> None:
    start = threading.Barrier(6)
    errors: list[BaseException] = []

    def work(name: str) -> None:
        start.wait()
        try:
            with SqliteStore(tmp_path / "s.db") as store:
                store.open_segments(name, ["0"])
                store.append(name, {"0": rows(name)})
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(f"s{n}",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with SqliteStore(tmp_path / "s.db") as store:
        assert store.streams() == [f"s{n}" for n in range(6)]


def test_threads_that_come_and_go_leave_no_connections(store: SqliteStore) -> None:
    for n in range(20):
        thread = threading.Thread(target=store.append, args=("s", {"0": rows(f"{n}")}))
        thread.start()
        thread.join()
    assert len(store._idle) == 1


def test_a_fork_in_the_middle_loses_nothing(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/s.db"
    with open_store(url) as store:
        store.open_segments("s", ["0"])
    with Child("forks", url, "s") as child:
        child.end()
    with open_store(url) as store:
        found = [value.decode().split(":") for value in everything(store, "s", "0")]
    wanted = {"thread": 30, "early": 1, "late": 3, **{f"child{n}": 3 for n in range(5)}}
    for name, count in wanted.items():
        assert [number for known, number in found if known == name] == [
            str(n) for n in range(count)
        ]
    assert len(found) == sum(wanted.values())


def test_the_log_of_changes_becomes_short_again(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "WAL_BYTES", 1 << 20)
    log = store.path.with_name("streams.db-wal")
    with closing(plain(store.path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM cell").fetchall()
        for _ in range(130):
            store.append("s", {"0": rows(b"x" * 20_000)})
        assert log.stat().st_size > 2 << 20
        reader.execute("COMMIT")
    for _ in range(64):
        store.append("s", {"0": rows(b"x")})
    assert log.stat().st_size < 1 << 20


# Blocks


def stored(store: SqliteStore) -> list[int]:
    """The number of events in each block."""
    with closing(plain(store.path)) as file:
        return [count for (count,) in file.execute("SELECT count FROM block ORDER BY id")]


def test_an_append_is_one_block_unless_it_is_large(store: SqliteStore) -> None:
    store.append("s", {"0": rows(*[b"x" * 100] * 1000)})
    assert stored(store) == [1000]
    store.append("s", {"0": rows(*[b"x" * 1000] * 2000), "1": rows(*[b""] * 100_000)})
    assert stored(store) == [1000, 1048, 952, 65536, 34464]
    store.append("s", {"1": rows(b"", keys=["k" * 3_000_000])})
    assert stored(store) == [1000, 1048, 952, 65536, 34464, 1]
    assert everything(store, "s", "0", 700) == [b"x" * 100] * 1000 + [b"x" * 1000] * 2000


def test_a_small_event_takes_little_room(store: SqliteStore) -> None:
    store.append("s", {"0": rows("abc"), "1": rows("abc", keys=["k"])})
    with closing(plain(store.path)) as file:
        assert [size for (size,) in file.execute("SELECT length(data) FROM block ORDER BY id")] == [
            1 + 4 + 3,
            1 + 4 + 4 + 3 + 1,
        ]


def test_truncating_takes_whole_blocks_away(store: SqliteStore) -> None:
    for _ in range(4):
        store.append("s", {"0": rows("a", "b", "c"), "1": rows("a", "b", "c")})
    for start, left in ((2, 4), (3, 3), (7, 2), (8, 2), (9, 1), (12, 0)):
        store.truncate("s", {"0": start})
        assert stored(store) == [3] * (left + 4)
        assert store.bounds("s") == {"0": (start, 12), "1": (0, 12)}
    store.drop("s")
    assert stored(store) == []


def test_a_read_of_very_much_ends_early(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(6):
        store.append("s", {"0": rows(f"{n}" * 400, f"{n}" * 400)})
    monkeypatch.setattr(sqlite, "READ_BYTES", 1000)
    block = store.read("s", "0", 1, 100)
    assert (block.rows["offset"].to_pylist(), block.next) == ([1, 2, 3], 4)
    assert len(everything(store, "s", "0")) == 12
    assert [block.rows.num_rows for block in blocks(store, "s", "0")] == [4, 4, 4]


def test_a_read_beyond_the_end_is_refused(store: SqliteStore) -> None:
    store.append("s", {"0": rows("a")})
    with pytest.raises(InputError, match="from 0 to 1, got the offset 2"):
        store.read("s", "0", 2, 1)


Events = list[tuple[str | None, bytes]]
appended = st.lists(
    st.lists(
        st.tuples(st.none() | st.text(max_size=9), st.binary(max_size=30)), min_size=1, max_size=20
    ),
    min_size=1,
    max_size=6,
)


@examples(60)
@given(appended=appended, data=st.data())
def test_any_part_of_any_blocks_is_read_exactly(
    tmp_path_factory: pytest.TempPathFactory, appended: list[Events], data: st.DataObject
) -> None:
    with (
        pytest.MonkeyPatch.context() as patch,
        SqliteStore(tmp_path_factory.mktemp("s") / "s.db", synchronous="normal") as store,
    ):
        patch.setattr(sqlite_blocks, "BLOCK_BYTES", data.draw(st.integers(1, 200)))
        patch.setattr(sqlite_blocks, "BLOCK_EVENTS", data.draw(st.integers(1, 10)))
        store.open_segments("s", ["0", "1", "2"])
        for events in appended:
            part = rows(*(value for _, value in events), keys=[key for key, _ in events])
            store.append("s", {"0": rows("other"), "1": part, "2": rows("other")})
        wanted = [event for events in appended for event in events]
        for _ in range(5):
            start, most = data.draw(st.integers(0, len(wanted))), data.draw(st.integers(1, 40))
            before = data.draw(st.none() | st.integers(0, len(wanted) + 3))
            stop = min(
                len(wanted), start + most, len(wanted) if before is None else max(before, start)
            )
            block = store.read("s", "1", start, most, before=before)
            found = list(
                zip(
                    block.rows["offset"].to_pylist(),
                    block.rows["key"].to_pylist(),
                    block.rows["value"].to_pylist(),
                    strict=True,
                )
            )
            assert found == [(offset, *wanted[offset]) for offset in range(start, stop)]
            assert block.next == stop
            block.rows.validate(full=True)


def test_a_mistyped_path_makes_no_file_where_none_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no store .*typo\.db"):
        open_store(tmp_path / "typo.db", create=False)
    assert not list(tmp_path.iterdir())
    open_store(tmp_path / "right.db").close()
    open_store(tmp_path / "right.db", create=False).close()
