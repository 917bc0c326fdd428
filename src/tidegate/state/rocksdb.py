"""A store in a RocksDB folder, for state larger than memory.

A commit writes only changes, in one synced batch.

Keys: `v` holds the format; `i` + name holds kind, number of parts, length and CRC-32 of a value;
`d` + name + part number (four bytes) holds a part of at most 4 MB. The index of names is read at
open and stays in memory; values are read on demand.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidegate.errors import CorruptStateError, MissingExtraError, StateError
from tidegate.state.durability import make_folder, sync_all
from tidegate.state.serialization import (
    Compression,
    decode_json,
    decode_table,
    encode_json,
    encode_table,
)
from tidegate.state.store import closed, wrong_kind

FORMAT = 1
PART_BYTES = 4 * 1024 * 1024
WRITE_BUFFER_BYTES = 16 * 1024 * 1024
"""The size of a memtable; there are at most two."""
BLOCK_CACHE_BYTES = 16 * 1024 * 1024
_VERSION = b"v"
_ENTRY = struct.Struct(">cIQI")
_PART = struct.Struct(">I")
_CONFIG = "rocksdict-config.json"
_COMMITTED = "COMMITTED"
"""A file in the folder that shows that there was a commit."""
_TABLE, _JSON = b"T", b"J"


@dataclass(frozen=True, slots=True)
class _Entry:
    """Index entry of a committed value."""

    kind: bytes
    parts: int
    length: int
    checksum: int

    def pack(self) -> bytes:
        return _ENTRY.pack(self.kind, self.parts, self.length, self.checksum)

    @classmethod
    def unpack(cls, data: bytes) -> _Entry:
        return cls(*_ENTRY.unpack(data))


class _Cache:
    """LRU cache of decoded tables, bounded by bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0
        self._tables: OrderedDict[str, pa.Table] = OrderedDict()

    def get(self, name: str) -> pa.Table | None:
        table = self._tables.get(name)
        if table is not None:
            self._tables.move_to_end(name)
        return table

    def put(self, name: str, table: pa.Table) -> None:
        self.discard(name)
        if table.nbytes > self.limit:
            return
        self._tables[name] = table
        self.nbytes += table.nbytes
        while self.nbytes > self.limit:
            self.nbytes -= self._tables.popitem(last=False)[1].nbytes

    def discard(self, name: str) -> None:
        table = self._tables.pop(name, None)
        if table is not None:
            self.nbytes -= table.nbytes


class RocksDBStore:
    """A store in a RocksDB folder, open in one process at a time.

    Writes are buffered until `commit`.
    """

    spills = True
    is_durable = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        cache_bytes: int = 64 * 1024 * 1024,
        compression: Compression = "lz4",
    ) -> None:
        self.path = Path(path)
        self._compression = compression
        self._cache = _Cache(cache_bytes)
        self._pending: dict[str, pa.Table | str | None] = {}
        self._write_failed, self._committed = False, False
        self._db: Any = None
        self._index: dict[str, _Entry] = {}
        self._open_database()

    def __repr__(self) -> str:
        return f"RocksDBStore({str(self.path)!r})"

    @property
    def cached_bytes(self) -> int:
        return self._cache.nbytes

    def put_table(self, name: str, table: pa.Table) -> None:
        self._buffer(name, table)

    def get_table(self, name: str) -> pa.Table:
        if name in self._changes():
            value = self._pending[name]
            if value is None:
                raise KeyError(name)
            if isinstance(value, str):
                raise wrong_kind(name, "table", "document")
            return value
        table = self._cache.get(name)
        if table is None:
            table = decode_table(self._fetch(name, _TABLE), name)
            self._cache.put(name, table)
        return table

    def put_json(self, name: str, document: Any) -> None:
        self._buffer(name, encode_json(document, name))

    def get_json(self, name: str, default: Any = None) -> Any:
        if not self.contains(name):
            return default
        value = self._pending.get(name)
        if isinstance(value, pa.Table):
            raise wrong_kind(name, "document", "table")
        return decode_json(self._fetch(name, _JSON) if value is None else value, name)

    def delete(self, name: str) -> None:
        if name in self._index:
            self._buffer(name, None)
        else:
            self._changes().pop(name, None)

    def delete_prefix(self, prefix: str) -> None:
        for name in self.names(prefix):
            self.delete(name)

    def names(self, prefix: str = "") -> list[str]:
        changes = self._changes()
        found = {name for name in self._index if name.startswith(prefix) and name not in changes}
        found.update(
            name for name, value in changes.items() if value is not None and name.startswith(prefix)
        )
        return sorted(found)

    def contains(self, name: str) -> bool:
        changes = self._changes()
        return changes[name] is not None if name in changes else name in self._index

    def commit(self) -> None:
        """Write all changes since the last commit in one synced, atomic batch.

        After an error, the changes are still pending, and `commit` may be called again.
        """
        if not self._changes():
            return
        import rocksdict

        if self._write_failed:
            self._reopen()
        batch = rocksdict.WriteBatch(raw_mode=True)
        entries = {name: self._stage(batch, name, value) for name, value in self._pending.items()}
        options = rocksdict.WriteOptions()
        options.sync = True
        try:
            self._db.write(batch, options)
        except Exception as error:
            self._write_failed = True
            raise _commit_failed(self.path, error) from error
        self._mark_committed()
        for name, entry in entries.items():
            self._settle(name, entry, self._pending[name])
        self._pending.clear()

    def _mark_committed(self) -> None:
        """Leave a file that shows that there is state; a commit does not depend on it."""
        if not self._committed:
            with suppress(OSError):
                (self.path / _COMMITTED).touch()
                sync_all([self.path / _COMMITTED, self.path])
            self._committed = True

    def close(self) -> None:
        """Close the database; it is closed after an error too. Commits are not affected."""
        database, self._db = self._db, None
        self._pending = {}
        self._cache = _Cache(0)
        if database is None:
            return
        try:
            database.close()
        except Exception as error:
            raise StateError(
                f"the state in {self.path} was closed with an error: {error}. Hint: the last commit"
                " is intact; free some space and open it again"
            ) from error

    def _open_database(self) -> None:
        database = _open(self.path)
        self._db = database
        try:
            self._index = self._load_index()
        except BaseException:
            with suppress(Exception):
                database.close()
            raise

    def _reopen(self) -> None:
        """Open the database again: RocksDB refuses all writes after one that failed."""
        with suppress(Exception):
            self._db.close()
        try:
            self._open_database()
        except StateError as error:
            raise _commit_failed(self.path, error) from error
        self._write_failed = False

    def _changes(self) -> dict[str, pa.Table | str | None]:
        if self._db is None:
            raise closed(self)
        return self._pending

    def _buffer(self, name: str, value: pa.Table | str | None) -> None:
        self._changes()[name] = value
        self._cache.discard(name)

    def _stage(self, batch: Any, name: str, value: pa.Table | str | None) -> _Entry | None:
        """Add a value to the batch, and delete surplus parts of its former version."""
        key = name.encode()
        former = self._index.get(name)
        entry = None
        if value is None:
            batch.delete(b"i" + key)
        else:
            data = memoryview(
                value.encode() if isinstance(value, str) else encode_table(value, self._compression)
            )
            parts = [data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)]
            entry = _Entry(
                _JSON if isinstance(value, str) else _TABLE, len(parts), len(data), zlib.crc32(data)
            )
            batch.put(b"i" + key, entry.pack())
            for number, part in enumerate(parts):
                batch.put(b"d" + key + _PART.pack(number), bytes(part))
        for number in range(entry.parts if entry else 0, former.parts if former else 0):
            batch.delete(b"d" + key + _PART.pack(number))
        return entry

    def _settle(self, name: str, entry: _Entry | None, value: pa.Table | str | None) -> None:
        if entry is None:
            self._index.pop(name, None)
            return
        self._index[name] = entry
        if isinstance(value, pa.Table):
            self._cache.put(name, value)

    def _fetch(self, name: str, kind: bytes) -> bytes:
        """The bytes of a committed value, assembled from its parts and verified."""
        entry = self._index[name]
        if entry.kind != kind:
            raise wrong_kind(
                name, *(("table", "document") if kind == _TABLE else ("document", "table"))
            )
        try:
            parts = [
                self._db.get(b"d" + name.encode() + _PART.pack(number))
                for number in range(entry.parts)
            ]
        except Exception as error:
            raise _damaged(self.path, str(error)) from error
        if None in parts:
            raise _damaged(self.path, f"`{name}` lacks part {parts.index(None)} of {entry.parts}")
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if len(data) != entry.length or zlib.crc32(data) != entry.checksum:
            raise _damaged(self.path, f"the checksum of `{name}` does not match")
        return data

    def _load_index(self) -> dict[str, _Entry]:
        try:
            return self._read_index()
        except StateError:
            raise
        except Exception as error:
            raise _refused(self.path, str(error)) from error

    def _read_index(self) -> dict[str, _Entry]:
        index: dict[str, _Entry] = {}
        version = self._db.get(_VERSION)
        if version is None:
            # RocksDB takes a manifest that is cut off for one of an older database.
            if (self.path / _COMMITTED).exists():
                raise _damaged(self.path, "it has no state, but there was a commit")
            self._start()
            return index
        if version != str(FORMAT).encode():
            hint = "open it with the version that wrote it, or move it away and replay the input"
            raise CorruptStateError(
                f"the state in {self.path} has format {version.decode(errors='replace')}; this"
                f" version reads format {FORMAT}. Hint: {hint}"
            )
        rows = self._db.iter()
        rows.seek(b"i")
        while rows.valid():
            key, value = rows.key(), rows.value()
            if key[:1] != b"i":
                break
            try:
                index[key[1:].decode()] = _Entry.unpack(value)
            except (struct.error, UnicodeDecodeError) as error:
                raise _damaged(self.path, f"the index entry {key!r} is invalid") from error
            rows.next()
        # An iterator ends at a damaged block as it does behind the last row.
        rows.status()
        return index

    def _start(self) -> None:
        """Initialise an empty database; one with foreign content is left alone."""
        rows = self._db.iter()
        rows.seek_to_first()
        rows.status()
        if rows.valid():
            raise CorruptStateError(
                f"the RocksDB folder {self.path} was not written by Tidegate. Hint: give the state"
                " a folder of its own"
            )
        self._db.put(_VERSION, str(FORMAT).encode())


def _open(path: Path) -> Any:
    try:
        import rocksdict
    except ImportError as error:
        raise MissingExtraError("rocksdict", "rocksdb", "the RocksDB store") from error
    try:
        make_folder(path)
        database = rocksdict.Rdict(str(path), _options(rocksdict))
        # The only file that neither RocksDB nor the binding syncs.
        sync_all([path / _CONFIG, path])
    except Exception as error:
        raise _refused(path, str(error)) from error
    return database


def _options(rocksdict: Any) -> Any:
    """Options: large values are in blob files, so that compaction moves only small keys.

    Values are already compressed.
    """
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_compression_type(rocksdict.DBCompressionType.none())
    options.set_blob_compression_type(rocksdict.DBCompressionType.none())
    options.set_enable_blob_files(True)
    options.set_min_blob_size(4096)
    options.set_enable_blob_gc(True)
    # A crash may leave a torn last record; damage before it must be an error, not a silent
    # rollback.
    options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.tolerate_corrupted_tail_records())
    # The memory of RocksDB itself: memtables, their log, and cached blocks of keys.
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(2)
    options.set_max_total_wal_size(4 * WRITE_BUFFER_BYTES)
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_block_cache(rocksdict.Cache(BLOCK_CACHE_BYTES))
    blocks.set_cache_index_and_filter_blocks(True)
    options.set_block_based_table_factory(blocks)
    options.set_max_open_files(256)
    options.set_keep_log_file_num(2)
    return options


def _refused(path: Path, why: str) -> StateError:
    if "lock" in why.lower() and ("hold" in why or "While lock file" in why):
        return StateError(
            f"the state in {path} is already open, in this or another process. Hint: close the"
            " other first; one process at a time can open it"
        )
    if "Corruption" in why:
        return _damaged(path, why)
    return StateError(
        f"the state in {path} cannot be opened: {why}. Hint: this process needs write access to"
        " the folder"
    )


def _commit_failed(path: Path, error: Exception) -> StateError:
    return StateError(
        f"the commit to {path} failed: {error}. Hint: the last commit is intact; free some space"
        " and commit again"
    )


def _damaged(path: Path, why: str) -> CorruptStateError:
    return CorruptStateError(
        f"the state in {path} is damaged: {why}. Hint: restore the folder from a backup, or move"
        " it away and replay the input"
    )
