"""The transport of events through Spark: a few large binary rows instead of millions of small ones.

A shuffle row (`SHUFFLE_COLUMNS`) goes from an edge to one shard. It includes its origin, by which
the operator restores an order that is the same in a replay. An output row (`OUTPUT_SCHEMA`) goes
from an operator to the sinks, or to the next operator. Payloads are Arrow IPC streams, or JSON for
watermarks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.spark import metrics
from tidegate.state.serialization import Compression, decode_table, encode_table

METRICS_COLUMN = f"metrics struct<{metrics.STRUCT}>"
OUTPUT_COLUMNS = f"output string, shard int, payload binary, {METRICS_COLUMN}"
"""The columns of the rows that the last operator returns."""
SHUFFLE_COLUMNS = "shard int, input int, task int, seq int, kind string, payload binary"
"""The columns of a shuffle row; their Arrow form is `SHUFFLE_SCHEMA`."""
ROUTED_COLUMNS = f"{SHUFFLE_COLUMNS}, {METRICS_COLUMN}"
"""The columns of what an operator sends to the next one: shuffle rows, some with metrics."""
_TYPES: dict[str, pa.DataType] = {
    "kind": pa.string(),
    "output": pa.string(),
    "payload": pa.binary(),
}
SHUFFLE_SCHEMA, OUTPUT_SCHEMA = (
    pa.schema([pa.field(name, _TYPES.get(name, pa.int32())) for name in names])
    for names in (
        ("shard", "input", "task", "seq", "kind", "payload"),
        ("output", "shard", "payload"),
    )
)

ROWS, COMBINED, OBSERVED, POSITIONS, REFUSED, FAILED, MARKS, FORWARDED = (
    "rows",
    "combined",
    "observed",
    "positions",
    "refused",
    "failed",
    "marks",
    "forwarded",
)
"""The kinds of shuffle rows.

In this order: events of the shard, pre-aggregated events, the progress of the sources and the
positions of all events for static windows (both for all shards), rows that cannot be processed,
messages for which an async map has no result, watermarks of an upstream operator, and forwarded
outputs of an upstream operator.
"""
EDGE_WATERMARK = "edge_watermark"
"""The column with the watermark by which the edge found pre-aggregated rows on time."""
PANES, LATE, METRICS = "panes", "late", "metrics"
OUTPUTS = (PANES, LATE, METRICS)

PAYLOAD_BYTES = 512 << 10
"""The maximum size of a payload; a single event may be larger."""
BATCH_BYTES = 256 << 20
"""The maximum size of the payloads of a record batch, unless a single one is larger.

Arrow is limited to 2 GB.
"""


@dataclass(frozen=True, slots=True)
class ShuffleRow:
    """A row for one shard."""

    shard: int
    input: int
    task: int
    seq: int
    kind: str
    payload: bytes | pa.Buffer

    @property
    def order(self) -> tuple[int, int, int]:
        """The sort key among the rows of a batch: Spark delivers them in any order."""
        return self.input, self.task, self.seq


def to_record_batch(rows: Sequence[ShuffleRow]) -> pa.RecordBatch:
    """The rows as one record batch."""
    columns = [
        pa.array([getattr(row, field.name) for row in rows], field.type)
        for field in SHUFFLE_SCHEMA
        if field.name != "payload"
    ]
    return pa.RecordBatch.from_arrays(
        [*columns, _binary([row.payload for row in rows])], schema=SHUFFLE_SCHEMA
    )


def to_record_batches(
    rows: Sequence[ShuffleRow], size: int = BATCH_BYTES
) -> Iterator[pa.RecordBatch]:
    """The rows as record batches of at most `size` bytes; rows for all shards can be many."""
    start = total = 0
    for number, row in enumerate(rows):
        if total and total + len(row.payload) > size:
            yield to_record_batch(rows[start:number])
            start, total = number, 0
        total += len(row.payload)
    if start < len(rows):
        yield to_record_batch(rows[start:])


def _binary(payloads: Sequence[bytes | pa.Buffer]) -> pa.Array:
    """Payloads as a binary column; each is copied once."""
    ends = np.cumsum([0, *map(len, payloads)], dtype=np.int32)
    data = (
        np.concatenate([np.frombuffer(memoryview(payload), np.uint8) for payload in payloads])
        if payloads
        else np.zeros(0, np.uint8)
    )
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(payloads), [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(data.data)]
    )


def encode_payloads(
    table: pa.Table, size: int = PAYLOAD_BYTES, compression: Compression | None = None
) -> Iterator[pa.Buffer]:
    """The table as payloads of about `size` bytes, before compression; none for an empty table."""
    if not table.num_rows:
        return
    rows = max(1, int(table.num_rows * size / max(1, table.nbytes)))
    for start in range(0, table.num_rows, rows):
        yield encode_table(table.slice(start, rows), compression)


def decode_payload(payload: Any) -> pa.Table:
    """The table in a payload."""
    return decode_table(payload, "payload")


def decode_payloads(payloads: Iterable[Any]) -> pa.Table | None:
    """The tables in payloads as one; columns that differ between files are unified."""
    tables = [decode_payload(payload) for payload in payloads]
    if not tables:
        return None
    if len(tables) == 1:
        return tables[0]
    return pa.concat_tables(
        tables,
        promote_options=(
            "none" if all(t.schema.equals(tables[0].schema) for t in tables) else "permissive"
        ),
    )


def encode_json_payload(value: Any) -> bytes:
    """A small value as a JSON payload."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def pack_forwarded(output: str, payload: pa.Buffer | bytes) -> bytes:
    """The payload of a forwarded row: an output of an upstream operator with its name."""
    return output.encode() + b"\0" + bytes(payload)


def unpack_forwarded(row: ShuffleRow) -> tuple[str, bytes]:
    """The inverse of `pack_forwarded`."""
    output, _, payload = bytes(row.payload).partition(b"\0")
    return output.decode(), payload
