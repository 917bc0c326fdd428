"""Fakes of Spark's state variables, timers and handle, and a whole query that runs on them."""

from __future__ import annotations

import copy
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from tidegate.api.running import Pipeline, plan_of
from tidegate.scenarios.spark_script import COMMAND, Command, commands_in, run_commands
from tidegate.spark.plan.dataflow import Plan
from tidegate.spark.sources import DirectSource
from tidegate.spark.tasks import processor
from tidegate.spark.tasks.chain import Chain, ChainOutput, ChainPlan
from tidegate.spark.tasks.edge import Edge
from tidegate.spark.tasks.processor import ChainProcessor, to_chain_input
from tidegate.spark.tasks.reshuffle import Reshuffle
from tidegate.spark.tasks.shards import ShardLayout
from tidegate.spark.tasks.transport import (
    LATE,
    MARKS,
    METRICS,
    PANES,
    ShuffleRow,
    decode_payload,
    encode_json_payload,
)

Row = dict[str, Any]


class FakeValue:
    """One value state of a shard; like Spark's, it stores a copy."""

    def __init__(self, held: dict[Any, Any], name: str) -> None:
        self._held, self._name = held, name

    def get(self) -> tuple[Any, ...] | None:
        return self._held.get(self._name)

    def update(self, value: tuple[Any, ...]) -> None:
        self._held[self._name] = _checked(value)


class FakeMap:
    """One map state of a shard."""

    def __init__(self, held: dict[Any, Any], name: str) -> None:
        self._held, self._name = held, name

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        return self._held.get((self._name, key))

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        self._held[self._name, key] = _checked(value)

    def removeKey(self, key: tuple[Any, ...]) -> None:
        self._held.pop((self._name, key), None)


def _checked(value: tuple[Any, ...]) -> tuple[Any, ...]:
    """The value, if Spark can send it to the JVM."""
    assert all(isinstance(one, int | str | bytes) for one in value), [type(one) for one in value]
    return tuple(value)


@dataclass
class Shard:
    """The state and the timers of one shard."""

    state: dict[Any, Any] = field(default_factory=dict)
    timers: set[int] = field(default_factory=set)


class _Microseconds(int):
    """Microseconds in place of milliseconds: the factor 1000 of the processor is ignored."""

    def __mul__(self, _: int) -> int:
        return int(self)


@dataclass(frozen=True)
class FakeTimers:
    now: int

    def getCurrentProcessingTimeInMs(self) -> _Microseconds:
        return _Microseconds(self.now)


class FakeHandle:
    """The handle of one shard."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def getValueState(self, name: str, _: str) -> FakeValue:
        return FakeValue(self._shard.state, name)

    def getMapState(self, name: str, _key: str, _value: str) -> FakeMap:
        return FakeMap(self._shard.state, name)

    def registerTimer(self, at: int) -> None:
        self._shard.timers.add(at)


@dataclass
class Found:
    """The output rows of a batch, in the order of shards."""

    panes: list[Row] = field(default_factory=list)
    late: list[Row] = field(default_factory=list)
    metrics: list[Row] = field(default_factory=list)

    def take(self, output: str, payload: bytes) -> None:
        if output in (PANES, LATE, METRICS):
            getattr(self, output).extend(decode_payload(payload).to_pylist())


class Commanded(ChainProcessor):
    """A processor that runs commands at the clock of their batch."""

    def _process(self, chain: Chain, rows: Sequence[ShuffleRow], now: int) -> list[ChainOutput]:
        return run_commands(chain, to_chain_input(rows), commands_in(rows), now)


class Stage:
    """One stateful operator of a query with all its shards."""

    def __init__(self, plan: ChainPlan, layout: ShardLayout, name: str) -> None:
        self.plan, self.layout, self.name = plan, layout, name
        self.shards = {shard: Shard() for shard in layout.ids}
        self._operate = Commanded(plan, layout, name=name)
        self.reshuffle: Reshuffle | None = None
        """To the stage that takes the output, if this is not the last one."""

    def run(self, rows: Iterable[ShuffleRow], now: int, *, all_timers: bool = False) -> list[Any]:
        """Run a batch like Spark: the rows of each shard first, then the expired timers."""
        by_shard: dict[int, list[ShuffleRow]] = {}
        for row in rows:
            by_shard.setdefault(row.shard, []).append(row)
        found: list[Any] = []
        opened = {shard: self._opened(shard) for shard in self.shards}
        for shard, given in by_shard.items():
            operate = opened[shard]
            rows_of_spark = (
                (r.shard, r.input, r.task, r.seq, r.kind, bytes(r.payload)) for r in given
            )
            found += operate.handleInputRows((shard,), rows_of_spark, FakeTimers(now))
        for shard, kept in self.shards.items():
            expired = sorted(at for at in kept.timers if at * 1000 <= now)
            for at in expired if not all_timers else [None]:
                found += opened[shard].handleExpiredTimer((shard,), FakeTimers(now), at)
                # Like Spark, which removes a handled timer even if it was set again.
                kept.timers.discard(at)
        return found

    def _opened(self, shard: int) -> ChainProcessor:
        operate = copy.copy(self._operate)
        operate._reshuffle = self.reshuffle
        operate.init(FakeHandle(self.shards[shard]))
        return operate

    @property
    def next_timer(self) -> int | None:
        """The first instant at which a timer of any shard expires, in microseconds."""
        return min((at * 1000 for kept in self.shards.values() for at in kept.timers), default=None)

    def watermarks(self) -> set[int]:
        return {summary["watermark"] for summary in self.summaries()}

    def summaries(self) -> list[dict[str, Any]]:
        """The stored summary of each shard."""
        return [
            json.loads(kept.state["meta"][1])
            for kept in self.shards.values()
            if "meta" in kept.state
        ]


class Columns(DirectSource):
    """A source with columns only; a test delivers its rows."""

    isStreaming = True  # noqa: N815 - the name that a DataFrame has for it

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def load(self, edge: Edge) -> Any:
        raise AssertionError("a test delivers the rows")


class Fleet:
    """A whole query: edges, one stage for each chain, and the shuffles between them."""

    def __init__(
        self, plans: Sequence[ChainPlan], edges: Sequence[Edge], layout: ShardLayout
    ) -> None:
        self.edges, self.layout = edges, layout
        self.stages = [Stage(plan, layout, str(number)) for number, plan in enumerate(plans)]
        self.enters = [0] * len(edges)
        """The stage that each edge sends to."""
        self.feeds = [*range(1, len(plans))]
        """For each stage but the last, the stage that it feeds."""
        for stage, follower in itertools.pairwise(self.stages):
            stage.reshuffle = Reshuffle(follower.plan.specs[0].inputs[0], layout)

    @classmethod
    def of(cls, pipeline: Pipeline[Any], layout: ShardLayout) -> Fleet:
        """The query of a pipeline, possibly a tree; its edges follow the order of its sources."""
        plan = plan_of(pipeline)
        numbers = {id(stage): number for number, stage in enumerate(plan.stages)}
        fleet = cls(plan.chains(layout), [], layout)
        edges: list[Edge] = []
        for stage in plan.stages:
            for number, given in enumerate(stage.inputs):
                if isinstance(given, Plan):
                    fed = numbers[id(given)]
                    fleet.feeds[fed] = numbers[id(stage)]
                    fleet.stages[fed].reshuffle = stage.reshuffle(number, layout)
                else:
                    edges.append(stage.edge(number, given, layout))
                    fleet.enters.append(numbers[id(stage)])
        fleet.edges = edges
        return fleet

    def snapshot(self) -> Any:
        """The state of all stages, as in a checkpoint."""
        return copy.deepcopy([stage.shards for stage in self.stages])

    def restore(self, saved: Any) -> None:
        for stage, shards in zip(self.stages, copy.deepcopy(saved), strict=True):
            stage.shards = shards

    @staticmethod
    def forget_workers() -> None:
        """Clear the chains that Python workers cache, as if all workers had exited."""
        processor._chain_cache.clear()

    def deliver(
        self,
        given: Sequence[tuple[int, int, Sequence[pa.Table]]],
        now: int,
        *,
        shuffle: Any = None,
        commands: Sequence[Command] = (),
        batch: int | None = None,
    ) -> Found:
        """Run a batch of tables, given as (input, task, tables).

        `shuffle` reorders the rows of a stage: Spark delivers them in any order.
        """
        rows: dict[int, list[ShuffleRow]] = {}
        for number, task, tables in given:
            batches = [batch for table in tables for batch in table.to_batches()]
            rows.setdefault(self.enters[number], []).extend(
                shipped(self.edges[number].pack(iter(batches), task, now, batch))
            )
        rows.setdefault(0, []).extend(
            ShuffleRow(shard, 99, 0, n, COMMAND, encode_json_payload(asdict(one)))
            for shard in self.layout.ids
            for n, one in enumerate(commands)
        )
        return self._run(
            {stage: mine if shuffle is None else shuffle(mine) for stage, mine in rows.items()}, now
        )

    def counters(self) -> Counter[str]:
        """The counters of all shards together."""
        return sum(
            (Counter(summary["counters"]) for summary in self.stages[0].summaries()), Counter()
        )

    def wake(self, now: int, *, all_timers: bool = False) -> Found:
        """Run a batch without rows: only timers."""
        return self._run({}, now, all_timers=all_timers)

    def _run(
        self, rows: dict[int, list[ShuffleRow]], now: int, *, all_timers: bool = False
    ) -> Found:
        found = Found()
        for number, stage in enumerate(self.stages):
            packed = stage.run(rows.get(number, []), now, all_timers=all_timers)
            if number + 1 < len(self.stages):
                rows.setdefault(self.feeds[number], []).extend(
                    ShuffleRow(row.shard, row.input, row.task, row.seq, row.kind, row.payload)
                    for row in packed
                )
                continue
            for row in packed:
                assert row.output != MARKS
                found.take(row.output, row.payload)
        return found


def shipped(batches: Iterable[pa.RecordBatch]) -> list[ShuffleRow]:
    """The shuffle rows in record batches of an edge."""
    return [ShuffleRow(**row) for batch in batches for row in batch.to_pylist()]
