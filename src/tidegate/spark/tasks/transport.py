"""The wire: the few large binary rows that travel between the edge, the operator and the sinks of a
query, instead of millions of small ones.

An input row (`SHIPPED`) is for one shard and says where it comes from, so that the operator can put
rows into an order that replays. An output row (`PACKED`) is tagged with the output that it belongs
to. Payloads are Arrow IPC streams, or JSON for marks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.state.ipc import decode_table, encode_table

SHIPPED = "shard int, input int, task int, seq int, kind string, payload binary"
"""What an edge sends; the Arrow form is `SHIPPED_SCHEMA`."""
_TYPES: dict[str, pa.DataType] = {
    "kind": pa.string(),
    "output": pa.string(),
    "payload": pa.binary(),
}
SHIPPED_SCHEMA, PACKED_SCHEMA = (
    pa.schema([pa.field(name, _TYPES.get(name, pa.int32())) for name in names])
    for names in (
        ("shard", "input", "task", "seq", "kind", "payload"),
        ("output", "shard", "payload"),
    )
)

ROWS, COMBINED, OBSERVED, REFUSED, MARKS, THROUGH = (
    "rows",
    "combined",
    "observed",
    "refused",
    "marks",
    "through",
)
"""The kinds of shipped rows: events of the shard, events that were aggregated on their way, what
all shards learn of the sources, rows that cannot be delivered, watermarks of an upstream operator,
and outputs of an upstream operator that only pass.
"""
FLOOR = "floor"
"""The column that says by which watermark combined rows were found to be on time."""
PANES, LATE, METRICS = "panes", "late", "metrics"
OUTPUTS = (PANES, LATE, METRICS)

PIECE = 512 << 10
"""How large a payload should be at most; a single event may be larger."""
TOGETHER = 256 << 20
"""How many bytes of payloads a record batch holds at most, unless a single one is larger; Arrow
ends at 2 GB.
"""


@dataclass(frozen=True, slots=True)
class Shipped:
    """One row for one shard."""

    shard: int
    input: int
    task: int
    seq: int
    kind: str
    payload: bytes | pa.Buffer

    @property
    def order(self) -> tuple[int, int, int]:
        """Where it stands among the rows of a batch: Spark gives them in any order."""
        return self.input, self.task, self.seq


def batch_of(rows: Sequence[Shipped]) -> pa.RecordBatch:
    """The rows as the record batch that Spark takes."""
    columns = [
        pa.array([getattr(row, field.name) for row in rows], field.type)
        for field in SHIPPED_SCHEMA
        if field.name != "payload"
    ]
    return pa.RecordBatch.from_arrays(
        [*columns, _binary([row.payload for row in rows])], schema=SHIPPED_SCHEMA
    )


def batches_of(rows: Sequence[Shipped], size: int = TOGETHER) -> Iterator[pa.RecordBatch]:
    """The rows as record batches of about the size: what all shards are told may be much where
    there are many of them.
    """
    start = held = 0
    for number, row in enumerate(rows):
        if held and held + len(row.payload) > size:
            yield batch_of(rows[start:number])
            start, held = number, 0
        held += len(row.payload)
    if start < len(rows):
        yield batch_of(rows[start:])


def _binary(payloads: Sequence[bytes | pa.Buffer]) -> pa.Array:
    """Payloads as a column; each is copied once."""
    ends = np.cumsum([0, *map(len, payloads)], dtype=np.int32)
    data = (
        np.concatenate([np.frombuffer(memoryview(payload), np.uint8) for payload in payloads])
        if payloads
        else np.zeros(0, np.uint8)
    )
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(payloads), [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(data.data)]
    )


def pieces(table: pa.Table, size: int = PIECE) -> Iterator[pa.Buffer]:
    """The table as payloads of about the size; no rows give nothing."""
    if not table.num_rows:
        return
    rows = max(1, int(table.num_rows * size / max(1, table.nbytes)))
    for start in range(0, table.num_rows, rows):
        yield encode_table(table.slice(start, rows))


def unpack(payload: Any) -> pa.Table:
    """The table of a payload."""
    return decode_table(payload, "payload")


def together(payloads: Iterable[Any]) -> pa.Table | None:
    """All tables of payloads in their order as one; columns that differ between files are brought
    together.
    """
    tables = [unpack(payload) for payload in payloads]
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


def document(value: Any) -> bytes:
    """A small value as JSON."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def passing(output: str, payload: pa.Buffer | bytes) -> bytes:
    """An output of an upstream operator as the payload of a row that only passes."""
    return output.encode() + b"\0" + bytes(payload)


def through(row: Shipped) -> tuple[str, bytes]:
    """The inverse of `passing`."""
    output, _, payload = bytes(row.payload).partition(b"\0")
    return output.decode(), payload
