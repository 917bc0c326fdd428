"""Changelog files of Spark's RocksDB state store: the changes of one version of a partition.

A file is one compressed stream. Formats 2 and 4 start with their name; format 4, of checkpoints
with unique ids, continues with the ids of the versions before it. Records follow: a type, a key
and, for a put, a value, each with its length. Formats 1 and 3 belong to stores without column
families, which Tidegate does not use. Numbers are big-endian, as Java writes them.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from tidegate.errors import CorruptStateError, StateError

_LENGTH = struct.Struct(">i")
_TEXT = struct.Struct(">H")
_END, _PUT, _DELETE, _MERGE = 0x00, 0x01, 0x10, 0x11
_LZ4_BLOCK = struct.Struct("<8sBIII")
"""Header of a block: magic, method, compressed size, original size, checksum."""
_LZ4_MAGIC, _LZ4_STORED = b"LZ4Block", 0x10
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_SNAPPY_MAGIC, _SNAPPY_HEADER = b"\x82SNAPPY\x00", 16


class UnsupportedCheckpointError(StateError):
    """A checkpoint in a form that only Spark can read."""


@dataclass(frozen=True)
class Changelog:
    """The content of a changelog file."""

    changes: dict[bytes, bytes | None]
    """The last value of each changed key; None for a deleted one."""
    lineage: dict[int, str] = field(default_factory=dict)
    """The unique ids of this and earlier versions; empty in checkpoints without them."""


def read_changelog(data: bytes) -> Changelog:
    """The changes and the lineage in a changelog file."""
    try:
        return _parse(decompress(data))
    except (struct.error, IndexError, ValueError, KeyError, OSError, pa.ArrowException) as error:
        raise CorruptStateError(
            f"a changelog of the state store cannot be read ({error}). Hint: restore the"
            " checkpoint from a copy, or replay the input"
        ) from error


def decompress(data: bytes) -> bytes:
    """The content of a compressed file; its first bytes tell the codec."""
    for magic, codec in _CODECS.items():
        if data.startswith(magic):
            return codec(data)
    raise UnsupportedCheckpointError(
        f"a changelog of the state store starts with {data[:4].hex()}, which is none of lz4, zstd"
        " and snappy"
    )


def _parse(data: bytes) -> Changelog:
    (length,) = _TEXT.unpack_from(data)
    version, at = data[2 : 2 + length], 2 + length
    lineage: dict[int, str] = {}
    if version == b"v4":
        (length,) = _TEXT.unpack_from(data, at)
        items = json.loads(data[at + 2 : at + 2 + length])
        lineage = {item["version"]: item["checkpointUniqueId"] for item in items}
        at += 2 + length
    elif version != b"v2":
        raise UnsupportedCheckpointError("a changelog of the state store has no column families")
    changes: dict[bytes, bytes | None] = {}
    while (kind := data[at]) != _END:
        if kind not in (_PUT, _DELETE):
            raise UnsupportedCheckpointError(
                f"a changelog of the state store has a record of type {kind:#04x}"
            )
        key, at = _sized(data, at + 1)
        value, at = _sized(data, at)
        changes[key] = value if kind == _PUT else None
    return Changelog(changes, lineage)


def _sized(data: bytes, at: int) -> tuple[bytes, int]:
    """Bytes after their length, and the position behind them; the length -1 means none."""
    (length,) = _LENGTH.unpack_from(data, at)
    start, stop = at + _LENGTH.size, at + _LENGTH.size + max(length, 0)
    if stop > len(data):
        raise ValueError("it ends in the middle of a record")
    return data[start:stop], stop


def _lz4(data: bytes) -> bytes:
    """The blocks that Java's LZ4 library writes; an empty block is the last one."""
    codec, at, blocks = pa.Codec("lz4_raw"), 0, []
    while at < len(data):
        _, method, packed, size, _ = _LZ4_BLOCK.unpack_from(data, at)
        at += _LZ4_BLOCK.size
        block, at = data[at : at + packed], at + packed
        blocks.append(
            block if method & 0xF0 == _LZ4_STORED else codec.decompress(block, size, asbytes=True)
        )
    return b"".join(blocks)


def _zstd(data: bytes) -> bytes:
    with pa.CompressedInputStream(io.BytesIO(data), "zstd") as stream:
        return stream.read()


def _snappy(data: bytes) -> bytes:
    """The chunks that Java's Snappy library writes after a header, each with its length."""
    codec, at, chunks = pa.Codec("snappy"), _SNAPPY_HEADER, []
    while at < len(data):
        chunk, at = _sized(data, at)
        chunks.append(codec.decompress(chunk, _snappy_size(chunk), asbytes=True))
    return b"".join(chunks)


def _snappy_size(chunk: bytes) -> int:
    """The original size, which a chunk starts with, seven bits per byte."""
    size = shift = 0
    for byte in chunk:
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return size


_CODECS: dict[bytes, Callable[[bytes], bytes]] = {
    _LZ4_MAGIC: _lz4,
    _ZSTD_MAGIC: _zstd,
    _SNAPPY_MAGIC: _snappy,
}
