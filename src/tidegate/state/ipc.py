"""The stored form of a value: an Arrow IPC stream for a table, UTF-8 JSON for a document; no pickle
anywhere.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import pyarrow as pa

from tidegate.errors import CorruptStateError, InputError
from tidegate.state.byte_split import joined, split

Compression = Literal["lz4", "zstd"]


def encode_table(table: pa.Table, compression: Compression | None = None) -> pa.Buffer:
    """The table as one IPC stream; compression is per buffer, so that reading needs no options."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)
    ) as writer:
        writer.write_table(table)
    return sink.getvalue()


def encode_small(table: pa.Table) -> pa.Buffer:
    """The table in as few bytes as can be had quickly."""
    return encode_table(split(table), "zstd")


def decode_table(data: bytes | memoryview | pa.Buffer, name: str) -> pa.Table:
    """The inverse of `encode_table` and of `encode_small`; uncompressed columns share the memory of
    `data`.
    """
    try:
        return joined(pa.ipc.open_stream(pa.py_buffer(data)).read_all())
    except (pa.ArrowException, OSError, EOFError) as error:
        raise CorruptStateError(
            f"the stored table `{name}` cannot be read ({error}). Hint: restore the state from a"
            " copy, or replay the input"
        ) from error


def encode_json(document: Any, name: str) -> str:
    """The document as strict JSON, so that what a store gives back does not depend on the store."""
    try:
        return json.dumps(document, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the document `{name}` is not JSON: {error}. Hint: dicts with string keys, lists,"
            " strings, finite numbers, booleans, None"
        ) from error


def decode_json(text: str | bytes, name: str) -> Any:
    """The inverse of `encode_json`."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise CorruptStateError(
            f"the stored document `{name}` cannot be read ({error}). Hint: restore the state from a"
            " copy, or replay the input"
        ) from error
