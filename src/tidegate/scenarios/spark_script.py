"""A script: a stream with given micro-batches, clock, watermarks and end of input.

It drives a query step by step in tests and scenarios. The source ships each step's rows by the edge
and its commands as rows of the kind `COMMAND`; `ScriptedProcessor` runs them in every shard.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tidegate.instants import MAX
from tidegate.operators.aggregate.operator import WindowedAggregate
from tidegate.operators.ingest.watermark_tracking import WatermarkTracker
from tidegate.scenarios.runtimes import Adjustment
from tidegate.spark.sources import DirectSource
from tidegate.spark.tasks.chain import Chain, ChainInput, ChainOutput, ChainPlan
from tidegate.spark.tasks.edge import Edge
from tidegate.spark.tasks.processor import ChainProcessor, to_chain_input
from tidegate.spark.tasks.shard_clock import ShardClock
from tidegate.spark.tasks.shards import ShardLayout
from tidegate.spark.tasks.state_store import SparkStore
from tidegate.spark.tasks.transport import (
    SHUFFLE_COLUMNS,
    ShuffleRow,
    encode_json_payload,
    to_record_batch,
)

COMMAND = "command"
"""The kind of shipped rows that hold a command, in JSON."""
_AFTER_ROWS = 1 << 30
"""Sequence number of the first command of a task: commands follow the rows."""


@dataclass(frozen=True)
class Command:
    """Explicit progress after the rows of a micro-batch: clock, watermark, idleness, or the end."""

    clock: int | None = None
    defers_timers: bool = False
    """Whether timers that are due at this clock do not fire yet."""
    watermark: int | None = None
    idle: bool = False
    end: bool = False
    input: int = 0
    partition: str | None = None
    key: int = 0
    adjustment: Adjustment | None = None
    """A function to apply to the first operator before the rows."""

    @classmethod
    def from_json(cls, text: bytes) -> Command:
        document = json.loads(text)
        adjustment = document.pop("adjustment")
        return cls(**document, adjustment=None if adjustment is None else Adjustment(**adjustment))

    def apply(self, tracker: WatermarkTracker) -> None:
        """Advance the watermark, or mark the source idle."""
        if self.watermark is not None:
            tracker.promise(
                self.watermark, ordinal=self.input, partition=self.partition, key=self.key
            )
        if self.idle:
            tracker.idle(ordinal=self.input, partition=self.partition)


def run_commands(
    chain: Chain, batch: ChainInput, commands: Sequence[Command], now: int
) -> list[ChainOutput]:
    """Process a micro-batch and the commands after it, at this clock."""
    first = chain.operators[0]
    for command in commands:
        if command.adjustment is not None and isinstance(first, WindowedAggregate):
            command.adjustment(first)
    found = [
        chain.process(batch, now),
        *(chain.change_sources(command.apply) for command in commands),
    ]
    if not any(command.defers_timers for command in commands):
        found.append(chain.advance_clock(now))
    if any(command.end for command in commands):
        found.append(chain.finish())
    return found


def commands_in(rows: Sequence[ShuffleRow]) -> list[Command]:
    """The commands among shipped rows, in order."""
    return [
        Command.from_json(bytes(row.payload))
        for row in sorted(rows, key=lambda row: row.order)
        if row.kind == COMMAND
    ]


class ScriptedProcessor(ChainProcessor):
    """A processor whose clock follows the script: no timers, and no silence between batches."""

    def __init__(self, plan: ChainPlan, layout: ShardLayout, **options: Any) -> None:
        super().__init__(dataclasses.replace(plan, silence=MAX), layout, **options)
        self._start_clock = 0

    def _process(self, chain: Chain, rows: Sequence[ShuffleRow], now: int) -> list[ChainOutput]:  # noqa: ARG002 - the script has its own clock
        commands = commands_in(rows)
        clock = max((c.clock for c in commands if c.clock is not None), default=chain.now)
        return run_commands(chain, to_chain_input(rows), commands, clock)

    def _open(self, shard: int, now: int) -> tuple[Chain, SparkStore]:  # noqa: ARG002 - as above
        return super()._open(shard, self._start_clock)

    def _set_timer(
        self, chain: Chain, store: SparkStore, clock: ShardClock, *, at_once: bool
    ) -> None:
        """Set no timer: the clock advances with the steps."""


@dataclass(frozen=True)
class Step:
    """One micro-batch: rows by input ordinal, and the commands after them."""

    rows: Mapping[int, pa.Table] = field(default_factory=dict)
    commands: tuple[Command, ...] = ()

    @property
    def clock(self) -> int | None:
        """The clock when the rows arrive; None where it stands still."""
        return max((c.clock for c in self.commands if c.clock is not None), default=None)


@dataclass(frozen=True)
class Part:
    """The share of one query stage in a script: its edges, and at most one step per micro-batch."""

    edges: tuple[Edge, ...]
    steps: Mapping[int, Step]

    def shipped(self, number: int) -> Iterator[pa.RecordBatch]:
        """The rows of a micro-batch by the edge, and its commands for every shard."""
        step = self.steps.get(number)
        if step is None:
            return
        for edge in self.edges:
            if edge.ordinal in step.rows:
                yield from edge.pack(iter(step.rows[edge.ordinal].to_batches()), 0, step.clock)
        payloads = [
            encode_json_payload(asdict(command)) for command in step.commands or (Command(),)
        ]
        edge = self.edges[0]
        rows = [
            ShuffleRow(shard, edge.ordinal, 0, _AFTER_ROWS + n, COMMAND, payload)
            for shard in edge.layout.ids
            for n, payload in enumerate(payloads)
        ]
        yield to_record_batch(rows)


class Script(DirectSource):
    """A source that plays steps; a pipeline over it takes its clock from them."""

    isStreaming = True  # noqa: N815 - the name that a DataFrame has for it
    processor = ScriptedProcessor

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
    """The rows of all parts, one step per micro-batch, up to step `until`."""
    # Spark Connect resolves the name only when the query starts, so every script has its own.
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
    """Reads one step per micro-batch."""

    def __init__(self, parts: Sequence[Part], until: int) -> None:
        self._parts, self._until = parts, until

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"step": 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """All steps are there."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        """The next step, whatever the read limit: a step is a micro-batch."""
        return {"step": min(start["step"] + 1, self._until)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [_Numbered(number) for number in range(start["step"], end["step"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, _Numbered):
            for part in self._parts:
                yield from part.shipped(partition.number)


class _Source(DataSource):
    """Base of all registered scripts; each has its own name, by which Spark finds it."""

    alias: ClassVar[str]
    parts: ClassVar[tuple[Part, ...]]
    until: ClassVar[int]

    @classmethod
    def name(cls) -> str:
        return cls.alias

    def schema(self) -> str:
        return SHUFFLE_COLUMNS

    def streamReader(self, schema: StructType) -> _Reader:  # noqa: ARG002, N802
        return _Reader(self.parts, self.until)
