"""A store in memory, optionally saved to one file at commit.

The file: magic, format version, length and BLAKE2b digest of the body, then the body: length of the
directory, the directory (JSON: name, kind and length of every value, in order), then the values.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidegate.errors import CorruptStateError, StateError
from tidegate.state.damage import damage_in
from tidegate.state.durability import make_folder, replace_file
from tidegate.state.file_lock import FileLock
from tidegate.state.serialization import decode_json, decode_table, encode_json, encode_table
from tidegate.state.store import closed, wrong_kind

MAGIC = b"TIDEGATE"
FORMAT = 1
_HEAD = struct.Struct("<8sIQ32s")
_LENGTH = struct.Struct("<Q")


class MemoryStore:
    """A store in memory; with a path, a commit replaces the file, and opening restores it.

    A file is open in one store at a time; a lock in `<path>.lock` refuses a second one.
    """

    spills = False

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.is_durable = self.path is not None
        self._values: dict[str, pa.Table | str] = {}
        self._dirty = False
        self._open = True
        self._lock = None if self.path is None else _locked(self.path)
        # A link that leads nowhere is no new state.
        if self.path is not None and (self.path.exists() or self.path.is_symlink()):
            try:
                self._values = _read(self.path)
            except BaseException:
                self.close()
                raise

    def __repr__(self) -> str:
        return f"MemoryStore({'' if self.path is None else repr(str(self.path))})"

    def put_table(self, name: str, table: pa.Table) -> None:
        self._changing()[name] = table

    def get_table(self, name: str) -> pa.Table:
        value = self._reading()[name]
        if isinstance(value, str):
            raise wrong_kind(name, "table", "document")
        return value

    def put_json(self, name: str, document: Any) -> None:
        self._changing()[name] = encode_json(document, name)

    def get_json(self, name: str, default: Any = None) -> Any:
        value = self._reading().get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise wrong_kind(name, "document", "table")
        return decode_json(value, name)

    def delete(self, name: str) -> None:
        self._changing().pop(name, None)

    def delete_prefix(self, prefix: str) -> None:
        for name in self.names(prefix):
            self.delete(name)

    def names(self, prefix: str = "") -> list[str]:
        return sorted(name for name in self._reading() if name.startswith(prefix))

    def contains(self, name: str) -> bool:
        return name in self._reading()

    def commit(self) -> None:
        values = self._reading()
        if self._dirty and self.path is not None:
            _write(self.path, values)
        self._dirty = False

    def close(self) -> None:
        self._open = False
        self._values = {}
        if self._lock is not None:
            self._lock.release()

    def _reading(self) -> dict[str, pa.Table | str]:
        if not self._open:
            raise closed(self)
        return self._values

    def _changing(self) -> dict[str, pa.Table | str]:
        values = self._reading()
        self._dirty = True
        return values


def _locked(path: Path) -> FileLock:
    try:
        make_folder(path.parent)
        return FileLock(path)
    except BlockingIOError as error:
        raise StateError(
            f"the state in {path} is already open, in this or another process. Hint: close the"
            " other store first; one at a time can open it"
        ) from error
    except OSError as error:
        raise StateError(
            f"the state in {path} cannot be opened: {error}. Hint: this process needs write access"
            " to the folder"
        ) from error


def _write(path: Path, values: dict[str, pa.Table | str]) -> None:
    """Replace the file atomically: a crash leaves the former or the new file."""
    directory: list[dict[str, Any]] = []
    blobs: list[bytes | memoryview] = []
    for name, value in sorted(values.items()):
        data = value.encode() if isinstance(value, str) else memoryview(encode_table(value))
        directory.append(
            {
                "name": name,
                "kind": "json" if isinstance(value, str) else "table",
                "length": len(data),
            }
        )
        blobs.append(data)
    index = encode_json(directory, "directory").encode()
    chunks = [_LENGTH.pack(len(index)), index, *blobs]
    digest = hashlib.blake2b(digest_size=32)
    for chunk in chunks:
        digest.update(chunk)
    try:
        head = _HEAD.pack(MAGIC, FORMAT, sum(map(len, chunks)), digest.digest())
        replace_file(path, [head, *chunks])
    except OSError as error:
        raise StateError(
            f"the state cannot be written to {path}: {error}. Hint: the former state is intact;"
            " free some space or grant access"
        ) from error


def _read(path: Path) -> dict[str, pa.Table | str]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StateError(
            f"the state file {path} cannot be read: {error}. Hint: this process needs read access"
            " to the file"
        ) from error
    body = _checked(path, data)
    values: dict[str, pa.Table | str] = {}
    with damage_in(f"the state file {path}"):
        for entry, value in _entries(body):
            name = entry["name"]
            values[name] = (
                bytes(value).decode() if entry["kind"] == "json" else decode_table(value, name)
            )
    return values


def _checked(path: Path, data: bytes) -> memoryview:
    """The body of the file, after checks of version, length and digest."""
    if len(data) < _HEAD.size or data[: len(MAGIC)] != MAGIC:
        raise _damaged(path, "it does not start like a Tidegate state file")
    _, version, length, digest = _HEAD.unpack_from(data)
    if version != FORMAT:
        hint = "open it with the version that wrote it, or move it away and replay the input"
        raise CorruptStateError(
            f"the state file {path} has format {version}; this version reads format {FORMAT}. Hint:"
            f" {hint}"
        )
    body = memoryview(data)[_HEAD.size :]
    if len(body) != length:
        raise _damaged(path, f"its body has {len(body)} bytes instead of {length}")
    if hashlib.blake2b(body, digest_size=32).digest() != digest:
        raise _damaged(path, "its checksum does not match")
    return body


def _entries(body: memoryview) -> Iterator[tuple[dict[str, Any], memoryview]]:
    start = _LENGTH.size + _LENGTH.unpack_from(body)[0]
    for entry in decode_json(bytes(body[_LENGTH.size : start]), "directory"):
        yield entry, body[start : start + entry["length"]]
        start += entry["length"]


def _damaged(path: Path, why: str) -> CorruptStateError:
    return CorruptStateError(
        f"the state file {path} is damaged: {why}. Hint: restore it from a backup, or move it away"
        " and replay the input"
    )
