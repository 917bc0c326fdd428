"""A store of streams in one SQLite file, for the processes of one machine.

The file is in WAL mode: readers never wait, and only changes wait for each other. A small append to
a segment is one row of the file, so that a thousand events cost little more than one.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from tidegate.errors import (
    CorruptStateError,
    InputError,
    SetupError,
    SpecError,
    StateError,
    TidegateError,
)
from tidegate.state.serialization import decode_json, encode_json
from tidegate.streams import validation
from tidegate.streams.sqlite_blocks import checksum, decode_events, encode_events
from tidegate.streams.store import BLOCK, Appended, Block, Cell, Conflict, EventBatch, Store, Swap

T = TypeVar("T")

APPLICATION = int.from_bytes(b"TdGt")
"""SQLite application id of the files of this store."""
FORMAT = 2
PATIENCE = 60.0
"""Lock timeout in seconds."""
READ_BYTES = 128 << 20
"""A read ends early with the block that exceeds this size."""
PAUSE = (0.0002, 0.003)
"""Range of the delay between two attempts, in seconds."""
WAL_PAGES = 10_000
"""Number of WAL pages that triggers a checkpoint."""
WAL_BYTES = 64 << 20
"""WAL size that triggers a truncating checkpoint, which waits for current readers."""
_AT_ONCE = 100
OFFSET_BITS = 40
"""Bits of the offset in a row id: a row id is a segment number and the offset of its first event.
"""
_OFFSETS = (1 << OFFSET_BITS) - 1

TABLES = """
CREATE TABLE counter (version INTEGER NOT NULL);
INSERT INTO counter VALUES (0);
CREATE TABLE cell (
    stream TEXT, key TEXT, version INTEGER NOT NULL, document TEXT NOT NULL,
    PRIMARY KEY (stream, key)
) WITHOUT ROWID;
CREATE TABLE segment (
    id INTEGER PRIMARY KEY, stream TEXT NOT NULL, name TEXT NOT NULL,
    first INTEGER NOT NULL DEFAULT 0, next INTEGER NOT NULL DEFAULT 0,
    sealed INTEGER NOT NULL DEFAULT 0, UNIQUE (stream, name)
);
CREATE TABLE block (
    id INTEGER PRIMARY KEY, count INTEGER NOT NULL, appended INTEGER NOT NULL,
    checksum INTEGER NOT NULL, data BLOB NOT NULL
)
"""
# The end of a segment is the end of its last block, so that an append changes only one table.
# `next` is the end at the time of the last truncation.
_LAST = f"""
SELECT block.id + count FROM block WHERE block.id < (segment.id + 1) << {OFFSET_BITS}
ORDER BY block.id DESC LIMIT 1
"""  # noqa: S608 - the number is a constant
END = f"max(next, coalesce(({_LAST}), 0) - (segment.id << {OFFSET_BITS}))"
SEGMENT = f"SELECT name, id, first, {END}, sealed FROM segment WHERE stream = ?"  # noqa: S608
APPEND = f"""
INSERT INTO block SELECT (segment.id << {OFFSET_BITS}) + {END}, ?, ?, ?, ?
FROM segment WHERE stream = ? AND name = ? AND NOT sealed
"""  # noqa: S608 - constants

_open_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()


class SqliteStore(Store):
    """Streams in one SQLite file.

    With `synchronous="full"` a change is on disk when its call returns. With `"normal"` it survives
    the crash of every process, but a power failure may lose the last changes; the file stays
    consistent.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, synchronous: str = "full", create: bool = True
    ) -> None:
        if synchronous not in {"full", "normal"}:
            raise SpecError(
                f'`synchronous` is "full" or "normal", got {synchronous!r}. Hint: with "normal" a'
                " power failure may lose the last changes"
            )
        self.path = Path(os.path.abspath(path))  # noqa: PTH100
        if "?" in str(self.path):
            raise SpecError(
                "the path of a store must not contain `?`, which starts the options of its"
                f" address, got {self.path}"
            )
        if not create and not self.path.is_file():
            raise InputError(
                f"there is no store {self.path}. Hint: tidegate stream create {self.path} NAME"
            )
        self.synchronous = synchronous
        self.url = f"sqlite:{self.path}" + (
            "?synchronous=normal" if synchronous == "normal" else ""
        )
        self._idle: list[sqlite3.Connection] = []
        self._busy = 0
        self._gate = threading.Lock()
        self._quiet = threading.Condition(self._gate)
        self._held = False
        self._turn = threading.Lock()
        self._changes = 0
        self._log = self.path.with_name(f"{self.path.name}-wal")
        self._closed = False
        with _registry:
            _open_stores.add(self)
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    # Cells

    def cells(self, stream: str, prefix: str = "") -> dict[str, Cell]:
        validation.owner_name(stream)
        start = validation.key_prefix(prefix)
        query = (
            "SELECT key, document, version FROM cell WHERE stream = ? AND key >= ? AND key < ?"
            " ORDER BY key"
        )
        # All characters of a key are below this one.
        found = self._seen(
            lambda file: file.execute(query, (stream, start, f"{start}\x7f")).fetchall()
        )
        return {key: Cell(decode_json(document, key), version) for key, document, version in found}

    def cell(self, stream: str, key: str) -> Cell | None:
        validation.owner_name(stream)
        query = "SELECT document, version FROM cell WHERE stream = ? AND key = ?"
        found = self._seen(
            lambda file: file.execute(query, (stream, validation.cell_key(key))).fetchone()
        )
        return None if found is None else Cell(decode_json(found[0], key), found[1])

    def swap(self, stream: str, swap: Swap) -> int:
        validation.owner_name(stream)
        validation.check_swap(swap)
        document = _document(swap)

        def work(file: sqlite3.Connection) -> int:
            _check(file, stream, swap)
            return _put(file, stream, swap.key, document)

        return self._changed(work)

    # Logs

    def streams(self) -> list[str]:
        query = (
            "SELECT stream FROM segment UNION SELECT stream FROM cell WHERE stream != '' ORDER BY 1"
        )
        return [name for (name,) in self._seen(lambda file: file.execute(query).fetchall())]

    def drop(self, stream: str) -> None:
        validation.stream_name(stream)

        def work(file: sqlite3.Connection) -> None:
            for number, _, _, _ in _segments(file, stream).values():
                file.execute(
                    "DELETE FROM block WHERE id >= ? AND id < ?",
                    (_row(number, 0), _row(number + 1, 0)),
                )
            file.execute("DELETE FROM segment WHERE stream = ?", (stream,))
            file.execute("DELETE FROM cell WHERE stream = ?", (stream,))

        self._changed(work)

    def open_segments(self, stream: str, names: list[str]) -> None:
        validation.stream_name(stream)

        def work(file: sqlite3.Connection) -> None:
            new = validation.new_segments(names, _segments(file, stream))
            file.executemany(
                "INSERT INTO segment (stream, name) VALUES (?, ?)", [(stream, name) for name in new]
            )

        self._changed(work)

    def append(
        self,
        stream: str,
        rows: Mapping[str, EventBatch],
        *,
        swap: Swap | None = None,
        whole: bool = False,
    ) -> Appended:
        validation.stream_name(stream)
        packed = {name: encode_events(part) for name, part in rows.items() if part.values}
        if swap is not None:
            validation.check_swap(swap)
        document = None if swap is None or callable(swap.document) else _document(swap)
        if (
            swap is None
            and len(rows) == 1
            and (done := self._append_one(stream, packed)) is not None
        ):
            return done

        def work(file: sqlite3.Connection) -> Appended:
            found = _named(file, stream, list(rows))
            refused = {name: len(rows[name]) for name in packed if found[name][3]}
            if swap is not None:
                _check(file, stream, swap)
            if refused and (whole or swap is not None):
                return Appended({}, refused)
            now = time.time_ns() // 1000
            position: dict[str, int] = {}
            written: list[tuple[int, int, int, int, bytes]] = []
            for name, blocks in packed.items():
                number, _, at, sealed = found[name]
                if sealed:
                    continue
                for count, data in blocks:
                    check = checksum(count, now, data)
                    written.append((_row(number, at), count, now, check, data))
                    at += count
                position[name] = at
            file.executemany("INSERT INTO block VALUES (?, ?, ?, ?, ?)", written)
            if swap is not None:
                _put(
                    file,
                    stream,
                    swap.key,
                    (
                        _document(replace(swap, document=swap.document(position)))
                        if callable(swap.document)
                        else document
                    ),
                )
            return Appended(position, refused)

        return self._changed(work)

    def _append_one(
        self, stream: str, packed: Mapping[str, list[tuple[int, bytes]]]
    ) -> Appended | None:
        """Append a single block with one statement; None if the segment does not accept it."""
        if len(packed) != 1 or len(packed[name := next(iter(packed))]) != 1:
            return None
        [(count, data)] = packed[name]

        def work(file: sqlite3.Connection) -> sqlite3.Cursor:
            now = time.time_ns() // 1000
            values = (count, now, checksum(count, now, data), data, stream, name)
            return file.execute(APPEND, values)

        done = self._run("", work, changes=True)
        if not done.rowcount or done.lastrowid is None:
            return None
        return Appended({name: (done.lastrowid & _OFFSETS) + count}, {})

    def seal(self, stream: str, segment: str) -> int:
        validation.stream_name(stream)

        def work(file: sqlite3.Connection) -> int:
            number, _, end, sealed = _segment(file, stream, segment)
            if not sealed:
                file.execute("UPDATE segment SET sealed = 1 WHERE id = ?", (number,))
            return end

        return self._changed(work)

    def read(
        self, stream: str, segment: str, offset: int, most: int, *, before: int | None = None
    ) -> Block:
        validation.stream_name(stream)
        validation.check_read(offset, most)

        def work(file: sqlite3.Connection) -> Block:
            number, first, end, sealed = _segment(file, stream, segment)
            if not first <= offset <= end:
                hint = ". Hint: that part is truncated" if offset < first else ""
                raise InputError(
                    f"segment {segment} of stream `{stream}` can be read from {first} to {end}, got"
                    f" the offset {offset}{hint}"
                )
            stop = min(end, offset + most, end if before is None else before)
            if stop <= offset:
                return Block(BLOCK.empty_table(), offset, sealed and offset == end)
            blocks, reached = _blocks(file, number, offset, stop)
            return Block(decode_events(blocks, offset, reached), reached, sealed and reached == end)

        return self._seen(work)

    def bounds(self, stream: str) -> dict[str, tuple[int, int]]:
        validation.stream_name(stream)

        def work(file: sqlite3.Connection) -> dict[str, tuple[int, int]]:
            found = _segments(file, stream)
            if (
                not found
                and file.execute(
                    "SELECT 1 FROM cell WHERE stream = ? LIMIT 1", (stream,)
                ).fetchone()
                is None
            ):
                raise _unknown(file, stream)
            return {name: (first, end) for name, (_, first, end, _) in found.items()}

        return self._seen(work)

    def truncate(self, stream: str, starts: Mapping[str, int]) -> None:
        validation.stream_name(stream)

        def work(file: sqlite3.Connection) -> None:
            for name, start in starts.items():
                number, first, end, _ = _segment(file, stream, name)
                if start > end:
                    raise InputError(
                        f"segment {name} of stream `{stream}` ends at {end}, so it cannot be"
                        f" truncated at {start}"
                    )
                if start <= first:
                    continue
                file.execute(
                    "UPDATE segment SET first = ?, next = ? WHERE id = ?", (start, end, number)
                )
                # The last block before the start may extend beyond it.
                query = "SELECT id, id + count FROM block WHERE id < ? ORDER BY id DESC LIMIT 1"
                last, after = file.execute(query, (_row(number, start),)).fetchone()
                stop = last if after > _row(number, start) else after
                file.execute("DELETE FROM block WHERE id >= ? AND id < ?", (_row(number, 0), stop))

        self._changed(work)

    def close(self) -> None:
        with self._gate:
            self._closed = True
        self.hold()
        self.release()
        with _registry:
            _open_stores.discard(self)

    def hold(self) -> None:
        """Wait for active calls, close all connections, and block new calls."""
        self._gate.acquire()
        while self._busy:
            # Set again after each wait: another holder may have released meanwhile.
            self._held = True
            self._quiet.wait()
        while self._idle:
            self._idle.pop().close()

    def release(self) -> None:
        """Unblock calls."""
        self._held = False
        self._gate.release()

    # The file

    def _prepare(self) -> None:
        """Create the file if it is missing; otherwise check that it is a store."""
        if not os.path.isdir(self.path.parent):  # noqa: PTH112
            raise SetupError(
                f"the folder of a store must exist, got {self.path}. Hint: mkdir -p"
                f" {self.path.parent}"
            )

        def kind(file: sqlite3.Connection) -> tuple[int, int, int]:
            application, form, tables = (
                "PRAGMA application_id",
                "PRAGMA user_version",
                "SELECT count(*) FROM sqlite_master",
            )
            return tuple(file.execute(query).fetchone()[0] for query in (application, form, tables))

        def make(file: sqlite3.Connection) -> None:
            if kind(file) != (0, 0, 0):
                return
            for statement in TABLES.split(";"):
                file.execute(statement)
            file.execute(f"PRAGMA user_version = {FORMAT}")
            file.execute(f"PRAGMA application_id = {APPLICATION}")

        found = self._seen(kind)
        if found == (0, 0, 0):
            self._run("", lambda file: _into_wal(file, self.path))
            self._changed(make)
            found = self._seen(kind)
        application, form, _ = found
        if application != APPLICATION:
            raise CorruptStateError(
                f"{self.path} is a SQLite file, but not a store of streams. Hint: give the store a"
                " file of its own"
            )
        if form != FORMAT:
            raise CorruptStateError(
                f"{self.path} is a store of format {form}, but this Tidegate reads format"
                f" {FORMAT}. Hint: use the version of Tidegate that wrote it"
            )

    def _seen(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a read in one snapshot."""
        return self._run("BEGIN", work)

    def _changed(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a change; changes are serialised."""
        return self._run("BEGIN IMMEDIATE", work, changes=True)

    def _run(
        self, begin: str, work: Callable[[sqlite3.Connection], T], *, changes: bool = False
    ) -> T:
        """Run `work` in a transaction, with retries while the file is locked.

        Rolls back on failure. With an empty `begin`, each statement is a transaction of its own.
        """
        deadline = time.monotonic() + PATIENCE
        # Enter first: whoever holds the turn is inside, so the process never forks while a thread
        # holds it.
        self._enter()
        file = None
        try:
            with self._turn if changes else nullcontext():
                try:
                    file = self._idle.pop()
                except IndexError:
                    file = self._connected()
                return self._again(file, begin, work, deadline, changes=changes)
        finally:
            self._leave(file)

    def _again(
        self,
        file: sqlite3.Connection,
        begin: str,
        work: Callable[[sqlite3.Connection], T],
        deadline: float,
        *,
        changes: bool,
    ) -> T:
        while True:
            try:
                if begin:
                    file.execute(begin)
                result = work(file)
                if begin:
                    file.execute("COMMIT")
            except BaseException as error:
                if file.in_transaction:
                    file.execute("ROLLBACK")
                if not isinstance(error, sqlite3.Error):
                    raise
                if not _in_the_way(error) or time.monotonic() > deadline:
                    raise self._explained(error) from error
            else:
                if changes:
                    self._shorten(file)
                return result
            # Short and random, independent of the time waited, so that no process starves.
            time.sleep(random.uniform(*PAUSE))  # noqa: S311 - jitter

    def _shorten(self, file: sqlite3.Connection) -> None:
        """Checkpoint the WAL if constant readers have let it grow."""
        self._changes += 1
        if self._changes % 64:
            return
        # The change is committed: a failure here is retried later.
        with suppress(OSError, sqlite3.Error):
            if self._log.stat().st_size > WAL_BYTES:
                file.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()

    def _enter(self) -> None:
        """Begin a call, during which the store is neither closed nor forked."""
        with self._gate:
            if self._closed:
                raise InputError(f"the store {self.url} is closed. Hint: open it again")
            self._busy += 1

    def _leave(self, file: sqlite3.Connection | None) -> None:
        """End a call, and return its connection to the pool."""
        with self._gate:
            if file is not None and file.in_transaction:
                # The rollback failed, so the connection is not reusable.
                file.close()
            elif file is not None:
                self._idle.append(file)
            self._busy -= 1
            if self._held:
                self._quiet.notify_all()

    def _connected(self) -> sqlite3.Connection:
        log = [f"wal_autocheckpoint = {WAL_PAGES}", f"journal_size_limit = {WAL_BYTES}"]
        file = None
        try:
            file = sqlite3.connect(
                self.path, timeout=PATIENCE, isolation_level=None, check_same_thread=False
            )
            # From here on, retries are explicit: the backoff of SQLite grows, and would serve
            # latecomers first.
            for setting in (
                f"synchronous = {self.synchronous}",
                "secure_delete = OFF",
                *log,
                "busy_timeout = 0",
            ):
                file.execute(f"PRAGMA {setting}").close()
        except sqlite3.Error as error:
            if file is not None:
                file.close()
            raise self._explained(error) from error
        return file

    def _explained(self, error: sqlite3.Error) -> TidegateError:
        """Translate an error of SQLite."""
        kind, details = _REASONS.get(
            getattr(error, "sqlite_errorcode", 0) & 0xFF, (StateError, "cannot be used")
        )
        return kind(
            f"the store {self.path} {details}"
            f" ({getattr(error, 'sqlite_errorname', type(error).__name__)}: {error})"
        )


_REASONS: dict[int, tuple[type[TidegateError], str]] = {
    sqlite3.SQLITE_BUSY: (
        StateError,
        (
            f"was locked by other processes for {PATIENCE:g} seconds. Hint: a process may be"
            " stopped within a change"
        ),
    ),
    sqlite3.SQLITE_FULL: (
        StateError,
        (
            "cannot grow: the disk is full. The change was rolled back. Hint: free some space,"
            " and retry"
        ),
    ),
    sqlite3.SQLITE_IOERR: (
        StateError,
        ("cannot be read or written: the disk failed. Hint: check the content before you retry"),
    ),
    sqlite3.SQLITE_READONLY: (
        SetupError,
        (
            "cannot be changed. Hint: file and folder must be writable, because SQLite keeps"
            " files beside it"
        ),
    ),
    sqlite3.SQLITE_CANTOPEN: (
        SetupError,
        (
            "cannot be opened. Hint: file and folder must be readable and writable, because"
            " SQLite keeps files beside it"
        ),
    ),
    sqlite3.SQLITE_PERM: (
        SetupError,
        "cannot be opened. Hint: file and folder must be readable and writable",
    ),
    sqlite3.SQLITE_CORRUPT: (CorruptStateError, "is damaged. Hint: restore it from a backup"),
    sqlite3.SQLITE_NOTADB: (
        CorruptStateError,
        "is not a SQLite file. Hint: give the store a file of its own",
    ),
    sqlite3.SQLITE_TOOBIG: (
        InputError,
        "does not accept an event of this size. Hint: the limit of SQLite is about 1 GB",
    ),
}


def _in_the_way(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
    }


def _into_wal(file: sqlite3.Connection, path: Path) -> None:
    (mode,) = file.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise SetupError(
            f"{path} cannot use the WAL mode of SQLite, it stays in `{mode}`. Hint: use a local,"
            " writable disk"
        )


# Statements


def _row(segment: int, offset: int) -> int:
    return (segment << OFFSET_BITS) + offset


Known = tuple[int, int, int, bool]
"""A segment: its number, first offset, end, and whether it is sealed."""


def _segments(file: sqlite3.Connection, stream: str) -> dict[str, Known]:
    """All segments of a stream, in the order of creation."""
    return {
        name: (number, first, end, bool(sealed))
        for name, number, first, end, sealed in file.execute(f"{SEGMENT} ORDER BY id", (stream,))
    }


def _named(file: sqlite3.Connection, stream: str, names: Collection[str]) -> dict[str, Known]:
    """The named segments, and possibly others."""
    if len(names) > _AT_ONCE:
        known = _segments(file, stream)
    else:
        rows = file.execute(
            f"{SEGMENT} AND name IN ({', '.join('?' * len(names))})", (stream, *names)
        )
        known = {
            name: (number, first, end, bool(sealed)) for name, number, first, end, sealed in rows
        }
    if unknown := [name for name in names if name not in known]:
        known = _segments(file, stream)
        if not known:
            raise _unknown(file, stream)
        raise InputError(
            f"stream `{stream}` has no segment `{unknown[0]}`, it has {', '.join(known)}"
        )
    return known


def _segment(file: sqlite3.Connection, stream: str, name: str) -> Known:
    return _named(file, stream, [name])[name]


def _unknown(file: sqlite3.Connection, stream: str) -> InputError:
    known = ", ".join(
        name for (name,) in file.execute("SELECT DISTINCT stream FROM segment ORDER BY stream")
    )
    return InputError(
        f"there is no stream `{stream}` with segments; there"
        f" {f'are {known}' if known else 'is none'}. Hint: open its segments first"
    )


def _document(swap: Swap) -> str | None:
    return None if swap.document is None else encode_json(swap.document, swap.key)


def _check(file: sqlite3.Connection, stream: str, swap: Swap) -> None:
    row = file.execute(
        "SELECT version FROM cell WHERE stream = ? AND key = ?", (stream, swap.key)
    ).fetchone()
    found = 0 if row is None else row[0]
    if found != swap.version:
        raise Conflict(
            f"the cell `{swap.key}` of `{stream}` has version {found} (0: it does not exist), but"
            f" the change expects version {swap.version}"
        )


def _put(file: sqlite3.Connection, stream: str, key: str, document: str | None) -> int:
    # One counter for all cells of the file: a cell that is deleted and created again never reuses a
    # version.
    file.execute("UPDATE counter SET version = version + 1")
    (new,) = file.execute("SELECT version FROM counter").fetchone()
    if document is None:
        file.execute("DELETE FROM cell WHERE stream = ? AND key = ?", (stream, key))
    else:
        file.execute(
            "INSERT OR REPLACE INTO cell (stream, key, version, document) VALUES (?, ?, ?, ?)",
            (stream, key, new, document),
        )
    return int(new)


def _checksum(count: object, appended: object, data: object) -> int | None:
    """The checksum of a row as read; None if damage has changed a type."""
    known = isinstance(count, int) and isinstance(appended, int) and isinstance(data, bytes)
    return checksum(count, appended, data) if known else None  # type: ignore[arg-type]


def _blocks(
    file: sqlite3.Connection, number: int, start: int, stop: int
) -> tuple[list[tuple[int, int, int, bytes]], int]:
    """The blocks with events between two offsets, and the offset that they reach.

    A block is its first offset, its number of events, its time and its bytes.
    """
    query = (
        "SELECT id, count, appended, checksum, data FROM block WHERE id >= (SELECT max(id) FROM"
        " block WHERE id <= ?) AND id < ? ORDER BY id"
    )
    found: list[tuple[int, int, int, bytes]] = []
    reached, size = -1, 0
    for row, count, appended, check, data in file.execute(
        query, (_row(number, start), _row(number, stop))
    ):
        first = row - _row(number, 0)
        if check != _checksum(count, appended, data):
            raise CorruptStateError(
                f"the events from the offset {first} of a segment are damaged: their checksum does"
                " not match. Hint: restore the store from a backup"
            )
        if first != reached and (found or first > start):
            break
        found.append((first, count, appended, data))
        reached, size = first + count, size + len(data)
        if size > READ_BYTES:
            break
    if reached <= start or (reached < stop and size <= READ_BYTES):
        raise CorruptStateError(
            f"a store of streams has lost events between the offsets {start} and {stop}. Hint:"
            " restore it from a backup"
        )
    return found, min(reached, stop)


# Fork handling

_registry = threading.Lock()
_held: list[SqliteStore] = []


def _before_fork() -> None:
    """Close all connections before a fork.

    SQLite tracks the locks of a process in memory, and a child would take those of its parent for
    its own.
    """
    _registry.acquire()
    for store in list(_open_stores):
        store.hold()
        _held.append(store)


def _after_fork() -> None:
    while _held:
        _held.pop().release()
    _registry.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
    )
