"""Serialised values of a state store: Arrow IPC streams for tables, UTF-8 JSON for documents.

No pickle: reading state never executes code.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import pyarrow as pa

from tidegate.errors import CorruptStateError, InputError
from tidegate.state.arrow_types import check_types, validate
from tidegate.state.byte_split import joined, split
from tidegate.state.damage import damage_in

Compression = Literal["lz4", "zstd"]


def encode_table(table: pa.Table, compression: Compression | None = None) -> pa.Buffer:
    """The table as one IPC stream.

    Buffers are compressed one by one, so reading needs no options.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)
    ) as writer:
        writer.write_table(table)
    return sink.getvalue()


def encode_compact(table: pa.Table) -> pa.Buffer:
    """The table as a compact IPC stream, at moderate cost."""
    return encode_table(split(table), "zstd")


def decode_table(data: bytes | memoryview | pa.Buffer, name: str) -> pa.Table:
    """The inverse of `encode_table` and `encode_compact`.

    Uncompressed columns share the memory of `data`.
    """
    with damage_in(f"the stored table `{name}`"):
        reader = pa.ipc.open_stream(pa.py_buffer(data))
        check_types(reader.schema)
        table = reader.read_all()
        validate(table)
        return joined(table)


def encode_json(document: Any, name: str) -> str:
    """The document as strict JSON, so that all stores return the same."""
    try:
        return json.dumps(document, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the document `{name}` is not JSON: {error}. Hint: use dicts with string keys, lists,"
            " strings, finite numbers, booleans, None"
        ) from error


def decode_json(text: str | bytes, name: str) -> Any:
    """The inverse of `encode_json`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptStateError(
            f"the stored document `{name}` cannot be read ({error}). Hint: restore the state from"
            " a backup, or replay the input"
        ) from error
