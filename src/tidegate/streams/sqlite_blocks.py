"""Binary form of the events in one row of the SQLite store.

A block is: one byte that is 1 if any event has a key, the length of each value, the length of
each key (-1 for null), the values, the keys. Lengths are 32-bit integers in native byte order.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidegate.state.damage import damage_in
from tidegate.streams.store import BLOCK, EventBatch

BLOCK_BYTES = 1 << 20
BLOCK_EVENTS = 1 << 16
_FACTS = struct.Struct("<qq")


def encode_events(rows: EventBatch) -> list[tuple[int, bytes]]:
    """The events as blocks: the number of events and the bytes of each."""
    count = len(rows.values)
    sizes = array("i", map(len, rows.values))
    keys: list[bytes] = []
    lengths = array("i")
    if (without := rows.keys.count(None)) < count:
        if without:
            keys = [b"" if key is None else key.encode() for key in rows.keys]
        else:
            keys = list(map(str.encode, rows.keys))  # type: ignore[arg-type]
        lengths = array(
            "i",
            (
                [
                    -1 if key is None else len(data)
                    for key, data in zip(rows.keys, keys, strict=True)
                ]
                if without
                else map(len, keys)
            ),
        )
    if count <= BLOCK_EVENTS and sum(sizes) + sum(lengths) <= BLOCK_BYTES:
        return [(count, _encoded(sizes, rows.values, lengths, keys))]
    found, start = [], 0
    ends = np.cumsum(np.asarray(sizes, np.int64) + (np.maximum(lengths, 0) if keys else 0))
    while start < count:
        fit = int(
            np.searchsorted(ends, (ends[start - 1] if start else 0) + BLOCK_BYTES, side="right")
        )
        part = slice(start, min(max(fit, start + 1), start + BLOCK_EVENTS, count))
        found.append(
            (part.stop - start, _encoded(sizes[part], rows.values[part], lengths[part], keys[part]))
        )
        start = part.stop
    return found


def _encoded(
    sizes: array[int], values: Sequence[bytes], lengths: array[int], keys: list[bytes]
) -> bytes:
    return b"".join((b"\1" if keys else b"\0", sizes, lengths, *values, *keys))


def checksum(count: int, appended: int, data: bytes) -> int:
    """The CRC-32 of a row: its bytes, its number of events, and its time."""
    return zlib.crc32(_FACTS.pack(count, appended), zlib.crc32(data))


def decode_events(blocks: list[tuple[int, int, int, bytes]], start: int, stop: int) -> pa.Table:
    """The events of consecutive blocks between two offsets, as one table."""
    with damage_in("a block of the stream"):
        return _decoded(blocks, start, stop)


def _decoded(blocks: list[tuple[int, int, int, bytes]], start: int, stop: int) -> pa.Table:
    lengths, key_lengths, values, keys = [], [], [], []
    for _, count, _, data in blocks:
        sizes = np.frombuffer(data, np.int32, count, 1)
        at = 1 + 4 * count * (1 + data[0])
        end = at + int(sizes.sum())
        lengths.append(sizes)
        key_lengths.append(
            np.frombuffer(data, np.int32, count, 1 + 4 * count)
            if data[0]
            else np.full(count, -1, np.int32)
        )
        values.append(memoryview(data)[at:end])
        keys.append(memoryview(data)[end:])
    first, total = blocks[0][0], sum(count for _, count, _, _ in blocks)
    value_sizes, key_sizes = np.concatenate(lengths), np.concatenate(key_lengths)
    there = key_sizes >= 0
    if int(value_sizes.min(initial=0)) < 0 or any(
        int(np.maximum(sizes, 0).sum()) != len(key)
        for sizes, key in zip(key_lengths, keys, strict=True)
    ):
        raise ValueError("the lengths of its events are wrong")
    validity = (
        None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little").tobytes())
    )
    key = pa.Array.from_buffers(
        pa.string(),
        total,
        [validity, _offsets(np.maximum(key_sizes, 0)), pa.py_buffer(b"".join(keys))],
    )
    value = pa.Array.from_buffers(
        pa.binary(), total, [None, _offsets(value_sizes), pa.py_buffer(b"".join(values))]
    )
    appended = np.repeat([when for _, _, when, _ in blocks], [count for _, count, _, _ in blocks])
    table = pa.Table.from_arrays(
        [key, value, pa.array(np.arange(first, first + total)), pa.array(appended)], schema=BLOCK
    )
    key.validate(full=True)
    return table.slice(start - first, stop - start)


def _offsets(sizes: np.ndarray) -> pa.Buffer:
    ends = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=ends[1:])
    return pa.py_buffer(ends.data)
