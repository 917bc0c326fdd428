"""The reshuffle between two stateful operators: panes travel by a new key, with watermarks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from tidegate.operators.chain import received
from tidegate.spark.failures import marks_errors
from tidegate.spark.tasks.edge import position_payloads, split_table
from tidegate.spark.tasks.shards import ShardLayout
from tidegate.spark.tasks.transport import (
    FORWARDED,
    MARKS,
    PANES,
    POSITIONS,
    ROWS,
    ShuffleRow,
    decode_payload,
    encode_payloads,
    pack_forwarded,
    to_record_batch,
)
from tidegate.spec.operator import Input
from tidegate.spec.windows import Window


@dataclass(frozen=True)
class Reshuffle:
    """Routes the output of one stateful operator to the shards of the next."""

    given: Input
    """The input of the downstream operator, with its key."""
    layout: ShardLayout
    input: int = 0
    """The number of that input."""
    static: Window | None = None
    """The window of the downstream operator, if it is static."""

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Route the output of a task; downstream, each upstream shard is a source."""
        seq = 0
        for batch in batches:
            rows: list[ShuffleRow] = []
            for output, source, payload in zip(
                *(batch.column(name) for name in ("output", "shard", "payload")), strict=True
            ):
                for shard, kind, content in self._route(
                    output.as_py(), source.as_py(), payload.as_buffer()
                ):
                    seq += 1
                    rows.append(ShuffleRow(shard, self.input, source.as_py(), seq, kind, content))
            if rows:
                yield to_record_batch(rows)

    def _route(
        self, output: str, source: int, payload: pa.Buffer
    ) -> Iterator[tuple[int, str, pa.Buffer | bytes]]:
        """Panes go to the shard of their key, watermarks to all, other outputs are forwarded."""
        if output == PANES:
            panes = received(decode_payload(payload), self.given)
            for shard, part in split_table(panes, self.given.key, self.layout):
                yield from ((shard, ROWS, piece) for piece in encode_payloads(part))
            for positions in position_payloads(panes, self.given, self.static):
                yield from ((shard, POSITIONS, positions) for shard in self.layout.ids)
        elif output == MARKS:
            yield from ((shard, MARKS, payload) for shard in self.layout.ids)
        else:
            yield source, FORWARDED, pack_forwarded(output, payload)
