"""Scripts: a stream whose micro-batches are written down, with the clock, watermarks and the end of
the input, for tests and demonstrations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tidegate.spark.sources import Direct
from tidegate.spark.tasks.chain import Told
from tidegate.spark.tasks.edge import Edge
from tidegate.spark.tasks.transport import SHIPPED, TOLD, Shipped, batch_of, document

_AFTER_ROWS = 1 << 30
"""Where words stand among the rows of a task."""


@dataclass(frozen=True)
class Step:
    """One micro-batch: rows by the number of their input, and what is said beside them."""

    rows: Mapping[int, pa.Table] = field(default_factory=dict)
    told: tuple[Told, ...] = ()

    @property
    def clock(self) -> int | None:
        """What the clock shows when the rows arrive; None where it stands still."""
        return max((told.clock for told in self.told if told.clock is not None), default=None)


@dataclass(frozen=True)
class Part:
    """What one play takes from a script: its edges, and a step, or none, for every micro-batch."""

    edges: tuple[Edge, ...]
    steps: Mapping[int, Step]

    def shipped(self, number: int) -> Iterator[pa.RecordBatch]:
        """What comes to the shards in a micro-batch: the rows by way of the edge, and the words,
        which are for all of them.
        """
        step = self.steps.get(number)
        if step is None:
            return
        for edge in self.edges:
            if edge.ordinal in step.rows:
                yield from edge.pack(iter(step.rows[edge.ordinal].to_batches()), 0, step.clock)
        words = [document(asdict(told)) for told in step.told or (Told(),)]
        edge = self.edges[0]
        rows = [
            Shipped(shard, edge.ordinal, 0, _AFTER_ROWS + n, TOLD, word)
            for shard in edge.layout.ids
            for n, word in enumerate(words)
        ]
        yield batch_of(rows)


class Script(Direct):
    """One input that is played; a pipeline over it takes its clock from it, and sets no timers."""

    isStreaming = True  # noqa: N815 - the name that a DataFrame has for it
    is_script = True

    def __init__(self, schema: pa.Schema, steps: Sequence[Step]) -> None:
        self._schema, self.steps = schema, tuple(steps)

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def load(self, edge: Edge) -> DataFrame:
        return played(
            self.sparkSession, [Part((edge,), dict(enumerate(self.steps)))], len(self.steps)
        )

    def __repr__(self) -> str:
        return f"Script({len(self.steps)} steps)"


def played(spark: SparkSession, parts: Sequence[Part], until: int) -> DataFrame:
    """The rows of all parts, one step a micro-batch, up to the given one."""
    # Through Spark Connect a name is looked up only when the query starts, so it must not come to
    # mean another script meanwhile.
    alias = f"tidegate_script_{uuid4().hex}"
    spark.dataSource.register(
        type("PlayedScript", (_Source,), {"alias": alias, "parts": tuple(parts), "until": until})
    )
    return spark.readStream.format(alias).load()


class _Numbered(InputPartition):
    """The step that a task reads."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Gives one step after the other."""

    def __init__(self, parts: Sequence[Part], until: int) -> None:
        self._parts, self._until = parts, until

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"step": 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """All steps are there."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        """One step further whatever may be read: a step is a micro-batch."""
        return {"step": min(start["step"] + 1, self._until)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [_Numbered(number) for number in range(start["step"], end["step"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, _Numbered):
            for part in self._parts:
                yield from part.shipped(partition.number)


class _Source(DataSource):
    """The base of all scripts that are registered; each has a name of its own, because Spark finds
    them by it.
    """

    alias: ClassVar[str]
    parts: ClassVar[tuple[Part, ...]]
    until: ClassVar[int]

    @classmethod
    def name(cls) -> str:
        return cls.alias

    def schema(self) -> str:
        return SHIPPED

    def streamReader(self, schema: StructType) -> _Reader:  # noqa: ARG002, N802
        return _Reader(self.parts, self.until)
