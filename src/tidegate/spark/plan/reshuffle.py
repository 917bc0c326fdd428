"""Re-keying: the panes of one stateful operator become the events of another, sent to the shards of
their new key with the promises made of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from tidegate.spark.plan.shards import Layout
from tidegate.spark.tasks.edge import split
from tidegate.spark.tasks.transport import (
    MARKS,
    PANES,
    ROWS,
    THROUGH,
    Shipped,
    batch_of,
    passing,
    pieces,
    unpack,
)


@dataclass(frozen=True)
class Rekey:
    """The edge between two operators."""

    key: tuple[str, ...]
    layout: Layout
    input: int = 0
    """The input of the downstream that this feeds."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pack what the shards of the upstream in this task put out; an upstream shard is a source
        to the downstream.
        """
        seq = 0
        for batch in batches:
            rows: list[Shipped] = []
            for output, source, payload in zip(
                *(batch.column(name) for name in ("output", "shard", "payload")), strict=True
            ):
                for shard, kind, content in self._sent(
                    output.as_py(), source.as_py(), payload.as_buffer()
                ):
                    seq += 1
                    rows.append(Shipped(shard, self.input, source.as_py(), seq, kind, content))
            if rows:
                yield batch_of(rows)

    def _sent(
        self, output: str, source: int, payload: pa.Buffer
    ) -> Iterator[tuple[int, str, pa.Buffer | bytes]]:
        if output == PANES:
            for shard, part in split(unpack(payload), self.key, self.layout):
                yield from ((shard, ROWS, piece) for piece in pieces(part))
        elif output == MARKS:
            yield from ((shard, MARKS, payload) for shard in self.layout.ids)
        else:
            yield source, THROUGH, passing(output, payload)
