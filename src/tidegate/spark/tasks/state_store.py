"""The store of an operator on Spark: names of Arrow tables and JSON documents over the state
variables of one shard.

Two variables, the same for every specification: `blobs` maps a name and a part to at most 4 MB of a
compressed table, and `meta` holds the index of the tables, the documents, and a summary that can be
read without them. The store keeps its own index, because asking Spark which names there are reads
all values. A commit writes what changed.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructType

from tidegate.errors import CorruptStateError
from tidegate.spark.tasks.local_state_cache import LocalStateCache
from tidegate.state.ipc import decode_json, decode_table, encode_json, encode_small
from tidegate.state.protocol import wrong_kind

FORMAT = 2
_READABLE = (1, 2)
"""Format 1 knew of no columns that are split into their bytes; it is the same otherwise."""
# Written out, because each worker would have a text read by Spark, and more than once.
META = (
    StructType()
    .add("format", IntegerType())
    .add("summary", StringType())
    .add("document", BinaryType())
)
BLOB_KEY = StructType().add("name", StringType()).add("part", IntegerType())
BLOB = StructType().add("payload", BinaryType())
PART = 4 << 20
_SPILLED = "\x00document"
"""Where the index and the documents go when they are too large for one value."""


class MapState(Protocol):
    """The part of Spark's map state that is used."""

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None: ...  # noqa: N802

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None: ...  # noqa: N802

    def removeKey(self, key: tuple[Any, ...]) -> None: ...  # noqa: N802


class ValueState(Protocol):
    """The part of Spark's value state that is used."""

    def get(self) -> tuple[Any, ...] | None: ...

    def update(self, value: tuple[Any, ...]) -> None: ...


class SparkStore:
    """See `tidegate.state.protocol.Store`; durable when Spark commits the batch."""

    spills = True

    def __init__(
        self,
        meta: ValueState,
        blobs: MapState,
        found: tuple[Any, ...] | None = None,
        near: LocalStateCache | None = None,
    ) -> None:
        """`found` is what the meta variable holds; `near` has copies of tables, which are faster to
        read.
        """
        self._meta, self._blobs, self._near = meta, blobs, near
        self.summary: dict[str, Any] = {}
        """What somebody who looks into the checkpoint sees first; written with each commit."""
        self._tables: dict[str, list[int]] = {}
        """By name how many parts a stored table has, and how many bytes."""
        self._copies: dict[str, str] = {}
        """By name the near copy of a stored table, as far as there is one."""
        self._documents: dict[str, str] = {}
        self._fresh: dict[str, pa.Table | None] = {}
        """What a commit has to write; None for a table to be removed."""
        self._spilled = 0
        self._digest = ""
        """Of everything that was ever committed: two stores with the same digest hold the same."""
        self._size = 0
        if found is not None:
            self._load(found)

    def is_same(self, found: tuple[Any, ...] | None) -> bool:
        """Whether the meta variable is the one that this store committed last."""
        return found is not None and json.loads(found[1]).get("digest") == self._digest

    def attach(self, meta: ValueState, blobs: MapState) -> None:
        """Go on with the state variables of another call, which hold the same."""
        self._meta, self._blobs = meta, blobs

    # The protocol

    def put_table(self, name: str, table: pa.Table) -> None:
        self._documents.pop(name, None)
        self._fresh[name] = table

    def get_table(self, name: str) -> pa.Table:
        if name in self._documents:
            raise wrong_kind(name, "table", "document")
        if name in self._fresh:
            table = self._fresh[name]
            if table is None:
                raise KeyError(name)
            return table
        copy = (
            self._near.get(self._copies[name])
            if self._near is not None and name in self._copies
            else None
        )
        return decode_table(self._read(name, self._tables[name][0]), name) if copy is None else copy

    def put_json(self, name: str, document: Any) -> None:
        self._documents[name] = encode_json(document, name)
        if name in self._tables or name in self._fresh:
            self._fresh[name] = None

    def get_json(self, name: str, default: Any = None) -> Any:
        if name in self._documents:
            return decode_json(self._documents[name], name)
        if self.contains(name):
            raise wrong_kind(name, "document", "table")
        return default

    def delete(self, name: str) -> None:
        self._documents.pop(name, None)
        if name in self._tables:
            self._fresh[name] = None
        else:
            self._fresh.pop(name, None)

    def delete_prefix(self, prefix: str) -> None:
        for name in self.names(prefix):
            self.delete(name)

    def names(self, prefix: str = "") -> list[str]:
        held = {*self._documents, *self._tables, *self._fresh}
        return sorted(name for name in held if name.startswith(prefix) and self.contains(name))

    def contains(self, name: str) -> bool:
        if name in self._documents:
            return True
        return self._fresh[name] is not None if name in self._fresh else name in self._tables

    def commit(self) -> None:
        """Hand what changed to Spark, which makes it durable with the batch."""
        digest = hashlib.blake2b(self._digest.encode(), digest_size=16)
        for name, table in self._fresh.items():
            digest.update(f"{name} {self._write(name, table)};".encode())
        self._fresh.clear()
        document = {"tables": self._tables, "documents": self._documents, "copies": self._copies}
        content = json.dumps(document, separators=(",", ":")).encode()
        digest.update(content)
        self._digest = digest.hexdigest()
        self._write_meta(zlib.compress(content, 1))

    def close(self) -> None:
        self._fresh.clear()

    @property
    def nbytes(self) -> int:
        """What the stored tables and documents take."""
        return sum(size for _, size in self._tables.values()) + self._size

    # Inside

    def _load(self, found: tuple[Any, ...]) -> None:
        version, summary, document = found
        if version not in _READABLE:
            hint = "start it with the version that wrote it, or from a new checkpoint"
            raise CorruptStateError(
                f"the state of this query has format {version}; this version reads up to {FORMAT}."
                f" Hint: {hint}"
            )
        self.summary = json.loads(summary)
        self._spilled, self._digest = self.summary["spilled"], self.summary["digest"]
        stored = self._read(_SPILLED, self._spilled) if self._spilled else bytes(document)
        self._size = len(stored)
        content = json.loads(zlib.decompress(stored))
        self._tables, self._documents, self._copies = (
            content["tables"],
            content["documents"],
            content.get("copies", {}),
        )

    def _read(self, name: str, parts: int) -> bytes:
        found = [self._blobs.getValue((name, part)) for part in range(parts)]
        if any(value is None for value in found):
            raise CorruptStateError(
                f"the stored table `{name}` lacks a part. Hint: restore the checkpoint from a copy,"
                " or replay the input"
            )
        return b"".join(bytes(value[0]) for value in found if value is not None)

    def _write(self, name: str, table: pa.Table | None) -> int:
        """Write or remove a table; the answer tells two contents apart."""
        data = b"" if table is None else encode_small(table).to_pybytes()
        self._write_parts(name, self._tables[name][0] if name in self._tables else 0, data)
        if table is None:
            self._tables.pop(name, None)
        else:
            self._tables[name] = [_parts(data), len(data)]
        self._copy(name, table)
        return zlib.crc32(data)

    def _copy(self, name: str, table: pa.Table | None) -> None:
        """Put a copy of what was written in the place of the former one."""
        former = self._copies.pop(name, None)
        if self._near is None:
            return
        if former is not None:
            self._near.drop(former)
        copy = None if table is None else self._near.put(table)
        if copy is not None:
            self._copies[name] = copy

    def _write_parts(self, name: str, former: int, data: bytes) -> None:
        wanted = _parts(data)
        for part in range(wanted):
            self._blobs.updateValue((name, part), (data[part * PART : (part + 1) * PART],))
        for part in range(wanted, former):
            self._blobs.removeKey((name, part))

    def _write_meta(self, document: bytes) -> None:
        large = document if len(document) > PART else b""
        self._write_parts(_SPILLED, self._spilled, large)
        self._spilled, self._size = _parts(large), len(document)
        summary = {
            **self.summary,
            "spilled": self._spilled,
            "bytes": self.nbytes,
            "digest": self._digest,
        }
        self._meta.update((FORMAT, json.dumps(summary), b"" if large else document))


def _parts(data: bytes) -> int:
    return -(-len(data) // PART)
