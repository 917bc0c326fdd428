"""The reshuffle between two stateful operators: panes travel by a new key, with watermarks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from tidegate.operators.chain import received
from tidegate.spark.tasks.edge import position_payloads, split_table
from tidegate.spark.tasks.shards import ShardLayout
from tidegate.spark.tasks.transport import POSITIONS, ROWS, encode_payloads
from tidegate.spec.operator import Input
from tidegate.spec.windows import Window


@dataclass(frozen=True)
class Reshuffle:
    """Routes the panes of one stateful operator to the shards of the next.

    The operator that emits them does so itself, in the task that has them. Downstream, each of its
    shards is a source.
    """

    given: Input
    """The input of the downstream operator, with its key."""
    layout: ShardLayout
    input: int = 0
    """The number of that input."""
    static: Window | None = None
    """The window of the downstream operator, if it is static."""

    def routed(self, panes: pa.Table) -> Iterator[tuple[int, str, pa.Buffer]]:
        """The payloads of panes, each with its shard and its kind.

        They are compressed, because most columns of panes hardly differ from row to row.
        """
        rows = received(panes, self.given)
        for shard, part in split_table(rows, self.given.key, self.layout):
            yield from ((shard, ROWS, piece) for piece in encode_payloads(part, compression="lz4"))
        for positions in position_payloads(rows, self.given, self.static):
            yield from ((shard, POSITIONS, positions) for shard in self.layout.ids)
