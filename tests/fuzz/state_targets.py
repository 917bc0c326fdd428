"""Fuzz targets for what Tidegate and Spark have stored, sealed with valid checksums where possible."""

from __future__ import annotations

import hashlib
import json
import struct
import tempfile
import warnings
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

import tidegate as tg
from fuzz.target import Target, json_of
from tidegate.kernel.frame import Frame
from tidegate.kernel.storage import column_encoding
from tidegate.spark.query.metadata import QueryMetadata, create_metadata, read_metadata
from tidegate.spark.query.state.changelog import read_changelog
from tidegate.spark.query.state.unsafe_row import decode_row
from tidegate.spark.sources.files import FolderOffset
from tidegate.spark.sources.streams import StreamOffset
from tidegate.spark.sources.topics.offsets import TopicOffset
from tidegate.spark.tasks.shards import ShardLayout
from tidegate.spark.tasks.state_store import SparkStore
from tidegate.spec.from_document import spec_from_dict
from tidegate.state.memory import MemoryStore
from tidegate.state.serialization import decode_table, encode_compact, encode_table
from tidegate.streams.description import Description
from tidegate.streams.sqlite_blocks import decode_events

WINDOWS = (
    tg.stream(time="ts", key="user", offset="o", watermark=tg.bounded("1 second"))
    .window(tg.session("10 seconds"))
    .allow_lateness("1 hour")
    .retracting()
    .aggregate(n=tg.count(), all=tg.list_("v"), most=tg.max("v"))
)
_HEAD = struct.Struct("<8sIQ32s")


def _operator(store: Any) -> Any:
    op = WINDOWS.embedded(store=store, now=0)
    op.add_messages([{"ts": n * 1_000_000, "user": f"u{n % 3}", "o": n, "v": n} for n in range(20)])
    op.flush()
    return op


def _stored() -> MemoryStore:
    store = MemoryStore()
    _operator(store)
    return store


def _use(store: MemoryStore) -> None:
    """Restore an operator from a store."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        WINDOWS.embedded(store=store, now=0)


def tables(data: bytes) -> None:
    """A stored table whose checksum is right."""
    found = decode_table(data, "t")
    found.validate(full=True)
    column_encoding.unpack(found)


def files(data: bytes) -> None:
    """The file of a store: whole, and its body sealed with a valid head."""
    with tempfile.TemporaryDirectory() as folder:
        sealed = _HEAD.pack(
            b"TIDEGATE", 1, len(data), hashlib.blake2b(data, digest_size=32).digest()
        )
        for name, content in (("a", data), ("b", sealed + data)):
            path = Path(folder, name)
            path.write_bytes(content)
            try:
                store = MemoryStore(path)
            except tg.CorruptStateError:
                continue
            try:
                _use(store)
            finally:
                store.close()


def operators(data: bytes) -> None:
    """The document of an operator in a sound store."""
    try:
        document = json_of(data)
    except (ValueError, RecursionError):
        return
    store = _stored()
    store.put_json("operator", document)
    _use(store)


def specifications(data: bytes) -> None:
    try:
        document = json_of(data)
    except (ValueError, RecursionError):
        return
    if isinstance(document, dict):
        spec_from_dict(document)


def checkpoints(data: bytes) -> None:
    """`query.json` of a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tidegate", "query.json")
        path.parent.mkdir()
        path.write_bytes(data)
        read_metadata(folder)


def offsets(data: bytes) -> None:
    """Offsets of direct sources, as Spark stores them."""
    try:
        document = json_of(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(document, dict):
        return
    for kind in (FolderOffset, StreamOffset, TopicOffset, Description):
        try:
            kind.from_dict(document)  # type: ignore[attr-defined]
        except tg.TidegateError:
            continue


def changelogs(data: bytes) -> None:
    """Spark's changelog of a state store, and rows in it."""
    read_changelog(data)


def rows_of_spark(data: bytes) -> None:
    decode_row(data, ("int", "text", "bytes"))


def shards(data: bytes) -> None:
    """The index of a shard, sealed."""
    document = zlib.compress(data)
    summary = {
        "spilled": 0,
        "bytes": 0,
        "digest": "",
        "document_checksum": zlib.crc32(document),
    }
    checksum = zlib.crc32(json.dumps(summary).encode())
    text = json.dumps({**summary, "checksum": checksum})
    store = SparkStore(None, _NoBlobs(), (1, text, document))  # type: ignore[arg-type]
    for name in store.names():
        store.contains(name)


class _NoBlobs:
    def getValue(self, key: Any) -> None:
        return None


def blocks(data: bytes) -> None:
    """A block of a SQLite stream whose checksum is right: a count, then the bytes."""
    count = data[0] if data else 0
    table = decode_events([(0, count, 17, data[1:])], 0, count)
    table.validate(full=True)


def _tables() -> Iterable[bytes]:
    table = pa.table({"a": list(range(2000)), "b": ["x", None] * 1000})
    yield encode_table(table.slice(0, 5)).to_pybytes()
    yield encode_compact(table).to_pybytes()
    yield encode_table(column_encoding.pack(Frame({"a": table["a"].to_numpy()}, 2000))).to_pybytes()


def _files() -> Iterable[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        op = _operator(MemoryStore(Path(folder, "s")))
        op.close()
        whole = Path(folder, "s").read_bytes()
    return [whole, whole[_HEAD.size :]]


def _documents() -> Iterable[bytes]:
    return [json.dumps(_stored().get_json("operator")).encode()]


def _metadata() -> Iterable[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        create_metadata(folder, QueryMetadata.new(ShardLayout.balanced(2), [[_spec()]]))
        yield Path(folder, "tidegate", "query.json").read_bytes()


def _spec() -> dict[str, Any]:
    return _stored().get_json("operator")["spec"]  # type: ignore[no-any-return]


def _block() -> bytes:
    sizes = struct.pack("<4i", 2, 3, 1, -1)
    return b"\x02\x01" + sizes + b"abcde" + b"k"


TARGETS = (
    Target("stored_tables", tables, _tables),
    Target("store_files", files, _files),
    Target("operators", operators, _documents),
    Target("specifications", specifications, lambda: [json.dumps(_spec()).encode()]),
    Target("checkpoints", checkpoints, _metadata),
    Target(
        "offsets",
        offsets,
        lambda: [b'{"clicks": {"0": 5}}', b'{"seen": {}, "batch": 1}', b'{"segments": {"0": 1}}'],
    ),
    Target("changelogs", changelogs, lambda: [b"\x00\x02v2" + bytes(20)]),
    Target("spark_rows", rows_of_spark, lambda: [bytes(40)]),
    Target("shards", shards, lambda: [b'{"tables":{"t":[1,2,3]},"documents":{},"cached":{}}']),
    Target("stream_blocks", blocks, lambda: [_block()]),
)
