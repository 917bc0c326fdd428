"""The state store of a shard: named Arrow tables and JSON documents in Spark state variables.

There are two variables, the same for every specification. `blobs` maps a name and a part number to
at most 4 MB of a compressed table. `meta` holds the index of the tables, the documents, and a
summary that can be read without them. The store has its own index, because Spark reads all values
to list the names. A commit writes the changes. The index has a checksum of each table, and the
summary one of the index and itself; damage raises `CorruptStateError`.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from typing import Any, Protocol

import pyarrow as pa

from tidegate.errors import CorruptStateError
from tidegate.spark.tasks.local_state_cache import LocalStateCache
from tidegate.state.damage import damage_in
from tidegate.state.serialization import decode_json, decode_table, encode_compact, encode_json
from tidegate.state.store import wrong_kind

FORMAT = 1
PART_BYTES = 4 << 20
_SPILLED = "\x00document"
"""The name of the index and the documents if they are too large for one value."""


class MapState(Protocol):
    """The methods of Spark's map state that the store uses."""

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None: ...  # noqa: N802

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None: ...  # noqa: N802

    def removeKey(self, key: tuple[Any, ...]) -> None: ...  # noqa: N802


class ValueState(Protocol):
    """The methods of Spark's value state that the store uses."""

    def get(self) -> tuple[Any, ...] | None: ...

    def update(self, value: tuple[Any, ...]) -> None: ...


class SparkStore:
    """A `tidegate.state.store.Store`; durable when Spark commits the batch."""

    spills = True
    is_durable = True

    def __init__(
        self,
        meta: ValueState,
        blobs: MapState,
        value: tuple[Any, ...] | None = None,
        cache: LocalStateCache | None = None,
    ) -> None:
        """`value`: of the meta variable, if it has one. `cache`: for faster reads of tables."""
        self._meta, self._blobs, self._cache = meta, blobs, cache
        self.summary: dict[str, Any] = {}
        """A summary for readers of the checkpoint; written with each commit."""
        self._tables: dict[str, list[int]] = {}
        """The number of parts, the size in bytes and the checksum of each stored table."""
        self._cached: dict[str, str] = {}
        """The name of each cached table in the cache."""
        self._documents: dict[str, str] = {}
        self._changes: dict[str, pa.Table | None] = {}
        """Changes since the last commit; None for a deleted table."""
        self._spilled = 0
        self._digest = ""
        """A digest of all commits: stores with equal digests have equal content."""
        self._size = 0
        if value is not None:
            self._load(value)

    def is_current(self, value: tuple[Any, ...] | None) -> bool:
        """Whether the value of the meta variable is the last commit of this store."""
        return value is not None and _decode_summary(value[1])["digest"] == self._digest

    def attach(self, meta: ValueState, blobs: MapState) -> None:
        """Continue with the state variables of another call, which have the same content."""
        self._meta, self._blobs = meta, blobs

    # The protocol

    def put_table(self, name: str, table: pa.Table) -> None:
        self._documents.pop(name, None)
        self._changes[name] = table

    def get_table(self, name: str) -> pa.Table:
        if name in self._documents:
            raise wrong_kind(name, "table", "document")
        if name in self._changes:
            table = self._changes[name]
            if table is None:
                raise KeyError(name)
            return table
        cached = (
            self._cache.get(self._cached[name])
            if self._cache is not None and name in self._cached
            else None
        )
        if cached is not None:
            return cached
        parts, size, checksum = self._tables[name]
        data = self._read(name, parts)
        if len(data) != size or zlib.crc32(data) != checksum:
            raise _damaged(f"table `{name}`", "its checksum is wrong")
        return decode_table(data, name)

    def put_json(self, name: str, document: Any) -> None:
        self._documents[name] = encode_json(document, name)
        if name in self._tables or name in self._changes:
            self._changes[name] = None

    def get_json(self, name: str, default: Any = None) -> Any:
        if name in self._documents:
            return decode_json(self._documents[name], name)
        if self.contains(name):
            raise wrong_kind(name, "document", "table")
        return default

    def delete(self, name: str) -> None:
        self._documents.pop(name, None)
        if name in self._tables:
            self._changes[name] = None
        else:
            self._changes.pop(name, None)

    def delete_prefix(self, prefix: str) -> None:
        for name in self.names(prefix):
            self.delete(name)

    def names(self, prefix: str = "") -> list[str]:
        held = {*self._documents, *self._tables, *self._changes}
        return sorted(name for name in held if name.startswith(prefix) and self.contains(name))

    def contains(self, name: str) -> bool:
        if name in self._documents:
            return True
        return self._changes[name] is not None if name in self._changes else name in self._tables

    def commit(self) -> None:
        """Write the changes to the state variables; Spark makes them durable with the batch."""
        digest = hashlib.blake2b(self._digest.encode(), digest_size=16)
        for name, table in self._changes.items():
            digest.update(f"{name} {self._write(name, table)};".encode())
        self._changes.clear()
        document = {"tables": self._tables, "documents": self._documents, "cached": self._cached}
        content = json.dumps(document, separators=(",", ":")).encode()
        digest.update(content)
        self._digest = digest.hexdigest()
        self._write_meta(zlib.compress(content, 1))

    def close(self) -> None:
        self._changes.clear()

    @property
    def nbytes(self) -> int:
        """The size of the stored tables and documents."""
        return sum(size for _, size, _ in self._tables.values()) + self._size

    # Storage

    def _load(self, value: tuple[Any, ...]) -> None:
        version, summary, document = value
        if version != FORMAT:
            raise CorruptStateError(
                f"the state of this query has format {version}; this version reads {FORMAT}. Hint:"
                " start it with the version that wrote it, or from a new checkpoint"
            )
        self.summary = _decode_summary(summary)
        self._spilled, self._digest = self.summary["spilled"], self.summary["digest"]
        stored = self._read(_SPILLED, self._spilled) if self._spilled else bytes(document)
        self._size = len(stored)
        if zlib.crc32(stored) != self.summary["document_checksum"]:
            raise _damaged("index", "its checksum is wrong")
        with damage_in("the index of a shard"):
            content = json.loads(zlib.decompress(stored))
            self._tables = {
                str(name): [int(number) for number in entry]
                for name, entry in content["tables"].items()
            }
            self._documents, self._cached = dict(content["documents"]), dict(content["cached"])

    def _read(self, name: str, parts: int) -> bytes:
        values = [self._blobs.getValue((name, part)) for part in range(parts)]
        if any(value is None for value in values):
            raise _damaged(f"table `{name}`", "it lacks a part")
        return b"".join(bytes(value[0]) for value in values if value is not None)

    def _write(self, name: str, table: pa.Table | None) -> int:
        """Write or delete a table, and return a checksum of its content."""
        data = b"" if table is None else encode_compact(table).to_pybytes()
        checksum = zlib.crc32(data)
        self._write_parts(name, self._tables[name][0] if name in self._tables else 0, data)
        if table is None:
            self._tables.pop(name, None)
        else:
            self._tables[name] = [_parts(data), len(data), checksum]
        self._update_cache(name, table)
        return checksum

    def _update_cache(self, name: str, table: pa.Table | None) -> None:
        """Replace the cached table."""
        former = self._cached.pop(name, None)
        if self._cache is None:
            return
        if former is not None:
            self._cache.drop(former)
        cached = None if table is None else self._cache.put(table)
        if cached is not None:
            self._cached[name] = cached

    def _write_parts(self, name: str, former: int, data: bytes) -> None:
        count = _parts(data)
        for part in range(count):
            start = part * PART_BYTES
            self._blobs.updateValue((name, part), (data[start : start + PART_BYTES],))
        for part in range(count, former):
            self._blobs.removeKey((name, part))

    def _write_meta(self, document: bytes) -> None:
        large = document if len(document) > PART_BYTES else b""
        self._write_parts(_SPILLED, self._spilled, large)
        self._spilled, self._size = _parts(large), len(document)
        summary = {
            **self.summary,
            "spilled": self._spilled,
            "bytes": self.nbytes,
            "digest": self._digest,
            "document_checksum": zlib.crc32(document),
        }
        self._meta.update((FORMAT, _encode_summary(summary), b"" if large else document))


def _encode_summary(summary: dict[str, Any]) -> str:
    """The summary as JSON, with a checksum of it as its last value."""
    checksum = zlib.crc32(json.dumps(summary).encode())
    return json.dumps({**summary, "checksum": checksum})


def _decode_summary(text: str) -> dict[str, Any]:
    """The inverse of `_encode_summary`."""
    try:
        summary: dict[str, Any] = json.loads(text)
        checksum = summary.pop("checksum")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged("summary", error) from error
    if zlib.crc32(json.dumps(summary).encode()) != checksum:
        raise _damaged("summary", "its checksum is wrong")
    return summary


def _damaged(what: str, why: object) -> CorruptStateError:
    return CorruptStateError(
        f"the stored {what} of a shard is damaged ({why}). Hint: restore the checkpoint from a"
        " copy, or replay the input"
    )


def _parts(data: bytes) -> int:
    return -(-len(data) // PART_BYTES)
