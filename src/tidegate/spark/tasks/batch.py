"""Batch queries: a chain processes all rows of a shard as one delivery, then the input ends."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from tidegate.instants import MIN
from tidegate.spark import metrics
from tidegate.spark.failures import marks_errors
from tidegate.spark.tasks.chain import Chain, ChainInput, ChainOutput, ChainPlan
from tidegate.spark.tasks.processor import to_chain_input
from tidegate.spark.tasks.reshuffle import Reshuffle
from tidegate.spark.tasks.shards import ShardLayout
from tidegate.spark.tasks.task_output import BoundSink, OutputPayload, TaskOutput
from tidegate.spark.tasks.transport import (
    FORWARDED,
    MARKS,
    OBSERVED,
    OUTPUT_SCHEMA,
    POSITIONS,
    SHUFFLE_SCHEMA,
    ShuffleRow,
    unpack_forwarded,
)
from tidegate.state.memory import MemoryStore

CHUNK = 64 << 20
"""Maximum size of the payloads that are decoded together, in bytes."""
_NUMBERS = pa.struct([(name, pa.int64()) for name in metrics.NUMBERS])


def batch_function(
    plan: ChainPlan,
    layout: ShardLayout,
    now: int,
    sinks: Sequence[BoundSink] | None = None,
    reshuffle: Reshuffle | None = None,
) -> Callable[..., Iterator[pa.RecordBatch]]:
    """The function that Spark applies to every shard; `ChainProcessor` has the same arguments."""
    rows_schema = OUTPUT_SCHEMA if reshuffle is None else SHUFFLE_SCHEMA
    schema = rows_schema.append(pa.field("metrics", _NUMBERS))

    def run(
        key: tuple[pa.Scalar, ...], batches: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        shard = key[0].as_py()
        rows = [ShuffleRow(*row.values()) for batch in batches for row in batch.to_pylist()]
        task_output = TaskOutput(sinks, shard=shard, reshuffle=reshuffle)
        count = itertools.count()

        def packed(
            sent: OutputPayload | None, numbers: dict[str, int | None] | None = None
        ) -> pa.RecordBatch:
            return pa.RecordBatch.from_pylist([task_output.row(next(count), sent, numbers)], schema)

        for output, payload in (unpack_forwarded(row) for row in rows if row.kind == FORWARDED):
            task_output.add_payload(output, payload)
        chain = Chain(plan, MemoryStore(), now=now, hasher=layout.hasher)
        for chain_output in _process(
            chain,
            sorted(
                (row for row in rows if row.kind not in (FORWARDED, MARKS)),
                key=lambda row: row.order,
            ),
        ):
            task_output.add_all(chain_output)
            yield from (packed(one) for one in task_output.take_payloads())
        is_downstream = plan.is_downstream
        after = metrics.chain_counters(
            chain.counters, is_downstream=is_downstream, has_downstream=plan.has_downstream
        )
        first = chain.operators[0].progress
        instants = {
            "watermark": first.watermark,
            "newest_event": MIN if is_downstream else first.newest,
            "clock": chain.now,
        }
        numbers = metrics.batch_numbers({}, after, metrics.Gauges(), instants)
        row = metrics.metrics_row(numbers, {}, after, batch=0, operator=0, shard=shard)
        yield packed(task_output.add_metrics(row), numbers)
        yield from (packed(one) for one in task_output.stage(0, f"{shard:05d}"))

    # By the annotations Spark knows that the function takes an iterator of record batches.
    run.__annotations__ = {
        "key": tuple[pa.Scalar, ...],
        "batches": Iterator[pa.RecordBatch],
        "return": Iterator[pa.RecordBatch],
    }
    return marks_errors(run)


def _process(chain: Chain, rows: list[ShuffleRow]) -> Iterator[ChainOutput]:
    """Process all rows as one delivery, in chunks; the watermark advances after the last one."""
    shared = (OBSERVED, POSITIONS)
    whole = to_chain_input([row for row in rows if row.kind in shared])
    for chunk in _chunks([row for row in rows if row.kind not in shared]):
        found = to_chain_input(chunk)
        yield chain.process(
            ChainInput(found.arrivals, (), found.combined, found.refused, found.failed),
            chain.now,
            hold=True,
        )
    yield chain.process(ChainInput(observed=whole.observed, positions=whole.positions), chain.now)
    yield chain.finish()


def _chunks(rows: list[ShuffleRow]) -> Iterator[list[ShuffleRow]]:
    chunk: list[ShuffleRow] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += len(row.payload)
        if size >= CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
